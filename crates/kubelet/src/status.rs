//! Computes the PodStatus that the API shows, from the spec and what the runtime knows. Pure.
//!
//! Flow: `state` + probe readiness + start errors -> here -> `status_writer`, which sends it.
//! Reasons, messages and the rules for phases are upstream's (`getPhase`, `convertToAPIContainerStatuses`, v1.36).

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::plan::sandbox_needed;
use crate::state::{self, ContainerState, Phase, PodState};
use crate::{qos, resize};

/// Why a container is not started, as the API tells it: `ErrImagePull`, `CrashLoopBackOff`, …
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Waiting {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Everything besides the spec that the status is made of.
pub(crate) struct Observed<'a> {
    pub(crate) state: &'a PodState,
    /// By container name.
    pub(crate) waiting: &'a HashMap<String, Waiting>,
    pub(crate) readiness: &'a dyn Readiness,
    pub(crate) resize: &'a resize::Progress,
    pub(crate) host_ips: &'a [String],
    /// Containers will not be restarted whatever the policy: the pod is being stopped.
    pub(crate) is_terminating: bool,
    /// Set when the node itself ended the pod: evicted, deadline passed, rejected.
    pub(crate) ended: Option<&'a Ended>,
    pub(crate) runtime_name: &'a str,
    /// Whether the runtime can make all mounts below a volume read-only.
    pub(crate) recursive_read_only: bool,
    pub(crate) now: Timestamp,
}

/// The node's own verdict on a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// What the condition `DisruptionTarget` says, when the node disrupted a healthy pod.
    pub(crate) disruption: Option<String>,
}

/// What probes say of a running container.
pub(crate) trait Readiness {
    fn is_started(&self, container_id: &str, container: &Container) -> bool;
    fn is_ready(&self, container_id: &str, container: &Container) -> bool;
}

pub(crate) fn pod_status(pod: &Pod, observed: &Observed<'_>) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let Some(spec) = &pod.spec else { return old };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let ephemeral: Vec<Container> = spec.ephemeral_containers.iter().flatten().map(state::from_ephemeral).collect();
    let has_init = !init.is_empty();
    let is_restarting = is_restarting_all(pod, &old, observed.state);

    let mut list = Statuses { pod, observed, waits_for_init: has_init, is_init: false, is_restarting };
    let mut containers = list.of(&spec.containers, &old.container_statuses);
    let mut inits = Statuses { is_init: true, ..list }.of(init, &old.init_container_statuses);
    list.is_restarting = false;
    let ephemerals = list.of(&ephemeral, &old.ephemeral_container_statuses);

    for (container, status) in spec.containers.iter().zip(&mut containers) {
        set_readiness(container, status, observed);
    }
    for (container, status) in init.iter().zip(&mut inits) {
        if state::is_sidecar(container) {
            set_readiness(container, status, observed);
        } else {
            status.ready = terminated(status).is_some_and(|t| t.exit_code == 0);
            status.started = Some(false);
        }
    }

    let started_main = containers.iter().any(|status| {
        running(status).is_some()
            || terminated(status).is_some()
            || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
    });
    // What still runs holds on to what it has: nobody may be told that the pod is over.
    let ended = observed.ended.filter(|_| !observed.state.containers.iter().any(|container| container.is_running()));
    let phase = match ended {
        Some(_) => "Failed",
        // A finished pod stays finished.
        None if matches!(old.phase.as_deref(), Some("Failed")) => "Failed",
        None if matches!(old.phase.as_deref(), Some("Succeeded")) => "Succeeded",
        None if observed.ended.is_some() => old.phase.as_deref().unwrap_or("Pending"),
        None => phase(pod, &inits, &containers, observed.is_terminating, started_main),
    };

    let (allocated, has) = resize::reported_of_pod(pod, observed.resize);
    let mut status = PodStatus {
        allocated_resources: Some(allocated).filter(|allocated| !allocated.is_empty()),
        resources: Some(has),
        phase: Some(phase.into()),
        qos_class: Some(qos::class(pod).to_string()),
        observed_generation: pod.metadata.generation,
        start_time: old.start_time.clone().or(Some(Time(observed.now))),
        host_ip: observed.host_ips.first().cloned(),
        host_ips: Some(observed.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        // They explain the phase, and go with it.
        reason: old.reason.clone().filter(|_| old.phase.as_deref() == Some(phase)),
        message: old.message.clone().filter(|_| old.phase.as_deref() == Some(phase)),
        conditions: None,
        ..Default::default()
    };
    if let Some(ended) = ended {
        status.reason = Some(ended.reason.clone());
        status.message = Some(ended.message.clone());
    }
    let ips: Vec<String> =
        if spec.host_network == Some(true) { observed.host_ips.to_vec() } else { observed.state.ips().to_vec() };
    if ips.is_empty() {
        // A stopped sandbox has no address to tell; keep the last one known.
        status.pod_ip = old.pod_ip.clone();
        status.pod_ips = old.pod_ips.clone();
    } else {
        status.pod_ip = ips.first().cloned();
        status.pod_ips = Some(ips.into_iter().map(|ip| PodIP { ip }).collect());
    }

    let generation = pod.metadata.generation;
    let mut conditions = vec![
        ready_to_start_containers(pod, observed.state),
        initialized(init, &inits, phase, started_main),
        pod_ready(pod, &inits, &containers, phase, old.conditions.as_deref().unwrap_or_default()),
        containers_ready(pod, &inits, &containers, phase),
        condition("PodScheduled", true, None, None),
    ];
    if let Some(message) = observed.ended.and_then(|ended| ended.disruption.clone()) {
        conditions.push(condition("DisruptionTarget", true, Some("TerminationByKubelet"), Some(message)));
    }
    if state::may_restart_all(pod) {
        conditions.push(all_containers_restarting(is_restarting, pod, observed.state, phase));
    }
    let mut others = old.conditions.unwrap_or_default();
    if !observed.is_terminating && ended.is_none() {
        conditions.extend(observed.resize.conditions());
    }
    let is_over = |kind: &str| is_of_resize(kind) && !conditions.iter().any(|condition| condition.type_ == kind);
    others.retain(|condition| !is_over(&condition.type_));
    status.conditions = Some(merge_conditions(others, conditions, generation, observed.now));
    status.container_statuses = Some(containers);
    status.init_container_statuses = has_init.then_some(inits);
    status.ephemeral_container_statuses = (!ephemeral.is_empty()).then_some(ephemerals);
    status
}

/// The last status of a pod of which nothing runs and nothing will: every container that could have run has ended, and so
/// has the pod. What is not known to have succeeded has failed (`TerminatePod`, v1.36).
pub(crate) fn over(pod: &Pod, mut status: PodStatus) -> PodStatus {
    let end = |container: &mut ContainerStatus| {
        if terminated(container).is_some() {
            return;
        }
        container.state = Some(ApiState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some("The container could not be located when the pod was terminated".into()),
                ..Default::default()
            }),
            ..Default::default()
        });
        container.ready = false;
        container.started = Some(false);
    };
    if has_initialized(pod, &status) {
        status.container_statuses.iter_mut().flatten().for_each(end);
    }
    // Init containers that had their turn: all up to the last one that ever left its wait, and the first in any case.
    let inits = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let turns = inits.iter().rposition(has_left_wait).unwrap_or(0) + 1;
    inits.iter_mut().take(turns).for_each(end);
    let is_last = status.phase.as_deref().is_some_and(api::pod::is_terminal_phase);
    if !is_last && !crate::pod_source::is_static(pod) {
        status.phase = Some("Failed".into());
    }
    status
}

fn has_left_wait(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_none_or(|state| state.waiting.is_none())
        || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}

fn has_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    if init.is_empty() || status.container_statuses.iter().flatten().any(has_left_wait) {
        return true;
    }
    let (Some(container), Some(last)) = (init.last(), status.init_container_statuses.iter().flatten().last()) else {
        return false;
    };
    let succeeded = |state: &Option<ApiState>| {
        state.as_ref().and_then(|state| state.terminated.as_ref()).is_some_and(|ended| ended.exit_code == 0)
    };
    match state::is_sidecar(container) {
        true => running(last).is_some() && last.started == Some(true),
        false => succeeded(&last.state) || succeeded(&last.last_state),
    }
}

/// What statuses of containers of one kind have in common.
#[derive(Clone, Copy)]
struct Statuses<'a> {
    pod: &'a Pod,
    observed: &'a Observed<'a>,
    waits_for_init: bool,
    is_init: bool,
    /// All containers are being removed, to start all over.
    is_restarting: bool,
}

impl Statuses<'_> {
    fn of(&self, containers: &[Container], old: &Option<Vec<ContainerStatus>>) -> Vec<ContainerStatus> {
        let status = |container: &Container| {
            let old = old.iter().flatten().find(|status| status.name == container.name);
            self.container(container, old)
        };
        containers.iter().map(status).collect()
    }

    fn container(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let observed = self.observed;
        let mut records = observed.state.containers.iter().filter(|c| c.name == container.name);
        let mut status = match records.next() {
            None if self.is_restarting && old.is_some_and(has_run) => restarting_status(container, old),
            None => unseen_status(container, old, self.waits_for_init),
            Some(newest) => {
                let mut status = from_record(newest, observed.runtime_name, container);
                status.last_state = records
                    .find(|older| older.phase == Phase::Exited)
                    .map(|older| ApiState {
                        terminated: Some(terminated_state(older, observed.runtime_name)),
                        ..Default::default()
                    })
                    .or_else(|| {
                        old.and_then(|old| {
                            let same = old.container_id == status.container_id;
                            let past = if same {
                                old.last_state.clone()
                            } else {
                                old.state.clone().filter(|s| s.terminated.is_some()).or(old.last_state.clone())
                            };
                            past.filter(|state| state.terminated.is_some())
                        })
                    });
                let is_restart = old.is_none_or(|old| status.restart_count > old.restart_count);
                // Collected containers must not make the count go back.
                if let Some(old) = old {
                    status.restart_count = status.restart_count.max(old.restart_count);
                }
                status.resources = Some(resize::reported(self.pod, container, newest, observed.resize));
                status.allocated_resources = container.resources.as_ref().and_then(|r| r.requests.clone());
                // Whatever the runtime says later, an end that was told and is no reason to start again stays.
                match old.filter(|_| !is_restart && terminated(&status).is_none()) {
                    Some(old) if terminated(old).is_some_and(|end| self.is_last(container, end)) => old.clone(),
                    _ => status,
                }
            }
        };
        status.volume_mounts = volume_mounts(container, observed.recursive_read_only);
        let Some(waiting) = observed.waiting.get(&container.name) else { return status };
        if running(&status).is_some() {
            return status;
        }
        if let Some(past) = terminated(&status) {
            if self.is_last(container, past) || observed.is_terminating {
                return status;
            }
            status.last_state = status.state.take();
        }
        status.state = Some(waiting_state(waiting.reason, Some(&waiting.message)));
        status
    }

    /// Whether the container is not started again after that end.
    fn is_last(&self, container: &Container, end: &ContainerStateTerminated) -> bool {
        let is_initialized = self.is_init && !state::is_sidecar(container) && end.exit_code == 0;
        is_initialized || !state::restarts_after(container, state::restart_policy(self.pod), end.exit_code)
    }
}

fn has_run(status: &ContainerStatus) -> bool {
    running(status).is_some() || terminated(status).is_some()
}

/// Whether the end of a container has all of them start again, seen now or told before.
fn is_restarting_all(pod: &Pod, old: &PodStatus, state: &PodState) -> bool {
    if !state::may_restart_all(pod) {
        return false;
    }
    let reported = old.conditions.iter().flatten();
    if reported.into_iter().any(is_restart_of_all) {
        return true;
    }
    let spec = pod.spec.iter();
    let mut containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.any(|container| {
        let newest = state.container(&container.name).filter(|newest| newest.phase == Phase::Exited);
        newest.is_some_and(|newest| state::restarts_all_after(container, newest.exit_code))
    })
}

/// The condition of a pod whose containers must be removed, all of them, before any is started.
pub(crate) fn is_restart_of_all(condition: &PodCondition) -> bool {
    condition.type_ == ALL_RESTARTING && condition.status == "True"
}

pub(crate) const ALL_RESTARTING: &str = "AllContainersRestarting";
const RESTARTING_ALL: &str = "RestartingAllContainers";

fn all_containers_restarting(is_restarting: bool, pod: &Pod, state: &PodState, phase: &str) -> PodCondition {
    match phase {
        "Succeeded" => return condition(ALL_RESTARTING, false, Some("PodCompleted"), None),
        "Failed" => return condition(ALL_RESTARTING, false, Some("PodFailed"), None),
        _ => {}
    }
    if !is_restarting || crate::plan::reset(pod, state).is_empty() {
        return condition(ALL_RESTARTING, false, None, None);
    }
    let message = "container exited with restart policy rule".to_string();
    condition(ALL_RESTARTING, true, Some("RestartAllContainersStarted"), Some(message))
}

/// A container that was removed to be started again with all others.
fn restarting_status(container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
    let message = "The container is removed because RestartAllContainers in place";
    let end = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(RESTARTING_ALL.into()),
        message: Some(message.into()),
        ..Default::default()
    };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting_state(RESTARTING_ALL, Some(message))),
        last_state: Some(ApiState { terminated: Some(end), ..Default::default() }),
        restart_count: old.map_or(0, |old| old.restart_count).saturating_add(1),
        started: Some(false),
        ..Default::default()
    }
}

/// How the volumes are mounted, as far as the spec left that open.
fn volume_mounts(container: &Container, recursive_read_only: bool) -> Option<Vec<VolumeMountStatus>> {
    let of = |mount: &VolumeMount| {
        let mode = match crate::containers::is_recursively_read_only(mount, recursive_read_only) {
            Ok(true) => "Enabled",
            Ok(false) | Err(_) => "Disabled",
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only.filter(|read_only| *read_only),
            recursive_read_only: (mount.read_only == Some(true)).then(|| mode.to_string()),
            ..Default::default()
        }
    };
    container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty()).map(|mounts| mounts.iter().map(of).collect())
}

/// A container the runtime does not know.
fn unseen_status(container: &Container, old: Option<&ContainerStatus>, waits_for_init: bool) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting_state(if waits_for_init { "PodInitializing" } else { "ContainerCreating" }, None)),
        started: Some(false),
        ..Default::default()
    };
    let Some(old) = old else { return status };
    if terminated(old).is_some() {
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state = old.last_state.clone();
    if running(old).is_some() {
        // It ran and is gone without a trace: say so rather than start a run-once pod twice.
        status.restart_count = status.restart_count.saturating_add(1);
        status.last_state = Some(ApiState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some(
                    "The container could not be located when the pod was deleted.  The container used to be Running"
                        .into(),
                ),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    status
}

fn from_record(record: &ContainerState, runtime: &str, container: &Container) -> ContainerStatus {
    let state = match record.phase {
        Phase::Running => ApiState {
            running: Some(ContainerStateRunning { started_at: time(record.started_at) }),
            ..Default::default()
        },
        Phase::Exited => ApiState { terminated: Some(terminated_state(record, runtime)), ..Default::default() },
        Phase::Created => waiting_state("ContainerCreating", None),
        Phase::Unknown => ApiState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some("The container could not be located when the pod was terminated".into()),
                container_id: Some(format!("{runtime}://{}", record.id)),
                ..Default::default()
            }),
            ..Default::default()
        },
    };
    ContainerStatus {
        name: record.name.clone(),
        restart_count: record.restart_count,
        image: if record.image.is_empty() { container.image.clone().unwrap_or_default() } else { record.image.clone() },
        image_id: record.image_ref.clone(),
        container_id: Some(format!("{runtime}://{}", record.id)),
        state: Some(state),
        started: Some(false),
        user: record.user.clone().map(|(uid, gid, groups)| k8s_openapi::api::core::v1::ContainerUser {
            linux: Some(k8s_openapi::api::core::v1::LinuxContainerUser { uid, gid, supplemental_groups: Some(groups) }),
        }),
        ..Default::default()
    }
}

fn terminated_state(record: &ContainerState, runtime: &str) -> ContainerStateTerminated {
    let reason = match record.reason.as_str() {
        "" if record.exit_code == 0 => "Completed",
        "" => "Error",
        reason => reason,
    };
    ContainerStateTerminated {
        exit_code: record.exit_code,
        reason: Some(reason.into()),
        message: (!record.message.is_empty()).then(|| record.message.clone()),
        started_at: time(record.started_at),
        finished_at: time(record.finished_at),
        container_id: Some(format!("{runtime}://{}", record.id)),
        ..Default::default()
    }
}

fn waiting_state(reason: &str, message: Option<&str>) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message: message.map(String::from) }),
        ..Default::default()
    }
}

fn time(nanos: i64) -> Option<Time> {
    if nanos <= 0 {
        return None;
    }
    // The API shows whole seconds.
    Timestamp::from_second(nanos / 1_000_000_000).ok().map(Time)
}

fn running(status: &ContainerStatus) -> Option<&ContainerStateRunning> {
    status.state.as_ref()?.running.as_ref()
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

fn set_readiness(container: &Container, status: &mut ContainerStatus, observed: &Observed<'_>) {
    let id = observed.state.container(&container.name).map(|c| c.id.clone()).unwrap_or_default();
    let is_running = running(status).is_some();
    let is_started = is_running && observed.readiness.is_started(&id, container);
    status.started = Some(is_started);
    status.ready = is_started && observed.readiness.is_ready(&id, container);
}

fn phase(
    pod: &Pod,
    inits: &[ContainerStatus],
    containers: &[ContainerStatus],
    is_terminating: bool,
    started_main: bool,
) -> &'static str {
    let Some(spec) = &pod.spec else { return "Pending" };
    let policy = state::restart_policy(pod);
    let last_end = |status: &ContainerStatus| {
        let end = terminated(status).or_else(|| status.last_state.as_ref().and_then(|last| last.terminated.as_ref()));
        end.map(|end| (end.exit_code, end.reason.as_deref() == Some(RESTARTING_ALL)))
    };
    let last = |status: &ContainerStatus| last_end(status).map(|(code, _)| code);
    let restarts = |container: &Container, status: &ContainerStatus| {
        last_end(status).is_some_and(|(code, is_of_all)| is_of_all || state::restarts_after(container, policy, code))
    };
    let (mut pending_init, mut pending_sidecars) = (0, 0);
    let (mut is_running, mut waiting, mut stopped, mut final_stops, mut succeeded) = (0, 0, 0, 0, 0);

    for (container, status) in spec.init_containers.iter().flatten().zip(inits) {
        if state::is_sidecar(container) {
            if running(status).is_some() {
                is_running += 1;
                if status.started != Some(true) {
                    pending_sidecars += 1;
                }
            } else if last(status).is_none() {
                pending_sidecars += 1;
                waiting += 1;
            }
            continue;
        }
        match last(status) {
            _ if running(status).is_some() => pending_init += 1,
            Some(0) if terminated(status).is_some() => {}
            Some(code) => {
                if code != 0 && !restarts(container, status) {
                    return "Failed";
                }
                pending_init += usize::from(terminated(status).is_none() || code != 0);
            }
            None => pending_init += 1,
        }
    }
    for (container, status) in spec.containers.iter().zip(containers) {
        if running(status).is_some() {
            is_running += 1;
        } else if let Some(code) = last(status) {
            stopped += 1;
            final_stops += usize::from(!restarts(container, status));
            succeeded += usize::from(terminated(status).is_some() && code == 0);
        } else {
            waiting += 1;
        }
    }

    if ((pending_init > 0 || pending_sidecars > 0) && !started_main) || waiting > 0 {
        return "Pending";
    }
    if is_running > 0 && (stopped < containers.len() || !is_terminating) {
        return "Running";
    }
    if stopped > 0 {
        if !is_terminating && stopped != final_stops {
            return "Running";
        }
        return if stopped == succeeded { "Succeeded" } else { "Failed" };
    }
    "Pending"
}

fn condition(kind: &str, is_true: bool, reason: Option<&str>, message: Option<String>) -> PodCondition {
    PodCondition {
        type_: kind.into(),
        status: if is_true { "True" } else { "False" }.into(),
        reason: reason.map(String::from),
        message,
        ..Default::default()
    }
}

fn ready_to_start_containers(pod: &Pod, state: &PodState) -> PodCondition {
    // Upstream gives no reason here, so that a pod's first write looks the same.
    condition("PodReadyToStartContainers", sandbox_needed(pod, state).is_none(), None, None)
}

fn initialized(init: &[Container], statuses: &[ContainerStatus], phase: &str, started_main: bool) -> PodCondition {
    let incomplete: Vec<&str> = init
        .iter()
        .zip(statuses)
        .filter(
            |(container, status)| {
                if state::is_sidecar(container) { status.started != Some(true) } else { !status.ready }
            },
        )
        .map(|(container, _)| container.name.as_str())
        .collect();
    if phase == "Succeeded" {
        return condition("Initialized", true, Some("PodCompleted"), None);
    }
    if started_main || incomplete.is_empty() {
        return condition("Initialized", true, None, None);
    }
    condition(
        "Initialized",
        false,
        Some("ContainersNotInitialized"),
        Some(format!("containers with incomplete status: [{}]", incomplete.join(" "))),
    )
}

fn containers_ready(pod: &Pod, inits: &[ContainerStatus], containers: &[ContainerStatus], phase: &str) -> PodCondition {
    let kind = "ContainersReady";
    match phase {
        "Succeeded" => return condition(kind, false, Some("PodCompleted"), None),
        "Failed" => return condition(kind, false, Some("PodFailed"), None),
        _ => {}
    }
    let sidecars = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .zip(inits)
        .filter(|(container, _)| state::is_sidecar(container))
        .map(|(_, status)| status);
    let unready: Vec<&str> =
        sidecars.chain(containers).filter(|status| !status.ready).map(|status| status.name.as_str()).collect();
    if unready.is_empty() {
        return condition(kind, true, None, None);
    }
    condition(
        kind,
        false,
        Some("ContainersNotReady"),
        Some(format!("containers with unready status: [{}]", unready.join(" "))),
    )
}

fn pod_ready(
    pod: &Pod,
    inits: &[ContainerStatus],
    containers: &[ContainerStatus],
    phase: &str,
    old: &[PodCondition],
) -> PodCondition {
    let ready = containers_ready(pod, inits, containers, phase);
    if ready.status != "True" {
        return PodCondition { type_: "Ready".into(), ..ready };
    }
    let unmet: Vec<String> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten())
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match old.iter().find(|condition| &condition.type_ == kind) {
                None => Some(format!("corresponding condition of pod readiness gate \"{kind}\" does not exist.")),
                Some(found) if found.status != "True" => {
                    Some(format!("the status of pod readiness gate \"{kind}\" is not \"True\", but {}", found.status))
                }
                Some(_) => None,
            }
        })
        .collect();
    if unmet.is_empty() {
        return condition("Ready", true, None, None);
    }
    condition("Ready", false, Some("ReadinessGatesNotReady"), Some(unmet.join(", ")))
}

/// Conditions that are the kubelet's to write.
pub(crate) fn is_ours(kind: &str) -> bool {
    const OURS: [&str; 7] = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
        "DisruptionTarget",
        ALL_RESTARTING,
    ];
    OURS.contains(&kind) || is_of_resize(kind)
}

/// Conditions that go when what they tell is over.
pub(crate) fn is_of_resize(kind: &str) -> bool {
    [resize::PENDING, resize::IN_PROGRESS].contains(&kind)
}

/// Ours replace those of the same type; times of transition move only when the status does; others'
/// conditions (readiness gates) stay.
fn merge_conditions(
    old: Vec<PodCondition>,
    new: Vec<PodCondition>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<PodCondition> {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let mut merged: Vec<PodCondition> = Vec::new();
    for mut condition in new {
        let before = old.iter().find(|c| c.type_ == condition.type_);
        condition.last_transition_time = before
            .filter(|c| c.status == condition.status)
            .and_then(|c| c.last_transition_time.clone())
            .or(Some(Time(now)));
        condition.observed_generation = generation;
        merged.push(condition);
    }
    let kept: Vec<PodCondition> = old.into_iter().filter(|c| !merged.iter().any(|m| m.type_ == c.type_)).collect();
    merged.extend(kept);
    merged
}

#[cfg(test)]
mod tests;
