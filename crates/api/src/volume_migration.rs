//! Volumes of drivers that were part of Kubernetes once: they mean a volume of the CSI driver that took the work over
//! (`csi-translation-lib`, v1.36), whether a PersistentVolume or a pod names them. Provisioners of classes are translated
//! by the binder.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    AzureFilePersistentVolumeSource, CSIPersistentVolumeSource, CinderPersistentVolumeSource, PersistentVolume,
    PersistentVolumeSpec, SecretReference, Volume,
};

use crate::meta::Meta as _;

const ZONES: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
/// The only kind of Azure's disks that its CSI driver has.
const MANAGED: &str = "Managed";
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

/// A volume of a removed driver that no CSI driver can be asked for, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigrationError {
    #[error(
        "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID invalid format for AWS volume ({0})"
    )]
    AwsVolume(String),
    #[error("failed to translate in-tree pv to CSI: kind({0}) is not supported in csi migration")]
    AzureKind(String),
    #[error("failed to translate in-tree pv to CSI: the namespace of the secret {0:?} is not known")]
    AzureNamespace(String),
}

/// What a volume is to CSI: its own source, or what its older one means. None for volumes that are no driver's, and for
/// those that cannot be asked of one.
pub fn csi_source(volume: &PersistentVolume) -> Option<Cow<'_, CSIPersistentVolumeSource>> {
    try_csi_source(volume).ok().flatten()
}

/// As [`csi_source`], for those who have to say why there is none.
pub fn try_csi_source(volume: &PersistentVolume) -> Result<Option<Cow<'_, CSIPersistentVolumeSource>>, MigrationError> {
    let Some(spec) = volume.spec.as_ref() else { return Ok(None) };
    match &spec.csi {
        Some(own) => Ok(Some(Cow::Borrowed(own))),
        None => Ok(translated(volume, spec)?.map(Cow::Owned)),
    }
}

/// What an inline volume of a pod is to CSI, if it is one of a removed driver: a volume of its own that no object is
/// there for. It has the name that it has in the pod.
pub fn inline(volume: &Volume, namespace: &str) -> Result<Option<PersistentVolume>, MigrationError> {
    let is_older = volume.aws_elastic_block_store.is_some()
        || volume.azure_disk.is_some()
        || volume.azure_file.is_some()
        || volume.cinder.is_some()
        || volume.gce_persistent_disk.is_some()
        || volume.portworx_volume.is_some()
        || volume.vsphere_volume.is_some();
    if !is_older {
        return Ok(None);
    }
    let spec = PersistentVolumeSpec {
        aws_elastic_block_store: volume.aws_elastic_block_store.clone(),
        azure_disk: volume.azure_disk.clone(),
        gce_persistent_disk: volume.gce_persistent_disk.clone(),
        portworx_volume: volume.portworx_volume.clone(),
        vsphere_volume: volume.vsphere_volume.clone(),
        azure_file: volume.azure_file.as_ref().map(|share| AzureFilePersistentVolumeSource {
            read_only: share.read_only,
            secret_name: share.secret_name.clone(),
            secret_namespace: Some(namespace.to_owned()),
            share_name: share.share_name.clone(),
        }),
        cinder: volume.cinder.as_ref().map(|disk| CinderPersistentVolumeSource {
            fs_type: disk.fs_type.clone(),
            read_only: disk.read_only,
            secret_ref: None,
            volume_id: disk.volume_id.clone(),
        }),
        ..PersistentVolumeSpec::default()
    };
    let is_read_only_for_many = spec.gce_persistent_disk.as_ref().is_some_and(|disk| disk.read_only == Some(true))
        || spec.portworx_volume.as_ref().is_some_and(|disk| disk.read_only == Some(true));
    let access_mode = match spec.azure_file {
        Some(_) => "ReadWriteMany",
        None if is_read_only_for_many => "ReadOnlyMany",
        None => "ReadWriteOnce",
    };
    let mut found = PersistentVolume::default();
    found.metadata.name = Some(volume.name.clone());
    let Some(csi) = translated(&found, &spec)? else { return Ok(None) };
    found.spec = Some(PersistentVolumeSpec {
        access_modes: Some(vec![access_mode.to_owned()]),
        csi: Some(csi),
        volume_mode: Some("Filesystem".to_owned()),
        ..PersistentVolumeSpec::default()
    });
    Ok(Some(found))
}

fn translated(
    volume: &PersistentVolume,
    spec: &PersistentVolumeSpec,
) -> Result<Option<CSIPersistentVolumeSource>, MigrationError> {
    let made =
        |driver: &str, handle: String, fs_type: &Option<String>, read_only: Option<bool>| CSIPersistentVolumeSource {
            driver: driver.to_owned(),
            volume_handle: handle,
            fs_type: fs_type.clone(),
            read_only,
            volume_attributes: Some(BTreeMap::new()),
            ..CSIPersistentVolumeSource::default()
        };
    let with = |mut source: CSIPersistentVolumeSource, name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            source.volume_attributes.get_or_insert_default().insert(name.to_owned(), value);
        }
        source
    };
    let partition = |number: Option<i32>| number.filter(|number| *number != 0).map(|number| number.to_string());
    if let Some(disk) = &spec.gce_persistent_disk {
        let handle = format!("projects/UNSPECIFIED/{}/disks/{}", place(volume), disk.pd_name);
        let source = made("pd.csi.storage.gke.io", handle, &disk.fs_type, disk.read_only);
        return Ok(Some(with(source, "partition", partition(disk.partition))));
    }
    if let Some(disk) = &spec.aws_elastic_block_store {
        let handle = ebs_handle(&disk.volume_id);
        let handle = handle.ok_or_else(|| MigrationError::AwsVolume(disk.volume_id.clone()))?;
        let source = made("ebs.csi.aws.com", handle, &disk.fs_type, disk.read_only);
        return Ok(Some(with(source, "partition", Some(disk.partition.unwrap_or_default().to_string()))));
    }
    if let Some(disk) = &spec.azure_disk {
        if let Some(kind) = disk.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
            return Err(MigrationError::AzureKind(kind.clone()));
        }
        let source = made("disk.csi.azure.com", disk.disk_uri.clone(), &disk.fs_type, disk.read_only);
        let source = with(source, "cachingMode", disk.caching_mode.clone());
        let source = with(source, "fsType", disk.fs_type.clone());
        return Ok(Some(with(source, "kind", Some(MANAGED.to_owned()))));
    }
    if let Some(share) = &spec.azure_file {
        let account = share.secret_name.strip_prefix("azure-storage-account-");
        let account = account.and_then(|rest| rest.strip_suffix("-secret")).filter(|account| !account.is_empty());
        let group = volume.metadata.annotations.as_ref().and_then(|all| all.get(RESOURCE_GROUP));
        let (group, account) = (group.map_or("", String::as_str), account.unwrap_or(&share.secret_name));
        // Who has the claim knows the secret.
        let of_claim = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.as_ref());
        let namespace = share.secret_namespace.as_ref().or(of_claim).filter(|namespace| !namespace.is_empty());
        let namespace = namespace.ok_or_else(|| MigrationError::AzureNamespace(share.secret_name.clone()))?;
        let name = volume.metadata.name();
        let handle = format!("{group}#{account}#{}#{name}#{namespace}", share.share_name);
        let secret = SecretReference { name: Some(share.secret_name.clone()), namespace: Some(namespace.clone()) };
        let source = made("file.csi.azure.com", handle, &None, share.read_only);
        let source = CSIPersistentVolumeSource { node_stage_secret_ref: Some(secret), ..source };
        return Ok(Some(with(source, "sharename", Some(share.share_name.clone()))));
    }
    if let Some(disk) = &spec.cinder {
        return Ok(Some(made("cinder.csi.openstack.org", disk.volume_id.clone(), &disk.fs_type, disk.read_only)));
    }
    if let Some(disk) = &spec.vsphere_volume {
        let source = made("csi.vsphere.vmware.com", disk.volume_path.clone(), &disk.fs_type, None);
        return Ok(Some(with(source, "storagepolicyname", disk.storage_policy_name.clone())));
    }
    let disk = spec.portworx_volume.as_ref();
    Ok(disk.map(|disk| made("pxd.portworx.com", disk.volume_id.clone(), &disk.fs_type, disk.read_only)))
}

/// Where a disk of Google's is, as its handle says it: the volume's labels name its zones.
fn place(volume: &PersistentVolume) -> String {
    let labels = volume.metadata.labels.as_ref();
    let zones = ZONES.iter().find_map(|key| labels?.get(*key)).map(|zones| zones.split("__").collect::<Vec<_>>());
    match zones.as_deref() {
        Some([zone]) if !zone.is_empty() => format!("zones/{zone}"),
        Some([zone, _, ..]) => format!("regions/{}", zone.rsplit_once('-').map_or(*zone, |(region, _)| region)),
        _ => "zones/UNSPECIFIED".to_owned(),
    }
}

/// `vol-1`, `aws:///vol-1` and `aws://us-east-1a/vol-1` are the same disk.
fn ebs_handle(id: &str) -> Option<String> {
    let Some(rest) = id.strip_prefix("aws://") else { return Some(id.to_owned()) };
    let (_, name) = rest.split_once('/')?;
    (name.starts_with("vol-") && !name.contains('/')).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn older_sources_mean_volumes_of_their_drivers() {
        let zone = |zones: &str| json!({ "labels": { "topology.kubernetes.io/zone": zones } });
        let none = json!({});
        for (meta, spec, driver, handle, attributes) in [
            (&none, json!({ "csi": { "driver": "d", "volumeHandle": "h" } }), "d", "h", json!(null)),
            (
                &none,
                json!({ "gcePersistentDisk": { "pdName": "p", "partition": 2 } }),
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/p",
                json!({ "partition": "2" }),
            ),
            (
                &zone("us-c-1a"),
                json!({ "gcePersistentDisk": { "pdName": "p" } }),
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/zones/us-c-1a/disks/p",
                json!({}),
            ),
            (
                &zone("us-c1-a__us-c1-b"),
                json!({ "gcePersistentDisk": { "pdName": "p" } }),
                "pd.csi.storage.gke.io",
                "projects/UNSPECIFIED/regions/us-c1/disks/p",
                json!({}),
            ),
            (
                &none,
                json!({ "awsElasticBlockStore": { "volumeID": "aws://us-east-1a/vol-1" } }),
                "ebs.csi.aws.com",
                "vol-1",
                json!({ "partition": "0" }),
            ),
            (
                &none,
                json!({ "azureDisk": { "diskName": "n", "diskURI": "/u", "cachingMode": "None", "fsType": "ext4" } }),
                "disk.csi.azure.com",
                "/u",
                json!({ "cachingMode": "None", "fsType": "ext4", "kind": "Managed" }),
            ),
            (
                &json!({ "name": "pv", "annotations": { RESOURCE_GROUP: "rg" } }),
                json!({
                    "azureFile": { "secretName": "azure-storage-account-me-secret", "shareName": "s" },
                    "claimRef": { "namespace": "team", "name": "c" },
                }),
                "file.csi.azure.com",
                "rg#me#s#pv#team",
                json!({ "sharename": "s" }),
            ),
            (&none, json!({ "cinder": { "volumeID": "c" } }), "cinder.csi.openstack.org", "c", json!({})),
            (
                &none,
                json!({ "vsphereVolume": { "volumePath": "[d] v", "storagePolicyName": "gold" } }),
                "csi.vsphere.vmware.com",
                "[d] v",
                json!({ "storagepolicyname": "gold" }),
            ),
            (&none, json!({ "portworxVolume": { "volumeID": "w" } }), "pxd.portworx.com", "w", json!({})),
        ] {
            let volume: PersistentVolume = serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap();
            let found = csi_source(&volume).unwrap();
            assert_eq!((found.driver.as_str(), found.volume_handle.as_str()), (driver, handle));
            assert_eq!(serde_json::to_value(&found.volume_attributes).unwrap(), attributes, "{driver}");
        }
        for spec in [
            json!({ "hostPath": { "path": "/" } }),
            json!({ "nfs": { "server": "s", "path": "/" } }),
            json!({ "glusterfs": { "endpoints": "e", "path": "p" } }),
            json!({ "awsElasticBlockStore": { "volumeID": "aws://nonsense" } }),
            json!({ "azureDisk": { "diskName": "n", "diskURI": "/u", "kind": "Dedicated" } }),
            json!({ "azureFile": { "secretName": "k", "shareName": "s" } }),
        ] {
            let volume: PersistentVolume = serde_json::from_value(json!({ "spec": spec })).unwrap_or_default();
            assert_eq!(csi_source(&volume), None, "{}", Value::from(serde_json::to_string(&volume).unwrap()));
        }
    }

    #[test]
    fn inline_volumes_mean_volumes_of_their_own() {
        for (source, expected, modes) in [
            (
                json!({ "awsElasticBlockStore": { "volumeID": "vol-1", "fsType": "xfs", "partition": 1 } }),
                json!({ "driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "xfs", "volumeAttributes": { "partition": "1" } }),
                "ReadWriteOnce",
            ),
            (
                json!({ "gcePersistentDisk": { "pdName": "p", "readOnly": true } }),
                json!({ "driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/p",
                    "readOnly": true, "volumeAttributes": {} }),
                "ReadOnlyMany",
            ),
            (
                json!({ "azureDisk": { "diskName": "n", "diskURI": "/u", "kind": "managed" } }),
                json!({ "driver": "disk.csi.azure.com", "volumeHandle": "/u", "volumeAttributes": { "kind": "Managed" } }),
                "ReadWriteOnce",
            ),
            (
                json!({ "azureFile": { "secretName": "azure-storage-account-me-secret", "shareName": "s" } }),
                json!({ "driver": "file.csi.azure.com", "volumeHandle": "#me#s#v#team", "volumeAttributes": { "sharename": "s" },
                    "nodeStageSecretRef": { "name": "azure-storage-account-me-secret", "namespace": "team" } }),
                "ReadWriteMany",
            ),
            (
                json!({ "cinder": { "volumeID": "c", "secretRef": { "name": "s" } } }),
                json!({ "driver": "cinder.csi.openstack.org", "volumeHandle": "c", "volumeAttributes": {} }),
                "ReadWriteOnce",
            ),
            (
                json!({ "vsphereVolume": { "volumePath": "[d] v", "storagePolicyName": "gold" } }),
                json!({ "driver": "csi.vsphere.vmware.com", "volumeHandle": "[d] v", "volumeAttributes": { "storagepolicyname": "gold" } }),
                "ReadWriteOnce",
            ),
            (
                json!({ "portworxVolume": { "volumeID": "w" } }),
                json!({ "driver": "pxd.portworx.com", "volumeHandle": "w", "volumeAttributes": {} }),
                "ReadWriteOnce",
            ),
        ] {
            let found = inline(&volume(source), "team").unwrap().unwrap();
            assert_eq!(found.metadata.name.as_deref(), Some("v"));
            let spec = json!({ "accessModes": [modes], "csi": expected, "volumeMode": "Filesystem" });
            assert_eq!(serde_json::to_value(found.spec).unwrap(), spec);
        }
        for (source, why) in [
            (
                json!({ "awsElasticBlockStore": { "volumeID": "aws://a/b/c" } }),
                "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID invalid format for AWS volume (aws://a/b/c)",
            ),
            (
                json!({ "azureDisk": { "diskName": "n", "diskURI": "/u", "kind": "Shared" } }),
                "failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi migration",
            ),
        ] {
            assert_eq!(inline(&volume(source), "team").unwrap_err().to_string(), why);
        }
        for source in [json!({ "emptyDir": {} }), json!({ "csi": { "driver": "d" } }), json!({})] {
            assert_eq!(inline(&volume(source), "team"), Ok(None));
        }
    }

    fn volume(mut source: Value) -> Volume {
        source["name"] = json!("v");
        serde_json::from_value(source).unwrap()
    }
}
