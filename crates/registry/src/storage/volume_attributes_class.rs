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
        check(class, None)
    }

    fn validate_update(&self, new: &VolumeAttributesClass, old: &VolumeAttributesClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if new.driver_name != old.driver_name {
            errors.forbidden("driverName", "updates to driverName are forbidden.");
        }
        if new.parameters != old.parameters {
            errors.forbidden("parameters", "updates to parameters are forbidden.");
        }
        errors.extend(check(new, Some(old)));
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &VolumeAttributesClass, now: Timestamp) -> Vec<Value> {
        vec![cells::name(&class.metadata), json!(class.driver_name), cells::age(&class.metadata, now)]
    }
}

/// What is as it was stored is not looked at again: else a class that is not valid could not be deleted.
fn check(class: &VolumeAttributesClass, old: Option<&VolumeAttributesClass>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    if old.is_none_or(|old| class.driver_name != old.driver_name) {
        rules::provisioner(&mut errors, &Path::new("driverName"), &class.driver_name);
    }
    if old.is_none_or(|old| class.parameters != old.parameters) {
        match class.parameters.as_ref().filter(|parameters| !parameters.is_empty()) {
            Some(parameters) => rules::parameters(&mut errors, &Path::new("parameters"), parameters),
            None => errors.required("parameters", "must contain at least one key/value pair"),
        }
    }
    errors
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
                    "driverName: Forbidden: updates to driverName are forbidden.",
                    "parameters: Forbidden: updates to parameters are forbidden.",
                    "driverName: Required value",
                    "parameters: Required value: must contain at least one key/value pair",
                ],
            ),
            (
                class("d.example.com", json!({"": "b"})),
                vec![
                    "parameters: Forbidden: updates to parameters are forbidden.",
                    "parameters: Invalid value: \"\": field can not be empty.",
                ],
            ),
        ] {
            let errors = VolumeAttributesClassStrategy.validate_update(&class, &good);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected);
        }
        let stored = class("a b", json!({}));
        assert_eq!(VolumeAttributesClassStrategy.validate_create(&stored).len(), 2);
        assert!(VolumeAttributesClassStrategy.validate_update(&stored, &stored).is_empty(), "its finalizers may go");
    }
}
