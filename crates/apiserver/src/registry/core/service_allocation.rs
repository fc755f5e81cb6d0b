//! Cluster IPs and node ports: who has which, in memory, made from the stored services when the server starts.
//!
//! An address is taken before the service is stored and given back if that fails, so two services never share one.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::field::FieldErrors;
use api::{GroupKind, Status};
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;

pub(crate) struct Allocators {
    ranges: Vec<Cidr>,
    ports: (u16, u16),
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

/// Addresses and ports that a service holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl Taken {
    pub(crate) fn of(service: &Service) -> Self {
        let Some(spec) = &service.spec else { return Self::default() };
        let mut addresses: Vec<IpAddr> =
            spec.cluster_ips.iter().flatten().filter_map(|text| text.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(spec.cluster_ip.iter().filter_map(|text| text.parse::<IpAddr>().ok()));
        }
        let mut ports: Vec<u16> = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| u16::try_from(port.node_port?).ok())
            .filter(|port| *port > 0)
            .collect();
        ports.extend(spec.health_check_node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0));
        ports.sort_unstable();
        ports.dedup();
        Self { addresses, ports }
    }

    pub(crate) fn without(mut self, other: &Taken) -> Self {
        self.addresses.retain(|address| !other.addresses.contains(address));
        self.ports.retain(|port| !other.ports.contains(port));
        self
    }
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: u128,
    bits: u8,
    v6: bool,
}

impl std::str::FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("invalid CIDR address: {text}");
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits: u8 = bits.parse().map_err(|_| bad())?;
        let (value, v6, width) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), false, 32),
            IpAddr::V6(address) => (u128::from(address), true, 128),
        };
        if bits > width {
            return Err(bad());
        }
        let host = width - bits;
        let base = if host >= 128 { 0 } else { value >> host << host };
        Ok(Self { base, bits, v6 })
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.at(0), self.bits)
    }
}

impl Cidr {
    pub fn at(&self, offset: u128) -> IpAddr {
        let value = self.base + offset;
        if self.v6 { IpAddr::V6(Ipv6Addr::from(value)) } else { IpAddr::V4(Ipv4Addr::from(value as u32)) }
    }

    /// How many addresses a service can have: the first and, for IPv4, the last are not used.
    fn size(&self) -> u128 {
        let host = u32::from(if self.v6 { 128 - self.bits } else { 32 - self.bits });
        // Larger ranges are cut, as upstream does, so that picking stays cheap.
        let all = 1u128 << host.min(20);
        all.saturating_sub(if self.v6 || host > 20 { 1 } else { 2 }).max(1)
    }

    fn contains(&self, address: IpAddr) -> bool {
        let value = match address {
            IpAddr::V4(address) if !self.v6 => u128::from(u32::from(address)),
            IpAddr::V6(address) if self.v6 => u128::from(address),
            _ => return false,
        };
        let host = if self.v6 { 128 - self.bits } else { 32 - self.bits };
        host >= 128 || value >> host == self.base >> host
    }

    fn family(&self) -> &'static str {
        if self.v6 { "IPv6" } else { "IPv4" }
    }
}

impl Allocators {
    pub(crate) fn new(ranges: Vec<Cidr>, ports: (u16, u16), services: &[Service]) -> Self {
        let allocators = Self { ranges, ports, used: Mutex::default() };
        for service in services {
            let taken = Taken::of(service);
            let mut used = allocators.used.lock();
            used.addresses.extend(taken.addresses);
            used.ports.extend(taken.ports);
        }
        allocators
    }

    pub(crate) fn release(&self, taken: &Taken) {
        let mut used = self.used.lock();
        for address in &taken.addresses {
            used.addresses.remove(address);
        }
        for port in &taken.ports {
            used.ports.remove(port);
        }
    }

    /// Gives a service what it needs and does not have, or refuses. Returns what was newly taken.
    pub(crate) fn allocate(&self, service: &mut Service, old: Option<&Service>) -> Result<Taken, Status> {
        let name = service.metadata.name.clone().unwrap_or_default();
        let mut taken = Taken::default();
        let held = old.map(Taken::of).unwrap_or_default();
        let mut errors = FieldErrors::default();
        if let Some(old) = old {
            keep_allocated(service, old);
        }
        self.addresses(service, &held, &mut taken, &mut errors);
        if errors.is_empty() {
            self.node_ports(service, &held, &mut taken, &mut errors);
        }
        if errors.is_empty() {
            return Ok(taken);
        }
        self.release(&taken);
        Err(Status::invalid(&GroupKind::new("", "Service"), &name, errors))
    }

    fn addresses(&self, service: &mut Service, held: &Taken, taken: &mut Taken, errors: &mut FieldErrors) {
        let Some(spec) = service.spec.as_mut() else { return };
        if spec.type_.as_deref() == Some("ExternalName") {
            spec.cluster_ip = None;
            spec.cluster_ips = None;
            spec.ip_families = None;
            spec.ip_family_policy = None;
            return;
        }
        let Some(primary) = self.ranges.first() else { return };
        let headless = spec.cluster_ip.as_deref() == Some("None")
            || spec.cluster_ips.iter().flatten().next().is_some_and(|ip| ip == "None");
        let policy = spec.ip_family_policy.get_or_insert_with(|| "SingleStack".to_owned()).clone();
        if spec.ip_families.as_ref().is_none_or(Vec::is_empty) {
            let given = spec.cluster_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
            let first =
                given.and_then(|address| self.ranges.iter().find(|range| range.contains(address))).unwrap_or(primary);
            let mut families = vec![first.family().to_owned()];
            if policy != "SingleStack" {
                families.extend(
                    self.ranges.iter().filter(|range| range.v6 != first.v6).map(|range| range.family().to_owned()),
                );
            }
            spec.ip_families = Some(families);
        }
        if headless {
            spec.cluster_ip = Some("None".to_owned());
            spec.cluster_ips = Some(vec!["None".to_owned()]);
            return;
        }
        let mut given: Vec<String> = spec.cluster_ips.clone().unwrap_or_default();
        if given.is_empty() {
            given.extend(spec.cluster_ip.clone().filter(|address| !address.is_empty()));
        }
        let families = spec.ip_families.clone().unwrap_or_default();
        let mut addresses: Vec<String> = Vec::new();
        for (index, family) in families.iter().enumerate() {
            let Some(range) = self.ranges.iter().find(|range| range.family() == family) else {
                if policy == "RequireDualStack" || index == 0 {
                    errors.invalid(format!("spec.ipFamilies[{index}]"), family, "not configured on this cluster");
                }
                continue;
            };
            match given.get(index) {
                Some(wanted) => {
                    let Ok(address) = wanted.parse::<IpAddr>() else {
                        errors.invalid("spec.clusterIPs", &given, format!("{wanted} is not an IP address"));
                        return;
                    };
                    if !held.addresses.contains(&address) {
                        if !range.contains(address) {
                            errors.invalid("spec.clusterIPs", &given, format!(
                                "failed to allocate IP {address}: the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"));
                            return;
                        }
                        if !self.used.lock().addresses.insert(address) {
                            errors.invalid(
                                "spec.clusterIPs",
                                &given,
                                format!("failed to allocate IP {address}: provided IP is already allocated"),
                            );
                            return;
                        }
                        taken.addresses.push(address);
                    }
                    addresses.push(wanted.clone());
                }
                None => match self.free_address(range) {
                    Some(address) => {
                        taken.addresses.push(address);
                        addresses.push(address.to_string());
                    }
                    None => {
                        errors.push(api::field::FieldError::internal(
                            "spec.clusterIPs",
                            "failed to allocate a serviceIP: range is full",
                        ));
                        return;
                    }
                },
            }
        }
        spec.cluster_ip = addresses.first().cloned();
        spec.cluster_ips = Some(addresses);
    }

    /// A free address, from the upper part of the range first: the lower part is left to those who choose their own.
    fn free_address(&self, range: &Cidr) -> Option<IpAddr> {
        let size = range.size();
        let reserved = if size < 16 { 0 } else { (size / 16).clamp(16, 256) };
        let mut used = self.used.lock();
        for (from, count) in [(reserved, size - reserved), (0, reserved)] {
            if count == 0 {
                continue;
            }
            let start = rand::random_range(0..count);
            for step in 0..count {
                let address = range.at(1 + from + (start + step) % count);
                if used.addresses.insert(address) {
                    return Some(address);
                }
            }
        }
        None
    }

    fn node_ports(&self, service: &mut Service, held: &Taken, taken: &mut Taken, errors: &mut FieldErrors) {
        let Some(spec) = service.spec.as_mut() else { return };
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        let wants =
            kind == "NodePort" || (kind == "LoadBalancer" && spec.allocate_load_balancer_node_ports != Some(false));
        let local = kind == "LoadBalancer" && spec.external_traffic_policy.as_deref() == Some("Local");
        // One number may serve several protocols of the same service.
        let mut ours: HashSet<u16> = HashSet::new();
        for (index, port) in spec.ports.iter_mut().flatten().enumerate() {
            let given = port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
            match given {
                Some(given) => {
                    if held.ports.contains(&given) || !ours.insert(given) {
                        continue;
                    }
                    if !(self.ports.0..=self.ports.1).contains(&given) {
                        errors.invalid(
                            format!("spec.ports[{index}].nodePort"),
                            given,
                            format!(
                                "provided port is not in the valid range. The range of valid ports is {}-{}",
                                self.ports.0, self.ports.1
                            ),
                        );
                        return;
                    }
                    if !self.used.lock().ports.insert(given) {
                        errors.invalid(
                            format!("spec.ports[{index}].nodePort"),
                            given,
                            "provided port is already allocated",
                        );
                        return;
                    }
                    taken.ports.push(given);
                }
                None if wants => match self.free_port() {
                    Some(free) => {
                        taken.ports.push(free);
                        port.node_port = Some(i32::from(free));
                    }
                    None => {
                        errors.push(api::field::FieldError::internal(
                            format!("spec.ports[{index}].nodePort"),
                            "failed to allocate a nodePort: range is full",
                        ));
                        return;
                    }
                },
                None => {}
            }
        }
        if local
            && spec.health_check_node_port.unwrap_or(0) == 0
            && let Some(free) = self.free_port()
        {
            taken.ports.push(free);
            spec.health_check_node_port = Some(i32::from(free));
        }
        if !local {
            spec.health_check_node_port = None;
        }
    }

    fn free_port(&self) -> Option<u16> {
        let (low, high) = self.ports;
        let count = u32::from(high - low) + 1;
        let start = rand::random_range(0..count);
        let mut used = self.used.lock();
        (0..count).map(|step| low + ((start + step) % count) as u16).find(|port| used.ports.insert(*port))
    }
}

/// An update that leaves allocated values out keeps them, as long as the type still has them.
fn keep_allocated(service: &mut Service, old: &Service) {
    let (Some(new), Some(old)) = (service.spec.as_mut(), old.spec.as_ref()) else { return };
    let external = |kind: Option<&str>| kind == Some("ExternalName");
    if external(new.type_.as_deref()) || external(old.type_.as_deref()) {
        return;
    }
    if new.cluster_ip.as_deref().unwrap_or_default().is_empty() {
        new.cluster_ip.clone_from(&old.cluster_ip);
    }
    if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) && new.cluster_ip == old.cluster_ip {
        new.cluster_ips.clone_from(&old.cluster_ips);
    }
    if new.ip_families.as_ref().is_none_or(Vec::is_empty) {
        new.ip_families.clone_from(&old.ip_families);
    }
    if new.ip_family_policy.is_none() {
        new.ip_family_policy.clone_from(&old.ip_family_policy);
    }
    let has_ports = |kind: Option<&str>| matches!(kind, Some("NodePort" | "LoadBalancer"));
    if !has_ports(old.type_.as_deref()) {
        return;
    }
    if !has_ports(new.type_.as_deref()) {
        // Node ports that are only carried along from before go away with the type.
        for port in new.ports.iter_mut().flatten() {
            let before =
                old.ports.iter().flatten().find(|before| before.port == port.port && before.protocol == port.protocol);
            if before.is_some_and(|before| before.node_port == port.node_port) {
                port.node_port = None;
            }
        }
        return;
    }
    for port in new.ports.iter_mut().flatten().filter(|port| port.node_port.unwrap_or(0) == 0) {
        let before =
            old.ports.iter().flatten().find(|before| before.port == port.port && before.protocol == port.protocol);
        port.node_port = before.and_then(|before| before.node_port);
    }
    if new.health_check_node_port.unwrap_or(0) == 0 {
        new.health_check_node_port = old.health_check_node_port;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};

    fn service(kind: &str, ip: &str, ports: &[(i32, i32)]) -> Service {
        let ports = ports.iter().map(|(port, node)| ServicePort {
            port: *port,
            node_port: (*node > 0).then_some(*node),
            ..Default::default()
        });
        Service {
            spec: Some(ServiceSpec {
                type_: Some(kind.to_owned()),
                cluster_ip: (!ip.is_empty()).then(|| ip.to_owned()),
                ports: Some(ports.collect()),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn allocators() -> Allocators {
        Allocators::new(vec!["10.43.0.0/28".parse().unwrap()], (30000, 30001), &[])
    }

    #[test]
    fn addresses_are_unique_until_the_range_is_full() {
        let allocators = allocators();
        let mut seen = HashSet::new();
        for _ in 0..14 {
            let mut one = service("ClusterIP", "", &[(80, 0)]);
            allocators.allocate(&mut one, None).unwrap();
            assert!(seen.insert(one.spec.unwrap().cluster_ip.unwrap()));
        }
        let refused = allocators.allocate(&mut service("ClusterIP", "", &[]), None).unwrap_err();
        assert!(refused.message.contains("range is full"), "{refused}");
    }

    #[test]
    fn chosen_values_are_checked() {
        let allocators = allocators();
        for (kind, ip, node_port, problem) in [
            ("ClusterIP", "10.43.0.5", 0, ""),
            ("ClusterIP", "10.43.0.5", 0, "already allocated"),
            ("ClusterIP", "10.44.0.5", 0, "not in the valid range"),
            ("ClusterIP", "None", 0, ""),
            ("NodePort", "", 30000, ""),
            ("NodePort", "", 30000, "provided port is already allocated"),
            ("NodePort", "", 40000, "provided port is not in the valid range"),
        ] {
            let outcome = allocators.allocate(&mut service(kind, ip, &[(80, node_port)]), None);
            match outcome {
                Ok(_) => assert_eq!(problem, "", "{kind} {ip} {node_port}"),
                Err(status) => assert!(!problem.is_empty() && status.message.contains(problem), "{status}"),
            }
        }
    }

    #[test]
    fn updates_keep_and_release() {
        let allocators = allocators();
        let mut old = service("NodePort", "", &[(80, 0)]);
        allocators.allocate(&mut old, None).unwrap();
        let mut new = service("NodePort", "", &[(80, 0)]);
        let taken = allocators.allocate(&mut new, Some(&old)).unwrap();
        assert_eq!(taken, Taken::default());
        assert_eq!(Taken::of(&new), Taken::of(&old));
        let mut plain = service("ClusterIP", "", &[(80, 0)]);
        allocators.allocate(&mut plain, Some(&old)).unwrap();
        assert_eq!(Taken::of(&old).without(&Taken::of(&plain)).ports.len(), 1);
    }
}
