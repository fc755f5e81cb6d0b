//! Deployments, ReplicaSets and ReplicationControllers (conformance area 18), beyond the walk of `workloads`.

use std::collections::BTreeSet;
use std::sync::Arc;

use client::{Event, InformerFactory, ListParams, Patch};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::core::v1::{Pod, ReplicationController, ResourceQuota};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::{Cluster, deployment, image, is_rolled_out, patiently, template, until_no_conflict};

/// What a pod of a template that never becomes ready has: a gate that nobody opens.
fn never_ready() -> Patch {
    let gate = json!([{ "conditionType": "test/never" }]);
    let container = json!([{ "name": "c", "image": "webserver:404" }]);
    Patch::strategic(json!({ "spec": { "template": { "spec": { "readinessGates": gate, "containers": container } } } }))
}

fn sizes(sets: &[ReplicaSet]) -> Vec<i32> {
    let mut sizes: Vec<i32> = sets.iter().filter_map(|set| set.spec.as_ref()?.replicas).collect();
    sizes.sort_by_key(|size| std::cmp::Reverse(*size));
    sizes
}

async fn until_sizes(cluster: &Cluster, wanted: &[i32]) {
    let found = crate::harness::patiently(async || {
        let found = sizes(&cluster.list::<ReplicaSet>("default").await);
        (found == wanted).then_some(())
    });
    if found.await.is_none() {
        panic!("never {wanted:?} but {:?}", sizes(&cluster.list::<ReplicaSet>("default").await));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_named_after_their_set_and_let_go_when_labels_change() {
    let cluster = Cluster::start(2).await;
    cluster.apply::<Deployment>(deployment("web", 2)).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 2)).await;
    let set = cluster.list::<ReplicaSet>("default").await.remove(0);
    let (set_name, hash) = (set.metadata.name.unwrap(), set.metadata.labels.unwrap()["pod-template-hash"].clone());
    assert_eq!(set_name, format!("web-{hash}"));
    let pods = cluster.list::<Pod>("default").await;
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap();
        assert_eq!(name.strip_prefix(&format!("{set_name}-")).map(str::len), Some(5), "{name}");
        assert_eq!(pod.metadata.labels.as_ref().unwrap()["pod-template-hash"], hash);
    }

    // One that no longer matches belongs to nobody and is replaced; an orphan that matches is taken in.
    let strayed = pods[0].metadata.name.clone().unwrap();
    let api = cluster.client.namespaced::<Pod>("default");
    api.patch(&strayed, &Patch::merge(json!({ "metadata": { "labels": { "app": "other" } } }))).await.unwrap();
    cluster
        .until::<Pod>("default", &strayed, "released", |pod| {
            pod.metadata.owner_references.as_ref().is_none_or(Vec::is_empty)
        })
        .await;
    cluster.until_left::<Pod>("default", 3).await;

    let mut orphan = template("alone", "nginx:1", "Always");
    orphan["metadata"]["name"] = json!("alone");
    orphan["metadata"]["namespace"] = json!("default");
    let orphan = cluster.apply::<Pod>(orphan).await;
    let controller = json!({
        "metadata": { "name": "alone", "namespace": "default" },
        "spec": { "replicas": 1, "selector": { "app": "alone" }, "template": template("alone", "nginx:1", "Always") },
    });
    let controller = cluster.apply::<ReplicationController>(controller).await;
    let adopted = cluster
        .until::<Pod>("default", "alone", "adopted", |pod| {
            pod.metadata
                .owner_references
                .iter()
                .flatten()
                .any(|owner| Some(&owner.uid) == controller.metadata.uid.as_ref())
        })
        .await;
    assert_eq!(adopted.metadata.uid, orphan.metadata.uid);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreate_makes_no_new_pod_before_the_last_old_one_is_gone() {
    let cluster = Cluster::start(2).await;
    let informers = InformerFactory::new(cluster.client.clone());
    let seen: Arc<Mutex<BTreeSet<(String, String)>>> = Arc::default();
    let mixed: Arc<Mutex<bool>> = Arc::default();
    let (here, both) = (seen.clone(), mixed.clone());
    informers.namespaced::<Pod>("default", ListParams::default()).subscribe(move |event| {
        let pod = event.object();
        let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        let entry = (image, pod.metadata.name.clone().unwrap());
        let mut here = here.lock();
        match event {
            Event::Deleted(_) => here.remove(&entry),
            _ => here.insert(entry),
        };
        *both.lock() |= here.iter().map(|(image, _)| image).collect::<BTreeSet<_>>().len() > 1;
    });
    informers.start(cluster.stop.clone());
    let mut object = deployment("web", 4);
    object["spec"]["strategy"] = json!({ "type": "Recreate" });
    object["spec"]["revisionHistoryLimit"] = json!(0);
    cluster.apply::<Deployment>(object).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 4)).await;
    let api = cluster.client.namespaced::<Deployment>("default");
    api.patch("web", &image("nginx:2")).await.unwrap();
    cluster.until::<Deployment>("default", "web", "replaced", |found| is_rolled_out(found, 4)).await;
    // This watch may be behind those of the controllers.
    let images = || seen.lock().iter().map(|(image, _)| image.clone()).collect::<Vec<_>>();
    patiently(async || (images() == ["nginx:2"; 4]).then_some(())).await.unwrap_or_else(|| panic!("{:?}", images()));
    assert!(!*mixed.lock(), "old and new at once");
    // No history is kept.
    cluster.until_left::<ReplicaSet>("default", 1).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_in_the_middle_of_a_rollout_is_shared_in_proportion() {
    let cluster = Cluster::start(2).await;
    let mut object = deployment("web", 10);
    object["spec"]["strategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 3, "maxUnavailable": 2 } });
    cluster.apply::<Deployment>(object).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 10)).await;
    let api = cluster.client.namespaced::<Deployment>("default");
    api.patch("web", &never_ready()).await.unwrap();
    until_sizes(&cluster, &[8, 5]).await;
    cluster
        .until::<Deployment>("default", "web", "stuck with eight", |found| {
            found.status.as_ref().and_then(|status| status.available_replicas) == Some(8)
        })
        .await;
    api.patch("web", &Patch::merge(json!({ "spec": { "replicas": 30 } }))).await.unwrap();
    until_sizes(&cluster, &[20, 13]).await;
    let sets = cluster.list::<ReplicaSet>("default").await;
    for set in &sets {
        let annotations = set.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "30");
        assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "33");
    }

    // Rolled over: a third template takes the place of both.
    let good = json!({ "spec": { "replicas": 6, "template": { "spec": { "readinessGates": null, "containers": [{ "name": "c", "image": "nginx:3" }] } } } });
    api.patch("web", &Patch::strategic(good)).await.unwrap();
    let done = cluster.until::<Deployment>("default", "web", "rolled over", |found| is_rolled_out(found, 6)).await;
    assert_eq!(done.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "3");
    until_sizes(&cluster, &[6, 0, 0]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_tell_how_it_goes_and_those_of_others_stay() {
    let cluster = Cluster::start(2).await;
    cluster.apply::<Deployment>(deployment("web", 2)).await;
    let condition = |deployment: &Deployment, kind: &str| {
        let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
        let found = conditions.iter().find(|condition| condition.type_ == kind)?;
        Some((found.status.clone(), found.reason.clone().unwrap_or_default()))
    };
    let yes = |reason: &str| Some(("True".to_owned(), reason.to_owned()));
    let up = cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 2)).await;
    assert_eq!(condition(&up, "Available"), yes("MinimumReplicasAvailable"));
    cluster
        .until::<Deployment>("default", "web", "complete", |found| {
            condition(found, "Progressing") == yes("NewReplicaSetAvailable")
        })
        .await;
    let api = cluster.client.namespaced::<Deployment>("default");
    let foreign = json!({ "status": { "conditions": [{ "type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Set by a test" }] } });
    api.patch_status("web", &Patch::strategic(foreign)).await.unwrap();
    api.patch("web", &Patch::merge(json!({ "spec": { "replicas": 3 } }))).await.unwrap();
    let scaled = cluster.until::<Deployment>("default", "web", "scaled", |found| is_rolled_out(found, 3)).await;
    assert_eq!(condition(&scaled, "StatusUpdate"), yes("E2E"));

    // What the quota does not allow is said on the controller, and taken back when it fits.
    let quota = json!({ "metadata": { "name": "few", "namespace": "default" }, "spec": { "hard": { "pods": "5" } } });
    cluster.apply::<ResourceQuota>(quota).await;
    cluster
        .until::<ResourceQuota>("default", "few", "counted", |quota| {
            let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
            used.and_then(|used| used.get("pods")).is_some_and(|count| count.0 == "3")
        })
        .await;
    let controller = json!({
        "metadata": { "name": "greedy", "namespace": "default" },
        "spec": { "replicas": 3, "selector": { "app": "greedy" }, "template": template("greedy", "nginx:1", "Always") },
    });
    cluster.apply::<ReplicationController>(controller).await;
    let refused = |controller: &ReplicationController| {
        let status = controller.status.clone().unwrap_or_default();
        status
            .conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
    };
    cluster.until::<ReplicationController>("default", "greedy", "refused", refused).await;
    let api = cluster.client.namespaced::<ReplicationController>("default");
    api.patch("greedy", &Patch::merge(json!({ "spec": { "replicas": 2 } }))).await.unwrap();
    cluster
        .until::<ReplicationController>("default", "greedy", "content", |controller| {
            !refused(controller) && controller.status.as_ref().is_some_and(|status| status.ready_replicas == Some(2))
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_has_a_scale() {
    let cluster = Cluster::start(2).await;
    cluster.apply::<Deployment>(deployment("deployment", 1)).await;
    let spec = |name: &str, selector: Value| json!({ "replicas": 1, "selector": selector, "template": template(name, "nginx:1", "Always") });
    let labels = |name: &str| json!({ "matchLabels": { "app": name } });
    let meta = |name: &str| json!({ "name": name, "namespace": "default" });
    cluster.apply::<ReplicaSet>(json!({ "metadata": meta("set"), "spec": spec("set", labels("set")) })).await;
    let mut ordered = json!({ "metadata": meta("ordered"), "spec": spec("ordered", labels("ordered")) });
    ordered["spec"]["serviceName"] = json!("ordered");
    cluster.apply::<StatefulSet>(ordered).await;
    let controller =
        json!({ "metadata": meta("controller"), "spec": spec("controller", json!({ "app": "controller" })) });
    cluster.apply::<ReplicationController>(controller).await;

    async fn scales<K: client::Resource>(cluster: &Cluster, name: &str) {
        let api = cluster.client.namespaced::<K>("default");
        let scale: Scale = until_no_conflict(async || {
            let mut scale: Scale = api.get_subresource(name, "scale").await?;
            scale.spec.as_mut().unwrap().replicas = Some(2);
            api.update_subresource(name, "scale", &scale).await
        })
        .await;
        assert_eq!(scale.spec.unwrap().replicas, Some(2), "{name}");
        let patch = Patch::merge(json!({ "spec": { "replicas": 3 } }));
        let _: Scale = api.patch_path(name, Some("scale"), &patch).await.unwrap();
        let done = crate::harness::patiently(async || {
            let scale: Scale = api.get_subresource(name, "scale").await.unwrap();
            scale.status.filter(|status| status.replicas == 3)
        });
        let status = done.await.unwrap_or_else(|| panic!("{name} was not scaled"));
        assert_eq!(status.selector.as_deref(), Some(&*format!("app={name}")));
    }
    scales::<Deployment>(&cluster, "deployment").await;
    scales::<ReplicaSet>(&cluster, "set").await;
    scales::<StatefulSet>(&cluster, "ordered").await;
    scales::<ReplicationController>(&cluster, "controller").await;
    cluster.until_left::<Pod>("default", 12).await;
    cluster.stop().await;
}
