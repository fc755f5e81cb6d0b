//! Tokens of every sort: those in Secrets, and those with which nodes introduce themselves.

use client::DeleteParams;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use serde_json::json;

use crate::harness::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_hold_tokens_as_long_as_their_account_lives() {
    let cluster = Cluster::start(0).await;
    cluster.apply::<ServiceAccount>(json!({ "metadata": { "name": "robot", "namespace": "default" } })).await;
    let secret = |name: &str, account: &str| {
        json!({
            "metadata": { "name": name, "namespace": "default", "annotations": { "kubernetes.io/service-account.name": account } },
            "type": "kubernetes.io/service-account-token",
        })
    };
    cluster.apply::<Secret>(secret("robot-token", "robot")).await;
    let field = |secret: &Secret, key: &str| {
        secret.data.as_ref().and_then(|data| data.get(key)).map(|value| String::from_utf8(value.0.clone()).unwrap())
    };
    let filled =
        cluster.until::<Secret>("default", "robot-token", "filled", |secret| field(secret, "token").is_some()).await;
    assert_eq!(field(&filled, "namespace").as_deref(), Some("default"));
    assert_eq!(field(&filled, "ca.crt").as_deref(), Some("PEM"));
    // The API server knows who that is.
    let robot = cluster.https(&field(&filled, "token").unwrap());
    let error = robot.namespaced::<Secret>("default").get("robot-token").await.unwrap_err();
    assert!(error.to_string().contains("system:serviceaccount:default:robot"), "{error}");
    // And notes that the token is used: those that nobody uses are retired after a year.
    let has = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
        map.as_ref().is_some_and(|map| map.contains_key(key))
    };
    let is_noted = |secret: &Secret| has(&secret.metadata.labels, "kubernetes.io/legacy-token-last-used");
    cluster.until::<Secret>("default", "robot-token", "noted as used", is_noted).await;
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    cluster.until::<ConfigMap>("kube-system", tracking, "there", |map| has(&map.data, "since")).await;

    cluster.apply::<Secret>(secret("nobodys-token", "nobody")).await;
    cluster.until_gone::<Secret>("default", "nobodys-token").await;
    let accounts = cluster.client.namespaced::<ServiceAccount>("default");
    accounts.delete("robot", &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<Secret>("default", "robot-token").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bootstrap_tokens_sign_and_end() {
    let cluster = Cluster::start(0).await;
    cluster.apply::<ConfigMap>(json!({ "metadata": { "name": "cluster-info", "namespace": "kube-public" }, "data": { "kubeconfig": "text" } })).await;
    let token = |id: &str, expiration: &str| {
        json!({
            "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system" },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": { "token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true", "expiration": expiration },
        })
    };
    let in_one_hour = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string();
    cluster.apply::<Secret>(token("abcdef", &in_one_hour)).await;
    let signed = |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data.contains_key("jws-kubeconfig-abcdef"));
    cluster.until::<ConfigMap>("kube-public", "cluster-info", "signed", signed).await;
    cluster.apply::<Secret>(token("fedcba", "2020-01-01T00:00:00Z")).await;
    cluster.until_gone::<Secret>("kube-system", "bootstrap-token-fedcba").await;
    let secrets = cluster.client.namespaced::<Secret>("kube-system");
    secrets.delete("bootstrap-token-abcdef", &DeleteParams::default()).await.unwrap();
    cluster.until::<ConfigMap>("kube-public", "cluster-info", "unsigned", |map| !signed(map)).await;
    cluster.stop().await;
}
