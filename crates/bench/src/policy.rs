//! Network policies beside none: what they cost a packet, and how soon a change holds.
//!
//! Everything happens in a network namespace of its own: this host, somebody who sends, and somebody who has the addresses of
//! all pods. Every pod has a policy of its own, which lets the sender in.

use crate::Args;
use crate::control_plane::{ControlPlane, Transport};
use crate::own_network::{self, up};
use crate::report::{Better, Times, line, line_alone};
use anyhow::{Context, bail};
use api::cidr::Cidr;
use client::{Client, Patch};
use cni::netns::Netns;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use netlink::{LinkKind, Route, RouteKind, Scope, Socket};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Writes on their way at a time.
const PARALLEL: usize = 64;
/// Pods, and policies, of a namespace.
const OF_NAMESPACE: usize = 100;
const NODE: &str = "bench";
/// The sender, which is a pod of another node.
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 41, 0, 2);
/// Where it is not.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(10, 41, 0, 3);
const STREAMED: u16 = 80;
const COUNTED: u16 = 7;
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(600);
/// Between two datagrams.
const SEND_INTERVAL: Duration = Duration::from_micros(200);
/// A pod that gets nothing for so long is closed.
const CLOSED_TIMEOUT: Duration = Duration::from_millis(300);
const ROUNDS: usize = 11;

/// Datagrams that pods have got.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(dir) = args.inside.clone() {
        return inside(&args, &dir).await;
    }
    own_network::again(&args, "policy")
}

async fn inside(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let sender = lay_cables(dir)?;
    let server = ControlPlane::start(dir, Transport::Call).await?;
    let client = &server.client;
    let turn = if args.quick { Duration::from_millis(300) } else { Duration::from_secs(3) };
    let sizes: &[usize] = if args.quick { &[100] } else { &[1_000, 10_000] };
    let mut there = 0;
    for &count in sizes {
        grow(client, there..count).await?;
        there = count;
        let none = Figures::measure(&sender, count, turn)?;
        let stop = CancellationToken::new();
        let config = ::policy::Config {
            client: client.clone(),
            node_name: NODE.to_owned(),
            bridge: "cox0".to_owned(),
            socket: dir.join("policy.sock"),
        };
        let began = Instant::now();
        let enforcing = tokio::spawn(::policy::run(config, stop.clone()));
        // The last policy is in force once it keeps the sender out.
        set(client, count - 1, false).await?;
        until(&sender, count - 1, false).await?;
        let program = began.elapsed().as_secs_f64() * 1e3;
        set(client, count - 1, true).await?;
        until(&sender, count - 1, true).await?;
        let some = Figures::measure(&sender, count, turn)?;

        let (mut opened, mut closed) = (Times::default(), Times::default());
        for round in 0..ROUNDS {
            let at = round * (count - 1) / (ROUNDS - 1);
            for (opens, times) in [(false, &mut closed), (true, &mut opened)] {
                let began = Instant::now();
                set(client, at, opens).await?;
                let took = until(&sender, at, opens).await?.saturating_duration_since(began);
                // The first warms up what all need.
                if round > 0 {
                    times.add(took);
                }
            }
        }
        // The sender, which every policy means, gets another address, and its own again.
        let (mut come, mut gone) = (Times::default(), Times::default());
        for round in 0..ROUNDS {
            for (address, comes, times) in [(ELSEWHERE, false, &mut gone), (SENDER, true, &mut come)] {
                let began = Instant::now();
                set_address(client, "senders", "sender", address).await?;
                let took = until(&sender, count / 2, comes).await?.saturating_duration_since(began);
                if round > 0 {
                    times.add(took);
                }
            }
        }
        let parameters = format!("policies={count} pods={count}");
        line("throughput", &parameters, "MiB/s", some.throughput, none.throughput, Better::More);
        line("first-packet", &parameters, "us", some.first_packet, none.first_packet, Better::Less);
        line_alone("program", &parameters, "ms", program);
        line_alone("open", &parameters, "ms", opened.percentile(50));
        line_alone("close", &parameters, "ms", closed.percentile(50));
        line_alone("peer-comes", &parameters, "ms", come.percentile(50));
        line_alone("peer-leaves", &parameters, "ms", gone.percentile(50));
        stop.cancel();
        enforcing.await??;
        // What it enforced stays, and would be there for the next without any.
        netlink::nft::apply("add table inet cox-policy\ndelete table inet cox-policy\n")?;
    }
    server.stop().await
}

struct Figures {
    /// Of one connection, in MiB per second.
    throughput: f64,
    /// How long a connection takes to be made: the median, in microseconds.
    first_packet: f64,
}

impl Figures {
    fn measure(sender: &Netns, count: usize, turn: Duration) -> anyhow::Result<Figures> {
        sender.enter(|| {
            let mut connects = Times::default();
            for round in 0..1000 {
                let began = Instant::now();
                let stream = TcpStream::connect((address(round * (count - 1) / 999), STREAMED))?;
                connects.add(began.elapsed());
                drop(stream);
            }
            let mut stream = TcpStream::connect((address(count / 2), STREAMED))?;
            let (began, data, mut sent) = (Instant::now(), vec![0; 256 << 10], 0);
            while began.elapsed() < turn {
                stream.write_all(&data)?;
                sent += data.len();
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            // It answers when it has had everything.
            stream.read_to_end(&mut Vec::new())?;
            let throughput = sent as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64();
            anyhow::Ok(Figures { throughput, first_packet: connects.percentile(50) * 1e3 })
        })?
    }
}

/// Makes pods and policies, a namespace for every hundred.
async fn grow(client: &Client, numbers: std::ops::Range<usize>) -> anyhow::Result<()> {
    if numbers.start == 0 {
        make_namespace(client, "senders").await?;
        make_pod(client, "senders", "sender", "elsewhere", SENDER).await?;
    }
    for first in numbers.clone().step_by(OF_NAMESPACE) {
        make_namespace(client, &namespace(first)).await?;
    }
    let one = async |i: usize| -> anyhow::Result<()> {
        make_pod(client, &namespace(i), &name(i), NODE, address(i)).await?;
        let policy: NetworkPolicy = serde_json::from_value(json!({
            "metadata": {"name": name(i), "namespace": namespace(i)},
            "spec": spec(i, true),
        }))?;
        client
            .namespaced::<NetworkPolicy>(&namespace(i))
            .create(&policy)
            .await
            .with_context(|| format!("policy {i}"))?;
        Ok(())
    };
    let mut writes = futures_util::stream::iter(numbers).map(one).buffer_unordered(PARALLEL);
    while let Some(done) = writes.next().await {
        done?;
    }
    Ok(())
}

async fn make_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": {"of": name}}}))?;
    client.all::<Namespace>().create(&namespace).await?;
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default", "namespace": name}}))?;
    client.namespaced::<ServiceAccount>(name).create(&account).await?;
    Ok(())
}

async fn make_pod(client: &Client, namespace: &str, name: &str, node: &str, ip: Ipv4Addr) -> anyhow::Result<()> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": node, "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "pause"}]},
    }))?;
    let pods = client.namespaced::<Pod>(namespace);
    pods.create(&pod).await.with_context(|| format!("pod {name}"))?;
    set_address(client, namespace, name, ip).await
}

async fn set_address(client: &Client, namespace: &str, name: &str, ip: Ipv4Addr) -> anyhow::Result<()> {
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
    let pods = client.namespaced::<Pod>(namespace);
    pods.patch_status(name, &Patch::merge(status)).await.with_context(|| format!("status of pod {name}"))?;
    Ok(())
}

/// Who may reach a pod: its neighbour, two ranges, and the sender if it `is_open`.
fn spec(i: usize, is_open: bool) -> Value {
    let senders = json!({"namespaceSelector": {"matchLabels": {"of": "senders"}}});
    let neighbour = json!({"podSelector": {"matchLabels": {"app": name(i + 1)}}});
    let mut from = vec![neighbour, json!({"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}})];
    from.extend(is_open.then_some(senders));
    json!({
        "podSelector": {"matchLabels": {"app": name(i)}},
        "ingress": [{"from": from, "ports": [{"port": STREAMED}, {"port": COUNTED, "protocol": "UDP"}]}],
    })
}

async fn set(client: &Client, i: usize, is_open: bool) -> anyhow::Result<()> {
    let patch = Patch::merge(json!({"spec": spec(i, is_open)}));
    client.namespaced::<NetworkPolicy>(&namespace(i)).patch(&name(i), &patch).await?;
    Ok(())
}

/// Sends to a pod until it gets something, or gets nothing any more; returns when that began.
async fn until(sender: &Netns, i: usize, is_open: bool) -> anyhow::Result<Instant> {
    let socket = sender.enter(|| connected(i))??;
    tokio::task::spawn_blocking(move || {
        let (began, mut arrived) = (Instant::now(), Instant::now());
        let mut before = ARRIVED.load(Ordering::Acquire);
        loop {
            socket.send(&[0; 8])?;
            std::thread::sleep(SEND_INTERVAL);
            let now = ARRIVED.load(Ordering::Acquire);
            if now != before {
                (before, arrived) = (now, Instant::now());
                if is_open {
                    return Ok(arrived);
                }
            }
            if !is_open && arrived.elapsed() > CLOSED_TIMEOUT {
                return Ok(arrived);
            }
            if began.elapsed() > PROGRAM_TIMEOUT {
                bail!("the policy of pod {i} does not come to hold");
            }
        }
    })
    .await?
}

fn connected(i: usize) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((SENDER, 0))?;
    socket.connect((address(i), COUNTED))?;
    Ok(socket)
}

fn name(i: usize) -> String {
    format!("pod-{i}")
}

fn namespace(i: usize) -> String {
    format!("ns-{}", i / OF_NAMESPACE)
}

/// The address of pod `i`.
fn address(i: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 42, 1, 0).to_bits() + i as u32)
}

/// This host, the sender, and one who has every address of pods; returns the sender's namespace.
fn lay_cables(dir: &Path) -> anyhow::Result<Netns> {
    let host = Socket::open()?;
    let cidr = |text: &str| -> anyhow::Result<Cidr> { Ok(text.parse()?) };
    up(&host, "lo")?;
    cni::netns::set_sysctl("net/ipv4/ip_forward", "1")?;
    let mut namespaces = Vec::new();
    for (number, name) in ["sender", "pods"].into_iter().enumerate() {
        let namespace = Netns::create(dir.join(name))?;
        let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.as_fd()), peer_mtu: None };
        host.add_link(name, kind, None, None)?;
        let index = up(&host, name)?;
        host.add_address(index, cidr(&format!("10.99.{number}.1/24"))?)?;
        let inside = namespace.socket()?;
        up(&inside, "lo")?;
        let index = up(&inside, "eth0")?;
        inside.add_address(index, cidr(&format!("10.99.{number}.2/24"))?)?;
        let behind = if number == 0 { Cidr::host(SENDER.into()) } else { cidr("10.42.0.0/16")? };
        host.add_route(&Route::to(behind).via(format!("10.99.{number}.2").parse()?))?;
        let mut own = Route::to(behind).dev(inside.link("lo")?.context("no lo")?.index);
        (own.kind, own.scope, own.table) = (RouteKind::Local, Scope(254), 255);
        inside.add_route(&own)?;
        let mut default = Route::to(cidr("0.0.0.0/0")?).via(format!("10.99.{number}.1").parse()?);
        // Policies know the sender by this address.
        default.source = (number == 0).then_some(SENDER.into());
        inside.add_route(&default)?;
        // The interface holds on to the namespace; the file need not.
        Netns::remove(dir.join(name))?;
        namespaces.push(namespace);
    }
    let [sender, pods] = namespaces.try_into().map_err(|_| anyhow::anyhow!("two were made"))?;
    let (streams, datagrams) = pods
        .enter(|| anyhow::Ok((TcpListener::bind(("0.0.0.0", STREAMED))?, UdpSocket::bind(("0.0.0.0", COUNTED))?)))??;
    std::thread::spawn(move || swallow(&streams));
    std::thread::spawn(move || count(&datagrams));
    Ok(sender)
}

/// Takes whatever is sent.
fn swallow(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            while (&stream).read(&mut buffer).is_ok_and(|length| length > 0) {}
        });
    }
}

/// Counts what arrives.
fn count(socket: &UdpSocket) {
    while socket.recv(&mut [0; 8]).is_ok() {
        ARRIVED.fetch_add(1, Ordering::Release);
    }
}
