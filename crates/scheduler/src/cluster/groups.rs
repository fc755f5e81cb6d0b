//! Where the pods of each group are, and the log of pods coming and going that states of decisions follow.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::node::NodeId;
use crate::pod::{Group, GroupId, PodInfo};

/// Changes kept for those who follow; who is further behind starts anew.
const LOG_LENGTH: usize = 1 << 14;

#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: HashMap<GroupId, Placed>,
    by_namespace: HashMap<Arc<str>, HashSet<GroupId>>,
    /// Groups whose own terms concern other pods.
    with_affinity: BTreeSet<GroupId>,
    log: VecDeque<Change>,
    /// How many changes were dropped from the front of the log.
    dropped: u64,
}

/// A group and how many of its pods are on each node.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) group: Arc<Group>,
    pub(crate) nodes: HashMap<NodeId, Count>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) all: i64,
    /// Without those on their way out.
    pub(crate) live: i64,
}

/// Pods of a group came to a node or left it.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) node: NodeId,
    pub(crate) group: Arc<Group>,
    pub(crate) count: Count,
}

impl Change {
    pub(crate) fn of(pod: &PodInfo, node: NodeId, sign: i64) -> Change {
        let live = if pod.is_terminating { 0 } else { sign };
        Change { node, group: pod.group.clone(), count: Count { all: sign, live } }
    }
}

impl Groups {
    pub(crate) fn record(&mut self, change: Change) {
        let group = &change.group;
        let placed = self.known.entry(group.id).or_insert_with(|| {
            self.by_namespace.entry(group.namespace.clone()).or_default().insert(group.id);
            if group.has_affinity() {
                self.with_affinity.insert(group.id);
            }
            Placed { group: group.clone(), nodes: HashMap::new() }
        });
        let count = placed.nodes.entry(change.node).or_default();
        count.all += change.count.all;
        count.live += change.count.live;
        if *count == Count::default() {
            placed.nodes.remove(&change.node);
            if placed.nodes.is_empty() {
                self.forget(group);
            }
        }
        if self.log.len() == LOG_LENGTH {
            self.log.pop_front();
            self.dropped += 1;
        }
        self.log.push_back(change);
    }

    fn forget(&mut self, group: &Group) {
        self.known.remove(&group.id);
        self.with_affinity.remove(&group.id);
        if let Some(groups) = self.by_namespace.get_mut(&group.namespace) {
            groups.remove(&group.id);
            if groups.is_empty() {
                self.by_namespace.remove(&group.namespace);
            }
        }
    }

    pub(crate) fn get(&self, id: GroupId) -> Option<&Placed> {
        self.known.get(&id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Placed> {
        self.known.values()
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Placed> {
        self.by_namespace.get(namespace).into_iter().flatten().filter_map(|id| self.known.get(id))
    }

    pub(crate) fn with_affinity(&self) -> impl Iterator<Item = &Placed> {
        self.with_affinity.iter().filter_map(|id| self.known.get(id))
    }

    pub(crate) fn has_affinity(&self) -> bool {
        !self.with_affinity.is_empty()
    }

    /// The place in the log that has seen everything so far.
    pub(crate) fn position(&self) -> u64 {
        self.dropped + self.log.len() as u64
    }

    /// What happened since `position`, unless that is too long ago.
    pub(crate) fn since(&self, position: u64) -> Option<impl Iterator<Item = &Change>> {
        let from = position.checked_sub(self.dropped)?;
        Some(self.log.range(from as usize..))
    }
}
