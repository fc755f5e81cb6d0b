//! Volumes: the sources that pods and persistent volumes can have.

use serde_json::Value;

use super::{Writer, plain};
use crate::objects::text;

pub(super) fn volumes(w: &mut Writer, list: &Value, space: &str) {
    let Some(list) = list.as_array().filter(|l| !l.is_empty()) else {
        return w.line(0, format!("{space}Volumes:\t<none>"));
    };
    w.line(0, format!("{space}Volumes:"));
    for v in list {
        w.line(1, format!("{}{}:", if space.is_empty() { "" } else { " " }, text(v, "/name")));
        volume_source(w, v, 2);
    }
}

/// The fields shown of a source: (title, JSON pointer below it).
type Rows = &'static [(&'static str, &'static str)];

/// (field, description, rows)
const SOURCES: &[(&str, &str, Rows)] = &[
    ("hostPath", "HostPath (bare host directory volume)", &[("Path", "/path"), ("HostPathType", "/type")]),
    (
        "emptyDir",
        "EmptyDir (a temporary directory that shares a pod's lifetime)",
        &[("Medium", "/medium"), ("SizeLimit", "/sizeLimit")],
    ),
    ("secret", "Secret (a volume populated by a Secret)", &[("SecretName", "/secretName"), ("Optional", "/optional")]),
    ("configMap", "ConfigMap (a volume populated by a ConfigMap)", &[("Name", "/name"), ("Optional", "/optional")]),
    (
        "nfs",
        "NFS (an NFS mount that lasts the lifetime of a pod)",
        &[("Server", "/server"), ("Path", "/path"), ("ReadOnly", "/readOnly")],
    ),
    (
        "persistentVolumeClaim",
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        &[("ClaimName", "/claimName"), ("ReadOnly", "/readOnly")],
    ),
    (
        "csi",
        "CSI (a Container Storage Interface (CSI) volume source)",
        &[("Driver", "/driver"), ("FSType", "/fsType"), ("ReadOnly", "/readOnly")],
    ),
    (
        "image",
        "Image (a container image or OCI artifact)",
        &[("Reference", "/reference"), ("PullPolicy", "/pullPolicy")],
    ),
    (
        "ephemeral",
        "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)",
        &[("StorageClass", "/volumeClaimTemplate/spec/storageClassName")],
    ),
    ("local", "LocalVolume (a persistent volume backed by local storage on a node)", &[("Path", "/path")]),
    (
        "gcePersistentDisk",
        "GCEPersistentDisk (a Persistent Disk resource in Google Compute Engine)",
        &[("PDName", "/pdName"), ("FSType", "/fsType"), ("Partition", "/partition"), ("ReadOnly", "/readOnly")],
    ),
    (
        "awsElasticBlockStore",
        "AWSElasticBlockStore (a Persistent Disk resource in AWS)",
        &[("VolumeID", "/volumeID"), ("FSType", "/fsType"), ("Partition", "/partition"), ("ReadOnly", "/readOnly")],
    ),
    (
        "iscsi",
        "ISCSI (an ISCSI Disk resource that is attached to a kubelet's host machine and then exposed to the pod)",
        &[
            ("TargetPortal", "/targetPortal"),
            ("IQN", "/iqn"),
            ("Lun", "/lun"),
            ("ISCSIInterface", "/iscsiInterface"),
            ("FSType", "/fsType"),
            ("ReadOnly", "/readOnly"),
            ("Portals", "/portals"),
            ("DiscoveryCHAPAuth", "/chapAuthDiscovery"),
            ("SessionCHAPAuth", "/chapAuthSession"),
            ("SecretRef", "/secretRef"),
            ("InitiatorName", "/initiatorName"),
        ],
    ),
    (
        "fc",
        "FC (a Fibre Channel disk)",
        &[("TargetWWNs", "/targetWWNs"), ("LUN", "/lun"), ("FSType", "/fsType"), ("ReadOnly", "/readOnly")],
    ),
    (
        "cephfs",
        "CephFS (a CephFS mount on the host that shares a pod's lifetime)",
        &[
            ("Monitors", "/monitors"),
            ("Path", "/path"),
            ("User", "/user"),
            ("SecretFile", "/secretFile"),
            ("SecretRef", "/secretRef"),
            ("ReadOnly", "/readOnly"),
        ],
    ),
    (
        "azureFile",
        "AzureFile (an Azure File Service mount on the host and bind mount to the pod)",
        &[("SecretName", "/secretName"), ("ShareName", "/shareName"), ("ReadOnly", "/readOnly")],
    ),
    (
        "azureDisk",
        "AzureDisk (an Azure Data Disk mount on the host and bind mount to the pod)",
        &[
            ("DiskName", "/diskName"),
            ("DiskURI", "/diskURI"),
            ("Kind", "/kind"),
            ("FSType", "/fsType"),
            ("CachingMode", "/cachingMode"),
            ("ReadOnly", "/readOnly"),
        ],
    ),
    (
        "vsphereVolume",
        "vSphereVolume (a Persistent Disk resource in vSphere)",
        &[("VolumePath", "/volumePath"), ("FSType", "/fsType"), ("StoragePolicyName", "/storagePolicyName")],
    ),
    (
        "cinder",
        "Cinder (a Persistent Disk resource in OpenStack)",
        &[("VolumeID", "/volumeID"), ("FSType", "/fsType"), ("ReadOnly", "/readOnly"), ("SecretRef", "/secretRef")],
    ),
    (
        "flexVolume",
        "FlexVolume (a generic volume resource that is provisioned/attached using an exec based plugin)",
        &[
            ("Driver", "/driver"),
            ("FSType", "/fsType"),
            ("SecretRef", "/secretRef"),
            ("ReadOnly", "/readOnly"),
            ("Options", "/options"),
        ],
    ),
];

/// The one source that `v` has, below its name.
pub(super) fn volume_source(w: &mut Writer, v: &Value, level: usize) {
    if let Some(projected) = v.get("projected") {
        w.line(level, "Type:\tProjected (a volume that contains injected data from multiple sources)");
        for s in projected["sources"].as_array().into_iter().flatten() {
            if let Some(secret) = s.get("secret") {
                w.line(2, format!("SecretName:\t{}", text(secret, "/name")));
                w.line(2, format!("Optional:\t{}", secret["optional"] == true));
            } else if s.get("downwardAPI").is_some() {
                w.line(2, "DownwardAPI:\ttrue");
            } else if let Some(map) = s.get("configMap") {
                w.line(2, format!("ConfigMapName:\t{}", text(map, "/name")));
                w.line(2, format!("Optional:\t{}", map["optional"] == true));
            } else if let Some(token) = s.get("serviceAccountToken") {
                w.line(2, format!("TokenExpirationSeconds:\t{}", plain(&token["expirationSeconds"])));
            }
        }
        return;
    }
    if let Some(downward) = v.get("downwardAPI") {
        w.line(2, "Type:\tDownwardAPI (a volume populated by information about the pod)\n    Items:");
        for item in downward["items"].as_array().into_iter().flatten() {
            if item["fieldRef"].is_object() {
                w.line(3, format!("{} -> {}", text(item, "/fieldRef/fieldPath"), text(item, "/path")));
            }
            if item["resourceFieldRef"].is_object() {
                w.line(3, format!("{} -> {}", text(item, "/resourceFieldRef/resource"), text(item, "/path")));
            }
        }
        return;
    }
    for (field, description, rows) in SOURCES {
        let Some(source) = v.get(*field) else { continue };
        w.line(level, format!("Type:\t{description}"));
        for (title, pointer) in *rows {
            let value = source.pointer(pointer).map(plain).unwrap_or_default();
            let value = match (*title, value.as_str()) {
                ("Optional" | "ReadOnly", "") => "false".to_owned(),
                ("SizeLimit", "") => "<unset>".to_owned(),
                _ => value,
            };
            w.line(level, format!("{title}:\t{value}"));
        }
        return;
    }
    w.line(level, "<unknown>");
}
