//! `/metrics` against the table of what dashboards and alerts look for.

use ::metrics::upstream::{Component, problems};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

async fn metrics_of(cluster: &Cluster) -> String {
    let (code, text) = cluster.send_raw("GET", "/metrics", "", Value::Null).await;
    assert_eq!(code, 200);
    String::from_utf8(text.to_vec()).unwrap()
}

/// The sum of the series whose name and labels contain all of these.
fn sum(text: &str, parts: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_series_of_the_table_is_served_and_moves() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/namespaces/default/configmaps";
    let before = metrics_of(&cluster).await;

    let watched = cluster.request("GET", &format!("{path}?watch=1"), "", Bytes::new(), "ann", &[]).await;
    let mut events = watched.into_body();
    let open = &["apiserver_longrunning_requests{", "resource=\"configmaps\"", "verb=\"WATCH\""];
    assert_eq!(sum(&metrics_of(&cluster).await, open), 1.0);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen"}});
    assert_eq!(cluster.send("POST", path, object).await.0, 201);
    while !String::from_utf8_lossy(&events.frame().await.unwrap().unwrap().into_data().unwrap()).contains("seen") {}
    drop(events);
    assert_eq!(cluster.send("GET", path, Value::Null).await.0, 200);
    assert_eq!(cluster.send("GET", "/api/v1/componentstatuses", Value::Null).await.0, 200);
    // With the certificate of the administrator.
    let file = |name: &str| cluster.dir.path().join(name).display().to_string();
    let identity = ["--cert", &file("admin.crt"), "--key", &file("admin.key")];
    let (code, _) = cluster.curl("/api/v1/namespaces", &identity).await;
    assert_eq!(code, 200);

    let text = metrics_of(&cluster).await;
    assert_eq!(problems(Component::Apiserver, &text), Vec::<String>::new());
    for (parts, least) in [
        (&["apiserver_request_sli_duration_seconds_count{", "resource=\"configmaps\"", "verb=\"POST\""][..], 1.0),
        (&["apiserver_response_sizes_sum{", "resource=\"configmaps\"", "verb=\"LIST\""], 100.0),
        (&["apiserver_watch_events_total{", "resource=\"configmaps\""], 1.0),
        (&["apiserver_watch_events_sizes_count{", "resource=\"configmaps\""], 1.0),
        (&["etcd_requests_total{", "operation=\"create\"", "resource=\"configmaps\""], 1.0),
        (&["apiserver_watch_cache_events_received_total{", "resource=\"configmaps\""], 1.0),
        (&["apiserver_resource_objects{", "resource=\"configmaps\""], 1.0),
        (&["apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"}"], 1.0),
        (&["apiserver_client_certificate_expiration_seconds_count"], 1.0),
        (&["apiserver_requested_deprecated_apis{", "resource=\"componentstatuses\""], 1.0),
    ] {
        assert!(sum(&text, parts) - sum(&before, parts) >= least, "{parts:?}\n{text}");
    }
    assert_eq!(sum(&text, open), 0.0, "a watch that has ended is not counted");
    assert!(!text.contains("_slo_duration_"), "it is deprecated");
    // Nobody has asked how this server is.
    let (_, checks) = cluster.send_raw("GET", "/metrics/slis", "", Value::Null).await;
    let checks = String::from_utf8_lossy(&checks);
    assert!(checks.contains("kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1\n"), "{checks}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_hidden_is_shown_to_those_who_want_it() {
    let cluster = Cluster::with(|config| config.show_hidden_metrics = true).await;
    assert_eq!(cluster.send("GET", "/api/v1/namespaces/default/configmaps", Value::Null).await.0, 200);
    let text = metrics_of(&cluster).await;
    let shown = ["apiserver_request_slo_duration_seconds_count{", "resource=\"configmaps\"", "verb=\"LIST\""];
    assert!(sum(&text, &shown) >= 1.0, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_pages_about_the_server_need_permission() {
    let cluster = Cluster::with(|config| config.authorizers = vec![apiserver::Authorizer::Rbac]).await;
    assert_eq!(cluster.send_raw("GET", "/readyz", "", Value::Null).await.0, 200);
    for (path, expected) in [
        ("/metrics/slis", "kubernetes_healthcheck{name=\"etcd-readiness\",type=\"readyz\"} 1\n"),
        ("/metrics/slis", "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 1\n"),
        ("/statusz", "\nkube-apiserver statusz\nWarning: "),
        ("/statusz", "\nPaths: /flagz /healthz /livez /metrics /readyz /statusz /version\n"),
        ("/flagz", "\nkube-apiserver flagz\nWarning: "),
    ] {
        let (code, text) = cluster.send_raw("GET", path, "", Value::Null).await;
        let text = String::from_utf8_lossy(&text);
        assert!(code == 200 && text.contains(expected), "{path}: {code} {text}");
        let refused = cluster.request("GET", path, "", Bytes::new(), "ann", &[]).await;
        assert_eq!(refused.status().as_u16(), 403, "{path}");
        let allowed = cluster.request("GET", path, "", Bytes::new(), "ann", &["system:monitoring"]).await;
        assert_eq!(allowed.status().as_u16(), 200, "{path}");
    }
    let asked = |accept: &str| {
        let request = http::Request::get("/statusz").header("accept", accept);
        let mut request = request.body(Bytes::new()).unwrap();
        request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
        cluster.handle(request)
    };
    let answer = asked("application/json;v=v1beta1;g=config.k8s.io;as=Statusz").await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let value: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&value["kind"], &value["metadata"]["name"]), (&json!("Statusz"), &json!("kube-apiserver")));
    assert_eq!(asked("application/json;v=v9;g=config.k8s.io;as=Statusz").await.status().as_u16(), 406);
}
