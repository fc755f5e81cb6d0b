//! PersistentVolumeClaim: a pod's wish for storage.

use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use serde_json::{Value, json};

use super::persistent_volume::{access_modes, validate_access_modes};
use super::pod_spec::defaults;
use super::volume_warnings;
use crate::column::Column;
use crate::metadata::{label_selector, same};
use crate::unset::{items, or_empty, set_text, text};
use crate::{Call, Strategy, cells};

pub struct PersistentVolumeClaimStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Status", "Whether the claim has a volume."),
    Column::string("Volume", "The volume it has."),
    Column::string("Capacity", "How much the volume holds."),
    Column::string("Access Modes", "How the volume can be mounted."),
    Column::string("StorageClass", "The kind of storage."),
    Column::string("VolumeAttributesClass", "The attributes of the storage."),
    Column::AGE,
    Column::string("VolumeMode", "A file system or a device.").wide(),
];

impl Strategy for PersistentVolumeClaimStrategy {
    type Object = PersistentVolumeClaim;

    fn apply_defaults(&self, claim: &mut PersistentVolumeClaim) {
        let status = claim.status.get_or_insert_default();
        set_text(&mut status.phase, "Pending");
        if let Some(spec) = &mut claim.spec {
            defaults::claim(spec);
        }
    }

    fn prepare_for_create(&self, _: &Call<'_>, claim: &mut PersistentVolumeClaim) {
        let status = claim.status.get_or_insert_default();
        set_text(&mut status.phase, "Pending");
        if let Some(spec) = &mut claim.spec {
            prepare_sources(spec, false);
        }
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut PersistentVolumeClaim, old: &PersistentVolumeClaim) {
        let had_source = old.spec.as_ref().is_some_and(|spec| spec.data_source.is_some());
        if let Some(spec) = &mut new.spec {
            prepare_sources(spec, had_source);
        }
    }

    fn validate_create(&self, claim: &PersistentVolumeClaim) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate_spec(&mut errors, &Path::new("spec"), &claim.spec.clone().unwrap_or_default());
        errors
    }

    fn validate_update(&self, new: &PersistentVolumeClaim, old: &PersistentVolumeClaim) -> FieldErrors {
        let mut errors = self.validate_create(new);
        let (Some(spec), Some(before)) = (&new.spec, &old.spec) else { return errors };
        let mut munged = spec.clone();
        // An old claim may have been written before its two sources were kept alike.
        let mut before = before.clone();
        copy_sources(&mut before);
        let before = &before;
        if text(&before.volume_name).is_none() {
            // The binder, and only it, sets these.
            munged.volume_name.clone_from(&before.volume_name);
        }
        if before.storage_class_name.is_none() {
            munged.storage_class_name = None;
        }
        let bound = old.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        if bound {
            // The size, and nothing else that is asked for.
            let size =
                before.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage").cloned());
            if let Some(requests) = munged.resources.as_mut().and_then(|resources| resources.requests.as_mut()) {
                requests.remove("storage");
                requests.extend(size.map(|size| ("storage".to_owned(), size)));
            }
            munged.volume_attributes_class_name.clone_from(&before.volume_attributes_class_name);
        }
        if !same(&munged, before) {
            errors.forbidden(
                "spec",
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            );
        }
        let has_class = old.status.as_ref().is_some_and(|status| status.current_volume_attributes_class_name.is_some());
        if has_class && text(&spec.volume_attributes_class_name).is_none() {
            let to = if spec.volume_attributes_class_name.is_none() { "nil" } else { "empty string" };
            if spec.volume_attributes_class_name != before.volume_attributes_class_name {
                let detail =
                    format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
                errors.forbidden("spec.volumeAttributesClassName", detail);
            }
        }
        if let (Some(new_size), Some(old_size)) = (storage(spec), storage(before))
            && new_size < old_size
        {
            let held = old.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
            let held = held.and_then(|held| Quantity::try_from(held).ok()).unwrap_or_default();
            if new_size <= held {
                errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
            }
        }
        errors
    }

    fn validate_status_update(&self, new: &PersistentVolumeClaim, _: &PersistentVolumeClaim) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let Some(status) = &new.status else { return errors };
        let path = Path::new("status");
        validate_sizes(&mut errors, &path.child("capacity"), status.capacity.as_ref());
        let place = path.child("allocatedResourceStatuses");
        for (resource, resize_status) in status.allocated_resource_statuses.iter().flatten() {
            validate_resource(&mut errors, &place, resource);
            if !RESIZE_STATUSES.contains(&resize_status.as_str()) {
                errors.not_supported(place, resource, RESIZE_STATUSES);
            }
        }
        let place = path.child("allocatedResources");
        for resource in status.allocated_resources.iter().flat_map(|sizes| sizes.keys()) {
            validate_resource(&mut errors, &place, resource);
        }
        validate_sizes(&mut errors, &place, status.allocated_resources.as_ref());
        errors
    }

    fn warnings(&self, claim: &PersistentVolumeClaim, _: Option<&PersistentVolumeClaim>) -> Vec<String> {
        volume_warnings::of_claim(claim)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, claim: &PersistentVolumeClaim, now: Timestamp) -> Vec<Value> {
        let spec = claim.spec.clone().unwrap_or_default();
        let status = claim.status.clone().unwrap_or_default();
        let phase = if claim.metadata.deletion_timestamp.is_some() { "Terminating" } else { or_empty(&status.phase) };
        let volume = or_empty(&spec.volume_name);
        let (capacity, modes) = if volume.is_empty() {
            (String::new(), String::new())
        } else {
            let capacity = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
            (capacity.map_or("0".to_owned(), |size| size.0.clone()), access_modes(items(&status.access_modes)))
        };
        vec![
            cells::name(&claim.metadata),
            json!(phase),
            json!(volume),
            json!(capacity),
            json!(modes),
            json!(api::beta_annotations::claim_class(claim).unwrap_or_default()),
            json!(text(&spec.volume_attributes_class_name).unwrap_or("<unset>")),
            cells::age(&claim.metadata, now),
            json!(text(&spec.volume_mode).unwrap_or("<unset>")),
        ]
    }
}

/// How far the expansion of a volume may be, in the order of upstream's message.
const RESIZE_STATUSES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Of Kubernetes' own resources a volume has only one.
fn validate_resource(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    let mistakes = validation::qualified_name(name);
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    if mistakes.is_empty() && is_native && name != "storage" {
        errors.not_supported(*path, name, &["storage"]);
    }
    errors.invalid_each(*path, name, mistakes);
}

fn validate_sizes(errors: &mut FieldErrors, path: &Path<'_>, sizes: Option<&BTreeMap<String, RawQuantity>>) {
    for (resource, size) in sizes.into_iter().flatten() {
        if let Ok(size) = Quantity::try_from(size)
            && size < Quantity::ZERO
        {
            errors.invalid(path.key(resource), size.value(), "must be a valid resource quantity");
        }
    }
}

/// Only volumes and snapshots are sources under the older name; others are dropped there, unless they were kept before.
fn prepare_sources(spec: &mut PersistentVolumeClaimSpec, had_source: bool) {
    let is_known = |source: &TypedLocalObjectReference| {
        matches!(
            (source.api_group.as_deref().unwrap_or_default(), source.kind.as_str()),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    if !had_source && spec.data_source.as_ref().is_some_and(|source| !is_known(source)) {
        spec.data_source = None;
    }
    // Sources in other namespaces are an alpha feature, which is off.
    if let Some(source) = &mut spec.data_source_ref {
        source.namespace = None;
    }
    copy_sources(spec);
}

/// Whichever of the two is given, both say the same (`NormalizeDataSources`, v1.36).
fn copy_sources(spec: &mut PersistentVolumeClaimSpec) {
    match (&spec.data_source, &spec.data_source_ref) {
        (Some(old), None) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: old.api_group.clone(),
                kind: old.kind.clone(),
                name: old.name.clone(),
                namespace: None,
            });
        }
        (None, Some(new)) if text(&new.namespace).is_none() => {
            spec.data_source = Some(TypedLocalObjectReference {
                api_group: new.api_group.clone(),
                kind: new.kind.clone(),
                name: new.name.clone(),
            });
        }
        _ => {}
    }
}

fn validate_source(errors: &mut FieldErrors, path: &Path<'_>, group: &Option<String>, kind: &str, name: &str) {
    if name.is_empty() {
        errors.required(path.child("name"), "");
    }
    if kind.is_empty() {
        errors.required(path.child("kind"), "");
    }
    match text(group) {
        None if kind != "PersistentVolumeClaim" => {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid(*path, kind, detail);
        }
        None => {}
        Some(group) => errors.invalid_each(path.child("apiGroup"), group, validation::dns1123_subdomain(group)),
    }
}

fn validate_sources(errors: &mut FieldErrors, path: &Path<'_>, spec: &PersistentVolumeClaimSpec) {
    if let Some(source) = &spec.data_source {
        validate_source(errors, &path.child("dataSource"), &source.api_group, &source.kind, &source.name);
    }
    if let Some(source) = &spec.data_source_ref {
        let path = path.child("dataSourceRef");
        validate_source(errors, &path, &source.api_group, &source.kind, &source.name);
        if let Some(namespace) = text(&source.namespace) {
            errors.invalid_each(path.child("namespace"), namespace, validation::dns1123_label(namespace));
        }
    }
    let has_namespace = spec.data_source_ref.as_ref().is_some_and(|source| text(&source.namespace).is_some());
    if has_namespace && spec.data_source.is_some() {
        let place = path.child("dataSource").to_string();
        errors.invalid(*path, place, "may not be specified when dataSourceRef.namespace is specified");
        return;
    }
    if let (Some(old), Some(new)) = (&spec.data_source, &spec.data_source_ref)
        && (text(&old.api_group), &old.kind, &old.name) != (text(&new.api_group), &new.kind, &new.name)
    {
        errors.invalid(*path, path.child("dataSource").to_string(), "must match dataSourceRef");
    }
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Option<Quantity> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    Quantity::try_from(requests.get("storage")?).ok()
}

pub(crate) fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &PersistentVolumeClaimSpec) {
    const WITHOUT: &str = "at least 1 access mode is required";
    validate_access_modes(errors, &path.child("accessModes"), items(&spec.access_modes), WITHOUT);
    label_selector(errors, &path.child("selector"), spec.selector.as_ref());
    let size_path = path.child("resources");
    match storage(spec) {
        None => errors.required(size_path.key("storage"), ""),
        Some(size) if size <= Quantity::ZERO => {
            errors.invalid(size_path.key("storage"), size, "must be greater than zero");
        }
        Some(_) => {}
    }
    if let Some(class) = text(&spec.storage_class_name) {
        errors.invalid_each(path.child("storageClassName"), class, validation::dns1123_subdomain(class));
    }
    validate_sources(errors, path, spec);
    if let Some(mode) = text(&spec.volume_mode)
        && !matches!(mode, "Block" | "Filesystem")
    {
        errors.not_supported(path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    if let Some(class) = text(&spec.volume_attributes_class_name) {
        errors.invalid_each(path.child("volumeAttributesClassName"), class, validation::dns1123_subdomain(class));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_claim_grows_and_keeps_a_class() {
        let claim = |resources: Value, class: Value| -> PersistentVolumeClaim {
            serde_json::from_value(json!({
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, "volumeAttributesClassName": class},
                "status": {"phase": "Bound", "currentVolumeAttributesClassName": "fast", "capacity": {"storage": "1Gi"}},
            }))
            .unwrap()
        };
        let size = |size: &str| json!({"requests": {"storage": size}});
        let old = claim(size("1Gi"), json!("fast"));
        for (resources, class, expected) in [
            (size("2Gi"), json!("fast"), "[]"),
            (size("1Gi"), json!("slow"), "[]"),
            (
                json!({"requests": {"storage": "2Gi"}, "limits": {"storage": "3Gi"}}),
                json!("fast"),
                "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
            ),
            (
                size("1Gi"),
                json!(null),
                "spec.volumeAttributesClassName: Forbidden: update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            (
                size("1Gi"),
                json!(""),
                "spec.volumeAttributesClassName: Forbidden: update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
        ] {
            let found = PersistentVolumeClaimStrategy.validate_update(&claim(resources, class), &old);
            assert_eq!(found.to_string(), expected);
        }
    }

    #[test]
    fn the_expansion_of_a_volume_is_told_in_known_words() {
        let stages = "supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \
            \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"";
        for (status, expected) in [
            (json!({"allocatedResourceStatuses": {"storage": "NodeResizePending"}}), None),
            (
                json!({"allocatedResources": {"storage": "2Gi", "example.com/iops": "5"}, "capacity": {"storage": "1Gi"}}),
                None,
            ),
            (
                json!({"allocatedResourceStatuses": {"storage": "Growing"}}),
                Some(format!("status.allocatedResourceStatuses: Unsupported value: \"storage\": {stages}")),
            ),
            (
                json!({"allocatedResources": {"cpu": "1"}}),
                Some("status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\"".to_owned()),
            ),
            (
                json!({"capacity": {"storage": "-1"}}),
                Some("status.capacity[storage]: Invalid value: -1: must be a valid resource quantity".to_owned()),
            ),
        ] {
            let claim: PersistentVolumeClaim =
                serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
            let errors = PersistentVolumeClaimStrategy.validate_status_update(&claim, &claim);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, Vec::from_iter(expected), "{status}");
        }
    }
}
