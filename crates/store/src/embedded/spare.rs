//! The next log file, written with zeros ahead of its use.
//!
//! A file that grows costs two trips to the disk per sync: the data, and the journal of the file system, which has the new
//! size. A frame written over zeros that are on disk already costs one. So while much is written, a thread prepares
//! the file that the log goes on in. It goes around the page cache, which has no use for zeros, and rests as long as it
//! works, because writers are waited for. Where that does not work or room is scarce there is no spare, and the log grows.

use super::directory;
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a page of the page cache holds, and what direct writes are aligned to.
pub(super) const PAGE: usize = 4096;
/// Of a spare, at most.
const LARGEST: u64 = 32 << 20;
/// Written at once: short, since a frame may have to wait for it.
const PIECE: usize = 256 << 10;
/// A spare is wanted where this part of one is written within [`BUSY_WINDOW`].
const PART: u64 = 4;
const BUSY_WINDOW: Duration = Duration::from_secs(1);
/// With larger frames, writing zeros takes the disk for longer than it saves.
const LARGE_FRAME: u64 = 128 << 10;
/// How many times the spare's size must be free.
const ROOM: u64 = 16;

pub(super) struct Spare {
    path: PathBuf,
    size: u64,
    /// Bytes that the log took, in how many frames, and when counting them began.
    written: u64,
    frames: u64,
    since: Instant,
    filling: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ready: Mutex<Option<File>>,
    stop: AtomicBool,
}

/// A file of zeros under a temporary name.
pub(super) struct Prepared {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) size: u64,
}

impl Spare {
    /// For the log of a store in `dir` that has about `log` bytes between two snapshots.
    pub(super) fn new(dir: &Path, log: u64) -> Spare {
        Spare {
            path: directory::spare_path(dir),
            size: (log / 2).clamp(PAGE as u64, LARGEST) / PAGE as u64 * PAGE as u64,
            written: 0,
            frames: 0,
            since: Instant::now(),
            filling: None,
            shared: Arc::default(),
        }
    }

    /// Notes that the log took a frame of so many bytes, and begins with a spare if it takes many.
    pub(super) fn note(&mut self, bytes: u64) {
        self.written += bytes;
        self.frames += 1;
        if self.written < self.size / PART {
            return;
        }
        let pays = self.since.elapsed() < BUSY_WINDOW && self.written / self.frames < LARGE_FRAME;
        (self.written, self.frames, self.since) = (0, 0, Instant::now());
        if pays && self.filling.as_ref().is_none_or(JoinHandle::is_finished) && self.shared.ready.lock().is_none() {
            self.begin();
        }
    }

    /// The spare, if there is one and `bytes` and the file's header fit in.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Prepared> {
        if bytes + PAGE as u64 > self.size {
            return None;
        }
        let file = self.shared.ready.lock().take()?;
        Some(Prepared { path: self.path.clone(), file, size: self.size })
    }

    fn begin(&mut self) {
        let (path, size, shared) = (self.path.clone(), self.size, self.shared.clone());
        let fill = move || match fill(&path, size, &shared.stop) {
            Ok(file) => *shared.ready.lock() = file,
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "no spare log file");
                // Best effort: the next opening removes what is left.
                let _ = fs::remove_file(&path);
            }
        };
        self.filling = thread::Builder::new().name("store-spare".into()).spawn(fill).ok();
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if self.filling.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(path = %self.path.display(), "preparing a log file panicked");
        }
        if self.shared.ready.lock().take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes a file of zeros. `None`: there is not enough room to spare.
fn fill(path: &Path, size: u64, stop: &AtomicBool) -> io::Result<Option<File>> {
    let space = nix::sys::statvfs::statvfs(path.parent().unwrap_or(path))?;
    if space.blocks_available().saturating_mul(space.fragment_size()) < ROOM * size {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true);
    let file = options.clone().create(true).truncate(true).mode(0o600).open(path)?;
    let direct = options.custom_flags(OFlag::O_DIRECT.bits()).open(path)?;
    let zeros = vec![0; PIECE + PAGE];
    let zeros = &zeros[zeros.as_ptr().align_offset(PAGE)..][..PIECE];
    let mut offset = 0;
    while offset < size {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the store is closing"));
        }
        let began = Instant::now();
        let piece = PIECE.min((size - offset) as usize);
        direct.write_all_at(&zeros[..piece], offset)?;
        offset += piece as u64;
        thread::sleep(began.elapsed());
    }
    file.sync_all()?;
    Ok(Some(file))
}
