//! Checking manifests before they are sent, against the server's own OpenAPI document.
//!
//! Servers since 1.25 check unknown and duplicate fields themselves (`fieldValidation`), and say more than a client can; then
//! nothing is fetched here. For older ones the document is read once per command. Which kind of server it is, is kept in the
//! discovery cache, so that a second command asks nothing.

use serde_json::{Map, Value};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::Request;

/// The first minor version whose servers check fields.
const SERVERS_CHECK: i64 = 25;

/// How the documents of a command are checked before they are sent.
pub(crate) enum Checks {
    /// Not at all: the command has no `--validate`, or it is off.
    None,
    /// Only that each says what it is; the rest is the server's.
    Types,
    /// Against the server's document.
    Schemas(Value),
}

impl Checks {
    pub(crate) async fn of(cx: &Context) -> Result<Checks> {
        Ok(match crate::objects::field_validation(cx)? {
            None | Some("Ignore") => Checks::None,
            Some("Strict") if !server_checks(cx).await? => {
                Checks::Schemas(Request::get("/openapi/v2").value(cx).await?)
            }
            Some(_) => Checks::Types,
        })
    }

    /// What is wrong with a document, as a failure that names where it came from.
    pub(crate) fn check(&self, document: &Value, source: &str) -> Result<()> {
        if matches!(self, Checks::None) {
            return Ok(());
        }
        let mut leaves = Vec::new();
        crate::manifests::leaves(document, &mut leaves);
        let mut found: Vec<String> = Vec::new();
        for leaf in leaves {
            match self {
                _ if !leaf.is_object() => found.push("invalid object to validate".to_owned()),
                _ if untyped(leaf).next().is_some() => found.extend(untyped(leaf).map(str::to_owned)),
                Checks::Schemas(openapi) => found.extend(Schemas::new(openapi).check(leaf)),
                Checks::None | Checks::Types => {}
            }
        }
        match found.as_slice() {
            [] => Ok(()),
            [one] => Err(invalid(source, one)),
            many => Err(invalid(source, &format!("[{}]", many.join(", ")))),
        }
    }
}

/// What keeps an object from having a type.
fn untyped(object: &Value) -> impl Iterator<Item = &'static str> {
    [("apiVersion", "apiVersion not set"), ("kind", "kind not set")]
        .into_iter()
        .filter(|(field, _)| object[field].as_str().is_none_or(str::is_empty))
        .map(|(_, what)| what)
}

/// The sentence around what is wrong with a manifest.
fn invalid(source: &str, what: &str) -> Failure {
    Failure::message(format!(
        "error validating \"{source}\": error validating data: {what}; if you choose to ignore these errors, turn validation off with --validate=false"
    ))
}

async fn server_checks(cx: &Context) -> Result<bool> {
    let discovery = cx.discovery()?;
    let version = match discovery.cached_version() {
        Some(version) => version,
        None => {
            let version = Request::get("/version").value(cx).await?;
            discovery.keep_version(&version);
            version
        }
    };
    let number = |key: &str| -> Option<i64> {
        version[key].as_str()?.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
    };
    // A server that hides its version is new enough to.
    Ok(number("major").zip(number("minor")).is_none_or(|(major, minor)| major > 1 || minor >= SERVERS_CHECK))
}

/// The definitions of an OpenAPI v2 document.
struct Schemas<'a> {
    definitions: Option<&'a Map<String, Value>>,
}

impl<'a> Schemas<'a> {
    fn new(document: &'a Value) -> Schemas<'a> {
        Schemas { definitions: document["definitions"].as_object() }
    }

    /// What is wrong with an object; kinds that the document does not know are left to the server.
    fn check(&self, object: &Value) -> Vec<String> {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let schema = self.definitions.into_iter().flatten().find(|(_, definition)| {
            definition["x-kubernetes-group-version-kind"].as_array().is_some_and(|list| {
                list.iter().any(|gvk| gvk["group"] == group && gvk["version"] == version && gvk["kind"] == kind)
            })
        });
        let mut out = Vec::new();
        if let Some((name, schema)) = schema {
            self.walk(object, schema, name, kind, &mut out);
        }
        out
    }

    fn walk(&self, value: &Value, schema: &Value, name: &str, path: &str, out: &mut Vec<String>) {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.trim_start_matches("#/definitions/");
            if let Some(schema) = self.definitions.and_then(|d| d.get(name)) {
                self.walk(value, schema, name, path, out);
            }
            return;
        }
        // Null means unset everywhere.
        if value.is_null() || schema["x-kubernetes-preserve-unknown-fields"] == true {
            return;
        }
        if let Some(properties) = schema["properties"].as_object() {
            let Some(object) = value.as_object() else { return out.push(wrong_type(path, name, value, "map")) };
            for (key, field) in object {
                match properties.get(key) {
                    Some(schema) => {
                        self.walk(field, schema, &format!("{name}.{key}"), &format!("{path}.{key}"), out);
                    }
                    None => out.push(format!("ValidationError({path}): unknown field \"{key}\" in {name}")),
                }
            }
            for required in crate::objects::strings(&schema["required"]) {
                if !object.contains_key(required) {
                    out.push(format!("ValidationError({path}): missing required field \"{required}\" in {name}"));
                }
            }
            return;
        }
        match schema["type"].as_str() {
            Some("array") => match value.as_array() {
                Some(items) => items.iter().enumerate().for_each(|(i, item)| {
                    self.walk(item, &schema["items"], name, &format!("{path}[{i}]"), out);
                }),
                None => out.push(wrong_type(path, name, value, "array")),
            },
            Some("object") if schema["additionalProperties"].is_object() => match value.as_object() {
                Some(map) => map.iter().for_each(|(key, item)| {
                    self.walk(item, &schema["additionalProperties"], name, &format!("{path}.{key}"), out);
                }),
                None => out.push(wrong_type(path, name, value, "map")),
            },
            // Quantities and ports are strings in the document and numbers in many files.
            Some("string")
                if schema["format"] == "int-or-string" || is_scalar(value) && name.ends_with(".Quantity") => {}
            Some("string") if !value.is_string() => out.push(wrong_type(path, name, value, "string")),
            Some("boolean") if !value.is_boolean() => out.push(wrong_type(path, name, value, "boolean")),
            Some("integer") if !(value.is_i64() || value.is_u64()) => {
                out.push(wrong_type(path, name, value, "integer"))
            }
            Some("number") if !value.is_number() => out.push(wrong_type(path, name, value, "number")),
            _ => {}
        }
    }
}

fn is_scalar(value: &Value) -> bool {
    value.is_string() || value.is_number()
}

fn wrong_type(path: &str, name: &str, value: &Value, expected: &str) -> String {
    let got = match value {
        Value::Object(_) => "map",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::Null => "nil",
    };
    format!("ValidationError({path}): invalid type for {name}: got \"{got}\", expected \"{expected}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mistakes_read_as_upstream_wrote_them() {
        let document = json!({"definitions": {
            "v1.Pod": {
                "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
                "properties": {
                    "apiVersion": {"type": "string"}, "kind": {"type": "string"},
                    "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
                    "spec": {"$ref": "#/definitions/v1.PodSpec"},
                },
            },
            "v1.PodSpec": {
                "required": ["containers"],
                "properties": {
                    "containers": {"type": "array", "items": {"$ref": "#/definitions/v1.Container"}},
                    "hostNetwork": {"type": "boolean"},
                    "priority": {"type": "integer"},
                },
            },
            "v1.Container": {"properties": {
                "name": {"type": "string"}, "port": {"type": "string", "format": "int-or-string"},
            }},
        }});
        let schemas = Schemas::new(&document);
        let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
        for (object, expected) in [
            (pod(json!({"containers": [{"name": "c", "port": 80}], "priority": 1})), vec![]),
            (pod(json!({"containers": null})), vec![]),
            (pod(json!({})), vec!["ValidationError(Pod.spec): missing required field \"containers\" in v1.PodSpec"]),
            (
                pod(json!({"containers": [{"nam": "c"}]})),
                vec!["ValidationError(Pod.spec.containers[0]): unknown field \"nam\" in v1.Container"],
            ),
            (
                pod(json!({"containers": "x", "hostNetwork": "yes"})),
                vec![
                    "ValidationError(Pod.spec.containers): invalid type for v1.PodSpec.containers: got \"string\", expected \"array\"",
                    "ValidationError(Pod.spec.hostNetwork): invalid type for v1.PodSpec.hostNetwork: got \"string\", expected \"boolean\"",
                ],
            ),
            (json!({"apiVersion": "example.com/v1", "kind": "Widget", "anything": 1}), vec![]),
        ] {
            assert_eq!(schemas.check(&object), expected, "{object}");
        }
    }
}
