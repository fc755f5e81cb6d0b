//! The runtime's end: both services on a Unix socket.

use grpc::Socket;
use tokio_util::sync::CancellationToken;

use crate::v1::image_service_server::{ImageService, ImageServiceServer};
use crate::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use crate::{Error, MAX_MESSAGE_SIZE};

/// Serves both services until `stop`.
///
/// Open calls get to finish except endless ones (event streams): these end with their connection when this returns.
pub async fn serve<R: RuntimeService, I: ImageService>(
    socket: Socket,
    runtime: R,
    images: I,
    stop: CancellationToken,
) -> Result<(), Error> {
    let services = tonic::transport::Server::builder()
        .add_service(
            RuntimeServiceServer::new(runtime)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
        )
        .add_service(
            ImageServiceServer::new(images)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE),
        );
    socket.serve(services, stop).await
}
