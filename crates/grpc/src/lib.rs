//! gRPC over a Unix socket: what CRI runtimes, CSI drivers and plug-in registration all speak through; collectors of traces
//! over TCP.
//!
//! Flow: [`connect`] or [`lazy`] -> Unix socket -> [`Socket`]. Messages and services belong to the crates above.

mod client;
mod measured;
mod messages;
mod server;

pub use client::{connect, lazy, lazy_host, socket_path};
pub use measured::{Measured, Observer};
pub use messages::{Caller, Responder};
pub use server::Socket;
pub use tonic;

/// The largest message either side accepts; upstream's kubelet and runtimes use the same number.
pub const MAX_MESSAGE_SIZE: usize = 16 << 20;

/// What can go wrong between the two ends of the socket, calls themselves aside (those return `tonic::Status`).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("socket {path}: {source}")]
    Socket { path: String, source: std::io::Error },
    #[error("endpoint {path}: {source}")]
    Transport { path: String, source: tonic::transport::Error },
}
