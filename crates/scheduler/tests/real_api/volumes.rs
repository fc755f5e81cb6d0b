//! Pods wait for what their volumes need, and are tried again when it is there.

use std::time::Duration;

use client::DeleteParams;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use serde_json::json;

use super::{Cluster, offers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_until_a_volume_leaves_the_node() {
    let mut cluster = Cluster::start().await;
    cluster
        .create::<CSINode>(json!({"metadata": {"name": "n"}, "spec": {"drivers": [
            {"name": "disks.example", "nodeID": "n", "allocatable": {"count": 1}}]}}))
        .await;
    for name in ["old", "new"] {
        cluster
            .create::<PersistentVolume>(json!({"metadata": {"name": name}, "spec": {"storageClassName": "",
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "disks.example", "volumeHandle": name}}}))
            .await;
    }
    cluster
        .create::<VolumeAttachment>(json!({"metadata": {"name": "left-over"}, "spec": {
            "attacher": "disks.example", "nodeName": "n", "source": {"persistentVolumeName": "old"}}}))
        .await;
    cluster
        .create::<PersistentVolumeClaim>(json!({"metadata": {"name": "new", "namespace": "default",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "new", "storageClassName": "",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    cluster.node("n", offers("4")).await;
    cluster.pod("user", json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "new"}}]})).await;
    let said = cluster.event("user", "FailedScheduling").await;
    assert!(said.starts_with("0/1 nodes are available: 1 node(s) exceed max volume count."), "{said}");
    cluster.client.all::<VolumeAttachment>().delete("left-over", &DeleteParams::default()).await.unwrap();
    assert_eq!(cluster.bound("user").await, "n");
    cluster.stop_scheduler().await;
}

/// The room for a volume that is to be made counts, and is looked at again when its driver publishes more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_waits_until_its_driver_has_room() {
    let mut cluster = Cluster::start().await;
    cluster.node("n", offers("4")).await;
    cluster
        .create::<CSIDriver>(json!({"metadata": {"name": "disks.example"}, "spec": {"storageCapacity": true}}))
        .await;
    cluster
        .create::<StorageClass>(json!({"metadata": {"name": "disks"}, "provisioner": "disks.example",
            "volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    cluster
        .create::<PersistentVolumeClaim>(json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {
            "storageClassName": "disks", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}}}))
        .await;
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    cluster.pod("user", json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]})).await;
    let said = cluster.event("user", "FailedScheduling").await;
    assert!(said.starts_with("0/1 nodes are available: 1 node(s) did not have enough free storage."), "{said}");
    cluster
        .create::<CSIStorageCapacity>(json!({"metadata": {"name": "room", "namespace": "default"},
            "storageClassName": "disks", "capacity": "10Gi", "nodeTopology": {}}))
        .await;
    let choice = async {
        loop {
            let claim = claims.get("data").await.unwrap();
            let chosen = claim.metadata.annotations.unwrap_or_default().remove("volume.kubernetes.io/selected-node");
            match chosen {
                Some(chosen) => break chosen,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let chosen = tokio::time::timeout(Duration::from_secs(240), choice).await.expect("a choice");
    assert_eq!(chosen, "n");
    cluster.stop_scheduler().await;
}

/// A volume for one pod is waited for, or taken from a pod that matters less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_for_one_pod_goes_to_the_one_that_matters_more() {
    let mut cluster = Cluster::start().await;
    cluster.create::<PriorityClass>(json!({"metadata": {"name": "high"}, "value": 1000})).await;
    cluster.node("n", offers("4")).await;
    let modes = json!(["ReadWriteOncePod"]);
    cluster
        .create::<PersistentVolume>(json!({"metadata": {"name": "once"}, "spec": {"storageClassName": "",
            "capacity": {"storage": "1Gi"}, "accessModes": modes, "csi": {"driver": "disks.example", "volumeHandle": "once"}}}))
        .await;
    cluster
        .create::<PersistentVolumeClaim>(json!({"metadata": {"name": "once", "namespace": "default",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "once", "storageClassName": "",
            "accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}}}))
        .await;
    let user = |class: Option<&str>| {
        json!({"priorityClassName": class,
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "once"}}]})
    };
    cluster.pod("first", user(None)).await;
    assert_eq!(cluster.bound("first").await, "n");
    cluster.pod("second", user(None)).await;
    let said = cluster.event("second", "FailedScheduling").await;
    let in_use = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
    assert!(said.starts_with(&format!("0/1 nodes are available: 1 {in_use}.")), "{said}");
    let (pods, now) = (cluster.client.namespaced::<Pod>("default"), DeleteParams::default().with_grace_period(0));
    pods.delete("second", &now).await.unwrap();
    cluster.pod("vip", user(Some("high"))).await;
    cluster.until("first", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    // Nobody plays the node here: what is left of the pod is removed by hand.
    pods.delete("first", &now).await.unwrap();
    assert_eq!(cluster.bound("vip").await, "n");
    cluster.stop_scheduler().await;
}
