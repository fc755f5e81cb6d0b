//! Names of elsewhere: asked of the resolvers the node uses, and remembered for as long as they allow.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::metrics::ServerMetrics;
use crate::settings::{Cache, Forward, Policy};

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// Safe on any path: larger answers come back truncated and are asked for over TCP.
const PAYLOAD: u16 = 1232;
/// Beyond this the cache forgets some other name for each new one; a node asks for few names.
const CACHE_SIZE: usize = 10_000;
/// Longer answers are not remembered: who has names with such answers could fill the memory with them.
const CACHED_ANSWER: usize = 4096;

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
    /// Questions on their way to a resolver, for others who wait for the same answer.
    asked: Mutex<HashMap<Key, watch::Receiver<Option<Reply>>>>,
}

/// A question on its way: whatever becomes of it, the next one is asked again.
struct Asked<'f> {
    forwarder: &'f Forwarder,
    key: Key,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.forwarder.asked.lock().remove(&self.key);
    }
}

/// Name, type, whether signatures were asked for, and whether they were to be left unchecked: an answer that nobody has checked
/// is not for those who want it checked.
type Key = (Name, RecordType, bool, bool);

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
        (self.name.to_lowercase(), self.kind, self.dnssec_ok, self.checking_disabled)
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
    /// As it came, in bytes.
    length: usize,
}

impl Reply {
    pub(crate) fn failure(code: ResponseCode) -> Reply {
        Reply { code, is_authentic: false, answers: Vec::new(), authorities: Vec::new(), length: 0 }
    }

    /// Whether there is nothing of the type that was asked for, be it at the end of an alias.
    fn is_denial(&self, kind: RecordType) -> bool {
        let is_asked = |record: &Record| kind == RecordType::ANY || record.record_type() == kind;
        self.code == ResponseCode::NXDomain || !self.answers.iter().any(is_asked)
    }

    /// For how many seconds it may be believed. How long something is missing is for its zone to say (RFC 2308), however long an
    /// alias to it holds.
    fn ttl(&self, is_denial: bool) -> u32 {
        let of_answers = self.answers.iter().map(|record| record.ttl).min();
        if !is_denial {
            return of_answers.unwrap_or(0);
        }
        let zones = self.authorities.iter().filter_map(|record| match &record.data {
            RData::SOA(zone) => Some(record.ttl.min(zone.minimum)),
            _ => None,
        });
        zones.min().map_or(0, |ttl| of_answers.map_or(ttl, |alias| ttl.min(alias)))
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
            asked: Mutex::default(),
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

    /// A question is asked once, however many wait for its answer: a forged answer may fit any copy that is on its way.
    pub(crate) async fn resolve(&self, question: &Question, metrics: &ServerMetrics) -> Reply {
        loop {
            if let Some(reply) = self.remembered(question) {
                return reply;
            }
            if self.servers.is_empty() {
                return Reply::failure(ResponseCode::Refused);
            }
            let (answer, answered) = watch::channel(None);
            let earlier = match self.asked.lock().entry(question.key()) {
                Entry::Occupied(asked) => Some(asked.get().clone()),
                Entry::Vacant(place) => {
                    place.insert(answered);
                    None
                }
            };
            let Some(mut earlier) = earlier else {
                let _asked = Asked { forwarder: self, key: question.key() };
                let reply = self.ask_servers(question, metrics).await;
                answer.send_replace(Some(reply.clone()));
                return reply;
            };
            // Whoever asked may have been stopped before there was an answer.
            if let Ok(Some(reply)) = earlier.wait_for(Option::is_some).await.map(|reply| reply.clone()) {
                return reply;
            }
        }
    }

    async fn ask_servers(&self, question: &Question, metrics: &ServerMetrics) -> Reply {
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
        let Some(limits) = &self.limits else { return };
        let is_denial = reply.is_denial(question.kind);
        let ttl = reply.ttl(is_denial).min(limits.seconds(&question.name, is_denial));
        if ttl == 0
            || reply.length > CACHED_ANSWER
            || !matches!(reply.code, ResponseCode::NoError | ResponseCode::NXDomain)
        {
            return;
        }
        let now = Instant::now();
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_SIZE {
            // Any one: looking for the best would cost whoever floods us nothing, and us all of it.
            let other = cache.keys().next().cloned();
            other.and_then(|key| cache.remove(&key));
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
    let (answer, length) = match short.filter(|(answer, _)| !answer.metadata.truncation) {
        Some(answer) => answer,
        None => timeout(ATTEMPT_TIMEOUT, over_tcp(server, &packet, &query)).await.map_err(late)??,
    };
    Ok(Reply {
        code: answer.metadata.response_code,
        is_authentic: answer.metadata.authentic_data,
        answers: answer.answers,
        authorities: answer.authorities,
        length,
    })
}

/// Whether it is an answer to this question, and not to another or to none.
fn answers(answer: &Message, query: &Message) -> bool {
    let same = |(a, b): (&Query, &Query)| {
        a.name() == b.name() && a.query_type() == b.query_type() && a.query_class() == b.query_class()
    };
    answer.metadata.id == query.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && answer.queries.len() == query.queries.len()
        && answer.queries.iter().zip(&query.queries).all(same)
}

/// A socket of its own per question: the random port is half of the protection against forged answers.
async fn over_udp(server: SocketAddr, packet: &[u8], query: &Message) -> std::io::Result<(Message, usize)> {
    let local: SocketAddr =
        if server.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let Ok(answer) = Message::from_vec(&buffer[..length]) else { continue };
        if answers(&answer, query) {
            return Ok((answer, length));
        }
    }
}

async fn over_tcp(server: SocketAddr, packet: &[u8], query: &Message) -> std::io::Result<(Message, usize)> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(packet.len()).map_err(std::io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(packet).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    let answer = Message::from_vec(&buffer).map_err(std::io::Error::other)?;
    match answers(&answer, query) {
        true => Ok((answer, buffer.len())),
        false => Err(std::io::Error::other("an answer to another question")),
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{CNAME, NS, NULL, SOA};
    use tokio::net::TcpListener;

    use super::*;

    fn question(name: &str, checking_disabled: bool) -> Question {
        let name = Name::from_ascii(name).unwrap();
        Question { name, kind: RecordType::A, dnssec_ok: false, checking_disabled }
    }

    fn forwarder() -> Forwarder {
        let forward = Forward {
            from: Name::root(),
            except: Vec::new(),
            to: Vec::new(),
            policy: Policy::Sequential,
            over_tcp: false,
        };
        Forwarder::new(forward, Some(Cache::new(3600, 3600)), &[])
    }

    fn reply(length: usize) -> Reply {
        let record =
            Record::from_rdata(Name::from_ascii("a.example.").unwrap(), 60, RData::A(Ipv4Addr::LOCALHOST.into()));
        Reply { answers: vec![record], length, ..Reply::failure(ResponseCode::NoError) }
    }

    /// Who asks for answers that nobody has checked does not choose what others get.
    #[test]
    fn security_unchecked_answers_are_for_those_who_asked_for_them() {
        let forwarder = forwarder();
        forwarder.remember(&question("a.example.", true), &reply(50));
        assert!(forwarder.remembered(&question("a.example.", true)).is_some());
        assert!(forwarder.remembered(&question("a.example.", false)).is_none());
        assert!(forwarder.remembered(&question("A.EXAMPLE.", true)).is_some());
    }

    #[test]
    fn security_what_is_remembered_is_bounded_in_names_and_bytes() {
        let forwarder = forwarder();
        forwarder.remember(&question("long.example.", false), &reply(CACHED_ANSWER + 1));
        assert_eq!(forwarder.remembered_names(), 0);
        for i in 0..CACHE_SIZE + 10 {
            forwarder.remember(&question(&format!("n{i}.example."), false), &reply(50));
        }
        assert_eq!(forwarder.remembered_names(), CACHE_SIZE);
    }

    #[test]
    fn what_is_missing_is_so_for_as_long_as_its_zone_says() {
        let name = |text: &str| Name::from_ascii(text).unwrap();
        let record = |data: RData| Record::from_rdata(name("a.example."), 3000, data);
        let alias = || record(RData::CNAME(CNAME(name("b.example."))));
        let address = || record(RData::A(Ipv4Addr::LOCALHOST.into()));
        let zone = |minimum| record(RData::SOA(SOA::new(name("ns.example."), name("h.example."), 1, 1, 1, 1, minimum)));
        let servers = || record(RData::NS(NS(name("ns.example."))));
        let (found, missing) = (ResponseCode::NoError, ResponseCode::NXDomain);
        for (code, answers, authorities, expected) in [
            (found, vec![alias(), address()], vec![], 3000),
            (found, vec![address()], vec![servers()], 3000),
            (found, vec![], vec![zone(7)], 7),
            (missing, vec![], vec![zone(5000)], 3000),
            // An alias that holds for long leads to what may be there soon.
            (found, vec![alias()], vec![zone(7)], 7),
            (missing, vec![alias()], vec![zone(7)], 7),
            (missing, vec![alias()], vec![], 0),
            // Where to ask is no denial.
            (found, vec![], vec![servers()], 0),
        ] {
            let reply = Reply { answers, authorities, ..Reply::failure(code) };
            let is_denial = reply.is_denial(RecordType::A);
            assert_eq!(reply.ttl(is_denial), expected, "{code} {:?} {:?}", reply.answers, reply.authorities);
        }
        let reply = Reply { answers: vec![alias()], ..Reply::failure(found) };
        assert!(!reply.is_denial(RecordType::CNAME) && !reply.is_denial(RecordType::ANY));
    }

    #[test]
    fn security_an_answer_repeats_the_question() {
        let mut query = Message::query();
        query.metadata.id = 7;
        query.add_query(Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::A));
        let answer = |id: u16, names: &[&str]| {
            let mut answer = Message::response(id, OpCode::Query);
            let queries = names.iter().map(|name| Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
            answer.add_queries(queries);
            answer
        };
        for (id, names, expected) in [
            (7, &["a.example."][..], true),
            (7, &["A.example."], true),
            (8, &["a.example."], false),
            (7, &["b.example."], false),
            (7, &[], false),
        ] {
            assert_eq!(answers(&answer(id, names), &query), expected, "{id} {names:?}");
        }
        assert!(!answers(&query, &query), "a question is no answer");
    }

    /// An address, signed for those who ask for that; datagrams hold no more than that there is one.
    fn answered(packet: &[u8], is_whole: bool) -> Vec<u8> {
        let query = Message::from_vec(packet).unwrap();
        let is_signed = query.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok);
        let mut answer = Message::response(query.metadata.id, OpCode::Query);
        answer.metadata.truncation = !is_whole;
        answer.metadata.authentic_data = is_signed && !query.metadata.checking_disabled;
        if is_whole {
            let name = || Name::from_ascii("a.example.").unwrap();
            answer.add_answer(Record::from_rdata(name(), 60, RData::A(Ipv4Addr::LOCALHOST.into())));
            if is_signed {
                let signature = RData::Unknown { code: RecordType::RRSIG, rdata: NULL::with(vec![0, 1, 8, 2]) };
                answer.add_answer(Record::from_rdata(name(), 60, signature));
            }
        }
        answer.add_queries(query.queries.clone());
        answer.to_vec().unwrap()
    }

    #[tokio::test]
    async fn signatures_pass_through_and_what_does_not_fit_is_asked_for_over_tcp() {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            // Another may have the same number of the other protocol.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let server = udp.local_addr().unwrap();
        let resolver = tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
                udp.send_to(&answered(&buffer[..length], false), from).await.unwrap();
                let (mut stream, _) = tcp.accept().await.unwrap();
                let mut asked = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut asked).await.unwrap();
                let answer = answered(&asked, true);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        for (dnssec_ok, checking_disabled, records, is_authentic) in
            [(false, false, 1, false), (true, false, 2, true), (true, true, 2, false)]
        {
            let question = Question { dnssec_ok, ..question("a.example.", checking_disabled) };
            let reply = ask(server, &question, false).await.unwrap();
            assert_eq!((reply.answers.len(), reply.is_authentic), (records, is_authentic), "{question:?}");
            let is_signed = reply.answers.iter().any(|record| record.record_type() == RecordType::RRSIG);
            assert_eq!(is_signed, dnssec_ok, "{question:?}");
        }
        resolver.abort();
    }

    /// A pod that sends a question many times makes no forged answer likelier (CVE-2023-30464).
    #[tokio::test]
    async fn security_a_question_is_asked_once_however_many_wait() {
        let resolver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let forward = Forward {
            from: Name::root(),
            except: Vec::new(),
            to: vec![resolver.local_addr().unwrap()],
            policy: Policy::Sequential,
            over_tcp: false,
        };
        let (forwarder, metrics) = (Forwarder::new(forward, None, &[]), ServerMetrics::new("cluster.local"));
        let question = question("a.example.", false);
        let asking = futures_util::future::join_all((0..50).map(|_| forwarder.resolve(&question, &metrics)));
        let answering = async {
            let mut buffer = [0; 512];
            let (length, from) = resolver.recv_from(&mut buffer).await.unwrap();
            resolver.send_to(&answered(&buffer[..length], true), from).await.unwrap();
        };
        let (replies, ()) = tokio::join!(asking, answering);
        assert!(replies.iter().all(|reply| reply.answers.len() == 1));
        assert!(resolver.try_recv(&mut [0; 512]).is_err(), "asked more than once");
        assert!(forwarder.asked.lock().is_empty());
    }

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
