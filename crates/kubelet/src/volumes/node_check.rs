//! Whether a pod may have a volume on this node at all. It is asked once: what a pod has it keeps, also beyond the kubelet that
//! gave it.

use std::io;
use std::path::Path;

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};

use super::error::{Cause, Operation};
use super::{VolumeError, Volumes, blocking, csi, plugin_of_volume};
use crate::state;

impl Volumes {
    /// A volume may be there for other nodes: whoever chose this one for the pod need not have asked the scheduler.
    pub(super) async fn check_node(&self, pod: &Pod, bound: &PersistentVolume) -> Result<(), VolumeError> {
        let is_block = bound.spec.as_ref().is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"));
        let operation = if is_block { Operation::CheckNodeOfDevice } else { Operation::CheckNode };
        let fail = |cause: Cause| VolumeError::of(operation, bound.metadata.name(), cause);
        let (dir, plugin) = (self.pod_dir(state::uid(pod)), plugin_dir(bound));
        let name = bound.metadata.name().to_owned();
        // A kubelet before this one has asked already, and containers of the pod may have the volume since.
        if blocking(move || has_place(&dir, &plugin, &name)).await.map_err(|error| fail(error.into()))? {
            return Ok(());
        }
        match self.csi.attached.reaches(bound).await.map_err(|error| fail(error.into()))? {
            true => Ok(()),
            false => Err(fail(Cause::WrongNode)),
        }
    }
}

/// Who makes a volume ready, as part of a path. A plug-in that has none here is a CSI driver's.
pub(super) fn plugin_dir(volume: &PersistentVolume) -> String {
    match plugin_of_volume(volume) {
        "N/A" => csi::PLUGIN.to_owned(),
        plugin => plugin.replace('/', "~"),
    }
}

/// Whether a volume has a place of its own below a pod's directory: mounted, as a device, or in a record. The place is not looked
/// at: what is mounted there may not answer.
fn has_place(pod: &Path, plugin: &str, name: &str) -> io::Result<bool> {
    let record = format!("{name}.json");
    for (kind, place) in [("volumes", name), ("volumeDevices", name), ("plugins", record.as_str())] {
        if csi::names(&pod.join(kind).join(plugin))?.iter().any(|there| there == place) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_that_a_pod_has_is_found_by_its_place() {
        let pod = tempfile::tempdir().unwrap();
        for (spec, place) in [
            (json!({"local": {"path": "/disk"}}), "volumes/kubernetes.io~local-volume/pv"),
            (json!({"hostPath": {"path": "/disk"}}), "volumes/kubernetes.io~host-path/pv"),
            (json!({"nfs": {"server": "s", "path": "/"}}), "volumes/kubernetes.io~nfs/pv"),
            (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "volumes/kubernetes.io~csi/pv"),
            (json!({"csi": {"driver": "d", "volumeHandle": "h"}}), "volumeDevices/kubernetes.io~csi/pv"),
            (json!({"iscsi": {"targetPortal": "t", "iqn": "i", "lun": 0}}), "plugins/kubernetes.io~iscsi/pv.json"),
        ] {
            let volume: PersistentVolume =
                serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
            let has = |name: &str| has_place(pod.path(), &plugin_dir(&volume), name).unwrap();
            assert!(!has("pv"), "{place}");
            std::fs::create_dir_all(pod.path().join(place)).unwrap();
            assert!(has("pv") && !has("p"), "{place}");
            std::fs::remove_dir(pod.path().join(place)).unwrap();
        }
    }
}
