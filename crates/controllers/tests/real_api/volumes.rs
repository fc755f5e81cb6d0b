//! Claims, volumes and their classes: binding, letting go, growing, and who may be deleted.

use client::{DeleteParams, Patch};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use serde_json::{Value, json};

use crate::harness::{Cluster, patiently};

fn phase_is<'a>(wanted: &'a str) -> impl Fn(&PersistentVolumeClaim) -> bool + 'a {
    move |claim| claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(wanted)
}

fn volume_is<'a>(wanted: &'a str) -> impl Fn(&PersistentVolume) -> bool + 'a {
    move |volume| volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(wanted)
}

async fn claim(cluster: &Cluster, name: &str, spec: Value) {
    let mut wanted = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    for (key, value) in spec.as_object().unwrap() {
        wanted[key] = value.clone();
    }
    cluster
        .apply::<PersistentVolumeClaim>(json!({ "metadata": { "name": name, "namespace": "default" }, "spec": wanted }))
        .await;
}

async fn volume(cluster: &Cluster, name: &str, annotations: Value, spec: Value) {
    let mut wanted = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "persistentVolumeReclaimPolicy": "Retain",
        "csi": { "driver": "csi.example", "volumeHandle": name },
    });
    for (key, value) in spec.as_object().unwrap() {
        wanted[key] = value.clone();
    }
    let meta = json!({ "name": name, "annotations": annotations });
    cluster.apply::<PersistentVolume>(json!({ "metadata": meta, "spec": wanted })).await;
}

async fn class(cluster: &Cluster, name: &str, mode: &str) {
    cluster
        .apply::<StorageClass>(json!({
            "metadata": { "name": name }, "provisioner": "csi.example", "volumeBindingMode": mode,
            "allowVolumeExpansion": true,
        }))
        .await;
}

async fn until_told(cluster: &Cluster, about: &str, reason: &str, text: &str) -> Event {
    let found = patiently(async || {
        let events = cluster.list::<Event>("default").await;
        events.into_iter().find(|event| {
            event.involved_object.name.as_deref() == Some(about)
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|message| message.contains(text))
        })
    });
    found.await.unwrap_or_else(|| panic!("{about} is never told {reason}"))
}

/// The whole way with a provisioner that is not ours: its name on the claim, its volume, growth, and the volume's release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_served_by_an_external_provisioner() {
    let cluster = Cluster::start(0).await;
    class(&cluster, "disks", "WaitForFirstConsumer").await;
    claim(&cluster, "data", json!({ "storageClassName": "disks" })).await;
    until_told(&cluster, "data", "WaitForFirstConsumer", "waiting for first consumer").await;
    cluster
        .apply::<Pod>(json!({
            "metadata": { "name": "p", "namespace": "default" },
            "spec": {
                "schedulerName": "nobody", "containers": [{ "name": "c", "image": "i" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        }))
        .await;
    until_told(&cluster, "data", "WaitForPodScheduled", "waiting for pod p to be scheduled").await;
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    let chosen = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n" } } });
    claims.patch("data", &Patch::merge(chosen)).await.unwrap();
    let noted = |claim: &PersistentVolumeClaim| {
        let annotations = claim.metadata.annotations.clone().unwrap_or_default();
        annotations.get("volume.kubernetes.io/storage-provisioner").is_some_and(|name| name == "csi.example")
    };
    let seen = cluster.until::<PersistentVolumeClaim>("default", "data", "handed over", noted).await;
    until_told(&cluster, "data", "ExternalProvisioning", "external provisioner 'csi.example'").await;
    let reference = json!({ "namespace": "default", "name": "data", "uid": seen.metadata.uid });
    let annotations = json!({ "pv.kubernetes.io/provisioned-by": "csi.example" });
    let spec = json!({ "storageClassName": "disks", "persistentVolumeReclaimPolicy": "Delete", "claimRef": reference, "capacity": { "storage": "2Gi" } });
    volume(&cluster, "pvc-1", annotations, spec).await;
    let bound = cluster.until::<PersistentVolumeClaim>("default", "data", "bound", phase_is("Bound")).await;
    assert_eq!(bound.status.unwrap().capacity.unwrap()["storage"].0, "2Gi");
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "3Gi" } } } });
    claims.patch("data", &Patch::merge(larger)).await.unwrap();
    until_told(&cluster, "data", "ExternalExpanding", "waiting for an external controller to expand this PVC").await;
    // The resizer has grown the device, and the kubelet not yet the file system: the claim keeps what it had.
    let grown = Patch::merge(json!({ "spec": { "capacity": { "storage": "3Gi" } } }));
    cluster.client.all::<PersistentVolume>().patch("pvc-1", &grown).await.unwrap();
    let pods = cluster.client.namespaced::<Pod>("default");
    pods.delete("p", &DeleteParams::default().with_grace_period(0)).await.unwrap();
    let held = claims.get("data").await.unwrap().status.unwrap().capacity.unwrap()["storage"].0.clone();
    assert_eq!(held, "2Gi");
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    cluster.until::<PersistentVolume>("", "pvc-1", "released", volume_is("Released")).await;
    cluster.stop().await;
}

/// Provisioners delete the released volumes of their drivers, whoever made the objects: a volume that failed is nobody's to delete.
/// One that a removed plug-in made is known to the successor's sidecars by annotations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_volumes_are_left_to_the_provisioners_of_their_drivers() {
    let cluster = Cluster::start(0).await;
    class(&cluster, "disks", "Immediate").await;
    let own = json!({ "storageClassName": "disks", "persistentVolumeReclaimPolicy": "Delete" });
    let ebs = json!({ "volumeID": "aws://zone/vol-1" });
    let mut older = own.clone();
    older.as_object_mut().unwrap().extend([("csi".to_owned(), json!(null)), ("awsElasticBlockStore".to_owned(), ebs)]);
    let by_plugin = json!({ "pv.kubernetes.io/provisioned-by": "kubernetes.io/aws-ebs" });
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    for (name, annotations, spec) in [("static", json!({}), own), ("older", by_plugin, older)] {
        volume(&cluster, name, annotations, spec).await;
        claim(&cluster, name, json!({ "storageClassName": "disks", "volumeName": name })).await;
        cluster.until::<PersistentVolumeClaim>("default", name, "bound", phase_is("Bound")).await;
    }
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "3Gi" } } } });
    claims.patch("older", &Patch::merge(larger)).await.unwrap();
    let why = "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
    until_told(&cluster, "older", "ExternalExpanding", why).await;
    let annotated = |annotations: Option<std::collections::BTreeMap<String, String>>, key: &str| {
        annotations.is_some_and(|all| all.get(key).is_some_and(|driver| driver == "ebs.csi.aws.com"))
    };
    cluster
        .until::<PersistentVolumeClaim>("default", "older", "given to the resizer", |claim| {
            annotated(claim.metadata.annotations.clone(), "volume.kubernetes.io/storage-resizer")
        })
        .await;
    for name in ["static", "older"] {
        claims.delete(name, &DeleteParams::default()).await.unwrap();
        cluster.until::<PersistentVolume>("", name, "released", volume_is("Released")).await;
    }
    let older = cluster.client.all::<PersistentVolume>().get("older").await.unwrap();
    assert!(annotated(older.metadata.annotations, "pv.kubernetes.io/migrated-to"));
    // A volume that nobody can delete fails after both of them were looked at.
    let share = json!({
        "storageClassName": "", "persistentVolumeReclaimPolicy": "Delete", "csi": null, "nfs": { "server": "s", "path": "/w" },
    });
    volume(&cluster, "share", json!({}), share).await;
    claim(&cluster, "share", json!({ "storageClassName": "", "volumeName": "share" })).await;
    cluster.until::<PersistentVolumeClaim>("default", "share", "bound", phase_is("Bound")).await;
    claims.delete("share", &DeleteParams::default()).await.unwrap();
    cluster.until::<PersistentVolume>("", "share", "failed", volume_is("Failed")).await;
    for name in ["static", "older"] {
        let volume = cluster.client.all::<PersistentVolume>().get(name).await.unwrap();
        assert!(volume_is("Released")(&volume), "{name}: {:?}", volume.status);
    }
    cluster.stop().await;
}

/// What was deleted while it was bound is released when its claim goes, so that its provisioner can delete it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_under_deletion_is_released_all_the_same() {
    let cluster = Cluster::start(0).await;
    volume(
        &cluster,
        "v",
        json!({ "pv.kubernetes.io/provisioned-by": "csi.example" }),
        json!({ "persistentVolumeReclaimPolicy": "Delete" }),
    )
    .await;
    let finalizer = "external-provisioner.volume.kubernetes.io/finalizer";
    let volumes = cluster.client.all::<PersistentVolume>();
    let patch = json!({ "metadata": { "finalizers": [finalizer, "kubernetes.io/pv-protection"] } });
    volumes.patch("v", &Patch::merge(patch)).await.unwrap();
    claim(&cluster, "c", json!({ "storageClassName": "", "volumeName": "v" })).await;
    cluster.until::<PersistentVolumeClaim>("default", "c", "bound", phase_is("Bound")).await;
    volumes.delete("v", &DeleteParams::default()).await.unwrap();
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    let released = cluster.until::<PersistentVolume>("", "v", "released", volume_is("Released")).await;
    assert!(released.metadata.finalizers.unwrap().contains(&finalizer.to_owned()));
    volumes.patch("v", &Patch::merge(json!({ "metadata": { "finalizers": null } }))).await.unwrap();
    cluster.until_gone::<PersistentVolume>("", "v").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_and_volumes_that_do_not_fit_say_why() {
    let cluster = Cluster::start(0).await;
    // Claims are looked at side by side, and yet no volume is given to two of them.
    for number in 0..8 {
        claim(&cluster, &format!("many-{number}"), json!({ "storageClassName": "few" })).await;
    }
    for number in 0..3 {
        volume(&cluster, &format!("few-{number}"), json!({}), json!({ "storageClassName": "few" })).await;
    }
    let given = patiently(async || {
        let claims = cluster.list::<PersistentVolumeClaim>("default").await;
        let phase = |claim: &PersistentVolumeClaim| claim.status.as_ref().and_then(|status| status.phase.clone());
        let bound = claims.into_iter().filter(|claim| phase(claim).as_deref() == Some("Bound"));
        let mut volumes: Vec<_> = bound.filter_map(|claim| claim.spec?.volume_name).collect();
        volumes.sort();
        (volumes == ["few-0", "few-1", "few-2"]).then_some(())
    });
    assert!(given.await.is_some(), "three of eight claims have a volume each");
    volume(&cluster, "v", json!({}), json!({ "storageClassName": "" })).await;
    claim(&cluster, "block", json!({ "storageClassName": "", "volumeName": "v", "volumeMode": "Block" })).await;
    until_told(&cluster, "block", "VolumeMismatch", "Cannot bind to requested volume \"v\": incompatible volumeMode")
        .await;
    claim(&cluster, "c", json!({ "storageClassName": "", "volumeName": "v" })).await;
    cluster.until::<PersistentVolumeClaim>("default", "c", "bound", phase_is("Bound")).await;
    claim(&cluster, "d", json!({ "storageClassName": "", "volumeName": "v" })).await;
    let told = until_told(&cluster, "d", "FailedBinding", "volume \"v\" already bound to a different claim.").await;
    assert_eq!(told.type_.as_deref(), Some("Warning"));
    let volumes = cluster.client.all::<PersistentVolume>();
    volumes.delete("v", &DeleteParams::default()).await.unwrap();
    volumes.patch("v", &Patch::merge(json!({ "metadata": { "finalizers": null } }))).await.unwrap();
    cluster.until::<PersistentVolumeClaim>("default", "c", "lost", phase_is("Lost")).await;
    let told = until_told(&cluster, "c", "ClaimLost", "Bound claim has lost its PersistentVolume").await;
    assert_eq!(told.source.unwrap().component.as_deref(), Some("persistentvolume-controller"));
    // Nobody here can delete what somebody made by hand.
    let share = json!({
        "storageClassName": "", "persistentVolumeReclaimPolicy": "Delete", "csi": null, "nfs": { "server": "s", "path": "/w" },
    });
    volume(&cluster, "w", json!({}), share).await;
    claim(&cluster, "e", json!({ "storageClassName": "", "volumeName": "w" })).await;
    cluster.until::<PersistentVolumeClaim>("default", "e", "bound", phase_is("Bound")).await;
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    claims.delete("e", &DeleteParams::default()).await.unwrap();
    let failed = cluster.until::<PersistentVolume>("", "w", "failed", volume_is("Failed")).await;
    let message = failed.status.unwrap().message.unwrap();
    assert!(message.contains("no deletable volume plugin matched"), "{message}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_of_attributes_outlives_those_who_have_it() {
    let cluster = Cluster::start(0).await;
    let gold = json!({ "metadata": { "name": "gold" }, "driverName": "csi.example", "parameters": { "iops": "9" } });
    let made = cluster.apply::<VolumeAttributesClass>(gold).await;
    assert_eq!(made.metadata.finalizers.unwrap(), ["kubernetes.io/vac-protection"]);
    claim(&cluster, "c", json!({ "storageClassName": "", "volumeAttributesClassName": "gold" })).await;
    let classes = cluster.client.all::<VolumeAttributesClass>();
    classes.delete("gold", &DeleteParams::default()).await.unwrap();
    until_told(&cluster, "c", "FailedBinding", "no persistent volumes available").await;
    assert!(classes.get("gold").await.unwrap().metadata.deletion_timestamp.is_some());
    let claims = cluster.client.namespaced::<PersistentVolumeClaim>("default");
    claims.delete("c", &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<VolumeAttributesClass>("", "gold").await;
    cluster.stop().await;
}

/// A pod has a claim of its own for a volume that lives as long as it does, and nobody else's of that name. A claim that was made
/// before there was a default class gets it when it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_claims_of_their_own_and_claims_the_default_class_later() {
    let cluster = Cluster::start(0).await;
    cluster.until::<ServiceAccount>("default", "default", "there", |_| true).await;
    claim(&cluster, "theirs-v", json!({})).await;
    for name in ["own", "theirs"] {
        let template = json!({
            "metadata": { "labels": { "for": name } },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        });
        let volume = json!({ "name": "v", "ephemeral": { "volumeClaimTemplate": template } });
        let spec = json!({ "containers": [{ "name": "c", "image": "i" }], "volumes": [volume] });
        cluster.apply::<Pod>(json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec })).await;
    }
    let made = cluster.until::<PersistentVolumeClaim>("default", "own-v", "made", |_| true).await;
    let pod = cluster.client.namespaced::<Pod>("default").get("own").await.unwrap();
    let owner = made.metadata.owner_references.unwrap().remove(0);
    assert_eq!((Some(owner.uid), owner.controller), (pod.metadata.uid, Some(true)));
    assert_eq!(made.metadata.labels.unwrap()["for"], "own");
    let why = "ephemeral volume v: PVC default/theirs-v was not created for pod default/theirs (pod is not owner)";
    until_told(&cluster, "theirs", "FailedBinding", why).await;

    let annotations = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    cluster
        .apply::<StorageClass>(json!({
            "metadata": { "name": "late", "annotations": annotations }, "provisioner": "csi.example",
        }))
        .await;
    for name in ["own-v", "theirs-v"] {
        cluster
            .until::<PersistentVolumeClaim>("default", name, "of the default class", |claim| {
                claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()) == Some("late")
            })
            .await;
    }
    cluster.stop().await;
}
