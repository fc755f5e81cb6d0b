//! HTTP extenders: one that filters, scores and binds is asked and obeyed.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use scheduler::Configuration;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{Cluster, offers};

/// Rejects node `a`, likes `c` best, binds by itself, and writes down what it was asked.
async fn extend(listener: TcpListener, api: Arc<Mutex<Option<client::Client>>>, asked: Arc<Mutex<Vec<String>>>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (api, asked) = (api.clone(), asked.clone());
        let answer = service_fn(move |request: http::Request<Incoming>| {
            let (api, asked) = (api.clone(), asked.clone());
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await?.to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap();
                asked.lock().push(path.clone());
                let answer = match path.as_str() {
                    "/extend/filter" => {
                        let names = body["NodeNames"].as_array().cloned().unwrap();
                        let passed: Vec<Value> = names.into_iter().filter(|name| name != "a").collect();
                        json!({"NodeNames": passed, "FailedNodes": {"a": "not this one"}})
                    }
                    "/extend/prioritize" => json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 10}]),
                    _ => {
                        let client = api.lock().clone().unwrap();
                        let (name, node) = (body["PodName"].as_str().unwrap(), &body["Node"]);
                        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
                        let pods = client.namespaced::<k8s_openapi::api::core::v1::Pod>("default");
                        pods.create_subresource::<_, Value>(name, "binding", &binding).await.unwrap();
                        json!({})
                    }
                };
                Ok::<_, hyper::Error>(http::Response::new(Full::new(bytes::Bytes::from(answer.to_string()))))
            }
        });
        tokio::spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
        });
    }
}

/// Walk 6.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extenders_filter_score_and_bind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (api, asked) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
    let extender = tokio::spawn(extend(listener, api.clone(), asked.clone()));
    let text = format!(
        r#"
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
- {{urlPrefix: "http://{address}/extend", filterVerb: filter, prioritizeVerb: prioritize, bindVerb: bind, weight: 5, nodeCacheCapable: true}}
"#
    );
    let mut cluster = Cluster::with(Configuration::parse(&text).unwrap()).await;
    *api.lock() = Some(cluster.client.clone());
    cluster.node("a", offers("4")).await;
    cluster.pod("none", json!({})).await;
    let said = cluster.event("none", "FailedScheduling").await;
    assert!(said.starts_with("0/1 nodes are available: 1 not this one."), "{said}");
    for name in ["b", "c"] {
        cluster.node(name, offers("4")).await;
    }
    // Another node is worth a try for a pod that an extender rejected.
    for name in ["none", "next"] {
        if name == "next" {
            cluster.pod(name, json!({})).await;
        }
        assert_ne!(cluster.bound(name).await, "a");
    }
    assert_eq!(cluster.bound("next").await, "c");
    for path in ["/extend/filter", "/extend/prioritize", "/extend/bind"] {
        assert!(asked.lock().iter().any(|asked| asked == path), "{path}");
    }
    cluster.stop_scheduler().await;
    extender.abort();
}
