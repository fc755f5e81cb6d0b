//! The cgroups of containers and sandboxes: leaves below the pod's cgroup, which is the kubelet's.
//!
//! Below a slice, leaves are scopes of systemd. All calls can be repeated: what is there already, or gone already, is fine.
//! Not here: trees, files and units. They are the crate `cgroup`.

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::Path;

use cgroup::systemd::{Systemd, is_scope};
use cgroup::{Hierarchies, Missing, Version};
use dbus::Value;

use crate::spec::{Device, Resources};

#[derive(Clone, Debug)]
pub(crate) struct Cgroups(Hierarchies);

impl Deref for Cgroups {
    type Target = Hierarchies;

    fn deref(&self) -> &Hierarchies {
        &self.0
    }
}

impl Cgroups {
    pub(crate) fn detect() -> io::Result<Self> {
        Hierarchies::detect().map(Self)
    }

    /// Makes the cgroup with its limits.
    pub(crate) fn create(&self, path: &str, resources: &Resources, devices: &[Device]) -> io::Result<()> {
        self.make(path)?;
        self.update(path, resources)?;
        self.allow_devices(path, resources.all_devices, devices)
    }

    /// Limits that the kernel does not have are left out, as upstream's runtimes do.
    fn update(&self, path: &str, resources: &Resources) -> io::Result<()> {
        self.limit(path, &resources.limits, Missing::Skipped)
    }

    fn allow_devices(&self, path: &str, all: bool, devices: &[Device]) -> io::Result<()> {
        if all {
            return Ok(());
        }
        let rules = device_rules(devices)?;
        let Some(directory) = self.directory("devices", path) else { return Ok(()) };
        if self.version() == Version::V2 {
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
        if !is_scope(path) {
            return Ok(());
        }
        let mut properties = Vec::new();
        if !resources.all_devices {
            properties.push(("DevicePolicy", Value::text("strict")));
            properties.push(("DeviceAllow", device_allow(&device_rules(devices)?)));
        }
        self.systemd().start_scope(path, pid, &resources.limits, properties)?;
        // In the trees it manages, systemd has set what it thinks is right.
        self.update(path, resources)?;
        self.allow_devices(path, resources.all_devices, devices)?;
        self.add(path, pid)
    }

    /// Applies new limits to a container that runs.
    pub(crate) fn change(&self, path: &str, resources: &Resources) -> io::Result<()> {
        if is_scope(path) {
            self.systemd().limit(path, &resources.limits)?;
        }
        self.update(path, resources)
    }

    /// Kills what is left and removes the cgroup with everything below it, in every tree.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        if is_scope(path) {
            self.kill(path);
            self.systemd().stop(path)?;
        }
        self.0.remove(path)
    }

    fn systemd(&self) -> Systemd {
        Systemd::new(dbus::system_bus(), self.version())
    }
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
    fn devices_in_systemds_words() {
        let rules = ["c *:* m", "c 1:3 rwm", "c 136:* rwm", "b 8:0 r"].map(String::from);
        let Value::Array(_, entries) = device_allow(&rules) else { panic!("an array") };
        let pair = |a: &str, b: &str| Value::Struct(vec![Value::text(a), Value::text(b)]);
        let expected =
            [pair("char-*", "m"), pair("/dev/char/1:3", "rwm"), pair("char-pts", "rwm"), pair("/dev/block/8:0", "r")];
        assert_eq!(entries, expected);
    }
}
