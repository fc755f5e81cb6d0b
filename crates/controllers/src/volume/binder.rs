//! Binder: claims find volumes, or are handed over to the provisioner of their class.
//!
//! Flow: claim, volume and class events -> keys `claim/<namespace>/<name>` and `volume/<name>`. A volume is bound first, then the
//! claim; each half can be repaired from the other, so a crash between them is harmless.

use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use client::{Client, DeleteParams, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::decision::{
    BETA_PROVISIONER_NOTE, BIND_COMPLETED, BOUND_BY, ForClaim, ForVolume, LOCAL_PATH, PROVISIONER_NOTE, Reclaim, Seen,
    annotation, claim_handed_to_driver, claim_key, for_claim, for_volume, handed_to_driver, is_to_delete, reclaim,
    volume_name,
};
use super::metrics::{Operations, count_volumes};
use super::protection::{BY_CLAIM, claims_of};
use crate::Error;
use crate::config::LocalPath;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::pods;

struct Controller {
    client: Client,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    pods: Informer<Pod>,
    local_path: LocalPath,
    operations: Arc<Operations>,
    /// Whoever holds it may give away a volume that no claim has.
    giving: tokio::sync::Mutex<()>,
}

/// Claims are looked at side by side: a volume that was made for a claim is that claim's. Volumes that any claim may have are
/// given away one at a time, and every write carries the version that it was decided on.
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
            keys.extend(former_claim(event).map(|claim| format!("claim/{claim}")));
            keys
        })
    };
    volumes.add_index(BY_CLAIM, |volume| claim_key(volume).into_iter().collect());
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
            // Volumes may name it that it does not name: they are to be let go.
            for volume in volumes.by_index(BY_CLAIM, &pods::key(&**claim)) {
                queue.add(format!("volume/{}", pods::key(&*volume)));
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
    let pods = {
        let claims = claims.clone();
        context.on::<Pod, _>(move |event| {
            let is_waiting = |key: &String| claims.get(key).is_some_and(|claim| !is_bound(&claim));
            let keys = claims_of(event.object()).into_iter().filter(is_waiting);
            keys.map(|key| format!("claim/{key}")).collect::<Vec<_>>()
        })
    };
    pods.add_index(BY_CLAIM, claims_of);
    count_volumes(&context.config.metrics, volumes.clone(), claims.clone());
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: EventRecorder::new(context.client.clone(), "persistentvolume-controller", ""),
        claims,
        volumes,
        classes,
        pods,
        local_path: context.config.local_path.clone(),
        operations,
        giving: tokio::sync::Mutex::default(),
    })
}

/// The claim that a changed volume does not name any more: it has lost its volume, or names it still and gets it back.
fn former_claim(event: &Event<PersistentVolume>) -> Option<String> {
    let Event::Modified { old, new } = event else { return None };
    claim_key(old).filter(|former| claim_key(new).as_ref() != Some(former))
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
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
        if let Some(changed) = claim_handed_to_driver(&claim) {
            self.client.all::<PersistentVolumeClaim>().update(&changed).await?; // and its event comes back here
            return Ok(Requeue::Never);
        }
        let mut decided = self.decide(&claim, key);
        let is_free = matches!(&decided, ForClaim::Bind(volume) if claim_key(volume).as_deref() != Some(key));
        let mut _giving = None;
        if is_free {
            _giving = Some(self.giving.lock().await);
            decided = self.decide(&claim, key); // another claim may have got it meanwhile
        }
        let about = client::reference(&*claim);
        match decided {
            ForClaim::Bind(volume) => {
                let bound = self.bind(&volume, &claim).await;
                self.operations.went(key, bound.is_ok());
                return bound;
            }
            ForClaim::Lose { reason, message } => {
                if self.claim_phase(&claim) != "Lost" {
                    // What the caches show may be behind what was written; losing is for ever.
                    if self.has_volume_now(&claim).await? {
                        return Err(Error::object(format!("claim {key} and its volume are not of the same time")));
                    }
                    self.recorder.warning(&about, reason, message);
                }
                return self.set_claim_phase(&claim, "Lost", None).await;
            }
            ForClaim::GiveClass(class) => return self.give_class(&claim, &class).await,
            ForClaim::HandOver { provisioner } => {
                self.operations.began(key, &provisioner, "provision");
                return self.hand_over(&claim, &provisioner).await;
            }
            ForClaim::Refuse { message, why } => {
                self.recorder.warning(&about, "FailedBinding", message);
                return Err(Error::object(why));
            }
            ForClaim::Wait(Some(notice)) if notice.warns => {
                self.recorder.warning(&about, notice.reason, notice.message);
            }
            ForClaim::Wait(Some(notice)) => self.recorder.normal(&about, notice.reason, notice.message),
            ForClaim::Wait(None) => {}
        }
        self.set_claim_phase(&claim, "Pending", None).await
    }

    fn decide(&self, claim: &PersistentVolumeClaim, key: &str) -> ForClaim {
        let (volumes, classes) = (self.volumes.list(), self.classes.list());
        let pods = self.pods.by_index(BY_CLAIM, key);
        for_claim(claim, &Seen { volumes: &volumes, classes: &classes, pods: &pods })
    }

    fn claim_phase<'a>(&self, claim: &'a PersistentVolumeClaim) -> &'a str {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// Whether claim and volume, as the server has them now, belong together after all.
    async fn has_volume_now(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        let Some(name) = volume_name(claim) else { return Ok(false) };
        let volume = self.client.all::<PersistentVolume>().get_opt(name).await?;
        let reference = volume.map(|volume| volume.spec.and_then(|spec| spec.claim_ref));
        Ok(match reference {
            None => false,
            Some(None) => true,
            Some(Some(reference)) => reference.uid == claim.metadata.uid,
        })
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
        let is_new = status.phase.as_deref() != Some(phase);
        status.phase = Some(phase.into());
        match volume.and_then(|volume| volume.spec.as_ref()) {
            Some(spec) => {
                status.access_modes.clone_from(&spec.access_modes);
                // Later the two may differ on purpose, while the file system is smaller than its device.
                if is_new {
                    status.capacity.clone_from(&spec.capacity);
                    let class = spec.volume_attributes_class_name.clone();
                    status.current_volume_attributes_class_name = class.filter(|class| !class.is_empty());
                }
            }
            None => (status.access_modes, status.capacity) = (None, None),
        }
        if changed.status != claim.status {
            self.client.all::<PersistentVolumeClaim>().update_status(&changed).await?;
        }
        Ok(Requeue::Never)
    }

    async fn sync_volume(&self, name: &str) -> Outcome {
        let Some(volume) = self.volumes.get(name) else { return Ok(Requeue::Never) };
        if let Some(changed) = handed_to_driver(&volume) {
            self.client.all::<PersistentVolume>().update(&changed).await?; // and its event comes back here
            return Ok(Requeue::Never);
        }
        let claim = self.claim_of(&volume).await?;
        match for_volume(&volume, claim.as_ref()) {
            ForVolume::Available => self.set_volume_phase(&volume, "Available", None).await,
            ForVolume::Bound => self.set_volume_phase(&volume, "Bound", None).await,
            ForVolume::WakeClaim => Ok(Requeue::Never), // every event of the volume wakes its claim
            ForVolume::Mismatch => {
                if let Some(claim) = &claim {
                    self.tell_of_mismatch(&volume, claim);
                }
                Ok(Requeue::Never)
            }
            ForVolume::Unbind => self.unbind(&volume).await,
            ForVolume::Release if !matches!(phase(&volume), "Released" | "Failed") => {
                self.set_volume_phase(&volume, "Released", None).await // and its event comes back here
            }
            ForVolume::Release => self.reclaim(&volume, name).await,
        }
    }

    /// The claim that a volume names, if it is there with the same uid. A copy that is missing or another's may be behind.
    async fn claim_of(&self, volume: &PersistentVolume) -> Result<Option<PersistentVolumeClaim>, Error> {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let uid = reference.and_then(|reference| reference.uid.clone()).filter(|uid| !uid.is_empty());
        let (Some(uid), Some(key)) = (uid, claim_key(volume)) else { return Ok(None) };
        let is_it = |claim: &PersistentVolumeClaim| claim.metadata.uid.as_ref() == Some(&uid);
        if let Some(claim) = self.claims.get(&key).filter(|claim| is_it(claim)) {
            return Ok(Some(PersistentVolumeClaim::clone(&claim)));
        }
        let (namespace, name) = client::split_key(&key);
        let live = self.client.namespaced::<PersistentVolumeClaim>(namespace).get_opt(name).await?;
        Ok(live.filter(is_it))
    }

    fn tell_of_mismatch(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
        let (own, wanted) = (volume.metadata.name(), claim.metadata.name());
        let why = "due to incompatible volumeMode.";
        let message = format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim {wanted:?} {why}");
        self.recorder.warning(&client::reference(volume), "VolumeMismatch", message);
        let message = format!("Cannot bind PersistentVolume {own:?} to requested PersistentVolumeClaim {why}");
        self.recorder.warning(&client::reference(claim), "VolumeMismatch", message);
    }

    /// The claim has got another volume. A reservation that a person made stays one.
    async fn unbind(&self, volume: &PersistentVolume) -> Outcome {
        let mut changed = volume.clone();
        let is_ours = annotation(&volume.metadata, BOUND_BY).is_some();
        if let Some(annotations) = changed.metadata.annotations.as_mut() {
            annotations.remove(BOUND_BY);
        }
        let spec = changed.spec.get_or_insert_default();
        match spec.claim_ref.as_mut() {
            Some(reference) if !is_ours => reference.uid = None,
            _ => spec.claim_ref = None,
        }
        let changed = self.client.all::<PersistentVolume>().update(&changed).await?;
        self.set_volume_phase(&changed, "Available", None).await
    }

    /// Whether the server, too, has the volume as one that nobody has and nobody wants to keep.
    async fn is_released_now(&self, volume: &PersistentVolume, name: &str) -> Result<bool, Error> {
        let Some(live) = self.client.all::<PersistentVolume>().get_opt(name).await? else { return Ok(false) };
        let claim = self.claim_of(&live).await?;
        Ok(live.metadata.uid == volume.metadata.uid && is_to_delete(&live, claim.as_ref()))
    }

    async fn reclaim(&self, volume: &PersistentVolume, name: &str) -> Outcome {
        match reclaim(volume) {
            Reclaim::Leave => {}
            Reclaim::Fail { reason, message } => {
                if phase(volume) != "Failed" {
                    self.recorder.warning(&client::reference(volume), reason, message.clone());
                }
                return self.set_volume_phase(volume, "Failed", Some(message)).await;
            }
            Reclaim::Delete => {
                // Files that are gone do not come back, and the cache may be late.
                if !self.is_released_now(volume, name).await? {
                    return Err(Error::object(format!("volume {name} has changed since it was released")));
                }
                self.operations.began(name, LOCAL_PATH, "delete");
                if let Err(error) = self.remove_folder(name).await {
                    self.operations.failed(name);
                    let message = format!("removing the folder of the volume: {error}");
                    self.recorder.warning(&client::reference(volume), "VolumeFailedDelete", message.clone());
                    return Err(Error::object(message));
                }
                let params = DeleteParams { uid: volume.metadata.uid.clone(), ..DeleteParams::default() };
                match self.client.all::<PersistentVolume>().delete(name, &params).await {
                    Err(error) if !error.is_not_found() => {
                        self.operations.failed(name);
                        return Err(error.into());
                    }
                    _ => {}
                }
            }
        }
        Ok(Requeue::Never)
    }

    /// What was in a deleted volume is gone before the volume is.
    async fn remove_folder(&self, name: &str) -> std::io::Result<()> {
        if !self.local_path.removes {
            return Ok(());
        }
        let folder = self.local_path.root.join(name);
        tokio::task::spawn_blocking(move || files::remove_tree(&folder)).await.map_err(std::io::Error::other)?
    }

    async fn set_volume_phase(&self, volume: &PersistentVolume, wanted: &str, message: Option<String>) -> Outcome {
        if phase(volume) != wanted {
            let mut changed = volume.clone();
            let status = changed.status.get_or_insert_default();
            status.phase = Some(wanted.into());
            status.message = message;
            self.client.all::<PersistentVolume>().update_status(&changed).await?;
        }
        Ok(Requeue::Never)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A claim whose volume is taken from it finds out, although nothing about the claim itself has changed.
    #[test]
    fn a_claim_hears_of_the_volume_that_names_it_no_more() {
        let volume = |claim: Option<&str>| -> Arc<PersistentVolume> {
            let reference = claim.map(|name| json!({ "namespace": "default", "name": name }));
            let spec = json!({ "claimRef": reference, "hostPath": { "path": "/v" } });
            Arc::new(serde_json::from_value(json!({ "metadata": { "name": "v" }, "spec": spec })).unwrap())
        };
        for (old, new, expected) in [
            (Some("a"), None, Some("default/a")),
            (Some("a"), Some("b"), Some("default/a")),
            (Some("a"), Some("a"), None),
            (None, Some("a"), None),
        ] {
            let event = Event::Modified { old: volume(old), new: volume(new) };
            assert_eq!(former_claim(&event).as_deref(), expected, "{old:?} {new:?}");
        }
    }
}
