//! What cannot be run: how it is told, and that it is tried again.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use crate::node::{Node, is_ready, phase, shell, waiting_reason};

pub(crate) async fn missing_things_are_told_and_waited_for(node: &mut Node) {
    node.create("no-image", json!({"containers": [{"name": "c", "image": "localhost:1/none:1", "command": ["true"]}]}))
        .await;
    node.create("bad-image", json!({"containers": [{"name": "c", "image": "Bad Image!", "command": ["true"]}]})).await;
    node.create(
        "never",
        json!({"containers": [{"name": "c", "image": "localhost/none:1", "imagePullPolicy": "Never"}]}),
    )
    .await;
    node.create("no-map", json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]}]})).await;
    node.create(
        "no-volume",
        json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}], "volumes": [{"name": "v", "configMap": {"name": "late"}}]}),
    )
    .await;
    node.create("escape", json!({"containers": [{"name": "c", "command": ["true"], "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "$(UP)"}], "env": [{"name": "UP", "value": "../.."}]}], "volumes": [{"name": "v", "emptyDir": {}}]})).await;
    node.create("forbidden", json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "containers": [{"name": "c"}]})).await;
    for (name, reason) in [
        ("no-image", "ImagePullBackOff"),
        ("bad-image", "InvalidImageName"),
        ("never", "ErrImageNeverPull"),
        ("no-map", "CreateContainerConfigError"),
        ("no-volume", "ContainerCreating"),
        ("escape", "CreateContainerConfigError"),
    ] {
        let pod = node.wait(name, reason, |pod| waiting_reason(pod).as_deref() == Some(reason)).await;
        assert_eq!(phase(&pod), "Pending", "{name}");
    }
    let forbidden = node.wait("forbidden", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(forbidden.status.unwrap().reason.as_deref(), Some("SysctlForbidden"));
    let late: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "late"}, "data": {"k": "v"}})).unwrap();
    node.api.client().namespaced::<ConfigMap>("default").create(&late).await.unwrap();
    node.wait("no-map", "ready", is_ready).await;
    node.wait("no-volume", "ready", is_ready).await;
}

/// A pod whose node has lost its resolver's file is not started without one.
pub(crate) async fn a_missing_resolver_file_is_told_and_waited_for(node: &mut Node) {
    node.stop_kubelet().await;
    let file = node.dir.path().join("resolv.conf");
    let named = file.clone();
    node.start_kubelet_with(move |settings| settings.resolv_conf = named);
    let script = "cat /etc/resolv.conf; exec sleep 1000";
    node.create("asks", json!({"dnsPolicy": "Default", "containers": [{"name": "c", "command": shell(script)}]})).await;
    let told = format!("Failed to create pod sandbox: open {}: no such file or directory", file.display());
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(120);
    while !node.messages().await.contains(&told) {
        assert!(tokio::time::Instant::now() < deadline, "{told} not in {:?}", node.messages().await);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // At once: an empty file names no server, and containerd then takes the host's.
    let whole = file.with_extension("new");
    std::fs::write(&whole, "nameserver 192.0.2.53\n").unwrap();
    std::fs::rename(&whole, &file).unwrap();
    let pod = node.wait("asks", "ready", is_ready).await;
    node.wait_log(&pod, "c", |log| log.contains("nameserver 192.0.2.53")).await;
}

/// A pod is never started without what it asked for.
pub(crate) async fn security_pods_that_ask_for_more_than_there_is_fail(node: &mut Node) {
    let containers = json!([{"name": "c", "command": ["sleep", "1000"]}]);
    node.create("users", json!({"hostUsers": false, "containers": containers})).await;
    node.create(
        "bundle",
        json!({"containers": containers, "volumes": [{"name": "v", "projected": {"sources": [
            {"clusterTrustBundle": {"name": "b", "path": "ca.crt"}}]}}]}),
    )
    .await;
    for (name, reason, cause) in [
        ("users", "HostUsersNotSupported", "hostUsers: false: this node has no user namespaces for pods"),
        ("bundle", "ClusterTrustBundleNotSupported", "volume \"v\": this node does not project clusterTrustBundle"),
    ] {
        let status = node.wait(name, "failed", |pod| phase(pod) == "Failed").await.status.unwrap();
        assert_eq!(status.reason.as_deref(), Some(reason));
        let message = format!("Pod was rejected: {cause}");
        assert_eq!(status.message.as_deref(), Some(message.as_str()));
        assert!(status.container_statuses.iter().flatten().all(|c| c.container_id.is_none()), "{name} has started");
        node.wait_message(&message).await;
    }
}
