//! Whom rules mean: the members of selections, and the sets that are gathered from them.
//!
//! A selection is what a peer of a rule stands for: `{app: web}` of a namespace. A gathering is the set that a chain looks a
//! peer up in, made of terms: a selection and the ports that go with it. Chains whose terms are the same share it. When a pod
//! changes, the selections that could mean it are asked, and what a term makes of the pod is counted in or out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use api::cidr::Cidr;
use api::selector::Selector;

use super::contents::{Draft, Element};
use crate::ranges::{Block, disjoint, number, text};
use crate::world::{Labels, Node, Peer, Pod, Protocol, World};

/// More pairs of peers and ports than this would cost the node more than a policy may: a set of this size takes some
/// seconds and some tens of megabytes.
pub(super) const MAX_PAIRS: usize = 1 << 18;

pub(super) type Ports = (Protocol, (u16, u16));

/// Peers of a selection, and what of them is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term {
    pub(super) selection: Arc<str>,
    /// Only those with an address in here.
    pub(super) within: Option<(Cidr, Vec<Cidr>)>,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum What {
    /// All ports and protocols.
    All,
    Numbers(Vec<(Protocol, u16)>),
    /// By the number that each pod has for the name.
    Names(Vec<(String, Protocol)>),
    Ranges(Vec<Ports>),
}

impl Term {
    /// How many elements a peer may bring, for each of its addresses.
    fn weight(&self) -> usize {
        match &self.what {
            What::All => 1,
            What::Numbers(ports) => ports.len(),
            What::Names(names) => names.len(),
            What::Ranges(ports) => ports.len(),
        }
    }

    fn addresses<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = IpAddr> + 'a {
        let is_within = |address: &IpAddr| {
            self.within.as_ref().is_none_or(|(range, except)| {
                range.contains(*address) && !except.iter().any(|except| except.contains(*address))
            })
        };
        pod.addresses.iter().copied().filter(is_within)
    }

    fn elements(&self, pod: &Pod) -> Vec<Element> {
        let mut elements = Vec::new();
        for address in self.addresses(pod) {
            match &self.what {
                What::All => elements.push(Element::Address(address)),
                What::Numbers(ports) => {
                    elements.extend(ports.iter().map(|(protocol, port)| Element::Port(address, *protocol, *port)));
                }
                What::Names(names) => elements.extend(names.iter().filter_map(|(name, protocol)| {
                    Some(Element::Port(address, *protocol, pod.port(name, *protocol)?))
                })),
                What::Ranges(_) => {}
            }
        }
        elements
    }
}

/// What a gathering is made of; the same makes the same set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Terms {
    pub(super) terms: BTreeSet<Term>,
    /// Ranges of addresses with ranges of ports, by family.
    pub(super) blocks: [Vec<Block>; 2],
}

impl Terms {
    pub(super) fn is_empty(&self) -> bool {
        self.terms.is_empty() && self.blocks.iter().all(Vec::is_empty)
    }
}

/// What kind of set a gathering is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Addresses.
    Pods,
    /// Addresses with ports.
    Ports,
    /// Ranges of addresses with ranges of ports: another content is another set, because the kernel takes no ranges that overlap.
    Ranges,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Ports => "ports",
            Self::Ranges => "ranges",
        }
    }

    pub(super) fn declaration(self, is_v6: bool) -> String {
        let address = if is_v6 { "ipv6_addr" } else { "ipv4_addr" };
        match self {
            Self::Pods => format!("{{ type {address} ; }}"),
            Self::Ports => format!("{{ type {address} . inet_proto . inet_service ; }}"),
            Self::Ranges => format!("{{ type {address} . inet_proto . inet_service ; flags interval ; }}"),
        }
    }
}

struct Selection {
    whom: Whom,
    members: BTreeMap<String, Arc<Pod>>,
    /// Gatherings with a term of it.
    users: BTreeSet<Arc<str>>,
}

enum Whom {
    Pods { peer: Peer, namespace: String },
    Nodes(Selector),
}

impl Whom {
    fn means(&self, world: &World, pod: &Pod) -> bool {
        match self {
            Self::Pods { peer, namespace } => pod.has_network && world.is_peer(pod, peer, namespace),
            Self::Nodes(_) => false,
        }
    }
}

struct Gathering {
    kind: Kind,
    terms: Terms,
    /// Chains that look peers up in it.
    chains: BTreeSet<String>,
    content: Content,
    /// What chains were told of it, by family.
    names: [Option<String>; 2],
}

enum Content {
    /// More than is affordable.
    TooMuch,
    /// The elements are in the plan; here is how often each was counted beyond once.
    Counted(HashMap<Element, u32>),
    /// To be made whole when it is asked for.
    Ranges,
}

#[derive(Default)]
pub(super) struct Peers {
    selections: HashMap<Arc<str>, Selection>,
    /// Selections of the pods of one namespace.
    of_namespace: HashMap<String, BTreeSet<Arc<str>>>,
    /// Selections of pods of all namespaces.
    of_all: BTreeSet<Arc<str>>,
    of_nodes: BTreeSet<Arc<str>>,
    gatherings: HashMap<Arc<str>, Gathering>,
    /// Gatherings whose content changed.
    changed: BTreeSet<Arc<str>>,
    /// Gatherings and selections that may have lost their last user.
    idle: BTreeSet<Arc<str>>,
    idle_selections: BTreeSet<Arc<str>>,
}

/// The sets of one gathering, by family; none that would be empty.
pub(super) struct Sets {
    pub(super) names: [Option<String>; 2],
    pub(super) is_too_large: bool,
}

impl Peers {
    /// The selection that a peer of a policy in `namespace` stands for; none for a range of addresses.
    pub(super) fn select(&mut self, world: &World, peer: &Peer, namespace: &str) -> Option<Arc<str>> {
        let key = match peer {
            Peer::Pods { namespaces: Some(namespaces), pods } => format!("{namespaces:?} {pods:?}"),
            Peer::Pods { namespaces: None, pods } => format!("{namespace} {pods:?}"),
            Peer::Nodes(nodes) => format!("nodes {nodes:?}"),
            Peer::Block { .. } => return None,
        };
        if let Some((key, _)) = self.selections.get_key_value(key.as_str()) {
            return Some(key.clone());
        }
        let key: Arc<str> = key.into();
        let (whom, members) = match peer {
            Peer::Nodes(nodes) => {
                self.of_nodes.insert(key.clone());
                let members = world.nodes.iter().filter(|(_, node)| nodes.matches(Some(&node.labels)));
                (Whom::Nodes(nodes.clone()), members.map(|(name, node)| (name.clone(), as_peer(node))).collect())
            }
            _ => {
                let whom = Whom::Pods { peer: peer.clone(), namespace: namespace.to_owned() };
                let is_meant = |(_, pod): &(&String, &Arc<Pod>)| whom.means(world, pod);
                let copied = |(key, pod): (&String, &Arc<Pod>)| (key.clone(), pod.clone());
                let members = match peer {
                    Peer::Pods { namespaces: None, .. } => {
                        self.of_namespace.entry(namespace.to_owned()).or_default().insert(key.clone());
                        world.pods_in(namespace).filter(is_meant).map(copied).collect()
                    }
                    _ => {
                        self.of_all.insert(key.clone());
                        world.pods.iter().filter(is_meant).map(copied).collect()
                    }
                };
                (whom, members)
            }
        };
        self.selections.insert(key.clone(), Selection { whom, members, users: BTreeSet::new() });
        self.idle_selections.insert(key.clone());
        Some(key)
    }

    /// The gathering of these terms, which `chain` looks peers up in from now on.
    pub(super) fn gather(&mut self, kind: Kind, terms: Terms, chain: &str, draft: &mut Draft) -> Arc<str> {
        let name: Arc<str> = format!("{}-{}", kind.word(), super::meaning::hash(&terms)).into();
        if let Some(gathering) = self.gatherings.get_mut(&name) {
            gathering.chains.insert(chain.to_owned());
            return name;
        }
        for term in &terms.terms {
            if let Some(selection) = self.selections.get_mut(&term.selection) {
                selection.users.insert(name.clone());
            }
        }
        let gathering = Gathering {
            kind,
            terms,
            chains: [chain.to_owned()].into(),
            content: Content::TooMuch,
            names: [None, None],
        };
        self.gatherings.insert(name.clone(), gathering);
        self.fill(&name, draft);
        name
    }

    /// A chain has no use for a gathering any more.
    pub(super) fn leave(&mut self, name: &Arc<str>, chain: &str) {
        if let Some(gathering) = self.gatherings.get_mut(name) {
            gathering.chains.remove(chain);
            self.idle.insert(name.clone());
        }
    }

    /// Another pod, node or nothing under a key. `namespace` of a pod, which says who could mean it.
    pub(super) fn pod_changed(&mut self, world: &World, namespace: &str, key: &str, draft: &mut Draft) {
        let local = self.of_namespace.get(namespace);
        let asked: Vec<Arc<str>> = local.into_iter().flatten().chain(&self.of_all).cloned().collect();
        let pod = world.pods.get(key);
        for selection in asked {
            let Some(known) = self.selections.get(&selection) else { continue };
            let now = pod.filter(|pod| known.whom.means(world, pod)).cloned();
            self.replace(&selection, key, now, draft);
        }
    }

    /// A namespace has other labels than before.
    pub(super) fn namespace_changed(
        &mut self,
        world: &World,
        namespace: &str,
        (before, now): (&Labels, &Labels),
        draft: &mut Draft,
    ) {
        let means_others = |key: &&Arc<str>| match self.selections.get(*key).map(|selection| &selection.whom) {
            Some(Whom::Pods { peer: Peer::Pods { namespaces: Some(selector), .. }, .. }) => {
                selector.matches(Some(before)) != selector.matches(Some(now))
            }
            _ => false,
        };
        let asked: Vec<Arc<str>> = self.of_all.iter().filter(means_others).cloned().collect();
        for selection in asked {
            for (key, pod) in world.pods_in(namespace) {
                let Some(known) = self.selections.get(&selection) else { continue };
                let now = known.whom.means(world, pod).then(|| pod.clone());
                self.replace(&selection, key, now, draft);
            }
        }
    }

    pub(super) fn node_changed(&mut self, world: &World, name: &str, draft: &mut Draft) {
        let node = world.nodes.get(name);
        for selection in self.of_nodes.clone() {
            let Some(Selection { whom: Whom::Nodes(nodes), .. }) = self.selections.get(&selection) else { continue };
            let now = node.filter(|node| nodes.matches(Some(&node.labels))).map(as_peer);
            self.replace(&selection, name, now, draft);
        }
    }

    fn replace(&mut self, selection: &Arc<str>, key: &str, now: Option<Arc<Pod>>, draft: &mut Draft) {
        let Some(known) = self.selections.get_mut(selection) else { return };
        let had = match now.clone() {
            Some(now) => known.members.insert(key.to_owned(), now),
            None => known.members.remove(key),
        };
        let is_same = match (&had, &now) {
            (Some(had), Some(now)) => had.addresses == now.addresses && had.ports == now.ports,
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        for user in known.users.clone() {
            self.recount(&user, selection, had.as_deref(), now.as_deref(), draft);
        }
    }

    fn pairs(&self, terms: &Terms) -> usize {
        let members = |term: &Term| self.selections.get(&term.selection).map_or(0, |selection| selection.members.len());
        let of_terms = terms.terms.iter().map(|term| members(term).saturating_mul(term.weight()));
        of_terms.fold(terms.blocks.iter().map(Vec::len).sum(), usize::saturating_add)
    }

    /// A member of one of a gathering's selections is another.
    fn recount(
        &mut self,
        name: &Arc<str>,
        selection: &Arc<str>,
        had: Option<&Pod>,
        now: Option<&Pod>,
        draft: &mut Draft,
    ) {
        let Some(gathering) = self.gatherings.get(name) else { return };
        let is_too_large = self.pairs(&gathering.terms) > MAX_PAIRS;
        if is_too_large || matches!(gathering.content, Content::TooMuch) {
            if is_too_large != matches!(gathering.content, Content::TooMuch) {
                self.fill(name, draft);
            }
            return;
        }
        let Some(Gathering { kind, terms, content, .. }) = self.gatherings.get_mut(name) else { return };
        self.changed.insert(name.clone());
        let Content::Counted(more) = content else { return };
        for term in terms.terms.iter().filter(|term| term.selection == *selection) {
            // Those that come first: an element that stays is not touched.
            for element in now.map(|now| term.elements(now)).unwrap_or_default() {
                count_in(draft, name, *kind, more, element);
            }
            for element in had.map(|had| term.elements(had)).unwrap_or_default() {
                count_out(draft, name, more, element);
            }
        }
    }

    /// Counts everything anew.
    fn fill(&mut self, name: &Arc<str>, draft: &mut Draft) {
        self.changed.insert(name.clone());
        let Some(gathering) = self.gatherings.get(name) else { return };
        if gathering.kind != Kind::Ranges {
            for is_v6 in [false, true] {
                draft.drop_set(&set_name(name, is_v6));
            }
        }
        let content = if self.pairs(&gathering.terms) > MAX_PAIRS {
            tracing::error!(
                chains = ?gathering.chains,
                "network policies name more than {MAX_PAIRS} pairs of peers and ports: these stay closed"
            );
            Content::TooMuch
        } else if gathering.kind == Kind::Ranges {
            Content::Ranges
        } else {
            let mut more = HashMap::new();
            for term in &gathering.terms.terms {
                let members = self.selections.get(&term.selection).map(|selection| selection.members.values());
                for element in members.into_iter().flatten().flat_map(|pod| term.elements(pod)) {
                    count_in(draft, name, gathering.kind, &mut more, element);
                }
            }
            Content::Counted(more)
        };
        if let Some(gathering) = self.gatherings.get_mut(name) {
            gathering.content = content;
        }
    }

    /// Brings the plan's sets in step with gatherings that changed; says which chains must be written again.
    pub(super) fn settle(&mut self, draft: &mut Draft) -> BTreeSet<String> {
        let mut chains = BTreeSet::new();
        for name in std::mem::take(&mut self.changed) {
            let Some(gathering) = self.gatherings.get(&name) else { continue };
            let names = match gathering.content {
                Content::TooMuch => [None, None],
                Content::Counted(_) => [false, true].map(|is_v6| {
                    let set = set_name(&name, is_v6);
                    let is_empty = draft.plan.sets.get(&set).is_none_or(|set| set.elements.is_empty());
                    if is_empty {
                        draft.drop_set(&set);
                    }
                    (!is_empty).then_some(set)
                }),
                // Named after what they hold: whoever writes the chain has it made.
                Content::Ranges => [None, None],
            };
            let is_ranges = gathering.kind == Kind::Ranges;
            if is_ranges || names != gathering.names {
                chains.extend(gathering.chains.iter().cloned());
            }
            if let Some(gathering) = self.gatherings.get_mut(&name) {
                gathering.names = names;
            }
        }
        chains
    }

    /// Forgets what nobody uses; after all chains are written.
    pub(super) fn sweep(&mut self, draft: &mut Draft) {
        for name in std::mem::take(&mut self.idle) {
            if self.gatherings.get(&name).is_none_or(|gathering| !gathering.chains.is_empty()) {
                continue;
            }
            let Some(gathering) = self.gatherings.remove(&name) else { continue };
            if gathering.kind != Kind::Ranges {
                for is_v6 in [false, true] {
                    draft.drop_set(&set_name(&name, is_v6));
                }
            }
            for term in gathering.terms.terms {
                if let Some(selection) = self.selections.get_mut(&term.selection) {
                    selection.users.remove(&name);
                    self.idle_selections.insert(term.selection);
                }
            }
        }
        for key in std::mem::take(&mut self.idle_selections) {
            if self.selections.get(&key).is_none_or(|selection| !selection.users.is_empty()) {
                continue;
            }
            let Some(selection) = self.selections.remove(&key) else { continue };
            match selection.whom {
                Whom::Nodes(_) => drop(self.of_nodes.remove(&key)),
                Whom::Pods { namespace, .. } => {
                    self.of_all.remove(&key);
                    if let Some(of_namespace) = self.of_namespace.get_mut(&namespace) {
                        of_namespace.remove(&key);
                        if of_namespace.is_empty() {
                            self.of_namespace.remove(&namespace);
                        }
                    }
                }
            }
        }
    }

    /// The names of a gathering's sets, for addresses and ports.
    pub(super) fn sets(&self, name: &Arc<str>) -> Sets {
        let Some(gathering) = self.gatherings.get(name) else {
            return Sets { names: [None, None], is_too_large: false };
        };
        let is_too_large = matches!(gathering.content, Content::TooMuch);
        Sets { names: gathering.names.clone(), is_too_large }
    }

    /// The elements of a gathering of ranges, of one family; none if they are too many.
    pub(super) fn ranges(&self, name: &Arc<str>, is_v6: bool) -> Option<BTreeSet<Element>> {
        let Some(gathering) = self.gatherings.get(name) else { return Some(BTreeSet::new()) };
        if !matches!(gathering.content, Content::Ranges) {
            return Some(BTreeSet::new());
        }
        let mut blocks = gathering.terms.blocks[usize::from(is_v6)].clone();
        for term in &gathering.terms.terms {
            let What::Ranges(ports) = &term.what else { continue };
            let members = self.selections.get(&term.selection).map(|selection| selection.members.values());
            for address in members.into_iter().flatten().flat_map(|pod| term.addresses(pod)) {
                if address.is_ipv6() == is_v6 {
                    let bits = number(address);
                    blocks.extend(ports.iter().map(|(protocol, ports)| ((bits, bits), *protocol, *ports)));
                }
            }
        }
        let element = |(range, protocol, ports): Block| {
            Element::Text(format!("{} . {} . {}", text(range, is_v6), protocol.name(), super::meaning::span(ports)))
        };
        let cut = disjoint(&blocks, MAX_PAIRS);
        if cut.is_none() {
            tracing::error!(
                chains = ?gathering.chains,
                "ranges of network policies lie across each other in more than {MAX_PAIRS} pieces: these stay closed"
            );
        }
        Some(cut?.into_iter().map(element).collect())
    }
}

fn set_name(gathering: &str, is_v6: bool) -> String {
    // `pods-0123` is `pods4-0123`.
    let (word, hash) = gathering.split_once('-').unwrap_or((gathering, ""));
    format!("{word}{}-{hash}", if is_v6 { 6 } else { 4 })
}

fn is_v6(element: &Element) -> bool {
    match element {
        Element::Address(address) | Element::Port(address, ..) | Element::Twice(address) => address.is_ipv6(),
        Element::Text(_) => false,
    }
}

fn count_in(draft: &mut Draft, name: &str, kind: Kind, more: &mut HashMap<Element, u32>, element: Element) {
    let is_v6 = is_v6(&element);
    let set = set_name(name, is_v6);
    if draft.plan.sets.get(&set).is_some_and(|set| set.elements.contains(&element)) {
        *more.entry(element).or_default() += 1;
    } else {
        draft.add_element(&set, || kind.declaration(is_v6), element);
    }
}

fn count_out(draft: &mut Draft, name: &str, more: &mut HashMap<Element, u32>, element: Element) {
    match more.get_mut(&element) {
        Some(1) => drop(more.remove(&element)),
        Some(count) => *count -= 1,
        None => draft.remove_element(&set_name(name, is_v6(&element)), element),
    }
}

/// A node as a peer: its addresses, and no names for ports.
fn as_peer(node: &Arc<Node>) -> Arc<Pod> {
    Arc::new(Pod { addresses: node.addresses.clone(), has_network: true, ..Pod::default() })
}
