//! CSIStorageCapacity: how much a driver can still make somewhere.

use api::field::{FieldErrors, IMMUTABLE};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use serde_json::{Value, json};

use crate::column::Column;
use crate::{Strategy, cells};

pub struct CsiStorageCapacityStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("StorageClassName", "Of which kind of storage."),
    Column::string("Capacity", "How much there is."),
];

impl Strategy for CsiStorageCapacityStrategy {
    type Object = CSIStorageCapacity;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn validate_create(&self, capacity: &CSIStorageCapacity) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let class = &capacity.storage_class_name;
        errors.invalid_each("storageClassName", class, api::validation::dns1123_subdomain(class));
        errors
    }

    fn validate_update(&self, new: &CSIStorageCapacity, old: &CSIStorageCapacity) -> FieldErrors {
        let mut errors = self.validate_create(new);
        if new.node_topology != old.node_topology {
            errors.invalid("nodeTopology", &new.node_topology, IMMUTABLE);
        }
        errors.immutable("storageClassName", &new.storage_class_name, &old.storage_class_name);
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, capacity: &CSIStorageCapacity, _: Timestamp) -> Vec<Value> {
        let size = capacity.capacity.as_ref().map_or("<unset>", |size| size.0.as_str());
        vec![cells::name(&capacity.metadata), json!(capacity.storage_class_name), json!(size)]
    }
}
