//! One scheduling decision: filter, score, choose. Pure: the same snapshot and the same dice give the same node.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;

use crate::cache::Snapshot;
use crate::framework::{PLUGINS, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// Why no node takes the pod.
#[derive(Debug)]
pub(crate) struct FitError {
    pub(crate) nodes: usize,
    pub(crate) rejections: Vec<Rejection>,
}

/// The best node for the pod.
pub(crate) fn choose(pod: &PodInfo, snapshot: &Snapshot, dice: &mut impl Rng) -> Result<Arc<NodeInfo>, FitError> {
    let mut feasible = Snapshot::new();
    let mut rejections = Vec::new();
    for node in snapshot {
        match PLUGINS.iter().try_for_each(|plugin| plugin.filter(pod, node)) {
            Ok(()) => feasible.push(node.clone()),
            Err(rejection) => rejections.push(rejection),
        }
    }
    let mut totals = vec![0; feasible.len()];
    if feasible.len() > 1 {
        for plugin in PLUGINS {
            if let Some(scores) = plugin.score(pod, &feasible) {
                for (total, score) in totals.iter_mut().zip(scores) {
                    *total += score * plugin.weight();
                }
            }
        }
    }
    pick(&totals, dice).map(|index| feasible[index].clone()).ok_or(FitError { nodes: snapshot.len(), rejections })
}

/// The highest total; equals are drawn by lot, each with the same chance.
fn pick(totals: &[i64], dice: &mut impl Rng) -> Option<usize> {
    let best = *totals.iter().max()?;
    let equals: Vec<usize> = (0..totals.len()).filter(|index| totals[*index] == best).collect();
    Some(equals[dice.random_range(0..equals.len())])
}

impl std::fmt::Display for FitError {
    /// `0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu.`
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in self.rejections.iter().flat_map(|rejection| &rejection.reasons) {
            *counts.entry(reason).or_default() += 1;
        }
        let mut reasons: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        reasons.sort();
        write!(out, "0/{} nodes are available", self.nodes)?;
        if self.nodes == 0 {
            return write!(out, ": no nodes available to schedule pods");
        }
        write!(out, ": {}.", reasons.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use rand::SeedableRng;
    use serde_json::{Value, json};

    fn snapshot(nodes: &[Value]) -> Snapshot {
        let mut cache = Cache::default();
        for node in nodes {
            cache.set_node(Arc::new(serde_json::from_value(node.clone()).unwrap()));
        }
        cache.snapshot()
    }

    fn node(name: &str, cpu: &str, spec: Value) -> Value {
        json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "110"}}})
    }

    fn pod(spec: Value) -> PodInfo {
        let mut pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec});
        pod["spec"]["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]);
        PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn pods_go_where_they_may_and_fit_best() {
        let nodes = snapshot(&[
            node("cordoned", "16", json!({"unschedulable": true})),
            node("large", "8", json!({})),
            node("small", "1", json!({})),
            node("tainted", "16", json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})),
        ]);
        for (spec, expected) in [
            (json!({}), "large"),
            (json!({"nodeSelector": {"name": "small"}}), "small"),
            (json!({"tolerations": [{"key": "k", "operator": "Exists"}]}), "tainted"),
        ] {
            let mut dice = rand::rngs::StdRng::seed_from_u64(1);
            assert_eq!(choose(&pod(spec.clone()), &nodes, &mut dice).unwrap().name, expected, "{spec}");
        }
    }

    #[test]
    fn failures_are_counted_by_reason() {
        let nodes = snapshot(&[
            node("a", "100m", json!({})),
            node("b", "100m", json!({})),
            node("c", "8", json!({"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]})),
        ]);
        let mut dice = rand::rngs::StdRng::seed_from_u64(1);
        let error = choose(&pod(json!({})), &nodes, &mut dice).unwrap_err();
        assert_eq!(
            error.to_string(),
            "0/3 nodes are available: 1 node(s) had untolerated taint(s) {k: v}, 2 Insufficient cpu."
        );
        let error = choose(&pod(json!({})), &snapshot(&[]), &mut dice).unwrap_err();
        assert_eq!(error.to_string(), "0/0 nodes are available: no nodes available to schedule pods");
    }
}
