//! From a reference to a Service's port to the endpoints behind it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use proxy::endpoints::{self, Place};

use super::Settings;
use super::backend_tls::Policies;
use crate::table::{Backend, BackendProtocol};
use crate::world::World;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum PortRef {
    Number(i32),
    Name(String),
}

/// What a backend is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    Http,
    Grpc,
    /// Bytes that are not ours to read.
    Stream,
}

/// Why a reference leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    NotFound(String),
    /// It exists, but is not of a kind that can be led to.
    Unsupported(String),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotFound(text) | Self::Unsupported(text)) = self;
        f.write_str(text)
    }
}

type Found = Result<Arc<Backend>, Missing>;

/// Looks up each port once.
pub(super) struct Backends<'a> {
    world: &'a World,
    place: Place<'a>,
    /// Where the gateway itself listens: a request must not come back to it.
    own: (&'a [IpAddr], BTreeSet<u16>),
    /// Addresses that are its alone, whatever the port.
    pool: &'a [Cidr],
    services: Virtual,
    pub(super) policies: Policies<'a>,
    known: HashMap<(String, PortRef, Use), Found>,
}

impl<'a> Backends<'a> {
    /// `ports` are those that the gateway has at its addresses.
    pub(super) fn new(world: &'a World, settings: &'a Settings, ports: BTreeSet<u16>) -> Self {
        let place = Place { node: &settings.node, zone: world.zone.as_deref() };
        let (own, pool) = ((settings.addresses.as_slice(), ports), settings.pool.as_slice());
        let policies = Policies::new(world);
        Self { world, place, own, pool, services: Virtual::of(world), policies, known: HashMap::new() }
    }

    /// A port of the Service `namespace/name`; its protocol is HTTP/2 if the Service or the route says so.
    pub(super) fn find(&mut self, service: &str, port: &PortRef, used: Use) -> Found {
        let key = (service.to_owned(), port.clone(), used);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = self.look_up(service, port, used).map(Arc::new);
        self.known.insert(key, found.clone());
        found
    }

    fn look_up(&self, key: &str, port: &PortRef, used: Use) -> Result<Backend, Missing> {
        let missing = || Missing::NotFound(format!("service {key:?} not found"));
        let service: &Service = self.world.services.get(key).ok_or_else(missing)?;
        let spec = service.spec.as_ref().ok_or_else(missing)?;
        if spec.type_.as_deref() == Some("ExternalName") {
            // A name could lead anywhere, the gateway's own network included.
            return Err(Missing::Unsupported(format!("service {key:?} is of type ExternalName")));
        }
        let is_it = |candidate: &&ServicePort| match port {
            PortRef::Number(number) => candidate.port == *number,
            PortRef::Name(name) => candidate.name.as_ref() == Some(name),
        };
        let is_tcp = |port: &&ServicePort| port.protocol.as_deref().unwrap_or("TCP") == "TCP";
        let found = spec.ports.iter().flatten().filter(is_tcp).find(is_it);
        let text = match port {
            PortRef::Number(number) => number.to_string(),
            PortRef::Name(name) => name.clone(),
        };
        let Some(found) = found else {
            return Err(Missing::NotFound(format!("service {key:?} has no TCP port {text:?}")));
        };
        let said = found.app_protocol.as_deref().unwrap_or_default();
        let protocol = match (said, used) {
            ("kubernetes.io/h2c" | "h2c" | "grpc" | "grpcs", _) | (_, Use::Grpc) => BackendProtocol::Http2,
            _ => BackendProtocol::Http1,
        };
        let port_name = found.name.as_deref().unwrap_or_default();
        let policy = self.policies.of(key, port_name);
        let wants_tls = policy.is_some() || matches!(said, "https" | "kubernetes.io/wss" | "grpcs");
        let tls = match (policy, said) {
            // Whoever begins TLS also knows whom to trust.
            _ if used == Use::Stream => None,
            (Some(Ok(tls)), _) => Some(tls),
            (Some(Err(why)), _) => {
                return Err(Missing::Unsupported(format!(
                    "service {key:?}: its BackendTLSPolicy cannot be used: {why}"
                )));
            }
            // Whoever answers there could say that it is the backend.
            (None, _) if wants_tls => {
                let text =
                    format!("service {key:?}: port {text:?} has TLS, and no BackendTLSPolicy says whom to trust");
                return Err(Missing::Unsupported(text));
            }
            (None, _) => None,
        };
        let (name, endpoints) = (format!("{key}:{text}"), self.endpoints_of(key, port_name));
        Ok(Backend { name, protocol, wants_tls, tls, endpoints })
    }

    /// Those of version 4 where there are any: a client's family says nothing about a backend's.
    fn endpoints_of(&self, service: &str, port: &str) -> Vec<SocketAddr> {
        let slices = || self.world.slices.get(service).into_iter().flat_map(|slices| slices.values());
        let of_family = |is_v6| {
            let found = endpoints::of_port(slices(), port, "TCP", is_v6);
            let chosen = endpoints::choose(&found, self.place);
            let chosen = chosen.into_iter().filter(|endpoint| is_elsewhere(endpoint.addr));
            let chosen = chosen.map(|endpoint| SocketAddr::new(endpoint.addr, endpoint.port));
            let chosen = chosen.filter(|endpoint| !self.is_gateway(*endpoint));
            chosen.filter(|endpoint| !self.services.has(*endpoint, self.own.0)).collect::<Vec<_>>()
        };
        let four = of_family(false);
        if four.is_empty() { of_family(true) } else { four }
    }

    fn is_gateway(&self, endpoint: SocketAddr) -> bool {
        let (addresses, ports) = &self.own;
        let address = endpoint.ip().to_canonical();
        self.pool.iter().any(|range| range.contains(address))
            || (ports.contains(&endpoint.port()) && addresses.iter().any(|own| own.to_canonical() == address))
    }

    /// The ways in which backends are spoken to over TLS.
    pub(super) fn tls_ids(&self) -> HashSet<u64> {
        self.known.values().flatten().filter_map(|backend| backend.tls.as_ref()).map(|tls| tls.id).collect()
    }

    /// All endpoints that were found.
    pub(super) fn endpoints(&self) -> HashSet<SocketAddr> {
        self.known.values().flatten().flat_map(|backend| backend.endpoints.iter().copied()).collect()
    }
}

/// Addresses that are services themselves. Where the proxy leads from them, back to the gateway perhaps, is not for routes to say:
/// requests would go round in circles.
#[derive(Default)]
struct Virtual {
    /// At any port.
    addresses: HashSet<IpAddr>,
    ports: HashSet<SocketAddr>,
    node_ports: HashSet<u16>,
}

impl Virtual {
    fn of(world: &World) -> Self {
        let mut all = Self::default();
        for service in world.services.values() {
            let Some(spec) = &service.spec else { continue };
            let parsed =
                |texts: &[String]| -> Vec<IpAddr> { texts.iter().filter_map(|text| text.parse().ok()).collect() };
            for texts in [spec.cluster_ip.as_slice(), spec.cluster_ips.as_deref().unwrap_or_default()] {
                all.addresses.extend(parsed(texts));
            }
            let numbers = || spec.ports.iter().flatten();
            let port = |number: i32| u16::try_from(number).unwrap_or_default();
            let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
            let balancers = status.into_iter().flat_map(|status| status.ingress.iter().flatten());
            let balancers = balancers.filter_map(|one| one.ip.as_deref()?.parse().ok());
            for address in parsed(spec.external_ips.as_deref().unwrap_or_default()).into_iter().chain(balancers) {
                all.ports.extend(numbers().map(|one| SocketAddr::new(address, port(one.port))));
            }
            all.node_ports.extend(numbers().filter_map(|one| one.node_port).map(port));
        }
        all
    }

    /// `nodes` are addresses at which node ports answer.
    fn has(&self, endpoint: SocketAddr, nodes: &[IpAddr]) -> bool {
        let address = endpoint.ip().to_canonical();
        self.addresses.contains(&address)
            || self.ports.contains(&SocketAddr::new(address, endpoint.port()))
            || (self.node_ports.contains(&endpoint.port()) && nodes.iter().any(|node| node.to_canonical() == address))
    }
}

/// Slices can be written by hand. None of them gets at what only this machine should reach.
fn is_elsewhere(address: IpAddr) -> bool {
    api::cidr::is_global_unicast(address)
}
