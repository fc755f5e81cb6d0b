//! The lane: plain requests of HTTP/1.1, carried from one socket to the other by one task.
//!
//! A connection that does not begin with HTTP/2 begins here. Each of its requests is read into a buffer and judged ([`request`]): what is
//! plain gets its new head in the place of the old one and is written to an endpoint from that buffer; the answer comes into another,
//! has its head put in order ([`answer`]) and its end watched ([`framing`]), and goes to the client ([`exchange`]). With the first request
//! that is not plain the connection leaves the lane for good, with all that was read of it: hyper and
//! [`forward`](super::forward) have everything else, refusals among it. Rules are the same ones that they have.
//!
//! hyper has two machines for what is one exchange here, with channels and a timer for each request: this is for what it costs.

mod answer;
mod buffer;
#[cfg(test)]
mod damage;
mod exchange;
mod framing;
mod request;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use httparse::Header;
use tls::{Place, Stream};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::DataPlane;
use super::forward::Arrival;
use super::streams::Replayed;
use buffer::{Buffer, Size};
use exchange::Ended;
use request::{Decision, Taken};

/// A client that was answered before it had sent everything may go on so long, so that it reads the answer before the end.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a connection. What comes back has to be served by others, from its next request on.
pub(super) async fn serve(
    plane: &DataPlane,
    place: &Arc<Place>,
    stream: Box<dyn Stream>,
    arrival: &Arrival,
    closing: &CancellationToken,
) -> Option<Replayed<Box<dyn Stream>>> {
    let has_to_leave = AtomicBool::new(false);
    let (input, timer) = (Buffer::default(), Timer::default());
    let mut lane = Lane { plane, place, arrival, has_to_leave: &has_to_leave, stream, input, timer };
    match place.attend(lane.run(), &has_to_leave, closing).await {
        Some(Finished::HandOver) => {
            let unread = Bytes::copy_from_slice(lane.input.unread());
            Some(Replayed::new(unread, lane.stream))
        }
        Some(Finished::Closed) | None => None,
    }
}

/// A connection of a client.
struct Lane<'a> {
    plane: &'a DataPlane,
    place: &'a Arc<Place>,
    arrival: &'a Arrival,
    has_to_leave: &'a AtomicBool,
    stream: Box<dyn Stream>,
    /// What it has sent and nobody has taken yet.
    input: Buffer,
    timer: Timer,
}

enum Finished {
    HandOver,
    Closed,
}

impl Lane<'_> {
    async fn run(&mut self) -> Finished {
        loop {
            let ended = match poll_fn(|context| self.poll_request(context)).await {
                Next::HandOver => return Finished::HandOver,
                Next::Gone => Ended::Close,
                Next::Taken(taken) => exchange::run(self, taken).await,
            };
            match ended {
                Ended::Kept => {}
                Ended::Abort => return Finished::Closed,
                Ended::Linger => {
                    Box::pin(self.linger()).await;
                    return Finished::Closed;
                }
                Ended::Close => {
                    // Who is gone does not hear it.
                    let _gone = self.stream.shutdown().await;
                    return Finished::Closed;
                }
            }
        }
    }

    /// The next request.
    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        loop {
            if !self.input.is_empty() {
                match request::decide(&mut self.input, self.plane, self.arrival) {
                    Decision::Wait => {}
                    Decision::HandOver => return Poll::Ready(Next::HandOver),
                    Decision::Take(taken) => return Poll::Ready(Next::Taken(taken)),
                }
            }
            match self.input.poll_read(context, &mut self.stream, Size::Small) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Next::Gone),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending if self.input.is_empty() && self.has_to_leave() => return Poll::Ready(Next::Gone),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn has_to_leave(&self) -> bool {
        self.has_to_leave.load(Ordering::Relaxed)
    }

    /// Ends the connection, but not before what the client still sends would make it lose the answer.
    async fn linger(&mut self) {
        let (stream, input) = (&mut self.stream, &mut self.input);
        let rest = async {
            let _gone = stream.shutdown().await;
            poll_fn(|context| {
                loop {
                    input.truncate(0);
                    if let Ok(0) | Err(_) = ready!(input.poll_read(context, stream, Size::Small)) {
                        return Poll::Ready(());
                    }
                }
            })
            .await;
        };
        // However it ends, it has ended.
        let _ended = tokio::time::timeout(LINGER_TIMEOUT, rest).await;
    }
}

enum Next {
    Taken(Taken),
    HandOver,
    Gone,
}

/// A deadline that changes with each request, and a timer that is seldom set anew: it may go off early, and is set again then.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    fn poll(&mut self, context: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(context).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// Room for a head that is written and copied to its place at once.
fn scratch<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    thread_local! {
        static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut head = SCRATCH.take();
    head.clear();
    let done = work(&mut head);
    SCRATCH.set(head);
    done
}

/// Whether a header has a name, in any spelling.
fn is(header: &Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

fn line(out: &mut Vec<u8>, parts: [&[u8]; 4]) {
    parts.into_iter().for_each(|part| out.extend_from_slice(part));
}

fn write_length(out: &mut Vec<u8>, length: u64) {
    write!(out, "content-length: {length}\r\n").expect("a vector takes everything");
}
