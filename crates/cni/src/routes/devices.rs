//! Pods of other hosts behind devices that encrypt.

use std::io;

use api::cidr::Cidr;
use netlink::{Route, RouteKind, Scope, Socket};

use super::hosts::{VxlanConfig, remove_tunnel};
use super::ranges;

/// Makes the routes to other hosts' pods lead into these links, and removes all others that we made: a range without a link is
/// unreachable.
pub fn program_devices(wanted: &[(Cidr, u32)]) -> io::Result<()> {
    let socket = Socket::open()?;
    remove_plain_with(&socket)?;
    let present: Vec<Route> = socket.routes()?.into_iter().filter(is_into_device).collect();
    for (range, link) in wanted {
        let mut route = Route::to(*range).dev(*link);
        route.protocol = Route::OURS;
        if !range.is_v6() {
            route.scope = Scope::LINK;
        }
        if !present.iter().any(|there| there.dst == route.dst && there.oif == route.oif) {
            // In the place of one into another link: no packet meets a gap.
            socket.replace_route(&route)?;
        }
    }
    let is_wanted = |route: &Route| wanted.iter().any(|(range, _)| range.network() == route.dst);
    for route in present.iter().filter(|route| !is_wanted(route)) {
        socket.del_route(route)?;
    }
    Ok(())
}

/// Removes routes by which packets would leave as they are; what leads into devices stays.
pub fn remove_plain() -> io::Result<()> {
    remove_plain_with(&Socket::open()?)
}

fn remove_plain_with(socket: &Socket) -> io::Result<()> {
    for route in socket.routes()?.iter().filter(|route| route.protocol == Route::OURS && route.gateway.is_some()) {
        socket.del_route(route)?;
    }
    remove_tunnel(socket, &VxlanConfig::default())
}

fn is_into_device(route: &Route) -> bool {
    route.protocol == Route::OURS
        && route.kind == RouteKind::Unicast
        && route.gateway.is_none()
        && !ranges::is_seal(route)
}
