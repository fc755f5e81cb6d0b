//! The little of HTTP/2 that a load generator needs: requests as bytes, answers as events, no copy and no allocation for
//! either.
//!
//! The peer is told to keep no header table, so that of an answer's headers only the first needs reading: the status.

use anyhow::{Context, bail, ensure};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// In SETTINGS and PING.
const ACK: u8 = 1;
/// In DATA and HEADERS.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// The window of every connection at first.
const FIRST_WINDOW: u32 = 65_535;
/// Received since the last update, this much is given back to the peer.
const GIVE_BACK: u32 = 1 << 30;
/// Lists come in few frames.
const LARGEST_FRAME: u32 = 256 * 1024;
/// What any peer takes in one frame.
const LARGEST_BODY: usize = 16 * 1024;

/// What arrives on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    Head {
        stream: u32,
        code: u16,
    },
    Data {
        stream: u32,
        data: &'a [u8],
    },
    /// The answer is whole.
    End {
        stream: u32,
    },
    /// The server gave the stream up.
    Reset {
        stream: u32,
    },
}

/// A request as the wire has it.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) path: &'a str,
    pub(crate) content_type: &'static str,
    /// In place of JSON; not in the first request of a connection.
    pub(crate) accept: Option<&'static str>,
    pub(crate) accept_encoding: Option<&'static str>,
    pub(crate) body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        Self { method: "GET", path, content_type: "", accept: None, accept_encoding: None, body: &[] }
    }
}

/// The sending half of a connection: frames that wait to be encrypted.
pub(crate) struct Requests {
    pub(super) frames: Vec<u8>,
    /// Headers that are the same for all requests: in full with the first, by their number in the peer's table after it.
    constant: Vec<(u8, String)>,
    next_stream: u32,
    block: Vec<u8>,
    /// What the peer takes of bodies.
    window: i64,
    /// A body that waits for the window.
    held: Option<(u32, Vec<u8>)>,
    /// Data that came since the window was last given back.
    received: u32,
}

/// Names in the static table of HPACK (RFC 7541, appendix A).
mod name {
    pub(super) const AUTHORITY: u8 = 1;
    pub(super) const METHOD: u8 = 2;
    pub(super) const PATH: u8 = 4;
    pub(super) const STATUS: u8 = 8;
    pub(super) const ACCEPT_ENCODING: u8 = 16;
    pub(super) const ACCEPT: u8 = 19;
    pub(super) const AUTHORIZATION: u8 = 23;
    pub(super) const CONTENT_LENGTH: u8 = 28;
    pub(super) const CONTENT_TYPE: u8 = 31;
    pub(super) const USER_AGENT: u8 = 58;
}

impl Requests {
    /// Begins with what opens a connection.
    pub(super) fn new(authority: &str, authorization: Option<&str>) -> Self {
        let mut constant = vec![
            (name::AUTHORITY, authority.to_owned()),
            (name::USER_AGENT, concat!("coxbench/", env!("CARGO_PKG_VERSION")).to_owned()),
            (name::ACCEPT, "application/json".to_owned()),
        ];
        constant.extend(authorization.map(|value| (name::AUTHORIZATION, value.to_owned())));
        let mut requests = Self {
            frames: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            constant,
            next_stream: 1,
            block: Vec::new(),
            window: FIRST_WINDOW.into(),
            held: None,
            received: 0,
        };
        let mut settings = Vec::new();
        // Header table, push, window of a stream, frame.
        for (setting, value) in [(1u16, 0), (2, 0), (4, LARGEST_WINDOW), (5, LARGEST_FRAME)] {
            settings.extend(setting.to_be_bytes());
            settings.extend(value.to_be_bytes());
        }
        requests.frame(SETTINGS, 0, 0, &settings);
        requests.frame(WINDOW_UPDATE, 0, 0, &(LARGEST_WINDOW - FIRST_WINDOW).to_be_bytes());
        requests
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.frames.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        self.frames.extend([kind, flags]);
        self.frames.extend(stream.to_be_bytes());
        self.frames.extend_from_slice(payload);
    }

    /// Adds a request. Returns the stream that its answer will come on. At most one body may be on its way at a time.
    pub(crate) fn send(&mut self, request: &Request<'_>) -> anyhow::Result<u32> {
        ensure!(request.body.len() <= LARGEST_BODY, "{}: a body of {} bytes", request.path, request.body.len());
        let stream = self.next_stream;
        self.next_stream += 2;
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        match request.method {
            "GET" => block.push(0x82),
            "POST" => block.push(0x83),
            other => literal(&mut block, name::METHOD, other),
        }
        // https
        block.push(0x87);
        literal(&mut block, name::PATH, request.path);
        for (at, (name, value)) in self.constant.iter().enumerate() {
            if stream == 1 {
                block.push(0x40 | name);
                text(&mut block, value);
            } else if let Some(form) = request.accept.filter(|_| *name == name::ACCEPT) {
                literal(&mut block, name::ACCEPT, form);
            } else {
                // The newest has the number after those of the static table.
                block.push(0x80 | (62 + self.constant.len() - 1 - at) as u8);
            }
        }
        if let Some(coding) = request.accept_encoding {
            literal(&mut block, name::ACCEPT_ENCODING, coding);
        }
        let has_body = !request.body.is_empty();
        if has_body {
            literal(&mut block, name::CONTENT_TYPE, request.content_type);
            literal(&mut block, name::CONTENT_LENGTH, &request.body.len().to_string());
        }
        self.frame(HEADERS, END_HEADERS | if has_body { 0 } else { END_STREAM }, stream, &block);
        self.block = block;
        if has_body && self.window >= request.body.len() as i64 {
            self.body(stream, request.body);
        } else if has_body {
            ensure!(self.held.is_none(), "{}: a second body before the window opened", request.path);
            self.held = Some((stream, request.body.to_vec()));
        }
        Ok(stream)
    }

    fn body(&mut self, stream: u32, body: &[u8]) {
        self.window -= body.len() as i64;
        self.frame(DATA, END_STREAM, stream, body);
    }

    fn opened(&mut self, by: u32) {
        self.window += i64::from(by);
        if let Some((stream, body)) = self.held.take_if(|(_, body)| body.len() as i64 <= self.window) {
            self.body(stream, &body);
        }
    }

    fn received(&mut self, bytes: usize) {
        self.received += bytes as u32;
        if self.received >= GIVE_BACK {
            let update = self.received.to_be_bytes();
            self.frame(WINDOW_UPDATE, 0, 0, &update);
            self.received = 0;
        }
    }
}

/// A header that the peer does not keep, its name given by a number.
fn literal(block: &mut Vec<u8>, name: u8, value: &str) {
    match name.checked_sub(15) {
        None => block.push(name),
        Some(rest) => block.extend([15, rest]),
    }
    text(block, value);
}

/// A string without Huffman codes.
fn text(block: &mut Vec<u8>, value: &str) {
    match value.len().checked_sub(127) {
        None => block.push(value.len() as u8),
        Some(mut rest) => {
            block.push(127);
            while rest >= 128 {
                block.push(rest as u8 | 128);
                rest >>= 7;
            }
            block.push(rest as u8);
        }
    }
    block.extend_from_slice(value.as_bytes());
}

/// The receiving half of a connection: frames, wherever the pieces they come in begin and end.
#[derive(Default)]
pub(super) struct Frames {
    header: [u8; 9],
    /// How much of the header is there.
    have: usize,
    /// How much of the payload is not.
    left: usize,
    /// The payload of a frame that is no data.
    payload: Vec<u8>,
}

impl Frames {
    /// Takes the next bytes. Says what happened to `on`, which may send requests.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        requests: &mut Requests,
        on: &mut impl FnMut(Event<'_>, &mut Requests) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        loop {
            if self.have < self.header.len() {
                let taken = bytes.len().min(self.header.len() - self.have);
                self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
                self.have += taken;
                bytes = &bytes[taken..];
                if self.have < self.header.len() {
                    return Ok(());
                }
                self.left = u32::from_be_bytes([0, self.header[0], self.header[1], self.header[2]]) as usize;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.left));
            (bytes, self.left) = (rest, self.left - part.len());
            if self.kind() == DATA {
                ensure!(self.flags() & PADDED == 0, "padded data");
                requests.received(part.len());
                on(Event::Data { stream: self.stream(), data: part }, requests)?;
            } else {
                self.payload.extend_from_slice(part);
            }
            if self.left > 0 {
                return Ok(());
            }
            self.have = 0;
            let payload = std::mem::take(&mut self.payload);
            self.whole(&payload, requests, on)?;
            self.payload = payload;
            self.payload.clear();
        }
    }

    fn kind(&self) -> u8 {
        self.header[3]
    }

    fn flags(&self) -> u8 {
        self.header[4]
    }

    fn stream(&self) -> u32 {
        u32::from_be_bytes([self.header[5] & 127, self.header[6], self.header[7], self.header[8]])
    }

    fn whole(
        &self,
        payload: &[u8],
        requests: &mut Requests,
        on: &mut impl FnMut(Event<'_>, &mut Requests) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (flags, stream) = (self.flags(), self.stream());
        match self.kind() {
            HEADERS => {
                ensure!(flags & END_HEADERS != 0 && flags & PADDED == 0, "headers in several frames, or padded");
                // Trailers have no status.
                if let Some(code) = status(payload) {
                    on(Event::Head { stream, code }, requests)?;
                }
            }
            RST_STREAM => return on(Event::Reset { stream }, requests),
            SETTINGS if flags & ACK == 0 => requests.frame(SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => requests.frame(PING, ACK, 0, payload),
            GOAWAY => bail!(
                "the server closes the connection: {}",
                String::from_utf8_lossy(payload.get(8..).unwrap_or_default())
            ),
            WINDOW_UPDATE if stream == 0 => {
                let by = payload.try_into().map(u32::from_be_bytes).ok().context("a window update of another size")?;
                requests.opened(by);
            }
            _ => {}
        }
        if matches!(self.kind(), DATA | HEADERS) && flags & END_STREAM != 0 {
            on(Event::End { stream }, requests)?;
        }
        Ok(())
    }
}

/// The status at the beginning of a header block.
fn status(mut block: &[u8]) -> Option<u16> {
    // Changes of the table's size come first.
    while let Some((first, rest)) = block.split_first()
        && first >> 5 == 1
    {
        block = rest;
    }
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    let (&first, rest) = block.split_first()?;
    if first & 0x80 != 0 {
        return INDEXED.get((first & 0x7f).checked_sub(name::STATUS)? as usize).copied();
    }
    // With its name by number, kept or not: that of any status in the table.
    let name = first & if first & 0x40 != 0 { 0x3f } else { 0x0f };
    INDEXED.get(name.checked_sub(name::STATUS)? as usize)?;
    let (&length, value) = rest.split_first()?;
    let value = value.get(..(length & 0x7f) as usize)?;
    let digits = if length & 0x80 != 0 { huffman_digits(value)? } else { value.try_into().ok()? };
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

/// Three digits in Huffman codes: five bits for 0 to 2, six for the others.
fn huffman_digits(value: &[u8]) -> Option<[u8; 3]> {
    let mut bits = value.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    bits = bits.checked_shl(64u32.checked_sub(8 * value.len() as u32)?)?;
    let mut digits = [0; 3];
    for digit in &mut digits {
        let (code, length) = match bits >> 59 {
            code @ 0..=2 => (code, 5),
            _ => ((bits >> 58).checked_sub(0x19)? + 3, 6),
        };
        *digit = b'0' + u8::try_from(code).ok().filter(|code| *code < 10)?;
        bits <<= length;
    }
    Some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_in_every_form() {
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x20, 0x8d, 0x5f]), Some(404));
        assert_eq!(status(b"\x08\x03409"), Some(409));
        assert_eq!(status(b"\x48\x03201"), Some(201));
        assert_eq!(status(b"\x20\x0e\x03201"), Some(201));
        assert_eq!(status(&[0x48, 0x82, 0x10, 0x03]), Some(201));
        assert_eq!(status(&[0x08, 0x83, 0x69, 0x7d, 0xff]), None);
        assert_eq!(status(&[0x08, 0x83, 0x6c, 0x0c, 0xff]), Some(503));
        assert_eq!(status(b"\x40\x05grpc-\x01a"), None);
        assert_eq!(status(&[]), None);
    }

    #[test]
    fn answers_are_the_same_in_pieces_of_any_size() {
        let mut server = Requests::new("", None);
        server.frames.clear();
        server.frame(SETTINGS, 0, 0, &[]);
        server.frame(HEADERS, END_HEADERS, 1, &[0x88]);
        server.frame(DATA, 0, 1, b"one");
        server.frame(DATA, END_STREAM, 1, b"two");
        server.frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x89]);
        server.frame(RST_STREAM, 0, 5, &[0; 4]);
        for size in 1..server.frames.len() {
            let (mut frames, mut requests) = (Frames::default(), Requests::new("", None));
            requests.frames.clear();
            let (mut log, mut text) = (Vec::new(), Vec::new());
            for part in server.frames.chunks(size) {
                let mut on = |event: Event<'_>, _: &mut Requests| {
                    match event {
                        Event::Data { stream: 1, data } => text.extend_from_slice(data),
                        other => log.push(format!("{other:?}")),
                    }
                    Ok(())
                };
                frames.take(part, &mut requests, &mut on).expect("whole frames");
            }
            assert_eq!(text, b"onetwo");
            let expected = [
                Event::Head { stream: 1, code: 200 },
                Event::End { stream: 1 },
                Event::Head { stream: 3, code: 204 },
                Event::End { stream: 3 },
                Event::Reset { stream: 5 },
            ];
            assert_eq!(log, expected.map(|event| format!("{event:?}")));
            assert_eq!(requests.frames, [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn a_body_waits_for_the_window() {
        let mut requests = Requests::new("", None);
        let body = [7; LARGEST_BODY];
        let request =
            Request { method: "PUT", path: "/", content_type: "a/b", accept: None, accept_encoding: None, body: &body };
        for stream in [1, 3, 5] {
            assert_eq!(requests.send(&request).expect("room"), stream);
        }
        requests.frames.clear();
        requests.send(&request).expect("held");
        assert!(requests.frames.len() < LARGEST_BODY);
        // A byte was missing.
        requests.opened(1);
        assert!(requests.frames.len() > LARGEST_BODY);
    }
}
