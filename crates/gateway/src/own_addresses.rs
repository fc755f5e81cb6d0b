//! Addresses that single Gateways have, on a link of this machine that carries nothing.
//!
//! For one of IPv4 the kernel answers its neighbours on whichever link they ask; one of IPv6 has to be routed to this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use api::cidr::Cidr;
use netlink::Socket;

pub const LINK: &str = "cox-gateway";
/// The scope of addresses that others can use; that of the link itself is not ours to remove.
const GLOBAL: u8 = 0;

/// Puts addresses onto the link; says which could not be, and why.
pub(crate) fn add(wanted: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, String> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let link = link();
    let added = |address: &IpAddr| match &link {
        Ok((socket, index)) => match socket.add_own_address(*index, Cidr::host(*address)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Some((*address, error.to_string())),
            _ => None,
        },
        Err(error) => Some((*address, format!("link {LINK}: {error}"))),
    };
    wanted.iter().filter_map(added).collect()
}

fn link() -> io::Result<(Socket, u32)> {
    let socket = Socket::open()?;
    let link = socket.ensure_holder(LINK)?;
    socket.set_up(link.index)?;
    Ok((socket, link.index))
}

/// Takes all others off the link.
pub(crate) fn keep_only(wanted: &BTreeSet<IpAddr>) -> io::Result<()> {
    let socket = Socket::open()?;
    let Some(link) = socket.link(LINK)? else { return Ok(()) };
    let held = socket.addresses_of(link.index)?;
    for other in held.iter().filter(|held| held.scope == GLOBAL && !wanted.contains(&held.cidr.addr)) {
        socket.del_address(link.index, other.cidr)?;
    }
    Ok(())
}

/// Takes the link away, whoever left it there.
pub fn remove() -> io::Result<()> {
    let socket = Socket::open()?;
    match socket.link(LINK)? {
        Some(link) => socket.del_link(link.index),
        None => Ok(()),
    }
}
