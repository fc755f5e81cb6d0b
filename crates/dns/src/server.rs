//! Packets in, packets out: UDP and TCP on every address, answers of the zone at once, others as they come.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use client::{InformerFactory, plain_http};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hickory_proto::op::Message;
use nix::sys::socket::sockopt::ReusePort;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::answers::Answers;
use crate::configuration::Configuration;
use crate::datagrams::{self, Datagrams};
use crate::index::Informers;
use crate::metrics::{Exchange, ListenerMetrics, ServerMetrics, Transport};
use crate::plan::Plan;
use crate::responder::{Reaction, Responder};

const MAX_CONNECTIONS: usize = 200;
/// Of one client: others are to get through to us, too.
const MAX_CONNECTIONS_OF_CLIENT: usize = 40;
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Sockets per address, among which the kernel spreads clients: one per core, within reason.
const MAX_SOCKETS: usize = 4;

/// Serves until `stop`.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let informers = InformerFactory::new(config.client.clone());
    let index = Arc::new(Informers::new(&informers));
    let of = |(namespace, name): &(String, String)| Configuration::new(&config.client, &informers, namespace, name);
    let configuration = config.corefile.as_ref().map(of);
    informers.start(stop.child_token());
    let plan = Plan::of_flags(&config.flags())?;
    let responder = Arc::new(Responder::new(plan, index.clone(), ServerMetrics::new(&config.domain)));
    let mut tasks = JoinSet::new();
    for address in [config.health_bind_address, config.metrics_bind_address].into_iter().flatten() {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        let (index, responder) = (index.clone(), responder.clone());
        tasks.spawn(FutureExt::boxed(plain_http::serve(listener, move |path| match path {
            "/health" => (200, "OK".to_owned()),
            "/ready" if index.has_synced() => (200, "OK".to_owned()),
            "/ready" => (503, "kubernetes".to_owned()),
            "/metrics" => (200, responder.metrics.render()),
            _ => (404, "404 page not found\n".to_owned()),
        })));
    }
    // An empty index would deny names that exist: nobody is answered before it is full.
    let until_ready = async {
        index.synced().await;
        if let Some(configuration) = &configuration {
            configuration.first(&config, &responder, &index, &stop).await;
        }
    };
    tokio::select! {
        () = until_ready => {}
        () = stop.cancelled() => return Ok(()),
    }
    if let Some(configuration) = configuration {
        tasks.spawn(FutureExt::boxed(configuration.follow(
            config.clone(),
            responder.clone(),
            index.clone(),
            stop.child_token(),
        )));
    }
    let sockets = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_SOCKETS);
    for address in &config.listen {
        for _ in 0..sockets {
            let udp = shared_socket(*address).with_context(|| format!("listening on {address}/udp"))?;
            let metrics = responder.metrics.listener(*address, Transport::Udp);
            tasks.spawn(FutureExt::boxed(serve_udp(
                responder.clone(),
                index.clone(),
                Arc::new(udp),
                Arc::new(metrics),
            )));
        }
        let tcp = TcpListener::bind(address).await.with_context(|| format!("listening on {address}/tcp"))?;
        let metrics = responder.metrics.listener(*address, Transport::Tcp);
        tasks.spawn(FutureExt::boxed(serve_tcp(responder.clone(), tcp, Arc::new(metrics))));
        tracing::info!(%address, domain = config.domain, "serving");
    }
    config.serving.notify_one();
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => {
            ended?;
            anyhow::bail!("a listener ended")
        }
    }
}

/// A socket on an address that others of ours are bound to as well.
fn shared_socket(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Datagram, flags, None)?;
    setsockopt(&fd, ReusePort, &true)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(address))?;
    UdpSocket::from_std(fd.into())
}

async fn serve_udp(
    responder: Arc<Responder>,
    index: Arc<Informers>,
    socket: Arc<UdpSocket>,
    metrics: Arc<ListenerMetrics>,
) {
    let mut datagrams = Datagrams::new();
    let mut answers = Answers::default();
    let mut forwards = JoinSet::new();
    loop {
        let readable = tokio::select! {
            readable = socket.readable() => readable,
            Some(_) = forwards.join_next() => continue,
        };
        match readable.and_then(|()| datagrams.receive(&socket)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            // An ICMP error of an earlier answer surfaces here; the socket is fine.
            Err(error) => {
                tracing::debug!(%error, "receive");
                continue;
            }
        }
        let began = Instant::now();
        // Read before the index is: what is made from a later state is only kept too briefly.
        let generation = index.generation();
        datagrams.answer_each(|packet, client, bytes| {
            let length = packet.len();
            let took = |exchange: Exchange, answer: &[u8]| {
                metrics.count(exchange, length, answer.len(), began.elapsed());
                if exchange.is_logged {
                    log(packet, datagrams::address_of(client), "udp", answer, began.elapsed());
                }
            };
            if let Some(exchange) = answers.get(generation, packet, bytes) {
                took(exchange, bytes);
                return true;
            }
            let from = datagrams::address_of(client).map(|client| client.ip());
            match responder.react(packet, true, from) {
                Reaction::Answer(answer) => {
                    took(answer.exchange, &answer.bytes);
                    if answer.is_fixed {
                        answers.put(generation, packet, &answer.bytes, answer.exchange);
                    }
                    *bytes = answer.bytes;
                    true
                }
                Reaction::Forward(pending) => {
                    let (responder, socket, metrics) = (responder.clone(), socket.clone(), metrics.clone());
                    let client = datagrams::address_of(client);
                    let packet = packet.to_vec();
                    forwards.spawn(FutureExt::boxed(async move {
                        if let (Reaction::Answer(answer), Some(client)) = (responder.forward(*pending).await, client) {
                            send(&socket, &answer.bytes, client).await;
                            metrics.count(answer.exchange, length, answer.bytes.len(), began.elapsed());
                            if answer.exchange.is_logged {
                                log(&packet, Some(client), "udp", &answer.bytes, began.elapsed());
                            }
                        }
                    }));
                    false
                }
                // Zones go over TCP only.
                Reaction::Transfer(_) | Reaction::Ignore => false,
            }
        });
        datagrams.send(&socket).await;
    }
}

/// A line as CoreDNS writes it.
fn log(packet: &[u8], client: Option<SocketAddr>, transport: &str, answer: &[u8], took: Duration) {
    let (Ok(request), Ok(response)) = (Message::from_vec(packet), Message::from_vec(answer)) else { return };
    let Some(question) = request.queries.first() else { return };
    let client = client.map_or("-".to_owned(), |client| client.to_string());
    let metadata = &response.metadata;
    let flags = [
        ("aa", metadata.authoritative),
        ("tc", metadata.truncation),
        ("rd", metadata.recursion_desired),
        ("ra", metadata.recursion_available),
        ("ad", metadata.authentic_data),
        ("cd", metadata.checking_disabled),
    ];
    let flags: Vec<&str> =
        ["qr"].into_iter().chain(flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0)).collect();
    let edns = request.edns.as_ref();
    tracing::info!(
        "{client} - {} \"{} IN {} {transport} {} {} {}\" {} {} {} {:.9}s",
        request.metadata.id,
        question.query_type(),
        question.name(),
        packet.len(),
        edns.is_some_and(|edns| edns.flags().dnssec_ok),
        edns.map_or(512, |edns| edns.max_payload()),
        format!("{:?}", metadata.response_code).to_uppercase(),
        flags.join(","),
        answer.len(),
        took.as_secs_f64(),
    );
}

async fn send(socket: &UdpSocket, bytes: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(bytes, client).await {
        tracing::debug!(%client, %error, "send");
    }
}

async fn serve_tcp(responder: Arc<Responder>, listener: TcpListener, metrics: Arc<ListenerMetrics>) {
    let mut connections = JoinSet::new();
    // Held by each connection of a client, and once here.
    let mut clients: HashMap<IpAddr, Arc<()>> = HashMap::new();
    loop {
        tokio::select! {
            (stream, from) = plain_http::accept(&listener), if connections.len() < MAX_CONNECTIONS => {
                let one = clients.entry(from.ip()).or_default().clone();
                if Arc::strong_count(&one) > 1 + MAX_CONNECTIONS_OF_CLIENT {
                    tracing::debug!(%from, "connection turned away: its client has enough of them");
                    continue;
                }
                let (responder, metrics) = (responder.clone(), metrics.clone());
                connections.spawn(FutureExt::boxed(async move {
                    // A client that goes away has no one to tell.
                    let _ = converse(&responder, &metrics, stream).await;
                    drop(one);
                }));
            }
            Some(_) = connections.join_next() => clients.retain(|_, held| Arc::strong_count(held) > 1),
        }
    }
}

/// Questions and answers, each with its length before it, until the client is silent for a while.
async fn converse(responder: &Responder, metrics: &ListenerMetrics, mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let length = tokio::time::timeout(IDLE_TIMEOUT, stream.read_u16()).await??;
        let mut packet = vec![0; length.into()];
        tokio::time::timeout(IDLE_TIMEOUT, stream.read_exact(&mut packet)).await??;
        let began = Instant::now();
        let client = stream.peer_addr().ok().map(|client| client.ip());
        let reaction = match responder.react(&packet, false, client) {
            Reaction::Forward(pending) => responder.forward(*pending).await,
            reaction => reaction,
        };
        let answer = match reaction {
            Reaction::Answer(answer) => answer,
            Reaction::Transfer(transfer) => {
                // The connections are the limit: a client that does not read is given up.
                for message in transfer.messages() {
                    write(&mut stream, &message.map_err(std::io::Error::other)?).await?;
                }
                continue;
            }
            Reaction::Forward(_) | Reaction::Ignore => return Ok(()),
        };
        write(&mut stream, &answer.bytes).await?;
        metrics.count(answer.exchange, packet.len(), answer.bytes.len(), began.elapsed());
        if answer.exchange.is_logged {
            log(&packet, stream.peer_addr().ok(), "tcp", &answer.bytes, began.elapsed());
        }
    }
}

/// Writes a message with its length before it.
async fn write(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
    let framed = [&length.to_be_bytes()[..], message].concat();
    tokio::time::timeout(IDLE_TIMEOUT, stream.write_all(&framed)).await??;
    Ok(())
}
