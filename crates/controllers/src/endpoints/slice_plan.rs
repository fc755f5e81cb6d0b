//! Which EndpointSlices a Service needs, with as few writes as possible.
//!
//! Endpoints stay in the slice they are in. What is new fills slices that change anyway, then slices with room, then
//! new ones; empty slices are deleted. One slice holds one address family and one set of ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::{Node, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::measure::Changes;
use super::topology::{self, Zones};
use super::{HEADLESS, hostname, ip_of, is_headless, target_port};
use crate::owners::controller_reference;
use crate::pods;

pub(super) const SERVICE_NAME: &str = api::endpoint::SERVICE_LABEL;
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// Its older name, which counts more.
const TOPOLOGY_AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const PREFER_SAME_NODE: &str = "PreferSameNode";
/// Preferences that become hints.
const CLOSE: [&str; 3] = ["PreferClose", "PreferSameZone", PREFER_SAME_NODE];
/// `--max-endpoints-per-slice`.
pub(super) const CAPACITY: usize = 100;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<String>,
}

impl Plan {
    /// What carrying it out changes of the slices at hand.
    pub(super) fn changes(&self, present: &[Arc<EndpointSlice>]) -> Changes {
        let is_replaced = |slice: &&Arc<EndpointSlice>| {
            let name = &slice.metadata.name;
            self.update.iter().any(|other| other.metadata.name == *name)
                || self.delete.iter().any(|other| Some(other) == name.as_ref())
        };
        Changes::between(
            present.iter().filter(is_replaced).map(|slice| &**slice),
            self.create.iter().chain(&self.update),
        )
    }
}

/// What a Service prefers, if it is one of upstream's heuristics. The older annotation for zones of equal load wins over it.
pub(super) fn traffic_distribution(service: &Service) -> Option<&str> {
    let wanted = service.spec.as_ref()?.traffic_distribution.as_deref();
    wanted.filter(|wanted| CLOSE.contains(wanted) && !spreads_by_zone(service))
}

/// Whether endpoints are to be spread over zones by load.
pub(super) fn spreads_by_zone(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| all.get(TOPOLOGY_AWARE_HINTS).or_else(|| all.get(TOPOLOGY_MODE)));
    matches!(mode.map(String::as_str), Some("Auto" | "auto"))
}

/// Hints for all ready endpoints of a family, or for none.
fn spread<'a>(endpoints: impl Iterator<Item = &'a mut Endpoint>, zones: &Zones) {
    let mut ready: Vec<&mut Endpoint> = endpoints.filter(|endpoint| api::endpoint::is_ready(endpoint)).collect();
    let at: Vec<Option<&str>> = ready.iter().map(|endpoint| endpoint.zone.as_deref()).collect();
    let Some(hints) = topology::allocate(&at, zones) else { return };
    for (endpoint, name) in ready.iter_mut().zip(hints) {
        endpoint.hints = Some(EndpointHints { for_nodes: None, for_zones: Some(vec![ForZone { name }]) });
    }
}

/// Where the traffic to an endpoint should come from.
pub(super) fn zone_of(node: &Node) -> Option<&String> {
    node.metadata.labels.as_ref()?.get(ZONE)
}

fn hints(preference: Option<&str>, ready: bool, zone: Option<&str>, node: Option<&str>) -> Option<EndpointHints> {
    let preference = preference.filter(|_| ready)?;
    let for_zones = zone.map(|name| vec![ForZone { name: name.into() }]);
    let for_nodes = node.filter(|_| preference == PREFER_SAME_NODE).map(|name| vec![ForNode { name: name.into() }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

/// Family and ports: what all endpoints of a slice share.
type Group = (bool, Vec<EndpointPortKey>);
type EndpointPortKey = (Option<String>, Option<i32>, String, Option<String>);

/// `present` are the slices this controller manages for the Service.
pub(super) fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    present: &[Arc<EndpointSlice>],
    node: impl Fn(&str) -> Option<Arc<Node>>,
    zones: &Zones,
) -> Plan {
    let spec = service.spec.clone().unwrap_or_default();
    let mut wanted: BTreeMap<Group, BTreeMap<String, Endpoint>> = BTreeMap::new();
    for family in families(&spec) {
        let ipv6 = family == "IPv6";
        for pod in pods {
            if pods::is_finished(pod) {
                continue;
            }
            let Some(ip) = ip_of(pod, ipv6) else { continue };
            let ports = ports(pod, &spec);
            let zone = node(pods::node_name(pod)).and_then(|node| zone_of(&node).cloned());
            let endpoints = wanted.entry((ipv6, ports)).or_default();
            endpoints.insert(identity(&ip, pod), endpoint(pod, ip, service, &spec, zone));
        }
        // A Service without endpoints still has one slice, so that followers know there are none.
        if !wanted.keys().any(|(is_ipv6, _)| *is_ipv6 == ipv6) {
            wanted.entry((ipv6, Vec::new())).or_default();
        }
    }
    if spreads_by_zone(service) {
        for ipv6 in [false, true] {
            let groups = wanted.iter_mut().filter(|(group, _)| group.0 == ipv6);
            spread(groups.flat_map(|(_, endpoints)| endpoints.values_mut()), zones);
        }
    }
    let labels = labels(service, &spec);
    let mut plan = Plan::default();
    let mut slices: BTreeMap<Group, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in present {
        slices.entry(group_of(slice)).or_default().push(slice);
    }
    for (group, mut endpoints) in wanted {
        let mut mine: Vec<EndpointSlice> = slices.remove(&group).unwrap_or_default().into_iter().cloned().collect();
        mine.compact_sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
        let originals = mine.clone();
        let nothing_wanted = endpoints.is_empty();
        for slice in &mut mine {
            let kept = slice.endpoints.iter().flatten().filter_map(|old| endpoints.remove(&identity_of(old)));
            slice.endpoints = Some(kept.collect());
            slice.metadata.labels = Some(labels.clone());
        }
        fill(&mut mine, &originals, &mut endpoints);
        for (number, (slice, original)) in mine.into_iter().zip(&originals).enumerate() {
            let empty = slice.endpoints.as_ref().is_none_or(Vec::is_empty);
            if empty && !(nothing_wanted && number == 0) {
                plan.delete.push(slice.metadata.name.unwrap_or_default());
            } else if !same(&slice, original) {
                plan.update.push(slice);
            }
        }
        if nothing_wanted && originals.is_empty() {
            plan.create.push(new_slice(service, &group, Vec::new(), labels.clone()));
        }
        let rest: Vec<Endpoint> = endpoints.into_values().collect();
        for chunk in rest.chunks(CAPACITY) {
            plan.create.push(new_slice(service, &group, chunk.to_vec(), labels.clone()));
        }
    }
    // Groups nobody wants any more.
    plan.delete.extend(slices.into_values().flatten().filter_map(|slice| slice.metadata.name.clone()));
    plan
}

/// Puts new endpoints into slices that are written anyway, and into others only if that saves a new slice.
fn fill(slices: &mut [EndpointSlice], originals: &[EndpointSlice], endpoints: &mut BTreeMap<String, Endpoint>) {
    for changed_only in [true, false] {
        for (slice, original) in slices.iter_mut().zip(originals) {
            if changed_only && same(slice, original) {
                continue;
            }
            let list = slice.endpoints.get_or_insert_default();
            while list.len() < CAPACITY {
                let Some((_, endpoint)) = endpoints.pop_first() else { break };
                list.push(endpoint);
            }
        }
    }
}

fn same(left: &EndpointSlice, right: &EndpointSlice) -> bool {
    left.endpoints.clone().unwrap_or_default() == right.endpoints.clone().unwrap_or_default()
        && left.metadata.labels == right.metadata.labels
}

fn families(spec: &ServiceSpec) -> Vec<String> {
    match spec.ip_families.as_ref().filter(|families| !families.is_empty()) {
        Some(families) => families.clone(),
        None if spec.cluster_ip.as_deref().is_some_and(|address| address.contains(':')) => vec!["IPv6".into()],
        None => vec!["IPv4".into()],
    }
}

fn ports(pod: &Pod, spec: &ServiceSpec) -> Vec<EndpointPortKey> {
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        let number = target_port(pod, port)?;
        let name = Some(port.name.clone().unwrap_or_default());
        Some((name, Some(number), port.protocol.clone().unwrap_or_else(|| "TCP".into()), port.app_protocol.clone()))
    });
    let mut ports: Vec<_> = ports.collect();
    ports.compact_sort();
    ports
}

fn endpoint(pod: &Pod, ip: String, service: &Service, spec: &ServiceSpec, zone: Option<String>) -> Endpoint {
    let serving = pods::is_ready(pod);
    let terminating = pods::is_terminating(pod);
    let ready = spec.publish_not_ready_addresses == Some(true) || (serving && !terminating);
    let node_name = Some(pods::node_name(pod).to_owned()).filter(|name| !name.is_empty());
    Endpoint {
        hints: hints(traffic_distribution(service), ready, zone.as_deref(), node_name.as_deref()),
        addresses: vec![ip],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(pod, service).cloned(),
        node_name,
        target_ref: Some(pods::target(pod)),
        zone,
        ..Endpoint::default()
    }
}

fn identity(ip: &str, pod: &Pod) -> String {
    format!("{ip}/{}", pod.metadata.uid())
}

fn identity_of(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref()).unwrap_or_default();
    format!("{}/{uid}", endpoint.addresses.first().map(String::as_str).unwrap_or_default())
}

fn group_of(slice: &EndpointSlice) -> Group {
    let ports = slice.ports.iter().flatten().map(|port| {
        let name = Some(port.name.clone().unwrap_or_default());
        (name, port.port, port.protocol.clone().unwrap_or_else(|| "TCP".into()), port.app_protocol.clone())
    });
    let mut ports: Vec<_> = ports.collect();
    ports.compact_sort();
    (slice.address_type == "IPv6", ports)
}

fn labels(service: &Service, spec: &ServiceSpec) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.into(), service.metadata.name().to_owned());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    if is_headless(spec) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}

fn new_slice(
    service: &Service,
    (ipv6, ports): &Group,
    endpoints: Vec<Endpoint>,
    labels: BTreeMap<String, String>,
) -> EndpointSlice {
    let ports: Vec<EndpointPort> = ports
        .iter()
        .cloned()
        .map(|(name, port, protocol, app_protocol)| EndpointPort { name, port, protocol: Some(protocol), app_protocol })
        .collect();
    let name = service.metadata.name();
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: if *ipv6 { "IPv6".into() } else { "IPv4".into() },
        endpoints: Some(endpoints),
        ports: (!ports.is_empty()).then_some(ports),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServicePort;

    use super::*;
    use crate::pods::tests::{Builder, at};

    fn service() -> Service {
        let port = ServicePort { port: 80, ..ServicePort::default() };
        let mut service = Service {
            spec: Some(ServiceSpec { ports: Some(vec![port]), ..ServiceSpec::default() }),
            ..Service::default()
        };
        service.metadata.name = Some("web".into());
        service
    }

    fn pod(number: usize) -> Arc<Pod> {
        let mut pod = Builder::new(&format!("p{number:03}")).on("n1").ready(at(0)).0;
        pod.status.get_or_insert_default().pod_ip = Some(format!("10.0.{}.{}", number / 250, number % 250));
        Arc::new(pod.into())
    }

    fn named(mut slice: EndpointSlice, name: &str) -> Arc<EndpointSlice> {
        slice.metadata.name = Some(name.into());
        Arc::new(slice)
    }

    fn count(slice: &EndpointSlice) -> usize {
        slice.endpoints.as_ref().map_or(0, Vec::len)
    }

    /// Others are refused.
    #[test]
    fn addresses_are_written_as_slices_have_them() {
        for (family, address, expected) in
            [("IPv4", "10.0.0.1", "10.0.0.1"), ("IPv6", "FD00::0A", "fd00::a"), ("IPv4", "::ffff:10.0.0.1", "10.0.0.1")]
        {
            let mut pod = Builder::new("p").on("n1").ready(at(0)).0;
            pod.status.get_or_insert_default().pod_ip = Some(address.to_owned());
            let mut service = service();
            service.spec.get_or_insert_default().ip_families = Some(vec![family.to_owned()]);
            let pod: Arc<Pod> = Arc::new(pod.into());
            let made = plan(&service, &[pod], &[], |_| None, &Zones::default()).create;
            assert_eq!(made[0].address_type, family);
            assert_eq!(made[0].endpoints.as_ref().unwrap()[0].addresses, [expected]);
        }
    }

    #[test]
    fn a_service_without_pods_has_one_empty_slice() {
        let plan1 = plan(&service(), &[], &[], |_| None, &Zones::default());
        assert_eq!(plan1.create.len(), 1);
        assert_eq!((count(&plan1.create[0]), plan1.create[0].ports.clone()), (0, None));
        let present = [named(plan1.create[0].clone(), "s1")];
        assert_eq!(
            plan(&service(), &[], &present, |_| None, &Zones::default()),
            Plan::default(),
            "and is left alone afterwards"
        );
        let filled = plan(&service(), &[pod(1)], &present, |_| None, &Zones::default());
        assert_eq!((filled.create.len(), filled.delete.clone()), (1, vec!["s1".to_owned()]));
    }

    #[test]
    fn slices_are_filled_before_new_ones_are_made() {
        let pods: Vec<_> = (0..150).map(pod).collect();
        let first = plan(&service(), &pods, &[], |_| None, &Zones::default());
        assert_eq!(first.create.iter().map(count).collect::<Vec<_>>(), [100, 50]);
        let present: Vec<_> =
            first.create.into_iter().enumerate().map(|(number, slice)| named(slice, &format!("s{number}"))).collect();
        assert_eq!(
            plan(&service(), &pods, &present, |_| None, &Zones::default()),
            Plan::default(),
            "running twice changes nothing"
        );

        let pods: Vec<_> = (10..170).map(pod).collect();
        let next = plan(&service(), &pods, &present, |_| None, &Zones::default());
        assert!(next.create.is_empty() && next.delete.is_empty());
        assert_eq!(next.update.iter().map(count).sum::<usize>(), 160);
    }

    #[test]
    fn a_terminating_pod_serves_but_is_not_ready() {
        let mut dying = Pod::clone(&pod(1));
        dying.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
        let created = plan(&service(), &[Arc::new(dying)], &[], |_| None, &Zones::default()).create;
        let conditions = created[0].endpoints.as_ref().unwrap()[0].conditions.clone().unwrap();
        assert_eq!(
            (conditions.ready, conditions.serving, conditions.terminating),
            (Some(false), Some(true), Some(true))
        );
    }

    #[test]
    fn the_older_annotation_counts_more() {
        for (older, newer, expected) in [
            (None, None, false),
            (None, Some("Auto"), true),
            (None, Some("Disabled"), false),
            (Some("auto"), None, true),
            (Some("Disabled"), Some("Auto"), false),
            (Some("Auto"), Some("Disabled"), true),
        ] {
            let mut service = service();
            let given = [(TOPOLOGY_AWARE_HINTS, older), (TOPOLOGY_MODE, newer)];
            let given = given.into_iter().filter_map(|(name, mode)| Some((name.to_owned(), mode?.to_owned())));
            service.metadata.annotations = Some(given.collect());
            assert_eq!(spreads_by_zone(&service), expected, "{older:?} {newer:?}");
        }
    }

    #[test]
    fn endpoints_are_spread_over_zones_by_load() {
        let mut service = service();
        service.metadata.annotations = Some([(TOPOLOGY_MODE.to_owned(), "Auto".to_owned())].into());
        let node = |name: &str, zone: &str| -> Arc<Node> {
            Arc::new(
                api::codec::from_value(&serde_json::json!({
                    "metadata": {"name": name, "labels": {ZONE: zone}},
                    "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
                }))
                .unwrap(),
            )
        };
        let nodes = [node("n1", "z1"), node("n2", "z2")];
        let zones = Zones::of(nodes.iter().map(|node| &**node));
        let pods: Vec<Arc<Pod>> = (1..=4)
            .map(|number| {
                let mut pod = Pod::clone(&pod(number));
                pod.spec.get_or_insert_default().node_name = Some(if number == 4 { "n2" } else { "n1" }.into());
                Arc::new(pod)
            })
            .collect();
        let find = |name: &str| nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name)).cloned();
        let made = plan(&service, &pods, &[], find, &zones).create;
        let mut hints: Vec<String> = made
            .iter()
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .map(|endpoint| endpoint.hints.as_ref().unwrap().for_zones.as_ref().unwrap()[0].name.clone())
            .collect();
        hints.sort();
        assert_eq!(hints, ["z1", "z1", "z2", "z2"]);
        let none = plan(&service, &pods[..3], &[], find, &zones).create;
        assert!(
            none.iter().flat_map(|slice| slice.endpoints.iter().flatten()).all(|endpoint| endpoint.hints.is_none())
        );
    }

    #[test]
    fn a_preference_for_near_endpoints_becomes_hints() {
        for (preference, mode, ready, expected) in [
            (None, None, true, (None, None)),
            (Some("PreferClose"), None, true, (Some("z1"), None)),
            (Some("PreferSameZone"), None, true, (Some("z1"), None)),
            (Some("PreferSameNode"), None, true, (Some("z1"), Some("n1"))),
            (Some("PreferSameNode"), None, false, (None, None)),
            (Some("PreferClose"), Some("Auto"), true, (None, None)),
            (Some("example.com/other"), None, true, (None, None)),
        ] {
            let mut service = service();
            service.spec.as_mut().unwrap().traffic_distribution = preference.map(str::to_owned);
            service.metadata.annotations = mode.map(|mode| [(TOPOLOGY_MODE.to_owned(), mode.to_owned())].into());
            let found = hints(traffic_distribution(&service), ready, Some("z1"), Some("n1")).unwrap_or_default();
            let zone = found.for_zones.map(|zones| zones[0].name.clone());
            let node = found.for_nodes.map(|nodes| nodes[0].name.clone());
            assert_eq!((zone.as_deref(), node.as_deref()), expected, "{preference:?} {mode:?} {ready}");
        }
    }

    #[test]
    fn a_plan_knows_how_many_endpoints_it_changes() {
        let pods: Vec<_> = (0..3).map(pod).collect();
        let first = plan(&service(), &pods, &[], |_| None, &Zones::default());
        assert_eq!(first.changes(&[]), Changes { added: 3, updated: 0, removed: 0 });
        let present = [named(first.create[0].clone(), "s")];
        let mut less = pods[1..].to_vec();
        let mut unready = Pod::clone(&less[0]);
        unready.status.as_mut().unwrap().conditions = None;
        less[0] = Arc::new(unready);
        less.push(pod(7));
        let next = plan(&service(), &less, &present, |_| None, &Zones::default());
        assert_eq!(next.changes(&present), Changes { added: 1, updated: 1, removed: 1 });
    }
}
