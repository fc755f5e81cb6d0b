//! Pods per second, on the workloads of upstream's scheduler_perf: the algorithm alone, and through a real API server.
//!
//! Through the API our own scheduler runs on our own API server in this process, and so do hollow nodes, which report every
//! pod they get as running: a measurement ends when the last pod has its node. With `--peer-kubeconfig` the same objects and the
//! same hollow nodes go to another cluster, whose scheduler is measured in the same way, one after the other.

use crate::Args;
use crate::control_plane::{ControlPlane, Transport};
use crate::report;
use ::scheduler::{Configuration, Offline, Outcome};
use anyhow::{Context, bail};
use api::cached::Pod;
use bytes::Bytes;
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, DeleteParams, ListParams, Patch, WatchEvent, WatchStream};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Request, header};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Requests under way at once while objects are made.
const CREATORS: usize = 32;
/// Zones over which nodes are spread.
const ZONES: usize = 3;
/// If no pod is bound for this long, the workload is stuck.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);

/// One workload: what is there before, and what is measured.
struct Workload {
    name: &'static str,
    /// Pods that are there already, on nodes or waiting for ever.
    before: fn(nodes: usize) -> Vec<Group>,
    measured: Group,
}

/// So many pods alike.
#[derive(Clone, Copy)]
struct Group {
    count: usize,
    spec: fn() -> Value,
    labels: fn() -> Value,
    /// They get no node, and nobody waits for them to.
    stays_pending: bool,
    /// The queue never gives them out.
    is_gated: bool,
}

const fn group(count: usize, spec: fn() -> Value, labels: fn() -> Value) -> Group {
    Group { count, spec, labels, stays_pending: false, is_gated: false }
}

const fn pending(count: usize, spec: fn() -> Value, is_gated: bool) -> Group {
    Group { count, spec, labels: plain, stays_pending: true, is_gated }
}

fn plain() -> Value {
    json!({})
}

fn blue() -> Value {
    json!({"color": "blue"})
}

fn green() -> Value {
    json!({"color": "green"})
}

fn requests(cpu: &str, memory: &str) -> Value {
    json!({"containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": cpu, "memory": memory}}}]})
}

fn default_pod() -> Value {
    requests("100m", "500Mi")
}

fn with(extra: Value) -> Value {
    let mut spec = default_pod();
    for (key, value) in extra.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

fn color_term(color: &str, key: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"color": color}}, "topologyKey": key})
}

fn near() -> Value {
    with(json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [color_term("blue", "topology.kubernetes.io/zone")]}}}))
}

fn far() -> Value {
    with(json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [color_term("green", "kubernetes.io/hostname")]}}}))
}

fn spread() -> Value {
    with(json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"color": "blue"}}}]}))
}

fn node_affinity() -> Value {
    with(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-0", "zone-1"]}]}]}}}}))
}

fn low_priority() -> Value {
    let mut spec = requests("900m", "500Mi");
    spec["priority"] = 0.into();
    spec
}

fn high_priority() -> Value {
    let mut spec = requests("3000m", "500Mi");
    (spec["priority"], spec["priorityClassName"]) = (1_000_000.into(), "coxbench-high".into());
    spec
}

fn too_large() -> Value {
    requests("9", "500Mi")
}

fn gated() -> Value {
    with(json!({"schedulingGates": [{"name": "coxbench.example/wait"}]}))
}

const WORKLOADS: &[Workload] = &[
    Workload {
        name: "SchedulingBasic",
        before: |_| vec![group(1000, default_pod, plain)],
        measured: group(5000, default_pod, plain),
    },
    Workload {
        name: "SchedulingPodAffinity",
        before: |_| vec![group(1000, near, blue)],
        measured: group(2000, near, blue),
    },
    Workload {
        name: "SchedulingPodAntiAffinity",
        before: |nodes| vec![group(nodes / 5, far, green)],
        measured: group(400, far, green),
    },
    Workload {
        name: "TopologySpreading",
        before: |_| vec![group(1000, default_pod, blue)],
        measured: group(2000, spread, blue),
    },
    Workload {
        name: "PreemptionBasic",
        before: |nodes| vec![group(nodes * 4, low_priority, plain)],
        measured: group(500, high_priority, plain),
    },
    Workload {
        name: "SchedulingNodeAffinity",
        before: |_| vec![group(1000, node_affinity, plain)],
        measured: group(2000, node_affinity, plain),
    },
    Workload {
        name: "MixedSchedulingBasePod",
        before: |nodes| {
            vec![
                group(500, default_pod, plain),
                group(500, near, blue),
                group(nodes / 5, far, green),
                group(500, spread, blue),
                group(500, node_affinity, plain),
            ]
        },
        measured: group(2000, default_pod, plain),
    },
    Workload {
        name: "SchedulingWhileGated",
        before: |_| vec![pending(5000, gated, true)],
        measured: group(2000, default_pod, plain),
    },
    Workload {
        name: "Unschedulable",
        before: |_| vec![pending(500, too_large, false)],
        measured: group(2000, default_pod, plain),
    },
];

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let sizes = match args.nodes {
        Some(nodes) => vec![nodes],
        None if args.quick => vec![100],
        None => vec![500, 5000],
    };
    let wanted = WORKLOADS.iter().filter(|workload| args.wants(workload.name));
    for workload in wanted {
        for nodes in &sizes {
            let workload = workload.sized(*nodes, args.quick);
            if args.algorithm_only {
                workload.think(*nodes)?;
            } else {
                workload.through_api(*nodes, &args).await?;
            }
        }
    }
    if args.algorithm_only && args.wants("Scale") {
        let sizes = match args.nodes {
            Some(nodes) => vec![nodes],
            None if args.quick => vec![100, 1000],
            None => vec![500, 5000, 100_000],
        };
        for nodes in sizes {
            // As many as fit, up to the same number everywhere: only the number of nodes differs.
            let count = args.pods.unwrap_or(if args.quick { nodes } else { (nodes * 40).min(100_000) });
            let measured = group(count, default_pod, plain);
            Workload { name: "Scale", before: |_| Vec::new(), measured }.think(nodes)?;
        }
    }
    Ok(())
}

/// A node as hollow ones are, for the algorithm alone.
fn node(at: usize) -> Node {
    let name = format!("node-{at}");
    let node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("zone-{}", at % ZONES)}},
        "status": {"capacity": {"cpu": "4", "memory": "32Gi", "pods": "110"},
            "allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    });
    serde_json::from_value(node).unwrap_or_default()
}

fn pod(prefix: &str, at: usize, group: Group) -> Pod {
    let name = format!("{prefix}-{at}");
    let metadata = json!({"name": name, "uid": name, "namespace": "coxbench", "labels": (group.labels)()});
    let pod = json!({"metadata": metadata, "spec": (group.spec)()});
    api::codec::from_value(&pod).unwrap_or_default()
}

impl Workload {
    /// Small clusters have room for fewer pods.
    fn sized(&self, nodes: usize, quick: bool) -> Workload {
        let most = match (self.name, quick) {
            ("SchedulingPodAntiAffinity", _) => nodes / 2,
            ("PreemptionBasic", _) => nodes,
            (_, true) => nodes,
            (_, false) => nodes * 20,
        };
        let measured = Group { count: self.measured.count.min(most), ..self.measured };
        Workload { name: self.name, before: self.before, measured }
    }

    /// The algorithm alone: one decision after the other.
    fn think(&self, nodes: usize) -> anyhow::Result<()> {
        report::forget_peak();
        let mut offline = Offline::new(&Configuration::default(), 1)?;
        (0..nodes).for_each(|at| offline.set_node(Arc::new(node(at))));
        for (number, group) in (self.before)(nodes).into_iter().filter(|group| !group.is_gated).enumerate() {
            for at in 0..group.count {
                let outcome = offline.schedule(Arc::new(pod(&format!("before{number}"), at, group)));
                if !group.stays_pending && !matches!(outcome, Outcome::Placed { .. }) {
                    bail!("{}: a pod that was to be there already got no node: {outcome:?}", self.name);
                }
            }
        }
        let pods: Vec<Arc<Pod>> = (0..self.measured.count).map(|at| Arc::new(pod("pod", at, self.measured))).collect();
        let began = Instant::now();
        for pod in pods {
            match offline.schedule(pod.clone()) {
                Outcome::Placed { .. } => {}
                Outcome::Preempts { node, victims } => {
                    victims.iter().for_each(|victim| offline.remove_pod(victim));
                    // It comes back with the node that is kept for it in its status.
                    let mut nominated = Pod::clone(&pod);
                    nominated.status.get_or_insert_default().nominated_node_name = Some(node);
                    let again = offline.schedule(Arc::new(nominated));
                    if !matches!(again, Outcome::Placed { .. }) {
                        bail!("{}: room was made in vain: {again:?}", self.name);
                    }
                }
                Outcome::Unplaced { message } => bail!("{}: {message}", self.name),
            }
        }
        let rate = self.measured.count as f64 / began.elapsed().as_secs_f64();
        let peak = report::peak()? / (1 << 20);
        let each = 1e6 / rate;
        println!(
            "{} algorithm nodes={nodes} pods={} pods_per_s={rate:.0} us_per_pod={each:.1} peak_mib={peak}",
            self.name, self.measured.count
        );
        Ok(())
    }

    async fn through_api(&self, nodes: usize, args: &Args) -> anyhow::Result<()> {
        let dir = tempfile::tempdir_in(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
        let ours = ControlPlane::start(dir.path(), Transport::Call).await?.with_scheduler();
        let our_rate = self.measure(&ours.client, nodes).await.context("ours")?;
        ours.stop().await?;
        let parameters = format!("{} nodes={nodes} pods={}", self.name, self.measured.count);
        let Some(kubeconfig) = &args.peer_kubeconfig else {
            println!("{parameters} pods_per_s={our_rate:.0}");
            return Ok(());
        };
        let config = Kubeconfig::load(Some(kubeconfig))?;
        let peer = Client::from_kubeconfig(&config, &Overrides::default())?;
        let peer_rate = self.measure(&peer, nodes).await.context("peer")?;
        let ratio = our_rate / peer_rate;
        println!("{parameters} pods_per_s={our_rate:.0} ours={our_rate:.0}/s peer={peer_rate:.0}/s ratio={ratio:.2}");
        Ok(())
    }

    /// Pods per second from the first pod made to the last one bound.
    async fn measure(&self, client: &Client, nodes: usize) -> anyhow::Result<f64> {
        let namespace = format!("coxbench-{}-{nodes}", self.name.to_lowercase());
        let result = self.measure_in(client, &namespace, nodes).await;
        clean(client, &namespace, nodes).await.context("cleaning up")?;
        result
    }

    async fn measure_in(&self, client: &Client, namespace: &str, nodes: usize) -> anyhow::Result<f64> {
        let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        client.all::<Namespace>().create(&object).await?;
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        if let Err(error) = client.namespaced::<ServiceAccount>(namespace).create(&account).await
            && !error.is_already_exists()
        {
            return Err(error.into());
        }
        let class = json!({"metadata": {"name": "coxbench-high"}, "value": 1_000_000});
        let classes = client.all::<PriorityClass>();
        if let Err(error) = classes.create(&serde_json::from_value(class)?).await
            && !error.is_already_exists()
        {
            return Err(error.into());
        }
        let stop = CancellationToken::new();
        let mut hollow = tokio::spawn(sim::run(hollow_nodes(client, nodes), stop.clone()));
        let _stop_early = stop.clone().drop_guard();
        let opened = stream::iter((0..nodes).map(|at| open_node(client, at)));
        tokio::select! {
            ended = &mut hollow => ended?.context("hollow nodes")?,
            opened = opened.buffer_unordered(CREATORS).try_collect::<Vec<()>>() => drop(opened.context("nodes")?),
        }
        for (number, group) in (self.before)(nodes).into_iter().enumerate() {
            let prefix = format!("before{number}");
            place(client, namespace, &prefix, group).await.context("pods that are to be there")?;
        }
        let time = place(client, namespace, "pod", self.measured).await?;
        stop.cancel();
        hollow.await??;
        Ok(self.measured.count as f64 / time.as_secs_f64())
    }
}

fn hollow_nodes(client: &Client, nodes: usize) -> sim::Config {
    let config = sim::Config::new(client.clone(), nodes).with_capacity("cpu", "4").with_capacity("memory", "32Gi");
    sim::Config { name_prefix: "node-".into(), zones: ZONES, ..config }
}

/// Waits for a node, and opens it: it is tainted until somebody sees it ready, and no controller may be there to do so.
async fn open_node(client: &Client, at: usize) -> Result<(), client::Error> {
    let (nodes, name) = (client.all::<Node>(), format!("node-{at}"));
    let node = loop {
        match nodes.get_opt(&name).await? {
            Some(node) => break node,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    if node.spec.is_some_and(|spec| spec.taints.is_some()) {
        nodes.patch(&name, &Patch::merge(json!({"spec": {"taints": null}}))).await?;
    }
    Ok(())
}

/// As much of a pod as the measurement looks at: the one who measures must not be what is measured.
#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Seen {
    metadata: SeenMetadata,
    spec: SeenSpec,
}

api::read_by_serde!(Seen);

#[derive(serde::Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SeenMetadata {
    name: String,
    resource_version: String,
}

#[derive(serde::Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SeenSpec {
    node_name: String,
}

/// Makes pods and waits until each has a node. Returns how long that took.
async fn place(client: &Client, namespace: &str, prefix: &str, group: Group) -> anyhow::Result<Duration> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let one = ListParams { limit: Some(1), ..ListParams::default() };
    let before = client.namespaced::<Pod>(namespace).list(&one).await?;
    let version = before.metadata.resource_version.unwrap_or_default();
    let events = watch(client, &path, &version).await?;
    let bodies = (0..group.count).map(|at| {
        let mut pod = pod(prefix, at, group);
        (pod.metadata.uid, pod.metadata.namespace) = (None, None);
        serde_json::to_vec(&pod.complete()).map(Bytes::from)
    });
    let bodies = Arc::new(Mutex::new(bodies.collect::<Result<Vec<Bytes>, _>>()?));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..CREATORS {
        tasks.spawn(create(client.clone(), path.clone(), bodies.clone()));
    }
    if !group.stays_pending {
        tasks.spawn(until_bound(client.clone(), path, events, prefix.to_owned(), group.count));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(began.elapsed())
}

/// Makes pods as long as there are any to make.
async fn create(client: Client, path: String, bodies: Arc<Mutex<Vec<Bytes>>>) -> anyhow::Result<()> {
    while let Some(body) = next(&bodies) {
        let request = Request::post(&path).header(header::CONTENT_TYPE, "application/json").body(body)?;
        let response = client.send(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(anyhow::Error::from_boxed)?.to_bytes();
        anyhow::ensure!(status.is_success(), "creating a pod: {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(())
}

fn next(bodies: &Mutex<Vec<Bytes>>) -> Option<Bytes> {
    bodies.lock().pop()
}

async fn watch(client: &Client, path: &str, version: &str) -> anyhow::Result<WatchStream<Seen>> {
    let request = Request::get(format!("{path}?watch=true&resourceVersion={version}")).body(Bytes::new())?;
    Ok(WatchStream::new(client.send(request).await?.into_body()))
}

/// Follows the pods until all of a group are bound. A server under load may end the watch of a client that reads too slowly:
/// it goes on from where it was.
async fn until_bound(
    client: Client,
    path: String,
    mut events: WatchStream<Seen>,
    prefix: String,
    count: usize,
) -> anyhow::Result<()> {
    let mut bound = HashSet::new();
    let mut version = None;
    while bound.len() < count {
        let event = tokio::time::timeout(PROGRESS_TIMEOUT, events.next()).await;
        let event = event.with_context(|| format!("{} of {count} pods are bound", bound.len()))?;
        let Some(event) = event else {
            let from: &String = version.as_ref().context("a watch ended before its first event")?;
            events = watch(&client, &path, from).await?;
            continue;
        };
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event? {
            version = Some(pod.metadata.resource_version);
            if !pod.spec.node_name.is_empty() && pod.metadata.name.starts_with(&prefix) {
                bound.insert(pod.metadata.name);
            }
        }
    }
    Ok(())
}

async fn clean(client: &Client, namespace: &str, nodes: usize) -> anyhow::Result<()> {
    let now = DeleteParams::default().with_grace_period(0);
    client.namespaced::<Pod>(namespace).delete_collection(&ListParams::default(), &now).await?;
    let gone = stream::iter((0..nodes).map(|at| async move {
        match client.all::<Node>().delete(&format!("node-{at}"), &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }));
    gone.buffer_unordered(CREATORS).try_collect::<Vec<()>>().await?;
    client.all::<Namespace>().delete(namespace, &DeleteParams::default()).await?;
    Ok(())
}
