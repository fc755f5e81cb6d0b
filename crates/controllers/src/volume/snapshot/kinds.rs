//! The kinds of `snapshot.storage.k8s.io/v1`: as much of them as the controller reads, and their definitions.
//!
//! Objects are changed by patches, so fields that are not named here stay as they are.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::definitions::MANAGED_BY;

pub(in crate::volume) const GROUP: &str = "snapshot.storage.k8s.io";
pub(in crate::volume) const API_VERSION: &str = "snapshot.storage.k8s.io/v1";

macro_rules! kind {
    ($kind:ident, $plural:literal, $scope:ty) => {
        api::read_by_serde!($kind);

        impl Resource for $kind {
            const API_VERSION: &'static str = API_VERSION;
            const GROUP: &'static str = GROUP;
            const KIND: &'static str = stringify!($kind);
            const VERSION: &'static str = "v1";
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl Metadata for $kind {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct VolumeSnapshot {
    #[serde(deserialize_with = "api::read::by_table")]
    pub(in crate::volume) metadata: ObjectMeta,
    pub(in crate::volume) spec: SnapshotSpec,
    pub(in crate::volume) status: Option<SnapshotStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct SnapshotSpec {
    pub(in crate::volume) source: SnapshotSource,
    pub(in crate::volume) volume_snapshot_class_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct SnapshotSource {
    pub(in crate::volume) persistent_volume_claim_name: Option<String>,
    pub(in crate::volume) volume_snapshot_content_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct SnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::volume) bound_volume_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::volume) creation_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::volume) ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::volume) restore_size: Option<String>,
    pub(in crate::volume) error: Option<SnapshotError>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct SnapshotError {
    pub(in crate::volume) time: Option<String>,
    pub(in crate::volume) message: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct VolumeSnapshotContent {
    #[serde(deserialize_with = "api::read::by_table")]
    pub(in crate::volume) metadata: ObjectMeta,
    pub(in crate::volume) spec: ContentSpec,
    pub(in crate::volume) status: Option<ContentStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct ContentSpec {
    pub(in crate::volume) volume_snapshot_ref: ObjectReference,
    pub(in crate::volume) deletion_policy: String,
    pub(in crate::volume) driver: String,
    pub(in crate::volume) source: ContentSource,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct ContentSource {
    pub(in crate::volume) volume_handle: Option<String>,
    pub(in crate::volume) snapshot_handle: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct ContentStatus {
    pub(in crate::volume) snapshot_handle: Option<String>,
    /// Nanoseconds since 1970.
    pub(in crate::volume) creation_time: Option<i64>,
    pub(in crate::volume) restore_size: Option<i64>,
    pub(in crate::volume) ready_to_use: Option<bool>,
    pub(in crate::volume) error: Option<SnapshotError>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::volume) struct VolumeSnapshotClass {
    #[serde(deserialize_with = "api::read::by_table")]
    pub(in crate::volume) metadata: ObjectMeta,
    pub(in crate::volume) driver: String,
    pub(in crate::volume) deletion_policy: String,
    pub(in crate::volume) parameters: Option<BTreeMap<String, String>>,
}

kind!(VolumeSnapshot, "volumesnapshots", NamespaceResourceScope);
kind!(VolumeSnapshotContent, "volumesnapshotcontents", ClusterResourceScope);
kind!(VolumeSnapshotClass, "volumesnapshotclasses", ClusterResourceScope);

/// The CustomResourceDefinitions.
pub(in crate::volume) fn definitions() -> [Value; 3] {
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer", "format": "int64" });
    let size = json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] });
    let policy = json!({ "type": "string", "enum": ["Delete", "Retain"] });
    let error = json!({ "type": "object", "properties": { "message": text, "time": { "type": "string", "format": "date-time" } } });
    let fixed = |rule: &str, message: &str| json!({ "rule": rule, "message": message });
    let one_of = |one: &str, other: &str| {
        json!([
            fixed(
                &format!("has(self.{one}) != has(self.{other})"),
                &format!("exactly one of {one} and {other} must be set")
            ),
            fixed(&format!("!has(oldSelf.{one}) || has(self.{one})"), &format!("{one} is required once set")),
            fixed(&format!("!has(oldSelf.{other}) || has(self.{other})"), &format!("{other} is required once set")),
        ])
    };
    let immutable = |name: &str| json!({ "type": "string", "x-kubernetes-validations": [fixed("self == oldSelf", &format!("{name} is immutable"))] });
    let snapshot = json!({
        "type": "object", "required": ["spec"], "properties": {
            "spec": { "type": "object", "required": ["source"], "properties": {
                "source": {
                    "type": "object",
                    "properties": {
                        "persistentVolumeClaimName": immutable("persistentVolumeClaimName"),
                        "volumeSnapshotContentName": immutable("volumeSnapshotContentName"),
                    },
                    "x-kubernetes-validations": one_of("persistentVolumeClaimName", "volumeSnapshotContentName"),
                },
                "volumeSnapshotClassName": {
                    "type": "string",
                    "x-kubernetes-validations": [fixed("size(self) > 0", "volumeSnapshotClassName must not be the empty string when set")],
                },
            } },
            "status": { "type": "object", "properties": {
                "boundVolumeSnapshotContentName": text,
                "creationTime": { "type": "string", "format": "date-time" },
                "readyToUse": { "type": "boolean" }, "restoreSize": size,
                "error": error, "volumeGroupSnapshotName": text,
            } },
        },
    });
    let reference = json!({ "type": "object", "x-kubernetes-map-type": "atomic", "properties": {
        "apiVersion": text, "kind": text, "namespace": text, "name": text, "uid": text, "fieldPath": text, "resourceVersion": text,
    }, "x-kubernetes-validations": [fixed("has(self.name) && has(self.__namespace__)", "both volumeSnapshotRef.name and volumeSnapshotRef.namespace must be set")] });
    let content = json!({
        "type": "object", "required": ["spec"], "properties": {
            "spec": { "type": "object", "required": ["deletionPolicy", "driver", "source", "volumeSnapshotRef"], "properties": {
                "deletionPolicy": policy, "driver": immutable("driver"),
                "source": {
                    "type": "object",
                    "properties": {
                        "volumeHandle": immutable("volumeHandle"), "snapshotHandle": immutable("snapshotHandle"),
                    },
                    "x-kubernetes-validations": one_of("volumeHandle", "snapshotHandle"),
                },
                "sourceVolumeMode": immutable("sourceVolumeMode"),
                "volumeSnapshotClassName": text, "volumeSnapshotRef": reference,
            } },
            "status": { "type": "object", "properties": {
                "snapshotHandle": text, "creationTime": number, "restoreSize": number,
                "readyToUse": { "type": "boolean" }, "error": error, "volumeGroupSnapshotHandle": text,
            } },
        },
    });
    let class = json!({
        "type": "object", "required": ["deletionPolicy", "driver"], "properties": {
            "deletionPolicy": policy, "driver": text,
            "parameters": { "type": "object", "additionalProperties": text },
        },
    });
    let column = |name: &str, kind: &str, path: &str| json!({ "name": name, "type": kind, "jsonPath": path });
    [
        definition(
            ("VolumeSnapshot", "volumesnapshots", "volumesnapshot", "vs"),
            "Namespaced",
            snapshot,
            json!([
                column("ReadyToUse", "boolean", ".status.readyToUse"),
                column("SourcePVC", "string", ".spec.source.persistentVolumeClaimName"),
                column("SourceSnapshotContent", "string", ".spec.source.volumeSnapshotContentName"),
                column("RestoreSize", "string", ".status.restoreSize"),
                column("SnapshotClass", "string", ".spec.volumeSnapshotClassName"),
                column("SnapshotContent", "string", ".status.boundVolumeSnapshotContentName"),
                column("CreationTime", "date", ".status.creationTime"),
                column("Age", "date", ".metadata.creationTimestamp"),
            ]),
        ),
        definition(
            ("VolumeSnapshotContent", "volumesnapshotcontents", "volumesnapshotcontent", "vsc"),
            "Cluster",
            content,
            json!([
                column("ReadyToUse", "boolean", ".status.readyToUse"),
                column("RestoreSize", "integer", ".status.restoreSize"),
                column("DeletionPolicy", "string", ".spec.deletionPolicy"),
                column("Driver", "string", ".spec.driver"),
                column("VolumeSnapshotClass", "string", ".spec.volumeSnapshotClassName"),
                column("VolumeSnapshot", "string", ".spec.volumeSnapshotRef.name"),
                column("VolumeSnapshotNamespace", "string", ".spec.volumeSnapshotRef.namespace"),
                column("Age", "date", ".metadata.creationTimestamp"),
            ]),
        ),
        definition(
            ("VolumeSnapshotClass", "volumesnapshotclasses", "volumesnapshotclass", "vsclass"),
            "Cluster",
            class,
            json!([
                column("Driver", "string", ".driver"),
                column("DeletionPolicy", "string", ".deletionPolicy"),
                column("Age", "date", ".metadata.creationTimestamp"),
            ]),
        ),
    ]
}

fn definition(names: (&str, &str, &str, &str), scope: &str, schema: Value, columns: Value) -> Value {
    let (kind, plural, singular, short) = names;
    let has_status = scope == "Namespaced" || kind == "VolumeSnapshotContent";
    let subresources = if has_status { json!({ "status": {} }) } else { json!({}) };
    let mut shorts = vec![short.to_owned()];
    if short.len() == 3 {
        shorts.push(format!("{short}s")); // vscs
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "labels": { MANAGED_BY.0: MANAGED_BY.1 },
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814" },
        },
        "spec": {
            "group": GROUP, "scope": scope,
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular, "shortNames": shorts },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": subresources,
                "schema": { "openAPIV3Schema": schema }, "additionalPrinterColumns": columns,
            }],
        },
    })
}
