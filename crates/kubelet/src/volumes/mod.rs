//! Volumes of a pod: made ready before its containers, kept up to date while they run, taken down
//! after they ended.
//!
//! Flow: `sync` -> [`Volumes::set_up`] on every pass -> host paths that `sync` mounts into containers.
//! Setting up twice changes nothing, so a restarted kubelet simply does it again; files made from API
//! objects are rewritten in one step when the object changes (`atomic_writer`).

mod atomic_writer;
mod attached;
pub(crate) mod csi;
mod error;
mod file_systems;
mod format;
mod growing;
mod growth;
mod host_path;
mod in_use;
mod iscsi;
pub(crate) mod kernel;
mod local_device;
mod local_directory;
mod local_growth;
pub(crate) mod mounts;
mod nfs;
mod node_check;
mod own_thread;
mod ownership;
mod payload;
#[cfg(test)]
mod recorded;
mod records;
pub(crate) mod subpath;
mod tokens;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::beta_annotations::mount_options;
use api::meta::Meta as _;
use client::{Client, Clock};
use k8s_openapi::api::core::v1::{
    ConfigMap, EmptyDirVolumeSource, ISCSIPersistentVolumeSource, NFSVolumeSource, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeSpec, Pod, Secret, Volume,
};
use parking_lot::Mutex;

use crate::env::Context;
use crate::metrics::{KubeletMetrics, Outcome};
use crate::objects::Objects;
use crate::{huge_pages, resources, state};

pub(crate) use self::attached::MANAGED;
use self::csi::{Csi, Wanted};
use error::{Cause, ClaimError, Operation, UnusableClaim};
pub(crate) use error::{TearDownError, VolumeError};
pub(crate) use file_systems::FileSystems;
pub(crate) use in_use::InUse;
use iscsi::IscsiError;
pub(crate) use iscsi::{Iscsi, Parts as IscsiParts};
use kernel::{Kernel, Linux};
pub(crate) use local_device::LocalDevices;
pub(crate) use nfs::Nfs;
pub(crate) use own_thread::on_own_thread;
use ownership::ChangePolicy;
pub(crate) use tokens::Tokens;

pub(crate) struct Volumes {
    pub(crate) root: PathBuf,
    /// What pods know `root` as.
    pub(crate) usual_root: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) client: Client,
    pub(crate) config_maps: Arc<Objects<ConfigMap>>,
    pub(crate) secrets: Arc<Objects<Secret>>,
    pub(crate) tokens: Tokens,
    pub(crate) csi: Arc<Csi>,
    pub(crate) nfs: Nfs,
    pub(crate) iscsi: Arc<Iscsi>,
    pub(crate) local_devices: LocalDevices,
    pub(crate) file_systems: Arc<FileSystems>,
    /// What pods have by their claims: by uid and name.
    pub(crate) claimed: Mutex<HashMap<(String, String), Claimed>>,
    /// How long a server has until its share is mounted.
    pub(crate) call_timeout: Duration,
    pub(crate) metrics: KubeletMetrics,
}

/// Where a volume is once it is ready.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mounted {
    Path {
        path: PathBuf,
        read_only: bool,
    },
    /// A block device, for containers that name it in `volumeDevices`.
    Device {
        path: PathBuf,
        read_only: bool,
    },
    /// The runtime mounts the image itself.
    Image {
        reference: String,
        policy: Option<String>,
    },
}

/// What a pod has by a claim, and the group that it is for.
pub(crate) struct Claimed {
    mounted: Mounted,
    group: Option<i64>,
}

/// The volumes of a pod once they are ready.
pub(crate) struct Ready {
    /// By name.
    pub(crate) mounted: HashMap<String, Mounted>,
    /// Those whose members may use what is on them, as the volumes say themselves.
    pub(crate) groups: BTreeSet<i64>,
}

impl Volumes {
    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Makes all volumes that containers use ready, side by side: a pod may have fifty of them.
    pub(crate) async fn set_up(&self, context: &Context<'_>) -> Result<Ready, VolumeError> {
        let groups = Mutex::default();
        let all = state::used_volumes(context.pod).into_iter().map(|volume| {
            let mounted = self.set_up_one(volume, context, &groups);
            async move { mounted.await.map(|mounted| (volume.name.clone(), mounted)) }
        });
        let mounted = futures_util::future::try_join_all(all).await?.into_iter().collect();
        Ok(Ready { mounted, groups: groups.into_inner() })
    }

    async fn set_up_one(
        &self,
        volume: &Volume,
        context: &Context<'_>,
        groups: &Mutex<BTreeSet<i64>>,
    ) -> Result<Mounted, VolumeError> {
        let pod = context.pod;
        if let Some(source) = &volume.csi {
            let wanted = Wanted::inline(&volume.name, source, pod);
            return self.csi.set_up(pod, wanted, &self.secrets, &self.tokens).await;
        }
        if let Some(source) = &volume.iscsi {
            let source = iscsi::persistent(source, state::namespace(pod));
            let request = iscsi::Request::new(state::uid(pod), &volume.name, &source, source.read_only == Some(true));
            let mounted = self.timed(plugin_of(volume), self.iscsi_disk(pod, &source, request)).await?;
            return Ok(self.noted(pod, volume, plugin_of(volume), None, mounted));
        }
        let fail = |cause: Cause| VolumeError::of(Operation::SetUp, &volume.name, cause);
        let read_only = volume.persistent_volume_claim.as_ref().is_some_and(|source| source.read_only == Some(true));
        let Some((name, _)) = api::claim::of_volume(state::name(pod), volume) else {
            return match Wanted::migrated(volume, pod).map_err(|error| fail(error.into()))? {
                Some(wanted) => self.csi.set_up(pod, wanted, &self.secrets, &self.tokens).await,
                None => {
                    let mounted = self.timed(plugin_of(volume), self.set_up_own(volume, context)).await;
                    mounted.map(|mounted| self.noted(pod, volume, plugin_of(volume), None, mounted)).map_err(fail)
                }
            };
        };
        let key = (state::uid(pod).to_owned(), volume.name.clone());
        let (claim, bound) = match self.bound(pod, volume, &name).await {
            Ok(both) => both,
            // A pod that has its volume goes on with it, whatever becomes of the claim, and also while nobody can be asked.
            Err(error) => match self.claimed.lock().get(&key) {
                Some(claimed) => {
                    tracing::warn!(pod = key.0, volume = key.1, %error, "the volume stays as it is");
                    groups.lock().extend(claimed.group);
                    return Ok(claimed.mounted.clone());
                }
                None => return Err(VolumeError::of(Operation::Process, &volume.name, error)),
            },
        };
        let is_new = !self.claimed.lock().contains_key(&key);
        if is_new {
            self.check_node(pod, &bound).await?;
        }
        let group = group_of(&bound);
        groups.lock().extend(group);
        let mounted = self.set_up_bound(pod, volume, (&claim, bound), read_only).await?;
        self.claimed.lock().insert(key, Claimed { mounted: mounted.clone(), group });
        Ok(mounted)
    }

    /// What a claim is bound to.
    async fn set_up_bound(
        &self,
        pod: &Pod,
        volume: &Volume,
        (claim, bound): (&PersistentVolumeClaim, PersistentVolume),
        read_only: bool,
    ) -> Result<Mounted, VolumeError> {
        let fail = |cause: Cause| VolumeError::of(Operation::SetUp, &volume.name, cause);
        let name = claim.metadata.name.as_deref();
        let has_options = !mount_options(&bound).is_empty();
        if has_options && bound.spec.as_ref().is_some_and(|spec| spec.host_path.is_some()) {
            let name = bound.metadata.name();
            return Err(VolumeError::of(Operation::CheckMountOptions, name, Cause::MountOptions));
        }
        match Wanted::of_claim(&volume.name, claim, &bound, read_only).map_err(|error| fail(error.into()))? {
            Some(wanted) => self.csi.set_up(pod, wanted, &self.secrets, &self.tokens).await,
            None => {
                let plugin = plugin_of_volume(&bound);
                if let Some((spec, source)) = bound.spec.as_ref().and_then(|spec| Some((spec, spec.iscsi.as_ref()?))) {
                    let bound_name = bound.metadata.name();
                    let read_only = read_only || source.read_only == Some(true);
                    let request = iscsi::Request::new(state::uid(pod), bound_name, source, read_only);
                    let is_block = spec.volume_mode.as_deref() == Some("Block");
                    let request = request.with(&mount_options(&bound), is_block);
                    let mounted = self.timed(plugin, self.iscsi_disk(pod, source, request)).await?;
                    return Ok(self.noted(pod, volume, plugin, name, mounted));
                }
                let growth = self.local_growth(pod, &volume.name, claim, &bound).await;
                let growth = growth.map_err(|error| fail(error.into()))?;
                let mounted = self.timed(plugin, self.claim(pod, bound, read_only)).await.map_err(fail)?;
                if let Some(growth) = &growth {
                    self.grow_local(pod, claim, growth, read_only).await?;
                }
                Ok(self.noted(pod, volume, plugin, name, mounted))
            }
        }
    }

    /// A volume of a pod's is ready. Where nobody else measures it, this kubelet does from now on.
    fn noted(&self, pod: &Pod, volume: &Volume, plugin: &str, claim: Option<&str>, mounted: Mounted) -> Mounted {
        if let Mounted::Path { path, .. } = &mounted
            && MEASURED.contains(&plugin)
        {
            let claim = claim.map(|claim| (state::namespace(pod).to_owned(), claim.to_owned()));
            self.file_systems.add(state::uid(pod), &volume.name, path, claim);
        }
        mounted
    }

    /// Volumes of CSI drivers are timed where they are mounted: they are looked at more often than that.
    async fn timed<T, E>(&self, plugin: &str, setting_up: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let began = Instant::now();
        let ready = setting_up.await;
        let outcome = Outcome { is_ok: ready.is_ok(), is_migrated: false };
        self.metrics.volume_changed("volume_mount", plugin, outcome, began.elapsed());
        ready
    }

    /// Volumes that need nothing but this node.
    async fn set_up_own(&self, volume: &Volume, context: &Context<'_>) -> Result<Mounted, Cause> {
        let pod = context.pod;
        let writable = |path: PathBuf| Mounted::Path { path, read_only: false };
        if let Some(source) = &volume.host_path {
            let path = host_path::on_node(Path::new(&source.path), &self.usual_root, &self.root);
            let kind = source.type_.clone().unwrap_or_default();
            let checked = path.clone();
            on_own_thread(move || host_path::check(&checked, &kind)).await?;
            return Ok(writable(path));
        }
        if let Some(source) = &volume.image {
            return Ok(Mounted::Image {
                reference: source.reference.clone().unwrap_or_default(),
                policy: source.pull_policy.clone(),
            });
        }
        if let Some(source) = &volume.nfs {
            return self.share(pod, &volume.name, source, false, &[]).await;
        }
        let group = fs_group(pod);
        if let Some(source) = &volume.empty_dir {
            let path = self.dir(pod, "kubernetes.io~empty-dir", &volume.name);
            let medium = match source.medium.as_deref().unwrap_or_default() {
                "" => Medium::Disk,
                "Memory" => Medium::Memory(memory_size(source, context)),
                pages if huge_pages::is_medium(pages) => Medium::HugePages(huge_pages::page_size(pages, pod)?),
                other => return Err(Cause::Medium(other.to_owned())),
            };
            let made = path.clone();
            blocking(move || empty_dir(&Linux, &made, medium, group)).await?;
            return Ok(writable(path));
        }
        let (plugin, in_memory) = if volume.config_map.is_some() {
            ("kubernetes.io~configmap", false)
        } else if volume.secret.is_some() {
            ("kubernetes.io~secret", true)
        } else if volume.downward_api.is_some() {
            ("kubernetes.io~downward-api", false)
        } else if volume.projected.is_some() {
            ("kubernetes.io~projected", true)
        } else {
            return Err(Cause::NoPlugin(volume.name.clone()));
        };
        let files = self.payload(volume, context).await?;
        let now = self.clock.now();
        let path = self.dir(pod, plugin, &volume.name);
        let made = path.clone();
        blocking(move || {
            if in_memory {
                mounts::tmpfs(&Linux, &made, None)?;
            } else {
                std::fs::create_dir_all(&made)?;
            }
            set_mode(&made, 0o777, group)?;
            atomic_writer::write(&made, &files, group, now)
        })
        .await?;
        Ok(Mounted::Path { path, read_only: true })
    }

    /// A claim of the pod and the volume that it is bound to, used as what it is.
    async fn bound(
        &self,
        pod: &Pod,
        volume: &Volume,
        name: &str,
    ) -> Result<(PersistentVolumeClaim, PersistentVolume), ClaimError> {
        let namespace = state::namespace(pod);
        let claims = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let unusable = |why| ClaimError::Unusable { claim: format!("{namespace}/{name}"), why };
        let claim = claims.get(name).await.map_err(|error| unusable(UnusableClaim::NotRead(error)))?;
        let bound = named_volume(&claim).map_err(unusable)?.to_owned();
        if volume.ephemeral.is_some() && !is_owned_by(&claim, pod) {
            let pod = format!("{namespace}/{}", state::name(pod));
            return Err(ClaimError::NotForPod { claim: format!("{namespace}/{name}"), pod });
        }
        let bound = match self.client.all::<PersistentVolume>().get(&bound).await {
            Ok(found) => found,
            Err(source) => return Err(unusable(UnusableClaim::NoVolume { name: bound, source })),
        };
        check_volume(&claim, &bound).map_err(unusable)?;
        let volume = &volume.name;
        let is_block = bound.spec.as_ref().is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"));
        let containers = state::all_containers(pod);
        let is_mounted =
            containers.iter().flat_map(|c| c.volume_mounts.iter().flatten()).any(|mount| mount.name == *volume);
        let is_mapped =
            containers.iter().flat_map(|c| c.volume_devices.iter().flatten()).any(|device| device.name == *volume);
        match is_block {
            true if is_mounted => Err(ClaimError::IsDevice(volume.to_owned())),
            false if is_mapped => Err(ClaimError::IsFileSystem(volume.to_owned())),
            _ => Ok((claim, bound)),
        }
    }

    /// A share of another machine's. Whose files those are is the server's to say: no group gets them.
    async fn share(
        &self,
        pod: &Pod,
        name: &str,
        source: &NFSVolumeSource,
        read_only: bool,
        options: &[String],
    ) -> Result<Mounted, Cause> {
        error::check_name("volume name", name)?;
        let read_only = read_only || source.read_only == Some(true);
        let share = nfs::Share::new(source, read_only, options);
        let (namespace, path) = (state::namespace(pod), self.dir(pod, "kubernetes.io~nfs", name));
        let path = self.nfs.set_up(namespace, path, share, self.call_timeout).await?;
        Ok(Mounted::Path { path, read_only })
    }

    /// A disk of another machine's.
    async fn iscsi_disk(
        &self,
        pod: &Pod,
        source: &ISCSIPersistentVolumeSource,
        mut request: iscsi::Request,
    ) -> Result<Mounted, VolumeError> {
        request.group = fs_group(pod).map(|group| (group, change_policy(pod)));
        let secret = async {
            let Some(reference) = &source.secret_ref else { return Ok(BTreeMap::new()) };
            let namespace = reference.namespace.as_deref().filter(|namespace| !namespace.is_empty());
            let namespace = namespace.unwrap_or_else(|| state::namespace(pod));
            let name = reference.name.as_deref().unwrap_or_default();
            let values = csi::secret_values(namespace, name, state::uid(pod), &self.secrets).await;
            values.map_err(|why| IscsiError::Secret { namespace: namespace.to_owned(), name: name.to_owned(), why })
        };
        let (uid, disk) = (state::uid(pod), request.unique_name().to_owned());
        self.iscsi.set_up(request, self.csi.attached.wait(&disk, uid), secret).await
    }

    /// A local or hostPath volume. A local device is mounted as the file system that it holds, and a local directory with the
    /// volume's options, if it has any. A directory is given to the pod's fsGroup, once: before anything of the pod has started,
    /// and never while its containers may be at work in it.
    async fn claim(&self, pod: &Pod, bound: PersistentVolume, read_only: bool) -> Result<Mounted, Cause> {
        let (options, plugin) = (mount_options(&bound), node_check::plugin_dir(&bound));
        let (name, spec) = (bound.metadata.name.unwrap_or_default(), bound.spec.unwrap_or_default());
        if let Some(source) = &spec.nfs {
            return self.share(pod, &name, source, read_only, &options).await;
        }
        error::check_name("volume name", &name)?;
        // Both kinds of local volumes are there, each under a name that no other has, and also what is not mounted: by that a new
        // kubelet knows that the pod has it.
        let owned = self.dir(pod, &plugin, &name);
        if spec.volume_mode.as_deref() == Some("Block") {
            let path =
                spec.local.map(|source| PathBuf::from(source.path)).ok_or_else(|| Cause::NoPlugin(name.clone()))?;
            let checked = path.clone();
            let ready =
                move || host_path::check(&checked, "BlockDevice").and_then(|()| std::fs::create_dir_all(&owned));
            blocking(ready).await?;
            return Ok(Mounted::Device { path, read_only });
        }
        if let Some(source) = &spec.local {
            let (path, looked) = (PathBuf::from(&source.path), PathBuf::from(&source.path));
            let is_device = blocking(move || Ok(host_path::check(&looked, "BlockDevice").is_ok())).await?;
            if is_device {
                let disk = local_device::Disk {
                    name,
                    device: path,
                    fs_type: source.fs_type.clone().unwrap_or_default(),
                    options,
                    group: fs_group(pod).filter(|_| !read_only).map(|group| (group, change_policy(pod))),
                };
                let path = self.local_devices.set_up(disk, owned).await?;
                return Ok(Mounted::Path { path, read_only });
            }
        }
        let has_options = spec.local.is_some() && !options.is_empty();
        let flags = files::bind_flags(if has_options { options.as_slice() } else { &[] })?;
        // A path of the node's stays as the node has it.
        let (path, kind, group) = if let Some(source) = spec.host_path {
            let path = host_path::on_node(Path::new(&source.path), &self.usual_root, &self.root);
            (path, source.type_.unwrap_or_default(), None)
        } else if let Some(source) = spec.local {
            (PathBuf::from(source.path), "Directory".to_string(), fs_group(pod).filter(|_| !read_only))
        } else {
            return Err(Cause::NoPlugin(name));
        };
        let policy = change_policy(pod);
        let path = on_own_thread(move || {
            host_path::check(&path, &kind)?;
            if !owned.exists() {
                if let Some(group) = group {
                    ownership::apply(&path, group, policy)?;
                }
                // Remembered beside the pod's other volumes: a new kubelet does not do it again.
                std::fs::create_dir_all(&owned)?;
            }
            if !has_options {
                return Ok(path);
            }
            let target = owned.join("mount");
            local_directory::bind(&Linux, &path, &target, flags)?;
            Ok(target)
        });
        Ok(Mounted::Path { path: path.await?, read_only })
    }

    fn dir(&self, pod: &Pod, plugin: &str, name: &str) -> PathBuf {
        self.pod_dir(state::uid(pod)).join("volumes").join(plugin).join(name)
    }

    /// Unmounts and removes everything of a pod.
    pub(crate) async fn tear_down(&self, uid: &str) -> Result<(), TearDownError> {
        let dir = self.pod_dir(uid);
        self.file_systems.forget(uid);
        self.claimed.lock().retain(|(owner, _), _| owner != uid);
        // Parts of volumes that containers saw hold the volumes up.
        let parts = dir.join("volume-subpaths");
        on_own_thread(move || mounts::remove_with_mounts(&Linux, &parts)).await?;
        self.csi.tear_down(uid).await?;
        self.iscsi.tear_down(uid).await?;
        on_own_thread(move || mounts::remove_with_mounts(&Linux, &dir)).await?;
        self.local_devices.release_unused().await;
        self.iscsi.release_unused().await;
        self.config_maps.release(uid);
        self.secrets.release(uid);
        self.tokens.forget(uid);
        Ok(())
    }

    /// How many volumes there are of each plug-in, and how many pods want: what upstream calls the actual and the desired state.
    pub(crate) fn count(&self, pods: &[Arc<Pod>]) -> std::io::Result<BTreeMap<(String, &'static str), usize>> {
        let mut counts = BTreeMap::new();
        let mut add = |plugin: String, state| *counts.entry((plugin, state)).or_default() += 1;
        for driver in self.csi.drivers_in_use()? {
            add(csi::plugin_name(&driver), ACTUAL);
        }
        for uid in self.pods_on_disk() {
            let dir = self.pod_dir(&uid).join("volumes");
            for plugin in csi::names(&dir)?.into_iter().filter(|plugin| plugin != csi::PLUGIN) {
                for _ in csi::names(&dir.join(&plugin))? {
                    add(plugin.replace('~', "/"), ACTUAL);
                }
            }
        }
        for pod in pods {
            let uid = state::uid(pod);
            for volume in state::used_volumes(pod) {
                let own = volume.csi.as_ref().map(|csi| csi.driver.clone());
                let plugin = match own.or_else(|| self.csi.driver_of(uid, &volume.name)) {
                    Some(driver) => csi::plugin_name(&driver),
                    None => plugin_of(volume).to_owned(),
                };
                add(plugin, DESIRED);
                // Nothing of those is below the pod's directory.
                if volume.host_path.is_some() && self.pod_dir(uid).exists() {
                    add(plugin_of(volume).to_owned(), ACTUAL);
                }
            }
        }
        Ok(counts)
    }

    /// Records that cannot be read, each with what to do about it.
    pub(crate) fn unread(&self) -> BTreeSet<String> {
        let mut all = self.csi.unread();
        all.extend(self.iscsi.unread());
        all
    }

    /// Uids of all pods that have a directory, or a device.
    pub(crate) fn pods_on_disk(&self) -> BTreeSet<String> {
        self.csi.pods_on_disk().unwrap_or_else(|error| {
            tracing::warn!(%error, "directories of pods not listed");
            BTreeSet::new()
        })
    }
}

/// Whose volumes are file systems that say themselves how full they are (`MetricsStatFS`, v1.36).
const MEASURED: [&str; 3] = ["kubernetes.io/nfs", "kubernetes.io/local-volume", "kubernetes.io/iscsi"];
const ACTUAL: &str = "actual_state_of_world";
const DESIRED: &str = "desired_state_of_world";

/// What upstream calls who makes a volume ready.
pub(crate) fn plugin_of(volume: &Volume) -> &'static str {
    match volume {
        Volume { config_map: Some(_), .. } => "kubernetes.io/configmap",
        Volume { secret: Some(_), .. } => "kubernetes.io/secret",
        Volume { projected: Some(_), .. } => "kubernetes.io/projected",
        Volume { downward_api: Some(_), .. } => "kubernetes.io/downward-api",
        Volume { empty_dir: Some(_), .. } => "kubernetes.io/empty-dir",
        Volume { host_path: Some(_), .. } => "kubernetes.io/host-path",
        Volume { image: Some(_), .. } => "kubernetes.io/image",
        Volume { nfs: Some(_), .. } => "kubernetes.io/nfs",
        Volume { iscsi: Some(_), .. } => "kubernetes.io/iscsi",
        _ => "N/A",
    }
}

/// As [`plugin_of`], of the volume behind a claim that is no CSI driver's.
fn plugin_of_volume(volume: &PersistentVolume) -> &'static str {
    match volume.spec.as_ref() {
        Some(PersistentVolumeSpec { local: Some(_), .. }) => "kubernetes.io/local-volume",
        Some(PersistentVolumeSpec { host_path: Some(_), .. }) => "kubernetes.io/host-path",
        Some(PersistentVolumeSpec { nfs: Some(_), .. }) => "kubernetes.io/nfs",
        Some(PersistentVolumeSpec { iscsi: Some(_), .. }) => "kubernetes.io/iscsi",
        _ => "N/A",
    }
}

/// Whose group it is, in the annotations of a volume.
const GROUP: &str = "pv.beta.kubernetes.io/gid";

/// The group whose members may use what is on the volume, if its maker says so (`getPVVolumeGidAnnotationValue`, v1.36).
fn group_of(volume: &PersistentVolume) -> Option<i64> {
    volume.metadata.annotations.as_ref()?.get(GROUP)?.parse::<u32>().ok().map(i64::from)
}

/// Keeps a claim while a pod uses it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The volume that a bound claim names. A claim that is on its way out is no longer anybody's, unless it waits for the pods that
/// have it.
fn named_volume(claim: &PersistentVolumeClaim) -> Result<&str, UnusableClaim> {
    let is_protected = claim.metadata.finalizers.iter().flatten().any(|name| name == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !is_protected {
        return Err(UnusableClaim::BeingDeleted);
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Err(UnusableClaim::NotBound);
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    name.filter(|name| !name.is_empty()).ok_or(UnusableClaim::NoVolumeName)
}

/// A claim may name any volume. Only the volume says whose it is, and whoever may make claims cannot make it say so: a name can be
/// taken again, a uid cannot.
fn check_volume(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), UnusableClaim> {
    let name = volume.metadata.name().to_owned();
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(UnusableClaim::NoReference(name));
    };
    let given = reference.uid.clone().unwrap_or_default();
    let own = claim.metadata.uid().to_owned();
    match given == own && !own.is_empty() {
        true => Ok(()),
        false => Err(UnusableClaim::AnotherClaim { name, given, own }),
    }
}

/// Whether a claim was made for this pod (`VolumeIsForPod`, v1.36).
fn is_owned_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    claim.metadata.is_controlled_by(state::uid(pod))
}

/// Runs file work off the async threads.
pub(crate) async fn blocking<T, F>(work: F) -> std::io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> std::io::Result<T> + Send + 'static,
{
    let work = move || work().map(|done| Box::new(done) as Box<dyn Any + Send>);
    let done = run_blocking(Box::new(work)).await?;
    Ok(*done.downcast::<T>().expect("it is what the work came to"))
}

/// A task of one type, which is compiled once and not for each work or for what it comes to.
async fn run_blocking(
    work: Box<dyn FnOnce() -> std::io::Result<Box<dyn Any + Send>> + Send>,
) -> std::io::Result<Box<dyn Any + Send>> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

pub(crate) fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

pub(crate) fn change_policy(pod: &Pod) -> ChangePolicy {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    match context.and_then(|context| context.fs_group_change_policy.as_deref()) {
        Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
        _ => ChangePolicy::Always,
    }
}

/// How large an emptyDir in memory may grow: as large as it says, the pod's memory limit, or the node's memory.
fn memory_size(source: &EmptyDirVolumeSource, context: &Context<'_>) -> Option<i64> {
    let own = source.size_limit.as_ref().and_then(resources::parse);
    let of_pod = resources::pod_limit(context.pod, "memory");
    let of_node = context.allocatable.get("memory").and_then(resources::parse);
    [own, of_pod, of_node].into_iter().flatten().map(|quantity| quantity.value()).filter(|bytes| *bytes > 0).min()
}

/// What an emptyDir is made of.
#[derive(Clone, Copy)]
enum Medium {
    Disk,
    /// As large as this at most.
    Memory(Option<i64>),
    /// Pages of this size.
    HugePages(i64),
}

fn empty_dir(kernel: &impl Kernel, path: &Path, medium: Medium, group: Option<u32>) -> std::io::Result<()> {
    let is_new = match medium {
        Medium::Memory(size) => mounts::tmpfs(kernel, path, size)?,
        Medium::HugePages(size) => mounts::hugetlbfs(kernel, path, size)?,
        Medium::Disk => {
            let is_new = !path.exists();
            std::fs::create_dir_all(path)?;
            is_new
        }
    };
    // Once: then it is the containers'.
    if is_new {
        set_mode(path, 0o777, group)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32, group: Option<u32>) -> std::io::Result<()> {
    let mode = if group.is_some() { mode | 0o2000 } else { mode };
    let current = std::fs::metadata(path)?;
    if group.is_some_and(|group| current.gid() != group) {
        std::os::unix::fs::chown(path, None, group)?;
    }
    if current.permissions().mode() & 0o7777 != mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::recorded::Recorded;
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_directory_is_made_once_and_left_to_its_containers() {
        let root = tempfile::tempdir().unwrap();
        let kernel = Recorded::default();
        let [disk, memory, pages] = ["disk", "memory", "pages"].map(|name| root.path().join(name));
        let all = [(&disk, Medium::Disk), (&memory, Medium::Memory(Some(4096))), (&pages, Medium::HugePages(2 << 20))];
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for (path, medium) in all {
            empty_dir(&kernel, path, medium, None).unwrap();
            assert_eq!(mode(path), 0o777);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        let mounted = [
            format!("mount tmpfs {} tmpfs size=4096", memory.display()),
            format!("mount nodev {} hugetlbfs pagesize=2097152", pages.display()),
        ];
        assert_eq!(kernel.calls(), mounted);
        for (path, medium) in all {
            empty_dir(&kernel, path, medium, None).unwrap();
            assert_eq!(mode(path), 0o700, "what a container set stays");
        }
        assert_eq!(kernel.calls(), [""; 0]);
    }

    fn claim(metadata: serde_json::Value, status: serde_json::Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": {"volumeName": "pv"}, "status": status,
        });
        claim["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn security_a_claim_has_only_the_volume_that_names_it() {
        let claim = claim(json!({}), json!({"phase": "Bound"}));
        let points = |given: &str| {
            format!("found PV object pv but its pv.Spec.ClaimRef.UID {given} does not point to claim.UID u")
        };
        let nil = "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim";
        for (reference, expected) in [
            (json!({"name": "c", "namespace": "ns", "uid": "u"}), None),
            (json!({"name": "c", "namespace": "ns"}), Some(points(""))),
            (json!(null), Some(nil.to_owned())),
            (json!({"name": "c", "namespace": "ns", "uid": "another"}), Some(points("another"))),
            (json!({"name": "c", "namespace": "victim", "uid": "v"}), Some(points("v"))),
        ] {
            let volume: PersistentVolume =
                serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"claimRef": reference}})).unwrap();
            let refused = check_volume(&claim, &volume).err().map(|why| why.to_string());
            assert_eq!(refused, expected, "{reference}");
        }
    }

    #[test]
    fn a_volume_may_name_its_group() {
        for (annotations, expected) in [
            (json!({GROUP: "777"}), Some(777)),
            (json!({GROUP: "-1"}), None),
            (json!({GROUP: "users"}), None),
            (json!({"other": "777"}), None),
            (json!(null), None),
        ] {
            let volume = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
            assert_eq!(group_of(&volume), expected, "{annotations}");
        }
    }

    #[test]
    fn claims_that_are_not_bound_are_not_used() {
        let going = |finalizers: serde_json::Value| json!({"finalizers": finalizers, "deletionTimestamp": "2024-01-01T00:00:00Z"});
        for (metadata, status, expected) in [
            (json!({}), json!({"phase": "Bound"}), Ok("pv")),
            (json!({}), json!({"phase": "Pending"}), Err("PVC is not bound")),
            (json!({}), json!({"phase": "Lost"}), Err("PVC is not bound")),
            (json!({}), json!({}), Err("PVC is not bound")),
            (going(json!([PROTECTION])), json!({"phase": "Bound"}), Ok("pv")),
            (going(json!(["other"])), json!({"phase": "Bound"}), Err("PVC is being deleted")),
            (going(json!([])), json!({"phase": "Pending"}), Err("PVC is being deleted")),
        ] {
            let claim = claim(metadata, status);
            let named = named_volume(&claim).map_err(|why| why.to_string());
            assert_eq!(named, expected.map_err(str::to_owned), "{claim:?}");
        }
        let mut unnamed = claim(json!({}), json!({"phase": "Bound"}));
        unnamed.spec = None;
        assert_eq!(named_volume(&unnamed).unwrap_err().to_string(), "PVC has empty pvc.Spec.VolumeName");
    }

    #[test]
    fn security_a_claim_of_a_pods_own_is_made_for_that_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "pod"}})).unwrap();
        let owner = |uid: &str, controller: bool| json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller}]});
        for (metadata, expected) in [
            (owner("pod", true), true),
            (owner("pod", false), false),
            (owner("another", true), false),
            (json!({}), false),
        ] {
            assert_eq!(is_owned_by(&claim(metadata.clone(), json!({})), &pod), expected, "{metadata}");
        }
    }
}
