//! The hard way: every component as a process of its own, over a real etcd, ending in an answer from a pod.

use std::path::Path;
use std::process::Command;

use crate::harness::{Host, describe, mounts_below};

const COMPONENTS: [&str; 8] =
    ["etcd", "apiserver", "controller-manager", "scheduler", "cri", "kubelet", "proxy", "dns"];

/// The script on a host of its own; everything goes when this does.
struct HardWay {
    host: Host,
    dir: tempfile::TempDir,
}

impl HardWay {
    fn run(&self, command: &str) -> std::process::Output {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/hard-way");
        let mut words = self.host.command(script);
        words.arg(command).env("COX", env!("CARGO_BIN_EXE_cox")).env("DIR", self.state()).env("NODE", "node-1");
        words.env("CGROUP", format!("/{}", self.host.name()));
        words.output().unwrap()
    }

    fn state(&self) -> std::path::PathBuf {
        self.dir.path().join("state")
    }
}

impl Drop for HardWay {
    fn drop(&mut self) {
        let output = self.run("down");
        if !std::thread::panicking() {
            assert!(output.status.success(), "{}", describe(&output));
        }
    }
}

/// Walk 2.1 and 3.1.
#[test]
fn every_component_is_a_process_of_its_own() {
    let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
    let cluster = HardWay { host: Host::new(), dir };
    let state = cluster.state();
    let output = cluster.run("up");
    let log = |name: &str| std::fs::read_to_string(state.join(format!("logs/{name}.log"))).unwrap_or_default();
    let logs: String = COMPONENTS.iter().map(|name| format!("--- {name}\n{}", last_lines(&log(name)))).collect();
    let said = describe(&output);
    assert!(output.status.success(), "{said}\n{logs}");
    assert!(said.contains("Hello from hello-"), "{said}");
    assert!(said.contains("hello.default.svc.cluster.local is 10.32.0."), "{said}");

    // Each with a command line of upstream's flags, and none of them doing another's work.
    for name in COMPONENTS {
        let pid = std::fs::read_to_string(state.join("pids").join(name)).unwrap();
        let words = std::fs::read(Path::new("/proc").join(pid.trim()).join("cmdline")).unwrap();
        let words = String::from_utf8(words).unwrap().replace('\0', " ");
        assert!(words.contains(name) && words.contains(" --"), "{name}: {words}");
    }
    // A node's credential is good for itself only, and the server would say where it is not.
    let warning = "without the NodeRestriction admission plug-in";
    assert!(!log("apiserver").contains(warning), "{}", log("apiserver"));
    // The objects are in etcd, as upstream lays them out.
    let pki = |file: &str| state.join("pki").join(file);
    let mut keys: Command = cluster.host.command("etcdctl");
    keys.env("ETCDCTL_API", "3").args(["--endpoints", "https://127.0.0.1:2379", "--cacert"]).arg(pki("ca.crt"));
    keys.arg("--cert").arg(pki("apiserver-etcd-client.crt")).arg("--key").arg(pki("apiserver-etcd-client.key"));
    let keys = describe(&keys.args(["get", "--prefix", "/registry/", "--keys-only"]).output().unwrap());
    for key in
        ["/registry/deployments/default/hello", "/registry/services/specs/default/hello", "/registry/minions/node-1"]
    {
        assert!(keys.contains(key), "{key} in\n{keys}");
    }

    drop(cluster);
    assert!(!state.exists());
    assert_eq!(mounts_below(&state), Vec::<String>::new());
    assert_eq!(processes_of(&state), Vec::<String>::new());
}

/// The command lines that name something below a directory.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let words = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    words.map(|words| String::from_utf8_lossy(&words).replace('\0', " ")).filter(|words| words.contains(dir)).collect()
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n") + "\n"
}
