//! PersistentVolume: a piece of storage in the cluster.

use std::collections::BTreeMap;

use api::beta_annotations;
use api::field::{FieldError, FieldErrors, Path};
use api::meta::Meta as _;
use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use serde_json::{Value, json};

use super::pod_spec::placement::node_selector;
use super::pod_update::differences;
use super::{volume_sources, volume_warnings};
use crate::column::Column;
use crate::metadata::{pruned, same};
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
        spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
        if let Some(host_path) = &mut spec.host_path {
            host_path.type_.get_or_insert_default();
        }
    }

    fn prepare_for_create(&self, call: &Call<'_>, volume: &mut PersistentVolume) {
        let status = volume.status.get_or_insert_default();
        set_text(&mut status.phase, "Pending");
        status.last_phase_transition_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(call.now));
    }

    /// When the phase changed last, unless whoever changes it says so.
    fn prepare_for_status_update(&self, call: &Call<'_>, new: &mut PersistentVolume, old: &PersistentVolume) {
        let old = old.status.clone().unwrap_or_default();
        let status = new.status.get_or_insert_default();
        let (given, before) = (&status.last_phase_transition_time, old.last_phase_transition_time);
        if status.phase == old.phase {
            status.last_phase_transition_time = given.clone().or(before);
        } else if given.is_none() || *given == before {
            status.last_phase_transition_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(call.now));
        }
    }

    fn validate_create(&self, volume: &PersistentVolume) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let context = Context::Volume { name: volume.metadata.name() };
        validate_spec(&mut errors, &Path::new("spec"), &volume.spec.clone().unwrap_or_default(), context);
        validate_annotations(&mut errors, volume);
        errors
    }

    fn validate_update(&self, new: &PersistentVolume, old: &PersistentVolume) -> FieldErrors {
        // What was stored under other rules can still be bound, released and deleted.
        let mut errors = match is_as_stored(new, old) {
            true => {
                let mut errors = FieldErrors::default();
                if old.metadata.annotation(beta_annotations::MOUNT_OPTIONS).is_none() {
                    validate_annotations(&mut errors, new);
                }
                errors
            }
            // What is asked of nodes cannot be changed, whatever rules it was stored under.
            false if affinity(new) == affinity(old) => {
                let is_meant = |error: &FieldError| !error.field.starts_with("spec.nodeAffinity.required");
                self.validate_create(new).into_iter().filter(is_meant).collect()
            }
            false => self.validate_create(new),
        };
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            // A secret for growing may still be named.
            let mut new_source = source(new);
            if old.csi.as_ref().is_some_and(|csi| csi.controller_expand_secret_ref.is_none())
                && let Some(csi) = new_source.get_mut("csi").and_then(Value::as_object_mut)
            {
                csi.remove("controllerExpandSecretRef");
            }
            let old_source = source(old);
            if !same(&new_source, &old_source) {
                let changes = differences(&pruned(&old_source), &pruned(&new_source));
                let why = format!("spec.persistentvolumesource is immutable after creation\n{changes}");
                errors.forbidden("spec.persistentvolumesource", why);
            }
            // Upstream names these two as if they were no part of the spec.
            errors.immutable("volumeMode", &new.volume_mode, &old.volume_mode);
            if old.node_affinity.is_some()
                && !same(&new.node_affinity, &renamed(&old.node_affinity, &new.node_affinity))
            {
                let why = "field is immutable, except for updating from beta label to GA";
                errors.invalid("nodeAffinity", &new.node_affinity, why);
            }
            if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
                errors.forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
            }
        }
        errors
    }

    fn warnings(&self, volume: &PersistentVolume, _: Option<&PersistentVolume>) -> Vec<String> {
        volume_warnings::of_volume(volume)
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
            json!(beta_annotations::volume_class(volume)),
            json!(text(&spec.volume_attributes_class_name).unwrap_or("<unset>")),
            json!(or_empty(&status.reason)),
            cells::age(&volume.metadata, now),
            json!(text(&spec.volume_mode).unwrap_or("<unset>")),
        ]
    }
}

/// Mount options in an annotation are for the kinds of volumes that had them before there was a field (`checkMountOption`, v1.36).
fn validate_annotations(errors: &mut FieldErrors, volume: &PersistentVolume) {
    let has_options = volume.spec.as_ref().is_some_and(|spec| {
        spec.gce_persistent_disk.is_some()
            || spec.aws_elastic_block_store.is_some()
            || spec.glusterfs.is_some()
            || spec.nfs.is_some()
            || spec.rbd.is_some()
            || spec.quobyte.is_some()
            || spec.iscsi.is_some()
            || spec.cinder.is_some()
            || spec.cephfs.is_some()
            || spec.azure_file.is_some()
            || spec.vsphere_volume.is_some()
            || spec.azure_disk.is_some()
            || spec.photon_persistent_disk.is_some()
    });
    if !has_options && volume.metadata.annotation(beta_annotations::MOUNT_OPTIONS).is_some() {
        let path = Path::new("metadata.annotations");
        errors.forbidden(
            path.child(beta_annotations::MOUNT_OPTIONS),
            "may not specify mount options for this volume type",
        );
    }
}

fn affinity(volume: &PersistentVolume) -> Option<&VolumeNodeAffinity> {
    volume.spec.as_ref()?.node_affinity.as_ref()
}

/// Whether nothing of the spec is new but the claim, which has no rules.
fn is_as_stored(new: &PersistentVolume, old: &PersistentVolume) -> bool {
    let mut spec = new.spec.clone();
    if let (Some(new), Some(old)) = (&mut spec, &old.spec) {
        new.claim_ref = old.claim_ref.clone();
    }
    spec == old.spec
}

/// Labels of nodes, and the names that they have now.
const STABLE_LABELS: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// What was asked of nodes, by the names of labels that `new` has for it (`getMaskNodeSelectorLabelChangeEqualities`, v1.36).
fn renamed(old: &Option<VolumeNodeAffinity>, new: &Option<VolumeNodeAffinity>) -> Option<VolumeNodeAffinity> {
    let mut renamed = old.clone();
    let old_terms = renamed.iter_mut().filter_map(|affinity| affinity.required.as_mut());
    let new_terms = new.iter().filter_map(|affinity| affinity.required.as_ref());
    for (old, new) in old_terms.zip(new_terms) {
        for (old, new) in old.node_selector_terms.iter_mut().zip(&new.node_selector_terms) {
            let expressions = old.match_expressions.iter_mut().flatten().zip(items(&new.match_expressions));
            let fields = old.match_fields.iter_mut().flatten().zip(items(&new.match_fields));
            for (old, new) in expressions.chain(fields) {
                if STABLE_LABELS.contains(&(old.key.as_str(), new.key.as_str())) {
                    old.key.clone_from(&new.key);
                }
            }
        }
    }
    renamed
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
    let mut value = api::codec::to_value(spec).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !NOT_SOURCES.contains(&name.as_str()));
    }
    value
}

/// Whose spec it is: a volume's own, with its name, or one that stands in a VolumeAttachment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Context<'a> {
    Volume { name: &'a str },
    Inline,
}

pub fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &PersistentVolumeSpec, context: Context<'_>) {
    const INLINE: &str = "may not be specified in the context of inline volumes";
    let is_inline = context == Context::Inline;
    if is_inline {
        if spec.claim_ref.is_some() {
            errors.forbidden(path.child("claimRef"), INLINE);
        }
        if spec.capacity.as_ref().is_some_and(|capacity| !capacity.is_empty()) {
            errors.forbidden(path.child("capacity"), INLINE);
        }
        if spec.csi.is_none() {
            errors.required(path.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    if items(&spec.access_modes).is_empty() {
        errors.required(path.child("accessModes"), "");
    }
    validate_access_modes(errors, &path.child("accessModes"), items(&spec.access_modes));
    if !is_inline {
        validate_capacity(errors, &path.child("capacity"), spec.capacity.as_ref());
    }
    if let Some(policy) = text(&spec.persistent_volume_reclaim_policy) {
        let path = path.child("persistentVolumeReclaimPolicy");
        if is_inline && policy != "Retain" {
            errors.forbidden(path, "may only be Retain in the context of inline volumes");
        } else if !matches!(policy, "Delete" | "Recycle" | "Retain") {
            errors.not_supported(path, policy, &["Delete", "Recycle", "Retain"]);
        }
    }
    match &spec.node_affinity {
        Some(_) if is_inline => errors.forbidden(path.child("nodeAffinity"), INLINE),
        Some(affinity) => match &affinity.required {
            Some(required) => node_selector(errors, &path.child("nodeAffinity.required"), required),
            None => {
                errors.required(path.child("nodeAffinity.required"), "must specify required node constraints");
            }
        },
        None => {}
    }
    let name = match context {
        Context::Volume { name } => name,
        Context::Inline => "",
    };
    let has_affinity = !is_inline && spec.node_affinity.is_some();
    volume_sources::persistent(errors, path, spec, name, has_affinity);
    if let Some(host_path) = &spec.host_path
        && is_root(&host_path.path)
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle")
    {
        errors
            .forbidden(path.child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'");
    }
    match text(&spec.storage_class_name) {
        Some(_) if is_inline => errors.forbidden(path.child("storageClassName"), INLINE),
        Some(class) => {
            errors.invalid_each(path.child("storageClassName"), class, api::validation::dns1123_subdomain(class));
        }
        None => {}
    }
    match spec.volume_mode.as_deref() {
        None | Some("Filesystem") => {}
        Some(_) if is_inline => errors.forbidden(
            path.child("volumeMode"),
            "may not specify volumeMode other than Filesystem in the context of inline volumes",
        ),
        Some("Block") => {}
        Some(mode) => errors.not_supported(path.child("volumeMode"), mode, &["Block", "Filesystem"]),
    }
    // Upstream leaves this out for inline volumes.
    if let Some(class) = spec.volume_attributes_class_name.as_ref().filter(|_| !is_inline) {
        let path_of_class = path.child("volumeAttributesClassName");
        match class.is_empty() {
            true => errors.required(path_of_class, "an empty string is disallowed"),
            false => errors.invalid_each(path_of_class, class, api::validation::dns1123_subdomain(class)),
        }
        if spec.csi.is_none() {
            errors.required(path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

fn validate_capacity(errors: &mut FieldErrors, path: &Path<'_>, capacity: Option<&BTreeMap<String, RawQuantity>>) {
    if capacity.is_none_or(BTreeMap::is_empty) {
        errors.required(path, "");
    }
    if capacity.is_none_or(|capacity| capacity.len() != 1 || !capacity.contains_key("storage")) {
        errors.not_supported(path, capacity, &["storage"]);
    }
    for (resource, size) in capacity.into_iter().flatten() {
        let Ok(size) = Quantity::try_from(size) else {
            errors.invalid(path.key(resource), &size.0, "must be a valid resource quantity");
            continue;
        };
        if size.is_negative() {
            errors.invalid(path.key(resource), size.value(), "must be a valid resource quantity");
        }
        if size <= Quantity::ZERO {
            errors.invalid(path.key(resource), size, "must be greater than zero");
        }
    }
}

/// Whether nothing but the root is left of the path once it is made plain.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && {
        let mut depth = 0usize;
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => depth = depth.saturating_sub(1),
                _ => depth += 1,
            }
        }
        depth == 0
    }
}

/// Of a list that is not empty.
pub fn validate_access_modes(errors: &mut FieldErrors, path: &Path<'_>, modes: &[String]) {
    const SUPPORTED: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in modes.iter().filter(|mode| !SUPPORTED.contains(&mode.as_str())) {
        errors.not_supported(path, mode, SUPPORTED);
    }
    const ALONE: &str = "ReadWriteOncePod";
    let has_others = modes.iter().any(|mode| mode != ALONE && SUPPORTED.contains(&mode.as_str()));
    if has_others && modes.iter().any(|mode| mode == ALONE) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a volume whose spec is good but for this.
    fn said(more: Value) -> Vec<String> {
        let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let volume = json!({"metadata": {"name": "v"}, "spec": spec});
        let errors = PersistentVolumeStrategy.validate_create(&serde_json::from_value(volume).unwrap());
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_was_stored_under_other_rules_can_be_bound_and_deleted() {
        let volume = |spec: Value| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
        };
        let old = volume(json!({"hostPath": {"path": "/a"}}));
        let bound = volume(json!({"hostPath": {"path": "/a"}, "claimRef": {"name": "c"}}));
        let grown = volume(json!({"hostPath": {"path": "/a"}, "capacity": {"storage": "1Gi"}}));
        let said = |new: &PersistentVolume| PersistentVolumeStrategy.validate_update(new, &old).iter().count();
        assert_eq!((said(&old), said(&bound)), (0, 0));
        assert_eq!(said(&grown), 1, "it has no access modes");
    }

    #[test]
    fn what_is_said_of_a_volume_stays_but_for_names_of_labels() {
        let volume = |more: Value| -> PersistentVolume {
            let affinity = |key: &str| {
                json!({"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]}]}})
            };
            let mut spec = json!({
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                "csi": {"driver": "d.example.com", "volumeHandle": "1"},
                "nodeAffinity": affinity("failure-domain.beta.kubernetes.io/zone"),
            });
            for (key, value) in more.as_object().unwrap() {
                spec[key] = if key == "nodeAffinity" { affinity(value.as_str().unwrap()) } else { value.clone() };
            }
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
        };
        let old = volume(json!({}));
        for (more, expected) in [
            (json!({"nodeAffinity": "topology.kubernetes.io/zone", "mountOptions": ["ro"]}), vec![]),
            (json!({"nodeAffinity": "topology.kubernetes.io/region"}), vec!["nodeAffinity: Invalid value: "]),
            (json!({"volumeMode": "Block"}), vec!["volumeMode: Invalid value: \"Block\": field is immutable"]),
            (
                json!({"csi": {"driver": "d.example.com", "volumeHandle": "2"}}),
                vec![
                    "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n\
                     - csi.volumeHandle: \"1\"\n+ csi.volumeHandle: \"2\"",
                ],
            ),
            (
                json!({"csi": {"driver": "d.example.com", "volumeHandle": "1",
                    "controllerExpandSecretRef": {"namespace": "n", "name": "s"}}}),
                vec![],
            ),
        ] {
            let errors = PersistentVolumeStrategy.validate_update(&volume(more.clone()), &old);
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said.len(), expected.len(), "{more}: {said:?}");
            for (said, expected) in said.iter().zip(expected) {
                assert!(said.starts_with(expected), "{more}: {said}");
            }
        }
    }

    #[test]
    fn mount_options_in_an_annotation_are_for_older_kinds_of_volumes() {
        let volume = |options: Option<&str>, source: Value| -> PersistentVolume {
            let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
            spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            let annotations = options.map(|options| json!({(beta_annotations::MOUNT_OPTIONS): options}));
            let metadata = json!({"name": "v", "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let of = |errors: FieldErrors| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let path = "metadata.annotations.volume.beta.kubernetes.io/mount-options";
        let refused = format!("{path}: Forbidden: may not specify mount options for this volume type");
        for (source, is_refused) in [
            (json!({"nfs": {"server": "a", "path": "/"}}), false),
            (json!({"hostPath": {"path": "/a"}}), true),
            (json!({"csi": {"driver": "d.example.com", "volumeHandle": "1"}}), true),
        ] {
            let (with, without) = (volume(Some("ro"), source.clone()), volume(None, source.clone()));
            let expected: Vec<String> = is_refused.then(|| refused.clone()).into_iter().collect();
            let strategy = PersistentVolumeStrategy;
            assert_eq!(of(strategy.validate_create(&with)), expected, "{source}");
            assert_eq!(of(strategy.validate_update(&with, &without)), expected, "{source}");
            assert_eq!(of(strategy.validate_update(&with, &with)), [""; 0], "what was stored stays: {source}");
            assert_eq!(of(strategy.validate_create(&without)), [""; 0], "{source}");
        }
    }

    #[test]
    fn security_every_source_of_a_volume_is_checked() {
        let affinity = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]}});
        let csi = json!({"driver": "d.example.com", "volumeHandle": "1"});
        for good in [
            json!({"hostPath": {"path": "/a"}}),
            json!({"local": {"path": "/a"}, "nodeAffinity": affinity}),
            json!({"csi": csi, "volumeAttributesClassName": "fast", "volumeMode": "Block"}),
            json!({"nfs": {"server": "a", "path": "/"}}),
            json!({"iscsi": {"targetPortal": "a:1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}}),
            json!({"fc": {"wwids": ["1"]}}),
            json!({"azureDisk": {"diskName": "a", "diskURI": "/subscriptions/a", "kind": "Managed"}}),
        ] {
            assert_eq!(said(good.clone()), Vec::<String>::new(), "{good}");
        }
        for (bad, expected) in [
            (json!({}), "spec: Required value: must specify a volume type"),
            (
                json!({"hostPath": {"path": "/a/../b"}}),
                "spec.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            ),
            (json!({"hostPath": {"path": ""}}), "spec.hostPath.path: Required value"),
            (
                json!({"local": {"path": "/a/.."}, "nodeAffinity": affinity}),
                "spec.local.path: Invalid value: \"/a/..\": must not contain '..'",
            ),
            (
                json!({"local": {"path": "/a"}}),
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ),
            (
                json!({"local": {"path": "/a"}, "nodeAffinity": {}}),
                "spec.nodeAffinity.required: Required value: must specify required node constraints",
            ),
            (
                json!({"local": {"path": "/a"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}]}}}),
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: \"b c\": ",
            ),
            (
                json!({"local": {"path": "/a"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["A"]}]}]}}}),
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchFields[0].values[0]: Invalid value: \"A\": ",
            ),
            (json!({"csi": {"driver": "", "volumeHandle": "1"}}), "spec.csi.driver: Required value"),
            (json!({"csi": {"driver": "d", "volumeHandle": ""}}), "spec.csi.volumeHandle: Required value"),
            (
                json!({"csi": {"driver": "d", "volumeHandle": "1", "nodePublishSecretRef": {"name": "s"}}}),
                "spec.csi.nodePublishSecretRef.namespace: Required value",
            ),
            (
                json!({"nfs": {"server": "a", "path": "b"}}),
                "spec.nfs.path: Invalid value: \"b\": must be an absolute path",
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "a", "partition": 256}}),
                "spec.persistentDisk.partition: Invalid value: 256: must be between 1 and 255, inclusive",
            ),
            (
                json!({"glusterfs": {"endpoints": "a", "path": "b", "endpointsNamespace": ""}}),
                "spec.glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace name",
            ),
            (json!({"flocker": {}}), "spec.flocker: Required value: one of datasetName and datasetUUID is required"),
            (
                json!({"iscsi": {"targetPortal": "a", "iqn": "x", "lun": 0}}),
                "spec.iscsi.iqn: Invalid value: \"x\": must be valid format",
            ),
            (
                json!({"fc": {"targetWWNs": ["1"]}}),
                "spec.fc.lun: Required value: lun is required if targetWWNs is specified",
            ),
            (
                json!({"flexVolume": {"driver": "d", "options": {"a.k8s.io/b": "c"}}}),
                "spec.flexVolume.options[a.k8s.io/b]: Invalid value: \"a.k8s.io/b\": kubernetes.io and k8s.io namespaces are reserved",
            ),
            (
                json!({"azureDisk": {"diskName": "a", "diskURI": "x", "kind": "Managed"}}),
                "spec.azureDisk.diskURI: Unsupported value: \"x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ),
            (json!({"storageos": {"volumeName": "A"}}), "spec.storageos.volumeName: Invalid value: \"A\""),
            (
                json!({"hostPath": {"path": "/a"}, "csi": csi}),
                "spec.csi: Forbidden: may not specify more than 1 volume type",
            ),
            (
                json!({"hostPath": {"path": "//"}, "persistentVolumeReclaimPolicy": "Recycle"}),
                "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
            ),
            (
                json!({"hostPath": {"path": "/a"}, "volumeMode": "Tape"}),
                "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
            ),
            (
                json!({"hostPath": {"path": "/a"}, "volumeAttributesClassName": "x"}),
                "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
            ),
            (
                json!({"hostPath": {"path": "/a"}, "capacity": {"storage": "0"}}),
                "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            ),
            (json!({"hostPath": {"path": "/a"}, "accessModes": []}), "spec.accessModes: Required value"),
        ] {
            let said = said(bad.clone());
            assert!(said.len() == 1 && said[0].starts_with(expected), "{bad}: {said:?}");
        }
    }
}
