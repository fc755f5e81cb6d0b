//! Whether the committer waits for more to write, though it could write already.
//!
//! Writers that were just answered mostly come again. Waiting for them pays if they are back before a sync would have
//! ended: where one is slow, all writers then share each sync, instead of half of them every other one. Where a sync is fast, or
//! those who were answered have something else to do, waiting only costs. So it is tried, and after a try that
//! failed more and more batches pass until the next.

use super::queue::{Next, Queue};
use std::time::{Duration, Instant};

/// Batches between two tries, at most.
const MOST_SKIPPED: u32 = 1 << 10;

#[derive(Default)]
pub(super) struct Patience {
    /// How long it pays to wait.
    limit: Duration,
    /// Those whom the last batch answered and those who waited then: more than will hardly come.
    crowd: usize,
    /// Batches until the next try.
    skip: u32,
    /// What `skip` was set to after the last try that failed.
    skipped: u32,
}

impl Patience {
    /// Notes what a batch took. `waiting` were pending when its `answered` had to be answered.
    pub(super) fn synced(&mut self, took: Duration, answered: usize, waiting: usize) {
        self.limit = took / 4;
        self.crowd = answered + waiting;
    }

    /// Waits for the crowd, if that promises to pay.
    pub(super) fn gather(&mut self, queue: &Queue) {
        if queue.pending() >= self.crowd {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.skipped = match queue.wait(self.crowd, Some(Instant::now() + self.limit)) {
            Next::Due => (2 * self.skipped + 1).min(MOST_SKIPPED),
            Next::Write | Next::Stopped => 0,
        };
        self.skip = self.skipped;
    }
}
