//! Gives a volume to the pod's fsGroup.
//!
//! Whoever shares the volume may exchange files for links while this runs. So nothing is changed by path: every entry is
//! opened below the root without following links, and what was opened, not what the name may mean a moment later, gets
//! its group and mode. The setuid bit is never among what is set.

use std::ffi::CString;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::{Gid, fchownat};

/// `fsGroupChangePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangePolicy {
    Always,
    /// Only when the root is not the group's yet.
    OnRootMismatch,
}

/// What the group may do, and that new files of a directory are the group's too.
const FILE_MODE: u32 = 0o660;
const DIRECTORY_MODE: u32 = 0o2770;

/// Gives the tree at `root` to `group`. The root comes last: until it is the group's, the next try starts over.
pub(crate) fn apply(root: &Path, group: u32, policy: ChangePolicy) -> io::Result<()> {
    let root = nix::fcntl::open(root, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    if policy == ChangePolicy::OnRootMismatch && is_owned(&fstat(&root)?, group) {
        return Ok(());
    }
    let mut open = vec![PathBuf::from(".")];
    while let Some(relative) = open.pop() {
        // By a path from the root, so that a deep tree does not use up descriptors.
        let directory = match open_beneath(&root, &relative, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(directory) => directory,
            Err(error) if is_gone(&error) && relative != Path::new(".") => continue,
            // The volume is a single file.
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => break,
            Err(error) => return Err(error),
        };
        for entry in Dir::from_fd(directory)?.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = relative.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            match open_beneath(&root, &path, OFlag::O_PATH | OFlag::O_NOFOLLOW) {
                Ok(found) => {
                    let stat = fstat(&found)?;
                    give(&found, &stat, group)?;
                    if kind(&stat) == SFlag::S_IFDIR {
                        open.push(path);
                    }
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    give(&root, &fstat(&root)?, group)
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// As upstream's `requiresPermissionChange`.
fn is_owned(stat: &FileStat, group: u32) -> bool {
    kind(stat) == SFlag::S_IFDIR && stat.st_gid == group && stat.st_mode & DIRECTORY_MODE == DIRECTORY_MODE
}

/// No link on the way, and nothing above the root.
fn open_beneath(root: &OwnedFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let follow = match flags.contains(OFlag::O_NOFOLLOW) {
        // The entry itself may be a link, which is then what gets the group; the way to it may not have any.
        true => return open_entry(root, path, flags),
        false => ResolveFlag::RESOLVE_NO_SYMLINKS,
    };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve | follow);
    again(|| openat2(root.as_fd(), path, how))
}

fn open_entry(root: &OwnedFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = open_beneath(root, parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    let name = CString::new(name.as_bytes())?;
    Ok(nix::fcntl::openat(parent.as_fd(), name.as_c_str(), flags | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// The kernel asks to try again when a rename elsewhere made the walk uncertain.
fn again(open: impl Fn() -> nix::Result<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        match open() {
            Err(nix::errno::Errno::EAGAIN) => {}
            result => return Ok(result?),
        }
    }
}

/// Removed, or exchanged for a link, since it was listed.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP | libc::ENOTDIR))
}

/// What cannot be changed (immutable, on a read-only or foreign file system) stays as it is, as upstream has it: one such
/// file must not keep a pod from starting.
fn give(found: &OwnedFd, stat: &FileStat, group: u32) -> io::Result<()> {
    match try_give(found, stat, group) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EROFS | libc::EOPNOTSUPP)) =>
        {
            tracing::warn!(inode = stat.st_ino, group, %error, "a file of a volume keeps its group");
            Ok(())
        }
        outcome => outcome,
    }
}

fn try_give(found: &OwnedFd, stat: &FileStat, group: u32) -> io::Result<()> {
    fchownat(found.as_fd(), c"", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
    let wanted = match kind(stat) {
        // A link has no mode of its own.
        SFlag::S_IFLNK => return Ok(()),
        SFlag::S_IFDIR => DIRECTORY_MODE,
        _ => FILE_MODE,
    };
    // Neither setuid nor setgid of a file survives: both were made for another group.
    let mode = stat.st_mode & 0o1777 | wanted;
    std::fs::set_permissions(format!("/proc/self/fd/{}", found.as_raw_fd()), Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    const GROUP: u32 = 4242;

    fn seen(path: &Path) -> (u32, u32) {
        let metadata = std::fs::symlink_metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_tree_is_given_to_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        std::fs::create_dir_all(volume.join("a/b")).unwrap();
        for (name, mode) in [("a/b/file", 0o400), ("tool", 0o6755)] {
            std::fs::write(volume.join(name), "").unwrap();
            set(&volume.join(name), mode);
        }
        std::fs::write(&outside, "").unwrap();
        set(&outside, 0o600);
        symlink(&outside, volume.join("link")).unwrap();
        let before = seen(&outside);
        apply(&volume, GROUP, ChangePolicy::Always).unwrap();
        for (name, expected) in [("", 0o2775), ("a", 0o2775), ("a/b", 0o2775), ("a/b/file", 0o660), ("tool", 0o775)] {
            assert_eq!(seen(&volume.join(name)), (GROUP, expected), "{name}");
        }
        assert_eq!(seen(&volume.join("link")).0, GROUP);
        assert_eq!(seen(&outside), before);
    }

    #[test]
    fn the_policy_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        set(&file, 0o600);
        set(dir.path(), 0o2770);
        std::os::unix::fs::chown(dir.path(), None, Some(GROUP)).unwrap();
        set(dir.path(), 0o2770);
        apply(dir.path(), GROUP, ChangePolicy::OnRootMismatch).unwrap();
        assert_eq!(seen(&file).1, 0o600, "the root is right already");
        apply(dir.path(), GROUP, ChangePolicy::Always).unwrap();
        assert_eq!(seen(&file), (GROUP, 0o660));
        set(&file, 0o600);
        set(dir.path(), 0o770);
        apply(dir.path(), GROUP, ChangePolicy::OnRootMismatch).unwrap();
        assert_eq!((seen(&file).1, seen(dir.path()).1), (0o660, 0o2770));
    }

    /// A container exchanges files and directories for links to the node's while the volume is given to the group.
    #[test]
    fn security_swapped_files_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        for path in [volume.join("swap"), outside.join("inner")] {
            std::fs::create_dir_all(path).unwrap();
        }
        for number in 0..8 {
            std::fs::write(volume.join(format!("swap/{number}")), "").unwrap();
            std::fs::write(outside.join(number.to_string()), "").unwrap();
            set(&outside.join(number.to_string()), 0o4700);
        }
        set(&outside, 0o700);
        set(&outside.join("inner"), 0o700);
        let tree = || -> Vec<(PathBuf, (u32, u32))> {
            let mut found: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().path()).collect();
            found.sort();
            found.push(outside.clone());
            found.into_iter().map(|path| (path.clone(), seen(&path))).collect()
        };
        let before = tree();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (swap, aside) = (volume.join("swap"), volume.join("aside"));
                while !stop.load(Ordering::Relaxed) {
                    for number in 0..8 {
                        let file = swap.join(number.to_string());
                        let _ = std::fs::remove_file(&file);
                        let _ = symlink(outside.join(number.to_string()), &file);
                        let _ = std::fs::remove_file(&file);
                        let _ = std::fs::write(&file, "");
                        set_if_there(&file, 0o4755);
                    }
                    let _ = std::fs::rename(&swap, &aside);
                    let _ = symlink(&outside, &swap);
                    let _ = std::fs::remove_file(&swap);
                    let _ = std::fs::rename(&aside, &swap);
                }
            });
            let rounds: io::Result<()> = (0..200).try_for_each(|_| apply(&volume, GROUP, ChangePolicy::Always));
            stop.store(true, Ordering::Relaxed);
            rounds.unwrap();
        });
        assert_eq!(tree(), before, "nothing outside was touched");
    }

    fn set_if_there(path: &Path, mode: u32) {
        let _ = std::fs::set_permissions(path, Permissions::from_mode(mode));
    }
}
