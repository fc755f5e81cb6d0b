//! Time passes: certificates that live for little more than a minute are renewed under a cluster that notices nothing.

use std::collections::BTreeMap;
use std::process::Command;

use crate::harness::{Cluster, said};
use crate::manifests;

/// Names and ends, as `cox cert list` tells them. Times are written so that they sort.
fn ends(cluster: &Cluster) -> BTreeMap<String, String> {
    let listed = cluster.cox_says("cert list");
    let lines = listed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.map(|words| (words[0].to_owned(), words[1].to_owned())).collect()
}

#[test]
fn certificates_end_and_the_cluster_goes_on() {
    let cluster = Cluster::up_with(&[], &["--nodes=2", "--certificate-validity=75s", "--gateway=false"]);
    cluster.apply(manifests::HELLO);
    cluster.kubectl("rollout status daemonset/hello --timeout=170s");
    let first = ends(&cluster);
    let leaves: Vec<&str> =
        ["admin", "apiserver", "apiserver-kubelet-client", "front-proxy-client", "kubelet", "kubelet-client"]
            .into_iter()
            .chain(["node-2/kubelet", "node-2/kubelet-client", "node-2/proxy-client"])
            .collect();
    assert!(leaves.iter().all(|name| first.contains_key(*name)), "{first:?}");
    let last = leaves.iter().map(|name| first[*name].clone()).max().unwrap();

    cluster.wait("other certificates", || leaves.iter().all(|name| ends(&cluster)[*name] > first[*name]).then_some(()));
    cluster.wait("the end of the first ones", || {
        (said(Command::new("date").args(["-u", "+%FT%TZ"])).trim() > last.as_str()).then_some(())
    });
    // The user's own kubeconfig, the server's certificate, nodes that renew their leases, and the way to kubelets.
    cluster.kubectl("create configmap after");
    for node in ["node-1", "node-2"] {
        cluster.wait(&format!("{node} after the end of its certificate"), || {
            let lease = format!("get lease -n kube-node-lease {node} -o jsonpath={{.spec.renewTime}}");
            // To the second, without what follows.
            (cluster.kubectl(&lease).get(..19)? > &last[..19]).then_some(())
        });
        let pod = format!(
            "get pods -l app=hello --field-selector spec.nodeName={node} -o jsonpath={{.items[0].metadata.name}}"
        );
        let pod = cluster.kubectl(&pod);
        cluster.kubectl(&format!("logs {pod}"));
    }
    // At once, when somebody wants it; authorities stay.
    let before = ends(&cluster);
    cluster.cox_says("cert renew");
    let after = ends(&cluster);
    for (name, end) in &before {
        match leaves.contains(&name.as_str()) {
            true => assert!(after[name] >= *end, "{name}"),
            false => assert_eq!(after[name], *end, "{name}"),
        }
    }
    cluster.kubectl("get --raw /readyz");
}
