//! Packets in, packets out: UDP and TCP on every address, answers of the zone at once, others as they come.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use client::InformerFactory;
use futures_util::future::BoxFuture;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::forward::Forwarder;
use crate::index::{Index, Informers};
use crate::zone::{Outcome, Zone};

/// What a client without EDNS can take, and what we offer and send at most: no fragments on any path.
const PLAIN_PAYLOAD: u16 = 512;
const PAYLOAD: u16 = 1232;
/// Questions waiting for other resolvers; beyond it clients are told to try again.
const MAX_FORWARDED: usize = 1000;
const MAX_CONNECTIONS: usize = 200;
const IDLE: Duration = Duration::from_secs(10);
/// Aliases followed from one service to another.
const MAX_ALIASES: usize = 8;

/// Serves until `stop`.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let informers = InformerFactory::new(config.client.clone());
    let index = Arc::new(Informers::new(&informers));
    informers.start(stop.child_token());
    let zone = Zone::new(&config.domain, config.ttl, &config.ranges).map_err(anyhow::Error::msg)?;
    let server = Arc::new(Server {
        zone,
        index: index.clone(),
        forwarder: Forwarder::new(&config.upstreams, &config.stub_domains, &config.listen),
        forwarding: Arc::new(Semaphore::new(MAX_FORWARDED)),
        turn: AtomicUsize::new(0),
    });
    let mut tasks = JoinSet::new();
    if let Some(address) = config.health_bind_address {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        let index = index.clone();
        tasks.spawn(health(listener, move || index.has_synced()));
    }
    // An empty index would deny names that exist: nobody is answered before it is full.
    tokio::select! {
        () = index.synced() => {}
        () = stop.cancelled() => return Ok(()),
    }
    for address in &config.listen {
        let udp = UdpSocket::bind(address).await.with_context(|| format!("listening on {address}/udp"))?;
        let tcp = TcpListener::bind(address).await.with_context(|| format!("listening on {address}/tcp"))?;
        tasks.spawn(serve_udp(server.clone(), Arc::new(udp)));
        tasks.spawn(serve_tcp(server.clone(), tcp));
        tracing::info!(%address, domain = config.domain, "serving");
    }
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => {
            ended?;
            anyhow::bail!("a listener ended")
        }
    }
}

struct Server {
    zone: Zone,
    index: Arc<dyn Index>,
    forwarder: Forwarder,
    forwarding: Arc<Semaphore>,
    /// Rotates the addresses of an answer, so that clients that take the first spread.
    turn: AtomicUsize,
}

/// A question that cannot be answered on the spot.
struct Pending {
    response: Message,
    question: Query,
    /// The name to ask for: the question's, or where an alias leads.
    name: hickory_proto::rr::Name,
    limit: Option<u16>,
}

enum Reaction {
    Answer(Vec<u8>),
    Forward(Box<Pending>),
    Ignore,
}

impl Server {
    /// `limit` is the transport's, `None` for TCP.
    fn react(&self, packet: &[u8], over_udp: bool) -> Reaction {
        let request = match Message::from_vec(packet) {
            Ok(request) => request,
            // Without a readable question only the id can be answered; without an id, nothing.
            Err(_) => {
                let Some(id) = packet.get(0..2).map(|b| u16::from_be_bytes([b[0], b[1]])) else {
                    return Reaction::Ignore;
                };
                // An answer to an answer would go on for ever.
                if packet.get(2).is_none_or(|flags| flags & 0x80 != 0) {
                    return Reaction::Ignore;
                }
                let response = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
                return encode(response, None);
            }
        };
        if request.metadata.message_type != MessageType::Query {
            return Reaction::Ignore;
        }
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        let mut limit = over_udp.then_some(PLAIN_PAYLOAD);
        if let Some(edns) = &request.edns {
            let mut own = Edns::new();
            own.set_max_payload(PAYLOAD);
            if over_udp {
                limit = Some(edns.max_payload().clamp(PLAIN_PAYLOAD, PAYLOAD));
            }
            response.set_edns(own);
            if edns.version() > 0 {
                response.metadata.response_code = ResponseCode::BADVERS;
                return encode(response, limit);
            }
        }
        response.add_queries(request.queries.iter().cloned());
        let fail = |mut response: Message, code| {
            response.metadata.response_code = code;
            encode(response, limit)
        };
        if request.metadata.op_code != OpCode::Query {
            return fail(response, ResponseCode::NotImp);
        }
        let [question] = request.queries.as_slice() else { return fail(response, ResponseCode::FormErr) };
        if question.query_class() != DNSClass::IN {
            return fail(response, ResponseCode::Refused);
        }
        self.answer(response, question.clone(), limit)
    }

    fn answer(&self, mut response: Message, question: Query, limit: Option<u16>) -> Reaction {
        let mut name = question.name().clone();
        for _ in 0..MAX_ALIASES {
            let outcome = self.zone.answer(&*self.index, &name, question.query_type());
            response.metadata.response_code = outcome.code();
            match outcome {
                Outcome::Records { mut answers, additionals } => {
                    let turn = self.turn.fetch_add(1, Ordering::Relaxed) % answers.len().max(1);
                    answers.rotate_left(turn);
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    response.add_additionals(additionals);
                    return encode(response, limit);
                }
                Outcome::NoData | Outcome::NoSuchName => {
                    response.metadata.authoritative = true;
                    response.add_authority(self.zone.authority());
                    return encode(response, limit);
                }
                Outcome::Alias { answers, target } => {
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    if question.query_type() == hickory_proto::rr::RecordType::CNAME {
                        return encode(response, limit);
                    }
                    name = target;
                }
                Outcome::Elsewhere => {
                    let kind = question.query_type();
                    let pending = Pending { response, question, name, limit };
                    return match self.forwarder.remembered(&pending.name, kind) {
                        Some(reply) => complete(pending, reply),
                        None => Reaction::Forward(Box::new(pending)),
                    };
                }
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        encode(response, limit)
    }

    async fn forward(&self, pending: Pending) -> Reaction {
        let reply = match self.forwarding.try_acquire() {
            Ok(_permit) => self.forwarder.resolve(&pending.name, pending.question.query_type()).await,
            Err(_) => {
                crate::forward::Reply { code: ResponseCode::ServFail, answers: Vec::new(), authorities: Vec::new() }
            }
        };
        complete(pending, reply)
    }
}

/// Joins what another resolver said to what we have said already (an alias, perhaps).
fn complete(pending: Pending, reply: crate::forward::Reply) -> Reaction {
    let Pending { mut response, limit, .. } = pending;
    // An alias that leads nowhere is still an alias.
    let has_alias = !response.answers.is_empty();
    response.metadata.response_code = match reply.code {
        ResponseCode::Refused | ResponseCode::ServFail if has_alias => ResponseCode::NoError,
        code => code,
    };
    response.metadata.authoritative &= has_alias;
    response.add_answers(reply.answers);
    response.add_authorities(reply.authorities);
    encode(response, limit)
}

/// What does not fit is left out and marked so: additional records first, silently, then everything.
fn encode(mut response: Message, limit: Option<u16>) -> Reaction {
    let limit = usize::from(limit.unwrap_or(u16::MAX));
    let fits = |bytes: &Vec<u8>| bytes.len() <= limit;
    if let Some(bytes) = response.to_vec().ok().filter(fits) {
        return Reaction::Answer(bytes);
    }
    response.additionals.clear();
    if let Some(bytes) = response.to_vec().ok().filter(fits) {
        return Reaction::Answer(bytes);
    }
    response.metadata.truncation = true;
    let all: Vec<Record> = std::mem::take(&mut response.answers);
    response.authorities.clear();
    // Half of them, and half again, until they fit.
    let mut count = all.len() / 2;
    loop {
        response.answers = all[..count].to_vec();
        match response.to_vec() {
            Ok(bytes) if bytes.len() <= limit => return Reaction::Answer(bytes),
            Ok(_) if count > 0 => count /= 2,
            _ => return Reaction::Ignore,
        }
    }
}

async fn serve_udp(server: Arc<Server>, socket: Arc<UdpSocket>) {
    let mut buffer = [0; 4096];
    let mut forwards = JoinSet::new();
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((length, client)) => match server.react(&buffer[..length], true) {
                    Reaction::Answer(bytes) => send(&socket, &bytes, client).await,
                    Reaction::Forward(pending) => {
                        let (server, socket) = (server.clone(), socket.clone());
                        forwards.spawn(async move {
                            if let Reaction::Answer(bytes) = server.forward(*pending).await {
                                send(&socket, &bytes, client).await;
                            }
                        });
                    }
                    Reaction::Ignore => {}
                },
                // An ICMP error of an earlier answer surfaces here; the socket is fine.
                Err(error) => tracing::debug!(%error, "receive"),
            },
            Some(_) = forwards.join_next() => {}
        }
    }
}

async fn send(socket: &UdpSocket, bytes: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(bytes, client).await {
        tracing::debug!(%client, %error, "send");
    }
}

async fn serve_tcp(server: Arc<Server>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    let server = server.clone();
                    connections.spawn(async move {
                        // A client that goes away has no one to tell.
                        let _ = converse(&server, stream).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Questions and answers, each with its length before it, until the client is silent for a while.
async fn converse(server: &Server, mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let length = tokio::time::timeout(IDLE, stream.read_u16()).await??;
        let mut packet = vec![0; length.into()];
        tokio::time::timeout(IDLE, stream.read_exact(&mut packet)).await??;
        let reaction = match server.react(&packet, false) {
            Reaction::Forward(pending) => server.forward(*pending).await,
            reaction => reaction,
        };
        let Reaction::Answer(bytes) = reaction else { return Ok(()) };
        let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend_from_slice(&bytes);
        tokio::time::timeout(IDLE, stream.write_all(&framed)).await??;
    }
}

/// `/health` while we run, `/ready` once the index is full.
async fn health(listener: TcpListener, is_ready: impl Fn() -> bool) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let mut request = [0; 1024];
        let Ok(Ok(length)) = tokio::time::timeout(IDLE, stream.read(&mut request)).await else { continue };
        let text = String::from_utf8_lossy(&request[..length]).into_owned();
        let status = match text.split(' ').nth(1) {
            Some("/health") => "200 OK",
            Some("/ready") if is_ready() => "200 OK",
            Some("/ready") => "503 Service Unavailable",
            _ => "404 Not Found",
        };
        let body = if status.starts_with("200") { "OK" } else { "" };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        // A client that goes away has no one to tell.
        let _ = tokio::time::timeout(IDLE, stream.write_all(answer.as_bytes())).await;
    }
}
