//! The kernel's project quotas, by `quotactl_fd` and the attributes of a directory: ext4 and XFS have both.

#![allow(unsafe_code, reason = "system calls that nobody wraps; every block states why it is sound")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::ioctl::ioctl_num_type;

use super::{Quotas, Usage};

/// `PRJQUOTA`, the third kind beside users and groups.
const PROJECTS: u32 = 2;
const GET_INFO: u32 = 0x80_0005;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
/// Which fields of a [`Block`] are meant: the limits of space.
const SPACE_LIMITS: u32 = 1;
/// Limits of space are in these.
const UNIT: u64 = 1024;
/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Default)]
struct Block {
    space_hard_limit: u64,
    space_soft_limit: u64,
    space: u64,
    inodes_hard_limit: u64,
    inodes_soft_limit: u64,
    inodes: u64,
    space_grace: u64,
    inodes_grace: u64,
    valid: u32,
}

/// `struct if_dqinfo`.
#[repr(C)]
#[derive(Default)]
struct Info {
    space_grace: u64,
    inodes_grace: u64,
    flags: u32,
    valid: u32,
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

const GET_ATTRIBUTES: ioctl_num_type = nix::request_code_read!(b'X', 31, size_of::<Attributes>());
const SET_ATTRIBUTES: ioctl_num_type = nix::request_code_write!(b'X', 32, size_of::<Attributes>());

#[derive(Debug)]
pub(crate) struct Kernel;

impl Quotas for Kernel {
    fn are_on(&self, dir: &Path) -> io::Result<bool> {
        match ask(dir, GET_INFO, 0, &mut Info::default()) {
            Ok(()) => Ok(true),
            // Not in this kernel, not of this file system, not mounted with them, or not for this process.
            Err(
                Errno::ENOSYS
                | Errno::ESRCH
                | Errno::EOPNOTSUPP
                | Errno::EINVAL
                | Errno::ENOTTY
                | Errno::ENODEV
                | Errno::ENOTBLK
                | Errno::EPERM,
            ) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn usage(&self, dir: &Path, project: u32) -> io::Result<Usage> {
        let mut found = Block::default();
        match ask(dir, GET_QUOTA, project, &mut found) {
            // XFS says so of a project that nobody has used.
            Ok(()) | Err(Errno::ENOENT) => Ok(Usage { bytes: found.space, inodes: found.inodes }),
            Err(error) => Err(error.into()),
        }
    }

    fn set_limit(&self, dir: &Path, project: u32, bytes: Option<u64>) -> io::Result<()> {
        let limit = bytes.map_or(0, |bytes| bytes.div_ceil(UNIT));
        let mut wanted =
            Block { space_hard_limit: limit, space_soft_limit: limit, valid: SPACE_LIMITS, ..Block::default() };
        Ok(ask(dir, SET_QUOTA, project, &mut wanted)?)
    }

    fn assign(&self, dir: &Path, project: u32) -> io::Result<()> {
        let file = File::open(dir)?;
        let mut attributes = Attributes::default();
        // SAFETY: the descriptor is open, and the structure is the one that the call fills in.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) })?;
        attributes.project = project;
        attributes.flags |= INHERIT;
        // SAFETY: as above; the kernel only reads it.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) })?;
        Ok(())
    }
}

/// `quotactl_fd`. `argument` is what the command takes.
fn ask<T>(dir: &Path, command: u32, project: u32, argument: &mut T) -> nix::Result<()> {
    let file = File::open(dir).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let command = command << 8 | PROJECTS;
    // SAFETY: the descriptor is open, and `argument` outlives the call and is of the type that the command reads or writes.
    let answer = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, project, std::ptr::from_mut(argument))
    };
    Errno::result(answer).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!((size_of::<Block>(), size_of::<Info>(), size_of::<Attributes>()), (72, 24, 28));
    }

    #[test]
    fn a_file_system_without_quotas_says_so() {
        assert!(!Kernel.are_on(Path::new("/proc")).unwrap());
        assert!(Kernel.are_on(Path::new("/proc/not there")).is_err());
    }
}
