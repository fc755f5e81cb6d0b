//! Conformance area 5: admission webhooks, as far as neither containers nor CEL are needed. How they misbehave and what
//! exactly they are sent is in `webhooks`.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::webhook_server::{Reply, WebhookServer, patched};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn configuration(name: &str, server: &WebhookServer, path: &str, rule: Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"suite": "area-05"}}, "webhooks": [{"name": format!("{name}.example.com"),
        "clientConfig": server.client_config(path), "sideEffects": "None", "admissionReviewVersions": ["v1", "v1beta1"],
        "rules": [rule]}]})
}

fn rule(operations: &[&str], resources: &[&str]) -> Value {
    json!({"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": resources})
}

async fn create(cluster: &Cluster, path: &str, body: Value) -> Value {
    let (code, answer) = cluster.send("POST", path, body).await;
    assert_eq!(code, 201, "{path}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configurations_are_discovered_listed_and_deleted_together() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|_, _| Reply::Allow).await;
    let (_, found) = cluster.send("GET", GROUP, Value::Null).await;
    for resource in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let known = found["resources"].as_array().unwrap().iter().any(|row| row["name"] == resource);
        assert!(known, "{resource}");
        let path = format!("{GROUP}/{resource}");
        for number in 0..3 {
            let rule = rule(&["CREATE"], &["configmaps"]);
            create(&cluster, &path, configuration(&format!("c{number}"), &server, "/x", rule)).await;
        }
        let selected = format!("{path}?labelSelector=suite%3Darea-05");
        let count = async || cluster.send("GET", &selected, Value::Null).await.1["items"].as_array().unwrap().len();
        assert_eq!(count().await, 3);
        assert_eq!(cluster.send("DELETE", &selected, Value::Null).await.0, 200);
        assert_eq!(count().await, 0);
    }
    create(&cluster, MAPS, json!({"metadata": {"name": "free"}})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_take_effect_when_they_change() {
    let cluster = Cluster::start().await;
    let server =
        WebhookServer::start(|_, _| Reply::Deny(json!({"message": "the configmap contains unwanted key and value"})))
            .await;
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    create(&cluster, &path, configuration("v", &server, "/configmaps", rule(&["CREATE"], &["configmaps"]))).await;
    let attempt = async |name: &str| cluster.send("POST", MAPS, json!({"metadata": {"name": name}})).await;
    let (code, answer) = attempt("a").await;
    assert_eq!(code, 400);
    let text = "admission webhook \"v.example.com\" denied the request: the configmap contains unwanted key and value";
    assert_eq!(answer["message"], text);
    // By update: creates are no longer asked about.
    let (_, mut stored) = cluster.send("GET", &format!("{path}/v"), Value::Null).await;
    stored["webhooks"][0]["rules"][0]["operations"] = json!(["UPDATE"]);
    assert_eq!(cluster.send("PUT", &format!("{path}/v"), stored).await.0, 200);
    assert_eq!(attempt("a").await.0, 201);
    // By patch: they are again.
    let patch = json!([{"op": "replace", "path": "/webhooks/0/rules/0/operations", "value": ["CREATE"]}]);
    let (code, _) = cluster.send_raw("PATCH", &format!("{path}/v"), "application/json-patch+json", patch).await;
    assert_eq!(code, 200);
    assert_eq!(attempt("b").await.0, 400);
    assert_eq!(cluster.send("GET", &format!("{MAPS}/b"), Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_defaulted_again_after_a_mutation() {
    let cluster = Cluster::start().await;
    create(&cluster, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let server = WebhookServer::start(|_, _| {
        patched(&json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "added", "image": "i"}]}]))
    })
    .await;
    let path = format!("{GROUP}/mutatingwebhookconfigurations");
    create(&cluster, &path, configuration("m", &server, "/pods", rule(&["CREATE"], &["pods"]))).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod = create(&cluster, PODS, pod).await;
    let added = &pod["spec"]["initContainers"][0];
    assert_eq!((&added["name"], &added["terminationMessagePolicy"]), (&json!("added"), &json!("File")), "{pod}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attaching_can_be_denied_and_the_configurations_themselves_cannot() {
    let cluster = Cluster::start().await;
    create(&cluster, "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let server = WebhookServer::start(|_, _| {
        Reply::Deny(json!({"message": "attaching to pod 'to-be-attached-pod' is not allowed"}))
    })
    .await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    create(&cluster, PODS, pod).await;
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    create(&cluster, &path, configuration("v", &server, "/x", rule(&["CONNECT"], &["pods/attach"]))).await;
    let (code, answer) = cluster.send("POST", &format!("{PODS}/p/attach"), Value::Null).await;
    assert_eq!(code, 400, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("attaching to pod"), "{answer}");
    // A webhook about webhooks is never asked.
    let everything = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
    create(&cluster, &path, configuration("all", &server, "/x", everything)).await;
    assert_eq!(cluster.send("DELETE", &format!("{path}/all"), Value::Null).await.0, 200);
}

/// The server says who it is to a webhook that its administrator named, and what admission did is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_learn_who_asks_and_are_counted() {
    let seen: Arc<Mutex<Option<String>>> = Arc::default();
    let noted = seen.clone();
    let server = WebhookServer::start_with_headers(move |headers, _, _| {
        *noted.lock() = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        Reply::Deny(json!({"message": "no", "code": 403}))
    })
    .await;
    let address = server.address;
    let cluster = Cluster::with_files(|dir, config| {
        let users = format!("users:\n- name: '{address}'\n  user: {{token: for-the-webhook}}\n");
        std::fs::write(dir.join("webhooks.yaml"), users).unwrap();
        let settings = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n\
             - name: ValidatingAdmissionWebhook\n  configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    \
             kind: WebhookAdmissionConfiguration\n    kubeConfigFile: {}\n",
            dir.join("webhooks.yaml").display()
        );
        std::fs::write(dir.join("admission.yaml"), settings).unwrap();
        config.admission_control_config_file = Some(dir.join("admission.yaml"));
    })
    .await;
    let path = format!("{GROUP}/validatingwebhookconfigurations");
    create(&cluster, &path, configuration("counted", &server, "/x", rule(&["CREATE"], &["configmaps"]))).await;
    assert_eq!(cluster.send("POST", MAPS, json!({"metadata": {"name": "a"}})).await.0, 403);
    assert_eq!(seen.lock().as_deref(), Some("Bearer for-the-webhook"));
    let (_, metrics) = cluster.send_raw("GET", "/metrics", "application/json", Value::Null).await;
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    for line in [
        "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"counted.example.com\",operation=\"CREATE\",rejection_code=\"403\",type=\"validating\"} 1",
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"ValidatingAdmissionWebhook\",operation=\"CREATE\",rejected=\"true\",type=\"validate\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}
