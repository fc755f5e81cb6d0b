//! Expectations: what a controller has asked for and not yet seen come back through its informer.
//!
//! Without them a controller that lists its cache right after creating a pod would not see the pod and create another.
//! Invariant: while a key is unsatisfied, its controller neither creates nor deletes. Deletions are remembered by name,
//! because the same object may be reported as modified (deletion timestamp) and then deleted.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// An event that never comes must not stop a controller for ever (`ExpectationsTimeout`, v1.36).
const TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Outstanding creations and deletions per controller key.
#[derive(Debug, Default)]
pub struct Expectations {
    entries: Mutex<HashMap<String, Entry>>,
    /// Something is expected.
    begun: Notify,
}

#[derive(Debug)]
struct Entry {
    creations: i64,
    deletions: HashSet<String>,
    since: Instant,
}

impl Entry {
    fn waits(&self) -> bool {
        self.creations > 0 || !self.deletions.is_empty()
    }
}

impl Expectations {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn expect_creations(&self, key: &str, count: usize) {
        self.set(key, i64::try_from(count).unwrap_or(i64::MAX), HashSet::new());
    }

    pub fn expect_deletions(&self, key: &str, names: impl IntoIterator<Item = String>) {
        self.set(key, 0, names.into_iter().collect());
    }

    /// Both at once, for controllers that create and delete in one pass (daemons).
    pub fn expect(&self, key: &str, creations: usize, deletions: impl IntoIterator<Item = String>) {
        self.set(key, i64::try_from(creations).unwrap_or(i64::MAX), deletions.into_iter().collect());
    }

    fn set(&self, key: &str, creations: i64, deletions: HashSet<String>) {
        self.entries.lock().insert(key.into(), Entry { creations, deletions, since: Instant::now() });
        self.begun.notify_one();
    }

    /// A creation came back, or failed and never will.
    pub fn creation_observed(&self, key: &str) {
        self.creations_observed(key, 1);
    }

    pub fn creations_observed(&self, key: &str, count: usize) {
        if let Some(entry) = self.entries.lock().get_mut(key) {
            entry.creations -= i64::try_from(count).unwrap_or(i64::MAX);
        }
    }

    pub fn deletion_observed(&self, key: &str, name: &str) {
        if let Some(entry) = self.entries.lock().get_mut(key) {
            entry.deletions.remove(name);
        }
    }

    /// True when the cache has caught up with what was asked for (or never will).
    pub fn satisfied(&self, key: &str) -> bool {
        self.entries.lock().get(key).is_none_or(|entry| !entry.waits() || entry.since.elapsed() >= TIMEOUT)
    }

    /// Waits until events are overdue and gives these keys up. An object that comes and goes while no watch runs has no event, so
    /// that nothing else would lead back to its controller.
    pub async fn overdue(&self) -> Vec<String> {
        loop {
            let next = {
                let mut entries = self.entries.lock();
                let late = |entry: &Entry| entry.waits() && entry.since.elapsed() >= TIMEOUT;
                let keys: Vec<String> =
                    entries.iter().filter(|(_, entry)| late(entry)).map(|(key, _)| key.clone()).collect();
                if !keys.is_empty() {
                    entries.retain(|_, entry| !late(entry));
                    return keys;
                }
                entries.values().filter(|entry| entry.waits()).map(|entry| entry.since + TIMEOUT).min()
            };
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => self.begun.notified().await,
            }
        }
    }

    /// The owner is gone.
    pub fn forget(&self, key: &str) {
        self.entries.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn satisfied_when_all_came_back_or_too_late() {
        let expectations = Expectations::new();
        assert!(expectations.satisfied("k"));
        expectations.expect_creations("k", 2);
        assert!(!expectations.satisfied("k"));
        expectations.creation_observed("k");
        assert!(!expectations.satisfied("k"));
        expectations.creation_observed("k");
        assert!(expectations.satisfied("k"));

        expectations.expect_deletions("k", ["a".to_owned(), "b".to_owned()]);
        expectations.deletion_observed("k", "a");
        expectations.deletion_observed("k", "a");
        assert!(!expectations.satisfied("k"), "the same deletion seen twice counts once");
        tokio::time::advance(TIMEOUT + Duration::from_secs(1)).await;
        assert!(expectations.satisfied("k"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_comes_is_given_up_in_time() {
        let expectations = std::sync::Arc::new(Expectations::new());
        let waiting = tokio::spawn({
            let expectations = expectations.clone();
            async move { (expectations.overdue().await, Instant::now()) }
        });
        let start = Instant::now();
        tokio::time::sleep(Duration::from_secs(10)).await;
        expectations.expect_creations("met", 1);
        expectations.creation_observed("met");
        tokio::time::sleep(Duration::from_secs(10)).await;
        expectations.expect_creations("never", 2);
        expectations.creation_observed("never");
        let (keys, at) = waiting.await.unwrap();
        assert_eq!((keys, (at - start).as_secs()), (vec!["never".to_owned()], TIMEOUT.as_secs() + 20));
        assert!(expectations.satisfied("never"));
    }
}
