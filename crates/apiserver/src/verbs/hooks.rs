//! Steps of a write that reach beyond its object: allocators, right checks that need other objects, leases.
//!
//! Strategies are pure; what must look or act elsewhere is here, so the list of such exceptions stays short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Status;
use bytes::Bytes;
use k8s_openapi::api::core::v1::Service;
use registry::Object;
use store::{Compare, LeaseId, Op, Revision, StoreError, Txn};

use crate::allocation::{self, Taken};
use crate::state::{Operation, State};

/// What to give back when the write fails, and what to free when it succeeds.
#[derive(Default)]
pub(crate) struct Undo(Option<Box<Claims>>);

struct Claims {
    service: Service,
    taken: Taken,
    released: Taken,
}

impl Undo {
    /// The write did not happen.
    pub(crate) async fn run(self, state: &Arc<State>) {
        if let Some(claims) = self.0 {
            allocation::release(state, &claims.service, &claims.taken).await;
        }
    }

    /// The write happened.
    pub(crate) async fn commit(self, state: &Arc<State>) {
        if let Some(claims) = self.0 {
            allocation::release(state, &claims.service, &claims.released).await;
        }
    }
}

/// Whether a request may claim or free something besides the object it is about.
pub(super) fn reaches_beyond(operation: &Operation) -> bool {
    let info = &operation.info;
    let reads = matches!(info.verb, "get" | "list" | "watch");
    let is_service = operation.resource.group.is_empty() && operation.resource.plural == "services";
    is_service && !reads && matches!(info.subresource.as_str(), "" | "status")
}

pub(crate) async fn before_create(
    operation: &Operation,
    object: &mut dyn Object,
    dry_run: bool,
) -> Result<Undo, Status> {
    if let Some(service) = object.downcast_mut::<Service>() {
        let taken = allocation::allocate(&operation.state, service, None, dry_run).await?;
        return Ok(Undo(Some(Box::new(Claims { service: service.clone(), taken, released: Taken::default() }))));
    }
    crate::authz::escalation::check(operation, object, None).await?;
    admin_access(operation, object, None)?;
    Ok(Undo::default())
}

pub(crate) async fn before_update(
    operation: &Operation,
    new: &mut dyn Object,
    old: &dyn Object,
    dry_run: bool,
) -> Result<Undo, Status> {
    if let (Some(service), Some(old)) = (new.downcast_mut::<Service>(), old.downcast_ref::<Service>()) {
        let taken = allocation::allocate(&operation.state, service, Some(old), dry_run).await?;
        let released = Taken::of(old).without(&Taken::of(service));
        return Ok(Undo(Some(Box::new(Claims { service: service.clone(), taken, released }))));
    }
    crate::authz::escalation::check(operation, new, Some(old)).await?;
    admin_access(operation, new, Some(old))?;
    Ok(Undo::default())
}

fn admin_access(operation: &Operation, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Status> {
    let namespace = || operation.state.peek("namespaces", &operation.info.namespace);
    registry::dra::admin_access::check(&operation.resource, new, old, namespace)
}

pub(crate) async fn after_delete(operation: &Operation, old: &dyn Object) {
    if let Some(service) = old.downcast_ref::<Service>() {
        allocation::release(&operation.state, service, &Taken::of(service)).await;
    }
}

/// Writes the key if it is at `expected` (0: absent). Events get a lease, so that they go away by themselves.
pub(crate) async fn put(operation: &Operation, key: &str, value: Bytes, expected: u64) -> Result<Revision, StoreError> {
    let began = Instant::now();
    let revision = write(operation, key, value, expected).await?;
    operation.state.caches.wrote(revision);
    let what = if expected == 0 { "create" } else { "update" };
    crate::walk::committed(operation, key, what, began, revision);
    Ok(revision)
}

/// Deletes the key if it is at `expected`.
pub(crate) async fn remove(operation: &Operation, key: &str, expected: u64) -> Result<Revision, StoreError> {
    let began = Instant::now();
    let revision = operation.state.store().delete(key, Revision(expected)).await?;
    operation.state.caches.wrote(revision);
    crate::walk::committed(operation, key, "delete", began, revision);
    Ok(revision)
}

async fn write(operation: &Operation, key: &str, value: Bytes, expected: u64) -> Result<Revision, StoreError> {
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
