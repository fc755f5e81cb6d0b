//! Requests and limits turned into what the kernel takes: shares, quotas, bytes.

use std::collections::BTreeMap;

use api::pod::resources as pod_resources;
use api::quantity::Quantity;
use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::qos;

pub(crate) type ResourceList = BTreeMap<String, ApiQuantity>;

pub(crate) const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
pub(crate) const QUOTA_PERIOD: i64 = 100_000;
const MIN_QUOTA: i64 = 1000;

pub(crate) fn parse(quantity: &ApiQuantity) -> Option<Quantity> {
    quantity.0.parse().ok()
}

fn from_list(list: Option<&ResourceList>, name: &str) -> Option<Quantity> {
    list.and_then(|list| list.get(name)).and_then(parse)
}

/// What a container asks for; a limit without a request is a request.
pub(crate) fn request(container: &Container, name: &str) -> Option<Quantity> {
    let resources = container.resources.as_ref()?;
    from_list(resources.requests.as_ref(), name).or_else(|| from_list(resources.limits.as_ref(), name))
}

pub(crate) fn limit(container: &Container, name: &str) -> Option<Quantity> {
    from_list(container.resources.as_ref()?.limits.as_ref(), name)
}

/// What a container may use at most is what its pod may, unless it says less.
pub(crate) fn limit_in_pod(pod: &Pod, container: &Container, name: &str) -> Option<Quantity> {
    limit(container, name).or_else(|| whole_limit(pod, name))
}

pub(crate) fn milli_cpu_to_shares(milli: i64) -> i64 {
    if milli == 0 {
        return MIN_SHARES;
    }
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Microseconds of cpu time per period; zero means no limit.
pub(crate) fn milli_cpu_to_quota(milli: i64) -> i64 {
    if milli == 0 {
        return 0;
    }
    (milli.saturating_mul(QUOTA_PERIOD) / 1000).max(MIN_QUOTA)
}

/// The resources of one container as CRI carries them.
pub(crate) fn for_container(pod: &Pod, container: &Container, node_memory: i64) -> LinuxContainerResources {
    let cpu_request = request(container, "cpu").map_or(0, |q| q.milli_value());
    let limit = |name: &str| limit_in_pod(pod, container, name);
    let cpu_limit = limit("cpu").map_or(0, |q| q.milli_value());
    let memory_of = |container: &Container| request(container, "memory").map_or(0, |q| q.value());
    LinuxContainerResources {
        cpu_shares: milli_cpu_to_shares(cpu_request),
        cpu_quota: milli_cpu_to_quota(cpu_limit),
        cpu_period: QUOTA_PERIOD,
        memory_limit_in_bytes: limit("memory").map_or(0, |q| q.value()),
        oom_score_adj: qos::oom_score_adj(pod, container, node_memory, memory_of),
        ..Default::default()
    }
}

/// What the pod's own cgroup gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodResources {
    pub(crate) cpu_shares: i64,
    /// None: no limit.
    pub(crate) cpu_quota: Option<i64>,
    pub(crate) cpu_period: i64,
    pub(crate) memory_limit: Option<i64>,
}

pub(crate) fn for_pod(pod: &Pod) -> PodResources {
    let cpu = pod_request(pod, "cpu").milli_value();
    let class = qos::class(pod);
    let limit = |name: &str| pod_limit(pod, name);
    PodResources {
        cpu_shares: if class == qos::Class::BestEffort { MIN_SHARES } else { milli_cpu_to_shares(cpu) },
        cpu_quota: limit("cpu").map(|q| milli_cpu_to_quota(q.milli_value())).filter(|quota| *quota > 0),
        cpu_period: QUOTA_PERIOD,
        memory_limit: limit("memory").map(|q| q.value()).filter(|bytes| *bytes > 0),
    }
}

/// What the pod asks for in all, overhead included.
pub(crate) fn pod_request(pod: &Pod, name: &str) -> Quantity {
    let mut requests = pod.spec.as_ref().map(pod_resources::effective_requests).unwrap_or_default();
    requests.remove(name).unwrap_or_default()
}

/// What is set for the pod as a whole.
pub(crate) fn whole_limit(pod: &Pod, name: &str) -> Option<Quantity> {
    let own = pod.spec.as_ref()?.resources.as_ref().filter(|_| pod_resources::is_pod_level(name))?;
    from_list(own.limits.as_ref(), name)
}

/// What the pod is held to in all, if every container is, or the pod as a whole.
pub(crate) fn pod_limit(pod: &Pod, name: &str) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    if whole_limit(pod, name).is_none() && containers.any(|container| limit(container, name).is_none()) {
        return None;
    }
    pod_resources::with_overhead(spec, pod_resources::Side::Limits).remove(name)
}

/// A `resourceFieldRef` that names nothing a container has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported container resource : {0}")]
pub(crate) struct UnsupportedResource(String);

/// What variables say of limits that their container does not have: those of the pod as a whole, else what the node has
/// (`defaultPodLimitsForDownwardAPI`, v1.36). Files of volumes know the node only, as upstream.
pub(crate) fn default_limits(pod: &Pod, allocatable: &ResourceList) -> ResourceList {
    let mut limits = allocatable.clone();
    for name in ["cpu", "memory"] {
        if let Some(limit) = limits.get_mut(name)
            && let Some(whole) = whole_limit(pod, name).filter(|whole| !whole.is_zero())
        {
            *limit = ApiQuantity(whole.to_string());
        }
    }
    limits
}

/// A `resourceFieldRef`: the container's own number, or the default where it sets no limit, divided and rounded up.
pub(crate) fn field_value(
    container: &Container,
    resource: &str,
    divisor: Option<&ApiQuantity>,
    defaults: &ResourceList,
) -> Result<String, UnsupportedResource> {
    let unsupported = || UnsupportedResource(resource.to_owned());
    let (kind, name) = resource.split_once('.').ok_or_else(unsupported)?;
    let default = || from_list(Some(defaults), name).unwrap_or_default();
    let value = match kind {
        "limits" => limit(container, name).filter(|q| q.milli_value() != 0).unwrap_or_else(default),
        "requests" => request(container, name).unwrap_or_default(),
        _ => return Err(unsupported()),
    };
    let divisor = divisor.and_then(parse).filter(|q| q.milli_value() > 0);
    let divided = if name == "cpu" {
        let by = divisor.map_or(1000, |q| q.milli_value());
        value.milli_value().div_euclid(by) + i64::from(value.milli_value().rem_euclid(by) != 0)
    } else {
        let by = divisor.map_or(1, |q| q.value()).max(1);
        value.value().div_euclid(by) + i64::from(value.value().rem_euclid(by) != 0)
    };
    Ok(divided.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

    pub(crate) fn list(text: &str) -> Option<ResourceList> {
        (!text.is_empty()).then(|| {
            text.split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_string(), ApiQuantity(value.to_string())))
                .collect()
        })
    }

    pub(crate) fn container_with(name: &str, requests: &str, limits: &str) -> Container {
        Container {
            name: name.into(),
            resources: Some(ResourceRequirements { requests: list(requests), limits: list(limits), claims: None }),
            ..Default::default()
        }
    }

    #[test]
    fn shares_and_quotas() {
        for (milli, shares, quota) in [
            (0, 2, 0),
            (1, 2, 1000),
            (100, 102, 10_000),
            (1000, 1024, 100_000),
            (300_000, 262_144, 30_000_000),
            (i64::MAX, 262_144, i64::MAX / 1000),
        ] {
            assert_eq!(milli_cpu_to_shares(milli), shares, "{milli}m");
            assert_eq!(milli_cpu_to_quota(milli), quota, "{milli}m");
        }
    }

    #[test]
    fn pod_totals_count_init_peaks_and_sidecars() {
        let sidecar = Container { restart_policy: Some("Always".into()), ..container_with("s", "cpu=100m", "") };
        for (init, main, expected) in [
            (vec![], vec![container_with("a", "cpu=1", ""), container_with("b", "cpu=500m", "")], 1500),
            (vec![container_with("i", "cpu=2", "")], vec![container_with("a", "cpu=1", "")], 2000),
            (vec![sidecar.clone(), container_with("i", "cpu=2", "")], vec![container_with("a", "cpu=1", "")], 2100),
            (vec![sidecar], vec![container_with("a", "cpu=1", "")], 1100),
        ] {
            let pod = Pod {
                spec: Some(PodSpec { init_containers: Some(init), containers: main, ..Default::default() }),
                ..Default::default()
            };
            assert_eq!(pod_request(&pod, "cpu").milli_value(), expected);
        }
    }

    #[test]
    fn pods_may_ask_as_a_whole() {
        let whole =
            |requests, limits| ResourceRequirements { requests: list(requests), limits: list(limits), claims: None };
        let pod = Pod {
            spec: Some(PodSpec {
                containers: vec![container_with("a", "cpu=100m", ""), container_with("b", "memory=1Mi", "memory=2Mi")],
                resources: Some(whole("cpu=2", "cpu=3,memory=1Gi")),
                overhead: list("cpu=1"),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(pod_request(&pod, "cpu").milli_value(), 3000);
        assert_eq!(pod_request(&pod, "memory").value(), 1 << 20);
        assert_eq!(pod_limit(&pod, "cpu").unwrap().milli_value(), 4000);
        let containers = &pod.spec.as_ref().unwrap().containers;
        let limits = containers.iter().map(|c| for_container(&pod, c, 1 << 30).memory_limit_in_bytes);
        assert_eq!(limits.collect::<Vec<_>>(), [1 << 30, 2 << 20]);
    }

    #[test]
    fn resource_fields() {
        let node = list("cpu=4,memory=8Gi").unwrap();
        let container = container_with("a", "cpu=250m,memory=32Mi", "cpu=1250m,memory=64Mi");
        let bare = container_with("b", "", "");
        for (container, resource, divisor, expected) in [
            (&container, "limits.cpu", None, "2"),
            (&container, "limits.cpu", Some("1m"), "1250"),
            (&container, "requests.memory", Some("1Mi"), "32"),
            (&container, "limits.memory", None, "67108864"),
            (&bare, "limits.cpu", None, "4"),
            (&bare, "limits.memory", Some("1Gi"), "8"),
            (&bare, "requests.cpu", None, "0"),
        ] {
            let divisor = divisor.map(|d| ApiQuantity(d.into()));
            assert_eq!(field_value(container, resource, divisor.as_ref(), &node).unwrap(), expected, "{resource}");
        }
    }

    #[test]
    fn a_limit_of_the_pod_comes_before_that_of_the_node() {
        let node = list("cpu=4,memory=8Gi").unwrap();
        let own = container_with("a", "", "cpu=1,memory=1Gi");
        let bare = container_with("b", "", "");
        for (whole, container, cpu, memory) in [
            ("cpu=1250m,memory=64Mi", &bare, "2", "67108864"),
            ("cpu=1250m", &bare, "2", "8589934592"),
            ("memory=0", &bare, "4", "8589934592"),
            ("cpu=1250m,memory=64Mi", &own, "1", "1073741824"),
        ] {
            let resources = container_with("", "", whole).resources;
            let pod = Pod { spec: Some(PodSpec { resources, ..Default::default() }), ..Default::default() };
            let defaults = default_limits(&pod, &node);
            let value = |resource: &str| field_value(container, resource, None, &defaults).unwrap();
            assert_eq!([value("limits.cpu"), value("limits.memory")], [cpu, memory], "{whole}");
        }
    }
}
