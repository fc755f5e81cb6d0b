//! The loopback interface.

use std::io;
use std::os::fd::AsRawFd;

use super::cvt;

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| std::net::UdpSocket::bind(("0.0.0.0", 0)))?;
    // SAFETY: `request` is plain data, filled with a short name and flags before use.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        cvt(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request).into()).map(drop)
    }
}
