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

const SCALERS: &str = "namespaces/default/horizontalpodautoscalers";

async fn apply_scaler(cluster: &Cluster, version: &str, query: &str, spec: Value) -> (u16, Value) {
    let scaler = json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web"}, "spec": spec});
    let path = format!("/apis/autoscaling/{version}/{SCALERS}/web?{query}");
    let (code, bytes) = cluster.send_raw("PATCH", &path, APPLY, scaler).await;
    (code, serde_json::from_slice(&bytes).unwrap())
}

/// The version in which a manager wrote, and what it owns of the spec.
fn owned(object: &Value, manager: &str) -> (Value, Value) {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["manager"] == manager).unwrap();
    (entry["apiVersion"].clone(), entry["fieldsV1"]["f:spec"].clone())
}

/// As upstream: what only v2 says is carried through v1, whose fields are owned in v1.
#[tokio::test]
async fn an_apply_in_an_older_version_drops_nothing_that_a_newer_one_says() {
    let cluster = Cluster::start().await;
    let v2 = format!("/apis/autoscaling/v2/{SCALERS}/web");
    let cpu = |percent: u32| {
        json!({"type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
    };
    let memory = json!({"type": "Resource",
        "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}});
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let spec = json!({"maxReplicas": 5, "scaleTargetRef": target, "metrics": [cpu(60), memory],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}});
    let (code, answer) = apply_scaler(&cluster, "v2", "fieldManager=two", spec).await;
    assert_eq!(code, 201, "{answer}");

    let (code, seen) = apply_scaler(&cluster, "v1", "fieldManager=one", json!({"minReplicas": 2})).await;
    assert_eq!((code, &seen["spec"]["targetCPUUtilizationPercentage"]), (200, &json!(60)), "{seen}");
    assert_eq!(owned(&seen, "one"), (json!("autoscaling/v1"), json!({"f:minReplicas": {}})));
    let (_, stored) = cluster.send("GET", &v2, Value::Null).await;
    assert_eq!((&stored["spec"]["minReplicas"], &stored["spec"]["metrics"]), (&json!(2), &json!([memory, cpu(60)])));
    assert_eq!(stored["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 60);
    assert_eq!(owned(&stored, "two").0, "autoscaling/v2");
    let (_, again) = apply_scaler(&cluster, "v1", "fieldManager=one", json!({"minReplicas": 2})).await;
    assert_eq!(again["metadata"]["resourceVersion"], seen["metadata"]["resourceVersion"]);

    let wanted = json!({"minReplicas": 2, "targetCPUUtilizationPercentage": 50});
    let (code, status) = apply_scaler(&cluster, "v1", "fieldManager=one", wanted.clone()).await;
    assert_eq!(code, 409);
    assert_eq!(status["message"], "Apply failed with 1 conflict: conflict with \"two\": .spec.metrics");
    let (code, answer) = apply_scaler(&cluster, "v1", "fieldManager=one&force=true", wanted).await;
    assert_eq!(code, 200, "{answer}");
    let (_, stored) = cluster.send("GET", &v2, Value::Null).await;
    assert_eq!(stored["spec"]["metrics"], json!([memory, cpu(50)]));
    assert!(owned(&stored, "two").1.get("f:metrics").is_none(), "{stored}");
    assert!(owned(&stored, "two").1.get("f:behavior").is_some(), "{stored}");

    // A plain write in one version counts in the other, too.
    let v1 = format!("/apis/autoscaling/v1/{SCALERS}/web?fieldManager=editor");
    let patch = json!({"spec": {"targetCPUUtilizationPercentage": 40}});
    assert_eq!(cluster.send_raw("PATCH", &v1, "application/merge-patch+json", patch).await.0, 200);
    let (_, stored) = cluster.send("GET", &v2, Value::Null).await;
    assert_eq!(stored["spec"]["metrics"], json!([memory, cpu(40)]));
    let editors = (json!("autoscaling/v1"), json!({"f:targetCPUUtilizationPercentage": {}}));
    assert_eq!(owned(&stored, "editor"), editors, "{stored}");
    let patch = json!({"spec": {"metrics": [memory]}});
    let path = format!("{v2}?fieldManager=other");
    assert_eq!(cluster.send_raw("PATCH", &path, "application/merge-patch+json", patch).await.0, 200);
    let (_, stored) = cluster.send("GET", &v2, Value::Null).await;
    let managers: Vec<&str> = managers(&stored).into_iter().map(|(manager, _, _)| manager).collect();
    assert!(!managers.contains(&"editor"), "nothing is left of what it set: {managers:?}");
}

/// Fields of the stored version are unknown in another one.
#[tokio::test]
async fn fields_of_another_version_are_unknown() {
    let cluster = Cluster::start().await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let memory = json!({"type": "Resource",
        "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}});
    let scaler =
        json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 5, "scaleTargetRef": target, "metrics": [memory]}});
    let path = format!("/apis/autoscaling/v1/{SCALERS}");
    let (code, status) = cluster.send("POST", &format!("{path}?fieldValidation=Strict"), scaler.clone()).await;
    assert_eq!(code, 400, "{status}");
    assert!(status["message"].as_str().unwrap().contains("unknown field \"spec.metrics\""), "{status}");
    let (code, made) = cluster.send("POST", &path, scaler).await;
    assert_eq!((code, &made["spec"]["targetCPUUtilizationPercentage"]), (201, &json!(80)), "{made}");
    assert_eq!((&made["status"]["currentReplicas"], &made["status"]["desiredReplicas"]), (&json!(0), &json!(0)));
    let (code, status) =
        apply_scaler(&cluster, "v1", "fieldManager=one", json!({"behavior": {"scaleUp": {"selectPolicy": "Max"}}}))
            .await;
    assert_eq!(code, 500);
    assert!(status["message"].as_str().unwrap().ends_with(".spec.behavior: field not declared in schema"), "{status}");
}
