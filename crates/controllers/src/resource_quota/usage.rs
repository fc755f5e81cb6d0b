//! What the objects of a namespace use, in the terms of a quota.

use std::collections::BTreeMap;

use api::quantity::{Format, Quantity};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};

use crate::pods;

pub(super) type Usage = BTreeMap<String, Quantity>;

fn add(usage: &mut Usage, name: impl Into<String>, amount: &Quantity) {
    usage.entry(name.into()).or_insert_with(|| Quantity::new(0, amount.format())).add(amount);
}

fn one() -> Quantity {
    Quantity::new(1, Format::DecimalSI)
}

type Resources = BTreeMap<String, Quantity>;

/// Sum over containers, or the largest init container if that is more; sidecars count with both. Plus overhead.
fn pod_resources(pod: &Pod, limits: bool) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::new() };
    let of = |container: &k8s_openapi::api::core::v1::Container| -> Resources {
        let resources = container.resources.as_ref();
        let map = resources
            .and_then(|resources| if limits { resources.limits.as_ref() } else { resources.requests.as_ref() });
        map.into_iter()
            .flatten()
            .filter_map(|(name, quantity)| Some((name.clone(), Quantity::try_from(quantity).ok()?)))
            .collect()
    };
    let plus = |total: &mut Resources, more: &Resources| {
        for (name, amount) in more {
            add(total, name.clone(), amount);
        }
    };
    let mut total = Resources::new();
    for container in &spec.containers {
        plus(&mut total, &of(container));
    }
    let (mut sidecars, mut largest) = (Resources::new(), Resources::new());
    for container in spec.init_containers.iter().flatten() {
        let mut needed = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            plus(&mut sidecars, &needed);
            plus(&mut total, &needed);
            needed.clone_from(&sidecars);
        } else {
            plus(&mut needed, &sidecars);
        }
        for (name, amount) in needed {
            let present = largest.entry(name).or_insert_with(|| amount.clone());
            if *present < amount {
                *present = amount;
            }
        }
    }
    for (name, amount) in largest {
        let present = total.entry(name).or_insert_with(|| amount.clone());
        if *present < amount {
            *present = amount;
        }
    }
    for (name, amount) in spec.overhead.iter().flatten() {
        if let Ok(amount) = Quantity::try_from(amount) {
            add(&mut total, name.clone(), &amount);
        }
    }
    total
}

/// A pod counts until it has finished or, being deleted, its grace period is over.
fn is_counted(pod: &Pod) -> bool {
    !pods::is_finished(pod)
}

pub(super) fn of_pod(pod: &Pod) -> Usage {
    let mut usage = Usage::new();
    add(&mut usage, "count/pods", &one());
    if !is_counted(pod) {
        return usage;
    }
    add(&mut usage, "pods", &one());
    for (name, amount) in pod_resources(pod, false) {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            add(&mut usage, name.clone(), &amount);
        }
        add(&mut usage, format!("requests.{name}"), &amount);
    }
    for (name, amount) in pod_resources(pod, true) {
        add(&mut usage, format!("limits.{name}"), &amount);
    }
    usage
}

pub(super) fn of_service(service: &Service) -> Usage {
    let mut usage = Usage::new();
    add(&mut usage, "services", &one());
    add(&mut usage, "count/services", &one());
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.as_ref().map_or(0, Vec::len);
    let ports = Quantity::new(i64::try_from(ports).unwrap_or_default(), Format::DecimalSI);
    match spec.type_.as_deref() {
        Some("NodePort") => add(&mut usage, "services.nodeports", &ports),
        Some("LoadBalancer") => {
            add(&mut usage, "services.loadbalancers", &one());
            if spec.allocate_load_balancer_node_ports != Some(false) {
                add(&mut usage, "services.nodeports", &ports);
            }
        }
        _ => {}
    }
    usage
}

pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Usage {
    let mut usage = Usage::new();
    add(&mut usage, "persistentvolumeclaims", &one());
    add(&mut usage, "count/persistentvolumeclaims", &one());
    let spec = claim.spec.clone().unwrap_or_default();
    let class = spec.storage_class_name.clone().unwrap_or_default();
    if !class.is_empty() {
        add(&mut usage, format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), &one());
    }
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    if let Some(storage) = requests.get("storage").and_then(|storage| Quantity::try_from(storage).ok()) {
        add(&mut usage, "requests.storage", &storage);
        if !class.is_empty() {
            add(&mut usage, format!("{class}.storageclass.storage.k8s.io/requests.storage"), &storage);
        }
    }
    usage
}

/// Whether a quota with scopes looks at this pod.
pub(super) fn in_scope(spec: &ResourceQuotaSpec, pod: &Pod) -> bool {
    let plain = spec.scopes.iter().flatten().map(|scope| ScopedResourceSelectorRequirement {
        scope_name: scope.clone(),
        operator: "Exists".into(),
        values: None,
    });
    let selected = spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten().cloned());
    plain.chain(selected).all(|requirement| matches_scope(&requirement, pod))
}

fn matches_scope(requirement: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    let spec = pod.spec.clone().unwrap_or_default();
    let terminating = spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0);
    match requirement.scope_name.as_str() {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => {
            let class = spec.priority_class_name.unwrap_or_default();
            let listed = requirement.values.iter().flatten().any(|value| *value == class);
            match requirement.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(&spec),
        _ => false,
    }
}

fn is_best_effort(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let containers =
        spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    containers.filter_map(|container| container.resources.as_ref()).all(|resources| {
        let named =
            |map: &Option<BTreeMap<String, _>>| map.iter().flatten().any(|(name, _)| name == "cpu" || name == "memory");
        !named(&resources.requests) && !named(&resources.limits)
    })
}

fn crosses_namespaces(spec: &k8s_openapi::api::core::v1::PodSpec) -> bool {
    let Some(affinity) = &spec.affinity else { return false };
    let near = affinity.pod_affinity.iter().flat_map(|affinity| {
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten()
            .map(|term| &term.pod_affinity_term);
        affinity.required_during_scheduling_ignored_during_execution.iter().flatten().chain(preferred)
    });
    let far = affinity.pod_anti_affinity.iter().flat_map(|affinity| {
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .iter()
            .flatten()
            .map(|term| &term.pod_affinity_term);
        affinity.required_during_scheduling_ignored_during_execution.iter().flatten().chain(preferred)
    });
    near.chain(far).any(|term| {
        term.namespaces.as_ref().is_some_and(|names| !names.is_empty()) || term.namespace_selector.is_some()
    })
}

/// `used` for exactly the names in `hard`.
pub(super) fn sum(hard: impl IntoIterator<Item = String>, parts: impl IntoIterator<Item = Usage>) -> Usage {
    let mut total: Usage = hard.into_iter().map(|name| (name, Quantity::new(0, Format::DecimalSI))).collect();
    for part in parts {
        for (name, amount) in part {
            if let Some(present) = total.get_mut(&name) {
                if present.is_zero() {
                    *present = amount;
                } else {
                    present.add(&amount);
                }
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn pods_use_what_they_request() {
        let running = pod(json!({ "metadata": {}, "spec": {
            "containers": [{ "name": "a", "resources": { "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "cpu": "1" } } },
                           { "name": "b", "resources": { "requests": { "cpu": "200m" } } }],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "500m", "memory": "32Mi" } } }],
        } }));
        let mut finished = running.clone();
        finished.status = Some(serde_json::from_value(json!({ "phase": "Succeeded" })).unwrap());
        let hard = ["pods", "requests.cpu", "cpu", "requests.memory", "limits.cpu", "count/pods", "secrets"]
            .map(str::to_owned);
        let used = sum(hard, [of_pod(&running), of_pod(&finished)]);
        let seen: Vec<String> = used.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(
            seen,
            [
                "count/pods=2",
                "cpu=500m",
                "limits.cpu=1",
                "pods=1",
                "requests.cpu=500m",
                "requests.memory=64Mi",
                "secrets=0"
            ]
        );
    }

    #[test]
    fn scopes_choose_pods() {
        let best_effort =
            pod(json!({ "metadata": {}, "spec": { "containers": [{ "name": "a" }], "activeDeadlineSeconds": 5 } }));
        let burstable = pod(
            json!({ "metadata": {}, "spec": { "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1" } } }], "priorityClassName": "high" } }),
        );
        for (scopes, first, second) in [
            (json!({ "scopes": ["BestEffort"] }), true, false),
            (json!({ "scopes": ["NotBestEffort", "NotTerminating"] }), false, true),
            (json!({ "scopes": ["Terminating"] }), true, false),
            (
                json!({ "scopeSelector": { "matchExpressions": [{ "scopeName": "PriorityClass", "operator": "In", "values": ["high"] }] } }),
                false,
                true,
            ),
            (json!({}), true, true),
        ] {
            let spec: ResourceQuotaSpec = serde_json::from_value(scopes.clone()).unwrap();
            assert_eq!((in_scope(&spec, &best_effort), in_scope(&spec, &burstable)), (first, second), "{scopes}");
        }
    }
}
