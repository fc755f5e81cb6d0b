//! Calls whose messages go through tonic as bytes: its code is then compiled once for all of them, and not for each of a
//! hundred pairs of messages.
//!
//! [`Caller`] and [`Responder`] stand where generated code names `tonic::client::Grpc` and `tonic::server::Grpc`.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use http::Uri;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codec::{
    Codec, CompressionEncoding, DecodeBuf, Decoder, EnabledCompressionEncodings, EncodeBuf, Encoder, Streaming,
};
use tonic::codegen::{Body as HttpBody, BoxFuture, StdError};
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The caller's end of a service.
#[derive(Clone, Debug)]
pub struct Caller<T>(tonic::client::Grpc<T>);

impl<T> Caller<T> {
    pub fn new(channel: T) -> Self {
        Self(tonic::client::Grpc::new(channel))
    }

    pub fn with_origin(channel: T, origin: Uri) -> Self {
        Self(tonic::client::Grpc::with_origin(channel, origin))
    }

    pub fn send_compressed(self, encoding: CompressionEncoding) -> Self {
        Self(self.0.send_compressed(encoding))
    }

    pub fn accept_compressed(self, encoding: CompressionEncoding) -> Self {
        Self(self.0.accept_compressed(encoding))
    }

    pub fn max_decoding_message_size(self, limit: usize) -> Self {
        Self(self.0.max_decoding_message_size(limit))
    }

    pub fn max_encoding_message_size(self, limit: usize) -> Self {
        Self(self.0.max_encoding_message_size(limit))
    }
}

impl<T> Caller<T>
where
    T: GrpcService<Body>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    pub async fn ready(&mut self) -> Result<(), T::Error> {
        self.0.ready().await
    }

    /// One message each way. The codec says which.
    pub async fn unary<Q: Message, A: Message + Default>(
        &mut self,
        request: Request<Q>,
        path: PathAndQuery,
        _: ProstCodec<Q, A>,
    ) -> Result<Response<A>, Status> {
        let request = request.map(|message| Bytes::from(message.encode_to_vec()));
        let (metadata, answer, extensions) = self.0.unary(request, path, Raw).await?.into_parts();
        let answer = A::decode(answer).map_err(undecodable)?;
        Ok(Response::from_parts(metadata, answer, extensions))
    }

    /// Few calls are answered with a stream: those are tonic's own.
    pub async fn server_streaming<Q: Message + 'static, A: Message + Default + 'static>(
        &mut self,
        request: Request<Q>,
        path: PathAndQuery,
        codec: ProstCodec<Q, A>,
    ) -> Result<Response<Streaming<A>>, Status> {
        self.0.server_streaming(request, path, codec).await
    }
}

/// The server's end of one method.
pub struct Responder<A, Q> {
    server: tonic::server::Grpc<Raw>,
    messages: PhantomData<fn(Q) -> A>,
}

impl<A: Message + 'static, Q: Message + Default + 'static> Responder<A, Q> {
    /// For the messages of the codec.
    pub fn new(_: ProstCodec<A, Q>) -> Self {
        Self { server: tonic::server::Grpc::new(Raw), messages: PhantomData }
    }

    pub fn max_decoding_message_size(self, limit: usize) -> Self {
        self.apply_max_message_size_config(Some(limit), None)
    }

    pub fn max_encoding_message_size(self, limit: usize) -> Self {
        self.apply_max_message_size_config(None, Some(limit))
    }

    pub fn apply_compression_config(
        self,
        accepted: EnabledCompressionEncodings,
        sent: EnabledCompressionEncodings,
    ) -> Self {
        Self { server: self.server.apply_compression_config(accepted, sent), ..self }
    }

    pub fn apply_max_message_size_config(self, decoded: Option<usize>, encoded: Option<usize>) -> Self {
        Self { server: self.server.apply_max_message_size_config(decoded, encoded), ..self }
    }

    pub async fn unary<S, B>(&mut self, mut service: S, request: http::Request<B>) -> http::Response<Body>
    where
        S: UnaryService<Q, Response = A> + Send + 'static,
        S::Future: Send + 'static,
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let method = move |request: Request<Bytes>| -> Answering {
            let (metadata, extensions, message) = request.into_parts();
            let answering =
                Q::decode(message).map(|message| service.call(Request::from_parts(metadata, extensions, message)));
            Box::pin(async move {
                let answer = answering.map_err(undecodable)?.await?;
                Ok(answer.map(|answer| Bytes::from(answer.encode_to_vec())))
            })
        };
        self.server.unary(Method(Box::new(method)), request).await
    }
}

/// What a method of any service answers, to come.
type Answering = BoxFuture<Response<Bytes>, Status>;

/// A method of any service.
struct Method(Box<dyn FnMut(Request<Bytes>) -> Answering + Send>);

impl UnaryService<Bytes> for Method {
    type Response = Bytes;
    type Future = Answering;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        (self.0)(request)
    }
}

/// As tonic's own codec answers.
fn undecodable(error: prost::DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// A message as it is on the wire.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}
