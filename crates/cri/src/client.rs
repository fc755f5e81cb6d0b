//! The kubelet's end: clients on a Unix socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::{Error, MAX_MESSAGE_SIZE};

/// How long the first connection may take before the caller hears about it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Both CRI services over one connection. Cloning shares the connection; every call needs its own clone (`&mut`).
#[derive(Clone, Debug)]
pub struct Clients {
    pub runtime: RuntimeServiceClient<Channel>,
    pub images: ImageServiceClient<Channel>,
}

impl Clients {
    /// Clients that connect on first use and again after the runtime restarts.
    pub fn lazy(path: impl AsRef<Path>) -> Self {
        Self::new(channel(path))
    }

    fn new(channel: Channel) -> Self {
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
            images: ImageServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
        }
    }
}

/// Connects to the runtime at `path` (a plain path or `unix://…`). The connection heals itself: after a restart of
/// the runtime the next call reconnects, so callers keep these clients for life.
pub async fn connect(path: impl AsRef<Path>) -> Result<Clients, Error> {
    let path = socket_path(path.as_ref());
    let channel = endpoint()
        .connect_with_connector(connector(path.clone()))
        .await
        .map_err(|source| Error::Transport { path: path.display().to_string(), source })?;
    Ok(Clients::new(channel))
}

/// The transport alone, for other services on Unix sockets: connects on first use, and again after a restart of the peer.
pub fn channel(path: impl AsRef<Path>) -> Channel {
    endpoint().connect_with_connector_lazy(connector(socket_path(path.as_ref())))
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
pub(crate) fn socket_path(path: &Path) -> PathBuf {
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
