//! Whether the committer waits for more to write, though it could write already.
//!
//! Writers that were just answered mostly come again. Waiting for them pays if they are back well before a sync would have
//! ended: where one is slow, all writers then share each sync, instead of half of them every other one. Where a sync is fast,
//! it is better to write what there is, while the others make up the next batch; and where those who were answered have
//! something else to do, waiting only costs. So it is tried, and after a try that failed more and more batches pass until the
//! next.

use super::queue::{Next, Queue};
use std::time::{Duration, Instant};

/// What it is worth, about, that writers do their part while the disk is busy.
const OVERLAP: Duration = Duration::from_micros(500);
/// Batches between two tries, at most.
const MOST_SKIPPED: u32 = 1 << 10;

#[derive(Default)]
pub(super) struct CommitDelay {
    /// How long it pays to wait.
    limit: Duration,
    /// Those whom the last batch answered and those who waited then: more than will hardly come.
    crowd: usize,
    /// Batches until the next try.
    skip: u32,
    /// What `skip` was set to after the last try that failed.
    skipped: u32,
}

impl CommitDelay {
    /// Notes what a batch took. `waiting` were pending when its `answered` had to be answered.
    pub(super) fn synced(&mut self, took: Duration, answered: usize, waiting: usize) {
        self.limit = (took / 2).saturating_sub(OVERLAP);
        self.crowd = answered + waiting;
    }

    /// Waits for the crowd, if that promises to pay.
    pub(super) fn gather(&mut self, queue: &Queue) {
        if self.limit.is_zero() || queue.pending() >= self.crowd {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_that_fail_become_rare() {
        let queue = Queue::default();
        let slow = 4 * OVERLAP;
        // Nobody comes back. Sync, whom to wait for -> batches without a try, after each call.
        for (took, crowd, expected) in
            [(2 * OVERLAP, 64, [0; 8]), (slow, 0, [0; 8]), (slow, 64, [1, 0, 3, 2, 1, 0, 7, 6])]
        {
            let mut delay = CommitDelay::default();
            delay.synced(took, crowd, 0);
            let skips = expected.map(|_| {
                delay.gather(&queue);
                delay.skip
            });
            assert_eq!(skips, expected, "{took:?} {crowd}");
        }
    }
}
