//! Options of mounts, as mount(8) has them and as mount(2) is told of them.

use std::fmt;
use std::io;
use std::path::Path;

use nix::mount::MsFlags;
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::mounts::{mount_table, mounts};

/// `MS_NOSYMFOLLOW`, of Linux 5.10.
pub const NO_LINKS: MsFlags = MsFlags::from_bits_retain(256);

/// What an option means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOption<'a> {
    /// A flag of mount(2) is set or taken back.
    Flag(MsFlags, bool),
    /// It says something to mount(8) or to whoever calls that.
    Ignored,
    /// It is for the file system.
    Data(&'a str),
}

/// Options that are separated by commas, in the order given.
pub fn mount_options<T: AsRef<str>>(options: &[T]) -> impl Iterator<Item = MountOption<'_>> {
    options.iter().flat_map(|one| one.as_ref().split(',')).map(|option| meaning(option.trim()))
}

fn meaning(option: &str) -> MountOption<'_> {
    let (flag, is_set) = match option {
        "ro" => (MsFlags::MS_RDONLY, true),
        "rw" => (MsFlags::MS_RDONLY, false),
        "nosuid" => (MsFlags::MS_NOSUID, true),
        "suid" => (MsFlags::MS_NOSUID, false),
        "nodev" => (MsFlags::MS_NODEV, true),
        "dev" => (MsFlags::MS_NODEV, false),
        "noexec" => (MsFlags::MS_NOEXEC, true),
        "exec" => (MsFlags::MS_NOEXEC, false),
        "sync" => (MsFlags::MS_SYNCHRONOUS, true),
        "async" => (MsFlags::MS_SYNCHRONOUS, false),
        "dirsync" => (MsFlags::MS_DIRSYNC, true),
        "noatime" => (MsFlags::MS_NOATIME, true),
        "atime" => (MsFlags::MS_NOATIME, false),
        "nodiratime" => (MsFlags::MS_NODIRATIME, true),
        "diratime" => (MsFlags::MS_NODIRATIME, false),
        "relatime" => (MsFlags::MS_RELATIME, true),
        "norelatime" => (MsFlags::MS_RELATIME, false),
        "strictatime" => (MsFlags::MS_STRICTATIME, true),
        "nosymfollow" => (NO_LINKS, true),
        "symfollow" => (NO_LINKS, false),
        "" | "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "group" | "owner" | "nofail"
        | "_netdev" | "bg" | "fg" => return MountOption::Ignored,
        option if ["retry=", "comment=", "x-", "X-"].iter().any(|prefix| option.starts_with(prefix)) => {
            return MountOption::Ignored;
        }
        option => return MountOption::Data(option),
    };
    MountOption::Flag(flag, is_set)
}

/// An option that a directory cannot be mounted with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotForDirectories(String);

impl fmt::Display for NotForDirectories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount option {:?} is of file systems, and a directory is not mounted with it", self.0)
    }
}

impl std::error::Error for NotForDirectories {}

/// Of file systems, and without anything that whoever uses a directory could rely on: those whose directory it is have their own.
const NOTHING_TO_DIRECTORIES: &[&str] =
    &["bind", "rbind", "lazytime", "nolazytime", "nostrictatime", "discard", "nodiscard", "silent", "loud"];

/// The flags of a directory that is mounted elsewhere with these options. Nothing but flags can differ from what the file system
/// itself is mounted with.
pub fn bind_flags(options: &[String]) -> Result<MsFlags, NotForDirectories> {
    let mut flags = MsFlags::empty();
    for option in options.iter().flat_map(|one| one.split(',')).map(str::trim) {
        match meaning(option) {
            // The kernel takes these of the file system only.
            MountOption::Flag(MsFlags::MS_SYNCHRONOUS | MsFlags::MS_DIRSYNC, _) => {}
            MountOption::Flag(flag, is_set) => flags.set(flag, is_set),
            MountOption::Ignored => {}
            MountOption::Data(option) if NOTHING_TO_DIRECTORIES.contains(&option) => {}
            MountOption::Data(option) => return Err(NotForDirectories(option.to_owned())),
        }
    }
    Ok(flags)
}

/// The flags for mounting a directory anew that is mounted already: those that it has are kept, so that nothing becomes possible
/// that the file system's own mount does not allow. None if there is nothing to change.
pub fn remount_flags(at: &Path, flags: MsFlags) -> io::Result<Option<MsFlags>> {
    if flags.is_empty() {
        return Ok(None);
    }
    let has = statvfs(at)?.flags();
    let mut all = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT;
    for (known, flag) in [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
    ] {
        all.set(flag, flags.contains(flag) || has.contains(known));
    }
    all.set(NO_LINKS, flags.contains(NO_LINKS) || forbids_links(&mount_table()?, &at.canonicalize()?));
    Ok(Some(all))
}

/// Whether links are not followed in the mount that a path is on: `statvfs` does not say so here.
fn forbids_links(table: &[u8], at: &Path) -> bool {
    let on = mounts(table).filter(|mount| at.starts_with(&mount.point));
    // Of several at one place the last one is seen.
    let innermost = on.max_by_key(|mount| mount.point.components().count());
    innermost.is_some_and(|mount| mount.flags.split(|byte| *byte == b',').any(|flag| flag == b"nosymfollow"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn security_directories_are_mounted_with_flags_only() {
        let flags = |options: &[&str]| {
            bind_flags(&options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        let refused = |option: &str| {
            Err(format!("mount option {option:?} is of file systems, and a directory is not mounted with it"))
        };
        for (options, expected) in [
            (&[][..], Ok(MsFlags::empty())),
            (&["noexec,nosuid", "nodev"], Ok(MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV)),
            (&["ro", "rw", "noatime"], Ok(MsFlags::MS_NOATIME)),
            (&["bind", "defaults", "_netdev", "x-mine=1", "async"], Ok(MsFlags::empty())),
            (&["nosymfollow"], Ok(NO_LINKS)),
            (&["ro", "size=5m"], refused("size=5m")),
            (&["sync,dirsync", "lazytime,nolazytime,nostrictatime,rbind", "ro"], Ok(MsFlags::MS_RDONLY)),
            (&["discard,nodiscard,group,owner,comment=a,X-a,x-b,silent,loud,nofail"], Ok(MsFlags::empty())),
            (&["hard"], refused("hard")),
        ] {
            assert_eq!(flags(options), expected, "{options:?}");
        }
    }

    #[test]
    fn security_a_mount_keeps_its_flags() {
        let flags = remount_flags(Path::new("/proc"), MsFlags::MS_RDONLY).unwrap().unwrap();
        assert!(flags.contains(MsFlags::MS_RDONLY | MsFlags::MS_BIND | MsFlags::MS_REMOUNT));
        let has = statvfs("/proc").unwrap().flags();
        assert_eq!(flags.contains(MsFlags::MS_NOSUID), has.contains(FsFlags::ST_NOSUID));
        assert_eq!(remount_flags(Path::new("/proc"), MsFlags::empty()).unwrap(), None);
        let table = b"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / /a rw,nosymfollow - tmpfs t rw\n\
            3 2 0:3 / /a/b rw - tmpfs t rw\n";
        for (at, expected) in [("/", false), ("/a", true), ("/a/c", true), ("/a/b", false), ("/ab", false)] {
            assert_eq!(forbids_links(table, Path::new(at)), expected, "{at}");
        }
    }
}
