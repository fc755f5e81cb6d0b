//! The head of an answer: how its body ends, and how it goes on to the client.

use std::cell::RefCell;
use std::mem::MaybeUninit;

use httparse::{Header, Status};
use jiff::fmt::rfc2822::DateTimePrinter;

use super::framing::{Chunks, Framing};
use super::request::number;
use super::{is, line, write_length};
use crate::plane::access_log::now;
use crate::plane::headers::{is_of_connection, listed, may_be_named};
use crate::plane::request::Refusal;

/// As hyper has it.
const MAX_HEADER_COUNT: usize = 100;

/// A head that was read to its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) code: u16,
    /// How many bytes it had.
    pub(super) length: usize,
    pub(super) framing: Framing,
    /// Whether the endpoint takes another request on the connection.
    pub(super) is_kept: bool,
}

/// What cannot be passed on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadHead {
    #[error("the head of the answer: {0}")]
    Parse(#[from] httparse::Error),
    #[error("the code {0} of the answer")]
    Code(u16),
    #[error("it is not clear where the answer ends")]
    Framing,
}

/// What was asked, as far as the answer depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) is_head: bool,
    /// The client's connection ends with this answer.
    pub(super) is_last: bool,
}

/// Reads a head, and writes it as the client gets it; none if it is not all there. What is not the last answer (1xx) is not written.
pub(super) fn read(bytes: &[u8], asked: Asked, out: &mut Vec<u8>) -> Result<Option<Head>, BadHead> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADER_COUNT];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut headers)?;
    let (Status::Complete(length), Some(code), Some(version)) = (parsed, response.code, response.version) else {
        return Ok(None);
    };
    if !(100..1000).contains(&code) {
        return Err(BadHead::Code(code));
    }
    if code < 200 {
        return Ok(Some(Head { code, length, framing: Framing::Length(0), is_kept: false }));
    }
    let named = Named::new(response.headers, version)?;
    let has_body = !asked.is_head && !matches!(code, 204 | 304);
    let framing = match (named.is_chunked, named.length) {
        // As `unclear_end` has it, whether or not there is a body.
        (true, Some(_)) => return Err(BadHead::Framing),
        _ if !has_body => Framing::Length(0),
        (true, None) => Framing::Chunked(Chunks::default()),
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::UntilClose,
    };
    let is_kept = named.is_kept && framing != Framing::UntilClose;
    write_status(out, code, response.reason.unwrap_or_default());
    for header in response.headers.iter() {
        if !named.stays(header) && !is(header, "content-length") {
            line(out, [header.name.as_bytes(), b": ", header.value, b"\r\n"]);
        }
    }
    match (&framing, named.length) {
        (Framing::Chunked(_) | Framing::UntilClose, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        // Of what has no body it says what the body would be.
        (Framing::Length(_), Some(length)) if code != 204 => write_length(out, length),
        (Framing::Length(_), _) => {}
    }
    if !named.has_date {
        write_date(out);
    }
    write_end(out, asked);
    Ok(Some(Head { code, length, framing, is_kept }))
}

/// An answer of our own, whole.
pub(super) fn write_refusal((code, text): Refusal, asked: Asked, out: &mut Vec<u8>) {
    write_status(out, code.as_u16(), code.canonical_reason().unwrap_or_default());
    out.extend_from_slice(b"content-type: text/plain; charset=utf-8\r\n");
    write_length(out, text.len() as u64 + 1);
    write_date(out);
    write_end(out, asked);
    if !asked.is_head {
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
}

/// What is looked for among the headers of an answer.
#[derive(Default)]
struct Named<'b> {
    length: Option<u64>,
    is_chunked: bool,
    is_kept: bool,
    has_date: bool,
    /// What else it says stays on the connection: read once, for an answer may have many headers and many names.
    others: Vec<&'b str>,
}

impl<'b> Named<'b> {
    fn new(headers: &[Header<'b>], version: u8) -> Result<Self, BadHead> {
        let mut this = Self { is_kept: version == 1, ..Self::default() };
        let mut says_close = false;
        for header in headers {
            match header.name.len() {
                4 if is(header, "date") => this.has_date = true,
                10 if is(header, "connection") => {
                    for token in elements(header) {
                        match token {
                            token if token.eq_ignore_ascii_case("close") => says_close = true,
                            token if token.eq_ignore_ascii_case("keep-alive") => this.is_kept = true,
                            name if may_be_named(name) => this.others.push(name),
                            _ => {}
                        }
                    }
                }
                14 if is(header, "content-length") => {
                    let length = number(header.value).ok_or(BadHead::Framing)?;
                    if this.length.replace(length).is_some_and(|other| other != length) {
                        return Err(BadHead::Framing);
                    }
                }
                17 if is(header, "transfer-encoding") => {
                    let is_chunked = header.value.eq_ignore_ascii_case(b"chunked") && version == 1;
                    if !is_chunked || std::mem::replace(&mut this.is_chunked, true) {
                        return Err(BadHead::Framing);
                    }
                }
                _ => {}
            }
        }
        this.is_kept &= !says_close;
        Ok(this)
    }

    /// Whether a header is of the endpoint's connection.
    fn stays(&self, header: &Header<'_>) -> bool {
        is_of_connection(header.name) || self.others.iter().any(|name| is(header, name))
    }
}

fn elements<'b>(header: &Header<'b>) -> impl Iterator<Item = &'b str> {
    listed(std::str::from_utf8(header.value).unwrap_or_default())
}

fn write_status(out: &mut Vec<u8>, code: u16, reason: &str) {
    let digit = |place: u16| b'0' + (code / place % 10) as u8;
    line(out, [b"HTTP/1.1 ", &[digit(100), digit(10), digit(1), b' '], reason.as_bytes(), b"\r\n"]);
}

fn write_end(out: &mut Vec<u8>, asked: Asked) {
    out.extend_from_slice(if asked.is_last { b"connection: close\r\n\r\n" } else { b"\r\n" });
}

/// When the answer came, for endpoints without a clock.
fn write_date(out: &mut Vec<u8>) {
    thread_local! {
        static WRITTEN: RefCell<(i64, String)> = const { RefCell::new((0, String::new())) };
    }
    let now = now();
    WRITTEN.with_borrow_mut(|(second, text)| {
        if *second != now.as_second() {
            *text = DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap_or_default();
            *second = now.as_second();
        }
        line(out, [b"date: ", text.as_bytes(), b"\r\n", b""]);
    });
}

#[cfg(test)]
mod tests {
    use super::super::damage::damaged;
    use super::*;

    const ASKED: Asked = Asked { is_head: false, is_last: false };

    /// The head as the client gets it, without the date, and what was read.
    fn passed(head: &str, asked: Asked) -> Result<(String, Head), BadHead> {
        let mut out = Vec::new();
        for end in 0..head.len() {
            let part = read(&head.as_bytes()[..end], asked, &mut out);
            assert!(matches!(part, Ok(None) | Err(_)) && out.is_empty(), "{head}: {end}");
        }
        let read = read(head.as_bytes(), asked, &mut out)?.expect("all of it is there");
        let text = String::from_utf8(out).unwrap();
        let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
        Ok((lines.collect(), read))
    }

    #[test]
    fn an_answer_ends_where_its_head_says() {
        let chunked = || Framing::Chunked(Chunks::default());
        let head = Asked { is_head: true, is_last: false };
        for (lines, asked, framing, is_kept) in [
            ("200 OK\r\nContent-Length: 5\r\n", ASKED, Framing::Length(5), true),
            ("200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n", ASKED, Framing::Length(5), true),
            ("200 OK\r\nTransfer-Encoding: Chunked\r\n", ASKED, chunked(), true),
            ("200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n", ASKED, chunked(), false),
            ("200 OK\r\nConnection: keep-alive, close\r\nContent-Length: 0\r\n", ASKED, Framing::Length(0), false),
            ("200 OK\r\n", ASKED, Framing::UntilClose, false),
            ("200 OK\r\nContent-Length: 5\r\n", head, Framing::Length(0), true),
            ("200 OK\r\nTransfer-Encoding: chunked\r\n", head, Framing::Length(0), true),
            ("204 No Content\r\n", ASKED, Framing::Length(0), true),
            ("304 Not Modified\r\nContent-Length: 5\r\n", ASKED, Framing::Length(0), true),
            ("200 \r\nContent-Length: 5\r\n", ASKED, Framing::Length(5), true),
        ] {
            let (_, read) = passed(&format!("HTTP/1.1 {lines}\r\n"), asked).unwrap();
            assert_eq!((read.framing, read.is_kept), (framing, is_kept), "{lines}");
        }
        for (connection, expected) in
            [("", false), ("Connection: keep-alive\r\n", true), ("Connection: close\r\n", false)]
        {
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n{connection}\r\n");
            assert_eq!(passed(&head, ASKED).unwrap().1.is_kept, expected, "{head}");
        }
    }

    #[test]
    fn security_an_answer_that_could_end_in_two_places_is_not_passed_on() {
        for lines in [
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            "Content-Length: 5, 6\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: -5\r\n",
            "Content-Length: 5x\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding : chunked\r\n",
            "X: a\r\n Content-Length: 5\r\n",
            "X: a\rContent-Length: 5\r\n",
            "X: \0\r\nContent-Length: 5\r\n",
        ] {
            assert!(passed(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), ASKED).is_err(), "{lines}");
        }
        for status in [
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
            "HTTP/2 200 OK",
            "HTTP/1.1 099 X",
            "HTTP/1.1 20 OK",
            "GET / HTTP/1.1",
        ] {
            assert!(passed(&format!("{status}\r\n\r\n"), ASKED).is_err(), "{status}");
        }
    }

    #[test]
    fn headers_of_the_endpoints_connection_stay_there() {
        let head = "HTTP/1.1 200 Fine\r\nServer: x\r\nConnection: X-Hop, content-length\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\
                    Upgrade: h2c\r\nSet-Cookie: a\r\nset-cookie:b \r\nContent-Length: 005\r\n\r\n";
        let (text, _) = passed(head, ASKED).unwrap();
        let kept = "HTTP/1.1 200 Fine\r\nServer: x\r\nSet-Cookie: a\r\nset-cookie: b\r\ncontent-length: 5\r\n";
        assert_eq!(text, format!("{kept}\r\n"));
        let (text, _) = passed(head, Asked { is_head: false, is_last: true }).unwrap();
        assert_eq!(text, format!("{kept}connection: close\r\n\r\n"));
    }

    #[test]
    fn names_of_what_stays_are_read_once() {
        let header = |name, value: &'static str| Header { name, value: value.as_bytes() };
        let headers = [
            header("Connection", "X-Hop, close, Content-Length, cookie"),
            header("X-Hop", "1"),
            header("connection", "y,, keep-alive, X-Forwarded-For"),
            header("Y", "2"),
            header("Z", "3"),
        ];
        let named = Named::new(&headers, 1).unwrap();
        assert_eq!((&named.others[..], named.is_kept), (&["X-Hop", "y"][..], false));
        let stay: Vec<&str> = headers.iter().filter(|header| named.stays(header)).map(|header| header.name).collect();
        assert_eq!(stay, ["Connection", "X-Hop", "connection", "Y"]);
    }

    #[test]
    fn what_is_passed_on_ends_where_it_ended() {
        let mut count = 0;
        for lines in ["Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n"] {
            let head = format!("HTTP/1.1 200 OK\r\nX: y\r\n{lines}Connection: X\r\nServer: z\r\n\r\n");
            for bytes in damaged(head.as_bytes(), 10_000) {
                let (mut out, mut again) = (Vec::new(), Vec::new());
                let Ok(Some(head)) = read(&bytes, ASKED, &mut out) else { continue };
                count += 1;
                let passed = read(&out, ASKED, &mut again).unwrap().expect("it is whole");
                let framing = match head.framing {
                    Framing::UntilClose => Framing::Chunked(Chunks::default()),
                    framing => framing,
                };
                let expected = (head.code, out.len(), framing);
                assert_eq!((passed.code, passed.length, passed.framing), expected, "{}", bytes.escape_ascii());
            }
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn an_answer_has_one_date() {
        let mut out = Vec::new();
        for (date, expected) in [("", 1), ("Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n", 1)] {
            out.clear();
            read(format!("HTTP/1.1 200 OK\r\n{date}\r\n").as_bytes(), ASKED, &mut out).unwrap();
            let text = String::from_utf8(out.clone()).unwrap();
            assert_eq!(text.to_lowercase().matches("date: ").count(), expected, "{text}");
            assert!(text.contains(" GMT\r\n"), "{text}");
        }
    }
}
