//! Pods as slices of systemd. systemd has to know of them, or it would take them away at its next reload.

use std::io;
use std::path::{Path, PathBuf};

use dbus::{Connection, Value, systemd};

use super::shares_to_weight;
use crate::resources::PodResources;

/// The way to systemd.
#[derive(Clone, Debug)]
pub(super) struct Slices {
    pub(super) bus: PathBuf,
    /// Limits have other names there.
    pub(super) is_v1: bool,
}

impl Slices {
    /// Fails where systemd does not run the node.
    pub(super) fn check(&self) -> io::Result<()> {
        let version = self.connect().and_then(|mut connection| systemd::version(&mut connection));
        let version = version.map_err(|error| {
            io::Error::other(format!("the systemd cgroup driver needs systemd, which does not answer: {error}"))
        })?;
        tracing::info!(version, "pods are slices of systemd");
        Ok(())
    }

    fn connect(&self) -> Result<Connection, dbus::Error> {
        Connection::open(&self.bus)
    }

    /// Starts a slice; one that is there stays as it is.
    pub(super) fn start(&self, unit: &str) -> io::Result<()> {
        let mut properties = vec![
            ("Description", Value::text(format!("kubelet's cgroup {unit}"))),
            ("DefaultDependencies", Value::Bool(false)),
            ("CPUAccounting", Value::Bool(true)),
            ("MemoryAccounting", Value::Bool(true)),
            ("TasksAccounting", Value::Bool(true)),
        ];
        if let Some((parent, _)) = unit.rsplit_once('-') {
            let parent = format!("{parent}.slice");
            properties.push(("Wants", Value::texts([parent.as_str()])));
        }
        self.connect()
            .and_then(|mut connection| systemd::start_unit(&mut connection, unit, &properties))
            .map_err(io::Error::other)
    }

    /// Tells systemd the limits that we write, so that it does not undo them.
    pub(super) fn limit(&self, unit: &str, resources: &PodResources) -> io::Result<()> {
        let cpu = match self.is_v1 {
            true => ("CPUShares", Value::U64(resources.cpu_shares.max(2) as u64)),
            false => ("CPUWeight", Value::U64(shares_to_weight(resources.cpu_shares) as u64)),
        };
        // All ones is systemd's word for no limit.
        let quota = resources.cpu_quota.filter(|quota| *quota > 0);
        let quota = quota.map_or(u64::MAX, |quota| systemd::quota_per_second(quota, resources.cpu_period));
        let memory = resources.memory_limit.filter(|limit| *limit > 0).map_or(u64::MAX, |limit| limit as u64);
        let name = if self.is_v1 { "MemoryLimit" } else { "MemoryMax" };
        let properties = [cpu, ("CPUQuotaPerSecUSec", Value::U64(quota)), (name, Value::U64(memory))];
        self.connect()
            .and_then(|mut connection| systemd::set_properties(&mut connection, unit, &properties))
            .map_err(io::Error::other)
    }

    pub(super) fn stop(&self, unit: &str) -> io::Result<()> {
        self.connect().and_then(|mut connection| systemd::stop_unit(&mut connection, unit)).map_err(io::Error::other)
    }

    /// All slices on the way to a cgroup, from the top.
    pub(super) fn units(path: &Path) -> Vec<String> {
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
    }
}
