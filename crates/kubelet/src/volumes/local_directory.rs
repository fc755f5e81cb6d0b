//! Local volumes that are directories and have mount options: bound below the pod with those. Without options a directory is used
//! where it is.

use std::io;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags};

use super::kernel::Kernel;
use super::mounts;

/// Binds a directory with the flags of its options, unless it is already.
pub(super) fn bind(kernel: &impl Kernel, from: &Path, target: &Path, flags: MsFlags) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    if !mounts::is_mounted_at(kernel, target)? {
        kernel.mount(Some(from), target, None, MsFlags::MS_BIND, None)?;
    }
    // Also what is mounted already: a kubelet before this one may have ended between the two.
    let restricted = files::remount_flags(target, flags).and_then(|flags| match flags {
        Some(flags) => kernel.mount(None, target, None, flags, None),
        None => Ok(()),
    });
    if restricted.is_err() {
        // Never more than it may be.
        kernel.unmount(target, MntFlags::MNT_DETACH)?;
    }
    restricted
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::super::kernel::Linux;
    use super::super::recorded::Recorded;
    use super::*;

    #[test]
    fn a_directory_is_bound_with_its_options() {
        let dir = tempfile::tempdir().unwrap();
        let (from, target) = (dir.path().join("from"), dir.path().join("pod/mount"));
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("file"), "x").unwrap();
        for _ in 0..2 {
            bind(&Linux, &from, &target, MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC).unwrap();
        }
        let read = std::fs::read_to_string(target.join("file"));
        let written = std::fs::write(target.join("file"), "y");
        nix::mount::umount(&target).unwrap();
        assert_eq!((read.unwrap().as_str(), written.is_err()), ("x", true));
        assert!(!mounts::is_mounted_at(&Linux, &target).unwrap(), "mounted once");
        std::fs::write(from.join("file"), "y").unwrap();
    }

    #[test]
    fn security_a_directory_without_its_options_is_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let (from, target) = (dir.path().join("from"), dir.path().canonicalize().unwrap().join("mount"));
        std::fs::create_dir(&from).unwrap();
        let kernel = Recorded::default();
        bind(&kernel, &from, &target, MsFlags::MS_NOEXEC).unwrap();
        assert_eq!(kernel.calls().len(), 2);
        let kernel = Recorded::default();
        kernel.mount(Some(&from), &target, None, MsFlags::MS_BIND, None).unwrap();
        kernel.answers.borrow_mut().push_back(Errno::EPERM);
        assert!(bind(&kernel, &from, &target, MsFlags::MS_NOEXEC).is_err());
        assert_eq!(kernel.mounted(), [""; 0].map(std::path::PathBuf::from));
    }
}
