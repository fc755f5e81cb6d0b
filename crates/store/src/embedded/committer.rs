//! The committer: makes durable what writers have decided.
//!
//! Flow of a write: [`Committer::submit`] queues a command and, unless someone else is at it, decides what is queued on the
//! tip, the newest view, whose effects are encoded into the open batch. The committer's thread takes that batch when the
//! disk is free -> writes and syncs it as one frame -> publishes the view -> answers everyone. So the next batch is decided
//! on the writers' own threads while the disk is busy, batches grow with the number of writers, and a lone writer
//! is written at once.
//!
//! Invariants: batches are written and published in the order in which they were decided, each only after the one before
//! it is on disk. If a write fails, the batch decided meanwhile stood on a view that never came to be, and is refused too.

use super::batch::{Answers, Batch};
use super::directory::{self, Listing};
use super::index::View;
use super::log::Log;
use super::patience::Patience;
use super::queue::{Command, Next};
use super::{Options, Shared, snapshot};
use crate::Result;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Revisions that are forgotten with one batch after a compaction.
const TRIM_STEP: usize = 2048;
/// Callers that the committer answers itself.
const FEW: usize = 4;

pub(super) struct Committer {
    shared: Arc<Shared>,
    /// Poisoned by a panic: it may be half a transaction ahead.
    tip: std::sync::Mutex<Tip>,
    /// Locked before the tip where both are.
    writer: Mutex<Writer>,
    /// The view that was published last but one. Taking it apart is left to those who decide: they have its parts at hand,
    /// and the disk is busy then.
    retired: Mutex<Option<Arc<View>>>,
    /// Where the callers run, if that is known to go on by itself.
    callers: Option<Handle>,
}

/// Where commands are decided: what is published, the batch that is on its way to the disk, and the open batch.
struct Tip {
    view: View,
    batch: Batch,
    /// Commands that did not fit into the batch.
    left: VecDeque<Command>,
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

/// Tells writers, watches and the committer when someone panics.
struct Alarm<'a>(&'a Committer);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shared.queue.close();
            self.0.shared.closed.cancel();
            // Those whose commands were decided hear of it when their replies are dropped.
            let mut tip = self.0.tip.lock().unwrap_or_else(PoisonError::into_inner);
            tip.left.clear();
            tip.batch = Batch::new(Vec::new());
        }
    }
}

impl Tip {
    /// Decides what is queued, as far as the batch has room.
    fn decide(&mut self, shared: &Shared) {
        while !self.batch.is_full() {
            let Some(command) = self.left.pop_front() else {
                if shared.queue.take(&mut self.left) {
                    continue;
                }
                break;
            };
            self.batch.decide(&mut self.view, command);
        }
    }

    /// What time brings: leases that end, and history that may be forgotten.
    fn pass_time(&mut self, shared: &Shared) {
        for id in shared.leases.expired() {
            self.batch.end_lease(&mut self.view, id);
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
        let view = View::clone(&shared.view.load());
        let tip = Tip { view, batch: Batch::new(Vec::new()), left: VecDeque::new() };
        let writer = Writer { log, options, snapshots, log_bytes };
        let callers =
            Handle::try_current().ok().filter(|runtime| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread);
        Committer {
            shared,
            tip: std::sync::Mutex::new(tip),
            writer: Mutex::new(writer),
            retired: Mutex::default(),
            callers,
        }
    }

    /// Queues a command for the next batch. It is decided here unless someone else is deciding: they, or the committer, go on.
    pub(super) fn submit(&self, command: Command) -> Result<()> {
        let _alarm = Alarm(self);
        let awaited = self.shared.queue.push(command)?;
        if let Ok(mut tip) = self.tip.try_lock() {
            tip.decide(&self.shared);
            drop(tip);
            self.retire(None);
        }
        if awaited {
            self.shared.queue.wake();
        }
        Ok(())
    }

    /// Commits until the queue is stopped and empty.
    pub(super) fn run(&self) {
        let _alarm = Alarm(self);
        let mut patience = Patience::default();
        let mut frame = Vec::new();
        let mut needs_trim = false;
        loop {
            let deadline = if needs_trim { Some(Instant::now()) } else { self.shared.leases.next_look() };
            match self.shared.queue.wait(1, deadline) {
                Next::Write => patience.gather(&self.shared.queue),
                Next::Due => {}
                Next::Stopped => break,
            }
            let Ok(mut tip) = self.tip.lock() else { break };
            tip.decide(&self.shared);
            tip.pass_time(&self.shared);
            let (batch, view) = (std::mem::replace(&mut tip.batch, Batch::new(frame)), tip.view.clone());
            needs_trim = view.needs_trim();
            drop(tip);
            self.shared.queue.taken(batch.len());
            frame = self.finish(batch, view, &mut patience);
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

    /// Makes a batch durable, shows it and answers. Returns the frame's buffer.
    fn finish(&self, mut batch: Batch, view: View, patience: &mut Patience) -> Vec<u8> {
        let mut writer = self.writer.lock();
        let started = Instant::now();
        let durable = writer.write(&mut batch);
        patience.synced(started.elapsed(), batch.len(), self.shared.queue.pending());
        let mut replaced = None;
        // What was decided meanwhile, if it stands on a view that will never be.
        let mut void = Batch::new(Vec::new());
        match &durable {
            Ok(()) => {
                let (publish, view) = (&self.shared.view, Arc::new(view));
                self.shared.watchers.publish(&batch.commits, || replaced = Some(publish.swap(view)));
                self.shared.leases.update(&batch.granted, &batch.ended);
            }
            Err(error) => {
                if let Ok(mut tip) = self.tip.lock() {
                    tip.view = View::clone(&self.shared.view.load());
                    std::mem::swap(&mut void, &mut tip.batch);
                }
                self.shared.queue.taken(void.len());
                tracing::warn!(%error, writes = batch.commits.len() + void.commits.len(), "batch refused");
                self.shared.leases.postpone(&batch.ended);
                self.shared.leases.postpone(&void.ended);
            }
        }
        for reply in batch.captures.drain(..).chain(void.captures.drain(..)) {
            let _ = reply.send(Ok((self.shared.view.load_full(), writer.log.next_sequence())));
        }
        drop(void.answers(durable.clone()));
        let (answers, frame) = batch.answers(durable);
        self.answer(answers);
        self.retire(replaced.filter(|_| self.shared.queue.pending() > 0));
        if writer.is_snapshot_due() {
            writer.start_snapshot(&self.shared);
        }
        frame
    }

    fn retire(&self, view: Option<Arc<View>>) {
        let retired = std::mem::replace(&mut *self.retired.lock(), view);
        drop(retired);
    }

    /// Many are answered on a thread of theirs: each one woken from here would take the processor from the next batch.
    fn answer(&self, answers: Answers) {
        match &self.callers {
            Some(callers) if answers.len() > FEW => drop(callers.spawn(async move { drop(answers) })),
            _ => drop(answers),
        }
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

#[cfg(test)]
mod tests {
    use crate::embedded::Options;
    use crate::{EmbeddedStore, Store};
    use std::time::{Duration, Instant};

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
