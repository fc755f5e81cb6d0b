//! JSON patch (RFC 6902), as upstream applies it.

use serde_json::Value;

use super::PatchError;

/// A request may not carry more.
const MAX_OPERATIONS: usize = 10_000;
/// `copy` may not add more than this in total, so that a small patch cannot make a huge object.
const MAX_COPIED: usize = 3 << 20;
/// Items of lists that make room for others or close a gap, and values that are looked through, in total.
const MAX_STEPS: usize = 1 << 26;
/// How deep an object may be nested, as in a body: `move` puts one value into another again and again, and whatever walks through the
/// result, if only to drop it, needs a stack as deep.
const MAX_DEPTH: usize = 127;

/// What the operations of one patch have taken so far.
#[derive(Default)]
struct Spent {
    copied: usize,
    steps: usize,
}

impl Spent {
    fn step(&mut self, steps: usize) -> Result<(), PatchError> {
        self.steps = self.steps.saturating_add(steps);
        match self.steps > MAX_STEPS {
            true => Err(PatchError::Unprocessable("the operations move too many items of lists".to_owned())),
            false => Ok(()),
        }
    }

    /// Refuses a value that would be nested too deeply at this path.
    fn nest(&mut self, path: &str, value: &Value) -> Result<(), PatchError> {
        let room = MAX_DEPTH.checked_sub(path.matches('/').count());
        match room.and_then(|room| count(value, room)) {
            Some(steps) => self.step(steps),
            None => {
                Err(PatchError::Unprocessable(format!("the object would be nested more than {MAX_DEPTH} levels deep")))
            }
        }
    }
}

/// How many values there are in one; none if it is nested deeper than so many levels.
fn count(value: &Value, room: usize) -> Option<usize> {
    match value {
        Value::Array(items) => count_all(items.iter(), room),
        Value::Object(fields) => count_all(fields.values(), room),
        _ => Some(1),
    }
}

fn count_all<'v>(values: impl Iterator<Item = &'v Value>, room: usize) -> Option<usize> {
    let room = room.checked_sub(1)?;
    let mut sum: usize = 1;
    for value in values {
        sum += count(value, room)?;
    }
    Some(sum)
}

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
    let mut spent = Spent::default();
    for operation in operations {
        step(&mut work, operation, &mut spent)?;
    }
    *object = work;
    Ok(())
}

fn step(object: &mut Value, operation: &Value, spent: &mut Spent) -> Result<(), PatchError> {
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
            add(object, &path, value, kind, spent)
        }
        "remove" => remove(object, &needs(path, "path")?, kind, spent).map(drop),
        "replace" => {
            let path = needs(path, "path")?;
            let value = operation.get("value").cloned().unwrap_or(Value::Null);
            spent.nest(&path, &value)?;
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
            let value = remove(object, &from, kind, spent)?;
            add(object, &path, value, kind, spent)
        }
        "copy" => {
            let (from, path) = (needs(text("from"), "from")?, needs(path, "path")?);
            let value = object.pointer(&from).cloned().ok_or_else(|| missing(kind, &from))?;
            spent.copied += value.to_string().len();
            if spent.copied > MAX_COPIED {
                return Err(PatchError::Unprocessable(format!("copy operations add more than {MAX_COPIED} bytes")));
            }
            add(object, &path, value, kind, spent)
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

fn add(object: &mut Value, path: &str, value: Value, kind: &str, spent: &mut Spent) -> Result<(), PatchError> {
    spent.nest(path, &value)?;
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
            spent.step(items.len() - at)?;
            items.insert(at, value);
            Ok(())
        }
        _ => Err(missing(kind, path)),
    }
}

fn remove(object: &mut Value, path: &str, kind: &str, spent: &mut Spent) -> Result<Value, PatchError> {
    let (parent, key) = split(path).ok_or_else(|| missing(kind, path))?;
    let removed = match object.pointer_mut(parent) {
        Some(Value::Object(fields)) => fields.remove(&key),
        Some(Value::Array(items)) => match index(&key, items.len()) {
            Some(at) => {
                spent.step(items.len() - at)?;
                Some(items.remove(at))
            }
            None => None,
        },
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

    #[test]
    fn security_moves_do_not_nest_without_end() {
        let round = [
            json!({"op": "add", "path": "/b", "value": {}}),
            json!({"op": "move", "from": "/a", "path": "/b/a"}),
            json!({"op": "add", "path": "/a", "value": {}}),
            json!({"op": "move", "from": "/b", "path": "/a/b"}),
        ];
        for (rounds, is_fine) in [(50, true), (100, false), (2_500, false)] {
            let mut object = json!({"a": {}});
            let patch = round.iter().cloned().cycle().take(rounds * round.len()).collect();
            assert_eq!(apply(&mut object, &Value::Array(patch)).is_ok(), is_fine, "{rounds}");
        }
        // The parts are as deep as they may be alone.
        let deep = |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({"a": inner}));
        let mut object = json!({"a": deep(100), "b": deep(100)});
        let patch = json!([{"op": "copy", "from": "/a", "path": format!("/b{}", "/a".repeat(50))}]);
        assert!(apply(&mut object, &patch).is_err());
    }

    #[test]
    fn security_items_of_long_lists_are_not_moved_forever() {
        for (path, is_fine) in [("/a/0", false), ("/a/-", true)] {
            let mut object = json!({"a": vec![0; 100_000]});
            let patch = vec![json!({"op": "add", "path": path, "value": 1}); MAX_OPERATIONS];
            assert_eq!(apply(&mut object, &Value::Array(patch)).is_ok(), is_fine, "{path}");
        }
        let mut object = json!({"a": vec![0; 100_000]});
        let patch = vec![json!({"op": "remove", "path": "/a/0"}); MAX_OPERATIONS];
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
