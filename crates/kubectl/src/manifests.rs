//! Documents in JSON or YAML, and the objects in them.

use api::codec::DecodeError;
use api::documents::DocumentError;
use api::yaml::Rules;
use serde_json::Value;

use crate::failure::{Failure, Result};

/// An object read from somewhere; `source` is how errors name the place.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) object: Value,
    pub(crate) source: String,
}

/// Splits, decodes, and takes lists apart.
pub(crate) fn parse(text: &str, source: &str) -> Result<Vec<Manifest>> {
    let mut out = Vec::new();
    for value in documents(text).map_err(|e| Failure::message(format!("error parsing {source}: {e}")))? {
        flatten(value, source, &mut out)?;
    }
    Ok(out)
}

/// The documents of a text that kustomize or a program wrote: YAML separated by `---`, or JSON values one after another.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>, DocumentError> {
    match api::documents::read_all(text, Rules::Kustomize) {
        (values, None) => Ok(values),
        (_, Some(e)) => Err(e),
    }
}

pub(crate) fn yaml(text: &str) -> Result<Value, DecodeError> {
    api::documents::read_one(text, Rules::Full)
}

fn is_list(value: &Value) -> bool {
    value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && value["items"].is_array()
}

/// The objects of a document that validation would look at: a list stands for its items.
pub(crate) fn leaves<'a>(value: &'a Value, out: &mut Vec<&'a Value>) {
    match value["items"].as_array() {
        Some(items) if is_list(value) => items.iter().for_each(|item| leaves(item, out)),
        _ => out.push(value),
    }
}

/// Takes lists apart; their items have a kind without saying so.
pub(crate) fn flatten(value: Value, source: &str, out: &mut Vec<Manifest>) -> Result<()> {
    if is_list(&value) {
        let kind = value["kind"].as_str().unwrap_or("");
        let (item_kind, api_version) = (kind.trim_end_matches("List").to_owned(), value["apiVersion"].clone());
        for mut item in value["items"].as_array().cloned().unwrap_or_default() {
            if item["kind"].is_null() && !item_kind.is_empty() && item.is_object() {
                item["kind"] = Value::String(item_kind.clone());
                item["apiVersion"] = api_version.clone();
            }
            flatten(item, source, out)?;
        }
        return Ok(());
    }
    if !value.is_object() {
        return Err(Failure::message(format!(
            "unable to decode \"{source}\": json: cannot unmarshal {} into Go value of type unstructured.detector",
            api::go::kind(&value)
        )));
    }
    out.push(Manifest { object: value, source: source.to_owned() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_come_apart() {
        let text = "apiVersion: v1\nkind: A\n---\n# only a comment\n---\napiVersion: v1\nkind: List\nitems:\n- kind: B\n  apiVersion: v1\n";
        let kinds: Vec<String> =
            parse(text, "f").unwrap().iter().map(|m| m.object["kind"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds, ["A", "B"]);
        assert_eq!(parse("{\"kind\":\"A\"}\n{\"kind\":\"B\"}", "f").unwrap().len(), 2);
        assert!(
            parse("a: [", "f.yaml")
                .unwrap_err()
                .to_string()
                .starts_with("error: error parsing f.yaml: error converting YAML to JSON: yaml: line")
        );
    }
}
