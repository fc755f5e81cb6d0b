//! Volumes of CSI drivers: attached, staged, grown and published before a pod's containers start, and all of it undone after
//! they ended.
//!
//! Flow: `volumes` -> [`Csi::set_up`] -> `operations` -> a driver; [`Csi::tear_down`] goes the way back from what is on disk
//! (`layout`). Drivers come and go through `plugins`.
//!
//! Invariants: for one volume there is never more than one call under way; what was asked for is written down before and
//! forgotten only after it was undone; a driver that does not answer holds up nothing but the pods that use it.

mod attachment;
mod drivers;
mod layout;
mod leftovers;
mod limits;
mod node_info;
mod operations;
mod stats;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Clock, Event, EventRecorder, Informer};
use csi::tonic::{Code, Status};
use csi::v1::NodeRpc;
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{Node, Pod, Secret, SecretReference};
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trace::{Stage, Work};

use super::attached::Attached;
use super::error::{Cause, Operation, SecretError, TornDown, Unfinished};
use super::growing::Growing;
use super::in_use::{InUse, STAGING};
use super::{Mounted, TearDownError, Tokens, VolumeError, blocking};
use crate::backoff::Backoff;
use crate::metrics::{KubeletMetrics, Outcome};
use crate::objects::Objects;
use crate::state;

pub(crate) use attachment::AttachError;
pub(crate) use drivers::{Driver, NoDriver, Refused, highest_version};
use layout::{Known, Layout, Mode, Place, Seen};
pub(super) use layout::{PLUGIN, names, names_if_dir};
use node_info::NodeInfo;
pub(crate) use node_info::NodeInfoError;
pub(crate) use stats::Stats;
pub(crate) use wanted::{ManyLabels, Wanted, WrongLifecycle};

const TOKENS_KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";

pub(crate) struct Csi {
    layout: Layout,
    node_name: String,
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    pub(super) growing: Growing,
    pub(crate) drivers: drivers::Drivers,
    objects: Informer<CSIDriver>,
    pub(crate) attached: Arc<Attached>,
    node_info: Arc<NodeInfo>,
    /// By unique name of the volume: whoever holds it may call the driver.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    done: Mutex<Done>,
    /// How many operations are under way, by uid of the pod that they are for.
    running: watch::Sender<HashMap<String, usize>>,
    stats: stats::Cache,
    /// When what could not be unstaged is tried again.
    unstaging: Backoff,
    /// When what may have been staged late is unstaged again.
    late: Backoff,
    /// Records that cannot be read, each with what to do about it: at the start, and as of the last look.
    unread: Mutex<BTreeSet<String>>,
    /// Counts changes of how often drivers are asked how many volumes the node may have.
    periods: Arc<watch::Sender<u64>>,
    /// Since when attachers have had no room for volumes: by uid and spec name.
    without_room: Mutex<HashMap<(String, String), Instant>>,
    metrics: KubeletMetrics,
    call_timeout: Duration,
    has_selinux: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What this kubelet knows to be done. After a restart nothing is: drivers are asked again, which changes nothing for what was.
#[derive(Default)]
struct Done {
    staged: HashSet<String>,
    /// By uid and spec name.
    published: BTreeMap<(String, String), Published>,
    /// What this kubelet has begun and not published yet: no container can have it. By uid and spec name.
    begun: HashSet<(String, String)>,
    /// Volumes that their drivers do not grow while they are used.
    fixed_in_use: HashSet<String>,
    /// Volumes whose drivers have said that they did not grow them, and that they are not at it any more.
    not_grown: HashSet<String>,
}

/// A volume that a pod has.
#[derive(Clone, Debug)]
struct Published {
    wanted: Arc<Wanted>,
    pod: Arc<Pod>,
    target: PathBuf,
    staging: Option<PathBuf>,
    /// How large it is here, in bytes, if that is known.
    size: Option<i64>,
}

/// What the pieces of a call come from, fetched before the volume is locked.
struct Inputs {
    pod: Arc<Pod>,
    /// What the calls follow from: they are made by a task of their own.
    cause: trace::Context,
    metrics: KubeletMetrics,
    object: Option<Arc<CSIDriver>>,
    driver: Arc<Driver>,
    /// The driver wants to be asked again and again.
    republish: bool,
    /// That of the volume's files, on nodes with SELinux.
    label: Option<String>,
    publish_context: BTreeMap<String, String>,
    volume_context: BTreeMap<String, String>,
    secrets: Arc<Objects<Secret>>,
    /// The pod's tokens, where the driver wants them among the secrets.
    secret_tokens: BTreeMap<String, String>,
}

impl Inputs {
    /// A call of the driver, as part of what the pod needs.
    fn work(&self, stage: Stage, wanted: &Wanted) -> Work {
        let work = Work::caused(&self.cause, stage, state::ACTOR, state::traced_name(&self.pod));
        work.with_detail(format_args!("{} {}", wanted.driver, wanted.spec_name))
    }

    /// Whether the driver makes the volume ready for all pods of the node first.
    fn is_staging(&self, wanted: &Wanted) -> bool {
        self.driver.abilities.has(NodeRpc::StageUnstageVolume) && !wanted.is_inline
    }

    /// What a call is given besides the volume: looked up only by whoever is about to make the call. A secret may be gone that
    /// nobody needs any more.
    async fn secret(
        &self,
        field: &'static str,
        is_block: bool,
        reference: Option<&SecretReference>,
    ) -> Result<BTreeMap<String, String>, Cause> {
        let Some(SecretReference { namespace, name }) = reference else { return Ok(BTreeMap::new()) };
        let (namespace, name) = (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        let values = secret_values(namespace, name, state::uid(&self.pod), &self.secrets).await;
        values.map_err(|why| {
            let what = operations::without_secret(field, is_block, &format!("{namespace}/{name}"));
            Cause::Secret { what, namespace: namespace.to_owned(), name: name.to_owned(), why }
        })
    }

    async fn call<T>(
        &self,
        stage: Stage,
        wanted: &Wanted,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let mut work = self.work(stage, wanted).announce();
        let began = Instant::now();
        let answer = work.run(call).await;
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.metrics.driver_called(&wanted.driver, method(stage), code, wanted.is_migrated, began.elapsed());
        match &answer {
            Ok(_) => work.end(),
            Err(status) => work.fail(csi::describe(status)),
        }
        answer
    }
}

/// The call that a stage of a pod's way is.
fn method(stage: Stage) -> &'static str {
    match stage {
        Stage::StageVolume => "/csi.v1.Node/NodeStageVolume",
        Stage::ExpandVolume => "/csi.v1.Node/NodeExpandVolume",
        _ => "/csi.v1.Node/NodePublishVolume",
    }
}

/// The plug-in of CSI with one of its drivers, as metrics call it.
pub(crate) fn plugin_name(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

pub(crate) struct Parts {
    pub(crate) root: PathBuf,
    pub(crate) node_name: String,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) recorder: EventRecorder,
    pub(crate) objects: Informer<CSIDriver>,
    pub(crate) own_node: Informer<Node>,
    pub(crate) call_timeout: Duration,
    /// Has the node's status written soon.
    pub(crate) changed: Arc<Notify>,
    pub(crate) metrics: KubeletMetrics,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Csi {
    pub(crate) fn open(parts: Parts) -> Arc<Self> {
        let layout = Layout { root: parts.root };
        let known = layout.known().unwrap_or_else(|error| Known::nothing(&error));
        let used = known.seen.found.iter().map(|found| (&found.record, found.uid.as_str()));
        let at_start: Vec<(String, String)> = used
            .chain(known.staged.iter().map(|(record, _)| (record, STAGING)))
            .filter(|(record, _)| !record.attachment.is_empty())
            .map(|(record, holder)| (record.unique_name(), holder.to_string()))
            .collect();
        let in_use = Arc::new(InUse::new(at_start, parts.changed));
        if !known.unread.is_empty() {
            in_use.doubt(api::attachable::CSI);
        }
        for error in &known.unread {
            tracing::error!(error, "it is not known which volume is there");
        }
        let node_info = Arc::new(NodeInfo::new(parts.client.clone(), parts.node_name.clone()));
        let informed = node_info.clone();
        parts.own_node.subscribe(move |event| match event {
            Event::Added(node) | Event::Modified { new: node, .. } => informed.seen(node),
            Event::Deleted(_) => {}
        });
        let growing = Growing {
            client: parts.client.clone(),
            clock: parts.clock.clone(),
            recorder: parts.recorder.clone(),
            node_name: parts.node_name.clone(),
        };
        let periods: Arc<watch::Sender<u64>> = Arc::default();
        let changed = periods.clone();
        parts.objects.subscribe(move |event| {
            if limits::changes_period(event) {
                changed.send_modify(|count| *count += 1);
            }
        });
        Arc::new(Csi {
            layout,
            attached: Attached::new(parts.client.clone(), parts.node_name.clone(), parts.own_node, in_use),
            node_info,
            node_name: parts.node_name,
            client: parts.client,
            clock: parts.clock,
            recorder: parts.recorder,
            growing,
            drivers: Default::default(),
            objects: parts.objects,
            locks: Default::default(),
            done: Default::default(),
            running: Default::default(),
            stats: stats::Cache::new(),
            unstaging: Backoff::of_removals(),
            late: leftovers::backoff(),
            unread: Mutex::new(known.unread),
            periods,
            without_room: Default::default(),
            metrics: parts.metrics,
            call_timeout: parts.call_timeout,
            has_selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            tasks: parts.tasks,
            stop: parts.stop,
        })
    }

    /// Makes a volume ready for a pod.
    pub(crate) async fn set_up(
        self: &Arc<Self>,
        pod: &Pod,
        wanted: Wanted,
        secrets: &Arc<Objects<Secret>>,
        tokens: &Tokens,
    ) -> Result<Mounted, VolumeError> {
        let operation = if wanted.is_block { Operation::SetUpDevice } else { Operation::SetUp };
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        check_names(&wanted).map_err(fail)?;
        let object = self.objects.get(&wanted.driver);
        let key = (state::uid(pod).to_string(), wanted.spec_name.clone());
        let known = self.done.lock().published.get(&key).cloned().filter(|published| published.is_of(&wanted));
        if let Some(why) = wanted.refused(object.as_deref()) {
            // A pod that has its volume keeps it, whatever becomes of the driver's object.
            return known.map(|known| known.mounted()).ok_or_else(|| match self.drivers.get(&wanted.driver) {
                Ok(_) => fail(why.into()),
                Err(source) => self.without_driver(&wanted, source),
            });
        }
        let is_done = |known: &Published| !asks_again(object.as_deref()) && !self.is_to_grow(known, &wanted);
        if let Some(known) = known.as_ref().filter(|known| is_done(known)) {
            return Ok(known.mounted());
        }
        let ready = self.ask(pod, wanted, object, known.is_none(), secrets, tokens).await;
        match (ready, known) {
            // The pod has its volume and keeps it, whatever came of asking the driver again.
            (Err(error), Some(known)) => {
                if !self.stop.is_cancelled() {
                    self.recorder.warning(&client::reference(pod), error.reason(), error.to_string());
                }
                Ok(known.mounted())
            }
            (ready, _) => ready,
        }
    }

    /// Has the driver do what is left to do for a pod's volume.
    async fn ask(
        self: &Arc<Self>,
        pod: &Pod,
        wanted: Wanted,
        object: Option<Arc<CSIDriver>>,
        is_first: bool,
        secrets: &Arc<Objects<Secret>>,
        tokens: &Tokens,
    ) -> Result<Mounted, VolumeError> {
        let operation = if wanted.is_block { Operation::SetUpDevice } else { Operation::SetUp };
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        let driver = self.drivers.get(&wanted.driver).map_err(|source| self.without_driver(&wanted, source))?;
        let label = match self.has_selinux {
            true => wanted.label(pod, object.as_deref()).map_err(|error| fail(error.into()))?,
            false => None,
        };
        let mut inputs = Inputs {
            pod: Arc::new(pod.clone()),
            cause: trace::current(),
            metrics: self.metrics.clone(),
            driver,
            republish: asks_again(object.as_deref()),
            label,
            publish_context: BTreeMap::new(),
            volume_context: wanted.context(pod, object.as_deref()),
            secrets: secrets.clone(),
            secret_tokens: BTreeMap::new(),
            object,
        };
        // Nor does upstream give tokens with devices (`publishVolumeForBlock`, v1.36).
        if !wanted.is_block {
            self.add_tokens(&mut inputs, tokens).await.map_err(fail)?;
        }
        if wanted.needs_attachment(inputs.object.as_deref()) {
            inputs.publish_context = inputs
                .work(Stage::Attach, &wanted)
                .announce()
                .result(self.wait_for_attachment(&wanted, state::uid(pod)))
                .await
                .map_err(|cause| VolumeError::of(Operation::WaitForAttach, &wanted.spec_name, cause))?;
        } else if is_first {
            self.wait_no_longer(&wanted, state::uid(pod)).await.map_err(|error| fail(error.into()))?;
        }
        let (this, wanted) = (self.clone(), Arc::new(wanted));
        let name = wanted.spec_name.clone();
        let running = Running::begin(self, state::uid(pod));
        let work = async move {
            let _running = running;
            let began = Instant::now();
            let mounted = this.mount(&wanted, &inputs).await;
            let outcome = Outcome { is_ok: mounted.is_ok(), is_migrated: wanted.is_migrated };
            let operation = if wanted.is_block { "map_volume" } else { "volume_mount" };
            this.metrics.volume_changed(operation, &plugin_name(&wanted.driver), outcome, began.elapsed());
            mounted
        };
        self.detached(work).await.unwrap_or_else(|cause| Err(VolumeError::of(operation, &name, cause)))
    }

    /// Tokens of the pod's service account, for drivers that speak for the pod.
    async fn add_tokens(&self, inputs: &mut Inputs, tokens: &Tokens) -> Result<(), Cause> {
        let spec = wanted::spec(inputs.object.as_deref());
        let requests = spec.and_then(|spec| spec.token_requests.as_deref()).unwrap_or_default();
        if requests.is_empty() {
            return Ok(());
        }
        let as_secret = spec.and_then(|spec| spec.service_account_token_in_secrets) == Some(true);
        let mut all = serde_json::Map::new();
        for request in requests {
            let audience = Some(request.audience.as_str());
            let (token, expires) = tokens.with_expiry(&inputs.pod, audience, request.expiration_seconds).await?;
            let token = serde_json::json!({"token": token, "expirationTimestamp": expires.to_string()});
            all.insert(request.audience.clone(), token);
        }
        let text = serde_json::Value::Object(all).to_string();
        match as_secret {
            true => inputs.secret_tokens.insert(TOKENS_KEY.into(), text),
            false => inputs.volume_context.insert(TOKENS_KEY.into(), text),
        };
        Ok(())
    }

    /// All pods of which something may be left here.
    pub(super) fn pods_on_disk(&self) -> std::io::Result<BTreeSet<String>> {
        self.layout.pods()
    }

    /// The driver of every volume that a pod has, or had begun to get.
    pub(super) fn drivers_in_use(&self) -> std::io::Result<Vec<String>> {
        Ok(self.layout.look(None)?.found.into_iter().map(|found| found.record.driver_name).collect())
    }

    /// The driver of a volume that a pod has, by the name that it has in the pod.
    pub(super) fn driver_of(&self, uid: &str, volume: &str) -> Option<String> {
        let done = self.done.lock();
        let mut of_pod = done.published.iter().filter(|((owner, _), _)| owner == uid);
        of_pod.find(|(_, published)| published.wanted.volume == volume).map(|(_, it)| it.wanted.driver.clone())
    }

    /// Takes down all volumes of a pod, going on after a failure.
    pub(crate) async fn tear_down(self: &Arc<Self>, uid: &str) -> Result<(), TearDownError> {
        // What was begun for the pod and nobody waits for ends first.
        let _ = self.running.subscribe().wait_for(|running| !running.contains_key(uid)).await;
        let (layout, owner) = (self.layout.clone(), uid.to_string());
        let Seen { found, strays, unread } = blocking(move || layout.look(Some(&owner))).await?;
        let all = found.into_iter().map(|found| {
            let this = self.clone();
            self.detached(async move {
                let began = Instant::now();
                let unmounted = this.unmount(&found).await;
                let outcome = Outcome { is_ok: unmounted.is_ok(), is_migrated: false };
                let operation = if found.mode == Mode::Block { "unmap_volume" } else { "volume_unmount" };
                let plugin = plugin_name(&found.record.driver_name);
                this.metrics.volume_changed(operation, &plugin, outcome, began.elapsed());
                unmounted
            })
        });
        let mut failures: Vec<TornDown> = futures_util::future::join_all(all)
            .await
            .into_iter()
            .filter_map(|ended| match ended {
                Ok(unmounted) => unmounted.err().map(TornDown::from),
                Err(unfinished) => Some(unfinished.into()),
            })
            .collect();
        let unread = unread.into_iter();
        failures.extend(
            unread.map(|(place, error)| TornDown::from(VolumeError::of(Operation::TearDown, &place.spec_name, error))),
        );
        for Place { spec_name, mode, .. } in strays {
            tracing::warn!(pod = uid, volume = spec_name, "unmounting what was published and is not written down");
            self.done.lock().published.remove(&(uid.to_string(), spec_name.clone()));
            self.stats.forget(uid, &spec_name);
            let (layout, owner, name) = (self.layout.clone(), uid.to_string(), spec_name.clone());
            let removed = blocking(move || layout.remove_stray(&owner, &name, mode)).await;
            failures.extend(removed.err().map(|error| VolumeError::of(Operation::TearDown, &spec_name, error).into()));
        }
        if !failures.is_empty() {
            return Err(TearDownError::Volumes(failures));
        }
        self.attached.in_use.release_all(uid);
        self.forget_room(uid, None);
        self.done.lock().begun.retain(|(owner, _)| owner != uid);
        Ok(())
    }

    /// Does work to its end even if nobody waits for it any more: a call that a driver may be at is not followed by another.
    /// Only the end of the kubelet ends it.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Unfinished> {
        let stop = self.stop.clone();
        let task = self.tasks.spawn(FutureExt::boxed(async move {
            tokio::select! {
                () = stop.cancelled() => None,
                done = work => Some(done),
            }
        }));
        task.await?.ok_or(Unfinished::Stopping)
    }

    async fn lock(&self, volume: &str) -> OwnedMutexGuard<()> {
        let lock = self.lock_of(volume);
        lock.lock_owned().await
    }

    fn try_lock(&self, volume: &str) -> Option<OwnedMutexGuard<()>> {
        self.lock_of(volume).try_lock_owned().ok()
    }

    fn lock_of(&self, volume: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        // Those that nobody holds or waits for.
        locks.retain(|name, lock| name == volume || Arc::strong_count(lock) > 1);
        locks.entry(volume.to_string()).or_default().clone()
    }
}

/// Counts one operation for a pod while it lives.
struct Running(Arc<Csi>, String);

impl Running {
    fn begin(csi: &Arc<Csi>, uid: &str) -> Self {
        csi.running.send_modify(|running| *running.entry(uid.to_string()).or_default() += 1);
        Running(csi.clone(), uid.to_string())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| {
            if let Some(count) = running.get_mut(&self.1) {
                *count -= 1;
                if *count == 0 {
                    running.remove(&self.1);
                }
            }
        });
    }
}

impl Published {
    /// Whether it is the same volume, and not only its name.
    fn is_of(&self, wanted: &Wanted) -> bool {
        (&self.wanted.driver, &self.wanted.handle) == (&wanted.driver, &wanted.handle)
    }

    fn mounted(&self) -> Mounted {
        match self.wanted.is_block {
            true => Mounted::Device { path: self.target.clone(), read_only: self.wanted.is_read_only },
            false => Mounted::Path { path: self.target.clone(), read_only: self.wanted.is_read_only },
        }
    }
}

/// Whether the driver wants to be asked again and again.
fn asks_again(object: Option<&CSIDriver>) -> bool {
    wanted::spec(object).and_then(|spec| spec.requires_republish) == Some(true)
}

/// Names of objects become parts of paths.
fn check_names(wanted: &Wanted) -> Result<(), Cause> {
    for (what, name) in [("volume name", &wanted.spec_name), ("driver name", &wanted.driver)] {
        // Drivers may have capitals.
        if let Some(why) = api::validation::dns1123_subdomain(&name.to_lowercase()).into_iter().next() {
            return Err(Cause::Name { what, name: name.clone(), why });
        }
    }
    if wanted.mode().is_taken(&wanted.spec_name) {
        let why = "the kubelet has another directory there".to_owned();
        return Err(Cause::Name { what: "volume name", name: wanted.spec_name.clone(), why });
    }
    match wanted.handle.is_empty() {
        true => Err(Cause::NoHandle),
        false => Ok(()),
    }
}

/// What a secret holds, as text.
pub(super) async fn secret_values(
    namespace: &str,
    name: &str,
    uid: &str,
    secrets: &Objects<Secret>,
) -> Result<BTreeMap<String, String>, SecretError> {
    let secret = secrets.get(uid, namespace, name).await?;
    let secret = secret.ok_or_else(|| SecretError::Missing(name.to_owned()))?;
    let data = secret.data.iter().flatten();
    Ok(data.map(|(key, value)| (key.clone(), String::from_utf8_lossy(&value.0).into_owned())).collect())
}
