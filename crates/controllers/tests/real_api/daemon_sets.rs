//! Daemons (conformance area 20): one on every node that wants it, replaced one at a time.

use client::{DeleteParams, Patch};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use crate::harness::{Cluster, image, patiently, template};

fn set() -> Value {
    json!({
        "metadata": { "name": "agent", "namespace": "default", "annotations": { "kubernetes.io/change-cause": "made" } },
        "spec": { "selector": { "matchLabels": { "app": "agent" } }, "template": template("agent", "nginx:1", "Always") },
    })
}

/// Desired, ready and updated.
fn counts(set: &DaemonSet) -> Option<(i32, i32, i32)> {
    let status = set.status.as_ref()?;
    (status.observed_generation == set.metadata.generation).then_some(())?;
    let updated = status.updated_number_scheduled.unwrap_or_default();
    Some((status.desired_number_scheduled, status.number_ready, updated))
}

async fn until(cluster: &Cluster, what: &str, wanted: (i32, i32, i32)) -> DaemonSet {
    cluster.until::<DaemonSet>("default", "agent", what, |set| counts(set) == Some(wanted)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_daemon_runs_on_every_node_that_wants_it() {
    let cluster = Cluster::start(3).await;
    cluster.apply::<DaemonSet>(set()).await;
    until(&cluster, "everywhere", (3, 3, 3)).await;
    for pod in cluster.list::<Pod>("default").await {
        let spec = serde_json::to_value(&pod.spec).unwrap();
        let term =
            &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchFields"][0]["key"], "metadata.name");
        assert_eq!(term["matchFields"][0]["values"][0], spec["nodeName"], "scheduled where it is meant to be");
        let tolerated: Vec<&str> = spec["tolerations"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|toleration| toleration["key"].as_str())
            .collect();
        for key in ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"] {
            assert!(tolerated.contains(&&*format!("node.kubernetes.io/{key}")), "{key}: {tolerated:?}");
        }
        let labels = pod.metadata.labels.unwrap();
        assert!(labels.contains_key("controller-revision-hash") && labels["pod-template-generation"] == "1");
    }

    // A daemon that somebody takes away from the set, labels and owner in one, is replaced.
    let stray = cluster.list::<Pod>("default").await.remove(0).metadata.name.unwrap();
    let api = cluster.client.namespaced::<Pod>("default");
    let patch = Patch::merge(json!({ "metadata": { "labels": { "app": "mine" }, "ownerReferences": null } }));
    api.patch(&stray, &patch).await.unwrap();
    patiently(async || (cluster.list::<Pod>("default").await.len() == 4).then_some(())).await.expect("another daemon");
    api.delete(&stray, &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<Pod>("default", &stray).await;
    until(&cluster, "whole", (3, 3, 3)).await;

    // A daemon that failed is replaced.
    let failed = cluster.list::<Pod>("default").await.remove(0);
    let name = failed.metadata.name.unwrap();
    let status = Patch::strategic(json!({ "status": { "phase": "Failed" } }));
    cluster.client.namespaced::<Pod>("default").patch_status(&name, &status).await.unwrap();
    cluster.until_gone::<Pod>("default", &name).await;
    until(&cluster, "whole again", (3, 3, 3)).await;

    // Where it wants to be is a matter of labels.
    let api = cluster.client.namespaced::<DaemonSet>("default");
    let selector = |colour: &str| {
        Patch::merge(json!({ "spec": { "template": { "spec": { "nodeSelector": { "colour": colour } } } } }))
    };
    let label = async |colour: &str| {
        let patch = Patch::merge(json!({ "metadata": { "labels": { "colour": colour } } }));
        cluster.client.all::<Node>().patch("node-1", &patch).await.unwrap();
    };
    api.patch("agent", &selector("blue")).await.unwrap();
    until(&cluster, "nowhere", (0, 0, 0)).await;
    cluster.until_none::<Pod>("default").await;
    label("blue").await;
    until(&cluster, "on the blue node", (1, 1, 1)).await;
    label("green").await;
    until(&cluster, "nowhere again", (0, 0, 0)).await;
    cluster.until_none::<Pod>("default").await;
    api.patch("agent", &selector("green")).await.unwrap();
    until(&cluster, "on the green node", (1, 1, 1)).await;

    // The record of the present template is made again when somebody removes it.
    let revisions = cluster.client.namespaced::<ControllerRevision>("default");
    let latest =
        cluster.list::<ControllerRevision>("default").await.into_iter().max_by_key(|one| one.revision).unwrap();
    let name = latest.metadata.name.unwrap();
    revisions.delete(&name, &DeleteParams::default()).await.unwrap();
    cluster
        .until::<ControllerRevision>("default", &name, "made again", |one| one.metadata.uid != latest.metadata.uid)
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_leaves_daemons_of_the_old_revision_alone() {
    let cluster = Cluster::start(3).await;
    cluster.apply::<DaemonSet>(set()).await;
    until(&cluster, "everywhere", (3, 3, 3)).await;
    let api = cluster.client.namespaced::<DaemonSet>("default");
    let uids = async || -> std::collections::BTreeSet<String> {
        let pods = cluster.list::<Pod>("default").await.into_iter();
        let of_first = pods.filter(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("nginx:1"));
        of_first.filter_map(|pod| pod.metadata.uid).collect()
    };
    let before = uids().await;

    // A template whose pods never become ready gets no further than one node.
    let broken = json!({ "spec": { "template": { "spec": {
        "readinessGates": [{ "conditionType": "test/never" }], "containers": [{ "name": "c", "image": "foo:non-existent" }],
    } } } });
    api.patch("agent", &Patch::strategic(broken)).await.unwrap();
    until(&cluster, "stuck at the first node", (3, 2, 1)).await;
    let kept = uids().await;
    assert_eq!(kept.len(), 2);
    assert!(kept.is_subset(&before));

    let back = json!({ "spec": { "template": { "spec": { "readinessGates": null, "containers": [{ "name": "c", "image": "nginx:1" }] } } } });
    api.patch("agent", &Patch::strategic(back)).await.unwrap();
    until(&cluster, "rolled back", (3, 3, 3)).await;
    assert!(kept.is_subset(&uids().await), "those that still had the old template were not restarted");
    api.patch("agent", &image("nginx:2")).await.unwrap();
    until(&cluster, "rolled", (3, 3, 3)).await;
    cluster
        .until::<DaemonSet>("default", "agent", "rolled for good", |set| {
            set.status.as_ref().is_some_and(|status| status.number_available == Some(3))
        })
        .await;
    let records = cluster.list::<ControllerRevision>("default").await;
    let cause =
        |one: &ControllerRevision| one.metadata.annotations.as_ref()?.get("kubernetes.io/change-cause").cloned();
    assert!(records.iter().all(|one| cause(one).as_deref() == Some("made")), "{records:?}");
    let numbers: std::collections::BTreeSet<i64> = records.iter().map(|one| one.revision).collect();
    assert_eq!(numbers, [2, 3, 4].into(), "the first record is used again under a new number");
    cluster.stop().await;
}
