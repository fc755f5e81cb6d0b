//! From objects to answers.

use serde_json::json;

use crate::harness::{Neighbour, ask, ask_at, echo, get, local, until, until_code, with_config, with_gateway};

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

#[test]
fn an_ingress_is_served_and_follows_changes() {
    with_gateway(|world| async move {
        let (one, two) = (echo("one").await, echo("two").await);
        world.service("web", None, &[one]).await;
        world.ingress("web.test", "web", None).await;
        let seen = until_code(80, "web.test", "/a%2Fb?c=d", 200).await;
        assert_eq!((&seen["backend"], &seen["target"]), (&json!("one"), &json!("/a%2Fb?c=d")));
        let headers = &seen["headers"];
        assert_eq!(headers["host"], "web.test");
        assert_eq!(headers["x-forwarded-host"], "web.test");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-for"], headers["x-real-ip"]);
        assert_eq!(get(80, "other.test", "/").await.unwrap().0, 404);
        until("an address in the status", || async {
            let ingress = world.get("networking.k8s.io/v1", "Ingress", "web").await;
            (ingress["status"]["loadBalancer"]["ingress"][0]["ip"] == "192.0.2.1").then_some(())
        })
        .await;
        // Another endpoint takes over; then there is none.
        let moved = json!({"endpoints": [{"addresses": [two.ip().to_string()]}], "ports": [
            {"name": "web", "port": two.port(), "protocol": "TCP"}]});
        world.patch("discovery.k8s.io/v1", "EndpointSlice", "web-0", moved).await;
        until("the other endpoint", || async { (get(80, "web.test", "/").await?.1["backend"] == "two").then_some(()) })
            .await;
        let none = json!({"endpoints": [{"addresses": ["192.0.2.2"], "conditions": {"ready": false}}]});
        world.patch("discovery.k8s.io/v1", "EndpointSlice", "web-0", none).await;
        until_code(80, "web.test", "/", 503).await;
    });
}

#[test]
fn an_endpoint_that_is_gone_is_passed_over() {
    with_gateway(|world| async move {
        let alive = echo("alive").await;
        // Nobody listens there.
        world.service("web", None, &["192.0.2.3:9".parse().unwrap(), alive]).await;
        world.service("dead", None, &["192.0.2.3:9".parse().unwrap()]).await;
        world.ingress("web.test", "web", None).await;
        world.ingress("dead.test", "dead", None).await;
        until_code(80, "dead.test", "/", 502).await;
        until_code(80, "web.test", "/", 200).await;
        for _ in 0..20 {
            assert_eq!(get(80, "web.test", "/").await.unwrap().0, 200);
        }
    });
}

#[test]
fn a_gateway_and_its_routes_are_served() {
    with_gateway(|world| async move {
        let (one, two) = (echo("one").await, echo("two").await);
        world.service("one", None, &[one]).await;
        world.service("two", None, &[two]).await;
        let listeners = json!([{"name": "web", "port": 8080, "protocol": "HTTP"}]);
        world
            .create(json!({"apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": {"name": "gw"},
                "spec": {"gatewayClassName": "cox", "listeners": listeners}}))
            .await;
        let rules = json!([
            {"matches": [{"headers": [{"name": "version", "value": "two"}]}], "backendRefs": [{"name": "two", "port": 80}]},
            {"matches": [{"path": {"value": "/old"}}],
             "filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "new.test", "statusCode": 301,
                "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}}]},
            {"matches": [{"path": {"value": "/api"}}], "backendRefs": [{"name": "one", "port": 80}],
             "filters": [
                {"type": "URLRewrite", "urlRewrite": {"hostname": "inner.test",
                    "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1"}}},
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-tier", "value": "gold"}],
                    "remove": ["x-secret"]}}]},
            {"backendRefs": [{"name": "one", "port": 80}]},
        ]);
        world
            .create(json!({"apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": {"name": "r"},
                "spec": {"parentRefs": [{"name": "gw"}], "hostnames": ["*.web.test"], "rules": rules}}))
            .await;
        assert_eq!(until_code(8080, "a.web.test", "/", 200).await["backend"], "one");
        // Routes and endpoints are watched apart.
        until("the other backend", || async {
            let (_, seen) = ask(8080, "a.web.test", "/", "Version: two\r\n").await?;
            (seen["backend"] == "two").then_some(())
        })
        .await;
        let (_, seen) = ask(8080, "b.a.web.test", "/api/x?y=z", "X-Secret: 1\r\n").await.unwrap();
        assert_eq!(seen["target"], "/v1/x?y=z");
        assert_eq!((&seen["headers"]["host"], &seen["headers"]["x-tier"]), (&json!("inner.test"), &json!("gold")));
        assert!(seen["headers"].get("x-secret").is_none());
        assert_eq!(get(8080, "a.web.test", "/old/page").await.unwrap().0, 301);
        assert_eq!(get(8080, "web.test", "/").await.unwrap().0, 404);
        until("the statuses", || async {
            let gateway = world.get(GATEWAY_API, "Gateway", "gw").await;
            let route = world.get(GATEWAY_API, "HTTPRoute", "r").await;
            let is_true = |conditions: &serde_json::Value, kind: &str| {
                conditions.as_array().into_iter().flatten().any(|it| it["type"] == kind && it["status"] == "True")
            };
            let listener = &gateway["status"]["listeners"][0];
            let is_programmed = is_true(&listener["conditions"], "Programmed") && listener["attachedRoutes"] == 1;
            let parent = &route["status"]["parents"][0];
            let is_accepted =
                is_true(&parent["conditions"], "Accepted") && parent["controllerName"] == "cox.dev/gateway";
            (is_programmed && is_accepted).then_some(())
        })
        .await;
    });
}

#[test]
fn a_bad_reference_is_told_by_an_event() {
    with_gateway(|world| async move {
        world.ingress("web.test", "gone", Some("no-secret")).await;
        until_code(80, "web.test", "/", 503).await;
        until("events", || async {
            let gvr = client::Gvr::new("", "v1", "events");
            let events = world.admin.dynamic(&gvr, Some("default")).list(&Default::default()).await.unwrap().items;
            let mut reasons: Vec<&str> = events.iter().filter_map(|event| event["reason"].as_str()).collect();
            reasons.sort();
            (reasons == ["BackendNotFound", "SecretNotFound"]).then_some(())
        })
        .await;
    });
}

#[test]
fn gateways_with_a_pool_have_addresses_of_their_own() {
    let with_pool = |config: &mut gateway::Config| {
        let length = if local(64).is_ipv6() { 126 } else { 30 };
        config.address_pool = vec![format!("{}/{length}", local(64)).parse().unwrap()];
        // What a gateway with another pool has left when it was killed.
        let socket = netlink::Socket::open().unwrap();
        let link = socket.ensure_holder(gateway::own_addresses::LINK).unwrap();
        socket.set_up(link.index).unwrap();
        socket.add_own_address(link.index, api::cidr::Cidr::host(local(77))).unwrap();
        if local(77).is_ipv6() {
            let loopback = socket.link("lo").unwrap().unwrap();
            socket.add_proxy(loopback.index, local(77)).unwrap();
        }
    };
    with_config(with_pool, |world| async move {
        let neighbour = Neighbour::new();
        let (one, two) = (echo("one").await, echo("two").await);
        for (at, name, backend) in [(64, "one", one), (65, "two", two)] {
            world.service(name, None, &[backend]).await;
            world
                .create(json!({"apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": {"name": name},
                    "spec": {"gatewayClassName": "cox", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}}))
                .await;
            world
                .create(json!({"apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": {"name": name},
                    "spec": {"parentRefs": [{"name": name}], "rules": [{"backendRefs": [{"name": name, "port": 80}]}]}}))
                .await;
            until("an address in the status", || async {
                let gateway = world.get(GATEWAY_API, "Gateway", name).await;
                (gateway["status"]["addresses"] == json!([{"type": "IPAddress", "value": format!("192.0.2.{at}")}]))
                    .then_some(())
            })
            .await;
        }
        // The same port and no host: each address has the routes of its Gateway, and the gateway's own has none.
        for (at, name) in [(64, "one"), (65, "two")] {
            until("an answer at the address", || async {
                let (code, seen) = ask_at((local(at), 80).into(), "any.test", "/", "").await?;
                (code == 200 && seen["backend"] == name).then_some(())
            })
            .await;
        }
        assert_eq!(get(80, "any.test", "/").await, None);
        // Whoever is on the same network finds them there.
        until("an answer to a neighbour", || async {
            neighbour.get((local(65), 80).into(), "any.test").ok().filter(|answer| answer.contains("two"))
        })
        .await;
        let gateways = client::Gvr::new("gateway.networking.k8s.io", "v1", "gateways");
        world.admin.dynamic(&gateways, Some("default")).delete("one", &client::DeleteParams::default()).await.unwrap();
        until("an address that is gone", || async {
            let socket = netlink::Socket::open().unwrap();
            let held: Vec<_> = socket.addresses().unwrap().into_iter().map(|held| held.cidr.addr).collect();
            let answered: Vec<_> = socket.proxies().unwrap().into_iter().map(|(_, address)| address).collect();
            assert!(held.contains(&local(65)), "the other one stays");
            assert_eq!(answered.contains(&local(65)), local(65).is_ipv6());
            let is_gone = |number| !held.contains(&local(number)) && !answered.contains(&local(number));
            (is_gone(64) && is_gone(77)).then_some(())
        })
        .await;
        let (code, _) = ask_at((local(65), 80).into(), "any.test", "/", "").await.unwrap();
        assert_eq!(code, 200);
    });
}
