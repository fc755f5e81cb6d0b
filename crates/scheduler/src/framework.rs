//! The seams of a scheduling decision: what a plug-in can say, and the table of plug-ins.
//!
//! A plug-in filters (may the pod go there?) or scores (how well?), or both. It sees one pod, one node and what it
//! prepared for this cycle, never the API.

use std::sync::Arc;

use crate::cache::Snapshot;
use crate::node::NodeInfo;
use crate::plugins;
use crate::pod::PodInfo;

pub(crate) const MAX_SCORE: i64 = 100;

/// Why a node does not take a pod, in upstream's words: they are counted in the event and the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) plugin: &'static str,
    pub(crate) reasons: Vec<String>,
    /// Removing pods from the node cannot help.
    pub(crate) unresolvable: bool,
}

impl Rejection {
    pub(crate) fn new(plugin: &'static str, reason: impl Into<String>) -> Rejection {
        Rejection { plugin, reasons: vec![reason.into()], unresolvable: false }
    }

    pub(crate) fn unresolvable(mut self) -> Rejection {
        self.unresolvable = true;
        self
    }
}

pub(crate) trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// Work done once for a decision, for plug-ins that look at all nodes: it then filters and scores in the plug-in's
    /// place. None when the plug-in has nothing to say on this pod, or looks at one node at a time.
    fn prepare(&self, _pod: &PodInfo, _snapshot: &Snapshot) -> Option<Box<dyn Prepared>> {
        None
    }

    fn filter(&self, _pod: &PodInfo, _node: &NodeInfo) -> Result<(), Rejection> {
        Ok(())
    }

    /// Scores of all feasible nodes, already brought to 0..=100; None when the plug-in has nothing to say on this pod.
    fn score(&self, _pod: &PodInfo, _nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        None
    }

    /// How much the score counts.
    fn weight(&self) -> i64 {
        1
    }
}

/// What a plug-in worked out for one decision.
pub(crate) trait Prepared {
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection>;
    /// As [`Plugin::score`].
    fn score(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>>;
}

/// Every plug-in, in the order in which filters run (upstream's default profile).
pub(crate) const PLUGINS: &[&dyn Plugin] = &[
    &plugins::node_unschedulable::NodeUnschedulable,
    &plugins::node_name::NodeName,
    &plugins::taint_toleration::TaintToleration,
    &plugins::node_affinity::NodeAffinity,
    &plugins::node_ports::NodePorts,
    &plugins::node_resources_fit::NodeResourcesFit,
    &plugins::pod_topology_spread::PodTopologySpread,
    &plugins::inter_pod_affinity::InterPodAffinity,
    &plugins::balanced_allocation::BalancedAllocation,
    &plugins::image_locality::ImageLocality,
];

/// Brings raw scores to 0..=100 by their range; None when they are all the same, for then they say nothing.
pub(crate) fn normalize_range(scores: &mut [i64]) -> Option<()> {
    let (min, max) = (*scores.iter().min()?, *scores.iter().max()?);
    if min == max {
        return None;
    }
    for score in scores {
        *score = (MAX_SCORE as f64 * ((*score - min) as f64 / (max - min) as f64)) as i64;
    }
    Some(())
}

/// Brings raw scores to 0..=100 by the largest of them; reversed, the smallest raw score becomes the best.
pub(crate) fn normalize(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = if max == 0 { if reverse { MAX_SCORE } else { 0 } } else { MAX_SCORE * *score / max };
        if reverse && max != 0 {
            *score = MAX_SCORE - *score;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_brought_to_a_hundred() {
        for (raw, reverse, expected) in [
            (vec![1, 2, 4], false, vec![25, 50, 100]),
            (vec![1, 2, 4], true, vec![75, 50, 0]),
            (vec![0, 0], false, vec![0, 0]),
            (vec![0, 0], true, vec![100, 100]),
        ] {
            let mut scores = raw.clone();
            normalize(&mut scores, reverse);
            assert_eq!(scores, expected, "{raw:?} reversed: {reverse}");
        }
    }
}
