//! Plans of small clusters.

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
    let listener = plan.table.ports.get(&port)?.listeners.best(host)?;
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

#[test]
fn an_ingress_leads_to_ready_endpoints() {
    let mut world = world();
    let rules = json!([
        {"host": "a.test", "http": {"paths": [path("/", "Prefix", "a"), path("/b", "Exact", "b")]}},
        {"host": "*.wild.test", "http": {"paths": [path("/", "ImplementationSpecific", "b")]}},
    ]);
    ingress(&mut world, "one", json!({"rules": rules, "defaultBackend": backend("b")}));
    ingress(
        &mut world,
        "broken",
        json!({"rules": [{"host": "c.test", "http": {"paths": [path("/", "Prefix", "c")]}}]}),
    );
    let plan = plan(&world, &settings());
    let (a, b) = ("default/a:web [10.42.0.1:8080]", "default/b:web [10.42.0.2:8080]");
    for (host, target, expected) in [
        ("a.test", "/", a),
        ("a.test", "/x/y", a),
        ("a.test", "/b", b),
        ("a.test", "/b/", a),
        ("x.wild.test", "/", b),
        ("c.test", "/", "refused 503"),
        ("wild.test", "/", b),
        ("x.y.wild.test", "/", b),
    ] {
        assert_eq!(leads_to(&plan, 80, host, target), expected, "{host}{target}");
    }
    assert_eq!(plan.table.ports.keys().copied().collect::<Vec<_>>(), [80], "without certificates there is no 443");
    assert_eq!(plan.news.len(), 1);
    assert_eq!(plan.news[0].message, "service \"default/c\" not found");
    let statuses: Vec<&Value> =
        plan.statuses.iter().filter(|it| it.kind == Kind::Ingress).map(|it| &it.status).collect();
    assert_eq!(statuses, [&json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}); 2]);
    assert!(!plan.table.endpoints.iter().any(|endpoint| endpoint.ip().is_loopback()), "not this machine's own");
}

#[test]
fn only_ingresses_of_our_classes_are_served() {
    let foreign = |name: &str| object(json!({"metadata": {"name": name}, "spec": {"controller": "example.com/other"}}));
    let default = |name: &str, controller: &str| {
        let annotations = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
        object(json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"controller": controller}}))
    };
    for (class, annotation, classes, expected) in [
        (Some("cox"), None, vec![], true),
        (Some("foreign"), None, vec![foreign("foreign")], false),
        (Some("missing"), None, vec![], false),
        (None, Some("cox"), vec![], true),
        (None, Some("nginx"), vec![], false),
        (None, None, vec![], false),
        (None, None, vec![default("cox", INGRESS_CONTROLLER)], true),
        (None, None, vec![default("foreign", "example.com/other")], false),
        (Some("foreign"), Some("cox"), vec![foreign("foreign")], false),
    ] {
        let mut world = world();
        for class in classes {
            let class: Arc<k8s_openapi::api::networking::v1::IngressClass> = class;
            world.ingress_classes.insert(class.metadata.name.clone().unwrap(), class);
        }
        let mut value = json!({"metadata": named("default", "i"), "spec": {"defaultBackend": backend("a")}});
        value["spec"]["ingressClassName"] = json!(class);
        if let Some(annotation) = annotation {
            value["metadata"]["annotations"] = json!({"kubernetes.io/ingress.class": annotation});
        }
        world.ingresses.insert("default/i".into(), object(value));
        let plan = plan(&world, &settings());
        assert_eq!(!plan.table.ports.is_empty(), expected, "{class:?} {annotation:?}");
        assert_eq!(plan.statuses.iter().any(|status| status.kind == Kind::Ingress), expected);
    }
}

#[test]
fn certificates_of_ingresses_are_found_by_name() {
    let mut world = world();
    add_secret(&mut world, "default/one");
    world.certificates.insert("default/bad".into(), Err(anyhow::anyhow!("it has no tls.key").into()));
    let tls = json!([
        {"hosts": ["a.test", "*.b.test"], "secretName": "one"},
        {"hosts": ["c.test"], "secretName": "bad"},
        {"hosts": ["d.test"], "secretName": "gone"},
    ]);
    // The plain one is older and is served with TLS all the same.
    ingress(&mut world, "a-plain", json!({"defaultBackend": backend("b")}));
    ingress(
        &mut world,
        "tls",
        json!({"tls": tls, "rules": [{"host": "a.test", "http": {"paths": [path("/", "Prefix", "a")]}}]}),
    );
    let plan = plan(&world, &settings());
    let port = &plan.table.ports[&443];
    assert_eq!(port.protocol, Protocol::Tls);
    let listener = port.listeners.best("a.test").unwrap();
    for (name, expected) in
        [("a.test", true), ("x.b.test", true), ("b.test", false), ("x.y.b.test", false), ("c.test", false)]
    {
        assert_eq!(listener.certificates.best(name).is_some(), expected, "{name}");
    }
    assert_eq!(leads_to(&plan, 443, "a.test", "/"), leads_to(&plan, 80, "a.test", "/"));
    assert!(leads_to(&plan, 443, "z.test", "/").starts_with("default/b"));
    let reasons: Vec<&str> = plan.news.iter().map(|news| news.reason).collect();
    assert_eq!(reasons, ["SecretInvalid", "SecretNotFound"]);
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

#[test]
fn a_route_attaches_to_a_gateway() {
    let mut world = world();
    gateway(&mut world, "gw", json!([{"name": "web", "port": 80, "protocol": "HTTP"}]));
    http_route(&mut world, "default", "r", json!({"hostnames": ["a.test"], "rules": to("a")}));
    let plan = plan(&world, &settings());
    assert_eq!(leads_to(&plan, 80, "a.test", "/x"), "default/a:80 [10.42.0.1:8080]");
    assert_eq!(leads_to(&plan, 80, "b.test", "/x"), "nowhere");
    assert_eq!(of_route(&plan, "r"), GOOD);
    let listener = "1 Accepted=Accepted Programmed=Programmed ResolvedRefs=ResolvedRefs !Conflicted=NoConflicts";
    assert_eq!(of_listener(&plan, 0), listener);
    let status = &plan.statuses.iter().find(|status| status.kind == Kind::Gateway).unwrap().status;
    assert_eq!(said(&status["conditions"]), "Accepted=Accepted Programmed=Programmed");
    assert_eq!(status["addresses"], json!([{"type": "IPAddress", "value": "192.0.2.1"}]));
    assert_eq!(status["conditions"][0]["observedGeneration"], 1);
    let class = plan.statuses.iter().find(|status| status.kind == Kind::GatewayClass).unwrap();
    assert_eq!(said(&class.status["conditions"]), "Accepted=Accepted");
    assert_eq!(class.status["supportedFeatures"][0], json!({"name": "BackendTLSPolicy"}));
    // What is written once is not written again, at whatever time.
    let written = |kind| plan.statuses.iter().find(|status| status.kind == kind).unwrap().status.clone();
    let with_status = |object: &Value, status: Value| {
        let mut object = object.clone();
        object["status"] = status;
        object
    };
    let route = serde_json::to_value(&*world.http_routes["default/r"]).unwrap();
    world.http_routes.insert("default/r".into(), object(with_status(&route, written(Kind::HttpRoute))));
    let gw = serde_json::to_value(&*world.gateways["default/gw"]).unwrap();
    world.gateways.insert("default/gw".into(), object(with_status(&gw, written(Kind::Gateway))));
    let class = serde_json::to_value(&*world.gateway_classes["cox"]).unwrap();
    world.gateway_classes.insert("cox".into(), object(with_status(&class, written(Kind::GatewayClass))));
    let later = Settings { now: jiff::Timestamp::from_second(1_800_000_000).unwrap(), ..settings() };
    assert_eq!(super::plan(&world, &later).statuses, []);
}

#[test]
fn routes_are_refused_with_the_reasons_of_the_standard() {
    let mut world = world();
    gateway(
        &mut world,
        "gw",
        json!([
            {"name": "web", "hostname": "*.a.test", "port": 80, "protocol": "HTTP"},
            {"name": "all", "hostname": "*.b.test", "port": 80, "protocol": "HTTP",
             "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"name": "other"}}}}},
        ]),
    );
    let rule = |more: Value| json!({"rules": [more], "hostnames": ["x.a.test"]});
    let at = |section: &str| json!([{"name": "gw", "namespace": "default", "sectionName": section}]);
    http_route(&mut world, "default", "elsewhere", json!({"hostnames": ["c.test"], "rules": to("a")}));
    http_route(&mut world, "default", "section", json!({"parentRefs": at("nope"), "rules": to("a")}));
    http_route(&mut world, "other", "outside", json!({"parentRefs": at("web"), "rules": to("c")}));
    http_route(&mut world, "other", "selected", json!({"parentRefs": at("all"), "rules": to("c")}));
    http_route(&mut world, "default", "unselected", json!({"parentRefs": at("all"), "rules": to("a")}));
    http_route(&mut world, "default", "missing", rule(json!({"backendRefs": [{"name": "gone", "port": 80}]})));
    http_route(
        &mut world,
        "default",
        "kind",
        rule(json!({"backendRefs": [{"kind": "Bucket", "group": "x", "name": "a", "port": 80}]})),
    );
    http_route(
        &mut world,
        "default",
        "ungranted",
        rule(json!({"backendRefs": [{"name": "c", "namespace": "other", "port": 80}]})),
    );
    http_route(&mut world, "default", "filter", rule(json!({"filters": [{"type": "ExtensionRef"}]})));
    http_route(
        &mut world,
        "default",
        "regex",
        rule(json!({"matches": [{"path": {"type": "RegularExpression", "value": "("}}]})),
    );
    http_route(&mut world, "default", "retry", rule(json!({"retry": {"attempts": 3}})));
    http_route(&mut world, "default", "sticky", rule(json!({"sessionPersistence": {"sessionName": "s"}})));
    http_route(&mut world, "default", "foreign", json!({"parentRefs": [{"name": "other"}], "rules": to("a")}));
    let plan = plan(&world, &settings());
    for (name, expected) in [
        ("elsewhere", "!Accepted=NoMatchingListenerHostname ResolvedRefs=ResolvedRefs"),
        ("section", "!Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs"),
        ("outside", "!Accepted=NotAllowedByListeners ResolvedRefs=ResolvedRefs"),
        ("selected", GOOD),
        ("unselected", "!Accepted=NotAllowedByListeners ResolvedRefs=ResolvedRefs"),
        ("missing", "Accepted=Accepted !ResolvedRefs=BackendNotFound"),
        ("kind", "Accepted=Accepted !ResolvedRefs=InvalidKind"),
        ("ungranted", "Accepted=Accepted !ResolvedRefs=RefNotPermitted"),
        ("filter", "!Accepted=UnsupportedValue ResolvedRefs=ResolvedRefs"),
        ("regex", "!Accepted=UnsupportedValue ResolvedRefs=ResolvedRefs"),
        ("retry", "!Accepted=UnsupportedValue ResolvedRefs=ResolvedRefs"),
        ("sticky", "!Accepted=UnsupportedValue ResolvedRefs=ResolvedRefs"),
        ("foreign", "no status"),
    ] {
        assert_eq!(of_route(&plan, name), expected, "{name}");
    }
    assert!(of_listener(&plan, 0).starts_with("3 "), "{}", of_listener(&plan, 0));
    assert!(of_listener(&plan, 1).starts_with("1 "), "{}", of_listener(&plan, 1));
}

#[test]
fn security_other_namespaces_are_reached_by_grants_only() {
    let mut world = world();
    gateway(
        &mut world,
        "gw",
        json!([{"name": "tls", "port": 443, "protocol": "HTTPS", "hostname": "a.test",
            "tls": {"certificateRefs": [{"name": "cert", "namespace": "other"}]}}]),
    );
    add_secret(&mut world, "other/cert");
    http_route(
        &mut world,
        "default",
        "r",
        json!({"rules": [{"backendRefs": [{"name": "c", "namespace": "other", "port": 80}]}]}),
    );
    let grant =
        |from: Value, to: Value| object(json!({"metadata": named("other", "g"), "spec": {"from": [from], "to": [to]}}));
    let from = |kind: &str, namespace: &str| json!({"group": "gateway.networking.k8s.io", "kind": kind, "namespace": namespace});
    let service = json!({"group": "", "kind": "Service", "name": "c"});
    for (grant, route, listener) in [
        (None, "RefNotPermitted", "RefNotPermitted"),
        (Some(grant(from("HTTPRoute", "default"), service.clone())), "ResolvedRefs", "RefNotPermitted"),
        (Some(grant(from("HTTPRoute", "elsewhere"), service.clone())), "RefNotPermitted", "RefNotPermitted"),
        (Some(grant(from("GRPCRoute", "default"), service)), "RefNotPermitted", "RefNotPermitted"),
        (
            Some(grant(from("HTTPRoute", "default"), json!({"group": "", "kind": "Service", "name": "d"}))),
            "RefNotPermitted",
            "RefNotPermitted",
        ),
        (
            Some(grant(from("Gateway", "default"), json!({"group": "", "kind": "Secret"}))),
            "RefNotPermitted",
            "ResolvedRefs",
        ),
    ] {
        world.grants.clear();
        world.grants.extend(grant.map(|grant| ("other/g".to_owned(), grant)));
        let plan = plan(&world, &settings());
        assert!(of_route(&plan, "r").contains(&format!("ResolvedRefs={route}")), "{}", of_route(&plan, "r"));
        assert!(of_listener(&plan, 0).contains(&format!("ResolvedRefs={listener}")), "{}", of_listener(&plan, 0));
        let is_shown = plan.table.ports[&443].listeners.best("a.test").unwrap().certificates.best("a.test").is_some();
        assert_eq!(is_shown, listener == "ResolvedRefs");
    }
}

#[test]
fn listeners_in_conflict_are_not_served() {
    let mut world = world();
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    gateway(
        &mut world,
        "gw",
        json!([
            {"name": "one", "port": 8080, "protocol": "HTTP", "hostname": "a.test"},
            {"name": "two", "port": 8080, "protocol": "HTTP", "hostname": "a.test"},
            {"name": "mixed", "port": 8081, "protocol": "HTTP"},
            {"name": "tls", "port": 8081, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
            {"name": "udp", "port": 8082, "protocol": "UDP"},
            {"name": "low", "port": 22, "protocol": "HTTP"},
            {"name": "kinds", "port": 8083, "protocol": "HTTP", "allowedRoutes": {"kinds": [{"kind": "TLSRoute"}]}},
            {"name": "ingress", "port": 80, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
            {"name": "closed", "port": 8084, "protocol": "HTTP"},
        ]),
    );
    let closed_ports = [(8084, "Address already in use".to_owned())].into();
    let plan = plan(&world, &Settings { closed_ports, ..settings() });
    let conflict = |reason: &str| {
        format!("0 !Accepted={reason} !Programmed=Invalid ResolvedRefs=ResolvedRefs Conflicted={reason}")
    };
    let refused = |reason: &str| {
        format!("0 !Accepted={reason} !Programmed=Invalid ResolvedRefs=ResolvedRefs !Conflicted=NoConflicts")
    };
    for (at, expected) in [
        (0, conflict("HostnameConflict")),
        (1, conflict("HostnameConflict")),
        (2, conflict("ProtocolConflict")),
        (3, conflict("ProtocolConflict")),
        (4, refused("UnsupportedProtocol")),
        (5, refused("PortUnavailable")),
        (
            6,
            "0 Accepted=Accepted !Programmed=Invalid !ResolvedRefs=InvalidRouteKinds !Conflicted=NoConflicts"
                .to_owned(),
        ),
        (7, conflict("ProtocolConflict")),
        (8, refused("PortUnavailable")),
    ] {
        assert_eq!(of_listener(&plan, at), expected, "{at}");
    }
    let ports: Vec<u16> = plan.table.ports.keys().copied().collect();
    assert_eq!(ports, [80, 8083, 8084], "a port that is taken is tried again");
    assert!(leads_to(&plan, 80, "x", "/").starts_with("default/a"));
}

#[test]
fn rules_filters_and_weights_are_read() {
    let mut world = world();
    gateway(&mut world, "gw", json!([{"name": "web", "port": 80, "protocol": "HTTP"}]));
    let rules = json!([
        {"matches": [{"path": {"type": "Exact", "value": "/exact"}}, {"queryParams": [{"name": "q", "value": "1"}]}],
         "backendRefs": [{"name": "a", "port": 80, "weight": 3}, {"name": "gone", "port": 80}],
         "timeouts": {"request": "10s", "backendRequest": "2s"}},
        {"matches": [{"path": {"value": "/old"}}],
         "filters": [{"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 301}}]},
        {"matches": [{"path": {"value": "/filtered"}}], "backendRefs": [{"name": "b", "port": 80}],
         "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x", "value": "1"}], "remove": ["y"]}},
            {"type": "URLRewrite", "urlRewrite": {"hostname": "z.test", "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "a", "port": 80}, "percent": 10}},
            {"type": "CORS", "cors": {"allowOrigins": ["https://*.a.test"], "allowMethods": ["*"], "exposeHeaders": ["x", "y"]}}]},
        {"matches": [{"path": {"value": "/empty"}}]},
    ]);
    http_route(&mut world, "default", "r", json!({"rules": rules}));
    let plan = plan(&world, &settings());
    let found = |target: &str| route(&plan, 80, "any.test", target).unwrap();
    let weighted = found("/exact");
    let Action::Forward(backends) = &weighted.action else { panic!("forwards") };
    let weights: Vec<(u32, bool)> = backends.iter().map(|it| (it.weight, it.backend.is_some())).collect();
    assert_eq!(weights, [(3, true), (1, false)]);
    assert_eq!((weighted.timeout.unwrap().as_secs(), weighted.backend_timeout.unwrap().as_secs()), (10, 2));
    assert!(leads_to(&plan, 80, "h", "/else?q=1").starts_with("default/a"));
    assert_eq!(leads_to(&plan, 80, "h", "/else"), "nowhere");
    assert_eq!(leads_to(&plan, 80, "h", "/old/page"), "redirect 301");
    assert_eq!(leads_to(&plan, 80, "h", "/empty"), "refused 500");
    let filtered = found("/filtered/x");
    assert!(matches!(filtered.filters[0], Filter::RequestHeaders(_)));
    assert!(matches!(&filtered.filters[2], Filter::Mirror { share: (10, 100), .. }));
    let cors = filtered.filters[3].cors().unwrap();
    assert_eq!((&cors.methods, &cors.headers, cors.max_age.as_bytes()), (&Listed::Any, &Listed::Nothing, &b"5"[..]));
    assert_eq!(cors.exposed, Listed::These(http::HeaderValue::from_static("x, y")));
}

#[test]
fn grpc_and_tls_routes_attach_to_their_listeners() {
    let mut world = world();
    gateway(
        &mut world,
        "gw",
        json!([
            {"name": "web", "port": 80, "protocol": "HTTP"},
            {"name": "raw", "port": 443, "protocol": "TLS", "hostname": "*.raw.test", "tls": {"mode": "Passthrough"}},
        ]),
    );
    let refs = json!([{"name": "gw"}]);
    let rules = json!([{"matches": [{"method": {"service": "pkg.Svc", "method": "Do"}}],
        "backendRefs": [{"name": "grpc", "port": 50051}]}]);
    let value = json!({"metadata": named("default", "g"), "spec": {"parentRefs": refs, "rules": rules}});
    world.grpc_routes.insert("default/g".into(), object(value));
    let rules = json!([{"backendRefs": [{"name": "a", "port": 80}]}]);
    let spec = json!({"parentRefs": refs, "hostnames": ["x.raw.test"], "rules": rules});
    world.tls_routes.insert("default/t".into(), object(json!({"metadata": named("default", "t"), "spec": spec})));
    let plan = plan(&world, &settings());
    assert_eq!((of_route(&plan, "g").as_str(), of_route(&plan, "t").as_str()), (GOOD, GOOD));
    let grpc = route(&plan, 80, "h", "/pkg.Svc/Do").unwrap();
    let Action::Forward(backends) = &grpc.action else { panic!("forwards") };
    assert_eq!(backends[0].backend.as_ref().unwrap().protocol, crate::table::BackendProtocol::Http2);
    assert_eq!(leads_to(&plan, 80, "h", "/pkg.Svc/Other"), "nowhere");
    let raw = &plan.table.ports[&443];
    assert!(!raw.stream("x.raw.test").unwrap().is_terminated && raw.stream("y.raw.test").is_none());
    assert!(of_listener(&plan, 1).starts_with("1 Accepted"), "{}", of_listener(&plan, 1));
}

#[test]
fn tls_ends_here_or_at_the_backend_as_the_listener_says() {
    let mut world = world();
    add_secret(&mut world, "default/cert");
    let tls = |mode: &str| json!({"mode": mode, "certificateRefs": [{"name": "cert"}]});
    gateway(
        &mut world,
        "gw",
        json!([
            {"name": "ends", "port": 443, "protocol": "TLS", "hostname": "ends.test", "tls": tls("Terminate")},
            {"name": "raw", "port": 443, "protocol": "TLS", "hostname": "raw.test", "tls": tls("Passthrough")},
            {"name": "web", "port": 443, "protocol": "HTTPS", "hostname": "web.test", "tls": tls("Terminate")},
            {"name": "all", "port": 443, "protocol": "TLS", "tls": tls("Passthrough")},
            {"name": "never", "port": 443, "protocol": "HTTPS", "hostname": "never.test", "tls": tls("Passthrough")},
        ]),
    );
    let value = |hostnames: Value| {
        let spec = json!({"parentRefs": [{"name": "gw"}], "hostnames": hostnames, "rules": to("a")});
        object(json!({"metadata": named("default", "t"), "spec": spec}))
    };
    world.tls_routes.insert("default/t".into(), value(json!(["ends.test", "raw.test", "some.test"])));
    let plan = plan(&world, &settings());
    assert_eq!(of_route(&plan, "t"), GOOD);
    let port = &plan.table.ports[&443];
    let (ends, raw) = (port.stream("ends.test").unwrap(), port.stream("raw.test").unwrap());
    assert!(ends.is_terminated && !raw.is_terminated);
    assert!(port.certificate(Some("ends.test")).is_some() && port.certificate(Some("raw.test")).is_none());
    // Who is for no stream gets an answer where there can be one.
    for (name, expected) in [(Some("web.test"), true), (Some("other.test"), false), (None, false)] {
        assert!(name.is_none_or(|name| port.stream(name).is_none()));
        assert_eq!(port.is_answered(name), expected, "{name:?}");
    }
    let served = "1 Accepted=Accepted Programmed=Programmed ResolvedRefs=ResolvedRefs !Conflicted=NoConflicts";
    assert_eq!((of_listener(&plan, 0).as_str(), of_listener(&plan, 1).as_str()), (served, served));
    assert!(of_listener(&plan, 4).starts_with("0 !Accepted=UnsupportedValue"), "{}", of_listener(&plan, 4));
}

#[test]
fn security_a_stream_knows_that_its_backend_wants_tls() {
    for (protocol, expected) in [(None, false), (Some("https"), true)] {
        let mut world = world();
        gateway(
            &mut world,
            "gw",
            json!([{"name": "raw", "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}]),
        );
        let spec = json!({"ports": [{"name": "web", "port": 80, "appProtocol": protocol}]});
        world.services.insert("default/a".into(), object(json!({"metadata": named("default", "a"), "spec": spec})));
        let spec = json!({"parentRefs": [{"name": "gw"}], "hostnames": ["a.test"], "rules": to("a")});
        world.tls_routes.insert("default/t".into(), object(json!({"metadata": named("default", "t"), "spec": spec})));
        let plan = plan(&world, &settings());
        assert_eq!(of_route(&plan, "t"), GOOD);
        let stream = plan.table.ports[&443].stream("a.test").unwrap();
        let Action::Forward(backends) = &stream.route.action else { panic!("forwards") };
        let backend = backends[0].backend.as_ref().unwrap();
        assert_eq!((backend.wants_tls, backend.tls.is_some()), (expected, false));
    }
}

#[test]
fn gateways_that_ask_for_what_is_not_there_say_so() {
    let at = |value: &str| json!([{"type": "IPAddress", "value": value}]);
    let parameters = json!({"parametersRef": {"group": "x.test", "kind": "Parameters", "name": "p"}});
    for (addresses, infrastructure, expected, is_served) in [
        (json!([]), json!({"labels": {"a": "b"}}), "Accepted=Accepted Programmed=Programmed", true),
        (json!([]), parameters, "!Accepted=InvalidParameters !Programmed=Invalid", false),
        (at("192.0.2.1"), json!({}), "Accepted=Accepted Programmed=Programmed", true),
        (json!([{"type": "IPAddress"}]), json!({}), "Accepted=Accepted Programmed=Programmed", true),
        (at("192.0.2.9"), json!({}), "Accepted=Accepted !Programmed=AddressNotUsable", true),
        (
            json!([{"type": "Hostname", "value": "gw.test"}]),
            json!({}),
            "!Accepted=UnsupportedAddress !Programmed=Invalid",
            false,
        ),
    ] {
        let what = format!("{addresses} {infrastructure}");
        let mut world = world();
        let listeners = json!([{"name": "web", "port": 8080, "protocol": "HTTP"}]);
        let spec = json!({"gatewayClassName": "cox", "listeners": listeners, "addresses": addresses,
            "infrastructure": infrastructure});
        world.gateways.insert("default/gw".into(), object(json!({"metadata": named("default", "gw"), "spec": spec})));
        let plan = plan(&world, &settings());
        let status = &plan.statuses.iter().find(|status| status.kind == Kind::Gateway).unwrap().status;
        assert_eq!(said(&status["conditions"]), expected, "{what}");
        assert_eq!(plan.table.ports.contains_key(&8080), is_served, "{what}");
    }
}

#[test]
fn a_gateway_has_the_addresses_that_it_asks_for() {
    let both = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    for (asked, expected) in [
        (json!([]), vec!["192.0.2.1", "2001:db8::1"]),
        (json!([{"type": "IPAddress"}]), vec!["192.0.2.1", "2001:db8::1"]),
        (json!([{"value": "2001:db8:0::1"}]), vec!["2001:db8::1"]),
        (json!([{"value": "192.0.2.1"}, {"value": "192.0.2.9"}]), vec!["192.0.2.1"]),
    ] {
        let mut world = world();
        let listeners = json!([{"name": "web", "port": 80, "protocol": "HTTP"}]);
        let spec = json!({"gatewayClassName": "cox", "listeners": listeners, "addresses": asked});
        world.gateways.insert("default/gw".into(), object(json!({"metadata": named("default", "gw"), "spec": spec})));
        let plan = plan(&world, &Settings { addresses: both.clone(), ..settings() });
        let status = &plan.statuses.iter().find(|status| status.kind == Kind::Gateway).unwrap().status;
        let found: Vec<&str> =
            status["addresses"].as_array().unwrap().iter().map(|it| it["value"].as_str().unwrap()).collect();
        assert_eq!(found, expected, "{asked}");
    }
}

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

#[test]
fn security_a_listener_without_a_certificate_borrows_none() {
    let mut world = world();
    add_secret(&mut world, "default/wild");
    let tls = |secret: &str| json!({"certificateRefs": [{"name": secret}]});
    let wild = json!([
        {"name": "wild", "port": 8443, "protocol": "HTTPS", "hostname": "*.shop.test", "tls": tls("wild")},
    ]);
    gateway_of(&mut world, "default", "wild", OLD, wild);
    let all = json!([{"name": "all", "port": 8443, "protocol": "HTTPS", "tls": tls("wild")}]);
    gateway_of(&mut world, "default", "all", OLD, all);
    let thief =
        json!([{"name": "t", "port": 8443, "protocol": "HTTPS", "hostname": "pay.shop.test", "tls": tls("none")}]);
    gateway_of(&mut world, "other", "thief", NEW, thief);
    let plan = plan(&world, &settings());
    let port = &plan.table.ports[&8443];
    for (name, expected) in
        [(Some("www.shop.test"), true), (Some("pay.shop.test"), false), (Some("unknown.test"), true), (None, true)]
    {
        assert_eq!(port.certificate(name).is_some(), expected, "{name:?}");
    }
    // Nor is a connection that names nobody one for the listener of some hosts.
    let thief = port.listeners.best("pay.shop.test").unwrap();
    assert!(!Arc::ptr_eq(port.named(None).unwrap(), thief));
}

#[test]
fn security_a_gateway_that_asks_for_what_is_not_there_is_not_served() {
    let validation = json!({"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]});
    const SERVED: &str = "Accepted=Accepted Programmed=Programmed";
    const NO_LISTENER: &str = "!Accepted=ListenersNotValid !Programmed=Invalid";
    let cases = [
        (json!({}), json!({}), SERVED),
        // Clients whose certificates nobody checks do not get in.
        (json!({}), json!({"frontendValidation": validation}), NO_LISTENER),
        (json!({"tls": {"frontend": {"default": {"validation": validation}}}}), json!({}), NO_LISTENER),
        (
            json!({"tls": {"backend": {"clientCertificateRef": {"name": "own"}}}}),
            json!({}),
            "!Accepted=Invalid !Programmed=Invalid",
        ),
    ];
    let of_protocols = ["HTTPS", "TLS"].into_iter().flat_map(|protocol| cases.clone().map(|case| (protocol, case)));
    for (protocol, (mut spec, mut tls, expected)) in of_protocols {
        let mut world = world();
        add_secret(&mut world, "default/own");
        tls["certificateRefs"] = json!([{"name": "own"}]);
        spec["gatewayClassName"] = json!("cox");
        spec["listeners"] = json!([{"name": "web", "port": 8443, "protocol": protocol, "tls": tls}]);
        let gateway = json!({"metadata": named("default", "gw"), "spec": spec});
        world.gateways.insert("default/gw".into(), object(gateway));
        let plan = plan(&world, &settings());
        let status = plan.statuses.iter().find(|status| status.kind == Kind::Gateway).unwrap();
        assert_eq!(said(&status.status["conditions"]), expected, "{spec}");
        assert_eq!(plan.table.ports.contains_key(&8443), expected == SERVED, "{spec}");
    }
}

#[test]
fn security_a_namespace_does_not_join_in_the_listener_of_another() {
    for hostname in [None, Some("shop.test")] {
        let mut world = world();
        let listener = json!([{"name": "web", "port": 80, "protocol": "HTTP", "hostname": hostname}]);
        gateway_of(&mut world, "default", "gw", OLD, listener.clone());
        gateway_of(&mut world, "default", "same", NEW, listener.clone());
        gateway_of(&mut world, "other", "thief", NEW, listener);
        http_route(&mut world, "default", "shop", json!({"hostnames": ["shop.test"], "rules": to("a")}));
        let rules = json!([{"matches": [{"path": {"type": "Exact", "value": "/login"}}],
            "backendRefs": [{"name": "c", "port": 80}]}]);
        let refs = json!([{"name": "thief"}]);
        http_route(
            &mut world,
            "other",
            "thief",
            json!({"parentRefs": refs, "hostnames": ["shop.test"], "rules": rules}),
        );
        let plan = plan(&world, &settings());
        assert!(leads_to(&plan, 80, "shop.test", "/login").starts_with("default/a"));
        assert!(of_route(&plan, "thief").starts_with("!Accepted"), "{}", of_route(&plan, "thief"));
        assert!(of_gateway(&plan, "thief").contains("Conflicted=HostnameConflict"));
        for name in ["gw", "same"] {
            assert!(of_gateway(&plan, name).contains("!Conflicted=NoConflicts"), "{name}");
        }
    }
}

#[test]
fn security_the_host_of_an_older_ingress_stays_with_its_namespace() {
    let raw = json!({"mode": "Passthrough"});
    for (namespace, created, host, listener, hostname, is_taken) in [
        ("other", NEW, "shop.test", json!({"protocol": "HTTP", "port": 80}), Some("shop.test"), false),
        ("other", NEW, "www.shop.test", json!({"protocol": "HTTP", "port": 80}), Some("*.shop.test"), false),
        ("other", NEW, "*.shop.test", json!({"protocol": "HTTP", "port": 80}), Some("*.shop.test"), false),
        ("other", NEW, "shop.test", json!({"protocol": "HTTP", "port": 80}), None, false),
        ("other", NEW, "shop.test", json!({"protocol": "TLS", "port": 443, "tls": raw}), Some("shop.test"), false),
        ("other", NEW, "shop.test", json!({"protocol": "TLS", "port": 443, "tls": raw}), None, false),
        ("other", OLD, "shop.test", json!({"protocol": "HTTP", "port": 80}), Some("shop.test"), true),
        ("default", NEW, "shop.test", json!({"protocol": "HTTP", "port": 80}), Some("shop.test"), true),
    ] {
        let what = format!("{namespace} {created} {host} {listener} {hostname:?}");
        let mut world = world();
        ingress_of(&mut world, host, if created == OLD { NEW } else { OLD });
        let mut listener = listener;
        listener["name"] = json!("l");
        listener["hostname"] = json!(hostname);
        gateway_of(&mut world, namespace, "gw", created, json!([listener]));
        let mut metadata = named(namespace, "thief");
        metadata["creationTimestamp"] = json!(created);
        let (service, name) = if namespace == "other" { ("c", "other/c") } else { ("b", "default/b") };
        let mut spec = json!({"parentRefs": [{"name": "gw"}], "rules": to(service), "hostnames": [host]});
        if listener["protocol"] == "TLS" {
            world.tls_routes.insert("x".into(), object(json!({"metadata": metadata, "spec": spec})));
        } else {
            spec["rules"][0]["matches"] = json!([{"method": "GET"}]);
            world.http_routes.insert("x".into(), object(json!({"metadata": metadata, "spec": spec})));
        }
        let plan = plan(&world, &settings());
        let asked = host.replace('*', "www");
        for port in [80, 443] {
            if listener["port"] == port {
                assert_eq!(leads_to(&plan, port, &asked, "/").starts_with(name), is_taken, "{what}");
            }
            assert!(plan.table.ports[&port].stream(&asked).is_none(), "{what}");
        }
        assert_eq!(of_route(&plan, "thief").starts_with("Accepted"), is_taken, "{what}");
    }
}

#[test]
fn security_gateways_open_neither_the_ports_of_the_cluster_nor_all_others() {
    let mut world = world();
    let cluster = [6443, 10250, 10256, 2379];
    for port in cluster {
        let listener = json!([{"name": "l", "port": port, "protocol": "HTTP"}]);
        gateway_of(&mut world, "default", &format!("gw-{port}"), OLD, listener);
    }
    for at in 0..5 {
        let listeners: Vec<Value> = (0..64)
            .map(|it| json!({"name": format!("l{it}"), "port": 20_000 + at * 64 + it, "protocol": "HTTP"}))
            .collect();
        gateway_of(&mut world, "default", &format!("many-{at}"), NEW, json!(listeners));
    }
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    let plan = plan(&world, &settings());
    for port in cluster {
        assert!(!plan.table.ports.contains_key(&port), "{port}");
        assert!(of_gateway(&plan, &format!("gw-{port}")).starts_with("!Accepted=PortUnavailable"));
    }
    assert_eq!(plan.table.ports.len(), 128);
    assert!(plan.table.ports.contains_key(&80));
    assert!(of_gateway(&plan, "many-0").starts_with("Accepted=Accepted"));
    assert!(of_gateway(&plan, "many-4").starts_with("!Accepted=PortUnavailable"));
}

#[test]
fn security_no_endpoint_is_the_gateway_itself() {
    let mut world = world();
    gateway(&mut world, "gw", json!([{"name": "l", "port": 8081, "protocol": "HTTP"}]));
    let slice = |port: u16| {
        object(json!({"metadata": named("default", "a"), "addressType": "IPv4",
            "ports": [{"name": "web", "port": port, "protocol": "TCP"}], "endpoints": [{"addresses": ["192.0.2.1"]}]}))
    };
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    for (port, is_reached) in [(80, false), (443, false), (8081, false), (8080, true)] {
        world.slices.insert("default/a".into(), [("default/a".to_owned(), slice(port))].into());
        let plan = plan(&world, &settings());
        assert_eq!(!plan.table.endpoints.is_empty(), is_reached, "{port}");
    }
    // What another program listens on is not the gateway's.
    world.slices.insert("default/a".into(), [("default/a".to_owned(), slice(8081))].into());
    let closed_ports = [(8081, "Address already in use".to_owned())].into();
    assert!(!plan(&world, &Settings { closed_ports, ..settings() }).table.endpoints.is_empty());
}

#[test]
fn security_no_endpoint_is_a_service() {
    let mut world = world();
    let spec = json!({"type": "LoadBalancer", "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"],
        "externalIPs": ["203.0.113.7"], "ports": [{"name": "web", "port": 8080, "nodePort": 30080}]});
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]}});
    let service = json!({"metadata": named("default", "circle"), "spec": spec, "status": status});
    world.services.insert("default/circle".into(), object(service));
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    for (address, port, is_reached) in [
        ("10.42.0.9", 8080, true),
        ("10.43.0.9", 8080, false),
        ("10.43.0.9", 9, false),
        ("fd43::9", 8080, false),
        ("203.0.113.7", 8080, false),
        ("203.0.113.7", 8081, true),
        ("192.0.2.2", 8080, false),
        ("192.0.2.2", 8081, true),
        ("192.0.2.1", 30080, false),
    ] {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        let slice = object(json!({"metadata": named("default", "a"), "addressType": family,
            "ports": [{"name": "web", "port": port, "protocol": "TCP"}], "endpoints": [{"addresses": [address]}]}));
        world.slices.insert("default/a".into(), [("default/a".to_owned(), slice)].into());
        assert_eq!(!plan(&world, &settings()).table.endpoints.is_empty(), is_reached, "{address} {port}");
    }
}

#[test]
fn security_a_route_has_so_many_regular_expressions() {
    for (count, expected) in [(32, GOOD), (33, "!Accepted=UnsupportedValue ResolvedRefs=ResolvedRefs")] {
        let mut world = world();
        gateway(&mut world, "gw", json!([{"name": "web", "port": 80, "protocol": "HTTP"}]));
        let one = |at: usize| {
            json!({"path": {"type": "RegularExpression", "value": format!("/{at}")},
                "headers": [{"type": "RegularExpression", "name": "x", "value": "y+"}]})
        };
        let matches: Vec<Value> = (0..count).map(one).collect();
        let rules = json!([{"matches": matches, "backendRefs": [{"name": "a", "port": 80}]}]);
        http_route(&mut world, "default", "r", json!({"rules": rules}));
        assert_eq!(of_route(&plan(&world, &settings()), "r"), expected);
    }
}
