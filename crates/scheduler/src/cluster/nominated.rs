//! Pods that others made room for: they count on their node before they are bound.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pod::PodInfo;

#[derive(Debug, Default)]
pub(crate) struct Nominated {
    by_node: HashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    node_of: HashMap<Arc<str>, Arc<str>>,
}

impl Nominated {
    pub(crate) fn add(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove(&pod.uid);
        let node: Arc<str> = node.into();
        self.node_of.insert(pod.uid.clone(), node.clone());
        self.by_node.entry(node).or_default().push(pod);
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        let Some(node) = self.node_of.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|pod| *pod.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// Nodes by name, and the pods that each is kept for.
    pub(crate) fn by_node(&self) -> impl Iterator<Item = (&str, &[Arc<PodInfo>])> {
        self.by_node.iter().map(|(node, pods)| (&**node, pods.as_slice()))
    }

    pub(crate) fn on(&self, node: &str) -> &[Arc<PodInfo>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn node_of(&self, uid: &str) -> Option<&str> {
        self.node_of.get(uid).map(|node| &**node)
    }
}
