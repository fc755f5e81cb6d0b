//! A scheduler and kubelets without containers: pods are bound, run, become ready, finish if they are jobs, and are removed once deleted.

use client::{Client, DeleteParams, InformerFactory, Patch, WorkQueue, object_key, split_key};
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) async fn register(client: &Client, names: &[&str]) {
    for name in names {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
                "allocatable": { "cpu": "64", "memory": "64Gi", "pods": "5000" }, "capacity": { "cpu": "64", "memory": "64Gi", "pods": "5000" },
            },
        }))
        .unwrap();
        client.all::<Node>().create(&node).await.unwrap();
        // A patch: the manager may be writing the node's range at the same time.
        let patch = Patch::merge(json!({ "status": node.status }));
        client.all::<Node>().patch_status(name, &patch).await.unwrap();
    }
}

/// Runs until `stop`.
pub(crate) async fn run(client: Client, nodes: usize, stop: CancellationToken) {
    let informers = InformerFactory::new(client.clone());
    let pods = informers.informer::<Pod>();
    let queue: WorkQueue<String> = WorkQueue::new();
    let keys = queue.clone();
    pods.subscribe(move |event| keys.add(object_key(&**event.object())));
    informers.start(stop.clone());
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (queue, pods, client) = (queue.clone(), pods.clone(), client.clone());
        workers.spawn(async move {
            while let Some(key) = queue.get().await {
                if let Some(pod) = pods.get(&key)
                    && let Err(error) = step(&client, &pod, nodes).await
                    && !error.is_not_found()
                {
                    queue.add_rate_limited(key.clone());
                }
                queue.done(&key);
            }
        });
    }
    stop.cancelled().await;
    queue.shut_down();
    while workers.join_next().await.is_some() {}
}

async fn step(client: &Client, pod: &Pod, nodes: usize) -> Result<(), client::Error> {
    let key = object_key(pod);
    let (namespace, name) = split_key(&key);
    let api = client.namespaced::<Pod>(namespace);
    if pod.metadata.deletion_timestamp.is_some() {
        return api.delete(name, &DeleteParams::default().with_grace_period(0)).await;
    }
    let hash = key.bytes().map(usize::from).sum::<usize>();
    let spec = pod.spec.clone().unwrap_or_default();
    if spec.node_name.is_none() {
        // Daemons say where they belong.
        let pinned = serde_json::to_value(&spec.affinity).unwrap();
        let pinned = pinned.pointer(
            "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0",
        );
        let node = pinned.and_then(Value::as_str).map_or_else(|| format!("node-{}", hash % nodes), str::to_owned);
        let binding = Binding {
            metadata: pod.metadata.clone(),
            target: ObjectReference { kind: Some("Node".into()), name: Some(node), ..ObjectReference::default() },
        };
        return api.create_subresource::<_, Value>(name, "binding", &binding).await.map(drop);
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = match phase {
        "Pending" => json!({
            "phase": "Running", "startTime": now, "podIP": format!("10.42.{}.{}", hash % 250, 1 + hash / 250 % 250),
            "podIPs": [{ "ip": format!("10.42.{}.{}", hash % 250, 1 + hash / 250 % 250) }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": now }],
        }),
        "Running" if spec.restart_policy.as_deref() == Some("Never") => json!({
            "phase": "Succeeded", "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": now }],
        }),
        _ => return Ok(()),
    };
    api.patch_status(name, &Patch::strategic(json!({ "status": status }))).await.map(drop)
}
