//! What every service is made of: a bounded client, a trait for drivers, and a server that dispatches to it.

use std::pin::Pin;

use tonic::Status;

/// What a driver answers, sooner or later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

/// A service of unary calls: `Client, Trait, Server = "package.Service" { method("Method"): Request => Response; … }`.
macro_rules! service {
    (
        $(#[$doc:meta])*
        $client:ident, $service:ident, $server:ident = $name:literal {
            $( $method:ident($rpc:literal): $request:ty => $response:ty; )*
        }
    ) => {
        $(#[$doc])*
        ///
        /// The caller's end.
        #[derive(Clone, Debug)]
        pub struct $client {
            channel: tonic::transport::Channel,
            pub timeout: std::time::Duration,
        }

        impl $client {
            pub fn new(channel: tonic::transport::Channel, timeout: std::time::Duration) -> Self {
                $client { channel, timeout }
            }

            $(
                pub async fn $method(&self, request: $request) -> Result<$response, tonic::Status> {
                    $crate::service::call(
                        self.channel.clone(),
                        self.timeout,
                        concat!("/", $name, "/", $rpc),
                        request,
                    )
                    .await
                }
            )*
        }

        $(#[$doc])*
        ///
        /// The driver's end; calls that it does not know are answered so.
        pub trait $service: Send + Sync + 'static {
            $(
                fn $method(&self, request: $request) -> $crate::service::Answer<'_, $response> {
                    let _ = request;
                    Box::pin(std::future::ready(Err(tonic::Status::unimplemented(concat!("unknown method ", $rpc)))))
                }
            )*
        }

        $(#[$doc])*
        ///
        /// Calls from the wire to a driver.
        pub struct $server<D>(std::sync::Arc<D>);

        impl<D> $server<D> {
            pub fn new(driver: std::sync::Arc<D>) -> Self {
                $server(driver)
            }
        }

        impl<D> Clone for $server<D> {
            fn clone(&self) -> Self {
                $server(self.0.clone())
            }
        }

        impl<D> tonic::server::NamedService for $server<D> {
            const NAME: &'static str = $name;
        }

        impl<D: $service> tower::Service<tonic::codegen::http::Request<tonic::body::Body>> for $server<D> {
            type Response = tonic::codegen::http::Response<tonic::body::Body>;
            type Error = std::convert::Infallible;
            type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

            fn poll_ready(
                &mut self,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Result<(), Self::Error>> {
                std::task::Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: tonic::codegen::http::Request<tonic::body::Body>) -> Self::Future {
                let driver = self.0.clone();
                Box::pin(async move {
                    match request.uri().path() {
                        $(
                            concat!("/", $name, "/", $rpc) => {
                                let method = tower::service_fn(move |request: tonic::Request<$request>| {
                                    let driver = driver.clone();
                                    async move {
                                        driver.$method(request.into_inner()).await.map(tonic::Response::new)
                                    }
                                });
                                let codec = tonic_prost::ProstCodec::<$response, $request>::default();
                                let mut server = grpc::Responder::new(codec)
                                    .max_decoding_message_size($crate::MAX_MESSAGE_SIZE)
                                    .max_encoding_message_size($crate::MAX_MESSAGE_SIZE);
                                Ok(server.unary(method, request).await)
                            }
                        )*
                        other => {
                            let status = tonic::Status::unimplemented(format!("unknown method {other}"));
                            Ok(status.into_http())
                        }
                    }
                })
            }
        }
    };
}
pub(crate) use service;

/// One call, answered within `timeout` or failed.
pub(crate) async fn call<Q, R>(
    channel: tonic::transport::Channel,
    timeout: std::time::Duration,
    path: &'static str,
    message: Q,
) -> Result<R, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    R: prost::Message + Default + Send + Sync + 'static,
{
    let mut request = tonic::Request::new(message);
    // The driver hears how long anyone waits for it.
    request.set_timeout(timeout);
    let answer = async {
        let mut client = grpc::Caller::new(channel)
            .max_decoding_message_size(crate::MAX_MESSAGE_SIZE)
            .max_encoding_message_size(crate::MAX_MESSAGE_SIZE);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = tonic_prost::ProstCodec::<Q, R>::default();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        client.unary(request, path, codec).await.map(tonic::Response::into_inner)
    };
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}
