//! What volumes ask of the kernel and an ordinary user may not: mounts. Everything else is done with files, so tests of volumes
//! need no privilege: they record what is asked here (`recorded`).

use std::io;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags};

pub(crate) trait Kernel {
    /// All mounts, as /proc/self/mountinfo has them.
    fn mount_table(&self) -> io::Result<Vec<u8>>;
    /// mount(2).
    fn mount(
        &self,
        source: Option<&Path>,
        target: &Path,
        kind: Option<&str>,
        flags: MsFlags,
        data: Option<&str>,
    ) -> io::Result<()>;
    /// umount2(2), which never follows a link.
    fn unmount(&self, target: &Path, flags: MntFlags) -> io::Result<()>;
}

pub(crate) struct Linux;

impl Kernel for Linux {
    fn mount_table(&self) -> io::Result<Vec<u8>> {
        files::mount_table()
    }

    fn mount(
        &self,
        source: Option<&Path>,
        target: &Path,
        kind: Option<&str>,
        flags: MsFlags,
        data: Option<&str>,
    ) -> io::Result<()> {
        Ok(nix::mount::mount(source, target, kind, flags, data)?)
    }

    fn unmount(&self, target: &Path, flags: MntFlags) -> io::Result<()> {
        Ok(nix::mount::umount2(target, flags | MntFlags::UMOUNT_NOFOLLOW)?)
    }
}
