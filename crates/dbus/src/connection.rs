//! One connection to a bus: signing in, calls and their answers, and the signals that come in between.

use std::collections::VecDeque;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::wire::{Kind, Malformed, Message, Value};

/// systemd answers in milliseconds; one that is stuck must not hold a pod forever.
const TIMEOUT: Duration = Duration::from_secs(30);
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// The environment variable that names another bus than the usual one.
pub const SYSTEM_BUS_ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS";

/// The socket of the machine's bus, where systemd and logind are, or the one that [`SYSTEM_BUS_ADDRESS`] names.
pub fn system_bus() -> PathBuf {
    let address = std::env::var(SYSTEM_BUS_ADDRESS).unwrap_or_default();
    address.strip_prefix("unix:path=").unwrap_or(SYSTEM_BUS).into()
}
const MAX_DESCRIPTORS: usize = 16;
/// Messages that may come while an answer is waited for. Everybody who reaches the bus may send signals.
const MAX_WAITING: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("D-Bus: {0}")]
    Io(#[from] io::Error),
    /// What came is not D-Bus.
    #[error("D-Bus: {0}")]
    Malformed(#[from] Malformed),
    /// What came is not what was asked for.
    #[error("D-Bus: {0}")]
    Protocol(String),
    /// The other side says no.
    #[error("{message} ({name})")]
    Refused { name: String, message: String },
}

/// A method to be called.
pub struct Call<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
    pub body: Vec<Value>,
}

pub struct Connection {
    stream: UnixStream,
    last_serial: u32,
    /// What came while an answer was waited for.
    waiting: VecDeque<Message>,
    descriptors: VecDeque<OwnedFd>,
}

/// Ends a connection from another thread.
pub struct Handle(UnixStream);

impl Handle {
    /// Whoever waits for a message gets an error.
    pub fn close(&self) {
        // It may have ended by itself.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl Connection {
    pub fn handle(&self) -> io::Result<Handle> {
        self.stream.try_clone().map(Handle)
    }

    /// Signs in at the bus behind a socket.
    pub fn open(socket: &Path) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", socket.display())))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut connection = Self::over(stream);
        connection.sign_in()?;
        connection.call_bus("Hello", Vec::new())?;
        Ok(connection)
    }

    /// A connection that has signed in.
    pub(crate) fn over(stream: UnixStream) -> Self {
        Connection { stream, last_serial: 0, waiting: VecDeque::new(), descriptors: VecDeque::new() }
    }

    /// The kernel tells the bus who we are; all we do is claim it.
    fn sign_in(&mut self) -> Result<(), Error> {
        let uid: String = nix::unistd::geteuid().to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        // Unbuffered beyond the line: what follows `BEGIN` is ours to ask for.
        let mut lines = io::BufReader::with_capacity(1, self.stream.try_clone()?);
        let mut answer = |expected: &str| -> Result<(), Error> {
            let mut line = String::new();
            lines.by_ref().take(4096).read_line(&mut line)?;
            if line.starts_with(expected) {
                return Ok(());
            }
            Err(Error::Protocol(format!("signing in: expected {expected}, got {:?}", line.trim_end())))
        };
        answer("OK")?;
        self.stream.write_all(b"NEGOTIATE_UNIX_FD\r\n")?;
        answer("AGREE_UNIX_FD")?;
        self.stream.write_all(b"BEGIN\r\n")?;
        Ok(())
    }

    /// Calls a method and waits for its answer. Descriptors in it are taken with [`Connection::take_descriptor`].
    pub fn call(&mut self, call: Call<'_>) -> Result<Vec<Value>, Error> {
        let message = Message {
            path: Some(call.path.into()),
            interface: Some(call.interface.into()),
            member: Some(call.member.into()),
            destination: Some(call.destination.into()),
            body: call.body,
            ..Message::new(Kind::Call)
        };
        // Those of an answer that nobody took them from.
        self.descriptors.clear();
        let serial = self.send(message, &[])?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let message = self.read(deadline)?;
            if message.reply_serial != Some(serial) {
                if self.waiting.len() == MAX_WAITING {
                    return Err(Error::Protocol(format!("{MAX_WAITING} messages came before the answer")));
                }
                if Instant::now() >= deadline {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                self.waiting.push_back(message);
                continue;
            }
            return match (message.kind, message.error) {
                (Kind::Answer, _) => Ok(message.body),
                (_, name) => {
                    let text = message.body.into_iter().next();
                    let text = if let Some(Value::Text(text)) = text { text } else { String::new() };
                    Err(Error::Refused { name: name.unwrap_or_default(), message: text })
                }
            };
        }
    }

    /// Asks the bus for the signals of an interface.
    pub fn subscribe(&mut self, interface: &str, member: &str) -> Result<(), Error> {
        let rule = format!("type='signal',interface='{interface}',member='{member}'");
        self.call_bus("AddMatch", vec![Value::text(rule)])?;
        Ok(())
    }

    /// Whether a message is of whoever has this name on the bus now. A signal may be of anybody, whatever it says.
    pub fn is_from(&mut self, message: &Message, name: &str) -> Result<bool, Error> {
        match self.call_bus("GetNameOwner", vec![Value::text(name)]) {
            Ok(body) => Ok(matches!(body.first(), Some(Value::Text(owner)) if message.sender.as_ref() == Some(owner))),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn call_bus(&mut self, member: &str, body: Vec<Value>) -> Result<Vec<Value>, Error> {
        let name = "org.freedesktop.DBus";
        self.call(Call { destination: name, path: "/org/freedesktop/DBus", interface: name, member, body })
    }

    /// The next message that is no answer, or none in that time.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<Message>, Error> {
        if let Some(message) = self.waiting.pop_front() {
            return Ok(Some(message));
        }
        match self.read(Instant::now() + timeout) {
            Ok(message) => Ok(Some(message)),
            Err(Error::Io(error)) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a message with descriptors; its serial.
    pub fn send(&mut self, mut message: Message, descriptors: &[&OwnedFd]) -> Result<u32, Error> {
        self.last_serial += 1;
        message.serial = self.last_serial;
        message.descriptors = descriptors.len() as u32;
        let bytes = message.encode();
        let raw: Vec<i32> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
        let fd = self.stream.as_raw_fd();
        let sent = sendmsg::<()>(fd, &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None);
        let sent = sent.map_err(io::Error::from)?;
        self.stream.write_all(&bytes[sent..])?;
        Ok(self.last_serial)
    }

    /// The oldest descriptor that came and was not taken yet.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    fn read(&mut self, deadline: Instant) -> Result<Message, Error> {
        let known = self.descriptors.len();
        let mut head = [0; 16];
        self.read_exact(&mut head, deadline)?;
        let length = Message::length(&head)?;
        let mut bytes = head.to_vec();
        bytes.resize(length, 0);
        // Once begun, a message comes as a whole.
        self.read_exact(&mut bytes[16..], Instant::now() + TIMEOUT)?;
        let message = Message::decode(&bytes)?;
        // Nobody takes those that come unasked.
        if message.kind != Kind::Answer {
            self.descriptors.truncate(known);
        }
        Ok(message)
    }

    fn read_exact(&mut self, mut buffer: &mut [u8], deadline: Instant) -> Result<(), Error> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left))?;
            let mut space = nix::cmsg_space!([std::os::fd::RawFd; MAX_DESCRIPTORS]);
            let mut parts = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let count = match recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                Ok(received) => {
                    for message in received.cmsgs().map_err(io::Error::from)? {
                        if let ControlMessageOwned::ScmRights(list) = message {
                            self.descriptors.extend(list.into_iter().map(owned));
                        }
                    }
                    received.bytes
                }
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            if count == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the bus closed the connection").into());
            }
            buffer = &mut buffer[count..];
        }
        Ok(())
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[expect(unsafe_code, reason = "descriptors come as plain numbers")]
fn owned(raw: i32) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for us when the message came; nobody else knows its number.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer may send signals, and descriptors with them, without end.
    #[test]
    fn security_messages_without_end_are_cut_off() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::over(ours);
        let flood = std::thread::spawn(move || {
            let mut peer = Connection::over(theirs);
            let descriptor = OwnedFd::from(io::pipe().unwrap().0);
            let signal = Message { member: Some("Noise".into()), ..Message::new(Kind::Signal) };
            // Until the other side is closed.
            while peer.send(signal.clone(), &[&descriptor]).is_ok() {}
        });
        let refused = connection.call_bus("Hello", Vec::new()).unwrap_err();
        assert_eq!(refused.to_string(), "D-Bus: 1024 messages came before the answer");
        assert_eq!((connection.waiting.len(), connection.descriptors.len()), (MAX_WAITING, 0));
        drop(connection);
        flood.join().unwrap();
    }
}
