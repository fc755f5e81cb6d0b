//! A watch or a log as a WebSocket (RFC 6455), for browsers, which cannot read a body as it grows.
//!
//! Only the server's half is needed: what the client says is read to notice a close, and pings are answered.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::body::{Body, empty};

/// What RFC 6455 appends to the client's key.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Clients of a watch have nothing to say; one that says this much is cut off.
const MAX_MESSAGE: u64 = 64 * 1024;

const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;
const FINAL: u8 = 0x80;

/// The client's key, if the request asks for a WebSocket.
pub(crate) fn key(headers: &HeaderMap) -> Option<&HeaderValue> {
    let has = |name: header::HeaderName, word: &str| {
        let text = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        text.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let asked = has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket");
    headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| asked)
}

/// What is sent, and how it becomes messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content {
    /// Watch frames, one or several at a time: a text message each.
    Events,
    /// Any bytes, as they come.
    Bytes,
    /// Any bytes, for clients that can only take text.
    Base64,
}

impl Content {
    /// How a client wants bytes, and the protocol to name in the answer; none when it knows only others.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Option<(Content, Option<&'static str>)> {
        let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
        let mut offered = offered.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
        let mut offered = offered.by_ref().map(str::trim).peekable();
        if offered.peek().is_none() {
            return Some((Content::Bytes, None));
        }
        offered.find_map(|protocol| match protocol {
            "binary.k8s.io" => Some((Content::Bytes, Some("binary.k8s.io"))),
            "base64.binary.k8s.io" => Some((Content::Base64, Some("base64.binary.k8s.io"))),
            _ => None,
        })
    }

    fn write(self, frame: &[u8], out: &mut BytesMut) {
        match self {
            Content::Events => events(frame).for_each(|event| out.extend_from_slice(&message(TEXT, event))),
            Content::Bytes => out.extend_from_slice(&message(BINARY, frame)),
            Content::Base64 => out.extend_from_slice(&message(TEXT, STANDARD.encode(frame).as_bytes())),
        }
    }
}

/// Accepts the upgrade and sends `frames` until they end, the client leaves or the server stops.
pub(crate) fn accept<S>(
    key: &HeaderValue,
    content: Content,
    upgrade: hyper::upgrade::OnUpgrade,
    frames: S,
    stop: CancellationToken,
) -> Response<Body>
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let digest =
        ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), MAGIC.as_bytes()].concat());
    tokio::spawn(async move {
        // Ends with the connection, the watch or the server.
        if let Ok(io) = upgrade.await {
            tokio::select! {
                _ = converse(TokioIo::new(io), content, frames) => {}
                () = stop.cancelled() => {}
            }
        }
    });
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(value) = HeaderValue::from_str(&STANDARD.encode(digest)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, value);
    }
    response
}

async fn converse<IO, S>(io: IO, content: Content, frames: S) -> std::io::Result<()>
where
    IO: AsyncRead + AsyncWrite,
    S: Stream<Item = Bytes>,
{
    let (mut from, mut to) = tokio::io::split(io);
    // One message at a time is read to its end, whatever is sent meanwhile.
    let (said, mut heard) = tokio::sync::mpsc::channel::<(u8, Vec<u8>)>(1);
    let listen = async {
        loop {
            let message = read(&mut from).await?;
            if said.send(message).await.is_err() {
                return Ok(());
            }
        }
    };
    let speak = async {
        tokio::pin!(frames);
        loop {
            tokio::select! {
                frame = frames.next() => {
                    let Some(frame) = frame else {
                        return to.write_all(&message(CLOSE, &[])).await;
                    };
                    let mut out = BytesMut::with_capacity(frame.len() + 16);
                    content.write(&frame, &mut out);
                    to.write_all(&out).await?;
                }
                heard = heard.recv() => match heard {
                    Some((CLOSE, _)) | None => return to.write_all(&message(CLOSE, &[])).await,
                    Some((PING, payload)) => to.write_all(&message(PONG, &payload)).await?,
                    Some(_) => {}
                },
            }
            to.flush().await?;
        }
    };
    tokio::select! {
        outcome = listen => outcome,
        outcome = speak => outcome,
    }
}

/// The single events of frames that were put together, each with its newline.
fn events(frames: &[u8]) -> impl Iterator<Item = &[u8]> {
    const START: &[u8] = b"{\"type\":\"";
    let mut rest = frames;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = (1..rest.len()).find(|at| rest[at - 1] == b'\n' && rest[*at..].starts_with(START));
        let (event, after) = rest.split_at(next.unwrap_or(rest.len()));
        rest = after;
        Some(event)
    })
}

/// One unmasked, unfragmented message.
fn message(kind: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(payload.len() + 10);
    out.put_u8(FINAL | kind);
    match payload.len() {
        length @ 0..=125 => out.put_u8(length as u8),
        length @ 126..=0xffff => {
            out.put_u8(126);
            out.put_u16(length as u16);
        }
        length => {
            out.put_u8(127);
            out.put_u64(length as u64);
        }
    }
    out.extend_from_slice(payload);
    out.freeze()
}

/// The next frame of the client: its kind and what it says.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let kind = from.read_u8().await? & 0x0f;
    let second = from.read_u8().await?;
    let length = match second & 0x7f {
        126 => u64::from(from.read_u16().await?),
        127 => from.read_u64().await?,
        short => u64::from(short),
    };
    if length > MAX_MESSAGE {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut mask = [0; 4];
    if second & 0x80 != 0 {
        from.read_exact(&mut mask).await?;
    }
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload).await?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok((kind, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_become_messages_and_a_close_is_answered() {
        let frames =
            Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n{\"type\":\"DELETED\",\"object\":{\n}}\n");
        let (mut client, server) = tokio::io::duplex(4096);
        let frames = futures_util::stream::iter([frames]).chain(futures_util::stream::pending());
        let serving = tokio::spawn(converse(server, Content::Events, frames));
        for expected in ["{\"type\":\"ADDED\",\"object\":{}}\n", "{\"type\":\"DELETED\",\"object\":{\n}}\n"] {
            let (kind, payload) = read(&mut client).await.unwrap();
            assert_eq!((kind, String::from_utf8(payload).unwrap().as_str()), (TEXT, expected));
        }
        // A masked ping, then a close.
        client.write_all(&[FINAL | PING, 0x82, 1, 2, 3, 4, b'h' ^ 1, b'i' ^ 2]).await.unwrap();
        assert_eq!(read(&mut client).await.unwrap(), (PONG, b"hi".to_vec()));
        client.write_all(&[FINAL | CLOSE, 0x80, 0, 0, 0, 0]).await.unwrap();
        assert_eq!(read(&mut client).await.unwrap(), (CLOSE, Vec::new()));
        serving.await.unwrap().unwrap();
    }

    #[test]
    fn clients_choose_how_they_get_bytes() {
        for (offered, expected) in [
            (None, Some((Content::Bytes, None))),
            (Some("binary.k8s.io"), Some((Content::Bytes, Some("binary.k8s.io")))),
            (Some("v9, base64.binary.k8s.io"), Some((Content::Base64, Some("base64.binary.k8s.io")))),
            (Some("v9"), None),
        ] {
            let mut headers = HeaderMap::new();
            offered.map(|value| headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(value)));
            assert_eq!(Content::negotiate(&headers), expected, "{offered:?}");
        }
        let mut out = BytesMut::new();
        Content::Base64.write(b"hi", &mut out);
        assert_eq!(&out[..], b"\x81\x04aGk=");
    }

    #[test]
    fn lengths_take_one_three_or_nine_bytes() {
        for (length, header) in [(5, 2), (125, 2), (126, 4), (70_000, 10)] {
            assert_eq!(message(TEXT, &vec![b'x'; length]).len(), length + header);
        }
    }
}
