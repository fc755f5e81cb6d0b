//! The server's end: a Unix socket that only its owner can open.

use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxFuture;
use tonic::transport::server::Router;

use crate::{Error, socket_path};

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

    /// Serves until `stop`. Open calls end with their connections when this returns. Boxed: what an `async fn` does is compiled by
    /// every crate that waits for it, and here that is a whole server of HTTP/2.
    pub fn serve(self, services: Router, stop: CancellationToken) -> BoxFuture<(), Error> {
        Box::pin(async move {
            let Socket { listener, path } = self;
            let server = services.serve_with_incoming(UnixListenerStream::new(listener));
            let served = tokio::select! {
                served = server => served,
                () = stop.cancelled() => Ok(()),
            };
            // The file stays: a successor may have bound the same path already, and then it is its.
            served.map_err(|source| Error::Transport { path: path.display().to_string(), source })
        })
    }
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
    // Whoever can open such a socket owns the node.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
