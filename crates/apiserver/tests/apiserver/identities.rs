//! The ways to say who one is that need objects of the cluster, and who decides what they may do.

use apiserver::Authorizer;
use serde_json::{Value, json};

use crate::harness::{ADMIN_TOKEN, Cluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bootstrap_tokens_introduce_new_nodes() {
    let cluster = Cluster::with(|config| config.enable_bootstrap_token_auth = true).await;
    let far = "2100-01-01T00:00:00Z";
    for (id, kind, secret, usage, expires, given, good) in [
        ("aaaaaa", "bootstrap.kubernetes.io/token", "0123456789abcdef", "true", far, "0123456789abcdef", true),
        ("bbbbbb", "bootstrap.kubernetes.io/token", "0123456789abcdef", "true", far, "fedcba9876543210", false),
        ("cccccc", "bootstrap.kubernetes.io/token", "0123456789abcdef", "false", far, "0123456789abcdef", false),
        (
            "dddddd",
            "bootstrap.kubernetes.io/token",
            "0123456789abcdef",
            "true",
            "2001-01-01T00:00:00Z",
            "0123456789abcdef",
            false,
        ),
        ("eeeeee", "Opaque", "0123456789abcdef", "true", far, "0123456789abcdef", false),
        ("ffffff", "bootstrap.kubernetes.io/token", "short", "true", far, "short", false),
    ] {
        let object = json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": kind, "stringData": {
            "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": usage, "expiration": expires,
            "auth-extra-groups": "system:bootstrappers:workers,system:masters"}});
        let (code, answer) = cluster.send("POST", "/api/v1/namespaces/kube-system/secrets", object).await;
        assert_eq!(code, 201, "{answer}");
        let found = cluster.whoami(&["-H", &format!("Authorization: Bearer {id}.{given}")]).await;
        if !good {
            assert_eq!(found, Err(401), "{id}");
            continue;
        }
        let user = found.unwrap();
        assert_eq!(user["username"], format!("system:bootstrap:{id}"));
        // Groups outside of their own prefix are not theirs to give.
        let expected = json!(["system:bootstrappers", "system:bootstrappers:workers", "system:authenticated"]);
        assert_eq!(user["groups"], expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_can_be_refused_and_wrong_credentials_always_are() {
    let open = Cluster::with(|config| config.authorizers = vec![Authorizer::Rbac]).await;
    let closed = Cluster::with(|config| config.anonymous_auth = Some(false)).await;
    // Known as somebody, who may not ask who that is.
    assert_eq!(open.whoami(&[]).await, Err(403));
    assert_eq!(closed.whoami(&[]).await, Err(401));
    for cluster in [&open, &closed] {
        assert_eq!(cluster.whoami(&["-H", "Authorization: Bearer wrong"]).await, Err(401));
        let admin = format!("Authorization: Bearer {ADMIN_TOKEN}");
        assert_eq!(cluster.whoami(&["-H", &admin]).await.unwrap()["username"], "admin");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_nobody_is_allowed_everything() {
    for authorizers in [vec![Authorizer::AlwaysAllow], vec![Authorizer::Rbac, Authorizer::AlwaysAllow]] {
        for anonymous_auth in [None, Some(true)] {
            let cluster = Cluster::with(|config| {
                config.authorizers.clone_from(&authorizers);
                config.anonymous_auth = anonymous_auth;
            })
            .await;
            for nobody in [&[][..], &["-u", "bad:wrong"]] {
                assert_eq!(cluster.whoami(nobody).await, Err(401), "{authorizers:?} {anonymous_auth:?} {nobody:?}");
            }
        }
    }
}

/// Walk 2.4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorizers_are_asked_in_order() {
    let pods = "/api/v1/namespaces/default/pods";
    for (authorizers, user, groups, path, code) in [
        (vec![Authorizer::AlwaysAllow], "ann", vec![], pods, 200),
        (vec![Authorizer::AlwaysDeny], "ann", vec![], "/healthz", 403),
        (vec![Authorizer::AlwaysDeny], "admin", vec!["system:masters"], pods, 200),
        (vec![Authorizer::AlwaysDeny, Authorizer::Rbac], "ann", vec![], "/healthz", 200),
        (vec![Authorizer::Rbac, Authorizer::AlwaysAllow], "ann", vec![], pods, 200),
        (vec![Authorizer::Node, Authorizer::Rbac], "ann", vec![], pods, 403),
    ] {
        let shown = format!("{authorizers:?} {user} {path}");
        let cluster = Cluster::with(|config| config.authorizers = authorizers).await;
        let response = cluster.request("GET", path, "application/json", bytes::Bytes::new(), user, &groups).await;
        assert_eq!(response.status().as_u16(), code, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_requests_are_checked_and_decided_once() {
    let cluster = Cluster::start().await;
    let base = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let key = rcgen::KeyPair::generate().unwrap();
    let made = rcgen::CertificateParams::new(vec![]).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    let encode = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let request = |name: &str, pem: &str, signer: &str| {
        json!({"metadata": {"name": name}, "spec": {"request": encode(pem), "signerName": signer,
            "usages": ["client auth"], "username": "root", "groups": ["system:masters"]}})
    };
    let forged = made.replacen("-----BEGIN CERTIFICATE REQUEST-----\nM", "-----BEGIN CERTIFICATE REQUEST-----\nN", 1);
    for (pem, signer, code) in [
        (made.as_str(), "example.com/s", 201),
        (forged.as_str(), "example.com/s", 422),
        ("nonsense", "example.com/s", 422),
        (&made, "kubernetes.io/legacy-unknown", 422),
        (&made, "unqualified", 422),
    ] {
        let (found, answer) = cluster.send("POST", base, request("a", pem, signer)).await;
        assert_eq!(found, code, "{signer}: {answer}");
    }
    let (_, mut stored) = cluster.send("GET", &format!("{base}/a"), Value::Null).await;
    assert_eq!(stored["spec"]["username"], "admin", "who asks is who was authenticated");
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "r", "message": "m"});
    // Only `/approval` decides, and it decides once.
    stored["status"] = json!({"conditions": [condition("Approved")]});
    assert_eq!(cluster.send("PUT", &format!("{base}/a/status"), stored.clone()).await.0, 422);
    let (code, mut approved) = cluster.send("PUT", &format!("{base}/a/approval"), stored).await;
    assert_eq!(code, 200, "{approved}");
    assert!(approved["status"]["conditions"][0]["lastTransitionTime"].is_string(), "{approved}");
    approved["status"]["conditions"] = json!([condition("Denied")]);
    assert_eq!(cluster.send("PUT", &format!("{base}/a/approval"), approved.clone()).await.0, 422);
    approved["status"] = json!({"conditions": [condition("Approved")], "certificate": encode("nonsense")});
    assert_eq!(cluster.send("PUT", &format!("{base}/a/status"), approved).await.0, 422);
    let run = |args: &'static [&'static str]| cluster.kubectl(args);
    let table = run(&["get", "csr", "a", "--no-headers"]).await.unwrap();
    assert!(table.split_whitespace().any(|word| word == "Approved"), "{table}");
    let other = request("b", &made, "example.com/s");
    assert_eq!(cluster.send("POST", base, other).await.0, 201);
    run(&["certificate", "deny", "b"]).await.unwrap();
    assert!(run(&["get", "csr", "b"]).await.unwrap().contains("Denied"));
}
