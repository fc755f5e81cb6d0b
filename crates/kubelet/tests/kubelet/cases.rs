//! What pods may ask for, one test per capability.

use std::time::Duration;

use client::Patch;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::{Value, json};

use crate::{Node, in_namespace, is_ready, phase};

fn shell(script: &str) -> Value {
    json!(["sh", "-c", script])
}

fn restarts(pod: &Pod) -> i32 {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|status| status.restart_count)
        .sum()
}

fn waiting_reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

fn container_id(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone()
}

#[test]
fn restart_policies_decide_the_phase() {
    in_namespace(|| async {
        let node = Node::start().await;
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
        node.finish().await;
    });
}

#[test]
fn init_containers_and_sidecars_run_in_order() {
    in_namespace(|| async {
        let node = Node::start().await;
        let mount = json!([{"name": "log", "mountPath": "/log"}]);
        let write = |word: &str| shell(&format!("echo {word} >> /log/order"));
        node.create(
            "ordered",
            json!({
                "restartPolicy": "Never",
                "initContainers": [
                    {"name": "first", "image": "localhost/busybox:1", "command": write("first"), "volumeMounts": mount},
                    {"name": "side", "image": "localhost/busybox:1", "restartPolicy": "Always", "command": shell("echo side >> /log/order; exec sleep 1000"), "volumeMounts": mount,
                     "startupProbe": {"exec": {"command": ["grep", "side", "/log/order"]}, "periodSeconds": 1}},
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
        node.finish().await;
    });
}

#[test]
fn volumes_show_objects_and_follow_them() {
    in_namespace(|| async {
        let node = Node::start().await;
        let client = node.api.client();
        let map = |text: &str| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": "map"}, "data": {"key": text, "other": "x"}})).unwrap()
        };
        client.namespaced::<ConfigMap>("default").create(&map("one")).await.unwrap();
        let secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "secret"}, "data": {"word": "aGlkZGVu"}})).unwrap();
        client.namespaced::<Secret>("default").create(&secret).await.unwrap();
        let script = "stat -Lc %a /map/key /secret/word; stat -Lc %g /map/key; cat /map/key /secret/word /all/name /env-dir/sub; echo; grep -c . /all/token /var/run/secrets/kubernetes.io/serviceaccount/token; \
            stat -c %a /empty; mount | grep -c 'memory type tmpfs'; echo $FROM_MAP $FROM_SECRET $EXPANDED $FROM_IMAGE; id -G; \
            until grep -q two /map/key; do sleep 0.1; done; echo updated; sleep 1000";
        node.create(
            "volumes",
            json!({
                "securityContext": {"fsGroup": 1001},
                "containers": [{
                    "name": "c",
                    "command": shell(script),
                    "env": [
                        {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "key"}}},
                        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}},
                        {"name": "EXPANDED", "value": "$(FROM_MAP)-$$(X)"},
                        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    ],
                    "volumeMounts": [
                        {"name": "map", "mountPath": "/map"},
                        {"name": "secret", "mountPath": "/secret"},
                        {"name": "all", "mountPath": "/all"},
                        {"name": "empty", "mountPath": "/empty"},
                        {"name": "memory", "mountPath": "/memory"},
                        {"name": "map", "mountPath": "/env-dir/sub", "subPath": "other"},
                        {"name": "empty", "mountPath": "/expr", "subPathExpr": "$(NAME)/deep"},
                    ],
                }],
                "volumes": [
                    {"name": "map", "configMap": {"name": "map", "defaultMode": 256}},
                    {"name": "secret", "secret": {"secretName": "secret"}},
                    {"name": "empty", "emptyDir": {}},
                    {"name": "memory", "emptyDir": {"medium": "Memory"}},
                    {"name": "all", "projected": {"sources": [
                        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                        {"serviceAccountToken": {"path": "token"}},
                    ]}},
                ],
            }),
        )
        .await;
        let pod = node.wait("volumes", "ready", is_ready).await;
        let expected = "440\n644\n1001\nonehiddenvolumesx\n/all/token:1\n/var/run/secrets/kubernetes.io/serviceaccount/token:1\n2777\n1\none hidden one-$(X) yes\n0 1001\n";
        let log = node.wait_log(&pod, "c", |log| log.lines().count() >= 10).await;
        assert_eq!(log, expected);
        client
            .namespaced::<ConfigMap>("default")
            .patch("map", &Patch::merge(json!({"data": {"key": "two"}})))
            .await
            .unwrap();
        node.wait_log(&pod, "c", |log| log.ends_with("updated\n")).await;
        node.finish().await;
    });
}

#[test]
fn probes_and_hooks_act() {
    in_namespace(|| async {
        let node = Node::start().await;
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
        node.finish().await;
    });
}

#[test]
fn missing_things_are_told_and_waited_for() {
    in_namespace(|| async {
        let node = Node::start().await;
        node.create(
            "no-image",
            json!({"containers": [{"name": "c", "image": "localhost:1/none:1", "command": ["true"]}]}),
        )
        .await;
        node.create("bad-image", json!({"containers": [{"name": "c", "image": "Bad Image!", "command": ["true"]}]}))
            .await;
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
        let late: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "late"}, "data": {"k": "v"}})).unwrap();
        node.api.client().namespaced::<ConfigMap>("default").create(&late).await.unwrap();
        node.wait("no-map", "ready", is_ready).await;
        node.wait("no-volume", "ready", is_ready).await;
        node.finish().await;
    });
}

#[test]
fn a_new_kubelet_disturbs_nothing() {
    in_namespace(|| async {
        let mut node = Node::start().await;
        let ready = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
        node.create(
            "keeps",
            json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "readinessProbe": ready}]}),
        )
        .await;
        node.create(
            "ends",
            json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": shell("sleep 3; exit 7")}]}),
        )
        .await;
        node.create("goes", json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
        let before = node.wait("keeps", "ready", is_ready).await;
        node.wait("ends", "running", |pod| phase(pod) == "Running").await;
        node.wait("goes", "running", |pod| phase(pod) == "Running").await;
        for round in 0..3 {
            node.stop_kubelet().await;
            if round == 0 {
                // Deleted for good while nobody looks.
                node.api
                    .client()
                    .namespaced::<Pod>("default")
                    .delete("goes", &client::DeleteParams::default().with_grace_period(0))
                    .await
                    .unwrap();
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            node.start_kubelet();
            node.wait("keeps", "ready", is_ready).await;
        }
        let after = node.wait("keeps", "ready", is_ready).await;
        assert_eq!(container_id(&after), container_id(&before));
        assert_eq!(restarts(&after), 0);
        let since = |pod: &Pod| {
            let conditions = pod.status.as_ref().unwrap().conditions.clone().unwrap();
            conditions.into_iter().find(|c| c.type_ == "Ready").unwrap().last_transition_time
        };
        assert_eq!(since(&after), since(&before), "it was ready all the time");
        let ended = node.wait("ends", "failed", |pod| phase(pod) == "Failed").await;
        let state = ended.status.unwrap().container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, 7);
        node.wait_empty("goes").await;
        node.finish().await;
    });
}

#[test]
fn server_answers_logs_exec_and_stats() {
    in_namespace(|| async {
        let node = Node::start().await;
        node.create(
            "talks",
            json!({"containers": [{"name": "c", "command": shell("echo one; echo two; exec sleep 1000")}]}),
        )
        .await;
        let pod = node.wait("talks", "ready", is_ready).await;
        node.wait_log(&pod, "c", |log| log.lines().count() == 2).await;
        let port = node.port().await;
        for (path, expected) in [
            ("containerLogs/default/talks/c", "one\ntwo\n"),
            ("containerLogs/default/talks/c?tailLines=1", "two\n"),
            ("containerLogs/default/talks/c?limitBytes=3", "one"),
            ("healthz", "ok"),
        ] {
            assert_eq!(get(port, path).await, expected, "{path}");
        }
        assert!(
            get(port, "containerLogs/default/talks/c?previous=true")
                .await
                .contains("previous terminated container \"c\" in pod \"talks\" not found")
        );
        assert!(get(port, "pods").await.contains("\"talks\""));
        assert!(get(port, "stats/summary").await.contains("\"podRef\""));
        assert!(get(port, "metrics/resource").await.contains("container_memory_working_set_bytes{container=\"c\""));
        let run = curl(&["-X", "POST", &format!("https://127.0.0.1:{port}/run/default/talks/c?cmd=echo%20hi")]).await;
        assert_eq!(run, "hi\n");
        node.finish().await;
    });
}

async fn get(port: u16, path: &str) -> String {
    curl(&[&format!("https://127.0.0.1:{port}/{path}")]).await
}

async fn curl(arguments: &[&str]) -> String {
    let output =
        tokio::process::Command::new("curl").args(["-sk", "--max-time", "20"]).args(arguments).output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
