//! WebSocket (RFC 6455), the server's side: messages in, messages out.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::queue::PIECE;

/// The longest ping or close that the protocol allows.
const MAX_CONTROL: u64 = 125;

const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The answer to a client's `Sec-WebSocket-Key`.
pub(crate) fn accept_key(key: &str) -> String {
    use handshake_hash::sha1;
    STANDARD.encode(sha1(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes()))
}

/// SHA-1, for the handshake only: its one use left that is not about security.
mod handshake_hash {
    pub(super) fn sha1(message: &[u8]) -> [u8; 20] {
        let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
        let mut padded = message.to_vec();
        padded.push(0x80);
        while padded.len() % 64 != 56 {
            padded.push(0);
        }
        padded.extend((message.len() as u64 * 8).to_be_bytes());
        for chunk in padded.chunks_exact(64) {
            let mut words = [0u32; 80];
            for (word, bytes) in words.iter_mut().zip(chunk.chunks_exact(4)) {
                *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            for i in 16..80 {
                words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
            }
            let [mut a, mut b, mut c, mut d, mut e] = state;
            for (i, word) in words.iter().enumerate() {
                let (f, k) = match i {
                    0..20 => ((b & c) | (!b & d), 0x5a82_7999),
                    20..40 => (b ^ c ^ d, 0x6ed9_eba1),
                    40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                    _ => (b ^ c ^ d, 0xca62_c1d6),
                };
                let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(*word);
                (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
            }
            for (slot, value) in state.iter_mut().zip([a, b, c, d, e]) {
                *slot = slot.wrapping_add(value);
            }
        }
        let mut digest = [0u8; 20];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }
}

pub(crate) enum Message {
    Data(Piece),
    Ping(Vec<u8>),
}

/// A part of a message, as it comes: no message is kept whole here, so they may be of any length.
#[derive(Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) data: Vec<u8>,
    /// Whether it is the first of its message.
    pub(crate) begins: bool,
    /// Whether it is the last one.
    pub(crate) ends: bool,
}

pub(crate) struct Reader<R> {
    io: R,
    /// The frame of data that is being read.
    frame: Option<Frame>,
    /// The next piece is the first of a message.
    begins: bool,
}

struct Frame {
    left: u64,
    last: bool,
    mask: [u8; 4],
    /// How much of the frame was read.
    at: usize,
}

impl Frame {
    fn unmask(&mut self, data: &mut [u8]) {
        for byte in data {
            *byte ^= self.mask[self.at % 4];
            self.at = (self.at + 1) % 4;
        }
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, frame: None, begins: true }
    }

    /// The next ping or piece of a message; none when the client closes.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(mut frame) = self.frame.take() {
                let mut data = vec![0u8; usize::try_from(frame.left).map_or(PIECE, |left| left.min(PIECE))];
                let read = self.io.read(&mut data).await?;
                if read == 0 && frame.left > 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                data.truncate(read);
                frame.unmask(&mut data);
                frame.left -= read as u64;
                let is_whole = frame.left == 0;
                let (begins, ends) = (self.begins, is_whole && frame.last);
                self.begins = ends;
                if !is_whole {
                    self.frame = Some(frame);
                }
                return Ok(Some(Message::Data(Piece { data, begins, ends })));
            }
            let mut head = [0u8; 2];
            match self.io.read_exact(&mut head).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                result => result?,
            };
            let (last, opcode, masked) = (head[0] & 0x80 != 0, head[0] & 0x0f, head[1] & 0x80 != 0);
            let left = match head[1] & 0x7f {
                126 => u64::from(self.io.read_u16().await?),
                127 => self.io.read_u64().await?,
                short => u64::from(short),
            };
            let mut mask = [0u8; 4];
            if masked {
                self.io.read_exact(&mut mask).await?;
            }
            let mut frame = Frame { left, last, mask, at: 0 };
            if matches!(opcode, CONTINUATION | TEXT | BINARY) {
                self.frame = Some(frame);
                continue;
            }
            if left > MAX_CONTROL {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "control frame too long"));
            }
            let mut payload = vec![0u8; left as usize];
            self.io.read_exact(&mut payload).await?;
            frame.unmask(&mut payload);
            match opcode {
                PING => return Ok(Some(Message::Ping(payload))),
                CLOSE => return Ok(None),
                _ => {}
            }
        }
    }
}

/// Messages whose first byte names a channel, piece by piece.
pub(crate) struct Channels<R> {
    reader: Reader<R>,
    channel: Option<u8>,
}

/// What a client says on channels.
pub(crate) enum Said {
    /// On this channel; `ends` with the end of a message.
    Data {
        channel: u8,
        data: Vec<u8>,
        ends: bool,
    },
    Ping(Vec<u8>),
}

impl<R: AsyncRead + Unpin> Channels<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { reader: Reader::new(io), channel: None }
    }

    /// None when the client closes.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Said>> {
        while let Some(message) = self.reader.next().await? {
            let Piece { mut data, begins, ends } = match message {
                Message::Ping(data) => return Ok(Some(Said::Ping(data))),
                Message::Data(piece) => piece,
            };
            if begins {
                self.channel = None;
            }
            if self.channel.is_none() && !data.is_empty() {
                self.channel = Some(data.remove(0));
            }
            if let Some(channel) = self.channel {
                return Ok(Some(Said::Data { channel, data, ends }));
            }
        }
        Ok(None)
    }
}

pub(crate) struct Writer<W> {
    io: W,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(crate) fn new(io: W) -> Self {
        Self { io }
    }

    pub(crate) async fn send(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            n if n < 126 => frame.push(n as u8),
            n if n <= usize::from(u16::MAX) => {
                frame.push(126);
                frame.extend((n as u16).to_be_bytes());
            }
            n => {
                frame.push(127);
                frame.extend((n as u64).to_be_bytes());
            }
        }
        frame.extend(payload);
        self.io.write_all(&frame).await?;
        self.io.flush().await
    }

    pub(crate) async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.send(PONG, payload).await
    }

    /// A normal end.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        self.send(CLOSE, &1000u16.to_be_bytes()).await
    }
}

/// A client that says anything at all and leaves: nobody gets more than was sent.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) async fn fuzz_frames(data: &[u8]) {
    let (mut reader, mut channels) = (Reader::new(data), Channels::new(data));
    let mut received = 0;
    while let Ok(Some(message)) = reader.next().await {
        let (Message::Ping(data) | Message::Data(Piece { data, .. })) = message;
        received += data.len();
    }
    assert!(received <= data.len());
    let mut received = 0;
    while let Ok(Some(said)) = channels.next().await {
        let (Said::Ping(data) | Said::Data { data, .. }) = said;
        received += data.len();
    }
    assert!(received <= data.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_key_of_the_standard() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[tokio::test]
    async fn masked_and_fragmented_messages() {
        let mut bytes = vec![0x02, 0x83, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3];
        bytes.extend([0x80, 0x81, 0, 0, 0, 0, b'd', 0x88, 0x80, 0, 0, 0, 0]);
        let mut reader = Reader::new(bytes.as_slice());
        let piece = |data: &[u8], begins, ends| Piece { data: data.to_vec(), begins, ends };
        for expected in [piece(b"abc", true, false), piece(b"d", false, true)] {
            assert!(matches!(reader.next().await.unwrap(), Some(Message::Data(piece)) if piece == expected));
        }
        assert!(reader.next().await.unwrap().is_none());
        let mut channels = Channels::new(bytes.as_slice());
        for (text, end) in [(b"bc".as_slice(), false), (b"d", true)] {
            let said = channels.next().await.unwrap().unwrap();
            assert!(matches!(said, Said::Data { channel: b'a', data, ends } if data == text && ends == end));
        }
        assert!(channels.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn security_messages_are_never_kept_whole() {
        // A message of 2^62 bytes, of which some come.
        let mut bytes = vec![0x82, 0xff];
        bytes.extend((1u64 << 62).to_be_bytes());
        bytes.extend([0, 0, 0, 0]);
        bytes.resize(bytes.len() + 100_000, 7);
        let mut reader = Reader::new(bytes.as_slice());
        let mut received = 0;
        while let Ok(Some(Message::Data(piece))) = reader.next().await {
            assert!(piece.data.len() <= PIECE && !piece.ends);
            received += piece.data.len();
        }
        assert_eq!(received, 100_000);
        let mut reader = Reader::new([0x89, 0xfe, 1, 0, 0, 0, 0, 0].as_slice());
        assert!(reader.next().await.is_err());
    }
}
