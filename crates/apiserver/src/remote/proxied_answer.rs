//! Answers of pods and services that are reached through the API server: links to themselves stay on the proxied path.
//!
//! Flow: `connect` -> the backend -> here -> the client. Rules are upstream's (`proxy.Transport`, v1.36): a `Location`, or an
//! attribute of an HTML element that holds a URL, is changed if it is an absolute path on the backend's host or on the one the
//! client named. Everything else passes as it is.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::Status;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use futures_util::{Stream, StreamExt};
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt;

use crate::body::{self, Body, BodyError, full, guarded};

/// A page that is larger, as it came or with its links changed, is passed on unchanged.
const MAX_PAGE: usize = 16 << 20;
/// What all pages together may take that are held to change their links, until their clients have them. Others are passed on unchanged.
const MAX_PAGES: usize = 256 << 20;

static PAGES: Pages = Pages(AtomicUsize::new(0));

/// The bytes of pages that are held.
struct Pages(AtomicUsize);

/// The bytes of one page among them, as long as this lives.
struct Held {
    pages: &'static Pages,
    bytes: usize,
}

impl Held {
    fn none_of(pages: &'static Pages) -> Self {
        Self { pages, bytes: 0 }
    }

    /// Whether there is room for more bytes, which are then held.
    fn grow(&mut self, bytes: usize) -> bool {
        let fits = |held: usize| held.checked_add(bytes).filter(|held| *held <= MAX_PAGES);
        let has_room = self.pages.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        self.bytes += if has_room { bytes } else { 0 };
        has_room
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pages.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where a proxied answer comes from, and where its links must lead.
pub(crate) struct Links<'a> {
    /// The path that stands for the backend's root, without a final slash.
    pub(crate) prefix: &'a str,
    /// Host and port of the backend.
    pub(crate) backend: &'a str,
    /// What the client calls this server.
    pub(crate) requested: &'a str,
}

/// Passes an answer back with its links changed.
pub(crate) async fn pass(
    links: &Links<'_>,
    response: Response<hyper::body::Incoming>,
) -> Result<Response<Body>, Status> {
    let (mut parts, mut body) = response.into_parts();
    if let Some(location) = parts.headers.get(header::LOCATION).and_then(|value| value.to_str().ok()) {
        if let Some(value) = links.rewrite(location).and_then(|text| HeaderValue::from_str(&text).ok()) {
            parts.headers.insert(header::LOCATION, value);
        }
        return Ok(Response::from_parts(parts, streamed(body)));
    }
    let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_page = text(header::CONTENT_TYPE).split(';').next().is_some_and(|kind| kind.trim() == "text/html");
    let is_short = text(header::CONTENT_LENGTH).parse().is_ok_and(|length: usize| length <= MAX_PAGE)
        || !parts.headers.contains_key(header::CONTENT_LENGTH);
    let encoding = match text(header::CONTENT_ENCODING) {
        "" => Encoding::Plain,
        "gzip" => Encoding::Gzip,
        // Nobody can read that but the client.
        _ => return Ok(Response::from_parts(parts, streamed(body))),
    };
    if !is_page || !is_short {
        return Ok(Response::from_parts(parts, streamed(body)));
    }
    let unreadable = |error: BodyError| Status::service_unavailable(format!("error trying to reach service: {error}"));
    let (mut whole, mut held) = (BytesMut::new(), Held::none_of(&PAGES));
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| unreadable(error.into()))?.into_data() else { continue };
        whole.extend_from_slice(&piece);
        if whole.len() > MAX_PAGE || !held.grow(piece.len()) {
            let rest = body.into_data_stream().map(|piece| piece.map_err(BodyError::from));
            return Ok(Response::from_parts(parts, unchanged(whole.freeze(), held, rest)));
        }
    }
    let whole = whole.freeze();
    // What does not unpack is not ours to mend.
    let changed = encoding.unpack(&whole).and_then(|page| links.rewrite_page(&page)).map(|page| encoding.pack(page));
    let more = |changed: &Bytes| changed.len().saturating_sub(whole.len());
    let changed = changed.filter(|changed| held.grow(more(changed)));
    let page = changed.unwrap_or(whole);
    parts.headers.remove(header::CONTENT_LENGTH);
    if !page.is_empty() {
        parts.headers.insert(header::CONTENT_LENGTH, page.len().into());
    }
    Ok(Response::from_parts(parts, guarded(full(page), held)))
}

/// What was held of a page, until its client has it, and the rest as it comes, which may have no end.
fn unchanged(begun: Bytes, held: Held, rest: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Body {
    body::stream(guarded(full(begun), held).into_data_stream().chain(rest))
}

fn streamed(body: hyper::body::Incoming) -> Body {
    body.map_err(|error| Box::new(error) as BodyError).boxed_unsync()
}

#[derive(Clone, Copy)]
enum Encoding {
    Plain,
    Gzip,
}

impl Encoding {
    fn unpack(self, bytes: &Bytes) -> Option<Vec<u8>> {
        match self {
            Encoding::Plain => Some(bytes.to_vec()),
            Encoding::Gzip => {
                let mut page = Vec::new();
                let mut reader = flate2::read::GzDecoder::new(&bytes[..]).take(MAX_PAGE as u64 + 1);
                reader.read_to_end(&mut page).ok().filter(|length| *length <= MAX_PAGE)?;
                Some(page)
            }
        }
    }

    fn pack(self, page: Vec<u8>) -> Bytes {
        match self {
            Encoding::Plain => page.into(),
            Encoding::Gzip => {
                let mut packed = Vec::new();
                // Reading from memory does not fail.
                let _ = flate2::read::GzEncoder::new(&page[..], Compression::fast()).read_to_end(&mut packed);
                packed.into()
            }
        }
    }
}

/// Attributes that hold URLs, by element.
const ATTRIBUTES: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is no markup.
const RAW: [&str; 4] = ["script", "style", "textarea", "title"];

impl Links<'_> {
    /// The URL as it must be for the client; nothing if it stays.
    fn rewrite(&self, url: &str) -> Option<String> {
        let after_scheme = ["http://", "https://", "//"].iter().find_map(|start| url.strip_prefix(start));
        let (host, path) = match after_scheme {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", url),
        };
        let is_elsewhere = !host.is_empty() && host != self.backend && host != self.requested;
        if is_elsewhere || !path.starts_with('/') {
            return None;
        }
        let before = match host == self.requested && !host.is_empty() {
            true => &url[..url.len() - path.len()],
            false => "",
        };
        let prefix = if path.starts_with(self.prefix) { "" } else { self.prefix };
        Some(format!("{before}{prefix}{path}")).filter(|changed| changed != url)
    }

    /// A page with its links changed, and otherwise the same to the byte; nothing if it would be too long. A page may be all links,
    /// each of which grows by the whole prefix.
    fn rewrite_page(&self, page: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(page.len() + 256);
        let mut at = 0;
        while let Some(offset) = page[at..].iter().position(|byte| *byte == b'<') {
            out.extend_from_slice(&page[at..at + offset]);
            at += offset;
            let rest = &page[at..];
            if rest.starts_with(b"<!--") {
                let end = find(rest, b"-->").map_or(rest.len(), |end| end + 3);
                out.extend_from_slice(&rest[..end]);
                at += end;
                continue;
            }
            let name_length = rest[1..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
            if name_length == 0 || !rest[1].is_ascii_alphabetic() {
                out.push(b'<');
                at += 1;
                continue;
            }
            let name = String::from_utf8_lossy(&rest[1..=name_length]).to_ascii_lowercase();
            out.extend_from_slice(&rest[..=name_length]);
            at += 1 + name_length;
            at += self.rewrite_tag(&name, &page[at..], &mut out)?;
            if RAW.contains(&name.as_str()) {
                let end = find_close(&page[at..], &name);
                out.extend_from_slice(&page[at..at + end]);
                at += end;
            }
        }
        out.extend_from_slice(&page[at..]);
        (out.len() <= MAX_PAGE).then_some(out)
    }

    /// The attributes of a tag, up to and including its `>`; returns how much of the page that was, or nothing if it became too long.
    fn rewrite_tag(&self, element: &str, rest: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let wanted = ATTRIBUTES.iter().find(|(name, _)| *name == element).map_or(&[][..], |(_, names)| *names);
        let mut at = 0;
        let copy = |from: usize, to: usize, out: &mut Vec<u8>| out.extend_from_slice(&rest[from..to]);
        let skip = |from: usize, is_part: &dyn Fn(u8) -> bool| {
            from + rest[from..].iter().take_while(|byte| is_part(**byte)).count()
        };
        loop {
            if out.len() > MAX_PAGE {
                return None;
            }
            let start = skip(at, &|byte| byte.is_ascii_whitespace() || byte == b'/');
            copy(at, start, out);
            at = start;
            match rest.get(at) {
                None => return Some(at),
                Some(b'>') => {
                    out.push(b'>');
                    return Some(at + 1);
                }
                Some(_) => {}
            }
            // A stray `=` begins a name rather than none at all.
            let end = skip(at + 1, &|byte| !byte.is_ascii_whitespace() && !matches!(byte, b'=' | b'>' | b'/'));
            let name = String::from_utf8_lossy(&rest[at..end]).to_ascii_lowercase();
            let equals = skip(end, &|byte| byte.is_ascii_whitespace());
            if rest.get(equals) != Some(&b'=') {
                copy(at, end, out);
                at = end;
                continue;
            }
            let begin = skip(equals + 1, &|byte| byte.is_ascii_whitespace());
            let (open, close, after) = match rest.get(begin) {
                Some(quote @ (b'"' | b'\'')) => {
                    let close = skip(begin + 1, &|byte| byte != *quote);
                    (begin + 1, close, (close + 1).min(rest.len()))
                }
                _ => {
                    let close = skip(begin, &|byte| !byte.is_ascii_whitespace() && byte != b'>');
                    (begin, close, close)
                }
            };
            copy(at, open, out);
            let value = std::str::from_utf8(&rest[open..close]).ok().filter(|_| wanted.contains(&name.as_str()));
            match value.and_then(|value| self.rewrite(value)) {
                Some(changed) => out.extend_from_slice(changed.as_bytes()),
                None => copy(open, close, out),
            }
            copy(close, after, out);
            at = after;
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Where the end tag of an element begins; at the end of the page if it has none.
fn find_close(text: &[u8], name: &str) -> usize {
    let close = format!("</{name}");
    text.windows(close.len()).position(|window| window.eq_ignore_ascii_case(close.as_bytes())).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const LINKS: Links<'static> =
        Links { prefix: "/api/v1/namespaces/a/pods/p/proxy", backend: "10.42.0.7:80", requested: "localhost:8001" };

    #[test]
    fn links_to_the_backend_go_through_the_proxy() {
        let within = |path: &str| Some(format!("{}{path}", LINKS.prefix));
        for (url, expected) in [
            ("/x/y?z#w", within("/x/y?z#w")),
            ("/", within("/")),
            ("http://10.42.0.7:80/x", within("/x")),
            ("//10.42.0.7:80/x", within("/x")),
            ("https://localhost:8001/x", within("/x").map(|path| format!("https://localhost:8001{path}"))),
            ("/api/v1/namespaces/a/pods/p/proxy/x", None),
            ("http://example.org/x", None),
            ("//example.org/x", None),
            ("http://10.42.0.7:80", None),
            ("x/y", None),
            ("#w", None),
            ("?q", None),
            ("mailto:a@example.org", None),
            ("", None),
        ] {
            assert_eq!(LINKS.rewrite(url), expected, "{url}");
        }
    }

    #[test]
    fn a_page_keeps_everything_but_its_links() {
        let prefix = LINKS.prefix;
        for (page, expected) in [
            (r#"<a href="/rewriteme">x</a>"#, format!(r#"<a href="{prefix}/rewriteme">x</a>"#)),
            ("<A HREF='/x' class=y>", format!("<A HREF='{prefix}/x' class=y>")),
            ("<img alt = /no src = /yes>", format!("<img alt = /no src = {prefix}/yes>")),
            ("<img src=/a/ longdesc='/b'/>", format!("<img src={prefix}/a/ longdesc='{prefix}/b'/>")),
            (
                "<script src=\"/s.js\">if (a<b) '<a href=\"/x\">'</script><a href=/y>",
                format!("<script src=\"{prefix}/s.js\">if (a<b) '<a href=\"/x\">'</script><a href={prefix}/y>"),
            ),
        ] {
            assert_eq!(rewritten(page), expected);
        }
        for same in [
            "",
            "plain",
            "a < b > c",
            "<",
            "<a",
            "<a href",
            "<a href=",
            "<!-- <a href='/x'> -->",
            "<!doctype html>",
            "</a href='/x'>",
            "<b href='/x'>",
            "<a data-href='/x'>",
            "<a href='x'>",
            "<a = b>",
            "<script>",
            "<a href='http://example.org/'>",
        ] {
            assert_eq!(rewritten(same), same);
        }
    }

    fn rewritten(page: &str) -> String {
        String::from_utf8(LINKS.rewrite_page(page.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn security_a_page_of_links_does_not_grow_without_end() {
        let count = MAX_PAGE / LINKS.prefix.len() + 1;
        for page in ["<a href=/>".repeat(count), format!("<a {}>", "href=/ ".repeat(count))] {
            assert!(page.len() < MAX_PAGE);
            assert_eq!(LINKS.rewrite_page(page.as_bytes()), None);
        }
        // It takes a few kilobytes to send one.
        let bomb = Encoding::Gzip.pack(vec![b' '; MAX_PAGE + 1]);
        assert_eq!(Encoding::Gzip.unpack(&bomb), None);
    }

    #[test]
    fn security_pages_share_the_room_that_there_is() {
        static PAGES: Pages = Pages(AtomicUsize::new(0));
        let (mut one, mut other) = (Held::none_of(&PAGES), Held::none_of(&PAGES));
        assert!(one.grow(MAX_PAGES - 1) && other.grow(1));
        assert!(!other.grow(1) && !other.grow(usize::MAX));
        drop(one);
        assert!(other.grow(MAX_PAGES - 1) && !other.grow(1));
        drop(other);
        assert_eq!(PAGES.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn security_a_stream_without_end_keeps_no_room_for_pages() {
        static PAGES: Pages = Pages(AtomicUsize::new(0));
        let mut held = Held::none_of(&PAGES);
        assert!(held.grow(6));
        let mut body = unchanged(Bytes::from_static(b"<html>"), held, futures_util::stream::pending());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "<html>");
        assert!(body.frame().now_or_never().is_none(), "it goes on");
        assert_eq!(PAGES.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn packed_pages_are_unpacked_and_packed() {
        let packed = Encoding::Gzip.pack(b"<a href=/x>".to_vec());
        let page = Encoding::Gzip.unpack(&packed).unwrap();
        let again = Encoding::Gzip.pack(LINKS.rewrite_page(&page).unwrap());
        assert_eq!(Encoding::Gzip.unpack(&again), LINKS.rewrite_page(b"<a href=/x>"));
        assert_eq!(Encoding::Gzip.unpack(&Bytes::from_static(b"not packed")), None);
    }
}
