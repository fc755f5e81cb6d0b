//! `cox upgrade`: another program under a running cluster, and the old one again where that one fails.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::harness::{Host, describe, install, install_script};

/// A cluster whose program is a copy of its own.
struct Installed {
    host: Host,
    dir: TempDir,
}

impl Installed {
    fn program(&self) -> PathBuf {
        self.dir.path().join("bin/cox")
    }

    fn cox(&self, line: &str) -> Command {
        let mut command = self.host.command(self.program());
        command.args(line.split(' ')).env("HOME", self.dir.path()).env("COX_NAME", self.host.name());
        command.env("KUBECONFIG", self.dir.path().join("kubeconfig"));
        command.env("COX_DATA_DIR", self.dir.path().join("data")).env("COX_RUN_DIR", self.dir.path().join("run"));
        command
    }

    fn output(&self, line: &str) -> Output {
        self.cox(line).output().unwrap()
    }

    fn says(&self, line: &str) -> String {
        let output = self.output(line);
        let log = std::fs::read_to_string(self.dir.path().join("data/logs/cox.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(40)..].join("\n");
        assert!(output.status.success(), "cox {line}\n{}\n{end}", describe(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let output = self.output("delete");
        if !std::thread::panicking() {
            assert!(output.status.success(), "{}", describe(&output));
        }
    }
}

#[test]
fn a_program_is_replaced_under_a_running_cluster_and_put_back_when_it_fails() {
    let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
    let cluster = Installed { host: Host::new(), dir };
    std::fs::create_dir(cluster.dir.path().join("bin")).unwrap();
    install(&cluster.program());
    cluster.says("up --node-name node-1 --gateway=false");
    cluster.says("kubectl run hello --image=cox.local/hello");
    cluster.says("kubectl wait --for=condition=Ready pod/hello --timeout=170s");
    cluster.says("kubectl create configmap before");
    cluster.says("kubectl create secret generic s --from-literal=p=upgraded-words-0451");
    let container = || {
        let path = "jsonpath={.status.containerStatuses[0].containerID}/{.status.containerStatuses[0].restartCount}";
        cluster.says(&format!("kubectl get pod hello -o {path}"))
    };
    let (first, inode) = (container(), std::fs::metadata(cluster.program()).unwrap().ino());
    assert!(first.ends_with("/0"), "{first}");

    let new = env!("CARGO_BIN_EXE_cox");
    let said = cluster.says(&format!("upgrade {new} --observe 2s"));
    assert!(said.contains("backup") && said.contains("upgraded: "), "{said}");
    let upgraded = std::fs::metadata(cluster.program()).unwrap().ino();
    assert_ne!(upgraded, inode);
    cluster.says("kubectl get configmap before");
    assert_eq!(container(), first, "containers go on");

    // One that says that it is a cox, and then brings nothing up.
    let broken = cluster.dir.path().join("broken");
    let script =
        "#!/bin/sh\n[ \"$1\" = version ] && echo 'cox 9.9.9 (Kubernetes v1.37)' && exit\necho broken >&2\nexit 3\n";
    install_script(&broken, script);
    cluster.says("kubectl create configmap between");
    let output = cluster.output(&format!("upgrade {}", broken.display()));
    assert!(!output.status.success());
    let said = describe(&output);
    assert!(said.contains("did not bring the cluster up") && said.contains("the old program is back"), "{said}");
    assert_eq!(std::fs::metadata(cluster.program()).unwrap().ino(), upgraded);
    assert_eq!(cluster.says("kubectl get configmaps before between -o name"), "configmap/before\nconfigmap/between\n");
    cluster.says("kubectl create configmap after");
    assert_eq!(container(), first, "containers go on");

    // What is no cox, or too far ahead, changes nothing.
    for (program, expected) in [("/bin/true", "is no cox"), ("/nonexistent", "running /nonexistent version")] {
        let output = cluster.output(&format!("upgrade {program}"));
        assert!(!output.status.success() && describe(&output).contains(expected), "{}", describe(&output));
    }
    assert!(!cluster.dir.path().join("data/upgrade.json").exists());
    // What was put aside on the way has no Secret in it, as text or in base64.
    for text in ["upgraded-words-0451", "dXBncmFkZWQtd29yZHMtMDQ1"] {
        let mut grep = Command::new("grep");
        grep.args(["-rlaF", "--exclude-dir=runtime", "--devices=skip", "-e", text])
            .arg(cluster.dir.path().join("data"));
        let found = grep.output().unwrap();
        assert!(found.stdout.is_empty(), "{text} is in {}", String::from_utf8_lossy(&found.stdout));
    }
    cluster.says("kubectl get --raw /readyz");
}
