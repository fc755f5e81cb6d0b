//! Amounts of the resources that nodes offer and pods ask for.

use std::sync::Arc;

use api::cached::Pod;
use api::pod::resources::is_pod_level;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::catalogue::{Catalogue, ResourceId};

/// What a container that names no request still weighs when nodes are compared (`GetNonzeroRequests`, v1.36).
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    /// Extended resources, huge pages and the like, ordered by id. Few pods have any.
    pub(crate) scalars: Vec<Scalar>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) id: ResourceId,
    pub(crate) name: Arc<str>,
    pub(crate) amount: i64,
}

type List = std::collections::BTreeMap<String, Text>;

impl Resources {
    /// Reads a resource list; what does not parse counts as nothing, for validation refused it long ago.
    pub(crate) fn of(list: Option<&List>, catalogue: &Catalogue) -> Resources {
        let mut resources = Resources::default();
        for (name, amount) in list.into_iter().flatten() {
            let Ok(amount) = amount.0.parse::<Quantity>() else { continue };
            match name.as_str() {
                "cpu" => resources.milli_cpu = amount.milli_value(),
                "memory" => resources.memory = amount.value(),
                "ephemeral-storage" => resources.ephemeral_storage = amount.value(),
                name if is_scalar(name) => resources.add_scalar(&catalogue.resource(name, amount.value())),
                _ => {}
            }
        }
        resources
    }

    /// Each container may ask for the largest number: sums stay there.
    pub(crate) fn add(&mut self, other: &Resources) {
        self.milli_cpu = self.milli_cpu.saturating_add(other.milli_cpu);
        self.memory = self.memory.saturating_add(other.memory);
        self.ephemeral_storage = self.ephemeral_storage.saturating_add(other.ephemeral_storage);
        other.scalars.iter().for_each(|scalar| self.add_scalar(scalar));
    }

    fn add_scalar(&mut self, scalar: &Scalar) {
        match self.scalars.binary_search_by_key(&scalar.id, |held| held.id) {
            Ok(at) => self.scalars[at].amount = self.scalars[at].amount.saturating_add(scalar.amount),
            Err(at) => self.scalars.insert(at, scalar.clone()),
        }
    }

    fn raise_to(&mut self, other: &Resources) {
        self.milli_cpu = self.milli_cpu.max(other.milli_cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral_storage = self.ephemeral_storage.max(other.ephemeral_storage);
        for scalar in &other.scalars {
            match self.scalars.binary_search_by_key(&scalar.id, |held| held.id) {
                Ok(at) => self.scalars[at].amount = self.scalars[at].amount.max(scalar.amount),
                Err(at) => self.scalars.insert(at, scalar.clone()),
            }
        }
    }

    pub(crate) fn scalar(&self, id: ResourceId) -> i64 {
        self.scalars.binary_search_by_key(&id, |held| held.id).map_or(0, |at| self.scalars[at].amount)
    }
}

/// Extended resources, huge pages, attachable volumes and `kubernetes.io/…` names: counted by name.
fn is_scalar(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("attachable-volumes-") || name.contains('/')
}

/// What a pod asks for, seen from several sides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// What must be free on the node.
    pub(crate) asked: Resources,
    /// What the pod weighs on its node: as `asked`, but containers without requests weigh something.
    pub(crate) weight_cpu: i64,
    pub(crate) weight_memory: i64,
    /// What the allocation score adds for the new pod. Requests at the level of the pod do not count here.
    pub(crate) scored_cpu: i64,
    pub(crate) scored_memory: i64,
}

impl Requests {
    /// The requests of a pod's specification.
    pub(crate) fn of(pod: &Pod, catalogue: &Catalogue) -> Requests {
        Self::with(pod, catalogue, &|container| named(container.resources.as_ref()).cloned())
    }

    /// The requests of a pod that runs: while a resize is under way, the larger of what it has and what it wants.
    /// None where the status says nothing of resources.
    pub(crate) fn while_resizing(pod: &Pod, catalogue: &Catalogue) -> Option<Requests> {
        let status = pod.status.as_ref()?;
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        let statuses: Vec<_> = all.filter(|status| status.resources().is_some()).collect();
        if statuses.is_empty() {
            return None;
        }
        let infeasible = status.conditions.iter().flatten().any(|condition| {
            condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
        });
        let effective = |container: &Container| {
            let wanted = named(container.resources.as_ref());
            let Some(status) = statuses.iter().find(|status| status.name() == container.name) else {
                return wanted.cloned();
            };
            let sources = [wanted.filter(|_| !infeasible), named(status.resources()), status.allocated_resources()];
            Some(largest(sources))
        };
        let level = pod_level(pod).filter(|_| status.resources.is_some()).map(|wanted| {
            // The status tells of sums, in which all is that a pod can ask for.
            let of_level = |list: &List| -> List {
                let amounts = list.iter().filter(|(name, _)| wanted.contains_key(*name));
                amounts.map(|(name, amount)| (name.clone(), amount.clone())).collect()
            };
            let has = named(status.resources.as_ref()).map(of_level);
            let allocated = status.allocated_resources.as_ref().map(of_level);
            largest([Some(wanted).filter(|_| !infeasible), has.as_ref(), allocated.as_ref()])
        });
        match level {
            None => Some(Self::with(pod, catalogue, &effective)),
            Some(level) => {
                let mut held = pod.clone();
                let resources = held.spec.as_mut().and_then(|spec| spec.resources.as_mut());
                resources.into_iter().for_each(|resources| resources.requests = Some(level.clone()));
                Some(Self::with(&held, catalogue, &effective))
            }
        }
    }

    fn with(pod: &Pod, catalogue: &Catalogue, requests: &dyn Fn(&Container) -> Option<List>) -> Requests {
        let asked = total(pod, catalogue, requests, None, true);
        let level = pod_level(pod);
        // With requests at the level of the pod, only what is named nowhere gets a default.
        let mut defaults = (true, true);
        if level.is_some() {
            let named = |name| names_request(pod, requests, name) || level.is_some_and(|list| list.contains_key(name));
            defaults = (!named("cpu"), !named("memory"));
        }
        let weight = total(pod, catalogue, requests, Some(defaults), true);
        let scored = total(pod, catalogue, requests, Some((true, true)), false);
        Requests {
            asked,
            weight_cpu: weight.milli_cpu,
            weight_memory: weight.memory,
            scored_cpu: scored.milli_cpu,
            scored_memory: scored.memory,
        }
    }
}

/// What the containers of a pod may use together, where they have limits.
pub(crate) fn limits(pod: &Pod, catalogue: &Catalogue) -> Resources {
    // Added up as requests are; only the overhead is none of a limit that is not there.
    let mut limited = pod.complete();
    let Some(spec) = &mut limited.spec else { return Resources::default() };
    let overhead = Resources::of(spec.overhead.take().as_ref(), catalogue);
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    let requirements = containers.filter_map(|container| container.resources.as_mut()).chain(spec.resources.as_mut());
    requirements.for_each(|requirements| requirements.requests = requirements.limits.take());
    let mut limits = Requests::of(&limited.into(), catalogue).asked;
    for (limit, overhead) in [
        (&mut limits.milli_cpu, overhead.milli_cpu),
        (&mut limits.memory, overhead.memory),
        (&mut limits.ephemeral_storage, overhead.ephemeral_storage),
    ] {
        *limit = limit.saturating_add(if *limit == 0 { 0 } else { overhead });
    }
    for limit in limits.scalars.iter_mut().filter(|limit| limit.amount != 0) {
        limit.amount = limit.amount.saturating_add(overhead.scalar(limit.id));
    }
    limits
}

/// The largest amount of each resource.
fn largest<const N: usize>(sources: [Option<&List>; N]) -> List {
    let mut largest = List::new();
    for (name, amount) in sources.into_iter().flatten().flatten() {
        let larger = |held: &Text| match (held.0.parse::<Quantity>(), amount.0.parse::<Quantity>()) {
            (Ok(held), Ok(amount)) => amount > held,
            _ => false,
        };
        if largest.get(name).is_none_or(larger) {
            largest.insert(name.clone(), amount.clone());
        }
    }
    largest
}

fn named(requirements: Option<&ResourceRequirements>) -> Option<&List> {
    requirements.and_then(|requirements| requirements.requests.as_ref())
}

fn names_request(pod: &Pod, requests: &dyn Fn(&Container) -> Option<List>, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.any(|container| requests(container).is_some_and(|list| list.contains_key(name)))
        || spec.overhead.as_ref().is_some_and(|list| list.contains_key(name))
}

fn pod_level(pod: &Pod) -> Option<&List> {
    let list = named(pod.spec.as_ref()?.resources.as_ref())?;
    list.keys().any(|name| is_pod_level(name)).then_some(list)
}

pub(crate) use api::pod::is_sidecar;

/// The sum of the containers, or the largest moment of initialisation if that is more, plus the pod's overhead. Sidecars
/// count from their start on: in the sum, and under every init container after them. `defaults` says which of cpu and
/// memory a container gets that names none.
fn total(
    pod: &Pod,
    catalogue: &Catalogue,
    requests: &dyn Fn(&Container) -> Option<List>,
    defaults: Option<(bool, bool)>,
    with_pod_level: bool,
) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let of = |container: &Container| {
        let list = requests(container);
        let mut resources = Resources::of(list.as_ref(), catalogue);
        let lacks = |name| !list.as_ref().is_some_and(|list| list.contains_key(name));
        if defaults.is_some_and(|(cpu, _)| cpu) && lacks("cpu") {
            resources.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if defaults.is_some_and(|(_, memory)| memory) && lacks("memory") {
            resources.memory = DEFAULT_MEMORY;
        }
        resources
    };
    let mut sum = Resources::default();
    for container in &spec.containers {
        sum.add(&of(container));
    }
    let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let asked = of(container);
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
    if with_pod_level && let Some(list) = pod_level(pod) {
        let level = Resources::of(Some(list), catalogue);
        if list.contains_key("cpu") {
            sum.milli_cpu = level.milli_cpu;
        }
        if list.contains_key("memory") {
            sum.memory = level.memory;
        }
        for scalar in level.scalars.iter().filter(|scalar| is_pod_level(&scalar.name)) {
            match sum.scalars.binary_search_by_key(&scalar.id, |held| held.id) {
                Ok(at) => sum.scalars[at].amount = scalar.amount,
                Err(at) => sum.scalars.insert(at, scalar.clone()),
            }
        }
    }
    sum.add(&Resources::of(spec.overhead.as_ref(), catalogue));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn requests(spec: Value) -> (i64, i64, i64, i64) {
        let pod: Pod = api::codec::from_value(&json!({"metadata": {}, "spec": spec})).unwrap();
        let requests = Requests::of(&pod, &Catalogue::default());
        (requests.asked.milli_cpu, requests.asked.memory, requests.weight_cpu, requests.weight_memory)
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn security_containers_may_all_ask_for_the_largest_number() {
        const MAX: &str = "9223372036854775807";
        let all = json!({"cpu": MAX, "memory": MAX, "ephemeral-storage": MAX, "example.com/x": MAX});
        let container = json!({"name": "c", "resources": {"requests": all, "limits": all}});
        let mut sidecar = container.clone();
        sidecar["restartPolicy"] = "Always".into();
        let spec =
            json!({"containers": [container, container], "initContainers": [sidecar, container], "overhead": all});
        assert_eq!(requests(spec.clone()), (i64::MAX, i64::MAX, i64::MAX, i64::MAX));
        let pod: Pod = api::codec::from_value(&json!({"metadata": {}, "spec": spec})).unwrap();
        let limits = limits(&pod, &Catalogue::default());
        assert_eq!((limits.memory, limits.scalars[0].amount), (i64::MAX, i64::MAX));
    }

    /// The scheduler counts in numbers of its own; they mean what everybody else reads in the specification.
    #[test]
    fn requests_are_those_of_the_api() {
        let with = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}});
        let mut sidecar = with("200m");
        sidecar["restartPolicy"] = "Always".into();
        for spec in [
            json!({"containers": [with("1"), with("2")]}),
            json!({"containers": [with("1")], "initContainers": [sidecar, with("3")]}),
            json!({"containers": [with("1")], "initContainers": [with("3"), sidecar], "overhead": {"cpu": "1"}}),
            json!({"containers": [with("1")], "resources": {"requests": {"cpu": "5"}}, "overhead": {"cpu": "100m"}}),
        ] {
            let pod: Pod = api::codec::from_value(&json!({"spec": spec})).unwrap();
            use api::pod::resources::{Side, with_overhead};
            let meant = with_overhead(pod.spec.as_ref().unwrap(), Side::Requests);
            let catalogue = Catalogue::default();
            let counted = Requests::of(&pod, &catalogue).asked;
            let numbers = (meant["cpu"].milli_value(), meant["memory"].value());
            assert_eq!((counted.milli_cpu, counted.memory), numbers, "{spec}");
        }
    }

    #[test]
    fn requests_follow_the_busiest_moment() {
        let mut sidecar = container("50m", "10");
        sidecar["restartPolicy"] = "Always".into();
        for (spec, (cpu, memory)) in [
            (json!({"containers": [container("100m", "10"), container("1", "20")]}), (1100, 30)),
            (json!({"containers": [container("100m", "10")], "initContainers": [container("2", "5")]}), (2000, 10)),
            (json!({"containers": [container("100m", "10")], "initContainers": [sidecar.clone()]}), (150, 20)),
            (
                json!({"containers": [container("100m", "10")], "initContainers": [sidecar, container("200m", "1")]}),
                (250, 20),
            ),
            (json!({"containers": [container("100m", "10")], "overhead": {"cpu": "10m"}}), (110, 10)),
            (json!({"containers": [container("100m", "10")], "resources": {"requests": {"cpu": "2"}}}), (2000, 10)),
        ] {
            assert_eq!(requests(spec.clone()), (cpu, memory, cpu, memory), "{spec}");
        }
    }

    #[test]
    fn pods_without_requests_weigh_something() {
        let memory = 200 * 1024 * 1024;
        for (spec, expected) in [
            (json!({"containers": [{"name": "c"}]}), (0, 0, 100, memory)),
            (json!({"containers": [{"name": "c"}, {"name": "d"}]}), (0, 0, 200, 2 * memory)),
            (json!({"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "1"}}}), (1000, 0, 1000, memory)),
        ] {
            assert_eq!(requests(spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn a_resize_under_way_holds_the_larger() {
        let pod = |allocated: &str, conditions: Value| -> Pod {
            api::codec::from_value(&json!({"metadata": {},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
                "status": {"conditions": conditions, "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                    "restartCount": 0, "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": "1"}}}]}}))
            .unwrap()
        };
        let infeasible = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        for (pod, expected) in
            [(pod("1", json!([])), 2000), (pod("3", json!([])), 3000), (pod("1500m", infeasible), 1500)]
        {
            let held = Requests::while_resizing(&pod, &Catalogue::default()).unwrap();
            assert_eq!(held.asked.milli_cpu, expected);
        }
    }

    #[test]
    fn a_resize_of_the_pod_holds_the_larger() {
        for (allocated, has, infeasible, expected) in
            [("1", "1", false, 2000), ("3", "1", false, 3000), ("1", "3", false, 3000), ("1", "1500m", true, 1500)]
        {
            let reason = if infeasible { "Infeasible" } else { "Deferred" };
            let pod: Pod = api::codec::from_value(&json!({"metadata": {},
                "spec": {"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "2"}}},
                "status": {"conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                    "allocatedResources": {"cpu": allocated, "memory": "1Gi"},
                    "resources": {"requests": {"cpu": has, "memory": "1Gi"}},
                    "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "resources": {}}]}}))
            .unwrap();
            let held = Requests::while_resizing(&pod, &Catalogue::default()).unwrap();
            assert_eq!((held.asked.milli_cpu, held.asked.memory), (expected, 0), "{allocated} {has} {reason}");
        }
    }
}
