//! A TUN device: packets that are routed into its link are read here, and what is written here comes out of it.

#![allow(unsafe_code, reason = "requests that nobody wraps; every block states why it is sound")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use tokio::io::unix::AsyncFd;

pub(super) const PATH: &str = "/dev/net/tun";

/// `TUNSETIFF` and `TUNSETPERSIST`.
const SET_LINK: libc::Ioctl = 0x4004_54ca;
const SET_PERSISTENT: libc::Ioctl = 0x4004_54cb;
/// `IFF_TUN | IFF_NO_PI`: packets of IP and nothing before them.
const PLAIN_PACKETS: i16 = 0x1001;

/// `struct ifreq`.
#[repr(C)]
struct LinkRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: i16,
    rest: [u8; 22],
}

/// Without a link yet. It never waits.
pub(super) fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(PATH)
}

/// Makes the link, or takes on one that an earlier process has left. It stays when this process ends.
pub(super) fn attach(name: &str) -> io::Result<File> {
    let file = open()?;
    let mut request = LinkRequest { name: [0; libc::IFNAMSIZ], flags: PLAIN_PACKETS, rest: [0; 22] };
    let room = request.name.get_mut(..name.len()).filter(|room| room.len() < libc::IFNAMSIZ);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    // SAFETY: the request is an `ifreq` of the kernel's size, which outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_LINK, &raw mut request) })?;
    let yes: libc::c_int = 1;
    // SAFETY: this request takes a number.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_PERSISTENT, yes) })?;
    Ok(file)
}

/// Has the runtime of the calling thread say when there is something to read.
pub(super) fn register(file: File) -> io::Result<AsyncFd<File>> {
    // SAFETY: a `File` owns its descriptor: it is open, and stays the same, for as long as the file is there.
    unsafe { AsyncFd::register(file) }.map_err(io::Error::from)
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
