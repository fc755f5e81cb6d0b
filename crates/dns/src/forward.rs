//! Names of elsewhere: asked of the resolvers the node uses, and remembered for as long as they allow.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::corefile::{Cache, Forward, Policy};
use crate::metrics::ServerMetrics;

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// Safe on any path: larger answers come back truncated and are asked for over TCP.
const PAYLOAD: u16 = 1232;
/// Beyond this the cache forgets what expires first; a node asks for few names.
const CACHE_SIZE: usize = 10_000;

/// The resolvers for the names of a zone, and what they have said.
pub(crate) struct Forwarder {
    from: Name,
    except: Vec<Name>,
    servers: Vec<SocketAddr>,
    policy: Policy,
    over_tcp: bool,
    /// Counts questions, for resolvers that take turns.
    turn: AtomicUsize,
    limits: Option<Cache>,
    cache: Mutex<HashMap<Key, Cached>>,
}

/// Name, type, and whether signatures were asked for.
type Key = (Name, RecordType, bool);

/// A question for other resolvers.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) name: Name,
    pub(crate) kind: RecordType,
    /// The client wants signatures, and may want to check them itself.
    pub(crate) dnssec_ok: bool,
    pub(crate) checking_disabled: bool,
}

impl Question {
    fn key(&self) -> Key {
        (self.name.to_lowercase(), self.kind, self.dnssec_ok)
    }
}

/// What a resolver said.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) code: ResponseCode,
    /// Whether the resolver has checked signatures.
    pub(crate) is_authentic: bool,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
}

impl Reply {
    pub(crate) fn failure(code: ResponseCode) -> Reply {
        Reply { code, is_authentic: false, answers: Vec::new(), authorities: Vec::new() }
    }
}

/// Whether asking there would go round in circles. Who listens everywhere is also at every address of this machine's own.
pub(crate) fn is_own(address: SocketAddr, own: &[SocketAddr]) -> bool {
    let ip = address.ip().to_canonical();
    own.iter().any(|own| {
        let same = own.ip().to_canonical() == ip || own.ip().is_unspecified() && ip.is_loopback();
        own.port() == address.port()
            && (same || ip.is_unspecified() && (own.ip().is_loopback() || own.ip().is_unspecified()))
    })
}

struct Cached {
    reply: Reply,
    since: Instant,
    until: Instant,
}

impl Forwarder {
    /// `own` are addresses that lead back to us: asking them would go round in circles.
    pub(crate) fn new(forward: Forward, limits: Option<Cache>, own: &[SocketAddr]) -> Self {
        let (ours, servers): (Vec<SocketAddr>, Vec<SocketAddr>) =
            forward.to.iter().partition(|address| is_own(**address, own));
        for address in ours {
            tracing::warn!(%address, "not forwarding to ourselves");
        }
        Self {
            from: forward.from,
            except: forward.except,
            servers,
            policy: forward.policy,
            over_tcp: forward.over_tcp,
            turn: AtomicUsize::new(0),
            limits,
            cache: Mutex::default(),
        }
    }

    /// Whether names like this one are asked for here.
    pub(crate) fn is_for(&self, name: &Name) -> bool {
        self.from.zone_of(name) && !self.except.iter().any(|zone| zone.zone_of(name))
    }

    #[cfg(test)]
    pub(crate) fn servers(&self) -> &[SocketAddr] {
        &self.servers
    }

    /// The resolvers in the order in which they are asked.
    fn in_order(&self) -> Vec<SocketAddr> {
        let mut servers = self.servers.clone();
        let count = servers.len().max(1);
        match self.policy {
            Policy::Sequential => {}
            Policy::RoundRobin => servers.rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % count),
            Policy::Random => servers.rotate_left(rand::random_range(0..count)),
        }
        servers
    }

    /// Answers from memory only.
    pub(crate) fn remembered(&self, question: &Question) -> Option<Reply> {
        let cache = self.cache.lock();
        let cached = cache.get(&question.key())?;
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

    pub(crate) async fn resolve(&self, question: &Question, metrics: &ServerMetrics) -> Reply {
        if let Some(reply) = self.remembered(question) {
            return reply;
        }
        if self.servers.is_empty() {
            return Reply::failure(ResponseCode::Refused);
        }
        let servers = self.in_order();
        for _ in 0..ROUNDS {
            for server in &servers {
                let began = Instant::now();
                let asked = ask(*server, question, self.over_tcp).await;
                let code =
                    asked.as_ref().map_or("TIMEOUT".to_owned(), |reply| format!("{:?}", reply.code).to_uppercase());
                metrics.forwarded(*server, &code, began.elapsed());
                match asked {
                    // The next one may know better; what all refuse is refused.
                    Ok(reply) if matches!(reply.code, ResponseCode::ServFail | ResponseCode::Refused) => {}
                    Ok(reply) => {
                        self.remember(question, &reply);
                        return reply;
                    }
                    Err(error) => tracing::debug!(%server, name = %question.name, %error, "resolver"),
                }
            }
        }
        Reply::failure(ResponseCode::ServFail)
    }

    fn remember(&self, question: &Question, reply: &Reply) {
        let Some(limits) = self.limits else { return };
        let ttl = match reply.answers.is_empty() {
            false => reply.answers.iter().map(|record| record.ttl).min().unwrap_or(0).min(limits.success),
            true => reply.authorities.iter().map(|record| record.ttl).min().unwrap_or(0).min(limits.denial),
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
        cache.insert(question.key(), cached);
    }
}

async fn ask(server: SocketAddr, question: &Question, over_tcp_only: bool) -> std::io::Result<Reply> {
    let mut query = Message::query();
    query.metadata.op_code = OpCode::Query;
    query.metadata.recursion_desired = true;
    query.metadata.checking_disabled = question.checking_disabled;
    query.add_query(Query::query(question.name.clone(), question.kind));
    let mut edns = Edns::new();
    edns.set_dnssec_ok(question.dnssec_ok);
    edns.set_max_payload(PAYLOAD);
    query.set_edns(edns);
    let packet = query.to_vec().map_err(std::io::Error::other)?;
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let short = match over_tcp_only {
        true => None,
        false => Some(timeout(ATTEMPT_TIMEOUT, over_udp(server, &packet, &query)).await.map_err(late)??),
    };
    let answer = match short.filter(|answer| !answer.metadata.truncation) {
        Some(answer) => answer,
        None => timeout(ATTEMPT_TIMEOUT, over_tcp(server, &packet)).await.map_err(late)??,
    };
    Ok(Reply {
        code: answer.metadata.response_code,
        is_authentic: answer.metadata.authentic_data,
        answers: answer.answers,
        authorities: answer.authorities,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_back_are_told_apart() {
        for (address, own, expected) in [
            ("10.43.0.10:53", vec!["10.42.0.1:53", "10.43.0.10:53"], true),
            ("10.43.0.10:5353", vec!["10.43.0.10:53"], false),
            ("[::ffff:10.43.0.10]:53", vec!["10.43.0.10:53"], true),
            ("127.0.0.53:53", vec!["10.42.0.1:53"], false),
            ("127.0.0.53:53", vec!["0.0.0.0:53"], true),
            ("[::1]:53", vec!["[::]:53"], true),
            ("192.0.2.1:53", vec!["[::]:53"], false),
            // What is sent to no address in particular goes to this machine.
            ("0.0.0.0:53", vec!["127.0.0.1:53"], true),
            ("0.0.0.0:53", vec!["10.42.0.1:53"], false),
        ] {
            let own: Vec<SocketAddr> = own.iter().map(|own| own.parse().unwrap()).collect();
            assert_eq!(is_own(address.parse().unwrap(), &own), expected, "{address} {own:?}");
        }
    }
}
