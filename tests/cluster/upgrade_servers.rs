//! `cox upgrade` of three servers and two nodes (`COX_UPGRADE_NODES` of them), one after the other, by one command, while somebody writes and watches: nothing
//! fails that a client would not try again, no container restarts, and a program that is broken goes by itself.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::etcd_servers::{Machine, must};
use crate::harness::{describe, install, install_script, run};
use crate::manifests;
use crate::server_group::{Group, under_load};

/// A program that says that it is a cox of the same version, and then does this.
fn broken(dir: &Path, name: &str, then: &str) -> PathBuf {
    let path = dir.join(name);
    let script = format!("#!/bin/sh\n[ \"$1\" = version ] && echo 'cox 9.9.9 (Kubernetes v1.36)' && exit\n{then}\n");
    install_script(&path, &script);
    path
}

/// A pod that runs on any machine but the first server.
const MOVING: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: moving, namespace: moving}
spec:
  selector: {matchLabels: {app: moving}}
  template:
    metadata: {labels: {app: moving}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: hello, image: cox.local/hello}]
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: [server-1]}]
";

/// Another program: the same, with a byte more at its end, where nobody looks.
fn another(dir: &Path) -> PathBuf {
    let path = dir.join("new");
    install(&path);
    run(Command::new("truncate").arg("--size=+1").arg(&path));
    path
}

/// Keeps every command that changes a cluster from this machine.
fn occupied(machine: &Machine) -> std::fs::File {
    let path = machine.dir.path().join("data/change.lock");
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).open(path).unwrap();
    file.lock().unwrap();
    write!(file, "{}", std::process::id()).unwrap();
    file
}

#[test]
fn servers_and_nodes_are_upgraded_under_load() {
    let nodes = std::env::var("COX_UPGRADE_NODES").map_or(2, |count| count.parse().unwrap());
    let group = Group::new(nodes, Machine::installed, &[]);
    group.apply(manifests::HELLO);
    group.kubectl("rollout status daemonset/hello --timeout=170s");
    let containers = || {
        let path = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                    {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt};{end}";
        let server = &group.servers[0];
        let kubeconfig = server.dir.path().join("data/admin.kubeconfig");
        group.wait("the containers", || {
            let mut get = server.cox("kubectl");
            let output = get.arg("--kubeconfig").arg(&kubeconfig).args(["get", "pods", "-o", path]).output().unwrap();
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        })
    };
    let first = containers();
    assert_eq!(first.matches(" 0 ").count(), group.machines().count(), "{first}");
    let inode = |machine: &Machine| std::fs::metadata(&machine.program).unwrap().ino();
    let new = another(group.servers[0].dir.path());
    let new = new.to_str().unwrap();
    let upgrade = |machine: &Machine, program: &str, observe: &str| {
        machine.cox("upgrade").args([program, "--observe", observe]).output().unwrap()
    };

    // A copy, as on the machine of somebody else: that of a server leaves out those that are away.
    let kubeconfig = group.servers[2].dir.path().join("kubeconfig");
    std::fs::copy(group.kubeconfig(2), &kubeconfig).unwrap();
    let failures = under_load(&group, &group.servers[2], &kubeconfig, |user| {
        let inodes = || group.machines().map(inode).collect::<Vec<_>>();
        let all = || group.servers[0].cox("upgrade").args([new, "--all", "--observe", "3s"]).output().unwrap();
        // The last machine is busy: all others are upgraded, and it says why it is not.
        let (before, busy) = (inodes(), occupied(group.nodes.last().unwrap()));
        let output = all();
        let said = describe(&output);
        assert!(!output.status.success(), "{said}\n{}", group.logs());
        let mut names: Vec<String> = (1..=3).map(|number| format!("server-{number}")).collect();
        names.extend((1..nodes).map(|number| format!("node-{number}")));
        let expected = format!("node-{nodes} was not upgraded; {} run the new program", names.join(", "));
        assert!(
            said.contains(&expected) && said.contains("another command changes this cluster"),
            "{said}\n{}",
            group.logs()
        );
        let between = inodes();
        let is_other = |(one, other): (&u64, &u64)| one != other;
        let changed: Vec<bool> = before.iter().zip(&between).map(is_other).collect();
        let last = changed.len() - 1;
        assert!(changed[..last].iter().all(|changed| *changed) && !changed[last], "{changed:?}");
        user.progress("writes after an upgrade");
        group.until_healthy();
        // Given again, the command goes on with what is left; pods that can run elsewhere are told to, and nodes are open
        // to others afterwards.
        drop(busy);
        group.kubectl("create namespace moving");
        group.apply(MOVING);
        group.kubectl("rollout status deployment/moving -n moving --timeout=170s");
        let pod = || group.kubectl("get pods -n moving -l app=moving --field-selector=status.phase=Running -o name");
        let moving = pod();
        let drained = group.servers[0].cox("upgrade").args([new, "--all", "--drain", "--observe", "3s"]).output();
        let said = must(&drained.unwrap(), || group.logs());
        group.wait("a pod that has moved", || (!pod().is_empty() && !pod().contains(moving.trim())).then_some(()));
        assert_eq!(group.kubectl("get nodes --field-selector=spec.unschedulable=true -o name"), "", "{said}");
        group.kubectl("delete namespace moving");
        assert!(said.contains("runs it already") && said.contains(&format!("✓ node-{nodes}")), "{said}");
        assert_eq!(inodes()[..last], between[..last], "{said}");
        assert_ne!(inodes()[last], between[last], "{said}");
        assert!(!group.servers[0].dir.path().join("data/programs").exists());
        assert_eq!(group.kubectl("get configmap -n kube-system cox-upgrade --ignore-not-found"), "");
        user.progress("writes after an upgrade");
        group.until_healthy();
        assert_eq!(containers(), first, "containers go on");

        // Two at once would be one too many.
        std::thread::scope(|scope| {
            let upgrading = scope.spawn(|| upgrade(&group.servers[0], new, "15s"));
            group.wait("the turn of the first server", || {
                let lease = "get lease -n kube-system cox-upgrade -o jsonpath={.spec.holderIdentity}";
                (group.kubectl(lease) == "server-1").then_some(())
            });
            let output = upgrade(&group.servers[1], new, "1s");
            assert!(!output.status.success());
            assert!(describe(&output).contains("server-1 is being upgraded"), "{}", describe(&output));
            must(&upgrading.join().unwrap(), || group.logs());
        });

        // Programs that bring nothing up, or only say so, are gone again at once.
        let dir = group.servers[0].dir.path();
        let dead = broken(dir, "dead", "echo broken >&2; exit 3");
        let liar = broken(dir, "liar", "echo ready; exec sleep 3600");
        for (machine, program) in [(&group.servers[1], &dead), (&group.servers[2], &liar), (&group.nodes[0], &dead)] {
            let before = inode(machine);
            let output = upgrade(machine, program.to_str().unwrap(), "2s");
            assert!(!output.status.success());
            assert!(describe(&output).contains("the old program is back"), "{}", describe(&output));
            assert_eq!(inode(machine), before);
            user.progress("writes after a return");
            group.until_healthy();
        }
    });
    assert_eq!(containers(), first, "containers go on");
    // Whoever gets these tries again, elsewhere. That the store is away is said while etcd elects another leader, which may take
    // longer on a busy machine than a request waits.
    let is_retried = |said: &String| {
        [
            "refused",
            "reset",
            "EOF",
            "closed",
            "timed out",
            "Unable to connect",
            "ServiceUnavailable",
            "store unavailable",
        ]
        .iter()
        .any(|word| said.contains(word))
    };
    let others: Vec<&String> = failures.iter().filter(|said| !is_retried(said)).collect();
    assert!(others.is_empty(), "{others:#?}");

    // Nodes are never newer than the servers.
    let newer = broken(group.servers[0].dir.path(), "newer", "exit 3");
    let text = std::fs::read_to_string(&newer).unwrap().replace("v1.36", "v1.37");
    std::fs::write(&newer, text).unwrap();
    let output = upgrade(&group.nodes[1], newer.to_str().unwrap(), "1s");
    assert!(!output.status.success() && describe(&output).contains("upgrade them first"), "{}", describe(&output));
}
