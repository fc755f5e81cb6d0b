//! JSON merge patch (RFC 7386): objects merge, null deletes, everything else replaces.

use serde_json::{Map, Value};

use super::PatchError;

/// Merges `patch`, which must be an object, into `object`.
pub fn apply(object: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed("Invalid JSON Patch".to_owned()));
    }
    merge(object, patch);
    Ok(())
}

fn merge(target: &mut Value, patch: &Value) {
    *target = match (target.take(), patch) {
        (Value::Object(target), Value::Object(patch)) => Value::Object(merged(target, patch)),
        (_, Value::Object(patch)) => Value::Object(merged(Map::new(), patch)),
        (_, patch) => patch.clone(),
    };
}

pub(super) fn merged(mut target: Map<String, Value>, patch: &Map<String, Value>) -> Map<String, Value> {
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            value => merge(target.entry(key.clone()).or_insert(Value::Null), value),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        for (original, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut object = original;
            apply(&mut object, &patch).unwrap();
            assert_eq!(object, expected);
        }
        assert!(apply(&mut json!({}), &json!([1])).is_err());
    }

    proptest! {
        #[test]
        fn merging_twice_changes_nothing_more(
            object in super::super::json::tests::any_json(), patch in super::super::json::tests::any_json(),
        ) {
            let mut once = object;
            if apply(&mut once, &patch).is_ok() {
                let mut twice = once.clone();
                apply(&mut twice, &patch).unwrap();
                prop_assert_eq!(once, twice);
            }
        }
    }
}
