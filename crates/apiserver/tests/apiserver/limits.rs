//! What a server does when too much is asked of it, or when nobody waits for the answer any more.

use apiserver::Authorizer;
use serde_json::{Value, json};
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
        config.enable_priority_and_fairness = false;
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

/// The same with priority and fairness: ann's level has three seats, and what she does with them is nobody else's concern.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_full_makes_its_own_flows_wait() {
    let cluster = Cluster::with(|config| config.authorizers = vec![Authorizer::AlwaysAllow]).await;
    let base = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let level = json!({"metadata": {"name": "small"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}}});
    let (code, level) = cluster.send("POST", &format!("{base}/prioritylevelconfigurations"), level).await;
    assert_eq!(code, 201, "{level}");
    let schema = json!({"metadata": {"name": "ann"}, "spec": {"matchingPrecedence": 50,
        "priorityLevelConfiguration": {"name": "small"}, "distinguisherMethod": {"type": "ByUser"},
        "rules": [{"subjects": [{"kind": "User", "user": {"name": "ann"}}], "resourceRules": [{"verbs": ["create"],
            "apiGroups": [""], "resources": ["configmaps"], "namespaces": ["*"]}]}]}});
    let (code, schema) = cluster.send("POST", &format!("{base}/flowschemas"), schema).await;
    assert_eq!(code, 201, "{schema}");

    let path = "/api/v1/namespaces/default/configmaps";
    let post = async |who: &str| {
        let token = format!("Authorization: Bearer {who}-token");
        let map = r#"{"metadata": {"generateName": "m-"}}"#;
        cluster.curl(path, &["-i", "-d", map, "-H", "Content-Type: application/json", "-H", &token]).await
    };
    // The server goes by the new objects as soon as it has seen them.
    let shows = |answer: &str, object: &Value, header: &str| {
        let uid = object["metadata"]["uid"].as_str().unwrap();
        answer.to_lowercase().contains(&format!("x-kubernetes-pf-{header}-uid: {uid}"))
    };
    let known = async {
        loop {
            let (code, answer) = post("ann").await;
            assert_eq!(code, 201, "{answer}");
            if shows(&answer, &schema, "flowschema") {
                break assert!(shows(&answer, &level, "prioritylevel"), "{answer}");
            }
            tokio::task::yield_now().await;
        }
    };
    let patience = std::time::Duration::from_secs(30);
    tokio::time::timeout(patience, known).await.expect("the schema is taken up");

    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut stream = cluster.connect(None).await;
        stream.write_all(format!("{SLOW}authorization: Bearer ann-token\r\n\r\n").as_bytes()).await.unwrap();
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 100"));
        slow.push(stream);
    }
    let (code, answer) = post("ann").await;
    assert!(code == 429 && answer.to_lowercase().contains("retry-after: 1"), "{code} {answer}");
    assert!(shows(&answer, &schema, "flowschema"), "{answer}");
    let (code, answer) = post("bob").await;
    assert!(code == 201 && !shows(&answer, &level, "prioritylevel"), "{code} {answer}");
    // Other requests of hers are another flow.
    assert_eq!(cluster.curl(path, &["-H", "Authorization: Bearer ann-token"]).await.0, 200);

    // With queues she waits instead, until a seat is free.
    let queues = json!([{"op": "replace", "path": "/spec/limited/limitResponse", "value": {"type": "Queue",
        "queuing": {"queues": 4, "handSize": 2, "queueLengthLimit": 10}}}]);
    let url = format!("{base}/prioritylevelconfigurations/small");
    let (code, _) = cluster.send_raw("PATCH", &url, "application/json-patch+json", queues).await;
    assert_eq!(code, 200);
    let free = async {
        let gauge = "apiserver_flowcontrol_current_inqueue_requests{flow_schema=\"ann\",priority_level=\"small\"} 1";
        loop {
            let (_, text) = cluster.send_raw("GET", "/metrics", "application/json", Value::Null).await;
            if String::from_utf8_lossy(&text).contains(gauge) {
                break slow.clear();
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let served = async {
        while post("ann").await.0 == 429 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(patience, async { tokio::join!(served, free) }).await.expect("she gets her turn");
    let (code, text) = cluster.send_raw("GET", "/debug/api_priority_and_fairness/dump_queues", "", Value::Null).await;
    assert!(code == 200 && String::from_utf8_lossy(&text).contains("small,\t3,\t0,"), "{text:?}");
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
    let cluster = Cluster::with(|config| {
        config.authorizers = vec![Authorizer::Rbac];
        config.cors_allowed_origins = vec!["^https://good[.]example$".to_owned()];
    })
    .await;
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
