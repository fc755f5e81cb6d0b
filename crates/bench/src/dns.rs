//! Cluster DNS beside Debian's unbound, both serving the same names: answers per second, and memory.

use crate::Args;
use crate::report::{Better, line, resident};
use crate::services::{Services, cluster_ip};
use anyhow::{Context, bail};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Clients, each with some questions on their way.
const CLIENTS: usize = 2;
const WINDOW: usize = 32;

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(&args.dir)?;
    let mut services = Services::start(&dir.path().join("store")).await?;
    let sizes: &[usize] = if args.quick { &[100] } else { &[1_000, 10_000] };
    let (rounds, turn) = if args.quick { (1, Duration::from_millis(300)) } else { (5, Duration::from_secs(1)) };
    let (empty, _) = Unbound::start(dir.path(), 0)?;
    let bare_peer = empty.resident()?;
    drop(empty);
    for count in sizes {
        services.grow(*count).await?;
        let before = resident(std::process::id())?;
        let ours = Ours::start(&services).await?;
        let our_memory = resident(std::process::id())?.saturating_sub(before);
        let (unbound, peer) = Unbound::start(dir.path(), *count)?;
        let peer_memory = unbound.resident()?.saturating_sub(bare_peer);
        let (mut our_rate, mut peer_rate) = (0.0, 0.0);
        for _ in 0..rounds {
            our_rate += ask_for(ours.address, *count, turn).await? / f64::from(rounds);
            peer_rate += ask_for(peer, *count, turn).await? / f64::from(rounds);
        }
        let parameters = format!("services={count}");
        line("qps", &parameters, "/s", our_rate, peer_rate, Better::More);
        let per_thousand = |bytes: u64| bytes as f64 / 1024.0 / (*count as f64 / 1000.0);
        let memory = (per_thousand(our_memory), per_thousand(peer_memory));
        line("memory-per-1000", &parameters, "KiB", memory.0, memory.1, Better::Less);
        ours.end().await?;
    }
    Ok(())
}

struct Ours {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Ours {
    async fn start(services: &Services) -> anyhow::Result<Ours> {
        let address = free_address()?;
        let stop = CancellationToken::new();
        let config = ::dns::Config::new(services.client.clone(), vec![address]);
        let task = tokio::spawn(::dns::run(config, stop.clone()));
        until_answer(address, services.count - 1)?;
        Ok(Ours { address, stop, task })
    }

    async fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.task.await?
    }
}

/// Ended when dropped.
struct Unbound(Child);

impl Unbound {
    fn start(dir: &Path, count: usize) -> anyhow::Result<(Unbound, SocketAddr)> {
        let address = free_address()?;
        let mut text = format!(
            "server:\n  interface: 127.0.0.1@{}\n  port: {}\n  num-threads: 2\n  username: \"\"\n  chroot: \"\"\n  \
             directory: \"{}\"\n  pidfile: \"\"\n  use-syslog: no\n  do-daemonize: no\n  so-reuseport: yes\n  \
             local-zone: \"cluster.local.\" static\nremote-control:\n  control-enable: no\nserver:\n",
            address.port(),
            address.port(),
            dir.display()
        );
        for i in 0..count {
            writeln!(text, "  local-data: \"{}. 30 IN A {}\"", name(i), cluster_ip(i))?;
        }
        let path = dir.join("unbound.conf");
        std::fs::write(&path, text)?;
        let mut command = Command::new("unbound");
        command.arg("-d").arg("-c").arg(&path).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("no unbound to compare with; install it with: apt-get install unbound")?;
        let unbound = Unbound(child);
        until_answer(address, count.saturating_sub(1))?;
        Ok((unbound, address))
    }

    fn resident(&self) -> anyhow::Result<u64> {
        resident(self.0.id())
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn name(i: usize) -> String {
    format!("svc-{i}.default.svc.cluster.local")
}

/// A question for the address of service `i`, as it goes over the wire.
fn question(id: u16, i: usize) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name(i).split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

fn until_answer(address: SocketAddr, i: usize) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let mut answer = [0; 512];
        let asked = socket.send(&question(1, i)).and_then(|_| socket.recv(&mut answer));
        if asked.is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("{address} does not answer")
}

/// Asks for all names, round and round; returns right answers per second.
async fn ask_for(address: SocketAddr, count: usize, time: Duration) -> anyhow::Result<f64> {
    let (answered, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let client = |number: usize| {
        let (answered, is_over) = (answered.clone(), is_over.clone());
        std::thread::spawn(move || ask_until(address, count, number, &answered, &is_over))
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let began = Instant::now();
    tokio::time::sleep(time).await;
    let rate = answered.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    Ok(rate)
}

fn ask_until(
    address: SocketAddr,
    count: usize,
    number: usize,
    answered: &AtomicU64,
    is_over: &AtomicBool,
) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut next = number * count / CLIENTS;
    let mut ask = |id: usize| -> std::io::Result<()> {
        next = (next + 1) % count;
        socket.send(&question(id as u16, next)).map(drop)
    };
    let mut answer = [0; 512];
    while !is_over.load(Ordering::Relaxed) {
        for id in 0..WINDOW {
            ask(id)?;
        }
        while !is_over.load(Ordering::Relaxed) {
            // A lost packet ends the window, and a new one is opened.
            let Ok(length) = socket.recv(&mut answer) else { break };
            if length < 12 || answer[3] & 0x0f != 0 || answer[7] == 0 {
                bail!("{address} gave a wrong answer: {:?}", &answer[..length]);
            }
            answered.fetch_add(1, Ordering::Relaxed);
            ask(usize::from(answer[1]))?;
        }
    }
    Ok(())
}
