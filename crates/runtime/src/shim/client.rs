//! The runtime's end of a shim's socket.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::protocol::{self, Ended, Request, Response, take_frame};

/// A shim answers in milliseconds; starting a container on a busy node may take longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(crate) struct ShimClient {
    socket: PathBuf,
}

/// A request that keeps its connection: an exec, an attach, a watch.
pub(crate) struct Session {
    stream: UnixStream,
    pub(crate) response: Response,
    pub(crate) fds: Vec<OwnedFd>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShimError {
    /// The shim is there and says no.
    #[error("{0}")]
    Refused(String),
    #[error("shim at {socket}: {source}")]
    Unreachable { socket: PathBuf, source: io::Error },
}

impl ShimError {
    /// Nobody listens at the socket.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Refused(_) => false,
            Self::Unreachable { source, .. } => {
                matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
            }
        }
    }
}

impl From<ShimError> for crate::error::Error {
    fn from(error: ShimError) -> Self {
        Self::Shim(error.to_string())
    }
}

impl ShimClient {
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_path_buf() }
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Response, ShimError> {
        self.open(request, Vec::new()).await.map(|session| session.response)
    }

    /// Sends a request with descriptors (which are closed here afterwards) and keeps the connection.
    pub(crate) async fn open(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Session, ShimError> {
        let socket = self.socket.clone();
        let exchange = move || -> io::Result<Session> {
            let stream = UnixStream::connect(&socket)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
            protocol::send(&stream, &request, &borrowed)?;
            let mut received = Vec::new();
            let response = protocol::receive(&stream, &mut received)?;
            Ok(Session { stream, response, fds: received })
        };
        let session = tokio::task::spawn_blocking(exchange)
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|source| ShimError::Unreachable { socket: self.socket.clone(), source })?;
        match session.response {
            Response::Failed { message } => Err(ShimError::Refused(message)),
            _ => Ok(session),
        }
    }
}

impl Session {
    /// The events that follow on this connection.
    pub(crate) fn events(self) -> io::Result<Events> {
        self.stream.set_nonblocking(true)?;
        Ok(Events { stream: tokio::net::UnixStream::from_std(self.stream)?, buffer: Vec::new() })
    }
}

pub(crate) struct Events {
    stream: tokio::net::UnixStream,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; none when the shim is gone.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Ended>> {
        loop {
            if let Some(event) = take_frame(&mut self.buffer)? {
                return Ok(Some(event));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}
