//! `bridge`: the pod's veth pair is a port of a bridge on the host; the bridge can be the pods' gateway.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::call::Call;
use super::interface::{
    self, AskedArgs, AskedMac, Veth, add_veth, announce, configure, describe, enable_forwarding, find,
};
use super::side::{Kernel, Side};
use super::spoofing::{self, Entrance, Guard};
use super::{Handlers, ipam, masquerade};
use crate::error::CniError;
use crate::result::{AddResult, Dns, Route};
use api::cidr::{self, Cidr};
use netlink::{Link, parse_mac};

pub(super) const HANDLERS: Handlers = Handlers { load, add, check, del, gc, status };

/// How long a bridge port may take to come up; it is instant unless spanning tree is on.
const PORT_TIMEOUT: Duration = Duration::from_millis(2550);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    mtu: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: u16,
    vlan_trunk: Vec<VlanTrunk>,
    preserve_default_vlan: bool,
    port_isolation: bool,
    /// The pod's port passes its own hardware address only; by default where it gets addresses.
    #[serde(rename = "macspoofchk")]
    mac_spoof_check: Option<bool>,
    /// And its own IP addresses only, in packets, ARP and neighbour discovery; by default with the above.
    #[serde(rename = "ipspoofchk")]
    ip_spoof_check: Option<bool>,
    #[serde(rename = "enabledad")]
    enable_dad: bool,
    disable_container_interface: bool,
    dns: Dns,
    runtime_config: AskedMac,
    args: AskedArgs,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bridge: "cni0".into(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            mtu: 0,
            hairpin_mode: false,
            promisc_mode: false,
            vlan: 0,
            vlan_trunk: Vec::new(),
            // The Debian release of the standard plug-in always keeps VLAN 1; newer ones make it a choice with this default.
            preserve_default_vlan: true,
            port_isolation: false,
            mac_spoof_check: None,
            ip_spoof_check: None,
            enable_dad: false,
            disable_container_interface: false,
            dns: Dns::default(),
            runtime_config: AskedMac::default(),
            args: AskedArgs::default(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct VlanTrunk {
    #[serde(rename = "minID")]
    min_id: Option<u16>,
    #[serde(rename = "maxID")]
    max_id: Option<u16>,
    id: Option<u16>,
}

impl Config {
    fn load(call: &Call) -> Result<Self, CniError> {
        let mut config: Self = call.config()?;
        if config.vlan > 4094 {
            return Err(CniError::invalid_config(format!(
                "invalid VLAN ID {} (must be between 0 and 4094)",
                config.vlan
            )));
        }
        config.is_gateway |= config.is_default_gateway;
        if config.hairpin_mode && config.promisc_mode {
            return Err(CniError::invalid_config("cannot set hairpin mode and promiscuous mode at the same time"));
        }
        if config.disable_container_interface && ipam::kind(call).is_some() {
            return Err(CniError::invalid_config("cannot use IPAM when DisableContainerInterface flag is set"));
        }
        match (config.mac_spoof_check, config.ip_spoof_check) {
            (Some(false), Some(true)) => Err(CniError::invalid_config(
                "ipspoofchk needs macspoofchk: an address that any port may send under is nobody's",
            )),
            (_, Some(true)) if ipam::kind(call).is_none() => {
                Err(CniError::invalid_config("ipspoofchk needs IPAM: without it a pod has no addresses to be held to"))
            }
            _ => Ok(config),
        }
    }

    /// What the pod's port is held to.
    fn guard(&self, has_addresses: bool) -> Option<Guard> {
        match (self.mac_spoof_check.unwrap_or(has_addresses), self.ip_spoof_check.unwrap_or(true)) {
            (false, _) => None,
            (true, checks_addresses) if checks_addresses && has_addresses => Some(Guard::AllAddresses),
            (true, _) => Some(Guard::HardwareAddress),
        }
    }

    /// Whether somebody has asked for it, so that a kernel which cannot do it is no reason to go on.
    fn insists_on_guard(&self) -> bool {
        self.mac_spoof_check == Some(true) || self.ip_spoof_check == Some(true)
    }

    /// The most specific request wins: runtime, then network configuration, then `CNI_ARGS`.
    fn mac(&self, call: &Call) -> Result<Option<[u8; 6]>, CniError> {
        let asked = [self.runtime_config.mac.as_str(), self.args.cni.mac.as_str(), call.arg("MAC").unwrap_or_default()];
        match asked.into_iter().find(|mac| !mac.is_empty()) {
            Some(mac) => parse_mac(mac)
                .map(Some)
                .ok_or_else(|| CniError::invalid_config(format!("failed to parse MAC address {mac:?}"))),
            None => Ok(None),
        }
    }

    fn trunk(&self) -> Result<Vec<u16>, CniError> {
        let mut vlans = std::collections::BTreeSet::new();
        let valid = |id: u16| (1..=4094).contains(&id);
        for trunk in &self.vlan_trunk {
            match (trunk.min_id, trunk.max_id) {
                (Some(min), Some(max)) if valid(min) && valid(max) && min <= max => vlans.extend(min..=max),
                (None, None) => {}
                _ => {
                    return Err(CniError::invalid_config("incorrect trunk minID or maxID parameter"));
                }
            }
            match trunk.id {
                Some(id) if valid(id) => drop(vlans.insert(id)),
                Some(_) => return Err(CniError::invalid_config("incorrect trunk id parameter")),
                None => {}
            }
        }
        Ok(vlans.into_iter().collect())
    }
}

fn load(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    config.trunk()?;
    config.mac(call).map(drop)
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let config = Config::load(call)?;
    let pod = Kernel::pod(call)?;
    let attached = Kernel::node().and_then(|host| attach(call, &config, &host, &pod));
    if attached.is_err() {
        // Leave nothing: neither a half-made link nor a lease.
        let _ = detach(call, &config);
    }
    attached
}

fn attach(call: &Call, config: &Config, host: &dyn Side, pod: &dyn Side) -> Result<AddResult, CniError> {
    let trunk = config.trunk()?;
    let bridge = ensure_bridge(host, config, !trunk.is_empty())?;
    let mtu = (config.mtu > 0).then_some(config.mtu);
    let veth = add_veth(host, pod, &call.ifname, mtu, config.mac(call)?)?;
    let port = veth.host.index;
    host.set_master(port, bridge.index)
        .map_err(CniError::failed(format!("connect {:?} to bridge {}", veth.host.name, bridge.name)))?;
    if config.hairpin_mode {
        host.set_hairpin(port, true).map_err(CniError::failed(format!("setup hairpin mode for {}", veth.host.name)))?;
    }
    if config.port_isolation {
        host.set_isolated(port, true).map_err(CniError::failed(format!("set isolated on for {}", veth.host.name)))?;
    }
    set_vlans(host, port, config, &trunk)?;

    let mut result = AddResult {
        interfaces: vec![describe(&bridge, ""), describe(&veth.host, ""), describe(&veth.pod, &call.netns)],
        ..AddResult::default()
    };
    match ipam::kind(call) {
        Some(kind) => {
            let addresses = ipam::add(call, kind)?;
            result.ips = addresses.ips;
            result.routes = addresses.routes;
            result.dns = addresses.dns;
            let gateways = plan_gateways(&mut result, config.is_gateway, config.is_default_gateway);
            configure(pod, &veth.pod, &result, config.enable_dad)?;
            if config.is_gateway {
                let holder = gateway_link(host, &bridge, config, &mut result)?;
                for gateway in &gateways {
                    ensure_address(host, &holder, *gateway, config.force_address)?;
                    enable_forwarding(host, gateway.is_v6()).map_err(CniError::failed("enable forwarding"))?;
                }
            }
            if config.ip_masq {
                let addresses: Vec<Cidr> = result.ips.iter().map(|ip| ip.address).collect();
                masquerade::add(host, &addresses, call).map_err(CniError::failed("set up masquerading"))?;
            }
        }
        None if !config.disable_container_interface => {
            pod.set_up(veth.pod.index).map_err(CniError::failed(format!("set {:?} up", call.ifname)))?;
        }
        None => {}
    }
    if !config.disable_container_interface {
        wait_for_port(host, port)?;
        announce(pod, &veth.pod)?;
    }
    hold_to_addresses(call, config, host, pod, &bridge, &veth, &result)?;
    // The bridge takes a port's address until it has one of its own.
    result.interfaces[0] = describe(&find(host, &config.bridge)?, "");
    if !config.dns.is_empty() {
        result.dns = config.dns.clone();
    }
    Ok(result)
}

/// Nothing of the pod runs yet: whatever it sends later comes in at a port that is guarded.
fn hold_to_addresses(
    call: &Call,
    config: &Config,
    host: &dyn Side,
    pod: &dyn Side,
    bridge: &Link,
    veth: &Veth,
    result: &AddResult,
) -> Result<(), CniError> {
    let Some(guard) = config.guard(!result.ips.is_empty()) else { return Ok(()) };
    let failed = "hold the pod to its own addresses";
    // Frames to the addresses of bridges themselves, such as LLDP's, come in before any rule sees them: they must not teach the bridge
    // that a neighbour's hardware address is at this port, nor carry packets to the node past the rules.
    host.set_no_link_local_learning(bridge.index).map_err(CniError::failed(failed))?;
    for family in ["ipv4", "ipv6"] {
        let _ = host.set_sysctl(&format!("net/{family}/conf/{}/drop_unicast_in_l2_multicast", veth.host.name), "1");
    }
    let given = result.ips.iter().map(|ip| ip.address.addr);
    let addresses = spoofing::sources(pod, &veth.pod, given).map_err(CniError::failed(failed))?;
    match spoofing::add(host, call, guard, &veth.host.name, veth.pod.mac, &addresses) {
        // The network works as with the standard plug-in, which checks nothing unless it is asked to.
        Err(error @ spoofing::Error::Unsupported) if !config.insists_on_guard() => {
            eprintln!("{error}: pods on bridge {} can use each other's addresses", config.bridge);
            Ok(())
        }
        added => added.map_err(CniError::failed(failed)),
    }
}

/// What ADD does to these two namespaces.
#[cfg(test)]
pub(super) fn attach_to(call: &Call, host: &dyn Side, pod: &dyn Side) -> Result<AddResult, CniError> {
    attach(call, &Config::load(call)?, host, pod)
}

fn ensure_bridge(host: &dyn Side, config: &Config, has_trunk: bool) -> Result<Link, CniError> {
    let name = &config.bridge;
    let failed = || format!("create bridge {name:?}");
    match host.add_bridge(name, config.vlan != 0 || has_trunk, (config.mtu > 0).then_some(config.mtu)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(CniError::failed(failed())(error));
        }
        _ => {}
    }
    let bridge = find(host, name)?;
    if bridge.kind != "bridge" {
        return Err(CniError::failed(failed())(format!("{name:?} already exists but is not a bridge")));
    }
    if config.promisc_mode {
        host.set_promisc(bridge.index, true).map_err(CniError::failed(format!("set promiscuous mode on {name:?}")))?;
    }
    let _ = host.set_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
    host.set_up(bridge.index).map_err(CniError::failed(format!("set {name:?} up")))?;
    Ok(bridge)
}

fn set_vlans(host: &dyn Side, port: u32, config: &Config, trunk: &[u16]) -> Result<(), CniError> {
    let failed = || format!("setup vlan tag on port {port}");
    if (config.vlan != 0 || !trunk.is_empty()) && !config.preserve_default_vlan {
        host.del_port_vlan(port, 1).map_err(CniError::failed("remove default vlan"))?;
    }
    if config.vlan != 0 {
        host.add_port_vlan(port, config.vlan, true).map_err(CniError::failed(failed()))?;
    }
    for vlan in trunk {
        host.add_port_vlan(port, *vlan, false).map_err(CniError::failed(failed()))?;
    }
    if config.vlan == 0 && !trunk.is_empty() {
        host.add_port_vlan(port, 1, true).map_err(CniError::failed(failed()))?;
    }
    Ok(())
}

/// Completes the result of IPAM: which interface has the addresses, which gateway, a default route if asked. Returns the
/// addresses the bridge must have.
fn plan_gateways(result: &mut AddResult, is_gateway: bool, is_default: bool) -> Vec<Cidr> {
    let mut gateways = Vec::new();
    let mut default_found = [false; 2];
    for ip in &mut result.ips {
        ip.interface = Some(2);
        let first: Option<IpAddr> = cidr::next(ip.address.network().addr);
        if is_gateway && ip.gateway.is_none() {
            ip.gateway = first;
        }
        let v6 = ip.address.is_v6();
        let found = &mut default_found[usize::from(v6)];
        if is_default && !*found {
            let default = Cidr::default_route(v6);
            *found = true;
            if !result.routes.iter().any(|route| route.gw.is_some() && route.dst == default) {
                // One without a gateway would be the same route once the gateway is filled in.
                result.routes.retain(|route| route.dst != default);
                result.routes.push(Route {
                    dst: default,
                    gw: ip.gateway,
                    mtu: None,
                    advmss: None,
                    priority: None,
                    table: None,
                    scope: None,
                });
            }
        }
        if let (true, Some(gateway)) = (is_gateway, ip.gateway) {
            gateways.push(Cidr::new(gateway, ip.address.prefix));
        }
    }
    gateways
}

/// The link that carries the gateway address: the bridge, or with a VLAN a port of its own on it.
fn gateway_link(host: &dyn Side, bridge: &Link, config: &Config, result: &mut AddResult) -> Result<Link, CniError> {
    if config.vlan == 0 {
        return Ok(bridge.clone());
    }
    let name = format!("{}.{}", bridge.name, config.vlan);
    let known = host.link(&name).map_err(CniError::failed(format!("find interface {name:?}")))?;
    let link = match known {
        Some(link) => link,
        None => {
            let veth = add_veth(host, host, &name, Some(bridge.mtu), None)?;
            host.set_master(veth.host.index, bridge.index)
                .map_err(CniError::failed(format!("create vlan gateway {name:?}")))?;
            host.add_port_vlan(veth.host.index, config.vlan, true)
                .map_err(CniError::failed(format!("create vlan gateway {name:?}")))?;
            host.set_up(veth.pod.index).map_err(CniError::failed(format!("up {name:?}")))?;
            veth.pod
        }
    };
    result.interfaces.push(describe(&link, ""));
    Ok(link)
}

/// IPv4 keeps one address per bridge; IPv6 several, unless their networks overlap.
fn ensure_address(host: &dyn Side, link: &Link, gateway: Cidr, force: bool) -> Result<(), CniError> {
    let failed = || "set bridge addr".to_owned();
    let present = host.addresses_of(link.index).map_err(CniError::failed(failed()))?;
    for address in present.iter().filter(|a| a.cidr.is_v6() == gateway.is_v6()) {
        if address.cidr == gateway {
            return Ok(());
        }
        let overlaps = address.cidr.contains(gateway.addr) || gateway.contains(address.cidr.addr);
        if !gateway.is_v6() || overlaps {
            if !force {
                let message = format!("{:?} already has an IP address different from {gateway}", link.name);
                return Err(CniError::failed(failed())(message));
            }
            host.del_address(link.index, address.cidr).map_err(CniError::failed(failed()))?;
        }
    }
    match host.add_address(link.index, gateway) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(CniError::failed(failed())(format!(
                "could not add IP address {gateway} to {:?}: {error}",
                link.name
            )));
        }
        _ => {}
    }
    // Pin the hardware address, the one from before the first port: otherwise it follows the lowest port and pods'
    // neighbour entries go stale.
    host.set_mac(link.index, link.mac).map_err(CniError::failed("set bridge's mac"))
}

fn wait_for_port(host: &dyn Side, port: u32) -> Result<(), CniError> {
    let deadline = Instant::now() + PORT_TIMEOUT;
    loop {
        match host.link_by_index(port).map_err(CniError::failed("read the bridge port"))? {
            Some(link) if link.is_operational => return Ok(()),
            _ if Instant::now() > deadline => {
                return Err(CniError::internal("bridge port in error state: down"));
            }
            // Only the state can be asked; it changes on the kernel's own clock.
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn del(call: &Call) -> Result<(), CniError> {
    detach(call, &call.config()?)
}

/// The rules go whatever the configuration says now: it may be another than at ADD.
fn detach(call: &Call, config: &Config) -> Result<(), CniError> {
    let detached = interface::detach(call, config.ip_masq);
    detached.and(
        spoofing::remove(Entrance::Bridge, call).map_err(CniError::failed("remove what the pod's port is held to")),
    )
}

fn check(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    if let Some(kind) = ipam::kind(call) {
        ipam::check(call, kind)?;
    }
    let pod = interface::check(call)?;
    let host = Kernel::node()?;
    let bridge = find(&host, &config.bridge)?;
    if bridge.kind != "bridge" {
        return Err(CniError::internal(format!("Interface {} does not have link type of bridge", bridge.name)));
    }
    if config.promisc_mode != (bridge.promiscuity > 0) {
        return Err(CniError::internal(format!(
            "Bridge interface {} configured Promisc Mode {} doesn't match current state",
            bridge.name, config.promisc_mode
        )));
    }
    let port = match pod.peer {
        Some(index) => host.link_by_index(index).map_err(CniError::failed("read the bridge port"))?,
        None => None,
    };
    let Some(port) = port.filter(|port| port.master == Some(bridge.index)) else {
        return Err(CniError::internal(format!("{} is not connected to bridge {}", call.ifname, bridge.name)));
    };
    let addresses: Vec<Cidr> = call.previous.iter().flat_map(|previous| &previous.ips).map(|ip| ip.address).collect();
    if config.ip_masq && !masquerade::is_present(&addresses, &call.network, &call.container_id, &call.ifname) {
        return Err(CniError::internal("masquerade rules are missing"));
    }
    if let Some(guard) = config.guard(!addresses.is_empty()) {
        let given: Vec<IpAddr> = addresses.iter().map(|address| address.addr).collect();
        match spoofing::missing(call, guard, &port.name, pod.mac, &given) {
            Ok(None) => {}
            Ok(Some(entry)) => {
                return Err(CniError::internal(format!("the port of {} is not held to {entry}", call.ifname)));
            }
            // ADD made do without, and said so.
            Err(_) if !config.insists_on_guard() && !netlink::nft::has_bridges() => {}
            Err(error) => return Err(CniError::failed("read what the pod's port is held to")(error)),
        }
    }
    Ok(())
}

fn gc(call: &Call) -> Result<(), CniError> {
    let collected = ipam::kind(call).map_or(Ok(()), |kind| ipam::gc(call, kind));
    let node = Kernel::node()?;
    collected.and(
        spoofing::collect(Entrance::Bridge, &node)
            .map_err(CniError::failed("remove what is left of ports that are gone")),
    )
}

fn status(call: &Call) -> Result<(), CniError> {
    match ipam::kind(call) {
        Some(kind) => ipam::status(call, kind),
        None => Ok(()),
    }
}
