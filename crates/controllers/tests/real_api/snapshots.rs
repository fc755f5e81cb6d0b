//! Volume snapshots from request to removal. The driver's part is played by the test.

use client::{Client, DeleteParams, DynamicApi, Gvr, ListParams, Patch};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::harness::{Cluster, patiently};
use crate::late_caches::Gate;

const GROUP: &str = "snapshot.storage.k8s.io";
const API_VERSION: &str = "snapshot.storage.k8s.io/v1";
const SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";

async fn start() -> Cluster {
    let cluster = Cluster::without_manager(0).await;
    let client = cluster.manager().client;
    started(cluster, client).await
}

/// With a manager that has this client.
async fn started(mut cluster: Cluster, client: Client) -> Cluster {
    let config = controllers::Config { client, volume_snapshots: true, ..cluster.manager() };
    cluster.spawn(controllers::run(config, cluster.stop.clone()));
    let class = json!({
        "apiVersion": API_VERSION, "kind": "VolumeSnapshotClass", "driver": "csi.example", "deletionPolicy": "Delete",
        "metadata": { "name": "fast", "annotations": { "snapshot.storage.kubernetes.io/is-default-class": "true" } },
    });
    let classes = kind(&cluster, "volumesnapshotclasses");
    assert!(patiently(async || classes.create(&class).await.ok()).await.is_some(), "the definitions are never made");
    for plural in ["volumesnapshots", "volumesnapshotcontents"] {
        let api = kind(&cluster, plural);
        let served = patiently(async || api.list(&ListParams::default()).await.ok().map(drop)).await;
        assert!(served.is_some(), "{plural} are never served");
    }
    cluster
}

fn kind(cluster: &Cluster, plural: &'static str) -> DynamicApi {
    let namespace = (plural == "volumesnapshots").then_some("default");
    cluster.client.dynamic(&Gvr::new(GROUP, "v1", plural), namespace)
}

async fn until(api: &DynamicApi, name: &str, what: &str, done: impl Fn(&Value) -> bool) -> Value {
    let found = patiently(async || api.get_opt(name).await.unwrap().filter(|object| done(object))).await;
    match found {
        Some(object) => object,
        None => panic!("{name} never {what}: {:#?}", api.get_opt(name).await.unwrap()),
    }
}

async fn until_gone(api: &DynamicApi, name: &str) {
    let gone = patiently(async || api.get_opt(name).await.unwrap().is_none().then_some(())).await;
    assert!(gone.is_some(), "{name} stays: {:#?}", api.get_opt(name).await.unwrap());
}

fn snapshot(name: &str, source: Value) -> Value {
    json!({ "apiVersion": API_VERSION, "kind": "VolumeSnapshot", "metadata": { "name": name, "namespace": "default" }, "spec": { "source": source } })
}

/// A claim `data` with a volume.
async fn bound_claim(cluster: &Cluster) {
    cluster
        .apply::<PersistentVolume>(json!({
            "metadata": { "name": "v" },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "csi": { "driver": "csi.example", "volumeHandle": "h" }, "claimRef": { "namespace": "default", "name": "data" },
            },
        }))
        .await;
    cluster
        .apply::<PersistentVolumeClaim>(json!({
            "metadata": { "name": "data", "namespace": "default" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "v", "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .await;
}

fn has_finalizer(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|name| name == SOURCE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_taken_of_a_claim_and_deleted_with_its_content() {
    let cluster = start().await;
    let (snapshots, contents) = (kind(&cluster, "volumesnapshots"), kind(&cluster, "volumesnapshotcontents"));
    // Before its claim is there it says what is missing.
    snapshots.create(&snapshot("s", json!({ "persistentVolumeClaimName": "data" }))).await.unwrap();
    until(&snapshots, "s", "names what is missing", |it| {
        it["status"]["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("persistentvolumeclaim \"data\" not found"))
    })
    .await;
    bound_claim(&cluster).await;
    let seen = until(&snapshots, "s", "gets a class", |it| it["spec"]["volumeSnapshotClassName"] == "fast").await;
    let name = format!("snapcontent-{}", seen["metadata"]["uid"].as_str().unwrap());
    let content = until(&contents, &name, "made", |_| true).await;
    assert_eq!(content["spec"]["source"]["volumeHandle"], "h");
    assert_eq!(content["spec"]["driver"], "csi.example");
    assert_eq!(content["spec"]["deletionPolicy"], "Delete");
    assert_eq!(content["spec"]["volumeSnapshotRef"]["name"], "s");
    assert_eq!(
        content["metadata"]["finalizers"][0],
        "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
    );
    until(&snapshots, "s", "bound", |it| it["status"]["boundVolumeSnapshotContentName"] == name.as_str()).await;
    assert!(has_finalizer(&cluster.client.namespaced::<PersistentVolumeClaim>("default").get("data").await.unwrap()));
    let done = json!({ "status": { "snapshotHandle": "snap", "readyToUse": true, "restoreSize": 1_073_741_824, "creationTime": 1_700_000_000_000_000_000_i64 } });
    contents.patch_status(&name, &Patch::merge(done)).await.unwrap();
    let ready = until(&snapshots, "s", "ready", |it| it["status"]["readyToUse"] == true).await;
    assert_eq!(ready["status"]["restoreSize"], "1Gi");
    assert!(ready["status"]["error"].is_null(), "{ready}");
    cluster.until::<PersistentVolumeClaim>("default", "data", "let go", |claim| !has_finalizer(claim)).await;
    // A claim that is being made of it keeps it.
    let source = json!({ "apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "s" });
    let restored = json!({
        "metadata": { "name": "copy", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "dataSource": source, "resources": { "requests": { "storage": "1Gi" } } },
    });
    cluster.apply::<PersistentVolumeClaim>(restored).await;
    snapshots.delete("s", &DeleteParams::default()).await.unwrap();
    let told = patiently(async || {
        let events = cluster.list::<k8s_openapi::api::core::v1::Event>("default").await;
        events.iter().any(|event| event.reason.as_deref() == Some("SnapshotDeletePending")).then_some(())
    });
    assert!(told.await.is_some(), "nobody says why it stays");
    assert!(contents.get(&name).await.unwrap()["metadata"]["deletionTimestamp"].is_null());
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    claims.delete("copy", &DeleteParams::default()).await.unwrap();
    let going = until(&contents, &name, "deleted", |it| !it["metadata"]["deletionTimestamp"].is_null()).await;
    assert_eq!(going["metadata"]["annotations"]["snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"], "yes");
    assert!(snapshots.get_opt("s").await.unwrap().is_some(), "not before its content");
    contents.patch(&name, &Patch::merge(json!({ "metadata": { "finalizers": null } }))).await.unwrap();
    until_gone(&snapshots, "s").await;
    cluster.stop().await;
}

/// The content was made a moment ago, and the controller's cache of contents is late: the snapshot does not go without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_content_that_is_seen_late_goes_with_its_snapshot() {
    let cluster = Cluster::without_manager(0).await;
    let (gate, client) = Gate::new(&cluster, "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents");
    let cluster = started(cluster, client).await;
    let (snapshots, contents) = (kind(&cluster, "volumesnapshots"), kind(&cluster, "volumesnapshotcontents"));
    bound_claim(&cluster).await;
    // Whoever answers has filled all of its caches.
    snapshots.create(&snapshot("first", json!({ "persistentVolumeClaimName": "none" }))).await.unwrap();
    until(&snapshots, "first", "answered", |it| it["status"]["error"].is_object()).await;
    gate.close();
    let made = snapshots.create(&snapshot("s", json!({ "persistentVolumeClaimName": "data" }))).await.unwrap();
    let name = format!("snapcontent-{}", made["metadata"]["uid"].as_str().unwrap());
    until(&contents, &name, "made", |_| true).await;
    snapshots.delete("s", &DeleteParams::default()).await.unwrap();
    let marked = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
    until(&contents, &name, "marked", |it| it["metadata"]["annotations"][marked] == "yes").await;
    assert!(snapshots.get_opt("s").await.unwrap().is_some(), "not before its content");
    gate.open();
    until(&contents, &name, "deleted", |it| !it["metadata"]["deletionTimestamp"].is_null()).await;
    contents.patch(&name, &Patch::merge(json!({ "metadata": { "finalizers": null } }))).await.unwrap();
    until_gone(&snapshots, "s").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_binds_the_content_that_it_names() {
    let cluster = start().await;
    let (snapshots, contents) = (kind(&cluster, "volumesnapshots"), kind(&cluster, "volumesnapshotcontents"));
    let content = |name: &str, of: &str| {
        json!({
            "apiVersion": API_VERSION, "kind": "VolumeSnapshotContent", "metadata": { "name": name },
            "spec": {
                "deletionPolicy": "Retain", "driver": "csi.example", "source": { "snapshotHandle": "old" },
                "volumeSnapshotRef": { "namespace": "default", "name": of },
            },
        })
    };
    contents.create(&content("kept", "s")).await.unwrap();
    snapshots.create(&snapshot("s", json!({ "volumeSnapshotContentName": "kept" }))).await.unwrap();
    snapshots.create(&snapshot("thief", json!({ "volumeSnapshotContentName": "kept" }))).await.unwrap();
    let bound = until(&snapshots, "s", "bound", |it| it["status"]["boundVolumeSnapshotContentName"] == "kept").await;
    let known = contents.get("kept").await.unwrap();
    assert_eq!(known["spec"]["volumeSnapshotRef"]["uid"], bound["metadata"]["uid"]);
    until(&snapshots, "thief", "refused", |it| {
        it["status"]["error"]["message"] == "VolumeSnapshotContent [kept] is bound to a different snapshot"
    })
    .await;
    // What a definition forbids.
    let both = json!({ "persistentVolumeClaimName": "data", "volumeSnapshotContentName": "kept" });
    let error = snapshots.create(&snapshot("both", both)).await.unwrap_err().to_string();
    assert!(error.contains("exactly one of"), "{error}");
    let moved = json!({ "spec": { "source": { "volumeSnapshotContentName": "other" } } });
    let error = snapshots.patch("s", &Patch::merge(moved)).await.unwrap_err().to_string();
    assert!(error.contains("volumeSnapshotContentName is immutable"), "{error}");
    snapshots.delete("s", &DeleteParams::default()).await.unwrap();
    until_gone(&snapshots, "s").await;
    assert!(contents.get("kept").await.unwrap()["metadata"]["deletionTimestamp"].is_null(), "it is retained");
    cluster.stop().await;
}
