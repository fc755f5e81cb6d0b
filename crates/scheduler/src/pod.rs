//! What scheduling needs to know of a pod, worked out once when the pod is seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements, Toleration};

/// Requests of pods that name none still weigh something when nodes are compared (`GetNonzeroRequests`, v1.36).
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts of the resources that nodes offer and pods ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    /// Extended resources and huge pages by name.
    pub(crate) scalars: BTreeMap<String, i64>,
}

/// A port that a pod wants on its node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HostPort {
    pub(crate) address: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

/// A pod with its scheduling facts.
#[derive(Debug, Clone)]
pub(crate) struct PodInfo {
    pub(crate) pod: Arc<Pod>,
    pub(crate) key: String,
    pub(crate) uid: String,
    pub(crate) priority: i32,
    pub(crate) requests: Resources,
    /// Requests with the defaults for pods that name none: scores only.
    pub(crate) weight_cpu: i64,
    pub(crate) weight_memory: i64,
    pub(crate) host_ports: Vec<HostPort>,
}

impl PodInfo {
    pub(crate) fn new(pod: Arc<Pod>) -> PodInfo {
        let spec = pod.spec.as_ref();
        let requests = requests_of(&pod);
        let (weight_cpu, weight_memory) = weights_of(&pod);
        let host_ports = spec.map_or_else(Vec::new, |spec| {
            let init = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
            spec.containers.iter().chain(init).flat_map(host_ports_of).collect()
        });
        PodInfo {
            key: key(&pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
            requests,
            weight_cpu,
            weight_memory,
            host_ports,
            pod,
        }
    }

    pub(crate) fn node_name(&self) -> Option<&str> {
        node_name(&self.pod)
    }

    pub(crate) fn tolerations(&self) -> &[Toleration] {
        self.pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
    }
}

pub(crate) fn key(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    format!("{}/{}", metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

pub(crate) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty())
}

/// A pod that has run to its end holds nothing on its node.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

impl Resources {
    /// Reads the amounts of a resource list; what does not parse counts as nothing, for validation refused it long ago.
    pub(crate) fn of<'a>(
        list: impl IntoIterator<Item = (&'a String, &'a k8s_openapi::apimachinery::pkg::api::resource::Quantity)>,
    ) -> Resources {
        let mut resources = Resources::default();
        for (name, amount) in list {
            let Ok(amount) = amount.0.parse::<Quantity>() else { continue };
            match name.as_str() {
                "cpu" => resources.milli_cpu = amount.milli_value(),
                "memory" => resources.memory = amount.value(),
                "ephemeral-storage" => resources.ephemeral_storage = amount.value(),
                _ => {
                    resources.scalars.insert(name.clone(), amount.value());
                }
            }
        }
        resources
    }

    pub(crate) fn add(&mut self, other: &Resources) {
        self.milli_cpu += other.milli_cpu;
        self.memory += other.memory;
        self.ephemeral_storage += other.ephemeral_storage;
        for (name, amount) in &other.scalars {
            *self.scalars.entry(name.clone()).or_default() += amount;
        }
    }

    pub(crate) fn subtract(&mut self, other: &Resources) {
        self.milli_cpu -= other.milli_cpu;
        self.memory -= other.memory;
        self.ephemeral_storage -= other.ephemeral_storage;
        for (name, amount) in &other.scalars {
            *self.scalars.entry(name.clone()).or_default() -= amount;
        }
    }

    fn raise_to(&mut self, other: &Resources) {
        self.milli_cpu = self.milli_cpu.max(other.milli_cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral_storage = self.ephemeral_storage.max(other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            let held = self.scalars.entry(name.clone()).or_default();
            *held = (*held).max(*amount);
        }
    }
}

/// The sum of the containers, or the largest moment of initialisation if that is more, plus the pod's overhead. Sidecars
/// count from their start on: in the sum, and under every init container after them.
fn requests_of(pod: &Pod) -> Resources {
    total(pod, |requirements| Resources::of(requirements.and_then(|r| r.requests.as_ref()).into_iter().flatten()))
}

fn total(pod: &Pod, requests: impl Fn(Option<&ResourceRequirements>) -> Resources) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let mut sum = Resources::default();
    for container in &spec.containers {
        sum.add(&requests(container.resources.as_ref()));
    }
    let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let asked = requests(container.resources.as_ref());
        if is_sidecar(container) {
            sum.add(&asked);
            sidecars.add(&asked);
            peak.raise_to(&sidecars);
        } else {
            let mut moment = sidecars.clone();
            moment.add(&asked);
            peak.raise_to(&moment);
        }
    }
    sum.raise_to(&peak);
    // Requests at the level of the pod stand in for those of its containers, resource by resource.
    let pod_level = Resources::of(spec.resources.as_ref().and_then(|r| r.requests.as_ref()).into_iter().flatten());
    if pod_level.milli_cpu > 0 {
        sum.milli_cpu = pod_level.milli_cpu;
    }
    if pod_level.memory > 0 {
        sum.memory = pod_level.memory;
    }
    sum.add(&Resources::of(spec.overhead.iter().flatten()));
    sum
}

fn weights_of(pod: &Pod) -> (i64, i64) {
    let weighed = total(pod, |requirements| {
        let named = requirements.and_then(|r| r.requests.as_ref());
        let mut resources = Resources::of(named.into_iter().flatten());
        if !named.is_some_and(|named| named.contains_key("cpu")) {
            resources.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !named.is_some_and(|named| named.contains_key("memory")) {
            resources.memory = DEFAULT_MEMORY;
        }
        resources
    });
    (weighed.milli_cpu, weighed.memory)
}

fn host_ports_of(container: &Container) -> impl Iterator<Item = HostPort> {
    container.ports.iter().flatten().filter_map(|port| {
        Some(HostPort {
            address: port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into()),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            port: port.host_port.filter(|port| *port > 0)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn requests(spec: Value) -> (i64, i64) {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let resources = requests_of(&pod);
        (resources.milli_cpu, resources.memory)
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn requests_follow_the_busiest_moment() {
        let mut sidecar = container("50m", "10");
        sidecar["restartPolicy"] = "Always".into();
        for (spec, expected) in [
            (json!({"containers": [container("100m", "10"), container("1", "20")]}), (1100, 30)),
            (json!({"containers": [container("100m", "10")], "initContainers": [container("2", "5")]}), (2000, 10)),
            (json!({"containers": [container("100m", "10")], "initContainers": [sidecar.clone()]}), (150, 20)),
            (
                json!({"containers": [container("100m", "10")], "initContainers": [sidecar, container("200m", "1")]}),
                (250, 20),
            ),
            (json!({"containers": [container("100m", "10")], "overhead": {"cpu": "10m"}}), (110, 10)),
        ] {
            assert_eq!(requests(spec.clone()), expected, "{spec}");
        }
    }
}
