//! A machine with nothing but the binary: no programs to call, no address, no route.

use crate::harness::{Cluster, Host, run};

#[test]
fn a_machine_without_network_and_programs_has_a_cluster() {
    let cluster = Cluster::up_on(Host::bare(), &[], &["--nodes", "2"]);
    let address = cluster.kubectl("get node node-1 -o jsonpath={.status.addresses[0].address}");
    assert_eq!(address, "10.45.0.1");
    cluster.apply(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: hello}}}
      containers: [{name: c, image: cox.local/hello, ports: [{containerPort: 80, hostPort: 8080}]}]
"#,
    );
    cluster.kubectl("expose deployment hello --port=80");
    cluster.kubectl("rollout status deployment/hello --timeout=170s");
    let service = cluster.kubectl("get service hello -o jsonpath={.spec.clusterIP}");
    cluster.answers("through the service", 2, || cluster.http_get(&format!("{service}:80")));
    cluster.answers("through a port of the host", 1, || cluster.http_get(&format!("{address}:8080")));

    // Once more, as after a flight: the same address, and the same pods.
    let pods = || cluster.kubectl("get pods -l app=hello -o jsonpath={.items[*].metadata.uid}");
    let before = pods();
    run(&mut cluster.cox("down"));
    let said = cluster.up_again();
    assert!(said.contains("10.45.0.1, known to this machine only"), "{said}");
    assert_eq!(pods(), before);
    cluster.answers("through the service again", 2, || cluster.http_get(&format!("{service}:80")));
}
