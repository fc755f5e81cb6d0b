//! A network namespace as plug-ins change it: the node's own, or a pod's. Tests record what is asked of it instead.

use std::io;

use api::cidr::Cidr;
use netlink::{Address, Link, LinkKind, Route, Socket};

use super::call::Call;
use super::interface::open_netns;
use crate::error::CniError;
use crate::netns::{Netns, set_sysctl};
use crate::nft;

/// Where links are found by name.
pub(super) trait Links {
    fn link(&self, name: &str) -> io::Result<Option<Link>>;
}

impl Links for Socket {
    fn link(&self, name: &str) -> io::Result<Option<Link>> {
        Socket::link(self, name)
    }
}

pub(super) trait Side: Links {
    fn link_by_index(&self, index: u32) -> io::Result<Option<Link>>;
    fn add_bridge(&self, name: &str, vlan_filtering: bool, mtu: Option<u32>) -> io::Result<()>;
    /// A pair whose other end is born on the node.
    fn add_veth(&self, name: &str, peer: &str, mtu: Option<u32>, mac: Option<[u8; 6]>) -> io::Result<()>;
    fn set_up(&self, index: u32) -> io::Result<()>;
    fn set_master(&self, index: u32, master: u32) -> io::Result<()>;
    fn set_mac(&self, index: u32, mac: [u8; 6]) -> io::Result<()>;
    fn set_promisc(&self, index: u32, on: bool) -> io::Result<()>;
    fn set_hairpin(&self, port: u32, on: bool) -> io::Result<()>;
    fn set_isolated(&self, port: u32, on: bool) -> io::Result<()>;
    fn set_no_link_local_learning(&self, bridge: u32) -> io::Result<()>;
    fn add_port_vlan(&self, port: u32, vlan: u16, native: bool) -> io::Result<()>;
    fn del_port_vlan(&self, port: u32, vlan: u16) -> io::Result<()>;
    fn addresses_of(&self, index: u32) -> io::Result<Vec<Address>>;
    fn add_address(&self, index: u32, cidr: Cidr) -> io::Result<()>;
    fn del_address(&self, index: u32, cidr: Cidr) -> io::Result<()>;
    fn routes(&self) -> io::Result<Vec<Route>>;
    fn add_route(&self, route: &Route) -> io::Result<()>;
    fn replace_route(&self, route: &Route) -> io::Result<()>;
    fn del_route(&self, route: &Route) -> io::Result<()>;
    fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()>;
    /// Carries out a transaction of packet rules. Those of the node, wherever this is.
    fn apply_rules(&self, transaction: &str) -> Result<(), nft::Error>;
}

/// A namespace of the kernel's.
pub(super) struct Kernel {
    socket: Socket,
    /// Where the other ends of pairs are born.
    node: Netns,
    /// None if it is the caller's own.
    inside: Option<Netns>,
}

impl Kernel {
    pub(super) fn node() -> Result<Self, CniError> {
        let node = Netns::current().map_err(CniError::failed("open the host's network namespace"))?;
        let socket = Socket::open().map_err(CniError::failed("open a netlink socket"))?;
        Ok(Self { socket, node, inside: None })
    }

    pub(super) fn pod(call: &Call) -> Result<Self, CniError> {
        let inside = open_netns(call)?;
        let node = Netns::current().map_err(CniError::failed("open the host's network namespace"))?;
        let socket = inside.socket().map_err(CniError::failed("open a netlink socket"))?;
        Ok(Self { socket, node, inside: Some(inside) })
    }
}

impl Links for Kernel {
    fn link(&self, name: &str) -> io::Result<Option<Link>> {
        self.socket.link(name)
    }
}

impl Side for Kernel {
    fn link_by_index(&self, index: u32) -> io::Result<Option<Link>> {
        self.socket.link_by_index(index)
    }

    fn add_bridge(&self, name: &str, vlan_filtering: bool, mtu: Option<u32>) -> io::Result<()> {
        self.socket.add_link(name, LinkKind::Bridge { vlan_filtering }, mtu, None)
    }

    fn add_veth(&self, name: &str, peer: &str, mtu: Option<u32>, mac: Option<[u8; 6]>) -> io::Result<()> {
        use std::os::fd::AsFd;
        let kind = LinkKind::Veth { peer, peer_netns: Some(self.node.as_fd()), peer_mtu: mtu };
        self.socket.add_link(name, kind, mtu, mac)
    }

    fn set_up(&self, index: u32) -> io::Result<()> {
        self.socket.set_up(index)
    }

    fn set_master(&self, index: u32, master: u32) -> io::Result<()> {
        self.socket.set_master(index, master)
    }

    fn set_mac(&self, index: u32, mac: [u8; 6]) -> io::Result<()> {
        self.socket.set_mac(index, mac)
    }

    fn set_promisc(&self, index: u32, on: bool) -> io::Result<()> {
        self.socket.set_promisc(index, on)
    }

    fn set_hairpin(&self, port: u32, on: bool) -> io::Result<()> {
        self.socket.set_hairpin(port, on)
    }

    fn set_isolated(&self, port: u32, on: bool) -> io::Result<()> {
        self.socket.set_isolated(port, on)
    }

    fn set_no_link_local_learning(&self, bridge: u32) -> io::Result<()> {
        self.socket.set_no_link_local_learning(bridge)
    }

    fn add_port_vlan(&self, port: u32, vlan: u16, native: bool) -> io::Result<()> {
        self.socket.add_port_vlan(port, vlan, native)
    }

    fn del_port_vlan(&self, port: u32, vlan: u16) -> io::Result<()> {
        self.socket.del_port_vlan(port, vlan)
    }

    fn addresses_of(&self, index: u32) -> io::Result<Vec<Address>> {
        self.socket.addresses_of(index)
    }

    fn add_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        self.socket.add_address(index, cidr)
    }

    fn del_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        self.socket.del_address(index, cidr)
    }

    fn routes(&self) -> io::Result<Vec<Route>> {
        self.socket.routes()
    }

    fn add_route(&self, route: &Route) -> io::Result<()> {
        self.socket.add_route(route)
    }

    fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.socket.replace_route(route)
    }

    fn del_route(&self, route: &Route) -> io::Result<()> {
        self.socket.del_route(route)
    }

    fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        match &self.inside {
            Some(inside) => inside.enter(|| set_sysctl(name, value))?,
            None => set_sysctl(name, value),
        }
    }

    fn apply_rules(&self, transaction: &str) -> Result<(), nft::Error> {
        nft::apply(transaction)
    }
}
