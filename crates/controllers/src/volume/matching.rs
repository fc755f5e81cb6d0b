//! Which volume fits a claim.

use std::sync::Arc;

pub(super) use api::beta_annotations::{claim_class, volume_class};
pub(super) use api::claim::is_for;
use api::default_class::{STORAGE, is_marked, order};
use api::quantity::Quantity;
use api::selector::Selector;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

/// The class of claims that name none.
pub(super) fn default_class(classes: &[Arc<StorageClass>]) -> Option<Arc<StorageClass>> {
    let marked = classes.iter().filter(|class| is_marked(&class.metadata, &STORAGE));
    marked.min_by(|left, right| order(&left.metadata, &right.metadata)).cloned()
}

pub(super) fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let requests =
        claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()).and_then(|resources| resources.requests.as_ref());
    requests
        .and_then(|requests| requests.get("storage"))
        .and_then(|quantity| Quantity::try_from(quantity).ok())
        .unwrap_or_default()
}

pub(super) fn capacity(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity
        .and_then(|capacity| capacity.get("storage"))
        .and_then(|quantity| Quantity::try_from(quantity).ok())
        .unwrap_or_default()
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
    let (Some(offered), Some(wanted)) = (&volume.spec, &claim.spec) else { return Some("requested PV is too small") };
    if capacity(volume) < requested(claim) {
        Some("requested PV is too small")
    } else if offered.volume_attributes_class_name.as_deref().unwrap_or_default()
        != wanted.volume_attributes_class_name.as_deref().unwrap_or_default()
    {
        Some("volumeAttributesClassName does not match")
    } else if is_of_other_mode(volume, claim) {
        Some("incompatible volumeMode")
    } else {
        None
    }
}

/// Whether one is a device and the other a file system (`CheckVolumeModeMismatches`, v1.36).
pub(super) fn is_of_other_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let is_block = |mode: Option<&String>| mode.is_some_and(|mode| mode == "Block");
    let offered = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    is_block(offered) != is_block(wanted)
}

fn offers_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let wanted = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    wanted.iter().all(|mode| offered.contains(mode))
}

/// The volume reserved for the claim, else the smallest that is large enough and alike.
pub(super) fn best(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> Option<Arc<PersistentVolume>> {
    let spec = claim.spec.as_ref()?;
    let is_usable = |volume: &PersistentVolume| {
        volume.metadata.deletion_timestamp.is_none() && too_different(volume, claim).is_none()
    };
    if let Some(reserved) = volumes.iter().find(|volume| is_for(volume, claim) && is_usable(volume)) {
        return Some(reserved.clone());
    }
    let selector = spec.selector.as_ref().map(|selector| Selector::from_label_selector(Some(selector)));
    let selector = match selector {
        Some(Ok(selector)) => Some(selector),
        Some(Err(_)) => return None,
        None => None,
    };
    let fits = |volume: &&Arc<PersistentVolume>| {
        volume.spec.as_ref().is_some_and(|offered| offered.claim_ref.is_none())
            && matches!(volume.status.as_ref().and_then(|status| status.phase.as_deref()), None | Some("Available"))
            && volume_class(volume) == claim_class(claim).unwrap_or_default()
            && offers_modes(volume, claim)
            && selector.as_ref().is_none_or(|selector| selector.matches(volume.metadata.labels.as_ref()))
            && is_usable(volume)
    };
    volumes
        .iter()
        .filter(fits)
        .min_by(|left, right| capacity(left).cmp(&capacity(right)).then(left.metadata.name.cmp(&right.metadata.name)))
        .cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str, size: &str, class: &str, claim: Option<&str>) -> Arc<PersistentVolume> {
        let claim = claim.map(|name| json!({ "name": name, "namespace": "default" }));
        Arc::new(serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "disk": name } },
            "spec": { "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce"], "storageClassName": class, "claimRef": claim },
        })).unwrap())
    }

    #[test]
    fn the_smallest_that_fits() {
        let volumes = [
            volume("big", "10Gi", "", None),
            volume("small", "1Gi", "", None),
            volume("fast", "2Gi", "ssd", None),
            volume("kept", "1Gi", "", Some("mine")),
        ];
        for (name, size, class, mode, selector, expected) in [
            ("a", "500Mi", "", "ReadWriteOnce", json!(null), Some("small")),
            ("a", "2Gi", "", "ReadWriteOnce", json!(null), Some("big")),
            ("a", "2Gi", "ssd", "ReadWriteOnce", json!(null), Some("fast")),
            ("a", "1Gi", "", "ReadWriteMany", json!(null), None),
            ("a", "1Gi", "", "ReadWriteOnce", json!({ "matchLabels": { "disk": "big" } }), Some("big")),
            ("a", "20Gi", "", "ReadWriteOnce", json!(null), None),
            ("mine", "1Gi", "", "ReadWriteOnce", json!(null), Some("kept")),
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
