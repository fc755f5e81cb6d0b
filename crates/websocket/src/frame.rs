//! Frames: a header of two to fourteen bytes, then the payload, masked if a client sends it.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest piece of a message that a [`Reader`] hands on.
pub const MAX_PIECE: usize = 32 * 1024;
/// The longest payload of a ping, pong or close that the protocol allows.
const MAX_CONTROL: u64 = 125;
const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// Which end of the connection this is. Clients mask what they send, servers do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

/// What the peer got wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reserved bits of a WebSocket frame are set")]
    ReservedBits,
    #[error("a WebSocket frame has the unknown opcode {0}")]
    UnknownOpcode(u8),
    #[error("a WebSocket frame of a client is not masked")]
    NotMasked,
    #[error("a WebSocket frame of a server is masked")]
    Masked,
    #[error("a WebSocket control frame is fragmented or longer than 125 bytes")]
    LongControl,
    #[error("a WebSocket frame continues no message, or begins one inside another")]
    OutOfOrder,
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl Opcode {
    fn parse(byte: u8) -> Result<Opcode, Error> {
        let known = [Opcode::Continuation, Opcode::Text, Opcode::Binary, Opcode::Close, Opcode::Ping, Opcode::Pong];
        known.into_iter().find(|known| *known as u8 == byte).ok_or(Error::UnknownOpcode(byte))
    }
}

/// One whole message as one frame.
pub fn frame(side: Side, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mask_bit = if side == Side::Client { MASKED } else { 0 };
    let mut out = Vec::with_capacity(payload.len() + 14);
    out.push(FINAL | opcode as u8);
    match payload.len() {
        length @ 0..=125 => out.push(mask_bit | length as u8),
        length @ 126..=0xffff => {
            out.push(mask_bit | 126);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(mask_bit | 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    match side {
        Side::Server => out.extend_from_slice(payload),
        Side::Client => {
            let mask: [u8; 4] = rand::random();
            out.extend(mask);
            out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        }
    }
    out
}

#[derive(Debug)]
pub enum Message {
    Data(Piece),
    Ping(Vec<u8>),
}

/// A part of a message, as it arrives.
#[derive(Debug, PartialEq)]
pub struct Piece {
    pub data: Vec<u8>,
    /// Whether it is the first of its message.
    pub begins: bool,
    /// Whether it is the last one.
    pub ends: bool,
}

pub struct Reader<R> {
    io: R,
    /// This end; frames of the other one are read.
    side: Side,
    /// The frame of data that is being read.
    current: Option<Frame>,
    /// The next piece is the first of a message.
    begins: bool,
}

struct Frame {
    opcode: Opcode,
    left: u64,
    is_last: bool,
    mask: [u8; 4],
    /// How many bytes of the mask were used.
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
    /// For the end that `side` says.
    pub fn new(side: Side, io: R) -> Self {
        Self { io, side, current: None, begins: true }
    }

    /// The next ping or piece of a message; none when the peer closes.
    pub async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(frame) = self.current.take() {
                return self.piece(frame).await.map(|piece| Some(Message::Data(piece)));
            }
            let Some(mut frame) = self.header().await? else { return Ok(None) };
            match frame.opcode {
                Opcode::Continuation | Opcode::Text | Opcode::Binary => {
                    if (frame.opcode == Opcode::Continuation) == self.begins {
                        return Err(Error::OutOfOrder.into());
                    }
                    self.current = Some(frame);
                }
                Opcode::Close => return Ok(None),
                Opcode::Ping | Opcode::Pong => {
                    let mut payload = vec![0; frame.left as usize];
                    self.io.read_exact(&mut payload).await?;
                    frame.unmask(&mut payload);
                    if frame.opcode == Opcode::Ping {
                        return Ok(Some(Message::Ping(payload)));
                    }
                }
            }
        }
    }

    async fn piece(&mut self, mut frame: Frame) -> io::Result<Piece> {
        let mut data = vec![0; usize::try_from(frame.left).map_or(MAX_PIECE, |left| left.min(MAX_PIECE))];
        let read = self.io.read(&mut data).await?;
        if read == 0 && frame.left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        data.truncate(read);
        frame.unmask(&mut data);
        frame.left -= read as u64;
        let is_whole = frame.left == 0;
        let (begins, ends) = (self.begins, is_whole && frame.is_last);
        self.begins = ends;
        if !is_whole {
            self.current = Some(frame);
        }
        Ok(Piece { data, begins, ends })
    }

    /// None at the end of the connection.
    async fn header(&mut self) -> io::Result<Option<Frame>> {
        let mut head = [0; 2];
        match self.io.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        };
        let is_last = head[0] & FINAL != 0;
        if head[0] & RESERVED != 0 {
            return Err(Error::ReservedBits.into());
        }
        let opcode = Opcode::parse(head[0] & 0x0f)?;
        let left = match head[1] & 0x7f {
            126 => u64::from(self.io.read_u16().await?),
            127 => self.io.read_u64().await?,
            short => u64::from(short),
        };
        let is_control = opcode as u8 >= Opcode::Close as u8;
        if is_control && (left > MAX_CONTROL || !is_last) {
            return Err(Error::LongControl.into());
        }
        let mut mask = [0; 4];
        match (self.side, head[1] & MASKED != 0) {
            (Side::Server, true) => drop(self.io.read_exact(&mut mask).await?),
            (Side::Server, false) => return Err(Error::NotMasked.into()),
            (Side::Client, true) => return Err(Error::Masked.into()),
            (Side::Client, false) => {}
        }
        Ok(Some(Frame { opcode, left, is_last, mask, at: 0 }))
    }
}

pub struct Writer<W> {
    io: W,
    side: Side,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// For the end that `side` says.
    pub fn new(side: Side, io: W) -> Self {
        Self { io, side }
    }

    /// Sends one message.
    pub async fn send(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        self.io.write_all(&frame(self.side, opcode, payload)).await?;
        self.io.flush().await
    }

    pub async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.send(Opcode::Pong, payload).await
    }

    /// A normal end.
    pub async fn close(&mut self) -> io::Result<()> {
        self.send(Opcode::Close, &1000u16.to_be_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn messages(side: Side, bytes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let (mut reader, mut messages) = (Reader::new(side, bytes), Vec::new());
        while let Some(message) = reader.next().await? {
            match message {
                Message::Data(piece) if piece.begins => messages.push(piece.data),
                Message::Data(piece) => messages.last_mut().unwrap().extend(piece.data),
                Message::Ping(_) => {}
            }
        }
        Ok(messages)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn lengths_take_one_three_or_nine_bytes() {
        for (length, header) in [(5, 2), (125, 2), (126, 4), (70_000, 10)] {
            let payload = vec![b'x'; length];
            assert_eq!(frame(Side::Server, Opcode::Text, &payload).len(), length + header);
            assert_eq!(frame(Side::Client, Opcode::Text, &payload).len(), length + header + 4);
        }
    }

    #[tokio::test]
    async fn masked_and_fragmented_messages() {
        let mut bytes = vec![0x02, 0x83, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3];
        bytes.extend([0x80, 0x81, 0, 0, 0, 0, b'd', 0x88, 0x80, 0, 0, 0, 0]);
        let mut reader = Reader::new(Side::Server, bytes.as_slice());
        let piece = |data: &[u8], begins, ends| Piece { data: data.to_vec(), begins, ends };
        for expected in [piece(b"abc", true, false), piece(b"d", false, true)] {
            assert!(matches!(reader.next().await.unwrap(), Some(Message::Data(piece)) if piece == expected));
        }
        assert!(reader.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn security_messages_are_never_kept_whole() {
        // A message of 2^62 bytes, of which some come.
        let mut bytes = vec![0x82, 0xff];
        bytes.extend((1u64 << 62).to_be_bytes());
        bytes.extend([0, 0, 0, 0]);
        bytes.resize(bytes.len() + 100_000, 7);
        let mut reader = Reader::new(Side::Server, bytes.as_slice());
        let mut received = 0;
        while let Ok(Some(Message::Data(piece))) = reader.next().await {
            assert!(piece.data.len() <= MAX_PIECE && !piece.ends);
            received += piece.data.len();
        }
        assert_eq!(received, 100_000);
    }

    #[tokio::test]
    async fn security_what_the_protocol_forbids_is_refused() {
        for (bytes, expected) in [
            (vec![0x89, 0xfe, 1, 0, 0, 0, 0, 0], "control frame"),
            (vec![0x09, 0x80, 0, 0, 0, 0], "control frame"),
            (vec![0xc2, 0x80, 0, 0, 0, 0], "reserved bits"),
            (vec![0x83, 0x80, 0, 0, 0, 0], "opcode 3"),
            (vec![0x82, 0x00], "not masked"),
            (vec![0x80, 0x80, 0, 0, 0, 0], "continues no message"),
            (vec![0x02, 0x80, 0, 0, 0, 0, 0x82, 0x80, 0, 0, 0, 0], "begins one inside another"),
        ] {
            let error = messages(Side::Server, &bytes).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{bytes:?}: {error}");
        }
        assert!(messages(Side::Client, &frame(Side::Client, Opcode::Text, b"x")).await.is_err(), "servers never mask");
    }

    proptest! {
        #[test]
        fn what_one_end_writes_the_other_reads(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..70_000), 0..4)) {
            for (from, to) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
                let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(from, Opcode::Binary, payload)).collect();
                prop_assert_eq!(block_on(messages(to, &bytes)).unwrap(), payloads.clone());
            }
        }

        #[test]
        fn security_no_bytes_end_a_reader_otherwise_than_with_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _either = block_on(messages(Side::Server, &bytes));
            let _either = block_on(messages(Side::Client, &bytes));
        }
    }
}
