//! What a pod asks of one node, whoever else is there.

use std::collections::{BTreeMap, BTreeSet};

use api::cached::Pod;
use api::placement::{NodeSelector, Preferences};
use k8s_openapi::api::core::v1::{Container, NodeAffinity, Toleration};
use serde::Serialize;

use super::catalogue::{Catalogue, ClassId};
use super::resources::{Requests, is_sidecar};

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) id: ClassId,
    pub(crate) requests: Requests,
    pub(crate) node_name: Option<String>,
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Required node affinity.
    pub(crate) required: Option<NodeSelector>,
    /// Preferred node affinity; None if the pod has none at all.
    pub(crate) preferred: Option<Preferences>,
    /// The only nodes that required affinity can hold on, where it names them; empty if its names contradict each other.
    pub(crate) named_nodes: Option<BTreeSet<String>>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) host_ports: Vec<HostPort>,
    /// Images of all containers and image volumes, with tags; one may be there several times.
    pub(crate) images: Vec<String>,
    pub(crate) containers: usize,
}

/// A port that a pod wants on its node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct HostPort {
    pub(crate) address: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

impl HostPort {
    /// Two pods cannot have both; the wildcard address meets every address.
    pub(crate) fn conflicts_with(&self, other: &HostPort) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || self.address == "0.0.0.0" || other.address == "0.0.0.0")
    }
}

/// Everything that [`Class::new`] reads: pods with the same signature are of the same class. Where a pod is bound to does
/// not count, or pods would change their class by being bound.
pub(crate) fn signature(pod: &Pod, is_placed: bool) -> String {
    #[derive(Serialize)]
    struct Signature<'a> {
        node_name: Option<&'a String>,
        node_selector: Option<&'a BTreeMap<String, String>>,
        node_affinity: Option<&'a NodeAffinity>,
        tolerations: Option<&'a Vec<Toleration>>,
        containers: Vec<Asked<'a>>,
        images: Vec<&'a str>,
        pod_level: Option<&'a k8s_openapi::api::core::v1::ResourceRequirements>,
        overhead: Option<&'a BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
    }
    #[derive(Serialize)]
    struct Asked<'a> {
        requests: Option<&'a BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
        ports: Vec<HostPort>,
        image: Option<&'a String>,
        is_init: bool,
        is_sidecar: bool,
    }
    let Some(spec) = &pod.spec else { return String::new() };
    let asked = |container, is_init| {
        let container: &Container = container;
        Asked {
            requests: container.resources.as_ref().and_then(|resources| resources.requests.as_ref()),
            ports: host_ports_of(container).collect(),
            image: container.image.as_ref(),
            is_init,
            is_sidecar: is_sidecar(container),
        }
    };
    let containers = spec.containers.iter().map(|container| asked(container, false));
    let init = spec.init_containers.iter().flatten().map(|container| asked(container, true));
    let signature = Signature {
        node_name: spec.node_name.as_ref().filter(|_| !is_placed),
        node_selector: spec.node_selector.as_ref(),
        node_affinity: spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()),
        tolerations: spec.tolerations.as_ref(),
        containers: containers.chain(init).collect(),
        images: image_volumes(pod).collect(),
        pod_level: spec.resources.as_ref(),
        overhead: spec.overhead.as_ref(),
    };
    serde_json::to_string(&signature).unwrap_or_default()
}

impl Class {
    pub(crate) fn new(id: ClassId, pod: &Pod, is_placed: bool, catalogue: &Catalogue) -> Class {
        let spec = pod.spec.as_ref();
        let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
        let containers = || spec.into_iter().flat_map(|spec| &spec.containers);
        let init = || spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let images = init().chain(containers()).filter_map(|container| container.image.as_deref());
        Class {
            id,
            requests: Requests::of(pod, catalogue),
            node_name: super::node_name(pod).filter(|_| !is_placed).map(str::to_owned),
            node_selector: spec.and_then(|spec| spec.node_selector.clone()).unwrap_or_default(),
            required: affinity
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
                .map(NodeSelector::new),
            preferred: affinity
                .and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_deref())
                .map(Preferences::new),
            named_nodes: affinity.and_then(named_nodes),
            tolerations: spec.and_then(|spec| spec.tolerations.clone()).unwrap_or_default(),
            host_ports: init()
                .filter(|container| is_sidecar(container))
                .chain(containers())
                .flat_map(host_ports_of)
                .collect(),
            images: images.chain(image_volumes(pod)).map(with_tag).collect(),
            containers: containers().count() + init().count(),
        }
    }

    /// Whether `nodeSelector` and required affinity let the pod go to the node.
    pub(crate) fn admits(&self, name: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        let holds = |(key, value): (&String, &String)| labels.and_then(|labels| labels.get(key)) == Some(value);
        self.node_selector.iter().all(holds)
            && self.required.as_ref().is_none_or(|required| required.matches(name, labels))
    }
}

/// The nodes that the terms name, if each of them names some.
fn named_nodes(affinity: &NodeAffinity) -> Option<BTreeSet<String>> {
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    let mut all: Option<BTreeSet<String>> = None;
    for term in terms {
        let mut named: Option<BTreeSet<String>> = None;
        let fields = term.match_fields.iter().flatten();
        for field in fields.filter(|field| field.key == "metadata.name" && field.operator == "In") {
            let values: BTreeSet<String> = field.values.iter().flatten().cloned().collect();
            named = Some(match named {
                Some(named) => named.intersection(&values).cloned().collect(),
                None => values,
            });
        }
        all.get_or_insert_default().extend(named?);
    }
    all
}

fn host_ports_of(container: &Container) -> impl Iterator<Item = HostPort> {
    container.ports.iter().flatten().filter_map(|port| {
        Some(HostPort {
            address: port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into()),
            protocol: port.protocol.clone().filter(|protocol| !protocol.is_empty()).unwrap_or_else(|| "TCP".into()),
            port: port.host_port.filter(|port| *port > 0)?,
        })
    })
}

fn image_volumes(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref())
}

/// Nodes report names with tags; a pod may leave the tag out.
fn with_tag(image: &str) -> String {
    match (image.rfind(':'), image.rfind('/')) {
        (Some(colon), slash) if slash.is_none_or(|slash| colon > slash) => image.to_owned(),
        _ => format!("{image}:latest"),
    }
}
