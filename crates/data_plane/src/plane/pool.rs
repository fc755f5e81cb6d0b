//! Connections to endpoints, kept open between requests.
//!
//! HTTP/1 has one request at a time: a connection is leased and comes back when the answer was read to its end. Whoever leases
//! it drives it, so that an exchange is one task's work and nobody has to be woken for it; only what goes on beside the answer,
//! such as a body that is still being sent, has a task of its own. HTTP/2 has many on one. A request is sent again only if its
//! connection failed before any of it was written.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::server::VerifierBuilderError;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use super::backend_tls::{self, Stream};
use super::body::RequestBody;
use super::suppressible_waker::SuppressibleWaker;
use crate::metrics::PoolMetrics;
use crate::table::{Backend, BackendProtocol, BackendTls, Table};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Kept open without a request for so long; shorter than servers usually do, so that ours is the first to close.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Open connections without a request that one worker has, per endpoint. What is more than these is closed.
const MAX_IDLE: usize = 128;
/// Headers of an answer.
const MAX_HEADERS: u32 = 64 << 10;
/// Bytes of HTTP/1 that a connection holds in each direction, to clients as to endpoints. More takes memory, and falls out of a
/// processor's cache before it is passed on.
pub(super) const MAX_BUFFER: usize = 64 << 10;

type Http2 = http2::SendRequest<RequestBody>;
type Sent<S> = (Response<Incoming>, S);

/// Why there is no connection to an endpoint that a request could be sent on.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    TimedOut,
    #[error(transparent)]
    Tcp(Arc<io::Error>),
    #[error("authorities: {0}")]
    Authorities(Arc<VerifierBuilderError>),
    #[error("TLS: {0}")]
    Tls(Arc<io::Error>),
    #[error("no TLS within {CONNECT_TIMEOUT:?}")]
    TlsTimedOut,
    #[error("TLS: the backend does not speak HTTP/2")]
    NoHttp2,
    /// It was made, and took nothing.
    #[error(transparent)]
    Http(Arc<hyper::Error>),
}

/// Why there is no answer.
pub(crate) enum Failure {
    /// Nothing of the request was sent: it can go elsewhere.
    Connect(Box<Request<RequestBody>>, ConnectError),
    /// It may have been seen.
    Exchange(hyper::Error),
}

#[derive(Default)]
struct Endpoint {
    idle: Mutex<Vec<(Http1, Instant)>>,
    raw: Mutex<Vec<(Stream, Instant)>>,
    /// Held while it is being made, so that all who come meanwhile share it.
    shared: tokio::sync::Mutex<Option<Http2>>,
    /// Made with the first connection.
    tls: OnceLock<Result<TlsConnector, ConnectError>>,
}

/// Who is spoken to, how, and trusted by whom.
type Key = (SocketAddr, BackendProtocol, Option<u64>);

pub(crate) struct Pool {
    endpoints: Mutex<HashMap<Key, Arc<Endpoint>>>,
    metrics: PoolMetrics,
    tasks: TaskTracker,
}

/// A connection of HTTP/1. It does nothing that is not asked of it by [`Http1::drive`], unless a task has that to do.
struct Http1 {
    sender: http1::SendRequest<RequestBody>,
    driver: Driver,
}

impl Http1 {
    fn drive(&mut self, context: &mut Context<'_>) {
        self.driver.drive(context);
    }
}

type Connection = Pin<Box<dyn Future<Output = Result<(), hyper::Error>> + Send>>;

/// What reads and writes, unless it has ended or a task has it.
struct Driver {
    connection: Option<Connection>,
    waker: SuppressibleWaker,
}

impl Driver {
    /// Reads and writes what can be at once.
    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(ended) = connection.as_mut().poll(&mut self.waker.register(context))
        {
            self.connection = None;
            if let Err(error) = ended {
                tracing::debug!(%error, "connection to an endpoint ended");
            }
        }
    }

    /// Looks at what driving has brought. While that is ours to do, nobody else has to be woken for it.
    fn poll<T>(&self, context: &mut Context<'_>, look: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        if self.connection.is_none() {
            return look(context);
        }
        let _suppressed = self.waker.suppress();
        look(&mut Context::from_waker(Waker::noop()))
    }
}

/// A connection on which an answer is being read.
pub(crate) struct Lease {
    connection: Http1,
    endpoint: Arc<Endpoint>,
}

impl Lease {
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        self.connection.drive(context);
    }

    /// Looks at what [`Self::drive`] has brought; whoever finds nothing has to drive.
    pub(crate) fn poll<T>(&self, context: &mut Context<'_>, look: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.connection.driver.poll(context, look)
    }

    /// Has a task drive the connection from now on.
    pub(crate) fn entrust(&mut self, tasks: &TaskTracker) {
        if let Some(driver) = self.connection.driver.connection.take() {
            tasks.spawn(FutureExt::boxed(async move {
                if let Err(error) = driver.await {
                    tracing::debug!(%error, "connection to an endpoint ended");
                }
            }));
        }
    }

    pub(crate) fn give_back(self) {
        let mut idle = self.endpoint.idle.lock();
        if !self.connection.sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push((self.connection, Instant::now()));
        }
    }
}

/// A connection on which HTTP/1.1 is spoken by whoever has it.
pub(crate) struct Raw {
    pub(super) stream: Stream,
    pub(super) is_reused: bool,
    endpoint: Arc<Endpoint>,
}

impl Raw {
    /// There was an exchange, and nothing is left of it.
    pub(super) fn give_back(self) {
        let mut idle = self.endpoint.raw.lock();
        if idle.len() < MAX_IDLE {
            idle.push((self.stream, Instant::now()));
        }
    }
}

/// Whether there is nothing to read: neither the end nor an answer that nobody asked for.
fn is_silent(stream: &mut Stream) -> bool {
    let mut byte = [0];
    // A task that has used up its turn would be told that there is nothing, whatever there is.
    let read = poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut ReadBuf::new(&mut byte)));
    pin!(unconstrained(read)).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

impl Pool {
    pub(crate) fn new(metrics: PoolMetrics, tasks: TaskTracker) -> Self {
        Self { endpoints: Mutex::default(), metrics, tasks }
    }

    /// Forgets endpoints that no route leads to any more; what is under way there goes on.
    pub(crate) fn keep_only(&self, table: &Table) {
        let is_used = |(address, _, tls): &Key| {
            table.endpoints.contains(address) && tls.is_none_or(|tls| table.tls.contains(&tls))
        };
        self.endpoints.lock().retain(|key, _| is_used(key));
    }

    /// Closes connections that nobody has used for a while.
    pub(crate) fn sweep(&self) {
        let endpoints: Vec<Arc<Endpoint>> = self.endpoints.lock().values().cloned().collect();
        for endpoint in endpoints {
            drop(taken_out(&endpoint.idle));
            drop(taken_out(&endpoint.raw));
        }
    }

    fn endpoint(&self, to: SocketAddr, backend: &Backend) -> Arc<Endpoint> {
        let key = (to, backend.protocol, backend.tls.as_deref().map(|tls| tls.id));
        self.endpoints.lock().entry(key).or_default().clone()
    }

    /// A connection of HTTP/1.1 that waits for a request. The one used last is the likeliest to be open still.
    pub(super) fn idle_raw(&self, to: SocketAddr, backend: &Backend) -> Option<Raw> {
        let endpoint = self.endpoint(to, backend);
        loop {
            let (mut stream, since) = endpoint.raw.lock().pop()?;
            if since.elapsed() < IDLE_TIMEOUT && is_silent(&mut stream) {
                self.metrics.reused.inc();
                return Some(Raw { stream, is_reused: true, endpoint });
            }
        }
    }

    pub(super) async fn connect_raw(&self, to: SocketAddr, backend: &Backend) -> Result<Raw, ConnectError> {
        let endpoint = self.endpoint(to, backend);
        let stream = self.connect_securely(&endpoint, to, backend.tls.as_deref(), BackendProtocol::Http1).await?;
        Ok(Raw { stream, is_reused: false, endpoint })
    }

    /// Sends a request whose URI is a path (HTTP/1) or whole (HTTP/2).
    pub(crate) async fn send(
        &self,
        to: SocketAddr,
        backend: &Backend,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Option<Lease>), Failure> {
        let (protocol, tls) = (backend.protocol, backend.tls.as_deref());
        let endpoint = self.endpoint(to, backend);
        match protocol {
            BackendProtocol::Http1 => {
                let body = request.body().clone();
                let (response, connection) = self.send_http1(&endpoint, to, tls, request).await?;
                let mut lease = Lease { connection, endpoint };
                // What is left of the body goes on while the answer waits for its reader, and so does another protocol.
                if !body.has_ended() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    lease.entrust(&self.tasks);
                }
                Ok((response, Some(lease)))
            }
            BackendProtocol::Http2 => Ok((self.send_http2(&endpoint, to, tls, request).await?, None)),
        }
    }

    async fn send_http1(
        &self,
        endpoint: &Endpoint,
        to: SocketAddr,
        tls: Option<&BackendTls>,
        mut request: Request<RequestBody>,
    ) -> Result<Sent<Http1>, Failure> {
        loop {
            let (mut connection, is_fresh) = match Self::idle(endpoint).await {
                Some(connection) => {
                    self.metrics.reused.inc();
                    (connection, false)
                }
                None => match self.connect_http1(endpoint, to, tls).await {
                    Ok(connection) => (connection, true),
                    Err(error) => return Err(Failure::Connect(Box::new(request), error)),
                },
            };
            let answered = {
                let Http1 { sender, driver } = &mut connection;
                let exchange = {
                    let _suppressed = driver.waker.suppress();
                    sender.try_send_request(request)
                };
                // Whoever is not to be woken must not be asked to come back, either.
                let mut exchange = pin!(unconstrained(exchange));
                let exchange = poll_fn(|context| {
                    driver.drive(context);
                    driver.poll(context, |context| exchange.as_mut().poll(context))
                });
                exchange.await
            };
            match answered {
                Ok(response) => return Ok((response, connection)),
                Err(error) => request = unsent(error, is_fresh)?,
            }
        }
    }

    /// A connection that waits for a request. The one used last is the likeliest to be open still.
    async fn idle(endpoint: &Endpoint) -> Option<Http1> {
        loop {
            let (mut connection, since) = endpoint.idle.lock().pop()?;
            if since.elapsed() >= IDLE_TIMEOUT {
                continue;
            }
            // It has not noticed yet that the last answer has ended, or that its peer has left. If it is not ready then, a
            // request is still being sent that was answered before its end, and nobody waits for that.
            let is_ready = poll_fn(|context| {
                connection.drive(context);
                Poll::Ready(matches!(connection.sender.poll_ready(context), Poll::Ready(Ok(()))))
            });
            if is_ready.await {
                return Some(connection);
            }
        }
    }

    async fn connect_http1(
        &self,
        endpoint: &Endpoint,
        to: SocketAddr,
        tls: Option<&BackendTls>,
    ) -> Result<Http1, ConnectError> {
        let stream = self.connect_securely(endpoint, to, tls, BackendProtocol::Http1).await?;
        let mut builder = http1::Builder::new();
        builder.max_header_size(MAX_HEADERS as usize).max_buf_size(MAX_BUFFER);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|error| ConnectError::Http(Arc::new(error)))?;
        let connection = connection.with_upgrades();
        let driver = Driver { connection: Some(Box::pin(connection)), waker: SuppressibleWaker::default() };
        Ok(Http1 { sender, driver })
    }

    async fn send_http2(
        &self,
        endpoint: &Endpoint,
        to: SocketAddr,
        tls: Option<&BackendTls>,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        loop {
            let (mut sender, is_fresh) = {
                let mut shared = endpoint.shared.lock().await;
                match shared.as_ref().filter(|sender| !sender.is_closed()) {
                    Some(sender) => {
                        self.metrics.reused.inc();
                        (sender.clone(), false)
                    }
                    None => match self.connect_http2(endpoint, to, tls).await {
                        Ok(sender) => (shared.insert(sender).clone(), true),
                        Err(error) => return Err(Failure::Connect(Box::new(request), error)),
                    },
                }
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => request = unsent(error, is_fresh)?,
            }
        }
    }

    async fn connect_http2(
        &self,
        endpoint: &Endpoint,
        to: SocketAddr,
        tls: Option<&BackendTls>,
    ) -> Result<Http2, ConnectError> {
        let stream = self.connect_securely(endpoint, to, tls, BackendProtocol::Http2).await?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_header_list_size(MAX_HEADERS);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = made.map_err(|error| ConnectError::Http(Arc::new(error)))?;
        self.tasks.spawn(FutureExt::boxed(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%to, %error, "connection to an endpoint ended");
            }
        }));
        Ok(sender)
    }

    /// A connection, over TLS where that is said.
    async fn connect_securely(
        &self,
        endpoint: &Endpoint,
        to: SocketAddr,
        tls: Option<&BackendTls>,
        protocol: BackendProtocol,
    ) -> Result<Stream, ConnectError> {
        let stream = self.connect(to).await?;
        let Some(tls) = tls else { return Ok(Stream::Plain(stream)) };
        let connector = endpoint.tls.get_or_init(|| backend_tls::connector(tls, protocol)).clone()?;
        let handshake = tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(tls.name.clone(), stream)).await;
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.metrics.failed.inc();
                return Err(ConnectError::Tls(Arc::new(error)));
            }
            Err(_) => {
                self.metrics.failed.inc();
                return Err(ConnectError::TlsTimedOut);
            }
        };
        if protocol == BackendProtocol::Http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(ConnectError::NoHttp2);
        }
        Ok(Stream::Tls(Box::new(stream)))
    }

    /// A bare connection.
    pub(crate) async fn connect(&self, to: SocketAddr) -> Result<TcpStream, ConnectError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await;
        let connected = connected.map_err(|_| ConnectError::TimedOut);
        match connected.and_then(|connected| connected.map_err(|error| ConnectError::Tcp(Arc::new(error)))) {
            Ok(stream) => {
                self.metrics.opened.inc();
                let _ = stream.set_nodelay(true);
                Ok(stream)
            }
            Err(error) => {
                self.metrics.failed.inc();
                Err(error)
            }
        }
    }
}

/// Those that nobody has used for a while.
fn taken_out<T>(idle: &Mutex<Vec<(T, Instant)>>) -> Vec<(T, Instant)> {
    let mut idle = idle.lock();
    let (kept, old) = std::mem::take(&mut *idle).into_iter().partition(|(_, since)| since.elapsed() < IDLE_TIMEOUT);
    *idle = kept;
    old
}

/// The request, if none of it was written. A connection that was just made and takes nothing has failed.
fn unsent(mut error: TrySendError<Request<RequestBody>>, is_fresh: bool) -> Result<Request<RequestBody>, Failure> {
    match error.take_message() {
        Some(request) if !is_fresh => Ok(request),
        Some(request) => Err(Failure::Connect(Box::new(request), ConnectError::Http(Arc::new(error.into_error())))),
        None => Err(Failure::Exchange(error.into_error())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::task::coop::{consume_budget, has_budget_remaining};

    use super::*;

    #[tokio::test]
    async fn security_what_is_said_unasked_is_heard_at_the_end_of_a_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut endpoint, _) = listener.accept().await.unwrap();
        let mut stream = Stream::Plain(stream);
        assert!(is_silent(&mut stream));
        endpoint.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        if let Stream::Plain(stream) = &stream {
            stream.readable().await.unwrap();
        }
        while has_budget_remaining() {
            consume_budget().await;
        }
        assert!(!is_silent(&mut stream));
    }
}
