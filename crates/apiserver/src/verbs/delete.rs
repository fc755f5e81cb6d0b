//! `delete` and `deletecollection`: marking, finalizers, grace, and removal.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use registry::{AnyObject, Grace, Object};
use serde_json::{Value, json};
use store::StoreError;

use super::accept::{respond, respond_value};
use super::list::{Page, page};
use super::list_body::render;
use super::managed_fields::Books;
use super::write;
use crate::admission::{Attributes, Verb};
use crate::body::Body;
use crate::state::{Operation, inner_key, store_key};
use crate::watch_cache::Entry;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
const ATTEMPTS: usize = 50;
const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
/// What a user must be allowed to do besides `delete` to remove an object that cannot be read.
const UNSAFE_DELETE: &str = "unsafe-delete-ignore-read-errors";

/// `DeleteOptions`, from the body or the query.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) grace: Option<i64>,
    pub(crate) policy: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
    /// Remove an object that cannot be read, without a look at anything in it.
    pub(crate) ignores_read_error: bool,
}

impl Options {
    pub(crate) fn of(operation: &Operation) -> Result<Self, Status> {
        let query = &operation.info.query;
        let mut options = Options { dry_run: operation.dry_run()?, ..Default::default() };
        if operation.body.is_empty() {
            options.grace = match query.get("gracePeriodSeconds") {
                Some(text) => Some(text.parse().map_err(|_| {
                    Status::bad_request(format!(
                        "strconv.ParseInt: parsing {}: invalid syntax",
                        api::field::quote(text)
                    ))
                })?),
                None => None,
            };
            options.policy = query.get("propagationPolicy").map(str::to_owned);
            options.orphan_dependents = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
            options.ignores_read_error = query.flag(IGNORE_READ_ERROR);
        } else {
            let body = write::body_value(operation)?.value;
            options.read(&body);
        }
        options.validate()?;
        Ok(options)
    }

    /// Takes over what a `DeleteOptions` object says.
    pub(crate) fn read(&mut self, body: &Value) {
        self.grace = body["gracePeriodSeconds"].as_i64();
        self.policy = body["propagationPolicy"].as_str().map(str::to_owned);
        self.orphan_dependents = body["orphanDependents"].as_bool();
        self.uid = body["preconditions"]["uid"].as_str().map(str::to_owned);
        self.resource_version = body["preconditions"]["resourceVersion"].as_str().map(str::to_owned);
        self.ignores_read_error = body[IGNORE_READ_ERROR].as_bool() == Some(true);
        self.dry_run |= body["dryRun"].as_array().is_some_and(|list| list.iter().any(|value| value == "All"));
    }

    /// As an object of its kind, for those who are asked about the delete.
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        let mut set = |key: &str, field: Value| {
            if !field.is_null() {
                value[key] = field;
            }
        };
        set("gracePeriodSeconds", self.grace.into());
        set("propagationPolicy", self.policy.as_deref().into());
        set("orphanDependents", self.orphan_dependents.into());
        if self.uid.is_some() || self.resource_version.is_some() {
            let mut preconditions = serde_json::Map::new();
            preconditions.extend(self.uid.clone().map(|uid| ("uid".to_owned(), uid.into())));
            preconditions.extend(self.resource_version.clone().map(|rv| ("resourceVersion".to_owned(), rv.into())));
            set("preconditions", preconditions.into());
        }
        if self.dry_run {
            set("dryRun", json!(["All"]));
        }
        value
    }

    fn validate(&self) -> Result<(), Status> {
        let mut errors = api::field::FieldErrors::default();
        if let Some(policy) = &self.policy {
            if self.orphan_dependents.is_some() {
                errors.invalid(
                    "propagationPolicy",
                    policy,
                    "orphanDependents and deletionPropagation cannot be both set",
                );
            }
            if !matches!(&**policy, "Orphan" | "Background" | "Foreground") {
                errors.not_supported("propagationPolicy", policy, &["Background", "Foreground", "Orphan", "nil"]);
            }
        }
        if self.ignores_read_error {
            for (is_set, field) in [
                (self.dry_run, ".dryRun"),
                (self.policy.is_some(), ".propagationPolicy"),
                (self.orphan_dependents.is_some(), ".orphanDependents"),
                (self.grace.is_some(), ".gracePeriodSeconds"),
                (self.uid.is_some() || self.resource_version.is_some(), ".preconditions"),
            ] {
                if is_set {
                    errors.invalid(IGNORE_READ_ERROR, true, format!("cannot be set together with {field}"));
                }
            }
        }
        Self::refuse(errors)
    }

    fn refuse(errors: api::field::FieldErrors) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(&api::GroupKind::new("meta.k8s.io", "DeleteOptions"), "", errors))
    }

    /// The finalizers an object has after this delete was asked for.
    fn finalizers(&self, present: &[String], orphans_by_default: bool) -> Vec<String> {
        let wanted = match (self.policy.as_deref(), self.orphan_dependents) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(ORPHAN),
            (Some("Foreground"), _) => Some(FOREGROUND),
            (Some(_), _) | (None, Some(false)) => None,
            (None, None) if present.iter().any(|name| name == ORPHAN || name == FOREGROUND) => return present.to_vec(),
            (None, None) => orphans_by_default.then_some(ORPHAN),
        };
        let mut finalizers: Vec<String> =
            present.iter().filter(|name| *name != ORPHAN && *name != FOREGROUND).cloned().collect();
        finalizers.extend(wanted.map(str::to_owned));
        finalizers
    }
}

/// What became of an object.
pub(crate) enum Deleted {
    /// Gone; this was its last state, and the revision of the delete.
    Gone(Arc<Entry>, u64),
    /// Marked; it goes once grace and finalizers allow.
    Marked(Bytes),
}

pub(crate) async fn delete(operation: &Operation) -> Result<Response<Body>, Status> {
    let options = Options::of(operation)?;
    if options.ignores_read_error {
        return delete_unreadable(operation).await;
    }
    match delete_object(operation, &operation.info.namespace, &operation.info.name, &options).await? {
        Deleted::Gone(last, revision) if operation.resource.returns_deleted => respond(
            operation,
            StatusCode::OK,
            &write::with_revision(&as_deleted(operation, &last, &options)?, revision)?,
        ),
        Deleted::Gone(last, _) => {
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
    let asked = crate::authz::Attributes { verb: UNSAFE_DELETE.to_owned(), ..info.into() };
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
    match super::hooks::remove(operation, &store_key(resource, &inner), found.revision).await {
        Ok(_) => {}
        Err(StoreError::Conflict { .. }) => return Err(Status::modified(&operation.group_resource(), &info.name)),
        Err(error) => return Err(crate::status::from_store(error)),
    }
    let status = Status::deleted(&operation.group_resource(), &info.name, "");
    respond_value(operation, StatusCode::OK, &serde_json::to_value(&status).map_err(Status::internal)?)
}

/// The last state of an object that is gone. Where others have time to end, it shows that this one had none.
fn as_deleted(operation: &Operation, last: &Entry, options: &Options) -> Result<Bytes, Status> {
    let mut object = write::decode_entry(&operation.resource, last)?;
    let is_unmarked = object.meta().deletion_timestamp.is_none();
    if !is_unmarked || operation.resource.strategy.grace(&*object, options.grace) == Grace::Immediate {
        return Ok(last.stored.clone());
    }
    set_deletion(object.meta_mut(), operation.now, 0);
    write::encode(&operation.resource, &mut *object, &Books::of(last))
}

/// Deletes every object the request selects and answers with what was there.
pub(crate) async fn delete_collection(operation: &Operation) -> Result<Response<Body>, Status> {
    let options = Options::of(operation)?;
    if options.ignores_read_error {
        let mut errors = api::field::FieldErrors::default();
        let detail = "is not allowed with DELETECOLLECTION, try again after removing the option";
        errors.invalid(IGNORE_READ_ERROR, true, detail);
        Options::refuse(errors)?;
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
    options: &Options,
) -> Result<Deleted, Status> {
    let resource = &operation.resource;
    let inner = inner_key(resource, namespace, name);
    let key = store_key(resource, &inner);
    operation.state.caches.fresh().await?;
    let not_found = || operation.not_found(name);
    let cache = operation.state.cache(resource)?;
    let mut found = cache.get(&inner).ok_or_else(not_found)?;
    for _ in 0..ATTEMPTS {
        let current = crate::custom::entry(operation, found.clone()).await?;
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
                ..Attributes::of(operation, Verb::Delete, options.dry_run)
            };
            operation.state.admission.admit(&operation.state, &mut attributes).await?;
            operation.state.admission.validate(&operation.state, &attributes).await?;
        }

        let outcome = match mark(operation, &*old, options) {
            Marking::Pending => return Ok(Deleted::Marked(current.json())),
            Marking::Mark(mut new) => {
                let stored = write::encode(resource, &mut *new, &Books::of(&current))?;
                if options.dry_run {
                    return Ok(Deleted::Marked(write::with_revision(&stored, current.revision)?));
                }
                let converted = crate::custom::to_storage(operation, &stored).await?;
                match super::hooks::put(operation, &key, converted, current.revision).await {
                    Ok(revision) => return Ok(Deleted::Marked(write::with_revision(&stored, revision.0)?)),
                    Err(error) => error,
                }
            }
            Marking::Remove => {
                if options.dry_run {
                    let revision = current.revision;
                    return Ok(Deleted::Gone(current, revision));
                }
                match super::hooks::remove(operation, &key, current.revision).await {
                    Ok(revision) => {
                        super::hooks::after_delete(operation, &*old).await;
                        return Ok(Deleted::Gone(current, revision.0));
                    }
                    Err(error) => error,
                }
            }
        };
        match outcome {
            StoreError::Conflict { .. } => {
                let kv = operation.state.store().get(&key).await.map_err(crate::status::from_store)?;
                let kv = kv.ok_or_else(not_found)?;
                found = Arc::new(cache.entry(inner.as_str().into(), &kv.value, kv.mod_revision.0));
            }
            error => return Err(crate::status::from_store(error)),
        }
    }
    Err(Status::modified(&operation.group_resource(), name))
}

fn check_preconditions(operation: &Operation, name: &str, old: &dyn Object, options: &Options) -> Result<(), Status> {
    let meta = old.meta();
    let refuse = |what: &str, wanted: &str, found: &str| {
        let message = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
        Err(Status::conflict(&operation.group_resource(), name, message))
    };
    let found = meta.uid.as_deref().unwrap_or_default();
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
fn mark(operation: &Operation, old: &dyn Object, options: &Options) -> Marking {
    let mut new = old.boxed_clone();
    if let Some(namespace) = new.downcast_mut::<Namespace>() {
        return mark_namespace(operation, namespace, old);
    }
    let now = operation.now;
    crate::custom::mark(&mut *new, now);
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

/// A namespace is only marked; its controller empties it and then finalizes it.
fn mark_namespace(operation: &Operation, namespace: &mut Namespace, old: &dyn Object) -> Marking {
    let in_spec =
        namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref()).is_some_and(|list| !list.is_empty());
    let in_meta = namespace.metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty());
    if namespace.metadata.deletion_timestamp.is_some() {
        return if in_spec || in_meta { Marking::Pending } else { Marking::Remove };
    }
    namespace.metadata.deletion_timestamp = Some(Time(operation.now));
    namespace.status.get_or_insert_default().phase = Some("Terminating".to_owned());
    let _ = old;
    Marking::Mark(Box::new(namespace.clone()))
}
