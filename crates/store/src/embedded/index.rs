//! The index: every key with its versions, in memory, as an immutable value.
//!
//! Flow: the committer clones the published [`View`] (cheap: persistent maps share their nodes), applies a
//! batch to the clone, makes the batch durable and publishes the clone. A reader works on whatever
//! view it loaded; it never waits and never sees half a batch. A batch that could not be made
//! durable is undone by dropping the clone.
//!
//! Invariant: `history` holds the changes of each revision from `history_start` to `revision`, one
//! element per revision. Every key keeps its versions from `history_start` on, and the newest one
//! before that, so the state at `history_start - 1` can be rebuilt: that is what a snapshot writes.
//!
//! An example. Six transactions, each with the revision it gets:
//!
//! ```text
//! 2 put a=1      3 put b=1      4 put a=2      5 delete a     6 put b=2      7 put a=3
//!
//! key   newest    older versions                    a read at 4 walks back to    a read at 5
//! a     7 "3"  -> 5 gone -> 4 "2" -> 2 "1"          4 "2"                        5 gone: not found
//! b     6 "2"  -> 3 "1"                             3 "1"                        3 "1"
//! ```
//!
//! A compaction at 6 makes 6 the oldest revision that can be read. Of each key, the versions since then stay, and the one before
//! them if it is live, because a snapshot begins with the state at 5:
//!
//! ```text
//! a     7 "3"                                       "5 gone" says no more than an absent version does
//! b     6 "2"  -> 3 "1"                             3 is what b was at 5
//! ```

use crate::range::KeyRange;
use crate::{KeyValue, LeaseId, Range, RangeResult, Result, Revision, StoreError};
use bytes::Bytes;
use imbl::{OrdMap, OrdSet, Vector};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// The revision of a store that was never written to, as in etcd: zero means "no revision" in the API.
const FIRST: Revision = Revision(1);

#[derive(Clone)]
pub(super) struct View {
    pub(super) revision: Revision,
    /// The oldest revision that may be read; zero before the first compaction.
    pub(super) compacted: Revision,
    pub(super) leases: OrdMap<LeaseId, Lease>,
    keys: OrdMap<Arc<str>, Item>,
    history: Vector<Arc<[Change]>>,
    history_start: Revision,
}

#[derive(Clone)]
pub(super) struct Lease {
    pub(super) ttl: Duration,
    pub(super) keys: OrdSet<Arc<str>>,
}

/// What one operation did to one key: `None -> Some` creates, `Some -> None` deletes.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) new: Option<Arc<KeyValue>>,
    pub(super) old: Option<Arc<KeyValue>>,
}

impl Change {
    pub(super) fn key(&self) -> &Arc<str> {
        match (&self.new, &self.old) {
            (Some(kv), _) | (None, Some(kv)) => &kv.key,
            (None, None) => unreachable!("a change has a version before or after it"),
        }
    }
}

#[derive(Clone)]
struct Item {
    newest: Version,
    older: Option<Arc<Older>>,
    /// The compaction that the older versions were last trimmed for: once is enough, and they may be very many.
    trimmed: Revision,
}

#[derive(Clone)]
enum Version {
    Live(Arc<KeyValue>),
    Gone(Revision),
}

/// A list rather than a vector: adding a version to a key that readers hold copies nothing.
struct Older {
    version: Version,
    older: Option<Arc<Older>>,
}

impl Drop for Older {
    /// Unlinks in a loop: the default drop recurses, and a hot key may have a million versions.
    fn drop(&mut self) {
        let mut next = self.older.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.older.take();
        }
    }
}

impl Version {
    fn revision(&self) -> Revision {
        match self {
            Version::Live(kv) => kv.mod_revision,
            Version::Gone(revision) => *revision,
        }
    }

    fn live(&self) -> Option<&Arc<KeyValue>> {
        match self {
            Version::Live(kv) => Some(kv),
            Version::Gone(_) => None,
        }
    }
}

impl Item {
    fn new(kv: Arc<KeyValue>) -> Item {
        Item { newest: Version::Live(kv), older: None, trimmed: Revision::ZERO }
    }

    fn at(&self, revision: Revision) -> Option<&Arc<KeyValue>> {
        if self.newest.revision() <= revision {
            return self.newest.live();
        }
        let mut next = self.older.as_deref();
        while let Some(node) = next {
            if node.version.revision() <= revision {
                return node.version.live();
            }
            next = node.older.as_deref();
        }
        None
    }

    fn push(&mut self, version: Version) {
        let version = std::mem::replace(&mut self.newest, version);
        let older = self.older.take();
        self.older = Some(Arc::new(Older { version, older }));
    }

    /// Forgets the versions that no read at or after `floor - 1` can see. `None`: nothing is left.
    fn trimmed(&self, floor: Revision) -> Option<Item> {
        if self.newest.revision() < floor {
            return self.newest.live().map(|_| Item { newest: self.newest.clone(), older: None, trimmed: floor });
        }
        let mut kept = Vec::new();
        let mut next = self.older.as_deref();
        while let Some(node) = next {
            let below = node.version.revision() < floor;
            if !below || node.version.live().is_some() {
                kept.push(node.version.clone());
            }
            if below {
                break;
            }
            next = node.older.as_deref();
        }
        let mut older = None;
        for version in kept.into_iter().rev() {
            older = Some(Arc::new(Older { version, older }));
        }
        Some(Item { newest: self.newest.clone(), older, trimmed: floor })
    }
}

impl View {
    pub(super) fn new() -> View {
        View::starting(FIRST, Revision::ZERO, FIRST.next())
    }

    /// An empty view whose base keys and history follow, as a snapshot gives them.
    pub(super) fn starting(revision: Revision, compacted: Revision, history_start: Revision) -> View {
        View { revision, compacted, leases: OrdMap::new(), keys: OrdMap::new(), history: Vector::new(), history_start }
    }

    // ---- reading ----

    pub(super) fn get(&self, key: &str) -> Option<&Arc<KeyValue>> {
        self.keys.get(key)?.newest.live()
    }

    pub(super) fn range(&self, range: &Range) -> Result<RangeResult> {
        self.check_readable(range.revision)?;
        Ok(self.read(range, self.revision))
    }

    /// Reads at the range's own revision, else at `now`: within a transaction that is the one it is making.
    pub(super) fn read(&self, range: &Range, now: Revision) -> RangeResult {
        let at = range.revision.unwrap_or(now);
        let mut result = RangeResult { kvs: Vec::new(), count: 0, more: false, revision: self.revision };
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        // Whether to go on.
        let mut visit = |kv: &Arc<KeyValue>| {
            result.count += 1;
            if range.count_only {
                return true;
            }
            if result.kvs.len() >= limit {
                result.more = true;
                return !range.uncounted;
            }
            let mut kv = KeyValue::clone(kv);
            if range.keys_only {
                kv.value = Bytes::new();
            }
            result.kvs.push(kv);
            true
        };
        match &range.keys {
            KeyRange::Key(key) => {
                let wanted = range.start_after.as_ref().is_none_or(|after| key > after);
                if let Some(kv) = self.keys.get(&**key).filter(|_| wanted).and_then(|item| item.at(at)) {
                    visit(kv);
                }
            }
            KeyRange::Prefix(prefix) => {
                let start = match &range.start_after {
                    Some(after) if **after >= **prefix => Bound::Excluded(&**after),
                    _ => Bound::Included(&**prefix),
                };
                for (key, item) in self.keys.range::<_, str>((start, Bound::Unbounded)) {
                    if !key.starts_with(&**prefix) {
                        break;
                    }
                    if item.at(at).is_some_and(|kv| !visit(kv)) {
                        break;
                    }
                }
            }
        }
        result
    }

    pub(super) fn check_readable(&self, revision: Option<Revision>) -> Result<()> {
        match revision {
            Some(asked) if asked > self.revision => Err(StoreError::FutureRevision { asked, current: self.revision }),
            Some(asked) if asked < self.compacted => Err(StoreError::Compacted { asked, oldest: self.compacted }),
            _ => Ok(()),
        }
    }

    /// The changes that `revision` made; `None` if it is not (or no longer) in the history.
    pub(super) fn changes(&self, revision: Revision) -> Option<&Arc<[Change]>> {
        let index = revision.0.checked_sub(self.history_start.0)?;
        self.history.get(usize::try_from(index).ok()?)
    }

    pub(super) fn history_start(&self) -> Revision {
        self.history_start
    }

    pub(super) fn live_keys(&self) -> u64 {
        self.keys.values().filter(|item| item.newest.live().is_some()).count() as u64
    }

    /// From where a snapshot writes the history; before it, it writes the state.
    pub(super) fn snapshot_floor(&self) -> Revision {
        self.history_start.max(self.compacted)
    }

    /// The state just before [`View::snapshot_floor`], in key order.
    pub(super) fn base(&self) -> impl Iterator<Item = &Arc<KeyValue>> {
        let at = Revision(self.snapshot_floor().0 - 1);
        self.keys.values().filter_map(move |item| item.at(at))
    }

    // ---- writing (on a clone that is not published yet) ----

    /// Puts a key as part of `revision`.
    pub(super) fn put(&mut self, key: Arc<str>, value: Bytes, lease: Option<LeaseId>, revision: Revision) -> Change {
        let known = self.keys.get_mut(&*key);
        let old = known.as_ref().and_then(|item| item.newest.live().cloned());
        let new = Arc::new(KeyValue {
            // All versions share the first one's bytes.
            key: old.as_ref().map_or(key, |kv| kv.key.clone()),
            value,
            create_revision: old.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: old.as_ref().map_or(1, |kv| kv.version + 1),
            lease,
        });
        match known {
            Some(item) => item.push(Version::Live(new.clone())),
            None => {
                self.keys.insert(new.key.clone(), Item::new(new.clone()));
            }
        }
        let old_lease = old.as_ref().and_then(|kv| kv.lease);
        if old_lease != lease {
            self.detach(old_lease, &new.key);
            if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
                lease.keys.insert(new.key.clone());
            }
        }
        Change { new: Some(new), old }
    }

    /// Deletes a key as part of `revision`; `None` if there is nothing to delete.
    pub(super) fn delete(&mut self, key: &str, revision: Revision) -> Option<Change> {
        let old = self.get(key)?.clone();
        self.detach(old.lease, &old.key);
        if let Some(item) = self.keys.get_mut(key) {
            item.push(Version::Gone(revision));
        }
        Some(Change { new: None, old: Some(old) })
    }

    /// Closes `revision`, the next one, with what it changed.
    pub(super) fn commit(&mut self, revision: Revision, changes: Vec<Change>) -> Arc<[Change]> {
        debug_assert_eq!(revision, self.revision.next());
        let changes: Arc<[Change]> = changes.into();
        self.history.push_back(changes.clone());
        self.revision = revision;
        changes
    }

    /// Adds a key of the state before the history.
    pub(super) fn insert_base(&mut self, kv: KeyValue) {
        if kv.mod_revision > self.revision {
            // Only in a salvage that lost the snapshot's first frame.
            self.revision = kv.mod_revision;
            self.history_start = kv.mod_revision.next();
        }
        let key = kv.key.clone();
        if let Some(lease) = kv.lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.clone());
        }
        self.keys.insert(key, Item::new(Arc::new(kv)));
    }

    /// Forbids reads before `revision`. The memory comes back through [`View::trim`].
    pub(super) fn compact(&mut self, revision: Revision) -> Result<()> {
        if revision > self.revision {
            return Err(StoreError::FutureRevision { asked: revision, current: self.revision });
        }
        if revision <= self.compacted {
            return Err(StoreError::Compacted { asked: revision, oldest: self.compacted });
        }
        self.compacted = revision;
        Ok(())
    }

    pub(super) fn needs_trim(&self) -> bool {
        self.history_start < self.compacted && !self.history.is_empty()
    }

    /// Forgets up to `count` revisions before the compacted one. The work is that of the
    /// forgotten changes, however many keys there are.
    pub(super) fn trim(&mut self, count: usize) {
        let floor = self.compacted;
        let due = floor.0.saturating_sub(self.history_start.0) as usize;
        let count = count.min(due).min(self.history.len());
        let kept = self.history.split_off(count);
        let forgotten = std::mem::replace(&mut self.history, kept);
        self.history_start = Revision(self.history_start.0 + count as u64);
        for change in forgotten.iter().flat_map(|changes| changes.iter()) {
            let key = change.key();
            let Some(item) = self.keys.get(&**key) else { continue };
            if item.trimmed == floor || item.older.is_none() && item.newest.live().is_some() {
                continue;
            }
            match item.trimmed(floor) {
                Some(item) => {
                    self.keys.insert(key.clone(), item);
                }
                None => {
                    self.keys.remove(&**key);
                }
            }
        }
    }

    fn detach(&mut self, lease: Option<LeaseId>, key: &str) {
        if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies `(key, value)` pairs, one revision each; an empty value deletes.
    fn view(changes: &[(&str, &str)]) -> View {
        let mut view = View::new();
        for (key, value) in changes {
            let revision = view.revision.next();
            let change = match *value {
                "" => view.delete(key, revision).unwrap(),
                value => view.put(Arc::from(*key), value.to_owned().into(), None, revision),
            };
            view.commit(revision, vec![change]);
        }
        view
    }

    fn versions(view: &View, key: &str) -> usize {
        let Some(item) = view.keys.get(key) else { return 0 };
        let mut count = 1;
        let mut next = item.older.as_deref();
        while let Some(node) = next {
            count += 1;
            next = node.older.as_deref();
        }
        count
    }

    #[test]
    fn trimming_keeps_what_can_still_be_read() {
        let changes = [("a", "1"), ("a", "2"), ("b", "1"), ("a", ""), ("a", "3"), ("b", ""), ("c", "1")];
        // compacted at -> versions of a, b, c that are left
        for (compacted, a, b, c) in [(2, 4, 2, 1), (4, 3, 2, 1), (5, 3, 2, 1), (6, 1, 2, 1), (7, 1, 2, 1), (8, 1, 0, 1)]
        {
            let full = view(&changes);
            let mut trimmed = full.clone();
            trimmed.compact(Revision(compacted)).unwrap();
            while trimmed.needs_trim() {
                trimmed.trim(2);
            }
            let left = (versions(&trimmed, "a"), versions(&trimmed, "b"), versions(&trimmed, "c"));
            assert_eq!(left, (a, b, c), "compacted at {compacted}");
            for at in compacted..=full.revision.0 {
                let range = Range::prefix("").at(Revision(at));
                assert_eq!(trimmed.range(&range).unwrap(), full.range(&range).unwrap(), "at {at} of {compacted}");
                assert!(trimmed.changes(Revision(at)).is_some());
            }
            assert_eq!(
                trimmed.base().count(),
                full.read(&Range::prefix("").at(Revision(compacted - 1)), Revision(0)).kvs.len()
            );
        }
    }

    #[test]
    fn security_what_nobody_asks_for_is_not_counted() {
        let view = view(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")]);
        let page = |range: Range| view.range(&range).unwrap();
        let counted = page(Range::prefix("").limit(2));
        let uncounted = page(Range::prefix("").limit(2).uncounted());
        assert_eq!((counted.count, uncounted.count), (5, 3), "it looks no further than whether there is more");
        assert_eq!((&counted.kvs, counted.more), (&uncounted.kvs, uncounted.more));
        let last = page(Range::prefix("").limit(2).start_after("c").uncounted());
        assert_eq!((last.kvs.len(), last.more), (2, false));
    }

    #[test]
    fn a_key_with_very_many_versions_can_be_dropped() {
        let mut view = View::new();
        let key: Arc<str> = Arc::from("hot");
        for _ in 0..200_000 {
            let revision = view.revision.next();
            let change = view.put(key.clone(), Bytes::from_static(b"x"), None, revision);
            view.commit(revision, vec![change]);
        }
        assert_eq!(view.get("hot").unwrap().version, 200_000);
        drop(view);
    }

    #[test]
    fn a_hot_key_is_trimmed_once_for_a_compaction() {
        let mut view = view(&[("hot", "x"); 100]);
        let older = |view: &View| view.keys.get("hot").unwrap().older.clone().unwrap();
        for floor in [50, 90] {
            view.compact(Revision(floor)).unwrap();
            let before = older(&view);
            view.trim(2);
            let trimmed = older(&view);
            assert!(!Arc::ptr_eq(&before, &trimmed));
            // The newest is revision 101; what a read just before the floor sees stays.
            assert_eq!(versions(&view, "hot"), 101 - floor as usize + 2);
            while view.needs_trim() {
                view.trim(2);
            }
            assert!(Arc::ptr_eq(&trimmed, &older(&view)), "made anew for every change");
        }
    }

    #[test]
    fn a_clone_does_not_see_later_changes() {
        let before = view(&[("a", "1")]);
        let mut after = before.clone();
        let revision = after.revision.next();
        let change = after.put(Arc::from("a"), Bytes::from_static(b"2"), None, revision);
        after.commit(revision, vec![change]);
        assert_eq!((&before.get("a").unwrap().value[..], &after.get("a").unwrap().value[..]), (&b"1"[..], &b"2"[..]));
        assert!(before.changes(revision).is_none() && after.changes(revision).is_some());
    }
}
