//! One case for each thing a user would notice.

use std::time::Duration;

use client::Patch;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use scheduler::Configuration;
use serde_json::json;

use super::{Cluster, condition, cpu, node_name, offers};

/// Walk 6.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_bound_and_say_why_when_they_are_not() {
    let mut cluster = Cluster::start().await;
    cluster.pod("first", json!({"containers": cpu("1")})).await;
    let waiting = cluster.until("first", |pod| condition(pod, "PodScheduled").is_some()).await;
    let expected = ("False".into(), "Unschedulable".into(), "no nodes available to schedule pods".into());
    assert_eq!(condition(&waiting, "PodScheduled"), Some(expected));
    cluster.node("small", offers("500m")).await;
    let message = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    cluster.pod("second", json!({"containers": cpu("1")})).await;
    assert_eq!(cluster.event("second", "FailedScheduling").await, message);
    let waiting = cluster.until("second", |pod| condition(pod, "PodScheduled").is_some()).await;
    assert_eq!(condition(&waiting, "PodScheduled").unwrap().2, message);
    // A node that is large enough is all they wait for.
    cluster.node("large", offers("4")).await;
    for name in ["first", "second"] {
        assert_eq!(cluster.bound(name).await, "large");
        let said = cluster.event(name, "Scheduled").await;
        assert_eq!(said, format!("Successfully assigned default/{name} to large"));
        assert_eq!(condition(&cluster.get(name).await, "PodScheduled").unwrap().0, "True");
    }
    cluster.stop_scheduler().await;
}

/// Walk 6.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gated_and_foreign_pods_are_left_alone() {
    let mut cluster = Cluster::start().await;
    cluster.node("n", offers("4")).await;
    cluster.pod("foreign", json!({"schedulerName": "another"})).await;
    cluster.pod("gated", json!({"schedulingGates": [{"name": "example.com/wait"}]})).await;
    cluster.pod("free", json!({})).await;
    assert_eq!(cluster.bound("free").await, "n");
    for name in ["foreign", "gated"] {
        assert_eq!(node_name(&cluster.get(name).await), None, "{name}");
    }
    let open = Patch::merge(json!({"spec": {"schedulingGates": []}}));
    cluster.client.namespaced::<Pod>("default").patch("gated", &open).await.unwrap();
    assert_eq!(cluster.bound("gated").await, "n");
    assert_eq!(node_name(&cluster.get("foreign").await), None);
    cluster.stop_scheduler().await;
}

/// Walk 6.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn important_pods_make_room() {
    let mut cluster = Cluster::start().await;
    cluster.create::<PriorityClass>(json!({"metadata": {"name": "high"}, "value": 1000})).await;
    cluster.create::<PriorityClass>(json!({"metadata": {"name": "middle"}, "value": 100})).await;
    for name in ["a", "b"] {
        cluster.node(name, offers("1")).await;
    }
    let filler = |node: &str, class: Option<&str>| json!({"containers": cpu("800m"), "nodeSelector": {"kubernetes.io/hostname": node}, "priorityClassName": class});
    // The one of middle priority is spared; the victim stays until its finalizer lets it go.
    cluster.pod("middle", filler("a", Some("middle"))).await;
    cluster
        .create::<Pod>(json!({"metadata": {"name": "low", "namespace": "default", "finalizers": ["example.com/stay"]}, "spec": filler("b", None)}))
        .await;
    assert_eq!((cluster.bound("middle").await.as_str(), cluster.bound("low").await.as_str()), ("a", "b"));
    cluster.pod("vip", json!({"containers": cpu("500m"), "priorityClassName": "high"})).await;
    let victim = cluster.until("low", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let (status, reason, message) = condition(&victim, "DisruptionTarget").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("True", "PreemptionByScheduler"));
    assert_eq!(message, "default-scheduler: preempting to accommodate a higher priority pod");
    let vip = cluster.until("vip", |pod| nominated_node(pod).is_some()).await;
    assert_eq!(nominated_node(&vip), Some("b"));
    let said = cluster.event("low", "Preempted").await;
    assert_eq!(said, format!("Preempted by pod {} on node b", vip.metadata.uid.unwrap()));
    // The kept room is not for others.
    cluster.pod("late", json!({"containers": cpu("300m")})).await;
    cluster.event("late", "FailedScheduling").await;
    let done = json!({"metadata": {"finalizers": null}});
    let pods = cluster.client.namespaced::<Pod>("default");
    pods.patch("low", &Patch::merge(done)).await.unwrap();
    if pods.get_opt("low").await.unwrap().is_some() {
        // Nobody plays the node here: what is left of the pod is removed by hand.
        pods.delete("low", &client::DeleteParams::default().with_grace_period(0)).await.unwrap();
    }
    assert_eq!(cluster.bound("vip").await, "b");
    assert_eq!(cluster.bound("late").await, "b");
    assert!(cluster.get("middle").await.metadata.deletion_timestamp.is_none());
    cluster.stop_scheduler().await;
}

/// Walk 6.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_pack_or_spread() {
    let text = r#"
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
  plugins:
    score: {disabled: [{name: "*"}], enabled: [{name: NodeResourcesFit}]}
"#;
    let mut cluster = Cluster::with(Configuration::parse(text).unwrap()).await;
    for name in ["a", "b", "c"] {
        cluster.node(name, offers("4")).await;
    }
    cluster.pod("seed", json!({"containers": cpu("500m"), "nodeSelector": {"kubernetes.io/hostname": "b"}})).await;
    assert_eq!(cluster.bound("seed").await, "b");
    for at in 0..4 {
        let name = format!("packed-{at}");
        cluster.pod(&name, json!({"containers": cpu("500m"), "schedulerName": "packing"})).await;
        assert_eq!(cluster.bound(&name).await, "b");
    }
    cluster.pod("spread", json!({"containers": cpu("500m")})).await;
    assert_ne!(cluster.bound("spread").await, "b");
    cluster.stop_scheduler().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_wait_for_their_first_consumer() {
    let mut cluster = Cluster::start().await;
    for name in ["a", "b"] {
        cluster.node(name, offers("4")).await;
    }
    cluster
        .create::<StorageClass>(json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    cluster
        .create::<PersistentVolume>(json!({"metadata": {"name": "disk"}, "spec": {"storageClassName": "local",
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}}}}))
        .await;
    let volumes = cluster.client.all::<PersistentVolume>();
    volumes.patch_status("disk", &Patch::merge(json!({"status": {"phase": "Available"}}))).await.unwrap();
    cluster
        .create::<PersistentVolumeClaim>(json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.pod("user", json!({"volumes": volume})).await;
    // The scheduler promises the volume; the volume controller, played here, completes the claim.
    let promise = async {
        loop {
            let disk = volumes.get("disk").await.unwrap();
            match disk.spec.unwrap().claim_ref {
                Some(claim) => break claim,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let promised = tokio::time::timeout(Duration::from_secs(240), promise).await.expect("a promise");
    assert_eq!(promised.name.as_deref(), Some("data"));
    assert_eq!(node_name(&cluster.get("user").await), None, "not before the claim is bound");
    let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "disk"}});
    cluster.client.namespaced::<PersistentVolumeClaim>("default").patch("data", &Patch::merge(bound)).await.unwrap();
    assert_eq!(cluster.bound("user").await, "b");
    // A second user follows the volume.
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.pod("second", json!({"volumes": volume})).await;
    assert_eq!(cluster.bound("second").await, "b");
    cluster.stop_scheduler().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_forgets_nothing() {
    let mut cluster = Cluster::start().await;
    cluster.node("n", offers("1")).await;
    cluster.pod("one", json!({"containers": cpu("600m")})).await;
    cluster.bound("one").await;
    cluster.stop_scheduler().await;
    cluster.pod("two", json!({"containers": cpu("600m")})).await;
    cluster.pod("three", json!({"containers": cpu("300m")})).await;
    cluster.start_scheduler();
    assert_eq!(cluster.bound("three").await, "n");
    cluster.event("two", "FailedScheduling").await;
    assert_eq!(node_name(&cluster.get("two").await), None);
    // Opened and closed, the node takes nothing; opened, it does.
    let cordon = |closed: bool| Patch::merge(json!({"spec": {"unschedulable": closed}}));
    cluster.seen.until(&cluster.client.all::<Node>().patch("n", &cordon(true)).await.unwrap()).await;
    cluster.pod("four", json!({})).await;
    let said = cluster.event("four", "FailedScheduling").await;
    assert!(said.starts_with("0/1 nodes are available: 1 node(s) were unschedulable."), "{said}");
    cluster.client.all::<Node>().patch("n", &cordon(false)).await.unwrap();
    assert_eq!(cluster.bound("four").await, "n");
    cluster.stop_scheduler().await;
}

fn nominated_node(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref()
}
