//! Rules for labels, annotations, label selectors and conditions, wherever they stand.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::validation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use serde::Serialize;
use serde_json::Value;

use super::unset::items;

/// All annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
/// The time that Go writes for none, in seconds.
const YEAR_ONE: i64 = -62_135_596_800;

pub fn labels(errors: &mut FieldErrors, path: &Path<'_>, labels: Option<&BTreeMap<String, String>>) {
    for (key, value) in labels.into_iter().flatten() {
        errors.invalid_each(path, key, validation::qualified_name(key));
        errors.invalid_each(path, value, validation::label_value(value));
    }
}

pub fn annotations(errors: &mut FieldErrors, path: &Path<'_>, annotations: Option<&BTreeMap<String, String>>) {
    let Some(annotations) = annotations else { return };
    for key in annotations.keys() {
        errors.invalid_each(path, key, validation::qualified_name(&key.to_lowercase()));
    }
    annotation_size(errors, path, annotations);
}

pub fn annotation_size(errors: &mut FieldErrors, path: &Path<'_>, annotations: &BTreeMap<String, String>) {
    if annotations.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_ANNOTATION_BYTES {
        errors.too_long(path, MAX_ANNOTATION_BYTES);
    }
}

/// `metav1.Condition`s as upstream's `ValidateConditions` wants them.
pub fn conditions(errors: &mut FieldErrors, path: &Path<'_>, conditions: &[Condition]) {
    const REASON: usize = 1024;
    const MESSAGE: usize = 32 * 1024;
    const STATUSES: &[&str] = &["False", "True", "Unknown"];
    let mut types = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        if !types.insert(condition.type_.as_str()) {
            errors.duplicate(path.child("type"), &condition.type_);
        }
        errors.invalid_each(path.child("type"), &condition.type_, validation::qualified_name(&condition.type_));
        if !STATUSES.contains(&condition.status.as_str()) {
            errors.not_supported(path.child("status"), &condition.status, STATUSES);
        }
        if let Some(generation) = condition.observed_generation.filter(|generation| *generation < 0) {
            errors.invalid(path.child("observedGeneration"), generation, "must be greater than or equal to zero");
        }
        if condition.last_transition_time.0.as_second() == YEAR_ONE {
            errors.required(path.child("lastTransitionTime"), "");
        }
        if condition.reason.is_empty() {
            errors.required(path.child("reason"), "");
        } else {
            errors.invalid_each(path.child("reason"), &condition.reason, condition_reason(&condition.reason));
            if condition.reason.len() > REASON {
                errors.too_long(path.child("reason"), REASON);
            }
        }
        if condition.message.len() > MESSAGE {
            errors.too_long(path.child("message"), MESSAGE);
        }
    }
}

/// A name that begins with the domain of whoever gave it: `acme.io/foo`.
pub fn domain_prefixed_path(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    const CHARACTERS: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    match name.split_once('/') {
        None if name.is_empty() => errors.required(path, ""),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            errors.invalid_each(path, domain, validation::dns1123_subdomain(domain));
            if !rest.chars().all(is_of_path) {
                errors.invalid(path, rest, validation::regex_error("Invalid path", CHARACTERS, &[]));
            }
        }
        _ => errors.invalid(path, name, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

fn condition_reason(reason: &str) -> Vec<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = reason.as_bytes();
    let is_reason = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|byte| is_word(*byte))
        && bytes.iter().all(|byte| is_word(*byte) || matches!(byte, b',' | b':'));
    match is_reason {
        true => Vec::new(),
        false => vec![validation::regex_error(
            "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
            "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
            &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
        )],
    }
}

pub fn label_selector(errors: &mut FieldErrors, path: &Path<'_>, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    labels(errors, &path.child("matchLabels"), selector.match_labels.as_ref());
    let expressions = path.child("matchExpressions");
    for (i, expression) in items(&selector.match_expressions).iter().enumerate() {
        let path = expressions.index(i);
        let values = items(&expression.values);
        match expression.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(
                    path.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(path.child("operator"), other, "not a valid selector operator"),
        }
        errors.invalid_each(path.child("key"), &expression.key, validation::qualified_name(&expression.key));
        for (i, value) in values.iter().enumerate() {
            errors.invalid_each(path.child("values").index(i), value, validation::label_value(value));
        }
    }
}

/// Whether two values mean the same: absent, empty, zero and false are one, as in upstream's types.
pub fn same<T: PartialEq + Serialize>(a: &T, b: &T) -> bool {
    a == b || pruned(a) == pruned(b)
}

/// The JSON form without what upstream would not write.
pub fn pruned(value: &impl Serialize) -> Value {
    fn prune(value: Value) -> Option<Value> {
        match value {
            Value::Null | Value::Bool(false) => None,
            Value::Number(number) if number.as_i64() == Some(0) => None,
            Value::String(text) if text.is_empty() => None,
            Value::Array(items) if items.is_empty() => None,
            Value::Array(items) => Some(items.into_iter().map(|item| prune(item).unwrap_or(Value::Null)).collect()),
            Value::Object(fields) => {
                let fields: serde_json::Map<_, _> =
                    fields.into_iter().filter_map(|(key, value)| Some((key, prune(value)?))).collect();
                (!fields.is_empty()).then_some(Value::Object(fields))
            }
            other => Some(other),
        }
    }
    api::codec::to_value(value).ok().and_then(prune).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_say_what_since_when_and_why() {
        let said = |more: Value| -> Vec<String> {
            let mut condition = json!({"type": "Ready", "status": "True", "reason": "A,B:c_", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            condition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut errors = FieldErrors::default();
            conditions(&mut errors, &Path::new("conditions"), &[serde_json::from_value(condition).unwrap()]);
            errors.iter().map(ToString::to_string).collect()
        };
        assert_eq!(said(json!({})), Vec::<String>::new());
        for (more, expected) in [
            (
                json!({"status": ""}),
                "conditions[0].status: Unsupported value: \"\": supported values: \"False\", \"True\", \"Unknown\"",
            ),
            (json!({"reason": ""}), "conditions[0].reason: Required value"),
            (
                json!({"reason": "not one word"}),
                "conditions[0].reason: Invalid value: \"not one word\": a condition reason must start with",
            ),
            (json!({"reason": "a".repeat(1025)}), "conditions[0].reason: Too long: may not be more than 1024 bytes"),
            (json!({"lastTransitionTime": "0001-01-01T00:00:00Z"}), "conditions[0].lastTransitionTime: Required value"),
            (
                json!({"observedGeneration": -1}),
                "conditions[0].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            ),
        ] {
            let said = said(more.clone());
            assert!(said.len() == 1 && said[0].starts_with(expected), "{more}: {said:?}");
        }
    }
}
