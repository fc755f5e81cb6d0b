//! Waiting for an attacher: the volume is told as used here, and then somebody attaches it.

use std::collections::BTreeMap;
use std::time::Duration;

use api::attachable::csi_name;
use csi::tonic::Code;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::layout::attachment_name;
use super::{Csi, Wanted};
use crate::volumes::attached::NodeUnknown;

/// Between two looks: a kubelet may get this object, and not watch it. The node's status, which says at last that the volume is
/// attached, is watched.
const LOOK_FIRST: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(5);
/// What attachers write when the node has as many volumes as it may have.
const NO_ROOM: i32 = Code::ResourceExhausted as i32;

/// Why a volume is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}")]
    TimedOut { driver: String, handle: String },
    /// The object of the driver came later than the pod.
    #[error("CSI driver {driver} says by now that its volumes need no attachment")]
    NotNeeded { driver: String },
    /// Nobody attaches it but the attach-detach controller, which has not said so.
    #[error("volume not attached according to node status")]
    NotReported,
    /// What the attacher wrote.
    #[error("{0}")]
    Attacher(String),
    /// And what that means after a while, in upstream's words.
    #[error(
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{volume}], \
         unattached volumes=[{volume}], failed to process volumes=[]: context deadline exceeded"
    )]
    NoRoom { volume: String },
    #[error("volume {handle} has GET error for volume attachment {name}: {source}")]
    Unreadable { handle: String, name: String, source: client::Error },
    #[error(transparent)]
    Node(#[from] NodeUnknown),
}

impl Csi {
    /// What the attacher says of the attached volume.
    pub(super) async fn wait_for_attachment(
        &self,
        wanted: &Wanted,
        uid: &str,
    ) -> Result<BTreeMap<String, String>, AttachError> {
        let attached = tokio::time::timeout(self.call_timeout, self.until_attached(wanted, uid)).await;
        attached.unwrap_or_else(|_| {
            Err(AttachError::TimedOut { driver: wanted.driver.clone(), handle: wanted.handle.clone() })
        })
    }

    async fn until_attached(&self, wanted: &Wanted, uid: &str) -> Result<BTreeMap<String, String>, AttachError> {
        let Wanted { handle, driver, .. } = wanted;
        let volume = csi_name(driver, handle);
        self.attached.in_use.add(&volume, uid).await;
        let name = attachment_name(handle, driver, &self.node_name);
        let mut retry = client::backoff::Backoff::new(LOOK_FIRST, LOOK_MAX);
        let mut changes = self.attached.changes();
        loop {
            // Nobody attaches it then, and the next attempt goes by what the object says.
            if !wanted.needs_attachment(self.objects.get(driver).as_deref()) {
                self.attached.in_use.release(&volume, uid);
                return Err(AttachError::NotNeeded { driver: driver.clone() });
            }
            let found = self.client.all::<VolumeAttachment>().get(&name).await;
            match found {
                Ok(attachment) => {
                    let is_leaving = attachment.metadata.deletion_timestamp.is_some();
                    let status = attachment.status.unwrap_or_default();
                    if status.attached && !is_leaving && self.attached.is_reported(&volume).await? {
                        self.forget_room(uid, Some(&wanted.spec_name));
                        return Ok(status.attachment_metadata.unwrap_or_default());
                    }
                    if let Some(error) = status.attach_error {
                        if error.error_code == Some(NO_ROOM) && self.is_without_room(wanted, uid).await {
                            return Err(AttachError::NoRoom { volume: wanted.volume.clone() });
                        }
                        return Err(AttachError::Attacher(error.message.unwrap_or_default()));
                    }
                }
                // Not made yet: until then it is nobody's business here.
                Err(error) if error.is_not_found() || error.is_forbidden() => {}
                Err(source) => return Err(AttachError::Unreadable { handle: handle.clone(), name, source }),
            }
            // The sender lives as long as this.
            let _ = tokio::time::timeout(retry.next_delay(), changes.changed()).await;
        }
    }
}
