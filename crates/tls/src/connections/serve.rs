//! HTTP on one connection: requests are answered until the client leaves, is idle or has to make room.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Place;

/// A client that does not finish its TLS handshake is dropped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// From a connection's begin to the end of its first request's headers; upstream's `ReadHeaderTimeout`.
pub(super) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(32);
/// Between two requests; upstream's `IdleTimeout`.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// What a client that was told to leave may take for it, and how long what has begun may go on when the port closes.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests at a time on one connection of HTTP/2.
const MAX_STREAMS: u32 = 1000;
/// Requests that a client takes back before they are looked at, and that fail by its fault, before its connection ends
/// (CVE-2023-44487, CVE-2025-8671).
const MAX_PENDING_RESETS: usize = 20;
const MAX_ERROR_RESETS: usize = 1024;
/// Headers of one request, in which h2 also counts frames that continue them (CVE-2024-27316).
const MAX_HEADERS: u32 = 16 << 10;

/// What HTTP is spoken over. Boxed, it is compiled once, and not for each kind of stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// How [`Place::serve`] ends.
type Served<'a> = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send + 'a>>;
/// The answer to a request with everything in it boxed.
pub type Answered = Pin<Box<dyn Future<Output = Response<UnsyncBoxBody<Bytes, BoxError>>> + Send>>;

impl Place {
    /// Waits for a handshake, or for a whole exchange that is as short, not for ever.
    pub async fn handshake<T>(&self, handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => done?,
            () = self.this.evicted.notified() => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Has the connection count as being at work for as long as what comes back is held: its bytes pass through, and nobody here sees
    /// whether they are idle.
    pub fn occupy(self: &Arc<Self>) -> Work {
        Work::begin(self)
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
                Ok::<_, std::convert::Infallible>(response.map(|body| Answer { body, work }))
            }
        });
        let builder = builder(self.connections.buffer);
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let has_to_leave = AtomicBool::new(false);
        let served = poll_fn(|context| {
            if has_to_leave.load(Ordering::Relaxed) {
                has_to_leave.store(false, Ordering::Relaxed);
                connection.as_mut().graceful_shutdown();
            }
            connection.as_mut().poll(context)
        });
        self.attend(served, &has_to_leave, closing).await.unwrap_or(Ok(()))
    }

    /// Waits for a connection to end. When it is idle for too long or the port closes, `has_to_leave` is set, the connection is polled,
    /// and has some time to end; none comes back if it has not by then, or has to make room. It is at work while there is [`Work`].
    pub async fn attend<C: Future>(
        &self,
        connection: C,
        has_to_leave: &AtomicBool,
        closing: &CancellationToken,
    ) -> Option<C::Output> {
        let mut connection = pin!(connection);
        // Of this connection alone: each of its steps looks at it, under a lock that all others of the port would take, too.
        let closing = closing.child_token();
        let mut idle = pin!(self.idle());
        let (mut is_leaving, mut ending) = (false, false);
        let mut leave = pin!(tokio::time::sleep(Duration::MAX));
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return Some(ended),
                () = self.this.evicted.notified() => return None,
                () = idle.as_mut(), if !is_leaving => {
                    is_leaving = true;
                    has_to_leave.store(true, Ordering::Relaxed);
                    leave.as_mut().reset(Instant::now() + DRAIN_TIMEOUT);
                }
                () = closing.cancelled(), if !ending => {
                    (is_leaving, ending) = (true, true);
                    has_to_leave.store(true, Ordering::Relaxed);
                    leave.as_mut().reset(Instant::now() + CLOSE_TIMEOUT);
                }
                () = leave.as_mut(), if is_leaving => {
                    // A request that crossed our farewell is still answered.
                    if ending || !self.this.is_at_work(self.connections.now()) {
                        return None;
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

    /// As [`Self::serve`], for those who have everything in boxes of these types already.
    pub fn serve_any<'a>(
        self: Arc<Self>,
        stream: Box<dyn Stream>,
        closing: &'a CancellationToken,
        answer: Box<dyn Fn(Request<Incoming>) -> Answered + Send + Sync + 'a>,
    ) -> Served<'a> {
        Box::pin(self.serve(stream, closing, answer))
    }

    /// Returns when there was no request for too long.
    pub(super) async fn idle(&self) {
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

/// A request that is being answered, or something else that a connection is at work for.
pub struct Work {
    place: Arc<Place>,
    /// A piece of the answer was given away and nobody has come for the next.
    is_offered: bool,
}

impl Work {
    pub(super) fn begin(place: &Arc<Place>) -> Self {
        place.this.busy.fetch_add(1, Ordering::Relaxed);
        Self { place: place.clone(), is_offered: false }
    }

    /// The connection goes on as something else than HTTP.
    pub(super) fn for_good(&self) {
        self.place.this.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is the client's turn, to take a piece of the answer that is ready for it.
    pub fn offer(&mut self, is_offered: bool) {
        if std::mem::replace(&mut self.is_offered, is_offered) == is_offered {
            return;
        }
        let this = &self.place.this;
        this.moved.store(self.place.connections.now(), Ordering::Relaxed);
        match is_offered {
            true => this.offered.fetch_add(1, Ordering::Relaxed),
            false => this.offered.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.offer(false);
        let this = &self.place.this;
        this.since.store(self.place.connections.now(), Ordering::Relaxed);
        this.served.store(true, Ordering::Relaxed);
        this.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response: work until it was sent, unless its client does not take it.
pub(super) struct Answer<B> {
    pub(super) body: B,
    pub(super) work: Work,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.work.offer(false);
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.work.offer(matches!(frame, Poll::Ready(Some(Ok(_)))));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
