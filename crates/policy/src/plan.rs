//! What the table must hold for the pods of one node. Pure.
//!
//! A packet's source is looked up among the pods that are isolated in sending, its destination among those isolated in
//! receiving; the verdict leads to a chain that all pods with the same policies share. The chain looks the peer up in at most
//! five sets, and drops what is in none: a packet costs the same however many policies and pods there are.
//!
//! ClusterNetworkPolicies come before that (tier Admin) and in its place (tier Baseline, for pods that no policy selects): their
//! rules in order, where neighbours that say the same are one, with sets like those.
//!
//! A pod of this node has its address as soon as the plug-in announces it, as a subject and as a peer. A peer on another
//! node is known when its address reaches this node through the API: until then no rule that means pods means it.

use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use api::selector::Selector;

use crate::cluster_policy::{Action, ClusterPolicy, ClusterRule, Tier};
use crate::ranges::{Block, Range, disjoint, merged, number, text, without};
use crate::world::{Direction, Peer, Pod, Policy, Protocol, Rule, Which, World};

/// The chain of those of whom nothing is known yet but that a policy may select them.
const CLOSED: &str = "closed";

/// Sets, chains and maps by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) sets: BTreeMap<String, Set>,
    pub(crate) chains: BTreeMap<String, Vec<String>>,
    /// Maps are sets whose elements have values, and are always there.
    pub(crate) subjects: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// The rules that every forwarded packet meets.
    pub(crate) forward: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Set {
    pub(crate) declaration: String,
    pub(crate) elements: BTreeSet<String>,
}

impl Plan {
    /// Nobody is isolated: there need not be a table.
    pub(crate) fn is_empty(&self) -> bool {
        self.subjects.values().all(BTreeMap::is_empty)
    }
}

/// An address that the plug-in announced, of a pod that the API server may not show with it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The maps from an isolated pod's address to its chain, and the set of pairs that are one pod and itself.
pub(crate) const SUBJECTS: [(&str, &str); 4] =
    [("egress4", "ipv4_addr"), ("egress6", "ipv6_addr"), ("ingress4", "ipv4_addr"), ("ingress6", "ipv6_addr")];

pub(crate) fn plan(world: &World, node: &str, bridge: &str, announced: &[Announced]) -> Plan {
    let mut plan = Plan::default();
    for (map, _) in SUBJECTS {
        plan.subjects.insert(map, BTreeMap::new());
    }
    if world.policies.is_empty() && world.cluster_policies.is_empty() {
        return plan;
    }
    let known = with_announced(world, node, announced);
    let world: &World = &known;
    let mut planner = Planner { world, plan, peers: HashMap::new(), classes: HashMap::new() };
    // Those that leave first: an address that was given to another pod is the other's.
    let mut subjects: Vec<&Pod> =
        world.pods.values().map(|pod| &**pod).filter(|pod| pod.node == node && pod.has_network).collect();
    subjects.sort_by_key(|pod| !pod.is_leaving);
    for told in announced {
        // Not shown at all: closed, if there is anything that could select it.
        let is_known = world.pods.get(&told.pod).is_some_and(|pod| pod.uid == told.uid && pod.node == node);
        let namespace = told.pod.split('/').next().unwrap_or_default();
        if !is_known && world.has_policies(namespace) {
            planner.close(&told.addresses);
        }
    }
    for pod in subjects {
        // A namespace that is not shown yet may have any labels, and so be one that a policy of the cluster selects.
        if !world.cluster_policies.is_empty() && !world.namespaces.contains_key(&pod.namespace) {
            planner.close(&pod.addresses);
            continue;
        }
        for direction in [Direction::Egress, Direction::Ingress] {
            let chain = planner.class(pod, direction);
            planner.lead(direction, &pod.addresses, chain);
        }
    }
    planner.finish(bridge)
}

/// The world with the addresses of this node's pods that their statuses do not show yet. Copied only if there are some.
fn with_announced<'w>(world: &'w World, node: &str, announced: &[Announced]) -> Cow<'w, World> {
    let mut known = Cow::Borrowed(world);
    for told in announced {
        let is_it = |pod: &&Arc<Pod>| pod.uid == told.uid && pod.node == node && pod.has_network;
        let Some(pod) = known.pods.get(&told.pod).filter(is_it) else { continue };
        let new: Vec<IpAddr> =
            told.addresses.iter().copied().filter(|address| !pod.addresses.contains(address)).collect();
        if new.is_empty() {
            continue;
        }
        let mut pod = Pod::clone(pod);
        pod.addresses.extend(new);
        known.to_mut().pods.insert(told.pod.clone(), Arc::new(pod));
    }
    known
}

struct Planner<'a> {
    world: &'a World,
    plan: Plan,
    /// Pods that a peer of a policy stands for; several rules often mean the same.
    peers: HashMap<String, Arc<Vec<&'a Pod>>>,
    classes: HashMap<Class, String>,
}

/// Pods that the same policies select, and that mean the same by the names of ports, share a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Class {
    direction: Direction,
    policies: Vec<String>,
    /// Names of policies of the cluster.
    cluster: Vec<String>,
    named: Vec<(String, Protocol, Option<u16>)>,
}

/// What a class of pods may exchange packets with.
#[derive(Default)]
struct Allowed {
    everything: bool,
    /// Pods, on all ports and protocols.
    pods: BTreeSet<IpAddr>,
    /// Pods, on single ports.
    pod_ports: BTreeSet<(IpAddr, Protocol, u16)>,
    /// Ranges on all ports and protocols.
    blocks: [Vec<Range>; 2],
    /// Ranges, and pods, on ranges of ports.
    ranges: [Vec<Block>; 2],
    /// Ports for everyone.
    open: Vec<(Protocol, (u16, u16))>,
    /// Pairs of peers and ports so far.
    pairs: usize,
}

/// More pairs of peers and ports than this would cost the node more than a policy may: a set of this size takes some
/// seconds and some tens of megabytes. What is beyond is not allowed.
const MAX_PAIRS: usize = 1 << 18;

impl Allowed {
    fn affords(&mut self, peers: usize, ports: usize, policy: &str) -> bool {
        self.pairs = self.pairs.saturating_add(peers.saturating_mul(ports));
        let affords = self.pairs <= MAX_PAIRS;
        if !affords {
            tracing::error!(
                policy,
                "a network policy names more than {MAX_PAIRS} pairs of peers and ports: those beyond stay closed"
            );
        }
        affords
    }
}

/// The same ports in as few ranges as there can be.
fn merged_ports(ports: Vec<(Protocol, (u16, u16))>) -> Vec<(Protocol, (u16, u16))> {
    let mut by_protocol: BTreeMap<Protocol, Vec<Range>> = BTreeMap::new();
    for (protocol, (first, last)) in ports {
        by_protocol.entry(protocol).or_default().push((first.into(), last.into()));
    }
    let all = by_protocol.into_iter().flat_map(|(protocol, ranges)| {
        merged(ranges).into_iter().map(move |(first, last)| (protocol, (first as u16, last as u16)))
    });
    all.collect()
}

impl<'a> Planner<'a> {
    /// The chain for a pod's packets of a direction; none where nothing isolates it.
    fn class(&mut self, pod: &'a Pod, direction: Direction) -> Option<String> {
        let policies: Vec<&Arc<Policy>> = self.world.policies_of(pod, direction).collect();
        let of_tier = |tier| self.world.cluster_rules(pod, tier, direction);
        let before = of_tier(Tier::Admin);
        // Policies of the namespace have the last word.
        let after = if policies.is_empty() { of_tier(Tier::Baseline) } else { Vec::new() };
        if policies.is_empty() && before.is_empty() && after.is_empty() {
            return None;
        }
        let of_cluster = || before.iter().chain(&after);
        let rules = policies.iter().flat_map(|policy| policy.rules(direction).unwrap_or_default());
        let rules = rules.chain(of_cluster().map(|(_, rule)| &rule.rule));
        let mut cluster: Vec<String> = of_cluster().map(|(policy, _)| policy.name.clone()).collect();
        cluster.dedup();
        let class = Class {
            direction,
            policies: policies.iter().map(|policy| policy.key()).collect(),
            cluster,
            named: match direction {
                Direction::Ingress => named_ports(rules)
                    .into_iter()
                    .map(|(name, protocol)| {
                        let number = pod.port(&name, protocol);
                        (name, protocol, number)
                    })
                    .collect(),
                Direction::Egress => Vec::new(),
            },
        };
        if let Some(chain) = self.classes.get(&class) {
            return Some(chain.clone());
        }
        let chain = self.write(&class, &before, &policies, &after, pod);
        self.classes.insert(class, chain.clone());
        Some(chain)
    }

    /// Adds what rules of a policy in `namespace` mean. `subject` says what names of its own ports mean. Whether all of it is
    /// affordable.
    fn allow<'r>(
        &mut self,
        rules: impl IntoIterator<Item = &'r Rule>,
        (policy, namespace): (&str, &str),
        direction: Direction,
        subject: &'a Pod,
        allowed: &mut Allowed,
    ) -> bool {
        for rule in rules {
            // None: all ports. Names of the subject's ports are numbers from here on.
            let mut numbers: Option<Vec<(Protocol, (u16, u16))>> = None;
            let mut names: Vec<(&str, Protocol)> = Vec::new();
            if let Some(ports) = &rule.ports {
                let mut known = Vec::new();
                for port in ports {
                    match (&port.which, direction) {
                        (Which::Numbers(first, last), _) => known.push((port.protocol, (*first, *last))),
                        (Which::Named(name), Direction::Ingress) => {
                            known.extend(subject.port(name, port.protocol).map(|n| (port.protocol, (n, n))));
                        }
                        (Which::Named(name), Direction::Egress) => names.push((name, port.protocol)),
                    }
                }
                numbers = Some(merged_ports(known));
            }
            let Some(peers) = &rule.peers else {
                match numbers {
                    None => allowed.everything = true,
                    Some(numbers) => allowed.open.extend(numbers),
                }
                if !names.is_empty() {
                    allow_names(&self.everyone(), &names, |_| true, allowed);
                }
                continue;
            };
            for peer in peers {
                if let Peer::Block { range, except } = peer {
                    let left = without(*range, except);
                    if !names.is_empty() {
                        // Only pods have names for ports, also where they are meant by address.
                        let is_left = |address: IpAddr| {
                            range.contains(address) && !except.iter().any(|except| except.contains(address))
                        };
                        allow_names(&self.everyone(), &names, is_left, allowed);
                    }
                    let family = usize::from(range.is_v6());
                    match &numbers {
                        None => allowed.blocks[family].extend(left),
                        Some(numbers) => {
                            if !allowed.affords(left.len(), numbers.len(), policy) {
                                return false;
                            }
                            for (protocol, ports) in numbers {
                                allowed.ranges[family].extend(left.iter().map(|range| (*range, *protocol, *ports)));
                            }
                        }
                    }
                    continue;
                }
                let pods = self.pods_of(peer, namespace);
                if !allowed.affords(pods.len(), names.len() + numbers.as_ref().map_or(1, Vec::len), policy) {
                    return false;
                }
                allow_names(&pods, &names, |_| true, allowed);
                for address in pods.iter().flat_map(|pod| pod.addresses.iter().copied()) {
                    match &numbers {
                        None => drop(allowed.pods.insert(address)),
                        Some(numbers) => {
                            for (protocol, (first, last)) in numbers {
                                if first == last {
                                    allowed.pod_ports.insert((address, *protocol, *first));
                                } else {
                                    let bits = number(address);
                                    let block = ((bits, bits), *protocol, (*first, *last));
                                    allowed.ranges[usize::from(address.is_ipv6())].push(block);
                                }
                            }
                        }
                    }
                }
            }
        }
        true
    }

    /// The rules of a tier, neighbours with the same action as one.
    fn groups(
        &mut self,
        rules: &[(&Arc<ClusterPolicy>, &ClusterRule)],
        direction: Direction,
        subject: &'a Pod,
    ) -> Vec<(Action, Allowed)> {
        let mut groups: Vec<(Action, Allowed)> = Vec::new();
        for (policy, rule) in rules {
            let mut meant = match groups.pop_if(|(action, _)| *action == rule.action) {
                Some((_, meant)) => meant,
                None => Allowed::default(),
            };
            let affords = self.allow([&rule.rule], (&policy.name, ""), direction, subject, &mut meant);
            groups.push((rule.action, meant));
            // What cannot be told from the rest is forbidden with it, and what would be accepted is not.
            if !affords && rule.action != Action::Accept {
                groups.push((Action::Deny, Allowed { everything: true, ..Allowed::default() }));
            }
        }
        groups
    }

    fn everyone(&mut self) -> Arc<Vec<&'a Pod>> {
        let (namespaces, pods) = (Some(Selector::everything()), Selector::everything());
        self.pods_of(&Peer::Pods { namespaces, pods }, "")
    }

    fn pods_of(&mut self, peer: &Peer, namespace: &str) -> Arc<Vec<&'a Pod>> {
        let key = match peer {
            Peer::Pods { namespaces: Some(namespaces), pods } => format!("{namespaces:?} {pods:?}"),
            Peer::Pods { namespaces: None, pods } => format!("{namespace} {pods:?}"),
            Peer::Block { .. } => return Arc::default(),
        };
        if let Some(found) = self.peers.get(&key) {
            return found.clone();
        }
        let world = self.world;
        let found: Vec<&Pod> = match peer {
            Peer::Pods { namespaces: None, .. } => {
                let prefix = format!("{namespace}/");
                let of_namespace = world.pods.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
                of_namespace.map(|(_, pod)| &**pod).filter(|pod| world.is_peer(pod, peer, namespace)).collect()
            }
            _ => world.pods.values().map(|pod| &**pod).filter(|pod| world.is_peer(pod, peer, namespace)).collect(),
        };
        let found = Arc::new(found.into_iter().filter(|pod| pod.has_network).collect::<Vec<_>>());
        self.peers.insert(key, found.clone());
        found
    }

    /// Writes the chain of a class and its sets; returns the chain's name.
    fn write(
        &mut self,
        class: &Class,
        before: &[(&Arc<ClusterPolicy>, &ClusterRule)],
        policies: &[&Arc<Policy>],
        after: &[(&Arc<ClusterPolicy>, &ClusterRule)],
        subject: &'a Pod,
    ) -> String {
        let direction = class.direction;
        let word = match direction {
            Direction::Ingress => "in",
            Direction::Egress => "out",
        };
        let chain = format!("{word}-{}", hash(class));
        let mut rules = Vec::new();
        // Where what passes the first tier goes on: in a chain of its own if there is anything that passes before the end.
        let next = format!("{chain}-next");
        for (place, (action, meant)) in self.groups(before, direction, subject).into_iter().enumerate() {
            let verdict = match action {
                Action::Accept => "return",
                Action::Deny => "drop",
                Action::Pass => &format!("goto {next}"),
            };
            rules.extend(self.lookups(&format!("{chain}-a{place}"), direction, meant, verdict));
        }
        let mut rest = Vec::new();
        if policies.is_empty() {
            for (place, (action, meant)) in self.groups(after, direction, subject).into_iter().enumerate() {
                let verdict = if action == Action::Deny { "drop" } else { "return" };
                rest.extend(self.lookups(&format!("{chain}-b{place}"), direction, meant, verdict));
            }
        } else {
            let mut allowed = Allowed::default();
            for policy in policies {
                let rules = policy.rules(direction).unwrap_or_default();
                self.allow(rules, (&policy.key(), &policy.namespace), direction, subject, &mut allowed);
            }
            rest.extend(self.lookups(&chain, direction, allowed, "return"));
            if rest.last().is_none_or(|rule| rule != "return") {
                rest.push("drop".to_owned());
            }
        }
        if rules.iter().any(|rule| rule.ends_with(&next)) {
            rules.push(format!("goto {next}"));
            self.plan.chains.insert(next, rest);
        } else {
            rules.extend(rest);
        }
        self.plan.chains.insert(chain.clone(), rules);
        chain
    }

    /// The rules that give a verdict to what is meant, and their sets, whose names begin with `chain`.
    fn lookups(&mut self, chain: &str, direction: Direction, allowed: Allowed, verdict: &str) -> Vec<String> {
        if allowed.everything {
            return vec![verdict.to_owned()];
        }
        let side = match direction {
            Direction::Ingress => "saddr",
            Direction::Egress => "daddr",
        };
        let mut rules = Vec::new();
        for (family, ip, addr) in [(0, "ip", "ipv4_addr"), (1, "ip6", "ipv6_addr")] {
            let is_v6 = family == 1;
            let digit = if is_v6 { 6 } else { 4 };
            let of_family = |address: &&IpAddr| address.is_ipv6() == is_v6;
            // These follow pods that come and go: they keep their names, and change by elements.
            let pods: BTreeSet<String> = allowed.pods.iter().filter(of_family).map(IpAddr::to_string).collect();
            if !pods.is_empty() {
                let name = format!("{chain}-pods{digit}");
                rules.push(format!("{ip} {side} @{name} {verdict}"));
                self.set(name, format!("{{ type {addr} ; }}"), pods);
            }
            let key = format!("{ip} {side} . meta l4proto . th dport");
            let ports: BTreeSet<String> = allowed
                .pod_ports
                .iter()
                .filter(|(address, ..)| address.is_ipv6() == is_v6)
                .map(|(address, protocol, port)| format!("{address} . {} . {port}", protocol.name()))
                .collect();
            if !ports.is_empty() {
                let name = format!("{chain}-ports{digit}");
                rules.push(format!("{key} @{name} {verdict}"));
                self.set(name, format!("{{ type {addr} . inet_proto . inet_service ; }}"), ports);
            }
            // Ranges stand for what they hold: another content is another set.
            let blocks: BTreeSet<String> =
                merged(allowed.blocks[family].clone()).into_iter().map(|range| text(range, is_v6)).collect();
            if !blocks.is_empty() {
                let name = format!("blocks{digit}-{}", hash(&blocks));
                rules.push(format!("{ip} {side} @{name} {verdict}"));
                self.set(name, format!("{{ type {addr} ; flags interval ; }}"), blocks);
            }
            let ranges: BTreeSet<String> = disjoint(&allowed.ranges[family])
                .into_iter()
                .map(|(range, protocol, ports)| {
                    format!("{} . {} . {}", text(range, is_v6), protocol.name(), span(ports))
                })
                .collect();
            if !ranges.is_empty() {
                let name = format!("ranges{digit}-{}", hash(&ranges));
                rules.push(format!("{key} @{name} {verdict}"));
                self.set(name, format!("{{ type {addr} . inet_proto . inet_service ; flags interval ; }}"), ranges);
            }
        }
        let open: Vec<Block> = allowed.open.iter().map(|(protocol, ports)| ((0, 0), *protocol, *ports)).collect();
        let open: BTreeSet<String> = disjoint(&open)
            .into_iter()
            .map(|(_, protocol, ports)| format!("{} . {}", protocol.name(), span(ports)))
            .collect();
        if !open.is_empty() {
            let name = format!("open-{}", hash(&open));
            rules.push(format!("meta l4proto . th dport @{name} {verdict}"));
            self.set(name, "{ type inet_proto . inet_service ; flags interval ; }".to_owned(), open);
        }
        rules
    }

    fn set(&mut self, name: String, declaration: String, elements: BTreeSet<String>) {
        self.plan.sets.insert(name, Set { declaration, elements });
    }

    fn close(&mut self, addresses: &[IpAddr]) {
        self.plan.chains.insert(CLOSED.to_owned(), vec!["drop".to_owned()]);
        for direction in [Direction::Egress, Direction::Ingress] {
            self.lead(direction, addresses, Some(CLOSED.to_owned()));
        }
    }

    /// Leads packets of these addresses to a chain, or past all of them.
    fn lead(&mut self, direction: Direction, addresses: &[IpAddr], chain: Option<String>) {
        for address in addresses {
            let map = match (direction, address) {
                (Direction::Egress, IpAddr::V4(_)) => "egress4",
                (Direction::Egress, IpAddr::V6(_)) => "egress6",
                (Direction::Ingress, IpAddr::V4(_)) => "ingress4",
                (Direction::Ingress, IpAddr::V6(_)) => "ingress6",
            };
            let map = self.plan.subjects.entry(map).or_default();
            match &chain {
                Some(chain) => drop(map.insert(address.to_string(), format!("jump {chain}"))),
                None => drop(map.remove(&address.to_string())),
            }
        }
    }

    fn finish(mut self, bridge: &str) -> Plan {
        if self.plan.is_empty() {
            return Plan { subjects: self.plan.subjects, ..Plan::default() };
        }
        // Chains of pods whose address another pod has got since, which nothing leads to.
        let led: BTreeSet<String> = self
            .plan
            .subjects
            .values()
            .flat_map(BTreeMap::values)
            .filter_map(|verdict| verdict.strip_prefix("jump ").map(str::to_owned))
            .collect();
        self.plan.chains.retain(|name, _| led.contains(name.strip_suffix("-next").unwrap_or(name)));
        for (name, digit, addr) in [("self4", '4', "ipv4_addr"), ("self6", '6', "ipv6_addr")] {
            let of_family = self.plan.subjects.iter().filter(|(map, _)| map.ends_with(digit));
            let pairs =
                of_family.flat_map(|(_, map)| map.keys()).map(|address| format!("{address} . {address}")).collect();
            self.plan
                .sets
                .insert(name.to_owned(), Set { declaration: format!("{{ type {addr} . {addr} ; }}"), elements: pairs });
        }
        self.plan.forward = vec![
            // Every packet of whoever began is judged, so that a change of policy ends what it forbids; answers follow.
            "ct direction reply ct state established,related accept".to_owned(),
            // Neighbour discovery and multicast groups: without them nobody has an address to be judged by. Not advertisements
            // of routers and redirects: pods are none.
            "icmpv6 type { 130, 131, 132, 135, 136, 143 } accept".to_owned(),
            // Errors about what a pod sends, such as a packet too big for a link on its way.
            "ct state related meta l4proto icmp accept".to_owned(),
            "ct state related meta l4proto icmpv6 accept".to_owned(),
            // Link-local addresses are nobody's that a policy could name.
            format!("iifname \"{bridge}\" ip6 saddr fe80::/10 drop"),
            format!("iifname \"{bridge}\" ip6 daddr fe80::/10 drop"),
            // What is for everyone is for no pod that a policy could name.
            format!("iifname \"{bridge}\" oifname \"{bridge}\" meta pkttype broadcast drop"),
            format!("iifname \"{bridge}\" oifname \"{bridge}\" meta pkttype multicast drop"),
            "ip saddr . ip daddr @self4 accept".to_owned(),
            "ip6 saddr . ip6 daddr @self6 accept".to_owned(),
            "ip saddr vmap @egress4".to_owned(),
            "ip6 saddr vmap @egress6".to_owned(),
            "ip daddr vmap @ingress4".to_owned(),
            "ip6 daddr vmap @ingress6".to_owned(),
        ];
        self.plan
    }
}

/// Names of ports that are asked for, each once.
fn named_ports<'r>(rules: impl Iterator<Item = &'r Rule>) -> BTreeSet<(String, Protocol)> {
    let ports = rules.flat_map(|rule| rule.ports.iter().flatten());
    let name = |port: &crate::world::Port| match &port.which {
        Which::Named(name) => Some((name.clone(), port.protocol)),
        Which::Numbers(..) => None,
    };
    ports.filter_map(name).collect()
}

/// Ports that each pod has another number for.
fn allow_names(pods: &[&Pod], names: &[(&str, Protocol)], is_meant: impl Fn(IpAddr) -> bool, allowed: &mut Allowed) {
    for pod in pods {
        for (name, protocol) in names {
            if let Some(number) = pod.port(name, *protocol) {
                let addresses = pod.addresses.iter().filter(|address| is_meant(**address));
                allowed.pod_ports.extend(addresses.map(|address| (*address, *protocol, number)));
            }
        }
    }
}

fn span((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Fixed keys: the same has the same name after a restart.
fn hash(what: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
