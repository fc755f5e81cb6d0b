//! ConfigMap: plain configuration data. The smallest strategy; copy this file to start a new one.

use api::field::FieldErrors;
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use crate::column::Column;
use crate::{Strategy, cells};

pub struct ConfigMapStrategy;

/// All values of a ConfigMap or Secret together.
pub const MAX_DATA_BYTES: usize = 1024 * 1024;
pub const IMMUTABLE_DATA: &str = "field is immutable when `immutable` is set";

const COLUMNS: &[Column] =
    &[Column::NAME, Column::string("Data", "Number of keys in data and binaryData."), Column::AGE];

impl Strategy for ConfigMapStrategy {
    type Object = ConfigMap;

    fn validate_create(&self, object: &ConfigMap) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let mut size = 0;
        for (key, value) in object.data.iter().flatten() {
            errors.invalid_each(format!("data[{key}]"), key, validation::config_map_key(key));
            if object.binary_data.as_ref().is_some_and(|binary| binary.contains_key(key)) {
                let detail = "duplicate of key present in binaryData";
                errors.invalid(format!("data[{key}]"), key, detail);
            }
            size += value.len();
        }
        for (key, value) in object.binary_data.iter().flatten() {
            errors.invalid_each(format!("binaryData[{key}]"), key, validation::config_map_key(key));
            size += value.0.len();
        }
        if size > MAX_DATA_BYTES {
            errors.too_long("", MAX_DATA_BYTES);
        }
        errors
    }

    fn validate_update(&self, new: &ConfigMap, old: &ConfigMap) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if old.immutable == Some(true) {
            if new.immutable != Some(true) {
                errors.forbidden("immutable", IMMUTABLE_DATA);
            }
            if new.data != old.data {
                errors.forbidden("data", IMMUTABLE_DATA);
            }
            if new.binary_data != old.binary_data {
                errors.forbidden("binaryData", IMMUTABLE_DATA);
            }
        }
        errors.extend(self.validate_create(new));
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &ConfigMap, now: Timestamp) -> Vec<Value> {
        let data = object.data.as_ref().map_or(0, |data| data.len())
            + object.binary_data.as_ref().map_or(0, |data| data.len());
        vec![cells::name(&object.metadata), json!(data), cells::age(&object.metadata, now)]
    }
}
