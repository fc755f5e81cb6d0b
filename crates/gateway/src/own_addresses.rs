//! Addresses that single Gateways have, on a link of this machine that carries nothing.
//!
//! For one of IPv4 the kernel answers its neighbours on whichever link they ask. For one of IPv6 it is told to, on links whose network
//! the address is of. Neighbours on these are told of a new address at once: another machine may have had it until now.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use api::cidr::Cidr;
use api::sort::CompactCollect as _;
use netlink::{Address, Socket};

pub const LINK: &str = "cox-gateway";
/// The scope of addresses that others can use; that of the link itself is not ours to remove.
const GLOBAL: u8 = 0;

/// Puts addresses onto the link; says which could not be, and why.
pub(crate) fn add(wanted: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, String> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let link = match Holder::open() {
        Ok(link) => link,
        Err(error) => {
            return wanted.iter().map(|address| (*address, format!("link {LINK}: {error}"))).compact_collect();
        }
    };
    let failed = |address: &IpAddr| Some((*address, link.add(*address).err()?.to_string()));
    wanted.iter().filter_map(failed).compact_collect()
}

/// The link that has the addresses.
struct Holder {
    socket: Socket,
    index: u32,
    /// What all links of the machine had before.
    held: Vec<Address>,
}

impl Holder {
    fn open() -> io::Result<Self> {
        let socket = Socket::open()?;
        let index = socket.ensure_holder(LINK)?.index;
        socket.set_up(index)?;
        let held = socket.addresses()?;
        Ok(Self { socket, index, held })
    }

    fn add(&self, address: IpAddr) -> io::Result<()> {
        let is_new = match self.socket.add_own_address(self.index, Cidr::host(address)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            added => added.map(|()| true)?,
        };
        for link in near(&self.held, self.index, address) {
            let result = self.answer_neighbours(link, address).and_then(|()| match is_new {
                true => netlink::announce(link, address),
                false => Ok(()),
            });
            if let Err(error) = result {
                tracing::warn!(%address, %error, "neighbours are not told where this address is");
            }
        }
        Ok(())
    }

    /// Has neighbours on another link find this machine behind an address of IPv6.
    fn answer_neighbours(&self, link: u32, address: IpAddr) -> io::Result<()> {
        if !address.is_ipv6() {
            return Ok(());
        }
        let Some(link) = self.socket.link_by_index(link)? else { return Ok(()) };
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{}/proxy_ndp", link.name), "1")?;
        self.socket.add_proxy(link.index, address)
    }
}

/// The links, other than our own, whose network an address is of.
fn near(held: &[Address], own: u32, address: IpAddr) -> BTreeSet<u32> {
    let is_near = |held: &&Address| {
        let is_network = held.cidr != Cidr::host(held.cidr.addr);
        held.index != own && held.scope == GLOBAL && is_network && held.cidr.contains(address)
    };
    held.iter().filter(is_near).map(|held| held.index).compact_collect()
}

/// The addresses of the pool that no Gateway can have: those that other links of this machine have, and those that mean all of a
/// network of theirs.
pub(crate) fn taken(pool: &[Cidr]) -> io::Result<BTreeSet<IpAddr>> {
    let socket = Socket::open()?;
    let own = socket.link(LINK)?.map(|link| link.index);
    let of_others = socket.addresses()?.into_iter().filter(|held| Some(held.index) != own);
    let addresses = of_others.flat_map(|held| with_network(held.cidr));
    Ok(addresses.filter(|address| pool.iter().any(|range| range.contains(*address))).compact_collect())
}

/// An address with the first one of its network, which is every router's in IPv6, and in IPv4 with the last one, which is everybody's.
fn with_network(held: Cidr) -> impl Iterator<Item = IpAddr> {
    let is_network = held.prefix < if held.is_v6() { 127 } else { 31 };
    let first = is_network.then(|| held.network().addr);
    let last = (is_network && !held.is_v6()).then(|| held.last());
    [Some(held.addr), first, last].into_iter().flatten()
}

/// Takes all others off the link. What the kernel was told about an address is known by the link or the pool: either may have been
/// changed since.
pub(crate) fn keep_only(wanted: &BTreeSet<IpAddr>, pool: &[Cidr]) -> io::Result<()> {
    let socket = Socket::open()?;
    let link = socket.link(LINK)?;
    if link.is_none() && pool.is_empty() {
        // There is no gateway here, and there was none.
        return Ok(());
    }
    let held = link.as_ref().map_or_else(|| Ok(Vec::new()), |link| socket.addresses_of(link.index))?;
    for (index, address) in socket.proxies()? {
        let is_held = held.iter().any(|held| held.cidr.addr == address);
        if !wanted.contains(&address) && (is_held || pool.iter().any(|range| range.contains(address))) {
            socket.del_proxy(index, address)?;
        }
    }
    for other in held.iter().filter(|held| held.scope == GLOBAL && !wanted.contains(&held.cidr.addr)) {
        socket.del_address(other.index, other.cidr)?;
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
    fn neighbours_are_on_links_whose_network_it_is() {
        let held = |index, cidr: &str| Address {
            index,
            cidr: cidr.parse().unwrap(),
            scope: GLOBAL,
            is_tentative: false,
            dad_failed: false,
        };
        let all = [
            held(1, "127.0.0.1/8"),
            held(2, "192.0.2.1/24"),
            held(2, "192.0.2.2/24"),
            held(3, "192.0.2.3/16"),
            held(4, "192.0.2.77/32"),
            held(5, "2001:db8:1::1/64"),
            held(6, "2001:db8:1::77/128"),
            Address { scope: 253, ..held(7, "192.0.2.9/24") },
            held(9, "192.0.2.8/24"),
        ];
        for (address, expected) in
            [("192.0.2.77", &[2u32, 3][..]), ("2001:db8:1::77", &[5]), ("198.51.100.1", &[]), ("2001:db8:2::1", &[])]
        {
            let found: Vec<u32> = near(&all, 9, address.parse().unwrap()).into_iter().collect();
            assert_eq!(found, expected, "{address}");
        }
    }

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
