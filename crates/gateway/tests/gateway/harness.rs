//! A world for a test: a network namespace with addresses on its loopback, an API server, the gateway, and backends that tell what they saw.
//!
//! There is one of each family. Tests are written in addresses of IPv4; in a world of IPv6 each stands for another.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver::{Server, Storage};
use bytes::Bytes;
use client::{Client, Gvr};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use netlink::LinkKind;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use testkit::netns::Namespace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Long enough for a busy machine; a test that works never waits for it.
const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// What addresses begin with, by family.
const PREFIXES: [&str; 2] = ["192.0.2.", "2001:db8::"];

thread_local! {
    /// Whether this thread's world is one of IPv6.
    static IS_V6: Cell<bool> = const { Cell::new(false) };
}

/// The address of this number.
pub(crate) fn local(number: u8) -> IpAddr {
    format!("{}{number}", PREFIXES[usize::from(IS_V6.get())]).parse().unwrap()
}

/// What is written in addresses of IPv4, for this world.
fn translated(written: Value) -> Value {
    match IS_V6.get() {
        true => serde_json::from_str(&written.to_string().replace(PREFIXES[0], PREFIXES[1]).replace("IPv4", "IPv6"))
            .unwrap(),
        false => written,
    }
}

/// Who the gateway is to the API server; it may do no more than its role says.
const USER: &str = "system:cox-gateway";

pub(crate) struct World {
    pub(crate) admin: Client,
}

/// Runs a test in namespaces of its own, with an API server and a gateway, once for each family.
pub(crate) fn with_gateway<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Copy + Send + 'static) {
    with_config(|_| {}, test);
}

pub(crate) fn with_config<F: Future<Output = ()>>(
    change: impl FnOnce(&mut gateway::Config) + Copy + Send + 'static,
    test: impl FnOnce(World) -> F + Copy + Send + 'static,
) {
    let inside = |is_v6| std::thread::spawn(move || in_world(is_v6, change, test));
    for running in [false, true].map(inside) {
        if let Err(panic) = running.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn in_world<F: Future<Output = ()>>(
    is_v6: bool,
    change: impl FnOnce(&mut gateway::Config),
    test: impl FnOnce(World) -> F,
) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    IS_V6.set(is_v6);
    let socket = netlink::Socket::open().unwrap();
    let lo = socket.link("lo").unwrap().unwrap().index;
    socket.set_up(lo).unwrap();
    for number in 1..=9 {
        let length = if is_v6 { 128 } else { 32 };
        socket.add_own_address(lo, format!("{}/{length}", local(number)).parse().unwrap()).unwrap();
    }
    // Threads of the runtime are made here, and so are in the namespace.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().on_thread_start(move || IS_V6.set(is_v6));
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let mut config = apiserver::Config::new(Storage::Embedded(dir.path().join("store")));
        config.bind = "127.0.0.1:0".parse().unwrap();
        let keys = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("tls.crt"), keys.cert.pem()).unwrap();
        std::fs::write(path("tls.key"), keys.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("sa.key"), rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        config.tls_cert_file = Some(path("tls.crt"));
        config.tls_private_key_file = Some(path("tls.key"));
        config.service_account_key_files = vec![path("sa.key")];
        config.service_account_signing_key_file = Some(path("sa.key"));
        config.authorizers = vec![apiserver::Authorizer::Rbac];
        let server = Server::new(config).await.unwrap();
        let handler = server.handler();
        let admin = Client::in_process(handler.clone(), api::UserInfo::new("admin", &["system:masters"]));
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(stop.clone()));
        let world = World { admin };
        world.install().await;
        let own = Client::in_process(handler, api::UserInfo::new(USER, &["system:authenticated"]));
        let mut config = gateway::Config::new(own, "node-1", vec![local(1)]);
        change(&mut config);
        let running = tokio::spawn(gateway::run(config, stop.clone()));
        test(world).await;
        stop.cancel();
        running.await.unwrap().unwrap();
        serving.await.unwrap().unwrap();
    });
}

/// Another machine, on a link with this one, where this one has `local(100)` and the other `local(200)`.
pub(crate) struct Neighbour(Namespace);

impl Neighbour {
    pub(crate) fn new() -> Self {
        let this = Self(Namespace::new());
        let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(this.0.as_fd()), peer_mtu: None };
        netlink::Socket::open().unwrap().add_link("near", kind, None, None).unwrap();
        let length = if IS_V6.get() { 64 } else { 24 };
        let [here, there]: [api::cidr::Cidr; 2] =
            [100, 200].map(|number| format!("{}/{length}", local(number)).parse().unwrap());
        let up = |name: &str, address| {
            let socket = netlink::Socket::open().unwrap();
            let link = socket.link(name).unwrap().unwrap();
            socket.set_up(link.index).unwrap();
            socket.add_own_address(link.index, address).unwrap();
        };
        up("near", here);
        this.0.run(|| up("eth0", there));
        // As on a node: only who forwards answers for addresses of other links.
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        this
    }

    /// What is answered there to a GET, whole.
    pub(crate) fn get(&self, at: SocketAddr, host: &str) -> std::io::Result<String> {
        self.0.run(|| {
            let mut stream = std::net::TcpStream::connect_timeout(&at, Duration::from_secs(5))?;
            write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }
}

/// Group, version and plural of a kind.
fn resource(object: &Value) -> Gvr {
    let version = object["apiVersion"].as_str().unwrap();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.as_str() {
        "ingress" | "ingressclass" | "gatewayclass" => format!("{kind}es"),
        "backendtlspolicy" => "backendtlspolicies".to_owned(),
        _ => format!("{kind}s"),
    };
    Gvr { group: group.to_owned().into(), version: version.to_owned().into(), resource: plural.into() }
}

impl World {
    async fn install(&self) {
        gateway::install::install(&self.admin).await.unwrap();
        gateway::install::grant(&self.admin, USER).await.unwrap();
        self.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})).await;
    }

    /// Creates an object, in `default` unless it says otherwise; one that is there already stays.
    pub(crate) async fn create(&self, object: Value) {
        let object = translated(object);
        let gvr = resource(&object);
        let has_namespace = !["Namespace", "IngressClass", "GatewayClass"].contains(&object["kind"].as_str().unwrap());
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let api = self.admin.dynamic(&gvr, has_namespace.then_some(namespace.as_str()));
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            match api.create(&object).await {
                Ok(_) => return,
                Err(error) if error.is_already_exists() => return,
                // A definition that was just made is not served yet.
                Err(error) if error.is_not_found() && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{object}: {error}"),
            }
        }
    }

    pub(crate) async fn get(&self, api_version: &str, kind: &str, name: &str) -> Value {
        let gvr = resource(&json!({"apiVersion": api_version, "kind": kind}));
        let object: Value = self.admin.dynamic(&gvr, Some("default")).get(name).await.unwrap();
        let text = object.to_string().replace(PREFIXES[1], PREFIXES[0]);
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) async fn patch(&self, api_version: &str, kind: &str, name: &str, patch: Value) {
        let gvr = resource(&json!({"apiVersion": api_version, "kind": kind}));
        let api = self.admin.dynamic(&gvr, Some("default"));
        api.patch(name, &client::Patch::merge(translated(patch))).await.unwrap();
    }

    /// A Service without a selector, and its endpoints.
    pub(crate) async fn service(&self, name: &str, app_protocol: Option<&str>, endpoints: &[SocketAddr]) {
        let port = json!({"name": "web", "port": 80, "appProtocol": app_protocol});
        let spec = json!({"clusterIP": "None", "ports": [port]});
        self.create(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})).await;
        for (at, endpoint) in endpoints.iter().enumerate() {
            // One that was not made here is named by hand.
            let address = match endpoint.ip() {
                IpAddr::V4(written) => local(written.octets()[3]),
                address => address,
            };
            self.create(json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": format!("{name}-{at}"), "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "ports": [{"name": "web", "port": endpoint.port(), "protocol": "TCP"}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            }))
            .await;
        }
    }

    /// An Ingress of our class with one path of one host.
    pub(crate) async fn ingress(&self, host: &str, service: &str, tls: Option<&str>) {
        let backend = json!({"service": {"name": service, "port": {"name": "web"}}});
        let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
        let mut spec = json!({"ingressClassName": "cox", "rules": [{"host": host, "http": {"paths": paths}}]});
        if let Some(secret) = tls {
            spec["tls"] = json!([{"hosts": [host], "secretName": secret}]);
        }
        let metadata = json!({"name": service});
        self.create(
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec}),
        )
        .await;
    }

    /// A TLS Secret with a new certificate for a host, whose bytes come back.
    pub(crate) async fn certificate(&self, secret: &str, host: &str) -> Vec<u8> {
        let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
        let data = json!({"tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem()});
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": secret}, "stringData": data,
        });
        let api = self.admin.dynamic(&resource(&object), Some("default"));
        match api.get_opt(secret).await.unwrap() {
            None => self.create(object).await,
            Some(_) => self.patch("v1", "Secret", secret, json!({"stringData": data})).await,
        }
        made.cert.der().to_vec()
    }
}

/// Asks again until the answer is as expected.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < deadline, "no sign of {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

type Answer = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<BackendBody>> + Send + Sync>;
pub(crate) type BackendBody = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

pub(crate) fn full(text: impl Into<Bytes>) -> BackendBody {
    BodyExt::boxed_unsync(Full::new(text.into()))
}

/// A server of HTTP/1 and HTTP/2 on one of the namespace's addresses.
pub(crate) async fn backend_with(answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind((local(2), 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// A backend that answers with its name, the method, the target, the headers and the body it saw, as JSON.
pub(crate) async fn echo(name: &'static str) -> SocketAddr {
    backend_with(Arc::new(move |request| {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let headers: serde_json::Map<String, Value> = parts
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap_or("?"))))
                .collect();
            let seen = json!({
                "backend": name,
                "method": parts.method.as_str(),
                "target": parts.uri.path_and_query().map(ToString::to_string),
                "headers": headers,
                "length": body.len(),
                "body": String::from_utf8_lossy(&body[..body.len().min(256)]),
            });
            Response::new(full(seen.to_string()))
        })
    }))
    .await
}

pub(crate) fn address(port: u16) -> SocketAddr {
    (local(1), port).into()
}

/// Sends bytes and reads until the other side closes.
pub(crate) async fn raw(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(address(port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    // A reset after the answer is an end as well.
    let _reset = tokio::time::timeout(WAIT_TIMEOUT, read).await.expect("the connection is closed");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A GET over HTTP/1.1: the code and what the backend saw, if it is an echo. None while nobody listens.
pub(crate) async fn get(port: u16, host: &str, target: &str) -> Option<(u16, Value)> {
    ask(port, host, target, "").await
}

/// As [`get`], with further lines of headers, each ending as they do.
pub(crate) async fn ask(port: u16, host: &str, target: &str, headers: &str) -> Option<(u16, Value)> {
    ask_at(address(port), host, target, headers).await
}

/// As [`ask`], at another address than the gateway's.
pub(crate) async fn ask_at(at: SocketAddr, host: &str, target: &str, headers: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(at).await.ok()?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    Some(parsed(&String::from_utf8_lossy(&answer)))
}

pub(crate) fn parsed(answer: &str) -> (u16, Value) {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let json = answer.find('{').zip(answer.rfind('}')).and_then(|(from, to)| answer.get(from..=to));
    (code, json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default())
}

/// Waits until a GET is answered with this code.
pub(crate) async fn until_code(port: u16, host: &str, target: &str, code: u16) -> Value {
    until(&format!("{code} for {host}{target}"), || async move {
        let (found, seen) = get(port, host, target).await?;
        (found == code).then_some(seen)
    })
    .await
}
