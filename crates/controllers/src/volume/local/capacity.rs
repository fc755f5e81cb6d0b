//! The room that nodes have: what schedulers read as CSIStorageCapacity, from what each node says of itself.

use api::meta::Meta as _;
use api::node_volumes::{DRIVER, NodeVolumes, PLURAL, TOPOLOGY_KEY};
use api::quantity::Quantity;
use client::{DeleteParams, Informer, Patch};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use serde_json::json;

use super::{Controller, name_of, quantity};
use crate::Error;
use crate::controller::{Outcome, Requeue};

pub(super) const NAMESPACE: &str = "kube-system";

impl Controller {
    /// A node that serves the driver has an object to be asked by, and tells how much room it has, for every class of ours.
    pub(super) async fn sync_node(&self, nodes: &Informer<NodeVolumes>, name: &str) -> Outcome {
        let Some(csi_node) = self.csi_nodes.get(name).filter(|_| self.serves(name)) else { return Ok(Requeue::Never) };
        let owners = csi_node.metadata.owner_references.clone().unwrap_or_default();
        let Some(object) = nodes.get(name) else {
            let object = json!({
                "apiVersion": "local.cox/v1", "kind": "NodeVolumes",
                "metadata": { "name": name, "ownerReferences": owners },
                "spec": { "volumes": {}, "snapshots": {} },
            });
            return match self.client.dynamic(&client::Gvr::new(DRIVER, "v1", PLURAL), None).create(&object).await {
                Err(error) if !error.is_already_exists() => Err(error.into()),
                _ => Ok(Requeue::Never),
            };
        };
        let Some(available) = object.status.available else { return Ok(Requeue::Never) };
        let size = quantity(available.max(0));
        let api = self.client.namespaced::<CSIStorageCapacity>(NAMESPACE);
        let there: Vec<_> =
            self.capacities.list().into_iter().filter(|capacity| node_of(capacity) == Some(name)).collect();
        let classes = self.classes.list();
        let own = classes.iter().filter(|class| class.provisioner == DRIVER).map(|class| name_of(&class.metadata));
        let own: Vec<&str> = own.collect();
        for class in &own {
            let known = there.iter().find(|known| known.storage_class_name == **class);
            let published = known.and_then(|known| Quantity::try_from(known.capacity.as_ref()?).ok());
            match known {
                Some(_) if published.is_some_and(|published| published.value() == available.max(0)) => {}
                Some(known) => {
                    let patch = Patch::merge(json!({ "capacity": size, "maximumVolumeSize": size }));
                    api.patch(name_of(&known.metadata), &patch).await?;
                }
                None => {
                    let capacity = json!({
                        "metadata": { "name": capacity_name(class, name), "labels": { TOPOLOGY_KEY: name }, "ownerReferences": owners },
                        "storageClassName": class, "capacity": size, "maximumVolumeSize": size,
                        "nodeTopology": { "matchLabels": { TOPOLOGY_KEY: name } },
                    });
                    let capacity: CSIStorageCapacity =
                        api::codec::from_value(&capacity).map_err(|error| Error::object(error.to_string()))?;
                    match api.create(&capacity).await {
                        Err(error) if !error.is_already_exists() => return Err(error.into()),
                        _ => {}
                    }
                }
            }
        }
        for known in there.iter().filter(|known| !own.contains(&known.storage_class_name.as_str())) {
            match api.delete(name_of(&known.metadata), &DeleteParams::default()).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(Requeue::Never)
    }
}

/// The node whose free room an object shows.
pub(super) fn node_of(capacity: &CSIStorageCapacity) -> Option<&str> {
    capacity.metadata.label(TOPOLOGY_KEY)
}

fn capacity_name(class: &str, node: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, format!("{class} {node}").as_bytes());
    format!("csisc-{}", api::hex::encode(&digest.as_ref()[..16]))
}
