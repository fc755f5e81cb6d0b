//! Network policies, on two nodes and in both families: who reaches whom, checked with connections from inside the pods.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::time::Duration;

use cni::netns::Netns;

use crate::harness::{Cluster, run, with_input};
use crate::inside_pods;

const PODS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: other, labels: {team: red}}
---
apiVersion: v1
kind: Pod
metadata: {name: server-1, labels: {app: server}}
spec:
  nodeName: node-1
  containers:
  - name: c
    image: cox.local/hello
    env: [{name: PORT, value: "8080"}]
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {port: http, path: /}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: server-2, labels: {app: server}}
spec:
  nodeName: node-2
  containers:
  - name: c
    image: cox.local/hello
    env: [{name: PORT, value: "8081"}]
    ports: [{name: http, containerPort: 8081}]
    readinessProbe: {httpGet: {port: http, path: /}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: friend-1, labels: {role: friend}}
spec: {nodeName: node-1, containers: [{name: c, image: busybox, command: [sleep, "100000"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: friend-2, labels: {role: friend}}
spec: {nodeName: node-2, containers: [{name: c, image: busybox, command: [sleep, "100000"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stranger-1}
spec: {nodeName: node-1, containers: [{name: c, image: busybox, command: [sleep, "100000"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: visitor-2, namespace: other, labels: {role: visitor}}
spec: {nodeName: node-2, containers: [{name: c, image: busybox, command: [sleep, "100000"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: http}]}
"#;

const DENY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress]}
"#;

const FRIENDS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: friend}}}]
    ports: [{port: http}, {port: 9053, protocol: UDP}]
"#;

const VISITORS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: visitors}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {role: visitor}}}]
    ports: [{port: 9000, endPort: 9010}]
"#;

const EGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: egress}
spec:
  podSelector: {matchLabels: {role: friend}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 8080}]
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    ports: [{port: 53, protocol: UDP}]
"#;

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/network-policy-api/pull/300"}
spec:
  group: policy.networking.k8s.io
  names: {kind: ClusterNetworkPolicy, plural: clusternetworkpolicies, singular: clusternetworkpolicy, shortNames: [cnp]}
  scope: Cluster
  versions:
  - name: v1alpha2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"#;

const CLUSTER_POLICY: &str = r#"
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: teams}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: server}}}}
  ingress:
  - name: friends
    action: Accept
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: friend}}}}]
    protocols: [{destinationNamedPort: http}]
  - name: others
    action: Deny
    from: [{namespaces: {matchLabels: {team: red}}}]
"#;

/// The first rule is not supported, and the second means nodes.
const NAMES: &str = r#"
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 20
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {role: visitor}}}}
  egress:
  - {name: web, action: Accept, to: [{domainNames: [example.org]}]}
  - {name: nodes, action: Deny, to: [{nodes: {matchLabels: {kubernetes.io/hostname: node-1}}}]}
"#;

struct Pod {
    name: &'static str,
    netns: Netns,
    addresses: Vec<IpAddr>,
}

struct Policies {
    cluster: Cluster,
    pods: Vec<Pod>,
}

#[test]
fn security_network_policies_are_enforced_on_every_node() {
    let ranges = ["--cluster-cidr", "10.42.0.0/16,fd42::/56", "--service-cidr", "10.43.0.0/16,fd43::/112"];
    let flags = [&["--nodes", "2"][..], &ranges].concat();
    let cluster = Cluster::up_with(&[testkit::images::busybox], &flags);
    cluster.apply(PODS);
    cluster.kubectl("wait --for=condition=Ready pod --all --timeout=170s");
    cluster.kubectl("wait --for=condition=Ready pod --all -n other --timeout=170s");
    let policies = Policies::new(cluster);
    policies.everyone_reaches_everyone_at_first();
    policies.nobody_reaches_those_who_are_closed();
    policies.labels_names_and_protocols_let_in();
    policies.namespaces_and_ranges_of_ports_let_in();
    policies.a_connection_ends_with_what_allowed_it();
    policies.those_who_send_are_bound_too();
    policies.blocks_have_exceptions();
    policies.the_clusters_policies_come_first();
    policies.rules_outlive_a_restart();
}

impl Policies {
    fn new(cluster: Cluster) -> Policies {
        let nodes = [cluster.host.netns(), Netns::open(cluster.path("run/nodes/node-2/netns")).unwrap()];
        let pod = |name: &'static str| {
            let namespace = if name.starts_with("visitor") { "other" } else { "default" };
            let get = |path: &str| cluster.kubectl(&format!("get pod {name} -n {namespace} -o jsonpath={{{path}}}"));
            let netns = inside_pods::netns_of(&get(".metadata.uid"), &nodes);
            let addresses = get(".status.podIPs[*].ip").split(' ').map(|ip| ip.parse().unwrap()).collect();
            Pod { name, netns, addresses }
        };
        let pods: Vec<Pod> =
            ["server-1", "server-2", "friend-1", "friend-2", "stranger-1", "visitor-2"].into_iter().map(pod).collect();
        for pod in &pods {
            assert_eq!(pod.addresses.len(), 2, "{}", pod.name);
            serve_echo(&pod.netns, 9000);
            inside_pods::serve_udp(&pod.netns, 9053, pod.name);
        }
        Policies { cluster, pods }
    }

    fn pod(&self, name: &str) -> &Pod {
        self.pods.iter().find(|pod| pod.name == name).unwrap()
    }

    /// Waits until it is as said, for either family.
    fn expect(&self, cases: &[(&str, &str, u16, bool)]) {
        for (from, to, port, expected) in cases {
            for address in &self.pod(to).addresses {
                let target = SocketAddr::new(*address, *port);
                self.cluster.wait(&format!("{from} reaching {to} at {target}: {expected}"), || {
                    (reaches(&self.pod(from).netns, target) == *expected).then_some(())
                });
            }
        }
    }

    fn service(&self) -> SocketAddr {
        let address = self.cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
        SocketAddr::new(address.parse().unwrap(), 80)
    }

    fn everyone_reaches_everyone_at_first(&self) {
        self.expect(&[
            ("stranger-1", "server-1", 8080, true),
            ("stranger-1", "server-2", 8081, true),
            ("visitor-2", "server-1", 9000, true),
            ("friend-1", "friend-2", 9000, true),
        ]);
    }

    fn nobody_reaches_those_who_are_closed(&self) {
        self.cluster.apply(DENY);
        self.expect(&[
            ("stranger-1", "server-1", 8080, false),
            ("stranger-1", "server-2", 8081, false),
            ("visitor-2", "server-1", 9000, false),
            ("server-1", "server-2", 8081, false),
            // Others are not meant, and those who are closed may still ask.
            ("friend-1", "friend-2", 9000, true),
            ("server-1", "friend-1", 9000, true),
            ("server-2", "friend-1", 9000, true),
        ]);
        assert!(!reaches(&self.pod("stranger-1").netns, self.service()));
        // The node of a pod reaches it, and so do probes; another node does not.
        let host = self.cluster.host.netns();
        let at = |pod: &str, port| SocketAddr::new(self.pod(pod).addresses[0], port);
        self.cluster.wait("the node at its pod", || reaches(&host, at("server-1", 8080)).then_some(()));
        assert!(!reaches(&host, at("server-2", 8081)));
        let ready = "get pods -l app=server -o jsonpath={.items[*].status.containerStatuses[0].ready}";
        self.cluster
            .wait("probes of those who are closed", || (self.cluster.kubectl(ready) == "true true").then_some(()));
        // Link-local addresses are no way around.
        assert!(self.reaches_by_link_local("stranger-1", "friend-1").is_some());
        assert_eq!(self.reaches_by_link_local("stranger-1", "server-1"), Some(false));
    }

    /// None where the pods have no such addresses.
    fn reaches_by_link_local(&self, from: &str, to: &str) -> Option<bool> {
        let from = &self.pod(from).netns;
        let held = self.pod(to).netns.socket().unwrap().addresses().unwrap();
        let address = held.iter().find_map(|held| match held.cidr.addr {
            IpAddr::V6(addr) if addr.is_unicast_link_local() => Some(addr),
            _ => None,
        })?;
        let scope = from.socket().unwrap().link("eth0").unwrap()?.index;
        Some(reaches(from, SocketAddrV6::new(address, 9000, 0, scope).into()))
    }

    fn labels_names_and_protocols_let_in(&self) {
        self.cluster.apply(FRIENDS);
        self.expect(&[
            ("friend-1", "server-1", 8080, true),
            ("friend-2", "server-1", 8080, true),
            ("friend-1", "server-2", 8081, true),
            ("friend-2", "server-2", 8081, true),
            ("friend-1", "server-1", 9000, false),
            ("stranger-1", "server-1", 8080, false),
        ]);
        let why = self.cluster.cox_says("why net pod/stranger-1 pod/server-1:8080");
        assert!(why.contains("forbid it") && why.contains("default/deny, default/friends"), "{why}");
        let why = self.cluster.cox_says("why net pod/friend-1 pod/server-1:8080");
        assert!(why.contains("allowed by default/friends"), "{why}");
        // A service leads where policies allow, and shows who asks.
        let service = self.service();
        self.cluster.wait("a friend at the service", || reaches(&self.pod("friend-1").netns, service).then_some(()));
        assert!(!reaches(&self.pod("stranger-1").netns, service));
        let why = self.cluster.cox_says(&format!("why net pod/stranger-1 {service}"));
        assert!(why.contains("forbid it") && why.contains("endpoint "), "{why}");
        let datagrams = format!("{}:9053", self.pod("server-2").addresses[0]);
        let answer = inside_pods::ask_udp(&self.pod("friend-1").netns, &datagrams);
        assert_eq!(answer.as_deref(), Some("server-2"));
        // Who becomes a friend is one.
        self.cluster.kubectl("label pod stranger-1 role=friend");
        self.expect(&[("stranger-1", "server-1", 8080, true), ("stranger-1", "server-2", 8081, true)]);
        self.cluster.kubectl("label pod stranger-1 role-");
        self.expect(&[("stranger-1", "server-1", 8080, false)]);
    }

    fn namespaces_and_ranges_of_ports_let_in(&self) {
        self.cluster.apply(VISITORS);
        self.expect(&[
            ("visitor-2", "server-1", 9000, true),
            ("visitor-2", "server-2", 9000, true),
            ("visitor-2", "server-1", 8080, false),
            ("friend-1", "server-1", 9000, false),
        ]);
        self.cluster.kubectl("label namespace other team-");
        self.expect(&[("visitor-2", "server-1", 9000, false)]);
        self.cluster.kubectl("label namespace other team=red");
        self.expect(&[("visitor-2", "server-1", 9000, true)]);
    }

    fn a_connection_ends_with_what_allowed_it(&self) {
        let connect = |to: &str| {
            let target = SocketAddr::new(self.pod(to).addresses[0], 9000);
            let stream =
                self.pod("visitor-2").netns.enter(|| TcpStream::connect_timeout(&target, Duration::from_secs(5)));
            let stream = stream.unwrap().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream
        };
        let mut streams = [connect("server-1"), connect("server-2")];
        for stream in &mut streams {
            assert!(echoes(stream));
        }
        self.cluster.kubectl("delete networkpolicy visitors");
        for stream in &mut streams {
            self.cluster.wait("the end of a connection", || (!echoes(stream)).then_some(()));
        }
        self.expect(&[("visitor-2", "server-1", 9000, false)]);
    }

    fn those_who_send_are_bound_too(&self) {
        self.cluster.kubectl("delete networkpolicy deny friends");
        self.cluster.apply(EGRESS);
        self.expect(&[
            ("friend-1", "server-1", 8080, true),
            ("friend-2", "server-1", 8080, true),
            ("friend-1", "server-2", 8081, false),
            ("friend-2", "server-1", 9000, false),
            ("friend-1", "visitor-2", 9000, false),
            ("stranger-1", "server-2", 8081, true),
            // Answers to others are no sending.
            ("stranger-1", "friend-1", 9000, true),
            ("visitor-2", "friend-1", 9000, true),
        ]);
        for friend in ["friend-1", "friend-2"] {
            let said = self.cluster.kubectl(&format!("exec {friend} -- nslookup kubernetes.default.svc.cluster.local"));
            assert!(said.contains("10.43.0.1"), "{said}");
        }
        self.cluster.kubectl("delete networkpolicy egress");
        self.expect(&[("friend-1", "server-2", 8081, true)]);
    }

    fn blocks_have_exceptions(&self) {
        let [four, six] = &self.pod("friend-1").addresses[..] else { panic!("two families") };
        self.cluster.apply(&format!(
            r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: blocks}}
spec:
  podSelector: {{matchLabels: {{app: server}}}}
  ingress:
  - from:
    - ipBlock: {{cidr: 10.42.0.0/16, except: [{four}/32]}}
    - ipBlock: {{cidr: "fd42::/56", except: ["{six}/128"]}}
  - from: [{{ipBlock: {{cidr: "{four}/32"}}}}, {{ipBlock: {{cidr: "{six}/128"}}}}]
    ports: [{{port: 9000}}]
"#
        ));
        self.expect(&[
            ("friend-1", "server-1", 8080, false),
            ("friend-1", "server-2", 8081, false),
            ("friend-1", "server-2", 9000, true),
            ("friend-2", "server-1", 8080, true),
            ("stranger-1", "server-2", 8081, true),
        ]);
    }

    /// The kind comes while the cluster runs, and its objects stay for the restart.
    fn the_clusters_policies_come_first(&self) {
        self.expect(&[("visitor-2", "server-1", 8080, true), ("visitor-2", "server-2", 8081, true)]);
        self.cluster.apply(DEFINITION);
        self.cluster.kubectl(
            "wait --for=condition=Established crd/clusternetworkpolicies.policy.networking.k8s.io --timeout=170s",
        );
        self.cluster.wait("the kind to be served", || {
            let applied = with_input(self.cluster.cox("kubectl").args(["apply", "-f", "-"]), CLUSTER_POLICY);
            applied.status.success().then_some(())
        });
        self.expect(&[
            ("visitor-2", "server-1", 8080, false),
            ("visitor-2", "server-2", 8081, false),
            // Accepted before the policies of the namespace are asked.
            ("friend-1", "server-1", 8080, true),
            ("friend-1", "server-2", 8081, true),
            ("stranger-1", "server-1", 8080, true),
        ]);
        let why = self.cluster.cox_says("why net pod/other/visitor-2 pod/server-1:8080");
        assert!(why.contains("denied by rule others of the cluster's policy teams (tier Admin)"), "{why}");
        // What is not supported opens nothing, and is said.
        let node = self.cluster.kubectl("get node node-1 -o jsonpath={.status.addresses[0].address}");
        let listener = self.cluster.host.netns().enter(|| TcpListener::bind((node.trim(), 9700))).unwrap().unwrap();
        let target = listener.local_addr().unwrap();
        let visitor = &self.pod("visitor-2").netns;
        self.cluster.wait("the visitor at the other node", || reaches(visitor, target).then_some(()));
        self.cluster.apply(NAMES);
        self.cluster.wait("the visitor kept from the other node", || (!reaches(visitor, target)).then_some(()));
        self.cluster.wait("the condition", || {
            let path = "jsonpath={.status.conditions[0].status}{.status.conditions[0].message}";
            let said = self.cluster.kubectl(&format!("get clusternetworkpolicy names -o {path}"));
            (said == "Falseegress rule web: domainNames are not supported: it accepts nothing").then_some(())
        });
    }

    /// Nothing opens while nobody watches, and nothing closes.
    fn rules_outlive_a_restart(&self) {
        let cases = [
            ("visitor-2", "server-1", 8080, false),
            ("friend-1", "server-1", 8080, true),
            ("friend-2", "server-1", 8080, true),
        ];
        run(&mut self.cluster.cox("down"));
        self.expect(&cases);
        self.cluster.up_again();
        self.expect(&cases);
        // The kind goes with its objects.
        self.cluster.kubectl("delete crd clusternetworkpolicies.policy.networking.k8s.io");
        self.expect(&[("visitor-2", "server-1", 8080, true), ("friend-1", "server-1", 8080, false)]);
        self.cluster.kubectl("delete networkpolicy blocks");
        self.expect(&[("friend-1", "server-1", 8080, true), ("friend-1", "server-2", 8081, true)]);
    }
}

fn reaches(from: &Netns, target: SocketAddr) -> bool {
    from.enter(|| TcpStream::connect_timeout(&target, Duration::from_millis(1500))).unwrap().is_ok()
}

/// Whether what is sent comes back.
fn echoes(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut buffer).is_ok()
}

/// Sends back what comes, in both families.
fn serve_echo(netns: &Netns, port: u16) {
    let listener = netns.enter(|| TcpListener::bind(("::", port))).unwrap().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let Ok(mut stream) = stream else { return };
                let mut buffer = [0; 64];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}
