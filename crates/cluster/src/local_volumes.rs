//! `local.cox` in every cluster: the driver's object, the default StorageClass, and the driver of each node. A claim that names
//! no class gets a folder on the node its pod lands on.

use anyhow::{Context, Result};
use client::{Client, DeleteParams};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::options::Options;

/// The class keeps the name that it had before there was a driver: claims name it.
const CLASS: &str = "local-path";

/// Makes what is not there; what someone changed stays as it is.
pub(crate) async fn ensure(client: &Client) -> Result<()> {
    match client.all::<CSIDriver>().create(&local_csi::object().context("the object of local.cox")?).await {
        Err(error) if !error.is_already_exists() => return Err(error).context("making the object of local.cox"),
        _ => {}
    }
    let classes = client.all::<StorageClass>();
    let wanted = class().context("the default storage class")?;
    let there = classes.get_opt(CLASS).await.context("reading the default storage class")?;
    let wanted = match there {
        None => wanted,
        Some(old) => match successor(&old, wanted) {
            None => return Ok(()),
            Some(wanted) => {
                // Who provisions for a class can never change: it is made anew. Volumes and claims only name it.
                let params = DeleteParams { uid: old.metadata.uid.clone(), ..DeleteParams::default() };
                match classes.delete(CLASS, &params).await {
                    Err(error) if !error.is_not_found() => return Err(error).context("replacing the storage class"),
                    _ => wanted,
                }
            }
        },
    };
    match classes.create(&wanted).await {
        Err(error) if !error.is_already_exists() => Err(error).context("making the default storage class"),
        _ => Ok(()),
    }
}

fn class() -> serde_json::Result<StorageClass> {
    api::codec::from_value(&json!({
        "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": local_csi::NAME,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
        // The scheduler chooses the node first: the folder can only be on one.
        "volumeBindingMode": "WaitForFirstConsumer",
    }))
}

/// What takes the place of a class that an earlier version made: with its labels and annotations, which may say that it is not
/// the default, and with its policy. None for a class that is not of that kind.
fn successor(old: &StorageClass, new: StorageClass) -> Option<StorageClass> {
    if old.provisioner != controllers::LOCAL_PATH {
        return None;
    }
    let metadata = ObjectMeta {
        name: Some(CLASS.to_owned()),
        labels: old.metadata.labels.clone(),
        annotations: old.metadata.annotations.clone(),
        ..ObjectMeta::default()
    };
    Some(StorageClass { metadata, reclaim_policy: old.reclaim_policy.clone().or(new.reclaim_policy.clone()), ..new })
}

/// The driver of one node.
pub(crate) fn config(options: &Options, node: &str, client: Client) -> local_csi::Config {
    local_csi::Config {
        node_name: node.to_owned(),
        dir: options.data_dir.join("local-volumes"),
        registry: options.data_dir.join("kubelet/plugins_registry"),
        client,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_an_earlier_version_is_replaced_as_it_was() {
        let old: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": CLASS, "uid": "u", "annotations": {"storageclass.kubernetes.io/is-default-class": "false"}},
            "provisioner": controllers::LOCAL_PATH, "reclaimPolicy": "Retain",
        }))
        .unwrap();
        let new = successor(&old, class().unwrap()).unwrap();
        assert_eq!((new.provisioner.as_str(), new.reclaim_policy.as_deref()), ("local.cox", Some("Retain")));
        assert_eq!((new.metadata.annotations, new.metadata.uid), (old.metadata.annotations.clone(), None));
        let foreign = StorageClass { provisioner: "rancher.io/local-path".into(), ..old };
        assert_eq!(successor(&foreign, class().unwrap()), None);
    }
}
