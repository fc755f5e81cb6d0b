//! Validation of resource requests and limits.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::validation as rules;
use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::unset::items;

pub fn requirements(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    requirements: &ResourceRequirements,
    claims: &BTreeSet<&str>,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let limits = requirements.limits.as_ref();
    let (mut compute, mut huge) = (false, false);
    for (list_path, list) in [(&limits_path, limits), (&requests_path, requirements.requests.as_ref())] {
        for (name, raw) in list.into_iter().flatten() {
            let path = list_path.key(name);
            container_resource_name(errors, &path, name);
            let Ok(amount) = Quantity::try_from(raw) else {
                errors.invalid(
                    path,
                    &raw.0,
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                );
                continue;
            };
            quantity_value(errors, &path, name, &amount);
            compute |= matches!(name.as_str(), "cpu" | "memory");
            huge |= name.starts_with("hugepages-");
        }
    }
    for (name, raw) in requirements.requests.iter().flatten() {
        let Ok(request) = Quantity::try_from(raw) else { continue };
        match limits.and_then(|limits| limits.get(name)).map(Quantity::try_from) {
            Some(Ok(limit)) if !overcommits(name) && request != limit => {
                errors.invalid(requests_path, request, format!("must be equal to {name} limit of {limit}"));
            }
            Some(Ok(limit)) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(requests_path, request, detail);
            }
            Some(_) => {}
            None if !overcommits(name) => {
                errors.required(limits_path, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
    }
    if huge && !compute {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    let mut seen = BTreeSet::new();
    for (i, claim) in items(&requirements.claims).iter().enumerate() {
        let path = path.child("claims");
        let path = path.index(i);
        if claim.name.is_empty() {
            errors.required(path.child("name"), "");
        } else if !seen.insert((&claim.name, &claim.request)) {
            errors.duplicate(path, &claim.name);
        } else if !claims.contains(claim.name.as_str()) {
            errors.not_found(path.child("name"), &claim.name);
        }
    }
}

/// Amounts are never negative; things that are counted come whole.
pub fn quantity_value(errors: &mut FieldErrors, path: &Path<'_>, name: &str, amount: &Quantity) {
    if amount.is_negative() {
        errors.invalid(path, amount, "must be greater than or equal to 0");
    }
    let counted = name.contains('/') && !is_native(name) || is_counted(name);
    if counted && !amount.is_integer() {
        errors.invalid(path, amount, "must be an integer");
    }
}

pub fn container_resource_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    let messages = rules::qualified_name(name);
    if !messages.is_empty() {
        errors.invalid_each(path, name, messages);
        return;
    }
    if !name.contains('/') {
        let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !standard {
            standard_resource_name(errors, path, name);
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && name.starts_with("requests.") {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// Names without a domain are those that the system itself knows.
pub fn standard_resource_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
    let is_compute =
        matches!(bare, "cpu" | "memory" | "ephemeral-storage" | "storage") || bare.starts_with("hugepages-");
    if !name.contains('/') && !is_compute && !is_counted(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
}

/// What a quota can hold down.
pub fn quota_resource_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    standard_resource_name(errors, path, name);
    let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
    let is_compute = matches!(bare, "cpu" | "memory" | "ephemeral-storage")
        || name == "requests.storage"
        || bare.starts_with("hugepages-") && !name.starts_with("limits.");
    if !name.contains('/') && !is_compute && !is_counted(name) {
        errors.invalid(path, name, "must be a standard resource for quota");
    }
}

/// Kinds of objects that quotas have counted since before `count/`.
pub fn is_counted(name: &str) -> bool {
    const COUNTED: &[&str] = &[
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    COUNTED.contains(&name)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether more may be promised than there is.
fn overcommits(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}
