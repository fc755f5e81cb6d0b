//! Samples of what nodes and containers have used, and the rates between two of them.
//!
//! Invariant: nothing is sampled unless somebody asks (the history does so once a minute), and however many ask, each
//! node is asked once in [`SAMPLE_INTERVAL`], or a few times more while a pod has just started.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Status;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::cluster::Cluster;

/// An answer this young is given again, and one that lacks a pod which has just started as long as it is this young.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
const NEW_POD_INTERVAL: Duration = Duration::from_secs(2);
/// An older sample is no beginning of a window.
const MAX_WINDOW: Duration = Duration::from_secs(90);
/// How long to measure when there is no earlier sample.
const FIRST_WINDOW: Duration = Duration::from_secs(1);
/// A node that takes longer is left out, and so are those that were not asked before a round is over: two rounds have to
/// fit into one request.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// Nodes asked at a time.
const PARALLEL: usize = 16;
/// More than the summary of a node with a thousand pods.
const MAX_SUMMARY: usize = 64 << 20;

/// CPU time in nanoseconds since the start, and bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Used {
    cpu: u64,
    memory: u64,
}

/// Rate in nanoseconds per second, and bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
}

#[derive(Debug, Clone)]
struct NodeSample {
    taken: Instant,
    time: Timestamp,
    node: Option<Used>,
    /// By namespace and name, with the pod's uid: a new pod of an old name begins anew.
    pods: HashMap<(String, String), (String, BTreeMap<String, Used>)>,
    /// Bytes received and sent since the start, of pods and of the node.
    networks: HashMap<(String, String), (u64, u64)>,
    node_network: Option<(u64, u64)>,
    /// Bytes in use and bytes that there are.
    disk: Option<(u64, u64)>,
}

/// All nodes that answered, by name.
type Samples = BTreeMap<String, NodeSample>;

/// What was used in a window of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    pub(crate) end: Timestamp,
    pub(crate) length: Duration,
    pub(crate) node: Option<Usage>,
    pub(crate) pods: BTreeMap<(String, String), BTreeMap<String, Usage>>,
    /// Bytes received and sent per second, of pods and of the node.
    pub(crate) networks: BTreeMap<(String, String), (f64, f64)>,
    pub(crate) node_network: Option<(f64, f64)>,
    /// Bytes in use and bytes that there are.
    pub(crate) disk: Option<(u64, u64)>,
}

#[derive(Default)]
struct Past {
    latest: Option<(Instant, Arc<Samples>)>,
    windows: Arc<BTreeMap<String, Window>>,
}

#[derive(Default)]
pub(crate) struct Sampler(Mutex<Past>);

impl Sampler {
    /// What every node used of late, by name of node.
    pub(crate) async fn windows(
        &self,
        cluster: &Arc<Cluster>,
        is_complete: impl Fn(&BTreeMap<String, Window>) -> bool,
    ) -> Arc<BTreeMap<String, Window>> {
        let mut past = self.0.lock().await;
        let known = past.latest.as_ref().map(|(at, samples)| (at.elapsed(), samples.clone()));
        let before = match known {
            Some((age, _)) if age < NEW_POD_INTERVAL => return past.windows.clone(),
            Some((age, _)) if age < SAMPLE_INTERVAL && is_complete(&past.windows) => return past.windows.clone(),
            Some((age, samples)) if age < MAX_WINDOW => samples,
            // Nothing is kept before the second round is done: a caller that leaves in between changes nothing.
            _ => {
                let first = sample(cluster).await;
                tokio::time::sleep(FIRST_WINDOW).await;
                Arc::new(first)
            }
        };
        let latest = sample(cluster).await;
        let windows = latest.iter().filter_map(|(name, new)| Some((name.clone(), window(before.get(name)?, new)?)));
        let windows = Arc::new(windows.collect());
        past.latest = Some((Instant::now(), Arc::new(latest)));
        past.windows = windows;
        past.windows.clone()
    }
}

fn window(old: &NodeSample, new: &NodeSample) -> Option<Window> {
    let length = new.taken.checked_duration_since(old.taken).filter(|length| !length.is_zero())?;
    let pods = new.pods.iter().filter_map(|(key, (uid, containers))| {
        let (_, before) = old.pods.get(key).filter(|(known, _)| known == uid)?;
        // A pod of which a container was not measured yet would seem to use less than it does.
        let rates = containers.iter().map(|(name, used)| Some((name.clone(), rate(before.get(name)?, used, length)?)));
        let rates: BTreeMap<_, _> = rates.collect::<Option<_>>()?;
        (!rates.is_empty()).then(|| (key.clone(), rates))
    });
    let node = old.node.zip(new.node).and_then(|(old, new)| rate(&old, &new, length));
    // None if the count began anew in between.
    let flow = |old: &(u64, u64), new: &(u64, u64)| {
        let per_second = |old: u64, new: u64| Some(new.checked_sub(old)? as f64 / length.as_secs_f64());
        Some((per_second(old.0, new.0)?, per_second(old.1, new.1)?))
    };
    let same = |key: &(String, String)| Some(old.pods.get(key)?.0 == new.pods.get(key)?.0);
    let networks = new.networks.iter().filter(|(key, _)| same(key) == Some(true));
    let networks = networks.filter_map(|(key, new)| Some((key.clone(), flow(old.networks.get(key)?, new)?)));
    Some(Window {
        end: new.time,
        length,
        node,
        pods: pods.collect(),
        networks: networks.collect(),
        node_network: old.node_network.zip(new.node_network).and_then(|(old, new)| flow(&old, &new)),
        disk: new.disk,
    })
}

/// None if the count began anew in between.
fn rate(old: &Used, new: &Used, length: Duration) -> Option<Usage> {
    let used = u128::from(new.cpu.checked_sub(old.cpu)?);
    let cpu = used * 1_000_000_000 / length.as_nanos().max(1);
    Some(Usage { cpu: u64::try_from(cpu).unwrap_or(u64::MAX), memory: new.memory })
}

async fn sample(cluster: &Arc<Cluster>) -> Samples {
    let nodes: Vec<String> = match cluster.caches.get("minions") {
        Some(cache) => {
            let snapshot = cache.snapshot();
            let ready =
                snapshot.range(None, None).filter(|entry| entry.read::<Node>().is_ok_and(|node| is_ready(&node)));
            ready.map(|node| node.name().to_owned()).collect()
        }
        None => Vec::new(),
    };
    let asked: Vec<_> = nodes.into_iter().map(|node| sample_one(cluster.clone(), node)).collect();
    let answers = stream::iter(asked).buffer_unordered(PARALLEL).filter_map(std::future::ready);
    answers.take_until(tokio::time::sleep(SCRAPE_INTERVAL)).collect().await
}

/// A node that its kubelet does not report is not asked: it would only be waited for.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn sample_one(cluster: Arc<Cluster>, node: String) -> BoxFuture<'static, Option<(String, NodeSample)>> {
    Box::pin(async move {
        match tokio::time::timeout(NODE_TIMEOUT, ask(&cluster, &node)).await {
            Ok(Ok(sample)) => return Some((node, sample)),
            Ok(Err(error)) => tracing::debug!(node, error = error.message, "no usage from this node"),
            Err(_) => tracing::debug!(node, "this node took too long to say what it uses"),
        }
        None
    })
}

async fn ask(cluster: &Arc<Cluster>, node: &str) -> Result<NodeSample, Status> {
    let response = cluster.own()?.ask_kubelet(node, "/stats/summary").await?;
    let (mut body, mut text) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(Status::internal)?.into_data() {
            text.extend_from_slice(&data);
        }
        if text.len() > MAX_SUMMARY {
            return Err(Status::internal("the kubelet's summary is too long"));
        }
    }
    let summary: Summary = serde_json::from_slice(&text).map_err(Status::internal)?;
    Ok(read(summary, Instant::now(), crate::stamp::now()))
}

#[derive(Deserialize)]
struct Summary {
    node: Measured,
    #[serde(default)]
    pods: Vec<PodStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    network: Option<Network>,
    #[serde(default)]
    containers: Vec<Measured>,
}

#[derive(Deserialize)]
struct PodRef {
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
struct Measured {
    #[serde(default)]
    name: String,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    /// Of nodes.
    network: Option<Network>,
    fs: Option<FileSystem>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    rx_bytes: Option<u64>,
    tx_bytes: Option<u64>,
}

impl Network {
    fn bytes(&self) -> Option<(u64, u64)> {
        self.rx_bytes.zip(self.tx_bytes)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileSystem {
    capacity_bytes: Option<u64>,
    available_bytes: Option<u64>,
}

impl FileSystem {
    fn used(&self) -> Option<(u64, u64)> {
        let (size, free) = self.capacity_bytes.zip(self.available_bytes)?;
        Some((size.checked_sub(free)?, size))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    usage_core_nano_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    working_set_bytes: Option<u64>,
}

impl Measured {
    fn used(&self) -> Option<Used> {
        Some(Used {
            cpu: self.cpu.as_ref()?.usage_core_nano_seconds?,
            memory: self.memory.as_ref()?.working_set_bytes?,
        })
    }
}

fn read(summary: Summary, taken: Instant, time: Timestamp) -> NodeSample {
    let networks = summary.pods.iter().filter_map(|pod| {
        let key = (pod.pod_ref.namespace.clone(), pod.pod_ref.name.clone());
        Some((key, pod.network.as_ref()?.bytes()?))
    });
    let networks = networks.collect();
    let pod = |pod: PodStats| {
        let containers = pod.containers.iter().filter_map(|one| Some((one.name.clone(), one.used()?))).collect();
        ((pod.pod_ref.namespace, pod.pod_ref.name), (pod.pod_ref.uid, containers))
    };
    NodeSample {
        taken,
        time,
        node: summary.node.used(),
        networks,
        node_network: summary.node.network.as_ref().and_then(Network::bytes),
        disk: summary.node.fs.as_ref().and_then(FileSystem::used),
        pods: summary.pods.into_iter().map(pod).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(name: &str, cpu: u64, memory: u64) -> Value {
        json!({"name": name, "cpu": {"usageCoreNanoSeconds": cpu}, "memory": {"workingSetBytes": memory}})
    }

    fn at(summary: Value, seconds: u64, start: Instant) -> NodeSample {
        read(serde_json::from_value(summary).unwrap(), start + Duration::from_secs(seconds), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn rates_are_those_of_the_window() {
        let start = Instant::now();
        let summary = |uid: &str, cpu: u64, containers: Vec<Value>| {
            let network = json!({"rxBytes": cpu, "txBytes": 2 * cpu});
            let pod = json!({"podRef": {"namespace": "n", "name": "p", "uid": uid}, "containers": containers,
                "network": network});
            let mut node = container("", cpu, 7);
            (node["network"], node["fs"]) = (network, json!({"capacityBytes": 100, "availableBytes": 60}));
            json!({"node": node, "pods": [pod]})
        };
        let old = at(summary("1", 1_000, vec![container("a", 500, 1), container("b", 900, 1)]), 0, start);
        for (what, new, expected) in [
            (
                "same pod",
                ("1", vec![container("a", 4_500, 2), container("b", 900, 3)]),
                Some(vec![("a", 2_000, 2), ("b", 0, 3)]),
            ),
            ("another pod of that name", ("2", vec![container("a", 4_500, 2)]), None),
            ("a container that is new", ("1", vec![container("a", 4_500, 2), container("c", 9, 3)]), None),
            ("a container that began anew", ("1", vec![container("a", 4, 2)]), None),
        ] {
            let found = window(&old, &at(summary(new.0, 5_000, new.1), 2, start)).unwrap();
            assert_eq!(found.node, Some(Usage { cpu: 2_000, memory: 7 }), "{what}");
            assert_eq!(found.length, Duration::from_secs(2));
            assert_eq!((found.node_network, found.disk), (Some((2_000.0, 4_000.0)), Some((40, 100))), "{what}");
            assert_eq!(found.networks.len(), usize::from(new.0 == "1"), "{what}");
            let pod = found.pods.get(&("n".to_owned(), "p".to_owned()));
            let pod = pod.map(|pod| pod.iter().map(|(name, usage)| (name.as_str(), usage.cpu, usage.memory)).collect());
            assert_eq!(pod, expected, "{what}");
        }
    }
}
