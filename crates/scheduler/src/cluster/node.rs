//! A node as the scheduler sees it: what it is, what it offers, and what the pods on it hold.
//!
//! What decisions read all the time (`Capacity`, `Usage`) is kept in columns apart from the rest (`Row`).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

use crate::pod::{Catalogue, HostPort, PodInfo, ResourceId, Resources};

/// A node's place in the columns. Places of nodes that are gone are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) name: Arc<str>,
    /// None while pods name a node that does not exist, or not yet.
    pub(crate) object: Option<Arc<Node>>,
    pub(crate) pods: Vec<Arc<PodInfo>>,
}

impl Row {
    pub(crate) fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.object.as_ref()?.metadata.labels.as_ref()
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels()?.get(key).map(String::as_str)
    }

    pub(crate) fn taints(&self) -> &[Taint] {
        let spec = self.object.as_ref().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    pub(crate) fn is_unschedulable(&self) -> bool {
        let spec = self.object.as_ref().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.unschedulable) == Some(true)
    }
}

/// What a node offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    pub(crate) pods: i64,
    /// By resource id; what is missing at the end is 0.
    scalars: Vec<i64>,
}

impl Capacity {
    pub(crate) fn of(node: &Node, catalogue: &Catalogue) -> Capacity {
        let list = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let resources = Resources::of(list, catalogue);
        let pods = list.and_then(|list| list.get("pods")?.0.parse::<api::quantity::Quantity>().ok());
        let mut scalars = Vec::new();
        for scalar in &resources.scalars {
            *slot(&mut scalars, scalar.id) = scalar.amount;
        }
        Capacity {
            milli_cpu: resources.milli_cpu,
            memory: resources.memory,
            ephemeral_storage: resources.ephemeral_storage,
            pods: pods.map_or(0, |pods| pods.value()),
            scalars,
        }
    }

    pub(crate) fn scalar(&self, id: ResourceId) -> i64 {
        self.scalars.get(id.0 as usize).copied().unwrap_or(0)
    }
}

/// More than any node has of anything: what a pod holds counts as at most so much, so that thousands of them can be added.
const LARGEST: i64 = i64::MAX >> 13;

/// What the pods on a node hold together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
    pub(crate) ephemeral_storage: i64,
    /// With the weight of containers that name no request: scores only.
    pub(crate) weight_cpu: i64,
    pub(crate) weight_memory: i64,
    pub(crate) pods: i64,
    scalars: Vec<i64>,
}

impl Usage {
    pub(crate) fn scalar(&self, id: ResourceId) -> i64 {
        self.scalars.get(id.0 as usize).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, pod: &PodInfo) {
        self.count(pod, 1);
    }

    pub(crate) fn remove(&mut self, pod: &PodInfo) {
        self.count(pod, -1);
    }

    /// Whoever names a node gets there without us, whatever the pods there ask for together. What was added is taken off again,
    /// so sums do not stop at the largest number.
    fn count(&mut self, pod: &PodInfo, sign: i64) {
        let held = pod.held();
        let count = |sum: &mut i64, amount: i64| *sum = sum.wrapping_add(sign * amount.min(LARGEST));
        count(&mut self.milli_cpu, held.asked.milli_cpu);
        count(&mut self.memory, held.asked.memory);
        count(&mut self.ephemeral_storage, held.asked.ephemeral_storage);
        count(&mut self.weight_cpu, held.weight_cpu);
        count(&mut self.weight_memory, held.weight_memory);
        self.pods += sign;
        for scalar in &held.asked.scalars {
            count(slot(&mut self.scalars, scalar.id), scalar.amount);
        }
    }
}

fn slot(scalars: &mut Vec<i64>, id: ResourceId) -> &mut i64 {
    let at = id.0 as usize;
    if scalars.len() <= at {
        scalars.resize(at + 1, 0);
    }
    &mut scalars[at]
}

/// A node for a plug-in to judge: as it is, or as it would be with some pods more or fewer.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) id: NodeId,
    pub(crate) row: &'a Row,
    pub(crate) capacity: &'a Capacity,
    pub(crate) usage: &'a Usage,
    pub(crate) pods: &'a [Arc<PodInfo>],
}

impl View<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.row.name
    }

    pub(crate) fn uses_port(&self, wanted: &HostPort) -> bool {
        self.pods.iter().flat_map(|pod| &pod.class.host_ports).any(|held| held.conflicts_with(wanted))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn security_a_node_with_pods_that_hold_everything_is_full() {
        const MAX: &str = "9223372036854775807";
        let all = json!({"cpu": MAX, "memory": MAX, "ephemeral-storage": MAX, "example.com/x": MAX});
        let containers = json!([{"name": "c", "resources": {"requests": all}}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": containers}});
        let pod = PodInfo::placed(Arc::new(api::codec::from_value(&pod).unwrap()), &Catalogue::default());
        let mut usage = Usage::default();
        (0..3).for_each(|_| usage.add(&pod));
        for held in [usage.milli_cpu, usage.memory, usage.ephemeral_storage, usage.weight_memory] {
            assert_eq!(held, 3 * LARGEST);
        }
        (0..3).for_each(|_| usage.remove(&pod));
        assert_eq!((usage.milli_cpu, usage.memory, usage.pods), (0, 0, 0));
    }
}
