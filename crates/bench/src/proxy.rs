//! The service proxy: nftables beside iptables, on the same kernel with the same services.
//!
//! Everything happens in a network namespace of its own: this host, and a pod behind a cable that has all endpoints' addresses
//! and answers with the one it was reached at.

use crate::Args;
use crate::own_network::{self, up};
use crate::report::{Better, Times, line, line_alone};
use crate::services::{Services, cluster_ip};
use ::proxy::Mode;
use anyhow::bail;
use api::cidr::Cidr;
use cni::netns::Netns;
use netlink::{LinkKind, Route, Socket};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// Services of a large cluster.
const MANY: usize = 50_000;
/// Endpoints before and after a change.
const BEFORE: [u8; 3] = [2, 3, 4];
const AFTER: [u8; 3] = [5, 6, 7];

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if let Some(dir) = args.inside.clone() {
        return inside(&args, &dir).await;
    }
    own_network::again(&args, "proxy")
}

async fn inside(args: &Args, dir: &Path) -> anyhow::Result<()> {
    lay_cables(dir)?;
    let mut services = Services::start(&dir.join("store")).await?;
    let sizes: &[usize] = if args.quick { &[100] } else { &[1_000, 10_000] };
    for count in sizes {
        services.grow(*count).await?;
        let ours = measure(&services, Mode::Nftables).await?;
        let peer = measure(&services, Mode::Iptables).await?;
        let parameters = format!("services={count} endpoints=3");
        for (mode, figures) in [("nftables", &ours), ("iptables", &peer)] {
            println!(
                "proxy mode={mode} {parameters} program_ms={:.1} change_ms={:.2} first_packet_us={:.0}",
                figures.program, figures.change, figures.first_packet
            );
        }
        line("program", &parameters, "ms", ours.program, peer.program, Better::Less);
        line("change", &parameters, "ms", ours.change, peer.change, Better::Less);
        line("first-packet", &parameters, "us", ours.first_packet, peer.first_packet, Better::Less);
    }
    // So many are too many for iptables.
    if !args.quick {
        services.grow(MANY).await?;
        let ours = measure(&services, Mode::Nftables).await?;
        let parameters = format!("mode=nftables services={MANY} endpoints=3");
        line_alone("program", &parameters, "ms", ours.program);
        line_alone("change", &parameters, "ms", ours.change);
        line_alone("first-packet", &parameters, "us", ours.first_packet);
    }
    Ok(())
}

struct Figures {
    /// From the start of the proxy, with its lists, to the last service's first answer.
    program: f64,
    /// From the write to the API to the first answer of a new endpoint; the median of many.
    change: f64,
    /// How long a connection takes to be made; the median of many services.
    first_packet: f64,
}

async fn measure(services: &Services, mode: Mode) -> anyhow::Result<Figures> {
    // Rules outlive their proxy, and would answer for this one.
    ::proxy::cleanup().await.map_err(anyhow::Error::msg)?;
    let mut config = ::proxy::Config::new(services.client.clone(), "bench");
    config.mode = mode;
    config.cluster_cidrs = vec!["10.42.0.0/16".into()];
    config.service_cidrs = vec!["10.43.0.0/16".into()];
    let stop = CancellationToken::new();
    let began = Instant::now();
    let running = tokio::spawn(::proxy::run(config, stop.clone()));
    let last = services.count - 1;
    until_answer(last, |_| true).await?;
    let program = began.elapsed().as_secs_f64() * 1e3;

    let mut changes = Times::default();
    // Spread over all services; the first warms up what all need.
    let changed: Vec<usize> = (0..21).map(|i| i * last / 20).collect();
    for (round, i) in changed.iter().enumerate() {
        let began = Instant::now();
        services.lead(*i, &AFTER).await?;
        until_answer(*i, |endpoint| AFTER.contains(&endpoint)).await?;
        if round > 0 {
            changes.add(began.elapsed());
        }
    }
    let mut packets = Times::default();
    for round in 0..500 {
        let address = address(round * last / 499);
        let began = Instant::now();
        let stream = TcpStream::connect(address)?;
        packets.add(began.elapsed());
        drop(stream);
    }
    for i in changed {
        services.lead(i, &BEFORE).await?;
    }
    stop.cancel();
    running.await??;
    Ok(Figures { program, change: changes.percentile(50), first_packet: packets.percentile(50) * 1e3 })
}

/// Asks a service until the endpoint that answers is as wanted.
async fn until_answer(i: usize, is_wanted: impl Fn(u8) -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    loop {
        if ask(i).is_some_and(&is_wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("service {i} does not answer");
        }
        tokio::task::yield_now().await;
    }
}

/// The last byte of the address of the endpoint that answers.
fn ask(i: usize) -> Option<u8> {
    // Short: an attempt that nobody answers yet must not be what is measured.
    let mut stream = TcpStream::connect_timeout(&address(i), Duration::from_millis(20)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut answer = [0];
    stream.read_exact(&mut answer).ok()?;
    Some(answer[0])
}

fn address(i: usize) -> SocketAddr {
    format!("{}:80", cluster_ip(i)).parse().expect("an address with a port")
}

/// This host, and a pod that has every endpoint's address.
fn lay_cables(dir: &Path) -> anyhow::Result<()> {
    let host = Socket::open()?;
    let cidr = |text: &str| -> anyhow::Result<Cidr> { Ok(text.parse()?) };
    up(&host, "lo")?;
    let pod = Netns::create(dir.join("pod"))?;
    let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(pod.as_fd()), peer_mtu: None };
    host.add_link("pod", kind, None, None)?;
    let index = up(&host, "pod")?;
    host.add_address(index, cidr("10.42.0.1/24")?)?;
    cni::routes::seal(&[cidr("10.42.0.0/16")?], &[cidr("10.43.0.0/16")?], Some("10.42.0.1".parse()?))?;
    let inside = pod.socket()?;
    up(&inside, "lo")?;
    let index = up(&inside, "eth0")?;
    for last in BEFORE.iter().chain(&AFTER) {
        inside.add_address(index, cidr(&format!("10.42.0.{last}/24"))?)?;
    }
    inside.add_route(&Route::to(cidr("0.0.0.0/0")?).via("10.42.0.1".parse()?))?;
    let listener = pod.enter(|| TcpListener::bind("0.0.0.0:80"))??;
    std::thread::spawn(move || answer(&listener));
    // The interface holds on to the namespace; the file need not.
    Ok(Netns::remove(dir.join("pod"))?)
}

/// Tells every client which address it has reached.
fn answer(listener: &TcpListener) {
    use std::io::Write;
    for stream in listener.incoming().flatten() {
        if let Ok(SocketAddr::V4(local)) = stream.local_addr() {
            // A client that is gone has measured already.
            let _ = (&stream).write_all(&local.ip().octets()[3..]);
        }
    }
}
