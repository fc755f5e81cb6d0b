//! StorageClass: a kind of storage, and how volumes of it are made.

use api::field::{FieldErrors, Path};
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::metadata::same;
use crate::unset::{items, or_empty, set_text, text};
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
        set_text(&mut class.reclaim_policy, "Delete");
        set_text(&mut class.volume_binding_mode, "Immediate");
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
        match text(&class.volume_binding_mode) {
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
            errors.forbidden("parameters", "updates to parameters are forbidden.");
        }
        if new.provisioner != old.provisioner {
            errors.forbidden("provisioner", "updates to provisioner are forbidden.");
        }
        if new.reclaim_policy != old.reclaim_policy {
            errors.forbidden("reclaimPolicy", "updates to reclaimPolicy are forbidden.");
        }
        errors.immutable("volumeBindingMode", &new.volume_binding_mode, &old.volume_binding_mode);
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, class: &StorageClass, now: Timestamp) -> Vec<Value> {
        const DEFAULT: [&str; 2] =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        let annotations = class.metadata.annotations.as_ref();
        let is_default =
            DEFAULT.iter().any(|key| annotations.and_then(|all| all.get(*key)).is_some_and(|value| value == "true"));
        let mut name = class.metadata.name().to_owned();
        if is_default {
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
