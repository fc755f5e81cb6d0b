//! `pods/eviction`: of one pod and no other, and one that is refused leaves nothing behind.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::MERGE;
use crate::webhook_server::{Reply, WebhookServer, patched};

const POD: &str = "/api/v1/namespaces/default/pods/p";
const BUDGET: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b";

/// A ready pod, and a budget that has one disruption for it.
async fn start() -> Cluster {
    let cluster = Cluster::start().await;
    let labels = json!({"app": "web"});
    for (path, body) in [
        ("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})),
        ("/api/v1/nodes", json!({"metadata": {"name": "n"}})),
        (
            "/api/v1/namespaces/default/pods",
            json!({"metadata": {"name": "p", "labels": labels},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}),
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}}}),
        ),
    ] {
        let (code, answer) = cluster.send("POST", path, body).await;
        assert_eq!(code, 201, "{path}: {answer}");
    }
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let counted = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1,
        "expectedPods": 2});
    for (path, status) in [(POD, ready), (BUDGET, counted)] {
        let (code, answer) =
            cluster.send_raw("PATCH", &format!("{path}/status"), MERGE, json!({"status": status})).await;
        assert_eq!(code, 200, "{path}: {}", String::from_utf8_lossy(&answer));
    }
    cluster
}

async fn get(cluster: &Cluster, path: &str) -> Value {
    let (code, object) = cluster.send("GET", path, Value::Null).await;
    assert_eq!(code, 200, "{object}");
    object
}

async fn evict(cluster: &Cluster, options: Value) -> (u16, Value) {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": options});
    cluster.send("POST", &format!("{POD}/eviction"), eviction).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_an_eviction_is_of_the_pod_that_was_meant() {
    let cluster = start().await;
    let before = get(&cluster, POD).await;
    let (uid, version) = (&before["metadata"]["uid"], &before["metadata"]["resourceVersion"]);
    for (options, expected) in [
        (json!({"preconditions": {"uid": "of another"}}), 409),
        (json!({"preconditions": {"uid": uid, "resourceVersion": "1"}}), 409),
        (json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true}), 422),
        (json!({"propagationPolicy": "Sometimes"}), 422),
    ] {
        let (code, answer) = evict(&cluster, options.clone()).await;
        assert_eq!(code, expected, "{options}: {answer}");
    }
    let other = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "q"}});
    let (code, answer) = cluster.send("POST", &format!("{POD}/eviction"), other).await;
    assert_eq!(code, 400, "{answer}");
    // Nothing was spent, and nothing is said of the pod.
    assert_eq!(get(&cluster, BUDGET).await["status"]["disruptionsAllowed"], 1);
    assert_eq!(get(&cluster, POD).await, before);
    // The eviction's own mark on the pod is no change of somebody else.
    let (code, answer) = evict(&cluster, json!({"preconditions": {"uid": uid, "resourceVersion": version}})).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(get(&cluster, BUDGET).await["status"]["disruptionsAllowed"], 0);
    let after = get(&cluster, POD).await;
    assert!(after["metadata"]["deletionTimestamp"].is_string(), "{after}");
    assert_eq!(after["status"]["conditions"][1]["type"], "DisruptionTarget", "{after}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_counts_too_many_as_going_lets_nobody_go() {
    let cluster = start().await;
    let going: serde_json::Map<String, Value> =
        (0..2001).map(|number| (format!("p{number}"), json!("2026-01-02T03:04:05Z"))).collect();
    let status = json!({"status": {"disruptedPods": going}});
    let (code, answer) = cluster.send_raw("PATCH", &format!("{BUDGET}/status"), MERGE, status).await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&answer));
    let (code, answer) = evict(&cluster, json!({})).await;
    assert_eq!(code, 403, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("DisruptedPods map too big"), "{answer}");
    cluster.stop().await;
}

/// Creates a webhook configuration of one hook, about pods or a subresource of theirs.
async fn configure(cluster: &Cluster, kind: &str, server: &WebhookServer, operation: &str, resource: &str) {
    let rule = json!({"operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]});
    let hook = json!({"name": "w.example.com", "clientConfig": server.client_config("/x"), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "rules": [rule]});
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}");
    let (code, answer) = cluster.send("POST", &path, json!({"metadata": {"name": "v"}, "webhooks": [hook]})).await;
    assert_eq!(code, 201, "{answer}");
    get(cluster, &format!("{path}/v")).await;
}

/// The mark on the pod and its deletion are no requests of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_asked_about_the_eviction_and_no_more() {
    let cluster = start().await;
    let server = WebhookServer::start(|_, _| Reply::Deny(json!({"message": "not now"}))).await;
    configure(&cluster, "validatingwebhookconfigurations", &server, "UPDATE", "pods/status").await;
    configure(&cluster, "mutatingwebhookconfigurations", &server, "DELETE", "pods").await;
    let (code, answer) = evict(&cluster, json!({})).await;
    assert_eq!(code, 201, "{answer}");
    assert!(server.take().is_empty());
    assert!(get(&cluster, POD).await["metadata"]["deletionTimestamp"].is_string());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_may_say_how_a_pod_goes() {
    let cluster = start().await;
    let options = json!([{"op": "add", "path": "/deleteOptions", "value": {"gracePeriodSeconds": 7}}]);
    let server = WebhookServer::start(move |_, _| patched(&options)).await;
    configure(&cluster, "mutatingwebhookconfigurations", &server, "CREATE", "pods/eviction").await;
    let (code, answer) = evict(&cluster, json!({"gracePeriodSeconds": 20})).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(get(&cluster, POD).await["metadata"]["deletionGracePeriodSeconds"], 7);
    cluster.stop().await;
}
