//! Services, endpoints, pod networking, names and the API server's proxy on two nodes: areas 38 to 41 of the conformance
//! tests, point by point, as far as they need a cluster. What they ask of one component alone is tested beside it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use cni::netns::Netns;
use serde_json::Value;

use crate::harness::{Cluster, describe, http_get};
use crate::inside_pods::{self, ask_udp};

/// Two pods whose port of one name has different numbers, one that is alone, and clients on both nodes.
const PODS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: web, part: one}}
spec:
  nodeName: node-1
  hostname: first
  subdomain: headless
  containers:
  - {name: c, image: cox.local/hello, env: [{name: PORT, value: "3000"}], ports: [{name: http, containerPort: 3000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {app: web, part: two}}
spec:
  nodeName: node-2
  hostname: second
  subdomain: headless
  containers:
  - {name: c, image: cox.local/hello, env: [{name: PORT, value: "3001"}], ports: [{name: http, containerPort: 3001}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: node-2
  containers: [{name: c, image: busybox, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: host-client}
spec:
  nodeName: node-2
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  containers: [{name: c, image: busybox, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: own-dns}
spec:
  nodeName: node-2
  dnsPolicy: None
  dnsConfig: {nameservers: [10.43.0.10], searches: [default.svc.cluster.local], options: [{name: ndots, value: "2"}]}
  containers: [{name: c, image: busybox, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: foo.example.com}
"#;

struct Services {
    cluster: Cluster,
}

/// Walk 9.3 and 11.1.
#[test]
fn services_lead_to_pods_of_every_node_by_address_and_name() {
    let services = Services { cluster: Cluster::up_with(&[testkit::images::busybox], &["--nodes", "2"]) };
    services.cluster.apply(PODS);
    services.cluster.kubectl("wait --for=condition=Ready pod --all --timeout=170s");
    services.endpoints_and_slices_follow_pods();
    services.the_api_server_is_a_service();
    services.endpoints_made_by_hand_are_mirrored();
    services.the_type_of_a_service_changes();
    services.load_balancers_are_the_nodes();
    services.affinity_is_switched_on_and_off();
    services.host_ports_differ_by_address_and_protocol();
    services.pods_reach_pods_of_every_node();
    services.pods_are_told_how_to_resolve();
    services.names_have_their_records();
    services.a_corefile_says_how_names_are_answered();
    services.names_are_answered_on_every_node();
    services.ranges_are_added_while_the_cluster_runs();
    services.datagrams_find_pods_and_services();
    services.many_services_have_their_endpoints();
    services.pages_are_read_through_the_api_server();
    services.requests_pass_the_api_server_unchanged();
    services.ports_are_forwarded_from_every_node();
    services.pods_answer_names_where_a_selector_says_so();
}

impl Services {
    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.cluster.kubectl(&format!("{line} -o json"))).unwrap()
    }

    /// The slices of a service, once they are as wanted.
    fn slices(&self, service: &str, what: &str, is_wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.cluster.wait(what, || {
            let line = format!("get endpointslices -l kubernetes.io/service-name={service}");
            let slices = self.json(&line)["items"].as_array().unwrap().clone();
            is_wanted(&slices).then_some(slices)
        })
    }

    /// What a command in a pod says.
    fn inside(&self, pod: &str, script: &str) -> String {
        let output = self.cluster.cox("kubectl").args(["exec", pod, "--", "sh", "-c", script]).output().unwrap();
        describe(&output)
    }

    /// A page, read from within a pod.
    fn get_inside(&self, pod: &str, address: &str) -> String {
        let (host, port) = address.split_once(':').unwrap();
        self.inside(pod, &format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {host} {port}"))
    }

    fn dig(&self, question: &str) -> BTreeSet<String> {
        let mut dig = self.cluster.host.command("dig");
        let output =
            dig.args(["@10.43.0.10", "+short", "+time=3", "+tries=3"]).args(question.split(' ')).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    fn endpoints_and_slices_follow_pods(&self) {
        let endpoints = |slices: &[Value]| {
            slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default()).count()
        };
        // One port name, two numbers: a slice for each.
        let slices = self.slices("web", "endpoints of both pods", |slices| slices.len() == 2 && endpoints(slices) == 2);
        let mut ports = BTreeSet::new();
        for slice in &slices {
            let label = &slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
            assert_eq!(label, "endpointslice-controller.k8s.io");
            let target = &slice["endpoints"][0]["targetRef"];
            assert_eq!((&target["kind"], &target["namespace"]), (&"Pod".into(), &"default".into()));
            let pod = self.json(&format!("get pod {}", target["name"].as_str().unwrap()));
            assert_eq!(target["uid"], pod["metadata"]["uid"]);
            assert_eq!(slice["endpoints"][0]["addresses"][0], pod["status"]["podIP"]);
            ports.insert((slice["ports"][0]["name"].to_string(), slice["ports"][0]["port"].as_u64().unwrap()));
        }
        assert_eq!(ports, BTreeSet::from([("\"http\"".to_owned(), 3000), ("\"http\"".to_owned(), 3001)]));
        self.cluster.wait("the older kind saying the same", || {
            self.json("get endpoints web")["subsets"].as_array().is_some_and(|subsets| subsets.len() == 2).then_some(())
        });
        // Nobody behind it: a slice without endpoints, and both kinds go with the service.
        self.slices("nobody", "an empty slice", |slices| slices.len() == 1 && endpoints(slices) == 0);
        self.cluster.kubectl("delete service nobody");
        self.slices("nobody", "the end of the slice", <[Value]>::is_empty);
        self.cluster.wait("the end of the endpoints", || {
            let output = self.cluster.cox("kubectl").args(["get", "endpoints", "nobody"]).output().unwrap();
            (!output.status.success()).then_some(())
        });
        let address = self.cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}") + ":80";
        self.reaches("both pods through the service", &address, &["Hello from first", "Hello from second"]);
    }

    /// From the machine, everybody who is wanted and nobody else.
    fn reaches(&self, what: &str, address: &str, expected: &[&str]) {
        let seen = self.cluster.answers(what, expected.len(), || self.cluster.http_get(address));
        assert!(seen.iter().eq(expected), "{what}: {seen:?}");
    }

    fn the_api_server_is_a_service(&self) {
        let service = self.json("get service kubernetes");
        assert_eq!(service["spec"]["ports"][0]["port"], 443);
        let endpoints = self.json("get endpoints kubernetes");
        let slices = self.slices("kubernetes", "the API server's slice", |slices| slices.len() == 1);
        assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], slices[0]["endpoints"][0]["addresses"][0]);
        assert_eq!(endpoints["subsets"][0]["ports"][0]["port"], slices[0]["ports"][0]["port"]);
        let asked = self.inside("client", "nc -w 5 10.43.0.1 443 </dev/null && echo reached");
        assert!(asked.contains("reached"), "{asked}");
    }

    fn endpoints_made_by_hand_are_mirrored(&self) {
        let address = self.cluster.kubectl("get pod one -o jsonpath={.status.podIP}");
        let manifest = |address: &str| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: by-hand}}\nspec: {{ports: [{{port: 80, targetPort: 3000}}]}}\n---\n\
                 apiVersion: v1\nkind: Endpoints\nmetadata: {{name: by-hand}}\nsubsets:\n\
                 - addresses: [{{ip: {address}}}]\n  ports: [{{port: 3000}}]\n"
            )
        };
        let is_at = |address: &str| {
            let address = address.to_owned();
            move |slices: &[Value]| {
                slices.len() == 1
                    && slices[0]["endpoints"][0]["addresses"][0] == address.as_str()
                    && slices[0]["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
                        == "endpointslicemirroring-controller.k8s.io"
            }
        };
        self.cluster.apply(&manifest("10.42.0.250"));
        self.slices("by-hand", "a mirror of the endpoints", is_at("10.42.0.250"));
        self.cluster.apply(&manifest(&address));
        self.slices("by-hand", "a mirror of the changed endpoints", is_at(&address));
        let service = self.cluster.kubectl("get service by-hand -o jsonpath={.spec.clusterIP}") + ":80";
        self.reaches("the pod behind endpoints made by hand", &service, &["Hello from first"]);
        self.cluster.kubectl("delete endpoints by-hand");
        self.slices("by-hand", "the end of the mirror", <[Value]>::is_empty);
        self.cluster.kubectl("delete service by-hand");
    }

    /// ExternalName to ClusterIP to NodePort and back: addresses and ports come and go with it.
    fn the_type_of_a_service_changes(&self) {
        self.cluster.wait("the alias", || {
            let alias = BTreeSet::from(["foo.example.com.".to_owned()]);
            (self.dig("outside.default.svc.cluster.local CNAME") == alias).then_some(())
        });
        let patch = |patch: &str| self.cluster.kubectl_args(&["patch", "service", "outside", "-p", patch]);
        patch(r#"{"spec": {"externalName": "bar.example.com"}}"#);
        self.cluster.wait("the new alias", || {
            self.dig("outside.default.svc.cluster.local CNAME").contains("bar.example.com.").then_some(())
        });
        patch(
            r#"{"spec": {"type": "ClusterIP", "externalName": null, "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}}"#,
        );
        let address = self.cluster.kubectl("get service outside -o jsonpath={.spec.clusterIP}");
        self.reaches(
            "pods behind the new address",
            &format!("{address}:80"),
            &["Hello from first", "Hello from second"],
        );
        self.cluster.wait("the address under the name", || {
            (self.dig("outside.default.svc.cluster.local A") == BTreeSet::from([address.clone()])).then_some(())
        });
        patch(r#"{"spec": {"type": "NodePort"}}"#);
        let port = self.cluster.kubectl("get service outside -o jsonpath={.spec.ports[0].nodePort}");
        for node in ["172.31.7.2", "10.44.0.2"] {
            let address = format!("{node}:{port}");
            self.reaches(&format!("pods behind {address}"), &address, &["Hello from first", "Hello from second"]);
            let asked = self.get_inside("client", &address);
            assert!(asked.contains("Hello from"), "from a pod through {address}: {asked}");
        }
        patch(r#"{"spec": {"sessionAffinity": "ClientIP"}}"#);
        patch(r#"{"spec": {"type": "ClusterIP"}}"#);
        let spec = self.json("get service outside")["spec"].clone();
        assert!(spec["ports"][0]["nodePort"].is_null() && spec["sessionAffinity"] == "ClientIP", "{spec}");
        patch(
            r#"{"spec": {"type": "ExternalName", "externalName": "foo.example.com", "clusterIP": "", "clusterIPs": null,
            "ports": null, "selector": null}}"#,
        );
        let spec = self.json("get service outside")["spec"].clone();
        assert!(spec["clusterIP"].is_null() || spec["clusterIP"] == "", "{spec}");
        assert_eq!(self.cluster.kubectl("get service outside -o jsonpath={.spec.ports[*].nodePort}"), "");
    }

    /// Every node's address leads to the pods at the service's own port, to whom it may, unless somebody has that port.
    fn load_balancers_are_the_nodes(&self) {
        let service = |name: &str, spec: &str| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: LoadBalancer, {spec}}}\n---\n"
            )
        };
        let ports = "selector: {app: web}, ports: [{name: http, port: 8088, targetPort: http}]";
        self.cluster.apply(&service("balanced", &format!("allocateLoadBalancerNodePorts: false, {ports}")));
        let addresses = |name: &str, what: &str, expected: &[&str]| {
            self.cluster.wait(what, || {
                let line = format!("get service {name} -o jsonpath={{.status.loadBalancer.ingress[*].ip}}");
                self.cluster.kubectl(&line).split_whitespace().eq(expected.iter().copied()).then_some(())
            });
        };
        addresses("balanced", "the addresses of both nodes", &["10.44.0.2", "172.31.7.2"]);
        let both = ["Hello from first", "Hello from second"];
        for address in ["10.44.0.2:8088", "172.31.7.2:8088"] {
            self.reaches(&format!("pods behind {address}"), address, &both);
            let asked = self.get_inside("client", address);
            assert!(asked.contains("Hello from"), "from a pod through {address}: {asked}");
        }
        assert_eq!(self.cluster.kubectl("get service balanced -o jsonpath={.spec.ports[*].nodePort}"), "");

        // Not for those who ask for what is taken, or for another implementation.
        let api = "selector: {app: web}, ports: [{port: 6443}]";
        let other = format!("loadBalancerClass: example.com/other, {}", ports.replace("8088", "8089"));
        self.cluster.apply(&[service("late", ports), service("api", api), service("other", &other)].concat());
        for (name, holder) in [("late", "service default/balanced"), ("api", "the nodes themselves")] {
            self.cluster.wait(&format!("a word to {name} on who has its port"), || {
                let line =
                    format!("get events --field-selector involvedObject.name={name},reason=SyncLoadBalancerFailed");
                self.cluster.kubectl(&line).contains(&format!("is used by {holder}")).then_some(())
            });
        }
        let status = self.json("get services late api other")["items"].as_array().unwrap().clone();
        assert!(status.iter().all(|service| service["status"]["loadBalancer"]["ingress"].is_null()), "{status:?}");

        let patch = |patch: &str| self.cluster.kubectl_args(&["patch", "service", "balanced", "-p", patch]);
        // Only for some sources, and none of them in the other range.
        patch(r#"{"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24"]}}"#);
        self.cluster
            .wait("the machine is kept out", || self.cluster.http_get("10.44.0.2:8088").is_none().then_some(()));
        patch(r#"{"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24", "10.44.0.0/24"]}}"#);
        self.reaches("pods from a source that may", "10.44.0.2:8088", &both);
        // Only nodes that have an endpoint.
        patch(
            r#"{"spec": {"externalTrafficPolicy": "Local", "selector": {"part": "two"}, "loadBalancerSourceRanges": null}}"#,
        );
        addresses("balanced", "the address of the node with the pod", &["10.44.0.2"]);
        // The proxy follows by itself, sooner or later than the status.
        self.cluster.wait("the other node's pod is out of reach", || {
            let answers = (0..8).map(|_| self.cluster.http_get("10.44.0.2:8088"));
            answers.flatten().all(|answer| answer.lines().last() == Some("Hello from second")).then_some(())
        });
        self.reaches("the pod of that node", "10.44.0.2:8088", &["Hello from second"]);
        // What is given up goes to who waits for it.
        patch(
            r#"{"spec": {"type": "ClusterIP", "externalTrafficPolicy": null, "allocateLoadBalancerNodePorts": null}}"#,
        );
        addresses("balanced", "no more addresses", &[]);
        addresses("late", "the addresses that are free now", &["10.44.0.2", "172.31.7.2"]);
        self.reaches("pods of the next service", "172.31.7.2:8088", &both);
        self.cluster.kubectl("delete service balanced late api other");
    }

    fn affinity_is_switched_on_and_off(&self) {
        let address = self.cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}") + ":80";
        let distinct = || -> BTreeSet<String> {
            let answers = (0..15).filter_map(|_| self.cluster.http_get(&address));
            answers.filter_map(|answer| answer.lines().last().map(str::to_owned)).collect()
        };
        let patch = |affinity: &str| {
            let patch = format!(r#"{{"spec": {{"sessionAffinity": "{affinity}"}}}}"#);
            self.cluster.kubectl_args(&["patch", "service", "web", "-p", &patch]);
        };
        for (affinity, count) in [("ClientIP", 1), ("None", 2), ("ClientIP", 1)] {
            patch(affinity);
            self.cluster.wait(&format!("{count} pods behind affinity {affinity}"), || {
                (distinct().len() == count).then_some(())
            });
        }
        patch("None");
    }

    /// One port number three times on one node: on loopback, on the node's address, and of another protocol.
    fn host_ports_differ_by_address_and_protocol(&self) {
        let pod = |name: &str, host_ip: &str, protocol: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  nodeName: node-2\n  containers:\n  \
                 - {{name: c, image: cox.local/hello, ports: [{{containerPort: 80, hostPort: 54323, hostIP: {host_ip}, protocol: {protocol}}}]}}\n---\n"
            )
        };
        let all = [("port-1", "127.0.0.1", "TCP"), ("port-2", "10.44.0.2", "TCP"), ("port-3", "10.44.0.2", "UDP")];
        self.cluster.apply(&all.map(|(name, host_ip, protocol)| pod(name, host_ip, protocol)).concat());
        self.cluster.kubectl("wait --for=condition=Ready pod/port-1 pod/port-2 pod/port-3 --timeout=170s");
        for (address, expected) in [("127.0.0.1", "Hello from port-1"), ("10.44.0.2", "Hello from port-2")] {
            // A container that has started may not listen yet.
            self.cluster.wait(&format!("{expected} at {address}"), || {
                self.get_inside("host-client", &format!("{address}:54323")).contains(expected).then_some(())
            });
        }
        // The other protocol leads to the third, although all of them would answer.
        for (name, _, _) in all {
            inside_pods::serve_udp(&self.netns_of(name), 80, name);
        }
        for network in [self.second_node(), self.cluster.host.netns()] {
            assert_eq!(ask_udp(&network, "10.44.0.2:54323").as_deref(), Some("port-3"));
        }
        self.cluster.kubectl("delete pod port-1 port-2 port-3 --now");
    }

    fn pods_reach_pods_of_every_node(&self) {
        for (pod, port) in [("one", 3000), ("two", 3001)] {
            let address = self.cluster.kubectl(&format!("get pod {pod} -o jsonpath={{.status.podIP}}"));
            for from in ["client", "host-client"] {
                let asked = self.get_inside(from, &format!("{address}:{port}"));
                assert!(asked.contains("Hello from"), "{from} to {pod}: {asked}");
            }
            let machine = self.cluster.host.netns();
            assert!(http_get(&machine, &format!("{address}:{port}")).is_some(), "the machine to {pod}");
        }
    }

    fn second_node(&self) -> Netns {
        Netns::open(self.cluster.path("run/nodes/node-2/netns")).unwrap()
    }

    /// The network of a pod, to be in its place.
    fn netns_of(&self, pod: &str) -> Netns {
        let uid = self.cluster.kubectl(&format!("get pod {pod} -o jsonpath={{.metadata.uid}}"));
        inside_pods::netns_of(&uid, &[self.cluster.host.netns(), self.second_node()])
    }

    /// To every pod on every node, and through a service and its port on every node.
    fn datagrams_find_pods_and_services(&self) {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: datagrams}\nspec:\n  type: NodePort\n  \
                       selector: {app: web}\n  ports: [{port: 53, targetPort: 9053, protocol: UDP}]\n";
        self.cluster.apply(service);
        for pod in ["one", "two"] {
            inside_pods::serve_udp(&self.netns_of(pod), 9053, pod);
        }
        let networks = [self.netns_of("client"), self.second_node(), self.cluster.host.netns()];
        for (i, network) in networks.iter().enumerate() {
            for pod in ["one", "two"] {
                let address = self.cluster.kubectl(&format!("get pod {pod} -o jsonpath={{.status.podIP}}"));
                let answer = ask_udp(network, &format!("{address}:9053"));
                assert_eq!(answer.as_deref(), Some(pod), "from network {i} to {address}");
            }
        }
        let address = self.cluster.kubectl("get service datagrams -o jsonpath={.spec.clusterIP}:53");
        let port = self.cluster.kubectl("get service datagrams -o jsonpath={.spec.ports[0].nodePort}");
        for target in [address, format!("172.31.7.2:{port}"), format!("10.44.0.2:{port}")] {
            for (i, network) in networks.iter().enumerate() {
                let what = format!("both pods behind {target} from network {i}");
                self.cluster.answers(&what, 2, || ask_udp(network, &target));
            }
        }
        self.cluster.kubectl("delete service datagrams");
    }

    /// Two hundred at once, all with the same pod behind them.
    fn many_services_have_their_endpoints(&self) {
        const COUNT: usize = 200;
        let service = |i: usize| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: many-{i}, labels: {{set: many}}}}\nspec:\n  \
                 selector: {{part: one}}\n  ports: [{{port: 80, targetPort: 3000}}]\n---\n"
            )
        };
        self.cluster.apply(&(0..COUNT).map(service).collect::<String>());
        let complete = |kind: &str, pointer: &str| {
            let listed = self.json(&format!("get {kind} -l set=many"));
            let items = listed["items"].as_array().unwrap().iter();
            items.filter(|item| item.pointer(pointer).is_some()).count()
        };
        for (kind, address) in [("endpointslices", "/endpoints/0/addresses/0"), ("endpoints", "/subsets/0/addresses/0")]
        {
            self.cluster.wait(&format!("{kind} of all"), || (complete(kind, address) == COUNT).then_some(()));
        }
        let last = self.cluster.kubectl(&format!("get service many-{} -o jsonpath={{.spec.clusterIP}}:80", COUNT - 1));
        self.reaches("the pod behind the last of them", &last, &["Hello from first"]);
        self.cluster.kubectl("delete service -l set=many");
        self.cluster.wait("the end of their slices", || {
            let listed = self.json("get endpointslices,endpoints -l set=many");
            listed["items"].as_array().unwrap().is_empty().then_some(())
        });
    }

    fn pods_are_told_how_to_resolve(&self) {
        let told = self.inside("client", "cat /etc/resolv.conf");
        for line in [
            "nameserver 10.43.0.10",
            "search default.svc.cluster.local svc.cluster.local cluster.local",
            "options ndots:5",
        ] {
            assert!(told.contains(line), "{line} in {told}");
        }
        assert!(self.inside("host-client", "cat /etc/resolv.conf").contains("nameserver 10.43.0.10"));
        let own = self.inside("own-dns", "cat /etc/resolv.conf");
        assert!(own.contains("search default.svc.cluster.local\n") && own.contains("ndots:2"), "{own}");
        for (pod, name) in [("client", "web"), ("client", "web.default"), ("own-dns", "web")] {
            let asked =
                self.inside(pod, &format!("wget -q -O - http://{name}/ || nslookup {name}.default.svc.cluster.local"));
            assert!(asked.contains("10.43.") || asked.contains("Hello from"), "{pod} asks for {name}: {asked}");
        }
    }

    fn names_have_their_records(&self) {
        let pod = |name: &str| self.cluster.kubectl(&format!("get pod {name} -o jsonpath={{.status.podIP}}"));
        let (one, two) = (pod("one"), pod("two"));
        let service = self.cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
        let set =
            |records: &[&str]| -> BTreeSet<String> { records.iter().map(|record| (*record).to_owned()).collect() };
        for transport in ["+notcp", "+tcp"] {
            for (question, expected) in [
                ("web.default.svc.cluster.local A", set(&[&service])),
                ("headless.default.svc.cluster.local A", set(&[&one, &two])),
                ("_http._tcp.web.default.svc.cluster.local SRV", set(&["0 100 80 web.default.svc.cluster.local."])),
                (
                    "_http._tcp.headless.default.svc.cluster.local SRV",
                    set(&[
                        "0 50 3000 first.headless.default.svc.cluster.local.",
                        "0 50 3001 second.headless.default.svc.cluster.local.",
                    ]),
                ),
                ("first.headless.default.svc.cluster.local A", set(&[&one])),
                (&format!("-x {service}"), set(&["web.default.svc.cluster.local."])),
                (&format!("-x {two}"), set(&["second.headless.default.svc.cluster.local."])),
            ] {
                assert_eq!(self.dig(&format!("{transport} {question}")), expected, "{transport} {question}");
            }
        }
        let hosts = self.cluster.kubectl("get pod one -o jsonpath={.status.podIP}");
        let file = std::fs::read_to_string(self.hosts_file("one")).unwrap();
        assert!(file.contains(&format!("{hosts}\tfirst.headless.default.svc.cluster.local\tfirst")), "{file}");
    }

    /// The pod's image has nothing to read it with.
    /// People change the ConfigMap that they know from CoreDNS. One that cannot be used is told of, and changes nothing.
    fn a_corefile_says_how_names_are_answered(&self) {
        let corefile = || self.cluster.kubectl("get configmap coredns -n kube-system -o jsonpath={.data.Corefile}");
        let usual = corefile();
        assert!(usual.contains("kubernetes cluster.local in-addr.arpa ip6.arpa {"), "{usual}");
        let write = |text: &str| {
            let patch = serde_json::json!({"data": {"Corefile": text}}).to_string();
            self.cluster.kubectl_args(&["patch", "configmap", "coredns", "-n", "kube-system", "-p", &patch]);
        };
        let own = "hosts {\n192.0.2.80 printer.corp.test\nfallthrough\n}\nrewrite name web.corp.test web.default.svc.cluster.local\n";
        write(&usual.replace("errors\n", &format!("errors\n{own}")));
        let web = self.cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}");
        for (name, expected) in [("printer.corp.test", "192.0.2.80"), ("web.corp.test", web.as_str())] {
            self.cluster.wait(&format!("the address of {name}"), || {
                (self.dig(&format!("{name} A")) == BTreeSet::from([expected.to_owned()])).then_some(())
            });
        }
        write(&usual.replace("errors\n", "errors\nwhoami\n"));
        self.cluster.wait("a word about the Corefile that cannot be used", || {
            let events = self.cluster.kubectl("get events -n kube-system --field-selector reason=InvalidCorefile");
            events.contains("Unknown directive 'whoami'").then_some(())
        });
        assert_eq!(self.dig("printer.corp.test A"), BTreeSet::from(["192.0.2.80".to_owned()]));
        write(&usual);
        // Nobody else can be asked here, so that there may be complaints in its place.
        self.cluster
            .wait("the end of the address", || (!self.dig("printer.corp.test A").contains("192.0.2.80")).then_some(()));
    }

    /// Each node asks its own server; the others are for when that is down.
    fn names_are_answered_on_every_node(&self) {
        let slices = self.slices("kube-dns -n kube-system", "a server on each node", |slices| {
            slices.len() == 1 && slices[0]["endpoints"].as_array().is_some_and(|all| all.len() == 2)
        });
        for endpoint in slices[0]["endpoints"].as_array().unwrap() {
            assert_eq!(endpoint["hints"]["forNodes"][0]["name"], endpoint["nodeName"], "{endpoint}");
            assert_eq!(endpoint["conditions"]["ready"], true, "{endpoint}");
        }
        let second = self.cluster.kubectl("get node node-2 -o jsonpath={.metadata.annotations.cox\\.dev/dns}");
        let asked = || -> u64 {
            let page = format!("http://{second}:9153/metrics");
            let text = crate::harness::said(self.cluster.host.command("curl").args(["-s", "-m", "20", &page]));
            let counts = text.lines().filter(|line| line.starts_with("coredns_dns_requests_total{"));
            counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
        };
        let before = asked();
        for _ in 0..5 {
            let said = self.inside("client", "nslookup web.default.svc.cluster.local");
            assert!(said.contains("Name:"), "{said}");
        }
        assert!(asked() >= before + 5, "{before}, then {}", asked());
        // While its own server is away, the other node's is asked.
        let servers = |what: &str, count: usize| {
            self.slices("kube-dns -n kube-system", what, |slices| {
                slices[0]["endpoints"].as_array().is_some_and(|all| all.len() == count)
            });
        };
        self.cluster.kubectl("annotate node node-2 cox.dev/dns-");
        servers("one server less", 1);
        self.cluster.wait("an answer of the other node's server", || {
            let before = asked();
            let said = self.inside("client", "nslookup web.default.svc.cluster.local");
            (said.contains("Name:") && asked() == before).then_some(())
        });
        self.cluster.kubectl(&format!("annotate node node-2 cox.dev/dns={second}"));
        servers("both servers again", 2);
    }

    /// CoreDNS, or whoever else answers names, may run as pods in our servers' place. The last word on names in this cluster.
    fn pods_answer_names_where_a_selector_says_so(&self) {
        self.cluster.apply(
            "{apiVersion: v1, kind: Pod, metadata: {name: names, namespace: kube-system, labels: {answers: names}}, \
             spec: {nodeName: node-1, containers: [{name: c, image: cox.local/hello}]}}",
        );
        self.cluster.kubectl("wait --for=condition=Ready pod/names -n kube-system --timeout=170s");
        let uid = self.cluster.kubectl("get pod names -n kube-system -o jsonpath={.metadata.uid}");
        let nodes = [self.cluster.host.netns(), self.second_node()];
        inside_pods::serve_udp(&inside_pods::netns_of(&uid, &nodes), 53, "names");
        let selector = r#"{"spec":{"selector":{"answers":"names"}}}"#;
        self.cluster.kubectl_args(&["patch", "service", "kube-dns", "-n", "kube-system", "-p", selector]);
        for network in [self.netns_of("client"), self.second_node(), self.cluster.host.netns()] {
            self.cluster
                .wait("an answer of the pod", || ask_udp(&network, "10.43.0.10:53").filter(|answer| answer == "names"));
        }
    }

    /// Services get addresses of a further range, which lead to pods from every node.
    fn ranges_are_added_while_the_cluster_runs(&self) {
        let range = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: more}\nspec: {cidrs: [10.99.0.0/24]}\n";
        self.cluster.apply(range);
        self.cluster.kubectl("wait --for=condition=Ready servicecidr/more --timeout=120s");
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: further}\nspec: {clusterIP: 10.99.0.7, selector: {app: web}, \
                       ports: [{name: http, port: 80, targetPort: http}]}\n";
        self.cluster.wait("an address of the new range", || {
            let file = self.cluster.path("further.yaml");
            std::fs::write(&file, service).unwrap();
            let mut apply = self.cluster.cox("kubectl");
            apply.args(["apply", "-f", file.to_str().unwrap()]).output().unwrap().status.success().then_some(())
        });
        for network in [self.cluster.host.netns(), self.second_node()] {
            self.cluster.answers("through the new range", 2, || http_get(&network, "10.99.0.7:80"));
        }
        self.cluster.kubectl("delete service further");
        self.cluster.kubectl("delete servicecidr more");
        self.cluster.wait("the end of its routes", || {
            let routes = crate::harness::said(self.cluster.host.command("ip").args(["route"]));
            (!routes.contains("10.99.0.0/24")).then_some(())
        });
    }

    fn hosts_file(&self, pod: &str) -> std::path::PathBuf {
        let uid = self.cluster.kubectl(&format!("get pod {pod} -o jsonpath={{.metadata.uid}}"));
        self.cluster.path(&format!("data/kubelet/pods/{uid}/etc-hosts"))
    }

    fn pages_are_read_through_the_api_server(&self) {
        let base = "/api/v1/namespaces/default";
        for path in [
            "pods/one:3000/proxy/",
            "pods/one/proxy/",
            "pods/http:two:http/proxy/x?y=z",
            "services/web/proxy/",
            "services/web:80/proxy/",
            "services/http:web:http/proxy/",
        ] {
            let page = self.cluster.kubectl(&format!("get --raw {base}/{path}"));
            assert!(page.contains("Hello from"), "{path}: {page}");
        }
        // Each of them twenty times at once; and a service whose endpoints are no pods of its namespace has none here.
        let mut curl = self.curl();
        curl.args(["--parallel", "--parallel-max", "40", "-w", "%{http_code}\n"]);
        let parallel = ["pods/one:3000", "pods/http:two:http", "services/web", "services/http:web:http"];
        for path in parallel
            .map(|path| format!("{path}/proxy/"))
            .iter()
            .map(String::as_str)
            .chain(["services/https:kubernetes:https/proxy/version", "services/https:kubernetes:443/proxy/version"])
        {
            curl.args(["-o", "/dev/null"]).arg(format!("https://127.0.0.1:6443{base}/{path}?n=[1-20]"));
        }
        let said = String::from_utf8(curl.output().unwrap().stdout).unwrap();
        for (code, count) in [("200", 4 * 20), ("503", 2 * 20)] {
            assert_eq!(said.lines().filter(|line| *line == code).count(), count, "{said}");
        }
        // A redirection shows with curl, and to whom it applies.
        for (method, expected) in [("GET", "301"), ("HEAD", "301"), ("POST", "200"), ("PUT", "200"), ("DELETE", "200")]
        {
            let mut curl = self.curl();
            curl.args(["-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "-X", method]);
            if method == "HEAD" {
                curl.arg("--head");
            }
            let url = format!("https://127.0.0.1:6443{base}/pods/one:3000/proxy");
            let said = describe(&curl.arg(format!("{url}?q=1")).output().unwrap());
            assert!(said.contains(expected), "{method}: {said}");
            assert_eq!(said.contains(&format!("{url}/?q=1")), expected == "301", "{method}: {said}");
        }
    }

    /// As the administrator, on the machine.
    fn curl(&self) -> Command {
        let mut curl = self.cluster.host.command("curl");
        curl.args(["-sk", "--cert"]).arg(self.cluster.path("data/pki/admin.crt"));
        curl.arg("--key").arg(self.cluster.path("data/pki/admin.key"));
        curl
    }

    /// Method, path, query and body arrive; links in the page lead through the proxy again.
    fn requests_pass_the_api_server_unchanged(&self) {
        inside_pods::serve_mirror(&self.netns_of("two"), 9080);
        let proxy = "/api/v1/namespaces/default/pods/two:9080/proxy";
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let mut curl = self.curl();
            curl.args(["-X", method, "--data-binary", "a body", &format!("https://127.0.0.1:6443{proxy}/a/b?c=d%20e")]);
            let page = String::from_utf8(curl.output().unwrap().stdout).unwrap();
            assert!(page.contains(&format!("{method} /a/b?c=d%20e: a body")), "{method}: {page}");
            assert!(page.contains(&format!("<a href=\"{proxy}/rewriteme\">")), "{method}: {page}");
        }
    }

    fn ports_are_forwarded_from_every_node(&self) {
        for (pod, port) in [("one", 3000), ("two", 3001)] {
            let mut forward = self.cluster.cox("kubectl");
            forward.args(["port-forward", &format!("pod/{pod}"), &format!(":{port}")]).stdout(Stdio::piped());
            let mut child = forward.spawn().unwrap();
            // Open to the end: it tells of every connection.
            let mut told = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            told.read_line(&mut line).unwrap();
            // "Forwarding from 127.0.0.1:40001 -> 3000"
            let local = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).map(str::to_owned);
            let mut curl = self.cluster.host.command("curl");
            let url = format!("http://{}/", local.unwrap_or_default());
            let answer = describe(&curl.args(["-sS", "-m", "20", &url]).output().unwrap());
            child.kill().unwrap();
            child.wait().unwrap();
            drop(told);
            assert!(answer.contains("Hello from"), "{pod}: {line}{answer}");
        }
    }
}
