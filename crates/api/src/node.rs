//! What a node is to everybody alike.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};

pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    status_condition(node.status.as_ref()?, kind)
}

/// Its kubelet reports, and says that it takes pods.
pub fn is_ready(node: &Node) -> bool {
    node.status.as_ref().is_some_and(status_is_ready)
}

/// As [`is_ready`], of a status.
pub fn status_is_ready(status: &NodeStatus) -> bool {
    status_condition(status, "Ready").is_some_and(|ready| ready.status == "True")
}

fn status_condition<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a NodeCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Region and zone together, as zones of two regions may have the same name; empty if it says neither. Older labels come first
/// (`GetZoneKey`, v1.36).
pub fn zone_key(labels: Option<&BTreeMap<String, String>>) -> String {
    let label = |name: &str| {
        let find = |group: &str| labels?.get(&format!("{group}/{name}"));
        find("failure-domain.beta.kubernetes.io").or_else(|| find("topology.kubernetes.io")).map_or("", String::as_str)
    };
    match (label("region"), label("zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_two_regions_differ() {
        const NEW: &str = "topology.kubernetes.io";
        const OLD: &str = "failure-domain.beta.kubernetes.io";
        for (labels, expected) in [
            (vec![], ""),
            (vec![(NEW, "zone", "a")], ":\0:a"),
            (vec![(NEW, "region", "r"), (NEW, "zone", "a")], "r:\0:a"),
            (vec![(OLD, "region", "r"), (OLD, "zone", "b"), (NEW, "zone", "a")], "r:\0:b"),
        ] {
            let labels = labels.into_iter().map(|(group, name, value)| (format!("{group}/{name}"), value.to_owned()));
            assert_eq!(zone_key(Some(&labels.collect())), expected);
        }
        assert_eq!(zone_key(None), "");
    }

    #[test]
    fn only_a_node_that_says_so_is_ready() {
        let node = |status: &str| {
            let condition = |kind: &str, status: &str| NodeCondition {
                type_: kind.into(),
                status: status.into(),
                ..NodeCondition::default()
            };
            let conditions = Some(vec![condition("DiskPressure", "True"), condition("Ready", status)]);
            Node { status: Some(NodeStatus { conditions, ..NodeStatus::default() }), ..Node::default() }
        };
        for (status, expected) in [("True", true), ("False", false), ("Unknown", false)] {
            assert_eq!(is_ready(&node(status)), expected, "{status}");
        }
        assert!(!is_ready(&Node::default()));
        assert!(condition(&node("True"), "Other").is_none());
    }
}
