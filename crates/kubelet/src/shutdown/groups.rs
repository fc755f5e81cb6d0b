//! Who gets how long when the node shuts down. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::config::ShutdownPeriod as Period;

/// Pods in the order in which they are ended. `periods` are sorted and not empty.
pub(crate) fn group(periods: &[Period], pods: Vec<Arc<Pod>>) -> Vec<(Period, Vec<Arc<Pod>>)> {
    let mut groups: Vec<(Period, Vec<Arc<Pod>>)> = periods.iter().map(|period| (*period, Vec::new())).collect();
    for pod in pods {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        // The last that is not above the pod; a pod below all is in the lowest.
        let index = periods.partition_point(|period| period.priority <= priority).saturating_sub(1);
        if let Some((_, members)) = groups.get_mut(index) {
            members.push(pod);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;

    #[test]
    fn pods_go_by_priority() {
        let periods = [(0, 5), (100, 10), (1000, 20)].map(|(priority, seconds)| Period { priority, seconds });
        for (priority, expected) in
            [(None, 0), (Some(-5), 0), (Some(0), 0), (Some(99), 0), (Some(100), 1), (Some(999), 1), (Some(5000), 2)]
        {
            let pod = Pod { spec: Some(PodSpec { priority, ..Default::default() }), ..Default::default() };
            let groups = group(&periods, vec![Arc::new(pod)]);
            let place = groups.iter().position(|(_, pods)| !pods.is_empty());
            assert_eq!(place, Some(expected), "{priority:?}");
        }
    }
}
