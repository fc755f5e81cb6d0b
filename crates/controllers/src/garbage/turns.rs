//! How many workers an aggregated API server can hold: one that does not answer keeps each of them for as long as a request may take.
//!
//! Keys that find no turn wait without a worker, and come back to the queue as turns are over. Our own server is not counted.

use std::collections::{BTreeSet, HashMap};

use client::WorkQueue;
use parking_lot::Mutex;

/// Turns of one group at a time: a server that answers needs no more for hundreds of objects a second.
pub(super) const TURNS: usize = 4;

pub(super) struct Turns {
    queue: WorkQueue<String>,
    groups: Mutex<HashMap<String, Group>>,
}

#[derive(Default)]
struct Group {
    taken: usize,
    waiting: BTreeSet<String>,
}

impl Turns {
    pub(super) fn new(queue: WorkQueue<String>) -> Self {
        Self { queue, groups: Mutex::default() }
    }

    /// A turn of the group, for as long as that lives. Without one the key is enqueued once there may be.
    pub(super) fn take(&self, group: String, key: &str) -> Option<Turn<'_>> {
        let mut groups = self.groups.lock();
        let found = groups.entry(group.clone()).or_default();
        if found.taken >= TURNS {
            found.waiting.insert(key.to_owned());
            return None;
        }
        found.taken += 1;
        Some(Turn { turns: self, group })
    }
}

pub(super) struct Turn<'a> {
    turns: &'a Turns,
    group: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut groups = self.turns.groups.lock();
        let Some(group) = groups.get_mut(&self.group) else { return };
        group.taken -= 1;
        let next = match group.taken {
            // Some that were enqueued may have needed no turn any more: nobody is left behind.
            0 => std::mem::take(&mut group.waiting),
            _ => group.waiting.pop_first().into_iter().collect(),
        };
        if group.taken == 0 {
            groups.remove(&self.group);
        }
        drop(groups);
        next.into_iter().for_each(|key| self.turns.queue.add(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_turn_comes_back() {
        let queue = WorkQueue::new();
        let turns = Turns::new(queue.clone());
        let take = |key: &str| turns.take("example.com".to_owned(), key);
        let mut taken: Vec<_> = (0..TURNS).map(|_| take("first").unwrap()).collect();
        assert!(["b", "a", "c", "a"].iter().all(|key| take(key).is_none()));
        assert!(turns.take("elsewhere.com".to_owned(), "d").is_some());
        assert_eq!(queue.len(), 0);
        drop(taken.pop());
        assert_eq!(queue.len(), 1);
        taken.clear();
        assert_eq!(queue.len(), 3);
        assert!(turns.groups.lock().is_empty());
    }
}
