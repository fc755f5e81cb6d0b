//! Traces, to a real collector of OpenTelemetry over gRPC.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use otlp::TracingConfiguration;
use otlp::collector::Collector;
use otlp::messages::Span;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::webhook_server::{Reply, WebhookServer};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

async fn cluster(collector: &Collector, rate: i32) -> Cluster {
    let tracing = TracingConfiguration { endpoint: Some(collector.endpoint()), sampling_rate_per_million: Some(rate) };
    Cluster::with(|config| config.tracing = Some(tracing)).await
}

async fn send(cluster: &Cluster, method: &str, path: &str, groups: &[&str], body: Value) -> u16 {
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let mut request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01")).body(body).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("ann", groups));
    cluster.handle(request).await.status().as_u16()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn wait(collector: &Collector, wanted: impl Fn(&Span) -> bool) -> Span {
    let waiting = async {
        loop {
            if let Some((_, span)) = collector.spans().into_iter().find(|(_, span)| wanted(span)) {
                return span;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_on_through_requests_and_webhooks() {
    let collector = Collector::start().await;
    let cluster = cluster(&collector, 0).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = told.clone();
    let webhook = WebhookServer::start_with_headers(move |headers, _, _| {
        seen.lock().push(headers.get("traceparent").map(|text| text.to_str().unwrap().to_owned()));
        Reply::Allow
    })
    .await;
    let configuration = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "w.example.com",
        "clientConfig": webhook.client_config("/x"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    assert_eq!(cluster.send("POST", path, configuration).await.0, 201);

    let body = json!({"metadata": {"name": "traced"}});
    assert_eq!(send(&cluster, "POST", MAPS, &["system:masters"], body).await, 201);
    let is_request = |span: &Span| span.name == "POST /api/v1/namespaces/{:namespace}/configmaps";
    let request = wait(&collector, is_request).await;
    assert_eq!((hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()), (TRACE, PARENT));
    let attribute = |name: &str| request.attributes.iter().any(|attribute| attribute.key == name);
    assert!(["http.method", "http.target", "http.status_code", "audit-id"].into_iter().all(attribute));
    // What was done for it is a part of it, and whoever was asked meanwhile knows.
    let commit = wait(&collector, |span| span.name == "commit" && hex(&span.trace_id) == TRACE).await;
    assert_eq!(commit.parent_span_id, request.span_id);
    wait(&collector, |span| span.name == "authentication" && span.parent_span_id == request.span_id).await;
    let expected = format!("00-{TRACE}-{}-01", hex(&request.span_id));
    assert_eq!(told.lock().last().unwrap().as_deref(), Some(expected.as_str()));

    // Reads are traced as well, and leave nothing in the trace that is kept here.
    let reads = format!("{MAPS}/traced");
    assert_eq!(send(&cluster, "GET", &reads, &["system:monitoring", "system:masters"], Value::Null).await, 200);
    wait(&collector, |span| span.name == "GET /api/v1/namespaces/{:namespace}/configmaps/{:name}").await;
    let (_, text) = cluster.send_raw("GET", "/metrics", "", Value::Null).await;
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.contains("cox_trace_spans_exported_total{result=\"sent\"}"), "{text}");
    assert!(text.contains("cox_trace_spans_exported_total{result=\"lost\"} 0"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_only_the_trusted_choose_what_is_traced() {
    let collector = Collector::start().await;
    let cluster = cluster(&collector, 0).await;
    // A stranger's flag counts for nothing, whether the request is refused or not.
    for path in [MAPS, "/api", "/version"] {
        send(&cluster, "GET", path, &["dev"], Value::Null).await;
    }
    assert_eq!(send(&cluster, "GET", MAPS, &["system:masters"], Value::Null).await, 200);
    // Its parts may come before it. What strangers have sent was told before.
    wait(&collector, |span| hex(&span.parent_span_id) == PARENT).await;
    let requests = collector.spans().into_iter().filter(|(_, span)| hex(&span.parent_span_id) == PARENT);
    assert_eq!(requests.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_collector_that_never_answers_holds_nobody_up() {
    let collector = Collector::silent().await;
    let cluster = cluster(&collector, 1_000_000).await;
    for number in 0..50 {
        let body = json!({"metadata": {"name": format!("m{number}")}});
        assert_eq!(cluster.send("POST", MAPS, body).await.0, 201);
    }
    let stopping = tokio::time::timeout(Duration::from_secs(60), cluster.stop());
    stopping.await.unwrap();
}
