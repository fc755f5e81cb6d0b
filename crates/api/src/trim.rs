//! Takes `metadata.managedFields` off an object before it is decoded.
//!
//! Who manages which field is a third of a pod's text, a map in a map for every field. No cache keeps it, and a write keeps
//! it as text: reading past it costs a fraction of building it up.

use std::borrow::Cow;
use std::ops::Range;

use crate::scan;

/// The object without its managed fields. What is no object is returned as it is: decoding it says what is wrong.
pub fn without_managed_fields(object: &[u8]) -> Cow<'_, [u8]> {
    apart(object).0
}

/// The object as by [`without_managed_fields`], and its managed fields, if it has any.
pub fn apart(object: &[u8]) -> (Cow<'_, [u8]>, Option<&[u8]>) {
    match managed_fields(object) {
        None => (Cow::Borrowed(object), None),
        Some((cut, fields)) => (Cow::Owned([&object[..cut.start], &object[cut.end..]].concat()), Some(&object[fields])),
    }
}

/// Where the managed fields of an object are.
pub fn managed_fields_of(object: &[u8]) -> Option<Range<usize>> {
    managed_fields(object).map(|(_, fields)| fields)
}

/// Where they are, with one of the commas around them and without.
fn managed_fields(object: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    let metadata = scan::find_start(object, &["metadata"])?;
    let mut before = None;
    for (key, value) in scan::members(object, metadata) {
        if key == b"managedFields" {
            let start = before.unwrap_or(metadata + 1);
            let next = scan::skip_space(object, value.end);
            let first_of_many = before.is_none() && object.get(next) == Some(&b',');
            return Some((start..if first_of_many { next + 1 } else { value.end }, value));
        }
        before = Some(value.end);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn managed_fields_are_cut_wherever_they_stand() {
        let fields = json!([{"manager": "m\"]},{\\", "fieldsV1": {"f:metadata": {"f:managedFields": {}, ".": {}}}}]);
        for (metadata, is_cut) in [
            (json!({"managedFields": fields}), true),
            (json!({"name": "a", "managedFields": fields}), true),
            (json!({"managedFields": fields, "uid": "u"}), true),
            (json!({"a": [{"managedFields": 1}], "managedFields": [], "uid": "\\"}), true),
            (json!({"labels": {"managedFields": "x"}, "name": "managedFields"}), false),
            (json!({}), false),
        ] {
            let object =
                json!({"kind": "Pod", "metadata": metadata, "spec": {"managedFields": fields, "n": -1.5e3, "b": null}});
            let mut expected = object.clone();
            expected["metadata"].as_object_mut().unwrap().remove("managedFields");
            for text in [object.to_string(), serde_json::to_string_pretty(&object).unwrap()] {
                let cut = without_managed_fields(text.as_bytes());
                assert_eq!(serde_json::from_slice::<Value>(&cut).unwrap(), expected, "{text}");
                assert_eq!(matches!(cut, Cow::Owned(_)), is_cut, "{text}");
                let cut = apart(text.as_bytes()).1.map(|fields| serde_json::from_slice(fields).unwrap());
                assert_eq!(cut.as_ref(), object["metadata"].get("managedFields"), "{text}");
            }
        }
    }

    #[test]
    fn what_is_no_object_stays_as_it_is() {
        for text in [
            "",
            "{",
            "[]",
            "nonsense",
            "{\"metadata\":",
            "{\"metadata\":{\"managedFields\":[",
            "{\"a\":\"\\",
            "{\"metadata\":7}",
        ] {
            assert_eq!(without_managed_fields(text.as_bytes()), text.as_bytes(), "{text}");
        }
    }
}
