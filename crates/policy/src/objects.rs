//! Pods, nodes and NetworkPolicies, as far as a decision depends on them.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex};

use api::cached;
use api::cidr::Cidr;
use api::meta::Meta as _;
use api::selector::Selector;
use api::shared::{Table, lock};
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// The Service of the cluster's DNS, which has no pods in `cox up`: policies name it by the labels that its pods have elsewhere.
pub const DNS: (&str, &str) = ("kube-system", "kube-dns");

/// A node as a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub labels: Labels,
    /// All that its status names.
    pub addresses: Vec<IpAddr>,
}

impl Node {
    pub fn new(node: &v1::Node) -> Self {
        let named = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let mut addresses: Vec<IpAddr> = named.filter_map(|named| named.address.parse().ok()).collect();
        addresses.compact_sort();
        addresses.dedup();
        Self { labels: node.metadata.labels.clone().unwrap_or_default(), addresses }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// One copy for all pods that have the same.
    pub labels: Arc<Labels>,
    pub node: String,
    pub addresses: Vec<IpAddr>,
    /// Neither is in the host's network nor has ended: it has addresses of its own, or will.
    pub has_network: bool,
    /// Had addresses of its own and has ended, as somebody says: its node may know better.
    pub is_over: bool,
    pub is_leaving: bool,
    pub ports: Vec<NamedPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub fn parse(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// As `nft` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub namespace: String,
    pub name: String,
    pub pods: Selector,
    /// None: the policy does not speak of this direction.
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
}

/// What is allowed: any of the peers, on any of the ports. None stands for all.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub peers: Option<Vec<Peer>>,
    pub ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Peer {
    Pods {
        /// None: those of the policy's own namespace.
        namespaces: Option<Selector>,
        pods: Selector,
    },
    Block {
        range: Cidr,
        except: Vec<Cidr>,
    },
    /// The addresses of these nodes.
    Nodes(Selector),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub protocol: Protocol,
    pub which: Which,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Numbers(u16, u16),
    /// A port by the name that its pod gives it.
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Ingress,
    Egress,
}

/// Labels of pods, by a hash of them.
static LABELS: LazyLock<Mutex<Table<u64, Labels>>> = LazyLock::new(Mutex::default);
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn shared_labels(labels: &Labels) -> Arc<Labels> {
    let key = HASH.hash_one(labels);
    let mut known = lock(&LABELS);
    match known.find(&key).filter(|known| **known == *labels) {
        Some(known) => known,
        None => known.keep(key, Arc::new(labels.clone()), |_| false),
    }
}

impl Pod {
    pub fn new(pod: &cached::Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let listed = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten().map(|ip| ip.ip.as_str());
        let single = status.and_then(|status| status.pod_ip.as_deref());
        let mut addresses: Vec<IpAddr> = listed.chain(single).filter_map(|ip| ip.parse().ok()).collect();
        addresses.compact_sort();
        addresses.dedup();
        let is_over = api::pod::is_terminal(pod);
        let is_of_host = spec.and_then(|spec| spec.host_network) == Some(true);
        let containers =
            spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone()?,
                protocol: Protocol::parse(port.protocol.as_deref())?,
                number: u16::try_from(port.container_port).ok()?,
            })
        });
        // The mirror of a static pod has a uid of its own; the node knows the pod by this one.
        let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(name));
        let mirrored = annotation("kubernetes.io/config.mirror").and_then(|_| annotation("kubernetes.io/config.hash"));
        Self {
            namespace: pod.metadata.namespace().to_owned(),
            name: pod.metadata.name().to_owned(),
            uid: mirrored.or(pod.metadata.uid.as_ref()).cloned().unwrap_or_default(),
            labels: pod.metadata.labels.as_ref().map(shared_labels).unwrap_or_default(),
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            addresses,
            has_network: !is_over && !is_of_host,
            is_over: is_over && !is_of_host,
            is_leaving: pod.metadata.deletion_timestamp.is_some(),
            ports: ports.collect(),
        }
    }

    /// The servers of the cluster's DNS that a slice of its Service names.
    pub fn of_dns(slice: &EndpointSlice) -> Option<Self> {
        Self::stand_in(slice, [("k8s-app".to_owned(), DNS.1.to_owned())].into())
    }

    /// A server of the cluster that is no pod but has the place of one: users name it by the labels it would have.
    fn stand_in(slice: &EndpointSlice, labels: Labels) -> Option<Self> {
        let endpoints = &slice.endpoints;
        let alone = endpoints.iter().flatten().filter(|endpoint| endpoint.target_ref.is_none());
        let addresses: Vec<IpAddr> =
            alone.flat_map(|endpoint| &endpoint.addresses).filter_map(|ip| ip.parse().ok()).collect();
        let named = slice.ports.iter().flatten().filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone()?,
                protocol: Protocol::parse(port.protocol.as_deref())?,
                number: u16::try_from(port.port?).ok()?,
            })
        });
        (!addresses.is_empty()).then(|| Self {
            namespace: slice.metadata.namespace().to_owned(),
            name: slice.metadata.name().to_owned(),
            labels: Arc::new(labels),
            addresses,
            has_network: true,
            ports: named.collect(),
            ..Self::default()
        })
    }

    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The number that a port's name stands for.
    pub fn port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.ports.iter().find(|port| port.name == name && port.protocol == protocol).map(|port| port.number)
    }
}

impl Policy {
    pub fn new(policy: &NetworkPolicy) -> Self {
        let spec = policy.spec.clone().unwrap_or_default();
        let named = spec.policy_types.clone().unwrap_or_default();
        // As the API server fills it in: ingress always, egress where there are rules for it.
        let speaks_of = |direction: &str, by_default: bool| match named.is_empty() {
            true => by_default,
            false => named.iter().any(|name| name == direction),
        };
        let ingress = spec.ingress.iter().flatten().map(|rule| Rule::new(rule.from.as_deref(), rule.ports.as_deref()));
        let egress = spec.egress.iter().flatten().map(|rule| Rule::new(rule.to.as_deref(), rule.ports.as_deref()));
        Self {
            namespace: policy.metadata.namespace().to_owned(),
            name: policy.metadata.name().to_owned(),
            // One that cannot be read isolates more rather than less.
            pods: selector(spec.pod_selector.as_ref()).unwrap_or_default(),
            ingress: speaks_of("Ingress", true).then(|| ingress.collect()),
            egress: speaks_of("Egress", spec.egress.is_some()).then(|| egress.collect()),
        }
    }

    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub fn selects(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace && self.pods.matches(Some(&*pod.labels))
    }

    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Of a selector that is there; an absent one selects everything, as an empty one does.
fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    match selector {
        Some(selector) => Selector::from_label_selector(Some(selector)).ok(),
        None => Some(Selector::everything()),
    }
}

impl Rule {
    fn new(peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Self {
        // An empty list is none at all; what cannot be read allows nothing.
        let peers = peers.filter(|peers| !peers.is_empty());
        let ports = ports.filter(|ports| !ports.is_empty());
        Self {
            peers: peers.map(|peers| peers.iter().filter_map(Peer::new).collect()),
            ports: ports.map(|ports| ports.iter().filter_map(Port::new).collect()),
        }
    }
}

impl Peer {
    fn new(peer: &NetworkPolicyPeer) -> Option<Self> {
        if let Some(block) = &peer.ip_block {
            let except: Result<Vec<Cidr>, _> = block.except.iter().flatten().map(|range| range.parse()).collect();
            return Some(Self::Block { range: block.cidr.parse().ok()?, except: except.ok()? });
        }
        let namespaces = match &peer.namespace_selector {
            Some(namespaces) => Some(selector(Some(namespaces))?),
            None => None,
        };
        (namespaces.is_some() || peer.pod_selector.is_some()).then_some(())?;
        Some(Self::Pods { namespaces, pods: selector(peer.pod_selector.as_ref())? })
    }
}

impl Port {
    fn new(port: &NetworkPolicyPort) -> Option<Self> {
        let which = match &port.port {
            None => Which::Numbers(0, u16::MAX),
            Some(IntOrString::Int(first)) => {
                let first = u16::try_from(*first).ok()?;
                let last = port.end_port.map_or(Some(first), |last| u16::try_from(last).ok())?;
                (first <= last).then_some(Which::Numbers(first, last))?
            }
            Some(IntOrString::String(name)) => Which::Named(name.clone()),
        };
        Some(Self { protocol: Protocol::parse(port.protocol.as_deref())?, which })
    }
}
