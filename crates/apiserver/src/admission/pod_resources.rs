//! What a pod asks for and is held to, summed up the way every part of Kubernetes does.

use std::collections::BTreeMap;

use api::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(super) type Amounts = BTreeMap<String, Amount>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Requests,
    Limits,
}

pub(super) fn parse(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let parsed = list.into_iter().flatten().filter_map(|(name, amount)| {
        let amount = Amount::parse(&amount.0).ok()?;
        Some((name.clone(), amount))
    });
    parsed.collect()
}

pub(super) fn of_container(resources: Option<&ResourceRequirements>, side: Side) -> Amounts {
    parse(resources.and_then(|resources| match side {
        Side::Requests => resources.requests.as_ref(),
        Side::Limits => resources.limits.as_ref(),
    }))
}

/// All containers and sidecars at once, or one init container beside the sidecars started before it, whichever is
/// more; what is set for the whole pod wins.
pub(super) fn of_pod(spec: &PodSpec, side: Side) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of_container(container.resources.as_ref(), side));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut own = of_container(container.resources.as_ref(), side);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        max(&mut peak, own);
    }
    max(&mut total, peak);
    let of_whole = of_container(spec.resources.as_ref(), side);
    let supported = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    total.extend(of_whole.into_iter().filter(|(name, _)| supported(name)));
    total
}

/// As [`of_pod`], with what the runtime class adds for itself.
pub(super) fn with_overhead(spec: &PodSpec, side: Side) -> Amounts {
    let mut total = of_pod(spec, side);
    let mut overhead = parse(spec.overhead.as_ref());
    if side == Side::Limits {
        // Overhead does not limit what was unlimited.
        overhead.retain(|name, _| total.contains_key(name));
    }
    add(&mut total, &overhead);
    total
}

pub(super) fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        total.entry(name.clone()).and_modify(|sum| sum.add(amount)).or_insert_with(|| amount.clone());
    }
}

fn max(total: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let slot = total.entry(name).or_default();
        *slot = std::mem::take(slot).max(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
