//! PersistentVolume: a piece of storage in the cluster.

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use serde_json::{Value, json};

use super::pod_spec::placement::node_selector;
use crate::column::Column;
use crate::metadata::same;
use crate::unset::{items, or_empty, set_text, text};
use crate::{Call, Strategy, cells};

pub struct PersistentVolumeStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Capacity", "How much it holds."),
    Column::string("Access Modes", "How it can be mounted."),
    Column::string("Reclaim Policy", "What becomes of it when its claim is gone."),
    Column::string("Status", "Whether it is bound."),
    Column::string("Claim", "The claim that has it."),
    Column::string("StorageClass", "The kind of storage."),
    Column::string("VolumeAttributesClass", "The attributes of the storage."),
    Column::string("Reason", "Why it is in this state."),
    Column::AGE,
    Column::string("VolumeMode", "A file system or a device.").wide(),
];

impl Strategy for PersistentVolumeStrategy {
    type Object = PersistentVolume;

    fn apply_defaults(&self, volume: &mut PersistentVolume) {
        let status = volume.status.get_or_insert_default();
        set_text(&mut status.phase, "Pending");
        let Some(spec) = &mut volume.spec else { return };
        set_text(&mut spec.persistent_volume_reclaim_policy, "Retain");
        set_text(&mut spec.volume_mode, "Filesystem");
        if let Some(host_path) = &mut spec.host_path {
            host_path.type_.get_or_insert_default();
        }
    }

    fn prepare_for_create(&self, call: &Call<'_>, volume: &mut PersistentVolume) {
        let status = volume.status.get_or_insert_default();
        set_text(&mut status.phase, "Pending");
        status.last_phase_transition_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(call.now));
    }

    fn prepare_for_status_update(&self, call: &Call<'_>, new: &mut PersistentVolume, old: &PersistentVolume) {
        let phase = |volume: &PersistentVolume| volume.status.as_ref().and_then(|status| status.phase.clone());
        if phase(new) != phase(old) {
            let status = new.status.get_or_insert_default();
            status.last_phase_transition_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(call.now));
        }
    }

    fn validate_create(&self, volume: &PersistentVolume) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate_spec(&mut errors, &Path::new("spec"), &volume.spec.clone().unwrap_or_default());
        errors
    }

    fn validate_update(&self, new: &PersistentVolume, old: &PersistentVolume) -> FieldErrors {
        let mut errors = self.validate_create(new);
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            if !same(&source(new), &source(old)) {
                errors.forbidden(
                    "spec.persistentvolumesource",
                    "spec.persistentvolumesource is immutable after creation",
                );
            }
            errors.immutable("spec.volumeMode", &new.volume_mode, &old.volume_mode);
            if old.node_affinity.is_some() && new.node_affinity != old.node_affinity {
                errors.invalid("spec.nodeAffinity", &new.node_affinity, api::field::IMMUTABLE);
            }
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, volume: &PersistentVolume, now: Timestamp) -> Vec<Value> {
        let spec = volume.spec.clone().unwrap_or_default();
        let status = volume.status.clone().unwrap_or_default();
        let phase = if volume.metadata.deletion_timestamp.is_some() { "Terminating" } else { or_empty(&status.phase) };
        let claim = spec.claim_ref.as_ref();
        let claim = claim.map(|claim| format!("{}/{}", or_empty(&claim.namespace), or_empty(&claim.name)));
        let size = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        vec![
            cells::name(&volume.metadata),
            json!(size.map_or("0", |size| size.0.as_str())),
            json!(access_modes(items(&spec.access_modes))),
            json!(or_empty(&spec.persistent_volume_reclaim_policy)),
            json!(phase),
            json!(claim.unwrap_or_default()),
            json!(or_empty(&spec.storage_class_name)),
            json!(text(&spec.volume_attributes_class_name).unwrap_or("<unset>")),
            json!(or_empty(&status.reason)),
            cells::age(&volume.metadata, now),
            json!(text(&spec.volume_mode).unwrap_or("<unset>")),
        ]
    }
}

/// Fields of the spec that are not the source itself.
const NOT_SOURCES: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

fn source(spec: &PersistentVolumeSpec) -> Value {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !NOT_SOURCES.contains(&name.as_str()));
    }
    value
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &PersistentVolumeSpec) {
    validate_access_modes(errors, &path.child("accessModes"), items(&spec.access_modes));
    let capacity_path = path.child("capacity");
    match &spec.capacity {
        None => errors.required(capacity_path, ""),
        Some(capacity) => {
            let size = capacity.get("storage").and_then(|size| Quantity::try_from(size).ok());
            if capacity.len() != 1 || size.is_none() {
                errors.not_supported(capacity_path, capacity, &["storage"]);
            }
            if let Some(size) = size.filter(|size| *size <= Quantity::ZERO) {
                errors.invalid(capacity_path.key("storage"), size, "must be greater than zero");
            }
        }
    }
    if let Some(policy) = text(&spec.persistent_volume_reclaim_policy)
        && !matches!(policy, "Delete" | "Recycle" | "Retain")
    {
        errors.not_supported(path.child("persistentVolumeReclaimPolicy"), policy, &["Delete", "Recycle", "Retain"]);
    }
    if let Some(required) = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref()) {
        node_selector(errors, &path.child("nodeAffinity.required"), required);
    }
    if let Value::Object(sources) = source(spec) {
        let mut names = sources.keys();
        if names.next().is_none() {
            errors.required(path, "must specify a volume type");
        }
        for extra in names {
            errors.forbidden(path.child(extra), "may not specify more than 1 volume type");
        }
    }
    if let Some(class) = text(&spec.storage_class_name) {
        errors.invalid_each(path.child("storageClassName"), class, api::validation::dns1123_subdomain(class));
    }
    if let Some(host_path) = &spec.host_path
        && host_path.path == "/"
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle")
    {
        errors
            .forbidden(path.child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'");
    }
}

pub fn validate_access_modes(errors: &mut FieldErrors, path: &Path<'_>, modes: &[String]) {
    const SUPPORTED: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    if modes.is_empty() {
        errors.required(path, "at least 1 access mode is required");
    }
    for mode in modes.iter().filter(|mode| !SUPPORTED.contains(&mode.as_str())) {
        errors.not_supported(path, mode, SUPPORTED);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// `RWO,ROX` and so on.
pub fn access_modes(modes: &[String]) -> String {
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let shown: Vec<&str> =
        short.iter().filter(|(mode, _)| modes.iter().any(|other| other == mode)).map(|&(_, short)| short).collect();
    shown.join(",")
}
