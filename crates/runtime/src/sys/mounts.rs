//! Mounts, attached and detached, and the root.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::OnceLock;

use super::{c_path, c_str, cvt};

/// mount(2); empty strings stand for "none".
pub(crate) fn mount(source: &str, target: impl AsRef<Path>, kind: &str, flags: u64, data: &str) -> io::Result<()> {
    let (source, target, kind, data) = (c_str(source)?, c_path(target)?, c_str(kind)?, c_str(data)?);
    let or_null = |s: &CString| {
        if s.is_empty() { std::ptr::null() } else { s.as_ptr() }
    };
    // SAFETY: every pointer is null or a NUL-terminated string that outlives the call.
    cvt(unsafe { libc::mount(or_null(&source), target.as_ptr(), or_null(&kind), flags, or_null(&data).cast()) }.into())
        .map(drop)
}

pub(crate) fn unmount(target: impl AsRef<Path>, flags: i32) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: plain call with a NUL-terminated path.
    cvt(unsafe { libc::umount2(target.as_ptr(), flags) }.into()).map(drop)
}

pub(crate) fn pivot_root(new: &CStr, old: &CStr) -> io::Result<()> {
    // SAFETY: plain call with NUL-terminated paths.
    cvt(unsafe { libc::syscall(libc::SYS_pivot_root, new.as_ptr(), old.as_ptr()) }).map(drop)
}

/// chdir to an open directory.
pub(crate) fn change_directory(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain call on an open descriptor.
    cvt(unsafe { libc::fchdir(fd.as_raw_fd()) }.into()).map(drop)
}

/// Whether what is behind `fd` belongs to a procfs.
pub(crate) fn is_procfs(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the call fills `answer`, which is only read after it succeeded.
    let kind = unsafe {
        cvt(libc::fstatfs(fd.as_raw_fd(), answer.as_mut_ptr()).into())?;
        answer.assume_init().f_type
    };
    Ok(kind == libc::PROC_SUPER_MAGIC)
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
const AT_EMPTY_PATH: u32 = 0x1000;
const MOUNT_ATTR_RDONLY: u64 = 1;

/// A detached copy of the mount behind `path`, in no mount namespace: nobody can remount or unmount it.
pub(crate) fn clone_mount(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    unsafe {
        cvt(libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            OPEN_TREE_CLONE | AT_RECURSIVE | libc::O_CLOEXEC as u32,
        ))
        .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// A detached copy of the mount behind `fd` (and all below it), from that very file or directory on.
pub(crate) fn clone_mount_at(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    unsafe {
        cvt(libc::syscall(
            libc::SYS_open_tree,
            fd.as_raw_fd(),
            c"".as_ptr(),
            OPEN_TREE_CLONE | AT_RECURSIVE | AT_EMPTY_PATH | libc::O_CLOEXEC as u32,
        ))
        .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Attaches a detached mount onto the directory or file behind `target`.
pub(crate) fn move_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    const BOTH_EMPTY: u32 = 0x4 | 0x40;
    // SAFETY: plain call on open descriptors with empty paths.
    cvt(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            BOTH_EMPTY,
        )
    })
    .map(drop)
}

/// Makes the mount behind `fd` (and all below it, if `recursive`) read-only.
pub(crate) fn set_mount_readonly(fd: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    set_mount_attr(fd, &MountAttr { set: MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, userns_fd: 0 }, recursive)
}

/// The node's /dev/null, for a process of a container. Whoever has a file open may have its mode and owner changed, by
/// /proc/self/fd if not otherwise, and this one is everybody's: so it is opened on a read-only mount that is in no namespace. What
/// is written to a device is none of that mount's business.
pub(crate) fn open_null() -> io::Result<OwnedFd> {
    // Made once: taking a mount away again has the whole kernel wait.
    static MOUNT: OnceLock<OwnedFd> = OnceLock::new();
    let mount = match MOUNT.get() {
        Some(mount) => mount,
        None => {
            let null = clone_mount(c"/dev/null")?;
            set_mount_readonly(null.as_fd(), false)?;
            MOUNT.get_or_init(|| null)
        }
    };
    std::fs::OpenOptions::new().read(true).write(true).open(super::fd_path(mount)).map(Into::into)
}

/// Gives the mount behind `fd` and all below it this propagation: one of `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`.
pub(crate) fn set_mount_propagation(fd: BorrowedFd<'_>, propagation: u64) -> io::Result<()> {
    set_mount_attr(fd, &MountAttr { set: 0, clear: 0, propagation, userns_fd: 0 }, true)
}

fn set_mount_attr(fd: BorrowedFd<'_>, attr: &MountAttr, recursive: bool) -> io::Result<()> {
    // SAFETY: `attr` matches the size passed.
    cvt(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 },
            attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}
