//! Which pods would have to leave each node in favour of pods of one class and priority, kept until the node changes.

use crate::cluster::{Cluster, NodeId, Stamp};
use crate::framework::Preemption;

#[derive(Default)]
pub(crate) struct PreemptionCache {
    /// Everything below was found out for pods of this priority, under these budgets.
    priority: i32,
    budgets: u64,
    /// By node, one more than the index into `found`; 0 if nobody asked yet.
    nodes: Vec<u32>,
    found: Vec<(Stamp, Preemption)>,
}

impl PreemptionCache {
    /// Forgets what does not hold any more, and makes room for nodes that came since.
    pub(super) fn refresh(&mut self, cluster: &Cluster, priority: i32) {
        let budgets = cluster.budgets.generation();
        if (self.priority, self.budgets) != (priority, budgets) {
            *self = PreemptionCache { priority, budgets, ..PreemptionCache::default() };
        }
        self.nodes.resize(cluster.places(), 0);
    }

    /// Whether it is known what holds for the node as it is now.
    pub(super) fn knows(&self, cluster: &Cluster, node: NodeId) -> bool {
        match self.nodes[node.at()] {
            0 => false,
            at => self.found[at as usize - 1].0 == cluster.stamp(node),
        }
    }

    pub(super) fn set(&mut self, cluster: &Cluster, node: NodeId, preemption: Preemption) {
        let found = (cluster.stamp(node), preemption);
        match self.nodes[node.at()] {
            0 => {
                self.found.push(found);
                self.nodes[node.at()] = self.found.len() as u32;
            }
            at => self.found[at as usize - 1] = found,
        }
    }

    /// Of a node that it knows.
    pub(super) fn of(&self, node: NodeId) -> &Preemption {
        &self.found[self.nodes[node.at()] as usize - 1].1
    }
}
