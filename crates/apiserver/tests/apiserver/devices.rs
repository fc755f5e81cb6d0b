//! Conformance area 13: the objects of dynamic resource allocation.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::{Life, MERGE};

fn claim_spec() -> Value {
    json!({"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}})
}

#[tokio::test]
async fn devices_and_claims_live_and_die() {
    let cluster = Cluster::start().await;
    let allocation = json!({"allocation": {"devices": {"results": [
        {"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"}]}}});
    for (plural, namespaced, body, status) in [
        (
            "deviceclasses",
            false,
            json!({"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}),
            None,
        ),
        ("resourceclaims", true, json!({"spec": claim_spec()}), Some(allocation)),
        ("resourceclaimtemplates", true, json!({"spec": {"spec": claim_spec()}}), None),
        (
            "resourceslices",
            false,
            json!({"spec": {"driver": "gpu.example.com", "nodeName": "node-1", "devices": [{"name": "gpu-0"}],
                "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1}}}),
            None,
        ),
    ] {
        let life = Life { api_version: "resource.k8s.io/v1", plural, namespaced, name: "sample", body, status };
        life.run(&cluster).await;
    }
}

#[tokio::test]
async fn what_a_claim_asks_for_cannot_change() {
    let cluster = Cluster::start().await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let (code, created) = cluster.send("POST", claims, json!({"metadata": {"name": "c"}, "spec": claim_spec()})).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"]["devices"]["requests"][0]["exactly"]["count"], 1);
    let change = json!({"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "other"}}]}}});
    let (code, refused) = cluster.send_raw("PATCH", &format!("{claims}/c"), MERGE, change).await;
    let refused: Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!(code, 422, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("field is immutable"), "{refused}");
    let nowhere = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}});
    let (code, refused) = cluster.send("POST", "/apis/resource.k8s.io/v1/resourceslices", nowhere).await;
    assert_eq!((code, refused["details"]["causes"][0]["field"].as_str()), (422, Some("spec")), "{refused}");
}

#[tokio::test]
async fn administrative_access_needs_a_labelled_namespace() {
    let cluster = Cluster::start().await;
    let spec = json!({"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "adminAccess": true}}]}});
    for (namespace, labels, expected) in
        [("plain", json!({}), 422), ("admin", json!({"resource.kubernetes.io/admin-access": "true"}), 201)]
    {
        let body = json!({"metadata": {"name": namespace, "labels": labels}});
        assert_eq!(cluster.send("POST", "/api/v1/namespaces", body).await.0, 201);
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
        let (code, answer) = cluster.send("POST", &path, json!({"metadata": {"name": "c"}, "spec": spec})).await;
        assert_eq!(code, expected, "{answer}");
    }
}
