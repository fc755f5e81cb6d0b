//! Who gets how long when the node shuts down. Pure.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

/// `system-cluster-critical`, and what is above it.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Pods of this priority and above, up to the next entry, get this long (`shutdownGracePeriodByPodPriority`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub seconds: i64,
}

/// The two groups of `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`; none without a grace period.
pub(crate) fn of_two(all: Duration, critical: Duration) -> Vec<Period> {
    if all.is_zero() || critical > all {
        return Vec::new();
    }
    vec![
        Period { priority: 0, seconds: (all - critical).as_secs() as i64 },
        Period { priority: SYSTEM_CRITICAL, seconds: critical.as_secs() as i64 },
    ]
}

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
    fn two_periods_share_the_time() {
        let seconds = Duration::from_secs;
        for (all, critical, expected) in [
            (0, 0, vec![]),
            (30, 10, vec![(0, 20), (SYSTEM_CRITICAL, 10)]),
            (30, 0, vec![(0, 30), (SYSTEM_CRITICAL, 0)]),
            (10, 30, vec![]),
        ] {
            let found: Vec<(i32, i64)> = of_two(seconds(all), seconds(critical))
                .iter()
                .map(|period| (period.priority, period.seconds))
                .collect();
            assert_eq!(found, expected, "{all} {critical}");
        }
    }

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
