//! Volumes of CSI drivers and iSCSI disks are attached for the pods of a node and let go after them. The attacher is the test
//! itself.

use client::{DeleteParams, ListParams, Patch};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::{Value, json};

use crate::harness::{Cluster, patiently};
use crate::late_caches;

const UNIQUE: &str = "kubernetes.io/csi/disks.example^h-data";
const DISK: &str = "kubernetes.io/iscsi/10.0.0.1:iqn.2026-01.org.example:a:0";

async fn node(cluster: &Cluster, name: &str) {
    let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
    cluster.apply::<Node>(json!({ "metadata": { "name": name, "annotations": annotations } })).await;
    ready(cluster, name, "True").await;
}

async fn patch_node(cluster: &Cluster, name: &str, status: Value) {
    let patch = Patch::merge(json!({ "status": status }));
    cluster.client.all::<Node>().patch_status(name, &patch).await.unwrap();
}

async fn ready(cluster: &Cluster, name: &str, status: &str) {
    patch_node(cluster, name, json!({ "conditions": [{ "type": "Ready", "status": status }] })).await;
}

async fn uses(cluster: &Cluster, name: &str, volumes: &[&str]) {
    patch_node(cluster, name, json!({ "volumesInUse": volumes })).await;
}

/// A bound claim `default/data` on a volume of the driver.
async fn claim(cluster: &Cluster, mode: &str) {
    claim_of(cluster, mode, json!({ "csi": { "driver": "disks.example", "volumeHandle": "h-data" } })).await;
}

/// A bound claim `default/data` on an iSCSI disk.
async fn claim_disk(cluster: &Cluster, mode: &str) {
    let source = json!({ "targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.org.example:a", "lun": 0 });
    claim_of(cluster, mode, json!({ "iscsi": source })).await;
}

async fn claim_of(cluster: &Cluster, mode: &str, source: Value) {
    let mut spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": [mode], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": { "namespace": "default", "name": "data" },
    });
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    cluster.apply::<PersistentVolume>(json!({ "metadata": { "name": "data" }, "spec": spec })).await;
    cluster
        .apply::<PersistentVolumeClaim>(json!({
            "metadata": { "name": "data", "namespace": "default" },
            "spec": {
                "accessModes": [mode], "storageClassName": "", "volumeName": "data",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }))
        .await;
    cluster
        .until::<PersistentVolumeClaim>("default", "data", "bound", |claim| {
            claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        })
        .await;
    cluster.until_pods_can_be_made().await;
}

async fn pod(cluster: &Cluster, name: &str, node: &str) {
    cluster
        .apply::<Pod>(json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "c", "image": "i" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        }))
        .await;
}

/// As a kubelet that has ended the pod.
async fn remove(cluster: &Cluster, name: &str) {
    let params = DeleteParams::default().with_grace_period(0);
    cluster.client.namespaced::<Pod>("default").delete(name, &params).await.unwrap();
}

async fn attachment_on(cluster: &Cluster, node: &str) -> VolumeAttachment {
    let found = patiently(async || {
        let all = cluster.list::<VolumeAttachment>("").await;
        all.into_iter().find(|attachment| attachment.spec.node_name == node)
    });
    found.await.unwrap_or_else(|| panic!("nothing is ever attached to {node}"))
}

/// As an attacher, which also sees to it that it hears of the end.
async fn attached(cluster: &Cluster, node: &str) -> String {
    let name = attachment_on(cluster, node).await.metadata.name.unwrap();
    let api = cluster.client.all::<VolumeAttachment>();
    let finalizer = Patch::merge(json!({ "metadata": { "finalizers": ["external-attacher/disks-example"] } }));
    api.patch(&name, &finalizer).await.unwrap();
    api.patch_status(&name, &Patch::merge(json!({ "status": { "attached": true } }))).await.unwrap();
    name
}

/// As an attacher whose driver has let go of the volume.
async fn detached(cluster: &Cluster, name: &str) {
    cluster
        .until::<VolumeAttachment>("", name, "deleted", |attachment| attachment.metadata.deletion_timestamp.is_some())
        .await;
    let patch = Patch::merge(json!({ "metadata": { "finalizers": null } }));
    cluster.client.all::<VolumeAttachment>().patch(name, &patch).await.unwrap();
}

fn reported(node: &Node) -> Vec<String> {
    let attached = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref());
    attached.into_iter().flatten().map(|volume| volume.name.clone()).collect()
}

async fn until_reported(cluster: &Cluster, node: &str, expected: &[&str]) {
    cluster.until::<Node>("", node, &format!("reports {expected:?}"), |node| reported(node) == expected).await;
}

async fn until_told(cluster: &Cluster, pod: &str, reason: &str, text: &str) {
    let found = patiently(async || {
        let events = cluster.list::<Event>("default").await;
        let is_it = |event: &Event| {
            event.involved_object.name.as_deref() == Some(pod)
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|message| message.contains(text))
        };
        events.iter().any(is_it).then_some(())
    });
    assert!(found.await.is_some(), "{pod} is never told {reason} {text}: {:?}", cluster.list::<Event>("default").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_attached_for_a_pod_and_let_go_after_it() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "p", "a").await;
    let attachment = attachment_on(&cluster, "a").await;
    assert_eq!(attachment.spec.attacher, "disks.example");
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some("data"));
    let name = attached(&cluster, "a").await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    until_told(&cluster, "p", "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume \"data\"").await;
    uses(&cluster, "a", &[UNIQUE]).await;
    remove(&cluster, "p").await;
    // While it is mounted it stays: the sign that the controller has looked is a second volume that goes through.
    cluster
        .apply::<PersistentVolume>(json!({
            "metadata": { "name": "other" },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "csi": { "driver": "disks.example", "volumeHandle": "h-other" },
            },
        }))
        .await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    let seen = cluster.client.all::<VolumeAttachment>().get(&name).await.unwrap();
    assert_eq!(seen.metadata.deletion_timestamp, None, "it is in use");
    uses(&cluster, "a", &[]).await;
    until_reported(&cluster, "a", &[]).await;
    detached(&cluster, &name).await;
    cluster.until_gone::<VolumeAttachment>("", &name).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inline_disk_of_a_removed_driver_is_attached_by_the_one_that_took_over() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    node(&cluster, "b").await;
    for (name, on) in [("first", "a"), ("second", "b")] {
        let volume =
            json!({ "name": "v", "awsElasticBlockStore": { "volumeID": "aws://zone/vol-1", "fsType": "ext4" } });
        let spec = json!({ "nodeName": on, "containers": [{ "name": "c", "image": "i" }], "volumes": [volume] });
        cluster.apply::<Pod>(json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec })).await;
        if on == "a" {
            attachment_on(&cluster, "a").await;
        }
    }
    let found = attachment_on(&cluster, "a").await;
    assert_eq!(found.spec.attacher, "ebs.csi.aws.com");
    assert_eq!(found.spec.source.persistent_volume_name, None);
    let inline = found.spec.source.inline_volume_spec.unwrap();
    assert_eq!(inline.access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
    let csi = inline.csi.unwrap();
    assert_eq!((csi.volume_handle.as_str(), csi.fs_type.as_deref()), ("vol-1", Some("ext4")));
    let name = attached(&cluster, "a").await;
    until_reported(&cluster, "a", &["kubernetes.io/csi/ebs.csi.aws.com^vol-1"]).await;
    let text = "AttachVolume.Attach succeeded for volume \"ebs.csi.aws.com-vol-1\"";
    until_told(&cluster, "first", "SuccessfulAttachVolume", text).await;
    let text = "Waiting for detach for volume \"ebs.csi.aws.com-vol-1\" Volume is already used by pod(s) first";
    until_told(&cluster, "second", "FailedAttachVolume", text).await;
    remove(&cluster, "first").await;
    detached(&cluster, &name).await;
    attachment_on(&cluster, "b").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_elsewhere_waits_until_the_volume_is_free() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    node(&cluster, "b").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "first", "a").await;
    let name = attached(&cluster, "a").await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    pod(&cluster, "second", "b").await;
    let text = "Waiting for detach for volume \"data\" Volume is already used by pod(s) first";
    until_told(&cluster, "second", "FailedAttachVolume", text).await;
    remove(&cluster, "first").await;
    detached(&cluster, &name).await;
    attached(&cluster, "b").await;
    until_reported(&cluster, "b", &[UNIQUE]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_volume_is_on_both_nodes_and_errors_reach_the_pods() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    node(&cluster, "b").await;
    claim(&cluster, "ReadWriteMany").await;
    pod(&cluster, "first", "a").await;
    pod(&cluster, "second", "b").await;
    attached(&cluster, "a").await;
    let other = attachment_on(&cluster, "b").await.metadata.name.unwrap();
    let error = json!({ "status": { "attached": false, "attachError": { "message": "no such disk", "time": "2024-01-01T00:00:00Z" } } });
    cluster.client.all::<VolumeAttachment>().patch_status(&other, &Patch::merge(error)).await.unwrap();
    let text = "AttachVolume.Attach failed for volume \"data\" : no such disk";
    until_told(&cluster, "second", "FailedAttachVolume", text).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_needs_no_attachment_gets_none() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "p", "a").await;
    let name = attached(&cluster, "a").await;
    // Attached by its old description, let go by the new one.
    cluster
        .apply::<CSIDriver>(json!({ "metadata": { "name": "disks.example" }, "spec": { "attachRequired": false } }))
        .await;
    detached(&cluster, &name).await;
    cluster.until_none::<VolumeAttachment>("").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_out_of_service_loses_pods_and_volumes_at_once() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "p", "a").await;
    let name = attached(&cluster, "a").await;
    uses(&cluster, "a", &[UNIQUE]).await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    ready(&cluster, "a", "Unknown").await;
    let taints =
        json!({ "spec": { "taints": [{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }] } });
    cluster.client.all::<Node>().patch("a", &Patch::merge(taints)).await.unwrap();
    cluster.client.namespaced::<Pod>("default").delete("p", &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<Pod>("default", "p").await;
    detached(&cluster, &name).await;
    cluster.until_none::<VolumeAttachment>("").await;
    cluster.stop().await;
}

/// A node that is deleted does not keep what it had not mounted, whatever pods say that are still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_deleted_loses_what_it_did_not_use() {
    let cluster = Cluster::start(0).await;
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "p", "a").await;
    let name = attached(&cluster, "a").await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    cluster.client.all::<Node>().delete("a", &DeleteParams::default()).await.unwrap();
    detached(&cluster, &name).await;
    cluster.until_gone::<VolumeAttachment>("", &name).await;
    cluster.stop().await;
}

/// What was attached is found again in VolumeAttachments; those that others made are left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_manager_goes_on_where_the_last_one_ended() {
    let mut cluster = Cluster::without_manager(0).await;
    let first = cluster.stop.child_token();
    cluster.spawn(controllers::run(cluster.manager(), first.clone()));
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "p", "a").await;
    let name = attached(&cluster, "a").await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    first.cancel();
    remove(&cluster, "p").await;
    let foreign = json!({
        "metadata": { "name": "by-hand" },
        "spec": { "attacher": "disks.example", "nodeName": "a", "source": { "persistentVolumeName": "data" } },
    });
    cluster.apply::<VolumeAttachment>(foreign).await;
    cluster.spawn(controllers::run(cluster.manager(), cluster.stop.clone()));
    detached(&cluster, &name).await;
    cluster.until_gone::<VolumeAttachment>("", &name).await;
    until_reported(&cluster, "a", &[]).await;
    assert_eq!(cluster.list::<VolumeAttachment>("").await.len(), 1, "the one made by hand");
    cluster.stop().await;
}

/// Attachments that the controller made count, though its cache of them is late: the volume is never on two nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_cache_of_attachments_attaches_nothing_twice() {
    let (cluster, gate) = late_caches::start("/apis/storage.k8s.io/v1/volumeattachments", 0).await;
    node(&cluster, "a").await;
    node(&cluster, "b").await;
    claim(&cluster, "ReadWriteOnce").await;
    gate.close();
    pod(&cluster, "first", "a").await;
    attachment_on(&cluster, "a").await;
    remove(&cluster, "first").await;
    pod(&cluster, "second", "b").await;
    until_told(&cluster, "second", "FailedAttachVolume", "Waiting for detach").await;
    let all = cluster.client.all::<VolumeAttachment>().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.len(), 1, "{all:?}");
    gate.open();
    attachment_on(&cluster, "b").await;
    cluster.stop().await;
}

/// A claim that becomes bound, or a volume that appears, only after the pod was seen still brings the attachment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_cache_of_volumes_is_waited_for() {
    let (cluster, gate) = late_caches::start("/api/v1/persistentvolumes", 0).await;
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    gate.close();
    let patch = Patch::merge(json!({ "metadata": { "labels": { "seen": "late" } } }));
    cluster.client.all::<PersistentVolume>().patch("data", &patch).await.unwrap();
    pod(&cluster, "p", "a").await;
    gate.open();
    attachment_on(&cluster, "a").await;
    cluster.stop().await;
}

/// The node is asked after it was told, not its cached copy: a volume that is mounted meanwhile stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_cache_of_nodes_takes_no_volume_that_is_mounted() {
    let (cluster, gate) = late_caches::start("/api/v1/nodes", 0).await;
    node(&cluster, "a").await;
    claim(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "p", "a").await;
    let name = attached(&cluster, "a").await;
    until_reported(&cluster, "a", &[UNIQUE]).await;
    gate.close();
    uses(&cluster, "a", &[UNIQUE]).await;
    remove(&cluster, "p").await;
    until_reported(&cluster, "a", &[]).await;
    gate.open();
    until_reported(&cluster, "a", &[UNIQUE]).await;
    let seen = cluster.client.all::<VolumeAttachment>().get(&name).await.unwrap();
    assert_eq!(seen.metadata.deletion_timestamp, None, "it is in use");
    uses(&cluster, "a", &[]).await;
    detached(&cluster, &name).await;
    cluster.stop().await;
}

/// An iSCSI disk of one node: nobody has to attach it, and yet the second node waits until the first has let go of it. A new
/// manager knows who has it from the nodes' statuses alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_iscsi_disk_is_on_one_node_at_a_time_also_after_a_restart() {
    let mut cluster = Cluster::without_manager(0).await;
    let first = cluster.stop.child_token();
    cluster.spawn(controllers::run(cluster.manager(), first.clone()));
    node(&cluster, "a").await;
    node(&cluster, "b").await;
    claim_disk(&cluster, "ReadWriteOnce").await;
    pod(&cluster, "first", "a").await;
    until_reported(&cluster, "a", &[DISK]).await;
    until_told(&cluster, "first", "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume \"data\"").await;
    uses(&cluster, "a", &[DISK]).await;
    first.cancel();
    pod(&cluster, "second", "b").await;
    // A kubelet says what it is about to use before it may.
    uses(&cluster, "b", &[DISK]).await;
    cluster.spawn(controllers::run(cluster.manager(), cluster.stop.clone()));
    let text = "Waiting for detach for volume \"data\" Volume is already used by pod(s) first";
    until_told(&cluster, "second", "FailedAttachVolume", text).await;
    remove(&cluster, "first").await;
    // Without its pod the disk stays where it is mounted: the sign that the controller has looked is a pod that it lets have one.
    cluster
        .apply::<Pod>(json!({
            "metadata": { "name": "third", "namespace": "default" },
            "spec": {
                "nodeName": "b",
                "containers": [{ "name": "c", "image": "i" }],
                "volumes": [{ "name": "v", "iscsi": { "targetPortal": "h", "iqn": "iqn.2026-01.org.example:b", "lun": 1 } }],
            },
        }))
        .await;
    let inline = "kubernetes.io/iscsi/h:iqn.2026-01.org.example:b:1";
    until_reported(&cluster, "b", &[inline]).await;
    until_reported(&cluster, "a", &[DISK]).await;
    uses(&cluster, "a", &[]).await;
    until_reported(&cluster, "a", &[]).await;
    until_reported(&cluster, "b", &[DISK, inline]).await;
    assert!(cluster.list::<VolumeAttachment>("").await.is_empty(), "no attacher is asked for anything");
    cluster.stop().await;
}

/// The node is asked after it was told, and the disk is shown again if it began to use it meanwhile. One that many may have is
/// on all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_cache_of_nodes_takes_no_iscsi_disk_that_is_mounted() {
    let (cluster, gate) = late_caches::start("/api/v1/nodes", 0).await;
    node(&cluster, "a").await;
    node(&cluster, "b").await;
    claim_disk(&cluster, "ReadOnlyMany").await;
    pod(&cluster, "p", "a").await;
    pod(&cluster, "q", "b").await;
    until_reported(&cluster, "a", &[DISK]).await;
    until_reported(&cluster, "b", &[DISK]).await;
    gate.close();
    uses(&cluster, "a", &[DISK]).await;
    remove(&cluster, "p").await;
    until_reported(&cluster, "a", &[]).await;
    gate.open();
    until_reported(&cluster, "a", &[DISK]).await;
    uses(&cluster, "a", &[]).await;
    until_reported(&cluster, "a", &[]).await;
    until_reported(&cluster, "b", &[DISK]).await;
    cluster.stop().await;
}
