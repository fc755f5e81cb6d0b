//! Pods of other hosts: behind the other host's address where we share its network, else through a VXLAN.
//!
//! A node's end of the VXLAN has the first address of its pod range and a hardware address made from it, so that a Node
//! object says everything a peer must know: nothing is learned, flooded or published beside it.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use api::cidr::Cidr;
use api::sort::{CompactCollect as _, CompactSort as _};
use netlink::{LinkKind, Neighbour, Route, RouteKind, Socket};

/// Room for the outer headers: Ethernet 14, IP 20 or 40, UDP 8, VXLAN 8.
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Per peer: host-gw where it is a neighbour, VXLAN where a router stands between.
    #[default]
    Auto,
    HostGw,
    Vxlan,
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("{0:?} is not one of auto, host-gw, vxlan")]
pub struct UnknownBackend(String);

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, UnknownBackend> {
        match text {
            "auto" => Ok(Self::Auto),
            "host-gw" => Ok(Self::HostGw),
            "vxlan" => Ok(Self::Vxlan),
            _ => Err(UnknownBackend(text.to_owned())),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanConfig {
    pub link: String,
    pub vni: u32,
    pub port: u16,
}

impl Default for VxlanConfig {
    fn default() -> Self {
        Self { link: "cox.vxlan".into(), vni: 42, port: 8472 }
    }
}

/// A node, as far as routing cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub address: IpAddr,
    pub pod_cidrs: Vec<Cidr>,
}

/// Who is reached how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pod range, host.
    pub direct: Vec<(Cidr, IpAddr)>,
    /// Through the VXLAN.
    pub tunnelled: Vec<Tunnelled>,
}

/// A pod range behind the other end of the VXLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tunnelled {
    pub range: Cidr,
    pub host: IpAddr,
    /// The hardware address of that end: one for all ranges of its host.
    mac: [u8; 6],
}

/// `is_neighbour` tells whether a host is on a network of ours.
pub fn plan(me: &str, peers: &[Peer], backend: Backend, is_neighbour: impl Fn(IpAddr) -> bool) -> Plan {
    let mut plan = Plan::default();
    for peer in peers.iter().filter(|peer| peer.name != me) {
        let Some(first) = peer.pod_cidrs.first() else { continue };
        for range in &peer.pod_cidrs {
            // A route needs a gateway of its own family; a tunnel carries either.
            let has_gateway = range.is_v6() == peer.address.is_ipv6();
            let is_direct = match backend {
                Backend::HostGw => has_gateway,
                Backend::Vxlan => false,
                Backend::Auto => has_gateway && is_neighbour(peer.address),
            };
            match is_direct {
                true => plan.direct.push((range.network(), peer.address)),
                false => {
                    plan.tunnelled.push(Tunnelled { range: range.network(), host: peer.address, mac: mac_of(*first) });
                }
            }
        }
    }
    plan.direct.compact_sort();
    plan.tunnelled.compact_sort();
    plan
}

/// Makes this host's routes those of the plan. `me` must be among the peers' own description of this node.
pub fn program(me: &Peer, plan: &Plan, vxlan: &VxlanConfig) -> io::Result<()> {
    let socket = Socket::open()?;
    let mut wanted: BTreeSet<Route> = BTreeSet::new();
    for (range, host) in &plan.direct {
        let mut route = Route::to(*range).via(*host);
        route.protocol = Route::OURS;
        route.oif = socket.route_to(*host)?.oif;
        wanted.insert(route);
    }
    let tunnel = match plan.tunnelled.is_empty() {
        true => None,
        false => Some(ensure_tunnel(&socket, me, vxlan)?),
    };
    if let Some(tunnel) = tunnel {
        for far in &plan.tunnelled {
            socket.set_forwarding(&Neighbour { index: tunnel, addr: far.host, mac: far.mac })?;
            socket.set_neighbour(&Neighbour { index: tunnel, addr: far.range.addr, mac: far.mac })?;
            let mut route = Route::to(far.range).via(far.range.addr).dev(tunnel);
            route.protocol = Route::OURS;
            route.onlink = true;
            wanted.insert(route);
        }
    }
    let key = |route: &Route| (route.dst, route.gateway, route.oif);
    let present: Vec<Route> = socket
        .routes()?
        .into_iter()
        // The sealed ranges carry a priority; routes to peers do not (the kernel's default for IPv6 is 1024).
        .filter(|r| r.protocol == Route::OURS && r.gateway.is_some())
        .collect();
    for route in wanted.iter().filter(|w| !present.iter().any(|p| key(p) == key(w))) {
        socket.replace_route(route)?;
    }
    for route in present.iter().filter(|p| !wanted.iter().any(|w| w.dst == p.dst)) {
        socket.del_route(route)?;
    }
    // Last: until a moment ago there were routes through it.
    match tunnel {
        None => remove_tunnel(&socket, vxlan),
        Some(tunnel) => prune_tunnel(&socket, tunnel, plan),
    }
}

/// Whether all routes of a plan are there: a link that goes down takes its routes along, and network managers remove those of others.
pub fn is_in_place(plan: &Plan) -> io::Result<bool> {
    let present: BTreeSet<(Cidr, Option<IpAddr>)> = Socket::open()?
        .routes()?
        .into_iter()
        .filter(|route| route.protocol == Route::OURS && route.kind == RouteKind::Unicast)
        .map(|route| (route.dst, route.gateway))
        .compact_collect();
    let tunnelled = plan.tunnelled.iter().map(|far| (far.range, far.range.addr));
    let mut wanted = plan.direct.iter().copied().chain(tunnelled);
    Ok(wanted.all(|(range, gateway)| present.contains(&(range, Some(gateway)))))
}

/// Forgets hosts that the tunnel leads to no longer.
fn prune_tunnel(socket: &Socket, tunnel: u32, plan: &Plan) -> io::Result<()> {
    let present = |n: &Neighbour| plan.tunnelled.iter().any(|far| far.mac == n.mac && far.range.addr == n.addr);
    for gone in socket.neighbours(tunnel)?.iter().filter(|n| is_ours(n.mac) && !present(n)) {
        socket.del_neighbour(gone)?;
    }
    let moved = |e: &Neighbour| !plan.tunnelled.iter().any(|far| far.host == e.addr && far.mac == e.mac);
    for gone in socket.forwarding(tunnel)?.iter().filter(|e| is_ours(e.mac) && moved(e)) {
        socket.del_forwarding(gone)?;
    }
    Ok(())
}

fn ensure_tunnel(socket: &Socket, me: &Peer, vxlan: &VxlanConfig) -> io::Result<u32> {
    let no_range = || io::Error::new(io::ErrorKind::InvalidInput, format!("node {} has no pod range", me.name));
    let own = me.pod_cidrs.first().ok_or_else(no_range)?.network();
    let mac = mac_of(own);
    let underlay = socket
        .addresses()?
        .into_iter()
        .find(|address| address.cidr.addr == me.address)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no link has the address {}", me.address)))?
        .index;
    if let Some(link) = socket.link(&vxlan.link)? {
        if link.kind == "vxlan" && link.mac == mac {
            socket.set_up(link.index)?;
            return Ok(link.index);
        }
        // The node's range changed: peers would address an end that is no longer ours.
        socket.del_link(link.index)?;
    }
    let mtu = socket.link_by_index(underlay)?.map(|link| pod_mtu(Backend::Vxlan, link.mtu, me.address));
    // Not bound to the underlay: peers may be behind different links of this host, and routes know which.
    let kind = LinkKind::Vxlan { vni: vxlan.vni, port: vxlan.port, local: me.address };
    socket.add_link(&vxlan.link, kind, mtu, Some(mac))?;
    let link = socket.link(&vxlan.link)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    for range in &me.pod_cidrs {
        socket.add_own_address(link.index, Cidr::host(range.network().addr))?;
    }
    socket.set_up(link.index)?;
    Ok(link.index)
}

pub(super) fn remove_tunnel(socket: &Socket, vxlan: &VxlanConfig) -> io::Result<()> {
    match socket.link(&vxlan.link)?.filter(|link| link.kind == "vxlan") {
        Some(link) => socket.del_link(link.index),
        None => Ok(()),
    }
}

/// The largest packet a pod may send so that it fits the hosts' network.
pub fn pod_mtu(backend: Backend, underlay: u32, node: IpAddr) -> u32 {
    match (backend, node.is_ipv6()) {
        (Backend::HostGw, _) => underlay,
        (_, false) => underlay.saturating_sub(OVERHEAD_V4),
        (_, true) => underlay.saturating_sub(OVERHEAD_V6),
    }
}

/// Locally administered, and recognisably ours.
fn mac_of(range: Cidr) -> [u8; 6] {
    let tail: [u8; 4] = match range.network().addr {
        IpAddr::V4(addr) => addr.octets(),
        // Ranges of nodes differ in at most two bytes, mostly within bytes 4 to 8: those after them are zero where ranges have half of all
        // bits, and keep smaller ones apart.
        IpAddr::V6(addr) => {
            let [_, one, two, three] = [0, 4, 8, 12]
                .map(|at| <[u8; 4]>::try_from(&addr.octets()[at..at + 4]).map(u32::from_be_bytes).unwrap_or_default());
            (one ^ two ^ three).to_be_bytes()
        }
    };
    [MAC_PREFIX[0], MAC_PREFIX[1], tail[0], tail[1], tail[2], tail[3]]
}

const MAC_PREFIX: [u8; 2] = [0x0e, 0x63];

fn is_ours(mac: [u8; 6]) -> bool {
    mac[..2] == MAC_PREFIX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, address: &str, ranges: &[&str]) -> Peer {
        let pod_cidrs = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Peer { name: name.into(), address: address.parse().unwrap(), pod_cidrs }
    }

    #[test]
    fn neighbours_are_direct_and_others_tunnelled() {
        let peers = [
            peer("me", "192.0.2.1", &["10.42.0.0/24"]),
            peer("near", "192.0.2.2", &["10.42.1.0/24"]),
            peer("far", "198.51.100.2", &["10.42.2.0/24", "fd42:0:0:2::/64"]),
            peer("new", "192.0.2.9", &[]),
        ];
        let near: Cidr = "192.0.2.0/24".parse().unwrap();
        for (backend, direct, tunnelled) in [(Backend::Auto, 1, 2), (Backend::HostGw, 2, 1), (Backend::Vxlan, 0, 3)] {
            let plan = plan("me", &peers, backend, |addr| near.contains(addr));
            assert_eq!((plan.direct.len(), plan.tunnelled.len()), (direct, tunnelled), "{backend:?}");
            // Both families of a host are behind the one end that it has.
            let ends: BTreeSet<_> = plan.tunnelled.iter().map(|far| (far.host, far.mac)).collect();
            let hosts: BTreeSet<_> = plan.tunnelled.iter().map(|far| far.host).collect();
            assert_eq!(ends.len(), hosts.len(), "{backend:?}");
        }
    }

    #[test]
    fn ranges_have_their_own_hardware_address() {
        let macs: BTreeSet<_> =
            ["10.42.0.0/24", "10.42.1.0/24", "fd42::/64", "fd42:0:1::/64"].map(|r| mac_of(r.parse().unwrap())).into();
        assert_eq!(macs.len(), 4);
        assert!(macs.iter().all(|mac| is_ours(*mac) && mac[0] & 3 == 2));
        // Nodes may be of several versions: what one makes of a range is what the other makes of it.
        assert_eq!(mac_of("fd42:0:1:2::/64".parse().unwrap()), [0x0e, 0x63, 0, 1, 0, 2]);
        for ranges in [
            // `--node-cidr-mask-size-ipv6` allows ranges that are smaller than half of all addresses.
            &["fd42::/80", "fd42::1:0:0:0/80", "fd42::ffff:0:0:0/80"][..],
            &["fd42::/104", "fd42::100:0/104", "fd42::1:0:0/104", "fd42::1:100:0/104"],
            &["fd42::/112", "fd42::1:0/112", "fd42::ffff:0/112"],
        ] {
            let macs: BTreeSet<_> = ranges.iter().map(|range| mac_of(range.parse().unwrap())).collect();
            assert_eq!(macs.len(), ranges.len(), "{ranges:?}");
        }
    }
}
