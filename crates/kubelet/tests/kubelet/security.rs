//! Security contexts: who containers are, what they may, and what the node refuses.

use serde_json::json;

use crate::node::{Node, is_ready, phase, shell, waiting_message, waiting_reason};

pub(crate) async fn containers_are_who_they_should_be(node: &mut Node) {
    let script = "id -u; id -g; id -G; grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | cut -f2; \
        touch /x 2>/dev/null || echo read-only; cat /proc/sys/kernel/shm_rmid_forced; \
        ip link add dummy0 type dummy 2>&1 | grep -c 'Operation not permitted'; stat -c %g:%a /data-volume; touch /data-volume/mine; stat -c %u:%g /data-volume/mine; sleep 1000";
    node.create(
        "secure",
        json!({
            "securityContext": {"runAsUser": 1001, "runAsGroup": 2002, "fsGroup": 3003, "supplementalGroups": [4004],
                "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}], "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "command": shell(script),
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "v", "mountPath": "/data-volume"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    let own = json!({"runAsUser": 65534});
    node.create(
        "own",
        json!({
            "securityContext": {"runAsUser": 1001},
            "containers": [{"name": "c", "command": shell("id -u; sleep 1000"), "securityContext": own}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    node.create(
        "root",
        json!({"securityContext": {"runAsNonRoot": true}, "containers": [{"name": "c", "command": ["true"]}]}),
    )
    .await;
    node.create(
        "zero",
        json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}, "containers": [{"name": "c", "command": ["true"]}]}),
    )
    .await;
    let secure = node.wait("secure", "ready", is_ready).await;
    let log = node.wait_log(&secure, "c", |log| log.lines().count() >= 10).await;
    assert_eq!(log, "1001\n2002\n2002 3003 4004\n1\n2\nread-only\n1\n1\n3003:2777\n1001:3003\n");
    let own = node.wait("own", "ready", is_ready).await;
    assert_eq!(node.wait_log(&own, "c", |log| !log.is_empty()).await, "65534\n");
    for (name, why) in [
        ("root", "container has runAsNonRoot and image will run as root"),
        ("zero", "container's runAsUser breaks non-root policy"),
    ] {
        let pod = node
            .wait(name, "refused", |pod| waiting_reason(pod).as_deref() == Some("CreateContainerConfigError"))
            .await;
        let uid = pod.metadata.uid.as_deref().unwrap();
        assert_eq!(waiting_message(&pod).unwrap(), format!("{why} (pod: \"{name}_default({uid})\", container: c)"));
        assert_eq!(phase(&pod), "Pending");
    }
}

/// The node's namespaces where asked for; its own hosts file then.
pub(crate) async fn host_namespaces_are_the_nodes(node: &mut Node) {
    let script = "for kind in net pid ipc; do readlink /proc/self/ns/$kind; done; head -n 1 /etc/hosts; sleep 1000";
    node.create(
        "host",
        json!({"hostNetwork": true, "hostPID": true, "hostIPC": true,
            "containers": [{"name": "c", "command": shell(script)}], "terminationGracePeriodSeconds": 0}),
    )
    .await;
    node.create(
        "shared",
        json!({"shareProcessNamespace": true, "terminationGracePeriodSeconds": 0, "containers": [
            {"name": "a", "command": ["sleep", "1000"]},
            {"name": "b", "command": shell("until ps | grep -q '[s]leep 1000'; do sleep 0.1; done; echo seen; sleep 2000")},
        ]}),
    )
    .await;
    let host = node.wait("host", "ready", is_ready).await;
    let log = node.wait_log(&host, "c", |log| log.lines().count() >= 4).await;
    // The runtime is in this process's network namespace; pid and ipc are the machine's.
    let own = |kind: &str| std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap().display().to_string();
    let expected =
        format!("{}\n{}\n{}\n# Kubernetes-managed hosts file (host network).\n", own("net"), own("pid"), own("ipc"));
    assert_eq!(log, expected);
    assert_eq!(host.status.unwrap().pod_ip.as_deref(), Some("127.0.0.1"));
    let shared = node.wait("shared", "ready", is_ready).await;
    node.wait_log(&shared, "b", |log| log == "seen\n").await;
}
