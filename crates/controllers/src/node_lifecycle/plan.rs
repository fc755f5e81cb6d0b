//! Which taints a node's conditions call for, and how fast nodes of a zone may be given those that evict.

use std::collections::BTreeMap;
use std::time::Duration;

use api::node::condition;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

const PREFIX: &str = "node.kubernetes.io/";
pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// `True`, `False` or `Unknown`; a node that has not reported yet is unknown.
pub(super) fn ready(node: &Node) -> &str {
    condition(node, "Ready").map_or("Unknown", |ready| ready.status.as_str())
}

/// Whether the node says itself that nobody knows how it fares. One whose kubelet never came says nothing.
pub(super) fn is_marked_unknown(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|ready| ready.status == "Unknown")
}

/// Key and effect of every taint this controller manages and the node should have now.
pub(super) fn wanted(node: &Node) -> Vec<(&'static str, &'static str)> {
    let mut taints = Vec::new();
    match condition(node, "Ready").map(|ready| ready.status.as_str()) {
        Some("False") => taints.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        Some("Unknown") => taints.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        _ => {}
    }
    let pressures = [
        ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
        ("DiskPressure", "node.kubernetes.io/disk-pressure"),
        ("PIDPressure", "node.kubernetes.io/pid-pressure"),
        ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
    ];
    for (kind, key) in pressures {
        if condition(node, kind).is_some_and(|condition| condition.status == "True") {
            taints.push((key, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        taints.push(("node.kubernetes.io/unschedulable", "NoSchedule"));
    }
    taints
}

/// Taints of people and of other controllers are left alone.
fn is_managed(taint: &Taint) -> bool {
    const OURS: [&str; 7] = [
        "not-ready",
        "unreachable",
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
        "unschedulable",
    ];
    taint.key.strip_prefix(PREFIX).is_some_and(|name| OURS.contains(&name)) && taint.effect != "PreferNoSchedule"
}

/// The node's taints as they should be; `None` if they are. `evict` is false while the zone's evictions are held back.
pub(super) fn taints(node: &Node, evict: bool, now: jiff::Timestamp) -> Option<Vec<Taint>> {
    let present = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let has = |(key, effect): &(&str, &str)| present.iter().any(|taint| taint.key == *key && taint.effect == *effect);
    let wanted: Vec<_> =
        wanted(node).into_iter().filter(|taint| evict || taint.1 != "NoExecute" || has(taint)).collect();
    let mut result: Vec<Taint> = present
        .iter()
        .filter(|taint| !is_managed(taint) || wanted.contains(&(taint.key.as_str(), taint.effect.as_str())))
        .cloned()
        .collect();
    for (key, effect) in wanted.iter().filter(|taint| !has(taint)) {
        let time_added = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        result.push(Taint { key: (*key).into(), value: None, effect: (*effect).into(), time_added });
    }
    (result != present).then_some(result)
}

/// Gives the node these taints, if nobody has changed it meanwhile. Null takes the field away; an empty list would stay.
pub(super) fn taint_patch(node: &Node, taints: &[Taint]) -> Value {
    let taints = (!taints.is_empty()).then_some(taints);
    json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}})
}

/// `--node-eviction-rate` of 0.1 per second: one node in ten seconds, per zone.
const MONITOR_INTERVAL: Duration = Duration::from_secs(10);
/// `--secondary-node-eviction-rate` of 0.01 per second, while most of a large zone is silent.
const SLOW_PERIOD: Duration = Duration::from_secs(100);
/// `--unhealthy-zone-threshold` and `--large-cluster-size-threshold`.
const UNHEALTHY_SHARE: f64 = 0.55;
const LARGE: usize = 50;

/// How many nodes of a zone are ready, and how many are not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Zone {
    pub(super) ready: usize,
    pub(super) not_ready: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Disruption {
    No,
    Partial,
    Full,
}

impl Zone {
    pub(super) fn size(self) -> usize {
        self.ready + self.not_ready
    }

    fn disruption(self) -> Disruption {
        let total = self.size();
        if self.ready == 0 && self.not_ready > 0 {
            Disruption::Full
        } else if self.not_ready > 2 && self.not_ready as f64 >= UNHEALTHY_SHARE * total as f64 {
            Disruption::Partial
        } else {
            Disruption::No
        }
    }
}

/// The time between two evicting taints in a zone; `None` while there must be none at all. If every zone is silent the fault
/// is more likely ours; if most of a small one is, its work has nowhere to go.
pub(super) fn eviction_period(zones: &BTreeMap<String, Zone>, zone: &str) -> Option<Duration> {
    if zones.values().all(|zone| zone.disruption() == Disruption::Full) {
        return None;
    }
    let zone = zones.get(zone).copied().unwrap_or_default();
    match zone.disruption() {
        Disruption::No | Disruption::Full => Some(MONITOR_INTERVAL),
        Disruption::Partial => (zone.ready + zone.not_ready > LARGE).then_some(SLOW_PERIOD),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeCondition, NodeSpec, NodeStatus};

    use super::*;

    fn node(conditions: &[(&str, &str)], unschedulable: bool, taints: &[(&str, &str)]) -> Node {
        let condition = |(kind, status): &(&str, &str)| NodeCondition {
            type_: (*kind).into(),
            status: (*status).into(),
            ..NodeCondition::default()
        };
        let taint =
            |(key, effect): &(&str, &str)| Taint { key: (*key).into(), effect: (*effect).into(), ..Taint::default() };
        Node {
            spec: Some(NodeSpec {
                unschedulable: Some(unschedulable),
                taints: Some(taints.iter().map(taint).collect()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                conditions: Some(conditions.iter().map(condition).collect()),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    #[test]
    fn evictions_slow_down_while_zones_are_silent() {
        let zone = |ready, not_ready| Zone { ready, not_ready };
        for (mine, other, expected) in [
            (zone(3, 1), None, Some(MONITOR_INTERVAL)),
            (zone(0, 1), None, None),
            (zone(0, 4), Some(zone(0, 2)), None),
            (zone(0, 4), Some(zone(2, 0)), Some(MONITOR_INTERVAL)),
            (zone(2, 3), None, None),
            (zone(1, 2), None, Some(MONITOR_INTERVAL)),
            (zone(40, 60), None, Some(SLOW_PERIOD)),
            (zone(60, 40), None, Some(MONITOR_INTERVAL)),
        ] {
            let zones = [("mine".to_owned(), mine)].into_iter().chain(other.map(|other| ("other".to_owned(), other)));
            assert_eq!(eviction_period(&zones.collect(), "mine"), expected, "{mine:?} {other:?}");
        }
    }

    #[test]
    fn the_last_taint_takes_the_field_along() {
        let node = node(&[("Ready", "True")], false, &[(NOT_READY, "NoSchedule")]);
        let left = taints(&node, true, jiff::Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(taint_patch(&node, &left)["spec"], json!({"taints": null}));
        let present = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap();
        assert_eq!(taint_patch(&node, &present)["spec"]["taints"][0]["key"], NOT_READY);
    }

    #[test]
    fn a_node_without_conditions_is_yet_to_be_marked() {
        for (conditions, expected) in
            [(vec![], false), (vec![("Ready", "True")], false), (vec![("Ready", "Unknown")], true)]
        {
            assert_eq!(is_marked_unknown(&node(&conditions, false, &[])), expected, "{conditions:?}");
        }
    }

    #[test]
    fn taints_follow_the_conditions() {
        for (conditions, unschedulable, present, evict, expected) in [
            (vec![("Ready", "True")], false, vec![], true, None),
            (vec![("Ready", "True")], true, vec![], true, Some(vec!["unschedulable:NoSchedule"])),
            (vec![("Ready", "False")], false, vec![], true, Some(vec!["not-ready:NoSchedule", "not-ready:NoExecute"])),
            (vec![("Ready", "Unknown")], false, vec![], false, Some(vec!["unreachable:NoSchedule"])),
            (vec![("Ready", "True")], false, vec![(NOT_READY, "NoSchedule")], true, Some(vec![])),
            (
                vec![("Ready", "True"), ("DiskPressure", "True")],
                false,
                vec![("mine", "NoExecute")],
                true,
                Some(vec!["mine:NoExecute", "disk-pressure:NoSchedule"]),
            ),
        ] {
            let node = node(&conditions, unschedulable, &present);
            let result = taints(&node, evict, jiff::Timestamp::UNIX_EPOCH);
            let names = result.map(|taints| {
                taints
                    .iter()
                    .map(|taint| format!("{}:{}", taint.key.trim_start_matches(PREFIX), taint.effect))
                    .collect::<Vec<_>>()
            });
            assert_eq!(names, expected.map(|list| list.into_iter().map(str::to_owned).collect()), "{conditions:?}");
        }
    }
}
