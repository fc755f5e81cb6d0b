//! One HTTP request and its answer on a connection of its own, with TLS or without: for probes, hooks and manifests from URLs.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;

/// A request without a body.
pub(crate) type Request = http::Request<Empty<Bytes>>;

/// An answer with as much of its body as was read.
pub(crate) struct Answer {
    pub(crate) head: http::response::Parts,
    /// An error where it is too long or was cut off.
    pub(crate) body: Result<Bytes, client::BoxError>,
}

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error(transparent)]
    Name(#[from] rustls_pki_types::InvalidDnsNameError),
    #[error(transparent)]
    Tls(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Sends a request to `host`, at the other end of the stream, and reads at most `limit` bytes of the answer's body.
/// `tls` says whom to trust.
pub(crate) async fn exchange(
    stream: TcpStream,
    host: &str,
    tls: Option<Arc<rustls::ClientConfig>>,
    request: Request,
    limit: usize,
) -> Result<Answer, ExchangeError> {
    let Some(config) = tls else { return talk(Box::new(stream), request, limit).await };
    let name = ServerName::try_from(host.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(config);
    talk(Box::new(connector.connect(name, stream).await?), request, limit).await
}

/// The connection lives exactly as long as this.
async fn talk(stream: Box<dyn tls::Stream>, request: Request, limit: usize) -> Result<Answer, ExchangeError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let talk = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, limit).collect().await;
        Ok::<_, ExchangeError>(Answer { head, body: body.map(|body| body.to_bytes()) })
    };
    driven(talk, connection).await
}

/// What is said over a connection, which is driven meanwhile.
pub(crate) async fn driven<T, E: From<hyper::Error>>(
    talk: impl Future<Output = Result<T, E>>,
    connection: impl Future<Output = hyper::Result<()>>,
) -> Result<T, E> {
    let drive = async {
        match connection.await {
            // The answer may still be in the making after the peer closed.
            Ok(()) => std::future::pending().await,
            Err(error) => Err(error.into()),
        }
    };
    tokio::select! {
        biased;
        answer = talk => answer,
        broken = drive => broken,
    }
}
