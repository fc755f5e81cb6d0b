//! Headers on their way through: those of one connection stay there, and backends learn who asked.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::table::HeaderEdits;

/// What backends are told about the client. Nobody else can say it: what a client sends under these names is dropped.
const FORWARDED: [HeaderName; 6] = [
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-real-ip"),
    header::FORWARDED,
];

/// What some backends take for the path, or for a proxy of their own.
const OVERRIDES: [&str; 3] = ["x-original-url", "x-rewrite-url", "proxy"];

/// Of one connection only (RFC 9110, 7.6.1).
const OF_CONNECTION: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
];

/// Headers that a backend acts on beyond this exchange and that its clients are not to choose.
const OF_PROXIES: [HeaderName; 1] = [header::PROXY_AUTHORIZATION];

/// The protocol that an exchange is to go on in; only WebSocket, since others lead around what is checked here.
pub(crate) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = tokens(headers, &header::CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(header::UPGRADE).filter(|_| wants)?;
    let is_one = headers.get_all(header::UPGRADE).iter().count() == 1;
    (is_one && protocol.as_bytes().eq_ignore_ascii_case(b"websocket")).then(|| protocol.clone())
}

/// Takes out what concerns one connection. That a client reads trailers is kept: gRPC needs to know.
pub(crate) fn remove_of_connection(headers: &mut HeaderMap) {
    // Most heads have nothing of the kind: one look at their names in place of one for each of ours.
    if !headers.keys().any(|name| is_of_connection(name.as_str())) {
        return;
    }
    // Most that name a header name this one, which goes anyway.
    let others = tokens(headers, &header::CONNECTION).filter(|token| !token.eq_ignore_ascii_case("keep-alive"));
    let named: Vec<HeaderName> = others.filter_map(|token| token.parse::<HeaderName>().ok()).collect();
    let trailers = tokens(headers, &header::TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let named = named.iter().filter(|name| may_be_named(name.as_str()));
    for name in named.chain(&OF_CONNECTION).chain(&OF_PROXIES) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a header of this name, in any spelling, stays on the connection that it came on.
pub(super) fn is_of_connection(name: &str) -> bool {
    OF_CONNECTION.iter().chain(&OF_PROXIES).any(|known| known.as_str().eq_ignore_ascii_case(name))
}

/// Whether a header may be named as one that stays there, too. A client must not have what we say about it, or what the exchange is about,
/// taken out.
pub(super) fn may_be_named(name: &str) -> bool {
    let kept = [header::HOST, header::CONTENT_LENGTH, header::AUTHORIZATION, header::COOKIE];
    !FORWARDED.iter().chain(&kept).any(|known| known.as_str().eq_ignore_ascii_case(name))
}

/// Why two readers might not agree where the body of a message ends (RFC 9112, 6.3), if so.
pub(super) fn unclear_end(headers: &HeaderMap) -> Option<&'static str> {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let encoding = encodings.next()?;
    if encodings.next().is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Some("unknown transfer encoding");
    }
    headers.contains_key(header::CONTENT_LENGTH).then_some("both a length and a transfer encoding")
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(listed)
}

/// The elements of a list.
pub(super) fn listed(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|token| !token.is_empty())
}

/// What backends are told about a connection, written once for all of its requests.
#[derive(Clone)]
pub(crate) struct Forwarded {
    client: Option<HeaderValue>,
    proto: HeaderValue,
    port: HeaderValue,
}

impl Forwarded {
    pub(crate) fn new(client: IpAddr, is_secure: bool, port: u16) -> Self {
        Self {
            client: HeaderValue::from_str(&client.to_canonical().to_string()).ok(),
            proto: HeaderValue::from_static(if is_secure { "https" } else { "http" }),
            port: port.into(),
        }
    }

    /// Says who asked, in place of whatever the client says about that, in either spelling that programs confuse.
    pub(crate) fn set(&self, headers: &mut HeaderMap, host: &HeaderValue) {
        for name in headers.keys().filter(|name| is_claim(name.as_str())).cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
        headers.reserve(FORWARDED.len());
        for (name, value) in FORWARDED.into_iter().zip(self.values(host, |value| value)) {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
    }

    /// As [`Self::set`] has it, for a head that is written as it goes.
    pub(super) fn write(&self, host: &[u8], mut line: impl FnMut(&str, &[u8])) {
        for (name, value) in FORWARDED.iter().zip(self.values(host, HeaderValue::as_bytes)) {
            if let Some(value) = value {
                line(name.as_str(), value);
            }
        }
    }

    /// In the order of [`FORWARDED`].
    fn values<'a, T: Copy>(&'a self, host: T, of: impl Fn(&'a HeaderValue) -> T) -> [Option<T>; 5] {
        let client = self.client.as_ref().map(&of);
        [client, Some(of(&self.proto)), Some(host), Some(of(&self.port)), client]
    }
}

/// Whether a header, in any spelling, says what only we may say.
pub(super) fn is_claim(name: &str) -> bool {
    const PREFIX: &str = "x-forwarded-";
    let is_like = |name: &[u8], known: &str| {
        let folded = name.iter().map(|byte| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() });
        folded.eq(known.bytes())
    };
    let name = name.as_bytes();
    name.get(..PREFIX.len()).is_some_and(|start| is_like(start, PREFIX))
        || FORWARDED.iter().any(|known| is_like(name, known.as_str()))
        || OVERRIDES.iter().any(|known| is_like(name, known))
}

/// HTTP/2 may have split cookies, which HTTP/1 has in one line (RFC 9113, 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().count() > 1 {
        let all: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
            headers.insert(header::COOKIE, joined);
        }
    }
}

pub(crate) fn edit(headers: &mut HeaderMap, edits: &HeaderEdits) {
    for name in &edits.remove {
        headers.remove(name);
    }
    for (name, value) in &edits.set {
        headers.insert(name, value.clone());
    }
    for (name, value) in &edits.add {
        headers.append(name, value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn security_headers_of_a_connection_stay_there() {
        let mut map = headers(&[
            ("connection", "keep-alive, X-Secret, authorization, x-forwarded-for"),
            ("x-secret", "1"),
            ("authorization", "Bearer t"),
            ("keep-alive", "5"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "p"),
            ("x-forwarded-for", "spoofed"),
            ("x_forwarded_for", "spoofed"),
            ("forwarded", "for=spoofed"),
            ("x-forwarded-prefix", "/spoofed"),
            ("x_forwarded_scheme", "spoofed"),
            ("x-original-url", "/admin"),
            ("x_rewrite_url", "/admin"),
            ("proxy", "spoofed"),
            ("accept", "*/*"),
        ]);
        remove_of_connection(&mut map);
        let forwarded = Forwarded::new("::ffff:192.0.2.1".parse().unwrap(), true, 443);
        forwarded.set(&mut map, &HeaderValue::from_static("a.test"));
        let mut left: Vec<String> =
            map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        left.sort();
        let expected = [
            "accept: */*",
            "authorization: Bearer t",
            "te: trailers",
            "x-forwarded-for: 192.0.2.1",
            "x-forwarded-host: a.test",
            "x-forwarded-port: 443",
            "x-forwarded-proto: https",
            "x-real-ip: 192.0.2.1",
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn security_no_upgrade_but_websocket() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, upgrade", "WebSocket", true),
            ("keep-alive", "websocket", false),
            ("Upgrade, HTTP2-Settings", "h2c", false),
            ("Upgrade", "websocket, h2c", false),
        ] {
            let map = headers(&[("connection", connection), ("upgrade", upgrade)]);
            assert_eq!(wanted_upgrade(&map).is_some(), expected, "{connection} {upgrade}");
        }
    }

    #[test]
    fn cookies_are_one_line() {
        let mut map = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        join_cookies(&mut map);
        assert_eq!(map, headers(&[("cookie", "a=1; b=2")]));
    }

    #[test]
    fn edits_remove_set_and_add() {
        let mut map = headers(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let value = HeaderValue::from_static;
        let edits = HeaderEdits {
            set: vec![(HeaderName::from_static("b"), value("x"))],
            add: vec![(HeaderName::from_static("c"), value("4"))],
            remove: vec![HeaderName::from_static("a")],
        };
        edit(&mut map, &edits);
        assert_eq!(map, headers(&[("b", "x"), ("c", "3"), ("c", "4")]));
    }
}
