//! The endpoints behind one port of a Service, and which of them traffic goes to.
//!
//! The proxy, which writes them into the kernel, and the gateway, which connects to them itself, choose alike.

use std::collections::BTreeSet;
use std::net::IpAddr;

pub use api::endpoint::SERVICE_LABEL;
use api::sort::CompactSort as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// One address behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub addr: IpAddr,
    pub port: u16,
    pub is_ready: bool,
    /// Terminating, but still answering: used when nothing better is left.
    pub is_serving_terminating: bool,
    pub node: Option<String>,
    pub hinted_zones: Vec<String>,
    pub hinted_nodes: Vec<String>,
}

/// From where traffic is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    pub node: &'a str,
    pub zone: Option<&'a str>,
}

/// The endpoints of a port, by its name and protocol (in either case), in slices of one family; sorted, each of them once.
pub fn of_port(
    slices: impl Iterator<Item = impl AsRef<EndpointSlice>>,
    port: &str,
    protocol: &str,
    is_v6: bool,
) -> Vec<Endpoint> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for slice in slices {
        let slice = slice.as_ref();
        if slice.address_type != (if is_v6 { "IPv6" } else { "IPv4" }) {
            continue;
        }
        let numbers = slice.ports.iter().flatten().filter(|p| {
            p.name.as_deref().unwrap_or_default() == port
                && p.protocol.as_deref().unwrap_or("TCP").eq_ignore_ascii_case(protocol)
        });
        for number in numbers.filter_map(|p| u16::try_from(p.port?).ok()) {
            for endpoint in slice.endpoints.iter().flatten() {
                // Upstream uses the first address only: they are interchangeable.
                let Some(addr) = endpoint.addresses.first().and_then(|addr| addr.parse().ok()) else { continue };
                // The same endpoint may show up in two slices while it moves between them.
                if !seen.insert((addr, number)) {
                    continue;
                }
                let conditions = endpoint.conditions.clone().unwrap_or_default();
                let is_ready = conditions.ready.unwrap_or(true);
                let is_serving = conditions.serving.unwrap_or(is_ready);
                let is_terminating = conditions.terminating.unwrap_or(false);
                let hints = endpoint.hints.clone().unwrap_or_default();
                found.push(Endpoint {
                    addr,
                    port: number,
                    is_ready,
                    is_serving_terminating: is_serving && is_terminating,
                    node: endpoint.node_name.clone(),
                    hinted_zones: hints.for_zones.into_iter().flatten().map(|zone| zone.name).collect(),
                    hinted_nodes: hints.for_nodes.into_iter().flatten().map(|node| node.name).collect(),
                });
            }
        }
    }
    found.compact_sort_by_key(|endpoint| (endpoint.addr, endpoint.port));
    found
}

/// Ready endpoints, near ones if the hints are complete; without any, those that still serve while they terminate.
pub fn choose<'a>(endpoints: &'a [Endpoint], place: Place<'_>) -> Vec<&'a Endpoint> {
    let ready: Vec<&Endpoint> = endpoints.iter().filter(|endpoint| endpoint.is_ready).collect();
    match ready.is_empty() {
        false => near(&ready, place),
        true => endpoints.iter().filter(|endpoint| endpoint.is_serving_terminating).collect(),
    }
}

/// Topology hints, node before zone. Hints count only when every endpoint has them and some name us: half-updated slices
/// must not send a zone's traffic to one endpoint, or to none.
fn near<'a>(ready: &[&'a Endpoint], place: Place<'_>) -> Vec<&'a Endpoint> {
    let all_have = |has: fn(&Endpoint) -> bool| ready.iter().all(|endpoint| has(endpoint));
    let among = |names: &[String], name: &str| names.iter().any(|hinted| hinted == name);
    if all_have(|endpoint| !endpoint.hinted_nodes.is_empty()) {
        let chosen: Vec<&Endpoint> =
            ready.iter().copied().filter(|endpoint| among(&endpoint.hinted_nodes, place.node)).collect();
        if !chosen.is_empty() {
            return chosen;
        }
    }
    if let (Some(zone), true) = (place.zone, all_have(|endpoint| !endpoint.hinted_zones.is_empty())) {
        let chosen: Vec<&Endpoint> =
            ready.iter().copied().filter(|endpoint| among(&endpoint.hinted_zones, zone)).collect();
        if !chosen.is_empty() {
            return chosen;
        }
    }
    ready.to_vec()
}
