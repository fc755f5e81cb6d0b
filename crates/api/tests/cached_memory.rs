//! What objects take in a cache, counted by the allocator: of a pod its own part, and nothing for a second cache; of a
//! ReplicaSet its text.

#![expect(unsafe_code, reason = "an allocator that counts")]
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::cached::{Packed, Pod};
use k8s_openapi::api::apps::v1::ReplicaSet;
use serde_json::json;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `dealloc`, and what it returns came from there.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PODS: usize = 2_000;
const TEMPLATES: usize = 20;

fn pod(at: usize) -> String {
    let token = format!("kube-api-access-{at:05}");
    let time = "2026-01-01T00:00:00Z";
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": time });
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": format!("web-{at}"), "generateName": "web-", "namespace": "default", "creationTimestamp": time,
            "uid": format!("0c9d4a1e-7b1e-4f7e-9a55-{at:012}"), "resourceVersion": at.to_string(),
            "labels": { "app": "web", "pod-template-hash": "5d4f8c7b9d" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true,
                "uid": "0c9d4a1e-7b1e-4f7e-9a55-2d0e4b3f9c11" }],
        },
        "spec": {
            "volumes": [{ "name": token, "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } }],
            "containers": [{ "name": "web", "image": format!("web:{}", at % TEMPLATES),
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                "volumeMounts": [{ "name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }] }],
            "nodeName": format!("node-{at}"), "serviceAccountName": "default", "schedulerName": "default-scheduler",
        },
        "status": {
            "phase": "Running", "conditions": conditions.map(condition), "hostIP": "192.168.0.1", "podIP": "10.0.0.1",
            "hostIPs": [{ "ip": "192.168.0.1" }], "podIPs": [{ "ip": "10.0.0.1" }], "startTime": time,
            "containerStatuses": [{ "name": "web", "state": { "running": { "startedAt": time } }, "ready": true,
                "restartCount": 0, "image": "web", "imageID": "sha256:0", "containerID": format!("cox://{at:064}") }],
        },
    })
    .to_string()
}

fn replica_set(at: usize) -> String {
    let pod: serde_json::Value = serde_json::from_str(&pod(at)).unwrap();
    json!({
        "kind": "ReplicaSet", "apiVersion": "apps/v1", "metadata": pod["metadata"],
        "spec": {
            "replicas": 100, "selector": { "matchLabels": pod["metadata"]["labels"] },
            "template": { "metadata": { "labels": pod["metadata"]["labels"] }, "spec": pod["spec"] },
        },
        "status": { "replicas": 100, "readyReplicas": 100, "availableReplicas": 100 },
    })
    .to_string()
}

/// What one decoded object takes on average.
fn decoded<K: api::read::Read>(texts: &[String]) -> (Vec<Arc<K>>, usize) {
    let before = HELD.load(Ordering::Relaxed);
    let objects = texts.iter().map(|text| Arc::new(api::read::from_str(text).unwrap())).collect();
    (objects, HELD.load(Ordering::Relaxed).saturating_sub(before) / texts.len())
}

/// One test: others would allocate beside it.
#[test]
fn objects_take_their_own_part_and_a_second_cache_nearly_nothing() {
    let texts: Vec<String> = (0..PODS).map(pod).collect();
    let (_typed, typed) = decoded::<k8s_openapi::api::core::v1::Pod>(&texts);
    let (_first, first) = decoded::<Pod>(&texts);
    let (_second, second) = decoded::<Pod>(&texts);
    println!("bytes per pod: {typed} as its type, {first} cached, {second} in a second cache");
    assert!(first <= 2_048 && first * 3 < typed, "{first} bytes a pod, {typed} as its type");
    assert!(second < 100, "{second} bytes a pod for the second cache");
    let texts: Vec<String> = (0..PODS).map(replica_set).collect();
    let (_typed, typed) = decoded::<ReplicaSet>(&texts);
    let (_packed, packed) = decoded::<Packed<ReplicaSet>>(&texts);
    println!("bytes per ReplicaSet: {typed} as its type, {packed} packed");
    assert!(packed * 4 < typed, "{packed} bytes a ReplicaSet, {typed} as its type");
}
