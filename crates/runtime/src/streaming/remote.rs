//! The client of an exec or attach, whatever it speaks: what it types, its window, and where output goes.

use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use websocket::{Opcode, Side};

use super::queue::{Queued, Room};
use super::{Protocol, spdy};

/// Input waiting for the program: the client waits when it is full.
const QUEUE: usize = 64;
/// The longest message that is no input: the size of a window, or the end of a channel.
const MAX_NEWS: usize = 4096;
/// A client that asked for a stream opens it within this time.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);
/// After the last word the client hangs up; one that does not is left.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Remote {
    /// Ends when the client says that there is no more.
    pub(super) stdin: mpsc::Receiver<Queued>,
    pub(super) resize: mpsc::Receiver<(u16, u16)>,
    pub(super) output: Output,
    /// Fires when the connection is gone.
    pub(super) gone: CancellationToken,
    driver: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
pub(super) enum Output {
    Channels { frames: mpsc::Sender<Frame>, version: u8 },
    Spdy { writer: spdy::Writer, stdout: Option<u32>, stderr: Option<u32>, error: u32 },
}

pub(super) enum Frame {
    Data(Vec<u8>),
    Pong(Vec<u8>),
    Close,
}

#[derive(Clone, Copy)]
pub(super) enum Channel {
    Stdout,
    Stderr,
}

/// How it ended.
pub(super) enum Outcome {
    Exit(i32),
    Failed(String),
}

impl Output {
    pub(super) async fn write(&self, channel: Channel, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Channels { frames, .. } => {
                let mut message = vec![channel as u8 + 1];
                message.extend(bytes);
                frames.send(Frame::Data(message)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
            }
            Self::Spdy { writer, stdout, stderr, .. } => {
                let stream = match channel {
                    Channel::Stdout => stdout,
                    Channel::Stderr => stderr,
                };
                match stream {
                    Some(stream) => writer.data(*stream, bytes).await,
                    None => Ok(()),
                }
            }
        }
    }
}

impl Remote {
    /// Says how it ended, in the words of `metav1.Status`, and closes.
    pub(super) async fn finish(self, outcome: Outcome) {
        let status = match &outcome {
            Outcome::Exit(0) => json!({ "metadata": {}, "status": "Success" }),
            Outcome::Exit(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Outcome::Failed(message) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("error executing command in container: {message}"),
                "reason": "InternalError",
                "details": { "causes": [{ "message": message }] },
                "code": 500,
            }),
        };
        // A client that is gone hears nothing, and that is all right.
        match &self.output {
            Output::Channels { frames, version } => {
                let text = match (version, &outcome) {
                    (4.., _) => status.to_string(),
                    // Before version 4 only errors are told, in plain words.
                    (_, Outcome::Exit(0)) => String::new(),
                    (_, Outcome::Exit(code)) => {
                        format!("command terminated with non-zero exit code: exit status {code}")
                    }
                    (_, Outcome::Failed(message)) => message.clone(),
                };
                if !text.is_empty() {
                    let _ = frames.send(Frame::Data([&[3], text.as_bytes()].concat())).await;
                }
                let _ = frames.send(Frame::Close).await;
            }
            Output::Spdy { writer, stdout, stderr, error } => {
                for stream in [stdout, stderr].into_iter().flatten() {
                    let _ = writer.finish(*stream).await;
                }
                let _ = writer.data(*error, status.to_string().as_bytes()).await;
                let _ = writer.finish(*error).await;
            }
        }
        let Self { output, gone, driver, stdin, .. } = self;
        drop((output, stdin));
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, gone.cancelled()).await;
        driver.abort();
    }
}

/// Brings a connection into this form. `wanted` says which of stdin, stdout, stderr the request asked for.
pub(super) async fn open<T>(io: T, protocol: Protocol, wanted: [bool; 3], tty: bool) -> io::Result<Remote>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match protocol {
        Protocol::Spdy => open_spdy(io, wanted, tty).await,
        Protocol::Channels { version } => Ok(open_channels(io, version)),
        Protocol::TunneledSpdy => Err(io::Error::other("tunnelled SPDY is for port-forward only")),
    }
}

fn open_channels<T>(io: T, version: u8) -> Remote
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    let (stdin_sender, stdin) = mpsc::channel(QUEUE);
    let (resize_sender, resize) = mpsc::channel(QUEUE);
    let (frames, frames_out) = mpsc::channel(QUEUE);
    let gone = CancellationToken::new();
    let (pongs, ended) = (frames.clone(), gone.clone());
    let driver = tokio::spawn(FutureExt::boxed(async move {
        let reading = read_channels(read, Some(stdin_sender), resize_sender, pongs);
        tokio::select! {
            result = reading => if let Err(error) = result {
                tracing::debug!(%error, "WebSocket client failed");
            },
            result = write_frames(write, frames_out) => if let Err(error) = result {
                tracing::debug!(%error, "WebSocket client went away");
            },
        }
        ended.cancel();
    }));
    Remote { stdin, resize, output: Output::Channels { frames, version }, gone, driver }
}

pub(super) async fn write_frames<W: AsyncWrite>(io: WriteHalf<W>, mut frames: mpsc::Receiver<Frame>) -> io::Result<()> {
    let mut writer = websocket::Writer::new(Side::Server, io);
    while let Some(frame) = frames.recv().await {
        match frame {
            Frame::Data(data) => writer.send(Opcode::Binary, &data).await?,
            Frame::Pong(data) => writer.pong(&data).await?,
            Frame::Close => return writer.close().await,
        }
    }
    Ok(())
}

async fn read_channels<R: AsyncRead>(
    io: ReadHalf<R>,
    mut stdin: Option<mpsc::Sender<Queued>>,
    resize: mpsc::Sender<(u16, u16)>,
    pongs: mpsc::Sender<Frame>,
) -> io::Result<()> {
    let mut channels = websocket::Channels::new(Side::Server, io);
    let room = Room::new();
    let mut news = Vec::new();
    while let Some(received) = channels.next().await? {
        let (channel, data, ends) = match received {
            websocket::Received::Data { channel, data, ends } => (channel, data, ends),
            websocket::Received::Ping(data) => {
                let _ = pongs.send(Frame::Pong(data)).await;
                continue;
            }
        };
        if channel == 0 {
            // The program may have closed its stdin: then what comes is lost, as in any pipe.
            if let Some(sender) = stdin.as_ref().filter(|sender| !sender.is_closed() && !data.is_empty())
                && let Some(queued) = room.take(&data).await
            {
                let _ = sender.send(queued).await;
            }
            continue;
        }
        news.extend(data);
        if news.len() > MAX_NEWS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
        }
        if !ends {
            continue;
        }
        match (channel, std::mem::take(&mut news).as_slice()) {
            (4, bytes) => {
                if let Some(size) = window(bytes) {
                    let _ = resize.send(size).await;
                }
            }
            // Version 5: the client closes one channel.
            (255, [0]) => stdin = None,
            _ => {}
        }
    }
    Ok(())
}

/// `{"Width":80,"Height":24}`
fn window(bytes: &[u8]) -> Option<(u16, u16)> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let side = |name: &str| value.get(name)?.as_u64().and_then(|n| u16::try_from(n).ok());
    Some((side("Width")?, side("Height")?))
}

async fn open_spdy<T>(io: T, wanted: [bool; 3], tty: bool) -> io::Result<Remote>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut streams, writer, connection) = spdy::serve(io);
    let gone = CancellationToken::new();
    let ended = gone.clone();
    let driver = tokio::spawn(FutureExt::boxed(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "SPDY client failed");
        }
        ended.cancel();
    }));
    let expected = 1 + wanted.iter().filter(|w| **w).count() + usize::from(tty);
    let (stdin_sender, stdin) = mpsc::channel(QUEUE);
    let (resize_sender, resize) = mpsc::channel(QUEUE);
    let (mut stdout, mut stderr, mut error) = (None, None, None);
    let mut inputs = Vec::new();
    let collect = async {
        for _ in 0..expected {
            let stream = streams.recv().await.ok_or(io::ErrorKind::UnexpectedEof)?;
            let id = stream.id;
            match stream.header("streamtype").unwrap_or_default() {
                "error" => error = Some(id),
                "stdout" => stdout = Some(id),
                "stderr" => stderr = Some(id),
                "stdin" | "resize" => inputs.push(stream),
                other => return Err(io::Error::other(format!("unknown stream type {other:?}"))),
            }
        }
        Ok(())
    };
    let collected = tokio::time::timeout(STREAMS_TIMEOUT, collect).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()));
    let error = match (collected, error) {
        (Ok(()), Some(error)) => error,
        (result, _) => {
            driver.abort();
            return Err(result.err().unwrap_or_else(|| io::Error::other("the client opened no error stream")));
        }
    };
    for mut stream in inputs {
        let is_stdin = stream.header("streamtype") == Some("stdin");
        let (stdin_sender, resize_sender) = (stdin_sender.clone(), resize_sender.clone());
        // Ends with its stream, which ends with the connection.
        tokio::spawn(FutureExt::boxed(async move {
            while let Some(bytes) = stream.data.recv().await {
                let sent = if is_stdin {
                    stdin_sender.send(bytes).await.is_ok()
                } else if let Some(size) = window(&bytes) {
                    resize_sender.send(size).await.is_ok()
                } else {
                    true
                };
                if !sent {
                    return;
                }
            }
        }));
    }
    // The receiver of new streams must live: its end would end the connection.
    let keep = gone.clone();
    tokio::spawn(FutureExt::boxed(async move {
        keep.cancelled().await;
        drop(streams);
    }));
    Ok(Remote { stdin, resize, output: Output::Spdy { writer, stdout, stderr, error }, gone, driver })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_sizes() {
        assert_eq!(window(br#"{"Width":80,"Height":24}"#), Some((80, 24)));
        assert_eq!(window(b"x"), None);
        assert_eq!(window(br#"{"Width":-1,"Height":24}"#), None);
    }
}
