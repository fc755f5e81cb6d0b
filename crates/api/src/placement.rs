//! What a pod asks of a node: selectors, parsed once, and tolerations. Who places pods (scheduler, daemon sets) and who
//! takes them away again (taint eviction, kubelet) must mean the same by them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector as Selector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PodSpec,
    PreferredSchedulingTerm, Taint, Toleration,
};

use crate::meta::Meta as _;
use crate::selector::{Operator, Requirement};

type Labels = BTreeMap<String, String>;

/// Terms of which one must hold. A term that is empty or does not parse holds nowhere.
#[derive(Debug, Clone, Default)]
pub struct NodeSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone)]
struct Term {
    labels: Vec<Requirement>,
    /// On `metadata.name`: whether the name must be this, or must not.
    names: Vec<(bool, String)>,
}

impl NodeSelector {
    pub fn new(selector: &Selector) -> NodeSelector {
        NodeSelector { terms: selector.node_selector_terms.iter().filter_map(Term::new).collect() }
    }

    pub fn matches(&self, name: &str, labels: Option<&Labels>) -> bool {
        self.terms.iter().any(|term| term.matches(name, labels))
    }
}

/// Terms that each add their weight where they hold.
#[derive(Debug, Clone, Default)]
pub struct Preferences {
    terms: Vec<(i64, Term)>,
}

impl Preferences {
    pub fn new(terms: &[PreferredSchedulingTerm]) -> Preferences {
        let terms = terms.iter().filter(|term| term.weight != 0);
        Preferences {
            terms: terms.filter_map(|term| Some((i64::from(term.weight), Term::new(&term.preference)?))).collect(),
        }
    }

    pub fn score(&self, name: &str, labels: Option<&Labels>) -> i64 {
        self.terms.iter().filter(|(_, term)| term.matches(name, labels)).map(|(weight, _)| weight).sum()
    }
}

/// Whether the node selector and the required node affinity allow the node.
pub fn is_selected(spec: &PodSpec, node: &Node) -> bool {
    let (name, labels) = (node.metadata.name(), node.metadata.labels.as_ref());
    let label = |key: &String| labels.and_then(|labels| labels.get(key));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    spec.node_selector.iter().flatten().all(|(key, value)| label(key) == Some(value))
        && required.is_none_or(|required| NodeSelector::new(required).matches(name, labels))
}

/// Whether nodes with these labels can have the volume (`CheckNodeAffinity`, v1.36).
pub fn is_reachable(volume: &PersistentVolume, labels: Option<&Labels>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| NodeSelector::new(required).matches("", labels))
}

/// Whether a toleration covers a taint: an empty effect covers every effect, an empty key every key.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        "Exists" => true,
        _ => false,
    }
}

/// The first taint with one of `effects` that no toleration covers.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    taints.iter().find(|taint| {
        effects.contains(&taint.effect.as_str()) && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    })
}

impl Term {
    fn new(term: &NodeSelectorTerm) -> Option<Term> {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        if expressions.is_empty() && fields.is_empty() {
            return None;
        }
        Some(Term {
            labels: expressions.iter().map(requirement).collect::<Option<_>>()?,
            names: fields.iter().map(name_requirement).collect::<Option<_>>()?,
        })
    }

    fn matches(&self, name: &str, labels: Option<&Labels>) -> bool {
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        self.labels.iter().all(|requirement| requirement.matches(label(&requirement.key)))
            && self.names.iter().all(|(equal, wanted)| (wanted == name) == *equal)
    }
}

fn requirement(requirement: &NodeSelectorRequirement) -> Option<Requirement> {
    let operator = match requirement.operator.as_str() {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        _ => return None,
    };
    Requirement::new(&requirement.key, operator, requirement.values.clone().unwrap_or_default()).ok()
}

fn name_requirement(requirement: &NodeSelectorRequirement) -> Option<(bool, String)> {
    let [value] = requirement.values.as_deref()? else { return None };
    match (requirement.key.as_str(), requirement.operator.as_str()) {
        ("metadata.name", "In") => Some((true, value.clone())),
        ("metadata.name", "NotIn") => Some((false, value.clone())),
        _ => None,
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
            ("In", vec![], Some("a"), false),
            ("NotIn", vec!["a"], None, true),
            ("NotIn", vec!["a"], Some("a"), false),
            ("Exists", vec![], Some(""), true),
            ("Exists", vec!["a"], Some("a"), false),
            ("DoesNotExist", vec![], None, true),
            ("Gt", vec!["3"], Some("4"), true),
            ("Gt", vec!["3"], Some("x"), false),
            ("Gt", vec!["3", "4"], Some("5"), false),
            ("Lt", vec!["3"], Some("2"), true),
            ("Odd", vec![], Some("1"), false),
        ] {
            let selector = json!({"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}]});
            let selector = NodeSelector::new(&serde_json::from_value(selector).unwrap());
            let labels = found.map(|value| Labels::from([("k".to_owned(), value.to_owned())]));
            assert_eq!(selector.matches("n", labels.as_ref()), expected, "{operator} {values:?} {found:?}");
        }
    }

    #[test]
    fn a_volume_is_there_for_the_nodes_that_it_names() {
        let labels = Labels::from([("disk".to_owned(), "a".to_owned())]);
        let on = |disk: &str| {
            let wanted = json!({"key": "disk", "operator": "In", "values": [disk]});
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}})
        };
        for (affinity, expected) in [(json!(null), true), (json!({}), true), (on("a"), true), (on("b"), false)] {
            let volume = json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}});
            let volume = serde_json::from_value(volume).unwrap();
            assert_eq!(is_reachable(&volume, Some(&labels)), expected, "{affinity}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_empty_ones_hold_nowhere() {
        let name = |operator: &str, name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]});
        for (terms, expected) in [
            (json!([]), false),
            (json!([{}]), false),
            (json!([name("In", "n")]), true),
            (json!([name("In", "m")]), false),
            (json!([name("NotIn", "m")]), true),
            (json!([name("In", "m"), name("In", "n")]), true),
        ] {
            let selector: Selector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
            assert_eq!(NodeSelector::new(&selector).matches("n", None), expected, "{terms}");
        }
    }

    #[test]
    fn tolerations_match_by_key_operator_value_and_effect() {
        let taint: Taint = serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        for (toleration, expected) in [
            (json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "x", "operator": "Exists"}), false),
            (json!({}), false),
        ] {
            let parsed: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), expected, "{toleration}");
        }
    }
}
