//! The kernel's side, with nftables: one table per family, `cox-proxy`, and one that guards 127.0.0.1.
//!
//! A packet's (address, protocol, port) is looked up in `services`; the verdict leads to a chain that picks an endpoint by
//! looking up (address, port, random number) in the `endpoints` map of the protocol. Those chains are shared by all services
//! with the same number of endpoints: an ordinary service is a few map elements and no chain of its own, so the kernel holds
//! little and a change is an element added or deleted. Only services with session affinity have chains and sets of their own.

mod base;
mod fragment;
mod program;

use std::fmt::Write as _;

use base::{Family, TABLE};
use program::BATCH;
pub(crate) use program::Program;

use crate::error::Result;

/// A change, in the words of `nft`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Transaction {
    text: String,
}

/// Carries out one transaction: all of it, or nothing.
pub(crate) async fn apply(transaction: &Transaction) -> Result<()> {
    let text = transaction.text.clone();
    Ok(tokio::task::spawn_blocking(move || netlink::nft::apply(&text)).await??)
}

/// What adds the clients to sets that these sets have now, each for the time that it has left: a table that takes the place of
/// another forgets nobody. Blocking.
fn kept(sets: &[(Family, String)]) -> String {
    let mut text = String::new();
    for (family, set) in sets {
        let table = format!("{} {TABLE}", family.name);
        let found = match netlink::nft::elements(&table, set) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                tracing::warn!(set, %error, "clients may be given other endpoints: it cannot be read which they have");
                return text;
            }
        };
        // Whole seconds: less than one is none.
        let left = found.iter().filter_map(|client| Some((&client.key, client.expires?.as_secs())));
        let left = left.filter(|(_, left)| *left > 0).map(|(client, left)| format!("{client} expires {left}s"));
        for batch in left.collect::<Vec<String>>().chunks(BATCH) {
            // Infallible: writing to a String.
            let _ = writeln!(text, "add element {table} {set} {{ {} }}", batch.join(", "));
        }
    }
    text
}

/// Deletes our tables; quiet when there are none.
pub(crate) async fn remove() -> Result<()> {
    apply(&Transaction { text: base::nothing() }).await
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use expect_test::expect;
    use serde_json::{Value, json};

    use super::fragment::{Fragment, fragment};
    use super::*;
    use crate::backend::Backend;
    use crate::services::tests::{service, slice};
    use crate::services::{Node, ports};
    use crate::settings::{Pods, Settings};

    fn settings() -> Settings {
        Settings {
            pods: Pods::Ranges(vec!["10.42.0.0/16".into(), "fd42::/56".into()]),
            service_cidrs: vec!["10.43.0.0/16".into(), "fd43::/112".into()],
            localhost_node_ports: true,
            masquerade_bit: 14,
            ..Settings::default()
        }
    }

    /// Where a pod has a host port with the number of a node port, the service keeps it (CVE-2019-9946).
    #[test]
    fn security_services_come_before_host_ports() {
        let (_, first) = Program::fresh(&settings(), HashMap::new());
        for hook in ["prerouting", "output"] {
            for priority in [-102, -101] {
                let chain = format!("type nat hook {hook} priority {priority} ;");
                assert!(first.text.contains(&chain), "{}", first.text);
            }
        }
        kernel_accepts(&[first.text]);
    }

    #[test]
    fn pods_are_known_by_range_or_interface() {
        let spec = json!({"clusterIP": "10.43.0.9", "type": "NodePort", "externalTrafficPolicy": "Local",
            "ports": [{"port": 80, "nodePort": 30080}]});
        for (pods, expected) in [
            (Pods::Ranges(vec!["10.42.1.0/24".into()]), "ip saddr { 10.42.1.0/24 }"),
            (Pods::Interface("br0".into()), "iifname \"br0\""),
            (Pods::Interfaces("veth".into()), "iifname \"veth*\""),
        ] {
            let settings = Settings { pods, ..settings() };
            let (mut program, first) = Program::fresh(&settings, HashMap::new());
            let fragment = contribution_with(spec.clone(), THREE, &settings);
            let text = program.update(vec![("default/web".into(), Some(fragment))]).text;
            let strangers = expected.replacen("saddr ", "saddr != ", 1).replacen("iifname ", "iifname != ", 1);
            assert!(text.contains(&format!("{strangers} meta mark set")), "{text}");
            assert!(text.contains(&format!("{expected} dnat to")), "{text}");
            kernel_accepts(&[first.text, text]);
        }
    }

    fn contribution(spec: Value, endpoints: &[(&str, &str)]) -> Fragment {
        contribution_with(spec, endpoints, &settings())
    }

    fn contribution_with(spec: Value, endpoints: &[(&str, &str)], settings: &Settings) -> Fragment {
        let endpoints: Vec<Value> =
            endpoints.iter().map(|(addr, node)| json!({"addresses": [addr], "nodeName": node})).collect();
        let family = |v6: bool| -> Vec<Value> {
            let is_v6 = |e: &&Value| e["addresses"][0].as_str().unwrap().contains(':') == v6;
            endpoints.iter().filter(is_v6).cloned().collect()
        };
        let port = json!([{"name": "", "port": 8080}, {"name": "", "port": 5353, "protocol": "UDP"}]);
        let slices = [slice("IPv4", port.clone(), json!(family(false))), slice("IPv6", port, json!(family(true)))];
        let mut service = service("web", spec.clone());
        service.status = serde_json::from_value(spec["status"].clone()).unwrap();
        fragment(&ports(&service, &slices, &Node { name: "a".into(), zone: None }), settings)
    }

    fn rules(spec: Value, endpoints: &[(&str, &str)]) -> String {
        Program::default().update(vec![("default/web".into(), Some(contribution(spec, endpoints)))]).text
    }

    /// The kernel accepts a sequence of transactions, and holds what it would hold if `nft` had read them.
    fn kernel_accepts(transactions: &[String]) {
        let all = || transactions.iter().map(|text| Transaction { text: text.clone() }).collect::<Vec<_>>();
        assert_eq!(listed_after(all(), apply_here), listed_after(all(), have_nft_read));
    }

    fn apply_here(transaction: &Transaction) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(apply(transaction)).unwrap();
    }

    fn have_nft_read(transaction: &Transaction) {
        let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(transaction.text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{}", transaction.text);
    }

    /// What `nft` lists after all of them, in a namespace that ends with the thread; maps have no order.
    fn listed_after(transactions: Vec<Transaction>, tell: fn(&Transaction)) -> Vec<String> {
        let inside = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            transactions.iter().for_each(tell);
            let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let mut parts: Vec<String> = text.split([',', '\n', '{', '}']).map(|part| part.trim().to_owned()).collect();
            parts.sort();
            parts
        };
        std::thread::spawn(inside).join().unwrap()
    }

    const THREE: &[(&str, &str)] = &[("10.42.0.2", "a"), ("10.42.0.3", "a"), ("10.42.1.2", "b")];

    #[test]
    fn a_cluster_ip_is_a_handful_of_elements() {
        expect![[r#"
            add chain ip cox-proxy tcp-cluster-3
            add rule ip cox-proxy tcp-cluster-3 ip saddr != { 10.42.0.0/16 } meta mark set meta mark | 0x4000
            add rule ip cox-proxy tcp-cluster-3 dnat to ip daddr . tcp dport . numgen random mod 3 offset 32768 map @endpoints-tcp
            add element ip cox-proxy endpoints-tcp { 10.43.0.9 . 80 . 32768 : 10.42.0.2 . 8080, 10.43.0.9 . 80 . 32769 : 10.42.0.3 . 8080, 10.43.0.9 . 80 . 32770 : 10.42.1.2 . 8080 }
            add element ip cox-proxy hairpin { 10.42.0.2 . 10.42.0.2, 10.42.0.3 . 10.42.0.3 }
            add element ip cox-proxy services { 10.43.0.9 . tcp . 80 : goto tcp-cluster-3 }
        "#]]
        .assert_eq(&rules(json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}]}), THREE));
    }

    #[test]
    fn without_endpoints_there_is_a_refusal() {
        expect![[r#"
            add element ip cox-proxy unserved { 10.43.0.9 . tcp . 80 : goto refuse }
            add element ip cox-proxy unserved-ports { tcp . 30080 : goto refuse }
        "#]]
        .assert_eq(&rules(
            json!({"clusterIP": "10.43.0.9", "type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}),
            &[],
        ));
    }

    #[test]
    fn an_exposed_service_with_local_policy_ranges_and_affinity() {
        let spec = json!({"clusterIP": "10.43.0.9", "type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Local", "externalIPs": ["198.51.100.7"], "ports": [{"port": 80, "nodePort": 30080}],
            "loadBalancerSourceRanges": ["203.0.113.0/24", "203.0.113.128/25"],
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}});
        let text = rules(spec, THREE);
        let hash = text.split("from-").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        let text = text.replace(hash, "HASH");
        expect![[r#"
            add chain ip cox-proxy from-HASH
            add chain ip cox-proxy tcp-cluster-local-2
            add chain ip cox-proxy tcp-limited-from-HASH-local-2-3
            add chain ip cox-proxy tcp-local-2-3
            add chain ip cox-proxy tcp-node-local-2-3
            add rule ip cox-proxy from-HASH ip saddr != { 203.0.113.0/24 } drop
            add rule ip cox-proxy tcp-cluster-local-2 ip saddr != { 10.42.0.0/16 } meta mark set meta mark | 0x4000
            add rule ip cox-proxy tcp-cluster-local-2 dnat to ip daddr . tcp dport . numgen random mod 2 map @endpoints-tcp
            add rule ip cox-proxy tcp-limited-from-HASH-local-2-3 jump from-HASH
            add rule ip cox-proxy tcp-limited-from-HASH-local-2-3 ip saddr { 10.42.0.0/16 } dnat to ip daddr . tcp dport . numgen random mod 3 offset 32768 map @endpoints-tcp
            add rule ip cox-proxy tcp-limited-from-HASH-local-2-3 fib saddr type local meta mark set meta mark | 0x4000 dnat to ip daddr . tcp dport . numgen random mod 3 offset 32768 map @endpoints-tcp
            add rule ip cox-proxy tcp-limited-from-HASH-local-2-3 dnat to ip daddr . tcp dport . numgen random mod 2 map @endpoints-tcp
            add rule ip cox-proxy tcp-local-2-3 ip saddr { 10.42.0.0/16 } dnat to ip daddr . tcp dport . numgen random mod 3 offset 32768 map @endpoints-tcp
            add rule ip cox-proxy tcp-local-2-3 fib saddr type local meta mark set meta mark | 0x4000 dnat to ip daddr . tcp dport . numgen random mod 3 offset 32768 map @endpoints-tcp
            add rule ip cox-proxy tcp-local-2-3 dnat to ip daddr . tcp dport . numgen random mod 2 map @endpoints-tcp
            add rule ip cox-proxy tcp-node-local-2-3 ip saddr { 10.42.0.0/16 } dnat to tcp dport . numgen random mod 3 offset 32768 map @node-endpoints-tcp
            add rule ip cox-proxy tcp-node-local-2-3 fib saddr type local meta mark set meta mark | 0x4000 dnat to tcp dport . numgen random mod 3 offset 32768 map @node-endpoints-tcp
            add rule ip cox-proxy tcp-node-local-2-3 dnat to tcp dport . numgen random mod 2 map @node-endpoints-tcp
            add element ip cox-proxy endpoints-tcp { 10.43.0.9 . 80 . 0 : 10.42.0.2 . 8080, 10.43.0.9 . 80 . 1 : 10.42.0.3 . 8080, 192.0.2.9 . 80 . 0 : 10.42.0.2 . 8080, 192.0.2.9 . 80 . 1 : 10.42.0.3 . 8080, 192.0.2.9 . 80 . 32768 : 10.42.0.2 . 8080, 192.0.2.9 . 80 . 32769 : 10.42.0.3 . 8080, 192.0.2.9 . 80 . 32770 : 10.42.1.2 . 8080, 198.51.100.7 . 80 . 0 : 10.42.0.2 . 8080, 198.51.100.7 . 80 . 1 : 10.42.0.3 . 8080, 198.51.100.7 . 80 . 32768 : 10.42.0.2 . 8080, 198.51.100.7 . 80 . 32769 : 10.42.0.3 . 8080, 198.51.100.7 . 80 . 32770 : 10.42.1.2 . 8080 }
            add element ip cox-proxy hairpin { 10.42.0.2 . 10.42.0.2, 10.42.0.3 . 10.42.0.3 }
            add element ip cox-proxy node-endpoints-tcp { 30080 . 0 : 10.42.0.2 . 8080, 30080 . 1 : 10.42.0.3 . 8080, 30080 . 32768 : 10.42.0.2 . 8080, 30080 . 32769 : 10.42.0.3 . 8080, 30080 . 32770 : 10.42.1.2 . 8080 }
            add element ip cox-proxy node-ports { tcp . 30080 : goto tcp-node-local-2-3 }
            add element ip cox-proxy services { 10.43.0.9 . tcp . 80 : goto tcp-cluster-local-2, 192.0.2.9 . tcp . 80 : goto tcp-limited-from-HASH-local-2-3, 198.51.100.7 . tcp . 80 : goto tcp-local-2-3 }
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn the_kernel_takes_every_change() {
        let plain = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "type": "NodePort",
            "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP", "nodePort": 30053}]});
        let mut sticky = plain.clone();
        sticky["sessionAffinity"] = json!("ClientIP");
        let mut limited = plain.clone();
        limited["type"] = json!("LoadBalancer");
        limited["loadBalancerSourceRanges"] = json!(["203.0.113.0/24", "2001:db8::/32"]);
        limited["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"ip": "2001:db8::9"}]}});
        let both = [THREE, &[("fd42::2", "a"), ("fd42::3", "b")]].concat();
        let mut program = Program::default();
        let (fresh, first) = Program::fresh(&settings(), HashMap::new());
        let mut texts = vec![first.text];
        let _ = std::mem::replace(&mut program, fresh);
        let mut step =
            |key: &str, fragment: Option<Fragment>| texts.push(program.update(vec![(key.into(), fragment)]).text);
        step("default/web", Some(contribution(plain.clone(), &both)));
        // The same addresses again, from another service: the first keeps them.
        step("default/copy", Some(contribution(plain.clone(), THREE)));
        step("default/web", Some(contribution(plain.clone(), &both[..1])));
        step("default/web", Some(contribution(sticky.clone(), &both)));
        step("default/web", Some(contribution(sticky, &both[1..])));
        step("default/web", Some(contribution(limited.clone(), &both)));
        step("default/web", Some(contribution(limited, &[])));
        step("default/web", None);
        step("default/copy", None);
        assert!(texts.last().unwrap().contains("delete chain"));
        kernel_accepts(&texts);
    }

    /// Ranges that overlap are refused by a set, and with them all that any other service has.
    #[test]
    fn security_services_with_one_address_may_have_ranges_that_overlap() {
        let with = |ranges: Value| {
            let spec = json!({"clusterIPs": ["10.43.0.9", "fd43::9"], "type": "LoadBalancer", "ports": [{"port": 80}],
                "loadBalancerSourceRanges": ranges,
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"ip": "2001:db8::9"}]}}});
            Some(contribution(spec, &[THREE, &[("fd42::2", "a")]].concat()))
        };
        let (mut program, first) = Program::fresh(&settings(), HashMap::new());
        let mut texts = vec![first.text];
        let mut step = |key: &str, fragment| texts.push(program.update(vec![(key.into(), fragment)]).text);
        step("default/web", with(json!(["203.0.113.0/24", "198.51.100.0/24", "2001:db8::/32"])));
        step("default/copy", with(json!(["203.0.113.0/25", "198.51.0.0/16", "2001:db8::/64"])));
        step("default/all", with(json!(["0.0.0.0/0"])));
        step("default/web", None);
        step("default/copy", None);
        step("default/all", None);
        // The second one gets the address after the first.
        assert!(texts[4].contains("192.0.2.9 . tcp . 80 : goto tcp-limited-from-"), "{}", texts[4]);
        kernel_accepts(&texts);
    }

    #[test]
    fn the_kernel_holds_the_same_told_either_way() {
        let spec = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "type": "NodePort",
            "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP", "nodePort": 30053}]});
        let both = [THREE, &[("fd42::2", "a"), ("fd42::3", "b"), ("fd42::4", "b")]].concat();
        let other: Vec<(&str, &str)> = [("10.42.9.2", "b"), ("10.42.9.3", "a"), ("10.42.9.4", "a")]
            .into_iter()
            .chain([("fd42::9:2", "a"), ("fd42::9:3", "b"), ("fd42::9:4", "b")])
            .collect();
        let (mut program, first) = Program::fresh(&settings(), HashMap::new());
        let mut all = vec![first.text];
        let mut step = |key: &str, fragment| all.push(program.update(vec![(key.into(), fragment)]).text);
        // The first brings the chains that the rest shares.
        step("default/web", Some(contribution(spec.clone(), &both)));
        step("default/web", Some(contribution(spec.clone(), &other)));
        let mut unserved = spec.clone();
        unserved["clusterIP"] = json!("10.43.0.10");
        unserved["clusterIPs"] = json!(["10.43.0.10", "fd43::10"]);
        unserved["ports"] = json!([{"port": 80, "nodePort": 30081}]);
        step("default/none", Some(contribution(unserved, &[])));
        kernel_accepts(&all);
    }

    /// Everything is built anew after a start, after a failure and once an hour.
    #[test]
    fn clients_keep_their_endpoints_when_all_is_built_anew() {
        let sticky = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "sessionAffinity": "ClientIP",
            "ports": [{"port": 80}]});
        let inside = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let build = |endpoints: &[(&str, &str)]| {
                let services = HashMap::from([("default/web".to_owned(), contribution(sticky.clone(), endpoints))]);
                runtime.block_on(async {
                    let (program, transaction) = Program::from_scratch(&settings(), services).await.unwrap();
                    apply(&transaction).await.unwrap();
                    program
                })
            };
            let clients = |program: &Program| -> Vec<(String, u64)> {
                let sets = program.sets_of_clients();
                let all = sets.flat_map(|(family, set)| {
                    netlink::nft::elements(&format!("{} cox-proxy", family.name), &set).unwrap()
                });
                let mut all: Vec<_> = all.map(|one| (one.key, one.expires.unwrap().as_secs())).collect();
                all.sort();
                all
            };
            let both = [THREE, &[("fd42::2", "a")]].concat();
            let program = build(&both);
            for (family, set) in program.sets_of_clients() {
                let client = if family.is_v6 { "2001:db8::7" } else { "192.0.2.7" };
                let text = format!("add element {} cox-proxy {set} {{ {client} expires 60s }}\n", family.name);
                runtime.block_on(apply(&Transaction { text })).unwrap();
            }
            let (before, after) = (clients(&program), clients(&build(&both)));
            assert_eq!((before.len(), after.len()), (4, 4), "{after:?}");
            assert!(after.iter().all(|(_, left)| (1..=60).contains(left)), "in their time: {after:?}");
            // Those of an endpoint that is gone go with it.
            assert_eq!(clients(&build(&both[1..])).len(), 3);
        };
        std::thread::spawn(inside).join().unwrap();
    }

    #[test]
    fn an_element_stays_while_one_service_wants_it() {
        let at = |ip: &str| contribution(json!({"clusterIP": ip, "ports": [{"port": 80}]}), THREE);
        let mut program = Program::default();
        let mut step = |key: &str, fragment| program.update(vec![(key.into(), fragment)]).text;
        assert!(step("default/a", Some(at("10.43.0.9"))).contains("add element ip cox-proxy hairpin"));
        // They have the same endpoints.
        assert!(!step("default/b", Some(at("10.43.0.10"))).contains("hairpin"));
        assert!(!step("default/a", None).contains("hairpin"));
        assert!(step("default/b", None).contains("delete element ip cox-proxy hairpin"));
    }

    #[test]
    fn nothing_changes_nothing() {
        let spec = json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}]});
        let mut program = Program::default();
        let update = |program: &mut Program, fragment| program.update(vec![("default/web".into(), fragment)]).text;
        assert!(!update(&mut program, Some(contribution(spec.clone(), THREE))).is_empty());
        assert_eq!(update(&mut program, Some(contribution(spec.clone(), THREE))), "");
        let text = update(&mut program, Some(contribution(spec, &THREE[..2])));
        expect![[r#"
            add chain ip cox-proxy tcp-cluster-2
            add rule ip cox-proxy tcp-cluster-2 ip saddr != { 10.42.0.0/16 } meta mark set meta mark | 0x4000
            add rule ip cox-proxy tcp-cluster-2 dnat to ip daddr . tcp dport . numgen random mod 2 offset 32768 map @endpoints-tcp
            delete element ip cox-proxy endpoints-tcp { 10.43.0.9 . 80 . 32770 }
            delete element ip cox-proxy services { 10.43.0.9 . tcp . 80 }
            add element ip cox-proxy services { 10.43.0.9 . tcp . 80 : goto tcp-cluster-2 }
            flush chain ip cox-proxy tcp-cluster-3
            delete chain ip cox-proxy tcp-cluster-3
        "#]]
        .assert_eq(&text);
    }
}
