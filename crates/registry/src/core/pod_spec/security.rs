//! Validation of security contexts and host namespaces.

use api::field::{FieldErrors, Path};
use api::pod::{Shared, namespace_of_sysctl};
use api::validation as rules;
use k8s_openapi::api::core::v1::{AppArmorProfile, PodSpec, SeccompProfile, SecurityContext};

use crate::unset::{items, text};

pub fn pod(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.invalid(
            path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    if spec.host_users == Some(false) {
        for (name, shared) in
            [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)]
        {
            if shared == Some(true) {
                errors.forbidden(path.child(name), "when `hostUsers` is false");
            }
        }
        super::each_container(path, spec, |path, container| {
            if !items(&container.volume_devices).is_empty() {
                errors.forbidden(path.child("volumeDevices"), "when `hostUsers` is false");
            }
        });
    }
    let Some(context) = &spec.security_context else { return };
    let path = path.child("securityContext");
    ids(
        errors,
        &path,
        &[("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group), ("fsGroup", context.fs_group)],
    );
    for (i, &group) in items(&context.supplemental_groups).iter().enumerate() {
        errors.invalid_each(path.child("supplementalGroups").index(i), group, rules::user_or_group_id(group));
    }
    let mut names = std::collections::BTreeSet::new();
    for (i, sysctl) in items(&context.sysctls).iter().enumerate() {
        let path = path.child("sysctls");
        let path = path.index(i);
        if sysctl.name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !is_sysctl_name(&sysctl.name) {
            let detail = format!("must have at most 253 characters and match regex {SYSCTL}");
            errors.invalid(path.child("name"), &sysctl.name, detail);
        } else if !names.insert(sysctl.name.as_str()) {
            errors.duplicate(path.child("name"), &sysctl.name);
        }
        // In a namespace of the node it would be the node's setting.
        let of_node = match namespace_of_sysctl(&sysctl.name) {
            Some(Shared::Net) => (spec.host_network == Some(true)).then_some("hostNetwork"),
            Some(Shared::Ipc) => (spec.host_ipc == Some(true)).then_some("hostIPC"),
            None => None,
        };
        if let Some(of_node) = of_node {
            let detail = format!("may not be specified when '{of_node}' is true");
            errors.invalid(path.child("name"), &sysctl.name, detail);
        }
    }
    choice(errors, &path.child("fsGroupChangePolicy"), &context.fs_group_change_policy, &["Always", "OnRootMismatch"]);
    choice(errors, &path.child("supplementalGroupsPolicy"), &context.supplemental_groups_policy, &["Merge", "Strict"]);
    let labels = ["MountOption", "Recursive"];
    choice(errors, &path.child("seLinuxChangePolicy"), &context.se_linux_change_policy, &labels);
    seccomp(errors, &path.child("seccompProfile"), context.seccomp_profile.as_ref());
    app_armor(errors, &path.child("appArmorProfile"), context.app_armor_profile.as_ref());
}

pub fn container(errors: &mut FieldErrors, path: &Path<'_>, context: &SecurityContext, host_users: bool) {
    ids(errors, path, &[("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)]);
    choice(errors, &path.child("procMount"), &context.proc_mount, &["Default", "Unmasked"]);
    if let Some(unmasked) = text(&context.proc_mount).filter(|kind| host_users && *kind == "Unmasked") {
        errors.invalid(path.child("procMount"), unmasked, "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(errors, &path.child("seccompProfile"), context.seccomp_profile.as_ref());
    app_armor(errors, &path.child("appArmorProfile"), context.app_armor_profile.as_ref());
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            errors.invalid(path, context, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        let added = context.capabilities.as_ref().map(|capabilities| items(&capabilities.add)).unwrap_or_default();
        if added.iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            errors.invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

fn ids(errors: &mut FieldErrors, path: &Path<'_>, ids: &[(&str, Option<i64>)]) {
    for &(name, id) in ids {
        if let Some(id) = id {
            errors.invalid_each(path.child(name), id, rules::user_or_group_id(id));
        }
    }
}

fn choice(errors: &mut FieldErrors, path: &Path<'_>, value: &Option<String>, supported: &[&str]) {
    if let Some(value) = text(value)
        && !supported.contains(&value)
    {
        errors.not_supported(path, value, supported);
    }
}

fn seccomp(errors: &mut FieldErrors, path: &Path<'_>, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    profile_type(errors, path, &profile.type_, &profile.localhost_profile, "seccomp");
}

fn app_armor(errors: &mut FieldErrors, path: &Path<'_>, profile: Option<&AppArmorProfile>) {
    let Some(profile) = profile else { return };
    profile_type(errors, path, &profile.type_, &profile.localhost_profile, "AppArmor");
}

fn profile_type(errors: &mut FieldErrors, path: &Path<'_>, kind: &str, local: &Option<String>, what: &str) {
    let local_path = path.child("localhostProfile");
    match (kind, text(local)) {
        ("Localhost", None) => {
            let detail = format!("must be set when {what} type is Localhost");
            errors.required(local_path, detail);
        }
        ("Localhost", Some(profile)) if what == "seccomp" => {
            super::containers::descending_path(errors, &local_path, profile);
        }
        ("Localhost", Some(profile)) if profile.trim() != profile => {
            errors.invalid(local_path, profile, "must not be padded with whitespace");
        }
        ("Localhost", Some(profile)) if profile.len() > LONGEST_PROFILE => errors.too_long(local_path, LONGEST_PROFILE),
        ("Localhost", Some(_)) => {}
        ("RuntimeDefault" | "Unconfined", Some(profile)) => {
            let detail = format!("can only be set when {what} type is Localhost");
            errors.invalid(local_path, profile, detail);
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            let field = if what == "seccomp" { "seccompProfile" } else { "appArmorProfile" };
            errors.required(path.child("type"), format!("type is required when {field} is set"));
        }
        (other, _) => {
            errors.not_supported(path.child("type"), other, &["Localhost", "RuntimeDefault", "Unconfined"]);
        }
    }
}

/// A path, without its final zero.
const LONGEST_PROFILE: usize = 4095;

const SYSCTL: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

fn is_sysctl_name(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|&c| plain(c))
                && bytes.last().is_some_and(|&c| plain(c))
                && bytes.iter().all(|&c| plain(c) || matches!(c, b'-' | b'_'))
        })
}
