//! `update`, and the guarded read-modify-write that patch and the subresources share.

use api::Status;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::{Action, AnyObject, Object, Resource};
use trace::Stage;

use super::candidate::{self, Attempt, Candidate};
use super::respond::respond;
use super::write::{self, Current, body_object, body_object_beside, ensure_namespace, validate_meta_update};
use crate::admission::managed_fields::RecordedFields;
use crate::admission::{Attributes, Verb};
use crate::body::Body;
use crate::hooks::{self, Write};
use crate::initializers::Initializers;
use crate::state::Operation;
use crate::watch_cache::Entry;

/// Writers that lose a race this often in a row give up; each loss means that another one made progress.
const ATTEMPTS: usize = 200;

/// Which part of the object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Main,
    Status,
    /// A subresource that writes the parent by its own rules.
    Part(Action),
}

impl Target {
    pub(crate) fn of(operation: &Operation) -> Self {
        match operation.resource.subresource(&operation.info.subresource).map(|subresource| subresource.action) {
            None => Target::Main,
            Some(Action::Status) => Target::Status,
            Some(action) => Target::Part(action),
        }
    }
}

/// The result of a write: the object as sent to clients, and whether it is new.
pub(crate) struct Written {
    pub(crate) stored: Bytes,
    pub(crate) created: bool,
}

impl Written {
    pub(crate) fn respond(self, operation: &Operation) -> Result<Response<Body>, Status> {
        let code = if self.created { StatusCode::CREATED } else { StatusCode::OK };
        respond(operation, code, &self.stored)
    }
}

pub(crate) async fn update(operation: &Operation) -> Result<Response<Body>, Status> {
    let mut object = body_object_beside(operation, candidate::cached(operation)?.as_deref())?;
    let meta = object.meta_mut();
    ensure_namespace(operation, meta)?;
    match meta.name.as_deref() {
        None | Some("") => return Err(Status::bad_request("name must be provided")),
        Some(name) if name == operation.info.name => {}
        Some(name) => {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                operation.info.name
            )));
        }
    }
    let target = Target::of(operation);
    let may_create = target == Target::Main && operation.resource.strategy.creates_on_update();
    if may_create && !candidate::exists(operation).await? {
        let stored = super::create::create_instead(operation, object).await?;
        return Written { stored, created: true }.respond(operation);
    }
    let version = object.meta().resource_version.clone();
    let mut object = Some(object);
    let written = modify(operation, target, |current, _| {
        // The version that it names is written over once, so that nothing needs to be kept for another time.
        let is_named = version.as_ref().is_some_and(|version| *version == current.entry.revision.to_string());
        let next = if is_named { object.take() } else { object.as_ref().map(|object| object.boxed_clone()) };
        next.ok_or_else(|| Status::modified(&operation.group_resource(), &operation.info.name))
    })
    .await;
    match written {
        Err(status) if may_create && status.is_not_found() => {
            // Deleted by another server, which the cache did not show yet; or something else was not found.
            if !candidate::is_gone(operation).await? {
                return Err(status);
            }
            let mut object = body_object(operation)?;
            ensure_namespace(operation, object.meta_mut())?;
            let stored = super::create::create_instead(operation, object).await?;
            Written { stored, created: true }.respond(operation)
        }
        written => written?.respond(operation),
    }
}

/// Takes the object, lets `make` build the new one, runs every check and writes it if nobody wrote in between;
/// otherwise starts again.
pub(crate) async fn modify(
    operation: &Operation,
    target: Target,
    mut make: impl FnMut(&Current<'_>, &dyn Object) -> Result<AnyObject, Status> + Send,
) -> Result<Written, Status> {
    modify_by(operation, target, &mut make).await
}

/// Builds the new object from the present one.
type Make<'a> = dyn FnMut(&Current<'_>, &dyn Object) -> Result<AnyObject, Status> + Send + 'a;

/// Not generic: a write is a lot of code, and a dozen callers have something to change.
async fn modify_by(operation: &Operation, target: Target, make: &mut Make<'_>) -> Result<Written, Status> {
    let name = &operation.info.name;
    let dry_run = operation.dry_run()?;
    let mut candidate = Candidate::find(operation, &operation.info.namespace, name).await?;
    for _ in 0..ATTEMPTS {
        let attempt = attempt(operation, target, &candidate, make, dry_run).await;
        if let Some(written) = candidate.result(attempt).await? {
            return Ok(written);
        }
    }
    Err(Status::modified(&operation.group_resource(), name))
}

async fn attempt(
    operation: &Operation,
    target: Target,
    candidate: &Candidate<'_>,
    make: &mut Make<'_>,
    dry_run: bool,
) -> Result<Attempt<Written>, Status> {
    let (resource, key) = (&operation.resource, &candidate.key);
    let current = super::convert::entry(operation, candidate.entry.clone()).await?;
    trace::mark();
    let before = Current::of(&current);
    let old = before.decode(resource)?;
    let mut new = make(&before, &*old)?;
    trace::lap(Stage::Decode);
    check_version(operation, new.meta(), old.meta())?;
    let managed_fields = prepare(operation, target, &mut new, (&before, &*old), dry_run).await?;

    trace::mark();
    let mut errors = validate_meta_update(resource, new.meta(), old.meta());
    errors.extend(match target {
        // Nobody has seen an object that waits for initializers: they may change what is immutable later.
        Target::Main if Initializers::of(old.meta()).is_some() => resource.strategy.validate_create(&*new),
        Target::Main => resource.strategy.validate_update(&*new, &*old),
        Target::Status | Target::Part(Action::Eviction) => {
            resource.strategy.validate_status_update(&*new, &*old, operation.now)
        }
        Target::Part(action) => resource.strategy.validate_part_update(action, &*new, &*old),
    });
    trace::lap(Stage::Validation);
    write::invalid(operation, &operation.info.name, errors)?;
    if target == Target::Main {
        resource.strategy.warnings(&*new, Some(&*old)).into_iter().for_each(|warning| operation.warn(warning));
    }
    admit(operation, target, Phase::Validate, (&mut new, &managed_fields), (&current, &*old), dry_run).await?;

    let undo = hooks::before_write(Write { operation, new: &mut *new, old: Some(&*old), dry_run }).await?;
    let finished = is_finished(resource, &*new);
    let refused = Initializers::of(new.meta()).is_some_and(|state| state.has_failed());
    let made = write::encode(resource, &mut *new, &managed_fields)?;
    if dry_run {
        undo.run(&operation.state.cluster).await;
        let stored = write::with_revision(&made, current.revision)?;
        return Ok(Attempt::Unwritten(Written { stored, created: false }));
    }
    let stored = super::convert::to_storage(operation, &made).await?;
    let outcome = if finished {
        // The last finalizer is gone: what was marked for deletion goes now.
        let deleted = super::commit::remove(operation, key, current.revision).await;
        if deleted.is_ok() {
            hooks::after_delete(operation, &*old).await;
        }
        deleted
    } else if stored == candidate.entry.stored && !operation.state.is_stale(key).await? {
        return Ok(Attempt::Unwritten(Written { stored: current.json(), created: false }));
    } else {
        super::commit::put(operation, key, stored, current.revision).await
    };
    let revision = match outcome {
        Ok(revision) => revision,
        Err(error) => {
            undo.after_failure(&error, &operation.state.cluster).await;
            return Ok(error.into());
        }
    };
    undo.commit(&operation.state.cluster).await;
    let written = async {
        if refused {
            // Whoever waits for it has seen the result; the object goes, even if this client goes first.
            let (state, key) = (operation.state.clone(), key.clone());
            let removal = tokio::spawn(FutureExt::boxed(async move { state.store().delete(&key, revision).await }));
            let removed = removal.await.map_err(Status::internal)?.map_err(crate::status::from_store)?;
            operation.state.caches.wrote(removed);
            hooks::after_delete(operation, &*new).await;
        }
        Ok::<_, Status>(Written { stored: write::with_revision(&made, revision.0)?, created: false })
    };
    Ok(Attempt::committed(written.await))
}

/// Checks the preconditions in the new object's metadata.
fn check_version(operation: &Operation, new: &ObjectMeta, old: &ObjectMeta) -> Result<(), Status> {
    let (resource, name) = (operation.group_resource(), &operation.info.name);
    if let (Some(wanted), Some(found)) = (&new.uid, &old.uid)
        && !wanted.is_empty()
        && wanted != found
    {
        let message = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
        return Err(Status::conflict(&resource, name, message));
    }
    match new.resource_version.as_deref() {
        None | Some("") | Some("0") => {
            if operation.resource.strategy.unconditional_update() || operation.info.verb == registry::Verb::Patch {
                return Ok(());
            }
            let mut errors = api::field::FieldErrors::default();
            errors.invalid("metadata.resourceVersion", 0, "must be specified for an update");
            // Upstream names the resource here, where other errors name the kind.
            let resource =
                api::GroupKind { group: operation.resource.group.clone(), kind: operation.resource.plural.clone() };
            Err(Status::invalid(&resource, name, errors))
        }
        Some(version) if Some(version) == old.resource_version.as_deref() => Ok(()),
        Some(_) => Err(Status::modified(&resource, name)),
    }
}

/// Defaults and mutates the new state, then takes back what this write may not change: also what a plug-in changed.
async fn prepare(
    operation: &Operation,
    target: Target,
    new: &mut AnyObject,
    (current, old): (&Current<'_>, &dyn Object),
    dry_run: bool,
) -> Result<RecordedFields, Status> {
    let strategy = &operation.resource.strategy;
    keep_system_fields(new.meta_mut(), old.meta());
    strategy.apply_defaults(&mut **new);
    match target {
        // These make the new object from the old one themselves.
        Target::Main | Target::Status | Target::Part(Action::Binding | Action::Eviction) => {}
        Target::Part(action) => {
            let made = strategy.with_part(action, &**new, old, operation.now);
            *new = made.ok_or_else(Status::method_not_allowed)?;
        }
    }
    let mut managed_fields = super::managed_fields::track(operation, &mut **new, Some((current, old)))?;
    admit(operation, target, Phase::Mutate, (new, &managed_fields), (current.entry, old), dry_run).await?;
    managed_fields.take_over(&mut **new)?;
    keep_system_fields(new.meta_mut(), old.meta());
    strategy.apply_defaults(&mut **new);
    match target {
        Target::Main => strategy.prepare_for_update(&operation.call(), &mut **new, old),
        Target::Status | Target::Part(Action::Eviction) => {
            strategy.prepare_for_status_update(&operation.call(), &mut **new, old);
        }
        Target::Part(action) => strategy.prepare_for_part_update(action, &mut **new, old),
    }
    Ok(managed_fields)
}

#[derive(Clone, Copy)]
enum Phase {
    Mutate,
    Validate,
}

/// Asks the plug-ins. They see a write to `scale` as a change of the Scale, not of the workload behind it.
async fn admit(
    operation: &Operation,
    target: Target,
    phase: Phase,
    (new, managed_fields): (&mut AnyObject, &RecordedFields),
    (entry, old): (&Entry, &dyn Object),
    dry_run: bool,
) -> Result<(), Status> {
    if matches!(target, Target::Part(Action::Binding | Action::Eviction)) {
        // Admitted as the creation of a Binding or an Eviction before it came here.
        return Ok(());
    }
    let attributes = operation.attributes(Verb::Update, dry_run);
    if operation.info.subresource != "scale" {
        let (managed_fields, old_entry) = (Some(managed_fields), Some(entry));
        return ask(
            operation,
            phase,
            Attributes { object: Some(new), old: Some(old), managed_fields, old_entry, ..attributes },
        )
        .await;
    }
    let mut scale: AnyObject = Box::new(registry::scale::of(&operation.resource, &**new)?);
    let old = registry::scale::of(&operation.resource, old)?;
    ask(operation, phase, Attributes { object: Some(&mut scale), old: Some(&old), ..attributes }).await?;
    registry::scale::take_over(&operation.resource, new, &*scale)
}

async fn ask(operation: &Operation, phase: Phase, mut attributes: Attributes<'_>) -> Result<(), Status> {
    match phase {
        Phase::Mutate => operation.state.admission.admit(&operation.state.cluster, &mut attributes).await,
        Phase::Validate => operation.state.admission.validate(&operation.state.cluster, &attributes).await,
    }
}

/// What a client cannot change: identity, birth and death.
fn keep_system_fields(new: &mut ObjectMeta, old: &ObjectMeta) {
    new.uid.clone_from(&old.uid);
    new.creation_timestamp.clone_from(&old.creation_timestamp);
    new.deletion_timestamp.clone_from(&old.deletion_timestamp);
    new.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    new.generation = old.generation;
    new.generate_name.clone_from(&old.generate_name);
}

/// Marked for deletion, with nothing left that holds it back.
fn is_finished(resource: &Resource, object: &dyn Object) -> bool {
    let meta = object.meta();
    meta.deletion_timestamp.is_some()
        && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
        && meta.deletion_grace_period_seconds.unwrap_or(0) == 0
        && !resource.strategy.is_held(object)
}
