//! Subresources that write one part of their parent by rules of their own.

use api::Status;
use api::field::FieldErrors;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec};
use registry::certificates::rules;
use registry::core::pod_validation;
use registry::{Action, AnyObject, Object};

/// Builds the object to store: `old` with only the part that `action` may change taken from `new`.
pub(crate) fn prepare(action: Action, new: &mut AnyObject, old: &dyn Object) -> Result<(), Status> {
    match action {
        Action::Finalize => keep_but::<Namespace>(new, old, |kept, new| {
            kept.metadata = new.metadata.clone();
            if let Some(spec) = &new.spec {
                kept.spec.get_or_insert_default().finalizers.clone_from(&spec.finalizers);
            } else {
                kept.spec = None;
            }
        }),
        Action::EphemeralContainers => change_spec(new, old, |kept, new| {
            kept.ephemeral_containers.clone_from(&new.ephemeral_containers);
        }),
        Action::Resize => change_spec(new, old, |kept, new| {
            kept.resources.clone_from(&new.resources);
            let sidecars = kept.init_containers.iter_mut().flatten().zip(new.init_containers.iter().flatten());
            let pairs = kept.containers.iter_mut().zip(&new.containers).chain(sidecars);
            for (kept, new) in pairs.filter(|(kept, new)| kept.name == new.name) {
                kept.resources.clone_from(&new.resources);
                kept.resize_policy.clone_from(&new.resize_policy);
            }
        }),
        Action::Approval => keep_but::<CertificateSigningRequest>(new, old, |kept, new| {
            kept.metadata = new.metadata.clone();
            let conditions = new.status.as_ref().and_then(|status| status.conditions.clone());
            kept.status.get_or_insert_default().conditions = conditions;
            if let Some(old) = old.downcast_ref::<CertificateSigningRequest>() {
                rules::stamp(kept, old, crate::stamp::now());
            }
        }),
        // The binding built the new pod from the old one itself.
        Action::Binding => Ok(()),
        _ => Err(Status::method_not_allowed()),
    }
}

/// Counts a change of a pod's specification, once nothing changes it any more.
pub(crate) fn count(action: Action, new: &mut dyn Object, old: &dyn Object) {
    if matches!(action, Action::EphemeralContainers | Action::Resize)
        && let (Some(new), Some(old)) = (new.downcast_mut::<Pod>(), old.downcast_ref::<Pod>())
        && new.spec != old.spec
    {
        new.metadata.generation = Some(old.metadata.generation.unwrap_or(0) + 1);
    }
}

/// A pod of which only the specification changes.
fn change_spec(new: &mut AnyObject, old: &dyn Object, take: impl FnOnce(&mut PodSpec, &PodSpec)) -> Result<(), Status> {
    keep_but::<Pod>(new, old, |kept, new| {
        if let (Some(kept), Some(new)) = (&mut kept.spec, &new.spec) {
            take(kept, new);
        }
        kept.metadata.resource_version.clone_from(&new.metadata.resource_version);
    })
}

fn keep_but<K: registry::Typed>(
    new: &mut AnyObject,
    old: &dyn Object,
    take: impl FnOnce(&mut K, &K),
) -> Result<(), Status> {
    let (Some(typed), Some(old)) = (new.downcast_ref::<K>(), old.downcast_ref::<K>()) else {
        return Err(Status::method_not_allowed());
    };
    let mut kept = old.clone();
    take(&mut kept, typed);
    *new = Box::new(kept);
    Ok(())
}

/// Checks the whole object that a part makes, as any other write does.
pub(crate) fn validate(action: Action, new: &dyn Object, old: &dyn Object) -> FieldErrors {
    if let (Action::Approval, Some(new), Some(old)) =
        (action, new.downcast_ref::<CertificateSigningRequest>(), old.downcast_ref::<CertificateSigningRequest>())
    {
        return rules::approval_update(new, old);
    }
    match (action, new.downcast_ref::<Pod>(), old.downcast_ref::<Pod>()) {
        (Action::EphemeralContainers, Some(new), Some(old)) => pod_validation::ephemeral_containers_update(new, old),
        (Action::Resize, Some(new), Some(old)) => pod_validation::resize_update(new, old),
        _ => FieldErrors::default(),
    }
}
