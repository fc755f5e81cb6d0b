//! Reading: one key, or a prefix in key order, in pages and at a chosen revision.

use crate::{KeyValue, Revision};
use std::sync::Arc;

/// Which keys a read, a watch or a deletion is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyRange {
    /// Exactly this key.
    Key(Arc<str>),
    /// Every key that starts with this; the empty prefix is every key.
    Prefix(Arc<str>),
}

impl KeyRange {
    pub fn contains(&self, key: &str) -> bool {
        match self {
            KeyRange::Key(only) => key == &**only,
            KeyRange::Prefix(prefix) => key.starts_with(&**prefix),
        }
    }
}

/// A read. Built from [`Range::key`] or [`Range::prefix`] and narrowed with the other methods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    pub keys: KeyRange,
    /// At most this many results; zero is no limit.
    pub limit: usize,
    /// Only keys that sort after this one: the last key of the page before.
    pub start_after: Option<Arc<str>>,
    /// The state as of this revision; `None` is now.
    pub revision: Option<Revision>,
    /// Leave the values empty.
    pub keys_only: bool,
    /// Return no keys at all, only [`RangeResult::count`].
    pub count_only: bool,
    /// Nobody asks for [`RangeResult::count`], which may then be too small. Counting takes as long as the range is.
    pub uncounted: bool,
}

impl Range {
    pub fn key(key: impl Into<Arc<str>>) -> Range {
        Range::over(KeyRange::Key(key.into()))
    }

    pub fn prefix(prefix: impl Into<Arc<str>>) -> Range {
        Range::over(KeyRange::Prefix(prefix.into()))
    }

    fn over(keys: KeyRange) -> Range {
        Range {
            keys,
            limit: 0,
            start_after: None,
            revision: None,
            keys_only: false,
            count_only: false,
            uncounted: false,
        }
    }

    pub fn limit(mut self, limit: usize) -> Range {
        self.limit = limit;
        self
    }

    pub fn start_after(mut self, key: impl Into<Arc<str>>) -> Range {
        self.start_after = Some(key.into());
        self
    }

    pub fn at(mut self, revision: Revision) -> Range {
        self.revision = Some(revision);
        self
    }

    pub fn keys_only(mut self) -> Range {
        self.keys_only = true;
        self
    }

    pub fn count_only(mut self) -> Range {
        self.count_only = true;
        self
    }

    pub fn uncounted(mut self) -> Range {
        self.uncounted = true;
        self
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeResult {
    /// In key order.
    pub kvs: Vec<KeyValue>,
    /// How many keys the range holds after `start_after`, whatever the limit.
    pub count: u64,
    /// The limit cut the result short.
    pub more: bool,
    /// The store's revision when it answered: list at it, then watch from the next.
    pub revision: Revision,
}
