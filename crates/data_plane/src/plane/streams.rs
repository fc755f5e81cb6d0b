//! Byte streams: one that begins with what was read before, and two that are joined.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Before a client has said whom it wants, it may say so much.
const MAX_HELLO: usize = 32 << 10;

/// A stream of which something was read already.
pub(crate) struct Replayed<S> {
    read: Bytes,
    stream: S,
}

impl<S> Replayed<S> {
    pub(crate) fn new(read: Bytes, stream: S) -> Self {
        Self { read, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.has_remaining() {
            let length = self.read.len().min(buffer.remaining());
            buffer.put_slice(&self.read.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replayed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
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

/// Reads a client's first words of TLS: the name it asks for, and the words.
pub(crate) async fn client_hello(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Option<String>, Bytes)> {
    let mut acceptor = rustls::server::Acceptor::default();
    let mut words = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = stream.read(&mut chunk).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        words.extend_from_slice(&chunk[..length]);
        let mut unread = &chunk[..length];
        while !unread.is_empty() {
            acceptor.read_tls(&mut unread)?;
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().map(str::to_owned);
                    return Ok((name, words.into()));
                }
                Ok(None) => {}
                Err((error, _)) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        if words.len() > MAX_HELLO {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Carries bytes both ways until both ends are done or one fails.
pub(crate) async fn copy(mut one: impl AsyncRead + AsyncWrite + Unpin, mut two: impl AsyncRead + AsyncWrite + Unpin) {
    if let Err(error) = tokio::io::copy_bidirectional(&mut one, &mut two).await {
        tracing::debug!(%error, "joined streams ended");
    }
}
