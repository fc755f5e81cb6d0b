//! VolumeAttributesClass: attributes of volumes that can be changed later.

use api::field::{FieldErrors, IMMUTABLE};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use serde_json::{Value, json};

use crate::column::Column;
use crate::{Strategy, cells};

pub struct VolumeAttributesClassStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("DriverName", "Which driver knows them."), Column::AGE];

impl Strategy for VolumeAttributesClassStrategy {
    type Object = VolumeAttributesClass;

    fn validate_create(&self, class: &VolumeAttributesClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if class.driver_name.is_empty() {
            errors.required("driverName", "");
        }
        if class.parameters.as_ref().is_none_or(|parameters| parameters.is_empty()) {
            errors.required("parameters", "must contain at least one key/value pair");
        }
        errors
    }

    fn validate_update(&self, new: &VolumeAttributesClass, old: &VolumeAttributesClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if new.driver_name != old.driver_name {
            errors.forbidden("driverName", "updates to driverName are forbidden.");
        }
        if new.parameters != old.parameters {
            errors.invalid("parameters", &new.parameters, IMMUTABLE);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &VolumeAttributesClass, now: Timestamp) -> Vec<Value> {
        vec![cells::name(&class.metadata), json!(class.driver_name), cells::age(&class.metadata, now)]
    }
}
