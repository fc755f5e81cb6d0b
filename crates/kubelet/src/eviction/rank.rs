//! Which pod goes first when something runs short, and what it is told. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use api::quantity::{Format, Quantity};
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::Pod;

use super::thresholds::{Observed, Signal};
use crate::usage::PodUsage;
use crate::{resources, state};

/// Pods of this priority and above keep the cluster running.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

pub(crate) fn is_critical(pod: &Pod) -> bool {
    priority(pod) >= SYSTEM_CRITICAL || crate::static_pods::is_static(pod)
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Pods that may be evicted, the best first: those that use more than they asked for, of the lowest priority, by how
/// much more. Processes cannot be asked for.
pub(crate) fn rank(pods: Vec<(Arc<Pod>, PodUsage)>, signal: Signal) -> Vec<(Arc<Pod>, PodUsage)> {
    let mut pods: Vec<_> = pods.into_iter().filter(|(pod, _)| !is_critical(pod)).collect();
    pods.compact_sort_by_cached_key(|(pod, usage)| {
        let (used, asked) = match signal {
            Signal::MemoryAvailable => (usage.memory(), resources::pod_request(pod, "memory").value()),
            Signal::PidAvailable => (usage.processes(), 0),
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree => (usage.ephemeral().inodes, 0),
            Signal::NodefsAvailable | Signal::ImagefsAvailable => {
                (usage.ephemeral().bytes, resources::pod_request(pod, "ephemeral-storage").value())
            }
        };
        let over = used as i64 - asked;
        (Reverse(over > 0 && signal != Signal::PidAvailable), priority(pod), Reverse(over))
    });
    pods
}

/// Bytes as a quantity prints them.
fn bytes(number: u64) -> String {
    Quantity::new(number as i64, Format::BinarySI).to_string()
}

/// Why a pod is evicted: what ran short, by how much, and which of its containers used more than they asked for.
pub(crate) fn message(pod: &Pod, usage: &PodUsage, signal: Signal, threshold: u64, seen: Observed) -> String {
    let resource = signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    text += &format!("Threshold quantity: {}, available: {}. ", bytes(threshold), bytes(seen.available));
    let containers = state::all_containers(pod);
    for used in &usage.containers {
        let Some(container) = containers.iter().find(|container| container.name == used.name) else { continue };
        let amount = match resource {
            "memory" => used.memory,
            "ephemeral-storage" => (used.root + used.logs).bytes,
            _ => continue,
        };
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let asked = requests.and_then(|list| list.get(resource)).and_then(resources::parse).unwrap_or_default();
        if amount as i64 > asked.value() {
            text += &format!(
                "Container {} was using {}, request is {asked}, has larger consumption of {resource}. ",
                used.name,
                bytes(amount),
            );
        }
    }
    text
}

/// A limit on local storage that a pod has passed: the message of its eviction.
pub(crate) fn passed_limit(pod: &Pod, usage: &PodUsage) -> Option<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    for volume in volumes {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref()) else { continue };
        let (Some(limit), Some(used)) =
            (resources::parse(limit), usage.volumes.iter().find(|used| used.name == volume.name))
        else {
            continue;
        };
        if limit.value() > 0 && used.used.bytes as i64 > limit.value() {
            return Some(format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{limit}\". ", volume.name));
        }
    }
    if let Some(limit) = storage_limit(pod)
        && usage.ephemeral().bytes as i64 > limit.value()
    {
        return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "));
    }
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let Some(limit) = resources::limit(container, "ephemeral-storage").filter(|limit| limit.value() != 0) else {
            continue;
        };
        let used = usage.containers.iter().find(|used| used.name == container.name);
        if used.is_some_and(|used| (used.root + used.logs).bytes as i64 > limit.value()) {
            return Some(format!(
                "Container {} exceeded its local ephemeral storage limit \"{limit}\". ",
                container.name
            ));
        }
    }
    None
}

/// Whether a pod has a limit that [`passed_limit`] would look at.
pub(crate) fn has_limit(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let mut sources = volumes.filter_map(|volume| volume.empty_dir.as_ref());
    sources.any(|source| source.size_limit.is_some()) || storage_limit(pod).is_some()
}

/// The sum of what containers may use, over those that say so.
fn storage_limit(pod: &Pod) -> Option<Quantity> {
    let limits = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut limits = limits.filter_map(|container| resources::limit(container, "ephemeral-storage"));
    let first = limits.next()?;
    Some(limits.fold(first, |mut sum, limit| {
        sum.add(&limit);
        sum
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_source::SOURCE;
    use crate::resources::tests::container_with;
    use crate::usage::{ContainerUsage, Space, VolumeUsage};
    use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, PodSpec, Volume};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn pod(uid: &str, priority: i32, requests: &str, limits: &str) -> Pod {
        Pod {
            metadata: ObjectMeta { uid: Some(uid.into()), ..Default::default() },
            spec: Some(PodSpec {
                priority: Some(priority),
                containers: vec![container_with("a", requests, limits)],
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn used(memory: u64, disk: u64) -> PodUsage {
        let root = Space { bytes: disk, inodes: 1 };
        let container = ContainerUsage { name: "a".into(), memory, root, ..Default::default() };
        PodUsage { containers: vec![container], ..Default::default() }
    }

    #[test]
    fn greedy_pods_of_low_priority_go_first() {
        let pods = [
            (pod("modest", 0, "memory=100", ""), used(50, 0)),
            (pod("greedy", 0, "memory=10", ""), used(40, 0)),
            (pod("greedier", 0, "memory=10", ""), used(45, 0)),
            (pod("greedy-but-dear", 5, "memory=10", ""), used(400, 0)),
            (pod("critical", SYSTEM_CRITICAL, "memory=0", ""), used(9999, 0)),
        ];
        let ranked =
            rank(pods.into_iter().map(|(pod, usage)| (Arc::new(pod), usage)).collect(), Signal::MemoryAvailable);
        let order: Vec<&str> = ranked.iter().map(|(pod, _)| state::uid(pod)).collect();
        assert_eq!(order, ["greedier", "greedy", "greedy-but-dear", "modest"]);
    }

    /// What a node runs by itself is never evicted. A pod of the API is not such a one because its author says so.
    #[test]
    fn security_a_pod_does_not_make_itself_static() {
        for (source, version, expected) in [
            (None, Some("7"), false),
            (Some("file"), Some("7"), false),
            (Some("http"), Some("7"), false),
            (Some("api"), Some("7"), false),
            (Some("file"), None, true),
        ] {
            let mut pod = pod("p", 0, "", "");
            pod.metadata.annotations = source.map(|source| [(SOURCE.to_owned(), source.to_owned())].into());
            pod.metadata.resource_version = version.map(str::to_owned);
            assert_eq!(is_critical(&pod), expected, "{source:?} {version:?}");
        }
    }

    #[test]
    fn messages_name_who_used_more() {
        let seen = Observed { available: 10 << 20, capacity: 1 << 30 };
        let text = message(&pod("x", 0, "memory=1Mi", ""), &used(5 << 20, 0), Signal::MemoryAvailable, 100 << 20, seen);
        assert_eq!(
            text,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 10Mi. \
             Container a was using 5Mi, request is 1Mi, has larger consumption of memory. "
        );
    }

    #[test]
    fn storage_limits_are_kept() {
        let mut with_volume = pod("v", 0, "", "");
        let source = EmptyDirVolumeSource { size_limit: Some(ApiQuantity("1Ki".into())), medium: None };
        let volume = Volume { name: "cache".into(), empty_dir: Some(source), ..Default::default() };
        with_volume.spec.as_mut().unwrap().volumes = Some(vec![volume]);
        let full = |bytes| PodUsage {
            volumes: vec![VolumeUsage {
                name: "cache".into(),
                used: Space { bytes, inodes: 1 },
                is_ephemeral: true,
                ..Default::default()
            }],
            ..Default::default()
        };
        let limited = pod("l", 0, "", "ephemeral-storage=1Ki");
        for (pod, usage, expected) in [
            (&with_volume, full(1024), None),
            (&with_volume, full(1025), Some("Usage of EmptyDir volume \"cache\" exceeds the limit \"1Ki\". ")),
            (&limited, used(0, 1024), None),
            (
                &limited,
                used(0, 2048),
                Some("Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "),
            ),
        ] {
            assert!(has_limit(pod));
            assert_eq!(passed_limit(pod, &usage).as_deref(), expected);
        }
        assert!(!has_limit(&pod("none", 0, "", "memory=1Gi")));
    }
}
