//! Stored objects that cannot be read: nothing is decided as if they were not there, and the server says which they are.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use store::Store;

use crate::harness::Cluster;

const OPTION: &str = "ignoreStoreReadErrorWithClusterBreakingPotential=true";

/// Values that no type can be read from: some at first sight, some only by the type.
const DAMAGED: [&str; 4] =
    ["no json", "{}", r#"{"metadata":{"name":"bad"},"spec":5,"value":"x"#, r#"{"metadata":{"labels":"none"}}"#];

/// Writes values into the store of a server that does not run yet. A key is what follows `/registry/`.
fn damage(dir: &Path, values: &[(&str, &str)]) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = store::EmbeddedStore::open(dir.join("store"), Default::default()).unwrap();
                let store: &dyn Store = &store;
                for (key, value) in values {
                    let value = Bytes::copy_from_slice(value.as_bytes());
                    store.create(&format!("/registry/{key}"), value).await.unwrap();
                }
            });
        });
    });
}

async fn damaged(values: &[(&str, &str)]) -> Cluster {
    Cluster::with_files(|dir, config| {
        damage(dir, values);
        // No controller makes accounts here; one test is about them.
        if !values.iter().any(|(key, _)| key.starts_with("serviceaccounts/")) {
            config.disable_admission_plugins.push("ServiceAccount".to_owned());
        }
    })
    .await
}

async fn ready(cluster: &Cluster, path: &str) -> (u16, String) {
    let (code, body) = cluster.send_raw("GET", path, "application/json", Value::Null).await;
    (code, String::from_utf8_lossy(&body).into_owned())
}

/// Waits until a request is answered with `wanted`.
async fn until(cluster: &Cluster, method: &str, path: &str, body: &Value, wanted: u16) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let (code, answer) = cluster.send(method, path, body.clone()).await;
        if code == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{method} {path}: {code} {answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn config_map() -> Value {
    json!({"metadata": {"name": "c"}})
}

/// What is stored, where it is served, and a request that depends on it, with the answer once it is gone.
fn dependents() -> Vec<(&'static str, &'static str, &'static str, &'static str, Value, u16)> {
    let pods = "/api/v1/namespaces/default/pods";
    let config_maps = "/api/v1/namespaces/default/configmaps";
    vec![
        ("limitranges/default/bad", "/api/v1/namespaces/default/limitranges/bad", "POST", pods, pod(), 201),
        (
            "resourcequotas/default/bad",
            "/api/v1/namespaces/default/resourcequotas/bad",
            "POST",
            config_maps,
            config_map(),
            201,
        ),
        ("priorityclasses/bad", "/apis/scheduling.k8s.io/v1/priorityclasses/bad", "POST", pods, pod(), 201),
        (
            "serviceaccounts/default/default",
            "/api/v1/namespaces/default/serviceaccounts/default",
            "POST",
            pods,
            pod(),
            403,
        ),
        (
            "storageclasses/bad",
            "/apis/storage.k8s.io/v1/storageclasses/bad",
            "POST",
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}),
            201,
        ),
        (
            "servicecidrs/bad",
            "/apis/networking.k8s.io/v1/servicecidrs/bad",
            "POST",
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
            201,
        ),
        ("namespaces/some", "/api/v1/namespaces/some", "POST", "/api/v1/namespaces/some/configmaps", config_map(), 404),
        (
            "mutatingwebhookconfigurations/bad",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/bad",
            "POST",
            "/api/v1/namespaces",
            json!({"metadata": {"name": "n"}}),
            201,
        ),
        (
            "validatingwebhookconfigurations/bad",
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/bad",
            "POST",
            "/api/v1/namespaces",
            json!({"metadata": {"name": "n"}}),
            201,
        ),
        (
            "validatingadmissionpolicybindings/bad",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/bad",
            "POST",
            "/api/v1/namespaces",
            json!({"metadata": {"name": "n"}}),
            201,
        ),
        (
            "mutatingadmissionpolicybindings/bad",
            "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/bad",
            "POST",
            "/api/v1/namespaces",
            json!({"metadata": {"name": "n"}}),
            201,
        ),
        (
            "ingressclasses/bad",
            "/apis/networking.k8s.io/v1/ingressclasses/bad",
            "POST",
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
            json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}),
            201,
        ),
        (
            "runtimeclasses/bad",
            "/apis/node.k8s.io/v1/runtimeclasses/bad",
            "POST",
            pods,
            json!({"metadata": {"name": "p"},
                "spec": {"runtimeClassName": "bad", "containers": [{"name": "c", "image": "i"}]}}),
            403,
        ),
        (
            "apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com",
            "GET",
            "/apis/example.com/v1/widgets",
            Value::Null,
            404,
        ),
        (
            "apiregistration.k8s.io/apiservices/v1.example.com",
            "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com",
            "GET",
            "/apis/example.com/v1/widgets",
            Value::Null,
            404,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_what_cannot_be_read_is_enforced_by_refusing() {
    for (number, (key, path, method, dependent, body, afterwards)) in dependents().into_iter().enumerate() {
        let cluster = damaged(&[(key, DAMAGED[number % DAMAGED.len()])]).await;
        let full = format!("/registry/{key}");

        let (code, text) = ready(&cluster, "/readyz").await;
        assert!(code == 500 && text.contains("[-]informer-sync failed"), "{key}: {text}");
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (code, text) = ready(&cluster, "/readyz/informer-sync").await;
            assert_eq!(code, 500, "{key}: {text}");
            if text.contains(&full) {
                break;
            }
            assert!(text.contains("not finished") && Instant::now() < deadline, "{key}: {text}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }

        let (code, answer) = cluster.send(method, dependent, body.clone()).await;
        assert_eq!((code, &answer["reason"]), (500, &"InternalError".into()), "{key}: {answer}");
        let message = answer["message"].as_str().unwrap();
        assert_eq!(message, format!("Internal error occurred: stored object {full} cannot be read"));

        let (code, answer) = cluster.send("DELETE", &format!("{path}?{OPTION}"), Value::Null).await;
        assert_eq!((code, &answer["status"]), (200, &"Success".into()), "{key}: {answer}");
        until(&cluster, "GET", "/readyz", &Value::Null, 200).await;
        let (code, answer) = cluster.send(method, dependent, body).await;
        assert_eq!(code, afterwards, "{key}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_every_verb_refuses_what_cannot_be_read() {
    for value in DAMAGED {
        let cluster = damaged(&[("configmaps/default/bad", value)]).await;
        let maps = "/api/v1/namespaces/default/configmaps";
        let bad = format!("{maps}/bad");
        let (code, answer) = cluster.send("POST", maps, json!({"metadata": {"name": "good"}})).await;
        assert_eq!(code, 201, "{answer}");
        let (code, _) = ready(&cluster, "/readyz").await;
        assert_eq!(code, 500);
        until(&cluster, "GET", &bad, &Value::Null, 500).await;

        let object = json!({"metadata": {"name": "bad"}, "data": {"a": "b"}});
        for (method, path, body, codes) in [
            ("GET", bad.clone(), Value::Null, 500),
            ("GET", maps.to_owned(), Value::Null, 500),
            ("GET", "/api/v1/configmaps?labelSelector=a%3Db".to_owned(), Value::Null, 500),
            ("GET", format!("{maps}?limit=1&continue={}", ""), Value::Null, 500),
            ("GET", format!("{maps}?watch=1&timeoutSeconds=1"), Value::Null, 500),
            ("PUT", bad.clone(), object.clone(), 500),
            ("DELETE", bad.clone(), Value::Null, 500),
            // It is there, so nobody makes it anew.
            ("POST", maps.to_owned(), object, 409),
            // Who names another object is not concerned.
            ("GET", format!("{maps}/good"), Value::Null, 200),
            ("GET", format!("{maps}?fieldSelector=metadata.name%3Dgood"), Value::Null, 200),
            ("GET", "/api/v1/namespaces/kube-system/configmaps".to_owned(), Value::Null, 200),
        ] {
            let (code, answer) = cluster.send(method, &path, body).await;
            assert_eq!(code, codes, "{method} {path}: {answer}");
            if code == 500 {
                let message = answer["message"].as_str().unwrap();
                assert!(message.contains("/registry/configmaps/default/bad"), "{method} {path}: {message}");
                assert!(!message.contains("line") && !message.contains("none"), "quotes what is stored: {message}");
            }
        }
        let patch = cluster.send_raw("PATCH", &bad, "application/merge-patch+json", json!({"data": {"a": "b"}})).await;
        assert_eq!(patch.0, 500);

        let with = |options: Value| async {
            let (code, answer) = cluster.send("DELETE", &bad, options).await;
            (code, answer["message"].as_str().unwrap_or_default().to_owned())
        };
        let option = "ignoreStoreReadErrorWithClusterBreakingPotential";
        let (code, message) = with(json!({option: true, "gracePeriodSeconds": 5})).await;
        assert_eq!(code, 422);
        assert!(message.contains("cannot be set together with .gracePeriodSeconds"), "{message}");
        let (code, answer) = cluster.send("DELETE", &format!("{maps}/good"), json!({option: true})).await;
        assert_eq!(code, 422, "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("is exclusively used to delete corrupt object(s)"), "{message}");
        let (code, answer) = cluster.send("DELETE", maps, json!({option: true})).await;
        assert_eq!(code, 422, "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("is not allowed with DELETECOLLECTION"), "{answer}");

        let (code, _) = with(json!({option: true})).await;
        assert_eq!(code, 200);
        assert_eq!(cluster.send("GET", &bad, Value::Null).await.0, 404);
        assert_eq!(cluster.send("GET", maps, Value::Null).await.0, 200);
        until(&cluster, "GET", "/readyz", &Value::Null, 200).await;
    }
}

/// To remove what cannot be read skips finalizers and preconditions: the right to delete is not enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_removing_what_cannot_be_read_needs_a_right_of_its_own() {
    let cluster = Cluster::with_files(|dir, config| {
        config.authorizers = vec![apiserver::Authorizer::Rbac];
        damage(dir, &[("configmaps/default/bad", "no json"), ("rolebindings/default/broken", "no json")]);
    })
    .await;
    let role = json!({"metadata": {"name": "deleter"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}]});
    let binding = json!({"metadata": {"name": "ann"}, "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "deleter"}});
    let base = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    assert_eq!(cluster.send("POST", &format!("{base}/roles"), role).await.0, 201);
    assert_eq!(cluster.send("POST", &format!("{base}/rolebindings"), binding).await.0, 201);
    let ask = |method: &'static str, path: String| {
        let cluster = &cluster;
        async move {
            let answer = cluster.request(method, &path, "application/json", Bytes::new(), "ann", &[]).await;
            let code = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            (code, body["message"].as_str().unwrap_or_default().to_owned())
        }
    };
    let bad = "/api/v1/namespaces/default/configmaps/bad";
    let (code, message) = ask("DELETE", bad.to_owned()).await;
    assert_eq!(code, 500, "{message}");
    let (code, message) = ask("DELETE", format!("{bad}?{OPTION}")).await;
    assert_eq!(code, 403, "{message}");
    assert!(message.contains(r#"not permitted to do "unsafe-delete-ignore-read-errors""#), "{message}");
    // A binding that cannot be read allows nothing, and who is refused hears that there is one, but not which.
    let (code, message) = ask("GET", bad.to_owned()).await;
    assert_eq!(code, 403);
    assert!(message.contains("RBAC: some stored roles or bindings cannot be read"), "{message}");
    assert!(!message.contains("broken"), "{message}");
    assert_eq!(cluster.send("DELETE", &format!("{bad}?{OPTION}"), Value::Null).await.0, 200);
}
