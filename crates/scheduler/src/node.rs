//! A node as the scheduler sees it: what it offers, and what the pods on it hold.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

use crate::pod::{HostPort, PodInfo, Resources};

#[derive(Debug, Clone, Default)]
pub(crate) struct NodeInfo {
    /// None while pods name a node that does not exist, or not yet.
    pub(crate) node: Option<Arc<Node>>,
    pub(crate) name: String,
    pub(crate) allocatable: Resources,
    pub(crate) allowed_pods: i64,
    pub(crate) requested: Resources,
    pub(crate) weight_cpu: i64,
    pub(crate) weight_memory: i64,
    pub(crate) pods: HashMap<String, Arc<PodInfo>>,
}

impl NodeInfo {
    pub(crate) fn named(name: &str) -> NodeInfo {
        NodeInfo { name: name.to_owned(), ..NodeInfo::default() }
    }

    pub(crate) fn set_node(&mut self, node: Arc<Node>) {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        self.allocatable = Resources::of(allocatable.into_iter().flatten());
        self.allowed_pods = self.allocatable.scalars.remove("pods").unwrap_or(0);
        self.node = Some(node);
    }

    pub(crate) fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.remove_pod(&pod.uid);
        self.requested.add(&pod.requests);
        self.weight_cpu += pod.weight_cpu;
        self.weight_memory += pod.weight_memory;
        self.pods.insert(pod.uid.clone(), pod);
    }

    pub(crate) fn remove_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.requested.subtract(&pod.requests);
            self.weight_cpu -= pod.weight_cpu;
            self.weight_memory -= pod.weight_memory;
        }
    }

    pub(crate) fn taints(&self) -> &[Taint] {
        let spec = self.node.as_ref().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.node.as_ref()?.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether a pod here already has the port; the wildcard address meets every address.
    pub(crate) fn uses_port(&self, wanted: &HostPort) -> bool {
        let taken = self.pods.values().flat_map(|pod| &pod.host_ports);
        taken.into_iter().any(|held| {
            held.port == wanted.port
                && held.protocol == wanted.protocol
                && (held.address == wanted.address || held.address == "0.0.0.0" || wanted.address == "0.0.0.0")
        })
    }
}
