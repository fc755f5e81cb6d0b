//! VolumeAttributesClass: attributes of volumes that can be changed later.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::{Strategy, cells};

pub struct VolumeAttributesClassStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::string("DriverName", "Which driver knows them."), Column::AGE];

impl Strategy for VolumeAttributesClassStrategy {
    type Object = VolumeAttributesClass;

    fn validate_create(&self, class: &VolumeAttributesClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        rules::provisioner(&mut errors, &Path::new("driverName"), &class.driver_name);
        match class.parameters.as_ref().filter(|parameters| !parameters.is_empty()) {
            Some(parameters) => rules::parameters(&mut errors, &Path::new("parameters"), parameters),
            None => errors.required("parameters", "must contain at least one key/value pair"),
        }
        errors
    }

    fn validate_update(&self, new: &VolumeAttributesClass, old: &VolumeAttributesClass) -> FieldErrors {
        let mut errors = self.validate_create(new);
        if new.driver_name != old.driver_name {
            errors.forbidden("driverName", "updates to driverName are forbidden.");
        }
        if new.parameters != old.parameters {
            errors.forbidden("parameters", "updates to parameters are forbidden.");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_a_driver_and_parameters_for_good() {
        let class = |driver: &str, parameters: Value| -> VolumeAttributesClass {
            serde_json::from_value(json!({"metadata": {"name": "x"}, "driverName": driver, "parameters": parameters}))
                .unwrap()
        };
        let good = class("d.example.com", json!({"a": "b"}));
        for (class, expected) in [
            (good.clone(), vec![]),
            (
                class("", json!({})),
                vec![
                    "driverName: Required value",
                    "parameters: Required value: must contain at least one key/value pair",
                    "driverName: Forbidden: updates to driverName are forbidden.",
                    "parameters: Forbidden: updates to parameters are forbidden.",
                ],
            ),
            (
                class("d.example.com", json!({"": "b"})),
                vec![
                    "parameters: Invalid value: \"\": field can not be empty.",
                    "parameters: Forbidden: updates to parameters are forbidden.",
                ],
            ),
        ] {
            let errors = VolumeAttributesClassStrategy.validate_update(&class, &good);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected);
        }
        assert!(!VolumeAttributesClassStrategy.validate_create(&class("a b", json!({"a": "b"}))).is_empty());
    }
}
