//! Pod garbage collection: pods that nobody will ever finish.
//!
//! Orphans of a node that is gone, pods deleted before they were scheduled or on a node that is out of service, and finished pods beyond a threshold. Pods that
//! finalizers hold after their deletion, and whose node has reported no end, are marked failed, so that their controllers count them.
//! Each is noticed by its event; only the quarantine of an orphan and the wait for a node's report are timers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::metrics::Metrics;
use client::{Client, Clock, DeleteParams, Event, Informer, Patch};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::{Error, pods};

/// A node may only be registering again (`quarantineTime`, v1.36).
const QUARANTINE_PERIOD: Duration = Duration::from_secs(40);
/// How long a node may take to report the end of a pod that was deleted without a grace period.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const BY_NODE: &str = "node";
/// The one key that is not a pod: count the finished ones.
const FINISHED: &str = "";

/// Why a pod is deleted, as metrics call it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Terminated,
    Unscheduled,
    Orphaned,
    OutOfService,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Why::Terminated => "terminated",
            Why::Unscheduled => "unscheduled",
            Why::Orphaned => "orphaned",
            Why::OutOfService => "out-of-service",
        }
    }
}

struct Controller {
    client: Client,
    clock: Clock,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    threshold: usize,
    metrics: Metrics,
    /// Since when each missing node has been missed.
    missing: Arc<Mutex<HashMap<String, Instant>>>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let threshold = context.config.terminated_pod_gc_threshold;
    let nodes = context.informer::<Node>();
    let pods = {
        let (nodes, clock) = (nodes.shared(), context.config.clock.clone());
        context.on::<Pod, _>(move |event| {
            let pod = event.object();
            let mut keys = Vec::new();
            if matches!(event, Event::Deleted(_)) {
                return keys;
            }
            let node = pods::node_name(pod);
            let on = nodes.get(node);
            let orphan = if node.is_empty() { pods::is_terminating(pod) } else { on.is_none() };
            let is_stuck = pods::is_terminating(pod) && on.is_some_and(|node| is_out_of_service(&node));
            if orphan || is_stuck || report_due(pod, clock.now()).is_some() {
                keys.push(pods::key(&**pod));
            }
            if threshold > 0 && pods::is_finished(pod) {
                keys.push(FINISHED.to_owned());
            }
            keys
        })
    };
    pods.add_index(BY_NODE, |pod| vec![pods::node_name(pod).to_owned()]);
    let missing: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let nodes = {
        let (pods, queue, missing) = (pods.clone(), context.queue.clone(), missing.clone());
        nodes.wakes(move |event| {
            let node = event.object();
            // One that comes back, and goes once more, is missed from then on.
            missing.lock().remove(node.metadata.name());
            if matches!(event, Event::Deleted(_)) || is_out_of_service(node) {
                for pod in pods.by_index(BY_NODE, node.metadata.name()) {
                    queue.add(pods::key(&*pod));
                }
            }
        })
    };
    let (client, metrics) = (context.client.clone(), context.config.metrics.clone());
    Arc::new(Controller { clock: context.config.clock.clone(), client, nodes, pods, threshold, metrics, missing })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        if key == FINISHED {
            for pod in too_many_finished(self.pods.list(), self.threshold) {
                self.delete(&pod, Why::Terminated).await?;
            }
            return Ok(Requeue::Never);
        }
        let Some(pod) = self.pods.get(key) else { return Ok(Requeue::Never) };
        let node = pods::node_name(&pod);
        if node.is_empty() {
            if pods::is_terminating(&pod) {
                self.delete(&pod, Why::Unscheduled).await?;
            }
            return Ok(Requeue::Never);
        }
        if let Some(object) = self.nodes.get(node) {
            self.missing.lock().remove(node);
            if pods::is_terminating(&pod) && is_out_of_service(&object) {
                tracing::info!(pod = key, node, "deleting the terminating pod of a node that is out of service");
                self.delete(&pod, Why::OutOfService).await?;
                return Ok(Requeue::Never);
            }
            return match report_due(&pod, self.clock.now()) {
                Some(Duration::ZERO) => self.mark_failed(&pod).await.map(|()| Requeue::Never),
                due => Ok(due.into()),
            };
        }
        let since = *self.missing.lock().entry(node.to_owned()).or_insert_with(Instant::now);
        if since.elapsed() < QUARANTINE_PERIOD {
            return Ok(Requeue::After(QUARANTINE_PERIOD - since.elapsed()));
        }
        if self.client.all::<Node>().get_opt(node).await?.is_none() {
            tracing::info!(pod = key, node, "deleting the pod of a node that is gone");
            self.delete(&pod, Why::Orphaned).await?;
        }
        Ok(Requeue::Never)
    }

    /// Deletes at once: no kubelet is left to do it. A pod that had not finished is marked failed first, for its controller.
    async fn delete(&self, pod: &Pod, why: Why) -> Result<(), Error> {
        let deleted = self.delete_now(pod, why).await;
        let labels = [("namespace", pod.metadata.namespace()), ("reason", why.as_str())];
        match &deleted {
            Ok(()) => self.metrics.counter("pod_gc_collector_force_delete_pods_total", "Pods deleted at once", &labels),
            Err(_) => self.metrics.counter(
                "pod_gc_collector_force_delete_pod_errors_total",
                "Pods that could not be deleted",
                &labels,
            ),
        }
        .inc();
        deleted
    }

    /// The node said nothing about the end of a deleted pod, and perhaps never will.
    async fn mark_failed(&self, pod: &Pod) -> Result<(), Error> {
        tracing::info!(pod = pods::key(pod), "marking a deleted pod failed whose end its node did not report");
        self.patch_status(pod, json!({ "phase": "Failed" })).await
    }

    async fn patch_status(&self, pod: &Pod, status: serde_json::Value) -> Result<(), Error> {
        let api = self.client.namespaced::<Pod>(pod.metadata.namespace());
        let patch = Patch::strategic(json!({ "metadata": { "uid": pod.metadata.uid }, "status": status }));
        match api.patch_status(pod.metadata.name(), &patch).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn delete_now(&self, pod: &Pod, why: Why) -> Result<(), Error> {
        let api = self.client.namespaced::<Pod>(pod.metadata.namespace());
        let name = pod.metadata.name();
        if why != Why::Terminated && !pods::is_finished(pod) {
            let mut status = json!({ "phase": "Failed" });
            if why == Why::Orphaned {
                status["conditions"] = json!([{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists", "lastTransitionTime": api::time::rfc3339(self.clock.now()),
                }]);
            }
            self.patch_status(pod, status).await?;
        }
        let params = DeleteParams { uid: pod.metadata.uid.clone(), ..DeleteParams::default() }.with_grace_period(0);
        if_unchanged(api.delete(name, &params).await).map(drop)
    }
}

/// An administrator says that the node is off and will not come back by itself.
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    !api::node::is_ready(node) && taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// How long until the node should have reported the end of this pod; none if there is nothing to wait for.
fn report_due(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let held = pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    if !held || !pods::is_deleted_at_once(pod) || pods::is_finished(pod) {
        return None;
    }
    let deleted = pod.metadata.deletion_timestamp.as_ref()?.0;
    let waited = Duration::try_from(now.duration_since(deleted)).unwrap_or_default();
    Some(REPORT_TIMEOUT.saturating_sub(waited))
}

/// The finished pods to delete: evicted ones first, then the oldest.
fn too_many_finished(pods: Vec<Arc<Pod>>, threshold: usize) -> Vec<Arc<Pod>> {
    let mut finished: Vec<_> =
        pods.into_iter().filter(|pod| pods::is_finished(pod) && !pods::is_terminating(pod)).collect();
    let surplus = finished.len().saturating_sub(threshold);
    finished.compact_sort_by_cached_key(|pod| {
        let evicted = pod.status.as_ref().and_then(|status| status.reason.as_deref()) == Some("Evicted");
        (!evicted, pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.metadata.name.clone())
    });
    finished.truncate(surplus);
    finished
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::tests::{Builder, at};

    #[test]
    fn a_node_that_reports_no_end_is_not_waited_for_for_ever() {
        let pod = |phase: &str, grace: Option<i64>, finalizers: &[&str]| {
            let mut builder = Builder::new("p").phase(phase);
            let meta = &mut builder.0.metadata;
            meta.deletion_timestamp = grace.map(|_| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
            meta.deletion_grace_period_seconds = grace;
            meta.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
            builder.build()
        };
        let held = ["batch.kubernetes.io/job-tracking"];
        for (pod, now, expected) in [
            (pod("Pending", Some(0), &held), 110, Some(50)),
            (pod("Pending", Some(0), &held), 160, Some(0)),
            (pod("Running", Some(0), &held), 900, Some(0)),
            (pod("Running", Some(30), &held), 900, None),
            (pod("Running", Some(0), &[]), 900, None),
            (pod("Failed", Some(0), &held), 900, None),
            (pod("Running", None, &held), 900, None),
        ] {
            assert_eq!(report_due(&pod, at(now)), expected.map(Duration::from_secs), "{pod:?}");
        }
    }

    #[test]
    fn the_oldest_finished_pods_go_first() {
        let pods = || {
            vec![
                Builder::new("old").phase("Succeeded").created(at(1)).build(),
                Builder::new("new").phase("Failed").created(at(9)).build(),
                Builder::new("running").phase("Running").created(at(0)).build(),
            ]
        };
        for (threshold, expected) in [(5, vec![]), (2, vec![]), (1, vec!["old"]), (0, vec!["old", "new"])] {
            let names: Vec<_> =
                too_many_finished(pods(), threshold).iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
            assert_eq!(names, expected);
        }
    }
}
