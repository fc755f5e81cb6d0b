//! WebSocket (RFC 6455), the server's side: messages in, messages out.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Larger messages than any client of ours sends end the connection.
const MAX_MESSAGE: usize = 16 << 20;

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
    Data(Vec<u8>),
    Ping(Vec<u8>),
}

pub(crate) struct Reader<R> {
    io: R,
    partial: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(io: R) -> Self {
        Self { io, partial: Vec::new() }
    }

    /// The next message; none when the client closes.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            let mut head = [0u8; 2];
            match self.io.read_exact(&mut head).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                result => result?,
            };
            let (last, opcode, masked) = (head[0] & 0x80 != 0, head[0] & 0x0f, head[1] & 0x80 != 0);
            let length = match head[1] & 0x7f {
                126 => usize::from(self.io.read_u16().await?),
                127 => usize::try_from(self.io.read_u64().await?).unwrap_or(usize::MAX),
                short => usize::from(short),
            };
            if length > MAX_MESSAGE || self.partial.len() + length > MAX_MESSAGE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
            }
            let mut mask = [0u8; 4];
            if masked {
                self.io.read_exact(&mut mask).await?;
            }
            let mut payload = vec![0u8; length];
            self.io.read_exact(&mut payload).await?;
            payload.iter_mut().enumerate().for_each(|(i, byte)| *byte ^= mask[i % 4]);
            match opcode {
                CONTINUATION | TEXT | BINARY => {
                    self.partial.extend(payload);
                    if last {
                        return Ok(Some(Message::Data(std::mem::take(&mut self.partial))));
                    }
                }
                PING => return Ok(Some(Message::Ping(payload))),
                CLOSE => return Ok(None),
                _ => {}
            }
        }
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
        assert!(matches!(reader.next().await.unwrap(), Some(Message::Data(data)) if data == b"abcd"));
        assert!(reader.next().await.unwrap().is_none());
    }
}
