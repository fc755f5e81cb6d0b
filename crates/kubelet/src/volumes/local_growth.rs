//! Local volumes that have become larger: the file system of a device takes all of the device, and the claim is told. Of a
//! directory, and of a device that is used as one, there is nothing to grow: the claim is told all the same.
//!
//! Nobody makes a local volume larger but whoever made it: the volume's capacity says that it is.

use std::path::{Path, PathBuf};

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::error::{Cause, Operation};
use super::growth::{self, Telling};
use super::kernel::Linux;
use super::{VolumeError, Volumes, blocking, host_path, local_device, mounts};
use crate::state;

/// A local volume that its claim says is to grow here.
pub(super) struct LocalGrowth {
    /// Of the PersistentVolume.
    name: String,
    size: Quantity,
    path: PathBuf,
    is_block: bool,
    /// The pod has it already, and goes on with what it has.
    is_in_use: bool,
}

impl LocalGrowth {
    /// Whether it is this pod's to grow the volume. One that only reads it hears once, when it is given the volume, that it is not.
    fn is_for(&self, is_read_only: bool) -> bool {
        !(is_read_only && self.is_in_use)
    }
}

impl Volumes {
    /// Whether a volume is to grow, looked at before it is set up.
    pub(super) async fn local_growth(
        &self,
        pod: &Pod,
        volume: &str,
        claim: &PersistentVolumeClaim,
        bound: &PersistentVolume,
    ) -> std::io::Result<Option<LocalGrowth>> {
        let Some((spec, source)) = bound.spec.as_ref().and_then(|spec| Some((spec, spec.local.as_ref()?))) else {
            return Ok(None);
        };
        let Some(size) = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage")) else { return Ok(None) };
        // A local volume is on one node: what its claim says has grown has grown here.
        if growth::due(claim, size).is_none_or(|growth| growth.telling == Telling::Nothing) {
            return Ok(None);
        }
        let name = bound.metadata.name();
        let key = (state::uid(pod).to_owned(), volume.to_owned());
        let is_known = self.claimed.lock().contains_key(&key);
        // A kubelet before this one may have given it to the pod.
        let shown = self.dir(pod, local_device::PLUGIN, name);
        let is_in_use = is_known || blocking(move || mounts::is_mounted_at(&Linux, &shown)).await?;
        Ok(Some(LocalGrowth {
            name: name.to_owned(),
            size: size.clone(),
            path: PathBuf::from(&source.path),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            is_in_use,
        }))
    }

    /// Grows a volume that is set up.
    pub(super) async fn grow_local(
        &self,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
        local: &LocalGrowth,
        is_read_only: bool,
    ) -> Result<(), VolumeError> {
        if !local.is_for(is_read_only) {
            return Ok(());
        }
        let operation = match (local.is_in_use, local.is_block) {
            (true, _) => Operation::ExpandInUse,
            (false, true) => Operation::ExpandMapped,
            (false, false) => Operation::ExpandMounted,
        };
        let grown = self.try_to_grow_local(pod, claim, local, is_read_only).await;
        match grown.map_err(|cause| VolumeError::of(operation, &local.name, cause)) {
            Err(error) if local.is_in_use => {
                self.csi.growing.warn(pod, &error);
                Ok(())
            }
            grown => grown,
        }
    }

    async fn try_to_grow_local(
        &self,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
        local: &LocalGrowth,
        is_read_only: bool,
    ) -> Result<(), Cause> {
        let (claim, volume) = ((claim.metadata.namespace(), claim.metadata.name()), (local.name.as_str(), &local.size));
        let Some(begun) = self.csi.growing.begin(pod, claim, volume, is_read_only).await? else { return Ok(()) };
        let grown = match local.is_block {
            true => Ok(()),
            false => self.grow_file_system(&local.name, &local.path).await.map_err(Cause::from),
        };
        if let Err(cause) = grown {
            // Nobody could go back to another size: there is no resizer of local volumes.
            self.csi.growing.fail(&begun, &cause, false).await;
            return Err(cause);
        }
        self.csi.growing.end(&begun).await.map_err(Cause::from)
    }

    async fn grow_file_system(&self, name: &str, path: &Path) -> std::io::Result<()> {
        let looked = path.to_owned();
        match blocking(move || Ok(host_path::check(&looked, "BlockDevice").is_ok())).await? {
            true => self.local_devices.grow(name, path.to_owned()).await,
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_only_reads_hears_once_that_nothing_grows() {
        for (is_in_use, is_read_only, expected) in
            [(false, false, true), (true, false, true), (false, true, true), (true, true, false)]
        {
            let (name, size, path) = ("pv".to_owned(), Quantity("1Gi".to_owned()), PathBuf::from("/disk"));
            let growth = LocalGrowth { name, size, path, is_block: false, is_in_use };
            assert_eq!(growth.is_for(is_read_only), expected, "in use: {is_in_use}, read-only: {is_read_only}");
        }
    }
}
