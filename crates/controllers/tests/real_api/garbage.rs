//! The garbage collector: circles, two owners, and preconditions.

use client::{DeleteParams, Patch};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use crate::harness::Cluster;

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
