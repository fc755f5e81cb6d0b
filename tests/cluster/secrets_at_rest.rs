//! A Secret is in no file of a cluster as it was written: not in the store, embedded or etcd's, nor in its snapshots, backups, logs,
//! audit, history or bundles for support. On the way its keys are exchanged while the cluster runs.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{Cluster, Host, describe, said};

const PLAIN: &str = "entirely-unlikely-words-0451";

const USES: &str = "
apiVersion: v1
kind: Pod
metadata: {name: uses}
spec:
  containers:
  - name: uses
    image: cox.local/hello
    env: [{name: SECRET, valueFrom: {secretKeyRef: {name: s, key: p}}}]
";

/// Fails where a file below a directory has the text, or its base64 however it is aligned.
fn is_nowhere(dirs: &[&Path], when: &str) {
    let mut texts = vec![PLAIN.to_owned()];
    for skipped in 0..3 {
        // Only what does not depend on what stands before and behind.
        let encoded = STANDARD.encode(&PLAIN.as_bytes()[skipped..]);
        texts.push(encoded.trim_end_matches('=')[..encoded.len() - 4].to_owned());
    }
    // A file that has the text shows that others would be found.
    let control = tempfile::tempdir().unwrap();
    // Images and the layers of containers are not ours, and large; what is written about containers is. What they are started
    // with is below /run on a real machine, which is memory.
    let places = [&["--exclude-dir=runtime"][..], &["--include=*.json", "--exclude-dir=specs"][..]];
    for (text, place) in texts.iter().flat_map(|text| places.iter().map(move |place| (text, place))) {
        let known = control.path().join("known.json");
        std::fs::write(&known, format!("\0{text}\n")).unwrap();
        let mut grep = Command::new("grep");
        grep.arg("-rlaF").args(*place).args(["--devices=skip", "-e", text]).args(dirs).arg(control.path());
        let found = String::from_utf8_lossy(&grep.output().unwrap().stdout).into_owned();
        assert_eq!(found.trim_end(), known.to_str().unwrap(), "{when}: where {text} is");
    }
}

fn keys(cluster: &Cluster) -> usize {
    let text = std::fs::read_to_string(cluster.path("data/pki/encryption.yaml")).unwrap();
    text.matches("secret: ").count()
}

/// Walk 3.1.
#[test]
fn security_a_secret_is_in_no_file_in_plain_text() {
    let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
        .unwrap();
    let file = format!(
        "apiVersion: cox.dev/v1\nkind: Cluster\nspec:\n  gateway: false\n  components:\n    apiserver:\n      \
         audit-log-path: {0}/audit.log\n      audit-policy-file: {0}/policy.yaml\n",
        dir.path().display()
    );
    std::fs::write(path("cluster.yaml"), file).unwrap();
    let cluster = Cluster::up_on(Host::new(), &[], &["-f", path("cluster.yaml").to_str().unwrap()]);
    let places = [dir.path().to_owned(), cluster.path("data"), cluster.path("run"), cluster.path(".kube")];
    let everywhere = |when: &str| {
        let there: Vec<&Path> = places.iter().map(|path| path.as_path()).filter(|path| path.exists()).collect();
        is_nowhere(&there, when);
    };
    let reads = || cluster.kubectl_args(&["get", "secret", "s", "-o", "go-template={{.data.p|base64decode}}"]);

    // Written, changed, refused and removed.
    cluster.kubectl(&format!("create secret generic s --from-literal=p={PLAIN}"));
    cluster.kubectl(&format!("create secret generic gone --from-literal=p={PLAIN}"));
    cluster.kubectl("label secret s a=b");
    let wrong = format!("{{\"type\":\"other\",\"stringData\":{{\"p\":\"{PLAIN}\"}}}}");
    let refused = cluster.cox("kubectl").args(["patch", "secret", "s", "--type=merge", "-p", &wrong]).output().unwrap();
    assert!(!refused.status.success(), "the type of a Secret never changes: {}", describe(&refused));
    cluster.kubectl("delete secret gone");
    assert_eq!(reads(), PLAIN);
    // Used by a container.
    std::fs::write(path("uses.yaml"), USES).unwrap();
    cluster.kubectl_args(&["apply", "-f", path("uses.yaml").to_str().unwrap()]);
    cluster.until_phase("uses", "Running");
    let specs = cluster.path("run/runtime/specs");
    let has_it = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.unwrap().path()).unwrap().contains(PLAIN)
    };
    assert!(std::fs::read_dir(&specs).unwrap().any(has_it), "the container has the Secret");
    let audit = std::fs::read_to_string(path("audit.log")).unwrap();
    assert!(audit.contains("\"resource\":\"secrets\""), "what is audited is about Secrets, too");
    let _ = cluster.cox("trace").arg("secret/s").output().unwrap();
    said(cluster.cox("support").arg("-o").arg(path("bundle.tar.gz")));
    said(Command::new("tar").arg("-xzf").arg(path("bundle.tar.gz")).arg("-C").arg(dir.path()));
    said(cluster.cox("store").arg("backup").arg(cluster.path("data/store")).arg(path("by-hand.snap")));
    everywhere("in a store of its own");

    // Keys are exchanged while the cluster runs; ended at any moment, the next exchange ends what was begun.
    for pause in [50, 700, 1500] {
        let mut rotate = cluster.cox("store");
        let mut child = rotate.arg("rotate-keys").process_group(0).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        let _ = (child.kill(), child.wait());
        assert_eq!(reads(), PLAIN);
    }
    let done = cluster.cox_says("store rotate-keys");
    assert!(done.contains("objects are encrypted with key"), "{done}");
    assert_eq!(keys(&cluster), 1, "older keys are forgotten");
    assert_eq!(reads(), PLAIN);
    cluster.kubectl("label secret s a=c --overwrite");
    assert_eq!(cluster.kubectl("get storageversionmigrations -o name"), "");
    assert!(!cluster.kubectl("get secrets -n kube-system -o name").contains("cox-key-"));
    cluster.cox_says("down");
    assert!(cluster.cox_says("store rotate-keys").contains("objects are encrypted with key"));
    cluster.up_again();
    assert_eq!(reads(), PLAIN);
    everywhere("after keys were exchanged");

    // In etcd, its log and its snapshots.
    cluster.cox_says("store move --ha");
    cluster.wait("the API again", || {
        let read = cluster.cox("kubectl").args(["get", "secret", "s"]).output().unwrap();
        read.status.success().then_some(())
    });
    cluster.kubectl("label secret s a=d --overwrite");
    cluster.cox_says("server snapshot");
    assert_eq!(reads(), PLAIN);
    everywhere("in etcd");
    assert!(cluster.cox_says("store rotate-keys").contains("objects are encrypted with key"));
    assert_eq!((reads().as_str(), keys(&cluster)), (PLAIN, 1));
    everywhere("after keys were exchanged in etcd");
}
