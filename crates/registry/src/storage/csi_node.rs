//! CSINode: which storage drivers a node has.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use serde_json::{Value, json};

use crate::apps::rules::non_negative;
use crate::column::Column;
use crate::core::volume_sources::csi_driver_name;
use crate::metadata::same;
use crate::unset::items;
use crate::{Strategy, cells};

const MAX_NODE_ID: usize = 256;

pub struct CsiNodeStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::integer("Drivers", "How many drivers the node has."), Column::AGE];

impl Strategy for CsiNodeStrategy {
    type Object = CSINode;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, node: &CSINode) -> FieldErrors {
        check(&node.spec.drivers, &[])
    }

    fn validate_update(&self, new: &CSINode, old: &CSINode) -> FieldErrors {
        let mut errors = check(&new.spec.drivers, &old.spec.drivers);
        // How many volumes the node may have is all that changes.
        let fixed = |driver: &CSINodeDriver| CSINodeDriver { allocatable: None, ..driver.clone() };
        let known = by_name(&old.spec.drivers);
        for driver in &new.spec.drivers {
            let before = known.get(driver.name.as_str()).and_then(|before| before.first());
            if before.is_some_and(|before| !same(&fixed(before), &fixed(driver))) {
                errors.invalid("spec.drivers", fixed(driver), api::field::IMMUTABLE);
            }
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, node: &CSINode, now: Timestamp) -> Vec<Value> {
        vec![cells::name(&node.metadata), json!(node.spec.drivers.len()), cells::age(&node.metadata, now)]
    }
}

/// Nodes write their own lists: however long one is, each driver in it is looked up.
type ByName<'a> = BTreeMap<&'a str, Vec<&'a CSINodeDriver>>;

fn by_name(drivers: &[CSINodeDriver]) -> ByName<'_> {
    let mut all = ByName::new();
    for driver in drivers {
        all.entry(driver.name.as_str()).or_default().push(driver);
    }
    all
}

/// Drivers that are as they were stored are not looked at again: one that is not valid holds up no other.
fn check(drivers: &[CSINodeDriver], old: &[CSINodeDriver]) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let (list, mut names) = (Path::new("spec.drivers"), BTreeSet::new());
    let (given, known) = (by_name(drivers), by_name(old));
    let count = |of: &ByName<'_>, name: &str| of.get(name).map_or(0, Vec::len);
    for (i, driver) in drivers.iter().enumerate() {
        let path = list.index(i);
        let is_stored = known.get(driver.name.as_str()).is_some_and(|all| all.iter().any(|old| same(*old, driver)));
        if !is_stored {
            check_names(&mut errors, &path, driver);
        }
        if !names.insert(driver.name.as_str()) && count(&given, &driver.name) > count(&known, &driver.name) {
            errors.duplicate(path.child("name"), &driver.name);
        }
        if !is_stored {
            check_keys(&mut errors, &path, driver);
        }
    }
    errors
}

fn check_names(errors: &mut FieldErrors, path: &Path<'_>, driver: &CSINodeDriver) {
    csi_driver_name(errors, &path.child("name"), &driver.name);
    match driver.node_id.len() {
        0 => errors.required(path.child("nodeID"), ""),
        1..=MAX_NODE_ID => {}
        _ => {
            let why = format!("must be {MAX_NODE_ID} characters or less");
            errors.invalid(path.child("nodeID"), &driver.node_id, why);
        }
    }
    let count = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
    non_negative(errors, &path.child("allocatable.count"), count.map(i64::from));
}

fn check_keys(errors: &mut FieldErrors, path: &Path<'_>, driver: &CSINodeDriver) {
    let mut keys = BTreeSet::new();
    for key in items(&driver.topology_keys) {
        if key.is_empty() {
            errors.required(path, "");
        }
        if !keys.insert(key) {
            errors.duplicate(path, key);
        }
        errors.invalid_each(path, key, api::validation::qualified_name(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(drivers: Value) -> CSINode {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}})).unwrap()
    }

    #[test]
    fn drivers_of_a_node_have_names_ids_and_keys() {
        let id = "x".repeat(MAX_NODE_ID + 1);
        for (drivers, expected) in [
            (json!([{"name": "d", "nodeID": "n", "topologyKeys": ["d/zone"], "allocatable": {"count": 0}}]), vec![]),
            (json!([{"name": "d", "nodeID": &id[1..]}]), vec![]),
            (
                json!([{"name": "d", "nodeID": id}]),
                vec![format!("spec.drivers[0].nodeID: Invalid value: \"{id}\": must be 256 characters or less")],
            ),
            (
                json!([{"name": "", "nodeID": ""}]),
                vec![
                    "spec.drivers[0].name: Required value".to_owned(),
                    "spec.drivers[0].nodeID: Required value".to_owned(),
                ],
            ),
            (
                json!([{"name": "d", "nodeID": "n"}, {"name": "d", "nodeID": "n"}]),
                vec!["spec.drivers[1].name: Duplicate value: \"d\"".to_owned()],
            ),
            (
                json!([{"name": "d", "nodeID": "n", "topologyKeys": ["a", "a"], "allocatable": {"count": -1}}]),
                vec![
                    "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0"
                        .to_owned(),
                    "spec.drivers[0]: Duplicate value: \"a\"".to_owned(),
                ],
            ),
        ] {
            let errors = CsiNodeStrategy.validate_create(&node(drivers.clone()));
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected, "{drivers}");
        }
        let refused = |drivers: Value| !CsiNodeStrategy.validate_create(&node(drivers)).is_empty();
        assert!(refused(json!([{"name": "a b", "nodeID": "n"}])));
        assert!(refused(json!([{"name": "x".repeat(64), "nodeID": "n"}])));
        assert!(refused(json!([{"name": "d", "nodeID": "n", "topologyKeys": ["a b"]}])));
    }

    #[test]
    fn only_the_number_of_volumes_changes() {
        let old = node(json!([{"name": "d", "nodeID": "n", "allocatable": {"count": 1}}]));
        for (drivers, expected) in [
            (json!([{"name": "d", "nodeID": "n", "topologyKeys": [], "allocatable": {"count": 2}}]), 0),
            (json!([{"name": "d", "nodeID": "m"}]), 1),
            (json!([{"name": "d", "nodeID": "n", "topologyKeys": ["a"]}]), 1),
            (json!([{"name": "e", "nodeID": "m"}]), 0),
        ] {
            assert_eq!(CsiNodeStrategy.validate_update(&node(drivers.clone()), &old).len(), expected, "{drivers}");
        }
    }

    #[test]
    fn a_driver_that_is_stored_holds_up_no_other() {
        let bad = json!({"name": "a b", "nodeID": "n"});
        let old = node(json!([bad]));
        for (drivers, expected) in [
            (json!([bad]), 0),
            (json!([bad, {"name": "d", "nodeID": "n"}]), 0),
            (json!([bad, {"name": "d", "nodeID": ""}]), 1),
            (json!([bad, bad]), 1),
            (json!([{"name": "a b", "nodeID": "n", "allocatable": {"count": 1}}]), 1),
        ] {
            assert_eq!(CsiNodeStrategy.validate_update(&node(drivers.clone()), &old).len(), expected, "{drivers}");
        }
    }
}
