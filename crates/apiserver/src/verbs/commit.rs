//! The commit of a write: one key, compared and swapped, with its span.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Compare, Op, Revision, StoreError, Txn};
use trace::{Id, Stage};

use crate::state::Operation;
use crate::watch_cache::ROOT;

/// For looking whether an object is there although the store has not said so.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes the key if it is at `expected` (0: absent). What expires gets a lease, so that it goes away by itself.
pub(crate) async fn put(operation: &Operation, key: &str, value: Bytes, expected: u64) -> Result<Revision, StoreError> {
    let began = Instant::now();
    let revision = match write(operation, key, value.clone(), expected).await {
        Err(error) if expected == 0 && error.leaves_outcome_open() => {
            created(operation, key, &value).await.ok_or(error)?
        }
        written => written?,
    };
    operation.state.caches.wrote(revision);
    let what = if expected == 0 { "create" } else { "update" };
    committed(operation, key, what, began, revision);
    Ok(revision)
}

/// The revision of an object that was created though the answer to that was lost: what is there has the uid that was made for
/// it.
async fn created(operation: &Operation, key: &str, value: &Bytes) -> Option<Revision> {
    let found = tokio::time::timeout(LOOK_TIMEOUT, operation.state.store().get(key)).await.ok()?.ok()??;
    (found.value == *value).then_some(found.mod_revision)
}

/// Deletes the key if it is at `expected`.
pub(crate) async fn remove(operation: &Operation, key: &str, expected: u64) -> Result<Revision, StoreError> {
    let began = Instant::now();
    let revision = operation.state.store().delete(key, Revision(expected)).await?;
    operation.state.caches.wrote(revision);
    committed(operation, key, "delete", began, revision);
    Ok(revision)
}

async fn write(operation: &Operation, key: &str, value: Bytes, expected: u64) -> Result<Revision, StoreError> {
    let store = operation.state.store();
    if !operation.resource.expires {
        return match expected {
            0 => store.create(key, value).await,
            _ => store.update(key, value, Revision(expected)).await,
        };
    }
    let lease = operation.state.event_leases.current(store).await?;
    let key: Arc<str> = key.into();
    let txn = Txn::new().when(Compare::mod_revision(key.clone(), Revision(expected))).then(Op::put_with_lease(
        key.clone(),
        value,
        lease,
    ));
    let done = store.txn(txn).await?;
    if done.succeeded {
        return Ok(done.revision);
    }
    Err(StoreError::Conflict { key: key.to_string(), expected: Revision(expected), found: Revision::ZERO })
}

/// The span of a commit, caused by the request that is served.
fn committed(operation: &Operation, key: &str, what: &str, began: Instant, revision: Revision) {
    let resource = &operation.resource;
    let inner = key.strip_prefix(ROOT).and_then(|key| key.strip_prefix(&*resource.store_prefix)).unwrap_or(key);
    let object = format_args!("{}{inner}", resource.plural);
    let detail = format_args!("{what} at {}", revision.0);
    trace::part(Id::commit(revision.0), Stage::Commit, "store", object, detail, began);
    if operation.info.name.is_empty() {
        trace::set_object(|| object.to_string());
    }
}
