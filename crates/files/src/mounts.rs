//! What is mounted where, from the text of `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is shown, as a path of its own file system.
    pub root: PathBuf,
    /// Where it is.
    pub point: PathBuf,
    /// Whether what is mounted below it is seen elsewhere, too.
    pub is_shared: bool,
}

/// All mounts of a table, in its order: of several at one place the last one is seen.
pub fn mounts(table: &str) -> impl Iterator<Item = Mount> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let is_shared = fields.skip(1).take_while(|field| *field != "-").any(|field| field.starts_with("shared:"));
        Some(Mount { root, point, is_shared })
    })
}

/// The kernel writes spaces and the like as `\040`.
fn unescaped(field: &str) -> PathBuf {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field.as_bytes());
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
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_line_says_what_is_mounted_where() {
        for (line, expected) in [
            ("1 0 0:1 / / rw,relatime - ext4 /dev/vda rw", Some(("/", "/", false))),
            ("2 1 0:1 /d /a/b rw shared:7 master:1 - ext4 /dev/vda rw", Some(("/d", "/a/b", true))),
            ("3 2 0:2 /my\\040dir /x\\134y rw - tmpfs shared:9 rw", Some(("/my dir", "/x\\y", false))),
            ("4 2 0:2 / /tail\\ rw - tmpfs t rw", Some(("/", "/tail\\", false))),
            ("5 2 0:2", None),
            ("", None),
        ] {
            let expected =
                expected.map(|(root, point, is_shared)| Mount { root: root.into(), point: point.into(), is_shared });
            assert_eq!(mounts(line).next(), expected, "{line}");
        }
        assert_eq!(unescaped("/a\\0401\\999"), Path::new("/a 1\\999"));
    }
}
