//! Pod cgroups: `/kubepods[/burstable|/besteffort]/pod<uid>` on cgroup v1 and v2, written directly, or slices of systemd.
//!
//! Flow: `sync` makes the pod's cgroup before its sandbox; the runtime puts containers below it;
//! it is removed after the sandbox is gone. Guaranteed pods sit directly under `/kubepods`. `names` says what they are
//! called; with systemd's driver, `slices` has it start and stop them, and what it does not manage is written here all
//! the same.

mod names;
mod slices;

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::config::{CgroupDriver, Settings};
use crate::resources::{self, PodResources};
use crate::{qos, state};
use names::Names;
use slices::Slices;

/// Where a pod may be, by its class.
const LEVELS: [&str; 3] = ["", "burstable", "besteffort"];

#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    layout: Layout,
    names: Names,
    /// With systemd's driver.
    slices: Option<Slices>,
    /// Processes of one pod; none where it may have as many as it likes.
    pids_limit: Option<i64>,
}

#[derive(Clone, Debug)]
enum Layout {
    /// One tree per controller.
    V1(Vec<(String, PathBuf)>),
    V2(PathBuf),
}

/// The last one controls nothing, but runtimes put containers there as well: what is below a pod must go with it.
const V1_CONTROLLERS: &[&str] =
    &["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "freezer", "devices", "blkio", "systemd"];
const V2_CONTROLLERS: &[&str] = &["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

impl Cgroups {
    /// Finds the mounted hierarchies, and systemd where its driver is wanted.
    pub(crate) fn detect(settings: &Settings, driver: CgroupDriver) -> io::Result<Self> {
        let layout = Layout::under(Path::new("/sys/fs/cgroup"))?;
        let slices = match driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => {
                let is_v1 = matches!(layout, Layout::V1(_));
                let slices = Slices { bus: settings.system_bus.clone(), is_v1 };
                slices.check()?;
                Some(slices)
            }
        };
        let pids_limit = Some(settings.pod_pids_limit).filter(|limit| *limit > 0);
        Ok(Cgroups { layout, names: Names::new(driver, &settings.cgroup_root), slices, pids_limit })
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

    /// Makes `kubepods` and the two QoS levels below it.
    pub(crate) fn ensure_qos(&self) -> io::Result<()> {
        for level in LEVELS {
            let path = self.names.path(&[level]);
            self.make(&path)?;
            if level == "besteffort" {
                self.write_cpu_shares(&path, 2)?;
            }
        }
        Ok(())
    }

    pub(crate) fn ensure_pod(&self, pod: &Pod) -> io::Result<()> {
        let (path, resources) = (self.path_of(pod), resources::for_pod(pod));
        let is_new = self.roots().iter().any(|root| !root.join(&path).exists());
        if is_new {
            self.make(&path)?;
        }
        if let (true, Some(slices)) = (is_new, &self.slices) {
            slices.limit(&Names::unit(&path), &resources)?;
        }
        self.limit_pids(&path)?;
        self.apply(&path, &resources)
    }

    fn limit_pids(&self, path: &Path) -> io::Result<()> {
        let root = match &self.layout {
            Layout::V1(trees) => trees.iter().find(|(name, _)| name == "pids").map(|(_, root)| root),
            Layout::V2(root) => Some(root),
        };
        let (Some(limit), Some(root)) = (self.pids_limit, root) else { return Ok(()) };
        let file = root.join(path).join("pids.max");
        if !file.exists() {
            tracing::debug!(path = %file.display(), "the kernel limits no processes here");
            return Ok(());
        }
        std::fs::write(file, limit.to_string())
    }

    /// Gives a pod that runs new limits; none that is lower than now while `keeps_room`, since containers still have theirs.
    pub(crate) fn resize_pod(&self, pod: &Pod, keeps_room: bool) -> io::Result<()> {
        let (path, mut resources) = (self.path_of(pod), resources::for_pod(pod));
        if keeps_room {
            let (quota, memory) = self.limits(&path)?;
            let widest = |now: Option<i64>, new: Option<i64>| Some(now?.max(new?));
            resources.cpu_quota = widest(quota, resources.cpu_quota);
            resources.memory_limit = widest(memory, resources.memory_limit);
        }
        if let Some(slices) = &self.slices {
            slices.limit(&Names::unit(&path), &resources)?;
        }
        self.apply(&path, &resources)
    }

    /// The quota and the memory that a cgroup is limited to now.
    fn limits(&self, path: &Path) -> io::Result<(Option<i64>, Option<i64>)> {
        let read = |controller: &str, file: &str| -> io::Result<Option<i64>> {
            let root = match &self.layout {
                Layout::V1(trees) => trees.iter().find(|(name, _)| name == controller).map(|(_, root)| root),
                Layout::V2(root) => Some(root),
            };
            let Some(root) = root else { return Ok(None) };
            let text = std::fs::read_to_string(root.join(path).join(file))?;
            // A word (`max`), a negative number, or more bytes than there can be: no limit.
            let limit = text.split_whitespace().next().and_then(|limit| limit.parse().ok());
            Ok(limit.filter(|limit| (0..i64::MAX / 2).contains(limit)))
        };
        match &self.layout {
            Layout::V1(_) => Ok((read("cpu", "cpu.cfs_quota_us")?, read("memory", "memory.limit_in_bytes")?)),
            Layout::V2(_) => Ok((read("cpu", "cpu.max")?, read("memory", "memory.max")?)),
        }
    }

    /// Removes the pod's cgroup wherever its class put it, with what a dead runtime may have left in it.
    pub(crate) fn remove_pod(&self, uid: &str) -> io::Result<()> {
        for level in LEVELS {
            let path = self.names.pod(level, uid);
            let directories: Vec<PathBuf> = self.roots().iter().map(|root| root.join(&path)).collect();
            if let (Some(slices), true) = (&self.slices, directories.iter().any(|directory| directory.exists())) {
                slices.stop(&Names::unit(&path))?;
            }
            directories.iter().try_for_each(|directory| remove_tree(directory))?;
        }
        Ok(())
    }

    /// Uids of all pods that have a cgroup.
    pub(crate) fn pods(&self) -> Vec<String> {
        let mut uids: Vec<String> = Vec::new();
        for root in self.roots() {
            for level in LEVELS {
                // What is not seen now is seen at the next look.
                let Ok(entries) = std::fs::read_dir(root.join(self.names.path(&[level]))) else { continue };
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
        matches!(self.layout, Layout::V2(_))
    }

    /// The cgroups above those of pods, as [`Self::pod_path`] writes them.
    pub(crate) fn level_paths(&self) -> Vec<String> {
        let path = |level| Path::new("/").join(self.names.path(&[level])).to_string_lossy().into_owned();
        LEVELS.into_iter().map(path).collect()
    }

    /// The directory of a cgroup in a controller's tree; none where the controller is not mounted.
    pub(crate) fn directory(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let root = match &self.layout {
            Layout::V1(trees) => &trees.iter().find(|(name, _)| name == controller)?.1,
            Layout::V2(root) => root,
        };
        Some(root.join(path.trim_start_matches('/')))
    }

    /// The names of the cgroups below one; none when it is gone.
    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        let entries = self.directory("memory", path).and_then(|directory| std::fs::read_dir(directory).ok());
        let directories = entries.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn roots(&self) -> Vec<&PathBuf> {
        match &self.layout {
            Layout::V1(trees) => trees.iter().map(|(_, path)| path).collect(),
            Layout::V2(root) => vec![root],
        }
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        if let Some(slices) = &self.slices {
            Slices::units(path).iter().try_for_each(|unit| slices.start(unit))?;
        }
        match &self.layout {
            Layout::V1(trees) => {
                for (name, root) in trees {
                    std::fs::create_dir_all(root.join(path))?;
                    if name == "cpuset" {
                        inherit_cpuset(root, path)?;
                    }
                }
            }
            Layout::V2(root) => {
                let mut at = root.clone();
                for part in path.components() {
                    enable_controllers(&at);
                    at.push(part);
                    if !at.exists() {
                        std::fs::create_dir(&at)?;
                    }
                }
                // Containers below need them too.
                enable_controllers(&at);
            }
        }
        Ok(())
    }

    fn apply(&self, path: &Path, resources: &PodResources) -> io::Result<()> {
        self.write_cpu_shares(path, resources.cpu_shares)?;
        match &self.layout {
            Layout::V1(trees) => {
                for (name, root) in trees {
                    let dir = root.join(path);
                    if name == "cpu" || dir.join("cpu.cfs_quota_us").exists() {
                        std::fs::write(dir.join("cpu.cfs_period_us"), resources.cpu_period.to_string())?;
                        std::fs::write(dir.join("cpu.cfs_quota_us"), resources.cpu_quota.unwrap_or(-1).to_string())?;
                    }
                    if name == "memory" {
                        std::fs::write(
                            dir.join("memory.limit_in_bytes"),
                            resources.memory_limit.unwrap_or(-1).to_string(),
                        )?;
                    }
                }
            }
            Layout::V2(root) => {
                let dir = root.join(path);
                let quota = resources.cpu_quota.map_or("max".to_string(), |quota| quota.to_string());
                std::fs::write(dir.join("cpu.max"), format!("{quota} {}", resources.cpu_period))?;
                let memory = resources.memory_limit.map_or("max".to_string(), |bytes| bytes.to_string());
                std::fs::write(dir.join("memory.max"), memory)?;
            }
        }
        Ok(())
    }

    fn write_cpu_shares(&self, path: &Path, shares: i64) -> io::Result<()> {
        match &self.layout {
            Layout::V1(trees) => {
                for (name, root) in trees {
                    if name == "cpu" {
                        std::fs::write(root.join(path).join("cpu.shares"), shares.to_string())?;
                    }
                }
                Ok(())
            }
            Layout::V2(root) => {
                std::fs::write(root.join(path).join("cpu.weight"), shares_to_weight(shares).to_string())
            }
        }
    }
}

impl Layout {
    fn under(mount: &Path) -> io::Result<Self> {
        if mount.join("cgroup.controllers").exists() {
            return Ok(Layout::V2(mount.to_path_buf()));
        }
        let mut trees: Vec<(String, PathBuf)> = Vec::new();
        for name in V1_CONTROLLERS {
            // Controllers may share a mount (cpu,cpuacct) behind a symbolic link.
            let Ok(path) = mount.join(name).canonicalize() else { continue };
            if !trees.iter().any(|(_, existing)| *existing == path) {
                trees.push(((*name).to_string(), path));
            }
        }
        if trees.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("no cgroup hierarchy under {}", mount.display()),
            ));
        }
        Ok(Layout::V1(trees))
    }
}

/// cgroup v2 counts 1..10000 where v1 counts 2..262144.
pub(crate) fn shares_to_weight(shares: i64) -> i64 {
    1 + ((shares.clamp(2, 262_144) - 2) * 9999) / 262_142
}

/// A new v1 cpuset has no cpus and no memory nodes: nothing can run in it until it has.
fn inherit_cpuset(root: &Path, path: &Path) -> io::Result<()> {
    let mut at = root.to_path_buf();
    for part in path.components() {
        let parent = at.clone();
        at.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let current = std::fs::read_to_string(at.join(file))?;
            if current.trim().is_empty() {
                std::fs::write(at.join(file), std::fs::read_to_string(parent.join(file))?.trim())?;
            }
        }
    }
    Ok(())
}

/// Enabling one that the kernel lacks fails; each is tried alone so that the others still work.
fn enable_controllers(dir: &Path) {
    let available = std::fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for name in available.split_whitespace().filter(|name| V2_CONTROLLERS.contains(name)) {
        if let Err(error) = std::fs::write(dir.join("cgroup.subtree_control"), format!("+{name}")) {
            tracing::debug!(dir = %dir.display(), controller = name, %error, "controller not enabled");
        }
    }
}

/// Removes a cgroup and those below it, depth first.
fn remove_tree(path: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

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
            let cgroups =
                Cgroups { layout: Layout::V2("/sys/fs/cgroup".into()), names, slices: None, pids_limit: None };
            assert_eq!(cgroups.pod_path(&pod), expected);
        }
    }

    #[test]
    fn a_pod_leaves_no_hierarchy_behind() {
        let dir = tempfile::tempdir().unwrap();
        for tree in ["memory", "systemd"] {
            std::fs::create_dir(dir.path().join(tree)).unwrap();
        }
        let names = Names::new(CgroupDriver::Cgroupfs, "/");
        let cgroups = Cgroups { layout: Layout::under(dir.path()).unwrap(), names, slices: None, pids_limit: None };
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
    fn security_pods_have_a_limit_of_processes() {
        let dir = tempfile::tempdir().unwrap();
        for tree in ["memory", "pids"] {
            std::fs::create_dir(dir.path().join(tree)).unwrap();
        }
        let settings = Settings::new("n");
        assert!(settings.pod_pids_limit > 0, "without a word of the administrator");
        let names = Names::new(CgroupDriver::Cgroupfs, "/");
        let layout = Layout::under(dir.path()).unwrap();
        let cgroups = Cgroups { layout, names, slices: None, pids_limit: Some(settings.pod_pids_limit) };
        let pod = Pod {
            metadata: ObjectMeta { uid: Some("u1".into()), ..Default::default() },
            spec: Some(PodSpec { containers: vec![container_with("a", "", "")], ..Default::default() }),
            ..Default::default()
        };
        let file = dir.path().join("pids/kubepods/besteffort/podu1/pids.max");
        // As where no such controller is passed on.
        cgroups.ensure_pod(&pod).unwrap();
        std::fs::write(&file, "max").unwrap();
        cgroups.ensure_pod(&pod).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), settings.pod_pids_limit.to_string());
    }

    #[test]
    fn weights() {
        for (shares, weight) in [(2, 1), (102, 4), (1024, 39), (262_144, 10_000)] {
            assert_eq!(shares_to_weight(shares), weight);
        }
    }
}
