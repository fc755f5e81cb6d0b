//! The driver over its socket, and the provisioner against a real API server.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver::{Server, Storage};
use client::{Client, Patch};
use csi::tonic::Code;
use csi::v1;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(120);

fn range(bytes: i64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 })
}

fn create(name: &str, bytes: i64, from: Option<v1::ContentSource>) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.into(),
        capacity_range: range(bytes),
        volume_content_source: from.map(|source| v1::VolumeContentSource { r#type: Some(source) }),
        ..Default::default()
    }
}

#[tokio::test]
async fn folders_are_made_shown_copied_measured_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let driver = Arc::new(local_csi::Driver::open("n", &dir.path().join("store")).unwrap());
    let stop = CancellationToken::new();
    let socket = csi::Socket::bind(dir.path().join("s")).unwrap();
    let serving = tokio::spawn(socket.serve(csi::router(driver.clone()), stop.clone()));
    let clients = csi::Clients::lazy(dir.path().join("s"));
    let (controller, node) = (&clients.controller, &clients.node);

    let made = controller.create_volume(create("one", 1 << 20, None)).await.unwrap().volume.unwrap();
    assert_eq!((made.capacity_bytes, made.volume_id.as_str()), (1 << 20, "one"));
    assert_eq!(made.accessible_topology[0].segments, [("local.cox/node".to_string(), "n".to_string())].into());
    controller.create_volume(create("one", 1 << 20, None)).await.unwrap();
    let other = controller.create_volume(create("one", 1 << 30, None)).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    let huge = controller.create_volume(create("huge", i64::MAX, None)).await.unwrap_err();
    assert_eq!(huge.code(), Code::ResourceExhausted);
    let free = |answer: v1::GetCapacityResponse| answer.available_capacity;
    assert!(free(controller.get_capacity(Default::default()).await.unwrap()) > 0);
    let elsewhere = v1::Topology { segments: [("local.cox/node".to_string(), "m".to_string())].into() };
    let asked = v1::GetCapacityRequest { accessible_topology: Some(elsewhere), ..Default::default() };
    assert_eq!(free(controller.get_capacity(asked).await.unwrap()), 0);

    let target = dir.path().join("target");
    let publish = |readonly: bool| v1::NodePublishVolumeRequest {
        volume_id: "one".into(),
        target_path: target.to_string_lossy().into_owned(),
        readonly,
        ..Default::default()
    };
    let unpublish = || v1::NodeUnpublishVolumeRequest {
        volume_id: "one".into(),
        target_path: target.to_string_lossy().into_owned(),
    };
    let delete = |id: &str| v1::DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
    for _ in 0..2 {
        node.node_publish_volume(publish(false)).await.unwrap();
    }
    assert_eq!(testkit::csi_driver::mounts_at(&target), 1);
    std::fs::write(target.join("file"), vec![7; 100_000]).unwrap();
    let used = controller.delete_volume(delete("one")).await.unwrap_err();
    assert_eq!(used.code(), Code::FailedPrecondition, "{used}");
    let stats = v1::NodeGetVolumeStatsRequest { volume_id: "one".into(), ..Default::default() };
    let usage = node.node_get_volume_stats(stats).await.unwrap().usage;
    assert!(usage[0].total == 1 << 20 && usage[0].used >= 100_000 && usage[1].used == 1, "{usage:?}");
    for _ in 0..2 {
        node.node_unpublish_volume(unpublish()).await.unwrap();
    }
    assert!(!target.exists());
    node.node_publish_volume(publish(true)).await.unwrap();
    assert!(std::fs::write(target.join("more"), "x").is_err(), "read-only");
    node.node_unpublish_volume(unpublish()).await.unwrap();

    let snapshot = v1::CreateSnapshotRequest { source_volume_id: "one".into(), name: "s".into(), ..Default::default() };
    let taken = controller.create_snapshot(snapshot.clone()).await.unwrap().snapshot.unwrap();
    assert!(taken.ready_to_use && taken.size_bytes == 1 << 20);
    assert_eq!(controller.create_snapshot(snapshot).await.unwrap().snapshot.unwrap(), taken, "taken once");
    std::fs::write(driver.data("one").join("file"), "later").unwrap();
    let from = v1::ContentSource::Snapshot(v1::SnapshotSource { snapshot_id: "s".into() });
    controller.create_volume(create("restored", 0, Some(from))).await.unwrap();
    let from = v1::ContentSource::Volume(v1::VolumeSource { volume_id: "one".into() });
    controller.create_volume(create("clone", 2 << 20, Some(from))).await.unwrap();
    assert_eq!(std::fs::read(driver.data("restored").join("file")).unwrap().len(), 100_000);
    assert_eq!(std::fs::read_to_string(driver.data("clone").join("file")).unwrap(), "later");
    let grow = v1::ControllerExpandVolumeRequest {
        volume_id: "one".into(),
        capacity_range: range(3 << 20),
        ..Default::default()
    };
    assert_eq!(controller.controller_expand_volume(grow).await.unwrap().capacity_bytes, 3 << 20);
    let block = v1::VolumeCapability::block(v1::AccessMode::SingleNodeWriter);
    let block = v1::CreateVolumeRequest { volume_capabilities: vec![block], ..create("block", 1, None) };
    assert_eq!(controller.create_volume(block).await.unwrap_err().code(), Code::InvalidArgument);
    for id in ["one", "one", "restored", "clone"] {
        controller.delete_volume(delete(id)).await.unwrap();
    }
    assert!(controller.list_volumes(Default::default()).await.unwrap().entries.is_empty());
    let gone = v1::DeleteSnapshotRequest { snapshot_id: "s".into(), ..Default::default() };
    controller.delete_snapshot(gone).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("store/snapshots")).unwrap().count(), 0);
    let lost = node.node_publish_volume(publish(false)).await.unwrap_err();
    assert_eq!(lost.code(), Code::NotFound, "a folder that is gone is never made anew");
    stop.cancel();
    serving.await.unwrap().unwrap();
}

async fn api(dir: &Path, stop: &CancellationToken) -> Client {
    testkit::keys::write(dir);
    let mut config = apiserver::Config::new(Storage::Embedded(dir.join("api")));
    config.bind = ([127, 0, 0, 1], 0).into();
    config.tls_cert_file = Some(dir.join("server.crt"));
    config.tls_private_key_file = Some(dir.join("server.key"));
    config.client_ca_file = Some(dir.join("ca.crt"));
    config.service_account_signing_key_file = Some(dir.join("sa.key"));
    config.service_account_key_files = vec![dir.join("sa.key")];
    let server = Server::new(config).await.unwrap();
    let handler = server.handler();
    tokio::spawn(server.serve(stop.clone()));
    let groups = vec!["system:masters".to_string(), "system:authenticated".to_string()];
    Client::in_process(handler, ::api::UserInfo { name: "admin".into(), groups, ..Default::default() })
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn claim(name: &str, more: Value) -> PersistentVolumeClaim {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "folders", "resources": {"requests": {"storage": "1Mi"}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let annotations =
        json!({"volume.kubernetes.io/storage-provisioner": "local.cox", "volume.kubernetes.io/selected-node": "n"});
    serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})).unwrap()
}

#[tokio::test]
async fn claims_get_volumes_that_grow_are_cloned_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let client = api(dir.path(), &stop).await;
    let store = dir.path().join("store");
    let config = local_csi::Config {
        node_name: "n".into(),
        dir: store.clone(),
        registry: dir.path().join("registry"),
        client: client.clone(),
    };
    let running = tokio::spawn(local_csi::run(config, stop.clone()));
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": "folders"}, "provisioner": "local.cox", "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
    }))
    .unwrap();
    client.all::<StorageClass>().create(&class).await.unwrap();
    let (claims, volumes) = (client.namespaced::<PersistentVolumeClaim>("default"), client.all::<PersistentVolume>());
    let first = claims.create(&claim("first", json!({}))).await.unwrap();
    let name = format!("pvc-{}", first.metadata.uid.as_deref().unwrap());
    let volume = until("a volume", async || volumes.get_opt(&name).await.unwrap()).await;
    let spec = volume.spec.unwrap();
    assert_eq!(spec.csi.unwrap().volume_handle, name);
    assert_eq!(spec.claim_ref.unwrap().uid, first.metadata.uid);
    assert_eq!(spec.capacity.unwrap()["storage"].0, "1Mi");
    assert!(store.join("volumes").join(&name).join("data").is_dir());
    let driver = client.all::<CSIDriver>().create(&local_csi::object().unwrap()).await.unwrap();
    assert_eq!((driver.spec.attach_required, driver.spec.storage_capacity), (Some(false), Some(true)));
    let capacities = client.namespaced::<CSIStorageCapacity>("kube-system");
    let told = until("free space", async || capacities.list(&Default::default()).await.unwrap().items.pop()).await;
    assert_eq!(told.storage_class_name, "folders");

    // What the binder does.
    std::fs::write(store.join("volumes").join(&name).join("data/file"), "x").unwrap();
    claims.patch("first", &Patch::merge(json!({"spec": {"volumeName": name}}))).await.unwrap();
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
    claims.patch_status("first", &Patch::merge(bound)).await.unwrap();
    let larger = json!({"spec": {"resources": {"requests": {"storage": "3Mi"}}}});
    claims.patch("first", &Patch::merge(larger)).await.unwrap();
    until("a larger claim", async || {
        let status = claims.get("first").await.unwrap().status?;
        (status.capacity?["storage"].0 == "3Mi").then_some(())
    })
    .await;
    assert_eq!(volumes.get(&name).await.unwrap().spec.unwrap().capacity.unwrap()["storage"].0, "3Mi");

    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "first"}, "resources": {"requests": {"storage": "3Mi"}}});
    let second = claims.create(&claim("second", source)).await.unwrap();
    let copy = format!("pvc-{}", second.metadata.uid.as_deref().unwrap());
    until("a clone", async || volumes.get_opt(&copy).await.unwrap()).await;
    assert_eq!(std::fs::read_to_string(store.join("volumes").join(&copy).join("data/file")).unwrap(), "x");

    // A claim that has its volume keeps it, whatever the volume's phase says.
    volumes.patch_status(&name, &Patch::merge(json!({"status": {"phase": "Released"}}))).await.unwrap();
    claims.patch("first", &Patch::merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    claims.delete("first", &Default::default()).await.unwrap();
    until("the folder is gone", async || (!store.join("volumes").join(&name).exists()).then_some(())).await;
    until("the volume is deleted", async || {
        let left = volumes.get_opt(&name).await.unwrap();
        left.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
    assert!(store.join("volumes").join(&copy).exists(), "others stay");
    stop.cancel();
    running.await.unwrap().unwrap();
}
