//! How much a tree takes on its disk.
//!
//! Whoever fills the tree must not be able to hide in it, nor to make looking expensive: a path may be longer than any that
//! the kernel takes, and deeper than any stack. So directories are opened one below the other, and left again through their
//! parent, which must be the one that they were entered from.

use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, lstat};

/// Space on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

impl Usage {
    fn add(&mut self, stat: &FileStat) {
        self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        self.inodes = self.inodes.saturating_add(1);
    }
}

/// Directories on the way down that are kept open. The way back from what is deeper is by `..`.
const MAX_OPEN: usize = 64;

/// One directory on the way down.
struct Level {
    device: u64,
    inode: u64,
    open: Option<OwnedFd>,
    /// Directories in it that were not looked at yet.
    left: Vec<OsString>,
}

/// How far a tree is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// So many files and directories at most.
    pub entries: u64,
    pub until: Option<Instant>,
}

impl Bounds {
    const NONE: Bounds = Bounds { entries: u64::MAX, until: None };

    fn are_reached(&self, sum: &Usage) -> bool {
        sum.inodes >= self.entries || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// What a file, or a directory with all that is in it, takes: each file once, however many names it has, and nothing that is
/// mounted inside. What is gone meanwhile, or cannot be read, is not counted.
pub fn usage(root: &Path) -> Usage {
    usage_within(root, Bounds::NONE).0
}

/// As [`usage`], and no farther than the bounds. Says whether that was all.
pub fn usage_within(root: &Path, bounds: Bounds) -> (Usage, bool) {
    let mut sum = Usage::default();
    let is_all = walk(root, bounds, &mut sum).is_continue();
    (sum, is_all)
}

/// Breaks off at the bounds.
fn walk(root: &Path, bounds: Bounds, sum: &mut Usage) -> ControlFlow<()> {
    const END: ControlFlow<()> = ControlFlow::Continue(());
    let Ok(top) = lstat(root) else { return END };
    sum.add(&top);
    if !is_directory(&top) {
        return END;
    }
    let Ok(opened) = nix::fcntl::open(root, FLAGS, Mode::empty()) else { return END };
    let mut linked = HashSet::new();
    let mut levels = Vec::new();
    let mut current = opened;
    let mut is_entered = true;
    loop {
        if is_entered {
            let keep = levels.len() < MAX_OPEN;
            let Some(level) = look(&current, top.st_dev, keep, &mut linked, (sum, bounds))? else { return END };
            levels.push(level);
            is_entered = false;
        }
        let Some(level) = levels.last_mut() else { return END };
        if let Some(name) = level.left.pop() {
            let child = openat(current.as_fd(), name.as_os_str(), FLAGS, Mode::empty());
            if let Some(child) = child.ok().filter(|child| fstat(child).is_ok_and(|stat| stat.st_dev == top.st_dev)) {
                current = child;
                is_entered = true;
            }
            continue;
        }
        levels.pop();
        match back(&mut levels, &current) {
            Some(parent) => current = parent,
            None => return END,
        }
    }
}

const FLAGS: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn is_directory(stat: &FileStat) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}

/// Counts what is in a directory; none if even that cannot be told.
fn look(
    directory: &OwnedFd,
    device: u64,
    keep: bool,
    linked: &mut HashSet<u64>,
    (sum, bounds): (&mut Usage, Bounds),
) -> ControlFlow<(), Option<Level>> {
    let Ok(own) = fstat(directory) else { return ControlFlow::Continue(None) };
    let mut left = Vec::new();
    if let Ok(mut entries) = directory.try_clone().map_err(drop).and_then(|copy| Dir::from_fd(copy).map_err(drop)) {
        for entry in entries.iter().flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if bounds.are_reached(sum) {
                return ControlFlow::Break(());
            }
            let Ok(stat) = fstatat(directory.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            let is_directory = is_directory(&stat);
            if stat.st_dev != device || (stat.st_nlink > 1 && !is_directory && !linked.insert(stat.st_ino)) {
                continue;
            }
            sum.add(&stat);
            if is_directory {
                left.push(std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned());
            }
        }
    }
    let open = if keep { directory.try_clone().ok() } else { None };
    ControlFlow::Continue(Some(Level { device: own.st_dev, inode: own.st_ino, open, left }))
}

/// The directory to go on in: the parent, or the next one further up that is known for sure, where somebody has moved a
/// directory while it was looked at.
fn back(levels: &mut Vec<Level>, from: &OwnedFd) -> Option<OwnedFd> {
    let level = levels.last()?;
    if level.open.is_none()
        && let Ok(parent) = openat(from.as_fd(), "..", FLAGS, Mode::empty())
        && fstat(&parent).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (level.device, level.inode))
    {
        return Some(parent);
    }
    while let Some(level) = levels.last() {
        if let Some(open) = &level.open {
            return open.try_clone().ok();
        }
        levels.pop();
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use nix::sys::stat::mkdirat;

    use super::*;

    #[test]
    fn security_a_look_ends_at_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a/b", "c"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), "x").unwrap();
        }
        let within = |entries, until| {
            let (usage, is_all) = usage_within(dir.path(), Bounds { entries, until });
            (usage.inodes, is_all)
        };
        for (entries, expected) in [(3, (3, false)), (5, (5, false)), (6, (6, true)), (7, (6, true))] {
            assert_eq!(within(entries, None), expected, "{entries}");
        }
        assert_eq!(within(7, Some(Instant::now())), (1, false));
    }

    #[test]
    fn each_file_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/file"), vec![1; 100_000]).unwrap();
        let one = usage(dir.path());
        assert!(one.bytes >= 100_000 && one.inodes == 3, "{one:?}");
        std::fs::hard_link(dir.path().join("sub/file"), dir.path().join("again")).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("a/link")).unwrap();
        assert_eq!(usage(dir.path()).inodes, one.inodes + 3);
        assert_eq!(usage(&dir.path().join("missing")), Usage::default());
        assert_eq!(usage(&dir.path().join("sub/file")).inodes, 1);
    }

    /// Deeper than a path can be long, and than a thread's stack with a frame for each level.
    #[test]
    fn security_nothing_hides_in_the_depth() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        std::fs::create_dir(&root).unwrap();
        let mut at = nix::fcntl::open(&root, FLAGS, Mode::empty()).unwrap();
        const DEPTH: u64 = 20_000;
        for _ in 0..DEPTH {
            mkdirat(at.as_fd(), "d", Mode::S_IRWXU).unwrap();
            mkdirat(at.as_fd(), "e", Mode::S_IRWXU).unwrap();
            at = openat(at.as_fd(), "d", FLAGS, Mode::empty()).unwrap();
        }
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(at.as_fd(), "hidden", flags, Mode::S_IRWXU).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(file), &vec![1; 1_000_000]).unwrap();
        drop(at);
        let root_in_thread = root.clone();
        let counted = std::thread::Builder::new().stack_size(256 << 10).spawn(move || usage(&root_in_thread));
        let counted = counted.unwrap().join().unwrap();
        crate::remove_tree(&root).unwrap();
        assert_eq!(counted.inodes, 1 + 2 * DEPTH + 1);
        assert!(counted.bytes >= 1_000_000, "{counted:?}");
    }
}
