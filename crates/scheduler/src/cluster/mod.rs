//! The cluster as decisions see it: nodes, the pods that are bound or assumed on them, and what else plug-ins ask for.
//!
//! Flow: informers -> here -> `cycle` decides -> the pod is assumed here at once, so that the next decision counts it.
//! Invariant: a pod counts once, on the node the API names, or, until the API names one, on the node it was assumed on.
//! There is no copy to take before a decision: it reads these columns under the lock. Stamps say which nodes changed, and a
//! log says which pods came and went, so a decision redoes only what changed since the last one of its kind.

mod budgets;
mod groups;
mod node;
mod nominated;
mod order;
mod owners;
mod topology;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use k8s_openapi::api::core::v1::Node;

pub(crate) use budgets::Budgets;
pub(crate) use groups::{Change, Groups};
pub(crate) use node::{Capacity, NodeId, Row, Usage, View};
pub(crate) use owners::workload_selector;
pub(crate) use topology::{ColumnId, NO_VALUE, Topology};
pub(crate) use volumes::{Volumes, claim_class, version};

use crate::pod::{self, Catalogue, PodInfo};
use nominated::Nominated;
use order::Order;
use owners::Owners;

#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) catalogue: Arc<Catalogue>,
    rows: Vec<Row>,
    capacity: Vec<Capacity>,
    usage: Vec<Usage>,
    stamps: Vec<Stamp>,
    /// The lowest priority among the pods of each node; `i32::MAX` without pods.
    lowest_priority: Vec<i32>,
    by_name: HashMap<Arc<str>, NodeId>,
    free: Vec<NodeId>,
    order: Order,
    placed: HashMap<Arc<str>, Placed>,
    /// How many pods use a claim, by `namespace/name`.
    claims_in_use: HashMap<String, usize>,
    pub(crate) groups: Groups,
    topology: Topology,
    /// Changes with labels, taints and existence of nodes: whatever was counted per topology is then counted anew.
    layout: u64,
    pub(crate) nominated: Nominated,
    namespaces: HashMap<String, BTreeMap<String, String>>,
    namespaces_generation: u64,
    images: HashMap<String, Image>,
    images_generation: u64,
    pub(crate) owners: Owners,
    pub(crate) volumes: Volumes,
    pub(crate) budgets: Budgets,
    clock: u32,
}

/// When a node was last changed. A stamp is never used twice for one place in the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    /// The node object: labels, taints, capacity.
    pub(crate) object: u32,
    /// Also the pods on it.
    pub(crate) usage: u32,
    /// Also when those pods started, which only counts when some of them have to go.
    pub(crate) starts: u32,
}

#[derive(Debug)]
struct Placed {
    node: NodeId,
    is_assumed: bool,
}

/// An image that nodes have: its size as the first of them said, and where it is.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) size: i64,
    pub(crate) nodes: BTreeSet<NodeId>,
}

/// What an observed pod meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// It counts now and did not before.
    Added,
    /// It counted already.
    Known,
}

impl Cluster {
    pub(crate) fn with_catalogue(catalogue: Arc<Catalogue>) -> Cluster {
        Cluster { catalogue, ..Cluster::default() }
    }

    /// How many nodes a pod could go to.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn pods(&self) -> usize {
        self.placed.len()
    }

    pub(crate) fn assumed(&self) -> usize {
        self.placed.values().filter(|placed| placed.is_assumed).count()
    }

    /// Brings the order of the nodes up to date.
    pub(crate) fn refresh_order(&mut self) {
        self.order.refresh();
    }

    /// The nodes a pod could go to, in the order in which they are looked at.
    pub(crate) fn order(&self) -> &[NodeId] {
        self.order.list()
    }

    pub(crate) fn node(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied().filter(|node| self.rows[node.at()].object.is_some())
    }

    pub(crate) fn row(&self, node: NodeId) -> &Row {
        &self.rows[node.at()]
    }

    /// Places in the columns, those of nodes that are gone included.
    pub(crate) fn places(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn view(&self, node: NodeId) -> View<'_> {
        let at = node.at();
        let row = &self.rows[at];
        View { id: node, row, capacity: &self.capacity[at], usage: &self.usage[at], pods: &row.pods }
    }

    pub(crate) fn stamp(&self, node: NodeId) -> Stamp {
        self.stamps[node.at()]
    }

    pub(crate) fn lowest_priority(&self, node: NodeId) -> i32 {
        self.lowest_priority[node.at()]
    }

    pub(crate) fn layout(&self) -> u64 {
        self.layout
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn column(&mut self, key: &str) -> ColumnId {
        self.topology.column(key, &self.rows)
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(name)
    }

    pub(crate) fn namespaces_generation(&self) -> u64 {
        self.namespaces_generation
    }

    pub(crate) fn image(&self, name: &str) -> Option<&Image> {
        self.images.get(name)
    }

    pub(crate) fn images_generation(&self) -> u64 {
        self.images_generation
    }

    /// Whether a pod on some node uses the claim `namespace/name`.
    pub(crate) fn is_claim_used(&self, claim: &str) -> bool {
        self.claims_in_use.contains_key(claim)
    }

    pub(crate) fn is_assumed(&self, uid: &str) -> bool {
        self.placed.get(uid).is_some_and(|placed| placed.is_assumed)
    }

    /// The pod as it is counted, and where.
    pub(crate) fn placed(&self, uid: &str) -> Option<(&Arc<PodInfo>, NodeId)> {
        let node = self.placed.get(uid)?.node;
        Some((self.rows[node.at()].pods.iter().find(|pod| *pod.uid == *uid)?, node))
    }

    /// Remembers a namespace's labels, or forgets the namespace.
    /// Returns whether that is news.
    pub(crate) fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) -> bool {
        let is_news = self.namespaces.get(name) != labels.as_ref();
        if is_news {
            self.namespaces_generation += 1;
        }
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        is_news
    }

    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        let Some(name) = node.metadata.name.as_deref() else { return };
        let id = self.place_of(name);
        let at = id.at();
        let before = self.rows[at].object.replace(node.clone());
        self.capacity[at] = Capacity::of(&node, &self.catalogue);
        if before.as_ref().is_none_or(|before| is_laid_out_otherwise(before, &node)) {
            self.layout += 1;
            self.topology.read(id, &self.rows[at]);
        }
        self.order.set(id, &self.rows[at]);
        let images = |node: &Node| node.status.as_ref().and_then(|status| status.images.clone()).unwrap_or_default();
        if before.as_ref().is_none_or(|before| images(before) != images(&node)) {
            self.forget_images(id, before.as_deref());
            for image in images(&node) {
                let size = image.size_bytes.unwrap_or(0);
                for name in image.names.into_iter().flatten() {
                    self.images.entry(name).or_insert_with(|| Image { size, nodes: BTreeSet::new() }).nodes.insert(id);
                }
            }
            self.images_generation += 1;
        }
        self.touch(id, true);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(id) = self.node(name) else { return };
        // Its pods are still counted, should the node come back before they go.
        let before = self.rows[id.at()].object.take();
        self.forget_images(id, before.as_deref());
        self.images_generation += 1;
        self.order.remove(id);
        self.topology.read(id, &self.rows[id.at()]);
        self.layout += 1;
        self.touch(id, true);
        self.release_if_empty(id);
    }

    fn forget_images(&mut self, id: NodeId, node: Option<&Node>) {
        let images = node.and_then(|node| node.status.as_ref()?.images.as_ref());
        for name in images.into_iter().flatten().flat_map(|image| image.names.iter().flatten()) {
            if let Some(image) = self.images.get_mut(name) {
                image.nodes.remove(&id);
                if image.nodes.is_empty() {
                    self.images.remove(name);
                }
            }
        }
    }

    /// Counts a pod that the API shows as bound, or stops counting one that has ended.
    pub(crate) fn observe(&mut self, pod: &Arc<Pod>) -> Option<Observed> {
        let node = pod::node_name(pod)?;
        if pod::is_terminal(pod) {
            self.forget(pod.metadata.uid());
            return None;
        }
        let info = PodInfo::placed(pod.clone(), &self.catalogue);
        Some(self.place(Arc::new(info), node, false))
    }

    /// Counts a pod on the node it was given but does not have yet.
    pub(crate) fn assume(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.place(pod, node, true);
    }

    pub(crate) fn forget(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let placed = self.placed.remove(uid)?;
        let id = placed.node;
        let pods = &mut self.rows[id.at()].pods;
        let pod = pods.swap_remove(pods.iter().position(|pod| *pod.uid == *uid)?);
        self.usage[id.at()].remove(&pod);
        if pod.priority == self.lowest_priority[id.at()] {
            let lowest = self.rows[id.at()].pods.iter().map(|pod| pod.priority).min();
            self.lowest_priority[id.at()] = lowest.unwrap_or(i32::MAX);
        }
        self.groups.record(Change::of(&pod, id, -1));
        for (claim, _) in pod.claims() {
            let key = format!("{}/{claim}", pod.namespace());
            if let Some(users) = self.claims_in_use.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.claims_in_use.remove(&key);
                }
            }
        }
        self.touch(id, false);
        self.release_if_empty(id);
        Some(pod)
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: &str, is_assumed: bool) -> Observed {
        self.nominated.remove(&pod.uid);
        if let Some(placed) = self.placed.get_mut(&pod.uid) {
            let id = placed.node;
            let row = &mut self.rows[id.at()];
            if *row.name == *node
                && let Some(held) = row.pods.iter_mut().find(|held| held.uid == pod.uid)
                && is_same_to_others(held, &pod)
            {
                // Nothing that a decision reads has changed: an assumed pod is confirmed, or its status moved on.
                let has_started = held.started() != pod.started();
                *held = pod;
                placed.is_assumed = is_assumed;
                if has_started {
                    self.clock += 1;
                    self.stamps[id.at()].starts = self.clock;
                }
                return Observed::Known;
            }
        }
        let observed = if self.forget(&pod.uid).is_some() { Observed::Known } else { Observed::Added };
        let id = self.place_of(node);
        for (claim, _) in pod.claims() {
            *self.claims_in_use.entry(format!("{}/{claim}", pod.namespace())).or_default() += 1;
        }
        self.groups.record(Change::of(&pod, id, 1));
        self.placed.insert(pod.uid.clone(), Placed { node: id, is_assumed });
        self.usage[id.at()].add(&pod);
        let lowest = &mut self.lowest_priority[id.at()];
        *lowest = (*lowest).min(pod.priority);
        self.rows[id.at()].pods.push(pod);
        self.touch(id, false);
        observed
    }

    fn touch(&mut self, node: NodeId, object: bool) {
        self.clock += 1;
        let stamp = &mut self.stamps[node.at()];
        (stamp.usage, stamp.starts) = (self.clock, self.clock);
        if object {
            stamp.object = self.clock;
        }
    }

    fn place_of(&mut self, name: &str) -> NodeId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            self.capacity.push(Capacity::default());
            self.usage.push(Usage::default());
            self.stamps.push(Stamp::default());
            self.lowest_priority.push(i32::MAX);
            NodeId(self.rows.len() as u32 - 1)
        });
        let name: Arc<str> = name.into();
        self.rows[id.at()] = Row { name: name.clone(), ..Row::default() };
        self.by_name.insert(name, id);
        self.touch(id, true);
        id
    }

    fn release_if_empty(&mut self, id: NodeId) {
        let row = &self.rows[id.at()];
        if row.object.is_none() && row.pods.is_empty() {
            self.by_name.remove(&row.name);
            self.capacity[id.at()] = Capacity::default();
            self.usage[id.at()] = Usage::default();
            self.free.push(id);
        }
    }
}

/// Whether topologies and eligibility have to be looked at again.
fn is_laid_out_otherwise(before: &Node, after: &Node) -> bool {
    let spec = |node: &Node| {
        node.spec.as_ref().map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false))).unwrap_or_default()
    };
    before.metadata.labels != after.metadata.labels || spec(before) != spec(after)
}

fn is_same_to_others(held: &PodInfo, pod: &PodInfo) -> bool {
    Arc::ptr_eq(&held.class, &pod.class)
        && Arc::ptr_eq(&held.group, &pod.group)
        && held.priority == pod.priority
        && held.is_terminating == pod.is_terminating
        && held.held() == pod.held()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, node: Option<&str>, phase: &str) -> Arc<Pod> {
        Arc::new(
            api::codec::from_value(&json!({
                "metadata": {"name": uid, "namespace": "default", "uid": uid},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]},
                "status": {"phase": phase},
            }))
            .unwrap(),
        )
    }

    fn requested(cluster: &Cluster, node: &str) -> i64 {
        cluster.by_name.get(node).map_or(0, |id| cluster.usage[id.at()].milli_cpu)
    }

    #[test]
    fn a_pod_is_counted_once_wherever_it_is() {
        let mut cluster = Cluster::default();
        let info = Arc::new(PodInfo::pending(pod("a", None, "Pending"), &cluster.catalogue));
        cluster.assume(info, "n1");
        assert!(cluster.is_assumed("a"));
        assert_eq!(requested(&cluster, "n1"), 100);
        assert_eq!(cluster.observe(&pod("a", Some("n1"), "Running")), Some(Observed::Known));
        assert!(!cluster.is_assumed("a"));
        assert_eq!(requested(&cluster, "n1"), 100);
        cluster.observe(&pod("a", Some("n2"), "Running"));
        assert_eq!((requested(&cluster, "n1"), requested(&cluster, "n2")), (0, 100));
        cluster.observe(&pod("a", Some("n2"), "Succeeded"));
        assert_eq!(requested(&cluster, "n2"), 0);
        assert_eq!(cluster.len(), 0, "a node that only pods name is no candidate");
        assert!(cluster.by_name.is_empty() && cluster.groups.all().next().is_none());
    }

    #[test]
    fn a_confirmed_pod_leaves_the_stamps_alone() {
        let mut cluster = Cluster::default();
        let info = Arc::new(PodInfo::pending(pod("a", None, "Pending"), &cluster.catalogue));
        cluster.assume(info, "n1");
        let (stamps, position) = (cluster.stamps.clone(), cluster.groups.position());
        cluster.observe(&pod("a", Some("n1"), "Running"));
        assert_eq!((cluster.stamps, cluster.groups.position()), (stamps, position));
    }

    #[test]
    fn places_of_removed_nodes_are_used_again() {
        let mut cluster = Cluster::default();
        let node = |name: &str| Arc::new(serde_json::from_value(json!({"metadata": {"name": name}})).unwrap());
        cluster.set_node(node("a"));
        let stamp = cluster.stamp(NodeId(0));
        cluster.remove_node("a");
        cluster.set_node(node("b"));
        assert_eq!((cluster.places(), cluster.len()), (1, 1));
        assert_ne!(cluster.stamp(NodeId(0)), stamp);
        assert!(cluster.node("a").is_none() && cluster.node("b").is_some());
    }
}
