//! A connection that has a place, and how another runtime goes on with it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Place;

/// Fewer bytes than this at a time may be answers to pings, which anyone can ask for, and keep no connection.
const CONTENT: usize = 4 << 10;

/// A connection with its place, which is free again when the stream is dropped, by whoever has it by then.
pub struct Accepted {
    stream: TcpStream,
    place: Arc<Place>,
}

impl Accepted {
    pub(super) fn new(stream: TcpStream, place: Place) -> Self {
        Self { stream, place: Arc::new(place) }
    }

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
