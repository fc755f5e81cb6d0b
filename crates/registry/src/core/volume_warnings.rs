//! What volumes and claims may say and should say differently (`GetWarningsForPersistentVolume` and
//! `GetWarningsForPersistentVolumeClaim`, v1.36).

use api::beta_annotations::{MOUNT_OPTIONS, STORAGE_CLASS};
use api::field::Path;
use api::meta::Meta as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec};

use super::pod_spec::{fractions, term_warnings};

const CLASS_IS_A_FIELD: &str = r#"deprecated since v1.8; use "storageClassName" attribute instead"#;
const OPTIONS_ARE_A_FIELD: &str = r#"deprecated since v1.31; use "mountOptions" attribute instead"#;
const RECYCLE: &str =
    "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";

pub(super) fn of_volume(volume: &PersistentVolume) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, message) in [(STORAGE_CLASS, CLASS_IS_A_FIELD), (MOUNT_OPTIONS, OPTIONS_ARE_A_FIELD)] {
        if volume.metadata.annotation(key).is_some() {
            warnings.push(format!("metadata.annotations[{key}]: {message}"));
        }
    }
    let Some(spec) = &volume.spec else { return warnings };
    if spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
        warnings.push(format!("spec.persistentVolumeReclaimPolicy: {RECYCLE}"));
    }
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    for (i, term) in required.iter().flat_map(|required| &required.node_selector_terms).enumerate() {
        term_warnings(&mut warnings, &Path::new("spec.nodeAffinity.required.nodeSelectorTerms").index(i), term);
    }
    for (is_given, name, since) in [
        (spec.cephfs.is_some(), "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
        (
            spec.photon_persistent_disk.is_some(),
            "photonPersistentDisk",
            "deprecated in v1.11, non-functional in v1.16+",
        ),
        (spec.scale_io.is_some(), "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        (spec.storageos.is_some(), "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
        (spec.glusterfs.is_some(), "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        (spec.rbd.is_some(), "rbd", "deprecated in v1.28, non-functional in v1.31+"),
    ] {
        warnings.extend(is_given.then(|| format!("spec.{name}: {since}")));
    }
    warnings
}

pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let mut warnings = Vec::new();
    if claim.metadata.annotation(STORAGE_CLASS).is_some() {
        warnings.push(format!("metadata.annotations[{STORAGE_CLASS}]: {CLASS_IS_A_FIELD}"));
    }
    warnings.extend(claim.spec.iter().flat_map(|spec| of_claim_spec(&Path::new("spec"), spec)));
    warnings
}

/// Also of claims that are made from a template.
pub(crate) fn of_claim_spec(path: &Path<'_>, spec: &PersistentVolumeClaimSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(resources) = &spec.resources {
        fractions(&mut warnings, &path.child("resources.requests"), resources.requests.as_ref(), &["storage"]);
        fractions(&mut warnings, &path.child("resources.limits"), resources.limits.as_ref(), &["storage"]);
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_should_be_said_differently_is_named() {
        let volume = |metadata: Value, spec: Value| {
            of_volume(&serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
        };
        let term = json!({"matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]});
        for (metadata, spec, expected) in [
            (json!({"annotations": {"a": "b"}}), json!({"hostPath": {"path": "/a"}}), vec![]),
            (
                json!({"annotations": {STORAGE_CLASS: "", MOUNT_OPTIONS: "ro"}}),
                json!({"persistentVolumeReclaimPolicy": "Recycle", "cephfs": {"monitors": []}}),
                vec![
                    r#"metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" attribute instead"#,
                    r#"metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use "mountOptions" attribute instead"#,
                    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                    "spec.cephfs: deprecated in v1.28, non-functional in v1.31+",
                ],
            ),
            (
                json!({}),
                json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}),
                vec![
                    r#"spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use "kubernetes.io/os" instead"#,
                ],
            ),
        ] {
            assert_eq!(volume(metadata, spec.clone()), expected, "{spec}");
        }
        let claim = |size: &str| {
            let resources = json!({"requests": {"storage": size}, "limits": {"storage": "1Gi"}});
            let metadata = json!({"annotations": {STORAGE_CLASS: "old"}});
            let claim = json!({"metadata": metadata, "spec": {"resources": resources}});
            of_claim(&serde_json::from_value(claim).unwrap())
        };
        let class = r#"metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use "storageClassName" attribute instead"#;
        let size = r#"spec.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an integer"#;
        assert_eq!((claim("1Gi"), claim("1500m")), (vec![class.to_owned()], vec![class.to_owned(), size.to_owned()]));
        for whole in ["10Pi", "1Ei", "9223372036854775807", "999999999n"] {
            assert_eq!(claim(whole), [class], "{whole}");
        }
    }
}
