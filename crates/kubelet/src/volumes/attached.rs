//! Waiting until the attach-detach controller says that a volume is attached to this node, for plug-ins whose volumes it
//! attaches: CSI's and iSCSI's. And whether a volume can be had on this node at all.

use std::sync::Arc;
use std::time::Duration;

use api::placement::is_reachable;
use client::{Client, Event, Informer};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use tokio::sync::watch;

use super::in_use::InUse;

/// On nodes whose volumes the attach-detach controller attaches.
pub(crate) const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Between two looks at a node that does not change.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Why it is not known whether a volume is attached.
#[derive(Debug, thiserror::Error)]
#[error("failed to get node {name:?}: {source}")]
pub(crate) struct NodeUnknown {
    name: String,
    source: client::Error,
}

pub(crate) struct Attached {
    client: Client,
    node_name: String,
    own_node: Informer<Node>,
    pub(crate) in_use: Arc<InUse>,
    /// Counts changes of what the node's status says to be attached.
    changes: watch::Sender<u64>,
}

impl Attached {
    pub(crate) fn new(client: Client, node_name: String, own_node: Informer<Node>, in_use: Arc<InUse>) -> Arc<Self> {
        let this = Arc::new(Attached { client, node_name, own_node, in_use, changes: watch::Sender::default() });
        let weak = Arc::downgrade(&this);
        this.own_node.subscribe(move |event| {
            if let Event::Added(node) | Event::Modified { new: node, .. } = event
                && let Some(this) = weak.upgrade()
            {
                let status = node.status.as_ref();
                this.in_use.seen(status.and_then(|status| status.volumes_in_use.as_deref()).unwrap_or_default());
            }
            let is_news = match event {
                Event::Modified { old, new } => facts(old) != facts(new),
                Event::Added(_) | Event::Deleted(_) => true,
            };
            if let Some(this) = weak.upgrade().filter(|_| is_news) {
                this.changes.send_modify(|count| *count += 1);
            }
        });
        this
    }

    /// To be woken when the node's status says something else to be attached.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns when the node's status says that the volume is attached. Before that it says that a pod uses it here.
    pub(super) async fn wait(&self, volume: &str, uid: &str) -> Result<(), NodeUnknown> {
        self.in_use.add(volume, uid).await;
        let mut changes = self.changes();
        while !self.is_reported(volume).await? {
            // The sender lives as long as this.
            let _ = tokio::time::timeout(CHECK_INTERVAL, changes.changed()).await;
        }
        Ok(())
    }

    /// Whether the node is told that the volume is attached. Whoever is about to detach it takes that back first and looks at
    /// `volumesInUse` then: so either they see that it is used here, or we see that it goes. That is why the server is asked; it
    /// need not be while even the cache, which is late, does not say so.
    pub(super) async fn is_reported(&self, volume: &str) -> Result<bool, NodeUnknown> {
        if !self.own_node.get(&self.node_name).is_some_and(|node| is_reported(&node, volume)) {
            return Ok(false);
        }
        let node = self.client.all::<Node>().get(&self.node_name).await;
        let node = node.map_err(|source| NodeUnknown { name: self.node_name.clone(), source })?;
        Ok(is_reported(&node, volume))
    }

    /// Whether this node can have a volume. Nobody need have asked the scheduler whether it can.
    pub(super) async fn reaches(&self, volume: &PersistentVolume) -> Result<bool, NodeUnknown> {
        if volume.spec.as_ref().is_none_or(|spec| spec.node_affinity.is_none()) {
            return Ok(true);
        }
        let known = self.own_node.get(&self.node_name);
        if known.is_some_and(|node| is_reachable(volume, node.metadata.labels.as_ref())) {
            return Ok(true);
        }
        // The cache may be late.
        let node = self.client.all::<Node>().get(&self.node_name).await;
        let node = node.map_err(|source| NodeUnknown { name: self.node_name.clone(), source })?;
        Ok(is_reachable(volume, node.metadata.labels.as_ref()))
    }
}

/// What of a node decides whether a volume is attached to it.
fn facts(node: &Node) -> impl PartialEq + '_ {
    (node.metadata.annotations.as_ref(), node.status.as_ref().and_then(|status| status.volumes_attached.as_ref()))
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
