//! Another authority for three servers with members of etcd and a node, while certificates end all the time: the command is
//! broken off between all its steps and given again elsewhere, servers are killed on the way, and nobody is cut off.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use crate::etcd_servers::{Machine, must};
use crate::harness::{describe, said};
use crate::manifests;
use crate::server_group::{Group, under_load};

fn authority(machine: &Machine) -> String {
    std::fs::read_to_string(machine.dir.path().join("data/pki/ca.crt")).unwrap()
}

#[test]
fn security_servers_exchange_their_authority_and_cut_nobody_off() {
    let group = Group::new(1, Machine::new, &["--certificate-validity=90s"]);
    group.apply(manifests::HELLO);
    group.kubectl("rollout status daemonset/hello --timeout=170s");
    let old = authority(&group.servers[0]);
    assert!(group.machines().all(|machine| authority(machine) == old));
    let listed = must(&group.servers[0].cox("cert").arg("list").output().unwrap(), || group.logs());
    let ends = listed.lines().filter(|line| line.contains("kube-apiserver") || line.contains("system:node"));
    let last = ends.filter_map(|line| line.split_whitespace().nth(1)).max().unwrap().to_owned();
    let record = |server: &Machine| -> PathBuf { server.dir.path().join("data/pki/ca-rotation.json") };

    let failures = under_load(&group, &group.servers[1], &group.kubeconfig(1), |user| {
        let mut killed = BTreeSet::new();
        for turn in 0.. {
            assert!(turn < 1000, "the exchange does not end\n{}", group.logs());
            // Never any patience: each step is a command of its own, on another server.
            let server = &group.servers[turn % group.servers.len()];
            let output = server.cox("cert").args(["rotate-ca", "--settle", "0s", "--timeout", "0s"]).output().unwrap();
            if output.status.success() {
                break;
            }
            // Or etcd has no leader just then.
            let is_for_later =
                ["has not come along", "store unavailable"].iter().any(|why| describe(&output).contains(why));
            assert!(is_for_later, "{}\n{}", describe(&output), group.logs());
            // In each phase a server dies and comes back, and finds out where the others are.
            let text = std::fs::read_to_string(record(&group.servers[0])).unwrap_or_default();
            for (number, phase) in ["trust", "sign", "drop"].into_iter().enumerate() {
                if text.contains(&format!("\"phase\": \"{phase}\"")) && killed.insert(phase) {
                    group.kill(number);
                    let server = &group.servers[number];
                    must(&server.cox("up").output().unwrap(), || server.log());
                    user.progress(&format!("writes after {phase}"));
                }
            }
        }
        assert!(killed.len() >= 2, "{killed:?}");
    });
    // A server that is killed is not there; whoever is there is believed.
    let distrust: Vec<&String> = failures
        .iter()
        .filter(|said| ["certificate", "x509", "nauthorized", "UnknownIssuer"].iter().any(|word| said.contains(word)))
        .collect();
    assert!(distrust.is_empty(), "{distrust:?}");

    let new = authority(&group.servers[0]);
    assert!(new.matches("BEGIN CERTIFICATE").count() == 1 && !new.contains(&old));
    group.wait("everybody to trust the new authority only", || {
        let is_there = group.machines().all(|machine| authority(machine) == new);
        let is_over = group.servers.iter().all(|server| !record(server).exists());
        (is_there && is_over).then_some(())
    });
    assert_eq!(group.kubectl("get secrets -n kube-system --field-selector metadata.name=cox-ca-rotation -o name"), "");
    group.wait("the end of the first certificates", || {
        (said(Command::new("date").args(["-u", "+%FT%TZ"])).trim() > last.as_str()).then_some(())
    });
    // Nothing of it is left after a restart.
    for (number, server) in group.servers.iter().enumerate() {
        must(&server.cox("down").output().unwrap(), || server.log());
        must(&server.cox("up").output().unwrap(), || server.log());
        group.until_healthy();
        let name = format!("server-{}", number + 1);
        must(&server.kubectl(&format!("get node {name}")), || server.log());
    }
    for node in ["server-1", "server-2", "server-3", "node-1"] {
        let lease = format!("get lease -n kube-node-lease {node} -o jsonpath={{.spec.renewTime}}");
        let before = group.kubectl(&lease);
        group.wait(&format!("another lease of {node}"), || (group.kubectl(&lease) != before).then_some(()));
        let pods = format!("get pods -l app=hello --field-selector spec.nodeName={node} -o name");
        let pod = group.kubectl(&pods);
        group.kubectl(&format!("logs {}", pod.trim()));
    }
}
