//! Subresources of a pod that change one part of its specification: `ephemeralcontainers` and `resize`.

use api::field::FieldErrors;
use k8s_openapi::api::core::v1::Pod;

use super::pod_update;
use crate::Action;

pub(super) fn with_part(action: Action, new: &Pod, old: &Pod) -> Option<Pod> {
    if !matches!(action, Action::EphemeralContainers | Action::Resize) {
        return None;
    }
    let mut kept = old.clone();
    if let (Some(kept), Some(new)) = (&mut kept.spec, &new.spec) {
        if action == Action::EphemeralContainers {
            kept.ephemeral_containers.clone_from(&new.ephemeral_containers);
        } else {
            kept.resources.clone_from(&new.resources);
            let sidecars = kept.init_containers.iter_mut().flatten().zip(new.init_containers.iter().flatten());
            let pairs = kept.containers.iter_mut().zip(&new.containers).chain(sidecars);
            for (kept, new) in pairs.filter(|(kept, new)| kept.name == new.name) {
                kept.resources.clone_from(&new.resources);
                kept.resize_policy.clone_from(&new.resize_policy);
            }
        }
    }
    kept.metadata.resource_version.clone_from(&new.metadata.resource_version);
    Some(kept)
}

/// Counts a change of the specification.
pub(super) fn count(action: Action, new: &mut Pod, old: &Pod) {
    if matches!(action, Action::EphemeralContainers | Action::Resize) && new.spec != old.spec {
        new.metadata.generation = Some(old.metadata.generation.unwrap_or(0) + 1);
    }
}

/// Checks the whole pod that a part makes, as any other write does.
pub(super) fn validate(action: Action, new: &Pod, old: &Pod) -> FieldErrors {
    match action {
        Action::EphemeralContainers => pod_update::ephemeral_containers_update(new, old),
        Action::Resize => pod_update::resize_update(new, old),
        _ => FieldErrors::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_part_changes_nothing_else_and_is_counted() {
        let old = pod(json!({"metadata": {"name": "p", "labels": {"a": "b"}, "generation": 3},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}));
        let new = pod(json!({"metadata": {"name": "p", "resourceVersion": "7"},
            "spec": {"nodeName": "other", "containers": [{"name": "c", "image": "evil",
                "resources": {"requests": {"cpu": "1"}}}], "ephemeralContainers": [{"name": "e", "image": "i"}]}}));
        for (action, cpu, ephemeral) in [(Action::Resize, true, false), (Action::EphemeralContainers, false, true)] {
            let mut made = with_part(action, &new, &old).unwrap();
            let spec = made.spec.clone().unwrap();
            assert_eq!((spec.node_name.as_deref(), spec.containers[0].image.as_deref()), (Some("n"), Some("i")));
            assert_eq!((spec.containers[0].resources.is_some(), spec.ephemeral_containers.is_some()), (cpu, ephemeral));
            assert_eq!(
                (&made.metadata.labels, made.metadata.resource_version.as_deref()),
                (&old.metadata.labels, Some("7"))
            );
            count(action, &mut made, &old);
            assert_eq!(made.metadata.generation, Some(4));
        }
        assert!(with_part(Action::Log, &new, &old).is_none());
    }
}
