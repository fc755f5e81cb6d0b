//! The committer: decides what writers ask for and makes it durable.
//!
//! Flow of a write: [`Committer::submit`] queues a command. The committer's thread takes what is queued -> decides it on a view
//! that only it sees, encoding the effects into a batch -> writes and syncs the batch as one frame -> publishes the view ->
//! has everyone answered on their own runtime. So batches grow with the number of writers, and a lone writer
//! is written at once. One thread decides, because what deciding touches (the newest part of the index, small pieces of memory)
//! is dear to share: on two cores it costs half as much again where writers decide for themselves while the disk is busy.
//!
//! Invariants: batches are written and published in the order in which they were decided, each only after the one before
//! it is on disk. If a write fails, the view goes back to what is published.

use super::batch::{Answers, Batch};
use super::commit_delay::CommitDelay;
use super::directory::{self, Listing};
use super::index::View;
use super::log::Log;
use super::queue::{Command, Next, Place};
use super::{Options, Shared, snapshot};
use crate::Result;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Revisions that are forgotten with one batch after a compaction.
const TRIM_STEP: usize = 2048;
/// Callers that the committer answers itself.
const FEW: usize = 4;
/// Callers that are answered on two threads of theirs.
const MANY: usize = 16;
/// So many times as large as the last snapshot the log becomes until the next.
const SNAPSHOTS: u64 = 2;

pub(super) struct Committer {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
    /// Where the callers run, if that is known to go on by itself.
    callers: Option<Handle>,
}

/// Where commands are decided.
struct Tip {
    view: View,
    /// Commands that did not fit into the last batch.
    left: VecDeque<(Command, Place)>,
}

/// The log and what follows from its growth.
struct Writer {
    log: Log,
    options: Options,
    snapshots: Arc<Snapshots>,
    /// Bytes in log files that the newest snapshot does not cover.
    log_bytes: u64,
}

/// What the committer and the thread that writes a snapshot share.
#[derive(Default)]
pub(super) struct Snapshots {
    running: AtomicBool,
    stop: AtomicBool,
    pub(super) last_size: AtomicU64,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Tells writers and watches when the committer panics.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.close();
            self.0.closed.cancel();
        }
    }
}

impl Tip {
    /// Decides what is queued, as far as the batch has room.
    fn decide(&mut self, batch: &mut Batch, shared: &Shared) {
        while !batch.is_full() {
            let Some((command, place)) = self.left.pop_front() else {
                if shared.queue.take(&mut self.left) {
                    continue;
                }
                break;
            };
            batch.decide(&mut self.view, command, place);
        }
    }

    /// What time brings: leases that end, and history that may be forgotten.
    fn pass_time(&mut self, batch: &mut Batch, shared: &Shared) {
        for id in shared.leases.expired() {
            batch.end_lease(&mut self.view, id);
        }
        if self.view.needs_trim() {
            self.view.trim(TRIM_STEP);
        }
    }
}

impl Committer {
    pub(super) fn new(
        shared: Arc<Shared>,
        log: Log,
        options: Options,
        snapshots: Arc<Snapshots>,
        log_bytes: u64,
    ) -> Committer {
        let writer = Writer { log, options, snapshots, log_bytes };
        let callers =
            Handle::try_current().ok().filter(|runtime| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread);
        Committer { shared, writer: Mutex::new(writer), callers }
    }

    /// Queues a command for the next batch.
    pub(super) fn submit(&self, command: Command, place: Place) -> Result<()> {
        if self.shared.queue.push(command, place)? {
            self.shared.queue.wake();
        }
        Ok(())
    }

    /// Commits until the queue is stopped and empty.
    pub(super) fn run(&self) {
        let _alarm = Alarm(&self.shared);
        let mut tip = Tip { view: View::clone(&self.shared.view.load()), left: VecDeque::new() };
        let mut delay = CommitDelay::default();
        let mut frame = Vec::new();
        loop {
            let deadline = if tip.view.needs_trim() { Some(Instant::now()) } else { self.shared.leases.next_look() };
            match self.shared.queue.wait(1, deadline) {
                Next::Write => delay.gather(&self.shared.queue),
                Next::Due => {}
                Next::Stopped => break,
            }
            let mut batch = Batch::new(frame);
            tip.decide(&mut batch, &self.shared);
            tip.pass_time(&mut batch, &self.shared);
            self.shared.queue.taken(batch.len());
            frame = self.finish(batch, &mut tip.view, &mut delay);
        }
    }

    /// The number of the frame that is written next. Waits for one that is being written.
    pub(super) fn next_sequence(&self) -> u64 {
        self.writer.lock().log.next_sequence()
    }

    /// Ends what goes on in the background. The committer is gone.
    pub(super) fn end(&self) {
        let snapshots = self.writer.lock().snapshots.clone();
        snapshots.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = snapshots.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Makes a batch durable, shows the view that it led to and answers. Returns the frame's buffer.
    fn finish(&self, mut batch: Batch, view: &mut View, delay: &mut CommitDelay) -> Vec<u8> {
        let mut writer = self.writer.lock();
        let started = Instant::now();
        let durable = writer.write(&mut batch);
        delay.synced(started.elapsed(), batch.len(), self.shared.queue.pending());
        let mut replaced = None;
        match &durable {
            Ok(()) => {
                let (publish, view) = (&self.shared.view, Arc::new(view.clone()));
                self.shared.watchers.publish(&batch.commits, || replaced = Some(publish.swap(view)));
                self.shared.leases.update(&batch.granted, &batch.ended);
            }
            Err(error) => {
                *view = View::clone(&self.shared.view.load());
                tracing::warn!(%error, writes = batch.commits.len(), "batch refused");
                self.shared.leases.postpone(&batch.ended);
            }
        }
        for reply in batch.captures.drain(..) {
            let _ = reply.send(Ok((self.shared.view.load_full(), writer.log.next_sequence())));
        }
        let (answers, frame) = batch.answers(durable);
        self.answer(answers);
        // Taken apart where it was put together: memory that another thread frees costs more.
        drop(replaced);
        if writer.is_snapshot_due() {
            writer.start_snapshot(&self.shared);
        }
        frame
    }

    /// Many are answered on threads of theirs: each one woken from here would take the processor from the next batch.
    fn answer(&self, mut answers: Answers) {
        let Some(callers) = self.callers.as_ref().filter(|_| answers.len() > FEW) else { return };
        if answers.len() > MANY {
            let half = answers.split_off_half();
            callers.spawn(async move { drop(half) });
        }
        callers.spawn(async move { drop(answers) });
    }
}

impl Writer {
    fn write(&mut self, batch: &mut Batch) -> Result<()> {
        if !Log::is_empty_frame(&batch.frame) {
            self.log_bytes += self.log.append(&mut batch.frame)?;
        }
        Ok(())
    }

    fn is_snapshot_due(&self) -> bool {
        let due = self.options.snapshot_after.max(SNAPSHOTS * self.snapshots.last_size.load(Ordering::Relaxed));
        self.log_bytes >= due && !self.snapshots.running.load(Ordering::Acquire)
    }

    /// Starts the next log file and writes what is published in the background, to take the place of the files before.
    fn start_snapshot(&mut self, shared: &Arc<Shared>) {
        let covered = std::mem::take(&mut self.log_bytes);
        if let Err(error) = self.log.rotate() {
            tracing::warn!(%error, "no new log file; snapshot put off");
            // Try again after some more has been written.
            self.log_bytes = covered / 2;
            return;
        }
        let view = shared.view.load_full();
        let (dir, store_id, sequence) = (shared.dir.clone(), self.log.store_id(), self.log.next_sequence());
        let snapshots = self.snapshots.clone();
        snapshots.running.store(true, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use crate::embedded::{Options, QUEUED_WRITES};
    use crate::{EmbeddedStore, Op, Store, Txn};
    use futures_util::FutureExt;
    use std::time::{Duration, Instant};

    #[tokio::test]
    async fn security_writers_that_leave_do_not_fill_the_queue() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), Options::default()).unwrap();
        {
            // The disk stands still.
            let _writer = store.committer.writer.lock();
            for _ in 0..4 * QUEUED_WRITES {
                let write = store.txn(Txn::new().then(Op::put("/a", "x")));
                assert!(tokio::task::coop::unconstrained(write).now_or_never().is_none());
            }
            assert_eq!(store.places.available_permits(), 0);
            assert!(store.shared.queue.pending() <= QUEUED_WRITES);
        }
        // All that was taken is carried out, and the places are free again.
        store.txn(Txn::new().then(Op::put("/b", "x"))).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.places.available_permits() < QUEUED_WRITES {
            assert!(Instant::now() < deadline, "{} places are free", store.places.available_permits());
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn leases_end_though_nobody_writes() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), Options::default()).unwrap();
        store.grant_lease(Duration::from_millis(1)).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while store.frames_written() < 2 {
            assert!(Instant::now() < deadline, "the lease is still there");
            tokio::task::yield_now().await;
        }
    }
}
