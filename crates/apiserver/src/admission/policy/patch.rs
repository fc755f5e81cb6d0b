//! What the expression of a mutation has come to, as a change of an object.

use api::patch::apply::ApplyError;
use api::schema::Struct;
use cel::{Key, Map, Value};

/// Why the value of a mutation is no change.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatchError {
    #[error("unsupported return type from ApplyConfiguration expression: {0}")]
    NotObject(String),
    #[error("type mismatch: {0}")]
    Name(#[from] UnexpectedName),
    #[error("{}", .0.message)]
    Object(cel::Error),
    #[error("error applying patch: {0}")]
    Apply(#[from] ApplyError),
    #[error("type mismatch: JSONPatchType.expression should evaluate to array")]
    NotList,
    #[error("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {0}")]
    NotOperation(String),
    #[error("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {0}")]
    Value(cel::Error),
    #[error("JSON Patch: {0}")]
    JsonPatch(#[from] api::patch::PatchError),
}

/// A type that does not belong where it stands.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected type name {name:?}, expected {expected:?}, which matches field name path from root Object type")]
pub(super) struct UnexpectedName {
    name: String,
    expected: String,
}

/// Merges an `Object{...}` by the rules of server-side apply.
pub(super) fn apply_configuration(
    object: &serde_json::Value,
    configuration: &Value,
    schema: &Struct,
) -> Result<serde_json::Value, PatchError> {
    let Value::Struct(_, _) = configuration else {
        return Err(PatchError::NotObject(configuration.type_name().to_owned()));
    };
    configuration.check_size().map_err(PatchError::Object)?;
    check_names(configuration, "Object")?;
    let mut patch = configuration.to_json().map_err(PatchError::Object)?;
    for field in ["apiVersion", "kind"] {
        if let (Some(value), Some(patch)) = (object.get(field), patch.as_object_mut()) {
            patch.insert(field.to_owned(), value.clone());
        }
    }
    Ok(api::patch::apply::merge(object, &patch, schema)?)
}

/// `Object.spec{}` may only stand where `spec` does.
fn check_names(value: &Value, path: &str) -> Result<(), UnexpectedName> {
    match value {
        Value::Struct(name, fields) => {
            if **name != *path {
                return Err(UnexpectedName { name: name.to_string(), expected: path.to_owned() });
            }
            fields.iter().try_for_each(|(field, value)| match field {
                Key::String(field) => check_names(value, &format!("{path}.{field}")),
                _ => Ok(()),
            })
        }
        Value::List(items) => items.iter().try_for_each(|item| check_names(item, path)),
        Value::Map(entries) => entries.iter().try_for_each(|(key, value)| match key {
            Key::String(key) => check_names(value, &format!("{path}.{key}")),
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

/// Applies a list of `JSONPatch{...}`.
pub(super) fn json_patch(mut object: serde_json::Value, list: &Value) -> Result<serde_json::Value, PatchError> {
    let Value::List(operations) = list else {
        return Err(PatchError::NotList);
    };
    list.check_size().map_err(PatchError::Value)?;
    let mut patch = Vec::with_capacity(operations.len());
    for operation in operations.iter() {
        match operation {
            Value::Struct(name, fields) if &**name == "JSONPatch" => patch.push(step(fields)?),
            other => return Err(PatchError::NotOperation(other.type_name().to_owned())),
        }
    }
    api::patch::json::apply(&mut object, &serde_json::Value::Array(patch))?;
    Ok(object)
}

fn step(fields: &Map) -> Result<serde_json::Value, PatchError> {
    let mut step = serde_json::Map::new();
    for (name, value) in fields {
        let Key::String(name) = name else { continue };
        // What is made as an object is checked as one, wherever it is put.
        if let Value::Struct(of, _) = value {
            check_names(value, of)?;
        }
        step.insert(name.to_string(), value.to_json().map_err(PatchError::Value)?);
    }
    Ok(serde_json::Value::Object(step))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn structure(name: &str, fields: &[(&str, Value)]) -> Value {
        let fields = fields.iter().map(|(field, value)| (Key::from(*field), value.clone())).collect();
        Value::Struct(name.into(), Arc::new(fields))
    }

    #[test]
    fn names_of_types_follow_the_fields() {
        let inner = structure("Object.spec", &[("replicas", Value::Int(3))]);
        assert_eq!(check_names(&structure("Object", &[("spec", inner.clone())]), "Object"), Ok(()));
        let found = check_names(&structure("Object", &[("status", inner)]), "Object");
        assert!(found.is_err_and(|problem| problem.expected == "Object.status"));
    }

    /// Sixty nested lists, each with two places for the next one, would be more values than there is memory for.
    #[test]
    fn security_changes_that_share_values_are_not_written_out() {
        let shared = (0..60).fold(Value::Int(1), |inner, _| Value::list(vec![inner.clone(), inner]));
        let object = serde_json::json!({});
        let schema = Struct::new("", Vec::new()).open(true);
        assert!(apply_configuration(&object, &structure("Object", &[("spec", shared.clone())]), &schema).is_err());
        let add = structure(
            "JSONPatch",
            &[("op", Value::String("add".into())), ("path", Value::String("/a".into())), ("value", shared)],
        );
        assert!(json_patch(object, &Value::list(vec![add])).is_err());
    }

    #[test]
    fn patches_are_applied_in_order() {
        let text = |text: &str| Value::String(text.into());
        let add = |path: &str, value: Value| {
            structure("JSONPatch", &[("op", text("add")), ("path", text(path)), ("value", value)])
        };
        let patch = Value::list(vec![add("/a", Value::map(Map::new())), add("/a/b", Value::Int(1))]);
        let object = json_patch(serde_json::json!({}), &patch);
        assert_eq!(object.unwrap(), serde_json::json!({"a": {"b": 1}}));
        assert!(json_patch(serde_json::json!({}), &Value::list(vec![Value::Int(1)])).is_err());
    }
}
