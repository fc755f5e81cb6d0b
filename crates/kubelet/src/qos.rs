//! The OOM score that follows from a pod's QoS class.

pub(crate) use api::pod::qos::{Class, class};
use api::pod::resources::{Side, of_container, of_containers};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// Pods without which the node does not work.
const NODE_CRITICAL: &str = "system-node-critical";

/// The kernel kills the highest first: best effort before a burstable container that asked for little, before one that
/// asked for much, before guaranteed ones. `memory_of` is what a container asks for (`GetContainerOOMScoreAdjust`, v1.36).
pub(crate) fn oom_score_adj(
    pod: &Pod,
    container: &Container,
    node_memory: i64,
    memory_of: impl Fn(&Container) -> i64,
) -> i64 {
    const GUARANTEED: i64 = -997;
    const BEST_EFFORT: i64 = 1000;
    let spec = pod.spec.as_ref();
    if spec.is_some_and(|spec| spec.priority_class_name.as_deref() == Some(NODE_CRITICAL)) {
        return GUARANTEED;
    }
    match class(pod) {
        Class::Guaranteed => GUARANTEED,
        Class::BestEffort => BEST_EFFORT,
        Class::Burstable => {
            let least = spec.filter(|spec| is_sidecar(spec, container)).map(|spec| least_of_main(spec, &memory_of));
            let own = memory_of(container).max(least.unwrap_or_default());
            let memory = own.saturating_add(spec.map_or(0, share_of_whole));
            let adjusted = 1000 - memory.saturating_mul(1000) / node_memory.max(1);
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

/// A main container may be told to restart always, too.
fn is_sidecar(spec: &PodSpec, container: &Container) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    init.any(|init| init.name == container.name && api::pod::is_sidecar(init))
}

/// Main containers need their sidecars: one of these goes no sooner than the first of them.
fn least_of_main(spec: &PodSpec, memory_of: impl Fn(&Container) -> i64) -> i64 {
    spec.containers.iter().map(memory_of).min().unwrap_or_default()
}

/// Each container's part of what the pod as a whole asks for beyond what its containers do.
fn share_of_whole(spec: &PodSpec) -> i64 {
    let memory = "memory";
    let Some(whole) = of_container(spec.resources.as_ref(), Side::Requests).remove(memory) else { return 0 };
    let own = of_containers(spec, Side::Requests).remove(memory).unwrap_or_default();
    let count = spec.containers.len() + spec.init_containers.iter().flatten().count();
    let left = whole.value().saturating_sub(own.value()).max(0);
    left / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{request, tests::container_with};

    const GI: i64 = 1 << 30;

    fn memory_of(container: &Container) -> i64 {
        request(container, "memory").map_or(0, |q| q.value())
    }

    fn pod(init: Vec<Container>, containers: Vec<Container>) -> Pod {
        let spec = PodSpec { init_containers: Some(init), containers, ..Default::default() };
        Pod { spec: Some(spec), ..Default::default() }
    }

    /// Of a container of a node with 10 Gi.
    fn score(pod: &Pod, name: &str) -> i64 {
        let spec = pod.spec.as_ref().unwrap();
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let container = all.find(|container| container.name == name).unwrap();
        oom_score_adj(pod, container, 10 * GI, memory_of)
    }

    #[test]
    fn oom_scores() {
        for (requests, limits, expected) in [
            ("", "", 1000),
            ("cpu=1,memory=1Gi", "cpu=1,memory=1Gi", -997),
            ("memory=5Gi", "", 500),
            ("cpu=1", "", 999),
            ("memory=100Gi", "", 3),
            ("memory=9223372036854775807", "", 3),
            ("memory=7Ei", "", 3),
        ] {
            assert_eq!(score(&pod(vec![], vec![container_with("a", requests, limits)]), "a"), expected, "{requests}");
        }
    }

    #[test]
    fn sidecars_outlive_the_containers_that_need_them() {
        let always = |container: Container| Container { restart_policy: Some("Always".into()), ..container };
        let init = vec![
            always(container_with("small", "memory=1Gi", "")),
            always(container_with("large", "memory=9Gi", "")),
            container_with("once", "memory=1Gi", ""),
        ];
        let main = vec![container_with("a", "memory=5Gi", ""), always(container_with("b", "memory=4Gi", ""))];
        let pod = pod(init, main);
        for (name, expected) in [("small", 600), ("large", 100), ("once", 900), ("a", 500), ("b", 600)] {
            assert_eq!(score(&pod, name), expected, "{name}");
        }
    }

    #[test]
    fn what_a_pod_asks_for_as_a_whole_is_shared() {
        let mut pod = pod(vec![], vec![container_with("a", "memory=1Gi", ""), container_with("b", "", "")]);
        for (whole, expected) in [("memory=5Gi", [700, 800]), ("memory=1Gi", [900, 999]), ("cpu=1", [900, 999])] {
            pod.spec.as_mut().unwrap().resources = container_with("", whole, "").resources;
            assert_eq!([score(&pod, "a"), score(&pod, "b")], expected, "{whole}");
        }
    }

    #[test]
    fn only_what_the_node_needs_is_spared() {
        for (class, expected) in [("system-node-critical", -997), ("system-cluster-critical", 1000)] {
            let mut pod = pod(vec![], vec![container_with("a", "", "")]);
            let spec = pod.spec.as_mut().unwrap();
            (spec.priority_class_name, spec.priority) = (Some(class.to_owned()), Some(2_000_000_000));
            assert_eq!(score(&pod, "a"), expected, "{class}");
        }
    }
}
