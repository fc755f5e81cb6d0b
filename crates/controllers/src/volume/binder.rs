//! Binder: claims find volumes, or have them made by the built-in local-path provisioner.
//!
//! Flow: claim, volume and class events -> keys `claim/<namespace>/<name>` and `volume/<name>`. A volume is bound first, then the
//! claim; each half can be repaired from the other, so a crash between them is harmless.

use std::path::PathBuf;
use std::sync::Arc;

use client::{Client, DeleteParams, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::matching::{best, capacity, claim_class, default_class, is_for, requested};
use super::metrics::{Operations, count_volumes};
use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::pods;

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER_NOTE: &str = "volume.kubernetes.io/storage-provisioner";
const BETA_PROVISIONER_NOTE: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The provisioner of this binary: a folder on the node that the scheduler chose.
pub const LOCAL_PATH: &str = "cox.dev/local-path";
/// Classes that are never provisioned.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    local_path: LocalPath,
    operations: Arc<Operations>,
}

/// Where the built-in provisioner keeps its folders.
#[derive(Debug, Clone)]
pub struct LocalPath {
    /// On the node that a volume is on.
    pub root: PathBuf,
    /// Whether the manager removes the folders of deleted volumes: only if it shares the nodes' file system.
    pub removes: bool,
}

impl Default for LocalPath {
    fn default() -> Self {
        Self { root: "/var/lib/cox/local-path".into(), removes: false }
    }
}

/// One worker: two claims must not be given the same volume.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let claims = context.informer::<PersistentVolumeClaim>();
    let operations = Arc::new(Operations::new(&context.config.metrics));
    let volumes = {
        let (claims, operations) = (claims.shared(), operations.clone());
        context.on::<PersistentVolume, _>(move |event| {
            let volume = event.object();
            if matches!(event, Event::Deleted(_)) {
                operations.ended(&pods::key(&**volume));
            }
            let mut keys = vec![format!("volume/{}", pods::key(&**volume))];
            match volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
                Some(claim) => keys.push(format!(
                    "claim/{}/{}",
                    claim.namespace.as_deref().unwrap_or_default(),
                    claim.name.as_deref().unwrap_or_default()
                )),
                // A free volume may suit any claim that waits.
                None => keys.extend(
                    claims
                        .list()
                        .iter()
                        .filter(|claim| !is_bound(claim))
                        .map(|claim| format!("claim/{}", pods::key(&**claim))),
                ),
            }
            keys
        })
    };
    let claims = {
        let (volumes, queue, operations) = (volumes.clone(), context.queue.clone(), operations.clone());
        claims.wakes(move |event| {
            let claim = event.object();
            if matches!(event, Event::Deleted(_)) {
                operations.forget(&pods::key(&**claim));
            }
            queue.add(format!("claim/{}", pods::key(&**claim)));
            if let Some(volume) = volume_name(claim).filter(|name| volumes.get(name).is_some()) {
                queue.add(format!("volume/{volume}"));
            }
        })
    };
    let classes = {
        let claims = claims.clone();
        context.on::<StorageClass, _>(move |_| {
            claims
                .list()
                .iter()
                .filter(|claim| !is_bound(claim))
                .map(|claim| format!("claim/{}", pods::key(&**claim)))
                .collect::<Vec<_>>()
        })
    };
    count_volumes(&context.config.metrics, volumes.clone(), claims.clone());
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        claims,
        volumes,
        classes,
        local_path: context.config.local_path.clone(),
        operations,
    })
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match key.split_once('/') {
                Some(("claim", claim)) => self.sync_claim(claim).await,
                Some((_, volume)) => self.sync_volume(volume).await,
                None => Ok(Requeue::Never),
            }
        })
    }
}

impl Controller {
    async fn sync_claim(&self, key: &str) -> Outcome {
        let Some(claim) = self.claims.get(key).filter(|claim| claim.metadata.deletion_timestamp.is_none()) else {
            return Ok(Requeue::Never);
        };
        if let Some(name) = volume_name(&claim) {
            return match self.volumes.get(name) {
                Some(volume)
                    if is_for(&volume, &claim) || volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none()) =>
                {
                    self.bind(&volume, &claim).await
                }
                // Its volume is gone, or someone else's: what was on it is lost.
                _ if is_bound(&claim) => self.set_claim_phase(&claim, "Lost", None).await,
                _ => self.set_claim_phase(&claim, "Pending", None).await,
            };
        }
        let class = claim_class(&claim).unwrap_or_default();
        let delayed = self.is_delayed(class);
        let chosen = claim.metadata.annotations.as_ref().and_then(|all| all.get(SELECTED_NODE)).cloned();
        if let Some(volume) = best(&claim, &self.volumes.list()).filter(|volume| !delayed || is_for(volume, &claim)) {
            let bound = self.bind(&volume, &claim).await;
            self.operations.went(key, bound.is_ok());
            return bound;
        }
        if let Some(default) = default_class(&self.classes.list()).filter(|_| claim_class(&claim).is_none()) {
            return self.give_class(&claim, &default).await;
        }
        let about = client::reference(&*claim);
        match self.classes.get(class) {
            _ if class.is_empty() => self.recorder.normal(
                &about,
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set",
            ),
            None => self.recorder.warning(
                &about,
                "ProvisioningFailed",
                format!("storageclass.storage.k8s.io \"{class}\" not found"),
            ),
            Some(_) if delayed && chosen.is_none() => {
                self.recorder.normal(
                    &about,
                    "WaitForFirstConsumer",
                    "waiting for first consumer to be created before binding",
                );
            }
            Some(found) if found.provisioner == LOCAL_PATH => {
                self.operations.began(key, LOCAL_PATH, "provision");
                let provisioned = self.provision(&claim, &found, chosen.as_deref()).await;
                if provisioned.is_err() {
                    self.operations.failed(key);
                }
                return provisioned;
            }
            Some(found) if found.provisioner == NO_PROVISIONER => {
                self.recorder.normal(
                    &about,
                    "FailedBinding",
                    "no persistent volumes available for this claim and no storage class is set",
                );
            }
            Some(found) => {
                self.operations.began(key, &found.provisioner, "provision");
                return self.hand_over(&claim, &found.provisioner).await;
            }
        }
        self.set_claim_phase(&claim, "Pending", None).await
    }

    fn is_delayed(&self, class: &str) -> bool {
        self.classes
            .get(class)
            .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
    }

    /// The claim was there before any class was the default one. Its next event goes on from here.
    async fn give_class(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Outcome {
        let mut changed = claim.clone();
        changed.spec.get_or_insert_default().storage_class_name.clone_from(&class.metadata.name);
        let given = self.client.all::<PersistentVolumeClaim>().update(&changed).await;
        self.operations.gave_class(given.is_ok());
        given?;
        Ok(Requeue::Never)
    }

    /// An external provisioner watches for its name on the claim.
    async fn hand_over(&self, claim: &PersistentVolumeClaim, provisioner: &str) -> Outcome {
        let noted = claim
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(PROVISIONER_NOTE))
            .is_some_and(|note| note == provisioner);
        if !noted {
            let mut changed = claim.clone();
            let annotations = changed.metadata.annotations.get_or_insert_default();
            annotations.insert(PROVISIONER_NOTE.into(), provisioner.into());
            annotations.insert(BETA_PROVISIONER_NOTE.into(), provisioner.into());
            self.client.all::<PersistentVolumeClaim>().update(&changed).await?;
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
        );
        self.recorder.normal(&client::reference(claim), "ExternalProvisioning", message);
        self.set_claim_phase(claim, "Pending", None).await
    }

    /// A volume that is a folder on the chosen node.
    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass, node: Option<&str>) -> Outcome {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let name = format!("pvc-{uid}");
        let spec = claim.spec.clone().unwrap_or_default();
        let affinity = node.map(|node| {
            json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] }] } })
        });
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": name, "annotations": { PROVISIONED_BY: LOCAL_PATH } },
            "spec": {
                "capacity": { "storage": requested(claim).to_string() },
                "accessModes": spec.access_modes,
                "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "storageClassName": class.metadata.name,
                "volumeMode": spec.volume_mode,
                "hostPath": { "path": self.local_path.root.join(&name), "type": "DirectoryOrCreate" },
                "nodeAffinity": affinity,
                "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": uid },
            },
        });
        let volume: PersistentVolume =
            serde_json::from_value(volume).map_err(|error| Error::object(error.to_string()))?;
        match self.client.all::<PersistentVolume>().create(&volume).await {
            Ok(_) => {
                let message = format!("Successfully provisioned volume {name} using {LOCAL_PATH}");
                self.recorder.normal(&client::reference(claim), "ProvisioningSucceeded", message);
            }
            Err(error) if error.is_already_exists() => {}
            Err(error) => {
                self.recorder.warning(
                    &client::reference(claim),
                    "ProvisioningFailed",
                    format!("Failed to create provisioned volume: {error}"),
                );
                return Err(error.into());
            }
        }
        Ok(Requeue::Never)
    }

    /// First the volume points to the claim, then the claim to the volume.
    async fn bind(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Outcome {
        let volumes = self.client.all::<PersistentVolume>();
        let mut bound = volume.clone();
        let spec = bound.spec.get_or_insert_default();
        let complete = spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.metadata.uid);
        if !complete {
            let fresh = spec.claim_ref.is_none();
            spec.claim_ref = Some(client::reference(claim));
            if fresh {
                bound.metadata.annotations.get_or_insert_default().insert(BOUND_BY.into(), "yes".into());
            }
            bound = volumes.update(&bound).await?;
        }
        if phase(&bound) != "Bound" {
            let status = bound.status.get_or_insert_default();
            status.phase = Some("Bound".into());
            status.message = None;
            volumes.update_status(&bound).await?;
        }
        let mut changed = claim.clone();
        let name = volume.metadata.name.clone();
        let annotations = changed.metadata.annotations.get_or_insert_default();
        let noted = annotations.insert(BIND_COMPLETED.into(), "yes".into()).is_some();
        if claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()).is_none() {
            annotations.insert(BOUND_BY.into(), "yes".into());
        }
        changed.spec.get_or_insert_default().volume_name.clone_from(&name);
        if !noted || changed.spec != claim.spec {
            changed = self.client.all::<PersistentVolumeClaim>().update(&changed).await?;
        }
        self.set_claim_phase(&changed, "Bound", Some(volume)).await
    }

    async fn set_claim_phase(
        &self,
        claim: &PersistentVolumeClaim,
        phase: &str,
        volume: Option<&PersistentVolume>,
    ) -> Outcome {
        let mut changed = claim.clone();
        let status = changed.status.get_or_insert_default();
        status.phase = Some(phase.into());
        if let Some(volume) = volume {
            status.access_modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.clone());
            status.capacity = Some([("storage".to_owned(), capacity(volume).into())].into());
        }
        if changed.status != claim.status {
            self.client.all::<PersistentVolumeClaim>().update_status(&changed).await?;
        }
        Ok(Requeue::Never)
    }

    async fn sync_volume(&self, name: &str) -> Outcome {
        let Some(volume) = self.volumes.get(name).filter(|volume| volume.metadata.deletion_timestamp.is_none()) else {
            return Ok(Requeue::Never);
        };
        let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()) else {
            return self.set_volume_phase(&volume, "Available").await;
        };
        if reference.uid.as_deref().unwrap_or_default().is_empty() {
            return self.set_volume_phase(&volume, "Available").await; // reserved, not yet claimed
        }
        let key = format!(
            "{}/{}",
            reference.namespace.as_deref().unwrap_or_default(),
            reference.name.as_deref().unwrap_or_default()
        );
        let mut claim = self.claims.get(&key).map(|claim| PersistentVolumeClaim::clone(&claim));
        if claim.is_none() {
            // The claim may be newer than our copy of it.
            claim = self
                .client
                .namespaced::<PersistentVolumeClaim>(client::split_key(&key).0)
                .get_opt(client::split_key(&key).1)
                .await?;
        }
        if claim.is_some_and(|claim| claim.metadata.uid == reference.uid) {
            return Ok(Requeue::Never);
        }
        if phase(&volume) != "Released" && phase(&volume) != "Failed" {
            return self.set_volume_phase(&volume, "Released").await;
        }
        let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let ours = volume
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(PROVISIONED_BY))
            .is_some_and(|by| by == LOCAL_PATH);
        if policy == Some("Delete") && ours {
            self.operations.began(name, LOCAL_PATH, "delete");
            if let Err(error) = self.remove_folder(name).await {
                self.operations.failed(name);
                let message = format!("removing the folder of the volume: {error}");
                self.recorder.warning(&client::reference(&*volume), "VolumeFailedDelete", message.clone());
                return Err(Error::object(message));
            }
            match self.client.all::<PersistentVolume>().delete(name, &DeleteParams::default()).await {
                Err(error) if !error.is_not_found() => {
                    self.operations.failed(name);
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(Requeue::Never)
    }

    /// What was in a deleted volume is gone before the volume is.
    async fn remove_folder(&self, name: &str) -> std::io::Result<()> {
        if !self.local_path.removes {
            return Ok(());
        }
        match tokio::fs::remove_dir_all(self.local_path.root.join(name)).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn set_volume_phase(&self, volume: &PersistentVolume, wanted: &str) -> Outcome {
        if phase(volume) != wanted {
            let mut changed = volume.clone();
            changed.status.get_or_insert_default().phase = Some(wanted.into());
            self.client.all::<PersistentVolume>().update_status(&changed).await?;
        }
        Ok(Requeue::Never)
    }
}
