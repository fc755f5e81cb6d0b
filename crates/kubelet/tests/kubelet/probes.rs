//! Probes and hooks.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::node::{Node, is_ready, phase, restarts, shell};

pub(crate) async fn probes_and_hooks_act(node: &mut Node) {
    let seen = node.dir.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    node.create(
        "alive",
        json!({
            "containers": [{"name": "c", "command": shell("touch /tmp/ok; exec sleep 1000"),
                "livenessProbe": {"exec": {"command": shell("test -e /tmp/ok && rm /tmp/ok 2>/dev/null; busybox rm -f /tmp/ok; test -e /tmp/never")}, "periodSeconds": 1, "failureThreshold": 1}}],
            "terminationGracePeriodSeconds": 1,
        }),
    )
    .await;
    node.create(
        "hooked",
        json!({
            "containers": [{"name": "c", "command": shell("trap 'echo term >> /seen/log; exit 0' TERM; while true; do sleep 0.1; done"),
                "lifecycle": {
                    "postStart": {"exec": {"command": shell("echo start >> /seen/log")}},
                    "preStop": {"exec": {"command": shell("echo stop >> /seen/log")}},
                },
                "volumeMounts": [{"name": "seen", "mountPath": "/seen"}]}],
            "volumes": [{"name": "seen", "hostPath": {"path": seen, "type": "Directory"}}],
            "terminationGracePeriodSeconds": 10,
        }),
    )
    .await;
    node.create("closed", json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "readinessProbe": {"tcpSocket": {"port": 81}, "periodSeconds": 1}}]})).await;
    node.wait("alive", "restarted", |pod| restarts(pod) >= 1).await;
    let messages: Vec<String> = node.api.events().await.into_iter().filter_map(|event| event.message).collect();
    assert!(messages.iter().any(|m| m == "Container c failed liveness probe, will be restarted"), "{messages:?}");
    node.wait("hooked", "ready", is_ready).await;
    node.api.client().namespaced::<Pod>("default").delete("hooked", &Default::default()).await.unwrap();
    node.wait_gone("hooked").await;
    assert_eq!(std::fs::read_to_string(seen.join("log")).unwrap(), "start\nstop\nterm\n");
    let closed = node.wait("closed", "running", |pod| phase(pod) == "Running").await;
    assert!(!is_ready(&closed));
}
