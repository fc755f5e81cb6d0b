//! The store: every object of the cluster as bytes under a key, with one global revision.
//!
//! Flow: `apiserver` -> [`Store::txn`] -> log on disk (or etcd) -> [`Store::watch`] -> watch caches.
//! Semantics are those of etcd v3, so the two implementations can be exchanged: [`embedded`] (the
//! default: an in-memory multi-version index and a durable log) and [`etcd`] (a real cluster).
//!
//! Invariants that callers may rely on:
//! - A write that was answered is durable; one that was refused left nothing behind. Only
//!   [`StoreError::Unavailable`] leaves the outcome open, as any lost connection does.
//! - Revisions have no gaps: each changing transaction gets the next one, all its operations share it.
//! - A watch delivers every change after its start exactly once, in revision order, or ends with an error.
//!
//! Not here: what a key or a value means. The store does not know what a Pod is.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod embedded;
pub mod etcd;
pub mod foreign;
pub mod transfer;

mod error;
mod forward;
mod kv;
mod range;
mod relocated;
mod txn;
mod watch;

pub use embedded::EmbeddedStore;
pub use error::StoreError;
pub use etcd::EtcdStore;
pub use kv::{Contents, KeyValue, LeaseId, Revision};
pub use range::{KeyRange, Range, RangeResult};
pub use relocated::Relocated;
pub use txn::{Compare, Op, OpResult, Txn, TxnResult};
pub use watch::{Watch, WatchEvent, WatchStream};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use std::time::Duration;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A consistent copy of the whole store in the implementation's own backup format, piece by piece.
pub type SnapshotStream = BoxStream<'static, Result<Bytes>>;

/// A revisioned, ordered key-value store with the semantics of etcd v3.
///
/// Dyn-safe: components hold an `Arc<dyn Store>`. The short forms `get`, `put`, `create`, `update`
/// and `delete` are on `dyn Store` itself; they are single transactions.
pub trait Store: Send + Sync + 'static {
    /// Reads one key or a prefix, at the current or at a past revision.
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult>>;

    /// Checks the compares and applies one branch, atomically. A failed compare is an outcome
    /// (`succeeded: false`), not an error.
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnResult>>;

    /// Follows the changes under a prefix. Resolves once the watch is in place: a write that starts
    /// afterwards is delivered.
    fn watch(&self, watch: Watch) -> BoxFuture<'_, Result<WatchStream>>;

    /// Asks every watch that wants progress to report how far it is, soon and without waiting for an event.
    fn request_progress(&self) -> BoxFuture<'_, Result<()>>;

    /// Forgets the history before `revision`: reads and watches from before it fail with
    /// [`StoreError::Compacted`] from now on.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>>;

    /// The revision of the latest change; linearizable with finished writes.
    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>>;

    /// Makes a lease. Keys put with it are deleted when it is revoked or not kept alive for `ttl`.
    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId>>;

    /// Restarts the lease's clock and returns its time to live.
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration>>;

    /// Ends the lease and deletes its keys in one revision.
    fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<'_, Result<()>>;

    /// A consistent copy taken while the store keeps serving, in the form that `cox store restore` or,
    /// for etcd, etcd's own tools read.
    fn snapshot(&self) -> BoxFuture<'_, Result<SnapshotStream>>;

    /// How many bytes the store takes on its disk, if that can be told.
    fn size(&self) -> BoxFuture<'_, Result<Option<u64>>>;
}

impl dyn Store {
    /// The key's current value, or `None`.
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        Ok(self.range(Range::key(key)).await?.kvs.pop())
    }

    /// Writes the key whatever it holds now. Returns the revision of the write.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<Revision> {
        let done = self.txn(Txn::new().then(Op::put(key, value))).await?;
        Ok(done.revision)
    }

    /// Writes the key if it does not exist; [`StoreError::Conflict`] if it does.
    pub async fn create(&self, key: &str, value: impl Into<Bytes>) -> Result<Revision> {
        self.swap(key, Revision::ZERO, Op::put(key, value)).await
    }

    /// Writes the key if it is still at `expected`; [`StoreError::Conflict`] if not.
    pub async fn update(&self, key: &str, value: impl Into<Bytes>, expected: Revision) -> Result<Revision> {
        self.swap(key, expected, Op::put(key, value)).await
    }

    /// Deletes the key if it is still at `expected`; [`StoreError::Conflict`] if not.
    pub async fn delete(&self, key: &str, expected: Revision) -> Result<Revision> {
        self.swap(key, expected, Op::delete(key)).await
    }

    async fn swap(&self, key: &str, expected: Revision, op: Op) -> Result<Revision> {
        let txn = Txn::new().when(Compare::mod_revision(key, expected)).then(op).otherwise(Op::get(key));
        let done = self.txn(txn).await?;
        if done.succeeded {
            return Ok(done.revision);
        }
        let found = done.kv(0).map_or(Revision::ZERO, |kv| kv.mod_revision);
        Err(StoreError::Conflict { key: key.into(), expected, found })
    }
}
