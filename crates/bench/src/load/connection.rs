//! One TLS connection, driven by whoever sees that its socket is ready.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use client::Endpoint;
use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use super::frames::{Event, Frames, Requests};

pub(super) struct Connection {
    pub(super) socket: TcpStream,
    tls: UnbufferedClientConnection,
    frames: Frames,
    pub(super) requests: Requests,
    /// The beginning of a record whose end has not come.
    rest: Vec<u8>,
    /// Encrypted; up to `sent` the kernel has it.
    out: Vec<u8>,
    sent: usize,
}

impl Connection {
    pub(super) fn open(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let mut tls = endpoint.tls.clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let tls = UnbufferedClientConnection::new(Arc::new(tls), endpoint.name.clone())?;
        let socket = TcpStream::connect((&*endpoint.host, endpoint.port))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let authority = format!("{}:{}", endpoint.host, endpoint.port);
        let authorization = endpoint.authorization.as_ref().map(|value| value.to_str()).transpose()?;
        let requests = Requests::new(&authority, authorization);
        Ok(Self { socket, tls, frames: Frames::default(), requests, rest: Vec::new(), out: Vec::new(), sent: 0 })
    }

    /// The kernel did not take everything.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Reads what is there, into `scratch` as long as it is worked on, and hands out what it says.
    pub(super) fn receive(
        &mut self,
        scratch: &mut [u8],
        on: &mut impl FnMut(Event<'_>, &mut Requests) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let kept = self.rest.len();
        scratch[..kept].copy_from_slice(&self.rest);
        let read = match self.socket.read(&mut scratch[kept..]) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(error) => return Err(error).context("reading"),
        };
        let incoming = &mut scratch[..kept + read];
        let taken = self.turn(incoming, on)?;
        self.rest.clear();
        self.rest.extend_from_slice(&incoming[taken..]);
        Ok(())
    }

    /// Encrypts what is to be sent and sends it, as far as the kernel takes it.
    pub(super) fn send(&mut self) -> anyhow::Result<()> {
        self.turn(&mut [], &mut |_, _| Ok(()))?;
        while self.has_unsent() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("writing"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Goes on until more must be received. Returns how much of `incoming` is done with.
    fn turn(
        &mut self,
        incoming: &mut [u8],
        on: &mut impl FnMut(Event<'_>, &mut Requests) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let Self { tls, frames, requests, out, .. } = self;
        let mut taken = 0;
        loop {
            let UnbufferedStatus { discard, state } = tls.process_tls_records(&mut incoming[taken..]);
            let (mut discard, mut waits) = (discard, false);
            match state.context("TLS")? {
                ConnectionState::ReadTraffic(mut records) => {
                    while let Some(record) = records.next_record() {
                        let record = record.context("TLS")?;
                        discard += record.discard;
                        frames.take(record.payload, requests, on)?;
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => append(out, |room| match data.encode(room) {
                    Ok(length) => Ok(Ok(length)),
                    Err(EncodeError::InsufficientSize(size)) => Ok(Err(size.required_size)),
                    Err(error) => Err(error.into()),
                })?,
                // It is in `out`, which is sent in time.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::BlockedHandshake => waits = true,
                ConnectionState::WriteTraffic(mut traffic) => {
                    if !requests.frames.is_empty() {
                        append(out, |room| match traffic.encrypt(&requests.frames, room) {
                            Ok(length) => Ok(Ok(length)),
                            Err(EncryptError::InsufficientSize(size)) => Ok(Err(size.required_size)),
                            Err(error) => Err(error.into()),
                        })?;
                        requests.frames.clear();
                    }
                    waits = true;
                }
                ConnectionState::PeerClosed | ConnectionState::Closed => bail!("the server closed the connection"),
                other => bail!("unexpected in TLS: {other:?}"),
            }
            taken += discard;
            if waits {
                ensure!(taken <= incoming.len(), "TLS took more than there was");
                return Ok(taken);
            }
        }
    }
}

/// Lets `write` put its bytes at the end of `out`; it says how many, or how much room it needs.
fn append(
    out: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> anyhow::Result<Result<usize, usize>>,
) -> anyhow::Result<()> {
    let start = out.len();
    let mut room = 4096;
    loop {
        out.resize(start + room, 0);
        match write(&mut out[start..])? {
            Ok(length) => {
                out.truncate(start + length);
                return Ok(());
            }
            Err(required) => room = required,
        }
    }
}
