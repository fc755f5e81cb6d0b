//! Quality of service: how much of its resources a pod has promised itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;

use super::AnyPod;
use crate::quantity::Quantity;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Guaranteed => "Guaranteed",
            Class::Burstable => "Burstable",
            Class::BestEffort => "BestEffort",
        }
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class of a pod: it is fixed when the pod is created (`GetPodQOS`, v1.36).
pub fn class(pod: &impl AnyPod) -> Class {
    match pod.qos_class() {
        Some("Guaranteed") => Class::Guaranteed,
        Some("Burstable") => Class::Burstable,
        Some("BestEffort") => Class::BestEffort,
        _ => of_spec(pod.spec()),
    }
}

/// Guaranteed: every container, or the pod as a whole, limits cpu and memory and requests exactly that. Best effort:
/// nothing is asked for. Burstable: the rest (`ComputePodQOS`, v1.36). A limit without a request is a request of as
/// much, as the defaults of pods have it.
pub fn of_spec(spec: Option<&PodSpec>) -> Class {
    let Some(spec) = spec else { return Class::BestEffort };
    if let Some(resources) = &spec.resources {
        return of_all(&[resources]);
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let none = ResourceRequirements::default();
    let all: Vec<&ResourceRequirements> =
        containers.map(|container| container.resources.as_ref().unwrap_or(&none)).collect();
    of_all(&all)
}

fn of_all(all: &[&ResourceRequirements]) -> Class {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    for resources in all {
        for name in ["cpu", "memory"] {
            let limit = positive(resources.limits.as_ref(), name);
            let stated = resources.requests.as_ref().is_some_and(|requests| requests.contains_key(name));
            let request = if stated { positive(resources.requests.as_ref(), name) } else { limit.clone() };
            guaranteed &= limit.is_some();
            add(&mut requests, name, request);
            add(&mut limits, name, limit);
        }
    }
    if requests.is_empty() && limits.is_empty() {
        Class::BestEffort
    } else if guaranteed && requests == limits {
        Class::Guaranteed
    } else {
        Class::Burstable
    }
}

fn positive(list: Option<&BTreeMap<String, RawQuantity>>, name: &str) -> Option<Quantity> {
    let amount = Quantity::try_from(list?.get(name)?).ok()?;
    (amount > Quantity::ZERO).then_some(amount)
}

fn add(totals: &mut BTreeMap<&'static str, Quantity>, name: &'static str, amount: Option<Quantity>) {
    if let Some(amount) = amount {
        totals.entry(name).or_default().add(&amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    #[test]
    fn classes() {
        let both = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        let full = json!({"requests": both("1", "1Gi"), "limits": both("1", "1Gi")});
        let container = |resources: &Value| json!({"name": "a", "resources": resources});
        for (spec, expected) in [
            (json!({"containers": [container(&json!({}))]}), Class::BestEffort),
            (json!({"containers": [{"name": "a"}]}), Class::BestEffort),
            (json!({"containers": [container(&json!({"requests": {"cpu": "0"}}))]}), Class::BestEffort),
            // Other resources promise nothing.
            (json!({"containers": [container(&json!({"requests": {"ephemeral-storage": "1Gi"}}))]}), Class::BestEffort),
            (json!({"containers": [container(&json!({"requests": {"cpu": "100m"}}))]}), Class::Burstable),
            (json!({"containers": [container(&json!({"limits": {"memory": "1Gi"}}))]}), Class::Burstable),
            (json!({"containers": [container(&full)]}), Class::Guaranteed),
            (json!({"containers": [container(&json!({"limits": both("1", "1Gi")}))]}), Class::Guaranteed),
            (
                json!({"containers": [container(&json!({"requests": both("1000m", "1024Mi"), "limits": both("1", "1Gi")}))]}),
                Class::Guaranteed,
            ),
            (
                json!({"containers": [container(&json!({"requests": both("500m", "1Gi"), "limits": both("1", "1Gi")}))]}),
                Class::Burstable,
            ),
            (
                json!({"containers": [container(&json!({"requests": both("0", "1Gi"), "limits": both("1", "1Gi")}))]}),
                Class::Burstable,
            ),
            (json!({"containers": [container(&full), container(&json!({}))]}), Class::Burstable),
            (json!({"containers": [container(&full)], "initContainers": [{"name": "i"}]}), Class::Burstable),
            (json!({"containers": [container(&full)], "initContainers": [container(&full)]}), Class::Guaranteed),
            // What is set for the whole pod decides.
            (json!({"containers": [{"name": "a"}], "resources": full}), Class::Guaranteed),
            (json!({"containers": [container(&full)], "resources": {"requests": {"cpu": "2"}}}), Class::Burstable),
        ] as [(Value, Class); 16]
        {
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            let text = format!("{spec:?}");
            let mut pod = Pod { spec: Some(spec), ..Pod::default() };
            assert_eq!((class(&pod), of_spec(pod.spec.as_ref())), (expected, expected), "{text}");
            // Once said, it stays.
            pod.status.get_or_insert_default().qos_class = Some("Burstable".into());
            assert_eq!(class(&pod), Class::Burstable);
        }
        assert_eq!(class(&Pod::default()), Class::BestEffort);
    }
}
