//! The program itself: its pages, and a copy of it that nobody can write to.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use super::cvt;

/// Lets go of the pages of our own program that only its start needed: relocations, command lines, setting up. Whatever is
/// needed again comes back from the page cache. The parts that the loader wrote to are not touched.
pub(crate) fn release_program_pages() -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        // `start-end perms offset device inode   path`
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, access, offset, _, _, path] = fields.as_slice() else { continue };
        let is_clean = *access == "r-xp" || (*access == "r--p" && offset.trim_start_matches('0').is_empty());
        if Path::new(path) != program || !is_clean {
            continue;
        }
        let bounds = range.split_once('-').and_then(|(start, end)| {
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        });
        let Some((start, end)) = bounds else { continue };
        // SAFETY: a mapping of a file that nobody ever writes to: dropping its pages loses nothing.
        cvt(unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) }.into())?;
    }
    Ok(())
}

/// A sealed, anonymous copy of `content` that can be executed but never written again.
pub(crate) fn sealed_memfd(name: &CStr, content: &mut impl io::Read) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    let fd = unsafe {
        cvt(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).into())
            .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))?
    };
    let mut file = std::fs::File::from(fd);
    io::copy(content, &mut file)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: sets seals on our own descriptor.
    cvt(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
    Ok(file.into())
}
