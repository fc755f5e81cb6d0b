//! What the caches of controllers and scheduler take, with thousands of pods that differ as those of a cluster do.
//!
//! The peer is a cache that keeps each pod as the type that the API's definition gives. Every figure is the growth of
//! this process' resident memory in bytes per pod; `stored` is what the API server has of it. `control-plane` is the whole
//! of one, beside upstream's (`footprint`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use client::{Api, Client, Gvr, Informer, ListParams, Object, Resource};
use http_body_util::{BodyExt, StreamBody};
use scheduler::{Configuration, Offline};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::report::{self, Better, line, line_alone};
use crate::{Args, footprint};

const PODS: usize = 20_000;
const NODES: usize = 500;
const TEMPLATES: usize = 200;
const SYNC_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn run(args: Args) -> Result<()> {
    if args.inside.is_some() {
        let kubeconfig = args.kubeconfig.as_deref().context("the load needs a kubeconfig")?;
        return footprint::load(&args, kubeconfig).await;
    }
    let count = args.pods.unwrap_or(if args.quick { 2_000 } else { PODS });
    let needed = if args.wants("informer") || args.wants("scheduler") { count } else { 0 };
    let frames: Arc<Vec<Bytes>> = Arc::new((0..needed).map(frame).collect());
    let stored = frames.iter().map(Bytes::len).sum::<usize>() as f64 / count as f64;
    let parameters = format!("pods={count} stored={stored:.0}B");
    if args.wants("informer") {
        let (_typed, peer) = grown(count, follow::<k8s_openapi::api::core::v1::Pod>(&frames)).await?;
        let (first, ours) = grown(count, follow::<api::cached::Pod>(&frames)).await?;
        line("informer", &parameters, "B", ours, peer, Better::Less);
        let (_second, again) = grown(count, follow::<api::cached::Pod>(&frames)).await?;
        line("informer-second", &parameters, "B", again, peer, Better::Less);
        drop(first);
    }
    if args.wants("owned") {
        let frames: Arc<Vec<Bytes>> = Arc::new((0..count).map(map_frame).collect());
        let stored = frames.iter().map(Bytes::len).sum::<usize>() as f64 / count as f64;
        let parameters = format!("objects={count} metadata={stored:.0}B");
        let maps = Gvr::new("", "v1", "configmaps");
        let (_whole, peer) = grown(count, follow_api(&frames, |client| client.metadata(&maps, None))).await?;
        let (_owned, ours) = grown(count, follow_api(&frames, |client| client.owned(&maps, None))).await?;
        line("owned", &parameters, "B", ours, peer, Better::Less);
    }
    if args.wants("scheduler") {
        let (_held, ours) = grown(count, async {
            let mut offline = Offline::new(&Configuration::default(), 1)?;
            for frame in &*frames {
                let event: Value = serde_json::from_slice(frame)?;
                offline.set_pod(&Arc::new(api::codec::from_value(&event["object"])?));
            }
            Ok(offline)
        })
        .await?;
        line_alone("scheduler", &parameters, "B", ours);
    }
    if args.wants("control-plane") {
        footprint::run(&args).await?;
    }
    Ok(())
}

/// What `made` leaves behind, and how many bytes per pod the process grew for it.
async fn grown<T>(count: usize, made: impl Future<Output = Result<T>>) -> Result<(T, f64)> {
    let before = report::resident(std::process::id())?;
    let made = made.await?;
    let after = report::resident(std::process::id())?;
    Ok((made, after.saturating_sub(before) as f64 / count as f64))
}

async fn follow<K: Resource>(frames: &Arc<Vec<Bytes>>) -> Result<Informer<K>> {
    follow_api(frames, Client::all::<K>).await
}

/// An informer that has seen all of them.
async fn follow_api<K: Object>(frames: &Arc<Vec<Bytes>>, api: impl FnOnce(&Client) -> Api<K>) -> Result<Informer<K>> {
    let frames = frames.clone();
    let handler: client::Handler = Arc::new(move |_| {
        let frames = frames.clone();
        let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {
            "resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}});
        let end = Bytes::from(format!("{bookmark}\n"));
        let all = (0..frames.len()).map(move |at| frames[at].clone()).chain([end]);
        let all = all.map(|frame| Ok::<_, client::BoxError>(http_body::Frame::data(frame)));
        // It stays open, as a watch does.
        let stream = futures_util::StreamExt::chain(futures_util::stream::iter(all), futures_util::stream::pending());
        Box::pin(async move { http::Response::new(StreamBody::new(stream).boxed_unsync()) })
    });
    let client = Client::in_process(handler, api::UserInfo::default());
    let informer = Informer::new(api(&client), ListParams::default());
    let stop = CancellationToken::new();
    let (running, stopped) = (informer.clone(), stop.clone());
    let task = tokio::spawn(async move { running.run(stopped).await });
    tokio::time::timeout(SYNC_TIMEOUT, informer.synced()).await.context("the informer does not see all objects")?;
    stop.cancel();
    task.await?;
    Ok(informer)
}

fn frame(at: usize) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": "ADDED", "object": running_pod(at)})))
}

/// The event of a ConfigMap that was applied, as those see it who ask for metadata: kinds that nobody but the garbage collector
/// and quotas watch.
fn map_frame(at: usize) -> Bytes {
    let map = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
        "name": format!("settings-{at:05}"), "namespace": "default", "uid": format!("00000003-7b1e-4f7e-9a55-{at:012x}"),
        "resourceVersion": (1000 + at).to_string(), "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": format!("web-{}", at % TEMPLATES), "app.kubernetes.io/managed-by": "bench"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": format!("{{\"data\":\"{at:01000}\"}}")}}});
    Bytes::from(format!("{}\n", json!({"type": "ADDED", "object": map})))
}

/// A pod that runs: one of many of its template, on one of many nodes.
pub(crate) fn running_pod(at: usize) -> Value {
    let template = format!("web-{}", at % TEMPLATES);
    let name = format!("{template}-5d4f8c7b9d-{at:05}");
    let node = format!("node-{}", at % NODES);
    let uid = |kind: usize, at: usize| format!("{kind:08x}-7b1e-4f7e-9a55-{at:012x}");
    let token = format!("kube-api-access-{at:05}");
    let time = "2026-01-01T00:00:00Z";
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": time});
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let ip = format!("10.{}.{}.{}", at >> 16, (at >> 8) & 255, at & 255);
    let image = format!("registry.example/web@sha256:{:064x}", at % TEMPLATES);
    let toleration =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name, "generateName": format!("{template}-5d4f8c7b9d-"), "namespace": "default", "uid": uid(1, at),
            "resourceVersion": (1000 + at).to_string(), "generation": 1, "creationTimestamp": time,
            "labels": {"app": template, "pod-template-hash": "5d4f8c7b9d"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{template}-5d4f8c7b9d"),
                "uid": uid(2, at % TEMPLATES), "controller": true, "blockOwnerDeletion": true}],
            "managedFields": [
                {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": time,
                    "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {},
                    "f:pod-template-hash": {}}, "f:ownerReferences": {".": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"web\"}":
                    {".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {".": {}}}}, "f:dnsPolicy": {},
                    "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {}}}},
                {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:status": {"f:conditions": {}, "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {},
                    "f:podIP": {}, "f:podIPs": {}, "f:startTime": {}}}, "subresource": "status"},
            ],
        },
        "spec": {
            "volumes": [{"name": token, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}],
            "containers": [{"name": "web", "image": image, "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                "volumeMounts": [{"name": token, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent"}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "nodeName": node, "securityContext": {},
            "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [toleration("node.kubernetes.io/not-ready"), toleration("node.kubernetes.io/unreachable")],
        },
        "status": {
            "phase": "Running", "conditions": conditions.map(condition), "hostIP": "192.168.0.1", "podIP": ip,
            "hostIPs": [{"ip": "192.168.0.1"}], "podIPs": [{"ip": ip}], "startTime": time, "qosClass": "Burstable",
            "containerStatuses": [{"name": "web", "state": {"running": {"startedAt": time}}, "lastState": {}, "ready": true,
                "restartCount": 0, "image": image, "imageID": image, "containerID": format!("cox://{at:064x}"), "started": true}],
        },
    })
}
