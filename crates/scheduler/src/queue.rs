//! Pods that wait for a node.
//!
//! `active`: to be tried now, highest priority first, then longest waiting. `waiting`: tried in vain; an event that could
//! help (a node changed, a pod went away) makes them active again, though not before their back-off has passed.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::pod::PodInfo;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A pod is tried again after this long even if no event said that it could succeed.
const MAX_WAIT: Duration = Duration::from_secs(300);

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// The earliest moment at which `pop` has something to do may have changed.
    changed: Notify,
}

#[derive(Default)]
struct State {
    active: BinaryHeap<Entry>,
    /// Uids in `active` that are still wanted: an entry without one is dropped when it surfaces.
    is_active: HashSet<String>,
    waiting: HashMap<String, Waiting>,
    attempts: HashMap<String, u32>,
    sequence: u64,
    /// Counts events that could help, so that one during an attempt is not missed.
    moves: u64,
}

struct Waiting {
    pod: Arc<PodInfo>,
    until: Instant,
}

struct Entry {
    pod: Arc<PodInfo>,
    sequence: u64,
}

impl Queue {
    /// A pod that is new, or whose specification changed: tried at once.
    pub(crate) fn add(&self, pod: Arc<PodInfo>) {
        let mut state = self.state.lock();
        state.waiting.remove(&pod.uid);
        state.activate(pod);
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, uid: &str) {
        let mut state = self.state.lock();
        state.waiting.remove(uid);
        state.is_active.remove(uid);
        state.attempts.remove(uid);
    }

    /// Something changed that may make room: every waiting pod is tried again once its back-off has passed.
    pub(crate) fn retry_all(&self) {
        let mut state = self.state.lock();
        state.moves += 1;
        let now = Instant::now();
        let State { waiting, attempts, .. } = &mut *state;
        for (uid, entry) in waiting.iter_mut() {
            entry.until = entry.until.min(now + backoff(attempts.get(uid).copied().unwrap_or(1)));
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The next pod to try, with a mark to hand back should the attempt fail. Waits while there is none.
    pub(crate) async fn pop(&self) -> (Arc<PodInfo>, u64) {
        loop {
            let next = {
                let mut state = self.state.lock();
                state.wake(Instant::now());
                if let Some(pod) = state.take() {
                    return (pod, state.moves);
                }
                state.waiting.values().map(|entry| entry.until).min()
            };
            match next {
                Some(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// The attempt that began at `mark` failed. If nothing happened since, the pod waits for an event.
    pub(crate) fn failed(&self, pod: Arc<PodInfo>, mark: u64) {
        let mut state = self.state.lock();
        if state.is_active.contains(&pod.uid) {
            return; // A newer version of the pod waits already.
        }
        let attempts = state.attempts.entry(pod.uid.clone()).or_default();
        *attempts += 1;
        let wait = if state.moves == mark { MAX_WAIT } else { backoff(state.attempts[&pod.uid]) };
        state.waiting.insert(pod.uid.clone(), Waiting { pod, until: Instant::now() + wait });
        drop(state);
        self.changed.notify_one();
    }
}

impl State {
    fn activate(&mut self, pod: Arc<PodInfo>) {
        self.sequence += 1;
        self.is_active.insert(pod.uid.clone());
        // An older version of the same pod may still be in the heap: the newer one replaces it.
        let sequence = self.sequence;
        self.active.retain(|entry| entry.pod.uid != pod.uid);
        self.active.push(Entry { pod, sequence });
    }

    fn wake(&mut self, now: Instant) {
        let due: Vec<String> =
            self.waiting.iter().filter(|(_, entry)| entry.until <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            if let Some(entry) = self.waiting.remove(&uid) {
                self.activate(entry.pod);
            }
        }
    }

    fn take(&mut self) -> Option<Arc<PodInfo>> {
        while let Some(entry) = self.active.pop() {
            if self.is_active.remove(&entry.pod.uid) {
                return Some(entry.pod);
            }
        }
        None
    }
}

/// 1 s, 2 s, 4 s … up to 10 s.
fn backoff(attempts: u32) -> Duration {
    INITIAL_BACKOFF.saturating_mul(1 << attempts.saturating_sub(1).min(8)).min(MAX_BACKOFF)
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        self.pod.priority.cmp(&other.pod.priority).then(other.sequence.cmp(&self.sequence))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, priority: i32) -> Arc<PodInfo> {
        let pod = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"priority": priority, "containers": []}});
        Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
    }

    #[tokio::test(start_paused = true)]
    async fn priority_first_then_age() {
        let queue = Queue::default();
        for (uid, priority) in [("low", 0), ("old", 5), ("young", 5)] {
            queue.add(pod(uid, priority));
        }
        for expected in ["old", "young", "low"] {
            assert_eq!(queue.pop().await.0.uid, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_pod_waits_for_an_event_and_its_back_off() {
        let queue = Queue::default();
        queue.add(pod("a", 0));
        let start = Instant::now();
        let (failed, mark) = queue.pop().await;
        queue.failed(failed, mark);
        queue.retry_all();
        let (failed, mark) = queue.pop().await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        queue.retry_all(); // during the attempt
        queue.failed(failed, mark);
        let (failed, mark) = queue.pop().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        queue.failed(failed, mark);
        queue.pop().await;
        assert_eq!(start.elapsed(), Duration::from_secs(303));
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_pod_is_not_tried() {
        let queue = Queue::default();
        queue.add(pod("a", 9));
        queue.add(pod("b", 0));
        queue.remove("a");
        assert_eq!(queue.pop().await.0.uid, "b");
    }
}
