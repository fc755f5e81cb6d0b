//! Of Gateways with addresses of their own.

use super::*;

const POOL: [&str; 2] = ["198.51.100.0/30", "2001:db8:1::/126"];

fn pooled() -> Settings {
    Settings { pool: POOL.map(|range| range.parse().unwrap()).to_vec(), ..settings() }
}

/// A Gateway with the port that all of them have.
fn add(world: &mut World, name: &str, created: &str, addresses: Value) {
    add_in(world, "default", name, created, addresses, &[80]);
}

fn add_in(world: &mut World, namespace: &str, name: &str, created: &str, addresses: Value, ports: &[u16]) {
    let mut metadata = named(namespace, name);
    metadata["creationTimestamp"] = json!(created);
    let listener = |port: &u16| json!({"name": format!("web-{port}"), "port": port, "protocol": "HTTP"});
    let listeners: Vec<Value> = ports.iter().map(listener).collect();
    let spec = json!({"gatewayClassName": "cox", "listeners": listeners, "addresses": addresses});
    world.gateways.insert(format!("{namespace}/{name}"), object(json!({"metadata": metadata, "spec": spec})));
}

/// What a Gateway has and what its status says of it.
fn status(plan: &Plan, name: &str) -> (Vec<String>, String) {
    let is_it = |status: &&Status| status.name == name && status.kind == Kind::Gateway;
    let status = &plan.statuses.iter().find(is_it).unwrap().status;
    let addresses = status["addresses"].as_array().unwrap().iter();
    (addresses.map(|it| it["value"].as_str().unwrap().to_owned()).collect(), said(&status["conditions"]))
}

/// Writes the statuses of Gateways into the world, as the API has them afterwards.
fn written(world: &mut World, plan: &Plan) {
    for status in plan.statuses.iter().filter(|status| status.kind == Kind::Gateway) {
        let key = format!("default/{}", status.name);
        let mut value = serde_json::to_value(&*world.gateways[&key]).unwrap();
        value["status"] = status.status.clone();
        world.gateways.insert(key, object(value));
    }
}

fn binds(plan: &Plan) -> Vec<String> {
    plan.table.ports.keys().map(ToString::to_string).collect()
}

const PROGRAMMED: &str = "Accepted=Accepted Programmed=Programmed";

#[test]
fn each_gateway_has_an_address_of_each_family() {
    let mut world = world();
    add(&mut world, "old", OLD, json!([]));
    add(&mut world, "new", NEW, json!([{"type": "IPAddress"}]));
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    for (name, service) in [("old", "a"), ("new", "b")] {
        let spec = json!({"parentRefs": [{"name": name}], "rules": to(service)});
        http_route(&mut world, "default", name, spec);
    }
    let plan = plan(&world, &pooled());
    let both = |four: &str, six: &str| (vec![four.to_owned(), six.to_owned()], PROGRAMMED.to_owned());
    assert_eq!(status(&plan, "old"), both("198.51.100.0", "2001:db8:1::"));
    assert_eq!(status(&plan, "new"), both("198.51.100.1", "2001:db8:1::1"));
    let expected = [":80", "198.51.100.0:80", "198.51.100.1:80", "[2001:db8:1::]:80", "[2001:db8:1::1]:80"];
    assert_eq!(binds(&plan), expected, "Ingresses stay where all are");
    assert_eq!(plan.table.own_addresses().len(), 4);
    assert_eq!(plan.table.owners.values().collect::<Vec<_>>(), ["old", "new", "old", "new"]);
    // The same port and the same host, and each has its own routes.
    for (address, expected) in [("198.51.100.0", "a"), ("2001:db8:1::", "a"), ("198.51.100.1", "b")] {
        let bind = Bind { address: Some(address.parse().unwrap()), port: 80 };
        let listener = plan.table.ports[&bind].listeners.best("x.test").unwrap();
        let (method, headers) = (Method::GET, HeaderMap::new());
        let asked = Asked { path: "/", query: None, method: &method, headers: &headers };
        let route = listener.hosts.best("x.test").unwrap().find(&asked).unwrap().route;
        let Action::Forward(backends) = &route.action else { panic!("forwards") };
        assert_eq!(backends[0].backend.as_ref().unwrap().name, format!("default/{expected}:80"), "{address}");
    }
}

#[test]
fn what_a_gateway_has_it_keeps() {
    let mut world = world();
    add(&mut world, "young", NEW, json!([]));
    let first = plan(&world, &pooled());
    written(&mut world, &first);
    // One that is older comes back, as from a backup, and one that names the address of another.
    add(&mut world, "older", OLD, json!([]));
    add(&mut world, "thief", OLD, json!([{"value": "198.51.100.0"}]));
    let second = plan(&world, &pooled());
    assert!(!second.statuses.iter().any(|status| status.name == "young"), "its status is as it was");
    assert_eq!(status(&second, "older").0, ["198.51.100.1", "2001:db8:1::1"]);
    assert_eq!(status(&second, "thief"), (vec![], "Accepted=Accepted !Programmed=AddressNotUsable".to_owned()));
    assert!(!binds(&second).contains(&":80".to_owned()), "whoever asks for an address is served nowhere else");
    // What one has left is there for others.
    written(&mut world, &second);
    world.gateways.remove("default/young");
    assert_eq!(status(&plan(&world, &pooled()), "thief"), (vec!["198.51.100.0".into()], PROGRAMMED.to_owned()));
}

#[test]
fn addresses_that_cannot_be_had_are_named() {
    const UNUSABLE: &str = "Accepted=Accepted !Programmed=AddressNotUsable";
    for (asked, expected, said, is_open) in [
        (json!([{"value": "198.51.100.2"}]), vec!["198.51.100.2"], PROGRAMMED, true),
        (json!([{"value": "2001:db8:1:0::3"}]), vec!["2001:db8:1::3"], PROGRAMMED, true),
        (json!([{"value": "203.0.113.7"}]), vec![], UNUSABLE, false),
        (json!([{"value": "198.51.100.2"}, {"value": "203.0.113.7"}]), vec!["198.51.100.2"], UNUSABLE, true),
        // Those of the gateway are there for all, as without a pool, though not together with the pool's.
        (json!([{"value": "192.0.2.1"}]), vec!["192.0.2.1"], PROGRAMMED, true),
        (json!([{"value": "192.0.2.1"}, {"value": "198.51.100.2"}]), vec!["198.51.100.2"], UNUSABLE, true),
    ] {
        let mut world = world();
        add(&mut world, "gw", OLD, asked.clone());
        http_route(&mut world, "default", "r", json!({"rules": to("a")}));
        let plan = plan(&world, &pooled());
        let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(status(&plan, "gw"), (expected, said.to_owned()), "{asked}");
        assert_eq!(!plan.table.ports.is_empty(), is_open, "{asked}");
        assert_eq!(of_route(&plan, "r"), GOOD, "{asked}");
    }
    let mut world = world();
    for name in ["a", "b", "c", "d", "e"] {
        add(&mut world, name, OLD, json!([]));
    }
    let plan = plan(&world, &pooled());
    assert_eq!(status(&plan, "d").1, PROGRAMMED);
    assert_eq!(status(&plan, "e"), (vec![], "Accepted=Accepted !Programmed=AddressNotAssigned".to_owned()));
    let class = plan.statuses.iter().find(|status| status.kind == Kind::GatewayClass).unwrap();
    let features = class.status["supportedFeatures"].as_array().unwrap();
    assert!(features.contains(&json!({"name": "GatewayStaticAddresses"})), "{features:?}");
}

#[test]
fn security_what_the_machine_has_for_itself_is_no_gateways() {
    let mut world = world();
    add(&mut world, "any", OLD, json!([]));
    add(&mut world, "named", NEW, json!([{"value": "198.51.100.1"}]));
    // One of them had it before.
    let first = plan(&world, &pooled());
    assert_eq!(status(&first, "named").0, ["198.51.100.1"]);
    written(&mut world, &first);
    let taken = ["198.51.100.0", "198.51.100.1", "2001:db8:1::"].map(|address| address.parse::<IpAddr>().unwrap());
    let second = plan(&world, &Settings { taken: taken.into(), ..pooled() });
    assert_eq!(status(&second, "any").0, ["198.51.100.2", "2001:db8:1::1"]);
    assert_eq!(status(&second, "named"), (vec![], "Accepted=Accepted !Programmed=AddressNotUsable".to_owned()));
    assert_eq!(binds(&second), ["198.51.100.2:80", "[2001:db8:1::1]:80"]);
}

#[test]
fn security_no_endpoint_is_an_address_of_the_pool() {
    let mut world = world();
    let slice = object(json!({"metadata": named("default", "a"), "addressType": "IPv4",
        "ports": [{"name": "web", "port": 9999, "protocol": "TCP"}], "endpoints": [{"addresses": ["198.51.100.1"]}]}));
    world.slices.insert("default/a".into(), [("default/a".to_owned(), slice)].into());
    ingress(&mut world, "i", json!({"defaultBackend": backend("a")}));
    assert!(plan(&world, &pooled()).table.endpoints.is_empty());
    assert!(!plan(&world, &settings()).table.endpoints.is_empty());
}

#[test]
fn a_closed_port_is_told_to_the_gateway_that_has_it() {
    let mut world = world();
    add(&mut world, "one", OLD, json!([]));
    add(&mut world, "two", NEW, json!([]));
    let bind = Bind { address: Some("2001:db8:1::1".parse().unwrap()), port: 80 };
    let closed_ports = [(bind, "Cannot assign requested address".to_owned())].into();
    let plan = plan(&world, &Settings { closed_ports, ..pooled() });
    assert_eq!(status(&plan, "one").1, PROGRAMMED);
    assert!(of_gateway(&plan, "two").starts_with("!Accepted=PortUnavailable !Programmed=Invalid"));
}

#[test]
fn many_gateways_get_the_lowest_addresses_of_several_ranges() {
    let mut world = world();
    for number in 0..5 {
        add(&mut world, &format!("gw-{number}"), OLD, json!([]));
    }
    let pool = ["198.51.100.8/31", "2001:db8:1::/64", "198.51.100.0/31"].map(|range| range.parse().unwrap());
    let taken = ["198.51.100.9", "2001:db8:1::"].map(|address| address.parse::<IpAddr>().unwrap());
    let plan = plan(&world, &Settings { pool: pool.to_vec(), taken: taken.into(), ..settings() });
    let found: Vec<Vec<String>> = (0..5).map(|number| status(&plan, &format!("gw-{number}")).0).collect();
    let expected = [
        &["198.51.100.8", "2001:db8:1::1"][..],
        &["198.51.100.0", "2001:db8:1::2"],
        &["198.51.100.1", "2001:db8:1::3"],
        &["2001:db8:1::4"],
        &["2001:db8:1::5"],
    ];
    assert_eq!(found, expected);
    for (number, lacks) in [(2, ""), (3, "the pool has no free IPv4 address")] {
        let name = format!("gw-{number}");
        assert_eq!(status(&plan, &name).1, PROGRAMMED, "{name} is served at what it has");
        let is_it = |status: &&Status| status.kind == Kind::Gateway && status.name == name;
        let conditions = &plan.statuses.iter().find(is_it).unwrap().status["conditions"];
        assert_eq!(conditions[1]["type"], "Programmed");
        assert_eq!(conditions[1]["message"], lacks, "{name}");
    }
}

#[test]
fn security_no_namespace_opens_all_ports() {
    let mut world = world();
    let sixteen: Vec<Value> = (0..16).map(|at| json!({"value": format!("198.51.100.{at}")})).collect();
    let nine: [u16; 9] = [80, 443, 8001, 8002, 8003, 8004, 8005, 8006, 8007];
    add_in(&mut world, "default", "greedy", OLD, json!(sixteen), &nine);
    add_in(&mut world, "default", "more", NEW, json!([]), &[80]);
    add_in(&mut world, "other", "modest", NEW, json!([]), &[80, 443]);
    let settings = Settings { pool: vec!["198.51.100.0/27".parse().unwrap()], ..settings() };
    let plan = plan(&world, &settings);
    assert_eq!(plan.table.ports.len(), 128 + 2);
    assert_eq!(status(&plan, "modest").1, PROGRAMMED);
    assert_eq!(status(&plan, "greedy").1, "Accepted=ListenersNotValid Programmed=Programmed");
    assert!(of_gateway(&plan, "more").starts_with("!Accepted=PortUnavailable !Programmed=Invalid"));
    let greedy = plan.statuses.iter().find(|status| status.name == "greedy").unwrap();
    let accepted = |at: usize| &greedy.status["listeners"][at]["conditions"][0];
    let reasons = [7, 8].map(|at| said(&json!([accepted(at)])));
    assert_eq!(reasons, ["Accepted=Accepted", "!Accepted=PortUnavailable"]);
    let why = accepted(8)["message"].as_str().unwrap();
    assert!(why.contains("a namespace can open 128 ports"), "{why}");
}
