//! Pods that want to be near other pods, or far from them, within a topology (host, zone …).
//!
//! All nodes are looked at once per decision and the result is kept as counts per topology value; each node is then
//! judged by its own labels alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::selector::Selector;
use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};

use crate::cache::Snapshot;
use crate::framework::{Plugin, Prepared, Rejection, normalize_range};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

const NAME: &str = "InterPodAffinity";
/// How much an existing pod's required affinity to the new pod attracts it.
const HARD_AFFINITY_WEIGHT: i64 = 1;

/// How often something was found, by topology key and value.
type Counts = HashMap<(String, String), i64>;

pub(crate) struct InterPodAffinity;

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare(&self, pod: &PodInfo, snapshot: &Snapshot) -> Option<Box<dyn Prepared>> {
        let wants = Terms::of(pod);
        let concerns_others =
            snapshot.nodes.iter().any(|node| node.pods.values().any(|other| affinity(other).is_some()));
        if wants.is_empty() && !concerns_others {
            return None;
        }
        let mut state = State {
            near_self: wants.near.iter().all(|term| term.selects(pod, snapshot)),
            near_keys: wants.near.iter().map(|term| term.key.clone()).collect(),
            far_keys: wants.far.iter().map(|term| term.key.clone()).collect(),
            ..State::default()
        };
        for node in &snapshot.nodes {
            for other in node.pods.values() {
                state.count(pod, &wants, other, node, snapshot);
            }
        }
        Some(Box::new(state))
    }

    fn weight(&self) -> i64 {
        2
    }
}

#[derive(Default)]
struct State {
    /// Where pods are that the new pod must be near to / must not be near to.
    near: Counts,
    far: Counts,
    /// Where pods are that do not want the new pod near.
    unwelcome: Counts,
    scores: Counts,
    near_keys: Vec<String>,
    far_keys: Vec<String>,
    /// The new pod satisfies its own required affinity: the first of a group may go anywhere.
    near_self: bool,
}

impl State {
    fn count(&mut self, pod: &PodInfo, wants: &Terms, other: &PodInfo, node: &NodeInfo, snapshot: &Snapshot) {
        let add = |counts: &mut Counts, key: &str, amount: i64| {
            if let Some(value) = node.label(key) {
                *counts.entry((key.to_owned(), value.to_owned())).or_default() += amount;
            }
        };
        // Required affinity counts a pod only if it satisfies every term.
        if !wants.near.is_empty() && wants.near.iter().all(|term| term.selects(other, snapshot)) {
            wants.near.iter().for_each(|term| add(&mut self.near, &term.key, 1));
        }
        for term in wants.far.iter().filter(|term| term.selects(other, snapshot)) {
            add(&mut self.far, &term.key, 1);
        }
        for (weight, term) in wants.preferred.iter().filter(|(_, term)| term.selects(other, snapshot)) {
            add(&mut self.scores, &term.key, *weight);
        }
        if affinity(other).is_some() {
            let theirs = Terms::of(other);
            for term in theirs.far.iter().filter(|term| term.selects(pod, snapshot)) {
                add(&mut self.unwelcome, &term.key, 1);
            }
            for term in theirs.near.iter().filter(|term| term.selects(pod, snapshot)) {
                add(&mut self.scores, &term.key, HARD_AFFINITY_WEIGHT);
            }
            for (weight, term) in theirs.preferred.iter().filter(|(_, term)| term.selects(pod, snapshot)) {
                add(&mut self.scores, &term.key, *weight);
            }
        }
    }
}

/// How often something was found in the node's part of the topology.
fn here(counts: &Counts, node: &NodeInfo, key: &str) -> i64 {
    let found = node.label(key).and_then(|value| counts.get(&(key.to_owned(), value.to_owned())));
    found.copied().unwrap_or(0)
}

impl Prepared for State {
    fn filter(&self, _pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        let labelled = self.near_keys.iter().all(|key| node.label(key).is_some());
        let satisfied = self.near_keys.iter().all(|key| here(&self.near, node, key) > 0);
        let is_first = self.near.is_empty() && self.near_self;
        if !labelled || !(satisfied || is_first) {
            return Err(Rejection::new(NAME, "node(s) didn't match pod affinity rules").unresolvable());
        }
        if self.far_keys.iter().any(|key| here(&self.far, node, key) > 0) {
            return Err(Rejection::new(NAME, "node(s) didn't match pod anti-affinity rules"));
        }
        let unwelcome = self.unwelcome.iter().any(|((key, value), _)| node.label(key) == Some(value.as_str()));
        if unwelcome {
            return Err(Rejection::new(NAME, "node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }

    fn score(&self, _pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        if self.scores.is_empty() {
            return None;
        }
        let sum = |node: &Arc<NodeInfo>| {
            let matching = self.scores.iter().filter(|((key, value), _)| node.label(key) == Some(value.as_str()));
            matching.map(|(_, score)| *score).sum()
        };
        let mut scores: Vec<i64> = nodes.iter().map(sum).collect();
        normalize_range(&mut scores)?;
        Some(scores)
    }
}

/// A pod's terms, ready to be matched.
struct Terms {
    near: Vec<Term>,
    far: Vec<Term>,
    /// Anti-affinity has a negative weight.
    preferred: Vec<(i64, Term)>,
}

struct Term {
    key: String,
    selector: Selector,
    namespaces: Vec<String>,
    namespace_selector: Option<Selector>,
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    let affinity = pod.pod.spec.as_ref()?.affinity.as_ref()?;
    (affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some()).then_some(affinity)
}

impl Terms {
    fn of(pod: &PodInfo) -> Terms {
        let near = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
        let far = affinity(pod).and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let all = |terms: Option<&Vec<PodAffinityTerm>>| {
            terms.into_iter().flatten().map(|term| Term::new(term, pod)).collect()
        };
        let weighted = |terms: Option<&Vec<WeightedPodAffinityTerm>>, sign: i64| -> Vec<(i64, Term)> {
            let terms = terms.into_iter().flatten();
            terms.map(|term| (sign * i64::from(term.weight), Term::new(&term.pod_affinity_term, pod))).collect()
        };
        let mut preferred =
            weighted(near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref()), 1);
        preferred.extend(weighted(
            far.and_then(|far| far.preferred_during_scheduling_ignored_during_execution.as_ref()),
            -1,
        ));
        Terms {
            near: all(near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref())),
            far: all(far.and_then(|far| far.required_during_scheduling_ignored_during_execution.as_ref())),
            preferred,
        }
    }

    fn is_empty(&self) -> bool {
        self.near.is_empty() && self.far.is_empty() && self.preferred.is_empty()
    }
}

impl Term {
    fn new(term: &PodAffinityTerm, owner: &PodInfo) -> Term {
        let parse = |selector| Selector::from_label_selector(selector).unwrap_or_else(|_| Selector::nothing());
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.extend(owner.pod.metadata.namespace.clone());
        }
        Term {
            key: term.topology_key.clone(),
            selector: parse(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: term.namespace_selector.as_ref().map(|selector| parse(Some(selector))),
        }
    }

    fn selects(&self, pod: &PodInfo, snapshot: &Snapshot) -> bool {
        let namespace = pod.pod.metadata.namespace.as_deref().unwrap_or_default();
        let no_labels = BTreeMap::new();
        let in_namespace = self.namespaces.iter().any(|listed| listed == namespace)
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                selector.matches(Some(snapshot.namespaces.get(namespace).unwrap_or(&no_labels)))
            });
        in_namespace && self.selector.matches(pod.pod.metadata.labels.as_ref())
    }
}
