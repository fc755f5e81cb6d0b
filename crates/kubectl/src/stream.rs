//! Streams to a container: WebSocket frames that carry numbered channels (`v5.channel.k8s.io`, `v4.channel.k8s.io`).
//!
//! Used by exec, attach, cp, debug (stdin 0, stdout 1, stderr 2, error 3, resize 4) and port-forward (data 0, error 1).

use std::pin::pin;

use client::Upgraded;
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, ReadHalf, WriteHalf};
use websocket::{Channels, Opcode, Received, Side, handshake};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::connect_failure;

pub(crate) const STDIN: u8 = 0;
pub(crate) const STDOUT: u8 = 1;
pub(crate) const STDERR: u8 = 2;
pub(crate) const ERROR: u8 = 3;
pub(crate) const RESIZE: u8 = 4;
/// v5 only: the channel named by the next byte is closed.
const CLOSE: u8 = 255;
/// Longer messages are refused; servers send far shorter ones.
const MAX_MESSAGE: usize = 64 << 20;

pub(crate) struct Reader<R = ReadHalf<Upgraded>> {
    channels: Channels<R>,
}

pub(crate) struct Writer {
    io: websocket::Writer<WriteHalf<Upgraded>>,
    v5: bool,
}

pub(crate) async fn open(cx: &Context, path: &str) -> Result<(Reader, Writer)> {
    let key = handshake::new_key();
    let request = http::Request::get(path)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", &key)
        .header("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io")
        .body(bytes::Bytes::new())
        .map_err(|e| Failure::message(e.to_string()))?;
    cx.trace(6, "round_trippers.go:527", &format!("\"Request\" verb=\"GET\" url=\"{}{path}\"", cx.server()?));
    let (response, io) = cx.client()?.upgrade(request).await.map_err(|e| match e {
        client::Error::Api(status) => Failure::message(format!("unable to upgrade connection: {}", status.message)),
        other => connect_failure(cx, other),
    })?;
    if !handshake::is_accepted(&key, response.headers()) {
        return Err(Failure::message(
            "unable to upgrade connection: the server did not accept the WebSocket".to_owned(),
        ));
    }
    let v5 = response.headers().get("sec-websocket-protocol").is_some_and(|p| p.as_bytes().starts_with(b"v5."));
    let (read, write) = tokio::io::split(io);
    let reader = Reader { channels: Channels::new(Side::Client, read) };
    Ok((reader, Writer { io: websocket::Writer::new(Side::Client, write), v5 }))
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// The messages for a `select!`: what has come of one stays while another branch is taken. [`Self::next`] would lose it,
    /// and with it where the following frame begins.
    pub(crate) fn messages(self) -> impl Stream<Item = Result<(u8, Vec<u8>)>> {
        futures_util::stream::try_unfold(self, |mut reader| async move {
            let message = reader.next().await?;
            Ok::<_, Failure>(message.map(|message| (message, reader)))
        })
    }

    /// The next message's channel and content; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let mut message: Vec<u8> = Vec::new();
        while let Some(received) = self.channels.next().await? {
            // Pings need no answer to keep these short connections alive.
            let Received::Data { channel, data, ends } = received else { continue };
            message.extend_from_slice(&data);
            if message.len() > MAX_MESSAGE {
                return Err(Failure::message(format!("the server sent a message of more than {MAX_MESSAGE} bytes")));
            }
            if ends {
                return Ok(Some((channel, message)));
            }
        }
        Ok(None)
    }
}

impl Writer {
    pub(crate) async fn send(&mut self, channel: u8, data: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(data.len() + 1);
        message.push(channel);
        message.extend_from_slice(data);
        Ok(self.io.send(Opcode::Binary, &message).await?)
    }

    /// Says that no more input comes. v4 cannot, so the input just stays silent.
    pub(crate) async fn close(&mut self, channel: u8) -> Result<()> {
        if self.v5 { self.send(CLOSE, &[channel]).await } else { Ok(()) }
    }

    pub(crate) async fn finish(&mut self) -> Result<()> {
        Ok(self.io.close().await?)
    }
}

/// The outcome a container's stream reports on its error channel.
pub(crate) fn outcome(status: &[u8]) -> Result<()> {
    let Ok(value) = serde_json::from_slice::<Value>(status) else {
        let text = String::from_utf8_lossy(status).into_owned();
        return if text.is_empty() { Ok(()) } else { Err(Failure::message(text)) };
    };
    if value["status"] == "Success" {
        return Ok(());
    }
    if value["reason"] == "NonZeroExitCode" {
        let code = value["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|c| c["reason"] == "ExitCode")
            .and_then(|c| c["message"].as_str()?.parse::<u8>().ok())
            .unwrap_or(1);
        return Err(Failure::ExitWith(format!("command terminated with exit code {code}"), code));
    }
    Err(Failure::message(value["message"].as_str().unwrap_or("the stream failed").to_owned()))
}

/// Puts the terminal into raw mode and back when dropped.
pub(crate) struct RawTerminal(nix::sys::termios::Termios);

impl RawTerminal {
    pub(crate) fn enter() -> Option<RawTerminal> {
        use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
        let stdin = std::io::stdin();
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw).ok()?;
        Some(RawTerminal(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = nix::sys::termios::tcsetattr(std::io::stdin(), nix::sys::termios::SetArg::TCSANOW, &self.0);
    }
}

/// The terminal's size as the resize channel wants it.
pub(crate) fn terminal_size() -> Option<Vec<u8>> {
    let size = rustix::termios::tcgetwinsize(std::io::stdin()).ok()?;
    Some(format!("{{\"Width\":{},\"Height\":{}}}", size.ws_col, size.ws_row).into_bytes())
}

/// What is connected to a container.
pub(crate) struct Terminal {
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
    /// What to type to leave the container running and go.
    pub(crate) detach: Vec<u8>,
}

/// `ctrl-p,ctrl-q`, `a,b`: the bytes a terminal sends for the keys.
pub(crate) fn keys(text: &str) -> Result<Vec<u8>> {
    let one = |key: &str| -> Option<u8> {
        let single = |s: &str| <[u8; 1]>::try_from(s.as_bytes()).ok().map(|[b]| b);
        match key.strip_prefix("ctrl-") {
            Some(rest) => match single(rest)? {
                b @ b'a'..=b'z' => Some(b - b'a' + 1),
                b @ (b'@' | b'['..=b'_') => Some(b & 0x1f),
                _ => None,
            },
            None => single(key),
        }
    };
    text.split(',')
        .filter(|key| !key.is_empty())
        .map(|key| {
            one(key).ok_or_else(|| Failure::message(format!("could not bind detach keys: Unknown character: '{key}'")))
        })
        .collect()
}

/// Finds a key sequence in typed bytes, also across reads. Bytes of a sequence that may still come are kept back.
struct Detach {
    keys: Vec<u8>,
    matched: usize,
}

impl Detach {
    /// What to pass on, and whether the sequence is complete.
    fn filter(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        if self.keys.is_empty() {
            return (typed.to_vec(), false);
        }
        let mut out = Vec::new();
        for &b in typed {
            if b == self.keys[self.matched] {
                self.matched += 1;
                if self.matched == self.keys.len() {
                    return (out, true);
                }
                continue;
            }
            out.extend_from_slice(&self.keys[..self.matched]);
            self.matched = usize::from(b == self.keys[0]);
            if self.matched == 0 {
                out.push(b);
            }
        }
        (out, false)
    }
}

/// Copies between our standard streams and the container's until it ends.
pub(crate) async fn interact(cx: &Context, path: &str, terminal: Terminal) -> Result<()> {
    let (reader, mut writer) = open(cx, path).await?;
    let mut messages = pin!(reader.messages());
    let _raw = if terminal.tty { RawTerminal::enter() } else { None };
    if terminal.tty
        && let Some(size) = terminal_size()
    {
        writer.send(RESIZE, &size).await?;
    }
    let (sender, mut input) = tokio::sync::mpsc::channel::<Vec<u8>>(16);
    if terminal.stdin {
        // A thread: reads of a terminal cannot be made asynchronous, and the process ends with it.
        std::thread::spawn(move || {
            let mut buffer = [0u8; 16 << 10];
            while let Ok(n) = std::io::Read::read(&mut std::io::stdin(), &mut buffer) {
                if n == 0 || sender.blocking_send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
    } else {
        drop(sender);
    }
    let mut resized = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change())?;
    let mut input_open = terminal.stdin;
    let mut detach = Detach { keys: if terminal.tty { terminal.detach } else { Vec::new() }, matched: 0 };
    loop {
        tokio::select! {
            message = messages.next() => match message.transpose()? {
                None => return Ok(()),
                Some((STDOUT, data)) => {
                    cx.write(&data)?;
                    cx.flush()?;
                }
                Some((STDERR, data)) => {
                    use std::io::Write;
                    std::io::stderr().write_all(&data)?;
                }
                Some((ERROR, data)) => {
                    let _ = writer.finish().await;
                    return outcome(&data);
                }
                Some(_) => {}
            },
            data = input.recv(), if input_open => match data {
                Some(data) => {
                    let (passed, leave) = detach.filter(&data);
                    if leave {
                        return Ok(());
                    }
                    if !passed.is_empty() {
                        writer.send(STDIN, &passed).await?;
                    }
                }
                None => {
                    input_open = false;
                    writer.close(STDIN).await?;
                }
            },
            _ = resized.recv(), if terminal.tty => {
                if let Some(size) = terminal_size() {
                    writer.send(RESIZE, &size).await?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_outlasts_what_is_done_while_it_arrives() {
        use futures_util::FutureExt;
        use tokio::io::AsyncWriteExt;
        let (mut server, ours) = tokio::io::duplex(1 << 10);
        let mut messages = pin!(Reader { channels: Channels::new(Side::Client, ours) }.messages());
        for text in ["first", "second"] {
            let message = [&[STDOUT], text.as_bytes()].concat();
            for byte in websocket::frame(Side::Server, Opcode::Binary, &message) {
                // As `select!` does it when another branch is ready.
                assert!(messages.next().now_or_never().is_none());
                server.write_all(&[byte]).await.unwrap();
            }
            assert_eq!(messages.next().await.unwrap().unwrap(), (STDOUT, text.as_bytes().to_vec()));
        }
    }

    #[test]
    fn key_sequences_detach() {
        assert_eq!(keys("ctrl-p,ctrl-q").unwrap(), [16, 17]);
        assert_eq!(keys("a,ctrl-[").unwrap(), [b'a', 27]);
        assert!(keys("ctrl-!").is_err());
        for (reads, passed, leaves) in [
            (vec!["ab"], "ab", false),
            (vec!["x\u{10}\u{11}y"], "x", true),
            (vec!["x\u{10}", "\u{11}"], "x", true),
            (vec!["\u{10}a"], "\u{10}a", false),
            (vec!["\u{10}\u{10}\u{11}"], "\u{10}", true),
        ] {
            let mut detach = Detach { keys: vec![16, 17], matched: 0 };
            let (mut out, mut left) = (Vec::new(), false);
            for read in &reads {
                let (more, leave) = detach.filter(read.as_bytes());
                out.extend(more);
                left |= leave;
            }
            assert_eq!((String::from_utf8(out).unwrap().as_str(), left), (passed, leaves), "{reads:?}");
        }
    }

    #[test]
    fn exit_codes_come_from_the_status() {
        assert!(outcome(br#"{"status":"Success"}"#).is_ok());
        let failed = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        let failure = outcome(failed).unwrap_err();
        assert_eq!((failure.exit_code(), failure.to_string().as_str()), (7, "command terminated with exit code 7"));
        assert_eq!(outcome(br#"{"status":"Failure","message":"no"}"#).unwrap_err().to_string(), "error: no");
    }
}
