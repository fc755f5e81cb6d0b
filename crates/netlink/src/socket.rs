//! One blocking netlink socket; it keeps speaking for the namespace it was opened in.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::{SndBuf, SndBufForce};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, sendto, setsockopt, socket,
};

use crate::message::{HEADER, NLM_F_ACK, NLM_F_DUMP, Request, read_u16, read_u32};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;

/// The port of the kernel's own end.
const KERNEL: u32 = 0;

/// The kernel's dump buffers are at most 32 KiB; a single large link answer fits as well.
const BUFFER: usize = 64 * 1024;

#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: std::cell::Cell<u32>,
}

/// The body of an answer, after the netlink header.
pub(crate) type Answer = Vec<u8>;

impl Socket {
    /// For the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Self::open_for(SockProtocol::NetlinkRoute)
    }

    /// For the packet filter's tables instead of links and routes.
    pub fn open_netfilter() -> io::Result<Self> {
        Self::open_for(SockProtocol::NetlinkNetFilter)
    }

    /// For parts of the kernel that are found by name.
    pub(crate) fn open_generic() -> io::Result<Self> {
        Self::open_for(SockProtocol::NetlinkGeneric)
    }

    fn open_for(protocol: SockProtocol) -> io::Result<Self> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        Ok(Self { fd, sequence: std::cell::Cell::new(0) })
    }

    /// Sends a change and waits for the kernel's verdict.
    pub(crate) fn change(&self, request: Request) -> io::Result<()> {
        self.exchange(request, NLM_F_ACK).map(drop)
    }

    /// Sends a question with one answer.
    pub(crate) fn get(&self, request: Request) -> io::Result<Answer> {
        self.exchange(request, NLM_F_ACK)?.into_iter().next().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Sends a question with many answers. Asked again when the table changed under the dump.
    pub(crate) fn dump(&self, make: impl Fn() -> Request) -> io::Result<Vec<Answer>> {
        const ATTEMPTS: usize = 5;
        for _ in 0..ATTEMPTS {
            match self.exchange(make(), NLM_F_DUMP) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                answers => return answers,
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the table kept changing while it was read"))
    }

    fn exchange(&self, mut request: Request, flags: u16) -> io::Result<Vec<Answer>> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let flags = read_u16(&request.bytes, 6).unwrap_or_default() | flags;
        request.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        sendto(self.fd.as_raw_fd(), &request.finish(sequence), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;

        let mut answers = Vec::new();
        let mut interrupted = false;
        let mut buffer = vec![0; BUFFER];
        loop {
            let mut rest = self.receive(&mut buffer)?;
            while let Some(message) = next_message(&mut rest)? {
                if read_u32(message, 8) != Some(sequence) {
                    continue; // a late answer to an earlier, abandoned question
                }
                let flags = read_u16(message, 6).unwrap_or_default();
                interrupted |= flags & NLM_F_DUMP_INTR != 0;
                match read_u16(message, 4).unwrap_or_default() {
                    NLMSG_ERROR => return verdict(message).map(|()| answers),
                    NLMSG_DONE if interrupted => return Err(io::Error::from(io::ErrorKind::Interrupted)),
                    NLMSG_DONE => return Ok(answers),
                    _ => answers.push(message[HEADER..].to_vec()),
                }
            }
        }
    }

    /// Sends a transaction of the packet filter and waits for the kernel's consent to its last change. The inner error is a
    /// refusal, with the sequence number of the message that was refused.
    pub(crate) fn send_batch(&self, messages: &[u8]) -> io::Result<Result<(), (u32, io::Error)>> {
        // A message must fit into the buffer as a whole.
        if messages.len() > BUFFER {
            let size = messages.len().saturating_mul(2);
            if setsockopt(&self.fd, SndBufForce, &size).is_err() {
                setsockopt(&self.fd, SndBuf, &size)?;
            }
        }
        sendto(self.fd.as_raw_fd(), messages, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let mut rest = self.receive(&mut buffer)?;
            while let Some(message) = next_message(&mut rest)? {
                if read_u16(message, 4) == Some(NLMSG_ERROR) {
                    let sequence = read_u32(message, 8).unwrap_or_default();
                    return Ok(verdict(message).map_err(|error| (sequence, error)));
                }
            }
        }
    }

    fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            let (length, sender) = match recvfrom::<NetlinkAddr>(self.fd.as_raw_fd(), buffer) {
                Err(nix::errno::Errno::EINTR) => continue,
                received => received?,
            };
            // In the namespace of a pod its containers may be allowed to send as well.
            if sender.is_some_and(|sender| sender.pid() == KERNEL) {
                return Ok(&buffer[..length]);
            }
        }
    }
}

/// Takes one message, header included, off what was received.
fn next_message<'a>(rest: &mut &'a [u8]) -> io::Result<Option<&'a [u8]>> {
    if rest.len() < HEADER {
        return Ok(None);
    }
    let size = read_u32(rest, 0).unwrap_or_default() as usize;
    if size < HEADER || size > rest.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed netlink message"));
    }
    let message = &rest[..size];
    *rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
    Ok(Some(message))
}

/// What the kernel says of a change; zero is consent.
fn verdict(message: &[u8]) -> io::Result<()> {
    match read_u32(message, HEADER).map(|errno| errno as i32) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "netlink verdict without a number")),
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::sys::socket::getsockname;

    use super::*;

    /// A container that may change the network of its pod may send to every socket there.
    #[test]
    fn security_answers_are_the_kernels_only() {
        let (ours, theirs) = (Socket::open().unwrap(), Socket::open().unwrap());
        // The loopback link, in every namespace.
        assert!(ours.link_by_index(1).unwrap().is_some());
        let own: NetlinkAddr = getsockname(ours.fd.as_raw_fd()).unwrap();
        // "Not permitted", as the answer to what is asked next.
        let errno = (-(Errno::EPERM as i32)).to_ne_bytes();
        let refusal = Request::new(NLMSG_ERROR, 0).body(&errno).body(&[0; HEADER]).finish(2);
        if let Err(error) = sendto(theirs.fd.as_raw_fd(), &refusal, &own, MsgFlags::empty()) {
            eprintln!("skipped: only root may send that: {error}");
            return;
        }
        assert!(ours.link_by_index(1).unwrap().is_some());
    }
}
