//! The first stage of the walk: what kubectl does before and while the server hears of it.

use std::process::{Command, Output};

use crate::harness::{Cluster, describe};

/// Walk 1.1, 1.3, 1.4, 1.5 and 1.6 (1.2, the generators, is in `forms`).
#[test]
fn the_client_checks_finds_and_shows_what_it_does() {
    let cluster = Cluster::up(&[]);
    mistakes_stay_with_the_client(&cluster);
    kinds_are_found_and_remembered(&cluster);
    credentials_come_from_files_and_flags(&cluster);
}

fn kubectl(cluster: &Cluster, line: &str) -> Command {
    let mut command = cluster.cox("kubectl");
    command.args(line.split_whitespace());
    command
}

fn fails(cluster: &Cluster, line: &str) -> Output {
    let output = kubectl(cluster, line).output().unwrap();
    assert!(!output.status.success(), "{line}: {}", describe(&output));
    output
}

/// Walk 1.1: nothing of it reaches a server, not even one that is not there.
fn mistakes_stay_with_the_client(cluster: &Cluster) {
    const NOWHERE: &str = "--server=https://127.0.0.1:1";
    let told = describe(&fails(cluster, &format!("run bad --image=Not::AnImage {NOWHERE}")));
    assert!(told.contains("Invalid image name \"Not::AnImage\""), "{told}");
    let told = describe(&fails(cluster, &format!("run bad --image=nginx --expose {NOWHERE}")));
    assert!(told.contains("--port"), "{told}");

    let file = cluster.path("bad.yaml");
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndatta: {a: b}\n";
    std::fs::write(&file, text).unwrap();
    let told = describe(&fails(cluster, &format!("create -f {} --validate=strict", file.display())));
    assert!(told.contains("unknown field \"datta\""), "{told}");
    fails(cluster, "get configmap bad");
    cluster.kubectl(&format!("create -f {} --validate=ignore", file.display()));
}

/// Walk 1.3, 1.4 and 1.6: discovery once, every name of a kind, and each round trip on request.
fn kinds_are_found_and_remembered(cluster: &Cluster) {
    for name in ["cm", "configmap", "configmaps", "configmaps.v1."] {
        assert_eq!(cluster.kubectl(&format!("get {name} bad -o name")), "configmap/bad\n");
    }
    let told = describe(&fails(cluster, "get configmapz"));
    assert!(told.contains("doesn't have a resource type \"configmapz\""), "{told}");
    cluster.kubectl("get all");

    let trips = |line: &str| {
        let output = kubectl(cluster, line).output().unwrap();
        assert!(output.status.success(), "{}", describe(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    let told = trips("get configmap bad -v=6");
    let asked: Vec<&str> = told.lines().filter(|line| line.contains("/api")).collect();
    assert_eq!(asked.len(), 1, "the kinds were known, so one request is all: {told}");
    assert!(asked[0].contains("GET") && asked[0].contains("200") && asked[0].contains("milliseconds"), "{told}");
    let told = trips("get configmap bad -v=8");
    assert!(told.contains("Accept:") && told.contains("columnDefinitions"), "headers and bodies: {told}");
}

/// Walk 1.5: files are merged, and flags win.
fn credentials_come_from_files_and_flags(cluster: &Cluster) {
    let (first, second) = (cluster.path("kubeconfig"), cluster.path("second"));
    let raw = cluster.kubectl("config view --raw -o json");
    let config: serde_json::Value = serde_json::from_str(&raw).unwrap();
    let context = &config["contexts"][0]["context"];
    let other = serde_json::json!({"apiVersion": "v1", "kind": "Config", "contexts": [
        {"name": "other", "context": {"cluster": context["cluster"], "user": context["user"], "namespace": "kube-system"}}]});
    std::fs::write(&second, other.to_string()).unwrap();
    let both = format!("{}:{}", first.display(), second.display());
    let said = |line: &str| {
        let output = kubectl(cluster, line).env("KUBECONFIG", &both).output().unwrap();
        (output.status.success(), describe(&output))
    };
    let (is_fine, names) = said("config get-contexts -o name");
    assert!(is_fine && names.contains("other"), "{names}");
    // The context of one file, with the cluster and the user of the other.
    let (is_fine, told) = said("--context=other get configmap kube-root-ca.crt -o jsonpath={.metadata.namespace}");
    assert!(is_fine && told.contains("kube-system"), "{told}");
    let (is_fine, told) = said("--context=other -n default get configmap bad -o name");
    assert!(is_fine && told.contains("configmap/bad"), "{told}");
    let (is_fine, told) = said("get nodes --server=https://127.0.0.1:1");
    assert!(!is_fine && told.contains("127.0.0.1:1"), "{told}");
    // A server that the authority did not sign for is not talked to.
    let (is_fine, told) = said("get nodes --tls-server-name=elsewhere.example.com");
    assert!(!is_fine && told.contains("certificate"), "{told}");
}
