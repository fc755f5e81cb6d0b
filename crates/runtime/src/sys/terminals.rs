//! Pseudo-terminals.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::cvt;

/// Opens a new pseudo-terminal: (master, slave). The slave comes from the master itself: whatever lies at /dev/pts of a
/// container is never looked at.
pub(crate) fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    const FLAGS: libc::c_int = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // `_IO('T', 0x41)`, the same on every architecture we build for.
    const TIOCGPTPEER: libc::c_ulong = 0x5441;
    // SAFETY: fresh descriptors, owned here; the ioctl calls read an integer or take one by value.
    unsafe {
        let master = OwnedFd::from_raw_fd(cvt(libc::open(c"/dev/ptmx".as_ptr(), FLAGS).into())? as RawFd);
        let unlock: libc::c_int = 0;
        cvt(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock).into())?;
        let slave = cvt(libc::ioctl(master.as_raw_fd(), TIOCGPTPEER, FLAGS).into())?;
        Ok((master, OwnedFd::from_raw_fd(slave as RawFd)))
    }
}

pub(crate) fn set_controlling_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain ioctl without a pointer.
    cvt(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY, 0) }.into()).map(drop)
}

pub(crate) fn set_window_size(fd: BorrowedFd<'_>, width: u16, height: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a valid winsize.
    cvt(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &size) }.into()).map(drop)
}
