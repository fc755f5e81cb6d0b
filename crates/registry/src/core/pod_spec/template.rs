//! Validation of a pod template.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use k8s_openapi::api::core::v1::PodTemplateSpec;

use crate::metadata;
use crate::unset::items;

/// Without what was wrong already when the object was stored: rules become stricter, and nobody is to be kept
/// from scaling it or from taking a finalizer off.
pub(crate) fn forgive(found: FieldErrors, old: impl FnOnce() -> FieldErrors) -> FieldErrors {
    // What is only counted is not known to have been there.
    if found.is_empty() || found.len() > found.iter().len() {
        return found;
    }
    let known = old();
    let known: BTreeSet<String> = known.iter().map(ToString::to_string).compact_collect();
    let mut errors = FieldErrors::default();
    errors.extend(found.into_iter().filter(|error| !known.contains(&error.to_string())));
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
