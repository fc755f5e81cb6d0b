//! What external provisioners and resizers do for a cluster, for this node alone: claims that the scheduler sent here get a
//! volume, volumes that are released go, larger claims get larger volumes, and the scheduler hears how much is left.
//!
//! Everything is decided from the objects as they are, again after each change of any of them; doing it twice changes nothing.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, DeleteParams, EventRecorder, Informer, InformerFactory, ListParams, Patch};
use csi::tonic::Status;
use csi::v1::{
    CapacityRange, ContentSource, Controller, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    GetCapacityRequest, VolumeContentSource, VolumeSource,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::driver::Driver;
use crate::{NAME, TOPOLOGY_KEY};

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
const CAPACITY_NAMESPACE: &str = "kube-system";
/// Failures are tried again and free space is told this often, without any event.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Free space is told in steps: it changes all the time.
const STEP: i64 = 64 << 20;

struct Provisioner {
    client: Client,
    node: String,
    driver: Arc<Driver>,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
}

pub(crate) async fn run(client: Client, node: String, driver: Arc<Driver>, stop: CancellationToken) {
    let informers = InformerFactory::new(client.clone());
    let changed = Arc::new(Notify::new());
    let provisioner = Provisioner {
        recorder: EventRecorder::new(client.clone(), NAME, &node),
        claims: informers.informer(),
        volumes: informers.informer(),
        classes: informers.informer(),
        client,
        node,
        driver,
    };
    let wake = changed.clone();
    provisioner.claims.subscribe(move |_| wake.notify_one());
    let wake = changed.clone();
    provisioner.volumes.subscribe(move |_| wake.notify_one());
    let wake = changed.clone();
    provisioner.classes.subscribe(move |_| wake.notify_one());
    informers.start(stop.clone());
    let work = async {
        tokio::join!(provisioner.claims.synced(), provisioner.volumes.synced(), provisioner.classes.synced());
        loop {
            provisioner.pass().await;
            tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
    informers.ended().await;
}

impl Provisioner {
    async fn pass(&self) {
        for claim in self.claims.list() {
            if is_for(&claim, &self.node) {
                self.provision(&claim).await;
            }
            if let Some((volume, size)) = self.growth(&claim) {
                self.grow(&claim, &volume, size).await;
            }
        }
        for volume in self.volumes.list() {
            if is_done_with(&volume, &self.node) {
                self.delete(&volume).await;
            }
        }
        if let Err(error) = self.tell_capacity().await {
            tracing::warn!(%error, "free space not told");
        }
    }

    async fn provision(&self, claim: &PersistentVolumeClaim) {
        let reference = client::reference(claim);
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
        // The annotations are the claim's owner's, the class is not.
        let Some(class) = self.classes.get(class).filter(|class| class.provisioner == NAME) else { return };
        if let Err(why) = self.make(claim, &class).await {
            let message = format!("failed to provision volume with StorageClass {:?}: {why}", name_of(&class.metadata));
            self.recorder.warning(&reference, "ProvisioningFailed", message);
        }
    }

    async fn make(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), String> {
        let spec = claim.spec.clone().unwrap_or_default();
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        if self.volumes.get(&name).is_some() {
            return Ok(());
        }
        if spec.volume_mode.as_deref() == Some("Block") {
            return Err("volumes are folders and cannot be used as block devices".into());
        }
        let request = CreateVolumeRequest {
            name: name.clone(),
            capacity_range: Some(CapacityRange { required_bytes: requested(claim), limit_bytes: 0 }),
            parameters: class.parameters.clone().unwrap_or_default(),
            volume_content_source: self.source(claim)?,
            ..Default::default()
        };
        let made = self.driver.create_volume(request).await.map_err(|status| csi::describe(&status))?;
        let made = made.volume.unwrap_or_default();
        let volume = json!({
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: NAME}},
            "spec": {
                "capacity": {"storage": quantity(made.capacity_bytes)},
                "accessModes": spec.access_modes,
                "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "storageClassName": class.metadata.name,
                "mountOptions": class.mount_options,
                "volumeMode": "Filesystem",
                "csi": {"driver": NAME, "volumeHandle": made.volume_id},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": TOPOLOGY_KEY, "operator": "In", "values": [self.node]}]}]}},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.metadata.name,
                    "namespace": claim.metadata.namespace, "uid": claim.metadata.uid},
            },
        });
        let volume: PersistentVolume = serde_json::from_value(volume).map_err(|error| error.to_string())?;
        match self.client.all::<PersistentVolume>().create(&volume).await {
            Err(error) if !error.is_already_exists() => Err(error.to_string()),
            _ => {
                let message = format!("Successfully provisioned volume {name}");
                self.recorder.normal(&client::reference(claim), "ProvisioningSucceeded", message);
                Ok(())
            }
        }
    }

    /// A claim that is to begin as a copy of another, which must be on this node, too.
    fn source(&self, claim: &PersistentVolumeClaim) -> Result<Option<VolumeContentSource>, String> {
        let Some(source) = claim.spec.as_ref().and_then(|spec| spec.data_source.as_ref()) else { return Ok(None) };
        if source.kind != "PersistentVolumeClaim" {
            return Err(format!("a volume cannot be made from a {}", source.kind));
        }
        let key = format!("{}/{}", claim.metadata.namespace.as_deref().unwrap_or_default(), source.name);
        let other = self.claims.get(&key).ok_or_else(|| format!("claim {key} does not exist"))?;
        let bound = other.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let volume = self.volumes.get(&bound).filter(|volume| is_bound_to(volume, &other));
        let volume = volume.ok_or_else(|| format!("claim {key} is not bound"))?;
        if !is_on(&volume, &self.node) {
            return Err(format!("the volume of claim {key} is not on node {}", self.node));
        }
        let volume_id = handle(&volume).unwrap_or_default().to_string();
        Ok(Some(VolumeContentSource { r#type: Some(ContentSource::Volume(VolumeSource { volume_id })) }))
    }

    /// Whether a volume that the cache shows as released is, and has not been given to another claim or set to be kept since.
    async fn is_released_now(&self, volume: &PersistentVolume) -> Result<bool, client::Error> {
        let live = self.client.all::<PersistentVolume>().get_opt(name_of(&volume.metadata)).await?;
        let Some(live) = live.filter(|live| live.metadata.uid == volume.metadata.uid) else { return Ok(false) };
        let reference = live.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
        if !is_done_with(&live, &self.node) || handle(&live) != handle(volume) {
            return Ok(false);
        }
        let claims = self.client.namespaced::<PersistentVolumeClaim>(&reference.namespace.unwrap_or_default());
        let claim = claims.get_opt(&reference.name.unwrap_or_default()).await?;
        Ok(claim.is_none_or(|claim| !is_bound_to(&live, &claim)))
    }

    async fn delete(&self, volume: &PersistentVolume) {
        let (name, reference) = (name_of(&volume.metadata), client::reference(volume));
        // Files that are gone do not come back: the cache may be late.
        match self.is_released_now(volume).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(volume = name, %error, "volume not looked at, will retry");
                return;
            }
        }
        let volume_id = handle(volume).unwrap_or_default().to_string();
        // The files first: an object that is gone would leave them to nobody.
        let deleted = self.driver.delete_volume(DeleteVolumeRequest { volume_id, ..Default::default() }).await;
        if let Err(status) = deleted {
            self.recorder.warning(&reference, "VolumeFailedDelete", csi::describe(&status));
            return;
        }
        let params = DeleteParams { uid: volume.metadata.uid.clone(), ..DeleteParams::default() };
        match self.client.all::<PersistentVolume>().delete(name, &params).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(volume = name, %error, "volume without files not deleted, will retry");
            }
            _ => {}
        }
    }

    /// The volume of a claim that asks for more than it has, and how much.
    fn growth(&self, claim: &PersistentVolumeClaim) -> Option<(Arc<PersistentVolume>, i64)> {
        let spec = claim.spec.as_ref()?;
        let volume = self.volumes.get(spec.volume_name.as_deref()?);
        let volume = volume.filter(|volume| is_on(volume, &self.node) && is_bound_to(volume, claim))?;
        let class = self.classes.get(spec.storage_class_name.as_deref()?)?;
        let has = bytes(volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?)?;
        let shown = claim.status.as_ref().and_then(|status| bytes(status.capacity.as_ref()?.get("storage")?));
        let wanted = requested(claim);
        let may_grow = class.allow_volume_expansion == Some(true) && wanted > has;
        // The volume has grown, and its claim does not show it yet.
        let is_behind = wanted <= has && shown.is_some_and(|shown| shown < has);
        (may_grow || is_behind).then_some((volume, wanted.max(has)))
    }

    async fn grow(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume, size: i64) {
        if let Err(why) = self.try_grow(claim, volume, size).await {
            let message = format!("resize volume {:?} by resizer {NAME:?} failed: {why}", name_of(&volume.metadata));
            self.recorder.warning(&client::reference(claim), "VolumeResizeFailed", message);
        }
    }

    async fn try_grow(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        size: i64,
    ) -> Result<(), String> {
        let request = ControllerExpandVolumeRequest {
            volume_id: handle(volume).unwrap_or_default().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
            ..Default::default()
        };
        let grown =
            self.driver.controller_expand_volume(request).await.map_err(|status: Status| csi::describe(&status))?;
        let size = quantity(grown.capacity_bytes);
        let patch = Patch::merge(json!({"spec": {"capacity": {"storage": size}}}));
        let patched = self.client.all::<PersistentVolume>().patch(name_of(&volume.metadata), &patch).await;
        patched.map_err(|error| error.to_string())?;
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let patch = Patch::merge(json!({"status": {"capacity": {"storage": size}}}));
        let claims = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        claims.patch_status(name_of(&claim.metadata), &patch).await.map_err(|error| error.to_string())?;
        self.recorder.normal(&client::reference(claim), "VolumeResizeSuccessful", "Resize volume succeeded");
        Ok(())
    }

    /// One object per class of ours, for the scheduler; those of classes that are gone go.
    async fn tell_capacity(&self) -> Result<(), client::Error> {
        let api = self.client.namespaced::<CSIStorageCapacity>(CAPACITY_NAMESPACE);
        let Ok(free) = self.driver.get_capacity(GetCapacityRequest::default()).await else { return Ok(()) };
        let told = free.available_capacity / STEP * STEP;
        let label = format!("{TOPOLOGY_KEY}={}", self.node);
        let there = api.list(&ListParams { label_selector: Some(label), ..Default::default() }).await?.items;
        let classes = self.classes.list();
        let own = classes.iter().filter(|class| class.provisioner == NAME).map(|class| name_of(&class.metadata));
        let own: Vec<&str> = own.collect();
        for class in &own {
            let name = format!("csisc-{:.32}", format!("{:x}", Sha256::digest(format!("{class} {}", self.node))));
            let size = quantity(told);
            match there.iter().find(|known| known.metadata.name.as_deref() == Some(&name)) {
                Some(known) if known.capacity.as_ref().and_then(bytes) == Some(told) => {}
                Some(_) => {
                    let patch = Patch::merge(json!({"capacity": size, "maximumVolumeSize": size}));
                    api.patch(&name, &patch).await?;
                }
                None => {
                    let object = json!({
                        "metadata": {"name": name, "labels": {TOPOLOGY_KEY: self.node}},
                        "storageClassName": class, "capacity": size, "maximumVolumeSize": size,
                        "nodeTopology": {"matchLabels": {TOPOLOGY_KEY: self.node}},
                    });
                    if let Ok(object) = serde_json::from_value::<CSIStorageCapacity>(object) {
                        api.create(&object).await?;
                    }
                }
            }
        }
        for known in there.iter().filter(|known| !own.contains(&known.storage_class_name.as_str())) {
            api.delete(name_of(&known.metadata), &DeleteParams::default()).await?;
        }
        Ok(())
    }
}

fn name_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// Whether a claim waits for a volume of ours on this node.
fn is_for(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let annotation = |key: &str| claim.metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
    let is_unbound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.as_deref().unwrap_or_default().is_empty());
    is_unbound
        && claim.metadata.deletion_timestamp.is_none()
        && PROVISIONERS.iter().any(|key| annotation(key) == Some(NAME))
        && annotation(SELECTED_NODE) == Some(node)
}

fn handle(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    (source.driver == NAME).then_some(source.volume_handle.as_str())
}

/// Whether a volume says that it is the claim's: claims can name any volume.
fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| reference.uid.is_some() && reference.uid == claim.metadata.uid)
}

/// Whether a volume is a folder of this node.
fn is_on(volume: &PersistentVolume, node: &str) -> bool {
    let required = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let mut expressions = required
        .into_iter()
        .flat_map(|all| &all.node_selector_terms)
        .flat_map(|term| term.match_expressions.iter().flatten());
    handle(volume).is_some()
        && expressions.any(|one| {
            one.key == TOPOLOGY_KEY && one.values.as_deref().is_some_and(|values| values == [node.to_string()])
        })
}

/// Whether nobody needs a volume of this node any more.
fn is_done_with(volume: &PersistentVolume, node: &str) -> bool {
    let spec = volume.spec.as_ref();
    let by = volume.metadata.annotations.as_ref().and_then(|all| all.get(PROVISIONED_BY)).map(String::as_str);
    is_on(volume, node)
        && by == Some(NAME)
        && spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete")
        && volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released")
        // One without a claim was made free again, whatever its phase still says.
        && spec.is_some_and(|spec| spec.claim_ref.as_ref().is_some_and(|claim| claim.uid.is_some()))
}

fn bytes(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Option<i64> {
    quantity.0.parse::<api::quantity::Quantity>().ok().map(|quantity| quantity.value())
}

fn quantity(bytes: i64) -> String {
    api::quantity::Quantity::new(bytes, api::quantity::Format::BinarySI).to_string()
}

fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| bytes(requests.get("storage")?)).unwrap_or_default().max(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::Value;

    fn claim(annotations: Value, volume: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume}}))
            .unwrap()
    }

    #[test]
    fn only_claims_that_were_sent_here_are_ours() {
        let (key, beta) = (PROVISIONERS[0], PROVISIONERS[1]);
        for (annotations, volume, expected) in [
            (json!({key: NAME, SELECTED_NODE: "n"}), "", true),
            (json!({beta: NAME, SELECTED_NODE: "n"}), "", true),
            (json!({key: NAME, SELECTED_NODE: "m"}), "", false),
            (json!({key: NAME}), "", false),
            (json!({key: "other", SELECTED_NODE: "n"}), "", false),
            (json!({key: NAME, SELECTED_NODE: "n"}), "pv", false),
        ] {
            assert_eq!(is_for(&claim(annotations.clone(), volume), "n"), expected, "{annotations} {volume}");
        }
    }

    #[test]
    fn security_a_claim_that_names_a_volume_does_not_have_it() {
        let volume = |reference: Value| -> PersistentVolume {
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"claimRef": reference}})).unwrap()
        };
        let mut claim = claim(json!({}), "pv");
        claim.metadata.uid = Some("u".into());
        assert!(is_bound_to(&volume(json!({"uid": "u"})), &claim));
        assert!(!is_bound_to(&volume(json!({"uid": "victim"})), &claim));
        assert!(!is_bound_to(&volume(json!(null)), &claim));
        claim.metadata.uid = None;
        assert!(!is_bound_to(&volume(json!({})), &claim));
    }

    #[test]
    fn security_only_released_volumes_of_this_node_are_deleted() {
        let volume = |change: &dyn Fn(&mut Value)| -> PersistentVolume {
            let mut volume = json!({
                "metadata": {"name": "pv", "annotations": {PROVISIONED_BY: NAME}},
                "spec": {"csi": {"driver": NAME, "volumeHandle": "h"}, "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {"namespace": "ns", "name": "c", "uid": "u"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                        {"key": TOPOLOGY_KEY, "operator": "In", "values": ["n"]}]}]}}},
                "status": {"phase": "Released"},
            });
            change(&mut volume);
            serde_json::from_value(volume).unwrap()
        };
        assert!(is_done_with(&volume(&|_| {}), "n"));
        assert!(!is_done_with(&volume(&|_| {}), "m"));
        let changes: [&dyn Fn(&mut Value); 5] = [
            &|volume| volume["spec"]["claimRef"] = json!(null),
            &|volume| volume["status"]["phase"] = json!("Bound"),
            &|volume| volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain"),
            &|volume| volume["spec"]["csi"]["driver"] = json!("other"),
            &|volume| volume["metadata"]["annotations"][PROVISIONED_BY] = json!("other"),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert!(!is_done_with(&volume(change), "n"), "{number}");
        }
    }
}
