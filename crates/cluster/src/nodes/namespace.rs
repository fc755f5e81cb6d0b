//! The network of a further node: a namespace with one interface, on a bridge with all nodes of this machine.

use std::net::IpAddr;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use api::cidr::Cidr;
use cni::netns::{self, Netns};
use netlink::{LinkKind, Neighbour, Route, Scope, Socket};

use super::record::{Network, Record};
use crate::node_network::bridge;
use crate::options::Options;

/// Joins the nodes of this machine.
const BRIDGE: &str = "cox-nodes";
/// A node's way out, as seen from inside.
const UPLINK: &str = "eth0";

/// Makes the bridge that further nodes are on; it must be there before anyone asks how to reach them.
pub(crate) fn ensure_bridge(network: &Network) -> Result<u32> {
    bridge(BRIDGE, &network.gateways()?).context("making the bridge between nodes")
}

/// Makes what is missing of a node's network. `first_node` has the addresses of the node outside of namespaces.
pub(super) fn ensure(cluster: &Options, network: &Network, record: &Record, first_node: &[IpAddr]) -> Result<()> {
    let path = record.netns(cluster);
    let make = || -> Result<()> {
        let addresses = network.addresses(record);
        let bridge = ensure_bridge(network)?;
        let namespace = match Netns::is_kept_at(&path) {
            true => Netns::open(&path)?,
            false => Netns::create(&path)?,
        };
        let (outside, inside) = (Socket::open()?, namespace.socket()?);
        if inside.link(UPLINK)?.is_none() {
            let kind = LinkKind::Veth { peer: UPLINK, peer_netns: Some(namespace.as_fd()), peer_mtu: None };
            outside.add_link(&cable(record), kind, None, None)?;
        }
        let port = outside.link(&cable(record))?.context("the node's cable is gone")?;
        outside.set_master(port.index, bridge)?;
        // A node that asks the first one for a service may be led back to a pod of its own.
        outside.set_hairpin(port.index, true)?;
        outside.set_up(port.index)?;
        if addresses.iter().any(IpAddr::is_ipv6) {
            // Addresses are given out once, and one that is still being asked about sends nothing.
            namespace.enter(|| netns::set_sysctl(&format!("net/ipv6/conf/{UPLINK}/accept_dad"), "0"))??;
        }
        let mac = outside.link_by_index(bridge)?.context("the bridge between nodes is gone")?.mac;
        for (address, gateway) in addresses.into_iter().zip(network.gateways()?) {
            let first = first_node.iter().find(|first| first.is_ipv6() == gateway.is_v6());
            furnish(&inside, Cidr::new(address, gateway.prefix), gateway.addr, first.map(|first| (*first, mac)))?;
        }
        Ok(())
    };
    make().with_context(|| format!("making the network of node {}", record.name))
}

/// Loopback, address, and two routes: the first node is a neighbour on the bridge whatever its address of this family, and
/// all else is behind it.
fn furnish(inside: &Socket, address: Cidr, gateway: IpAddr, first_node: Option<(IpAddr, [u8; 6])>) -> Result<()> {
    let index = |name: &str| -> Result<u32> { Ok(inside.link(name)?.with_context(|| format!("no {name}"))?.index) };
    inside.set_up(index("lo")?)?;
    let uplink = index(UPLINK)?;
    if !inside.addresses_of(uplink)?.iter().any(|held| held.cidr == address) {
        inside.add_own_address(uplink, address)?;
    }
    inside.set_up(uplink)?;
    if let Some((first_node, mac)) = first_node.filter(|(first, _)| !address.contains(*first)) {
        let mut neighbour = Route::to(Cidr::host(first_node)).dev(uplink);
        neighbour.scope = Scope::LINK;
        inside.replace_route(&neighbour)?;
        if first_node.is_ipv6() {
            // Unlike ARP, neighbour discovery is not answered for an address of another link.
            for other in
                inside.neighbours(uplink)?.iter().filter(|known| known.addr.is_ipv6() && known.addr != first_node)
            {
                inside.del_neighbour(other)?;
            }
            inside.set_neighbour(&Neighbour { index: uplink, addr: first_node, mac })?;
        }
    }
    inside.replace_route(&Route::to(Cidr::default_route(address.is_v6())).via(gateway).dev(uplink))?;
    Ok(())
}

/// Takes a node's network away; what is gone already is fine.
pub(super) fn remove(cluster: &Options, record: &Record) -> Result<()> {
    let socket = Socket::open()?;
    if let Some(link) = socket.link(&cable(record))? {
        socket.del_link(link.index)?;
    }
    Netns::remove(record.netns(cluster)).with_context(|| format!("removing the network of node {}", record.name))
}

/// Takes the bridge between nodes away.
pub(crate) fn remove_bridge() -> Result<()> {
    let socket = Socket::open()?;
    if let Some(link) = socket.link(BRIDGE)? {
        socket.del_link(link.index)?;
    }
    Ok(())
}

/// The end of a node's cable that is in the bridge.
fn cable(record: &Record) -> String {
    format!("cox-node{}", record.number)
}
