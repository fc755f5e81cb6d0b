//! Validation of a pod spec as a whole (`ValidatePodSpec`, v1.36); containers, volumes, placement and
//! security have files of their own.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::sort::CompactCollect as _;
use api::validation as rules;
use k8s_openapi::api::core::v1::{HostAlias, PodDNSConfig, PodResourceClaim, PodSpec};

use super::containers::Surroundings;
use super::{containers, os, placement, resources, security, volumes};
use crate::address::ip;
use crate::unset::{items, or_empty, text};

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;

/// `pod` is the name of the pod, and none for a template.
pub fn spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec, pod: Option<&str>) {
    let grace = spec.termination_grace_period_seconds;
    if grace.is_none() {
        errors.required(path.child("terminationGracePeriodSeconds"), "");
    }
    let volume_names = volumes::validate(errors, &path.child("volumes"), items(&spec.volumes), pod);
    let claims: BTreeSet<&str> = items(&spec.resource_claims).iter().map(|claim| claim.name.as_str()).compact_collect();
    let around = Surroundings {
        volumes: &volume_names,
        claims: &claims,
        grace,
        restart_policy: or_empty(&spec.restart_policy),
        host_network: spec.host_network == Some(true),
        host_users: spec.host_users != Some(false),
        os: spec.os.as_ref().map(|os| os.name.as_str()),
        is_pod: pod.is_some(),
    };
    resource_claims(errors, &path.child("resourceClaims"), items(&spec.resource_claims));
    containers::validate(errors, path, spec, &around);
    containers::file_key_volumes(errors, path, spec);
    resources::whole_pod(errors, path, spec, &claims);
    if let Some(overhead) = &spec.overhead {
        resources::overhead(errors, &path.child("overhead"), overhead);
    }
    one_of(errors, &path.child("restartPolicy"), &spec.restart_policy, &["Always", "OnFailure", "Never"]);
    one_of(
        errors,
        &path.child("dnsPolicy"),
        &spec.dns_policy,
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    for (i, gate) in items(&spec.readiness_gates).iter().enumerate() {
        let path = path.child("readinessGates");
        let path = path.index(i);
        errors.invalid_each(
            path.child("conditionType"),
            &gate.condition_type,
            rules::qualified_name(&gate.condition_type),
        );
    }
    security::pod(errors, path, spec);
    dns_config(errors, &path.child("dnsConfig"), spec.dns_config.as_ref(), or_empty(&spec.dns_policy));
    for name in ["serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"] {
        let value = match name {
            "serviceAccountName" => &spec.service_account_name,
            "nodeName" => &spec.node_name,
            "priorityClassName" => &spec.priority_class_name,
            _ => &spec.runtime_class_name,
        };
        if let Some(value) = text(value) {
            errors.invalid_each(path.child(name), value, rules::dns1123_subdomain(value));
        }
    }
    for (name, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(value) = text(value) {
            errors.invalid_each(path.child(name), value, rules::dns1123_label(value));
        }
    }
    if let Some(name) = &spec.hostname_override {
        hostname_override(errors, &path.child("hostnameOverride"), name, spec);
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        errors.invalid_each(
            path.child("activeDeadlineSeconds"),
            deadline,
            rules::in_range(deadline, 1, i64::from(i32::MAX)),
        );
    }
    placement::validate(errors, path, spec);
    host_aliases(errors, &path.child("hostAliases"), items(&spec.host_aliases));
    if let Some(policy) = text(&spec.preemption_policy)
        && !matches!(policy, "PreemptLowerPriority" | "Never")
    {
        errors.not_supported(path.child("preemptionPolicy"), policy, &["PreemptLowerPriority", "Never"]);
    }
    os::validate(errors, path, spec);
}

fn resource_claims(errors: &mut FieldErrors, path: &Path<'_>, claims: &[PodResourceClaim]) {
    let mut names = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let path = path.index(i);
        if claim.name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !names.insert(claim.name.as_str()) {
            errors.duplicate(path.child("name"), &claim.name);
        } else {
            errors.invalid_each(path.child("name"), &claim.name, rules::dns1123_label(&claim.name));
        }
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(_), Some(_)) => {
                let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.invalid(path, claim, detail);
            }
            (None, None) => {
                errors.invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`");
            }
            _ => {}
        }
        for (field, name) in [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ] {
            if let Some(name) = name {
                errors.invalid_each(path.child(field), name, rules::dns1123_subdomain(name));
            }
        }
    }
}

/// The longest name that the kernel keeps for a host.
const MAX_HOSTNAME: usize = 64;

fn hostname_override(errors: &mut FieldErrors, path: &Path<'_>, name: &str, spec: &PodSpec) {
    if spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(path, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        errors.forbidden(path, "may not be specified when hostNetwork is true");
    }
    if name.len() > MAX_HOSTNAME {
        errors.too_long(path, MAX_HOSTNAME);
    }
    errors.invalid_each(path, name, rules::dns1123_subdomain(name));
}

/// A field that must be one of `supported`.
pub fn one_of(errors: &mut FieldErrors, path: &Path<'_>, value: &Option<String>, supported: &[&str]) {
    match text(value) {
        None => errors.required(path, ""),
        Some(value) if supported.contains(&value) => {}
        Some(value) => errors.not_supported(path, value, supported),
    }
}

fn dns_config(errors: &mut FieldErrors, path: &Path<'_>, config: Option<&PodDNSConfig>, policy: &str) {
    if policy == "None" {
        match config {
            None => {
                errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
                return;
            }
            Some(config) if items(&config.nameservers).is_empty() => {
                errors.required(
                    path.child("nameservers"),
                    "must provide at least one DNS nameserver when `dnsPolicy` is None",
                );
                return;
            }
            Some(_) => {}
        }
    }
    let Some(config) = config else { return };
    let (nameservers, searches) = (items(&config.nameservers), items(&config.searches));
    if nameservers.len() > MAX_NAMESERVERS {
        let detail = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        errors.invalid(path.child("nameservers"), nameservers, detail);
    }
    for (i, server) in nameservers.iter().enumerate() {
        ip(errors, &path.child("nameservers").index(i), server);
    }
    if searches.len() > MAX_SEARCHES {
        let detail = format!("must not have more than {MAX_SEARCHES} search paths");
        errors.invalid(path.child("searches"), searches, detail);
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARACTERS {
        let detail =
            format!("must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list");
        errors.invalid(path.child("searches"), searches, detail);
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, search)| *search != ".") {
        let name = search.strip_suffix('.').unwrap_or(search);
        errors.invalid_each(path.child("searches").index(i), search, rules::dns1123_subdomain_with_underscore(name));
    }
    for (i, option) in items(&config.options).iter().enumerate() {
        if text(&option.name).is_none() {
            errors.required(path.child("options").index(i), "must not be empty");
        }
    }
}

fn host_aliases(errors: &mut FieldErrors, path: &Path<'_>, aliases: &[HostAlias]) {
    for (i, alias) in aliases.iter().enumerate() {
        let path = path.index(i);
        ip(errors, &path.child("ip"), &alias.ip);
        for (i, name) in items(&alias.hostnames).iter().enumerate() {
            errors.invalid_each(path.child("hostnames").index(i), name, rules::dns1123_subdomain(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use api::field::{FieldErrors, Path};
    use serde_json::json;

    #[test]
    fn hostname_overrides_are_names_of_hosts() {
        let long = "a".repeat(65);
        for (fields, expected) in [
            (json!({ "hostnameOverride": "db.example" }), ""),
            (json!({ "hostnameOverride": "Not_A_Name" }), "a lowercase RFC 1123 subdomain must consist of"),
            (json!({ "hostnameOverride": "a\n127.0.0.1 b" }), "a lowercase RFC 1123 subdomain must consist of"),
            (json!({ "hostnameOverride": "" }), "spec.hostnameOverride: Invalid value: \"\""),
            (json!({ "hostnameOverride": long }), "spec.hostnameOverride: Too long: may not be more than 64 bytes"),
            (
                json!({ "hostnameOverride": "a", "hostNetwork": true }),
                "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
            ),
            (
                json!({ "hostnameOverride": "a", "setHostnameAsFQDN": true }),
                "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
            ),
        ] {
            let mut spec = json!({ "containers": [] });
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let spec = serde_json::from_value(spec).unwrap();
            let mut errors = FieldErrors::default();
            if let Some(name) = &super::PodSpec::clone(&spec).hostname_override {
                super::hostname_override(&mut errors, &Path::new("spec").child("hostnameOverride"), name, &spec);
            }
            let said = errors.to_string();
            assert!(if expected.is_empty() { said == "[]" } else { said.contains(expected) }, "{fields}: {said}");
        }
    }
}
