//! Waiting for a file that somebody else writes: a log that is followed costs nothing while nothing is said.

#![allow(unsafe_code, reason = "inotify; every block states why it is sound")]

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Where the kernel has no watches left, or there is nothing to watch yet, the place is looked at this often.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// An event is a header of this many bytes, the last four of them the length of the name that follows.
const HEADER: usize = size_of::<libc::inotify_event>();

/// What happened to the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// There is more of it, or another one in its place.
    Written,
    /// A writer has closed it. Also what a look without a watch comes to.
    Closed,
}

/// Tells when a file changes or another one takes its place.
pub struct FileWatch {
    inotify: Option<AsyncFd<File>>,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    watched: HashSet<PathBuf>,
    /// What the kernel does not watch, and for which events it should.
    unwatched: HashMap<PathBuf, u32>,
}

impl FileWatch {
    /// Watches `path`. What is written from now on is noticed.
    pub fn new(path: &Path) -> Self {
        let watch = Self::of_directories();
        if let Some(parent) = path.parent() {
            watch.add(parent, libc::IN_CREATE | libc::IN_MOVED_TO);
        }
        watch.add_file(path);
        watch
    }

    /// Watches nothing yet.
    pub fn of_directories() -> Self {
        let inotify = start().inspect_err(|error| tracing::debug!(%error, "no inotify")).ok();
        Self { inotify, places: Mutex::default() }
    }

    /// Tells of what comes to and goes from a directory as well.
    pub fn add_directory(&self, path: &Path) {
        self.add(path, libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_DELETE | libc::IN_MOVED_FROM);
    }

    /// Tells of what comes to and goes from a directory, and of files in it that were written or given to others. Asked for
    /// again, it watches the directory that is there now.
    pub fn add_directory_of_files(&self, path: &Path) {
        let comes_and_goes = libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_DELETE | libc::IN_MOVED_FROM;
        self.add(path, comes_and_goes | libc::IN_CLOSE_WRITE | libc::IN_ATTRIB);
    }

    /// Watches the file that is at `path` now as well.
    pub fn add_file(&self, path: &Path) {
        self.add(path, libc::IN_MODIFY | libc::IN_CLOSE_WRITE);
    }

    fn add(&self, path: &Path, events: u32) {
        let Some(inotify) = &self.inotify else { return };
        let mut places = self.places.lock();
        let added = watch(inotify, path, events);
        let was_unwatched = places.unwatched.remove(path).is_some();
        places.watched.remove(path);
        match added {
            Ok(()) => drop(places.watched.insert(path.to_owned())),
            // What went away again: the directory that it was in tells about the next one.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && path.parent().is_some_and(|parent| places.watched.contains(parent)) => {}
            Err(error) => {
                if !was_unwatched {
                    tracing::debug!(path = %path.display(), %error, "not watched, will be looked at now and then");
                }
                places.unwatched.insert(path.to_owned(), events);
            }
        }
    }

    /// Waits for the next change. What comes in quick succession is told once.
    pub async fn changed(&self) -> Change {
        let told = async {
            match &self.inotify {
                Some(inotify) => next(inotify).await,
                None => None,
            }
        };
        if self.places.lock().unwatched.is_empty() {
            return match told.await {
                Some(change) => change,
                None => self.look().await,
            };
        }
        tokio::select! {
            Some(change) = told => change,
            change = self.look() => change,
        }
    }

    /// Some time later, without having been told of anything. What is not there has not changed either.
    async fn look(&self) -> Change {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let unwatched = self.places.lock().unwatched.clone();
            unwatched.iter().for_each(|(path, events)| self.add(path, *events));
            if unwatched.is_empty() || unwatched.keys().any(|path| path.exists()) {
                return Change::Closed;
            }
        }
    }
}

fn watch(inotify: &AsyncFd<File>, path: &Path, events: u32) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the descriptor is open and the name ends with a zero; both outlive the call.
    match unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), name.as_ptr(), events) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next change; none where the kernel does not tell.
async fn next(inotify: &AsyncFd<File>) -> Option<Change> {
    let mut events = [0; 4096];
    loop {
        let mut ready = inotify.readable().await.ok()?;
        match ready.try_io(|file| file.get_ref().read(&mut events)) {
            Ok(Ok(length)) => return Some(change(&events[..length])),
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return None,
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

fn start() -> io::Result<AsyncFd<File>> {
    // SAFETY: no pointers; the result is checked.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: a file keeps its descriptor, the same one, open for as long as it lives.
    Ok(unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?)
}

/// What the events come to.
fn change(mut events: &[u8]) -> Change {
    while let Some(header) = events.get(..HEADER) {
        let word = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        if word(4) & libc::IN_CLOSE_WRITE != 0 {
            return Change::Closed;
        }
        events = events.get(HEADER + word(12) as usize..).unwrap_or_default();
    }
    Change::Written
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn writes_ends_and_successors_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut file = File::create(&path).unwrap();
        let watch = FileWatch::new(&path);
        file.write_all(b"x").unwrap();
        assert_eq!(watch.changed().await, Change::Written);
        std::fs::write(dir.path().join("other"), "").unwrap();
        assert_eq!(watch.changed().await, Change::Written, "the directory has one more");
        drop(file);
        assert_eq!(watch.changed().await, Change::Closed);
        std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
        let mut file = File::create(&path).unwrap();
        assert_eq!(watch.changed().await, Change::Written);
        watch.add_file(&path);
        file.write_all(b"x").unwrap();
        assert_eq!(watch.changed().await, Change::Written);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_watched_is_looked_at_now_and_then() {
        let dir = tempfile::tempdir().unwrap();
        let (file, inside) = (dir.path().join("a"), dir.path().join("a/b"));
        std::fs::write(&file, "").unwrap();
        let watch = FileWatch::of_directories();
        for path in [&inside, &dir.path().join("missing")] {
            watch.add_directory(path);
        }
        assert!(tokio::time::timeout(10 * POLL_INTERVAL, watch.changed()).await.is_err(), "nothing is there");
        assert_eq!(watch.places.lock().unwatched.len(), 2);
        // From then on it is watched.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir(dir.path().join("missing")).unwrap();
        assert_eq!(watch.changed().await, Change::Closed);
        assert!(watch.places.lock().unwatched.is_empty());
        std::fs::write(inside.join("c"), "").unwrap();
        assert_eq!(watch.changed().await, Change::Written);
        // What was below a directory that is watched, and is gone, is that directory's to tell of.
        let gone = inside.join("gone");
        watch.add_directory(&gone);
        assert!(watch.places.lock().unwatched.is_empty());
    }
}
