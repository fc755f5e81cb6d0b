//! The client over HTTPS.

use std::sync::Arc;

use client::Client;
use client::kubeconfig::{AuthInfo, Cluster as KubeCluster, Kubeconfig, Overrides};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use crate::harness::{Cluster, WAIT_TIMEOUT};

/// The same verbs and watches over HTTPS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_https() {
    let cluster = Cluster::without_manager(0).await;
    let client = cluster.https("secret");
    let informers = client::InformerFactory::new(client.clone());
    let maps = informers.informer::<ConfigMap>();
    let seen = Arc::new(tokio::sync::Notify::new());
    let notify = seen.clone();
    maps.subscribe(move |event| {
        if event.object().metadata.name.as_deref() == Some("hello") {
            notify.notify_one();
        }
    });
    informers.start(cluster.stop.clone());
    tokio::time::timeout(WAIT_TIMEOUT, maps.synced()).await.unwrap();
    let map: ConfigMap =
        serde_json::from_value(json!({ "metadata": { "name": "hello" }, "data": { "a": "b" } })).unwrap();
    client.namespaced::<ConfigMap>("default").create(&map).await.unwrap();
    tokio::time::timeout(WAIT_TIMEOUT, seen.notified()).await.unwrap();
    assert_eq!(maps.get("default/hello").unwrap().data.as_ref().unwrap()["a"], "b");
    assert!(client.namespaced::<ConfigMap>("default").get("absent").await.unwrap_err().is_not_found());
    let error = cluster.https("wrong").namespaced::<ConfigMap>("default").get("hello").await.unwrap_err();
    assert_eq!(error.code(), Some(401));
    let untrusted = Kubeconfig::single(
        "t",
        KubeCluster { server: Some(cluster.url.clone()), ..KubeCluster::default() },
        AuthInfo::default(),
        None,
    );
    assert!(
        Client::from_kubeconfig(&untrusted, &Overrides::default())
            .unwrap()
            .get_json::<Value>("/version")
            .await
            .is_err()
    );
    cluster.stop().await;
}
