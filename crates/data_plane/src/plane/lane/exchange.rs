//! One request and its answer: what the client still sends, what the endpoint says, and how long either may take.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use tls::Work;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::answer::{self, Asked};
use super::buffer::{Buffer, Size};
use super::framing::Framing;
use super::request::{Logged, Taken};
use super::{Lane, scratch};
use crate::plane::access_log::Entry;
use crate::plane::body::Broken;
use crate::plane::forward::{TIMED_OUT, UNANSWERED, UNASKED, attempts};
use crate::plane::pool::Raw;
use crate::plane::request::Refusal;

/// A write that fails must have sent nothing, or the request could not go elsewhere. One of several records of TLS may have sent some of
/// them; of a single one that is not whole nobody can read anything.
const MAX_FIRST: usize = 16 << 10;

/// What becomes of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It waits for the next request.
    Kept,
    Close,
    /// It ends, but the client may still be sending.
    Linger,
    /// There is nobody any more to whom the answer could be told, or its end.
    Abort,
}

/// Carries out a request whose head stands in the lane's buffer.
pub(super) async fn run(lane: &mut Lane<'_>, taken: Taken) -> Ended {
    let began = Instant::now();
    let mut exchange = Exchange::new(lane, &taken, began);
    let mut why = UNANSWERED;
    'endpoints: for endpoint in attempts(&taken.backend.endpoints) {
        loop {
            let raw = match exchange.connection(endpoint).await {
                Ok(raw) => raw,
                Err(Unconnected::Failed) => break,
                Err(Unconnected::Late) => {
                    why = TIMED_OUT;
                    break 'endpoints;
                }
                Err(Unconnected::Unwanted) => return Ended::Abort,
            };
            let is_reused = raw.is_reused;
            exchange.endpoint = Some(raw);
            match poll_fn(|context| exchange.poll(context)).await {
                Some(ended) => return ended,
                // Nothing of it was sent: another connection can have it.
                None if is_reused => {}
                None => break,
            }
        }
    }
    exchange.refuse(why);
    poll_fn(|context| exchange.poll(context)).await.unwrap_or(Ended::Abort)
}

struct Exchange<'l, 'a> {
    lane: &'l mut Lane<'a>,
    taken: &'l Taken,
    work: Work,
    began: Instant,
    /// The endpoint has to begin its answer by then.
    until: Instant,
    /// Until everything was read, and nothing is left to be sent.
    endpoint: Option<Raw>,
    upload: Upload,
    answer: Buffer,
    /// The first so many bytes of the answer's buffer can go to the client.
    ready: usize,
    is_flushed: bool,
    stage: Stage,
    /// The client's connection ends with the answer.
    is_last: bool,
}

/// What goes to the endpoint.
struct Upload {
    /// The first so many bytes of the client's buffer.
    ready: usize,
    /// Bytes that the client has not sent yet.
    left: u64,
    has_begun: bool,
    is_flushed: bool,
    /// The endpoint takes no more.
    has_failed: bool,
    /// Since when the client has sent nothing.
    waiting: Option<Instant>,
}

enum Stage {
    Head,
    Body {
        framing: Framing,
        is_kept: bool,
    },
    /// Everything was read.
    Over,
}

/// Why there is no connection to an endpoint.
enum Unconnected {
    Failed,
    Late,
    /// The client has left meanwhile.
    Unwanted,
}

impl Upload {
    fn is_done(&self) -> bool {
        self.ready == 0 && self.left == 0 && self.is_flushed
    }

    /// How many bytes are written next.
    fn piece(&self) -> usize {
        if self.has_begun { self.ready } else { self.ready.min(MAX_FIRST) }
    }
}

impl<'l, 'a> Exchange<'l, 'a> {
    fn new(lane: &'l mut Lane<'a>, taken: &'l Taken, began: Instant) -> Self {
        let at_hand = (lane.input.unread().len() - taken.head).min(usize::try_from(taken.body).unwrap_or(usize::MAX));
        let upload = Upload {
            ready: taken.head + at_hand,
            left: taken.body - at_hand as u64,
            has_begun: false,
            is_flushed: true,
            has_failed: false,
            waiting: None,
        };
        let route = &taken.route;
        let until = began + route.backend_timeout.unwrap_or(lane.plane.limits.answer);
        let until = route.timeout.map_or(until, |timeout| until.min(began + timeout));
        let (work, answer) = (lane.place.occupy(), Buffer::default());
        let (endpoint, stage) = (None, Stage::Head);
        Self {
            lane,
            taken,
            work,
            began,
            until,
            endpoint,
            upload,
            answer,
            ready: 0,
            is_flushed: true,
            stage,
            is_last: false,
        }
    }

    /// One that waits, or a new one.
    async fn connection(&mut self, endpoint: SocketAddr) -> Result<Raw, Unconnected> {
        let (plane, taken) = (self.lane.plane, self.taken);
        let backend = &taken.backend;
        let pool = plane.pool(self.lane.arrival.turn.worker);
        if let Some(raw) = pool.idle_raw(endpoint, backend) {
            return Ok(raw);
        }
        let mut connecting = Box::pin(pool.connect_raw(endpoint, backend));
        poll_fn(|context| match connecting.as_mut().poll(context) {
            Poll::Ready(Ok(raw)) => Poll::Ready(Ok(raw)),
            Poll::Ready(Err(error)) => {
                tracing::debug!(%endpoint, backend = backend.name, %error, "endpoint not reached");
                Poll::Ready(Err(Unconnected::Failed))
            }
            Poll::Pending if self.is_client_gone(context) => Poll::Ready(Err(Unconnected::Unwanted)),
            Poll::Pending => self.lane.timer.poll(context, self.until).map(|()| Err(Unconnected::Late)),
        })
        .await
    }

    /// Takes what steps can be taken. None, if the endpoint has taken nothing and this can begin anew.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Ended>> {
        loop {
            match self.poll_upload(context) {
                Ok(()) => {}
                Err(Unsent::Endpoint) if !self.upload.has_begun => {
                    self.endpoint = None;
                    return Poll::Ready(None);
                }
                // It may have answered before.
                Err(Unsent::Endpoint) => self.upload.has_failed = true,
                Err(Unsent::Client(broken)) => {
                    if let Some(ended) = self.give_up(broken.refusal()) {
                        return Poll::Ready(Some(ended));
                    }
                }
            }
            if let Poll::Ready(ended) = self.poll_answer(context) {
                return Poll::Ready(Some(ended));
            }
            if self.is_client_gone(context) {
                return Poll::Ready(Some(Ended::Abort));
            }
            let Some((deadline, refusal)) = self.deadline() else { return Poll::Pending };
            std::task::ready!(self.lane.timer.poll(context, deadline));
            if let Some(ended) = self.give_up(refusal) {
                return Poll::Ready(Some(ended));
            }
        }
    }
}

/// Why nothing more of a request is sent.
enum Unsent {
    Endpoint,
    Client(Broken),
}

impl Exchange<'_, '_> {
    /// Sends what the client has sent, and reads more.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Result<(), Unsent> {
        let Self { lane, upload, endpoint, .. } = self;
        let Some(raw) = endpoint.as_mut().filter(|_| !upload.has_failed) else { return Ok(()) };
        loop {
            if upload.ready > 0 {
                let piece = &lane.input.unread()[..upload.piece()];
                match Pin::new(&mut raw.stream).poll_write(context, piece) {
                    Poll::Ready(Ok(length @ 1..)) => {
                        lane.input.consume(length);
                        upload.ready -= length;
                        (upload.has_begun, upload.is_flushed) = (true, false);
                    }
                    Poll::Ready(_) => return Err(Unsent::Endpoint),
                    Poll::Pending => return Ok(()),
                }
            } else if !upload.is_flushed {
                match Pin::new(&mut raw.stream).poll_flush(context) {
                    Poll::Ready(Ok(())) => upload.is_flushed = true,
                    Poll::Ready(Err(_)) => return Err(Unsent::Endpoint),
                    Poll::Pending => return Ok(()),
                }
            } else if upload.left == 0 {
                return Ok(());
            } else {
                match lane.input.poll_read(context, &mut lane.stream, Size::Large) {
                    Poll::Ready(Ok(length @ 1..)) => {
                        upload.waiting = None;
                        let of_body = usize::try_from(upload.left).unwrap_or(usize::MAX).min(length);
                        (upload.ready, upload.left) = (of_body, upload.left - of_body as u64);
                    }
                    Poll::Ready(_) => return Err(Unsent::Client(Broken::Client)),
                    Poll::Pending => {
                        upload.waiting.get_or_insert_with(Instant::now);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Sends what there is of the answer, and reads more.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        loop {
            if self.ready > 0 {
                match Pin::new(&mut self.lane.stream).poll_write(context, &self.answer.unread()[..self.ready]) {
                    Poll::Ready(Ok(length @ 1..)) => {
                        self.answer.consume(length);
                        self.ready -= length;
                        self.is_flushed = false;
                        self.work.offer(false);
                    }
                    Poll::Ready(_) => return Poll::Ready(Ended::Abort),
                    Poll::Pending => {
                        self.work.offer(true);
                        return Poll::Pending;
                    }
                }
            } else if !self.is_flushed {
                match Pin::new(&mut self.lane.stream).poll_flush(context) {
                    Poll::Ready(Ok(())) => {
                        self.is_flushed = true;
                        self.work.offer(false);
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(Ended::Abort),
                    Poll::Pending => {
                        self.work.offer(true);
                        return Poll::Pending;
                    }
                }
            } else if matches!(self.stage, Stage::Over) {
                return Poll::Ready(self.ended());
            } else {
                let Some(raw) = &mut self.endpoint else { return Poll::Ready(Ended::Abort) };
                let ended = match self.answer.poll_read(context, &mut raw.stream, Size::Large) {
                    Poll::Ready(Ok(0)) => self.closed(true),
                    Poll::Ready(Ok(_)) => self.advance(),
                    Poll::Ready(Err(_)) => self.closed(false),
                    Poll::Pending => return Poll::Pending,
                };
                if let Some(ended) = ended {
                    return Poll::Ready(ended);
                }
            }
        }
    }

    /// Looks at what the endpoint has sent.
    fn advance(&mut self) -> Option<Ended> {
        match self.stage {
            Stage::Head => loop {
                if let ControlFlow::Break(ended) = scratch(|out| self.begin_answer(out)) {
                    return ended;
                }
            },
            Stage::Body { .. } => self.pass(&[]),
            Stage::Over => None,
        }
    }

    /// Goes on if there may be another head.
    fn begin_answer(&mut self, out: &mut Vec<u8>) -> ControlFlow<Option<Ended>> {
        let is_last = !self.taken.is_kept || self.lane.has_to_leave() || !self.upload.is_done();
        let asked = Asked { is_head: self.taken.is_head, is_last };
        let head = match answer::read(self.answer.unread(), asked, out) {
            Ok(Some(head)) => head,
            Ok(None) if self.answer.has_room() => return ControlFlow::Break(None),
            Ok(None) => return ControlFlow::Break(self.give_up(UNANSWERED)),
            Err(error) => {
                tracing::debug!(route = self.taken.route.name, %error, "no answer from a backend");
                return ControlFlow::Break(self.give_up(UNANSWERED));
            }
        };
        self.answer.consume(head.length);
        match head.code {
            101 => ControlFlow::Break(self.give_up(UNASKED)),
            ..200 => ControlFlow::Continue(()),
            code => {
                self.note(code);
                self.is_last = is_last;
                self.stage = Stage::Body { framing: head.framing, is_kept: head.is_kept };
                ControlFlow::Break(self.pass(out))
            }
        }
    }

    /// Makes ready what was read of the body, behind the head if it is the first.
    fn pass(&mut self, head: &[u8]) -> Option<Ended> {
        let Stage::Body { framing, is_kept } = &mut self.stage else { return None };
        let passed = match framing.pass(self.answer.unread_mut()) {
            Ok(passed) => passed,
            Err(error) => {
                tracing::debug!(route = self.taken.route.name, %error, "answer broken off");
                return Some(Ended::Abort);
            }
        };
        let is_kept = *is_kept && !passed.has_excess && self.upload.is_done();
        self.answer.truncate(passed.length);
        let fits = match framing {
            Framing::UntilClose if passed.length > 0 => {
                self.answer.append(b"\r\n") && self.answer.prepend(format!("{:x}\r\n", passed.length).as_bytes())
            }
            _ => true,
        };
        if !fits || !self.answer.prepend(head) {
            return Some(Ended::Abort);
        }
        self.ready = self.answer.unread().len();
        if passed.is_over {
            self.finish(is_kept);
        }
        None
    }

    /// The endpoint says no more; `is_end` if it has not broken off.
    fn closed(&mut self, is_end: bool) -> Option<Ended> {
        match &self.stage {
            Stage::Head => {
                tracing::debug!(route = self.taken.route.name, is_end, "no answer from a backend");
                self.give_up(UNANSWERED)
            }
            // A reset of which writing was told already reads like an end.
            Stage::Body { framing: Framing::UntilClose, .. } if is_end && !self.upload.has_failed => {
                let is_told = self.answer.append(b"0\r\n\r\n");
                self.ready = self.answer.unread().len();
                self.finish(false);
                (!is_told).then_some(Ended::Abort)
            }
            // The client must not take it for the end.
            _ => Some(Ended::Abort),
        }
    }

    /// All of the answer was read.
    fn finish(&mut self, is_kept: bool) {
        self.stage = Stage::Over;
        if let Some(raw) = self.endpoint.take().filter(|_| is_kept) {
            raw.give_back();
        }
    }

    /// Answers in place of the endpoint, if that has not begun to.
    fn give_up(&mut self, refusal: Refusal) -> Option<Ended> {
        match self.stage {
            Stage::Head => {
                self.refuse(refusal);
                None
            }
            _ => Some(Ended::Abort),
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        (self.endpoint, self.stage) = (None, Stage::Over);
        self.lane.input.consume(std::mem::take(&mut self.upload.ready));
        self.is_last = !self.taken.is_kept || self.lane.has_to_leave() || self.upload.left > 0;
        let asked = Asked { is_head: self.taken.is_head, is_last: self.is_last };
        self.answer = Buffer::default();
        scratch(|out| {
            answer::write_refusal(refusal, asked, out);
            self.answer.prepend(out);
        });
        self.ready = self.answer.unread().len();
        self.note(refusal.0.as_u16());
    }

    fn ended(&self) -> Ended {
        match (self.is_last, self.upload.left) {
            (false, _) => Ended::Kept,
            (true, 0) => Ended::Close,
            (true, _) => Ended::Linger,
        }
    }

    /// Whether the client has left, as far as that can be known while it has nothing to say.
    fn is_client_gone(&mut self, context: &mut Context<'_>) -> bool {
        if self.upload.left > 0 || !self.lane.input.is_empty() {
            return false;
        }
        let lane = &mut *self.lane;
        let read = lane.input.poll_read(context, &mut lane.stream, Size::Small);
        matches!(read, Poll::Ready(Ok(0) | Err(_)))
    }

    /// When it has taken too long, and what is said then.
    fn deadline(&self) -> Option<(Instant, Refusal)> {
        let answer = match &self.stage {
            Stage::Head => Some(self.until),
            Stage::Body { .. } => self.taken.route.timeout.map(|timeout| self.began + timeout),
            Stage::Over => return None,
        };
        let silence = self.upload.waiting.map(|since| since + self.lane.plane.limits.body_silence);
        let deadlines = [(answer, TIMED_OUT), (silence, Broken::Slow.refusal())];
        let deadlines = deadlines.into_iter().filter_map(|(at, refusal)| Some((at?, refusal)));
        deadlines.min_by_key(|(at, _)| *at)
    }

    /// Counts the answer, and logs it.
    fn note(&self, code: u16) {
        let (plane, route, took) = (self.lane.plane, &self.taken.route, self.began.elapsed());
        route.metrics.count(&plane.metrics, &route.name, code, took);
        if let Some(Logged { method, host, path, agent }) = &self.taken.logged {
            let (client, route, seconds) = (self.lane.arrival.client, route.name.as_str(), took.as_secs_f64());
            plane.log.write(&Entry { client, method, host, path, agent, route, code, seconds });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_piece_of_a_request_is_one_record_at_most() {
        for (ready, has_begun, expected) in
            [(100, false, 100), (MAX_FIRST + 1, false, MAX_FIRST), (MAX_FIRST + 1, true, MAX_FIRST + 1)]
        {
            let upload = Upload { ready, left: 0, has_begun, is_flushed: true, has_failed: false, waiting: None };
            assert_eq!(upload.piece(), expected);
        }
    }
}
