//! Of Gateways and their routes.

use super::*;

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
    let closed_ports = [(Bind::shared(8084), "Address already in use".to_owned())].into();
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
    let ports: Vec<u16> = plan.table.ports.keys().map(|bind| bind.port).collect();
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
    let raw = &plan.table.ports[&Bind::shared(443)];
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
    let port = &plan.table.ports[&Bind::shared(443)];
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
        assert_eq!(plan.table.ports.contains_key(&Bind::shared(8080)), is_served, "{what}");
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

#[test]
fn a_port_that_a_load_balancer_has_is_not_served() {
    let mut world = world();
    gateway(&mut world, "gw", json!([{"name": "web", "port": 8080, "protocol": "HTTP"}]));
    for (address, port, protocol, is_taken) in [
        ("192.0.2.1", 8080, "TCP", true),
        ("192.0.2.1", 8081, "TCP", false),
        ("192.0.2.1", 8080, "UDP", false),
        ("192.0.2.9", 8080, "TCP", false),
    ] {
        let spec = json!({"type": "LoadBalancer", "ports": [{"port": port, "protocol": protocol}]});
        let status = json!({"loadBalancer": {"ingress": [{"ip": address}]}});
        let service = json!({"metadata": named("other", "lb"), "spec": spec, "status": status});
        world.services.insert("other/lb".into(), object(service));
        let plan = plan(&world, &settings());
        let expected = if is_taken { "0 !Accepted=PortUnavailable" } else { "0 Accepted=Accepted" };
        assert!(of_listener(&plan, 0).starts_with(expected), "{address} {port} {protocol}");
        assert_eq!(plan.table.ports.is_empty(), is_taken, "{address} {port} {protocol}");
    }
    // At an address of its own the port is its own.
    let service = json!({"metadata": named("other", "lb"), "spec": {"type": "LoadBalancer", "ports": [{"port": 8080}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    world.services.insert("other/lb".into(), object(service));
    let pool = vec!["198.51.100.0/30".parse().unwrap()];
    assert_eq!(plan(&world, &Settings { pool, ..settings() }).table.ports.len(), 1);
}

#[test]
fn security_a_service_that_asks_for_the_port_of_a_gateway_does_not_get_it() {
    let mut world = world();
    gateway(&mut world, "gw", json!([{"name": "web", "port": 8080, "protocol": "HTTP"}]));
    let tcp = |port: u16| json!({"port": port, "protocol": "TCP"});
    for (granted, is_taken) in [
        (json!([tcp(9000)]), false),
        (json!([{"port": 8080, "protocol": "UDP"}]), false),
        (json!([tcp(9000), tcp(8080)]), true),
    ] {
        // What it was given, and what it asks for since.
        let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": granted}]}});
        let service = json!({"metadata": named("other", "lb"), "status": status,
            "spec": {"type": "LoadBalancer", "ports": [{"port": 8080, "protocol": "TCP"}]}});
        world.services.insert("other/lb".into(), object(service));
        assert_eq!(plan(&world, &settings()).table.ports.is_empty(), is_taken, "{granted}");
    }
}
