//! Waiting for an attacher: the volume is told as used here, and then somebody attaches it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::layout::{attachment_name, unique_name};
use super::{Csi, Wanted};

/// Between two looks: a kubelet may get this object, and not watch it.
const LOOK_FIRST: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(5);
/// On nodes whose volumes the attach-detach controller attaches.
pub(crate) const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Why a volume is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}")]
    TimedOut { driver: String, handle: String },
    /// What the attacher wrote.
    #[error("{0}")]
    Attacher(String),
    #[error("volume {handle} has GET error for volume attachment {name}: {source}")]
    Unreadable { handle: String, name: String, source: client::Error },
    #[error("failed to get node {name:?}: {source}")]
    Node { name: String, source: client::Error },
}

impl Csi {
    /// What the attacher says of the attached volume.
    pub(super) async fn wait_for_attachment(
        &self,
        wanted: &Wanted,
        uid: &str,
    ) -> Result<BTreeMap<String, String>, AttachError> {
        let attached = tokio::time::timeout(self.call_timeout, self.attached(wanted, uid)).await;
        attached.unwrap_or_else(|_| {
            Err(AttachError::TimedOut { driver: wanted.driver.clone(), handle: wanted.handle.clone() })
        })
    }

    async fn attached(&self, wanted: &Wanted, uid: &str) -> Result<BTreeMap<String, String>, AttachError> {
        let Wanted { handle, driver, .. } = wanted;
        let volume = unique_name(driver, handle);
        self.in_use.add(&volume, uid).await;
        let name = attachment_name(handle, driver, &self.node_name);
        let mut retry = client::backoff::Backoff::new(LOOK_FIRST, LOOK_MAX);
        loop {
            let found = self.client.all::<VolumeAttachment>().get(&name).await;
            match found {
                Ok(attachment) => {
                    let is_leaving = attachment.metadata.deletion_timestamp.is_some();
                    let status = attachment.status.unwrap_or_default();
                    if status.attached && !is_leaving && self.is_reported(&volume).await? {
                        return Ok(status.attachment_metadata.unwrap_or_default());
                    }
                    if let Some(error) = status.attach_error {
                        return Err(AttachError::Attacher(error.message.unwrap_or_default()));
                    }
                }
                // Not made yet: until then it is nobody's business here.
                Err(error) if error.is_not_found() || error.is_forbidden() => {}
                Err(source) => return Err(AttachError::Unreadable { handle: handle.clone(), name, source }),
            }
            tokio::time::sleep(retry.next_delay()).await;
        }
    }

    /// Whether the node is told that the volume is attached. Whoever is about to detach it takes that back first and looks at
    /// `volumesInUse` then: so either they see that it is used here, or we see that it goes.
    async fn is_reported(&self, volume: &str) -> Result<bool, AttachError> {
        let node = self.client.all::<Node>().get(&self.node_name).await;
        let node = node.map_err(|source| AttachError::Node { name: self.node_name.clone(), source })?;
        Ok(is_reported(&node, volume))
    }
}

/// A node that attaches by itself is told nothing.
fn is_reported(node: &Node, volume: &str) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    let is_managed = annotations.and_then(|all| all.get(MANAGED)).is_some_and(|value| value == "true");
    let reported = node.status.as_ref().and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default();
    !is_managed || reported.iter().any(|attached| attached.name == volume)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_that_is_about_to_be_detached_is_not_used() {
        for (managed, reported, expected) in [
            ("true", json!([{"name": "v", "devicePath": ""}]), true),
            ("true", json!([{"name": "w", "devicePath": ""}]), false),
            ("true", json!(null), false),
            ("false", json!(null), true),
        ] {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"annotations": {MANAGED: managed}}, "status": {"volumesAttached": reported},
            }))
            .unwrap();
            assert_eq!(is_reported(&node, "v"), expected, "{managed} {reported}");
        }
    }
}
