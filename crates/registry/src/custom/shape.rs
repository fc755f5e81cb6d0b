//! Bringing objects into the shape of their schema: unknown fields go, defaults come.

use std::sync::LazyLock;

use api::first_paths::FirstPaths;
use api::schema::{StructRef, TypeError};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value};

use super::schema::{Additional, OBJECT_FIELDS, Schema};

/// Any kind will do: all have the same metadata.
static WITH_METADATA: LazyLock<StructRef> = LazyLock::new(api::schema::of::<ConfigMap>);

/// Takes out of an object what its schema does not know; returns the paths. Metadata must be what metadata is.
pub(super) fn prune(schema: &Schema, object: &mut Map<String, Value>) -> Result<Vec<String>, TypeError> {
    let mut pruner = Pruner { unknown: FirstPaths::default(), path: String::new() };
    pruner.resource(schema, object)?;
    Ok(pruner.unknown.named())
}

struct Pruner {
    unknown: FirstPaths,
    path: String,
}

impl Pruner {
    fn value(&mut self, schema: &Schema, value: &mut Value) -> Result<(), TypeError> {
        match value {
            Value::Object(object) if schema.is_embedded => self.resource(schema, object),
            Value::Object(object) => self.object(schema, object, &[]),
            Value::Array(items) => {
                let Some(schema) = &schema.items else { return Ok(()) };
                for (index, item) in items.iter_mut().enumerate() {
                    let end = self.path.len();
                    self.path.push_str(&format!("[{index}]"));
                    self.value(schema, item)?;
                    self.path.truncate(end);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// An object with `apiVersion`, `kind` and `metadata`.
    fn resource(&mut self, schema: &Schema, object: &mut Map<String, Value>) -> Result<(), TypeError> {
        if let Some(metadata) = object.remove("metadata") {
            let mut alone = Value::Object(Map::from_iter([("metadata".to_owned(), metadata)]));
            let unknown = api::schema::check(&mut alone, &WITH_METADATA)?;
            for path in &unknown {
                self.unknown.add(|| below(&self.path, path));
            }
            if let Some(metadata) = alone.get_mut("metadata").map(Value::take) {
                object.insert("metadata".to_owned(), metadata);
            }
        }
        self.object(schema, object, &OBJECT_FIELDS)
    }

    fn object(&mut self, schema: &Schema, object: &mut Map<String, Value>, known: &[&str]) -> Result<(), TypeError> {
        if !schema.keeps_unknown && !matches!(schema.additional, Additional::Anything | Additional::Like(_)) {
            object.retain(|name, _| {
                let is_known = known.contains(&name.as_str()) || schema.property(name).is_some();
                if !is_known {
                    self.unknown.add(|| below(&self.path, name));
                }
                is_known
            });
        }
        for (name, value) in object.iter_mut().filter(|(name, _)| !known.contains(&name.as_str())) {
            let Some(schema) = schema.member(name) else { continue };
            let end = self.path.len();
            if end > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
            self.value(schema, value)?;
            self.path.truncate(end);
        }
        Ok(())
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Sets what is absent and has a default; takes out nulls that may not be there and have none.
pub(super) fn fill(schema: &Schema, object: &mut Map<String, Value>) {
    for (name, property) in &schema.properties {
        match object.get(&**name) {
            Some(value) if !value.is_null() || property.nullable => {}
            present => match &property.default {
                Some(default) => drop(object.insert(name.to_string(), default.clone())),
                None if present.is_some() => drop(object.remove(&**name)),
                None => {}
            },
        }
    }
    if let Additional::Like(additional) = &schema.additional {
        let is_wrong = |value: &Value| value.is_null() && !additional.nullable;
        match &additional.default {
            Some(default) => object.values_mut().filter(|value| is_wrong(value)).for_each(|value| {
                *value = default.clone();
            }),
            None => object.retain(|name, value| schema.property(name).is_some() || !is_wrong(value)),
        }
    }
    for (name, value) in object.iter_mut() {
        if let Some(schema) = schema.member(name) {
            fill_value(schema, value);
        }
    }
}

fn fill_value(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(object) => fill(schema, object),
        Value::Array(items) => {
            let Some(schema) = &schema.items else { return };
            for item in items {
                if let (true, false, Some(default)) = (item.is_null(), schema.nullable, &schema.default) {
                    *item = default.clone();
                }
                fill_value(schema, item);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(properties: Value) -> Schema {
        Schema::root(&serde_json::from_value(json!({"type": "object", "properties": properties})).unwrap())
    }

    #[test]
    fn unknown_fields_go() {
        let schema = schema(json!({
            "spec": {"type": "object", "properties": {
                "a": {"type": "string"},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                    "closed": {"type": "object", "properties": {"b": {"type": "string"}}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {"type": "string"}}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "string"}}}},
                "inner": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}}));
        for (object, expected, unknown) in [
            (
                json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n"}, "x": 1}),
                json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n"}}),
                vec!["x"],
            ),
            (json!({"metadata": {"nam": "n"}}), json!({"metadata": {}}), vec!["metadata.nam"]),
            (json!({"spec": {"a": "x", "b": 1}}), json!({"spec": {"a": "x"}}), vec!["spec.b"]),
            (
                json!({"spec": {"open": {"x": {"y": 1}, "closed": {"b": "1", "z": 2}}}}),
                json!({"spec": {"open": {"x": {"y": 1}, "closed": {"b": "1"}}}}),
                vec!["spec.open.closed.z"],
            ),
            (
                json!({"spec": {"map": {"k": {"c": "1", "z": 2}}}}),
                json!({"spec": {"map": {"k": {"c": "1"}}}}),
                vec!["spec.map.k.z"],
            ),
            (
                json!({"spec": {"list": [{"z": 2}, {"d": "1"}]}}),
                json!({"spec": {"list": [{}, {"d": "1"}]}}),
                vec!["spec.list[0].z"],
            ),
            (
                json!({"spec": {"inner": {"kind": "K", "metadata": {"q": 1}, "z": 1}}}),
                json!({"spec": {"inner": {"kind": "K", "metadata": {}}}}),
                vec!["spec.inner.metadata.q", "spec.inner.z"],
            ),
        ] {
            let Value::Object(mut object) = object else { panic!("an object") };
            assert_eq!(prune(&schema, &mut object).unwrap(), unknown);
            assert_eq!(Value::Object(object), expected);
        }
        let Value::Object(mut wrong) = json!({"metadata": {"labels": 5}}) else { panic!("an object") };
        assert!(prune(&schema, &mut wrong).is_err());
    }

    /// Each path would be a megabyte long.
    #[test]
    fn security_unknown_fields_below_a_long_key_are_named_within_a_limit() {
        let map = json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {"type": "string"}}}});
        let schema = schema(json!({"spec": map}));
        let fields: Map<String, Value> = (0..50_000).map(|number| (format!("f{number}"), 1.into())).collect();
        let mut object = Map::from_iter([("spec".to_owned(), json!({"k".repeat(1 << 20): fields}))]);
        assert_eq!(prune(&schema, &mut object).unwrap().len(), 1);
        assert_eq!(Value::Object(object), json!({"spec": {"k".repeat(1 << 20): {}}}));
    }

    #[test]
    fn defaults_come_and_nulls_go() {
        let schema = schema(json!({
            "spec": {"type": "object", "default": {}, "properties": {
                "a": {"type": "string", "default": "A"},
                "n": {"type": "string", "nullable": true, "default": "N"},
                "p": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "integer", "default": 7}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"e": {"type": "boolean", "default": true}}}}}}}));
        for (object, expected) in [
            (json!({}), json!({"spec": {"a": "A", "n": "N"}})),
            (json!({"spec": {"a": null, "n": null, "p": null}}), json!({"spec": {"a": "A", "n": null}})),
            (
                json!({"spec": {"a": "", "n": "x", "list": [{}, {"d": 1}]}}),
                json!({"spec": {"a": "", "n": "x", "list": [{"d": 7}, {"d": 1}]}}),
            ),
            (
                json!({"spec": {"a": "b", "n": "x", "map": {"k": {}, "gone": null}}}),
                json!({"spec": {"a": "b", "n": "x", "map": {"k": {"e": true}}}}),
            ),
        ] {
            let Value::Object(mut object) = object else { panic!("an object") };
            fill(&schema, &mut object);
            assert_eq!(Value::Object(object), expected);
        }
    }
}
