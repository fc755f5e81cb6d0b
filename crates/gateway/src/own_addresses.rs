//! Addresses that single Gateways have, on a link of this machine that carries nothing.
//!
//! For one of IPv4 the kernel answers its neighbours on whichever link they ask. For one of IPv6 it is told to, on links whose network
//! the address is of.

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
            _ => {
                if let Err(error) = answer_neighbours(socket, *index, *address) {
                    tracing::warn!(%address, %error, "neighbours are not told where this address is");
                }
                None
            }
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

/// Has neighbours find this machine behind an address of IPv6.
fn answer_neighbours(socket: &Socket, own: u32, address: IpAddr) -> io::Result<()> {
    if !address.is_ipv6() {
        return Ok(());
    }
    for held in socket.addresses()? {
        let is_near = held.index != own && held.scope == GLOBAL && held.cidr.prefix < 128;
        if !is_near || !held.cidr.contains(address) {
            continue;
        }
        let Some(link) = socket.link_by_index(held.index)? else { continue };
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/proxy_ndp", link.name), "1")?;
        socket.add_proxy(link.index, address)?;
    }
    Ok(())
}

/// The addresses of the pool that no Gateway can have: those that other links of this machine have, and those that mean all of a
/// network of theirs.
pub(crate) fn taken(pool: &[Cidr]) -> io::Result<BTreeSet<IpAddr>> {
    let socket = Socket::open()?;
    let own = socket.link(LINK)?.map(|link| link.index);
    let of_others = socket.addresses()?.into_iter().filter(|held| Some(held.index) != own);
    let addresses = of_others.flat_map(|held| with_network(held.cidr));
    Ok(addresses.filter(|address| pool.iter().any(|range| range.contains(*address))).collect())
}

/// An address with the first one of its network, which is every router's in IPv6, and in IPv4 with the last one, which is everybody's.
fn with_network(held: Cidr) -> impl Iterator<Item = IpAddr> {
    let is_network = held.prefix < if held.is_v6() { 127 } else { 31 };
    let first = is_network.then(|| held.network().addr);
    let last = (is_network && !held.is_v6()).then(|| held.last());
    [Some(held.addr), first, last].into_iter().flatten()
}

/// Takes all others of the pool off the link.
pub(crate) fn keep_only(wanted: &BTreeSet<IpAddr>, pool: &[Cidr]) -> io::Result<()> {
    let socket = Socket::open()?;
    for (index, address) in socket.proxies()? {
        if !wanted.contains(&address) && pool.iter().any(|range| range.contains(address)) {
            socket.del_proxy(index, address)?;
        }
    }
    let Some(link) = socket.link(LINK)? else { return Ok(()) };
    let held = socket.addresses_of(link.index)?;
    for other in held.iter().filter(|held| held.scope == GLOBAL && !wanted.contains(&held.cidr.addr)) {
        socket.del_address(link.index, other.cidr)?;
    }
    Ok(())
}

/// Takes the link away, whoever left it there, with all that the kernel was told about the pool.
pub fn remove(pool: &[Cidr]) -> io::Result<()> {
    // Whatever is left of the rest, this machine must not go on answering where another serves.
    let kept = keep_only(&BTreeSet::new(), pool);
    let socket = Socket::open()?;
    if let Some(link) = socket.link(LINK)? {
        socket.del_link(link.index)?;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_addresses_that_are_no_machines() {
        for (held, expected) in [
            ("192.0.2.7/24", &["192.0.2.7", "192.0.2.0", "192.0.2.255"][..]),
            ("192.0.2.7/31", &["192.0.2.7"]),
            ("192.0.2.7/32", &["192.0.2.7"]),
            ("2001:db8:1::7/64", &["2001:db8:1::7", "2001:db8:1::"]),
            ("2001:db8:1::7/128", &["2001:db8:1::7"]),
        ] {
            let found: Vec<String> = with_network(held.parse().unwrap()).map(|address| address.to_string()).collect();
            assert_eq!(found, expected, "{held}");
        }
    }
}
