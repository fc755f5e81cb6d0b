//! Changing the resources of containers that run: decided here, carried out in `apply`.
//!
//! Flow: a wish is in the spec. `admit` grants it where it fits beside the other pods, or says why it waits; what is
//! granted here is compared with what each running container has, which gives the [`Change`]s to make. Nothing of
//! this is kept on disk: after a restart the API tells what was granted, the runtime and the API what containers have.

mod deferred;

use std::collections::HashMap;
use std::sync::Arc;

use api::pod::resources::{Side, with_overhead};
use api::quantity::{Format, Quantity};
use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::json;

use crate::plan::{Actions, Kill, KillReason};
use crate::resources::{self, PodResources, ResourceList};
use crate::runtime::bare_id;
use crate::state::{ContainerState, PodState};

pub(crate) use deferred::Deferred;

pub(crate) const PENDING: &str = "PodResizePending";
pub(crate) const IN_PROGRESS: &str = "PodResizeInProgress";

/// Why a wish is not granted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wait {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Other pods are in the way, which may change.
pub(crate) const DEFERRED: &str = "Deferred";
/// This node never does it.
pub(crate) const INFEASIBLE: &str = "Infeasible";

/// Where a pod's resize stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    pub(crate) wait: Option<Wait>,
    /// Granted, and not yet what all containers have.
    pub(crate) is_on: bool,
    pub(crate) error: Option<String>,
    /// What containers were given, by id: some runtimes do not tell.
    pub(crate) given: HashMap<String, ResourceRequirements>,
    /// What the pod's own cgroup was given.
    pub(crate) given_to_pod: Option<PodResources>,
}

impl Progress {
    pub(crate) fn conditions(&self) -> Vec<PodCondition> {
        let condition = |kind: &str, reason: Option<&str>, message: Option<&String>| PodCondition {
            type_: kind.into(),
            status: "True".into(),
            reason: reason.map(String::from),
            message: message.cloned(),
            ..Default::default()
        };
        let wait = self.wait.as_ref().map(|wait| condition(PENDING, Some(wait.reason), Some(&wait.message)));
        let error = self.error.as_ref();
        let progress = self.is_on.then(|| condition(IN_PROGRESS, error.map(|_| "Error"), error));
        wait.into_iter().chain(progress).collect()
    }

    /// Whether the pod's own cgroup lacks something of what is granted.
    pub(crate) fn is_pod_pending(&self, granted: &Pod) -> bool {
        self.given_to_pod.as_ref().is_some_and(|given| *given != resources::for_pod(granted))
    }

    /// The new limit of the pod, where its memory gets less.
    pub(crate) fn less_pod_memory(&self, granted: &Pod) -> Option<i64> {
        let new = resources::for_pod(granted).memory_limit?;
        let given = self.given_to_pod.as_ref()?;
        given.memory_limit.is_none_or(|now| new < now).then_some(new)
    }
}

/// Whose resources may change while they run.
fn resizable(pod: &Pod) -> impl Iterator<Item = (&Container, Place)> {
    let spec = pod.spec.iter();
    let init = spec.clone().flat_map(|spec| spec.init_containers.iter().flatten()).enumerate();
    let init = init.map(|(index, container)| (container, Place::Init(index)));
    let main = spec.flat_map(|spec| &spec.containers).enumerate();
    init.chain(main.map(|(index, container)| (container, Place::Main(index))))
}

/// An index into one of the spec's lists.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Main(usize),
    Init(usize),
}

/// The pod as it is wished for with the resources it has been granted, which are those of `before`.
pub(crate) fn with_granted(wish: &Arc<Pod>, before: &Pod) -> Arc<Pod> {
    let of = |name: &str| resizable(before).find(|(container, _)| container.name == name);
    let whole = before.spec.as_ref().and_then(|spec| spec.resources.clone());
    with_resources(wish, whole, |name| of(name).map(|(container, _)| container.resources.clone().unwrap_or_default()))
}

/// The same for a pod that a kubelet before this one let in: its status says what was granted.
pub(crate) fn with_reported(wish: &Arc<Pod>) -> Arc<Pod> {
    with_resources(wish, reported_whole(wish), |name| {
        let published = published(wish.status.as_ref(), name)?;
        let resources = published.resources.clone()?;
        Some(ResourceRequirements { requests: published.allocated_resources.clone(), ..resources })
    })
}

/// What was granted to the pod as a whole. Its status tells of sums; what is not the pod's own in them is as wished.
fn reported_whole(wish: &Pod) -> Option<ResourceRequirements> {
    let spec = wish.spec.as_ref()?;
    let mut whole = spec.resources.clone()?;
    let status = wish.status.as_ref();
    let requests = status.and_then(|status| status.allocated_resources.as_ref());
    let limits = status.and_then(|status| status.resources.as_ref()?.limits.as_ref());
    for (wished, published) in [(&mut whole.requests, requests), (&mut whole.limits, limits)] {
        for (name, amount) in wished.iter_mut().flatten() {
            let has_overhead = spec.overhead.as_ref().is_some_and(|overhead| overhead.contains_key(name));
            if let Some(published) = published.and_then(|published| published.get(name)).filter(|_| !has_overhead) {
                amount.clone_from(published);
            }
        }
    }
    Some(whole)
}

/// The pod itself where that changes nothing.
fn with_resources(
    wish: &Arc<Pod>,
    whole: Option<ResourceRequirements>,
    of: impl Fn(&str) -> Option<ResourceRequirements>,
) -> Arc<Pod> {
    let differing: HashMap<String, ResourceRequirements> = resizable(wish)
        .filter_map(|(container, _)| {
            let other = of(&container.name)?;
            let wished = container.resources.clone().unwrap_or_default();
            (!is_same(&wished, &other)).then(|| (container.name.clone(), other))
        })
        .collect();
    let wished = wish.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let none = ResourceRequirements::default();
    let is_same_whole = is_same(wished.unwrap_or(&none), whole.as_ref().unwrap_or(&none));
    if differing.is_empty() && is_same_whole {
        return wish.clone();
    }
    let mut pod = Pod::clone(wish);
    if let Some(spec) = &mut pod.spec {
        if !is_same_whole {
            spec.resources = whole;
        }
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(resources) = differing.get(&container.name) {
                container.resources = Some(resources.clone());
            }
        }
    }
    Arc::new(pod)
}

fn is_same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    let list = |list: &Option<ResourceList>| {
        let amounts = list.iter().flatten();
        amounts.map(|(name, amount)| (name.clone(), resources::parse(amount))).collect::<Vec<_>>()
    };
    list(&one.requests) == list(&other.requests) && list(&one.limits) == list(&other.limits)
}

fn published<'a>(status: Option<&'a PodStatus>, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    statuses.into_iter().find(|status| status.name == name)
}

/// What the kernel enforces for a container, and the memory that it asked for, which only the node counts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Amounts {
    cpu_shares: i64,
    cpu_quota: i64,
    memory_limit: i64,
    memory_request: i64,
}

impl Amounts {
    fn of(pod: &Pod, container: &Container) -> Self {
        let request = |name: &str| resources::request(container, name).unwrap_or_default();
        let limit = |name: &str| resources::limit_in_pod(pod, container, name).unwrap_or_default();
        Amounts {
            cpu_shares: resources::milli_cpu_to_shares(request("cpu").milli_value()),
            cpu_quota: resources::milli_cpu_to_quota(limit("cpu").milli_value()),
            memory_limit: limit("memory").value(),
            memory_request: request("memory").value(),
        }
    }

    /// What a running container has: as the runtime tells; else as we gave it; else as the API was told; else as
    /// granted, which it was started with.
    fn in_use(pod: &Pod, granted: &Container, seen: &ContainerState, given: Option<&ResourceRequirements>) -> Self {
        let resources = given.cloned().or_else(|| granted.resources.clone());
        let mut amounts = Amounts::of(pod, &Container { resources, ..Default::default() });
        if let Some(published) = seen.resources.as_ref().filter(|published| published.cpu_shares > 0) {
            amounts.cpu_shares = published.cpu_shares;
            amounts.cpu_quota = published.cpu_quota.max(0);
            amounts.memory_limit = published.memory_limit_in_bytes.max(0);
        }
        amounts
    }
}

/// What we or a kubelet before us gave a container.
fn given<'a>(
    seen: &ContainerState,
    progress: &'a Progress,
    status: Option<&'a PodStatus>,
) -> Option<&'a ResourceRequirements> {
    progress.given.get(&seen.id).or_else(|| {
        let published = published(status, &seen.name)?;
        let is_same = published.container_id.as_deref().is_some_and(|id| bare_id(id) == seen.id);
        published.resources.as_ref().filter(|_| is_same)
    })
}

/// What a running container does not have yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) resources: ResourceRequirements,
    pub(crate) update: LinuxContainerResources,
    /// The new limit, where memory gets less.
    pub(crate) less_memory: Option<i64>,
    needs_restart: bool,
    place: Place,
}

/// All changes that bring running containers to what is granted.
pub(crate) fn changes(granted: &Pod, state: &PodState, progress: &Progress, status: Option<&PodStatus>) -> Vec<Change> {
    let changes = resizable(granted).filter_map(|(container, place)| {
        let seen = state.active(&container.name).filter(|seen| seen.is_running())?;
        let given = given(seen, progress, status);
        let (has, wants) = (Amounts::in_use(granted, container, seen, given), Amounts::of(granted, container));
        if has == wants {
            return None;
        }
        let restarts = |name: &str, differs: bool| {
            let mut policies = container.resize_policy.iter().flatten();
            differs && policies.any(|p| p.resource_name == name && p.restart_policy == "RestartContainer")
        };
        let cpu = (has.cpu_shares, has.cpu_quota) != (wants.cpu_shares, wants.cpu_quota);
        let memory = (has.memory_limit, has.memory_request) != (wants.memory_limit, wants.memory_request);
        let gets_less = wants.memory_limit != 0 && (has.memory_limit == 0 || wants.memory_limit < has.memory_limit);
        let full = resources::for_container(granted, container, i64::MAX);
        Some(Change {
            id: seen.id.clone(),
            name: container.name.clone(),
            resources: container.resources.clone().unwrap_or_default(),
            // Its score when memory runs out is fixed at its start.
            update: LinuxContainerResources { oom_score_adj: 0, ..full },
            less_memory: gets_less.then_some(wants.memory_limit),
            needs_restart: restarts("cpu", cpu) || restarts("memory", memory),
            place,
        })
    });
    changes.collect()
}

/// Adds the restarts to what is planned; returns the changes to make in place.
pub(crate) fn plan(changes: Vec<Change>, actions: &mut Actions) -> Vec<Change> {
    if actions.kill_pod {
        return Vec::new();
    }
    let (restarts, updates): (Vec<Change>, Vec<Change>) = changes
        .into_iter()
        .filter(|change| !actions.kill.iter().any(|kill| kill.id == change.id))
        .partition(|change| change.needs_restart);
    for Change { id, name, place, .. } in restarts {
        let message = format!("Container {name} resize requires restart");
        actions.kill.push(Kill { id, name, message, reason: KillReason::Other });
        match place {
            Place::Main(index) => actions.start.push(index),
            Place::Init(index) => actions.start_init.push(index),
        }
    }
    updates
}

/// `status.containerStatuses[].resources`: what a running container has, as it was written where that says the same.
pub(crate) fn reported(
    pod: &Pod,
    granted: &Container,
    seen: &ContainerState,
    progress: &Progress,
) -> ResourceRequirements {
    let mut shown = granted.resources.clone().unwrap_or_default();
    if !seen.is_running() {
        return shown;
    }
    let given = given(seen, progress, pod.status.as_ref());
    let (has, wants) = (Amounts::in_use(pod, granted, seen, given), Amounts::of(pod, granted));
    // A limit of the pod as a whole is told there.
    let is_of_pod =
        |name: &str| resources::limit(granted, name).is_none() && resources::whole_limit(pod, name).is_some();
    let mut show = |list: fn(&mut ResourceRequirements) -> &mut Option<ResourceList>, name: &str, amount: Quantity| {
        let list = list(&mut shown).get_or_insert_default();
        match amount.is_zero() {
            true => drop(list.remove(name)),
            false => drop(list.insert(name.into(), ApiQuantity(amount.to_string()))),
        }
    };
    let milli = |milli: i64| Quantity::from_milli(milli, Format::DecimalSI);
    let bytes = |bytes: i64| Quantity::new(bytes, Format::BinarySI);
    if has.cpu_shares != wants.cpu_shares {
        show(|r| &mut r.requests, "cpu", milli((has.cpu_shares * 1000 + 1023) / 1024));
    }
    if has.cpu_quota != wants.cpu_quota && !is_of_pod("cpu") {
        show(|r| &mut r.limits, "cpu", milli(has.cpu_quota * 1000 / resources::QUOTA_PERIOD));
    }
    if has.memory_limit != wants.memory_limit && !is_of_pod("memory") {
        show(|r| &mut r.limits, "memory", bytes(has.memory_limit));
    }
    if has.memory_request != wants.memory_request {
        show(|r| &mut r.requests, "memory", bytes(has.memory_request));
    }
    shown
}

/// `status.allocatedResources` and `status.resources`: what is granted to the pod in all, and what it has.
pub(crate) fn reported_of_pod(granted: &Pod, progress: &Progress) -> (ResourceList, ResourceRequirements) {
    let Some(spec) = &granted.spec else { return Default::default() };
    let list = |side: Side| -> ResourceList {
        let amounts = with_overhead(spec, side).into_iter();
        amounts.map(|(name, amount)| (name, ApiQuantity(amount.to_string()))).collect()
    };
    let requests = list(Side::Requests);
    let before = granted.status.as_ref().and_then(|status| status.resources.clone());
    let has = before.filter(|_| progress.is_pod_pending(granted)).unwrap_or_else(|| {
        let some = |list: ResourceList| Some(list).filter(|list| !list.is_empty());
        ResourceRequirements { requests: some(requests.clone()), limits: some(list(Side::Limits)), claims: None }
    });
    (requests, has)
}

/// What events say of a resize.
pub(crate) fn summary(what: &str, pod: &Pod, error: Option<&str>) -> String {
    let spec = pod.spec.iter();
    let list = |containers: Vec<&Container>| -> Vec<serde_json::Value> {
        containers
            .iter()
            .map(|c| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()}))
            .collect()
    };
    let mut summary = serde_json::Map::new();
    let init = list(spec.clone().flat_map(|spec| spec.init_containers.iter().flatten()).collect());
    if !init.is_empty() {
        summary.insert("initContainers".into(), init.into());
    }
    summary.insert("containers".into(), list(spec.flat_map(|spec| &spec.containers).collect()).into());
    summary.insert("generation".into(), pod.metadata.generation.unwrap_or_default().into());
    if let Some(error) = error {
        summary.insert("error".into(), error.into());
    }
    format!("{what}: {}", serde_json::Value::Object(summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use crate::state::{Phase, tests::up};
    use k8s_openapi::api::core::v1::{ContainerResizePolicy, PodSpec};

    fn pod(requests: &str, limits: &str) -> Arc<Pod> {
        let containers = vec![container_with("c", requests, limits)];
        Arc::new(Pod { spec: Some(PodSpec { containers, ..Default::default() }), ..Default::default() })
    }

    fn running(shares: i64, quota: i64, memory: i64) -> PodState {
        let resources = LinuxContainerResources {
            cpu_shares: shares,
            cpu_quota: quota,
            memory_limit_in_bytes: memory,
            ..Default::default()
        };
        up(&[("c", Phase::Running, 0)], |seen| ContainerState { resources: Some(resources.clone()), ..seen })
    }

    #[test]
    fn what_is_granted_stays_until_more_is() {
        let before = pod("cpu=1,memory=1Gi", "");
        for (requests, limits, differs) in [
            ("cpu=1000m,memory=1024Mi", "", false),
            ("cpu=2,memory=1Gi", "", true),
            ("cpu=1,memory=1Gi", "cpu=2", true),
        ] {
            let wish = pod(requests, limits);
            let granted = with_granted(&wish, &before);
            assert_eq!(!Arc::ptr_eq(&granted, &wish), differs, "{requests} {limits}");
            if differs {
                assert_eq!(granted.spec, before.spec);
            }
        }
    }

    #[test]
    fn a_restarted_kubelet_believes_the_status() {
        let mut wish = Pod::clone(&pod("cpu=2", "cpu=4"));
        let published = container_with("c", "cpu=9", "cpu=2").resources;
        wish.status = Some(PodStatus {
            container_statuses: Some(vec![ContainerStatus {
                name: "c".into(),
                resources: published,
                allocated_resources: crate::resources::tests::list("cpu=1"),
                ..Default::default()
            }]),
            ..Default::default()
        });
        assert_eq!(with_reported(&Arc::new(wish)).spec, pod("cpu=1", "cpu=2").spec);
    }

    #[test]
    fn running_containers_get_what_they_lack() {
        let mi = 1 << 20;
        for (requests, limits, has, expected) in [
            ("cpu=1", "cpu=1,memory=64Mi", running(1024, 100_000, 64 * mi), None),
            // The kernel knows no smaller share and quota than these.
            ("cpu=1m", "cpu=2m", running(2, 1000, 0), None),
            ("cpu=1", "cpu=2,memory=64Mi", running(1024, 100_000, 64 * mi), Some((200_000, None))),
            ("cpu=1", "memory=32Mi", running(1024, 0, 64 * mi), Some((0, Some(32 * mi)))),
            ("cpu=1", "memory=32Mi", running(1024, 0, 0), Some((0, Some(32 * mi)))),
            ("cpu=1", "memory=128Mi", running(1024, 0, 64 * mi), Some((0, None))),
            ("cpu=1", "cpu=2", up(&[("c", Phase::Exited, 1)], |seen| seen), None),
        ] {
            let found = changes(&pod(requests, limits), &has, &Progress::default(), None);
            let found = found.first().map(|change| (change.update.cpu_quota, change.less_memory));
            assert_eq!(found, expected, "{requests} {limits}");
        }
    }

    /// `InPlacePodVerticalScalingInitContainers`, which v1.36 has on.
    #[test]
    fn init_containers_change_while_they_run() {
        let with_init = |requests: &str, limits: &str| {
            let mut pod = Pod::clone(&pod("cpu=1", ""));
            pod.spec.as_mut().unwrap().init_containers = Some(vec![container_with("init", requests, limits)]);
            Arc::new(pod)
        };
        let (before, wish) = (with_init("cpu=1", "cpu=1"), with_init("cpu=2", "cpu=2"));
        assert_eq!(with_granted(&wish, &before).spec, before.spec);
        for (phase, expected) in [(Phase::Running, Some(200_000)), (Phase::Exited, None)] {
            let resources = LinuxContainerResources { cpu_shares: 1024, cpu_quota: 100_000, ..Default::default() };
            let has = up(&[("init", phase, 0)], |seen| ContainerState { resources: Some(resources.clone()), ..seen });
            let found = changes(&wish, &has, &Progress::default(), None);
            assert_eq!(found.first().map(|change| change.update.cpu_quota), expected);
        }
    }

    #[test]
    fn policies_ask_for_restarts() {
        let mut pod = Pod::clone(&pod("cpu=2", "memory=64Mi"));
        let policy = ContainerResizePolicy { resource_name: "cpu".into(), restart_policy: "RestartContainer".into() };
        pod.spec.as_mut().unwrap().containers[0].resize_policy = Some(vec![policy]);
        for (has, restarts) in [(running(1024, 0, 64 << 20), true), (running(2048, 0, 32 << 20), false)] {
            let mut actions = Actions::default();
            let updates = plan(changes(&pod, &has, &Progress::default(), None), &mut actions);
            assert_eq!(
                (updates.is_empty(), actions.start.len(), actions.kill.len()),
                match restarts {
                    true => (true, 1, 1),
                    false => (false, 0, 0),
                }
            );
        }
    }

    #[test]
    fn statuses_show_what_containers_have() {
        let granted = pod("cpu=2,memory=64Mi", "cpu=2,memory=64Mi");
        let container = &granted.spec.as_ref().unwrap().containers[0];
        let shown = |state: &PodState| reported(&granted, container, &state.containers[0], &Progress::default());
        assert_eq!(shown(&running(2048, 200_000, 64 << 20)), container.resources.clone().unwrap());
        let other = container_with("c", "cpu=1,memory=64Mi", "cpu=1500m,memory=32Mi").resources.unwrap();
        assert!(is_same(&shown(&running(1024, 150_000, 32 << 20)), &other));
        assert_eq!(shown(&running(2048, 0, 64 << 20)).limits, crate::resources::tests::list("memory=64Mi"));
    }

    fn whole(mut pod: Pod, requests: &str, limits: &str) -> Arc<Pod> {
        pod.spec.as_mut().unwrap().resources = container_with("", requests, limits).resources;
        Arc::new(pod)
    }

    #[test]
    fn pods_are_resized_as_a_whole() {
        let bare = || Pod::clone(&pod("", ""));
        let before = whole(bare(), "cpu=1,memory=32Mi", "cpu=1,memory=64Mi");
        let wish = whole(bare(), "cpu=1,memory=32Mi", "cpu=2,memory=32Mi");
        assert_eq!(with_granted(&wish, &before).spec, before.spec);
        assert!(Arc::ptr_eq(&with_granted(&wish, &wish), &wish));

        // A container without limits of its own is held to those of the pod.
        let has = running(2, 100_000, 64 << 20);
        assert_eq!(changes(&before, &has, &Progress::default(), None), []);
        let found = changes(&wish, &has, &Progress::default(), None);
        let found: Vec<_> = found.iter().map(|change| (change.update.cpu_quota, change.less_memory)).collect();
        assert_eq!(found, [(200_000, Some(32 << 20))]);
        let container = &wish.spec.as_ref().unwrap().containers[0];
        assert_eq!(reported(&wish, container, &has.containers[0], &Progress::default()).limits, None);

        // The pod's own cgroup follows, and until then the pod has what it had.
        let (allocated, shown) = reported_of_pod(&before, &Progress::default());
        let published = |pod: &Arc<Pod>| {
            let mut pod = Pod::clone(pod);
            let status = pod.status.get_or_insert_default();
            (status.allocated_resources, status.resources) = (Some(allocated.clone()), Some(shown.clone()));
            Arc::new(pod)
        };
        let mut progress = Progress { given_to_pod: Some(resources::for_pod(&before)), ..Progress::default() };
        assert_eq!((progress.is_pod_pending(&before), progress.less_pod_memory(&before)), (false, None));
        assert_eq!((progress.is_pod_pending(&wish), progress.less_pod_memory(&wish)), (true, Some(32 << 20)));
        assert_eq!(reported_of_pod(&published(&wish), &progress).1.limits, resources::tests::list("cpu=1,memory=64Mi"));
        progress.given_to_pod = Some(resources::for_pod(&wish));
        assert_eq!(reported_of_pod(&published(&wish), &progress).1.limits, resources::tests::list("cpu=2,memory=32Mi"));

        // A restarted kubelet believes the status.
        assert_eq!(with_reported(&published(&wish)).spec, before.spec);
    }
}
