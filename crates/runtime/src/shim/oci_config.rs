//! Our spec in the words of the OCI runtime specification, for external runtimes. Pure, except for looking devices up.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::{Error, Result, doing};
use crate::capabilities;
use crate::spec::{Device, Mount, MountSource, Namespace, Process, Propagation, Resources, Spec};
use crate::user::Identity;

/// `config.json` of a container. `images` are the places where image volumes are staged, in the order of the mounts.
pub(super) fn config(spec: &Spec, identity: &Identity, pause_pid: i32, images: &[PathBuf]) -> Result<Value> {
    let mut images = images.iter();
    let mounts = spec.mounts.iter().map(|m| mount(m, &mut images)).collect::<Result<Vec<_>>>()?;
    let slaves = spec.mounts.iter().any(|mount| mount.propagation == Propagation::HostToContainer);
    let mut config = json!({
        "ociVersion": "1.0.2",
        "process": process(&spec.process, identity),
        "root": {"path": spec.rootfs.target, "readonly": spec.rootfs.readonly},
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces(spec, pause_pid),
            "cgroupsPath": cgroups_path(&spec.cgroup),
            "resources": resources(&spec.resources, &spec.devices)?,
            "devices": spec.devices.iter().map(device).collect::<Result<Vec<_>>>()?,
            "maskedPaths": spec.masked_paths,
            "readonlyPaths": spec.readonly_paths,
            "rootfsPropagation": if slaves { "rslave" } else { "private" },
        },
    });
    if let Some(profile) = &spec.seccomp_profile {
        config["linux"]["seccomp"] = profile.clone();
    }
    Ok(config)
}

/// A scope is named by its slice, a prefix and an id; the runtime is told by a flag that it is one.
fn cgroups_path(cgroup: &str) -> String {
    let mut parts = cgroup.rsplit('/');
    let scope = parts.next().and_then(|name| name.strip_prefix("cox-")?.strip_suffix(".scope"));
    match (scope, parts.next()) {
        (Some(id), Some(slice)) if slice.ends_with(".slice") => format!("{slice}:cox:{id}"),
        _ => cgroup.to_string(),
    }
}

/// `process` of a container, or of a command in it.
pub(super) fn process(process: &Process, identity: &Identity) -> Value {
    let sets = &process.capabilities;
    let mut env = process.env.clone();
    if !env.iter().any(|entry| entry.starts_with("HOME=")) {
        env.push(format!("HOME={}", identity.home));
    }
    let mut value = json!({
        "terminal": process.tty,
        "user": {"uid": identity.uid, "gid": identity.gid, "additionalGids": identity.groups},
        "args": process.args,
        "env": env,
        "cwd": if process.cwd.is_empty() { "/" } else { &process.cwd },
        "capabilities": {
            "bounding": capabilities::names(sets.bounding),
            "permitted": capabilities::names(sets.permitted),
            "effective": capabilities::names(sets.effective),
            "inheritable": capabilities::names(sets.inheritable),
            "ambient": capabilities::names(sets.ambient),
        },
        "noNewPrivileges": process.no_new_privs,
        "oomScoreAdj": process.oom_score_adj.max(own_oom_score()),
    });
    if let Some(profile) = &process.apparmor {
        value["apparmorProfile"] = json!(profile);
    }
    value
}

/// Lowering it may be forbidden to us, and an external runtime would fail where we go on.
fn own_oom_score() -> i64 {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn namespaces(spec: &Spec, pause_pid: i32) -> Vec<Value> {
    let wanted = &spec.namespaces;
    let mut list = vec![json!({"type": "mount"}), json!({"type": "cgroup"})];
    for (namespace, kind, file) in [
        (wanted.network, "network", "net"),
        (wanted.ipc, "ipc", "ipc"),
        (wanted.uts, "uts", "uts"),
        (wanted.pid, "pid", "pid"),
    ] {
        match namespace {
            Namespace::Host => {}
            Namespace::Own => list.push(json!({"type": kind})),
            Namespace::Pod => list.push(json!({"type": kind, "path": format!("/proc/{pause_pid}/ns/{file}")})),
            Namespace::Process(pid) => list.push(json!({"type": kind, "path": format!("/proc/{pid}/ns/{file}")})),
        }
    }
    list
}

fn mount<'a>(mount: &Mount, images: &mut impl Iterator<Item = &'a PathBuf>) -> Result<Value> {
    let access = if mount.readonly { "ro" } else { "rw" };
    let bind = |source: &Path| {
        let propagation = match mount.propagation {
            Propagation::Private => "rprivate",
            Propagation::HostToContainer => "rslave",
            Propagation::Bidirectional => {
                let target = &mount.target;
                let problem = format!("{target}: Bidirectional propagation needs the built-in runtime");
                return Err(Error::Spec(problem.into()));
            }
        };
        let mut options = vec!["rbind", propagation, access];
        if mount.recursive_readonly {
            options.push("rro");
        }
        Ok(json!({"destination": mount.target, "type": "bind", "source": source, "options": options}))
    };
    match &mount.source {
        MountSource::Bind(source) => bind(source),
        MountSource::Image { .. } => bind(images.next().ok_or(Error::Spec("an image volume is not staged".into()))?),
        MountSource::Filesystem { kind, flags, data } => {
            let names = [
                (libc::MS_NOSUID, "nosuid"),
                (libc::MS_NOEXEC, "noexec"),
                (libc::MS_NODEV, "nodev"),
                (libc::MS_STRICTATIME, "strictatime"),
            ];
            let mut options: Vec<&str> =
                names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
            options.extend(data.split(',').filter(|option| !option.is_empty()));
            options.push(access);
            Ok(json!({"destination": mount.target, "type": kind, "source": kind, "options": options}))
        }
        MountSource::Cgroup => Ok(json!({
            "destination": mount.target, "type": "cgroup", "source": "cgroup",
            "options": ["nosuid", "noexec", "nodev", "relatime", access],
        })),
    }
}

fn resources(resources: &Resources, devices: &[Device]) -> Result<Value> {
    let Resources { limits, all_devices } = resources;
    let number = |value: i64| (value != 0).then_some(value);
    let text = |value: &str| (!value.is_empty()).then(|| value.to_string());
    let mut rules = vec![json!({"allow": all_devices, "access": "rwm"})];
    for device in devices.iter().filter(|_| !all_devices) {
        let node = device_node(&device_metadata(device)?);
        let access = if device.permissions.is_empty() { "rwm" } else { &device.permissions };
        rules.push(json!({"allow": true, "type": node.0, "major": node.1, "minor": node.2, "access": access}));
    }
    let hugepages: Vec<Value> =
        limits.hugepages.iter().map(|(size, limit)| json!({"pageSize": size, "limit": limit})).collect();
    Ok(json!({
        "devices": rules,
        "cpu": {
            "shares": number(limits.cpu_shares), "quota": number(limits.cpu_quota), "period": number(limits.cpu_period),
            "cpus": text(&limits.cpuset_cpus), "mems": text(&limits.cpuset_mems),
        },
        "memory": {"limit": number(limits.memory_limit), "swap": number(limits.memory_swap_limit)},
        "pids": number(limits.pids_limit).map(|limit| json!({"limit": limit})),
        "hugepageLimits": hugepages,
        "unified": limits.unified,
    }))
}

fn device_metadata(device: &Device) -> Result<std::fs::Metadata> {
    std::fs::metadata(&device.host_path).map_err(doing(device.host_path.display().to_string()))
}

fn device_node(metadata: &std::fs::Metadata) -> (&'static str, u32, u32) {
    let kind = if metadata.file_type().is_block_device() { "b" } else { "c" };
    (kind, libc::major(metadata.rdev()), libc::minor(metadata.rdev()))
}

fn device(device: &Device) -> Result<Value> {
    let metadata = device_metadata(device)?;
    let (kind, major, minor) = device_node(&metadata);
    Ok(json!({
        "path": device.container_path, "type": kind, "major": major, "minor": minor,
        "fileMode": metadata.mode() & 0o7777, "uid": metadata.uid(), "gid": metadata.gid(),
    }))
}

#[cfg(test)]
mod tests {
    use cgroup::Limits;

    use super::*;
    use crate::spec::{Capabilities, Namespaces};

    #[test]
    fn specs_translate() {
        let spec = Spec {
            process: Process {
                args: vec!["sh".into()],
                capabilities: Capabilities { bounding: 1, effective: 1, permitted: 1, ..Default::default() },
                ..Default::default()
            },
            mounts: vec![
                Mount {
                    target: "/proc".into(),
                    source: MountSource::Filesystem { kind: "proc".into(), flags: libc::MS_NOSUID, data: "a=1".into() },
                    ..Default::default()
                },
                Mount {
                    target: "/v".into(),
                    source: MountSource::Bind("/host".into()),
                    readonly: true,
                    propagation: Propagation::HostToContainer,
                    ..Default::default()
                },
            ],
            namespaces: Namespaces { pid: Namespace::Own, uts: Namespace::Host, ..Default::default() },
            resources: Resources { limits: Limits { memory_limit: 5, ..Default::default() }, ..Default::default() },
            ..Default::default()
        };
        let identity = Identity { uid: 7, gid: 8, groups: vec![8], home: "/h".into() };
        let config = config(&spec, &identity, 42, &[]).unwrap();
        for (path, expected) in [
            ("/process/user/uid", json!(7)),
            ("/process/env", json!(["HOME=/h"])),
            ("/process/capabilities/bounding", json!(["CAP_CHOWN"])),
            ("/mounts/0/options", json!(["nosuid", "a=1", "rw"])),
            ("/mounts/1/options", json!(["rbind", "rslave", "ro"])),
            ("/linux/rootfsPropagation", json!("rslave")),
            ("/linux/resources/memory/limit", json!(5)),
            ("/linux/resources/devices/0/allow", json!(false)),
            ("/linux/namespaces/2", json!({"type": "network", "path": "/proc/42/ns/net"})),
        ] {
            assert_eq!(config.pointer(path), Some(&expected), "{path}");
        }
        let kinds: Vec<&str> =
            config["linux"]["namespaces"].as_array().unwrap().iter().filter_map(|n| n["type"].as_str()).collect();
        assert_eq!(kinds, ["mount", "cgroup", "network", "ipc", "pid"]);
    }
}
