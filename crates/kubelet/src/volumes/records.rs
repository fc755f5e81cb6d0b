//! Records beside volumes: what a later kubelet must know to take down what an earlier one has set up.

use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What an unfinished record is called.
pub(super) const UNFINISHED: &str = "json.new";

/// How much of a record is read: none is longer, but one that is damaged may be as large as the disk.
const MAX_SIZE: u64 = 1 << 20;

/// A record that cannot be read: somebody has a volume there, and it is not known which.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record {} of a volume cannot be read: {source}; the volume stays as it is until the record is mended, or until the volume \
     is unmounted by hand and the record removed",
    .path.display()
)]
struct Unread {
    path: PathBuf,
    source: io::Error,
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&text(path)?).map_err(io::Error::other)
}

/// What is written down, which may be damaged. What is no file is not waited for.
pub(super) fn text(path: &Path) -> io::Result<Vec<u8>> {
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(text)
}

/// None if nothing is written down. What cannot be read is not absent.
pub(super) fn find<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match read(path) {
        Ok(record) => Ok(Some(record)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(unread(path, error)),
    }
}

/// Says which record is not read, and what is to be done about it.
pub(super) fn unread(path: &Path, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), Unread { path: path.to_owned(), source })
}

/// Whether nothing is there.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Written in one step, so that it is there as a whole or not at all.
pub(super) fn write<T: Serialize>(record: &T, path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let text = serde_json::to_vec(record).map_err(io::Error::other)?;
    files::replace_by(path.with_extension(UNFINISHED), path, &text, 0o644)
}

/// Removes a record, and one that was begun beside it when a kubelet ended.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for path in [path.to_owned(), path.with_extension(UNFINISHED)] {
        match std::fs::remove_file(path) {
            Err(error) if !is_absent(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_what_is_no_record_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (large, pipe) = (dir.path().join("large.json"), dir.path().join("pipe.json"));
        std::fs::File::create(&large).unwrap().set_len(1 << 32).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        for (path, length) in [(&large, 1 << 20), (&pipe, 0)] {
            assert_eq!(text(path).unwrap().len(), length, "{}", path.display());
            assert!(find::<String>(path).is_err());
        }
    }

    #[test]
    fn a_record_that_is_not_read_is_named_and_one_that_was_begun_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/record.json");
        assert_eq!(find::<String>(&path).unwrap(), None);
        write(&"x", &path).unwrap();
        assert_eq!(find::<String>(&path).unwrap().as_deref(), Some("x"));
        std::fs::write(&path, "\"x").unwrap();
        let told = find::<String>(&path).unwrap_err().to_string();
        assert!(told.starts_with(&format!("the record {} of a volume cannot be read: ", path.display())), "{told}");
        assert!(told.ends_with("or until the volume is unmounted by hand and the record removed"), "{told}");
        std::fs::write(path.with_extension(UNFINISHED), "").unwrap();
        for _ in 0..2 {
            remove(&path).unwrap();
        }
        std::fs::remove_dir(path.parent().unwrap()).unwrap();
        // Not being able to look is not the same as finding nothing.
        std::os::unix::fs::symlink(&path, dir.path().join("a")).unwrap();
        assert!(find::<String>(&path).is_err());
    }
}
