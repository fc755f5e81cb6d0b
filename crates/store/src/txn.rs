//! Writing: compares decide which branch of operations is applied, all of it in one revision.

use crate::range::KeyRange;
use crate::{KeyValue, LeaseId, Range, RangeResult, Result, Revision, StoreError};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of keys and values in one transaction. Far above what the API server accepts in one request.
const MAX_WRITE: usize = 16 << 20;

/// `if all compares hold { success } else { failure }`, atomically.
///
/// Operations see the effects of those before them. A branch must not write one key twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

impl Txn {
    pub fn new() -> Txn {
        Txn::default()
    }

    pub fn when(mut self, compare: Compare) -> Txn {
        self.compares.push(compare);
        self
    }

    pub fn then(mut self, op: Op) -> Txn {
        self.success.push(op);
        self
    }

    pub fn otherwise(mut self, op: Op) -> Txn {
        self.failure.push(op);
        self
    }

    /// The rules that do not depend on what is stored; both implementations apply them.
    pub(crate) fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(StoreError::Invalid(message));
        if self.compares.iter().any(|compare| compare.key().is_empty()) {
            return invalid("a compare has an empty key".into());
        }
        for branch in [&self.success, &self.failure] {
            let mut size = 0;
            let mut written = BTreeSet::new();
            for op in branch {
                match op {
                    Op::Put { key, .. } | Op::Delete(KeyRange::Key(key)) if key.is_empty() => {
                        return invalid("an operation has an empty key".into());
                    }
                    Op::Put { key, value, .. } => {
                        size += key.len() + value.len();
                        if branch.len() > 1 && !written.insert(&**key) {
                            return invalid(format!("the transaction writes key {key} twice"));
                        }
                    }
                    Op::Delete(_) | Op::Get(_) => {}
                }
            }
            if size > MAX_WRITE {
                return invalid(format!("the transaction writes {size} bytes; the limit is {MAX_WRITE}"));
            }
            for op in branch {
                let Op::Delete(keys) = op else { continue };
                let start = match keys {
                    KeyRange::Key(key) | KeyRange::Prefix(key) => &**key,
                };
                let first = written.range::<str, _>((Bound::Included(start), Bound::Unbounded)).next();
                if let Some(key) = first.filter(|key| keys.contains(key)) {
                    return invalid(format!("the transaction writes key {key} twice"));
                }
            }
        }
        Ok(())
    }
}

/// A condition on one key's current version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The key is at exactly this revision; zero means that it does not exist.
    ModRevision {
        key: Arc<str>,
        revision: Revision,
    },
    Exists {
        key: Arc<str>,
    },
    Absent {
        key: Arc<str>,
    },
}

impl Compare {
    pub fn mod_revision(key: impl Into<Arc<str>>, revision: Revision) -> Compare {
        Compare::ModRevision { key: key.into(), revision }
    }

    pub fn exists(key: impl Into<Arc<str>>) -> Compare {
        Compare::Exists { key: key.into() }
    }

    pub fn absent(key: impl Into<Arc<str>>) -> Compare {
        Compare::Absent { key: key.into() }
    }

    pub fn key(&self) -> &Arc<str> {
        match self {
            Compare::ModRevision { key, .. } | Compare::Exists { key } | Compare::Absent { key } => key,
        }
    }

    /// Whether the condition holds for a key whose current revision is `found` (zero: absent).
    pub fn holds(&self, found: Revision) -> bool {
        match self {
            Compare::ModRevision { revision, .. } => found == *revision,
            Compare::Exists { .. } => found != Revision::ZERO,
            Compare::Absent { .. } => found == Revision::ZERO,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Put {
        key: Arc<str>,
        value: Bytes,
        /// Replaces the key's lease; `None` detaches it.
        lease: Option<LeaseId>,
    },
    Delete(KeyRange),
    Get(Range),
}

impl Op {
    pub fn put(key: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    pub fn put_with_lease(key: impl Into<Arc<str>>, value: impl Into<Bytes>, lease: LeaseId) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: Some(lease) }
    }

    pub fn delete(key: impl Into<Arc<str>>) -> Op {
        Op::Delete(KeyRange::Key(key.into()))
    }

    pub fn delete_prefix(prefix: impl Into<Arc<str>>) -> Op {
        Op::Delete(KeyRange::Prefix(prefix.into()))
    }

    pub fn get(key: impl Into<Arc<str>>) -> Op {
        Op::Get(Range::key(key))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnResult {
    /// Whether the compares held, so which branch was applied.
    pub succeeded: bool,
    /// The revision of this transaction's changes, or the current one if it changed nothing.
    pub revision: Revision,
    /// One for each operation of the branch that was applied.
    pub results: Vec<OpResult>,
}

impl TxnResult {
    /// The first key-value that operation `index`, a get, returned.
    pub fn kv(&self, index: usize) -> Option<&KeyValue> {
        match self.results.get(index) {
            Some(OpResult::Get(found)) => found.kvs.first(),
            _ => None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpResult {
    Put,
    /// How many keys were deleted.
    Delete {
        deleted: u64,
    },
    Get(RangeResult),
}
