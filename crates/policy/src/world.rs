//! All pods, namespaces, nodes and policies of the cluster, as far as a decision depends on them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::selector::Selector;
use api::sort::CompactSort as _;

use crate::cluster_policy::{ClusterPolicy, ClusterRule, Tier};
pub use crate::objects::{DNS, Direction, Labels, NamedPort, Node, Peer, Pod, Policy, Port, Protocol, Rule, Which};

/// The label that every namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Everything by `namespace/name`, namespaces by name.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub pods: BTreeMap<String, Arc<Pod>>,
    pub namespaces: BTreeMap<String, Labels>,
    pub policies: BTreeMap<String, Arc<Policy>>,
    /// By name.
    pub cluster_policies: BTreeMap<String, Arc<ClusterPolicy>>,
    /// By name.
    pub nodes: BTreeMap<String, Arc<Node>>,
}

impl World {
    /// The labels of a namespace; every one has its name among them, also before we have heard of it.
    pub fn namespace_labels(&self, name: &str) -> Cow<'_, Labels> {
        match self.namespaces.get(name) {
            Some(labels) if labels.contains_key(NAME_LABEL) => Cow::Borrowed(labels),
            labels => {
                let mut labels = labels.cloned().unwrap_or_default();
                labels.insert(NAME_LABEL.to_owned(), name.to_owned());
                Cow::Owned(labels)
            }
        }
    }

    /// The pods of a namespace.
    pub fn pods_in(&self, namespace: &str) -> impl Iterator<Item = (&String, &Arc<Pod>)> {
        in_namespace(&self.pods, namespace)
    }

    /// Policies that select a pod and speak of a direction.
    pub fn policies_of<'a>(&'a self, pod: &'a Pod, direction: Direction) -> impl Iterator<Item = &'a Arc<Policy>> {
        in_namespace(&self.policies, &pod.namespace)
            .map(|(_, policy)| policy)
            .filter(move |policy| policy.rules(direction).is_some() && policy.selects(pod))
    }

    /// Whether a pod of a namespace could be selected by one of its policies, whatever its labels.
    pub fn has_policies(&self, namespace: &str) -> bool {
        in_namespace(&self.policies, namespace).next().is_some()
    }

    /// The rules of a tier for a pod in the order in which they are asked, each with its policy.
    pub fn cluster_rules<'a>(
        &'a self,
        pod: &Pod,
        tier: Tier,
        direction: Direction,
    ) -> Vec<(&'a Arc<ClusterPolicy>, &'a ClusterRule)> {
        if self.cluster_policies.is_empty() {
            return Vec::new();
        }
        let labels = self.namespace_labels(&pod.namespace);
        let of_tier = self.cluster_policies.values().filter(|policy| policy.tier == tier);
        let mut policies: Vec<&Arc<ClusterPolicy>> = of_tier.filter(|policy| policy.selects(pod, &labels)).collect();
        // Of the same priority any may be first: the same on every node.
        policies.compact_sort_by_key(|policy| (policy.priority, policy.name.as_str()));
        policies.into_iter().flat_map(|policy| policy.rules(direction).iter().map(move |rule| (policy, rule))).collect()
    }

    /// Whether a pod is one that `peer` of a policy in `namespace` means.
    pub fn is_peer(&self, pod: &Pod, peer: &Peer, namespace: &str) -> bool {
        match peer {
            Peer::Pods { namespaces: None, pods } => pod.namespace == namespace && pods.matches(Some(&*pod.labels)),
            Peer::Pods { namespaces: Some(namespaces), pods } => {
                namespaces.matches(Some(&self.namespace_labels(&pod.namespace))) && pods.matches(Some(&*pod.labels))
            }
            Peer::Block { .. } | Peer::Nodes(_) => false,
        }
    }

    /// Whether an address is that of one of these nodes.
    pub fn is_node(&self, address: IpAddr, nodes: &Selector) -> bool {
        self.nodes.values().any(|node| node.addresses.contains(&address) && nodes.matches(Some(&node.labels)))
    }
}

/// What is in a namespace, of what has `namespace/name` as its key.
fn in_namespace<'a, V>(
    all: &'a BTreeMap<String, V>,
    namespace: &str,
) -> impl Iterator<Item = (&'a String, &'a V)> + use<'a, V> {
    let prefix = format!("{namespace}/");
    all.range(prefix.clone()..).take_while(move |(key, _)| key.starts_with(&prefix))
}
