//! Facts about the machine: read once at start.

use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::huge_pages::{self, HugePages};

#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) ips: Vec<IpAddr>,
    pub(crate) cpus: u64,
    pub(crate) memory: u64,
    pub(crate) swap: u64,
    pub(crate) disk: u64,
    pub(crate) huge_pages: HugePages,
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
}

impl Machine {
    /// Fails without what pods are placed by; names that are only shown may be missing.
    pub(crate) fn read(root_dir: &Path, node_ips: &[IpAddr]) -> anyhow::Result<Self> {
        let Ids { machine_id, system_uuid, boot_id } = Ids::read();
        let release = text("/etc/os-release");
        let os_image = release
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .map_or("Linux".to_string(), |name| name.trim_matches('"').to_string());
        Ok(Machine {
            ips: if node_ips.is_empty() { vec![default_ip()] } else { node_ips.to_vec() },
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
            memory: node_memory().context("/proc/meminfo does not say how much memory there is")?,
            swap: meminfo_bytes(&text("/proc/meminfo"), "SwapTotal"),
            disk: disk(root_dir).with_context(|| format!("no file system at {}", root_dir.display()))?.0,
            huge_pages: huge_pages::read(Path::new(huge_pages::DIRECTORY)),
            machine_id,
            system_uuid,
            boot_id,
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image,
        })
    }
}

/// What tells machines, and times between two starts of one, from each other.
pub(crate) struct Ids {
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
}

impl Ids {
    pub(crate) fn read() -> Self {
        let machine_id = text("/etc/machine-id");
        let uuid = text("/sys/class/dmi/id/product_uuid");
        Self {
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            machine_id,
            boot_id: text("/proc/sys/kernel/random/boot_id"),
        }
    }
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Where processors are.
pub(crate) const CPUS: &str = "/sys/devices/system/cpu";

/// Of those processors that count how often they were too hot. Whoever reads that learns what others compute; containers do not
/// (`defaultMaskedPaths`, v1.36).
pub(crate) fn thermal_paths(cpus: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cpus).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path().join("thermal_throttle")).filter(|path| path.exists());
    paths.map(|path| path.to_string_lossy().into_owned()).collect()
}

/// All memory of the node. None when the kernel does not say.
pub(crate) fn node_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(meminfo_bytes(&meminfo, "MemTotal")).filter(|total| *total > 0)
}

/// How many processes and threads there can be at once. None when the kernel does not say.
pub(crate) fn max_processes() -> Option<u64> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    Some(number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?))
}

/// How many processes and threads there are. None when the kernel does not say.
pub(crate) fn running_processes() -> Option<u64> {
    // `0.00 0.01 0.05 1/123 4567`: the number after the slash counts all threads.
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split(' ').nth(3)?.split_once('/')?.1.parse().ok()
}

/// The cgroup of this process, from the text of `/proc/self/cgroup`. Of version 1 it is that of systemd, if there is one, and
/// none where processors and memory are counted in different ones (`getContainer`, v1.36).
pub(crate) fn own_cgroup(cgroups: &str, is_v2: bool) -> Option<&str> {
    let of = |controller: &str| {
        let mut trees = cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let found = trees.find(|(controllers, _)| controllers.split(',').any(|one| one == controller));
        found.map(|(_, path)| path)
    };
    if is_v2 {
        return of("");
    }
    let path = of("cpu").filter(|path| of("memory") == Some(*path))?;
    of("name=systemd").or(Some(path))
}

/// Whether there is swap, and the kernel limits it for each cgroup of version 2 (`checkSwapControllerAvailability`, v1.36).
pub(crate) fn limits_swap() -> bool {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // The first line is a heading.
    let has_swap = text("/proc/swaps").lines().nth(1).is_some();
    has_swap && swap_limit(&text("/proc/self/cgroup")).is_some_and(|file| file.exists())
}

/// The file of this process's own cgroup: that of the root has none.
fn swap_limit(cgroups: &str) -> Option<PathBuf> {
    let own = own_cgroup(cgroups, true)?.strip_prefix('/')?;
    Some(Path::new("/sys/fs/cgroup").join(own).join("memory.swap.max"))
}

pub(crate) fn meminfo_bytes(meminfo: &str, field: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

/// Bytes in total and available on the file system of a path.
pub(crate) fn disk(path: &Path) -> Option<(u64, u64)> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    let block = stat.fragment_size();
    Some((stat.blocks() * block, stat.blocks_available() * block))
}

/// The address this machine would use to reach others. Nothing is sent.
fn default_ip() -> IpAddr {
    let probe = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    };
    probe().unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_limited_by_version_2_only() {
        for (cgroups, expected) in [
            ("0::/system.slice/kubelet.service\n", Some("/sys/fs/cgroup/system.slice/kubelet.service/memory.swap.max")),
            ("0::/\n", Some("/sys/fs/cgroup/memory.swap.max")),
            ("4:memory:/user.slice\n1:name=systemd:/user.slice\n", None),
        ] {
            assert_eq!(swap_limit(cgroups), expected.map(PathBuf::from), "{cgroups:?}");
        }
    }

    #[test]
    fn the_kubelet_knows_its_cgroup() {
        let v1 = "5:cpu,cpuacct:/a\n4:memory:/a\n";
        let systemd = "1:name=systemd:/system.slice/x:y.service\n";
        for (cgroups, is_v2, expected) in [
            ("0::/system.slice/kubelet.service\n".to_owned(), true, Some("/system.slice/kubelet.service")),
            (format!("{v1}0::/\n"), true, Some("/")),
            (v1.to_owned(), true, None),
            (v1.to_owned(), false, Some("/a")),
            (format!("{v1}{systemd}"), false, Some("/system.slice/x:y.service")),
            (format!("5:cpu,cpuacct:/b\n4:memory:/a\n{systemd}"), false, None),
            (systemd.to_owned(), false, None),
        ] {
            assert_eq!(own_cgroup(&cgroups, is_v2), expected, "{cgroups:?}");
        }
    }

    #[test]
    fn security_containers_do_not_see_how_hot_processors_are() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cpu0/thermal_throttle", "cpu1/cache", "cpufreq"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        assert_eq!(thermal_paths(dir.path()), [dir.path().join("cpu0/thermal_throttle").to_string_lossy()]);
        assert_eq!(thermal_paths(&dir.path().join("missing")), [""; 0]);
    }

    #[test]
    fn meminfo() {
        let text = "MemTotal:       16384 kB\nMemFree:        1024 kB\n";
        assert_eq!(meminfo_bytes(text, "MemTotal"), 16 << 20);
        assert_eq!(meminfo_bytes(text, "SwapTotal"), 0);
    }
}
