//! PersistentVolumeClaim: a pod's wish for storage.

use std::collections::BTreeMap;

use api::beta_annotations::{STORAGE_CLASS, claim_class};
use api::field::{FieldErrors, IMMUTABLE, Path};
use api::meta::Meta as _;
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
use super::pod_update::differences;
use super::volume_warnings;
use crate::column::Column;
use crate::metadata::{label_selector, pruned, same};
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
            prepare_sources(spec, None);
        }
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut PersistentVolumeClaim, old: &PersistentVolumeClaim) {
        if let Some(spec) = &mut new.spec {
            prepare_sources(spec, old.spec.as_ref());
        }
    }

    fn validate_create(&self, claim: &PersistentVolumeClaim) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate_spec(&mut errors, &Path::new("spec"), &claim.spec.clone().unwrap_or_default());
        errors
    }

    fn validate_update(&self, new: &PersistentVolumeClaim, old: &PersistentVolumeClaim) -> FieldErrors {
        let (Some(spec), Some(before)) = (&new.spec, &old.spec) else { return self.validate_create(new) };
        let mut errors = FieldErrors::default();
        validate_spec_allowing(&mut errors, &Path::new("spec"), spec, Allowed::by(spec, before));
        let mut munged = spec.clone();
        // An old claim may have been written before its two sources were kept alike.
        let mut before = before.clone();
        copy_sources(&mut before);
        let before = &before;
        if text(&before.volume_name).is_none() {
            // The binder, and only it, sets these.
            munged.volume_name.clone_from(&before.volume_name);
        }
        if may_name_class(&mut errors, new, old) {
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
            let changes = differences(&pruned(before), &pruned(&munged));
            let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
            errors.forbidden("spec", format!("{why}\n{changes}"));
        }
        // A size that is not given is none.
        let (size, old_size) = (storage(spec).unwrap_or_default(), storage(before).unwrap_or_default());
        let held = old.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
        let held = held.and_then(|held| Quantity::try_from(held).ok()).unwrap_or_default();
        if size < old_size && size <= held {
            errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
        }
        errors.immutable("volumeMode", &spec.volume_mode, &before.volume_mode);
        let has_class = old.status.as_ref().is_some_and(|status| status.current_volume_attributes_class_name.is_some());
        let is_other = spec.volume_attributes_class_name != before.volume_attributes_class_name;
        if has_class && is_other && text(&spec.volume_attributes_class_name).is_none() {
            let to = if spec.volume_attributes_class_name.is_none() { "nil" } else { "empty string" };
            let why = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
            errors.forbidden("spec.volumeAttributesClassName", why);
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
        for (resource, size) in status.allocated_resources.iter().flatten() {
            let before = errors.len();
            validate_resource(&mut errors, &place, resource);
            if errors.len() == before {
                validate_size(&mut errors, &place.key(resource), size);
            }
        }
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
            json!(claim_class(claim).unwrap_or_default()),
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
        validate_size(errors, &path.key(resource), size);
    }
}

fn validate_size(errors: &mut FieldErrors, path: &Path<'_>, size: &RawQuantity) {
    if let Ok(size) = Quantity::try_from(size)
        && size < Quantity::ZERO
    {
        errors.invalid(path, size.value(), "must be a valid resource quantity");
    }
}

/// A claim that said its class in an annotation, or nowhere, may name it in the field, once
/// (`validateStorageClassUpgradeFromAnnotation` and `validateStorageClassUpgradeFromNil`, v1.36). Says whether that is what it does.
fn may_name_class(errors: &mut FieldErrors, new: &PersistentVolumeClaim, old: &PersistentVolumeClaim) -> bool {
    let field = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let (was_noted, is_noted) = (old.metadata.annotation(STORAGE_CLASS), new.metadata.annotation(STORAGE_CLASS));
    let named = field(new).filter(|_| field(old).is_none());
    let is_as_noted = was_noted.is_some() && named.as_deref() == was_noted;
    if is_as_noted && is_noted.is_none_or(|_| is_noted == was_noted) {
        return true;
    }
    if is_noted.unwrap_or_default() != was_noted.unwrap_or_default() {
        let path = Path::new("metadata.annotations");
        errors.invalid(path.child(STORAGE_CLASS), is_noted.unwrap_or_default(), IMMUTABLE);
    }
    named.is_some() && (was_noted.is_none() || is_as_noted)
}

/// Only volumes and snapshots are sources under the older name: others are dropped there, unless the newer name is used, or there
/// was a source before (`EnforceDataSourceBackwardsCompatibility`, v1.36).
fn prepare_sources(spec: &mut PersistentVolumeClaimSpec, old: Option<&PersistentVolumeClaimSpec>) {
    let is_known = |source: &TypedLocalObjectReference| {
        matches!(
            (source.api_group.as_deref().unwrap_or_default(), source.kind.as_str()),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    let had_reference = old.is_some_and(|old| old.data_source_ref.is_some());
    let had_source = had_reference || old.is_some_and(|old| old.data_source.is_some());
    // Sources in other namespaces are an alpha feature, which is off.
    if !had_reference && spec.data_source_ref.as_ref().is_some_and(|source| text(&source.namespace).is_some()) {
        spec.data_source_ref = None;
    }
    let is_older = !had_source && spec.data_source_ref.is_none();
    if is_older && spec.data_source.as_ref().is_some_and(|source| !is_known(source)) {
        spec.data_source = None;
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

fn validate_source(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    (group, kind, name): (&Option<String>, &str, &str),
    allowed: Allowed,
) {
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
        Some(group) if !allowed.any_group => {
            errors.invalid_each(path.child("apiGroup"), group, validation::dns1123_subdomain(group));
        }
        _ => {}
    }
}

fn validate_sources(errors: &mut FieldErrors, path: &Path<'_>, spec: &PersistentVolumeClaimSpec, allowed: Allowed) {
    if let Some(source) = &spec.data_source {
        let parts = (&source.api_group, source.kind.as_str(), source.name.as_str());
        validate_source(errors, &path.child("dataSource"), parts, allowed);
    }
    if let Some(source) = &spec.data_source_ref {
        let path = path.child("dataSourceRef");
        let parts = (&source.api_group, source.kind.as_str(), source.name.as_str());
        validate_source(errors, &path, parts, allowed);
        if let Some(namespace) = text(&source.namespace) {
            errors.invalid_each(path.child("namespace"), namespace, validation::dns1123_label(namespace));
        }
    }
    let (Some(old), Some(new)) = (&spec.data_source, &spec.data_source_ref) else { return };
    let why = if text(&new.namespace).is_some() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if (&old.api_group, &old.kind, &old.name) != (&new.api_group, &new.kind, &new.name) {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Upstream's value is a path, which it shows as an object without fields.
    errors.invalid(*path, json!({}), why);
}

fn storage(spec: &PersistentVolumeClaimSpec) -> Option<Quantity> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    Quantity::try_from(requests.get("storage")?).ok()
}

/// What a claim may go on to say because it said that before there were rules for it.
#[derive(Clone, Copy, Default)]
struct Allowed {
    any_group: bool,
    any_selector: bool,
}

impl Allowed {
    fn by(new: &PersistentVolumeClaimSpec, old: &PersistentVolumeClaimSpec) -> Self {
        let had_group = old.data_source.as_ref().is_some_and(|source| source.api_group.is_some())
            || old.data_source_ref.as_ref().is_some_and(|source| source.api_group.is_some());
        Allowed { any_group: had_group, any_selector: new.selector == old.selector }
    }
}

pub(crate) fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &PersistentVolumeClaimSpec) {
    validate_spec_allowing(errors, path, spec, Allowed::default());
}

fn validate_spec_allowing(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    spec: &PersistentVolumeClaimSpec,
    allowed: Allowed,
) {
    let modes = items(&spec.access_modes);
    if modes.is_empty() {
        errors.required(path.child("accessModes"), "at least 1 access mode is required");
    }
    label_selector(errors, &path.child("selector"), spec.selector.as_ref().filter(|_| !allowed.any_selector));
    validate_access_modes(errors, &path.child("accessModes"), modes);
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
    if let Some(mode) = spec.volume_mode.as_deref()
        && !matches!(mode, "Block" | "Filesystem")
    {
        errors.not_supported(path.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
    validate_sources(errors, path, spec, allowed);
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
                "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n\
                 - resources.limits: nil\n+ resources.limits: {\"storage\":\"3Gi\"}",
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
    fn a_class_is_named_once_and_not_in_an_annotation_any_more() {
        let claim = |noted: Option<&str>, named: Option<&str>| -> PersistentVolumeClaim {
            let annotations = noted.map(|class| json!({(STORAGE_CLASS): class}));
            serde_json::from_value(json!({
                "metadata": {"annotations": annotations},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": named},
            }))
            .unwrap()
        };
        let noted = "metadata.annotations.volume.beta.kubernetes.io/storage-class";
        let spec = "spec: Forbidden: spec is immutable";
        for (old, new, expected) in [
            (claim(None, None), claim(None, Some("a")), vec![]),
            (claim(Some("a"), None), claim(Some("a"), Some("a")), vec![]),
            (claim(Some("a"), None), claim(None, Some("a")), vec![]),
            (claim(Some("a"), None), claim(Some("a"), Some("b")), vec![spec.to_owned()]),
            (
                claim(Some("a"), None),
                claim(Some("b"), None),
                vec![format!("{noted}: Invalid value: \"b\": field is immutable")],
            ),
            (
                claim(Some("a"), None),
                claim(None, None),
                vec![format!("{noted}: Invalid value: \"\": field is immutable")],
            ),
            (claim(None, Some("a")), claim(None, Some("b")), vec![spec.to_owned()]),
            (claim(None, Some("a")), claim(None, None), vec![spec.to_owned()]),
        ] {
            let errors = PersistentVolumeClaimStrategy.validate_update(&new, &old);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said.len(), expected.len(), "{new:?}: {said:?}");
            assert!(said.iter().zip(&expected).all(|(said, expected)| said.starts_with(expected)), "{said:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_in_upstreams_order() {
        let claim = |spec: Value| -> PersistentVolumeClaim { serde_json::from_value(json!({"spec": spec})).unwrap() };
        let selector = json!({"matchLabels": {"a": "b c"}});
        let book = json!({"apiGroup": "a b", "kind": "Book", "name": "b"});
        let bad =
            claim(json!({"selector": selector, "resources": {"requests": {"storage": "0"}}, "storageClassName": "A",
            "volumeMode": "", "dataSource": book, "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "c"}}));
        let fields = |errors: &FieldErrors| errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>();
        let expected = [
            "spec.accessModes",
            "spec.selector.matchLabels",
            "spec.resources[storage]",
            "spec.storageClassName",
            "spec.volumeMode",
            "spec.dataSource.apiGroup",
            "spec",
        ];
        let errors = PersistentVolumeClaimStrategy.validate_create(&bad);
        assert_eq!(fields(&errors), expected);
        let last = errors.iter().last().unwrap().to_string();
        assert_eq!(last, "spec: Invalid value: {}: must match dataSourceRef");
        // What it said before there were rules it may go on to say.
        let old = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "selector": selector, "dataSource": book, "volumeMode": "Filesystem"});
        let mut new = claim(old.clone());
        prepare_sources(new.spec.as_mut().unwrap(), claim(old.clone()).spec.as_ref());
        assert_eq!(fields(&PersistentVolumeClaimStrategy.validate_update(&new, &claim(old.clone()))), [""; 0]);
        new.spec.as_mut().unwrap().volume_mode = Some("Block".to_owned());
        let changed = PersistentVolumeClaimStrategy.validate_update(&new, &claim(old));
        assert_eq!(fields(&changed), ["spec", "volumeMode"]);
    }

    #[test]
    fn sources_in_other_namespaces_are_dropped() {
        let mut spec: PersistentVolumeClaimSpec = serde_json::from_value(json!({
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "c", "namespace": "other"},
        }))
        .unwrap();
        let stored = spec.clone();
        prepare_sources(&mut spec, Some(&stored));
        assert_eq!(
            (&spec.data_source_ref, &spec.data_source),
            (&stored.data_source_ref, &None),
            "what is stored stays"
        );
        prepare_sources(&mut spec, None);
        assert_eq!((spec.data_source_ref, spec.data_source), (None, None));
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
