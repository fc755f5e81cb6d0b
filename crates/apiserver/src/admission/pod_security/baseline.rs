//! The checks of the baseline level: known ways to leave a container.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{LifecycleHandler, SELinuxOptions};

use super::checks::Violation;
use super::subject::{Container, Subject, containers, plural, quoted, setters};

const ALLOWED_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub(super) fn app_armor_profile(subject: &Subject<'_>) -> Option<Violation> {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let is_allowed = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
    let mut values = BTreeSet::new();
    let profile = subject.security().and_then(|security| security.app_armor_profile.as_ref());
    let pod = profile.is_some_and(|profile| !is_allowed(&profile.type_));
    values.extend(profile.filter(|_| pod).map(|profile| profile.type_.clone()));
    let names = subject.containers_that(|container| {
        let profile = container.security.and_then(|security| security.app_armor_profile.as_ref());
        let bad = profile.filter(|profile| !is_allowed(&profile.type_));
        values.extend(bad.map(|profile| profile.type_.clone()));
        bad.is_some()
    });
    let annotations: Vec<String> = subject
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, value)| {
            key.starts_with(ANNOTATION)
                && !(value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/"))
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    let mut who: Vec<String> = setters(pod, &names).into_iter().collect();
    if !annotations.is_empty() {
        who.push(plural("annotation", "annotations", annotations.len()).to_owned());
    }
    let values: Vec<String> = values.into_iter().chain(annotations).collect();
    (!who.is_empty()).then(|| Violation {
        reason: plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len()),
        detail: format!("{} must not set AppArmor profile type to {}", who.join(" and "), quoted(values)),
    })
}

pub(super) fn capabilities(subject: &Subject<'_>) -> Option<Violation> {
    let mut added = BTreeSet::new();
    let names = subject.containers_that(|container| {
        let mut bad = false;
        for capability in added_capabilities(container) {
            if !ALLOWED_CAPABILITIES.contains(&capability.as_str()) {
                added.insert(capability.clone());
                bad = true;
            }
        }
        bad
    });
    (!names.is_empty()).then(|| Violation {
        reason: "non-default capabilities",
        detail: format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&names),
            quoted(&added)
        ),
    })
}

pub(super) fn added_capabilities<'a>(container: &Container<'a>) -> impl Iterator<Item = &'a String> {
    let capabilities = container.security.and_then(|security| security.capabilities.as_ref());
    capabilities.into_iter().flat_map(|capabilities| capabilities.add.iter().flatten())
}

pub(super) fn host_namespaces(subject: &Subject<'_>) -> Option<Violation> {
    let spec = subject.spec;
    let shared: Vec<&str> =
        [(spec.host_network, "hostNetwork=true"), (spec.host_pid, "hostPID=true"), (spec.host_ipc, "hostIPC=true")]
            .into_iter()
            .filter(|(shared, _)| *shared == Some(true))
            .map(|(_, text)| text)
            .collect();
    (!shared.is_empty()).then(|| Violation { reason: "host namespaces", detail: shared.join(", ") })
}

pub(super) fn host_path_volumes(subject: &Subject<'_>) -> Option<Violation> {
    let volumes = subject.spec.volumes.iter().flatten().filter(|volume| volume.host_path.is_some());
    let names: Vec<&str> = volumes.map(|volume| volume.name.as_str()).collect();
    (!names.is_empty()).then(|| Violation {
        reason: "hostPath volumes",
        detail: format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names)),
    })
}

pub(super) fn host_ports(subject: &Subject<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let names = subject.containers_that(|container| {
        let used = container.ports.iter().filter_map(|port| port.host_port).filter(|port| *port != 0);
        let used: Vec<String> = used.map(|port| port.to_string()).collect();
        let bad = !used.is_empty();
        ports.extend(used);
        bad
    });
    (!names.is_empty()).then(|| Violation {
        reason: "hostPort",
        detail: format!(
            "{} {} {} {}",
            containers(&names),
            plural("uses", "use", names.len()),
            plural("hostPort", "hostPorts", ports.len()),
            ports.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

pub(super) fn host_probes(subject: &Subject<'_>) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let names: BTreeSet<&str> = subject
        .containers_that(|container| {
            let mut bad = false;
            let mut note = |host: Option<&String>| {
                if let Some(host) = host.filter(|host| !host.is_empty()) {
                    hosts.insert(host.clone());
                    bad = true;
                }
            };
            for probe in container.probes.into_iter().flatten() {
                note(probe.http_get.as_ref().and_then(|action| action.host.as_ref()));
                note(probe.tcp_socket.as_ref().and_then(|action| action.host.as_ref()));
            }
            let handlers = container.lifecycle.map(|lifecycle| [&lifecycle.post_start, &lifecycle.pre_stop]);
            for handler in handlers.into_iter().flatten().flatten() {
                let LifecycleHandler { http_get, tcp_socket, .. } = handler;
                note(http_get.as_ref().and_then(|action| action.host.as_ref()));
                note(tcp_socket.as_ref().and_then(|action| action.host.as_ref()));
            }
            bad
        })
        .into_iter()
        .collect();
    (!names.is_empty()).then(|| Violation {
        reason: "probe or lifecycle host",
        detail: format!(
            "{} {} {} {} {}",
            plural("container", "containers", names.len()),
            quoted(&names),
            plural("uses", "use", names.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
            quoted(&hosts)
        ),
    })
}

pub(super) fn privileged(subject: &Subject<'_>) -> Option<Violation> {
    let names = subject
        .containers_that(|container| container.security.is_some_and(|security| security.privileged == Some(true)));
    (!names.is_empty()).then(|| Violation {
        reason: "privileged",
        detail: format!("{} must not set securityContext.privileged=true", containers(&names)),
    })
}

pub(super) fn proc_mount(subject: &Subject<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let names = subject.containers_that(|container| {
        let kind = container.security.and_then(|security| security.proc_mount.as_ref());
        let bad = kind.filter(|kind| *kind != "Default");
        kinds.extend(bad.cloned());
        bad.is_some()
    });
    (!names.is_empty()).then(|| Violation {
        reason: "procMount",
        detail: format!("{} must not set securityContext.procMount to {}", containers(&names), quoted(&kinds)),
    })
}

pub(super) fn se_linux_1_0(subject: &Subject<'_>) -> Option<Violation> {
    se_linux(subject, &["", "container_t", "container_init_t", "container_kvm_t"])
}

pub(super) fn se_linux_1_31(subject: &Subject<'_>) -> Option<Violation> {
    se_linux(subject, &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"])
}

fn se_linux(subject: &Subject<'_>, allowed: &[&str]) -> Option<Violation> {
    let mut types = BTreeSet::new();
    let (mut user, mut role) = (false, false);
    let mut is_bad = |options: &SELinuxOptions| {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let kind = options.type_.as_deref().unwrap_or_default();
        let bad_type = !allowed.contains(&kind);
        if bad_type {
            types.insert(kind.to_owned());
        }
        user |= is_set(&options.user);
        role |= is_set(&options.role);
        bad_type || is_set(&options.user) || is_set(&options.role)
    };
    let pod = subject.security().and_then(|security| security.se_linux_options.as_ref()).is_some_and(&mut is_bad);
    let names = subject.containers_that(|container| {
        container.security.and_then(|security| security.se_linux_options.as_ref()).is_some_and(&mut is_bad)
    });
    let who = setters(pod, &names)?;
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    }
    if user {
        what.push("user may not be set".to_owned());
    }
    if role {
        what.push("role may not be set".to_owned());
    }
    Some(Violation {
        reason: "seLinuxOptions",
        detail: format!("{who} set forbidden securityContext.seLinuxOptions: {}", what.join("; ")),
    })
}

/// Before 1.19 profiles were annotations.
pub(super) fn seccomp_1_0(subject: &Subject<'_>) -> Option<Violation> {
    let is_allowed =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let of_containers =
        subject.containers.iter().map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", c.name));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(of_containers);
    let forbidden: BTreeSet<String> = keys
        .filter_map(|key| {
            let value = subject.metadata.annotations.as_ref()?.get(&key)?;
            (!is_allowed(value)).then(|| format!("{key}={value:?}"))
        })
        .collect();
    (!forbidden.is_empty()).then(|| Violation {
        reason: "seccompProfile",
        detail: format!(
            "forbidden {} {}",
            plural("annotation", "annotations", forbidden.len()),
            forbidden.into_iter().collect::<Vec<_>>().join(", ")
        ),
    })
}

pub(super) fn seccomp_1_19(subject: &Subject<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let mut is_bad = |kind: Option<&str>| {
        let bad = kind.filter(|kind| !is_safe_seccomp(kind));
        values.extend(bad.map(str::to_owned));
        bad.is_some()
    };
    let pod = is_bad(pod_seccomp(subject));
    let names = subject.containers_that(|container| is_bad(seccomp(container)));
    let who = setters(pod, &names)?;
    Some(Violation {
        reason: "seccompProfile",
        detail: format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(&values)),
    })
}

pub(super) fn is_safe_seccomp(kind: &str) -> bool {
    matches!(kind, "Localhost" | "RuntimeDefault")
}

pub(super) fn pod_seccomp<'a>(subject: &Subject<'a>) -> Option<&'a str> {
    Some(&subject.security()?.seccomp_profile.as_ref()?.type_)
}

pub(super) fn seccomp<'a>(container: &Container<'a>) -> Option<&'a str> {
    Some(&container.security?.seccomp_profile.as_ref()?.type_)
}

const SYSCTLS: [(u32, &[&str]); 4] = [
    (
        0,
        &[
            "kernel.shm_rmid_forced",
            "net.ipv4.ip_local_port_range",
            "net.ipv4.tcp_syncookies",
            "net.ipv4.ping_group_range",
            "net.ipv4.ip_unprivileged_port_start",
        ],
    ),
    (27, &["net.ipv4.ip_local_reserved_ports"]),
    (
        29,
        &[
            "net.ipv4.tcp_keepalive_time",
            "net.ipv4.tcp_fin_timeout",
            "net.ipv4.tcp_keepalive_intvl",
            "net.ipv4.tcp_keepalive_probes",
        ],
    ),
    (32, &["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]),
];

pub(super) fn sysctls_1_0(subject: &Subject<'_>) -> Option<Violation> {
    sysctls(subject, 0)
}

pub(super) fn sysctls_1_27(subject: &Subject<'_>) -> Option<Violation> {
    sysctls(subject, 27)
}

pub(super) fn sysctls_1_29(subject: &Subject<'_>) -> Option<Violation> {
    sysctls(subject, 29)
}

pub(super) fn sysctls_1_32(subject: &Subject<'_>) -> Option<Violation> {
    sysctls(subject, 32)
}

fn sysctls(subject: &Subject<'_>, version: u32) -> Option<Violation> {
    let is_allowed = |name: &str| SYSCTLS.iter().any(|(since, names)| *since <= version && names.contains(&name));
    let set = subject.security().and_then(|security| security.sysctls.as_deref()).unwrap_or_default();
    let forbidden: Vec<&str> = set.iter().map(|sysctl| sysctl.name.as_str()).filter(|name| !is_allowed(name)).collect();
    (!forbidden.is_empty()).then(|| Violation { reason: "forbidden sysctls", detail: forbidden.join(", ") })
}

pub(super) fn windows_host_process(subject: &Subject<'_>) -> Option<Violation> {
    let names = subject.containers_that(|container| {
        let options = container.security.and_then(|security| security.windows_options.as_ref());
        options.is_some_and(|options| options.host_process == Some(true))
    });
    let options = subject.security().and_then(|security| security.windows_options.as_ref());
    let who = setters(options.is_some_and(|options| options.host_process == Some(true)), &names)?;
    Some(Violation {
        reason: "hostProcess",
        detail: format!("{who} must not set securityContext.windowsOptions.hostProcess=true"),
    })
}
