//! A write in the version that a webhook or a policy understands.

use api::Status;
use registry::{AnyObject, Object, Resource};
use serde_json::{Value, json};

use super::managed_fields::{RecordedFields, recorded as recorded_managed_fields};
use super::{Attributes, Verb};

/// The new state as a client of `resource` would see it.
pub(super) async fn versioned_object(
    attributes: &Attributes<'_>,
    resource: &Resource,
) -> Result<Option<Value>, Status> {
    let Some(object) = attributes.object.as_deref() else { return Ok(None) };
    let managed_fields = attributes.managed_fields.and_then(RecordedFields::as_json);
    versioned(attributes, resource, &**object, managed_fields).await.map(Some)
}

/// The old one.
pub(super) async fn versioned_old(attributes: &Attributes<'_>, resource: &Resource) -> Result<Option<Value>, Status> {
    let Some(object) = attributes.old else { return Ok(None) };
    let managed_fields = attributes.old_entry.and_then(|entry| recorded_managed_fields(&entry.stored));
    versioned(attributes, resource, object, managed_fields).await.map(Some)
}

/// An object as a client of `resource` would see it. The bodies of some subresources have the same form everywhere.
async fn versioned(
    attributes: &Attributes<'_>,
    resource: &Resource,
    object: &dyn Object,
    managed_fields: Option<&str>,
) -> Result<Value, Status> {
    let mut value = object.to_value().map_err(Status::internal)?;
    if let (Some(managed_fields), None) = (managed_fields, &object.meta().managed_fields) {
        value["metadata"]["managedFields"] = serde_json::from_str(managed_fields).map_err(Status::internal)?;
    }
    if attributes.has_own_kind() {
        return Ok(value);
    }
    if resource.is_custom {
        return in_version(attributes.resource, value, resource.api_version()).await;
    }
    resource.from_storage(&mut value);
    Ok(value)
}

/// An object of a custom kind in another of its versions: whoever is asked about it sees what a client of that version sees. By
/// name only, nothing of it is lost.
async fn in_version(own: &Resource, mut value: Value, wanted: String) -> Result<Value, Status> {
    let Some(converter) = own.converter.as_ref().filter(|_| value["apiVersion"] != *wanted) else {
        value["apiVersion"] = wanted.into();
        return Ok(value);
    };
    let converted = converter.convert(&own.kind, vec![value], &wanted).await?.pop();
    converted.ok_or_else(|| Status::internal("a conversion lost an object"))
}

/// The way back, with defaults for what the patch left unset. Unknown fields are dropped, as upstream's decoder does.
pub(super) async fn stored(
    attributes: &Attributes<'_>,
    resource: &Resource,
    mut value: Value,
    before: &dyn Object,
) -> Result<AnyObject, Status> {
    if attributes.has_own_kind() {
        return before.decode_like(value).map_err(Status::internal);
    }
    // Built-in kinds have one form on their way, custom ones that of the request.
    let resource = if resource.is_custom { attributes.resource } else { resource };
    if resource.is_custom {
        value = in_version(resource, value, resource.api_version()).await?;
    }
    let mut object = crate::versions::decode_checked(resource, value, &mut Vec::new())
        .map_err(|status| Status::internal(status.message))?;
    resource.strategy.apply_defaults(&mut *object);
    Ok(object)
}

/// The request as a review describes it, without its objects.
pub(super) fn request(attributes: &Attributes<'_>, target: &Resource) -> Value {
    let kind = |(group, version, kind): (&str, &str, &str)| json!({"group": group, "version": version, "kind": kind});
    let resource = |row: &Resource| json!({"group": row.group, "version": row.version, "resource": row.plural});
    let own = attributes.resource;
    let request_kind = attributes.kind();
    // A subresource with a kind of its own has that kind in every version of its parent.
    let target_kind =
        if attributes.has_own_kind() { request_kind } else { (&*target.group, &*target.version, &*target.kind) };
    let mut request = json!({
        "kind": kind(target_kind),
        "resource": resource(target),
        "requestKind": kind(request_kind),
        "requestResource": resource(own),
        "operation": attributes.verb.as_str(),
        "userInfo": attributes.user(),
        "dryRun": attributes.dry_run,
        "options": options(attributes),
    });
    for (key, value) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.name),
        ("namespace", attributes.namespace),
    ] {
        if !value.is_empty() {
            request[key] = value.into();
        }
    }
    request
}

/// The options of the request as an object of their kind; none for streams.
fn options(attributes: &Attributes<'_>) -> Value {
    let query = attributes.query;
    let kind = match attributes.verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Delete => return attributes.delete.map_or(Value::Null, crate::delete_options::DeleteOptions::to_value),
        Verb::Connect => return Value::Null,
    };
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    for key in ["fieldManager", "fieldValidation"] {
        if let Some(value) = query.get(key) {
            options[key] = value.into();
        }
    }
    if attributes.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}
