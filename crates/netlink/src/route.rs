//! Routes.

use std::io;
use std::net::IpAddr;

use crate::Socket;
use crate::message::{
    NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request, attributes, family, read_ip, read_u16, read_u32,
};
use api::cidr::Cidr;

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

const RT_TABLE_MAIN: u32 = 254;
const RTNH_F_ONLINK: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteKind {
    Unicast,
    Local,
    Blackhole,
    Unreachable,
    Other(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope(pub u8);

impl Scope {
    pub const UNIVERSE: Self = Self(0);
    pub const LINK: Self = Self(253);
    pub const HOST: Self = Self(254);
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub dst: Cidr,
    pub kind: RouteKind,
    pub gateway: Option<IpAddr>,
    pub oif: Option<u32>,
    pub source: Option<IpAddr>,
    pub priority: Option<u32>,
    pub table: u32,
    pub scope: Scope,
    /// Who made it: 2 the kernel, 3 boot, 4 static; ours between hosts is [`Route::OURS`].
    pub protocol: u8,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
    /// The gateway counts as reachable on the link although no address there covers it.
    pub onlink: bool,
}

impl Route {
    /// The protocol number of routes that `cox` keeps, so that it never touches anyone else's.
    pub const OURS: u8 = 0x63;
    pub const BOOT: u8 = 3;

    pub fn to(dst: Cidr) -> Self {
        Self {
            dst: dst.network(),
            kind: RouteKind::Unicast,
            gateway: None,
            oif: None,
            source: None,
            priority: None,
            table: RT_TABLE_MAIN,
            scope: Scope::UNIVERSE,
            protocol: Self::BOOT,
            mtu: None,
            advmss: None,
            onlink: false,
        }
    }

    pub fn via(mut self, gateway: IpAddr) -> Self {
        self.gateway = Some(gateway);
        self
    }

    pub fn dev(mut self, index: u32) -> Self {
        self.oif = Some(index);
        self
    }
}

impl Socket {
    /// `AlreadyExists` when there is one to that place.
    pub fn add_route(&self, route: &Route) -> io::Result<()> {
        self.change(encode(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, route))
    }

    pub fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.change(encode(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, route))
    }

    /// Quiet when it is already gone.
    pub fn del_route(&self, route: &Route) -> io::Result<()> {
        match self.change(encode(RTM_DELROUTE, 0, route)) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            result => result,
        }
    }

    pub fn routes(&self) -> io::Result<Vec<Route>> {
        let answers = self.dump(|| Request::new(RTM_GETROUTE, 0).body(&[0; 12]))?;
        Ok(answers.iter().filter_map(|answer| parse(answer)).collect())
    }

    /// How this host would send a packet to `dst` now. Its `source` is the address it would use.
    pub fn route_to(&self, dst: IpAddr) -> io::Result<Route> {
        let host = Cidr::host(dst);
        let body = [family(dst), host.prefix, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let answer = self.get(Request::new(RTM_GETROUTE, 0).body(&body).attr_ip(RTA_DST, dst))?;
        parse(&answer).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

fn encode(kind: u16, flags: u16, route: &Route) -> Request {
    let route_type = match route.kind {
        RouteKind::Unicast => 1,
        RouteKind::Local => 2,
        RouteKind::Blackhole => 6,
        RouteKind::Unreachable => 7,
        RouteKind::Other(other) => other,
    };
    let small_table = if route.table < 256 { route.table as u8 } else { 0 };
    let mut body = [0; 12];
    body[0] = family(route.dst.addr);
    body[1] = route.dst.prefix;
    body[4] = small_table;
    body[5] = route.protocol;
    body[6] = route.scope.0;
    body[7] = route_type;
    body[8..12].copy_from_slice(&(if route.onlink { RTNH_F_ONLINK } else { 0 }).to_ne_bytes());
    let mut request = Request::new(kind, flags).body(&body).attr_u32(RTA_TABLE, route.table);
    if route.dst.prefix > 0 {
        request = request.attr_ip(RTA_DST, route.dst.addr);
    }
    if let Some(gateway) = route.gateway {
        request = request.attr_ip(RTA_GATEWAY, gateway);
    }
    if let Some(oif) = route.oif {
        request = request.attr_u32(RTA_OIF, oif);
    }
    if let Some(source) = route.source {
        request = request.attr_ip(RTA_PREFSRC, source);
    }
    if let Some(priority) = route.priority {
        request = request.attr_u32(RTA_PRIORITY, priority);
    }
    if route.mtu.is_some() || route.advmss.is_some() {
        request = request.nest(RTA_METRICS, |mut metrics| {
            if let Some(mtu) = route.mtu {
                metrics = metrics.attr_u32(RTAX_MTU, mtu);
            }
            match route.advmss {
                Some(advmss) => metrics.attr_u32(RTAX_ADVMSS, advmss),
                None => metrics,
            }
        });
    }
    request
}

pub(crate) fn parse(answer: &[u8]) -> Option<Route> {
    let v6 = i32::from(*answer.first()?) == libc::AF_INET6;
    if !v6 && i32::from(*answer.first()?) != libc::AF_INET {
        return None;
    }
    let prefix = *answer.get(1)?;
    let mut route = Route::to(Cidr::default_route(v6));
    route.table = u32::from(*answer.get(4)?);
    route.protocol = *answer.get(5)?;
    route.scope = Scope(*answer.get(6)?);
    route.kind = match *answer.get(7)? {
        1 => RouteKind::Unicast,
        2 => RouteKind::Local,
        6 => RouteKind::Blackhole,
        7 => RouteKind::Unreachable,
        other => RouteKind::Other(other),
    };
    route.onlink = read_u32(answer, 8)? & RTNH_F_ONLINK != 0;
    for (kind, value) in attributes(answer.get(12..)?) {
        match kind {
            RTA_DST => route.dst = Cidr::new(read_ip(value)?, prefix),
            RTA_GATEWAY => route.gateway = read_ip(value),
            RTA_OIF => route.oif = read_u32(value, 0),
            RTA_PREFSRC => route.source = read_ip(value),
            RTA_PRIORITY => route.priority = read_u32(value, 0),
            RTA_TABLE => route.table = read_u32(value, 0)?,
            // Of several next hops the first: length, flags, weight, link, attributes.
            RTA_MULTIPATH => {
                let length = usize::from(read_u16(value, 0)?);
                route.oif = read_u32(value, 4);
                let hop = attributes(value.get(8..length)?);
                route.gateway = hop.filter(|(kind, _)| *kind == RTA_GATEWAY).find_map(|(_, value)| read_ip(value));
            }
            RTA_METRICS => {
                for (kind, value) in attributes(value) {
                    match kind {
                        RTAX_MTU => route.mtu = read_u32(value, 0),
                        RTAX_ADVMSS => route.advmss = read_u32(value, 0),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(route)
}
