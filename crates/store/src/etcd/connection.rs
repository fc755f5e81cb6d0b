//! Talking to a cluster: endpoints, failover, credentials, deadlines, and etcd's errors in our words.

use super::health::{ANSWER_TIMEOUT, Health, LOST_TIMEOUT, Seen, Verdict};
use super::messages::{AuthenticateRequest, AuthenticateResponse, Empty, StatusResponse};
use super::{Options, Tls, revision};
use crate::{Result, StoreError};
use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection that is silent for the sum of these is closed. Where there are several members, one that is silent is left
/// much sooner ([`Connection::look`]); etcd takes pings more often than this for a flood, and hangs up.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Between rounds over all endpoints while there is time left.
const ROUND_INTERVAL: Duration = Duration::from_millis(100);

/// A leader that answers later is no better than another member.
const LEADER_TIMEOUT: Duration = Duration::from_secs(1);
/// Files with keys are not looked at more often while nobody answers.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// How long a request is held while members choose a leader: what they are asked meanwhile may go to the one that is gone.
const ELECTION_TIME: Duration = Duration::from_secs(3);
/// When a round of looking at members takes longer, this process was held up itself, and has not heard what they said.
const ROUND_TIMEOUT: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_millis(250));

pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
/// Requests to these are refused at once by a member that knows no leader; it would let them wait otherwise.
const NEED_A_LEADER: [&str; 3] = ["/etcdserverpb.KV/", "/etcdserverpb.Lease/", "/etcdserverpb.Watch/"];
/// How a member says so. It has done nothing about the request then.
const NO_LEADER: &str = "etcdserver: no leader";

/// What a lost answer means for sending a request again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing, or nothing more the second time.
    Freely,
    /// It may have been carried out: only if it surely was not sent.
    IfUnsent,
}

type Endpoints = Vec<Arc<Peer>>;

/// A member, as it is reached.
struct Peer {
    name: String,
    channel: Channel,
    /// For questions how it fares: on a connection of their own no large answer is in their way.
    probes: Channel,
    standing: Mutex<Verdict>,
    /// Cancelled when nobody is to wait for its answers any longer; another takes its place then.
    lost: CancellationToken,
}

impl Peer {
    fn new(name: &str, tls: Option<&ClientTlsConfig>, standing: Verdict) -> Result<Arc<Peer>> {
        Ok(Arc::new(Peer {
            name: name.to_owned(),
            channel: channel(name, tls)?,
            probes: channel(name, tls)?,
            standing: Mutex::new(standing),
            lost: CancellationToken::new(),
        }))
    }

    /// The same member, reached with other keys. Who waits for its answers on the old connections learns if it is lost.
    fn renewed(&self, tls: &ClientTlsConfig) -> Result<Arc<Peer>> {
        Ok(Arc::new(Peer {
            name: self.name.clone(),
            channel: channel(&self.name, Some(tls))?,
            probes: channel(&self.name, Some(tls))?,
            standing: Mutex::new(*self.standing.lock()),
            lost: self.lost.clone(),
        }))
    }

    fn serves(&self) -> bool {
        *self.standing.lock() == Verdict::Serves
    }

    /// What it answers, unless it is lost meanwhile.
    async fn or_lost<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.lost.cancelled() => Err(Status::unavailable("it is silent, leaderless or behind, unlike others")),
        }
    }
}

/// A stream of answers, and who sends it.
pub(super) struct Opened<A> {
    pub(super) stream: Streaming<A>,
    /// The place of the endpoint.
    pub(super) at: usize,
    /// Cancelled when nothing more is to be expected of it.
    pub(super) lost: CancellationToken,
}

pub(super) struct Connection {
    /// Never empty.
    endpoints: ArcSwap<Endpoints>,
    /// The endpoint that is asked: the one that leads, or that answered last.
    current: AtomicUsize,
    /// Told after every round of looking at members, and when they are others.
    judged: Notify,
    tls: Option<Tls>,
    keys: Mutex<Keys>,
    timeout: Duration,
    credentials: Option<(String, String)>,
    token: RwLock<Option<String>>,
}

/// What the channels were made with, and when that was last looked at.
struct Keys {
    pem: Option<Pem>,
    read_at: Instant,
}

/// The contents of [`Tls`].
#[derive(Clone, PartialEq)]
struct Pem {
    ca: Vec<u8>,
    identity: Option<tls::Pair>,
}

impl Connection {
    pub(super) fn new(options: &Options) -> Result<Connection> {
        if options.endpoints.is_empty() {
            return Err(StoreError::Invalid("no etcd endpoint was given".into()));
        }
        let pem = options.tls.as_ref().map(Pem::read).transpose()?;
        let tls = pem.as_ref().map(Pem::config);
        let endpoints = options.endpoints.iter().map(|name| Peer::new(name, tls.as_ref(), Verdict::Serves));
        Ok(Connection {
            endpoints: ArcSwap::from_pointee(endpoints.collect::<Result<_>>()?),
            current: AtomicUsize::new(0),
            judged: Notify::new(),
            tls: options.tls.clone(),
            keys: Mutex::new(Keys { pem, read_at: Instant::now() }),
            timeout: options.timeout,
            credentials: options.credentials.clone(),
            token: RwLock::new(None),
        })
    }

    /// One request, one answer. Goes round the endpoints until one answers or the time is up.
    pub(super) async fn call<Q, A>(&self, path: &'static str, message: Q, repeat: Repeat) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.call_noting(path, message, repeat, &mut false).await
    }

    /// The same; also notes whether an answer was lost before this one came, good or bad, so that the request may have been
    /// carried out before.
    pub(super) async fn call_noting<Q, A>(
        &self,
        path: &'static str,
        message: Q,
        repeat: Repeat,
        was_lost: &mut bool,
    ) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let deadline = Instant::now() + self.timeout;
        self.authenticate(deadline, false).await?;
        let mut failures = Failures::default();
        let mut renewed = false;
        loop {
            for _ in 0..self.count() {
                let (at, peer) = self.pick(deadline).await;
                let name = &peer.name;
                let attempt = peer.or_lost(unary(&peer.channel, path, self.request(path, message.clone())));
                let Ok(answer) = tokio::time::timeout_at(deadline, attempt).await else {
                    self.move_on(at);
                    return Err(failures.timed_out(self, name));
                };
                let status = match answer {
                    Ok(answer) => return Ok(answer),
                    Err(status) => status,
                };
                if status.code() == Code::Unauthenticated && self.credentials.is_some() && !renewed {
                    renewed = true;
                    self.authenticate(deadline, true).await?;
                    continue;
                }
                if !is_outage(&status) {
                    return Err(Failure::Refused(status, name.clone()));
                }
                self.move_on(at);
                let sent = !was_not_sent(&status);
                failures.note(name, &status);
                if repeat == Repeat::IfUnsent && sent {
                    return Err(Failure::Down(failures.describe()));
                }
                *was_lost |= sent;
            }
            if Instant::now() + ROUND_INTERVAL >= deadline {
                return Err(Failure::Down(failures.describe()));
            }
            tokio::time::sleep(ROUND_INTERVAL).await;
        }
    }

    /// Opens a stream of answers to a stream of requests, on the current endpoint only.
    pub(super) async fn stream<Q, A>(
        &self,
        path: &'static str,
        messages: impl IntoStreamingRequest<Message = Q>,
    ) -> Result<Opened<A>, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let deadline = Instant::now() + self.timeout;
        self.authenticate(deadline, false).await?;
        let (at, peer) = self.pick(deadline).await;
        let mut request = messages.into_streaming_request();
        self.add_metadata(path, request.metadata_mut());
        let open = async {
            let mut grpc = grpc(&peer.channel);
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
        };
        let failure = match tokio::time::timeout_at(deadline, peer.or_lost(open)).await {
            Ok(Ok(stream)) => return Ok(Opened { stream: stream.into_inner(), at, lost: peer.lost.clone() }),
            Ok(Err(status)) => self.judge(at, &peer.name, status),
            Err(_) => {
                self.move_on(at);
                Failures::default().timed_out(self, &peer.name)
            }
        };
        Err(failure)
    }

    fn count(&self) -> usize {
        self.endpoints.load().len()
    }

    /// The endpoint whose turn it is, and its place.
    fn current(&self) -> (usize, Arc<Peer>) {
        let endpoints = self.endpoints.load();
        let at = self.current.load(Ordering::Relaxed) % endpoints.len();
        (at, endpoints[at].clone())
    }

    /// The endpoint to ask: one that can answer, if there is any within the time that it takes to choose a leader.
    async fn pick(&self, deadline: Instant) -> (usize, Arc<Peer>) {
        let limit = deadline.min(Instant::now() + ELECTION_TIME);
        loop {
            // Made first: it hears of every change from here on.
            let judged = self.judged.notified();
            let (at, peer) = self.current();
            if peer.serves() || Instant::now() >= limit {
                return (at, peer);
            }
            let endpoints = self.endpoints.load_full();
            if let Some(next) = serving_after(&endpoints, at) {
                let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
                return (next, endpoints[next].clone());
            }
            let _ = tokio::time::timeout_at(limit, judged).await;
        }
    }

    /// Asks every member how it fares. Who waits for one that cannot answer, while others can, goes on with those.
    pub(super) async fn look(&self, health: &mut Health) {
        let endpoints = self.endpoints.load_full();
        if endpoints.len() < 2 {
            // It may have been one of several when it was last asked.
            self.trust_all(&endpoints);
            return;
        }
        let began = Instant::now();
        let asked: Vec<_> = endpoints.iter().map(|peer| self.ask(peer)).collect();
        let seen = join_all(asked).await;
        if began.elapsed() > ROUND_TIMEOUT {
            return;
        }
        let round: Vec<_> = endpoints.iter().map(|peer| peer.name.as_str()).zip(seen).collect();
        let Some(verdicts) = health.judge(&round, Instant::now()) else {
            // Nothing is known of anybody. Who was lost may be the only one left, and slower than those are given time for:
            // all are worth a request, and have the whole time for their next answer.
            self.trust_all(&endpoints);
            return;
        };
        for (peer, verdict) in endpoints.iter().zip(verdicts) {
            let before = std::mem::replace(&mut *peer.standing.lock(), verdict);
            if verdict == Verdict::Lost && before != Verdict::Lost {
                tracing::warn!(member = %peer.name, "etcd: a member is silent, cut off from the others or behind");
                self.leave(peer);
            }
        }
        self.judged.notify_waiters();
    }

    fn trust_all(&self, endpoints: &[Arc<Peer>]) {
        endpoints.iter().for_each(|peer| *peer.standing.lock() = Verdict::Serves);
        self.judged.notify_waiters();
    }

    async fn ask(&self, peer: &Peer) -> Seen {
        let asked = async {
            let mut last = Seen::Silent;
            // A connection that was closed meanwhile is made anew by the second.
            for _ in 0..2 {
                let answer = unary(&peer.probes, STATUS, self.request(STATUS, Empty {})).await;
                last = seen_in(answer);
                if last != Seen::Silent {
                    break;
                }
            }
            last
        };
        // Others are not to be asked more rarely because of one that is lost anyway.
        let timeout = match *peer.standing.lock() {
            Verdict::Lost => LOST_TIMEOUT,
            Verdict::Serves | Verdict::Waits => ANSWER_TIMEOUT,
        };
        tokio::time::timeout(timeout, asked).await.unwrap_or(Seen::Silent)
    }

    pub(super) fn all_serve(&self) -> bool {
        self.endpoints.load().iter().all(|peer| peer.serves())
    }

    /// Nobody waits for this one any longer. It gets new connections for when it is back: old ones may stay silent.
    fn leave(&self, peer: &Arc<Peer>) {
        let keys = self.keys.lock();
        let tls = keys.pem.as_ref().map(Pem::config);
        let endpoints = self.endpoints.load_full();
        let place = endpoints.iter().position(|known| known.name == peer.name);
        if let Some(at) = place
            && let Ok(fresh) = Peer::new(&peer.name, tls.as_ref(), Verdict::Lost)
        {
            let mut changed = Endpoints::clone(&endpoints);
            changed[at] = fresh;
            self.endpoints.store(Arc::new(changed));
        }
        drop(keys);
        if let Some(at) = place {
            self.move_on(at);
        }
        // Last: who wakes by this finds another.
        peer.lost.cancel();
    }

    pub(super) fn endpoint(&self) -> String {
        self.current().1.name.clone()
    }

    /// Makes these the endpoints; none are no news. Those that stay keep their connections.
    pub(super) fn lead_to(&self, names: &[String]) -> Result<()> {
        // Held, so that nobody else makes channels meanwhile.
        let keys = self.keys.lock();
        let known = self.endpoints.load_full();
        if names.is_empty() || known.iter().map(|peer| &peer.name).eq(names) {
            return Ok(());
        }
        let tls = keys.pem.as_ref().map(Pem::config);
        let endpoint = |name: &String| match known.iter().find(|peer| peer.name == *name) {
            Some(held) => Ok(held.clone()),
            None => Peer::new(name, tls.as_ref(), Verdict::Serves),
        };
        let endpoints: Endpoints = names.iter().map(endpoint).collect::<Result<_>>()?;
        let used = self.endpoint();
        self.current.store(names.iter().position(|name| *name == used).unwrap_or(0), Ordering::Relaxed);
        self.endpoints.store(Arc::new(endpoints));
        self.judged.notify_waiters();
        Ok(())
    }

    /// Connects with what is in the files of keys now, if that is something else. What is open goes on.
    pub(super) fn reload_keys(&self) {
        let Some(files) = &self.tls else { return };
        let mut keys = self.keys.lock();
        if keys.read_at.elapsed() < RELOAD_INTERVAL {
            return;
        }
        keys.read_at = Instant::now();
        let renewed = || -> Result<Option<(Pem, Endpoints)>> {
            let found = Pem::read(files)?;
            if keys.pem.as_ref() == Some(&found) {
                return Ok(None);
            }
            let tls = found.config();
            let names = self.endpoints.load_full();
            let endpoints = names.iter().map(|peer| peer.renewed(&tls));
            Ok(Some((found, endpoints.collect::<Result<_>>()?)))
        };
        match renewed() {
            Ok(None) => {}
            Ok(Some((found, endpoints))) => {
                keys.pem = Some(found);
                self.endpoints.store(Arc::new(endpoints));
            }
            // Half written: the next look finds them whole.
            Err(error) => tracing::warn!(%error, "the keys for etcd are not renewed"),
        }
    }

    /// What a failed stream of an endpoint means; an outage makes the next attempt use another.
    pub(super) fn judge_stream(&self, at: usize, status: Status) -> Failure {
        let name = self.endpoints.load().get(at).map_or_else(|| self.names(), |peer| peer.name.clone());
        self.judge(at, &name, status)
    }

    pub(super) fn try_next_endpoint(&self, at: usize) {
        self.move_on(at);
    }

    /// Turns to the member that leads, which saves requests a hop: others pass on to it what they are asked. Where nobody says
    /// that it leads, or may say so, everything stays as it is.
    pub(super) async fn turn_to_leader(&self) {
        let endpoints = self.endpoints.load_full();
        if endpoints.len() < 2 {
            return;
        }
        let from = self.current().0;
        let others = (0..endpoints.len()).filter(|at| *at != from);
        for at in [from].into_iter().chain(others) {
            let Some(peer) = endpoints.get(at).filter(|peer| peer.serves()) else { continue };
            let asked = unary(&peer.channel, STATUS, self.request(STATUS, Empty {}));
            let Ok(Ok(status)) = tokio::time::timeout(LEADER_TIMEOUT, asked).await else { continue };
            if leads(&status) {
                // Unless another has failed, or the members are others, meanwhile.
                if Arc::ptr_eq(&endpoints, &self.endpoints.load_full()) {
                    let _ = self.current.compare_exchange(from, at, Ordering::Relaxed, Ordering::Relaxed);
                }
                return;
            }
        }
    }

    pub(super) fn forget_token(&self) {
        *self.token.write() = None;
    }

    fn judge(&self, at: usize, name: &str, status: Status) -> Failure {
        if is_outage(&status) {
            self.move_on(at);
            let mut failures = Failures::default();
            failures.note(name, &status);
            return Failure::Down(failures.describe());
        }
        if status.code() == Code::Unauthenticated {
            self.forget_token();
        }
        Failure::Refused(status, name.to_owned())
    }

    fn move_on(&self, from: usize) {
        // It may be ours that are wrong: a certificate that has ended, or an authority that is no longer one.
        self.reload_keys();
        let endpoints = self.endpoints.load();
        let next = serving_after(&endpoints, from).unwrap_or((from + 1) % endpoints.len());
        // Whoever saw the failure first moves; the others follow.
        let _ = self.current.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn authenticate(&self, deadline: Instant, renew: bool) -> Result<(), Failure> {
        let Some((name, password)) = &self.credentials else { return Ok(()) };
        if !renew && self.token.read().is_some() {
            return Ok(());
        }
        self.log_in(name, password, deadline).boxed().await
    }

    async fn log_in(&self, name: &str, password: &str, deadline: Instant) -> Result<(), Failure> {
        let message = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        let mut failures = Failures::default();
        for _ in 0..self.count() {
            let (at, peer) = self.pick(deadline).await;
            let name = &peer.name;
            let attempt = unary(&peer.channel, "/etcdserverpb.Auth/Authenticate", Request::new(message.clone()));
            let attempt = tokio::time::timeout_at(deadline, peer.or_lost(attempt));
            let answer: Result<AuthenticateResponse, Status> = match attempt.await {
                Ok(answer) => answer,
                Err(_) => return Err(failures.timed_out(self, name)),
            };
            match answer {
                Ok(answer) => {
                    *self.token.write() = Some(answer.token);
                    return Ok(());
                }
                Err(status) if is_outage(&status) => {
                    failures.note(name, &status);
                    self.move_on(at);
                }
                Err(status) => return Err(Failure::Refused(status, name.clone())),
            }
        }
        Err(Failure::Down(failures.describe()))
    }

    fn request<Q>(&self, path: &str, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        self.add_metadata(path, request.metadata_mut());
        request
    }

    fn add_metadata(&self, path: &str, metadata: &mut tonic::metadata::MetadataMap) {
        if NEED_A_LEADER.iter().any(|service| path.starts_with(service)) {
            metadata.insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
        }
        if let Some(token) = self.token.read().as_ref().and_then(|token| token.parse().ok()) {
            metadata.insert("token", token);
        }
    }

    pub(super) fn names(&self) -> String {
        let endpoints = self.endpoints.load();
        let names: Vec<_> = endpoints.iter().map(|peer| peer.name.as_str()).collect();
        names.join(", ")
    }
}

/// The next endpoint that can answer, in turn; at last the same one.
fn serving_after(endpoints: &[Arc<Peer>], from: usize) -> Option<usize> {
    let count = endpoints.len();
    (1..=count).map(|step| (from + step) % count).find(|at| endpoints[*at].serves())
}

fn seen_in(answer: Result<StatusResponse, Status>) -> Seen {
    match answer {
        Ok(status) => match status.header {
            Some(header) => Seen::Says {
                id: header.member_id,
                leader: status.leader,
                term: header.raft_term,
                revision: revision(Some(&header)),
            },
            None => Seen::Answers,
        },
        Err(status) if is_outage(&status) => Seen::Silent,
        // It refuses to say, which only somebody does who is there.
        Err(_) => Seen::Answers,
    }
}

fn leads(status: &StatusResponse) -> bool {
    status.leader != 0 && status.header.as_ref().is_some_and(|header| header.member_id == status.leader)
}

/// Why a call has no answer.
pub(super) enum Failure {
    /// etcd answered with an error. The endpoint's name goes with it.
    Refused(Status, String),
    /// Nobody answered, or nobody could.
    Down(String),
}

impl From<Failure> for StoreError {
    /// Errors whose meaning does not depend on the request. Callers look at theirs first.
    fn from(failure: Failure) -> StoreError {
        let (status, endpoint) = match failure {
            Failure::Down(what) => return StoreError::Unavailable(what),
            Failure::Refused(status, endpoint) => (status, endpoint),
        };
        let message = status.message().trim_start_matches("etcdserver: ");
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => StoreError::Denied(format!("{endpoint}: {message}")),
            Code::InvalidArgument | Code::FailedPrecondition
                if message.contains("authentication failed")
                    || message.contains("user name is empty")
                    || message.contains("authentication is not enabled") =>
            {
                StoreError::Denied(format!("{endpoint}: {message}"))
            }
            Code::ResourceExhausted if message.contains("space exceeded") => {
                StoreError::Full { path: PathBuf::from(endpoint) }
            }
            Code::InvalidArgument | Code::AlreadyExists => StoreError::Invalid(message.to_owned()),
            _ => StoreError::Unavailable(format!("{endpoint}: {message}")),
        }
    }
}

#[derive(Default)]
struct Failures {
    by_endpoint: Vec<(String, String)>,
}

impl Failures {
    fn note(&mut self, endpoint: &str, status: &Status) {
        let reason = root_cause(status);
        match self.by_endpoint.iter_mut().find(|(name, _)| name == endpoint) {
            Some(entry) => entry.1 = reason,
            None => self.by_endpoint.push((endpoint.into(), reason)),
        }
    }

    fn describe(&self) -> String {
        let all: Vec<_> = self.by_endpoint.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
        format!("no etcd endpoint answers ({})", all.join("; "))
    }

    fn timed_out(&self, connection: &Connection, endpoint: &str) -> Failure {
        let seconds = connection.timeout.as_secs_f32();
        let mut text =
            format!("no answer from etcd at {endpoint} within {seconds} s; has the cluster lost its quorum?");
        for (name, reason) in &self.by_endpoint {
            text.push_str(&format!(" {name}: {reason}"));
        }
        Failure::Down(text)
    }
}

/// The innermost message: "connection refused" rather than "transport error".
fn root_cause(status: &Status) -> String {
    let mut text = status.message().trim_start_matches("etcdserver: ").to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    text
}

/// The endpoint cannot serve, as opposed to having refused the request.
fn is_outage(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => true,
        // What tonic makes of a broken connection.
        Code::Unknown | Code::Internal => !status.message().starts_with("etcdserver:"),
        _ => false,
    }
}

fn was_not_sent(status: &Status) -> bool {
    if status.message() == NO_LEADER {
        return true;
    }
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        source = error.source();
    }
    false
}

fn grpc(channel: &Channel) -> Grpc<Channel> {
    // etcd has its own limits; a list of everything is larger than gRPC's usual 4 MiB.
    Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
}

async fn unary<Q, A>(channel: &Channel, path: &'static str, request: Request<Q>) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = grpc(channel);
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let answer = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await?;
    Ok(answer.into_inner())
}

fn channel(name: &str, tls: Option<&ClientTlsConfig>) -> Result<Channel> {
    let bad = |reason: &str| StoreError::Invalid(format!("etcd endpoint {name:?}: {reason}"));
    let rest = name.strip_prefix("http://").or_else(|| name.strip_prefix("https://"));
    let rest = rest.ok_or_else(|| bad("must start with http:// or https://"))?;
    let (host, port) = rest.trim_end_matches('/').rsplit_once(':').ok_or_else(|| bad("has no port"))?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return Err(bad("must be a host and a port"));
    }
    let mut endpoint = Endpoint::from_shared(name.to_owned()).map_err(|error| bad(&error.to_string()))?;
    if name.starts_with("https://") {
        let tls = tls.ok_or_else(|| bad("needs a CA certificate to check the server against"))?;
        endpoint = endpoint.tls_config(tls.clone()).map_err(|error| bad(&error.to_string()))?;
    }
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .connect_lazy())
}

impl Pem {
    fn read(files: &Tls) -> Result<Pem> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| StoreError::io(path, &error));
        let identity = tls::read_pair(|| -> Result<Option<tls::Pair>> {
            let Some((certificate, key)) = &files.identity else { return Ok(None) };
            Ok(Some((read(certificate)?, read(key)?)))
        })?;
        Ok(Pem { ca: read(&files.ca)?, identity })
    }

    fn config(&self) -> ClientTlsConfig {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca));
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_for_etcd_is_read_with_its_own_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let put = |name: &str, text: String| {
            std::fs::write(path("new"), text).unwrap();
            std::fs::rename(path("new"), path(name)).unwrap();
        };
        let exchange = || {
            let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
            put("key", made.signing_key.serialize_pem());
            put("crt", made.cert.pem());
        };
        exchange();
        let files = Tls { ca: path("crt"), identity: Some((path("crt"), path("key"))) };
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..200).for_each(|_| exchange());
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                assert!(tls::is_pair(&Pem::read(&files).unwrap().identity.unwrap()));
            }
        });
    }

    #[tokio::test]
    async fn while_nobody_answers_nobody_is_passed_over() {
        // Bound, and nobody listens.
        let closed = [(); 2].map(|()| tokio::net::TcpSocket::new_v4().unwrap());
        closed.iter().for_each(|socket| socket.bind("127.0.0.1:0".parse().unwrap()).unwrap());
        let options = Options::new(closed.each_ref().map(|socket| format!("http://{}", socket.local_addr().unwrap())));
        let connection = Connection::new(&options).unwrap();
        *connection.endpoints.load()[1].standing.lock() = Verdict::Lost;
        connection.move_on(0);
        assert_eq!(connection.current().0, 0, "the other one is lost");
        connection.look(&mut Health::default()).await;
        assert!(connection.all_serve());
        connection.move_on(0);
        assert_eq!(connection.current().0, 1);
    }

    #[tokio::test]
    async fn the_only_member_that_is_left_is_asked() {
        let names = ["http://127.0.0.1:1", "http://127.0.0.1:2"].map(str::to_owned);
        let connection = Connection::new(&Options::new(names.clone())).unwrap();
        *connection.endpoints.load()[0].standing.lock() = Verdict::Waits;
        connection.lead_to(&names[..1]).unwrap();
        assert!(!connection.all_serve());
        connection.look(&mut Health::default()).await;
        assert!(connection.all_serve());
    }
}
