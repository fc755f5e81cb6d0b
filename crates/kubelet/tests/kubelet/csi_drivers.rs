//! CSI drivers that come and go, fail, hang or lie.

use std::path::Path;
use std::time::Duration;

use client::{DeleteParams, Gvr, Patch};
use csi::tonic::Code;
use csi::v1::NodeRpc;
use k8s_openapi::api::core::v1::{Event, Node as ApiNode, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::{Value, json};
use testkit::csi_driver::{Driver, Fault, Options, mounts_at};

use crate::csi::{NAME, assert_clean, claim, driver, drivers_of, registry, uid, using, wait_registered};
use crate::node::{Node, is_ready, shell};

/// Manifests of drivers name upstream's directory. Their pods get the kubelet's own in its place, what they mount there is seen by
/// the kubelet, and paths are those that the drivers know.
pub(crate) async fn drivers_share_the_directory_under_its_usual_name(node: &mut Node) {
    node.stop_kubelet().await;
    let (own, usual) = (node.dir.path().join("kubelet"), node.dir.path().join("usual"));
    let place = usual.clone();
    node.start_kubelet_with(move |settings| settings.usual_root = place);
    let script = "test -d /r && mkdir /p/d && mount -t tmpfs none /p/d && touch /p/d/seen && sleep 1000";
    let path = |name: &str| json!({"path": usual.join(name), "type": "Directory"});
    node.create(
        "driver",
        json!({
            "containers": [{
                "name": "c", "command": shell(script), "securityContext": {"privileged": true},
                "volumeMounts": [
                    {"name": "r", "mountPath": "/r"},
                    {"name": "p", "mountPath": "/p", "mountPropagation": "Bidirectional"},
                ],
            }],
            "volumes": [{"name": "r", "hostPath": path("plugins_registry")}, {"name": "p", "hostPath": path("plugins")}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    node.wait("driver", "ready", is_ready).await;
    node.wait_until("mounted for the kubelet as well", || own.join("plugins/d/seen").exists()).await;
    assert!(!usual.exists(), "nothing is made there");
    nix::mount::umount(&own.join("plugins/d")).unwrap();
    node.delete("driver").await;

    // A driver that is no pod has the directory there by a link.
    std::os::unix::fs::symlink(&own, &usual).unwrap();
    let mut options = Options::new(NAME);
    let probe = Driver::new(&node.dir.path().join("drivers").join(NAME), options.clone());
    let socket = probe.serve(&registry(node)).socket.strip_prefix(&own).map(Path::to_path_buf).unwrap();
    options.endpoint = Some(usual.join(socket));
    let served = driver(node, options, json!({})).await;
    claim(node, "data", NAME, json!({})).await;
    node.create("user", using("data", "echo x > /v/f && sleep 1000")).await;
    let pod = node.wait("user", "ready", is_ready).await;
    let publish = served.driver.publishes().remove(0);
    let target = Path::new("pods").join(uid(&pod)).join("volumes/kubernetes.io~csi/pv-data/mount");
    assert_eq!(Path::new(&publish.target_path), usual.join(&target));
    assert!(Path::new(&publish.staging_target_path).starts_with(&usual));
    assert_eq!(mounts_at(&own.join(target)), 1);
    node.delete("user").await;
    assert_clean(node, &served.driver);
}

/// CSINode, labels and ids follow drivers that register, leave and come back.
pub(crate) async fn drivers_come_and_go(node: &mut Node) {
    let served = driver(node, Options::new(NAME), json!({})).await;
    let other = Driver::new(&node.dir.path().join("d2"), Options::new("other.example.com"));
    let other = other.serve(&registry(node));
    wait_registered(node, "other.example.com", true).await;
    let found: CSINode = node.api.client().all().get(&node.name).await.unwrap();
    let entry = found.spec.drivers.iter().find(|driver| driver.name == NAME).unwrap();
    assert_eq!(entry.node_id, "node-of-the-driver");
    assert_eq!(entry.topology_keys.as_deref(), Some(&[format!("{NAME}/zone")][..]));
    assert_eq!(entry.allocatable.as_ref().unwrap().count, Some(7));
    let owner = &found.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Node", node.name.as_str()));
    let ids = async || {
        let own: ApiNode = node.api.client().all().get(&node.name).await.unwrap();
        let meta = own.metadata;
        (meta.annotations.unwrap().get("csi.volume.kubernetes.io/nodeid").cloned(), meta.labels.unwrap())
    };
    let (noted, labels) = ids().await;
    let expected = format!("{{\"{NAME}\":\"node-of-the-driver\",\"other.example.com\":\"node-of-the-driver\"}}");
    assert_eq!(noted, Some(expected));
    assert_eq!(labels.get(&format!("{NAME}/zone")).map(String::as_str), Some("z1"));
    node.wait_until("the driver is told", || {
        served.driver.registrations().iter().any(|status| status.plugin_registered)
    })
    .await;

    let driver = served.driver.clone();
    served.leave();
    wait_registered(node, NAME, false).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while ids().await.0.as_deref() != Some("{\"other.example.com\":\"node-of-the-driver\"}") {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", ids().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    claim(node, "later", NAME, json!({})).await;
    node.create("early", using("later", "sleep 1000")).await;
    node.wait_message(&format!(
        "MountVolume.MountDevice failed for volume \"pv-later\" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name {NAME} not found in the list of registered CSI drivers"
    ))
    .await;
    let served = driver.serve(&registry(node));
    node.wait("early", "ready", is_ready).await;
    node.delete("early").await;
    assert_clean(node, &served.driver);

    // A Node that was deleted is made again, and told of them again.
    let before = node.api.client().all::<ApiNode>().get(&node.name).await.unwrap().metadata.uid;
    node.api.client().all::<ApiNode>().delete(&node.name, &DeleteParams::default()).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    loop {
        let own: Option<ApiNode> = node.api.client().all().get_opt(&node.name).await.unwrap();
        let found: Option<CSINode> = node.api.client().all().get_opt(&node.name).await.unwrap();
        let meta = own.map(|own| own.metadata).filter(|meta| meta.uid != before).unwrap_or_default();
        let noted = meta.annotations.unwrap_or_default().remove("csi.volume.kubernetes.io/nodeid").unwrap_or_default();
        let is_told = [NAME, "other.example.com"].iter().all(|name| noted.contains(name))
            && meta.labels.unwrap_or_default().contains_key(&format!("{NAME}/zone"));
        let owners = found.as_ref().and_then(|found| found.metadata.owner_references.clone()).unwrap_or_default();
        let is_owned = owners.iter().any(|owner| Some(&owner.uid) == meta.uid.as_ref());
        let drivers = found.map_or(0, |found| found.spec.drivers.len());
        if is_told && is_owned && drivers == 2 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{noted} {owners:?} {drivers}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(other);
}

/// A driver leaves while the API refuses to hear of it, and another of its name comes: in the end the API has those that are there.
pub(crate) async fn the_api_hears_of_drivers_in_the_end(node: &mut Node) {
    let first = driver(node, Options::new(NAME), json!({})).await;
    claim(node, "data", NAME, json!({})).await;
    set_refused(node, true).await;
    first.leave();
    node.create("early", using("data", "sleep 1000")).await;
    node.wait_message(&format!(
        "MountVolume.MountDevice failed for volume \"pv-data\" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name {NAME} not found in the list of registered CSI drivers"
    ))
    .await;
    assert_eq!(drivers_of(node).await, [NAME], "nothing can be changed");
    set_refused(node, false).await;
    wait_registered(node, NAME, false).await;

    let options = |id: &str| Options { node_id: id.into(), ..Options::new(NAME) };
    let second = Driver::new(&node.dir.path().join("second"), options("second")).serve(&registry(node));
    node.wait("early", "ready", is_ready).await;
    node.delete("early").await;
    assert_clean(node, &second.driver);
    set_refused(node, true).await;
    second.leave();
    let third = Driver::new(&node.dir.path().join("the third"), options("third")).serve(&registry(node));
    node.wait_event("the third is not heard of", |event| {
        event.reason.as_deref() == Some("FailedPluginRegistration")
            && event.message.as_deref().is_some_and(|message| message.contains("error updating CSINode"))
    })
    .await;
    set_refused(node, false).await;
    let is_third = async || {
        let found: CSINode = node.api.client().all().get(&node.name).await.unwrap();
        found.spec.drivers.iter().any(|driver| driver.name == NAME && driver.node_id == "third")
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while !is_third().await {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", node.messages().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Whoever takes out the one before has tried again by then.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(is_third().await);
    drop(third);
}

/// Whether the API refuses all changes of CSINodes from now on.
async fn set_refused(node: &Node, refused: bool) {
    const NAME: &str = "no-changes";
    let client = node.api.client();
    let group = "admissionregistration.k8s.io";
    let kind = |plural: &'static str| client.dynamic(&Gvr::new(group, "v1", plural), None);
    let (policies, bindings) = (kind("validatingadmissionpolicies"), kind("validatingadmissionpolicybindings"));
    let (version, meta) = (format!("{group}/v1"), json!({"name": NAME}));
    let object = |kind: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec});
    if refused {
        let rules = json!([{
            "apiGroups": ["storage.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["csinodes"],
        }]);
        let policy = json!({"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "false"}]});
        let binding = json!({"policyName": NAME, "validationActions": ["Deny"]});
        policies.create(&object("ValidatingAdmissionPolicy", policy)).await.unwrap();
        bindings.create(&object("ValidatingAdmissionPolicyBinding", binding)).await.unwrap();
    } else {
        bindings.delete(NAME, &DeleteParams::default()).await.unwrap();
        policies.delete(NAME, &DeleteParams::default()).await.unwrap();
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    for number in 0.. {
        let note = Patch::merge(json!({"metadata": {"annotations": {"tried": format!("{refused} {number}")}}}));
        if client.all::<CSINode>().patch(&node.name, &note).await.is_err() == refused {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "refused: {refused}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Drivers that refuse, lose answers and never answer: their pods wait, are told why, and nobody else's do.
pub(crate) async fn security_drivers_that_fail_hold_up_only_their_pods(node: &mut Node) {
    node.stop_kubelet().await;
    node.start_kubelet_with(|settings| settings.volume_call_timeout = Duration::from_secs(5));
    let served = driver(node, Options::new(NAME), json!({})).await;
    let bad = &served.driver;
    let good = Options { topology: Default::default(), ..Options::new("good.example.com") };
    let good = driver(node, good, json!({})).await;
    for name in ["refused", "lost", "hung"] {
        claim(node, name, NAME, json!({})).await;
    }
    claim(node, "fine", "good.example.com", json!({})).await;

    bad.set_fault("NodeStageVolume", Some(Fault::Refuse(Code::InvalidArgument, "no such pool".into())));
    node.create("refused", using("refused", "sleep 1000")).await;
    node.wait_message(
        "MountVolume.MountDevice failed for volume \"pv-refused\" : rpc error: code = InvalidArgument desc = no such pool",
    )
    .await;
    bad.set_fault("NodeStageVolume", None);
    node.wait("refused", "ready", is_ready).await;

    bad.set_fault("NodePublishVolume", Some(Fault::LoseAnswer));
    node.create("lost", using("lost", "sleep 1000")).await;
    node.wait_until("asked a second time", || bad.count("NodePublishVolume", "handle-lost") > 1).await;
    bad.set_fault("NodePublishVolume", None);
    node.wait("lost", "ready", is_ready).await;
    let target = bad.publishes().into_iter().rfind(|request| request.volume_id == "handle-lost").unwrap().target_path;
    assert_eq!(mounts_at(Path::new(&target)), 1);

    bad.set_fault("NodePublishVolume", Some(Fault::Hang));
    node.create("hung", using("hung", "sleep 1000")).await;
    node.wait_until("the driver hangs", || bad.count("NodePublishVolume", "handle-hung") > 0).await;
    node.create("fine", using("fine", "sleep 1000")).await;
    node.wait("fine", "ready", is_ready).await;
    node.wait_event("the driver's silence", |event| {
        let message = event.message.as_deref().unwrap_or_default();
        message.starts_with("MountVolume.SetUp failed for volume \"pv-hung\" : rpc error: code = DeadlineExceeded")
            || message.starts_with("MountVolume.SetUp failed for volume \"pv-hung\" : rpc error: code = Canceled")
    })
    .await;
    // A pod that ends while the driver hangs ends once the driver answers, and leaves nothing.
    bad.set_fault("NodeUnpublishVolume", Some(Fault::Hang));
    let pods = node.api.client().namespaced::<Pod>("default");
    pods.delete("hung", &DeleteParams::default().with_grace_period(1)).await.unwrap();
    node.wait_until("unpublish hangs", || bad.count("NodeUnpublishVolume", "handle-hung") > 0).await;
    node.delete("fine").await;
    bad.set_fault("NodePublishVolume", None);
    bad.set_fault("NodeUnpublishVolume", None);
    node.wait_gone("hung").await;
    for name in ["refused", "lost"] {
        node.delete(name).await;
    }
    assert_clean(node, bad);
    assert_clean(node, &good.driver);
}

/// A critical pod that takes the place of another one may be the driver that the other's volume needs to go.
pub(crate) async fn a_critical_pod_waits_for_no_volume(node: &mut Node) {
    let served = driver(node, Options::new(NAME), json!({})).await;
    let driver = &served.driver;
    claim(node, "data", NAME, json!({})).await;
    node.port().await;
    let own: ApiNode = node.api.client().all().get(&node.name).await.unwrap();
    let whole = own.status.unwrap().allocatable.unwrap()["cpu"].0.clone();
    let all = |mut spec: Value| {
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": whole}});
        spec
    };
    node.create("lesser", all(using("data", "sleep 1000"))).await;
    node.wait("lesser", "ready", is_ready).await;
    driver.set_fault("NodeUnpublishVolume", Some(Fault::Refuse(Code::Internal, "not yet".into())));
    let needed = json!({
        "containers": [{"name": "c", "command": shell("sleep 1000")}],
        "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 0,
    });
    node.create("needed", all(needed)).await;
    node.wait("needed", "ready", is_ready).await;
    driver.set_fault("NodeUnpublishVolume", None);
    for name in ["lesser", "needed"] {
        node.delete(name).await;
    }
    assert_clean(node, driver);
}

/// A driver that publishes a volume when its caller has given up and the pod is gone: the next kubelet starts, the volume can be
/// had by another pod, and what came too late goes.
pub(crate) async fn security_volumes_published_late_hold_up_nobody(node: &mut Node) {
    let brief = |settings: &mut kubelet::Settings| settings.volume_call_timeout = Duration::from_secs(2);
    node.stop_kubelet().await;
    node.start_kubelet_with(brief);
    let mut options = Options::new(NAME);
    options.abilities.retain(|ability| *ability != NodeRpc::StageUnstageVolume);
    let served = driver(node, options, json!({})).await;
    let driver = &served.driver;
    claim(node, "late", NAME, json!({"accessModes": ["ReadWriteOncePod"]})).await;
    driver.set_fault("NodePublishVolume", Some(Fault::Late));
    node.create("first", using("late", "sleep 1000")).await;
    node.wait_until("the driver is asked", || driver.count("NodePublishVolume", "handle-late") > 0).await;
    let first = node.pod("first").await.unwrap();
    node.delete("first").await;
    let place = node.dir.path().join("kubelet/pods").join(uid(&first));
    node.wait_until("all of it is undone", || !place.exists()).await;
    driver.set_fault("NodePublishVolume", None);
    node.stop_kubelet().await;
    assert!(driver.catch_up() > 0);
    assert_eq!(mounts_at(&place.join("volumes/kubernetes.io~csi/pv-late/mount")), 1);
    node.start_kubelet_with(brief);
    node.create("second", using("late", "sleep 1000")).await;
    node.wait("second", "ready", is_ready).await;
    node.wait_until("what came late is gone", || !place.exists()).await;
    node.delete("second").await;
    assert_clean(node, driver);
}

/// A driver that stages a volume when its caller has given up and the pod is gone: it is unstaged again, also by the next kubelet.
pub(crate) async fn volumes_staged_late_do_not_stay(node: &mut Node) {
    let brief = |settings: &mut kubelet::Settings| settings.volume_call_timeout = Duration::from_secs(2);
    node.stop_kubelet().await;
    node.start_kubelet_with(brief);
    let served = driver(node, Options::new(NAME), json!({})).await;
    let driver = &served.driver;
    for (name, is_restarted) in [("late", false), ("later", true)] {
        claim(node, name, NAME, json!({})).await;
        let handle = format!("handle-{name}");
        driver.set_fault("NodeStageVolume", Some(Fault::Late));
        node.create(name, using(name, "sleep 1000")).await;
        node.wait_until("the driver is asked", || driver.count("NodeStageVolume", &handle) > 0).await;
        node.delete(name).await;
        driver.set_fault("NodeStageVolume", None);
        let stage = driver.stages().into_iter().rfind(|request| request.volume_id == handle).unwrap();
        let staging = Path::new(&stage.staging_target_path);
        assert!(!staging.exists(), "all of it is undone");
        if is_restarted {
            node.stop_kubelet().await;
        }
        assert!(driver.catch_up() > 0);
        assert_eq!(mounts_at(staging), 1);
        if is_restarted {
            node.start_kubelet_with(brief);
        }
        node.wait_until("what came late is unstaged", || mounts_at(staging) == 0).await;
    }
    assert_clean(node, driver);
}

/// A record that is damaged for good: the next kubelet starts and says which one it is, its volume stays as it is, and other pods
/// go on.
pub(crate) async fn security_damaged_records_hold_up_their_own_pods(node: &mut Node) {
    let served = driver(node, Options::new(NAME), json!({})).await;
    let driver = &served.driver;
    for name in ["one", "two"] {
        claim(node, name, NAME, json!({})).await;
        node.create(name, using(name, "sleep 1000")).await;
        node.wait(name, "ready", is_ready).await;
    }
    let one = node.pod("one").await.unwrap();
    let place = node.dir.path().join("kubelet/pods").join(uid(&one)).join("volumes/kubernetes.io~csi/pv-one");
    let record = place.join("vol_data.json");
    let whole = std::fs::read(&record).unwrap();
    node.stop_kubelet().await;
    std::fs::write(&record, "{").unwrap();
    node.start_kubelet();
    let path = record.display().to_string();
    let is_told = |event: &Event, reason: &str| {
        event.reason.as_deref() == Some(reason)
            && event.message.as_deref().is_some_and(|message| message.contains(&path) && message.contains("mended"))
    };
    node.wait_event("the damaged record", |event| is_told(event, "UnreadableVolumeRecord")).await;
    node.delete("two").await;
    claim(node, "three", NAME, json!({})).await;
    node.create("three", using("three", "sleep 1000")).await;
    node.wait("three", "ready", is_ready).await;
    let pods = node.api.client().namespaced::<Pod>("default");
    pods.delete("one", &DeleteParams::default().with_grace_period(1)).await.unwrap();
    node.wait_event("what the pod waits for", |event| is_told(event, "FailedKillPod")).await;
    assert_eq!((driver.count("NodeUnpublishVolume", "handle-one"), mounts_at(&place.join("mount"))), (0, 1));
    std::fs::write(&record, whole).unwrap();
    node.wait_gone("one").await;
    node.delete("three").await;
    assert_clean(node, driver);
}

/// Plug-ins with another's name, another name than their own, a path for a name, no version of ours, or no answer.
pub(crate) async fn security_plugins_that_lie_are_refused(node: &mut Node) {
    let first = driver(node, Options::new(NAME), json!({})).await;
    let place = |number: usize| node.dir.path().join(format!("liar{}", "x".repeat(number)));
    let mut liars = Vec::new();
    for (number, (options, why)) in [
        (
            Options::new(NAME),
            "Another driver with the same name is already registered with a higher supported version: \"1.0.0\"",
        ),
        (
            Options { registers_as: Some("../../../etc".into()), ..Options::new("a.example.com") },
            "invalid driver name \"../../../etc\"",
        ),
        (
            Options { registers_as: Some("somebody.else".into()), ..Options::new("b.example.com") },
            "plugin registered as \"somebody.else\", but calls itself \"b.example.com\"",
        ),
        (
            Options { versions: vec!["0.3.0".into()], ..Options::new("c.example.com") },
            "None of the versions specified [\"0.3.0\"] are supported",
        ),
        (Options { node_id: String::new(), ..Options::new("d.example.com") }, "nodeID must not be empty"),
        (Options { max_volumes: -5, ..Options::new("e.example.com") }, "invalid volume limit -5"),
        (
            Options {
                topology: [(format!("{NAME}/zone"), "elsewhere".to_string())].into(),
                ..Options::new("f.example.com")
            },
            "detected topology value collision",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let liar = Driver::new(&place(number), options).serve(&registry(node));
        let path = liar.socket.display().to_string();
        node.wait_event(why, |event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some("FailedPluginRegistration")
                && message.contains(&path)
                && message.contains(why)
        })
        .await;
        node.wait_until("told so", || {
            liar.driver.registrations().iter().any(|status| !status.plugin_registered && status.error.contains(why))
        })
        .await;
        liars.push((path, liar));
    }
    let silent = Driver::new(&place(20), Options::new("g.example.com"));
    silent.set_fault("GetInfo", Some(Fault::Hang));
    let silent = silent.serve(&registry(node));
    let garbage = registry(node).join("garbage.sock");
    let talks = tokio::spawn(talk_garbage(tokio::net::UnixListener::bind(&garbage).unwrap()));
    let late =
        self::driver(node, Options { topology: Default::default(), ..Options::new("late.example.com") }, json!({}))
            .await;
    assert_eq!(drivers_of(node).await, [NAME, "late.example.com"], "liars are not there, and hold up nobody");
    node.wait_event("silence is told", |event| {
        event.message.as_deref().is_some_and(|message| message.contains(&*silent.socket.to_string_lossy()))
    })
    .await;
    let garbage = garbage.display().to_string();
    node.wait_event("garbage is told", |event| {
        event.message.as_deref().is_some_and(|message| message.contains(&garbage))
    })
    .await;
    for path in liars.iter().map(|(path, _)| path).chain([&garbage]) {
        let events = node.api.events().await;
        let told = events.iter().filter(|event| event.message.as_deref().is_some_and(|message| message.contains(path)));
        assert_eq!(told.count(), 1, "one event for {path}");
    }
    talks.abort();
    drop((first, late));
}

/// Answers whoever connects with what is no protocol at all.
async fn talk_garbage(listener: tokio::net::UnixListener) {
    use tokio::io::AsyncWriteExt;
    while let Ok((mut stream, _)) = listener.accept().await {
        // They may have hung up already.
        let _ = stream.write_all(&[0x5a; 4096]).await;
    }
}
