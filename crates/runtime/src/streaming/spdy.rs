//! SPDY/3.1, the part that kubectl and other clients use for exec, attach and port-forward: streams that the client opens,
//! data in both directions, half-closing. There is no flow control: no client of these protocols does any.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::queue::{PIECE, Queued, Room};
use super::spdy_dictionary::dictionary;

/// Frames waiting to be written, or data waiting to be read of one stream: the sender waits when it is full. What waits
/// to be read is bounded in bytes as well, over all streams of the connection.
const QUEUE: usize = 64;
/// Control frames with more than any client has to say end the connection. Data may come in frames of any size.
const MAX_CONTROL: usize = 64 * 1024;
/// What the headers of a stream come to when they are expanded, and how many there are. They are kept as long as it is
/// open, and a few bytes on the wire stand for as many as this; clients send three short ones.
const MAX_HEADERS: usize = 4096;
const MAX_FIELDS: usize = 64;
/// Streams that are open at a time; two for each connection of a port-forward.
const MAX_STREAMS: usize = 2048;
/// Data frames we send carry at most this much.
const MAX_DATA: usize = 32 * 1024;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FLAG_FIN: u8 = 1;

/// A stream that the client opened.
pub(crate) struct Stream {
    pub(crate) id: u32,
    headers: Vec<(String, String)>,
    /// Ends when the client closes its side.
    pub(crate) data: mpsc::Receiver<Queued>,
}

impl Stream {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Sends frames; clones share the connection.
#[derive(Clone)]
pub(crate) struct Writer {
    frames: mpsc::Sender<Vec<u8>>,
}

impl Writer {
    pub(crate) async fn data(&self, stream: u32, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(MAX_DATA) {
            self.send(data_frame(stream, 0, chunk)).await?;
        }
        Ok(())
    }

    /// Closes our side of a stream.
    pub(crate) async fn finish(&self, stream: u32) -> io::Result<()> {
        self.send(data_frame(stream, FLAG_FIN, &[])).await
    }

    pub(crate) async fn reset(&self, stream: u32) -> io::Result<()> {
        const CANCEL: u32 = 5;
        let body = [stream.to_be_bytes(), CANCEL.to_be_bytes()].concat();
        self.send(control_frame(RST_STREAM, 0, &body)).await
    }

    async fn send(&self, frame: Vec<u8>) -> io::Result<()> {
        self.frames.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Speaks SPDY on `io` as the server. Streams come out of the receiver; it ends with the connection. The future must
/// be driven for anything to happen.
pub(crate) fn serve<T>(io: T) -> (mpsc::Receiver<Stream>, Writer, impl Future<Output = io::Result<()>> + Send)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, mut write) = tokio::io::split(io);
    let (streams_out, streams) = mpsc::channel(QUEUE);
    let (frames, mut frames_out) = mpsc::channel::<Vec<u8>>(QUEUE);
    let writer = Writer { frames };
    let replies = writer.clone();
    let driver = async move {
        let writing = async {
            while let Some(frame) = frames_out.recv().await {
                write.write_all(&frame).await?;
                if frames_out.is_empty() {
                    write.flush().await?;
                }
            }
            io::Result::Ok(())
        };
        tokio::select! {
            result = read_frames(read, streams_out, replies) => result,
            result = writing => result,
        }
    };
    (streams, writer, driver)
}

async fn read_frames<R: AsyncRead + Unpin>(mut io: R, streams: mpsc::Sender<Stream>, writer: Writer) -> io::Result<()> {
    let mut headers = Headers::new();
    let mut open: HashMap<u32, mpsc::Sender<Queued>> = HashMap::new();
    let room = Room::new();
    let mut piece = vec![0u8; PIECE];
    let refused = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut replied = false;
    loop {
        let mut head = [0u8; 8];
        match io.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        };
        let flags = head[4];
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
        if head[0] & 0x80 == 0 {
            let id = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let mut left = length;
            while left > 0 {
                let read = io.read(&mut piece[..left.min(PIECE)]).await?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                left -= read;
                // A stream that nobody reads any more loses its data.
                if let Some(sender) = open.get(&id).filter(|sender| !sender.is_closed())
                    && let Some(queued) = room.take(&piece[..read]).await
                {
                    let _ = sender.send(queued).await;
                }
            }
            if flags & FLAG_FIN != 0 {
                open.remove(&id);
            }
            continue;
        }
        if length > MAX_CONTROL {
            return Err(refused("frame too long"));
        }
        let mut body = vec![0u8; length];
        io.read_exact(&mut body).await?;
        match u16::from_be_bytes([head[2], head[3]]) {
            SYN_STREAM if open.len() >= MAX_STREAMS => return Err(refused("too many streams")),
            SYN_STREAM => {
                let id = word(&body, 0)? & 0x7fff_ffff;
                let block = body.get(10..).ok_or(io::ErrorKind::InvalidData)?;
                let (sender, data) = mpsc::channel(QUEUE);
                if flags & FLAG_FIN == 0 {
                    open.insert(id, sender);
                }
                let stream = Stream { id, headers: headers.decode(block)?, data };
                let mut reply = id.to_be_bytes().to_vec();
                reply.extend(empty_headers(!replied));
                replied = true;
                writer.send(control_frame(SYN_REPLY, 0, &reply)).await?;
                if streams.send(stream).await.is_err() {
                    return Ok(());
                }
            }
            RST_STREAM => drop(open.remove(&(word(&body, 0)? & 0x7fff_ffff))),
            PING => writer.send(control_frame(PING, 0, &body)).await?,
            GOAWAY => return Ok(()),
            // Headers of an open stream share the compression state; everything else has none.
            8 => drop(headers.decode(body.get(4..).ok_or(io::ErrorKind::InvalidData)?)?),
            _ => {}
        }
    }
}

fn word(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_be_bytes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "short frame"))
}

fn control_frame(kind: u16, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, 3];
    frame.extend(kind.to_be_bytes());
    frame.push(flags);
    frame.extend(&(body.len() as u32).to_be_bytes()[1..]);
    frame.extend(body);
    frame
}

fn data_frame(stream: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = stream.to_be_bytes().to_vec();
    frame.push(flags);
    frame.extend(&(body.len() as u32).to_be_bytes()[1..]);
    frame.extend(body);
    frame
}

/// A header block without headers: a stored (uncompressed) zlib block, after the zlib header in the first one. The empty
/// block behind it is zlib's flush: Go gives out nothing before it, and what it then waits for in vain ends the stream.
fn empty_headers(first: bool) -> Vec<u8> {
    let mut block = if first { vec![0x78, 0x01] } else { Vec::new() };
    block.extend([0x00, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
    block.extend([0x00, 0, 0, 0xff, 0xff]);
    block
}

/// The client's header compression: one zlib stream over all its header blocks.
struct Headers {
    inflate: flate2::Decompress,
    begun: bool,
}

impl Headers {
    fn new() -> Self {
        let mut inflate = flate2::Decompress::new(false);
        // The stream refers to a dictionary as if it had been sent before. So let it have been: as a stored block.
        let dictionary = dictionary();
        let length = dictionary.len() as u16;
        let mut block = vec![0x00];
        block.extend(length.to_le_bytes());
        block.extend((!length).to_le_bytes());
        block.extend(&dictionary);
        let mut sink = Vec::with_capacity(dictionary.len() + 64);
        // Cannot fail: the block is well formed.
        let _ = inflate.decompress_vec(&block, &mut sink, flate2::FlushDecompress::Sync);
        Self { inflate, begun: false }
    }

    fn decode(&mut self, mut block: &[u8]) -> io::Result<Vec<(String, String)>> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "bad header block");
        if !self.begun {
            // zlib's two bytes, and the dictionary's checksum if they announce it.
            let has_dictionary = block.get(1).ok_or_else(invalid)? & 0x20 != 0;
            block = block.get(if has_dictionary { 6 } else { 2 }..).ok_or_else(invalid)?;
            self.begun = true;
        }
        // It is never made larger: decompressing stops where it is full.
        let mut plain = Vec::with_capacity(MAX_HEADERS);
        while !block.is_empty() {
            let (before_in, before_out) = (self.inflate.total_in(), plain.len());
            self.inflate.decompress_vec(block, &mut plain, flate2::FlushDecompress::Sync).map_err(|_| invalid())?;
            let used = (self.inflate.total_in() - before_in) as usize;
            block = &block[used..];
            if plain.len() == plain.capacity() || used == 0 && plain.len() == before_out {
                return Err(invalid());
            }
        }
        let count = word(&plain, 0)?;
        if count as usize > MAX_FIELDS {
            return Err(invalid());
        }
        let mut at = 4;
        let mut text = || -> io::Result<String> {
            let length = word(&plain, at)? as usize;
            let bytes = plain.get(at + 4..at + 4 + length).ok_or_else(invalid)?;
            at += 4 + length;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        (0..count).map(|_| Ok((text()?, text()?))).collect()
    }
}

/// A client that says anything at all and leaves: the connection ends, and nobody gets more than was sent.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) async fn fuzz_frames(data: &[u8]) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (mut streams, writer, driver) = serve(ours);
    drop(writer);
    let (mut replies, mut write) = tokio::io::split(theirs);
    let client = async {
        let _ = write.write_all(data).await;
        let _ = write.shutdown().await;
    };
    let accepting = async {
        let mut readers = tokio::task::JoinSet::new();
        while let Some(mut stream) = streams.recv().await {
            readers.spawn(async move {
                let mut received = 0;
                while let Some(piece) = stream.data.recv().await {
                    received += piece.len();
                }
                received
            });
        }
        readers.join_all().await.into_iter().sum::<usize>()
    };
    let mut nobody = tokio::io::sink();
    let (_, (), received, _) = tokio::join!(driver, client, accepting, tokio::io::copy(&mut replies, &mut nobody));
    assert!(received <= data.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured from a client: zlib header with FDICT, then `streamtype: error`, compressed against the dictionary.
    fn client_block(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for (key, value) in headers {
            for text in [key, value] {
                plain.extend((text.len() as u32).to_be_bytes());
                plain.extend(text.as_bytes());
            }
        }
        let mut block = vec![0x00];
        block.extend((plain.len() as u16).to_le_bytes());
        block.extend((!(plain.len() as u16)).to_le_bytes());
        block.extend(plain);
        block
    }

    #[tokio::test]
    async fn a_client_opens_streams_and_sends_data() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (mut streams, writer, driver) = serve(ours);
        let driver = tokio::spawn(driver);
        let (mut read, mut write) = tokio::io::split(theirs);
        let mut block = vec![0x78, 0xbb, 0, 0, 0, 0];
        block.extend(client_block(&[("streamtype", "stdin")]));
        let mut body = vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        body.extend(block);
        write.write_all(&control_frame(SYN_STREAM, 0, &body)).await.unwrap();
        let mut body = vec![0, 0, 0, 3, 0, 0, 0, 0, 0, 0];
        body.extend(client_block(&[("streamtype", "data"), ("port", "80")]));
        write.write_all(&control_frame(SYN_STREAM, 0, &body)).await.unwrap();
        write.write_all(&data_frame(1, FLAG_FIN, b"hello")).await.unwrap();
        let mut first = streams.recv().await.unwrap();
        assert_eq!((first.id, first.header("StreamType")), (1, Some("stdin")));
        assert_eq!(&*first.data.recv().await.unwrap(), b"hello");
        assert!(first.data.recv().await.is_none());
        let second = streams.recv().await.unwrap();
        assert_eq!(second.header("port"), Some("80"));
        writer.data(3, b"answer").await.unwrap();
        let mut seen = vec![0u8; (8 + 4 + 16) + (8 + 4 + 14) + (8 + 6)];
        read.read_exact(&mut seen).await.unwrap();
        assert!(seen.ends_with(b"answer"));
        drop((read, write));
        driver.await.unwrap().unwrap();
    }

    /// A frame that opens a stream; the first one of a connection begins the compressed headers.
    fn syn_stream(id: u32, first: bool) -> Vec<u8> {
        let mut body = [&id.to_be_bytes()[..], &[0; 6]].concat();
        body.extend(first.then_some([0x78, 0xbb, 0, 0, 0, 0]).into_iter().flatten());
        body.extend(client_block(&[("streamtype", "stdin")]));
        control_frame(SYN_STREAM, 0, &body)
    }

    #[tokio::test]
    async fn security_what_waits_is_bounded_in_bytes() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (mut streams, _writer, driver) = serve(ours);
        let driver = tokio::spawn(driver);
        let (mut read, mut write) = tokio::io::split(theirs);
        let replies = tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
        const FRAME: usize = (1 << 24) - 1;
        let sending = tokio::spawn(async move {
            write.write_all(&syn_stream(1, true)).await.unwrap();
            write.write_all(&data_frame(1, 0, &vec![7; FRAME])).await.unwrap();
            write.write_all(&syn_stream(3, false)).await.unwrap();
            write
        });
        let mut first = streams.recv().await.unwrap();
        // As long as nobody reads, the client cannot get rid of its frame.
        while first.data.len() < QUEUE {
            tokio::task::yield_now().await;
        }
        assert!(!sending.is_finished());
        let mut received = 0;
        while received < FRAME {
            received += first.data.recv().await.unwrap().len();
        }
        assert_eq!((received, streams.recv().await.unwrap().id), (FRAME, 3));
        let mut write = sending.await.unwrap();
        let long = control_frame(PING, 0, &vec![0; MAX_CONTROL + 1]);
        // The server may be gone before all of it is written.
        let _ = write.write_all(&long).await;
        assert!(driver.await.unwrap().is_err());
        replies.abort();
    }

    /// A kilobyte stands for a megabyte of them, and two thousand streams would keep theirs.
    #[test]
    fn security_headers_of_streams_do_not_expand_without_end() {
        let long = "x".repeat(MAX_HEADERS);
        for (headers, is_taken) in [
            (vec![("streamtype", "data"), ("port", "80"), ("requestid", "1")], true),
            (vec![("", ""); MAX_FIELDS], true),
            (vec![("", ""); MAX_FIELDS + 1], false),
            (vec![("streamtype", long.as_str())], false),
        ] {
            let mut block = vec![0x78, 0x01];
            block.extend(client_block(&headers));
            assert_eq!(Headers::new().decode(&block).is_ok(), is_taken, "{} headers", headers.len());
        }
    }

    #[tokio::test]
    async fn security_streams_are_bounded_in_number() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (mut streams, _writer, driver) = serve(ours);
        let driver = tokio::spawn(driver);
        let (mut read, mut write) = tokio::io::split(theirs);
        let replies = tokio::spawn(async move { tokio::io::copy(&mut read, &mut tokio::io::sink()).await });
        let accepting = tokio::spawn(async move {
            let mut count = 0;
            while streams.recv().await.is_some() {
                count += 1;
            }
            count
        });
        for i in 0..=MAX_STREAMS {
            let _ = write.write_all(&syn_stream(2 * i as u32 + 1, i == 0)).await;
        }
        assert!(driver.await.unwrap().is_err());
        assert_eq!(accepting.await.unwrap(), MAX_STREAMS);
        replies.abort();
    }
}
