//! Whether a pod may run on a node, as far as selectors, affinity and taints say.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration};

/// The node selector and the required node affinity.
pub(crate) fn is_selected(spec: &PodSpec, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required
            .is_none_or(|required| required.node_selector_terms.iter().any(|term| matches_term(term, node, labels)))
}

/// A term without requirements matches nothing.
fn matches_term(term: &NodeSelectorTerm, node: &Node, labels: &BTreeMap<String, String>) -> bool {
    let mut any = false;
    let by_labels = term.match_expressions.iter().flatten().all(|requirement| {
        any = true;
        matches_requirement(requirement, labels.get(&requirement.key).map(String::as_str))
    });
    let mut any_field = false;
    let by_fields = term.match_fields.iter().flatten().all(|requirement| {
        any_field = true;
        requirement.key == "metadata.name" && matches_requirement(requirement, node.metadata.name.as_deref())
    });
    (any || any_field) && by_labels && by_fields
}

fn matches_requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|known| known == value));
    let compare = |greater: bool| {
        let (Some(value), Some(limit)) = (
            value.and_then(|value| value.parse::<i64>().ok()),
            values.first().and_then(|limit| limit.parse::<i64>().ok()),
        ) else {
            return false;
        };
        if greater { value > limit } else { value < limit }
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(true),
        "Lt" => compare(false),
        _ => false,
    }
}

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "Equal" | "" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

/// The first taint with one of `effects` that no toleration covers.
pub(crate) fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    taints.iter().find(|taint| {
        effects.contains(&taint.effect.as_str()) && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_cover_taints() {
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.into(),
            value: Some(value.into()),
            effect: effect.into(),
            time_added: None,
        };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: Some(key.into()),
            operator: Some(operator.into()),
            value: Some(value.into()),
            effect: Some(effect.into()),
            toleration_seconds: None,
        };
        for (toleration, taint, expected) in [
            (toleration("a", "Equal", "1", "NoSchedule"), taint("a", "1", "NoSchedule"), true),
            (toleration("a", "Equal", "2", "NoSchedule"), taint("a", "1", "NoSchedule"), false),
            (toleration("a", "Exists", "", ""), taint("a", "1", "NoExecute"), true),
            (toleration("", "Exists", "", ""), taint("b", "1", "NoExecute"), true),
            (toleration("a", "Exists", "", "NoSchedule"), taint("a", "1", "NoExecute"), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?} {taint:?}");
        }
    }

    #[test]
    fn requirements_as_operators_say() {
        for (operator, values, value, expected) in [
            ("In", vec!["a"], Some("a"), true),
            ("In", vec!["a"], None, false),
            ("NotIn", vec!["a"], None, true),
            ("Exists", vec![], Some(""), true),
            ("DoesNotExist", vec![], Some("x"), false),
            ("Gt", vec!["3"], Some("4"), true),
            ("Lt", vec!["3"], Some("4"), false),
        ] {
            let requirement = NodeSelectorRequirement {
                key: "k".into(),
                operator: operator.into(),
                values: Some(values.into_iter().map(str::to_owned).collect()),
            };
            assert_eq!(matches_requirement(&requirement, value), expected, "{operator} {value:?}");
        }
    }
}
