//! Bodies, selectors and versions that nobody means well with: upstream's code and reason, and nothing changed.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::{ADMIN_TOKEN, Cluster};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn post(cluster: &Cluster, path: &str, content_type: &str, body: impl Into<Bytes>) -> (u16, Value) {
    let response = cluster.request("POST", path, content_type, body.into(), "admin", &["system:masters"]).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

fn yaml_bomb() -> String {
    let mut bomb =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\ndata:\n  a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..12 {
        let items = vec![format!("*a{}", i - 1); 9].join(",");
        bomb.push_str(&format!("  a{i}: &a{i} [{items}]\n"));
    }
    bomb
}

#[tokio::test]
async fn hostile_bodies_are_refused_and_nothing_changes() {
    let cluster = Cluster::start().await;
    let (_, before) = cluster.send("GET", MAPS, Value::Null).await;
    const JSON: &str = "application/json";
    const YAML: &str = "application/yaml";
    let deep = format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{}1{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let rows: Vec<(&str, Bytes, u16, &str)> = vec![
        (JSON, Bytes::from(deep.clone()), 400, "BadRequest"),
        (YAML, Bytes::from(deep), 400, "BadRequest"),
        (YAML, Bytes::from(yaml_bomb()), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"{\"metadata\":{\"name\":\"\xff\xfe\"}}"), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"{\"metadata\":"), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"{} {}"), 400, "BadRequest"),
        (JSON, Bytes::from_static(b""), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"null"), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"{\"metadata\":{\"name\":5}}"), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"{\"metadata\":[]}"), 400, "BadRequest"),
        (JSON, Bytes::from_static(b"{\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":1}}"), 400, "BadRequest"),
        (
            JSON,
            Bytes::from_static(b"{\"apiVersion\":\"v7\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}"),
            400,
            "BadRequest",
        ),
        (
            JSON,
            Bytes::from_static(b"{\"apiVersion\":\"v1\",\"kind\":\"Nothing\",\"metadata\":{\"name\":\"a\"}}"),
            400,
            "BadRequest",
        ),
        ("text/csv", Bytes::from_static(b"a,b"), 415, "UnsupportedMediaType"),
    ];
    for (content_type, body, code, reason) in rows {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let (found, status) = post(&cluster, MAPS, content_type, body).await;
        assert_eq!((found, status["reason"].as_str()), (code, Some(reason)), "{shown}: {status}");
        assert_eq!((status["kind"].as_str(), status["code"].as_u64()), (Some("Status"), Some(code.into())), "{status}");
    }
    let (_, after) = cluster.send("GET", MAPS, Value::Null).await;
    assert_eq!(before["items"], after["items"]);
}

#[tokio::test]
async fn bodies_end_at_three_mebibytes() {
    let cluster = Cluster::start().await;
    let body = json!({"metadata": {"name": "big"}, "data": {"k": "x".repeat(3 * 1024 * 1024)}}).to_string();
    let file = cluster.dir.path().join("big.json");
    std::fs::write(&file, body).unwrap();
    let data = format!("@{}", file.display());
    let token = format!("Authorization: Bearer {}", crate::harness::ADMIN_TOKEN);
    let args = ["-X", "POST", "-H", &token, "-H", "Content-Type: application/json", "--data-binary", &data];
    let (code, body) = cluster.curl(MAPS, &args).await;
    let status: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, status["reason"].as_str()), (413, Some("RequestEntityTooLarge")), "{body}");
    // Within the limit of a request, but above that of a ConfigMap.
    let body = json!({"metadata": {"name": "big"}, "data": {"k": "x".repeat(2 * 1024 * 1024)}});
    let (code, status) = cluster.send("POST", MAPS, body).await;
    assert_eq!((code, status["reason"].as_str()), (422, Some("Invalid")), "{status}");
}

#[tokio::test]
async fn impossible_questions_are_refused() {
    let cluster = Cluster::start().await;
    for (query, code, reason) in [
        ("labelSelector=a%20in%20b", 400, "BadRequest"),
        ("labelSelector=!!a", 400, "BadRequest"),
        ("labelSelector=a%3D%3D%3Db", 400, "BadRequest"),
        ("fieldSelector=spec.nodeName%3Dx", 400, "BadRequest"),
        ("fieldSelector=metadata.name", 400, "BadRequest"),
        ("limit=many", 400, "BadRequest"),
        ("resourceVersion=new", 400, "BadRequest"),
        ("resourceVersion=-1", 400, "BadRequest"),
        ("continue=nonsense", 400, "BadRequest"),
        ("resourceVersionMatch=Exact", 422, "Invalid"),
        ("resourceVersionMatch=Sometimes&resourceVersion=1", 422, "Invalid"),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422, "Invalid"),
        ("sendInitialEvents=true", 422, "Invalid"),
        ("watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=1", 422, "Invalid"),
        ("watch=true&sendInitialEvents=true", 422, "Invalid"),
        ("resourceVersion=999999999", 504, "Timeout"),
        ("watch=true&timeoutSeconds=soon", 400, "BadRequest"),
    ] {
        let (found, status) = cluster.send("GET", &format!("{MAPS}?{query}"), Value::Null).await;
        assert_eq!((found, status["reason"].as_str()), (code, Some(reason)), "{query}: {status}");
    }
    for (method, path, code, reason) in [
        ("GET", "/api/v7/pods", 404, "NotFound"),
        ("GET", "/apis/apps/v9/deployments", 404, "NotFound"),
        ("GET", "/apis/none.example.com/v1/things", 404, "NotFound"),
        ("POST", "/api/v1/namespaces/default/configmaps/x", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/namespaces", 405, "MethodNotAllowed"),
        ("PUT", MAPS, 405, "MethodNotAllowed"),
        ("POST", "/api/v1/watch/namespaces/default/configmaps?timeoutSeconds=1", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/watch/namespaces/default/configmaps?timeoutSeconds=1", 405, "MethodNotAllowed"),
        ("PUT", "/api/v1/watch/namespaces/default/configmaps/x?timeoutSeconds=1", 405, "MethodNotAllowed"),
        ("PATCH", "/apis/apps/v1/watch/deployments?timeoutSeconds=1", 405, "MethodNotAllowed"),
        ("POST", "/api/v1/namespaces/default/configmaps?dryRun=Some", 422, "Invalid"),
        ("POST", "/api/v1/namespaces/default/configmaps?fieldValidation=Maybe", 422, "Invalid"),
    ] {
        let body = if method == "GET" { Value::Null } else { json!({"metadata": {"name": "a"}}) };
        let (found, status) = cluster.send(method, path, body).await;
        assert_eq!((found, status["reason"].as_str()), (code, Some(reason)), "{method} {path}: {status}");
    }
}

/// A condition or a dry run that is passed over because it cannot be read would delete what was to stay.
#[tokio::test]
async fn security_options_that_cannot_be_read_delete_nothing() {
    let cluster = Cluster::start().await;
    let (code, map) = cluster.send("POST", MAPS, json!({"metadata": {"name": "kept"}})).await;
    assert_eq!(code, 201, "{map}");
    let path = format!("{MAPS}/kept");
    for (options, expected) in [
        (json!({"dryRun": "All"}), 400),
        (json!({"dryRun": ["Server"]}), 422),
        (json!({"dryRun": [true]}), 400),
        (json!({"preconditions": {"uid": 7}}), 400),
        (json!({"preconditions": "uid"}), 400),
        (json!({"preconditions": {"resourceVersion": 1}}), 400),
        (json!({"gracePeriodSeconds": "0"}), 400),
        (json!({"propagationPolicy": ["Orphan"]}), 400),
        (json!({"orphanDependents": "true"}), 400),
        (json!({"kind": "ConfigMap", "apiVersion": "v1"}), 400),
        (json!([]), 400),
    ] {
        for path in [path.as_str(), MAPS] {
            let (code, status) = cluster.send("DELETE", path, options.clone()).await;
            assert_eq!(code, expected, "{options}: {status}");
        }
        assert_eq!(cluster.send("GET", &path, Value::Null).await.0, 200, "{options}");
    }
    let uid = &map["metadata"]["uid"];
    let rehearsed =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"], "preconditions": {"uid": uid}});
    assert_eq!(cluster.send("DELETE", &path, rehearsed).await.0, 200);
    assert_eq!(cluster.send("DELETE", &path, json!({"propagationPolicy": "Background"})).await.0, 200);
    assert_eq!(cluster.send("GET", &path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn security_a_scale_that_cannot_be_read_is_not_none() {
    let cluster = Cluster::start().await;
    let labels = json!({"app": "a"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 3, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(cluster.send("POST", path, deployment).await.0, 201);
    let path = format!("{path}/d/scale");
    for (method, content_type, body) in [
        ("PUT", "application/json", json!({"spec": {"replicas": "5"}})),
        ("PUT", "application/json", json!({"spec": {"replicas": 1.5}})),
        ("PUT", "application/json", json!({"spec": {"replicas": 4_294_967_296_i64}})),
        ("PUT", "application/json", json!({"spec": "5"})),
        ("PUT", "application/json", json!("5")),
        ("PUT", "application/json", json!({"kind": "Deployment", "apiVersion": "apps/v1", "spec": {}})),
        ("PUT", "application/json", json!({"metadata": {"name": "other"}, "spec": {"replicas": 5}})),
        ("PATCH", "application/merge-patch+json", json!({"spec": {"replicas": "5"}})),
        ("PATCH", "application/json-patch+json", json!([{"op": "replace", "path": "/spec", "value": 5}])),
    ] {
        let (code, status) = cluster.send_raw(method, &path, content_type, body.clone()).await;
        assert_eq!(code, 400, "{body}: {}", String::from_utf8_lossy(&status));
        assert_eq!(cluster.send("GET", &path, Value::Null).await.1["spec"]["replicas"], 3, "{body}");
    }
    let scale =
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "d"}, "spec": {"replicas": 5}});
    assert_eq!(cluster.send("PUT", &path, scale).await.1["spec"]["replicas"], 5);
}

/// Whoever wants a token that ends with an object does not get one that outlives it.
#[tokio::test]
async fn security_a_token_is_bound_to_what_was_named_or_not_issued() {
    let cluster = Cluster::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(cluster.send("POST", accounts, json!({"metadata": {"name": "robot"}})).await.0, 201);
    for (reference, expected) in [
        (json!({"name": "p"}), 400),
        (json!({"kind": "", "name": "p"}), 400),
        (json!({}), 400),
        (json!({"kind": "ConfigMap", "name": "p"}), 400),
        (json!({"kind": "Secret", "apiVersion": "apps/v1", "name": "p"}), 400),
        (json!({"kind": "Pod", "apiVersion": "v1", "name": "p"}), 404),
        (Value::Null, 201),
    ] {
        let request = json!({"spec": {"audiences": ["a"], "boundObjectRef": reference}});
        let (code, answer) = cluster.send("POST", &format!("{accounts}/robot/token"), request).await;
        assert_eq!(code, expected, "{reference}: {answer}");
    }
}

/// Without a group, an audience or a kind that cannot be read, a review would answer another question.
#[tokio::test]
async fn security_reviews_answer_the_question_that_was_asked_or_none() {
    let cluster = Cluster::start().await;
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let access = |key: &str, value: Value| json!({"spec": {"user": "ann", key: value, "resourceAttributes": pods}});
    let token = |audiences: Value| json!({"spec": {"token": ADMIN_TOKEN, "audiences": audiences}});
    let (of_tokens, of_access) =
        ("authentication.k8s.io/v1/tokenreviews", "authorization.k8s.io/v1/subjectaccessreviews");
    let in_namespace = "authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    for (path, question, expected) in [
        (of_tokens, token(json!("vault")), 400),
        (of_tokens, token(json!([7])), 400),
        (of_tokens, token(json!(["vault"])), 201),
        (of_tokens, json!({"kind": "Pod", "spec": {"token": ADMIN_TOKEN}}), 400),
        (of_tokens, json!([]), 400),
        (of_access, access("groups", json!("dev")), 400),
        (of_access, access("groups", json!([7])), 400),
        (of_access, access("extra", json!({"scope": "a"})), 400),
        (of_access, access("extra", json!({"scope": ["a"]})), 201),
        (of_access, json!({"spec": {"user": "ann", "resourceAttributes": {"verb": ["get"]}}}), 400),
        (in_namespace, access("groups", json!("dev")), 400),
        (in_namespace, access("groups", json!(["dev"])), 201),
    ] {
        let (code, answer) = cluster.send("POST", &format!("/apis/{path}"), question.clone()).await;
        assert_eq!(code, expected, "{question}: {answer}");
    }
}
