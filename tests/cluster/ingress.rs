//! Ingress and Gateway API: a Deployment reached by name, with TLS, while certificates change.

use crate::harness::Cluster;

const OBJECTS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: cox.local/hello, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  tls: [{hosts: [web.test], secretName: web}]
  rules:
  - host: web.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw}
spec: {gatewayClassName: cox, listeners: [{name: web, port: 8080, protocol: HTTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 8080, targetPort: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec:
  parentRefs: [{name: gw}]
  hostnames: [route.test]
  rules: [{backendRefs: [{name: web, port: 80}]}]
"#;

/// A certificate for a host in the Secret `web`, made anew each time; the certificate's text.
fn certificate(cluster: &Cluster) -> String {
    let made = testkit::keys::self_signed("web.test");
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let (certificate, key) = (indented(&made.0), indented(&made.1));
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: web}}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{certificate}  tls.key: |\n{key}"
    ));
    made.0
}

#[test]
fn a_deployment_is_reached_by_name_and_with_tls() {
    let cluster = Cluster::up_with(&[], &["--gateway-address-pool=198.51.100.64/30"]);
    certificate(&cluster);
    cluster.apply(OBJECTS);
    let ip = cluster.wait("an address of the ingress", || {
        let ip = cluster.kubectl("get ingress web -o jsonpath={.status.loadBalancer.ingress[0].ip}");
        (!ip.is_empty()).then_some(ip)
    });
    let curl = |arguments: &[&str]| {
        let output = cluster.host.command("curl").args(["-sS", "-m", "20"]).args(arguments).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (plain, tls) = (format!("web.test:80:{ip}"), format!("web.test:443:{ip}"));
    let seen = cluster.answers("behind the ingress", 2, || {
        curl(&["--resolve", &plain, "http://web.test/"]).filter(|answer| answer.starts_with("Hello"))
    });
    assert_eq!(seen.len(), 2);
    // A Gateway has an address of its own, and so the port that a load balancer has at the node's.
    let own = cluster.wait("an address of the gateway", || {
        let own = cluster.kubectl("get gateway gw -o jsonpath={.status.addresses[*].value}");
        (!own.is_empty()).then_some(own)
    });
    assert_eq!(own, "198.51.100.64");
    let balanced = cluster.wait("an address of the load balancer", || {
        let ip = cluster.kubectl("get service balanced -o jsonpath={.status.loadBalancer.ingress[0].ip}");
        (!ip.is_empty()).then_some(ip)
    });
    assert_eq!(balanced, ip);
    let route = format!("route.test:8080:{own}");
    cluster.answers("behind the route", 2, || {
        curl(&["--resolve", &route, "http://route.test:8080/"]).filter(|answer| answer.starts_with("Hello"))
    });
    cluster.wait("the route in the gateway's status", || {
        (cluster.kubectl("get gateway gw -o jsonpath={.status.listeners[0].attachedRoutes}") == "1").then_some(())
    });

    // Only who shows the certificate that was given last is believed.
    for _ in 0..2 {
        let file = cluster.path("ca.pem");
        std::fs::write(&file, certificate(&cluster)).unwrap();
        cluster.wait("an answer under this certificate", || {
            let answer = curl(&["--cacert", file.to_str().unwrap(), "--resolve", &tls, "https://web.test/"])?;
            answer.starts_with("Hello").then_some(())
        });
    }
    assert!(cluster.kubectl("get ingressclass cox -o name").contains("cox"));
}
