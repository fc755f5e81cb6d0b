//! What the API knows of this node's drivers: the CSINode object, the node's id for each driver, and topology labels.

use std::collections::BTreeMap;
use std::time::Duration;

use api::meta::Meta as _;
use client::{Client, DeleteParams, Patch};
use csi::v1::NodeGetInfoResponse;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Csi;

/// The node's id for each driver, as JSON.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// In-tree volumes that are always their CSI drivers' business.
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,\
    kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
/// Others write the same objects.
const TRIES: usize = 10;

/// Why the API does not know of a driver, or still knows of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeInfoError {
    #[error("error adding CSI driver node info: nodeID must not be empty")]
    NoId,
    #[error("error adding CSI driver node info: invalid volume limit {0}")]
    Limit(i64),
    #[error("error getting node: {0}")]
    NoNode(client::Error),
    #[error("error updating Node object with CSI driver node info: {0}")]
    Node(client::Error),
    #[error("error updating CSINode object with CSI driver node info: {0}")]
    Install(client::Error),
    #[error("error uninstalling CSI driver from CSINode object {0}")]
    Uninstall(client::Error),
    #[error(
        "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{there:?}"
    )]
    Topology { key: String, value: String, there: String },
    #[error("failed to parse node's {NODE_IDS:?} annotation value: {0}")]
    Annotation(serde_json::Error),
    #[error(transparent)]
    Encode(serde_json::Error),
}

pub(super) struct NodeInfo {
    client: Client,
    node: String,
    /// The uid of the Node, once it was seen: another one begins without what was told of the one before.
    uid: watch::Sender<String>,
    /// One change at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Csi {
    /// Tells of a driver.
    pub(crate) async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), NodeInfoError> {
        self.node_info.install(driver, info).await
    }

    pub(crate) async fn uninstall(&self, driver: &str) -> Result<(), NodeInfoError> {
        self.node_info.uninstall(driver).await
    }

    /// Keeps the node's CSINode, which the scheduler looks at, until the kubelet stops.
    pub(crate) async fn announce(&self) {
        let mut nodes = self.nodes();
        loop {
            self.node_info.ensure(&self.stop).await;
            tokio::select! {
                () = self.stop.cancelled() => return,
                // The sender lives as long as this.
                _ = nodes.changed() => {}
            }
        }
    }

    /// To be woken when there is another Node of this name.
    pub(crate) fn nodes(&self) -> watch::Receiver<String> {
        self.node_info.uid.subscribe()
    }
}

impl NodeInfo {
    pub(super) fn new(client: Client, node: String) -> Self {
        NodeInfo { client, node, uid: Default::default(), turn: Default::default() }
    }

    /// What the API has of this node has changed.
    pub(super) fn seen(&self, node: &Node) {
        let uid = node.metadata.uid();
        self.uid.send_if_modified(|known| {
            // The first one is told of every driver that registers.
            let is_another = !known.is_empty() && known != uid;
            uid.clone_into(known);
            is_another
        });
    }

    /// Makes the CSINode, as soon as there is a Node.
    async fn ensure(&self, stop: &CancellationToken) {
        let mut retry = client::backoff::Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
        loop {
            match self.change(|_| {}).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, "CSINode not made, will retry"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(retry.next_delay()) => {}
            }
        }
    }

    async fn install(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), NodeInfoError> {
        check(info)?;
        let topology = info.accessible_topology.clone().unwrap_or_default().segments;
        self.note_on_node(driver, Some(&info.node_id), &topology).await?;
        let entry = entry(driver, info);
        let changed = self
            .change(|drivers| {
                drivers.retain(|known| known.name != driver);
                drivers.push(entry.clone());
            })
            .await;
        changed.map_err(NodeInfoError::Install)
    }

    /// The driver says anew how many volumes the node may have.
    pub(super) async fn set_limit(&self, driver: &str, info: &NodeGetInfoResponse) -> Result<(), NodeInfoError> {
        check(info)?;
        let new = entry(driver, info);
        self.change(|drivers| set_limit(drivers, &new)).await.map_err(NodeInfoError::Install)
    }

    async fn uninstall(&self, driver: &str) -> Result<(), NodeInfoError> {
        self.change(|drivers| drivers.retain(|known| known.name != driver)).await.map_err(NodeInfoError::Uninstall)?;
        self.note_on_node(driver, None, &BTreeMap::new()).await
    }

    async fn note_on_node(
        &self,
        driver: &str,
        id: Option<&str>,
        topology: &BTreeMap<String, String>,
    ) -> Result<(), NodeInfoError> {
        let _turn = self.turn.lock().await;
        let api = self.client.all::<Node>();
        let node = api.get(&self.node).await.map_err(NodeInfoError::NoNode)?;
        let (ids, labels) = noted(&node, driver, id, topology)?;
        let patch = json!({"metadata": {"annotations": {NODE_IDS: ids}, "labels": labels}});
        let patched = api.patch(&self.node, &Patch::merge(patch)).await;
        patched.map(drop).map_err(NodeInfoError::Node)
    }

    async fn change(&self, change: impl Fn(&mut Vec<CSINodeDriver>)) -> Result<(), client::Error> {
        let _turn = self.turn.lock().await;
        let api = self.client.all::<CSINode>();
        let mut tries = 0;
        loop {
            tries += 1;
            // What was heard of the Node may be old, or nothing yet.
            let node = self.client.all::<Node>().get(&self.node).await?;
            self.seen(&node);
            let written = match api.get_opt(&self.node).await? {
                Some(mut found) if is_of(&found, &node) => {
                    let before = found.clone();
                    change(&mut found.spec.drivers);
                    match found == before {
                        true => return Ok(()),
                        false => api.update(&found).await,
                    }
                }
                other => {
                    let mut made = new(&node);
                    if let Some(earlier) = other {
                        // Another object, so that whoever is about to delete the earlier one does not delete this.
                        let params = DeleteParams { uid: earlier.metadata.uid.clone(), ..DeleteParams::default() };
                        match api.delete(&self.node, &params).await {
                            Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                            _ => made.spec.drivers = earlier.spec.drivers,
                        }
                    }
                    change(&mut made.spec.drivers);
                    api.create(&made).await
                }
            };
            match written {
                Err(error) if tries < TRIES && (error.is_conflict() || error.is_already_exists()) => {}
                other => return other.map(drop),
            }
        }
    }
}

/// Whether it is of this Node. One of a Node that was deleted is deleted soon.
fn is_of(found: &CSINode, node: &Node) -> bool {
    let mut owners = found.metadata.owner_references.iter().flatten().filter(|owner| owner.kind == "Node");
    owners.all(|owner| owner.uid == node.metadata.uid())
}

fn new(node: &Node) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name().to_owned(),
        uid: node.metadata.uid().to_owned(),
        ..Default::default()
    };
    CSINode {
        metadata: ObjectMeta {
            name: node.metadata.name.clone(),
            annotations: Some([(MIGRATED.to_string(), MIGRATED_PLUGINS.to_string())].into()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    }
}

/// Why a driver's word on this node cannot be believed.
fn check(info: &NodeGetInfoResponse) -> Result<(), NodeInfoError> {
    if info.node_id.is_empty() {
        return Err(NodeInfoError::NoId);
    }
    if info.max_volumes_per_node < 0 {
        return Err(NodeInfoError::Limit(info.max_volumes_per_node));
    }
    Ok(())
}

fn entry(driver: &str, info: &NodeGetInfoResponse) -> CSINodeDriver {
    let keys: Vec<String> =
        info.accessible_topology.iter().flat_map(|topology| topology.segments.keys().cloned()).collect();
    let limit = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
    CSINodeDriver {
        name: driver.into(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        // Zero means that the driver sets no limit.
        allocatable: (limit > 0).then_some(VolumeNodeResources { count: Some(limit) }),
    }
}

/// Nothing else of a driver that is there can change.
fn set_limit(drivers: &mut [CSINodeDriver], new: &CSINodeDriver) {
    for known in drivers.iter_mut().filter(|known| known.name == new.name) {
        known.allocatable.clone_from(&new.allocatable);
    }
}

/// The node's ids with that of this driver, and the labels to set. Labels are never taken away: volumes may name them.
fn noted(
    node: &Node,
    driver: &str,
    id: Option<&str>,
    topology: &BTreeMap<String, String>,
) -> Result<(Option<String>, BTreeMap<String, String>), NodeInfoError> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    for (key, value) in topology {
        if let Some(there) = labels.get(key).filter(|there| *there != value) {
            let (key, value, there) = (key.clone(), value.clone(), there.clone());
            return Err(NodeInfoError::Topology { key, value, there });
        }
    }
    let annotation = node.metadata.annotations.as_ref().and_then(|all| all.get(NODE_IDS));
    let mut ids: BTreeMap<String, String> = annotation
        .map(|text| serde_json::from_str(text))
        .transpose()
        .map_err(NodeInfoError::Annotation)?
        .unwrap_or_default();
    match id {
        Some(id) => ids.insert(driver.into(), id.into()),
        None => ids.remove(driver),
    };
    let text = (!ids.is_empty()).then(|| serde_json::to_string(&ids)).transpose().map_err(NodeInfoError::Encode)?;
    Ok((text, topology.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi::v1::Topology;

    fn node(meta: serde_json::Value) -> Node {
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    fn segments(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn ids_and_labels_are_added_and_ids_taken_away() {
        let zone = segments(&[("d/zone", "z1")]);
        let (ids, labels) = noted(&node(json!({})), "d", Some("id-1"), &zone).unwrap();
        assert_eq!((ids.as_deref(), &labels), (Some(r#"{"d":"id-1"}"#), &zone));
        let known = node(json!({"annotations": {NODE_IDS: r#"{"d":"id-1","e":"x"}"#}, "labels": {"d/zone": "z1"}}));
        let (ids, _) = noted(&known, "d", None, &BTreeMap::new()).unwrap();
        assert_eq!(ids.as_deref(), Some(r#"{"e":"x"}"#));
        let clash = noted(&known, "d", Some("id-1"), &segments(&[("d/zone", "z2")])).unwrap_err().to_string();
        assert_eq!(
            clash,
            "detected topology value collision: driver reported \"d/zone\":\"z2\" but existing label is \"d/zone\":\"z1\""
        );
        let only = node(json!({"annotations": {NODE_IDS: r#"{"d":"id-1"}"#}}));
        assert_eq!(noted(&only, "d", None, &BTreeMap::new()).unwrap().0, None);
    }

    #[test]
    fn one_of_a_node_that_is_gone_is_not_of_the_next() {
        let (before, now) = (node(json!({"name": "n", "uid": "1"})), node(json!({"name": "n", "uid": "2"})));
        let mut found = new(&before);
        assert!(is_of(&found, &before) && !is_of(&found, &now));
        found.metadata.owner_references = None;
        assert!(is_of(&found, &now), "nobody deletes it");
    }

    #[test]
    fn limits_and_keys() {
        let info = |max, keys: &[(&str, &str)]| NodeGetInfoResponse {
            node_id: "n".into(),
            max_volumes_per_node: max,
            accessible_topology: Some(Topology { segments: segments(keys) }),
        };
        let count = |max| entry("d", &info(max, &[])).allocatable.and_then(|resources| resources.count);
        assert_eq!((count(0), count(5), count(i64::MAX)), (None, Some(5), Some(i32::MAX)));
        assert_eq!(entry("d", &info(0, &[("b", "1"), ("a", "2")])).topology_keys, Some(vec!["a".into(), "b".into()]));
        let mut drivers = vec![entry("c", &info(1, &[])), entry("d", &info(5, &[("a", "2")]))];
        set_limit(&mut drivers, &entry("d", &info(7, &[])));
        assert_eq!(drivers, [entry("c", &info(1, &[])), entry("d", &info(7, &[("a", "2")]))]);
        assert!(check(&info(-1, &[])).is_err());
        assert!(check(&NodeGetInfoResponse::default()).is_err());
    }
}
