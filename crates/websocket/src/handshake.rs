//! The handshake: what a client asks for and what a server answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, header};

/// What RFC 6455 appends to the client's key.
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A client's new key.
pub fn new_key() -> String {
    STANDARD.encode(rand::random::<[u8; 16]>())
}

/// The answer to a client's `Sec-WebSocket-Key`.
pub fn accept_key(key: &[u8]) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &[key, MAGIC].concat());
    STANDARD.encode(hash)
}

/// The client's key, if the request asks for a WebSocket.
pub fn key(headers: &HeaderMap) -> Option<&HeaderValue> {
    let has = |name: header::HeaderName, word: &str| {
        let text = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        text.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let asked = has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "websocket");
    headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| asked)
}

/// Whether a server's answer is one to `key`.
pub fn is_accepted(key: &str, answer: &HeaderMap) -> bool {
    answer
        .get(header::SEC_WEBSOCKET_ACCEPT)
        .is_some_and(|value| value.as_bytes() == accept_key(key.as_bytes()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let mut answer = HeaderMap::new();
        assert!(!is_accepted("dGhlIHNhbXBsZSBub25jZQ==", &answer));
        answer.insert(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert!(is_accepted("dGhlIHNhbXBsZSBub25jZQ==", &answer));
        assert!(!is_accepted("another", &answer));
    }

    #[test]
    fn a_key_counts_only_with_an_upgrade() {
        let mut headers = HeaderMap::new();
        headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_static("k"));
        assert!(key(&headers).is_none());
        headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        assert_eq!(key(&headers).unwrap(), "k");
    }
}
