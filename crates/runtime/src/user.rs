//! Who a container's process is: names and groups from the image's own /etc/passwd and /etc/group.
//!
//! Called inside the container's root, so that a link in the image cannot lead to the node's files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::spec;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

/// Why it is not known who a process is, in the words of other runtimes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{file}: {source}")]
    Unreadable { file: String, source: io::Error },
    #[error("unable to find user {0}: no matching entries in passwd file")]
    NoUser(String),
    #[error("unable to find group {0}: no matching entries in group file")]
    NoGroup(String),
    #[error("uids and gids must be in range 0-2147483647")]
    OutOfRange,
}

/// Looks `user` up in the files below `etc`.
pub(crate) fn resolve(user: &spec::User, etc: &Path) -> Result<Identity, Error> {
    let read = |name: &str| {
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(etc.join(name));
        text(name, opened.and_then(read_whole))
    };
    resolve_in(user, &read("passwd")?, &read("group")?)
}

/// Far more than the users of any image take.
const LARGEST: u64 = 4 << 20;

/// A file of an image, opened so that nobody waits for a writer. What is no file, or one without an end, is not read.
pub(crate) fn read_whole(file: File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of users or groups"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file of users or groups. An image need not have it; but one that cannot be read must not pass for an empty one, whose
/// users would be in other groups.
pub(crate) fn text(name: &str, read: io::Result<Vec<u8>>) -> Result<String, Error> {
    match read {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        Err(source) => Err(Error::Unreadable { file: name.to_owned(), source }),
    }
}

/// No id is higher, as with other runtimes: the highest number of all is taken by the kernel for "as it is", so that whoever
/// asked for it would stay root (CVE-2024-40635).
const HIGHEST: u32 = i32::MAX as u32;

/// The id that a text is; none if it is a name. What is written like a number is never a name: others have read it as one
/// before, to find out whether it is root's.
fn id(text: &str) -> Result<Option<u32>, Error> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let id = text.parse().ok().filter(|id| *id <= HIGHEST);
    id.map(Some).ok_or(Error::OutOfRange)
}

/// Looks `user` up in the text of the two files.
pub(crate) fn resolve_in(user: &spec::User, passwd: &str, group: &str) -> Result<Identity, Error> {
    let (name, group_name) = match user.name.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user.name.as_str(), None),
    };
    let name = if name.is_empty() { "0" } else { name };
    let number = id(name)?;
    let entry = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let uid = fields.get(2)?.parse::<u32>().ok()?;
        let matches = match number {
            Some(number) => uid == number,
            None => fields[0] == name,
        };
        matches.then(|| {
            (
                fields[0].to_string(),
                uid,
                fields.get(3).and_then(|gid| gid.parse::<u32>().ok()),
                fields.get(5).unwrap_or(&"/").to_string(),
            )
        })
    });
    let uid = match (&entry, number) {
        (Some(entry), _) => entry.1,
        (None, Some(number)) => number,
        (None, None) => {
            return Err(Error::NoUser(name.to_owned()));
        }
    };
    let mut gid = entry.as_ref().and_then(|entry| entry.2).unwrap_or(0);
    if let Some(wanted) = group_name {
        gid = match id(wanted)? {
            Some(gid) => gid,
            None => group_entries(group)
                .find(|entry| entry.name == wanted)
                .map(|entry| entry.gid)
                .ok_or_else(|| Error::NoGroup(wanted.to_owned()))?,
        };
    }
    if let Some(group) = user.group {
        gid = group;
    }
    let mut groups = vec![gid];
    if !user.strict_groups
        && let Some(entry) = &entry
    {
        groups.extend(group_entries(group).filter(|g| g.members.contains(&entry.0.as_str())).map(|g| g.gid));
    }
    groups.extend(&user.supplemental);
    let mut seen = std::collections::BTreeSet::new();
    groups.retain(|gid| seen.insert(*gid));
    if uid > HIGHEST || groups.iter().any(|gid| *gid > HIGHEST) {
        return Err(Error::OutOfRange);
    }
    let home = entry.map(|entry| entry.3).filter(|home| !home.is_empty());
    Ok(Identity { uid, gid, groups, home: home.unwrap_or_else(|| "/".into()) })
}

struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: Vec<&'a str>,
}

fn group_entries(text: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        Some(GroupEntry {
            name: fields[0],
            gid: fields.get(2)?.parse().ok()?,
            members: fields.get(3).unwrap_or(&"").split(',').collect(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_those_of_the_image() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv:/bin/false\n";
        let group = "root:x:0:\nweb:x:102:\nlogs:x:4:web,other\n";
        for (name, gid, strict, expected) in [
            ("", None, false, Ok((0, 0, vec![0], "/root"))),
            ("web", None, false, Ok((101, 102, vec![102, 4], "/srv"))),
            ("101", None, true, Ok((101, 102, vec![102], "/srv"))),
            ("101:logs", None, false, Ok((101, 4, vec![4], "/srv"))),
            ("5000", None, false, Ok((5000, 0, vec![0], "/"))),
            ("5000", Some(7), false, Ok((5000, 7, vec![7], "/"))),
            ("nobody", None, false, Err(())),
            ("web:none", None, false, Err(())),
        ] {
            let user = spec::User { name: name.into(), group: gid, supplemental: vec![], strict_groups: strict };
            let found = resolve_in(&user, passwd, group).map(|i| (i.uid, i.gid, i.groups, i.home)).map_err(drop);
            let expected = expected.map(|(u, g, gs, h)| (u, g, gs, h.to_string()));
            assert_eq!(found, expected, "{name}");
        }
    }

    /// The kernel takes the highest number for "as it is": a process that was to be nobody would stay root.
    #[test]
    fn security_no_number_means_root() {
        let passwd = "4294967296:x:0:0::/:/bin/sh\nhigh:x:4294967295:0::/:/bin/sh\nlow:x:7:4294967295::/:/bin/sh\n";
        let group = "4294967297:x:0:\nhigh:x:4294967295:low\n";
        for name in
            ["4294967295", "4294967296", "2147483648", "-1", "+4294967295", "high", "low", "7:high", "7:4294967297"]
        {
            let user = spec::User { name: name.into(), ..Default::default() };
            assert!(matches!(resolve_in(&user, passwd, group), Err(Error::OutOfRange)), "{name}");
        }
        let user = spec::User { name: "2147483647".into(), ..Default::default() };
        assert_eq!(resolve_in(&user, passwd, group).unwrap().uid, HIGHEST);
        for user in [
            spec::User { name: "8".into(), group: Some(u32::MAX), ..Default::default() },
            spec::User { name: "8".into(), supplemental: vec![u32::MAX], ..Default::default() },
        ] {
            assert!(matches!(resolve_in(&user, passwd, group), Err(Error::OutOfRange)));
        }
    }

    #[test]
    fn security_only_files_are_read_for_users() {
        let etc = tempfile::tempdir().unwrap();
        let user = spec::User { name: "7".into(), ..Default::default() };
        let refused = |kind: &str| {
            let error = resolve(&user, etc.path()).unwrap_err();
            assert_eq!(error.to_string(), "passwd: not a file of users or groups", "{kind}");
            std::fs::remove_file(etc.path().join("passwd")).unwrap();
        };
        let passwd = etc.path().join("passwd");
        assert!(std::process::Command::new("mkfifo").arg(&passwd).status().unwrap().success());
        refused("a pipe that nobody writes to");
        std::os::unix::fs::symlink("/dev/zero", &passwd).unwrap();
        refused("a device without an end");
        File::create(&passwd).unwrap().set_len(1 << 40).unwrap();
        refused("a hole of a terabyte");
        std::fs::write(&passwd, "a:x:7:8::/home:/bin/sh\n").unwrap();
        assert_eq!(resolve(&user, etc.path()).unwrap().gid, 8);
    }
}
