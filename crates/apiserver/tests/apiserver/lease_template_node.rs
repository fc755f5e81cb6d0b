//! Conformance area 16: Lease, PodTemplate and Node objects.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::Life;

#[tokio::test]
async fn leases_templates_and_nodes_live_and_die() {
    let cluster = Cluster::start().await;
    let lives = [
        (
            "coordination.k8s.io/v1",
            "leases",
            true,
            json!({"spec": {"holderIdentity": "h", "leaseDurationSeconds": 30, "leaseTransitions": 0,
                "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:05.678901Z"}}),
            None,
        ),
        (
            "v1",
            "podtemplates",
            true,
            json!({"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
            None,
        ),
        (
            "v1",
            "nodes",
            false,
            json!({"spec": {"unschedulable": true}}),
            Some(json!({"conditions": [{"type": "TestNode", "status": "True", "reason": "E2E", "message": "m"}]})),
        ),
    ];
    for (api_version, plural, namespaced, body, status) in lives {
        Life { api_version, plural, namespaced, name: "sample", body, status }.run(&cluster).await;
    }
}

#[tokio::test]
async fn microseconds_of_a_lease_survive() {
    let cluster = Cluster::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let times = ["2026-01-02T03:04:05.000006Z", "2026-01-02T03:04:05.678900Z", "2026-01-02T03:04:05.000000Z"];
    for (n, time) in times.iter().enumerate() {
        let name = format!("l{n}");
        let body = json!({"metadata": {"name": name}, "spec": {"renewTime": time}});
        assert_eq!(cluster.send("POST", leases, body).await.0, 201);
        let (_, lease) = cluster.send("GET", &format!("{leases}/{name}"), Value::Null).await;
        assert_eq!(lease["spec"]["renewTime"], *time);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_says_who_it_is() {
    let cluster = Cluster::start().await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases\
        ?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
    let (code, found) = cluster.send("GET", path, Value::Null).await;
    assert_eq!((code, found["items"].as_array().map(Vec::len)), (200, Some(1)), "{found}");
    let lease = &found["items"][0];
    let name = lease["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("apiserver-") && name.len() == 36, "{name}");
    assert!(lease["spec"]["holderIdentity"].as_str().unwrap().starts_with(&format!("{name}_")), "{lease}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
    assert!(lease["spec"]["renewTime"].is_string(), "{lease}");
    let hook = "/readyz/poststarthook/start-kube-apiserver-identity-lease-controller";
    assert_eq!(cluster.send_raw("GET", hook, "", Value::Null).await.0, 200);
    cluster.stop().await;
}
