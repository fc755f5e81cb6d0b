//! The interface inside the pod: what `bridge` and `ptp` both do to it once IPAM has answered.

use std::io;
use std::net::IpAddr;

use serde::Deserialize;

use super::call::Call;
use super::side::{Kernel, Links, Side};
use super::{ipam, masquerade};
use crate::error::{CniError, code};
use crate::netns::Netns;
use crate::result::{AddResult, Interface};
use api::cidr::Cidr;
use netlink::{Link, Route, Scope};

/// The hardware address that the runtime asks for.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct AskedMac {
    pub(super) mac: String,
}

/// The same, as part of the network's `args`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct AskedArgs {
    pub(super) cni: AskedMac,
}

/// Both ends of a veth pair, as links of their own namespaces.
pub(super) struct Veth {
    pub(super) host: Link,
    pub(super) pod: Link,
}

/// Takes away the interface, its addresses and its masquerading. All steps are tried: a failure in one must not leak what the
/// others free.
pub(super) fn detach(call: &Call, ip_masq: bool) -> Result<(), CniError> {
    let mut outcome = delete(call).map(drop);
    if let Some(kind) = ipam::kind(call) {
        outcome = outcome.and(ipam::del(call, kind));
    }
    if ip_masq {
        let removed = masquerade::remove(&call.network, &call.container_id, &call.ifname);
        outcome = outcome.and(removed.map_err(CniError::failed("tear down masquerading")));
    }
    outcome
}

pub(super) fn open_netns(call: &Call) -> Result<Netns, CniError> {
    Netns::open(&call.netns).map_err(|error| {
        CniError::new(code::INVALID_NETNS, format!("failed to open netns {:?}: {error}", call.netns), "")
    })
}

/// Makes the pair with the pod's end named as asked and the host's end named at random, up on the host.
pub(super) fn add_veth(
    host: &dyn Side,
    pod: &dyn Side,
    ifname: &str,
    mtu: Option<u32>,
    mac: Option<[u8; 6]>,
) -> Result<Veth, CniError> {
    const ATTEMPTS: usize = 10;
    for _ in 0..ATTEMPTS {
        let peer = format!("veth{:08x}", random_u32());
        match pod.add_veth(ifname, &peer, mtu, mac) {
            Ok(()) => {}
            // Either the name in the pod is taken, which is final, or the random one on the host.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match pod.link(ifname) {
                Ok(None) => continue,
                _ => {
                    return Err(CniError::internal(format!(
                        "container veth name ({ifname:?}) peer provided ({peer:?}) already exists"
                    )));
                }
            },
            Err(error) => {
                return Err(CniError::internal(format!("failed to make veth pair: {error}")));
            }
        }
        let host_link = find(host, &peer)?;
        host.set_up(host_link.index).map_err(CniError::failed(format!("set {peer:?} up")))?;
        // The host's end is a port: it takes no routes from router advertisements. IPv6 may be off altogether.
        let _ = host.set_sysctl(&format!("net/ipv6/conf/{peer}/accept_ra"), "0");
        return Ok(Veth { host: find(host, &peer)?, pod: find(pod, ifname)? });
    }
    Err(CniError::internal("failed to find a unique veth name"))
}

pub(super) fn find(links: &(impl Links + ?Sized), name: &str) -> Result<Link, CniError> {
    links
        .link(name)
        .map_err(CniError::failed(format!("lookup {name:?}")))?
        .ok_or_else(|| CniError::internal(format!("failed to lookup {name:?}: Link not found")))
}

pub(super) fn describe(link: &Link, sandbox: &str) -> Interface {
    Interface { name: link.name.clone(), mac: link.mac_text(), sandbox: sandbox.to_owned(), ..Interface::default() }
}

/// Addresses, link up, routes. `onlink` is for point-to-point links, whose gateway no prefix covers.
pub(super) fn configure(pod: &dyn Side, link: &Link, result: &AddResult, enable_dad: bool) -> Result<(), CniError> {
    let name = &link.name;
    let has_v6 = result.ips.iter().any(|ip| ip.address.is_v6());
    let _ = pod.set_sysctl(&format!("net/ipv6/conf/{name}/accept_dad"), if enable_dad { "1" } else { "0" });
    let _ = pod.set_sysctl(&format!("net/ipv4/conf/{name}/arp_notify"), "1");
    let _ = pod.set_sysctl(&format!("net/ipv6/conf/{name}/ndisc_notify"), "1");
    // Nobody on the pod's network is a router but the node, which the routes below name.
    let _ = pod.set_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
    if has_v6 {
        for link in ["lo", name] {
            let sysctl = format!("net/ipv6/conf/{link}/disable_ipv6");
            pod.set_sysctl(&sysctl, "0").map_err(CniError::failed("enable IPv6"))?;
        }
        let _ = pod.set_sysctl(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), "1");
    }
    for ip in &result.ips {
        pod.add_address(link.index, ip.address)
            .map_err(CniError::failed(format!("add IP addr {} to {name:?}", ip.address)))?;
    }
    pod.set_up(link.index).map_err(CniError::failed(format!("set {name:?} UP")))?;
    if has_v6 {
        let settled = netlink::settle(|| {
            let addresses = pod.addresses_of(link.index)?;
            Ok(addresses.into_iter().filter(|address| address.cidr.is_v6() && address.scope == 0).collect())
        });
        settled.map_err(CniError::failed(format!("settle addresses for {name:?}")))?;
    }
    let gateway_for = |v6: bool| result.ips.iter().filter(|ip| ip.address.is_v6() == v6).find_map(|ip| ip.gateway);
    for route in &result.routes {
        let gateway: Option<IpAddr> = route.gw.or_else(|| gateway_for(route.dst.is_v6()));
        let mut wanted = Route::to(route.dst).dev(link.index);
        wanted.gateway = gateway;
        wanted.priority = route.priority;
        wanted.mtu = route.mtu;
        wanted.advmss = route.advmss;
        if gateway.is_none() {
            wanted.scope = Scope::LINK;
        }
        if let Some(scope) = route.scope {
            wanted.scope = Scope(scope);
        }
        if let Some(table) = route.table {
            wanted.table = table;
        }
        pod.add_route(&wanted).map_err(CniError::failed(format!(
            "add route '{} via {} dev {name}'",
            route.dst,
            gateway.map_or("none".to_owned(), |gateway| gateway.to_string())
        )))?;
    }
    Ok(())
}

/// Tells the link's neighbours whose the addresses are now. Otherwise whoever spoke to a pod that had them before goes on sending
/// to that one's hardware address, for five seconds and more. The kernel announces addresses as the link comes up, which is
/// before its port passes anything on, and whenever the hardware address is set, be it to what it was.
pub(super) fn announce(pod: &dyn Side, link: &Link) -> Result<(), CniError> {
    let failed = CniError::failed(format!("announce the addresses of {:?}", link.name));
    pod.set_mac(link.index, link.mac).map_err(failed)
}

/// Deletes the pod's end, and with it the pair; returns the addresses it had. Nothing there is no error.
pub(super) fn delete(call: &Call) -> Result<Vec<Cidr>, CniError> {
    if call.netns.is_empty() {
        return Ok(Vec::new());
    }
    let netns = match Netns::open(&call.netns) {
        Ok(netns) => netns,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(CniError::internal(format!("failed to open netns {:?}: {error}", call.netns)));
        }
    };
    // A path may outlive its namespace as a plain file: nothing is left to clean then.
    let Ok(socket) = netns.socket() else {
        return Ok(Vec::new());
    };
    let failed = |error: io::Error| CniError::internal(format!("failed to delete {:?}: {error}", call.ifname));
    let Some(link) = socket.link(&call.ifname).map_err(failed)? else {
        return Ok(Vec::new());
    };
    // The runtime may hand us its own namespace by mistake: never delete a link of the host.
    let host = Netns::current().map_err(failed)?;
    if netns.is_same(&host).map_err(failed)? {
        return Ok(Vec::new());
    }
    let addresses = socket.addresses_of(link.index).map_err(failed)?;
    socket.del_link(link.index).map_err(failed)?;
    Ok(addresses.into_iter().filter(|a| a.scope == 0).map(|address| address.cidr).collect())
}

/// The pod's side as ADD left it: link there, addresses on it, routes present.
pub(super) fn check(call: &Call) -> Result<Link, CniError> {
    let previous = call.previous.as_ref().ok_or_else(|| CniError::invalid_config("Required prevResult missing"))?;
    let expected = previous
        .interfaces
        .iter()
        .find(|interface| interface.name == call.ifname && !interface.sandbox.is_empty())
        .ok_or_else(|| CniError::internal(format!("Interface {} missing in prevResult", call.ifname)))?;
    if expected.sandbox != call.netns {
        return Err(CniError::internal(format!(
            "Sandbox in prevResult {} doesn't match configured netns: {}",
            expected.sandbox, call.netns
        )));
    }
    let socket = Kernel::pod(call)?;
    let link = find(&socket, &call.ifname)?;
    if !expected.mac.is_empty() && expected.mac != link.mac_text() {
        return Err(CniError::internal(format!("Interface {} Mac {} doesn't match", call.ifname, link.mac_text())));
    }
    let addresses = socket.addresses_of(link.index).map_err(CniError::failed("list addresses"))?;
    for ip in &previous.ips {
        if !addresses.iter().any(|address| address.cidr == ip.address) {
            return Err(CniError::internal(format!("Failed to find address {} on {}", ip.address, call.ifname)));
        }
    }
    let routes = socket.routes().map_err(CniError::failed("list routes"))?;
    for wanted in &previous.routes {
        if !routes.iter().any(|r| r.dst == wanted.dst.network() && wanted.gw.is_none_or(|gw| r.gateway == Some(gw))) {
            return Err(CniError::internal(format!("Failed to find route {}", wanted.dst)));
        }
    }
    Ok(link)
}

/// Packets between interfaces of the host: without it a gateway is a dead end.
pub(super) fn enable_forwarding(host: &dyn Side, v6: bool) -> io::Result<()> {
    match v6 {
        true => host.set_sysctl("net/ipv6/conf/all/forwarding", "1"),
        false => host.set_sysctl("net/ipv4/ip_forward", "1"),
    }
}

pub(super) fn random_u32() -> u32 {
    let mut bytes = [0; 4];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes));
    match read {
        Ok(()) => u32::from_ne_bytes(bytes),
        // Names are retried on collision: process and time are random enough without /dev.
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            now.subsec_nanos() ^ std::process::id().rotate_left(16)
        }
    }
}
