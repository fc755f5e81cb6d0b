//! A watch: newline-framed JSON events, each object decoded straight into its type.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use api::read::{self, Read};
use bytes::{Buf, BytesMut};
use futures_util::Stream;
use http_body::Body as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{MAX_OBJECT, too_long};
use crate::{Body, BoxError, Error};

/// The annotation of the bookmark that ends the initial events of a watch-list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent<K> {
    Added(K),
    Modified(K),
    Deleted(K),
    /// Nothing changed up to `resource_version`; `initial_events_end` closes a watch-list's first part.
    Bookmark {
        resource_version: String,
        initial_events_end: bool,
    },
}

/// The events of one watch request. Ends when the server ends it; resume from the last version seen.
/// A failure `Status` sent as an event (410 above all) comes out as `Error::Api`.
pub struct WatchStream<K> {
    lines: Lines,
    kind: PhantomData<fn() -> K>,
}

impl<K: Read> WatchStream<K> {
    pub fn new(body: Body) -> Self {
        Self { lines: Lines::new(body), kind: PhantomData }
    }
}

impl<K: Read> Stream for WatchStream<K> {
    type Item = Result<WatchEvent<K>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.lines.poll_line(context).map(|line| line.map(|line| decode(&line?)))
    }
}

/// The lines of a body that are not empty.
pub(crate) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// Bytes of `buffer` already searched for a line end.
    scanned: usize,
    ended: bool,
}

impl Lines {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), scanned: 0, ended: false }
    }

    pub(crate) fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<BytesMut, Error>>> {
        loop {
            if let Some(line) = self.next_line() {
                return Poll::Ready(Some(Ok(line)));
            }
            if self.ended {
                let rest = self.buffer.split();
                self.scanned = 0;
                return Poll::Ready((!rest.trim_ascii().is_empty()).then_some(Ok(rest)));
            }
            // All of one line: what passes through the API server may come from a server of others.
            if self.buffer.len() > MAX_OBJECT {
                return self.give_up(too_long(MAX_OBJECT));
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Poll::Ready(Some(Err(source))) => return self.give_up(source),
            }
        }
    }

    /// What was read of a line is of no use.
    fn give_up(&mut self, source: BoxError) -> Poll<Option<Result<BytesMut, Error>>> {
        self.ended = true;
        self.buffer = BytesMut::new();
        self.scanned = 0;
        Poll::Ready(Some(Err(broken(source))))
    }

    /// A whole line that was read already.
    fn next_line(&mut self) -> Option<BytesMut> {
        loop {
            match self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                Some(at) => {
                    let line = self.buffer.split_to(self.scanned + at);
                    self.buffer.advance(1);
                    self.scanned = 0;
                    if !line.trim_ascii().is_empty() {
                        return Some(line);
                    }
                }
                None => {
                    self.scanned = self.buffer.len();
                    return None;
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Frame<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct BookmarkObject {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// An event whose object is not decoded yet.
pub(crate) enum Undecoded<'a> {
    Added(Cow<'a, [u8]>),
    Modified(Cow<'a, [u8]>),
    Deleted(Cow<'a, [u8]>),
    Bookmark { resource_version: String, initial_events_end: bool },
}

pub(crate) fn broken(source: BoxError) -> Error {
    Error::Transport { method: http::Method::GET, uri: "watch".into(), source }
}

pub(crate) fn failed(source: serde_json::Error) -> Error {
    Error::Decode { what: "a watch event".into(), source }
}

/// `is_trimmed`: for those who do not look at managed fields, which the objects then come without.
pub(crate) fn undecoded(line: &[u8], is_trimmed: bool) -> Result<Undecoded<'_>, Error> {
    let frame: Frame<'_> = serde_json::from_slice(line).map_err(failed)?;
    // As bytes, like every other object: one reader is compiled, not two.
    let object = frame.object.get().as_bytes();
    let whole = || if is_trimmed { api::trim::without_managed_fields(object) } else { Cow::Borrowed(object) };
    match frame.r#type {
        "ADDED" => Ok(Undecoded::Added(whole())),
        "MODIFIED" => Ok(Undecoded::Modified(whole())),
        "DELETED" => Ok(Undecoded::Deleted(whole())),
        "BOOKMARK" => {
            let BookmarkObject { metadata } = serde_json::from_slice(object).map_err(failed)?;
            let initial_events_end = metadata.annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true");
            Ok(Undecoded::Bookmark { resource_version: metadata.resource_version, initial_events_end })
        }
        "ERROR" => Err(serde_json::from_slice::<api::Status>(object).map_err(failed)?.into()),
        other => Err(Error::Encode(format!("unknown watch event type {other:?}"))),
    }
}

fn decode<K: Read>(line: &[u8]) -> Result<WatchEvent<K>, Error> {
    let object = |object: Cow<'_, [u8]>| read::from_slice::<K>(&object).map_err(failed);
    Ok(match undecoded(line, false)? {
        Undecoded::Added(added) => WatchEvent::Added(object(added)?),
        Undecoded::Modified(modified) => WatchEvent::Modified(object(modified)?),
        Undecoded::Deleted(deleted) => WatchEvent::Deleted(object(deleted)?),
        Undecoded::Bookmark { resource_version, initial_events_end } => {
            WatchEvent::Bookmark { resource_version, initial_events_end }
        }
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::StreamExt;
    use http_body::Frame as BodyFrame;
    use http_body_util::{BodyExt, StreamBody};
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn stream_of(chunks: Vec<&'static str>) -> WatchStream<ConfigMap> {
        let frames = chunks.into_iter().map(|chunk| Ok::<_, crate::BoxError>(BodyFrame::data(Bytes::from(chunk))));
        WatchStream::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
    }

    #[tokio::test]
    async fn events_are_framed_by_lines_whatever_the_chunks() {
        let added = "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"a\"}}}\n";
        let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"ConfigMap\",\"metadata\":{\"resourceVersion\":\"7\",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}";
        for chunks in [vec![added, bookmark], vec![&added[..10], &added[10..], "\n", &bookmark[..3], &bookmark[3..]]] {
            let events: Vec<_> = stream_of(chunks).map(Result::unwrap).collect().await;
            assert_eq!(events.len(), 2);
            assert!(matches!(&events[0], WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("a")));
            assert_eq!(events[1], WatchEvent::Bookmark { resource_version: "7".into(), initial_events_end: true });
        }
    }

    #[tokio::test]
    async fn an_error_event_is_the_servers_status() {
        let mut stream = stream_of(vec![
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"too old\",\"reason\":\"Expired\",\"code\":410}}\n",
        ]);
        assert!(stream.next().await.unwrap().unwrap_err().is_expired());
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_off() {
        let piece = Bytes::from(vec![b' '; 1 << 20]);
        let frames = futures_util::stream::repeat_with(move || Ok::<_, BoxError>(BodyFrame::data(piece.clone())));
        let mut stream = WatchStream::<ConfigMap>::new(StreamBody::new(frames).boxed_unsync());
        let error = stream.next().await.unwrap().unwrap_err().to_string();
        assert!(error.contains("more than "), "{error}");
        assert!(stream.next().await.is_none());
    }
}
