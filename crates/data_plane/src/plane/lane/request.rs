//! Which requests the lane takes, and how they go on.
//!
//! It takes what every reader of HTTP reads alike and what needs nothing but an endpoint. Everything else, and everything that is to be
//! refused, is for hyper and [`forward`](super::super::forward): there is one home for refusals.

use std::mem::MaybeUninit;
use std::sync::Arc;

use http::{HeaderName, Method};
use httparse::{Header, Status};

use super::buffer::{Buffer, SMALL};
use super::{is, line, scratch, write_length};
use crate::hostname;
use crate::plane::DataPlane;
use crate::plane::forward::{Arrival, choose, find};
use crate::plane::headers::{Forwarded, is_claim, is_of_connection, listed};
use crate::plane::request::{MAX_HEADER_COUNT, MAX_TARGET, normalized};
use crate::table::{Action, Asked, Backend, BackendProtocol, Headers, Route, Weighted};

/// What is to be done with what a client has sent.
pub(super) enum Decision {
    /// More has to be read.
    Wait,
    /// It is not for the lane.
    HandOver,
    Take(Taken),
}

/// A request of the lane, whose head stands in the buffer as the endpoint is to get it.
pub(super) struct Taken {
    pub(super) route: Arc<Route>,
    pub(super) backend: Arc<Backend>,
    pub(super) is_head: bool,
    /// Whether the client wants to go on after it.
    pub(super) is_kept: bool,
    /// Bytes of the head, and of the body.
    pub(super) head: usize,
    pub(super) body: u64,
    pub(super) logged: Option<Logged>,
}

/// What the access log says about a request.
pub(super) struct Logged {
    pub(super) method: Method,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) agent: Vec<u8>,
}

/// A head as the client wrote it.
#[derive(Debug)]
struct Plain<'h, 'b> {
    method: Method,
    target: &'b str,
    host: &'b str,
    headers: &'h [Header<'b>],
    body: Option<u64>,
    is_kept: bool,
    /// How many bytes it has.
    length: usize,
}

enum Read<'h, 'b> {
    Part,
    Odd,
    Plain(Plain<'h, 'b>),
}

/// Decides about the request at the front of a buffer.
pub(super) fn decide(buffer: &mut Buffer, plane: &DataPlane, arrival: &Arrival) -> Decision {
    scratch(|head| {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADER_COUNT];
        let found = match read(buffer.unread(), &mut headers) {
            Read::Part if buffer.unread().len() < SMALL && buffer.has_room() => return Decision::Wait,
            Read::Part | Read::Odd => None,
            Read::Plain(plain) => taken(&plain, plane, arrival, head),
        };
        match found {
            Some((taken, length)) if buffer.replace(length, head) => Decision::Take(taken),
            _ => Decision::HandOver,
        }
    })
}

/// What is taken, with its new head, and how long the old one was.
fn taken(plain: &Plain<'_, '_>, plane: &DataPlane, arrival: &Arrival, head: &mut Vec<u8>) -> Option<(Taken, usize)> {
    let host = hostname::of_authority(plain.host)?;
    let (path, query) = match plain.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (plain.target, None),
    };
    let path = normalized(path)?;
    let body = plain.body.unwrap_or(0);
    if plane.limits.max_body.is_some_and(|limit| body > limit) {
        return None;
    }
    let asked = Asked { path: &path, query, method: &plain.method, headers: &Lines(plain.headers) };
    // What else is in the table is let go of: a request may outlive many tables.
    let route = find(&plane.table.load(), arrival, &host, &asked).ok()?.route.clone();
    let backend = plain_backends(&route).and_then(choose)?.backend.clone()?;
    write(plain, &arrival.forwarded, head);
    let logged = plane.log.is_on().then(|| Logged {
        method: plain.method.clone(),
        host: host.clone().into_owned(),
        path: path.clone().into_owned(),
        agent: plain.header("user-agent").unwrap_or_default().to_vec(),
    });
    let (is_head, is_kept) = (plain.method == Method::HEAD, plain.is_kept);
    let taken = Taken { route, backend, is_head, is_kept, head: head.len(), body, logged };
    Some((taken, plain.length))
}

/// The backends of a route that does nothing but lead to them. None if the lane cannot take its share of all of them: what it left to
/// others would get their share twice.
fn plain_backends(route: &Route) -> Option<&[Weighted]> {
    let Action::Forward(backends) = &route.action else { return None };
    let is_plain = |weighted: &Weighted| {
        let is_reached =
            |backend: &Arc<Backend>| backend.protocol == BackendProtocol::Http1 && !backend.endpoints.is_empty();
        weighted.filters.is_empty() && weighted.backend.as_ref().is_some_and(is_reached)
    };
    (route.filters.is_empty() && backends.iter().all(is_plain)).then_some(backends)
}

impl<'b> Plain<'_, 'b> {
    fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
    }
}

/// What rules ask of headers.
struct Lines<'a>(&'a [Header<'a>]);

impl Headers for Lines<'_> {
    fn joined(&self, name: &HeaderName) -> Option<String> {
        let of_name = self.0.iter().filter(|header| header.name.eq_ignore_ascii_case(name.as_str()));
        let mut text: Option<String> = None;
        for header in of_name {
            let value = std::str::from_utf8(header.value).ok().filter(|value| value.is_ascii())?;
            match &mut text {
                Some(text) => text.extend([",", value]),
                None => text = Some(value.to_owned()),
            }
        }
        text
    }
}

/// Whether there is a plain request.
fn read<'h, 'b>(bytes: &'b [u8], headers: &'h mut [MaybeUninit<Header<'b>>; MAX_HEADER_COUNT]) -> Read<'h, 'b> {
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, headers) {
        Ok(Status::Complete(length)) => {
            let is_line = |at: usize| at.checked_sub(1).is_some_and(|before| bytes[before] == b'\r');
            // Some take a line feed by itself for the end of a line, and some do not.
            match length <= SMALL && memchr::memchr_iter(b'\n', &bytes[..length]).all(is_line) {
                true => plain(request, length).map_or(Read::Odd, Read::Plain),
                false => Read::Odd,
            }
        }
        Ok(Status::Partial) => Read::Part,
        Err(_) => Read::Odd,
    }
}

fn plain<'h, 'b>(request: httparse::Request<'h, 'b>, length: usize) -> Option<Plain<'h, 'b>> {
    let method = match request.method? {
        "GET" => Method::GET,
        "HEAD" => Method::HEAD,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "PATCH" => Method::PATCH,
        "DELETE" => Method::DELETE,
        "OPTIONS" => Method::OPTIONS,
        _ => return None,
    };
    let target = request.path.filter(|target| is_plain_target(target))?;
    if request.version != Some(1) {
        return None;
    }
    let (mut host, mut body, mut has_cookie, mut is_kept) = (None, None, false, true);
    let headers: &'h [Header<'b>] = request.headers;
    for header in headers {
        // By their lengths: most are none of these.
        match header.name.len() {
            4 if is(header, "host") => {
                let value = std::str::from_utf8(header.value).ok().filter(|_| host.is_none())?;
                host = Some(value);
            }
            14 if is(header, "content-length") => {
                let length = number(header.value).filter(|_| body.is_none())?;
                body = Some(length);
            }
            10 if is(header, "connection") => {
                for token in listed(std::str::from_utf8(header.value).ok()?) {
                    match token {
                        token if token.eq_ignore_ascii_case("close") => is_kept = false,
                        token if token.eq_ignore_ascii_case("keep-alive") => {}
                        _ => return None,
                    }
                }
            }
            // Joined to one line elsewhere.
            6 if is(header, "cookie") && std::mem::replace(&mut has_cookie, true) => return None,
            2 if is(header, "te") => return None,
            6 if is(header, "expect") => return None,
            7 if is(header, "upgrade") || is(header, "trailer") => return None,
            17 if is(header, "transfer-encoding") => return None,
            _ => {}
        }
    }
    Some(Plain { method, target, host: host?, headers, body, is_kept, length })
}

/// A path, and perhaps a query, of which all that read it have the same idea.
fn is_plain_target(target: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'/' | b'-' | b'.' | b'_' | b'~' | b'%' | b'?' | b'=' | b'&' | b'+' | b',' | b':' | b'@')
            || matches!(byte, b'!' | b'$' | b'\'' | b'(' | b')' | b'*' | b';')
    };
    target.starts_with('/') && target.len() <= MAX_TARGET && target.bytes().all(is_plain)
}

/// A length: digits and nothing else, and not too many.
pub(super) fn number(value: &[u8]) -> Option<u64> {
    let is_number = matches!(value.len(), 1..=18) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0')))
}

/// The head as the endpoint gets it.
fn write(plain: &Plain<'_, '_>, forwarded: &Forwarded, out: &mut Vec<u8>) {
    line(out, [plain.method.as_str().as_bytes(), b" ", plain.target.as_bytes(), b" HTTP/1.1\r\n"]);
    line(out, [b"host", b": ", plain.host.as_bytes(), b"\r\n"]);
    for header in plain.headers {
        let is_written = is(header, "host") || is(header, "content-length");
        if !is_written && !is_of_connection(header.name) && !is_claim(header.name) {
            line(out, [header.name.as_bytes(), b": ", header.value, b"\r\n"]);
        }
    }
    forwarded.write(plain.host.as_bytes(), |name, value| line(out, [name.as_bytes(), b": ", value, b"\r\n"]));
    if let Some(body) = plain.body {
        write_length(out, body);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::super::damage::damaged;
    use super::*;

    /// P: a part, O: odd, t: taken.
    fn judged(head: &str) -> char {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADER_COUNT];
        match read(head.as_bytes(), &mut headers) {
            Read::Part => 'P',
            Read::Odd => 'O',
            Read::Plain(_) => 't',
        }
    }

    #[test]
    fn security_the_lane_takes_what_all_read_alike() {
        for (expected, lines) in [
            ('t', "GET / HTTP/1.1\r\nHost: a.test\r\n"),
            ('t', "HEAD /a;b=c/%2F?d=e&f=(g)!$'*,:@+~ HTTP/1.1\r\nhost:a.test\r\n"),
            ('t', "\r\n\r\nGET / HTTP/1.1\r\nHost: a.test\r\n"),
            ('t', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n"),
            ('t', "DELETE / HTTP/1.1\r\nHost: a.test\r\nConnection: close, Keep-Alive\r\nCookie: a=b\r\n"),
            ('t', "GET / HTTP/1.1\r\nHost: a.test\r\nX: \u{e9}\r\nAccept:\r\n"),
            // Other versions and forms.
            ('O', "GET / HTTP/1.0\r\nHost: a.test\r\n"),
            ('O', "GET / HTTP/2.0\r\nHost: a.test\r\n"),
            ('O', "PRI * HTTP/2.0\r\n"),
            ('O', "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "TRACE / HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "get / HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET  / HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET /a b HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET /#a HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET /\\a HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET /\u{e9} HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET /\"a\" HTTP/1.1\r\nHost: a.test\r\n"),
            // Hosts.
            ('O', "GET / HTTP/1.1\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n"),
            // Lengths.
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1, 1\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: +1\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: -1\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0x1\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length:\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9999999999999999999\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\ntransfer-encoding: xchunked\r\n"),
            // Lines.
            ('O', "GET / HTTP/1.1\nHost: a.test\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\nX: y\r\n"),
            ('O', "\nGET / HTTP/1.1\r\nHost: a.test\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\n X: y\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nX: y\r\n\tz\r\n"),
            ('O', "GET / HTTP/1.1\r\n Host: a.test\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost : a.test\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nX: a\0b\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nX\0: a\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\n: a\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nnothing\r\n"),
            // What asks for more than an exchange.
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: h2c\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: X-Hop\r\n"),
            ('O', "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nExpect: 100-continue\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nTrailer: X\r\n"),
            ('O', "GET / HTTP/1.1\r\nHost: a.test\r\nCookie: a\r\nCookie: b\r\n"),
        ] {
            let head = format!("{lines}\r\n");
            assert_eq!(judged(&head), expected, "{head}");
            // No part of it is taken for the whole.
            for end in 0..head.len() - 1 {
                let Some(part) = head.get(..end) else { continue };
                assert_ne!(judged(part), 't', "{head}: {end}");
            }
        }
        let many = |count: usize| {
            let lines: String = (1..count).map(|number| format!("X-{number}: y\r\n")).collect();
            judged(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n"))
        };
        assert_eq!((many(MAX_HEADER_COUNT), many(MAX_HEADER_COUNT + 1)), ('t', 'O'));
        let long =
            |length: usize| judged(&format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", "y".repeat(length)));
        assert_eq!((long(SMALL - 100), long(SMALL)), ('t', 'O'));
    }

    #[test]
    fn security_an_endpoint_gets_the_head_of_a_request_without_what_is_not_its() {
        let head = "PUT /a?b HTTP/1.1\r\nhOST: A.test:80\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\n\
                    Proxy-Authorization: p\r\nProxy-Connection: x\r\nAuthorization: a\r\nX_Forwarded-For: 203.0.113.9\r\n\
                    x-Forwarded-Prefix: /x\r\nForwarded: for=x\r\nX-Real_IP: 203.0.113.9\r\nX-Original-URL: /admin\r\n\
                    Proxy: x\r\nX:y  \r\nContent-Length: 007\r\n\r\n";
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADER_COUNT];
        let Read::Plain(plain) = read(head.as_bytes(), &mut headers) else { panic!("it is plain") };
        let mut out = Vec::new();
        write(&plain, &Forwarded::new("2001:db8::1".parse().unwrap(), true, 443), &mut out);
        let expected = "PUT /a?b HTTP/1.1\r\nhost: A.test:80\r\nAuthorization: a\r\nX: y\r\n\
                        x-forwarded-for: 2001:db8::1\r\nx-forwarded-proto: https\r\nx-forwarded-host: A.test:80\r\n\
                        x-forwarded-port: 443\r\nx-real-ip: 2001:db8::1\r\ncontent-length: 7\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn what_is_taken_reads_the_same_when_it_was_written() {
        let head = b"POST /a?b=c HTTP/1.1\r\nHost: a.test\r\nX: y\r\nCookie: a=b\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
        let forwarded = Forwarded::new("192.0.2.1".parse().unwrap(), false, 80);
        let mut count = 0;
        for bytes in damaged(head, 20_000) {
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADER_COUNT];
            let Read::Plain(plain) = read(&bytes, &mut headers) else { continue };
            count += 1;
            let mut out = Vec::new();
            write(&plain, &forwarded, &mut out);
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADER_COUNT];
            let Read::Plain(again) = read(&out, &mut headers) else { panic!("{}", out.escape_ascii()) };
            let said = |plain: &Plain<'_, '_>| {
                (plain.method.clone(), plain.target.to_owned(), plain.host.to_owned(), plain.body)
            };
            assert_eq!(said(&again), said(&plain), "{}", bytes.escape_ascii());
            assert_eq!(again.length, out.len(), "{}", bytes.escape_ascii());
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn a_rule_finds_the_headers_it_asks_for() {
        let header = |name, value: &'static str| Header { name, value: value.as_bytes() };
        let lines = [header("X-Tier", "a"), header("x-tier", "b"), header("Y", "\u{e9}"), header("z", "")];
        for (name, expected) in [("x-tier", Some("a,b")), ("y", None), ("z", Some("")), ("other", None)] {
            assert_eq!(Lines(&lines).joined(&name.parse().unwrap()).as_deref(), expected, "{name}");
        }
    }
}
