//! Of Ingresses.

use super::*;

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
    assert_eq!(
        plan.table.ports.keys().map(|bind| bind.port).collect::<Vec<_>>(),
        [80],
        "without certificates there is no 443"
    );
    assert_eq!(plan.news.len(), 1);
    assert_eq!(plan.news[0].message, "service \"default/c\" not found");
    let statuses: Vec<&Value> =
        plan.statuses.iter().filter(|it| it.kind == Kind::Ingress).map(|it| &it.status).collect();
    assert_eq!(statuses, [&json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}); 2]);
    assert!(!plan.table.endpoints.iter().any(|endpoint| endpoint.ip().is_loopback()), "not this machine's own");
}

#[test]
fn endpoints_are_chosen_by_zone_and_condition() {
    let hinted = |address: &str, zone: &str| json!({"addresses": [address], "hints": {"forZones": [{"name": zone}]}});
    let leaving = |address: &str, serving: bool| json!({"addresses": [address], "conditions": {"ready": false, "serving": serving, "terminating": true}});
    let zones = json!([hinted("10.42.0.1", "x"), hinted("10.42.0.2", "y")]);
    let some_hints = json!([hinted("10.42.0.1", "x"), {"addresses": ["10.42.0.2"]}]);
    let both = "default/a:web [10.42.0.1:8080, 10.42.0.2:8080]";
    for (zone, endpoints, expected) in [
        (Some("y"), &zones, "default/a:web [10.42.0.2:8080]"),
        (Some("z"), &zones, both),
        (None, &zones, both),
        (Some("y"), &some_hints, both),
        (None, &json!([leaving("10.42.0.1", true), leaving("10.42.0.2", false)]), "default/a:web [10.42.0.1:8080]"),
    ] {
        let mut world = world();
        world.zone = zone.map(str::to_owned);
        let slice = json!({
            "metadata": named("default", "a"),
            "addressType": "IPv4",
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        });
        world.slices.entry("default/a".to_owned()).or_default().insert("default/a".to_owned(), object(slice));
        let rules = json!([{"host": "a.test", "http": {"paths": [path("/", "Prefix", "a")]}}]);
        ingress(&mut world, "one", json!({"rules": rules}));
        assert_eq!(leads_to(&plan(&world, &settings()), 80, "a.test", "/"), expected, "{zone:?} {endpoints}");
    }
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
    let port = &plan.table.ports[&Bind::shared(443)];
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
