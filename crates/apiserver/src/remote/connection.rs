//! HTTP/1.1 to one server: kept connections, one exchange at a time on each, bounded answers, no redirects.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

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
pub(crate) enum Problem {
    Unreachable(String),
    /// There was one that could not be read, or that did not end.
    Unreadable(String),
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::Unreachable(text) | Problem::Unreadable(text) => f.write_str(text),
        }
    }
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
        F: Future<Output = Result<Sender, String>>,
    {
        let (mut sender, response) = self.open(request, Lost::Repeat, connect).await?;
        let (parts, body) = response.into_parts();
        let answer = read(body).await.map_err(Problem::Unreadable)?;
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
        F: Future<Output = Result<Sender, String>>,
    {
        let anew = async || connect().await.map_err(Problem::Unreachable);
        match self.kept() {
            // The other side may have closed a kept connection just now: then a new one decides, once.
            Some(mut kept) => match kept.send_request(request.clone()).await {
                Ok(response) => Ok((kept, response)),
                Err(error) if error.is_canceled() || error.is_closed() => send(anew().await?, request).await,
                Err(error) if error.is_incomplete_message() && lost == Lost::Repeat => {
                    send(anew().await?, request).await
                }
                Err(error) => Err(Problem::Unreachable(text(&error))),
            },
            None => send(anew().await?, request).await,
        }
    }

    /// Keeps a connection for the next question as soon as its answer has been read to the end.
    pub(crate) fn keep(&self, mut sender: Sender) {
        let connections = self.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                connections.put_back(sender);
            }
        });
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
    sent.map(|response| (sender, response)).map_err(|error| Problem::Unreachable(text(&error)))
}

async fn read(mut body: Incoming) -> Result<Bytes, String> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| text(&error))?;
        let Some(data) = frame.data_ref() else { continue };
        if kept.len() + data.len() > MAX_ANSWER {
            return Err(format!("the response is larger than {MAX_ANSWER} bytes"));
        }
        kept.extend_from_slice(data);
    }
    Ok(kept.freeze())
}

/// A new connection; with TLS, to the holder of a certificate for the given name. Problems read as Go's HTTP client
/// tells them, which people and tests know.
pub(crate) async fn dial(host: &str, port: u16, tls: Option<(&TlsConnector, &str)>) -> Result<Sender, String> {
    let tcp = TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("dial tcp {host}:{port}: connect: {}", io_text(&error)))?;
    tcp.set_nodelay(true).map_err(|error| error.to_string())?;
    let Some((connector, name)) = tls else { return handshake(tcp).await };
    let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
    let tls = connector.connect(name, tcp).await.map_err(|error| format!("tls: {error}"))?;
    handshake(tls).await
}

async fn handshake(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Sender, String> {
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(|error| text(&error))?;
    // Ends when the sender is dropped or the other side closes; errors surface on the request.
    tokio::spawn(connection.with_upgrades());
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
