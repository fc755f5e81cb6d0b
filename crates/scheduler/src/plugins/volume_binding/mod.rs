//! Volumes come to the node with the pod: bound ones must be reachable there, and claims that wait for their first
//! consumer are bound or provisioned for the node that was chosen.
//!
//! Reserve promises volumes in memory; PreBind writes the promises and waits until the volume controller has kept them.

mod error;
mod find;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Informer};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster::{Cluster, View, Volumes};
use crate::framework::{Basis, Event, Outcome, Placement, Plugin, PluginError, Point, Rejection, State};
use crate::metrics::Metrics;
use crate::pod::PodInfo;
use error::VolumeError;
use find::{Bindings, Claims};

const NAME: &str = "VolumeBinding";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

pub(crate) struct VolumeBinding {
    pub(crate) timeout: Duration,
    /// None where nothing is ever bound: decisions alone.
    pub(crate) api: Option<Api>,
    reserved: Mutex<HashMap<Arc<str>, Bindings>>,
}

/// What PreBind writes through and watches.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: Client,
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    /// Moves whenever a claim or volume does.
    pub(crate) changes: watch::Receiver<u64>,
    pub(crate) metrics: Metrics,
}

impl VolumeBinding {
    pub(crate) fn new(timeout: Duration, api: Option<Api>) -> VolumeBinding {
        VolumeBinding { timeout, api, reserved: Mutex::default() }
    }

    /// Counts what went wrong, by the stage it went wrong at.
    fn note<T>(&self, stage: &str, result: Result<T, VolumeError>) -> Result<T, VolumeError> {
        if let (Err(_), Some(api)) = (&result, &self.api) {
            api.metrics.count("scheduler_volume_scheduling_stage_error_total", &[("operation", stage)]);
        }
        result
    }

    /// Promises the volumes of a pod's claims on its node.
    fn promise(&self, placement: &Placement, cluster: &mut Cluster) -> Result<(), VolumeError> {
        let claims = find::claims_of(&placement.pod, &cluster.volumes)?;
        let node = cluster.node(&placement.node).and_then(|node| cluster.row(node).object.clone());
        let node = node.ok_or_else(|| VolumeError::NoNode(placement.node.to_string()))?;
        let bindings = find::on_node(&claims, &node, &cluster.volumes)
            .map_err(|_| VolumeError::NoVolumes(placement.node.to_string()))?;
        if bindings.volumes.is_empty() && bindings.provisions.is_empty() {
            return Ok(());
        }
        promise(&mut cluster.volumes, &bindings, &placement.node);
        self.reserved.lock().insert(placement.pod.uid.clone(), bindings);
        Ok(())
    }

    async fn write(&self, api: &Api, placement: &Placement, bindings: Bindings) -> Result<(), VolumeError> {
        for (volume, claim) in &bindings.volumes {
            let promised = promised_volume(volume, claim);
            api.client.all::<PersistentVolume>().update(&promised).await?;
        }
        for claim in &bindings.provisions {
            let promised = promised_claim(claim, &placement.node);
            let claims = api.client.namespaced::<PersistentVolumeClaim>(placement.pod.namespace());
            claims.update(&promised).await?;
        }
        let mut changes = api.changes.clone();
        let bound = async {
            loop {
                changes.mark_unchanged();
                if is_done(api, &placement.node, &bindings)? {
                    return Ok(());
                }
                if changes.changed().await.is_err() {
                    return Err(VolumeError::Stopping);
                }
            }
        };
        match tokio::time::timeout(self.timeout, bound).await {
            Ok(result) => result,
            Err(_) => Err(VolumeError::Timeout),
        }
    }
}

/// Whether every claim is bound by now. A promise that somebody else took back is an error: the pod starts over.
fn is_done(api: &Api, node: &str, bindings: &Bindings) -> Result<bool, VolumeError> {
    let claims = bindings.volumes.iter().map(|(_, claim)| (claim, false));
    for (claim, is_provision) in claims.chain(bindings.provisions.iter().map(|claim| (claim, true))) {
        let key = client::object_key(&**claim);
        let Some(now) = api.claims.get(&key) else {
            return Err(VolumeError::Gone { kind: "PersistentVolumeClaim", key });
        };
        let selected = now.metadata.annotations.as_ref().and_then(|annotations| annotations.get(find::SELECTED_NODE));
        if is_provision && !find::is_fully_bound(&now) {
            let is_older = now.metadata.resource_version == claim.metadata.resource_version;
            if selected.is_none_or(|selected| selected != node) && !is_older {
                return Err(VolumeError::Provisioning(claim.metadata.name.clone().unwrap_or_default()));
            }
        }
        if !find::is_fully_bound(&now) {
            return Ok(false);
        }
    }
    for (volume, _) in &bindings.volumes {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let Some(now) = api.volumes.get(name) else {
            return Err(VolumeError::Gone { kind: "PersistentVolume", key: name.to_owned() });
        };
        if now.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::Reserve, Point::PreBind, Point::PostBind]
    }

    fn basis(&self) -> Basis {
        Basis::Cluster
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) -> Result<Option<Box<dyn State>>, Rejection> {
        if pod.claims().next().is_none() {
            return Ok(None);
        }
        let claims = find::claims_of(pod, &cluster.volumes);
        let claims = claims.map_err(|error| Rejection::new(NAME, error.to_string()).unresolvable())?;
        Ok(Some(Box::new(PodClaims { claims })))
    }

    fn reserve(&self, placement: &Placement, cluster: &mut Cluster) -> Result<(), PluginError> {
        if placement.pod.claims().next().is_none() {
            return Ok(());
        }
        Ok(self.note("assume", self.promise(placement, cluster))?)
    }

    fn unreserve(&self, placement: &Placement, cluster: &mut Cluster) {
        let Some(bindings) = self.reserved.lock().remove(&placement.pod.uid) else { return };
        for (volume, _) in &bindings.volumes {
            cluster.volumes.break_volume_promise(volume.metadata.name.as_deref().unwrap_or_default());
        }
        for claim in &bindings.provisions {
            cluster.volumes.break_claim_promise(&client::object_key(&**claim));
        }
    }

    fn pre_bind<'a>(&'a self, placement: &'a Placement) -> Outcome<'a> {
        let bindings = self.reserved.lock().get(&placement.pod.uid).cloned();
        let (Some(bindings), Some(api)) = (bindings, &self.api) else { return Box::pin(async { Ok(()) }) };
        Box::pin(async move { Ok(self.note("bind", self.write(api, placement, bindings).await)?) })
    }

    fn post_bind(&self, placement: &Placement) {
        self.reserved.lock().remove(&placement.pod.uid);
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        match event {
            Event::ClaimAdded(claim) | Event::ClaimChanged(claim) => uses(pod, claim),
            Event::VolumeAdded | Event::VolumeChanged | Event::CapacityAdded => true,
            Event::StorageClassAdded(_) | Event::NodeAdded(_) => true,
            Event::StorageClassChanged { old, new } => old.allowed_topologies != new.allowed_topologies,
            Event::NodeChanged { change, .. } => change.labels,
            Event::CsiDriverChanged(name) => {
                pod.volumes().iter().any(|volume| volume.csi.as_ref().is_some_and(|csi| csi.driver == *name))
            }
            Event::CapacityChanged { old, new } => {
                let limit = |capacity: &k8s_openapi::api::storage::v1::CSIStorageCapacity| {
                    let limit = capacity.maximum_volume_size.clone().or_else(|| capacity.capacity.clone());
                    limit.and_then(|limit| limit.0.parse::<api::quantity::Quantity>().ok())
                };
                limit(new) > limit(old)
            }
            _ => false,
        }
    }
}

/// Whether the pod uses the claim.
pub(crate) fn uses(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.namespace.as_deref() == Some(pod.namespace())
        && pod.claims().any(|(name, _)| Some(&name) == claim.metadata.name.as_ref())
}

fn promise(volumes: &mut Volumes, bindings: &Bindings, node: &str) {
    for (volume, claim) in &bindings.volumes {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        volumes.promise_volume(name, Arc::new(promised_volume(volume, claim)));
    }
    for claim in &bindings.provisions {
        volumes.promise_claim(&client::object_key(&**claim), Arc::new(promised_claim(claim, node)));
    }
}

fn promised_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolume {
    let mut volume = volume.clone();
    let spec = volume.spec.get_or_insert_default();
    if spec.claim_ref.is_none() {
        let annotations = volume.metadata.annotations.get_or_insert_default();
        annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    spec.claim_ref = Some(ObjectReference {
        kind: Some("PersistentVolumeClaim".into()),
        api_version: Some("v1".into()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    });
    volume
}

fn promised_claim(claim: &PersistentVolumeClaim, node: &str) -> PersistentVolumeClaim {
    let mut claim = claim.clone();
    claim.metadata.annotations.get_or_insert_default().insert(find::SELECTED_NODE.to_owned(), node.to_owned());
    claim
}

/// A pod's claims, for one attempt.
struct PodClaims {
    claims: Claims,
}

impl State for PodClaims {
    /// Claims belong to one pod and change behind our back: looked up at each attempt.
    fn refresh(&mut self, _cluster: &mut Cluster) -> bool {
        false
    }

    fn filter(&self, cluster: &Cluster, node: &View<'_>) -> u8 {
        let Some(object) = &node.row.object else { return find::NODE_CONFLICT };
        find::on_node(&self.claims, object, &cluster.volumes).err().unwrap_or(0)
    }

    fn explain(&self, code: u8) -> Rejection {
        let reasons = [
            (find::NODE_CONFLICT, "node(s) didn't match PersistentVolume's node affinity"),
            (find::BIND_CONFLICT, "node(s) didn't find available persistent volumes to bind"),
            (find::NOT_ENOUGH_SPACE, "node(s) did not have enough free storage"),
            (find::NO_VOLUME, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"),
        ];
        let reasons = reasons.into_iter().filter(|(bit, _)| code & bit != 0).map(|(_, text)| text.into());
        Rejection { plugin: NAME, reasons: reasons.collect(), is_unresolvable: true }
    }
}
