//! GatewayClasses, Gateways and the routes that attach to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use api::load_balancer::is_answered;
use api::meta::Meta as _;
use api::sort::{CompactCollect as _, CompactSort as _};
use k8s_openapi::api::core::v1::LoadBalancerIngress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use rustls::sign::CertifiedKey;
use serde::Serialize;
use serde_json::json;

use super::addresses::Assigned;
use super::backends::Backends;
use super::builder::{Builder, Site};
use super::conditions::{Wanted, merge};
use super::grants::{self, Reference};
use super::ingresses::Claim;
use super::routes::{self, Converted, Patterns, Problem, Resolver};
use super::{GATEWAY_CONTROLLER, Kind, Plan, Settings, Status};
use crate::gateway_api::{
    FEATURES, GROUP, Gateway, GatewayAddress, GatewayClass, ListenerSpec, ListenerStatus, ParentRef, RouteKind,
    RouteParentStatus, RouteStatus, STATIC_ADDRESSES,
};
use crate::hostname::{Pattern, Wildcard};
use crate::table::{Bind, Protocol, StreamRoute};
use crate::world::World;

/// Reason and message of a condition that is not met.
type Outcome = Result<(), (String, String)>;

/// A Gateway and its addresses.
type Placed<'w> = (&'w Arc<Gateway>, Assigned);

/// The type of addresses that there are.
const IP_ADDRESS: &str = "IPAddress";
/// The lowest port that anybody may have who is not the system; those of Ingresses are the gateway's own.
const FIRST_FREE_PORT: u16 = 1024;
/// Ports of the parts of a cluster. That one is free, while such a part starts again, does not make it anybody's.
const OF_CLUSTER: [RangeInclusive<u16>; 2] = [2379..=2380, 10248..=10260];
/// The mode of TLS that ends at the gateway.
const TERMINATE: &str = "Terminate";
/// Ports of all Gateways together, on each address: each takes descriptors of the process.
const MAX_PORTS: usize = 512;
/// As many of them as the Gateways of one namespace can open: others are to have some, too.
const MAX_PORTS_OF_NAMESPACE: usize = 128;

pub(super) fn plan<'w>(
    world: &'w World,
    settings: &Settings,
    (gateways, claims): (&[Placed<'w>], &[Claim]),
    backends: &mut Backends<'w>,
    builder: &mut Builder,
    plan: &mut Plan,
) {
    for class in world.gateway_classes.values().filter(|class| is_ours(class)) {
        plan.statuses.extend(class_status(class, settings));
    }
    let mut attached: BTreeMap<String, Vec<Listener>> = BTreeMap::new();
    let services = balanced_ports(world, settings);
    let mut taken = Taken { claims, listeners: BTreeMap::new(), services, opened: BTreeMap::new() };
    for (gateway, assigned) in gateways {
        let listeners = listeners(gateway, &assigned.site, world, settings, builder, &mut taken);
        attached.insert(client::object_key(&***gateway), listeners);
    }
    let mut patterns = Patterns::default();
    let mut attacher = Attacher { world, settings, claims, gateways: &mut attached, builder };
    for route in world.http_routes.values() {
        let resolver = resolver(world, (&mut *backends, &mut patterns), "HTTPRoute", &route.metadata);
        let make = || routes::http(route, resolver);
        let spec = (&route.spec.parent_refs[..], &route.spec.hostnames[..]);
        plan.statuses.extend(attacher.attach(Kind::HttpRoute, &route.metadata, spec, &route.status, make));
    }
    for route in world.grpc_routes.values() {
        let resolver = resolver(world, (&mut *backends, &mut patterns), "GRPCRoute", &route.metadata);
        let make = || routes::grpc(route, resolver);
        let spec = (&route.spec.parent_refs[..], &route.spec.hostnames[..]);
        plan.statuses.extend(attacher.attach(Kind::GrpcRoute, &route.metadata, spec, &route.status, make));
    }
    for route in world.tls_routes.values() {
        let resolver = resolver(world, (&mut *backends, &mut patterns), "TLSRoute", &route.metadata);
        let make = || routes::tls(route, resolver);
        let spec = (&route.spec.parent_refs[..], &route.spec.hostnames[..]);
        plan.statuses.extend(attacher.attach(Kind::TlsRoute, &route.metadata, spec, &route.status, make));
    }
    for (gateway, assigned) in gateways {
        let listeners = attached.get(&client::object_key(&***gateway)).map(Vec::as_slice).unwrap_or_default();
        plan.statuses.extend(gateway_status(gateway, listeners, assigned, settings));
    }
}

fn resolver<'p, 'w>(
    world: &'w World,
    (backends, patterns): (&'p mut Backends<'w>, &'p mut Patterns),
    kind: &'static str,
    metadata: &ObjectMeta,
) -> Resolver<'p, 'w> {
    let namespace = metadata.namespace().to_owned();
    Resolver { world, backends, patterns, kind, namespace, problem: None }
}

fn is_ours(class: &GatewayClass) -> bool {
    class.spec.controller_name == GATEWAY_CONTROLLER
}

pub(super) fn has_our_class(gateway: &Gateway, world: &World) -> bool {
    let class = world.gateway_classes.get(&gateway.spec.gateway_class_name);
    class.is_some_and(|class| is_ours(class) && class.spec.parameters_ref.is_none())
}

/// Our Gateways. The oldest has the first word about ports and addresses.
pub(super) fn ours(world: &World) -> Vec<&Arc<Gateway>> {
    let mut gateways: Vec<&Arc<Gateway>> =
        world.gateways.values().filter(|gateway| has_our_class(gateway, world)).collect();
    gateways.compact_sort_by_key(|gateway| routes::rank(&***gateway, (0, 0)));
    gateways
}

/// The ports that the gateway has at the addresses that all share, as far as nobody else has them.
pub(super) fn shared_ports(gateways: &[Placed<'_>], settings: &Settings) -> BTreeSet<u16> {
    let shared = gateways.iter().filter(|(_, assigned)| assigned.site == Site::Shared);
    let ports = shared.flat_map(|(gateway, _)| gateway.spec.listeners.iter().map(|listener| listener.port));
    let ports = ports.chain([settings.http_port, settings.https_port]);
    ports.filter(|port| !settings.closed_ports.contains_key(&Bind::shared(*port))).compact_collect()
}

/// The ports of TCP that services of type LoadBalancer have at the addresses of the gateway. One that a service only asks for is not its
/// own yet.
fn balanced_ports(world: &World, settings: &Settings) -> BTreeMap<u16, String> {
    let is_ours = |address: IpAddr| settings.addresses.iter().any(|ours| ours.to_canonical() == address.to_canonical());
    let mut ports = BTreeMap::new();
    for (key, service) in &world.services {
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let all = balancer.into_iter().flat_map(|status| status.ingress.iter().flatten());
        let address = |at: &LoadBalancerIngress| at.ip.as_deref()?.parse::<IpAddr>().ok();
        let here: Vec<&LoadBalancerIngress> = all.filter(|at| address(at).is_some_and(is_ours)).collect();
        let asked = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let of_tcp = asked.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP");
        let answered = of_tcp.filter(|port| here.iter().any(|at| is_answered(at, "TCP", port.port)));
        ports.extend(answered.filter_map(|port| Some((u16::try_from(port.port).ok()?, key.clone()))));
    }
    ports
}

/// What is not to be had any more.
struct Taken<'p> {
    claims: &'p [Claim],
    /// Ports and hosts of listeners at the addresses that all share, with the namespace that has them.
    listeners: BTreeMap<(u16, Pattern), String>,
    /// Ports of the same addresses at which services of type LoadBalancer are reached: what comes there never gets to the gateway.
    services: BTreeMap<u16, String>,
    /// How many ports each namespace opened.
    opened: BTreeMap<String, usize>,
}

impl Taken<'_> {
    /// Counts ports that a namespace opens beside those that are open, or says why it cannot.
    fn open(&mut self, namespace: &str, count: usize, all: usize) -> Outcome {
        let opened = self.opened.entry(namespace.to_owned()).or_default();
        let message = if *opened + count > MAX_PORTS_OF_NAMESPACE {
            format!(
                "the gateways of a namespace can open {MAX_PORTS_OF_NAMESPACE} ports, counted on each of their addresses"
            )
        } else if all + count > MAX_PORTS {
            format!("{MAX_PORTS} ports are open already")
        } else {
            *opened += count;
            return Ok(());
        };
        Err(("PortUnavailable".to_owned(), message))
    }

    /// Why a listener cannot have its hosts: a namespace does not join in another's listener, nor stand before its Ingresses.
    fn conflict(&self, gateway: &Gateway, listener: &Listener, settings: &Settings) -> Option<(&'static str, String)> {
        // At its own addresses a Gateway meets nobody.
        if listener.site != Site::Shared {
            return None;
        }
        let namespace = &listener.namespace;
        let owner = self.listeners.get(&(listener.spec.port, listener.hosts.clone()));
        if owner.is_some_and(|owner| owner != namespace) {
            return Some((
                "HostnameConflict",
                "an older gateway of another namespace has this port and hostname".into(),
            ));
        }
        if !is_of_ingresses(listener.spec.port, settings) || listener.hosts == Pattern::Any {
            return None;
        }
        let rank = routes::rank(gateway, (0, 0));
        let is_claimed =
            self.claims.iter().any(|claim| claim.precedes(&rank, namespace) && claim.is_within(&listener.hosts));
        let message = || "an older ingress of another namespace has such a host".to_owned();
        is_claimed.then(|| ("HostnameConflict", message()))
    }
}

fn is_of_ingresses(port: u16, settings: &Settings) -> bool {
    port == settings.http_port || port == settings.https_port
}

fn class_status(class: &GatewayClass, settings: &Settings) -> Option<Status> {
    let accepted = match class.spec.parameters_ref {
        None => Ok(()),
        Some(_) => Err(("InvalidParameters".to_owned(), "this class has no parameters".to_owned())),
    };
    let wanted = [Wanted::of("Accepted", "Accepted", &accepted)];
    let conditions = merge(&class.status.conditions, &wanted, class.metadata.generation, settings.now);
    // Without a pool the gateway's own addresses are the only ones that can be named.
    let is_there = |name: &&&str| **name != STATIC_ADDRESSES || !settings.pool.is_empty();
    let features: Vec<serde_json::Value> = FEATURES.iter().filter(is_there).map(|name| json!({"name": name})).collect();
    let value = json!({"conditions": conditions, "supportedFeatures": features});
    let present = (&class.status.conditions, &class.status.supported_features);
    status(Kind::GatewayClass, &class.metadata, &present, &(&conditions, &features), value)
}

/// A status to write, unless it is there.
fn status<T: PartialEq>(
    kind: Kind,
    metadata: &ObjectMeta,
    present: &T,
    wanted: &T,
    status: serde_json::Value,
) -> Option<Status> {
    (present != wanted).then(|| Status {
        kind,
        namespace: metadata.namespace.clone(),
        name: metadata.name().to_owned(),
        resource_version: metadata.resource_version.clone(),
        status,
    })
}

/// A listener, and what is known of it.
struct Listener {
    spec: ListenerSpec,
    hosts: Pattern,
    /// Where routes are put; none if it cannot be served.
    protocol: Option<Protocol>,
    kinds: Vec<Kind>,
    namespace: String,
    /// The addresses of its port.
    site: Site,
    accepted: Outcome,
    resolved: Outcome,
    conflict: Option<(&'static str, String)>,
    /// Why its port is not open.
    closed: Option<String>,
    attached: u32,
}

impl Listener {
    fn can_serve(&self) -> bool {
        self.accepted.is_ok() && self.conflict.is_none()
    }

    /// Whether nothing stands in its way, unless its Gateway has no address.
    fn is_valid(&self) -> bool {
        self.can_serve() && self.resolved.is_ok() && self.closed.is_none()
    }

    fn is_served(&self) -> bool {
        self.is_valid() && self.site.has_address()
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::HttpRoute => "HTTPRoute",
        Kind::GrpcRoute => "GRPCRoute",
        Kind::TlsRoute => "TLSRoute",
        Kind::Ingress => "Ingress",
        Kind::GatewayClass => "GatewayClass",
        Kind::Gateway => "Gateway",
        Kind::BackendTlsPolicy => "BackendTLSPolicy",
    }
}

fn listeners(
    gateway: &Gateway,
    site: &Site,
    world: &World,
    settings: &Settings,
    builder: &mut Builder,
    taken: &mut Taken<'_>,
) -> Vec<Listener> {
    let mut found: Vec<(Listener, Vec<Arc<CertifiedKey>>)> =
        gateway.spec.listeners.iter().map(|spec| listener(gateway, site, spec, world, settings)).collect();
    if refusal(gateway).is_some() {
        for (listener, _) in &mut found {
            listener.accepted = Err(("Invalid".to_owned(), "the gateway is not accepted".to_owned()));
        }
    }
    for at in 0..found.len() {
        let conflict = {
            let (one, _) = &found[at];
            let others = found.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (other, _))| other);
            let mut same_port = others.filter(|other| other.spec.port == one.spec.port && other.protocol.is_some());
            one.protocol.and_then(|protocol| {
                same_port.find_map(|other| match other.protocol {
                    Some(theirs) if theirs != protocol => {
                        Some(("ProtocolConflict", format!("listener {:?} has another protocol", other.spec.name)))
                    }
                    Some(_) if other.hosts == one.hosts => {
                        Some(("HostnameConflict", format!("listener {:?} has the same hostname", other.spec.name)))
                    }
                    _ => None,
                })
            })
        };
        let with_others = found[at].0.protocol.and_then(|protocol| {
            let of_others = builder.protocol(site, found[at].0.spec.port).filter(|theirs| *theirs != protocol);
            let message = || ("ProtocolConflict", "the port is taken with another protocol".to_owned());
            of_others.map(|_| message()).or_else(|| taken.conflict(gateway, &found[at].0, settings))
        });
        found[at].0.conflict = conflict.or(with_others);
    }
    for (listener, certificates) in &mut found {
        let Some(protocol) = listener.protocol.filter(|_| listener.can_serve()) else { continue };
        // What has no address is opened nowhere.
        if !site.has_address() {
            continue;
        }
        let port = listener.spec.port;
        if let Some(service) = taken.services.get(&port).filter(|_| *site == Site::Shared) {
            let message = format!("service {service:?} of type LoadBalancer has this port");
            listener.accepted = Err(("PortUnavailable".to_owned(), message));
            continue;
        }
        if builder.protocol(site, port).is_none() {
            listener.accepted = taken.open(&listener.namespace, site.binds(port).len(), builder.port_count());
            if listener.accepted.is_err() {
                continue;
            }
        }
        if *site == Site::Shared {
            taken.listeners.insert((port, listener.hosts.clone()), listener.namespace.clone());
        }
        let built = builder.listener(site, port, protocol, listener.hosts.clone());
        for certificate in certificates.iter() {
            built.certificate(listener.hosts.clone(), certificate.clone());
        }
        if let (Pattern::Any, Some(certificate)) = (&listener.hosts, certificates.first()) {
            builder.default_certificate(site, port, certificate.clone());
        }
    }
    found.into_iter().map(|(listener, _)| listener).collect()
}

fn listener(
    gateway: &Gateway,
    site: &Site,
    spec: &ListenerSpec,
    world: &World,
    settings: &Settings,
) -> (Listener, Vec<Arc<CertifiedKey>>) {
    let namespace = gateway.metadata.namespace().to_owned();
    let fault = |reason: &str, message: String| Err((reason.to_owned(), message));
    let mode = tls_mode(spec);
    let (protocol, served, mut accepted): (_, &[Kind], Outcome) = match (spec.protocol.as_str(), mode) {
        ("HTTP", _) => (Some(Protocol::Http), &[Kind::HttpRoute, Kind::GrpcRoute], Ok(())),
        ("HTTPS", TERMINATE) => (Some(Protocol::Tls), &[Kind::HttpRoute, Kind::GrpcRoute], Ok(())),
        ("TLS", "Passthrough" | TERMINATE) => (Some(Protocol::Tls), &[Kind::TlsRoute], Ok(())),
        ("HTTPS" | "TLS", _) => {
            let message = format!("protocol {:?} with mode {mode:?} is not supported", spec.protocol);
            (None, &[], fault("UnsupportedValue", message))
        }
        _ => (None, &[], fault("UnsupportedProtocol", format!("protocol {:?} is not supported", spec.protocol))),
    };
    let checks_clients = gateway.spec.tls.as_ref().is_some_and(|tls| tls.frontend.is_some())
        || spec.tls.as_ref().is_some_and(|tls| tls.frontend_validation.is_some());
    // Without the check it would let in whom it is to keep out.
    if accepted.is_ok() && checks_clients && matches!((spec.protocol.as_str(), mode), ("HTTPS" | "TLS", TERMINATE)) {
        accepted = fault("UnsupportedValue", "certificates of clients cannot be checked".to_owned());
    }
    let is_own = is_of_ingresses(spec.port, settings);
    if accepted.is_ok() && spec.port < FIRST_FREE_PORT && !is_own {
        let message = format!("of the ports below {FIRST_FREE_PORT} only those of the gateway can be had");
        accepted = fault("PortUnavailable", message);
    }
    let is_reserved =
        settings.reserved_ports.contains(&spec.port) || OF_CLUSTER.iter().any(|ports| ports.contains(&spec.port));
    if accepted.is_ok() && is_reserved && !is_own {
        accepted = fault("PortUnavailable", format!("port {} is one of the cluster's own", spec.port));
    }
    // It is planned all the same: the port may be free the next time.
    let closed = site.binds(spec.port).iter().find_map(|bind| settings.closed_ports.get(bind)).cloned();
    let mut resolved: Outcome = Ok(());
    let asked = &spec.allowed_routes.kinds;
    let is_asked = |kind: &&Kind| {
        asked.is_empty()
            || asked
                .iter()
                .any(|asked| asked.group.as_deref().unwrap_or(GROUP) == GROUP && asked.kind == kind_name(**kind))
    };
    let kinds: Vec<Kind> = served.iter().filter(is_asked).copied().collect();
    let unknown = asked.iter().find(|asked| {
        asked.group.as_deref().unwrap_or(GROUP) != GROUP || !served.iter().any(|kind| kind_name(*kind) == asked.kind)
    });
    if let Some(unknown) = unknown {
        resolved = fault("InvalidRouteKinds", format!("routes of kind {:?} cannot attach", unknown.kind));
    }
    let mut certificates = Vec::new();
    if matches!((spec.protocol.as_str(), mode), ("HTTPS" | "TLS", TERMINATE)) {
        match listener_certificates(spec, &namespace, world) {
            Ok(found) => certificates = found,
            Err(problem) => resolved = Err((problem.reason.to_owned(), problem.message)),
        }
    }
    let hosts = Pattern::new(spec.hostname.as_deref(), Wildcard::Labels);
    let (conflict, attached) = (None, 0);
    let (spec, site) = (spec.clone(), site.clone());
    let listener =
        Listener { spec, hosts, protocol, kinds, namespace, site, accepted, resolved, conflict, closed, attached };
    (listener, certificates)
}

/// What becomes of TLS, where a listener has any.
fn tls_mode(spec: &ListenerSpec) -> &str {
    spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or(TERMINATE)
}

fn listener_certificates(
    spec: &ListenerSpec,
    namespace: &str,
    world: &World,
) -> Result<Vec<Arc<CertifiedKey>>, Problem> {
    let invalid = |message: String| Problem { reason: "InvalidCertificateRef", message };
    let references = spec.tls.as_ref().map(|tls| tls.certificate_refs.as_slice()).unwrap_or_default();
    if references.is_empty() {
        return Err(invalid("no certificate is named".into()));
    }
    let one = |reference: &crate::gateway_api::Reference| {
        let kind = (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Secret"));
        if kind != ("", "Secret") {
            return Err(invalid(format!("certificates of kind {:?} are not supported", kind.1)));
        }
        let to = reference.namespace.as_deref().unwrap_or(namespace);
        let asked = Reference {
            from_kind: "Gateway",
            from_namespace: namespace,
            to_group: "",
            to_kind: "Secret",
            to_namespace: to,
            to_name: &reference.name,
        };
        if !grants::is_permitted(world, &asked) {
            let message = format!("no ReferenceGrant in {to:?} permits secret {:?}", reference.name);
            return Err(Problem { reason: "RefNotPermitted", message });
        }
        match world.certificates.get(&format!("{to}/{}", reference.name)) {
            Some(Ok(certificate)) => Ok(certificate.clone()),
            Some(Err(why)) => Err(invalid(format!("secret {:?} cannot be used: {why}", reference.name))),
            None => Err(invalid(format!("secret {:?} of type kubernetes.io/tls not found", reference.name))),
        }
    };
    references.iter().map(one).collect()
}

/// Puts routes where they belong.
struct Attacher<'p> {
    world: &'p World,
    settings: &'p Settings,
    claims: &'p [Claim],
    gateways: &'p mut BTreeMap<String, Vec<Listener>>,
    builder: &'p mut Builder,
}

impl Attacher<'_> {
    /// Attaches a route to every parent of ours that it names; the status that says so.
    fn attach(
        &mut self,
        kind: Kind,
        metadata: &ObjectMeta,
        (parents, hostnames): (&[ParentRef], &[String]),
        present: &RouteStatus,
        convert: impl FnOnce() -> Converted,
    ) -> Option<Status> {
        let namespace = metadata.namespace();
        let is_gateway = |parent: &&ParentRef| {
            parent.group.as_deref().unwrap_or(GROUP) == GROUP
                && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
        };
        let key = |parent: &ParentRef| format!("{}/{}", parent.namespace.as_deref().unwrap_or(namespace), parent.name);
        let ours: Vec<&ParentRef> =
            parents.iter().filter(is_gateway).filter(|parent| self.gateways.contains_key(&key(parent))).collect();
        let theirs = |status: &&RouteParentStatus| status.controller_name != GATEWAY_CONTROLLER;
        let mut statuses: Vec<RouteParentStatus> = present.parents.iter().filter(theirs).cloned().collect();
        if ours.is_empty() && statuses.len() == present.parents.len() {
            return None;
        }
        let converted = convert();
        for parent in ours {
            let accepted = match &converted.accepted {
                Ok(()) => self.attach_to(&key(parent), parent, kind, namespace, hostnames, &converted),
                Err(problem) => Err(outcome(problem)),
            };
            let resolved = converted.resolved.clone().map_err(|problem| outcome(&problem));
            let wanted =
                [Wanted::of("Accepted", "Accepted", &accepted), Wanted::of("ResolvedRefs", "ResolvedRefs", &resolved)];
            let before = present.parents.iter().find(|status| !theirs(status) && status.parent_ref == *parent);
            let conditions = before.map(|status| status.conditions.as_slice()).unwrap_or_default();
            let conditions = merge(conditions, &wanted, metadata.generation, self.settings.now);
            let controller_name = GATEWAY_CONTROLLER.to_owned();
            statuses.push(RouteParentStatus { parent_ref: parent.clone(), controller_name, conditions });
        }
        let value = json!({"parents": to_json(&statuses)});
        status(kind, metadata, &present.parents, &statuses, value)
    }

    fn attach_to(
        &mut self,
        gateway: &str,
        parent: &ParentRef,
        kind: Kind,
        namespace: &str,
        hostnames: &[String],
        converted: &Converted,
    ) -> Outcome {
        let fault = |reason: &str, message: &str| Err((reason.to_owned(), message.to_owned()));
        let Some(listeners) = self.gateways.get_mut(gateway) else {
            return fault("NoMatchingParent", "the gateway is gone");
        };
        let is_named = |listener: &&mut Listener| {
            parent.section_name.as_ref().is_none_or(|name| *name == listener.spec.name)
                && parent.port.is_none_or(|port| port == listener.spec.port)
        };
        let mut named = listeners.iter_mut().filter(is_named).peekable();
        if named.peek().is_none() {
            return fault("NoMatchingParent", "no listener has this name and port");
        }
        let world = self.world;
        let allows = |listener: &&mut Listener| {
            listener.can_serve() && listener.kinds.contains(&kind) && is_allowed_from(listener, namespace, world)
        };
        let mut allowed = named.filter(allows).peekable();
        if allowed.peek().is_none() {
            return fault("NotAllowedByListeners", "no listener takes routes of this kind from this namespace");
        }
        let mut is_attached = false;
        for listener in allowed {
            let wanted: Vec<Pattern> = match hostnames {
                [] => vec![Pattern::Any],
                names => names.iter().map(|name| Pattern::new(Some(name), Wildcard::Labels)).collect(),
            };
            let mut hosts: Vec<Pattern> = wanted.iter().filter_map(|name| name.intersection(&listener.hosts)).collect();
            if listener.site == Site::Shared && is_of_ingresses(listener.spec.port, self.settings) {
                hosts.retain(|host| !is_claimed(self.claims, kind, namespace, host, converted));
            }
            let Some(protocol) = listener.protocol.filter(|_| !hosts.is_empty()) else { continue };
            is_attached = true;
            listener.attached += 1;
            if !listener.site.has_address() {
                continue;
            }
            let is_terminated = tls_mode(&listener.spec) == TERMINATE;
            let (site, port) = (&listener.site, listener.spec.port);
            let built = self.builder.listener(site, port, protocol, listener.hosts.clone());
            for host in hosts {
                for rule in &converted.rules {
                    match kind {
                        Kind::TlsRoute => {
                            let stream = StreamRoute { route: rule.route.clone(), is_terminated };
                            built.stream(host.clone(), rule.rank.clone(), stream);
                        }
                        _ => built.rule(host.clone(), rule.clone()),
                    }
                }
            }
        }
        match is_attached {
            true => Ok(()),
            false => {
                let message = "no listener has a hostname of this route that is not an older ingress's";
                fault("NoMatchingListenerHostname", message)
            }
        }
    }
}

/// Whether an older Ingress of another namespace has the host. A TLSRoute takes all of a connection, whatever
/// rules there are for it; rules for more hosts than the Ingress names come after its own.
fn is_claimed(claims: &[Claim], kind: Kind, namespace: &str, host: &Pattern, converted: &Converted) -> bool {
    let Some(rule) = converted.rules.first() else { return false };
    let is_meant = |claim: &Claim| match kind {
        Kind::TlsRoute => claim.is_within(host),
        _ => claim.is_for(host),
    };
    claims.iter().any(|claim| claim.precedes(&rule.rank, namespace) && is_meant(claim))
}

fn outcome(problem: &Problem) -> (String, String) {
    (problem.reason.to_owned(), problem.message.clone())
}

fn to_json(value: &impl Serialize) -> serde_json::Value {
    // Plain structures with keys that are strings.
    serde_json::to_value(value).unwrap_or_default()
}

/// Whether a listener takes routes from a namespace.
fn is_allowed_from(listener: &Listener, namespace: &str, world: &World) -> bool {
    let allowed = &listener.spec.allowed_routes.namespaces;
    match allowed.from.as_deref().unwrap_or("Same") {
        "All" => true,
        "Same" => listener.namespace == namespace,
        "Selector" => {
            let selector = api::selector::Selector::from_label_selector(allowed.selector.as_ref());
            let labels = world.namespaces.get(namespace);
            selector.is_ok_and(|selector| labels.is_some() && selector.matches(labels))
        }
        _ => false,
    }
}

/// Why a Gateway is not served at all.
pub(super) fn refusal(gateway: &Gateway) -> Option<(String, String)> {
    if gateway.spec.infrastructure.as_ref().is_some_and(|of| of.parameters_ref.is_some()) {
        return Some(("InvalidParameters".to_owned(), "gateways of this class have no parameters".to_owned()));
    }
    if gateway.spec.tls.as_ref().is_some_and(|tls| tls.backend.is_some()) {
        return Some(("Invalid".to_owned(), "a certificate to show to backends is not supported".to_owned()));
    }
    let is_unknown = |asked: &&GatewayAddress| asked.r#type.as_deref().unwrap_or(IP_ADDRESS) != IP_ADDRESS;
    let unknown = gateway.spec.addresses.iter().find(is_unknown)?;
    let message = format!("addresses of type {:?} are not supported", unknown.r#type.as_deref().unwrap_or_default());
    Some(("UnsupportedAddress".to_owned(), message))
}

fn gateway_status(
    gateway: &Gateway,
    listeners: &[Listener],
    assigned: &Assigned,
    settings: &Settings,
) -> Option<Status> {
    let (generation, now) = (gateway.metadata.generation, settings.now);
    let before = |name: &str| -> &[Condition] {
        let known = gateway.status.listeners.iter().find(|listener| listener.name == name);
        known.map(|listener| listener.conditions.as_slice()).unwrap_or_default()
    };
    let statuses = listeners.iter().map(|listener| {
        let programmed = match listener.is_served() {
            true => Ok(()),
            false => Err(("Invalid".to_owned(), "the listener is not served".to_owned())),
        };
        let accepted = match (&listener.conflict, &listener.closed) {
            (Some((reason, message)), _) => Err(((*reason).to_owned(), message.clone())),
            (None, Some(why)) => Err(("PortUnavailable".to_owned(), why.clone())),
            (None, None) => listener.accepted.clone(),
        };
        let conflicted = match &listener.conflict {
            Some((reason, message)) => {
                Wanted { kind: "Conflicted", is_true: true, reason: (*reason).to_owned(), message: message.clone() }
            }
            None => Wanted::of("Conflicted", "", &Err(("NoConflicts".to_owned(), String::new()))),
        };
        let wanted = [
            Wanted::of("Accepted", "Accepted", &accepted),
            Wanted::of("Programmed", "Programmed", &programmed),
            Wanted::of("ResolvedRefs", "ResolvedRefs", &listener.resolved),
            conflicted,
        ];
        let supported = |kind: &Kind| RouteKind { group: Some(GROUP.to_owned()), kind: kind_name(*kind).to_owned() };
        ListenerStatus {
            name: listener.spec.name.clone(),
            supported_kinds: listener.kinds.iter().map(supported).collect(),
            attached_routes: listener.attached,
            conditions: merge(before(&listener.spec.name), &wanted, generation, now),
        }
    });
    let statuses: Vec<ListenerStatus> = statuses.collect();
    let count = listeners.iter().filter(|listener| listener.is_served()).count();
    let accepted = match refusal(gateway) {
        Some(refusal) => Err(refusal),
        None if !listeners.iter().any(Listener::can_serve) => {
            Err(("ListenersNotValid".to_owned(), "no listener can be served".to_owned()))
        }
        None => Ok(()),
    };
    let programmed = match (&accepted, &assigned.problem, count) {
        (Ok(()), Some((reason, message)), _) => Err(((*reason).to_owned(), message.clone())),
        (Ok(()), None, 1..) => Ok(()),
        _ => Err(("Invalid".to_owned(), "no listener is served".to_owned())),
    };
    let mut first = Wanted::of("Accepted", "Accepted", &accepted);
    if first.is_true && !listeners.iter().all(Listener::is_valid) {
        first.reason = "ListenersNotValid".to_owned();
        first.message = "some listeners are not served".to_owned();
    }
    let mut second = Wanted::of("Programmed", "Programmed", &programmed);
    if let Some(lack) = assigned.lack.as_ref().filter(|_| second.is_true) {
        second.message.clone_from(lack);
    }
    let wanted = [first, second];
    let conditions = merge(&gateway.status.conditions, &wanted, generation, now);
    let address = |address: &IpAddr| GatewayAddress {
        r#type: Some(IP_ADDRESS.to_owned()),
        value: address.to_canonical().to_string(),
    };
    let addresses: Vec<GatewayAddress> = assigned.published.iter().map(address).collect();
    let present = (&gateway.status.addresses, &gateway.status.conditions, &gateway.status.listeners);
    let value = json!({
        "addresses": to_json(&addresses),
        "conditions": conditions,
        "listeners": to_json(&statuses),
    });
    status(Kind::Gateway, &gateway.metadata, &present, &(&addresses, &conditions, &statuses), value)
}
