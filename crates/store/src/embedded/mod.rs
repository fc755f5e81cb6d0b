//! The embedded store: an in-memory multi-version index and a durable log in one directory.
//!
//! Flow of a write: [`EmbeddedStore::txn`] -> [`queue`] -> [`committer`] (decide into a [`batch`]; log, sync, publish, answer)
//! -> [`watchers`]. A read loads the published [`index::View`] and needs nothing else.
//! Opening: [`recover`] reads the newest snapshot and the log after it.

mod index;

mod queue;

mod batch;
mod commit_delay;
mod committer;
mod leases;
mod transaction;
mod watchers;

mod directory;
mod frame;
mod log;
mod record;
mod recover;
mod snapshot;
mod spare;

mod tools;

pub use recover::TornTail;
pub use tools::{
    GoOn, Imported, Repaired, Report, USUALLY_LATER, backup, check, condense, contents, import, repair, restore,
};

use crate::{
    LeaseId, Op, Range, RangeResult, Result, Revision, SnapshotStream, Store, StoreError, Txn, TxnResult, Watch,
    WatchStream,
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use committer::{Committer, Snapshots};
use directory::{Listing, Lock};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use index::View;
use leases::Leases;
use log::Log;
use queue::{Command, Queue, Reply};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use watchers::Watchers;

/// Writers that may wait for the committer; more wait for a place.
const QUEUED_WRITES: usize = 4096;
/// Pieces of a backup that may wait for a slow reader.
const BACKUP_PIECES: usize = 4;

#[derive(Clone, Debug)]
pub struct Options {
    /// Write a snapshot once the log has grown by this many bytes (and by twice the size of the last snapshot).
    pub snapshot_after: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { snapshot_after: 64 << 20 }
    }
}

/// A store in a directory of this machine, open in this process only.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    committer: Arc<Committer>,
    thread: Option<std::thread::JoinHandle<()>>,
    store_id: u64,
    _lock: Lock,
}

/// What the committer, readers and watches share.
struct Shared {
    dir: PathBuf,
    view: ArcSwap<View>,
    queue: Queue,
    watchers: Watchers,
    leases: Leases,
    closed: CancellationToken,
}

impl EmbeddedStore {
    /// Opens the store in `dir`, or makes one there. Reads everything into memory: call it where blocking is fine.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<EmbeddedStore> {
        let dir = dir.as_ref();
        directory::create(dir)?;
        // Before the lock, which leaves a file: someone else's directory stays as it is.
        let listing = Listing::read(dir)?;
        if listing.is_empty() {
            listing.check_vacant()?;
        }
        let lock = Lock::take(dir)?;
        let mut log_bytes = 0;
        let snapshots = Arc::new(Snapshots::default());
        let (view, log) = match recover::recover(dir)? {
            None => {
                Listing::read(dir)?.remove_temporary()?;
                (View::new(), Log::create(dir, random_number(), 1, options.snapshot_after)?)
            }
            Some(found) => {
                if let Some(torn) = &found.torn {
                    tracing::info!(file = %torn.file.display(), offset = torn.offset, "cut an unfinished write");
                }
                let listing = Listing::read(dir)?;
                listing.remove_temporary()?;
                if let Some((_, size)) = &found.snapshot {
                    snapshots.last_size.store(*size, Ordering::Relaxed);
                }
                if let Some((sequence, _)) = listing.snapshots.last() {
                    listing.remove_before(*sequence)?;
                }
                log_bytes = found.logs.iter().map(|(_, len)| *len).sum();
                let log = match found.logs.last() {
                    Some((path, end)) => {
                        Log::reopen(dir, path, found.store_id, *end, found.next_sequence, options.snapshot_after)?
                    }
                    None => Log::create(dir, found.store_id, found.next_sequence, options.snapshot_after)?,
                };
                (found.view, log)
            }
        };
        directory::sync_dir(dir)?;
        let store_id = log.store_id();
        let shared = Arc::new(Shared {
            dir: dir.into(),
            leases: Leases::new(&view),
            view: ArcSwap::from_pointee(view),
            queue: Queue::default(),
            watchers: Watchers::default(),
            closed: CancellationToken::new(),
        });
        let committer = Arc::new(Committer::new(shared.clone(), log, options, snapshots, log_bytes));
        let places = Arc::new(Semaphore::new(QUEUED_WRITES));
        let run = {
            let committer = committer.clone();
            move || committer.run()
        };
        let thread = std::thread::Builder::new().name("store-committer".into()).spawn(run);
        let thread = Some(thread.map_err(|error| StoreError::io(dir, &error))?);
        Ok(EmbeddedStore { shared, places, committer, thread, store_id, _lock: lock })
    }

    /// How many keys exist now.
    pub fn live_keys(&self) -> u64 {
        self.shared.view.load().live_keys()
    }

    /// How many frames the log has had: each was one sync.
    pub fn frames_written(&self) -> u64 {
        self.committer.next_sequence() - 1
    }

    async fn submit<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let gone = || StoreError::Unavailable("the store is closed".into());
        let place = self.places.clone().acquire_owned().await.map_err(|_| gone())?;
        let (reply, answer) = oneshot::channel();
        self.committer.submit(command(reply), place)?;
        answer.await.map_err(|_| StoreError::Unavailable("the committer has stopped".into()))?
    }
}

impl Drop for EmbeddedStore {
    /// Carries out what is queued, then lets the directory go.
    fn drop(&mut self) {
        self.shared.queue.stop();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(dir = %self.shared.dir.display(), "the committer panicked");
        }
        self.committer.end();
        self.shared.closed.cancel();
    }
}

impl Store for EmbeddedStore {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult>> {
        async move { self.shared.view.load_full().range(&range) }.boxed()
    }

    fn txn(&self, mut txn: Txn) -> BoxFuture<'_, Result<TxnResult>> {
        async move {
            txn.validate()?;
            txn.success.iter_mut().chain(&mut txn.failure).for_each(own_value);
            self.submit(|reply| Command::Txn(txn, reply)).await
        }
        .boxed()
    }

    fn watch(&self, watch: Watch) -> BoxFuture<'_, Result<WatchStream>> {
        async move { Ok(Box::pin(watchers::watch(&self.shared, watch)?) as WatchStream) }.boxed()
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            self.shared.watchers.request_progress();
            Ok(())
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        self.submit(move |reply| Command::Compact(revision, reply)).boxed()
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        async move { Ok(self.shared.view.load().revision) }.boxed()
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId>> {
        async move {
            if ttl < Duration::from_millis(1) {
                return Err(StoreError::Invalid("a lease's time to live is at least a millisecond".into()));
            }
            let id = LeaseId::new((random_number() >> 1).max(1) as i64).expect("not zero: at least 1");
            self.submit(|reply| Command::GrantLease(id, ttl, reply)).await
        }
        .boxed()
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration>> {
        async move { self.shared.leases.keep_alive(lease) }.boxed()
    }

    fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<'_, Result<()>> {
        self.submit(move |reply| Command::RevokeLease(lease, reply)).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<SnapshotStream>> {
        async move {
            let (view, sequence) = self.submit(Command::Capture).await?;
            let (pieces, stream) = mpsc::channel(BACKUP_PIECES);
            let (store_id, dir) = (self.store_id, self.shared.dir.clone());
            tokio::task::spawn_blocking(move || {
                let mut out = PieceWriter { pieces: &pieces };
                if let Err(error) = snapshot::write(&view, store_id, sequence, &mut out) {
                    // The reader may be gone; then nobody wants the error either.
                    let _ = pieces.blocking_send(Err(StoreError::io(&dir, &error)));
                }
            });
            Ok(Box::pin(tokio_stream::wrappers::ReceiverStream::new(stream)) as SnapshotStream)
        }
        .boxed()
    }

    fn size(&self) -> BoxFuture<'_, Result<Option<u64>>> {
        let dir = self.shared.dir.clone();
        async move {
            let counted = tokio::task::spawn_blocking(move || {
                let unreadable = |error| StoreError::io(&dir, &error);
                let mut bytes = 0;
                for entry in std::fs::read_dir(&dir).map_err(unreadable)? {
                    match entry.and_then(|entry| entry.metadata()) {
                        Ok(found) => bytes += found.len(),
                        // Old files go while they are counted.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(error) => return Err(StoreError::io(&dir, &error)),
                    }
                }
                Ok(Some(bytes))
            });
            counted.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
        }
        .boxed()
    }
}

struct PieceWriter<'a> {
    pieces: &'a mpsc::Sender<Result<Bytes>>,
}

impl io::Write for PieceWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Ok(Bytes::copy_from_slice(bytes));
        self.pieces.blocking_send(piece).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies a value to its exact size, so that a caller's larger buffer does not stay in memory with it.
fn own_value(op: &mut Op) {
    if let Op::Put { value, .. } = op {
        *value = Bytes::from(Box::<[u8]>::from(&value[..]));
    }
}

/// Unpredictable enough for names; the standard library seeds its hashers from the system.
fn random_number() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
