//! What HTTP/2 writes in one turn of its task, sent together.
//!
//! Every frame of data is written and flushed by itself, so that each would be a TLS record and a system call: for the
//! many small frames of watches on one connection, and for lists, where a full frame and its header take two records.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Four full records: as much as rustls takes in one go.
const FULL: usize = 64 * 1024;
/// Whoever writes this much at once will write more.
const LARGE: usize = 8 * 1024;
/// More than a frame of the usual size: it fills records by itself and is not worth a copy.
const WHOLE: usize = 24 * 1024;

/// A stream under an HTTP/2 connection. A flush after a write is put off to the next turn of the task, which is asked
/// for there and then: others who are ready write first. This relies on a connection that flushes in every turn, as
/// those of `h2` do; nothing else may be put on it.
pub struct Gathered<S> {
    stream: S,
    /// Written by the connection; up to `sent` it is on its way.
    held: Vec<u8>,
    sent: usize,
    /// Written to since the last flush.
    fresh: bool,
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, held: Vec::new(), sent: 0, fresh: false }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.held.len() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(context, &self.held[self.sent..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        // Connections are idle most of the time and should hold nothing then.
        self.held = Vec::new();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Takes what fits.
    fn hold(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(FULL - self.held.len());
        if data.len() >= LARGE {
            self.held.reserve_exact(FULL - self.held.len());
        }
        self.held.extend_from_slice(&data[..taken]);
        self.fresh = true;
        taken
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let is_whole = parts.iter().map(|part| part.len()).sum::<usize>() >= WHOLE;
        if self.held.len() == FULL || is_whole {
            ready!(self.poll_send(context))?;
        }
        if is_whole {
            return Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        }
        Poll::Ready(Ok(parts.iter().map(|part| self.hold(part)).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.fresh) {
            context.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// Takes so many bytes a write and so many writes a turn.
    #[derive(Default)]
    struct Slow {
        writes: Vec<Vec<u8>>,
        each: usize,
        turns: usize,
        flushed: usize,
        closed: bool,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
            if self.turns == 0 {
                return Poll::Pending;
            }
            self.turns -= 1;
            let taken = data.len().min(self.each);
            self.writes.push(data[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushed += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.closed = true;
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(stream: &mut Gathered<Slow>, context: &mut Context<'_>, data: &[u8]) -> usize {
        match Pin::new(stream).poll_write_vectored(context, &[IoSlice::new(&data[..1]), IoSlice::new(&data[1..])]) {
            Poll::Ready(taken) => taken.unwrap(),
            Poll::Pending => 0,
        }
    }

    #[test]
    fn frames_of_one_turn_leave_together_in_the_next() {
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut context = Context::from_waker(&waker);
        let mut stream = Gathered::new(Slow { each: usize::MAX, turns: 9, ..Slow::default() });
        for frame in [b"one", b"two"] {
            assert_eq!(write(&mut stream, &mut context, frame), 3);
            assert!(Pin::new(&mut stream).poll_flush(&mut context).is_ready());
        }
        assert!(stream.stream.writes.is_empty());
        assert_eq!(woken.0.load(Ordering::Relaxed), 2, "the next turn is asked for");
        assert!(Pin::new(&mut stream).poll_flush(&mut context).is_ready());
        assert_eq!((stream.stream.writes.concat(), stream.stream.flushed), (b"onetwo".to_vec(), 1));
        assert_eq!(woken.0.load(Ordering::Relaxed), 2, "an idle connection rests");
        assert_eq!(stream.held.capacity(), 0);

        write(&mut stream, &mut context, b"end");
        assert!(Pin::new(&mut stream).poll_shutdown(&mut context).is_ready());
        assert_eq!((stream.stream.writes.concat(), stream.stream.closed), (b"onetwoend".to_vec(), true));
    }

    #[test]
    fn a_full_buffer_waits_for_the_stream_and_loses_nothing() {
        let waker = Arc::new(Woken::default()).into();
        let mut context = Context::from_waker(&waker);
        let mut stream = Gathered::new(Slow { each: 50_000, turns: 1, ..Slow::default() });
        let data: Vec<u8> = (0..FULL + 9).map(|n| n as u8).collect();
        for frame in data[..FULL].chunks(16 * 1024) {
            assert_eq!(write(&mut stream, &mut context, frame), frame.len());
        }
        assert_eq!(write(&mut stream, &mut context, &data[FULL..]), 0, "one part was taken, the rest was not");
        stream.stream.turns = 9;
        assert_eq!(write(&mut stream, &mut context, &data[FULL..]), 9);
        assert!(Pin::new(&mut stream).poll_flush(&mut context).is_ready());
        assert!(Pin::new(&mut stream).poll_flush(&mut context).is_ready());
        assert_eq!(stream.stream.writes.concat(), data);
    }

    #[test]
    fn what_fills_records_by_itself_is_not_copied() {
        let waker = Arc::new(Woken::default()).into();
        let mut context = Context::from_waker(&waker);
        let mut stream = Gathered::new(Slow { each: usize::MAX, turns: 9, ..Slow::default() });
        let data = [7; WHOLE];
        assert_eq!(write(&mut stream, &mut context, b"before"), 6);
        // The stream takes the first part only.
        assert_eq!(write(&mut stream, &mut context, &data), 1);
        assert_eq!(write(&mut stream, &mut context, &data[1..]), WHOLE - 1, "less than that is held");
        assert_eq!(stream.stream.writes, [b"before".to_vec(), vec![7]]);
        assert!(Pin::new(&mut stream).poll_shutdown(&mut context).is_ready());
        assert_eq!(stream.stream.writes.concat().len(), 6 + WHOLE);
    }
}
