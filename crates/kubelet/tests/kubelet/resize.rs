//! Pods that get more or less while they run.

use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodCondition};
use serde_json::{Value, json};

use crate::node::{Node, container_id, is_ready, restarts, shell};

fn amounts(cpu: &str, memory: &str, cpu_limit: &str, memory_limit: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu_limit, "memory": memory_limit}})
}

async fn resize(node: &Node, pod: &str, resources: Value) {
    let patch = client::Patch::strategic(json!({"spec": {"containers": [{"name": "c", "resources": resources}]}}));
    let pods = node.api.client().namespaced::<Pod>("default");
    let _: Pod = pods.patch_path(pod, Some("resize"), &patch).await.unwrap();
}

fn first(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// All that was wished for is granted, in use and told, and nothing waits or goes on.
fn is_done(pod: &Pod) -> bool {
    let (Some(spec), Some(status)) = (&pod.spec, first(pod)) else { return false };
    let wished = spec.containers[0].resources.clone().unwrap_or_default();
    status.resources.as_ref() == Some(&wished)
        && status.allocated_resources == wished.requests
        && condition(pod, "PodResizePending").is_none()
        && condition(pod, "PodResizeInProgress").is_none()
        && pod.status.as_ref().is_some_and(|status| status.observed_generation == pod.metadata.generation)
}

fn is_v2() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Whether Burstable pods together have these CPU shares.
fn burstable_have(node: &Node, shares: i64) -> bool {
    let group = format!("cox-test-{}/kubepods/burstable", node.name);
    let (file, expected) = match is_v2() {
        true => (format!("/sys/fs/cgroup/{group}/cpu.weight"), cgroup::shares_to_weight(shares)),
        false => (format!("/sys/fs/cgroup/cpu/{group}/cpu.shares"), shares),
    };
    std::fs::read_to_string(file).unwrap().trim() == expected.to_string()
}

/// What the kernel enforces inside: quota in microseconds, memory in bytes.
async fn enforced(node: &Node, pod: &str) -> String {
    let files = match is_v2() {
        true => ["cpu.max", "memory.max"],
        false => ["cpu/cpu.cfs_quota_us", "memory/memory.limit_in_bytes"],
    };
    let mut found = Vec::new();
    for file in files {
        let text = node.exec(pod, "c", &format!("cat /sys/fs/cgroup/{file}")).await;
        found.extend(text.split_whitespace().next().map(str::to_owned));
    }
    found.join(" ")
}

pub(crate) async fn running_pods_get_more_and_less(node: &mut Node) {
    let container = |resources: Value| json!([{"name": "c", "command": ["sleep", "1000"], "resources": resources}]);
    let spec = |containers: Value| json!({"containers": containers, "terminationGracePeriodSeconds": 0});
    node.create("web", spec(container(amounts("100m", "32Mi", "200m", "64Mi")))).await;
    let started = node.wait("web", "ready", is_ready).await;
    assert!(is_done(&started));
    assert!(burstable_have(node, 102));

    resize(node, "web", amounts("200m", "48Mi", "400m", "96Mi")).await;
    let more = node.wait("web", "larger", is_done).await;
    assert_eq!(enforced(node, "web").await, format!("40000 {}", 96 << 20));
    assert!(burstable_have(node, 204));
    assert_eq!((restarts(&more), container_id(&more)), (0, container_id(&started)));
    let is_told = |event: &Event| event.message.as_ref().is_some_and(|text| text.starts_with("Pod resize started: {"));
    node.wait_event("the start of the resize", is_told).await;

    node.stop_kubelet().await;
    resize(node, "web", amounts("50m", "16Mi", "100m", "48Mi")).await;
    node.start_kubelet();
    let less = node.wait("web", "smaller", is_done).await;
    assert_eq!(enforced(node, "web").await, format!("10000 {}", 48 << 20));
    assert!(burstable_have(node, 51));
    assert_eq!((restarts(&less), container_id(&less)), (0, container_id(&started)));

    let mut containers = container(amounts("100m", "32Mi", "200m", "64Mi"));
    containers[0]["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    node.create("anew", spec(containers)).await;
    node.wait("anew", "ready", is_ready).await;
    resize(node, "anew", amounts("200m", "32Mi", "200m", "64Mi")).await;
    let kept = node.wait("anew", "larger", is_done).await;
    assert_eq!(restarts(&kept), 0, "only memory asks for it");
    assert!(burstable_have(node, 256), "50m and 200m");
    resize(node, "anew", amounts("200m", "32Mi", "200m", "96Mi")).await;
    node.wait("anew", "restarted", |pod| restarts(pod) == 1 && is_done(pod) && is_ready(pod)).await;
    assert_eq!(enforced(node, "anew").await, format!("20000 {}", 96 << 20));
    node.delete("anew").await;
    node.wait_until("only one is left to share", || burstable_have(node, 51)).await;
}

pub(crate) async fn resizes_wait_for_room(node: &mut Node) {
    node.wait_condition("Ready", "True").await;
    let nodes = node.api.client().all::<k8s_openapi::api::core::v1::Node>().list(&Default::default()).await.unwrap();
    let allocatable = nodes.items[0].status.as_ref().unwrap().allocatable.clone().unwrap();
    let cpu: Quantity = allocatable["cpu"].0.parse().unwrap();
    let asks = |cpu: String| json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "resources": {"requests": {"cpu": cpu}}}], "terminationGracePeriodSeconds": 0});
    node.create("large", asks(format!("{}m", cpu.milli_value() - 600))).await;
    for name in ["ending", "small"] {
        node.create(name, asks("100m".into())).await;
        node.wait(name, "ready", is_ready).await;
    }
    node.wait("large", "ready", is_ready).await;
    // There is room for one of them, and only once the large one has left.
    let wish = cpu.milli_value() - 300;
    resize(node, "ending", json!({"requests": {"cpu": format!("{wish}m")}})).await;
    node.wait("ending", "deferred", |pod| condition(pod, "PodResizePending").is_some()).await;
    resize(node, "small", json!({"requests": {"cpu": format!("{wish}m")}})).await;
    let waits = node.wait("small", "deferred", |pod| condition(pod, "PodResizePending").is_some()).await;
    let pending = condition(&waits, "PodResizePending").unwrap();
    assert_eq!(pending.reason.as_deref(), Some("Deferred"));
    let message = pending.message.as_deref().unwrap();
    let expected = format!("Node didn't have enough resource: cpu, requested: {wish}, used: ");
    assert!(message.starts_with(&expected), "{message}");
    assert_eq!(first(&waits).unwrap().allocated_resources.as_ref().unwrap()["cpu"].0, "100m");
    // The wish that comes first is that of a pod which ends, for a long time: nobody waits for it.
    let slowly = client::DeleteParams::default().with_grace_period(600);
    node.api.client().namespaced::<Pod>("default").delete("ending", &slowly).await.unwrap();
    node.delete("large").await;
    node.wait("small", "larger", is_done).await;
    node.delete("ending").await;
}

pub(crate) async fn memory_in_use_is_not_taken_away(node: &mut Node) {
    let command = shell("head -c 30000000 /dev/zero > /dev/shm/held; touch /dev/shm/full; exec sleep 1000");
    let limits = |memory: &str| json!({"limits": {"memory": memory}, "requests": {"memory": "8Mi"}});
    node.create(
        "holds",
        json!({"containers": [{"name": "c", "command": command, "resources": limits("64Mi"),
            "readinessProbe": {"exec": {"command": ["test", "-e", "/dev/shm/full"]}, "periodSeconds": 1}}],
            "terminationGracePeriodSeconds": 0}),
    )
    .await;
    let before = node.wait("holds", "ready", is_ready).await;
    resize(node, "holds", limits("16Mi")).await;
    let stuck = node
        .wait("holds", "stuck", |pod| {
            condition(pod, "PodResizeInProgress").is_some_and(|c| c.reason.as_deref() == Some("Error"))
        })
        .await;
    let message = condition(&stuck, "PodResizeInProgress").unwrap().message.clone().unwrap();
    // The limit of the pod is that of its only container.
    for whose in ["pod", "container \"c\""] {
        let expected = format!("attempting to set {whose} memory limit (16777216) below current usage (");
        assert!(message.starts_with("cannot decrease memory limits: [") && message.contains(&expected), "{message}");
    }
    assert_eq!(first(&stuck).unwrap().resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"].0, "64Mi");
    node.exec("holds", "c", "rm /dev/shm/held").await;
    let after = node.wait("holds", "smaller", is_done).await;
    assert_eq!((restarts(&after), container_id(&after)), (0, container_id(&before)));
}
