//! Following a watch cache: what an index made from objects needs to stay true without looking at all of them again.

use std::sync::Arc;

use crate::watch_cache::{Cache, Caches, Cursor, Entry};

/// More changes than this are not read one by one.
const BATCH: usize = 10_000;

/// One resource, and how far its changes have been read.
pub(super) struct Feed {
    cache: Option<Arc<Cache>>,
    at: Option<(Cursor, u64)>,
}

/// What happened to one object.
pub(super) struct Change<'e> {
    /// `<namespace>/<name>` or `<name>`.
    pub(super) key: &'e str,
    pub(super) old: Option<&'e Entry>,
    pub(super) new: Option<&'e Entry>,
}

impl Feed {
    pub(super) fn new(caches: &Caches, prefix: &str) -> Self {
        Self { cache: caches.get(prefix), at: None }
    }

    /// A feed that never brings anything.
    #[cfg(test)]
    pub(super) fn nothing() -> Self {
        Self { cache: None, at: None }
    }

    /// Whether some of the objects cannot be read.
    pub(super) fn has_unreadable(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| !cache.unreadable().is_empty())
    }

    /// Whether everything the cache shows has been read.
    pub(super) fn is_current(&self) -> bool {
        let Some(cache) = &self.cache else { return true };
        self.at.is_some_and(|(_, revision)| revision == cache.revision())
    }

    /// Hands over the changes since the last call, or every object after `reset` when they are no longer known.
    pub(super) fn read<I>(&mut self, index: &mut I, reset: fn(&mut I), mut apply: impl FnMut(&mut I, Change<'_>)) {
        let Some(cache) = &self.cache else { return };
        if let Some((cursor, revision)) = &mut self.at
            && let Ok(events) = cache.read(cursor, BATCH)
            && events.len() < BATCH
        {
            for event in &events {
                let (old, new) = (event.old.as_deref(), event.new.as_deref());
                if let Some(entry) = new.or(old) {
                    apply(index, Change { key: &entry.key, old, new });
                }
                *revision = event.revision;
            }
            return;
        }
        let (snapshot, cursor) = cache.snapshot_and_cursor();
        reset(index);
        for (key, entry) in &snapshot.objects {
            apply(index, Change { key, old: None, new: Some(entry) });
        }
        self.at = Some((cursor, snapshot.revision));
    }
}
