//! Probes and hooks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::node::{Node, is_ready, phase, restarts, shell};

/// Walk 7.4.
pub(crate) async fn probes_and_hooks_act(node: &mut Node) {
    let seen = node.dir.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    node.create(
        "alive",
        json!({
            "containers": [{"name": "c", "command": shell("touch /tmp/ok; exec sleep 1000"),
                "livenessProbe": {"exec": {"command": shell("test -e /tmp/ok && rm /tmp/ok 2>/dev/null; busybox rm -f /tmp/ok; test -e /tmp/never")}, "periodSeconds": 1, "failureThreshold": 1}}],
            "terminationGracePeriodSeconds": 1,
        }),
    )
    .await;
    node.create(
        "hooked",
        json!({
            "containers": [{"name": "c", "command": shell("trap 'echo term >> /seen/log; exit 0' TERM; touch /seen/trapped; while true; do sleep 0.1; done"),
                "lifecycle": {
                    "postStart": {"exec": {"command": shell("echo start >> /seen/log")}},
                    "preStop": {"exec": {"command": shell("echo stop >> /seen/log")}},
                },
                "volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}],
            "volumes": [{"name": "seen", "hostPath": {"path": seen, "type": "Directory"}}],
            "terminationGracePeriodSeconds": 60,
        }),
    )
    .await;
    node.create("closed", json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "readinessProbe": {"tcpSocket": {"port": 81}, "periodSeconds": 1}}]})).await;
    node.wait("alive", "restarted", |pod| restarts(pod) >= 1).await;
    node.wait_message("Container c failed liveness probe, will be restarted").await;
    node.wait("hooked", "ready", is_ready).await;
    node.wait_until("it has set its trap", || seen.join("trapped").exists()).await;
    node.api.client().namespaced::<Pod>("default").delete("hooked", &Default::default()).await.unwrap();
    node.wait_gone("hooked").await;
    assert_eq!(std::fs::read_to_string(seen.join("log")).unwrap(), "start\nstop\nterm\n");
    let closed = node.wait("closed", "running", |pod| phase(pod) == "Running").await;
    assert!(!is_ready(&closed));
}

/// `grpc.health.v1`, served by the test: ready while it says so, restarted when it does not.
pub(crate) async fn grpc_probes_ask_for_their_service(node: &mut Node) {
    let is_serving = Arc::new(AtomicBool::new(false));
    let (port, asked) = health_server(is_serving.clone()).await;
    // However slow the machine is, only what the server says counts.
    let probe = |service: &str| json!({"grpc": {"port": port, "service": service}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1});
    let pod = |kind: &str, service: &str| {
        json!({"hostNetwork": true, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "command": ["sleep", "1000"], kind: probe(service)}]})
    };
    node.create("ready", pod("readinessProbe", "web")).await;
    let started = node.wait("ready", "running", |pod| phase(pod) == "Running").await;
    assert!(!is_ready(&started));
    is_serving.store(true, Ordering::Relaxed);
    node.wait("ready", "ready", is_ready).await;
    node.create("alive", pod("livenessProbe", "")).await;
    let alive = node.wait("alive", "ready", is_ready).await;
    assert_eq!(restarts(&alive), 0);
    is_serving.store(false, Ordering::Relaxed);
    node.wait("alive", "restarted", |pod| restarts(pod) >= 1).await;
    node.wait("ready", "not ready", |pod| !is_ready(pod)).await;
    node.wait_message("Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")").await;
    let asked = asked.lock().unwrap();
    assert!(asked.contains("web") && asked.contains(""), "{asked:?}");
}

/// A server of `grpc.health.v1.Health/Check`; its port, and the services it was asked for.
async fn health_server(is_serving: Arc<AtomicBool>) -> (u16, Arc<Mutex<HashSet<String>>>) {
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<HashSet<String>>> = Arc::default();
    let seen = asked.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (is_serving, seen) = (is_serving.clone(), seen.clone());
            let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let (is_serving, seen) = (is_serving.clone(), seen.clone());
                async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    // Five bytes of frame; then field 1, a string, or nothing.
                    let service = body.get(7..).map(|text| String::from_utf8_lossy(text).into_owned());
                    seen.lock().unwrap().insert(service.unwrap_or_default());
                    let status = if is_serving.load(Ordering::Relaxed) { 1 } else { 2 };
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                    let frame = bytes::Bytes::from(vec![0, 0, 0, 0, 2, 8, status]);
                    let body = Full::new(frame).with_trailers(async move { Some(Ok(trailers)) });
                    let answer = http::Response::builder().header("content-type", "application/grpc").body(body);
                    Ok::<_, std::convert::Infallible>(answer.unwrap())
                }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    (port, asked)
}

/// A probe that takes too long has failed, one that answers badly too; hooks may be requests.
pub(crate) async fn probes_end_in_time_and_hooks_call_out(node: &mut Node) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    tokio::spawn(async move {
        use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let path = line.split(' ').nth(1).unwrap_or_default().to_string();
            let status = if path == "/broken" { "500 Broken" } else { "200 OK" };
            seen.lock().unwrap().push(path);
            // Whoever asks may not wait for the answer.
            let _ = stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await;
        }
    });
    let probe = |timeout: u32, action: (&str, serde_json::Value)| {
        json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "livenessProbe":
            {action.0: action.1, "periodSeconds": 1, "timeoutSeconds": timeout, "failureThreshold": 1}}], "terminationGracePeriodSeconds": 0})
    };
    let answered = |path: &str| probe(60, ("httpGet", json!({"host": "127.0.0.1", "port": port, "path": path})));
    let get = |path: &str| json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": path}});
    node.create("slow", probe(1, ("exec", json!({"command": ["sleep", "100"]})))).await;
    node.create("broken", answered("/broken")).await;
    node.create("fine", answered("/fine")).await;
    node.create(
        "calling",
        json!({"containers": [{"name": "c", "command": ["sleep", "1000"],
            "lifecycle": {"postStart": get("/echo?msg=poststart"), "preStop": get("/echo?msg=prestop")}}], "terminationGracePeriodSeconds": 5}),
    )
    .await;
    for name in ["slow", "broken"] {
        node.wait(name, "restarted", |pod| restarts(pod) >= 1).await;
    }
    node.wait("calling", "ready", is_ready).await;
    node.api.client().namespaced::<Pod>("default").delete("calling", &Default::default()).await.unwrap();
    node.wait_gone("calling").await;
    let was_asked = |path: &str| asked.lock().unwrap().iter().any(|known| known == path);
    for path in ["/broken", "/echo?msg=poststart", "/echo?msg=prestop"] {
        assert!(was_asked(path), "{path} in {asked:?}");
    }
    // This pod may be the last to start.
    node.wait_until("the probe that is answered well", || was_asked("/fine")).await;
    assert_eq!(restarts(&node.pod("fine").await.unwrap()), 0);
}
