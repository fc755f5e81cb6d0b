//! Conformance area 14: the objects of storage, as far as no controller is involved.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::Life;

const STORAGE: &str = "storage.k8s.io/v1";

#[tokio::test]
async fn storage_objects_live_and_die() {
    let cluster = Cluster::unprotected().await;
    let attachment = json!({"spec": {"attacher": "disk.example.com", "nodeName": "node-1",
        "source": {"persistentVolumeName": "pv"}}});
    let conditions = json!({"phase": "Pending", "conditions": [
        {"type": "Resizing", "status": "True", "reason": "Test", "message": "m"}]});
    let lives = [
        (STORAGE, "csidrivers", false, "disk.example.com", json!({"spec": {"attachRequired": true}}), None),
        (
            STORAGE,
            "csinodes",
            false,
            "node-1",
            json!({"spec": {"drivers": [{"name": "disk.example.com", "nodeID": "n1"}]}}),
            None,
        ),
        (STORAGE, "csistoragecapacities", true, "c", json!({"storageClassName": "fast", "capacity": "1Gi"}), None),
        (STORAGE, "storageclasses", false, "fast", json!({"provisioner": "disk.example.com"}), None),
        (STORAGE, "volumeattachments", false, "a", attachment, Some(json!({"attached": true}))),
        (
            STORAGE,
            "volumeattributesclasses",
            false,
            "gold",
            json!({"driverName": "disk.example.com", "parameters": {"iops": "1000"}}),
            None,
        ),
        (
            "v1",
            "persistentvolumes",
            false,
            "pv",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast", "hostPath": {"path": "/tmp"}}}),
            Some(json!({"phase": "Available", "reason": "Test", "message": "m"})),
        ),
        (
            "v1",
            "persistentvolumeclaims",
            true,
            "pvc",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "pv",
                "resources": {"requests": {"storage": "1Gi"}}}}),
            Some(conditions),
        ),
    ];
    for (api_version, plural, namespaced, name, body, status) in lives {
        Life { api_version, plural, namespaced, name, body, status }.run(&cluster).await;
    }
}

#[tokio::test]
async fn drivers_get_their_defaults() {
    let cluster = Cluster::start().await;
    let drivers = format!("/apis/{STORAGE}/csidrivers");
    let (_, driver) = cluster.send("POST", &drivers, json!({"metadata": {"name": "d.example.com"}, "spec": {}})).await;
    let spec = &driver["spec"];
    for (field, expected) in [
        ("attachRequired", json!(true)),
        ("podInfoOnMount", json!(false)),
        ("requiresRepublish", json!(false)),
        ("storageCapacity", json!(false)),
        ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
        ("volumeLifecycleModes", json!(["Persistent"])),
    ] {
        assert_eq!(spec[field], expected, "{field}");
    }
    let often = json!({"metadata": {"name": "often.example.com"}, "spec": {"nodeAllocatableUpdatePeriodSeconds": 9}});
    let (_, refused) = cluster.send("POST", &drivers, often).await;
    let message = refused["message"].as_str().unwrap();
    let expected =
        "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds";
    assert!(message.contains(expected), "{message}");
}

#[tokio::test]
async fn a_pod_may_name_a_driver_that_nobody_has() {
    let cluster = Cluster::start().await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "csi": {"driver": "inline.example.com"}}]}});
    let (code, created) = cluster.send("POST", pods, pod.clone()).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(cluster.send("POST", pods, pod).await.0, 409);
    let (_, read) = cluster.send("GET", &format!("{pods}/p"), Value::Null).await;
    assert_eq!(read["spec"]["volumes"][0]["csi"]["driver"], "inline.example.com");
}

/// Claims say where their content comes from, under two names that always agree.
#[tokio::test]
async fn sources_of_claims_are_checked_and_kept_alike() {
    let cluster = Cluster::unprotected().await;
    let claim = |name: &str, sources: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        for (key, value) in sources.as_object().unwrap() {
            spec[key] = value.clone();
        }
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})
    };
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let volume = json!({"apiGroup": null, "kind": "PersistentVolumeClaim", "name": "other"});
    let populator = json!({"apiGroup": "example.com", "kind": "Book", "name": "b"});
    let path = "/api/v1/namespaces/default/persistentvolumeclaims";
    for (name, sources, old, new) in [
        ("restored", json!({"dataSource": snapshot}), &snapshot, &snapshot),
        ("cloned", json!({"dataSourceRef": volume}), &volume, &volume),
        ("populated", json!({"dataSourceRef": populator}), &populator, &populator),
        ("dropped", json!({"dataSource": populator}), &Value::Null, &Value::Null),
    ] {
        let (status, made) = cluster.send("POST", path, claim(name, sources)).await;
        assert_eq!((status, &made["spec"]["dataSource"], &made["spec"]["dataSourceRef"]), (201, old, new), "{name}");
        let (status, written) = cluster.send("PUT", &format!("{path}/{name}"), made).await;
        assert_eq!(status, 200, "{name}: {written}");
    }
    for (sources, expected) in [
        (json!({"dataSource": volume, "dataSourceRef": snapshot}), "spec: Invalid value: {}: must match dataSourceRef"),
        (
            json!({"dataSourceRef": {"kind": "Book", "name": "b"}}),
            "spec.dataSourceRef: Invalid value: \"Book\": must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        ),
        (
            json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": ""}}),
            "spec.dataSourceRef.name: Required value",
        ),
    ] {
        let (status, refused) = cluster.send("POST", path, claim("bad", sources)).await;
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(status == 422 && message.contains(expected), "{message}");
    }
}
