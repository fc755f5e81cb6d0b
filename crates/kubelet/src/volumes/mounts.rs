//! The few mount operations volumes need.

use std::io;
use std::path::{Path, PathBuf};

use api::sort::CompactSort as _;
use nix::mount::{MntFlags, MsFlags};

use super::kernel::Kernel;

pub(crate) fn is_mount_point(kernel: &impl Kernel, path: &Path) -> io::Result<bool> {
    let wanted = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(mount_points(kernel)?.contains(&wanted))
}

/// Whether something is mounted at a path, which itself is not looked at: what is mounted there may not answer.
pub(crate) fn is_mounted_at(kernel: &impl Kernel, path: &Path) -> io::Result<bool> {
    match beside(path)? {
        Some(path) => Ok(mount_points(kernel)?.contains(&path)),
        None => Ok(false),
    }
}

/// Whether two places are mounts that show the same of one file system. As [`is_mounted_at`], they are not looked at.
pub(super) fn show_the_same(kernel: &impl Kernel, one: &Path, other: &Path) -> io::Result<bool> {
    let (Some(one), Some(other)) = (beside(one)?, beside(other)?) else { return Ok(false) };
    let table = kernel.mount_table()?;
    // Of several at one place the last one is seen.
    let shown = |at: &Path| {
        let mount = files::mounts(&table).filter(|mount| mount.point == at).last();
        mount.map(|mount| (mount.device, mount.root))
    };
    Ok(shown(&one).is_some_and(|shown_there| shown(&other) == Some(shown_there)))
}

/// Where a path is, without a look at itself. None if its directory is not there.
fn beside(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Mount points below a directory, deepest last.
pub(crate) fn mounts_below(kernel: &impl Kernel, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = dir.canonicalize()?;
    let mut below: Vec<PathBuf> =
        mount_points(kernel)?.into_iter().filter(|path| path.starts_with(&dir) && *path != dir).collect();
    below.compact_sort();
    Ok(below)
}

fn mount_points(kernel: &impl Kernel) -> io::Result<Vec<PathBuf>> {
    Ok(files::mounts(&kernel.mount_table()?).map(|mount| mount.point).collect())
}

/// Has what is mounted below a directory seen by everyone who has that directory mounted, in either direction: a driver in a pod
/// mounts for the kubelet. Where the file system is not shared, the directory becomes a mount of its own that is.
pub(crate) fn make_shared(kernel: &impl Kernel, dir: &Path) -> io::Result<()> {
    let dir = dir.canonicalize()?;
    if is_shared(&kernel.mount_table()?, &dir) {
        return Ok(());
    }
    kernel.mount(Some(&dir), &dir, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)?;
    kernel.mount(None, &dir, None, MsFlags::MS_SHARED | MsFlags::MS_REC, None)
}

/// Whether the mount that a path is on has peers, by the kernel's table of mounts.
fn is_shared(table: &[u8], path: &Path) -> bool {
    let found = files::mounts(table)
        .filter(|mount| path.starts_with(&mount.point))
        // Of several at one place the last one is seen.
        .max_by_key(|mount| mount.point.components().count());
    found.is_some_and(|mount| mount.is_shared)
}

/// A file system in memory, unless it is mounted already; whether it was not.
pub(crate) fn tmpfs(kernel: &impl Kernel, path: &Path, size: Option<i64>) -> io::Result<bool> {
    let options = size.filter(|bytes| *bytes > 0).map(|bytes| format!("size={bytes}"));
    of_kernel(kernel, path, ("tmpfs", "tmpfs"), options.as_deref())
}

/// The same, of huge pages.
pub(crate) fn hugetlbfs(kernel: &impl Kernel, path: &Path, page_size: i64) -> io::Result<bool> {
    of_kernel(kernel, path, ("nodev", "hugetlbfs"), Some(&format!("pagesize={page_size}")))
}

fn of_kernel(
    kernel: &impl Kernel,
    path: &Path,
    (source, kind): (&str, &str),
    options: Option<&str>,
) -> io::Result<bool> {
    std::fs::create_dir_all(path)?;
    if is_mount_point(kernel, path)? {
        return Ok(false);
    }
    kernel.mount(Some(Path::new(source)), path, Some(kind), MsFlags::empty(), options)?;
    Ok(true)
}

/// Unmounts everything below a directory, then removes it. Goes on after a failure and returns the
/// first. Never removes through a mount that could not be undone: what it shows is not ours.
pub(crate) fn remove_with_mounts(kernel: &impl Kernel, dir: &Path) -> io::Result<()> {
    if !dir.try_exists()? {
        return Ok(());
    }
    let mut first_error = None;
    for path in mounts_below(kernel, dir)?.into_iter().rev() {
        if let Err(error) = kernel.unmount(&path, MntFlags::MNT_DETACH) {
            first_error.get_or_insert(error);
        }
    }
    if is_mount_point(kernel, dir)? {
        kernel.unmount(dir, MntFlags::MNT_DETACH)?;
    }
    if let Some(error) = first_error {
        return Err(error);
    }
    // A driver that was given up on may still mount something.
    files::remove_tree(dir)
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Linux;
    use super::super::recorded::Recorded;
    use super::*;

    #[test]
    fn the_innermost_mount_says_whether_a_path_is_shared() {
        let table =
            b"1 0 0:1 / / rw,relatime - ext4 /dev/vda rw\n2 1 0:1 /d /a/b rw shared:7 master:1 - ext4 /dev/vda rw\n\
            3 2 0:1 /e /a/b/c rw master:7 - ext4 /dev/vda rw\n4 2 0:2 / /x\\040y rw shared:8 - tmpfs shared:9 rw\n";
        for (path, expected) in
            [("/", false), ("/a", false), ("/a/b", true), ("/a/b/d", true), ("/a/b/c/e", false), ("/x y/z", true)]
        {
            assert_eq!(is_shared(table, Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn removes_what_it_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("pod");
        let volume = root.join("volumes/memory");
        assert!(tmpfs(&Linux, &volume, Some(1 << 20)).unwrap());
        assert!(!tmpfs(&Linux, &volume, None).unwrap());
        std::fs::write(volume.join("file"), "x").unwrap();
        assert_eq!(mounts_below(&Linux, &root).unwrap().len(), 1, "mounted once");
        assert!(is_mounted_at(&Linux, &volume).unwrap() && !is_mounted_at(&Linux, &volume.join("file")).unwrap());
        assert!(!is_mounted_at(&Linux, &root.join("not/there")).unwrap());
        remove_with_mounts(&Linux, &root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn what_is_mounted_deepest_goes_first_and_the_rest_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("pod");
        let (volume, inner, beside) = (root.join("a b"), root.join("a b/c"), dir.path().join("other"));
        let kernel = Recorded::default();
        for path in [&volume, &inner, &beside] {
            tmpfs(&kernel, path, None).unwrap();
        }
        kernel.calls();
        remove_with_mounts(&kernel, &root).unwrap();
        assert_eq!(kernel.calls(), [format!("unmount {}", inner.display()), format!("unmount {}", volume.display())]);
        assert!(!root.exists() && beside.exists());
        assert_eq!(kernel.mounted(), [beside.canonicalize().unwrap()]);
    }

    /// What a mount shows is not the pod's: nothing is removed through one that stays.
    #[test]
    fn what_cannot_be_unmounted_keeps_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("pod");
        let (stuck, other) = (root.join("a"), root.join("b"));
        let kernel = Recorded { busy: Some(stuck.clone()), ..Recorded::default() };
        for path in [&stuck, &other] {
            tmpfs(&kernel, path, None).unwrap();
        }
        std::fs::write(stuck.join("file"), "another's").unwrap();
        let error = remove_with_mounts(&kernel, &root).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::EBUSY as i32));
        assert!(stuck.join("file").exists());
        assert_eq!(kernel.mounted(), [stuck], "the others are gone all the same");
    }

    #[test]
    fn security_a_directory_that_cannot_be_looked_at_is_not_gone() {
        let dir = tempfile::tempdir().unwrap();
        let circle = dir.path().join("pod");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        assert!(remove_with_mounts(&Recorded::default(), &circle).is_err());
        remove_with_mounts(&Recorded::default(), &dir.path().join("gone")).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_shared_becomes_a_mount_that_is() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let kernel = Recorded::default();
        make_shared(&kernel, &root).unwrap();
        let root = root.display();
        let expected = [format!("mount {root} {root} MS_BIND | MS_REC"), format!("mount {root} MS_REC | MS_SHARED")];
        assert_eq!(kernel.calls(), expected);
    }
}
