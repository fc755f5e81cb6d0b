//! The order in which JSON shows the fields of objects that upstream's client makes or reads as Go types.
//!
//! What a command only passes on from the server has sorted keys. What it generates (`create deployment`) or changes as a
//! type (`set image`) is written field by field, in the order of the type's definition: `go_order.txt` has a line per type,
//! its fields in that order, and `field=Type` where another type's order follows. Types not listed, and maps such as
//! labels, are sorted.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value;

/// Fields in order, each with the type of its value.
type Order = Vec<(&'static str, Option<&'static str>)>;

static ORDERS: LazyLock<HashMap<&'static str, Order>> = LazyLock::new(|| {
    let order = |fields: &'static str| {
        fields.split(' ').map(|f| f.split_once('=').map_or((f, None), |(name, ty)| (name, Some(ty)))).collect()
    };
    include_str!("go_order.txt").lines().filter_map(|l| l.split_once(": ")).map(|(ty, f)| (ty, order(f))).collect()
});

/// A value that serializes in the order of its kind's type.
pub(crate) struct Typed<'a> {
    value: &'a Value,
    order: Option<&'static Order>,
}

impl<'a> Typed<'a> {
    pub(crate) fn new(object: &'a Value) -> Typed<'a> {
        Typed::of(object["kind"].as_str().unwrap_or_default(), object)
    }

    /// For what has no kind.
    pub(crate) fn of(ty: &str, value: &'a Value) -> Typed<'a> {
        Typed { value, order: ORDERS.get(ty) }
    }
}

impl Serialize for Typed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (map, order) = match (self.value, self.order) {
            (Value::Object(map), Some(order)) => (map, order),
            (Value::Array(items), order @ Some(_)) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for value in items {
                    seq.serialize_element(&Typed { value, order })?;
                }
                return seq.end();
            }
            (value, _) => return value.serialize(serializer),
        };
        let mut out = serializer.serialize_map(Some(map.len()))?;
        for (name, ty) in order {
            if let Some(value) = map.get(*name) {
                out.serialize_entry(name, &Typed { value, order: ty.and_then(|ty| ORDERS.get(ty)) })?;
            }
        }
        // A field newer than the table still shows.
        for (name, value) in map.iter().filter(|(name, _)| order.iter().all(|(known, _)| known != name)) {
            out.serialize_entry(name, value)?;
        }
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_come_in_the_order_of_their_type_and_maps_sorted() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"labels": {"name": "b", "app": "a"}, "name": "x"},
            "spec": {"restartPolicy": "Never", "containers": [{"image": "i", "name": "n", "zz": 1, "env": []}]},
        });
        assert_eq!(
            serde_json::to_string(&Typed::new(&pod)).unwrap(),
            "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"x\",\"labels\":{\"app\":\"a\",\"name\":\"b\"}},\
             \"spec\":{\"containers\":[{\"name\":\"n\",\"image\":\"i\",\"env\":[],\"zz\":1}],\"restartPolicy\":\"Never\"}}"
        );
        let custom = json!({"kind": "Widget", "apiVersion": "e/v1"});
        assert_eq!(
            serde_json::to_string(&Typed::new(&custom)).unwrap(),
            "{\"apiVersion\":\"e/v1\",\"kind\":\"Widget\"}"
        );
    }

    #[test]
    fn every_type_that_a_field_names_is_listed() {
        for (ty, order) in ORDERS.iter() {
            for (field, child) in order {
                assert!(child.is_none_or(|c| ORDERS.contains_key(c)), "{ty}.{field}");
            }
        }
    }
}
