//! Values made from files, made anew when the files change.
//!
//! Looked at on use: a `stat` per file costs a microsecond, so nothing polls and no task owns a watch. A change that does
//! not parse is logged once and the last good value stays in use: a half-written file must not lock everybody out.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

type Load<T> = dyn Fn(&[PathBuf]) -> anyhow::Result<T> + Send + Sync;

pub struct Reloading<T> {
    files: Vec<PathBuf>,
    load: Box<Load<T>>,
    current: Mutex<(Vec<Stamp>, Arc<T>)>,
    reloads: Mutex<Reloads>,
}

/// How often changed files were read, and when last: with success, and without.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reloads {
    pub succeeded: u64,
    pub failed: u64,
    pub last_success: Option<SystemTime>,
    pub last_failure: Option<SystemTime>,
}

/// What tells one state of a file from the next; follows symbolic links, which is how volumes swap theirs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl<T> Reloading<T> {
    /// Loads for the first time; an error here is the caller's.
    pub fn new(
        files: Vec<PathBuf>,
        load: impl Fn(&[PathBuf]) -> anyhow::Result<T> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        // Stamps first: a file that changes while it is read is then read again.
        let stamps = stamps(&files);
        let value = load(&files)?;
        Ok(Self {
            files,
            load: Box::new(load),
            current: Mutex::new((stamps, Arc::new(value))),
            reloads: Mutex::default(),
        })
    }

    /// The value of the files as they are now. Two calls return the same `Arc` if nothing changed between them.
    pub fn get(&self) -> Arc<T> {
        let found = stamps(&self.files);
        let mut current = self.current.lock();
        if current.0 != found {
            current.0 = found;
            match (self.load)(&self.files) {
                Ok(value) => {
                    tracing::info!(files = ?self.files, "read again");
                    current.1 = Arc::new(value);
                    let mut reloads = self.reloads.lock();
                    reloads.succeeded += 1;
                    reloads.last_success = Some(SystemTime::now());
                }
                Err(error) => {
                    tracing::error!(files = ?self.files, "changed, but kept as it was: {error:#}");
                    let mut reloads = self.reloads.lock();
                    reloads.failed += 1;
                    reloads.last_failure = Some(SystemTime::now());
                }
            }
        }
        current.1.clone()
    }

    /// How it went so far.
    pub fn reloads(&self) -> Reloads {
        *self.reloads.lock()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        std::fs::metadata(path).map_or(Stamp::default(), |meta| Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_seen_and_mistakes_are_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("number");
        let write = |text: &str| {
            // As editors and volumes do it: a new file under the old name.
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), &file).unwrap();
        };
        write("1");
        let number =
            Reloading::new(vec![file.clone()], |files| Ok(std::fs::read_to_string(&files[0])?.parse::<u32>()?));
        let number = number.unwrap();
        let first = number.get();
        assert!(Arc::ptr_eq(&first, &number.get()));
        for (text, expected) in [("2", 2), ("two", 2), ("33", 33)] {
            write(text);
            assert_eq!(*number.get(), expected, "{text}");
        }
        let reloads = number.reloads();
        assert_eq!((reloads.succeeded, reloads.failed), (2, 1));
        assert!(reloads.last_success >= reloads.last_failure);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(*number.get(), 33);
        assert!(Reloading::new(vec![file], |files| Ok(std::fs::read(&files[0])?)).is_err());
    }
}
