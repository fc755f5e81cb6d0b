//! What the rules of a chain mean, as sets to look a peer up in.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use api::selector::Selector;

use super::contents::{Draft, Element};
use super::peers::{Kind, MAX_PAIRS, Peers, Ports, Term, Terms, What};
use crate::cluster_policy::{Action, ClusterPolicy, ClusterRule};
use crate::ranges::{Range, merged, text, without};
use crate::world::{Direction, Peer, Policy, Protocol, Rule, Which, World};

/// So few peers of a chain have sets of their own, which other chains that mean them share; more are gathered in one set, so
/// that a packet is not looked for in all of them.
const MAX_APART: usize = 4;

/// The declaration of a set of ports.
const PORTS: &str = "{ type inet_proto . inet_service ; flags interval ; }";

/// Pods that the same policies select, and that mean the same by the names of ports, share a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) direction: Direction,
    pub(super) policies: Vec<String>,
    /// Names of policies of the cluster, in the order in which they are asked.
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
    pub(super) named: Vec<(String, Protocol, Option<u16>)>,
}

impl Class {
    pub(super) fn chain(&self) -> String {
        let word = match self.direction {
            Direction::Ingress => "in",
            Direction::Egress => "out",
        };
        format!("{word}-{}", hash(self))
    }

    /// What the name of a port of these pods stands for.
    fn port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.named.iter().find(|(known, of, _)| known == name && *of == protocol).and_then(|(.., number)| *number)
    }
}

/// What a chain does, one after the other.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    before: Vec<Group>,
    after: Vec<Group>,
    /// What the policies of the namespace allow, where there are any.
    allowed: Option<Group>,
}

/// What gets the same verdict at the same place.
#[derive(Debug)]
struct Group {
    action: Action,
    everything: bool,
    gathered: Vec<Gathered>,
    /// Ranges of addresses on all ports, by family, and ports for everyone.
    blocks: [BTreeSet<Element>; 2],
    open: BTreeSet<Element>,
}

/// A set of peers, and the ports that go with all of them where the set does not say it.
#[derive(Debug)]
struct Gathered {
    kind: Kind,
    name: Arc<str>,
    ports: BTreeSet<Element>,
}

/// A chain as it is written: its rules, those of the chain that it goes on in, and sets that are named after what they hold.
pub(super) struct Written {
    pub(super) rules: Vec<String>,
    pub(super) next: Option<Vec<String>>,
    pub(super) sets: BTreeMap<String, (String, BTreeSet<Element>)>,
}

/// Where what passes the first tier goes on.
pub(crate) fn next_of(chain: &str) -> String {
    format!("{chain}-next")
}

impl Meaning {
    /// What the policies of a class say, for the chain of that name.
    pub(super) fn new(class: &Class, chain: &str, world: &World, peers: &mut Peers, draft: &mut Draft) -> Self {
        let mut reader = Reader { class, chain, world, peers, draft };
        let mut meaning =
            Self { before: reader.groups(&class.before), after: reader.groups(&class.after), allowed: None };
        if !class.policies.is_empty() {
            let mut allowed = Said::default();
            for key in &class.policies {
                let Some(policy) = world.policies.get(key) else { continue };
                let rules = policy.rules(class.direction).unwrap_or_default();
                reader.read(rules, key, &policy.namespace, &mut allowed);
            }
            meaning.allowed = Some(reader.group(Action::Accept, allowed));
        }
        meaning
    }

    pub(super) fn gathered(&self) -> impl Iterator<Item = &Arc<str>> {
        let groups = self.before.iter().chain(&self.after).chain(&self.allowed);
        groups.flat_map(|group| group.gathered.iter().map(|gathered| &gathered.name))
    }

    pub(super) fn write(&self, chain: &str, direction: Direction, peers: &Peers) -> Written {
        let mut written = Written { rules: Vec::new(), next: None, sets: BTreeMap::new() };
        // In a chain of its own if there is anything that passes before the end.
        let next = next_of(chain);
        for group in &self.before {
            let verdict = match group.action {
                Action::Accept => "return",
                Action::Deny => "drop",
                Action::Pass => &format!("goto {next}"),
            };
            let rules = group.write(direction, verdict, peers, &mut written.sets);
            written.rules.extend(rules);
        }
        let mut rest = Vec::new();
        for group in &self.after {
            let verdict = if group.action == Action::Deny { "drop" } else { "return" };
            rest.extend(group.write(direction, verdict, peers, &mut written.sets));
        }
        if let Some(allowed) = &self.allowed {
            rest.extend(allowed.write(direction, "return", peers, &mut written.sets));
            if rest.last().is_none_or(|rule| rule != "return") {
                rest.push("drop".to_owned());
            }
        }
        if written.rules.iter().any(|rule| rule.ends_with(&next)) {
            written.rules.push(format!("goto {next}"));
            written.next = Some(rest);
        } else {
            written.rules.extend(rest);
        }
        written
    }
}

impl Group {
    /// The rules that give a verdict to what is meant.
    fn write(
        &self,
        direction: Direction,
        verdict: &str,
        peers: &Peers,
        sets: &mut BTreeMap<String, (String, BTreeSet<Element>)>,
    ) -> Vec<String> {
        if self.everything {
            return vec![verdict.to_owned()];
        }
        let side = match direction {
            Direction::Ingress => "saddr",
            Direction::Egress => "daddr",
        };
        let mut rules = Vec::new();
        let mut is_too_large = false;
        let mut held = |word: &str, declaration: String, elements: BTreeSet<Element>| {
            (!elements.is_empty()).then(|| {
                let name = format!("{word}-{}", hash(&elements));
                sets.insert(name.clone(), (declaration, elements));
                name
            })
        };
        for (family, ip, digit, address) in [(0, "ip", 4, "ipv4_addr"), (1, "ip6", 6, "ipv6_addr")] {
            let is_v6 = family == 1;
            let ports = format!("{ip} {side} . meta l4proto . th dport");
            let mut ranges = None;
            for Gathered { kind, name, ports: together } in &self.gathered {
                let known = peers.sets(name);
                is_too_large |= known.is_too_large;
                let set = known.names[family].as_deref();
                match kind {
                    Kind::Pods if !together.is_empty() => {
                        let both = set.zip(held("open", PORTS.to_owned(), together.clone()));
                        let rule =
                            |(set, open)| format!("{ip} {side} @{set} meta l4proto . th dport @{open} {verdict}");
                        rules.extend(both.map(rule));
                    }
                    Kind::Pods => rules.extend(set.map(|set| format!("{ip} {side} @{set} {verdict}"))),
                    Kind::Ports => rules.extend(set.map(|set| format!("{ports} @{set} {verdict}"))),
                    Kind::Ranges => match peers.ranges(name, is_v6) {
                        None => is_too_large = true,
                        Some(elements) => {
                            ranges = held(&format!("ranges{digit}"), Kind::Ranges.declaration(is_v6), elements);
                        }
                    },
                }
            }
            let declaration = format!("{{ type {address} ; flags interval ; }}");
            let blocks = held(&format!("blocks{digit}"), declaration, self.blocks[family].clone());
            rules.extend(blocks.map(|set| format!("{ip} {side} @{set} {verdict}")));
            rules.extend(ranges.map(|set| format!("{ports} @{set} {verdict}")));
        }
        let open = held("open", PORTS.to_owned(), self.open.clone());
        rules.extend(open.map(|set| format!("meta l4proto . th dport @{set} {verdict}")));
        // What cannot be told from the rest is forbidden with it, and what would be accepted is not.
        if is_too_large && self.action != Action::Accept {
            rules.push("drop".to_owned());
        }
        rules
    }
}

/// What rules say, before it is made into sets.
#[derive(Default)]
struct Said {
    everything: bool,
    pods: BTreeSet<Term>,
    ports: BTreeSet<Term>,
    ranges: Terms,
    /// Ranges on all ports and protocols.
    blocks: [Vec<Range>; 2],
    /// Ports for everyone.
    open: Vec<Ports>,
    /// Pairs of peers, or ranges, and ports so far.
    pairs: usize,
}

impl Said {
    fn affords(&mut self, peers: usize, ports: usize, policy: &str) -> bool {
        if ports == 0 {
            return true;
        }
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

struct Reader<'a> {
    class: &'a Class,
    chain: &'a str,
    world: &'a World,
    peers: &'a mut Peers,
    draft: &'a mut Draft,
}

impl Reader<'_> {
    /// The rules of policies of the cluster, neighbours with the same action as one.
    fn groups(&mut self, policies: &[String]) -> Vec<Group> {
        let mut groups: Vec<(Action, Said)> = Vec::new();
        for name in policies {
            let Some(policy) = self.world.cluster_policies.get(name) else { continue };
            for rule in policy.rules(self.class.direction) {
                let mut said = match groups.pop_if(|(action, _)| *action == rule.action) {
                    Some((_, said)) => said,
                    None => Said::default(),
                };
                let affords = self.read([&rule.rule], name, "", &mut said);
                groups.push((rule.action, said));
                if !affords && rule.action != Action::Accept {
                    groups.push((Action::Deny, Said { everything: true, ..Said::default() }));
                }
            }
        }
        groups.into_iter().map(|(action, said)| self.group(action, said)).collect()
    }

    fn group(&mut self, action: Action, said: Said) -> Group {
        let mut group = Group {
            action,
            everything: said.everything,
            gathered: Vec::new(),
            blocks: [false, true].map(|is_v6| {
                let blocks = merged(said.blocks[usize::from(is_v6)].clone());
                blocks.into_iter().map(|range| Element::Text(text(range, is_v6))).collect()
            }),
            open: BTreeSet::new(),
        };
        group.open = port_elements(&said.open);
        if !said.everything {
            let of = |terms| Terms { terms, ..Terms::default() };
            let mut ranges = said.ranges;
            for blocks in &mut ranges.blocks {
                blocks.sort_unstable();
                blocks.dedup();
            }
            let mut together = Vec::new();
            if ranges.terms.len() <= MAX_APART {
                for Term { selection, within, what } in std::mem::take(&mut ranges.terms) {
                    if let What::Ranges(ports) = what {
                        together
                            .push((of([Term { selection, within, what: What::All }].into()), port_elements(&ports)));
                    }
                }
            }
            let mut all = vec![(Kind::Ranges, ranges)];
            for (kind, terms) in [(Kind::Ports, said.ports), (Kind::Pods, said.pods)] {
                match terms.len() <= MAX_APART {
                    true => all.extend(terms.into_iter().rev().map(|term| (kind, of([term].into())))),
                    false => all.push((kind, of(terms))),
                }
            }
            let all = all.into_iter().rev().filter(|(_, terms)| !terms.is_empty());
            let alone = all.map(|(kind, terms)| (kind, terms, BTreeSet::new()));
            let together = together.into_iter().map(|(terms, ports)| (Kind::Pods, terms, ports));
            for (kind, terms, ports) in alone.chain(together) {
                let name = self.peers.gather(kind, terms, self.chain, self.draft);
                group.gathered.push(Gathered { kind, name, ports });
            }
        }
        group
    }

    /// Adds what rules of a policy in `namespace` mean. Whether all of it is affordable.
    fn read<'r>(
        &mut self,
        rules: impl IntoIterator<Item = &'r Rule>,
        policy: &str,
        namespace: &str,
        said: &mut Said,
    ) -> bool {
        for rule in rules {
            // None: all ports. Names of the pods' own ports are numbers from here on.
            let mut numbers: Option<Vec<Ports>> = None;
            let mut names: Vec<(String, Protocol)> = Vec::new();
            if let Some(ports) = &rule.ports {
                let mut known = Vec::new();
                for port in ports {
                    match (&port.which, self.class.direction) {
                        (Which::Numbers(first, last), _) => known.push((port.protocol, (*first, *last))),
                        (Which::Named(name), Direction::Ingress) => {
                            known.extend(self.class.port(name, port.protocol).map(|n| (port.protocol, (n, n))));
                        }
                        (Which::Named(name), Direction::Egress) => names.push((name.clone(), port.protocol)),
                    }
                }
                numbers = Some(merged_ports(known));
            }
            names.sort();
            names.dedup();
            let Some(peers) = &rule.peers else {
                match numbers {
                    None => said.everything = true,
                    Some(numbers) => said.open.extend(numbers),
                }
                self.read_names(names, None, said);
                continue;
            };
            for peer in peers {
                if let Peer::Block { range, except } = peer {
                    if !said.affords(1, names.len(), policy) {
                        return false;
                    }
                    // Only pods have names for ports, also where they are meant by address.
                    self.read_names(names.clone(), Some((*range, except.clone())), said);
                    let left = without(*range, except);
                    let family = usize::from(range.is_v6());
                    match &numbers {
                        None => said.blocks[family].extend(left),
                        Some(numbers) => {
                            if !said.affords(left.len(), numbers.len(), policy) {
                                return false;
                            }
                            for (protocol, ports) in numbers {
                                said.ranges.blocks[family].extend(left.iter().map(|one| (*one, *protocol, *ports)));
                            }
                        }
                    }
                    continue;
                }
                // Each has a list of all ports, whoever it selects.
                if !said.affords(1, numbers.as_ref().map_or(0, Vec::len) + names.len(), policy) {
                    return false;
                }
                let Some(selection) = self.peers.select(self.world, peer, namespace) else { continue };
                let term = |what| Term { selection: selection.clone(), within: None, what };
                if !names.is_empty() {
                    said.ports.insert(term(What::Names(names.clone())));
                }
                let Some(numbers) = &numbers else {
                    said.pods.insert(term(What::All));
                    continue;
                };
                let (single, wide): (Vec<Ports>, Vec<Ports>) =
                    numbers.iter().partition(|(_, (first, last))| first == last);
                if !single.is_empty() {
                    let single = single.into_iter().map(|(protocol, (port, _))| (protocol, port)).collect();
                    said.ports.insert(term(What::Numbers(single)));
                }
                if !wide.is_empty() {
                    said.ranges.terms.insert(term(What::Ranges(wide)));
                }
            }
        }
        true
    }

    /// Ports that each pod has another number for, of everyone within a range.
    fn read_names(
        &mut self,
        names: Vec<(String, Protocol)>,
        within: Option<(api::cidr::Cidr, Vec<api::cidr::Cidr>)>,
        said: &mut Said,
    ) {
        let everyone = Peer::Pods { namespaces: Some(Selector::everything()), pods: Selector::everything() };
        if !names.is_empty()
            && let Some(selection) = self.peers.select(self.world, &everyone, "")
        {
            said.ports.insert(Term { selection, within, what: What::Names(names) });
        }
    }
}

/// The class of pods that these policies select, by what is asked of a pod's own ports.
pub(super) fn class(
    direction: Direction,
    policies: &[&Arc<Policy>],
    before: &[(&Arc<ClusterPolicy>, &ClusterRule)],
    after: &[(&Arc<ClusterPolicy>, &ClusterRule)],
    port: impl Fn(&str, Protocol) -> Option<u16>,
) -> Class {
    let names = |rules: &[(&Arc<ClusterPolicy>, &ClusterRule)]| {
        let mut names: Vec<String> = rules.iter().map(|(policy, _)| policy.name.clone()).collect();
        names.dedup();
        names
    };
    let mut named = BTreeSet::new();
    if direction == Direction::Ingress {
        let rules = policies.iter().flat_map(|policy| policy.rules(direction).unwrap_or_default());
        let rules = rules.chain(before.iter().chain(after).map(|(_, rule)| &rule.rule));
        for asked in rules.flat_map(|rule| rule.ports.iter().flatten()) {
            if let Which::Named(name) = &asked.which {
                named.insert((name.clone(), asked.protocol));
            }
        }
    }
    let numbered = |(name, protocol): (String, Protocol)| {
        let number = port(&name, protocol);
        (name, protocol, number)
    };
    Class {
        direction,
        policies: policies.iter().map(|policy| policy.key()).collect(),
        before: names(before),
        after: names(after),
        named: named.into_iter().map(numbered).collect(),
    }
}

/// The same ports in as few ranges as there can be.
fn merged_ports(ports: Vec<Ports>) -> Vec<Ports> {
    let mut by_protocol: BTreeMap<Protocol, Vec<Range>> = BTreeMap::new();
    for (protocol, (first, last)) in ports {
        by_protocol.entry(protocol).or_default().push((first.into(), last.into()));
    }
    let all = by_protocol.into_iter().flat_map(|(protocol, ranges)| {
        merged(ranges).into_iter().map(move |(first, last)| (protocol, (first as u16, last as u16)))
    });
    all.collect()
}

fn port_elements(ports: &[Ports]) -> BTreeSet<Element> {
    let element = |(protocol, ports): Ports| Element::Text(format!("{} . {}", protocol.name(), span(ports)));
    merged_ports(ports.to_vec()).into_iter().map(element).collect()
}

pub(super) fn span((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Fixed keys: the same has the same name after a restart.
pub(super) fn hash(what: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
