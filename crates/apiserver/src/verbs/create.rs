//! `create`: decode -> default -> admit (mutate) -> prepare -> validate -> admit (validate) -> encode once -> put if absent.

use api::Status;
use api::meta::Meta as _;
use bytes::Bytes;
use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use registry::AnyObject;
use store::StoreError;
use trace::Stage;

use super::respond::respond;
use super::write::{self, body_object, ensure_namespace, validate_meta};
use crate::admission::managed_fields::RecordedFields;
use crate::admission::{Attributes, Verb};
use crate::body::Body;
use crate::hooks::{self, Write};
use crate::stamp::{generate_name, unique_id};
use crate::state::Operation;
use crate::watch_cache::{inner_key, store_key};

/// How often a taken generated name is replaced by another one.
const NAME_ATTEMPTS: usize = 8;

pub(crate) async fn create(operation: &Operation) -> Result<Response<Body>, Status> {
    trace::mark();
    let object = body_object(operation)?;
    trace::lap(Stage::Decode);
    let stored = create_object(operation, object).await?;
    respond(operation, StatusCode::CREATED, &stored)
}

/// As [`create_object`], for an update or an apply that finds nothing: who may change objects may not therefore make them.
pub(super) async fn create_instead(operation: &Operation, object: AnyObject) -> Result<Bytes, Status> {
    let state = &operation.state;
    let attributes = crate::authz::Attributes { verb: registry::Verb::Create, ..(&operation.info).into() };
    state.authz.require_fresh(&state.caches, &operation.user, &attributes).await?;
    create_object(operation, object).await
}

/// Stores a new object; returns it as sent to clients.
pub(crate) async fn create_object(operation: &Operation, mut object: AnyObject) -> Result<Bytes, Status> {
    let meta = object.meta_mut();
    ensure_namespace(operation, meta)?;
    if !operation.info.name.is_empty() && meta.name() != operation.info.name {
        meta.name = Some(operation.info.name.clone());
    }
    wipe_system_fields(meta);
    let dry_run = operation.dry_run()?;
    // Admission and allocation look at other objects.
    operation.state.caches.settled().await?;
    operation.resource.strategy.apply_defaults(&mut *object);
    let mut managed_fields = super::managed_fields::track(operation, &mut *object, None)?;
    trace::lap(Stage::Default);
    let name = object.meta().name().to_owned();
    let mut attributes = attributes(operation, &name, dry_run, (&mut object, &managed_fields));
    operation.state.admission.admit(&operation.state.cluster, &mut attributes).await?;
    managed_fields.take_over(&mut *object)?;
    let meta = object.meta_mut();
    let generated = meta.name().is_empty() && meta.generate_name.as_deref().is_some_and(|prefix| !prefix.is_empty());
    let mut attempt = 1;
    loop {
        let copy = if generated { Some(object.boxed_clone()) } else { None };
        match create_once(operation, (object, &managed_fields), generated, dry_run).await {
            Err(status) if generated && status.is_already_exists() => {
                if attempt == NAME_ATTEMPTS {
                    let name = status.details.as_ref().map(|details| details.name.clone()).unwrap_or_default();
                    return Err(Status::generate_name_conflict(&operation.group_resource(), &name));
                }
                attempt += 1;
                let Some(copy) = copy else { return Err(status) };
                object = copy;
                trace::mark();
            }
            other => return super::unfinished::finished(operation, other?).await,
        }
    }
}

/// The version of an object is the store's to give. Said where upstream's store says it: plug-ins speak first.
fn refuse_version(meta: &ObjectMeta) -> Result<(), Status> {
    if matches!(meta.resource_version.as_deref(), None | Some("" | "0")) {
        return Ok(());
    }
    let mut status = Status::internal("");
    status.message = "resourceVersion should not be set on objects to be created".to_owned();
    status.reason = "".into();
    status.details = None;
    Err(status)
}

/// Identity, birth and death are the server's to give.
fn wipe_system_fields(meta: &mut ObjectMeta) {
    meta.creation_timestamp = None;
    meta.uid = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.generation = None;
    meta.self_link = None;
}

/// Everything after mutation, which happened once; a generated name that is taken brings us here again.
async fn create_once(
    operation: &Operation,
    (mut object, managed_fields): (AnyObject, &RecordedFields),
    generated: bool,
    dry_run: bool,
) -> Result<Bytes, Status> {
    let resource = &operation.resource;
    let strategy = &resource.strategy;
    let meta = object.meta_mut();
    wipe_system_fields(meta);
    if generated {
        meta.name = Some(generate_name(meta.generate_name.as_deref().unwrap_or_default()));
    }
    meta.creation_timestamp = Some(Time(operation.now));
    meta.uid = Some(unique_id());
    let name = meta.name().to_owned();

    // Admission may have left fields unset that have defaults.
    strategy.apply_defaults(&mut *object);
    strategy.prepare_for_create(&operation.call(), &mut *object);
    let mut errors = validate_meta(resource, object.meta());
    errors.extend(strategy.validate_create(&*object));
    trace::lap(Stage::Validation);
    write::invalid(operation, &name, errors)?;
    for warning in strategy.warnings(&*object, None) {
        operation.warn(warning);
    }
    let attributes = attributes(operation, &name, dry_run, (&mut object, managed_fields));
    operation.state.admission.validate(&operation.state.cluster, &attributes).await?;
    refuse_version(object.meta())?;

    let key = inner_key(resource, &operation.info.namespace, &name);
    if operation.state.cache(resource)?.get(&key).is_some() {
        // Before anything is allocated for it.
        return Err(Status::already_exists(&operation.group_resource(), &name));
    }
    let undo = hooks::before_write(Write { operation, new: &mut *object, old: None, dry_run }).await?;
    trace::lap(Stage::Allocate);
    let made = write::encode(resource, &mut *object, managed_fields)?;
    let stored = super::convert::to_storage(operation, &made).await?;
    trace::lap(Stage::Encode);
    if dry_run {
        undo.run(&operation.state.cluster).await;
        return Ok(made);
    }
    match super::commit::put(operation, &store_key(resource, &key), stored, 0).await {
        Ok(revision) => write::with_revision(&made, revision.0),
        Err(error) => {
            undo.after_failure(&error, &operation.state.cluster).await;
            Err(match error {
                StoreError::Conflict { .. } => Status::already_exists(&operation.group_resource(), &name),
                error => crate::status::from_store(error),
            })
        }
    }
}

fn attributes<'a>(
    operation: &'a Operation,
    name: &'a str,
    dry_run: bool,
    (object, managed_fields): (&'a mut AnyObject, &'a RecordedFields),
) -> Attributes<'a> {
    let namespace = operation.resource.namespace_of(&operation.info.namespace, name);
    let (object, managed_fields) = (Some(object), Some(managed_fields));
    Attributes { namespace, name, object, managed_fields, ..operation.attributes(Verb::Create, dry_run) }
}
