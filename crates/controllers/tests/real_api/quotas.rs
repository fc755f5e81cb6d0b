//! Quotas hold while many create at once and the controller counts what is there.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota};
use serde_json::json;

use crate::harness::{Cluster, template};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_get_no_more_than_the_quota() {
    let cluster = Cluster::start(2).await;
    // Before the quota has been counted for the first time, nothing is charged to it: the controllers' own come first.
    cluster.until::<ConfigMap>("default", "kube-root-ca.crt", "published", |_| true).await;
    let hard = json!({ "pods": "5", "configmaps": "7" });
    let quota = json!({ "metadata": { "name": "few", "namespace": "default" }, "spec": { "hard": hard } });
    cluster.apply::<ResourceQuota>(quota).await;
    cluster
        .until::<ResourceQuota>("default", "few", "counted", |quota| {
            quota.status.as_ref().is_some_and(|status| status.used.is_some())
        })
        .await;
    let mut creations = tokio::task::JoinSet::new();
    for n in 0..40 {
        let client = cluster.client.clone();
        creations.spawn(async move {
            let meta = json!({ "name": format!("one-of-{n}"), "namespace": "default" });
            let pod = json!({ "metadata": meta, "spec": template("p", "nginx:1", "Always")["spec"] });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let map: ConfigMap = serde_json::from_value(json!({ "metadata": meta })).unwrap();
            let made = client.namespaced::<Pod>("default").create(&pod).await.is_ok();
            (made, client.namespaced::<ConfigMap>("default").create(&map).await.is_ok())
        });
    }
    let made = creations.join_all().await;
    let there = cluster.list::<Pod>("default").await.len();
    assert_eq!((there, made.iter().filter(|(pod, _)| *pod).count()), (5, 5));
    // With the one that was there.
    assert_eq!(cluster.list::<ConfigMap>("default").await.len(), 7);
    cluster.stop().await;
}
