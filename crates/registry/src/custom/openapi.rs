//! The published schema of a version: what `kubectl explain` shows, and what clients check objects by.

use std::sync::Arc;

use api::schema::Document;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Map, Value, json};

use crate::resource::Describe;

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
     recognized schemas to the latest internal value, and may reject unrecognized values.";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from \
     the endpoint the client submits requests to. Cannot be updated. In CamelCase.";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const METADATA: &str = "Standard object's metadata.";

/// What adds the type to a document. The schema is kept as text: it is read when somebody asks for the document.
pub(super) fn describe(group: &str, version: &str, kind: &str, props: &JSONSchemaProps) -> Describe {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    let name = format!("{}.{version}.{kind}", reversed.join("."));
    let text = serde_json::to_string(props).unwrap_or_default();
    Arc::new(move |document| {
        let schema = serde_json::from_str(&text).unwrap_or_default();
        let described = published(schema, document);
        document.insert(name.clone(), described);
        name.clone()
    })
}

fn published(mut schema: Value, document: &mut Document) -> Value {
    document.add(OBJECT_META);
    let reference = document.reference(OBJECT_META);
    let is_v2 = !reference.contains("components");
    if is_v2 && keeps_unknown(&schema) {
        // Old clients would refuse every field that is not listed.
        return json!({"type": "object"});
    }
    if is_v2 {
        simplify(&mut schema);
    }
    let metadata = if is_v2 {
        json!({"$ref": reference, "description": METADATA})
    } else {
        json!({"allOf": [{"$ref": reference}], "description": METADATA, "default": {}})
    };
    complete(&mut schema, &metadata, is_v2, true);
    schema
}

fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// Adds the fields that every object has, to the object and to those it carries.
fn complete(schema: &mut Value, metadata: &Value, is_v2: bool, is_root: bool) {
    let is_open = is_v2 && keeps_unknown(schema);
    let is_object = is_root || schema["x-kubernetes-embedded-resource"] == true && !is_open;
    let Some(schema) = schema.as_object_mut() else { return };
    let children = [("items", false), ("additionalProperties", false), ("properties", true)];
    for (key, is_map) in children {
        match schema.get_mut(key) {
            Some(Value::Object(children)) if is_map => {
                children.values_mut().for_each(|child| complete(child, metadata, is_v2, false));
            }
            Some(child @ Value::Object(_)) => complete(child, metadata, is_v2, false),
            _ => {}
        }
    }
    if !is_object {
        return;
    }
    let properties = schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    properties["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    properties["kind"] = json!({"type": "string", "description": KIND});
    properties["metadata"] = metadata.clone();
    if !is_root {
        let required = schema.entry("required").or_insert_with(|| json!([]));
        if let Some(required) = required.as_array_mut() {
            for name in ["kind", "apiVersion"] {
                if !required.iter().any(|known| known == name) {
                    required.push(name.into());
                }
            }
        }
    }
}

/// Leaves out what OpenAPI v2 cannot say.
fn simplify(schema: &mut Value) {
    let keeps_unknown = keeps_unknown(schema);
    let Some(schema) = schema.as_object_mut() else { return };
    for key in ["allOf", "anyOf", "oneOf", "not"] {
        schema.remove(key);
    }
    let is_nullable = schema.remove("nullable") == Some(Value::Bool(true));
    if is_nullable || keeps_unknown {
        schema.remove("items");
        schema.remove("properties");
    }
    let is_list_of_anything = schema.get("type") == Some(&json!("array")) && !schema.contains_key("items");
    let is_anything = keeps_unknown && schema.get("type") == Some(&json!("object"));
    if is_nullable || is_list_of_anything || is_anything {
        schema.remove("type");
    }
    let may_be_null = |child: &Value| child["nullable"] == true;
    let nullable: Vec<String> = schema.get("properties").and_then(Value::as_object).map_or_else(Vec::new, |children| {
        children.iter().filter(|(_, child)| may_be_null(child)).map(|(name, _)| name.clone()).collect()
    });
    if schema.get("additionalProperties").is_some_and(may_be_null) {
        schema.remove("required");
    }
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| !nullable.iter().any(|nullable| name == nullable));
        if required.is_empty() {
            schema.remove("required");
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = schema.get_mut(key) {
            simplify(child);
        }
    }
    if let Some(Value::Object(children)) = schema.get_mut("properties") {
        children.values_mut().for_each(simplify);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_leaves_out_what_it_cannot_say() {
        let mut schema = json!({"type": "object", "required": ["n", "a"], "properties": {
            "n": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}},
            "a": {"type": "integer", "anyOf": [{"minimum": 1}]},
            "u": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"y": {"type": "string"}}}}});
        simplify(&mut schema);
        let expected = json!({"type": "object", "required": ["a"], "properties": {"n": {}, "a": {"type": "integer"},
            "u": {"x-kubernetes-preserve-unknown-fields": true}}});
        assert_eq!(schema, expected);
    }
}
