//! Conformance area 11: ResourceQuota and LimitRange, as far as no controller is involved.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::{Life, MERGE};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn account(cluster: &Cluster) {
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
}

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

#[tokio::test]
async fn quotas_and_ranges_live_and_die() {
    let cluster = Cluster::start().await;
    let quota = Life {
        api_version: "v1",
        plural: "resourcequotas",
        namespaced: true,
        name: "q",
        body: json!({"spec": {"hard": {"pods": "5", "cpu": "1", "memory": "500Mi"}}}),
        status: Some(json!({"hard": {"pods": "5"}, "used": {"pods": "0"}})),
    };
    quota.run(&cluster).await;
    let range = Life {
        api_version: "v1",
        plural: "limitranges",
        namespaced: true,
        name: "l",
        body: json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}),
        status: None,
    };
    range.run(&cluster).await;
}

#[tokio::test]
async fn a_spent_quota_refuses_and_counts() {
    let cluster = Cluster::start().await;
    account(&cluster).await;
    let hard = json!({"pods": "1", "services.nodeports": "1", "count/configmaps": "1"});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    cluster.send("POST", quotas, json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await;
    // The controller's part.
    let used = json!({"pods": "0", "services.nodeports": "0", "count/configmaps": "0"});
    let status = json!({"status": {"hard": hard, "used": used}});
    assert_eq!(cluster.send_raw("PATCH", &format!("{quotas}/q/status"), MERGE, status).await.0, 200);
    let service =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let maps = "/api/v1/namespaces/default/configmaps";
    for (path, first, second) in [
        (PODS, pod("a", json!({})), pod("b", json!({}))),
        ("/api/v1/namespaces/default/services", service("a"), service("b")),
        (maps, json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}})),
    ] {
        let (code, answer) = cluster.send("POST", path, first).await;
        assert_eq!(code, 201, "{answer}");
        let (code, answer) = cluster.send("POST", path, second).await;
        assert_eq!((code, answer["reason"].as_str()), (403, Some("Forbidden")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("exceeded quota: q"), "{answer}");
    }
    let (_, quota) = cluster.send("GET", &format!("{quotas}/q"), Value::Null).await;
    assert_eq!(quota["status"]["used"], hard);
}

#[tokio::test]
async fn ranges_fill_in_and_bound() {
    let cluster = Cluster::start().await;
    account(&cluster).await;
    let ranges = "/api/v1/namespaces/default/limitranges";
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container",
        "min": {"cpu": "50m", "memory": "100Mi", "ephemeral-storage": "100Gi"},
        "max": {"cpu": "500m", "memory": "500Mi", "ephemeral-storage": "500Gi"},
        "default": {"cpu": "500m", "memory": "500Mi", "ephemeral-storage": "500Gi"},
        "defaultRequest": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "200Gi"}}]}});
    let (code, created) = cluster.send("POST", ranges, range).await;
    assert_eq!(code, 201, "{created}");
    let given = json!({"requests": {"memory": "150Mi", "ephemeral-storage": "150Gi"}, "limits": {"cpu": "300m"}});
    for (name, given, expected) in [
        (
            "none",
            json!({}),
            json!({"requests": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "200Gi"},
                "limits": {"cpu": "500m", "memory": "500Mi", "ephemeral-storage": "500Gi"}}),
        ),
        (
            "partial",
            given,
            json!({"requests": {"cpu": "300m", "memory": "150Mi", "ephemeral-storage": "150Gi"},
                "limits": {"cpu": "300m", "memory": "500Mi", "ephemeral-storage": "500Gi"}}),
        ),
    ] {
        let (code, created) = cluster.send("POST", PODS, pod(name, given)).await;
        assert_eq!(code, 201, "{created}");
        assert_eq!(created["spec"]["containers"][0]["resources"], expected, "{name}");
    }
    for (name, resources) in [
        ("small", json!({"requests": {"cpu": "10m"}})),
        ("large", json!({"limits": {"cpu": "600m"}, "requests": {"cpu": "100m"}})),
    ] {
        let (code, answer) = cluster.send("POST", PODS, pod(name, resources)).await;
        assert_eq!((code, answer["reason"].as_str()), (403, Some("Forbidden")), "{answer}");
    }
    let lower = json!({"spec": {"limits": [{"type": "Container", "min": {"cpu": "10m"}}]}});
    assert_eq!(cluster.send_raw("PATCH", &format!("{ranges}/l"), MERGE, lower).await.0, 200);
    let (code, created) = cluster.send("POST", PODS, pod("small", json!({"requests": {"cpu": "10m"}}))).await;
    assert_eq!(code, 201, "{created}");
}
