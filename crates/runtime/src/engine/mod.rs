//! The runtime itself: all sandboxes and containers, their shims, and what is true about them.
//!
//! Flow: `service` (gRPC) -> here -> `sandbox` and `container` (what each call does) -> shims. On start, [`Engine::open`]
//! reads the records on disk and joins the shims that still run; nothing is started, stopped or lost by that.
//! Invariant: a container's state comes from the `status.json` that its shim writes; memory only mirrors it.

pub(crate) mod status;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cri::v1;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Config;
use crate::blocking::blocking;
use crate::cgroup::Cgroups;
use crate::disk_usage::Walks;
use crate::error::{Error, Result, doing};
use crate::image::{ImageStore, Mirrors};
use crate::network;
use crate::pod_config::cgroup_parent;
use crate::record::{self, ContainerRecord, SandboxRecord, StatusRecord};
use crate::shim::client::{Events, ShimClient};
use crate::shim::protocol::{Ended, Request};
use crate::shim::starter::Starter;
use crate::sys;

/// How long an unreachable shim is given before it counts as dead.
const WATCH_ATTEMPTS: u32 = 100;
const WATCH_RETRY_INTERVAL: Duration = Duration::from_millis(100);

const SWEEP_INTERVAL: Duration = Duration::from_secs(300);

/// Below the directory of this boot: what containers are started with.
const SPECS: &str = "specs";

/// Listeners this far behind miss events and hear so; the kubelet then lists.
const EVENT_BUFFER: usize = 1024;

pub(crate) struct Engine {
    pub(crate) config: Config,
    pub(crate) images: Arc<ImageStore>,
    pub(crate) mirrors: Mirrors,
    pub(crate) cgroups: Cgroups,
    pub(crate) sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
    pub(crate) containers: Mutex<HashMap<String, Arc<Container>>>,
    pub(crate) events: broadcast::Sender<v1::ContainerEventResponse>,
    pub(crate) shims: Arc<Starter>,
    pub(crate) pod_cidr: Mutex<String>,
    pub(crate) cpu_rates: cgroup::CpuRates,
    pub(crate) walks: Walks,
    /// Containers that are being made: which sandbox, and which of its containers.
    pub(crate) creating: Mutex<Vec<(String, v1::ContainerMetadata)>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

pub(crate) struct Sandbox {
    pub(crate) record: Mutex<SandboxRecord>,
    pub(crate) directory: PathBuf,
    pub(crate) shim: ShimClient,
    /// What pause was started as; see [`Sandbox::pause`].
    pub(crate) pause_pid: i32,
    /// Pause and its shim are alive.
    pub(crate) alive: AtomicBool,
    /// Stopping and removing happen once at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

pub(crate) struct Container {
    pub(crate) record: Mutex<ContainerRecord>,
    pub(crate) directory: PathBuf,
    pub(crate) status: watch::Sender<StatusRecord>,
    /// Starting, changing its limits and removing happen once at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

impl Sandbox {
    pub(crate) fn id(&self) -> String {
        self.record.lock().id.clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        let record = self.record.lock();
        record.complete && !record.stopped && self.alive.load(Ordering::Relaxed)
    }

    /// Pause's pid; 0 once it has ended, for the number may be another process's by then.
    pub(crate) fn pause(&self) -> i32 {
        if self.alive.load(Ordering::Relaxed) { self.pause_pid } else { 0 }
    }

    pub(crate) fn save(&self) -> Result<()> {
        let path = self.directory.join("sandbox.json");
        let record = self.record.lock().clone();
        record::write(&path, &record).map_err(doing(format!("writing {}", path.display())))
    }
}

impl Container {
    pub(crate) fn id(&self) -> String {
        self.record.lock().id.clone()
    }

    pub(crate) fn sandbox_id(&self) -> String {
        self.record.lock().sandbox.clone()
    }

    pub(crate) fn state(&self) -> v1::ContainerState {
        match &*self.status.borrow() {
            s if s.started_at == 0 => v1::ContainerState::ContainerCreated,
            s if s.finished_at == 0 => v1::ContainerState::ContainerRunning,
            _ => v1::ContainerState::ContainerExited,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state() == v1::ContainerState::ContainerRunning
    }

    /// Takes over what the shim wrote; says whether that was news.
    pub(crate) fn refresh(&self) -> bool {
        match record::read::<StatusRecord>(&self.directory.join("status.json")) {
            Ok(status) => self.learn(status),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => {
                tracing::warn!(container = self.id(), %error, "status is unreadable");
                false
            }
        }
    }

    /// Takes over a status; says whether it was news. The start of a container and its end are read by different tasks,
    /// and the one that read first may come here last: an end is never undone.
    fn learn(&self, status: StatusRecord) -> bool {
        self.status.send_if_modified(|known| {
            let is_older = known.finished_at != 0 && status.finished_at == 0;
            let is_news = !is_older && *known != status;
            if is_news {
                *known = status;
            }
            is_news
        })
    }

    /// Whether its shim wrote a status of which a power cut has left no more than the file's name.
    fn has_lost_status(&self) -> bool {
        let status = record::read::<StatusRecord>(&self.directory.join("status.json"));
        status.is_err_and(|error| error.kind() == std::io::ErrorKind::InvalidData)
    }

    pub(crate) fn save(&self) -> Result<()> {
        let path = self.directory.join("container.json");
        let record = self.record.lock().clone();
        record::write(&path, &record).map_err(doing(format!("writing {}", path.display())))
    }
}

impl Engine {
    /// Opens the store and joins all that runs already.
    pub(crate) async fn open(config: Config, stop: CancellationToken) -> Result<Arc<Self>> {
        let (root, state) = (&config.root, &config.state);
        for path in [root.join("sandboxes"), root.join("containers"), state.clone(), state.join(SPECS)] {
            record::private_directory(&path).map_err(doing(format!("creating {}", path.display())))?;
        }
        let mirrors = Mirrors::load(config.registries.as_deref(), config.registry_hosts.as_deref())
            .map_err(|error| Error::Invalid(error.to_string()))?;
        let executable =
            protected_executable(config.executable.as_deref()).map_err(doing("protecting our own program"))?;
        let shims = Arc::new(Starter::new(executable));
        let engine = Arc::new(Self {
            images: Arc::new(ImageStore::open(&config.root)?.unpacked_by(&shims)),
            mirrors,
            cgroups: Cgroups::detect().map_err(doing("finding cgroups"))?,
            sandboxes: Mutex::default(),
            containers: Mutex::default(),
            events: broadcast::channel(EVENT_BUFFER).0,
            shims,
            pod_cidr: Mutex::default(),
            cpu_rates: Default::default(),
            walks: Default::default(),
            creating: Default::default(),
            tasks: TaskTracker::new(),
            stop,
            config,
        });
        engine.load_containers()?;
        engine.load_sandboxes().await?;
        Ok(engine)
    }

    /// Removes what failed pulls have left, every now and then: no image has it, so nobody asks for its removal. The same for what
    /// plug-ins that were gone have left in networks.
    pub(crate) fn start_sweeping(self: &Arc<Self>) {
        let engine = self.clone();
        self.tasks.spawn(FutureExt::boxed(async move {
            loop {
                tokio::select! {
                    () = engine.stop.cancelled() => return,
                    () = tokio::time::sleep(SWEEP_INTERVAL) => {}
                }
                let swept = engine.clone();
                let sweep = move || swept.images.sweep(&|| swept.used_layers()).map_err(std::io::Error::other);
                if let Err(error) = blocking(sweep).await {
                    tracing::warn!(%error, "what failed pulls have left is not removed");
                }
                network::release_left(&engine.config).await;
            }
        }));
    }

    /// Makes a change even if the caller leaves half-way: half a sandbox would be nobody's.
    pub(crate) async fn to_the_end<T, F>(self: &Arc<Self>, change: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let ended = self.tasks.spawn(FutureExt::boxed(change(self.clone()))).await;
        ended.unwrap_or_else(|error| Err(Error::Shim(format!("a change was broken off: {error}"))))
    }

    /// Waits for background work; containers stay.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn load_containers(&self) -> Result<()> {
        for directory in subdirectories(&self.config.root.join("containers"))? {
            match record::read::<ContainerRecord>(&directory.join("container.json")) {
                Err(error) if !record::is_half_written(&error) => return Err(unreadable(&directory)(error)),
                Ok(record) => {
                    let container = Container {
                        directory: directory.clone(),
                        record: Mutex::new(record),
                        status: watch::channel(StatusRecord::default()).0,
                        changing: Default::default(),
                    };
                    container.refresh();
                    self.containers.lock().insert(container.id(), Arc::new(container));
                }
                Err(error) => {
                    // A crash in the middle of CreateContainer: nobody was ever told its id.
                    tracing::warn!(path = %directory.display(), %error, "removing half a container");
                    // The directory last: without it nobody would look for the spec.
                    if let Some(id) = directory.file_name().and_then(|name| name.to_str()) {
                        let _ = record::remove_spec(&self.spec_file(id));
                    }
                    let _ = files::remove_tree(&directory);
                }
            }
        }
        Ok(())
    }

    /// Where the spec of a container is: what it is started with.
    pub(crate) fn spec_file(&self, id: &str) -> PathBuf {
        self.config.state.join(SPECS).join(format!("{id}.json"))
    }

    /// An answer that could not be read is no answer: taking a running pod for a dead one would kill it.
    async fn load_sandboxes(self: &Arc<Self>) -> Result<()> {
        let boot_id = record::boot_id().map_err(doing("reading the boot id"))?;
        for directory in subdirectories(&self.config.root.join("sandboxes"))? {
            let record: SandboxRecord = match record::read(&directory.join("sandbox.json")) {
                Ok(record) => record,
                Err(error) if !record::is_half_written(&error) => return Err(unreadable(&directory)(error)),
                Err(error) => {
                    tracing::warn!(path = %directory.display(), %error, "removing half a sandbox");
                    // It may have had addresses, where a power cut took its record.
                    if let Some(id) = directory.file_name().and_then(|name| name.to_str())
                        && let Err(error) = network::remove(&self.config, id, &Default::default(), 0).await
                    {
                        tracing::warn!(sandbox = id, %error, "its network is not released, the next start will retry");
                        continue;
                    }
                    let _ = files::remove_tree(&directory);
                    continue;
                }
            };
            let same_boot = record.boot_id == boot_id;
            // Of an earlier boot nothing runs, and a power cut may have left no more of the shim's record than its name.
            let pause_pid = match same_boot {
                true => record::shim(&directory).map_err(unreadable(&directory))?.pause_pid,
                false => 0,
            };
            let (id, stopped) = (record.id.clone(), record.stopped);
            let sandbox = Arc::new(Sandbox {
                shim: ShimClient::new(&self.shim_socket(&id)),
                pause_pid,
                alive: AtomicBool::new(false),
                record: Mutex::new(record),
                directory,
                changing: Default::default(),
            });
            self.sandboxes.lock().insert(id, sandbox.clone());
            let joined = same_boot && !stopped && self.watch_shim(&sandbox).await.is_ok();
            if !joined {
                self.shim_lost(&sandbox);
            }
        }
        // Of these a power cut took the sandbox's record.
        let containers: Vec<_> = self.containers.lock().values().cloned().collect();
        for container in containers.iter().filter(|it| !self.sandboxes.lock().contains_key(&it.sandbox_id())) {
            self.unwatched(container);
        }
        Ok(())
    }

    pub(crate) fn shim_socket(&self, id: &str) -> PathBuf {
        self.config.state.join(format!("{}.sock", &id[..id.len().min(16)]))
    }

    /// Follows a shim: how its containers end is known here moments after it is on disk.
    pub(crate) async fn watch_shim(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let mut events = self.open_watch(sandbox).await?;
        let (engine, sandbox) = (self.clone(), sandbox.clone());
        self.tasks.spawn(FutureExt::boxed(async move {
            loop {
                let event = tokio::select! {
                    () = engine.stop.cancelled() => return,
                    event = events.next() => event,
                };
                match event {
                    Ok(Some(Ended::Container { id, status })) => engine.container_exited(&id, status),
                    Ok(Some(Ended::Pause)) => {
                        sandbox.alive.store(false, Ordering::Relaxed);
                        engine.emit(&sandbox.id(), &sandbox.id(), v1::ContainerEventType::ContainerStoppedEvent);
                    }
                    Ok(Some(Ended::Exec { .. })) => {}
                    // The connection is lost. The shim may be well: only when nobody listens any more is it gone.
                    Ok(None) | Err(_) => match engine.open_watch(&sandbox).await {
                        Ok(again) => events = again,
                        Err(_) => break,
                    },
                }
            }
            engine.shim_lost(&sandbox);
        }));
        Ok(())
    }

    /// Connects to a shim and takes over what happened before. Fails only when nobody listens at its socket: a busy
    /// shim must not be taken for a dead one, whose containers would be killed.
    async fn open_watch(&self, sandbox: &Sandbox) -> Result<Events> {
        let mut attempt = 0;
        let (session, shim) = loop {
            match (sandbox.shim.open(Request::Watch, Vec::new()).await, record::shim(&sandbox.directory)) {
                (Ok(session), Ok(shim)) => break (session, shim),
                (Err(error), _) if error.is_gone() || attempt >= WATCH_ATTEMPTS => return Err(error.into()),
                (Err(error), _) => tracing::warn!(sandbox = sandbox.id(), %error, "cannot watch its shim yet"),
                (_, Err(error)) => tracing::warn!(sandbox = sandbox.id(), %error, "cannot read its shim's record yet"),
            }
            attempt += 1;
            tokio::time::sleep(WATCH_RETRY_INTERVAL).await;
        };
        let events = session.events().map_err(doing("watching a shim"))?;
        sandbox.alive.store(shim.pause_pid > 0, Ordering::Relaxed);
        for container in self.containers_of(&sandbox.id()) {
            // Nobody was told while the connection was lost.
            if container.refresh() && container.state() == v1::ContainerState::ContainerExited {
                self.emit(&sandbox.id(), &container.id(), v1::ContainerEventType::ContainerStoppedEvent);
            }
        }
        Ok(events)
    }

    fn container_exited(&self, id: &str, status: Option<StatusRecord>) {
        let container = self.containers.lock().get(id).cloned();
        if let Some(container) = container {
            match status {
                Some(status) => container.learn(status),
                None => container.refresh(),
            };
            self.emit(&container.sandbox_id(), id, v1::ContainerEventType::ContainerStoppedEvent);
        }
    }

    /// The shim is gone, by our own order or not: nothing of the pod may go on without it.
    fn shim_lost(&self, sandbox: &Sandbox) {
        sandbox.alive.store(false, Ordering::Relaxed);
        let (id, config) = {
            let record = sandbox.record.lock();
            (record.id.clone(), record.config.clone())
        };
        self.cgroups.kill(crate::cgroup::child_path(&cgroup_parent(&config), &id));
        for container in self.containers_of(&id) {
            self.unwatched(&container);
        }
    }

    /// Nobody watches over a container: it has ended, known or not.
    fn unwatched(&self, container: &Container) {
        container.refresh();
        let is_lost = container.state() == v1::ContainerState::ContainerCreated && container.has_lost_status();
        if !container.is_running() && !is_lost {
            return;
        }
        let (cgroup, created_at) = {
            let record = container.record.lock();
            (record.cgroup.clone(), record.created_at)
        };
        self.cgroups.kill(cgroup);
        container.status.send_modify(|status| {
            if is_lost {
                status.started_at = created_at.max(1);
            }
            status.finished_at = record::now();
            status.exit_code = 137;
            status.reason = "Unknown".into();
            status.message = "the process that watched over the container is gone".into();
        });
        let status = container.status.borrow().clone();
        if let Err(error) = record::write(&container.directory.join("status.json"), &status) {
            tracing::warn!(container = container.id(), %error, "cannot record its end");
        }
        self.emit(&container.sandbox_id(), &container.id(), v1::ContainerEventType::ContainerStoppedEvent);
    }

    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        find(&self.sandboxes.lock(), id).ok_or_else(|| Error::NotFound { kind: "sandbox", id: id.into() })
    }

    pub(crate) fn container(&self, id: &str) -> Result<Arc<Container>> {
        find(&self.containers.lock(), id).ok_or_else(|| Error::NotFound { kind: "container", id: id.into() })
    }

    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        self.containers.lock().values().filter(|c| c.record.lock().sandbox == sandbox).cloned().collect()
    }

    /// Layers that containers stand on, whatever happens to their images.
    pub(crate) fn used_layers(&self) -> std::io::Result<HashSet<String>> {
        let containers: Vec<_> = self.containers.lock().values().cloned().collect();
        record::used_layers(containers.iter().map(|container| container.directory.as_path()))
    }

    /// Tells listeners of the event stream; nobody listening is fine.
    pub(crate) fn emit(&self, sandbox: &str, id: &str, kind: v1::ContainerEventType) {
        if self.events.receiver_count() == 0 {
            return;
        }
        let status = self.sandbox(sandbox).ok().map(|s| status::of_sandbox(&s));
        let containers = self.containers_of(sandbox).iter().map(|c| status::of_container(self, c)).collect::<Vec<_>>();
        let _ = self.events.send(v1::ContainerEventResponse {
            container_id: id.to_string(),
            container_event_type: kind.into(),
            created_at: record::now(),
            pod_sandbox_status: status,
            containers_statuses: containers,
        });
    }
}

/// By id, or by a beginning that only one has.
fn find<T>(map: &HashMap<String, Arc<T>>, id: &str) -> Option<Arc<T>> {
    if let Some(found) = map.get(id) {
        return Some(found.clone());
    }
    if id.is_empty() {
        return None;
    }
    let mut matches = map.iter().filter(|(key, _)| key.starts_with(id));
    match (matches.next(), matches.next()) {
        (Some((_, found)), None) => Some(found.clone()),
        _ => None,
    }
}

fn subdirectories(path: &Path) -> Result<Vec<PathBuf>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?;
        Ok(entries.iter().map(fs::DirEntry::path).filter(|path| path.is_dir()).collect())
    };
    list().map_err(unreadable(path))
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    doing(format!("reading {}", path.display()))
}

/// Our program through a read-only mount that exists in no namespace (so nobody can remount it), or where the kernel
/// cannot do that, as a sealed copy in memory. A container that reaches `/proc/…/exe` finds something it cannot write.
fn protected_executable(path: Option<&Path>) -> std::io::Result<OwnedFd> {
    // Not the path behind the link: that may be another program by now, after an update.
    let path = path.unwrap_or(Path::new("/proc/self/exe"));
    let c_path = sys::c_path(path)?;
    let mounted = sys::clone_mount(&c_path).and_then(|fd| {
        sys::set_mount_readonly(std::os::fd::AsFd::as_fd(&fd), false)?;
        Ok(fd)
    });
    match mounted {
        Ok(fd) => Ok(fd),
        Err(_) => sys::sealed_memfd(c"cox", &mut fs::File::open(path)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever starts a container reads its status when the start was answered. Where that reader is held up between the
    /// file and memory, one that ends at once is known as ended before.
    #[test]
    fn an_end_is_not_undone_by_a_reader_that_came_late() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("status.json");
        let container = Arc::new(Container {
            record: Mutex::default(),
            directory: directory.path().to_path_buf(),
            status: watch::channel(StatusRecord::default()).0,
            changing: Default::default(),
        });
        let running = StatusRecord { pid: 1, started_at: 1, ..Default::default() };
        let ended = StatusRecord { finished_at: 2, exit_code: 3, ..running.clone() };

        // A reader of a pipe has the file open, and what is in it only when someone writes.
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let late = container.clone();
        let reader = std::thread::spawn(move || late.refresh());
        let mut pipe = fs::OpenOptions::new().write(true).open(&file).unwrap();
        record::write(&file, &ended).unwrap();
        assert!(container.refresh());
        serde_json::to_writer(&mut pipe, &running).unwrap();
        drop(pipe);
        assert!(!reader.join().unwrap(), "what was read before the end is no news");
        assert_eq!(*container.status.borrow(), ended);
        assert_eq!(container.state(), v1::ContainerState::ContainerExited);
        assert!(!container.refresh(), "nothing new");
    }

    /// A power cut may leave names of records whose text never came to the disk. The node starts all the same, and nothing that such a
    /// record was of runs, or is started a second time.
    #[tokio::test]
    async fn records_that_a_power_cut_emptied_keep_nobody_from_starting() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let write = |path: String, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sandboxes/known/sandbox.json".into(), r#"{"id": "known", "complete": true, "boot_id": "earlier"}"#);
        write("sandboxes/known/shim.json".into(), "");
        write("sandboxes/lost/sandbox.json".into(), "");
        let (running, ended) = (r#"{"started_at": 1}"#, r#"{"started_at": 1, "finished_at": 2, "exit_code": 3}"#);
        let containers = [
            ("created", "known", None, v1::ContainerState::ContainerCreated, 0),
            ("ran", "known", Some(running), v1::ContainerState::ContainerExited, 137),
            ("ended", "known", Some(ended), v1::ContainerState::ContainerExited, 3),
            ("emptied", "known", Some(""), v1::ContainerState::ContainerExited, 137),
            ("alone", "lost", Some(running), v1::ContainerState::ContainerExited, 137),
        ];
        for (id, sandbox, status, ..) in &containers {
            let record = format!(r#"{{"id": "{id}", "sandbox": "{sandbox}", "cgroup": "/cox-tests/of-no-container"}}"#);
            write(format!("containers/{id}/container.json"), &record);
            if let Some(status) = status {
                write(format!("containers/{id}/status.json"), status);
            }
        }
        // {"name":"n","type":"gone"}
        let noted = r#"{"containerId": "lost", "ifName": "eth0", "config": "eyJuYW1lIjoibiIsInR5cGUiOiJnb25lIn0="}"#;
        write("cni/results/n-lost-eth0".into(), noted);
        let mut config = Config::new(root, root, root.join("cri.sock"));
        config.cni_conf_dir = root.join("net.d");
        config.cni_bin_dirs = Vec::new();
        config.cni_cache_dir = Some(root.join("cni"));
        let engine = Arc::new(Engine {
            config,
            images: Arc::new(ImageStore::open(root).unwrap()),
            mirrors: Default::default(),
            cgroups,
            sandboxes: Default::default(),
            containers: Default::default(),
            events: broadcast::channel(1).0,
            shims: Arc::new(Starter::new(fs::File::open("/dev/null").unwrap().into())),
            pod_cidr: Default::default(),
            cpu_rates: Default::default(),
            walks: Default::default(),
            creating: Default::default(),
            tasks: Default::default(),
            stop: Default::default(),
        });
        engine.load_containers().unwrap();
        engine.load_sandboxes().await.unwrap();
        for (id, _, _, state, exit_code) in containers {
            let container = engine.container(id).unwrap();
            assert_eq!((container.state(), container.status.borrow().exit_code), (state, exit_code), "{id}");
        }
        assert!(!root.join("sandboxes/lost").exists());
        assert!(root.join("cni/results/n-lost-eth0.left").exists(), "its plug-in was asked for");
    }
}
