//! The Container Storage Interface: how a kubelet and storage drivers talk.
//!
//! Flow: kubelet, attacher or provisioner -> [`Clients`] -> Unix socket -> [`router`] -> a driver. How a driver makes itself
//! known to a kubelet is in [`registration`].
//!
//! Every call is bounded: after [`Clients::timeout`] it fails with `DEADLINE_EXCEEDED`, whatever the driver does. Whether
//! a call that failed may have had an effect is [`is_final`].

mod service;

pub mod registration;
pub mod v1;

use std::path::Path;
use std::time::Duration;

use tonic::transport::server::Router;
use tonic::{Code, Status};

pub use grpc::{Error, MAX_MESSAGE_SIZE, Socket, lazy as channel, socket_path};
pub use service::Answer;
pub use tonic;

use v1::{ControllerClient, ControllerServer, IdentityClient, IdentityServer, NodeClient, NodeServer};

/// How long a driver has for one call; upstream's kubelet gives as much.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// All services of one driver over one connection. Cloning shares the connection.
#[derive(Clone, Debug)]
pub struct Clients {
    pub identity: IdentityClient,
    pub controller: ControllerClient,
    pub node: NodeClient,
}

impl Clients {
    /// Clients that connect on first use and again after the driver restarts.
    pub fn lazy(socket: impl AsRef<Path>) -> Self {
        let channel = grpc::lazy(socket);
        Clients {
            identity: IdentityClient::new(channel.clone(), CALL_TIMEOUT),
            controller: ControllerClient::new(channel.clone(), CALL_TIMEOUT),
            node: NodeClient::new(channel, CALL_TIMEOUT),
        }
    }

    /// The same driver, with another bound on every call.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.identity.timeout = timeout;
        self.controller.timeout = timeout;
        self.node.timeout = timeout;
        self
    }
}

/// The services of a driver, for [`Socket::serve`].
pub fn router<D: v1::Identity + v1::Controller + v1::Node>(driver: std::sync::Arc<D>) -> Router {
    tonic::transport::Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(NodeServer::new(driver))
}

/// Whether a call that failed certainly had no effect and has none any more. After any other failure the driver may still be
/// at work, and what was asked for must be asked for again or undone.
pub fn is_final(status: &Status) -> bool {
    !matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
            // What the transport says when a connection breaks in the middle of a call.
            | Code::Unknown
            | Code::Internal
    )
}

/// Whether a call that failed fails as often as it is made, whatever happens meanwhile.
pub fn is_infeasible(status: &Status) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
}

/// A failure in the words that Go's library has for it, as users know them from events.
pub fn describe(status: &Status) -> String {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_string(),
        other => format!("{other:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}
