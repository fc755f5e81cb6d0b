//! Usage of containers and pods, read from their cgroups when somebody asks.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cgroup::{Version, keyed};
use cri::v1;
use files::Usage;

use crate::disk_usage::{Found, Keep};
use crate::engine::{Container, Engine, Sandbox};
use crate::pod_config::{SHARED_FILES, cgroup_parent};
use crate::record::{self, SandboxRecord};

fn value(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `made` is when the cgroup was, in nanoseconds since 1970, if that is known.
fn cpu(engine: &Engine, cgroup: &str, made: Option<i64>) -> Option<v1::CpuUsage> {
    let total = match engine.cgroups.version() {
        Version::V1 => read_number(engine.cgroups.directory("cpuacct", cgroup)?.join("cpuacct.usage"))?,
        Version::V2 => {
            let text = fs::read_to_string(engine.cgroups.directory("", cgroup)?.join("cpu.stat")).ok()?;
            keyed(&text, "usage_usec")? * 1000
        }
    };
    let now = record::now();
    let age = made.and_then(|made| u64::try_from(now - made).ok()).map(Duration::from_nanos);
    Some(v1::CpuUsage {
        timestamp: now,
        usage_core_nano_seconds: value(total),
        usage_nano_cores: engine.cpu_rates.rate(cgroup, Instant::now(), total, age).and_then(value),
        ..Default::default()
    })
}

fn memory(engine: &Engine, cgroup: &str) -> Option<v1::MemoryUsage> {
    let directory = engine.cgroups.directory("memory", cgroup)?;
    let stat = fs::read_to_string(directory.join("memory.stat")).ok()?;
    let of = |key: &str| keyed(&stat, key).unwrap_or(0);
    let (usage, limit, inactive, rss, faults, major) = match engine.cgroups.version() {
        Version::V1 => (
            read_number(directory.join("memory.usage_in_bytes"))?,
            read_number(directory.join("memory.limit_in_bytes")),
            of("total_inactive_file"),
            of("total_rss"),
            of("total_pgfault"),
            of("total_pgmajfault"),
        ),
        Version::V2 => (
            read_number(directory.join("memory.current"))?,
            read_number(directory.join("memory.max")),
            of("inactive_file"),
            of("anon"),
            of("pgfault"),
            of("pgmajfault"),
        ),
    };
    // The kernel's "no limit" on version 1 is a number near the largest there is.
    let limit = limit.filter(|l| *l < u64::MAX / 4);
    let working_set = usage.saturating_sub(inactive);
    Some(v1::MemoryUsage {
        timestamp: record::now(),
        working_set_bytes: value(working_set),
        available_bytes: limit.map(|l| l.saturating_sub(working_set)).and_then(value),
        usage_bytes: value(usage),
        rss_bytes: value(rss),
        page_faults: value(faults),
        major_page_faults: value(major),
        ..Default::default()
    })
}

/// Nothing where the kernel does not count it.
fn swap(engine: &Engine, cgroup: &str) -> Option<v1::SwapUsage> {
    let directory = engine.cgroups.directory("memory", cgroup)?;
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let (used, available) = swapped(engine.cgroups.version(), &read)?;
    Some(v1::SwapUsage {
        timestamp: record::now(),
        swap_available_bytes: available.and_then(value),
        swap_usage_bytes: value(used),
    })
}

/// How much is swapped out, and how much more may be.
fn swapped(version: Version, read: &dyn Fn(&str) -> Option<String>) -> Option<(u64, Option<u64>)> {
    match version {
        // The limit is that of memory and swap together.
        Version::V1 => Some((keyed(&read("memory.stat")?, "total_swap")?, None)),
        Version::V2 => {
            let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
            let used = number("memory.swap.current")?;
            Some((used, number("memory.swap.max").map(|limit| limit.saturating_sub(used))))
        }
    }
}

/// What a container has on the disk: its own files, and those of its pod that it may write to.
fn writable_layer(engine: &Engine, container: &Container, id: &str) -> v1::FilesystemUsage {
    let sandbox = engine.sandbox(&container.sandbox_id()).ok().map(|sandbox| sandbox.directory.clone());
    let walk = || writable(&container.directory, sandbox.as_deref());
    let Found { usage, at } = engine.walks.usage(id, Keep::ByCost, walk);
    v1::FilesystemUsage {
        timestamp: at,
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: engine.config.root.display().to_string() }),
        used_bytes: value(usage.bytes),
        inodes_used: value(usage.inodes),
    }
}

fn writable(container: &Path, sandbox: Option<&Path>) -> Usage {
    let shared = sandbox.into_iter().flat_map(|sandbox| SHARED_FILES.map(|name| sandbox.join(name)));
    let all = shared.chain([container.join("upper")]).map(|path| files::usage(&path));
    all.fold(Usage::default(), |sum, one| Usage {
        bytes: sum.bytes.saturating_add(one.bytes),
        inodes: sum.inodes.saturating_add(one.inodes),
    })
}

pub(crate) fn of_container(engine: &Engine, container: &Container) -> v1::ContainerStats {
    let record = container.record.lock().clone();
    let running = container.is_running();
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: record.id.clone(),
            metadata: record.config.metadata.clone(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        }),
        cpu: running.then(|| cpu(engine, &record.cgroup, Some(record.created_at))).flatten(),
        memory: running.then(|| memory(engine, &record.cgroup)).flatten(),
        swap: running.then(|| swap(engine, &record.cgroup)).flatten(),
        writable_layer: Some(writable_layer(engine, container, &record.id)),
        ..Default::default()
    }
}

/// The pod's own cgroup holds its containers and pause.
fn of_pod(record: &SandboxRecord) -> String {
    let parent = crate::cgroup::child_path(&cgroup_parent(&record.config), &record.id);
    match cgroup_parent(&record.config).is_empty() {
        true => parent,
        false => parent.rsplit_once('/').map(|(p, _)| p.to_string()).unwrap_or(parent),
    }
}

/// Forgets what was measured of a sandbox.
pub(crate) fn forget_sandbox(engine: &Engine, sandbox: &Sandbox) {
    engine.cpu_rates.forget(&of_pod(&sandbox.record.lock()));
}

pub(crate) fn of_sandbox(engine: &Engine, sandbox: &Sandbox) -> v1::PodSandboxStats {
    let record = sandbox.record.lock().clone();
    let containers: Vec<v1::ContainerStats> =
        engine.containers_of(&record.id).iter().filter(|c| c.is_running()).map(|c| of_container(engine, c)).collect();
    let pod_cgroup = of_pod(&record);
    // The cgroup of a pod outlives its sandboxes.
    let is_first = record.config.metadata.as_ref().is_some_and(|metadata| metadata.attempt == 0);
    let made = is_first.then_some(record.created_at);
    v1::PodSandboxStats {
        attributes: Some(v1::PodSandboxAttributes {
            id: record.id.clone(),
            metadata: record.config.metadata.clone(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        }),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu: cpu(engine, &pod_cgroup, made),
            memory: memory(engine, &pod_cgroup),
            network: network(sandbox.pause()),
            process: Some(v1::ProcessUsage {
                timestamp: record::now(),
                process_count: value(process_count(engine, &record.id)),
            }),
            containers,
            ..Default::default()
        }),
        windows: None,
    }
}

fn process_count(engine: &Engine, sandbox: &str) -> u64 {
    let containers = engine.containers_of(sandbox);
    let counts = containers.iter().map(|c| engine.cgroups.processes(c.record.lock().cgroup.clone()).len());
    1 + counts.sum::<usize>() as u64
}

/// Interface counters as the pause process sees them.
fn network(pid: i32) -> Option<v1::NetworkUsage> {
    if pid <= 0 {
        return None;
    }
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    let interfaces: Vec<v1::NetworkInterfaceUsage> = parse_interfaces(&text);
    Some(v1::NetworkUsage {
        timestamp: record::now(),
        default_interface: interfaces.iter().find(|i| i.name == "eth0").cloned(),
        interfaces: interfaces.into_iter().filter(|i| i.name != "eth0").collect(),
    })
}

fn parse_interfaces(text: &str) -> Vec<v1::NetworkInterfaceUsage> {
    text.lines()
        .filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            let name = name.trim();
            (name != "lo" && numbers.len() >= 11).then(|| v1::NetworkInterfaceUsage {
                name: name.into(),
                rx_bytes: value(numbers[0]),
                rx_errors: value(numbers[2]),
                tx_bytes: value(numbers[8]),
                tx_errors: value(numbers[10]),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_counters() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 1 2 0 0 0 0 0 30 1 4 0 0 0 0 0\n";
        let interfaces = parse_interfaces(text);
        assert_eq!(interfaces.len(), 1);
        assert_eq!(interfaces[0].rx_bytes.unwrap().value, 10);
        assert_eq!(interfaces[0].tx_errors.unwrap().value, 4);
    }

    #[test]
    fn swap_is_told_where_it_is_counted() {
        for (version, files, expected) in [
            (Version::V1, &[("memory.stat", "swap 1\ntotal_swap 4096\n")][..], Some((4096, None))),
            (Version::V1, &[("memory.stat", "total_rss 1\n")], None),
            (Version::V2, &[("memory.swap.current", "10\n"), ("memory.swap.max", "30\n")], Some((10, Some(20)))),
            (Version::V2, &[("memory.swap.current", "10\n"), ("memory.swap.max", "max\n")], Some((10, None))),
            (Version::V2, &[("memory.stat", "anon 1\n")], None),
        ] {
            let read = |file: &str| files.iter().find(|(name, _)| *name == file).map(|(_, text)| (*text).to_owned());
            assert_eq!(swapped(version, &read), expected, "{files:?}");
        }
    }

    /// Root of a container may write to the files of its pod, which lie on the node's disk (CVE-2020-8557).
    #[test]
    fn security_files_of_the_pod_count_to_its_containers() {
        let dir = tempfile::tempdir().unwrap();
        let (container, sandbox) = (dir.path().join("container"), dir.path().join("sandbox"));
        fs::create_dir_all(container.join("upper")).unwrap();
        fs::create_dir(&sandbox).unwrap();
        let before = writable(&container, Some(&sandbox));
        for name in SHARED_FILES {
            fs::write(sandbox.join(name), vec![1; 100_000]).unwrap();
        }
        let after = writable(&container, Some(&sandbox));
        assert!(after.bytes >= before.bytes + 300_000 && after.inodes == before.inodes + 3, "{before:?} {after:?}");
    }
}
