//! What is stored: keys, values and the numbers that order them.

use bytes::Bytes;
use std::fmt;
use std::num::NonZeroI64;
use std::sync::Arc;

/// A point in the store's history. Zero is before the first change, and stands for "does not exist"
/// in compares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

impl Revision {
    pub const ZERO: Revision = Revision(0);

    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// One version of one key. Clones share the key's and the value's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    pub key: Arc<str>,
    pub value: Bytes,
    /// The revision that created the key (after its last deletion).
    pub create_revision: Revision,
    /// The revision of this version.
    pub mod_revision: Revision,
    /// 1 for the creating version, then one more for each change.
    pub version: u64,
    pub lease: Option<LeaseId>,
}

/// Names a lease. Never zero: zero is etcd's spelling of "no lease".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroI64);

impl LeaseId {
    pub fn new(id: i64) -> Option<LeaseId> {
        NonZeroI64::new(id).map(LeaseId)
    }

    pub fn get(self) -> i64 {
        self.0.get()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease {self}")
    }
}

/// What a store holds at its latest revision.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// In the order of their keys.
    pub kvs: Vec<KeyValue>,
    pub revision: Revision,
}
