//! Clients that want the server to stand still: it goes on for everyone else.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{ADMIN_TOKEN, Cluster};

const SILENT: usize = 5000;
const DEADLINE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_thousands_of_silent_connections_take_nothing_from_others() {
    let places = tls::Limits { total: 400, per_address: 300 };
    let cluster = Cluster::with(|config| config.connections = Some(places)).await;
    let token = format!("Authorization: Bearer {ADMIN_TOKEN}");
    // Work that was there before and lasts.
    let mut watch = cluster.connect(Some("admin")).await;
    let request = "GET /api/v1/namespaces/default/configmaps?watch=1 HTTP/1.1\r\nhost: x\r\n\r\n";
    watch.write_all(request.as_bytes()).await.unwrap();
    let mut seen = String::new();
    read_until(&mut watch, &mut seen, "HTTP/1.1 200").await;

    let address = cluster.url.strip_prefix("https://").unwrap();
    let mut silent = Vec::new();
    for i in 0..SILENT {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if i % 3 == 0 {
            // A handshake that is never finished. Some have to make room before they get that far.
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await;
        }
        silent.push(stream);
    }
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(cluster.connect(None).await);
    }
    let body = json!({"metadata": {"name": "written"}}).to_string();
    let args = ["-m", "60", "-H", &token, "-H", "Content-Type: application/json", "-d", &body];
    let (code, answer) = cluster.curl("/api/v1/namespaces/default/configmaps", &args).await;
    assert_eq!(code, 201, "{answer}");
    read_until(&mut watch, &mut seen, "\"written\"").await;
    // The first of them had to make room.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(DEADLINE, silent[0].read_to_end(&mut rest)).await;
    assert!(ended.is_ok());
}

async fn read_until(stream: &mut (impl tokio::io::AsyncRead + Unpin), seen: &mut String, text: &str) {
    let reading = async {
        let mut buffer = [0; 4096];
        while !seen.contains(text) {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "ended after {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_aliases_that_expand_to_gigabytes_are_a_bad_request() {
    let cluster = Cluster::start().await;
    let bomb = format!(
        "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nspec: &a [{}]\nstatus: [{}]\n",
        "x,".repeat(30_000),
        "*a,".repeat(25_000)
    );
    for (path, method, content_type) in [
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "POST", "application/yaml"),
        ("/api/v1/namespaces/default/configmaps/c?fieldManager=f", "PATCH", "application/apply-patch+yaml"),
    ] {
        let bytes = bomb.clone().into();
        let response = cluster.request(method, path, content_type, bytes, "nobody", &["system:masters"]).await;
        let code = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert_eq!(code, 400, "{text}");
        assert!(text.contains("yaml: document contains excessive aliasing"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_strangers_leave_nothing_in_the_trace() {
    let rbac = |config: &mut apiserver::Config| config.authorizers = vec![apiserver::Authorizer::Rbac];
    let cluster = Cluster::with(rbac).await;
    let told = |name: &str| {
        let mut span = trace::Span::new(trace::Stage::Command, "kubectl", name);
        // Whatever a client says of time is bounded before anything is added to it.
        span.start = u64::MAX;
        span.duration = u64::MAX;
        let command = format!("{}: {}", trace::CLIENT_HEADER, serde_json::to_string(&span).unwrap());
        (command, format!("{}: {}", trace::CAUSE_HEADER, span.id))
    };
    let create = async |name: &str, token: &str| {
        let body = json!({"metadata": {"name": name}}).to_string();
        let token = format!("Authorization: Bearer {token}");
        let (command, cause) = told(&format!("told-{name}"));
        let args = ["-H", &token, "-H", &command, "-H", &cause, "-H", "Content-Type: application/json", "-d", &body];
        cluster.curl("/api/v1/namespaces/default/configmaps", &args).await.0
    };
    assert_eq!(create("a", "nobody").await, 401);
    assert_eq!(create("b", "ann-token").await, 403);
    // One that leaves before it is told that it may not: the rest of its body never comes.
    let (command, cause) = told("told-d");
    let length = "Content-Length: 1000";
    let args = ["--http1.1", "-X", "PUT", "--max-time", "1", "-H", &command, "-H", &cause, "-H", length, "-d", "{}"];
    cluster.curl("/api/v1/namespaces/default/configmaps/d", &args).await;
    assert_eq!(create("c", ADMIN_TOKEN).await, 201);
    let (code, walk) = cluster.send("GET", "/cox/trace?object=cm/c", Value::Null).await;
    assert_eq!(code, 200, "{walk}");
    assert!(walk.to_string().contains("told-c"), "{walk}");
    for name in ["a", "b", "d"] {
        let (code, walk) = cluster.send("GET", &format!("/cox/trace?object=cm/{name}"), Value::Null).await;
        assert_eq!(code, 404, "{walk}");
    }
}
