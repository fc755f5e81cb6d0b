//! An etcd that upstream's API server wrote: protobuf objects, some sealed, served as if they were ours.

use std::sync::Arc;

use apiserver::Storage;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use store::Store;

use crate::harness::Cluster;

/// An object as upstream stores it: what this server answers to clients that read nothing but protobuf.
async fn encoded(cluster: &Cluster, path: &str) -> Bytes {
    let request = http::Request::get(path).header("accept", "application/vnd.kubernetes.protobuf");
    let mut request = request.body(Bytes::new()).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let answer = cluster.handle(request).await;
    assert_eq!(answer.headers()["content-type"], "application/vnd.kubernetes.protobuf", "{path}");
    answer.into_body().collect().await.unwrap().to_bytes()
}

/// Takes out what is empty: our own protobuf leaves it out, which clients take for the same.
fn without_empty(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.values_mut().for_each(without_empty);
        fields.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|object| !object.is_empty()));
    } else if let Value::Array(items) = value {
        items.iter_mut().for_each(without_empty);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_upstream_wrote_into_etcd_is_served() {
    let etcd = crate::etcd::Cluster::start(1);
    let store: Arc<dyn Store> = Arc::new(etcd.connect().await);
    let unchecked = |config: &mut apiserver::Config| config.disable_admission_plugins.push("ServiceAccount".to_owned());
    let writer = Cluster::with(unchecked).await;
    let pod = json!({"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let objects = [
        ("/api/v1/namespaces/default/pods", "pods/default/p", pod),
        (
            "/api/v1/namespaces/default/configmaps",
            "configmaps/default/p",
            json!({"metadata": {"name": "p"}, "data": {"k": "v"}}),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            "deployments/default/p",
            json!({"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        ),
        ("/api/v1/namespaces", "namespaces/p", json!({"metadata": {"name": "p"}})),
    ];
    let mut expected = Vec::new();
    for (collection, key, object) in objects {
        let (code, created) = writer.send("POST", collection, object).await;
        assert_eq!(code, 201, "{created}");
        let path = format!("{collection}/p");
        store.put(&format!("/registry/{key}"), encoded(&writer, &path).await).await.unwrap();
        expected.push((path, format!("/registry/{key}"), created));
    }
    writer.stop().await;

    let cluster = Cluster::with(|config| {
        config.storage = Storage::Etcd(etcd.options());
        config.disable_admission_plugins.push("ServiceAccount".to_owned());
    })
    .await;
    for (path, key, mut created) in expected {
        let (code, mut found) = cluster.send("GET", &path, Value::Null).await;
        assert_eq!(code, 200, "{found}");
        let unchanged = found.clone();
        for object in [&mut created, &mut found] {
            object["metadata"]["resourceVersion"].take();
            without_empty(object);
        }
        assert_eq!(found, created, "{path}");
        // An update that changes nothing writes it as we do.
        let (code, put) = cluster.send("PUT", &path, unchanged).await;
        assert_eq!(code, 200, "{put}");
        assert!(store.get(&key).await.unwrap().unwrap().value.starts_with(b"{\"kind\":"), "{path}");
    }
    let selected = "/api/v1/pods?labelSelector=app%3Dweb";
    let (_, list) = cluster.send("GET", selected, Value::Null).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");

    // What comes by while the server runs.
    let map = store.get("/registry/configmaps/default/p").await.unwrap().unwrap().value;
    assert!(map.starts_with(b"{"));
    store.put("/registry/configmaps/default/bad", &b"k8s\0\xff\xff\xff"[..]).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while cluster.send("GET", "/api/v1/namespaces/default/configmaps/bad", Value::Null).await.0 != 500 {
        assert!(std::time::Instant::now() < deadline, "damage is an error, not absence");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_share_an_etcd_below_prefixes() {
    let etcd = crate::etcd::Cluster::start(1);
    let store: Arc<dyn Store> = Arc::new(etcd.connect().await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("encryption.yaml");
    let text = "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets]\n  \
         providers:\n  - aesgcm: {keys: [{name: k, secret: AAAAAAAAAAAAAAAAAAAAAA==}]}\n";
    std::fs::write(&file, text).unwrap();
    let below = async |prefix: &str| {
        Cluster::with(|config| {
            config.storage = Storage::Etcd(etcd.options());
            config.etcd_prefix = prefix.to_owned();
            config.encryption = Some(apiserver::EncryptionFile { path: file.clone(), automatic_reload: false });
            config.disable_admission_plugins.push("ServiceAccount".to_owned());
        })
        .await
    };
    let (one, two) = (below("/registry").await, below("two").await);
    let secrets = "/api/v1/namespaces/default/secrets";
    let (code, made) = two.send("POST", secrets, json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(one.send("GET", &format!("{secrets}/s"), Value::Null).await.0, 404);
    assert_eq!(two.send("GET", &format!("{secrets}/s"), Value::Null).await.1["data"]["a"], "Yg==");
    assert_eq!(two.send("GET", "/api/v1/secrets", Value::Null).await.1["items"].as_array().map(Vec::len), Some(1));

    // Bound to where it is, as upstream has it: what is moved cannot be opened.
    let sealed = store.get("/two/secrets/default/s").await.unwrap().unwrap().value;
    assert!(sealed.starts_with(b"k8s:enc:aesgcm:v1:k:"));
    assert!(store.get("/registry/secrets/default/s").await.unwrap().is_none());
    two.stop().await;
    let two = below("/two/").await;
    assert_eq!(two.send("GET", &format!("{secrets}/s"), Value::Null).await.1["data"]["a"], "Yg==");
    store.put("/registry/secrets/default/s", sealed).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while one.send("GET", &format!("{secrets}/s"), Value::Null).await.0 != 500 {
        assert!(std::time::Instant::now() < deadline, "what was moved is read");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
