//! HTTP/1.1 to one server: kept connections, one exchange at a time on each, bounded answers, no redirects.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::service::NoAddress;

/// Answers larger than this are refused: more than twice what any object may have.
const MAX_ANSWER: usize = 8 << 20;
/// Connections kept for the next question; more are closed after use.
const MAX_IDLE: usize = 16;

pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// What happens to a request when a kept connection ends under it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It is sent again, even if the other side may have begun with it.
    Repeat,
    /// It is sent again only if it was certainly not sent before.
    Tell,
}

#[derive(Clone, Default)]
pub(crate) struct Connections {
    idle: Arc<Mutex<Vec<Sender>>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// The connection ended before there was an answer.
    #[error("{}", text(.0))]
    Broken(hyper::Error),
    #[error("context deadline exceeded")]
    Late,
    /// What was to be sent is no request.
    #[error(transparent)]
    Request(#[from] http::Error),
    /// There was one that did not end.
    #[error("{}", text(.0))]
    Cut(hyper::Error),
    #[error("the response is larger than {0} bytes")]
    Large(usize),
}

/// Why there is no connection. Texts are those of Go's HTTP client, which people and tests know.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("dial tcp {host}:{port}: connect: {}", io_text(source))]
    Dial { host: String, port: u16, source: std::io::Error },
    #[error(transparent)]
    Socket(std::io::Error),
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
    #[error("tls: {0}")]
    Tls(std::io::Error),
    #[error("{}", text(.0))]
    Http(hyper::Error),
    #[error(transparent)]
    Service(#[from] NoAddress),
    /// Whom to trust could not be found out.
    #[error("{0:#}")]
    Trust(Arc<anyhow::Error>),
}

impl Connections {
    /// Sends a request on a kept connection, or on one that `connect` makes, and reads the whole answer.
    pub(crate) async fn exchange<C, F>(
        &self,
        request: Request<Full<Bytes>>,
        connect: C,
    ) -> Result<Response<Bytes>, Problem>
    where
        C: Fn() -> F,
        F: Future<Output = Result<Sender, ConnectError>>,
    {
        self.exchange_up_to(MAX_ANSWER, request, connect).await
    }

    /// As [`Self::exchange`], with a limit of its own for the answer.
    pub(crate) async fn exchange_up_to<C, F>(
        &self,
        limit: usize,
        request: Request<Full<Bytes>>,
        connect: C,
    ) -> Result<Response<Bytes>, Problem>
    where
        C: Fn() -> F,
        F: Future<Output = Result<Sender, ConnectError>>,
    {
        let (mut sender, response) = self.open(request, Lost::Repeat, connect).await?;
        let (parts, body) = response.into_parts();
        let answer = read(body, limit).await?;
        if sender.ready().await.is_ok() {
            self.put_back(sender);
        }
        Ok(Response::from_parts(parts, answer))
    }

    /// As [`Self::exchange`], with the body of the answer still to come. The connection is the caller's until then.
    pub(crate) async fn open<C, F>(
        &self,
        request: Request<Full<Bytes>>,
        lost: Lost,
        connect: C,
    ) -> Result<(Sender, Response<Incoming>), Problem>
    where
        C: Fn() -> F,
        F: Future<Output = Result<Sender, ConnectError>>,
    {
        let anew = async || connect().await.map_err(Problem::from);
        match self.kept() {
            // The other side may have closed a kept connection just now: then a new one decides, once.
            Some(mut kept) => match kept.send_request(request.clone()).await {
                Ok(response) => Ok((kept, response)),
                Err(error) if error.is_canceled() || error.is_closed() => send(anew().await?, request).await,
                Err(error) if error.is_incomplete_message() && lost == Lost::Repeat => {
                    send(anew().await?, request).await
                }
                Err(error) => Err(Problem::Broken(error)),
            },
            None => send(anew().await?, request).await,
        }
    }

    /// Keeps a connection for the next question as soon as its answer has been read to the end.
    pub(crate) fn keep(&self, mut sender: Sender) {
        let connections = self.clone();
        tokio::spawn(FutureExt::boxed(async move {
            if sender.ready().await.is_ok() {
                connections.put_back(sender);
            }
        }));
    }

    fn put_back(&self, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }

    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }
}

async fn send(mut sender: Sender, request: Request<Full<Bytes>>) -> Result<(Sender, Response<Incoming>), Problem> {
    let sent = sender.send_request(request).await;
    sent.map(|response| (sender, response)).map_err(Problem::Broken)
}

async fn read(mut body: Incoming, limit: usize) -> Result<Bytes, Problem> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Problem::Cut)?;
        let Some(data) = frame.data_ref() else { continue };
        if kept.len() + data.len() > limit {
            return Err(Problem::Large(limit));
        }
        kept.extend_from_slice(data);
    }
    Ok(kept.freeze())
}

/// A new connection; with TLS, to the holder of a certificate for the given name.
pub(crate) async fn dial(host: &str, port: u16, tls: Option<(&TlsConnector, &str)>) -> Result<Sender, ConnectError> {
    let tcp = TcpStream::connect((host, port)).await.map_err(|source| ConnectError::Dial {
        host: host.to_owned(),
        port,
        source,
    })?;
    tcp.set_nodelay(true).map_err(ConnectError::Socket)?;
    let Some((connector, name)) = tls else { return handshake(Box::new(tcp)).await };
    let name = ServerName::try_from(name.to_owned())?;
    let tls = connector.connect(name, tcp).await.map_err(ConnectError::Tls)?;
    handshake(Box::new(tls)).await
}

async fn handshake(io: Box<dyn tls::Stream>) -> Result<Sender, ConnectError> {
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(ConnectError::Http)?;
    // Ends when the sender is dropped or the other side closes; errors surface on the request.
    tokio::spawn(FutureExt::boxed(connection.with_upgrades()));
    Ok(sender)
}

/// An error with what caused it; hyper's own text often says only half.
fn text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn io_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        _ => error.to_string(),
    }
}
