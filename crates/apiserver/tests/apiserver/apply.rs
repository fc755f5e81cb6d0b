//! Server-side apply and the record of field ownership.

use serde_json::{Value, json};

use crate::harness::Cluster;

const APPLY: &str = "application/apply-patch+yaml";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment(replicas: u32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "nginx", "image": image}]}
            }
        }
    })
}

async fn apply(cluster: &Cluster, query: &str, body: Value) -> (u16, Value) {
    let path = format!("{DEPLOYMENTS}/web?{query}");
    let (code, bytes) = cluster.send_raw("PATCH", &path, APPLY, body).await;
    (code, serde_json::from_slice(&bytes).unwrap())
}

fn managers(object: &Value) -> Vec<(&str, &str, &str)> {
    object["metadata"]["managedFields"]
        .as_array()
        .map(|entries| {
            entries
                .iter()
                .map(|entry| {
                    let text = |key: &str| entry[key].as_str().unwrap_or_default();
                    (text("manager"), text("operation"), text("subresource"))
                })
                .collect()
        })
        .unwrap_or_default()
}

#[tokio::test]
async fn apply_creates_merges_and_meets_other_owners() {
    let cluster = Cluster::start().await;
    let (code, created) = apply(&cluster, "fieldManager=one", deployment(3, "nginx:1")).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(managers(&created), [("one", "Apply", "")]);
    // Defaults belong to nobody.
    assert_eq!(created["spec"]["progressDeadlineSeconds"], 600);
    assert!(created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].get("f:progressDeadlineSeconds").is_none());

    let (code, same) = apply(&cluster, "fieldManager=one", deployment(3, "nginx:1")).await;
    assert_eq!((code, &same), (200, &created), "a second apply changes nothing");

    let (code, status) = apply(&cluster, "fieldManager=two", deployment(5, "nginx:1")).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")), "{status}");
    assert_eq!(status["message"], "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldManagerConflict");

    let (code, forced) = apply(&cluster, "fieldManager=two&force=true", deployment(5, "nginx:1")).await;
    assert_eq!((code, forced["spec"]["replicas"].as_i64()), (200, Some(5)));
    assert_eq!(forced["metadata"]["generation"], 2);

    // An ordinary write takes what it changes.
    let (code, scaled) = cluster
        .send_raw(
            "PATCH",
            &format!("{DEPLOYMENTS}/web?fieldManager=scaler"),
            "application/merge-patch+json",
            json!({"spec": {"replicas": 7}}),
        )
        .await;
    let scaled: Value = serde_json::from_slice(&scaled).unwrap();
    assert_eq!(code, 200, "{scaled}");
    assert!(managers(&scaled).contains(&("scaler", "Update", "")), "{:?}", managers(&scaled));

    let mut status = scaled.clone();
    status["status"] = json!({"replicas": 1, "observedGeneration": 3});
    let (code, status) = cluster.send("PUT", &format!("{DEPLOYMENTS}/web/status?fieldManager=ctl"), status).await;
    assert_eq!(code, 200, "{status}");
    assert!(managers(&status).contains(&("ctl", "Update", "status")), "{:?}", managers(&status));
}

/// As upstream, where a second apply of the same configuration changes nothing.
#[tokio::test]
async fn an_empty_rolling_update_keeps_its_partition() {
    let cluster = Cluster::start().await;
    let config = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}
            }
        }
    });
    let path = "/apis/apps/v1/namespaces/default/statefulsets/db?fieldManager=me";
    let mut versions = Vec::new();
    for _ in 0..3 {
        let (_, bytes) = cluster.send_raw("PATCH", path, APPLY, config.clone()).await;
        let set: Value = serde_json::from_slice(&bytes).unwrap();
        let expected = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
        assert_eq!(set["spec"]["updateStrategy"], expected, "{set}");
        versions.push(set["metadata"]["resourceVersion"].clone());
    }
    assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
}

#[tokio::test]
async fn malformed_applies_are_refused() {
    let cluster = Cluster::start().await;
    let (code, status) = apply(&cluster, "", deployment(1, "a")).await;
    assert_eq!((code, status["reason"].as_str()), (422, Some("Invalid")));
    assert_eq!(
        status["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let mut unknown = deployment(1, "a");
    unknown["spec"]["foo"] = json!(1);
    let (code, status) = apply(&cluster, "fieldManager=one", unknown).await;
    assert_eq!(code, 500);
    assert!(status["message"].as_str().unwrap().ends_with(".spec.foo: field not declared in schema"), "{status}");
    let mut old = deployment(1, "a");
    old["apiVersion"] = json!("apps/v1beta1");
    assert_eq!(apply(&cluster, "fieldManager=one", old).await.0, 400);
}

#[tokio::test]
async fn kubectl_applies_on_the_server() {
    let cluster = Cluster::start().await;
    let manifest = deployment(2, "nginx:1").to_string();
    let args = ["apply", "--server-side", "--field-manager=me", "-f", "-"];
    let said = cluster.kubectl_with(&args, &manifest).await.unwrap();
    assert_eq!(said.trim(), "deployment.apps/web serverside-applied");
    let error = cluster
        .kubectl_with(
            &["apply", "--server-side", "--field-manager=you", "-f", "-"],
            &deployment(4, "nginx:1").to_string(),
        )
        .await
        .unwrap_err();
    assert!(error.contains("conflict with \"me\": .spec.replicas"), "{error}");
}
