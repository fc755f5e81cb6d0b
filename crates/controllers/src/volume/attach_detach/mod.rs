//! Attach and detach: volumes of CSI drivers and iSCSI disks are on the nodes whose pods need them, and nowhere else.
//!
//! Flow: pods, claims, volumes, nodes, drivers and VolumeAttachments -> keys `volume/<driver>^<handle>` and `node/<name>`.
//! A volume's key decides (`plan`) and creates VolumeAttachments, or gives a disk to a node (`disks`); a node's key writes
//! `volumesAttached` and lets go. All that must survive a crash is in VolumeAttachments and nodes; what is kept here besides
//! bridges caches that are late.
//!
//! Invariant: before a VolumeAttachment is deleted, or a disk given to another node, the node no longer reports the volume as
//! attached, and has said after that that it does not use it (or force was allowed). So a kubelet that has not begun to mount
//! never does.

mod disks;
mod plan;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::{CompactCollect as _, CompactSort as _};
use client::metrics::Metrics;
use client::{Client, Clock, DeleteParams, Event, EventRecorder, Informer, Patch};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::protection::{BY_CLAIM, claims_of};
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};
use disks::Disks;
use plan::{
    Attachment, Force, Holder, Step, VolumeId, is_exclusive, is_managed, multi_attach_message, needs_volumes, plan,
};

const BY_VOLUME: &str = "csi-volume";
const BY_PERSISTENT_VOLUME: &str = "persistent-volume";
const BY_NODE: &str = "node";
/// How long an attacher may take before pods are told about it (`csiTimeout`, v1.36).
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    queue: client::WorkQueue<String>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    nodes: Informer<Node>,
    drivers: Informer<CSIDriver>,
    attachments: Informer<VolumeAttachment>,
    memory: Arc<Mutex<Memory>>,
    may_force: bool,
    metrics: Metrics,
}

/// What caches do not show, by name of the VolumeAttachment.
#[derive(Default)]
struct Memory {
    /// Made by us, and not yet in the cache.
    created: HashMap<String, Created>,
    /// Whose deletion is decided, until they are gone.
    detaching: HashMap<String, Detaching>,
    /// Since when nobody has wanted them.
    unwanted: HashMap<String, Instant>,
    /// How far attaching had come when pods were last told.
    reported: HashMap<String, Reported>,
    /// Nodes whose waiting pods were told that others have the volume: by volume and node.
    refused: BTreeSet<(String, String)>,
    /// What nodes that are gone used last.
    last_in_use: HashMap<String, BTreeSet<String>>,
    /// Volumes that were deleted though they are attached, by name.
    deleted_volumes: HashMap<String, VolumeId>,
    /// What has no VolumeAttachment.
    disks: Disks,
}

struct Created {
    uid: String,
    volume: VolumeId,
    node: String,
}

struct Detaching {
    uid: String,
    volume: VolumeId,
    node: String,
    force: Option<Force>,
    is_sent: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Reported {
    #[default]
    Nothing,
    Attached,
    Failed(String),
}

fn node_key(node: &str) -> String {
    format!("node/{node}")
}

fn source_of(attachment: &VolumeAttachment) -> &str {
    attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default()
}

/// The volume that an attachment says itself, for one that no object is there for.
fn inline_source(attachment: &VolumeAttachment) -> Option<VolumeId> {
    let csi = attachment.spec.source.inline_volume_spec.as_ref()?.csi.as_ref()?;
    Some(VolumeId { driver: csi.driver.clone(), handle: csi.volume_handle.clone() })
}

/// Inline volumes of a pod that are asked of CSI drivers, as volumes.
fn inline_volumes(pod: &Pod) -> impl Iterator<Item = PersistentVolume> + '_ {
    let namespace = pod.metadata.namespace();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    // What cannot be asked for is told by the kubelet.
    volumes.iter().filter_map(|volume| api::volume_migration::inline(volume, namespace).ok().flatten())
}

fn inline_disks(pod: &Pod) -> impl Iterator<Item = (&str, VolumeId)> + '_ {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().filter_map(|volume| Some((volume.name.as_str(), VolumeId::of_inline_disk(volume)?)))
}

fn inline_keys(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let ids = inline_volumes(pod).filter_map(|volume| VolumeId::of(&volume));
    ids.chain(inline_disks(pod).map(|(_, id)| id)).map(|id| id.key())
}

/// What of a node decides about its volumes: other changes (heartbeats) wake nobody.
fn facts(node: &Node) -> impl PartialEq + '_ {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    (
        status.and_then(|status| status.volumes_in_use.as_ref()),
        status.and_then(|status| status.volumes_attached.as_ref()),
        conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status.as_str()),
        node.spec.as_ref().and_then(|spec| spec.taints.as_ref()),
        node.metadata.annotations.as_ref(),
    )
}

/// Keys of volumes, by the objects that lead to them.
#[derive(Clone)]
struct Keys {
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    memory: Arc<Mutex<Memory>>,
}

impl Keys {
    /// By the name of a PersistentVolume, which may be gone.
    fn of_volume(&self, name: &str) -> Option<String> {
        let present = self.volumes.get(name).and_then(|volume| VolumeId::of(&volume));
        present.or_else(|| self.memory.lock().deleted_volumes.get(name).cloned()).map(|id| id.key())
    }

    fn of_claim(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        self.of_volume(claim.spec.as_ref()?.volume_name.as_deref()?)
    }

    fn of_attachment(&self, attachment: &VolumeAttachment) -> Option<String> {
        match inline_source(attachment) {
            Some(id) => Some(id.key()),
            None => self.of_volume(source_of(attachment)),
        }
    }

    fn of_pod(&self, pod: &Pod) -> Vec<String> {
        let claims = claims_of(pod).into_iter().filter_map(|key| self.claims.get(&key));
        claims.filter_map(|claim| self.of_claim(&claim)).chain(inline_keys(pod)).collect()
    }
}

/// Nodes wake themselves, the volumes that they have, and those that their pods wait for. `pods` has the index by node.
fn watch_nodes(
    context: &Context,
    keys: Keys,
    attachments: Informer<VolumeAttachment>,
    pods: Informer<Pod>,
) -> Informer<Node> {
    let (queue, memory) = (context.queue.clone(), keys.memory.clone());
    context.informer::<Node>().wakes(move |event| {
        let node = event.object();
        let name = node.metadata.name();
        if let Event::Modified { old, new } = event
            && facts(old) == facts(new)
        {
            return;
        }
        if matches!(event, Event::Deleted(_)) {
            let used = node.status.as_ref().and_then(|status| status.volumes_in_use.clone()).unwrap_or_default();
            let (used, mut memory) = (used.into_iter().collect(), memory.lock());
            memory.disks.of_node(name).into_iter().for_each(|disk| queue.add(disk.key()));
            memory.disks.node_gone(name, &used);
            memory.last_in_use.insert(name.to_owned(), used);
        } else {
            let mut memory = memory.lock();
            memory.last_in_use.remove(name);
            memory.disks.read(name, node);
            memory.disks.of_node(name).into_iter().for_each(|disk| queue.add(disk.key()));
        }
        queue.add(node_key(name));
        for attachment in attachments.by_index(BY_NODE, name) {
            keys.of_attachment(&attachment).into_iter().for_each(|key| queue.add(key));
        }
        // A node that comes, or comes under our care, may have pods already.
        let is_news = match event {
            Event::Modified { old, new } => is_managed(old) != is_managed(new),
            _ => true,
        };
        if is_news {
            let own = pods.by_index(BY_NODE, name);
            own.iter().flat_map(|pod| keys.of_pod(pod)).for_each(|key| queue.add(key));
        }
    })
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let memory: Arc<Mutex<Memory>> = Arc::default();
    let volumes = context.informer::<PersistentVolume>();
    let claims = context.informer::<PersistentVolumeClaim>();
    let attachments = context.informer::<VolumeAttachment>();
    volumes.add_index(BY_VOLUME, |volume| VolumeId::of(volume).map(|id| id.key()).into_iter().collect());
    attachments.add_index(BY_PERSISTENT_VOLUME, |it| vec![source_of(it).to_owned()]);
    attachments.add_index(BY_VOLUME, |it| inline_source(it).map(|id| id.key()).into_iter().collect());
    attachments.add_index(BY_NODE, |it| vec![it.spec.node_name.clone()]);

    let keys = Keys { claims: claims.shared(), volumes: volumes.shared(), memory: memory.clone() };
    let pods = {
        let keys = keys.clone();
        context.on::<Pod, _>(move |event| {
            let pod = event.object();
            if pods::node_name(pod).is_empty() { Vec::new() } else { keys.of_pod(pod) }
        })
    };
    pods.add_index(BY_CLAIM, claims_of);
    pods.add_index(BY_VOLUME, |pod| inline_keys(pod).collect());
    let claims = {
        let (queue, keys) = (context.queue.clone(), keys.clone());
        claims.wakes(move |event| keys.of_claim(event.object()).into_iter().for_each(|key| queue.add(key)))
    };
    pods.add_index(BY_NODE, |pod| vec![pods::node_name(pod).to_owned()]);
    let nodes = watch_nodes(context, keys.clone(), attachments.shared(), pods.clone());
    let drivers = {
        let (volumes, pods) = (volumes.shared(), pods.clone());
        context.on::<CSIDriver, _>(move |event| {
            let driver = event.object().metadata.name();
            let ids = volumes.list().into_iter().filter_map(|volume| VolumeId::of(&volume));
            let keys = ids.filter(|id| id.driver == driver).map(|id| id.key());
            let inline = pods.list().into_iter().flat_map(|pod| inline_keys(&pod).collect::<Vec<_>>());
            let is_its = |key: &String| VolumeId::from_key(key).is_some_and(|id| id.driver == driver);
            keys.chain(inline.filter(is_its)).collect::<Vec<_>>()
        })
    };
    let volumes = {
        let (queue, memory, attachments) = (context.queue.clone(), memory.clone(), attachments.shared());
        volumes.wakes(move |event| {
            let volume = event.object();
            let name = volume.metadata.name();
            let Some(id) = VolumeId::of(volume) else { return };
            match event {
                Event::Deleted(_) if !attachments.by_index(BY_PERSISTENT_VOLUME, name).is_empty() => {
                    memory.lock().deleted_volumes.insert(name.to_owned(), id.clone());
                }
                _ => drop(memory.lock().deleted_volumes.remove(name)),
            }
            queue.add(id.key());
            // What its nodes report depends on which volume it is.
            for attachment in attachments.by_index(BY_PERSISTENT_VOLUME, name) {
                queue.add(node_key(&attachment.spec.node_name));
            }
        })
    };
    let attachments = {
        let (queue, memory) = (context.queue.clone(), memory.clone());
        attachments.wakes(move |event| {
            let attachment = event.object();
            memory.lock().saw(event);
            queue.add(node_key(&attachment.spec.node_name));
            keys.of_attachment(attachment).into_iter().for_each(|key| queue.add(key));
        })
    };
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: EventRecorder::new(context.client.clone(), "attachdetach-controller", ""),
        queue: context.queue.clone(),
        pods,
        claims,
        volumes,
        nodes,
        drivers,
        attachments,
        memory,
        may_force: !context.config.disable_force_detach_on_timeout,
        metrics: context.config.metrics.clone(),
    })
}

impl Memory {
    /// The cache has reached this event.
    fn saw(&mut self, event: &Event<VolumeAttachment>) {
        let meta = &event.object().metadata;
        let (name, uid) = (meta.name(), meta.uid());
        if self.created.get(name).is_some_and(|created| created.uid == uid) {
            self.created.remove(name);
        }
        if matches!(event, Event::Deleted(_)) {
            if self.detaching.get(name).is_some_and(|detaching| detaching.uid == uid) {
                self.detaching.remove(name);
            }
            self.unwanted.remove(name);
            self.reported.remove(name);
        }
    }

    fn is_detaching(&self, meta: &ObjectMeta) -> bool {
        self.detaching.get(meta.name()).is_some_and(|detaching| detaching.uid == meta.uid())
    }
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match (VolumeId::from_key(key), key.strip_prefix("node/")) {
                (Some(volume), _) => self.sync_volume(&volume).await,
                (None, Some(node)) => self.sync_node(node).await,
                (None, None) => Ok(Requeue::Never),
            }
        })
    }
}

impl Controller {
    async fn sync_volume(&self, volume: &VolumeId) -> Outcome {
        self.check_created(volume).await?;
        let present = self.volumes.by_index(BY_VOLUME, &volume.key());
        let inline = self.pods.by_index(BY_VOLUME, &volume.key());
        let meant = |pod: &Pod| inline_volumes(pod).find(|it| VolumeId::of(it).as_ref() == Some(volume));
        let wanted = self.wanted(volume, &present, &inline);
        let mut nodes: Vec<String> = Vec::new();
        for (_, node) in &wanted {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        let is_exclusive = present.iter().any(|volume| is_exclusive(volume))
            || inline.iter().filter_map(|pod| meant(pod)).any(|volume| is_exclusive(&volume));
        let (attachments, mut again) = match volume.is_disk() {
            true => (self.held(volume, &nodes), None),
            false => self.seen(volume, &nodes, &wanted),
        };
        let plan = plan(&nodes, is_exclusive, &attachments, self.may_force);
        self.memory.lock().refused.retain(|(key, node)| *key != volume.key() || nodes.contains(node));
        for step in plan.steps {
            match step {
                Step::Attach(node) if volume.is_disk() => self.give(volume, &node, &wanted),
                Step::Attach(node) => {
                    let source = wanted.iter().find(|(_, on)| *on == node).and_then(|(pod, _)| {
                        let name = |volume: &&Arc<PersistentVolume>| self.uses(pod, volume);
                        let named = present.iter().find(name).map(|volume| VolumeAttachmentSource {
                            persistent_volume_name: volume.metadata.name.clone(),
                            ..VolumeAttachmentSource::default()
                        });
                        let inline = || {
                            let inline_volume_spec = Some(meant(pod)?.spec?);
                            Some(VolumeAttachmentSource { inline_volume_spec, ..VolumeAttachmentSource::default() })
                        };
                        named.or_else(inline)
                    });
                    if let Some(source) = source {
                        self.attach(volume, &node, source).await?;
                        again = Some(again.map_or(ATTACH_TIMEOUT, |again: Duration| again.min(ATTACH_TIMEOUT)));
                    }
                }
                Step::Detach { node, force } => self.begin_detaching(volume, &node, force),
                Step::MultiAttach { node, others } => self.refuse(volume, &node, &others, &wanted),
            }
        }
        again = [again, plan.again].into_iter().flatten().min();
        Ok(again.into())
    }

    /// Pods that need the volume and their nodes, the oldest pods first. Empty where the driver does not attach at all.
    fn wanted(
        &self,
        volume: &VolumeId,
        present: &[Arc<PersistentVolume>],
        inline: &[Arc<Pod>],
    ) -> Vec<(Arc<Pod>, String)> {
        let driver = self.drivers.get(&volume.driver);
        if driver.is_some_and(|driver| driver.spec.attach_required == Some(false)) {
            return Vec::new();
        }
        let mut users = inline.to_vec();
        for claim in present.iter().filter_map(|volume| self.claim_of(volume)) {
            let named = self.pods.by_index(BY_CLAIM, &pods::key(&*claim));
            users.extend(named.into_iter().filter(|pod| may_use(pod, &claim)));
        }
        let mut wanted = Vec::new();
        for pod in users {
            let node = self.nodes.get(pods::node_name(&pod)).filter(|node| is_managed(node));
            if let Some(node) = node.filter(|node| needs_volumes(&pod, node)) {
                wanted.push((pod, node.metadata.name().to_owned()));
            }
        }
        wanted.compact_sort_by_cached_key(|(pod, _)| {
            (pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pods::key(&**pod))
        });
        wanted
    }

    /// The claim that is bound to the volume, as both of them say.
    fn claim_of(&self, volume: &PersistentVolume) -> Option<Arc<PersistentVolumeClaim>> {
        let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
        let key = format!("{}/{}", reference.namespace.as_deref()?, reference.name.as_deref()?);
        let claim = self.claims.get(&key)?;
        let is_bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let names_it = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) == volume.metadata.name.as_ref();
        (is_bound && names_it && reference.uid == claim.metadata.uid).then_some(claim)
    }

    fn uses(&self, pod: &Pod, volume: &PersistentVolume) -> bool {
        self.claim_of(volume).is_some_and(|claim| claims_of(pod).contains(&pods::key(&*claim)))
    }

    /// The volume's attachments under the names that we give them. Pods are told on the way how far those have come.
    fn seen(
        &self,
        volume: &VolumeId,
        wanted: &[String],
        pods: &[(Arc<Pod>, String)],
    ) -> (Vec<Attachment>, Option<Duration>) {
        let mut memory = self.memory.lock();
        let mut sources: BTreeSet<String> = self
            .volumes
            .by_index(BY_VOLUME, &volume.key())
            .iter()
            .map(|volume| volume.metadata.name().to_owned())
            .compact_collect();
        sources.extend(memory.deleted_volumes.iter().filter(|(_, id)| *id == volume).map(|(name, _)| name.clone()));
        let is_attached = |name: &str| !self.attachments.by_index(BY_PERSISTENT_VOLUME, name).is_empty();
        memory.deleted_volumes.retain(|name, id| id != volume || is_attached(name));
        let mut seen = BTreeMap::new();
        let mut again = None;
        let named = sources.iter().flat_map(|name| self.attachments.by_index(BY_PERSISTENT_VOLUME, name));
        for object in named.chain(self.attachments.by_index(BY_VOLUME, &volume.key())) {
            let (name, node) = (object.metadata.name().to_owned(), object.spec.node_name.clone());
            if name != volume.attachment(&node) || object.spec.attacher != volume.driver {
                continue; // somebody else's
            }
            let status = object.status.as_ref();
            let is_deleting = object.metadata.deletion_timestamp.is_some() || memory.is_detaching(&object.metadata);
            if wanted.contains(&node) && !is_deleting {
                memory.unwanted.remove(&name);
                let left = self.report(&mut memory, volume, &object, pods);
                again = [again, left].into_iter().flatten().min();
            }
            let unwanted_for = match wanted.contains(&node) {
                true => Duration::ZERO,
                false => memory.unwanted.entry(name).or_insert_with(Instant::now).elapsed(),
            };
            let holder = self.holder(&memory, &node, volume);
            let has_failed = status.is_some_and(|status| status.detach_error.is_some());
            seen.insert(node.clone(), Attachment { node, is_deleting, has_failed, holder, unwanted_for });
        }
        for created in memory.created.values().filter(|created| created.volume == *volume) {
            // Not in the cache yet, so nothing is known of it but that it is there.
            let holder = Holder { is_managed: true, is_ready: true, is_in_use: true, is_out_of_service: false };
            let node = created.node.clone();
            seen.entry(node.clone()).or_insert_with(|| Attachment {
                node,
                is_deleting: false,
                has_failed: false,
                holder,
                unwanted_for: Duration::ZERO,
            });
        }
        (seen.into_values().collect(), again)
    }

    fn holder(&self, memory: &Memory, node: &str, volume: &VolumeId) -> Holder {
        match self.nodes.get(node) {
            Some(object) => Holder::new(&object, volume),
            None => {
                let used = memory.last_in_use.get(node);
                Holder::gone(used.map(|used| used.contains(&volume.unique_name())))
            }
        }
    }

    /// Who has a disk.
    fn held(&self, disk: &VolumeId, wanted: &[String]) -> Vec<Attachment> {
        let mut memory = self.memory.lock();
        let holders = memory.disks.holders(disk).into_iter().map(|(node, is_deleting)| {
            let name = disk.attachment(&node);
            let unwanted_for = match wanted.contains(&node) {
                true => {
                    memory.unwanted.remove(&name);
                    Duration::ZERO
                }
                false => memory.unwanted.entry(name).or_insert_with(Instant::now).elapsed(),
            };
            let holder = self.holder(&memory, &node, disk);
            Attachment { node, is_deleting, has_failed: false, holder, unwanted_for }
        });
        holders.collect()
    }

    /// The node may have the disk, and its pods are told.
    fn give(&self, disk: &VolumeId, node: &str, wanted: &[(Arc<Pod>, String)]) {
        self.memory.lock().disks.attach(disk.clone(), node);
        self.queue.add(node_key(node));
        for (pod, _) in wanted.iter().filter(|(_, on)| on == node) {
            let message = format!("AttachVolume.Attach succeeded for volume {:?} ", self.title(disk, pod));
            self.recorder.normal(&client::reference(&**pod), "SuccessfulAttachVolume", message);
        }
    }

    /// What events of a pod call a volume that it uses.
    fn title(&self, volume: &VolumeId, pod: &Pod) -> String {
        let present = self.volumes.by_index(BY_VOLUME, &volume.key());
        let named = present.iter().find(|volume| self.uses(pod, volume)).map(|volume| volume.metadata.name());
        let inline = || inline_disks(pod).find(|(_, id)| id == volume).map(|(name, _)| name);
        title_of(volume, named.or_else(inline).unwrap_or_default())
    }

    /// Tells the pods that wait for an attachment about its end, or what keeps it. Returns when the attacher is late.
    fn report(
        &self,
        memory: &mut Memory,
        volume: &VolumeId,
        attachment: &VolumeAttachment,
        pods: &[(Arc<Pod>, String)],
    ) -> Option<Duration> {
        let name = attachment.metadata.name();
        let status = attachment.status.as_ref();
        let made = attachment.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let age = made.map(|made| Duration::try_from(self.clock.now().duration_since(made)).unwrap_or_default());
        let error = status.and_then(|status| status.attach_error.as_ref()).and_then(|error| error.message.clone());
        let now = match (status.is_some_and(|status| status.attached), error) {
            (true, _) => Reported::Attached,
            (false, Some(error)) => Reported::Failed(error),
            (false, None) if age >= Some(ATTACH_TIMEOUT) => Reported::Failed(format!(
                "timed out waiting for external-attacher of {} CSI driver to attach volume {}",
                volume.driver, volume.handle
            )),
            (false, None) => {
                memory.reported.entry(name.to_owned()).or_default();
                return age.map(|age| ATTACH_TIMEOUT.saturating_sub(age));
            }
        };
        let before = memory.reported.get(name);
        // An attachment that was complete when we began is nobody's news.
        let is_news = before.is_some_and(|before| *before != now) || (before.is_none() && now != Reported::Attached);
        if is_news {
            let title = title_of(volume, source_of(attachment));
            for (pod, _) in pods.iter().filter(|(_, node)| *node == attachment.spec.node_name) {
                let about = client::reference(&**pod);
                match &now {
                    Reported::Failed(error) => {
                        let message = format!("AttachVolume.Attach failed for volume {title:?} : {error}");
                        self.recorder.warning(&about, "FailedAttachVolume", message);
                    }
                    _ => {
                        let message = format!("AttachVolume.Attach succeeded for volume {title:?} ");
                        self.recorder.normal(&about, "SuccessfulAttachVolume", message);
                    }
                }
            }
        }
        memory.reported.insert(name.to_owned(), now);
        None
    }

    /// An attachment that we made and the cache does not show may be gone again: then the cache will never show it.
    async fn check_created(&self, volume: &VolumeId) -> Result<(), Error> {
        let created: Vec<_> = {
            let memory = self.memory.lock();
            let ours = memory.created.iter().filter(|(_, created)| created.volume == *volume);
            ours.map(|(name, created)| (name.clone(), created.uid.clone())).collect()
        };
        for (name, uid) in created {
            let found = self.client.all::<VolumeAttachment>().get_opt(&name).await?;
            if found.is_none_or(|found| found.metadata.uid() != uid) {
                self.memory.lock().created.remove(&name);
            }
        }
        Ok(())
    }

    async fn attach(&self, volume: &VolumeId, node: &str, source: VolumeAttachmentSource) -> Result<(), Error> {
        let name = volume.attachment(node);
        let wanted = VolumeAttachment {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec { attacher: volume.driver.clone(), node_name: node.to_owned(), source },
            status: None,
        };
        let made = match self.client.all::<VolumeAttachment>().create(&wanted).await {
            Ok(made) => made,
            Err(error) if error.is_already_exists() => return Ok(()), // the cache will show it
            Err(error) => return Err(error.into()),
        };
        let uid = made.metadata.uid().to_owned();
        let mut memory = self.memory.lock();
        memory.reported.insert(name.clone(), Reported::Nothing);
        if self.attachments.get(&name).is_none_or(|seen| seen.metadata.uid() != uid) {
            let created = Created { uid, volume: volume.clone(), node: node.to_owned() };
            memory.created.insert(name, created);
        }
        Ok(())
    }

    /// From here on the node does not report the volume; its own key goes on.
    fn begin_detaching(&self, volume: &VolumeId, node: &str, force: Option<Force>) {
        let name = volume.attachment(node);
        let mut memory = self.memory.lock();
        if volume.is_disk() {
            memory.disks.begin_detaching(volume, node, force);
            drop(memory);
            return self.queue.add(node_key(node));
        }
        let Some(object) = self.attachments.get(&name) else { return };
        let uid = object.metadata.uid().to_owned();
        let detaching = Detaching { uid, volume: volume.clone(), node: node.to_owned(), force, is_sent: false };
        memory.detaching.insert(name, detaching);
        drop(memory);
        self.queue.add(node_key(node));
    }

    /// Pods are told once that they have to wait for others.
    fn refuse(&self, volume: &VolumeId, node: &str, others: &[String], wanted: &[(Arc<Pod>, String)]) {
        if !self.memory.lock().refused.insert((volume.key(), node.to_owned())) {
            return;
        }
        let users: Vec<_> = wanted
            .iter()
            .filter(|(_, on)| others.contains(on))
            .map(|(pod, _)| {
                let meta = &pod.metadata;
                (meta.namespace().to_owned(), meta.name().to_owned())
            })
            .collect();
        for (pod, _) in wanted.iter().filter(|(_, on)| on == node) {
            let message = multi_attach_message(&self.title(volume, pod), pod, &users);
            self.recorder.warning(&client::reference(&**pod), "FailedAttachVolume", message);
        }
    }

    async fn sync_node(&self, name: &str) -> Outcome {
        let node = self.nodes.get(name);
        if node.as_ref().is_some_and(|node| !is_managed(node)) {
            return Ok(Requeue::Never);
        }
        let (leaving, leaving_disks) = {
            let memory = self.memory.lock();
            let ours = memory.detaching.iter().filter(|(_, it)| it.node == name && !it.is_sent);
            (ours.map(|(name, _)| name.clone()).collect::<Vec<_>>(), memory.disks.leaving(name))
        };
        let attached = self.attached(name);
        let shown = node.as_ref().and_then(|node| node.status.as_ref()?.volumes_attached.as_ref());
        let shown: Vec<&str> = shown.into_iter().flatten().map(|volume| volume.name.as_str()).collect();
        // Before anything goes, the server is told, whatever the cache shows.
        let mut live = None;
        if !leaving.is_empty() || !leaving_disks.is_empty() || (node.is_some() && shown != attached) {
            let list: Vec<_> = attached.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
            let patch = Patch::merge(json!({ "status": { "volumesAttached": list } }));
            live = match self.client.all::<Node>().patch_status(name, &patch).await {
                Ok(node) => Some(node),
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error.into()),
            };
        }
        for (disk, force) in leaving_disks {
            self.take(&disk, name, force, live.as_ref());
        }
        for leaving in leaving {
            self.detach(&leaving, live.as_ref()).await?;
        }
        Ok(Requeue::Never)
    }

    /// As [`Controller::detach`]: `live` is what the server said after it had been told that the node has the disk no longer.
    fn take(&self, disk: &VolumeId, node: &str, force: Option<Force>, live: Option<&Node>) {
        if live.is_some_and(|live| !Holder::new(live, disk).lets_go(force)) {
            self.memory.lock().disks.attach(disk.clone(), node);
            self.queue.add(node_key(node));
            self.queue.add_after(disk.key(), crate::controller::CATCH_UP_TIMEOUT);
            return;
        }
        let mut memory = self.memory.lock();
        memory.disks.detached(disk, node);
        memory.unwanted.remove(&disk.attachment(node));
        drop(memory);
        self.count_forced(force);
        self.queue.add(disk.key());
    }

    fn count_forced(&self, force: Option<Force>) {
        let Some(force) = force else { return };
        let help = "Number of times the A/D Controller performed a forced detach";
        let labels = [("reason", force.reason())];
        self.metrics.counter("attach_detach_controller_attachdetach_controller_forced_detaches", help, &labels).inc();
    }

    /// What the node should report, in a fixed order.
    fn attached(&self, node: &str) -> Vec<String> {
        let memory = self.memory.lock();
        let ours = self.attachments.by_index(BY_NODE, node).into_iter().filter_map(|object| {
            let id = self.volumes.get(source_of(&object)).and_then(|volume| VolumeId::of(&volume));
            let id = id.or_else(|| inline_source(&object));
            let id = id.or_else(|| memory.deleted_volumes.get(source_of(&object)).cloned())?;
            let is_ours = object.metadata.name() == id.attachment(node) && object.spec.attacher == id.driver;
            let is_attached = object.status.as_ref().is_some_and(|status| status.attached);
            let is_leaving = object.metadata.deletion_timestamp.is_some() || memory.is_detaching(&object.metadata);
            (is_ours && is_attached && !is_leaving).then(|| id.unique_name())
        });
        ours.chain(memory.disks.reported(node)).compact_collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// `node` is what the server said after it had been told that the volume is no longer attached.
    async fn detach(&self, name: &str, node: Option<&Node>) -> Result<(), Error> {
        let (uid, volume, force) = {
            let memory = self.memory.lock();
            let Some(detaching) = memory.detaching.get(name) else { return Ok(()) };
            (detaching.uid.clone(), detaching.volume.clone(), detaching.force)
        };
        if node.is_some_and(|node| !Holder::new(node, &volume).lets_go(force)) {
            // The kubelet was faster, or is there again: it stays. The node's event decides again when it is unmounted.
            self.memory.lock().detaching.remove(name);
            if let Some(node) = node {
                self.queue.add(node_key(node.metadata.name()));
            }
            self.queue.add_after(volume.key(), crate::controller::CATCH_UP_TIMEOUT);
            return Ok(());
        }
        let params = DeleteParams { uid: Some(uid), ..DeleteParams::default() };
        match self.client.all::<VolumeAttachment>().delete(name, &params).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error.into()),
            _ => {}
        }
        self.count_forced(force);
        if let Some(detaching) = self.memory.lock().detaching.get_mut(name) {
            detaching.is_sent = true;
        }
        Ok(())
    }
}

/// What events call a volume: by its object, or by the driver and the handle that the pod says.
fn title_of(volume: &VolumeId, name: &str) -> String {
    match name {
        "" => format!("{}-{}", volume.driver, volume.handle),
        name => name.to_owned(),
    }
}

/// A claim that was made for a pod is that pod's alone.
fn may_use(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let by_name = volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    by_name.into_iter().any(|source| Some(&source.claim_name) == claim.metadata.name.as_ref())
        || claim.metadata.is_controlled_by(pod.metadata.uid())
}
