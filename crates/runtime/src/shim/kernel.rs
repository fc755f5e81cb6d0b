//! What building a root filesystem asks of the kernel and an ordinary user may not: mounts, device nodes, another root.
//!
//! Files below a root are looked up and made by the caller, with calls that need no privilege. So tests build a root below
//! an ordinary directory, and record what is asked here (`recorded`).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::rooted::Rooted;
use crate::sys;

pub(crate) trait Kernel {
    /// mount(2); empty strings stand for "none".
    fn mount(&self, source: &str, target: &Path, kind: &str, flags: u64, data: &str) -> io::Result<()>;
    /// Takes a mount away, at the latest when nobody uses it any more.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// A detached copy of what is mounted at a path, and of all below it.
    fn clone_mount(&self, path: &Path) -> io::Result<OwnedFd>;
    fn clone_mount_at(&self, place: BorrowedFd<'_>) -> io::Result<OwnedFd>;
    /// Attaches a detached mount.
    fn move_mount(&self, mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> io::Result<()>;
    /// Of a mount and all below it: one of `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`.
    fn set_propagation(&self, mount: BorrowedFd<'_>, propagation: u64) -> io::Result<()>;
    fn set_readonly(&self, mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()>;
    /// Makes a device node, or takes the one that is there: what is then open is that device and nothing else.
    fn make_device(&self, directory: BorrowedFd<'_>, name: &CStr, mode: u32, number: u64) -> io::Result<OwnedFd>;
    /// Of an open device node, whatever its path leads to by now. Only before the root changes: /proc is the node's.
    fn set_mode(&self, device: &OwnedFd, mode: u32) -> io::Result<()>;
    fn set_owner(&self, device: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()>;
    /// The working directory, by path and by descriptor.
    fn enter(&self, directory: &Path) -> io::Result<()>;
    fn enter_at(&self, directory: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes the working directory the root; the old root lies over it.
    fn pivot_root(&self) -> io::Result<()>;
    /// The root that this process has now.
    fn root(&self) -> io::Result<Rooted>;
}

pub(crate) struct Linux;

impl Kernel for Linux {
    fn mount(&self, source: &str, target: &Path, kind: &str, flags: u64, data: &str) -> io::Result<()> {
        sys::mount(source, target, kind, flags, data)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        sys::unmount(target, libc::MNT_DETACH)
    }

    fn clone_mount(&self, path: &Path) -> io::Result<OwnedFd> {
        sys::clone_mount(&sys::c_path(path)?)
    }

    fn clone_mount_at(&self, place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        sys::clone_mount_at(place)
    }

    fn move_mount(&self, mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> io::Result<()> {
        sys::move_mount(mount, place)
    }

    fn set_propagation(&self, mount: BorrowedFd<'_>, propagation: u64) -> io::Result<()> {
        sys::set_mount_propagation(mount, propagation)
    }

    fn set_readonly(&self, mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
        sys::set_mount_readonly(mount, recursive)
    }

    fn make_device(&self, directory: BorrowedFd<'_>, name: &CStr, mode: u32, number: u64) -> io::Result<OwnedFd> {
        exists_is_fine(sys::mknod_at(directory, name, mode, number))?;
        let node = sys::open_at(directory, name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        check_device(&node, mode & libc::S_IFMT, number)?;
        Ok(node)
    }

    fn set_mode(&self, device: &OwnedFd, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(sys::fd_path(device), std::fs::Permissions::from_mode(mode))
    }

    fn set_owner(&self, device: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
        sys::chown_at(device, c"", uid, gid)
    }

    fn enter(&self, directory: &Path) -> io::Result<()> {
        std::env::set_current_dir(directory)
    }

    fn enter_at(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        sys::change_directory(directory)
    }

    fn pivot_root(&self) -> io::Result<()> {
        sys::pivot_root(c".", c".")
    }

    fn root(&self) -> io::Result<Rooted> {
        Rooted::open(Path::new("/"))
    }
}

/// Fails unless this is a device node of the given kind and number.
pub(super) fn check_device(fd: &impl AsFd, kind: u32, number: u64) -> io::Result<()> {
    let metadata = std::fs::File::from(fd.as_fd().try_clone_to_owned()?).metadata()?;
    match metadata.mode() & libc::S_IFMT == kind && metadata.rdev() == number {
        true => Ok(()),
        false => Err(io::Error::other("another file is in the place of the device")),
    }
}

pub(super) fn exists_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}
