//! Bodies: of responses, whole or produced as the client reads, and of requests.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body as _, Frame};
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

/// The body of a request: whole from the in-process door, still on the wire otherwise. Read only once the client may do
/// what it asks, so a stranger cannot make the server hold megabytes.
pub(crate) enum RequestBody {
    Whole(Bytes),
    Incoming(hyper::body::Incoming),
}

/// Bodies larger than this are refused (upstream's `MaxRequestBodyBytes`).
const MAX_BODY: usize = 3 * 1024 * 1024;

impl RequestBody {
    /// The whole body, or 413. The rest of a body that is too large is read and dropped, within reason: a client that is
    /// still sending when the answer comes often fails to see it.
    pub(crate) async fn read(self) -> Result<Bytes, api::Status> {
        let mut body = match self {
            RequestBody::Whole(bytes) => return Ok(bytes),
            RequestBody::Incoming(body) => body,
        };
        let mut kept = BytesMut::new();
        let mut total = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| api::Status::bad_request(error.to_string()))?;
            let Some(data) = frame.data_ref() else { continue };
            total += data.len();
            if total > 8 * MAX_BODY {
                break;
            }
            if total <= MAX_BODY {
                kept.extend_from_slice(data);
            }
        }
        if total > MAX_BODY {
            return Err(api::Status::request_too_large(format!("limit is {MAX_BODY}")));
        }
        Ok(kept.freeze())
    }
}

/// How much of an unwanted body is taken off the wire, and for how long.
const DISCARDED: usize = 64 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

impl RequestBody {
    /// Takes a small body off the wire: some clients do not see an answer while they are still sending.
    pub(crate) async fn discard(self) {
        let RequestBody::Incoming(mut body) = self else { return };
        let reading = async {
            let mut total = 0;
            while let Some(Ok(frame)) = body.frame().await {
                total += frame.data_ref().map_or(0, Bytes::len);
                if total > DISCARDED {
                    return;
                }
            }
        };
        // What did not come in time is the client's own loss.
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, reading).await;
    }
}

/// A body that ends when something else does.
pub(crate) fn until(body: Body, end: impl Future<Output = ()> + Send + 'static) -> Body {
    use futures_util::StreamExt;
    stream(body.into_data_stream().take_until(Box::pin(end)))
}

/// A body that breaks off with an error if it has not ended in time.
pub(crate) fn by(mut body: Body, deadline: tokio::time::Instant) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let mut timer = Some(Box::pin(tokio::time::sleep_until(deadline)));
    let frames = futures_util::stream::poll_fn(move |context| {
        let Some(late) = &mut timer else { return Poll::Ready(None) };
        if late.as_mut().poll(context).is_ready() {
            timer = None;
            return Poll::Ready(Some(Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())));
        }
        Pin::new(&mut body).poll_frame(context)
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A body that keeps something alive until it has been sent, or the client has gone.
pub(crate) fn guarded<G: Send + 'static>(body: Body, guard: G) -> Body {
    let mut held = Some((body, guard));
    let frames = futures_util::stream::poll_fn(move |context| {
        let Some((body, _)) = &mut held else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(context));
        if frame.is_none() {
            held = None;
        }
        Poll::Ready(frame)
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A whole answer.
pub(crate) fn response(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn security_a_body_that_trickles_breaks_off() {
        let trickle = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, BodyError>(Bytes::from_static(b" ")), ()))
        });
        let deadline = Instant::now() + Duration::from_secs(5);
        let read = timeout(Duration::from_secs(6), by(stream(trickle), deadline).collect()).await;
        assert!(read.expect("an end").is_err());
        let in_time = by(full("in time"), Instant::now() + Duration::from_secs(5));
        assert_eq!(in_time.collect().await.unwrap().to_bytes(), "in time");
    }
}
