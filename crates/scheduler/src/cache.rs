//! Nodes and the pods on them, kept by events; decisions read an immutable snapshot.
//!
//! A pod that was just given a node is *assumed* there until the API shows it bound, so that the next decision counts
//! it. A failed bind forgets it again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};

use crate::node::NodeInfo;
use crate::pod::{self, PodInfo};

/// What one decision sees. Cloning is cheap: unchanged parts are shared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// In the order of their names.
    pub(crate) nodes: Vec<Arc<NodeInfo>>,
    /// Labels of namespaces, for affinity terms that select pods by them.
    pub(crate) namespaces: Arc<HashMap<String, BTreeMap<String, String>>>,
    /// Pods that others made room for, by node: they count there before they are bound.
    pub(crate) nominated: Arc<HashMap<String, Vec<Arc<PodInfo>>>>,
}

#[derive(Default)]
pub(crate) struct Cache {
    nodes: BTreeMap<String, Arc<NodeInfo>>,
    /// Where each pod is counted, by uid.
    placed: HashMap<String, String>,
    namespaces: Arc<HashMap<String, BTreeMap<String, String>>>,
    nominated: Arc<HashMap<String, Vec<Arc<PodInfo>>>>,
}

impl Cache {
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            nodes: self.nodes.values().filter(|node| node.node.is_some()).cloned().collect(),
            namespaces: self.namespaces.clone(),
            nominated: self.nominated.clone(),
        }
    }

    /// Remembers a namespace's labels, or forgets the namespace.
    pub(crate) fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        let namespaces = Arc::make_mut(&mut self.namespaces);
        match labels {
            Some(labels) => namespaces.insert(name.to_owned(), labels),
            None => namespaces.remove(name),
        };
    }

    /// Keeps room on a node for a pod that others made way for.
    pub(crate) fn nominate(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.clear_nomination(&pod.uid);
        Arc::make_mut(&mut self.nominated).entry(node.to_owned()).or_default().push(pod);
    }

    pub(crate) fn clear_nomination(&mut self, uid: &str) {
        if self.nominated.values().flatten().any(|pod| pod.uid == uid) {
            let nominated = Arc::make_mut(&mut self.nominated);
            nominated.values_mut().for_each(|pods| pods.retain(|pod| pod.uid != uid));
            nominated.retain(|_, pods| !pods.is_empty());
        }
    }

    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        if let Some(name) = node.metadata.name.clone() {
            self.node_mut(&name).set_node(node);
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(info) = self.nodes.get_mut(name) else { return };
        if info.pods.is_empty() {
            self.nodes.remove(name);
        } else {
            // Its pods are still counted, should the node come back before they go.
            Arc::make_mut(info).node = None;
        }
    }

    /// Counts a pod that the API shows as bound, or stops counting one that has ended.
    pub(crate) fn observe(&mut self, pod: &Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        match pod::node_name(pod) {
            Some(_) if pod::is_terminal(pod) => self.forget(uid),
            Some(node) => self.place(Arc::new(PodInfo::new(pod.clone())), node),
            None => {}
        }
    }

    /// Counts a pod on the node it was given but does not have yet.
    pub(crate) fn assume(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.place(pod, node);
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        let Some(name) = self.placed.remove(uid) else { return };
        let Some(info) = self.nodes.get_mut(&name) else { return };
        Arc::make_mut(info).remove_pod(uid);
        if info.node.is_none() && info.pods.is_empty() {
            self.nodes.remove(&name);
        }
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: &str) {
        if self.placed.get(&pod.uid).is_some_and(|held| held != node) {
            self.forget(&pod.uid);
        }
        self.clear_nomination(&pod.uid);
        self.placed.insert(pod.uid.clone(), node.to_owned());
        self.node_mut(node).add_pod(pod);
    }

    fn node_mut(&mut self, name: &str) -> &mut NodeInfo {
        Arc::make_mut(self.nodes.entry(name.to_owned()).or_insert_with(|| Arc::new(NodeInfo::named(name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, node: Option<&str>, phase: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": uid, "namespace": "default", "uid": uid},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]},
                "status": {"phase": phase},
            }))
            .unwrap(),
        )
    }

    fn requested(cache: &Cache, node: &str) -> i64 {
        cache.nodes.get(node).map_or(0, |info| info.requested.milli_cpu)
    }

    #[test]
    fn a_pod_is_counted_once_wherever_it_is() {
        let mut cache = Cache::default();
        cache.assume(Arc::new(PodInfo::new(pod("a", None, "Pending"))), "n1");
        assert_eq!(requested(&cache, "n1"), 100);
        cache.observe(&pod("a", Some("n1"), "Running"));
        assert_eq!(requested(&cache, "n1"), 100);
        cache.observe(&pod("a", Some("n2"), "Running"));
        assert_eq!((requested(&cache, "n1"), requested(&cache, "n2")), (0, 100));
        cache.observe(&pod("a", Some("n2"), "Succeeded"));
        assert_eq!(requested(&cache, "n2"), 0);
        assert!(cache.snapshot().nodes.is_empty(), "a node that only pods name is no candidate");
    }
}
