//! Label selectors, where kubectl itself must match (files with `-l`).

use serde_json::Value;

use crate::failure::{Failure, Result};

pub(crate) fn matches_labels(selector: &str, labels: &Value) -> Result<bool> {
    for term in terms(selector) {
        let term = term.trim();
        if term.is_empty() {
            continue;
        }
        if !matches_term(term, labels)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn matches_term(term: &str, labels: &Value) -> Result<bool> {
    let value = |key: &str| labels[key.trim()].as_str();
    if let Some((key, rest)) = term.split_once(" notin ") {
        return Ok(value(key).is_none_or(|v| !set(rest).any(|s| s == v)));
    }
    if let Some((key, rest)) = term.split_once(" in ") {
        return Ok(value(key).is_some_and(|v| set(rest).any(|s| s == v)));
    }
    if let Some((key, wanted)) = term.split_once("!=") {
        return Ok(value(key) != Some(wanted.trim()));
    }
    if let Some((key, wanted)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(value(key) == Some(wanted.trim()));
    }
    if let Some(key) = term.strip_prefix('!') {
        return Ok(value(key).is_none());
    }
    if term.contains(char::is_whitespace) {
        return Err(Failure::message(format!(
            "the provided selector \"{term}\" is not valid: unable to parse requirement"
        )));
    }
    Ok(value(term).is_some())
}

fn set(text: &str) -> impl Iterator<Item = &str> {
    text.trim().trim_start_matches('(').trim_end_matches(')').split(',').map(str::trim)
}

/// Commas inside parentheses do not separate.
fn terms(selector: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (i, c) in selector.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&selector[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&selector[start..]);
    out
}

/// `k=v,…` of a LabelSelector object, as the query parameter wants it; `None` when it selects nothing.
pub(crate) fn from_label_selector(selector: &Value) -> Option<String> {
    let mut parts = Vec::new();
    for (k, v) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{k}={}", v.as_str().unwrap_or("")));
    }
    for e in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = e["key"].as_str().unwrap_or("");
        let values: Vec<&str> = e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.push(match e["operator"].as_str().unwrap_or("") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    Some(parts.join(","))
}

/// `k=v,…` of a plain map (Service, ReplicationController selectors).
pub(crate) fn from_map(map: &Value) -> String {
    map.as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")))
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn terms_match() {
        let labels = json!({"a": "1", "b": "2"});
        for (selector, expected) in [
            ("a=1", true),
            ("a==1,b=2", true),
            ("a!=1", false),
            ("c!=1", true),
            ("a in (1,3)", true),
            ("a notin (1,3)", false),
            ("c notin (1)", true),
            ("a", true),
            ("!a", false),
            ("!c,b", true),
        ] {
            assert_eq!(matches_labels(selector, &labels).unwrap(), expected, "{selector}");
        }
        assert_eq!(
            from_label_selector(&json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["x", "y"]}]}))
                .unwrap(),
            "a=1,b in (x,y)"
        );
    }
}
