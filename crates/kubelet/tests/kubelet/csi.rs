//! Volumes of CSI drivers: a driver that mounts, fails and hangs as it is told, and a ledger that every test is held against.

use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{DeleteParams, Patch};
use csi::tonic::Code;
use csi::v1::{AccessMode, AccessType, NodeRpc};
use k8s_openapi::api::core::v1::{
    Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use serde_json::{Value, json};
use testkit::csi_driver::{Driver, Fault, Options, Served, mounts_at, mounts_below};

use crate::node::{Node, is_ready, restarts, shell};

pub(crate) const NAME: &str = "ledger.example.com";

pub(crate) fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

pub(crate) fn registry(node: &Node) -> PathBuf {
    node.dir.path().join("kubelet/plugins_registry")
}

/// Starts a driver, tells the API about it, and waits until the node has it.
pub(crate) async fn driver(node: &Node, options: Options, spec: Value) -> Served {
    let name = options.name.clone();
    let object = json!({"metadata": {"name": name}, "spec": merged(json!({"attachRequired": false}), spec)});
    let object: CSIDriver = serde_json::from_value(object).unwrap();
    node.api.client().all::<CSIDriver>().create(&object).await.unwrap();
    let served = Driver::new(&node.dir.path().join("drivers").join(&name), options).serve(&registry(node));
    wait_registered(node, &name, true).await;
    served
}

pub(crate) async fn drivers_of(node: &Node) -> Vec<String> {
    let found: Option<CSINode> = node.api.client().all().get_opt(&node.name).await.unwrap();
    found.map(|found| found.spec.drivers.into_iter().map(|driver| driver.name).collect()).unwrap_or_default()
}

pub(crate) async fn wait_registered(node: &Node, name: &str, wanted: bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while drivers_of(node).await.iter().any(|known| known == name) != wanted {
        let told = node.messages().await;
        assert!(tokio::time::Instant::now() < deadline, "registered {wanted}: {name}: {told:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A volume and a claim that is bound to it.
pub(crate) async fn claim(node: &Node, name: &str, driver: &str, spec: Value) {
    let csi = json!({"driver": driver, "volumeHandle": format!("handle-{name}"), "fsType": "ext4"});
    let spec = merged(
        json!({
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": csi,
            "claimRef": {"namespace": "default", "name": name},
        }),
        spec,
    );
    let modes = spec["accessModes"].clone();
    let mode = spec["volumeMode"].as_str().unwrap_or("Filesystem").to_string();
    let volume: PersistentVolume =
        serde_json::from_value(json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec})).unwrap();
    node.api.client().all::<PersistentVolume>().create(&volume).await.unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"accessModes": modes, "volumeName": format!("pv-{name}"), "volumeMode": mode,
            "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .unwrap();
    let claims = node.api.client().namespaced::<PersistentVolumeClaim>("default");
    claims.create(&claim).await.unwrap();
    let status = json!({"status": {"capacity": {"storage": "1Gi"}, "accessModes": modes}});
    claims.patch_status(name, &Patch::merge(status)).await.unwrap();
    node.bind(name, &format!("pv-{name}")).await;
}

pub(crate) fn using(claim: &str, script: &str) -> Value {
    json!({
        "containers": [{"name": "c", "command": shell(script), "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        "terminationGracePeriodSeconds": 0,
    })
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap()
}

/// Nothing of any driver's is mounted or remembered.
pub(crate) fn assert_clean(node: &Node, driver: &Driver) {
    let root = node.dir.path().join("kubelet");
    assert_eq!(mounts_below(&root.join("plugins")), Vec::<PathBuf>::new());
    let left: Vec<_> = mounts_below(&root.join("pods"));
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("~csi")), "{left:?}");
    let records = walk(&root.join("plugins")).into_iter().chain(walk(&root.join("pods")));
    let records: Vec<_> = records.filter(|path| path.ends_with("vol_data.json")).collect();
    assert!(records.is_empty(), "{records:?}");
    assert_eq!(driver.overlaps(), Vec::<String>::new(), "never two calls at once for one volume");
}

pub(crate) fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(walk(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

/// Stage and publish with everything the volume says, one staging for two pods, groups, and all of it undone.
pub(crate) async fn volumes_are_staged_published_and_taken_down(node: &mut Node) {
    let served = driver(node, Options::new(NAME), json!({"fsGroupPolicy": "File"})).await;
    let driver = &served.driver;
    let secrets = node.api.client().namespaced::<Secret>("default");
    for name in ["stage", "publish"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"pass": "word"}});
        secrets.create(&serde_json::from_value(secret).unwrap()).await.unwrap();
    }
    let reference = |name: &str| json!({"namespace": "default", "name": name});
    let source = json!({
        "driver": NAME, "volumeHandle": "handle-one", "fsType": "ext4", "volumeAttributes": {"colour": "blue"},
        "nodeStageSecretRef": reference("stage"), "nodePublishSecretRef": reference("publish"),
        "nodeExpandSecretRef": reference("missing"),
    });
    claim(node, "one", NAME, json!({"csi": source, "mountOptions": ["noatime"]})).await;
    let script = "echo hello > /v/file; stat -c '%g %a' /v; sleep 1000";
    let spec = merged(using("one", script), json!({"securityContext": {"fsGroup": 4242}}));
    node.create("first", spec).await;
    let first = node.wait("first", "ready", is_ready).await;
    node.wait_log(&first, "c", |log| log == "4242 2775\n").await;
    let root = node.dir.path().join("kubelet");
    let target = root.join("pods").join(uid(&first)).join("volumes/kubernetes.io~csi/pv-one/mount");
    let (stage, publish) = (driver.stages().remove(0), driver.publishes().remove(0));
    assert_eq!(publish.target_path, target.to_string_lossy());
    assert_eq!(stage.staging_target_path, publish.staging_target_path);
    assert!(
        stage.staging_target_path.starts_with(&*root.join("plugins/kubernetes.io/csi").join(NAME).to_string_lossy())
    );
    assert!(stage.staging_target_path.ends_with("/globalmount"));
    let given = [("pass".to_string(), "word".to_string())].into();
    assert_eq!((&stage.secrets, &publish.secrets), (&given, &given));
    // Nobody needs it any more: the volume is staged.
    secrets.delete("stage", &DeleteParams::default()).await.unwrap();
    assert_eq!(publish.volume_context, [("colour".to_string(), "blue".to_string())].into(), "nothing of the pod");
    let capability = publish.volume_capability.unwrap();
    assert_eq!(capability.access_mode, Some(AccessMode::SingleNodeWriter.into()));
    let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("{capability:?}") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".to_string()]));

    let read_only = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "one", "readOnly": true}}]);
    let script = "cat /v/file; touch /v/x 2>/dev/null || echo read-only; sleep 1000";
    node.create("second", merged(using("one", script), json!({"volumes": read_only}))).await;
    let second = node.wait("second", "ready", is_ready).await;
    node.wait_log(&second, "c", |log| log == "hello\nread-only\n").await;
    assert!(driver.publishes()[1].readonly);
    assert_eq!(
        (driver.count("NodeStageVolume", "handle-one"), driver.count("NodePublishVolume", "handle-one")),
        (1, 2)
    );
    node.delete("first").await;
    assert_eq!(driver.count("NodeUnstageVolume", "handle-one"), 0, "another pod uses it");
    assert_eq!(mounts_at(Path::new(&stage.staging_target_path)), 1);
    node.delete("second").await;
    assert_eq!(driver.count("NodeUnstageVolume", "handle-one"), 1);
    assert_eq!(std::fs::read_to_string(driver.volume("handle-one").join("file")).unwrap(), "hello\n");
    assert_clean(node, driver);
}

/// A volume that lives with its pod: never staged, and the driver hears whose it is and speaks with the pod's tokens.
pub(crate) async fn inline_volumes_hear_of_their_pod(node: &mut Node) {
    let spec = json!({
        "podInfoOnMount": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        "tokenRequests": [{"audience": "vault", "expirationSeconds": 3600}], "requiresRepublish": true,
    });
    let served = driver(node, Options::new(NAME), spec).await;
    let driver = &served.driver;
    let account: ServiceAccount = node.api.client().namespaced("default").get("default").await.unwrap();
    assert!(account.metadata.uid.is_some());
    let volume = json!([{"name": "v", "csi": {"driver": NAME, "volumeAttributes": {"size": "1"}}}]);
    let script = "echo x > /v/f && until rm /v/end; do sleep 0.1; done";
    node.create("own", merged(using("", script), json!({"volumes": volume}))).await;
    let pod = node.wait("own", "ready", is_ready).await;
    let publish = driver.publishes().remove(0);
    for (key, value) in [
        ("size", "1"),
        ("csi.storage.k8s.io/pod.name", "own"),
        ("csi.storage.k8s.io/pod.namespace", "default"),
        ("csi.storage.k8s.io/pod.uid", uid(&pod)),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
        ("csi.storage.k8s.io/ephemeral", "true"),
    ] {
        assert_eq!(publish.volume_context.get(key).map(String::as_str), Some(value), "{key}");
    }
    let tokens: Value =
        serde_json::from_str(&publish.volume_context["csi.storage.k8s.io/serviceAccount.tokens"]).unwrap();
    assert!(tokens["vault"]["token"].as_str().is_some_and(|token| token.split('.').count() == 3), "{tokens}");
    assert!(tokens["vault"]["expirationTimestamp"].is_string());
    assert!(publish.volume_id.starts_with("csi-") && publish.staging_target_path.is_empty());
    // A pass over the pod asks again, as the driver wants.
    let before = driver.publishes().len();
    let label = Patch::merge(json!({"metadata": {"labels": {"changed": "yes"}}}));
    node.api.client().namespaced::<Pod>("default").patch("own", &label).await.unwrap();
    node.wait_until("published again", || driver.publishes().len() > before).await;
    assert_eq!(mounts_at(Path::new(&publish.target_path)), 1, "and mounts nothing twice");
    // A driver that refuses then is no reason to hold up what is to run in the pod.
    driver.set_fault("NodePublishVolume", Some(Fault::Refuse(Code::Internal, "sealed".into())));
    std::fs::write(driver.volume(&publish.volume_id).join("end"), "").unwrap();
    node.wait("own", "running again", |pod| restarts(pod) > 0 && is_ready(pod)).await;
    node.wait_message("MountVolume.SetUp failed for volume \"v\" : rpc error: code = Internal desc = sealed").await;
    driver.set_fault("NodePublishVolume", None);
    // Neither is a driver whose object is gone, without which nobody gets such a volume anew.
    node.api.client().all::<CSIDriver>().delete(NAME, &DeleteParams::default()).await.unwrap();
    std::fs::write(driver.volume(&publish.volume_id).join("end"), "").unwrap();
    node.wait("own", "running once more", |pod| restarts(pod) > 1 && is_ready(pod)).await;
    node.delete("own").await;
    assert_eq!(driver.count("NodeStageVolume", &publish.volume_id), 0);
    assert_clean(node, driver);

    let other = Options { topology: Default::default(), ..Options::new("plain.example.com") };
    let served = self::driver(node, other, json!({})).await;
    let volume = json!([{"name": "v", "csi": {"driver": "plain.example.com"}}]);
    node.create("refused", merged(using("", "sleep 1000"), json!({"volumes": volume}))).await;
    node.wait_message(
        "MountVolume.SetUp failed for volume \"v\" : kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode \"Ephemeral\" not supported by driver plain.example.com (only supports [\"Persistent\"])",
    )
    .await;
    assert_eq!(served.driver.publishes(), []);
}

/// A block volume is a device in the container, and a claim is used as what it is.
pub(crate) async fn devices_reach_containers(node: &mut Node) {
    let served = driver(node, Options::new(NAME), json!({"tokenRequests": [{"audience": "vault"}]})).await;
    let driver = &served.driver;
    claim(node, "raw", NAME, json!({"volumeMode": "Block"})).await;
    let script = "test -c /dev/raw && head -c 4 /dev/raw | od -An -tx1; sleep 1000";
    let devices = json!([{"name": "c", "image": crate::image::NAME, "command": shell(script),
        "volumeDevices": [{"name": "v", "devicePath": "/dev/raw"}]}]);
    node.create("mapped", merged(using("raw", ""), json!({"containers": devices}))).await;
    let pod = node.wait("mapped", "ready", is_ready).await;
    node.wait_log(&pod, "c", |log| log == " 00 00 00 00\n").await;
    let publish = driver.publishes().remove(0);
    let devices = node.dir.path().join("kubelet/plugins/kubernetes.io/csi/volumeDevices");
    assert_eq!(publish.target_path, devices.join("publish/pv-raw").join(uid(&pod)).to_string_lossy());
    assert_eq!(publish.staging_target_path, devices.join("staging/pv-raw").to_string_lossy());
    assert!(matches!(publish.volume_capability.unwrap().access_type, Some(AccessType::Block(_))));
    assert!(publish.volume_context.is_empty() && publish.secrets.is_empty(), "no tokens");
    let of_pod = node.dir.path().join("kubelet/pods").join(uid(&pod)).join("volumeDevices/kubernetes.io~csi");
    for (what, path) in [("globalMapPath", devices.join("pv-raw/dev")), ("volumeMapPath", of_pod)] {
        let mapped = format!("MapVolume.MapPodDevice succeeded for volume \"pv-raw\" {what} {path:?}");
        node.wait_event(&mapped, |event| {
            let is_told = event.message.as_deref() == Some(&*mapped);
            is_told && event.reason.as_deref() == Some("SuccessfulMountVolume")
        })
        .await;
    }
    node.create("wrong", using("raw", "sleep 1000")).await;
    node.wait_message(
        "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: volume v has volumeMode Block, but is specified in volumeMounts",
    )
    .await;
    node.delete("mapped").await;
    node.delete("wrong").await;
    assert_eq!(driver.count("NodeUnstageVolume", "handle-raw"), 1);
    assert_clean(node, driver);

    // One that stages nothing hears of the place all the same, as from upstream's kubelet.
    let name = "plain.example.com";
    let plain = Options { abilities: Vec::new(), topology: Default::default(), ..Options::new(name) };
    let served = self::driver(node, plain, json!({})).await;
    claim(node, "plain", name, json!({"volumeMode": "Block"})).await;
    let containers = json!([{"name": "c", "image": crate::image::NAME, "command": shell("sleep 1000"),
        "volumeDevices": [{"name": "v", "devicePath": "/dev/raw"}]}]);
    node.create("plain", merged(using("plain", ""), json!({ "containers": containers }))).await;
    node.wait("plain", "ready", is_ready).await;
    let told = served.driver.publishes().remove(0).staging_target_path;
    assert_eq!((told, served.driver.stages().len()), (devices.join("staging/pv-plain").display().to_string(), 0));
    node.delete("plain").await;
    assert_clean(node, &served.driver);
}

/// Disks that pods name as removed drivers had them are those of the drivers that took over, or are refused.
pub(crate) async fn inline_disks_of_removed_drivers_are_their_successors(node: &mut Node) {
    let served = driver(node, Options::new("ebs.csi.aws.com"), json!({})).await;
    let driver = &served.driver;
    let of = |source: Value| merged(using("", "echo x > /v/f; sleep 1000"), json!({ "volumes": [source] }));
    let disk = json!({"volumeID": "aws://zone/vol-1", "fsType": "ext4", "partition": 2});
    node.create("disk", of(json!({"name": "v", "awsElasticBlockStore": disk}))).await;
    node.wait("disk", "ready", is_ready).await;
    let stage = driver.stages().remove(0);
    assert_eq!(stage.volume_id, "vol-1");
    assert_eq!(driver.publishes()[0].volume_context, [("partition".to_string(), "2".to_string())].into());
    let file = driver.volume("vol-1").join("f");
    node.wait_until("the container has written", || std::fs::read_to_string(&file).is_ok_and(|text| text == "x\n"))
        .await;
    let kind = json!({"diskName": "d", "diskURI": "https://me.blob.core.windows.net/d.vhd", "kind": "Dedicated"});
    node.create("kind", of(json!({"name": "v", "azureDisk": kind}))).await;
    node.wait_message(
        "MountVolume.SetUp failed for volume \"v\" : failed to translate in-tree pv to CSI: kind(Dedicated) is not supported in csi migration",
    )
    .await;
    node.create("nobody", of(json!({"name": "v", "cinder": {"volumeID": "c"}}))).await;
    node.wait_message(
        "MountVolume.MountDevice failed for volume \"v\" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name cinder.csi.openstack.org not found in the list of registered CSI drivers",
    )
    .await;
    for name in ["disk", "kind", "nobody"] {
        node.delete(name).await;
    }
    assert_eq!(driver.count("NodeUnstageVolume", "vol-1"), 1);
    assert_clean(node, driver);
}

/// A driver that needs an attacher: the node tells that it uses the volume, waits, and passes on what the attacher says.
pub(crate) async fn attachments_are_waited_for(node: &mut Node) {
    node.stop_kubelet().await;
    let collector = otlp::collector::Collector::start().await;
    crate::tracing::spawn_traced(node, &collector.endpoint());
    let served = driver(node, Options::new(NAME), json!({"attachRequired": true})).await;
    let driver = &served.driver;
    claim(node, "far", NAME, json!({})).await;
    node.create("waits", using("far", "sleep 1000")).await;
    let name = format!("kubernetes.io/csi/{NAME}^handle-far");
    let until_used = async |expected: &[&str]| {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            let found: ApiNode = node.api.client().all().get(&node.name).await.unwrap();
            let used = found.status.unwrap().volumes_in_use.unwrap_or_default();
            if used == expected {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{used:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    until_used(&[name.as_str()]).await;
    assert_eq!(driver.stages().len(), 0, "not before it is attached");
    use sha2::Digest;
    let hash = sha2::Sha256::digest(format!("handle-far{NAME}{}", node.name));
    let attachment: VolumeAttachment = serde_json::from_value(json!({
        "metadata": {"name": format!("csi-{hash:x}")},
        "spec": {"attacher": NAME, "nodeName": node.name, "source": {"persistentVolumeName": "pv-far"}},
    }))
    .unwrap();
    let attachments = node.api.client().all::<VolumeAttachment>();
    let made = attachments.create(&attachment).await.unwrap();
    let status = json!({"status": {"attached": true, "attachmentMetadata": {"device": "sdb"}}});
    attachments.patch_status(made.metadata.name.as_deref().unwrap(), &Patch::merge(status)).await.unwrap();
    // As the attach-detach controller tells the node.
    let reported = json!({"status": {"volumesAttached": [{"name": name, "devicePath": ""}]}});
    node.api.client().all::<ApiNode>().patch_status(&node.name, &Patch::merge(reported)).await.unwrap();
    node.wait("waits", "ready", is_ready).await;
    let context = [("device".to_string(), "sdb".to_string())].into();
    assert_eq!((&driver.stages()[0].publish_context, &driver.publishes()[0].publish_context), (&context, &context));
    // Each step is a span of its own, begun after the one before, and part of the same work for the pod.
    let of = |step: &'static str| {
        let spans = collector.spans().into_iter().map(|(_, span)| span);
        spans.filter(move |span| span.name.starts_with(step)).collect::<Vec<_>>()
    };
    let steps = ["wait for attachment", "stage volume", "publish volume"];
    for step in steps {
        node.wait_until(step, || !of(step).is_empty()).await;
    }
    for (before, after) in steps.iter().zip(&steps[1..]) {
        let (before, after) = (of(before), of(after).remove(0));
        let is_before = |span: &otlp::messages::Span| {
            (&span.trace_id, &span.parent_span_id) == (&after.trace_id, &after.parent_span_id)
                && span.end_time_unix_nano <= after.start_time_unix_nano
        };
        assert!(before.iter().any(is_before), "{before:?} {after:?}");
    }
    node.delete("waits").await;
    until_used(&[]).await;

    // A driver that needs no attacher any more: the pod goes on, and keeps nothing attached.
    claim(node, "near", NAME, json!({})).await;
    node.create("switches", using("near", "sleep 1000")).await;
    let near = format!("kubernetes.io/csi/{NAME}^handle-near");
    until_used(&[near.as_str()]).await;
    let drivers = node.api.client().all::<CSIDriver>();
    drivers.delete(NAME, &Default::default()).await.unwrap();
    let object = json!({"metadata": {"name": NAME}, "spec": {"attachRequired": false}});
    drivers.create(&serde_json::from_value(object).unwrap()).await.unwrap();
    node.wait("switches", "ready", is_ready).await;
    until_used(&[]).await;
    node.delete("switches").await;
    assert_clean(node, driver);
}

/// A volume that has grown gets its file system grown and its claim told; what drivers say of it is shown.
pub(crate) async fn volumes_grow_and_are_measured(node: &mut Node) {
    node.stop_kubelet().await;
    node.start_kubelet_with(|settings| settings.volume_stats_period = Duration::from_millis(200));
    let served = driver(node, Options::new(NAME), json!({})).await;
    let driver = &served.driver;
    claim(node, "grows", NAME, json!({})).await;
    node.create("big", using("grows", "until rm /v/end; do sleep 0.1; done")).await;
    node.wait("big", "ready", is_ready).await;
    assert_eq!(driver.expansions(), []);
    // A driver that cannot is no reason to end what runs, nor to hold up what is to run in the pod.
    driver.set_fault("NodeExpandVolume", Some(Fault::Refuse(Code::Internal, "the disk is full".into())));
    let claims = node.api.client().namespaced::<PersistentVolumeClaim>("default");
    // As the resizer leaves it to the node.
    let pending = Patch::merge(json!({"status": {
        "phase": "Bound", "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
        "allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }}));
    claims.patch_status("grows", &pending).await.unwrap();
    // Then only: a larger volume of a claim that says nothing is tried as well, and a failure of that would count.
    let volumes = node.api.client().all::<PersistentVolume>();
    let larger = Patch::merge(json!({"spec": {"capacity": {"storage": "2Gi"}}}));
    volumes.patch("pv-grows", &larger).await.unwrap();
    let pods = node.api.client().namespaced::<Pod>("default");
    let look = |word: &str| Patch::merge(json!({"metadata": {"labels": {"look": word}}}));
    let wait_claim = async |stage: Option<&str>, why: Option<&str>| {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            let status = claims.get("grows").await.unwrap().status.unwrap();
            let told = status.conditions.iter().flatten().find(|condition| condition.type_ == "NodeResizeError");
            let told = told.and_then(|condition| condition.message.as_deref());
            let stages = status.allocated_resource_statuses.as_ref();
            if stages.and_then(|stages| stages.get("storage")).map(String::as_str) == stage && told == why {
                break status;
            }
            assert!(tokio::time::Instant::now() < deadline, "{stage:?} {why:?}: {status:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    pods.patch("big", &look("once")).await.unwrap();
    let why = "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = the disk is full";
    node.wait_message(&format!("NodeExpandVolume.NodeExpandVolume failed for volume \"pv-grows\" : {why}")).await;
    wait_claim(Some("NodeResizeInProgress"), Some(&format!("failed to expand pvc with {why}"))).await;
    // It says that it never will: nobody asks again, and the resizer knows.
    driver.set_fault("NodeExpandVolume", Some(Fault::Refuse(Code::OutOfRange, "too large".into())));
    pods.patch("big", &look("twice")).await.unwrap();
    let why = "Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = too large";
    wait_claim(Some("NodeResizeInfeasible"), Some(&format!("failed to expand pvc with {why}"))).await;
    let asked = driver.count("NodeExpandVolume", "handle-grows");
    // Nor is a claim that is lost: what the pod has it keeps.
    claims.patch_status("grows", &Patch::merge(json!({"status": {"phase": "Lost"}}))).await.unwrap();
    std::fs::write(driver.volume("handle-grows").join("end"), "").unwrap();
    node.wait("big", "running again", |pod| restarts(pod) > 0 && is_ready(pod)).await;
    assert_eq!(driver.count("NodeExpandVolume", "handle-grows"), asked);
    driver.set_fault("NodeExpandVolume", None);
    claims.patch_status("grows", &pending).await.unwrap();
    pods.patch("big", &look("again")).await.unwrap();
    node.wait_until("grown", || {
        driver.ledger().iter().any(|it| it.call == "NodeExpandVolume" && it.code == Some(Code::Ok))
    })
    .await;
    let expansion = driver.expansions().pop().unwrap();
    assert_eq!(expansion.capacity_range.unwrap().required_bytes, 2 << 30);
    let publish = driver.publishes().remove(0);
    assert_eq!(
        (&expansion.volume_path, &expansion.staging_target_path),
        (&publish.target_path, &publish.staging_target_path)
    );
    let message = format!("MountVolume.NodeExpandVolume succeeded for volume \"pv-grows\" {}", node.name);
    for kind in ["Pod", "PersistentVolumeClaim"] {
        node.wait_event("growth is told", |event| {
            event.message.as_ref() == Some(&message) && event.involved_object.kind.as_deref() == Some(kind)
        })
        .await;
    }
    let status = wait_claim(None, None).await;
    assert_eq!(status.capacity.as_ref().unwrap()["storage"].0, "2Gi");
    assert_eq!(status.conditions.unwrap_or_default(), []);

    driver.set_condition(true, "the disk is on fire");
    node.wait_message("Volume pv-grows: the disk is on fire").await;
    let get = async |path: &str| {
        let url = format!("https://127.0.0.1:{}{path}", node.port().await);
        let output =
            tokio::process::Command::new("curl").args(["-skf", "--max-time", "30", &url]).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let metrics = get("/metrics").await;
    for (name, value) in [
        ("capacity_bytes", 4096),
        ("available_bytes", 3072),
        ("used_bytes", 1024),
        ("inodes", 100),
        ("inodes_free", 90),
        ("inodes_used", 10),
        ("health_status_abnormal", 1),
    ] {
        let line =
            format!("kubelet_volume_stats_{name}{{namespace=\"default\",persistentvolumeclaim=\"grows\"}} {value}");
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    let summary: Value = serde_json::from_str(&get("/stats/summary").await).unwrap();
    let pod = summary["pods"].as_array().unwrap().iter().find(|pod| pod["podRef"]["name"] == "big").unwrap();
    let shown = pod["volume"].as_array().unwrap().iter().find(|volume| volume["name"] == "v").unwrap();
    assert_eq!(shown["pvcRef"], json!({"name": "grows", "namespace": "default"}));
    assert_eq!((&shown["usedBytes"], &shown["volumeHealthStats"]["abnormal"]), (&json!(1024), &json!(true)));
    node.delete("big").await;
    assert_clean(node, driver);
}

/// `ReadWriteOncePod`: a second pod waits until the first is gone.
pub(crate) async fn one_pod_has_a_volume_for_one_pod(node: &mut Node) {
    let mut options = Options::new(NAME);
    options.abilities.push(NodeRpc::SingleNodeMultiWriter);
    let served = driver(node, options, json!({})).await;
    let driver = &served.driver;
    claim(node, "mine", NAME, json!({"accessModes": ["ReadWriteOncePod"]})).await;
    node.create("first", using("mine", "sleep 1000")).await;
    node.wait("first", "ready", is_ready).await;
    let mode = driver.publishes()[0].volume_capability.clone().unwrap().access_mode;
    assert_eq!(mode, Some(AccessMode::SingleNodeSingleWriter.into()));
    node.create("second", using("mine", "sleep 1000")).await;
    node.wait_message(
        "MountVolume.SetUp failed for volume \"pv-mine\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod",
    )
    .await;
    assert_eq!(driver.publishes().len(), 1);
    node.delete("first").await;
    node.wait("second", "ready", is_ready).await;
    node.delete("second").await;
    assert_clean(node, driver);
}
