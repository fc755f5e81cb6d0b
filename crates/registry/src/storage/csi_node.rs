//! CSINode: which storage drivers a node has.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::{Value, json};

use crate::column::Column;
use crate::{Strategy, cells};

pub struct CsiNodeStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::integer("Drivers", "How many drivers the node has."), Column::AGE];

impl Strategy for CsiNodeStrategy {
    type Object = CSINode;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, node: &CSINode) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let mut names = std::collections::BTreeSet::new();
        for (i, driver) in node.spec.drivers.iter().enumerate() {
            let place = |field: &str| format!("spec.drivers[{i}].{field}");
            if driver.name.is_empty() {
                errors.required(place("name"), "");
            } else if !names.insert(driver.name.as_str()) {
                errors.duplicate(place("name"), &driver.name);
            }
            if driver.node_id.is_empty() {
                errors.required(place("nodeID"), "");
            }
        }
        errors
    }

    fn validate_update(&self, new: &CSINode, old: &CSINode) -> FieldErrors {
        let mut errors = self.validate_create(new);
        for driver in &new.spec.drivers {
            let before = old.spec.drivers.iter().find(|before| before.name == driver.name);
            if let Some(before) = before
                && (before.node_id != driver.node_id || before.topology_keys != driver.topology_keys)
            {
                errors.invalid("spec.drivers", driver, api::field::IMMUTABLE);
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
