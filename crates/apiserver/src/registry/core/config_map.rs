//! ConfigMap: plain configuration data. The smallest strategy; copy this file to start a new one.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use crate::registry::Strategy;
use crate::registry::column::{Column, age};

pub struct ConfigMapStrategy;

const COLUMNS: &[Column] =
    &[Column::NAME, Column::integer("Data", "Number of keys in data and binaryData."), Column::AGE];

impl Strategy for ConfigMapStrategy {
    type Object = ConfigMap;

    fn validate_update(&self, new: &ConfigMap, old: &ConfigMap) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if old.immutable == Some(true) {
            if new.immutable != Some(true) {
                errors.forbidden("immutable", "field is immutable when `immutable` is set");
            }
            if new.data != old.data {
                errors.forbidden("data", "field is immutable when `immutable` is set");
            }
            if new.binary_data != old.binary_data {
                errors.forbidden("binaryData", "field is immutable when `immutable` is set");
            }
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &ConfigMap, now: Timestamp) -> Vec<Value> {
        let count = |keys: Option<usize>| keys.unwrap_or(0);
        let data = count(object.data.as_ref().map(|data| data.len()))
            + count(object.binary_data.as_ref().map(|data| data.len()));
        vec![json!(object.metadata.name), json!(data), age(object.metadata.creation_timestamp.as_ref(), now)]
    }
}
