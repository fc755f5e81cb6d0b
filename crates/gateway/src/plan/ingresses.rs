//! Ingresses: all of ours share one listener a port, of all hosts.

use std::sync::Arc;

use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::reference;
use data_plane::RouteMetrics;
use k8s_openapi::api::networking::v1::{Ingress, IngressBackend, IngressClass};
use serde_json::{Value, json};

use super::backends::{Backends, Missing, PortRef, Use};
use super::builder::{Builder, Site};
use super::{CLASS, INGRESS_CONTROLLER, Kind, News, Plan, Settings, Status};
use crate::hostname::{Pattern, Wildcard};
use crate::table::{Action, Bind, PathMatch, Protocol, Rank, Route, Rule, Weighted};
use crate::world::World;

const LEGACY_CLASS: &str = "kubernetes.io/ingress.class";
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

/// A host that an Ingress serves. Gateways and routes of other namespaces that are younger do not get it.
pub(super) struct Claim {
    host: Pattern,
    rank: Rank,
    namespace: String,
}

impl Claim {
    /// Whether it came before an object of another namespace.
    pub(super) fn precedes(&self, rank: &Rank, namespace: &str) -> bool {
        self.namespace != namespace && (self.rank.created, &self.rank.name) < (rank.created, &rank.name)
    }

    pub(super) fn is_within(&self, hosts: &Pattern) -> bool {
        hosts.contains(&self.host)
    }

    /// Whether these are the hosts of the claim, and no more; claims to all hosts are none.
    pub(super) fn is_for(&self, hosts: &Pattern) -> bool {
        match (&self.host, hosts) {
            (Pattern::Any, _) => false,
            (Pattern::OneLabel(one), Pattern::Labels(other)) => one == other,
            (host, hosts) => host == hosts,
        }
    }
}

/// The hosts that it serves are handed back.
pub(super) fn plan<'w>(
    world: &'w World,
    settings: &Settings,
    backends: &mut Backends<'w>,
    builder: &mut Builder,
    plan: &mut Plan,
) -> Vec<Claim> {
    let mut ours: Vec<&Arc<Ingress>> = world.ingresses.values().filter(|ingress| is_ours(ingress, world)).collect();
    // The oldest has the first word about certificates.
    ours.compact_sort_by_key(|ingress| rank(ingress, false, (0, 0)));
    let mut planner = Planner { world, settings, backends, builder, news: Vec::new() };
    for ingress in &ours {
        planner.certificates(ingress);
    }
    for ingress in &ours {
        planner.rules(ingress);
    }
    plan.news.append(&mut planner.news);
    plan.statuses.extend(ours.iter().filter_map(|ingress| status(ingress, settings)));
    ours.into_iter().flat_map(|ingress| claims(ingress)).collect()
}

fn claims(ingress: &Ingress) -> impl Iterator<Item = Claim> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
    rules.map(|rule| Claim {
        host: Pattern::new(rule.host.as_deref(), Wildcard::OneLabel),
        rank: rank(ingress, false, (0, 0)),
        namespace: ingress.metadata.namespace().to_owned(),
    })
}

/// Whether an Ingress is of one of our classes: by its field, by the annotation of old, or by default.
fn is_ours(ingress: &Ingress, world: &World) -> bool {
    let is_our_class = |class: &IngressClass| {
        class.spec.as_ref().is_some_and(|spec| spec.controller.as_deref() == Some(INGRESS_CONTROLLER))
    };
    let is_ours = |name: &str| world.ingress_classes.get(name).is_some_and(|class| is_our_class(class));
    let named = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
    let annotations = ingress.metadata.annotations.as_ref();
    match (named, annotations.and_then(|annotations| annotations.get(LEGACY_CLASS))) {
        (Some(class), _) => is_ours(class),
        // It is no reference: the class need not exist.
        (None, Some(class)) => is_ours(class) || (class == CLASS && !world.ingress_classes.contains_key(CLASS)),
        (None, None) => {
            let is_default = |class: &&Arc<IngressClass>| {
                let annotations = class.metadata.annotations.as_ref();
                annotations.and_then(|annotations| annotations.get(DEFAULT_CLASS)).is_some_and(|is| is == "true")
            };
            // The newest, as the API server has it for Ingresses that are made now.
            let created = |class: &&Arc<IngressClass>| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let newest = world.ingress_classes.values().filter(is_default).max_by_key(created);
            newest.is_some_and(|class| is_our_class(class))
        }
    }
}

fn rank(ingress: &Ingress, is_default: bool, place: (usize, usize)) -> Rank {
    let created = ingress.metadata.creation_timestamp.as_ref().map(|time| time.0);
    Rank { is_default, created, name: client::object_key(ingress), place }
}

struct Planner<'p, 'w> {
    world: &'w World,
    settings: &'p Settings,
    backends: &'p mut Backends<'w>,
    builder: &'p mut Builder,
    news: Vec<News>,
}

impl Planner<'_, '_> {
    fn rules(&mut self, ingress: &Ingress) {
        let Some(spec) = &ingress.spec else { return };
        let everything = || PathMatch::Prefix("/".into());
        let metrics: Arc<RouteMetrics> = Arc::default();
        let mut rules = Vec::new();
        if let Some(backend) = &spec.default_backend {
            rules
                .push((Pattern::Any, self.rule(ingress, everything(), backend, rank(ingress, true, (0, 0)), &metrics)));
        }
        for (at, rule) in spec.rules.iter().flatten().enumerate() {
            let host = Pattern::new(rule.host.as_deref(), Wildcard::OneLabel);
            match (&rule.http, &spec.default_backend) {
                (Some(http), _) => {
                    for (path_at, path) in http.paths.iter().enumerate() {
                        let text = path.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/").to_owned();
                        let matcher = match path.path_type.as_str() {
                            "Exact" => PathMatch::Exact(text),
                            _ => PathMatch::Prefix(text),
                        };
                        let rank = rank(ingress, false, (at, path_at));
                        rules.push((host.clone(), self.rule(ingress, matcher, &path.backend, rank, &metrics)));
                    }
                }
                // A host without paths is all the default backend's.
                (None, Some(backend)) => {
                    rules.push((
                        host,
                        self.rule(ingress, everything(), backend, rank(ingress, false, (at, 0)), &metrics),
                    ));
                }
                (None, None) => {}
            }
        }
        let (http, https) = (self.settings.http_port, self.settings.https_port);
        let has_tls = self.builder.protocol(&Site::Shared, https).is_some();
        for (host, rule) in rules {
            if has_tls {
                self.builder
                    .listener(&Site::Shared, https, Protocol::Tls, Pattern::Any)
                    .rule(host.clone(), rule.clone());
            }
            self.builder.listener(&Site::Shared, http, Protocol::Http, Pattern::Any).rule(host, rule);
        }
    }

    fn rule(
        &mut self,
        ingress: &Ingress,
        path: PathMatch,
        backend: &IngressBackend,
        rank: Rank,
        metrics: &Arc<RouteMetrics>,
    ) -> Rule {
        let namespace = ingress.metadata.namespace();
        let found = match (&backend.service, &backend.resource) {
            (Some(service), _) => {
                let port = service.port.as_ref();
                let number = port.and_then(|port| port.number).map(PortRef::Number);
                let port = number.or_else(|| port.and_then(|port| port.name.clone()).map(PortRef::Name));
                let key = format!("{namespace}/{}", service.name);
                let found = port.map(|port| self.backends.find(&key, &port, Use::Http));
                found.unwrap_or_else(|| Err(Missing::NotFound(format!("backend {:?} names no port", service.name))))
            }
            (None, Some(resource)) => {
                Err(Missing::Unsupported(format!("backends of kind {:?} are not supported", resource.kind)))
            }
            (None, None) => Err(Missing::NotFound("a backend without a service".into())),
        };
        let action = match found {
            Ok(backend) => Action::Forward(vec![Weighted { weight: 1, backend: Some(backend), filters: Vec::new() }]),
            Err(missing) => {
                self.warn(ingress, "BackendNotFound", missing.to_string());
                Action::Refuse(http::StatusCode::SERVICE_UNAVAILABLE)
            }
        };
        let route = Route {
            name: format!("ingress {namespace}/{}", ingress.metadata.name()),
            filters: Vec::new(),
            action,
            timeout: None,
            backend_timeout: None,
            metrics: metrics.clone(),
        };
        Rule { path, method: None, headers: Vec::new(), query: Vec::new(), rank, route: Arc::new(route) }
    }

    fn certificates(&mut self, ingress: &Ingress) {
        let namespace = ingress.metadata.namespace();
        let port = self.settings.https_port;
        for tls in ingress.spec.iter().flat_map(|spec| spec.tls.iter().flatten()) {
            let Some(name) = &tls.secret_name else { continue };
            let certificate = match self.world.certificates.get(&format!("{namespace}/{name}")) {
                Some(Ok(certificate)) => certificate.clone(),
                Some(Err(why)) => {
                    self.warn(ingress, "SecretInvalid", format!("secret {name:?} cannot be used: {why}"));
                    continue;
                }
                None => {
                    let text = format!("secret {name:?} of type kubernetes.io/tls not found");
                    self.warn(ingress, "SecretNotFound", text);
                    continue;
                }
            };
            let hosts = tls.hosts.as_deref().unwrap_or_default();
            if hosts.is_empty() {
                self.builder.default_certificate(&Site::Shared, port, certificate.clone());
            }
            let listener = self.builder.listener(&Site::Shared, port, Protocol::Tls, Pattern::Any);
            for host in hosts {
                listener.certificate(Pattern::new(Some(host), Wildcard::OneLabel), certificate.clone());
            }
        }
    }

    fn warn(&mut self, ingress: &Ingress, reason: &'static str, message: String) {
        self.news.push(News { about: reference(ingress), reason, message });
    }
}

/// Where clients find it, unless that is written there already.
fn status(ingress: &Ingress, settings: &Settings) -> Option<Status> {
    if settings.closed_ports.contains_key(&Bind::shared(settings.http_port)) {
        return None;
    }
    let addresses: Vec<Value> =
        settings.addresses.iter().map(|address| json!({"ip": address.to_canonical().to_string()})).collect();
    let present = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let present: Vec<String> =
        present.iter().flat_map(|status| status.ingress.iter().flatten()).filter_map(|at| at.ip.clone()).collect();
    if present.iter().eq(addresses.iter().filter_map(|at| at["ip"].as_str())) {
        return None;
    }
    Some(Status {
        kind: Kind::Ingress,
        namespace: ingress.metadata.namespace.clone(),
        name: ingress.metadata.name().to_owned(),
        resource_version: ingress.metadata.resource_version.clone(),
        status: json!({"loadBalancer": {"ingress": addresses}}),
    })
}
