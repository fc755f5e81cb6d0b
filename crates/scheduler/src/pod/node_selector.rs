//! Node selectors, parsed once: `nodeSelector`, required and preferred node affinity.

use std::collections::BTreeMap;

use api::selector::{Operator, Requirement};
use k8s_openapi::api::core::v1::{
    NodeSelector as Selector, NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm,
};

type Labels = BTreeMap<String, String>;

/// Terms of which one must hold. A term that is empty or does not parse holds nowhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone)]
struct Term {
    labels: Vec<Requirement>,
    /// On `metadata.name`: whether the name must be this, or must not.
    names: Vec<(bool, String)>,
}

impl NodeSelector {
    pub(crate) fn new(selector: &Selector) -> NodeSelector {
        NodeSelector { terms: selector.node_selector_terms.iter().filter_map(Term::new).collect() }
    }

    pub(crate) fn matches(&self, name: &str, labels: Option<&Labels>) -> bool {
        self.terms.iter().any(|term| term.matches(name, labels))
    }
}

/// Terms that each add their weight where they hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Preferences {
    terms: Vec<(i64, Term)>,
}

impl Preferences {
    pub(crate) fn new(terms: &[PreferredSchedulingTerm]) -> Preferences {
        let terms = terms.iter().filter(|term| term.weight != 0);
        Preferences {
            terms: terms.filter_map(|term| Some((i64::from(term.weight), Term::new(&term.preference)?))).collect(),
        }
    }

    pub(crate) fn score(&self, name: &str, labels: Option<&Labels>) -> i64 {
        self.terms.iter().filter(|(_, term)| term.matches(name, labels)).map(|(weight, _)| weight).sum()
    }
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
}
