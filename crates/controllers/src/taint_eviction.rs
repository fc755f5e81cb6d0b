//! Taint eviction: pods that do not tolerate a node's `NoExecute` taints are deleted, at once or after the shortest `tolerationSeconds`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::placement::tolerates;
use client::metrics::{Counter, Histogram};
use client::{Client, Clock, Event, EventRecorder, Informer, Patch};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use parking_lot::Mutex;
use serde_json::json;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::pods;

const BY_NODE: &str = "node";

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// Since when pods wait: a taint that a person set does not say when.
    waiting: Mutex<HashMap<String, Timestamp>>,
    deletions: Counter,
    /// From the end of the time that a pod tolerates its taints to its deletion.
    delay: Histogram,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let nodes = context.informer::<Node>();
    let pods = {
        let nodes = nodes.shared();
        context.on::<Pod, _>(move |event| {
            let pod = event.object();
            let is_new = match event {
                Event::Added(_) => true,
                Event::Modified { old, new } => {
                    pods::node_name(old) != pods::node_name(new) || tolerations(old) != tolerations(new)
                }
                Event::Deleted(_) => false,
            };
            let tainted = is_new && nodes.get(pods::node_name(pod)).is_some_and(|node| !evicting(&node).is_empty());
            tainted.then(|| pods::key(&**pod))
        })
    };
    pods.add_index(BY_NODE, |pod| vec![pods::node_name(pod).to_owned()]);
    let (all, queue) = (pods.clone(), context.queue.clone());
    let nodes = nodes.wakes(move |event| {
        let changed = match event {
            Event::Added(node) => !evicting(node).is_empty(),
            Event::Modified { old, new } => evicting(old) != evicting(new),
            Event::Deleted(_) => false,
        };
        if changed {
            for pod in all.by_index(BY_NODE, event.object().metadata.name()) {
                queue.add(pods::key(&*pod));
            }
        }
    });
    let deletions = context.config.metrics.counter(
        "taint_eviction_controller_pod_deletions_total",
        "Pods deleted because of a taint",
        &[],
    );
    let delay = context.config.metrics.histogram(
        "taint_eviction_controller_pod_deletion_duration_seconds",
        "From the moment a taint takes effect on a pod to its deletion",
        &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0],
        &[],
    );
    let (client, recorder) = (context.client.clone(), context.recorder.clone());
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client,
        recorder,
        nodes,
        pods,
        waiting: Mutex::default(),
        deletions,
        delay,
    })
}

fn evicting(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().filter(|taint| taint.effect == "NoExecute").cloned().collect()
}

fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
}

/// Since when a pod is on its node, and when it was first met with the taints of the node.
#[derive(Debug, Clone, Copy)]
struct Stay {
    placed: Timestamp,
    met: Timestamp,
}

/// Since when a pod is on its node. It may have waited for a place, and another pod may have had its name before.
fn placed(pod: &Pod) -> Option<Timestamp> {
    let scheduled = pods::condition(pod, "PodScheduled").filter(|scheduled| scheduled.status == "True");
    let scheduled = scheduled.and_then(|scheduled| scheduled.last_transition_time.as_ref()).map(|time| time.0);
    scheduled.max(pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// How long a pod may stay with these taints: `None` for ever, zero not at all. Of the tolerations of a taint the first one counts
/// (`GetMatchingTolerations`, v1.36).
fn tolerated_for(taints: &[Taint], tolerations: &[Toleration], stay: Stay, now: Timestamp) -> Option<Duration> {
    let mut shortest = None;
    for taint in taints {
        let Some(toleration) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Some(Duration::ZERO);
        };
        let Some(seconds) = toleration.toleration_seconds else { continue };
        // A pod that comes to a node with an old taint has all of its time before it.
        let since = taint.time_added.as_ref().map_or(stay.met, |time| time.0).max(stay.placed);
        let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let left = Duration::from_secs(seconds.max(0).unsigned_abs()).saturating_sub(waited);
        shortest = Some(shortest.map_or(left, |other: Duration| other.min(left)));
    }
    shortest
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let pod = self.pods.get(key).filter(|pod| !pods::is_terminating(pod) && !pods::is_finished(pod));
            let node = pod.as_ref().and_then(|pod| self.nodes.get(pods::node_name(pod)));
            let (Some(pod), Some(node)) = (pod, node) else {
                self.waiting.lock().remove(key);
                return Ok(Requeue::Never);
            };
            let now = self.clock.now();
            let met = self.waiting.lock().get(key).copied().unwrap_or(now);
            let stay = Stay { placed: placed(&pod).unwrap_or(met), met };
            match tolerated_for(&evicting(&node), tolerations(&pod), stay, now) {
                Some(left) if !left.is_zero() => {
                    self.waiting.lock().insert(key.to_owned(), met);
                    Ok(Requeue::After(left + Duration::from_millis(500)))
                }
                verdict => {
                    self.waiting.lock().remove(key);
                    if verdict.is_some() { self.evict(key, &pod, now).await } else { Ok(Requeue::Never) }
                }
            }
        })
    }
}

impl Controller {
    async fn evict(&self, key: &str, pod: &Pod, since: Timestamp) -> Outcome {
        self.recorder.normal(
            &client::reference(pod),
            "TaintManagerEviction",
            format!("Marking for deletion Pod {key}"),
        );
        let api = self.client.namespaced::<Pod>(pod.metadata.namespace());
        let name = pod.metadata.name();
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": api::time::rfc3339(self.clock.now()),
        });
        let patch = Patch::strategic(
            json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [condition] } }),
        );
        if_unchanged(api.patch_status(name, &patch).await)?;
        let params = client::DeleteParams { uid: pod.metadata.uid.clone(), ..client::DeleteParams::default() };
        if if_unchanged(api.delete(name, &params).await)?.is_some() {
            self.deletions.inc();
            self.delay.observe(self.clock.now().duration_since(since).as_secs_f64());
        }
        Ok(Requeue::Never)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::pods::tests::at;

    #[test]
    fn the_shortest_toleration_counts() {
        let taint = |key: &str| Taint {
            key: key.into(),
            effect: "NoExecute".into(),
            value: None,
            time_added: Some(Time(at(0))),
        };
        let toleration = |key: &str, seconds: Option<i64>| Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Toleration::default()
        };
        for (taints, tolerations, expected) in [
            (vec![], vec![], None),
            (vec![taint("a")], vec![], Some(0)),
            (vec![taint("a")], vec![toleration("a", None)], None),
            (vec![taint("a")], vec![toleration("a", Some(300))], Some(290)),
            (vec![taint("a")], vec![toleration("a", Some(5))], Some(0)),
            (vec![taint("a"), taint("b")], vec![toleration("a", Some(300)), toleration("b", Some(60))], Some(50)),
            (vec![taint("a"), taint("b")], vec![toleration("a", None)], Some(0)),
            (vec![taint("a")], vec![toleration("a", None), toleration("a", Some(60))], None),
            (vec![taint("a")], vec![toleration("a", Some(60)), toleration("a", None)], Some(50)),
        ] {
            let stay = Stay { placed: at(0), met: at(0) };
            assert_eq!(
                tolerated_for(&taints, &tolerations, stay, at(10)).map(|left| left.as_secs()),
                expected,
                "{taints:?} {tolerations:?}"
            );
        }
        let timeless = Taint { time_added: None, ..taint("a") };
        let left = |taint, stay| tolerated_for(&[taint], &[toleration("a", Some(30))], stay, at(10));
        let stay = Stay { placed: at(0), met: at(4) };
        assert_eq!(
            left(timeless, stay),
            Some(Duration::from_secs(24)),
            "a taint without a time counts from when it was met"
        );
        let late = Stay { placed: at(8), met: at(9) };
        assert_eq!(left(taint("a"), late), Some(Duration::from_secs(28)), "an old taint counts from when the pod came");
    }

    #[test]
    fn a_pod_is_there_from_when_it_was_given_its_node() {
        for (status, expected) in [("True", at(8)), ("False", at(2))] {
            let since = at(8).to_string();
            let scheduled = json!({ "type": "PodScheduled", "status": status, "lastTransitionTime": since });
            let pod: Pod = api::codec::from_value(&json!({
                "metadata": { "name": "p", "creationTimestamp": at(2).to_string() },
                "status": { "conditions": [scheduled] },
            }))
            .unwrap();
            assert_eq!(placed(&pod), Some(expected), "{status}");
        }
    }
}
