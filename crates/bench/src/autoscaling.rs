//! From a pod's start to its figures in `kubectl top`, and from the beginning of a load to twice as many pods and back.
//!
//! The load is real: containers that take all the CPU they may as long as there is a file. The cluster is a fresh
//! `cox up` in namespaces of its own. There is no peer: the figures stand beside what we aim for.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use client::{Client, DeleteParams};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use serde_json::{Value, json};

use crate::Args;
use crate::report::{Better, line, median};
use crate::storage::{Cluster, IMAGE, connect, made, phase};

const AIM_TOP_SECONDS: f64 = 5.0;
const AIM_SCALE_SECONDS: f64 = 30.0;
const NAMESPACE: &str = "default";
/// How often the API is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What has not come by then never will.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Pods without load, and with it.
const CALM: i32 = 2;
const BUSY: i32 = 2 * CALM;

pub(crate) async fn run(args: Args) -> Result<()> {
    if let Some(code) = testkit::suite::in_namespaces() {
        ensure!(code == ExitCode::SUCCESS, "the benchmark failed");
        return Ok(());
    }
    let cluster = Cluster::start(&args.dir)?;
    let client = connect(&cluster.path("data/admin.kubeconfig"))?;
    let rounds = if args.quick { 1 } else { 5 };
    let parameters = format!("rounds={rounds} aim=peer");
    let accounts = client.namespaced::<ServiceAccount>(NAMESPACE);
    while accounts.get_opt("default").await?.is_none() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if args.wants("top") {
        // The image is unpacked, and the node was asked before, as it has been in a cluster that somebody watches.
        show(&client, "first").await?;
        let mut shown = Vec::new();
        for round in 0..rounds {
            shown.push(show(&client, &format!("next-{round}")).await?);
        }
        line("top", &parameters, "s", median(shown), AIM_TOP_SECONDS, Better::Less);
    }
    if args.wants("scale") {
        let (grown, shrunk) = scale(&client, &cluster.path("load"), rounds).await?;
        line("scale-up", &parameters, "s", median(grown), AIM_SCALE_SECONDS, Better::Less);
        line("scale-down", &parameters, "s", median(shrunk), AIM_SCALE_SECONDS, Better::Less);
    }
    Ok(())
}

/// Seconds from the start of a pod to its figures, which are those that `kubectl top pod` asks for.
async fn show(client: &Client, name: &str) -> Result<f64> {
    let pod: Pod = made(json!({
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "while :; do :; done"],
                "resources": { "limits": { "cpu": "200m" } },
            }],
        },
    }))?;
    let pods = client.namespaced::<Pod>(NAMESPACE);
    pods.create(&pod).await?;
    until("a pod that runs", async || is_running(client, name).await).await?;
    let seconds = until("figures of a pod", async || is_shown(client, name).await).await?;
    pods.delete(name, &DeleteParams::default()).await?;
    Ok(seconds)
}

async fn is_running(client: &Client, pod: &str) -> Result<bool> {
    Ok(phase(&client.namespaced::<Pod>(NAMESPACE).get(pod).await?) == "Running")
}

async fn is_shown(client: &Client, pod: &str) -> Result<bool> {
    let path = ["apis", "metrics.k8s.io", "v1beta1", "namespaces", NAMESPACE, "pods", pod];
    match client.get_at::<Value>(&path, &[]).await {
        Ok(told) => Ok(told["containers"][0]["usage"]["cpu"].as_str().is_some_and(|cpu| cpu != "0")),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Seconds from the beginning of a load until twice as many pods are asked for, and from its end until as few as were.
async fn scale(client: &Client, load: &Path, rounds: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    std::fs::create_dir_all(load)?;
    let file = load.join("on");
    let deployment: Deployment = made(json!({
        "metadata": { "name": "busy" },
        "spec": {
            "replicas": CALM,
            "selector": { "matchLabels": { "app": "busy" } },
            "template": {
                "metadata": { "labels": { "app": "busy" } },
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                        "command": ["sh", "-c", "while :; do [ -e /load/on ] || sleep 1; done"],
                        "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "200m" } },
                        "volumeMounts": [{ "name": "load", "mountPath": "/load" }],
                    }],
                    "volumes": [{ "name": "load", "hostPath": { "path": load, "type": "Directory" } }],
                },
            },
        },
    }))?;
    client.namespaced::<Deployment>(NAMESPACE).create(&deployment).await?;
    until("pods without load", async || has_pods(client, CALM).await).await?;
    let scaler: HorizontalPodAutoscaler = made(json!({
        "metadata": { "name": "busy" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "busy" },
            "minReplicas": CALM,
            "maxReplicas": BUSY,
            "metrics": [{
                "type": "Resource",
                "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } },
            }],
            // The five minutes that it would be held otherwise are a choice, and no part of the reaction.
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
        },
    }))?;
    client.namespaced::<HorizontalPodAutoscaler>(NAMESPACE).create(&scaler).await?;
    until("an autoscaler that sees its pods", async || is_active(client).await).await?;
    let (mut grown, mut shrunk) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        std::fs::write(&file, "")?;
        grown.push(until("twice as many pods", async || asks_for(client, BUSY).await).await?);
        until("pods with load", async || has_pods(client, BUSY).await).await?;
        std::fs::remove_file(&file)?;
        shrunk.push(until("as few pods as before", async || asks_for(client, CALM).await).await?);
        until("pods without load", async || has_pods(client, CALM).await).await?;
    }
    Ok((grown, shrunk))
}

async fn asks_for(client: &Client, count: i32) -> Result<bool> {
    let deployment = client.namespaced::<Deployment>(NAMESPACE).get("busy").await?;
    Ok(deployment.spec.and_then(|spec| spec.replicas) == Some(count))
}

/// So many, all of them ready.
async fn has_pods(client: &Client, count: i32) -> Result<bool> {
    let status = client.namespaced::<Deployment>(NAMESPACE).get("busy").await?.status.unwrap_or_default();
    Ok(status.replicas == Some(count) && status.ready_replicas == Some(count))
}

async fn is_active(client: &Client) -> Result<bool> {
    let status = client.namespaced::<HorizontalPodAutoscaler>(NAMESPACE).get("busy").await?.status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    Ok(conditions.any(|condition| condition.type_ == "ScalingActive" && condition.status == "True"))
}

/// Seconds until it is so.
async fn until(what: &'static str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<f64> {
    let began = Instant::now();
    while !is_so().await.context(what)? {
        ensure!(began.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(began.elapsed().as_secs_f64())
}
