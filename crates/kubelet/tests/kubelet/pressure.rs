//! A node that runs short, processors that are given away, and what others write into the Node.

use client::Patch;
use k8s_openapi::api::core::v1::Node as ApiNode;
use serde_json::json;

use crate::node::{Node, is_ready, phase, shell};

/// Memory runs short (by a threshold nobody can keep): the node says so, ends who has no right to stay, and takes in
/// nobody new of that kind.
pub(crate) async fn short_memory_ends_pods(node: &mut Node) {
    let sleeps = |limits: serde_json::Value| {
        json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "resources": {"limits": limits}}],
            "terminationGracePeriodSeconds": 0})
    };
    node.create("greedy", sleeps(json!({}))).await;
    node.wait("greedy", "ready", is_ready).await;
    node.stop_kubelet().await;
    node.start_kubelet_with(|settings| {
        settings.eviction_hard = [("memory.available".into(), "1000Ti".into())].into();
    });
    let status = node.wait("greedy", "evicted", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    let message = status.message.unwrap();
    assert!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 1000Ti, available: "),
        "{message}"
    );
    let disrupted =
        status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(node.wait_condition("MemoryPressure", "True").await, "kubelet has insufficient memory available");
    node.create("late", sleeps(json!({}))).await;
    let late = node.wait("late", "refused", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(late.reason.as_deref(), Some("Evicted"));
    assert_eq!(late.message.as_deref(), Some("Pod was rejected: The node had condition: [MemoryPressure]. "));
}

/// Walk 8.2.
/// Whole processors for a Guaranteed pod, the rest for all others, over a restart of the kubelet.
pub(crate) async fn whole_processors_are_given_away_once(node: &mut Node) {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let last: u32 = online.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
    assert!(last > 0, "a machine with one processor has none to give away");
    let reserved = if last == 1 { "0".to_string() } else { format!("0-{}", last - 1) };
    let with_static = |settings: &mut kubelet::Settings| {
        settings.cpu_manager_policy = kubelet::CpuManagerPolicy::Static;
        settings.reserved_system_cpus = reserved.clone();
        settings.cpu_manager_reconcile_period = std::time::Duration::from_millis(200);
    };
    node.stop_kubelet().await;
    node.start_kubelet_with(with_static);
    let script = "while true; do grep Cpus_allowed_list /proc/self/status | cut -f2; sleep 0.2; done";
    let pod = |resources: serde_json::Value| {
        json!({"containers": [{"name": "c", "command": shell(script), "resources": resources}],
            "terminationGracePeriodSeconds": 0})
    };
    let whole = json!({"limits": {"cpu": "1", "memory": "32Mi"}});
    node.create("shared", pod(json!({}))).await;
    let shared = node.wait("shared", "ready", is_ready).await;
    let all = node.wait_log(&shared, "c", |log| !log.is_empty()).await;
    let all = all.lines().next().unwrap();
    node.create("whole", pod(whole.clone())).await;
    let owner = node.wait("whole", "ready", is_ready).await;
    let own = node.wait_log(&owner, "c", |log| !log.is_empty()).await;
    assert_eq!(own.lines().next(), Some(last.to_string().as_str()));
    node.wait_log(&shared, "c", |log| log.lines().next_back() == Some(reserved.as_str())).await;

    node.stop_kubelet().await;
    node.start_kubelet_with(with_static);
    node.create("more", pod(whole)).await;
    let refused = node.wait("more", "refused", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(refused.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert!(
        refused.message.unwrap().contains("not enough cpus available to satisfy request: requested=1, available=0")
    );
    node.delete("whole").await;
    node.wait_log(&shared, "c", |log| log.lines().next_back() == Some(all)).await;
}

/// Who counts a resource writes it into the capacity of the Node; the kubelet lets pods have it.
pub(crate) async fn resources_that_others_count_can_be_used(node: &mut Node) {
    node.wait_condition("Ready", "True").await;
    let nodes = node.api.client().all::<ApiNode>();
    for (capacity, expected) in [(json!("4"), Some("4")), (json!("6"), Some("6")), (json!(null), None)] {
        let written = json!({"status": {"capacity": {"example.com/dongle": capacity}}});
        nodes.patch_status(&node.name, &Patch::merge(written)).await.unwrap();
        node.wait_allocatable("example.com/dongle", expected).await;
    }
}

/// Nothing was heard of the node for a while, and the node controller has said so: it is ready again without waiting for its next
/// report, and not since before.
pub(crate) async fn a_node_that_was_called_unknown_says_what_it_is(node: &mut Node) {
    node.wait_condition("Ready", "True").await;
    let nodes = node.api.client().all::<ApiNode>();
    let since = "2026-01-01T00:00:00Z";
    let unknown = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": since});
    let written = json!({"status": {"conditions": [unknown]}});
    nodes.patch_status(&node.name, &Patch::strategic(written)).await.unwrap();
    node.wait_condition("Ready", "True").await;
    let conditions = nodes.get(&node.name).await.unwrap().status.unwrap().conditions.unwrap();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").unwrap();
    assert_ne!(ready.last_transition_time.unwrap().0.to_string(), since);
}
