//! Bodies on their way through: never gathered, bounded in time and size, and given back while nobody has begun to read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::pool::Lease;
use super::request::Refusal;

/// Why the body of a request ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The client broke off.
    Client,
    /// The client sent nothing for too long.
    Slow,
    TooLarge,
}

impl Broken {
    /// What the client is told, after which its connection ends.
    pub(super) fn refusal(self) -> Refusal {
        match self {
            Self::Client => (StatusCode::BAD_REQUEST, "the client broke off"),
            Self::Slow => (StatusCode::REQUEST_TIMEOUT, "the client sent nothing for too long"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
        }
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.refusal().1)
    }
}

impl std::error::Error for Broken {}

/// The body of a request, which several attempts may be given in turn. Only the first frame that is taken settles whose it is.
#[derive(Clone)]
pub(crate) struct RequestBody(Option<Arc<Mutex<Reading>>>);

struct Reading {
    body: Option<Source>,
    has_begun: bool,
    left: u64,
    broken: Option<Broken>,
    silence: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

enum Source {
    Client(Incoming),
    Whole(Full<Bytes>),
}

impl Source {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self {
            Self::Client(body) => Pin::new(body).poll_frame(context).map_err(|_| Broken::Client),
            Self::Whole(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Whole(body) => body.size_hint(),
        }
    }
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, limit: Option<u64>, silence: Duration) -> Self {
        Self::of(Source::Client(body), limit.unwrap_or(u64::MAX), silence)
    }

    /// One that is all there already.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::of(Source::Whole(Full::new(bytes)), u64::MAX, Duration::ZERO)
    }

    /// Most requests have none, and need nothing kept for it.
    fn of(body: Source, left: u64, silence: Duration) -> Self {
        let is_some = !body.is_end_stream();
        let reading = || Reading { body: Some(body), has_begun: false, left, broken: None, silence, deadline: None };
        Self(is_some.then(|| Arc::new(Mutex::new(reading()))))
    }

    /// Whether any of it was given away.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.as_ref().is_some_and(|reading| reading.lock().has_begun)
    }

    /// Whether all of it was given away.
    pub(crate) fn has_ended(&self) -> bool {
        let is_over = |reading: &Arc<Mutex<Reading>>| reading.lock().body.as_ref().is_none_or(Source::is_end_stream);
        self.0.as_ref().is_none_or(is_over)
    }

    pub(crate) fn broken(&self) -> Option<Broken> {
        self.0.as_ref().and_then(|reading| reading.lock().broken)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(reading) = &self.0 else { return Poll::Ready(None) };
        let mut reading = reading.lock();
        let reading = &mut *reading;
        reading.has_begun = true;
        let Some(body) = reading.body.as_mut() else { return Poll::Ready(None) };
        let broken = match body.poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                reading.deadline = None;
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match reading.left.checked_sub(length) {
                    Some(left) => {
                        reading.left = left;
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    None => Broken::TooLarge,
                }
            }
            Poll::Ready(None) => {
                reading.body = None;
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(broken))) => broken,
            Poll::Pending => {
                let silence = reading.silence;
                let deadline = reading.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(silence)));
                std::task::ready!(deadline.as_mut().poll(context));
                Broken::Slow
            }
        };
        reading.body = None;
        reading.broken = Some(broken);
        Poll::Ready(Some(Err(broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = |reading: &Arc<Mutex<Reading>>| reading.lock().body.as_ref().map(Source::size_hint);
        self.0.as_ref().and_then(hint).unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

/// The body of an answer: our own words, or a backend's, whose connection is used again when all was read.
pub(crate) enum AnswerBody {
    Text(Full<Bytes>),
    Backend { body: Incoming, lease: Option<Lease>, deadline: Option<Pin<Box<Sleep>>> },
}

impl AnswerBody {
    pub(crate) fn backend(body: Incoming, lease: Option<Lease>, deadline: Option<Instant>) -> Self {
        // Nothing will be read of a body that has ended.
        let lease = match (lease, body.is_end_stream()) {
            (Some(lease), true) => {
                lease.give_back();
                None
            }
            (lease, _) => lease,
        };
        Self::Backend { body, lease, deadline: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))) }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = client::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, client::BoxError>>> {
        match self.get_mut() {
            Self::Text(text) => Pin::new(text).poll_frame(context).map_err(|never| match never {}),
            Self::Backend { body, lease, deadline } => {
                if let Some(deadline) = deadline
                    && deadline.as_mut().poll(context).is_ready()
                {
                    *lease = None;
                    return Poll::Ready(Some(Err("the exchange took too long".into())));
                }
                let mut look = |context: &mut Context<'_>| Pin::new(&mut *body).poll_frame(context);
                let mut frame = match lease {
                    Some(lease) => lease.poll(context, &mut look),
                    None => look(context),
                };
                if frame.is_pending()
                    && let Some(lease) = lease
                {
                    lease.drive(context);
                    frame = lease.poll(context, look);
                }
                let frame = std::task::ready!(frame);
                let has_ended = frame.is_none() || body.is_end_stream();
                if matches!(frame, None | Some(Ok(_)))
                    && has_ended
                    && let Some(lease) = lease.take()
                {
                    lease.give_back();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_end_stream(),
            Self::Backend { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Backend { body, .. } => body.size_hint(),
        }
    }
}
