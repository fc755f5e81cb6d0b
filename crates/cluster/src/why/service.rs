//! The way of a connection to a Service, hop by hop: DNS, the Service's port, its endpoints, and the policies between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use api::meta::Meta as _;
use api::sort::CompactCollect as _;
use client::{Client, ListParams, object_key, split_key};
use k8s_openapi::api::core::v1::{Pod as PodObject, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use policy::decision::End;
use policy::world::{DNS, Pod, Protocol, World};
use proxy::endpoints::{Endpoint, Place, SERVICE_LABEL, choose, of_port};

use super::Cause;
use super::net::{Port, find, judge};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
const DNS_PORT: i32 = 53;
/// Endpoints that are spoken of one by one.
const MOST_ENDPOINTS: usize = 10;

/// What decides a connection to a Service.
pub(super) struct Facts {
    pub(super) world: World,
    /// By `namespace/name`.
    services: BTreeMap<String, Service>,
    /// By the key of their Service.
    slices: BTreeMap<String, Vec<Arc<EndpointSlice>>>,
    resolver: Resolver,
}

/// Whom the pod that connects asks for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolver {
    /// The cluster's DNS.
    Cluster,
    /// That of its node.
    Node,
    /// Those that its `dnsConfig` names.
    Own,
}

impl Resolver {
    fn of(pod: &PodObject) -> Self {
        let Some(spec) = &pod.spec else { return Self::Cluster };
        match (spec.dns_policy.as_deref(), spec.host_network) {
            (Some("None"), _) => Self::Own,
            (Some("Default"), _) | (None | Some("ClusterFirst"), Some(true)) => Self::Node,
            _ => Self::Cluster,
        }
    }
}

/// How the one who connects knows of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    ByName,
    ByAddress(IpAddr),
}

impl Facts {
    pub(super) async fn gather(client: &Client, mut world: World, source: &str) -> Result<Facts> {
        let all = ListParams::default();
        let (namespace, name) = split_key(source);
        let pod = client.namespaced::<PodObject>(namespace).get(name).await?;
        let services = client.all::<Service>().list(&all).await?.items;
        let mut slices: BTreeMap<String, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
        for slice in client.all::<EndpointSlice>().list(&all).await?.items {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get(SERVICE_LABEL)).cloned().unwrap_or_default();
            let service = format!("{}/{service}", slice.metadata.namespace());
            if service == dns()
                && let Some(servers) = Pod::of_dns(&slice)
            {
                world.pods.insert(format!("{}/endpoint", object_key(&slice)), Arc::new(servers));
            }
            slices.entry(service).or_default().push(Arc::new(slice));
        }
        let services = services.into_iter().map(|service| (object_key(&service), service)).collect();
        Ok(Facts { world, services, slices, resolver: Resolver::of(&pod) })
    }

    /// The Service that has an address.
    pub(super) fn service_at(&self, address: IpAddr) -> Option<String> {
        let has = |service: &Service| {
            let spec = service.spec.as_ref();
            let own = spec.into_iter().flat_map(|spec| {
                spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip).chain(spec.external_ips.iter().flatten())
            });
            let balancer = service.status.iter().filter_map(|status| status.load_balancer.as_ref());
            let balanced =
                balancer.flat_map(|balancer| balancer.ingress.iter().flatten()).filter_map(|it| it.ip.as_ref());
            own.chain(balanced).any(|text| text.parse::<IpAddr>() == Ok(address))
        };
        self.services.iter().find(|(_, service)| has(service)).map(|(key, _)| key.clone())
    }

    /// The endpoints of a port that connections of a pod go to, and all that there are.
    fn endpoints(
        &self,
        service: &str,
        port: &ServicePort,
        is_v6: bool,
        source: &Pod,
        local: bool,
    ) -> [Vec<Endpoint>; 2] {
        let slices = self.slices.get(service).into_iter().flatten();
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let all = of_port(slices, port.name.as_deref().unwrap_or_default(), protocol, is_v6);
        let node = self.world.nodes.get(&source.node);
        let zone = node.and_then(|node| node.labels.get(ZONE_LABEL)).map(String::as_str);
        let here: Vec<Endpoint> = match local {
            true => all.iter().filter(|one| one.node.as_deref() == Some(source.node.as_str())).cloned().collect(),
            false => all.clone(),
        };
        // Hints do not choose among those of one node.
        let place = if local { Place::default() } else { Place { node: &source.node, zone } };
        let chosen = choose(&here, place).into_iter().cloned().collect();
        [chosen, all]
    }

    /// The pod that has an address, alone or with the network of its node and nobody beside it.
    fn pod_at(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        let having: Vec<&Arc<Pod>> = self.world.pods.values().filter(|pod| pod.addresses.contains(&address)).collect();
        let only = having.first().copied().filter(|_| having.len() == 1);
        having.iter().copied().find(|pod| pod.has_network).or(only)
    }
}

fn dns() -> String {
    format!("{}/{}", DNS.0, DNS.1)
}

/// Somebody outside, whom DNS is asked for.
pub(super) fn elsewhere(facts: &Facts, from: &str, name: &str) -> Result<Cause> {
    let source = find(&facts.world, from)?;
    let mut cause = Cause::new(format!("{name} is no name of the cluster: ask about the address that it has"));
    match resolves(facts, source, &mut cause)? {
        Names::Forbidden => cause.summary = "network policies forbid it to ask the cluster's DNS".to_owned(),
        Names::Unanswered => cause.summary = "the cluster's DNS has no server that is ready".to_owned(),
        // The resolvers of the node are as good for such a name.
        Names::Unknown => cause.next.clear(),
        Names::Known => {}
    }
    Ok(cause)
}

/// Decides, never awaits.
pub(super) fn cause(facts: &Facts, from: &str, key: &str, asked: Asked, port: &Port) -> Result<Cause> {
    let source = find(&facts.world, from)?;
    let (namespace, name) = split_key(key);
    let describe = format!("cox kubectl describe service {name} -n {namespace}");
    let mut cause = Cause::new("nothing that the cluster decides is in the way");
    let Some(spec) = facts.services.get(key).map(|service| service.spec.clone().unwrap_or_default()) else {
        cause.summary = format!("there is no service {key}");
        return Ok(cause.then(format!("cox kubectl get services -n {namespace}")));
    };
    let mut names = Names::Known;
    if asked == Asked::ByName {
        names = resolves(facts, source, &mut cause)?;
        cause = cause.because(format!("DNS: {name}.{namespace}.svc {}", meaning(&spec)));
    }
    match names {
        Names::Known => {}
        Names::Forbidden => cause.summary = "network policies forbid it to ask the cluster's DNS".to_owned(),
        Names::Unknown => {
            cause.summary = "the pod does not ask the cluster's DNS, which alone knows this name".to_owned()
        }
        Names::Unanswered => cause.summary = "the cluster's DNS has no server that is ready".to_owned(),
    }
    if names != Names::Known {
        return Ok(cause);
    }
    if spec.type_.as_deref() == Some("ExternalName") {
        cause.summary =
            "the service is another name for somebody outside: ask about the address that it has".to_owned();
        return Ok(cause);
    }
    let is_headless = spec.cluster_ip.as_deref() == Some("None");
    let found = spec.ports.iter().flatten().find(|one| is_asked(one, port));
    let Some(found) = found.cloned().or_else(|| headless_port(&spec, port).filter(|_| is_headless)) else {
        let ports: Vec<String> = spec.ports.iter().flatten().map(described).collect();
        cause.summary = format!("service {key} has no port {port}");
        return Ok(cause.because(format!("its ports: {}", ports.join(", "))).then(describe));
    };
    let labels = facts.services.get(key).and_then(|service| service.metadata.labels.as_ref());
    cause = cause.because(match labels.and_then(|labels| labels.get(PROXY_NAME_LABEL)) {
        Some(proxy) => format!("service {key}: led to its endpoints by the proxy {proxy}, not by the cluster's own"),
        None if is_headless => format!("service {key}: headless, its name leads to the endpoints themselves"),
        None => format!("service {key}: port {}", described(&found)),
    });
    let Some(is_v6) = family(facts, key, &spec, source, asked) else {
        cause.summary = format!("pod {} has no address of the family that service {key} has", source.key());
        return Ok(cause.then(describe));
    };
    let local = spec.internal_traffic_policy.as_deref() == Some("Local") && !is_headless;
    let [chosen, all] = facts.endpoints(key, &found, is_v6, source, local);
    if chosen.is_empty() {
        return Ok(
            without_endpoints(facts, cause, key, &spec, &all, local.then_some(source.node.as_str())).then(describe)
        );
    }
    to_endpoints(facts, cause, source, (port.protocol, is_headless.then(|| port.number()).flatten()), &chosen)
}

/// What became of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Known,
    Forbidden,
    /// Whoever is asked does not know it.
    Unknown,
    Unanswered,
}

/// Whether the pod learns what a name of the cluster means.
fn resolves(facts: &Facts, source: &Pod, cause: &mut Cause) -> Result<Names> {
    let from = source.key();
    match facts.resolver {
        Resolver::Own => {
            cause.evidence.push(format!("DNS: {from} asks the servers that its dnsConfig names"));
            return Ok(Names::Known);
        }
        Resolver::Node => {
            cause.evidence.push(format!("DNS: {from} asks the resolvers of its node"));
            cause.next.push("set dnsPolicy to ClusterFirst, or to ClusterFirstWithHostNet with hostNetwork".to_owned());
            return Ok(Names::Unknown);
        }
        Resolver::Cluster => {}
    }
    let spec = facts.services.get(&dns()).and_then(|service| service.spec.as_ref());
    let is_port = |port: &&ServicePort| port.port == DNS_PORT && port.protocol.as_deref() == Some("UDP");
    let Some((spec, port)) = spec.and_then(|spec| Some((spec, spec.ports.iter().flatten().find(is_port)?))) else {
        cause.evidence.push(format!("DNS: there is no service {}: it cannot be said who answers", dns()));
        return Ok(Names::Known);
    };
    let Some(is_v6) = family(facts, &dns(), spec, source, Asked::ByName) else { return Ok(Names::Unanswered) };
    let [chosen, _] = facts.endpoints(&dns(), port, is_v6, source, false);
    let Some(server) = chosen.first() else {
        cause.evidence.push(format!("DNS: service {} has no endpoint that is ready", dns()));
        cause.next.push("cox logs dns".to_owned());
        return Ok(Names::Unanswered);
    };
    let target = End { address: server.addr, pod: facts.pod_at(server.addr).map(|pod| &**pod) };
    let judged = judge(&facts.world, source, target, Protocol::Udp, server.port)?;
    if !judged.is_denied {
        return Ok(Names::Known);
    }
    cause.evidence.extend(judged.evidence.into_iter().map(|line| format!("DNS: {line}")));
    cause.next.extend(judged.next);
    Ok(Names::Forbidden)
}

/// What DNS says of a Service.
fn meaning(spec: &ServiceSpec) -> String {
    match (spec.type_.as_deref(), spec.cluster_ip.as_deref()) {
        (Some("ExternalName"), _) => {
            format!("is another name for {}", spec.external_name.as_deref().unwrap_or_default())
        }
        (_, Some("None")) => "means the addresses of its endpoints".to_owned(),
        (_, single) => {
            let all = spec.cluster_ips.clone().filter(|all| !all.is_empty());
            let all = all.unwrap_or_else(|| single.map(str::to_owned).into_iter().collect());
            format!("is {}", all.join(", "))
        }
    }
}

fn is_asked(port: &ServicePort, asked: &Port) -> bool {
    let protocol = Protocol::parse(port.protocol.as_deref());
    let is_number = asked.number().is_some_and(|number| port.port == i32::from(number));
    protocol == Some(asked.protocol) && (is_number || port.name.as_deref() == Some(asked.name.as_str()))
}

/// Nobody translates ports of a headless service: any number is as good as those that it names.
fn headless_port(spec: &ServiceSpec, asked: &Port) -> Option<ServicePort> {
    asked.number()?;
    let same = |port: &&ServicePort| Protocol::parse(port.protocol.as_deref()) == Some(asked.protocol);
    spec.ports.iter().flatten().find(same).cloned()
}

fn described(port: &ServicePort) -> String {
    let name = port.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
    let target = match &port.target_port {
        Some(IntOrString::Int(target)) if *target != 0 => target.to_string(),
        Some(IntOrString::String(target)) if !target.is_empty() => target.clone(),
        _ => port.port.to_string(),
    };
    format!("{name}{}/{} leads to {target}", port.port, port.protocol.as_deref().unwrap_or("TCP"))
}

/// The family in which the pod and the Service can speak, the Service's first one before the other.
fn family(facts: &Facts, key: &str, spec: &ServiceSpec, source: &Pod, asked: Asked) -> Option<bool> {
    if let Asked::ByAddress(address) = asked {
        return Some(address.is_ipv6());
    }
    let addresses = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let mut families: Vec<bool> =
        addresses.filter_map(|text| text.parse::<IpAddr>().ok()).map(|address| address.is_ipv6()).collect();
    if families.is_empty() {
        let slices = facts.slices.get(key).into_iter().flatten();
        families =
            slices.map(|slice| slice.address_type == "IPv6").compact_collect::<BTreeSet<bool>>().into_iter().collect();
    }
    let has = |is_v6: &bool| source.addresses.iter().any(|address| address.is_ipv6() == *is_v6);
    match families.is_empty() {
        // Nobody there has any.
        true => source.addresses.first().map(IpAddr::is_ipv6),
        false => families.into_iter().find(has),
    }
}

fn without_endpoints(
    facts: &Facts,
    mut cause: Cause,
    key: &str,
    spec: &ServiceSpec,
    all: &[Endpoint],
    node: Option<&str>,
) -> Cause {
    cause.summary = format!("service {key} has no endpoint that takes connections");
    let ready = all.iter().filter(|endpoint| endpoint.is_ready).count();
    if let Some(node) = node.filter(|_| ready > 0) {
        return cause.because(format!(
            "its internalTrafficPolicy is Local, and none of its {ready} ready endpoints is on node {node}"
        ));
    }
    cause = cause.because(format!("of {} endpoints of this port {ready} are ready", all.len()));
    let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else {
        return cause.because("it has no selector: whoever made it writes its endpoints");
    };
    let (namespace, _) = split_key(key);
    let selects = |pod: &Pod| selector.iter().all(|(label, value)| pod.labels.get(label) == Some(value));
    let selected: Vec<&str> =
        facts.world.pods_in(namespace).filter(|(_, pod)| selects(pod)).map(|(_, pod)| pod.name.as_str()).collect();
    let text: Vec<String> = selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
    let text = text.join(",");
    match selected.first() {
        None => cause.because(format!("its selector {text} selects no pod")),
        Some(first) => {
            let names = selected.iter().take(MOST_ENDPOINTS).copied().collect::<Vec<_>>().join(", ");
            cause
                .because(format!("its selector {text} selects {} pods, such as {names}", selected.len()))
                .then(format!("cox why pod/{first} -n {namespace}"))
        }
    }
}

/// The last step: to each endpoint, on its own port or, where nobody translates, on that which is asked for.
fn to_endpoints(
    facts: &Facts,
    mut cause: Cause,
    source: &Pod,
    (protocol, number): (Protocol, Option<u16>),
    endpoints: &[Endpoint],
) -> Result<Cause> {
    let mut denied = 0;
    for (at, endpoint) in endpoints.iter().enumerate() {
        let target = End { address: endpoint.addr, pod: facts.pod_at(endpoint.addr).map(|pod| &**pod) };
        let port = number.unwrap_or(endpoint.port);
        let judged = judge(&facts.world, source, target, protocol, port)?;
        denied += usize::from(judged.is_denied);
        if at < MOST_ENDPOINTS {
            let to = SocketAddr::new(endpoint.addr, port);
            cause.evidence.extend(judged.evidence.into_iter().map(|line| format!("endpoint {to}: {line}")));
            let is_new = |step: &String| !cause.next.contains(step);
            let steps: Vec<String> = judged.next.into_iter().filter(is_new).collect();
            cause.next.extend(steps);
        }
    }
    if let Some(more) = endpoints.len().checked_sub(MOST_ENDPOINTS).filter(|more| *more > 0) {
        cause = cause.because(format!("{more} more endpoints"));
    }
    if let (Some(number), Some(endpoint)) = (number, endpoints.first())
        && endpoint.port != number
    {
        let (is, text) = (endpoint.port, "nobody translates the ports of a headless service");
        cause = cause.because(format!("{text}: its endpoints are said to listen on {is}, not on {number}"));
    }
    match (denied, endpoints.len()) {
        (0, _) => {}
        (some, all) if some == all => cause.summary = "network policies forbid it".to_owned(),
        (some, all) => cause.summary = format!("network policies forbid it at {some} of {all} endpoints"),
    }
    Ok(cause)
}

#[cfg(test)]
mod tests {
    use policy::world::Policy;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, address: &str) -> (String, Arc<Pod>) {
        let object = json!({"metadata": {"namespace": "default", "name": name, "labels": {"app": name}},
            "spec": {"nodeName": "node-1", "containers": []}, "status": {"podIP": address}});
        let pod = Pod::new(&api::codec::from_value(&object).unwrap());
        (pod.key(), Arc::new(pod))
    }

    fn service(key: &str, spec: Value) -> (String, Service) {
        let (namespace, name) = split_key(key);
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
        (key.to_owned(), serde_json::from_value(object).unwrap())
    }

    fn slice(key: &str, port: Value, endpoints: Value) -> (String, Vec<Arc<EndpointSlice>>) {
        let (namespace, name) = split_key(key);
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "addressType": "IPv4",
            "ports": [port], "endpoints": endpoints});
        (key.to_owned(), vec![Arc::new(serde_json::from_value(object).unwrap())])
    }

    fn facts() -> Facts {
        let web = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "selector": {"app": "b"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]});
        let (http, dns_port) =
            (json!({"name": "http", "port": 8080}), json!({"name": "dns", "port": 53, "protocol": "UDP"}));
        let at = |address: &str, node: &str| json!({"addresses": [address], "nodeName": node});
        let servers = slice(&dns(), dns_port.clone(), json!([at("10.42.0.1", "node-1")]));
        let mut pods: BTreeMap<String, Arc<Pod>> =
            [pod("a", "10.42.0.2"), pod("b", "10.42.0.3"), pod("c", "10.42.0.4")].into();
        pods.insert("kube-system/dns/endpoint".into(), Arc::new(Pod::of_dns(&servers.1[0]).unwrap()));
        Facts {
            world: World { pods, ..World::default() },
            services: [
                service("default/web", web.clone()),
                service("default/bare", json!({"clusterIP": "None", "ports": [{"name": "http", "port": 80}]})),
                service("default/out", json!({"type": "ExternalName", "externalName": "www.example.com"})),
                service(&dns(), json!({"clusterIP": "10.43.0.10", "ports": [dns_port]})),
            ]
            .into(),
            slices: [
                slice("default/web", http.clone(), json!([at("10.42.0.3", "node-1"), at("10.42.0.4", "node-2")])),
                slice("default/bare", http, json!([at("10.42.0.3", "node-1")])),
                servers,
            ]
            .into(),
            resolver: Resolver::Cluster,
        }
    }

    fn said(facts: &Facts, service: &str, port: &str) -> String {
        let port = Port { name: port.to_owned(), protocol: Protocol::Tcp };
        cause(facts, "default/a", &format!("default/{service}"), Asked::ByName, &port).unwrap().render("it")
    }

    fn isolate(facts: &mut Facts, name: &str, spec: Value) {
        let object = json!({"metadata": {"namespace": "default", "name": name}, "spec": spec});
        let policy = Policy::new(&serde_json::from_value(object).unwrap());
        facts.world.policies.insert(policy.key(), Arc::new(policy));
    }

    #[test]
    fn every_hop_is_told() {
        let facts = facts();
        for port in ["80", "http"] {
            let text = said(&facts, "web", port);
            for line in [
                "it: nothing that the cluster decides is in the way",
                "DNS: web.default.svc is 10.43.0.9",
                "service default/web: port http 80/TCP leads to 8080",
                "endpoint 10.42.0.3:8080: ingress of default/b: no policy selects it",
                "endpoint 10.42.0.4:8080: egress of default/a: no policy selects it",
            ] {
                assert!(text.contains(line), "{line} in\n{text}");
            }
        }
        assert!(said(&facts, "gone", "80").contains("there is no service default/gone"));
        let text = said(&facts, "web", "81");
        assert!(text.contains("has no port 81/TCP") && text.contains("its ports: http 80/TCP leads to 8080"), "{text}");
        assert!(said(&facts, "out", "80").contains("is another name for www.example.com"));
        let text = said(&facts, "bare", "80");
        assert!(text.contains("headless") && text.contains("said to listen on 8080, not on 80"), "{text}");
        assert_eq!(facts.service_at("10.43.0.9".parse().unwrap()).as_deref(), Some("default/web"));
        assert_eq!(facts.service_at("10.43.0.99".parse().unwrap()), None);
    }

    #[test]
    fn the_hop_that_blocks_is_the_answer() {
        // Some endpoints, then all.
        let mut blocked = facts();
        let closed = |app: &str| json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"]});
        isolate(&mut blocked, "b", closed("b"));
        let text = said(&blocked, "web", "80");
        assert!(text.contains("forbid it at 1 of 2 endpoints") && text.contains("describe networkpolicy b -n default"));
        isolate(&mut blocked, "c", closed("c"));
        assert!(said(&blocked, "web", "80").starts_with("it: network policies forbid it\n"));
        // Names: a pod that may send to its service only, and one that asks elsewhere.
        let mut mute = facts();
        let to_web = json!([{"to": [{"podSelector": {}}]}]);
        isolate(
            &mut mute,
            "mute",
            json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"], "egress": to_web}),
        );
        let text = said(&mute, "web", "80");
        assert!(
            text.contains("forbid it to ask the cluster's DNS") && text.contains("DNS: egress of default/a"),
            "{text}"
        );
        let to_dns = json!([{"to": [{"podSelector": {}}]}, {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}]);
        isolate(
            &mut mute,
            "mute",
            json!({"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Egress"], "egress": to_dns}),
        );
        assert!(said(&mute, "web", "80").contains("nothing that the cluster decides is in the way"));
        let elsewhere = Facts { resolver: Resolver::Node, ..facts() };
        assert!(said(&elsewhere, "web", "80").contains("does not ask the cluster's DNS"));
        let mut silent = facts();
        silent.slices.remove(&dns());
        assert!(said(&silent, "web", "80").contains("the cluster's DNS has no server that is ready"));
        // Endpoints: on other nodes only, none ready, none at all.
        let mut local = facts();
        local.services.get_mut("default/web").unwrap().spec.as_mut().unwrap().internal_traffic_policy =
            Some("Local".into());
        assert!(said(&local, "web", "80").contains("nothing that the cluster decides"));
        let far = json!([{"addresses": ["10.42.0.4"], "nodeName": "node-2"}]);
        local.slices.extend([slice("default/web", json!({"name": "http", "port": 8080}), far)]);
        let text = said(&local, "web", "80");
        assert!(text.contains("internalTrafficPolicy is Local") && text.contains("is on node node-1"), "{text}");
        let mut none = facts();
        none.slices.remove("default/web");
        let text = said(&none, "web", "80");
        assert!(text.contains("selects 1 pods, such as b") && text.contains("cox why pod/b -n default"), "{text}");
        // Families that do not meet.
        let mut six = facts();
        let spec = six.services.get_mut("default/web").unwrap().spec.as_mut().unwrap();
        (spec.cluster_ip, spec.cluster_ips) = (Some("fd43::9".into()), Some(vec!["fd43::9".into()]));
        assert!(said(&six, "web", "80").contains("has no address of the family"));
    }
}
