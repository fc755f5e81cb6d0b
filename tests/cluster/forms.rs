//! The other forms of the command: with a name, as a generator, from a file. All end in running pods.

use crate::harness::Cluster;
use crate::manifests;

fn manifest(replicas: u32) -> String {
    let pod = format!("\n      containers: [{}]", manifests::web("nginx", ""));
    manifests::deployment("applied", replicas, &pod) + &manifests::node_port("applied")
}

/// Walk 1.2.
#[test]
fn every_form_of_the_command_runs_pods() {
    let cluster = Cluster::up(&[testkit::images::nginx, testkit::images::busybox]);
    cluster.kubectl("run named --image=nginx --replicas=2");
    cluster.kubectl("create deployment created --image=nginx --replicas=2");
    cluster.apply(&manifest(2));
    for name in ["named", "created", "applied"] {
        cluster.kubectl(&format!("rollout status deployment/{name} --timeout=170s"));
    }

    // A node port answers on the node's own address.
    let port = cluster.kubectl("get service applied -o jsonpath={.spec.ports[0].nodePort}");
    cluster.wait("an answer through the node port", || cluster.http_get(&format!("172.31.7.2:{port}")));

    // A second apply changes what the file changes, and nothing else.
    let said = cluster.apply(&manifest(3));
    assert!(
        said.contains("deployment.apps/applied configured") && said.contains("service/applied unchanged"),
        "{said}"
    );
    cluster.kubectl("rollout status deployment/applied --timeout=170s");

    // A pod finds the service by name.
    cluster.kubectl("run asker --image=busybox --restart=Never -- wget -q -O - http://applied:8080/");
    cluster.until_phase("asker", "Succeeded");
    let said = cluster.kubectl("logs asker");
    assert!(said.contains("nginx"), "{said}");

    // Deleting a deployment takes its pods along.
    cluster.kubectl("delete deployment named created applied");
    cluster.wait("the end of the pods", || {
        cluster.kubectl("get pods -o name").lines().all(|pod| pod == "pod/asker").then_some(())
    });
}
