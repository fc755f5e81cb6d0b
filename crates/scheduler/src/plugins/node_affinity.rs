//! `nodeSelector` and required node affinity exclude nodes; preferred terms rank them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeAffinity as Affinity, NodeSelectorRequirement, NodeSelectorTerm};

use crate::framework::{Plugin, Rejection, normalize};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

pub(crate) struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Rejection> {
        if admits(pod, node) {
            return Ok(());
        }
        Err(Rejection::new(self.name(), "node(s) didn't match Pod's node affinity/selector").unresolvable())
    }

    fn score(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> Option<Vec<i64>> {
        let preferred = affinity(pod)?.preferred_during_scheduling_ignored_during_execution.as_ref()?;
        let mut scores: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let matching = preferred.iter().filter(|term| term_matches(&term.preference, node));
                matching.map(|term| i64::from(term.weight)).sum()
            })
            .collect();
        normalize(&mut scores, false);
        Some(scores)
    }

    fn weight(&self) -> i64 {
        2
    }
}

/// Whether `nodeSelector` and required affinity let the pod go to the node.
pub(crate) fn admits(pod: &PodInfo, node: &NodeInfo) -> bool {
    let selector = pod.pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    let required = affinity(pod).and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selector.into_iter().flatten().all(|(key, value)| node.label(key) == Some(value))
        && required.is_none_or(|selector| selector.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// A term with no requirement at all matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| holds(requirement, node.label(&requirement.key)))
        && fields
            .iter()
            .all(|requirement| requirement.key == "metadata.name" && holds(requirement, Some(node.name.as_str())))
}

fn holds(requirement: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = |found: &str| values.iter().any(|value| value == found);
    let number = |text: &str| text.parse::<i64>().ok();
    let against = values.first().and_then(|value| number(value));
    match requirement.operator.as_str() {
        "In" => found.is_some_and(is_listed),
        "NotIn" => !found.is_some_and(is_listed),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => found.and_then(number).zip(against).is_some_and(|(found, against)| found > against),
        "Lt" => found.and_then(number).zip(against).is_some_and(|(found, against)| found < against),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operators_read_labels_as_upstream_does() {
        for (operator, values, found, expected) in [
            ("In", vec!["a", "b"], Some("b"), true),
            ("In", vec!["a"], None, false),
            ("NotIn", vec!["a"], None, true),
            ("NotIn", vec!["a"], Some("a"), false),
            ("Exists", vec![], Some(""), true),
            ("DoesNotExist", vec![], None, true),
            ("Gt", vec!["3"], Some("4"), true),
            ("Gt", vec!["3"], Some("x"), false),
            ("Lt", vec!["3"], Some("2"), true),
            ("Odd", vec![], Some("1"), false),
        ] {
            let requirement: NodeSelectorRequirement =
                serde_json::from_value(json!({"key": "k", "operator": operator, "values": values})).unwrap();
            assert_eq!(holds(&requirement, found), expected, "{operator} {values:?} {found:?}");
        }
    }
}
