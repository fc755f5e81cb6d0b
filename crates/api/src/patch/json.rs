//! JSON patch (RFC 6902), as upstream applies it.

use serde_json::Value;

use super::PatchError;

/// A request may not carry more.
const MAX_OPERATIONS: usize = 10_000;
/// `copy` may not add more than this in total, so that a small patch cannot make a huge object.
const MAX_COPIED: usize = 3 << 20;

/// Applies all operations in order, or none: on an error `object` is left as it was.
pub fn apply(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(PatchError::Malformed(
            "json: cannot unmarshal object into Go value of type jsonpatch.Patch".to_owned(),
        ));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations { allowed: MAX_OPERATIONS, got: operations.len() });
    }
    let mut work = object.clone();
    let mut copied = 0;
    for operation in operations {
        step(&mut work, operation, &mut copied)?;
    }
    *object = work;
    Ok(())
}

fn step(object: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), PatchError> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let kind = text("op").unwrap_or("unknown");
    let path = text("path");
    let needs = |value: Option<&'_ str>, what: &str| {
        value.map(str::to_owned).ok_or_else(|| PatchError::Malformed(format!("{kind} operation is missing its {what}")))
    };
    match kind {
        "add" => {
            let path = needs(path, "path")?;
            let value = operation.get("value").cloned().unwrap_or(Value::Null);
            add(object, &path, value, kind)
        }
        "remove" => remove(object, &needs(path, "path")?, kind).map(drop),
        "replace" => {
            let path = needs(path, "path")?;
            let value = operation.get("value").cloned().unwrap_or(Value::Null);
            match object.pointer_mut(&path) {
                Some(target) => {
                    *target = value;
                    Ok(())
                }
                None => replace_absent(object, &path, value),
            }
        }
        "move" => {
            let (from, path) = (needs(text("from"), "from")?, needs(path, "path")?);
            if path.starts_with(&format!("{from}/")) {
                return Err(PatchError::Unprocessable(format!("{kind} operation moves {from} into itself")));
            }
            let value = remove(object, &from, kind)?;
            add(object, &path, value, kind)
        }
        "copy" => {
            let (from, path) = (needs(text("from"), "from")?, needs(path, "path")?);
            let value = object.pointer(&from).cloned().ok_or_else(|| missing(kind, &from))?;
            *copied += value.to_string().len();
            if *copied > MAX_COPIED {
                return Err(PatchError::Unprocessable(format!("copy operations add more than {MAX_COPIED} bytes")));
            }
            add(object, &path, value, kind)
        }
        "test" => {
            let path = needs(path, "path")?;
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            // A path that is not there equals null, as upstream has it.
            let found = object.pointer(&path).unwrap_or(&Value::Null);
            if equal(found, wanted) {
                Ok(())
            } else {
                Err(PatchError::Unprocessable(format!("testing value {path} failed: test failed")))
            }
        }
        other => Err(PatchError::Malformed(format!("Unexpected kind: {other}"))),
    }
}

/// Upstream's library takes a member that is not there for one that is null.
fn replace_absent(object: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    let (parent, key) = split(path).ok_or_else(|| missing("replace", path))?;
    match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(key, value);
            Ok(())
        }
        Some(Value::Array(_)) => Err(PatchError::Unprocessable(format!(
            "replace operation does not apply: doc is missing key: {path}: missing value"
        ))),
        _ => Err(missing("replace", path)),
    }
}

fn missing(kind: &str, path: &str) -> PatchError {
    PatchError::Unprocessable(format!("{kind} operation does not apply: doc is missing path: {path}: missing value"))
}

fn add(object: &mut Value, path: &str, value: Value, kind: &str) -> Result<(), PatchError> {
    if path.is_empty() {
        *object = value;
        return Ok(());
    }
    let (parent, key) = split(path).ok_or_else(|| missing(kind, path))?;
    match object.pointer_mut(parent).ok_or_else(|| missing(kind, path))? {
        Value::Object(fields) => {
            fields.insert(key, value);
            Ok(())
        }
        Value::Array(items) => {
            let at = if key == "-" { Some(items.len()) } else { index(&key, items.len() + 1) };
            let at = at.ok_or_else(|| {
                PatchError::Unprocessable(format!(
                    "{kind} operation does not apply: doc is missing path: {path}: Unable to access invalid index: {key}: invalid index referenced"
                ))
            })?;
            items.insert(at, value);
            Ok(())
        }
        _ => Err(missing(kind, path)),
    }
}

fn remove(object: &mut Value, path: &str, kind: &str) -> Result<Value, PatchError> {
    let (parent, key) = split(path).ok_or_else(|| missing(kind, path))?;
    let removed = match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => fields.remove(&key),
        Some(Value::Array(items)) => index(&key, items.len()).map(|at| items.remove(at)),
        _ => None,
    };
    removed.ok_or_else(|| {
        PatchError::Unprocessable(format!(
            "{kind} operation does not apply: doc is missing path: {path}: missing value"
        ))
    })
}

/// The parent's pointer and the last token, unescaped.
fn split(path: &str) -> Option<(&str, String)> {
    let (parent, key) = path.rsplit_once('/')?;
    Some((parent, key.replace("~1", "/").replace("~0", "~")))
}

/// An index below `limit`; negative ones count from the end, as upstream's library allows.
fn index(key: &str, limit: usize) -> Option<usize> {
    let number: i64 = key.parse().ok()?;
    let at = if number < 0 { number + i64::try_from(limit).ok()? } else { number };
    usize::try_from(at).ok().filter(|&at| at < limit)
}

/// Numbers are equal by value: `1` equals `1.0`.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Small random JSON with keys that collide often.
    pub(in crate::patch) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            (-3i64..9).prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::String),
        ];
        let key = prop_oneof![
            4 => "[a-d]",
            1 => Just("name".to_owned()),
            1 => Just("$patch".to_owned()),
            1 => Just("$retainKeys".to_owned()),
            1 => Just("$setElementOrder/a".to_owned()),
            1 => Just("$deleteFromPrimitiveList/a".to_owned()),
            1 => Just("spec".to_owned()),
            1 => Just("containers".to_owned()),
            1 => Just("metadata".to_owned()),
            1 => Just("finalizers".to_owned()),
            1 => Just("volumes".to_owned()),
            1 => Just("$setElementOrder/containers".to_owned()),
            1 => Just("$deleteFromPrimitiveList/finalizers".to_owned()),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map(key.clone(), inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn operations() {
        for (patch, expected) in [
            (json!([{"op": "add", "path": "/b", "value": 2}]), Some(json!({"a": [1, 2], "b": 2}))),
            (json!([{"op": "add", "path": "/a/-", "value": 3}]), Some(json!({"a": [1, 2, 3]}))),
            (json!([{"op": "add", "path": "/a/0", "value": 0}]), Some(json!({"a": [0, 1, 2]}))),
            (json!([{"op": "add", "path": "/a/9", "value": 0}]), None),
            (json!([{"op": "add", "path": "/x/y", "value": 0}]), None),
            (json!([{"op": "remove", "path": "/a/1"}]), Some(json!({"a": [1]}))),
            (json!([{"op": "remove", "path": "/nope"}]), None),
            (json!([{"op": "replace", "path": "/a", "value": {}}]), Some(json!({"a": {}}))),
            (json!([{"op": "replace", "path": "/b", "value": {}}]), Some(json!({"a": [1, 2], "b": {}}))),
            (json!([{"op": "replace", "path": "/b/c", "value": {}}]), None),
            (json!([{"op": "replace", "path": "/a/2", "value": {}}]), None),
            (json!([{"op": "move", "from": "/a", "path": "/b"}]), Some(json!({"b": [1, 2]}))),
            (json!([{"op": "copy", "from": "/a/0", "path": "/b"}]), Some(json!({"a": [1, 2], "b": 1}))),
            (json!([{"op": "test", "path": "/a/0", "value": 1.0}]), Some(json!({"a": [1, 2]}))),
            (json!([{"op": "test", "path": "/a/0", "value": 2}]), None),
            (json!([{"op": "add", "path": "/x~1y", "value": 1}]), Some(json!({"a": [1, 2], "x/y": 1}))),
            (json!([{"op": "shout", "path": "/a"}]), None),
            (json!({}), None),
        ] {
            let mut object = json!({"a": [1, 2]});
            let result = apply(&mut object, &patch);
            assert_eq!(result.is_ok(), expected.is_some(), "{patch} {result:?}");
            assert_eq!(object, expected.unwrap_or_else(|| json!({"a": [1, 2]})));
        }
    }

    #[test]
    fn copies_cannot_blow_up() {
        let mut object = json!({"a": ["x".repeat(1000)]});
        let patch: Vec<Value> = (0..40).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/-"})).collect();
        assert!(apply(&mut object, &Value::Array(patch)).is_err());
    }

    proptest! {
        #[test]
        fn random_patches_never_panic(
            mut object in any_json(),
            operations in prop::collection::vec(
                ("(add|remove|replace|move|copy|test)", "(/[a-d0-9~-]{0,2}){0,3}", "(/[a-d0-9]{0,1}){0,3}", any_json()), 0..6),
        ) {
            let patch = operations.into_iter()
                .map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
                .collect();
            let before = object.clone();
            if apply(&mut object, &Value::Array(patch)).is_err() {
                prop_assert_eq!(object, before);
            }
        }
    }
}
