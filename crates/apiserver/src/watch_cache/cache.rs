//! The cache of one resource: a persistent ordered map of current objects and a ring of recent events.
//!
//! A list takes a snapshot (a clone of the map, O(1)) and works on it without a lock. A watcher is a cursor into the
//! ring: an idle one costs nothing, and each event is encoded once for all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::{Mutex, RwLock};

use super::entry::{Entry, Filter};
use super::unreadable::{Prefix, Unreadable};

/// Events younger than this stay in the ring, so that a client can resume after a short break.
const RESUME_WINDOW: Duration = Duration::from_secs(75);
/// Never fewer than this, never more than that: memory stays bounded, the slow get 410 and list again.
const MIN_EVENTS: usize = 128;
const MAX_EVENTS: usize = 100_000;
/// The objects that only the ring still holds may take about as much as those of today, which is what a client has to
/// list again that comes too late; within these bounds.
const MIN_BYTES: usize = 16 << 20;
const MAX_BYTES: usize = 64 << 20;
/// Only so many of the newest events keep their frames: watchers are hardly ever further behind than that.
const FRAMED: usize = 1024;

pub(crate) struct Cache {
    prefix: Arc<Prefix>,
    state: RwLock<State>,
    /// The sequence number after the newest event; watchers sleep on it.
    newest: tokio::sync::watch::Sender<u64>,
    /// The resource is gone.
    closed: AtomicBool,
}

struct State {
    objects: OrdMap<Arc<str>, Arc<Entry>>,
    ring: VecDeque<Arc<Event>>,
    /// Sequence number of `ring[0]`.
    first: u64,
    /// Every change after this revision is in the ring.
    horizon: u64,
    /// The latest change applied.
    revision: u64,
    /// Bytes of the states that events replaced.
    replaced: usize,
    /// Bytes of the current objects.
    live: usize,
}

impl State {
    fn snapshot(&self) -> Snapshot {
        Snapshot { objects: self.objects.clone(), revision: self.revision }
    }

    /// Makes a change, unless there is nothing to delete. Returns the size of the state that it replaced.
    fn change(&mut self, key: Arc<str>, new: Option<Arc<Entry>>, revision: u64, now: Instant) -> usize {
        let old = match &new {
            Some(entry) => self.objects.insert(key, entry.clone()),
            None => self.objects.remove(&key),
        };
        if new.is_none() && old.is_none() {
            return 0;
        }
        self.revision = revision;
        let replaced = state_size(old.as_ref());
        self.replaced += replaced;
        self.live += state_size(new.as_ref());
        self.live -= replaced;
        self.ring.push_back(Arc::new(Event::new(revision, new, old, now)));
        if let Some(passed) = self.ring.len().checked_sub(FRAMED).and_then(|at| self.ring.get(at)) {
            *passed.frames.lock() = Default::default();
        }
        replaced
    }

    /// Drops events that are too many, too large together or too old.
    fn forget(&mut self, now: Instant) {
        while self.ring.len() > MIN_EVENTS {
            let Some(oldest) = self.ring.front() else { break };
            let fits = self.ring.len() <= MAX_EVENTS && self.replaced <= self.live.clamp(MIN_BYTES, MAX_BYTES);
            if fits && now.saturating_duration_since(oldest.at) < RESUME_WINDOW {
                break;
            }
            self.horizon = oldest.revision;
            self.replaced -= state_size(oldest.old.as_ref());
            self.ring.pop_front();
            self.first += 1;
        }
    }
}

/// The objects of one resource at one moment.
pub(crate) struct Snapshot {
    pub(crate) objects: OrdMap<Arc<str>, Arc<Entry>>,
    /// The latest change of this resource that the objects show.
    pub(crate) revision: u64,
}

/// One change of one object. `new` is `None` for a deletion, `old` for a creation.
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) new: Option<Arc<Entry>>,
    pub(crate) old: Option<Arc<Entry>>,
    at: Instant,
    /// By change, once somebody has asked.
    frames: Mutex<[Option<Bytes>; 3]>,
}

/// What an event means to one watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        }
    }
}

/// A watcher's place in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor(u64);

/// The ring no longer holds what a watcher needs next.
#[derive(Debug)]
pub(crate) struct TooOld {
    pub(crate) horizon: u64,
}

impl Cache {
    pub(crate) fn new(prefix: Arc<Prefix>, objects: OrdMap<Arc<str>, Arc<Entry>>, revision: u64) -> Self {
        let live = objects.values().map(|entry| entry.size()).sum();
        let state = State { objects, ring: VecDeque::new(), first: 0, horizon: revision, revision, replaced: 0, live };
        let newest = tokio::sync::watch::Sender::new(0);
        Self { prefix, state: RwLock::new(state), newest, closed: AtomicBool::new(false) }
    }

    /// A version of one of this cache's objects, as the store has it.
    pub(crate) fn entry(&self, key: Arc<str>, stored: &Bytes, revision: u64) -> Entry {
        Entry::new(&self.prefix, key, stored, revision)
    }

    /// The objects of which is known that they cannot be read.
    pub(crate) fn unreadable(&self) -> Vec<Unreadable> {
        self.prefix.all(|key| self.get(key).map(|entry| entry.revision))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.read().objects.get(key).cloned()
    }

    /// The latest change applied.
    pub(crate) fn revision(&self) -> u64 {
        self.state.read().revision
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.state.read().snapshot()
    }

    /// The current objects and the place in the ring right after them.
    pub(crate) fn snapshot_and_cursor(&self) -> (Snapshot, Cursor) {
        let state = self.state.read();
        (state.snapshot(), Cursor(state.first + state.ring.len() as u64))
    }

    /// The place right after `revision`.
    pub(crate) fn cursor_after(&self, revision: u64) -> Result<Cursor, TooOld> {
        let state = self.state.read();
        if revision < state.horizon {
            return Err(TooOld { horizon: state.horizon });
        }
        let offset = state.ring.partition_point(|event| event.revision <= revision);
        Ok(Cursor(state.first + offset as u64))
    }

    /// How much the current objects take, in bytes.
    pub(super) fn live(&self) -> usize {
        self.state.read().live
    }

    /// How many events there have been, and how many of them are kept.
    pub(crate) fn window(&self) -> (u64, usize) {
        let state = self.state.read();
        (state.first + state.ring.len() as u64, state.ring.len())
    }

    /// Wakes all watchers to see that nothing more comes.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.newest.send_modify(|_| {});
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Up to `limit` events from the cursor on; moves the cursor.
    pub(crate) fn read(&self, cursor: &mut Cursor, limit: usize) -> Result<Vec<Arc<Event>>, TooOld> {
        let state = self.state.read();
        let Some(offset) = cursor.0.checked_sub(state.first) else {
            return Err(TooOld { horizon: state.horizon });
        };
        let events: Vec<_> = state.ring.iter().skip(offset as usize).take(limit).cloned().collect();
        cursor.0 += events.len() as u64;
        Ok(events)
    }

    /// Applies the changes of one revision, all of them or none to whoever looks. `None` is a deletion. Returns the size of
    /// the states that they replaced.
    pub(super) fn apply(&self, changes: impl IntoIterator<Item = (Arc<str>, Option<Entry>)>, revision: u64) -> usize {
        let now = Instant::now();
        let mut replaced = 0;
        let newest = {
            let mut state = self.state.write();
            let before = state.first + state.ring.len() as u64;
            for (key, new) in changes {
                replaced += state.change(key, new.map(Arc::new), revision, now);
            }
            let newest = state.first + state.ring.len() as u64;
            if newest == before {
                return 0;
            }
            state.forget(now);
            newest
        };
        self.newest.send_replace(newest);
        replaced
    }

    /// Takes the value of an object whose version was there without one, because it could not be opened. Nobody has seen
    /// that version, so this is no event: who asked for it was refused, and asks again.
    pub(super) fn reopen(&self, key: &str, stored: &Bytes, revision: u64) {
        let mut state = self.state.write();
        let Some(old) = state.objects.get(key) else { return };
        if !old.stored.is_empty() || old.revision != revision || stored.is_empty() {
            return;
        }
        let key = old.key.clone();
        self.prefix.forget(&key);
        let entry = Arc::new(Entry::new(&self.prefix, key.clone(), stored, revision));
        state.live += entry.size();
        state.objects.insert(key, entry);
    }

    /// Gives back what a burst of changes left in the ring: without changes nothing else would.
    pub(super) fn forget_old(&self, now: Instant) {
        let is_due = |state: &State| {
            let oldest = state.ring.front().filter(|_| state.ring.len() > MIN_EVENTS);
            oldest.is_some_and(|oldest| now.saturating_duration_since(oldest.at) >= RESUME_WINDOW)
        };
        if is_due(&self.state.read()) {
            let mut state = self.state.write();
            state.forget(now);
            if state.ring.len() < state.ring.capacity() / 4 {
                state.ring.shrink_to_fit();
            }
        }
    }
}

fn state_size(entry: Option<&Arc<Entry>>) -> usize {
    entry.map_or(0, |entry| entry.size())
}

impl Event {
    fn new(revision: u64, new: Option<Arc<Entry>>, old: Option<Arc<Entry>>, at: Instant) -> Self {
        Self { revision, new, old, at, frames: Mutex::default() }
    }

    /// The same change of an object that is shown in another version.
    pub(crate) fn shown_as(&self, new: Option<Arc<Entry>>, old: Option<Arc<Entry>>) -> Self {
        Self::new(self.revision, new, old, self.at)
    }

    /// What this event is to a watcher that sees only what matches `filter`: an object may come into view or leave it.
    /// Nobody has seen a state that could not be read; whoever is to see one is told.
    pub(crate) fn change(&self, filter: &Filter) -> Result<Option<Change>, Unreadable> {
        let seen = |entry: &Option<Arc<Entry>>| {
            entry.as_deref().is_some_and(|entry| !entry.is_unreadable() && filter.matches(entry))
        };
        if let Some(new) = self.new.as_deref().filter(|new| new.is_unreadable() && filter.covers(new)) {
            new.readable()?;
        }
        Ok(self.seen_change((seen(&self.old), seen(&self.new))))
    }

    fn seen_change(&self, seen: (bool, bool)) -> Option<Change> {
        match seen {
            (false, true) => Some(Change::Added),
            (true, true) => Some(Change::Modified),
            (true, false) => Some(Change::Deleted),
            (false, false) => None,
        }
    }

    /// The object to show for a change: the new state, or the last one at this event's revision.
    pub(crate) fn object(&self, change: Change) -> Bytes {
        match (change, &self.new, &self.old) {
            (Change::Deleted, _, Some(old)) => old.at_revision(self.revision),
            (_, Some(new), _) => new.json(),
            _ => Bytes::new(),
        }
    }

    /// The watch frame, encoded once for all watchers.
    pub(crate) fn frame(&self, change: Change) -> Bytes {
        let encode = || {
            let entry = if change == Change::Deleted { self.old.as_ref() } else { self.new.as_ref() };
            let mut out = Vec::new();
            if let Some(entry) = entry {
                entry.write_frame(change.as_str(), self.revision, &mut out);
            }
            Bytes::from(out)
        };
        self.frames.lock()[change as usize].get_or_insert_with(encode).clone()
    }
}

/// `{"type":...,"object":...}` and a newline.
pub(crate) fn frame(change: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 36);
    open_frame(change, &mut out);
    out.extend_from_slice(object);
    close_frame(&mut out);
    Bytes::from(out)
}

pub(super) fn open_frame(change: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(change.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}

pub(super) fn close_frame(out: &mut Vec<u8>) {
    out.extend_from_slice(b"}\n");
}

impl Snapshot {
    /// Objects of one namespace, or all, in key order, after `start_after` if given.
    pub(crate) fn range<'a>(
        &'a self,
        namespace: Option<&str>,
        start_after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + 'a {
        use std::ops::Bound;
        let (mut from, to): (Bound<Arc<str>>, Bound<Arc<str>>) = match namespace {
            // '0' is the character after '/'.
            Some(namespace) => {
                (Bound::Included(format!("{namespace}/").into()), Bound::Excluded(format!("{namespace}0").into()))
            }
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        if let Some(after) = start_after {
            from = Bound::Excluded(after.into());
        }
        self.objects.range::<_, Arc<str>>((from, to)).map(|(_, entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, label: &str, revision: u64) -> Entry {
        let stored = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"labels":{{"app":"{label}"}}}}}}"#);
        Entry::new(&Prefix::new("pods"), key.into(), &Bytes::from(stored), revision)
    }

    #[test]
    fn objects_enter_and_leave_a_selector() {
        let cache = Cache::new(Prefix::new("pods"), OrdMap::new(), 0);
        let key: Arc<str> = "default/a".into();
        let mut cursor = cache.cursor_after(0).unwrap();
        cache.apply([(key.clone(), Some(entry("default/a", "x", 1)))], 1);
        cache.apply([(key.clone(), Some(entry("default/a", "y", 2)))], 2);
        cache.apply([(key.clone(), Some(entry("default/a", "x", 3)))], 3);
        cache.apply([(key, None)], 4);
        let filter = Filter { labels: Some("app=x".parse().unwrap()), ..Filter::default() };
        let changes: Vec<_> =
            cache.read(&mut cursor, 10).unwrap().iter().map(|event| event.change(&filter).unwrap()).collect();
        assert_eq!(changes, [Some(Change::Added), Some(Change::Deleted), Some(Change::Added), Some(Change::Deleted)]);
        assert!(cache.read(&mut cursor, 10).unwrap().is_empty());
    }

    #[test]
    fn a_deletion_shows_the_last_state_at_its_own_revision() {
        let cache = Cache::new(Prefix::new("pods"), OrdMap::new(), 0);
        let key: Arc<str> = "default/a".into();
        cache.apply([(key.clone(), Some(entry("default/a", "x", 7)))], 7);
        let mut cursor = cache.cursor_after(7).unwrap();
        cache.apply([(key, None)], 19);
        let events = cache.read(&mut cursor, 1).unwrap();
        let frame: serde_json::Value = serde_json::from_slice(&events[0].frame(Change::Deleted)).unwrap();
        assert_eq!(frame["type"], "DELETED");
        assert_eq!(frame["object"]["metadata"]["resourceVersion"], "19");
    }

    #[test]
    fn old_cursors_are_told_to_list_again() {
        let cache = Cache::new(Prefix::new("pods"), OrdMap::new(), 100);
        assert!(cache.cursor_after(99).is_err());
        assert!(cache.cursor_after(100).is_ok());
        let mut slow = cache.cursor_after(100).unwrap();
        for revision in 101..101 + MAX_EVENTS as u64 + 5 {
            cache.apply([("a".into(), Some(entry("a", "x", revision)))], revision);
        }
        assert!(cache.read(&mut slow, 1).is_err());
    }

    #[test]
    fn as_much_is_kept_as_there_is() {
        const SIZE: usize = 64 << 10;
        let least = MIN_BYTES / SIZE;
        // How many objects there are -> how many events are kept.
        for (objects, kept) in [(1, least), (2 * least, 2 * least)] {
            let cache = Cache::new(Prefix::new("pods"), OrdMap::new(), 0);
            for change in 0..6 * least {
                let key: Arc<str> = format!("{}", change % objects).into();
                let entry = entry(&key, &"x".repeat(SIZE), change as u64 + 1);
                cache.apply([(key, Some(entry))], change as u64 + 1);
            }
            let state = cache.state.read();
            assert!(state.ring.len().abs_diff(kept) < 10, "{} of {kept}", state.ring.len());
            assert_eq!(state.live, state.objects.values().map(|entry| entry.size()).sum::<usize>());
        }
    }

    #[test]
    fn a_burst_is_forgotten_in_time() {
        let cache = Cache::new(Prefix::new("pods"), OrdMap::new(), 0);
        let count = 4 * MIN_EVENTS as u64;
        for revision in 1..=count {
            cache.apply([("a".into(), Some(entry("a", "x", revision)))], revision);
        }
        let now = Instant::now();
        cache.forget_old(now);
        assert!(cache.cursor_after(0).is_ok());
        cache.forget_old(now + RESUME_WINDOW);
        // Whoever saw the last changes goes on, everybody else lists again.
        let kept = count - MIN_EVENTS as u64;
        assert!(cache.cursor_after(kept - 1).is_err());
        let mut cursor = cache.cursor_after(kept).unwrap();
        assert_eq!(cache.read(&mut cursor, usize::MAX).unwrap().len(), MIN_EVENTS);
    }

    #[test]
    fn namespaces_are_ranges() {
        let mut objects = OrdMap::new();
        for key in ["a/1", "a/2", "ab/1", "b/1"] {
            objects.insert(Arc::<str>::from(key), Arc::new(entry(key, "x", 1)));
        }
        let snapshot = Snapshot { objects, revision: 1 };
        let keys = |namespace, after| -> Vec<String> {
            snapshot.range(namespace, after).map(|entry| entry.key.to_string()).collect()
        };
        assert_eq!(keys(Some("a"), None), ["a/1", "a/2"]);
        assert_eq!(keys(Some("a"), Some("a/1")), ["a/2"]);
        assert_eq!(keys(None, Some("a/2")), ["ab/1", "b/1"]);
    }
}
