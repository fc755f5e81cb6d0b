//! `ptp`: a veth pair without a bridge; the host's end is the pod's gateway and routes lead to each pod.

use std::net::IpAddr;

use serde::Deserialize;

use super::call::Call;
use super::interface::{self, Veth, add_veth, configure, describe, enable_forwarding};
use super::side::{Kernel, Side};
use super::spoofing::{self, Entrance, Guard};
use super::{Handlers, ipam, masquerade};
use crate::error::CniError;
use crate::result::{AddResult, Dns};
use api::cidr::Cidr;
use netlink::{Route, Scope};

pub(super) const HANDLERS: Handlers = Handlers { load, add, check, del, gc, status };

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    ip_masq: bool,
    mtu: u32,
    /// The pod's own IP addresses only; false for pods that forward packets of others.
    #[serde(rename = "ipspoofchk")]
    ip_spoof_check: Option<bool>,
    dns: Dns,
}

impl Config {
    fn is_guarded(&self) -> bool {
        self.ip_spoof_check.unwrap_or(true)
    }
}

fn load(call: &Call) -> Result<(), CniError> {
    call.config::<Config>()?;
    kind(call).map(drop)
}

fn kind(call: &Call) -> Result<&str, CniError> {
    ipam::kind(call).ok_or_else(|| CniError::invalid_config("ptp needs an IPAM plugin"))
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let config: Config = call.config()?;
    let kind = kind(call)?;
    let attached = Kernel::pod(call).and_then(|pod| attach(call, &config, kind, &Kernel::node()?, &pod));
    if attached.is_err() {
        let _ = detach(call, &config);
    }
    attached
}

/// The rules go whatever the configuration says now: it may be another than at ADD.
fn detach(call: &Call, config: &Config) -> Result<(), CniError> {
    let detached = interface::detach(call, config.ip_masq);
    let removed = spoofing::remove(Entrance::Link, call);
    detached.and(removed.map_err(CniError::failed("remove what the pod's link is held to")))
}

/// What ADD does to these two namespaces.
#[cfg(test)]
pub(super) fn attach_to(call: &Call, host: &dyn Side, pod: &dyn Side) -> Result<AddResult, CniError> {
    attach(call, &call.config()?, kind(call)?, host, pod)
}

fn attach(call: &Call, config: &Config, kind: &str, host: &dyn Side, pod: &dyn Side) -> Result<AddResult, CniError> {
    let mut result = ipam::add(call, kind)?;
    for family in [false, true] {
        if result.ips.iter().any(|ip| ip.address.is_v6() == family) {
            enable_forwarding(host, family).map_err(CniError::failed("enable forwarding"))?;
        }
    }
    let mtu = (config.mtu > 0).then_some(config.mtu);
    let veth = add_veth(host, pod, &call.ifname, mtu, None)?;
    result.interfaces = vec![describe(&veth.host, ""), describe(&veth.pod, &call.netns)];
    for ip in &mut result.ips {
        ip.interface = Some(1);
    }
    configure(pod, &veth.pod, &result, false)?;
    route_through_gateway(pod, &veth, &result)?;
    if config.is_guarded() {
        let failed = "hold the pod to its own addresses";
        let given = result.ips.iter().map(|ip| ip.address.addr);
        let addresses = spoofing::sources(pod, &veth.pod, given).map_err(CniError::failed(failed))?;
        spoofing::add(host, call, Guard::Packets, &veth.host.name, veth.pod.mac, &addresses)
            .map_err(CniError::failed(failed))?;
    }
    for ip in &result.ips {
        if let Some(gateway) = ip.gateway {
            host.add_address(veth.host.index, Cidr::host(gateway))
                .map_err(CniError::failed(format!("add IP addr {gateway} to {:?}", veth.host.name)))?;
        }
        let mut route = Route::to(Cidr::host(ip.address.addr)).dev(veth.host.index);
        route.scope = Scope::HOST;
        host.replace_route(&route).map_err(CniError::failed(format!("add route on host to {}", ip.address.addr)))?;
    }
    if config.ip_masq {
        let addresses: Vec<Cidr> = result.ips.iter().map(|ip| ip.address).collect();
        masquerade::add(host, &addresses, call).map_err(CniError::failed("set up masquerading"))?;
    }
    if !config.dns.is_empty() {
        result.dns = config.dns.clone();
    }
    Ok(result)
}

/// The pod's neighbours are not on its link: its own network, too, is behind the gateway.
fn route_through_gateway(pod: &dyn Side, veth: &Veth, result: &AddResult) -> Result<(), CniError> {
    let index = veth.pod.index;
    for ip in &result.ips {
        let Some(gateway) = ip.gateway else { continue };
        let mut connected = Route::to(ip.address).dev(index);
        connected.scope = if ip.address.is_v6() { Scope::UNIVERSE } else { Scope::LINK };
        connected.protocol = 2;
        pod.del_route(&connected).map_err(CniError::failed(format!("delete route {}", connected.dst)))?;
        let mut to_gateway = Route::to(Cidr::host(gateway)).dev(index);
        to_gateway.scope = Scope::LINK;
        to_gateway.source = Some(ip.address.addr);
        let mut to_network = Route::to(ip.address).via(gateway).dev(index);
        to_network.source = Some(ip.address.addr);
        for route in [to_gateway, to_network] {
            pod.replace_route(&route).map_err(CniError::failed(format!("add route {}", route.dst)))?;
        }
    }
    // Deleting the connected route takes along what was routed through it.
    let routes = pod.routes().map_err(CniError::failed("list routes"))?;
    for wanted in &result.routes {
        let gateway = wanted.gw.or_else(|| {
            result.ips.iter().filter(|ip| ip.address.is_v6() == wanted.dst.is_v6()).find_map(|ip| ip.gateway)
        });
        if routes.iter().any(|route| route.dst == wanted.dst.network() && route.gateway == gateway) {
            continue;
        }
        let mut route = Route::to(wanted.dst).dev(index);
        route.gateway = gateway;
        pod.replace_route(&route).map_err(CniError::failed(format!("add route {}", wanted.dst)))?;
    }
    Ok(())
}

fn del(call: &Call) -> Result<(), CniError> {
    detach(call, &call.config()?)
}

fn check(call: &Call) -> Result<(), CniError> {
    if let Some(kind) = ipam::kind(call) {
        ipam::check(call, kind)?;
    }
    let pod = interface::check(call)?;
    if !call.config::<Config>()?.is_guarded() {
        return Ok(());
    }
    let host = Kernel::node()?;
    let link = match pod.peer {
        Some(index) => host.link_by_index(index).map_err(CniError::failed("read the node's end of the link"))?,
        None => None,
    };
    let Some(link) = link else {
        return Err(CniError::internal(format!("{} is not connected to the node", call.ifname)));
    };
    let given: Vec<IpAddr> =
        call.previous.iter().flat_map(|previous| &previous.ips).map(|ip| ip.address.addr).collect();
    match spoofing::missing(call, Guard::Packets, &link.name, pod.mac, &given) {
        Ok(None) => Ok(()),
        Ok(Some(entry)) => Err(CniError::internal(format!("the link of {} is not held to {entry}", call.ifname))),
        Err(error) => Err(CniError::failed("read what the pod's link is held to")(error)),
    }
}

fn gc(call: &Call) -> Result<(), CniError> {
    let collected = ipam::kind(call).map_or(Ok(()), |kind| ipam::gc(call, kind));
    let node = Kernel::node()?;
    let removed = spoofing::collect(Entrance::Link, &node);
    collected.and(removed.map_err(CniError::failed("remove what is left of links that are gone")))
}

fn status(call: &Call) -> Result<(), CniError> {
    ipam::kind(call).map_or(Ok(()), |kind| ipam::status(call, kind))
}
