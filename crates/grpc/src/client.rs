//! The caller's end: a channel to a Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::codegen::BoxFuture;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::Error;

/// How long a connection may take before the caller hears about it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel that connects on first use, and again after the server restarts.
pub fn lazy(path: impl AsRef<Path>) -> Channel {
    lazy_channel(socket_path(path.as_ref()))
}

/// Not generic, and so compiled here: a client of HTTP/2 is large.
fn lazy_channel(socket: PathBuf) -> Channel {
    endpoint().connect_with_connector_lazy(connector(socket))
}

/// As `lazy`, to a host and port, without TLS.
pub fn lazy_host(host: &str) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{host}"));
    let endpoint = endpoint.map_err(|source| Error::Transport { path: host.to_owned(), source })?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).connect_lazy())
}

/// Connects to the server at `path` (a plain path or `unix://…`). The channel heals itself: after a restart of the
/// server the next call reconnects, so callers keep it for life.
pub fn connect(path: impl AsRef<Path>) -> BoxFuture<Channel, Error> {
    connected_channel(socket_path(path.as_ref()))
}

/// Not generic and in a box, for the same reason.
fn connected_channel(socket: PathBuf) -> BoxFuture<Channel, Error> {
    Box::pin(async move {
        endpoint()
            .connect_with_connector(connector(socket.clone()))
            .await
            .map_err(|source| Error::Transport { path: socket.display().to_string(), source })
    })
}

fn endpoint() -> Endpoint {
    // The authority is never resolved: the connector ignores it.
    Endpoint::from_static("http://localhost").connect_timeout(CONNECT_TIMEOUT)
}

type Connecting = std::pin::Pin<Box<dyn Future<Output = std::io::Result<TokioIo<UnixStream>>> + Send>>;

fn connector(
    path: PathBuf,
) -> impl tower::Service<Uri, Response = TokioIo<UnixStream>, Error = std::io::Error, Future = Connecting> + Send + 'static
{
    service_fn(move |_: Uri| -> Connecting {
        let path = path.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    })
}

/// `unix:///run/x.sock`, `unix:/run/x.sock` and `/run/x.sock` all name the same socket.
pub fn socket_path(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    match text.strip_prefix("unix://").or(text.strip_prefix("unix:")) {
        Some(rest) => PathBuf::from(rest),
        None => path.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_path_accepts_urls_and_paths() {
        for input in ["/run/x.sock", "unix:///run/x.sock", "unix:/run/x.sock"] {
            assert_eq!(socket_path(Path::new(input)), Path::new("/run/x.sock"));
        }
    }
}
