//! The runtime's end: both services on a Unix socket.

use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;

use crate::client::socket_path;
use crate::v1::image_service_server::{ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use crate::{Error, MAX_MESSAGE_SIZE};

/// A socket that clients can connect to; they are answered once it is served.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Makes the socket at `path`. A file left by an earlier process is replaced.
    pub fn bind(path: impl AsRef<Path>) -> Result<Socket, Error> {
        let path = socket_path(path.as_ref());
        match bind(&path) {
            Ok(listener) => Ok(Socket { listener, path }),
            Err(source) => Err(Error::Socket { path: path.display().to_string(), source }),
        }
    }
}

/// Serves both services until `stop`.
///
/// Open calls get to finish except endless ones (event streams): these end with their connection when this returns.
pub async fn serve<R: RuntimeService, I: ImageService>(
    socket: Socket,
    runtime: R,
    images: I,
    stop: CancellationToken,
) -> Result<(), Error> {
    let Socket { listener, path } = socket;
    let server = tonic::transport::Server::builder()
        .add_service(
            RuntimeServiceServer::new(runtime)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
        )
        .add_service(
            ImageServiceServer::new(images)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
        )
        .serve_with_incoming(UnixListenerStream::new(listener));
    let served = tokio::select! {
        served = server => served,
        () = stop.cancelled() => Ok(()),
    };
    // Only our own socket: a successor may have bound the same path already, and then the file is its.
    served.map_err(|source| Error::Transport { path: path.display().to_string(), source })
}

fn bind(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Whoever can open this socket owns the node.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
