//! Plans of small clusters.

mod addresses;
mod gateways;
mod ingresses;
mod security;

use std::sync::Arc;

use http::{HeaderMap, Method};
use k8s_openapi::api::core::v1::Secret;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::table::{Action, Asked, Filter, Listed, Protocol, Route};
use crate::world::certificate;

fn settings() -> Settings {
    Settings {
        addresses: vec!["192.0.2.1".parse().unwrap()],
        pool: Vec::new(),
        taken: BTreeSet::new(),
        node: "node-1".into(),
        http_port: 80,
        https_port: 443,
        reserved_ports: [6443].into(),
        closed_ports: BTreeMap::new(),
        now: jiff::Timestamp::from_second(1_700_000_000).unwrap(),
    }
}

fn object<K: DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn named(namespace: &str, name: &str) -> Value {
    json!({"namespace": namespace, "name": name, "uid": name, "generation": 1, "resourceVersion": "1"})
}

/// A world with a class of each API and a few services: `default/a`, `default/b`, `other/c` on port 80, `default/grpc` on port 50051.
fn world() -> World {
    let mut world = World::default();
    let class = json!({"metadata": {"name": "cox"}, "spec": {"controller": INGRESS_CONTROLLER}});
    world.ingress_classes.insert("cox".into(), object(class));
    let class = json!({"metadata": {"name": "cox"}, "spec": {"controllerName": GATEWAY_CONTROLLER}});
    world.gateway_classes.insert("cox".into(), object(class));
    for (at, (namespace, name, port)) in
        [("default", "a", 80), ("default", "b", 80), ("other", "c", 80), ("default", "grpc", 50051)].iter().enumerate()
    {
        let key = format!("{namespace}/{name}");
        let spec = json!({"ports": [{"name": "web", "port": port}]});
        world.services.insert(key.clone(), object(json!({"metadata": named(namespace, name), "spec": spec})));
        let slice = json!({
            "metadata": named(namespace, name),
            "addressType": "IPv4",
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": [format!("10.42.0.{}", at + 1)]},
                {"addresses": [format!("10.42.1.{}", at + 1)], "conditions": {"ready": false}},
                {"addresses": ["127.0.0.1"]},
                {"addresses": ["169.254.169.254"]},
            ],
        });
        world.slices.entry(key.clone()).or_default().insert(key, object(slice));
    }
    for namespace in ["default", "other"] {
        world.namespaces.insert(namespace.into(), [("name".to_owned(), namespace.to_owned())].into());
    }
    world
}

fn add_secret(world: &mut World, key: &str) {
    let made = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
    let text = |pem: String| k8s_openapi::ByteString(pem.into_bytes());
    let data = [("tls.crt".into(), text(made.cert.pem())), ("tls.key".into(), text(made.signing_key.serialize_pem()))];
    let secret = Secret { data: Some(data.into()), ..Secret::default() };
    world.certificates.insert(key.into(), certificate(&secret));
}

fn ingress(world: &mut World, name: &str, spec: Value) {
    let mut spec = spec;
    if spec.get("ingressClassName").is_none() {
        spec["ingressClassName"] = json!("cox");
    }
    let value = json!({"metadata": named("default", name), "spec": spec});
    world.ingresses.insert(format!("default/{name}"), object(value));
}

fn backend(service: &str) -> Value {
    json!({"service": {"name": service, "port": {"name": "web"}}})
}

fn path(path: &str, kind: &str, service: &str) -> Value {
    json!({"path": path, "pathType": kind, "backend": backend(service)})
}

/// The route of a GET, by its name and the first backend it leads to.
fn route(plan: &Plan, port: u16, host: &str, target: &str) -> Option<Arc<Route>> {
    let (path, query) = target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    let (method, headers) = (Method::GET, HeaderMap::new());
    let asked = Asked { path, query, method: &method, headers: &headers };
    let listener = plan.table.ports.get(&Bind::shared(port))?.listeners.best(host)?;
    let found = listener.hosts.matching(host).find_map(|rules| rules.find(&asked))?;
    Some(found.route.clone())
}

fn leads_to(plan: &Plan, port: u16, host: &str, target: &str) -> String {
    let Some(route) = route(plan, port, host, target) else { return "nowhere".into() };
    match &route.action {
        Action::Forward(backends) => match &backends[0].backend {
            Some(backend) => format!("{} {:?}", backend.name, backend.endpoints),
            None => "broken".into(),
        },
        Action::Redirect(redirect) => format!("redirect {}", redirect.code.as_u16()),
        Action::Refuse(code) => format!("refused {}", code.as_u16()),
    }
}

fn gateway(world: &mut World, name: &str, listeners: Value) {
    let value =
        json!({"metadata": named("default", name), "spec": {"gatewayClassName": "cox", "listeners": listeners}});
    world.gateways.insert(format!("default/{name}"), object(value));
}

fn http_route(world: &mut World, namespace: &str, name: &str, spec: Value) {
    let mut spec = spec;
    if spec.get("parentRefs").is_none() {
        spec["parentRefs"] = json!([{"name": "gw", "namespace": "default"}]);
    }
    let value = json!({"metadata": named(namespace, name), "spec": spec});
    world.http_routes.insert(format!("{namespace}/{name}"), object(value));
}

fn to(service: &str) -> Value {
    json!([{"backendRefs": [{"name": service, "port": 80}]}])
}

/// The conditions of a status as `Type=Reason` where true and `!Type=Reason` where not.
fn said(conditions: &Value) -> String {
    let one = |condition: &Value| {
        let not = if condition["status"] == "True" { "" } else { "!" };
        format!("{not}{}={}", condition["type"].as_str().unwrap(), condition["reason"].as_str().unwrap())
    };
    conditions.as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(" ")
}

fn of_route(plan: &Plan, name: &str) -> String {
    let is_it = |status: &&Status| status.name == name && status.kind > Kind::Gateway;
    let Some(status) = plan.statuses.iter().find(is_it) else { return "no status".into() };
    status.status["parents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| said(&at["conditions"]))
        .collect::<Vec<_>>()
        .join(" | ")
}

fn of_listener(plan: &Plan, at: usize) -> String {
    let status = plan.statuses.iter().find(|status| status.kind == Kind::Gateway).unwrap();
    let listener = &status.status["listeners"][at];
    format!("{} {}", listener["attachedRoutes"], said(&listener["conditions"]))
}

const GOOD: &str = "Accepted=Accepted ResolvedRefs=ResolvedRefs";

fn gateway_of(world: &mut World, namespace: &str, name: &str, created: &str, listeners: Value) {
    let mut metadata = named(namespace, name);
    metadata["creationTimestamp"] = json!(created);
    let value = json!({"metadata": metadata, "spec": {"gatewayClassName": "cox", "listeners": listeners}});
    world.gateways.insert(format!("{namespace}/{name}"), object(value));
}

fn ingress_of(world: &mut World, host: &str, created: &str) {
    let mut metadata = named("default", "shop");
    metadata["creationTimestamp"] = json!(created);
    let rules = json!([{"host": host, "http": {"paths": [path("/", "Prefix", "a")]}}]);
    let tls = json!([{"hosts": [host], "secretName": "shop"}]);
    let spec = json!({"ingressClassName": "cox", "rules": rules, "tls": tls});
    world.ingresses.insert("default/shop".into(), object(json!({"metadata": metadata, "spec": spec})));
    add_secret(world, "default/shop");
}

fn of_gateway(plan: &Plan, name: &str) -> String {
    let is_it = |status: &&Status| status.name == name && status.kind == Kind::Gateway;
    said(&plan.statuses.iter().find(is_it).unwrap().status["listeners"][0]["conditions"])
}

const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-02-01T00:00:00Z";
