//! Waiting for an attacher: the volume is told as used here, and then somebody attaches it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::layout::{attachment_name, unique_name};
use super::{Csi, Wanted};

/// Between two looks: a kubelet may get this object, and not watch it.
const LOOK_FIRST: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(5);

impl Csi {
    /// What the attacher says of the attached volume.
    pub(super) async fn wait_for_attachment(&self, wanted: &Wanted) -> Result<BTreeMap<String, String>, String> {
        let Wanted { handle, driver, .. } = wanted;
        match tokio::time::timeout(self.call_timeout, self.attached(wanted)).await {
            Ok(attached) => attached,
            Err(_) => {
                Err(format!("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"))
            }
        }
    }

    async fn attached(&self, wanted: &Wanted) -> Result<BTreeMap<String, String>, String> {
        let Wanted { handle, driver, .. } = wanted;
        self.in_use.add(&unique_name(driver, handle)).await;
        let name = attachment_name(handle, driver, &self.node_name);
        let mut retry = client::backoff::Backoff::new(LOOK_FIRST, LOOK_MAX);
        loop {
            let found = self.client.all::<VolumeAttachment>().get(&name).await;
            match found {
                Ok(attachment) => {
                    let status = attachment.status.unwrap_or_default();
                    if status.attached {
                        return Ok(status.attachment_metadata.unwrap_or_default());
                    }
                    if let Some(error) = status.attach_error {
                        return Err(error.message.unwrap_or_default());
                    }
                }
                // Not made yet: until then it is nobody's business here.
                Err(error) if error.is_not_found() || error.is_forbidden() => {}
                Err(error) => {
                    return Err(format!("volume {handle} has GET error for volume attachment {name}: {error}"));
                }
            }
            tokio::time::sleep(retry.next_delay()).await;
        }
    }
}
