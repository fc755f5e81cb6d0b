//! A cluster with two families: pods and services have an address of each, on every node, and both lead there. And one with
//! IPv6 alone.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use cni::netns::Netns;

use crate::harness::{Cluster, Host, http_get};
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
  type: NodePort
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
            let address = SocketAddr::from((*pod, 80)).to_string();
            cluster.wait(&format!("an answer of {address} at {node}"), || http_get(network, &address));
        }
        for service in &services {
            let address = SocketAddr::from((*service, 80)).to_string();
            cluster.answers(&format!("through {address} at {node}"), 2, || http_get(network, &address));
        }
    }

    // So has the further node, and its ports answer in both.
    let line = "get node node-2 -o jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
    assert_eq!(cluster.kubectl(line), "10.44.0.2 fd44::2");
    let line =
        "get pods -l app=hello --field-selector=spec.nodeName=node-2 -o jsonpath={.items[0].status.hostIPs[*].ip}";
    assert_eq!(cluster.kubectl(line), "10.44.0.2 fd44::2");
    let port = cluster.kubectl("get service six -o jsonpath={.spec.ports[0].nodePort}");
    cluster.answers("at a port of node-2", 2, || cluster.http_get(&format!("[fd44::2]:{port}")));

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

/// Probed by every means, at a port of its node too.
const PROBED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  nodeName: node-2
  containers:
  - name: web
    image: busybox
    command: [sh, -c, 'mkdir /www && hostname > /www/index.html && exec httpd -f -p [::]:80 -h /www']
    ports: [{containerPort: 80, hostPort: 8080}]
    startupProbe: {tcpSocket: {port: 80}, periodSeconds: 1, failureThreshold: 100}
    readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: LoadBalancer, selector: {app: hello}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: hello}
spec: {defaultBackend: {service: {name: hello, port: {number: 80}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: hello}
spec: {gatewayClassName: cox, listeners: [{name: web, port: 8082, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hello}
spec: {parentRefs: [{name: hello}], rules: [{backendRefs: [{name: hello, port: 80}]}]}
";

const MORE_SERVICES: &str = "
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: ['fd99::/112']}
";

const FURTHER: &str = "
apiVersion: v1
kind: Service
metadata: {name: further}
spec: {clusterIP: 'fd99::7', selector: {app: hello}, ports: [{port: 80}]}
";

/// What may come in to the pods of the service.
fn policy(name: &str, ingress: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}}}, \
         spec: {{podSelector: {{matchLabels: {{app: hello}}}}, policyTypes: [Ingress], {ingress}}}}}"
    )
}

/// Nobody has to say so: the machine has no other address.
#[test]
fn a_machine_with_ipv6_alone_has_a_cluster_of_it() {
    // The port of Ingresses is another one than that of the load balancer.
    let flags = ["--nodes", "2", "--gateway-http-port", "8081", "--gateway-address-pool", "2001:db8:64::/124"];
    let cluster = Cluster::up_on(Host::six(), &[testkit::images::busybox], &flags);
    let kubeconfig = std::fs::read_to_string(cluster.path("kubeconfig")).unwrap();
    assert!(kubeconfig.contains("server: https://[::1]:6443"), "{kubeconfig}");
    let nodes = cluster.kubectl("get nodes -o jsonpath={.items[*].status.addresses[?(@.type=='InternalIP')].address}");
    assert_eq!(nodes, "fd31::2 fd44::2");
    assert_eq!(cluster.kubectl("get endpoints kubernetes -o jsonpath={.subsets[*].addresses[*].ip}"), "fd31::2");

    cluster.apply(&[manifests::HELLO, PROBED].concat());
    cluster.kubectl("rollout status daemonset/hello --timeout=170s");
    cluster.kubectl("wait --for=condition=Ready pod/probed --timeout=170s");
    let pods = cluster.kubectl("get pods -o jsonpath={.items[*].status.podIPs[*].ip}");
    let pods: Vec<IpAddr> = pods.split(' ').map(|address| address.parse().unwrap()).collect();
    assert!(pods.len() == 3 && pods.iter().all(IpAddr::is_ipv6), "{pods:?}");
    cluster.wait("addresses of the load balancer", || {
        let ingress = cluster.kubectl("get service hello -o jsonpath={.status.loadBalancer.ingress[*].ip}");
        (ingress == "fd31::2 fd44::2").then_some(())
    });
    let service: IpAddr = cluster.kubectl("get service hello -o jsonpath={.spec.clusterIP}").parse().unwrap();
    let port = cluster.kubectl("get service hello -o jsonpath={.spec.ports[0].nodePort}");
    for address in [format!("[{service}]:80"), "[fd31::2]:80".into(), format!("[fd31::2]:{port}")] {
        cluster.answers(&format!("through {address}"), 2, || cluster.http_get(&address));
    }
    cluster.wait("an answer through the host port", || cluster.http_get("[fd44::2]:8080"));

    // An Ingress at the node's address, and a Gateway at one of its own.
    let published = |what: &str| {
        cluster.wait(&format!("an address of {what}"), || {
            Some(cluster.kubectl(&format!("get {what}"))).filter(|address| !address.is_empty())
        })
    };
    let ingress = published("ingress hello -o jsonpath={.status.loadBalancer.ingress[*].ip}");
    assert_eq!(ingress, "fd31::2");
    let gateway = published("gateway hello -o jsonpath={.status.addresses[*].value}");
    assert!(gateway.starts_with("2001:db8:64::"), "{gateway}");
    for address in [format!("[{ingress}]:8081"), format!("[{gateway}]:8082")] {
        cluster.answers(&format!("behind {address}"), 2, || {
            let url = format!("http://{address}/");
            let output = cluster.host.command("curl").args(["-sS", "-g", "-m", "20", &url]).output().unwrap();
            Some(String::from_utf8(output.stdout).unwrap()).filter(|answer| answer.starts_with("Hello from "))
        });
    }
    // The API server fetches pages of the pod on the other node.
    let page = "get --raw /api/v1/namespaces/default/pods/probed:80/proxy/";
    assert_eq!(cluster.kubectl(page).trim(), "probed");

    // From the other node to both pods, and to the API server by its service.
    let other = Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap();
    cluster.answers("at node-2", 2, || http_get(&other, &format!("[{service}]:80")));
    let api: SocketAddr = "[fd43::1]:443".parse().unwrap();
    cluster.wait("the API server at node-2", || {
        other.enter(|| TcpStream::connect_timeout(&api, Duration::from_secs(5))).unwrap().ok()
    });

    // Exec goes through the API server to the kubelet of that node; what runs there asks the cluster.
    let script = "nslookup -type=aaaa hello.default.svc.cluster.local && wget -q -O - http://hello/";
    let said = cluster.kubectl_args(&["exec", "probed", "--", "sh", "-c", script]);
    for expected in [service.to_string().as_str(), "Hello from hello-"] {
        assert!(said.contains(expected), "{expected} in\n{said}");
    }
    assert_eq!(cluster.kubectl("get pod probed -o jsonpath={.status.hostIPs[*].ip}"), "fd44::2");

    // So do addresses of a range that services get while the cluster runs, as long as it is there.
    cluster.apply(MORE_SERVICES);
    cluster.kubectl("wait --for=condition=Ready servicecidr/more --timeout=120s");
    let file = cluster.path("further.yaml");
    std::fs::write(&file, FURTHER).unwrap();
    cluster.wait("an address of the new range", || {
        let output = cluster.cox("kubectl").args(["apply", "-f", file.to_str().unwrap()]).output().unwrap();
        output.status.success().then_some(())
    });
    for network in [&cluster.host.netns(), &other] {
        cluster.answers("through the new range", 2, || http_get(network, "[fd99::7]:80"));
    }
    cluster.kubectl("delete service further");
    cluster.kubectl("delete servicecidr more");
    cluster.wait("the end of its routes", || {
        let routes = crate::harness::said(cluster.host.command("ip").args(["-6", "route"]));
        (!routes.contains("fd99::/112")).then_some(())
    });

    // A policy closes the pods to that pod, and so a name that leads to them, until another one lets it in.
    let ask = ["exec", "probed", "--", "sh", "-c", "timeout 2 wget -q -O - http://hello/ || echo closed"];
    cluster.apply(&policy("deny", "ingress: []"));
    cluster.wait("pods that are closed", || (cluster.kubectl_args(&ask).trim() == "closed").then_some(()));
    cluster.apply(&policy("allow", "ingress: [{from: [{ipBlock: {cidr: '::/0'}}], ports: [{port: 80}]}]"));
    cluster.answers("in spite of the policy", 2, || {
        Some(cluster.kubectl_args(&ask)).filter(|said| said.starts_with("Hello from "))
    });
    // Once more, with the certificates that were made for these addresses.
    cluster.cox_says("down");
    cluster.up_again();
    cluster.wait("an answer after a restart", || cluster.http_get(&format!("[{service}]:80")));
}
