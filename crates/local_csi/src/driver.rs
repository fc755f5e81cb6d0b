//! The driver's services. Names become folders, so they are looked at before they do.

mod checks;
mod lists;
mod room;

use std::any::Any;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::node_volumes::TOPOLOGY_KEY;
use csi::Answer;
use csi::registration::{
    CSI_PLUGIN, InfoRequest, PluginInfo, Registration, RegistrationStatus, RegistrationStatusResponse,
};
use csi::tonic::Status;
use csi::v1::{self, ContentSource, ControllerRpc, NodeRpc, ServiceType, Unit, VolumeExpansionType};
use nix::mount::{MsFlags, mount, umount};

use crate::NAME;
use crate::counts::Counts;
use crate::mounts::{is_mount_point, is_shown_at, is_used, resolved};
use crate::quota::{Kernel, Projects, Quotas};
use crate::store::{Folders, Snapshot, Volume};

pub(crate) use checks::capabilities;
use checks::{check_capabilities, check_id, check_range, check_target, mount_flags, pending};

/// Whoever asks has a count that is not older, if counting does not take long.
const MAX_COUNT_AGE: Duration = Duration::from_secs(50);

pub struct Driver {
    node: String,
    dir: PathBuf,
    volumes: Folders,
    snapshots: Folders,
    projects: Projects,
    counts: Counts,
    /// What is being worked on, and what volumes that are being made were promised.
    busy: Arc<Mutex<Busy>>,
}

/// A copy may take hours: whoever works on a folder says so here, and everybody else goes on.
#[derive(Default)]
struct Busy {
    /// By folder, or place where one is shown: how many read it, or that one changes it.
    folders: HashMap<PathBuf, Use>,
    /// By id of the volume.
    promised: HashMap<String, i64>,
    /// The volumes that are there, once they have been read: nobody else makes or removes any.
    made: Option<HashMap<String, Volume>>,
}

enum Use {
    Read(usize),
    Changed,
}

/// Ends a use of a folder when it is dropped. It belongs to the work: that goes on when nobody waits for it any more, and nobody
/// else may begin the same beside it.
struct Held(Arc<Mutex<Busy>>, PathBuf);

impl Drop for Held {
    fn drop(&mut self) {
        let mut busy = lock(&self.0);
        match busy.folders.get_mut(&self.1) {
            Some(Use::Read(readers)) if *readers > 1 => *readers -= 1,
            _ => drop(busy.folders.remove(&self.1)),
        }
    }
}

fn lock(busy: &Mutex<Busy>) -> MutexGuard<'_, Busy> {
    // Nothing that can panic runs under it.
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    pub fn open(node: &str, dir: &Path) -> io::Result<Self> {
        Self::open_with(node, dir, Arc::new(Kernel))
    }

    fn open_with(node: &str, dir: &Path, quotas: Arc<dyn Quotas>) -> io::Result<Self> {
        let (volumes, snapshots) = (Folders::open(&dir.join("volumes"))?, Folders::open(&dir.join("snapshots"))?);
        let projects = Projects::open(dir, quotas)?;
        let (counts, busy) = (Counts::new(), Default::default());
        Ok(Driver { node: node.into(), dir: dir.into(), volumes, snapshots, projects, counts, busy })
    }

    fn busy(&self) -> MutexGuard<'_, Busy> {
        lock(&self.busy)
    }

    /// Nobody else may use the folder meanwhile.
    fn change(&self, folder: PathBuf) -> Result<Held, Status> {
        match self.busy().folders.entry(folder) {
            Entry::Occupied(taken) => Err(pending(taken.key())),
            Entry::Vacant(free) => {
                let folder = free.key().clone();
                free.insert(Use::Changed);
                Ok(Held(self.busy.clone(), folder))
            }
        }
    }

    /// Nobody may change the folder meanwhile.
    fn read(&self, folder: PathBuf) -> Result<Held, Status> {
        match self.busy().folders.entry(folder.clone()).or_insert(Use::Read(0)) {
            Use::Read(readers) => *readers += 1,
            Use::Changed => return Err(pending(&folder)),
        }
        Ok(Held(self.busy.clone(), folder))
    }

    /// The files of a volume.
    pub fn data(&self, id: &str) -> PathBuf {
        self.volumes.data(id)
    }

    pub(crate) fn topology(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(TOPOLOGY_KEY.to_string(), self.node.clone())])
    }

    fn volume(&self, id: &str) -> Result<Volume, Status> {
        check_id("volume", id)?;
        let found = self.volumes.get(id).map_err(failed)?;
        found.ok_or_else(|| Status::not_found(format!("volume {id} is not on node {}", self.node)))
    }

    /// What a new volume is a copy of: what it is remembered as, its files, and how large it must be at least.
    fn source(&self, wanted: Option<&v1::VolumeContentSource>) -> Result<Option<(String, PathBuf, i64)>, Status> {
        match wanted.and_then(|source| source.r#type.as_ref()) {
            None => Ok(None),
            Some(ContentSource::Volume(source)) => {
                let volume = self.volume(&source.volume_id)?;
                let id = &source.volume_id;
                Ok(Some((format!("volume/{id}"), self.volumes.data(id), volume.capacity)))
            }
            Some(ContentSource::Snapshot(source)) => {
                let id = &source.snapshot_id;
                check_id("snapshot", id)?;
                let found: Option<Snapshot> = self.snapshots.get(id).map_err(failed)?;
                let found =
                    found.ok_or_else(|| Status::not_found(format!("snapshot {id} is not on node {}", self.node)))?;
                Ok(Some((format!("snapshot/{id}"), self.snapshots.data(id), found.size)))
            }
        }
    }

    async fn create(&self, request: v1::CreateVolumeRequest) -> Result<v1::CreateVolumeResponse, Status> {
        let id = request.name.clone();
        check_id("volume", &id)?;
        check_capabilities(&request.volume_capabilities)?;
        let held = self.change(self.volumes.data(&id))?;
        let range = request.capacity_range.unwrap_or_default();
        check_range(&range)?;
        let source = self.source(request.volume_content_source.as_ref())?;
        let least = source.as_ref().map_or(0, |(_, _, size)| *size);
        let wanted = Volume {
            capacity: range.required_bytes.max(least),
            source: source.as_ref().map(|(name, _, _)| name.clone()),
            project: None,
        };
        if range.limit_bytes > 0 && wanted.capacity > range.limit_bytes {
            return Err(Status::out_of_range(format!("the source needs {} bytes", wanted.capacity)));
        }
        let volume = match self.volumes.get::<Volume>(&id).map_err(failed)? {
            Some(there) => {
                let fits = there.capacity >= range.required_bytes
                    && (range.limit_bytes == 0 || there.capacity <= range.limit_bytes)
                    && there.source == wanted.source;
                match fits {
                    true => {
                        self.note_found(&id, &there);
                        there
                    }
                    false => return Err(Status::already_exists(format!("volume {id} is there, and is another"))),
                }
            }
            None => {
                let source_held = source.as_ref().map(|(_, path, _)| self.read(path.clone())).transpose()?;
                let promise = self.promise(&id, 0, wanted.capacity)?;
                let (name, from) = (id.clone(), source.map(|(_, path, _)| path));
                let (folders, projects, busy) = (self.volumes.clone(), self.projects.clone(), self.busy.clone());
                let made = blocking(move || {
                    let _held = (held, source_held, promise);
                    let made = make(&folders, &projects, &name, wanted, from.as_deref())?;
                    room::note(&busy, &name, Some(&made));
                    Ok(made)
                });
                let made = made.await?;
                if made.source.is_some() && made.project.is_none() {
                    // What was copied is not set aside a second time.
                    drop(self.counts.begin(id.clone(), self.volumes.data(&id)));
                }
                made
            }
        };
        Ok(v1::CreateVolumeResponse {
            volume: Some(v1::Volume {
                capacity_bytes: volume.capacity,
                volume_id: id,
                content_source: request.volume_content_source,
                accessible_topology: vec![v1::Topology { segments: self.topology() }],
                ..Default::default()
            }),
        })
    }

    async fn delete(&self, id: String) -> Result<(), Status> {
        check_id("volume", &id)?;
        // Nor is it grown meanwhile.
        let held = (self.change(self.volumes.data(&id))?, self.change(self.volumes.about(&id))?);
        let (data, name) = (self.volumes.data(&id), id.clone());
        let (folders, projects) = (self.volumes.clone(), self.projects.clone());
        let (counts, busy) = (self.counts.clone(), self.busy.clone());
        let removed = blocking(move || {
            let _held = held;
            if is_used(&files::mount_table()?, &resolved(&data)?, &name) {
                return Ok(false);
            }
            let project = folders.get::<Volume>(&name).map(|volume| volume.and_then(|volume| volume.project));
            let project = project.unwrap_or_else(|error| {
                tracing::warn!(volume = name, %error, "record of a volume that is removed not read");
                None
            });
            folders.remove(&name)?;
            projects.end(project)?;
            counts.forget(&name);
            room::note(&busy, &name, None);
            Ok(true)
        });
        match removed.await? {
            true => Ok(()),
            false => Err(Status::failed_precondition(format!("volume {id} is in use"))),
        }
    }

    async fn expand(&self, id: String, range: v1::CapacityRange) -> Result<i64, Status> {
        check_range(&range)?;
        check_id("volume", &id)?;
        let held = self.change(self.volumes.about(&id))?;
        // Not before: somebody else may just have grown it further.
        let mut volume = self.volume(&id)?;
        if range.required_bytes > volume.capacity {
            let promise = self
                .promise(&id, volume.capacity, range.required_bytes)
                .map_err(|status| Status::out_of_range(status.message()))?;
            volume.capacity = range.required_bytes;
            let (folders, projects, about) = (self.volumes.clone(), self.projects.clone(), volume.clone());
            let (name, busy) = (id.clone(), self.busy.clone());
            blocking(move || {
                let _held = (held, promise);
                projects.grow(about.project, about.capacity)?;
                folders.update(&name, &about)?;
                room::note(&busy, &name, Some(&about));
                Ok(())
            })
            .await?;
        }
        Ok(volume.capacity)
    }

    async fn take_snapshot(&self, request: v1::CreateSnapshotRequest) -> Result<v1::Snapshot, Status> {
        let (id, of) = (request.name, request.source_volume_id);
        check_id("snapshot", &id)?;
        let held = self.change(self.snapshots.data(&id))?;
        let there: Option<Snapshot> = self.snapshots.get(&id).map_err(failed)?;
        let snapshot = match there {
            Some(there) if there.volume == of => there,
            Some(there) => {
                return Err(Status::already_exists(format!("snapshot {id} is there, of volume {}", there.volume)));
            }
            None => {
                let volume = self.volume(&of)?;
                let source_held = self.read(self.volumes.data(&of))?;
                let now = jiff::Timestamp::now().as_nanosecond();
                let created_nanos = i64::try_from(now).unwrap_or(i64::MAX);
                let about = Snapshot { volume: of.clone(), size: volume.capacity, created_nanos };
                let (folders, name, made, from) =
                    (self.snapshots.clone(), id.clone(), about.clone(), self.volumes.data(&of));
                blocking(move || {
                    let _held = (held, source_held);
                    folders.make(&name, &made, Some(&from), |_| Ok(()))
                })
                .await?;
                about
            }
        };
        Ok(shown(id, &snapshot))
    }

    async fn publish(&self, request: v1::NodePublishVolumeRequest) -> Result<(), Status> {
        let to = PathBuf::from(request.target_path);
        check_target(&to)?;
        check_capabilities(request.volume_capability.as_slice())?;
        self.volume(&request.volume_id)?;
        let from = self.volumes.data(&request.volume_id);
        let mut flags = mount_flags(request.volume_capability.as_ref())?;
        flags.set(MsFlags::MS_RDONLY, flags.contains(MsFlags::MS_RDONLY) || request.readonly);
        // It is not removed meanwhile, and whoever has given up waiting does not undo it before it is done.
        let held = (self.change(to.clone())?, self.read(from.clone())?);
        self.volume(&request.volume_id)?;
        blocking(move || {
            let _held = held;
            if !is_mount_point(&to)? {
                std::fs::create_dir_all(&to)?;
                mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
            }
            // Also what is mounted already: a process before this one may have ended between the two.
            let restricted = files::remount_flags(&to, flags).and_then(|flags| match flags {
                Some(flags) => Ok(mount(None::<&str>, &to, None::<&str>, flags, None::<&str>)?),
                None => Ok(()),
            });
            if restricted.is_err() {
                // Never more than it may be.
                umount(&to)?;
            }
            restricted
        })
        .await
    }

    async fn unpublish(&self, request: v1::NodeUnpublishVolumeRequest) -> Result<(), Status> {
        // Which one it is does not matter: a target is that of one volume.
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("the volume's id is missing"));
        }
        let target = PathBuf::from(request.target_path);
        check_target(&target)?;
        let held = self.change(target.clone())?;
        blocking(move || {
            let _held = held;
            while is_mount_point(&target)? {
                umount(&target)?;
            }
            match std::fs::remove_dir(&target) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
        .await
    }

    async fn measure(&self, request: v1::NodeGetVolumeStatsRequest) -> Result<v1::NodeGetVolumeStatsResponse, Status> {
        let (id, at) = (request.volume_id, request.volume_path);
        check_id("volume", &id)?;
        if at.is_empty() {
            return Err(Status::invalid_argument("the volume's path is missing"));
        }
        let volume = self.volume(&id)?;
        let (data, projects, project) = (self.volumes.data(&id), self.projects.clone(), volume.project);
        let (name, place) = (id.clone(), PathBuf::from(&at));
        let counted = blocking(move || {
            let is_there = is_shown_at(&files::mount_table()?, &resolved(&place)?, &name);
            Ok((is_there, projects.usage(project)?, nix::sys::statvfs::statvfs(&data)?))
        });
        let (is_there, counted, disk) = counted.await?;
        if !is_there {
            return Err(Status::not_found(format!("volume {id} is not at {at:?}")));
        }
        let (used, inodes) = match counted {
            Some(usage) => (usage.bytes, usage.inodes),
            None => {
                let counted = self.counts.fresh(&id, self.volumes.data(&id), MAX_COUNT_AGE).await;
                let counted = counted.ok_or_else(|| Status::unavailable(format!("volume {id} is being measured")))?;
                (counted.bytes, counted.inodes)
            }
        };
        // The folder itself is not what somebody put into it.
        let inodes = inodes.saturating_sub(1);
        let (used, free) = (number(used), number(disk.blocks_available().saturating_mul(disk.fragment_size())));
        let bytes = v1::VolumeUsage {
            unit: Unit::Bytes as i32,
            total: volume.capacity,
            used,
            available: volume.capacity.saturating_sub(used).clamp(0, free),
        };
        let inodes = v1::VolumeUsage {
            unit: Unit::Inodes as i32,
            total: number(disk.files()),
            used: number(inodes),
            available: number(disk.files_available()),
        };
        Ok(v1::NodeGetVolumeStatsResponse { usage: vec![bytes, inodes], volume_condition: None })
    }
}

/// Makes a volume's folder, limited where the file system can, with a copy of another's files in it.
fn make(
    folders: &Folders,
    projects: &Projects,
    id: &str,
    mut about: Volume,
    from: Option<&Path>,
) -> io::Result<Volume> {
    // One that has files is taken whatever can be read of it.
    let known = folders.list_readable::<Volume>()?;
    let taken: Vec<u32> = known.into_iter().filter_map(|(_, volume)| volume.project).collect();
    about.project = projects.begin(id, about.capacity, &taken)?;
    match folders.make(id, &about, from, |data| projects.assign(data, about.project)) {
        Ok(()) => Ok(about),
        Err(error) => {
            // What is left of it goes before the next try, which may find another project.
            projects.end(about.project)?;
            Err(error)
        }
    }
}

fn shown(id: String, snapshot: &Snapshot) -> v1::Snapshot {
    let nanos = snapshot.created_nanos;
    let creation_time = v1::Timestamp {
        seconds: nanos.div_euclid(1_000_000_000),
        nanos: i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or_default(),
    };
    v1::Snapshot {
        size_bytes: snapshot.size,
        snapshot_id: id,
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(creation_time),
        ready_to_use: true,
        ..Default::default()
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn failed(error: io::Error) -> Status {
    Status::internal(error.to_string())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Status> {
    let work = move || work().map(|done| Box::new(done) as Box<dyn Any + Send>);
    let done = run_blocking(Box::new(work)).await?;
    Ok(*done.downcast::<T>().expect("it is what the work came to"))
}

/// A task of one type, which is compiled once and not for each work or for what it comes to.
async fn run_blocking(
    work: Box<dyn FnOnce() -> io::Result<Box<dyn Any + Send>> + Send>,
) -> Result<Box<dyn Any + Send>, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(failed),
        Err(error) => Err(Status::internal(error.to_string())),
    }
}

impl v1::Identity for Driver {
    fn get_plugin_info(&self, _: v1::GetPluginInfoRequest) -> Answer<'_, v1::GetPluginInfoResponse> {
        let info = v1::GetPluginInfoResponse {
            name: NAME.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        Box::pin(std::future::ready(Ok(info)))
    }

    fn get_plugin_capabilities(
        &self,
        _: v1::GetPluginCapabilitiesRequest,
    ) -> Answer<'_, v1::GetPluginCapabilitiesResponse> {
        let capabilities = vec![
            ServiceType::ControllerService.into(),
            ServiceType::VolumeAccessibilityConstraints.into(),
            VolumeExpansionType::Online.into(),
        ];
        Box::pin(std::future::ready(Ok(v1::GetPluginCapabilitiesResponse { capabilities })))
    }

    fn probe(&self, _: v1::ProbeRequest) -> Answer<'_, v1::ProbeResponse> {
        let ready = Some(v1::BoolValue { value: true });
        Box::pin(std::future::ready(Ok(v1::ProbeResponse { ready })))
    }
}

impl v1::Controller for Driver {
    fn controller_get_capabilities(
        &self,
        _: v1::ControllerGetCapabilitiesRequest,
    ) -> Answer<'_, v1::ControllerGetCapabilitiesResponse> {
        let capabilities = [
            ControllerRpc::CreateDeleteVolume,
            ControllerRpc::GetCapacity,
            ControllerRpc::CreateDeleteSnapshot,
            ControllerRpc::ListSnapshots,
            ControllerRpc::CloneVolume,
            ControllerRpc::ExpandVolume,
            ControllerRpc::ListVolumes,
        ];
        let capabilities = capabilities.into_iter().map(Into::into).collect();
        Box::pin(std::future::ready(Ok(v1::ControllerGetCapabilitiesResponse { capabilities })))
    }

    fn create_volume(&self, request: v1::CreateVolumeRequest) -> Answer<'_, v1::CreateVolumeResponse> {
        Box::pin(self.create(request))
    }

    fn delete_volume(&self, request: v1::DeleteVolumeRequest) -> Answer<'_, v1::DeleteVolumeResponse> {
        Box::pin(async move { self.delete(request.volume_id).await.map(|()| v1::DeleteVolumeResponse {}) })
    }

    fn validate_volume_capabilities(
        &self,
        request: v1::ValidateVolumeCapabilitiesRequest,
    ) -> Answer<'_, v1::ValidateVolumeCapabilitiesResponse> {
        Box::pin(async move {
            let refused = check_capabilities(&request.volume_capabilities).err();
            if let Some(status) = refused.as_ref().filter(|_| request.volume_capabilities.is_empty()) {
                return Err(status.clone());
            }
            self.volume(&request.volume_id)?;
            Ok(match refused {
                Some(status) => {
                    v1::ValidateVolumeCapabilitiesResponse { confirmed: None, message: status.message().into() }
                }
                None => v1::ValidateVolumeCapabilitiesResponse {
                    confirmed: Some(v1::Confirmed {
                        volume_context: request.volume_context,
                        volume_capabilities: request.volume_capabilities,
                        parameters: request.parameters,
                        mutable_parameters: request.mutable_parameters,
                    }),
                    message: String::new(),
                },
            })
        })
    }

    fn list_volumes(&self, request: v1::ListVolumesRequest) -> Answer<'_, v1::ListVolumesResponse> {
        Box::pin(std::future::ready(self.volumes_listed(&request)))
    }

    fn get_capacity(&self, request: v1::GetCapacityRequest) -> Answer<'_, v1::GetCapacityResponse> {
        Box::pin(async move {
            let is_here = request.accessible_topology.is_none_or(|topology| topology.segments == self.topology());
            let available_capacity = if is_here { self.available()? } else { 0 };
            let maximum_volume_size = Some(v1::Int64Value { value: available_capacity });
            Ok(v1::GetCapacityResponse { available_capacity, maximum_volume_size, minimum_volume_size: None })
        })
    }

    fn create_snapshot(&self, request: v1::CreateSnapshotRequest) -> Answer<'_, v1::CreateSnapshotResponse> {
        Box::pin(async move {
            let snapshot = Some(self.take_snapshot(request).await?);
            Ok(v1::CreateSnapshotResponse { snapshot })
        })
    }

    fn delete_snapshot(&self, request: v1::DeleteSnapshotRequest) -> Answer<'_, v1::DeleteSnapshotResponse> {
        Box::pin(async move {
            check_id("snapshot", &request.snapshot_id)?;
            let held = self.change(self.snapshots.data(&request.snapshot_id))?;
            let folders = self.snapshots.clone();
            blocking(move || {
                let _held = held;
                folders.remove(&request.snapshot_id)
            })
            .await?;
            Ok(v1::DeleteSnapshotResponse {})
        })
    }

    fn list_snapshots(&self, request: v1::ListSnapshotsRequest) -> Answer<'_, v1::ListSnapshotsResponse> {
        Box::pin(std::future::ready(self.snapshots_listed(&request)))
    }

    fn controller_expand_volume(
        &self,
        request: v1::ControllerExpandVolumeRequest,
    ) -> Answer<'_, v1::ControllerExpandVolumeResponse> {
        Box::pin(async move {
            let missing = || Status::invalid_argument("the capacity range is missing");
            let range = request.capacity_range.ok_or_else(missing)?;
            let capacity_bytes = self.expand(request.volume_id, range).await?;
            Ok(v1::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: false })
        })
    }
}

impl v1::Node for Driver {
    fn node_get_info(&self, _: v1::NodeGetInfoRequest) -> Answer<'_, v1::NodeGetInfoResponse> {
        let info = v1::NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(v1::Topology { segments: self.topology() }),
        };
        Box::pin(std::future::ready(Ok(info)))
    }

    fn node_get_capabilities(&self, _: v1::NodeGetCapabilitiesRequest) -> Answer<'_, v1::NodeGetCapabilitiesResponse> {
        let capabilities = vec![NodeRpc::GetVolumeStats.into(), NodeRpc::SingleNodeMultiWriter.into()];
        Box::pin(std::future::ready(Ok(v1::NodeGetCapabilitiesResponse { capabilities })))
    }

    fn node_publish_volume(&self, request: v1::NodePublishVolumeRequest) -> Answer<'_, v1::NodePublishVolumeResponse> {
        Box::pin(async move { self.publish(request).await.map(|()| v1::NodePublishVolumeResponse {}) })
    }

    fn node_unpublish_volume(
        &self,
        request: v1::NodeUnpublishVolumeRequest,
    ) -> Answer<'_, v1::NodeUnpublishVolumeResponse> {
        Box::pin(async move { self.unpublish(request).await.map(|()| v1::NodeUnpublishVolumeResponse {}) })
    }

    fn node_get_volume_stats(
        &self,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Answer<'_, v1::NodeGetVolumeStatsResponse> {
        Box::pin(self.measure(request))
    }
}

impl Registration for Driver {
    fn get_info(&self, _: InfoRequest) -> Answer<'_, PluginInfo> {
        let info = PluginInfo {
            r#type: CSI_PLUGIN.into(),
            name: NAME.into(),
            endpoint: String::new(),
            supported_versions: vec!["1.0.0".into()],
        };
        Box::pin(std::future::ready(Ok(info)))
    }

    fn notify_registration_status(&self, status: RegistrationStatus) -> Answer<'_, RegistrationStatusResponse> {
        if !status.plugin_registered {
            tracing::warn!(error = status.error, "the kubelet refuses {NAME}");
        }
        Box::pin(std::future::ready(Ok(RegistrationStatusResponse {})))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn capacity_is_a_limit_where_the_file_system_has_quotas() {
        use crate::quota::{Recorded, Usage};
        use csi::v1::{Controller, Node};

        let dir = tempfile::tempdir().unwrap();
        let recorded = Arc::new(Recorded::default());
        let driver = Driver::open_with("n", dir.path(), recorded.clone()).unwrap();
        let range = |bytes: i64| Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 });
        for name in ["one", "two"] {
            let (capacity_range, volume_capabilities) = (range(1 << 20), capabilities());
            let request = v1::CreateVolumeRequest {
                name: name.into(),
                capacity_range,
                volume_capabilities,
                ..Default::default()
            };
            for _ in 0..2 {
                driver.create_volume(request.clone()).await.unwrap();
            }
        }
        let assigned = recorded.assigned.lock().clone();
        let [(place, one), (_, two)] = assigned.as_slice() else { panic!("{assigned:?}") };
        assert!(place.ends_with(".one.new/data") && one != two, "{assigned:?}");
        assert_eq!(*recorded.limits.lock(), BTreeMap::from([(*one, 1 << 20), (*two, 1 << 20)]));

        let grow = v1::ControllerExpandVolumeRequest {
            volume_id: "one".into(),
            capacity_range: range(3 << 20),
            ..Default::default()
        };
        driver.controller_expand_volume(grow).await.unwrap();
        assert_eq!(recorded.limits.lock()[one], 3 << 20);
        // What is set aside is known without a look at the folders, and is what they say.
        let on_disk = |driver: &Driver| -> HashMap<String, Volume> {
            driver.volumes.list_readable().unwrap().into_iter().collect()
        };
        let sizes = |volumes: &HashMap<String, Volume>| (volumes["one"].capacity, volumes["two"].capacity);
        assert_eq!(driver.busy().made.clone(), Some(on_disk(&driver)));
        assert_eq!(sizes(&on_disk(&driver)), (3 << 20, 1 << 20));
        // What the kernel has counted is told, without a look at the files.
        recorded.usage.lock().insert(*one, Usage { bytes: 2 << 20, inodes: 8 });
        let target_path = dir.path().join("target").to_string_lossy().into_owned();
        let publish = v1::NodePublishVolumeRequest {
            volume_id: "one".into(),
            target_path: target_path.clone(),
            volume_capability: capabilities().pop(),
            ..Default::default()
        };
        driver.node_publish_volume(publish).await.unwrap();
        let stats = v1::NodeGetVolumeStatsRequest {
            volume_id: "one".into(),
            volume_path: target_path.clone(),
            ..Default::default()
        };
        let usage = driver.node_get_volume_stats(stats).await;
        let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "one".into(), target_path };
        driver.node_unpublish_volume(unpublish).await.unwrap();
        let usage = usage.unwrap().usage;
        assert_eq!((usage[0].total, usage[0].used, usage[0].available), (3 << 20, 2 << 20, 1 << 20));
        assert_eq!(usage[1].used, 7);

        // A process that comes after knows whose project it is.
        let driver = Driver::open_with("n", dir.path(), recorded.clone()).unwrap();
        driver.available().unwrap();
        let delete = v1::DeleteVolumeRequest { volume_id: "one".into(), ..Default::default() };
        driver.delete_volume(delete).await.unwrap();
        assert_eq!(driver.busy().made.clone(), Some(on_disk(&driver)));
        assert_eq!(*recorded.limits.lock(), BTreeMap::from([(*two, 1 << 20)]));
        // What was never made keeps no limit.
        let failed = make(&driver.volumes, &driver.projects, "x/y", Volume { capacity: 5, ..Default::default() }, None);
        assert!(failed.is_err());
        assert_eq!(recorded.limits.lock().len(), 1);
    }

    #[tokio::test]
    async fn a_damaged_record_holds_up_its_own_volume() {
        use csi::v1::{Controller, Node};

        let dir = tempfile::tempdir().unwrap();
        let create = |name: &str| {
            let capacity_range = Some(v1::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 });
            let volume_capabilities = capabilities();
            v1::CreateVolumeRequest { name: name.into(), capacity_range, volume_capabilities, ..Default::default() }
        };
        let driver = Driver::open("n", dir.path()).unwrap();
        driver.create_volume(create("one")).await.unwrap();
        std::fs::write(driver.volumes.about("one"), "{").unwrap();
        // A process that comes after reads all of them.
        let driver = Driver::open("n", dir.path()).unwrap();
        driver.create_volume(create("two")).await.unwrap();
        assert!(driver.available().unwrap() > 0);
        let target = dir.path().join("target").to_string_lossy().into_owned();
        let publish = v1::NodePublishVolumeRequest {
            volume_id: "one".into(),
            target_path: target,
            volume_capability: capabilities().pop(),
            ..Default::default()
        };
        let failed = driver.node_publish_volume(publish).await.unwrap_err();
        assert_eq!(failed.code(), csi::tonic::Code::Internal);
        assert!(driver.create_volume(create("one")).await.is_err() && driver.data("one").exists());
        let delete = v1::DeleteVolumeRequest { volume_id: "one".into(), ..Default::default() };
        driver.delete_volume(delete).await.unwrap();
        assert!(!driver.data("one").exists() && driver.data("two").exists());
    }

    #[tokio::test]
    async fn a_volume_is_not_removed_while_it_is_published_or_grown() {
        use csi::v1::Controller;

        let dir = tempfile::tempdir().unwrap();
        let driver = Driver::open("n", dir.path()).unwrap();
        let volume_capabilities = capabilities();
        let create = v1::CreateVolumeRequest { name: "one".into(), volume_capabilities, ..Default::default() };
        driver.create_volume(create).await.unwrap();
        let delete = v1::DeleteVolumeRequest { volume_id: "one".into(), ..Default::default() };
        for held in [driver.read(driver.volumes.data("one")), driver.change(driver.volumes.about("one"))] {
            let held = held.unwrap();
            let refused = driver.delete_volume(delete.clone()).await.unwrap_err();
            assert_eq!(refused.code(), csi::tonic::Code::Aborted);
            assert!(driver.data("one").exists());
            drop(held);
        }
        driver.delete_volume(delete).await.unwrap();
        assert!(driver.busy().folders.is_empty(), "nobody is at anything");
    }
}
