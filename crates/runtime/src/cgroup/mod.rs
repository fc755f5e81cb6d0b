//! Control groups, version 1 (one tree per controller) and version 2 (one tree), behind one type.
//!
//! A cgroup is named by its path below the root of every tree, e.g. `/kubepods/besteffort/pod1/ab12`. The kubelet owns
//! the pod levels; we own the leaves. Below a slice, leaves are scopes of systemd. All calls are idempotent: what is there already, or gone already, is fine.

mod systemd;

pub(crate) use systemd::is_scope;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::spec::{Device, Resources};

#[derive(Clone, Debug)]
pub(crate) enum Cgroups {
    V1(Vec<Hierarchy>),
    V2(PathBuf),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hierarchy {
    /// `cpu`, `memory`, …, or `name=systemd`.
    pub(crate) controllers: Vec<String>,
    pub(crate) mount: PathBuf,
}

impl Cgroups {
    pub(crate) fn detect() -> io::Result<Self> {
        Ok(Self::from_mountinfo(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    fn from_mountinfo(text: &str) -> Self {
        let mut v1 = Vec::new();
        let mut v2 = PathBuf::from("/sys/fs/cgroup");
        for line in text.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount) = left.split(' ').nth(4) else { continue };
            let mut right = right.split(' ');
            match right.next() {
                Some("cgroup") => {
                    let options = right.next_back().unwrap_or_default();
                    let controllers: Vec<String> = options
                        .split(',')
                        .filter(|o| !["rw", "ro", "xattr", "clone_children"].contains(o))
                        .filter(|o| !o.starts_with("release_agent"))
                        .map(ToString::to_string)
                        .collect();
                    // The same tree may be mounted twice.
                    if !v1.iter().any(|h: &Hierarchy| h.controllers == controllers) {
                        v1.push(Hierarchy { controllers, mount: mount.into() });
                    }
                }
                Some("cgroup2") => v2 = mount.into(),
                _ => {}
            }
        }
        if v1.is_empty() { Self::V2(v2) } else { Self::V1(v1) }
    }

    /// The directory of `path` in the tree of `controller`, where there is one.
    pub(crate) fn directory(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let path = path.trim_start_matches('/');
        match self {
            Self::V2(mount) => Some(mount.join(path)),
            Self::V1(trees) => {
                trees.iter().find(|t| t.controllers.iter().any(|c| c == controller)).map(|t| t.mount.join(path))
            }
        }
    }

    fn directories(&self, path: &str) -> Vec<PathBuf> {
        let path = path.trim_start_matches('/');
        match self {
            Self::V2(mount) => vec![mount.join(path)],
            Self::V1(trees) => trees.iter().map(|t| t.mount.join(path)).collect(),
        }
    }

    /// Makes the cgroup with its limits.
    pub(crate) fn create(&self, path: &str, resources: &Resources, devices: &[Device]) -> io::Result<()> {
        match self {
            Self::V1(trees) => {
                for tree in trees {
                    let directory = tree.mount.join(path.trim_start_matches('/'));
                    fs::create_dir_all(&directory).map_err(at(&directory))?;
                    if tree.controllers.iter().any(|c| c == "cpuset") {
                        inherit_cpuset(&tree.mount, &directory)?;
                    }
                }
            }
            Self::V2(mount) => {
                let mut directory = mount.clone();
                for part in Path::new(path.trim_start_matches('/')) {
                    enable_controllers(&directory);
                    directory.push(part);
                    match fs::create_dir(&directory) {
                        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                            return Err(at(&directory)(error));
                        }
                        _ => {}
                    }
                }
            }
        }
        self.update(path, resources)?;
        self.allow_devices(path, resources.all_devices, devices)
    }

    /// Applies limits to an existing cgroup; zero values are left alone.
    pub(crate) fn update(&self, path: &str, resources: &Resources) -> io::Result<()> {
        for (controller, file, value) in match self {
            Self::V1(_) => v1_settings(resources),
            Self::V2(_) => v2_settings(resources),
        } {
            let Some(directory) = self.directory(controller, path) else { continue };
            let target = directory.join(&file);
            match fs::write(&target, &value) {
                Ok(()) => {}
                Err(error) if file == "memory.limit_in_bytes" => {
                    // Raising above the old swap limit: that one has to go first.
                    fs::write(directory.join("memory.memsw.limit_in_bytes"), &value)
                        .and_then(|()| fs::write(&target, &value))
                        .map_err(|_| at(&target)(error))?;
                }
                // A kernel without the controller or the file: upstream runtimes go on too.
                Err(error) if optional(&file) || error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(&target)(error)),
            }
        }
        Ok(())
    }

    fn allow_devices(&self, path: &str, all: bool, devices: &[Device]) -> io::Result<()> {
        if all {
            return Ok(());
        }
        let rules = device_rules(devices)?;
        let Some(directory) = self.directory("devices", path) else { return Ok(()) };
        if let Self::V2(_) = self {
            return crate::device_filter::allow(&directory, &rules).map_err(at(&directory));
        }
        let deny = directory.join("devices.deny");
        fs::write(&deny, "a").map_err(at(&deny))?;
        let allow = directory.join("devices.allow");
        for rule in rules {
            fs::write(&allow, &rule).map_err(at(&allow))?;
        }
        Ok(())
    }

    /// Moves the first process of a container into its cgroup, which may be a scope of systemd.
    pub(crate) fn enter(&self, path: &str, pid: i32, resources: &Resources, devices: &[Device]) -> io::Result<()> {
        self.add(path, pid)?;
        if !systemd::is_scope(path) {
            return Ok(());
        }
        systemd::start(self, path, pid, resources, &device_rules(devices)?)?;
        // In the trees it manages, systemd has set what it thinks is right.
        self.update(path, resources)?;
        self.allow_devices(path, resources.all_devices, devices)?;
        self.add(path, pid)
    }

    /// Applies new limits to a container that runs.
    pub(crate) fn change(&self, path: &str, resources: &Resources) -> io::Result<()> {
        if systemd::is_scope(path) {
            systemd::update(self, path, resources)?;
        }
        self.update(path, resources)
    }

    /// Moves a process into the cgroup in every tree.
    pub(crate) fn add(&self, path: &str, pid: i32) -> io::Result<()> {
        for directory in self.directories(path) {
            let target = directory.join("cgroup.procs");
            fs::write(&target, pid.to_string()).map_err(at(&target))?;
        }
        Ok(())
    }

    /// Processes in the cgroup itself.
    pub(crate) fn processes(&self, path: &str) -> Vec<i32> {
        let directory = match self {
            Self::V2(_) => self.directory("", path),
            Self::V1(_) => ["pids", "devices", "memory", "cpu"].iter().find_map(|c| self.directory(c, path)),
        };
        directory
            .and_then(|d| fs::read_to_string(d.join("cgroup.procs")).ok())
            .map(|text| text.lines().filter_map(|l| l.parse().ok()).filter(|pid| *pid > 0).collect())
            .unwrap_or_default()
    }

    /// Sends SIGKILL to all that is in the cgroup.
    pub(crate) fn kill(&self, path: &str) {
        if let Self::V2(_) = self
            && let Some(directory) = self.directory("", path)
            && fs::write(directory.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for pid in self.processes(path) {
            // Gone meanwhile is as good as killed.
            let _ = crate::sys::kill(pid, libc::SIGKILL);
        }
    }

    /// Kills what is left and removes the cgroup with everything below it, in every tree.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        if systemd::is_scope(path) {
            self.kill(path);
            systemd::stop(path)?;
        }
        let mut last = Ok(());
        for directory in self.directories(path) {
            // The kernel empties a killed cgroup in its own time and tells nobody on version 1.
            for attempt in 0..500 {
                last = remove_tree(&directory);
                if last.is_ok() {
                    break;
                }
                self.kill(path);
                std::thread::sleep(Duration::from_millis(if attempt < 20 { 1 } else { 10 }));
            }
        }
        last
    }

    /// How often the kernel killed something in the cgroup for want of memory.
    pub(crate) fn oom_kills(&self, path: &str) -> u64 {
        let file = match self {
            Self::V1(_) => "memory.oom_control",
            Self::V2(_) => "memory.events",
        };
        self.directory("memory", path)
            .and_then(|d| fs::read_to_string(d.join(file)).ok())
            .and_then(|text| keyed(&text, "oom_kill"))
            .unwrap_or(0)
    }
}

/// The number after `key` in a file of `key number` lines.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Where a container or sandbox of a pod goes: below the parent that the kubelet names, in the form it uses.
pub(crate) fn child_path(parent: &str, id: &str) -> String {
    if parent.ends_with(".slice") {
        let slice = parent.rsplit('/').next().unwrap_or(parent);
        return format!("{}/cox-{id}.scope", dbus::systemd::slice_path(slice));
    }
    let parent = if parent.is_empty() { "/cox" } else { parent };
    format!("/{}/{id}", parent.trim_matches('/'))
}

fn at(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(entries) => {
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    remove_tree(&entry.path())?;
                }
            }
        }
    }
    fs::remove_dir(directory)
}

/// A new version 1 cpuset is empty and takes no process until it gets its parent's values.
fn inherit_cpuset(mount: &Path, directory: &Path) -> io::Result<()> {
    let mut chain: Vec<&Path> = directory.ancestors().take_while(|d| *d != mount).collect();
    chain.reverse();
    for level in chain {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let target = level.join(file);
            if fs::read_to_string(&target)?.trim().is_empty()
                && let Some(parent) = level.parent()
            {
                fs::write(&target, fs::read_to_string(parent.join(file))?.trim()).map_err(at(&target))?;
            }
        }
    }
    Ok(())
}

/// Version 2: children get only the controllers that every ancestor passes on. Unavailable ones are skipped.
fn enable_controllers(directory: &Path) {
    let Ok(available) = fs::read_to_string(directory.join("cgroup.controllers")) else { return };
    for controller in available.split_whitespace() {
        let _ = fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

fn optional(file: &str) -> bool {
    file.contains("memsw") || file.contains("swap") || file.starts_with("hugetlb") || file.contains("oom.group")
}

type Setting = (&'static str, String, String);

fn v1_settings(r: &Resources) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    let mut number = |controller, file: &str, value: i64| {
        if value != 0 {
            settings.push((controller, file.to_string(), value.to_string()));
        }
    };
    number("cpu", "cpu.shares", r.cpu_shares);
    number("cpu", "cpu.cfs_period_us", r.cpu_period);
    number("cpu", "cpu.cfs_quota_us", r.cpu_quota);
    number("memory", "memory.limit_in_bytes", r.memory_limit);
    number("memory", "memory.memsw.limit_in_bytes", r.memory_swap_limit);
    number("pids", "pids.max", r.pids_limit);
    text_settings(r, &mut settings);
    for (size, limit) in &r.hugepages {
        settings.push(("hugetlb", format!("hugetlb.{size}.limit_in_bytes"), limit.to_string()));
    }
    settings
}

fn v2_settings(r: &Resources) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    let mut set = |file: &str, value: String| settings.push(("", file.to_string(), value));
    if r.cpu_shares != 0 {
        set("cpu.weight", weight(r.cpu_shares).to_string());
    }
    if r.cpu_quota != 0 {
        let period = if r.cpu_period == 0 { 100_000 } else { r.cpu_period };
        let quota = if r.cpu_quota < 0 { "max".into() } else { r.cpu_quota.to_string() };
        set("cpu.max", format!("{quota} {period}"));
    }
    if r.memory_limit != 0 {
        set("memory.max", unlimited_or(r.memory_limit));
    }
    if r.memory_swap_limit != 0 {
        set("memory.swap.max", unlimited_or((r.memory_swap_limit - r.memory_limit).max(0)));
    }
    if r.pids_limit != 0 {
        set("pids.max", unlimited_or(r.pids_limit));
    }
    text_settings(r, &mut settings);
    for (size, limit) in &r.hugepages {
        settings.push(("", format!("hugetlb.{size}.max"), limit.to_string()));
    }
    for (file, value) in &r.unified {
        settings.push(("", file.clone(), value.clone()));
    }
    settings
}

fn text_settings(r: &Resources, settings: &mut Vec<Setting>) {
    for (file, value) in [("cpuset.cpus", &r.cpuset_cpus), ("cpuset.mems", &r.cpuset_mems)] {
        if !value.is_empty() {
            settings.push(("cpuset", file.to_string(), value.clone()));
        }
    }
}

fn unlimited_or(value: i64) -> String {
    if value < 0 { "max".into() } else { value.to_string() }
}

/// null, zero, full, random, urandom, tty, console, ptmx, the pseudo-terminals; and making (not opening) any node.
const USUAL_DEVICES: [&str; 11] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:1 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// 2..=262144 shares onto 1..=10000 weight, as every runtime maps them.
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// What a container may do with which devices, in the words of cgroup v1.
fn device_rules(devices: &[Device]) -> io::Result<Vec<String>> {
    let mut rules: Vec<String> = USUAL_DEVICES.iter().map(ToString::to_string).collect();
    for device in devices {
        rules.push(device_rule(device).map_err(at(&device.host_path))?);
    }
    Ok(rules)
}

fn device_rule(device: &Device) -> io::Result<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = fs::metadata(&device.host_path)?;
    let kind = if metadata.file_type().is_block_device() { 'b' } else { 'c' };
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let permissions = if device.permissions.is_empty() { "rwm" } else { &device.permissions };
    Ok(format!("{kind} {major}:{minor} {permissions}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_found_in_mountinfo() {
        let v1 = "24 22 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                  25 22 0:23 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd\n\
                  26 22 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let Cgroups::V1(trees) = Cgroups::from_mountinfo(v1) else { panic!("hybrid is version 1") };
        assert_eq!(trees[0].controllers, ["cpu", "cpuacct"]);
        assert_eq!(trees[1].controllers, ["name=systemd"]);
        let v2 = "26 22 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert!(matches!(Cgroups::from_mountinfo(v2), Cgroups::V2(m) if m == Path::new("/sys/fs/cgroup")));
    }

    #[test]
    fn parents_come_in_both_drivers_forms() {
        for (parent, expected) in [
            ("", "/cox/x"),
            ("/kubepods/pod1", "/kubepods/pod1/x"),
            (
                "kubepods-burstable-pod1.slice",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cox-x.scope",
            ),
        ] {
            assert_eq!(child_path(parent, "x"), expected);
        }
    }

    #[test]
    fn limits_in_both_versions() {
        let r = Resources { cpu_shares: 1024, cpu_quota: 50_000, memory_limit: 1 << 20, ..Default::default() };
        let names = |s: Vec<Setting>| s.into_iter().map(|(_, f, v)| format!("{f}={v}")).collect::<Vec<_>>();
        assert_eq!(
            names(v1_settings(&r)),
            ["cpu.shares=1024", "cpu.cfs_quota_us=50000", "memory.limit_in_bytes=1048576"]
        );
        assert_eq!(names(v2_settings(&r)), ["cpu.weight=39", "cpu.max=50000 100000", "memory.max=1048576"]);
    }
}
