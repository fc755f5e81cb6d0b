//! Validation of resource requests and limits.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use api::pod::resources::{self as amounts, Side};
use api::quantity::Quantity;
use api::validation as rules;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;

use crate::unset::items;

/// What one container asks for.
pub fn requirements(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    requirements: &ResourceRequirements,
    claims: &BTreeSet<&str>,
) {
    named_requirements(errors, path, requirements, claims, container_resource_name);
}

/// What a runtime class adds for itself reads like the limits of a container.
pub fn overhead(errors: &mut FieldErrors, path: &Path<'_>, overhead: &BTreeMap<String, RawQuantity>) {
    let limits = ResourceRequirements { limits: Some(overhead.clone()), ..ResourceRequirements::default() };
    requirements(errors, path, &limits, &BTreeSet::new());
}

/// What is set for a pod as a whole, and holds what its containers ask for (`validatePodResources`, v1.36).
pub fn whole_pod(errors: &mut FieldErrors, path: &Path<'_>, spec: &PodSpec, claims: &BTreeSet<&str>) {
    let Some(whole) = &spec.resources else { return };
    let path = path.child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        errors.forbidden(path, "may not be set for a windows pod");
        return;
    }
    if whole.claims.is_some() {
        errors.forbidden(path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    named_requirements(errors, &path, whole, claims, pod_resource_name);
    let (requests, limits) =
        (amounts::of_container(Some(whole), Side::Requests), amounts::of_container(Some(whole), Side::Limits));
    let in_all = |side| amounts::of_pod(&PodSpec { resources: None, ..spec.clone() }, side);
    for (name, sum) in in_all(Side::Requests) {
        if let Some(request) = requests.get(&name).filter(|request| sum > **request) {
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(path.child("requests").key(&name), request, detail);
        }
    }
    for (name, sum) in in_all(Side::Limits).into_iter().filter(|(name, _)| name.starts_with("hugepages-")) {
        if let Some(limit) = limits.get(&name).filter(|limit| sum > **limit) {
            let detail = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.invalid(path.child("limits").key(&name), limit, detail);
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        for (name, own) in amounts::of_container(container.resources.as_ref(), Side::Limits) {
            if let Some(limit) = limits.get(&name).filter(|limit| own > **limit) {
                let detail = format!("must be less than or equal to pod limits of {limit}");
                errors.invalid(path.child("containers").index(i).key(&name).child("limits"), own, detail);
            }
        }
    }
}

fn named_requirements(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    requirements: &ResourceRequirements,
    claims: &BTreeSet<&str>,
    check_name: fn(&mut FieldErrors, &Path<'_>, &str),
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let limits = requirements.limits.as_ref();
    let (mut compute, mut huge) = (false, false);
    for (list_path, list) in [(&limits_path, limits), (&requests_path, requirements.requests.as_ref())] {
        for (name, raw) in list.into_iter().flatten() {
            let path = list_path.key(name);
            check_name(errors, &path, name);
            let Ok(amount) = Quantity::try_from(raw) else {
                errors.invalid(
                    path,
                    &raw.0,
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                );
                continue;
            };
            quantity_value(errors, &path, name, &amount);
            if !is_whole_pages(name, &amount) {
                errors.invalid(path, &amount, format!("{amount} is not positive integer multiple of {name}"));
            }
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
    let mut seen: BTreeSet<(&str, Option<&str>)> = BTreeSet::new();
    for (i, claim) in items(&requirements.claims).iter().enumerate() {
        let path = path.child("claims");
        let path = path.index(i);
        if claim.name.is_empty() {
            errors.required(path, "");
            continue;
        }
        let request = claim.request.as_deref().filter(|request| !request.is_empty());
        if let Some(request) = request {
            errors.invalid_each(path.child("request"), request, rules::dns1123_label(request));
        }
        // One entry without a request stands for all requests of the claim.
        let whole: (&str, Option<&str>) = (claim.name.as_str(), None);
        let wanted = (claim.name.as_str(), request);
        let overlaps = match request {
            None => seen.range(whole..).next().is_some_and(|(name, _)| *name == claim.name),
            Some(_) => seen.contains(&whole) || seen.contains(&wanted),
        };
        if overlaps {
            errors.duplicate(path, &claim.name);
        }
        seen.insert(wanted);
        if !claims.contains(claim.name.as_str()) {
            errors.not_found(path, &claim.name);
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

fn pod_resource_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    let before = errors.len();
    resource_name(errors, path, name);
    if errors.len() == before && !amounts::is_pod_level(name) {
        errors.not_supported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// Any resource that a quota, a claim or a container knows.
pub fn resource_name(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    errors.invalid_each(path, name, rules::qualified_name(name));
    standard_resource_name(errors, path, name);
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

/// Huge pages are not divided. What is no huge page fits.
fn is_whole_pages(name: &str, amount: &Quantity) -> bool {
    let Some(size) = name.strip_prefix("hugepages-") else { return true };
    let size = Quantity::parse(size).ok().filter(|size| size.is_integer() && size.value() > 0);
    size.is_some_and(|size| amount.value() % size.value() == 0)
}

/// Whether more may be promised than there is.
pub fn overcommits(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}
