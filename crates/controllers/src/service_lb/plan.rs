//! Which addresses a load balancer has. Pure.
//!
//! The addresses are those of nodes, so services share them: a port of a node's address is held by one service only, and never
//! by one if the node itself or the cluster's gateway answers there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::cidr::Cidr;
use api::meta::Meta as _;
use api::sort::{CompactCollect as _, CompactSort as _};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Node, NodeSpec, PortStatus, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use crate::pods;

/// The class of our own load balancers, for services that ask for it by name.
pub const CLASS: &str = "cox.dev/node-addresses";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

/// A port of the nodes' addresses: of IPv6, its protocol, its number.
pub(super) type Claim = (bool, String, i32);

/// Whose ports are not for services.
#[derive(Debug, Clone, Default)]
pub(super) struct Reserved {
    /// Of the nodes: the API server's, the kubelet's.
    pub(super) ports: BTreeSet<u16>,
    /// The gateway's, while it serves Ingresses and Gateways.
    pub(super) gateway: BTreeSet<u16>,
}

/// Whether the service asks for a load balancer, and for none of another implementation.
pub(super) fn is_wanted(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"))
        && is_ours(service)
        && service.metadata.deletion_timestamp.is_none()
}

/// Services of another class belong to another implementation, whatever their type became.
pub(super) fn is_ours(service: &Service) -> bool {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    class.is_none_or(|class| class == CLASS)
}

pub(super) fn is_local(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.external_traffic_policy.as_deref() == Some("Local"))
}

/// What the status of a wanted load balancer is to be. Under a Local policy only nodes with a ready endpoint take part: others
/// would drop what they are sent.
///
/// `inside` are the ranges of pods and services, where no machine has its address.
pub(super) fn status<'a>(
    service: &Service,
    nodes: impl Iterator<Item = &'a Node> + Clone,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    inside: &[Cidr],
) -> LoadBalancerStatus {
    let owners = owners(nodes.clone());
    let serving = is_local(service).then(|| nodes_with_endpoints(slices));
    let takes_part = |node: &&Node| {
        let name = node.metadata.name();
        !is_excluded(node) && serving.as_ref().is_none_or(|serving| serving.contains(name))
    };
    let candidates = nodes.filter(takes_part);
    // If none is ready, that says more about who looks than about all of them.
    let any_ready = candidates.clone().any(api::node::is_ready);
    let chosen: Vec<&Node> = candidates.filter(|node| !any_ready || api::node::is_ready(node)).collect();
    // What is granted is written down: proxies answer at no other port, and a changed port has to be asked for like a new one.
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()).map(|port| PortStatus {
        port: port.port,
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
        error: None,
    });
    let ports: Vec<PortStatus> = ports.collect();
    let mut ingress = Vec::new();
    for is_v6 in families(service) {
        let addresses: BTreeSet<IpAddr> =
            chosen.iter().filter_map(|node| address(node, is_v6, &owners, inside)).compact_collect();
        ingress.extend(addresses.into_iter().map(|ip| LoadBalancerIngress {
            ip: Some(ip.to_string()),
            // The proxy of every node answers for the address itself, also to pods.
            ip_mode: Some("VIP".into()),
            ports: Some(ports.clone()),
            ..LoadBalancerIngress::default()
        }));
    }
    LoadBalancerStatus { ingress: (!ingress.is_empty()).then_some(ingress) }
}

/// Somebody else answers at a port that a service asks for.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {port}/{protocol} of the nodes' addresses is used by {holder}")]
pub(super) struct PortTaken {
    port: u16,
    protocol: String,
    holder: String,
}

/// Why the service cannot have the nodes' addresses, if it cannot: somebody else answers at one of its ports. Who was granted
/// all its ports keeps them, then comes the gateway, then the oldest.
pub(super) fn refusal<'a>(
    service: &Service,
    all: impl Iterator<Item = &'a Service>,
    reserved: &Reserved,
) -> Option<PortTaken> {
    let mut order: Vec<(bool, _, String, &Service)> = all
        .filter(|other| is_wanted(other))
        .map(|other| (!is_granted(other), other.metadata.creation_timestamp.clone(), pods::key(other), other))
        .collect();
    order.compact_sort_by(|a, b| (a.0, &a.1, &a.2).cmp(&(b.0, &b.1, &b.2)));
    let key = pods::key(service);
    let mut holders: BTreeMap<Claim, String> = BTreeMap::new();
    for (is_new, _, other, claimant) in order {
        let refused = claims(claimant).into_iter().find_map(|claim| {
            let number = u16::try_from(claim.2).unwrap_or_default();
            let holder = if reserved.ports.contains(&number) {
                Some("the nodes themselves")
            } else if is_new && claim.1 == "TCP" && reserved.gateway.contains(&number) {
                Some("the cluster's gateway")
            } else {
                holders.get(&claim).map(String::as_str)
            };
            holder.map(|holder| PortTaken { port: number, protocol: claim.1.clone(), holder: holder.to_owned() })
        });
        if other == key {
            return refused;
        }
        if refused.is_none() {
            holders.extend(claims(claimant).into_iter().map(|claim| (claim, format!("service {other}"))));
        }
    }
    None
}

/// The ports that a service uses at the addresses of the nodes.
pub(super) fn claims(service: &Service) -> BTreeSet<Claim> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .flat_map(|port| {
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
            families(service).into_iter().map(move |is_v6| (is_v6, protocol.clone(), port.port))
        })
        .compact_collect()
}

/// Ports at which the gateway answers: it opens them with the first Ingress that it serves, that of TLS if one has it.
pub(super) fn gateway_ports<'a>(
    (plain, tls): (u16, u16),
    ingresses: impl Iterator<Item = &'a Ingress>,
) -> BTreeSet<u16> {
    let is_served = |ingress: &&Ingress| {
        let status = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        status.is_some_and(|status| status.ingress.as_ref().is_some_and(|addresses| !addresses.is_empty()))
    };
    let has_tls = |ingress: &Ingress| {
        ingress.spec.as_ref().is_some_and(|spec| spec.tls.as_ref().is_some_and(|tls| !tls.is_empty()))
    };
    ingresses
        .filter(is_served)
        .flat_map(|ingress| [Some(plain), has_tls(ingress).then_some(tls)])
        .flatten()
        .compact_collect()
}

/// Ports that Gateways of the gateway's classes have at addresses of nodes, as their statuses say. One with addresses of its own is in
/// nobody's way.
pub(super) fn ports_of_gateways<'a>(
    classes: &[Value],
    gateways: &[Value],
    controller: &str,
    nodes: impl Iterator<Item = &'a Node>,
) -> BTreeSet<u16> {
    let is_ours = |class: &&Value| class["spec"]["controllerName"] == controller;
    let classes: BTreeSet<&str> =
        classes.iter().filter(is_ours).filter_map(|class| class["metadata"]["name"].as_str()).compact_collect();
    let nodes: BTreeSet<IpAddr> = nodes.flat_map(said).map(|(_, address)| address).compact_collect();
    let has_ours = |gateway: &&Value| {
        gateway["spec"]["gatewayClassName"].as_str().is_some_and(|class| classes.contains(class))
            && members(&gateway["status"]["addresses"])
                .filter_map(|address| address["value"].as_str()?.parse::<IpAddr>().ok())
                .any(|address| nodes.contains(&address))
    };
    let ports = gateways.iter().filter(has_ours).flat_map(|gateway| {
        let is_served = |listener: &&Value| {
            let mut conditions = members(&listener["conditions"]);
            conditions.any(|condition| condition["type"] == "Programmed" && condition["status"] == "True")
        };
        let served: BTreeSet<&str> = members(&gateway["status"]["listeners"])
            .filter(is_served)
            .filter_map(|it| it["name"].as_str())
            .compact_collect();
        let listeners = members(&gateway["spec"]["listeners"]);
        let listeners = listeners.filter(move |it| it["name"].as_str().is_some_and(|name| served.contains(name)));
        listeners.filter_map(|listener| u16::try_from(listener["port"].as_u64()?).ok())
    });
    ports.compact_collect()
}

/// The members of a list; none of what is no list.
fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Whether a service was given all its ports.
pub(super) fn is_granted(service: &Service) -> bool {
    claims(service).is_subset(&granted(service))
}

pub(super) fn has_addresses(service: &Service) -> bool {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    status.is_some_and(|status| status.ingress.as_ref().is_some_and(|ingress| !ingress.is_empty()))
}

/// The ports that a service was given at the addresses of the nodes, as its status says.
fn granted(service: &Service) -> BTreeSet<Claim> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.into_iter().flat_map(|status| status.ingress.iter().flatten());
    ingress
        .filter_map(|one| Some((one.ip.as_deref()?.parse::<IpAddr>().ok()?.is_ipv6(), one)))
        .flat_map(|(is_v6, one)| one.ports.iter().flatten().map(move |port| (is_v6, port.protocol.clone(), port.port)))
        .compact_collect()
}

/// Everything about a node that load balancers depend on.
pub(super) fn facts(node: &Node) -> (bool, bool, Vec<(bool, IpAddr)>) {
    (is_excluded(node), api::node::is_ready(node), said(node).collect())
}

/// Whether each of the families is IPv6, in the order of the service.
fn families(service: &Service) -> Vec<bool> {
    let Some(spec) = &service.spec else { return Vec::new() };
    match spec.ip_families.as_deref() {
        Some(families) if !families.is_empty() => families.iter().map(|family| family == "IPv6").collect(),
        _ => vec![spec.cluster_ip.as_deref().is_some_and(|address| address.contains(':'))],
    }
}

fn is_excluded(node: &Node) -> bool {
    let taints = |spec: &NodeSpec| spec.taints.iter().flatten().any(|taint| taint.key == LEAVING);
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED))
        || node.metadata.deletion_timestamp.is_some()
        || node.spec.as_ref().is_some_and(taints)
}

/// The address of a family by which a node is reached, from outside if it has such a one. A node says so itself: what cannot be
/// the address of a machine is not believed, nor is what another node has.
fn address(node: &Node, is_v6: bool, owners: &BTreeMap<IpAddr, &str>, inside: &[Cidr]) -> Option<IpAddr> {
    let name = node.metadata.name.as_deref();
    let of = |wanted: bool| {
        let mut possible = said(node).filter(|(is_outer, _)| *is_outer == wanted).map(|(_, address)| address);
        possible.find(|address| {
            address.is_ipv6() == is_v6
                && api::cidr::is_global_unicast(*address)
                && !inside.iter().any(|range| range.contains(*address))
                && owners.get(address).copied() == name
        })
    };
    of(true).or_else(|| of(false))
}

/// The addresses that a node says it has, and whether each is one from outside.
fn said(node: &Node) -> impl Iterator<Item = (bool, IpAddr)> + '_ {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.filter_map(|said| {
        let is_outer = match said.type_.as_str() {
            "ExternalIP" => true,
            "InternalIP" => false,
            _ => return None,
        };
        Some((is_outer, said.address.parse().ok()?))
    })
}

/// Whose an address is that several nodes say they have: that of one who has it inside, then of the one that came first.
fn owners<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeMap<IpAddr, &'a str> {
    let mut claims: Vec<(bool, Option<Time>, &str, IpAddr)> = nodes
        .flat_map(|node| {
            let (since, name) = (&node.metadata.creation_timestamp, node.metadata.name());
            said(node).map(move |(is_outer, address)| (is_outer, since.clone(), name, address))
        })
        .collect();
    claims.compact_sort();
    let mut owners = BTreeMap::new();
    for (_, _, name, address) in claims {
        owners.entry(address).or_insert(name);
    }
    owners
}

fn nodes_with_endpoints<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> BTreeSet<String> {
    let endpoints = slices.flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| api::endpoint::is_ready(endpoint));
    ready.filter_map(|endpoint| endpoint.node_name.clone()).compact_collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn service(name: &str, second: u8, spec: Value) -> Service {
        let mut value = json!({
            "metadata": {"namespace": "default", "name": name, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
            "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "protocol": "TCP"}]},
        });
        value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        of(value)
    }

    fn node(name: &str, ready: &str, addresses: Value) -> Value {
        json!({"metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": ready}], "addresses": addresses}})
    }

    fn internal(addresses: &[&str]) -> Value {
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect()
    }

    fn addresses(spec: Value, nodes: &[Value], slices: &[Value]) -> String {
        let nodes: Vec<Node> = nodes.iter().cloned().map(of).collect();
        let slices: Vec<EndpointSlice> = slices.iter().cloned().map(of).collect();
        let inside = ["10.42.0.0/16", "10.43.0.0/16"].map(|range| range.parse().unwrap());
        let status = status(&service("web", 0, spec), nodes.iter(), slices.iter(), &inside);
        let ingress = status.ingress.unwrap_or_default();
        assert!(ingress.iter().all(|one| one.ip_mode.as_deref() == Some("VIP")));
        ingress.into_iter().filter_map(|one| one.ip).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn addresses_are_those_of_nodes_that_serve_in_the_families_of_the_service() {
        let both = node("a", "True", internal(&["192.0.2.1", "2001:db8::1"]));
        let four = node("b", "True", internal(&["192.0.2.2"]));
        let down = node("c", "False", internal(&["192.0.2.3"]));
        let outside =
            json!([{"type": "InternalIP", "address": "10.0.0.4"}, {"type": "ExternalIP", "address": "192.0.2.4"}]);
        let outside = node("d", "True", outside);
        let with = |node: &Value, path: &str, value: Value| {
            let mut node = node.clone();
            *node.pointer_mut(path).unwrap() = value;
            node
        };
        let excluded = with(&four, "/metadata", json!({"name": "e", "labels": {EXCLUDED: ""}}));
        let mut leaving = four.clone();
        leaving["spec"] = json!({"taints": [{"key": LEAVING, "effect": "NoSchedule"}]});
        for (families, nodes, expected) in [
            (json!(["IPv4"]), vec![&both, &four, &down], "192.0.2.1 192.0.2.2"),
            (json!(["IPv6"]), vec![&both, &four], "2001:db8::1"),
            (json!(["IPv6", "IPv4"]), vec![&four, &both], "2001:db8::1 192.0.2.1 192.0.2.2"),
            (json!(["IPv6"]), vec![&four], ""),
            (json!(["IPv4"]), vec![&outside], "192.0.2.4"),
            (json!(["IPv4"]), vec![&both, &excluded], "192.0.2.1"),
            (json!(["IPv4"]), vec![&both, &leaving], "192.0.2.1"),
            // Nobody is ready: rather these than none.
            (json!(["IPv4"]), vec![&down], "192.0.2.3"),
            (json!(["IPv4"]), vec![], ""),
        ] {
            let nodes: Vec<Value> = nodes.into_iter().cloned().collect();
            assert_eq!(addresses(json!({"ipFamilies": families}), &nodes, &[]), expected, "{families} {nodes:?}");
        }
    }

    #[test]
    fn security_a_node_does_not_get_the_address_of_another() {
        let says = |name: &str, inner: &str, outer: &str| {
            let addresses = json!([{"type": "InternalIP", "address": inner}, {"type": "ExternalIP", "address": outer}]);
            node(name, "True", addresses)
        };
        let excluded = |mut node: Value| {
            node["metadata"]["labels"] = json!({EXCLUDED: ""});
            node
        };
        let since = |mut node: Value, second: u8| {
            node["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
            node
        };
        let good = node("good", "True", internal(&["192.0.2.1"]));
        for (nodes, expected) in [
            // Of one that takes no part, from inside and outside, whoever came first.
            (vec![excluded(since(good.clone(), 2)), since(says("bad", "192.0.2.2", "192.0.2.1"), 1)], "192.0.2.2"),
            (
                vec![
                    excluded(since(says("good", "192.0.2.1", "203.0.113.1"), 1)),
                    since(says("bad", "192.0.2.2", "203.0.113.1"), 2),
                ],
                "192.0.2.2",
            ),
            (vec![excluded(since(good.clone(), 1)), since(node("bad", "True", internal(&["192.0.2.1"])), 2)], ""),
            // Nobody loses its own to one who says the same later.
            (
                vec![
                    since(says("bad", "192.0.2.2", "203.0.113.1"), 2),
                    since(says("good", "192.0.2.1", "203.0.113.1"), 1),
                ],
                "192.0.2.2 203.0.113.1",
            ),
            // Of pods and services.
            (vec![says("bad", "192.0.2.2", "10.43.0.10")], "192.0.2.2"),
            (vec![says("bad", "10.42.0.5", "10.42.0.5")], ""),
            // One's own twice is one's own.
            (vec![says("good", "192.0.2.2", "192.0.2.2")], "192.0.2.2"),
        ] {
            assert_eq!(addresses(json!({}), &nodes, &[]), expected, "{nodes:?}");
        }
    }

    #[test]
    fn a_local_policy_leaves_nodes_without_endpoints_out() {
        let nodes =
            ["a", "b", "c"].map(|name| node(name, "True", internal(&[&format!("192.0.2.{}", name.as_bytes()[0])])));
        let slice = |endpoints: Value| json!({"metadata": {}, "addressType": "IPv4", "endpoints": endpoints});
        let at = |node: &str, conditions: Value| json!({"addresses": ["10.0.0.1"], "nodeName": node, "conditions": conditions});
        let local = json!({"externalTrafficPolicy": "Local"});
        let slices = [
            slice(json!([at("a", json!({"ready": true})), at("b", json!({"ready": false}))])),
            slice(json!([at("c", json!({}))])),
        ];
        assert_eq!(addresses(local.clone(), &nodes, &slices), "192.0.2.97 192.0.2.99");
        assert_eq!(addresses(local, &nodes, &[]), "");
        assert_eq!(addresses(json!({}), &nodes, &slices), "192.0.2.97 192.0.2.98 192.0.2.99");
    }

    #[test]
    fn services_of_other_classes_are_left_alone() {
        for (spec, wanted, ours) in [
            (json!({}), true, true),
            (json!({"loadBalancerClass": CLASS}), true, true),
            (json!({"loadBalancerClass": "example.com/lb"}), false, false),
            (json!({"type": "NodePort"}), false, true),
            (json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false}), true, true),
        ] {
            let service = service("web", 0, spec.clone());
            assert_eq!((is_wanted(&service), is_ours(&service)), (wanted, ours), "{spec}");
        }
    }

    #[test]
    fn security_a_port_of_the_nodes_has_one_holder() {
        let reserved = Reserved { ports: [6443, 10250].into(), gateway: [8080].into() };
        let refused = |services: &[Service]| -> Vec<String> {
            let why = |service: &Service| {
                refusal(service, services.iter(), &reserved).map(|why| (pods::key(service), why.to_string()))
            };
            services.iter().filter_map(why).map(|(key, why)| format!("{key}: {why}")).collect()
        };
        let ports = |ports: Value| json!({"ports": ports});
        let with_address = |mut service: Service| {
            let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
            let ports = ports.map(|port| json!({"port": port.port, "protocol": "TCP"})).collect::<Vec<_>>();
            let ingress: LoadBalancerIngress = of(json!({"ip": "192.0.2.1", "ports": ports}));
            let balancer = LoadBalancerStatus { ingress: Some(vec![ingress]) };
            service.status.get_or_insert_default().load_balancer = Some(balancer);
            service
        };
        let old = service("old", 1, json!({}));
        let new = service("new", 2, json!({}));
        let taken = |name: &str, port: &str, holder: &str| {
            format!("default/{name}: port {port} of the nodes' addresses is used by {holder}")
        };
        for (services, expected) in [
            (vec![new.clone(), old.clone()], vec![taken("new", "80/TCP", "service default/old")]),
            // Who has it keeps it.
            (vec![with_address(new.clone()), old.clone()], vec![taken("old", "80/TCP", "service default/new")]),
            (vec![old.clone(), service("udp", 2, ports(json!([{"port": 80, "protocol": "UDP"}])))], vec![]),
            (vec![old.clone(), service("six", 2, json!({"ipFamilies": ["IPv6"]}))], vec![]),
            (vec![old.clone(), service("other", 2, json!({"loadBalancerClass": "example.com/lb"}))], vec![]),
            // Who exchanges the port it has for another's does not.
            (
                {
                    let mut moved = with_address(service("moved", 0, ports(json!([{"port": 8081}]))));
                    moved.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 80;
                    vec![with_address(new.clone()), moved]
                },
                vec![taken("moved", "80/TCP", "service default/new")],
            ),
            (
                {
                    let mut moved = with_address(service("moved", 0, ports(json!([{"port": 8081}]))));
                    moved.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 8080;
                    vec![moved]
                },
                vec![taken("moved", "8080/TCP", "the cluster's gateway")],
            ),
            // Who is refused holds nothing.
            (
                vec![
                    old.clone(),
                    service("two", 2, ports(json!([{"port": 80}, {"port": 81}]))),
                    service("three", 3, ports(json!([{"port": 81}]))),
                ],
                vec![taken("two", "80/TCP", "service default/old")],
            ),
            (
                vec![with_address(service("api", 0, ports(json!([{"port": 6443}]))))],
                vec![taken("api", "6443/TCP", "the nodes themselves")],
            ),
            (
                vec![service("web", 0, ports(json!([{"port": 8080}])))],
                vec![taken("web", "8080/TCP", "the cluster's gateway")],
            ),
            (vec![with_address(service("web", 0, ports(json!([{"port": 8080}]))))], vec![]),
        ] {
            assert_eq!(refused(&services), expected);
        }
    }

    #[test]
    fn the_gateway_has_ports_while_it_serves() {
        let ingress =
            |spec: Value, status: Value| -> Ingress { of(json!({"metadata": {}, "spec": spec, "status": status})) };
        let served = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let tls = json!({"tls": [{"hosts": ["a.example"]}]});
        for (ingresses, expected) in [
            (vec![], vec![]),
            (vec![ingress(json!({}), json!({})), ingress(json!({}), json!({"loadBalancer": {}}))], vec![]),
            (vec![ingress(json!({}), served.clone())], vec![80]),
            (vec![ingress(json!({}), served.clone()), ingress(tls.clone(), served.clone())], vec![80, 443]),
            (vec![ingress(json!({}), served.clone()), ingress(tls, json!({}))], vec![80]),
        ] {
            assert_eq!(gateway_ports((80, 443), ingresses.iter()).into_iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn security_gateways_keep_their_ports_at_the_nodes() {
        let classes = [
            json!({"metadata": {"name": "cox"}, "spec": {"controllerName": "cox.dev/gateway"}}),
            json!({"metadata": {"name": "other"}, "spec": {"controllerName": "example.com/gateway"}}),
        ];
        let gateway = |class: &str, address: &str, programmed: &str| {
            let conditions =
                json!([{"type": "Accepted", "status": "True"}, {"type": "Programmed", "status": programmed}]);
            json!({
                "spec": {"gatewayClassName": class, "listeners": [{"name": "web", "port": 8080}, {"name": "new", "port": 8081}]},
                "status": {"addresses": [{"value": address}], "listeners": [{"name": "web", "conditions": conditions}]},
            })
        };
        let nodes: Vec<Node> = vec![of(node("a", "True", internal(&["192.0.2.1", "2001:db8::1"])))];
        for (class, address, programmed, expected) in [
            ("cox", "192.0.2.1", "True", vec![8080]),
            ("cox", "2001:db8:0::1", "True", vec![8080]),
            ("cox", "192.0.2.1", "False", vec![]),
            // An address of its own, another's class, and what is no address at all.
            ("cox", "198.51.100.1", "True", vec![]),
            ("other", "192.0.2.1", "True", vec![]),
            ("cox", "gw.example", "True", vec![]),
        ] {
            let gateways = [gateway(class, address, programmed), json!({"spec": null})];
            let found = ports_of_gateways(&classes, &gateways, "cox.dev/gateway", nodes.iter());
            assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{class} {address} {programmed}");
        }
    }
}
