//! `metrics.k8s.io` from what kubelets count. The kubelet is a few lines of TLS here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::Cluster;

const API: &str = "/apis/metrics.k8s.io/v1beta1";

/// Says of a node and its pods that each has used a second more of CPU whenever it is asked.
async fn kubelet(cluster: &Cluster, pods: &'static [&'static str]) -> u16 {
    let file = |name: &str| cluster.dir.path().join(name);
    let chain = tls::load_certificates(&file("server.crt")).unwrap();
    let key = tls::load_key(&file("server.key")).unwrap();
    let config = tls::server_builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seconds = Arc::new(AtomicU64::new(1));
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, seconds) = (acceptor.clone(), seconds.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(tcp).await.unwrap();
                let mut head = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(byte);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    // No more than is told: the rest would cost the node much more.
                    let asked = b"GET /stats/summary?only_cpu_and_memory=true&without_pressure=true ";
                    assert!(head.starts_with(asked), "{}", String::from_utf8_lossy(&head));
                    head.clear();
                    let used = seconds.fetch_add(1, Ordering::Relaxed) * 1_000_000_000;
                    let cpu = json!({"usageCoreNanoSeconds": used});
                    let pod = |name: &&str| {
                        json!({"podRef": {"namespace": "default", "name": name, "uid": name},
                            "containers": [{"name": "main", "cpu": cpu, "memory": {"workingSetBytes": 64 << 20}}]})
                    };
                    let pods: Vec<Value> = pods.iter().map(pod).collect();
                    let node = json!({"nodeName": "n", "cpu": cpu, "memory": {"workingSetBytes": 1 << 30}});
                    let text = json!({"node": node, "pods": pods}).to_string();
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    port
}

async fn table(cluster: &Cluster, path: &str) -> Value {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut request = http::Request::get(path).header("accept", accept).body(Bytes::new()).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let body = cluster.handle(request).await.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

/// A server with a node whose kubelet is in the same process.
async fn with_node(summaries: apiserver::Summaries) -> (Cluster, apiserver::LocalKubelet) {
    let slot = apiserver::LocalKubelet { node: "n".to_owned(), summaries: Arc::default() };
    *slot.summaries.lock() = Some(summaries);
    let cluster = Cluster::with(|config| {
        config.runtime_config = apiserver::RuntimeConfig(vec![("metrics.k8s.io/v1beta1".to_owned(), true)]);
        config.local_kubelet = Some(slot.clone());
    })
    .await;
    assert_eq!(cluster.send("POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.0, 201);
    (cluster, slot)
}

/// The node is said to be where nobody listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_in_this_process_is_asked_by_a_call() {
    let seconds = Arc::new(AtomicU64::new(1));
    let asked = seconds.clone();
    let summaries: apiserver::Summaries = Arc::new(move |query: &str| {
        assert_eq!(query, "only_cpu_and_memory=true&without_pressure=true");
        let used = asked.fetch_add(1, Ordering::Relaxed) * 1_000_000_000;
        let cpu = json!({"usageCoreNanoSeconds": used});
        let text = json!({"node": {"cpu": cpu, "memory": {"workingSetBytes": 1 << 30}}}).to_string();
        Box::pin(async move { Some(Bytes::from(text)) })
    });
    let (cluster, slot) = with_node(summaries).await;
    let since = "2026-01-01T00:00:00Z";
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": since, "lastTransitionTime": since}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    let patched = cluster.send_raw("PATCH", "/api/v1/nodes/n/status", "application/merge-patch+json", status).await;
    assert_eq!(patched.0, 200);
    let (code, nodes) = cluster.send("GET", &format!("{API}/nodes"), Value::Null).await;
    assert_eq!((code, names(&nodes)), (200, vec!["n"]));
    assert_eq!(seconds.load(Ordering::Relaxed), 3, "asked twice: a rate needs two counts");
    // Once it is gone, its port is all that is left.
    *slot.summaries.lock() = None;
    let (code, _) = cluster.send("GET", &format!("{API}/nodes"), Value::Null).await;
    assert_eq!(code, 200);
}

/// However long others wait for a new answer: the first count of a new pod is asked for at once, and the second makes its rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_has_just_started_is_told_after_two_counts() {
    let asked = Arc::new(AtomicU64::new(0));
    let pods: Arc<parking_lot::Mutex<Vec<&str>>> = Arc::new(parking_lot::Mutex::new(vec!["old"]));
    let (counted, there) = (asked.clone(), pods.clone());
    let summaries: apiserver::Summaries = Arc::new(move |_: &str| {
        let used = (counted.fetch_add(1, Ordering::Relaxed) + 1) * 1_000_000_000;
        let measured = json!({"name": "main", "cpu": {"usageCoreNanoSeconds": used}, "memory": {"workingSetBytes": 7}});
        let pod = |name: &&str| json!({"podRef": {"namespace": "default", "name": name}, "containers": [measured]});
        let pods: Vec<Value> = there.lock().iter().map(pod).collect();
        let text = json!({"node": measured, "pods": pods}).to_string();
        Box::pin(async move { Some(Bytes::from(text)) })
    });
    let (cluster, _slot) = with_node(summaries).await;
    let since = "2026-01-01T00:00:00Z";
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": since,
        "lastTransitionTime": since}]}});
    let merge = "application/merge-patch+json";
    assert_eq!(cluster.send_raw("PATCH", "/api/v1/nodes/n/status", merge, ready).await.0, 200);
    let account = json!({"metadata": {"name": "default"}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
    let start = async |name: &str, at: &str| {
        let pod = json!({"metadata": {"name": name},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i"}]}});
        assert_eq!(cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await.0, 201);
        let url = format!("/api/v1/namespaces/default/pods/{name}/status");
        let running = json!({"status": {"phase": "Running", "startTime": at}});
        assert_eq!(cluster.send_raw("PATCH", &url, merge, running).await.0, 200);
    };
    start("old", since).await;
    let path = format!("{API}/namespaces/default/pods");
    let (_, first) = cluster.send("GET", &path, Value::Null).await;
    assert_eq!(names(&first), ["old"]);

    start("new", &jiff::Timestamp::now().to_string()).await;
    pods.lock().push("new");
    let before = asked.load(Ordering::Relaxed);
    let told = loop {
        let (_, told) = cluster.send("GET", &path, Value::Null).await;
        if names(&told) == ["new", "old"] {
            break told;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    assert_eq!(asked.load(Ordering::Relaxed) - before, 2);
    // The others keep their windows.
    let window =
        |at: usize| told["items"][at]["window"].as_str().unwrap().trim_end_matches('s').parse::<f64>().unwrap();
    assert!(window(0) <= window(1), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_told_by_selectors_and_in_tables() {
    let cluster = Cluster::with(|config| {
        config.runtime_config = apiserver::RuntimeConfig(vec![("metrics.k8s.io/v1beta1".to_owned(), true)]);
    })
    .await;
    let port = kubelet(&cluster, &["db", "foreign", "web"]).await;
    for name in ["n", "other"] {
        let node = json!({"metadata": {"name": name, "labels": {"disk": "ssd"}}});
        assert_eq!(cluster.send("POST", "/api/v1/nodes", node).await.0, 201);
    }
    let since = "2026-01-01T00:00:00Z";
    // The other one is not ready, and not asked.
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": since, "lastTransitionTime": since}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    let patched = cluster.send_raw("PATCH", "/api/v1/nodes/n/status", "application/merge-patch+json", status).await;
    assert_eq!(patched.0, 200, "{}", String::from_utf8_lossy(&patched.1));
    let account = json!({"metadata": {"name": "default"}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
    for (name, node) in [("db", "n"), ("web", "n"), ("foreign", "other")] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]}});
        let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await;
        assert_eq!(code, 201, "{answer}");
    }

    let (code, nodes) = cluster.send("GET", &format!("{API}/nodes"), Value::Null).await;
    assert_eq!((code, &nodes["kind"], names(&nodes)), (200, &json!("NodeMetricsList"), vec!["n"]));
    let node = &nodes["items"][0];
    assert_eq!((&node["usage"]["memory"], &node["metadata"]["labels"]["disk"]), (&json!("1Gi"), &json!("ssd")));
    assert!(node["window"].as_str().is_some_and(|window| window.ends_with('s')), "{node}");
    assert!(node["usage"]["cpu"].as_str().is_some_and(|cpu| cpu != "0"), "{node}");

    // A node speaks for its own pods only.
    let of = |query: &str| format!("{API}/namespaces/default/pods{query}");
    for (query, expected) in [
        ("", vec!["db", "web"]),
        ("?labelSelector=app%3Dweb", vec!["web"]),
        ("?labelSelector=app%20in%20%28db%2Cforeign%29", vec!["db"]),
        ("?fieldSelector=metadata.name%3Ddb", vec!["db"]),
        ("?fieldSelector=metadata.namespace%21%3Ddefault", vec![]),
    ] {
        let (code, pods) = cluster.send("GET", &of(query), Value::Null).await;
        assert_eq!((code, names(&pods)), (200, expected), "{query}");
    }
    let (_, everywhere) = cluster.send("GET", &format!("{API}/pods"), Value::Null).await;
    assert_eq!(names(&everywhere), ["db", "web"]);
    let (code, refused) = cluster.send("GET", &of("?fieldSelector=spec.nodeName%3Dn"), Value::Null).await;
    let expected = r#""spec.nodeName" is not a known field selector: only "metadata.name", "metadata.namespace""#;
    assert_eq!((code, &refused["message"]), (400, &json!(expected)));

    let (code, pod) = cluster.send("GET", &of("/web"), Value::Null).await;
    assert_eq!((code, &pod["kind"], &pod["metadata"]["namespace"]), (200, &json!("PodMetrics"), &json!("default")));
    let container = &pod["containers"][0];
    assert_eq!((&container["name"], &container["usage"]["memory"]), (&json!("main"), &json!("64Mi")));
    for (path, code) in [(of("/foreign"), 404), (of("/none"), 404), (format!("{API}/nodes/other"), 404)] {
        assert_eq!(cluster.send("GET", &path, Value::Null).await.0, code, "{path}");
    }

    let shown = table(&cluster, &of("")).await;
    assert_eq!(shown["kind"], "Table", "{shown}");
    let columns: Vec<&str> =
        shown["columnDefinitions"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Name", "cpu", "memory", "Window"]);
    let cells: Vec<(&Value, &Value)> =
        shown["rows"].as_array().unwrap().iter().map(|row| (&row["cells"][0], &row["cells"][2])).collect();
    assert_eq!(cells, [(&json!("db"), &json!("64Mi")), (&json!("web"), &json!("64Mi"))]);
}
