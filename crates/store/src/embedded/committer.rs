//! The committers: two threads that take turns in changing the store.
//!
//! Flow of a batch: [`Committer::gather`] decides commands on the tip, the newest view, and encodes their effects as one
//! frame -> [`Committer::finish`] writes and syncs the frame, publishes the view and answers everyone. While one committer
//! waits for the disk, the other gathers the next batch, and it gathers until the disk is free: so
//! batches grow with the number of writers, nobody waits for a timer, and a lone writer is written at once.
//!
//! Invariants: batches are written and published in the order in which they were decided, each only after the one before
//! it is on disk. If a write fails, the batch decided meanwhile stood on a view that never came to be, and is refused too.

use super::batch::Batch;
use super::directory::{self, Listing};
use super::index::View;
use super::log::Log;
use super::queue::{Command, Fill, Next};
use super::{Options, Shared, snapshot};
use crate::{Result, StoreError};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Revisions that are forgotten with one batch after a compaction.
const TRIM_STEP: usize = 2048;

pub(super) struct Committer {
    shared: Arc<Shared>,
    /// Poisoned by a panic: it may be half a transaction ahead.
    tip: std::sync::Mutex<Tip>,
    writer: Mutex<Writer>,
    /// Writes that failed. Counted before the log is free again.
    failures: AtomicU64,
}

/// Where the next command is decided: what is published, and the batch that is on its way to the disk.
struct Tip {
    view: View,
    /// Of [`Committer::failures`], those that the view knows of.
    failures: u64,
    /// Commands that did not fit into the last batch.
    taken: VecDeque<Command>,
}

/// The log and what follows from its growth.
struct Writer {
    log: Log,
    options: Options,
    snapshots: Arc<Snapshots>,
    /// Bytes in log files that the newest snapshot does not cover.
    log_bytes: u64,
    last_failure: Option<StoreError>,
}

/// What the committers and the thread that writes a snapshot share.
#[derive(Default)]
pub(super) struct Snapshots {
    running: AtomicBool,
    stop: AtomicBool,
    pub(super) last_size: AtomicU64,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Tells writers, watches and the other committer when one panics.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.close();
            self.0.closed.cancel();
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
        let view = View::clone(&shared.view.load());
        Committer {
            shared,
            tip: std::sync::Mutex::new(Tip { view, failures: 0, taken: VecDeque::new() }),
            writer: Mutex::new(Writer { log, options, snapshots, log_bytes, last_failure: None }),
            failures: AtomicU64::new(0),
        }
    }

    /// Commits until the queue is stopped and empty. Two threads do this.
    pub(super) fn run(&self) {
        let _alarm = Alarm(&self.shared);
        let mut frame = Vec::new();
        loop {
            let mut tip = match self.tip.lock() {
                Ok(tip) => tip,
                Err(poisoned) => {
                    poisoned.into_inner().taken.clear();
                    break;
                }
            };
            let Some((batch, view)) = self.gather(&mut tip, frame) else { break };
            drop(tip);
            frame = self.finish(batch, view);
        }
    }

    /// The number of the frame that is written next. Waits for one that is being written.
    pub(super) fn next_sequence(&self) -> u64 {
        self.writer.lock().log.next_sequence()
    }

    /// Ends what goes on in the background. The committers are gone.
    pub(super) fn end(&self) {
        let snapshots = self.writer.lock().snapshots.clone();
        snapshots.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = snapshots.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Decides what comes until the log is free. The log is the caller's when this returns.
    fn gather(&self, tip: &mut Tip, frame: Vec<u8>) -> Option<(Batch, View)> {
        let mut batch = Batch::new(frame);
        loop {
            let mut next = Next::Decide;
            if tip.taken.is_empty() || batch.fill() == Fill::Full {
                let deadline =
                    if tip.view.needs_trim() { Some(Instant::now()) } else { self.shared.leases.next_look() };
                next = self.shared.queue.next(&mut tip.taken, batch.fill(), deadline);
            }
            match next {
                Next::Stopped => {
                    tip.taken.clear();
                    return None;
                }
                Next::Write => return Some((batch, tip.view.clone())),
                Next::Decide | Next::Due => {}
            }
            if batch.fill() == Fill::Empty {
                self.begin(tip, &mut batch);
            }
            while batch.fill() != Fill::Full
                && let Some(command) = tip.taken.pop_front()
            {
                batch.decide(&mut tip.view, command);
            }
        }
    }

    /// Before the first command of a batch: a view that is true, and what time brings.
    fn begin(&self, tip: &mut Tip, batch: &mut Batch) {
        let failures = self.failures.load(Ordering::Acquire);
        if tip.failures != failures {
            tip.view = View::clone(&self.shared.view.load());
            tip.failures = failures;
        }
        batch.failures = failures;
        for id in self.shared.leases.expired() {
            batch.end_lease(&mut tip.view, id);
        }
        if tip.view.needs_trim() {
            tip.view.trim(TRIM_STEP);
            batch.trimmed = true;
        }
    }

    /// Makes a batch durable, shows it, lets the log go and answers. Returns the frame's buffer.
    fn finish(&self, mut batch: Batch, view: View) -> Vec<u8> {
        let mut writer = self.writer.lock();
        let durable = writer.write(&mut batch, &self.failures);
        // Dropped after the answers: taking apart what the batch replaced need not keep writers waiting.
        let mut replaced = None;
        match &durable {
            Ok(()) => {
                let (publish, view) = (&self.shared.view, Arc::new(view));
                self.shared.watchers.publish(&batch.commits, || replaced = Some(publish.swap(view)));
                self.shared.leases.update(&batch.granted, &batch.ended);
            }
            Err(error) => {
                tracing::warn!(%error, writes = batch.commits.len(), "batch refused");
                self.shared.leases.postpone(&batch.ended);
            }
        }
        for reply in batch.captures.drain(..) {
            let _ = reply.send(Ok((self.shared.view.load_full(), writer.log.next_sequence())));
        }
        let writer = if writer.is_snapshot_due() {
            Some(writer)
        } else {
            drop(writer);
            self.shared.queue.release_log();
            None
        };
        let frame = batch.answer(durable);
        if let Some(mut writer) = writer {
            writer.start_snapshot(&self.shared);
            drop(writer);
            self.shared.queue.release_log();
        }
        frame
    }
}

impl Writer {
    fn write(&mut self, batch: &mut Batch, failures: &AtomicU64) -> Result<()> {
        if batch.failures != failures.load(Ordering::Acquire) {
            let gone = || StoreError::Unavailable("the write before this one failed".into());
            return Err(self.last_failure.clone().unwrap_or_else(gone));
        }
        if Log::is_empty_frame(&batch.frame) {
            return Ok(());
        }
        match self.log.append(&mut batch.frame) {
            Ok(bytes) => self.log_bytes += bytes,
            Err(error) => {
                failures.fetch_add(1, Ordering::AcqRel);
                self.last_failure = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn is_snapshot_due(&self) -> bool {
        let due = self.options.snapshot_after.max(self.snapshots.last_size.load(Ordering::Relaxed));
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
