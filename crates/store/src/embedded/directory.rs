//! The store's directory: names, lock, and files that appear whole or not at all.
//!
//! - `LOCK`: held while a process has the store open; contains its pid.
//! - `log-<sequence>`: frames from that number on (16 hexadecimal digits).
//! - `snapshot-<sequence>`: the state before that frame.
//! - `*.tmp`: unfinished or not in use yet, removed at opening. `*.damaged`: set aside by a repair.

use super::frame::{FileHeader, LOG_MAGIC};
use crate::{Result, StoreError};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const LOCK: &str = "LOCK";
const LOG: &str = "log-";
const SNAPSHOT: &str = "snapshot-";
const TEMPORARY: &str = ".tmp";

/// The store's files, in order of their sequence.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) logs: Vec<(u64, PathBuf)>,
    pub(super) snapshots: Vec<(u64, PathBuf)>,
    temporary: Vec<PathBuf>,
    other: Vec<PathBuf>,
}

impl Listing {
    pub(super) fn read(dir: &Path) -> Result<Listing> {
        let io = |error: std::io::Error| StoreError::io(dir, &error);
        let mut listing = Listing::default();
        for entry in fs::read_dir(dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            if name.ends_with(TEMPORARY) && (name.starts_with(LOG) || name.starts_with(SNAPSHOT)) {
                listing.temporary.push(path);
            } else if let Some(sequence) = name.strip_prefix(LOG).and_then(sequence) {
                listing.logs.push((sequence, path));
            } else if let Some(sequence) = name.strip_prefix(SNAPSHOT).and_then(sequence) {
                listing.snapshots.push((sequence, path));
            } else if name != LOCK && name != "lost+found" {
                listing.other.push(path);
            }
        }
        listing.logs.sort();
        listing.snapshots.sort();
        Ok(listing)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.snapshots.is_empty()
    }

    /// Refuses to make a store among files of someone else.
    pub(super) fn check_vacant(&self) -> Result<()> {
        match self.other.first() {
            Some(file) => Err(StoreError::Foreign { file: file.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn remove_temporary(&self) -> Result<()> {
        self.temporary.iter().try_for_each(|path| remove(path))
    }

    /// Removes what a snapshot at `sequence` made superfluous.
    pub(super) fn remove_before(&self, sequence: u64) -> Result<()> {
        for (at, path) in &self.snapshots {
            if *at < sequence {
                remove(path)?;
            }
        }
        // A log file reaches to where the next one starts.
        for pair in self.logs.windows(2) {
            if pair[1].0 <= sequence {
                remove(&pair[0].1)?;
            }
        }
        Ok(())
    }
}

fn sequence(digits: &str) -> Option<u64> {
    if digits.len() != 16 || digits.bytes().any(|b| !b.is_ascii_hexdigit() || b.is_ascii_uppercase()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

pub(super) fn log_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{LOG}{sequence:016x}"))
}

/// Where the next log file is prepared. The name is that of an unfinished one, so an opening removes it.
pub(super) fn spare_path(dir: &Path) -> PathBuf {
    dir.join(format!("{LOG}spare{TEMPORARY}"))
}

pub(super) fn snapshot_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{SNAPSHOT}{sequence:016x}"))
}

/// Makes the directory, with its parents, if it is not there. Only its owner may read it: it holds secrets.
pub(super) fn create(dir: &Path) -> Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let io = |error: std::io::Error| StoreError::io(dir, &error);
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        other => other.map_err(io)?,
    }
    sync_dir(parent_of(dir))
}

/// The lock on a directory; released when dropped, and by the kernel when the process dies.
pub(super) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    pub(super) fn take(dir: &Path) -> Result<Lock> {
        let path = dir.join(LOCK);
        let io = |error: std::io::Error| StoreError::io(&path, &error);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(io)?;
        let mut holder = String::new();
        file.read_to_string(&mut holder).map_err(io)?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                return Err(StoreError::Locked { dir: dir.into(), pid: holder.trim().parse().unwrap_or(0) });
            }
            Err((_, errno)) => return Err(io(errno.into())),
        };
        file.set_len(0).map_err(io)?;
        use std::io::Seek;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Lock { _file: file })
    }
}

/// Creates a file that gets its name only once `fill` is done and everything is on disk.
pub(super) fn create_whole(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    let temporary = PathBuf::from(name);
    let io = |error: std::io::Error| StoreError::io(path, &error);
    let create = || -> Result<File> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary).map_err(io)?;
        fill(&mut file)?;
        file.sync_all().map_err(io)?;
        give_name(&temporary, path)?;
        Ok(file)
    };
    create().inspect_err(|_| {
        // Best effort: the next opening removes what is left.
        let _ = fs::remove_file(&temporary);
    })
}

/// Renames a file whose content is on disk. After an error no file has the new name, as far as that can be helped.
pub(super) fn give_name(temporary: &Path, path: &Path) -> Result<()> {
    fs::rename(temporary, path).map_err(|error| StoreError::io(path, &error))?;
    sync_dir(parent_of(path)).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

pub(super) fn create_log(dir: &Path, header: FileHeader) -> Result<(PathBuf, File)> {
    let path = log_path(dir, header.sequence);
    let file = create_whole(&path, |file| {
        file.write_all(&header.encode(LOG_MAGIC)).map_err(|error| StoreError::io(&path, &error))
    })?;
    Ok((path, file))
}

pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io(path, &error)),
        _ => Ok(()),
    }
}

/// Makes created, renamed and removed names durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    let io = |error: std::io::Error| StoreError::io(dir, &error);
    File::open(dir).map_err(io)?.sync_all().map_err(io)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
