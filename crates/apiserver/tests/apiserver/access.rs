//! Who may do what, over TLS.

use serde_json::{Value, json};

use crate::harness::{ADMIN_TOKEN, Cluster};

fn rbac(config: &mut apiserver::Config) {
    config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
}

/// Walk 2.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_checked() {
    let cluster = Cluster::with(rbac).await;
    let admin = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let ann = cluster.dir.path().join("ann");
    let (certificate, key) = (format!("{}.crt", ann.display()), format!("{}.key", ann.display()));
    let pods = "/api/v1/namespaces/default/pods";
    for (path, args, code) in [
        (pods, vec!["-H", &admin], 200),
        (pods, vec!["-H", "Authorization: Bearer ann-token"], 403),
        (pods, vec!["-H", "Authorization: Bearer wrong"], 401),
        (pods, vec![], 403),
        ("/healthz", vec![], 200),
        ("/version", vec![], 200),
        (pods, vec!["--cert", &certificate, "--key", &key], 403),
        (pods, vec!["-H", &admin, "-H", "Impersonate-User: ann"], 403),
        (
            pods,
            vec![
                "-H",
                "Authorization: Bearer ann-token",
                "-H",
                "Impersonate-User: admin",
                "-H",
                "Impersonate-Group: system:masters",
            ],
            403,
        ),
        (pods, vec!["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"], 403),
    ] {
        let (found, body) = cluster.curl(path, &args).await;
        assert_eq!(found, code, "{path} {args:?}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_give_rights_and_cannot_be_used_to_climb() {
    let cluster = Cluster::with(rbac).await;
    let base = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "r"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create", "update"]}]});
    assert_eq!(cluster.send("POST", &format!("{base}/roles"), role).await.0, 201);
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    assert_eq!(cluster.send("POST", &format!("{base}/rolebindings"), binding).await.0, 201);
    let as_ann = |method: &'static str, path: String, body: Value| {
        let cluster = &cluster;
        async move {
            cluster
                .request(method, &path, "application/json", body.to_string().into(), "ann", &[])
                .await
                .status()
                .as_u16()
        }
    };
    let rule = |resource: &str| json!({"metadata": {"name": format!("more-{resource}")}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]});
    for (method, path, body, code) in [
        ("GET", "/api/v1/namespaces/default/configmaps".to_owned(), Value::Null, 200),
        ("GET", "/api/v1/namespaces/kube-system/configmaps".to_owned(), Value::Null, 403),
        ("GET", "/api/v1/namespaces/default/secrets".to_owned(), Value::Null, 403),
        ("POST", format!("{base}/roles"), rule("configmaps"), 201),
        ("POST", format!("{base}/roles"), rule("secrets"), 403),
    ] {
        assert_eq!(as_ann(method, path.clone(), body).await, code, "{method} {path}");
    }
    let (_, review) = cluster
        .send(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            json!({"spec": {"user": "ann",
            "resourceAttributes": {"verb": "list", "resource": "configmaps", "namespace": "default"}}}),
        )
        .await;
    assert_eq!(review["status"]["allowed"], true, "{review}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_account_tokens_work_and_die_with_the_account() {
    let cluster = Cluster::with(rbac).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(cluster.send("POST", accounts, json!({"metadata": {"name": "s"}})).await.0, 201);
    let (code, answer) =
        cluster.send("POST", &format!("{accounts}/s/token"), json!({"spec": {"expirationSeconds": 600}})).await;
    assert_eq!(code, 201, "{answer}");
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let bearer = format!("Authorization: Bearer {token}");
    let (code, body) = cluster.curl("/api/v1/namespaces/default/pods", &["-H", &bearer]).await;
    assert_eq!(code, 403);
    assert!(body.contains("system:serviceaccount:default:s"), "{body}");
    let (_, review) =
        cluster.send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": token}})).await;
    assert_eq!(review["status"]["user"]["username"], "system:serviceaccount:default:s", "{review}");
    cluster.send("DELETE", &format!("{accounts}/s"), Value::Null).await;
    let (code, _) = cluster.curl("/version", &["-H", &bearer]).await;
    assert_eq!(code, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_limited() {
    let cluster = Cluster::start().await;
    let file = cluster.dir.path().join("big");
    std::fs::write(&file, vec![b' '; 4 << 20]).unwrap();
    let data = format!("@{}", file.display());
    let bearer = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let (code, _) = cluster.curl("/api/v1/namespaces/default/pods", &["-H", &bearer, "--data-binary", &data]).await;
    assert_eq!(code, 413);
}
