//! Serving certificates of kubelets that have joined: approved when they are for the node that asks, and for nobody else.
//!
//! Upstream leaves this to the cluster's administrator, since a certificate for another's address would let a node pass for
//! it with everybody who trusts the cluster's authority. Here every address must be one that the node has registered with and that
//! belongs to nobody else of the cluster: no other node, no API server or what stands before it, no service, no load balancer, no
//! range of pods or services. The same holds for names. A request that asks for more stays pending, for a person to decide, and the
//! log says whose the address is: a service that names a node's address in `externalIPs` holds up that node's certificate, since from
//! here it looks like a node that claims the address of a service.
//!
//! A node may still say that it has an address of a machine which has nothing to do with the cluster. Nobody there trusts this
//! authority, and of those who do nobody goes to that address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::cidr::{self, Cidr};
use api::meta::Meta as _;
use client::{Client, Informer, InformerFactory, ListParams};
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rcgen::{CertificateSigningRequestParams, SanType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SIGNER: &str = "kubernetes.io/kubelet-serving";
const USER_PREFIX: &str = "system:node:";

/// What no node gets a certificate for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved {
    /// Of pods, services and the nodes of this machine.
    pub(crate) ranges: Vec<Cidr>,
    /// Those that the certificates of API servers are for: whoever has one for them passes for such a server.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) names: Vec<String>,
}

/// Who has which address, as far as the API knows.
struct Held {
    nodes: Vec<Arc<Node>>,
    services: Vec<Arc<Service>>,
    servers: Vec<Arc<EndpointSlice>>,
}

/// Approves until `stop`.
pub(crate) async fn run(client: Client, reserved: Reserved, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let requests: Informer<CertificateSigningRequest> = informers.informer();
    let nodes: Informer<Node> = informers.informer();
    let services: Informer<Service> = informers.informer();
    let servers: Informer<EndpointSlice> =
        informers.namespaced("default", ListParams::labels("kubernetes.io/service-name=kubernetes"));
    let (changed, mut changes) = watch::channel(());
    let [by_nodes, by_services] = [changed.clone(), changed.clone()];
    requests.subscribe(move |_| changed.send_replace(()));
    nodes.subscribe(move |_| by_nodes.send_replace(()));
    services.subscribe(move |_| by_services.send_replace(()));
    let mut reported: BTreeSet<(String, Refusal)> = BTreeSet::new();
    informers.start(stop.child_token());
    // An address whose holder is not known yet is not free.
    let known = async {
        nodes.synced().await;
        services.synced().await;
        servers.synced().await;
    };
    tokio::select! {
        () = known => {}
        () = stop.cancelled() => return Ok(()),
    }
    loop {
        changes.mark_unchanged();
        let held = Held { nodes: nodes.list(), services: services.list(), servers: servers.list() };
        let pending = requests.list();
        reported.retain(|(name, _)| pending.iter().any(|request| request.metadata.name.as_ref() == Some(name)));
        for request in pending.iter() {
            match decide(request, &held, &reserved) {
                Ok(()) => {
                    // It is seen again when anything changes; another server of the cluster may have been quicker.
                    if let Err(error) = approve(&client, request).await {
                        tracing::warn!(error = format!("{error:#}"), "serving certificate not approved");
                    }
                }
                Err(Refusal::NotForUs) => {}
                Err(refusal) => {
                    let name = request.metadata.name().to_owned();
                    if reported.insert((name.clone(), refusal.clone())) {
                        tracing::warn!(request = name, why = %refusal, "serving certificate waits for `kubectl certificate approve`");
                    }
                }
            }
        }
        tokio::select! {
            change = changes.changed() => change?,
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn approve(client: &Client, request: &CertificateSigningRequest) -> Result<()> {
    let name = request.metadata.name();
    let now = Some(Time(Timestamp::now()));
    let mut approved = CertificateSigningRequest::clone(request);
    approved.status.get_or_insert_default().conditions.get_or_insert_default().push(
        CertificateSigningRequestCondition {
            type_: "Approved".into(),
            status: "True".into(),
            reason: Some("OwnAddresses".into()),
            message: Some("The certificate is for addresses of the node that asks.".into()),
            last_update_time: now.clone(),
            last_transition_time: now,
        },
    );
    let api = client.all::<CertificateSigningRequest>();
    let updated = api.update_subresource::<_, CertificateSigningRequest>(name, "approval", &approved).await;
    updated.map(drop).with_context(|| format!("certificate request {name}"))
}

/// Why a request is left to a person.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
enum Refusal {
    /// It is decided already, or not one of a node's about itself.
    #[error("it is not a node's request for a serving certificate")]
    NotForUs,
    #[error("it names nobody")]
    Nameless,
    #[error("the name {0} is not one under which this node serves")]
    Name(String),
    #[error("{0} is no address or name that a node serves under")]
    OtherKind(String),
    #[error("the node has not registered with the address {0}")]
    NotRegistered(IpAddr),
    #[error("the address {0} is of no single machine, or reserved for pods, services or API servers")]
    Reserved(IpAddr),
    #[error("the address {0} is also that of {1}")]
    Held(IpAddr, String),
}

/// Whether an open request is for the addresses and the name of the node that asks.
fn decide(request: &CertificateSigningRequest, held: &Held, reserved: &Reserved) -> Result<(), Refusal> {
    let spec = &request.spec;
    let status = request.status.as_ref();
    let is_decided = status.is_some_and(|status| status.conditions.as_ref().is_some_and(|held| !held.is_empty()));
    let is_node = spec.groups.iter().flatten().any(|group| group == "system:nodes");
    let asker = spec.username.as_deref().and_then(|user| user.strip_prefix(USER_PREFIX));
    // Who signs reads it in another way, and must not find another request.
    let is_plain = api::validation::is_one_pem_block(&spec.request.0, "CERTIFICATE REQUEST");
    let text = std::str::from_utf8(&spec.request.0).ok().filter(|_| is_plain);
    let params = text.and_then(|text| CertificateSigningRequestParams::from_pem(text).ok());
    let (Some(asker), Some(params)) = (asker, params) else { return Err(Refusal::NotForUs) };
    if spec.signer_name != SIGNER || is_decided || !is_node {
        return Err(Refusal::NotForUs);
    }
    let own = held.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(asker));
    let own = own.ok_or(Refusal::NotForUs)?;
    let names = &params.params.subject_alt_names;
    if names.is_empty() {
        return Err(Refusal::Nameless);
    }
    names.iter().try_for_each(|name| match name {
        SanType::DnsName(name) => {
            let is_own = name.as_str() == asker && !reserved.is_servers_name(asker) && !is_services_name(asker);
            if is_own { Ok(()) } else { Err(Refusal::Name(name.as_str().to_owned())) }
        }
        SanType::IpAddress(address) => decide_address(own, *address, held, reserved),
        other => Err(Refusal::OtherKind(format!("{other:?}"))),
    })
}

fn decide_address(own: &Node, address: IpAddr, held: &Held, reserved: &Reserved) -> Result<(), Refusal> {
    if !has_address(own, address) {
        return Err(Refusal::NotRegistered(address));
    }
    // Clients in Go take `::ffff:10.43.0.1` in a certificate for 10.43.0.1; what is reserved is written the short way.
    if !cidr::is_global_unicast(address)
        || address.to_canonical() != address
        || reserved.ranges.iter().any(|range| range.contains(address))
        || reserved.addresses.contains(&address)
        || held.servers.iter().any(|slice| is_endpoint(slice, address))
    {
        return Err(Refusal::Reserved(address));
    }
    let is_other = |node: &Node| node.metadata.name != own.metadata.name;
    if let Some(node) = held.nodes.iter().find(|node| is_other(node) && has_address(node, address)) {
        return Err(Refusal::Held(address, format!("node {}", node.metadata.name())));
    }
    if let Some(service) = held.services.iter().find(|service| is_of_service(service, address)) {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let (namespace, name) = (part(&service.metadata.namespace), part(&service.metadata.name));
        return Err(Refusal::Held(address, format!("service {namespace}/{name}")));
    }
    Ok(())
}

impl Reserved {
    /// Whether certificates of API servers carry this name: who has one for it is believed to be such a server.
    fn is_servers_name(&self, name: &str) -> bool {
        let covers = |reserved: &String| match reserved.strip_prefix("*.") {
            Some(parent) => name.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent)),
            None => reserved.eq_ignore_ascii_case(name),
        };
        name == "localhost" || name.split('.').next() == Some("kubernetes") || self.names.iter().any(covers)
    }
}

/// `web.shop.svc`, or longer: webhooks and others that the cluster's authority has signed for are called like this.
fn is_services_name(name: &str) -> bool {
    name.split('.').nth(2).is_some_and(|label| label.eq_ignore_ascii_case("svc"))
}

/// Whether a service is reached at this address. Load balancers of our own class and of none are left out: they may have the
/// addresses of nodes.
fn is_of_service(service: &Service, address: IpAddr) -> bool {
    let spec = service.spec.as_ref();
    let fixed = spec.into_iter().flat_map(|spec| spec.cluster_ips.iter().chain(&spec.external_ips).flatten());
    let is_anothers = spec
        .and_then(|spec| spec.load_balancer_class.as_deref())
        .is_some_and(|class| class != controllers::LOAD_BALANCER_CLASS);
    let balanced = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()).filter(|_| is_anothers);
    let balanced = balanced
        .into_iter()
        .flat_map(|balancer| balancer.ingress.iter().flatten())
        .filter_map(|entry| entry.ip.as_ref());
    fixed.chain(balanced).any(|text| text.parse() == Ok(address))
}

fn is_endpoint(slice: &EndpointSlice, address: IpAddr) -> bool {
    slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses).any(|text| text.parse() == Ok(address))
}

fn has_address(node: &Node, address: IpAddr) -> bool {
    let held = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    held.into_iter().flatten().any(|held| held.address.parse() == Ok(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    fn node(name: &str, addresses: &[&str]) -> Arc<Node> {
        let addresses: Vec<Value> =
            addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        let node = json!({"metadata": {"name": name}, "status": {"addresses": addresses}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn held(nodes: Vec<Arc<Node>>) -> Held {
        Held { nodes, services: Vec::new(), servers: Vec::new() }
    }

    fn request(user: &str, names: &[&str], conditions: Value) -> CertificateSigningRequest {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = rcgen::CertificateParams::new(names).unwrap();
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let spec = json!({
            "signerName": SIGNER, "username": user, "groups": ["system:nodes"],
            "request": STANDARD.encode(pem), "usages": ["digital signature", "server auth"],
        });
        let object = json!({"metadata": {"name": "csr"}, "spec": spec, "status": {"conditions": conditions}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn security_a_request_within_a_request_is_not_approved() {
        let held = held(vec![node("b", &["192.0.2.2"])]);
        let reserved = Reserved::default();
        let text =
            |names: &[&str]| String::from_utf8(request("system:node:b", names, json!([])).spec.request.0).unwrap();
        let mut asked = request("system:node:b", &["b"], json!([]));
        assert_eq!(decide(&asked, &held, &reserved), Ok(()));
        let shown = text(&["b"]).replace("CERTIFICATE REQUEST", "X");
        asked.spec.request.0 = format!("# {shown}{}", text(&["kubernetes.default.svc"])).into_bytes();
        assert!(decide(&asked, &held, &reserved).is_err());
    }

    #[test]
    fn security_a_node_serves_under_its_own_addresses_only() {
        let every = ["192.0.2.2", "10.43.0.1", "127.0.0.1", "192.0.2.1", "169.254.1.1", "fe80::1", "192.0.2.50"];
        let more =
            ["192.0.2.60", "192.0.2.61", "192.0.2.62", "192.0.2.63", "10.99.0.1", "192.0.2.70", "::ffff:10.43.0.1"];
        let mut held = held(vec![
            node("kubernetes.default.svc", &[]),
            node("localhost", &[]),
            node("api.example.com", &[]),
            node("any.wild.example.com", &[]),
            node("web.shop.svc", &[]),
            node("web.shop.svc.cluster.local", &[]),
            node("svc.example.com", &[]),
            node("a", &["192.0.2.1"]),
            node("b", &[&every[..], &more[..]].concat()),
        ]);
        let service = |value: Value| Arc::new(serde_json::from_value::<Service>(value).unwrap());
        let balanced = |class: &str, ip: &str| {
            service(
                json!({"spec": {"loadBalancerClass": class}, "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}}),
            )
        };
        held.services = vec![
            service(json!({"metadata": {"namespace": "shop", "name": "web"},
                "spec": {"clusterIPs": ["10.99.0.1"], "externalIPs": ["192.0.2.60"]}})),
            balanced("example.com/lb", "192.0.2.61"),
            balanced(controllers::LOAD_BALANCER_CLASS, "192.0.2.62"),
        ];
        let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.70"]}]});
        held.servers = vec![Arc::new(serde_json::from_value(slice).unwrap())];
        let reserved = Reserved {
            ranges: vec!["10.43.0.0/16".parse().unwrap()],
            addresses: vec!["192.0.2.50".parse().unwrap()],
            names: vec!["API.example.com".into(), "*.wild.example.com".into()],
        };
        for (user, names, expected) in [
            ("system:node:b", &["b", "192.0.2.2"][..], true),
            ("system:node:b", &["b"], true),
            ("system:node:b", &[], false),
            ("system:node:b", &["a", "192.0.2.2"], false),
            ("system:node:b", &["192.0.2.3"], false),
            // Another node's, the API server's, everybody's.
            ("system:node:b", &["192.0.2.1"], false),
            ("system:node:b", &["10.43.0.1"], false),
            ("system:node:b", &["::ffff:10.43.0.1"], false),
            ("system:node:b", &["127.0.0.1"], false),
            ("system:node:b", &["169.254.1.1"], false),
            ("system:node:b", &["fe80::1"], false),
            // What stands before the API servers, and where they are.
            ("system:node:b", &["192.0.2.50"], false),
            ("system:node:b", &["192.0.2.70"], false),
            // Services, wherever their addresses are; our own load balancers have addresses of nodes.
            ("system:node:b", &["10.99.0.1"], false),
            ("system:node:b", &["192.0.2.60"], false),
            ("system:node:b", &["192.0.2.61"], false),
            ("system:node:b", &["192.0.2.62"], true),
            ("system:node:b", &["192.0.2.63"], true),
            ("system:node:c", &["c"], false),
            ("somebody", &["b"], false),
            // A node may be called as API servers are: it serves under no such name.
            ("system:node:kubernetes.default.svc", &["kubernetes.default.svc"], false),
            ("system:node:localhost", &["localhost"], false),
            ("system:node:api.example.com", &["api.example.com"], false),
            ("system:node:any.wild.example.com", &["any.wild.example.com"], false),
            ("system:node:web.shop.svc", &["web.shop.svc"], false),
            ("system:node:web.shop.svc.cluster.local", &["web.shop.svc.cluster.local"], false),
            ("system:node:svc.example.com", &["svc.example.com"], true),
        ] {
            let decided = decide(&request(user, names, json!([])), &held, &reserved);
            assert_eq!(decided.is_ok(), expected, "{user} {names:?}: {decided:?}");
        }
        // A service with the address of a node: a person decides, and is told what there is to decide.
        let held_up = decide(&request("system:node:b", &["b", "192.0.2.60"], json!([])), &held, &reserved).unwrap_err();
        assert_eq!(held_up.to_string(), "the address 192.0.2.60 is also that of service shop/web");
        let denied = json!([{"type": "Denied", "status": "True"}]);
        assert_eq!(decide(&request("system:node:b", &["b"], denied), &held, &reserved), Err(Refusal::NotForUs));
        let mut outsider = request("system:node:b", &["b"], json!([]));
        outsider.spec.groups = None;
        assert_eq!(decide(&outsider, &held, &reserved), Err(Refusal::NotForUs));
    }
}
