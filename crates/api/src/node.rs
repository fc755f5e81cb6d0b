//! What a node is to everybody alike.

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

#[cfg(test)]
mod tests {
    use super::*;

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
