//! Which pods give their place to a critical one that finds no room. Pure (`getPodsToPreempt`, v1.36).

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::eviction::is_critical;
use crate::qos::{self, Class};
use crate::resources;

/// How much of a resource has to become free.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Need {
    pub(crate) name: String,
    pub(crate) amount: i64,
}

/// How much of a resource a pod has of its node.
pub(crate) fn amount(pod: &Pod, name: &str) -> i64 {
    match name {
        "pods" => 1,
        "cpu" => resources::pod_request(pod, name).milli_value(),
        _ => resources::pod_request(pod, name).value(),
    }
}

/// Pods whose end meets all needs, few and small ones, and guaranteed ones last. None, where there are no such pods.
pub(crate) fn choose(pod: &Pod, others: &[Arc<Pod>], needs: &[Need]) -> Option<Vec<Arc<Pod>>> {
    let of = |class: Class| -> Vec<&Arc<Pod>> {
        others.iter().filter(|other| gives_way(other, pod) && qos::class(&***other) == class).collect()
    };
    let (best_effort, burstable, guaranteed) = (of(Class::BestEffort), of(Class::Burstable), of(Class::Guaranteed));
    let lower = [&best_effort[..], &burstable[..]].concat();
    if !left(needs, &[&lower[..], &guaranteed[..]].concat()).is_empty() {
        return None;
    }
    let guaranteed = nearest(guaranteed, left(needs, &lower));
    let burstable = nearest(burstable, left(needs, &[&best_effort[..], &guaranteed[..]].concat()));
    let best_effort = nearest(best_effort, left(needs, &[&burstable[..], &guaranteed[..]].concat()));
    Some([best_effort, burstable, guaranteed].concat().into_iter().cloned().collect())
}

fn gives_way(other: &Pod, to: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.priority);
    let is_less = priority(other).zip(priority(to)).is_some_and(|(less, more)| less < more);
    is_less || (is_critical(to) && !is_critical(other))
}

/// What is still needed without these pods.
fn left(needs: &[Need], gone: &[&Arc<Pod>]) -> Vec<Need> {
    let rest = needs.iter().map(|need| {
        let freed = gone.iter().map(|pod| amount(pod, &need.name)).fold(0, i64::saturating_add);
        Need { name: need.name.clone(), amount: need.amount.saturating_sub(freed) }
    });
    rest.filter(|need| need.amount > 0).collect()
}

/// One after the other the pod that comes nearest to what is needed.
fn nearest(mut pods: Vec<&Arc<Pod>>, mut needs: Vec<Need>) -> Vec<&Arc<Pod>> {
    let mut chosen = Vec::new();
    while !needs.is_empty() {
        let Some(at) = (0..pods.len()).min_by(|one, other| compare(pods[*one], pods[*other], &needs)) else { break };
        let pod = pods.swap_remove(at);
        needs = left(&needs, &[pod]);
        chosen.push(pod);
    }
    chosen
}

fn compare(one: &Pod, other: &Pod, needs: &[Need]) -> Ordering {
    let size = |pod: &Pod| (amount(pod, "memory"), amount(pod, "cpu"));
    distance(one, needs).total_cmp(&distance(other, needs)).then_with(|| size(one).cmp(&size(other)))
}

/// The part of each need that the pod does not meet, squared and added up.
fn distance(pod: &Pod, needs: &[Need]) -> f64 {
    let unmet = needs.iter().map(|need| {
        let rest = need.amount.saturating_sub(amount(pod, &need.name)).max(0);
        (rest as f64 / need.amount as f64).powi(2)
    });
    unmet.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;

    fn pod(name: &str, requests: &str, limits: &str, priority: i32) -> Arc<Pod> {
        let containers = vec![container_with("c", requests, limits)];
        let mut pod = Pod {
            spec: Some(PodSpec { containers, priority: Some(priority), ..Default::default() }),
            ..Default::default()
        };
        pod.metadata.name = Some(name.to_owned());
        Arc::new(pod)
    }

    #[test]
    fn the_least_important_go_and_no_more_than_needed() {
        let others = [
            pod("best-effort", "", "", 0),
            pod("small", "cpu=1,memory=1Gi", "", 0),
            pod("large", "cpu=4,memory=1Gi", "", 0),
            pod("guaranteed", "cpu=8,memory=1Gi", "cpu=8,memory=1Gi", 0),
            pod("critical", "cpu=16,memory=1Gi", "", 2_000_000_000),
        ];
        let node_critical = 2_000_001_000;
        for (priority, needs, expected) in [
            (2_000_000_000, vec![("cpu", 500)], Some(vec!["small"])),
            (2_000_000_000, vec![("cpu", 2000)], Some(vec!["large"])),
            (2_000_000_000, vec![("cpu", 5000)], Some(vec!["large", "small"])),
            (2_000_000_000, vec![("cpu", 6000)], Some(vec!["guaranteed"])),
            (2_000_000_000, vec![("pods", 1)], Some(vec!["best-effort"])),
            (2_000_000_000, vec![("pods", 1), ("cpu", 500)], Some(vec!["small"])),
            (2_000_000_000, vec![("cpu", 14_000)], None),
            (node_critical, vec![("cpu", 14_000)], Some(vec!["critical"])),
            (0, vec![("cpu", 500)], None),
            // What was short is free by now.
            (2_000_000_000, vec![], Some(vec![])),
        ] {
            let needs: Vec<Need> =
                needs.into_iter().map(|(name, amount)| Need { name: name.to_owned(), amount }).collect();
            let chosen = choose(&pod("new", "", "", priority), &others, &needs);
            let names = |pods: &[Arc<Pod>]| -> Vec<String> {
                pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect()
            };
            let expected: Option<Vec<String>> = expected.map(|list| list.into_iter().map(str::to_owned).collect());
            assert_eq!(chosen.as_deref().map(names), expected, "{priority} {needs:?}");
        }
    }
}
