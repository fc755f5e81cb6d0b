//! The log backend: one JSON event per line, in a file that is rotated by size and whose old parts go away by age and
//! number (`--audit-log-*`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use api::sort::CompactSort as _;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::config::LogConfig;

pub(super) struct Log {
    config: LogConfig,
    /// `None` is standard output.
    file: Option<Mutex<Current>>,
}

struct Current {
    file: File,
    size: u64,
}

impl Log {
    pub(super) fn open(config: LogConfig) -> anyhow::Result<Self> {
        let file = if config.path == Path::new("-") {
            None
        } else {
            let named = || format!("audit log {}", config.path.display());
            if let Some(directory) = config.path.parent() {
                std::fs::create_dir_all(directory).with_context(named)?;
            }
            let file = append(&config.path).with_context(named)?;
            let size = file.metadata().with_context(named)?.len();
            Some(Mutex::new(Current { file, size }))
        };
        Ok(Self { config, file })
    }

    /// Writes the lines, each whole and in one file.
    pub(super) fn write(&self, lines: &[Bytes]) -> std::io::Result<()> {
        let Some(file) = &self.file else {
            let mut out = std::io::stdout().lock();
            for line in lines {
                out.write_all(line)?;
                out.write_all(b"\n")?;
            }
            return Ok(());
        };
        let mut current = file.lock();
        for line in lines {
            let length = line.len() as u64 + 1;
            if self.config.max_bytes > 0 && current.size > 0 && current.size + length > self.config.max_bytes {
                *current = self.rotate()?;
            }
            let mut whole = Vec::with_capacity(line.len() + 1);
            whole.extend_from_slice(line);
            whole.push(b'\n');
            current.file.write_all(&whole)?;
            current.size += length;
        }
        Ok(())
    }

    /// Puts the full file aside under the time, and drops those that are too old or too many.
    fn rotate(&self) -> std::io::Result<Current> {
        let mut now = Timestamp::now();
        let mut aside = self.backup(now);
        // Names must follow each other even when rotations share a millisecond, or the newest would go first.
        let newest = self.parts().pop();
        while newest.as_ref().is_some_and(|newest| aside <= *newest) {
            now += jiff::SignedDuration::from_millis(1);
            aside = self.backup(now);
        }
        match std::fs::rename(&self.config.path, aside) {
            // Somebody else put it aside, or this did before there was no room for the next one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let file = append(&self.config.path)?;
        for path in self.too_many() {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "old audit log could not be removed");
            }
        }
        Ok(Current { file, size: 0 })
    }

    /// `audit.log` becomes `audit-2026-01-02T03-04-05.678.log`, as upstream's rotation names it.
    fn backup(&self, at: Timestamp) -> PathBuf {
        let (stem, extension) = self.name_parts();
        let text = at.to_zoned(jiff::tz::TimeZone::UTC).strftime("%Y-%m-%dT%H-%M-%S%.3f").to_string();
        self.config.path.with_file_name(format!("{stem}-{text}{extension}"))
    }

    fn name_parts(&self) -> (String, String) {
        let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let extension = text(self.config.path.extension());
        let extension = if extension.is_empty() { extension } else { format!(".{extension}") };
        (text(self.config.path.file_stem()), extension)
    }

    /// What was put aside so far, by name, which is by time.
    fn parts(&self) -> Vec<PathBuf> {
        let (stem, extension) = self.name_parts();
        let prefix = format!("{stem}-");
        let directory = self.config.path.parent().unwrap_or(Path::new("."));
        let mut parts: Vec<PathBuf> = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.strip_prefix(&prefix)
                    .and_then(|rest| rest.strip_suffix(&extension))
                    .is_some_and(|time| time.len() == "2026-01-02T03-04-05.678".len() && time.as_bytes()[10] == b'T')
            })
            .map(|entry| entry.path())
            .collect();
        parts.compact_sort();
        parts
    }

    /// The parts beyond the limits.
    fn too_many(&self) -> Vec<PathBuf> {
        let mut parts = self.parts();
        let surplus = match self.config.max_backups {
            0 => 0,
            keep => parts.len().saturating_sub(keep),
        };
        let now = SystemTime::now();
        let is_old = |path: &PathBuf| {
            let changed = std::fs::metadata(path).and_then(|meta| meta.modified());
            !self.config.max_age.is_zero()
                && changed.is_ok_and(|changed| now.duration_since(changed).is_ok_and(|age| age > self.config.max_age))
        };
        let tail = parts.split_off(surplus);
        parts.into_iter().chain(tail.into_iter().filter(is_old)).collect()
    }
}

/// Audit logs are for those who run the cluster: nobody else reads them.
fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn files(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_rotated_by_size_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("audit-unrelated.log"), "").unwrap();
        let config =
            LogConfig { path: dir.path().join("audit.log"), max_age: Duration::ZERO, max_backups: 2, max_bytes: 20 };
        let log = Log::open(config.clone()).unwrap();
        let line = |number: usize| Bytes::from(format!("line {number:04}"));
        for number in 0..9 {
            log.write(&[line(number)]).unwrap();
        }
        // Two lines fit in 20 bytes: the ninth is alone in the current file, two full ones are kept.
        let names = files(dir.path());
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(std::fs::read_to_string(&config.path).unwrap(), "line 0008\n");
        assert_eq!(std::fs::read_to_string(dir.path().join(&names[1])).unwrap(), "line 0006\nline 0007\n");
        // A restart goes on where the last one ended.
        drop(log);
        Log::open(config.clone()).unwrap().write(&[line(9)]).unwrap();
        assert_eq!(std::fs::read_to_string(&config.path).unwrap(), "line 0008\nline 0009\n");
    }

    #[test]
    fn a_file_that_was_put_aside_already_is_followed_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let config = LogConfig { path: path.clone(), max_age: Duration::ZERO, max_backups: 0, max_bytes: 10 };
        let log = Log::open(config).unwrap();
        log.write(&[Bytes::from("full 1234")]).unwrap();
        // There was no room for the next one when this was put aside.
        std::fs::rename(&path, dir.path().join("aside")).unwrap();
        for line in ["next", "more"] {
            log.write(&[Bytes::from(line)]).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "next\nmore\n");
    }

    #[test]
    fn old_parts_go() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("audit-2001-01-01T00-00-00.000.log");
        let file = File::create(&old).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
        let path = dir.path().join("audit.log");
        let config = LogConfig { path, max_age: Duration::from_secs(86_400), max_backups: 0, max_bytes: 10 };
        let log = Log::open(config).unwrap();
        log.write(&[Bytes::from("123456789"), Bytes::from("abc")]).unwrap();
        assert!(!old.exists());
        assert_eq!(files(dir.path()).len(), 2);
    }
}
