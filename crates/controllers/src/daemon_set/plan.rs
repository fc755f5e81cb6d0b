//! What a DaemonSet does next, decided from itself, the nodes and its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::placement::{is_selected, untolerated};
use api::sort::{CompactCollect as _, CompactSort as _};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

use crate::history::REVISION_LABEL;
use crate::int_or_percent::{Round, resolve};
use crate::pods;

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Names of nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Those that have ended; they are replaced with a growing delay.
    pub(super) failed: Vec<Arc<Pod>>,
    pub(super) status: DaemonSetStatus,
    pub(super) recheck: Option<Duration>,
}

/// Taints of a node in trouble do not keep daemons away.
pub(super) fn tolerations(host_network: bool) -> Vec<Toleration> {
    let exists = |key: &str, effect: &str| Toleration {
        key: Some(format!("node.kubernetes.io/{key}")),
        operator: Some("Exists".into()),
        effect: Some(effect.into()),
        ..Toleration::default()
    };
    let mut all = vec![
        exists("not-ready", "NoExecute"),
        exists("unreachable", "NoExecute"),
        exists("disk-pressure", "NoSchedule"),
        exists("memory-pressure", "NoSchedule"),
        exists("pid-pressure", "NoSchedule"),
        exists("unschedulable", "NoSchedule"),
    ];
    if host_network {
        all.push(exists("network-unavailable", "NoSchedule"));
    }
    all
}

/// Whether a daemon should be started on a node, and whether one that is there may stay.
pub(super) fn placement(spec: &PodSpec, node: &Node) -> (bool, bool) {
    let named =
        spec.node_name.as_deref().is_none_or(|name| name.is_empty() || Some(name) == node.metadata.name.as_deref());
    if !named || !is_selected(spec, node) {
        return (false, false);
    }
    let mut allowed = spec.tolerations.clone().unwrap_or_default();
    allowed.extend(tolerations(spec.host_network == Some(true)));
    let taints: &[Taint] = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let stays = untolerated(taints, &allowed, &["NoExecute"]).is_none();
    (stays && untolerated(taints, &allowed, &["NoSchedule", "NoExecute"]).is_none(), stays)
}

/// The node a pod is on, or is meant for while it waits for the scheduler.
pub(super) fn target_node(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(name) = spec.node_name.as_deref().filter(|name| !name.is_empty()) {
        return Some(name);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten())
        .find(|field| field.key == "metadata.name")?
        .values
        .as_ref()?
        .first()
        .map(String::as_str)
}

/// Replaces whatever fields the affinity names by the one node.
pub(super) fn pin(spec: &mut PodSpec, node: &str) {
    let field =
        NodeSelectorRequirement { key: "metadata.name".into(), operator: "In".into(), values: Some(vec![node.into()]) };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required = affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![field.clone()]);
    }
}

pub(super) fn plan(set: &DaemonSet, nodes: &[Arc<Node>], pods: &[Arc<Pod>], revision: &str, now: Timestamp) -> Plan {
    let spec = set.spec.clone().unwrap_or_default();
    let template = spec.template.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or_default();
    let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        by_node.entry(target_node(pod).unwrap_or_default()).or_default().push(pod);
    }
    let mut plan = Plan::default();
    let is_new = |pod: &Pod| pod.metadata.label(REVISION_LABEL) == Some(revision);
    let available = |pod: &Pod| pods::is_available(pod, min_ready, now) && !pods::is_terminating(pod);
    let surges = surge(&spec, 1) > 0;
    let mut wanted_nodes = Vec::new();
    let mut counts = [0i32; 5]; // scheduled, misplaced, ready, updated, available
    for node in nodes {
        let name = node.metadata.name();
        let here = by_node.get(name).cloned().unwrap_or_default();
        let (starts, stays) = placement(&template, node);
        let living: Vec<&Arc<Pod>> =
            here.iter().filter(|pod| !pods::is_terminating(pod) && !pods::is_finished(pod)).copied().collect();
        let broken = here.iter().filter(|pod| !pods::is_terminating(pod) && pods::is_finished(pod)).copied();
        if starts {
            wanted_nodes.push(name);
        }
        if starts || stays {
            plan.failed.extend(broken.cloned());
            keep_best(&living, is_new, available, &spec, &mut plan.delete);
        } else {
            plan.delete.extend(here.iter().filter(|pod| !pods::is_terminating(pod)).map(|pod| Arc::clone(pod)));
        }
        // A terminating pod's place is taken only once it is gone, unless two may be there for a while.
        if starts && (here.is_empty() || surges && here.iter().all(|pod| pods::is_terminating(pod))) {
            plan.create.push(name.to_owned());
        }
        if starts {
            if let Some(pod) = living.iter().max_by_key(|pod| (available(pod), is_new(pod))) {
                counts[0] += 1;
                counts[2] += i32::from(pods::is_ready(pod));
                counts[3] += i32::from(is_new(pod));
                counts[4] += i32::from(available(pod));
            }
        } else if !here.is_empty() {
            counts[1] += 1;
        }
    }
    plan.delete.extend(stranded(pods, nodes));
    let desired = i32::try_from(wanted_nodes.len()).unwrap_or(i32::MAX);
    // A node where pods fail again and again holds up its own pod only.
    if plan.create.is_empty() && plan.delete.is_empty() {
        roll(&spec, &wanted_nodes, &by_node, is_new, available, &mut plan);
    }
    let nonzero = |number: i32| (number != 0).then_some(number);
    let old = set.status.clone().unwrap_or_default();
    plan.recheck = pods
        .iter()
        .filter_map(|pod| pods::available_in(pod, min_ready, now))
        .filter(|delay| min_ready > 0 && !delay.is_zero())
        .min();
    plan.status = DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: counts[0],
        number_misscheduled: counts[1],
        number_ready: counts[2],
        updated_number_scheduled: nonzero(counts[3]),
        number_available: nonzero(counts[4]),
        number_unavailable: nonzero(desired - counts[4]),
        observed_generation: set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions,
    };
    plan
}

/// Pods that wait for a node which is gone: no scheduler finds them a place (`getUnscheduledPodsWithoutNode`, v1.36).
fn stranded(pods: &[Arc<Pod>], nodes: &[Arc<Node>]) -> Vec<Arc<Pod>> {
    let known: BTreeSet<&str> = nodes.iter().map(|node| node.metadata.name()).compact_collect();
    let is_stranded = |pod: &&Arc<Pod>| {
        let waits = pods::node_name(pod).is_empty() && !pods::is_terminating(pod);
        waits && target_node(pod).is_some_and(|node| !known.contains(node))
    };
    pods.iter().filter(is_stranded).cloned().collect()
}

/// Of several pods on one node one stays: while surging the old one, too, until the new one is available or itself is not ready.
fn keep_best(
    living: &[&Arc<Pod>],
    is_new: impl Fn(&Pod) -> bool,
    available: impl Fn(&Pod) -> bool,
    spec: &DaemonSetSpec,
    delete: &mut Vec<Arc<Pod>>,
) {
    let newest = |pods: Vec<&Arc<Pod>>| pods.into_iter().cloned().collect::<Vec<_>>();
    let (mut new, mut old): (Vec<_>, Vec<_>) = (
        newest(living.iter().filter(|pod| is_new(pod)).copied().collect()),
        newest(living.iter().filter(|pod| !is_new(pod)).copied().collect()),
    );
    for group in [&mut new, &mut old] {
        group.compact_sort_by_cached_key(|pod| {
            (std::cmp::Reverse(available(pod)), pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone())
        });
        delete.extend(group.drain(1.min(group.len())..));
    }
    if let (Some(new), Some(old)) = (new.first(), old.first()) {
        let surging = surge(spec, 1) > 0;
        if !surging {
            delete.push(new.clone());
        } else if available(new) || !pods::is_ready(old) {
            delete.push(old.clone());
        }
    }
}

fn surge(spec: &DaemonSetSpec, desired: i32) -> i32 {
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    rolling.and_then(|rolling| rolling.max_surge.as_ref()).map_or(0, |limit| resolve(limit, desired, Round::Up))
}

/// Replaces pods of old templates: unavailable ones at once, others within `maxUnavailable`, or beside them within `maxSurge`.
fn roll(
    spec: &DaemonSetSpec,
    wanted: &[&str],
    by_node: &BTreeMap<&str, Vec<&Arc<Pod>>>,
    is_new: impl Fn(&Pod) -> bool,
    available: impl Fn(&Pod) -> bool,
    plan: &mut Plan,
) {
    if spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let desired = i32::try_from(wanted.len()).unwrap_or(i32::MAX);
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let max_surge = surge(spec, desired);
    let max_unavailable = rolling
        .and_then(|rolling| rolling.max_unavailable.as_ref())
        .map_or(1, |limit| resolve(limit, desired, Round::Up));
    let max_unavailable = if max_surge == 0 { max_unavailable.max(1) } else { max_unavailable };
    let (mut unavailable, mut surging) = (0, 0);
    let mut candidates = Vec::new();
    for node in wanted {
        let here = by_node.get(node).map(Vec::as_slice).unwrap_or_default();
        let is_living = |pod: &Pod| !pods::is_terminating(pod) && !pods::is_finished(pod);
        let living: Vec<&Arc<Pod>> = here.iter().filter(|pod| is_living(pod)).copied().collect();
        let works = living.iter().any(|pod| available(pod));
        unavailable += i32::from(!works);
        let old = living.iter().find(|pod| !is_new(pod)).copied();
        let has_new = living.iter().any(|pod| is_new(pod));
        surging += i32::from(old.is_some() && has_new);
        if let Some(old) = old.filter(|_| !has_new) {
            match works {
                true => candidates.push((*node, old.clone())),
                // `keep_best` takes it away once the new one is there.
                false if max_surge > 0 => plan.create.push((*node).to_owned()),
                false => plan.delete.push(old.clone()),
            }
        }
    }
    for (node, old) in candidates {
        if max_surge > 0 {
            if surging < max_surge {
                surging += 1;
                plan.create.push(node.to_owned());
            }
        } else if unavailable < max_unavailable {
            unavailable += 1;
            plan.delete.push(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
    use k8s_openapi::api::core::v1::NodeSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::pods::tests::{Builder, at};

    fn node(name: &str, taint: Option<(&str, &str)>) -> Arc<Node> {
        let taints =
            taint.map(|(key, effect)| vec![Taint { key: key.into(), effect: effect.into(), ..Taint::default() }]);
        let mut node = Node { spec: Some(NodeSpec { taints, ..NodeSpec::default() }), ..Node::default() };
        node.metadata.name = Some(name.into());
        Arc::new(node)
    }

    fn set(surge: i32, unavailable: i32) -> DaemonSet {
        let rolling = RollingUpdateDaemonSet {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(unavailable)),
        };
        let strategy = DaemonSetUpdateStrategy { type_: Some("RollingUpdate".into()), rolling_update: Some(rolling) };
        DaemonSet {
            spec: Some(DaemonSetSpec { update_strategy: Some(strategy), ..DaemonSetSpec::default() }),
            ..DaemonSet::default()
        }
    }

    /// Name and node, `r` ready, `p` pending, `f` failed or `s` succeeded; upper case is the present template.
    fn pod(name: &str, node: &str, state: char) -> Arc<Pod> {
        let builder = Builder::new(name)
            .on(node)
            .labelled(REVISION_LABEL, if state.is_ascii_uppercase() { "new" } else { "old" });
        match state.to_ascii_lowercase() {
            'r' => builder.ready(at(0)).build(),
            'f' => builder.phase("Failed").build(),
            's' => builder.phase("Succeeded").build(),
            _ => builder.build(),
        }
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<String> {
        pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn one_daemon_on_every_node_that_takes_it() {
        let nodes = [
            node("a", None),
            node("b", Some(("node.kubernetes.io/unschedulable", "NoSchedule"))),
            node("c", Some(("mine", "NoSchedule"))),
            node("d", Some(("mine", "NoExecute"))),
        ];
        let first = plan(&set(0, 1), &nodes, &[], "new", at(10));
        assert_eq!(first.create, ["a", "b"]);
        assert_eq!(first.status.desired_number_scheduled, 2);
        let pods =
            [pod("pa", "a", 'R'), pod("pa2", "a", 'P'), pod("pb", "b", 'f'), pod("pc", "c", 'R'), pod("pd", "d", 'R')];
        let next = plan(&set(0, 1), &nodes, &pods, "new", at(10));
        assert_eq!(names(&next.delete), ["pa2", "pd"], "a second one and one that may not stay");
        assert_eq!(names(&next.failed), ["pb"]);
        assert_eq!(next.status.number_misscheduled, 2);
        let ended = [pod("pc", "c", 's'), pod("pd", "d", 'f')];
        let next = plan(&set(0, 1), &nodes, &ended, "new", at(10));
        assert_eq!((names(&next.failed), names(&next.delete)), (vec!["pc".to_owned()], vec!["pd".to_owned()]));
    }

    #[test]
    fn a_pod_that_waits_for_a_node_which_is_gone_goes_as_well() {
        let waiting = |name: &str, node: &str| {
            let mut pod = Builder::new(name).0;
            pin(pod.spec.get_or_insert_default(), node);
            Arc::new(Pod::from(pod))
        };
        let pods = [waiting("p1", "a"), waiting("p2", "gone"), pod("p3", "gone", 'R')];
        let plan = plan(&set(0, 1), &[node("a", None)], &pods, "new", at(10));
        assert_eq!(names(&plan.delete), ["p2"]);
    }

    #[test]
    fn updates_stay_within_their_bounds() {
        let nodes = [node("a", None), node("b", None), node("c", None)];
        for (surge, unavailable, states, deleted, created) in [
            (0, 1, "rrr", 1, 0),
            (0, 2, "rrr", 2, 0),
            (0, 1, "rrP", 0, 0),
            (0, 1, "rpr", 1, 0),
            (0, 1, "RRR", 0, 0),
            (2, 0, "rrr", 0, 2),
            // What does not work is replaced beside the others.
            (2, 0, "rpr", 0, 3),
            // One that failed is replaced by itself, and holds up no other.
            (0, 2, "frr", 1, 0),
            (0, 1, "frr", 0, 0),
        ] {
            let pods: Vec<_> = states
                .chars()
                .zip(["a", "b", "c"])
                .map(|(state, node)| pod(&format!("p{node}"), node, state))
                .collect();
            let plan = plan(&set(surge, unavailable), &nodes, &pods, "new", at(10));
            assert_eq!((plan.delete.len(), plan.create.len()), (deleted, created), "{states} +{surge} -{unavailable}");
        }
    }

    #[test]
    fn two_are_on_a_node_while_both_are_of_use() {
        let nodes = [node("a", None)];
        for (surge, states, deleted, created) in [
            (1, "rP", vec![], 0),
            (1, "rR", vec!["p0"], 0),
            (1, "pP", vec!["p0"], 0),
            (0, "rP", vec!["p1"], 0),
            // `t` is an old one on its way out.
            (1, "t", vec![], 1),
            (0, "t", vec![], 0),
        ] {
            let of = |(number, state): (usize, char)| match state {
                't' => {
                    let mut builder = Builder::new("gone").on("a");
                    builder.0.metadata.deletion_timestamp = Some(Time(at(0)));
                    builder.build()
                }
                state => pod(&format!("p{number}"), "a", state),
            };
            let pods: Vec<_> = states.chars().enumerate().map(of).collect();
            let plan = plan(&set(surge, 1 - surge), &nodes, &pods, "new", at(10));
            assert_eq!(names(&plan.delete), deleted, "{states} +{surge}");
            assert_eq!(plan.create.len(), created, "{states} +{surge}");
        }
    }

    #[test]
    fn a_pod_waiting_for_the_scheduler_has_its_node() {
        let mut spec = PodSpec::default();
        pin(&mut spec, "n1");
        let mut pod = Pod::default();
        pod.spec = Some(spec.into());
        assert_eq!(target_node(&pod), Some("n1"));
    }
}
