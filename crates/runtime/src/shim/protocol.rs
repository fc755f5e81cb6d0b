//! What the runtime and a shim say to each other: frames of JSON on a Unix stream socket, descriptors beside them.
//!
//! A connection carries one request and its answer. After `Watch` it stays open and the shim sends an [`Ended`] whenever
//! something ends; after `Exec` it stays open until the process ends, and closing it early kills the process.
//! After `Attach` it stays open for as long as the streams are wanted.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::record::StatusRecord;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Start {
        id: String,
    },
    Signal {
        id: String,
        signal: i32,
    },
    /// Descriptors: stdin, stdout, stderr; none of them with a terminal, whose master comes back instead.
    Exec {
        id: String,
        args: Vec<String>,
        tty: bool,
    },
    /// Descriptors: one per true flag, in this order.
    Attach {
        id: String,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    Resize {
        id: String,
        width: u16,
        height: u16,
    },
    CloseStdin {
        id: String,
    },
    ReopenLog {
        id: String,
    },
    Watch,
    /// Kills everything and ends the shim.
    Shutdown,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    Done,
    Started { pid: i32 },
    Failed { message: String },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ended {
    /// How it ended, as in its `status.json`; none from a shim of an earlier version.
    Container {
        id: String,
        #[serde(default)]
        status: Option<StatusRecord>,
    },
    Exec {
        code: i32,
    },
    Pause,
}

/// Frames are small: long things (specs) travel as files.
const MAX_FRAME: usize = 4 << 20;

pub(crate) fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    let mut frame = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    frame.extend(body);
    Ok(frame)
}

/// Takes one whole frame from the front of `buffer`, if it is there.
pub(crate) fn take_frame<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(header) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*header) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
    }
    if buffer.len() < 4 + length {
        return Ok(None);
    }
    let message = serde_json::from_slice(&buffer[4..4 + length])?;
    buffer.drain(..4 + length);
    Ok(Some(message))
}

/// Sends a whole frame on a blocking socket.
pub(crate) fn send<T: Serialize>(socket: &UnixStream, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = frame(message)?;
    let mut sent = crate::sys::send_with_fds(socket.as_fd(), &bytes, fds)?;
    while sent < bytes.len() {
        sent += crate::sys::send_with_fds(socket.as_fd(), &bytes[sent..], &[])?;
    }
    Ok(())
}

/// Receives a whole frame from a blocking socket, and descriptors with it.
pub(crate) fn receive<T: DeserializeOwned>(mut socket: &UnixStream, fds: &mut Vec<OwnedFd>) -> io::Result<T> {
    let mut header = [0u8; 4];
    let mut filled = 0;
    while filled < header.len() {
        match crate::sys::receive_with_fds(socket.as_fd(), &mut header[filled..], fds)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => filled += n,
        }
    }
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
    }
    let mut body = vec![0u8; length];
    socket.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_split() {
        let whole = frame(&Request::Start { id: "x".into() }).unwrap();
        let mut buffer = Vec::new();
        for (i, byte) in whole.iter().enumerate() {
            assert!(take_frame::<Request>(&mut buffer).unwrap().is_none(), "byte {i}");
            buffer.push(*byte);
        }
        assert!(matches!(take_frame(&mut buffer).unwrap(), Some(Request::Start { id }) if id == "x"));
        assert!(buffer.is_empty());
    }

    #[test]
    fn shims_of_earlier_versions_are_understood() {
        let ended: Ended = serde_json::from_str(r#"{"Container":{"id":"x"}}"#).unwrap();
        assert!(matches!(ended, Ended::Container { id, status: None } if id == "x"));
    }
}
