//! Steps of a write that reach beyond its object: allocators, right checks that need other objects, leases.
//!
//! Strategies are pure; what must look or act elsewhere is here, so the list of such exceptions stays short.

use std::sync::Arc;
use std::time::Instant;

use api::Status;
use bytes::Bytes;
use k8s_openapi::api::core::v1::{Namespace, Service};
use registry::Object;
use store::{Compare, Op, Revision, StoreError, Txn};
use trace::{Id, Stage};

use crate::allocation::{self, Taken};
use crate::state::{Operation, State};
use crate::watch_cache::ROOT;

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
            allocation::release(&state.cluster, &claims.service, &claims.taken).await;
        }
    }

    /// The write happened.
    pub(crate) async fn commit(self, state: &Arc<State>) {
        if let Some(claims) = self.0 {
            allocation::release(&state.cluster, &claims.service, &claims.released).await;
        }
    }
}

/// Whether a request may claim or free something besides the object it is about.
pub(super) fn reaches_beyond(operation: &Operation) -> bool {
    let info = &operation.info;
    let is_service = operation.resource.group.is_empty() && operation.resource.plural == "services";
    is_service && !info.verb.is_read() && matches!(info.subresource.as_str(), "" | "status")
}

pub(crate) async fn before_create(
    operation: &Operation,
    object: &mut dyn Object,
    dry_run: bool,
) -> Result<Undo, Status> {
    if let Some(service) = object.downcast_mut::<Service>() {
        let taken = allocation::allocate(&operation.state.cluster, service, None, dry_run).await?;
        return Ok(Undo(Some(Box::new(Claims { service: service.clone(), taken, released: Taken::default() }))));
    }
    escalation(operation, object, None).await?;
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
        let taken = allocation::allocate(&operation.state.cluster, service, Some(old), dry_run).await?;
        let released = Taken::of(old).without(&Taken::of(service));
        return Ok(Undo(Some(Box::new(Claims { service: service.clone(), taken, released }))));
    }
    escalation(operation, new, Some(old)).await?;
    admin_access(operation, new, Some(old))?;
    Ok(Undo::default())
}

async fn escalation(operation: &Operation, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Status> {
    let Operation { state, user, info, resource, .. } = operation;
    let write = crate::authz::escalation::Write { authorizers: &state.authz, user, info, resource };
    crate::authz::escalation::check(&write, new, old).await
}

fn admin_access(operation: &Operation, new: &dyn Object, old: Option<&dyn Object>) -> Result<(), Status> {
    let namespace = || operation.state.objects().part::<Namespace, _>("", &operation.info.namespace);
    registry::dra::admin_access::check(&operation.resource, new, old, namespace)
}

pub(crate) async fn after_delete(operation: &Operation, old: &dyn Object) {
    if let Some(service) = old.downcast_ref::<Service>() {
        allocation::release(&operation.state.cluster, service, &Taken::of(service)).await;
    }
}

/// Writes the key if it is at `expected` (0: absent). Events get a lease, so that they go away by themselves.
pub(crate) async fn put(operation: &Operation, key: &str, value: Bytes, expected: u64) -> Result<Revision, StoreError> {
    let began = Instant::now();
    let revision = write(operation, key, value, expected).await?;
    operation.state.caches.wrote(revision);
    let what = if expected == 0 { "create" } else { "update" };
    committed(operation, key, what, began, revision);
    Ok(revision)
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
    if operation.resource.store_prefix != "events" {
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
