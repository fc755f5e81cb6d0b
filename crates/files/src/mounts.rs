//! What is mounted where, by `/proc/self/mountinfo`.
//!
//! Whoever mounts something chooses its name, and containers may mount: the table is bytes, not text.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const TABLE: &str = "/proc/self/mountinfo";

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount<'a> {
    /// The file system's number, `major:minor`.
    pub device: &'a [u8],
    /// What is shown, as a path of its own file system.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// What is allowed in it, as options that are separated by commas.
    pub flags: &'a [u8],
    /// Whether what is mounted below it is seen elsewhere, too.
    pub is_shared: bool,
    /// `ext4`, `cgroup2`, …
    pub file_system: &'a [u8],
    /// Those of the file system, separated by commas.
    pub options: &'a [u8],
}

/// The table of this process.
pub fn mount_table() -> io::Result<Vec<u8>> {
    std::fs::read(TABLE).map_err(|error| io::Error::new(error.kind(), format!("{TABLE}: {error}")))
}

/// All mounts of a table, in its order: of several at one place the last one is seen.
pub fn mounts(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = fields.next()?;
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let (flags, mut is_shared) = (fields.next().unwrap_or_default(), false);
        for field in fields.by_ref().take_while(|field| *field != b"-") {
            is_shared |= field.starts_with(b"shared:");
        }
        let (file_system, options) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        Some(Mount { device, root, point, flags, is_shared, file_system, options })
    })
}

/// The kernel writes spaces and the like as `\040`.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_says_what_is_mounted_where() {
        for (line, expected) in [
            ("1 0 0:1 / / rw,relatime - ext4 /dev/vda rw", Some(("0:1", "/", "/", "rw,relatime", false, "ext4", "rw"))),
            (
                "2 1 0:1 /d /a/b rw shared:7 master:1 - ext4 /dev/vda rw",
                Some(("0:1", "/d", "/a/b", "rw", true, "ext4", "rw")),
            ),
            (
                "3 2 0:2 /my\\040dir /x\\134y rw - tmpfs shared:9 rw",
                Some(("0:2", "/my dir", "/x\\y", "rw", false, "tmpfs", "rw")),
            ),
            ("4 2 0:3 / /tail\\ rw - tmpfs  rw,nr=1", Some(("0:3", "/", "/tail\\", "rw", false, "tmpfs", "rw,nr=1"))),
            ("5 2 0:2 / /cut rw", Some(("0:2", "/", "/cut", "rw", false, "", ""))),
            ("6 2 0:2", None),
            ("", None),
        ] {
            let expected = expected.map(|(device, root, point, flags, is_shared, file_system, options)| Mount {
                device: device.as_bytes(),
                root: root.into(),
                point: point.into(),
                flags: flags.as_bytes(),
                is_shared,
                file_system: file_system.as_bytes(),
                options: options.as_bytes(),
            });
            assert_eq!(mounts(line.as_bytes()).next(), expected, "{line}");
        }
        assert_eq!(unescaped(b"/a\\0401\\999"), Path::new("/a 1\\999"));
    }

    /// Any container whose mounts are seen by the node could otherwise keep every other mount from being found.
    #[test]
    fn security_a_mount_point_that_is_no_text_hides_no_other() {
        let table = b"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / /x\xff\\040y rw - tmpfs \xfe rw\n\
            3 1 0:3 / /z rw shared:1 - tmpfs t rw\n";
        let points: Vec<PathBuf> = mounts(table).map(|mount| mount.point).collect();
        assert_eq!(points, [Path::new("/"), Path::new(OsStr::from_bytes(b"/x\xff y")), Path::new("/z")]);
        assert!(mounts(&mount_table().unwrap()).next().is_some());
    }
}
