//! Pod cgroups: `/kubepods[/burstable|/besteffort]/pod<uid>`, made by ourselves or, with its driver, as slices by systemd.
//!
//! Flow: `sync` makes the pod's cgroup before its sandbox; the runtime puts containers below it;
//! it is removed after the sandbox is gone. Guaranteed pods sit directly under `/kubepods`. Burstable pods together
//! have the CPU shares that follow from their requests: `admit` adds them up, and they are written when a pod came, was
//! resized or went. `names` says what cgroups are called. What systemd does not manage is written here all the same.
//! Not here: trees, files and units. They are the crate `cgroup`.

mod names;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cgroup::systemd::Systemd;
use cgroup::{Hierarchies, Limits, Missing};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::config::{CgroupDriver, Settings};
use crate::huge_pages::{self, HugePages};
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
    /// Those of the node. A pod has none but what it asks for.
    huge_pages: HugePages,
    burstable: Arc<BurstableShares>,
}

/// The CPU shares of Burstable pods together; zero where they are not known yet.
#[derive(Debug, Default)]
struct BurstableShares {
    wanted: AtomicI64,
    /// Locked while they are written: whoever writes last writes the newest.
    written: Mutex<i64>,
}

/// What all pods together get of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllPods {
    pub(crate) cpu_shares: i64,
    /// Bytes; none: as much as there is.
    pub(crate) memory: Option<i64>,
    /// Processes; none: as many as there can be.
    pub(crate) pids: Option<i64>,
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
    pub(crate) fn detect(settings: &Settings, driver: CgroupDriver, huge_pages: HugePages) -> io::Result<Self> {
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
        let names = Names::new(driver, &settings.cgroup_root);
        Ok(Cgroups { hierarchies, names, systemd, pids_limit, huge_pages, burstable: Arc::default() })
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

    /// Makes `kubepods`, with the limits of all pods together, and the two QoS levels below it. That of Burstable pods
    /// keeps what it has until they are known.
    pub(crate) fn ensure_qos(&self, all: AllPods) -> io::Result<()> {
        for level in LEVELS {
            let path = self.names.path(&[level]);
            self.make(&path)?;
            if level.is_empty() {
                self.limit_all(&path, all)?;
            }
            if level == "besteffort" {
                self.share_cpu(&path, resources::MIN_SHARES)?;
            }
        }
        Ok(())
    }

    fn share_cpu(&self, path: &Path, cpu_shares: i64) -> io::Result<()> {
        let shares = Limits { cpu_shares, ..Default::default() };
        if let Some(systemd) = &self.systemd {
            systemd.limit(&Names::unit(path), &shares)?;
        }
        self.hierarchies.limit(path, &shares, Missing::Refused)
    }

    /// Notes what Burstable pods request together; [`Self::update_burstable`] writes what follows from it.
    pub(crate) fn request_burstable(&self, milli_cpu: i64) {
        self.burstable.wanted.store(resources::milli_cpu_to_shares(milli_cpu), Ordering::SeqCst);
    }

    /// Gives Burstable pods together the CPU shares that follow from their requests, if they have others.
    pub(crate) fn update_burstable(&self) -> io::Result<CgroupChange> {
        let mut written = self.burstable.written.lock();
        let wanted = self.burstable.wanted.load(Ordering::SeqCst);
        if *written != wanted {
            self.share_cpu(&self.names.path(&["burstable"]), wanted)?;
            *written = wanted;
        }
        Ok(CgroupChange::Update)
    }

    fn limit_all(&self, path: &Path, all: AllPods) -> io::Result<()> {
        let cpu = Limits { cpu_shares: all.cpu_shares, ..Default::default() };
        let memory = Limits { memory_limit: all.memory.unwrap_or(-1), ..Default::default() };
        let pids = Limits { pids_limit: all.pids.unwrap_or(-1), ..Default::default() };
        // Also where there is none: systemd would bring back one that a kubelet before this one had told it.
        if let Some(systemd) = &self.systemd {
            let (cpu_shares, pids_limit) = (cpu.cpu_shares, pids.pids_limit);
            systemd.limit(&Names::unit(path), &Limits { cpu_shares, pids_limit, ..memory.clone() })?;
        }
        let missing = |limit: Option<i64>| if limit.is_some() { Missing::Refused } else { Missing::Skipped };
        self.hierarchies.limit(path, &cpu, Missing::Refused)?;
        self.hierarchies.limit(path, &pids, missing(all.pids))?;
        unless_exceeded(self.hierarchies.limit(path, &memory, missing(all.memory)))
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
        let hugepages = huge_pages::limits_of_pod(pod, &self.huge_pages);
        self.hierarchies.limit(&path, &Limits { hugepages, ..Default::default() }, Missing::Skipped)?;
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

    fn cgroups_in(hierarchies: Hierarchies) -> Cgroups {
        let names = Names::new(CgroupDriver::Cgroupfs, "/");
        let huge_pages = HugePages::new();
        Cgroups { hierarchies, names, systemd: None, pids_limit: None, huge_pages, burstable: Arc::default() }
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
            let cgroups = Cgroups { names, ..cgroups_in(Hierarchies::V2("/sys/fs/cgroup".into())) };
            assert_eq!(cgroups.pod_path(&pod), expected);
        }
    }

    #[test]
    fn a_pod_leaves_no_hierarchy_behind() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = cgroups_in(trees(dir.path(), &["memory", "systemd"]));
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
        let v1 = trees(dir.path(), &["cpu", "memory", "pids"]);
        let v2 = Hierarchies::V2(dir.path().join("unified"));
        let v1_files = ["cpu/kubepods/cpu.shares", "memory/kubepods/memory.limit_in_bytes", "pids/kubepods/pids.max"];
        let v2_files = ["unified/kubepods/cpu.weight", "unified/kubepods/memory.max", "unified/kubepods/pids.max"];
        let limited = AllPods { cpu_shares: 1536, memory: Some(1 << 30), pids: Some(1000) };
        let free = AllPods { cpu_shares: 2048, memory: None, pids: None };
        for (hierarchies, files, (least, least_shares), when_limited, when_free) in [
            (
                v1,
                v1_files,
                ("cpu/kubepods/besteffort/cpu.shares", "2"),
                ["1536", "1073741824", "1000"],
                ["2048", "-1", "max"],
            ),
            (
                v2,
                v2_files,
                ("unified/kubepods/besteffort/cpu.weight", "1"),
                ["59", "1073741824", "1000"],
                ["79", "max", "max"],
            ),
        ] {
            let cgroups = cgroups_in(hierarchies);
            let path = |file: &str| dir.path().join(file);
            // The kernel's files.
            for file in files.into_iter().chain([least]) {
                std::fs::create_dir_all(path(file).parent().unwrap()).unwrap();
                std::fs::write(path(file), "0").unwrap();
            }
            let read = || files.map(|file| std::fs::read_to_string(path(file)).unwrap());
            cgroups.ensure_qos(limited).unwrap();
            assert_eq!(read(), when_limited);
            assert_eq!(std::fs::read_to_string(path(least)).unwrap(), least_shares);
            cgroups.ensure_qos(free).unwrap();
            assert_eq!(read(), when_free);
            // As where memory or processes are not counted.
            for file in &files[1..] {
                std::fs::remove_file(path(file)).unwrap();
                cgroups.ensure_qos(free).unwrap();
                assert!(cgroups.ensure_qos(limited).is_err(), "{file}: not enforced, and not said");
                std::fs::write(path(file), "0").unwrap();
            }
        }
        assert!(unless_exceeded(Err(io::ErrorKind::ResourceBusy.into())).is_ok(), "pods that run are too large");
        assert!(unless_exceeded(Err(io::ErrorKind::NotFound.into())).is_err());
    }

    #[test]
    fn burstable_pods_together_have_the_shares_of_their_requests() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = trees(dir.path(), &["cpu"]);
        let v2 = Hierarchies::V2(dir.path().join("unified"));
        for (hierarchies, file, [none, one, ten]) in [
            (v1, "cpu/kubepods/burstable/cpu.shares", ["2", "1024", "10240"]),
            (v2, "unified/kubepods/burstable/cpu.weight", ["1", "39", "391"]),
        ] {
            let cgroups = cgroups_in(hierarchies);
            // The kernel's file.
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "as it was").unwrap();
            let read = || std::fs::read_to_string(&path).unwrap();
            cgroups.update_burstable().unwrap();
            assert_eq!(read(), "as it was", "no pod is known yet");
            cgroups.request_burstable(1000);
            cgroups.update_burstable().unwrap();
            assert_eq!(read(), one);
            std::fs::write(&path, "not written").unwrap();
            cgroups.clone().update_burstable().unwrap();
            assert_eq!(read(), "not written", "nothing has changed");
            cgroups.request_burstable(10_000);
            std::fs::remove_file(&path).unwrap();
            assert!(cgroups.update_burstable().is_err());
            std::fs::write(&path, "").unwrap();
            cgroups.update_burstable().unwrap();
            assert_eq!(read(), ten, "it failed, and was tried again");
            cgroups.request_burstable(0);
            cgroups.update_burstable().unwrap();
            assert_eq!(read(), none);
        }
    }

    #[test]
    fn pods_have_no_huge_pages_but_those_they_ask_for() {
        let dir = tempfile::tempdir().unwrap();
        let trees = trees(dir.path(), &["memory", "hugetlb"]);
        let cgroups = Cgroups { huge_pages: HugePages::from([(2 << 20, 9)]), ..cgroups_in(trees) };
        for (uid, requests, level, expected) in
            [("none", "", "besteffort", "0"), ("some", "memory=1Gi,hugepages-2Mi=4Mi", "burstable", "4194304")]
        {
            let pod = Pod {
                metadata: ObjectMeta { uid: Some(uid.into()), ..Default::default() },
                spec: Some(PodSpec { containers: vec![container_with("a", requests, "")], ..Default::default() }),
                ..Default::default()
            };
            let file = |tree: &str, name: &str| dir.path().join(format!("{tree}/kubepods/{level}/pod{uid}/{name}"));
            // The kernel's files, but for those of what is reserved.
            let [memory, pages] =
                [file("memory", "memory.limit_in_bytes"), file("hugetlb", "hugetlb.2MB.limit_in_bytes")];
            for file in [&memory, &pages] {
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "as it was").unwrap();
            }
            cgroups.ensure_pod(&pod).unwrap();
            assert_eq!(std::fs::read_to_string(&pages).unwrap(), expected, "{uid}");
        }
    }

    #[test]
    fn security_pods_have_a_limit_of_processes() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::new("n");
        assert!(settings.pod_pids_limit > 0, "without a word of the administrator");
        let hierarchies = trees(dir.path(), &["memory", "pids"]);
        let cgroups = Cgroups { pids_limit: Some(settings.pod_pids_limit), ..cgroups_in(hierarchies) };
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
