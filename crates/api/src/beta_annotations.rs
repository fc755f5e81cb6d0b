//! What claims and volumes said in annotations before they had fields for it. The annotation still counts, and before the field
//! (`GetPersistentVolumeClaimClass`, `GetPersistentVolumeClass` and `MountOptionFromSpec`, v1.36).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::meta::Meta as _;

pub const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Of volumes only, between commas.
pub const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// The class that a claim names, which may be the empty one; none if it names none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let older = claim.metadata.annotation(STORAGE_CLASS);
    older.or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
}

/// The class of a volume; empty if it has none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let older = volume.metadata.annotation(STORAGE_CLASS);
    older.or_else(|| volume.spec.as_ref()?.storage_class_name.as_deref()).unwrap_or_default()
}

/// How a volume is to be mounted, each option once and in upstream's order. Volumes of CSI drivers say it in the field only.
pub fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let options: BTreeSet<&str> = match volume.metadata.annotation(MOUNT_OPTIONS) {
        Some(older) => older.split(',').collect(),
        None => {
            let options = volume.spec.as_ref().and_then(|spec| spec.mount_options.as_deref()).unwrap_or_default();
            options.iter().map(String::as_str).collect()
        }
    };
    options.into_iter().filter(|option| !option.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn annotations_count_before_fields() {
        for (annotation, field, of_claim, of_volume) in [
            (json!(null), json!(null), None, ""),
            (json!(null), json!(""), Some(""), ""),
            (json!(null), json!("new"), Some("new"), "new"),
            (json!("old"), json!("new"), Some("old"), "old"),
            (json!(""), json!("new"), Some(""), ""),
        ] {
            let annotations = annotation.as_str().map(|class| json!({STORAGE_CLASS: class}));
            let object = json!({"metadata": {"annotations": annotations}, "spec": {"storageClassName": field}});
            let claim: PersistentVolumeClaim = serde_json::from_value(object.clone()).unwrap();
            let volume: PersistentVolume = serde_json::from_value(object.clone()).unwrap();
            assert_eq!((claim_class(&claim), volume_class(&volume)), (of_claim, of_volume), "{object}");
        }
        let options = |annotation: Value, field: Value| {
            let annotations = annotation.as_str().map(|options| json!({MOUNT_OPTIONS: options}));
            let object = json!({"metadata": {"annotations": annotations}, "spec": {"mountOptions": field}});
            mount_options(&serde_json::from_value(object).unwrap())
        };
        for (annotation, field, expected) in [
            (json!(null), json!(["soft", "hard", "soft", ""]), &["hard", "soft"][..]),
            (json!(null), json!(null), &[]),
            (json!("vers=4.1,,noatime"), json!(["soft"]), &["noatime", "vers=4.1"]),
            (json!(""), json!(["soft"]), &[]),
        ] {
            assert_eq!(options(annotation.clone(), field), expected, "{annotation}");
        }
    }
}
