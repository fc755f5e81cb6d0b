//! Conformance area 7: field validation and server-side apply.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::APPLY;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// A Deployment as text, so that fields can stand in it twice.
fn deployment(metadata: &str, spec: &str) -> String {
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"d"{metadata}}},"spec":{{{spec}"selector":{{"matchLabels":{{"a":"b"}}}},"template":{{"metadata":{{"labels":{{"a":"b"}}}},"spec":{{"containers":[{{"name":"c","image":"i"}}]}}}}}}}}"#
    )
}

async fn post(cluster: &Cluster, query: &str, body: String) -> (u16, Vec<String>, Value) {
    let url = format!("{DEPLOYMENTS}?{query}");
    let response =
        cluster.request("POST", &url, "application/json", Bytes::from(body), "admin", &["system:masters"]).await;
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter().map(|value| value.to_str().unwrap().to_owned());
    let warnings = warnings.collect();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, warnings, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn unknown_and_duplicate_fields_are_refused_warned_of_or_ignored() {
    let cluster = Cluster::start().await;
    let spec = r#""unknownField":"foo","replicas":2,"replicas":3,"#;
    let (code, _, status) = post(&cluster, "fieldValidation=Strict", deployment("", spec)).await;
    let message = status["message"].as_str().unwrap();
    assert_eq!(code, 400);
    let expected = r#"strict decoding error: unknown field "spec.unknownField", duplicate field "spec.replicas""#;
    assert!(message.contains(expected), "{message}");
    let (code, _, status) = post(&cluster, "fieldValidation=Strict", deployment(r#","unknownMeta":"x""#, "")).await;
    assert_eq!(code, 400);
    let expected = r#"strict decoding error: unknown field "metadata.unknownMeta""#;
    assert!(status["message"].as_str().unwrap().contains(expected), "{status}");
    let (code, warnings, created) = post(&cluster, "fieldValidation=Warn&dryRun=All", deployment("", spec)).await;
    assert_eq!((code, &created["spec"]["replicas"]), (201, &json!(3)));
    assert_eq!(
        warnings,
        [r#"299 - "unknown field \"spec.unknownField\"""#, r#"299 - "duplicate field \"spec.replicas\"""#]
    );
    let (code, warnings, _) = post(&cluster, "fieldValidation=Ignore&dryRun=All", deployment("", spec)).await;
    assert_eq!((code, warnings), (201, Vec::new()));
}

#[tokio::test]
async fn applies_merge_lists_by_their_keys() {
    let cluster = Cluster::start().await;
    let apply = |ports: Value, manager: &'static str| {
        let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]}}}});
        let url = format!("{DEPLOYMENTS}/d?fieldManager={manager}&fieldValidation=Strict");
        let cluster = &cluster;
        async move { cluster.send_raw("PATCH", &url, APPLY, body).await }
    };
    assert_eq!(apply(json!([{"containerPort": 80, "protocol": "TCP"}]), "one").await.0, 201);
    let (code, both) =
        apply(json!([{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP"}]), "two").await;
    let both: Value = serde_json::from_slice(&both).unwrap();
    assert_eq!(code, 200, "{both}");
    let ports = &both["spec"]["template"]["spec"]["containers"][0]["ports"];
    assert_eq!(ports.as_array().map(Vec::len), Some(2), "{ports}");
    let (code, twice) = apply(json!([{"containerPort": 80}, {"containerPort": 80}]), "three").await;
    assert_eq!(code, 500, "{}", String::from_utf8_lossy(&twice));
}
