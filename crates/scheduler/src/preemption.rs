//! Making room: when no node takes a pod, pods of lower priority may have to go.
//!
//! Pure. For each node that could help, all pods of lower priority are taken away; if the pod then fits, as many as
//! possible are spared again, the most important first. The node whose victims matter least is chosen.

use std::cmp::Reverse;
use std::sync::Arc;

use api::selector::Selector;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use rand::Rng;
use rand::seq::SliceRandom;

use crate::cache::Snapshot;
use crate::cycle::{FitError, Judges};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// Candidates are looked for on a tenth of the nodes, but on no fewer than this.
const MIN_CANDIDATES: usize = 100;

/// A node and the pods that would have to leave it.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) node: Arc<NodeInfo>,
    pub(crate) victims: Vec<Arc<PodInfo>>,
    /// How many victims a disruption budget wants to keep.
    violations: usize,
}

/// Whether the pod may drive others out, and does not wait for pods that it drove out already.
pub(crate) fn is_eligible(pod: &PodInfo, snapshot: &Snapshot) -> bool {
    let policy = pod.pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref());
    if policy == Some("Never") {
        return false;
    }
    let nominated = pod.pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    let Some(node) = snapshot.nodes.iter().find(|node| Some(node.name.as_str()) == nominated) else { return true };
    !node.pods.values().any(|other| other.priority < pod.priority && other.pod.metadata.deletion_timestamp.is_some())
}

/// The node to make room on, if any.
pub(crate) fn choose(
    pod: &PodInfo,
    snapshot: &Snapshot,
    error: &FitError,
    budgets: &[Arc<PodDisruptionBudget>],
    dice: &mut impl Rng,
) -> Option<Candidate> {
    let mut nodes: Vec<&Arc<NodeInfo>> =
        error.rejections.iter().filter(|(_, rejection)| !rejection.unresolvable).map(|(node, _)| node).collect();
    nodes.shuffle(dice);
    let enough = (snapshot.nodes.len() / 10).max(MIN_CANDIDATES);
    let candidates = nodes.into_iter().filter_map(|node| victims_on(pod, node, snapshot, budgets)).take(enough);
    candidates.min_by_key(cost)
}

/// What a candidate costs, the gravest first (`pickOneNodeForPreemption`, v1.36).
fn cost(candidate: &Candidate) -> (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>) {
    let priorities = || candidate.victims.iter().map(|victim| victim.priority);
    let highest = priorities().max().unwrap_or(i32::MIN);
    // Shifted so that a pod of negative priority still counts as a loss.
    let sum = priorities().map(|priority| i64::from(priority) + i64::from(i32::MAX) + 1).sum();
    let important = candidate.victims.iter().filter(|victim| victim.priority == highest);
    let youngest_start = important.filter_map(|victim| started(victim)).min();
    (candidate.violations, highest, sum, candidate.victims.len(), Reverse(youngest_start))
}

fn victims_on(
    pod: &PodInfo,
    node: &Arc<NodeInfo>,
    snapshot: &Snapshot,
    budgets: &[Arc<PodDisruptionBudget>],
) -> Option<Candidate> {
    let mut lower: Vec<Arc<PodInfo>> =
        node.pods.values().filter(|other| other.priority < pod.priority).cloned().collect();
    if lower.is_empty() {
        return None;
    }
    let mut trial = Trial { pod, snapshot: snapshot.clone(), node: node.as_ref().clone() };
    lower.iter().for_each(|other| trial.node.remove_pod(&other.uid));
    if !trial.fits() {
        return None;
    }
    // The most important are spared first: high priority, then long running.
    lower.sort_by_key(|other| (Reverse(other.priority), started(other)));
    let (guarded, free) = split_by_budget(lower, budgets);
    let mut victims = Vec::new();
    let mut violations = 0;
    for (others, is_guarded) in [(guarded, true), (free, false)] {
        for other in others {
            trial.node.add_pod(other.clone());
            if !trial.fits() {
                trial.node.remove_pod(&other.uid);
                violations += usize::from(is_guarded);
                victims.push(other);
            }
        }
    }
    Some(Candidate { node: node.clone(), victims, violations })
}

/// A node with some pods taken away, within the rest of the cluster.
struct Trial<'a> {
    pod: &'a PodInfo,
    snapshot: Snapshot,
    node: NodeInfo,
}

impl Trial<'_> {
    fn fits(&mut self) -> bool {
        let changed = Arc::new(self.node.clone());
        if let Some(slot) = self.snapshot.nodes.iter_mut().find(|node| node.name == changed.name) {
            *slot = changed.clone();
        }
        Judges::new(self.pod, &self.snapshot).filter(&changed).is_ok()
    }
}

/// Those whose going a budget forbids, and the rest. Each pod that goes uses up what its budgets allow.
fn split_by_budget(
    pods: Vec<Arc<PodInfo>>,
    budgets: &[Arc<PodDisruptionBudget>],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<i32> = budgets
        .iter()
        .map(|budget| budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or(0))
        .collect();
    pods.into_iter().partition(|pod| {
        let mut forbidden = false;
        for (budget, left) in budgets.iter().zip(&mut allowed) {
            if covers(budget, pod) {
                *left -= 1;
                forbidden |= *left < 0;
            }
        }
        forbidden
    })
}

fn covers(budget: &PodDisruptionBudget, pod: &PodInfo) -> bool {
    let name = pod.pod.metadata.name.as_deref().unwrap_or_default();
    let counted_already = budget
        .status
        .as_ref()
        .and_then(|status| status.disrupted_pods.as_ref())
        .is_some_and(|pods| pods.contains_key(name));
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { return false };
    !counted_already
        && budget.metadata.namespace == pod.pod.metadata.namespace
        && Selector::from_label_selector(Some(selector))
            .is_ok_and(|selector| !selector.is_empty() && selector.matches(pod.pod.metadata.labels.as_ref()))
}

fn started(pod: &PodInfo) -> Option<jiff::Timestamp> {
    pod.pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use rand::SeedableRng;
    use serde_json::{Value, json};

    fn pod(name: &str, node: Option<&str>, priority: i32, cpu: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name, "namespace": "default", "labels": {"app": name}},
            "spec": {"nodeName": node, "priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn victims(pods: &[Value], budgets: &[Value]) -> Option<(String, Vec<String>)> {
        let mut cache = Cache::default();
        for name in ["n1", "n2"] {
            let node = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}});
            cache.set_node(Arc::new(serde_json::from_value(node).unwrap()));
        }
        for pod in pods {
            cache.observe(&Arc::new(serde_json::from_value(pod.clone()).unwrap()));
        }
        let snapshot = cache.snapshot();
        let new = PodInfo::new(Arc::new(serde_json::from_value(pod("new", None, 100, "500m")).unwrap()));
        let budgets: Vec<_> = budgets.iter().map(|b| Arc::new(serde_json::from_value(b.clone()).unwrap())).collect();
        let mut dice = rand::rngs::StdRng::seed_from_u64(1);
        let error = crate::cycle::choose(&new, &snapshot, &mut dice).unwrap_err();
        let found = choose(&new, &snapshot, &error, &budgets, &mut dice)?;
        let mut names: Vec<String> = found.victims.iter().map(|victim| victim.uid.clone()).collect();
        names.sort();
        Some((found.node.name.clone(), names))
    }

    fn expect(found: Option<(String, Vec<String>)>, node: &str, names: &[&str]) {
        assert_eq!(found, Some((node.to_owned(), names.iter().map(|name| (*name).to_owned()).collect())));
    }

    #[test]
    fn the_least_important_victims_go() {
        // Lower priority first, then fewer victims.
        expect(victims(&[pod("a", Some("n1"), 50, "1"), pod("b", Some("n2"), 10, "1")], &[]), "n2", &["b"]);
        let two = [pod("a", Some("n1"), 10, "400m"), pod("b", Some("n1"), 10, "600m"), pod("c", Some("n2"), 10, "1")];
        expect(victims(&two, &[]), "n1", &["b"]);
        // Nobody of equal or higher priority.
        assert_eq!(victims(&[pod("a", Some("n1"), 100, "1"), pod("b", Some("n2"), 200, "1")], &[]), None);
    }

    #[test]
    fn budgets_are_kept_where_possible() {
        let budget = json!({"metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "b"}}}, "status": {"disruptionsAllowed": 0,
            "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        expect(victims(&[pod("a", Some("n1"), 50, "1"), pod("b", Some("n2"), 10, "1")], &[budget]), "n1", &["a"]);
    }
}
