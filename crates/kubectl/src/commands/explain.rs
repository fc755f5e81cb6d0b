//! `kubectl explain`: fields of a type, from the server's OpenAPI v3.

use serde_json::Value;

use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::Request;

pub(crate) const COMMAND: Command = Command {
    name: "explain",
    usage: "TYPE [--recursive=FALSE|TRUE] [--api-version=api-version-group] [-o|--output=plaintext|plaintext-openapiv2]",
    about: "Get documentation for a resource",
    examples: "  kubectl explain pods\n  kubectl explain pods.spec.containers",
    flags: &[&[
        Flag::bool("recursive", "All fields below, without descriptions."),
        Flag::string("api-version", "group/version to explain."),
        Flag::string("output", "plaintext.").default("plaintext").short('o'),
    ]],
    words: Words::Types,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let [word] = cx.args() else {
        return Err(Failure::message(if cx.args().is_empty() {
            "You must specify the type of resource to explain. Use \"kubectl api-resources\" for a complete list of supported resources."
        } else {
            "We accept only this format: explain RESOURCE"
        }));
    };
    let mut parts = word.split('.');
    let resource = parts.next().unwrap_or("");
    let mut fields: Vec<&str> = parts.collect();
    let discovery = cx.discovery()?;
    let mapping = match discovery.resolve(cx, word).await {
        // The whole word may be a type with its group.
        Ok(m) => {
            fields.clear();
            m
        }
        Err(_) => discovery.resolve(cx, resource).await.map_err(Failure::without_prefix)?,
    };
    let version = match cx.flags.string("api-version") {
        v if v.is_empty() => mapping.api_version(),
        v => v,
    };
    let (group, v) = version.split_once('/').unwrap_or(("", &version));
    let path = if group.is_empty() { format!("/openapi/v3/api/{v}") } else { format!("/openapi/v3/apis/{group}/{v}") };
    let document = Request::get(path).value(cx).await.map_err(|e| {
        if e.is_not_found() {
            Failure::message(format!("couldn't find resource for \"{version}, Kind={}\"", mapping.kind))
        } else {
            e
        }
    })?;
    let schemas = &document["components"]["schemas"];
    let root = schemas
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, s)| s)
        .find(|s| {
            s["x-kubernetes-group-version-kind"].as_array().is_some_and(|list| {
                list.iter().any(|k| k["group"] == group && k["version"] == v && k["kind"] == mapping.kind.as_str())
            })
        })
        .ok_or_else(|| {
            Failure::message(format!("GVR ({version}, Resource={}) not found in OpenAPI schema", mapping.resource))
        })?;
    let mut out = String::new();
    if !group.is_empty() {
        out.push_str(&format!("GROUP:      {group}\n"));
    }
    out.push_str(&format!("KIND:       {}\nVERSION:    {v}\n\n", mapping.kind));
    let mut schema = root;
    let mut owner = root;
    for field in &fields {
        owner = schema;
        let inner = element(schemas, owner);
        schema = &inner["properties"][*field];
        if schema.is_null() {
            cx.print(&out)?;
            return Err(Failure::message(format!("field \"{field}\" does not exist")));
        }
    }
    let shown = element(schemas, schema);
    if let Some(name) = fields.last() {
        out.push_str(&format!("FIELD: {name} <{}>\n\n\n", type_name(schemas, schema)));
    }
    let _ = owner;
    out.push_str("DESCRIPTION:\n");
    // The field's own words, then those about its type.
    let mut described: Vec<&str> = [schema, shown].iter().filter_map(|s| s["description"].as_str()).collect();
    described.retain(|d| !d.is_empty());
    described.dedup();
    if described.is_empty() {
        described.push("<empty>");
    }
    for description in described {
        out.push_str(&wrap(description, 4));
    }
    out.push_str("    \n");
    if shown["properties"].is_object() {
        out.push_str("FIELDS:\n");
        list_fields(schemas, shown, cx.flags.bool("recursive"), 2, &mut out, &mut Vec::new());
    }
    out.push('\n');
    cx.print(&out)
}

fn list_fields(
    schemas: &Value,
    schema: &Value,
    recursive: bool,
    indent: usize,
    out: &mut String,
    seen: &mut Vec<*const Value>,
) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let flag = if required.contains(&name.as_str()) { " -required-" } else { "" };
        out.push_str(&format!("{}{name}\t<{}>{flag}\n", " ".repeat(indent), type_name(schemas, field)));
        let inner = element(schemas, field);
        if !recursive {
            let description = [field, inner]
                .iter()
                .find_map(|s| s["description"].as_str().filter(|d| !d.is_empty()))
                .unwrap_or("<no description>");
            out.push_str(&wrap(description, indent + 2));
            out.push('\n');
        } else if inner["properties"].is_object() && !seen.contains(&std::ptr::from_ref(inner)) {
            // Types that contain themselves are shown once.
            seen.push(std::ptr::from_ref(inner));
            list_fields(schemas, inner, true, indent + 2, out, seen);
            seen.pop();
        }
    }
}

/// Follows references, `allOf` wrappers, array items and map values to the structure beneath.
fn element<'a>(schemas: &'a Value, schema: &'a Value) -> &'a Value {
    let mut current = schema;
    for _ in 0..8 {
        current = if let Some(reference) = current["$ref"].as_str() {
            &schemas[reference.rsplit('/').next().unwrap_or("")]
        } else if current["allOf"].is_array() {
            &current["allOf"][0]
        } else if current["items"].is_object() {
            &current["items"]
        } else if current["additionalProperties"].is_object() && !current["properties"].is_object() {
            &current["additionalProperties"]
        } else {
            return current;
        };
    }
    current
}

fn type_name(schemas: &Value, schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let key = reference.rsplit('/').next().unwrap_or("");
        let target = &schemas[key];
        return if target["properties"].is_object() || target["type"].is_null() {
            key.rsplit('.').next().unwrap_or(key).to_owned()
        } else {
            type_name(schemas, target)
        };
    }
    if schema["allOf"].is_array() {
        return type_name(schemas, &schema["allOf"][0]);
    }
    match schema["type"].as_str() {
        Some("array") => format!("[]{}", type_name(schemas, &schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map[string]{}", type_name(schemas, &schema["additionalProperties"]))
        }
        Some("object") => "Object".to_owned(),
        Some(other) => other.to_owned(),
        None if schema["oneOf"].is_array() || schema["x-kubernetes-int-or-string"] == true => "IntOrString".to_owned(),
        None => "Object".to_owned(),
    }
}

fn wrap(text: &str, indent: usize) -> String {
    let pad = " ".repeat(indent);
    let mut out = String::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > 80 - indent.min(8) {
                out.push_str(&format!("{pad}{line}\n"));
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        out.push_str(&format!("{pad}{line}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_named() {
        let schemas = json!({"io.k8s.api.core.v1.PodSpec": {"type": "object", "properties": {}}, "io.k8s.Quantity": {"type": "string"}});
        for (schema, expected) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": "array", "items": {"type": "integer"}}), "[]integer"),
            (json!({"type": "object", "additionalProperties": {"type": "string"}}), "map[string]string"),
            (json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]}), "PodSpec"),
            (json!({"$ref": "#/components/schemas/io.k8s.Quantity"}), "string"),
        ] {
            assert_eq!(type_name(&schemas, &schema), expected);
        }
    }
}
