//! `delete` and `deletecollection`: marking, finalizers, grace, and removal.

use std::sync::Arc;

use api::Status;
use api::meta::Meta as _;
use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use registry::{AnyObject, Deletion, Grace, Object};
use store::StoreError;

use super::candidate::{Attempt, Candidate};
use super::list::{Page, page};
use super::list_body::render;
use super::respond::{respond, respond_value};
use super::write;
use crate::admission::managed_fields::RecordedFields;
use crate::admission::{Attributes, Verb};
use crate::body::Body;
use crate::delete_options::{DeleteOptions, IGNORE_READ_ERROR};
use crate::state::Operation;
use crate::watch_cache::Entry;
use crate::watch_cache::{inner_key, store_key};

const ATTEMPTS: usize = 50;
/// What a user must be allowed to do besides `delete` to remove an object that cannot be read.
const UNSAFE_DELETE: &str = "unsafe-delete-ignore-read-errors";

/// What became of an object.
pub(crate) enum Deleted {
    /// Gone; this was its last state, as stored and read, and the revision of the delete.
    Gone(Arc<Entry>, AnyObject, u64),
    /// Marked; it goes once grace and finalizers allow.
    Marked(Bytes),
}

/// What a delete was asked with, in the body or the query.
fn options(operation: &Operation) -> Result<DeleteOptions, Status> {
    let query = &operation.info.query;
    let mut options = DeleteOptions { dry_run: operation.dry_run()?, ..Default::default() };
    if operation.body.is_empty() {
        options.grace = match query.get("gracePeriodSeconds") {
            Some(text) => Some(text.parse().map_err(|_| {
                Status::bad_request(format!("strconv.ParseInt: parsing {}: invalid syntax", api::field::quote(text)))
            })?),
            None => None,
        };
        options.policy = query.get("propagationPolicy").map(str::to_owned);
        options.orphan_dependents = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
        options.ignores_read_error = query.flag(IGNORE_READ_ERROR);
    } else {
        let body = write::body_value(operation)?.value;
        options.read(&body)?;
    }
    options.validate()?;
    Ok(options)
}

pub(crate) async fn delete(operation: &Operation) -> Result<Response<Body>, Status> {
    let options = options(operation)?;
    if options.ignores_read_error {
        return delete_unreadable(operation).await;
    }
    match delete_object(operation, &operation.info.namespace, &operation.info.name, &options).await? {
        Deleted::Gone(last, object, revision) if operation.resource.returns_deleted => {
            let last = as_deleted(operation, &last, object, &options)?;
            respond(operation, StatusCode::OK, &write::with_revision(&last, revision)?)
        }
        Deleted::Gone(last, ..) => {
            let uid = crate::json::find(&last.stored, &["metadata", "uid"]);
            let uid = uid.map(|range| crate::json::text(&last.stored[range]).into_owned()).unwrap_or_default();
            let status = Status::deleted(&operation.group_resource(), &operation.info.name, &uid);
            let value = serde_json::to_value(&status).map_err(Status::internal)?;
            respond_value(operation, StatusCode::OK, &value)
        }
        Deleted::Marked(stored) => {
            let code = if options.orphan_dependents == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
            respond(operation, code, &stored)
        }
    }
}

/// Takes an object that cannot be read out of the store: no finalizer, precondition or plug-in can be asked about it.
async fn delete_unreadable(operation: &Operation) -> Result<Response<Body>, Status> {
    let (info, resource) = (&operation.info, &operation.resource);
    let asked = crate::authz::Attributes { verb: registry::Verb::custom(UNSAFE_DELETE), ..info.into() };
    let decision = operation.state.authz.decide(&operation.user, &asked).await;
    if !decision.allowed {
        let message = format!("not permitted to do {UNSAFE_DELETE:?}, reason: {}", decision.reason);
        return Err(Status::forbidden(&operation.group_resource(), &info.name, message));
    }
    operation.state.caches.fresh().await?;
    let inner = inner_key(resource, &info.namespace, &info.name);
    let found = operation.state.cache(resource)?.get(&inner).ok_or_else(|| operation.not_found(&info.name))?;
    if write::decode_entry(resource, &found).is_ok() {
        let mut errors = api::field::FieldErrors::default();
        let detail = "is exclusively used to delete corrupt object(s), try again by removing this option";
        errors.invalid(IGNORE_READ_ERROR, true, detail);
        let kind = api::GroupKind { group: info.group.clone().into(), kind: info.resource.clone().into() };
        return Err(Status::invalid(&kind, &info.name, errors));
    }
    match super::commit::remove(operation, &store_key(resource, &inner), found.revision).await {
        Ok(_) => {}
        Err(StoreError::Conflict { .. }) => return Err(Status::modified(&operation.group_resource(), &info.name)),
        Err(error) => return Err(crate::status::from_store(error)),
    }
    let status = Status::deleted(&operation.group_resource(), &info.name, "");
    respond_value(operation, StatusCode::OK, &serde_json::to_value(&status).map_err(Status::internal)?)
}

/// The last state of an object that is gone. Where others have time to end, it shows that this one had none.
fn as_deleted(
    operation: &Operation,
    last: &Entry,
    mut object: AnyObject,
    options: &DeleteOptions,
) -> Result<Bytes, Status> {
    let is_unmarked = object.meta().deletion_timestamp.is_none();
    if !is_unmarked || operation.resource.strategy.grace(&*object, options.grace) == Grace::Immediate {
        return Ok(last.stored.clone());
    }
    set_deletion(object.meta_mut(), operation.now, 0);
    write::encode(&operation.resource, &mut *object, &RecordedFields::of(last))
}

/// Deletes every object the request selects and answers with what was there.
pub(crate) async fn delete_collection(operation: &Operation) -> Result<Response<Body>, Status> {
    let options = options(operation)?;
    if options.ignores_read_error {
        let mut errors = api::field::FieldErrors::default();
        let detail = "is not allowed with DELETECOLLECTION, try again after removing the option";
        errors.invalid(IGNORE_READ_ERROR, true, detail);
        DeleteOptions::refuse(errors)?;
    }
    let found = page(operation).await?;
    for entry in &found.entries {
        match delete_object(operation, entry.namespace(), entry.name(), &options).await {
            Ok(_) => {}
            Err(status) if status.is_not_found() => {}
            Err(status) => return Err(status),
        }
    }
    render(operation, Page { next: None, remaining: None, ..found })
}

pub(crate) async fn delete_object(
    operation: &Operation,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    let mut candidate = Candidate::find(operation, namespace, name).await?;
    for _ in 0..ATTEMPTS {
        let attempt = attempt(operation, (namespace, name), &candidate, options).await;
        if let Some(deleted) = candidate.result(attempt).await? {
            return Ok(deleted);
        }
    }
    Err(Status::modified(&operation.group_resource(), name))
}

async fn attempt(
    operation: &Operation,
    (namespace, name): (&str, &str),
    candidate: &Candidate<'_>,
    options: &DeleteOptions,
) -> Result<Attempt<Deleted>, Status> {
    let (resource, key) = (&operation.resource, &candidate.key);
    let current = super::convert::entry(operation, candidate.entry.clone()).await?;
    let old = write::decode_entry(resource, &current)?;
    check_preconditions(operation, name, &*old, options)?;
    // An eviction was admitted as such; the delete that follows from it is not a request of its own.
    if operation.info.subresource.is_empty() {
        let mut attributes = Attributes {
            namespace,
            name,
            old: Some(&*old),
            old_entry: Some(&current),
            delete: Some(options),
            ..operation.attributes(Verb::Delete, options.dry_run)
        };
        operation.state.admission.admit(&operation.state.cluster, &mut attributes).await?;
        operation.state.admission.validate(&operation.state.cluster, &attributes).await?;
    }
    match mark(operation, &*old, options) {
        Marking::Pending => Ok(Attempt::Unwritten(Deleted::Marked(current.json()))),
        Marking::Mark(mut new) => {
            let stored = write::encode(resource, &mut *new, &RecordedFields::of(&current))?;
            if options.dry_run {
                let stored = write::with_revision(&stored, current.revision)?;
                return Ok(Attempt::Unwritten(Deleted::Marked(stored)));
            }
            let converted = super::convert::to_storage(operation, &stored).await?;
            Ok(match super::commit::put(operation, key, converted, current.revision).await {
                Ok(revision) => Attempt::committed(write::with_revision(&stored, revision.0).map(Deleted::Marked)),
                Err(error) => error.into(),
            })
        }
        Marking::Remove if options.dry_run => {
            let revision = current.revision;
            Ok(Attempt::Unwritten(Deleted::Gone(current, old, revision)))
        }
        Marking::Remove => Ok(match super::commit::remove(operation, key, current.revision).await {
            Ok(revision) => {
                crate::hooks::after_delete(operation, &*old).await;
                Attempt::Committed(Deleted::Gone(current, old, revision.0))
            }
            Err(error) => error.into(),
        }),
    }
}

/// Refuses an object that is not the one the options name.
pub(crate) fn check_preconditions(
    operation: &Operation,
    name: &str,
    old: &dyn Object,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let meta = old.meta();
    let refuse = |what: &str, wanted: &str, found: &str| {
        let message = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
        Err(Status::conflict(&operation.group_resource(), name, message))
    };
    let found = meta.uid();
    match options.uid.as_deref() {
        Some(wanted) if wanted != found => return refuse("UID", wanted, found),
        _ => {}
    }
    let found = meta.resource_version.as_deref().unwrap_or_default();
    match options.resource_version.as_deref() {
        Some(wanted) if wanted != found => refuse("ResourceVersion", wanted, found),
        _ => Ok(()),
    }
}

enum Marking {
    Remove,
    Mark(AnyObject),
    /// Already marked; nothing to change.
    Pending,
}

/// Decides what a delete does to an object (`BeforeDelete` and the finalizer rules of upstream's registry store).
fn mark(operation: &Operation, old: &dyn Object, options: &DeleteOptions) -> Marking {
    let mut new = old.boxed_clone();
    let now = operation.now;
    match operation.resource.strategy.before_delete(&mut *new, now) {
        Some(Deletion::Remove) => return Marking::Remove,
        Some(Deletion::Mark) => return Marking::Mark(new),
        Some(Deletion::Pending) => return Marking::Pending,
        None => {}
    }
    let meta = new.meta_mut();
    let present = meta.finalizers.clone().unwrap_or_default();
    let finalizers = options.finalizers(&present, operation.resource.strategy.orphans_by_default());
    let finalizers_changed = finalizers != present;
    let held = !finalizers.is_empty();
    meta.finalizers = held.then_some(finalizers);

    if let Some(deletion) = meta.deletion_timestamp.clone() {
        let left = meta.deletion_grace_period_seconds.unwrap_or(0);
        // Less than nothing is as little as one can be told of.
        let asked = options.grace.map(|asked| if asked < 0 { 1 } else { asked });
        if let Some(asked) = asked.filter(|asked| *asked < left) {
            let earlier = jiff::SignedDuration::from_secs(left.saturating_sub(asked));
            let moved = deletion.0.checked_sub(earlier).unwrap_or(now);
            meta.deletion_timestamp = Some(Time(moved));
            meta.deletion_grace_period_seconds = Some(asked);
            return if asked == 0 && !held { Marking::Remove } else { Marking::Mark(new) };
        }
        return match (left, held, finalizers_changed) {
            (0, false, _) => Marking::Remove,
            (_, _, true) => Marking::Mark(new),
            _ => Marking::Pending,
        };
    }
    let grace = match operation.resource.strategy.grace(old, options.grace) {
        Grace::Immediate => 0,
        Grace::Seconds(seconds) => seconds.max(0),
    };
    if grace == 0 && !held {
        return Marking::Remove;
    }
    set_deletion(meta, now, grace);
    Marking::Mark(new)
}

fn set_deletion(meta: &mut ObjectMeta, now: Timestamp, grace: i64) {
    // No longer than there are dates for.
    let grace = grace.min(Timestamp::MAX.as_second() - now.as_second());
    let deletion = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
    meta.deletion_timestamp = Some(Time(deletion));
    meta.deletion_grace_period_seconds = Some(grace);
    if let Some(generation) = meta.generation.filter(|generation| *generation > 0) {
        meta.generation = Some(generation + 1);
    }
}
