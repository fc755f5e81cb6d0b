//! What volumes hold where the kernel does not count it: their files are looked at now and then. Whoever asks hardly waits for
//! that, and a tree without end is not looked at to its end.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use files::{Bounds, Usage};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A look ends after so many files or that long. What it has found by then is what the volume holds at least.
const MAX_FILES: u64 = 1_000_000;
const MAX_DURATION: Duration = Duration::from_secs(5);
/// A volume is left alone that many times as long as the last look at it took.
const REST: u32 = 20;
/// Whoever asks waits that long for a new count, and then has the one before.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// All volumes are on one disk.
const AT_ONCE: usize = 1;

#[derive(Clone)]
pub(crate) struct Counts {
    /// By id of the volume.
    known: Arc<Mutex<HashMap<String, Count>>>,
    turns: Arc<Semaphore>,
}

#[derive(Clone, Copy)]
struct Count {
    usage: Usage,
    at: Instant,
    took: Duration,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Counts { known: Arc::default(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// What the volume held when it was counted last.
    pub(crate) fn last(&self, id: &str) -> Option<Usage> {
        self.known.lock().get(id).map(|count| count.usage)
    }

    /// Counts the volume anew if the last count is older than `max_age`. None if it has never been counted to the end of a look.
    pub(crate) async fn fresh(&self, id: &str, data: PathBuf, max_age: Duration) -> Option<Usage> {
        if self.is_due(id, max_age)
            && tokio::time::timeout(COUNT_TIMEOUT, self.count(id.to_owned(), data)).await.is_err()
        {
            tracing::debug!(volume = id, "counting takes its time");
        }
        self.last(id)
    }

    /// Whether a volume is to be counted again.
    pub(crate) fn is_due(&self, id: &str, max_age: Duration) -> bool {
        let is_fresh = |count: &Count| count.at.elapsed() < max_age.max(REST * count.took);
        !self.known.lock().get(id).is_some_and(is_fresh)
    }

    /// When a volume was counted last.
    pub(crate) fn counted_at(&self, id: &str) -> Option<Instant> {
        self.known.lock().get(id).map(|count| count.at)
    }

    /// Counts a volume, as soon as it is its turn.
    pub(crate) async fn count(&self, id: String, data: PathBuf) {
        if let Err(error) = self.begin(id, data).await {
            tracing::warn!(%error, "volume not counted");
        }
    }

    /// As [`Counts::count`]; the volume keeps its turn when nobody waits for it any more.
    pub(crate) fn begin(&self, id: String, data: PathBuf) -> JoinHandle<()> {
        tokio::spawn(self.clone().at_its_turn(id, data, Instant::now()))
    }

    async fn at_its_turn(self, id: String, data: PathBuf, asked: Instant) {
        let Ok(turn) = self.turns.clone().acquire_owned().await else { return };
        if self.counted_at(&id).is_some_and(|counted| counted > asked) {
            return;
        }
        let known = self.known.clone();
        let counting = tokio::task::spawn_blocking(move || {
            // Nobody else is let in before this is done.
            let _turn = turn;
            let began = Instant::now();
            let bounds = Bounds { entries: MAX_FILES, until: Some(began + MAX_DURATION) };
            let (usage, is_all) = files::usage_within(&data, bounds);
            if !is_all {
                tracing::debug!(volume = id, "too many files to count them all");
            }
            known.lock().insert(id, Count { usage, at: Instant::now(), took: began.elapsed() });
        });
        if let Err(error) = counting.await {
            tracing::warn!(%error, "volume not counted");
        }
    }

    /// Forgets volumes that are not there any more.
    pub(crate) fn retain(&self, ids: &HashSet<String>) {
        self.known.lock().retain(|id, _| ids.contains(id));
    }

    pub(crate) fn forget(&self, id: &str) {
        self.known.lock().remove(id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_volume_is_counted_when_the_last_count_is_old() {
        let dir = tempfile::tempdir().unwrap();
        let (counts, data) = (Counts::new(), || dir.path().to_path_buf());
        assert_eq!(counts.last("v"), None);
        let fresh = async |max_age: u64| {
            counts.fresh("v", data(), Duration::from_secs(max_age)).await.map(|usage| usage.inodes)
        };
        assert_eq!(fresh(60).await, Some(1));
        std::fs::write(dir.path().join("file"), "x").unwrap();
        assert_eq!(fresh(60).await, Some(1));
        counts.known.lock().get_mut("v").unwrap().took = Duration::ZERO;
        assert_eq!(fresh(0).await, Some(2));
        // One that takes long rests for longer than anybody would have it.
        std::fs::remove_file(dir.path().join("file")).unwrap();
        counts.known.lock().get_mut("v").unwrap().took = Duration::from_secs(60);
        assert_eq!(fresh(0).await, Some(2));
        counts.retain(&HashSet::new());
        assert_eq!(counts.last("v"), None);
    }

    #[tokio::test]
    async fn a_volume_that_nobody_waits_for_any_more_is_counted_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let counts = Counts::new();
        let turn = counts.turns.clone().acquire_owned().await.unwrap();
        let counting = counts.count("v".into(), dir.path().to_path_buf());
        assert!(tokio::time::timeout(Duration::from_millis(20), counting).await.is_err());
        drop(turn);
        while counts.counted_at("v").is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!counts.is_due("v", Duration::from_secs(60)) && counts.is_due("w", Duration::from_secs(60)));
    }
}
