//! `metadata.managedFields`: who owns which field, recorded on every write.
//!
//! Managed fields are a third of an object and only server-side apply reads them, so on the way of a write they
//! travel beside the object, as text: [`RecordedFields`]. Objects in memory carry them only where a client sent some, or a webhook
//! made some.

use std::borrow::Cow;

use api::Status;
use api::field::FieldErrors;
use api::patch::apply::{Write, Writer};
use http::header;
use registry::resource::Conversion;
use registry::{KindVersions, Object, Resource};
use serde_json::Value;

use super::write::Current;
use crate::admission::managed_fields::{RecordedFields, given};
use crate::state::Operation;
use crate::watch_cache::Entry;

/// Bytes of a manager's name, and letters of a user agent that stands for one.
const MAX_MANAGER: usize = 128;

/// Whether the request is a server-side apply, which records owners itself.
pub(crate) fn is_apply(operation: &Operation) -> bool {
    crate::accept::is_apply(&operation.info.verb, &operation.headers)
}

/// Who writes: the `fieldManager` of the request, or the start of the client's user agent.
pub(crate) fn manager(operation: &Operation) -> Result<String, Status> {
    if let Some(manager) = operation.info.query.get("fieldManager").filter(|manager| !manager.is_empty()) {
        let errors = refused_manager(manager);
        return if errors.is_empty() { Ok(manager.to_owned()) } else { Err(operation.refused_options(errors)) };
    }
    let agent = operation.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = agent.split('/').next().unwrap_or_default();
    Ok(match name {
        "" if operation.call().user.name == crate::cluster::OWN_USER => "kube-apiserver".to_owned(),
        "" => "unknown".to_owned(),
        name => name.chars().take(MAX_MANAGER).collect(),
    })
}

fn refused_manager(manager: &str) -> FieldErrors {
    let mut errors = FieldErrors::default();
    if manager.len() > MAX_MANAGER {
        errors.too_long("fieldManager", MAX_MANAGER);
    }
    for (at, letter) in manager.char_indices().filter(|(_, letter)| letter.is_control()) {
        let detail = format!("invalid character U+{:04X} (at position {at})", u32::from(letter));
        errors.invalid("fieldManager", manager, detail);
    }
    errors
}

/// Fields that a write through this endpoint cannot change, so that nobody comes to own them by it.
pub(crate) fn ignored(operation: &Operation) -> &'static [&'static str] {
    match &*operation.info.subresource {
        "" if operation.resource.has_status() => &["status"],
        "status" => &["spec"],
        _ => &[],
    }
}

/// Records who changed what, before strategies and admission add to it: what they set belongs to nobody. The old object,
/// as stored and read, is absent for a create.
pub(crate) fn track(
    operation: &Operation,
    new: &mut dyn Object,
    old: Option<(&Current<'_>, &dyn Object)>,
) -> Result<RecordedFields, Status> {
    let given = given(new)?;
    if is_apply(operation) {
        return Ok(RecordedFields::new(given));
    }
    let resource = &operation.resource;
    let recorded = old.and_then(|(current, _)| current.managed_fields);
    let live = old.map(|(current, old)| stored_text(resource, current, old)).transpose()?;
    let text = in_version(resource, crate::initializers::visible(resource, new)?.into())?;
    let (manager, api_version) = (manager(operation)?, resource.api_version());
    let versions = KindVersions::new(&operation.state.registry, resource);
    let writer = writer(operation, &manager, &api_version, &versions);
    let write = Write { live: live.as_deref(), new: &text, ignored: ignored(operation) };
    let kept = api::patch::apply::update(write, recorded, given.as_deref(), &resource.schema(), &writer);
    Ok(RecordedFields::new(kept.map(Cow::into_owned)))
}

/// Who writes by this request, in the version of its row: in that its fields are recorded.
pub(crate) fn writer<'a>(
    operation: &'a Operation,
    manager: &'a str,
    api_version: &'a str,
    versions: &'a KindVersions<'a>,
) -> Writer<'a> {
    let subresource = &operation.info.subresource;
    Writer { manager, api_version, versions: versions.others(), subresource, now: operation.now }
}

/// The current object in that version.
pub(crate) fn live_value(resource: &Resource, entry: &Entry) -> Result<Value, Status> {
    if resource.conversion.is_some() {
        return crate::versions::served_value(resource, &entry.json());
    }
    Ok(entry.decode()?)
}

/// The old object as others see it: nearly always just as it is stored.
fn stored_text<'a>(resource: &Resource, current: &'a Current<'_>, old: &dyn Object) -> Result<Cow<'a, [u8]>, Status> {
    let is_as_stored = !resource.initializers && !matches!(resource.conversion, Some(Conversion::Custom(_)));
    let text = match is_as_stored {
        true => Cow::Borrowed(&*current.text),
        false => Cow::Owned(crate::initializers::visible(resource, old)?),
    };
    in_version(resource, text)
}

/// An object as it is while it is worked on, in the version of the row. Custom ones are in it already.
fn in_version<'a>(resource: &Resource, text: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, Status> {
    if !matches!(resource.conversion, Some(Conversion::Fixed { .. })) {
        return Ok(text);
    }
    let value = crate::versions::served_value(resource, &text)?;
    serde_json::to_vec(&value).map(Cow::Owned).map_err(Status::internal)
}
