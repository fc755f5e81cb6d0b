//! Removing and measuring what others have filled: a tree of theirs may be deeper than any stack, may hold links, and may
//! have other file systems mounted in it, which the kernel's table of mounts tells ([`mounts()`]). And replacing files of our own
//! as a whole ([`replace()`]).

mod mount_options;
mod mounts;
mod replace;
mod usage;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

pub use mount_options::{MountOption, NO_LINKS, NotForDirectories, bind_flags, mount_options, remount_flags};
pub use mounts::{Mount, mount_table, mounts};
pub use replace::{give_name, replace, replace_by, replace_together, replace_unsynced};
pub use usage::{Bounds, Usage, usage, usage_within};

/// What is deeper is brought up first. Deeper than anything that we make ourselves.
const MAX_DEPTH: usize = 64;

/// Removes a file, or a directory with all that is in it; what is not there is removed already. Links are not followed,
/// and a mount is never entered: what it shows is another's, so the tree stays and this fails.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name to remove"));
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = match nix::fcntl::open(parent, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(()),
        other => other?,
    };
    let Some(top) = open(&parent, name)? else { return unlink(&parent, name, UnlinkatFlags::NoRemoveDir) };
    let mut moved = 0;
    loop {
        let before = moved;
        empty(&top, top.try_clone()?, 1, &mut moved)?;
        if moved == before {
            break;
        }
    }
    unlink(&parent, name, UnlinkatFlags::RemoveDir)
}

/// A directory that is no link and no mount point; none if there is no directory of that name.
fn open(at: &OwnedFd, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(at.as_fd(), Path::new(name), how) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(Errno::EXDEV) => Err(io::Error::other(format!("{} is a mount point", Path::new(name).display()))),
        Err(error) => Err(error.into()),
    }
}

fn unlink(at: &OwnedFd, name: &OsStr, flag: UnlinkatFlags) -> io::Result<()> {
    match unlinkat(at.as_fd(), Path::new(name), flag) {
        Err(Errno::ENOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Removes everything in a directory. What would be too deep becomes an entry of `top` and is counted as moved.
fn empty(top: &OwnedFd, directory: OwnedFd, depth: usize, moved: &mut u64) -> io::Result<()> {
    let at = directory.try_clone()?;
    let mut entries = Dir::from_fd(directory)?;
    for entry in entries.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let child = match entry.file_type() {
            Some(Type::Directory) | None => open(&at, name)?,
            Some(_) => None,
        };
        match child {
            None => unlink(&at, name, UnlinkatFlags::NoRemoveDir)?,
            Some(_) if depth >= MAX_DEPTH => raise(&at, name, top, moved)?,
            Some(child) => {
                empty(top, child, depth + 1, moved)?;
                unlink(&at, name, UnlinkatFlags::RemoveDir)?;
            }
        }
    }
    Ok(())
}

fn raise(at: &OwnedFd, name: &OsStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        let new = format!(".removed-{moved}");
        match renameat(at.as_fd(), Path::new(name), top.as_fd(), Path::new(&new)) {
            // Somebody has the name.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            Err(Errno::ENOENT) => return Ok(()),
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use nix::mount::{MsFlags, mount, umount};
    use nix::sys::stat::mkdirat;

    use super::*;

    /// Deep enough to overflow the stack of a thread with one frame or descriptor for each level.
    #[test]
    fn security_a_tree_deeper_than_a_stack_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        std::fs::create_dir_all(root.join(".removed-1/in the way")).unwrap();
        std::fs::write(root.join(".removed-2"), "").unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut at = nix::fcntl::open(&root, flags, Mode::empty()).unwrap();
        for _ in 0..20_000 {
            mkdirat(at.as_fd(), "d", Mode::S_IRWXU).unwrap();
            at = openat2(at.as_fd(), "d", OpenHow::new().flags(flags)).unwrap();
        }
        drop(at);
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        remove_tree(&root).unwrap();
    }

    #[test]
    fn security_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("tree"), dir.path().join("other"));
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&other, root.join("a/link")).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists() && other.join("file").exists());
        std::os::unix::fs::symlink(&other, &root).unwrap();
        remove_tree(&root).unwrap();
        assert!(root.symlink_metadata().is_err() && other.join("file").exists());
    }

    /// A bind mount has the device of the tree around it, and is still another's.
    #[test]
    fn security_mounts_are_never_entered() {
        let dir = tempfile::tempdir().unwrap();
        let (root, other) = (dir.path().join("tree"), dir.path().join("other"));
        let point = root.join("volumes/mount");
        std::fs::create_dir_all(&point).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("file"), "x").unwrap();
        mount(Some(&other), &point, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let refused = (remove_tree(&root), remove_tree(&point));
        let kept = other.join("file").exists();
        umount(&point).unwrap();
        assert!(refused.0.is_err() && refused.1.is_err() && kept, "{refused:?}");
        remove_tree(&root).unwrap();
        assert!(!root.exists() && other.join("file").exists());
    }
}
