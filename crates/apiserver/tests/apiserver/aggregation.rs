//! Aggregation: who serves which version of which group. Servers behind the one under test are another one of ours, with a
//! store of its own, and a few lines of TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver::Authorizer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{ADMIN_TOKEN, Authority, Cluster};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Asks until the answer is as wanted; a test that waits for ever says for what.
async fn eventually(cluster: &Cluster, path: &str, wanted: impl Fn(u16, &Value) -> bool) -> Value {
    let mut last = (0, Value::Null);
    for _ in 0..600 {
        last = cluster.send("GET", path, Value::Null).await;
        if wanted(last.0, &last.1) {
            return last.1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} stays {} {}", last.0, last.1)
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

fn definition(group: &str, versions: &[(&str, bool)]) -> Value {
    let version = |(name, served): &(&str, bool)| {
        json!({"name": name, "served": served, "storage": *name == versions[0].0,
            "schema": {"openAPIV3Schema": {"type": "object"}}})
    };
    json!({"metadata": {"name": format!("widgets.{group}")}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": versions.iter().map(version).collect::<Vec<_>>()}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_serves_is_registered() {
    let cluster = Cluster::start().await;
    let (_, list) = cluster.send("GET", SERVICES, Value::Null).await;
    let (_, groups) = cluster.send("GET", "/apis", Value::Null).await;
    let mut expected = vec!["v1.".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap().iter().map(|version| version["version"].as_str().unwrap());
        let name = group["name"].as_str().unwrap();
        expected.extend(versions.map(|version| format!("{version}.{name}")));
    }
    expected.retain(|name| name != "v1.apiregistration.k8s.io");
    expected.sort();
    assert_eq!(names(&list), expected);
    for service in list["items"].as_array().unwrap() {
        let condition = &service["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Local")), "{service}");
        assert_eq!(condition["message"], "Local APIServices are always available");
        assert_eq!(service["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"}));
    }
    let (_, apps) = cluster.send("GET", &format!("{SERVICES}/v1.apps"), Value::Null).await;
    let spec = json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15});
    assert_eq!(apps["spec"], spec);

    // What was made at start is the user's then; the group is served all the same.
    assert_eq!(cluster.send("DELETE", &format!("{SERVICES}/v1.apps"), Value::Null).await.0, 200);
    assert_eq!(cluster.send("GET", "/apis/apps/v1/deployments", Value::Null).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_registered_while_they_are_there() {
    let cluster = Cluster::start().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let object = definition("example.com", &[("v1", true), ("v2", false)]);
    assert_eq!(cluster.send("POST", definitions, object).await.0, 201);
    let path = format!("{SERVICES}/v1.example.com");
    let service = eventually(&cluster, &path, |code, _| code == 200).await;
    assert_eq!(service["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "true"}));
    let spec = json!({"group": "example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100});
    assert_eq!(service["spec"], spec);
    assert_eq!(service["status"]["conditions"][0]["reason"], "Local");
    assert_eq!(cluster.send("GET", &format!("{SERVICES}/v2.example.com"), Value::Null).await.0, 404);

    // Deleted by somebody, it comes back; with its definition it goes.
    let uid = service["metadata"]["uid"].clone();
    assert_eq!(cluster.send("DELETE", &path, Value::Null).await.0, 200);
    eventually(&cluster, &path, |code, found| code == 200 && found["metadata"]["uid"] != uid).await;
    assert_eq!(cluster.send("DELETE", &format!("{definitions}/widgets.example.com"), Value::Null).await.0, 200);
    eventually(&cluster, &path, |code, _| code == 404).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_objects_are_made_and_kept() {
    let cluster = Cluster::start().await;
    let base = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let (_, levels) = cluster.send("GET", &format!("{base}/prioritylevelconfigurations"), Value::Null).await;
    let expected = [
        "catch-all",
        "exempt",
        "global-default",
        "leader-election",
        "node-high",
        "system",
        "workload-high",
        "workload-low",
    ];
    assert_eq!(names(&levels), expected);
    let (_, schemas) = cluster.send("GET", &format!("{base}/flowschemas"), Value::Null).await;
    assert_eq!(names(&schemas).len(), 11);
    for schema in schemas["items"].as_array().unwrap() {
        assert_eq!(schema["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"], "true");
    }
    // Their status comes a little later, from whoever looks after them.
    eventually(&cluster, &format!("{base}/flowschemas"), |_, schemas| {
        schemas["items"].as_array().unwrap().iter().all(|schema| {
            let condition = &schema["status"]["conditions"][0];
            (&condition["type"], &condition["status"]) == (&json!("Dangling"), &json!("False"))
        })
    })
    .await;
    let path = format!("{base}/flowschemas/catch-all");
    assert_eq!(cluster.send("DELETE", &path, Value::Null).await.0, 200);
    eventually(&cluster, &path, |code, found| code == 200 && found["status"]["conditions"][0]["status"] == "False")
        .await;
    let mine = json!({"metadata": {"name": "mine"}, "spec": {"priorityLevelConfiguration": {"name": "absent"},
        "rules": [{"subjects": [{"kind": "Group", "group": {"name": "dev"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
    assert_eq!(cluster.send("POST", &format!("{base}/flowschemas"), mine).await.0, 201);
    eventually(&cluster, &format!("{base}/flowschemas/mine"), |_, found| {
        found["status"]["conditions"][0]["reason"] == "NotFound"
    })
    .await;
}

const GROUP: &str = "wardle.example.com";
const NAME: &str = "v1alpha1.wardle.example.com";
const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
/// What the certificate of a service `api` in `default` is for.
const HOST: &str = "api.default.svc";

/// Keys of a front proxy (`front-proxy-ca.*`, `front-proxy.*`) and of a server behind it (`backend-ca.*`, `backend.*`).
fn keys() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    Authority::new(dir.path(), "front-proxy-ca").sign(dir.path(), "front-proxy", "front-proxy", None, ClientAuth);
    Authority::new(dir.path(), "backend-ca").sign_server(dir.path(), "backend", HOST);
    dir
}

async fn front(keys: &Path) -> Cluster {
    let file = |name: &str| Some(keys.join(name));
    Cluster::with(|config| {
        config.runtime_config = apiserver::RuntimeConfig(vec![("metrics.k8s.io/v1beta1".to_owned(), true)]);
        config.proxy_client_cert_file = file("front-proxy.crt");
        config.proxy_client_key_file = file("front-proxy.key");
    })
    .await
}

/// A server that knows Flunders, believes the front proxy, and lets ann do what she likes with them.
async fn behind(keys: &Path) -> Cluster {
    let file = |name: &str| Some(keys.join(name));
    let cluster = Cluster::with(|config| {
        config.tls_cert_file = file("backend.crt");
        config.tls_private_key_file = file("backend.key");
        config.requestheader_client_ca_file = file("front-proxy-ca.crt");
        config.requestheader_allowed_names = vec!["front-proxy".to_owned()];
        config.authorizers = vec![Authorizer::Rbac];
    })
    .await;
    let mut flunders = definition(GROUP, &[("v1alpha1", true)]);
    flunders["metadata"]["name"] = format!("flunders.{GROUP}").into();
    flunders["spec"]["names"] = json!({"plural": "flunders", "singular": "flunder", "kind": "Flunder"});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "flunders"},
        "rules": [{"verbs": ["*"], "apiGroups": [GROUP], "resources": ["flunders"]}]});
    let binding = json!({"metadata": {"name": "flunders"}, "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flunders"}});
    for (path, object) in [
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), flunders),
        (format!("{rbac}/clusterroles"), role),
        (format!("{rbac}/clusterrolebindings"), binding),
    ] {
        let (code, answer) = cluster.send("POST", &path, object).await;
        assert_eq!(code, 201, "{answer}");
    }
    eventually(&cluster, FLUNDERS, |code, _| code == 200).await;
    cluster
}

/// Registers a version of a group with the server on a port of this machine, as `api.default`.
async fn register(cluster: &Cluster, keys: &Path, of: (&str, &str), port: u16) {
    let registered = json!({"metadata": {"name": format!("{}.{}", of.1, of.0)}, "spec": registration(keys, of, port)});
    for (path, object) in [("/api/v1/namespaces/default/services", service()), (SERVICES, registered)] {
        let (code, answer) = cluster.send("POST", path, object).await;
        assert_eq!(code, 201, "{answer}");
    }
}

/// The service `api`, which is this machine.
fn service() -> Value {
    json!({"metadata": {"name": "api"}, "spec": {"type": "ExternalName", "externalName": "localhost"}})
}

fn registration(keys: &Path, (group, version): (&str, &str), port: u16) -> Value {
    let authority = std::fs::read(keys.join("backend-ca.crt")).unwrap();
    json!({"group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 200,
        "caBundle": STANDARD.encode(authority), "service": {"namespace": "default", "name": "api", "port": port}})
}

fn port(cluster: &Cluster) -> u16 {
    cluster.url.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// Waits for the condition of a registration; returns its message.
async fn available(cluster: &Cluster, name: &str, status: &str, reason: &str) -> String {
    let is = |_: u16, found: &Value| {
        let condition = &found["status"]["conditions"][0];
        condition["status"] == status && condition["reason"] == reason
    };
    let found = eventually(cluster, &format!("{SERVICES}/{name}/status"), is).await;
    found["status"]["conditions"][0]["message"].as_str().unwrap().to_owned()
}

/// The version in a document of aggregated discovery.
async fn aggregated(cluster: &Cluster, group: &str) -> Option<Value> {
    let mut request = http::Request::get("/apis")
        .header("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        .body(Bytes::new())
        .unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let body = (cluster.handler)(request).await.into_body().collect().await.unwrap().to_bytes();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let mut items = document["items"].as_array().unwrap().iter();
    items.find(|item| item["metadata"]["name"] == group).map(|item| item["versions"][0].clone())
}

/// Waits until aggregated discovery says this of the group: its freshness, or nothing.
async fn freshness(cluster: &Cluster, group: &str, expected: Option<&str>) -> Value {
    for _ in 0..600 {
        let found = aggregated(cluster, group).await;
        if found.as_ref().map(|version| version["freshness"].as_str().unwrap()) == expected {
            return found.unwrap_or_default();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{group} never becomes {expected:?}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_is_part_of_this_one_while_it_is_registered() {
    let keys = keys();
    let (front, behind) = (front(keys.path()).await, behind(keys.path()).await);
    register(&front, keys.path(), (GROUP, "v1alpha1"), port(&behind)).await;
    assert_eq!(available(&front, NAME, "True", "Passed").await, "all checks passed");

    // The other server sees who asks, and decides for itself.
    let flunder = |name: &str| {
        Bytes::from(
            json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "Flunder",
        "metadata": {"name": name}})
            .to_string(),
        )
    };
    let json_type = "application/json";
    let created = front.request("POST", FLUNDERS, json_type, flunder("one"), "ann", &["dev"]).await;
    assert_eq!(created.status(), 201);
    // Clients of ours bound what such a server lists, and not what this one does.
    assert_eq!(created.headers()[api::AGGREGATED_HEADER], "true");
    let own = front.request("GET", "/api/v1/configmaps", "", Bytes::new(), "ann", &["system:masters"]).await;
    assert!(own.status() == 200 && !own.headers().contains_key(api::AGGREGATED_HEADER));
    let refused = front.request("POST", FLUNDERS, json_type, flunder("two"), "bob", &[]).await;
    assert_eq!(refused.status(), 403);
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("User \\\"bob\\\" cannot create resource"), "{text:?}");
    assert_eq!(behind.send("GET", &format!("{FLUNDERS}/one"), Value::Null).await.0, 200);
    assert_eq!(front.send("GET", FLUNDERS, Value::Null).await.1["items"].as_array().unwrap().len(), 1);

    // A watch brings events as they come.
    let watch = front.request("GET", &format!("{FLUNDERS}?watch=1"), "", Bytes::new(), "ann", &[]).await;
    let mut watch = watch.into_body();
    let mut next = async || {
        let frame = tokio::time::timeout(Duration::from_secs(60), watch.frame()).await.unwrap().unwrap().unwrap();
        serde_json::from_slice::<Value>(frame.data_ref().unwrap()).unwrap()
    };
    assert_eq!(next().await["object"]["metadata"]["name"], "one");
    assert_eq!(front.send("DELETE", &format!("{FLUNDERS}/one"), Value::Null).await.0, 200);
    assert_eq!(next().await["type"], "DELETED");

    // All documents of discovery know the group.
    let version = freshness(&front, GROUP, Some("Current")).await;
    assert_eq!(version["resources"][0]["resource"], "flunders");
    let (_, groups) = front.send("GET", "/apis", Value::Null).await;
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == GROUP));
    let (_, group) = front.send("GET", &format!("/apis/{GROUP}"), Value::Null).await;
    assert_eq!(group["preferredVersion"]["version"], "v1alpha1");
    let (_, list) = front.send("GET", &format!("/apis/{GROUP}/v1alpha1"), Value::Null).await;
    assert_eq!(list["resources"][0]["name"], "flunders");
    let (_, index) = front.send("GET", "/openapi/v3", Value::Null).await;
    let url = index["paths"][format!("apis/{GROUP}/v1alpha1")]["serverRelativeURL"].as_str().unwrap();
    let (code, document) = front.send("GET", url, Value::Null).await;
    assert!(code == 200 && document["paths"].get(FLUNDERS.replace("default", "{namespace}")).is_some(), "{document}");
    let (_, document) = front.send("GET", "/openapi/v2", Value::Null).await;
    assert!(document["paths"].get(FLUNDERS.replace("default", "{namespace}")).is_some());
    assert!(document["definitions"].get("com.example.wardle.v1alpha1.Flunder").is_some());
    assert!(front.kubectl(&["get", "flunders"]).await.is_ok());

    // Its registration is an object like others; a change of it does not interrupt anything.
    let path = format!("{SERVICES}/{NAME}");
    let patch = json!({"spec": {"versionPriority": 400}});
    let (code, _) = front.send_raw("PATCH", &path, "application/merge-patch+json", patch).await;
    assert_eq!(code, 200);
    available(&front, NAME, "True", "Passed").await;
    assert_eq!(front.send("GET", FLUNDERS, Value::Null).await.0, 200);

    // The server goes. A change of its service has it looked at before its time.
    behind.stop().await;
    let label = json!({"metadata": {"labels": {"touched": "yes"}}});
    let service = "/api/v1/namespaces/default/services/api";
    assert_eq!(front.send_raw("PATCH", service, "application/merge-patch+json", label).await.0, 200);
    let message = available(&front, NAME, "False", "FailedDiscoveryCheck").await;
    assert!(message.contains("failing or missing response from https://localhost:"), "{message}");
    let losses = async |reason: &str| {
        let (_, text) = front.send_raw("GET", "/metrics", "", Value::Null).await;
        let row = format!("aggregator_unavailable_apiservice_total{{name=\"{NAME}\",reason=\"{reason}\"}} ");
        String::from_utf8_lossy(&text).lines().filter(|line| line.starts_with(&row)).count()
    };
    assert_eq!(losses("FailedDiscoveryCheck").await, 1);
    freshness(&front, GROUP, Some("Stale")).await;
    for path in [FLUNDERS.to_owned(), format!("/apis/{GROUP}/v1alpha1")] {
        let (code, text) = front.send_raw("GET", &path, "", Value::Null).await;
        assert_eq!((code, &text[..]), (503, &b"service unavailable\n"[..]));
    }
    assert!(front.kubectl(&["get", "namespaces"]).await.is_ok());
    assert_eq!(front.send("DELETE", service, Value::Null).await.0, 200);
    let message = available(&front, NAME, "False", "ServiceNotFound").await;
    assert_eq!(message, "service/api in \"default\" is not present");
    assert_eq!(losses("ServiceNotFound").await, 0, "it could not be used before either");

    // With its registration the group goes.
    assert_eq!(front.send("DELETE", &path, Value::Null).await.0, 200);
    eventually(&front, &format!("/apis/{GROUP}"), |code, _| code == 404).await;
    freshness(&front, GROUP, None).await;
    assert_eq!(front.send("GET", FLUNDERS, Value::Null).await.0, 404);
}

/// A server that answers every request with its own head, and agrees to every upgrade, then says what it hears.
async fn echo(keys: &Path) -> u16 {
    let chain = tls::load_certificates(&keys.join("backend.crt")).unwrap();
    let config = tls::server_builder().with_no_client_auth();
    let config = config.with_single_cert(chain, tls::load_key(&keys.join("backend.key")).unwrap()).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                while let Some(head) = head(&mut tls).await {
                    if head.to_lowercase().contains("\r\nupgrade:") {
                        let switch =
                            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";
                        tls.write_all(switch.as_bytes()).await.unwrap();
                        let mut buffer = [0; 64];
                        let read = tls.read(&mut buffer).await.unwrap();
                        tls.write_all(&buffer[..read]).await.unwrap();
                        return;
                    }
                    if head.contains("/redirect ") {
                        let away = "HTTP/1.1 302 Found\r\nlocation: http://example.org/\r\ncontent-length: 0\r\n\r\n";
                        tls.write_all(away.as_bytes()).await.unwrap();
                        continue;
                    }
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
                    tls.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    port
}

async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_arrive_with_an_identity_that_nobody_can_forge() {
    let keys = keys();
    let front = front(keys.path()).await;
    register(&front, keys.path(), ("echo.example.com", "v1"), echo(keys.path()).await).await;
    available(&front, "v1.echo.example.com", "True", "Passed").await;
    let things = "/apis/echo.example.com/v1/namespaces/default/things";
    let bearer = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let forged =
        ["-H", &bearer, "-H", "X-Remote-User: root", "-H", "X-Remote-Group: wheel", "-H", "X-Remote-Extra-A: b"];
    let (code, seen) = front.curl(&format!("{things}/x/part/and/more?a=b%20c"), &forged).await;
    let seen = seen.to_lowercase();
    assert_eq!(code, 200, "{seen}");
    assert!(seen.starts_with(&format!("get {things}/x/part/and/more?a=b%20c http/1.1\r\n")), "{seen}");
    for line in
        ["x-remote-user: admin", "x-remote-uid: 1", "x-remote-group: system:masters", "via: 1.1 cox-", "audit-id: "]
    {
        assert!(seen.contains(&format!("\r\n{line}")), "{line}: {seen}");
    }
    for secret in ["authorization", ADMIN_TOKEN, "root", "wheel", "x-remote-extra"] {
        assert!(!seen.contains(secret), "{secret}: {seen}");
    }
    // Nor is a client led elsewhere.
    let (code, text) = front.curl(&format!("{things}/redirect"), &["-H", &bearer]).await;
    assert!(code == 502 && text.contains("not permitted"), "{code} {text}");

    let mut tls = front.connect(None).await;
    let request = format!(
        "POST {things}/x/exec HTTP/1.1\r\nhost: a\r\n{bearer}\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n"
    );
    tls.write_all(request.as_bytes()).await.unwrap();
    assert!(head(&mut tls).await.unwrap().starts_with("HTTP/1.1 101"));
    tls.write_all(b"ping").await.unwrap();
    let mut pong = [0; 4];
    tls.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"ping");
}

/// As the manifests of metrics-server do: applied over the registration that is there, and deleted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metrics_server_takes_over_and_goes() {
    let keys = keys();
    let front = front(keys.path()).await;
    let nodes = "/apis/metrics.k8s.io/v1beta1/nodes";
    let is_own = |code: u16, found: &Value| code == 200 && found["kind"] == "NodeMetricsList";
    eventually(&front, nodes, is_own).await;

    let of = ("metrics.k8s.io", "v1beta1");
    let name = "v1beta1.metrics.k8s.io";
    assert_eq!(front.send("POST", "/api/v1/namespaces/default/services", service()).await.0, 201);
    let patch = json!({"spec": registration(keys.path(), of, echo(keys.path()).await)});
    let path = format!("{SERVICES}/{name}");
    assert_eq!(front.send_raw("PATCH", &path, "application/merge-patch+json", patch).await.0, 200);
    available(&front, name, "True", "Passed").await;
    let (code, seen) = front.send_raw("GET", nodes, "", Value::Null).await;
    assert_eq!(code, 200);
    assert!(seen.starts_with(format!("GET {nodes} HTTP/1.1\r\n").as_bytes()), "{seen:?}");

    assert_eq!(front.send("DELETE", &path, Value::Null).await.0, 200);
    eventually(&front, nodes, is_own).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_on_in_the_server_behind() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let keys = keys();
    let file = |name: &str| Some(keys.path().join(name));
    let collector = otlp::collector::Collector::start().await;
    let tracing = otlp::TracingConfiguration { endpoint: Some(collector.endpoint()), ..Default::default() };
    let front = Cluster::with(|config| {
        config.proxy_client_cert_file = file("front-proxy.crt");
        config.proxy_client_key_file = file("front-proxy.key");
        config.tracing = Some(tracing);
    })
    .await;
    register(&front, keys.path(), ("echo.example.com", "v1"), echo(keys.path()).await).await;
    available(&front, "v1.echo.example.com", "True", "Passed").await;
    let things = "/apis/echo.example.com/v1/namespaces/default/things";
    let bearer = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let context = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01");
    let (code, seen) = front.curl(things, &["-H", &bearer, "-H", &context]).await;
    assert_eq!(code, 200, "{seen}");
    let told = seen.lines().find_map(|line| line.strip_prefix("traceparent: ")).expect("the server behind is told");
    // Of the trace that the client named, as a part of what this server did for it.
    let (trace, span) = told.strip_prefix("00-").and_then(|rest| rest.split_once('-')).unwrap();
    let span = span.strip_suffix("-01").unwrap();
    assert_eq!(trace, TRACE);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let is_sent =
        || collector.spans().iter().any(|(_, sent)| hex(&sent.span_id) == span && hex(&sent.trace_id) == TRACE);
    for _ in 0..600 {
        if is_sent() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the span {span} is never sent")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_used_says_why() {
    let keys = keys();
    let front = front(keys.path()).await;
    let register = async |name: &str, spec: Value| {
        let mut spec = spec;
        spec["version"] = "v1".into();
        spec["group"] = name.into();
        spec["groupPriorityMinimum"] = 2000.into();
        spec["versionPriority"] = 10.into();
        let object = json!({"metadata": {"name": format!("v1.{name}")}, "spec": spec});
        let (code, answer) = front.send("POST", SERVICES, object).await;
        assert_eq!(code, 201, "{answer}");
    };
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "empty"}, "spec": {"ports": [{"port": 443}]}});
    assert_eq!(front.send("POST", services, service).await.0, 201);
    let local = json!({"metadata": {"name": "local"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    assert_eq!(front.send("POST", services, local).await.0, 201);
    let to = |name: &str, port: u16| json!({"namespace": "default", "name": name, "port": port});
    // A registration that leads back here, and one whose server shows a certificate that nobody trusts.
    register("loop.example.com", json!({"service": to("local", port(&front)), "insecureSkipTLSVerify": true})).await;
    let authority = STANDARD.encode(std::fs::read(keys.path().join("front-proxy-ca.crt")).unwrap());
    let port = echo(keys.path()).await;
    register("untrusted.example.com", json!({"service": to("local", port), "caBundle": authority})).await;
    register("absent.example.com", json!({"service": to("absent", 443)})).await;
    register("odd.example.com", json!({"service": to("empty", 444)})).await;
    register("empty.example.com", json!({"service": to("empty", 443)})).await;
    for (name, reason) in [
        ("loop", "FailedDiscoveryCheck"),
        ("untrusted", "FailedDiscoveryCheck"),
        ("absent", "ServiceNotFound"),
        ("odd", "ServicePortError"),
        ("empty", "EndpointsNotFound"),
    ] {
        available(&front, &format!("v1.{name}.example.com"), "False", reason).await;
        let (code, text) = front.send_raw("GET", &format!("/apis/{name}.example.com/v1/x"), "", Value::Null).await;
        assert_eq!((code, &text[..]), (503, &b"service unavailable\n"[..]), "{name}");
    }
    let slice = json!({"metadata": {"name": "empty-1", "labels": {"kubernetes.io/service-name": "empty"}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 443}],
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": false}}]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    assert_eq!(front.send("POST", slices, slice).await.0, 201);
    available(&front, "v1.empty.example.com", "False", "MissingEndpoints").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_behind_learn_whom_to_believe() {
    let keys = keys();
    let authority = keys.path().join("front-proxy-ca.crt");
    let cluster = Cluster::with(|config| {
        config.requestheader_client_ca_file = Some(authority.clone());
        config.requestheader_allowed_names = vec!["front-proxy".to_owned()];
    })
    .await;
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let is_whole = |code: u16, map: &Value| {
        let text = |key: &str| map["data"][key].as_str().unwrap_or_default().to_owned();
        code == 200
            && text("client-ca-file").contains("BEGIN CERTIFICATE")
            && text("requestheader-client-ca-file").contains("BEGIN CERTIFICATE")
            && text("requestheader-allowed-names").contains("\"front-proxy\"")
            && text("requestheader-username-headers") == r#"["x-remote-user"]"#
            && text("requestheader-uid-headers") == r#"["x-remote-uid"]"#
            && text("requestheader-group-headers") == r#"["x-remote-group"]"#
            && text("requestheader-extra-headers-prefix") == r#"["x-remote-extra-"]"#
    };
    let (code, map) = cluster.send("GET", path, Value::Null).await;
    assert!(is_whole(code, &map), "{map}");
    assert_eq!(cluster.send("DELETE", path, Value::Null).await.0, 200);
    eventually(&cluster, path, is_whole).await;
    let other = json!({"data": {"requestheader-allowed-names": "[\"other\"]", "client-ca-file": null}});
    assert_eq!(cluster.send_raw("PATCH", path, "application/merge-patch+json", other).await.0, 200);
    let map = eventually(&cluster, path, is_whole).await;
    assert_eq!(map["data"]["requestheader-allowed-names"], r#"["other","front-proxy"]"#);
}
