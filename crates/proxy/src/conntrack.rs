//! Old UDP flows: the kernel keeps sending a client's packets where the first one went, so flows to an endpoint that is
//! gone must be forgotten.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use netlink::{Flow, Own, Socket};

use crate::services::{Frontend, Target};

/// Forgets UDP flows to the given addresses that lead to anything but their present endpoints. Blocking.
pub(crate) fn forget(frontends: &BTreeMap<Frontend, Vec<Target>>) -> io::Result<usize> {
    let socket = Socket::open_netfilter()?;
    let own = Socket::open()?.own()?;
    let mut forgotten = 0;
    for v6 in [false, true] {
        if !frontends.keys().any(|frontend| frontend.addr.is_none_or(|addr| addr.is_ipv6() == v6)) {
            continue;
        }
        for flow in socket.udp_flows(v6)?.iter().filter(|flow| is_stale(flow, frontends, &own)) {
            socket.forget(flow)?;
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

fn is_stale(flow: &Flow, frontends: &BTreeMap<Frontend, Vec<Target>>, own: &Own) -> bool {
    let to = |addr| frontends.get(&Frontend { addr, port: flow.destination.port() });
    let is_elsewhere = |targets: &Vec<Target>| !targets.contains(&target(flow.endpoint));
    if let Some(targets) = to(Some(flow.destination.ip())) {
        return is_elsewhere(targets);
    }
    // A node port is one on any address of this node; the same port of another host is not.
    own.has(flow.destination.ip()) && to(None).is_some_and(is_elsewhere)
}

fn target(address: SocketAddr) -> Target {
    Target { addr: address.ip(), port: address.port() }
}
