//! Plans against the slow decision, and against the kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

use expect_test::expect;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use crate::cluster_policy::ClusterPolicy;
use crate::decision::{Decision, End, decide};
use crate::plan::{Announced, Plan, Planner};
use crate::program::{Inlined, MANY_SETS, anew, change, closing, inlined, isolated};
use crate::world::{Direction, Node, Pod, Policy, Protocol, World};

mod closed;
mod incremental;
mod kernel;
mod random;

use random::{Random, random_world};

const NODE: &str = "a";

/// All that makes a plan what is in the kernel, in one text.
fn afresh(plan: &Plan, inlined: &Inlined) -> String {
    crate::program::afresh(plan, inlined).concat()
}

fn pod(namespace: &str, name: &str, node: &str, labels: Value, addresses: &[&str], ports: Value) -> Pod {
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let object = json!({
        "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": ips},
    });
    Pod::new(&api::codec::from_value(&object).unwrap())
}

fn policy(namespace: &str, name: &str, spec: Value) -> Policy {
    let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
    Policy::new(&serde_json::from_value::<NetworkPolicy>(object).unwrap())
}

fn world(pods: Vec<Pod>, policies: Vec<Policy>) -> World {
    World {
        pods: pods.into_iter().map(|pod| (pod.key(), Arc::new(pod))).collect(),
        namespaces: [("default", "blue"), ("other", "red")]
            .map(|(name, team)| (name.to_owned(), [("team".to_owned(), team.to_owned())].into()))
            .into(),
        policies: policies.into_iter().map(|policy| (policy.key(), Arc::new(policy))).collect(),
        ..World::default()
    }
}

impl World {
    fn with_cluster_policies(mut self, policies: Vec<ClusterPolicy>) -> Self {
        self.cluster_policies = policies.into_iter().map(|policy| (policy.name.clone(), Arc::new(policy))).collect();
        self
    }
}

fn cluster_policy(name: &str, tier: &str, priority: usize, spec: Value) -> ClusterPolicy {
    let mut object = json!({"metadata": {"name": name}, "spec": {"tier": tier, "priority": priority}});
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    ClusterPolicy::new(&serde_json::from_value(object).unwrap())
}

/// What the plug-in says of a pod's sandbox, of which nothing else is known.
fn announced(pod: &str, uid: &str, addresses: &[&str]) -> Announced {
    let addresses = addresses.iter().map(|address| ip(address)).collect();
    Announced { pod: pod.into(), uid: uid.into(), addresses, ..Announced::default() }
}

fn planned(world: &World) -> Plan {
    plan(world, &[])
}

fn plan(world: &World, announced: &[Announced]) -> Plan {
    let mut planner = Planner::new(NODE, "cox0");
    tell(&mut planner, world);
    for told in announced {
        planner.announce(told.clone());
    }
    planner.settle();
    planner.plan().clone()
}

/// Tells a planner how a world differs from what it knows.
fn tell(planner: &mut Planner, world: &World) {
    let known = planner.world().clone();
    fn differing<V: Clone + PartialEq>(
        known: &BTreeMap<String, V>,
        now: &BTreeMap<String, V>,
    ) -> Vec<(String, Option<V>)> {
        let gone = known.keys().filter(|key| !now.contains_key(*key)).map(|key| (key.clone(), None));
        let come = now.iter().filter(|(key, value)| known.get(*key) != Some(*value));
        gone.chain(come.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
    }
    for (key, value) in differing(&known.pods, &world.pods) {
        // Whoever goes has given back what it had.
        if let Some(had) = known.pods.get(&key)
            && value.as_ref().is_none_or(|now| now.uid != had.uid)
        {
            planner.withdraw(&announced(&key, &had.uid, &[]));
        }
        planner.set_pod(&key, value);
    }
    for (key, value) in differing(&known.policies, &world.policies) {
        planner.set_policy(&key, value);
    }
    for (key, value) in differing(&known.namespaces, &world.namespaces) {
        planner.set_namespace(&key, value);
    }
    for (key, value) in differing(&known.cluster_policies, &world.cluster_policies) {
        planner.set_cluster_policy(&key, value);
    }
    for (key, value) in differing(&known.nodes, &world.nodes) {
        planner.set_node(&key, value);
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_plan_is_a_few_sets_for_all_policies_of_a_pod() {
    let http = json!([{"name": "http", "containerPort": 8080}]);
    let pods = vec![
        pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2", "fd42::2"], http),
        pod("default", "friend", "b", json!({"role": "friend"}), &["10.42.1.2"], json!([])),
        pod("other", "visitor", "b", json!({}), &["10.42.1.3"], json!([])),
    ];
    let policies = vec![
        policy("default", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]})),
        policy(
            "default",
            "web",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}], "ports": [{"port": "http"}]},
                {"from": [{"namespaceSelector": {"matchLabels": {"team": "red"}}}]},
                {"from": [{"ipBlock": {"cidr": "192.0.2.0/30", "except": ["192.0.2.1/32"]}}]},
                {"from": [{"ipBlock": {"cidr": "fd00::/64"}}], "ports": [{"port": 1, "endPort": 9, "protocol": "SCTP"}]},
                {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 50, "endPort": 60, "protocol": "UDP"}]},
            ]}),
        ),
    ];
    expect![[r#"
        add table inet cox-policy
        delete table inet cox-policy
        add table inet cox-policy { comment "network policies" ; }
        add map inet cox-policy egress4 { type ipv4_addr : verdict ; }
        add map inet cox-policy egress6 { type ipv6_addr : verdict ; }
        add map inet cox-policy ingress4 { type ipv4_addr : verdict ; }
        add map inet cox-policy ingress6 { type ipv6_addr : verdict ; }
        add chain inet cox-policy forward { type filter hook forward priority 0 ; }
    "#]]
    .assert_eq(
        &afresh(&planned(&world(pods.clone(), policies.clone())), &Inlined::new())
            .lines()
            .take(8)
            .map(|l| format!("{l}\n"))
            .collect::<String>(),
    );
    let plan = planned(&world(pods, policies));
    let rules: Vec<String> = plan.chains.values().flatten().map(|rule| without_hashes(rule)).collect();
    assert_eq!(
        rules,
        [
            "ip saddr @pods4-* return",
            "ip saddr . meta l4proto . th dport @ports4-* return",
            "ip saddr @blocks4-* return",
            "ip6 saddr . meta l4proto . th dport @ranges6-* return",
            "meta l4proto . th dport @open-* return",
            "drop",
        ]
    );
    let elements: BTreeMap<String, String> = plan
        .sets
        .iter()
        .map(|(name, set)| {
            let elements: Vec<String> = set.elements.iter().map(ToString::to_string).collect();
            (without_hashes(name), elements.join(", "))
        })
        .collect();
    let expected = [
        ("blocks4-*", "192.0.2.0, 192.0.2.2-192.0.2.3"),
        ("pods4-*", "10.42.1.3"),
        ("ports4-*", "10.42.1.2 . tcp . 8080"),
        ("open-*", "udp . 50-60"),
        ("ranges6-*", "fd00::-fd00::ffff:ffff:ffff:ffff . sctp . 1-9"),
        ("self4", "10.42.0.2 . 10.42.0.2"),
        ("self6", "fd42::2 . fd42::2"),
    ];
    assert_eq!(elements, expected.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
}

/// Names with their hashes left out.
fn without_hashes(text: &str) -> String {
    let is_hash = |word: &str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<String> = text
        .split(' ')
        .map(|word| word.split('-').map(|part| if is_hash(part) { "*" } else { part }).collect::<Vec<_>>().join("-"))
        .collect();
    parts.join(" ")
}

#[test]
fn who_is_not_selected_has_no_rules() {
    let pods = || {
        vec![
            pod("default", "here", NODE, json!({}), &["10.42.0.2"], json!([])),
            pod("default", "there", "b", json!({"app": "web"}), &["10.42.1.2"], json!([])),
        ]
    };
    let selecting = |spec| planned(&world(pods(), vec![policy("default", "p", spec)]));
    assert!(planned(&world(pods(), vec![])).is_empty());
    assert!(selecting(json!({"podSelector": {"matchLabels": {"app": "web"}}})).is_empty());
    let egress = selecting(json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    assert_eq!((egress.subjects["egress4"].len(), egress.subjects["ingress4"].len()), (1, 0));
    let ingress = selecting(json!({"podSelector": {}}));
    assert_eq!((ingress.subjects["egress4"].len(), ingress.subjects["ingress4"].len()), (0, 1));
    let both = selecting(json!({"podSelector": {}, "egress": []}));
    assert_eq!((both.subjects["egress4"].len(), both.subjects["ingress4"].len()), (1, 1));
}

#[test]
fn security_a_pod_that_is_not_shown_yet_is_closed() {
    let told = announced("default/new", "u", &["10.42.0.9"]);
    let announced = |world: &World| plan(world, std::slice::from_ref(&told)).subjects["ingress4"].clone();
    let deny = || policy("default", "deny", json!({"podSelector": {"matchLabels": {"app": "web"}}}));
    let closed = announced(&world(vec![], vec![deny()]));
    assert_eq!(closed[&ip("10.42.0.9")], "jump closed");
    // Without policies nothing can select it.
    assert!(announced(&world(vec![], vec![policy("other", "deny", json!({"podSelector": {}}))])).is_empty());
    // Shown, without its address as yet: what its policies say.
    let mut shown = pod("default", "new", NODE, json!({"app": "web"}), &[], json!([]));
    shown.uid = "u".into();
    assert!(announced(&world(vec![shown.clone()], vec![deny()]))[&ip("10.42.0.9")].starts_with("jump in-"));
    shown.labels = Arc::default();
    assert!(announced(&world(vec![shown.clone()], vec![deny()])).is_empty());
    // Another pod of that name is another pod.
    shown.uid = "earlier".into();
    assert_eq!(announced(&world(vec![shown], vec![deny()]))[&ip("10.42.0.9")], "jump closed");
}

/// What a plan does with the first packet of a connection.
fn passes(plan: &Plan, from: IpAddr, to: IpAddr, protocol: Protocol, port: u16) -> bool {
    if from == to {
        return true;
    }
    let digit = if from.is_ipv6() { 6 } else { 4 };
    [("egress", from, to), ("ingress", to, from)].into_iter().all(|(direction, subject, peer)| {
        let map = &plan.subjects[format!("{direction}{digit}").as_str()];
        let Some(chain) = map.get(&subject) else { return true };
        let mut rules: Vec<&String> = plan.chains[chain.strip_prefix("jump ").unwrap()].iter().rev().collect();
        while let Some(rule) = rules.pop() {
            let (mut lookups, mut verdict) = (Vec::new(), rule.as_str());
            while let Some((fields, rest)) = verdict.split_once(" @") {
                let (set, after) = rest.split_once(' ').unwrap();
                lookups.push((fields, set));
                verdict = after;
            }
            let is_found = |(fields, set): &(&str, &str)| {
                if fields.starts_with("ip ") && digit == 6 || fields.starts_with("ip6 ") && digit == 4 {
                    return false;
                }
                let key: Vec<Part> = match fields.matches(" . ").count() {
                    0 => vec![Part::Address(peer)],
                    1 => vec![Part::Word(protocol.name()), Part::Port(port)],
                    _ => vec![Part::Address(peer), Part::Word(protocol.name()), Part::Port(port)],
                };
                let holds = |element: &crate::plan::Element| {
                    element.to_string().split(" . ").zip(&key).all(|(text, part)| part.is_in(text))
                };
                plan.sets[*set].elements.iter().any(holds)
            };
            if !lookups.iter().all(is_found) {
                continue;
            }
            match verdict {
                "return" => return true,
                "drop" => return false,
                other => rules = plan.chains[other.strip_prefix("goto ").unwrap()].iter().rev().collect(),
            }
        }
        true
    })
}

enum Part {
    Address(IpAddr),
    Word(&'static str),
    Port(u16),
}

impl Part {
    fn is_in(&self, text: &str) -> bool {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match self {
            Self::Address(address) => (first.parse::<IpAddr>().unwrap()..=last.parse().unwrap()).contains(address),
            Self::Word(word) => *word == text,
            Self::Port(port) => (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(port),
        }
    }
}

#[test]
fn plans_decide_as_policies_say() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut counts = [0, 0];
    for round in 0..300 {
        let world = random_world(&mut random);
        let plan = planned(&world);
        let pods: Vec<&Arc<Pod>> = world.pods.values().collect();
        for _ in 0..200 {
            let (from, to) = (random.one(&pods), random.one(&pods));
            let family = random.below(2);
            let ends = [(from, to), (to, from)]
                .map(|(subject, peer)| (subject, End { address: peer.addresses[family], pod: Some(peer) }));
            let protocol = random.one(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
            let port = random.one(&[79, 80, 81, 85, 91]);
            let said = |direction, (subject, peer): (&Arc<Pod>, End<'_>)| -> Decision {
                match subject.node == NODE && subject.has_network {
                    true => decide(&world, direction, subject, peer, protocol, port),
                    false => Decision::Open, // another node's to decide, or nobody's
                }
            };
            let expected =
                said(Direction::Egress, ends[0]).is_allowed() && said(Direction::Ingress, ends[1]).is_allowed();
            let (source, target) = (from.addresses[family], to.addresses[family]);
            let found = passes(&plan, source, target, protocol, port);
            assert_eq!(
                found, expected,
                "round {round}: {source} to {target} {protocol:?} {port}\n{world:#?}\n{plan:#?}"
            );
            counts[usize::from(expected)] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 5000), "{counts:?}");
}

/// What `nft` lists after these transactions, in a namespace that ends with the thread; sets have no order.
fn listed_after(transactions: Vec<String>) -> Vec<String> {
    let inside = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        for text in &transactions {
            netlink::nft::apply(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        }
        let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut parts: Vec<String> = text.split([',', '\n', '{', '}']).map(|part| part.trim().to_owned()).collect();
        parts.sort();
        parts
    };
    std::thread::spawn(inside).join().unwrap()
}

#[test]
fn the_kernel_takes_every_change() {
    let mut random = Random(42);
    for _ in 0..10 {
        let mut planner = Planner::new(NODE, "cox0");
        let mut all = Vec::new();
        for step in 0..12 {
            tell(&mut planner, &random_world(&mut random));
            planner.settle();
            all.extend(match step {
                0 => vec![afresh(planner.plan(), &Inlined::new())],
                _ => change(planner.touched(), planner.plan(), &mut Inlined::new()),
            });
            planner.is_programmed();
        }
        assert_eq!(listed_after(all), listed_after(vec![afresh(planner.plan(), &Inlined::new())]));
        assert_eq!(change(planner.touched(), planner.plan(), &mut Inlined::new()), Vec::<String>::new());
    }
}

#[test]
fn a_pod_that_comes_is_an_element() {
    let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [{"podSelector": {}}]}]});
    let web = pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([]));
    let mut planner = Planner::new(NODE, "cox0");
    tell(&mut planner, &world(vec![web], vec![policy("default", "p", spec.clone())]));
    planner.settle();
    planner.is_programmed();
    let come = pod("default", "new", "b", json!({}), &["10.42.1.9"], json!([]));
    planner.set_pod("default/new", Some(Arc::new(come)));
    planner.settle();
    let text = without_hashes(&change(planner.touched(), planner.plan(), &mut Inlined::new()).concat());
    assert_eq!(text, "add element inet cox-policy pods4-* { 10.42.1.9 }\n");
}

#[test]
fn a_set_that_was_written_into_a_rule_is_made_when_a_change_needs_it() {
    let from = json!([{"podSelector": {"matchLabels": {"app": "db"}}}]);
    let spec =
        json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": from, "ports": [{"port": 80}]}]});
    let web = pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([]));
    let db = |name: &str, address: &str| pod("default", name, "b", json!({"app": "db"}), &[address], json!([]));
    let mut planner = Planner::new(NODE, "cox0");
    tell(&mut planner, &world(vec![web, db("one", "10.42.1.2")], vec![policy("default", "p", spec)]));
    planner.settle();
    assert_eq!(inlined(planner.plan(), MANY_SETS), Inlined::new(), "few sets are found soon enough");
    let mut in_rules = inlined(planner.plan(), 0);
    let first = afresh(planner.plan(), &in_rules);
    assert!(first.contains(" ip saddr 10.42.1.2 tcp dport 80 return\n") && !first.contains("ports4"), "{first}");
    planner.is_programmed();
    assert_eq!(change(planner.touched(), planner.plan(), &mut in_rules), Vec::<String>::new());
    planner.set_pod("default/two", Some(Arc::new(db("two", "10.42.1.3"))));
    planner.settle();
    let second = change(planner.touched(), planner.plan(), &mut in_rules).concat();
    let said = without_hashes(&second.replace('\n', " \n"));
    for part in [
        "add set inet cox-policy ports4-* ",
        "add element inet cox-policy ports4-* { 10.42.1.2 . tcp . 80, 10.42.1.3 . tcp . 80 }",
        "flush chain inet cox-policy in-*",
        " ip saddr . meta l4proto . th dport @ports4-* return",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert_eq!(in_rules, Inlined::new());
    planner.is_programmed();
    let anew = afresh(planner.plan(), &Inlined::new());
    assert_eq!(listed_after(vec![first, second]), listed_after(vec![anew]));
}

#[test]
fn security_answers_of_sctp_are_told_by_their_ports_or_not_at_all() {
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    let web = pod("default", "web", NODE, json!({}), &["10.42.0.2"], json!([]));
    let mut planner = Planner::new(NODE, "cox0");
    tell(&mut planner, &world(vec![web], vec![policy("default", "p", spec)]));
    planner.settle();
    planner.is_programmed();
    for (is_tracked, expected) in [(false, true), (true, false)] {
        planner.set_sctp_tracking(is_tracked);
        planner.settle();
        let text = change(planner.touched(), planner.plan(), &mut Inlined::new()).concat();
        assert_eq!(text.contains("meta l4proto != sctp ct direction reply"), expected, "{text}");
        let listed = listed_after(vec![afresh(planner.plan(), &Inlined::new())]);
        assert_eq!(listed.iter().any(|part| part.contains("meta l4proto !=")), expected, "{listed:?}");
        planner.is_programmed();
    }
}

#[test]
fn tiers_and_priorities_decide_in_order() {
    let pods = || {
        vec![
            pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([])),
            pod("default", "near", "b", json!({}), &["10.42.1.2"], json!([])),
            pod("other", "far", "b", json!({}), &["10.42.1.3"], json!([])),
        ]
    };
    let everyone = json!([{"namespaces": {}}]);
    let rule = |name: &str, action: &str| json!({"name": name, "action": action, "from": everyone});
    let of = |name: &str, tier: &str, priority: usize, rules: Value| {
        cluster_policy(name, tier, priority, json!({"subject": {"namespaces": {}}, "ingress": rules}))
    };
    let said = |world: &World, peer: &str| -> String {
        let (subject, peer) = (&world.pods["default/web"], &world.pods[peer]);
        let end = End { address: peer.addresses[0], pod: Some(peer) };
        let decision = decide(world, Direction::Ingress, subject, end, Protocol::Tcp, 80);
        let found = passes(&planned(world), peer.addresses[0], subject.addresses[0], Protocol::Tcp, 80);
        assert_eq!(found, decision.is_allowed(), "{decision:?}");
        match decision {
            Decision::Open => "open".to_owned(),
            Decision::Allowed(policy) => format!("allowed by {policy}"),
            Decision::Denied(policies) => format!("denied by {policies:?}"),
            Decision::Ruled { policy, rule, tier, is_accepted } => {
                format!("{} {policy}/{rule} {}", tier.name(), if is_accepted { "accepts" } else { "denies" })
            }
        }
    };
    let isolating =
        || policy("default", "near", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    let baseline = || of("base", "Baseline", 0, json!([rule("no", "Deny")]));
    let far_only =
        json!([{"name": "far", "action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": "red"}}}]}]);
    for (policies, of_cluster, near, far) in [
        (vec![], vec![], "open", "open"),
        (vec![], vec![baseline()], "Baseline base/no denies", "Baseline base/no denies"),
        // Policies of the namespace have the word before the baseline, and the last one.
        (vec![isolating()], vec![baseline()], "allowed by default/near", "denied by [\"default/near\"]"),
        // Administrators have it before both.
        (
            vec![isolating()],
            vec![of("z", "Admin", 0, json!([rule("yes", "Accept")])), of("a", "Admin", 1, json!([rule("no", "Deny")]))],
            "Admin z/yes accepts",
            "Admin z/yes accepts",
        ),
        (
            vec![isolating()],
            vec![of("z", "Admin", 7, json!([rule("yes", "Accept")])), of("a", "Admin", 1, far_only.clone())],
            "Admin z/yes accepts",
            "Admin a/far denies",
        ),
        // Within a policy the first rule; what passes goes on in the next tier.
        (
            vec![isolating()],
            vec![of("a", "Admin", 0, json!([rule("on", "Pass"), rule("no", "Deny")]))],
            "allowed by default/near",
            "denied by [\"default/near\"]",
        ),
        (
            vec![],
            vec![of("a", "Admin", 0, json!([rule("on", "Pass")])), baseline()],
            "Baseline base/no denies",
            "Baseline base/no denies",
        ),
        (vec![], vec![of("b", "Baseline", 0, json!([rule("on", "Pass"), rule("no", "Deny")]))], "open", "open"),
        (vec![], vec![of("a", "Admin", 0, far_only.clone())], "open", "Admin a/far denies"),
    ] {
        let world = world(pods(), policies).with_cluster_policies(of_cluster);
        assert_eq!(
            (said(&world, "default/near").as_str(), said(&world, "other/far").as_str()),
            (near, far),
            "{world:#?}"
        );
    }
}

#[test]
fn nodes_are_peers_by_their_labels() {
    let deny = json!({"subject": {"namespaces": {}}, "egress": [
        {"action": "Accept", "to": [{"nodes": {"matchLabels": {"kind": "gate"}}}], "protocols": [{"tcp": {"destinationPort": {"number": 443}}}]},
        {"action": "Deny", "to": [{"nodes": {}}]}]});
    let web = pod("default", "web", NODE, json!({}), &["10.42.0.2"], json!([]));
    let node = |kind: &str, address: &str| {
        Arc::new(Node { labels: [("kind".to_owned(), kind.to_owned())].into(), addresses: vec![ip(address)] })
    };
    let mut world = world(vec![web], vec![]).with_cluster_policies(vec![cluster_policy("n", "Admin", 0, deny)]);
    world.nodes = [("a".to_owned(), node("gate", "192.0.2.1")), ("b".to_owned(), node("plain", "192.0.2.2"))].into();
    let mut planner = Planner::new(NODE, "cox0");
    let mut check = |world: &World, cases: &[(&str, u16, bool)]| {
        tell(&mut planner, world);
        planner.settle();
        assert_eq!(*planner.plan(), planned(world));
        for (to, port, expected) in cases {
            let web = &world.pods["default/web"];
            let end = End { address: ip(to), pod: None };
            let said = decide(world, Direction::Egress, web, end, Protocol::Tcp, *port);
            assert_eq!(said.is_allowed(), *expected, "{to} {port}");
            assert_eq!(passes(planner.plan(), ip("10.42.0.2"), ip(to), Protocol::Tcp, *port), *expected, "{to} {port}");
        }
    };
    check(
        &world,
        &[("192.0.2.1", 443, true), ("192.0.2.1", 80, false), ("192.0.2.2", 443, false), ("192.0.2.3", 80, true)],
    );
    world.nodes.insert("b".to_owned(), node("gate", "192.0.2.3"));
    check(&world, &[("192.0.2.2", 443, true), ("192.0.2.3", 443, true), ("192.0.2.3", 80, false)]);
    world.nodes.clear();
    check(&world, &[("192.0.2.1", 80, true)]);
}

#[test]
fn names_of_ports_are_those_of_pods_with_addresses_of_their_own() {
    let http = || json!([{"name": "http", "containerPort": 8080}]);
    let pods = |has_network| {
        let mut other = pod("default", "other", "b", json!({}), &["192.0.2.2"], http());
        other.has_network = has_network;
        vec![pod("default", "web", NODE, json!({}), &["10.42.0.2"], http()), other]
    };
    let egress = json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": "http"}]}]});
    for (has_network, expected) in [(true, true), (false, false)] {
        let world = world(pods(has_network), vec![policy("default", "p", egress.clone())]);
        let (web, other) = (&world.pods["default/web"], &world.pods["default/other"]);
        let end = End { address: ip("192.0.2.2"), pod: Some(other) };
        let said = decide(&world, Direction::Egress, web, end, Protocol::Tcp, 8080);
        let found = passes(&planned(&world), ip("10.42.0.2"), ip("192.0.2.2"), Protocol::Tcp, 8080);
        assert_eq!((said.is_allowed(), found), (expected, expected), "{has_network}");
    }
}

#[test]
fn security_a_pod_of_a_namespace_that_is_not_shown_yet_is_closed() {
    let deny = json!({"subject": {"namespaces": {"matchLabels": {"team": "red"}}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}]});
    let pods = vec![
        pod("other", "red", NODE, json!({}), &["10.42.0.2"], json!([])),
        pod("default", "blue", NODE, json!({}), &["10.42.0.3"], json!([])),
        pod("unknown", "new", NODE, json!({}), &["10.42.0.4"], json!([])),
    ];
    let mut world = world(pods, vec![]).with_cluster_policies(vec![cluster_policy("deny", "Admin", 0, deny)]);
    let plan = planned(&world);
    assert!(plan.subjects["ingress4"][&ip("10.42.0.2")].starts_with("jump in-"));
    assert!(!plan.subjects["ingress4"].contains_key(&ip("10.42.0.3")));
    for map in ["egress4", "ingress4"] {
        assert_eq!(plan.subjects[map][&ip("10.42.0.4")], "jump closed");
    }
    // Shown: what its labels say.
    world.namespaces.insert("unknown".to_owned(), BTreeMap::new());
    assert!(!planned(&world).subjects["ingress4"].contains_key(&ip("10.42.0.4")));
    // Without policies of the cluster its labels do not matter.
    world.namespaces.remove("unknown");
    world.cluster_policies.clear();
    assert!(planned(&world).is_empty());
}

#[test]
fn security_an_announced_pod_is_a_peer_before_its_status_shows_it() {
    let deny = json!({"subject": {"namespaces": {}}, "ingress": [{"action": "Deny",
        "from": [{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "bad"}}}}]}]});
    let pods = vec![
        pod("default", "web", NODE, json!({"app": "web"}), &["10.42.0.2"], json!([])),
        pod("default", "new", NODE, json!({"app": "bad"}), &[], json!([])),
    ];
    let world = world(pods, vec![]).with_cluster_policies(vec![cluster_policy("deny", "Admin", 0, deny)]);
    let (from, to) = ("10.42.0.9".parse().unwrap(), "10.42.0.2".parse().unwrap());
    let told = |uid: &str| announced("default/new", uid, &["10.42.0.9"]);
    // Another pod of that name has other labels.
    for (uid, is_peer) in [("new", true), ("earlier", false)] {
        let plan = plan(&world, &[told(uid)]);
        assert_eq!(
            plan.sets.values().any(|set| set.elements.iter().any(|one| one.to_string() == "10.42.0.9")),
            is_peer,
            "{uid}"
        );
    }
    assert!(!passes(&plan(&world, &[told("new")]), from, to, Protocol::Tcp, 80));
}

#[test]
fn security_more_than_is_affordable_is_closed() {
    let pods: Vec<Pod> = (0..300u32)
        .map(|i| {
            let address = std::net::Ipv4Addr::from_bits(0x0a2a_0100 + i).to_string();
            pod("default", &format!("p{i}"), if i == 0 { NODE } else { "b" }, json!({}), &[&address], json!([]))
        })
        .collect();
    // Single ports without neighbours, so that none can be merged.
    let protocols: Vec<Value> = (0..1000).map(|i| json!({"tcp": {"destinationPort": {"number": 2 * i + 1}}})).collect();
    let with = |action: &str| {
        let spec = json!({"subject": {"namespaces": {}},
            "ingress": [{"action": action, "from": [{"namespaces": {}}], "protocols": protocols}]});
        world(pods.clone(), vec![]).with_cluster_policies(vec![cluster_policy("large", "Admin", 0, spec)])
    };
    let (from, to) = ("10.42.1.7".parse().unwrap(), "10.42.1.0".parse().unwrap());
    for (action, is_open) in [("Accept", true), ("Deny", false), ("Pass", false)] {
        assert_eq!(passes(&planned(&with(action)), from, to, Protocol::Tcp, 2), is_open, "{action}");
    }
}

#[test]
fn pods_with_equal_labels_share_them() {
    let of = |name: &str, app: &str| pod("default", name, NODE, json!({"app": app}), &[], json!([]));
    let first = of("a", "web");
    assert!(Arc::ptr_eq(&first.labels, &of("b", "web").labels));
    assert_eq!(of("c", "db").labels["app"], "db");
}
