//! Steps of a write that reach beyond its object: allocators, right checks that need other objects, leases.
//!
//! Strategies are pure; what must look or act elsewhere is here, so the list of such exceptions stays short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Status;
use bytes::Bytes;
use k8s_openapi::api::core::v1::Service;
use store::{Compare, LeaseId, Op, Revision, StoreError, Txn};

use crate::registry::Object;
use crate::registry::core::service_allocation::Taken;
use crate::state::{Operation, State};

/// What to give back when the write fails, and what to free when it succeeds.
#[derive(Default)]
pub(crate) struct Undo {
    taken: Taken,
    released: Taken,
}

impl Undo {
    /// The write did not happen.
    pub(crate) fn run(self, state: &State) {
        state.allocators.release(&self.taken);
    }

    /// The write happened.
    pub(crate) fn commit(self, state: &State) {
        state.allocators.release(&self.released);
    }
}

pub(crate) async fn before_create(
    operation: &Operation,
    object: &mut dyn Object,
    _dry_run: bool,
) -> Result<Undo, Status> {
    if let Some(service) = object.downcast_mut::<Service>() {
        let taken = operation.state.allocators.allocate(service, None)?;
        return Ok(Undo { taken, released: Taken::default() });
    }
    crate::authz::escalation::check(operation, object, None).await?;
    Ok(Undo::default())
}

pub(crate) async fn before_update(
    operation: &Operation,
    new: &mut dyn Object,
    old: &dyn Object,
    _dry_run: bool,
) -> Result<Undo, Status> {
    if let (Some(service), Some(old)) = (new.downcast_mut::<Service>(), old.downcast_ref::<Service>()) {
        let taken = operation.state.allocators.allocate(service, Some(old))?;
        let released = Taken::of(old).without(&Taken::of(service));
        return Ok(Undo { taken, released });
    }
    crate::authz::escalation::check(operation, new, Some(old)).await?;
    Ok(Undo::default())
}

pub(crate) fn after_delete(operation: &Operation, old: &dyn Object) {
    if let Some(service) = old.downcast_ref::<Service>() {
        operation.state.allocators.release(&Taken::of(service));
    }
}

/// Writes the key if it is at `expected` (0: absent). Events get a lease, so that they go away by themselves.
pub(crate) async fn put(operation: &Operation, key: &str, value: Bytes, expected: u64) -> Result<Revision, StoreError> {
    let store = operation.state.store();
    if operation.resource.store_prefix != "events" {
        return match expected {
            0 => store.create(key, value).await,
            _ => store.update(key, value, Revision(expected)).await,
        };
    }
    let lease = operation.state.event_leases.current(&operation.state).await?;
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

/// Leases for events: many events share one, as in upstream's lease manager.
pub(crate) struct EventLeases {
    ttl: Duration,
    current: tokio::sync::Mutex<Option<(LeaseId, Instant, u32)>>,
}

/// A lease is given to new events for this long, and to this many.
const REUSE: Duration = Duration::from_secs(60);
const REUSE_COUNT: u32 = 1000;

impl EventLeases {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, current: tokio::sync::Mutex::new(None) }
    }

    async fn current(&self, state: &State) -> Result<LeaseId, StoreError> {
        let mut current = self.current.lock().await;
        if let Some((lease, since, used)) = current.as_mut()
            && since.elapsed() < REUSE
            && *used < REUSE_COUNT
        {
            *used += 1;
            return Ok(*lease);
        }
        // The last event on a lease must live as long as the first would alone.
        let lease = state.store().grant_lease(self.ttl + REUSE).await?;
        *current = Some((lease, Instant::now(), 1));
        Ok(lease)
    }
}
