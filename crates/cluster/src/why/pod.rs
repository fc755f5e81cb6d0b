//! What keeps a pod from running, being ready, or going away: the first blocker on its way, in the order of that way.
//!
//! Deleted -> scheduled -> node -> init containers -> containers -> ready. An earlier blocker hides later ones, so one
//! answer is enough.

use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Event, Node, Pod, PodCondition};

use super::node::period;
use super::{Cause, node};

/// Decides, never awaits. `events` are about the pod, oldest first; `node` is the one it is bound to, if that exists.
pub(super) fn cause(pod: &Pod, events: &[Event], node: Option<&Node>, now: Timestamp) -> Cause {
    let view = View { pod, events, node, now };
    view.deletion()
        .or_else(|| view.end())
        .or_else(|| view.scheduling())
        .or_else(|| view.node())
        .or_else(|| view.containers())
        .or_else(|| view.readiness())
        .unwrap_or_else(|| Cause::new("nothing blocks it: it is ready"))
}

/// The pod that someone asking after a whole set means: one that is not ready, failed ones first.
pub(super) fn worst(pods: &[Pod]) -> Option<&Pod> {
    let rank = |pod: &&Pod| match phase(pod) {
        "Failed" => 3,
        _ if pod.metadata.deletion_timestamp.is_some() => 1,
        "Succeeded" => 0,
        _ if api::pod::is_ready(pod) => 0,
        _ => 2,
    };
    pods.iter().max_by_key(rank).filter(|pod| rank(pod) > 0)
}

struct View<'a> {
    pod: &'a Pod,
    events: &'a [Event],
    node: Option<&'a Node>,
    now: Timestamp,
}

impl View<'_> {
    fn deletion(&self) -> Option<Cause> {
        let meta = &self.pod.metadata;
        let deadline = meta.deletion_timestamp.as_ref()?;
        let finalizers = meta.finalizers.as_deref().unwrap_or_default();
        let left = deadline.0.duration_since(self.now).as_secs();
        let running: Vec<&str> =
            self.statuses().filter(|status| is_running(status)).map(|status| status.name.as_str()).collect();
        if !running.is_empty() || finalizers.is_empty() {
            if let Some(node) = self.node.filter(|node| !api::node::is_ready(node)) {
                let name = node.metadata.name();
                return Some(
                    Cause::new(format!(
                        "it is being deleted, and node {name} cannot confirm the end of its containers"
                    ))
                    .because(node::cause(node, self.now).summary)
                    .then(format!("cox why node/{name}"))
                    .then(format!("if the node never comes back: cox kubectl delete {} --force", self.name())),
                );
            }
            let containers = if running.is_empty() { "its end".to_owned() } else { running.join(", ") };
            return Some(match left {
                1.. => Cause::new(format!("it is being deleted: {containers} may take {} more to end", period(left)))
                    .because(format!("grace period of {}s", meta.deletion_grace_period_seconds.unwrap_or(30))),
                _ => Cause::new(format!("it is being deleted: {containers} is overdue by {}", period(-left)))
                    .then("cox logs kubelet"),
            });
        }
        Some(
            Cause::new(format!(
                "it is being deleted, and waits for whoever removes finalizer {}",
                finalizers.join(", ")
            ))
            .because(format!("deletion was asked for; its grace period ended {} ago", period(-left)))
            .then("is the controller that owns the finalizer running?"),
        )
    }

    fn end(&self) -> Option<Cause> {
        let status = self.pod.status.as_ref()?;
        match status.phase.as_deref()? {
            "Succeeded" => Some(Cause::new("it has done its work: all containers ended well")),
            "Failed" => {
                let reason = status.reason.clone().unwrap_or_default();
                let mut cause = match reason.as_str() {
                    "" => Cause::new("it has failed and will not be started again"),
                    _ => Cause::new(format!("it has failed: {reason}")),
                };
                cause.evidence.extend(status.message.clone());
                for (container, ended) in self.statuses().filter_map(|status| Some((status, ended(status)?))) {
                    cause = cause.because(format!("container {} {}", container.name, how_it_ended(ended)));
                }
                Some(cause.then(format!("cox kubectl logs {}", self.name())))
            }
            _ => None,
        }
    }

    fn scheduling(&self) -> Option<Cause> {
        let spec = self.pod.spec.as_ref()?;
        if spec.node_name.is_some() {
            return None;
        }
        let gates: Vec<&str> = spec.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str()).collect();
        if !gates.is_empty() {
            return Some(
                Cause::new(format!("it is held back by scheduling gate {}", gates.join(", ")))
                    .then("whoever set the gate removes it when its time has come"),
            );
        }
        let scheduler = spec.scheduler_name.as_deref().unwrap_or("default-scheduler");
        match condition(self.pod, "PodScheduled").filter(|scheduled| scheduled.status == "False") {
            Some(scheduled) => {
                let message = scheduled.message.clone().unwrap_or_default();
                let mut cause = Cause::new("no node can take it");
                cause.next.extend(advice(&message).map(str::to_owned));
                Some(cause.because(message))
            }
            None if scheduler != "default-scheduler" => Some(
                Cause::new(format!("it waits for scheduler {scheduler}"))
                    .because("the cluster's own scheduler leaves it alone")
                    .then("is that scheduler running?"),
            ),
            None => Some(Cause::new("the scheduler has not looked at it yet").then("cox logs scheduler")),
        }
    }

    fn node(&self) -> Option<Cause> {
        let name = self.pod.spec.as_ref()?.node_name.as_deref()?;
        match self.node {
            None => Some(
                Cause::new(format!("its node {name} does not exist"))
                    .then("its controller replaces it once it is deleted")
                    .then(format!("cox kubectl delete {} --force", self.name())),
            ),
            Some(node) if !api::node::is_ready(node) => {
                let of_node = node::cause(node, self.now);
                let mut cause = Cause::new(format!("its node {name}: {}", of_node.summary));
                (cause.evidence, cause.next) = (of_node.evidence, of_node.next);
                Some(cause)
            }
            Some(_) => None,
        }
    }

    fn containers(&self) -> Option<Cause> {
        let status = self.pod.status.as_ref()?;
        let init = status.init_container_statuses.iter().flatten().map(|status| ("init container", status));
        let main = status.container_statuses.iter().flatten().map(|status| ("container", status));
        init.chain(main).find_map(|(role, container)| self.container(role, container)).or_else(|| {
            // Nothing is reported yet: the sandbox or the volumes are being made.
            let known = status.container_statuses.as_ref().is_some_and(|statuses| !statuses.is_empty());
            (!known).then(|| self.creating("its containers"))
        })
    }

    fn container(&self, role: &str, status: &ContainerStatus) -> Option<Cause> {
        let who = format!("{role} {}", status.name);
        let state = status.state.as_ref();
        if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
            let (reason, message) = (waiting.reason.as_deref().unwrap_or_default(), waiting.message.clone());
            let mut cause = match reason {
                "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                    let cause = Cause::new(format!("{who}: image {} cannot be had", status.image));
                    // The first failure says why; a back-off only says that it goes on.
                    let newest = self.newest(&["Failed"], "image").or(message.clone());
                    let mut cause = newest.into_iter().fold(cause, Cause::because);
                    cause.next.push("check the image's name, the registry's mirrors and the pull secrets".into());
                    cause.next.push("without a registry: cox image import ARCHIVE on the node".into());
                    return Some(cause);
                }
                "CreateContainerConfigError" => {
                    Cause::new(format!("{who}: something it refers to is missing or wrong"))
                }
                "CrashLoopBackOff" => {
                    let cause = Cause::new(format!("{who} ends again and again: {} restarts", status.restart_count));
                    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
                    let cause = last
                        .into_iter()
                        .fold(cause, |cause, ended| cause.because(format!("the last time it {}", how_it_ended(ended))));
                    cause.then(format!("cox kubectl logs {} -c {} --previous", self.name(), status.name))
                }
                "PodInitializing" => return None,
                "ContainerCreating" | "" => return Some(self.creating(&who)),
                other => Cause::new(format!("{who}: {other}")),
            };
            cause.evidence.extend(message.filter(|_| reason != "CrashLoopBackOff"));
            return Some(cause);
        }
        if let Some(failed) = state.and_then(|state| state.terminated.as_ref()).filter(|ended| ended.exit_code != 0) {
            return Some(Cause::new(format!("{who} {}", how_it_ended(failed))).then(format!(
                "cox kubectl logs {} -c {}",
                self.name(),
                status.name
            )));
        }
        if role == "init container"
            && state.is_some_and(|state| state.running.is_some())
            && status.started != Some(true)
        {
            return Some(Cause::new(format!("{who} is still at work; the others wait for its end")).then(format!(
                "cox kubectl logs {} -c {}",
                self.name(),
                status.name
            )));
        }
        None
    }

    /// Between the node's promise and the first process: sandbox, network, volumes, images.
    fn creating(&self, who: &str) -> Cause {
        let reasons = [
            "FailedMount",
            "FailedMapVolume",
            "FailedAttachVolume",
            "FailedCreatePodSandBox",
            "NetworkNotReady",
            "Failed",
        ];
        match self.newest(&reasons, "") {
            Some(message) => Cause::new(format!("{who} cannot be created")).because(message).then("cox logs kubelet"),
            None => Cause::new(format!("{who}: being created")).then("cox why again in a few seconds"),
        }
    }

    fn readiness(&self) -> Option<Cause> {
        let ready = condition(self.pod, "Ready").filter(|ready| ready.status != "True")?;
        let unready = self.statuses().find(|status| !status.ready);
        let Some(container) = unready else {
            let gates = self.pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
            let closed: Vec<&str> = gates
                .iter()
                .map(|gate| gate.condition_type.as_str())
                .filter(|gate| condition(self.pod, gate).is_none_or(|condition| condition.status != "True"))
                .collect();
            return Some(match closed.as_slice() {
                [] => Cause::new("it is not ready").because(ready.message.clone().unwrap_or_default()),
                _ => Cause::new(format!("its containers are ready; readiness gate {} is closed", closed.join(", ")))
                    .then("whoever owns the gate sets its condition to True"),
            });
        };
        let probe = if container.started == Some(false) { "startup" } else { "readiness" };
        let mut cause =
            Cause::new(format!("container {} runs, and its {probe} probe does not succeed", container.name));
        cause.evidence.extend(self.newest(&["Unhealthy"], ""));
        Some(cause.then(format!("cox kubectl logs {} -c {}", self.name(), container.name)))
    }

    fn statuses(&self) -> impl Iterator<Item = &ContainerStatus> {
        let status = self.pod.status.as_ref();
        status.into_iter().flat_map(|status| status.container_statuses.iter().flatten())
    }

    /// The message of the newest event with one of these reasons that mentions `word`.
    fn newest(&self, reasons: &[&str], word: &str) -> Option<String> {
        let fits = |event: &&Event| {
            reasons.contains(&event.reason.as_deref().unwrap_or_default())
                && event
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains(word) && !message.starts_with("Error: "))
        };
        self.events.iter().rev().find(fits)?.message.clone()
    }

    /// The pod, as arguments of kubectl.
    fn name(&self) -> String {
        let meta = &self.pod.metadata;
        let name = meta.name();
        format!("pod/{name} -n {}", meta.namespace.as_deref().unwrap_or("default"))
    }
}

/// What usually helps, by the words of the scheduler.
fn advice(message: &str) -> impl Iterator<Item = &'static str> {
    const ADVICE: &[(&str, &str)] = &[
        ("Insufficient", "ask for less, free room, or add a node: cox kubectl describe nodes"),
        (
            "untolerated taint",
            "a taint node.kubernetes.io/… says what its node lacks: cox why node/NODE. Tolerate any other, or remove it: \
             cox kubectl taint node NODE KEY-",
        ),
        (
            "node affinity/selector",
            "label a node as the pod asks for, or relax its selector: cox kubectl get nodes --show-labels",
        ),
        ("were unschedulable", "cox kubectl uncordon NODE"),
        ("free ports", "another pod holds the host port: free it, or let the pod do without a host port"),
        ("PersistentVolumeClaim", "cox kubectl describe pvc"),
        ("persistentvolumeclaim", "cox kubectl describe pvc"),
        ("anti-affinity rules", "add a node, or relax the anti-affinity"),
        ("topology spread constraints", "add a node in the short domain, or relax the constraint"),
        ("no nodes available", "start a node: cox status"),
    ];
    let found: Vec<&'static str> =
        ADVICE.iter().filter(|(words, _)| message.contains(words)).map(|(_, step)| *step).collect();
    found.into_iter()
}

fn how_it_ended(ended: &ContainerStateTerminated) -> String {
    let reason = ended.reason.as_deref().unwrap_or("Error");
    let mut text = match reason {
        "OOMKilled" => "was killed: it used more memory than its limit".to_owned(),
        _ => format!("ended with exit code {} ({reason})", ended.exit_code),
    };
    if let Some(message) = ended.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
        text.push_str(&format!(": {message}"));
    }
    text
}

fn ended(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn explain(meta: Value, spec: Value, status: Value, events: &[(&str, &str)]) -> Cause {
        let mut metadata = json!({"name": "web", "namespace": "default"});
        metadata.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap();
        let events: Vec<Event> = events
            .iter()
            .map(|(reason, message)| Event {
                reason: Some((*reason).into()),
                message: Some((*message).into()),
                ..Event::default()
            })
            .collect();
        let node = json!({"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let node: Node = serde_json::from_value(node).unwrap();
        cause(&pod, &events, Some(&node), NOW.parse().unwrap())
    }

    fn on_node(state: Value) -> Value {
        json!({"phase": "Pending", "containerStatuses": [
            {"name": "c", "image": "nginx", "imageID": "", "ready": false, "restartCount": 4, "state": state,
             "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]})
    }

    #[test]
    fn the_first_blocker_is_named() {
        let bound = || json!({"nodeName": "n1", "containers": []});
        let free = || json!({"containers": []});
        let waiting = |reason: &str| on_node(json!({"waiting": {"reason": reason, "message": "told so"}}));
        let deleted = |at: &str| json!({"deletionTimestamp": at, "deletionGracePeriodSeconds": 30});
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true,
            "restartCount": 0, "state": {"running": {}}}]});
        let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient cpu."}]});
        for (meta, spec, status, events, expected, evidence) in [
            (json!({}), free(), json!({}), &[][..], "the scheduler has not looked at it yet", None),
            (
                json!({}),
                free(),
                unschedulable,
                &[],
                "no node can take it",
                Some("0/1 nodes are available: 1 Insufficient cpu."),
            ),
            (
                json!({}),
                json!({"containers": [], "schedulerName": "mine"}),
                json!({}),
                &[],
                "it waits for scheduler mine",
                Some("the cluster's own scheduler leaves it alone"),
            ),
            (
                json!({}),
                json!({"containers": [], "schedulingGates": [{"name": "g"}]}),
                json!({}),
                &[],
                "it is held back by scheduling gate g",
                None,
            ),
            (
                json!({}),
                bound(),
                waiting("ImagePullBackOff"),
                &[("Failed", "Failed to pull image \"nginx\": not found"), ("Failed", "Error: ImagePullBackOff")],
                "container c: image nginx cannot be had",
                Some("Failed to pull image \"nginx\": not found"),
            ),
            (
                json!({}),
                bound(),
                waiting("CrashLoopBackOff"),
                &[],
                "container c ends again and again: 4 restarts",
                Some("the last time it was killed: it used more memory than its limit"),
            ),
            (
                json!({}),
                bound(),
                waiting("CreateContainerConfigError"),
                &[],
                "container c: something it refers to is missing or wrong",
                Some("told so"),
            ),
            (
                json!({}),
                bound(),
                waiting("ContainerCreating"),
                &[("FailedMount", "secret \"s\" not found")],
                "container c cannot be created",
                Some("secret \"s\" not found"),
            ),
            (
                json!({}),
                bound(),
                waiting("ContainerCreating"),
                &[("FailedMapVolume", "no such device")],
                "container c cannot be created",
                Some("no such device"),
            ),
            (
                deleted("2026-01-01T00:10:20Z"),
                bound(),
                running.clone(),
                &[],
                "it is being deleted: c may take 20s more to end",
                Some("grace period of 30s"),
            ),
            (
                deleted("2026-01-01T00:09:00Z"),
                bound(),
                running.clone(),
                &[],
                "it is being deleted: c is overdue by 60s",
                None,
            ),
            (
                json!({}),
                bound(),
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                &[],
                "it has failed: Evicted",
                Some("low on memory"),
            ),
            (json!({}), bound(), running, &[], "nothing blocks it: it is ready", None),
        ] {
            let cause = explain(meta, spec, status, events);
            assert_eq!(
                (cause.summary.as_str(), cause.evidence.first().map(String::as_str)),
                (expected, evidence),
                "{cause:?}"
            );
        }
    }

    #[test]
    fn a_probe_that_fails_is_quoted() {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "started": true, "restartCount": 0,
                "state": {"running": {}}}]});
        let events = [("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 500")];
        let cause = explain(json!({}), json!({"nodeName": "n1", "containers": []}), status, &events);
        assert_eq!(cause.summary, "container c runs, and its readiness probe does not succeed");
        assert_eq!(cause.evidence, [events[0].1]);
    }

    #[test]
    fn the_scheduler_s_words_bring_advice() {
        let message = "0/2 nodes are available: 1 Insufficient memory, 1 node(s) had untolerated taint(s).";
        assert_eq!(advice(message).count(), 2);
    }

    #[test]
    fn the_worst_pod_of_a_set_is_the_one_to_explain() {
        let pod = |name: &str, phase: &str, ready: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": name}, "status": {"phase": phase,
                "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        let name = |pods: &[Pod]| worst(pods).and_then(|pod| pod.metadata.name.clone());
        let (fine, slow, dead) =
            (pod("a", "Running", "True"), pod("b", "Running", "False"), pod("c", "Failed", "False"));
        assert_eq!(name(&[fine.clone(), slow.clone()]), Some("b".into()));
        assert_eq!(name(&[dead, slow, fine.clone()]), Some("c".into()));
        assert_eq!(name(&[fine]), None);
    }
}
