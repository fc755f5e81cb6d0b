//! Initializers: objects that are finished by others before they are seen.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations";
const ALL: &str = "includeUninitialized=true";

async fn start() -> Cluster {
    let cluster = Cluster::with(|config| {
        config.runtime_config = apiserver::RuntimeConfig::parse("admissionregistration.k8s.io/v1alpha1=true").unwrap();
        config.authorizers = vec![apiserver::Authorizer::Rbac];
    })
    .await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "list", "watch", "update"]}]);
    assert_eq!(
        cluster
            .send("POST", &format!("{rbac}/clusterroles"), json!({"metadata": {"name": "r"}, "rules": rules}))
            .await
            .0,
        201
    );
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    assert_eq!(cluster.send("POST", &format!("{rbac}/clusterrolebindings"), binding).await.0, 201);
    cluster
}

async fn configure(cluster: &Cluster, names: &[&str]) {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]);
    let initializers: Vec<Value> = names.iter().map(|name| json!({"name": name, "rules": rules})).collect();
    let (code, answer) =
        cluster.send("POST", CONFIGURATIONS, json!({"metadata": {"name": "c"}, "initializers": initializers})).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(cluster.send("GET", &format!("{CONFIGURATIONS}/c"), Value::Null).await.0, 200);
}

async fn as_ann(cluster: &Cluster, method: &str, path: &str, body: Value) -> (u16, Value) {
    let response = cluster.request(method, path, "application/json", Bytes::from(body.to_string()), "ann", &[]).await;
    let code = response.status().as_u16();
    (code, serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap_or_default())
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_objects_are_hidden_until_everybody_is_done() {
    let cluster = start().await;
    configure(&cluster, &["first.example.com", "second.example.com"]).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}});
    let (code, created) = cluster.send("POST", &format!("{MAPS}?{ALL}"), map).await;
    assert_eq!(code, 201, "{created}");
    let pending = json!([{"name": "first.example.com"}, {"name": "second.example.com"}]);
    assert_eq!(created["metadata"]["initializers"], json!({"pending": pending}));
    let revision = created["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // Nobody sees it who does not ask.
    assert_eq!(cluster.send("GET", &format!("{MAPS}/m"), Value::Null).await.0, 404);
    assert!(names(&cluster.send("GET", MAPS, Value::Null).await.1).is_empty());
    assert_eq!(names(&cluster.send("GET", &format!("{MAPS}?{ALL}"), Value::Null).await.1), ["m"]);
    // Entries leave the list one at a time, in order, and only by those who may.
    let with_list = |list: Value, data: &str| {
        let mut object = created.clone();
        object["metadata"]["resourceVersion"] = Value::Null;
        object["metadata"]["initializers"] = list;
        object["data"]["a"] = data.into();
        object
    };
    let only_first = json!({"pending": [{"name": "first.example.com"}]});
    let only_second = json!({"pending": [{"name": "second.example.com"}]});
    let path = format!("{MAPS}/m");
    for (object, code, text) in [
        (with_list(only_first, "1"), 422, "removed one at a time, the first one first"),
        (with_list(Value::Null, "1"), 422, "removed one at a time, the first one first"),
        (with_list(only_second.clone(), "2"), 200, ""),
    ] {
        let (found, answer) = cluster.send("PUT", &path, object).await;
        assert_eq!(found, code, "{answer}");
        assert!(answer.to_string().contains(text), "{answer}");
    }
    let (code, answer) = as_ann(&cluster, "PUT", &path, with_list(Value::Null, "3")).await;
    assert_eq!(code, 403, "{answer}");
    assert_eq!(cluster.send("GET", &path, Value::Null).await.0, 404);
    let (code, answer) = cluster.send("PUT", &path, with_list(json!({"pending": []}), "3")).await;
    assert_eq!((code, answer["metadata"].get("initializers")), (200, None), "{answer}");
    let (code, seen) = cluster.send("GET", &path, Value::Null).await;
    assert_eq!((code, &seen["data"]["a"]), (200, &json!("3")));
    // Ordinary watchers saw it appear finished; those who asked saw every step.
    for (query, expected) in [("", vec!["ADDED"]), (ALL, vec!["MODIFIED", "MODIFIED"])] {
        let path = format!("{MAPS}?watch=true&resourceVersion={revision}&timeoutSeconds=1&{query}");
        let (_, body) = cluster.send_raw("GET", &path, "application/json", Value::Null).await;
        let types: Vec<String> = body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice::<Value>(line).unwrap()["type"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(types, expected, "{query}");
    }
    // Finished is finished.
    let (code, answer) = cluster.send("PUT", &path, with_list(only_second, "4")).await;
    assert_eq!(code, 422);
    assert!(answer.to_string().contains("immutable once initialization has completed"), "{answer}");
}

/// Does what an initializer does: finds unfinished objects whose turn is `name` and puts back what `finish` made of them.
async fn initialize(cluster: Arc<Cluster>, name: &'static str, finish: fn(&mut Value)) {
    loop {
        let (_, list) = cluster.send("GET", &format!("{MAPS}?{ALL}"), Value::Null).await;
        for mut item in list["items"].as_array().unwrap().clone() {
            let pending = item["metadata"]["initializers"]["pending"].as_array().cloned().unwrap_or_default();
            if pending.first().is_none_or(|first| first["name"] != name) {
                continue;
            }
            item["metadata"]["initializers"]["pending"] = pending[1..].to_vec().into();
            finish(&mut item);
            let path = format!("{MAPS}/{}", item["metadata"]["name"].as_str().unwrap());
            let (code, answer) = cluster.send("PUT", &path, item).await;
            assert_eq!(code, 200, "{answer}");
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creators_wait_and_failures_refuse() {
    let cluster = Arc::new(start().await);
    configure(&cluster, &["check.example.com"]).await;
    let worker = tokio::spawn(initialize(cluster.clone(), "check.example.com", |item| {
        if item["data"]["value"].as_str().unwrap_or_default().len() < 20 {
            item["metadata"]["initializers"]["result"] =
                json!({"status": "Failure", "code": 400, "reason": "BadRequest", "message": "value is too short"});
        } else {
            item["data"]["checked"] = "yes".into();
        }
    }));
    let map = |name: &str, value: &str| json!({"metadata": {"name": name}, "data": {"value": value}});
    let (code, answer) = as_ann(&cluster, "POST", MAPS, map("long", "a value of twenty letters")).await;
    assert_eq!((code, &answer["data"]["checked"]), (201, &json!("yes")), "{answer}");
    let (code, answer) = as_ann(&cluster, "POST", MAPS, map("short", "abc")).await;
    assert_eq!((code, &answer["message"]), (400, &json!("value is too short")), "{answer}");
    // The refused one goes as soon as its creator knows.
    while names(&cluster.send("GET", &format!("{MAPS}?{ALL}"), Value::Null).await.1) != ["long"] {
        tokio::task::yield_now().await;
    }
    worker.abort();
    // Only those who may initialize can go around it.
    let around = json!({"metadata": {"name": "around", "initializers": {"pending": []}}});
    assert_eq!(as_ann(&cluster, "POST", MAPS, around.clone()).await.0, 403);
    assert_eq!(cluster.send("POST", MAPS, around).await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_feature_is_off_unless_asked_for() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.send("GET", CONFIGURATIONS, Value::Null).await.0, 404);
    let map = json!({"metadata": {"name": "m", "initializers": {"pending": [{"name": "a.example.com"}]}}});
    let (code, answer) = cluster.send("POST", MAPS, map).await;
    assert_eq!((code, answer["metadata"].get("initializers")), (201, None), "{answer}");
}
