//! What `kubectl top` costs: our API server, which asks kubelets itself, beside a real metrics-server that is named by
//! `--metrics-server`. Both ask the same kubelets, and both are asked the same questions at the same pace, after each has
//! answered once.
//!
//! The kubelets are ports of this process that answer with ready texts, so that only those who ask are measured. Ours is the
//! growth of the API server's CPU time and memory over what it takes without questions; the peer's is all of its process, but
//! not what its watches cost the API server.
//!
//! And what the figures cost a cluster that nobody looks at: a server that keeps their history beside one that does not.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::Args;
use crate::own_server::{self, OwnServer};
use crate::process::Processes;
use crate::report::{Better, line};

/// As often as a metrics-server asks.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// Since when nodes are ready and pods run.
const SINCE: &str = "2026-01-01T00:00:00Z";
/// How many times less CPU than a metrics-server's we want to take.
const AIM_RATIO: f64 = 10.0;
/// What all of it may cost a cluster that nobody looks at: percent of a core, and megabytes.
const AIM_IDLE_PERCENT: f64 = 0.1;
const AIM_IDLE_MEGABYTES: f64 = 5.0;
/// As many as a node has at most.
const PODS: usize = 110;

pub(crate) async fn run(args: Args) -> Result<()> {
    if let Some(dir) = &args.inside {
        return own_server::serve(dir).await;
    }
    if args.metrics_server.is_none() {
        println!("# no peer was named: --metrics-server <path of a metrics-server>");
    }
    let (many, long, quiet) = if args.quick { (20, 15, 15) } else { (1000, 60, 120) };
    for (case, nodes, pods) in [("pods", 1, PODS), ("nodes", many, 0)] {
        if args.wants(case) {
            measure(&args, case, nodes, pods, Duration::from_secs(long)).await?;
        }
    }
    if args.wants("idle") {
        measure_idle(&args, Duration::from_secs(quiet)).await?;
    }
    Ok(())
}

/// What happens now: it takes minutes.
fn say(case: &str, what: &str) {
    println!("# {case}: {what}");
}

/// An API server of ours with nodes and pods.
struct Filled {
    server: OwnServer,
    client: Client,
    processes: Processes,
}

impl Filled {
    async fn new(server: OwnServer, kubelets: &Kubelets, nodes: usize, pods: usize) -> Result<Self> {
        let kubeconfig = Kubeconfig::load(Some(server.kubeconfig().as_path()))?;
        let client = Client::from_kubeconfig(&kubeconfig, &Overrides::default())?;
        fill(&client, kubelets.port, nodes, pods).await?;
        let processes = Processes::behind(client.endpoint().await?.port);
        ensure!(processes.are_known(), "the API server is not found");
        Ok(Self { server, client, processes })
    }
}

async fn measure(args: &Args, case: &str, nodes: usize, pods: usize, long: Duration) -> Result<()> {
    say(case, &format!("a server with {nodes} nodes and {pods} pods"));
    let kubelets = Kubelets::start(pods).await?;
    let ours = Filled::new(OwnServer::start("metrics", &args.dir).await?, &kubelets, nodes, pods).await?;
    say(case, &format!("{} s without questions", long.as_secs()));
    let (before, cpu) = (ours.processes.memory()?, ours.processes.cpu());
    tokio::time::sleep(long).await;
    let unasked = ours.processes.cpu() - cpu;
    say(case, &format!("{} s of questions to us", long.as_secs()));
    wait_for_all(&ours.client, nodes, pods, || Ok(())).await?;
    let cpu = ours.processes.cpu();
    let missed = ask(&ours.client, long, nodes, pods).await?;
    // Less than a millisecond is not told from what the server does anyway.
    let asked = (ours.processes.cpu() - cpu).saturating_sub(unasked).max(Duration::from_millis(1));
    let grown = ours.processes.memory()?.saturating_sub(before);

    let peer = match &args.metrics_server {
        None => None,
        Some(program) => {
            say(case, &format!("a metrics-server, and {} s of questions to it", long.as_secs()));
            Some(measure_peer(program, &ours.server.kubeconfig(), args, long, nodes, pods).await?)
        }
    };
    let named = match &peer {
        None => " peer=not-named".to_owned(),
        Some(peer) if peer.missed > 0 => format!(" missed-by-peer={}", peer.missed),
        Some(_) => String::new(),
    };
    let missed = if missed > 0 { format!(" missed={missed}") } else { String::new() };
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let unasked = format!(" unasked={:.0}ms", milliseconds(unasked));
    let parameters = format!("nodes={nodes} pods={pods} seconds={}{unasked}{missed}{named}", long.as_secs());
    let cpu_peer = peer.as_ref().map(|peer| milliseconds(peer.cpu));
    line(&format!("{case}-cpu"), &parameters, "ms", milliseconds(asked), cpu_peer, Better::Less);
    let memory_peer = peer.as_ref().map(|peer| peer.memory as f64 / 1e6);
    line(&format!("{case}-memory"), &parameters, "MB", grown as f64 / 1e6, memory_peer, Better::Less);
    if let Some(peer) = cpu_peer {
        let ratio = peer / milliseconds(asked);
        say(case, &format!("{ratio:.1} times less CPU than a metrics-server; the aim is {AIM_RATIO}"));
    }
    Ok(())
}

/// Two servers with a node full of pods, asked by nobody. One of them asks the node once a minute, for its history.
async fn measure_idle(args: &Args, long: Duration) -> Result<()> {
    say("idle", "a server that keeps a history of figures, and one that does not");
    let kubelets = Kubelets::start(PODS).await?;
    let with = Filled::new(OwnServer::start_with_history("metrics", &args.dir).await?, &kubelets, 1, PODS).await?;
    let without = Filled::new(OwnServer::start("metrics", &args.dir).await?, &kubelets, 1, PODS).await?;
    // The first figures come with the next minute, and all the memory for later ones with them.
    let first = Duration::from_secs(if args.quick { 1 } else { 65 });
    say("idle", &format!("{} s for the first figures, and {} s in which nobody asks", first.as_secs(), long.as_secs()));
    tokio::time::sleep(first).await;
    let before = (with.processes.cpu(), without.processes.cpu());
    tokio::time::sleep(long).await;
    let cpu = (with.processes.cpu() - before.0).saturating_sub(without.processes.cpu() - before.1);
    let memory = with.processes.memory()?.saturating_sub(without.processes.memory()?);
    let parameters = format!("nodes=1 pods={PODS} seconds={} aim=peer", long.as_secs());
    let percent = cpu.as_secs_f64() / long.as_secs_f64() * 100.0;
    line("idle-cpu", &parameters, "%", percent, AIM_IDLE_PERCENT, Better::Less);
    let memory = memory as f64 / 1e6;
    line("idle-memory", &parameters, "MB", memory, AIM_IDLE_MEGABYTES, Better::Less);
    let aim = format!("the aim is below {AIM_IDLE_PERCENT} % and {AIM_IDLE_MEGABYTES} MB");
    say("idle", &format!("{percent:.3} % of a core and {memory:.1} MB; {aim}"));
    Ok(())
}

/// Waits until everything is measured: how long the first answers take is not compared.
async fn wait_for_all(client: &Client, nodes: usize, pods: usize, mut alive: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        alive()?;
        let found = (list(client, "nodes").await, list(client, "pods").await);
        if matches!(found, (Ok(found_nodes), Ok(found_pods)) if found_nodes == nodes && found_pods == pods) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not all of {nodes} nodes and {pods} pods are measured: {found:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Asks for nodes and pods at a metrics-server's pace; returns how many of them were missing in answers.
async fn ask(client: &Client, long: Duration, nodes: usize, pods: usize) -> Result<usize> {
    let (began, mut missed) = (Instant::now(), 0);
    while began.elapsed() < long {
        // First, so that no answer is one that was given before the measurement.
        tokio::time::sleep(SCRAPE_INTERVAL).await;
        missed += nodes.saturating_sub(list(client, "nodes").await?);
        missed += pods.saturating_sub(list(client, "pods").await?);
    }
    Ok(missed)
}

async fn list(client: &Client, what: &str) -> Result<usize> {
    let answer = send(client, Method::GET, &format!("/apis/metrics.k8s.io/v1beta1/{what}"), Value::Null).await?;
    Ok(answer["items"].as_array().map_or(0, Vec::len))
}

async fn send(client: &Client, method: Method, path: &str, body: Value) -> Result<Value> {
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body)?;
    let answer = client.send_checked(request).await.with_context(|| path.to_owned())?;
    let bytes = http_body_util::BodyExt::collect(answer.into_body()).await.map_err(anyhow::Error::from_boxed)?;
    Ok(serde_json::from_slice(&bytes.to_bytes())?)
}

/// Nodes that are Ready, all with the same kubelet behind their addresses, and pods on the first of them.
async fn fill(client: &Client, port: u16, nodes: usize, pods: usize) -> Result<()> {
    for node in 0..nodes {
        let name = format!("node-{node}");
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        let mut made = send(client, Method::POST, "/api/v1/nodes", object).await?;
        // Each at an address of its own, as nodes are: connections to one are of no use for another.
        let address = format!("127.1.{}.{}", node / 250, node % 250 + 1);
        made["status"] = json!({
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": SINCE, "lastTransitionTime": SINCE}],
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        });
        send(client, Method::PUT, &format!("/api/v1/nodes/{name}/status"), made).await?;
    }
    if pods > 0 {
        let account = json!({"metadata": {"name": "default"}});
        send(client, Method::POST, "/api/v1/namespaces/default/serviceaccounts", account).await?;
    }
    for pod in 0..pods {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod-{pod}")},
            "spec": {"nodeName": "node-0", "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "none"}]}});
        let mut made = send(client, Method::POST, "/api/v1/namespaces/default/pods", object).await?;
        // A metrics-server shows those that run, and to us those that just began are special.
        made["status"]["phase"] = json!("Running");
        made["status"]["startTime"] = json!(SINCE);
        send(client, Method::PUT, &format!("/api/v1/namespaces/default/pods/pod-{pod}/status"), made).await?;
    }
    Ok(())
}

/// What a metrics-server took.
struct Peer {
    cpu: Duration,
    memory: u64,
    missed: usize,
}

/// A metrics-server that is asked as we are.
async fn measure_peer(
    program: &Path,
    kubeconfig: &Path,
    args: &Args,
    long: Duration,
    nodes: usize,
    pods: usize,
) -> Result<Peer> {
    let dir = tempfile::tempdir_in(&args.dir)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let log = dir.path().join("log");
    let mut command = Command::new(program);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", kubeconfig.display()));
    }
    command.args([
        "--kubelet-insecure-tls",
        "--kubelet-use-node-status-port",
        "--kubelet-preferred-address-types=InternalIP",
        "--authentication-tolerate-lookup-failure=true",
        "--bind-address=127.0.0.1",
    ]);
    command.arg(format!("--metric-resolution={}s", SCRAPE_INTERVAL.as_secs()));
    command.arg(format!("--secure-port={port}")).arg(format!("--cert-dir={}", dir.path().display()));
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log)?);
    let mut process = Ends(command.spawn().with_context(|| program.display().to_string())?);
    // The same administrator, at the peer's own port.
    let mut peer = Kubeconfig::load(Some(kubeconfig))?;
    for cluster in &mut peer.clusters {
        cluster.cluster.server = Some(format!("https://127.0.0.1:{port}"));
        cluster.cluster.certificate_authority = None;
        cluster.cluster.insecure_skip_tls_verify = Some(true);
    }
    let client = Client::from_kubeconfig(&peer, &Overrides::default())?;
    let alive = || -> Result<()> {
        if let Some(status) = process.0.try_wait()? {
            bail!("the metrics-server ended: {status}");
        }
        Ok(())
    };
    wait_for_all(&client, nodes, pods, alive).await.with_context(|| format!("its log ends with\n{}", tail(&log)))?;
    let processes = Processes::behind(port);
    ensure!(processes.are_known(), "the metrics-server is not found");
    let cpu = processes.cpu();
    let missed = ask(&client, long, nodes, pods).await?;
    Ok(Peer { cpu: processes.cpu() - cpu, memory: processes.memory()?, missed })
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// Ended when dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port of all loopback addresses that answers as a kubelet does, whatever node it is asked as.
struct Kubelets {
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Kubelets {
    async fn start(pods: usize) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()])?;
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], 0))).await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            loop {
                let Ok((tcp, _)) = listener.accept().await else {
                    // No descriptor is free: those who asked close theirs.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(tcp).await else { return };
                    let mut head = Vec::new();
                    let mut piece = [0; 4096];
                    while let Ok(read @ 1..) = stream.read(&mut piece).await {
                        head.extend_from_slice(&piece[..read]);
                        if !head.ends_with(b"\r\n\r\n") {
                            continue;
                        }
                        let wants_summary = head.windows(14).any(|window| window == b"/stats/summary");
                        let (media, body) = answer(wants_summary, pods);
                        head.clear();
                        let length = body.len();
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n{body}"
                        );
                        if stream.write_all(answer.as_bytes()).await.is_err() || stream.flush().await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { port, task })
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `/stats/summary`, which we ask for, or `/metrics/resource`, which metrics-server does.
fn answer(wants_summary: bool, pods: usize) -> (&'static str, String) {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Everybody uses a tenth of a core.
    let (used, milliseconds) = (since.as_nanos() / 10, since.as_millis());
    let seconds = since.as_secs_f64() / 10.0;
    if wants_summary {
        let cpu = json!({"usageCoreNanoSeconds": u64::try_from(used).unwrap_or_default()});
        let memory = json!({"workingSetBytes": 50_000_000});
        let pod = |number: usize| {
            json!({"podRef": {"namespace": "default", "name": format!("pod-{number}"), "uid": number.to_string()},
                "containers": [{"name": "main", "cpu": cpu, "memory": memory}]})
        };
        let pods: Vec<Value> = (0..pods).map(pod).collect();
        return (
            "application/json",
            json!({"node": {"nodeName": "n", "cpu": cpu, "memory": memory}, "pods": pods}).to_string(),
        );
    }
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, value: &str| {
        text +=
            &format!("# TYPE node_{name} {kind}\nnode_{name} {value} {milliseconds}\n# TYPE container_{name} {kind}\n");
        for pod in 0..pods {
            let labels = format!("container=\"main\",namespace=\"default\",pod=\"pod-{pod}\"");
            text += &format!("container_{name}{{{labels}}} {value} {milliseconds}\n");
        }
    };
    family("cpu_usage_seconds_total", "counter", &seconds.to_string());
    family("memory_working_set_bytes", "gauge", "50000000");
    for pod in 0..pods {
        text += &format!(
            "container_start_time_seconds{{container=\"main\",namespace=\"default\",pod=\"pod-{pod}\"}} 1700000000\n"
        );
    }
    ("text/plain; version=0.0.4", text)
}
