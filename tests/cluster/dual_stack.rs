//! A cluster with two families: pods and services have an address of each, on every node, and both lead there.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni::netns::Netns;

use crate::harness::{Cluster, http_get};
use crate::manifests;

/// One service for both families, and one for the sixth alone.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: hello}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: hello}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec:
  ipFamilies: [IPv6]
  selector: {app: hello}
  ports: [{port: 80}]
";

#[test]
fn both_families_lead_to_every_pod() {
    let flags =
        ["--nodes", "2", "--cluster-cidr", "10.42.0.0/16,fd42::/48", "--service-cidr", "10.43.0.0/16,fd43::/112"];
    let cluster = Cluster::up_with(&[testkit::images::busybox], &flags);
    cluster.apply(&[manifests::HELLO, SERVICES].concat());
    cluster.kubectl("rollout status daemonset/hello --timeout=170s");

    let words = |line: &str| -> Vec<String> { cluster.kubectl(line).split_whitespace().map(str::to_owned).collect() };
    let addresses = |line: &str| -> Vec<IpAddr> { words(line).iter().map(|word| word.parse().unwrap()).collect() };
    let pods = addresses("get pods -l app=hello -o jsonpath={.items[*].status.podIPs[*].ip}");
    let (six, four): (Vec<IpAddr>, Vec<IpAddr>) = pods.iter().partition(|address| address.is_ipv6());
    assert_eq!((four.len(), six.len()), (2, 2), "{pods:?}");
    let ranges = words("get nodes -o jsonpath={.items[*].spec.podCIDRs[*]}");
    assert_eq!(ranges.iter().collect::<BTreeSet<_>>().len(), 4, "{ranges:?}");

    // From both nodes to every pod, and through the services to both pods, in both families.
    let networks =
        [("node-1", cluster.host.netns()), ("node-2", Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap())];
    let services = [
        addresses("get service hello -o jsonpath={.spec.clusterIPs[*]}"),
        addresses("get service six -o jsonpath={.spec.clusterIP}"),
    ]
    .concat();
    assert_eq!(services.iter().map(IpAddr::is_ipv6).collect::<Vec<_>>(), [false, true, true], "{services:?}");
    for (node, network) in &networks {
        for pod in &pods {
            let address = std::net::SocketAddr::from((*pod, 80)).to_string();
            cluster.wait(&format!("an answer of {address} at {node}"), || http_get(network, &address));
        }
        for service in &services {
            let address = std::net::SocketAddr::from((*service, 80)).to_string();
            cluster.answers(&format!("through {address} at {node}"), 2, || http_get(network, &address));
        }
    }

    // A pod asks by name and gets both; addresses have names in both families too.
    let script = "nslookup -type=a hello.default.svc.cluster.local; nslookup -type=aaaa hello.default.svc.cluster.local; \
                  wget -q -O - http://six/; cat /etc/hosts";
    let run = ["run", "asker", "--image=busybox", "--restart=Never", "--command", "--", "sh", "-c", script];
    cluster.kubectl_args(&run);
    cluster.until_phase("asker", "Succeeded");
    let said = cluster.kubectl("logs asker");
    for expected in [services[0].to_string(), services[1].to_string(), "Hello from hello-".into()] {
        assert!(said.contains(&expected), "{expected} in\n{said}");
    }
    for own in addresses("get pod asker -o jsonpath={.status.podIPs[*].ip}") {
        assert!(said.contains(&format!("{own}\tasker")), "{own} in\n{said}");
    }

    // What nobody has is refused here rather than carried out of the machine.
    for nobody in ["[fd43::77]:80", "[fd42:0:0:ff::1]:80"] {
        assert_eq!(http_get(&cluster.host.netns(), nobody), None);
    }
}
