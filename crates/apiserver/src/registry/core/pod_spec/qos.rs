//! Quality of service: how much of its resources a pod has promised itself.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;

use crate::registry::unset::items;

/// `Guaranteed`, `Burstable` or `BestEffort` (`ComputePodQOS`, v1.36).
pub fn class(spec: Option<&PodSpec>) -> &'static str {
    let Some(spec) = spec else { return "BestEffort" };
    if let Some(resources) = &spec.resources {
        return of_all(&[resources]);
    }
    let containers = spec.containers.iter().chain(items(&spec.init_containers));
    let none = ResourceRequirements::default();
    let all: Vec<&ResourceRequirements> =
        containers.map(|container| container.resources.as_ref().unwrap_or(&none)).collect();
    of_all(&all)
}

fn of_all(all: &[&ResourceRequirements]) -> &'static str {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    for resources in all {
        sum(&mut requests, resources.requests.as_ref());
        let limited = sum(&mut limits, resources.limits.as_ref());
        guaranteed &= limited == 2;
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Adds up cpu and memory; returns how many of the two were there.
fn sum(totals: &mut BTreeMap<String, Quantity>, list: Option<&BTreeMap<String, RawQuantity>>) -> usize {
    let mut found = 0;
    for (name, amount) in list.into_iter().flatten() {
        if !matches!(name.as_str(), "cpu" | "memory") {
            continue;
        }
        if let Ok(amount) = Quantity::try_from(amount)
            && amount > Quantity::ZERO
        {
            found += 1;
            totals.entry(name.clone()).or_default().add(&amount);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        for (resources, expected) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
            (json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}), "Burstable"),
            (json!({"requests": {"cpu": "0"}}), "BestEffort"),
        ] {
            let spec = json!({"containers": [{"name": "a", "resources": resources}]});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(class(Some(&spec)), expected);
        }
    }
}
