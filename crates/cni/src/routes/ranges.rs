//! The cluster's ranges never leave the machine.

use std::io;
use std::net::IpAddr;

use api::cidr::Cidr;
use netlink::{Route, RouteKind, Scope, Socket};

/// Weaker than any route somebody made on purpose, also to exactly the same range.
const PRIORITY: u32 = 9999;

/// Gives the pod and service ranges a place to end: pods that do not exist are unreachable; service addresses lead to `lo`,
/// where those that the proxy does not translate are refused or discarded.
///
/// Services cannot be unreachable too: a connection from the host is routed before it is translated, and must find a way
/// even on a machine without a default route. `source` is the address the host then uses, its node address; while
/// duplicate address detection is under way for it, this waits.
pub fn seal(pods: &[Cidr], services: &[Cidr], source: Option<IpAddr>) -> io::Result<()> {
    let socket = Socket::open()?;
    for range in pods {
        let mut route = ours(*range);
        route.kind = RouteKind::Unreachable;
        socket.replace_route(&route)?;
    }
    let lo = socket.link("lo")?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    socket.set_up(lo.index)?;
    if let Some(source) = source.filter(|source| source.is_ipv6() && services.iter().any(Cidr::is_v6)) {
        // It may just have been given to the machine, and is no source of a route before it is known to be free.
        netlink::settle(|| {
            let addresses = socket.addresses()?;
            Ok(addresses.into_iter().filter(|address| address.cidr.addr == source).collect())
        })?;
    }
    for range in services {
        let mut route = ours(*range).dev(lo.index);
        if !range.is_v6() {
            route.scope = Scope::LINK;
        }
        route.source = source.filter(|source| source.is_ipv6() == range.is_v6());
        socket.replace_route(&route)?;
    }
    Ok(())
}

/// Removes what [`seal`] made for these ranges.
pub fn unseal(pods: &[Cidr], services: &[Cidr]) -> io::Result<()> {
    let socket = Socket::open()?;
    let ranges: Vec<Cidr> = pods.iter().chain(services).map(Cidr::network).collect();
    for route in socket.routes()? {
        if is_seal(&route) && ranges.contains(&route.dst) {
            socket.del_route(&route)?;
        }
    }
    Ok(())
}

/// Whether [`seal`] made it.
pub(super) fn is_seal(route: &Route) -> bool {
    route.protocol == Route::OURS && route.priority == Some(PRIORITY)
}

fn ours(range: Cidr) -> Route {
    let mut route = Route::to(range);
    route.protocol = Route::OURS;
    route.priority = Some(PRIORITY);
    route
}
