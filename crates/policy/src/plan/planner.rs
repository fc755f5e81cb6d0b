//! Keeps a plan in step with what is known, change by change.
//!
//! A change marks the pods that it concerns, the chains whose policies it exchanges, and the sets whose members it is;
//! [`Planner::settle`] then does what follows from all of it, once. The result is the same as that of a planner which was told
//! the last state of everything only.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::contents::{Draft, Element, Plan, Touched};
use super::meaning::{Class, Meaning, class, next_of};
use super::peers::Peers;
use crate::cluster_policy::{ClusterPolicy, Tier};
use crate::world::{Direction, Labels, Node, Pod, Policy, World};

/// The chain of those of whom nothing is known yet but that a policy may concern them.
pub(crate) const CLOSED: &str = "closed";

/// What the keys of those begin with of whom nothing is known but an address: they have no namespace.
const INHERITED: &str = "/";

/// In the order of what is kept by direction.
const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// Addresses that the plug-in announced, of a pod that the API server may not show with them yet, or not any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) pod: String,
    pub(crate) uid: String,
    /// Empty where it is not known.
    pub(crate) sandbox: String,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Announced {
    /// Whether both are about one sandbox of one pod. Where a sandbox is not known, common addresses decide, if they are known.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_sandbox = match self.sandbox.is_empty() || other.sandbox.is_empty() {
            false => self.sandbox == other.sandbox,
            true if self.addresses.is_empty() || other.addresses.is_empty() => true,
            true => self.addresses.iter().any(|address| other.addresses.contains(address)),
        };
        self.uid == other.uid && is_same_sandbox
    }

    /// The key of a sandbox that runs on: without its pod's object, or beside another sandbox of that pod or of another of its name.
    /// The API server shows no pod of such a name, so it is closed.
    fn outliving(&self) -> String {
        format!("{}{}", outliving(&self.pod, &self.uid), self.sandbox)
    }
}

/// What the keys of a pod's sandboxes that run on begin with.
fn outliving(pod: &str, uid: &str) -> String {
    format!("{pod}/{uid}/")
}

#[derive(Default)]
pub(crate) struct Planner {
    node: String,
    bridge: String,
    forward: Vec<String>,
    /// Pods as the API server shows them. Those of `world` have the addresses that were announced.
    shown: BTreeMap<String, Arc<Pod>>,
    /// How many of them have an address.
    shown_addresses: HashMap<IpAddr, usize>,
    world: World,
    /// By pod.
    announced: BTreeMap<String, Announced>,
    /// Who announced an address: it is nobody else's.
    holders: HashMap<IpAddr, String>,
    /// Pods that are shown and have given their addresses back, with their uids.
    given_back: HashMap<String, String>,
    /// Whom packets of this node may be led to chains for, by pod.
    subjects: BTreeMap<String, Subject>,
    /// Who claims an address; the last one has it.
    claims: HashMap<IpAddr, BTreeMap<(Rank, String), Leads>>,
    chains: HashMap<String, Chain>,
    /// Chains by the policies that they are made of.
    by_policy: HashMap<String, BTreeSet<String>>,
    by_cluster_policy: HashMap<String, BTreeSet<String>>,
    /// How many chains use a set that is named after what it holds.
    uses: HashMap<String, usize>,
    /// How many addresses are led to `closed`.
    closed: usize,
    peers: Peers,
    draft: Draft,
    dirty_subjects: BTreeSet<String>,
    dirty_addresses: BTreeSet<IpAddr>,
    dirty_chains: BTreeSet<String>,
    idle_chains: BTreeSet<String>,
}

#[derive(Default)]
struct Subject {
    /// Policies of its namespace that select it, by direction.
    policies: [BTreeSet<String>; 2],
    claimed: Vec<(IpAddr, Rank)>,
}

/// Whose claim to an address counts more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A pod of another node.
    Elsewhere,
    Leaving,
    Living,
    Announced,
}

/// Where packets of an address are led, by direction.
type Leads = [Lead; 2];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Lead {
    Past,
    Closed,
    Chain(String, Arc<Class>),
}

impl Lead {
    fn verdict(&self) -> Option<String> {
        match self {
            Self::Past => None,
            Self::Closed => Some(format!("jump {CLOSED}")),
            Self::Chain(name, _) => Some(format!("jump {name}")),
        }
    }
}

struct Chain {
    class: Arc<Class>,
    /// Entries of the maps that lead here.
    leads: usize,
    meaning: Meaning,
    /// Sets that are named after what they hold.
    sets: BTreeSet<String>,
}

impl Planner {
    pub(crate) fn new(node: &str, bridge: &str) -> Self {
        let forward = forward_rules(bridge, true);
        Self { node: node.to_owned(), bridge: bridge.to_owned(), forward, ..Self::default() }
    }

    /// Whether the kernel tells connections of SCTP apart by their ports. Where it does not, whatever goes between two addresses is one
    /// connection to it, and what one side may ask for is no reason to let the other begin something else.
    pub(crate) fn set_sctp_tracking(&mut self, is_tracked: bool) {
        self.forward = forward_rules(&self.bridge, is_tracked);
    }

    #[cfg(test)]
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.draft.plan
    }

    /// What was touched since [`Planner::is_programmed`] was last told.
    pub(crate) fn touched(&self) -> &Touched {
        &self.draft.touched
    }

    /// The plan is in the kernel.
    pub(crate) fn is_programmed(&mut self) {
        self.draft.touched = Touched::default();
    }

    pub(crate) fn set_pod(&mut self, key: &str, pod: Option<Arc<Pod>>) {
        if self.shown.get(key) == pod.as_ref() {
            return;
        }
        for address in pod.iter().filter(|pod| pod.has_network).flat_map(|pod| &pod.addresses) {
            // Whose an inherited address was is not known; now it is this pod's.
            if let Some(holder) = self.holders.get(address).filter(|holder| holder.starts_with(INHERITED)).cloned() {
                self.forget_announced(&holder);
            }
        }
        let before = match pod.clone() {
            Some(pod) => self.shown.insert(key.to_owned(), pod),
            None => self.shown.remove(key),
        };
        for address in pod.iter().filter(|pod| pod.has_network).flat_map(|pod| &pod.addresses) {
            *self.shown_addresses.entry(*address).or_default() += 1;
        }
        for address in before.iter().filter(|pod| pod.has_network).flat_map(|pod| &pod.addresses) {
            if let Some(count) = self.shown_addresses.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.shown_addresses.remove(address);
                }
            }
        }
        if let Some(before) = before
            && pod.is_none_or(|now| now.uid != before.uid)
        {
            self.outlive(key, &before);
        }
        self.know(key);
    }

    /// A pod's object is gone, and the pod may run on for a while. Nobody knows any more what it may do: its addresses are closed
    /// until they are given back.
    fn outlive(&mut self, key: &str, before: &Pod) {
        let is_given_back = self.given_back.remove(key).is_some_and(|uid| uid == before.uid);
        if is_given_back || !(before.has_network || before.is_over) || before.node != self.node {
            return;
        }
        let is_free = |address: &&IpAddr| !self.holders.contains_key(*address) && !self.is_shown_with(**address);
        let addresses: Vec<IpAddr> = before.addresses.iter().filter(is_free).copied().collect();
        if !addresses.is_empty() {
            let (pod, uid) = (outliving(key, &before.uid), before.uid.clone());
            self.announce(Announced { pod, uid, addresses, ..Announced::default() });
        }
    }

    /// Addresses that were isolated before we came. Whoever had them may have lost its object while nobody looked, and run on:
    /// they are closed until somebody has them.
    pub(crate) fn inherit(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            if !self.holders.contains_key(&address) && !self.is_shown_with(address) {
                let pod = format!("{INHERITED}{address}");
                self.announce(Announced { pod, addresses: vec![address], ..Announced::default() });
            }
        }
    }

    fn is_shown_with(&self, address: IpAddr) -> bool {
        self.shown_addresses.contains_key(&address)
    }

    pub(crate) fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        if self.world.namespaces.get(name) == labels.as_ref() {
            return;
        }
        let before = self.world.namespace_labels(name).into_owned();
        match labels {
            Some(labels) => drop(self.world.namespaces.insert(name.to_owned(), labels)),
            None => drop(self.world.namespaces.remove(name)),
        }
        let now = self.world.namespace_labels(name).into_owned();
        self.peers.namespace_changed(&self.world, name, (&before, &now), &mut self.draft);
        if !self.world.cluster_policies.is_empty() {
            self.dirty_subjects.extend(self.world.pods_in(name).map(|(key, _)| key.clone()));
        }
    }

    pub(crate) fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        if self.world.nodes.get(name) == node.as_ref() {
            return;
        }
        match node {
            Some(node) => drop(self.world.nodes.insert(name.to_owned(), node)),
            None => drop(self.world.nodes.remove(name)),
        }
        self.peers.node_changed(&self.world, name, &mut self.draft);
    }

    pub(crate) fn set_policy(&mut self, key: &str, policy: Option<Arc<Policy>>) {
        let before = self.world.policies.get(key).cloned();
        if before == policy {
            return;
        }
        match policy.clone() {
            Some(policy) => drop(self.world.policies.insert(key.to_owned(), policy)),
            None => drop(self.world.policies.remove(key)),
        }
        let namespace = key.split('/').next().unwrap_or_default();
        let prefix = format!("{namespace}/");
        let selects = |policy: &Option<Arc<Policy>>, pod: &Pod, direction: Direction| {
            policy.as_ref().is_some_and(|policy| policy.rules(direction).is_some() && policy.selects(pod))
        };
        for (pod_key, subject) in
            self.subjects.range_mut(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix))
        {
            let Some(pod) = self.world.pods.get(pod_key) else {
                self.dirty_subjects.insert(pod_key.clone());
                continue;
            };
            for (of_direction, direction) in subject.policies.iter_mut().zip(DIRECTIONS) {
                let (was, is) = (of_direction.contains(key), selects(&policy, pod, direction));
                if is {
                    of_direction.insert(key.to_owned());
                } else {
                    of_direction.remove(key);
                }
                if was || is {
                    self.dirty_subjects.insert(pod_key.clone());
                }
            }
        }
        // Who is not shown yet may be one that it selects.
        for prefix in [prefix.as_str(), INHERITED] {
            let announced = self.announced.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
            self.dirty_subjects.extend(announced.map(|(key, _)| key.clone()));
        }
        self.dirty_chains.extend(self.by_policy.get(key).into_iter().flatten().cloned());
    }

    pub(crate) fn set_cluster_policy(&mut self, name: &str, policy: Option<Arc<ClusterPolicy>>) {
        let before = self.world.cluster_policies.get(name).cloned();
        if before == policy {
            return;
        }
        match policy.clone() {
            Some(policy) => drop(self.world.cluster_policies.insert(name.to_owned(), policy)),
            None => drop(self.world.cluster_policies.remove(name)),
        }
        let mut labels: Option<(&str, _)> = None;
        for (key, pod) in &self.world.pods {
            if labels.as_ref().is_none_or(|(namespace, _)| *namespace != pod.namespace) {
                labels = Some((&pod.namespace, self.world.namespace_labels(&pod.namespace)));
            }
            let Some((_, labels)) = &labels else { continue };
            let is_unknown = !self.world.namespaces.contains_key(&pod.namespace);
            let selects =
                |policy: &Option<Arc<ClusterPolicy>>| policy.as_ref().is_some_and(|policy| policy.selects(pod, labels));
            if is_unknown || (pod.node == self.node && (selects(&before) || selects(&policy))) {
                self.dirty_subjects.insert(key.clone());
            }
        }
        self.dirty_subjects.extend(self.announced.keys().cloned());
        self.dirty_chains.extend(self.by_cluster_policy.get(name).into_iter().flatten().cloned());
    }

    /// There are none any more, and nobody who names nodes.
    pub(crate) fn forget_cluster_policies(&mut self) {
        for name in self.world.nodes.keys().cloned().collect::<Vec<_>>() {
            self.set_node(&name, None);
        }
        for name in self.world.cluster_policies.keys().cloned().collect::<Vec<_>>() {
            self.set_cluster_policy(&name, None);
        }
    }

    /// A pod has addresses; whoever had them before has none of them any more. What was announced for another sandbox under its name
    /// may run on until it is withdrawn.
    pub(crate) fn announce(&mut self, announced: Announced) {
        let is_another = |before: &&Announced| before.uid != announced.uid || before.sandbox != announced.sandbox;
        if let Some(before) = self.announced.get(&announced.pod).filter(is_another).cloned() {
            self.forget_announced(&announced.pod);
            self.hold(Announced { pod: before.outliving(), ..before });
        }
        self.hold(announced);
    }

    fn hold(&mut self, announced: Announced) {
        self.forget_announced(&announced.pod);
        for address in &announced.addresses {
            if let Some(holder) = self.holders.get(address).cloned() {
                self.forget_announced(&holder);
            }
        }
        for address in &announced.addresses {
            self.holders.insert(*address, announced.pod.clone());
        }
        let (pod, addresses) = (announced.pod.clone(), announced.addresses.clone());
        self.given_back.remove(&pod);
        self.announced.insert(pod.clone(), announced);
        self.know(&pod);
        self.know_holders_of(&addresses);
    }

    /// A sandbox gives its addresses back, which may be heard of late. The end of one that was replaced, by another sandbox of its pod or
    /// by another pod of its name, says nothing about the other.
    pub(crate) fn withdraw(&mut self, gone: &Announced) {
        let prefix = outliving(&gone.pod, &gone.uid);
        let outliving = self.announced.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        let announced = outliving.chain(self.announced.get_key_value(&gone.pod));
        let ended: Vec<String> =
            announced.filter(|(_, announced)| announced.is_same(gone)).map(|(key, _)| key.clone()).collect();
        for key in ended {
            self.forget_announced(&key);
        }
        let has_all =
            |shown: &Pod| gone.addresses.is_empty() || shown.addresses.iter().all(|one| gone.addresses.contains(one));
        if !self.is_announced(&gone.pod, &gone.uid)
            && self.shown.get(&gone.pod).is_some_and(|shown| shown.uid == gone.uid && has_all(shown))
        {
            self.given_back.insert(gone.pod.clone(), gone.uid.clone());
            self.dirty_subjects.insert(gone.pod.clone());
        }
    }

    /// Whether packets of a pod are judged on this node. One that is said to be over may run on until it gives its addresses back: that it
    /// is was said by others while its node was away, perhaps.
    fn is_judged_here(&self, key: &str, pod: &Pod) -> bool {
        let is_given_back = || self.given_back.get(key).is_some_and(|uid| *uid == pod.uid);
        pod.node == self.node && (pod.has_network || (pod.is_over && !is_given_back()))
    }

    #[cfg(test)]
    pub(crate) fn announced(&self) -> Vec<Announced> {
        self.announced.values().cloned().collect()
    }

    pub(crate) fn is_announced(&self, pod: &str, uid: &str) -> bool {
        self.announced.get(pod).is_some_and(|announced| announced.uid == uid)
    }

    /// Whether the API server shows this very pod, on this node.
    pub(crate) fn is_shown(&self, pod: &str, uid: &str) -> bool {
        self.shown.get(pod).is_some_and(|shown| shown.uid == uid && shown.node == self.node)
    }

    fn forget_announced(&mut self, pod: &str) {
        let Some(announced) = self.announced.remove(pod) else { return };
        for address in &announced.addresses {
            self.holders.remove(address);
        }
        self.know(pod);
        self.know_holders_of(&announced.addresses);
    }

    /// Pods whose status shows an address have it, or do not any more.
    fn know_holders_of(&mut self, addresses: &[IpAddr]) {
        let has_one = |pod: &Pod| pod.has_network && pod.addresses.iter().any(|address| addresses.contains(address));
        let keys: Vec<String> = self.shown.iter().filter(|(_, pod)| has_one(pod)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.know(&key);
        }
    }

    /// A pod is what the API server shows, with the addresses that it announced, and without those that another did.
    fn know(&mut self, key: &str) {
        self.dirty_subjects.insert(key.to_owned());
        let now = self.shown.get(key).map(|shown| {
            let has_had_network = shown.has_network || shown.is_over;
            let is_own =
                |announced: &&Announced| announced.uid == shown.uid && shown.node == self.node && has_had_network;
            let announced = self.announced.get(key).filter(is_own);
            let is_anothers = |address: &IpAddr| {
                has_had_network && self.holders.get(address).is_some_and(|holder| holder != key || announced.is_none())
            };
            let added = |address: &&IpAddr| !shown.addresses.contains(address);
            let more: Vec<IpAddr> =
                announced.iter().flat_map(|announced| &announced.addresses).filter(added).copied().collect();
            if more.is_empty() && !shown.addresses.iter().any(is_anothers) {
                return shown.clone();
            }
            let mut pod = Pod::clone(shown);
            pod.addresses.retain(|address| !is_anothers(address));
            pod.addresses.extend(more);
            Arc::new(pod)
        });
        let before = self.world.pods.get(key).cloned();
        if before == now {
            return;
        }
        let is_here = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|pod| self.is_judged_here(key, pod));
        let (was_subject, is_subject) = (is_here(&before), is_here(&now));
        let has_same_labels = match (&before, &now) {
            (Some(before), Some(now)) => before.labels == now.labels && before.namespace == now.namespace,
            _ => false,
        };
        match now.clone() {
            Some(now) => drop(self.world.pods.insert(key.to_owned(), now)),
            None => drop(self.world.pods.remove(key)),
        }
        if let Some(pod) = now.as_ref().filter(|_| is_subject)
            && !(has_same_labels && was_subject)
        {
            let policies =
                DIRECTIONS.map(|direction| self.world.policies_of(pod, direction).map(|policy| policy.key()).collect());
            self.subjects.entry(key.to_owned()).or_default().policies = policies;
        }
        let namespace = now.or(before).map(|pod| pod.namespace.clone()).unwrap_or_default();
        self.peers.pod_changed(&self.world, &namespace, key, &mut self.draft);
    }

    /// Does what follows from everything that was told since.
    pub(crate) fn settle(&mut self) {
        for key in std::mem::take(&mut self.dirty_subjects) {
            self.claim(&key);
        }
        for address in std::mem::take(&mut self.dirty_addresses) {
            self.lead(address);
        }
        for name in std::mem::take(&mut self.idle_chains) {
            if self.chains.get(&name).is_some_and(|chain| chain.leads == 0) {
                self.drop_chain(&name);
            }
        }
        let read_again = std::mem::take(&mut self.dirty_chains);
        for name in &read_again {
            self.read(name);
        }
        let mut write_again = self.peers.settle(&mut self.draft);
        write_again.extend(read_again);
        for name in &write_again {
            self.write(name);
        }
        self.peers.sweep(&mut self.draft);
        match self.closed {
            0 => self.draft.drop_chain(CLOSED),
            _ => self.draft.put_chain(CLOSED, vec!["drop".to_owned()]),
        }
        let is_empty = self.draft.plan.is_empty();
        for (set, declaration) in self_sets() {
            if is_empty {
                self.draft.drop_set(set);
            } else if !self.draft.plan.sets.contains_key(set) {
                self.draft.put_set(set, declaration, BTreeSet::new());
            }
        }
        self.draft.put_forward(if is_empty { &[] } else { &self.forward });
    }

    /// Which addresses a pod claims, and where they are led.
    fn claim(&mut self, key: &str) {
        let mut claims: Vec<(IpAddr, Rank, Leads)> = Vec::new();
        let has_cluster_policies = !self.world.cluster_policies.is_empty();
        if let Some(announced) = self.announced.get(key)
            && !self.is_shown(key, &announced.uid)
        {
            // Not shown at all: closed, if there is anything that could select it, or forbid it to others.
            let namespace = key.split('/').next().unwrap_or_default();
            let is_of_any = namespace.is_empty() && !self.world.policies.is_empty();
            if has_cluster_policies || is_of_any || self.world.has_policies(namespace) {
                let closed = |address: &IpAddr| (*address, Rank::Announced, [Lead::Closed, Lead::Closed]);
                claims.extend(announced.addresses.iter().map(closed));
            }
        }
        let is_here = self.world.pods.get(key).is_some_and(|pod| self.is_judged_here(key, pod));
        if let Some(pod) = self.world.pods.get(key).filter(|pod| pod.has_network || is_here).cloned() {
            // A namespace that is not shown yet may have any labels, and so be one that a policy of the cluster selects, or
            // forbids to others.
            let is_unknown = has_cluster_policies && !self.world.namespaces.contains_key(&pod.namespace);
            let rank = match is_here {
                false => Rank::Elsewhere,
                true if pod.is_leaving || pod.is_over => Rank::Leaving,
                true => Rank::Living,
            };
            if is_unknown || is_here {
                let leads = match is_unknown {
                    true => [Lead::Closed, Lead::Closed],
                    false => DIRECTIONS.map(|direction| self.class_of(key, &pod, direction)),
                };
                claims.extend(pod.addresses.iter().map(|address| (*address, rank, leads.clone())));
            }
        }
        let before = self.subjects.get(key).map(|subject| subject.claimed.clone()).unwrap_or_default();
        for (address, rank) in before {
            self.dirty_addresses.insert(address);
            if let Some(claimants) = self.claims.get_mut(&address) {
                claimants.remove(&(rank, key.to_owned()));
                if claimants.is_empty() {
                    self.claims.remove(&address);
                }
            }
        }
        if claims.is_empty() && !is_here {
            self.subjects.remove(key);
            return;
        }
        let subject = self.subjects.entry(key.to_owned()).or_default();
        subject.claimed = claims.iter().map(|(address, rank, _)| (*address, *rank)).collect();
        for (address, rank, leads) in claims {
            self.dirty_addresses.insert(address);
            self.claims.entry(address).or_default().insert((rank, key.to_owned()), leads);
        }
    }

    fn class_of(&self, key: &str, pod: &Pod, direction: Direction) -> Lead {
        let at = usize::from(direction == Direction::Egress);
        let selecting = self.subjects.get(key).map(|subject| &subject.policies[at]);
        let policies: Vec<&Arc<Policy>> =
            selecting.into_iter().flatten().filter_map(|key| self.world.policies.get(key)).collect();
        let of_tier = |tier| self.world.cluster_rules(pod, tier, direction);
        let before = of_tier(Tier::Admin);
        // Policies of the namespace have the last word.
        let after = if policies.is_empty() { of_tier(Tier::Baseline) } else { Vec::new() };
        if policies.is_empty() && before.is_empty() && after.is_empty() {
            return Lead::Past;
        }
        let class = class(direction, &policies, &before, &after, |name, protocol| pod.port(name, protocol));
        Lead::Chain(class.chain(), Arc::new(class))
    }

    /// Leads packets of an address where the one who has it wants them.
    fn lead(&mut self, address: IpAddr) {
        let winner = self.claims.get(&address).and_then(|claimants| claimants.values().next_back());
        let leads = winner.cloned().unwrap_or([Lead::Past, Lead::Past]);
        let maps = if address.is_ipv6() { ["ingress6", "egress6"] } else { ["ingress4", "egress4"] };
        let is_isolated = leads.iter().any(|lead| *lead != Lead::Past);
        for (map, lead) in maps.into_iter().zip(leads) {
            let verdict = lead.verdict();
            // First the one that comes: a chain that stays is not taken away.
            match lead {
                Lead::Past => {}
                Lead::Closed => self.closed += 1,
                Lead::Chain(name, class) => {
                    if !self.chains.contains_key(&name) {
                        self.add_chain(&name, class);
                    }
                    if let Some(chain) = self.chains.get_mut(&name) {
                        chain.leads += 1;
                    }
                }
            }
            let had = self.draft.lead(map, address, verdict);
            match had.as_deref().and_then(|had| had.strip_prefix("jump ")) {
                None => {}
                Some(CLOSED) => self.closed -= 1,
                Some(name) => {
                    if let Some(chain) = self.chains.get_mut(name) {
                        chain.leads -= 1;
                        if chain.leads == 0 {
                            self.idle_chains.insert(name.to_owned());
                        }
                    }
                }
            }
        }
        let [four, six] = self_sets();
        let (set, declaration) = if address.is_ipv6() { six } else { four };
        match is_isolated {
            true => self.draft.add_element(set, || declaration, Element::Twice(address)),
            false => self.draft.remove_element(set, Element::Twice(address)),
        }
    }

    fn add_chain(&mut self, name: &str, class: Arc<Class>) {
        for policy in &class.policies {
            self.by_policy.entry(policy.clone()).or_default().insert(name.to_owned());
        }
        for policy in class.before.iter().chain(&class.after) {
            self.by_cluster_policy.entry(policy.clone()).or_default().insert(name.to_owned());
        }
        let chain = Chain { class, leads: 0, meaning: Meaning::default(), sets: BTreeSet::new() };
        self.chains.insert(name.to_owned(), chain);
        self.dirty_chains.insert(name.to_owned());
    }

    fn drop_chain(&mut self, name: &str) {
        let Some(chain) = self.chains.remove(name) else { return };
        let forget = |index: &mut HashMap<String, BTreeSet<String>>, policy: &String| {
            if let Some(chains) = index.get_mut(policy) {
                chains.remove(name);
                if chains.is_empty() {
                    index.remove(policy);
                }
            }
        };
        for policy in &chain.class.policies {
            forget(&mut self.by_policy, policy);
        }
        for policy in chain.class.before.iter().chain(&chain.class.after) {
            forget(&mut self.by_cluster_policy, policy);
        }
        for gathered in chain.meaning.gathered() {
            self.peers.leave(gathered, name);
        }
        for set in chain.sets {
            self.leave_set(&set);
        }
        self.dirty_chains.remove(name);
        self.draft.drop_chain(name);
        self.draft.drop_chain(&next_of(name));
    }

    /// Reads the policies of a chain again.
    fn read(&mut self, name: &str) {
        let Some(class) = self.chains.get(name).map(|chain| chain.class.clone()) else { return };
        let meaning = Meaning::new(&class, name, &self.world, &mut self.peers, &mut self.draft);
        let Some(chain) = self.chains.get_mut(name) else { return };
        let before = std::mem::replace(&mut chain.meaning, meaning);
        let now: BTreeSet<&Arc<str>> = chain.meaning.gathered().collect();
        for gathered in before.gathered().filter(|gathered| !now.contains(gathered)) {
            self.peers.leave(gathered, name);
        }
    }

    /// Writes the rules of a chain, and the sets that are named after what they hold.
    fn write(&mut self, name: &str) {
        let Some(chain) = self.chains.get_mut(name) else { return };
        let written = chain.meaning.write(name, chain.class.direction, &self.peers);
        let before = std::mem::replace(&mut chain.sets, written.sets.keys().cloned().collect());
        for (set, (declaration, elements)) in written.sets {
            if before.contains(&set) {
                continue;
            }
            let uses = self.uses.entry(set.clone()).or_default();
            *uses += 1;
            if *uses == 1 {
                self.draft.put_set(&set, declaration, elements);
            }
        }
        let gone: Vec<String> = before.difference(&chain.sets).cloned().collect();
        self.draft.put_chain(name, written.rules);
        match written.next {
            Some(rules) => self.draft.put_chain(&next_of(name), rules),
            None => self.draft.drop_chain(&next_of(name)),
        }
        for set in gone {
            self.leave_set(&set);
        }
    }

    fn leave_set(&mut self, set: &str) {
        let Some(uses) = self.uses.get_mut(set) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(set);
            self.draft.drop_set(set);
        }
    }
}

/// The sets of pairs that are one pod and itself, with their declarations.
pub(crate) fn self_sets() -> [(&'static str, String); 2] {
    [("self4", "ipv4_addr"), ("self6", "ipv6_addr")]
        .map(|(set, address)| (set, format!("{{ type {address} . {address} ; }}")))
}

fn forward_rules(bridge: &str, is_sctp_tracked: bool) -> Vec<String> {
    let tracked = if is_sctp_tracked { "" } else { "meta l4proto != sctp " };
    vec![
        // Every packet of whoever began is judged, so that a change of policy ends what it forbids; answers follow.
        format!("{tracked}ct direction reply ct state established,related accept"),
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
    ]
}
