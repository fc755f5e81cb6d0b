//! Pod: what the scheduler places and the kubelet runs.

use api::field::{FieldErrors, Path};
use api::read::{Fields, Reader};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodCondition, PodReadinessGate, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::pod_spec::defaults;
use crate::column::Column;
use crate::unset::{items, or_empty, text};
use crate::{Action, Call, Grace, SelectableField, Strategy};

pub struct PodStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Ready", "How many containers are ready, of how many."),
    Column::string("Status", "The state of the containers taken together."),
    Column::string("Restarts", "How often containers were restarted, and when last."),
    Column::AGE,
    Column::string("IP", "The address of the pod.").wide(),
    Column::string("Node", "The node the pod was placed on.").wide(),
    Column::string("Nominated Node", "The node on which room is being made for the pod.").wide(),
    Column::string("Readiness Gates", "How many readiness gates are true, of how many.").wide(),
];

const SCHEDULING_GATED: &str = "SchedulingGated";

impl Strategy for PodStrategy {
    type Object = Pod;

    fn apply_defaults(&self, pod: &mut Pod) {
        defaults::pod(pod);
    }

    fn with_part(&self, action: Action, new: &Pod, old: &Pod, _: Timestamp) -> Option<Pod> {
        super::pod_parts::with_part(action, new, old)
    }

    fn prepare_for_part_update(&self, action: Action, new: &mut Pod, old: &Pod) {
        super::pod_parts::count(action, new, old);
    }

    fn validate_part_update(&self, action: Action, new: &Pod, old: &Pod) -> FieldErrors {
        super::pod_parts::validate(action, new, old)
    }

    fn prepare_for_create(&self, call: &Call<'_>, pod: &mut Pod) {
        pod.metadata.generation = Some(1);
        super::pod_spec::label_keys::merge(pod);
        let mut status = PodStatus {
            phase: Some("Pending".to_owned()),
            qos_class: Some(api::pod::qos::of_spec(pod.spec.as_ref()).to_string()),
            ..PodStatus::default()
        };
        let gated = pod.spec.as_ref().is_some_and(|spec| !items(&spec.scheduling_gates).is_empty());
        if gated {
            status.conditions = Some(vec![PodCondition {
                type_: "PodScheduled".to_owned(),
                status: "False".to_owned(),
                reason: Some(SCHEDULING_GATED.to_owned()),
                message: Some("Scheduling is blocked due to non-empty scheduling gates".to_owned()),
                last_transition_time: Some(Time(call.now)),
                ..PodCondition::default()
            }]);
        }
        pod.status = Some(status);
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut Pod, old: &Pod) {
        let generation = old.metadata.generation.unwrap_or(0);
        new.metadata.generation = Some(if new.spec == old.spec { generation } else { generation + 1 });
    }

    fn prepare_for_status_update(&self, _: &Call<'_>, new: &mut Pod, old: &Pod) {
        // Never let a writer of status lose the marks that only the API server sets.
        new.metadata.deletion_timestamp.clone_from(&old.metadata.deletion_timestamp);
        if let (Some(new), Some(old)) = (&mut new.status, &old.status)
            && new.qos_class.is_none()
        {
            new.qos_class.clone_from(&old.qos_class);
        }
        // Whose a pod is, is not what a node reports.
        new.metadata.owner_references.clone_from(&old.metadata.owner_references);
        // Only the API server moves the generation of a pod.
        new.metadata.generation = old.metadata.generation;
    }

    fn validate_create(&self, pod: &Pod) -> FieldErrors {
        let mut errors = super::pod_validation::create(pod);
        super::pod_spec::label_keys::check_size(&mut errors, pod);
        errors
    }

    fn validate_update(&self, new: &Pod, old: &Pod) -> FieldErrors {
        super::pod_update::update(new, old)
    }

    fn validate_status_update(&self, new: &Pod, old: &Pod) -> FieldErrors {
        super::pod_validation::status_update(new, old)
    }

    fn warnings(&self, pod: &Pod, old: Option<&Pod>) -> Vec<String> {
        if old.is_some() {
            return Vec::new();
        }
        let mut warnings = super::pod_spec::spec_warnings(&Path::ROOT, &pod.metadata, pod.spec.as_ref());
        let name = or_empty(&pod.metadata.name);
        let messages = api::validation::dns1123_label(name);
        if !name.is_empty() && !messages.is_empty() {
            warnings.push(format!(
                "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
                messages.join(" ")
            ));
        }
        warnings
    }

    fn grace(&self, pod: &Pod, requested: Option<i64>) -> Grace {
        let spec = pod.spec.as_ref();
        let default = spec.and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(0);
        let placed = spec.is_some_and(|spec| text(&spec.node_name).is_some());
        if !placed || api::pod::is_terminal(pod) {
            return Grace::Seconds(0);
        }
        match requested.unwrap_or(default) {
            // A negative period means "as short as possible, but told".
            ..0 => Grace::Seconds(1),
            seconds => Grace::Seconds(seconds),
        }
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const {
            &[
                SelectableField::new("spec.nodeName", &["spec", "nodeName"]),
                SelectableField::new("spec.restartPolicy", &["spec", "restartPolicy"]),
                SelectableField::new("spec.schedulerName", &["spec", "schedulerName"]),
                SelectableField::new("spec.serviceAccountName", &["spec", "serviceAccountName"]),
                SelectableField::new("spec.hostNetwork", &["spec", "hostNetwork"]).or("false"),
                SelectableField::new("status.phase", &["status", "phase"]),
                SelectableField::new("status.podIP", &["status", "podIP"]),
                SelectableField::new("status.nominatedNodeName", &["status", "nominatedNodeName"]),
            ]
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, pod: &Pod, now: Timestamp) -> Vec<Value> {
        let (none, no_status) = (PodSpec::default(), PodStatus::default());
        let spec = pod.spec.as_ref().unwrap_or(&none);
        let init = items(&spec.init_containers).iter();
        let shown = Shown {
            name: or_empty(&pod.metadata.name),
            created: pod.metadata.creation_timestamp.as_ref(),
            is_deleted: pod.metadata.deletion_timestamp.is_some(),
            node: text(&spec.node_name),
            containers: spec.containers.len(),
            init: init.map(|container| (&*container.name, api::pod::is_sidecar(container))).collect(),
            gates: items(&spec.readiness_gates).iter().map(|gate| &*gate.condition_type).collect(),
            status: pod.status.as_ref().unwrap_or(&no_status),
        };
        shown.cells(now)
    }

    fn cells_of(&self, json: &[u8], now: Timestamp) -> Result<Vec<Value>, serde_json::Error> {
        let mut row = Row::default();
        api::read::from_slice_by(json, |from| from.object(&mut row))?;
        let Row { metadata, spec, status } = &row;
        let shown = Shown {
            name: or_empty(&metadata.name),
            created: metadata.created.as_ref(),
            is_deleted: metadata.is_deleted,
            node: text(&spec.node_name),
            containers: spec.containers,
            init: spec.init.iter().map(|one| (&*one.name, one.restart_policy == "Always")).collect(),
            gates: spec.gates.iter().map(|gate| &*gate.condition_type).collect(),
            status,
        };
        Ok(shown.cells(now))
    }
}

/// As much of an encoded pod as a row of the table shows: a list of all pods is made of it.
#[derive(Default)]
struct Row {
    metadata: RowMetadata,
    spec: RowSpec,
    status: PodStatus,
}

#[derive(Default)]
struct RowMetadata {
    name: Option<String>,
    created: Option<Time>,
    is_deleted: bool,
}

#[derive(Default)]
struct RowSpec {
    node_name: Option<String>,
    containers: usize,
    init: Vec<RowContainer>,
    gates: Vec<PodReadinessGate>,
}

#[derive(Default)]
struct RowContainer {
    name: String,
    restart_policy: String,
}

impl Fields for Row {
    fn name(&self) -> &'static str {
        "Pod"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        let part: &mut dyn Fields = match name {
            "metadata" => &mut self.metadata,
            "spec" => &mut self.spec,
            "status" => return from.field(&mut self.status),
            _ => return from.skip(),
        };
        if from.is_null()? { Ok(()) } else { from.object(part) }
    }
}

impl Fields for RowMetadata {
    fn name(&self) -> &'static str {
        "ObjectMeta"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "name" => from.field(&mut self.name),
            "creationTimestamp" => from.field(&mut self.created),
            "deletionTimestamp" => {
                self.is_deleted = !from.is_null()?;
                if self.is_deleted { from.skip() } else { Ok(()) }
            }
            _ => from.skip(),
        }
    }
}

impl Fields for RowSpec {
    fn name(&self) -> &'static str {
        "PodSpec"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "nodeName" => from.field(&mut self.node_name),
            "readinessGates" => from.field(&mut self.gates),
            "containers" | "initContainers" if from.is_null()? => Ok(()),
            "containers" => from.items(&mut |from| {
                self.containers += 1;
                from.skip()
            }),
            "initContainers" => from.items(&mut |from| {
                let mut container = RowContainer::default();
                from.object(&mut container)?;
                self.init.push(container);
                Ok(())
            }),
            _ => from.skip(),
        }
    }
}

impl Fields for RowContainer {
    fn name(&self) -> &'static str {
        "Container"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "name" => from.field(&mut self.name),
            "restartPolicy" => from.field(&mut self.restart_policy),
            _ => from.skip(),
        }
    }
}

/// What of a pod is shown.
struct Shown<'a> {
    name: &'a str,
    created: Option<&'a Time>,
    is_deleted: bool,
    node: Option<&'a str>,
    containers: usize,
    /// Names of init containers, and whether they keep running.
    init: Vec<(&'a str, bool)>,
    /// The conditions of readiness gates.
    gates: Vec<&'a str>,
    status: &'a PodStatus,
}

impl Shown<'_> {
    fn cells(&self, now: Timestamp) -> Vec<Value> {
        let status = self.status;
        let summary = Summary::of(self);
        let restarts = match summary.last_restart {
            Some(at) if summary.restarts != 0 => {
                let since = api::duration::human(now.as_second() - at.as_second());
                format!("{} ({since} ago)", summary.restarts)
            }
            _ => summary.restarts.to_string(),
        };
        let ip = items(&status.pod_ips).first().map(|ip| &*ip.ip).filter(|ip| !ip.is_empty());
        let is_open = |gate: &&&str| {
            let found = items(&status.conditions).iter().find(|condition| condition.type_ == ***gate);
            found.is_some_and(|condition| condition.status == "True")
        };
        let open = self.gates.iter().filter(is_open).count();
        let or_none = |text: Option<&str>| json!(text.unwrap_or("<none>"));
        vec![
            json!(self.name),
            json!(format!("{}/{}", summary.ready, summary.total)),
            json!(summary.reason),
            json!(restarts),
            crate::column::age(self.created, now),
            or_none(ip),
            or_none(self.node),
            or_none(text(&status.nominated_node_name)),
            if self.gates.is_empty() { json!("<none>") } else { json!(format!("{open}/{}", self.gates.len())) },
        ]
    }
}

/// What `kubectl get pods` says about a pod in one line (`printPod`, v1.36).
struct Summary {
    ready: usize,
    total: usize,
    restarts: i32,
    last_restart: Option<Timestamp>,
    reason: String,
}

impl Summary {
    fn of(shown: &Shown<'_>) -> Self {
        let Shown { status, init, .. } = shown;
        let conditions = items(&status.conditions);
        let phase = or_empty(&status.phase);
        let mut reason = text(&status.reason).unwrap_or(phase).to_owned();
        if conditions.iter().any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some(SCHEDULING_GATED)) {
            reason = SCHEDULING_GATED.to_owned();
        }
        let is_sidecar = |name: &str| init.contains(&(name, true));
        let total = shown.containers + init.iter().filter(|(_, is_sidecar)| *is_sidecar).count();
        let mut summary = Self { ready: 0, total, restarts: 0, last_restart: None, reason };

        let (mut sidecar_restarts, mut sidecar_last) = (0, None);
        let no_state = ContainerState::default();
        let mut initializing = false;
        for (i, container) in items(&status.init_container_statuses).iter().enumerate() {
            let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let last = last.and_then(|terminated| terminated.finished_at.as_ref()).map(|time| time.0);
            summary.restarts = summary.restarts.saturating_add(container.restart_count);
            summary.last_restart = summary.last_restart.max(last);
            let sidecar = is_sidecar(&container.name);
            if sidecar {
                sidecar_restarts = container.restart_count.saturating_add(sidecar_restarts);
                sidecar_last = sidecar_last.max(last);
            }
            let state = container.state.as_ref().unwrap_or(&no_state);
            match (&state.terminated, &state.waiting) {
                (Some(terminated), _) if terminated.exit_code == 0 => continue,
                _ if sidecar && container.started == Some(true) => {
                    summary.ready += usize::from(container.ready);
                    continue;
                }
                (Some(terminated), _) => {
                    let why = match (text(&terminated.reason), terminated.signal.unwrap_or(0)) {
                        (Some(reason), _) => reason.to_owned(),
                        (None, 0) => format!("ExitCode:{}", terminated.exit_code),
                        (None, signal) => format!("Signal:{signal}"),
                    };
                    summary.reason = format!("Init:{why}");
                }
                (None, Some(waiting)) if !matches!(or_empty(&waiting.reason), "" | "PodInitializing") => {
                    summary.reason = format!("Init:{}", or_empty(&waiting.reason));
                }
                _ => summary.reason = format!("Init:{i}/{}", init.len()),
            }
            initializing = true;
            break;
        }

        let is_true = |wanted: &str| conditions.iter().any(|c| c.type_ == wanted && c.status == "True");
        if !initializing || is_true("Initialized") {
            summary.restarts = sidecar_restarts;
            summary.last_restart = sidecar_last;
            summary.main_containers(status, is_true("Ready"));
        }
        if shown.is_deleted {
            if status.reason.as_deref() == Some("NodeLost") {
                summary.reason = "Unknown".to_owned();
            } else if !api::pod::is_terminal_phase(phase) {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    fn main_containers(&mut self, status: &PodStatus, pod_ready: bool) {
        let mut running = false;
        let mut failure = None;
        let no_state = ContainerState::default();
        for container in items(&status.container_statuses).iter().rev() {
            self.restarts = self.restarts.saturating_add(container.restart_count);
            let last = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let last = last.and_then(|terminated| terminated.finished_at.as_ref()).map(|time| time.0);
            self.last_restart = self.last_restart.max(last);
            let state = container.state.as_ref().unwrap_or(&no_state);
            let waiting = state.waiting.as_ref().and_then(|waiting| text(&waiting.reason));
            if let Some(waiting) = waiting {
                self.reason = waiting.to_owned();
            } else if let Some(terminated) = &state.terminated {
                self.reason = match (text(&terminated.reason), terminated.signal.unwrap_or(0)) {
                    (Some(reason), _) => reason.to_owned(),
                    (None, 0) => format!("ExitCode:{}", terminated.exit_code),
                    (None, signal) => format!("Signal:{signal}"),
                };
                if terminated.exit_code != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if container.ready && state.running.is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && pod_ready {
                self.reason = "Running".to_owned();
            } else if let Some(failure) = failure {
                self.reason = failure;
            } else if running {
                self.reason = "NotReady".to_owned();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pod: Value) -> Vec<Value> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        PodStrategy.cells(&pod, "2026-01-01T00:10:00Z".parse().unwrap())
    }

    #[test]
    fn status_column_reads_like_kubectl() {
        for (status, ready, reason, restarts) in [
            (json!({"phase": "Pending"}), "0/1", "Pending", "0"),
            (
                json!({"phase": "Running", "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2,
                    "image": "", "imageID": "", "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:05:00Z"}}}]}),
                "1/1",
                "Running",
                "2 (5m ago)",
            ),
            (
                json!({"phase": "Pending", "containerStatuses": [{"name": "a", "ready": false, "restartCount": 0,
                    "image": "", "imageID": "", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
                "0/1",
                "ImagePullBackOff",
                "0",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [{"name": "a", "ready": false, "restartCount": 0,
                    "image": "", "imageID": "", "state": {"terminated": {"exitCode": 137, "signal": 9}}}]}),
                "0/1",
                "Signal:9",
                "0",
            ),
        ] {
            let cells =
                row(json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a"}]}, "status": status}));
            assert_eq!((&cells[1], &cells[2], &cells[3]), (&json!(ready), &json!(reason), &json!(restarts)));
        }
    }

    #[test]
    fn grace_depends_on_where_the_pod_is() {
        let pod = |node: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "spec": {"nodeName": node, "containers": [], "terminationGracePeriodSeconds": 30},
                "status": {"phase": phase}
            }))
            .unwrap()
        };
        for (pod, requested, expected) in [
            (pod("", "Pending"), None, 0),
            (pod("n", "Running"), None, 30),
            (pod("n", "Running"), Some(5), 5),
            (pod("n", "Running"), Some(0), 0),
            (pod("n", "Running"), Some(-1), 1),
            (pod("n", "Succeeded"), None, 0),
        ] {
            assert_eq!(PodStrategy.grace(&pod, requested), Grace::Seconds(expected));
        }
    }
}
