//! Descriptors: closing, copying, sending and waiting for them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::cvt;

/// Marks every descriptor above stdio close-on-exec, whoever opened it.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: changes flags of descriptors only.
    let result = cvt(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) });
    match result {
        Ok(_) => Ok(()),
        // Before Linux 5.11: one by one.
        Err(_) => {
            for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
                if let Some(fd) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok())
                    && fd >= first as i32
                {
                    // SAFETY: sets a flag; a stale number only yields EBADF.
                    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
                }
            }
            Ok(())
        }
    }
}

/// Closes every descriptor from `first` on. Only for a fresh child that owns none of them as Rust values.
pub(crate) fn close_from(first: u32) {
    // SAFETY: the caller is about to use no descriptor from this range again.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32) };
}

pub(crate) fn dup_onto(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        // dup2 would do nothing and leave close-on-exec set.
        // SAFETY: clears flags of an open descriptor.
        return cvt(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }.into()).map(drop);
    }
    // SAFETY: `number` is one of the three stdio slots, which no Rust value owns in a child.
    cvt(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: reads and sets flags of an open descriptor.
    unsafe {
        let flags = cvt(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL).into())?;
        cvt(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags as i32 | libc::O_NONBLOCK).into()).map(drop)
    }
}

/// A close-on-exec pipe: (read end, write end).
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the call fills both numbers with fresh descriptors, owned here.
    unsafe {
        cvt(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC).into())?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// A connected pair of message sockets: every send is one receive, and closing is seen as an empty receive.
pub(crate) fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the call fills both numbers with fresh descriptors, owned here.
    unsafe {
        cvt(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()).into())?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// At most this many descriptors travel with one message.
const MAX_FDS: usize = 4;

/// Sends bytes and descriptors over a Unix socket; returns how many bytes went.
pub(crate) fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    debug_assert!(fds.len() <= MAX_FDS);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 8];
    // SAFETY: msghdr is plain data; its pointers are to `iov` and `control`, which outlive the call, and
    // `control` (64 bytes, aligned) is large enough for MAX_FDS descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let size = std::mem::size_of_val(fds) / size_of::<BorrowedFd<'_>>() * size_of::<RawFd>();
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size as u32) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
        cvt(libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) as i64).map(|n| n as usize)
    }
}

/// Receives bytes and any descriptors that came with them.
pub(crate) fn receive_with_fds(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 8];
    // SAFETY: as in `send_with_fds`; received descriptors are fresh and owned here.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = std::mem::size_of_val(&control);
        // The kernel does not resume a wait that has a time limit after a signal, whatever the handler's flags.
        let n = loop {
            match cvt(libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) as i64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => break received?,
            }
        };
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for i in 0..count {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        Ok(n as usize)
    }
}

/// What to wait for on a descriptor, and what came.
#[derive(Clone, Copy)]
pub(crate) struct Poll {
    pub(crate) fd: RawFd,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) ready: bool,
}

/// Waits until something is ready (errors and hang-ups count) or the time is over.
pub(crate) fn poll(entries: &mut [Poll], timeout_ms: i32) -> io::Result<()> {
    let mut fds: Vec<libc::pollfd> = entries
        .iter()
        .map(|e| libc::pollfd {
            fd: e.fd,
            events: if e.read { libc::POLLIN } else { 0 } | if e.write { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        .collect();
    // SAFETY: pointer and length describe `fds`.
    let result = cvt(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) }.into());
    match result {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
        _ => {}
    }
    for (entry, fd) in entries.iter_mut().zip(&fds) {
        entry.ready = fd.revents != 0;
    }
    Ok(())
}

/// Whether there is something to read, or the end, before a deadline.
pub(crate) fn is_readable_by(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut entry = [Poll { fd: fd.as_raw_fd(), read: true, write: false, ready: false }];
        poll(&mut entry, i32::try_from(left.as_millis()).unwrap_or(i32::MAX))?;
        // A signal may have ended the wait.
        if entry[0].ready || left.is_zero() {
            return Ok(entry[0].ready);
        }
    }
}

pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `buffer`.
    cvt(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } as i64).map(|n| n as usize)
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `bytes`.
    cvt(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as i64).map(|n| n as usize)
}

/// Hands a descriptor to tokio's reactor for as long as the returned value lives.
pub(crate) fn watch_fd(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always answers with the same open descriptor, and the AsyncFd owns it until deregistered.
    unsafe { tokio::io::unix::AsyncFd::register(fd).map_err(Into::into) }
}

/// The raw number of a descriptor as a path that opens it again.
pub(crate) fn fd_path(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    extern "C" fn nothing(_: libc::c_int) {}

    #[test]
    fn a_signal_does_not_end_a_wait_with_a_time_limit() {
        let (receiver, sender) = UnixStream::pair().unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // SAFETY: the handler does nothing, and nothing else here uses the signal.
        unsafe { libc::signal(libc::SIGUSR2, nothing as *const () as usize) };
        let (told, thread) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            // SAFETY: a call without arguments.
            told.send(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap();
            receive_with_fds(receiver.as_fd(), &mut [0; 8], &mut Vec::new())
        });
        let thread = thread.recv().unwrap();
        for _ in 0..20 {
            // SAFETY: the thread waits for what is sent below, so the number is still its own.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::c_long::from(libc::getpid()), thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(send_with_fds(sender.as_fd(), b"x", &[]).unwrap(), 1);
        assert_eq!(waiting.join().unwrap().unwrap(), 1);
    }
}
