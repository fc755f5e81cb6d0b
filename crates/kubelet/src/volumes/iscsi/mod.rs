//! iSCSI volumes: disks of other machines, reached by Debian's `open-iscsi` as upstream's plug-in does it. A session is shared
//! by all disks of a target; a disk is mounted once for the node and bound for every pod that uses it, or given to pods as the
//! block device that it is.
//!
//! Flow: `volumes` -> [`Iscsi::set_up`] -> `session` -> iscsiadm; [`Iscsi::release_unused`] logs out after the last pod.
//!
//! Invariants: what a pod is about to use is written down below its directory before anything is done, and forgotten after it is
//! unmounted; nothing is let go that a pod may use whose record cannot be read; for one target one thing is done at a time; a
//! disk is in the node's `volumesInUse` from before it is reached for until its session has let go of it.

mod disk;
mod machine;
mod session;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::ISCSIPersistentVolumeSource;
use nix::mount::{MntFlags, MsFlags};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::attached::NodeUnknown;
use super::csi::{AttachError, names, names_if_dir};
use super::error::{Cause, Operation, SecretError, Unfinished, check_name};
use super::in_use::InUse;
use super::kernel::{Kernel, Linux};
use super::{ChangePolicy, Mounted, VolumeError, blocking, format, mounts, ownership, records};

pub(super) use disk::persistent;
use disk::{Chap, Disk};
use machine::{Host, Machine};

/// The plug-in's name as part of a path.
const PLUGIN: &str = "kubernetes.io~iscsi";
const RECORD: &str = "iscsi.json";
/// The directory of the plug-in with a record for each disk that may be attached.
const IN_USE: &str = "in-use";
/// Directories of pods and of the plug-in for volumes that are devices.
const DEVICES: &str = "volumeDevices";

/// Why a disk is not attached, or not detached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IscsiError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "exec: {0:?}: executable file not found in $PATH: this node needs the package open-iscsi for iSCSI volumes"
    )]
    Missing(&'static str),
    #[error("{program}: {source}")]
    Start { program: &'static str, source: io::Error },
    #[error("{0} does not come to an end")]
    Silent(&'static str),
    /// What iscsiadm said.
    #[error("iscsi: {what}: {ended}: {output}")]
    Command { what: String, ended: String, output: String },
    #[error("could not parse iface file for {0}")]
    NoTransport(String),
    #[error("invalid iface setting: {0}")]
    Setting(String),
    #[error("could not get SCSI host number for portal {0} after logging in")]
    NoHost(String),
    #[error("Timed out waiting for device of {iqn} lun {lun} over {portal} after {seconds}s")]
    NoDevice { portal: String, iqn: String, lun: String, seconds: usize },
    #[error("failed to get any path for iscsi disk, last err seen:\n{0}")]
    NoPath(Box<IscsiError>),
    #[error("the disk is in use: {} is mounted elsewhere on this node, or part of another device", .0.display())]
    Held(PathBuf),
    #[error("no portal of the target is known")]
    NoPortal,
    #[error("couldn't get secret {namespace}/{name} error: {why}")]
    Secret { namespace: String, name: String, why: SecretError },
    #[error("target {0} is being logged in to and has not answered yet")]
    UnderWay(String),
    #[error("the pod that wanted the disk is gone")]
    PodGone,
    #[error(transparent)]
    Unfinished(#[from] Unfinished),
}

/// What a pod wants to have.
pub(super) struct Request {
    uid: String,
    disk: Disk,
    /// What the node's status calls the disk.
    unique_name: String,
    fs_type: String,
    options: Vec<String>,
    is_read_only: bool,
    is_block: bool,
    /// Who gets its files.
    pub(super) group: Option<(u32, ChangePolicy)>,
    chap: Chap,
}

impl Request {
    pub(super) fn new(uid: &str, name: &str, source: &ISCSIPersistentVolumeSource, is_read_only: bool) -> Request {
        let chap = Chap {
            in_discovery: source.chap_auth_discovery == Some(true),
            in_session: source.chap_auth_session == Some(true),
            secret: BTreeMap::new(),
        };
        Request {
            uid: uid.to_owned(),
            disk: Disk::new(name, source),
            unique_name: api::attachable::iscsi_name(&source.target_portal, &source.iqn, source.lun),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            options: Vec::new(),
            is_read_only,
            is_block: false,
            group: None,
            chap,
        }
    }

    /// As the PersistentVolume says.
    pub(super) fn with(self, options: &[String], is_block: bool) -> Request {
        Request { options: options.to_vec(), is_block, ..self }
    }

    pub(super) fn unique_name(&self) -> &str {
        &self.unique_name
    }

    fn used(&self) -> Used {
        Used { disk: self.disk.clone(), is_block: self.is_block }
    }

    fn failed(&self, operation: Operation, cause: impl Into<Cause>) -> VolumeError {
        VolumeError::of(operation, &self.disk.vol_name, cause)
    }
}

/// A disk of a pod's, as the pod's record says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Used {
    #[serde(flatten)]
    disk: Disk,
    #[serde(rename = "IsBlock", default)]
    is_block: bool,
}

impl Used {
    /// The disk's directory, below the plug-in's.
    fn place(&self) -> PathBuf {
        match self.is_block {
            true => Path::new(DEVICES).join(self.disk.place()),
            false => self.disk.place(),
        }
    }
}

/// A disk that the node's status must name as used, because a session may have it.
#[derive(Debug, Serialize, Deserialize)]
struct InUseRecord {
    unique_name: String,
    /// Its directory, below the plug-in's.
    place: PathBuf,
}

/// What holds a disk that is attached, besides the pods that use it.
fn holder(place: &Path) -> String {
    place.display().to_string()
}

pub(crate) struct Parts {
    pub(crate) root: PathBuf,
    pub(crate) in_use: Arc<InUse>,
    /// How long a pod waits for a target at a time; what was begun for it goes on.
    pub(crate) call_timeout: Duration,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

pub(crate) struct Iscsi<M = Host> {
    root: PathBuf,
    machine: M,
    in_use: Arc<InUse>,
    call_timeout: Duration,
    /// By name of the target: whoever holds it may log in, log out, mount and unmount.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Devices of pods, by uid and name of the volume: what this kubelet has done and need not ask for again. As links where
    /// there are any: a disk that comes again may be another device.
    devices: Mutex<HashMap<(String, String), PathBuf>>,
    /// Whoever holds it may write down what a pod uses: volumes of one pod are set up side by side.
    noting: Arc<Mutex<()>>,
    /// Records of disks that may be attached, which could not be read when the kubelet started.
    doubtful: Mutex<BTreeSet<PathBuf>>,
    /// Records that cannot be read, each with what to do about it: as of the last look.
    unread: Mutex<BTreeSet<String>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Iscsi {
    pub(crate) fn open(parts: Parts) -> Arc<Self> {
        Self::on(Host, parts)
    }
}

impl<M: Machine> Iscsi<M> {
    fn on(machine: M, parts: Parts) -> Arc<Self> {
        let Parts { root, in_use, call_timeout, tasks, stop } = parts;
        let this = Iscsi {
            root,
            machine,
            in_use,
            call_timeout,
            locks: Mutex::default(),
            devices: Mutex::default(),
            noting: Arc::default(),
            doubtful: Mutex::default(),
            unread: Mutex::default(),
            tasks,
            stop,
        };
        this.keep_in_use();
        Arc::new(this)
    }

    /// Disks that an earlier kubelet has left attached. Where that cannot be read, what the API shows of such disks stays.
    fn keep_in_use(&self) {
        let gone = self.keep_listed().unwrap_or_else(|error| {
            tracing::error!(%error, "it is not known which iSCSI disks are in use");
            self.doubtful.lock().insert(self.plugin().join(IN_USE));
            Vec::new()
        });
        for path in gone {
            if let Err(error) = records::remove(&path) {
                tracing::warn!(path = %path.display(), %error, "record of an iSCSI disk that is gone not removed");
            }
        }
        if !self.doubtful.lock().is_empty() {
            self.in_use.doubt(api::attachable::ISCSI);
        }
    }

    /// Keeps all disks that are written down as attached. Returns the records of those that are gone.
    fn keep_listed(&self) -> io::Result<Vec<PathBuf>> {
        let dir = self.plugin().join(IN_USE);
        let mut gone = Vec::new();
        for name in names(&dir)?.into_iter().filter(|name| !name.ends_with(records::UNFINISHED)) {
            let path = dir.join(name);
            match self.keep(&path) {
                Ok(true) => {}
                Ok(false) => gone.push(path),
                Err(error) => {
                    tracing::error!(%error, "it is not known which iSCSI disk is in use");
                    self.doubtful.lock().insert(path);
                }
            }
        }
        Ok(gone)
    }

    /// Keeps a disk that is written down as attached; whether it is still there.
    fn keep(&self, path: &Path) -> io::Result<bool> {
        let Some(found) = records::find::<InUseRecord>(path)? else { return Ok(false) };
        // The disk's directory comes after the record and goes before it.
        let is_gone = std::fs::symlink_metadata(self.plugin().join(&found.place))
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if is_gone {
            return Ok(false);
        }
        self.in_use.keep(&found.unique_name, &holder(&found.place));
        let is_kept = path.try_exists()?;
        if !is_kept {
            // It was let go meanwhile.
            self.in_use.release_all(&holder(&found.place));
        }
        Ok(is_kept)
    }

    /// Looks again at what could not be read at the start. Says what is wrong with what cannot be read yet.
    fn look_again(&self) -> Vec<String> {
        let left: Vec<PathBuf> = self.doubtful.lock().iter().cloned().collect();
        let dir = self.plugin().join(IN_USE);
        let mut wrong = Vec::new();
        for path in left {
            let looked = if path == dir { self.keep_listed().map(drop) } else { self.keep(&path).map(drop) };
            match looked {
                Ok(()) => self.doubtful.lock().retain(|doubtful| *doubtful != path),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        if self.doubtful.lock().is_empty() {
            // Whoever has a disk holds it now. Not only once: what the API shows may be heard later.
            self.in_use.settle(api::attachable::ISCSI, |_| false);
        }
        wrong
    }

    /// Records that cannot be read, each with what to do about it.
    pub(crate) fn unread(&self) -> BTreeSet<String> {
        self.unread.lock().clone()
    }

    fn plugin(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/iscsi")
    }

    fn in_use_record(&self, place: &Path) -> PathBuf {
        let name = format!("{:x}.json", Sha256::digest(holder(place)));
        self.plugin().join(IN_USE).join(name)
    }

    fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Where a pod sees a disk that is mounted.
    fn target(&self, uid: &str, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(PLUGIN).join(name)
    }

    fn pod_record(&self, uid: &str, name: &str) -> PathBuf {
        self.pod(uid).join("plugins").join(PLUGIN).join(format!("{name}.json"))
    }

    fn lock_of(&self, iqn: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        locks.retain(|other, lock| other == iqn || Arc::strong_count(lock) > 1);
        locks.entry(iqn.to_owned()).or_default().clone()
    }

    /// Makes a disk ready for a pod, once the node may have it. The secret is asked for only if a target wants one.
    pub(super) async fn set_up(
        self: &Arc<Self>,
        mut request: Request,
        attached: impl Future<Output = Result<(), NodeUnknown>>,
        secret: impl Future<Output = Result<BTreeMap<String, String>, IscsiError>>,
    ) -> Result<Mounted, VolumeError> {
        let operation = if request.is_block { Operation::SetUpDevice } else { Operation::SetUp };
        let name = request.disk.vol_name.clone();
        check_name("volume name", &name).map_err(|cause| request.failed(operation, cause))?;
        request.disk.check().map_err(|cause| request.failed(operation, cause))?;
        if let Some(mounted) = self.ready(&request).await.map_err(|error| request.failed(operation, error))? {
            self.in_use.keep(&request.unique_name, &request.uid);
            // Also what a kubelet mounted that wrote nothing down: the pod lets go of it before its session does.
            self.in_use.keep(&request.unique_name, &holder(&request.used().place()));
            return Ok(mounted);
        }
        let attached = tokio::time::timeout(self.call_timeout, attached).await;
        let attached = attached.map_or(Err(AttachError::NotReported), |ended| ended.map_err(AttachError::from));
        attached.map_err(|error| request.failed(Operation::WaitForAttach, error))?;
        if request.chap.in_discovery || request.chap.in_session {
            request.chap.secret = secret.await.map_err(|error| request.failed(operation, error))?;
        }
        let iqn = request.disk.iqn.clone();
        let late = |operation| VolumeError::of(operation, &name, IscsiError::UnderWay(iqn.clone()));
        let held = tokio::time::timeout(self.call_timeout, self.lock_of(&iqn).lock_owned()).await;
        let held = held.map_err(|_| late(Operation::WaitForAttach))?;
        let (this, stop) = (self.clone(), self.stop.clone());
        // To its end even if nobody waits for it: what has begun is not begun again beside it.
        let task = self.tasks.spawn(FutureExt::boxed(async move {
            let _held = held;
            tokio::select! {
                () = stop.cancelled() => None,
                mounted = this.mount(request) => Some(mounted),
            }
        }));
        let ended = tokio::time::timeout(self.call_timeout, task).await.map_err(|_| late(Operation::WaitForAttach))?;
        let ended = ended.map_err(|error| VolumeError::of(operation, &name, Unfinished::from(error)))?;
        ended.unwrap_or_else(|| Err(VolumeError::of(operation, &name, Unfinished::Stopping)))
    }

    /// What the pod has already.
    async fn ready(&self, request: &Request) -> io::Result<Option<Mounted>> {
        let (uid, name, read_only) = (&request.uid, &request.disk.vol_name, request.is_read_only);
        let device = self.devices.lock().get(&(uid.clone(), name.clone())).cloned();
        let (target, record) = (self.target(uid, name), self.pod_record(uid, name));
        let used = request.used();
        blocking(move || {
            let noted: Option<Used> = records::find(&record)?;
            // A claim's volume may be called as one in the pod: that one's disk is not this one's.
            if noted.is_none_or(|noted| noted.place() != used.place()) {
                return Ok(None);
            }
            if used.is_block {
                let device = device.and_then(|link| link.canonicalize().ok());
                return Ok(device.map(|path| Mounted::Device { path, read_only }));
            }
            let is_ready = mounts::is_mounted_at(&Linux, &target)?;
            Ok(is_ready.then_some(Mounted::Path { path: target, read_only }))
        })
        .await
    }

    async fn mount(&self, request: Request) -> Result<Mounted, VolumeError> {
        let used = request.used();
        let place = self.plugin().join(used.place());
        let (uid, name, read_only) = (request.uid.clone(), request.disk.vol_name.clone(), request.is_read_only);
        let (record, noted) = (self.pod_record(&uid, &name), place.clone());
        let noting = self.noting.clone();
        let (at, in_use_record) = (used.place(), self.in_use_record(&used.place()));
        let in_use = InUseRecord { unique_name: request.unique_name.clone(), place: at.clone() };
        let is_mounted = blocking(move || {
            let noting = noting.lock();
            let there: Option<Used> = records::find(&record)?;
            if there.is_some_and(|there| there.place() != used.place()) {
                return Err(io::Error::other("another volume of the pod has this name, and another disk"));
            }
            records::write(&used, &record)?;
            drop(noting);
            records::write(&in_use, &in_use_record)?;
            if mounts::is_mounted_at(&Linux, &noted)? {
                return Ok(true);
            }
            records::write(&used.disk, &noted.join(RECORD))?;
            Ok(false)
        });
        let is_mounted = is_mounted.await.map_err(|error| request.failed(Operation::WaitForAttach, error))?;
        if !self.in_use.hold_for(&request.unique_name, &uid, &holder(&at)) {
            // It was taken down before this was written down, whoever else has the disk.
            let record = self.pod_record(&uid, &name);
            blocking(move || std::fs::remove_file(record)).await.ok();
            return Err(request.failed(Operation::WaitForAttach, IscsiError::PodGone));
        }
        if request.is_block || !is_mounted {
            let attached = session::attach(&self.machine, &request.disk, &request.chap).await;
            let device = attached.map_err(|error| request.failed(Operation::WaitForAttach, error))?;
            if request.is_block {
                let link = device.clone();
                let path = blocking(move || device.canonicalize()).await;
                let path = path.map_err(|error| request.failed(Operation::SetUpDevice, error))?;
                self.devices.lock().insert((uid, name), link);
                return Ok(Mounted::Device { path, read_only });
            }
            let (root, disk, link) = (self.machine.root().to_path_buf(), request.disk.clone(), device.clone());
            let held = blocking(move || machine::held_beside(&root, &disk.iqn, &disk.lun, &link)).await;
            if let Some(held) = held.map_err(|error| request.failed(Operation::MountDevice, error))? {
                return Err(request.failed(Operation::MountDevice, IscsiError::Held(held)));
            }
            let mut options = request.options.clone();
            options.extend(read_only.then(|| "ro".to_owned()));
            let (fs_type, place) = (request.fs_type.clone(), place.clone());
            let mounted = blocking(move || format::mount(&device, &fs_type, &options, &place)).await;
            mounted.map_err(|error| request.failed(Operation::MountDevice, error))?;
        }
        let (target, group) = (self.target(&uid, &name), request.group.filter(|_| !read_only));
        let bound = target.clone();
        let bound = blocking(move || {
            if mounts::is_mounted_at(&Linux, &bound)? {
                return Ok(());
            }
            std::fs::create_dir_all(&bound)?;
            if let Some((group, policy)) = group {
                ownership::apply(&place, group, policy)?;
            }
            Linux.mount(Some(&place), &bound, None, MsFlags::MS_BIND, None)
        });
        bound.await.map_err(|error| request.failed(Operation::SetUp, error))?;
        Ok(Mounted::Path { path: target, read_only })
    }

    /// Unmounts a pod's disks and forgets that it used them, after what was begun for it has ended.
    pub(super) async fn tear_down(&self, uid: &str) -> io::Result<()> {
        let pod = self.pod(uid);
        let read = pod.clone();
        let mut targets = blocking(move || {
            let noted = uses_of(&read)?.into_iter();
            // While it is not known what there is, nothing is undone.
            noted.map(|(_, used)| used.map(|used| used.disk.iqn)).collect::<io::Result<Vec<_>>>()
        })
        .await?;
        targets.compact_sort();
        targets.dedup();
        let mut held: Vec<OwnedMutexGuard<()>> = Vec::new();
        for target in &targets {
            held.push(self.lock_of(target).lock_owned().await);
        }
        blocking(move || {
            mounts::remove_with_mounts(&Linux, &pod.join("volumes").join(PLUGIN))?;
            mounts::remove_with_mounts(&Linux, &pod.join("plugins").join(PLUGIN))
        })
        .await?;
        self.devices.lock().retain(|(owner, _), _| owner != uid);
        Ok(())
    }

    /// Unmounts disks that no pod uses any more and logs out of targets without disks, also what an earlier kubelet left. Does
    /// not wait for it; says whether there was nothing.
    pub(crate) async fn release_unused(self: &Arc<Self>) -> bool {
        let this = self.clone();
        let looked = blocking(move || {
            let wrong = this.look_again();
            Ok((unused(&this.root, &this.plugin())?, wrong))
        });
        let (unused, unread) = match looked.await {
            Ok((Unused { disks, unknown }, wrong)) => (disks, BTreeSet::from_iter(unknown.into_iter().chain(wrong))),
            Err(error) => {
                tracing::warn!(%error, "iSCSI disks not looked at");
                *self.unread.lock() = BTreeSet::from([error.to_string()]);
                return false;
            }
        };
        *self.unread.lock() = unread;
        for left in &unused {
            let Ok(held) = self.lock_of(&left.disk.iqn).try_lock_owned() else { continue };
            let (this, left, stop) = (self.clone(), left.clone(), self.stop.clone());
            self.tasks.spawn(FutureExt::boxed(async move {
                let _held = held;
                let released = tokio::select! {
                    () = stop.cancelled() => return,
                    released = this.release(&left) => released,
                };
                if let Err(error) = released {
                    tracing::warn!(iqn = left.disk.iqn, lun = left.disk.lun, %error, "an iSCSI disk not let go, will retry");
                }
            }));
        }
        // Who mends a record takes longer than the next look.
        unused.is_empty()
    }

    async fn release(&self, left: &Used) -> Result<(), IscsiError> {
        let (root, plugin, place) = (self.root.clone(), self.plugin(), left.place());
        let (path, left, at) = (plugin.join(&place), left.clone(), place.clone());
        let found = blocking(move || {
            // Somebody may have come before the lock was ours.
            if !unused(&root, &plugin)?.disks.iter().any(|other| other.place() == place) {
                return Ok(None);
            }
            let path = plugin.join(&place);
            // What is below is removed in the end: nothing of a disk may be seen there.
            while mounts::is_mounted_at(&Linux, &path)? {
                Linux.unmount(&path, MntFlags::empty())?;
            }
            // Behind the mount is what was written down before it.
            let disk: Disk = records::find(&path.join(RECORD))?.unwrap_or(left.disk);
            let in_use = uses(&root)?.known.into_iter().map(|used| (used.place(), used.disk));
            let on_disk = places(&plugin)?.into_iter().map(|used| (used.place(), used.disk));
            let others = in_use.chain(on_disk).filter(|(other, _)| *other != place).map(|(_, disk)| disk);
            Ok(Some((disk, others.collect::<Vec<_>>())))
        });
        let Some((disk, others)) = found.await? else { return Ok(()) };
        session::detach(&self.machine, &disk, &others).await?;
        let record = self.in_use_record(&at);
        let removed = blocking(move || {
            files::remove_tree(&path)?;
            match std::fs::remove_file(&record) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        });
        removed.await?;
        // Under all of its names: one source leaves out the port that another one says.
        self.in_use.release_all(&holder(&at));
        Ok(())
    }
}

/// What a pod has written down that it uses, by name of the volume.
fn uses_of(pod: &Path) -> io::Result<Vec<(String, io::Result<Used>)>> {
    let dir = pod.join("plugins").join(PLUGIN);
    let mut all = names_if_dir(&dir)?;
    all.retain(|name| !name.ends_with(records::UNFINISHED));
    let read = all.into_iter().filter_map(|name| {
        let used = records::find(&dir.join(&name)).transpose()?;
        Some((name.strip_suffix(".json").unwrap_or(&name).to_owned(), used))
    });
    Ok(read.collect())
}

/// What all pods use.
#[derive(Default)]
struct Uses {
    known: Vec<Used>,
    unknown: Vec<Unknown>,
}

/// A pod may have a disk there, and why it is not known which.
struct Unknown {
    target: PathBuf,
    why: io::Error,
}

impl Unknown {
    /// The disk that is shown there; if none is, it may be any.
    fn may_be(&self, plugin: &Path, all: &[Used]) -> io::Result<Vec<PathBuf>> {
        let mut shown = Vec::new();
        for place in all.iter().filter(|disk| !disk.is_block).map(Used::place) {
            if mounts::show_the_same(&Linux, &self.target, &plugin.join(&place))? {
                shown.push(place);
            }
        }
        Ok(if shown.is_empty() { all.iter().map(Used::place).collect() } else { shown })
    }
}

fn uses(root: &Path) -> io::Result<Uses> {
    let pods = root.join("pods");
    let mut all = Uses::default();
    for uid in names(&pods)? {
        let pod = pods.join(uid);
        if let Err(why) = all.add(&pod) {
            all.unknown.push(Unknown { target: pod, why });
        }
    }
    Ok(all)
}

impl Uses {
    fn add(&mut self, pod: &Path) -> io::Result<()> {
        let noted = uses_of(pod)?;
        for kind in ["volumes", DEVICES] {
            let dir = pod.join(kind).join(PLUGIN);
            for name in names_if_dir(&dir)? {
                if !noted.iter().any(|(known, _)| *known == name) {
                    let target = dir.join(name);
                    let why = format!("{} is of a disk that nothing is known of", target.display());
                    self.unknown.push(Unknown { target, why: io::Error::other(why) });
                }
            }
        }
        for (name, used) in noted {
            match used {
                Ok(used) => self.known.push(used),
                Err(why) => {
                    let target = pod.join("volumes").join(PLUGIN).join(name);
                    self.unknown.push(Unknown { target, why });
                }
            }
        }
        Ok(())
    }
}

/// All disks that the plug-in has a directory for, as those say by their names.
fn places(plugin: &Path) -> io::Result<Vec<Used>> {
    let mut all = Vec::new();
    for (dir, is_block) in [(plugin.to_path_buf(), false), (plugin.join(DEVICES), true)] {
        for iface in names(&dir)?.into_iter().filter(|name| name.starts_with("iface-")) {
            let disks = names(&dir.join(&iface))?;
            let disks = disks.iter().filter_map(|name| Disk::of_place(&iface, name));
            all.extend(disks.map(|disk| Used { disk, is_block }));
        }
    }
    Ok(all)
}

/// Disks that no pod uses.
#[derive(Default)]
struct Unused {
    disks: Vec<Used>,
    /// Why it is not known of others.
    unknown: Vec<String>,
}

fn unused(root: &Path, plugin: &Path) -> io::Result<Unused> {
    let all = places(plugin)?;
    if all.is_empty() {
        return Ok(Unused::default());
    }
    let Uses { known, unknown } = uses(root)?;
    let mut used: Vec<PathBuf> = known.iter().map(Used::place).collect();
    for one in &unknown {
        used.extend(one.may_be(plugin, &all)?);
    }
    let disks = all.into_iter().filter(|disk| !used.contains(&disk.place())).collect();
    Ok(Unused { disks, unknown: unknown.into_iter().map(|one| one.why.to_string()).collect() })
}

#[cfg(test)]
mod tests;
