//! Containers as scopes of systemd, where the kubelet uses its cgroup driver: the parent is a slice then.
//!
//! systemd must know of every cgroup below its slices, or it takes them for its own at the next reload. It starts a scope
//! around the first process; what it does not manage, and what it resets when it starts one, is written by us after.
//! Not here: slices of pods. The kubelet makes those.

use std::io;

use dbus::{Connection, Value, systemd};

use super::Cgroups;
use crate::spec::Resources;

/// Whether a cgroup is a scope of systemd.
pub(crate) fn is_scope(path: &str) -> bool {
    path.ends_with(".scope") && path.split('/').any(|part| part.ends_with(".slice"))
}

fn unit(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn connect() -> io::Result<Connection> {
    Connection::open(&dbus::system_bus()).map_err(|error| {
        io::Error::other(format!("a cgroup below a slice needs systemd, which does not answer: {error}"))
    })
}

/// Starts a scope around a process.
pub(super) fn start(
    cgroups: &Cgroups,
    path: &str,
    pid: i32,
    resources: &Resources,
    rules: &[String],
) -> io::Result<()> {
    let slice = path.rsplit('/').nth(1).unwrap_or_default();
    let mut properties = vec![
        ("Description", Value::text(format!("cox container {}", unit(path)))),
        ("Slice", Value::text(slice)),
        ("PIDs", Value::Array("u".into(), vec![Value::U32(pid.unsigned_abs())])),
        ("Delegate", Value::Bool(true)),
        ("DefaultDependencies", Value::Bool(false)),
    ];
    if !resources.all_devices {
        properties.push(("DevicePolicy", Value::text("strict")));
        properties.push(("DeviceAllow", device_allow(rules)));
    }
    properties.extend(limits(cgroups, resources));
    systemd::start_unit(&mut connect()?, unit(path), &properties).map_err(io::Error::other)
}

/// Tells systemd of changed limits, so that it does not undo them.
pub(super) fn update(cgroups: &Cgroups, path: &str, resources: &Resources) -> io::Result<()> {
    let limits = limits(cgroups, resources);
    if limits.is_empty() {
        return Ok(());
    }
    systemd::set_properties(&mut connect()?, unit(path), &limits).map_err(io::Error::other)
}

/// Ends a scope whose processes have ended.
pub(super) fn stop(path: &str) -> io::Result<()> {
    systemd::stop_unit(&mut connect()?, unit(path)).map_err(io::Error::other)
}

/// Limits in systemd's words; zero is no limit of ours.
fn limits(cgroups: &Cgroups, resources: &Resources) -> Vec<systemd::Property> {
    let is_v1 = matches!(cgroups, Cgroups::V1(_));
    let mut properties = Vec::new();
    if resources.cpu_shares > 0 {
        properties.push(match is_v1 {
            true => ("CPUShares", Value::U64(resources.cpu_shares as u64)),
            false => ("CPUWeight", Value::U64(super::weight(resources.cpu_shares) as u64)),
        });
    }
    if resources.cpu_quota > 0 {
        let period = if resources.cpu_period > 0 { resources.cpu_period } else { 100_000 };
        properties.push(("CPUQuotaPerSecUSec", Value::U64(systemd::quota_per_second(resources.cpu_quota, period))));
    }
    if resources.memory_limit > 0 {
        let name = if is_v1 { "MemoryLimit" } else { "MemoryMax" };
        properties.push((name, Value::U64(resources.memory_limit as u64)));
    }
    if resources.pids_limit > 0 {
        properties.push(("TasksMax", Value::U64(resources.pids_limit as u64)));
    }
    properties
}

/// `c 1:3 rwm` as `("/dev/char/1:3", "rwm")`; whole classes by the kernel's names for them.
fn device_allow(rules: &[String]) -> Value {
    let entries = rules.iter().filter_map(|rule| {
        let [kind, numbers, access] = rule.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let (directory, class) = if kind == "b" { ("block", "block-*") } else { ("char", "char-*") };
        let name = match numbers {
            "*:*" => class.to_string(),
            "136:*" => "char-pts".to_string(),
            numbers => format!("/dev/{directory}/{numbers}"),
        };
        Some(Value::Struct(vec![Value::text(name), Value::text(access)]))
    });
    Value::Array("(ss)".into(), entries.collect())
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
    fn limits_and_devices_in_systemds_words() {
        let resources = Resources { cpu_shares: 1024, cpu_quota: 50_000, memory_limit: 1 << 20, ..Default::default() };
        let names =
            |cgroups: &Cgroups| limits(cgroups, &resources).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&Cgroups::V1(Vec::new())), ["CPUShares", "CPUQuotaPerSecUSec", "MemoryLimit"]);
        assert_eq!(names(&Cgroups::V2("/x".into())), ["CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax"]);
        let rules = ["c *:* m", "c 1:3 rwm", "c 136:* rwm", "b 8:0 r"].map(String::from);
        let Value::Array(_, entries) = device_allow(&rules) else { panic!("an array") };
        let pair = |a: &str, b: &str| Value::Struct(vec![Value::text(a), Value::text(b)]);
        let expected =
            [pair("char-*", "m"), pair("/dev/char/1:3", "rwm"), pair("char-pts", "rwm"), pair("/dev/block/8:0", "r")];
        assert_eq!(entries, expected);
    }
}
