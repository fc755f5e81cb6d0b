//! Files by descriptor, below a root that paths cannot leave.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::cvt;

/// Options of [`open_in_root`], as in openat2(2).
#[derive(Clone, Copy)]
pub(crate) struct Resolve(u64);

impl Resolve {
    /// Symbolic links and `..` stay inside the root directory.
    pub(crate) const IN_ROOT: Self = Self(0x10 | 0x02);
    /// No symbolic link at all, and nothing above the root directory.
    pub(crate) const NO_SYMLINKS: Self = Self(0x08 | 0x04 | 0x02);
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Opens `path` as seen from the directory `root`, never leaving it.
pub(crate) fn open_in_root(
    root: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    mode: u32,
    resolve: Resolve,
) -> io::Result<OwnedFd> {
    let how = OpenHow { flags: (flags | libc::O_CLOEXEC) as u64, mode: u64::from(mode), resolve: resolve.0 };
    loop {
        // SAFETY: `how` matches the size passed; the descriptor returned is fresh and owned here.
        let result = unsafe {
            cvt(libc::syscall(libc::SYS_openat2, root.as_raw_fd(), path.as_ptr(), &how, size_of::<OpenHow>()))
                .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
        };
        match result {
            // A concurrent rename made the walk uncertain: the kernel asks to try again.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            result => return result,
        }
    }
}

pub(crate) fn open_at(dir: BorrowedFd<'_>, name: &CStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    unsafe {
        cvt(libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode).into())
            .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

pub(crate) fn mkdir_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }.into()).map(drop)
}

pub(crate) fn mknod_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32, device: u64) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, device) }.into()).map(drop)
}

pub(crate) fn symlink_at(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: plain call with NUL-terminated names.
    cvt(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }.into()).map(drop)
}

pub(crate) fn link_at(from_dir: BorrowedFd<'_>, from: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: plain call with NUL-terminated names; no flags, so a symbolic link is linked, not followed.
    cvt(unsafe { libc::linkat(from_dir.as_raw_fd(), from.as_ptr(), dir.as_raw_fd(), name.as_ptr(), 0) }.into())
        .map(drop)
}

pub(crate) fn unlink_at(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) }.into()).map(drop)
}

/// Owner of an entry itself, not of what a symbolic link points to.
pub(crate) fn chown_at(dir: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe {
        libc::fchownat(
            dir.as_raw_fd(),
            name.as_ptr(),
            uid,
            gid,
            libc::AT_SYMLINK_NOFOLLOW | if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 },
        )
    }
    .into())
    .map(drop)
}

/// Mode of an entry that is not a symbolic link.
pub(crate) fn chmod_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::fchmodat(dir.as_raw_fd(), name.as_ptr(), mode, 0) }.into()).map(drop)
}

/// Modification (and access) time of an entry itself.
pub(crate) fn set_times_at(dir: BorrowedFd<'_>, name: &CStr, seconds: i64) -> io::Result<()> {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = [time, time];
    // SAFETY: `times` holds the two entries that the call reads.
    cvt(unsafe { libc::utimensat(dir.as_raw_fd(), name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) }.into())
        .map(drop)
}

/// Sets an extended attribute on the entry behind `path`, without following a last symbolic link.
pub(crate) fn set_xattr(path: &CStr, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`.
    cvt(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }.into())
        .map(drop)
}
