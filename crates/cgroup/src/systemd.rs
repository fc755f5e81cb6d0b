//! Cgroups that systemd makes: slices for pods, scopes for containers.
//!
//! systemd must know of every cgroup below its slices, or it takes them for its own at the next reload. A scope is started
//! around its first process. What systemd does not manage, and what it resets when it starts a unit, is for whoever asked
//! to write once more.

use std::io;
use std::path::{Path, PathBuf};

use dbus::systemd::Property;
use dbus::{Connection, Value, systemd};

use crate::limits::PERIOD;
use crate::{Limits, Version, shares_to_weight};

/// The way to systemd.
#[derive(Clone, Debug)]
pub struct Systemd {
    bus: PathBuf,
    version: Version,
}

/// Whether a cgroup is a scope of systemd.
pub fn is_scope(path: &str) -> bool {
    path.ends_with(".scope") && path.split('/').any(|part| part.ends_with(".slice"))
}

/// systemd's name for a cgroup.
pub fn unit(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Systemd {
    pub fn new(bus: PathBuf, version: Version) -> Self {
        Systemd { bus, version }
    }

    /// Fails where systemd does not run the node; its version.
    pub fn check(&self) -> io::Result<String> {
        self.ask(systemd::version)
    }

    /// Starts a slice and those that it is in; one that is there stays as it is.
    pub fn start_slice(&self, path: &Path) -> io::Result<()> {
        for slice in path.components().filter(|part| matches!(part, std::path::Component::Normal(_))) {
            let slice = slice.as_os_str().to_string_lossy();
            self.ask(|connection| systemd::start_unit(connection, &slice, &slice_properties(&slice)))?;
        }
        Ok(())
    }

    /// Starts a scope around a process, with more properties than its limits where there are some.
    pub fn start_scope(&self, path: &str, pid: i32, limits: &Limits, more: Vec<Property>) -> io::Result<()> {
        let slice = path.rsplit('/').nth(1).unwrap_or_default();
        let mut properties = vec![
            ("Description", Value::text(format!("cox container {}", unit(path)))),
            ("Slice", Value::text(slice)),
            ("PIDs", Value::Array("u".into(), vec![Value::U32(pid.unsigned_abs())])),
            ("Delegate", Value::Bool(true)),
            ("DefaultDependencies", Value::Bool(false)),
        ];
        properties.extend(more);
        properties.extend(limit_properties(self.version, limits));
        self.ask(|connection| systemd::start_unit(connection, unit(path), &properties))
    }

    /// Tells systemd the limits that are written to a cgroup, so that it does not undo them.
    pub fn limit(&self, path: &str, limits: &Limits) -> io::Result<()> {
        let properties = limit_properties(self.version, limits);
        if properties.is_empty() {
            return Ok(());
        }
        self.ask(|connection| systemd::set_properties(connection, unit(path), &properties))
    }

    /// Ends a unit whose processes have ended.
    pub fn stop(&self, path: &str) -> io::Result<()> {
        self.ask(|connection| systemd::stop_unit(connection, unit(path)))
    }

    fn ask<T>(&self, question: impl FnOnce(&mut Connection) -> Result<T, dbus::Error>) -> io::Result<T> {
        let mut connection = Connection::open(&self.bus).map_err(|error| {
            io::Error::other(format!("the systemd cgroup driver needs systemd, which does not answer: {error}"))
        })?;
        question(&mut connection).map_err(io::Error::other)
    }
}

fn slice_properties(unit: &str) -> Vec<Property> {
    let mut properties = vec![
        ("Description", Value::text(format!("kubelet's cgroup {unit}"))),
        ("DefaultDependencies", Value::Bool(false)),
        ("CPUAccounting", Value::Bool(true)),
        ("MemoryAccounting", Value::Bool(true)),
        ("TasksAccounting", Value::Bool(true)),
    ];
    if let Some((parent, _)) = unit.rsplit_once('-') {
        properties.push(("Wants", Value::texts([format!("{parent}.slice").as_str()])));
    }
    properties
}

/// Limits in systemd's words.
fn limit_properties(version: Version, limits: &Limits) -> Vec<Property> {
    // All ones is systemd's word for no limit.
    let or_infinity = |value: i64| Value::U64(u64::try_from(value).unwrap_or(u64::MAX));
    let mut properties = Vec::new();
    if limits.cpu_shares > 0 {
        properties.push(match version {
            Version::V1 => ("CPUShares", Value::U64(limits.cpu_shares.max(2) as u64)),
            Version::V2 => ("CPUWeight", Value::U64(shares_to_weight(limits.cpu_shares) as u64)),
        });
    }
    if limits.cpu_quota != 0 {
        let period = if limits.cpu_period > 0 { limits.cpu_period } else { PERIOD };
        let quota = match limits.cpu_quota {
            quota if quota < 0 => u64::MAX,
            quota => systemd::quota_per_second(quota, period),
        };
        properties.push(("CPUQuotaPerSecUSec", Value::U64(quota)));
    }
    if limits.memory_limit != 0 {
        let name = if version == Version::V1 { "MemoryLimit" } else { "MemoryMax" };
        properties.push((name, or_infinity(limits.memory_limit)));
    }
    if limits.pids_limit != 0 {
        properties.push(("TasksMax", or_infinity(limits.pids_limit)));
    }
    properties
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_known_by_name() {
        for (path, expected) in [
            ("/kubepods.slice/kubepods-pod1.slice/cox-x.scope", true),
            ("/kubepods/pod1/x", false),
            ("/kubepods/pod1/x.scope", false),
        ] {
            assert_eq!(is_scope(path), expected, "{path}");
        }
        assert_eq!(unit("/a.slice/cox-x.scope"), "cox-x.scope");
    }

    #[test]
    fn limits_in_systemds_words() {
        let set = Limits { cpu_shares: 1024, cpu_quota: 50_000, memory_limit: 1 << 20, ..Default::default() };
        let all_pods = Limits { cpu_shares: 1536, memory_limit: 1 << 30, pids_limit: 1000, ..Default::default() };
        let lifted = Limits { cpu_quota: -1, memory_limit: -1, pids_limit: -1, ..Default::default() };
        for (version, limits, expected) in [
            (Version::V1, &Limits::default(), vec![]),
            (Version::V1, &set, vec![("CPUShares", 1024), ("CPUQuotaPerSecUSec", 500_000), ("MemoryLimit", 1 << 20)]),
            (Version::V2, &set, vec![("CPUWeight", 39), ("CPUQuotaPerSecUSec", 500_000), ("MemoryMax", 1 << 20)]),
            (Version::V1, &all_pods, vec![("CPUShares", 1536), ("MemoryLimit", 1 << 30), ("TasksMax", 1000)]),
            (Version::V2, &all_pods, vec![("CPUWeight", 59), ("MemoryMax", 1 << 30), ("TasksMax", 1000)]),
            (
                Version::V2,
                &lifted,
                vec![("CPUQuotaPerSecUSec", u64::MAX), ("MemoryMax", u64::MAX), ("TasksMax", u64::MAX)],
            ),
        ] {
            let expected: Vec<Property> = expected.into_iter().map(|(name, value)| (name, Value::U64(value))).collect();
            assert_eq!(limit_properties(version, limits), expected, "{version:?}");
        }
    }

    #[test]
    fn slices_want_the_slice_they_are_in() {
        let wants = |unit: &str| slice_properties(unit).into_iter().find(|(name, _)| *name == "Wants");
        assert_eq!(wants("kubepods.slice"), None);
        let parent = Value::texts(["kubepods-burstable.slice"]);
        assert_eq!(wants("kubepods-burstable-pod1.slice"), Some(("Wants", parent)));
    }
}
