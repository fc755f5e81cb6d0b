//! StorageClass: a kind of storage, and how volumes of it are made.

use api::default_class::{STORAGE, is_marked};
use api::field::{FieldErrors, IMMUTABLE, Path};
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::core::pod_spec::node_label;
use crate::metadata::same;
use crate::unset::{items, or_empty, text};
use crate::{Strategy, cells};

pub struct StorageClassStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Provisioner", "Who makes the volumes."),
    Column::string("ReclaimPolicy", "What becomes of a volume when its claim is gone."),
    Column::string("VolumeBindingMode", "When a volume is made."),
    Column::string("AllowVolumeExpansion", "Whether volumes can grow."),
    Column::AGE,
];

impl Strategy for StorageClassStrategy {
    type Object = StorageClass;

    fn apply_defaults(&self, class: &mut StorageClass) {
        class.reclaim_policy.get_or_insert_with(|| "Delete".to_owned());
        class.volume_binding_mode.get_or_insert_with(|| "Immediate".to_owned());
    }

    fn validate_create(&self, class: &StorageClass) -> FieldErrors {
        let mut errors = FieldErrors::default();
        rules::provisioner(&mut errors, &Path::new("provisioner"), &class.provisioner);
        if let Some(parameters) = &class.parameters {
            rules::parameters(&mut errors, &Path::new("parameters"), parameters);
        }
        if let Some(policy) = text(&class.reclaim_policy)
            && !matches!(policy, "Delete" | "Retain")
        {
            errors.not_supported("reclaimPolicy", policy, &["Delete", "Retain"]);
        }
        match class.volume_binding_mode.as_deref() {
            None => errors.required("volumeBindingMode", ""),
            Some("Immediate" | "WaitForFirstConsumer") => {}
            Some(other) => {
                errors.not_supported("volumeBindingMode", other, &["Immediate", "WaitForFirstConsumer"]);
            }
        }
        rules::allowed_topologies(&mut errors, &Path::new("allowedTopologies"), items(&class.allowed_topologies));
        errors
    }

    fn validate_update(&self, new: &StorageClass, old: &StorageClass) -> FieldErrors {
        let mut errors = self.validate_create(new);
        if !same(&new.parameters, &old.parameters) {
            errors.invalid("parameters", &new.parameters, IMMUTABLE);
        }
        errors.immutable("provisioner", &new.provisioner, &old.provisioner);
        errors.immutable("reclaimPolicy", &new.reclaim_policy, &old.reclaim_policy);
        errors.immutable("volumeBindingMode", &new.volume_binding_mode, &old.volume_binding_mode);
        errors
    }

    fn warnings(&self, class: &StorageClass, _: Option<&StorageClass>) -> Vec<String> {
        let terms = items(&class.allowed_topologies).iter().enumerate();
        let keys = terms.flat_map(|(i, term)| {
            let expressions = items(&term.match_label_expressions).iter().enumerate();
            expressions.map(move |(j, expression)| (i, j, expression.key.as_str()))
        });
        let at = |i: usize, j: usize| format!("allowedTopologies[{i}].matchLabelExpressions[{j}].key");
        keys.filter_map(|(i, j, key)| Some(format!("{}: {}", at(i, j), node_label(key)?))).collect()
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &StorageClass, now: Timestamp) -> Vec<Value> {
        let mut name = class.metadata.name().to_owned();
        if is_marked(&class.metadata, &STORAGE) {
            name.push_str(" (default)");
        }
        vec![
            json!(name),
            json!(class.provisioner),
            json!(or_empty(&class.reclaim_policy)),
            json!(or_empty(&class.volume_binding_mode)),
            json!(class.allow_volume_expansion == Some(true)),
            cells::age(&class.metadata, now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(more: Value) -> StorageClass {
        let mut class = json!({"metadata": {"name": "c"}, "provisioner": "p", "parameters": {"a": "b"}});
        class.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut class = serde_json::from_value(class).unwrap();
        StorageClassStrategy.apply_defaults(&mut class);
        class
    }

    #[test]
    fn what_volumes_are_made_by_does_not_change() {
        let old = class(json!({}));
        for (more, expected) in [
            (json!({"allowVolumeExpansion": true, "mountOptions": ["ro"]}), vec![]),
            (json!({"parameters": {"a": "c"}}), vec!["parameters: Invalid value: {\"a\":\"c\"}: field is immutable"]),
            (json!({"provisioner": "q"}), vec!["provisioner: Invalid value: \"q\": field is immutable"]),
            (json!({"reclaimPolicy": "Retain"}), vec!["reclaimPolicy: Invalid value: \"Retain\": field is immutable"]),
            (
                json!({"volumeBindingMode": "WaitForFirstConsumer"}),
                vec!["volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable"],
            ),
            (
                json!({"volumeBindingMode": ""}),
                vec![
                    "volumeBindingMode: Unsupported value: \"\": supported values: \"Immediate\", \"WaitForFirstConsumer\"",
                    "volumeBindingMode: Invalid value: \"\": field is immutable",
                ],
            ),
        ] {
            let errors = StorageClassStrategy.validate_update(&class(more.clone()), &old);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected, "{more}");
        }
    }

    #[test]
    fn labels_that_have_other_names_now_are_named() {
        let zone = json!({"key": "failure-domain.beta.kubernetes.io/zone", "values": ["a"]});
        let topologies = json!([{"matchLabelExpressions": [{"key": "b", "values": ["c"]}, zone]}]);
        let expected = "allowedTopologies[0].matchLabelExpressions[1].key: deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead";
        assert_eq!(StorageClassStrategy.warnings(&class(json!({"allowedTopologies": topologies})), None), [expected]);
        assert_eq!(StorageClassStrategy.warnings(&class(json!({})), None), [""; 0]);
    }
}
