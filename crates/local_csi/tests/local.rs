//! The driver over its socket, and with the controllers on a real API server.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::api::node_volumes::NodeVolumes;
use apiserver::{Server, Storage};
use client::{Client, Gvr, Handler, Patch};
use csi::tonic::Code;
use csi::v1::{self, Controller as _, Node as _};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(120);

fn range(bytes: i64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange { required_bytes: bytes, limit_bytes: 0 })
}

fn as_folder() -> v1::VolumeCapability {
    v1::VolumeCapability::mount(v1::MountVolume::default(), v1::AccessMode::SingleNodeWriter)
}

fn create(name: &str, bytes: i64, from: Option<v1::ContentSource>) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.into(),
        capacity_range: range(bytes),
        volume_capabilities: vec![as_folder()],
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
        volume_capability: Some(as_folder()),
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
    let stats = |path: &Path| v1::NodeGetVolumeStatsRequest {
        volume_id: "one".into(),
        volume_path: path.to_string_lossy().into_owned(),
        ..Default::default()
    };
    let usage = node.node_get_volume_stats(stats(&target)).await.unwrap().usage;
    let elsewhere = node.node_get_volume_stats(stats(dir.path())).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::NotFound, "{elsewhere}");
    assert!(usage[0].total == 1 << 20 && usage[0].used >= 100_000 && usage[1].used == 1, "{usage:?}");
    for _ in 0..2 {
        node.node_unpublish_volume(unpublish()).await.unwrap();
    }
    assert!(!target.exists());
    node.node_publish_volume(publish(true)).await.unwrap();
    assert!(std::fs::write(target.join("more"), "x").is_err(), "read-only");
    node.node_unpublish_volume(unpublish()).await.unwrap();
    let with = |options: &[&str]| {
        let mount_flags = options.iter().map(|option| (*option).to_owned()).collect();
        let mount = v1::MountVolume { mount_flags, ..Default::default() };
        let capability = v1::VolumeCapability::mount(mount, v1::AccessMode::SingleNodeWriter);
        v1::NodePublishVolumeRequest { volume_capability: Some(capability), ..publish(false) }
    };
    let refused = node.node_publish_volume(with(&["noexec", "size=5m"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    node.node_publish_volume(with(&["noexec,nosuid", "ro"])).await.unwrap();
    let has = nix::sys::statvfs::statvfs(&target).unwrap().flags();
    use nix::sys::statvfs::FsFlags;
    assert!(has.contains(FsFlags::ST_NOEXEC | FsFlags::ST_NOSUID | FsFlags::ST_RDONLY), "{has:?}");
    node.node_unpublish_volume(unpublish()).await.unwrap();
    // As it is left by a process that was killed before it had made the mount read-only.
    std::fs::create_dir(&target).unwrap();
    let (from, none) = (driver.data("one"), None::<&str>);
    nix::mount::mount(Some(&from), &target, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
    node.node_publish_volume(publish(true)).await.unwrap();
    assert!(std::fs::write(target.join("more"), "x").is_err(), "read-only after all");
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

/// What csi-sanity asks of every driver beyond that.
#[tokio::test]
async fn requests_are_answered_as_the_specification_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let driver = local_csi::Driver::open("n", dir.path()).unwrap();
    let code = |status: csi::tonic::Status| status.code();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    for name in ["a", "b", "c"] {
        driver.create_volume(create(name, 1 << 20, None)).await.unwrap();
        let snapshot =
            v1::CreateSnapshotRequest { source_volume_id: "a".into(), name: name.into(), ..Default::default() };
        driver.create_snapshot(snapshot).await.unwrap();
    }

    // What must be said is missing.
    for wanted in [create("", 1, None), v1::CreateVolumeRequest { volume_capabilities: vec![], ..create("d", 1, None) }]
    {
        assert_eq!(driver.create_volume(wanted).await.map_err(code).err(), Some(Code::InvalidArgument));
    }
    for (volume_id, volume_capabilities, expected) in [
        ("", vec![as_folder()], Some(Code::InvalidArgument)),
        ("a", vec![], Some(Code::InvalidArgument)),
        ("d", vec![as_folder()], Some(Code::NotFound)),
        ("a", vec![as_folder()], None),
    ] {
        let volume_id = volume_id.to_owned();
        let asked = v1::ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities, ..Default::default() };
        assert_eq!(driver.validate_volume_capabilities(asked).await.map_err(code).err(), expected);
    }
    let grow = v1::ControllerExpandVolumeRequest { volume_id: "a".into(), ..Default::default() };
    assert_eq!(driver.controller_expand_volume(grow).await.map_err(code).err(), Some(Code::InvalidArgument));
    let snapshot = v1::CreateSnapshotRequest { name: "d".into(), ..Default::default() };
    assert_eq!(driver.create_snapshot(snapshot).await.map_err(code).err(), Some(Code::InvalidArgument));
    let (target, none) = (path("target"), String::new());
    for (volume_id, target_path, volume_capability, expected) in [
        ("", &target, Some(as_folder()), Code::InvalidArgument),
        ("d", &none, Some(as_folder()), Code::InvalidArgument),
        ("d", &target, None, Code::InvalidArgument),
        ("d", &target, Some(as_folder()), Code::NotFound),
    ] {
        let (volume_id, target_path) = (volume_id.to_owned(), target_path.clone());
        let asked = v1::NodePublishVolumeRequest { volume_id, target_path, volume_capability, ..Default::default() };
        assert_eq!(driver.node_publish_volume(asked).await.map_err(code).err(), Some(expected));
    }
    for (volume_id, target_path, expected) in [
        ("", &target, Some(Code::InvalidArgument)),
        ("a", &none, Some(Code::InvalidArgument)),
        ("a", &target, None),
        // What never was here is not published either.
        ("d", &target, None),
    ] {
        let (volume_id, target_path) = (volume_id.to_owned(), target_path.clone());
        let asked = v1::NodeUnpublishVolumeRequest { volume_id, target_path };
        assert_eq!(driver.node_unpublish_volume(asked).await.map_err(code).err(), expected);
    }
    for (volume_id, volume_path, expected) in [
        ("", "some/path", Code::InvalidArgument),
        ("a", "", Code::InvalidArgument),
        ("d", "some/path", Code::NotFound),
        ("a", "some/path", Code::NotFound),
    ] {
        let (volume_id, volume_path) = (volume_id.to_owned(), volume_path.to_owned());
        let asked = v1::NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        assert_eq!(driver.node_get_volume_stats(asked).await.map_err(code).err(), Some(expected));
    }

    // Lists come in pages, also when what a page ended with is gone, and without what cannot be read.
    std::fs::write(dir.path().join("snapshots/c/about.json"), "{").unwrap();
    let volumes = async |max_entries: i32, starting_token: String| {
        let page = driver.list_volumes(v1::ListVolumesRequest { max_entries, starting_token }).await.map_err(code)?;
        let ids = page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id);
        Ok::<_, Code>((ids.collect::<Vec<_>>(), page.next_token))
    };
    let (first, token) = volumes(2, String::new()).await.unwrap();
    assert_eq!((first, token.is_empty()), (vec!["a".to_owned(), "b".to_owned()], false));
    let delete = v1::DeleteVolumeRequest { volume_id: "b".into(), ..Default::default() };
    driver.delete_volume(delete).await.unwrap();
    assert_eq!(volumes(2, token).await, Ok((vec!["c".to_owned()], String::new())));
    assert_eq!(volumes(0, "invalid-token".to_owned()).await, Err(Code::Aborted));
    assert_eq!(volumes(-1, String::new()).await, Err(Code::InvalidArgument));
    let snapshots = async |snapshot_id: &str, max_entries: i32| {
        let snapshot_id = snapshot_id.to_owned();
        let asked = v1::ListSnapshotsRequest { snapshot_id, max_entries, ..Default::default() };
        let page = driver.list_snapshots(asked).await.map_err(code)?;
        let ids = page.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id);
        Ok::<_, Code>((ids.collect::<Vec<_>>(), page.next_token.is_empty()))
    };
    assert_eq!(snapshots("", 1).await, Ok((vec!["a".to_owned()], false)));
    assert_eq!(snapshots("", 0).await, Ok((vec!["a".to_owned(), "b".to_owned()], true)));
    assert_eq!(snapshots("b", 0).await, Ok((vec!["b".to_owned()], true)));
    for nothing in ["d", "../volumes/a"] {
        assert_eq!(snapshots(nothing, 0).await, Ok((vec![], true)), "{nothing}");
    }
    assert_eq!(snapshots("c", 0).await, Err(Code::Internal), "it is there, whatever its record says");
}

/// Runs a program in a directory; what it complained about if it failed.
fn run(dir: &Path, words: &[&str]) -> Result<(), String> {
    let output = std::process::Command::new(words[0]).args(&words[1..]).current_dir(dir).output().unwrap();
    output.status.success().then_some(()).ok_or(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// An `image` of a disk and a place `disk` to mount it.
fn blank_disk(dir: &Path) {
    std::fs::create_dir(dir.join("disk")).unwrap();
    std::fs::File::create(dir.join("image")).unwrap().set_len(64 << 20).unwrap();
}

/// What the driver has said to be there is on the disk, and not only in memory: the disk as it is at that moment has all of it.
#[tokio::test]
async fn what_was_made_outlives_a_power_failure() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| run(dir.path(), words);
    blank_disk(dir.path());
    run(&["mkfs.ext4", "-q", "image"]).unwrap();
    if let Err(why) = run(&["mount", "-o", "loop", "image", "disk"]) {
        eprintln!("skipped: no loop device can be had here: {why}");
        return;
    }
    let store = dir.path().join("disk/store");
    let driver = local_csi::Driver::open("n", &store).unwrap();
    driver.create_volume(create("one", 1 << 20, None)).await.unwrap();
    std::fs::write(driver.data("one").join("file"), vec![7; 100_000]).unwrap();
    let snapshot = v1::CreateSnapshotRequest { source_volume_id: "one".into(), name: "s".into(), ..Default::default() };
    let taken = driver.create_snapshot(snapshot).await;
    let from = v1::ContentSource::Snapshot(v1::SnapshotSource { snapshot_id: "s".into() });
    let restored = driver.create_volume(create("restored", 0, Some(from))).await;
    let empty = driver.create_volume(create("empty", 1 << 20, None)).await;
    let delete = v1::DeleteVolumeRequest { volume_id: "one".into(), ..Default::default() };
    let deleted = driver.delete_volume(delete).await;
    std::fs::copy(dir.path().join("image"), dir.path().join("later")).unwrap();
    drop(driver);
    run(&["umount", "disk"]).unwrap();
    run(&["mount", "-o", "loop", "later", "disk"]).unwrap();
    let length = |path: &str| std::fs::read(store.join(path)).map(|bytes| bytes.len()).ok();
    let found = (length("snapshots/s/data/file"), length("volumes/restored/data/file"));
    let (is_there, is_back) = (store.join("volumes/empty/data").is_dir(), store.join("volumes/one").exists());
    run(&["umount", "disk"]).unwrap();
    assert!(taken.is_ok() && restored.is_ok() && empty.is_ok() && deleted.is_ok());
    assert_eq!(found, (Some(100_000), Some(100_000)));
    assert!(is_there && !is_back);
}

/// The kernel holds a volume to its capacity, where it has project quotas.
#[tokio::test]
async fn a_full_volume_takes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| run(dir.path(), words);
    blank_disk(dir.path());
    run(&["mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota", "image"]).unwrap();
    if let Err(why) = run(&["mount", "-o", "loop,prjquota", "image", "disk"]) {
        eprintln!("skipped: this kernel has no project quotas: {why}");
        return;
    }
    let driver = local_csi::Driver::open("n", &dir.path().join("disk/store")).unwrap();
    driver.create_volume(create("one", 4 << 20, None)).await.unwrap();
    let file = driver.data("one").join("file");
    // On ext4 no limit is one to root, so somebody else writes.
    let fill = || {
        use std::os::unix::process::CommandExt;
        let mut head = std::process::Command::new("head");
        head.args(["-c", "5242880", "/dev/zero"]).uid(65534).gid(65534);
        head.stdout(std::fs::File::create(&file).unwrap()).output().unwrap()
    };
    let full = fill();
    let grow = v1::ControllerExpandVolumeRequest {
        volume_id: "one".into(),
        capacity_range: range(8 << 20),
        ..Default::default()
    };
    driver.controller_expand_volume(grow).await.unwrap();
    let grown = fill();
    let target = dir.path().join("target").to_string_lossy().into_owned();
    let publish = v1::NodePublishVolumeRequest {
        volume_id: "one".into(),
        target_path: target.clone(),
        volume_capability: Some(as_folder()),
        ..Default::default()
    };
    v1::Node::node_publish_volume(&driver, publish).await.unwrap();
    let stats =
        v1::NodeGetVolumeStatsRequest { volume_id: "one".into(), volume_path: target.clone(), ..Default::default() };
    let usage = v1::Node::node_get_volume_stats(&driver, stats).await.map(|stats| stats.usage);
    let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: "one".into(), target_path: target };
    v1::Node::node_unpublish_volume(&driver, unpublish).await.unwrap();
    let usage = usage.unwrap();
    let delete = v1::DeleteVolumeRequest { volume_id: "one".into(), ..Default::default() };
    let deleted = driver.delete_volume(delete).await;
    drop(driver);
    run(&["umount", "disk"]).unwrap();
    assert!(!full.status.success() && grown.status.success(), "{full:?} {grown:?}");
    assert!(usage[0].total == 8 << 20 && usage[0].used >= 5 << 20 && usage[1].used == 1, "{usage:?}");
    deleted.unwrap();
}

/// A copy takes as long as it takes: nobody else waits for it, and its source stays meanwhile.
#[tokio::test]
async fn a_long_copy_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let driver = Arc::new(local_csi::Driver::open("n", dir.path()).unwrap());
    driver.create_volume(create("source", 1 << 20, None)).await.unwrap();
    // Enough files that it takes a while; whether it is still under way when we look decides what is to be seen.
    let files = driver.data("source");
    for number in 0..20_000 {
        std::fs::write(files.join(number.to_string()), "").unwrap();
    }
    let from = v1::ContentSource::Volume(v1::VolumeSource { volume_id: "source".into() });
    let copy = create("copy", 1 << 20, Some(from));
    let copying = tokio::spawn({
        let (driver, copy) = (driver.clone(), copy.clone());
        async move { driver.create_volume(copy).await.map(drop) }
    });
    let begun = dir.path().join("volumes/.copy.new");
    // On a busy machine it may be over before anybody looks.
    until("the copy has begun", async || (begun.exists() || driver.data("copy").exists()).then_some(())).await;
    driver.create_volume(create("other", 1 << 20, None)).await.unwrap();
    let delete = |id: &str| v1::DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
    driver.delete_volume(delete("other")).await.unwrap();
    let again = driver.create_volume(copy).await.map(drop);
    let source_gone = driver.delete_volume(delete("source")).await.map(drop);
    if begun.exists() {
        // All of that happened beside the copy.
        assert_eq!(again.unwrap_err().code(), Code::Aborted);
        assert_eq!(source_gone.unwrap_err().code(), Code::Aborted);
    }
    copying.await.unwrap().unwrap();
    assert_eq!(std::fs::read_dir(driver.data("copy")).unwrap().count(), 20_000);
}

/// Whoever asked for a copy may be gone: the copy goes on, and is not begun a second time beside itself.
#[tokio::test]
async fn a_copy_that_nobody_waits_for_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let driver = Arc::new(local_csi::Driver::open("n", dir.path()).unwrap());
    driver.create_volume(create("source", 1 << 20, None)).await.unwrap();
    let files = driver.data("source");
    for number in 0..20_000 {
        std::fs::write(files.join(number.to_string()), "").unwrap();
    }
    let from = v1::ContentSource::Volume(v1::VolumeSource { volume_id: "source".into() });
    let copy = create("copy", 1 << 20, Some(from));
    let copying = tokio::spawn({
        let (driver, copy) = (driver.clone(), copy.clone());
        async move { driver.create_volume(copy).await.map(drop) }
    });
    let begun = dir.path().join("volumes/.copy.new");
    // On a busy machine it may be over before anybody looks.
    until("the copy has begun", async || (begun.exists() || driver.data("copy").exists()).then_some(())).await;
    copying.abort();
    if let Err(ended) = copying.await {
        assert!(ended.is_cancelled(), "{ended}");
    }
    let again = driver.create_volume(copy.clone()).await.map(drop);
    if begun.exists() {
        assert_eq!(again.unwrap_err().code(), Code::Aborted);
    }
    until("it is made", async || driver.create_volume(copy.clone()).await.ok().map(drop)).await;
    assert_eq!(std::fs::read_dir(driver.data("copy")).unwrap().count(), 20_000);
}

async fn api(dir: &Path, stop: &CancellationToken) -> Handler {
    testkit::keys::write(dir);
    let mut config = apiserver::Config::new(Storage::Embedded(dir.join("api")));
    config.bind = ([127, 0, 0, 1], 0).into();
    config.tls_cert_file = Some(dir.join("server.crt"));
    config.tls_private_key_file = Some(dir.join("server.key"));
    config.client_ca_file = Some(dir.join("ca.crt"));
    config.service_account_signing_key_file = Some(dir.join("sa.key"));
    config.service_account_key_files = vec![dir.join("sa.key")];
    config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
    config.enable_admission_plugins = vec!["NodeRestriction".into()];
    let server = Server::new(config).await.unwrap();
    let handler = server.handler();
    tokio::spawn(server.serve(stop.clone()));
    handler
}

fn as_user(handler: &Handler, name: &str, groups: &[&str]) -> Client {
    Client::in_process(handler.clone(), ::api::UserInfo::new(name, &[groups, &["system:authenticated"]].concat()))
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

/// An API server with the controllers, and nodes that run the driver as themselves.
struct Cluster {
    dir: tempfile::TempDir,
    handler: Handler,
    client: Client,
    stop: CancellationToken,
    running: tokio::task::JoinSet<anyhow::Result<()>>,
}

impl Cluster {
    async fn start() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let handler = api(dir.path(), &stop).await;
        let client = as_user(&handler, "admin", &["system:masters"]);
        let mut running = tokio::task::JoinSet::new();
        let manager = controllers::Config::new(as_user(&handler, "system:kube-controller-manager", &[]));
        running.spawn(controllers::run(manager, stop.clone()));
        client.all::<CSIDriver>().create(&local_csi::object().unwrap()).await.unwrap();
        for (name, mode) in [("folders", "WaitForFirstConsumer"), ("now", "Immediate")] {
            let class: StorageClass = serde_json::from_value(json!({
                "metadata": {"name": name}, "provisioner": "local.cox", "volumeBindingMode": mode,
                "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
            }))
            .unwrap();
            client.all::<StorageClass>().create(&class).await.unwrap();
        }
        Cluster { dir, handler, client, stop, running }
    }

    /// What a kubelet tells of a node with the driver, and the driver.
    async fn add_node(&mut self, name: &str) {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let node = self.client.all::<Node>().create(&node).await.unwrap();
        let csi_node: CSINode = serde_json::from_value(json!({
            "metadata": {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}]},
            "spec": {"drivers": [{"name": "local.cox", "nodeID": name, "topologyKeys": ["local.cox/node"]}]},
        }))
        .unwrap();
        self.client.all::<CSINode>().create(&csi_node).await.unwrap();
        let config = local_csi::Config {
            node_name: name.into(),
            dir: self.store(name),
            registry: self.dir.path().join(format!("{name}-registry")),
            client: as_user(&self.handler, &format!("system:node:{name}"), &["system:nodes"]),
        };
        self.running.spawn(local_csi::run(config, self.stop.clone()));
    }

    fn store(&self, node: &str) -> PathBuf {
        self.dir.path().join(format!("{node}-store"))
    }

    fn files(&self, node: &str, id: &str) -> PathBuf {
        self.store(node).join("volumes").join(id).join("data")
    }

    fn claims(&self) -> client::Api<PersistentVolumeClaim> {
        self.client.namespaced("default")
    }

    /// Makes a claim that the scheduler has sent to a node, and waits until it has its volume, whose name is returned.
    async fn bound(&self, name: &str, node: &str, more: Value) -> String {
        let made = self.claims().create(&claim(name, node, more)).await.unwrap();
        let deadline = tokio::time::Instant::now() + LONG;
        loop {
            let claim = self.claims().get(name).await.unwrap();
            if claim.status.iter().any(|status| status.phase.as_deref() == Some("Bound")) {
                break;
            }
            if tokio::time::Instant::now() > deadline {
                let events = self.client.namespaced::<Event>("default").list(&Default::default()).await.unwrap().items;
                let said: Vec<_> = events.iter().map(|event| &event.message).collect();
                let nodes = self.client.all::<NodeVolumes>().list(&Default::default()).await;
                panic!("{name} is never bound: {said:#?} {claim:?} {:?}", nodes.map(|nodes| nodes.items));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        format!("pvc-{}", made.metadata.uid.unwrap())
    }

    async fn volume(&self, name: &str) -> PersistentVolume {
        self.client.all::<PersistentVolume>().get(name).await.unwrap()
    }

    async fn said(&self, about: &str, reason: &str, text: &str) {
        until(&format!("{about} is told {reason} {text}"), async || {
            let events = self.client.namespaced::<Event>("default").list(&Default::default()).await.unwrap().items;
            let is_it = |event: &Event| {
                event.involved_object.name.as_deref() == Some(about)
                    && event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().unwrap_or_default().contains(text)
            };
            events.iter().any(is_it).then_some(())
        })
        .await;
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}

fn claim(name: &str, node: &str, more: Value) -> PersistentVolumeClaim {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "folders", "resources": {"requests": {"storage": "1Mi"}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let annotations = match node {
        "" => json!({}),
        node => json!({"volume.kubernetes.io/selected-node": node}),
    };
    serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})).unwrap()
}

fn node_of(volume: &PersistentVolume) -> Value {
    let affinity = serde_json::to_value(&volume.spec.as_ref().unwrap().node_affinity).unwrap();
    affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0].clone()
}

/// The whole way on two nodes, each with no more rights than a node has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_get_volumes_that_grow_are_copied_and_go() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("n").await;
    cluster.add_node("m").await;
    let (claims, volumes) = (cluster.claims(), cluster.client.all::<PersistentVolume>());
    let first = cluster.bound("first", "n", json!({})).await;
    let volume = cluster.volume(&first).await;
    assert_eq!(node_of(&volume), json!({"key": "local.cox/node", "operator": "In", "values": ["n"]}));
    let spec = volume.spec.unwrap();
    assert_eq!(spec.csi.unwrap().volume_handle, first);
    assert_eq!(spec.capacity.unwrap()["storage"].0, "1Mi");
    assert!(cluster.files("n", &first).is_dir() && !cluster.store("m").join("volumes").join(&first).exists());
    let second = cluster.bound("second", "m", json!({})).await;
    assert_eq!(node_of(&cluster.volume(&second).await)["values"], json!(["m"]));
    assert!(cluster.files("m", &second).is_dir());
    let anywhere = cluster.bound("anywhere", "", json!({"storageClassName": "now"})).await;
    assert!(cluster.files("n", &anywhere).is_dir() || cluster.files("m", &anywhere).is_dir());
    // The scheduler hears how much room there is, for each class and node.
    until("free room of two classes on two nodes", async || {
        let told =
            cluster.client.namespaced::<CSIStorageCapacity>("kube-system").list(&Default::default()).await.unwrap();
        (told.items.len() == 4).then_some(())
    })
    .await;

    // One that no node has room for is sent back to the scheduler.
    let huge = json!({"resources": {"requests": {"storage": "8000Ti"}}});
    claims.create(&claim("huge", "n", huge)).await.unwrap();
    cluster.said("huge", "ProvisioningFailed", "bytes left").await;
    until("the node is given back", async || {
        let annotations = claims.get("huge").await.unwrap().metadata.annotations.unwrap_or_default();
        (!annotations.contains_key("volume.kubernetes.io/selected-node")).then_some(())
    })
    .await;

    // Growth.
    std::fs::write(cluster.files("n", &first).join("file"), "one").unwrap();
    let larger = json!({"spec": {"resources": {"requests": {"storage": "3Mi"}}}});
    claims.patch("first", &Patch::merge(larger)).await.unwrap();
    until("a larger claim", async || {
        let status = claims.get("first").await.unwrap().status?;
        (status.capacity?["storage"].0 == "3Mi").then_some(())
    })
    .await;
    assert_eq!(cluster.volume(&first).await.spec.unwrap().capacity.unwrap()["storage"].0, "3Mi");
    let too_large = json!({"spec": {"resources": {"requests": {"storage": "8000Ti"}}}});
    claims.patch("second", &Patch::merge(too_large)).await.unwrap();
    cluster.said("second", "VolumeResizeFailed", "resize volume").await;
    assert_eq!(cluster.volume(&second).await.spec.unwrap().capacity.unwrap()["storage"].0, "1Mi");

    // A clone is made where its source is, wherever the scheduler would have it.
    let size = json!({"requests": {"storage": "3Mi"}});
    let source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "first"}, "resources": size});
    let clone = cluster.bound("clone", "m", source).await;
    assert_eq!(node_of(&cluster.volume(&clone).await)["values"], json!(["n"]));
    assert_eq!(std::fs::read_to_string(cluster.files("n", &clone).join("file")).unwrap(), "one");

    // What others fill they make as well.
    let source = json!({"dataSourceRef": {"apiGroup": "example.com", "kind": "Hello", "name": "h"}});
    claims.create(&claim("filled", "n", source)).await.unwrap();
    cluster.said("filled", "Provisioning", "Assuming an external populator will provision the volume").await;
    claims.delete("filled", &Default::default()).await.unwrap();

    // A snapshot, what comes after it, and what is made from it.
    let group = "snapshot.storage.k8s.io";
    let kind = |plural: &'static str, namespace| cluster.client.dynamic(&Gvr::new(group, "v1", plural), namespace);
    let class = json!({
        "apiVersion": format!("{group}/v1"), "kind": "VolumeSnapshotClass", "driver": "local.cox", "deletionPolicy": "Delete",
        "metadata": {"name": "folders", "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}},
    });
    let classes = kind("volumesnapshotclasses", None);
    until("the kinds of snapshots", async || classes.create(&class).await.ok()).await;
    let snapshots = kind("volumesnapshots", Some("default"));
    let snapshot = json!({
        "apiVersion": format!("{group}/v1"), "kind": "VolumeSnapshot", "metadata": {"name": "s", "namespace": "default"},
        "spec": {"source": {"persistentVolumeClaimName": "first"}},
    });
    until("the kind of snapshots", async || snapshots.create(&snapshot).await.ok()).await;
    let ready = until("a snapshot", async || {
        let snapshot = snapshots.get("s").await.unwrap();
        (snapshot["status"]["readyToUse"] == true).then_some(snapshot)
    })
    .await;
    assert_eq!(ready["status"]["restoreSize"], "3Mi");
    std::fs::write(cluster.files("n", &first).join("file"), "two").unwrap();
    let from = |size: &str| json!({"dataSource": {"apiGroup": group, "kind": "VolumeSnapshot", "name": "s"}, "resources": {"requests": {"storage": size}}});
    let restored = cluster.bound("restored", "m", from("4Mi")).await;
    assert_eq!(std::fs::read_to_string(cluster.files("n", &restored).join("file")).unwrap(), "one");
    claims.create(&claim("small", "n", from("1Mi"))).await.unwrap();
    cluster.said("small", "ProvisioningFailed", "is less than the size").await;
    claims.delete("small", &Default::default()).await.unwrap();
    snapshots.delete("s", &Default::default()).await.unwrap();
    until("the snapshot is gone", async || snapshots.get_opt("s").await.unwrap().is_none().then_some(())).await;
    assert_eq!(std::fs::read_dir(cluster.store("n").join("snapshots")).unwrap().count(), 0);

    // The folder goes with its claim, before the volume does.
    claims.delete("first", &Default::default()).await.unwrap();
    until("the volume is gone", async || volumes.get_opt(&first).await.unwrap().is_none().then_some(())).await;
    assert!(!cluster.store("n").join("volumes").join(&first).exists());
    assert!(cluster.files("n", &clone).exists() && cluster.files("m", &second).exists(), "others stay");
    // Nothing is asked or answered any more, nor is what was asked for a snapshot whose object went meanwhile.
    let left = Patch::merge(json!({"spec": {"snapshots": {"snapshot-gone": {"token": "left", "action": "Delete"}}}}));
    cluster.client.all::<NodeVolumes>().patch("n", &left).await.unwrap();
    until("requests are taken back", async || {
        let all = cluster.client.all::<NodeVolumes>().list(&Default::default()).await.unwrap().items;
        let is_done = |node: &NodeVolumes| node.spec.snapshots.is_empty() && node.status.snapshots.is_empty();
        all.iter().all(is_done).then_some(())
    })
    .await;
    cluster.stop().await;
}

/// A node that lies is heard about its own folders only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_hostile_node_touches_its_own_volumes_only() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("n").await;
    let volume = cluster.bound("data", "n", json!({})).await;
    // Its driver is the attacker's: it runs nothing of ours.
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "evil"}})).unwrap();
    cluster.client.all::<Node>().create(&node).await.unwrap();
    let csi_node: CSINode = serde_json::from_value(json!({
        "metadata": {"name": "evil"}, "spec": {"drivers": [{"name": "local.cox", "nodeID": "evil"}]},
    }))
    .unwrap();
    cluster.client.all::<CSINode>().create(&csi_node).await.unwrap();
    until("an object for the node", async || cluster.client.all::<NodeVolumes>().get_opt("evil").await.unwrap()).await;
    let evil = as_user(&cluster.handler, "system:node:evil", &["system:nodes"]);
    let (own, answers) =
        (evil.all::<NodeVolumes>(), |id: &str| json!({"volumes": {id: {"token": "guessed"}}, "available": i64::MAX}));
    // It sees its own requests and no others, no claims and no volumes, and makes none.
    assert!(own.get("evil").await.is_ok());
    assert!(own.get("n").await.unwrap_err().is_forbidden());
    assert!(own.list(&Default::default()).await.unwrap_err().is_forbidden());
    assert!(evil.all::<PersistentVolume>().list(&Default::default()).await.unwrap_err().is_forbidden());
    assert!(evil.all::<PersistentVolume>().get(&volume).await.unwrap_err().is_forbidden());
    assert!(evil.namespaced::<PersistentVolumeClaim>("default").get("data").await.unwrap_err().is_forbidden());
    let mut theirs = cluster.volume(&volume).await;
    theirs.metadata = Default::default();
    theirs.metadata.name = Some("mine".into());
    assert!(evil.all::<PersistentVolume>().create(&theirs).await.unwrap_err().is_forbidden());
    let request = json!({"spec": {"volumes": {volume.as_str(): {"token": "x", "action": "Delete"}}}});
    assert!(own.patch("n", &Patch::merge(request.clone())).await.unwrap_err().is_forbidden());
    assert!(own.patch("evil", &Patch::merge(request)).await.unwrap_err().is_forbidden());
    assert!(own.patch_status("n", &Patch::merge(json!({"status": answers("x")}))).await.unwrap_err().is_forbidden());
    // Pods do not follow their volumes to it.
    let label = Patch::merge(json!({"metadata": {"labels": {"local.cox/node": "n"}}}));
    assert!(evil.all::<Node>().patch("evil", &label).await.unwrap_err().is_forbidden());
    // It answers what nobody has asked, about the volume of another and about one that there is not.
    for id in [volume.as_str(), "pvc-none"] {
        own.patch_status("evil", &Patch::merge(json!({"status": answers(id)}))).await.unwrap();
    }
    // And is asked: it says that it has made a folder, which is a volume on itself and no other node.
    let lied = cluster.claims().create(&claim("lied", "evil", json!({}))).await.unwrap();
    let id = format!("pvc-{}", lied.metadata.uid.unwrap());
    let token =
        until("a request", async || Some(own.get("evil").await.unwrap().spec.volumes.get(&id)?.token.clone())).await;
    let said = json!({"status": {"volumes": {id.as_str(): {"token": token, "size": 5}}}});
    own.patch_status("evil", &Patch::merge(said)).await.unwrap();
    let made = until("a volume", async || cluster.client.all::<PersistentVolume>().get_opt(&id).await.unwrap()).await;
    assert_eq!(node_of(&made)["values"], json!(["evil"]));
    assert_eq!(made.spec.unwrap().capacity.unwrap()["storage"].0, "1Mi");
    // The other's volume is as it was, and its folder is there.
    let there = cluster.volume(&volume).await;
    assert_eq!(node_of(&there)["values"], json!(["n"]));
    assert!(there.metadata.deletion_timestamp.is_none() && cluster.files("n", &volume).is_dir());
    cluster.stop().await;
}
