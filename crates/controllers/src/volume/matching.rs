//! Which volume fits a claim.

use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) use api::beta_annotations::{claim_class, volume_class};
pub(super) use api::claim::{capacity, is_for, is_of_other_mode, requested};
use api::claim::{is_of_other_attributes, matching_volume, offers_modes};
use api::default_class::{STORAGE, is_marked, order};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

/// The class of claims that name none.
pub(super) fn default_class(classes: &[Arc<StorageClass>]) -> Option<Arc<StorageClass>> {
    let marked = classes.iter().filter(|class| is_marked(&class.metadata, &STORAGE));
    marked.min_by(|left, right| order(&left.metadata, &right.metadata)).cloned()
}

/// Why the claim cannot have the volume that it names, or that names it (`checkVolumeSatisfyClaim`, v1.36).
pub(super) fn unsuitable(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if let Some(why) = too_different(volume, claim) {
        return Some(why);
    }
    if volume_class(volume) != claim_class(claim).unwrap_or_default() {
        return Some("storageClassName does not match");
    }
    (!offers_modes(volume, claim)).then_some("incompatible accessMode")
}

/// What speaks against a volume even if it was made for the claim.
fn too_different(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if volume.spec.is_none() || claim.spec.is_none() || capacity(volume) < requested(claim) {
        Some("requested PV is too small")
    } else if is_of_other_attributes(volume, claim) {
        Some("volumeAttributesClassName does not match")
    } else if is_of_other_mode(volume, claim) {
        Some("incompatible volumeMode")
    } else {
        None
    }
}

/// The volume reserved for the claim, else the smallest that is large enough and alike. Volumes with the fewest access modes are
/// asked first, so that a claim for one node does not take the volume that many could share (`findByClaim`, v1.36).
pub(super) fn best(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> Option<Arc<PersistentVolume>> {
    // Nearly all volumes are of other claims: they are not worth a rank.
    let is_asked = |volume: &&Arc<PersistentVolume>| {
        let is_free = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none());
        offers_modes(volume, claim) && (is_free || is_for(volume, claim))
    };
    let alike: Vec<_> = volumes.iter().filter(is_asked).collect();
    let ranks: BTreeSet<_> = alike.iter().map(|volume| rank(volume, claim)).collect();
    let of_rank = |of: &Rank<'_>| {
        let volumes = alike.iter().copied().filter(|volume| rank(volume, claim) == *of);
        matching_volume(claim, volumes, None)
    };
    ranks.iter().find_map(of_rank).cloned()
}

/// Whether others come first, and the access modes, fewer of them first.
type Rank<'a> = (bool, usize, BTreeSet<&'a str>);

fn rank<'a>(volume: &'a PersistentVolume, claim: &PersistentVolumeClaim) -> Rank<'a> {
    let modes = volume.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    let modes: BTreeSet<&str> = modes.map(String::as_str).collect();
    (!is_for(volume, claim), modes.len(), modes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str, size: &str, class: &str, modes: &[&str], claim: Option<&str>) -> Arc<PersistentVolume> {
        let claim = claim.map(|name| json!({ "name": name, "namespace": "default" }));
        Arc::new(serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "disk": name } },
            "spec": { "capacity": { "storage": size }, "accessModes": modes, "storageClassName": class, "claimRef": claim },
            "status": { "phase": "Available" },
        })).unwrap())
    }

    #[test]
    fn the_smallest_that_fits() {
        const ONE: &[&str] = &["ReadWriteOnce"];
        const MANY: &[&str] = &["ReadWriteOnce", "ReadWriteMany"];
        let volumes = [
            volume("big", "10Gi", "", ONE, None),
            volume("small", "1Gi", "", ONE, None),
            volume("fast", "2Gi", "ssd", ONE, None),
            volume("kept", "1Gi", "", ONE, Some("mine")),
            volume("shared", "3Gi", "", MANY, None),
            volume("for-us", "1Gi", "", ONE, Some("ours")),
            volume("for-you", "5Gi", "", MANY, Some("yours")),
        ];
        for (name, size, class, mode, selector, expected) in [
            ("a", "500Mi", "", "ReadWriteOnce", json!(null), Some("small")),
            // Larger than the one that many could share.
            ("a", "2Gi", "", "ReadWriteOnce", json!(null), Some("big")),
            ("a", "1Gi", "", "ReadWriteOnce", json!({ "matchLabels": { "disk": "shared" } }), Some("shared")),
            ("a", "2Gi", "ssd", "ReadWriteOnce", json!(null), Some("fast")),
            ("a", "1Gi", "", "ReadWriteMany", json!(null), Some("shared")),
            ("a", "1Gi", "", "ReadOnlyMany", json!(null), None),
            ("a", "1Gi", "", "ReadWriteOnce", json!({ "matchLabels": { "disk": "big" } }), Some("big")),
            ("a", "20Gi", "", "ReadWriteOnce", json!(null), None),
            ("mine", "1Gi", "", "ReadWriteOnce", json!(null), Some("kept")),
            ("yours", "1Gi", "", "ReadWriteOnce", json!(null), Some("for-you")),
            // What is reserved for it cannot be shared.
            ("ours", "1Gi", "", "ReadWriteMany", json!(null), Some("shared")),
        ] {
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": "default", "uid": "u" },
                "spec": { "resources": { "requests": { "storage": size } }, "storageClassName": class, "accessModes": [mode], "selector": selector },
            }))
            .unwrap();
            let found = best(&claim, &volumes).map(|volume| volume.metadata.name.clone().unwrap());
            assert_eq!(found.as_deref(), expected, "{name} {size} {class} {mode}");
        }
    }

    #[test]
    fn the_newest_default_class_counts() {
        let class = |name: &str, created: &str, key: &str, value: &str| -> Arc<StorageClass> {
            Arc::new(
                serde_json::from_value(json!({"provisioner": "p", "metadata": {
                    "name": name, "creationTimestamp": created, "annotations": {key: value}}}))
                .unwrap(),
            )
        };
        let [ga, beta] = STORAGE;
        let (early, late) = ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z");
        for (classes, expected) in [
            (vec![], None),
            (vec![class("a", late, ga, "false")], None),
            (
                vec![class("a", early, ga, "true"), class("b", late, beta, "true"), class("c", late, ga, "no")],
                Some("b"),
            ),
            (vec![class("d", late, ga, "true"), class("c", late, ga, "true")], Some("c")),
        ] {
            let found = default_class(&classes);
            assert_eq!(found.and_then(|class| class.metadata.name.clone()).as_deref(), expected);
        }
    }
}
