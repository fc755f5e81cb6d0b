//! How pods end: what the API is told while they do, and last.

use client::{DeleteParams, Patch};
use k8s_openapi::api::core::v1::{Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::json;

use crate::node::{Node, is_ready, phase, shell, waiting_message, waiting_reason};

/// A pod that is deleted before its containers start, and that somebody still holds: its last phase is one.
pub(crate) async fn a_pod_that_never_started_ends_all_the_same(node: &mut Node) {
    let pods = node.api.client().namespaced::<Pod>("default");
    node.create(
        "held",
        json!({
            "containers": [{"name": "c", "command": ["sleep", "1000"],
                "volumeMounts": [{"name": "missing", "mountPath": "/missing"}]}],
            "volumes": [{"name": "missing", "configMap": {"name": "nowhere"}}],
        }),
    )
    .await;
    pods.patch("held", &Patch::merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}))).await.unwrap();
    node.wait("held", "seen", |pod| pod.status.as_ref().is_some_and(|status| status.start_time.is_some())).await;
    pods.delete("held", &DeleteParams::default()).await.unwrap();
    let held = node
        .wait("held", "given up", |pod| pod.metadata.deletion_grace_period_seconds == Some(0) && phase(pod) == "Failed")
        .await;
    let status = held.status.unwrap();
    let container = &status.container_statuses.unwrap()[0];
    let ended = container.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    pods.patch("held", &Patch::merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    node.wait_gone("held").await;
}

/// A critical pod that finds no room gets that of a lesser one, which is told so.
pub(crate) async fn a_critical_pod_makes_room(node: &mut Node) {
    node.port().await;
    let allocatable = node.api.client().all::<ApiNode>().get(&node.name).await.unwrap().status.unwrap().allocatable;
    let whole = allocatable.unwrap()["cpu"].0.clone();
    let pod = |class: &str, cpu: &str| {
        json!({
            "containers": [{"name": "c", "command": ["sleep", "1000"], "resources": {"requests": {"cpu": cpu}}}],
            "priorityClassName": class, "terminationGracePeriodSeconds": 0,
        })
    };
    node.create("lesser", pod("", &whole)).await;
    node.wait("lesser", "ready", is_ready).await;
    node.create("another", pod("", "1m")).await;
    let refused = node.wait("another", "refused", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(refused.reason.as_deref(), Some("OutOfcpu"));
    node.create("needed", pod("system-node-critical", &whole)).await;
    node.wait("needed", "ready", is_ready).await;
    let lesser = node.wait("lesser", "preempted", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(lesser.reason.as_deref(), Some("Preempting"));
    assert_eq!(lesser.message.as_deref(), Some("Preempted in order to admit critical pod"));
    let told = lesser.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!(told.message.as_deref(), Some("Pod was preempted by Kubelet to accommodate a critical pod."));
    let counted = "kubelet_preemptions{preemption_signal=\"cpu\"} 1";
    let metrics = crate::server::get(node.port().await, "metrics").await;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    for name in ["lesser", "another", "needed"] {
        node.delete(name).await;
    }
}

/// Readiness is asked for until the end: a pod that drains turns unready while it still runs.
pub(crate) async fn a_draining_pod_turns_unready(node: &mut Node) {
    let script = "trap 'rm /tmp/ready' TERM; touch /tmp/ready; while true; do sleep 0.1; done";
    // However slow the machine is, only whether the file is there counts, and it may come late.
    let probe = |failures: u32| {
        json!({"exec": {"command": shell("test -e /tmp/ready")}, "periodSeconds": 1, "timeoutSeconds": 60,
            "failureThreshold": failures})
    };
    node.create(
        "draining",
        json!({
            "containers": [{"name": "c", "command": shell(script),
                "startupProbe": probe(1000),
                "readinessProbe": probe(1),
                // A liveness probe would end it: it is not asked any more.
                "livenessProbe": probe(1)}],
            "terminationGracePeriodSeconds": 600,
        }),
    )
    .await;
    node.wait("draining", "ready", is_ready).await;
    let pods = node.api.client().namespaced::<Pod>("default");
    pods.delete("draining", &DeleteParams::default()).await.unwrap();
    let draining = node.wait("draining", "unready", |pod| !is_ready(pod)).await;
    assert!(draining.metadata.deletion_timestamp.is_some());
    let status = draining.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.state.as_ref().unwrap().running.is_some(), "it still runs: {container:?}");
    assert_eq!((container.restart_count, container.started), (0, Some(true)));
}

/// Grace periods of any length are periods: the container gets its signal, and the pod ends.
pub(crate) async fn security_an_endless_grace_period_ends(node: &mut Node) {
    node.create(
        "endless",
        json!({
            "containers": [{"name": "c",
                "command": shell("trap 'exit 0' TERM; echo trapped; while true; do sleep 0.1; done")}],
            "terminationGracePeriodSeconds": i64::MAX,
        }),
    )
    .await;
    let pod = node.wait("endless", "ready", is_ready).await;
    // A signal that comes before its trap is ignored, and there is no other one.
    node.wait_log(&pod, "c", |log| log == "trapped\n").await;
    let pods = node.api.client().namespaced::<Pod>("default");
    pods.delete("endless", &DeleteParams::default().with_grace_period(i64::from(i32::MAX))).await.unwrap();
    node.wait_gone("endless").await;
    node.wait_empty("endless").await;
}

/// A local volume is given to the pod's group before it starts and never again; a path of the node's never is.
pub(crate) async fn security_volumes_change_hands_once(node: &mut Node) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let client = node.api.client();
    for (name, kind) in [("local", "local"), ("host", "hostPath")] {
        let path = node.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), "").unwrap();
        std::fs::set_permissions(path.join("file"), std::fs::Permissions::from_mode(0o4700)).unwrap();
        let mut spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": name}});
        spec[kind] = json!({"path": path});
        if kind == "local" {
            spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]}});
        }
        let volume: PersistentVolume =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        client.all::<PersistentVolume>().create(&volume).await.unwrap();
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}},
        }))
        .unwrap();
        client.namespaced("default").create(&claim).await.unwrap();
        node.bind(name, name).await;
    }
    // The container takes its file back, plants a link to a file of the node's, and has the pod synced over and over.
    let victim = node.dir.path().join("victim");
    std::fs::write(&victim, "").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    let script = format!(
        "chown 0:0 /local/file; chmod 0600 /local/file; ln -s {} /local/link; touch /local/new; sleep 1000",
        victim.display()
    );
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    node.create(
        "owner",
        json!({
            "securityContext": {"fsGroup": 4242},
            "containers": [{"name": "c", "command": shell(&script), "volumeMounts": [mount("local"), mount("host")]}],
            "volumes": [claim("local"), claim("host")],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    node.wait("owner", "ready", is_ready).await;
    let (local, host) = (node.dir.path().join("local"), node.dir.path().join("host"));
    let seen = |path: &std::path::Path| {
        let metadata = std::fs::metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    };
    node.wait_until("the container has done its part", || local.join("new").exists()).await;
    let pods = client.namespaced::<Pod>("default");
    for round in 0..3 {
        let patch =
            Patch::merge(json!({"metadata": {"labels": {"round": round.to_string()}, "generation": round + 2}}));
        pods.patch("owner", &patch).await.unwrap();
        let generation = pods.get("owner").await.unwrap().metadata.generation;
        node.wait("owner", "synced", |pod| pod.status.as_ref().is_some_and(|s| s.observed_generation == generation))
            .await;
    }
    node.stop_kubelet().await;
    node.start_kubelet();
    node.wait("owner", "ready", is_ready).await;
    assert_eq!(seen(&local), (4242, 0o2775), "given to the group before the start");
    assert_eq!(seen(&local.join("file")), (0, 0o600), "and left alone since");
    assert_eq!(seen(&victim), (0, 0o600));
    assert_eq!(seen(&host).0, 0, "a path of the node's stays the node's");
    assert_eq!(seen(&host.join("file")), (0, 0o4700));
}

/// What answers a hook is the node's to know: whoever may read the pod does not read it. Only a hook that reaches nobody fails.
pub(crate) async fn security_answers_to_hooks_stay_out_of_statuses(node: &mut Node) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = asked.clone();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            seen.store(true, std::sync::atomic::Ordering::SeqCst);
            let mut request = [0u8; 4096];
            let _ = stream.read(&mut request).await;
            let answer =
                "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 10\r\nConnection: close\r\n\r\nthe-secret";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    // Bound, and nobody listens.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nowhere = silent.local_addr().unwrap().port();
    for (name, port) in [("hooked", port), ("unheard", nowhere)] {
        node.create(
            name,
            json!({
                "containers": [{"name": "c", "command": ["sleep", "1000"],
                    "lifecycle": {"postStart": {"httpGet": {"host": "127.0.0.1", "port": port, "path": "/"}}}}],
                "terminationGracePeriodSeconds": 0,
            }),
        )
        .await;
    }
    let is_told = |pod: &Pod| waiting_reason(pod).as_deref() == Some("PostStartHookError");
    let unheard = node.wait("unheard", "failed", is_told).await;
    assert!(waiting_message(&unheard).is_some_and(|message| message.starts_with("Get \"http://127.0.0.1:")));
    let pod = node.wait("hooked", "ready", is_ready).await;
    assert!(asked.load(std::sync::atomic::Ordering::SeqCst), "the hook was called before the pod was ready");
    let pod = serde_json::to_string(&pod).unwrap();
    assert!(!pod.contains("the-secret"), "{pod}");
    assert!(!node.messages().await.concat().contains("the-secret"));
    server.abort();
}
