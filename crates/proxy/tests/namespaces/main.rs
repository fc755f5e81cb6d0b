//! The proxy on a real kernel: a host namespace with a bridge, pods behind it, an outside neighbour, and a small API that
//! the test changes. Everything lives in network namespaces of the test's own, with no way out.
#![allow(clippy::unwrap_used)]

mod api;
mod network;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use network::{Api, HEALTHZ, Lab, METRICS, ask_tcp, ask_tcp_within, ask_udp, get};
use proxy::DetectLocal;

/// Long enough for a busy machine; nothing waits for it when all is well.
const DEADLINE: Duration = Duration::from_secs(20);
/// So many changes of rules meet a packet on its way through them.
const CHANGES: usize = 1000;

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec})
}

fn slice(service: &str, ports: Value, endpoints: &[(&str, &str)]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(addr, node)| json!({"addresses": [addr], "nodeName": node, "conditions": {"ready": true}}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": service, "namespace": "default", "uid": service, "labels": {"kubernetes.io/service-name": service}},
        "ports": ports, "endpoints": endpoints,
    })
}

fn http() -> Value {
    json!([{"name": "", "port": 80, "protocol": "TCP"}])
}

/// Asks until the answer is as wanted.
fn eventually<T: std::fmt::Debug>(what: &str, mut attempt: impl FnMut() -> T, is_wanted: impl Fn(&T) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let seen = attempt();
        if is_wanted(&seen) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {seen:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The pods that answer over many connections.
fn answering(times: usize, mut ask: impl FnMut() -> Result<String, String>) -> BTreeSet<String> {
    (0..times).map(|_| ask().map_or_else(|e| e, |text| text.split(' ').next().unwrap_or_default().to_owned())).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Every pod answers all the time; what clients could notice is the change of rules alone.
#[test]
fn nobody_is_refused_while_endpoints_change() {
    Lab::run_as_written(|lab| {
        let api = Api::default();
        let ports = json!([{"port": 8080, "targetPort": 80, "nodePort": 30080}]);
        let spec = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort", "ports": ports});
        let pods = [("10.42.0.2", "a"), ("10.42.0.3", "a"), ("10.42.0.4", "a")];
        api.put("services", service("web", spec));
        api.put("endpointslices", slice("web", http(), &pods));
        let _proxy = lab.proxy(&api);
        eventually("an answer", || ask_tcp(Some(lab.outside()), "192.0.2.1:30080"), Result::is_ok);

        let is_over = CancellationToken::new();
        let load = |target: &str| {
            setns(lab.outside(), CloneFlags::CLONE_NEWNET).unwrap();
            let (mut answered, mut failed) = (0, Vec::new());
            while !is_over.is_cancelled() {
                let asked = Instant::now();
                match ask_tcp_within(None, target, DEADLINE) {
                    Ok(_) => answered += 1,
                    Err(error) => failed.push(format!("{target} after {:?}: {error}", asked.elapsed())),
                }
            }
            (answered, failed)
        };
        let load = &load;
        std::thread::scope(|scope| {
            // Also when this thread panics.
            let _end = is_over.clone().drop_guard();
            let clients = ["192.0.2.1:30080", "10.43.0.9:8080"].map(|target| scope.spawn(move || load(target)));
            for change in 0..CHANGES {
                api.put("endpointslices", slice("web", http(), &pods[..1 + change % 3]));
                std::thread::sleep(Duration::from_millis(5));
            }
            is_over.cancel();
            for client in clients {
                let (answered, failed) = client.join().unwrap();
                assert!(answered > 10 && failed.is_empty(), "{answered} answered, failed: {failed:?}");
            }
        });
    });
}

/// Walk 11.2.
#[test]
fn cluster_ips_node_ports_and_their_policies() {
    Lab::run(|lab| {
        let api = Api::default();
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort",
            "ports": [{"port": 8080, "targetPort": 80, "nodePort": 30080}], "externalIPs": ["203.0.113.7"]}),
            ),
        );
        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "a"), ("10.42.0.3", "a")]));
        let _proxy = lab.proxy(&api);

        // From the host, from a pod, from outside through the node port, and through an external address.
        let host = || ask_tcp(None, "10.43.0.9:8080");
        eventually("host to cluster ip", host, Result::is_ok);
        assert_eq!(answering(40, host), names(&["p2", "p3"]));
        let pod = || ask_tcp(Some(lab.pod(4)), "10.43.0.9:8080");
        assert_eq!(answering(40, pod), names(&["p2", "p3"]));
        assert!(pod().unwrap().ends_with(" 10.42.0.4"), "a pod keeps its address: {:?}", pod());
        let outside = || ask_tcp(Some(lab.outside()), "192.0.2.1:30080");
        assert_eq!(answering(40, outside), names(&["p2", "p3"]));
        // Endpoints are chosen at random: of so many connections, all to one of two is as good as never.
        assert_eq!(answering(40, || ask_tcp(Some(lab.outside()), "203.0.113.7:8080")), names(&["p2", "p3"]));
        // The kernel routes no packet from `::1` to another link.
        assert!(lab.is_v6() || ask_tcp(None, "127.0.0.1:30080").is_ok(), "localhost node port");
        assert!(ask_tcp(Some(lab.pod(4)), "192.0.2.1:30080").is_ok(), "node port from a pod");

        // A pod that reaches itself through its service sees another address than its own.
        let hairpin = || ask_tcp(Some(lab.pod(2)), "10.43.0.9:8080");
        eventually("hairpin", hairpin, |answer| answer.as_deref() == Ok("p2 10.42.0.1"));

        // Addresses of the range that nobody has are refused at once, not lost. In IPv6 it is the route that refuses packets of pods.
        let is_refused = |error: &str| error.contains("refused") || (lab.is_v6() && error.contains("unreachable"));
        for target in ["10.43.0.9:81", "10.43.9.9:80"] {
            for from in [None, Some(lab.pod(4))] {
                let error = ask_tcp(from, target).unwrap_err();
                assert!(is_refused(&error), "{target}: {error}");
            }
        }

        // Local policy: outside addresses are kept, and a node without endpoints does not answer.
        let local = |endpoints: &[(&str, &str)]| {
            // First: an outside address that is kept then shows that both changes are in the kernel.
            api.put("endpointslices", slice("web", http(), endpoints));
            api.put(
                "services",
                service(
                    "web",
                    json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort",
                "externalTrafficPolicy": "Local", "ports": [{"port": 8080, "targetPort": 80, "nodePort": 30080}]}),
                ),
            );
        };
        local(&[("10.42.0.2", "b"), ("10.42.0.3", "a")]);
        eventually("local policy", outside, |answer| answer.as_deref() == Ok("p3 192.0.2.2"));
        assert_eq!(answering(20, outside), names(&["p3"]));
        assert_eq!(answering(40, || ask_tcp(Some(lab.pod(4)), "192.0.2.1:30080")), names(&["p2", "p3"]));
        local(&[("10.42.0.2", "b")]);
        eventually("no local endpoint", outside, |a| a.as_ref().is_err_and(|error| error.contains("timed out")));

        // No endpoints: refused everywhere. Gone: nothing left of it.
        api.put("endpointslices", slice("web", http(), &[]));
        for ask in [&host as &dyn Fn() -> Result<String, String>, &pod, &outside] {
            eventually("refused", ask, |a| a.as_ref().is_err_and(|error| is_refused(error)));
        }
        api.delete("services", "web");
        eventually("gone", || lab.rules(), |rules| !rules.contains("10.43.0.9 ") && !rules.contains("30080"));
    });
}

#[test]
fn session_affinity_keeps_and_releases_clients() {
    Lab::run(|lab| {
        let api = Api::default();
        let web = |affinity: &str| {
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort",
            "sessionAffinity": affinity, "ports": [{"port": 8080, "targetPort": 80, "nodePort": 30080}]}),
            )
        };
        let all = [("10.42.0.2", "a"), ("10.42.0.3", "a"), ("10.42.0.4", "a")];
        api.put("services", web("ClientIP"));
        api.put("endpointslices", slice("web", http(), &all));
        let _proxy = lab.proxy(&api);
        let ask = || ask_tcp(Some(lab.pod(5)), "10.43.0.9:8080");
        eventually("first answer", ask, Result::is_ok);
        let kept = answering(15, ask);
        assert_eq!(kept.len(), 1, "{kept:?}");
        let through_the_node = || ask_tcp(Some(lab.outside()), "192.0.2.1:30080");
        assert_eq!(answering(15, through_the_node).len(), 1, "a node port keeps its clients too");
        // Its endpoint goes: the client moves on, and stays there.
        let name = kept.first().unwrap().clone();
        let left: Vec<_> = all.iter().copied().filter(|(addr, _)| format!("p{}", &addr[8..]) != name).collect();
        api.put("endpointslices", slice("web", http(), &left));
        eventually("moved", || answering(5, ask), |seen| !seen.contains(&name) && seen.len() == 1);
        api.put("services", web("None"));
        eventually("spread", || answering(20, ask), |seen| seen.len() == 2);
        eventually("spread from outside", || answering(20, through_the_node), |seen| seen.len() == 2);
    });
}

#[test]
fn session_affinity_ends_when_a_client_is_silent() {
    Lab::run(|lab| {
        let api = Api::default();
        let affinity = json!({"clientIP": {"timeoutSeconds": 1}});
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "sessionAffinity": "ClientIP",
                    "sessionAffinityConfig": affinity, "ports": [{"port": 8080, "targetPort": 80}]}),
            ),
        );
        let all = [("10.42.0.2", "a"), ("10.42.0.3", "a"), ("10.42.0.4", "a")];
        api.put("endpointslices", slice("web", http(), &all));
        let _proxy = lab.proxy(&api);
        let ask = |client: u8| ask_tcp(Some(lab.pod(client)), "10.43.0.9:8080");
        // What each client got, by the name of the pod.
        let round = || -> Vec<String> { (2..=5).flat_map(|client| answering(1, || ask(client))).collect() };
        eventually("first answer", || ask(5), Result::is_ok);
        let first = round();
        // Being silent is the subject here: after it each client may get any of the three.
        let after_silence = || {
            std::thread::sleep(Duration::from_millis(1200));
            round()
        };
        eventually("another pod", after_silence, |answers| *answers != first);
    });
}

/// Many machines have a service whose restart flushes all rules before it reads its own.
#[test]
fn rules_that_somebody_removes_come_back() {
    Lab::run(|lab| {
        let api = Api::default();
        let spec =
            json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "ports": [{"port": 8080, "targetPort": 80}]});
        api.put("services", service("web", spec));
        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "a")]));
        let _proxy = lab.proxy(&api);
        let ask = || ask_tcp(Some(lab.pod(5)), "10.43.0.9:8080");
        eventually("first answer", ask, Result::is_ok);
        let mut tables = netlink::nft::tables().unwrap();
        tables.retain(|table| table.name == "cox-proxy");
        netlink::nft::delete_tables(&tables).unwrap();
        eventually("answer", ask, Result::is_ok);
    });
}

#[test]
fn endpoints_come_from_several_slices_with_several_ports() {
    Lab::run(|lab| {
        let api = Api::default();
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "ports": [
                    {"name": "http", "port": 80}, {"name": "alt", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]}),
            ),
        );
        let ports =
            json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
        let by_hand = |name: &str, ports: Value, address: &str| {
            let mut slice = slice("web", ports, &[(address, "a")]);
            slice["metadata"]["name"] = json!(name);
            slice["metadata"]["uid"] = json!(name);
            slice
        };
        api.put("endpointslices", by_hand("web-1", ports.clone(), "10.42.0.2"));
        api.put("endpointslices", by_hand("web-2", ports, "10.42.0.3"));
        api.put(
            "endpointslices",
            by_hand("web-3", json!([{"name": "alt", "port": 80, "protocol": "TCP"}]), "10.42.0.4"),
        );
        let _proxy = lab.proxy(&api);
        for (target, expected) in [("10.43.0.9:80", &["p2", "p3"][..]), ("10.43.0.9:8080", &["p4"])] {
            for from in [None, Some(lab.pod(5))] {
                let pods = || answering(30, || ask_tcp(from, target));
                eventually(target, pods, |seen| *seen == names(expected));
            }
        }
        let datagrams = || answering(30, || ask_udp(lab.pod(5), "10.43.0.9:53")());
        eventually("udp", datagrams, |seen| *seen == names(&["p2", "p3"]));
        // A slice goes, and what it brought with it; the others stay.
        api.delete("endpointslices", "web-1");
        eventually("one slice less", || answering(30, || ask_tcp(None, "10.43.0.9:80")), |s| *s == names(&["p3"]));
        assert_eq!(answering(5, || ask_tcp(None, "10.43.0.9:8080")), names(&["p4"]));
    });
}

#[test]
fn a_node_serves_its_own_clients_and_says_whether_it_can() {
    Lab::run(|lab| {
        let api = Api::default();
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "LoadBalancer",
                    "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
                    "ports": [{"port": 80, "nodePort": 30080}]}),
            ),
        );
        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "b"), ("10.42.0.3", "a")]));
        let _proxy = lab.proxy(&api);
        let ask = || ask_tcp(Some(lab.pod(5)), "10.43.0.9:80");
        eventually("the node's own pod", || answering(20, ask), |seen| *seen == names(&["p3"]));
        let health = || get("127.0.0.1:31000", "/healthz").unwrap_or_else(|error| error);
        eventually("healthy", health, |text| text.starts_with("HTTP/1.1 200") && text.contains("\"localEndpoints\":1"));
        assert!(health().contains("X-Load-Balancing-Endpoint-Weight: 1\r\n"), "{}", health());

        // On its way out and still serving: better than nothing, as long as there is nothing better.
        let mut leaving = slice("web", http(), &[("10.42.0.2", "b"), ("10.42.0.4", "a")]);
        leaving["endpoints"][1]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        api.put("endpointslices", leaving);
        eventually("a pod that is leaving", || answering(20, ask), |seen| *seen == names(&["p4"]));

        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "b")]));
        eventually("unhealthy", health, |text| {
            text.starts_with("HTTP/1.1 503") && text.contains("\"localEndpoints\":0")
        });
        eventually("nobody here", ask, Result::is_err);
    });
}

#[test]
fn udp_clients_follow_their_service() {
    Lab::run(|lab| {
        let api = Api::default();
        let ports = json!([{"name": "", "port": 53, "protocol": "UDP"}]);
        api.put(
            "services",
            service(
                "dns",
                json!({"clusterIP": "10.43.0.10", "clusterIPs": ["10.43.0.10"],
            "ports": [{"port": 53, "protocol": "UDP"}]}),
            ),
        );
        api.put("endpointslices", slice("dns", ports.clone(), &[("10.42.0.2", "a")]));
        let _proxy = lab.proxy(&api);
        // One socket, so one flow: without forgetting it would stick to the first endpoint.
        let mut client = ask_udp(lab.pod(4), "10.43.0.10:53");
        eventually("first", &mut client, |a| a.as_deref() == Ok("p2"));
        // While it ends it still answers whom it answered before; others go elsewhere.
        let mut ending = slice("dns", ports.clone(), &[("10.42.0.2", "a"), ("10.42.0.3", "a")]);
        ending["endpoints"][0]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        api.put("endpointslices", ending);
        let others = || answering(10, || ask_udp(lab.pod(4), "10.43.0.10:53")());
        eventually("others", others, |seen| *seen == names(&["p3"]));
        eventually("while it ends", &mut client, |a| a.as_deref() == Ok("p2"));
        api.put("endpointslices", slice("dns", ports, &[("10.42.0.3", "a")]));
        eventually("second", &mut client, |a| a.as_deref() == Ok("p3"));
    });
}

#[test]
fn rolling_endpoints_lose_no_request() {
    Lab::run(|lab| {
        let api = Api::default();
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"],
            "ports": [{"port": 8080, "targetPort": 80}]}),
            ),
        );
        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "a")]));
        let _proxy = lab.proxy(&api);
        let ask = || ask_tcp(Some(lab.pod(5)), "10.43.0.9:8080");
        eventually("first answer", ask, Result::is_ok);
        let sets: [&[(&str, &str)]; 4] = [
            &[("10.42.0.2", "a"), ("10.42.0.3", "a")],
            &[("10.42.0.3", "a"), ("10.42.0.4", "a")],
            &[("10.42.0.4", "a")],
            &[("10.42.0.2", "a"), ("10.42.0.3", "a"), ("10.42.0.4", "a")],
        ];
        for i in 0..200 {
            if i % 10 == 0 {
                api.put("endpointslices", slice("web", http(), sets[i / 10 % sets.len()]));
            }
            ask().unwrap_or_else(|error| panic!("request {i}: {error}"));
        }
    });
}

#[test]
fn source_ranges_and_removed_protocols() {
    Lab::run(|lab| {
        let api = Api::default();
        let mut web = service(
            "web",
            json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "LoadBalancer",
                "loadBalancerSourceRanges": ["203.0.113.0/24"],
                "ports": [{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]}),
        );
        web["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.9"}]}});
        let ports = json!([{"name": "t", "port": 80, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]);
        api.put("services", web.clone());
        api.put("endpointslices", slice("web", ports, &[("10.42.0.2", "a")]));
        let _proxy = lab.proxy(&api);

        // One port number, two protocols; the load balancer's address only for those who may.
        eventually("tcp", || ask_tcp(Some(lab.pod(4)), "10.43.0.9:53"), Result::is_ok);
        let mut udp = ask_udp(lab.pod(4), "10.43.0.9:53");
        eventually("udp", &mut udp, Result::is_ok);
        let balanced = || ask_tcp(Some(lab.outside()), "198.51.100.9:53");
        assert!(balanced().is_err(), "outside the range");
        web["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.0/24", "192.0.2.0/24"]);
        api.put("services", web.clone());
        eventually("inside the range", balanced, Result::is_ok);

        // A protocol that is taken away stops; the other goes on.
        web["spec"]["ports"] = json!([{"name": "t", "port": 53, "protocol": "TCP"}]);
        api.put("services", web);
        eventually("no more udp", || ask_udp(lab.pod(4), "10.43.0.9:53")(), Result::is_err);
        assert!(ask_tcp(Some(lab.pod(4)), "10.43.0.9:53").is_ok());
    });
}

#[test]
fn both_families_of_a_service() {
    Lab::run_as_written(|lab| {
        let api = Api::default();
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "type": "NodePort",
                    "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
                    "ports": [{"port": 8080, "targetPort": 80, "nodePort": 30080}]}),
            ),
        );
        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "a")]));
        let mut six = slice("web", http(), &[("fd42::3", "a")]);
        six["metadata"]["name"] = json!("web-6");
        six["addressType"] = json!("IPv6");
        api.put("endpointslices", six);
        let _proxy = lab.proxy(&api);
        for (target, expected) in [("10.43.0.9:8080", "p2"), ("[fd43::9]:8080", "p3"), ("[fd42::1]:30080", "p3")] {
            for from in [None, Some(lab.pod(4))] {
                let ask = || ask_tcp(from, target);
                eventually(target, ask, |answer| answer.as_ref().is_ok_and(|text| text.starts_with(expected)));
            }
        }
        // What nobody serves is refused in this family too, and one's own service is reached.
        let error = ask_tcp(Some(lab.pod(4)), "[fd43::77]:80").unwrap_err();
        assert!(error.contains("refused") || error.contains("unreachable"), "{error}");
        eventually("hairpin", || ask_tcp(Some(lab.pod(3)), "[fd43::9]:8080"), |a| a.as_deref() == Ok("p3 fd42::1"));
    });
}

#[test]
fn pods_and_node_addresses_are_known_in_other_ways() {
    Lab::run(|lab| {
        let api = Api::default();
        api.put(
            "nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "uid": "a"}, "spec": {"podCIDRs": ["10.42.0.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "a"}]}}),
        );
        api.put(
            "services",
            service(
                "web",
                json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "type": "NodePort",
                    "ports": [{"port": 8080, "targetPort": 80, "nodePort": 30080}]}),
            ),
        );
        api.put("endpointslices", slice("web", http(), &[("10.42.0.2", "a")]));
        for detect in [
            DetectLocal::NodeCidr,
            DetectLocal::BridgeInterface("br0".into()),
            DetectLocal::InterfaceNamePrefix("br".into()),
        ] {
            let _proxy = lab.proxy_with(&api, |config| {
                config.cluster_cidrs.clear();
                config.detect_local = detect.clone();
                config.node_port_addresses = vec!["primary".into()];
            });
            // A pod keeps its address; the machine, which is no pod, is reached through the node.
            let pod = || ask_tcp(Some(lab.pod(4)), "10.43.0.9:8080");
            eventually("a pod", pod, |answer| answer.as_deref() == Ok("p2 10.42.0.4"));
            eventually("the host", || ask_tcp(None, "10.43.0.9:8080"), Result::is_ok);
            // The node's own address has the port, and no other of its addresses.
            eventually("primary", || ask_tcp(Some(lab.outside()), "192.0.2.1:30080"), Result::is_ok);
            assert!(ask_tcp(Some(lab.pod(4)), "10.42.0.1:30080").is_err());
        }
    });
}

#[test]
fn health_and_metrics_have_upstreams_names() {
    Lab::run_as_written(|lab| {
        let api = Api::default();
        api.put("services", service("web", json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}]})));
        // Others have rules here too.
        let foreign = [
            "nft add table ip foreign",
            "nft add chain ip foreign c",
            "nft add rule ip foreign c drop",
            "iptables -A FORWARD -s 203.0.113.9 -j ACCEPT",
            "iptables -t nat -A PREROUTING -s 203.0.113.9 -j ACCEPT",
        ];
        for command in foreign {
            let mut words = command.split(' ');
            let output = std::process::Command::new(words.next().unwrap()).args(words).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let listed = || {
            let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let are_left_alone =
            |rules: &str| rules.contains("table ip foreign") && rules.matches("203.0.113.9").count() == 2;
        let running = lab.proxy(&api);
        eventually("healthy", || get(HEALTHZ, "/healthz"), |a| a.as_ref().is_ok_and(|a| a.starts_with("HTTP/1.1 200")));
        let health = get(HEALTHZ, "/healthz").unwrap();
        assert!(health.contains("\"nodeEligible\":true") && health.contains("\"lastUpdated\""), "{health}");
        let text = get(METRICS, "/metrics").unwrap();
        for name in [
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0",
            "kubeproxy_proxy_healthz_total{code=\"200\"}",
        ] {
            assert!(text.contains(name), "{name} in\n{text}");
        }
        let component = client::metrics::upstream::Component::Proxy;
        assert_eq!(client::metrics::upstream::problems(component, &text), Vec::<String>::new());
        let mode = get(METRICS, "/proxyMode").unwrap();
        assert!(mode.ends_with("tables"), "{mode}");
        // The checks of this port, once somebody has had them made.
        assert!(get(METRICS, "/healthz").unwrap().ends_with("ok"));
        let slis = get(METRICS, "/metrics/slis").unwrap();
        assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{slis}");
        let component = client::metrics::upstream::Component::Slis;
        assert_eq!(client::metrics::upstream::problems(component, &slis), Vec::<String>::new());

        // Rules outlive the proxy, and clean-up takes them away, ours alone.
        drop(running);
        assert!(lab.rules().contains("10.43.0.9") && are_left_alone(&listed()), "{}", listed());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(proxy::cleanup()).unwrap();
        let left = listed();
        assert!(are_left_alone(&left) && !left.contains("cox-proxy") && !left.contains("KUBE-"), "{left}");
    });
}
