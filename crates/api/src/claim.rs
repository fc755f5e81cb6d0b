//! PersistentVolumeClaims: which one a pod's volume uses, and what their status says of an expansion.

use k8s_openapi::api::core::v1::Volume;

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

/// Whether a condition is about an expansion, and goes when that is over (`knownResizeConditions`, v1.36).
pub fn is_resize_condition(kind: &str) -> bool {
    matches!(kind, "FileSystemResizePending" | "Resizing" | "ControllerResizeError" | "NodeResizeError")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
