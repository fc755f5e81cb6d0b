//! The gateway beside Debian's nginx as a reverse proxy: the same routes, the same backends, the same clients.
//!
//! Everything happens in a network namespace of its own. Both have a process of their own, so that memory is theirs alone, and
//! take short turns in rotation: a machine that is shared is fast in one second and slow in the next.

use crate::control_plane::{self, ControlPlane, Transport};
use crate::report::{Better, Times, line, resident};
use crate::{Args, own_network};
use anyhow::{Context, ensure};
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, Patch};
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const BACKEND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), 8080);
const HOST: &str = "bench.example";
const CLIENTS: usize = 16;
/// Rules of one Ingress.
const RULES: usize = 100;
const START_TIMEOUT: Duration = Duration::from_secs(120);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match (args.inside.clone(), &args.kubeconfig) {
        (Some(_), Some(kubeconfig)) => return serve(kubeconfig).await,
        (Some(dir), None) => return inside(&args, &dir).await,
        _ => {}
    }
    own_network::again(&args, "gateway")
}

/// The gateway alone, until it is killed.
async fn serve(kubeconfig: &Path) -> anyhow::Result<()> {
    let client = Client::from_kubeconfig(&Kubeconfig::load(Some(kubeconfig))?, &Overrides::default())?;
    ::gateway::run(::gateway::Config::new(client, "", vec![OURS.into()]), CancellationToken::new()).await
}

async fn inside(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let socket = netlink::Socket::open()?;
    let lo = socket.link("lo")?.context("no lo")?.index;
    socket.set_up(lo)?;
    for address in [OURS.to_string(), PEER.to_string(), BACKEND.ip().to_string()] {
        socket.add_address(lo, format!("{address}/32").parse()?)?;
    }
    let listener = TcpListener::bind(BACKEND)?;
    std::thread::spawn(move || serve_bodies(&listener));
    let keys = rcgen::generate_simple_self_signed(vec![HOST.into()])?;
    let (certificate, key) = (dir.join("host.crt"), dir.join("host.key"));
    std::fs::write(&certificate, keys.cert.pem())?;
    std::fs::write(&key, keys.signing_key.serialize_pem())?;

    let (rounds, turn) = if args.quick { (1, Duration::from_millis(500)) } else { (3, Duration::from_secs(2)) };
    let sizes: &[usize] = if args.quick { &[10] } else { &[10, 1_000] };
    let server = ControlPlane::start(dir, Transport::Https).await?;
    for &routes in sizes {
        prepare(&server.client, routes, &keys.cert.pem(), &keys.signing_key.serialize_pem()).await?;
        let sides = [Side::ours(dir, &server.client)?, Side::nginx(dir, routes)?];
        let tls = Arc::new(trusting(keys.cert.der())?);
        for side in &sides {
            side.until_it_answers(routes - 1, &tls).await?;
        }
        let cases =
            [("http", false, "1KiB"), ("https", true, "1KiB"), ("http", false, "1MiB"), ("https", true, "1MiB")];
        for (scheme, is_secure, body) in cases {
            let case = format!("{scheme}-{body}");
            if !args.wants(&case) {
                continue;
            }
            let mut measured = [(0.0, Times::default()), (0.0, Times::default())];
            for _ in 0..rounds {
                for (side, (rate, times)) in sides.iter().zip(&mut measured) {
                    let (answers, took, new) = side.ask(routes, body, is_secure.then_some(&tls), turn)?;
                    *rate += answers as f64 / took.as_secs_f64() / f64::from(rounds);
                    times.join(new);
                }
            }
            let parameters = format!("case={case} routes={routes} clients={CLIENTS}");
            let [(our_rate, mut ours), (peer_rate, mut peer)] = measured;
            line("throughput", &parameters, "/s", our_rate, peer_rate, Better::More);
            line("p99", &parameters, "ms", ours.percentile(99), peer.percentile(99), Better::Less);
        }
        let memory = |side: &Side| -> anyhow::Result<f64> { Ok(side.memory()? as f64 / f64::from(1 << 20)) };
        line("memory", format!("routes={routes}"), "MiB", memory(&sides[0])?, memory(&sides[1])?, Better::Less);
    }
    server.stop().await
}

/// Definitions, a certificate, a service, and routes to it.
async fn prepare(client: &Client, routes: usize, certificate: &str, key: &str) -> anyhow::Result<()> {
    ::gateway::install::install(client).await?;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    match client.all::<Namespace>().create(&namespace).await {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "host"}, "type": "kubernetes.io/tls", "stringData": {"tls.crt": certificate, "tls.key": key},
    }))?;
    let service: Service = serde_json::from_value(
        json!({"metadata": {"name": "bodies"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
    )?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "bodies", "labels": {"kubernetes.io/service-name": "bodies"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": BACKEND.port(), "protocol": "TCP"}],
        "endpoints": [{"addresses": [BACKEND.ip()], "conditions": {"ready": true}}],
    }))?;
    let is_new = match client.namespaced::<Secret>("default").create(&secret).await {
        Ok(_) => true,
        Err(error) if error.is_already_exists() => false,
        Err(error) => return Err(error.into()),
    };
    if is_new {
        client.namespaced::<Service>("default").create(&service).await?;
        client.namespaced::<EndpointSlice>("default").create(&slice).await?;
    }
    for first in (0..routes).step_by(RULES) {
        let backend = json!({"service": {"name": "bodies", "port": {"number": 80}}});
        let paths: Vec<_> = (first..routes.min(first + RULES))
            .map(|i| json!({"path": format!("/r{i}"), "pathType": "Prefix", "backend": backend}))
            .collect();
        let name = format!("routes-{}", first / RULES);
        let ingress = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name},
            "spec": {"ingressClassName": ::gateway::CLASS, "tls": [{"hosts": [HOST], "secretName": "host"}],
                "rules": [{"host": HOST, "http": {"paths": paths}}]},
        });
        client.namespaced::<Ingress>("default").patch(&name, &Patch::apply("coxbench", ingress).force()).await?;
    }
    Ok(())
}

/// One proxy, ended when dropped.
struct Side {
    address: Ipv4Addr,
    process: Child,
}

impl Side {
    fn ours(dir: &Path, client: &Client) -> anyhow::Result<Side> {
        let kubeconfig = dir.join("kubeconfig");
        std::fs::write(&kubeconfig, control_plane::kubeconfig(client, dir)?)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("gateway").arg("--inside").arg(dir).arg("--kubeconfig").arg(kubeconfig);
        Ok(Side { address: OURS, process: command.spawn()? })
    }

    fn nginx(dir: &Path, routes: usize) -> anyhow::Result<Side> {
        let at = dir.display();
        let mut text = format!(
            "worker_processes 2;\ndaemon off;\npid {at}/nginx.pid;\nerror_log /dev/null;\nevents {{ worker_connections 1024; }}\n\
             http {{\n  access_log off;\n  keepalive_requests 10000000;\n  client_body_temp_path {at}/nginx-body;\n  \
             proxy_temp_path {at}/nginx-proxy;\n  fastcgi_temp_path {at}/nginx-1;\n  uwsgi_temp_path {at}/nginx-2;\n  \
             scgi_temp_path {at}/nginx-3;\n  upstream bodies {{ server {BACKEND}; keepalive 64; keepalive_requests 10000000; }}\n  \
             server {{\n    listen {PEER}:80;\n    listen {PEER}:443 ssl;\n    server_name {HOST};\n    \
             ssl_certificate {at}/host.crt;\n    ssl_certificate_key {at}/host.key;\n    proxy_http_version 1.1;\n    \
             proxy_set_header Connection \"\";\n    proxy_set_header Host $host;\n    \
             proxy_set_header X-Forwarded-For $remote_addr;\n    proxy_set_header X-Forwarded-Proto $scheme;\n"
        );
        for i in 0..routes {
            writeln!(text, "    location /r{i}/ {{ proxy_pass http://bodies; }}")?;
        }
        text.push_str("  }\n}\n");
        let path = dir.join("nginx.conf");
        std::fs::write(&path, text)?;
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        let process =
            command.spawn().context("no nginx to compare with; install it with: apt-get install nginx-light")?;
        Ok(Side { address: PEER, process })
    }

    async fn until_it_answers(&self, route: usize, tls: &Arc<ClientConfig>) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for tls in [None, Some(tls)] {
            loop {
                let asked = Connection::open(self.address, tls).and_then(|mut one| one.get(route, "1KiB"));
                match asked {
                    Ok(()) => break,
                    Err(error) if Instant::now() > deadline => return Err(error).context("no answer"),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        }
        Ok(())
    }

    /// Many clients at once, each with a connection that it keeps; returns answers, time, and times of single answers.
    fn ask(
        &self,
        routes: usize,
        body: &'static str,
        tls: Option<&Arc<ClientConfig>>,
        turn: Duration,
    ) -> anyhow::Result<(usize, Duration, Times)> {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let mut connection = Connection::open(self.address, tls)?;
            let is_over = is_over.clone();
            clients.push(std::thread::spawn(move || -> anyhow::Result<Times> {
                let (mut times, mut route) = (Times::default(), number * routes / CLIENTS);
                while !is_over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    connection.get(route, body)?;
                    times.add(began.elapsed());
                    route = (route + 7) % routes;
                }
                Ok(times)
            }));
        }
        let began = Instant::now();
        std::thread::sleep(turn);
        is_over.store(true, Ordering::Relaxed);
        let mut all = Times::default();
        for client in clients {
            all.join(client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        Ok((all.count(), began.elapsed(), all))
    }

    /// Of the process and its children.
    fn memory(&self) -> anyhow::Result<u64> {
        let own = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let mut all = vec![own];
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        all.into_iter().map(resident).sum()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Asked, not killed: nginx ends its workers itself.
        if let Ok(pid) = i32::try_from(self.process.id()) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        }
        let _ = self.process.wait();
    }
}

/// A client's connection, with or without TLS.
struct Connection {
    stream: Box<dyn ReadWrite>,
    buffer: Vec<u8>,
}

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

impl Connection {
    fn open(address: Ipv4Addr, tls: Option<&Arc<ClientConfig>>) -> anyhow::Result<Connection> {
        let port = if tls.is_some() { 443 } else { 80 };
        let stream = TcpStream::connect((address, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let stream: Box<dyn ReadWrite> = match tls {
            Some(tls) => {
                let name = ServerName::try_from(HOST)?;
                Box::new(StreamOwned::new(ClientConnection::new(tls.clone(), name)?, stream))
            }
            None => Box::new(stream),
        };
        Ok(Connection { stream, buffer: vec![0; 256 << 10] })
    }

    /// One request, whose answer must be whole.
    fn get(&mut self, route: usize, body: &str) -> anyhow::Result<()> {
        // In one piece, as clients send it: `write!` to the stream would send each part by itself.
        let request = format!("GET /r{route}/{body} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        self.stream.flush()?;
        let mut read = 0;
        let head = loop {
            let length = self.stream.read(&mut self.buffer[read..])?;
            ensure!(length > 0, "the connection was closed");
            read += length;
            if let Some(end) = memchr::memmem::find(&self.buffer[..read], b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head])?.to_ascii_lowercase();
        ensure!(text.starts_with("http/1.1 200"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")).context("no length")?;
        let mut left = length.trim().parse::<usize>()?.checked_sub(read - head).context("more than was announced")?;
        while left > 0 {
            let got = self.stream.read(&mut self.buffer)?;
            ensure!(got > 0, "the connection was closed");
            left = left.checked_sub(got).context("more than was announced")?;
        }
        Ok(())
    }
}

fn trusting(certificate: &CertificateDer<'static>) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// Answers with a body of the size that the path's last part says.
fn serve_bodies(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer(&stream));
    }
}

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let whole = |size: usize| {
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {size}\r\n\r\n").into_bytes();
        answer.resize(answer.len() + size, b'.');
        answer
    };
    let (small, large) = (whole(1 << 10), whole(1 << 20));
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..length]);
        while let Some(end) = memchr::memmem::find(&request, b"\r\n\r\n") {
            let line_end = memchr::memchr(b'\r', &request).unwrap_or(end);
            let is_large = memchr::memmem::find(&request[..line_end], b"/1MiB").is_some();
            request.drain(..end + 4);
            stream.write_all(if is_large { &large } else { &small })?;
        }
    }
}
