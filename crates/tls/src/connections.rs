//! The connections of a port: how many there may be, how long they may say nothing, and which makes room.
//!
//! Flow: a listener -> [`Connections::accept`] (a place, or the door) -> the server's TLS handshake within
//! [`Place::handshake`] -> [`Place::serve`], HTTP/1 or HTTP/2 until the client leaves, is idle or has to make room.
//!
//! A port has places in all and per address that clients come from. When they are taken, those make room that have
//! never sent a request, the oldest first, else the one that has been idle for longest; only when all are at work is
//! the newcomer turned away. So a flood of silent connections, even from the address of an honest client, costs that client
//! nothing but a moment. Watches and upgraded streams are work for as long as they last: nothing here ends them.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptors;

/// A client that does not finish its TLS handshake is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// From a connection's begin to the end of its first request's headers; upstream's `ReadHeaderTimeout`.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);
/// Between two requests; upstream's `IdleTimeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// For the next piece of an answer that its client does not take.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// What a client that was told to leave may take for it, and how long what has begun may go on when the port closes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Fewer bytes than this at a time may be answers to pings, which anyone can ask for, and keep no connection.
const CONTENT: usize = 4 << 10;
/// After a failure to accept, which the kernel ends (a descriptor is free again) without telling.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// A peer that is gone without a word is noticed after some minutes.
const KEEP_ALIVE: (u32, u32, u32) = (60, 15, 8);

/// Requests at a time on one connection of HTTP/2.
const MAX_STREAMS: u32 = 1000;
/// Requests that a client takes back before they are looked at, and that fail by its fault, before its connection ends
/// (CVE-2023-44487, CVE-2025-8671).
const MAX_PENDING_RESETS: usize = 20;
const MAX_ERROR_RESETS: usize = 1024;
/// Headers of one request, in which h2 also counts frames that continue them (CVE-2024-27316).
const MAX_HEADERS: u32 = 16 << 10;

/// How many connections a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub total: usize,
    pub per_address: usize,
}

impl Limits {
    /// One in `part` of the descriptors this process may have, but not more than `most`; half of them per address.
    pub fn share(part: usize, most: usize) -> Self {
        let total = (descriptors::limit() / part).clamp(16, most);
        Self { total, per_address: total / 2 }
    }
}

/// The places of one port.
pub struct Connections {
    limits: Limits,
    /// Bytes of HTTP/1 that one holds in each direction, if not as many as hyper would.
    buffer: Option<usize>,
    began: Instant,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    next: u64,
    taken: HashMap<u64, Arc<Use>>,
    /// How many of them each address has.
    by_address: HashMap<IpAddr, usize>,
}

/// What is known of one connection.
struct Use {
    address: IpAddr,
    /// Requests that are being answered, and one for good when the connection was upgraded.
    busy: AtomicUsize,
    /// Of these, how many have a piece ready that the client does not take, and when that last changed.
    offered: AtomicUsize,
    moved: AtomicU64,
    /// Whether a request was ever answered.
    served: AtomicBool,
    /// When it was last at work, in milliseconds since the port began.
    since: AtomicU64,
    /// It has to make room.
    evicted: Notify,
}

impl Use {
    /// Whether the server has something to do for it: a request to answer, or a client that takes what it is given.
    fn is_at_work(&self, now: u64) -> bool {
        let (busy, offered) = (self.busy.load(Ordering::Relaxed), self.offered.load(Ordering::Relaxed));
        busy > offered || (busy > 0 && now < self.stalled_at())
    }

    /// When a client has had long enough to take the next piece of its answer, in milliseconds since the port began.
    fn stalled_at(&self) -> u64 {
        self.moved.load(Ordering::Relaxed).saturating_add(STALL_TIMEOUT.as_millis() as u64)
    }
}

impl Connections {
    /// Raises the limit of descriptors as far as this process may: the limits of ports are meant to be the narrower ones.
    pub fn new(limits: impl FnOnce() -> Limits) -> Arc<Self> {
        Self::made(limits, None)
    }

    /// As [`Connections::new`], for a port whose clients are many and whose requests are small. `buffer` is what a connection of HTTP/1
    /// holds in each direction: the headers of a request, pieces of a body, and pieces of an answer that wait for the client.
    pub fn with_buffer(limits: impl FnOnce() -> Limits, buffer: usize) -> Arc<Self> {
        Self::made(limits, Some(buffer))
    }

    fn made(limits: impl FnOnce() -> Limits, buffer: Option<usize>) -> Arc<Self> {
        descriptors::raise();
        Arc::new(Self { limits: limits(), buffer, began: Instant::now(), places: Mutex::default() })
    }

    /// The next connection that has a place. Boxed: what an `async fn` does is compiled again by every crate that waits for it.
    pub fn accept<'a>(
        self: &'a Arc<Self>,
        listener: &'a TcpListener,
    ) -> Pin<Box<dyn Future<Output = (Accepted, SocketAddr)> + Send + 'a>> {
        Box::pin(self.next(listener))
    }

    async fn next(self: &Arc<Self>, listener: &TcpListener) -> (Accepted, SocketAddr) {
        loop {
            let (stream, from) = accept(listener, || self.make_room(None)).await;
            // The lowest free number is given out: one so high says that nearly all are taken, by whomever.
            if descriptors::is_reserved(stream.as_raw_fd()) {
                tracing::warn!(%from, "connection turned away: no descriptors left but those in reserve");
                drop(stream);
                self.make_room(None);
                continue;
            }
            match self.enter(from.ip()) {
                Some(place) => {
                    let _ = stream.set_nodelay(true);
                    keep_alive(&stream);
                    return (Accepted { stream, place: Arc::new(place) }, from);
                }
                None => tracing::debug!(%from, "connection turned away: all places are at work"),
            }
        }
    }

    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = household(address);
        let mut places = self.places.lock();
        let of_address = places.by_address.get(&address).copied().unwrap_or(0);
        let full = if of_address >= self.limits.per_address {
            Some(Some(address))
        } else if places.taken.len() >= self.limits.total {
            Some(None)
        } else {
            None
        };
        if let Some(whose) = full
            && places.make_room(whose, self.now()) == 0
        {
            return None;
        }
        let id = places.next;
        places.next += 1;
        let this = Arc::new(Use {
            address,
            busy: AtomicUsize::new(0),
            offered: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            served: AtomicBool::new(false),
            since: AtomicU64::new(self.now()),
            evicted: Notify::new(),
        });
        places.taken.insert(id, this.clone());
        *places.by_address.entry(address).or_default() += 1;
        Some(Place { connections: self.clone(), id, this })
    }

    fn make_room(&self, address: Option<IpAddr>) {
        self.places.lock().make_room(address, self.now());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The next connection. A failure is logged and tried again after a moment: it says nothing about the listener.
pub async fn accept(listener: &TcpListener, failed: impl Fn()) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            // At a port of both families, one of version 4 comes in the clothes of version 6.
            Ok((stream, from)) => return (stream, SocketAddr::new(from.ip().to_canonical(), from.port())),
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                failed();
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

impl Places {
    /// Has idle connections end, of one address or of all, and says how many. Of those that never sent a request an eighth
    /// goes at a time, so that a flood does not have us look through all of them for each.
    fn make_room(&mut self, address: Option<IpAddr>, now: u64) -> usize {
        let mut strangers: Vec<(u64, u64)> = Vec::new();
        let mut longest: Option<(u64, u64)> = None;
        for (id, one) in &self.taken {
            if address.is_some_and(|address| address != one.address) || one.is_at_work(now) {
                continue;
            }
            let since = one.since.load(Ordering::Relaxed);
            match one.served.load(Ordering::Relaxed) {
                true => longest = Some(longest.map_or((since, *id), |other| other.min((since, *id)))),
                false => strangers.push((since, *id)),
            }
        }
        let leaving: Vec<u64> = match (strangers.is_empty(), longest) {
            (false, _) => {
                let part = strangers.len().div_ceil(8);
                strangers.select_nth_unstable(part - 1);
                strangers[..part].iter().map(|(_, id)| *id).collect()
            }
            (true, Some((_, id))) => vec![id],
            (true, None) => Vec::new(),
        };
        for id in &leaving {
            self.remove(*id).inspect(|one| one.evicted.notify_one());
        }
        leaving.len()
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Use>> {
        let one = self.taken.remove(&id)?;
        if let Some(count) = self.by_address.get_mut(&one.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&one.address);
            }
        }
        Some(one)
    }
}

/// Whose an address is: whoever has one of version 6 has all of its network.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) if address.is_loopback() => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

fn keep_alive(stream: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};
    let (idle, interval, count) = KEEP_ALIVE;
    // Without it such a peer is noticed later.
    let _ = setsockopt(stream, sockopt::KeepAlive, &true)
        .and_then(|()| setsockopt(stream, sockopt::TcpKeepIdle, &idle))
        .and_then(|()| setsockopt(stream, sockopt::TcpKeepInterval, &interval))
        .and_then(|()| setsockopt(stream, sockopt::TcpKeepCount, &count));
}

/// What HTTP is spoken over. Boxed, it is compiled once, and not for each kind of stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// How [`Place::serve`] ends.
type Served<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;
/// The answer to a request with everything in it boxed.
type Answered = Pin<Box<dyn Future<Output = Response<UnsyncBoxBody<Bytes, BoxError>>> + Send>>;

/// The place of one connection; whoever holds its stream holds it.
pub struct Place {
    connections: Arc<Connections>,
    id: u64,
    this: Arc<Use>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.places.lock().remove(self.id);
    }
}

impl Place {
    /// Waits for a handshake, or for a whole exchange that is as short, not for ever.
    pub async fn handshake<T>(&self, handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => done?,
            () = self.this.evicted.notified() => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Answers the requests of a connection until it ends. From `closing` on, what has begun is finished.
    pub async fn serve<I, F, R, B>(
        self: Arc<Self>,
        stream: I,
        closing: &CancellationToken,
        answer: F,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Fn(Request<Incoming>) -> R,
        R: Future<Output = Response<B>> + Send + 'static,
        B: Body + Unpin + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let service = hyper::service::service_fn(|request| {
            let work = Work::begin(&self);
            let response = answer(request);
            async move {
                let response = response.await;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    work.for_good();
                }
                Ok::<_, std::convert::Infallible>(response.map(|body| Answer { body, work, is_offered: false }))
            }
        });
        let builder = builder(self.connections.buffer);
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let mut idle = pin!(self.idle());
        let (mut is_leaving, mut ending) = (false, false);
        let mut leave = pin!(tokio::time::sleep(Duration::MAX));
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended,
                () = self.this.evicted.notified() => return Ok(()),
                () = idle.as_mut(), if !is_leaving => {
                    is_leaving = true;
                    connection.as_mut().graceful_shutdown();
                    leave.as_mut().reset(Instant::now() + DRAIN_TIMEOUT);
                }
                () = closing.cancelled(), if !ending => {
                    (is_leaving, ending) = (true, true);
                    connection.as_mut().graceful_shutdown();
                    leave.as_mut().reset(Instant::now() + CLOSE_TIMEOUT);
                }
                () = leave.as_mut(), if is_leaving => {
                    // A request that crossed our farewell is still answered.
                    if ending || !self.this.is_at_work(self.connections.now()) {
                        return Ok(());
                    }
                    leave.as_mut().reset(Instant::now() + DRAIN_TIMEOUT);
                }
            }
        }
    }

    /// As [`Self::serve`], for ports that are not asked all the time: with everything boxed, the code that speaks HTTP is
    /// compiled once for all of them.
    pub fn serve_boxed<'a, F, R, B>(
        self: Arc<Self>,
        stream: impl Stream + 'static,
        closing: &'a CancellationToken,
        answer: F,
    ) -> Served<'a>
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'a,
        R: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let boxed = move |request: Request<Incoming>| -> Answered {
            let response = answer(request);
            Box::pin(async move {
                let boxed = |body: B| body.map_err(|error| -> BoxError { error.into() }).boxed_unsync();
                response.await.map(boxed)
            })
        };
        self.serve_any(Box::new(stream), closing, Box::new(boxed))
    }

    fn serve_any<'a>(
        self: Arc<Self>,
        stream: Box<dyn Stream>,
        closing: &'a CancellationToken,
        answer: Box<dyn Fn(Request<Incoming>) -> Answered + Send + Sync + 'a>,
    ) -> Served<'a> {
        Box::pin(self.serve(stream, closing, answer))
    }

    /// Returns when there was no request for too long.
    async fn idle(&self) {
        let (this, began) = (&self.this, self.connections.began);
        loop {
            let now = Instant::now();
            let limit = if this.served.load(Ordering::Relaxed) { IDLE_TIMEOUT } else { FIRST_REQUEST_TIMEOUT };
            let (busy, offered) = (this.busy.load(Ordering::Relaxed), this.offered.load(Ordering::Relaxed));
            let until = match busy {
                0 => began + Duration::from_millis(this.since.load(Ordering::Relaxed)) + limit,
                _ if busy > offered => now + IDLE_TIMEOUT,
                _ => began + Duration::from_millis(this.stalled_at()),
            };
            if until <= now {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// How HTTP is spoken on every port of ours.
fn builder(buffer: Option<usize>) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if let Some(buffer) = buffer {
        builder.http1().max_buf_size(buffer);
    }
    builder
        .http2()
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    builder
}

/// A request that is being answered.
struct Work(Arc<Place>);

impl Work {
    fn begin(place: &Arc<Place>) -> Self {
        place.this.busy.fetch_add(1, Ordering::Relaxed);
        Self(place.clone())
    }

    /// The connection goes on as something else than HTTP.
    fn for_good(&self) {
        self.0.this.busy.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let this = &self.0.this;
        this.since.store(self.0.connections.now(), Ordering::Relaxed);
        this.served.store(true, Ordering::Relaxed);
        this.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response: work until it was sent, unless its client does not take it.
struct Answer<B> {
    body: B,
    work: Work,
    /// A piece was given away and nobody has come for the next.
    is_offered: bool,
}

impl<B> Answer<B> {
    fn offer(&mut self, is_offered: bool) {
        if std::mem::replace(&mut self.is_offered, is_offered) == is_offered {
            return;
        }
        let place = &self.work.0;
        place.this.moved.store(place.connections.now(), Ordering::Relaxed);
        match is_offered {
            true => place.this.offered.fetch_add(1, Ordering::Relaxed),
            false => place.this.offered.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        self.offer(false);
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.offer(false);
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.offer(matches!(frame, Poll::Ready(Some(Ok(_)))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection with its place, which is free again when the stream is dropped, by whoever has it by then.
pub struct Accepted {
    stream: TcpStream,
    place: Arc<Place>,
}

impl Accepted {
    pub fn place(&self) -> Arc<Place> {
        self.place.clone()
    }

    /// Takes the connection out of this runtime, for another one to go on with.
    pub fn detach(self) -> io::Result<Detached> {
        Ok(Detached { stream: self.stream.into_std()?, place: self.place })
    }

    /// An answer that is on its way keeps its connection, however slow the client is.
    fn note(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(length)) if *length >= CONTENT) {
            self.place.this.since.store(self.place.connections.now(), Ordering::Relaxed);
        }
    }
}

/// A connection on its way from one runtime to another.
pub struct Detached {
    stream: std::net::TcpStream,
    place: Arc<Place>,
}

impl Detached {
    /// Hands it to the runtime that this is called in.
    pub fn attach(self) -> io::Result<Accepted> {
        Ok(Accepted { stream: TcpStream::from_std(self.stream)?, place: self.place })
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn places(total: usize, per_address: usize) -> Arc<Connections> {
        Connections::new(|| Limits { total, per_address })
    }

    #[tokio::test(start_paused = true)]
    async fn security_clients_that_take_nothing_make_room() {
        let connections = places(1, 1);
        let place = Arc::new(connections.enter(LOCAL).unwrap());
        let body = http_body_util::Full::new(bytes::Bytes::from_static(b"ok"));
        let mut answer = Answer { body, work: Work::begin(&place), is_offered: false };
        assert!(connections.enter(LOCAL).is_none(), "it is being answered");
        let taken = std::future::poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await;
        assert!(taken.is_some_and(|frame| frame.is_ok()));
        tokio::time::advance(STALL_TIMEOUT / 2).await;
        assert!(connections.enter(LOCAL).is_none(), "it may still come for the rest");
        tokio::time::advance(STALL_TIMEOUT).await;
        assert!(connections.enter(LOCAL).is_some());
        drop(answer);
        assert_eq!(place.this.offered.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_port_of_both_families_tells_them_apart() {
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for own in [LOCAL, IpAddr::from(Ipv6Addr::LOCALHOST)] {
            let (stream, (_, from)) = tokio::join!(TcpStream::connect((own, port)), accept(&listener, || {}));
            assert_eq!(from, stream.unwrap().local_addr().unwrap());
        }
    }

    #[tokio::test]
    async fn a_connection_keeps_its_place_in_another_runtime() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = places(1, 1);
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, (accepted, _)) = tokio::join!(client, connections.accept(&listener));
        let detached = accepted.detach().unwrap();
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { detached.attach().unwrap().write_all(b"hello").await.unwrap() });
        });
        let mut text = String::new();
        client.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
        elsewhere.join().unwrap();
        assert!(connections.places.lock().taken.is_empty());
    }

    #[tokio::test]
    async fn security_strangers_make_room_first_and_work_never() {
        let connections = places(8, 4);
        let other = IpAddr::from([10, 0, 0, 1]);
        let working: Vec<Arc<Place>> = (0..2).map(|_| Arc::new(connections.enter(LOCAL).unwrap())).collect();
        let work: Vec<Work> = working.iter().map(Work::begin).collect();
        let known = Arc::new(connections.enter(LOCAL).unwrap());
        drop(Work::begin(&known));
        let stranger = connections.enter(LOCAL).unwrap();
        let has_to_leave = |place: &Place| !connections.places.lock().taken.contains_key(&place.id);
        // The address is full: the stranger leaves, then the one that is idle, then nobody comes in any more.
        let busy = Arc::new(connections.enter(LOCAL).unwrap());
        let more = Work::begin(&busy);
        assert!(has_to_leave(&stranger) && !has_to_leave(&known));
        let busy_too = Arc::new(connections.enter(LOCAL).unwrap());
        let _even_more = Work::begin(&busy_too);
        assert!(has_to_leave(&known));
        assert!(connections.enter(LOCAL).is_none());
        // Others do.
        let _others: Vec<Place> = (0..4).map(|_| connections.enter(other).unwrap()).collect();
        // The port is full, but not with work only.
        assert!(connections.enter(IpAddr::from([10, 0, 0, 2])).is_some());
        // Whatever has left has no place.
        drop((more, busy, work, working, stranger, known));
        assert_eq!(connections.places.lock().by_address[&LOCAL], 1);
    }

    #[test]
    fn security_networks_of_version_6_count_as_one_address() {
        let same = |a: &str, b: &str| household(a.parse().unwrap()) == household(b.parse().unwrap());
        assert!(same("2001:db8::1", "2001:db8::ffff:1"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("::1", "::2"));
    }

    /// A server with few places that greets.
    async fn server(total: usize) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = places(total, total);
        let accepting = async move {
            loop {
                let (stream, _) = connections.accept(&listener).await;
                tokio::spawn(async move {
                    let answer = |_| async { Response::new(http_body_util::Full::from("hello")) };
                    let _ = stream.place().serve_boxed(stream, &CancellationToken::new(), answer).await;
                });
            }
        };
        (address, tokio::spawn(accepting))
    }

    async fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn security_a_client_is_served_among_silent_connections() {
        let (address, server) = server(50).await;
        let mut silent = Vec::new();
        for i in 0..300 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if i % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
            }
            silent.push(stream);
        }
        assert!(get(address).await.ends_with("hello"));
        // The first of them had to make room.
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), silent[0].read_to_end(&mut rest)).await;
        assert!(ended.is_ok());
        server.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn security_silent_connections_end_and_work_goes_on() {
        let connections = places(4, 4);
        let place = || Arc::new(connections.enter(LOCAL).unwrap());
        let begin = Instant::now();
        let (silent, working) = (place(), place());
        let work = Work::begin(&working);
        silent.idle().await;
        assert!(begin.elapsed() >= FIRST_REQUEST_TIMEOUT && begin.elapsed() < 2 * FIRST_REQUEST_TIMEOUT);
        assert!(tokio::time::timeout(Duration::from_secs(86_400), working.idle()).await.is_err());
        drop(work);
        let idle_since = Instant::now();
        working.idle().await;
        assert!(idle_since.elapsed() >= IDLE_TIMEOUT && idle_since.elapsed() < 3 * IDLE_TIMEOUT);
        let upgraded = place();
        Work::begin(&upgraded).for_good();
        assert!(tokio::time::timeout(Duration::from_secs(86_400), upgraded.idle()).await.is_err());
        let never = std::future::pending::<io::Result<()>>();
        assert!(place().handshake(never).await.is_err());
    }

    /// Frames of HTTP/2, by kind, flags, stream and content.
    fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
    }

    /// Shorter than any time after which a silent connection ends.
    const SOON: Duration = Duration::from_secs(25);

    /// Sends frames until the server ends the connection; false if it takes them all.
    async fn is_cut_off(frames: impl Iterator<Item = Vec<u8>>) -> bool {
        let (address, server) = server(4).await;
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut from, mut to) = stream.into_split();
        let ended = tokio::spawn(async move {
            let mut rest = Vec::new();
            let _ = from.read_to_end(&mut rest).await;
        });
        to.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        to.write_all(&frame(4, 0, 0, &[])).await.unwrap();
        let mut cut = false;
        for frame in frames {
            if to.write_all(&frame).await.is_err() || ended.is_finished() {
                cut = true;
                break;
            }
        }
        // It may have taken in all before it looked.
        let cut = cut || tokio::time::timeout(SOON, ended).await.is_ok();
        server.abort();
        cut
    }

    #[tokio::test]
    async fn security_floods_of_http2_frames_end_their_connection() {
        // GET / over http, from the static table.
        let headers = [0x82, 0x86, 0x84];
        let continued = std::iter::once(frame(1, 0, 1, &headers))
            .chain((0..100_000).map(|_| frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b'])));
        assert!(is_cut_off(continued).await);
        let reset = (0..50_000u32).map(|i| {
            let stream = 2 * i + 1;
            [frame(1, 5, stream, &headers), frame(3, 0, stream, &8u32.to_be_bytes())].concat()
        });
        assert!(is_cut_off(std::iter::once(reset.flatten().collect())).await);
    }
}
