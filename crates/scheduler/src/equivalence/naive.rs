//! What the documentation of each plug-in says, as directly as possible: no memory, no numbers for names, no shortcuts.
//! It shares no code with the plug-ins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::cached::{Pod, Spec};
use api::meta::Meta as _;
use api::quantity::Quantity;
use api::selector::Selector;
use k8s_openapi::api::core::v1::*;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

type Labels = BTreeMap<String, String>;
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Default)]
pub(super) struct World {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) namespaces: BTreeMap<String, Labels>,
    pub(super) services: BTreeMap<(String, String), Labels>,
    pub(super) replica_sets: BTreeMap<(String, String), LabelSelector>,
    pub(super) claims: Vec<Arc<PersistentVolumeClaim>>,
    pub(super) volumes: Vec<Arc<PersistentVolume>>,
    pub(super) classes: Vec<Arc<StorageClass>>,
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap()
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.label(key)
}

fn labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap()
}

fn spec(pod: &Pod) -> &Spec {
    pod.spec.as_ref().unwrap()
}

fn amount(list: Option<&BTreeMap<String, Amount>>, resource: &str) -> i64 {
    let quantity = list.and_then(|list| list.get(resource)).map(|amount| amount.0.parse::<Quantity>().unwrap());
    quantity.map_or(0, |quantity| if resource == "cpu" { quantity.milli_value() } else { quantity.value() })
}

/// What a pod asks for: its containers together, or the worst moment of its initialisation.
fn request(pod: &Pod, resource: &str, default: i64) -> i64 {
    let of = |container: &Container| {
        let list = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        if list.is_some_and(|list| list.contains_key(resource)) { amount(list, resource) } else { default }
    };
    let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let init = spec(pod).init_containers.clone().unwrap_or_default();
    let running: i64 = spec(pod).containers.iter().chain(init.iter().filter(sidecar)).map(of).sum();
    let mut worst = running;
    for (at, container) in init.iter().enumerate() {
        let started: i64 = init[..at].iter().filter(sidecar).map(of).sum();
        worst = worst.max(started + of(container));
    }
    worst
}

fn nonzero(pod: &Pod, resource: &str) -> i64 {
    match resource {
        "cpu" => request(pod, "cpu", 100),
        "memory" => request(pod, "memory", 200 * 1024 * 1024),
        other => request(pod, other, 0),
    }
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    spec(pod).tolerations.iter().flatten().any(|toleration| {
        let (key, effect) = (toleration.key.clone().unwrap_or_default(), toleration.effect.clone().unwrap_or_default());
        (effect.is_empty() || effect == taint.effect)
            && (key.is_empty() || key == taint.key)
            && match toleration.operator.as_deref().unwrap_or("Equal") {
                "Exists" => true,
                "Equal" => toleration.value.clone().unwrap_or_default() == taint.value.clone().unwrap_or_default(),
                _ => false,
            }
    })
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

fn is_repelled(pod: &Pod, node: &Node) -> bool {
    let hard = |taint: &Taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
    taints(node).iter().any(|taint| hard(taint) && !tolerates(pod, taint))
}

fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.clone().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|other| other == value));
    let compare = |holds: fn(i64, i64) -> bool| {
        let numbers = value.and_then(|value| value.parse().ok()).zip(values[0].parse().ok());
        numbers.is_some_and(|(value, bound)| holds(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        other => panic!("{other}"),
    }
}

fn term_holds(term: &NodeSelectorTerm, node: &Node) -> bool {
    let (expressions, fields) =
        (term.match_expressions.clone().unwrap_or_default(), term.match_fields.clone().unwrap_or_default());
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| requirement_holds(requirement, label(node, &requirement.key)))
        && fields.iter().all(|requirement| requirement_holds(requirement, Some(name(node))))
}

fn is_admitted(pod: &Pod, node: &Node) -> bool {
    let selector = spec(pod).node_selector.clone().unwrap_or_default();
    let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selector.iter().all(|(key, value)| label(node, key) == Some(value))
        && required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_holds(term, node)))
}

fn host_ports(pod: &Pod) -> Vec<(String, String, i32)> {
    let init = spec(pod).init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec(pod).containers.iter().chain(init).flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let address = port.host_ip.clone().filter(|address| !address.is_empty()).unwrap_or("0.0.0.0".into());
            Some((address, port.protocol.clone().unwrap_or("TCP".into()), port.host_port?))
        })
        .collect()
}

fn selected(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    Selector::from_label_selector(selector).unwrap().matches(Some(labels))
}

fn required_near(pod: &Pod) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.pod_affinity.clone());
    affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution).unwrap_or_default()
}

fn required_far(pod: &Pod) -> Vec<PodAffinityTerm> {
    let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.clone());
    affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution).unwrap_or_default()
}

/// Preferred terms with their signed weights.
fn preferred(pod: &Pod) -> Vec<(i64, PodAffinityTerm)> {
    let affinity = spec(pod).affinity.clone().unwrap_or_default();
    let near = affinity.pod_affinity.and_then(|near| near.preferred_during_scheduling_ignored_during_execution);
    let far = affinity.pod_anti_affinity.and_then(|far| far.preferred_during_scheduling_ignored_during_execution);
    let near = near.unwrap_or_default().into_iter().map(|term| (i64::from(term.weight), term.pod_affinity_term));
    let far = far.unwrap_or_default().into_iter().map(|term| (-i64::from(term.weight), term.pod_affinity_term));
    near.chain(far).collect()
}

impl World {
    fn on(&self, node: &Node) -> Vec<&Pod> {
        let pods = self.pods.iter().map(|pod| &**pod);
        pods.filter(|pod| spec(pod).node_name.as_deref() == Some(name(node))).collect()
    }

    /// All placed pods whose node exists, with the node.
    fn placed(&self) -> Vec<(&Pod, &Node)> {
        self.nodes.iter().flat_map(|node| self.on(node).into_iter().map(|pod| (pod, &**node))).collect()
    }

    /// Why each node rejects the pod (empty if it does not), or why all do.
    pub(super) fn filter(&self, pod: &Pod) -> Result<BTreeMap<String, String>, String> {
        let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required =
            affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.clone());
        let terms = required.map(|required| required.node_selector_terms).unwrap_or_default();
        let names = |term: &NodeSelectorTerm| {
            let fields =
                term.match_fields.clone().unwrap_or_default().into_iter().filter(|field| field.operator == "In");
            fields
                .map(|field| field.values.unwrap_or_default().into_iter().collect::<BTreeSet<_>>())
                .reduce(|a, b| &a & &b)
        };
        if !terms.is_empty() && terms.iter().all(|term| names(term).is_some_and(|names| names.is_empty())) {
            return Err("pod affinity terms conflict".into());
        }
        self.pre_filter_volumes(pod)?;
        Ok(self.nodes.iter().map(|node| (name(node).to_owned(), self.verdict(pod, node))).collect())
    }

    fn verdict(&self, pod: &Pod, node: &Node) -> String {
        if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
            let cordon = Taint {
                key: "node.kubernetes.io/unschedulable".into(),
                effect: "NoSchedule".into(),
                ..Taint::default()
            };
            if !tolerates(pod, &cordon) {
                return "node(s) were unschedulable".into();
            }
        }
        if is_repelled(pod, node) {
            return "node(s) had untolerated taint(s)".into();
        }
        if !is_admitted(pod, node) {
            return "node(s) didn't match Pod's node affinity/selector".into();
        }
        let taken: Vec<_> = self.on(node).into_iter().flat_map(host_ports).collect();
        let clashes = |(address, protocol, port): &(String, String, i32)| {
            taken.iter().any(|(other, other_protocol, other_port)| {
                port == other_port
                    && protocol == other_protocol
                    && (address == other || address == "0.0.0.0" || other == "0.0.0.0")
            })
        };
        if host_ports(pod).iter().any(clashes) {
            return "node(s) didn't have free ports for the requested pod ports".into();
        }
        let short = self.shortages(pod, node);
        if !short.is_empty() {
            return short.join(", ");
        }
        for check in [Self::disks, Self::volume_binding, Self::volume_zone, Self::hard_spread, Self::pod_affinity] {
            if let Some(reason) = check(self, pod, node) {
                return reason;
            }
        }
        String::new()
    }

    fn shortages(&self, pod: &Pod, node: &Node) -> Vec<String> {
        let offered = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let mut short = Vec::new();
        if self.on(node).len() as i64 + 1 > amount(offered, "pods") {
            short.push("Too many pods".to_owned());
        }
        for resource in ["cpu", "memory", "ephemeral-storage", "example.com/gpu"] {
            let taken: i64 = self.on(node).into_iter().map(|other| request(other, resource, 0)).sum();
            let asked = request(pod, resource, 0);
            if asked > 0 && asked > amount(offered, resource) - taken {
                short.push(format!("Insufficient {resource}"));
            }
        }
        short
    }

    fn claim_names(pod: &Pod) -> Vec<String> {
        let volumes = spec(pod).volumes.iter().flatten();
        volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone())).collect()
    }

    fn claim(&self, pod: &Pod, name: &str) -> Option<&PersistentVolumeClaim> {
        let claims = self.claims.iter().map(|claim| &**claim);
        claims.into_iter().find(|claim| {
            claim.metadata.name.as_deref() == Some(name) && claim.metadata.namespace.as_deref() == Some(namespace(pod))
        })
    }

    fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<&PersistentVolume> {
        let wanted = claim.spec.as_ref()?.volume_name.as_ref()?;
        self.volumes.iter().find(|volume| volume.metadata.name.as_ref() == Some(wanted)).map(|volume| &**volume)
    }

    fn is_bound(claim: &PersistentVolumeClaim) -> bool {
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()).is_some_and(|name| !name.is_empty())
    }

    fn pre_filter_volumes(&self, pod: &Pod) -> Result<(), String> {
        for name in Self::claim_names(pod) {
            let Some(claim) = self.claim(pod, &name) else {
                return Err(format!("persistentvolumeclaim {name:?} not found"));
            };
            // Only the zone plug-in minds that a bound volume does not exist.
            if Self::is_bound(claim) && self.volume_of(claim).is_none() {
                let volume = claim.spec.as_ref().unwrap().volume_name.clone().unwrap();
                return Err(format!("persistentvolume {volume:?} not found"));
            }
        }
        Ok(())
    }

    fn disks(&self, pod: &Pod, node: &Node) -> Option<String> {
        let disks = |pod: &Pod| -> Vec<GCEPersistentDiskVolumeSource> {
            spec(pod).volumes.iter().flatten().filter_map(|volume| volume.gce_persistent_disk.clone()).collect()
        };
        for disk in disks(pod) {
            for other in self.on(node).into_iter().flat_map(disks) {
                if disk.pd_name == other.pd_name && !(disk.read_only == Some(true) && other.read_only == Some(true)) {
                    return Some("node(s) had no available disk".into());
                }
            }
        }
        let is_used = |claim: &String| {
            self.pods.iter().any(|other| namespace(other) == namespace(pod) && Self::claim_names(other).contains(claim))
        };
        let mut exclusive = Self::claim_names(pod).into_iter().filter(|name| {
            let claim = self.claim(pod, name).unwrap().spec.as_ref().unwrap();
            claim.access_modes.iter().flatten().any(|mode| mode == "ReadWriteOncePod")
        });
        exclusive.find(is_used).map(|_| {
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod".into()
        })
    }

    fn is_reachable(volume: &PersistentVolume, node: &Node) -> bool {
        let affinity =
            volume.spec.as_ref().unwrap().node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        affinity.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_holds(term, node)))
    }

    fn volume_binding(&self, pod: &Pod, node: &Node) -> Option<String> {
        let mut reasons = Vec::new();
        for name in Self::claim_names(pod) {
            let claim = self.claim(pod, &name).unwrap();
            if Self::is_bound(claim) {
                if !Self::is_reachable(self.volume_of(claim).unwrap(), node) {
                    reasons.push("node(s) didn't match PersistentVolume's node affinity");
                }
                continue;
            }
            let can_have = |volume: &&Arc<PersistentVolume>| {
                let size = amount(volume.spec.as_ref().unwrap().capacity.as_ref(), "storage");
                size >= 1024 * 1024 * 1024 && Self::is_reachable(volume, node)
            };
            if self.volumes.iter().any(|volume| can_have(&volume)) {
                continue;
            }
            let class = &self.classes[0];
            let zones: Option<Vec<String>> = class.allowed_topologies.as_ref().map(|terms| {
                terms
                    .iter()
                    .flat_map(|term| term.match_label_expressions.clone().unwrap())
                    .flat_map(|e| e.values)
                    .collect()
            });
            let is_allowed =
                zones.is_none_or(|zones| label(node, ZONE).is_some_and(|zone| zones.iter().any(|z| z == zone)));
            if class.provisioner == "kubernetes.io/no-provisioner" || !is_allowed {
                reasons.push("node(s) didn't find available persistent volumes to bind");
            }
        }
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }

    fn volume_zone(&self, pod: &Pod, node: &Node) -> Option<String> {
        let zone = label(node, ZONE)?;
        for name in Self::claim_names(pod) {
            let Some(volume) = self.volume_of(self.claim(pod, &name).unwrap()) else { continue };
            if let Some(zones) = volume.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE))
                && !zones.split("__").any(|other| other == zone)
            {
                return Some("node(s) had no available volume zone".into());
            }
        }
        None
    }

    /// The constraints of a kind, with their selectors: the pod's own, or the built-in ones.
    fn constraints(&self, pod: &Pod, when: &str) -> (Vec<(TopologySpreadConstraint, Selector)>, bool) {
        let own = spec(pod).topology_spread_constraints.clone().unwrap_or_default();
        if !own.is_empty() {
            let of_kind = own.into_iter().filter(|constraint| constraint.when_unsatisfiable == when);
            let with_selector = of_kind.map(|constraint| {
                let mut narrowed = constraint.label_selector.clone();
                for key in constraint.match_label_keys.iter().flatten() {
                    if let (Some(value), Some(selector)) = (labels(pod).get(key), &mut narrowed) {
                        let expression = serde_json::json!({"key": key, "operator": "In", "values": [value]});
                        selector
                            .match_expressions
                            .get_or_insert_default()
                            .push(serde_json::from_value(expression).unwrap());
                    }
                }
                let selector = Selector::from_label_selector(narrowed.as_ref()).unwrap();
                (constraint, selector)
            });
            return (with_selector.collect(), true);
        }
        if when == "DoNotSchedule" {
            return (Vec::new(), true);
        }
        let mut merged = Labels::new();
        for ((of, _), selector) in &self.services {
            if of == namespace(pod) && selector.iter().all(|(key, value)| labels(pod).get(key) == Some(value)) {
                merged.extend(selector.clone());
            }
        }
        let mut selector = LabelSelector { match_labels: Some(merged), ..LabelSelector::default() };
        for owner in pod.metadata.owner_references.iter().flatten() {
            if let Some(found) = self.replica_sets.get(&(namespace(pod).to_owned(), owner.name.clone())) {
                for (key, value) in found.match_labels.clone().unwrap() {
                    let expression = serde_json::json!({"key": key, "operator": "In", "values": [value]});
                    selector
                        .match_expressions
                        .get_or_insert_default()
                        .push(serde_json::from_value(expression).unwrap());
                }
            }
        }
        let selector = Selector::from_label_selector(Some(&selector)).unwrap();
        if selector.is_empty() {
            return (Vec::new(), false);
        }
        let default = |key: &str, max_skew| {
            let constraint =
                TopologySpreadConstraint { topology_key: key.into(), max_skew, ..TopologySpreadConstraint::default() };
            (constraint, selector.clone())
        };
        (vec![default(HOSTNAME, 3), default(ZONE, 5)], false)
    }

    fn matching(&self, pod: &Pod, node: &Node, selector: &Selector) -> i64 {
        if selector.is_empty() {
            return 0;
        }
        let counted = self.on(node).into_iter().filter(|other| {
            namespace(other) == namespace(pod)
                && other.metadata.deletion_timestamp.is_none()
                && selector.matches(other.metadata.labels.as_ref())
        });
        counted.count() as i64
    }

    fn is_included(pod: &Pod, node: &Node, constraint: &TopologySpreadConstraint) -> bool {
        (constraint.node_affinity_policy.as_deref() == Some("Ignore") || is_admitted(pod, node))
            && (constraint.node_taints_policy.as_deref() != Some("Honor") || !is_repelled(pod, node))
    }

    fn hard_spread(&self, pod: &Pod, node: &Node) -> Option<String> {
        let (constraints, _) = self.constraints(pod, "DoNotSchedule");
        for (constraint, selector) in &constraints {
            let Some(here) = label(node, &constraint.topology_key) else {
                return Some("node(s) didn't match pod topology spread constraints (missing required label)".into());
            };
            let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
            for other in &self.nodes {
                let has_all =
                    constraints.iter().all(|(constraint, _)| label(other, &constraint.topology_key).is_some());
                if has_all && Self::is_included(pod, other, constraint) {
                    *domains.entry(label(other, &constraint.topology_key).unwrap()).or_default() +=
                        self.matching(pod, other, selector);
                }
            }
            let enough = domains.len() as i64 >= i64::from(constraint.min_domains.unwrap_or(1));
            let min = if enough { *domains.values().min().unwrap() } else { 0 };
            let own = i64::from(selector.matches(pod.metadata.labels.as_ref()));
            if domains.get(here).copied().unwrap_or(0) + own - min > i64::from(constraint.max_skew) {
                return Some("node(s) didn't match pod topology spread constraints".into());
            }
        }
        None
    }

    /// Whether a waiting pod's term means a placed pod.
    fn means(&self, owner: &Pod, term: &PodAffinityTerm, other: &Pod) -> bool {
        let listed = term.namespaces.clone().unwrap_or_default();
        let selector = term.namespace_selector.as_ref();
        let in_namespace = if listed.is_empty() && selector.is_none() {
            namespace(owner) == namespace(other)
        } else {
            let by_labels = |selector: &LabelSelector| {
                let parsed = Selector::from_label_selector(Some(selector)).unwrap();
                parsed.is_empty()
                    || self.namespaces.get(namespace(other)).is_some_and(|labels| parsed.matches(Some(labels)))
            };
            listed.iter().any(|listed| listed == namespace(other)) || selector.is_some_and(by_labels)
        };
        in_namespace && selected(term.label_selector.as_ref(), &labels(other))
    }

    /// Whether a placed pod's term means a waiting pod: the labels of an unknown namespace are empty.
    fn means_waiting(&self, owner: &Pod, term: &PodAffinityTerm, pod: &Pod) -> bool {
        let listed = term.namespaces.clone().unwrap_or_default();
        let selector = term.namespace_selector.as_ref();
        let in_namespace = if listed.is_empty() && selector.is_none() {
            namespace(owner) == namespace(pod)
        } else {
            let none = Labels::new();
            let labels = self.namespaces.get(namespace(pod)).unwrap_or(&none);
            listed.iter().any(|listed| listed == namespace(pod)) || selector.is_some_and(|s| selected(Some(s), labels))
        };
        in_namespace && selected(term.label_selector.as_ref(), &labels(pod))
    }

    fn pod_affinity(&self, pod: &Pod, node: &Node) -> Option<String> {
        let same = |term: &PodAffinityTerm, other: &Node| {
            label(node, &term.topology_key).is_some()
                && label(node, &term.topology_key) == label(other, &term.topology_key)
        };
        let near = required_near(pod);
        if !near.is_empty() {
            let matching: Vec<&Node> = self
                .placed()
                .into_iter()
                .filter(|(other, _)| near.iter().all(|term| self.means(pod, term, other)))
                .map(|(_, node)| node)
                .collect();
            let has_labels = near.iter().all(|term| label(node, &term.topology_key).is_some());
            let satisfied = near.iter().all(|term| matching.iter().any(|other| same(term, other)));
            let counts_nowhere =
                !matching.iter().any(|other| near.iter().any(|term| label(other, &term.topology_key).is_some()));
            let is_first = counts_nowhere && near.iter().all(|term| self.means(pod, term, pod));
            if !has_labels || !(satisfied || is_first) {
                return Some("node(s) didn't match pod affinity rules".into());
            }
        }
        for term in required_far(pod) {
            if self.placed().iter().any(|(other, there)| self.means(pod, &term, other) && same(&term, there)) {
                return Some("node(s) didn't match pod anti-affinity rules".into());
            }
        }
        for (other, there) in self.placed() {
            if required_far(other).iter().any(|term| self.means_waiting(other, term, pod) && same(term, there)) {
                return Some("node(s) didn't satisfy existing pods anti-affinity rules".into());
            }
        }
        None
    }

    /// The scores from 0 to 100 of nodes that passed the filters.
    pub(super) fn score(&self, plugin: &str, pod: &Pod, nodes: &[String]) -> Vec<i64> {
        let nodes: Vec<&Node> =
            nodes.iter().map(|wanted| &**self.nodes.iter().find(|node| name(node) == wanted).unwrap()).collect();
        let each = |score: &dyn Fn(&Node) -> i64| nodes.iter().map(|node| score(node)).collect::<Vec<_>>();
        match plugin {
            "TaintToleration" => {
                let soft = |node: &Node| taints(node).into_iter().filter(|taint| taint.effect == "PreferNoSchedule");
                let raw = each(&|node| soft(node).filter(|taint| !tolerates(pod, taint)).count() as i64);
                let max = raw.iter().max().copied().unwrap_or(0);
                raw.iter().map(|count| if max == 0 { 100 } else { 100 - 100 * count / max }).collect()
            }
            "NodeAffinity" => {
                let affinity = spec(pod).affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone());
                let terms =
                    affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution).unwrap_or_default();
                let holding = |node: &Node| -> i64 {
                    let holding = terms.iter().filter(|term| term_holds(&term.preference, node));
                    holding.map(|term| i64::from(term.weight)).sum()
                };
                let raw = each(&holding);
                let max = raw.iter().max().copied().unwrap_or(0);
                raw.iter().map(|sum| if max == 0 { 0 } else { 100 * sum / max }).collect()
            }
            "NodeResourcesFit" => each(&|node| self.least_allocated(pod, node)),
            "NodeResourcesBalancedAllocation" => {
                if request(pod, "cpu", 0) == 0 && request(pod, "memory", 0) == 0 {
                    return vec![0; nodes.len()];
                }
                each(&|node| 50 + (50 + self.balance(Some(pod), node) - self.balance(None, node)) / 2)
            }
            "ImageLocality" => each(&|node| self.image_locality(pod, node)),
            "PodTopologySpread" => self.soft_spread(pod, &nodes),
            "InterPodAffinity" => self.preferred_affinity(pod, &nodes),
            other => panic!("{other}"),
        }
    }

    fn least_allocated(&self, pod: &Pod, node: &Node) -> i64 {
        let offered = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let mut scores = Vec::new();
        for resource in ["cpu", "memory"] {
            let capacity = amount(offered, resource);
            let taken =
                nonzero(pod, resource) + self.on(node).into_iter().map(|other| nonzero(other, resource)).sum::<i64>();
            if capacity > 0 {
                scores.push(if taken > capacity { 0 } else { (capacity - taken) * 100 / capacity });
            }
        }
        if scores.is_empty() { 0 } else { scores.iter().sum::<i64>() / scores.len() as i64 }
    }

    fn balance(&self, pod: Option<&Pod>, node: &Node) -> i64 {
        let offered = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let mut fractions = Vec::new();
        for resource in ["cpu", "memory"] {
            let capacity = amount(offered, resource);
            let pods = self.on(node).into_iter().chain(pod);
            let taken: i64 = pods.map(|other| request(other, resource, 0)).sum();
            if capacity > 0 {
                fractions.push((taken as f64 / capacity as f64).min(1.0));
            }
        }
        let deviation = if fractions.len() == 2 { ((fractions[0] - fractions[1]) / 2.0).abs() } else { 0.0 };
        ((1.0 - deviation) * 100.0) as i64
    }

    fn image_locality(&self, pod: &Pod, node: &Node) -> i64 {
        let images = |node: &Node| node.status.as_ref().and_then(|status| status.images.clone()).unwrap_or_default();
        let has = |node: &Node, image: &str| {
            images(node).iter().any(|held| held.names.iter().flatten().any(|name| name == image))
        };
        let init = spec(pod).init_containers.clone().unwrap_or_default();
        let containers: Vec<&Container> = spec(pod).containers.iter().chain(&init).collect();
        let mut sum = 0;
        for container in &containers {
            let image = container.image.clone().unwrap();
            let image = if image.contains(':') { image } else { format!("{image}:latest") };
            if has(node, &image) {
                let nodes = self.nodes.iter().filter(|node| has(node, &image)).count() as f64;
                let size = super::generate::image_sizes()[&image];
                sum += (size as f64 * (nodes / self.nodes.len() as f64)) as i64;
            }
        }
        let (low, high) = (23 * 1024 * 1024, 1000 * 1024 * 1024 * containers.len() as i64);
        100 * (sum.clamp(low, high) - low) / (high - low)
    }

    fn soft_spread(&self, pod: &Pod, nodes: &[&Node]) -> Vec<i64> {
        let (constraints, requires_all) = self.constraints(pod, "ScheduleAnyway");
        if constraints.is_empty() {
            return vec![0; nodes.len()];
        }
        let has_all =
            |node: &Node| constraints.iter().all(|(constraint, _)| label(node, &constraint.topology_key).is_some());
        let is_ignored = |node: &Node| requires_all && !has_all(node);
        let taking_part: Vec<&&Node> = nodes.iter().filter(|node| !is_ignored(node)).collect();
        let mut sums = vec![0.0; nodes.len()];
        for (constraint, selector) in &constraints {
            let key = &constraint.topology_key;
            let values: BTreeSet<&str> = taking_part.iter().map(|node| label(node, key).unwrap_or_default()).collect();
            let size = if key == HOSTNAME { taking_part.len() } else { values.len() };
            let weight = ((size + 2) as f64).ln();
            for (sum, node) in sums.iter_mut().zip(nodes) {
                let Some(value) = label(node, key) else { continue };
                let count = if key == HOSTNAME {
                    self.matching(pod, node, selector)
                } else {
                    let there = self.nodes.iter().filter(|other| label(other, key) == Some(value));
                    let counted = there.filter(|other| !is_ignored(other) && Self::is_included(pod, other, constraint));
                    counted.map(|other| self.matching(pod, other, selector)).sum()
                };
                *sum += count as f64 * weight + f64::from(constraint.max_skew - 1);
            }
        }
        let raw: Vec<i64> = sums.iter().map(|sum| sum.round() as i64).collect();
        let valid: Vec<i64> =
            raw.iter().zip(nodes).filter(|(_, node)| !is_ignored(node)).map(|(raw, _)| *raw).collect();
        let (min, max) = (valid.iter().min().copied().unwrap_or(0), valid.iter().max().copied().unwrap_or(0));
        let normal = |(raw, node): (&i64, &&Node)| match (is_ignored(node), max) {
            (true, _) => 0,
            (false, 0) => 100,
            (false, max) => 100 * (max + min - raw) / max,
        };
        raw.iter().zip(nodes).map(normal).collect()
    }

    fn preferred_affinity(&self, pod: &Pod, nodes: &[&Node]) -> Vec<i64> {
        let same =
            |node: &Node, other: &Node, key: &str| label(node, key).is_some() && label(node, key) == label(other, key);
        let raw: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let mut sum = 0;
                for (other, there) in self.placed() {
                    for (weight, term) in preferred(pod) {
                        if self.means(pod, &term, other) && same(node, there, &term.topology_key) {
                            sum += weight;
                        }
                    }
                    let theirs = required_near(other).into_iter().map(|term| (1, term)).chain(preferred(other));
                    for (weight, term) in theirs {
                        if self.means_waiting(other, &term, pod) && same(node, there, &term.topology_key) {
                            sum += weight;
                        }
                    }
                }
                sum
            })
            .collect();
        let (min, max) = (raw.iter().min().copied().unwrap_or(0), raw.iter().max().copied().unwrap_or(0));
        let range = (max - min) as f64;
        raw.iter().map(|sum| if max == min { 0 } else { (100.0 * ((sum - min) as f64 / range)) as i64 }).collect()
    }
}
