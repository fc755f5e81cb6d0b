//! Validation of a pod template.

use api::field::{FieldErrors, Path};
use k8s_openapi::api::core::v1::PodTemplateSpec;

use crate::metadata;
use crate::unset::items;

/// Without what was wrong already when the object was stored: rules become stricter, and nobody is to be kept
/// from scaling it or from taking a finalizer off.
pub(crate) fn forgive(found: FieldErrors, old: impl FnOnce() -> FieldErrors) -> FieldErrors {
    if found.is_empty() {
        return found;
    }
    let known = old();
    let mut errors = FieldErrors::default();
    errors.extend(found.iter().filter(|error| !known.iter().any(|known| known == *error)).cloned());
    errors
}

pub fn validate(errors: &mut FieldErrors, path: &Path<'_>, template: &PodTemplateSpec) {
    let meta = template.metadata.clone().unwrap_or_default();
    metadata::labels(errors, &path.child("labels"), meta.labels.as_ref());
    metadata::annotations(errors, &path.child("annotations"), meta.annotations.as_ref());
    let spec = template.spec.clone().unwrap_or_default();
    super::validation::spec(errors, &path.child("spec"), &spec, None);
    if !items(&spec.ephemeral_containers).is_empty() {
        errors.forbidden(path.child("spec.ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}
