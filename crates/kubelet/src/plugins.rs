//! Plug-ins that register themselves: a socket appears in a directory, its owner is asked who it is, taken in, and told so.
//!
//! Flow: a directory (watched) -> one task per socket -> `GetInfo` -> the driver itself -> CSINode -> `NotifyRegistrationStatus`.
//! A plug-in that hangs, lies or has another's name is refused, told why, and asked again after a while; that is one event,
//! and nobody else's registration waits for it.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::EventRecorder;
use csi::registration::{CSI_PLUGIN, InfoRequest, PluginInfo, RegistrationClient, RegistrationStatus};
use csi::tonic::{Code, Status};
use csi::v1;
use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::file_watch::FileWatch;
use crate::node;
use crate::volumes::csi::{Csi, Driver, NodeInfoError, Refused, highest_version};

/// How long a plug-in has to say who it is; drivers have longer for their own calls.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(120);
/// What is told of a plug-in that does not answer, or not as plug-ins do.
const NO_INFO: &str = "RegisterPlugin error -- failed to get plugin info using RPC GetInfo";
/// What a directory may hold at most: whoever can write to it is root, and may still be mistaken.
const MAX_SOCKETS: usize = 128;
const MAX_DEPTH: usize = 3;

pub(crate) struct Plugins {
    pub(crate) csi: Arc<Csi>,
    pub(crate) root: PathBuf,
    /// What plug-ins may know `root` as.
    pub(crate) usual_root: PathBuf,
    pub(crate) node_name: String,
    pub(crate) recorder: EventRecorder,
    pub(crate) call_timeout: Duration,
    pub(crate) tasks: TaskTracker,
    /// One driver comes or goes at a time: two of a name may do both.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

/// A driver that has said all about itself.
struct Met {
    driver: Driver,
    info: v1::NodeGetInfoResponse,
}

/// A socket in its present life: one that is made anew is another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity(u64, i64, i64);

struct Known {
    identity: Identity,
    gone: CancellationToken,
    task: JoinHandle<()>,
}

/// Why a plug-in is not registered.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    /// It does not answer, or not as plug-ins do.
    #[error("{NO_INFO} at socket {}, err: {}", socket.display(), csi::describe(status))]
    NoInfo { socket: PathBuf, status: Status },
    #[error("no handler registered for plugin type: {kind} at socket {}", socket.display())]
    Kind { kind: String, socket: PathBuf },
    #[error("invalid driver name {name:?}: {why}")]
    Name { name: String, why: String },
    #[error("RegisterPlugin for CSI driver {name:?} failed. {why}")]
    Version { name: String, why: VersionError },
    #[error("invalid endpoint {0:?}: must be an absolute path")]
    Endpoint(String),
    #[error("plugin registered as {name:?}, but calls itself {own:?}")]
    OtherName { name: String, own: String },
    /// What the driver itself answered.
    #[error("{}", csi::describe(.0))]
    Driver(#[from] Status),
    #[error(transparent)]
    Node(#[from] NodeInfoError),
}

/// Why a driver's versions do not do.
#[derive(Debug, thiserror::Error)]
enum VersionError {
    #[error("Plugin returned an empty list for supported versions")]
    None,
    #[error("None of the versions specified {0:?} are supported")]
    Unsupported(Vec<String>),
    #[error(transparent)]
    Refused(#[from] Refused),
}

impl RegistrationError {
    /// A socket is there a moment before somebody listens, and a driver may be before its node.
    fn is_soon_over(&self) -> bool {
        match self {
            RegistrationError::NoInfo { status, .. } | RegistrationError::Driver(status) => {
                status.code() == Code::Unavailable
            }
            RegistrationError::Node(error) => matches!(error, NodeInfoError::NoNode(_)),
            _ => false,
        }
    }

    /// What an event is about: each cause has one. A plug-in that cannot say who it is says that in other words each time.
    fn event_cause(&self) -> String {
        match self {
            RegistrationError::NoInfo { .. } => NO_INFO.to_owned(),
            other => other.to_string(),
        }
    }
}

impl Plugins {
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let directory = self.root.join("plugins_registry");
        let watch = FileWatch::of_directories();
        let mut known: HashMap<PathBuf, Known> = HashMap::new();
        loop {
            let mut seen = HashMap::new();
            look(&directory, MAX_DEPTH, &watch, &mut seen);
            known.retain(|path, known| {
                let is_there = seen.contains_key(path);
                if !is_there {
                    known.gone.cancel();
                }
                is_there
            });
            for (path, identity) in seen {
                let before = known.remove(&path);
                if let Some(same) = before.as_ref().filter(|before| before.identity == identity) {
                    let Known { identity, .. } = *same;
                    known.extend(before.map(|before| (path, Known { identity, ..before })));
                    continue;
                }
                let previous = before.map(|before| {
                    before.gone.cancel();
                    before.task
                });
                let (this, gone, place) = (self.clone(), stop.child_token(), path.clone());
                let (until, is_over) = (gone.clone(), stop.clone());
                let task = self.tasks.spawn(FutureExt::boxed(async move {
                    if let Some(previous) = previous {
                        // Its successor comes after it has left.
                        let _ = previous.await;
                    }
                    this.serve(&place, until, is_over).await;
                }));
                known.insert(path, Known { identity, gone, task });
            }
            tokio::select! {
                () = stop.cancelled() => return,
                _ = watch.changed() => {}
            }
        }
    }

    /// Takes a plug-in in and keeps it until its socket is gone.
    async fn serve(self: Arc<Self>, socket: &Path, gone: CancellationToken, stop: CancellationToken) {
        let mut retry = client::backoff::Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let (mut last_cause, mut is_first) = (None, true);
        let nodes = self.csi.nodes();
        let name = loop {
            let failed = match self.register(socket, &gone, &stop).await {
                None => return,
                Some(Ok(name)) => break name,
                Some(Err(failed)) => failed,
            };
            let is_early = std::mem::replace(&mut is_first, false) && failed.is_soon_over();
            tracing::warn!(socket = %socket.display(), error = %failed, "plug-in not registered, will retry");
            let cause = failed.event_cause();
            if !is_early && last_cause.as_ref() != Some(&cause) {
                let message = format!("plugin at {} not registered: {failed}", socket.display());
                self.recorder.warning(&node::reference(&self.node_name), "FailedPluginRegistration", message);
                last_cause = Some(cause);
            }
            tokio::select! {
                () = gone.cancelled() => return,
                () = tokio::time::sleep(retry.next_delay()) => {}
            }
        };
        tracing::info!(driver = name, socket = %socket.display(), "CSI driver registered");
        tokio::select! {
            () = gone.cancelled() => {}
            () = self.csi.follow(&name, nodes) => {}
        }
        // A kubelet that stops leaves everything as it is.
        if stop.is_cancelled() || !self.csi.drivers.remove(&name, socket) {
            return;
        }
        tracing::info!(driver = name, "CSI driver is gone");
        // Whoever comes to the same place does not wait for that.
        let tasks = self.tasks.clone();
        tasks.spawn(FutureExt::boxed(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.withdraw(&name) => {}
            }
        }));
    }

    /// Has the API hear that a driver is gone.
    async fn withdraw(&self, name: &str) {
        let mut retry = client::backoff::Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        while let Err(error) = self.uninstall(name).await {
            tracing::warn!(driver = name, %error, "CSI driver that is gone is still in the CSINode, will retry");
            tokio::time::sleep(retry.next_delay()).await;
        }
    }

    async fn uninstall(&self, name: &str) -> Result<(), NodeInfoError> {
        let _turn = self.turn.lock().await;
        match self.csi.drivers.get(name) {
            // Another has come: what the API has is its own.
            Ok(_) => Ok(()),
            Err(_) => self.csi.uninstall(name).await,
        }
    }

    /// Asks a plug-in who it is, and tells it what came of that. None if it is gone before, or the kubelet stops.
    async fn register(
        &self,
        socket: &Path,
        gone: &CancellationToken,
        stop: &CancellationToken,
    ) -> Option<Result<String, RegistrationError>> {
        let plugin = RegistrationClient::new(csi::channel(socket), ANSWER_TIMEOUT);
        let asked = async {
            let info = plugin.get_info(InfoRequest {}).await?;
            let met = self.meet(&info, socket).await;
            Ok::<_, Status>((info.name, met))
        };
        let asked = tokio::select! {
            () = gone.cancelled() => return None,
            asked = asked => asked,
        };
        let (name, met) = match asked {
            Ok(asked) => asked,
            Err(status) => return Some(Err(RegistrationError::NoInfo { socket: socket.to_owned(), status })),
        };
        let taken = match met {
            // Not given up half way: one that is gone by the end is taken out again.
            Ok(met) => tokio::select! {
                () = stop.cancelled() => return None,
                taken = self.admit(met) => taken,
            },
            Err(refused) => Err(refused),
        };
        let status = RegistrationStatus {
            plugin_registered: taken.is_ok(),
            error: taken
                .as_ref()
                .err()
                .map(|error| format!("RegisterPlugin error -- plugin registration failed with err: {error}"))
                .unwrap_or_default(),
        };
        // A plug-in that does not listen is registered all the same.
        tokio::select! {
            () = gone.cancelled() => {}
            told = plugin.notify_registration_status(status) => {
                if let Err(status) = told {
                    let error = csi::describe(&status);
                    tracing::warn!(socket = %socket.display(), error, "plug-in not told of its registration");
                }
            }
        }
        Some(taken.map(|()| name))
    }

    /// Hears all that a driver says about itself, and whether it can be taken in.
    async fn meet(&self, info: &PluginInfo, socket: &Path) -> Result<Met, RegistrationError> {
        if info.r#type != CSI_PLUGIN {
            return Err(RegistrationError::Kind { kind: info.r#type.clone(), socket: socket.to_owned() });
        }
        let name = &info.name;
        if let Some(why) = api::validation::dns1123_subdomain(&name.to_lowercase()).into_iter().next() {
            return Err(RegistrationError::Name { name: name.clone(), why });
        }
        if name.len() > 63 {
            return Err(RegistrationError::Name {
                name: name.clone(),
                why: "must be no more than 63 characters".to_owned(),
            });
        }
        let refused = |why: VersionError| RegistrationError::Version { name: name.clone(), why };
        let version = match (info.supported_versions.as_slice(), highest_version(&info.supported_versions)) {
            ([], _) => return Err(refused(VersionError::None)),
            (given, None) => return Err(refused(VersionError::Unsupported(given.to_vec()))),
            (_, Some(version)) => version,
        };
        if let Some(why) = self.csi.drivers.refuses(name, socket, version) {
            return Err(refused(why.into()));
        }
        let (endpoint, seen_root) = match info.endpoint.as_str() {
            "" => (socket.to_path_buf(), &self.root),
            endpoint => self.place(csi::socket_path(Path::new(endpoint))),
        };
        if !endpoint.is_absolute() {
            return Err(RegistrationError::Endpoint(info.endpoint.clone()));
        }
        let clients = csi::Clients::lazy(&endpoint).timeout(self.call_timeout);
        let ask = clients.clone().timeout(self.call_timeout.min(ANSWER_TIMEOUT));
        let own = ask.identity.get_plugin_info(v1::GetPluginInfoRequest {}).await?;
        if own.name != *name {
            return Err(RegistrationError::OtherName { name: name.clone(), own: own.name });
        }
        let abilities = ask.node.node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await?;
        let info = clients.node.node_get_info(v1::NodeGetInfoRequest {}).await?;
        let driver = Driver {
            name: name.clone(),
            registration: socket.to_path_buf(),
            clients,
            version,
            abilities,
            roots: (self.root.clone(), seen_root.clone()),
        };
        Ok(Met { driver, info })
    }

    /// Takes a driver in, unless another of its name has come meanwhile.
    async fn admit(&self, Met { driver, info }: Met) -> Result<(), RegistrationError> {
        let name = driver.name.clone();
        let _turn = self.turn.lock().await;
        if let Some(why) = self.csi.drivers.refuses(&name, &driver.registration, driver.version) {
            return Err(RegistrationError::Version { name, why: why.into() });
        }
        self.csi.install(&name, &info).await?;
        self.csi.drivers.insert(driver);
        self.csi.measure_soon(&name);
        Ok(())
    }

    /// Where an endpoint is on this node, and what its driver knows the kubelet's directory as: one that names upstream's place
    /// has ours mounted there.
    fn place(&self, endpoint: PathBuf) -> (PathBuf, &PathBuf) {
        let inside = endpoint.strip_prefix(&self.usual_root).map(|inner| self.root.join(inner));
        match inside {
            Ok(inside) if inside.exists() => (inside, &self.usual_root),
            _ => (endpoint, &self.root),
        }
    }
}

/// Finds sockets below a directory, and has it watched.
fn look(directory: &Path, depth: usize, watch: &FileWatch, seen: &mut HashMap<PathBuf, Identity>) {
    watch.add_directory(directory);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Ok(meta) = entry.path().symlink_metadata() else { continue };
        if name.to_string_lossy().starts_with('.') || seen.len() >= MAX_SOCKETS {
            continue;
        }
        if meta.is_dir() && depth > 1 {
            look(&entry.path(), depth - 1, watch, seen);
        } else if meta.file_type().is_socket() {
            let identity = Identity(meta.ino(), meta.ctime(), meta.ctime_nsec());
            seen.insert(entry.path(), identity);
        }
    }
}
