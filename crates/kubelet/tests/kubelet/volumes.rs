//! Volumes and environments: what containers see of the API.

use std::time::Duration;

use client::Patch;
use k8s_openapi::api::core::v1::{ConfigMap, Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use serde_json::json;

use crate::csi::using;
use crate::csi_kills::wait_grown;
use crate::node::{Node, is_ready, phase, restarts, shell, waiting_message, waiting_reason};

pub(crate) async fn volumes_show_objects_and_follow_them(node: &mut Node) {
    let client = node.api.client();
    let map = |text: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "map"}, "data": {"key": text, "other": "x"}})).unwrap()
    };
    client.namespaced::<ConfigMap>("default").create(&map("one")).await.unwrap();
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "secret"}, "data": {"word": "aGlkZGVu"}})).unwrap();
    client.namespaced::<Secret>("default").create(&secret).await.unwrap();
    let script = "stat -Lc %a /map/key /secret/word; stat -Lc %g /map/key; cat /map/key /secret/word /all/name /env-dir/sub; echo; grep -c . /all/token /var/run/secrets/kubernetes.io/serviceaccount/token; \
        stat -c %a /empty; mount | grep -c 'memory type tmpfs'; echo $FROM_MAP $FROM_SECRET $EXPANDED $FROM_IMAGE; id -G; \
        until grep -q two /map/key; do sleep 0.1; done; echo updated; sleep 1000";
    node.create(
        "volumes",
        json!({
            "securityContext": {"fsGroup": 1001},
            "containers": [{
                "name": "c",
                "command": shell(script),
                "env": [
                    {"name": "FROM_MAP", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "key"}}},
                    {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}},
                    {"name": "EXPANDED", "value": "$(FROM_MAP)-$$(X)"},
                    {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "volumeMounts": [
                    {"name": "map", "mountPath": "/map"},
                    {"name": "secret", "mountPath": "/secret"},
                    {"name": "all", "mountPath": "/all"},
                    {"name": "empty", "mountPath": "/empty"},
                    {"name": "memory", "mountPath": "/memory"},
                    {"name": "map", "mountPath": "/env-dir/sub", "subPath": "other"},
                    {"name": "empty", "mountPath": "/expr", "subPathExpr": "$(NAME)/deep"},
                ],
            }],
            "volumes": [
                {"name": "map", "configMap": {"name": "map", "defaultMode": 256}},
                {"name": "secret", "secret": {"secretName": "secret"}},
                {"name": "empty", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "all", "projected": {"sources": [
                    {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    {"serviceAccountToken": {"path": "token"}},
                ]}},
            ],
        }),
    )
    .await;
    let pod = node.wait("volumes", "ready", is_ready).await;
    let expected = "440\n644\n1001\nonehiddenvolumesx\n/all/token:1\n/var/run/secrets/kubernetes.io/serviceaccount/token:1\n2777\n1\none hidden one-$(X) yes\n0 1001\n";
    let log = node.wait_log(&pod, "c", |log| log.lines().count() >= 10).await;
    assert_eq!(log, expected);
    client
        .namespaced::<ConfigMap>("default")
        .patch("map", &Patch::merge(json!({"data": {"key": "two"}})))
        .await
        .unwrap();
    node.wait_log(&pod, "c", |log| log.ends_with("updated\n")).await;
}

/// Modes, owners, nested paths, optional sources that come and go, labels that change.
pub(crate) async fn files_have_their_modes_and_follow_changes(node: &mut Node) {
    let client = node.api.client();
    let map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "map"}, "data": {"data-1": "one", "data-2": "two"}, "binaryData": {"bytes": "/wAB"},
    }))
    .unwrap();
    client.namespaced::<ConfigMap>("default").create(&map).await.unwrap();
    let script = "stat -Lc '%a %u:%g' /map/path/to/data-2 /map/data-1 /secretive/later 2>&1; od -An -tx1 /all/bytes; cat /pod/labels; echo; \
        cat /pod/limit; echo; until test -e /maybe/k; do sleep 0.1; done; cat /maybe/k; echo; until ! test -e /maybe/k; do sleep 0.1; done; echo gone; \
        until grep -q changed /pod/labels; do sleep 0.1; done; echo relabelled; sleep 1000";
    node.create(
        "files",
        json!({
            "securityContext": {"fsGroup": 1001},
            "containers": [{"name": "c", "command": shell(script), "securityContext": {"runAsUser": 1000},
                "resources": {"limits": {"memory": "64Mi"}},
                "volumeMounts": [
                    {"name": "map", "mountPath": "/map"}, {"name": "all", "mountPath": "/all"}, {"name": "pod", "mountPath": "/pod"},
                    {"name": "maybe", "mountPath": "/maybe"}, {"name": "maybe", "mountPath": "/secretive"}]}],
            "volumes": [
                {"name": "map", "configMap": {"name": "map", "defaultMode": 0o400, "items": [
                    {"key": "data-2", "path": "path/to/data-2", "mode": 0o440}, {"key": "data-1", "path": "data-1"}]}},
                {"name": "all", "projected": {"sources": [{"configMap": {"name": "map"}}]}},
                {"name": "pod", "downwardAPI": {"items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "limit", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory"}}]}},
                {"name": "maybe", "configMap": {"name": "maybe", "optional": true}},
            ],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    let pods = client.namespaced::<Pod>("default");
    let pod = node.wait("files", "ready", is_ready).await;
    let expected = "440 0:1001\n440 0:1001\nstat: can't stat '/secretive/later': No such file or directory\n ff 00 01\n\n67108864\n";
    node.wait_log(&pod, "c", |log| log.lines().count() >= 6).await;
    assert_eq!(node.container_log(&pod, "c"), expected);
    let maybe: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "maybe"}, "data": {"k": "here"}})).unwrap();
    client.namespaced::<ConfigMap>("default").create(&maybe).await.unwrap();
    node.wait_log(&pod, "c", |log| log.ends_with("here\n")).await;
    client.namespaced::<ConfigMap>("default").delete("maybe", &Default::default()).await.unwrap();
    node.wait_log(&pod, "c", |log| log.ends_with("gone\n")).await;
    pods.patch("files", &Patch::merge(json!({"metadata": {"labels": {"state": "changed"}}}))).await.unwrap();
    node.wait_log(&pod, "c", |log| log.ends_with("relabelled\n")).await;
}

/// emptyDir on disk and in memory, host paths, claims, and one file of a volume over a file of the image.
pub(crate) async fn directories_of_all_kinds(node: &mut Node) {
    let client = node.api.client();
    let host = node.dir.path().join("host");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("file"), "from the node\n").unwrap();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": "777"}},
        "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": host}, "claimRef": {"namespace": "default", "name": "claim"}},
    }))
    .unwrap();
    client.all::<PersistentVolume>().create(&volume).await.unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "claim"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv", "resources": {"requests": {"storage": "1Mi"}}},
    }))
    .unwrap();
    client.namespaced("default").create(&claim).await.unwrap();
    let script = "id -G | tr ' ' '\\n' | grep -cx 777; stat -c %a /disk /memory; df -k /memory | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2; cat /claim/file; cat /etc/resolv.conf; \
        echo made > /made/by-pod; touch /ro/x 2>/dev/null || echo read-only; ln /etc/hosts /disk/hosts 2>/dev/null || echo no link; sleep 1000";
    let made = node.dir.path().join("made");
    node.create(
        "dirs",
        json!({
            "containers": [{"name": "c", "command": shell(script), "volumeMounts": [
                {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
                {"name": "claim", "mountPath": "/claim"}, {"name": "claim", "mountPath": "/etc/resolv.conf", "subPath": "file"},
                {"name": "made", "mountPath": "/made"}, {"name": "made", "mountPath": "/ro", "readOnly": true}]}],
            "volumes": [
                {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "made", "hostPath": {"path": made, "type": "DirectoryOrCreate"}},
                // Of which no container wants to know.
                {"name": "unused", "configMap": {"name": "nowhere"}},
                {"name": "unclaimed", "persistentVolumeClaim": {"claimName": "nowhere"}}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    // Nothing is shown of a volume that is not the claim's yet.
    node.wait_message(
        "Unable to attach or mount volumes: unmounted volumes=[claim], unattached volumes=[], failed to process volumes=[claim]: error processing PVC default/claim: PVC is not bound",
    )
    .await;
    node.bind("claim", "pv").await;
    let pod = node.wait("dirs", "ready", is_ready).await;
    let log = node.wait_log(&pod, "c", |log| log.ends_with("no link\n")).await;
    assert_eq!(log, "1\n777\n777\n1024\nfrom the node\nfrom the node\nread-only\nno link\n");
    assert_eq!(std::fs::read_to_string(made.join("by-pod")).unwrap(), "made\n");
    let mounts = pod.status.unwrap().container_statuses.unwrap()[0].volume_mounts.clone().unwrap();
    let read_only = mounts.iter().find(|mount| mount.mount_path == "/ro").unwrap();
    assert_eq!(read_only.recursive_read_only.as_deref(), Some("Disabled"));

    // A disk that this node cannot reach: the pod waits, an event says what for, and the pod can go.
    node.create(
        "disk",
        json!({
            "containers": [{"name": "c", "command": shell("sleep 1000"), "volumeMounts": [{"name": "far", "mountPath": "/far"}]}],
            "volumes": [{"name": "far", "iscsi": {"targetPortal": "127.255.255.254", "iqn": "iqn.2026-01.org.example:a", "lun": 0}}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    // The node says that it is about to use the disk, and waits until it is told that it may.
    let unique = "kubernetes.io/iscsi/127.255.255.254:iqn.2026-01.org.example:a:0";
    let nodes = node.api.client().all::<ApiNode>();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    loop {
        let status = nodes.get(&node.name).await.unwrap().status.unwrap();
        if status.volumes_in_use.iter().flatten().any(|name| name == unique) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{:?}", status.volumes_in_use);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let reported = json!({"status": {"volumesAttached": [{"name": unique, "devicePath": ""}]}});
    nodes.patch_status(&node.name, &Patch::merge(reported)).await.unwrap();
    node.wait_event("the disk is not there", |event| {
        let message = event.message.as_deref().unwrap_or_default();
        event.reason.as_deref() == Some("FailedMount")
            && message.starts_with("MountVolume.WaitForAttach failed for volume \"far\" : ")
            && (message.ends_with("open-iscsi for iSCSI volumes") || message.contains("iscsi: "))
    })
    .await;
    node.delete("disk").await;
    let taken_back = json!({"status": {"volumesAttached": null}});
    nodes.patch_status(&node.name, &Patch::merge(taken_back)).await.unwrap();
}

/// A local volume is there for its node alone, however its pod came here, and its claim hears that it has grown.
pub(crate) async fn local_volumes_are_of_their_node_and_grow(node: &mut Node) {
    let client = node.api.client();
    let claims = client.namespaced::<PersistentVolumeClaim>("default");
    node.port().await;
    let shelf = |value: Option<&str>| Patch::merge(json!({"metadata": {"labels": {"shelf": value}}}));
    client.all::<ApiNode>().patch(&node.name, &shelf(Some("a"))).await.unwrap();
    for (name, operator) in [("near", "In"), ("far", "NotIn")] {
        let path = node.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let nodes = json!({"key": "shelf", "operator": operator, "values": ["a"]});
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": format!("pv-{name}")},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": path},
                "claimRef": {"namespace": "default", "name": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [nodes]}]}}},
        }))
        .unwrap();
        client.all::<PersistentVolume>().create(&volume).await.unwrap();
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": format!("pv-{name}"),
                "resources": {"requests": {"storage": "1Mi"}}},
        }))
        .unwrap();
        claims.create(&claim).await.unwrap();
        claims.patch_status(name, &Patch::merge(json!({"status": {"capacity": {"storage": "1Mi"}}}))).await.unwrap();
        node.bind(name, &format!("pv-{name}")).await;
        node.create(name, using(name, "until test -e /v/again; do sleep 0.1; done; rm /v/again")).await;
    }
    let why = "MountVolume.NodeAffinity check failed for volume \"pv-far\" : no matching NodeSelectorTerms";
    node.wait_message(why).await;
    node.wait("near", "ready", is_ready).await;
    let pending = json!({"status": {
        "allocatedResources": {"storage": "2Mi"}, "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }});
    claims.patch_status("near", &Patch::merge(pending)).await.unwrap();
    let larger = json!({"spec": {"capacity": {"storage": "2Mi"}}});
    client.all::<PersistentVolume>().patch("pv-near", &Patch::merge(larger)).await.unwrap();
    let look = json!({"metadata": {"labels": {"look": "once"}}});
    client.namespaced::<Pod>("default").patch("near", &Patch::merge(look)).await.unwrap();
    wait_grown(node, "near", "2Mi").await;
    node.wait_message(&format!("MountVolume.NodeExpandVolume succeeded for volume \"pv-near\" {}", node.name)).await;
    // What a pod has it keeps, although the node is another one by now, and whichever kubelet looks after it.
    client.all::<ApiNode>().patch(&node.name, &shelf(None)).await.unwrap();
    node.stop_kubelet().await;
    node.start_kubelet();
    std::fs::write(node.dir.path().join("near/again"), "").unwrap();
    node.wait("near", "ready with another container", |pod| is_ready(pod) && restarts(pod) == 1).await;
    let refused = why.replace("pv-far", "pv-near");
    assert!(!node.messages().await.iter().any(|message| message.contains(&refused)), "{:?}", node.messages().await);
    for name in ["near", "far"] {
        node.delete(name).await;
    }
}

/// A path made from a variable is looked at anew at each try: an annotation can mend it.
pub(crate) async fn sub_paths_are_expanded_at_each_try(node: &mut Node) {
    node.create(
        "mended",
        json!({
            "containers": [{"name": "c", "command": shell("test -d /all/good/path && sleep 1000"),
                "env": [{"name": "SUB", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['sub']"}}}],
                "volumeMounts": [{"name": "v", "mountPath": "/one", "subPathExpr": "$(SUB)"}, {"name": "v", "mountPath": "/all"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    let pods = node.api.client().namespaced::<Pod>("default");
    let annotate = |value: &str| Patch::merge(json!({"metadata": {"annotations": {"sub": value}}}));
    let told = |message: &'static str| move |pod: &Pod| waiting_message(pod).as_deref() == Some(message);
    node.wait("mended", "missing", told("missing value for SUB")).await;
    pods.patch("mended", &annotate("/etc")).await.unwrap();
    node.wait("mended", "absolute", told("error SubPath `/etc` must not be an absolute path")).await;
    pods.patch("mended", &annotate("../..")).await.unwrap();
    let pod =
        node.wait("mended", "backwards", told("unable to provision SubPath `../..`: must not contain '..'")).await;
    assert_eq!(waiting_reason(&pod).as_deref(), Some("CreateContainerConfigError"));
    pods.patch("mended", &annotate("good/path")).await.unwrap();
    node.wait("mended", "ready", is_ready).await;
}

/// More on disk than allowed: the pod goes.
pub(crate) async fn full_directories_end_their_pod(node: &mut Node) {
    node.create(
        "full",
        json!({
            "containers": [{"name": "c", "command": shell("dd if=/dev/zero of=/cache/x bs=1k count=64; sleep 1000"),
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
            "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "32Ki"}}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    let status = node.wait("full", "evicted", |pod| phase(pod) == "Failed").await.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(status.message.as_deref(), Some("Usage of EmptyDir volume \"cache\" exceeds the limit \"32Ki\". "));
}

/// A container that can write to a volume cannot lead the node out of it: links in a subPath go nowhere (CVE-2017-1002101),
/// and a hard link to a file of the node cannot be made.
pub(crate) async fn sub_paths_stay_in_their_volume(node: &mut Node) {
    let script = "ln -s / /v/link; mkdir /v/dir; ln -s ../../../../../../etc /v/dir/up; \
        for pid in /proc/[0-9]*; do ln $pid/exe /v/hard 2>/dev/null && echo linked; done; ln /etc/hosts /v/hosts 2>/dev/null && echo linked; true";
    let mount =
        |path: &str| json!([{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/out", "subPath": path}]);
    let container = |name: &str, path: &str| json!({"name": name, "command": shell("ls /out; sleep 1000"), "volumeMounts": mount(path)});
    node.create(
        "leaving",
        json!({
            "initContainers": [{"name": "init", "image": crate::image::NAME, "command": shell(script),
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "containers": [container("root", "link"), container("up", "dir/up"), container("inside", "dir")],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 0,
        }),
    )
    .await;
    let pod = node
        .wait("leaving", "half started", |pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let state = |name: &str| statuses.clone().find(|status| status.name == name)?.state.clone();
            let is_refused = |name: &str| {
                let waiting = state(name).and_then(|state| state.waiting);
                waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CreateContainerConfigError"))
            };
            is_refused("root") && is_refused("up") && state("inside").is_some_and(|state| state.running.is_some())
        })
        .await;
    assert_eq!(node.container_log(&pod, "init"), "", "no hard link was made");
    let statuses = pod.status.unwrap().container_statuses.unwrap();
    let root = statuses.iter().find(|status| status.name == "root").unwrap();
    let waiting = root.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(
        waiting.message.as_deref(),
        Some("failed to prepare subPath for volumeMount \"v\" of container \"root\"")
    );
}

/// A container swaps a directory of a volume for a link out of it while others start with what is beneath as their subPath
/// (CVE-2021-25741, CVE-2017-1002101): whichever it is at that moment, none of them ever sees a file of the node.
pub(crate) async fn races_for_a_sub_path_are_not_won(node: &mut Node) {
    const VICTIMS: usize = 12;
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(outside.path().join("target")).unwrap();
    std::fs::write(outside.path().join("target/secret"), "outside\n").unwrap();
    let link = format!("ln -s {} /v/link", outside.path().display());
    // Whatever the node makes anew in between is cleared away; the end is a directory.
    let attack = format!(
        "mkdir -p /v/swap/target; echo inside > /v/swap/target/secret; i=0; while [ $i -lt 400 ]; do i=$((i+1)); \
         [ -L /v/link ] || {{ rm -rf /v/link; {link}; }}; mv /v/swap /v/aside; mv /v/link /v/swap; \
         mv /v/swap /v/link; rm -rf /v/swap; mv /v/aside /v/swap; done 2>/dev/null"
    );
    let victim = |number: usize| {
        json!({"name": format!("victim-{number}"), "command": shell("cat /out/secret"),
            "volumeMounts": [{"name": "v", "mountPath": "/out", "subPath": "swap/target"}]})
    };
    let attacker =
        json!({"name": "attacker", "command": shell(&attack), "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let containers: Vec<_> = std::iter::once(attacker).chain((0..VICTIMS).map(victim)).collect();
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let spec = json!({"containers": containers, "volumes": volumes, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0});
    node.create("racing", spec).await;
    // Each was started or refused.
    let pod = node
        .wait("racing", "tried", |pod| {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let tried = statuses.filter_map(|status| status.state.as_ref()).filter(|state| {
                let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
                state.terminated.is_some() || waiting.is_some_and(|reason| reason != "ContainerCreating")
            });
            tried.count() == 1 + VICTIMS
        })
        .await;
    for number in 0..VICTIMS {
        let seen = node.container_log(&pod, &format!("victim-{number}"));
        assert!(!seen.contains("outside"), "victim {number} saw {seen:?}");
    }
    let secret = std::fs::read_to_string(outside.path().join("target/secret")).unwrap();
    assert_eq!(secret, "outside\n", "nor is it touched");
}
