//! Labels that a kubelet may not give its node: they could draw workloads to it that are not meant for it.

use std::collections::BTreeMap;

use api::node_volumes::TOPOLOGY_KEY;
use api::sort::CompactSort as _;

type Labels = BTreeMap<String, String>;

/// Labels of Kubernetes that describe a node and so are the kubelet's to set.
const OWN: [&str; 12] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// Everything below these domains as well.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Set aside for administrators.
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// The changed labels that are not for the kubelet of this node, sorted.
pub(super) fn forbidden(node: &str, new: Option<&Labels>, old: Option<&Labels>) -> Vec<String> {
    let empty = Labels::new();
    let (new, old) = (new.unwrap_or(&empty), old.unwrap_or(&empty));
    let mut keys: Vec<&String> = new.keys().chain(old.keys()).collect();
    keys.compact_sort();
    keys.dedup();
    let is_new = |key: &&String| new.get(*key) != old.get(*key);
    // Pods follow their volumes to the node that this label names: a node says its own name or nothing.
    let is_foreign = |key: &str| key == TOPOLOGY_KEY && new.get(key).is_some_and(|value| value != node);
    keys.into_iter().filter(is_new).filter(|key| is_forbidden(key) || is_foreign(key)).cloned().collect()
}

/// Of these labels, those that a kubelet may not give its node.
pub fn labels_not_for_nodes<'a>(keys: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    keys.filter(|key| is_forbidden(key)).collect()
}

fn is_forbidden(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let below = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    let is_own = || OWN.contains(&key) || OWN_DOMAINS.iter().any(|parent| below(parent));
    below(RESTRICTED) || ((below("kubernetes.io") || below("k8s.io")) && !is_own())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_describe_and_do_not_attract() {
        for (key, expected) in [
            ("kubernetes.io/hostname", false),
            ("topology.kubernetes.io/zone", false),
            ("kubelet.kubernetes.io/any", false),
            ("x.node.kubernetes.io/any", false),
            ("example.com/any", false),
            ("plain", false),
            ("node-role.kubernetes.io/control-plane", true),
            ("kubernetes.io/other", true),
            ("a.k8s.io/b", true),
            ("node-restriction.kubernetes.io/pci", true),
            ("team.node-restriction.kubernetes.io/pci", true),
        ] {
            assert_eq!(is_forbidden(key), expected, "{key}");
        }
        let labels = |value: &str| Labels::from([("kubernetes.io/other".to_owned(), value.to_owned())]);
        assert!(forbidden("n", Some(&labels("1")), Some(&labels("1"))).is_empty());
        assert_eq!(forbidden("n", Some(&labels("1")), Some(&labels("2"))), ["kubernetes.io/other"]);
        assert_eq!(forbidden("n", None, Some(&labels("2"))), ["kubernetes.io/other"]);
    }

    #[test]
    fn security_a_node_does_not_say_that_it_has_the_volumes_of_another() {
        let labels = |value: &str| Labels::from([(TOPOLOGY_KEY.to_owned(), value.to_owned())]);
        assert!(forbidden("n", Some(&labels("n")), None).is_empty());
        assert_eq!(forbidden("n", Some(&labels("m")), None), [TOPOLOGY_KEY]);
        assert_eq!(forbidden("n", Some(&labels("m")), Some(&labels("n"))), [TOPOLOGY_KEY]);
    }
}
