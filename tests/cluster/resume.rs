//! A crash of ours never hurts theirs: the cluster dies and comes back, the containers do not notice. What a cluster is kept by
//! (its file, manifests, backups) is kept as well.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::harness::{Cluster, said};
use crate::leftovers::kill;

#[test]
fn containers_outlive_the_cluster_process() {
    let dir = tempfile::tempdir().unwrap();
    let (file, backups) = (dir.path().join("cluster.yaml"), dir.path().join("backups"));
    let text = "apiVersion: cox.dev/v1\nkind: Cluster\nspec:\n  backupDir: BACKUPS\n  nodeLabel: [disk=fast]\n  components:\n    \
                kubelet: {maxPods: 77}\n    apiserver: {event-ttl: 2h}\n";
    std::fs::write(&file, text.replace("BACKUPS", backups.to_str().unwrap())).unwrap();
    let cluster = Cluster::up_with(&[testkit::images::busybox], &["-f", file.to_str().unwrap()]);
    let manifest = |text: &str| {
        let path = cluster.path("data/manifests/kept.yaml");
        let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        open.unwrap().write_all(text.as_bytes()).unwrap();
    };
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n---\n");
    let is_there = |name: &str| cluster.kubectl("get configmaps -o name").contains(&format!("configmap/{name}\n"));
    manifest(&(map("one") + &map("two")));
    cluster.wait("what is in a manifest", || is_there("two").then_some(()));
    let script = "while true; do date; sleep 1; done";
    let run = ["run", "ticker", "--image=busybox", "--restart=Never", "--command", "--", "sh", "-c", script];
    cluster.kubectl_args(&run);
    cluster.until_phase("ticker", "Running");
    let identity = || {
        let path = "{.metadata.uid}/{.status.containerStatuses[0].containerID}/{.status.containerStatuses[0].restartCount}/{.status.podIP}";
        cluster.kubectl(&format!("get pod ticker -o jsonpath={path}"))
    };
    let before = identity();
    for _ in 0..3 {
        let pid = std::fs::read_to_string(cluster.path("data/lock")).unwrap();
        kill(&cluster, &[pid.trim().parse().unwrap()]);
        cluster.up_again();
        cluster.until_phase("ticker", "Running");
        assert_eq!(identity(), before);
    }
    // The last start knew all that the first was told, and what left the manifest goes.
    manifest(&map("one"));
    cluster.wait("the end of what left the manifest", || (!is_there("two")).then_some(()));
    assert!(is_there("one"));
    let node =
        "{.status.capacity.pods} {.metadata.labels.disk} {.metadata.labels.node-role\\.kubernetes\\.io/control-plane}.";
    assert_eq!(cluster.kubectl_args(&["get", "node", "node-1", "-o", &format!("jsonpath={node}")]), "77 fast .");
    let roles = cluster.kubectl("get nodes");
    assert!(roles.contains("control-plane"), "{roles}");
    // It is written down once it is done.
    cluster.wait("the manifests and the copy in the status", || {
        let status = cluster.cox_says("status");
        (status.contains("manifests (1 files, 1 objects)") && status.contains("the last at 20")).then_some(())
    });
    // One copy of the store, made when the first start had begun.
    assert_eq!(std::fs::read_dir(&backups).unwrap().count(), 1);
    support_has_no_secrets(&cluster, dir.path());
    // It ticks once a second; all of the above may take less.
    cluster.wait("two ticks", || (cluster.kubectl("logs ticker --tail=2").lines().count() == 2).then_some(()));
}

/// A bundle of the real cluster, searched for what nobody should see.
fn support_has_no_secrets(cluster: &Cluster, dir: &Path) {
    cluster.kubectl("create secret generic s --from-literal=p=correct-horse-battery");
    let (bundle, out) = (dir.join("bundle.tar.gz"), dir.join("unpacked"));
    said(cluster.cox("support").arg("-o").arg(&bundle));
    std::fs::create_dir(&out).unwrap();
    said(std::process::Command::new("tar").arg("-xzf").arg(&bundle).arg("-C").arg(&out));
    let read = |name: &str| std::fs::read_to_string(out.join("cox-support").join(name)).unwrap();
    assert!(read("api/pods.json").contains("ticker") && read("logs/server.log").contains("serving CRI"));
    let key = std::fs::read_to_string(cluster.path("data/pki/ca.key")).unwrap();
    let sealing = std::fs::read_to_string(cluster.path("data/pki/encryption.yaml")).unwrap();
    let sealing = sealing.lines().find_map(|line| line.split_once("secret: ")).unwrap().1.to_owned();
    for secret in [key.lines().nth(1).unwrap(), sealing.trim(), "correct-horse-battery", "PRIVATE KEY", "eyJhbGciOi"] {
        let found = std::process::Command::new("grep").args(["-rlF", "--", secret]).arg(&out).output().unwrap();
        assert!(found.stdout.is_empty(), "{secret} is in {}", String::from_utf8_lossy(&found.stdout));
    }
}
