//! Sends pod statuses to the API, and the last delete of a pod that has ended.
//!
//! Flow: workers hand over what they computed -> here, the latest per pod -> PATCH pods/status. A slow
//! or absent API server delays what is shown, never what runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use client::metrics::panics;
use client::{Api, Client, DeleteParams, Patch, Taken, WorkQueue};
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use trace::{Stage, Work};

use crate::state;
use crate::status::{is_of_resize, is_ours};

/// Writers at work at once; one pod is never written by two.
const WRITERS: usize = 4;
/// A write that failed is tried again after this at the latest: an API server that comes back is told soon.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How long what others have written over stays before it is written again: they may do the same once more.
const OVERRULED_INTERVAL: Duration = Duration::from_secs(10);
/// What the node controller says of pods while nothing is heard of their node.
const READINESS: [&str; 2] = ["Ready", "ContainersReady"];
/// Who works here, where panics are counted.
const WORKER: &str = "kubelet status";

pub(crate) struct StatusWriter {
    client: Client,
    queue: WorkQueue<String>,
    entries: Mutex<HashMap<String, Entry>>,
    endings: Mutex<BTreeMap<Ending, u64>>,
}

/// How a container ended: what kind it was, its exit code and the reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ending {
    pub(crate) container_type: &'static str,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
}

struct Entry {
    namespace: String,
    name: String,
    /// The uid the API knows the pod by; differs from the key for static pods.
    api_uid: String,
    wanted: Option<PodStatus>,
    /// What the API has, as far as we know.
    sent: Value,
    /// The pod's version with that.
    sent_version: u64,
    delete: bool,
}

impl StatusWriter {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        Arc::new(StatusWriter {
            client,
            queue: WorkQueue::called(WORKER),
            entries: Mutex::new(HashMap::new()),
            endings: Mutex::new(BTreeMap::new()),
        })
    }

    /// Notes the newest status. `pod` is the API's object (the mirror, for a static pod).
    pub(crate) fn set(&self, key: &str, pod: &Pod, status: PodStatus) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(key.to_string()).or_insert_with(|| Entry::of(pod));
        let ended = endings(&entry.latest().unwrap_or_default(), &status);
        if entry.api_uid != state::uid(pod) {
            // A static pod got its mirror, or a new one.
            *entry = Entry::of(pod);
        }
        entry.wanted = Some(status);
        drop(entries);
        let mut counts = self.endings.lock();
        ended.into_iter().for_each(|ending| *counts.entry(ending).or_default() += 1);
        drop(counts);
        self.queue.add(key.to_string());
    }

    /// The API shows the pod like this. A readiness that is not the one it was told is written again soon (`needsReconcile`, v1.36).
    pub(crate) fn seen(&self, pod: &Pod) {
        let (uid, version) = (state::uid(pod), state::version(&pod.metadata));
        let mut entries = self.entries.lock();
        // A static pod's has another key than the uid of its mirror.
        let shown = entries.iter_mut().find(|(_, entry)| entry.api_uid == uid && version >= entry.sent_version);
        if let Some((key, entry)) = shown
            && entry.note_shown(pod)
        {
            self.queue.add_after(key.clone(), OVERRULED_INTERVAL);
        }
    }

    /// How many containers ended in which way since the kubelet started.
    pub(crate) fn endings(&self) -> BTreeMap<Ending, u64> {
        self.endings.lock().clone()
    }

    /// After the last status: deletes the object for good.
    pub(crate) fn delete(&self, key: &str, pod: &Pod) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(key.to_string()).or_insert_with(|| Entry::of(pod));
        entry.delete = true;
        drop(entries);
        self.queue.add(key.to_string());
    }

    pub(crate) fn forget(&self, key: &str) {
        self.entries.lock().remove(key);
    }

    /// The newest status of a pod, sent or not.
    pub(crate) fn latest(&self, key: &str) -> Option<PodStatus> {
        self.entries.lock().get(key)?.latest()
    }

    /// Whether the newest status says that a pod has run to its end, and all of its containers with it.
    pub(crate) fn is_terminal(&self, key: &str) -> bool {
        self.entries.lock().get(key).is_some_and(Entry::is_terminal)
    }

    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..WRITERS {
            let writer = self.clone();
            writers.spawn(FutureExt::boxed(async move {
                while let Some(Taken { key, context }) = writer.queue.take().await {
                    let mut work = Work::caused(&context, Stage::Status, state::ACTOR, writer.traced_name(&key));
                    // A status that cannot be written must not keep others from being.
                    match work.run(panics::catch_future(WORKER, Box::pin(writer.write(&key)))).await {
                        Some(Ok(())) => {
                            work.end();
                            writer.queue.forget(&key);
                        }
                        Some(Err(error)) => {
                            tracing::warn!(pod = key, %error, "pod status not written, will retry");
                            writer.queue.add_rate_limited_up_to(key.clone(), MAX_RETRY_INTERVAL);
                            work.fail(error);
                        }
                        None => {
                            tracing::error!(pod = key, "writing a pod status panicked, will retry");
                            writer.queue.add_rate_limited_up_to(key.clone(), MAX_RETRY_INTERVAL);
                            work.fail("panicked");
                        }
                    }
                    writer.queue.done(&key);
                }
            }));
        }
        stop.cancelled().await;
        self.queue.shut_down();
        while writers.join_next().await.is_some() {}
    }

    fn traced_name(&self, key: &str) -> String {
        let entries = self.entries.lock();
        entries.get(key).map_or_else(String::new, |entry| format!("pods/{}/{}", entry.namespace, entry.name))
    }

    async fn write(&self, key: &str) -> Result<(), client::Error> {
        let work = {
            let entries = self.entries.lock();
            let Some(entry) = entries.get(key) else { return Ok(()) };
            let wanted = entry.wanted.as_ref().and_then(|status| api::codec::to_value(status).ok());
            (
                entry.namespace.clone(),
                entry.name.clone(),
                entry.api_uid.clone(),
                wanted,
                entry.sent.clone(),
                entry.delete,
            )
        };
        let (namespace, name, uid, wanted, sent, delete) = work;
        let api = self.client.namespaced::<Pod>(&namespace);
        if let Some(wanted) = wanted {
            let mut written = None;
            if let Some(status) = difference(&sent, &wanted) {
                let patch = Patch::strategic(json!({"metadata": {"uid": uid}, "status": status}));
                match api.patch_status(&name, &patch).await {
                    Ok(pod) => written = Some(pod),
                    Err(error) if is_gone(&api, &name, &uid, &error).await? => {
                        tracing::debug!(pod = key, %error, "status no longer wanted");
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut entries = self.entries.lock();
            // A mirror made meanwhile has not been told anything.
            if let Some(entry) = entries.get_mut(key).filter(|entry| entry.api_uid == uid) {
                entry.sent = wanted;
                if let Some(pod) = written {
                    entry.sent_version = state::version(&pod.metadata);
                    // Others may have written in between.
                    if entry.note_shown(&pod) {
                        self.queue.add_after(key.to_owned(), OVERRULED_INTERVAL);
                    }
                }
            }
        }
        if delete {
            let params = DeleteParams::default().with_grace_period(0).with_uid(uid.clone());
            match api.delete(&name, &params).await {
                Ok(()) => {}
                Err(error) if is_gone(&api, &name, &uid, &error).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether a write was refused because the pod is gone, or because its name is another pod's now. Every other refusal is a
/// failure, such as a conflict with other writers: what it would have told is still to be told.
async fn is_gone(api: &Api<Pod>, name: &str, uid: &str, error: &client::Error) -> Result<bool, client::Error> {
    if error.is_not_found() {
        return Ok(true);
    }
    if !error.is_conflict() && !error.is_invalid() {
        return Ok(false);
    }
    Ok(api.get_opt(name).await?.is_none_or(|pod| state::uid(&pod) != uid))
}

impl Entry {
    fn of(pod: &Pod) -> Self {
        Entry {
            namespace: state::namespace(pod).to_string(),
            name: state::name(pod).to_string(),
            api_uid: state::uid(pod).to_string(),
            wanted: None,
            sent: pod.status.as_ref().and_then(|status| api::codec::to_value(status).ok()).unwrap_or_else(|| json!({})),
            sent_version: state::version(&pod.metadata),
            delete: false,
        }
    }

    /// Notes what the API shows, if that is another readiness than it was told; tells whether yet another one is to be told.
    fn note_shown(&mut self, pod: &Pod) -> bool {
        let shown = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let told = self.sent["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_told_otherwise = |kind: &str, status: &str| {
            told.iter().find(|told| told["type"] == kind).is_some_and(|told| told["status"] != status)
        };
        let news: Vec<_> = shown
            .iter()
            .filter(|shown| READINESS.contains(&shown.type_.as_str()) && is_told_otherwise(&shown.type_, &shown.status))
            .collect();
        let wanted = self.wanted.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let is_overruled =
            news.iter().any(|news| wanted.iter().any(|own| own.type_ == news.type_ && own.status != news.status));
        if !news.is_empty() {
            self.sent["conditions"] = json!(shown);
        }
        is_overruled
    }

    fn latest(&self) -> Option<PodStatus> {
        self.wanted.clone().or_else(|| api::codec::from_value(&self.sent).ok())
    }

    fn is_terminal(&self) -> bool {
        let phase = match &self.wanted {
            Some(status) => status.phase.as_deref(),
            None => self.sent["phase"].as_str(),
        };
        // A sidecar outlives an init container that failed, and holds what it has until it is stopped.
        phase.is_some_and(api::pod::is_terminal_phase) && !self.latest().is_some_and(|status| runs(&status))
    }
}

/// Whether the status tells of a container that runs.
fn runs(status: &PodStatus) -> bool {
    let all = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let mut all = all.into_iter().flatten().flatten();
    all.any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// Ends that the new status tells of and the old one did not. One that was followed by a restart at once is only in the last state.
fn endings(old: &PodStatus, new: &PodStatus) -> Vec<Ending> {
    let mut found = Vec::new();
    for (container_type, old, new) in [
        ("container", &old.container_statuses, &new.container_statuses),
        ("init_container", &old.init_container_statuses, &new.init_container_statuses),
        ("ephemeral_container", &old.ephemeral_container_statuses, &new.ephemeral_container_statuses),
    ] {
        for status in new.iter().flatten() {
            let past = old.iter().flatten().filter(|past| past.name == status.name);
            let mut known: Vec<Option<&str>> = past.flat_map(ended).map(|end| end.container_id.as_deref()).collect();
            for end in ended(status) {
                if known.contains(&end.container_id.as_deref()) {
                    continue;
                }
                known.push(end.container_id.as_deref());
                let reason = end.reason.clone().unwrap_or_default();
                found.push(Ending { container_type, exit_code: end.exit_code, reason });
            }
        }
    }
    found
}

fn ended(status: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    [&status.state, &status.last_state].into_iter().filter_map(|state| state.as_ref()?.terminated.as_ref())
}

/// Fields of a PodStatus that are the kubelet's to write.
const OWNED: &[&str] = &[
    "phase",
    "message",
    "reason",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "qosClass",
    "observedGeneration",
    "allocatedResources",
    "resources",
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
];

/// A strategic merge patch from one status to another; `None` when there is nothing to say. Conditions
/// are merged by type, and those of other writers left to them: they may have changed them since.
fn difference(sent: &Value, wanted: &Value) -> Option<Value> {
    let mut patch = Map::new();
    for field in OWNED {
        let (old, new) = (sent.get(field), wanted.get(field));
        if old == new {
            continue;
        }
        let value = match new {
            None => Value::Null,
            // Lists that are merged by key must be replaced as a whole.
            Some(Value::Array(items)) if matches!(*field, "podIPs" | "hostIPs") => {
                let mut list = vec![json!({"$patch": "replace"})];
                list.extend(items.iter().cloned());
                Value::Array(list)
            }
            Some(value) => value.clone(),
        };
        patch.insert((*field).to_string(), value);
    }
    let old = sent.get("conditions").and_then(Value::as_array);
    let kind = |condition: &Value| condition.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let changed: Vec<Value> = wanted
        .get("conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|condition| is_ours(&kind(condition)) && !old.is_some_and(|old| old.contains(condition)))
        .cloned()
        .collect();
    let kept: Vec<String> =
        wanted.get("conditions").and_then(Value::as_array).into_iter().flatten().map(kind).collect();
    let over = old.into_iter().flatten().map(kind).filter(|kind| is_of_resize(kind) && !kept.contains(kind));
    let over: Vec<Value> = over.map(|kind| json!({"$patch": "delete", "type": kind})).collect();
    if !changed.is_empty() || !over.is_empty() {
        let changed = changed
            .into_iter()
            .map(|mut condition| {
                // A cleared reason or message must be said, or the merge keeps it.
                if let Some(fields) = condition.as_object_mut() {
                    for field in ["reason", "message"] {
                        fields.entry(field).or_insert(Value::Null);
                    }
                }
                condition
            })
            .chain(over)
            .collect();
        patch.insert("conditions".into(), Value::Array(changed));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_end_of_a_container_is_counted_once() {
        let handler: client::Handler = Arc::new(|_| Box::pin(async { unreachable!("nobody writes") }));
        let writer = StatusWriter::new(Client::in_process(handler, api::UserInfo::default()));
        let ended = |id: &str, code: i32, reason: &str| json!({"terminated": {"containerID": id, "exitCode": code, "reason": reason}});
        let container = |name: &str, state: Value, last: Value| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state, "lastState": last});
        let running = json!({"running": {}});
        let status = |containers: &[Value], init: &[Value], ephemeral: &[Value]| -> PodStatus {
            let status = json!({"containerStatuses": containers, "initContainerStatuses": init, "ephemeralContainerStatuses": ephemeral});
            serde_json::from_value(status).unwrap()
        };
        let setup = container("setup", ended("cri://i", 0, "Completed"), json!({}));
        // What the API already knew when the kubelet started was counted by the one before.
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        pod.status = Some(status(&[], std::slice::from_ref(&setup), &[]));
        let crash = ended("cri://1", 139, "Error");
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        for containers in [
            vec![container("c", running.clone(), json!({}))],
            vec![container("c", crash.clone(), json!({}))],
            vec![container("c", crash.clone(), json!({}))],
            vec![container("c", waiting, crash.clone())],
            vec![container("c", running.clone(), crash)],
            // It ran and ended again between two looks.
            vec![container("c", running, ended("cri://2", 137, "OOMKilled"))],
        ] {
            writer.set("u", &pod, status(&containers, std::slice::from_ref(&setup), &[]));
        }
        // The object is made anew, as a mirror pod is: what ended before is known all the same.
        let mirror = Pod {
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                uid: Some("m".into()),
                ..Default::default()
            },
            ..Default::default()
        };
        let debug = container("debug", ended("cri://e", 0, "Completed"), json!({}));
        let last = container("c", ended("cri://3", 139, "Error"), ended("cri://2", 137, "OOMKilled"));
        writer.set("u", &mirror, status(&[last], &[setup], &[debug]));
        let counts: Vec<(&str, i32, String, u64)> = writer
            .endings()
            .into_iter()
            .map(|(ending, count)| (ending.container_type, ending.exit_code, ending.reason, count))
            .collect();
        let expected = [
            ("container", 137, "OOMKilled", 1),
            ("container", 139, "Error", 2),
            ("ephemeral_container", 0, "Completed", 1),
        ];
        assert_eq!(counts, expected.map(|(kind, code, reason, count)| (kind, code, reason.to_owned(), count)));
    }

    /// An API server with one pod, which answers the first writes as told.
    struct Scripted {
        uid: &'static str,
        answers: Mutex<Vec<u16>>,
        /// Methods of all requests.
        asked: Mutex<Vec<String>>,
    }

    impl Scripted {
        fn writer(self: &Arc<Self>) -> Arc<StatusWriter> {
            let server = self.clone();
            let handler: client::Handler = Arc::new(move |request| {
                let is_read = request.method() == http::Method::GET;
                server.asked.lock().push(request.method().to_string());
                let code = if is_read { 200 } else { server.answers.lock().pop().unwrap_or(200) };
                assert_ne!(code, 0, "a panic on purpose");
                let body = match code {
                    200 => {
                        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "n", "uid": server.uid}})
                    }
                    code => {
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Conflict", "message": "no"})
                    }
                };
                let body = http_body_util::BodyExt::boxed_unsync(http_body_util::BodyExt::map_err(
                    http_body_util::Full::new(bytes::Bytes::from(body.to_string())),
                    |never| match never {},
                ));
                let response = http::Response::builder().status(code).header("content-type", "application/json");
                Box::pin(async move { response.body(body).unwrap() })
            });
            StatusWriter::new(Client::in_process(handler, api::UserInfo::default()))
        }
    }

    fn pod_of(uid: &str) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": uid}, "spec": {"containers": []}}),
        )
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_write_is_given_up_only_for_a_pod_that_is_gone() {
        for (uid, answers, expected) in [
            // Refused for whatever reason, while the pod is the same: told again.
            ("u", vec![409, 422], vec!["PATCH", "GET", "PATCH", "GET", "PATCH", "DELETE"]),
            ("u", vec![200, 409], vec!["PATCH", "DELETE", "GET", "DELETE"]),
            ("u", vec![500, 500], vec!["PATCH", "PATCH", "PATCH", "DELETE"]),
            // Another pod's by now.
            ("other", vec![409, 409], vec!["PATCH", "GET", "DELETE", "GET"]),
            ("u", vec![404, 404], vec!["PATCH", "DELETE"]),
            // Not even a panic keeps it from being told.
            ("u", vec![0], vec!["PATCH", "PATCH", "DELETE"]),
        ] {
            let what = format!("{uid} {answers:?}");
            let server = Arc::new(Scripted {
                uid,
                answers: Mutex::new(answers.into_iter().rev().collect()),
                asked: Mutex::default(),
            });
            let (writer, stop) = (server.writer(), CancellationToken::new());
            let status = PodStatus { phase: Some("Failed".into()), ..Default::default() };
            writer.set("u", &pod_of("u"), status);
            writer.delete("u", &pod_of("u"));
            let running = tokio::spawn(writer.clone().run(stop.clone()));
            let all_asked = async {
                while server.asked.lock().len() < expected.len() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                // Whatever else would come has come by then.
                tokio::time::sleep(2 * MAX_RETRY_INTERVAL).await;
            };
            tokio::time::timeout(Duration::from_secs(600), all_asked).await.expect(&what);
            assert_eq!(*server.asked.lock(), expected, "{what}");
            stop.cancel();
            running.await.unwrap();
        }
        assert!(panics::counts().iter().any(|(worker, count)| *worker == WORKER && *count >= 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_wrote_over_is_written_again() {
        let pod = |version: &str, ready: &str| -> Pod {
            let condition = json!({"type": "Ready", "status": ready});
            let pod = json!({
                "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": version},
                "spec": {"containers": []},
                "status": {"conditions": [condition]},
            });
            serde_json::from_value(pod).unwrap()
        };
        // Of a static pod others see the mirror.
        for key in ["u", "static"] {
            let server = Arc::new(Scripted { uid: "u", answers: Mutex::default(), asked: Mutex::default() });
            let (writer, stop) = (server.writer(), CancellationToken::new());
            writer.set(key, &pod_of("u"), pod("1", "True").status.unwrap());
            let running = tokio::spawn(writer.clone().run(stop.clone()));
            for (version, ready, expected) in [("2", "True", 1), ("3", "False", 2), ("4", "True", 2)] {
                // Whatever comes has come by then.
                tokio::time::sleep(2 * OVERRULED_INTERVAL).await;
                writer.seen(&pod(version, ready));
                tokio::time::sleep(2 * OVERRULED_INTERVAL).await;
                assert_eq!(server.asked.lock().len(), expected, "{key}, version {version}, {ready}");
            }
            stop.cancel();
            running.await.unwrap();
        }
    }

    /// What was wanted just then was the same; what is wanted next is not.
    #[test]
    fn what_others_wrote_is_known_when_another_readiness_is_to_be_told() {
        let status = |ready: &str| -> PodStatus {
            serde_json::from_value(json!({"conditions": [{"type": "Ready", "status": ready}]})).unwrap()
        };
        let shown = |ready: &str| Pod { status: Some(status(ready)), ..pod_of("u") };
        let mut entry = Entry::of(&shown("True"));
        entry.wanted = Some(status("False"));
        assert!(!entry.note_shown(&shown("False")), "nobody has to be told anything");
        let wanted = api::codec::to_value(&status("True")).unwrap();
        assert!(difference(&entry.sent, &wanted).is_some());
    }

    #[tokio::test]
    async fn an_end_is_known_whoever_told_it() {
        let server = Arc::new(Scripted { uid: "u", answers: Mutex::default(), asked: Mutex::default() });
        let writer = server.writer();
        let status = |phase: &str| PodStatus { phase: Some(phase.into()), ..Default::default() };
        assert!(!writer.is_terminal("u"), "nothing is known of it");
        for (phase, expected) in [("Pending", false), ("Running", false), ("Succeeded", true), ("Failed", true)] {
            writer.set("u", &pod_of("u"), status(phase));
            assert_eq!(writer.is_terminal("u"), expected, "{phase}, to be told");
            let told = Pod { status: Some(status(phase)), ..pod_of(phase) };
            writer.delete(phase, &told);
            assert_eq!(writer.is_terminal(phase), expected, "{phase}, told before a restart");
        }
        let sidecar = json!({"name": "s", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}});
        let failed = serde_json::from_value(json!({"phase": "Failed", "initContainerStatuses": [sidecar]})).unwrap();
        writer.set("u", &pod_of("u"), failed);
        assert!(!writer.is_terminal("u"), "a sidecar still runs");
    }

    #[test]
    fn patches_say_only_what_changed() {
        let ready = |status: &str| json!({"type": "Ready", "status": status});
        for (sent, wanted, expected) in [
            (json!({"phase": "Pending"}), json!({"phase": "Pending"}), None),
            (json!({"phase": "Pending"}), json!({"phase": "Running"}), Some(json!({"phase": "Running"}))),
            (json!({"reason": "Old"}), json!({}), Some(json!({"reason": null}))),
            (json!({"resize": "x"}), json!({}), None),
            (
                json!({}),
                json!({"podIPs": [{"ip": "1"}]}),
                Some(json!({"podIPs": [{"$patch": "replace"}, {"ip": "1"}]})),
            ),
            (
                json!({"conditions": [ready("False"), {"type": "example.com/gate", "status": "True"}]}),
                json!({"conditions": [ready("True"), {"type": "example.com/gate", "status": "False"}]}),
                Some(json!({"conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}]})),
            ),
            (
                json!({"conditions": [{"type": "PodResizePending"}, {"type": "Mine"}]}),
                json!({"conditions": []}),
                Some(json!({"conditions": [{"$patch": "delete", "type": "PodResizePending"}]})),
            ),
        ] {
            assert_eq!(difference(&sent, &wanted), expected);
        }
    }
}
