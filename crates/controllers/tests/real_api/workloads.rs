//! The workloads and what goes with them: replicas, rollouts, endpoints, jobs, ordered sets, daemons, namespaces.

use client::{DeleteParams, ListParams, Patch};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

use crate::harness::{Cluster, deployment, image, is_rolled_out, patiently, template};

/// Walk 5.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_walk_of_a_deployment() {
    let cluster = Cluster::start(3).await;
    cluster.apply::<Deployment>(deployment("web", 3)).await;
    cluster.apply::<Service>(json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } })).await;
    let up =
        cluster.until::<Deployment>("default", "web", "available", |deployment| is_rolled_out(deployment, 3)).await;
    assert_eq!(up.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "1");

    // Endpoints follow the pods.
    let count = |endpoints: &Endpoints| {
        endpoints.subsets.iter().flatten().map(|subset| subset.addresses.as_ref().map_or(0, Vec::len)).sum::<usize>()
    };
    cluster.until::<Endpoints>("default", "web", "3 addresses", |endpoints| count(endpoints) == 3).await;
    // So do slices, of which another controller takes care.
    let slices = cluster.client.namespaced::<EndpointSlice>("default");
    let counts = async || {
        let of_service = ListParams::labels("kubernetes.io/service-name=web");
        let found = slices.list(&of_service).await.unwrap().items;
        found.iter().map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len)).collect::<Vec<_>>()
    };
    if patiently(async || (counts().await == [3]).then_some(())).await.is_none() {
        panic!("never one slice of 3 endpoints but {:?}", counts().await);
    }

    // Scale, roll, roll back.
    let api = cluster.client.namespaced::<Deployment>("default");
    api.patch("web", &Patch::merge(json!({ "spec": { "replicas": 10 } }))).await.unwrap();
    cluster.until::<Deployment>("default", "web", "scaled", |deployment| is_rolled_out(deployment, 10)).await;
    api.patch("web", &image("nginx:2")).await.unwrap();
    cluster.until::<Deployment>("default", "web", "rolled", |deployment| is_rolled_out(deployment, 10)).await;
    let images: std::collections::BTreeSet<_> = cluster
        .list::<Pod>("default")
        .await
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
        .collect();
    assert_eq!(images.into_iter().collect::<Vec<_>>(), ["nginx:2"]);
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2);
    api.patch("web", &image("nginx:1")).await.unwrap();
    let back =
        cluster.until::<Deployment>("default", "web", "rolled back", |deployment| is_rolled_out(deployment, 10)).await;
    assert_eq!(back.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "3");
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2, "the first ReplicaSet is used again");

    // Gone, with all that belongs to it, dependents first.
    api.delete("web", &DeleteParams::foreground()).await.unwrap();
    cluster.until_none::<Deployment>("default").await;
    assert!(cluster.list::<ReplicaSet>("default").await.is_empty());
    cluster.until_none::<Pod>("default").await;
    cluster.stop().await;
}

/// Walk 5.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_nodes_and_the_other_workloads() {
    let cluster = Cluster::start(3).await;
    cluster.apply::<Namespace>(json!({ "metadata": { "name": "team" } })).await;
    cluster.until::<ServiceAccount>("team", "default", "there", |_| true).await;
    let map = cluster.until::<ConfigMap>("team", "kube-root-ca.crt", "there", |_| true).await;
    assert_eq!(map.data.unwrap()["ca.crt"], "PEM");
    let mut ranges = std::collections::BTreeSet::new();
    for node in ["node-0", "node-1", "node-2"] {
        let node = cluster
            .until::<Node>("", node, "given a range", |node| {
                node.spec.as_ref().is_some_and(|spec| spec.pod_cidr.is_some())
            })
            .await;
        ranges.insert(node.spec.unwrap().pod_cidr.unwrap());
    }
    assert_eq!(ranges.into_iter().collect::<Vec<_>>(), ["10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24"]);

    cluster.apply::<Job>(json!({ "metadata": { "name": "sum", "namespace": "team" }, "spec": { "completions": 4, "parallelism": 2, "template": template("sum", "i", "Never") } })).await;
    let job = cluster
        .until::<Job>("team", "sum", "complete", |job| {
            job.status.as_ref().is_some_and(|status| status.completion_time.is_some())
        })
        .await;
    assert_eq!(job.status.unwrap().succeeded, Some(4));

    let set = json!({ "metadata": { "name": "db", "namespace": "team" }, "spec": { "replicas": 3, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } }, "template": template("db", "i", "Always") } });
    cluster.apply::<StatefulSet>(set).await;
    cluster
        .until::<StatefulSet>("team", "db", "ready", |set| {
            set.status.as_ref().is_some_and(|status| status.ready_replicas == Some(3))
        })
        .await;
    let mut names: Vec<_> = cluster
        .client
        .namespaced::<Pod>("team")
        .list(&ListParams::labels("app=db"))
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect();
    names.sort();
    assert_eq!(names, ["db-0", "db-1", "db-2"]);
    cluster.client.namespaced::<StatefulSet>("team").patch("db", &image("j")).await.unwrap();
    cluster
        .until::<StatefulSet>("team", "db", "updated", |set| {
            let status = set.status.clone().unwrap_or_default();
            status.observed_generation == set.metadata.generation
                && status.updated_replicas == Some(3)
                && status.current_revision == status.update_revision
                && status.ready_replicas == Some(3)
        })
        .await;

    let set = json!({ "metadata": { "name": "agent", "namespace": "team" }, "spec": { "selector": { "matchLabels": { "app": "agent" } }, "template": template("agent", "i", "Always") } });
    cluster.apply::<DaemonSet>(set).await;
    cluster
        .until::<DaemonSet>("team", "agent", "everywhere", |set| {
            set.status.as_ref().is_some_and(|status| status.number_ready == 3 && status.desired_number_scheduled == 3)
        })
        .await;

    cluster.client.all::<Namespace>().delete("team", &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<Namespace>("", "team").await;
    assert!(cluster.list::<Pod>("team").await.is_empty());
    cluster.stop().await;
}
