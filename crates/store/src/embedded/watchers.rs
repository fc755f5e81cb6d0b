//! Watches: cursors on the shared history.
//!
//! Watches of the same keys share a *group*. After a commit the committer notes in each group that a
//! change belongs to which revision that was, publishes the view, and wakes the group. An idle watch
//! costs nothing, and a woken one goes straight to its revisions instead of reading all of history.
//!
//! Invariant: under the registry's lock a group learns of a revision before the view that contains it is
//! published. So a watch that holds a view knows all its revisions up to that view's.

use super::Shared;
use super::index::{Change, View};
use crate::range::KeyRange;
use crate::{KeyValue, Result, Revision, StoreError, Watch, WatchEvent};
use futures_util::stream::{self, Stream};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// Revisions that a group remembers; a watch further behind reads the history itself.
const REMEMBERED: usize = 1024;
/// Events that a watch takes from the history at once.
const CHUNK: usize = 256;

#[derive(Default)]
pub(super) struct Watchers {
    groups: Mutex<Groups>,
    /// Counts the requests for progress.
    progress: watch::Sender<u64>,
}

#[derive(Default)]
struct Groups {
    keys: HashMap<Arc<str>, Arc<Group>>,
    /// By the length of the prefix, so that a key finds its prefixes by looking up its own beginnings.
    prefixes: BTreeMap<usize, HashMap<Arc<str>, Arc<Group>>>,
}

struct Group {
    /// The last revision that concerns this group.
    wake: watch::Sender<Revision>,
    recent: Mutex<Recent>,
}

/// All revisions from `since` on that concern the group.
struct Recent {
    since: Revision,
    revisions: VecDeque<Revision>,
}

impl Group {
    fn note(&self, revision: Revision) {
        let mut recent = self.recent.lock();
        if recent.revisions.back() == Some(&revision) {
            return;
        }
        recent.revisions.push_back(revision);
        if recent.revisions.len() > REMEMBERED
            && let Some(forgotten) = recent.revisions.pop_front()
        {
            recent.since = forgotten.next();
        }
    }
}

impl Watchers {
    /// Publishes a view and wakes whom its new changes concern.
    pub(super) fn publish(&self, commits: &[(Revision, Arc<[Change]>)], publish: impl FnOnce()) {
        let groups = self.groups.lock();
        if groups.keys.is_empty() && groups.prefixes.is_empty() {
            return publish();
        }
        let mut woken: Vec<(Revision, &Arc<Group>)> = Vec::new();
        for (revision, changes) in commits {
            for change in changes.iter() {
                let key: &str = change.key();
                let exact = groups.keys.get(key);
                let prefixes = groups.prefixes.iter().filter_map(|(len, groups)| groups.get(key.get(..*len)?));
                for group in exact.into_iter().chain(prefixes) {
                    group.note(*revision);
                    match woken.iter_mut().find(|(_, known)| Arc::ptr_eq(known, group)) {
                        Some(entry) => entry.0 = *revision,
                        None => woken.push((*revision, group)),
                    }
                }
            }
        }
        publish();
        for (revision, group) in woken {
            group.wake.send_replace(revision);
        }
    }

    pub(super) fn request_progress(&self) {
        self.progress.send_modify(|count| *count += 1);
    }

    fn join(&self, keys: &KeyRange, current: impl FnOnce() -> Revision) -> Arc<Group> {
        let mut groups = self.groups.lock();
        let (map, name) = match keys {
            KeyRange::Key(key) => (&mut groups.keys, key),
            KeyRange::Prefix(prefix) => (groups.prefixes.entry(prefix.len()).or_default(), prefix),
        };
        map.entry(name.clone())
            .or_insert_with(|| {
                let recent = Recent { since: current().next(), revisions: VecDeque::new() };
                Arc::new(Group { wake: watch::Sender::new(Revision::ZERO), recent: Mutex::new(recent) })
            })
            .clone()
    }

    fn leave(&self, keys: &KeyRange) {
        let mut groups = self.groups.lock();
        // The map's own reference and the leaver's: nobody else is left.
        let unused = |group: &Arc<Group>| Arc::strong_count(group) <= 2;
        match keys {
            KeyRange::Key(key) => {
                if groups.keys.get(key).is_some_and(unused) {
                    groups.keys.remove(key);
                }
            }
            KeyRange::Prefix(prefix) => {
                let Some(map) = groups.prefixes.get_mut(&prefix.len()) else { return };
                if map.get(prefix).is_some_and(unused) {
                    map.remove(prefix);
                }
                if map.is_empty() {
                    groups.prefixes.remove(&prefix.len());
                }
            }
        }
    }
}

pub(super) fn watch(shared: &Arc<Shared>, watch: Watch) -> Result<impl Stream<Item = Result<WatchEvent>> + use<>> {
    let group = shared.watchers.join(&watch.keys, || shared.view.load().revision);
    let wake = group.wake.subscribe();
    let progress_asked = shared.watchers.progress.subscribe();
    let view = shared.view.load_full();
    let next = match watch.from {
        Some(from) if from != Revision::ZERO && from >= view.compacted => from.max(view.history_start()),
        Some(from) if from != Revision::ZERO => from,
        _ => view.revision.next(),
    };
    let cursor = Cursor { shared: shared.clone(), group, wake, progress_asked, watch, next, ready: VecDeque::new() };
    if next < view.compacted {
        return Err(StoreError::Compacted { asked: next, oldest: view.compacted });
    }
    Ok(stream::unfold(Some(cursor), |cursor| async move {
        let mut cursor = cursor?;
        match cursor.next_event().await {
            Ok(event) => Some((Ok(event), Some(cursor))),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

struct Cursor {
    shared: Arc<Shared>,
    group: Arc<Group>,
    wake: watch::Receiver<Revision>,
    progress_asked: watch::Receiver<u64>,
    watch: Watch,
    /// The first revision that was not looked at.
    next: Revision,
    ready: VecDeque<WatchEvent>,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.shared.watchers.leave(&self.watch.keys);
    }
}

enum Wakeup {
    Changed,
    Progress,
    Closed,
}

impl Cursor {
    async fn next_event(&mut self) -> Result<WatchEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            self.wake.mark_unchanged();
            let view = self.shared.view.load_full();
            self.collect(&view)?;
            if !self.ready.is_empty() || self.next <= view.revision {
                continue;
            }
            drop(view);
            match self.wait().await {
                Wakeup::Changed => {}
                Wakeup::Progress => {
                    let view = self.shared.view.load_full();
                    self.collect(&view)?;
                    if self.ready.is_empty() && self.next == view.revision.next() {
                        return Ok(WatchEvent::Progress(view.revision));
                    }
                }
                Wakeup::Closed => return Err(StoreError::Unavailable("the store was closed".into())),
            }
        }
    }

    async fn wait(&mut self) -> Wakeup {
        let closed = self.shared.closed.clone();
        let Some(interval) = self.watch.progress else {
            return tokio::select! {
                biased;
                _ = self.wake.changed() => Wakeup::Changed,
                () = closed.cancelled() => Wakeup::Closed,
            };
        };
        tokio::select! {
            biased;
            _ = self.wake.changed() => Wakeup::Changed,
            _ = self.progress_asked.changed() => Wakeup::Progress,
            () = tokio::time::sleep(interval) => Wakeup::Progress,
            () = closed.cancelled() => Wakeup::Closed,
        }
    }

    /// Moves the events of the next revisions to `ready`, and `next` past what was looked at.
    fn collect(&mut self, view: &View) -> Result<()> {
        if self.next > view.revision {
            return Ok(());
        }
        let known: Option<Vec<Revision>> = {
            let recent = self.group.recent.lock();
            (recent.since <= self.next).then(|| {
                let from = recent.revisions.partition_point(|revision| *revision < self.next);
                let due = recent.revisions.iter().skip(from).take_while(|revision| **revision <= view.revision);
                due.take(CHUNK).copied().collect()
            })
        };
        match known {
            Some(revisions) => {
                for revision in &revisions {
                    self.take(view, *revision)?;
                }
                self.next = match revisions.last() {
                    Some(last) if revisions.len() == CHUNK => last.next(),
                    _ => view.revision.next(),
                };
            }
            None => {
                while self.next <= view.revision && self.ready.len() < CHUNK {
                    self.take(view, self.next)?;
                    self.next = self.next.next();
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, view: &View, revision: Revision) -> Result<()> {
        let Some(changes) = view.changes(revision) else {
            return Err(StoreError::Compacted { asked: revision, oldest: view.compacted });
        };
        for change in changes.iter().filter(|change| self.watch.keys.contains(change.key())) {
            let old = change.old.as_ref().filter(|_| self.watch.prev_kv);
            let prev = old.map(|kv| KeyValue::clone(kv));
            self.ready.push_back(match &change.new {
                Some(kv) => WatchEvent::Put { kv: KeyValue::clone(kv), prev },
                None => WatchEvent::Delete { key: change.key().clone(), revision, prev },
            });
        }
        Ok(())
    }
}
