//! Claims, volumes and storage classes, with what was promised but is not yet written.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

#[derive(Debug, Default)]
pub(crate) struct Volumes {
    claims: Promised<PersistentVolumeClaim>,
    volumes: Promised<PersistentVolume>,
    classes: HashMap<String, Arc<StorageClass>>,
    drivers: HashMap<String, Arc<CSIDriver>>,
    capacities: HashMap<String, Arc<CSIStorageCapacity>>,
    csi_nodes: HashMap<String, Arc<CSINode>>,
    attachments: HashMap<String, Arc<VolumeAttachment>>,
    /// Names of attachments by node.
    by_node: HashMap<String, BTreeSet<String>>,
}

/// Objects as the API shows them, and as they will be once what was decided is written.
#[derive(Debug)]
struct Promised<K> {
    seen: HashMap<String, Arc<K>>,
    promised: HashMap<String, Arc<K>>,
}

impl<K> Default for Promised<K> {
    fn default() -> Self {
        Promised { seen: HashMap::new(), promised: HashMap::new() }
    }
}

impl<K> Promised<K> {
    fn get(&self, key: &str) -> Option<&Arc<K>> {
        self.promised.get(key).or_else(|| self.seen.get(key))
    }

    /// A promise holds until the API shows something newer than it was made on.
    fn see(&mut self, key: &str, object: Option<Arc<K>>, version: impl Fn(&K) -> u64) {
        match object {
            Some(object) => {
                if self.promised.get(key).is_some_and(|promised| version(&object) > version(promised)) {
                    self.promised.remove(key);
                }
                self.seen.insert(key.to_owned(), object);
            }
            None => {
                self.promised.remove(key);
                self.seen.remove(key);
            }
        }
    }
}

/// The resource version of an object, to tell which of two states is newer.
pub(crate) fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl Volumes {
    /// By `namespace/name`.
    pub(crate) fn claim(&self, key: &str) -> Option<&Arc<PersistentVolumeClaim>> {
        self.claims.get(key)
    }

    pub(crate) fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        self.volumes.get(name)
    }

    pub(crate) fn class(&self, name: &str) -> Option<&Arc<StorageClass>> {
        self.classes.get(name)
    }

    /// All volumes of a storage class, by name.
    pub(crate) fn of_class(&self, class: &str) -> Vec<&Arc<PersistentVolume>> {
        let is_of_class = |volume: &&Arc<PersistentVolume>| api::beta_annotations::volume_class(volume) == class;
        let mut volumes: Vec<_> =
            self.volumes.seen.keys().filter_map(|name| self.volumes.get(name)).filter(is_of_class).collect();
        volumes.compact_sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        volumes
    }

    /// The capacities of a storage class, if its driver publishes any.
    pub(crate) fn capacities(&self, driver: &str, class: &str) -> Option<Vec<&Arc<CSIStorageCapacity>>> {
        self.drivers.get(driver).filter(|driver| driver.spec.storage_capacity == Some(true))?;
        Some(self.capacities.values().filter(|capacity| capacity.storage_class_name == class).collect())
    }

    pub(crate) fn set_claim(&mut self, key: &str, claim: Option<Arc<PersistentVolumeClaim>>) {
        self.claims.see(key, claim, |claim| version(&claim.metadata));
    }

    pub(crate) fn set_volume(&mut self, name: &str, volume: Option<Arc<PersistentVolume>>) {
        self.volumes.see(name, volume, |volume| version(&volume.metadata));
    }

    pub(crate) fn set_class(&mut self, name: &str, class: Option<Arc<StorageClass>>) {
        set(&mut self.classes, name, class);
    }

    pub(crate) fn set_driver(&mut self, name: &str, driver: Option<Arc<CSIDriver>>) {
        set(&mut self.drivers, name, driver);
    }

    pub(crate) fn set_capacity(&mut self, key: &str, capacity: Option<Arc<CSIStorageCapacity>>) {
        set(&mut self.capacities, key, capacity);
    }

    pub(crate) fn csi_node(&self, name: &str) -> Option<&Arc<CSINode>> {
        self.csi_nodes.get(name)
    }

    pub(crate) fn set_csi_node(&mut self, name: &str, node: Option<Arc<CSINode>>) {
        set(&mut self.csi_nodes, name, node);
    }

    /// Whether pods with volumes of the driver may only come to nodes that have it.
    pub(crate) fn is_required(&self, driver: &str) -> bool {
        let driver = self.drivers.get(driver);
        driver.is_some_and(|driver| driver.spec.prevent_pod_scheduling_if_missing == Some(true))
    }

    pub(crate) fn set_attachment(&mut self, name: &str, attachment: Option<Arc<VolumeAttachment>>) {
        if let Some(old) = self.attachments.get(name)
            && let Some(names) = self.by_node.get_mut(&old.spec.node_name)
        {
            names.remove(name);
            if names.is_empty() {
                let node = old.spec.node_name.clone();
                self.by_node.remove(&node);
            }
        }
        if let Some(attachment) = &attachment {
            self.by_node.entry(attachment.spec.node_name.clone()).or_default().insert(name.to_owned());
        }
        set(&mut self.attachments, name, attachment);
    }

    /// The volumes that are attached to a node, or about to be, as `driver/handle`, with their drivers.
    pub(crate) fn attached(&self, node: &str) -> impl Iterator<Item = (String, String)> {
        let names = self.by_node.get(node).into_iter().flatten();
        names.filter_map(|name| {
            let spec = &self.attachments.get(name)?.spec;
            let handle = match (&spec.source.persistent_volume_name, &spec.source.inline_volume_spec) {
                (Some(name), _) => api::volume_migration::csi_source(self.volume(name)?)?.volume_handle.clone(),
                (None, inline) => inline.as_ref()?.csi.as_ref()?.volume_handle.clone(),
            };
            Some((format!("{}/{handle}", spec.attacher), spec.attacher.clone()))
        })
    }

    pub(crate) fn promise_claim(&mut self, key: &str, claim: Arc<PersistentVolumeClaim>) {
        self.claims.promised.insert(key.to_owned(), claim);
    }

    pub(crate) fn promise_volume(&mut self, name: &str, volume: Arc<PersistentVolume>) {
        self.volumes.promised.insert(name.to_owned(), volume);
    }

    pub(crate) fn break_claim_promise(&mut self, key: &str) {
        self.claims.promised.remove(key);
    }

    pub(crate) fn break_volume_promise(&mut self, name: &str) {
        self.volumes.promised.remove(name);
    }
}

fn set<K>(map: &mut HashMap<String, Arc<K>>, key: &str, object: Option<Arc<K>>) {
    match object {
        Some(object) => map.insert(key.to_owned(), object),
        None => map.remove(key),
    };
}

/// The storage class that a claim names; empty if none.
pub(crate) fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    api::beta_annotations::claim_class(claim).unwrap_or_default()
}
