//! Pods as controllers see them: their state, which to delete first, and making them from a template.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cached::{Condition, Pod};
use api::meta::Meta as _;
use api::selector::Selector;
use api::sort::CompactSort as _;
use client::{Client, DeleteParams, EventRecorder, Resource, Written};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod as NewPod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::Error;

/// A lower cost is deleted earlier.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Deleted without a grace period, or after it: if the object is still there, then only because of finalizers.
pub(crate) fn is_deleted_at_once(pod: &Pod) -> bool {
    is_terminating(pod) && pod.metadata.deletion_grace_period_seconds == Some(0)
}

pub(crate) use api::pod::is_terminal as is_finished;

/// Counts towards a controller's replicas.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(pod)
}

/// The pods that a workload's selector means.
pub(crate) fn selector(labels: Option<&LabelSelector>) -> Result<Selector, Error> {
    Selector::from_label_selector(labels).map_err(|error| Error::object(error.to_string()))
}

/// How an endpoint names the pod behind it.
pub(crate) fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

pub(crate) fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a Condition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    api::pod::is_ready(pod)
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|ready| ready.status == "True")
        .and_then(|ready| ready.last_transition_time.as_ref())
        .map(|time| time.0)
}

/// Ready for at least `min_ready_seconds`.
pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod) && (min_ready_seconds == 0 || available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO))
}

/// How long until a ready pod counts as available; `None` if it is not ready.
pub(crate) fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let since = ready_since(pod)?;
    let ready_for = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some(Duration::from_secs(min_ready_seconds.max(0).unsigned_abs().into()).saturating_sub(ready_for))
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count()).max().unwrap_or_default()
}

/// The first `count` pods to delete. `related` are all pods that share the load, so that nodes with several
/// of them lose one first (`ActivePodsWithRanks`, v1.36).
pub(crate) fn surplus(mut pods: Vec<Arc<Pod>>, related: &[Arc<Pod>], count: usize, now: Timestamp) -> Vec<Arc<Pod>> {
    let mut per_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *per_node.entry(node_name(pod)).or_default() += 1;
    }
    pods.compact_sort_by_cached_key(|pod| {
        let phase_rank = match phase(pod) {
            "Running" => 2,
            "Unknown" => 1,
            _ => 0,
        };
        let cost = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(DELETION_COST))
            .and_then(|cost| cost.parse::<i64>().ok());
        let together = per_node.get(node_name(pod)).copied().unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (
            !node_name(pod).is_empty(),
            phase_rank,
            is_ready(pod),
            cost.unwrap_or_default(),
            Reverse(together),
            ready_since(pod).map(|since| age_rank(since, now)),
            Reverse(restarts(pod)),
            created.map(|created| age_rank(created, now)),
            pod.metadata.uid.clone(),
        )
    });
    pods.truncate(count);
    pods
}

/// The order of magnitude of an age: among pods of about the same age the choice is arbitrary.
fn age_rank(since: Timestamp, now: Timestamp) -> u32 {
    let seconds = u64::try_from(now.duration_since(since).as_secs()).unwrap_or_default();
    seconds.checked_ilog2().map_or(0, |rank| rank + 1)
}

/// A pod from a template, owned by its controller.
pub(crate) fn from_template(
    template: &PodTemplateSpec,
    namespace: &str,
    name_prefix: &str,
    owner: OwnerReference,
) -> NewPod {
    let metadata = template.metadata.clone().unwrap_or_default();
    NewPod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name_prefix}-")),
            namespace: Some(namespace.into()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Creates a pod and says so on its owner.
pub(crate) async fn create(
    client: &Client,
    recorder: &EventRecorder,
    owner: &ObjectReference,
    pod: &NewPod,
) -> Result<(), client::Error> {
    let namespace = pod.metadata.namespace();
    match client.namespaced::<NewPod>(namespace).create_as::<Written>(pod).await {
        Ok(created) => {
            recorder.normal(owner, "SuccessfulCreate", format!("Created pod: {}", created.name()));
            Ok(())
        }
        Err(error) => {
            // In a namespace that is going away every creation fails; there is nothing to report.
            if !error.is_namespace_terminating() {
                recorder.warning(owner, "FailedCreate", format!("Error creating: {error}"));
            }
            Err(error)
        }
    }
}

/// Deletes a pod and says so on its owner. A pod that is already gone is a success.
pub(crate) async fn delete(
    client: &Client,
    recorder: &EventRecorder,
    owner: &ObjectReference,
    pod: &Pod,
) -> Result<(), client::Error> {
    let name = pod.metadata.name();
    let namespace = pod.metadata.namespace();
    let params = DeleteParams { uid: pod.metadata.uid.clone(), ..DeleteParams::default() };
    match client.namespaced::<Pod>(namespace).delete(name, &params).await {
        Ok(()) => {
            recorder.normal(owner, "SuccessfulDelete", format!("Deleted pod: {name}"));
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        // Another pod of that name, or someone else writing: the caller looks again.
        Err(error) if error.is_conflict() => Err(error),
        Err(error) => {
            recorder.warning(owner, "FailedDelete", format!("Error deleting: {error}"));
            Err(error)
        }
    }
}

/// `namespace/name` of any object.
pub(crate) fn key<K: Resource>(object: &K) -> String {
    client::object_key(object)
}

#[cfg(test)]
pub(crate) mod tests {
    use client::{Body, BoxError, Informer, ListParams};
    use http::{Request, Response, StatusCode};
    use http_body_util::{BodyExt, Full, StreamBody};
    use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodSpec, PodStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;

    pub(crate) fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    /// Short rows for tables: `Builder::new("web-0").on("n1").ready(at(0)).build()`.
    pub(crate) struct Builder(pub(crate) NewPod);

    impl Builder {
        pub(crate) fn new(name: &str) -> Self {
            let mut pod =
                NewPod { spec: Some(PodSpec::default()), status: Some(PodStatus::default()), ..NewPod::default() };
            pod.metadata.name = Some(name.into());
            pod.metadata.namespace = Some("default".into());
            pod.metadata.uid = Some(format!("uid-{name}"));
            pod.metadata.creation_timestamp = Some(Time(at(0)));
            pod.metadata.resource_version = Some("1".into());
            Self(pod).phase("Pending")
        }
        pub(crate) fn on(mut self, node: &str) -> Self {
            self.0.spec.get_or_insert_default().node_name = Some(node.into());
            self
        }
        pub(crate) fn phase(mut self, phase: &str) -> Self {
            self.0.status.get_or_insert_default().phase = Some(phase.into());
            self
        }
        pub(crate) fn ready(mut self, since: Timestamp) -> Self {
            let condition = PodCondition {
                type_: "Ready".into(),
                status: "True".into(),
                last_transition_time: Some(Time(since)),
                ..PodCondition::default()
            };
            self.0.status.get_or_insert_default().conditions = Some(vec![condition]);
            self.phase("Running")
        }
        pub(crate) fn restarts(mut self, count: i32) -> Self {
            let status = ContainerStatus { restart_count: count, ..ContainerStatus::default() };
            self.0.status.get_or_insert_default().container_statuses = Some(vec![status]);
            self
        }
        pub(crate) fn created(mut self, when: Timestamp) -> Self {
            self.0.metadata.creation_timestamp = Some(Time(when));
            self
        }
        pub(crate) fn annotated(mut self, key: &str, value: &str) -> Self {
            self.0.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
            self
        }
        pub(crate) fn labelled(mut self, key: &str, value: &str) -> Self {
            self.0.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
            self
        }
        pub(crate) fn build(self) -> Arc<Pod> {
            Arc::new(self.0.into())
        }
    }

    #[test]
    fn the_least_useful_pod_goes_first() {
        let pod = |name: &str| Builder::new(name);
        let ready = |name: &str| pod(name).on("n1").ready(at(0));
        for (first, second, why) in [
            (pod("a"), pod("b").on("n1"), "unassigned before assigned"),
            (pod("a").on("n1"), pod("b").on("n1").phase("Running"), "pending before running"),
            (pod("a").on("n1").phase("Unknown"), pod("b").on("n1").phase("Running"), "unknown before running"),
            (pod("a").on("n1").phase("Running"), ready("b"), "not ready before ready"),
            (ready("a").annotated(DELETION_COST, "-5"), ready("b"), "cheap before dear"),
            (ready("a"), pod("b").on("n2").ready(at(0)), "crowded node before lonely node"),
            (pod("a").on("n1").ready(at(900)), ready("b"), "shortly ready before long ready"),
            (ready("a").restarts(3), ready("b"), "often restarted before steady"),
            (ready("a").created(at(900)), ready("b"), "young before old"),
        ] {
            let (first, second) = (first.build(), second.build());
            let crowd = [first.clone(), second.clone(), ready("c").build()];
            for pair in [vec![first.clone(), second.clone()], vec![second.clone(), first.clone()]] {
                assert_eq!(surplus(pair, &crowd, 1, at(1000)), std::slice::from_ref(&first), "{why}");
            }
        }
    }

    #[test]
    fn available_after_the_minimum_time() {
        for (ready_at, min_ready, now, expected) in
            [(0, 0, 0, true), (0, 10, 9, false), (0, 10, 10, true), (0, 10, 11, true)]
        {
            let pod = Builder::new("a").ready(at(ready_at)).build();
            assert_eq!(is_available(&pod, min_ready, at(now)), expected, "{min_ready} at {now}");
        }
        assert!(!is_available(&Builder::new("a").build(), 0, at(0)));
    }

    /// An informer that has seen these objects.
    pub(crate) async fn informer_of<K: Resource>(items: Vec<Value>) -> Informer<K> {
        let list = json!({ "metadata": { "resourceVersion": "5" }, "items": items }).to_string();
        let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default();
            let (code, body): (_, Body) = if query.contains("sendInitialEvents") {
                (StatusCode::BAD_REQUEST, whole("{}".to_owned()))
            } else if query.contains("watch=") {
                let silence = futures_util::stream::pending::<Result<http_body::Frame<bytes::Bytes>, BoxError>>();
                (StatusCode::OK, StreamBody::new(silence).boxed_unsync())
            } else {
                (StatusCode::OK, whole(list.clone()))
            };
            let response = Response::builder().status(code).body(body).unwrap();
            Box::pin(async move { response })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let informer: Informer<K> = Informer::new(client.all::<K>(), ListParams::default());
        let running = informer.clone();
        tokio::spawn(async move { running.run(CancellationToken::new()).await });
        informer.synced().await;
        informer
    }

    fn whole(text: String) -> Body {
        Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
    }
}
