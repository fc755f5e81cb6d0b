//! The garbage collector (conformance area 10): each propagation, circles, two owners, and preconditions.

use client::{DeleteParams, Patch};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ReplicationController};
use serde_json::json;

use crate::harness::{Cluster, deployment, is_rolled_out, template};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_end_and_a_second_owner_keeps_its_own() {
    let cluster = Cluster::start(0).await;
    let api = cluster.client.namespaced::<ConfigMap>("default");
    let make = async |name: &str| {
        let map = cluster.apply::<ConfigMap>(json!({ "metadata": { "name": name, "namespace": "default" } })).await;
        map.metadata.uid.unwrap()
    };
    let owner = |name: &str, uid: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true });
    let own = async |name: &str, owners: serde_json::Value| {
        api.patch(name, &Patch::merge(json!({ "metadata": { "ownerReferences": owners } }))).await.unwrap();
    };

    let (a, b, c) = (make("a").await, make("b").await, make("c").await);
    own("a", json!([owner("c", &c)])).await;
    own("b", json!([owner("a", &a)])).await;
    own("c", json!([owner("b", &b)])).await;
    let other = DeleteParams::foreground().with_uid("someone else");
    assert!(api.delete("a", &other).await.unwrap_err().is_conflict());
    api.delete("a", &DeleteParams::foreground().with_uid(a)).await.unwrap();
    for name in ["a", "b", "c"] {
        cluster.until_gone::<ConfigMap>("default", name).await;
    }

    let (first, second) = (make("first").await, make("second").await);
    make("shared").await;
    own("shared", json!([owner("first", &first), owner("second", &second)])).await;
    api.delete("first", &DeleteParams::foreground()).await.unwrap();
    cluster.until_gone::<ConfigMap>("default", "first").await;
    let owners = |map: &ConfigMap| map.metadata.owner_references.clone().unwrap_or_default();
    let shared = cluster.until::<ConfigMap>("default", "shared", "with one owner", |map| owners(map).len() == 1).await;
    assert_eq!(owners(&shared)[0].uid, second);
    assert!(shared.metadata.deletion_timestamp.is_none());
    cluster.stop().await;
}

/// Walk 5.4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_take_their_pods_along_wait_for_them_or_let_them_live() {
    let cluster = Cluster::start(2).await;
    let api = cluster.client.namespaced::<ReplicationController>("default");
    let make = async |name: &str| {
        let spec =
            json!({ "replicas": 3, "selector": { "app": name }, "template": template(name, "nginx:1", "Always") });
        let made = cluster
            .apply::<ReplicationController>(
                json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec }),
            )
            .await;
        cluster
            .until::<ReplicationController>("default", name, "ready", |found| {
                found.status.as_ref().is_some_and(|status| status.ready_replicas == Some(3))
            })
            .await;
        made.metadata.uid.unwrap()
    };
    let uid = make("background").await;
    let wrong = DeleteParams::background().with_uid("someone else");
    assert!(api.delete("background", &wrong).await.unwrap_err().is_conflict());
    api.delete("background", &DeleteParams::background().with_uid(uid)).await.unwrap();
    cluster.until_none::<Pod>("default").await;

    // In the foreground the owner stays, marked, until the last of its pods is gone.
    make("foreground").await;
    let held = Patch::merge(json!({ "metadata": { "finalizers": ["example.com/hold"] } }));
    let pods = cluster.client.namespaced::<Pod>("default");
    let last = cluster.list::<Pod>("default").await.remove(0).metadata.name.unwrap();
    pods.patch(&last, &held).await.unwrap();
    api.delete("foreground", &DeleteParams::foreground()).await.unwrap();
    cluster.until_left::<Pod>("default", 1).await;
    let waiting = api.get("foreground").await.unwrap();
    assert_eq!(waiting.metadata.finalizers.as_deref(), Some(&["foregroundDeletion".to_owned()][..]));
    pods.patch(&last, &Patch::merge(json!({ "metadata": { "finalizers": null } }))).await.unwrap();
    cluster.until_gone::<ReplicationController>("default", "foreground").await;

    // Orphans keep running, and a set of them keeps its status.
    make("orphan").await;
    api.delete("orphan", &DeleteParams::orphan()).await.unwrap();
    cluster.until_gone::<ReplicationController>("default", "orphan").await;
    cluster.apply::<Deployment>(deployment("web", 2)).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 2)).await;
    cluster.client.namespaced::<Deployment>("default").delete("web", &DeleteParams::orphan()).await.unwrap();
    cluster.until_gone::<Deployment>("default", "web").await;
    let set = cluster.list::<ReplicaSet>("default").await.remove(0);
    assert!(set.metadata.owner_references.as_ref().is_none_or(Vec::is_empty));
    let status = set.status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas), (2, Some(2)));
    let all = cluster.list::<Pod>("default").await;
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()));
    cluster.stop().await;
}
