//! PersistentVolumeClaims: which one a pod's volume uses, whose a volume is, and what their status says of an expansion.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Volume};

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

/// Whether a condition is about an expansion, and goes when that is over (`knownResizeConditions`, v1.36).
pub fn is_resize_condition(kind: &str) -> bool {
    matches!(kind, "FileSystemResizePending" | "Resizing" | "ControllerResizeError" | "NodeResizeError")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
