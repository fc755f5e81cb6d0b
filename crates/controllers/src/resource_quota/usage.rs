//! What the objects of a namespace use, in the terms of a quota.

use std::collections::BTreeMap;

use api::cached::Pod;
use api::pod::qos;
use api::quantity::{Format, Quantity};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, ResourceQuotaSpec, ScopedResourceSelectorRequirement, Service,
};

pub(super) type Usage = BTreeMap<String, Quantity>;

fn add(usage: &mut Usage, name: impl Into<String>, amount: &Quantity) {
    usage.entry(name.into()).or_insert_with(|| Quantity::new(0, amount.format())).add(amount);
}

fn one() -> Quantity {
    Quantity::new(1, Format::DecimalSI)
}

pub(super) fn of_pod(pod: &Pod) -> Usage {
    let mut usage = Usage::new();
    add(&mut usage, "count/pods", &one());
    usage.extend(api::pod::resources::quota_usage(pod));
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
            let class = spec.priority_class_name.as_deref().unwrap_or_default();
            let listed = requirement.values.iter().flatten().any(|value| value == class);
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
    qos::class(pod) == qos::Class::BestEffort
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
