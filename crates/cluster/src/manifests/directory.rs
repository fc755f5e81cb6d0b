//! The files of the directory, as far as they can be trusted and are whole.
//!
//! Whoever writes here is an administrator of the cluster, so only this process's user may be able to.

#![allow(unsafe_code, reason = "leases of files; the block states why it is sound")]

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

/// More files than this are a mistake, and so is a longer one.
const MAX_FILES: usize = 1000;
const MAX_BYTES: u64 = 16 << 20;
const ENDINGS: [&str; 3] = [".yaml", ".yml", ".json"];
/// Where the system cannot say whether somebody writes, a file that was written so recently may not be whole.
const UNFINISHED_AGE: Duration = Duration::from_secs(2);

/// Chooses the signal about a lease (`fcntl(2)`); not in `libc` for every system.
const F_SETSIG: libc::c_int = 10;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    Text(String),
    /// Somebody is writing it.
    Busy,
    Bad(String),
}

/// Every manifest by the name of its file. Hidden files and those of other kinds are nobody's business.
pub(super) fn read(dir: &Path) -> Result<BTreeMap<String, Found>> {
    let open = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(dir);
    let handle = open.with_context(|| dir.display().to_string())?;
    let metadata = handle.metadata().with_context(|| dir.display().to_string())?;
    if let Some(why) = distrust(&metadata) {
        bail!("{} {why}: nothing in it is applied", dir.display());
    }
    // The directory that was looked at, whatever its path leads to by now.
    let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(&same).with_context(|| dir.display().to_string())? {
        let name = entry.with_context(|| dir.display().to_string())?.file_name();
        let Some(name) = name.to_str().filter(|name| is_manifest(name)) else { continue };
        if found.len() == MAX_FILES {
            bail!("{} has more than {MAX_FILES} manifests: nothing in it is applied", dir.display());
        }
        let content = content(&Path::new(&same).join(name));
        match content {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(found.insert(name.to_owned(), Found::Bad(error.to_string()))),
            Ok(content) => drop(found.insert(name.to_owned(), content)),
        }
    }
    Ok(found)
}

fn is_manifest(name: &str) -> bool {
    !name.starts_with('.') && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Why what is at a place may be somebody else's work.
fn distrust(metadata: &Metadata) -> Option<&'static str> {
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Some("belongs to another user");
    }
    (metadata.mode() & 0o022 != 0).then_some("can be written by other users")
}

fn content(path: &Path) -> io::Result<Found> {
    // A pipe must not be waited for.
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let mut file = match open {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Ok(Found::Bad("is a link: only files are applied".to_owned()));
        }
        file => file?,
    };
    let before = file.metadata()?;
    if !before.is_file() {
        return Ok(Found::Bad("is not a file".to_owned()));
    }
    if let Some(why) = distrust(&before) {
        return Ok(Found::Bad(why.to_owned()));
    }
    if before.len() > MAX_BYTES {
        return Ok(Found::Bad(format!("is longer than {MAX_BYTES} bytes")));
    }
    if is_written(&file, &before) {
        return Ok(Found::Busy);
    }
    let mut text = String::new();
    if let Err(error) = file.by_ref().take(MAX_BYTES + 1).read_to_string(&mut text) {
        return match error.kind() {
            io::ErrorKind::InvalidData => Ok(Found::Bad("is not text".to_owned())),
            _ => Err(error),
        };
    }
    let after = file.metadata()?;
    let changed = |metadata: &Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    if changed(&after) != changed(&before) || text.len() as u64 != before.len() || is_written(&file, &after) {
        return Ok(Found::Busy);
    }
    Ok(Found::Text(text))
}

/// Whether somebody has the file open for writing.
fn is_written(file: &File, metadata: &Metadata) -> bool {
    let fcntl = |command: libc::c_int, argument: libc::c_int| {
        // SAFETY: the descriptor is open, and these commands take a number.
        unsafe { libc::fcntl(file.as_raw_fd(), command, argument) }
    };
    // A lease for reading is given while nobody writes. Whoever comes for writing meanwhile makes the kernel send a signal, by
    // default one that ends the process; this one is ignored.
    let leased = fcntl(F_SETSIG, libc::SIGURG) == 0 && fcntl(libc::F_SETLEASE, libc::F_RDLCK) == 0;
    if leased {
        fcntl(libc::F_SETLEASE, libc::F_UNLCK);
        return false;
    }
    if io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) {
        return true;
    }
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.is_none_or(|age| age < UNFINISHED_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Where a file system has no leases, a file is taken once it is old enough.
    fn aged(path: &Path) {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - 2 * UNFINISHED_AGE).unwrap();
    }

    fn put(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        mode(path, 0o600);
        aged(path);
    }

    #[test]
    fn files_are_taken_when_they_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o700);
        let at = |name: &str| dir.path().join(name);
        put(&at("a.yaml"), "a: 1");
        for other in [".hidden.yaml", "notes.txt", "b.yaml~"] {
            put(&at(other), "x");
        }
        std::fs::create_dir(at("folder.yaml")).unwrap();
        let mut writer = File::create(at("b.yml")).unwrap();
        writer.write_all(b"half of ").unwrap();
        let found = read(dir.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.yaml", "b.yml", "folder.yaml"]);
        assert_eq!(found["a.yaml"], Found::Text("a: 1".into()));
        assert_eq!(found["b.yml"], Found::Busy);
        assert_eq!(found["folder.yaml"], Found::Bad("is not a file".into()));
        writer.write_all(b"a text").unwrap();
        drop(writer);
        mode(&at("b.yml"), 0o600);
        aged(&at("b.yml"));
        assert_eq!(read(dir.path()).unwrap()["b.yml"], Found::Text("half of a text".into()));
        std::fs::write(at("c.json"), [0xff, 0xfe]).unwrap();
        aged(&at("c.json"));
        assert_eq!(read(dir.path()).unwrap()["c.json"], Found::Bad("is not text".into()));
        let long = File::create(at("d.yaml")).unwrap();
        long.set_len(MAX_BYTES + 1).unwrap();
        assert!(matches!(&read(dir.path()).unwrap()["d.yaml"], Found::Bad(why) if why.contains("longer than")));
    }

    #[test]
    fn security_what_others_can_write_is_not_applied() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o700);
        let at = |name: &str| dir.path().join(name);
        put(&at("theirs.yaml"), "a: 1");
        mode(&at("theirs.yaml"), 0o620);
        put(&at("target"), "a: 1");
        symlink(at("target"), at("link.yaml")).unwrap();
        nix::unistd::mkfifo(&at("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let found = read(dir.path()).unwrap();
        for (name, why) in [
            ("theirs.yaml", "can be written by other users"),
            ("link.yaml", "is a link: only files are applied"),
            ("pipe.yaml", "is not a file"),
        ] {
            assert_eq!(found[name], Found::Bad(why.into()), "{name}");
        }
        for open in [0o720, 0o702, 0o1777] {
            mode(dir.path(), open);
            let refused = read(dir.path()).unwrap_err().to_string();
            assert!(refused.contains("can be written by other users: nothing in it is applied"), "{refused}");
        }
        mode(dir.path(), 0o700);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(at("theirs.yaml"), Some(1000), None).unwrap();
            mode(&at("theirs.yaml"), 0o600);
            assert_eq!(read(dir.path()).unwrap()["theirs.yaml"], Found::Bad("belongs to another user".into()));
            std::os::unix::fs::chown(dir.path(), Some(1000), None).unwrap();
            assert!(read(dir.path()).unwrap_err().to_string().contains("belongs to another user"));
        }
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(dir.path(), elsewhere.path().join("manifests")).unwrap();
        assert!(read(&elsewhere.path().join("manifests")).is_err());
    }
}
