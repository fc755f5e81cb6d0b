//! Webhooks that decide who somebody is and what they may do: good ones, and ones that hang, redirect or talk nonsense.

use std::time::Duration;

use apiserver::{Authorizer, FailurePolicy, TokenWebhookConfig, WebhookConfig};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::{ADMIN_TOKEN, Cluster};
use crate::servers::{Answer, Server};

/// A cluster whose configuration names a server that starts right after it.
async fn with_webhook(
    change: impl FnOnce(&std::path::Path, &str, &mut apiserver::Config),
    handler: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static,
) -> (Cluster, Server) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/hook", listener.local_addr().unwrap());
    let cluster = Cluster::with_files(|dir, config| {
        let kubeconfig = dir.join("hook.yaml");
        let text = format!(
            "clusters:\n- name: w\n  cluster:\n    server: {url}\n    certificate-authority: ca.crt\nusers:\n- name: u\n  user:\n    token: t\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        change(dir, kubeconfig.to_str().unwrap(), config);
    })
    .await;
    let server = Server::on(listener, cluster.dir.path(), handler);
    (cluster, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_webhook_is_believed_within_limits() {
    let (cluster, server) = with_webhook(
        |_, kubeconfig, config| {
            config.token_webhook = Some(TokenWebhookConfig {
                config_file: kubeconfig.into(),
                version: "v1".to_owned(),
                cache_ttl: Duration::from_secs(600),
            });
        },
        |_, review| {
            let status = |status: Value| Answer::Json(200, json!({"kind": "TokenReview", "status": status}));
            match review["spec"]["token"].as_str().unwrap_or_default() {
                "good" => status(json!({"authenticated": true, "user": {"username": "ann", "uid": "7",
                    "groups": ["dev"], "extra": {"k": ["v"]}}})),
                "elsewhere" => status(json!({"authenticated": true, "user": {"username": "ann"}, "audiences": ["x"]})),
                "bad" => status(json!({"authenticated": false})),
                "nobody" => status(json!({"authenticated": true, "user": {}})),
                "redirect" => Answer::Redirect("https://127.0.0.1:1/steal".to_owned()),
                "forbidden" => Answer::Text(403, "no"),
                _ => Answer::Text(200, "<html>"),
            }
        },
    )
    .await;
    let ask = async |token: &str| cluster.whoami(&["-H", &format!("Authorization: Bearer {token}")]).await;
    let user = ask("good").await.unwrap();
    assert_eq!((&user["username"], &user["extra"]["k"]), (&json!("ann"), &json!(["v"])));
    assert_eq!(user["groups"], json!(["dev", "system:authenticated"]));
    for token in ["elsewhere", "bad", "nobody", "redirect", "forbidden", "garbage"] {
        assert_eq!(ask(token).await, Err(401), "{token}");
    }
    // Answers are remembered, yes and no alike; trouble is not.
    let before = server.count();
    assert!(ask("good").await.is_ok() && ask("bad").await.is_err());
    assert_eq!(server.count(), before);
    assert!(ask("forbidden").await.is_err());
    assert_eq!(server.count(), before + 1);
    // Tokens that are known here never leave the machine.
    assert!(ask(ADMIN_TOKEN).await.is_ok());
    assert!(server.seen.lock().iter().all(|(_, review)| review["spec"]["token"] != ADMIN_TOKEN));
}

fn authorizer(kubeconfig: &str, timeout: Duration, failure_policy: FailurePolicy) -> Authorizer {
    Authorizer::Webhook(WebhookConfig {
        name: "w".to_owned(),
        config_file: kubeconfig.into(),
        version: "v1".to_owned(),
        authorized_ttl: Duration::from_secs(600),
        unauthorized_ttl: Duration::from_secs(600),
        timeout,
        failure_policy,
        match_conditions: Vec::new(),
    })
}

async fn get(cluster: &Cluster, user: &str, path: &str) -> u16 {
    cluster.request("GET", path, "application/json", bytes::Bytes::new(), user, &[]).await.status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authorization_webhook_decides_what_others_leave_open() {
    let (cluster, server) = with_webhook(
        |_, kubeconfig, config| {
            let webhook = authorizer(kubeconfig, Duration::from_secs(10), FailurePolicy::NoOpinion);
            config.authorizers = vec![webhook, Authorizer::Rbac];
        },
        |_, review| {
            let spec = &review["spec"];
            let status = |status: Value| Answer::Json(200, json!({"kind": "SubjectAccessReview", "status": status}));
            match (spec["user"].as_str().unwrap_or_default(), spec["resourceAttributes"]["resource"].as_str()) {
                ("ann", Some("pods")) => status(json!({"allowed": true})),
                ("ann", _) => status(json!({"allowed": false, "reason": "only pods"})),
                ("eve", _) => status(json!({"allowed": false, "denied": true, "reason": "never"})),
                ("loop", _) => Answer::Redirect("/hook".to_owned()),
                _ => status(json!({"allowed": false})),
            }
        },
    )
    .await;
    let pods = "/api/v1/namespaces/default/pods";
    for (user, path, code) in [
        ("ann", pods, 200),
        ("ann", "/api/v1/namespaces/default/secrets", 403),
        ("eve", pods, 403),
        // RBAC has its say where the webhook has none.
        ("bob", "/healthz", 200),
        ("bob", pods, 403),
        ("loop", pods, 403),
        ("eve", "/healthz", 403),
    ] {
        assert_eq!(get(&cluster, user, path).await, code, "{user} {path}");
    }
    let before = server.count();
    assert_eq!(get(&cluster, "ann", pods).await, 200);
    assert_eq!(server.count(), before, "the answer was remembered");
    let asked = server.seen.lock()[0].1.clone();
    assert_eq!(asked["spec"]["resourceAttributes"]["verb"], "list");
    assert_eq!(asked["spec"]["resourceAttributes"]["namespace"], "default");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_hangs_is_waited_for_only_so_long() {
    for (policy, health) in [(FailurePolicy::NoOpinion, 200), (FailurePolicy::Deny, 403)] {
        let (cluster, _server) = with_webhook(
            |_, kubeconfig, config| {
                config.authorizers = vec![authorizer(kubeconfig, Duration::from_millis(200), policy), Authorizer::Rbac];
            },
            |_, _| Answer::Silence,
        )
        .await;
        // With no opinion RBAC decides; otherwise silence is a no.
        assert_eq!(get(&cluster, "bob", "/healthz").await, health, "{policy:?}");
        assert_eq!(get(&cluster, "bob", "/api/v1/pods").await, 403, "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_webhook_is_asked_where_its_conditions_hold_and_not_passed_where_they_fail() {
    let (cluster, server) = with_webhook(
        |_, kubeconfig, config| {
            let mut webhook = authorizer(kubeconfig, Duration::from_secs(60), FailurePolicy::Deny);
            if let Authorizer::Webhook(webhook) = &mut webhook {
                // Fails where there is no resource, unless the user says no before.
                let of_pods = "request.resourceAttributes.resource == 'pods'";
                webhook.match_conditions = vec!["request.user != 'bob'".to_owned(), of_pods.to_owned()];
            }
            config.authorizers = vec![webhook, Authorizer::AlwaysAllow];
        },
        |_, _| {
            let status = json!({"allowed": false, "denied": true, "reason": "never"});
            Answer::Json(200, json!({"kind": "SubjectAccessReview", "status": status}))
        },
    )
    .await;
    let pods = "/api/v1/namespaces/default/pods";
    for (user, path, code, asked) in [
        ("ann", pods, 403, 1),
        ("bob", pods, 200, 0),
        ("ann", "/api/v1/namespaces/default/configmaps", 200, 0),
        ("ann", "/version", 403, 0),
        ("bob", "/version", 200, 0),
    ] {
        let before = server.count();
        assert_eq!(get(&cluster, user, path).await, code, "{user} {path}");
        assert_eq!(server.count() - before, asked, "{user} {path}");
    }
}
