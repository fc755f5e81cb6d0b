//! A machine with nothing but the binary: no programs to call, no address, no route.

use std::net::SocketAddr;

use cni::netns::Netns;

use crate::harness::{Cluster, Host, http_get, run};

/// What differs between the families.
struct Family {
    /// What `cox up` is told besides the number of nodes.
    flags: &'static [&'static str],
    /// The address that the cluster gives itself.
    own: &'static str,
    /// What `ip` is told when the machine gets a network, and its address there.
    landing: [&'static str; 6],
    landed: &'static str,
}

const FOUR: Family = Family { flags: &[], own: "10.45.0.1", landing: testkit::host::ISOLATED, landed: "172.31.7.2" };

const SIX: Family = Family {
    flags: &["--cluster-cidr", "fd42::/48", "--service-cidr", "fd43::/112"],
    own: "fd45::1",
    landing: testkit::host::ISOLATED_SIX,
    landed: "fd31::2",
};

#[test]
fn a_machine_without_network_and_programs_has_a_cluster() {
    take_off_and_land(&FOUR);
}

#[test]
fn a_machine_without_network_and_programs_has_a_cluster_of_ipv6() {
    take_off_and_land(&SIX);
}

fn take_off_and_land(family: &Family) {
    let Family { flags, own, landing, landed } = family;
    let at = |address: &str, port: u16| SocketAddr::new(address.parse().unwrap(), port).to_string();
    let cluster = Cluster::up_on(Host::bare(), &[], &[&["--nodes", "2"][..], *flags].concat());
    let address = cluster.kubectl("get node node-1 -o jsonpath={.status.addresses[0].address}");
    assert_eq!(address, *own);
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
    let service = at(&cluster.kubectl("get service hello -o jsonpath={.spec.clusterIP}"), 80);
    cluster.answers("through the service", 2, || cluster.http_get(&service));
    cluster.answers("through a port of the host", 1, || cluster.http_get(&at(&address, 8080)));

    // Once more, as after a flight: the same address, and the same pods.
    let pods = || cluster.kubectl("get pods -l app=hello -o jsonpath={.items[*].metadata.uid}");
    let before = pods();
    run(&mut cluster.cox("down"));
    let said = cluster.up_again();
    assert!(said.contains(&format!("{own}, known to this machine only")), "{said}");
    assert_eq!(pods(), before);
    cluster.answers("through the service again", 2, || cluster.http_get(&service));

    // And after the landing, with an address of the network that is there: certificates, endpoints and routes follow.
    run(&mut cluster.cox("down"));
    for line in landing {
        run(cluster.host.command("ip").args(line.split(' ')));
    }
    let said = cluster.up_again();
    assert!(!said.contains("known to this machine only"), "{said}");
    assert_eq!(pods(), before);
    cluster.wait("the new address of the node and of its pod", || {
        let node = cluster.kubectl("get node node-1 -o jsonpath={.status.addresses[0].address}");
        let hosts = cluster.kubectl("get pods -l app=hello -o jsonpath={.items[*].status.hostIP}");
        (node == *landed && hosts.split(' ').any(|host| host == *landed) && !hosts.contains(&address)).then_some(())
    });
    cluster.wait("the new address of the API server", || {
        let endpoint = cluster.kubectl("get endpointslice kubernetes -o jsonpath={.endpoints[*].addresses[*]}");
        (endpoint == *landed).then_some(())
    });
    assert_eq!(cluster.kubectl(&format!("--server=https://{} get --raw /readyz", at(landed, 6443))).trim(), "ok");
    cluster.answers("through the service at home", 2, || cluster.http_get(&service));
    cluster.answers("through a port of the host at home", 1, || cluster.http_get(&at(landed, 8080)));
    let other = Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap();
    cluster.answers("through the service at node-2", 2, || http_get(&other, &service));
}
