//! A small CSI driver that really mounts, can be told to fail, and keeps a ledger of every call.
//!
//! Volumes are directories; staging and publishing are bind mounts, made and undone so that a repeated call changes nothing,
//! as the specification asks. A block volume is a device that the test names.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use csi::registration::{
    CSI_PLUGIN, InfoRequest, PluginInfo, Registration, RegistrationServer, RegistrationStatus,
    RegistrationStatusResponse,
};
use csi::tonic::{Code, Status};
use csi::v1::{self, AccessType, NodeRpc, Unit};
use csi::{Answer, Socket};
use nix::mount::{MsFlags, mount, umount};
use tokio_util::sync::CancellationToken;

/// What the driver does instead of what it was asked for.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Says so, and does nothing.
    Refuse(Code, String),
    /// Never answers, and does nothing.
    Hang,
    /// Does it, but the answer is lost: it will be asked a second time.
    LoseAnswer,
    /// Never answers, and does it when its caller has given up long since: when the test says so.
    Late,
}

/// A moment of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing has been done yet.
    Before,
    /// All has been done, and nobody was told.
    After,
}

/// One call as it came and how it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub call: &'static str,
    pub volume: String,
    pub path: String,
    /// In flight until it ends.
    pub code: Option<Code>,
}

/// What a driver is like.
#[derive(Clone, Debug)]
pub struct Options {
    pub name: String,
    /// What it says its name is when it registers.
    pub registers_as: Option<String>,
    /// Where it says it is, if not where it registers.
    pub endpoint: Option<PathBuf>,
    pub versions: Vec<String>,
    pub abilities: Vec<NodeRpc>,
    pub node_id: String,
    pub max_volumes: i64,
    pub topology: BTreeMap<String, String>,
    /// What block volumes are.
    pub device: PathBuf,
}

impl Options {
    pub fn new(name: &str) -> Self {
        Options {
            name: name.into(),
            registers_as: None,
            endpoint: None,
            versions: vec!["1.0.0".into()],
            abilities: vec![
                NodeRpc::StageUnstageVolume,
                NodeRpc::GetVolumeStats,
                NodeRpc::ExpandVolume,
                NodeRpc::VolumeCondition,
            ],
            node_id: "node-of-the-driver".into(),
            max_volumes: 7,
            topology: BTreeMap::from([(format!("{name}/zone"), "z1".to_string())]),
            device: "/dev/zero".into(),
        }
    }
}

/// Says whether the call goes on; else it never ends.
type Hook = Box<dyn Fn(&'static str, When) -> bool + Send + Sync>;

#[derive(Default)]
struct Record {
    ledger: Vec<Entry>,
    faults: HashMap<&'static str, Fault>,
    /// Requests as they came, by call.
    publishes: Vec<v1::NodePublishVolumeRequest>,
    stages: Vec<v1::NodeStageVolumeRequest>,
    expansions: Vec<v1::NodeExpandVolumeRequest>,
    registrations: Vec<RegistrationStatus>,
    condition: v1::VolumeCondition,
    /// Calls under way, by volume: more than one is the caller's mistake.
    running: HashMap<String, usize>,
    overlaps: Vec<String>,
    hook: Option<Arc<Hook>>,
    /// What it is late with.
    late: Vec<Box<dyn FnOnce() + Send>>,
}

pub struct Driver {
    options: Options,
    /// Holds the volumes.
    dir: PathBuf,
    record: Mutex<Record>,
}

/// A driver that serves until this is dropped.
pub struct Served {
    pub driver: Arc<Driver>,
    pub socket: PathBuf,
    /// Its own threads, which end like those of a process; there until it is dropped.
    threads: Option<tokio::runtime::Runtime>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

impl Served {
    /// Ends it as SIGKILL would: calls break off, and the socket stays.
    pub fn kill(self) {
        drop(self);
    }

    /// Ends it and takes its socket away, as a driver that is uninstalled does.
    pub fn leave(self) {
        std::fs::remove_file(&self.socket).unwrap();
    }
}

impl Driver {
    pub fn new(dir: &Path, options: Options) -> Arc<Self> {
        std::fs::create_dir_all(dir).unwrap();
        Arc::new(Driver { options, dir: dir.to_path_buf(), record: Mutex::default() })
    }

    /// Serves the driver and its registration on one socket below `registry`.
    pub fn serve(self: &Arc<Self>, registry: &Path) -> Served {
        let socket = registry.join(format!("{}-{:x}.sock", self.options.name, self.dir.as_os_str().len()));
        let services = csi::router(self.clone()).add_service(RegistrationServer::new(self.clone()));
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bound = {
            let _inside = threads.enter();
            Socket::bind(&socket).unwrap()
        };
        threads.spawn(bound.serve(services, CancellationToken::new()));
        Served { driver: self.clone(), socket, threads: Some(threads) }
    }

    /// From now on; `None` mends it.
    pub fn set_fault(&self, call: &'static str, fault: Option<Fault>) {
        let mut record = self.record.lock().unwrap();
        match fault {
            Some(fault) => record.faults.insert(call, fault),
            None => record.faults.remove(call),
        };
    }

    /// Does all that it is late with; returns how much that was.
    pub fn catch_up(&self) -> usize {
        let late = std::mem::take(&mut self.record.lock().unwrap().late);
        let count = late.len();
        late.into_iter().for_each(|work| work());
        count
    }

    /// Called at both moments of every call; a call that is not to go on never ends.
    pub fn set_hook(&self, hook: impl Fn(&'static str, When) -> bool + Send + Sync + 'static) {
        self.record.lock().unwrap().hook = Some(Arc::new(Box::new(hook)));
    }

    pub fn set_condition(&self, abnormal: bool, message: &str) {
        self.record.lock().unwrap().condition = v1::VolumeCondition { abnormal, message: message.into() };
    }

    pub fn ledger(&self) -> Vec<Entry> {
        self.record.lock().unwrap().ledger.clone()
    }

    /// How often a call came for a volume.
    pub fn count(&self, call: &str, volume: &str) -> usize {
        self.ledger().iter().filter(|entry| entry.call == call && entry.volume == volume).count()
    }

    pub fn publishes(&self) -> Vec<v1::NodePublishVolumeRequest> {
        self.record.lock().unwrap().publishes.clone()
    }

    pub fn stages(&self) -> Vec<v1::NodeStageVolumeRequest> {
        self.record.lock().unwrap().stages.clone()
    }

    pub fn expansions(&self) -> Vec<v1::NodeExpandVolumeRequest> {
        self.record.lock().unwrap().expansions.clone()
    }

    /// What a kubelet said of the registration.
    pub fn registrations(&self) -> Vec<RegistrationStatus> {
        self.record.lock().unwrap().registrations.clone()
    }

    /// Volumes for which two calls were under way at once.
    pub fn overlaps(&self) -> Vec<String> {
        self.record.lock().unwrap().overlaps.clone()
    }

    /// The files of a volume.
    pub fn volume(&self, id: &str) -> PathBuf {
        self.dir.join("volumes").join(id)
    }

    fn answer<R>(&self, result: R) -> Answer<'_, R>
    where
        R: Send + 'static,
    {
        Box::pin(std::future::ready(Ok(result)))
    }

    /// Enters a call into the ledger and does it, or what a fault says.
    fn perform<R: Default + Send + 'static>(
        &self,
        call: &'static str,
        volume: String,
        path: String,
        work: impl FnOnce() -> nix::Result<R> + Send + 'static,
    ) -> Answer<'_, R> {
        Box::pin(async move {
            let (index, fault, hook) = {
                let mut record = self.record.lock().unwrap();
                record.ledger.push(Entry { call, volume: volume.clone(), path, code: None });
                let running = record.running.entry(volume.clone()).or_default();
                *running += 1;
                if *running > 1 {
                    record.overlaps.push(format!("{call} {volume}"));
                }
                (record.ledger.len() - 1, record.faults.get(call).cloned(), record.hook.clone())
            };
            let _running = Leave(self, volume);
            let goes_on = |when| hook.as_ref().is_none_or(|hook| hook(call, when));
            if !goes_on(When::Before) {
                std::future::pending::<()>().await;
            }
            let result = match fault {
                Some(Fault::Refuse(code, message)) => Err(Status::new(code, message)),
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::Late) => {
                    self.record.lock().unwrap().late.push(Box::new(|| drop(work().unwrap())));
                    std::future::pending().await
                }
                fault => {
                    let done = work().map_err(|error| Status::internal(error.to_string()));
                    if !goes_on(When::After) {
                        std::future::pending::<()>().await;
                    }
                    match fault {
                        Some(Fault::LoseAnswer) => done.and(Err(Status::unavailable("the answer is lost"))),
                        _ => done,
                    }
                }
            };
            let code = result.as_ref().err().map_or(Code::Ok, Status::code);
            self.record.lock().unwrap().ledger[index].code = Some(code);
            result
        })
    }
}

/// A call that ends, also when its caller hangs up.
struct Leave<'a>(&'a Driver, String);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.0.record.lock().unwrap().running.get_mut(&self.1) {
            *running -= 1;
        }
    }
}

/// How many mounts are at a path, one over the other.
pub fn mounts_at(path: &Path) -> usize {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.split(' ').nth(4).map(Path::new) == Some(&*real)).count()
}

/// Mount points below a directory.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|path| path.starts_with(dir)).collect()
}

/// Binds once, however often it is asked.
fn bind(from: &Path, to: &Path, read_only: bool) -> nix::Result<()> {
    if mounts_at(to) > 0 {
        return Ok(());
    }
    let failed = |_| nix::errno::Errno::EIO;
    match from.is_dir() {
        true => std::fs::create_dir_all(to).map_err(failed)?,
        false => {
            to.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
            drop(std::fs::OpenOptions::new().create(true).append(true).open(to).map_err(failed)?);
        }
    }
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, to, None::<&str>, flags, None::<&str>)?;
    }
    Ok(())
}

fn unbind(at: &Path) -> nix::Result<()> {
    match mounts_at(at) {
        0 => {}
        _ => umount(at)?,
    }
    // The place as well, as drivers do.
    let _ = if at.is_dir() { std::fs::remove_dir(at) } else { std::fs::remove_file(at) };
    Ok(())
}

fn is_block(capability: Option<&v1::VolumeCapability>) -> bool {
    matches!(capability.and_then(|capability| capability.access_type.as_ref()), Some(AccessType::Block(_)))
}

impl v1::Identity for Driver {
    fn get_plugin_info(&self, _: v1::GetPluginInfoRequest) -> Answer<'_, v1::GetPluginInfoResponse> {
        let name = self.options.name.clone();
        self.answer(v1::GetPluginInfoResponse { name, vendor_version: "1".into(), ..Default::default() })
    }

    fn get_plugin_capabilities(
        &self,
        _: v1::GetPluginCapabilitiesRequest,
    ) -> Answer<'_, v1::GetPluginCapabilitiesResponse> {
        self.answer(v1::GetPluginCapabilitiesResponse::default())
    }

    fn probe(&self, _: v1::ProbeRequest) -> Answer<'_, v1::ProbeResponse> {
        self.answer(v1::ProbeResponse { ready: Some(v1::BoolValue { value: true }) })
    }
}

impl v1::Controller for Driver {}

impl v1::Node for Driver {
    fn node_get_info(&self, _: v1::NodeGetInfoRequest) -> Answer<'_, v1::NodeGetInfoResponse> {
        let options = self.options.clone();
        self.perform("NodeGetInfo", String::new(), String::new(), move || {
            Ok(v1::NodeGetInfoResponse {
                node_id: options.node_id,
                max_volumes_per_node: options.max_volumes,
                accessible_topology: Some(v1::Topology { segments: options.topology }),
            })
        })
    }

    fn node_get_capabilities(&self, _: v1::NodeGetCapabilitiesRequest) -> Answer<'_, v1::NodeGetCapabilitiesResponse> {
        let capabilities = self.options.abilities.iter().map(|rpc| (*rpc).into()).collect();
        self.answer(v1::NodeGetCapabilitiesResponse { capabilities })
    }

    fn node_stage_volume(&self, request: v1::NodeStageVolumeRequest) -> Answer<'_, v1::NodeStageVolumeResponse> {
        self.record.lock().unwrap().stages.push(request.clone());
        let (from, to) = (self.volume(&request.volume_id), PathBuf::from(&request.staging_target_path));
        let block = is_block(request.volume_capability.as_ref());
        self.perform("NodeStageVolume", request.volume_id, request.staging_target_path, move || {
            std::fs::create_dir_all(&from).map_err(|_| nix::errno::Errno::EIO)?;
            if !block {
                bind(&from, &to, false)?;
            }
            Ok(v1::NodeStageVolumeResponse {})
        })
    }

    fn node_unstage_volume(&self, request: v1::NodeUnstageVolumeRequest) -> Answer<'_, v1::NodeUnstageVolumeResponse> {
        let at = PathBuf::from(&request.staging_target_path);
        self.perform("NodeUnstageVolume", request.volume_id, request.staging_target_path, move || {
            unbind(&at).map(|()| v1::NodeUnstageVolumeResponse {})
        })
    }

    fn node_publish_volume(&self, request: v1::NodePublishVolumeRequest) -> Answer<'_, v1::NodePublishVolumeResponse> {
        self.record.lock().unwrap().publishes.push(request.clone());
        let own = self.volume(&request.volume_id);
        let from = match (is_block(request.volume_capability.as_ref()), request.staging_target_path.as_str()) {
            (true, _) => self.options.device.clone(),
            (false, "") => own.clone(),
            (false, staged) => PathBuf::from(staged),
        };
        let to = PathBuf::from(&request.target_path);
        self.perform("NodePublishVolume", request.volume_id, request.target_path, move || {
            std::fs::create_dir_all(&own).map_err(|_| nix::errno::Errno::EIO)?;
            bind(&from, &to, request.readonly && from.is_dir()).map(|()| v1::NodePublishVolumeResponse {})
        })
    }

    fn node_unpublish_volume(
        &self,
        request: v1::NodeUnpublishVolumeRequest,
    ) -> Answer<'_, v1::NodeUnpublishVolumeResponse> {
        let at = PathBuf::from(&request.target_path);
        self.perform("NodeUnpublishVolume", request.volume_id, request.target_path, move || {
            unbind(&at).map(|()| v1::NodeUnpublishVolumeResponse {})
        })
    }

    fn node_expand_volume(&self, request: v1::NodeExpandVolumeRequest) -> Answer<'_, v1::NodeExpandVolumeResponse> {
        self.record.lock().unwrap().expansions.push(request.clone());
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        self.perform("NodeExpandVolume", request.volume_id, request.volume_path, move || {
            Ok(v1::NodeExpandVolumeResponse { capacity_bytes })
        })
    }

    fn node_get_volume_stats(
        &self,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Answer<'_, v1::NodeGetVolumeStatsResponse> {
        let condition = self.record.lock().unwrap().condition.clone();
        let has_condition = self.options.abilities.contains(&NodeRpc::VolumeCondition);
        self.perform("NodeGetVolumeStats", request.volume_id, request.volume_path, move || {
            let usage =
                |unit: Unit, total, used| v1::VolumeUsage { unit: unit as i32, total, used, available: total - used };
            Ok(v1::NodeGetVolumeStatsResponse {
                usage: vec![usage(Unit::Bytes, 4096, 1024), usage(Unit::Inodes, 100, 10)],
                volume_condition: has_condition.then_some(condition),
            })
        })
    }
}

impl Registration for Driver {
    fn get_info(&self, _: InfoRequest) -> Answer<'_, PluginInfo> {
        let options = self.options.clone();
        self.perform("GetInfo", String::new(), String::new(), move || {
            Ok(PluginInfo {
                r#type: CSI_PLUGIN.into(),
                name: options.registers_as.unwrap_or(options.name),
                endpoint: options.endpoint.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
                supported_versions: options.versions,
            })
        })
    }

    fn notify_registration_status(&self, status: RegistrationStatus) -> Answer<'_, RegistrationStatusResponse> {
        self.record.lock().unwrap().registrations.push(status);
        self.answer(RegistrationStatusResponse {})
    }
}
