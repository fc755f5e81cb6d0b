//! Following changes.

use crate::range::KeyRange;
use crate::{KeyValue, Result, Revision};
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;

/// What to follow. Built from [`Watch::prefix`] or [`Watch::key`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    pub keys: KeyRange,
    /// The first revision to deliver; `None` is the one after the current. Later than the current is allowed.
    pub from: Option<Revision>,
    /// Carry the value that each change replaced.
    pub prev_kv: bool,
    /// Report [`WatchEvent::Progress`] when asked to, and whenever this long has passed without an event.
    pub progress: Option<Duration>,
}

impl Watch {
    pub fn prefix(prefix: impl Into<Arc<str>>) -> Watch {
        Watch { keys: KeyRange::Prefix(prefix.into()), from: None, prev_kv: false, progress: None }
    }

    pub fn key(key: impl Into<Arc<str>>) -> Watch {
        Watch { keys: KeyRange::Key(key.into()), from: None, prev_kv: false, progress: None }
    }

    pub fn from(mut self, revision: Revision) -> Watch {
        self.from = Some(revision);
        self
    }

    pub fn prev_kv(mut self) -> Watch {
        self.prev_kv = true;
        self
    }

    pub fn progress(mut self, interval: Duration) -> Watch {
        self.progress = Some(interval);
        self
    }
}

/// Ends after its first error, with [`StoreError::Compacted`](crate::StoreError::Compacted) when the
/// follower fell behind the history that is kept.
pub type WatchStream = BoxStream<'static, Result<WatchEvent>>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    Put {
        kv: KeyValue,
        /// The version that this one replaced, if asked for and still known.
        prev: Option<KeyValue>,
    },
    Delete {
        key: Arc<str>,
        revision: Revision,
        /// The version that was deleted, if asked for and still known.
        prev: Option<KeyValue>,
    },
    /// Everything up to and including this revision has been delivered.
    Progress(Revision),
}

impl WatchEvent {
    pub fn revision(&self) -> Revision {
        match self {
            WatchEvent::Put { kv, .. } => kv.mod_revision,
            WatchEvent::Delete { revision, .. } | WatchEvent::Progress(revision) => *revision,
        }
    }

    /// A put of a key that did not exist before.
    pub fn is_create(&self) -> bool {
        matches!(self, WatchEvent::Put { kv, .. } if kv.version == 1)
    }
}
