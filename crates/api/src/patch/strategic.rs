//! Strategic merge patch: a merge patch that knows which lists are keyed.
//!
//! Directives: `$patch: replace|delete|merge` in a map or in an element of a keyed list, `$retainKeys`
//! (drop fields not named), `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
//! Elements that the patch names keep the patch's order and go before elements only the server has,
//! unless the server's own order says otherwise (`mergeSortedSlice`, v1.36).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::{Struct, Type};
use crate::sort::CompactSort as _;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Merges `patch` into `object`, which an error leaves as it was.
pub fn apply(object: &mut Value, patch: &Value, schema: &Struct) -> Result<(), PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (&*object, patch) else {
        return Err(PatchError::Malformed("cannot apply a patch that is not an object".to_owned()));
    };
    *object = Value::Object(merge_map(original.clone(), patch.clone(), Shape::Struct(schema))?);
    Ok(())
}

/// What is known about the fields of a map being merged.
#[derive(Clone, Copy)]
pub(super) enum Shape<'a> {
    Struct(&'a Struct),
    /// A map from names to values of one type.
    Map(&'a Type),
    Unknown,
}

impl<'a> Shape<'a> {
    fn of(ty: &'a Type) -> Self {
        match ty {
            Type::Struct(definition) => Self::Struct(definition),
            Type::Map(value) => Self::Map(value),
            _ => Self::Unknown,
        }
    }

    /// The shape of a map-valued field.
    pub(super) fn map_field(self, name: &str) -> Self {
        match self {
            Self::Struct(definition) => definition.field(name).map_or(Self::Unknown, |field| Self::of(&field.ty)),
            Self::Map(value) => Self::of(value),
            Self::Unknown => Self::Unknown,
        }
    }

    /// Whether a map-valued field is replaced as a whole.
    pub(super) fn replaces(self, name: &str) -> bool {
        let Self::Struct(definition) = self else { return false };
        definition.field(name).and_then(|field| field.merge).is_some_and(|merge| merge.patch_replaces)
    }

    /// The shape of a list field's elements and, when the list merges, its key (`""` for plain values).
    fn list_field(self, name: &str) -> (Self, Option<&'a str>) {
        let Self::Struct(definition) = self else {
            return (Self::Unknown, None);
        };
        let Some(field) = definition.field(name) else {
            return (Self::Unknown, None);
        };
        let element = match &field.ty {
            Type::List(element) => Self::of(element),
            _ => Self::Unknown,
        };
        (element, field.merge.and_then(|merge| merge.patch_key))
    }
}

type Fields = Map<String, Value>;

fn malformed(message: impl Into<String>) -> PatchError {
    PatchError::Malformed(message.into())
}

pub(super) fn merge_map(mut original: Fields, mut patch: Fields, shape: Shape<'_>) -> Result<Fields, PatchError> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Fields::new()),
            _ => Err(malformed(format!("unknown patch type found: {directive} in map: {}", Value::Object(patch)))),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    set_orders(&mut original, &mut patch, shape)?;
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            delete_from_list(&mut original, field, &value)?;
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let merged = match (original.remove(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) if !shape.replaces(&key) => {
                Some(Value::Object(merge_map(old, new, shape.map_field(&key))?))
            }
            (Some(Value::Array(old)), Value::Array(new)) => Some(Value::Array(match shape.list_field(&key) {
                (element, Some(merge_key)) => merge_list(old, new, merge_key, element)?,
                (_, None) => new,
            })),
            (Some(Value::Null) | None, new) | (Some(_), new) => without_directives(without_nulls(new)),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

fn retain_keys(original: &mut Fields, patch: &mut Fields) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let bad = || malformed("invalid patch format of retainKeys");
    let retained = retained.as_array().ok_or_else(bad)?;
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let keeps = |key: &str| retained.contains(key);
    let named = |(key, value): &(&String, &Value)| {
        !value.is_null() && !key.starts_with(DELETE_FROM) && !key.starts_with(SET_ORDER)
    };
    if !patch.iter().filter(named).all(|(key, _)| keeps(key)) {
        return Err(bad());
    }
    original.retain(|key, _| keeps(key));
    Ok(())
}

fn delete_from_list(original: &mut Fields, field: &str, unwanted: &Value) -> Result<(), PatchError> {
    let unwanted = unwanted.as_array().ok_or_else(|| malformed("invalid patch format of primitive list"))?;
    let unwanted: HashSet<String> = unwanted.iter().map(Value::to_string).collect();
    if let Some(Value::Array(items)) = original.get_mut(field) {
        items.retain(|item| !unwanted.contains(&item.to_string()));
    }
    Ok(())
}

/// Handles each `$setElementOrder/<field>` together with the field itself.
fn set_orders(original: &mut Fields, patch: &mut Fields, shape: Shape<'_>) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for directive in directives {
        let field = &directive[SET_ORDER.len()..];
        let Some(Value::Array(order)) = patch.remove(&directive) else {
            return Err(malformed("invalid patch format of setElementOrder list"));
        };
        let (element, merge_key) = shape.list_field(field);
        let key = merge_key.unwrap_or_default();
        // A list that arrives together with its order may also delete from it.
        if let Some(unwanted) = patch.remove(&format!("{DELETE_FROM}{field}")) {
            delete_from_list(original, field, &unwanted)?;
        }
        let list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(malformed(format!("expected a list in field {field}"))),
        };
        let server = list(original.remove(field))?;
        let named = list(patch.remove(field))?;
        check_order(named.as_deref().unwrap_or_default(), &order, key)?;
        let server_order = server.clone().unwrap_or_default();
        let merged = match (server, named) {
            (None, None) => continue,
            (Some(server), None) => server,
            (None, Some(named)) => match without_directives(Value::Array(named)) {
                Some(Value::Array(named)) => named,
                _ => continue,
            },
            (Some(server), Some(named)) if merge_key.is_some() => merge_list(server, named, key, element)?,
            (Some(_), Some(named)) => named,
        };
        original.insert(field.to_owned(), Value::Array(arrange(merged, &order, &server_order, key)));
    }
    Ok(())
}

/// The elements of the patch must come in the order that `$setElementOrder` gives.
fn check_order(named: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut places = order.iter();
    for item in named.iter().filter(|item| item.get(PATCH).is_none()) {
        if !places.any(|place| same(item, place, key)) {
            return Err(malformed(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                Value::Array(named.to_vec()),
                Value::Array(order.to_vec())
            )));
        }
    }
    Ok(())
}

fn merge_list(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
    element: Shape<'_>,
) -> Result<Vec<Value>, PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let server_order = original.clone();
    if key.is_empty() {
        if original.iter().chain(&patch).any(|item| item.is_object() || item.is_array()) {
            return Err(malformed("expected a list of plain values"));
        }
        let mut known: HashSet<String> = original.iter().map(Value::to_string).collect();
        original.extend(patch.iter().filter(|item| known.insert(item.to_string())).cloned());
        return Ok(arrange(original, &patch, &server_order, key));
    }
    let mut named = Vec::new();
    let mut unwanted: HashSet<String> = HashSet::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(fields) = item else {
            return Err(malformed("expected a list of maps"));
        };
        match fields.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
            None => named.push(fields),
            Some("delete") => {
                let wanted = fields.get(key).ok_or_else(|| no_merge_key(&fields, key))?;
                unwanted.insert(wanted.to_string());
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(malformed("merging lists cannot yet be specified in the patch")),
            Some(other) => {
                let message = format!("unknown patch type found: {other} in map");
                return Err(malformed(message));
            }
        }
    }
    if replace {
        return Ok(named.into_iter().filter_map(|fields| without_directives(Value::Object(fields))).collect());
    }
    if !unwanted.is_empty() {
        original.retain(|item| item.get(key).is_none_or(|found| !unwanted.contains(&found.to_string())));
    }
    if original.iter().any(|item| !item.is_object()) {
        return Err(malformed("expected a list of maps"));
    }
    let mut places = Places::of(&original, key);
    let patch_order: Vec<Value> = named.iter().cloned().map(Value::Object).collect();
    for fields in named {
        let wanted = fields.get(key).cloned().ok_or_else(|| no_merge_key(&fields, key))?;
        match places.0.get(&wanted.to_string()).and_then(|at| original.get_mut(*at)) {
            Some(found) => {
                let Value::Object(old) = found.take() else { continue };
                *found = Value::Object(merge_map(old, fields, element)?);
            }
            None => {
                if let Some(new) = without_directives(without_nulls(Value::Object(fields))) {
                    places.0.insert(wanted.to_string(), original.len());
                    original.push(new);
                }
            }
        }
    }
    Ok(arrange(original, &patch_order, &server_order, key))
}

fn no_merge_key(fields: &Fields, key: &str) -> PatchError {
    malformed(format!("map: {} does not contain declared merge key: {key}", Value::Object(fields.clone())))
}

fn same(a: &Value, b: &Value, key: &str) -> bool {
    if key.is_empty() { a == b } else { a.get(key).is_some() && a.get(key) == b.get(key) }
}

/// Where the elements of a list are, by their keys or, without one, by themselves; of several the first. Lists may be as long as
/// a body has room for, so none is searched for each element of another.
struct Places(HashMap<String, usize>);

impl Places {
    fn of(list: &[Value], key: &str) -> Self {
        let mut places = HashMap::with_capacity(list.len());
        for (at, item) in list.iter().enumerate() {
            if let Some(name) = Self::name(item, key) {
                places.entry(name).or_insert(at);
            }
        }
        Self(places)
    }

    fn name(item: &Value, key: &str) -> Option<String> {
        if key.is_empty() { Some(item.to_string()) } else { item.get(key).map(Value::to_string) }
    }

    fn find(&self, item: &Value, key: &str) -> Option<usize> {
        self.0.get(&Self::name(item, key)?).copied()
    }
}

/// Puts elements named in `patch_order` in that order, the others in the server's, and weaves the two.
fn arrange(merged: Vec<Value>, patch_order: &[Value], server_order: &[Value], key: &str) -> Vec<Value> {
    let (patch_places, server_places) = (Places::of(patch_order, key), Places::of(server_order, key));
    let (mut named, mut server): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| patch_places.find(item, key).is_some());
    named.compact_sort_by_cached_key(|item| patch_places.find(item, key));
    server.compact_sort_by_cached_key(|item| server_places.find(item, key).unwrap_or(usize::MAX));
    let mut woven = Vec::with_capacity(named.len() + server.len());
    let (mut named, mut server) = (named.into_iter().peekable(), server.into_iter().peekable());
    loop {
        let server_first = match (server.peek(), named.peek()) {
            (None, None) => return woven,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(left), Some(right)) => match (server_places.find(left, key), server_places.find(right, key)) {
                (Some(left), Some(right)) => left < right,
                _ => false,
            },
        };
        woven.extend(if server_first { server.next() } else { named.next() });
    }
}

/// Drops nulls from a value that has nothing to delete from.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Drops directives from a value that is taken as it is; `None` when all of it was one.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(mut fields) => {
            if let Some(directive) = fields.remove(PATCH)
                && directive.as_str() == Some("delete")
            {
                return None;
            }
            fields.retain(|key, _| key != RETAIN_KEYS && !key.starts_with(DELETE_FROM) && !key.starts_with(SET_ORDER));
            Some(fields.into_iter().filter_map(|(key, value)| Some((key, without_directives(value)?))).collect())
        }
        Value::Array(items) => Some(
            items
                .into_iter()
                // An element that says "replace" only marks the list.
                .filter(|item| !(item.get(PATCH).is_some() && item.as_object().is_some_and(|item| item.len() == 1)))
                .filter_map(without_directives)
                .collect(),
        ),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::schema::of;

    /// Searched element by element, these would keep a thread busy for hours.
    #[test]
    fn security_long_lists_take_as_long_as_they_are() {
        let names =
            |from: usize| (from..from + 100_000).map(|number| format!("example.com/{number}")).collect::<Vec<_>>();
        let mut object = json!({"metadata": {"finalizers": names(0)}});
        let patch = json!({"metadata": {"finalizers": names(50_000), "$deleteFromPrimitiveList/finalizers": names(0)}});
        apply(&mut object, &patch, &of::<Pod>()).unwrap();
        assert_eq!(object["metadata"]["finalizers"].as_array().unwrap().len(), 100_000);
        let containers = |image: &str| {
            let named = |number| json!({"name": format!("c{number}"), "image": image});
            json!({"spec": {"containers": (0..20_000).map(named).collect::<Vec<_>>()}})
        };
        let mut object = containers("a");
        apply(&mut object, &containers("b"), &of::<Pod>()).unwrap();
        assert_eq!(object, containers("b"));
    }

    fn patched(original: Value, patch: &Value) -> Result<Value, PatchError> {
        let mut object = original;
        apply(&mut object, patch, &of::<Pod>())?;
        Ok(object)
    }

    fn pod(names: &[&str]) -> Value {
        let containers: Vec<Value> =
            names.iter().map(|name| json!({"name": name, "image": format!("{name}:1")})).collect();
        json!({"spec": {"containers": containers}})
    }

    fn order(pod: &Value) -> Vec<&str> {
        pod["spec"]["containers"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn keyed_lists_merge_by_key() {
        let patch =
            json!({"spec": {"containers": [{"name": "b", "image": "b:2"}, {"name": "n", "image": "n", "tty": null}]}});
        let result = patched(pod(&["a", "b"]), &patch).unwrap();
        assert_eq!(
            result["spec"]["containers"],
            json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}, {"name": "n", "image": "n"}])
        );
        // A new element goes first, as it has no place in the server's order.
        let result = patched(pod(&["a"]), &json!({"spec": {"containers": [{"name": "n"}]}})).unwrap();
        assert_eq!(order(&result), ["n", "a"]);
    }

    #[test]
    fn directives() {
        for (patch, expected) in [
            (json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}), vec!["b"]),
            (json!({"spec": {"containers": [{"name": "x"}, {"$patch": "replace"}]}}), vec!["x"]),
            (json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}), vec!["b", "a"]),
            (
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}],
                    "containers": [{"name": "n"}]}}),
                vec!["b", "n", "a"],
            ),
        ] {
            assert_eq!(order(&patched(pod(&["a", "b"]), &patch).unwrap()), expected, "{patch}");
        }
        let original = json!({"metadata": {"finalizers": ["a", "b", "c"], "labels": {"x": "1", "y": "2"}}});
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["d"],
            "labels": {"$patch": "replace", "z": "3"}}});
        let result = patched(original, &patch).unwrap();
        assert_eq!(result["metadata"]["labels"], json!({"z": "3"}));
        let finalizers = result["metadata"]["finalizers"].as_array().unwrap();
        assert!(finalizers.len() == 3 && !finalizers.contains(&json!("b")));
    }

    #[test]
    fn retain_keys_drops_the_other_union_member() {
        let mut object = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        apply(&mut object, &patch, &of::<Deployment>()).unwrap();
        assert_eq!(object, json!({"spec": {"strategy": {"type": "Recreate"}}}));
        let bad = json!({"spec": {"strategy": {"$retainKeys": ["type"], "other": "x"}}});
        assert!(apply(&mut object, &bad, &of::<Deployment>()).is_err());
    }

    #[test]
    fn a_budgets_selector_is_replaced() {
        let mut object = json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "1", "b": "2"}}}});
        let patch = json!({"spec": {"selector": {"matchLabels": {"a": "3"}}}});
        apply(&mut object, &patch, &of::<k8s_openapi::api::policy::v1::PodDisruptionBudget>()).unwrap();
        assert_eq!(object, json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "3"}}}}));
    }

    #[test]
    fn atomic_lists_and_nulls() {
        let original = json!({"spec": {"tolerations": [{"key": "a"}], "nodeSelector": {"a": "b"}, "priority": 1}});
        let patch = json!({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"c": "d"}, "priority": null}});
        assert_eq!(
            patched(original, &patch).unwrap(),
            json!({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"a": "b", "c": "d"}}})
        );
    }

    #[test]
    fn refusals() {
        for patch in [
            json!({"spec": {"containers": [{"image": "x"}]}}),
            json!({"spec": {"$patch": "merge"}}),
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "zz"}]}}),
            json!([]),
        ] {
            assert!(patched(pod(&["a", "b"]), &patch).is_err(), "{patch}");
        }
    }

    proptest! {
        #[test]
        fn random_patches_never_panic(
            object in super::super::json::tests::any_json(), patch in super::super::json::tests::any_json(),
        ) {
            let mut object = object;
            let _ = apply(&mut object, &patch, &of::<Pod>());
        }
    }
}
