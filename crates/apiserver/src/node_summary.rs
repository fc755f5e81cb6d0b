//! What a kubelet's `/stats/summary` counts, read within bounds: whoever owns a node decides what it answers.
//!
//! Invariant: what is kept of an answer is bounded by the pods that are bound to the node, whatever its length and its
//! figures are. One that lists more than any node has is not believed at all.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Pods of an answer, and containers of one of them.
const MAX_PODS: usize = 10_000;
const MAX_CONTAINERS: usize = 1000;
/// No uid of the API is longer, and no hash that a static pod has instead.
const MAX_UID: usize = 128;
/// The largest count: it fits every type that clients read it into.
pub(crate) const MAX_COUNT: u64 = i64::MAX as u64;

/// CPU time in nanoseconds since the start, and bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu: u64,
    pub(crate) memory: u64,
}

/// What a node or a pod has counted since its start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Of a pod: a new one of an old name begins anew.
    pub(crate) uid: Box<str>,
    /// By container. A node has one, without a name.
    pub(crate) used: BTreeMap<String, Used>,
    /// Bytes received and sent.
    pub(crate) network: Option<(u64, u64)>,
}

/// What one node says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeCounts {
    pub(crate) node: Counts,
    /// By namespace and name.
    pub(crate) pods: HashMap<(String, String), Counts>,
    /// Bytes in use and bytes that there are.
    pub(crate) disk: Option<(u64, u64)>,
}

/// Reads an answer. `is_own` knows by namespace and name which pods are bound to the node: it speaks of no others.
pub(crate) fn read(answer: &[u8], is_own: impl Fn(&str, &str) -> bool) -> serde_json::Result<NodeCounts> {
    let Summary { node, pods } = serde_json::from_slice(answer)?;
    let own = pods.into_iter().filter(|pod| is_own(&pod.pod_ref.namespace, &pod.pod_ref.name));
    let pods = own.map(|PodStats { pod_ref: PodRef { namespace, name, uid }, network, containers }| {
        let uid = if uid.len() <= MAX_UID { uid.into() } else { Box::default() };
        ((namespace, name), Counts { uid, used: containers, network: network.and_then(|network| network.bytes()) })
    });
    let pods = pods.collect();
    let used = node.used().map(|used| (String::new(), used)).into_iter().collect();
    let network = node.network.and_then(|network| network.bytes());
    let disk = node.fs.and_then(|disk| disk.used());
    Ok(NodeCounts { node: Counts { uid: Box::default(), used, network }, pods, disk })
}

#[derive(Deserialize)]
struct Summary {
    node: Measured,
    #[serde(default, deserialize_with = "pods")]
    pods: Vec<PodStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    network: Option<Network>,
    #[serde(default, deserialize_with = "containers")]
    containers: BTreeMap<String, Used>,
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

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    rx_bytes: Option<u64>,
    tx_bytes: Option<u64>,
}

impl Network {
    fn bytes(self) -> Option<(u64, u64)> {
        self.rx_bytes.zip(self.tx_bytes)
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileSystem {
    capacity_bytes: Option<u64>,
    available_bytes: Option<u64>,
}

impl FileSystem {
    fn used(self) -> Option<(u64, u64)> {
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
        let cpu = self.cpu.as_ref()?.usage_core_nano_seconds?;
        let memory = self.memory.as_ref()?.working_set_bytes?;
        Some(Used { cpu: cpu.min(MAX_COUNT), memory: memory.min(MAX_COUNT) })
    }
}

/// A list that is not kept as it comes: `take` decides about each item and how many there may be. Go writes an empty one
/// as null.
struct Items<T, K, F>(F, PhantomData<(T, K)>);

impl<'de, T, K, F> Visitor<'de> for Items<T, K, F>
where
    T: Deserialize<'de>,
    K: Default,
    F: FnMut(&mut K, T) -> Result<(), &'static str>,
{
    type Value = K;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<K, E> {
        Ok(K::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<K, A::Error> {
        let mut kept = K::default();
        while let Some(item) = items.next_element()? {
            (self.0)(&mut kept, item).map_err(A::Error::custom)?;
        }
        Ok(kept)
    }
}

fn pods<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PodStats>, D::Error> {
    let take = |kept: &mut Vec<PodStats>, pod: PodStats| {
        kept.push(pod);
        if kept.len() <= MAX_PODS { Ok(()) } else { Err("more pods than a node has") }
    };
    deserializer.deserialize_any(Items(take, PhantomData))
}

/// Those that were measured and have the name of a container.
fn containers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Used>, D::Error> {
    let take = |kept: &mut BTreeMap<String, Used>, container: Measured| {
        let used = container.used().filter(|_| api::validation::dns1123_label(&container.name).is_empty());
        kept.extend(used.map(|used| (container.name, used)));
        if kept.len() <= MAX_CONTAINERS { Ok(()) } else { Err("more containers than a pod has") }
    };
    deserializer.deserialize_any(Items(take, PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(name: &str, cpu: u64, memory: u64) -> Value {
        json!({"name": name, "cpu": {"usageCoreNanoSeconds": cpu}, "memory": {"workingSetBytes": memory}})
    }

    fn pod(name: &str, containers: Value) -> Value {
        json!({"podRef": {"namespace": "d", "name": name, "uid": name}, "containers": containers})
    }

    /// What each container of a pod has used.
    type Pod = (String, Vec<(String, Used)>);

    fn told(summary: &Value) -> Result<Vec<Pod>, String> {
        let counts = read(summary.to_string().as_bytes(), |_, name| name != "foreign");
        let mut pods: Vec<_> = counts.map_err(|error| error.to_string())?.pods.into_iter().collect();
        pods.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(pods.into_iter().map(|((_, name), counts)| (name, counts.used.into_iter().collect())).collect())
    }

    #[test]
    fn security_a_node_speaks_of_its_own_pods_only() {
        let node = container("", 1, 1);
        let pods = [pod("own", json!([container("a", 2, 3)])), pod("foreign", json!([container("a", 2, 3)]))];
        let expected = vec![("own".to_owned(), vec![("a".to_owned(), Used { cpu: 2, memory: 3 })])];
        assert_eq!(told(&json!({"node": node, "pods": pods})), Ok(expected));
    }

    #[test]
    fn lists_of_nothing_are_empty() {
        for (pods, expected) in [
            (json!(null), vec![]),
            (json!([]), vec![]),
            (json!([pod("p", json!(null))]), vec![("p".to_owned(), vec![])]),
        ] {
            assert_eq!(told(&json!({"node": {}, "pods": pods})), Ok(expected), "{pods}");
        }
        assert_eq!(told(&json!({"node": {}})), Ok(vec![]));
    }

    #[test]
    fn security_what_a_node_lists_is_bounded() {
        let many = |count: usize, one: &dyn Fn(usize) -> Value| Value::from((0..count).map(one).collect::<Vec<_>>());
        let containers = |count| many(count, &|at| container(&format!("c{at}"), 1, 1));
        let pods = |count| many(count, &|at| pod(&format!("p{at}"), json!([])));
        let of = |pods: Value| told(&json!({"node": {}, "pods": pods})).map(|pods| pods.len());
        assert_eq!(of(json!([pod("p", containers(MAX_CONTAINERS))])), Ok(1));
        let refused = of(json!([pod("p", containers(MAX_CONTAINERS + 1))])).unwrap_err();
        assert!(refused.starts_with("more containers than a pod has"), "{refused}");
        assert_eq!(of(pods(MAX_PODS)), Ok(MAX_PODS));
        assert!(of(pods(MAX_PODS + 1)).unwrap_err().starts_with("more pods than a node has"));
    }

    #[test]
    fn security_names_and_figures_are_those_of_containers() {
        let long = "a".repeat(64);
        let named = ["", "A", "a b", "a\n", &long, "good"].map(|name| container(name, u64::MAX, u64::MAX));
        let mut summary = json!({"node": container("", u64::MAX, 1), "pods": [pod("p", json!(named))]});
        let most = Used { cpu: MAX_COUNT, memory: MAX_COUNT };
        assert_eq!(told(&summary), Ok(vec![("p".to_owned(), vec![("good".to_owned(), most)])]));
        summary["pods"][0]["podRef"]["uid"] = "u".repeat(MAX_UID + 1).into();
        let counts = read(summary.to_string().as_bytes(), |_, _| true).unwrap();
        assert!(counts.pods.values().all(|counts| counts.uid.is_empty()));
        assert_eq!(counts.node.used[""], Used { cpu: MAX_COUNT, memory: 1 });
        // More of the disk is free than there is.
        for (fs, expected) in [((100, 60), Some((40, 100))), ((100, 101), None)] {
            let fs = json!({"capacityBytes": fs.0, "availableBytes": fs.1});
            let counts = read(json!({"node": {"fs": fs}}).to_string().as_bytes(), |_, _| true).unwrap();
            assert_eq!(counts.disk, expected);
        }
    }
}
