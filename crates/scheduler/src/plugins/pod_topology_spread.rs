//! Spreads pods evenly over the values of a topology (hosts, zones …), as far as the pod's constraints ask.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::selector::Selector;
use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use crate::cache::Snapshot;
use crate::framework::{MAX_SCORE, Plugin, Prepared, Rejection};
use crate::node::NodeInfo;
use crate::plugins::{node_affinity, taint_toleration};
use crate::pod::PodInfo;

const NAME: &str = "PodTopologySpread";
const MISMATCH: &str = "node(s) didn't match pod topology spread constraints";
const UNLABELLED: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

pub(crate) struct PodTopologySpread;

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare(&self, pod: &PodInfo, snapshot: &Snapshot) -> Option<Box<dyn Prepared>> {
        let constraints = pod.pod.spec.as_ref()?.topology_spread_constraints.as_ref()?;
        let (hard, soft): (Vec<_>, Vec<_>) =
            constraints.iter().partition(|constraint| constraint.when_unsatisfiable == "DoNotSchedule");
        let count = |constraints: Vec<&TopologySpreadConstraint>| {
            let keys: Vec<&str> = constraints.iter().map(|constraint| constraint.topology_key.as_str()).collect();
            constraints.iter().map(|constraint| Spread::count(constraint, &keys, pod, snapshot)).collect()
        };
        Some(Box::new(State { hard: count(hard), soft: count(soft) }))
    }

    fn weight(&self) -> i64 {
        2
    }
}

struct State {
    hard: Vec<Spread>,
    soft: Vec<Spread>,
}

/// One constraint with the pods that it counts, by topology value.
struct Spread {
    key: String,
    max_skew: i64,
    pods: HashMap<String, i64>,
    /// The smallest count, or 0 while there are fewer domains than asked for.
    min: i64,
    /// The new pod counts itself.
    own: i64,
}

impl Spread {
    fn count(constraint: &TopologySpreadConstraint, keys: &[&str], pod: &PodInfo, snapshot: &Snapshot) -> Spread {
        let selector = selector(constraint, pod);
        let namespace = &pod.pod.metadata.namespace;
        let mut pods: HashMap<String, i64> = HashMap::new();
        for node in &snapshot.nodes {
            // Only nodes that have all keys, and that the pod could be on, are domains.
            let Some(value) = node.label(&constraint.topology_key) else { continue };
            if !keys.iter().all(|key| node.label(key).is_some()) || !is_counted(constraint, pod, node) {
                continue;
            }
            let matching = node.pods.values().filter(|other| {
                other.pod.metadata.namespace == *namespace
                    && other.pod.metadata.deletion_timestamp.is_none()
                    && selector.matches(other.pod.metadata.labels.as_ref())
            });
            *pods.entry(value.to_owned()).or_default() += matching.count() as i64;
        }
        let enough = pods.len() as i64 >= i64::from(constraint.min_domains.unwrap_or(1));
        let min = if enough { pods.values().copied().min().unwrap_or(0) } else { 0 };
        let own = i64::from(selector.matches(pod.pod.metadata.labels.as_ref()));
        Spread { key: constraint.topology_key.clone(), max_skew: constraint.max_skew.into(), pods, min, own }
    }
}

/// The constraint's selector, narrowed to the pod's own values of `matchLabelKeys`.
fn selector(constraint: &TopologySpreadConstraint, pod: &PodInfo) -> Selector {
    let mut selector = constraint.label_selector.clone().unwrap_or_default();
    let labels = pod.pod.metadata.labels.as_ref();
    for key in constraint.match_label_keys.iter().flatten() {
        if let Some(value) = labels.and_then(|labels| labels.get(key)) {
            selector.match_labels.get_or_insert_default().insert(key.clone(), value.clone());
        }
    }
    if constraint.label_selector.is_none() && selector.match_labels.is_none() {
        return Selector::nothing();
    }
    Selector::from_label_selector(Some(&selector)).unwrap_or_else(|_| Selector::nothing())
}

fn is_counted(constraint: &TopologySpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> bool {
    let honours_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
    let honours_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
    (!honours_affinity || node_affinity::admits(pod, node))
        && (!honours_taints || taint_toleration::untolerated(pod, node).is_none())
}

impl Prepared for State {
    fn filter(&self, _pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        for spread in &self.hard {
            let Some(value) = node.label(&spread.key) else {
                return Err(Rejection::new(NAME, UNLABELLED).unresolvable());
            };
            let there = spread.pods.get(value).copied().unwrap_or(0);
            if there + spread.own - spread.min > spread.max_skew {
                return Err(Rejection::new(NAME, MISMATCH));
            }
        }
        Ok(())
    }

    fn score(&self, _pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        if self.soft.is_empty() {
            return None;
        }
        let weights: Vec<f64> = self.soft.iter().map(|spread| domain_weight(spread, nodes)).collect();
        let raw = |node: &Arc<NodeInfo>| {
            let mut sum = 0.0;
            for (spread, weight) in self.soft.iter().zip(&weights) {
                let there = spread.pods.get(node.label(&spread.key)?).copied().unwrap_or(0);
                sum += there as f64 * weight + (spread.max_skew - 1) as f64;
            }
            Some(sum.round() as i64)
        };
        let raw: Vec<Option<i64>> = nodes.iter().map(raw).collect();
        let (min, max) = (raw.iter().flatten().min().copied()?, raw.iter().flatten().max().copied()?);
        // Fewer is better; a node outside the topology is worst.
        let normal = |score: Option<i64>| match score {
            None => 0,
            Some(_) if max == 0 => MAX_SCORE,
            Some(score) => MAX_SCORE * (max + min - score) / max,
        };
        Some(raw.into_iter().map(normal).collect())
    }
}

/// A topology with many values counts more, or its small counts would drown.
fn domain_weight(spread: &Spread, nodes: &[Arc<NodeInfo>]) -> f64 {
    let values: HashSet<&str> = nodes.iter().filter_map(|node| node.label(&spread.key)).collect();
    (values.len() as f64 + 2.0).ln()
}
