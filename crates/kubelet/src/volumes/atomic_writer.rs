//! Writes a set of files so that a reader sees either all old or all new ones.
//!
//! ```text
//! <volume>/..2026_11_15_03_00_00.123/token     the files, in a directory of their own
//! <volume>/..data -> ..2026_11_15_03_00_00.123 swapped by one rename
//! <volume>/token -> ..data/token               what the container opens
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path};

use jiff::Timestamp;

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    /// Owner, when it is not root.
    pub(crate) uid: Option<u32>,
}

/// Files by their path inside the volume.
pub(crate) type Payload = BTreeMap<String, File>;

const DATA: &str = "..data";
const DATA_TMP: &str = "..data_tmp";

/// Brings the volume at `target` to `payload`. Returns whether anything changed. `group` owns the
/// files and may read them, when the pod has an fsGroup.
pub(crate) fn write(target: &Path, payload: &Payload, group: Option<u32>, now: Timestamp) -> io::Result<bool> {
    for path in payload.keys() {
        check_path(path)?;
    }
    let data = target.join(DATA);
    let old = match std::fs::read_link(&data) {
        Ok(link) => Some(link),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(old) = &old
        && is_same(&target.join(old), payload, group)?
    {
        // A crash may have come between the swap and the links.
        link_entries(target, payload)?;
        return Ok(false);
    }
    let stamp = now.strftime("..%Y_%m_%d_%H_%M_%S").to_string();
    let fresh = format!("{stamp}.{}", rand::random::<u32>());
    write_files(&target.join(&fresh), payload, group)?;
    let tmp = target.join(DATA_TMP);
    match std::fs::remove_file(&tmp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(&fresh, &tmp)?;
    std::fs::rename(&tmp, &data)?;
    link_entries(target, payload)?;
    remove_stale(target, payload, &fresh)?;
    Ok(true)
}

/// Paths are relative, have no `..` and do not look like our own entries.
fn check_path(path: &str) -> io::Result<()> {
    let bad = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?}: {why}")));
    if path.is_empty() || path.len() > 4096 {
        return bad("must not be empty or too long");
    }
    if path.starts_with("..") {
        return bad("must not start with \"..\"");
    }
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) if name.len() <= 255 => {}
            _ => return bad("must be relative and stay inside the volume"),
        }
    }
    Ok(())
}

fn file_mode(file: &File, group: Option<u32>) -> u32 {
    if group.is_some() { file.mode | 0o440 } else { file.mode }
}

fn is_same(dir: &Path, payload: &Payload, group: Option<u32>) -> io::Result<bool> {
    let mut found = 0;
    let mut open = vec![dir.to_path_buf()];
    while let Some(at) = open.pop() {
        let entries = match std::fs::read_dir(&at) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = entry?.path();
            let meta = std::fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                open.push(path);
                continue;
            }
            let relative = path.strip_prefix(dir).map_err(io::Error::other)?;
            let Some(file) = relative.to_str().and_then(|name| payload.get(name)) else { return Ok(false) };
            let wanted_group = group.unwrap_or(0);
            if meta.permissions().mode() & 0o777 != file_mode(file, group) & 0o777
                || meta.gid() != wanted_group
                || meta.uid() != file.uid.unwrap_or(0)
                || std::fs::read(&path)? != file.data
            {
                return Ok(false);
            }
            found += 1;
        }
    }
    Ok(found == payload.len())
}

fn write_files(dir: &Path, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    let own_dir = |path: &Path| -> io::Result<()> {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(if group.is_some() { 0o2755 } else { 0o755 }))?;
        std::os::unix::fs::chown(path, None, group)
    };
    std::fs::create_dir_all(dir)?;
    own_dir(dir)?;
    for (name, file) in payload {
        let path = dir.join(name);
        if let Some(parent) = Path::new(name).parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let mut at = dir.to_path_buf();
            for part in parent.components() {
                at.push(part);
                if !at.exists() {
                    std::fs::create_dir(&at)?;
                    own_dir(&at)?;
                }
            }
        }
        write_private(&path, &file.data)?;
        std::os::unix::fs::chown(&path, file.uid, group)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(file_mode(file, group)))?;
    }
    Ok(())
}

/// Nobody else can read it before it has the mode that it is to have.
fn write_private(path: &Path, data: &[u8]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(data)
}

/// First parts of the payload's paths: what the volume's root shows.
fn entries(payload: &Payload) -> Vec<&str> {
    let mut names: Vec<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    names.dedup();
    names
}

fn link_entries(target: &Path, payload: &Payload) -> io::Result<()> {
    for name in entries(payload) {
        let link = target.join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    Ok(())
}

fn remove_stale(target: &Path, payload: &Payload, current: &str) -> io::Result<()> {
    let wanted = entries(payload);
    for entry in std::fs::read_dir(target)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name == DATA || name == current || wanted.contains(&name) {
            continue;
        }
        let kind = entry.file_type()?;
        if name.starts_with("..") && kind.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else if kind.is_symlink() && std::fs::read_link(entry.path())?.starts_with(DATA) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str, u32)]) -> Payload {
        files
            .iter()
            .map(|(path, data, mode)| {
                ((*path).to_string(), File { data: data.as_bytes().to_vec(), mode: *mode, uid: None })
            })
            .collect()
    }

    fn listing(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("..19"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn swaps_and_cleans() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path();
        let first = payload(&[("a", "1", 0o400), ("path/to/b", "2", 0o644)]);
        assert!(write(target, &first, None, Timestamp::UNIX_EPOCH).unwrap());
        assert!(!write(target, &first, None, Timestamp::UNIX_EPOCH).unwrap(), "the same again writes nothing");
        assert_eq!(listing(target), ["..data", "a", "path"]);
        assert_eq!(std::fs::read(target.join("path/to/b")).unwrap(), b"2");
        assert_eq!(std::fs::metadata(target.join("a")).unwrap().permissions().mode() & 0o777, 0o400);

        assert!(
            write(target, &payload(&[("a", "new", 0o400), ("c", "3", 0o644)]), None, Timestamp::UNIX_EPOCH).unwrap()
        );
        assert_eq!(listing(target), ["..data", "a", "c"]);
        assert_eq!(std::fs::read(target.join("a")).unwrap(), b"new");
        let stamped = std::fs::read_dir(target)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_str().unwrap().starts_with("..19"))
            .count();
        assert_eq!(stamped, 1, "old versions are removed");
    }

    #[test]
    fn group_may_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path(), &payload(&[("a", "1", 0o400)]), Some(1001), Timestamp::UNIX_EPOCH).unwrap());
        let meta = std::fs::metadata(dir.path().join("a")).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.gid()), (0o440, 1001));
        assert!(!write(dir.path(), &payload(&[("a", "1", 0o400)]), Some(1001), Timestamp::UNIX_EPOCH).unwrap());
    }

    #[test]
    fn security_files_are_private_until_they_have_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_private(&path, b"1").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn refuses_escapes() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["../x", "a/../../x", "/etc/passwd", "..data", ""] {
            assert!(write(dir.path(), &payload(&[(path, "1", 0o644)]), None, Timestamp::UNIX_EPOCH).is_err(), "{path}");
        }
    }
}
