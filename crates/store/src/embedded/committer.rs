//! The committer: the one thread that changes the store.
//!
//! Flow: [`Queue`] -> decide each command on a clone of the view -> one frame -> one sync -> publish ->
//! answer everyone. While it syncs, the next batch gathers, so throughput grows with the number of
//! writers and each of them waits for about two syncs.

use super::Shared;
use super::directory::{self, Listing};
use super::index::{Change, Lease, View};
use super::log::Log;
use super::{Options, record, snapshot, transaction};
use crate::{LeaseId, Result, Revision, StoreError, Txn, TxnResult};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Commands of one batch: bounds how long the first of them waits for the last to be decided.
const MAX_BATCH: usize = 2048;
/// Bytes of one frame, about; a snapshot or a reader holds one in memory.
const MAX_FRAME: usize = 8 << 20;
/// Revisions that are forgotten between two batches after a compaction.
const TRIM_STEP: usize = 2048;
/// The longest that a batch waits for writers who were just answered to come back.
const MAX_PATIENCE: Duration = Duration::from_micros(800);

pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

pub(super) enum Command {
    Txn(Txn, Reply<TxnResult>),
    Compact(Revision, Reply<()>),
    GrantLease(LeaseId, Duration, Reply<LeaseId>),
    RevokeLease(LeaseId, Reply<()>),
    /// A view that contains everything acknowledged so far, with the frame number that follows it.
    Capture(Reply<(Arc<View>, u64)>),
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
}

#[derive(Default)]
struct QueueState {
    commands: VecDeque<Command>,
    /// The committer sleeps until there are this many.
    wanted: usize,
    stopped: bool,
}

impl Queue {
    pub(super) fn push(&self, command: Command) -> Result<()> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        state.commands.push_back(command);
        if state.wanted > 0 && state.commands.len() >= state.wanted {
            state.wanted = 0;
            drop(state);
            self.filled.notify_one();
        }
        Ok(())
    }

    /// What is queued is still carried out.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.filled.notify_one();
    }

    /// Nobody will take commands any more: refuses new ones, and drops those that are queued, which tells their callers.
    fn close(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.commands.clear();
    }

    /// Waits for a command until `deadline`, then up to `patience` for `expected` of them. `None`: stopped.
    fn take(&self, deadline: Option<Instant>, expected: usize, patience: Duration) -> Option<Vec<Command>> {
        let mut state = self.state.lock();
        while state.commands.is_empty() {
            if state.stopped {
                return None;
            }
            state.wanted = 1;
            match deadline {
                None => self.filled.wait(&mut state),
                Some(deadline) => {
                    if self.filled.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        if !state.commands.is_empty() && state.commands.len() < expected && !state.stopped {
            state.wanted = expected;
            self.filled.wait_for(&mut state, patience);
        }
        state.wanted = 0;
        let count = state.commands.len().min(MAX_BATCH);
        Some(state.commands.drain(..count).collect())
    }
}

pub(super) struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) log: Log,
    pub(super) options: Options,
    pub(super) snapshots: Arc<Snapshots>,
    /// Bytes in log files that the newest snapshot does not cover.
    pub(super) log_bytes: u64,
}

/// What the committer and the thread that writes a snapshot share.
#[derive(Default)]
pub(super) struct Snapshots {
    running: AtomicBool,
    stop: AtomicBool,
    pub(super) last_size: AtomicU64,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Tells writers and watches that the committer is gone, also when it panicked.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.closed.cancel();
    }
}

/// Answers one command once it is known whether its batch is on disk.
type Answer = Box<dyn FnOnce(Result<()>) + Send>;

struct Batch {
    view: View,
    frame: Vec<u8>,
    commits: Vec<(Revision, Arc<[Change]>)>,
    answers: Vec<Answer>,
    captures: Vec<Reply<(Arc<View>, u64)>>,
    granted: Vec<(LeaseId, Duration)>,
    ended: Vec<LeaseId>,
}

impl Batch {
    fn commit(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let revision = self.view.revision.next();
        let changes = self.view.commit(revision, changes);
        record::txn(&mut self.frame, revision, &changes);
        self.commits.push((revision, changes));
    }

    fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T>) {
        self.answers.push(Box::new(move |durable| {
            // A caller that went away does not want to know.
            let _ = reply.send(durable.and(result));
        }));
    }
}

impl Committer {
    pub(super) fn run(mut self) {
        let _ending = Ending(self.shared.clone());
        let mut frame = Vec::new();
        let (mut expected, mut patience) = (0, Duration::ZERO);
        loop {
            let trimming = self.shared.view.load().needs_trim();
            let deadline = if trimming { Some(Instant::now()) } else { self.shared.leases.next_look() };
            let Some(commands) = self.shared.queue.take(deadline, expected, patience) else { break };
            let started = Instant::now();
            let count = commands.len();
            frame = self.commit(commands, frame);
            // Writers that were answered together come back together: wait for them, a little.
            expected = if count > 1 { count } else { 0 };
            patience = (started.elapsed() / 8).min(MAX_PATIENCE);
            self.trim();
            self.snapshot_if_due();
        }
        self.snapshots.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.snapshots.thread.lock().take() {
            let _ = thread.join();
        }
    }

    fn commit(&mut self, commands: Vec<Command>, frame: Vec<u8>) -> Vec<u8> {
        let mut commands = VecDeque::from(commands);
        let mut frame = frame;
        let mut first = true;
        while first || !commands.is_empty() {
            first = false;
            let mut batch = Batch {
                view: View::clone(&self.shared.view.load()),
                frame,
                commits: Vec::new(),
                answers: Vec::new(),
                captures: Vec::new(),
                granted: Vec::new(),
                ended: Vec::new(),
            };
            Log::start_frame(&mut batch.frame);
            for id in self.shared.leases.expired() {
                self.end_lease(&mut batch, id);
            }
            while batch.frame.len() < MAX_FRAME
                && let Some(command) = commands.pop_front()
            {
                self.decide(&mut batch, command);
            }
            frame = self.finish(batch);
        }
        frame
    }

    fn decide(&self, batch: &mut Batch, command: Command) {
        match command {
            Command::Txn(txn, reply) => {
                let result = transaction::apply(&mut batch.view, &txn).map(|(result, changes)| {
                    batch.commit(changes);
                    result
                });
                batch.answer(reply, result);
            }
            Command::Compact(revision, reply) => {
                let result = batch.view.compact(revision);
                if result.is_ok() {
                    record::compact(&mut batch.frame, revision);
                }
                batch.answer(reply, result);
            }
            Command::GrantLease(id, ttl, reply) => {
                let lease = Lease { ttl, keys: imbl::OrdSet::new() };
                batch.view.leases.insert(id, lease);
                record::lease_grant(&mut batch.frame, id, ttl);
                batch.granted.push((id, ttl));
                batch.answer(reply, Ok(id));
            }
            Command::RevokeLease(id, reply) => {
                let found = self.end_lease(batch, id);
                batch.answer(reply, if found { Ok(()) } else { Err(StoreError::LeaseNotFound(id)) });
            }
            Command::Capture(reply) => batch.captures.push(reply),
        }
    }

    fn end_lease(&self, batch: &mut Batch, id: LeaseId) -> bool {
        let Some(changes) = transaction::end_lease(&mut batch.view, id) else { return false };
        batch.commit(changes);
        record::lease_revoke(&mut batch.frame, id);
        batch.ended.push(id);
        true
    }

    /// Makes a batch durable, shows it and answers. Returns the frame's buffer.
    fn finish(&mut self, mut batch: Batch) -> Vec<u8> {
        let durable = match Log::is_empty_frame(&batch.frame) {
            true => Ok(0),
            false => self.log.append(&mut batch.frame),
        };
        // Dropped after the answers: taking apart what the batch replaced need not keep writers waiting.
        let mut replaced = None;
        let durable = match durable {
            Ok(bytes) => {
                self.log_bytes += bytes;
                let view = Arc::new(batch.view);
                self.shared.watchers.publish(&batch.commits, || replaced = Some(self.shared.view.swap(view)));
                self.shared.leases.update(&batch.granted, &batch.ended);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, writes = batch.commits.len(), "batch refused");
                self.shared.leases.postpone(&batch.ended);
                Err(error)
            }
        };
        for answer in batch.answers {
            answer(durable.clone());
        }
        for reply in batch.captures {
            let _ = reply.send(Ok((self.shared.view.load_full(), self.log.next_sequence())));
        }
        drop(replaced);
        batch.frame.shrink_to(MAX_FRAME);
        batch.frame
    }

    fn trim(&self) {
        let view = self.shared.view.load();
        if view.needs_trim() {
            let mut view = View::clone(&view);
            view.trim(TRIM_STEP);
            self.shared.view.store(Arc::new(view));
        }
    }

    fn snapshot_if_due(&mut self) {
        let due = self.options.snapshot_after.max(self.snapshots.last_size.load(Ordering::Relaxed));
        if self.log_bytes < due || self.snapshots.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let covered = std::mem::take(&mut self.log_bytes);
        if let Err(error) = self.log.rotate() {
            tracing::warn!(%error, "no new log file; snapshot put off");
            // Try again after some more has been written.
            self.log_bytes = covered / 2;
            self.snapshots.running.store(false, Ordering::Release);
            return;
        }
        let view = self.shared.view.load_full();
        let (dir, store_id, sequence) = (self.shared.dir.clone(), self.log.store_id(), self.log.next_sequence());
        let snapshots = self.snapshots.clone();
        let write = move || {
            let path = directory::snapshot_path(&dir, sequence);
            let written = snapshot::write_file(&path, &view, store_id, sequence, &snapshots.stop).and_then(|size| {
                snapshots.last_size.store(size, Ordering::Relaxed);
                Listing::read(&dir)?.remove_before(sequence)?;
                directory::sync_dir(&dir)
            });
            if let Err(error) = written
                && !snapshots.stop.load(Ordering::Relaxed)
            {
                // The log files stay, so nothing is lost; the next snapshot covers them too.
                tracing::warn!(%error, "snapshot failed");
            }
            snapshots.running.store(false, Ordering::Release);
        };
        match std::thread::Builder::new().name("store-snapshot".into()).spawn(write) {
            Ok(thread) => *self.snapshots.thread.lock() = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread for the snapshot");
                self.snapshots.running.store(false, Ordering::Release);
            }
        }
    }
}
