//! From a CRI request and an image to a [`Spec`]: every decision about a container that is not an action.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cgroup::{Hierarchies, Limits};
use cri::v1;

use crate::engine::{Engine, Sandbox};
use crate::error::{Error, Result, doing};
use crate::image::store::Image;
use crate::pod_config::{SHARED_FILES, check_users, hostname, namespace_options};
use crate::spec::{
    Device, Mount, MountSource, Namespace, Namespaces, Process, Propagation, Resources, Rootfs, Spec, User,
};
use crate::{capabilities, seccomp};

pub(crate) struct Input<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) pod: &'a v1::PodSandboxConfig,
    pub(crate) config: &'a v1::ContainerConfig,
    pub(crate) image: &'a Image,
    pub(crate) directory: &'a Path,
    pub(crate) cgroup: &'a str,
    pub(crate) log_path: Option<PathBuf>,
}

pub(crate) struct Built {
    pub(crate) spec: Spec,
    pub(crate) volume_images: Vec<String>,
}

pub(crate) fn build(input: &Input<'_>) -> Result<Built> {
    let config = input.config;
    let linux = config.linux.clone().unwrap_or_default();
    let security = linux.security_context.clone().unwrap_or_default();
    let args = arguments(config, input.image);
    if args.is_empty() {
        return Err(Error::Invalid("no command specified".into()));
    }
    if let Some(options) = &security.selinux_options
        && *options != v1::SeLinuxOption::default()
        && !security.privileged
        && Path::new("/sys/fs/selinux/enforce").exists()
    {
        return Err(Error::Invalid("this runtime sets no SELinux labels".into()));
    }
    check_done(config, &security)?;
    let wanted = linux.resources.unwrap_or_default();
    let capability = security.capabilities.clone().unwrap_or_default();
    let (mounts, volume_images) = mounts(input, &security)?;
    let capabilities = capabilities::of_container(
        security.privileged,
        &capability.add_capabilities,
        &capability.drop_capabilities,
        &capability.add_ambient_capabilities,
    )
    .map_err(|error| Error::Invalid(error.to_string()))?;
    let oci_runtime = input.engine.config.oci_runtimes.get(&input.sandbox.record.lock().runtime_handler).cloned();
    let seccomp_profile = match oci_runtime {
        None => None,
        Some(_) => seccomp::oci_profile(&security, capabilities.effective)?,
    };
    let process = Process {
        args,
        env: environment(input),
        cwd: match (config.working_dir.as_str(), input.image.config.working_dir.as_str()) {
            ("", "") => "/".into(),
            ("", image) => image.into(),
            (wanted, _) => wanted.into(),
        },
        user: user(&security, &input.image.config.user)?,
        tty: config.tty,
        capabilities,
        no_new_privs: security.no_new_privs,
        seccomp: match oci_runtime {
            None => seccomp::filters(&security, capabilities.effective)?,
            Some(_) => Vec::new(),
        },
        apparmor: apparmor(&security, Path::new("/sys/kernel/security/apparmor").exists())?,
        oom_score_adj: wanted.oom_score_adj,
    };
    let spec = Spec {
        process,
        rootfs: Rootfs {
            layers: input.engine.images.layers_directory(),
            lower: input.image.lower(),
            upper: input.directory.join("upper"),
            work: input.directory.join("work"),
            target: input.directory.join("rootfs"),
            readonly: security.readonly_rootfs,
        },
        mounts,
        devices: devices(&config.devices),
        all_devices: security.privileged,
        masked_paths: if security.privileged { Vec::new() } else { security.masked_paths.clone() },
        readonly_paths: if security.privileged { Vec::new() } else { security.readonly_paths.clone() },
        namespaces: namespaces(input, &security)?,
        cgroup: input.cgroup.to_string(),
        resources: Resources { all_devices: security.privileged, ..resources(&wanted, &input.engine.cgroups) },
        log_path: input.log_path.clone(),
        stdin: config.stdin,
        stdin_once: config.stdin_once,
        oci_runtime,
        seccomp_profile,
    };
    Ok(Built { spec, volume_images })
}

/// Command and arguments: each replaces the image's, and a command of one's own also drops the image's arguments.
fn arguments(config: &v1::ContainerConfig, image: &Image) -> Vec<String> {
    let (entrypoint, cmd) =
        (image.config.entrypoint.clone().unwrap_or_default(), image.config.cmd.clone().unwrap_or_default());
    let (command, args) = match (config.command.is_empty(), config.args.is_empty()) {
        (true, true) => (entrypoint, cmd),
        (true, false) => (entrypoint, config.args.clone()),
        (false, _) => (config.command.clone(), config.args.clone()),
    };
    command.into_iter().chain(args).collect()
}

fn environment(input: &Input<'_>) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |key: &str, value: &str| {
        if values.insert(key.to_string(), value.to_string()).is_none() {
            order.push(key.to_string());
        }
    };
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    if input.config.tty {
        set("TERM", "xterm");
    }
    set("HOSTNAME", &hostname(input.pod));
    for entry in input.image.config.env.iter().flatten() {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        set(key, value);
    }
    for variable in &input.config.envs {
        set(&variable.key, &String::from_utf8_lossy(&variable.value));
    }
    order.iter().map(|key| format!("{key}={}", values[key])).collect()
}

fn user(security: &v1::LinuxContainerSecurityContext, image_user: &str) -> Result<User> {
    let id = |value: i64| u32::try_from(value).map_err(|_| Error::Invalid(format!("invalid user or group id {value}")));
    let name = match (&security.run_as_user, security.run_as_username.as_str()) {
        (Some(uid), _) => id(uid.value)?.to_string(),
        (None, "") => match &security.run_as_group {
            // As containerd has it: the group would be that of nobody in particular.
            Some(group) => {
                return Err(Error::Invalid(format!(
                    "failed to generate user string: user group \"{}\" is specified without user",
                    group.value
                )));
            }
            None => image_user.to_string(),
        },
        (None, name) => name.to_string(),
    };
    Ok(User {
        name,
        group: security.run_as_group.as_ref().map(|g| id(g.value)).transpose()?,
        supplemental: security.supplemental_groups.iter().map(|g| id(*g)).collect::<Result<_>>()?,
        strict_groups: security.supplemental_groups_policy() == v1::SupplementalGroupsPolicy::Strict,
    })
}

/// What somebody asks for and would not get: they would believe to have it.
fn check_done(config: &v1::ContainerConfig, security: &v1::LinuxContainerSecurityContext) -> Result<()> {
    let refused = |what: &str| Err(Error::Invalid(what.to_owned()));
    if let Some(options) = &security.namespace_options {
        check_users(options)?;
    }
    if config.mounts.iter().any(|mount| !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty()) {
        return refused("this runtime maps no owners of mounts");
    }
    match config.cdi_devices.is_empty() {
        true => Ok(()),
        false => refused("this runtime has no CDI devices"),
    }
}

/// The profile of a file, for privileged containers as for others. There is no default one: where the kernel could enforce it,
/// whoever asks for it must not go without.
fn apparmor(security: &v1::LinuxContainerSecurityContext, has_apparmor: bool) -> Result<Option<String>> {
    use v1::security_profile::ProfileType;
    let Some(profile) = &security.apparmor else { return Ok(None) };
    match profile.profile_type() {
        ProfileType::Localhost if has_apparmor => Ok(Some(profile.localhost_ref.clone())),
        ProfileType::Localhost => Err(Error::Invalid("AppArmor is not enabled on the host".into())),
        ProfileType::RuntimeDefault if has_apparmor && !security.privileged => {
            Err(Error::Invalid("this runtime has no default AppArmor profile".into()))
        }
        ProfileType::RuntimeDefault | ProfileType::Unconfined => Ok(None),
    }
}

fn namespaces(input: &Input<'_>, security: &v1::LinuxContainerSecurityContext) -> Result<Namespaces> {
    let pod = namespace_options(input.pod);
    let own = security.namespace_options.clone().unwrap_or_else(|| pod.clone());
    let shared = |mode: v1::NamespaceMode| match mode {
        v1::NamespaceMode::Node => Namespace::Host,
        _ => Namespace::Pod,
    };
    let pid = match own.pid() {
        v1::NamespaceMode::Pod => Namespace::Pod,
        v1::NamespaceMode::Container => Namespace::Own,
        v1::NamespaceMode::Node => Namespace::Host,
        v1::NamespaceMode::Target => {
            let target = input.engine.container(&own.target_id)?;
            if target.sandbox_id() != input.sandbox.id() || !target.is_running() {
                return Err(Error::Invalid(format!("target container {} is not running in this pod", own.target_id)));
            }
            Namespace::Process(target.status.borrow().pid)
        }
    };
    Ok(Namespaces { network: shared(pod.network()), ipc: shared(pod.ipc()), uts: shared(pod.network()), pid })
}

/// What a container may use of what is counted here. An external runtime that is told of huge pages fails without their controller,
/// also where the container may have none of them (`WithResources` of containerd).
pub(crate) fn resources(wanted: &v1::LinuxContainerResources, cgroups: &Hierarchies) -> Resources {
    let huge_pages = wanted.hugepage_limits.iter().filter(|_| cgroups.has("hugetlb"));
    let limits = Limits {
        cpu_period: wanted.cpu_period,
        cpu_quota: wanted.cpu_quota,
        cpu_shares: wanted.cpu_shares,
        memory_limit: wanted.memory_limit_in_bytes,
        // Without a word about swap there is none beyond the memory limit.
        memory_swap_limit: match wanted.memory_swap_limit_in_bytes {
            0 => wanted.memory_limit_in_bytes,
            limit => limit,
        },
        cpuset_cpus: wanted.cpuset_cpus.clone(),
        cpuset_mems: wanted.cpuset_mems.clone(),
        pids_limit: 0,
        hugepages: huge_pages.map(|h| (h.page_size.clone(), h.limit)).collect(),
        unified: wanted.unified.clone().into_iter().collect(),
    };
    Resources { limits, all_devices: false }
}

fn devices(wanted: &[v1::Device]) -> Vec<Device> {
    let mut devices = Vec::new();
    for device in wanted {
        let host = Path::new(&device.host_path);
        if host.is_dir() {
            // A directory of devices, such as /dev/dri.
            for entry in fs::read_dir(host).into_iter().flatten().flatten().filter(|e| !e.path().is_dir()) {
                devices.push(Device {
                    container_path: format!("{}/{}", device.container_path, entry.file_name().to_string_lossy()),
                    host_path: entry.path(),
                    permissions: device.permissions.clone(),
                });
            }
        } else {
            devices.push(Device {
                host_path: host.to_path_buf(),
                container_path: device.container_path.clone(),
                permissions: device.permissions.clone(),
            });
        }
    }
    devices
}

/// What every container has, then what this one asks for, outer paths before inner ones.
fn mounts(input: &Input<'_>, security: &v1::LinuxContainerSecurityContext) -> Result<(Vec<Mount>, Vec<String>)> {
    let privileged = security.privileged;
    let (nosuid, noexec, nodev) = (libc::MS_NOSUID, libc::MS_NOEXEC, libc::MS_NODEV);
    let filesystem = |target: &str, kind: &str, flags: u64, data: &str, readonly: bool| Mount {
        target: target.into(),
        source: MountSource::Filesystem { kind: kind.into(), flags, data: data.into() },
        readonly,
        ..Default::default()
    };
    let mut base = vec![
        filesystem("/proc", "proc", nosuid | noexec | nodev, "", false),
        filesystem("/dev", "tmpfs", nosuid | libc::MS_STRICTATIME, "mode=755,size=65536k", false),
        filesystem("/dev/pts", "devpts", nosuid | noexec, "newinstance,ptmxmode=0666,mode=0620,gid=5", false),
        filesystem("/dev/mqueue", "mqueue", nosuid | noexec | nodev, "", false),
        filesystem("/sys", "sysfs", nosuid | noexec | nodev, "", !privileged),
        Mount {
            target: "/sys/fs/cgroup".into(),
            source: MountSource::Cgroup,
            readonly: !privileged,
            ..Default::default()
        },
    ];
    let mut wanted: Vec<Mount> = Vec::new();
    let mut images = Vec::new();
    for mount in &input.config.mounts {
        wanted.push(requested(input.engine, mount, &mut images)?);
    }
    let has = |target: &str| wanted.iter().any(|m| normal(&m.target) == target);
    let mut own = Vec::new();
    for name in SHARED_FILES {
        let target = format!("/etc/{name}");
        if !has(&target) {
            own.push(Mount {
                target,
                source: MountSource::Bind(input.sandbox.directory.join(name)),
                readonly: security.readonly_rootfs,
                ..Default::default()
            });
        }
    }
    if !has("/dev/shm") {
        let host = namespace_options(input.pod).ipc() == v1::NamespaceMode::Node;
        let source = if host { PathBuf::from("/dev/shm") } else { input.sandbox.directory.join("shm") };
        own.push(Mount { target: "/dev/shm".into(), source: MountSource::Bind(source), ..Default::default() });
    }
    // A container may bring its own /sys or /dev: then ours would only hide it.
    base.retain(|m| !has(&m.target));
    let depth = |m: &Mount| Path::new(&m.target).components().count();
    wanted.extend(own);
    wanted.sort_by_key(depth);
    Ok((base.into_iter().chain(wanted).collect(), images))
}

/// `/a/./b/` and `/a/b` are the same place.
fn normal(path: &str) -> String {
    format!(
        "/{}",
        Path::new(path)
            .components()
            .filter_map(|c| match c {
                std::path::Component::Normal(part) => part.to_str(),
                _ => None,
            })
            .collect::<Vec<_>>()
            .join("/")
    )
}

fn requested(engine: &Engine, mount: &v1::Mount, images: &mut Vec<String>) -> Result<Mount> {
    if let Some(image) = mount.image.as_ref().filter(|i| !i.image.is_empty()) {
        let image = engine
            .images
            .get(&image.image)
            .ok_or_else(|| Error::NotFound { kind: "image", id: image.image.clone() })?;
        images.push(image.id.clone());
        return Ok(Mount {
            target: mount.container_path.clone(),
            source: MountSource::Image {
                layers: engine.images.layers_directory(),
                lower: image.lower(),
                sub_path: mount.image_sub_path.clone(),
            },
            readonly: true,
            ..Default::default()
        });
    }
    let source = PathBuf::from(&mount.host_path);
    if fs::symlink_metadata(&source).is_err() {
        // As every runtime does: a missing source becomes a directory.
        fs::create_dir_all(&source).map_err(doing(format!("creating mount source {}", source.display())))?;
    }
    // The node's links are the node's business: resolved here, once.
    let source = fs::canonicalize(&source).map_err(doing(format!("mount source {}", source.display())))?;
    if mount.recursive_read_only && (!mount.readonly || mount.propagation() != v1::MountPropagation::PropagationPrivate)
    {
        return Err(Error::Invalid("recursive_read_only needs readonly and private propagation".into()));
    }
    Ok(Mount {
        target: mount.container_path.clone(),
        source: MountSource::Bind(source),
        readonly: mount.readonly,
        recursive_readonly: mount.recursive_read_only,
        propagation: match mount.propagation() {
            v1::MountPropagation::PropagationPrivate => Propagation::Private,
            v1::MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
            v1::MountPropagation::PropagationBidirectional => Propagation::Bidirectional,
        },
    })
}

#[cfg(test)]
mod tests {
    use cgroup::Hierarchy;

    use super::*;
    use crate::image::config::ExecutionConfig;

    #[test]
    fn commands_replace_the_images() {
        let image = Image {
            config: ExecutionConfig {
                entrypoint: Some(vec!["/e".into()]),
                cmd: Some(vec!["c".into()]),
                ..Default::default()
            },
            ..Default::default()
        };
        let list = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (command, args, expected) in [
            (vec![], vec![], vec!["/e", "c"]),
            (vec![], vec!["a"], vec!["/e", "a"]),
            (vec!["x"], vec![], vec!["x"]),
            (vec!["x"], vec!["a"], vec!["x", "a"]),
        ] {
            let config = v1::ContainerConfig { command: list(&command), args: list(&args), ..Default::default() };
            assert_eq!(arguments(&config, &image), expected);
        }
    }

    /// The kubelet names every size that the kernel has, whether cgroups count them or not.
    #[test]
    fn huge_pages_are_limited_where_they_are_counted() {
        let limit = v1::HugepageLimit { page_size: "2MB".into(), limit: 0 };
        let wanted = v1::LinuxContainerResources { hugepage_limits: vec![limit], ..Default::default() };
        for (controller, expected) in [("hugetlb", &[("2MB".to_owned(), 0_u64)][..]), ("memory", &[])] {
            let tree = Hierarchy { controllers: vec![controller.into()], mount: "/nowhere".into() };
            let cgroups = Hierarchies::V1(vec![tree]);
            assert_eq!(resources(&wanted, &cgroups).limits.hugepages, expected, "{controller}");
        }
    }

    #[test]
    fn a_group_needs_a_user() {
        let of = |uid: Option<i64>, name: &str, gid: Option<i64>| {
            let value = |id: i64| v1::Int64Value { value: id };
            let security = v1::LinuxContainerSecurityContext {
                run_as_user: uid.map(value),
                run_as_username: name.into(),
                run_as_group: gid.map(value),
                ..Default::default()
            };
            user(&security, "image").map(|user| (user.name, user.group)).map_err(|error| error.to_string())
        };
        let refused = "failed to generate user string: user group \"7\" is specified without user";
        for (uid, name, gid, expected) in [
            (None, "", None, Ok(("image".to_string(), None))),
            (Some(0), "", Some(7), Ok(("0".into(), Some(7)))),
            (None, "web", Some(7), Ok(("web".into(), Some(7)))),
            (None, "", Some(7), Err(refused.to_string())),
        ] {
            assert_eq!(of(uid, name, gid), expected);
        }
    }

    /// AppArmor confines whoever a profile is named for, or nothing starts.
    #[test]
    fn security_a_named_profile_is_never_left_out() {
        use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
        let of = |kind: v1::security_profile::ProfileType, privileged, has_apparmor| {
            let apparmor = Some(v1::SecurityProfile { profile_type: kind.into(), localhost_ref: "own".into() });
            super::apparmor(
                &v1::LinuxContainerSecurityContext { apparmor, privileged, ..Default::default() },
                has_apparmor,
            )
        };
        for (kind, privileged, has_apparmor, expected) in [
            (Localhost, false, true, Ok(Some("own".to_owned()))),
            (Localhost, true, true, Ok(Some("own".to_owned()))),
            (Localhost, false, false, Err(())),
            (RuntimeDefault, false, true, Err(())),
            (RuntimeDefault, true, true, Ok(None)),
            (RuntimeDefault, false, false, Ok(None)),
            (Unconfined, false, true, Ok(None)),
        ] {
            assert_eq!(
                of(kind, privileged, has_apparmor).map_err(drop),
                expected,
                "{kind:?} {privileged} {has_apparmor}"
            );
        }
        assert_eq!(super::apparmor(&v1::LinuxContainerSecurityContext::default(), true).unwrap(), None);
    }

    #[test]
    fn security_containers_do_not_start_without_what_they_ask_for() {
        let users = |mode: v1::NamespaceMode| v1::LinuxContainerSecurityContext {
            namespace_options: Some(v1::NamespaceOption {
                userns_options: Some(v1::UserNamespace { mode: mode.into(), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let mapping = vec![v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let plain = v1::LinuxContainerSecurityContext::default();
        let with_mount = |mount: v1::Mount| v1::ContainerConfig { mounts: vec![mount], ..Default::default() };
        let device = v1::CdiDevice { name: "vendor.com/device=one".into() };
        for (config, security, is_done) in [
            (v1::ContainerConfig::default(), plain.clone(), true),
            (v1::ContainerConfig::default(), users(v1::NamespaceMode::Node), true),
            (v1::ContainerConfig::default(), users(v1::NamespaceMode::Pod), false),
            (with_mount(v1::Mount { uid_mappings: mapping.clone(), ..Default::default() }), plain.clone(), false),
            (with_mount(v1::Mount { gid_mappings: mapping, ..Default::default() }), plain.clone(), false),
            (v1::ContainerConfig { cdi_devices: vec![device], ..Default::default() }, plain.clone(), false),
        ] {
            assert_eq!(check_done(&config, &security).is_ok(), is_done, "{config:?}");
        }
    }

    #[test]
    fn paths_are_compared_in_normal_form() {
        for (path, expected) in [("/a/b", "/a/b"), ("/a//b/", "/a/b"), ("a/./b", "/a/b"), ("/", "/")] {
            assert_eq!(normal(path), expected);
        }
    }
}
