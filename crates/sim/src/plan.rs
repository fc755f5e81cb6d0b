//! What a kubelet would report next about a pod: decides, never awaits.
//!
//! Pods that restart always run for ever. Others end after a while, well unless they say otherwise: the annotations
//! `hollow.cox.dev/run-seconds` and `hollow.cox.dev/exit-code` of a pod say how long its containers run and how they end.

use std::net::Ipv4Addr;
use std::time::Duration;

use api::time::rfc3339;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const RUN_SECONDS: &str = "hollow.cox.dev/run-seconds";
const EXIT_CODE: &str = "hollow.cox.dev/exit-code";
/// What a container that is told to end and does so by the signal's default reports.
const TERMINATED: i32 = 143;

/// A pod reduced to what a hollow kubelet looks at; thousands are held in memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Pod {
    #[serde(deserialize_with = "api::read::by_table")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: Spec,
    pub(crate) status: Status,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Spec {
    pub(crate) node_name: String,
    restart_policy: String,
    pub(crate) host_network: bool,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    readiness_gates: Vec<Gate>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    image: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Gate {
    condition_type: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: String,
    start_time: Option<Time>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

/// What to do about a pod now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    /// Look again after this.
    Wait(Duration),
    /// Its containers run.
    Start,
    /// Its readiness gates opened or closed.
    Readiness,
    /// Its containers ended with this code.
    Finish(i32),
    /// It ended and was deleted: nothing of it is left.
    Remove,
}

pub(crate) fn next(pod: &Pod, startup: Duration, run_for: Duration, now: Timestamp) -> Step {
    let is_running = matches!(pod.status.phase.as_str(), "Running");
    let has_ended = api::pod::is_terminal_phase(&pod.status.phase);
    if pod.metadata.deletion_timestamp.is_some() {
        // Whoever holds a finalizer wants to know how the pod ended; nobody else would see it.
        let is_held = pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        return match (is_held, has_ended) {
            (true, false) => Step::Finish(TERMINATED),
            // Our part is done; the rest is up to the finalizers.
            (true, true) if pod.metadata.deletion_grace_period_seconds == Some(0) => Step::Nothing,
            _ => Step::Remove,
        };
    }
    if has_ended {
        return Step::Nothing;
    }
    if !is_running {
        let bound = pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        return match left(bound, startup, now) {
            Duration::ZERO => Step::Start,
            delay => Step::Wait(delay),
        };
    }
    if pod.is_ready() != pod.gates_are_open() {
        return Step::Readiness;
    }
    let code = pod.annotation(EXIT_CODE).unwrap_or(0);
    if pod.spec.restart_policy == "Never" || (pod.spec.restart_policy == "OnFailure" && code == 0) {
        let run_for = pod.annotation(RUN_SECONDS).map_or(run_for, Duration::from_secs);
        let started = pod.status.start_time.as_ref().map_or(now, |time| time.0);
        return match left(started, run_for, now) {
            Duration::ZERO => Step::Finish(code),
            delay => Step::Wait(delay),
        };
    }
    Step::Nothing
}

/// What is left of `span` since `since`.
fn left(since: Timestamp, span: Duration, now: Timestamp) -> Duration {
    span.saturating_sub(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

impl Pod {
    fn annotation<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.metadata.annotations.as_ref()?.get(key)?.parse().ok()
    }

    fn is_true(&self, kind: &str) -> bool {
        self.status.conditions.iter().any(|condition| condition.r#type == kind && condition.status == "True")
    }

    fn is_ready(&self) -> bool {
        self.is_true("Ready")
    }

    fn gates_are_open(&self) -> bool {
        self.spec.readiness_gates.iter().all(|gate| self.is_true(&gate.condition_type))
    }

    /// The status of a pod whose containers have just started.
    pub(crate) fn started(&self, host: Ipv4Addr, address: Ipv4Addr, now: Timestamp) -> Value {
        let now = rfc3339(now);
        let condition = |kind: &str, is_true: bool| json!({ "type": kind, "status": if is_true { "True" } else { "False" }, "lastTransitionTime": now });
        let mut status = json!({
            "phase": "Running", "startTime": now,
            "hostIP": host, "hostIPs": [{ "ip": host }], "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [
                condition("PodReadyToStartContainers", true), condition("Initialized", true),
                condition("Ready", self.gates_are_open()), condition("ContainersReady", true),
            ],
            "containerStatuses": self.containers(&self.spec.containers, (true, true), &json!({ "running": { "startedAt": now } })),
        });
        // Kubelets leave out lists that are empty: so do their patches.
        if !self.spec.init_containers.is_empty() {
            let ended = self.containers(&self.spec.init_containers, (true, false), &terminated(0, &now));
            status["initContainerStatuses"] = ended.into();
        }
        status
    }

    /// The status after the readiness gates changed.
    pub(crate) fn readiness(&self, now: Timestamp) -> Value {
        let status = if self.gates_are_open() { "True" } else { "False" };
        json!({ "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": rfc3339(now) }] })
    }

    /// The status of a pod whose containers have ended.
    pub(crate) fn finished(&self, code: i32, now: Timestamp) -> Value {
        let now = rfc3339(now);
        let reason = if code == 0 { "PodCompleted" } else { "PodFailed" };
        let condition =
            |kind: &str| json!({ "type": kind, "status": "False", "reason": reason, "lastTransitionTime": now });
        json!({
            "phase": if code == 0 { "Succeeded" } else { "Failed" },
            "conditions": [condition("Ready"), condition("ContainersReady")],
            "containerStatuses": self.containers(&self.spec.containers, (false, false), &terminated(code, &now)),
        })
    }

    fn containers(&self, containers: &[Container], (ready, started): (bool, bool), state: &Value) -> Vec<Value> {
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        let status = |container: &Container| {
            json!({
                "name": container.name, "image": container.image, "imageID": container.image,
                "containerID": format!("hollow://{uid}/{}", container.name),
                "ready": ready, "started": started, "restartCount": 0, "state": state,
            })
        };
        containers.iter().map(status).collect()
    }
}

fn terminated(code: i32, now: &str) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    json!({ "terminated": { "exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now } })
}

api::read_by_serde!(Pod);

impl client::Object for Pod {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "Pod"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_goes_through_its_life() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let running = |policy: &str, annotations: Value| {
            json!({
                "metadata": { "annotations": annotations }, "spec": { "restartPolicy": policy },
                "status": { "phase": "Running", "startTime": "2026-01-01T00:00:50Z", "conditions": [{ "type": "Ready", "status": "True" }] },
            })
        };
        let deleted = "2026-01-01T00:00:00Z";
        let gated = |gate: &str, ready: &str| {
            json!({
                "spec": { "restartPolicy": "Always", "readinessGates": [{ "conditionType": "g" }] },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }, { "type": "g", "status": gate }] },
            })
        };
        let seconds = |count| Duration::from_secs(count);
        for (object, startup, expected) in [
            (json!({ "status": { "phase": "Pending" } }), 0, Step::Start),
            (json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:58Z" } }), 5, Step::Wait(seconds(3))),
            (running("Always", json!({})), 0, Step::Nothing),
            (running("Never", json!({})), 0, Step::Finish(0)),
            (running("OnFailure", json!({})), 0, Step::Finish(0)),
            (running("Never", json!({ RUN_SECONDS: "30", EXIT_CODE: "3" })), 0, Step::Wait(seconds(20))),
            (running("Never", json!({ EXIT_CODE: "3" })), 0, Step::Finish(3)),
            (running("OnFailure", json!({ EXIT_CODE: "3" })), 0, Step::Nothing),
            (gated("True", "False"), 0, Step::Readiness),
            (gated("False", "True"), 0, Step::Readiness),
            (gated("False", "False"), 0, Step::Nothing),
            (json!({ "status": { "phase": "Succeeded" } }), 0, Step::Nothing),
            (
                json!({ "metadata": { "deletionTimestamp": deleted }, "status": { "phase": "Running" } }),
                0,
                Step::Remove,
            ),
            (
                json!({ "metadata": { "deletionTimestamp": deleted, "finalizers": ["f"] }, "status": { "phase": "Running" } }),
                0,
                Step::Finish(TERMINATED),
            ),
            (
                json!({ "metadata": { "deletionTimestamp": deleted, "finalizers": ["f"] }, "status": { "phase": "Failed" } }),
                0,
                Step::Remove,
            ),
        ] {
            assert_eq!(next(&pod(object.clone()), seconds(startup), Duration::ZERO, now), expected, "{object}");
        }
    }

    #[test]
    fn statuses_name_every_container() {
        let pod = pod(json!({
            "metadata": { "uid": "u" },
            "spec": { "containers": [{ "name": "a", "image": "i" }, { "name": "b", "image": "j" }], "initContainers": [{ "name": "c", "image": "k" }] },
        }));
        let status = pod.started(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, Timestamp::UNIX_EPOCH);
        let names = |field: &str| {
            status[field]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("containerStatuses"), ["a", "b"]);
        assert_eq!(names("initContainerStatuses"), ["c"]);
        let finished = pod.finished(1, Timestamp::UNIX_EPOCH);
        assert_eq!((&finished["phase"], &finished["containerStatuses"][1]["ready"]), (&json!("Failed"), &json!(false)));
    }
}
