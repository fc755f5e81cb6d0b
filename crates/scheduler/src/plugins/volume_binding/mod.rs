//! Volumes come to the node with the pod: bound ones must be reachable there, and claims that wait for their first
//! consumer are bound or provisioned for the node that was chosen.
//!
//! Reserve promises volumes in memory; PreBind writes the promises and waits until the volume controller has kept them.

mod error;
mod find;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::placement::is_reachable;
use client::{Client, Informer};
use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster::{Cluster, View, Volumes, version};
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
    /// By the pod's uid.
    reserved: Mutex<HashMap<Arc<str>, Bindings>>,
}

/// What PreBind writes through and watches.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: Client,
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    pub(crate) nodes: Informer<Node>,
    pub(crate) pods: Informer<Pod>,
    /// Moves whenever a claim or volume does, and when a node goes or a pod that has none.
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

    async fn write(&self, api: &Api, placement: &Placement, mut bindings: Bindings) -> Result<(), VolumeError> {
        for (volume, claim) in &mut bindings.volumes {
            let promised = promised_volume(volume, claim);
            *volume = Arc::new(api.client.all::<PersistentVolume>().update(&promised).await?);
        }
        for claim in &mut bindings.provisions {
            let promised = promised_claim(claim, &placement.node);
            let claims = api.client.namespaced::<PersistentVolumeClaim>(placement.pod.namespace());
            *claim = Arc::new(claims.update(&promised).await?);
        }
        let check = || {
            let pod = api.pods.get(&placement.pod.key);
            let node = still_there(placement, pod.as_deref(), api.nodes.get(&placement.node))?;
            is_done(|key| api.claims.get(key), |name| api.volumes.get(name), &node, &bindings)
        };
        until_done(api.changes.clone(), self.timeout, check).await
    }
}

/// Checks again after every change, until all is done or an error says that it never will be.
async fn until_done(
    mut changes: watch::Receiver<u64>,
    timeout: Duration,
    check: impl Fn() -> Result<bool, VolumeError>,
) -> Result<(), VolumeError> {
    let done = async {
        loop {
            changes.mark_unchanged();
            if check()? {
                return Ok(());
            }
            if changes.changed().await.is_err() {
                return Err(VolumeError::Stopping);
            }
        }
    };
    tokio::time::timeout(timeout, done).await.unwrap_or(Err(VolumeError::Timeout))
}

/// The node as caches show it. Without it, or without the pod, there is nothing to wait for.
fn still_there(placement: &Placement, pod: Option<&Pod>, node: Option<Arc<Node>>) -> Result<Arc<Node>, VolumeError> {
    // Another pod may have its name by now.
    if pod.is_none_or(|pod| pod.metadata.uid() != &*placement.pod.uid) {
        return Err(VolumeError::PodGone(placement.pod.name().to_owned()));
    }
    node.ok_or_else(|| VolumeError::NodeGone(placement.node.to_string()))
}

/// Whether every claim is bound by now, as caches show claims and volumes; `bindings` are as they were written. A promise that
/// somebody else took back is an error, and so is a volume that the node cannot reach: the pod starts over (`checkBindings`, v1.36).
fn is_done(
    claim_of: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    volume_of: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
    node: &Node,
    bindings: &Bindings,
) -> Result<bool, VolumeError> {
    let reachable = |volume: &PersistentVolume| match is_reachable(volume, node.metadata.labels.as_ref()) {
        true => Ok(()),
        false => Err(VolumeError::Unreachable {
            volume: volume.metadata.name().to_owned(),
            node: node.metadata.name().to_owned(),
        }),
    };
    for (volume, _) in &bindings.volumes {
        let name = volume.metadata.name();
        let now =
            volume_of(name).ok_or_else(|| VolumeError::Gone { kind: "PersistentVolume", key: name.to_owned() })?;
        // The cache does not show yet what was written.
        if version(&now.metadata) < version(&volume.metadata) {
            return Ok(false);
        }
        reachable(&now)?;
        let reference = now.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        if reference.and_then(|reference| reference.uid.as_ref()).is_none_or(String::is_empty) {
            return Err(VolumeError::Reset(name.to_owned()));
        }
    }
    let mut is_done = true;
    let claims = bindings.volumes.iter().map(|(_, claim)| (claim, false));
    for (claim, is_provision) in claims.chain(bindings.provisions.iter().map(|claim| (claim, true))) {
        let key = client::object_key(&**claim);
        let Some(now) = claim_of(&key) else {
            return Err(VolumeError::Gone { kind: "PersistentVolumeClaim", key });
        };
        if is_provision && version(&now.metadata) >= version(&claim.metadata) {
            let annotations = now.metadata.annotations.as_ref();
            let selected = annotations.and_then(|annotations| annotations.get(find::SELECTED_NODE));
            if selected != node.metadata.name.as_ref() && !find::is_fully_bound(&now) {
                return Err(VolumeError::Provisioning(claim.metadata.name().to_owned()));
            }
            // One that is not there yet comes, or the claim is lost.
            match find::volume_name(&now) {
                "" => {}
                name => match volume_of(name) {
                    Some(volume) => reachable(&volume)?,
                    None => is_done = false,
                },
            }
        }
        is_done &= find::is_fully_bound(&now);
    }
    Ok(is_done)
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
            cluster.volumes.break_volume_promise(volume.metadata.name());
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
        let name = volume.metadata.name();
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::Catalogue;

    fn volume(version: &str, spec: Value) -> Arc<PersistentVolume> {
        let meta = json!({ "name": "pv", "resourceVersion": version });
        Arc::new(serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap())
    }

    fn claim(version: &str, selected: Option<&str>, bound: Option<&str>) -> Arc<PersistentVolumeClaim> {
        let annotations = json!({ (find::SELECTED_NODE): selected, (find::BIND_COMPLETED): bound.map(|_| "yes") });
        let set = annotations.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
        let annotations: serde_json::Map<_, _> = set.map(|(key, value)| (key.clone(), value.clone())).collect();
        let meta = json!({ "namespace": "ns", "name": "c", "resourceVersion": version, "annotations": annotations });
        Arc::new(serde_json::from_value(json!({ "metadata": meta, "spec": { "volumeName": bound } })).unwrap())
    }

    fn node() -> Node {
        serde_json::from_value(json!({ "metadata": { "name": "n", "labels": { "zone": "a" } } })).unwrap()
    }

    fn in_zone(zone: &str, reference: Value) -> Value {
        let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] });
        json!({ "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } }, "claimRef": reference })
    }

    #[test]
    fn a_volume_that_is_made_must_be_where_the_pod_goes() {
        let bindings = Bindings { provisions: vec![claim("2", Some("n"), None)], ..Bindings::default() };
        let made = |zone| Some(volume("5", in_zone(zone, json!(null))));
        for (what, now, volume, expected) in [
            ("not written in the cache", Some(claim("1", None, None)), None, Ok(false)),
            ("being made", Some(claim("2", Some("n"), None)), None, Ok(false)),
            (
                "given back",
                Some(claim("3", None, None)),
                None,
                Err("binding volumes: provisioning failed for PVC \"c\""),
            ),
            (
                "made for another",
                Some(claim("3", Some("m"), None)),
                None,
                Err("binding volumes: provisioning failed for PVC \"c\""),
            ),
            ("bound", Some(claim("4", Some("n"), Some("pv"))), made("a"), Ok(true)),
            ("bound, volume not seen", Some(claim("4", Some("n"), Some("pv"))), None, Ok(false)),
            (
                "elsewhere",
                Some(claim("4", Some("n"), Some("pv"))),
                made("b"),
                Err("binding volumes: pv \"pv\" node affinity doesn't match node \"n\": no matching NodeSelectorTerms"),
            ),
            (
                "gone",
                None,
                None,
                Err("binding volumes: failed to check binding: could not find v1.PersistentVolumeClaim \"ns/c\""),
            ),
        ] {
            let done = is_done(|_| now.clone(), |_| volume.clone(), &node(), &bindings);
            assert_eq!(done.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{what}");
        }
    }

    #[test]
    fn a_volume_that_was_promised_stays_the_claims() {
        let bindings = Bindings {
            volumes: vec![(volume("2", in_zone("a", json!(null))), claim("1", None, None))],
            ..Bindings::default()
        };
        let mine = json!({ "namespace": "ns", "name": "c", "uid": "u" });
        for (what, now, volume, expected) in [
            ("not written in the cache", claim("1", None, None), volume("1", in_zone("a", json!(null))), Ok(false)),
            ("promised", claim("1", None, None), volume("2", in_zone("a", mine.clone())), Ok(false)),
            ("bound", claim("2", None, Some("pv")), volume("2", in_zone("a", mine.clone())), Ok(true)),
            (
                "taken back",
                claim("1", None, None),
                volume("3", in_zone("a", json!(null))),
                Err("binding volumes: ClaimRef got reset for pv \"pv\""),
            ),
        ] {
            let done = is_done(|_| Some(now.clone()), |_| Some(volume.clone()), &node(), &bindings);
            assert_eq!(done.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_waited_for_without_the_pod_and_its_node() {
        let pod = |uid: &str| -> Arc<Pod> {
            let meta = json!({ "namespace": "ns", "name": "p", "uid": uid });
            Arc::new(api::codec::from_value(&json!({ "metadata": meta, "spec": { "containers": [] } })).unwrap())
        };
        let info = PodInfo::pending(pod("u"), &Catalogue::default());
        let placement = Placement { pod: Arc::new(info), node: "n".into() };
        let bindings = Bindings { provisions: vec![claim("2", Some("n"), None)], ..Bindings::default() };
        let no_pod = "binding volumes: pod does not exist any more: pod \"p\" not found";
        let no_node = "binding volumes: failed to get node \"n\": node \"n\" not found";
        for (what, pod_then, node_then, expected) in [
            ("a pod that is deleted", None, Some(node()), no_pod),
            ("a pod that is made anew", Some(pod("v")), Some(node()), no_pod),
            ("a node that is deleted", Some(pod("u")), None, no_node),
            ("neither", Some(pod("u")), Some(node()), "binding volumes: context deadline exceeded"),
        ] {
            let (moved, changes) = watch::channel(0);
            let caches = Mutex::new((Some(pod("u")), Some(Arc::new(node()))));
            let check = || {
                let (pod, node) = caches.lock().clone();
                let node = still_there(&placement, pod.as_deref(), node)?;
                is_done(|_| Some(claim("2", Some("n"), None)), |_| None, &node, &bindings)
            };
            let leave = async {
                *caches.lock() = (pod_then, node_then.map(Arc::new));
                moved.send_modify(|count| *count += 1);
            };
            let (ended, ()) = tokio::join!(until_done(changes, Duration::from_secs(600), check), leave);
            assert_eq!(ended.map_err(|error| error.to_string()), Err(expected.to_owned()), "{what}");
        }
    }
}
