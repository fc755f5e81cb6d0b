//! Discovery documents as text: members in the order of Go's types, for scripts that look for pieces of it.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

pub(crate) struct InOrder<'a>(pub(crate) &'a Value);

const RESOURCE: &[&str] = &[
    "name",
    "singularName",
    "namespaced",
    "group",
    "version",
    "kind",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
];

const DOCUMENT: &[&str] =
    &["kind", "apiVersion", "groupVersion", "name", "version", "versions", "preferredVersion", "groups", "resources"];

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(members) => {
                let order = if members.contains_key("singularName") { RESOURCE } else { DOCUMENT };
                let first = order.iter().filter_map(|key| Some((*key, members.get(*key)?)));
                let rest = members.iter().filter(|(key, _)| !order.contains(&key.as_str()));
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (key, value) in first.chain(rest.map(|(key, value)| (key.as_str(), value))) {
                    map.serialize_entry(key, &InOrder(value))?;
                }
                map.end()
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(InOrder)),
            other => other.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_are_in_gos_order() {
        let list = json!({"apiVersion": "v1", "groupVersion": "v1", "kind": "APIResourceList", "resources": [{
            "categories": ["all"], "kind": "Pod", "name": "pods", "namespaced": true, "shortNames": ["po"],
            "singularName": "pod", "storageVersionHash": "x", "verbs": ["get"]}]});
        assert_eq!(
            serde_json::to_string(&InOrder(&list)).unwrap(),
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get"],"shortNames":["po"],"categories":["all"],"storageVersionHash":"x"}]}"#
        );
    }
}
