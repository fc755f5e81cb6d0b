//! What a service needs, decided from its spec alone: nothing here claims anything.

use std::net::IpAddr;

use api::cidr::Cidr;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use super::range::family;

/// The address families of a service, in order, and what it has or asks for in each.
pub(super) enum Addresses {
    /// `ExternalName`, headless, or no ranges: nothing to claim.
    None,
    Wanted {
        families: Vec<String>,
        given: Vec<String>,
    },
}

/// Fills in families and decides which addresses are needed. `ranges` are those of this cluster, the primary one first.
pub(super) fn addresses(spec: &mut ServiceSpec, ranges: &[Cidr]) -> Addresses {
    if spec.type_.as_deref() == Some("ExternalName") {
        spec.cluster_ip = None;
        spec.cluster_ips = None;
        spec.ip_families = None;
        spec.ip_family_policy = None;
        return Addresses::None;
    }
    let Some(primary) = ranges.first() else { return Addresses::None };
    let headless = spec.cluster_ip.as_deref() == Some("None")
        || spec.cluster_ips.iter().flatten().next().is_some_and(|ip| ip == "None");
    let policy = spec.ip_family_policy.get_or_insert_with(|| "SingleStack".to_owned()).clone();
    if spec.ip_families.as_ref().is_none_or(Vec::is_empty) {
        let given = spec.cluster_ip.as_deref().and_then(|text| text.parse::<IpAddr>().ok());
        let first = given.and_then(|address| ranges.iter().find(|range| range.contains(address))).unwrap_or(primary);
        let mut families = vec![family(first).to_owned()];
        if policy != "SingleStack" {
            let other = ranges.iter().find(|range| range.is_v6() != first.is_v6());
            families.extend(other.map(|range| family(range).to_owned()));
        }
        spec.ip_families = Some(families);
    }
    if headless {
        spec.cluster_ip = Some("None".to_owned());
        spec.cluster_ips = Some(vec!["None".to_owned()]);
        return Addresses::None;
    }
    let mut given: Vec<String> = spec.cluster_ips.clone().unwrap_or_default();
    if given.is_empty() {
        given.extend(spec.cluster_ip.clone().filter(|address| !address.is_empty()));
    }
    Addresses::Wanted { families: spec.ip_families.clone().unwrap_or_default(), given }
}

/// Whether ports without a number get one, and whether a port for health checks is needed.
pub(super) fn wants_node_ports(spec: &ServiceSpec) -> (bool, bool) {
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    let wants = kind == "NodePort" || (kind == "LoadBalancer" && spec.allocate_load_balancer_node_ports != Some(false));
    (wants, kind == "LoadBalancer" && spec.external_traffic_policy.as_deref() == Some("Local"))
}

/// An update that leaves allocated values out keeps them, as long as the type still has them.
pub(super) fn keep_allocated(service: &mut Service, old: &Service) {
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
    use k8s_openapi::api::core::v1::ServicePort;

    fn service(kind: &str, ports: &[(i32, i32)]) -> Service {
        let ports = ports.iter().map(|(port, node)| ServicePort {
            port: *port,
            node_port: (*node > 0).then_some(*node),
            ..Default::default()
        });
        let spec = ServiceSpec { type_: Some(kind.to_owned()), ports: Some(ports.collect()), ..Default::default() };
        Service { spec: Some(spec), ..Default::default() }
    }

    #[test]
    fn updates_keep_what_the_type_still_has() {
        for (kind, expected) in [("NodePort", Some(30001)), ("ClusterIP", None)] {
            let mut old = service("NodePort", &[(80, 30001)]);
            old.spec.as_mut().unwrap().cluster_ip = Some("10.43.0.7".to_owned());
            let mut new = service(kind, &[(80, if expected.is_none() { 30001 } else { 0 })]);
            keep_allocated(&mut new, &old);
            let spec = new.spec.unwrap();
            assert_eq!(spec.cluster_ip.as_deref(), Some("10.43.0.7"));
            assert_eq!(spec.ports.unwrap()[0].node_port, expected, "{kind}");
        }
    }

    #[test]
    fn families_follow_the_policy_and_the_address() {
        let ranges: Vec<Cidr> = ["10.43.0.0/16", "fd00::/112"].iter().map(|text| text.parse().unwrap()).collect();
        for (policy, address, expected) in [
            ("", "", &["IPv4"][..]),
            ("PreferDualStack", "", &["IPv4", "IPv6"][..]),
            ("PreferDualStack", "fd00::7", &["IPv6", "IPv4"][..]),
            ("", "fd00::7", &["IPv6"][..]),
        ] {
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let mut spec =
                ServiceSpec { ip_family_policy: text(policy), cluster_ip: text(address), ..Default::default() };
            assert!(matches!(addresses(&mut spec, &ranges), Addresses::Wanted { .. }));
            assert_eq!(spec.ip_families.unwrap(), expected, "{policy} {address}");
        }
    }
}
