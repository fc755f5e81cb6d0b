//! One scheduling decision: filter, score, choose. Pure: the same snapshot and the same dice give the same node.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;

use crate::cache::Snapshot;
use crate::framework::{PLUGINS, Plugin, Prepared, Rejection};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// Why no node takes the pod.
#[derive(Debug)]
pub(crate) struct FitError {
    pub(crate) rejections: Vec<(Arc<NodeInfo>, Rejection)>,
}

/// A plug-in with what it prepared for the decision, if anything.
type Judge = (&'static dyn Plugin, Option<Box<dyn Prepared>>);

/// The plug-ins, prepared for one pod on one snapshot.
pub(crate) struct Judges<'a> {
    pod: &'a PodInfo,
    snapshot: &'a Snapshot,
    prepared: Vec<Judge>,
}

impl<'a> Judges<'a> {
    pub(crate) fn new(pod: &'a PodInfo, snapshot: &'a Snapshot) -> Judges<'a> {
        let prepared = PLUGINS.iter().map(|plugin| (*plugin, plugin.prepare(pod, snapshot))).collect();
        Judges { pod, snapshot, prepared }
    }

    /// May the pod go to the node, also once the pods have come that the node is kept for?
    pub(crate) fn filter(&self, node: &NodeInfo) -> Result<(), Rejection> {
        let nominated = self.snapshot.nominated.get(&node.name).into_iter().flatten();
        let mut before: Vec<_> =
            nominated.filter(|other| other.priority >= self.pod.priority && other.uid != self.pod.uid).collect();
        if !before.is_empty() {
            let mut crowded = node.clone();
            before.drain(..).for_each(|other| crowded.add_pod(other.clone()));
            self.run_filters(&crowded)?;
        }
        self.run_filters(node)
    }

    fn run_filters(&self, node: &NodeInfo) -> Result<(), Rejection> {
        self.prepared.iter().try_for_each(|(plugin, prepared)| match prepared {
            Some(prepared) => prepared.filter(self.pod, node),
            None => plugin.filter(self.pod, node),
        })
    }

    fn scores(&self, nodes: &[Arc<NodeInfo>]) -> Vec<i64> {
        let mut totals = vec![0; nodes.len()];
        for (plugin, prepared) in &self.prepared {
            let scores = match prepared {
                Some(prepared) => prepared.score(self.pod, nodes),
                None => plugin.score(self.pod, nodes),
            };
            for (total, score) in totals.iter_mut().zip(scores.unwrap_or_default()) {
                *total += score * plugin.weight();
            }
        }
        totals
    }
}

/// The best node for the pod.
pub(crate) fn choose(pod: &PodInfo, snapshot: &Snapshot, dice: &mut impl Rng) -> Result<Arc<NodeInfo>, FitError> {
    let judges = Judges::new(pod, snapshot);
    let mut feasible = Vec::new();
    let mut rejections = Vec::new();
    for node in &snapshot.nodes {
        match judges.filter(node) {
            Ok(()) => feasible.push(node.clone()),
            Err(rejection) => rejections.push((node.clone(), rejection)),
        }
    }
    let totals = if feasible.len() > 1 { judges.scores(&feasible) } else { vec![0; feasible.len()] };
    pick(&totals, dice).map(|index| feasible[index].clone()).ok_or(FitError { rejections })
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
        for reason in self.rejections.iter().flat_map(|(_, rejection)| &rejection.reasons) {
            *counts.entry(reason).or_default() += 1;
        }
        let mut reasons: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        reasons.sort();
        write!(out, "0/{} nodes are available", self.rejections.len())?;
        if self.rejections.is_empty() {
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

    fn cluster(nodes: &[Value], pods: &[Value]) -> Snapshot {
        let mut cache = Cache::default();
        for node in nodes {
            cache.set_node(Arc::new(serde_json::from_value(node.clone()).unwrap()));
        }
        for pod in pods {
            cache.observe(&Arc::new(serde_json::from_value(pod.clone()).unwrap()));
        }
        cache.snapshot()
    }

    fn zoned(name: &str, zone: &str) -> Value {
        json!({"metadata": {"name": name, "labels": {"zone": zone, "host": name}},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}})
    }

    fn running(name: &str, node: &str, app: &str, affinity: Value) -> Value {
        json!({"metadata": {"name": name, "uid": name, "namespace": "default", "labels": {"app": app}},
            "spec": {"nodeName": node, "affinity": affinity, "containers": [{"name": "c"}]}})
    }

    fn incoming(spec: Value) -> PodInfo {
        let mut pod = json!({"metadata": {"name": "p", "uid": "u", "namespace": "default", "labels": {"app": "web"}}, "spec": spec});
        pod["spec"]["containers"] = json!([{"name": "c"}]);
        PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    fn verdict(pod: &PodInfo, snapshot: &Snapshot) -> String {
        match choose(pod, snapshot, &mut rand::rngs::StdRng::seed_from_u64(1)) {
            Ok(node) => node.name.clone(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn affinity_looks_at_topologies() {
        let term = |app: &str, key: &str| json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}]);
        let near = |app, key| json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app, key)}}});
        let far = |app, key| json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app, key)}}});
        let nodes = [zoned("a1", "a"), zoned("b1", "b")];
        let guard = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term("web", "zone")}});
        for (pods, spec, expected) in [
            (vec![running("db", "b1", "db", json!({}))], near("db", "zone"), "b1"),
            (vec![running("db", "b1", "db", json!({}))], far("db", "host"), "a1"),
            (vec![running("db", "b1", "db", guard)], json!({}), "a1"),
            (vec![], near("db", "zone"), "0/2 nodes are available: 2 node(s) didn't match pod affinity rules."),
            (
                vec![running("x", "a1", "db", json!({})), running("y", "b1", "db", json!({}))],
                far("db", "zone"),
                "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.",
            ),
        ] {
            assert_eq!(verdict(&incoming(spec.clone()), &cluster(&nodes, &pods)), expected, "{spec}");
        }
        // The first of a group that wants to be together may go anywhere.
        assert!(verdict(&incoming(near("web", "zone")), &cluster(&nodes[..1], &[])) == "a1");
    }

    #[test]
    fn spreading_keeps_the_skew() {
        let nodes = [zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b")];
        let pods = [running("1", "a1", "web", json!({})), running("2", "a2", "web", json!({}))];
        let spread = |when: &str, key: &str| {
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
                "labelSelector": {"matchLabels": {"app": "web"}}}]})
        };
        for (spec, expected) in [
            (spread("DoNotSchedule", "zone"), "b1"),
            (spread("ScheduleAnyway", "zone"), "b1"),
            (
                spread("DoNotSchedule", "rack"),
                "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints (missing required label).",
            ),
        ] {
            assert_eq!(verdict(&incoming(spec.clone()), &cluster(&nodes, &pods)), expected, "{spec}");
        }
    }
}
