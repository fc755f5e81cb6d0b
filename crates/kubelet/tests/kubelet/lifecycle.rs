//! From start to end: phases, restarts, init containers and sidecars.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::node::{Node, is_ready, phase, restarts, shell, waiting_reason};

pub(crate) async fn pod_runs_serves_and_is_deleted(node: &mut Node) {
    node.create("web", json!({"containers": [{"name": "web", "command": ["httpd", "-f", "-p", "80", "-h", "/www"], "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}}], "terminationGracePeriodSeconds": 5})).await;
    let pod = node.wait("web", "ready", is_ready).await;
    let status = pod.status.as_ref().unwrap();
    assert_eq!(phase(&pod), "Running");
    assert_eq!(status.host_ip.as_deref(), Some("127.0.0.1"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(status.observed_generation, Some(1));
    let ip = status.pod_ip.clone().unwrap();
    let answer =
        std::process::Command::new("busybox").args(["wget", "-qO-", &format!("http://{ip}/")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "hello from busybox\n");
    for reason in ["Pulled", "Created", "Started"] {
        node.wait_event(reason, |event| event.reason.as_deref() == Some(reason)).await;
    }
    node.delete("web").await;
}

/// Walk 7.2.
pub(crate) async fn restart_policies_decide_the_phase(node: &mut Node) {
    for (name, policy, script) in [
        ("done", "Never", "echo fine > /dev/termination-log"),
        ("failed", "Never", "echo why > /dev/termination-log; exit 3"),
        ("retried", "OnFailure", "test -e /keep/again && exit 0; touch /keep/again; exit 1"),
        ("loop", "Always", "exit 1"),
    ] {
        node.create(
            name,
            json!({
                "restartPolicy": policy,
                "containers": [{"name": "c", "command": shell(script), "volumeMounts": [{"name": "keep", "mountPath": "/keep"}]}],
                "volumes": [{"name": "keep", "emptyDir": {}}],
            }),
        )
        .await;
    }
    let terminated = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        let state = status.state.unwrap().terminated.unwrap();
        (state.exit_code, state.reason.unwrap(), state.message.unwrap_or_default())
    };
    let done = node.wait("done", "succeeded", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(terminated(&done), (0, "Completed".into(), "fine\n".into()));
    let failed = node.wait("failed", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(terminated(&failed), (3, "Error".into(), "why\n".into()));
    let retried = node.wait("retried", "succeeded", |pod| phase(pod) == "Succeeded").await;
    assert_eq!(restarts(&retried), 1);
    let looping =
        node.wait("loop", "in back-off", |pod| waiting_reason(pod).as_deref() == Some("CrashLoopBackOff")).await;
    assert_eq!(phase(&looping), "Running");
}

pub(crate) async fn init_containers_and_sidecars_run_in_order(node: &mut Node) {
    let mount = json!([{"name": "log", "mountPath": "/log"}]);
    let write = |word: &str| shell(&format!("echo {word} >> /log/order"));
    node.create(
        "ordered",
        json!({
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "first", "image": "localhost/busybox:1", "command": write("first"), "volumeMounts": mount},
                {"name": "side", "image": "localhost/busybox:1", "restartPolicy": "Always", "command": shell("echo side >> /log/order; exec sleep 1000"), "volumeMounts": mount,
                 "startupProbe": {"exec": {"command": ["grep", "side", "/log/order"]}, "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1000}},
                {"name": "second", "image": "localhost/busybox:1", "command": write("second"), "volumeMounts": mount},
            ],
            "containers": [{"name": "main", "command": shell("echo main >> /log/order; cat /log/order > /dev/termination-log"), "volumeMounts": mount}],
            "volumes": [{"name": "log", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 2,
        }),
    )
    .await;
    node.create(
        "stuck",
        json!({
            "initContainers": [{"name": "init1", "image": "localhost/busybox:1", "command": ["false"]}, {"name": "init2", "image": "localhost/busybox:1", "command": ["true"]}],
            "containers": [{"name": "main", "command": ["sleep", "1000"]}],
        }),
    )
    .await;
    let pod = node.wait("ordered", "succeeded", |pod| phase(pod) == "Succeeded").await;
    let main = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
    assert_eq!(main.state.unwrap().terminated.unwrap().message.unwrap(), "first\nside\nsecond\nmain\n");
    let stuck = node
        .wait("stuck", "in init back-off", |pod| {
            pod.status
                .as_ref()
                .and_then(|s| s.init_container_statuses.as_ref())
                .is_some_and(|s| s[0].restart_count >= 1)
        })
        .await;
    assert_eq!((phase(&stuck), waiting_reason(&stuck).as_deref()), ("Pending", Some("PodInitializing")));
    let conditions = stuck.status.unwrap().conditions.unwrap();
    let initialized = conditions.iter().find(|c| c.type_ == "Initialized").unwrap();
    assert_eq!(initialized.message.as_deref(), Some("containers with incomplete status: [init1 init2]"));
}

/// A deadline, an image that changes, a failing init container, and debugging a running pod.
pub(crate) async fn specs_may_change_while_running(node: &mut Node) {
    let pods = node.api.client().namespaced::<Pod>("default");
    let sleeps =
        || json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}], "terminationGracePeriodSeconds": 0});
    for name in ["late", "changed", "debugged"] {
        node.create(name, sleeps()).await;
    }
    node.create(
        "broken",
        json!({"restartPolicy": "Never", "initContainers": [{"name": "init", "image": crate::image::NAME, "command": ["false"]}],
            "containers": [{"name": "c", "command": ["true"]}]}),
    )
    .await;
    let debugged = node.wait("debugged", "ready", is_ready).await;
    let ephemeral = json!([{"name": "debugger", "image": crate::image::NAME, "stdin": true, "tty": true, "targetContainerName": "c"}]);
    let patch = client::Patch::strategic(json!({"spec": {"ephemeralContainers": ephemeral}}));
    let _: Pod = pods.patch_path("debugged", Some("ephemeralcontainers"), &patch).await.unwrap();
    node.wait("debugged", "being debugged", |pod| {
        let statuses = pod.status.iter().flat_map(|status| status.ephemeral_container_statuses.iter().flatten());
        statuses.filter_map(|status| status.state.as_ref()).any(|state| state.running.is_some())
    })
    .await;
    let commands = node.exec("debugged", "debugger", "ps").await;
    assert!(commands.contains("sleep 1000"), "the target's processes are in sight: {commands}");
    assert_eq!(restarts(&node.pod("debugged").await.unwrap()), restarts(&debugged));

    node.wait("late", "ready", is_ready).await;
    pods.patch("late", &client::Patch::merge(json!({"spec": {"activeDeadlineSeconds": 1}}))).await.unwrap();
    let late = node.wait("late", "failed", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(late.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(late.message.as_deref(), Some("Pod was active on the node longer than the specified deadline"));

    let before = node.wait("changed", "ready", is_ready).await;
    let image =
        client::Patch::strategic(json!({"spec": {"containers": [{"name": "c", "image": "localhost/busybox:2"}]}}));
    pods.patch("changed", &image).await.unwrap();
    let after = node.wait("changed", "restarted", |pod| restarts(pod) == 1 && is_ready(pod)).await;
    assert_eq!(after.status.as_ref().unwrap().pod_ip, before.status.as_ref().unwrap().pod_ip, "the sandbox stays");
    assert_eq!(after.status.as_ref().unwrap().observed_generation, after.metadata.generation);
    node.wait_message("Container c definition changed, will be restarted").await;

    let broken = node.wait("broken", "failed", |pod| phase(pod) == "Failed").await;
    let status = broken.status.as_ref().unwrap();
    assert_eq!(waiting_reason(&broken).as_deref(), Some("PodInitializing"), "it never started");
    let init = &status.init_container_statuses.as_ref().unwrap()[0];
    assert_eq!((init.ready, init.restart_count), (false, 0));
}

/// Sidecars get their preStop with everybody else, but their signal after the main containers, in reverse order.
pub(crate) async fn sidecars_end_last(node: &mut Node) {
    let seen = node.dir.path().join("seen");
    std::fs::create_dir(&seen).unwrap();
    let mount = json!([{"name": "seen", "mountPath": "/seen"}]);
    let ends = |name: &str| {
        shell(&format!(
            "trap 'echo {name} >> /seen/log; exit 0' TERM; touch /seen/{name}; while true; do sleep 0.05; done"
        ))
    };
    let sidecar = |name: &str| json!({"name": name, "image": crate::image::NAME, "restartPolicy": "Always", "command": ends(name), "volumeMounts": mount});
    node.create(
        "team",
        json!({
            "initContainers": [sidecar("one"), sidecar("two")],
            "containers": [{"name": "main", "command": ends("main"), "volumeMounts": mount}],
            "volumes": [{"name": "seen", "hostPath": {"path": seen}}],
            "terminationGracePeriodSeconds": 60,
        }),
    )
    .await;
    node.wait("team", "ready", is_ready).await;
    node.wait_until("all are set up", || ["one", "two", "main"].iter().all(|name| seen.join(name).exists())).await;
    node.api.client().namespaced::<Pod>("default").delete("team", &Default::default()).await.unwrap();
    node.wait_gone("team").await;
    assert_eq!(std::fs::read_to_string(seen.join("log")).unwrap(), "main\ntwo\none\n");
}

/// Walk 7.3.
/// What a container can find out about itself: its class, its limits, services, the node.
pub(crate) async fn resources_and_services_reach_containers(node: &mut Node) {
    let service = json!({"metadata": {"name": "fooservice"}, "spec": {"ports": [{"port": 8765, "targetPort": 8080}]}});
    let service: k8s_openapi::api::core::v1::Service = serde_json::from_value(service).unwrap();
    let made = node.api.client().namespaced("default").create(&service).await.unwrap();
    let ip = made.spec.unwrap().cluster_ip.unwrap();
    // The watch of services is a little behind the write.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    let limits = json!({"cpu": "100m", "memory": "64Mi"});
    let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max; \
        echo $FOOSERVICE_SERVICE_HOST $FOOSERVICE_PORT; echo $CPU $MEMORY $NODE_CPU; echo $HOST $POD_IP; hostname; cat /etc/hosts; sleep 1000";
    let log = loop {
        node.create(
            "knows",
            json!({
                "hostname": "known", "subdomain": "sub",
                "hostAliases": [{"ip": "123.45.67.89", "hostnames": ["foo", "bar"]}],
                "containers": [{
                    "name": "c", "command": shell(script), "resources": {"limits": limits},
                    "env": [
                        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
                        {"name": "NODE_CPU", "valueFrom": {"resourceFieldRef": {"containerName": "other", "resource": "limits.cpu"}}},
                        {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    ],
                }, {"name": "other", "command": ["sleep", "1000"]}],
                "terminationGracePeriodSeconds": 0,
            }),
        )
        .await;
        let pod = node.wait("knows", "ready", is_ready).await;
        let log = node.wait_log(&pod, "c", |log| log.contains("HostAliases") && log.contains("bar")).await;
        if log.contains(&ip) || std::time::Instant::now() > deadline {
            break log;
        }
        node.delete("knows").await;
    };
    let pod = node.pod("knows").await.unwrap();
    let pod_ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let cpus = std::thread::available_parallelism().unwrap();
    let start = format!(
        "67108864\n{ip} tcp://{ip}:8765\n100 64 {cpus}\n127.0.0.1 {pod_ip}\nknown\n# Kubernetes-managed hosts file.\n"
    );
    assert!(log.starts_with(&start), "{log}\nis not\n{start}");
    assert!(log.contains(&format!("{pod_ip}\tknown.sub.default.svc.cluster.local\tknown\n")), "{log}");
    assert!(log.ends_with("# Entries added by HostAliases.\n123.45.67.89\tfoo\tbar\n"), "{log}");
    assert_eq!(pod.status.unwrap().qos_class.as_deref(), Some("Burstable"));
}

/// More than the node has is refused for good.
pub(crate) async fn pods_that_do_not_fit_are_refused(node: &mut Node) {
    let container = json!([{"name": "c", "command": ["true"], "resources": {"requests": {"cpu": "1000"}}}]);
    node.create("huge", json!({"containers": container})).await;
    let status = node.wait("huge", "failed", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    let message = status.message.unwrap();
    assert!(
        message.starts_with("Pod was rejected: Node didn't have enough resource: cpu, requested: 1000000, used: "),
        "{message}"
    );
}
