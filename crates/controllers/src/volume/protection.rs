//! Protection: a claim that a pod uses, a volume that is bound, and a class of attributes that a claim or volume has are not
//! deleted under their users. Admission puts the finalizer on; here it comes off when nobody uses the object any more.

use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Client, Event, Informer, ListParams, Resource};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const CLASS_FINALIZER: &str = "kubernetes.io/vac-protection";
const BY_CLASS: &str = "attributes-class";
pub(super) const BY_CLAIM: &str = "claim";
/// How many pods the server is asked for at a time.
const PAGE: u32 = 500;
/// A user that the cache does not show may go without an event: after this the server is asked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

struct Claims {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

struct Volumes {
    client: Client,
    volumes: Informer<PersistentVolume>,
}

struct AttributesClasses {
    client: Client,
    classes: Informer<VolumeAttributesClass>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
}

/// `namespace/name` of every claim a pod mounts, generic ephemeral ones included.
pub(super) fn claims_of(pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    let names = volumes.filter_map(|volume| api::claim::of_volume(pod.metadata.name(), volume));
    names.map(|(name, _)| format!("{namespace}/{name}")).collect()
}

pub(crate) fn build_claims(context: &Context) -> Arc<dyn Reconcile> {
    let claims = context.on_self::<PersistentVolumeClaim>();
    let pods = context.on::<Pod, _>(|event| match event {
        Event::Deleted(pod) => claims_of(pod),
        Event::Modified { new, .. } if is_shut_down(new) => claims_of(new),
        _ => Vec::new(),
    });
    pods.add_index(BY_CLAIM, claims_of);
    Arc::new(Claims { client: context.client.clone(), claims, pods })
}

pub(crate) fn build_volumes(context: &Context) -> Arc<dyn Reconcile> {
    let volumes = context.on_self::<PersistentVolume>();
    Arc::new(Volumes { client: context.client.clone(), volumes })
}

pub(crate) fn build_attributes_classes(context: &Context) -> Arc<dyn Reconcile> {
    let classes = context.on_self::<VolumeAttributesClass>();
    let claims = context.on::<PersistentVolumeClaim, _>(|event| former_classes(event, classes_of_claim));
    let volumes = context.on::<PersistentVolume, _>(|event| former_classes(event, classes_of_volume));
    claims.add_index(BY_CLASS, classes_of_claim);
    volumes.add_index(BY_CLASS, classes_of_volume);
    Arc::new(AttributesClasses { client: context.client.clone(), classes, claims, volumes })
}

/// The classes that the object does not have any more.
fn former_classes<K>(event: &Event<K>, classes: fn(&K) -> Vec<String>) -> Vec<String> {
    match event {
        Event::Added(_) => Vec::new(),
        Event::Modified { old, new } => {
            let kept = classes(new);
            classes(old).into_iter().filter(|class| !kept.contains(class)).collect()
        }
        Event::Deleted(object) => classes(object),
    }
}

/// The class that a claim has, the one it wants, and the one it is on its way to.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let target = status.and_then(|status| status.modify_volume_status.as_ref());
    let names = [
        spec.and_then(|spec| spec.volume_attributes_class_name.clone()),
        status.and_then(|status| status.current_volume_attributes_class_name.clone()),
        target.and_then(|target| target.target_volume_attributes_class_name.clone()),
    ];
    let mut names: Vec<_> = names.into_iter().flatten().filter(|name| !name.is_empty()).collect();
    names.compact_sort();
    names.dedup();
    names
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let name = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    name.filter(|name| !name.is_empty()).into_iter().collect()
}

impl Reconcile for AttributesClasses {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(class) = self.classes.get(key) else { return Ok(Requeue::Never) };
            let used =
                !self.claims.by_index(BY_CLASS, key).is_empty() || !self.volumes.by_index(BY_CLASS, key).is_empty();
            if !used && class.metadata.deletion_timestamp.is_some() && self.is_used_now(key).await? {
                return Ok(Requeue::After(RECHECK_INTERVAL));
            }
            protect(&self.client, &*class, CLASS_FINALIZER, used).await
        })
    }
}

impl AttributesClasses {
    /// Letting a class go cannot be taken back, so the server is asked.
    async fn is_used_now(&self, name: &str) -> Result<bool, Error> {
        let everything = ListParams::default();
        let claims = self.client.all::<PersistentVolumeClaim>().list_all(&everything, PAGE).await?;
        if claims.items.iter().any(|claim| classes_of_claim(claim).iter().any(|class| class == name)) {
            return Ok(true);
        }
        let volumes = self.client.all::<PersistentVolume>().list_all(&everything, PAGE).await?;
        Ok(volumes.items.iter().any(|volume| classes_of_volume(volume).iter().any(|class| class == name)))
    }
}

impl Reconcile for Claims {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(claim) = self.claims.get(key) else { return Ok(Requeue::Never) };
            let used = self.pods.by_index(BY_CLAIM, key).iter().any(|pod| keeps(pod, &claim));
            if !used && claim.metadata.deletion_timestamp.is_some() && self.is_used_now(&claim).await? {
                return Ok(Requeue::After(RECHECK_INTERVAL));
            }
            protect(&self.client, &*claim, CLAIM_FINALIZER, used).await
        })
    }
}

impl Claims {
    /// Letting a claim go cannot be taken back, so the server is asked: the cache may not show the latest pod.
    async fn is_used_now(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        let namespace = claim.metadata.namespace();
        let pods = self.client.namespaced::<Pod>(namespace).list_all(&ListParams::default(), PAGE).await?;
        Ok(pods.items.iter().any(|pod| keeps(pod, claim)))
    }
}

/// Whether a pod of the claim's namespace keeps the claim (`podUsesPVCForDeletion`, v1.36): one that was never scheduled does
/// not, one that has ended does until it is gone. A claim that was made for a pod may go when nothing of the pod runs any more.
fn keeps(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut used = volumes.filter_map(|volume| api::claim::of_volume(pod.metadata.name(), volume));
    let is_its = || claim.metadata.is_controlled_by(pod.metadata.uid()) && !is_shut_down(pod);
    !pods::node_name(pod).is_empty()
        && used.any(|(name, is_made_for_pod)| name == claim.metadata.name() && (!is_made_for_pod || is_its()))
}

/// Whether the kubelet has said that nothing of the pod runs any more.
fn is_shut_down(pod: &Pod) -> bool {
    pods::is_terminating(pod) && pod.metadata.deletion_grace_period_seconds == Some(0)
}

impl Reconcile for Volumes {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(volume) = self.volumes.get(key) else { return Ok(Requeue::Never) };
            let bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
            protect(&self.client, &*volume, VOLUME_FINALIZER, bound).await
        })
    }
}

/// Adds the finalizer to what lives without it, removes it from what is being deleted and unused.
async fn protect<K: Resource + serde::Serialize>(client: &Client, object: &K, finalizer: &str, used: bool) -> Outcome {
    let present = object.metadata().finalizers.iter().flatten().any(|known| known == finalizer);
    let deleting = object.metadata().deletion_timestamp.is_some();
    let mut changed = object.clone();
    let finalizers = changed.metadata_mut().finalizers.get_or_insert_default();
    match (deleting, present) {
        (false, false) => finalizers.push(finalizer.into()),
        (true, true) if !used => finalizers.retain(|known| known != finalizer),
        _ => return Ok(Requeue::Never),
    }
    match client.all::<K>().update(&changed).await {
        Err(error) if !error.is_not_found() => Err(Error::from(error)),
        _ => Ok(Requeue::Never),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_is_kept_by_pods_until_they_are_gone() {
        let named = || json!({ "name": "v", "persistentVolumeClaim": { "claimName": "p-v" } });
        let made = || json!({ "name": "v", "ephemeral": {} });
        let gone = || json!({ "deletionTimestamp": "2024-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0 });
        for (what, node, phase, volume, meta, owner, expected) in [
            ("it runs", "n", "Running", named(), json!({}), "", true),
            ("it has no node", "", "Pending", named(), json!({}), "", false),
            ("it has ended", "n", "Succeeded", named(), json!({}), "", true),
            ("it goes", "n", "Running", named(), gone(), "", true),
            ("it has another", "n", "Running", json!({ "name": "v", "emptyDir": {} }), json!({}), "", false),
            ("its own", "n", "Running", made(), json!({}), "u", true),
            ("its own, after its end", "n", "Succeeded", made(), json!({}), "u", true),
            ("its own, and nothing runs", "n", "Running", made(), gone(), "u", false),
            ("another pod's own", "n", "Running", made(), json!({}), "w", false),
        ] {
            let mut pod = json!({
                "metadata": { "name": "p", "namespace": "ns", "uid": "u" },
                "spec": { "nodeName": node, "containers": [], "volumes": [volume] }, "status": { "phase": phase },
            });
            if let (Value::Object(all), Value::Object(further)) = (&mut pod["metadata"], meta) {
                all.extend(further);
            }
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true });
            let claim = json!({ "metadata": { "name": "p-v", "namespace": "ns", "ownerReferences": [owner] } });
            let (pod, claim) = (api::codec::from_value(&pod).unwrap(), api::codec::from_value(&claim).unwrap());
            assert_eq!(keeps(&pod, &claim), expected, "{what}");
        }
    }
}
