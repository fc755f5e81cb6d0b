//! Messages whose first byte names a channel, piece by piece.

use std::io;

use tokio::io::AsyncRead;

use crate::frame::{Message, Piece, Reader, Side};

pub struct Channels<R> {
    reader: Reader<R>,
    channel: Option<u8>,
}

#[derive(Debug)]
pub enum Received {
    /// A piece of a message on this channel; `ends` with the end of the message.
    Data {
        channel: u8,
        data: Vec<u8>,
        ends: bool,
    },
    Ping(Vec<u8>),
}

impl<R: AsyncRead + Unpin> Channels<R> {
    /// For the end that `side` says.
    pub fn new(side: Side, io: R) -> Self {
        Self { reader: Reader::new(side, io), channel: None }
    }

    /// None when the peer closes.
    pub async fn next(&mut self) -> io::Result<Option<Received>> {
        while let Some(message) = self.reader.next().await? {
            let Piece { mut data, begins, ends } = match message {
                Message::Ping(data) => return Ok(Some(Received::Ping(data))),
                Message::Data(piece) => piece,
            };
            if begins {
                self.channel = None;
            }
            if self.channel.is_none() && !data.is_empty() {
                self.channel = Some(data.remove(0));
            }
            if let Some(channel) = self.channel {
                return Ok(Some(Received::Data { channel, data, ends }));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_channel_lasts_for_its_message() {
        let mut bytes = vec![0x02, 0x83, 0, 0, 0, 0, b'a', b'b', b'c'];
        bytes.extend([0x80, 0x81, 0, 0, 0, 0, b'd', 0x82, 0x80, 0, 0, 0, 0, 0x88, 0x80, 0, 0, 0, 0]);
        let mut channels = Channels::new(Side::Server, bytes.as_slice());
        for (text, end) in [(b"bc".as_slice(), false), (b"d", true)] {
            let received = channels.next().await.unwrap().unwrap();
            assert!(matches!(received, Received::Data { channel: b'a', data, ends } if data == text && ends == end));
        }
        assert!(channels.next().await.unwrap().is_none(), "an empty message names no channel");
    }
}
