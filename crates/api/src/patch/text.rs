//! Merge patches on JSON text: only what a patch touches becomes a tree, the rest is copied.
//!
//! A patch says little about a large object, a label or a condition, and in both kinds of merge patch what becomes of a
//! member depends on that member alone. So each level that the patch enters is split into its members; the members it
//! changes go through [`super::merge`] or [`super::strategic`], which decide what that means (a property test compares).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::strategic::Shape;
use super::{PatchError, merge, strategic};
use crate::schema::Struct;

/// A name as it stands in the text where it can.
#[derive(Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub(super) struct Name<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl<'a> From<&'a str> for Name<'a> {
    fn from(name: &'a str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

/// One level of an object.
pub(super) type Fields<'a, V = &'a RawValue> = BTreeMap<Name<'a>, V>;

/// A member of the patched object.
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'a> {
    Kept(&'a RawValue),
    Entered(Fields<'a, Member<'a>>),
    Made(Value),
}

/// Which kind of patch, at one level of the object.
#[derive(Clone, Copy)]
enum Kind<'a> {
    Merge,
    Strategic(Shape<'a>),
}

impl<'a> Kind<'a> {
    /// What holds inside a member, unless it is replaced as a whole.
    fn inside(self, name: &str) -> Option<Self> {
        match self {
            Self::Merge => Some(self),
            Self::Strategic(shape) if shape.replaces(name) => None,
            Self::Strategic(shape) => Some(Self::Strategic(shape.map_field(name))),
        }
    }

    /// Patches an object that has at most one member.
    fn apply(self, object: Map<String, Value>, patch: Map<String, Value>) -> Result<Map<String, Value>, PatchError> {
        match self {
            Self::Merge => Ok(merge::merged(object, &patch)),
            Self::Strategic(shape) => strategic::merge_map(object, patch, shape),
        }
    }
}

/// [`merge::apply`] on text. `None` if it does not succeed or cannot be done in parts: the long way says why.
pub fn apply_merge(object: &[u8], patch: &Value) -> Option<Vec<u8>> {
    apply(object, patch, Kind::Merge)
}

/// [`strategic::apply`] on text; `None` as for [`apply_merge`].
pub fn apply_strategic(object: &[u8], patch: &Value, schema: &Struct) -> Option<Vec<u8>> {
    apply(object, patch, Kind::Strategic(Shape::Struct(schema)))
}

fn apply(object: &[u8], patch: &Value, kind: Kind<'_>) -> Option<Vec<u8>> {
    let patch = patch.as_object().filter(|patch| !has_directives(patch))?;
    let mut members = members(serde_json::from_slice(object).ok()?);
    enter(&mut members, patch, kind).ok()?;
    serde_json::to_vec(&members).ok()
}

fn members<'a>(fields: Fields<'a>) -> Fields<'a, Member<'a>> {
    fields.into_iter().map(|(name, raw)| (name, Member::Kept(raw))).collect()
}

/// Directives speak about the members beside them.
fn has_directives(patch: &Map<String, Value>) -> bool {
    patch.keys().any(|key| key.starts_with('$'))
}

fn enter<'a>(
    members: &mut Fields<'a, Member<'a>>,
    patch: &'a Map<String, Value>,
    kind: Kind<'_>,
) -> Result<(), PatchError> {
    for (name, change) in patch {
        let raw = match members.get(&Name::from(name.as_str())) {
            Some(Member::Kept(raw)) => Some(*raw),
            _ => None,
        };
        let member = match (raw, change, kind.inside(name)) {
            (Some(raw), Value::Object(change), Some(inner))
                if raw.get().starts_with('{') && !has_directives(change) =>
            {
                let mut below = self::members(parse(raw));
                enter(&mut below, change, inner)?;
                Some(Member::Entered(below))
            }
            _ => {
                let alone = raw.map(|raw| (name.clone(), value(raw))).into_iter().collect();
                let patch = [(name.clone(), change.clone())].into_iter().collect();
                kind.apply(alone, patch)?.remove(name).map(Member::Made)
            }
        };
        match member {
            Some(member) => drop(members.insert(Name::from(name.as_str()), member)),
            None => drop(members.remove(&Name::from(name.as_str()))),
        }
    }
    Ok(())
}

/// The members of an object; none if it is something else.
pub(super) fn parse(raw: &RawValue) -> Fields<'_> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

pub(super) fn value(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::patch::json::tests::any_json;
    use crate::schema::of;

    #[test]
    fn only_what_is_touched_is_read() {
        // Nothing that a parser would keep as it is: spaces and numbers stay as they were written.
        let object = br#"{"metadata":{"labels":{"a":"1","b":"2"}, "x" : [ 1.00 ]},"spec":{"n": 1e2}}"#;
        let patch = json!({"metadata": {"labels": {"a": null, "c": "3"}}, "status": {"phase": "Running"}});
        let expected =
            br#"{"metadata":{"labels":{"b":"2","c":"3"},"x":[ 1.00 ]},"spec":{"n": 1e2},"status":{"phase":"Running"}}"#;
        for patched in [apply_merge(object, &patch), apply_strategic(object, &patch, &of::<Pod>())] {
            assert_eq!(String::from_utf8(patched.unwrap()).unwrap(), str::from_utf8(expected).unwrap());
        }
    }

    #[test]
    fn what_replaces_is_not_entered() {
        let object = br#"{"spec":{"selector":{"matchLabels":{"a":"1","b":"2"}}}}"#;
        let patch = json!({"spec": {"selector": {"matchLabels": {"a": "3"}}}});
        let patched = apply_strategic(object, &patch, &of::<PodDisruptionBudget>()).unwrap();
        assert_eq!(patched, br#"{"spec":{"selector":{"matchLabels":{"a":"3"}}}}"#);
    }

    proptest! {
        #[test]
        fn agrees_with_the_long_way(object in any_json(), patch in any_json()) {
            let text = object.to_string();
            let read = |text: Vec<u8>| serde_json::from_slice::<Value>(&text).unwrap();
            let mut merged = object.clone();
            let merging = merge::apply(&mut merged, &patch);
            if let Some(text) = apply_merge(text.as_bytes(), &patch) {
                prop_assert!(merging.is_ok());
                prop_assert_eq!(read(text), merged);
            }
            let mut merged = object.clone();
            let merging = strategic::apply(&mut merged, &patch, &of::<Pod>());
            if let Some(text) = apply_strategic(text.as_bytes(), &patch, &of::<Pod>()) {
                prop_assert!(merging.is_ok());
                prop_assert_eq!(read(text), merged);
            }
        }
    }
}
