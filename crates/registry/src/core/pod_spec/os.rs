//! Validation of what differs between operating systems: signals, and fields that one of them does not have.

use api::field::{FieldErrors, Path};
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, SecurityContext};

use crate::unset::items;

const NOT_FOR_WINDOWS: &str = "cannot be set for a windows pod";
const NOT_FOR_LINUX: &str = "windows options cannot be set for a linux pod";

/// Signals of Linux that have names of their own. The real-time ones are counted from both ends.
const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

pub(super) fn validate(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec) {
    let Some(os) = &spec.os else { return };
    match os.name.as_str() {
        "" => errors.required(path.child("os.name"), ""),
        "linux" => linux(errors, path, spec),
        "windows" => windows(errors, path, spec),
        other => errors.not_supported(path.child("os"), other, &["linux", "windows"]),
    }
}

/// A signal can be chosen only where it is said for which system.
pub(super) fn stop_signal(errors: &mut FieldErrors, path: &Path<'_>, signal: &str, os: Option<&str>) {
    match os {
        None => errors.forbidden(path, "may not be set for containers with empty `spec.os.name`"),
        Some("windows") if !matches!(signal, "SIGKILL" | "SIGTERM") => {
            errors.not_supported(path, signal, &["SIGKILL", "SIGTERM"]);
        }
        Some("linux") => {
            let counted = (1..=14).map(|n| format!("SIGRTMAX-{n}")).chain((1..=15).map(|n| format!("SIGRTMIN+{n}")));
            let counted: Vec<String> = counted.collect();
            let mut known: Vec<&str> = SIGNALS.iter().copied().chain(counted.iter().map(String::as_str)).collect();
            known.compact_sort();
            if !known.contains(&signal) {
                errors.not_supported(path, signal, &known);
            }
        }
        Some(_) => {}
    }
}

fn linux(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec) {
    if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
        errors.forbidden(path.child("securityContext.windowsOptions"), NOT_FOR_LINUX);
    }
    super::each_container(path, spec, |path, container| {
        if container.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
            errors.forbidden(path.child("securityContext.windowsOptions"), NOT_FOR_LINUX);
        }
    });
}

fn windows(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec) {
    let none = PodSecurityContext::default();
    let context = spec.security_context.as_ref().unwrap_or(&none);
    for (name, is_set) in [
        ("securityContext.appArmorProfile", context.app_armor_profile.is_some()),
        ("securityContext.seLinuxOptions", context.se_linux_options.is_some()),
        ("hostUsers", spec.host_users.is_some()),
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        ("securityContext.seccompProfile", context.seccomp_profile.is_some()),
        ("securityContext.fsGroup", context.fs_group.is_some()),
        ("securityContext.fsGroupChangePolicy", context.fs_group_change_policy.is_some()),
        ("securityContext.sysctls", !items(&context.sysctls).is_empty()),
        ("shareProcessNamespace", spec.share_process_namespace.is_some()),
        ("securityContext.runAsUser", context.run_as_user.is_some()),
        ("securityContext.runAsGroup", context.run_as_group.is_some()),
        ("securityContext.supplementalGroups", context.supplemental_groups.is_some()),
        ("securityContext.supplementalGroupsPolicy", context.supplemental_groups_policy.is_some()),
        ("securityContext.seLinuxChangePolicy", context.se_linux_change_policy.is_some()),
    ] {
        if is_set {
            errors.forbidden(path.child(name), NOT_FOR_WINDOWS);
        }
    }
    super::each_container(path, spec, |path, container| {
        let none = SecurityContext::default();
        let context = container.security_context.as_ref().unwrap_or(&none);
        for (name, is_set) in [
            ("appArmorProfile", context.app_armor_profile.is_some()),
            ("seLinuxOptions", context.se_linux_options.is_some()),
            ("seccompProfile", context.seccomp_profile.is_some()),
            ("capabilities", context.capabilities.is_some()),
            ("readOnlyRootFilesystem", context.read_only_root_filesystem.is_some()),
            ("privileged", context.privileged.is_some()),
            ("allowPrivilegeEscalation", context.allow_privilege_escalation.is_some()),
            ("procMount", context.proc_mount.is_some()),
            ("runAsUser", context.run_as_user.is_some()),
            ("runAsGroup", context.run_as_group.is_some()),
        ] {
            if is_set {
                errors.forbidden(path.child("securityContext").child(name), NOT_FOR_WINDOWS);
            }
        }
    });
}
