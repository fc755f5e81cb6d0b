//! Rules that the classes of the group share: who makes volumes, with which parameters, and where.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::validation;
use k8s_openapi::api::core::v1::TopologySelectorTerm;

use crate::unset::items;

/// How many parameters a class may have, and how large keys and values are together.
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETERS_SIZE: usize = 256 << 10;

pub(super) fn provisioner(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    // Upstream shows the name as it looked at it.
    let name = name.to_lowercase();
    match name.is_empty() {
        true => errors.required(path, ""),
        false => errors.invalid_each(path, &name, validation::qualified_name(&name)),
    }
}

pub(super) fn parameters(errors: &mut FieldErrors, path: &Path<'_>, parameters: &BTreeMap<String, String>) {
    if parameters.len() > MAX_PARAMETERS {
        errors.too_long(path, MAX_PARAMETERS);
        return;
    }
    if parameters.contains_key("") {
        errors.invalid(path, "", "field can not be empty.");
    }
    if parameters.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_PARAMETERS_SIZE {
        errors.too_long(path, MAX_PARAMETERS_SIZE);
    }
}

pub(super) fn allowed_topologies(errors: &mut FieldErrors, path: &Path<'_>, terms: &[TopologySelectorTerm]) {
    // A term that asks for nothing is a duplicate by itself, as upstream (v1.36).
    let mut seen = BTreeSet::from([BTreeMap::new()]);
    for (i, term) in terms.iter().enumerate() {
        let term_path = path.index(i);
        let expressions = term_path.child("matchLabelExpressions");
        let term = topology_term(errors, &expressions, term);
        if !seen.insert(term) {
            errors.duplicate(expressions, "");
        }
    }
}

/// Returns the values by key.
fn topology_term<'a>(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    term: &'a TopologySelectorTerm,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut by_key = BTreeMap::new();
    for (i, expression) in items(&term.match_label_expressions).iter().enumerate() {
        let path = path.index(i);
        let values_path = path.child("values");
        if expression.values.is_empty() {
            errors.required(values_path, "");
        }
        let mut values = BTreeSet::new();
        for (i, value) in expression.values.iter().enumerate() {
            if !values.insert(value.as_str()) {
                errors.duplicate(values_path.index(i), value);
            }
        }
        let key = expression.key.as_str();
        errors.invalid_each(path.child("key"), key, validation::qualified_name(key));
        if by_key.insert(key, values).is_some() {
            errors.duplicate(path.child("key"), key);
        }
    }
    by_key
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn security_parameters_have_an_end() {
        let said = |parameters: BTreeMap<String, String>| -> Vec<String> {
            let mut errors = FieldErrors::default();
            super::parameters(&mut errors, &Path::new("parameters"), &parameters);
            errors.iter().map(ToString::to_string).collect()
        };
        let many = |count: usize| (0..count).map(|i| (i.to_string(), String::new())).collect();
        let long = |length: usize| BTreeMap::from([("k".to_owned(), "x".repeat(length - 1))]);
        for (parameters, expected) in [
            (many(MAX_PARAMETERS), None),
            (many(MAX_PARAMETERS + 1), Some("parameters: Too long: may not be more than 512 bytes")),
            (long(MAX_PARAMETERS_SIZE), None),
            (long(MAX_PARAMETERS_SIZE + 1), Some("parameters: Too long: may not be more than 262144 bytes")),
            (
                BTreeMap::from([(String::new(), "x".to_owned())]),
                Some("parameters: Invalid value: \"\": field can not be empty."),
            ),
        ] {
            assert_eq!(said(parameters), Vec::from_iter(expected));
        }
    }

    #[test]
    fn a_provisioner_is_shown_as_it_was_looked_at() {
        for (name, expected) in [
            ("Example.com/Disk", None),
            ("", Some("p: Required value".to_owned())),
            ("A/b/C", Some(format!("p: Invalid value: \"a/b/c\": {}", validation::qualified_name("a/b/c")[0]))),
        ] {
            let mut errors = FieldErrors::default();
            provisioner(&mut errors, &Path::new("p"), name);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, Vec::from_iter(expected), "{name}");
        }
    }

    #[test]
    fn topologies_name_each_key_and_value_once() {
        let zone = |values: &[&str]| json!({"key": "zone", "values": values});
        let place = "t[0].matchLabelExpressions";
        for (terms, expected) in [
            (json!([]), vec![]),
            (json!([[zone(&["a", "b"])], [zone(&["a"])], [zone(&["a"]), {"key": "rack", "values": ["1"]}]]), vec![]),
            (json!([[zone(&[])]]), vec![format!("{place}[0].values: Required value")]),
            (json!([[zone(&["a", "a"])]]), vec![format!("{place}[0].values[1]: Duplicate value: \"a\"")]),
            (json!([[zone(&["a"]), zone(&["b"])]]), vec![format!("{place}[1].key: Duplicate value: \"zone\"")]),
            (
                json!([[zone(&["a", "b"])], [zone(&["b", "a"])]]),
                vec!["t[1].matchLabelExpressions: Duplicate value: \"\"".to_owned()],
            ),
            (json!([[]]), vec![format!("{place}: Duplicate value: \"\"")]),
            (
                json!([[{"key": "a/b/c", "values": ["a"]}]]),
                vec![format!("{place}[0].key: Invalid value: \"a/b/c\": {}", validation::qualified_name("a/b/c")[0])],
            ),
        ] {
            let all = terms.as_array().unwrap().iter();
            let all: Vec<TopologySelectorTerm> = all
                .map(|term: &Value| serde_json::from_value(json!({"matchLabelExpressions": term})).unwrap())
                .collect();
            let mut errors = FieldErrors::default();
            allowed_topologies(&mut errors, &Path::new("t"), &all);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected, "{terms}");
        }
    }
}
