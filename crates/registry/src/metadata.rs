//! Rules for labels, annotations and label selectors, wherever they stand.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::validation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Serialize;
use serde_json::Value;

use super::unset::items;

/// All annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

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
    serde_json::to_value(value).ok().and_then(prune).unwrap_or(Value::Null)
}
