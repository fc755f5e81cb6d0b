//! Control loops: many deployments from their creation until all their pods are Available, and back to nothing, on hollow nodes.
//!
//! Ours is the whole control plane in one process. The peer is any cluster with its own controllers and scheduler
//! (`--peer-kubeconfig`); it gets the same hollow nodes and the same load over HTTPS.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, DeleteParams, Event, Informer, InformerFactory, ListParams};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Args;
use crate::control_plane::{ControlPlane, Transport};
use crate::report::{self, Better};

pub(crate) const NAMESPACE: &str = "coxbench";
/// The load is created by this many requests at a time.
const WRITERS: usize = 10;
/// A control plane that has not made it by then will not.
const ROUND_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy)]
struct Shape {
    deployments: usize,
    replicas: usize,
    nodes: usize,
    rounds: usize,
}

impl Shape {
    fn pods(self) -> usize {
        self.deployments * self.replicas
    }
}

/// Pods per second on the way up and on the way down.
#[derive(Clone, Copy)]
struct Rates {
    up: f64,
    down: f64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let shape = if args.quick {
        Shape { deployments: 10, replicas: 5, nodes: 20, rounds: 1 }
    } else {
        Shape { deployments: 100, replicas: 10, nodes: 100, rounds: 3 }
    };
    let peer = match &args.peer_kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::load(Some(path)).context("the peer's kubeconfig")?;
            Some(
                measure(Client::from_kubeconfig(&kubeconfig, &Overrides::default())?, shape)
                    .await
                    .context("the peer")?,
            )
        }
        None => {
            eprintln!(
                "no peer: give one with --peer-kubeconfig (kube-apiserver, kube-controller-manager, kube-scheduler, no nodes)"
            );
            None
        }
    };
    for (name, transport) in [("", Transport::Call), ("-https", Transport::Https)] {
        let (deploy, delete) = (format!("deploy{name}"), format!("delete{name}"));
        if !args.wants(&deploy) && !args.wants(&delete) {
            continue;
        }
        let dir = tempfile::tempdir_in(&args.dir)?;
        let cluster = ControlPlane::start(dir.path(), transport).await?.with_controllers()?.with_scheduler();
        let ours = measure(cluster.client.clone(), shape).await?;
        cluster.stop().await?;
        let parameters = format!("deployments={} replicas={} nodes={}", shape.deployments, shape.replicas, shape.nodes);
        report::line(&deploy, &parameters, "pods/s", ours.up, peer.map(|peer| peer.up), Better::More);
        report::line(&delete, &parameters, "pods/s", ours.down, peer.map(|peer| peer.down), Better::More);
    }
    if args.wants("lifecycle") {
        crate::lifecycle::run(&args).await?;
    }
    if args.wants("idle") {
        idle(&args).await?;
    }
    Ok(())
}

/// What the control plane costs while nothing happens: CPU of this whole process, API server and scheduler included.
async fn idle(args: &Args) -> Result<()> {
    let (services, watched) = if args.quick { (20, Duration::from_secs(2)) } else { (2000, Duration::from_secs(30)) };
    let dir = tempfile::tempdir_in(&args.dir)?;
    let cluster = ControlPlane::start(dir.path(), Transport::Call).await?.with_controllers()?.with_scheduler();
    let client = &cluster.client;
    let (sets, slices) = (Informers::new(client), services);
    stream::iter(0..services)
        .map(|index| async move {
            let labels = json!({ "app": format!("web-{index}") });
            let service = json!({ "metadata": { "name": format!("web-{index}") }, "spec": { "selector": labels, "ports": [{ "port": 80 }] } });
            client.namespaced::<Service>("default").create(&serde_json::from_value(service)?).await?;
            let mut deployment = deployment(index, 0)?;
            deployment.metadata.namespace = Some("default".into());
            client.namespaced::<Deployment>("default").create(&deployment).await.context("creating a deployment")
        })
        .buffer_unordered(WRITERS)
        .try_for_each(async |_| Ok(()))
        .await?;
    let made = sets.until_made(slices).await?;
    // What follows the last creation (statuses, events) is not idleness yet.
    tokio::time::sleep(watched / 3).await;
    let before = report::cpu_seconds()?;
    tokio::time::sleep(watched).await;
    let share = (report::cpu_seconds()? - before) / watched.as_secs_f64() * 100.0;
    cluster.stop().await?;
    report::line("idle", format!("objects={made}"), "%", share, None, Better::Less);
    Ok(())
}

/// Follows what the controllers make of the idle case's objects.
struct Informers {
    sets: Informer<ReplicaSet>,
    slices: Informer<EndpointSlice>,
    _stop: DropGuard,
}

impl Informers {
    fn new(client: &Client) -> Self {
        let (stop, informers) = (CancellationToken::new(), InformerFactory::new(client.clone()));
        let (sets, slices) = (informers.informer::<ReplicaSet>(), informers.informer::<EndpointSlice>());
        informers.start(stop.clone());
        Self { sets, slices, _stop: stop.drop_guard() }
    }

    /// Waits for one ReplicaSet and one slice per service; says how many objects there are then.
    async fn until_made(&self, wanted: usize) -> Result<usize> {
        let (sender, count) = watch::channel(0);
        let sender = Arc::new(sender);
        let note = |more: Arc<watch::Sender<usize>>| move || more.send_modify(|count| *count += 1);
        let (on_set, on_slice) = (note(sender.clone()), note(sender));
        self.sets.subscribe(move |event| {
            if matches!(event, Event::Added(_)) {
                on_set()
            }
        });
        self.slices.subscribe(move |event| {
            if matches!(event, Event::Added(_)) {
                on_slice()
            }
        });
        // The API server's own service has a slice, too.
        until_at_least(count, 2 * wanted).await?;
        // With the deployments, services and their endpoints.
        Ok(5 * wanted)
    }
}

/// The median of some rounds against hollow nodes of our own.
async fn measure(client: Client, shape: Shape) -> Result<Rates> {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let mut config = sim::Config::new(client.clone(), shape.nodes);
    config.name_prefix = "coxbench-".into();
    let nodes = tokio::spawn(sim::run(config, stop.clone()));
    until_nodes(&client, shape.nodes, stop.child_token()).await?;
    let mut rounds = Vec::new();
    for _ in 0..shape.rounds {
        rounds.push(round(&client, shape).await?);
    }
    stop.cancel();
    nodes.await??;
    remove_nodes(&client, shape.nodes).await?;
    let median = |rate: fn(&Rates) -> f64| {
        let mut rates: Vec<f64> = rounds.iter().map(rate).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    Ok(Rates { up: median(|rates| rates.up), down: median(|rates| rates.down) })
}

/// One load from nothing to Available and back to nothing.
async fn round(client: &Client, shape: Shape) -> Result<Rates> {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let namespace = json!({ "metadata": { "name": NAMESPACE } });
    client.all::<Namespace>().create(&serde_json::from_value(namespace)?).await.context("creating the namespace")?;
    let informers = InformerFactory::new(client.clone());
    let deployments = informers.namespaced::<Deployment>(NAMESPACE, ListParams::default());
    let (sender, available) = watch::channel(0);
    let wanted = i32::try_from(shape.replicas)?;
    let done: Arc<Mutex<HashSet<Option<String>>>> = Arc::default();
    deployments.subscribe(move |event| {
        let count = event.object().status.as_ref().and_then(|status| status.available_replicas);
        let mut done = done.lock();
        match event {
            Event::Added(object) | Event::Modified { new: object, .. } if count == Some(wanted) => {
                done.insert(object.metadata.name.clone())
            }
            event => done.remove(&event.object().metadata.name),
        };
        sender.send_replace(done.len());
    });
    informers.start(stop.clone());
    deployments.synced().await;

    let started = Instant::now();
    let api = client.namespaced::<Deployment>(NAMESPACE);
    stream::iter(0..shape.deployments)
        .map(|index| {
            let api = api.clone();
            async move { api.create(&deployment(index, wanted)?).await.context("creating a deployment") }
        })
        .buffer_unordered(WRITERS)
        .try_for_each(async |_| Ok(()))
        .await?;
    until(available, shape.deployments, "Available").await?;
    let up = started.elapsed();

    let pods = informers.namespaced::<Pod>(NAMESPACE, ListParams::default());
    let (sender, left) = watch::channel(usize::MAX);
    {
        let gone = Arc::new(Mutex::new(HashSet::new()));
        pods.subscribe(move |event| {
            let mut here = gone.lock();
            match event {
                Event::Deleted(pod) => here.remove(&pod.metadata.uid),
                event => here.insert(event.object().metadata.uid.clone()),
            };
            sender.send_replace(here.len());
        });
    }
    pods.synced().await;
    let started = Instant::now();
    api.delete_collection(&ListParams::default(), &DeleteParams::background()).await?;
    until(left, 0, "gone").await?;
    let down = started.elapsed();
    client.all::<Namespace>().delete(NAMESPACE, &DeleteParams::default()).await?;
    until_gone(client).await?;
    let rate = |time: Duration| shape.pods() as f64 / time.as_secs_f64();
    Ok(Rates { up: rate(up), down: rate(down) })
}

async fn until(mut count: watch::Receiver<usize>, wanted: usize, what: &str) -> Result<()> {
    let reached = tokio::time::timeout(ROUND_TIMEOUT, count.wait_for(|count| *count == wanted)).await;
    let last = reached.map(|reached| reached.is_ok());
    anyhow::ensure!(last == Ok(true), "not all became {what} within {ROUND_TIMEOUT:?}");
    Ok(())
}

async fn until_at_least(mut count: watch::Receiver<usize>, wanted: usize) -> Result<()> {
    tokio::time::timeout(ROUND_TIMEOUT, count.wait_for(|count| *count >= wanted))
        .await
        .context("not all were made")??;
    Ok(())
}

async fn until_nodes(client: &Client, wanted: usize, stop: CancellationToken) -> Result<()> {
    let _ended = stop.clone().drop_guard();
    let informers = InformerFactory::new(client.clone());
    let nodes = informers.informer::<Node>();
    let (sender, count) = watch::channel(0);
    nodes.subscribe(move |event| {
        if matches!(event, Event::Added(_)) {
            sender.send_modify(|count| *count += 1);
        }
    });
    informers.start(stop);
    until(count, wanted, "registered").await
}

async fn until_gone(client: &Client) -> Result<()> {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let informers = InformerFactory::new(client.clone());
    let namespaces = informers.filtered::<Namespace>(ListParams::fields(format!("metadata.name={NAMESPACE}")));
    let (sender, count) = watch::channel(usize::MAX);
    let here = namespaces.clone();
    namespaces.subscribe(move |_| {
        sender.send_replace(here.len());
    });
    informers.start(stop);
    namespaces.synced().await;
    if namespaces.is_empty() { Ok(()) } else { until(count, 0, "gone").await }
}

async fn remove_nodes(client: &Client, count: usize) -> Result<()> {
    let api = client.all::<Node>();
    for index in 0..count {
        api.delete(&format!("coxbench-{index}"), &DeleteParams::default()).await?;
    }
    Ok(())
}

pub(crate) fn deployment(index: usize, replicas: i32) -> Result<Deployment> {
    let name = format!("web-{index}");
    let container = json!({ "name": "web", "image": "nginx", "ports": [{ "containerPort": 80 }], "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } } });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 } },
        },
    }))?)
}
