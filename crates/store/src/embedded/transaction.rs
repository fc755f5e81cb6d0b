//! Deciding a transaction on a view that only the committer sees.

use super::index::{Change, View};
use crate::range::KeyRange;
use crate::{LeaseId, Op, OpResult, Range, Result, StoreError, Txn, TxnResult};

/// Applies a transaction. On an error the view is unchanged.
pub(super) fn apply(view: &mut View, txn: Txn) -> Result<(TxnResult, Vec<Change>)> {
    let succeeded = txn.compares.iter().all(|compare| {
        let found = view.get(compare.key()).map(|kv| kv.mod_revision);
        compare.holds(found.unwrap_or_default())
    });
    let ops = if succeeded { txn.success } else { txn.failure };
    // Everything that can fail is checked before the first change.
    for op in &ops {
        match op {
            Op::Put { lease: Some(id), .. } if !view.leases.contains_key(id) => {
                return Err(StoreError::LeaseNotFound(*id));
            }
            Op::Get(range) => view.check_readable(range.revision)?,
            Op::Put { .. } | Op::Delete(_) => {}
        }
    }

    let revision = view.revision.next();
    let mut changes = Vec::new();
    let mut results = Vec::with_capacity(ops.len());
    for op in ops {
        results.push(match op {
            Op::Put { key, value, lease } => {
                changes.push(view.put(key, value, lease, revision));
                OpResult::Put
            }
            Op::Delete(keys) => {
                let before = changes.len();
                match keys {
                    KeyRange::Key(key) => changes.extend(view.delete(&key, revision)),
                    KeyRange::Prefix(prefix) => {
                        for kv in view.read(&Range::prefix(prefix), revision).kvs {
                            changes.extend(view.delete(&kv.key, revision));
                        }
                    }
                }
                OpResult::Delete { deleted: (changes.len() - before) as u64 }
            }
            Op::Get(range) => OpResult::Get(view.read(&range, revision)),
        });
    }
    let revision = if changes.is_empty() { view.revision } else { revision };
    for result in &mut results {
        if let OpResult::Get(found) = result {
            found.revision = revision;
        }
    }
    Ok((TxnResult { succeeded, revision, results }, changes))
}

/// Deletes the keys of a lease that ends, and the lease.
pub(super) fn end_lease(view: &mut View, id: LeaseId) -> Option<Vec<Change>> {
    let lease = view.leases.get(&id)?.clone();
    let revision = view.revision.next();
    let changes = lease.keys.iter().filter_map(|key| view.delete(key, revision)).collect();
    view.leases.remove(&id);
    Some(changes)
}
