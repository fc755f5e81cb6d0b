//! The OOM score that follows from a pod's QoS class.

pub(crate) use api::pod::qos::{Class, class};
use k8s_openapi::api::core::v1::Pod;

/// The kernel kills the highest first: best effort before a burstable pod that asked for little,
/// before one that asked for much, before guaranteed ones.
pub(crate) fn oom_score_adj(pod: &Pod, memory_request: i64, node_memory: i64) -> i64 {
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
            let adjusted = 1000 - memory_request.saturating_mul(1000) / node_memory.max(1);
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
    use crate::resources::{request, tests::container_with};
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn oom_scores() {
        let gi = 1 << 30;
        for (requests, limits, expected) in [
            ("", "", 1000),
            ("cpu=1,memory=1Gi", "cpu=1,memory=1Gi", -997),
            ("memory=5Gi", "", 500),
            ("cpu=1", "", 999),
            ("memory=100Gi", "", 3),
            ("memory=9223372036854775807", "", 3),
        ] {
            let container = container_with("a", requests, limits);
            let memory = request(&container, "memory").map_or(0, |q| q.value());
            let pod =
                Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() };
            assert_eq!(oom_score_adj(&pod, memory, 10 * gi), expected, "{requests}");
        }
    }
}
