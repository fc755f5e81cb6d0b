//! Files that are replaced as a whole: whoever reads one finds the old content or the new, also after the machine lost power.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static WRITES: AtomicU64 = AtomicU64::new(0);

/// Replaces a file, which then has this mode.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    replace_together(&[(path, content)], mode)
}

/// The same with files that belong together. All are on the disk before the first one is replaced: whoever reads them meanwhile
/// finds some old and some new for a moment only, however slow the disk is.
pub fn replace_together(files: &[(&Path, &[u8])], mode: u32) -> io::Result<()> {
    let all: Vec<(PathBuf, &Path, &[u8])> =
        files.iter().map(|(path, content)| (temporary_of(path), *path, *content)).collect();
    let written = write(&all, mode);
    if written.is_err() {
        // On a full disk this is tried again and again, and each time another one would stay.
        for (temporary, ..) in &all {
            let _absent = fs::remove_file(temporary);
        }
    }
    written
}

/// The same by way of a name that the caller knows, and clears away if the machine goes down before the file has its own.
pub fn replace_by(temporary: PathBuf, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write(&[(temporary, path, content)], mode)
}

/// For what is written piece by piece under another name: has it on the disk, then gives it its own.
pub fn give_name(file: &File, temporary: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(temporary, path)?;
    sync_parent(path)
}

/// For what is made again if it is lost: whoever reads the file finds the old content or the new, but after a loss of power
/// perhaps nothing. Waits for no disk.
pub fn replace_unsynced(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary_of(path);
    let write = || -> io::Result<()> {
        create(&temporary, mode)?.write_all(content)?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _absent = fs::remove_file(&temporary);
    })
}

/// Of this write alone: threads of one process write the same file, too.
fn temporary_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.{}", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

fn write(all: &[(PathBuf, &Path, &[u8])], mode: u32) -> io::Result<()> {
    for (temporary, _, content) in all {
        let mut file = create(temporary, mode)?;
        file.write_all(content)?;
        file.sync_all()?;
    }
    for (temporary, path, _) in all {
        fs::rename(temporary, path)?;
    }
    // Who is told that it is written acts on it: the name must not be lost after that.
    all.iter().try_for_each(|(_, path, _)| sync_parent(path))
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    // What an ended process of the same number left behind may have another mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn of_files_that_belong_together_none_is_replaced_before_all_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let (key, certificate) = (dir.path().join("a.key"), dir.path().join("missing/a.crt"));
        replace(&key, b"old", 0o600).unwrap();
        let new = b"new".as_slice();
        replace_together(&[(key.as_path(), new), (certificate.as_path(), new)], 0o600).unwrap_err();
        assert_eq!(fs::read(&key).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn security_what_was_left_behind_lends_no_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (path, left) = (dir.path().join("key"), dir.path().join("left"));
        fs::write(&left, "half").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        replace_by(left, &path, b"secret", 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn files_are_replaced_without_waiting_and_by_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let (path, pieces) = (dir.path().join("a"), dir.path().join("pieces"));
        for text in ["first", "second"] {
            replace_unsynced(&path, text.as_bytes(), 0o600).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        replace_unsynced(&dir.path().join("missing/a"), b"", 0o600).unwrap_err();
        fs::create_dir(dir.path().join("directory")).unwrap();
        replace_unsynced(&dir.path().join("directory"), b"", 0o600).unwrap_err();
        let mut file = File::create(&pieces).unwrap();
        for piece in ["one, ", "two"] {
            file.write_all(piece.as_bytes()).unwrap();
        }
        give_name(&file, &pieces, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one, two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_file_that_is_replaced_is_another_one_of_the_same_name() {
        let dir = tempfile::tempdir().unwrap();
        let (path, kept) = (dir.path().join("a"), dir.path().join("kept"));
        replace(&path, b"a long text", 0o644).unwrap();
        fs::hard_link(&path, &kept).unwrap();
        replace_by(dir.path().join("new"), &path, b"short", 0o600).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&kept).unwrap()), (b"short".to_vec(), b"a long text".to_vec()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
