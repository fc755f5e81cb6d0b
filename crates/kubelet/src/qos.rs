//! QoS class of a pod, and the OOM score that follows from it.

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::resources;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Class::Guaranteed => "Guaranteed",
            Class::Burstable => "Burstable",
            Class::BestEffort => "BestEffort",
        })
    }
}

/// Guaranteed: every container limits cpu and memory and requests exactly that. Best effort: none
/// asks for anything. Burstable: the rest. The class is fixed when the pod is created.
pub(crate) fn class(pod: &Pod) -> Class {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => return Class::Guaranteed,
        Some("Burstable") => return Class::Burstable,
        Some("BestEffort") => return Class::BestEffort,
        _ => {}
    }
    let Some(spec) = &pod.spec else { return Class::BestEffort };
    let pod_level = spec.resources.iter();
    let of_containers =
        spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.resources.clone().unwrap_or_default());
    let all: Vec<_> = match pod_level.len() {
        0 => of_containers.collect(),
        _ => pod_level.cloned().collect(),
    };
    let positive = |quantity: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        quantity.and_then(|q| q.0.parse::<Quantity>().ok()).filter(|q| q.milli_value() > 0)
    };
    let (mut any, mut guaranteed) = (false, true);
    for resources in &all {
        for name in ["cpu", "memory"] {
            let limit = positive(resources.limits.as_ref().and_then(|limits| limits.get(name)));
            let request = positive(resources.requests.as_ref().and_then(|requests| requests.get(name)));
            any |= limit.is_some() || request.is_some();
            guaranteed &= match (&limit, &request) {
                (Some(limit), Some(request)) => limit.milli_value() == request.milli_value(),
                (Some(_), None) => true,
                (None, _) => false,
            };
        }
    }
    match (any, guaranteed) {
        (false, _) => Class::BestEffort,
        (true, true) => Class::Guaranteed,
        (true, false) => Class::Burstable,
    }
}

/// The kernel kills the highest first: best effort before a burstable pod that asked for little,
/// before one that asked for much, before guaranteed ones.
pub(crate) fn oom_score_adj(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    const GUARANTEED: i64 = -997;
    const BEST_EFFORT: i64 = 1000;
    let is_critical = pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|p| p >= 2_000_000_000);
    if is_critical {
        return GUARANTEED;
    }
    match class(pod) {
        Class::Guaranteed => GUARANTEED,
        Class::BestEffort => BEST_EFFORT,
        Class::Burstable => {
            let request = resources::request(container, "memory").map_or(0, |q| q.value());
            let adjusted = 1000 - 1000 * request / node_memory.max(1);
            if adjusted < 1000 + GUARANTEED {
                1000 + GUARANTEED
            } else if adjusted == BEST_EFFORT {
                adjusted - 1
            } else {
                adjusted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn classes() {
        let all = "cpu=1,memory=1Gi";
        for (requests, limits, expected) in [
            ("", "", Class::BestEffort),
            ("cpu=0", "", Class::BestEffort),
            ("cpu=100m", "", Class::Burstable),
            (all, all, Class::Guaranteed),
            ("cpu=1000m,memory=1024Mi", all, Class::Guaranteed),
            ("cpu=500m,memory=1Gi", all, Class::Burstable),
            ("", "memory=1Gi", Class::Burstable),
        ] {
            let pod = Pod {
                spec: Some(PodSpec { containers: vec![container_with("a", requests, limits)], ..Default::default() }),
                ..Default::default()
            };
            assert_eq!(class(&pod), expected, "{requests} / {limits}");
        }
    }

    #[test]
    fn oom_scores() {
        let gi = 1 << 30;
        for (requests, limits, expected) in [
            ("", "", 1000),
            ("cpu=1,memory=1Gi", "cpu=1,memory=1Gi", -997),
            ("memory=5Gi", "", 500),
            ("cpu=1", "", 999),
            ("memory=100Gi", "", 3),
        ] {
            let container = container_with("a", requests, limits);
            let pod = Pod {
                spec: Some(PodSpec { containers: vec![container.clone()], ..Default::default() }),
                ..Default::default()
            };
            assert_eq!(oom_score_adj(&pod, &container, 10 * gi), expected, "{requests}");
        }
    }
}
