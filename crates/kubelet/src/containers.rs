//! Turns a pod into CRI configurations: its sandbox, and each of its containers. Pure.

use std::collections::BTreeSet;
use std::path::Path;

use api::pod::Shared;
use cri::v1;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, Pod, SELinuxOptions, SeccompProfile, SecurityContext, VolumeMount,
};

use crate::env::{EnvError, expand_words};
use crate::state;

/// A container promises not to run as root, and would.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{why} (pod: \"{name}_{namespace}({uid})\", container: {container})")]
pub(crate) struct RunsAsRoot {
    why: RootReason,
    name: String,
    namespace: String,
    uid: String,
    container: String,
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum RootReason {
    #[error("container's runAsUser breaks non-root policy")]
    OwnUser,
    #[error("container has runAsNonRoot and image will run as root")]
    Image,
    #[error("container has runAsNonRoot and image has non-numeric user ({0}), cannot verify user is non-root")]
    Unknown(String),
}

/// Mounts below a volume cannot be made read-only with it.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "failed to resolve recursive read-only mode: volume \"{volume}\" requested recursive read-only mode, but it is {why}"
)]
pub(crate) struct NotRecursive {
    volume: String,
    why: String,
}

const MASKED_PATHS: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
fn masked_paths(more: Vec<String>) -> Vec<String> {
    MASKED_PATHS.iter().map(|path| (*path).to_owned()).chain(more).collect()
}

const READONLY_PATHS: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Sysctls that are namespaced and harm nobody else; others need `--allowed-unsafe-sysctls`.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Why this node does not allow a sysctl of the pod, for the first that it does not.
pub(crate) fn forbidden_sysctl(pod: &Pod, allowed_unsafe: &[String]) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let context = spec.security_context.as_ref()?;
    context.sysctls.iter().flatten().map(|sysctl| sysctl.name.replace('/', ".")).find_map(|name| {
        let is_allowed = SAFE_SYSCTLS.contains(&name.as_str())
            || allowed_unsafe.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => *pattern == name,
            });
        if !is_allowed {
            return Some(format!("{name:?} not allowlisted"));
        }
        // In the node's own namespace it would be the node's setting.
        let (is_host, namespace) = match api::pod::namespace_of_sysctl(&name)? {
            Shared::Ipc => (spec.host_ipc, "IPC"),
            Shared::Net => (spec.host_network, "Net"),
        };
        (is_host == Some(true)).then(|| format!("{name:?} not allowed with host {namespace} enabled"))
    })
}

/// The namespaces a pod's processes share, and with whom.
pub(crate) fn namespace_options(pod: &Pod) -> v1::NamespaceOption {
    let spec = pod.spec.as_ref();
    let is = |flag: Option<bool>| flag == Some(true);
    let mode =
        |host: bool, otherwise: v1::NamespaceMode| (if host { v1::NamespaceMode::Node } else { otherwise }) as i32;
    let shares_pid = spec.is_some_and(|spec| is(spec.share_process_namespace));
    v1::NamespaceOption {
        network: mode(spec.is_some_and(|spec| is(spec.host_network)), v1::NamespaceMode::Pod),
        ipc: mode(spec.is_some_and(|spec| is(spec.host_ipc)), v1::NamespaceMode::Pod),
        pid: mode(
            spec.is_some_and(|spec| is(spec.host_pid)),
            if shares_pid { v1::NamespaceMode::Pod } else { v1::NamespaceMode::Container },
        ),
        ..Default::default()
    }
}

pub(crate) struct SandboxParts {
    pub(crate) attempt: u32,
    pub(crate) hostname: String,
    pub(crate) log_directory: String,
    pub(crate) dns: v1::DnsConfig,
    pub(crate) cgroup_parent: String,
}

pub(crate) fn sandbox_config(pod: &Pod, parts: SandboxParts) -> v1::PodSandboxConfig {
    let spec = pod.spec.clone().unwrap_or_default();
    let context = spec.security_context.clone().unwrap_or_default();
    let host_network = spec.host_network == Some(true);
    let port_mappings = state::host_ports(pod)
        .filter(|_| !host_network)
        .map(|port| v1::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect();
    let is_privileged = state::all_containers(pod)
        .iter()
        .any(|container| container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true)));
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: state::name(pod).into(),
            uid: state::uid(pod).into(),
            namespace: state::namespace(pod).into(),
            attempt: parts.attempt,
        }),
        hostname: if host_network { String::new() } else { parts.hostname },
        log_directory: parts.log_directory,
        dns_config: Some(parts.dns),
        port_mappings,
        labels: state::pod_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: parts.cgroup_parent,
            sysctls: context
                .sysctls
                .iter()
                .flatten()
                .map(|sysctl| (sysctl.name.replace('/', "."), sysctl.value.clone()))
                .collect(),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespace_options(pod)),
                run_as_user: context.run_as_user.map(|value| v1::Int64Value { value }),
                run_as_group: context.run_as_group.map(|value| v1::Int64Value { value }),
                supplemental_groups: pod_groups(pod),
                supplemental_groups_policy: groups_policy(pod),
                privileged: is_privileged,
                selinux_options: context.se_linux_options.as_ref().map(selinux),
                seccomp: Some(v1::SecurityProfile {
                    profile_type: v1::security_profile::ProfileType::RuntimeDefault as i32,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// fsGroup first, then the supplemental groups.
fn pod_groups(pod: &Pod) -> Vec<i64> {
    let Some(context) = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()) else { return Vec::new() };
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

fn groups_policy(pod: &Pod) -> i32 {
    let policy = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|c| c.supplemental_groups_policy.as_deref());
    match policy {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict as i32,
        _ => v1::SupplementalGroupsPolicy::Merge as i32,
    }
}

/// The container's own settings, with the pod's where it has none.
pub(crate) fn effective_security(pod: &Pod, container: &Container) -> SecurityContext {
    let mut own = container.security_context.clone().unwrap_or_default();
    if let Some(of_pod) = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()) {
        own.run_as_user = own.run_as_user.or(of_pod.run_as_user);
        own.run_as_group = own.run_as_group.or(of_pod.run_as_group);
        own.run_as_non_root = own.run_as_non_root.or(of_pod.run_as_non_root);
        own.seccomp_profile = own.seccomp_profile.or_else(|| of_pod.seccomp_profile.clone());
        own.app_armor_profile = own.app_armor_profile.or_else(|| of_pod.app_armor_profile.clone());
        own.se_linux_options = own.se_linux_options.or_else(|| of_pod.se_linux_options.clone());
    }
    own
}

/// Refuses a container that promises not to run as root but would.
pub(crate) fn check_non_root(
    pod: &Pod,
    container: &Container,
    image_uid: Option<i64>,
    image_user: &str,
) -> Result<(), RunsAsRoot> {
    let context = effective_security(pod, container);
    if context.run_as_non_root != Some(true) {
        return Ok(());
    }
    let why = match (context.run_as_user, image_uid) {
        (Some(0), _) => RootReason::OwnUser,
        (None, Some(0)) => RootReason::Image,
        (None, None) if image_user.is_empty() => RootReason::Image,
        (None, None) => RootReason::Unknown(image_user.to_owned()),
        (Some(_), _) | (None, Some(_)) => return Ok(()),
    };
    Err(RunsAsRoot {
        why,
        name: state::name(pod).to_owned(),
        namespace: state::namespace(pod).to_owned(),
        uid: state::uid(pod).to_owned(),
        container: container.name.clone(),
    })
}

fn seccomp(profile: Option<&SeccompProfile>, root: &Path, is_default: bool) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, localhost_ref) = match profile.map(|profile| profile.type_.as_str()) {
        Some("RuntimeDefault") => (ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            let name = profile.and_then(|profile| profile.localhost_profile.clone()).unwrap_or_default();
            (ProfileType::Localhost, root.join(name).to_string_lossy().into_owned())
        }
        None if is_default => (ProfileType::RuntimeDefault, String::new()),
        _ => (ProfileType::Unconfined, String::new()),
    };
    v1::SecurityProfile { profile_type: kind as i32, localhost_ref }
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

/// The secrets to pull images with. The API takes references without a name: they mean nothing.
pub(crate) fn pull_secrets(pod: &Pod) -> impl Iterator<Item = &str> {
    let references = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    references.map(|reference| reference.name.as_str()).filter(|name| !name.is_empty())
}

/// The API writes `SIGRTMIN+1` what the runtime's protocol writes `SIGRTMINPLUS1`.
fn stop_signal(container: &Container) -> v1::Signal {
    let name = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref()).unwrap_or_default();
    let name = name.replace('+', "PLUS").replace('-', "MINUS");
    v1::Signal::from_str_name(&name).unwrap_or(v1::Signal::RuntimeDefault)
}

/// The file of a container's own seccomp profile.
pub(crate) fn localhost_profile(pod: &Pod, container: &Container) -> Option<String> {
    let profile = effective_security(pod, container).seccomp_profile.filter(|profile| profile.type_ == "Localhost")?;
    Some(profile.localhost_profile.unwrap_or_default())
}

fn capabilities(capabilities: Option<&Capabilities>) -> v1::Capability {
    v1::Capability {
        add_capabilities: capabilities.and_then(|c| c.add.clone()).unwrap_or_default(),
        drop_capabilities: capabilities.and_then(|c| c.drop.clone()).unwrap_or_default(),
        ..Default::default()
    }
}

/// Everything about a container that was looked up rather than written in its spec.
pub(crate) struct ContainerParts<'a> {
    pub(crate) image: String,
    pub(crate) restart_count: i32,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) mounts: Vec<v1::Mount>,
    pub(crate) devices: Vec<v1::Device>,
    /// Groups that the pod's volumes are for.
    pub(crate) volume_groups: &'a BTreeSet<i64>,
    pub(crate) resources: v1::LinuxContainerResources,
    pub(crate) image_uid: Option<i64>,
    pub(crate) image_user: String,
    /// The container whose processes an ephemeral one looks at.
    pub(crate) target_id: Option<String>,
    pub(crate) seccomp_root: &'a Path,
    /// Containers that name no seccomp profile get the runtime's.
    pub(crate) seccomp_default: bool,
    /// Places of this machine that are masked besides those of every machine.
    pub(crate) thermal_paths: Vec<String>,
}

pub(crate) fn container_config(
    pod: &Pod,
    container: &Container,
    parts: ContainerParts<'_>,
) -> Result<v1::ContainerConfig, EnvError> {
    let context = effective_security(pod, container);
    let is_privileged = context.privileged == Some(true);
    let mut namespaces = namespace_options(pod);
    if let Some(target) = parts.target_id {
        namespaces.pid = v1::NamespaceMode::Target as i32;
        namespaces.target_id = target;
    }
    let expand = |words: &Option<Vec<String>>| expand_words(words.as_deref().unwrap_or_default(), &parts.env);
    let mut groups = pod_groups(pod);
    let more: Vec<i64> = parts.volume_groups.iter().copied().filter(|group| !groups.contains(group)).collect();
    groups.extend(more);
    let unmasked = context.proc_mount.as_deref() == Some("Unmasked") || is_privileged;
    let run_as_user = context.run_as_user.or(parts.image_uid);
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: parts.restart_count as u32 }),
        image: Some(v1::ImageSpec {
            image: parts.image,
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expand(&container.command)?,
        args: expand(&container.args)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: parts
            .env
            .iter()
            .map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: parts.mounts,
        devices: parts.devices,
        labels: state::container_labels(pod, &container.name),
        annotations: state::container_annotations(pod, container, parts.restart_count),
        log_path: format!("{}/{}.log", container.name, parts.restart_count),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        stop_signal: stop_signal(container) as i32,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(parts.resources),
            security_context: Some(v1::LinuxContainerSecurityContext {
                capabilities: Some(capabilities(context.capabilities.as_ref())),
                privileged: is_privileged,
                namespace_options: Some(namespaces),
                run_as_user: run_as_user.map(|value| v1::Int64Value { value }),
                run_as_group: context.run_as_group.map(|value| v1::Int64Value { value }),
                run_as_username: if run_as_user.is_none() { parts.image_user } else { String::new() },
                readonly_rootfs: context.read_only_root_filesystem == Some(true),
                supplemental_groups: groups,
                supplemental_groups_policy: groups_policy(pod),
                no_new_privs: context.allow_privilege_escalation == Some(false),
                masked_paths: if unmasked { vec![] } else { masked_paths(parts.thermal_paths) },
                readonly_paths: if unmasked { vec![] } else { READONLY_PATHS.iter().map(|p| (*p).into()).collect() },
                seccomp: Some(if is_privileged {
                    seccomp(None, parts.seccomp_root, false)
                } else {
                    seccomp(context.seccomp_profile.as_ref(), parts.seccomp_root, parts.seccomp_default)
                }),
                selinux_options: context.se_linux_options.as_ref().map(selinux),
                apparmor: context.app_armor_profile.as_ref().map(|profile| v1::SecurityProfile {
                    profile_type: match profile.type_.as_str() {
                        "RuntimeDefault" => v1::security_profile::ProfileType::RuntimeDefault,
                        "Localhost" => v1::security_profile::ProfileType::Localhost,
                        _ => v1::security_profile::ProfileType::Unconfined,
                    } as i32,
                    localhost_ref: profile.localhost_profile.clone().unwrap_or_default(),
                }),
                ..Default::default()
            }),
        }),
        ..Default::default()
    })
}

/// The image of a volume: the one that the pod may use. Its name may be another image's by the time that it is mounted.
pub(crate) fn volume_image(id: String, reference: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: id, user_specified_image: reference.to_owned(), ..Default::default() }
}

/// Whether mounts below a volume are read-only too.
pub(crate) fn is_recursively_read_only(mount: &VolumeMount, is_supported: bool) -> Result<bool, NotRecursive> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let refused = |why: String| Err(NotRecursive { volume: mount.name.clone(), why });
    if mount.read_only != Some(true) {
        return refused("not read-only".into());
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return refused(format!("not compatible with propagation \"{propagation}\""));
    }
    match mode {
        "IfPossible" => Ok(is_supported),
        _ if is_supported => Ok(true),
        _ => refused("not supported by the runtime".into()),
    }
}

pub(crate) fn propagation(mode: Option<&str>) -> i32 {
    match mode {
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer as i32,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional as i32,
        _ => v1::MountPropagation::PropagationPrivate as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerPort, PodSecurityContext, PodSpec, Sysctl};
    use serde_json::json;

    fn pod(spec: PodSpec) -> Pod {
        Pod { spec: Some(spec), ..Default::default() }
    }

    #[test]
    fn namespaces() {
        use v1::NamespaceMode::{Container as Own, Node, Pod as Shared};
        for (spec, network, pid, ipc) in [
            (PodSpec::default(), Shared, Own, Shared),
            (PodSpec { host_network: Some(true), ..Default::default() }, Node, Own, Shared),
            (PodSpec { host_pid: Some(true), host_ipc: Some(true), ..Default::default() }, Shared, Node, Node),
            (PodSpec { share_process_namespace: Some(true), ..Default::default() }, Shared, Shared, Shared),
        ] {
            let options = namespace_options(&pod(spec));
            assert_eq!((options.network, options.pid, options.ipc), (network as i32, pid as i32, ipc as i32));
        }
    }

    #[test]
    fn pull_secrets_without_a_name_mean_nothing() {
        let spec = json!({"containers": [], "imagePullSecrets": [{}, {"name": "a"}, {"name": ""}]});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        assert_eq!(pull_secrets(&pod).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn security_sysctls_need_permission() {
        let with = |name: &str, is_host: bool| {
            pod(PodSpec {
                host_network: Some(is_host),
                host_ipc: Some(is_host),
                security_context: Some(PodSecurityContext {
                    sysctls: Some(vec![Sysctl { name: name.into(), value: "1".into() }]),
                    ..Default::default()
                }),
                ..Default::default()
            })
        };
        for (name, allowed, expected) in [
            ("kernel.shm_rmid_forced", vec![], None),
            ("kernel/shm_rmid_forced", vec![], None),
            ("kernel.msgmax", vec![], Some("\"kernel.msgmax\" not allowlisted")),
            ("kernel.msgmax", vec!["kernel.msg*".to_string()], None),
        ] {
            assert_eq!(forbidden_sysctl(&with(name, false), &allowed).as_deref(), expected, "{name}");
        }
        // Of the node's own namespaces: they would be the node's settings.
        for (name, expected) in [
            ("net.ipv4.tcp_syncookies", "\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
            ("net/ipv4/ip_forward", "\"net.ipv4.ip_forward\" not allowed with host Net enabled"),
            ("kernel.shm_rmid_forced", "\"kernel.shm_rmid_forced\" not allowed with host IPC enabled"),
        ] {
            let allowed = ["net.*".to_string()];
            assert_eq!(forbidden_sysctl(&with(name, true), &allowed).as_deref(), Some(expected), "{name}");
            assert_eq!(forbidden_sysctl(&with(name, false), &allowed), None, "{name}");
        }
    }

    #[test]
    fn non_root_is_checked() {
        let container = |user: Option<i64>| Container {
            security_context: Some(SecurityContext {
                run_as_non_root: Some(true),
                run_as_user: user,
                ..Default::default()
            }),
            ..Default::default()
        };
        for (user, image_uid, image_user, fine) in [
            (Some(1000), Some(0), "", true),
            (Some(0), None, "", false),
            (None, Some(0), "", false),
            (None, Some(65534), "", true),
            (None, None, "nginx", false),
            (None, None, "", false),
        ] {
            let checked = check_non_root(&pod(PodSpec::default()), &container(user), image_uid, image_user);
            assert_eq!(checked.is_ok(), fine, "{user:?} {image_uid:?} {image_user}");
        }
    }

    #[test]
    fn seccomp_profiles_may_be_the_default() {
        use v1::security_profile::ProfileType::{RuntimeDefault, Unconfined};
        let named = SeccompProfile { type_: "Unconfined".into(), ..Default::default() };
        for (profile, is_default, expected) in
            [(None, false, Unconfined), (None, true, RuntimeDefault), (Some(&named), true, Unconfined)]
        {
            assert_eq!(seccomp(profile, Path::new("/"), is_default).profile_type(), expected);
        }
    }

    #[test]
    fn signals_have_the_names_of_the_protocol() {
        let with = |name: Option<&str>| {
            let lifecycle = json!({"name": "c", "lifecycle": {"stopSignal": name}});
            stop_signal(&serde_json::from_value(lifecycle).unwrap())
        };
        for (name, expected) in [
            (None, v1::Signal::RuntimeDefault),
            (Some("SIGUSR1"), v1::Signal::Sigusr1),
            (Some("SIGRTMIN+2"), v1::Signal::Sigrtminplus2),
        ] {
            assert_eq!(with(name), expected);
        }
    }

    /// The scheduler and the node look for collisions among the ports of containers that run beside each other. A port that
    /// nobody looked at would be taken from the pod that has it.
    #[test]
    fn security_only_ports_that_were_looked_at_are_mapped() {
        let with = |port: i32, policy: Option<&str>| Container {
            name: format!("c{port}"),
            restart_policy: policy.map(str::to_owned),
            ports: Some(vec![ContainerPort { container_port: 80, host_port: Some(port), ..Default::default() }]),
            ..Default::default()
        };
        let mut spec = PodSpec {
            containers: vec![with(1, None)],
            init_containers: Some(vec![with(2, None), with(3, Some("Always"))]),
            ..Default::default()
        };
        let mapped = |spec: &PodSpec| {
            let parts = SandboxParts {
                attempt: 0,
                hostname: "h".into(),
                log_directory: "/l".into(),
                dns: Default::default(),
                cgroup_parent: String::new(),
            };
            let config = sandbox_config(&pod(spec.clone()), parts);
            let mut ports: Vec<i32> = config.port_mappings.iter().map(|mapping| mapping.host_port).collect();
            ports.sort_unstable();
            ports
        };
        assert_eq!(mapped(&spec), [1, 3]);
        spec.host_network = Some(true);
        assert!(mapped(&spec).is_empty());
    }

    #[test]
    fn security_the_image_of_a_volume_is_the_one_that_was_looked_at() {
        let spec = volume_image("sha256:1".into(), "example.com/a:latest");
        assert_eq!((spec.image.as_str(), spec.user_specified_image.as_str()), ("sha256:1", "example.com/a:latest"));
    }

    #[test]
    fn pod_settings_fill_in_and_host_ports_are_mapped() {
        let spec = PodSpec {
            security_context: Some(PodSecurityContext {
                run_as_user: Some(1001),
                run_as_group: Some(2002),
                fs_group: Some(3003),
                supplemental_groups: Some(vec![4]),
                ..Default::default()
            }),
            containers: vec![Container {
                name: "a".into(),
                args: Some(vec!["$(X)".into()]),
                ports: Some(vec![ContainerPort { container_port: 80, host_port: Some(8080), ..Default::default() }]),
                ..Default::default()
            }],
            ..Default::default()
        };
        let pod = pod(spec);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let config = container_config(
            &pod,
            container,
            ContainerParts {
                image: "sha256:1".into(),
                restart_count: 3,
                env: vec![("X".into(), "y".into())],
                mounts: vec![],
                devices: vec![],
                volume_groups: &BTreeSet::from([4, 777]),
                resources: Default::default(),
                image_uid: Some(0),
                image_user: String::new(),
                target_id: None,
                seccomp_root: Path::new("/"),
                seccomp_default: false,
                thermal_paths: vec!["/sys/cpu0/hot".into()],
            },
        )
        .unwrap();
        assert_eq!(config.args, ["y"]);
        assert_eq!(config.log_path, "a/3.log");
        let security = config.linux.unwrap().security_context.unwrap();
        assert_eq!(security.run_as_user.unwrap().value, 1001);
        assert_eq!(security.run_as_group.unwrap().value, 2002);
        assert_eq!(security.supplemental_groups, [3003, 4, 777]);
        assert!(["/proc/kcore", "/sys/cpu0/hot"].iter().all(|path| security.masked_paths.iter().any(|it| it == path)));
        let sandbox = sandbox_config(
            &pod,
            SandboxParts {
                attempt: 0,
                hostname: "h".into(),
                log_directory: "/l".into(),
                dns: Default::default(),
                cgroup_parent: String::new(),
            },
        );
        assert_eq!((sandbox.port_mappings[0].host_port, sandbox.port_mappings[0].container_port), (8080, 80));
    }
}
