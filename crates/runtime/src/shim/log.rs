//! Container logs in the CRI format: `<time> <stream> <F|P> <text>`, one line each.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::rooted::{Resolve, Rooted};
use crate::sys;

/// Longer lines are written in parts, each marked `P`; the last part is marked `F`.
const MAX_LINE: usize = 16 * 1024;

pub(crate) struct Log {
    path: PathBuf,
    file: File,
}

/// The unfinished last line of one stream.
#[derive(Default)]
pub(crate) struct Line {
    text: Vec<u8>,
}

impl Log {
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let file = open(&path)?;
        Ok(Self { path, file })
    }

    /// After a rotation: the old file was moved away, go on in a new one.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        Ok(())
    }

    pub(crate) fn write(&mut self, line: &mut Line, stream: &str, mut bytes: &[u8]) -> io::Result<()> {
        let mut output = Vec::with_capacity(bytes.len() + 64);
        let time = timestamp(crate::record::now());
        while !bytes.is_empty() {
            let room = MAX_LINE - line.text.len();
            match bytes.iter().take(room + 1).position(|b| *b == b'\n') {
                Some(end) => {
                    line.text.extend(&bytes[..end]);
                    bytes = &bytes[end + 1..];
                    entry(&mut output, &time, stream, 'F', &mut line.text);
                }
                None => {
                    let n = bytes.len().min(room);
                    line.text.extend(&bytes[..n]);
                    bytes = &bytes[n..];
                    if line.text.len() == MAX_LINE && !bytes.is_empty() {
                        entry(&mut output, &time, stream, 'P', &mut line.text);
                    }
                }
            }
        }
        self.file.write_all(&output)
    }

    /// At the end of a stream: what came after the last newline.
    pub(crate) fn finish(&mut self, line: &mut Line, stream: &str) -> io::Result<()> {
        if line.text.is_empty() {
            return Ok(());
        }
        let mut output = Vec::new();
        entry(&mut output, &timestamp(crate::record::now()), stream, 'P', &mut line.text);
        self.file.write_all(&output)
    }
}

/// Opens a log, or makes it. It is below directories of its pod and container, which other pods may be able to write to, and
/// what is written to it is the container's to say: no link of theirs may lead that to another file of the node's.
fn open(path: &Path) -> io::Result<File> {
    // `<logs>/<pod>/<container>/<n>.log`: where all logs are is the administrator's business.
    let base = path.ancestors().nth(3).unwrap_or(Path::new("/"));
    let below = sys::c_path(path.strip_prefix(base).map_err(io::Error::other)?)?;
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NONBLOCK | libc::O_NOCTTY;
    let root = Rooted::open(base)?;
    let file = File::from(sys::open_in_root(root.fd().as_fd(), &below, flags, 0o640, Resolve::NO_SYMLINKS)?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

fn entry(output: &mut Vec<u8>, time: &str, stream: &str, tag: char, text: &mut Vec<u8>) {
    output.extend(format!("{time} {stream} {tag} ").as_bytes());
    output.append(text);
    output.push(b'\n');
}

/// RFC 3339 with nanoseconds, in UTC.
pub(crate) fn timestamp(nanos: i64) -> String {
    let (seconds, fraction) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil date from days since 1970, by eras of 400 years that begin in March.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{fraction:09}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_rfc3339() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00.000000001Z"),
            (1_767_225_599_999_999_999, "2025-12-31T23:59:59.999999999Z"),
        ] {
            assert_eq!(timestamp(nanos), text);
        }
    }

    /// Pods that collect logs can write where they are, and a container says what is in its log.
    #[test]
    fn security_links_among_logs_are_not_written_through() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("etc/0.log");
        let container = directory.path().join("logs/pod/container");
        std::fs::create_dir_all(&container).unwrap();
        std::fs::create_dir(directory.path().join("etc")).unwrap();
        let path = container.join("0.log");
        let mut log = Log::open(path.clone()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0, "not for everybody");
        std::fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(log.reopen().is_err() && Log::open(path.clone()).is_err());
        std::fs::remove_dir_all(&container).unwrap();
        symlink(directory.path().join("etc"), &container).unwrap();
        assert!(log.reopen().is_err() && Log::open(path).is_err());
        assert!(!victim.exists());
        // Where all logs are may be another place.
        symlink(directory.path().join("logs"), directory.path().join("elsewhere")).unwrap();
        std::fs::create_dir(directory.path().join("logs/pod/other")).unwrap();
        Log::open(directory.path().join("elsewhere/pod/other/0.log")).unwrap();
    }

    #[test]
    fn lines_are_split_and_joined() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut log = Log::open(path.clone()).unwrap();
        let mut line = Line::default();
        for part in ["one\ntw", "o\n", "", "tail"] {
            log.write(&mut line, "stdout", part.as_bytes()).unwrap();
        }
        log.write(&mut line, "stdout", &vec![b'x'; MAX_LINE]).unwrap();
        log.write(&mut line, "stdout", b"\n").unwrap();
        log.write(&mut line, "stderr", b"end").unwrap();
        log.finish(&mut line, "stderr").unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let entries: Vec<(&str, usize)> =
            text.lines().map(|l| (&l[31..39], l.splitn(4, ' ').nth(3).unwrap().len())).collect();
        assert_eq!(
            entries,
            [("stdout F", 3), ("stdout F", 3), ("stdout P", MAX_LINE), ("stdout F", 4), ("stderr P", 3)]
        );
    }
}
