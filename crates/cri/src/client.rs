//! The kubelet's end: clients on a Unix socket.

use std::path::Path;
use std::sync::Arc;

use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::{Error, MAX_MESSAGE_SIZE, Measured, Observer};

/// Both CRI services over one connection. Cloning shares the connection; every call needs its own clone (`&mut`).
#[derive(Clone, Debug)]
pub struct Clients {
    pub runtime: RuntimeServiceClient<Measured>,
    pub images: ImageServiceClient<Measured>,
    channel: Measured,
}

impl Clients {
    /// Clients that connect on first use and again after the runtime restarts.
    pub fn lazy(path: impl AsRef<Path>) -> Self {
        Self::new(Measured::new(grpc::lazy(path)))
    }

    /// The same connection, with someone who is told of every call.
    pub fn observed(&self, observer: Arc<dyn Observer>) -> Self {
        Self::new(self.channel.with(observer))
    }

    fn new(channel: Measured) -> Self {
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
            images: ImageServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
            channel,
        }
    }
}

/// Connects to the runtime at `path` (a plain path or `unix://…`). The connection heals itself: after a restart of
/// the runtime the next call reconnects, so callers keep these clients for life.
pub async fn connect(path: impl AsRef<Path>) -> Result<Clients, Error> {
    Ok(Clients::new(Measured::new(grpc::connect(path).await?)))
}
