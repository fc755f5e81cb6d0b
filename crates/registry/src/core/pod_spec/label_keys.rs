//! `matchLabelKeys` and `mismatchLabelKeys` of affinity and spreading: labels of the pod itself that narrow a selector.
//!
//! The selectors of a new pod are narrowed when it is made (`mutatePodAffinity` and `mutateTopologySpreadConstraints`,
//! v1.36), so whoever reads them need not know its labels.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation as rules;
use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::unset::items;

type Labels = BTreeMap<String, String>;

/// So long may be what is merged, as text: as long as a request. A key of three letters becomes a requirement of hundreds.
const MAX_MERGED: usize = 3 << 20;
/// The text of a requirement besides its key and its value.
const REQUIREMENT: usize = r#"{"key":"","operator":"NotIn","values":[""]},"#.len();

/// Does nothing for a pod that [`check_size`] refuses.
pub(crate) fn merge(pod: &mut Pod) {
    if merged_size(pod) > MAX_MERGED {
        return;
    }
    let Some(spec) = &mut pod.spec else { return };
    let labels = pod.metadata.labels.as_ref();
    let mut terms: Vec<&mut PodAffinityTerm> = Vec::new();
    if let Some(affinity) = &mut spec.affinity {
        if let Some(near) = &mut affinity.pod_affinity {
            let preferred = near.preferred_during_scheduling_ignored_during_execution.iter_mut().flatten();
            terms.extend(preferred.map(|weighted| &mut weighted.pod_affinity_term));
            terms.extend(near.required_during_scheduling_ignored_during_execution.iter_mut().flatten());
        }
        if let Some(apart) = &mut affinity.pod_anti_affinity {
            let preferred = apart.preferred_during_scheduling_ignored_during_execution.iter_mut().flatten();
            terms.extend(preferred.map(|weighted| &mut weighted.pod_affinity_term));
            terms.extend(apart.required_during_scheduling_ignored_during_execution.iter_mut().flatten());
        }
    }
    for term in terms {
        narrow(term.label_selector.as_mut(), items(&term.match_label_keys), "In", labels);
        narrow(term.label_selector.as_mut(), items(&term.mismatch_label_keys), "NotIn", labels);
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        narrow(constraint.label_selector.as_mut(), items(&constraint.match_label_keys), "In", labels);
    }
}

/// Refuses a new pod whose selectors would become too large.
pub(crate) fn check_size(errors: &mut FieldErrors, pod: &Pod) {
    if merged_size(pod) > MAX_MERGED {
        errors.too_long(Path::new("spec"), MAX_MERGED);
    }
}

/// How long it is as text what selectors get from the labels of the pod.
fn merged_size(pod: &Pod) -> usize {
    let (Some(spec), Some(labels)) = (&pod.spec, &pod.metadata.labels) else { return 0 };
    let of_key = |key: &String| labels.get(key).map(|value| REQUIREMENT + key.len() + value.len());
    keys(spec).filter_map(of_key).fold(0, usize::saturating_add)
}

fn keys(spec: &PodSpec) -> impl Iterator<Item = &String> {
    let affinity = spec.affinity.as_ref();
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let preferred = near
        .and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_deref())
        .into_iter()
        .chain(apart.and_then(|apart| apart.preferred_during_scheduling_ignored_during_execution.as_deref()))
        .flatten()
        .map(|weighted| &weighted.pod_affinity_term);
    let required = near
        .and_then(|near| near.required_during_scheduling_ignored_during_execution.as_deref())
        .into_iter()
        .chain(apart.and_then(|apart| apart.required_during_scheduling_ignored_during_execution.as_deref()))
        .flatten();
    let of_terms = preferred
        .chain(required)
        .flat_map(|term| items(&term.match_label_keys).iter().chain(items(&term.mismatch_label_keys)));
    let constraints = spec.topology_spread_constraints.iter().flatten();
    of_terms.chain(constraints.flat_map(|constraint| items(&constraint.match_label_keys)))
}

/// Keys that the pod has no label for say nothing. No selector selects nothing, and cannot be narrowed.
fn narrow(selector: Option<&mut LabelSelector>, keys: &[String], operator: &str, labels: Option<&Labels>) {
    let Some(selector) = selector else { return };
    for key in keys {
        let Some(value) = labels.and_then(|labels| labels.get(key)) else { continue };
        selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.to_owned(),
            values: Some(vec![value.clone()]),
        });
    }
}

/// The selector has what was merged from `matched` already, so a key that it has twice was in both
/// (`ValidateMatchLabelKeysAndMismatchLabelKeys`, v1.36).
pub(super) fn validate(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    matched: &[String],
    mismatched: &[String],
    selector: Option<&LabelSelector>,
) {
    for (field, keys) in [("matchLabelKeys", matched), ("mismatchLabelKeys", mismatched)] {
        let path = path.child(field);
        if !keys.is_empty() && selector.is_none() {
            errors.forbidden(path, "must not be specified when labelSelector is not set");
        }
        for (i, key) in keys.iter().enumerate() {
            errors.invalid_each(path.index(i), key, rules::qualified_name(key));
        }
    }
    if let Some(selector) = selector {
        let places: BTreeMap<&str, usize> =
            matched.iter().enumerate().map(|(i, key)| (key.as_str(), i)).compact_collect();
        let mut seen: BTreeSet<&str> =
            selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).compact_collect();
        for expression in items(&selector.match_expressions) {
            if let Some(i) = places.get(expression.key.as_str())
                && seen.contains(expression.key.as_str())
            {
                let detail = "exists in both matchLabelKeys and labelSelector";
                errors.invalid(path.index(*i), &expression.key, detail);
            }
            seen.insert(&expression.key);
        }
    }
    let mismatched: BTreeSet<&String> = mismatched.iter().compact_collect();
    for (i, key) in matched.iter().enumerate().filter(|(_, key)| mismatched.contains(key)) {
        let path = path.child("matchLabelKeys");
        errors.invalid(path.index(i), key, "exists in both matchLabelKeys and mismatchLabelKeys");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(term: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "labels": {"app": "web", "hash": "1"}},
            "spec": {"containers": [], "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": term}]}},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["hash"]}]}}))
        .unwrap()
    }

    #[test]
    fn selectors_are_narrowed_by_labels_of_the_pod() {
        let mut made = pod(json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "a"}},
            "matchLabelKeys": ["hash", "absent"], "mismatchLabelKeys": ["app"]}));
        merge(&mut made);
        let made = serde_json::to_value(&made.spec).unwrap();
        let of_hash = json!({"key": "hash", "operator": "In", "values": ["1"]});
        let of_app = json!({"key": "app", "operator": "NotIn", "values": ["web"]});
        let affinity = &made["affinity"];
        for selector in [
            &affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"],
            &affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]["labelSelector"],
        ] {
            assert_eq!(selector["matchExpressions"], json!([of_hash, of_app]), "{selector}");
        }
        assert_eq!(made["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"], json!([of_hash]));
        // No selector selects nothing, and stays so.
        let mut made = pod(json!({"topologyKey": "zone", "matchLabelKeys": ["hash"]}));
        merge(&mut made);
        let affinity = serde_json::to_value(made.spec.unwrap().affinity).unwrap();
        let term = &affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
        assert!(term["labelSelector"].is_null(), "{term}");
    }

    #[test]
    fn security_what_is_merged_into_selectors_is_bounded() {
        let with = |count: usize| {
            let keys = vec!["app"; count];
            pod(json!({"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": keys}))
        };
        let merged = |pod: &Pod| {
            let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.pod_affinity.as_ref()).unwrap();
            let terms = items(&affinity.required_during_scheduling_ignored_during_execution);
            items(&terms[0].label_selector.as_ref().unwrap().match_expressions).len()
        };
        // Each key is there twice: in both terms.
        for (count, expected) in [(100, Some(100)), (40_000, None)] {
            let mut made = with(count);
            merge(&mut made);
            let mut errors = FieldErrors::default();
            check_size(&mut errors, &made);
            assert_eq!((merged(&made), errors.is_empty()), (expected.unwrap_or(0), expected.is_some()), "{errors}");
        }
    }

    #[test]
    fn keys_are_labels_that_stand_in_one_place() {
        let selector = |value: Value| Some(serde_json::from_value::<LabelSelector>(value).unwrap());
        let merged = json!({"key": "a", "operator": "In", "values": ["1"]});
        for (matched, mismatched, selector, expected) in [
            (vec!["a"], vec![], selector(json!({"matchExpressions": [merged]})), None),
            (vec!["a"], vec!["b"], selector(json!({"matchLabels": {"b": "1"}})), None),
            (vec!["a"], vec![], None, Some("must not be specified when labelSelector is not set")),
            (vec!["a b"], vec![], selector(json!({})), Some("matchLabelKeys[0]")),
            (vec![], vec!["a b"], selector(json!({})), Some("mismatchLabelKeys[0]")),
            (vec!["a"], vec!["a"], selector(json!({})), Some("exists in both matchLabelKeys and mismatchLabelKeys")),
            (
                vec!["a"],
                vec![],
                selector(json!({"matchLabels": {"a": "2"}, "matchExpressions": [merged]})),
                Some("exists in both matchLabelKeys and labelSelector"),
            ),
        ] {
            let keys = |list: &[&str]| list.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
            let mut errors = FieldErrors::default();
            validate(&mut errors, &Path::new("term"), &keys(&matched), &keys(&mismatched), selector.as_ref());
            match expected {
                None => assert!(errors.is_empty(), "{matched:?} {mismatched:?}: {errors}"),
                Some(words) => assert!(errors.to_string().contains(words), "{matched:?} {mismatched:?}: {errors}"),
            }
        }
    }
}
