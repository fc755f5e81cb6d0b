//! Validation of what the scheduler reads: selectors, affinity, tolerations, spreading, gates.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};

use super::label_keys;
use crate::metadata;
use crate::unset::{items, or_empty, text};

pub fn validate(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec) {
    metadata::labels(errors, &path.child("nodeSelector"), spec.node_selector.as_ref());
    if let Some(affinity) = &spec.affinity {
        self::affinity(errors, &path.child("affinity"), affinity);
    }
    tolerations(errors, &path.child("tolerations"), items(&spec.tolerations));
    spreading(errors, &path.child("topologySpreadConstraints"), items(&spec.topology_spread_constraints));
    let mut names = BTreeSet::new();
    for (i, gate) in items(&spec.scheduling_gates).iter().enumerate() {
        let path = path.child("schedulingGates");
        let path = path.index(i);
        errors.invalid_each(path, &gate.name, rules::qualified_name(&gate.name));
        if !names.insert(gate.name.as_str()) {
            errors.duplicate(path, &gate.name);
        }
    }
}

fn affinity(errors: &mut FieldErrors, path: &Path<'_>, affinity: &Affinity) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            node_selector(errors, &path.child(REQUIRED), selector);
        }
        for (i, term) in items(&node.preferred_during_scheduling_ignored_during_execution).iter().enumerate() {
            let path = path.child(PREFERRED);
            let path = path.index(i);
            weight(errors, &path, term.weight);
            // Values that no label can have are no reason to refuse what is only preferred.
            node_selector_term(errors, &path.child("preference"), &term.preference, Values::Any);
        }
    }
    if let Some(pod) = &affinity.pod_affinity {
        let path = path.child("podAffinity");
        let required = items(&pod.required_during_scheduling_ignored_during_execution);
        pod_terms(errors, &path.child(REQUIRED), required);
        let preferred = items(&pod.preferred_during_scheduling_ignored_during_execution);
        weighted_terms(errors, &path.child(PREFERRED), preferred);
    }
    if let Some(pod) = &affinity.pod_anti_affinity {
        let path = path.child("podAntiAffinity");
        let required = items(&pod.required_during_scheduling_ignored_during_execution);
        pod_terms(errors, &path.child(REQUIRED), required);
        let preferred = items(&pod.preferred_during_scheduling_ignored_during_execution);
        weighted_terms(errors, &path.child(PREFERRED), preferred);
    }
}

fn weight(errors: &mut FieldErrors, path: &Path<'_>, weight: i32) {
    if !(1..=100).contains(&weight) {
        errors.invalid(path.child("weight"), weight, "must be in the range 1-100");
    }
}

fn pod_terms(errors: &mut FieldErrors, path: &Path<'_>, terms: &[PodAffinityTerm]) {
    for (i, term) in terms.iter().enumerate() {
        pod_term(errors, &path.index(i), term);
    }
}

fn weighted_terms(errors: &mut FieldErrors, path: &Path<'_>, terms: &[WeightedPodAffinityTerm]) {
    for (i, term) in terms.iter().enumerate() {
        let path = path.index(i);
        weight(errors, &path, term.weight);
        pod_term(errors, &path.child("podAffinityTerm"), &term.pod_affinity_term);
    }
}

fn pod_term(errors: &mut FieldErrors, path: &Path<'_>, term: &PodAffinityTerm) {
    metadata::label_selector(errors, &path.child("labelSelector"), term.label_selector.as_ref());
    metadata::label_selector(errors, &path.child("namespaceSelector"), term.namespace_selector.as_ref());
    for namespace in items(&term.namespaces) {
        errors.invalid_each(path.child("namespace"), namespace, rules::dns1123_label(namespace));
    }
    if term.topology_key.is_empty() {
        errors.required(path.child("topologyKey"), "can not be empty");
    }
    errors.invalid_each(path.child("topologyKey"), &term.topology_key, rules::qualified_name(&term.topology_key));
    let (matched, mismatched) = (items(&term.match_label_keys), items(&term.mismatch_label_keys));
    label_keys::validate(errors, path, matched, mismatched, term.label_selector.as_ref());
}

/// Node selectors also stand in persistent volumes.
pub fn node_selector(errors: &mut FieldErrors, path: &Path<'_>, selector: &NodeSelector) {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.required(path, "must have at least one node selector term");
        return;
    }
    for (i, term) in selector.node_selector_terms.iter().enumerate() {
        node_selector_term(errors, &path.index(i), term, Values::OfLabels);
    }
}

/// What may stand among the values of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    OfLabels,
    Any,
}

fn node_selector_term(errors: &mut FieldErrors, path: &Path<'_>, term: &NodeSelectorTerm, allowed: Values) {
    for (i, requirement) in items(&term.match_expressions).iter().enumerate() {
        let path = path.child("matchExpressions");
        let path = path.index(i);
        let values = items(&requirement.values);
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => errors
                .forbidden(path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "Gt" | "Lt" if values.len() != 1 => {
                errors.required(path.child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => errors.invalid(path.child("operator"), other, "not a valid selector operator"),
        }
        errors.invalid_each(path.child("key"), &requirement.key, rules::qualified_name(&requirement.key));
        let values_path = path.child("values");
        for (i, value) in values.iter().enumerate().filter(|_| allowed == Values::OfLabels) {
            errors.invalid_each(values_path.index(i), value, rules::label_value(value));
        }
    }
    for (i, requirement) in items(&term.match_fields).iter().enumerate() {
        let path = path.child("matchFields");
        let path = path.index(i);
        let values = items(&requirement.values);
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.len() != 1 => errors.required(
                path.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ),
            "In" | "NotIn" => {}
            other => errors.invalid(path.child("operator"), other, "not a valid selector operator"),
        }
        if requirement.key != "metadata.name" {
            errors.invalid(path.child("key"), &requirement.key, "not a valid field selector key");
            continue;
        }
        let values_path = path.child("values");
        for (i, name) in values.iter().enumerate() {
            errors.invalid_each(values_path.index(i), name, rules::dns1123_subdomain(name));
        }
    }
}

pub fn tolerations(errors: &mut FieldErrors, path: &Path<'_>, tolerations: &[Toleration]) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        let (key, operator) = (text(&toleration.key), or_empty(&toleration.operator));
        if let Some(key) = key {
            errors.invalid_each(path.child("key"), key, rules::qualified_name(key));
        }
        if key.is_none() && operator != "Exists" {
            errors.invalid(
                path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        let effect = or_empty(&toleration.effect);
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            errors.invalid(path.child("effect"), effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        let value = or_empty(&toleration.value);
        match operator {
            "" | "Equal" => {
                let messages = rules::label_value(value);
                if !messages.is_empty() {
                    errors.invalid(path.child("operator"), value, messages.join(";"));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    errors.invalid(path.child("operator"), value, "value must be empty when `operator` is 'Exists'");
                }
            }
            other => errors.not_supported(path.child("operator"), other, &["Equal", "Exists"]),
        }
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            errors.not_supported(path.child("effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

fn spreading(errors: &mut FieldErrors, path: &Path<'_>, constraints: &[TopologySpreadConstraint]) {
    fn kind(constraint: &TopologySpreadConstraint) -> (&str, &str) {
        (&constraint.topology_key, &constraint.when_unsatisfiable)
    }
    let kinds = constraints.iter().enumerate().map(|(i, constraint)| (kind(constraint), i));
    let last: BTreeMap<(&str, &str), usize> = kinds.compact_collect();
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        if constraint.max_skew <= 0 {
            errors.invalid(path.child("maxSkew"), constraint.max_skew, "must be greater than zero");
        }
        if constraint.topology_key.is_empty() {
            errors.required(path.child("topologyKey"), "can not be empty");
        }
        if !matches!(constraint.when_unsatisfiable.as_str(), "DoNotSchedule" | "ScheduleAnyway") {
            errors.not_supported(
                path.child("whenUnsatisfiable"),
                &constraint.when_unsatisfiable,
                &["DoNotSchedule", "ScheduleAnyway"],
            );
        }
        if last.get(&kind(constraint)).is_some_and(|last| *last > i) {
            errors.duplicate(
                path.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable),
            );
        }
        if let Some(domains) = constraint.min_domains {
            if domains <= 0 {
                errors.invalid(path.child("minDomains"), domains, "must be greater than 0");
            }
            if constraint.when_unsatisfiable != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    constraint.when_unsatisfiable
                );
                errors.invalid(path.child("minDomains"), domains, detail);
            }
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            if let Some(policy) = text(policy)
                && !matches!(policy, "Honor" | "Ignore")
            {
                errors.not_supported(path.child(name), policy, &["Honor", "Ignore"]);
            }
        }
        let matched = items(&constraint.match_label_keys);
        label_keys::validate(errors, &path, matched, &[], constraint.label_selector.as_ref());
        metadata::label_selector(errors, &path.child("labelSelector"), constraint.label_selector.as_ref());
    }
}
