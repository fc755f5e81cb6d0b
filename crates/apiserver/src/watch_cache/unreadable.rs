//! Stored objects that cannot be read.
//!
//! Invariant: such an object is never taken for one that is not there. Whoever needs it fails with its key, and the
//! server is not ready until it is written anew or deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::ROOT;
use super::labels::LabelSets;

/// A stored object is there and cannot be read. Why is in the log only: a decoder quotes what it stumbles over, and
/// that is not for everybody whose request needs the object.
#[derive(Clone, Debug, thiserror::Error)]
#[error("stored object {key} cannot be read")]
pub(crate) struct Unreadable {
    key: String,
}

impl Unreadable {
    /// Its key in the store.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

/// What the keys of one resource begin with, which of its objects cannot be read, and which labels they have.
pub(crate) struct Prefix {
    text: Box<str>,
    /// By key within the prefix: the revision at which it was found.
    unreadable: Mutex<BTreeMap<Arc<str>, u64>>,
    pub(super) labels: LabelSets,
}

impl Prefix {
    pub(crate) fn new(text: &str) -> Arc<Self> {
        Arc::new(Self { text: text.into(), unreadable: Mutex::default(), labels: LabelSets::default() })
    }

    /// Notes an object; it is logged once per version.
    pub(super) fn note(&self, key: &Arc<str>, revision: u64, reason: &dyn std::fmt::Display) -> Unreadable {
        let found = self.unreadable(key);
        let mut noted = self.unreadable.lock();
        // History may be read after what is there now.
        if noted.get(key).is_none_or(|known| *known < revision) {
            noted.insert(key.clone(), revision);
            tracing::error!(key = found.key, %reason, "a stored object cannot be read");
        }
        found
    }

    /// The object can be read after all.
    pub(super) fn forget(&self, key: &str) {
        self.unreadable.lock().remove(key);
    }

    /// The error for an object of this prefix.
    pub(super) fn unreadable(&self, key: &str) -> Unreadable {
        Unreadable { key: format!("{ROOT}{}/{key}", self.text) }
    }

    /// Those that are still there; `current` says which revision an object has now.
    pub(super) fn all(&self, current: impl Fn(&str) -> Option<u64>) -> Vec<Unreadable> {
        let mut noted = self.unreadable.lock();
        noted.retain(|key, revision| current(key).is_some_and(|current| current <= *revision));
        noted.keys().map(|key| self.unreadable(key)).collect()
    }
}
