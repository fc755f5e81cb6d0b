//! What a server does when too much is asked of it, or when nobody waits for the answer any more.

use apiserver::Authorizer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{ADMIN_TOKEN, Cluster};

async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

const SLOW: &str = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: a\r\n\
    content-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n";

/// Walk 2.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_says_when_to_come_back_and_the_cluster_gets_through() {
    let cluster = Cluster::with(|config| {
        config.authorizers = vec![Authorizer::AlwaysAllow];
        config.max_mutating_requests_inflight = 1;
    })
    .await;
    // Somebody who announces a body and does not send it holds the only place. The server asks for the body once it has
    // given the place away, so there is nothing to wait for but that.
    let mut slow = cluster.connect(None).await;
    slow.write_all(format!("{SLOW}authorization: Bearer ann-token\r\n\r\n").as_bytes()).await.unwrap();
    assert!(head(&mut slow).await.starts_with("HTTP/1.1 100"));

    let path = "/api/v1/namespaces/default/configmaps";
    let map = r#"{"metadata": {"generateName": "m-"}}"#;
    let json = "Content-Type: application/json";
    let post = async |args: &[&str]| {
        let mut all = vec!["-i", "-d", map, "-H", json];
        all.extend(args);
        cluster.curl(path, &all).await
    };
    let (code, answer) = post(&["-H", "Authorization: Bearer bob-token"]).await;
    assert_eq!(code, 429, "{answer}");
    assert!(answer.to_lowercase().contains("retry-after: 1"), "{answer}");
    // Reads are counted apart; nodes have a place of their own, masters any number.
    assert_eq!(cluster.curl(path, &["-H", "Authorization: Bearer bob-token"]).await.0, 200);
    let file = |name: &str| cluster.dir.path().join(name).display().to_string();
    let (certificate, key) = (file("node.crt"), file("node.key"));
    assert_eq!(post(&["--cert", &certificate, "--key", &key]).await.0, 201);
    assert_eq!(post(&["-H", &format!("Authorization: Bearer {ADMIN_TOKEN}")]).await.0, 201);

    // When the client leaves, its request ends and the place is free again.
    drop(slow);
    let freed = async {
        while post(&["-H", "Authorization: Bearer bob-token"]).await.0 == 429 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), freed).await.expect("a place becomes free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_end_with_their_time_and_watches_do_not() {
    let cluster = Cluster::with(|config| config.request_timeout = std::time::Duration::from_secs(2)).await;
    let mut slow = cluster.connect(Some("admin")).await;
    slow.write_all(format!("{SLOW}\r\n").as_bytes()).await.unwrap();
    assert!(head(&mut slow).await.starts_with("HTTP/1.1 100"));
    let answer = head(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    let admin = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let watch = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1";
    assert_eq!(cluster.curl(watch, &["-H", &admin]).await.0, 200);
    assert_eq!(cluster.curl("/api/v1/pods?timeout=never", &["-H", &admin]).await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_of_allowed_origins_may_ask() {
    let cluster =
        Cluster::with(|config| config.cors_allowed_origins = vec!["^https://good[.]example$".to_owned()]).await;
    let ask = async |origin: &str, args: &[&str]| {
        let origin = format!("Origin: {origin}");
        let mut all = vec!["-i", "-H", origin.as_str()];
        all.extend(args);
        let (code, answer) = cluster.curl("/version", &all).await;
        (code, answer.to_lowercase().contains("access-control-allow-origin: https://good.example"))
    };
    assert_eq!(ask("https://good.example", &[]).await, (200, true));
    assert_eq!(ask("https://good.example", &["-X", "OPTIONS"]).await, (204, true));
    assert_eq!(ask("https://evil.example", &[]).await, (200, false));
    assert_ne!(ask("https://evil.example", &["-X", "OPTIONS"]).await.0, 204);
}
