//! The walk: the seeds' command, typed as written, ends in a packet from nginx.

use std::collections::BTreeSet;

use crate::harness::{Cluster, mounts_below};

/// Walk 12.1.
#[test]
fn run_with_expose_ends_in_an_answer_from_nginx() {
    let cluster = Cluster::up(&[testkit::images::nginx]);
    let said = cluster.kubectl("run --image=nginx --replicas=3 --port=80 --expose");
    assert!(said.contains("deployment.apps/nginx created"), "{said}");
    assert!(said.contains("service/nginx created"), "{said}");

    cluster.kubectl("rollout status deployment/nginx --timeout=170s");
    let pods = cluster.kubectl("get pods -l run=nginx -o jsonpath={.items[*].status.podIP}");
    let addresses: BTreeSet<&str> = pods.split_whitespace().collect();
    assert_eq!(addresses.len(), 3, "three pods, three addresses: {pods}");

    let service = cluster.kubectl("get service nginx -o jsonpath={.spec.clusterIP}");
    let page = cluster.wait("an answer through the cluster IP", || cluster.http_get(&format!("{service}:80")));
    assert!(page.contains("nginx"), "{page}");

    let data = cluster.path("data");
    drop(cluster);
    assert_eq!(mounts_below(&data), Vec::<String>::new());
}
