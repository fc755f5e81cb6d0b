//! A watch or a log as a WebSocket (RFC 6455), for browsers, which cannot read a body as it grows.
//!
//! Only the server's half is needed: what the client says is read to notice a close, and pings are answered.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
pub(crate) use websocket::handshake::key;
use websocket::{Message, Opcode, Reader, Side};

use crate::body::{Body, empty};

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

    fn messages(self, frame: &[u8]) -> Vec<u8> {
        match self {
            Content::Events => events(frame).flat_map(|event| message(Opcode::Text, event)).collect(),
            Content::Bytes => message(Opcode::Binary, frame),
            Content::Base64 => message(Opcode::Text, STANDARD.encode(frame).as_bytes()),
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
    let accepted = websocket::handshake::accept_key(key.as_bytes());
    tokio::spawn(FutureExt::boxed(async move {
        // Ends with the connection, the watch or the server.
        if let Ok(io) = upgrade.await {
            tokio::select! {
                _ = converse(TokioIo::new(io), content, frames) => {}
                () = stop.cancelled() => {}
            }
        }
    }));
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(value) = HeaderValue::from_str(&accepted) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, value);
    }
    response
}

async fn converse<IO, S>(io: IO, content: Content, frames: S) -> std::io::Result<()>
where
    IO: AsyncRead + AsyncWrite,
    S: Stream<Item = Bytes>,
{
    let (from, mut to) = tokio::io::split(io);
    // A ping, or none for the end: what else a client says is passed over, piece by piece.
    let (said, mut heard) = tokio::sync::mpsc::channel::<Option<Vec<u8>>>(1);
    let listen = async {
        let mut reader = Reader::new(Side::Server, from);
        loop {
            let news = match reader.next().await? {
                Some(Message::Data(_)) => continue,
                Some(Message::Ping(payload)) => Some(payload),
                None => None,
            };
            let is_end = news.is_none();
            if said.send(news).await.is_err() {
                return Ok(());
            }
            if is_end {
                // The other side answers the close.
                std::future::pending::<()>().await;
            }
        }
    };
    let speak = async {
        tokio::pin!(frames);
        loop {
            tokio::select! {
                frame = frames.next() => {
                    let Some(frame) = frame else {
                        return to.write_all(&message(Opcode::Close, &[])).await;
                    };
                    to.write_all(&content.messages(&frame)).await?;
                }
                heard = heard.recv() => match heard.flatten() {
                    Some(payload) => to.write_all(&message(Opcode::Pong, &payload)).await?,
                    None => return to.write_all(&message(Opcode::Close, &[])).await,
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

fn message(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    websocket::frame(Side::Server, opcode, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn events_become_messages_and_a_close_is_answered() {
        let frames =
            Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n{\"type\":\"DELETED\",\"object\":{\n}}\n");
        let (mut client, server) = tokio::io::duplex(4096);
        let frames = futures_util::stream::iter([frames]).chain(futures_util::stream::pending());
        let serving = tokio::spawn(converse(server, Content::Events, frames));
        let expected = ["{\"type\":\"ADDED\",\"object\":{}}\n", "{\"type\":\"DELETED\",\"object\":{\n}}\n"];
        let expected: Vec<u8> = expected.iter().flat_map(|event| message(Opcode::Text, event.as_bytes())).collect();
        let mut received = vec![0; expected.len()];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, expected);
        client.write_all(&websocket::frame(Side::Client, Opcode::Ping, b"hi")).await.unwrap();
        client.write_all(&websocket::frame(Side::Client, Opcode::Close, &[])).await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, [message(Opcode::Pong, b"hi"), message(Opcode::Close, &[])].concat());
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
        assert_eq!(Content::Base64.messages(b"hi"), b"\x81\x04aGk=");
    }
}
