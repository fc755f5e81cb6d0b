//! Pods that want to be near other pods, or far from them, within a topology (host, zone …).
//!
//! Who is where is counted per value of each topology, once, and then kept up to date with the log of pods coming and going.
//! A node is judged by its own values alone.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::cluster::{Change, Cluster, ColumnId, NO_VALUE, NodeId, View};
use crate::framework::{Basis, Event, MAX_SCORE, Plugin, Point, Rejection, State};
use crate::pod::{Group, GroupId, PodInfo, Term};

const NAME: &str = "InterPodAffinity";
/// Groups whose effects are remembered; beyond that they are worked out again.
const REMEMBERED: usize = 1 << 16;

pub(crate) struct InterPodAffinity {
    /// How much a placed pod's required affinity to the new pod attracts it.
    pub(crate) hard_weight: i64,
    pub(crate) ignore_preferred_terms_of_existing_pods: bool,
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn basis(&self) -> Basis {
        Basis::Cluster
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) -> Result<Option<Box<dyn State>>, Rejection> {
        if !pod.group.has_affinity() && !cluster.groups.has_affinity() {
            return Ok(None);
        }
        Ok(Some(Box::new(Affinity::new(self, pod.group.clone(), cluster))))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        let me = &pod.group;
        // A pod that is near counts for all terms together, one to keep away from for each by itself, as in `filter`.
        let near = |other: &PodInfo| !me.near.is_empty() && me.near.iter().all(|term| may_mean(term, &other.group));
        let far = |other: &PodInfo| me.far.iter().any(|term| may_mean(term, &other.group));
        let goes_by_namespaces = || me.near.iter().chain(&me.far).any(|term| term.namespace_selector.is_some());
        match event {
            Event::SelfChanged { change, .. } => change.labels,
            Event::PodAdded(added) => near(added),
            Event::PodChanged { old, new, change } => {
                let is_left = |term: &Term| may_mean(term, &old.group) && !may_mean(term, &new.group);
                change.labels && (!near(old) && near(new) || me.far.iter().any(is_left) || goes_by_namespaces())
            }
            Event::PodDeleted(gone) => far(gone) || gone.group.far.iter().any(|term| may_mean(term, me)),
            // Terms of placed pods may go by namespaces as well.
            Event::NamespaceChanged => true,
            Event::NodeAdded(node) => !me.far.is_empty() || me.near.iter().any(|term| label(node, term).is_some()),
            Event::NodeChanged { old, new, change } if change.labels => {
                let moved = |term: &Term| label(old, term).is_some() && label(old, term) != label(new, term);
                let came = |term: &Term| label(old, term).is_none() && label(new, term).is_some();
                me.near.iter().any(|term| came(term) || moved(term) && label(new, term).is_some())
                    || me.far.iter().any(moved)
            }
            _ => false,
        }
    }
}

/// Namespaces are not at hand here, so a term that goes by their labels may mean any pod.
fn may_mean(term: &Term, group: &Group) -> bool {
    term.namespace_selector.is_some() || term.selects_placed(group, None)
}

fn label<'a>(node: &'a Node, term: &Term) -> Option<&'a String> {
    node.metadata.labels.as_ref()?.get(&term.topology_key)
}

/// Counts per value of one topology.
struct Tally {
    column: ColumnId,
    counts: Vec<i64>,
    /// How many of them are not 0.
    nonzero: usize,
}

impl Tally {
    fn new(column: ColumnId) -> Tally {
        Tally { column, counts: Vec::new(), nonzero: 0 }
    }

    fn add(&mut self, cluster: &Cluster, node: NodeId, amount: i64) {
        let value = cluster.topology().value(self.column, node);
        if value == NO_VALUE || amount == 0 {
            return;
        }
        let at = value as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        let count = &mut self.counts[at];
        let was_zero = *count == 0;
        *count += amount;
        match (was_zero, *count == 0) {
            (true, false) => self.nonzero += 1,
            (false, true) => self.nonzero -= 1,
            _ => {}
        }
    }

    /// None if the node is outside the topology.
    fn at(&self, cluster: &Cluster, node: NodeId) -> Option<i64> {
        let value = cluster.topology().value(self.column, node);
        (value != NO_VALUE).then(|| self.counts.get(value as usize).copied().unwrap_or(0))
    }
}

/// What each pod of a group adds, where it is.
#[derive(Clone, Copy)]
struct Effect {
    on: On,
    amount: i64,
}

/// Which tally, by its index.
#[derive(Clone, Copy)]
enum On {
    Near(usize),
    Far(usize),
    Unwelcome(usize),
    Score(usize),
}

struct Affinity {
    me: Arc<Group>,
    /// None if placed pods' terms attract nobody and the pod has no preferences either.
    hard_weight: Option<i64>,
    /// Where pods are that the new pod must be near to, and must not be near to, term by term.
    near: Vec<Tally>,
    far: Vec<Tally>,
    /// Where pods are that do not want the new pod near, by topology.
    unwelcome: Vec<Tally>,
    scores: Vec<Tally>,
    /// The pod satisfies its own required affinity: the first of a group may go anywhere.
    is_near_itself: bool,
    effects: HashMap<GroupId, Arc<[Effect]>>,
    reads_namespaces: bool,
    namespaces: u64,
    layout: u64,
    position: u64,
}

impl Affinity {
    fn new(plugin: &InterPodAffinity, me: Arc<Group>, cluster: &mut Cluster) -> Affinity {
        let scores_at_all = !plugin.ignore_preferred_terms_of_existing_pods || !me.preferred.is_empty();
        let mut tallies = |terms: &[Term]| {
            terms.iter().map(|term| Tally::new(cluster.column(&term.topology_key))).collect::<Vec<_>>()
        };
        let (near, far) = (tallies(&me.near), tallies(&me.far));
        let namespace = cluster.namespace(&me.namespace);
        let mut state = Affinity {
            hard_weight: scores_at_all.then_some(plugin.hard_weight),
            near,
            far,
            unwelcome: Vec::new(),
            scores: Vec::new(),
            is_near_itself: me.near.iter().all(|term| term.selects_placed(&me, namespace)),
            effects: HashMap::new(),
            reads_namespaces: false,
            namespaces: cluster.namespaces_generation(),
            layout: cluster.layout(),
            position: cluster.groups.position(),
            me,
        };
        state.count(cluster);
        state
    }

    /// Counts all pods that matter to the new one, or that it matters to.
    fn count(&mut self, cluster: &mut Cluster) {
        let me = self.me.clone();
        let own = me.near.iter().chain(&me.far).chain(me.preferred.iter().map(|(_, term)| term));
        let own: Vec<&Term> = own.collect();
        let mut groups: BTreeSet<GroupId> = cluster.groups.with_affinity().map(|placed| placed.group.id).collect();
        if own.iter().any(|term| term.namespace_selector.is_some()) {
            groups.extend(cluster.groups.all().map(|placed| placed.group.id));
        } else {
            let namespaces: BTreeSet<&String> = own.iter().flat_map(|term| &term.namespaces).collect();
            for namespace in namespaces {
                groups.extend(cluster.groups.in_namespace(namespace).map(|placed| placed.group.id));
            }
        }
        for id in groups {
            let Some(group) = cluster.groups.get(id).map(|placed| placed.group.clone()) else { continue };
            let effects = self.effects_of(&group, cluster);
            let Some(placed) = cluster.groups.get(id).filter(|_| !effects.is_empty()) else { continue };
            for (node, count) in &placed.nodes {
                self.add(cluster, &effects, *node, count.all);
            }
        }
    }

    fn add(&mut self, cluster: &Cluster, effects: &[Effect], node: NodeId, count: i64) {
        for Effect { on, amount } in effects {
            let tally = match on {
                On::Near(at) => &mut self.near[*at],
                On::Far(at) => &mut self.far[*at],
                On::Unwelcome(at) => &mut self.unwelcome[*at],
                On::Score(at) => &mut self.scores[*at],
            };
            tally.add(cluster, node, amount * count);
        }
    }

    fn effects_of(&mut self, group: &Arc<Group>, cluster: &mut Cluster) -> Arc<[Effect]> {
        if let Some(known) = self.effects.get(&group.id) {
            return known.clone();
        }
        if self.effects.len() >= REMEMBERED {
            self.effects.clear();
        }
        let effects: Arc<[Effect]> = self.work_out(group, cluster).into();
        self.effects.insert(group.id, effects.clone());
        effects
    }

    fn work_out(&mut self, group: &Group, cluster: &mut Cluster) -> Vec<Effect> {
        let me = self.me.clone();
        let theirs = group.near.iter().chain(&group.far).chain(group.preferred.iter().map(|(_, term)| term));
        let own = me.near.iter().chain(&me.far).chain(me.preferred.iter().map(|(_, term)| term));
        self.reads_namespaces |= theirs.chain(own).any(Term::reads_namespaces);
        let means = |term: &Term| term.selects_placed(group, cluster.namespace(&group.namespace));
        let means_me = |term: &&Term| term.selects_waiting(&me, cluster.namespace(&me.namespace));
        let mut effects = Vec::new();
        // Required affinity counts a pod only if it satisfies every term.
        if !me.near.is_empty() && me.near.iter().all(means) {
            effects.extend((0..me.near.len()).map(|at| Effect { on: On::Near(at), amount: 1 }));
        }
        let far = me.far.iter().enumerate().filter(|(_, term)| means(term));
        effects.extend(far.map(|(at, _)| Effect { on: On::Far(at), amount: 1 }));
        let mut scored: Vec<(String, i64)> = Vec::new();
        if let Some(hard_weight) = self.hard_weight {
            let own = me.preferred.iter().filter(|(_, term)| means(term));
            let required = group.near.iter().filter(means_me).map(|term| (hard_weight, term));
            let preferred =
                group.preferred.iter().filter(|(_, term)| means_me(&term)).map(|(weight, term)| (*weight, term));
            let all = own.map(|(weight, term)| (*weight, term)).chain(required).chain(preferred);
            scored.extend(all.map(|(weight, term)| (term.topology_key.clone(), weight)));
        }
        let unwelcome: Vec<String> = group.far.iter().filter(means_me).map(|term| term.topology_key.clone()).collect();
        for key in unwelcome {
            let column = cluster.column(&key);
            effects.push(Effect { on: On::Unwelcome(index_of(&mut self.unwelcome, column)), amount: 1 });
        }
        for (key, amount) in scored {
            let column = cluster.column(&key);
            effects.push(Effect { on: On::Score(index_of(&mut self.scores, column)), amount });
        }
        effects
    }

    fn takes(&self, cluster: &Cluster, node: NodeId) -> bool {
        let mut satisfied = true;
        for tally in &self.near {
            match tally.at(cluster, node) {
                None => return false,
                Some(count) => satisfied &= count > 0,
            }
        }
        satisfied || (self.is_near_itself && self.near.iter().all(|tally| tally.nonzero == 0))
    }
}

fn index_of(tallies: &mut Vec<Tally>, column: ColumnId) -> usize {
    if let Some(at) = tallies.iter().position(|tally| tally.column == column) {
        return at;
    }
    tallies.push(Tally::new(column));
    tallies.len() - 1
}

impl State for Affinity {
    fn refresh(&mut self, cluster: &mut Cluster) -> bool {
        if self.layout != cluster.layout()
            || self.reads_namespaces && self.namespaces != cluster.namespaces_generation()
        {
            return false;
        }
        let Some(changes) = cluster.groups.since(self.position) else { return false };
        let changes: Vec<Change> = changes.cloned().collect();
        self.position = cluster.groups.position();
        for change in changes {
            let effects = self.effects_of(&change.group, cluster);
            self.add(cluster, &effects, change.node, change.count.all);
        }
        true
    }

    fn suppose(&mut self, cluster: &mut Cluster, node: NodeId, pod: &PodInfo, sign: i64) {
        let effects = self.effects_of(&pod.group, cluster);
        self.add(cluster, &effects, node, sign);
    }

    fn filter(&self, cluster: &Cluster, node: &View<'_>) -> u8 {
        let is_occupied = |tally: &Tally| tally.at(cluster, node.id).is_some_and(|count| count > 0);
        if !self.takes(cluster, node.id) {
            1
        } else if self.far.iter().any(is_occupied) {
            2
        } else if self.unwelcome.iter().any(is_occupied) {
            3
        } else {
            0
        }
    }

    fn explain(&self, code: u8) -> Rejection {
        match code {
            1 => Rejection::new(NAME, "node(s) didn't match pod affinity rules").unresolvable(),
            2 => Rejection::new(NAME, "node(s) didn't match pod anti-affinity rules"),
            _ => Rejection::new(NAME, "node(s) didn't satisfy existing pods anti-affinity rules"),
        }
    }

    fn score(&self, cluster: &Cluster, nodes: &[NodeId], scores: &mut Vec<i64>) -> bool {
        if self.scores.iter().all(|tally| tally.nonzero == 0) {
            return false;
        }
        scores.clear();
        scores.resize(nodes.len(), 0);
        for tally in &self.scores {
            let values = cluster.topology().values(tally.column);
            for (score, node) in scores.iter_mut().zip(nodes) {
                // `NO_VALUE` is beyond every count.
                *score += tally.counts.get(values[node.at()] as usize).copied().unwrap_or(0);
            }
        }
        let (Some(min), Some(max)) = (scores.iter().min().copied(), scores.iter().max().copied()) else { return false };
        if min == max {
            return false;
        }
        for score in scores {
            *score = (MAX_SCORE as f64 * ((*score - min) as f64 / (max - min) as f64)) as i64;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use api::cached::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Configuration;
    use crate::framework::PodChange;
    use crate::offline::Offline;

    #[test]
    fn events_that_make_a_place_wake_the_pod() {
        let term = |app: &str| json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": app } } });
        let anywhere = |app: &str| {
            let mut term = term(app);
            term["namespaceSelector"] = json!({ "matchLabels": { "team": "x" } });
            term
        };
        let catalogue = Offline::new(&Configuration::default(), 1).unwrap().cluster.catalogue;
        let info = |app: &str, near: Vec<Value>, far: Vec<Value>| {
            let terms = |terms| json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms });
            let pod: Pod = api::codec::from_value(&json!({
                "metadata": { "name": app, "namespace": "default", "labels": { "app": app } },
                "spec": { "containers": [], "affinity": { "podAffinity": terms(near), "podAntiAffinity": terms(far) } },
            }))
            .unwrap();
            Arc::new(PodInfo::pending(Arc::new(pod), &catalogue))
        };
        let plain = |app: &str| info(app, vec![], vec![]);
        let relabelled = |old: &str, new: &str| {
            let change = PodChange { labels: true, ..PodChange::default() };
            Event::PodChanged { old: plain(old), new: plain(new), change }
        };
        let plugin = InterPodAffinity { hard_weight: 1, ignore_preferred_terms_of_existing_pods: false };
        for (waiting, event, expected) in [
            (info("w", vec![term("a")], vec![]), Event::PodAdded(plain("a")), true),
            (info("w", vec![term("a"), term("b")], vec![]), Event::PodAdded(plain("a")), false),
            (info("w", vec![anywhere("a")], vec![]), Event::PodAdded(plain("a")), true),
            // It blocked one node, another pod blocks another.
            (info("w", vec![], vec![term("a"), term("b")]), Event::PodDeleted(plain("a")), true),
            (info("w", vec![], vec![term("a")]), Event::PodDeleted(plain("c")), false),
            // It still blocks by the other term, perhaps in another topology.
            (info("w", vec![], vec![term("a"), term("b")]), relabelled("a", "b"), true),
            (info("w", vec![], vec![term("a")]), relabelled("c", "a"), false),
            (info("w", vec![], vec![anywhere("a")]), Event::PodDeleted(plain("a")), true),
            (plain("w"), Event::PodDeleted(info("a", vec![], vec![term("w"), term("b")])), true),
            (plain("w"), Event::PodDeleted(plain("a")), false),
            (info("w", vec![anywhere("a")], vec![]), Event::NamespaceChanged, true),
        ] {
            assert_eq!(plugin.may_help(&waiting, &event), expected, "{waiting:?} {event:?}");
        }
    }
}
