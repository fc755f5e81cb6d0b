//! Volumes of drivers that were part of Kubernetes once: they mean a volume of the CSI driver that took the work over
//! (`csi-translation-lib`, v1.36). Provisioners of classes are translated by the binder.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec, SecretReference};

const ZONES: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

/// What a volume is to CSI: its own source, or what its older one means. None for volumes that are no driver's.
pub fn csi_source(volume: &PersistentVolume) -> Option<Cow<'_, CSIPersistentVolumeSource>> {
    let spec = volume.spec.as_ref()?;
    match &spec.csi {
        Some(own) => Some(Cow::Borrowed(own)),
        None => translated(volume, spec).map(Cow::Owned),
    }
}

fn translated(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<CSIPersistentVolumeSource> {
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
        return Some(with(source, "partition", partition(disk.partition)));
    }
    if let Some(disk) = &spec.aws_elastic_block_store {
        let source = made("ebs.csi.aws.com", ebs_handle(&disk.volume_id)?, &disk.fs_type, disk.read_only);
        return Some(with(source, "partition", partition(disk.partition)));
    }
    if let Some(disk) = &spec.azure_disk {
        let source = made("disk.csi.azure.com", disk.disk_uri.clone(), &disk.fs_type, disk.read_only);
        let source = with(source, "cachingMode", disk.caching_mode.clone());
        let source = with(source, "fsType", disk.fs_type.clone());
        return Some(with(source, "kind", disk.kind.clone().or_else(|| Some("Managed".to_owned()))));
    }
    if let Some(share) = &spec.azure_file {
        let account = share.secret_name.strip_prefix("azure-storage-account-");
        let account = account.and_then(|rest| rest.strip_suffix("-secret")).filter(|account| !account.is_empty());
        let group = volume.metadata.annotations.as_ref().and_then(|all| all.get(RESOURCE_GROUP));
        let (group, account) = (group.map_or("", String::as_str), account.unwrap_or(&share.secret_name));
        // Who has the claim knows the secret.
        let of_claim = spec.claim_ref.as_ref().and_then(|claim| claim.namespace.as_ref());
        let namespace = share.secret_namespace.as_ref().or(of_claim).filter(|namespace| !namespace.is_empty())?;
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let handle = format!("{group}#{account}#{}#{name}#{namespace}", share.share_name);
        let secret = SecretReference { name: Some(share.secret_name.clone()), namespace: Some(namespace.clone()) };
        let source = made("file.csi.azure.com", handle, &None, share.read_only);
        let source = CSIPersistentVolumeSource { node_stage_secret_ref: Some(secret), ..source };
        return Some(with(source, "sharename", Some(share.share_name.clone())));
    }
    if let Some(disk) = &spec.cinder {
        return Some(made("cinder.csi.openstack.org", disk.volume_id.clone(), &disk.fs_type, disk.read_only));
    }
    if let Some(disk) = &spec.vsphere_volume {
        let source = made("csi.vsphere.vmware.com", disk.volume_path.clone(), &disk.fs_type, None);
        return Some(with(source, "storagepolicyname", disk.storage_policy_name.clone()));
    }
    let disk = spec.portworx_volume.as_ref()?;
    Some(made("pxd.portworx.com", disk.volume_id.clone(), &disk.fs_type, disk.read_only))
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
                json!({}),
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
            json!({ "azureFile": { "secretName": "k", "shareName": "s" } }),
        ] {
            let volume: PersistentVolume = serde_json::from_value(json!({ "spec": spec })).unwrap_or_default();
            assert_eq!(csi_source(&volume), None, "{}", Value::from(serde_json::to_string(&volume).unwrap()));
        }
    }
}
