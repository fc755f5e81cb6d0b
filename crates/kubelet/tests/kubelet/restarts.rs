//! Kubelet and runtime die and come back; pods do not notice.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::node::{Node, container_id, is_ready, phase, restarts, shell};
use crate::runtime::Kind;

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")?.last_transition_time.as_ref().map(|time| time.0)
}

/// Walk 8.1.
/// Kubelet, runtime and both are killed, ten times in a row.
pub(crate) async fn pods_outlive_kubelet_and_runtime(node: &mut Node) {
    node.stop_kubelet().await;
    node.spawn_kubelet();
    let flag = node.dir.path().join("flag");
    std::fs::create_dir(&flag).unwrap();
    let lines = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.05; done";
    // However slow the machine is, only what restarts do to the pod counts.
    let ready = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 60});
    node.create("steady", json!({"containers": [{"name": "c", "command": shell(lines), "readinessProbe": ready}]}))
        .await;
    node.create(
        "ends",
        json!({
            "restartPolicy": "Never",
            "containers": [{"name": "c", "command": shell("until test -e /flag/go; do sleep 0.05; done; exit 7"),
                "volumeMounts": [{"name": "flag", "mountPath": "/flag"}]}],
            "volumes": [{"name": "flag", "hostPath": {"path": flag}}],
        }),
    )
    .await;
    let before = node.wait("steady", "ready", is_ready).await;
    let ends = node.wait("ends", "ready", is_ready).await;
    let (pid, doomed) = (node.pid(&before).await, node.pid(&ends).await);
    let mut down = None;
    for round in 0..10 {
        let (kubelet, runtime) = [(true, false), (false, true), (true, true)][round % 3];
        if kubelet {
            node.stop_kubelet().await;
        }
        if runtime {
            node.runtime.kill();
        }
        if kubelet && runtime && down.is_none() {
            let from = Timestamp::now().as_second();
            std::fs::write(flag.join("go"), "").unwrap();
            node.wait_until("its process ended", || {
                !std::fs::exists(format!("/proc/{doomed}/root/bin")).unwrap_or(false)
            })
            .await;
            // The process is gone a moment before its shim looks at the clock and writes down when that was.
            if node.runtime.kind == Kind::Cox {
                let id = container_id(&ends).unwrap();
                let (_, id) = id.split_once("://").unwrap();
                let record = node.dir.path().join("root/containers").join(id).join("status.json");
                node.wait_until("its end is written down", || {
                    let status = std::fs::read(&record).unwrap_or_default();
                    let status: Value = serde_json::from_slice(&status).unwrap_or_default();
                    status["finished_at"].as_i64().is_some_and(|at| at > 0)
                })
                .await;
            }
            down = Some((from, Timestamp::now().as_second()));
        }
        if runtime {
            node.runtime.spawn();
        }
        if kubelet {
            node.spawn_kubelet();
        }
        // A pod from start to end: kubelet and runtime do their work again.
        let name = format!("round-{round}");
        node.create(&name, json!({"restartPolicy": "Never", "containers": [{"name": "c", "command": ["true"]}]})).await;
        node.wait(&name, "succeeded", |pod| phase(pod) == "Succeeded").await;
        let after = node.wait("steady", "ready", is_ready).await;
        assert_eq!((container_id(&after), node.pid(&after).await), (container_id(&before), pid), "round {round}");
        assert_eq!(restarts(&after), 0);
        let told: Vec<_> = node.api.events().await.into_iter().map(|event| event.message).collect();
        assert_eq!(ready_since(&after), ready_since(&before), "ready all the time: round {round}, {told:?}");
        assert_eq!(node.exec("steady", "c", "echo hi").await, "hi\n");
    }
    let ended = node.wait("ends", "failed", |pod| phase(pod) == "Failed").await;
    let state = ended.status.unwrap().container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((state.exit_code, state.reason.as_deref()), (7, Some("Error")));
    let (from, to) = down.unwrap();
    let finished = state.finished_at.unwrap().0.as_second();
    // containerd takes the time at which it hears of the end.
    if node.runtime.kind == Kind::Cox {
        assert!((from..=to).contains(&finished), "{finished} is when it ended, between {from} and {to}");
        let log = node.container_log(&before, "c");
        let wanted: String = (0..log.lines().count()).map(|number| format!("line {number}\n")).collect();
        assert_eq!(log, wanted, "no line is lost or doubled");
    }
}

/// Deleted for good while nobody looked: nothing of it may go on.
pub(crate) async fn pods_gone_meanwhile_are_ended(node: &mut Node) {
    let containers = json!([{"name": "c", "command": ["sleep", "1000"]}]);
    node.create("goes", json!({"containers": containers, "terminationGracePeriodSeconds": 1})).await;
    node.wait("goes", "running", |pod| phase(pod) == "Running").await;
    node.stop_kubelet().await;
    let now = client::DeleteParams::default().with_grace_period(0);
    node.api.client().namespaced::<Pod>("default").delete("goes", &now).await.unwrap();
    node.start_kubelet();
    node.wait_empty("goes").await;
}
