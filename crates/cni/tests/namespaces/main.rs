//! The plug-ins on a real kernel, each case run twice: with the standard plug-ins (Debian's `containernetworking-plugins`)
//! and with ours, and compared: links, addresses, routes, leases, masquerading, host ports. Every case has a host namespace of
//! its own, without a way out.
#![allow(clippy::unwrap_used)]

mod lab;
mod spoofing;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cni::config::NetworkConfig;
use cni::{AttachmentArgs, Network, PortMapping, Status};
use serde_json::{Value, json};

use lab::{Lab, ours, standard};

/// What can be compared: no indexes, hardware addresses or random names.
#[derive(Debug, PartialEq)]
struct Seen {
    /// None where the kernel cannot do what is asked (VLANs, perhaps): then neither can.
    result: Option<Value>,
    pod_loopback_is_up: bool,
    pod_addresses: Vec<String>,
    pod_routes: Vec<String>,
    host_addresses: Vec<String>,
    leases: Vec<String>,
    reaches_outside_as: Option<String>,
    after_delete: Vec<String>,
}

fn strip(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().into_iter().flatten() {
        interface.as_object_mut().unwrap().remove("mac");
        interface.as_object_mut().unwrap().remove("mtu");
        // The rest of these names is random or a hash.
        for prefix in ["veth", "bwp"] {
            if interface["name"].as_str().unwrap().starts_with(prefix) {
                interface["name"] = json!(prefix);
            }
        }
        if interface.get("sandbox").is_some_and(|sandbox| sandbox != "") {
            interface["sandbox"] = json!("pod");
        }
    }
    result
}

fn network(lab: &Lab, bin: &Path, conflist: &Value) -> Network {
    let text = conflist.to_string().replace("@dir@", lab.leases().to_str().unwrap());
    let text = text.replace("@resolv.conf@", lab.resolv_conf().to_str().unwrap());
    Network::new(NetworkConfig::parse(&text, true).unwrap(), [bin.to_owned()]).cache_dir(lab.cache())
}

fn observe(bin: &Path, conflist: &Value) -> Seen {
    Lab::run(|lab| {
        let network = network(lab, bin, conflist);
        let args = AttachmentArgs::default();
        let netns = lab.pod_path();
        let result = lab.block_on(network.add("c1", &netns, "eth0", &args));
        let reaches_outside_as = lab.source_seen_outside();
        // The standard ones' CHECK stumbles over routes without a gateway and over families that are not there.
        let has_check = cni::result::version_at_least(&network.config().cni_version, "0.4.0");
        if bin == ours() && has_check && result.is_ok() {
            lab.block_on(network.check("c1", &netns, "eth0", &args)).unwrap();
        }
        let mut seen = Seen {
            result: result.ok().map(|result| strip(result.to_version("1.0.0"))),
            pod_loopback_is_up: lab.pod_loopback_is_up(),
            pod_addresses: lab.pod_addresses(),
            pod_routes: lab.pod_routes(),
            host_addresses: lab.host_addresses(),
            leases: lab.lease_files(),
            reaches_outside_as,
            after_delete: Vec::new(),
        };
        // Twice: deleting what is gone is no error.
        for _ in 0..2 {
            lab.block_on(network.del("c1", &netns, "eth0", &args)).unwrap();
        }
        assert!(lab.block_on(network.cached("c1", "eth0")).unwrap().is_none());
        seen.after_delete = lab.pod_addresses().into_iter().chain(lab.lease_files()).collect();
        seen
    })
}

fn with(mut object: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

fn host_local(extra: Value) -> Value {
    with(json!({"type": "host-local", "dataDir": "@dir@"}), extra)
}

/// One range and a default route.
fn v4() -> Value {
    host_local(json!({"ranges": [[{"subnet": "10.42.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}))
}

fn v6() -> Value {
    host_local(json!({"ranges": [[{"subnet": "fd42::/64"}]], "routes": [{"dst": "::/0"}]}))
}

fn v4_and_v6() -> Value {
    host_local(json!({"ranges": [[{"subnet": "10.42.0.0/24"}], [{"subnet": "fd42::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}))
}

fn list(plugins: &[Value]) -> Value {
    json!({"cniVersion": "0.4.0", "name": "net", "plugins": plugins})
}

fn bridge(extra: Value, ipam: Value) -> Value {
    with(json!({"type": "bridge", "bridge": "cnio0", "ipam": ipam}), extra)
}

/// Walk 9.2.
#[test]
fn ours_do_what_the_standard_ones_do() {
    let gateway = || bridge(json!({"isGateway": true}), v4());
    let tuning = json!({"type": "tuning", "dataDir": "@dir@/tuning", "sysctl": {"net.ipv4.conf.all.log_martians": "1"}, "mtu": 1400});
    let both = json!({"ranges": [[{"subnet": "10.42.0.0/24"}], [{"subnet": "fd42::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let bounds = json!({"ranges": [[{"subnet": "10.42.0.0/24", "rangeStart": "10.42.0.100", "rangeEnd": "10.42.0.110",
        "gateway": "10.42.0.254"}]], "routes": [{"dst": "192.0.2.0/24"}, {"dst": "0.0.0.0/0", "gw": "10.42.0.254"}]});
    let limits = json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000});
    let both_limits = with(limits.clone(), json!({"egressRate": 8_000_000, "egressBurst": 8_000_000}));
    let sets = json!({"ranges": [[{"subnet": "10.42.0.0/24", "rangeStart": "10.42.0.9", "rangeEnd": "10.42.0.9"},
        {"subnet": "10.42.1.0/24"}], [{"subnet": "10.44.0.0/24"}]]});
    let asked = json!({"isGateway": true, "args": {"cni": {"ips": ["10.42.0.77"]}}});
    let attributes = json!({"type": "tuning", "dataDir": "@dir@/tuning", "promisc": true, "allmulti": true});
    let seed = with(list(&[bridge(json!({"isGateway": true, "ipMasq": true}), v4())]), json!({"cniVersion": "0.3.1"}));
    for (name, conflist) in [
        ("the seeds' configuration", seed),
        ("a plain bridge", list(&[bridge(json!({}), v4())])),
        (
            "a default gateway",
            list(&[bridge(json!({"isDefaultGateway": true}), host_local(json!({"subnet": "10.42.0.0/24"})))]),
        ),
        ("hairpin and mtu", list(&[bridge(json!({"isGateway": true, "hairpinMode": true, "mtu": 1400}), v4())])),
        ("promiscuous mode", list(&[bridge(json!({"isGateway": true, "promiscMode": true}), v4())])),
        ("a VLAN", list(&[bridge(json!({"isGateway": true, "vlan": 100}), v4())])),
        ("no addresses", list(&[bridge(json!({}), json!({}))])),
        ("an address that is asked for", list(&[bridge(asked, v4())])),
        ("several ranges", list(&[bridge(json!({}), host_local(sets))])),
        (
            "resolvers of the network",
            list(&[bridge(json!({"dns": {"nameservers": ["192.0.2.53"], "search": ["a.test"]}}), v4())]),
        ),
        ("loopback", list(&[json!({"type": "loopback"})])),
        ("IPv6 alone", list(&[bridge(json!({"isGateway": true, "ipMasq": true}), v6())])),
        ("two families", list(&[bridge(json!({"isGateway": true, "ipMasq": true}), host_local(both.clone()))])),
        ("bounds and gateway", list(&[bridge(json!({"isGateway": true}), host_local(bounds))])),
        (
            "point to point, two families, and resolvers from a file",
            list(&[
                json!({"type": "ptp", "ipam": host_local(with(both.clone(), json!({"resolvConf": "@resolv.conf@"})))}),
            ]),
        ),
        ("point to point", list(&[json!({"type": "ptp", "ipMasq": true, "ipam": v4()})])),
        ("point to point, IPv6 alone", list(&[json!({"type": "ptp", "ipMasq": true, "ipam": v6()})])),
        ("tuning", list(&[gateway(), tuning])),
        ("tuned attributes", list(&[gateway(), attributes])),
        ("bandwidth", list(&[gateway(), limits])),
        ("bandwidth both ways", list(&[gateway(), both_limits])),
        ("firewall", list(&[gateway(), json!({"type": "firewall"})])),
        ("firewall between bridges", list(&[gateway(), json!({"type": "firewall", "ingressPolicy": "same-bridge"})])),
    ] {
        let seen = observe(ours(), &conflist);
        assert_eq!(seen, observe(standard(), &conflist), "{name}");
        assert!(seen.result.is_some() || name == "a VLAN", "{name}");
    }
}

/// Walk 9.1.
#[test]
fn mistakes_have_the_same_codes() {
    const CALL: &[(&str, &str)] = &[("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/nowhere"), ("CNI_IFNAME", "eth0")];
    let config = r#"{"cniVersion": "0.4.0", "name": "n", "type": "bridge", "ipam": {}}"#;
    for (command, env, stdin, code) in [
        ("ADD", &[][..], config, 4),
        ("ADD", &CALL[..1], config, 4),
        ("SING", CALL, config, 4),
        ("ADD", &[("CNI_CONTAINERID", "../x"), CALL[1], CALL[2]], config, 4),
        ("ADD", &[CALL[0], CALL[1], ("CNI_IFNAME", "a-name-that-is-too-long")], config, 4),
        ("ADD", CALL, "{", 6),
        ("ADD", CALL, r#"{"cniVersion": "0.4.0", "type": "bridge"}"#, 7),
        ("ADD", CALL, r#"{"cniVersion": "0.4.0", "name": "a/b", "type": "bridge"}"#, 7),
        ("ADD", CALL, r#"{"cniVersion": "9.0.0", "name": "n", "type": "bridge"}"#, 1),
        ("CHECK", CALL, r#"{"cniVersion": "0.3.1", "name": "n", "type": "bridge", "ipam": {}}"#, 1),
    ] {
        for bin in [standard(), ours()] {
            let said = lab::call(&bin.join("bridge"), command, env, stdin);
            assert_eq!(said["code"], code, "{command} {stdin} with {}: {said}", bin.display());
        }
    }
}

#[test]
fn udp_clients_of_a_host_port_follow_its_pod() {
    for bin in [standard(), ours()] {
        Lab::run(|lab| {
            let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
            let network = network(lab, bin, &list(&[bridge(json!({"isGateway": true}), v4_and_v6()), portmap]));
            let mapping = |host_ip: &str| PortMapping {
                host_port: 8080,
                container_port: 53,
                protocol: "udp".into(),
                host_ip: host_ip.into(),
            };
            let mappings = [mapping("192.0.2.1"), mapping("2001:db8:2::1")];
            let args = AttachmentArgs::for_pod("ns", "pod", "uid", "c1").port_mappings(&mappings);
            let netns = lab.pod_path();
            // One socket, so one flow: unless it is forgotten it leads to the address of the first pod for ever.
            let clients = ["192.0.2.1:8080", "[2001:db8:2::1]:8080"].map(|target| lab.udp_client_outside(target));
            // What the standard ones do in the other family is theirs to say.
            let clients = if bin == ours() { &clients[..] } else { &clients[..1] };
            for id in ["c1", "c2"] {
                let result = lab.block_on(network.add(id, &netns, "eth0", &args)).unwrap();
                lab.serve_in_pod();
                for client in clients {
                    assert!(lab::is_answered(client), "{}: {id} at {:?}", bin.display(), result.ips);
                }
                lab.block_on(network.del(id, &netns, "eth0", &args)).unwrap();
            }
        });
    }
}

#[test]
fn host_ports_lead_to_the_pod_from_everywhere() {
    for bin in [standard(), ours()] {
        Lab::run(|lab| {
            let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
            let network = network(
                lab,
                bin,
                &list(&[bridge(json!({"isGateway": true, "hairpinMode": true}), v4_and_v6()), portmap]),
            );
            let mapping = |port: u16, host_ip: &str| PortMapping {
                host_port: port,
                container_port: 80,
                protocol: "tcp".into(),
                host_ip: host_ip.into(),
            };
            let mappings = [mapping(8080, ""), mapping(8081, "127.0.0.1")];
            let args = AttachmentArgs::for_pod("ns", "pod", "uid", "c1").port_mappings(&mappings);
            let netns = lab.pod_path();
            lab.block_on(network.add("c1", &netns, "eth0", &args)).unwrap();
            lab.serve_in_pod();
            let (is_ours, bin) = (bin == ours(), bin.display());
            assert!(lab.connects_from_host("127.0.0.1:8080"), "{bin}: localhost");
            assert!(lab.connects_from_host("192.0.2.1:8080"), "{bin}: host");
            assert!(lab.connects_from_outside("192.0.2.1:8080"), "{bin}: outside");
            assert!(lab.connects_from_pod("192.0.2.1:8080"), "{bin}: hairpin");
            assert!(lab.connects_from_host("127.0.0.1:8081"), "{bin}: bound to localhost");
            assert!(!lab.connects_from_outside("192.0.2.1:8081"), "{bin}: bound to localhost, from outside");
            if is_ours {
                assert!(lab.connects_from_host("[2001:db8:2::1]:8080"), "IPv6: host");
                assert!(lab.connects_from_outside("[2001:db8:2::1]:8080"), "IPv6: outside");
                assert!(lab.connects_from_pod("[2001:db8:2::1]:8080"), "IPv6: hairpin");
                assert!(!lab.connects_from_outside("[2001:db8:2::1]:8081"), "IPv6: bound to localhost");
                lab.block_on(network.check("c1", &netns, "eth0", &args)).unwrap();
            }
            lab.block_on(network.del("c1", &netns, "eth0", &args)).unwrap();
            assert!(!lab.connects_from_host("192.0.2.1:8080"), "{bin}: deleted");
        });
    }
}

#[test]
fn security_a_host_port_stays_with_its_pod() {
    Lab::run(|lab| {
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let network = network(lab, ours(), &list(&[bridge(json!({"isGateway": true}), v4()), portmap]));
        let args = |id: &str, host_ip: &str| {
            let mapping =
                PortMapping { host_port: 8080, container_port: 80, protocol: "tcp".into(), host_ip: host_ip.into() };
            AttachmentArgs::for_pod("ns", id, id, id).port_mappings(&[mapping])
        };
        let (first, second) = (lab.pod_path(), lab.neighbour_path());
        lab.block_on(network.add("c1", &first, "eth0", &args("c1", ""))).unwrap();
        lab.serve_in_pod();
        // Neither the port, nor a part of it.
        for host_ip in ["", "192.0.2.1"] {
            let error = lab.block_on(network.add("c2", &second, "eth0", &args("c2", host_ip))).unwrap_err().to_string();
            assert!(error.contains("host port 8080/tcp is in use by another pod"), "{error}");
            lab.block_on(network.del("c2", &second, "eth0", &args("c2", host_ip))).unwrap();
            assert!(lab.connects_from_outside("192.0.2.1:8080"), "{host_ip:?}");
        }
        // What a pod left whose namespace is gone is nobody's.
        netlink::nft::apply(
            "delete element inet cox-portmap any4 { tcp . 8080 }\n\
             add element inet cox-portmap any4 { tcp . 8080 comment \"old 1 /nowhere\" : 10.42.0.99 . 80 }\n",
        )
        .unwrap();
        lab.block_on(network.add("c2", &second, "eth0", &args("c2", ""))).unwrap();
        lab.block_on(network.del("c2", &second, "eth0", &args("c2", ""))).unwrap();
        // And now it is nobody's.
        assert!(!lab.connects_from_host("192.0.2.1:8080"));
    });
}

/// CVE-2019-9946, with a proxy that uses iptables, whichever of the two was there first.
#[test]
fn security_services_of_iptables_come_before_host_ports() {
    Lab::run(|lab| {
        // As a former version left it.
        netlink::nft::apply(
            "add table inet cox-portmap\n\
             add chain inet cox-portmap prerouting { type nat hook prerouting priority -100 ; }\n\
             add rule inet cox-portmap prerouting meta l4proto tcp accept\n\
             add chain inet cox-portmap output { type nat hook output priority -100 ; }\n",
        )
        .unwrap();
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let network = network(lab, ours(), &list(&[bridge(json!({"isGateway": true}), v4()), portmap]));
        let mapping =
            PortMapping { host_port: 8080, container_port: 80, protocol: "tcp".into(), host_ip: String::new() };
        let args = AttachmentArgs::for_pod("ns", "c1", "c1", "c1").port_mappings(&[mapping]);
        let pod = lab.pod_path();
        // A service without an endpoint that answers.
        let service = |verb: &str| {
            let rule = ["-w", "-t", "nat", verb, "PREROUTING", "-p", "tcp", "--dport", "8080", "-j", "REDIRECT"];
            let status = Command::new("iptables").args(rule).args(["--to-ports", "9"]).status().unwrap();
            assert!(status.success());
        };
        service("-A");
        lab.block_on(network.add("c1", &pod, "eth0", &args)).unwrap();
        lab.serve_in_pod();
        assert!(!lab.connects_from_outside("192.0.2.1:8080"), "the service came first");
        service("-D");
        assert!(lab.connects_from_outside("192.0.2.1:8080"), "there is no service");
        service("-A");
        assert!(!lab.connects_from_outside("192.0.2.1:8080"), "the host port came first");
        service("-D");
        lab.block_on(network.del("c1", &pod, "eth0", &args)).unwrap();
    });
}

#[test]
fn a_network_says_whether_it_is_ready_and_collects_what_is_left() {
    Lab::run(|lab| {
        // Room for two.
        let range = json!([[{"subnet": "10.42.0.0/24", "rangeStart": "10.42.0.9", "rangeEnd": "10.42.0.10"}]]);
        let plugins =
            [json!({"type": "loopback"}), bridge(json!({"isGateway": true}), host_local(json!({"ranges": range})))];
        let conflist = with(list(&plugins), json!({"cniVersion": "1.1.0"}));
        let network = network(lab, ours(), &conflist);
        assert!(lab.block_on(network.supported_versions("bridge")).unwrap().contains(&"1.1.0".to_owned()));
        let (netns, args) = (lab.pod_path(), AttachmentArgs::default());
        assert_eq!(lab.block_on(network.status()), Status::Ready);
        for (id, ifname) in [("c1", "eth0"), ("c2", "eth1")] {
            let result = lab.block_on(network.add(id, &netns, ifname, &args)).unwrap();
            // What the runtime reads after a restart.
            assert_eq!(lab.block_on(network.cached(id, ifname)).unwrap(), Some(result));
        }
        let full = lab.block_on(network.status());
        assert!(matches!(&full, Status::NotReady(why) if why.contains("no IP addresses available")), "{full:?}");
        // One is kept; the other is gone from everywhere, and there is room again.
        lab.block_on(network.gc(&[("c1".into(), "eth0".into())])).unwrap();
        assert_eq!(lab.lease_files(), ["10.42.0.9: \"c1\\r\\neth0\""]);
        assert!(lab.block_on(network.cached("c1", "eth0")).unwrap().is_some());
        assert!(lab.block_on(network.cached("c2", "eth1")).unwrap().is_none());
        assert_eq!(lab.block_on(network.status()), Status::Ready);
    });
}

/// The host has spoken to the pod that had the addresses before.
#[test]
fn a_pod_with_the_addresses_of_another_is_known_at_once() {
    Lab::run(|lab| {
        let ranges = |last: u8| {
            let only = |subnet: &str, net: &str| json!([{"subnet": subnet, "rangeStart": format!("{net}{last}"), "rangeEnd": format!("{net}{last}")}]);
            json!([only("10.42.0.0/24", "10.42.0."), only("fd42::/64", "fd42::")])
        };
        let of = |last| list(&[bridge(json!({"isGateway": true}), host_local(json!({"ranges": ranges(last)})))]);
        let (network, other) = (network(lab, ours(), &of(9)), network(lab, ours(), &of(8)));
        let (netns, args) = (lab.pod_path(), AttachmentArgs::default());
        // A bridge without any port forgets everybody.
        lab.block_on(other.add("c0", &lab.neighbour_path(), "eth0", &args)).unwrap();

        lab.block_on(network.add("c1", &netns, "eth0", &args)).unwrap();
        for target in ["10.42.0.9:80", "[fd42::9]:80"] {
            lab.connects_from_host(target);
        }
        let first = lab.pod_mac();
        assert_eq!(lab.known_by_host(["10.42.0.9", "fd42::9"]), [Some(first.clone()), Some(first.clone())]);
        lab.block_on(network.del("c1", &netns, "eth0", &args)).unwrap();

        lab.block_on(network.add("c2", &netns, "eth0", &args)).unwrap();
        let second = lab.pod_mac();
        assert_ne!(first, second);
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let known = lab.known_by_host(["10.42.0.9", "fd42::9"]);
            if known.iter().all(|mac| mac.as_ref() == Some(&second)) {
                break;
            }
            assert!(Instant::now() < deadline, "the host knows {known:?}, not {second}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    Lab::run(|lab| {
        // The bridge's name belongs to something else.
        let network = network(lab, ours(), &list(&[bridge(json!({"bridge": "up0", "isGateway": true}), v4())]));
        let (netns, args) = (lab.pod_path(), AttachmentArgs::default());
        let error = lab.block_on(network.add("c1", &netns, "eth0", &args)).unwrap_err().to_string();
        assert!(error.contains("already exists but is not a bridge"), "{error}");
        assert_eq!(lab.lease_files(), Vec::<String>::new());
        assert_eq!(lab.pod_addresses(), Vec::<String>::new());
    });
}

/// Walk 10.1.
#[test]
fn hosts_reach_each_others_pods() {
    let families = lab::FAMILIES.map(|family| {
        std::thread::spawn(move || {
            lab::two_hosts(&family, false, cni::routes::Backend::HostGw);
            lab::two_hosts(&family, false, cni::routes::Backend::Auto);
            lab::two_hosts(&family, true, cni::routes::Backend::Auto);
        })
    });
    for running in families {
        if let Err(panic) = running.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn ranges_are_sealed_while_an_address_is_being_settled() {
    lab::addresses_that_are_not_settled();
}
