//! From objects to intent: where each port of a Service leads, seen from one node. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::cidr::Cidr;
use api::load_balancer::is_answered;
use api::meta::Meta as _;
use api::sort::{CompactCollect as _, CompactSort as _};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::endpoints::{self, Endpoint};

const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
const DEFAULT_AFFINITY_SECONDS: u32 = 10800;
/// Pairs of a port and a range of clients that one Service may have in the kernel. They take some tens of megabytes.
const MAX_RANGE_PAIRS: usize = 1 << 18;

/// The node we decide for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) zone: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    fn parse(text: Option<&str>) -> Option<Self> {
        match text.unwrap_or("TCP") {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// An address and port a connection can be sent on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Target {
    pub(crate) addr: IpAddr,
    pub(crate) port: u16,
}

/// One port of a Service in one address family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePort {
    /// `namespace/name:port`, for names of chains.
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) is_v6: bool,
    pub(crate) cluster_ips: Vec<IpAddr>,
    pub(crate) external_ips: Vec<IpAddr>,
    pub(crate) load_balancer_ips: Vec<IpAddr>,
    /// Whether only `source_ranges` may use the load balancer's addresses. Ranges of the other family alone allow nobody of this one.
    pub(crate) is_limited: bool,
    /// Of one family, the same for all ports.
    pub(crate) source_ranges: Arc<[String]>,
    pub(crate) node_port: Option<u16>,
    /// Seconds a client stays with its endpoint.
    pub(crate) affinity: Option<u32>,
    pub(crate) internal_local: bool,
    pub(crate) external_local: bool,
    /// Usable from anywhere.
    pub(crate) cluster: Vec<Target>,
    /// Usable under a Local policy: on this node.
    pub(crate) local: Vec<Target>,
    /// All that answer, wherever they are and whatever the policies: flows to them go on until they end.
    pub(crate) serving: Vec<Target>,
    /// Addresses of ready endpoints on this node: what a load balancer is told about.
    pub(crate) local_ready: BTreeSet<IpAddr>,
    /// Addresses of endpoints on this node, ready or not: they may reach themselves.
    pub(crate) here: Vec<IpAddr>,
}

/// Where clients of a UDP service send to; no address for node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frontend {
    pub(crate) addr: Option<IpAddr>,
    pub(crate) port: u16,
}

/// UDP frontends and what answers behind them; flows to anything else are stale.
pub(crate) type UdpTargets = BTreeMap<Frontend, Vec<Target>>;

/// What the load balancer's health check asks of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    pub(crate) port: u16,
    pub(crate) local_endpoints: usize,
}

fn target(endpoint: &Endpoint) -> Target {
    Target { addr: endpoint.addr, port: endpoint.port }
}

/// All ports of a Service; empty when it needs nothing from a proxy.
pub(crate) fn ports(service: &Service, slices: &[impl AsRef<EndpointSlice>], node: &Node) -> Vec<ServicePort> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let labels = service.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(PROXY_NAME_LABEL))
        || spec.type_.as_deref() == Some("ExternalName")
    {
        return Vec::new();
    }
    let parse = |texts: &[String]| -> Vec<IpAddr> { texts.iter().filter_map(|text| text.parse().ok()).collect() };
    let mut cluster_ips = parse(spec.cluster_ips.as_deref().unwrap_or_default());
    if cluster_ips.is_empty() {
        cluster_ips = parse(spec.cluster_ip.as_slice());
    }
    if cluster_ips.is_empty() {
        return Vec::new();
    }
    let external_ips = parse(spec.external_ips.as_deref().unwrap_or_default());
    let ingress = service.status.iter().filter_map(|s| s.load_balancer.as_ref()).filter_map(|l| l.ingress.as_ref());
    let ingress: Vec<_> = ingress.flatten().collect();
    let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let configured = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
        configured.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(DEFAULT_AFFINITY_SECONDS)
    });
    let key = format!("{}/{}", service.metadata.namespace(), service.metadata.name());
    let is_exposed = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    let families: BTreeSet<bool> = cluster_ips.iter().map(IpAddr::is_ipv6).compact_collect();
    let source_ranges = source_ranges(&key, spec);

    let mut ports = Vec::new();
    for port in spec.ports.iter().flatten() {
        let (Some(protocol), Ok(number)) = (Protocol::parse(port.protocol.as_deref()), u16::try_from(port.port)) else {
            continue;
        };
        let port_name = port.name.as_deref().unwrap_or_default();
        let asked = port.protocol.as_deref().unwrap_or("TCP");
        let answered = ingress.iter().filter(|ingress| is_answered(ingress, asked, port.port));
        let load_balancer_ips: Vec<IpAddr> =
            answered.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect();
        for is_v6 in families.iter().copied() {
            let of_family = |addrs: &[IpAddr]| addrs.iter().copied().filter(|a| a.is_ipv6() == is_v6).collect();
            let found = endpoints_of(slices, port_name, protocol, is_v6);
            let choice = choose(&found, node);
            ports.push(ServicePort {
                name: format!("{key}:{port_name}"),
                protocol,
                port: number,
                is_v6,
                cluster_ips: of_family(&cluster_ips),
                external_ips: of_family(&external_ips),
                load_balancer_ips: of_family(&load_balancer_ips),
                is_limited: spec.load_balancer_source_ranges.iter().flatten().any(|range| !range.trim().is_empty()),
                source_ranges: source_ranges[usize::from(is_v6)].clone(),
                node_port: port.node_port.filter(|_| is_exposed).and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0),
                affinity,
                internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
                external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
                cluster: choice.cluster,
                local: choice.local,
                serving: found.iter().filter(|e| e.is_ready || e.is_serving_terminating).map(target).collect(),
                local_ready: choice.local_ready,
                here: found.iter().filter(|e| is_on(e, node)).map(|e| e.addr).collect(),
            });
        }
    }
    ports
}

pub(crate) fn udp_targets(ports: &[ServicePort]) -> UdpTargets {
    let mut found = UdpTargets::new();
    for port in ports.iter().filter(|port| port.protocol == Protocol::Udp) {
        let mut note = |addr: Option<IpAddr>, number: u16| {
            found.entry(Frontend { addr, port: number }).or_default().extend(&port.serving);
        };
        let addresses = port.cluster_ips.iter().chain(&port.external_ips).chain(&port.load_balancer_ips);
        addresses.for_each(|addr| note(Some(*addr), port.port));
        port.node_port.iter().for_each(|number| note(None, *number));
    }
    found
}

/// Who may use the load balancer's addresses, by family (IPv4, IPv6); nobody where that would be too much for each port.
fn source_ranges(service: &str, spec: &ServiceSpec) -> [Arc<[String]>; 2] {
    let given = spec.load_balancer_source_ranges.iter().flatten().map(|range| range.trim().to_owned());
    let (v6, v4): (Vec<String>, Vec<String>) = given.partition(|range| range.contains(':'));
    let ranges = [without_nested(v4), without_nested(v6)];
    let ports = spec.ports.as_ref().map_or(0, Vec::len);
    if ranges.iter().map(Vec::len).sum::<usize>().saturating_mul(ports) > MAX_RANGE_PAIRS {
        tracing::error!(
            service,
            "more than {MAX_RANGE_PAIRS} pairs of a port and a source range: the load balancer's addresses stay closed"
        );
        return Default::default();
    }
    ranges.map(Arc::from)
}

/// The kernel refuses ranges that overlap; CIDRs overlap only by nesting, and the outer one says it all.
pub(crate) fn without_nested(ranges: Vec<String>) -> Vec<String> {
    let parsed: Vec<(String, Cidr)> = ranges.into_iter().filter_map(|r| Some((r.clone(), r.parse().ok()?))).collect();
    // An outer one comes before all that it contains, and of two that are the same the first.
    let mut order: Vec<usize> = (0..parsed.len()).collect();
    order.compact_sort_by_key(|at| (parsed[*at].1.network().addr, parsed[*at].1.prefix, *at));
    let mut is_kept = vec![false; parsed.len()];
    let mut outer: Option<Cidr> = None;
    for at in order {
        let range = parsed[at].1;
        if outer.is_none_or(|outer| !outer.contains(range.addr)) {
            is_kept[at] = true;
            outer = Some(range);
        }
    }
    parsed.into_iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|((text, _), _)| text).collect()
}

/// The health check of a load balancer with `externalTrafficPolicy: Local`.
pub(crate) fn health_check(service: &Service, ports: &[ServicePort]) -> Option<HealthCheck> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() != Some("LoadBalancer") || spec.external_traffic_policy.as_deref() != Some("Local") {
        return None;
    }
    let port = u16::try_from(spec.health_check_node_port?).ok().filter(|port| *port > 0)?;
    let local: BTreeSet<IpAddr> = ports.iter().flat_map(|port| &port.local_ready).copied().compact_collect();
    Some(HealthCheck { port, local_endpoints: local.len() })
}

fn endpoints_of(slices: &[impl AsRef<EndpointSlice>], port: &str, protocol: Protocol, is_v6: bool) -> Vec<Endpoint> {
    let is_headless = |slice: &EndpointSlice| {
        slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS_LABEL))
    };
    let slices = slices.iter().filter(|slice| !is_headless(slice.as_ref()));
    endpoints::of_port(slices, port, protocol.name(), is_v6)
}

fn is_on(endpoint: &Endpoint, node: &Node) -> bool {
    endpoint.node.as_deref() == Some(node.name.as_str())
}

struct Choice {
    cluster: Vec<Target>,
    local: Vec<Target>,
    local_ready: BTreeSet<IpAddr>,
}

fn choose(found: &[Endpoint], node: &Node) -> Choice {
    let place = endpoints::Place { node: &node.name, zone: node.zone.as_deref() };
    let cluster = endpoints::choose(found, place).into_iter().map(target).collect();
    let local = || found.iter().filter(|endpoint| is_on(endpoint, node));
    let ready: Vec<Target> = local().filter(|endpoint| endpoint.is_ready).map(target).collect();
    let local_ready = ready.iter().map(|target| target.addr).collect();
    let local = match ready.is_empty() {
        false => ready,
        true => local().filter(|endpoint| endpoint.is_serving_terminating).map(target).collect(),
    };
    Choice { cluster, local, local_ready }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(crate) fn service(name: &str, spec: Value) -> Service {
        let spec = serde_json::from_value(spec).unwrap();
        let mut service = Service { spec: Some(spec), ..Service::default() };
        service.metadata.namespace = Some("default".into());
        service.metadata.name = Some(name.into());
        service
    }

    pub(crate) fn slice(family: &str, ports: Value, endpoints: Value) -> Arc<EndpointSlice> {
        let value = json!({"metadata": {}, "addressType": family, "ports": ports, "endpoints": endpoints});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn node() -> Node {
        Node { name: "a".into(), zone: Some("z1".into()) }
    }

    fn chosen(endpoints: Value) -> (String, String) {
        let service = service("web", json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}]}));
        let slices = [slice("IPv4", json!([{"name": "", "port": 8080, "protocol": "TCP"}]), endpoints)];
        let ports = ports(&service, &slices, &node());
        let text = |targets: &[Target]| targets.iter().map(|t| t.addr.to_string()).collect::<Vec<_>>().join(" ");
        (text(&ports[0].cluster), text(&ports[0].local))
    }

    #[test]
    fn endpoints_are_chosen_by_condition_place_and_hint() {
        let at = |addr: &str, node: &str, conditions: Value| json!({"addresses": [addr], "nodeName": node, "conditions": conditions});
        let hinted = |addr: &str, hints: Value| json!({"addresses": [addr], "nodeName": "b", "hints": hints});
        let ready = json!({"ready": true});
        let terminating = json!({"ready": false, "serving": true, "terminating": true});
        let zone = |zone: &str| json!({"forZones": [{"name": zone}]});
        for (endpoints, cluster, local) in [
            (json!([]), "", ""),
            (
                json!([at("10.0.0.1", "a", ready.clone()), at("10.0.0.2", "b", json!({}))]),
                "10.0.0.1 10.0.0.2",
                "10.0.0.1",
            ),
            (json!([at("10.0.0.1", "a", json!({"ready": false}))]), "", ""),
            (
                json!([at("10.0.0.1", "a", terminating.clone()), at("10.0.0.2", "b", ready.clone())]),
                "10.0.0.2",
                "10.0.0.1",
            ),
            (json!([at("10.0.0.1", "b", terminating.clone())]), "10.0.0.1", ""),
            (json!([at("10.0.0.1", "b", json!({"ready": false, "serving": false, "terminating": true}))]), "", ""),
            (json!([hinted("10.0.0.1", zone("z1")), hinted("10.0.0.2", zone("z2"))]), "10.0.0.1", ""),
            (json!([hinted("10.0.0.1", zone("z1")), hinted("10.0.0.2", json!({}))]), "10.0.0.1 10.0.0.2", ""),
            (json!([hinted("10.0.0.1", zone("z3")), hinted("10.0.0.2", zone("z2"))]), "10.0.0.1 10.0.0.2", ""),
            (
                json!([
                    hinted("10.0.0.1", json!({"forNodes": [{"name": "a"}], "forZones": [{"name": "z2"}]})),
                    hinted("10.0.0.2", json!({"forNodes": [{"name": "b"}], "forZones": [{"name": "z1"}]}))
                ]),
                "10.0.0.1",
                "",
            ),
        ] {
            assert_eq!(chosen(endpoints.clone()), (cluster.to_owned(), local.to_owned()), "{endpoints}");
        }
    }

    #[test]
    fn nested_source_ranges_are_dropped() {
        for (ranges, kept) in [
            (vec!["10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/16"], vec!["10.0.0.0/8", "192.168.0.0/16"]),
            (vec!["10.1.0.0/16", "0.0.0.0/0"], vec!["0.0.0.0/0"]),
            (vec!["10.1.0.0/16", "10.1.0.0/16", "x"], vec!["10.1.0.0/16"]),
            // The same bits in another family are another range.
            (vec!["2001::/16", "32.1.0.0/24"], vec!["2001::/16", "32.1.0.0/24"]),
        ] {
            let ranges = ranges.into_iter().map(str::to_owned).collect();
            assert_eq!(without_nested(ranges), kept);
        }
    }

    #[test]
    fn security_long_lists_of_ranges_are_compared_in_one_walk() {
        let range = |at: u32| format!("{}/32", std::net::Ipv4Addr::from(at * 3));
        let ranges: Vec<String> = (0..200_000).map(range).collect();
        assert!(without_nested(ranges.clone()) == ranges);
        assert_eq!(without_nested([ranges, vec!["0.0.0.0/0".to_owned()]].concat()), ["0.0.0.0/0"]);
    }

    /// Each port has all ranges, so that a body of a megabyte would be billions of them.
    #[test]
    fn security_ranges_of_all_ports_are_bounded() {
        for (ports, expected) in [(100, 1000), (1000, 0)] {
            let ranges: Vec<String> = (0..1000).map(|at| format!("10.0.{}.{}/32", at / 250, at % 250)).collect();
            let given: Vec<Value> = (1..=ports).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
            let spec = json!({"clusterIP": "10.43.0.9", "type": "LoadBalancer", "loadBalancerSourceRanges": ranges,
                "ports": given});
            let found = super::ports(&service("web", spec), &[] as &[Arc<EndpointSlice>], &node());
            assert_eq!(found.len(), ports);
            assert!(found.iter().all(|port| port.is_limited && port.source_ranges.len() == expected), "{ports}");
        }
    }

    #[test]
    fn security_ranges_of_one_family_open_nothing_in_the_other() {
        for (ranges, expected) in [
            (json!(null), [(false, 0), (false, 0)]),
            (json!([]), [(false, 0), (false, 0)]),
            (json!(["203.0.113.0/24"]), [(true, 1), (true, 0)]),
            (json!(["203.0.113.0/24", " 2001:db8::/32 "]), [(true, 1), (true, 1)]),
        ] {
            let spec = json!({"clusterIPs": ["10.43.0.9", "fd43::9"], "type": "LoadBalancer",
                "loadBalancerSourceRanges": ranges, "ports": [{"port": 80}]});
            let ports = ports(&service("web", spec), &[] as &[Arc<EndpointSlice>], &node());
            let seen: Vec<_> = ports.iter().map(|port| (port.is_limited, port.source_ranges.len())).collect();
            assert_eq!(seen, expected, "{ranges}");
        }
    }

    /// New connections should go elsewhere while those that are left may end.
    #[test]
    fn load_balancers_are_told_about_ready_endpoints_only() {
        let spec = json!({"clusterIP": "10.43.0.9", "type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000, "ports": [{"name": "http", "port": 80, "nodePort": 30080}]});
        let service = service("web", spec);
        let at = |addr: &str, node: &str, conditions: Value| json!({"addresses": [addr], "nodeName": node, "conditions": conditions});
        let terminating = json!({"ready": false, "serving": true, "terminating": true});
        let ready = json!({"ready": true});
        for (endpoints, targets, expected) in [
            (json!([at("10.0.0.1", "a", ready.clone()), at("10.0.0.2", "a", ready.clone())]), 2, 2),
            (json!([at("10.0.0.1", "a", ready.clone()), at("10.0.0.2", "a", terminating.clone())]), 1, 1),
            (json!([at("10.0.0.1", "a", terminating.clone())]), 1, 0),
            (json!([at("10.0.0.1", "a", terminating), at("10.0.0.2", "b", ready)]), 1, 0),
        ] {
            let slices = [slice("IPv4", json!([{"name": "http", "port": 8080}]), endpoints.clone())];
            let ports = ports(&service, &slices, &node());
            assert_eq!(ports[0].local.len(), targets, "{endpoints}");
            let check = HealthCheck { port: 31000, local_endpoints: expected };
            assert_eq!(health_check(&service, &ports), Some(check), "{endpoints}");
        }
    }

    #[test]
    fn what_a_load_balancer_proxies_is_not_short_cut() {
        for (ingress, expected) in [
            (json!([{"ip": "192.0.2.1"}]), &["192.0.2.1"][..]),
            (json!([{"ip": "192.0.2.1", "ipMode": "VIP"}]), &["192.0.2.1"]),
            (json!([{"ip": "192.0.2.1", "ipMode": "Proxy"}, {"ip": "192.0.2.2", "ipMode": "VIP"}]), &["192.0.2.2"]),
            (json!([{"ip": "192.0.2.1", "ports": [{"port": 81, "protocol": "TCP"}]}]), &[]),
        ] {
            let spec = json!({"clusterIP": "10.43.0.9", "type": "LoadBalancer", "ports": [{"port": 80}]});
            let mut service = service("web", spec);
            service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": ingress}})).unwrap();
            let ports = ports(&service, &[] as &[Arc<EndpointSlice>], &node());
            let found: Vec<String> = ports[0].load_balancer_ips.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{ingress}");
        }
    }

    #[test]
    fn services_without_a_proxied_address_are_left_alone() {
        for spec in [
            json!({"clusterIP": "None", "ports": [{"port": 80}]}),
            json!({"type": "ExternalName", "externalName": "example.com"}),
            json!({"ports": [{"port": 80}]}),
        ] {
            assert!(ports(&service("web", spec.clone()), &[] as &[Arc<EndpointSlice>], &node()).is_empty(), "{spec}");
        }
    }

    #[test]
    fn dual_stack_services_have_a_port_per_family() {
        let spec = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "type": "LoadBalancer",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "dns", "port": 53, "protocol": "UDP"}]});
        let service = service("web", spec);
        let slices = [
            slice(
                "IPv4",
                json!([{"name": "http", "port": 8080}]),
                json!([{"addresses": ["10.0.0.1"], "nodeName": "a"}]),
            ),
            slice(
                "IPv6",
                json!([{"name": "http", "port": 8080}]),
                json!([{"addresses": ["fd00::1"], "nodeName": "b"}]),
            ),
        ];
        let ports = ports(&service, &slices, &node());
        let seen: Vec<_> =
            ports.iter().map(|p| (p.port, p.is_v6, p.cluster.len(), p.local.len(), p.node_port)).collect();
        assert_eq!(
            seen,
            [
                (80, false, 1, 1, Some(30080)),
                (80, true, 1, 0, Some(30080)),
                (53, false, 0, 0, None),
                (53, true, 0, 0, None)
            ]
        );
        assert_eq!(health_check(&service, &ports), Some(HealthCheck { port: 31000, local_endpoints: 1 }));
    }
}
