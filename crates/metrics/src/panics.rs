//! Panics that ended one piece of work only: caught where the piece ends, and counted by who worked on it.
//!
//! The counts are of the whole process: whichever component's metrics are read shows them all. The panic itself is on
//! standard error, with its place.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use parking_lot::Mutex;

static COUNTS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Runs one piece of work; none if it panicked.
pub fn catch<T>(worker: &'static str, work: impl FnOnce() -> T) -> Option<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work)).ok();
    if outcome.is_none() {
        count(worker);
    }
    outcome
}

/// The same for work that waits.
pub async fn catch_future<F: Future>(worker: &'static str, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    poll_fn(|context| match catch(worker, || work.as_mut().poll(context)) {
        Some(Poll::Ready(output)) => Poll::Ready(Some(output)),
        Some(Poll::Pending) => Poll::Pending,
        None => Poll::Ready(None),
    })
    .await
}

/// Counts a panic that was found in another way.
pub fn count(worker: &'static str) {
    *COUNTS.lock().entry(worker).or_default() += 1;
}

/// How many there were, by worker.
pub fn counts() -> Vec<(&'static str, u64)> {
    COUNTS.lock().iter().map(|(worker, count)| (*worker, *count)).collect()
}
