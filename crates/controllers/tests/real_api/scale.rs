//! Many pods: scale up, roll, roll back, and delete with each propagation. `COX_SCALE` says how many (5000 takes a minute).

use std::collections::BTreeSet;

use client::{DeleteParams, Patch};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::harness::{Cluster, deployment, image, is_rolled_out};

/// Walk 5.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_scale_roll_and_leave_no_orphan() {
    let replicas: i32 = std::env::var("COX_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let cluster = Cluster::start(10).await;
    let api = cluster.client.namespaced::<Deployment>("default");
    cluster.apply::<Deployment>(deployment("web", 1)).await;
    let done = |deployment: &Deployment| is_rolled_out(deployment, replicas);
    api.patch("web", &Patch::merge(json!({ "spec": { "replicas": replicas } }))).await.unwrap();
    cluster.until::<Deployment>("default", "web", "scaled", done).await;
    for wanted in ["nginx:2", "nginx:1"] {
        api.patch("web", &image(wanted)).await.unwrap();
        cluster.until::<Deployment>("default", "web", "rolled", done).await;
        let alive = cluster.list::<Pod>("default").await;
        let images: BTreeSet<_> = alive
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
            .collect();
        assert_eq!(images.into_iter().collect::<Vec<_>>(), [wanted]);
    }
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2, "rolling back uses the first ReplicaSet again");

    // Orphans stay, and work on; then they go with their new owner, and the last ones in the foreground.
    api.delete("web", &DeleteParams::orphan()).await.unwrap();
    cluster.until_gone::<Deployment>("default", "web").await;
    let sets = cluster.list::<ReplicaSet>("default").await;
    assert!(sets.iter().all(|set| set.metadata.owner_references.as_ref().is_none_or(Vec::is_empty)));
    cluster.apply::<Deployment>(deployment("web", replicas)).await;
    cluster.until::<Deployment>("default", "web", "adopted", done).await;
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2, "adopted, not made anew");
    api.delete("web", &DeleteParams::background()).await.unwrap();
    cluster.until_none::<Pod>("default").await;
    cluster.until_none::<ReplicaSet>("default").await;

    cluster.apply::<Deployment>(deployment("web", replicas / 4)).await;
    cluster.until::<Deployment>("default", "web", "up again", |found| is_rolled_out(found, replicas / 4)).await;
    api.delete("web", &DeleteParams::foreground()).await.unwrap();
    cluster.until_gone::<Deployment>("default", "web").await;
    assert!(cluster.list::<ReplicaSet>("default").await.is_empty(), "dependents go first");
    assert!(cluster.list::<Pod>("default").await.is_empty(), "dependents go first");
    cluster.stop().await;
}
