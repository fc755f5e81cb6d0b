//! Several servers that bring their own etcd: `cox up --ha` on one host, `cox server add` and `cox join --server` for two
//! more. One of them loses power under writes and is replaced by another machine.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::etcd_servers::{Machine, Marks, Switch, must};
use crate::harness::{Cluster, Host, describe, run, said};

const SERVERS: [&str; 4] = ["192.168.79.1", "192.168.79.2", "192.168.79.3", "192.168.79.4"];

/// The rows of `cox server status`, as words.
fn rows(machine: &Machine) -> Vec<Vec<String>> {
    let output = machine.cox("server").arg("status").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    text.lines().skip(1).take_while(|line| !line.is_empty()).filter(|line| !line.starts_with(' ')).map(words).collect()
}

fn healthy(machine: &Machine) -> BTreeSet<String> {
    rows(machine).iter().filter(|row| row[3] == "healthy").map(|row| row[0].clone()).collect()
}

/// Server and etcd at once and without a word.
fn lose_power(cluster: &Cluster, data: &Path) {
    let pids = ["lock", "etcd.pid"].map(|file| {
        let read = || std::fs::read_to_string(data.join(file)).ok().map(|text| text.trim().to_owned());
        cluster.wait(&format!("a process in {file}"), || read().filter(|pid| !pid.is_empty()))
    });
    run(Command::new("kill").arg("-9").args(pids));
}

#[test]
fn servers_with_members_of_etcd_are_lost_and_replaced() {
    let switch = Switch::new();
    let hosts: Vec<Host> = SERVERS.iter().map(|_| Host::new()).collect();
    for (number, (host, address)) in hosts.iter().zip(SERVERS).enumerate() {
        switch.plug_in(host, number, address);
    }
    let mut hosts = hosts.into_iter();
    let first = hosts.next().unwrap();
    let [second, third, fourth] = [(); 3].map(|()| Machine::new(hosts.next().unwrap()));
    // It begins as a cluster of one server with a store of its own, and is carried into etcd while it runs, and back, and
    // again: whoever follows objects never sees an older revision.
    let copies = tempfile::tempdir().unwrap();
    let backups = format!("--backup-dir={}", copies.path().display());
    let taint = "--node-taint=node-role.kubernetes.io/control-plane:NoSchedule";
    let flags = ["--node-ip", SERVERS[0], "--gateway=false", &backups, "--backup-interval=60s", taint];
    let cluster = Cluster::up_on(first, &[], &flags);
    cluster.kubectl("create configmap first");
    let revision = || -> u64 {
        let listed = cluster.kubectl("get configmaps -o json");
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let own = listed["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == "first").unwrap();
        own["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let mut known = revision();
    for place in ["--ha", "--embedded", "--ha"] {
        let said = cluster.cox_says(&format!("store move {place}"));
        assert!(said.contains("objects are in"), "{said}");
        cluster.kubectl("label configmap first --overwrite at=here");
        cluster.kubectl("label configmap first at-");
        let now = revision();
        assert!(now > known, "{place}: {now} after {known}");
        known = now;
    }
    let mode = |name: &str| std::fs::metadata(cluster.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data/etcd"), mode("data/pki/etcd-ca.key")), (0o700, 0o600));

    for (machine, name, address) in [(&second, "server-2", SERVERS[1]), (&third, "server-3", SERVERS[2])] {
        let line = said(cluster.cox("server").arg("add"));
        must(&machine.join(&line, name, address), || format!("{}\n{}", machine.log(), cluster.log()));
    }
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let all = names(&["node-1", "server-2", "server-3"]);
    cluster.wait("three healthy members", || (healthy(&second) == all).then_some(()));
    // On a slow machine one or the other does not answer at times.
    let found = cluster.wait("a leader among three", || {
        let found = rows(&second);
        let leaders = found.iter().filter(|row| row[2] == "leader").count();
        (found.len() == all.len() && leaders == 1).then_some(found)
    });
    assert!(found.iter().zip(SERVERS).all(|(row, address)| row[1] == format!("{address}:2379")), "{found:?}");

    // Roles are kubeadm's; the first server is for servers alone, the others were not told so.
    let role = |node: &str| {
        let path = "jsonpath={range .spec.taints[*]}{.key}:{.effect};{end}";
        let there =
            |name: &str| cluster.kubectl(&format!("get nodes -l {name} -o name")).contains(&format!("node/{node}\n"));
        let labels =
            ["node-role.kubernetes.io/control-plane", "node.kubernetes.io/exclude-from-external-load-balancers"];
        (labels.map(there), cluster.kubectl_args(&["get", "node", node, "-o", path]))
    };
    let (labels, taints) = role("node-1");
    assert!(labels == [true, true] && taints.contains("node-role.kubernetes.io/control-plane:NoSchedule"), "{taints}");
    cluster.wait("the role of the second server", || (role("server-2").0 == [true, false]).then_some(()));

    // Every server writes down where the others are.
    cluster.wait("the first server to know the others", || {
        let flags = std::fs::read_to_string(cluster.path("data/flags.json")).ok()?;
        SERVERS[..3].iter().all(|server| flags.contains(&format!("https://{server}:2379"))).then_some(())
    });

    // A snapshot is one that etcd's own tools take, and members make room one after the other.
    let snapshot = said(second.cox("server").arg("snapshot"));
    let output = Command::new("etcdctl").args(["snapshot", "status", snapshot.trim()]).env("ETCDCTL_API", "3").output();
    assert!(output.unwrap().status.success());
    let done = cluster.wait("defragmented members", || {
        let output = second.cox("server").arg("defragment").output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    assert!(all.iter().all(|name| done.contains(name)), "{done}");

    // Copies that are made by themselves are the same as those of a store of the server's own, and good for any machine.
    cluster.wait("a copy of what is in etcd", || {
        let files = std::fs::read_dir(copies.path()).unwrap().map(|entry| entry.unwrap().path());
        let newest = files.filter(|path| path.extension().is_some_and(|ending| ending == "snap")).max()?;
        let restored = tempfile::tempdir().unwrap();
        let line =
            format!("store restore --bump-revision=0 {} {}", newest.display(), restored.path().join("store").display());
        let said = cluster.cox_says(&line);
        let (_, rest) = said.split_once("ok: revision ")?;
        let revision: u64 = rest.split(',').next()?.parse().ok()?;
        (revision > known).then_some(())
    });
    let carried = cluster.path("data/backup-carried");
    cluster.wait("nothing on the way into a copy", || (!carried.exists()).then_some(()));

    // The keys of what is encrypted are exchanged by one command, on all servers.
    cluster.kubectl("create secret generic sealed --from-literal=a=b");
    let exchanged = said(second.cox("store").arg("rotate-keys"));
    assert!(exchanged.contains("objects are encrypted with key2 now"), "{exchanged}");
    let keys = |data: &Path| std::fs::read_to_string(data.join("pki/encryption.yaml")).unwrap();
    let new = keys(&cluster.path("data"));
    assert_eq!(new.matches("name: key").count(), 1);
    for machine in [&second, &third] {
        assert_eq!(keys(&machine.dir.path().join("data")), new);
        let read = must(&machine.kubectl("get secret sealed -o jsonpath={.data.a}"), || machine.log());
        assert_eq!(read, "Yg==");
    }

    // A client without a certificate of etcd's authority is nobody.
    let stranger = |file: &str| format!("--{}={}", file, cluster.path("data/pki").display());
    let mut ask = cluster.host.command("etcdctl");
    ask.env("ETCDCTL_API", "3").args([
        &format!("--endpoints=https://{}:2379", SERVERS[0]),
        &format!("{}/etcd-ca.crt", stranger("cacert")),
        &format!("{}/kubelet-client.crt", stranger("cert")),
        &format!("{}/kubelet-client.key", stranger("key")),
    ]);
    let output = ask.args(["--command-timeout=5s", "get", "/registry/configmaps/default/first"]).output().unwrap();
    assert!(!output.status.success(), "a node reads etcd: {}", describe(&output));

    let servers: &[&str] = &SERVERS;
    let marks = Marks::new(&second, &servers[1..3]);
    let count = marks.while_written(|| {
        let progress = |what: &str, count: usize| marks.progress(&cluster, what, count);
        progress("writes", 3);
        lose_power(&cluster, &cluster.path("data"));
        progress("writes without the first server", 5);

        // Another machine takes its place. While one is away, no other may go.
        cluster.wait("a refusal to remove another", || {
            let refused = second.cox("server").args(["rm", "server-3"]).output().unwrap();
            let said = describe(&refused);
            assert!(!refused.status.success(), "{said}");
            (said.contains("would have no quorum") && said.contains("node-1")).then_some(())
        });
        let is_whole = cluster.wait("the removal of the first server", || {
            let output = second.cox("server").args(["rm", "node-1"]).output().unwrap();
            // An attempt that failed may have come half the way.
            let is_half_done = describe(&output).contains("no server named node-1");
            (output.status.success() || is_half_done).then_some(output.status.success())
        });
        cluster.wait("nodes without the first server", || {
            let listed = second.kubectl("get nodes -o name");
            let has_it = String::from_utf8_lossy(&listed.stdout).contains("node/node-1");
            assert!(!(has_it && is_whole), "its node stays");
            if has_it {
                second.kubectl("delete node node-1");
            }
            (listed.status.success() && !has_it).then_some(())
        });
        let line = said(second.cox("server").arg("add"));
        must(&fourth.join(&line, "server-4", SERVERS[3]), || format!("{}\n{}", fourth.log(), second.log()));
        let all = names(&["server-2", "server-3", "server-4"]);
        cluster.wait("three healthy members again", || (healthy(&third) == all).then_some(()));
        progress("writes after the replacement", 3);
        // The new one bears the loss of another.
        lose_power(&cluster, &third.dir.path().join("data"));
        progress("writes without the third server", 3);
    });
    let listed = must(&fourth.kubectl("get configmaps -o name"), || fourth.log());
    Marks::assert_all_of(count, &listed);
    assert!(listed.lines().any(|name| name == "configmap/first"));

    // Whoever was removed says so rather than come back with what it once knew.
    let output = cluster.cox("up").output().unwrap();
    assert!(!output.status.success());
    assert!(describe(&output).contains("is no longer a server of this cluster"), "{}", describe(&output));
    // One that lost its power comes back as what it was.
    must(&third.cox("up").output().unwrap(), || third.log());
    let all = names(&["server-2", "server-3", "server-4"]);
    cluster.wait("all members after the power is back", || (healthy(&second) == all).then_some(()));
}
