//! The mounted trees, and the cgroups in them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Limits, Setting, Version};

const USUAL_MOUNT: &str = "/sys/fs/cgroup";

/// Every tree that processes are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchies {
    /// Some may control nothing; whoever is put somewhere is put there in all of them.
    V1(Vec<Hierarchy>),
    V2(PathBuf),
}

/// One tree of version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// `cpu`, `memory`, …, or `name=systemd`.
    pub controllers: Vec<String>,
    pub mount: PathBuf,
}

/// What a file means that the kernel does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The limit cannot be kept: an error.
    Refused,
    /// The kernel has no such limit, and is used all the same.
    Skipped,
}

impl Hierarchies {
    /// Finds what is mounted.
    pub fn detect() -> io::Result<Self> {
        Self::from_mountinfo(&files::mount_table()?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup hierarchy is mounted"))
    }

    /// Where controllers are in trees of their own, version 2 (if mounted besides) has none of them.
    fn from_mountinfo(table: &[u8]) -> Option<Self> {
        let mut v1: Vec<Hierarchy> = Vec::new();
        let mut v2: Option<PathBuf> = None;
        for mount in files::mounts(table) {
            match mount.file_system {
                b"cgroup" => {
                    let options = String::from_utf8_lossy(mount.options);
                    let controllers = options.split(',').filter(|option| is_controller(option));
                    let controllers: Vec<String> = controllers.map(String::from).collect();
                    // The same tree may be mounted twice.
                    if !v1.iter().any(|tree| tree.controllers == controllers) {
                        v1.push(Hierarchy { controllers, mount: mount.point });
                    }
                }
                b"cgroup2" if v2.is_none() || mount.point == Path::new(USUAL_MOUNT) => v2 = Some(mount.point),
                _ => {}
            }
        }
        let controls = |tree: &Hierarchy| tree.controllers.iter().any(|controller| !controller.starts_with("name="));
        match v2 {
            Some(mount) if !v1.iter().any(controls) => Some(Self::V2(mount)),
            _ if v1.is_empty() => None,
            _ => Some(Self::V1(v1)),
        }
    }

    pub fn version(&self) -> Version {
        match self {
            Self::V1(_) => Version::V1,
            Self::V2(_) => Version::V2,
        }
    }

    /// The directory of `path` in the tree of `controller`, where there is one.
    pub fn directory(&self, controller: &str, path: impl AsRef<Path>) -> Option<PathBuf> {
        match self {
            Self::V2(mount) => Some(mount.join(below(path.as_ref()))),
            Self::V1(trees) => trees
                .iter()
                .find(|tree| tree.controllers.iter().any(|c| c == controller))
                .map(|tree| tree.mount.join(below(path.as_ref()))),
        }
    }

    /// Whether a controller is there: on version 2, a kernel may have it switched off.
    pub fn has(&self, controller: &str) -> bool {
        match self {
            Self::V2(mount) => fs::read_to_string(mount.join("cgroup.controllers"))
                .is_ok_and(|text| text.split_whitespace().any(|there| there == controller)),
            Self::V1(trees) => trees.iter().any(|tree| tree.controllers.iter().any(|there| there == controller)),
        }
    }

    /// The directories of `path` in all trees.
    pub fn directories(&self, path: impl AsRef<Path>) -> Vec<PathBuf> {
        let path = below(path.as_ref());
        match self {
            Self::V2(mount) => vec![mount.join(path)],
            Self::V1(trees) => trees.iter().map(|tree| tree.mount.join(path)).collect(),
        }
    }

    /// Makes a cgroup, and those on the way to it.
    pub fn make(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = below(path.as_ref());
        match self {
            Self::V1(trees) => {
                for tree in trees {
                    let directory = tree.mount.join(path);
                    fs::create_dir_all(&directory).map_err(at(&directory))?;
                    if tree.controllers.iter().any(|controller| controller == "cpuset") {
                        inherit_cpuset(&tree.mount, path)?;
                    }
                }
            }
            Self::V2(mount) => {
                let mut directory = mount.clone();
                for part in path {
                    pass_on(&directory);
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
        Ok(())
    }

    /// Lets cgroups below this one have limits of their own; then it takes no processes itself on version 2.
    pub fn pass_on_controllers(&self, path: impl AsRef<Path>) {
        if let Self::V2(mount) = self {
            pass_on(&mount.join(below(path.as_ref())));
        }
    }

    /// Writes limits to a cgroup that is there.
    pub fn limit(&self, path: impl AsRef<Path>, limits: &Limits, missing: Missing) -> io::Result<()> {
        for setting in limits.settings(self.version()) {
            let Some(directory) = self.directory(setting.controller, &path) else {
                tracing::debug!(controller = setting.controller, file = setting.file, "no tree of this controller");
                continue;
            };
            set(&directory, &setting, missing)?;
        }
        Ok(())
    }

    /// The quota and the memory that a cgroup is limited to now; none where it is not.
    pub fn limits(&self, path: impl AsRef<Path>) -> io::Result<(Option<i64>, Option<i64>)> {
        let read = |controller: &str, file: &str| -> io::Result<Option<i64>> {
            let Some(directory) = self.directory(controller, &path) else { return Ok(None) };
            let file = directory.join(file);
            let text = fs::read_to_string(&file).map_err(at(&file))?;
            // A word (`max`), a negative number, or more bytes than there can be: no limit.
            let limit = text.split_whitespace().next().and_then(|limit| limit.parse().ok());
            Ok(limit.filter(|limit| (0..i64::MAX / 2).contains(limit)))
        };
        match self.version() {
            Version::V1 => Ok((read("cpu", "cpu.cfs_quota_us")?, read("memory", "memory.limit_in_bytes")?)),
            Version::V2 => Ok((read("cpu", "cpu.max")?, read("memory", "memory.max")?)),
        }
    }

    /// Moves a process into the cgroup in every tree.
    pub fn add(&self, path: impl AsRef<Path>, pid: i32) -> io::Result<()> {
        for directory in self.directories(path) {
            let target = directory.join("cgroup.procs");
            fs::write(&target, pid.to_string()).map_err(at(&target))?;
        }
        Ok(())
    }

    /// Processes in the cgroup itself.
    pub fn processes(&self, path: impl AsRef<Path>) -> Vec<i32> {
        let directory = match self {
            Self::V2(_) => self.directory("", path),
            Self::V1(_) => ["pids", "devices", "memory", "cpu"].iter().find_map(|c| self.directory(c, &path)),
        };
        directory
            .and_then(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok())
            .map(|text| text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect())
            .unwrap_or_default()
    }

    /// Sends SIGKILL to all that is in the cgroup.
    pub fn kill(&self, path: impl AsRef<Path>) {
        if let Self::V2(mount) = self
            && fs::write(mount.join(below(path.as_ref())).join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for pid in self.processes(path) {
            // Gone meanwhile is as good as killed.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// Removes a cgroup that nothing runs in, with everything below it, in every tree.
    pub fn remove_empty(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.directories(path).iter().try_for_each(|directory| remove_tree(directory))
    }

    /// Kills what is left and removes the cgroup with everything below it, in every tree.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
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
    pub fn oom_kills(&self, path: impl AsRef<Path>) -> u64 {
        let file = match self.version() {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.directory("memory", path)
            .and_then(|directory| fs::read_to_string(directory.join(file)).ok())
            .and_then(|text| keyed(&text, "oom_kill"))
            .unwrap_or(0)
    }
}

/// Options of a mount that are no controllers.
fn is_controller(option: &str) -> bool {
    !["rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode", "none", ""].contains(&option)
        && !option.starts_with("release_agent")
}

/// Paths are those below the root of a tree, with a slash before them or not.
fn below(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// The number after `key` in a file of `key number` lines.
pub fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Errors name the file that they are about.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn set(directory: &Path, setting: &Setting, missing: Missing) -> io::Result<()> {
    let target = directory.join(&setting.file);
    match overwrite(&target, &setting.value) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && missing == Missing::Skipped => {
            tracing::debug!(path = %target.display(), "the kernel has no such limit here");
            Ok(())
        }
        Err(error) if setting.is_optional() => {
            tracing::debug!(path = %target.display(), %error, "limit not set");
            Ok(())
        }
        // Raising it above the old limit of memory and swap: that one has to go first.
        Err(error) if setting.file == "memory.limit_in_bytes" => {
            overwrite(&directory.join("memory.memsw.limit_in_bytes"), &setting.value)
                .and_then(|()| overwrite(&target, &setting.value))
                .map_err(|_| at(&target)(error))
        }
        Err(error) => Err(at(&target)(error)),
    }
}

/// Writes a file that is there; the kernel makes those of a cgroup.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// A new cpuset of version 1 is empty and takes no process until it gets its parent's values.
fn inherit_cpuset(mount: &Path, path: &Path) -> io::Result<()> {
    let mut level = mount.to_path_buf();
    for part in path {
        let parent = level.clone();
        level.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (parent.join(file), level.join(file));
            if fs::read_to_string(&to).map_err(at(&to))?.trim().is_empty() {
                let inherited = fs::read_to_string(&from).map_err(at(&from))?;
                overwrite(&to, inherited.trim()).map_err(at(&to))?;
            }
        }
    }
    Ok(())
}

/// Version 2: children have only the controllers that every ancestor passes on. Each is asked for alone, so that one that
/// cannot be had does not keep the others away.
fn pass_on(directory: &Path) {
    let Ok(available) = fs::read_to_string(directory.join("cgroup.controllers")) else { return };
    for controller in available.split_whitespace() {
        if let Err(error) = overwrite(&directory.join("cgroup.subtree_control"), &format!("+{controller}")) {
            tracing::debug!(directory = %directory.display(), controller, %error, "controller not passed on");
        }
    }
}

/// Removes a cgroup and those below it, depth first.
fn remove_tree(directory: &Path) -> io::Result<()> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(entries) => {
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove_tree(&entry.path())?;
                }
            }
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(controllers: &[&str], mount: &Path) -> Hierarchy {
        Hierarchy { controllers: controllers.iter().map(ToString::to_string).collect(), mount: mount.into() }
    }

    #[test]
    fn trees_are_found_in_mountinfo() {
        let cpu = "24 22 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        let again = "34 22 0:22 / /elsewhere/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        let named = "25 22 0:23 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,release_agent=/x,name=systemd\n";
        let unified = "26 22 0:24 / /sys/fs/cgroup/unified rw shared:3 - cgroup2 cgroup2 rw,nsdelegate\n";
        let v2 = "27 22 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let other = "28 22 0:30 / /proc rw - proc proc rw\n";
        let cpu_tree = tree(&["cpu", "cpuacct"], Path::new("/sys/fs/cgroup/cpu"));
        let named_tree = tree(&["name=systemd"], Path::new("/sys/fs/cgroup/systemd"));
        for (what, mounts, expected) in [
            ("none", vec![other], None),
            ("version 1", vec![other, cpu, again], Some(Hierarchies::V1(vec![cpu_tree.clone()]))),
            ("hybrid", vec![cpu, named, unified], Some(Hierarchies::V1(vec![cpu_tree, named_tree.clone()]))),
            ("version 2", vec![v2, other], Some(Hierarchies::V2(USUAL_MOUNT.into()))),
            // All controllers are in the one tree: the other only names processes.
            ("hybrid by name", vec![named, unified], Some(Hierarchies::V2("/sys/fs/cgroup/unified".into()))),
            ("mounted twice", vec![unified, v2], Some(Hierarchies::V2(USUAL_MOUNT.into()))),
            ("only names", vec![named], Some(Hierarchies::V1(vec![named_tree]))),
        ] {
            assert_eq!(Hierarchies::from_mountinfo(mounts.concat().as_bytes()), expected, "{what}");
        }
        let beside_no_text = [&b"29 22 0:40 / /x\xff rw - tmpfs \xfe rw\n"[..], v2.as_bytes()].concat();
        assert_eq!(Hierarchies::from_mountinfo(&beside_no_text), Some(Hierarchies::V2(USUAL_MOUNT.into())));
    }

    #[test]
    fn a_controller_may_be_switched_off() {
        let dir = tempfile::tempdir().unwrap();
        let unified = Hierarchies::V2(dir.path().into());
        assert!(!unified.has("memory"));
        for (there, expected) in [("cpuset cpu io pids\n", false), ("cpuset cpu io memory pids\n", true)] {
            fs::write(dir.path().join("cgroup.controllers"), there).unwrap();
            assert_eq!(unified.has("memory"), expected, "{there}");
        }
        let trees = Hierarchies::V1(vec![tree(&["cpu", "cpuacct"], dir.path())]);
        assert!(trees.has("cpu") && !trees.has("memory"));
    }

    #[test]
    fn cgroups_are_in_every_tree() {
        let dir = tempfile::tempdir().unwrap();
        let trees =
            vec![tree(&["memory"], &dir.path().join("memory")), tree(&["name=systemd"], &dir.path().join("systemd"))];
        for hierarchies in [Hierarchies::V1(trees), Hierarchies::V2(dir.path().join("unified"))] {
            for root in hierarchies.directories("/") {
                fs::create_dir_all(root).unwrap();
            }
            hierarchies.make("/pods/a/container").unwrap();
            hierarchies.make("pods/a/container").unwrap();
            let made = hierarchies.directories("/pods/a/container");
            assert!(made.iter().all(|directory| directory.is_dir()), "{made:?}");
            hierarchies.remove_empty("/pods/a").unwrap();
            assert!(!hierarchies.directories("/pods/a").iter().any(|directory| directory.exists()));
            assert!(hierarchies.directories("/pods").iter().all(|directory| directory.exists()), "others stay");
            hierarchies.remove_empty("/pods/a").unwrap();
        }
        let nowhere = Hierarchies::V1(Vec::new());
        assert_eq!(nowhere.directory("memory", "/x"), None);
    }

    #[test]
    fn cpusets_get_what_their_parents_have() {
        let dir = tempfile::tempdir().unwrap();
        let hierarchies = Hierarchies::V1(vec![tree(&["cpuset"], dir.path())]);
        let levels = ["", "pods", "pods/a"];
        for level in levels {
            fs::create_dir_all(dir.path().join(level)).unwrap();
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(dir.path().join(level).join(file), if level.is_empty() { "0-3\n" } else { "\n" }).unwrap();
            }
        }
        fs::write(dir.path().join("pods/cpuset.cpus"), "1").unwrap();
        hierarchies.make("pods/a").unwrap();
        let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!((read("pods/a/cpuset.cpus").as_str(), read("pods/a/cpuset.mems").as_str()), ("1", "0-3"));
    }

    #[test]
    fn limits_are_written_where_the_kernel_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let hierarchies = Hierarchies::V2(dir.path().into());
        hierarchies.make("pod").unwrap();
        let limits = Limits { memory_limit: 4096, cpu_quota: 1000, ..Default::default() };
        let file = |name: &str| dir.path().join("pod").join(name);
        fs::write(file("cpu.max"), "max 100000").unwrap();
        let refused = hierarchies.limit("pod", &limits, Missing::Refused).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        assert!(refused.to_string().starts_with(&format!("{}: ", file("memory.max").display())), "{refused}");
        hierarchies.limit("pod", &limits, Missing::Skipped).unwrap();
        assert_eq!(fs::read_to_string(file("cpu.max")).unwrap(), "1000 100000");
        assert!(!file("memory.max").exists(), "only the kernel makes files");
        // A kernel that does not count swap is used all the same.
        let swap = Limits { memory_swap_limit: 4096, ..Default::default() };
        hierarchies.limit("pod", &swap, Missing::Refused).unwrap();
        fs::write(file("memory.max"), "max\n").unwrap();
        assert_eq!(hierarchies.limits("pod").unwrap(), (Some(1000), None));
    }

    #[test]
    fn numbers_are_found_by_their_keys() {
        let text = "oom 1\noom_kill 3\n";
        assert_eq!((keyed(text, "oom_kill"), keyed(text, "oom"), keyed(text, "o")), (Some(3), Some(1), None));
    }
}
