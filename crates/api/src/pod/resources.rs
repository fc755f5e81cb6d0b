//! What a pod asks for and is held to, summed up the way every part of Kubernetes does.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::AnyPod;
use crate::quantity::Quantity as Amount;

pub type Amounts = BTreeMap<String, Amount>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

pub fn parse(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let parsed = list.into_iter().flatten().filter_map(|(name, amount)| {
        let amount = Amount::parse(&amount.0).ok()?;
        Some((name.clone(), amount))
    });
    parsed.collect()
}

pub fn of_container(resources: Option<&ResourceRequirements>, side: Side) -> Amounts {
    parse(resources.and_then(|resources| match side {
        Side::Requests => resources.requests.as_ref(),
        Side::Limits => resources.limits.as_ref(),
    }))
}

/// All containers and sidecars at once, or one init container beside the sidecars started before it, whichever is
/// more; what is set for the whole pod wins (`PodRequests`, `PodLimits`, v1.36).
pub fn of_pod(spec: &PodSpec, side: Side) -> Amounts {
    let mut total = of_containers(spec, side);
    total.extend(of_whole(spec, side));
    total
}

/// The same without what is set for the whole pod.
pub fn of_containers(spec: &PodSpec, side: Side) -> Amounts {
    of_containers_by(spec, |resources| of_container(resources, side))
}

/// What is set for the pod as a whole.
fn of_whole(spec: &PodSpec, side: Side) -> impl Iterator<Item = (String, Amount)> {
    of_container(spec.resources.as_ref(), side).into_iter().filter(|(name, _)| is_pod_level(name))
}

/// What containers need together, where `of` says what counts of one.
fn of_containers_by(spec: &PodSpec, of: impl Fn(Option<&ResourceRequirements>) -> Amounts) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of(container.resources.as_ref()));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut own = of(container.resources.as_ref());
        if super::is_sidecar(container) {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        max(&mut peak, own);
    }
    max(&mut total, peak);
    total
}

/// Whether a resource can be set for the pod as a whole.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Resources that others than Kubernetes count: their names have a domain of their own, and quotas can name them, too
/// (`IsExtendedResourceName`, v1.36).
pub fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    let of_quota = || format!("requests.{name}");
    !is_native && !name.starts_with("requests.") && crate::validation::qualified_name(&of_quota()).is_empty()
}

/// What the pod asks for, overhead included, where a limit without a request counts as a request: a pod that has not
/// been through the API server has no defaults.
pub fn effective_requests(spec: &PodSpec) -> Amounts {
    let mut total = of_containers_by(spec, |resources| {
        let mut own = of_container(resources, Side::Limits);
        own.extend(of_container(resources, Side::Requests));
        own
    });
    // A limit of the whole pod stands for a request only where no container asks for anything (`setDefaultPodRequests`).
    for (name, limit) in of_whole(spec, Side::Limits) {
        total.entry(name).or_insert(limit);
    }
    total.extend(of_whole(spec, Side::Requests));
    add(&mut total, &parse(spec.overhead.as_ref()));
    total
}

/// What a pod counts for in a quota; nothing once it has ended.
pub fn quota_usage(pod: &impl AnyPod) -> Amounts {
    let Some(spec) = pod.spec().filter(|_| !super::is_terminal(pod)) else { return Amounts::new() };
    let mut usage = in_quota_terms(with_overhead(spec, Side::Requests), with_overhead(spec, Side::Limits));
    usage.insert("pods".to_owned(), Amount::new(1, crate::quantity::Format::DecimalSI));
    usage
}

/// The names under which a quota counts requests and limits (`podComputeUsageHelper`, v1.36).
pub fn in_quota_terms(requests: Amounts, limits: Amounts) -> Amounts {
    let mut usage = Amounts::new();
    for (name, amount) in requests {
        let native = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if native || name.contains('/') {
            usage.insert(format!("requests.{name}"), amount.clone());
        }
        if native {
            usage.insert(name, amount);
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), amount);
        }
    }
    usage
}

/// As [`of_pod`], with what the runtime class adds for itself.
pub fn with_overhead(spec: &PodSpec, side: Side) -> Amounts {
    let mut total = of_pod(spec, side);
    let mut overhead = parse(spec.overhead.as_ref());
    if side == Side::Limits {
        // Overhead does not limit what was unlimited.
        overhead.retain(|name, _| total.get(name).is_some_and(|limit| *limit > Amount::ZERO));
    }
    add(&mut total, &overhead);
    total
}

pub fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        total.entry(name.clone()).and_modify(|sum| sum.add(amount)).or_insert_with(|| amount.clone());
    }
}

pub fn max(total: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let slot = total.entry(name).or_default();
        *slot = std::mem::take(slot).max(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    #[test]
    fn pods_are_summed_up() {
        let with = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let sidecar = |cpu: &str| {
            let mut container = with(cpu);
            container["restartPolicy"] = "Always".into();
            container
        };
        for (spec, expected) in [
            (json!({"containers": [with("100m"), with("200m")]}), "300m"),
            (json!({"containers": [with("100m")], "initContainers": [with("1")]}), "1"),
            (json!({"containers": [with("100m")], "initContainers": [sidecar("200m"), with("1")]}), "1200m"),
            (json!({"containers": [with("1")], "initContainers": [with("1"), sidecar("200m")]}), "1200m"),
            (json!({"containers": [with("1")], "resources": {"requests": {"cpu": "2"}}}), "2"),
            (json!({"containers": [with("1")], "overhead": {"cpu": "50m"}}), "1050m"),
        ] as [(Value, &str); 6]
        {
            let pod: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(with_overhead(&pod, Side::Requests)["cpu"].to_string(), expected, "{spec}");
        }
    }

    #[test]
    fn extended_resources_have_a_domain_of_their_own() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("kubernetes.io.example.com/gpu", true),
            ("cpu", false),
            ("gpu", false),
            ("kubernetes.io/gpu", false),
            ("x.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_extended(name), expected, "{name}");
        }
    }

    #[test]
    fn sides_and_overhead() {
        let spec: PodSpec = serde_json::from_value(json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1", "x.io/gpu": "1"}, "limits": {"memory": "1Gi"}}},
                {"name": "b", "resources": {"limits": {"cpu": "2", "hugepages-2Mi": "4Mi"}}},
            ],
            "resources": {"requests": {"memory": "3Gi", "ephemeral-storage": "9Gi"}},
            "overhead": {"cpu": "100m", "memory": "1Mi"},
        }))
        .unwrap();
        let shown = |amounts: Amounts| -> Vec<String> {
            amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
        };
        // Overhead limits nothing that is unlimited; storage cannot be set for the whole pod.
        assert_eq!(shown(with_overhead(&spec, Side::Requests)), ["cpu=1100m", "memory=3073Mi", "x.io/gpu=1"]);
        assert_eq!(shown(with_overhead(&spec, Side::Limits)), ["cpu=2100m", "hugepages-2Mi=4Mi", "memory=1025Mi"]);
        assert_eq!(shown(effective_requests(&spec)), ["cpu=3100m", "hugepages-2Mi=4Mi", "memory=3073Mi", "x.io/gpu=1"]);
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        assert_eq!(
            shown(quota_usage(&pod)),
            [
                "cpu=1100m",
                "limits.cpu=2100m",
                "limits.memory=1025Mi",
                "memory=3073Mi",
                "pods=1",
                "requests.cpu=1100m",
                "requests.memory=3073Mi",
                "requests.x.io/gpu=1"
            ]
        );
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        assert!(quota_usage(&pod).is_empty());
    }
}
