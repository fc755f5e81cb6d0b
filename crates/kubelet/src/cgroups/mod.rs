//! Pod cgroups: `/kubepods[/burstable|/besteffort]/pod<uid>`, made by ourselves or, with its driver, as slices by systemd.
//!
//! Flow: `sync` makes the pod's cgroup before its sandbox; the runtime puts containers below it;
//! it is removed after the sandbox is gone. Guaranteed pods sit directly under `/kubepods`. `names` says what they are
//! called. What systemd does not manage is written here all the same.
//! Not here: trees, files and units. They are the crate `cgroup`.

mod names;

use std::io;
use std::path::{Path, PathBuf};

use cgroup::systemd::Systemd;
use cgroup::{Hierarchies, Limits, Missing};
use k8s_openapi::api::core::v1::Pod;

use crate::config::{CgroupDriver, Settings};
use crate::resources::{self, PodResources};
use crate::{qos, state};
use names::Names;

/// Where a pod may be, by its class.
const LEVELS: [&str; 3] = ["", "burstable", "besteffort"];

#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    hierarchies: Hierarchies,
    names: Names,
    /// With its driver.
    systemd: Option<Systemd>,
    /// Processes of one pod; none where it may have as many as it likes.
    pids_limit: Option<i64>,
}

/// What became of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CgroupChange {
    Create,
    Update,
    Destroy,
}

impl CgroupChange {
    /// As metrics call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CgroupChange::Create => "create",
            CgroupChange::Update => "update",
            CgroupChange::Destroy => "destroy",
        }
    }
}

impl Cgroups {
    /// Finds the mounted hierarchies, and systemd where its driver is wanted.
    pub(crate) fn detect(settings: &Settings, driver: CgroupDriver) -> io::Result<Self> {
        let hierarchies = Hierarchies::detect()?;
        let systemd = match driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => {
                let systemd = Systemd::new(settings.system_bus.clone(), hierarchies.version());
                tracing::info!(version = systemd.check()?, "pods are slices of systemd");
                Some(systemd)
            }
        };
        let pids_limit = Some(settings.pod_pids_limit).filter(|limit| *limit > 0);
        Ok(Cgroups { hierarchies, names: Names::new(driver, &settings.cgroup_root), systemd, pids_limit })
    }

    pub(crate) fn driver(&self) -> CgroupDriver {
        self.names.driver
    }

    /// The cgroup of a pod, relative to the hierarchy, as CRI's `cgroup_parent` takes it.
    pub(crate) fn pod_path(&self, pod: &Pod) -> String {
        Path::new("/").join(self.path_of(pod)).to_string_lossy().into_owned()
    }

    fn path_of(&self, pod: &Pod) -> PathBuf {
        let level = match qos::class(pod) {
            qos::Class::Guaranteed => "",
            qos::Class::Burstable => "burstable",
            qos::Class::BestEffort => "besteffort",
        };
        self.names.pod(level, state::uid(pod))
    }

    /// Makes `kubepods` and the two QoS levels below it. All pods together get so much memory; none: as much as there is.
    pub(crate) fn ensure_qos(&self, memory: Option<i64>) -> io::Result<()> {
        for level in LEVELS {
            let path = self.names.path(&[level]);
            self.make(&path)?;
            if level.is_empty() {
                self.limit_memory(&path, memory)?;
            }
            if level == "besteffort" {
                let least = Limits { cpu_shares: resources::MIN_SHARES, ..Default::default() };
                self.hierarchies.limit(&path, &least, Missing::Refused)?;
            }
        }
        Ok(())
    }

    fn limit_memory(&self, path: &Path, memory: Option<i64>) -> io::Result<()> {
        let limits = Limits { memory_limit: memory.unwrap_or(-1), ..Default::default() };
        // Also where there is none: systemd would bring back one that a kubelet before this one had told it.
        if let Some(systemd) = &self.systemd {
            systemd.limit(&Names::unit(path), &limits)?;
        }
        let missing = if memory.is_some() { Missing::Refused } else { Missing::Skipped };
        unless_exceeded(self.hierarchies.limit(path, &limits, missing))
    }

    pub(crate) fn ensure_pod(&self, pod: &Pod) -> io::Result<CgroupChange> {
        let (path, limits) = (self.path_of(pod), limits(&resources::for_pod(pod)));
        let is_new = self.hierarchies.directories(&path).iter().any(|directory| !directory.exists());
        if is_new {
            self.make(&path)?;
        }
        if let (true, Some(systemd)) = (is_new, &self.systemd) {
            systemd.limit(&Names::unit(&path), &limits)?;
        }
        if let Some(pids_limit) = self.pids_limit {
            let pids = Limits { pids_limit, ..Default::default() };
            self.hierarchies.limit(&path, &pids, Missing::Skipped)?;
        }
        self.hierarchies.limit(&path, &limits, Missing::Refused)?;
        Ok(if is_new { CgroupChange::Create } else { CgroupChange::Update })
    }

    /// Gives a pod that runs new limits; none that is lower than now while `keeps_room`, since containers still have theirs.
    pub(crate) fn resize_pod(&self, pod: &Pod, keeps_room: bool) -> io::Result<CgroupChange> {
        let (path, mut resources) = (self.path_of(pod), resources::for_pod(pod));
        if keeps_room {
            let (quota, memory) = self.hierarchies.limits(&path)?;
            let widest = |now: Option<i64>, new: Option<i64>| Some(now?.max(new?));
            resources.cpu_quota = widest(quota, resources.cpu_quota);
            resources.memory_limit = widest(memory, resources.memory_limit);
        }
        let limits = limits(&resources);
        if let Some(systemd) = &self.systemd {
            systemd.limit(&Names::unit(&path), &limits)?;
        }
        self.hierarchies.limit(&path, &limits, Missing::Refused)?;
        Ok(CgroupChange::Update)
    }

    /// How many bytes of memory all of a pod uses.
    pub(crate) fn memory_usage(&self, pod: &Pod) -> io::Result<u64> {
        let file = if self.is_v2() { "memory.current" } else { "memory.usage_in_bytes" };
        let directory = self.hierarchies.directory("memory", self.path_of(pod));
        let path = directory.ok_or(io::ErrorKind::NotFound)?.join(file);
        std::fs::read_to_string(path)?.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Removes the pod's cgroup wherever its class put it, with what a dead runtime may have left in it.
    pub(crate) fn remove_pod(&self, uid: &str) -> io::Result<CgroupChange> {
        for level in LEVELS {
            let path = self.names.pod(level, uid);
            if let Some(systemd) = &self.systemd
                && self.hierarchies.directories(&path).iter().any(|directory| directory.exists())
            {
                systemd.stop(&Names::unit(&path))?;
            }
            self.hierarchies.remove_empty(&path)?;
        }
        Ok(CgroupChange::Destroy)
    }

    /// Uids of all pods that have a cgroup.
    pub(crate) fn pods(&self) -> Vec<String> {
        let mut uids: Vec<String> = Vec::new();
        for level in LEVELS {
            for directory in self.hierarchies.directories(self.names.path(&[level])) {
                // What is not seen now is seen at the next look.
                let Ok(entries) = std::fs::read_dir(directory) else { continue };
                for entry in entries.flatten() {
                    let name = entry.file_name();
                    let Some(uid) = name.to_str().and_then(|name| self.names.uid(name)) else { continue };
                    if !uids.contains(&uid) {
                        uids.push(uid);
                    }
                }
            }
        }
        uids
    }

    pub(crate) fn is_v2(&self) -> bool {
        self.hierarchies.version() == cgroup::Version::V2
    }

    /// The cgroups above those of pods, as [`Self::pod_path`] writes them.
    pub(crate) fn level_paths(&self) -> Vec<String> {
        let path = |level| Path::new("/").join(self.names.path(&[level])).to_string_lossy().into_owned();
        LEVELS.into_iter().map(path).collect()
    }

    /// The directory of a cgroup in a controller's tree; none where the controller is not mounted.
    pub(crate) fn directory(&self, controller: &str, path: &str) -> Option<PathBuf> {
        self.hierarchies.directory(controller, path)
    }

    /// The names of the cgroups below one; none when it is gone.
    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        let entries = self.directory("memory", path).and_then(|directory| std::fs::read_dir(directory).ok());
        let directories = entries.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        if let Some(systemd) = &self.systemd {
            systemd.start_slice(path)?;
        }
        self.hierarchies.make(path)?;
        // Containers below need them too.
        self.hierarchies.pass_on_controllers(path);
        Ok(())
    }
}

/// What a pod has no limit of was perhaps limited before.
fn limits(resources: &PodResources) -> Limits {
    Limits {
        cpu_shares: resources.cpu_shares,
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota.unwrap_or(-1),
        memory_limit: resources.memory_limit.unwrap_or(-1),
        ..Default::default()
    }
}

/// Version 1 takes no limit of memory below what is in use. A node with pods that use too much has to start all the same, to
/// evict them: the next kubelet that starts tries again.
fn unless_exceeded(limited: io::Result<()>) -> io::Result<()> {
    match limited {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            tracing::warn!(%error, "pods use more memory than is left to them: they are not limited for now");
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    /// Trees of version 1, as directories.
    fn trees(dir: &Path, controllers: &[&str]) -> Hierarchies {
        let tree = |name: &&str| {
            let mount = dir.join(name);
            std::fs::create_dir(&mount).unwrap();
            cgroup::Hierarchy { controllers: vec![name.to_string()], mount }
        };
        Hierarchies::V1(controllers.iter().map(tree).collect())
    }

    #[test]
    fn names_follow_the_class() {
        for (root, requests, limits, expected) in [
            ("/", "", "", "/kubepods/besteffort/podu1"),
            ("/", "cpu=1", "", "/kubepods/burstable/podu1"),
            ("/cox", "cpu=1,memory=1Gi", "cpu=1,memory=1Gi", "/cox/kubepods/podu1"),
        ] {
            let pod = Pod {
                metadata: ObjectMeta { uid: Some("u1".into()), ..Default::default() },
                spec: Some(PodSpec { containers: vec![container_with("a", requests, limits)], ..Default::default() }),
                ..Default::default()
            };
            let names = Names::new(CgroupDriver::Cgroupfs, root);
            let hierarchies = Hierarchies::V2("/sys/fs/cgroup".into());
            let cgroups = Cgroups { hierarchies, names, systemd: None, pids_limit: None };
            assert_eq!(cgroups.pod_path(&pod), expected);
        }
    }

    #[test]
    fn a_pod_leaves_no_hierarchy_behind() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(CgroupDriver::Cgroupfs, "/");
        let hierarchies = trees(dir.path(), &["memory", "systemd"]);
        let cgroups = Cgroups { hierarchies, names, systemd: None, pids_limit: None };
        let left = |tree: &str| dir.path().join(tree).join("kubepods/besteffort/podu1");
        // As a runtime does, in every hierarchy there is.
        for tree in ["memory", "systemd"] {
            std::fs::create_dir_all(left(tree).join("container")).unwrap();
        }
        assert_eq!(cgroups.pods(), ["u1"]);
        cgroups.remove_pod("u1").unwrap();
        assert!(!left("memory").exists() && !left("systemd").exists());
    }

    #[test]
    fn all_pods_together_stay_out_of_what_is_reserved() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(CgroupDriver::Cgroupfs, "/");
        let hierarchies = trees(dir.path(), &["cpu", "memory"]);
        let cgroups = Cgroups { hierarchies, names, systemd: None, pids_limit: None };
        // The kernel's files.
        let memory = dir.path().join("memory/kubepods/memory.limit_in_bytes");
        let shares = dir.path().join("cpu/kubepods/besteffort/cpu.shares");
        for file in [&memory, &shares] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "0").unwrap();
        }
        cgroups.ensure_qos(Some(1 << 30)).unwrap();
        assert_eq!(std::fs::read_to_string(&memory).unwrap(), "1073741824");
        cgroups.ensure_qos(None).unwrap();
        assert_eq!(std::fs::read_to_string(&memory).unwrap(), "-1");
        std::fs::remove_file(&memory).unwrap();
        cgroups.ensure_qos(None).unwrap();
        assert!(cgroups.ensure_qos(Some(1)).is_err(), "not enforced, and not said");
        assert!(unless_exceeded(Err(io::ErrorKind::ResourceBusy.into())).is_ok(), "pods that run are too large");
        assert!(unless_exceeded(Err(io::ErrorKind::NotFound.into())).is_err());
    }

    #[test]
    fn security_pods_have_a_limit_of_processes() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::new("n");
        assert!(settings.pod_pids_limit > 0, "without a word of the administrator");
        let names = Names::new(CgroupDriver::Cgroupfs, "/");
        let hierarchies = trees(dir.path(), &["memory", "pids"]);
        let cgroups = Cgroups { hierarchies, names, systemd: None, pids_limit: Some(settings.pod_pids_limit) };
        let pod = Pod {
            metadata: ObjectMeta { uid: Some("u1".into()), ..Default::default() },
            spec: Some(PodSpec { containers: vec![container_with("a", "", "")], ..Default::default() }),
            ..Default::default()
        };
        let file = dir.path().join("pids/kubepods/besteffort/podu1/pids.max");
        // The kernel's files, but for one.
        let memory = dir.path().join("memory/kubepods/besteffort/podu1/memory.limit_in_bytes");
        std::fs::create_dir_all(memory.parent().unwrap()).unwrap();
        std::fs::write(&memory, "0").unwrap();
        // As where no such controller is passed on.
        cgroups.ensure_pod(&pod).unwrap();
        assert_eq!(std::fs::read_to_string(&memory).unwrap(), "-1");
        std::fs::write(&file, "max").unwrap();
        cgroups.ensure_pod(&pod).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), settings.pod_pids_limit.to_string());
    }
}
