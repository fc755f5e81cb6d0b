//! PersistentVolumeClaims: which one a pod's volume uses, which volume fits, whose a volume is, and what their status says of an
//! expansion.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Volume};

use crate::beta_annotations::{claim_class, volume_class};
use crate::placement::is_reachable;
use crate::quantity::Quantity;
use crate::selector::Selector;

/// The name of the claim that a volume of this pod uses, and whether the claim is made for the pod (a generic ephemeral volume).
pub fn of_volume(pod: &str, volume: &Volume) -> Option<(String, bool)> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some((source.claim_name.clone(), false)),
        (None, Some(_)) => Some((made_for(pod, &volume.name), true)),
        (None, None) => None,
    }
}

/// The name of the claim that is made for a volume of a pod (`ephemeral.VolumeClaimName`, v1.36).
pub fn made_for(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

/// Whether a volume is a claim's: it names it, with the same uid or none yet (`IsVolumeBoundToClaim`, v1.36).
pub fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| {
        reference.name == claim.metadata.name
            && reference.namespace == claim.metadata.namespace
            && reference.uid.as_deref().is_none_or(|uid| uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
    })
}

/// How much a claim requests.
pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let storage = resources.and_then(|resources| resources.requests.as_ref()?.get("storage"));
    storage.and_then(|quantity| Quantity::try_from(quantity).ok()).unwrap_or_default()
}

/// How large a volume is.
pub fn capacity(volume: &PersistentVolume) -> Quantity {
    let storage = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    storage.and_then(|quantity| Quantity::try_from(quantity).ok()).unwrap_or_default()
}

/// Whether one is a device and the other a file system (`CheckVolumeModeMismatches`, v1.36).
pub fn is_of_other_mode(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let is_block = |mode: Option<&String>| mode.is_some_and(|mode| mode == "Block");
    let offered = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref());
    is_block(offered) != is_block(wanted)
}

/// Whether the claim names one VolumeAttributesClass and the volume another.
pub fn is_of_other_attributes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    offered.unwrap_or_default() != wanted.unwrap_or_default()
}

/// Whether the volume can be mounted in all ways that the claim wants (`CheckAccessModes`, v1.36).
pub fn offers_modes(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let offered = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let wanted = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    wanted.iter().all(|mode| offered.contains(mode))
}

/// Of these volumes the one that was made for the claim or reserved for it, else the first of the smallest that fit. With a node:
/// that it can reach, and nothing if it cannot reach the one made for the claim (`FindMatchingVolume`, v1.36).
pub fn matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
    node: Option<&Node>,
) -> Option<&'a Arc<PersistentVolume>> {
    let selector = claim.spec.as_ref()?.selector.as_ref();
    let selector = selector.map(|selector| Selector::from_label_selector(Some(selector))).transpose().ok()?;
    let (size, class) = (requested(claim), claim_class(claim).unwrap_or_default());
    let mut best: Option<(Quantity, &Arc<PersistentVolume>)> = None;
    for volume in volumes {
        let Some(spec) = &volume.spec else { continue };
        let (is_reserved, capacity) = (is_for(volume, claim), capacity(volume));
        if spec.claim_ref.is_some() && !is_reserved
            || capacity < size
            || is_of_other_mode(volume, claim)
            || is_of_other_attributes(volume, claim)
            || volume.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        let can_reach = || node.is_none_or(|node| is_reachable(volume, node.metadata.labels.as_ref()));
        if is_reserved {
            return can_reach().then_some(volume);
        }
        let labels = volume.metadata.labels.as_ref();
        if volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available")
            && selector.as_ref().is_none_or(|selector| selector.matches(labels))
            && volume_class(volume) == class
            && offers_modes(volume, claim)
            && best.as_ref().is_none_or(|(smallest, _)| capacity < *smallest)
            && can_reach()
        {
            best = Some((capacity, volume));
        }
    }
    best.map(|(_, volume)| volume)
}

/// Whether a condition is about an expansion, and goes when that is over (`knownResizeConditions`, v1.36).
pub fn is_resize_condition(kind: &str) -> bool {
    matches!(kind, "FileSystemResizePending" | "Resizing" | "ControllerResizeError" | "NodeResizeError")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The rest is tested where it is asked: by the controller that binds claims, and by the scheduler.
    #[test]
    fn nodes_and_deletions_rule_volumes_out() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": { "namespace": "n", "name": "c", "uid": "u" },
            "spec": { "resources": { "requests": { "storage": "1Gi" } }, "volumeAttributesClassName": "gold" },
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({ "metadata": { "labels": { "zone": "a" } } })).unwrap();
        let volume = |name: &str, size: &str, zone: &str, extra: Value| -> Arc<PersistentVolume> {
            let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] });
            let mut volume = json!({
                "metadata": { "name": name },
                "spec": {
                    "capacity": { "storage": size },
                    "volumeAttributesClassName": "gold",
                    "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
                },
                "status": { "phase": "Available" },
            });
            for (at, value) in extra.as_object().into_iter().flatten() {
                *volume.pointer_mut(at).unwrap() = value.clone();
            }
            Arc::new(serde_json::from_value(volume).unwrap())
        };
        let mut volumes = vec![
            volume("far", "1Gi", "b", json!({})),
            volume("small", "1Mi", "a", json!({})),
            volume("other", "1Gi", "a", json!({ "/spec/volumeAttributesClassName": "silver" })),
            volume("new", "1Gi", "a", json!({ "/status/phase": "Pending" })),
            volume("going", "1Gi", "a", json!({ "/metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })),
            volume("large", "3Gi", "a", json!({})),
            volume("near", "2Gi", "a", json!({})),
            volume("as-near", "2Gi", "a", json!({})),
        ];
        let name = |found: Option<&Arc<PersistentVolume>>| found.and_then(|volume| volume.metadata.name.clone());
        assert_eq!(name(matching_volume(&claim, &volumes, Some(&node))).as_deref(), Some("near"));
        assert_eq!(name(matching_volume(&claim, &volumes, None)).as_deref(), Some("far"));
        let mut reserved = PersistentVolume::clone(&volume("mine", "5Gi", "b", json!({})));
        let reference = serde_json::from_value(json!({ "namespace": "n", "name": "c" })).unwrap();
        reserved.spec.as_mut().unwrap().claim_ref = Some(reference);
        volumes.push(Arc::new(reserved));
        assert_eq!(name(matching_volume(&claim, &volumes, None)).as_deref(), Some("mine"));
        assert_eq!(name(matching_volume(&claim, &volumes, Some(&node))), None, "it is not for this node");
    }

    #[test]
    fn a_volume_is_for_the_claim_that_it_names() {
        let claim = json!({ "metadata": { "namespace": "n", "name": "c", "uid": "u" } });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        for (reference, expected) in [
            (json!(null), false),
            (json!({ "namespace": "n", "name": "c" }), true),
            (json!({ "namespace": "n", "name": "c", "uid": "" }), true),
            (json!({ "namespace": "n", "name": "c", "uid": "u" }), true),
            (json!({ "namespace": "n", "name": "c", "uid": "before" }), false),
            (json!({ "namespace": "m", "name": "c" }), false),
            (json!({ "namespace": "n", "name": "d" }), false),
        ] {
            let volume = json!({ "spec": { "claimRef": reference } });
            assert_eq!(is_for(&serde_json::from_value(volume).unwrap(), &claim), expected, "{reference}");
        }
    }

    #[test]
    fn claims_are_named_or_made_for_the_pod() {
        for (source, expected) in [
            (json!({ "persistentVolumeClaim": { "claimName": "data" } }), Some(("data".to_owned(), false))),
            (json!({ "ephemeral": {} }), Some(("web-0-v".to_owned(), true))),
            (json!({ "emptyDir": {} }), None),
        ] {
            let mut volume = json!({ "name": "v" });
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            assert_eq!(of_volume("web-0", &serde_json::from_value(volume).unwrap()), expected, "{source}");
        }
    }
}
