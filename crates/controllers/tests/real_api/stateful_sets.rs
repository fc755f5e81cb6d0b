//! Ordered sets (conformance area 19): one after the other, halted by what is unhealthy, each ordinal at its own revision.

use std::sync::Arc;

use client::{DeleteParams, Event, InformerFactory, ListParams, Patch};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{Cluster, image, template};

/// A set whose pods are ready when the test says so: their gate is a condition that it sets.
fn set(replicas: i32, policy: &str, gated: bool) -> Value {
    let mut template = template("db", "nginx:1", "Always");
    if gated {
        template["spec"]["readinessGates"] = json!([{ "conditionType": "test/ready" }]);
    }
    json!({
        "metadata": { "name": "db", "namespace": "default" },
        "spec": {
            "replicas": replicas, "serviceName": "db", "podManagementPolicy": policy,
            "selector": { "matchLabels": { "app": "db" } }, "template": template,
        },
    })
}

async fn open_gate(cluster: &Cluster, pod: &str, status: &str) {
    cluster
        .until::<Pod>("default", pod, "running", |pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        })
        .await;
    let gate = json!({ "status": { "conditions": [{ "type": "test/ready", "status": status }] } });
    cluster.client.namespaced::<Pod>("default").patch_status(pod, &Patch::strategic(gate)).await.unwrap();
}

async fn names(cluster: &Cluster) -> Vec<String> {
    let mut names: Vec<_> =
        cluster.list::<Pod>("default").await.into_iter().filter_map(|pod| pod.metadata.name).collect();
    names.sort();
    names
}

fn ready(set: &StatefulSet) -> i32 {
    set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default()
}

async fn scale(cluster: &Cluster, replicas: i32) {
    let patch = Patch::merge(json!({ "spec": { "replicas": replicas } }));
    cluster.client.namespaced::<StatefulSet>("default").patch("db", &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_come_in_order_go_in_reverse_and_wait_for_the_unhealthy() {
    let cluster = Cluster::start(2).await;
    let informers = InformerFactory::new(cluster.client.clone());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let events = seen.clone();
    informers.namespaced::<Pod>("default", ListParams::default()).subscribe(move |event| {
        let name = event.object().metadata.name.clone().unwrap();
        match event {
            Event::Added(_) => events.lock().push(format!("+{name}")),
            Event::Deleted(_) => events.lock().push(format!("-{name}")),
            Event::Modified { .. } => {}
        }
    });
    informers.start(cluster.stop.clone());
    cluster.apply::<StatefulSet>(set(3, "OrderedReady", true)).await;

    // The second comes only when the first is ready.
    cluster.until::<Pod>("default", "db-0", "there", |_| true).await;
    cluster
        .until::<StatefulSet>("default", "db", "observed", |set| {
            set.status.as_ref().is_some_and(|status| status.replicas == 1 && status.observed_generation == Some(1))
        })
        .await;
    assert_eq!(names(&cluster).await, ["db-0"]);
    for pod in ["db-0", "db-1", "db-2"] {
        open_gate(&cluster, pod, "True").await;
    }
    cluster.until::<StatefulSet>("default", "db", "ready", |set| ready(set) == 3).await;

    // While one is unhealthy there is neither up nor down.
    open_gate(&cluster, "db-1", "False").await;
    cluster.until::<StatefulSet>("default", "db", "unhealthy", |set| ready(set) == 2).await;
    scale(&cluster, 4).await;
    cluster
        .until::<StatefulSet>("default", "db", "observed", |set| {
            set.status.as_ref().is_some_and(|status| status.observed_generation == set.metadata.generation)
        })
        .await;
    assert_eq!(names(&cluster).await, ["db-0", "db-1", "db-2"]);
    // Down, the last one is waited for unless it is the only one in trouble.
    open_gate(&cluster, "db-2", "False").await;
    cluster.until::<StatefulSet>("default", "db", "worse", |set| ready(set) == 1).await;
    scale(&cluster, 0).await;
    cluster
        .until::<StatefulSet>("default", "db", "observed", |set| {
            set.status.as_ref().is_some_and(|status| status.observed_generation == set.metadata.generation)
        })
        .await;
    assert_eq!(names(&cluster).await, ["db-0", "db-1", "db-2"]);
    open_gate(&cluster, "db-2", "True").await;
    // The watch tells of the last one a moment after it is gone.
    crate::harness::patiently(async || (seen.lock().len() >= 6).then_some(())).await;
    let order = seen.lock().clone();
    assert_eq!(order, ["+db-0", "+db-1", "+db-2", "-db-2", "-db-1", "-db-0"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parallel_set_bursts_past_the_unhealthy() {
    let cluster = Cluster::start(2).await;
    cluster.apply::<StatefulSet>(set(3, "Parallel", true)).await;
    cluster.until_left::<Pod>("default", 3).await;
    scale(&cluster, 5).await;
    cluster.until_left::<Pod>("default", 5).await;
    let set = cluster.client.namespaced::<StatefulSet>("default").get("db").await.unwrap();
    assert_eq!(ready(&set), 0);
    scale(&cluster, 1).await;
    cluster.until_left::<Pod>("default", 1).await;
    assert_eq!(names(&cluster).await, ["db-0"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_ordinal_keeps_its_revision_and_a_rollback_gets_the_old_one_back() {
    let cluster = Cluster::start(2).await;
    let api = cluster.client.namespaced::<StatefulSet>("default");
    cluster.apply::<StatefulSet>(set(3, "OrderedReady", false)).await;
    let first = cluster.until::<StatefulSet>("default", "db", "ready", |set| ready(set) == 3).await;
    let first = first.status.unwrap().current_revision.unwrap();

    // Canary: only the last ordinal is updated, and pods that are lost come back at the revision of their ordinal.
    let partition =
        |at: i32| Patch::merge(json!({ "spec": { "updateStrategy": { "rollingUpdate": { "partition": at } } } }));
    api.patch("db", &partition(2)).await.unwrap();
    api.patch("db", &image("nginx:2")).await.unwrap();
    let canary = cluster
        .until::<StatefulSet>("default", "db", "canaried", |set| {
            let status = set.status.clone().unwrap_or_default();
            status.observed_generation == set.metadata.generation
                && status.updated_replicas == Some(1)
                && status.ready_replicas == Some(3)
        })
        .await
        .status
        .unwrap();
    let second = canary.update_revision.unwrap();
    assert_eq!((canary.current_revision.as_ref(), canary.current_replicas), (Some(&first), Some(2)));
    assert_ne!(first, second);
    let pods = cluster.client.namespaced::<Pod>("default");
    let revision = |pod: &Pod| pod.metadata.labels.as_ref().unwrap()["controller-revision-hash"].clone();
    for (name, wanted) in [("db-0", &first), ("db-2", &second)] {
        let old = pods.get(name).await.unwrap().metadata.uid;
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        let again = cluster.until::<Pod>("default", name, "back", |pod| pod.metadata.uid != old).await;
        assert_eq!(&revision(&again), wanted, "{name}");
        cluster.until::<StatefulSet>("default", "db", "ready", |set| ready(set) == 3).await;
    }

    // Phased to the end, and back: the old revision is used again with a new number.
    api.patch("db", &partition(0)).await.unwrap();
    let rolled = |wanted: String| {
        move |set: &StatefulSet| {
            let status = set.status.clone().unwrap_or_default();
            status.observed_generation == set.metadata.generation
                && status.current_revision.as_ref() == Some(&wanted)
                && status.update_revision.as_ref() == Some(&wanted)
                && status.ready_replicas == Some(3)
        }
    };
    cluster.until::<StatefulSet>("default", "db", "rolled", rolled(second.clone())).await;
    api.patch("db", &image("nginx:1")).await.unwrap();
    cluster.until::<StatefulSet>("default", "db", "rolled back", rolled(first.clone())).await;
    let revisions = cluster.list::<ControllerRevision>("default").await;
    assert_eq!(revisions.len(), 2);
    let number = |name: &str| {
        revisions.iter().find(|revision| revision.metadata.name.as_deref() == Some(name)).unwrap().revision
    };
    assert_eq!((number(&first), number(&second)), (3, 2));

    // A pod that failed for good (its node refused it) is replaced, as often as need be.
    let old = pods.get("db-1").await.unwrap().metadata.uid;
    let failed = json!({ "status": { "phase": "Failed", "reason": "NodePorts" } });
    pods.patch_status("db-1", &Patch::strategic(failed)).await.unwrap();
    cluster.until::<Pod>("default", "db-1", "replaced", |pod| pod.metadata.uid != old).await;
    cluster.until::<StatefulSet>("default", "db", "ready", |set| ready(set) == 3).await;
    cluster.stop().await;
}
