//! Snapshots: VolumeSnapshots find or get their VolumeSnapshotContents, and show what the driver says of them. The driver's
//! own part (taking, deleting) belongs to whoever watches contents of its name.
//!
//! The kinds are custom resources. Their definitions are made when snapshots are asked for (`--volume-snapshots`), or when
//! this binary's own driver is there; until then, and where others have brought theirs, nothing runs here.

pub(super) mod kinds;
pub(super) mod plan;
mod secret;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::meta::Meta as _;
use client::{Client, Clock, DeleteParams, Event, EventRecorder, Informer, ListParams, Patch, WorkQueue};
use futures_util::future::BoxFuture;
use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::decision::{claim_key, volume_name};
use super::definitions;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::{Error, pods};
use kinds::{GROUP, SnapshotStatus, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use plan::{CLAIM_FINALIZER, CONTENT_FINALIZER, Seen, Step, content_name, failed, is_unfinished, lets_go, next};

/// Snapshots of a claim, and claims made from a snapshot, by `namespace/name`.
const BY_SOURCE: &str = "snapshot-source";
/// Why a snapshot cannot be taken may change where nobody sees it.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// How often the definitions are tried that could not be made.
const INSTALL_RETRY_INTERVAL: Duration = Duration::from_secs(5);

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    queue: WorkQueue<String>,
    definitions: Informer<CustomResourceDefinition>,
    drivers: Informer<CSIDriver>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    is_wanted: bool,
    /// There is something new about definitions or drivers.
    changed: Arc<tokio::sync::Notify>,
    kinds: Arc<OnceLock<Kinds>>,
}

/// The informers of the custom resources, once there are any.
struct Kinds {
    snapshots: Informer<VolumeSnapshot>,
    contents: Informer<VolumeSnapshotContent>,
    classes: Informer<VolumeSnapshotClass>,
}

fn snapshot_key(namespace: Option<&str>, name: Option<&str>) -> String {
    format!("snapshot/{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}

/// The snapshot that a claim is made from.
fn source_of(claim: &PersistentVolumeClaim) -> Vec<String> {
    let Some(spec) = &claim.spec else { return Vec::new() };
    let is_snapshot = |group: Option<&str>, kind: &str| group == Some(GROUP) && kind == VolumeSnapshot::KIND;
    let own = claim.metadata.namespace();
    let new = spec.data_source_ref.as_ref().filter(|it| is_snapshot(it.api_group.as_deref(), &it.kind));
    let old = spec.data_source.as_ref().filter(|it| is_snapshot(it.api_group.as_deref(), &it.kind));
    let new = new.map(|it| format!("{}/{}", it.namespace.as_deref().unwrap_or(own), it.name));
    new.or_else(|| old.map(|it| format!("{own}/{}", it.name))).into_iter().collect()
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let kinds: Arc<OnceLock<Kinds>> = Arc::default();
    let changed: Arc<tokio::sync::Notify> = Arc::default();
    let definitions = {
        let changed = changed.clone();
        context.informer::<CustomResourceDefinition>().wakes(move |_| changed.notify_one())
    };
    let drivers = {
        let changed = changed.clone();
        context.informer::<CSIDriver>().wakes(move |_| changed.notify_one())
    };
    let of_claim = {
        let kinds = kinds.clone();
        move |key: &str| -> Vec<String> {
            let snapshots = kinds.get().map(|kinds| kinds.snapshots.by_index(BY_SOURCE, key)).unwrap_or_default();
            snapshots.iter().map(|it| format!("snapshot/{}", pods::key(&**it))).collect()
        }
    };
    let claims = {
        let of_claim = of_claim.clone();
        context.on::<PersistentVolumeClaim, _>(move |event| {
            let claim = event.object();
            let mut keys = of_claim(&pods::key(&**claim));
            keys.extend(source_of(claim).into_iter().map(|key| format!("snapshot/{key}")));
            keys.push(format!("claim/{}", pods::key(&**claim)));
            keys
        })
    };
    claims.add_index(BY_SOURCE, source_of);
    let volumes = context.on::<PersistentVolume, _>(move |event| {
        claim_key(event.object()).map(|key| of_claim(&key)).unwrap_or_default()
    });
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: EventRecorder::new(context.client.clone(), "snapshot-controller", ""),
        queue: context.queue.clone(),
        definitions,
        drivers,
        claims,
        volumes,
        is_wanted: context.config.volume_snapshots,
        changed,
        kinds,
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(kinds) = self.kinds.get().filter(|kinds| kinds.has_synced()) else { return Ok(Requeue::Never) };
            match key.split_once('/') {
                Some(("snapshot", key)) => self.sync_snapshot(kinds, key).await,
                Some(("content", name)) => self.sync_content(kinds, name).await,
                Some(("claim", key)) => self.sync_claim(kinds, key).await,
                _ => Ok(Requeue::Never),
            }
        })
    }

    fn background(&self, stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(self.follow(stop)))
    }
}

impl Kinds {
    fn has_synced(&self) -> bool {
        self.snapshots.has_synced() && self.contents.has_synced() && self.classes.has_synced()
    }
}

impl Controller {
    /// Waits for the definitions, makes them when they are wanted, and then follows their objects.
    async fn follow(&self, stop: CancellationToken) {
        while !self.is_established() {
            let mut retry = None;
            let is_needed = self.is_wanted || self.drivers.get(api::node_volumes::DRIVER).is_some();
            if is_needed
                && let Err(error) = definitions::install(&self.client, &self.definitions, kinds::definitions()).await
            {
                tracing::warn!(%error, "making the definitions of snapshots");
                retry = Some(INSTALL_RETRY_INTERVAL);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.changed.notified() => {}
                () = tokio::time::sleep(retry.unwrap_or(Duration::MAX)), if retry.is_some() => {}
            }
        }
        let kinds = self.kinds.get_or_init(|| self.subscribe());
        let ready = async {
            tokio::join!(kinds.snapshots.synced(), kinds.contents.synced(), kinds.classes.synced());
            // Keys that came before all caches were full have been passed over.
            for snapshot in kinds.snapshots.list() {
                self.queue.add(format!("snapshot/{}", pods::key(&*snapshot)));
            }
            for content in kinds.contents.list() {
                self.queue.add(format!("content/{}", pods::key(&*content)));
            }
            for claim in self.claims.list() {
                self.queue.add(format!("claim/{}", pods::key(&*claim)));
            }
        };
        tokio::join!(
            kinds.snapshots.run(stop.clone()),
            kinds.contents.run(stop.clone()),
            kinds.classes.run(stop.clone()),
            async {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = ready => {}
                }
            }
        );
    }

    fn subscribe(&self) -> Kinds {
        let kinds = Kinds {
            snapshots: Informer::new(self.client.all(), ListParams::default()),
            contents: Informer::new(self.client.all(), ListParams::default()),
            classes: Informer::new(self.client.all(), ListParams::default()),
        };
        kinds.snapshots.add_index(BY_SOURCE, |snapshot: &VolumeSnapshot| {
            let claim = snapshot.spec.source.persistent_volume_claim_name.as_ref();
            let namespace = snapshot.metadata.namespace();
            claim.map(|claim| format!("{namespace}/{claim}")).into_iter().collect()
        });
        let queue = self.queue.clone();
        kinds.snapshots.subscribe(move |event: &Event<VolumeSnapshot>| {
            let snapshot = event.object();
            queue.add(format!("snapshot/{}", pods::key(&**snapshot)));
            if let Some(claim) = &snapshot.spec.source.persistent_volume_claim_name {
                queue.add(format!("claim/{}/{claim}", snapshot.metadata.namespace()));
            }
        });
        let queue = self.queue.clone();
        let snapshots = kinds.snapshots.clone();
        kinds.contents.subscribe(move |event: &Event<VolumeSnapshotContent>| {
            let content = event.object();
            let reference = &content.spec.volume_snapshot_ref;
            queue.add(format!("content/{}", pods::key(&**content)));
            queue.add(snapshot_key(reference.namespace.as_deref(), reference.name.as_deref()));
            // Others may name it as well, in vain.
            let name = content.metadata.name.as_ref();
            for snapshot in snapshots.list() {
                if name.is_some() && snapshot.spec.source.volume_snapshot_content_name.as_ref() == name {
                    queue.add(format!("snapshot/{}", pods::key(&*snapshot)));
                }
            }
        });
        let (queue, snapshots) = (self.queue.clone(), kinds.snapshots.clone());
        kinds.classes.subscribe(move |_: &Event<VolumeSnapshotClass>| {
            for snapshot in snapshots.list() {
                queue.add(format!("snapshot/{}", pods::key(&*snapshot)));
            }
        });
        kinds
    }

    /// Whether all three kinds are served, by definitions that are ours.
    fn is_established(&self) -> bool {
        let plurals = [
            VolumeSnapshot::URL_PATH_SEGMENT,
            VolumeSnapshotContent::URL_PATH_SEGMENT,
            VolumeSnapshotClass::URL_PATH_SEGMENT,
        ];
        plurals.iter().all(|plural| {
            let definition = self.definitions.get(&format!("{plural}.{GROUP}"));
            definition.is_some_and(|it| definitions::is_ours(&it) && definitions::is_established(&it))
        })
    }

    async fn sync_snapshot(&self, kinds: &Kinds, key: &str) -> Outcome {
        let Some(snapshot) = kinds.snapshots.get(key) else { return Ok(Requeue::Never) };
        let source = &snapshot.spec.source;
        let namespace = snapshot.metadata.namespace();
        let content = source.volume_snapshot_content_name.clone().unwrap_or_else(|| content_name(&snapshot));
        let content = match kinds.contents.get(&content) {
            // Without its content it would go at once, and nobody would delete what was taken: the cache may be late.
            seen if lets_go(&snapshot, seen.as_deref()) => {
                self.client.all::<VolumeSnapshotContent>().get_opt(&content).await?.map(Arc::new)
            }
            seen => seen,
        };
        let claim = source.persistent_volume_claim_name.as_ref();
        let claim = claim.and_then(|name| self.claims.get(&format!("{namespace}/{name}")));
        // A claim may name any volume; the volume says whose it is.
        let volume = claim.as_ref().and_then(|claim| {
            let volume = self.volumes.get(volume_name(claim)?)?;
            let owner = volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()?;
            (Some(owner) == claim.metadata.uid.as_deref()).then_some(volume)
        });
        let is_pending = |claim: &Arc<PersistentVolumeClaim>| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending")
        };
        let is_restoring = self.claims.by_index(BY_SOURCE, key).iter().any(is_pending);
        let classes = kinds.classes.list();
        let seen = Seen {
            snapshot: &snapshot,
            content: content.as_deref(),
            claim: claim.as_deref(),
            volume: volume.as_deref(),
            classes: &classes,
            is_restoring,
        };
        let about = client::reference(&*snapshot);
        let snapshots = self.client.namespaced::<VolumeSnapshot>(namespace);
        let name = snapshot.metadata.name();
        let version = &snapshot.metadata.resource_version;
        match next(&seen) {
            Step::Nothing => {}
            Step::SetFinalizers(finalizers) => {
                let meta = json!({ "finalizers": finalizers, "resourceVersion": version });
                if_unchanged(snapshots.patch(name, &Patch::merge(json!({ "metadata": meta }))).await)?;
            }
            Step::SetClass(class) => {
                let change =
                    json!({ "metadata": { "resourceVersion": version }, "spec": { "volumeSnapshotClassName": class } });
                if_unchanged(snapshots.patch(name, &Patch::merge(change)).await)?;
            }
            Step::ProtectClaim => {
                if let Some(claim) = &claim {
                    self.set_claim_finalizer(claim, true).await?;
                }
            }
            Step::CreateContent(content) => {
                let contents = self.client.dynamic(&contents(), None);
                match contents.create(&content).await {
                    Ok(_) => {
                        let message = format!("Waiting for a snapshot {key} to be created by the CSI driver.");
                        self.recorder.normal(&about, "CreatingSnapshot", message);
                    }
                    Err(error) if error.is_already_exists() => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Step::BindContent => {
                if let Some(content) = &content {
                    let mut reference = content.spec.volume_snapshot_ref.clone();
                    reference.uid.clone_from(&snapshot.metadata.uid);
                    self.patch_content(content, json!({ "spec": { "volumeSnapshotRef": reference } })).await?;
                }
            }
            Step::MarkContent => {
                if let Some(content) = &content {
                    let annotations = json!({ plan::BEING_DELETED: "yes" });
                    self.patch_content(content, json!({ "metadata": { "annotations": annotations } })).await?;
                }
            }
            Step::DeleteContent => {
                if let Some(content) = &content {
                    let params = DeleteParams { uid: content.metadata.uid.clone(), ..DeleteParams::default() };
                    let name = content.metadata.name();
                    if_unchanged(self.client.all::<VolumeSnapshotContent>().delete(name, &params).await)?;
                }
            }
            Step::SetStatus(status) => {
                self.report_progress(&snapshot, &status, key);
                self.set_status(&snapshot, &status).await?;
            }
            Step::Wait { reason, message } => {
                self.recorder.warning(&about, reason, message);
                return Ok(Requeue::After(RETRY_INTERVAL));
            }
            Step::Fail { reason, message } => {
                if let Some(status) = failed(&snapshot, &message, self.clock.now()) {
                    self.recorder.warning(&about, reason, message);
                    self.set_status(&snapshot, &status).await?;
                }
                return Ok(Requeue::After(RETRY_INTERVAL));
            }
        }
        Ok(Requeue::Never)
    }

    fn report_progress(&self, snapshot: &VolumeSnapshot, status: &SnapshotStatus, key: &str) {
        let before = snapshot.status.clone().unwrap_or_default();
        let about = client::reference(snapshot);
        if before.creation_time.is_none() && status.creation_time.is_some() {
            let message = format!("Snapshot {key} was successfully created by the CSI driver.");
            self.recorder.normal(&about, "SnapshotCreated", message);
        }
        if before.ready_to_use != Some(true) && status.ready_to_use == Some(true) {
            self.recorder.normal(&about, "SnapshotReady", format!("Snapshot {key} is ready to use."));
        }
    }

    async fn set_status(&self, snapshot: &VolumeSnapshot, status: &SnapshotStatus) -> Result<(), Error> {
        let namespace = snapshot.metadata.namespace();
        let name = snapshot.metadata.name();
        let version = &snapshot.metadata.resource_version;
        let change = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let api = self.client.namespaced::<VolumeSnapshot>(namespace);
        if_unchanged(api.patch_status(name, &Patch::merge(change)).await).map(drop)
    }

    async fn patch_content(&self, content: &VolumeSnapshotContent, mut change: Value) -> Result<(), Error> {
        change["metadata"]["resourceVersion"] = json!(content.metadata.resource_version);
        let name = content.metadata.name();
        let api = self.client.all::<VolumeSnapshotContent>();
        if_unchanged(api.patch(name, &Patch::merge(change)).await).map(drop)
    }

    /// A content is not deleted under its snapshot, nor before its driver has done so.
    async fn sync_content(&self, kinds: &Kinds, name: &str) -> Outcome {
        let Some(content) = kinds.contents.get(name) else { return Ok(Requeue::Never) };
        let mut finalizers = content.metadata.finalizers.clone().unwrap_or_default();
        if content.metadata.deletion_timestamp.is_none() && !finalizers.iter().any(|known| known == CONTENT_FINALIZER) {
            finalizers.push(CONTENT_FINALIZER.into());
            self.patch_content(&content, json!({ "metadata": { "finalizers": finalizers } })).await?;
        }
        Ok(Requeue::Never)
    }

    /// A claim is let go when no snapshot is to be taken of it any more.
    async fn sync_claim(&self, kinds: &Kinds, key: &str) -> Outcome {
        let Some(claim) = self.claims.get(key) else { return Ok(Requeue::Never) };
        let is_held = claim.metadata.finalizers.iter().flatten().any(|known| known == CLAIM_FINALIZER);
        let is_wanted = kinds.snapshots.by_index(BY_SOURCE, key).iter().any(|snapshot| is_unfinished(snapshot));
        if is_held && !is_wanted {
            // A snapshot may be newer than our copy of them.
            let (namespace, name) = client::split_key(key);
            let all = self.client.namespaced::<VolumeSnapshot>(namespace).list(&ListParams::default()).await?.items;
            let is_its = |it: &VolumeSnapshot| it.spec.source.persistent_volume_claim_name.as_deref() == Some(name);
            if !all.iter().any(|snapshot| is_its(snapshot) && is_unfinished(snapshot)) {
                self.set_claim_finalizer(&claim, false).await?;
            }
        }
        Ok(Requeue::Never)
    }

    async fn set_claim_finalizer(&self, claim: &PersistentVolumeClaim, is_held: bool) -> Result<(), Error> {
        let mut changed = claim.clone();
        let finalizers = changed.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|known| known != CLAIM_FINALIZER);
        if is_held {
            finalizers.push(CLAIM_FINALIZER.into());
        }
        if_unchanged(self.client.all::<PersistentVolumeClaim>().update(&changed).await).map(drop)
    }
}

fn contents() -> client::Gvr {
    client::Gvr::new(GROUP, "v1", VolumeSnapshotContent::URL_PATH_SEGMENT)
}
