//! Names of elsewhere: asked of the resolvers the node uses, and remembered for as long as they allow.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::metrics::ServerMetrics;

const ATTEMPT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// Safe on any path: larger answers come back truncated and are asked for over TCP.
const PAYLOAD: u16 = 1232;
/// Beyond this the cache forgets what expires first; a node asks for few names.
const CACHE_SIZE: usize = 10_000;
const MAX_TTL: u32 = 3600;
const MAX_NEGATIVE_TTL: u32 = 30;

pub(crate) struct Forwarder {
    upstreams: Vec<SocketAddr>,
    stubs: Vec<(Name, Vec<SocketAddr>)>,
    cache: Mutex<HashMap<(Name, RecordType), Cached>>,
}

/// What a resolver said.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
}

struct Cached {
    reply: Reply,
    since: Instant,
    until: Instant,
}

impl Forwarder {
    /// `own` are addresses that lead back to us: asking them would go round in circles.
    pub(crate) fn new(upstreams: &[SocketAddr], stubs: &[(String, Vec<SocketAddr>)], own: &[SocketAddr]) -> Self {
        let elsewhere = |addresses: &[SocketAddr]| -> Vec<SocketAddr> {
            let (ours, others): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| own.contains(address));
            for address in ours {
                tracing::warn!(%address, "not forwarding to ourselves");
            }
            others
        };
        let mut stubs: Vec<(Name, Vec<SocketAddr>)> = stubs
            .iter()
            .filter_map(|(domain, addresses)| {
                let name = Name::from_ascii(format!("{}.", domain.trim_matches('.'))).ok()?;
                Some((name.to_lowercase(), elsewhere(addresses)))
            })
            .collect();
        // The most specific first.
        stubs.sort_by_key(|(name, _)| std::cmp::Reverse(name.num_labels()));
        Self { upstreams: elsewhere(upstreams), stubs, cache: Mutex::default() }
    }

    /// Answers from memory only.
    pub(crate) fn remembered(&self, name: &Name, kind: RecordType) -> Option<Reply> {
        let cache = self.cache.lock();
        let cached = cache.get(&(name.to_lowercase(), kind))?;
        let now = Instant::now();
        if now >= cached.until {
            return None;
        }
        let age = u32::try_from(now.duration_since(cached.since).as_secs()).unwrap_or(u32::MAX);
        let mut reply = cached.reply.clone();
        for record in reply.answers.iter_mut().chain(&mut reply.authorities) {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(reply)
    }

    /// How many names are remembered.
    pub(crate) fn remembered_names(&self) -> usize {
        self.cache.lock().len()
    }

    pub(crate) async fn resolve(&self, name: &Name, kind: RecordType, metrics: &ServerMetrics) -> Reply {
        if let Some(reply) = self.remembered(name, kind) {
            return reply;
        }
        let stub = self.stubs.iter().find(|(domain, _)| domain.zone_of(name));
        let servers = stub.map_or(&self.upstreams, |(_, servers)| servers);
        let failure = |code| Reply { code, answers: Vec::new(), authorities: Vec::new() };
        if servers.is_empty() {
            return failure(ResponseCode::Refused);
        }
        for _ in 0..ROUNDS {
            for server in servers {
                let began = Instant::now();
                let asked = ask(*server, name, kind).await;
                let code =
                    asked.as_ref().map_or("TIMEOUT".to_owned(), |reply| format!("{:?}", reply.code).to_uppercase());
                metrics.forwarded(*server, &code, began.elapsed());
                match asked {
                    // The next one may know better; what all refuse is refused.
                    Ok(reply) if matches!(reply.code, ResponseCode::ServFail | ResponseCode::Refused) => {}
                    Ok(reply) => {
                        self.remember(name, kind, &reply);
                        return reply;
                    }
                    Err(error) => tracing::debug!(%server, %name, %error, "resolver"),
                }
            }
        }
        failure(ResponseCode::ServFail)
    }

    fn remember(&self, name: &Name, kind: RecordType, reply: &Reply) {
        let ttl = match reply.answers.is_empty() {
            false => reply.answers.iter().map(|record| record.ttl).min().unwrap_or(0).min(MAX_TTL),
            true => reply.authorities.iter().map(|record| record.ttl).min().unwrap_or(0).min(MAX_NEGATIVE_TTL),
        };
        if ttl == 0 || !matches!(reply.code, ResponseCode::NoError | ResponseCode::NXDomain) {
            return;
        }
        let now = Instant::now();
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_SIZE {
            cache.retain(|_, cached| cached.until > now);
            if cache.len() >= CACHE_SIZE {
                let soonest = cache.iter().min_by_key(|(_, cached)| cached.until).map(|(key, _)| key.clone());
                soonest.and_then(|key| cache.remove(&key));
            }
        }
        let cached = Cached { reply: reply.clone(), since: now, until: now + Duration::from_secs(ttl.into()) };
        cache.insert((name.to_lowercase(), kind), cached);
    }
}

async fn ask(server: SocketAddr, name: &Name, kind: RecordType) -> std::io::Result<Reply> {
    let mut query = Message::query();
    query.metadata.op_code = OpCode::Query;
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(name.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    query.set_edns(edns);
    let packet = query.to_vec().map_err(std::io::Error::other)?;
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let answer = timeout(ATTEMPT, over_udp(server, &packet, &query)).await.map_err(late)??;
    let answer = match answer.metadata.truncation {
        true => timeout(ATTEMPT, over_tcp(server, &packet)).await.map_err(late)??,
        false => answer,
    };
    Ok(Reply { code: answer.metadata.response_code, answers: answer.answers, authorities: answer.authorities })
}

/// A socket of its own per question: the random port is half of the protection against forged answers.
async fn over_udp(server: SocketAddr, packet: &[u8], query: &Message) -> std::io::Result<Message> {
    let local: SocketAddr =
        if server.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let Ok(answer) = Message::from_vec(&buffer[..length]) else { continue };
        let same = |a: &Query, b: &Query| a.name() == b.name() && a.query_type() == b.query_type();
        let fits = answer.queries.iter().zip(&query.queries).all(|(a, b)| same(a, b));
        if answer.metadata.id == query.metadata.id && fits {
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> std::io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(packet.len()).map_err(std::io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(packet).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    Message::from_vec(&buffer).map_err(std::io::Error::other)
}
