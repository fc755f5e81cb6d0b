//! The three example initializers, as they are shipped, against the real API server.

#[path = "../../examples/initializers.rs"]
#[allow(dead_code, reason = "the program's own entry is not called here")]
mod examples;

use apiserver::RuntimeConfig;
use apiserver::{Server, Storage};
use client::{Client, Gvr};
use examples::{CERTIFICATE, Initializer, SECRET_LENGTH, SIDECAR};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Walk 4.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_finish_and_refuse_objects() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    std::fs::write(path("tls.crt"), certificate.cert.pem()).unwrap();
    std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
    let mut config = apiserver::Config::new(Storage::Embedded(path("store")));
    config.bind = "127.0.0.1:0".parse().unwrap();
    config.tls_cert_file = Some(path("tls.crt"));
    config.tls_private_key_file = Some(path("tls.key"));
    config.runtime_config = RuntimeConfig::parse("admissionregistration.k8s.io/v1alpha1=true").unwrap();
    let server = Server::new(config).await.unwrap();
    let client = Client::in_process(server.handler(), api::UserInfo::new("admin", &["system:masters"]));
    let core =
        |resource: &'static str, namespace: Option<&str>| client.dynamic(&Gvr::new("", "v1", resource), namespace);
    for namespace in ["test", "plain"] {
        core("namespaces", None).create(&json!({"metadata": {"name": namespace}})).await.unwrap();
        let account = json!({"metadata": {"name": "default"}});
        core("serviceaccounts", Some(namespace)).create(&account).await.unwrap();
    }
    let stop = CancellationToken::new();
    let mut workers = tokio::task::JoinSet::new();
    let configurations = Gvr::new("admissionregistration.k8s.io", "v1alpha1", "initializerconfigurations");
    for initializer in [SIDECAR, CERTIFICATE, SECRET_LENGTH] as [Initializer; 3] {
        let api = client.dynamic(&configurations, None);
        api.create(&initializer.configuration()).await.unwrap();
        // A read without a version waits until the server has seen the write.
        api.get(initializer.name).await.unwrap();
        let (client, stop) = (client.clone(), stop.clone());
        workers.spawn(async move { initializer.run(&client, &stop).await.unwrap() });
    }
    let pod = |name: &str, port: u16, annotations: Value| {
        json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": port}]}]}})
    };
    let asked = json!({"initializers.example.com/proxy": "true"});
    for (namespace, pod, proxied) in [
        ("plain", pod("web", 80, json!({})), true),
        ("plain", pod("other", 81, json!({})), false),
        ("plain", pod("asked", 81, asked), true),
        ("test", pod("tested", 81, json!({})), false),
    ] {
        // The create answers once everybody is done.
        let made = core("pods", Some(namespace)).create(&pod).await.unwrap();
        let containers = made["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.iter().any(|container| container["name"] == "proxy"), proxied, "{made}");
        let mounts = made["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
        let mounted = mounts.iter().any(|mount| mount["mountPath"] == "/etc/test-certificates");
        assert_eq!(mounted, namespace == "test", "{made}");
        assert!(made["metadata"].get("initializers").is_none(), "{made}");
    }
    let secret = |name: &str, value: &str| json!({"metadata": {"name": name}, "stringData": {"password": value}});
    let secrets = core("secrets", Some("plain"));
    secrets.create(&secret("long", "twenty letters or more")).await.unwrap();
    let refused = secrets.create(&secret("short", "hunter2")).await.unwrap_err();
    assert!(refused.to_string().contains("the value of \"password\" is shorter than 20 characters"), "{refused}");
    assert!(secrets.get_opt("short").await.unwrap().is_none());
    stop.cancel();
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
}
