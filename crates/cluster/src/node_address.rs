//! The address by which a machine's node is known: read from the routing table, never found out by sending or connecting.
//!
//! A machine without a default route has an address that others can use for nothing; its cluster gets one of its own, on a
//! link that carries nothing, and works without any network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::cidr::Cidr;
use api::sort::CompactSort as _;
use netlink::{Address, Route, RouteKind, Socket};

/// The link that holds the cluster's own address.
pub(crate) const OWN_LINK: &str = "cox-own";
const MAIN_TABLE: u32 = 254;
const GLOBAL: u8 = 0;

/// The address of the interface with the default route of a family.
pub(crate) fn of_default_route(v6: bool) -> io::Result<Option<IpAddr>> {
    let socket = Socket::open()?;
    Ok(preferred(&socket.routes()?, &socket.addresses()?, v6))
}

/// The address that this machine sends from to reach another one.
pub(crate) fn towards(other: IpAddr) -> io::Result<Option<IpAddr>> {
    let route = Socket::open()?.route_to(other)?;
    Ok(route.source.filter(|source| !source.is_loopback()))
}

/// An address for a cluster on a machine without a default route: one that nothing here leads to, nor any of `taken`.
pub(crate) fn own(v6: bool, taken: &[Cidr]) -> io::Result<Option<IpAddr>> {
    let socket = Socket::open()?;
    let own_link = socket.link(OWN_LINK)?.map(|link| link.index);
    Ok(free(&socket.routes()?, own_link, v6, taken))
}

/// Makes the link that holds the cluster's own address, or completes it.
pub(crate) fn ensure_own(address: IpAddr) -> io::Result<()> {
    let socket = Socket::open()?;
    let link = socket.ensure_holder(OWN_LINK)?;
    if address.is_ipv6() {
        // Nobody is there to be asked whether the address is free.
        cni::netns::set_sysctl(&format!("net/ipv6/conf/{OWN_LINK}/accept_dad"), "0")?;
    }
    socket.set_up(link.index)?;
    let wanted = Cidr::host(address);
    let held = socket.addresses_of(link.index)?;
    for other in held.iter().filter(|held| held.scope == GLOBAL && held.cidr != wanted) {
        socket.del_address(link.index, other.cidr)?;
    }
    match held.iter().any(|held| held.cidr == wanted) {
        true => Ok(()),
        false => socket.add_own_address(link.index, wanted),
    }
}

/// That of the best default route: its source, or an address of its interface, best in the gateway's network.
fn preferred(routes: &[Route], addresses: &[Address], v6: bool) -> Option<IpAddr> {
    let is_default = |route: &&Route| {
        route.dst == Cidr::default_route(v6) && route.kind == RouteKind::Unicast && route.table == MAIN_TABLE
    };
    let mut defaults: Vec<&Route> = routes.iter().filter(is_default).collect();
    defaults.compact_sort_by_key(|route| route.priority.unwrap_or_default());
    defaults.into_iter().find_map(|route| {
        let usable = |held: &&Address| {
            Some(held.index) == route.oif && held.cidr.is_v6() == v6 && held.scope == GLOBAL && !held.dad_failed
        };
        let of_link: Vec<IpAddr> = {
            let mut held: Vec<&Address> = addresses.iter().filter(usable).collect();
            held.compact_sort_by_key(|held| !route.gateway.is_some_and(|gateway| held.cidr.contains(gateway)));
            held.into_iter().map(|held| held.cidr.addr).collect()
        };
        route.source.or(of_link.first().copied())
    })
}

fn free(routes: &[Route], own_link: Option<u32>, v6: bool, taken: &[Cidr]) -> Option<IpAddr> {
    let is_free = |address: &IpAddr| {
        let leads_there = |route: &Route| {
            let is_ours = own_link.is_some() && route.oif == own_link;
            !is_ours && route.dst.prefix > 0 && route.dst.contains(*address)
        };
        !routes.iter().any(leads_there) && !taken.iter().any(|range| range.contains(*address))
    };
    let private = (45..=127).map(|second| IpAddr::from(Ipv4Addr::new(10, second, 0, 1)));
    let others = (16..=31).map(|second| IpAddr::from(Ipv4Addr::new(172, second, 255, 1)));
    let unique_local = (0xfd45..=0xfdff).map(|first| IpAddr::from(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 1)));
    match v6 {
        true => { unique_local }.find(is_free),
        false => private.chain(others).find(is_free),
    }
}

#[cfg(test)]
mod tests {
    use netlink::LinkKind;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn address(index: u32, text: &str) -> Address {
        Address { index, cidr: cidr(text), scope: GLOBAL, is_tentative: false, dad_failed: false }
    }

    fn default(gateway: Option<&str>, oif: u32, priority: Option<u32>) -> Route {
        let mut route = Route::to(Cidr::default_route(false)).dev(oif);
        route.gateway = gateway.map(|gateway| gateway.parse().unwrap());
        route.priority = priority;
        route
    }

    #[test]
    fn the_best_default_route_decides() {
        let addresses = [
            address(2, "192.0.2.7/24"),
            address(2, "198.51.100.7/24"),
            address(3, "203.0.113.7/24"),
            address(3, "2001:db8::7/64"),
        ];
        let sourced = Route { source: Some("198.51.100.7".parse().unwrap()), ..default(Some("192.0.2.1"), 2, None) };
        for (routes, expected) in [
            (vec![], None),
            (vec![default(Some("192.0.2.1"), 2, None)], Some("192.0.2.7")),
            (vec![default(Some("198.51.100.1"), 2, None)], Some("198.51.100.7")),
            (vec![default(None, 3, None)], Some("203.0.113.7")),
            (vec![default(None, 3, Some(100)), default(Some("192.0.2.1"), 2, Some(50))], Some("192.0.2.7")),
            (vec![sourced], Some("198.51.100.7")),
            // A route through a link without an address says nothing.
            (vec![default(None, 9, None), default(None, 3, Some(7))], Some("203.0.113.7")),
            (vec![Route::to(cidr("192.0.2.0/24")).dev(2)], None),
            (vec![Route { table: 100, ..default(None, 3, None) }], None),
        ] {
            let found = preferred(&routes, &addresses, false).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{routes:?}");
        }
        assert_eq!(preferred(&[default(None, 3, None)], &addresses, true), None);
    }

    #[test]
    fn an_own_address_meets_nothing_that_is_there() {
        let lan = Route::to(cidr("10.45.0.0/16")).dev(2);
        let lan6 = Route::to(cidr("fd45::/64")).dev(2);
        for (routes, own_link, v6, taken, expected) in [
            (vec![], None, false, vec![], "10.45.0.1"),
            (vec![lan.clone()], None, false, vec![], "10.46.0.1"),
            // Where it has been before it stays.
            (vec![lan.clone()], Some(2), false, vec![], "10.45.0.1"),
            (vec![lan], None, false, vec![cidr("10.0.0.0/9")], "172.16.255.1"),
            (vec![], None, true, vec![], "fd45::1"),
            (vec![lan6], None, true, vec![cidr("fd46::/48")], "fd47::1"),
        ] {
            assert_eq!(free(&routes, own_link, v6, &taken).unwrap().to_string(), expected);
        }
    }

    /// Runs in a network namespace that ends with the thread.
    fn in_namespace<T: Send + 'static>(inside: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            inside()
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_host_in_a_documentation_network_has_its_address() {
        let found = in_namespace(|| {
            let socket = Socket::open().unwrap();
            let kind = LinkKind::Veth { peer: "out0", peer_netns: None, peer_mtu: None };
            socket.add_link("eth0", kind, None, None).unwrap();
            let link = socket.link("eth0").unwrap().unwrap();
            socket.add_address(link.index, cidr("192.0.2.9/24")).unwrap();
            socket.set_up(link.index).unwrap();
            let before = of_default_route(false).unwrap();
            socket.add_route(&Route::to(Cidr::default_route(false)).via("192.0.2.1".parse().unwrap())).unwrap();
            (before, of_default_route(false).unwrap(), towards("198.51.100.1".parse().unwrap()).unwrap())
        });
        let address: IpAddr = "192.0.2.9".parse().unwrap();
        assert_eq!(found, (None, Some(address), Some(address)));
    }

    #[test]
    fn a_host_without_any_network_gets_an_address_of_its_own() {
        in_namespace(|| {
            assert_eq!(of_default_route(false).unwrap(), None);
            assert!(towards("192.0.2.1".parse().unwrap()).is_err());
            let chosen = own(false, &[cidr("10.42.0.0/16")]).unwrap().unwrap();
            ensure_own(chosen).unwrap();
            // Again, as at the next start; and another, if that one is taken by then.
            assert_eq!(own(false, &[]).unwrap(), Some(chosen));
            ensure_own(chosen).unwrap();
            assert_eq!(towards(chosen).unwrap(), Some(chosen));
            let other = own(false, &[Cidr::host(chosen)]).unwrap().unwrap();
            ensure_own(other).unwrap();
            let socket = Socket::open().unwrap();
            let link = socket.link(OWN_LINK).unwrap().unwrap();
            let held: Vec<IpAddr> = socket
                .addresses_of(link.index)
                .unwrap()
                .iter()
                .filter(|held| held.scope == GLOBAL)
                .map(|held| held.cidr.addr)
                .collect();
            assert_eq!(held, [other]);
            // Nobody sends there by way of the machine's other links, and it is still no default route.
            assert_eq!(of_default_route(false).unwrap(), None);
        });
    }
}
