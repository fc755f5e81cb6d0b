//! What one namespace may not do to another, and nobody to the cluster.

use super::*;

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
        let is_shown = plan.table.ports[&Bind::shared(443)]
            .listeners
            .best("a.test")
            .unwrap()
            .certificates
            .best("a.test")
            .is_some();
        assert_eq!(is_shown, listener == "ResolvedRefs");
    }
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
        let stream = plan.table.ports[&Bind::shared(443)].stream("a.test").unwrap();
        let Action::Forward(backends) = &stream.route.action else { panic!("forwards") };
        let backend = backends[0].backend.as_ref().unwrap();
        assert_eq!((backend.wants_tls, backend.tls.is_some()), (expected, false));
    }
}

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
    let port = &plan.table.ports[&Bind::shared(8443)];
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
        assert_eq!(plan.table.ports.contains_key(&Bind::shared(8443)), expected == SERVED, "{spec}");
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
            assert!(plan.table.ports[&Bind::shared(port)].stream(&asked).is_none(), "{what}");
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
    for at in 0..9 {
        let listeners: Vec<Value> = (0..64)
            .map(|it| json!({"name": format!("l{it}"), "port": 20_000 + at * 64 + it, "protocol": "HTTP"}))
            .collect();
        gateway_of(&mut world, &format!("tenant-{}", at / 2), &format!("many-{at}"), NEW, json!(listeners));
    }
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    let plan = plan(&world, &settings());
    for port in cluster {
        assert!(!plan.table.ports.contains_key(&Bind::shared(port)), "{port}");
        assert!(of_gateway(&plan, &format!("gw-{port}")).starts_with("!Accepted=PortUnavailable"));
    }
    assert_eq!(plan.table.ports.len(), 512);
    assert!(plan.table.ports.contains_key(&Bind::shared(80)));
    for at in 0..8 {
        assert!(of_gateway(&plan, &format!("many-{at}")).starts_with("Accepted=Accepted"), "{at}");
    }
    assert!(of_gateway(&plan, "many-8").starts_with("!Accepted=PortUnavailable"));
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
    let closed_ports = [(Bind::shared(8081), "Address already in use".to_owned())].into();
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
