//! Response bodies: whole, or produced as the client reads.

use bytes::Bytes;
use futures_util::Stream;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};

pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BodyError>;

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn empty() -> Body {
    full(Bytes::new())
}

pub(crate) fn stream(chunks: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Body {
    use futures_util::StreamExt;
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}
