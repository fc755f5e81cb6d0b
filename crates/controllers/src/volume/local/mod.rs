//! Volumes of `local.cox`, this binary's own driver: folders of nodes.
//!
//! What external provisioners, resizers and snapshotters do beside a driver is done here for all nodes: objects of volumes,
//! claims and snapshots are decided on and written by this controller. The nodes only make, copy, grow and remove folders,
//! as their NodeVolumes ask them to (`api::node_volumes`), which are all that a node may see and answer. A node that lies
//! does so about its own folders: its answers are heard for volumes whose affinity names it, and nothing is believed but
//! that something was done or why not, the room that is left, and the age and size of a snapshot.
//!
//! Keys: `volume/<id>` for everything about one volume, its claim included; `content/<name>`; `node/<name>`; `tidy/<node>` for
//! requests of a node that are over.

mod capacity;
mod definition;
mod error;
mod plan;
mod snapshots;
mod source;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::claim::is_resize_condition;
use api::meta::Meta as _;
use api::node_volumes::{Action, Answer, DRIVER, NodeVolumes, PLURAL, Request, TOPOLOGY_KEY, is_id};
use api::quantity::{Format, Quantity};
use client::{Client, Clock, DeleteParams, Event, EventRecorder, Informer, ListParams, Patch, WorkQueue};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::decision::{
    BETA_PROVISIONER_NOTE, PROVISIONED_BY, PROVISIONER_NOTE, SELECTED_NODE, annotation, claim_key, volume_name,
};
use super::definitions;
use super::matching::claim_class;
use super::snapshot::kinds::VolumeSnapshotContent;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};
use definition::definition;
use error::NoVolume;
use plan::{
    Asked, FINALIZER, Seen, Step, deciding, handle, has_finalizer, is_bound_to, is_done_with, needs, next, node_of,
};

/// Volumes by handle, claims by the id that a volume made for them has, objects of nodes by what they are asked about.
const BY_VOLUME: &str = "local-volume";
/// Contents and objects of nodes by id of the snapshot.
const BY_SNAPSHOT: &str = "local-snapshot";
/// How often definitions are tried that could not be made.
const INSTALL_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long requests that were answered are gathered: they are taken back together.
const TIDY_INTERVAL: Duration = Duration::from_millis(100);
/// How long a folder that could not be removed is left alone.
const REMOVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    queue: WorkQueue<String>,
    definitions: Informer<CustomResourceDefinition>,
    drivers: Informer<CSIDriver>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    csi_nodes: Informer<CSINode>,
    capacities: Informer<CSIStorageCapacity>,
    /// There is something new about definitions or drivers.
    changed: watch::Sender<()>,
    /// Once there are any.
    nodes: Arc<OnceLock<Informer<NodeVolumes>>>,
    contents: Arc<OnceLock<Informer<VolumeSnapshotContent>>>,
}

/// The id of the volume that is made for a claim.
fn id_for(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid())
}

/// Whether a claim's volumes are ours to make.
fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    [PROVISIONER_NOTE, BETA_PROVISIONER_NOTE].iter().any(|key| annotation(&claim.metadata, key) == Some(DRIVER))
}

fn volume_key(id: &str) -> String {
    format!("volume/{id}")
}

fn quantity(bytes: i64) -> String {
    Quantity::new(bytes, Format::BinarySI).to_string()
}

fn name_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    meta.name()
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let changed = watch::Sender::new(());
    let definitions = {
        let changed = changed.clone();
        context.informer::<CustomResourceDefinition>().wakes(move |_| changed.send_modify(|()| {}))
    };
    let drivers = {
        let changed = changed.clone();
        context.informer::<CSIDriver>().wakes(move |_| changed.send_modify(|()| {}))
    };
    let volumes = context.on::<PersistentVolume, _>(|event| handle(event.object()).map(volume_key));
    volumes.add_index(BY_VOLUME, |volume| handle(volume).map(str::to_owned).into_iter().collect());
    let claims = {
        let volumes = volumes.clone();
        context.on::<PersistentVolumeClaim, _>(move |event| {
            let claim = event.object();
            let bound = volume_name(claim).and_then(|name| volumes.get(name));
            let bound = bound.as_deref().and_then(handle).map(volume_key);
            is_ours(claim).then(|| volume_key(&id_for(claim))).into_iter().chain(bound).collect::<Vec<_>>()
        })
    };
    claims.add_index(BY_VOLUME, |claim| if is_ours(claim) { vec![id_for(claim)] } else { Vec::new() });
    let csi_nodes = {
        let volumes = volumes.clone();
        context.on::<CSINode, _>(move |event| {
            let node = name_of(&event.object().metadata).to_owned();
            let mut keys = vec![format!("node/{node}")];
            if matches!(event, Event::Deleted(_)) {
                keys.extend(keys_on(&volumes, &node));
            }
            keys
        })
    };
    let classes = {
        let (claims, csi_nodes) = (claims.clone(), csi_nodes.clone());
        context.on::<StorageClass, _>(move |_| {
            let waiting = claims.list().into_iter().filter(|claim| is_ours(claim) && volume_name(claim).is_none());
            let keys = waiting.map(|claim| volume_key(&id_for(&claim)));
            let nodes = csi_nodes.list().into_iter().map(|node| format!("node/{}", name_of(&node.metadata)));
            keys.chain(nodes).collect::<Vec<_>>()
        })
    };
    let queue = context.queue.clone();
    let capacities = context.namespaced::<CSIStorageCapacity>(capacity::NAMESPACE, ListParams::default());
    let capacities = capacities.wakes(move |event| {
        if let Some(node) = capacity::node_of(event.object()) {
            queue.add(format!("node/{node}"));
        }
    });
    Arc::new(Controller {
        client: context.client.clone(),
        clock: context.config.clock.clone(),
        recorder: EventRecorder::new(context.client.clone(), DRIVER, ""),
        queue: context.queue.clone(),
        definitions,
        drivers,
        claims,
        volumes,
        classes,
        csi_nodes,
        capacities,
        changed,
        nodes: Arc::default(),
        contents: Arc::default(),
    })
}

/// Whether that is a request for a volume to be made.
fn is_creation(nodes: &Informer<NodeVolumes>, node: &str, id: &str, token: &str) -> bool {
    let object = nodes.get(node);
    let request = object.as_ref().and_then(|object| object.spec.volumes.get(id));
    request.is_some_and(|request| request.action == Action::Create && request.token == token)
}

/// The operations of a patch that remove a request, if it is still the one.
fn taking_back(what: &str, id: &str, token: &str) -> [Value; 2] {
    let path = format!("/spec/{what}/{id}");
    [json!({ "op": "test", "path": format!("{path}/token"), "value": token }), json!({ "op": "remove", "path": path })]
}

fn keys_on(volumes: &Informer<PersistentVolume>, node: &str) -> Vec<String> {
    let on_it = |volume: &Arc<PersistentVolume>| node_of(volume) == Some(node);
    volumes.list().iter().filter(|volume| on_it(volume)).filter_map(|volume| handle(volume).map(volume_key)).collect()
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(nodes) = self.nodes.get().filter(|nodes| nodes.has_synced()) else { return Ok(Requeue::Never) };
            match key.split_once('/') {
                Some(("volume", id)) if is_id(id) => self.sync_volume(nodes, id).await,
                Some(("retry", id)) => self.retry_removal(nodes, id).await,
                Some(("tidy", node)) => self.tidy(nodes, node).await,
                Some(("content", name)) => self.sync_content(nodes, name).await,
                Some(("node", name)) => self.sync_node(nodes, name).await,
                _ => Ok(Requeue::Never),
            }
        })
    }

    fn background(&self, stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(async move {
            tokio::join!(self.follow_nodes(stop.clone()), self.follow_contents(stop));
        }))
    }
}

impl Controller {
    /// Waits until a kind is served, making its definition when the driver is there; false when it is time to stop.
    async fn until_served(&self, name: &str, own: Option<fn() -> Value>, stop: &CancellationToken) -> bool {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if self.definitions.get(name).is_some_and(|definition| definitions::is_established(&definition)) {
                return true;
            }
            let mut retry = None;
            if let Some(own) = own.filter(|_| self.drivers.get(DRIVER).is_some())
                && let Err(error) = definitions::install(&self.client, &self.definitions, [own()]).await
            {
                tracing::warn!(%error, name, "making a definition");
                retry = Some(INSTALL_RETRY_INTERVAL);
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                _ = changed.changed() => {}
                () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            }
        }
    }

    async fn follow_nodes(&self, stop: CancellationToken) {
        if !self.until_served(&format!("{PLURAL}.{DRIVER}"), Some(definition), &stop).await {
            return;
        }
        let nodes = self.nodes.get_or_init(|| self.subscribe());
        let ready = async {
            nodes.synced().await;
            // Keys that came before have been passed over.
            for claim in self.claims.list().iter().filter(|claim| is_ours(claim)) {
                self.queue.add(volume_key(&id_for(claim)));
            }
            for id in self.volumes.list().iter().filter_map(|volume| handle(volume)) {
                self.queue.add(volume_key(id));
            }
            for node in self.csi_nodes.list() {
                self.queue.add(format!("node/{}", name_of(&node.metadata)));
            }
            for content in self.contents.get().map(Informer::list).unwrap_or_default() {
                self.queue.add(format!("content/{}", name_of(&content.metadata)));
            }
            self.tidy_all();
        };
        tokio::join!(nodes.run(stop.clone()), async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = ready => {}
            }
        });
    }

    fn subscribe(&self) -> Informer<NodeVolumes> {
        let nodes: Informer<NodeVolumes> = Informer::new(self.client.all(), ListParams::default());
        nodes.add_index(BY_VOLUME, |node: &NodeVolumes| node.spec.volumes.keys().cloned().collect());
        nodes.add_index(BY_SNAPSHOT, |node: &NodeVolumes| node.spec.snapshots.keys().cloned().collect());
        let (queue, volumes, contents) = (self.queue.clone(), self.volumes.clone(), self.contents.clone());
        nodes.subscribe(move |event: &Event<NodeVolumes>| {
            let (old, new) = match event {
                Event::Modified { old, new } => (Some(old), new),
                Event::Added(new) | Event::Deleted(new) => (None, new),
            };
            let name = name_of(&new.metadata);
            if old.is_none_or(|old| old.status.available != new.status.available) {
                queue.add(format!("node/{name}"));
            }
            if old.is_none() {
                let on_it = keys_on(&volumes, name);
                on_it
                    .into_iter()
                    .chain(new.spec.volumes.keys().map(|id| volume_key(id)))
                    .for_each(|key| queue.add(key));
            }
            // Answers bring their keys back; requests are this controller's own doing.
            let before = old.map(|old| &old.status);
            for (id, answer) in &new.status.volumes {
                if before.is_none_or(|before| before.volumes.get(id) != Some(answer)) {
                    queue.add(volume_key(id));
                }
            }
            for (id, answer) in &new.status.snapshots {
                if before.is_none_or(|before| before.snapshots.get(id) != Some(answer)) {
                    let contents =
                        contents.get().map(|contents| contents.by_index(BY_SNAPSHOT, id)).unwrap_or_default();
                    if contents.is_empty() {
                        queue.add(format!("tidy/{name}"));
                    }
                    for content in contents {
                        queue.add(format!("content/{}", name_of(&content.metadata)));
                    }
                }
            }
        });
        nodes
    }

    async fn sync_volume(&self, nodes: &Informer<NodeVolumes>, id: &str) -> Outcome {
        let objects = nodes.by_index(BY_VOLUME, id);
        let asked: Vec<Asked<'_>> = objects
            .iter()
            .filter_map(|object| {
                let request = object.spec.volumes.get(id)?;
                let answer = object.status.volumes.get(id).filter(|answer| answer.token == request.token);
                Some(Asked { node: name_of(&object.metadata), request, answer })
            })
            .collect();
        let volume = deciding(self.volumes.by_index(BY_VOLUME, id));
        let claim = match &volume {
            Some(volume) => {
                let claim = claim_key(volume).and_then(|key| self.claims.get(&key));
                claim.filter(|claim| is_bound_to(volume, claim))
            }
            None => {
                let waits = |claim: &Arc<PersistentVolumeClaim>| {
                    volume_name(claim).is_none() && claim.metadata.deletion_timestamp.is_none()
                };
                self.claims.by_index(BY_VOLUME, id).into_iter().find(waits)
            }
        };
        let target = match &claim {
            Some(claim) if volume.is_none() => match self.target(nodes, claim, &asked).await? {
                Ok(target) => target,
                // Somebody fills a volume and gives it to the claim.
                Err(NoVolume::SourceKind(_)) => {
                    let message = "Assuming an external populator will provision the volume";
                    self.recorder.normal(&client::reference(&**claim), "Provisioning", message);
                    None
                }
                Err(why) => return Err(self.provisioning_failed(claim, &why)),
            },
            _ => None,
        };
        let seen = Seen { volume: volume.as_deref(), claim: claim.as_deref(), target: target.as_ref(), asked: &asked };
        self.perform(nodes, id, volume.as_deref(), claim.as_deref(), next(&seen)).await
    }

    fn provisioning_failed(&self, claim: &PersistentVolumeClaim, why: &dyn std::fmt::Display) -> Error {
        let class = claim_class(claim).unwrap_or_default();
        let message = format!("failed to provision volume with StorageClass {class:?}: {why}");
        self.recorder.warning(&client::reference(claim), "ProvisioningFailed", message);
        Error::object(format!("claim {}: {why}", pods::key(claim)))
    }

    async fn perform(
        &self,
        nodes: &Informer<NodeVolumes>,
        id: &str,
        volume: Option<&PersistentVolume>,
        claim: Option<&PersistentVolumeClaim>,
        step: Step,
    ) -> Outcome {
        let again = |outcome: Result<(), Error>| outcome.map(|()| Requeue::After(Duration::from_millis(1)));
        match step {
            Step::Nothing => Ok(Requeue::Never),
            Step::Ask { node, action, capacity, source, instead_of } => {
                if action == Action::Delete && !self.may_remove(&node, id, volume).await? {
                    return Err(Error::object(format!("volume {id} has changed since it was to be removed")));
                }
                if nodes.get(&node).is_none() {
                    return self.without_node(&node, volume, claim).await;
                }
                if let Some(claim) = claim.filter(|_| action == Action::Create) {
                    let key = pods::key(claim);
                    let message = format!("External provisioner is provisioning volume for claim {key:?}");
                    self.recorder.normal(&client::reference(claim), "Provisioning", message);
                }
                let request = Request { token: token(), action, capacity, source };
                self.ask(&node, "volumes", id, &request, instead_of.as_deref()).await?;
                Ok(Requeue::Never)
            }
            Step::Withdraw { node, token } if volume.is_some() && is_creation(nodes, &node, id, &token) => {
                // Nobody waits for it, and a node that makes many volumes has many of them.
                self.queue.add_after(format!("tidy/{node}"), TIDY_INTERVAL);
                Ok(Requeue::Never)
            }
            Step::Withdraw { node, token } => again(self.withdraw(&node, "volumes", id, &token).await),
            // The event of the volume has the request taken back.
            Step::Provision { node, capacity } => {
                if let Some(claim) = claim {
                    self.provision(claim, id, &node, capacity).await?;
                }
                Ok(Requeue::Never)
            }
            Step::Remove { node, token } => {
                if let Some(volume) = volume {
                    self.remove_object(volume).await?;
                }
                self.withdraw(&node, "volumes", id, &token).await?;
                Ok(Requeue::Never)
            }
            Step::Grow { node, token, size } => {
                if let (Some(volume), Some(claim)) = (volume, claim) {
                    let patch = Patch::merge(json!({ "spec": { "capacity": { "storage": quantity(size) } } }));
                    self.client.all::<PersistentVolume>().patch(name_of(&volume.metadata), &patch).await?;
                    self.show(claim, size).await?;
                }
                self.withdraw(&node, "volumes", id, &token).await?;
                Ok(Requeue::Never)
            }
            Step::Show(size) => {
                if let Some(claim) = claim {
                    self.show(claim, size).await?;
                }
                Ok(Requeue::Never)
            }
            Step::LetGo => {
                if let Some(volume) = volume {
                    self.drop_finalizer(volume).await?;
                }
                Ok(Requeue::Never)
            }
            Step::Fail { node, token, action, message } => {
                self.fail(id, volume, claim, (&node, &token), action, &message).await
            }
        }
    }

    /// A node could not do it. The request goes, and is made again after a while.
    async fn fail(
        &self,
        id: &str,
        volume: Option<&PersistentVolume>,
        claim: Option<&PersistentVolumeClaim>,
        (node, token): (&str, &str),
        action: Action,
        message: &str,
    ) -> Outcome {
        if action == Action::Delete && volume.is_none_or(|volume| node_of(volume) != Some(node)) {
            tracing::warn!(node, volume = id, message, "folder not removed, will retry");
            self.queue.add_after(format!("retry/{id}"), REMOVE_RETRY_INTERVAL);
            return Ok(Requeue::Never);
        }
        self.withdraw(node, "volumes", id, token).await?;
        match (action, volume, claim) {
            (Action::Create, _, Some(claim)) => {
                // The scheduler chooses again, unless there is only one place for the volume.
                if claim.spec.as_ref().is_none_or(|spec| spec.data_source.is_none()) {
                    self.reschedule(claim, node).await?;
                }
                Err(self.provisioning_failed(claim, &message))
            }
            (Action::Expand, Some(volume), Some(claim)) => {
                let name = name_of(&volume.metadata);
                let message = format!("resize volume {name:?} by resizer {DRIVER:?} failed: {message}");
                self.recorder.warning(&client::reference(claim), "VolumeResizeFailed", message.clone());
                Err(Error::object(message))
            }
            (Action::Delete, Some(volume), _) => {
                self.recorder.warning(&client::reference(volume), "VolumeFailedDelete", message);
                Err(Error::object(format!("volume {id}: {message}")))
            }
            _ => Err(Error::object(format!("volume {id} on node {node}: {message}"))),
        }
    }

    /// A folder that nobody's object stands for could not be removed: asks once more.
    async fn retry_removal(&self, nodes: &Informer<NodeVolumes>, id: &str) -> Outcome {
        for object in nodes.by_index(BY_VOLUME, id) {
            let (node, request) = (name_of(&object.metadata), object.spec.volumes.get(id));
            let failed = |request: &&Request| {
                let answer = object.status.volumes.get(id).filter(|answer| answer.token == request.token);
                request.action == Action::Delete && answer.is_some_and(|answer| answer.error.is_some())
            };
            if let Some(request) = request.filter(failed) {
                let new = Request { token: token(), ..request.clone() };
                self.ask(node, "volumes", id, &new, Some(&request.token)).await?;
            }
        }
        Ok(Requeue::Never)
    }

    async fn ask(
        &self,
        node: &str,
        what: &str,
        id: &str,
        request: &Request,
        instead_of: Option<&str>,
    ) -> Result<(), Error> {
        let patch = match instead_of {
            None => {
                // Every member is said, so that nothing of another request stays.
                let mut whole = json!({ "capacity": null, "source": null });
                let request = serde_json::to_value(request).map_err(|error| Error::object(error.to_string()))?;
                if let (Some(whole), Value::Object(request)) = (whole.as_object_mut(), request) {
                    whole.extend(request);
                }
                Patch::merge(json!({ "spec": { what: { id: whole } } }))
            }
            Some(token) => {
                let path = format!("/spec/{what}/{id}");
                Patch::json(json!([
                    { "op": "test", "path": format!("{path}/token"), "value": token },
                    { "op": "replace", "path": path, "value": request },
                ]))
            }
        };
        self.client.all::<NodeVolumes>().patch(node, &patch).await?;
        Ok(())
    }

    fn tidy_all(&self) {
        for node in self.nodes.get().map(Informer::list).unwrap_or_default() {
            self.queue.add(format!("tidy/{}", name_of(&node.metadata)));
        }
    }

    /// Takes back all requests of a node for volumes that are there by now, and those for snapshots that are gone.
    async fn tidy(&self, nodes: &Informer<NodeVolumes>, node: &str) -> Outcome {
        let Some(object) = nodes.get(node) else { return Ok(Requeue::Never) };
        let is_there = |id: &str| {
            let volumes = self.volumes.by_index(BY_VOLUME, id);
            is_id(id) && volumes.iter().any(|volume| node_of(volume) == Some(node) && !is_done_with(volume))
        };
        let made = object.spec.volumes.iter().filter(|(_, request)| request.action == Action::Create);
        let made = made.filter(|(id, _)| is_there(id.as_str())).map(|(id, request)| ("volumes", id, request));
        let gone = object.spec.snapshots.iter().filter(|(id, _)| self.is_let_go(&object, id.as_str()));
        let gone = gone.map(|(id, request)| ("snapshots", id, request));
        let over: Vec<(&str, &String, &Request)> = made.chain(gone).collect();
        if over.is_empty() {
            return Ok(Requeue::Never);
        }
        let operations = over.iter().flat_map(|(what, id, request)| taking_back(what, id, &request.token));
        let patch = Patch::json(Value::Array(operations.collect()));
        match self.client.all::<NodeVolumes>().patch(node, &patch).await {
            Err(error) if error.is_not_found() => return Ok(Requeue::Never),
            // One of them may be another by now: then the others go all the same.
            Err(_) => {
                for (what, id, request) in &over {
                    self.withdraw(node, what, id, &request.token).await?;
                }
            }
            Ok(_) => {}
        }
        over.iter().filter(|(what, ..)| *what == "volumes").for_each(|(_, id, _)| self.queue.add(volume_key(id)));
        Ok(Requeue::Never)
    }

    /// Takes a request back, if it is still the one.
    async fn withdraw(&self, node: &str, what: &str, id: &str, token: &str) -> Result<(), Error> {
        let patch = Patch::json(Value::Array(taking_back(what, id, token).into()));
        match self.client.all::<NodeVolumes>().patch(node, &patch).await {
            Err(error) if error.is_not_found() => Ok(()),
            done => done.map(drop).map_err(Error::from),
        }
    }

    /// Whether the server, too, knows of nobody who needs the folder. Files that are gone do not come back, and caches may be
    /// late.
    async fn may_remove(&self, node: &str, id: &str, volume: Option<&PersistentVolume>) -> Result<bool, Error> {
        let volumes = self.client.all::<PersistentVolume>();
        let name = volume.map_or(id, |volume| name_of(&volume.metadata));
        let Some(live) = volumes.get_opt(name).await? else { return Ok(volume.is_none()) };
        if node_of(&live) != Some(node) || handle(&live) != Some(id) {
            return Ok(true);
        }
        if !is_done_with(&live) {
            return Ok(false);
        }
        let reference = live.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
        let claims = self.client.namespaced::<PersistentVolumeClaim>(&reference.namespace.unwrap_or_default());
        let claim = claims.get_opt(&reference.name.unwrap_or_default()).await?;
        Ok(claim.is_none_or(|claim| !needs(&claim, &live)))
    }

    fn serves(&self, node: &str) -> bool {
        self.csi_nodes.get(node).is_some_and(|node| node.spec.drivers.iter().any(|driver| driver.name == DRIVER))
    }

    /// There is nobody to ask on that node.
    async fn without_node(
        &self,
        node: &str,
        volume: Option<&PersistentVolume>,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Outcome {
        match (volume, claim) {
            (Some(volume), _) if is_done_with(volume) => {
                // With the node its folders are gone as well; a node that is only silent keeps them.
                if self.client.all::<Node>().get_opt(node).await?.is_none() {
                    self.remove_object(volume).await?;
                }
                Ok(Requeue::Never)
            }
            // Its object is about to be made.
            (None, Some(_)) if self.serves(node) => Err(Error::object(format!("node {node} cannot be asked yet"))),
            (None, Some(claim)) => {
                self.reschedule(claim, node).await?;
                Err(self.provisioning_failed(claim, &format!("node {node} does not serve {DRIVER}")))
            }
            _ => Ok(Requeue::Never),
        }
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, id: &str, node: &str, capacity: i64) -> Result<(), Error> {
        let spec = claim.spec.clone().unwrap_or_default();
        let class = claim_class(claim).and_then(|class| self.classes.get(class));
        let class = class.ok_or_else(|| Error::object(format!("the class of claim {} is gone", pods::key(claim))))?;
        let volume = json!({
            "metadata": { "name": id, "annotations": { PROVISIONED_BY: DRIVER }, "finalizers": [FINALIZER] },
            "spec": {
                "capacity": { "storage": quantity(capacity) },
                "accessModes": spec.access_modes,
                "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "storageClassName": class.metadata.name,
                "mountOptions": class.mount_options,
                "volumeMode": "Filesystem",
                "csi": { "driver": DRIVER, "volumeHandle": id },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": TOPOLOGY_KEY, "operator": "In", "values": [node] }] }] } },
                "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.metadata.name,
                    "namespace": claim.metadata.namespace, "uid": claim.metadata.uid },
            },
        });
        let volume: PersistentVolume =
            api::codec::from_value(&volume).map_err(|error| Error::object(error.to_string()))?;
        match self.client.all::<PersistentVolume>().create(&volume).await {
            Err(error) if !error.is_already_exists() => Err(error.into()),
            _ => {
                let message = format!("Successfully provisioned volume {id}");
                self.recorder.normal(&client::reference(claim), "ProvisioningSucceeded", message);
                Ok(())
            }
        }
    }

    async fn drop_finalizer(&self, volume: &PersistentVolume) -> Result<(), Error> {
        if has_finalizer(volume) {
            let left: Vec<_> = volume.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
            let meta = json!({ "finalizers": left, "resourceVersion": volume.metadata.resource_version });
            let patch = Patch::merge(json!({ "metadata": meta }));
            match self.client.all::<PersistentVolume>().patch(name_of(&volume.metadata), &patch).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    async fn remove_object(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let params = DeleteParams { uid: volume.metadata.uid.clone(), ..DeleteParams::default() };
        self.drop_finalizer(volume).await?;
        match self.client.all::<PersistentVolume>().delete(name_of(&volume.metadata), &params).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn show(&self, claim: &PersistentVolumeClaim, size: i64) -> Result<(), Error> {
        let conditions = claim.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let left: Vec<_> = conditions.into_iter().filter(|it| !is_resize_condition(&it.type_)).collect();
        let patch = Patch::merge(json!({ "status": {
            "capacity": { "storage": quantity(size) }, "allocatedResources": { "storage": quantity(size) },
            "conditions": left, "allocatedResourceStatuses": null,
        } }));
        let claims = self.client.namespaced::<PersistentVolumeClaim>(claim.metadata.namespace());
        claims.patch_status(name_of(&claim.metadata), &patch).await?;
        self.recorder.normal(&client::reference(claim), "VolumeResizeSuccessful", "Resize volume succeeded");
        Ok(())
    }

    /// The chosen node could not have the volume: the scheduler chooses again.
    async fn reschedule(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<(), Error> {
        if annotation(&claim.metadata, SELECTED_NODE) != Some(node) {
            return Ok(());
        }
        let path = format!("/metadata/annotations/{}", SELECTED_NODE.replace('/', "~1"));
        let patch = Patch::json(json!([
            { "op": "test", "path": path, "value": node }, { "op": "remove", "path": path },
        ]));
        let claims = self.client.namespaced::<PersistentVolumeClaim>(claim.metadata.namespace());
        match claims.patch(name_of(&claim.metadata), &patch).await {
            Err(error) if !error.is_not_found() && !error.is_invalid() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Not to be guessed, and never the same twice.
fn token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The answer to a request.
fn answer_to<'a>(request: &Request, answer: Option<&'a Answer>) -> Option<&'a Answer> {
    answer.filter(|answer| answer.token == request.token)
}
