//! The object that a write begins with: as the cache has it, without asking the store first.
//!
//! Other servers of the same etcd may have written what this cache does not show yet. Where something is written, the store
//! compares and finds that out; so only what ends without a write (an error, nothing to change, a dry run) needs to know
//! whether the cache was up to date. As upstream's `GuaranteedUpdate` with a cached object: one round trip for most writes.

use std::sync::Arc;

use api::Status;
use store::StoreError;

use crate::state::Operation;
use crate::status::from_store;
use crate::watch_cache::{Entry, inner_key, store_key};

pub(super) struct Candidate<'a> {
    operation: &'a Operation,
    name: &'a str,
    inner: String,
    /// Of the object in the store.
    pub(super) key: String,
    pub(super) entry: Arc<Entry>,
    /// The store had it so after the request came.
    is_current: bool,
}

/// What an attempt came to.
pub(super) enum Attempt<T> {
    /// The store compared and swapped.
    Committed(T),
    /// There was nothing to write.
    Unwritten(T),
    /// Somebody else wrote in between.
    Lost,
    /// It may have been written all the same, so nobody tries again.
    Failed(Status),
}

impl<T> Attempt<T> {
    /// After the store has swapped.
    pub(super) fn committed(result: Result<T, Status>) -> Self {
        result.map_or_else(Attempt::Failed, Attempt::Committed)
    }
}

impl<T> From<StoreError> for Attempt<T> {
    /// What a compare-and-swap came to that did not swap.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { .. } => Attempt::Lost,
            error => Attempt::Failed(from_store(error)),
        }
    }
}

impl<'a> Candidate<'a> {
    pub(super) async fn find(operation: &'a Operation, namespace: &str, name: &'a str) -> Result<Self, Status> {
        let inner = inner_key(&operation.resource, namespace, name);
        let (entry, is_current) = look_up(operation, &inner).await?;
        let entry = entry.ok_or_else(|| operation.not_found(name))?;
        Ok(Self { operation, name, key: store_key(&operation.resource, &inner), inner, entry, is_current })
    }

    /// What comes of an attempt on this state; `None`: it is to be made again, on the state that is here now.
    pub(super) async fn result<T>(&mut self, attempt: Result<Attempt<T>, Status>) -> Result<Option<T>, Status> {
        match attempt {
            Ok(Attempt::Committed(done)) => Ok(Some(done)),
            Ok(Attempt::Unwritten(done)) => Ok(self.was_current().await?.then_some(done)),
            Ok(Attempt::Lost) => {
                self.read_again().await?;
                Ok(None)
            }
            Ok(Attempt::Failed(status)) => Err(status),
            Err(status) => match self.was_current().await? {
                true => Err(status),
                false => Ok(None),
            },
        }
    }

    /// Whether nobody had written before the request came. It is current afterwards.
    async fn was_current(&mut self) -> Result<bool, Status> {
        if self.is_current {
            return Ok(true);
        }
        let newest = newest(self.operation, &self.inner).await?.ok_or_else(|| self.operation.not_found(self.name))?;
        self.is_current = true;
        let before = std::mem::replace(&mut self.entry, newest);
        Ok(before.revision == self.entry.revision)
    }

    async fn read_again(&mut self) -> Result<(), Status> {
        let state = &self.operation.state;
        let found = state.store().get(&self.key).await.map_err(from_store)?;
        let kv = found.ok_or_else(|| self.operation.not_found(self.name))?;
        let cache = state.cache(&self.operation.resource)?;
        self.entry = Arc::new(cache.entry(self.inner.as_str().into(), &kv.value, kv.mod_revision.0));
        self.is_current = true;
        Ok(())
    }
}

/// The object as the cache has it just now.
pub(super) fn cached(operation: &Operation) -> Result<Option<Arc<Entry>>, Status> {
    let inner = inner_key(&operation.resource, &operation.info.namespace, &operation.info.name);
    Ok(operation.state.cache(&operation.resource)?.get(&inner))
}

/// Whether there is such an object.
pub(super) async fn exists(operation: &Operation) -> Result<bool, Status> {
    let inner = inner_key(&operation.resource, &operation.info.namespace, &operation.info.name);
    Ok(look_up(operation, &inner).await?.0.is_some())
}

/// Whether the store has no such object: a cache that is behind may show what another server has deleted.
pub(super) async fn is_gone(operation: &Operation) -> Result<bool, Status> {
    let inner = inner_key(&operation.resource, &operation.info.namespace, &operation.info.name);
    Ok(newest(operation, &inner).await?.is_none())
}

/// The object in the cache, and whether that is surely the latest. What is not there is looked for with every finished write.
async fn look_up(operation: &Operation, inner: &str) -> Result<(Option<Arc<Entry>>, bool), Status> {
    operation.state.caches.settled().await?;
    match operation.state.cache(&operation.resource)?.get(inner) {
        Some(found) => Ok((Some(found), false)),
        None => Ok((newest(operation, inner).await?, true)),
    }
}

async fn newest(operation: &Operation, inner: &str) -> Result<Option<Arc<Entry>>, Status> {
    operation.state.caches.fresh().await?;
    Ok(operation.state.cache(&operation.resource)?.get(inner))
}
