//! The runtime's end of a shim's socket.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

use super::protocol::{self, Ended, Request, Response, take_frame};

/// A shim answers in milliseconds; starting a container on a busy node may take longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub(crate) struct ShimClient {
    socket: PathBuf,
    /// Held by whoever asks what users may ask at any time, as often as they like.
    turn: Arc<Mutex<()>>,
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
        Self { socket: socket.to_path_buf(), turn: Arc::default() }
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Response, ShimError> {
        self.open(request, Vec::new()).await.map(|session| session.response)
    }

    /// Sends a request with descriptors (which are closed here afterwards) and keeps the connection.
    ///
    /// Whoever waits for an answer has a thread, and all pods share those. A shim does one thing after the other: where many ask for
    /// the same kind of thing, one of them waits for it and the others for their turn.
    pub(crate) async fn open(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Session, ShimError> {
        let turn = match request {
            Request::Exec { .. } | Request::Attach { .. } | Request::Resize { .. } => {
                Some(self.turn.clone().lock_owned().await)
            }
            _ => None,
        };
        let socket = self.socket.clone();
        let exchange = move || -> io::Result<Session> {
            // To the end of the exchange, which goes on when nobody waits for it any more.
            let _turn = turn;
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A shim that is held up answers nobody. Those who ask it for a stream take one thread, and it is still told to end things.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn security_a_shim_that_never_answers_takes_one_thread_for_streams() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("shim.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let shim = ShimClient::new(&socket);
        let asked = || protocol::receive::<Request>(&listener.accept().unwrap().0, &mut Vec::new()).unwrap();
        let ask = |request: Request| {
            let shim = shim.clone();
            tokio::spawn(async move { shim.call(request).await.is_ok() })
        };
        let exec = || Request::Exec { id: "c".into(), args: Vec::new(), tty: false };
        let first = ask(exec());
        let (unanswered, _) = listener.accept().unwrap();
        assert!(matches!(protocol::receive(&unanswered, &mut Vec::new()).unwrap(), Request::Exec { .. }));
        let second = ask(exec());
        let signal = ask(Request::Signal { id: "c".into(), signal: libc::SIGKILL });
        assert!(matches!(asked(), Request::Signal { .. }));
        assert!(!signal.await.unwrap() && !second.is_finished());
        // The first one is given up: the second has its turn.
        drop(unanswered);
        assert!(!first.await.unwrap());
        assert!(matches!(asked(), Request::Exec { .. }));
        assert!(!second.await.unwrap());
    }
}
