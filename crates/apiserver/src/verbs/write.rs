//! What all writes share: decoding a body, checking metadata, encoding once, and the compare-and-swap.

use std::borrow::Cow;

use api::codec::Decoded;
use api::field::{FieldErrors, Path};
use api::meta::Meta as _;
use api::{Status, validation};
use bytes::Bytes;
use http::header;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::{AnyObject, NameRule, Object, Resource, Typed};
use serde_json::Value;

use crate::admission::managed_fields::RecordedFields;
use crate::admission::{Attributes, Verb};
use crate::json;
use crate::state::Operation;
use crate::versions::decode_checked;
use crate::watch_cache::Entry;

const ACCEPTED: &[&str] = &["application/json", "application/yaml", crate::protobuf::CONTENT_TYPE];

/// How unknown and duplicate fields are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    pub(crate) fn of(operation: &Operation) -> Result<Self, Status> {
        match operation.info.query.get("fieldValidation") {
            None | Some("Warn") => Ok(Self::Warn),
            Some("Ignore") => Ok(Self::Ignore),
            Some("Strict") => Ok(Self::Strict),
            Some(other) => {
                let mut errors = FieldErrors::default();
                errors.not_supported("fieldValidation", other, &["Ignore", "Strict", "Warn"]);
                Err(operation.refused_options(errors))
            }
        }
    }
}

/// Decodes the request body as JSON or YAML.
pub(crate) fn body_value(operation: &Operation) -> Result<Decoded, Status> {
    let content_type =
        operation.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("application/json");
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let encoding = match media {
        "" | "application/json" => api::codec::Encoding::Json,
        "application/yaml" => api::codec::Encoding::Yaml,
        crate::protobuf::CONTENT_TYPE => {
            let value =
                crate::protobuf::decode(&operation.body).map_err(|error| Status::bad_request(error.to_string()))?;
            return Ok(Decoded { value, duplicates: Vec::new() });
        }
        _ => return Err(Status::unsupported_media_type(ACCEPTED)),
    };
    api::codec::decode(&operation.body, encoding).map_err(|error| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error}",
            operation.resource.kind
        ))
    })
}

/// Turns the body into the stored type, after checking that it is what the URL says.
pub(crate) fn body_object(operation: &Operation) -> Result<AnyObject, Status> {
    body_object_beside(operation, None)
}

/// As [`body_object`], where the object is in the cache. Managed fields that came back just as they are recorded are not
/// read: an object without any keeps those.
pub(crate) fn body_object_beside(operation: &Operation, present: Option<&Entry>) -> Result<AnyObject, Status> {
    if let Some(object) = plain_object(operation, present) {
        return Ok(object);
    }
    let Decoded { mut value, duplicates } = body_value(operation)?;
    let resource = &operation.resource;
    check_kind(resource, &mut value)?;
    let validation = FieldValidation::of(operation)?;
    let mut problems = Vec::new();
    let object = decode_checked(resource, value, &mut problems)?;
    problems.extend(duplicate_fields(&duplicates));
    report(operation, validation, problems)?;
    Ok(object)
}

/// The short way for the usual body: JSON in the stored version, just as its schema says.
fn plain_object(operation: &Operation, present: Option<&Entry>) -> Option<AnyObject> {
    let (resource, body) = (&operation.resource, &operation.body);
    let is_json = operation.headers.get(header::CONTENT_TYPE).is_none_or(|value| value == "application/json");
    if !is_json || resource.conversion.is_some() || resource.initializers || FieldValidation::of(operation).is_err() {
        return None;
    }
    let says = |key: &str, expected: &str| json::find(body, &[key]).is_some_and(|at| json::text(&body[at]) == expected);
    if !says("kind", &resource.kind) || !says("apiVersion", &resource.api_version()) {
        return None;
    }
    match present.and_then(|present| without_recorded_fields(body, present)) {
        Some(text) => resource.strategy.decode_fitting(&text),
        None => resource.strategy.decode_fitting(body),
    }
}

/// The body with no value for its managed fields, if it is the present version of the object with other changes only. What
/// else is wrong with it stays wrong.
fn without_recorded_fields(body: &[u8], present: &Entry) -> Option<Vec<u8>> {
    let version = json::find(body, &["metadata", "resourceVersion"])?;
    let recorded = crate::admission::managed_fields::recorded(&present.stored)?;
    let given = api::trim::managed_fields_of(body)?;
    let is_same =
        json::text(&body[version]) == present.revision.to_string() && &body[given.clone()] == recorded.as_bytes();
    is_same.then(|| [&body[..given.start], b"null", &body[given.end..]].concat())
}

/// How repeated fields are reported, each once.
pub(crate) fn duplicate_fields(paths: &[String]) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let once = paths.iter().filter(|path| seen.insert(*path));
    once.map(|path| format!("duplicate field {}", api::field::quote(path))).collect()
}

/// Reports unknown and duplicate fields as the request asks.
pub(crate) fn report(operation: &Operation, validation: FieldValidation, problems: Vec<String>) -> Result<(), Status> {
    match validation {
        _ if problems.is_empty() => Ok(()),
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            problems.into_iter().for_each(|problem| operation.warn(problem));
            Ok(())
        }
        FieldValidation::Strict => {
            let resource = &operation.resource;
            Err(Status::bad_request(format!(
                "{} in version {} cannot be handled as a {}: strict decoding error: {}",
                resource.kind,
                api::field::quote(&resource.version),
                resource.kind,
                problems.join(", ")
            )))
        }
    }
}

/// `apiVersion` and `kind` may be left out; if given they must be those of the URL.
pub(crate) fn check_kind(resource: &Resource, value: &mut Value) -> Result<(), Status> {
    let Some(object) = value.as_object_mut() else {
        return Err(Status::bad_request(format!(
            "{} in version {} cannot be handled as a {}: json: cannot unmarshal into Go value of type {}",
            resource.kind,
            api::field::quote(&resource.version),
            resource.kind,
            resource.kind
        )));
    };
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, api_version) = (text("kind"), text("apiVersion"));
    let expected = resource.api_version();
    if !api_version.is_empty() && api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    if !kind.is_empty() && kind != resource.kind {
        return Err(Status::bad_request(format!(
            "{kind} in version {} cannot be handled as a {}: converting ({kind}) to ({}): unknown conversion",
            api::field::quote(&resource.version),
            resource.kind,
            resource.kind
        )));
    }
    object.insert("kind".to_owned(), resource.kind.as_ref().into());
    object.insert("apiVersion".to_owned(), expected.into());
    Ok(())
}

/// A cached object that is to be changed: its text and its managed fields apart, found in one walk.
pub(crate) struct Current<'a> {
    pub(crate) entry: &'a Entry,
    /// As it is stored, without managed fields.
    pub(crate) text: Cow<'a, [u8]>,
    pub(crate) managed_fields: Option<&'a str>,
}

impl<'a> Current<'a> {
    pub(crate) fn of(entry: &'a Entry) -> Self {
        let (text, managed_fields) = api::trim::apart(&entry.stored);
        Self {
            entry,
            text,
            managed_fields: managed_fields.and_then(|managed_fields| std::str::from_utf8(managed_fields).ok()),
        }
    }

    /// The typed form, resource version included.
    pub(crate) fn decode(&self, resource: &Resource) -> Result<AnyObject, Status> {
        self.entry.readable()?;
        let decoded = crate::initializers::decode(resource, &self.text);
        let mut object = decoded.map_err(|error| self.entry.refuse(&error))?;
        let meta = object.meta_mut();
        meta.managed_fields = None;
        meta.resource_version = Some(self.entry.revision.to_string());
        Ok(object)
    }
}

/// The typed form of a cached object, resource version included.
pub(crate) fn decode_entry(resource: &Resource, entry: &Entry) -> Result<AnyObject, Status> {
    Current::of(entry).decode(resource)
}

/// Shows plug-ins the body of a subresource that is a creation of its own kind (a Binding, an Eviction, a TokenRequest).
/// Returns what they made of it.
pub(crate) async fn admit_body<K: Typed>(operation: &Operation, body: K, dry_run: bool) -> Result<K, Status> {
    let mut object: AnyObject = Box::new(body);
    let mut attributes = Attributes { object: Some(&mut object), ..operation.attributes(Verb::Create, dry_run) };
    operation.state.admission.admit(&operation.state.cluster, &mut attributes).await?;
    operation.state.admission.validate(&operation.state.cluster, &attributes).await?;
    object.downcast_ref::<K>().cloned().ok_or_else(|| Status::internal("a plug-in changed the kind of the object"))
}

/// Encodes an object as it is stored: canonical order, a status, its managed fields, no resource version.
pub(crate) fn encode(
    resource: &Resource,
    object: &mut dyn Object,
    managed_fields: &RecordedFields,
) -> Result<Bytes, Status> {
    object.fill_status();
    let meta = object.meta_mut();
    meta.resource_version = None;
    meta.self_link = None;
    let raw = crate::initializers::encode(resource, object)?;
    // What a webhook converts is written in its own version first.
    let version = match resource.converter {
        Some(_) => Cow::Owned(resource.api_version()),
        None => Cow::Borrowed(&*resource.storage_version),
    };
    json::canonical(raw, &resource.kind, &version, managed_fields.as_json())
        .map(Bytes::from)
        .ok_or_else(|| Status::internal("encoded object has no metadata"))
}

/// The encoded object with its resource version, as it is sent.
pub(crate) fn with_revision(stored: &[u8], revision: u64) -> Result<Bytes, Status> {
    json::with_revision(stored, revision)
        .map(Bytes::from)
        .ok_or_else(|| Status::internal("encoded object has no metadata"))
}

/// The object's namespace must be that of the URL; if empty it becomes so.
pub(crate) fn ensure_namespace(operation: &Operation, meta: &mut ObjectMeta) -> Result<(), Status> {
    if !operation.resource.is_namespaced() {
        meta.namespace = None;
        return Ok(());
    }
    let wanted = &operation.info.namespace;
    match meta.namespace.as_deref() {
        None | Some("") => meta.namespace = Some(wanted.clone()),
        Some(given) if given == wanted => {}
        Some(_) => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}

pub(crate) fn check_name(rule: NameRule, name: &str) -> Vec<String> {
    match rule {
        NameRule::Subdomain => validation::dns1123_subdomain(name),
        NameRule::Label => validation::dns1123_label(name),
        NameRule::Dns1035Label => validation::dns1035_label(name),
        NameRule::PathSegment => validation::path_segment_name(name),
        NameRule::IpAddress => {
            registry::address::parse_canonical_ip(name).err().map(|error| error.to_string()).into_iter().collect()
        }
    }
}

/// The rules for metadata that hold for every kind (`ValidateObjectMeta`).
pub(crate) fn validate_meta(resource: &Resource, meta: &ObjectMeta) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let path = Path::new("metadata");
    let name = meta.name();
    if name.is_empty() {
        errors.required(path.child("name"), "name or generateName is required");
    } else {
        errors.invalid_each(path.child("name"), name, check_name(resource.strategy.name_rule(), name));
    }
    if let Some(prefix) = meta.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        // A generated name ends in letters and digits, so the prefix itself may end in a dash.
        let probe = format!("{prefix}x");
        errors.invalid_each(path.child("generateName"), prefix, check_name(resource.strategy.name_rule(), &probe));
    }
    for (key, value) in meta.labels.iter().flatten() {
        errors.invalid_each(path.child("labels"), key, validation::qualified_name(key));
        errors.invalid_each(path.child("labels"), value, validation::label_value(value));
    }
    let mut size = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        size += key.len() + value.len();
        errors.invalid_each(path.child("annotations"), key, validation::qualified_name(&key.to_lowercase()));
    }
    const ANNOTATIONS_LIMIT: usize = 256 * 1024;
    if size > ANNOTATIONS_LIMIT {
        errors.too_long(path.child("annotations"), ANNOTATIONS_LIMIT);
    }
    let mut controller: Option<String> = None;
    for (index, owner) in meta.owner_references.iter().flatten().enumerate() {
        let at = format!("metadata.ownerReferences[{index}]");
        for (field, value) in
            [("apiVersion", &owner.api_version), ("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)]
        {
            if value.is_empty() {
                errors.invalid(
                    format!("{at}.{field}"),
                    value,
                    format!("{} must not be empty", if field == "apiVersion" { "version" } else { field }),
                );
            }
        }
        if owner.controller == Some(true) {
            if let Some(first) = &controller {
                let message = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}/{}",
                    owner.kind, owner.name
                );
                errors.invalid("metadata.ownerReferences", &meta.owner_references, message);
            } else {
                controller = Some(format!("{}/{}", owner.kind, owner.name));
            }
        }
    }
    for finalizer in meta.finalizers.iter().flatten() {
        errors.invalid_each(path.child("finalizers"), finalizer, validation::qualified_name(finalizer));
    }
    errors
}

/// What an update may not do to metadata (`ValidateObjectMetaUpdate`).
pub(crate) fn validate_meta_update(resource: &Resource, new: &ObjectMeta, old: &ObjectMeta) -> FieldErrors {
    let mut errors = validate_meta(resource, new);
    errors.immutable("metadata.name", &new.name, &old.name);
    errors.immutable("metadata.namespace", &new.namespace, &old.namespace);
    errors.immutable("metadata.uid", &new.uid, &old.uid);
    errors.immutable("metadata.creationTimestamp", &new.creation_timestamp, &old.creation_timestamp);
    if old.deletion_timestamp.is_some() {
        let known: std::collections::HashSet<&String> = old.finalizers.iter().flatten().collect();
        let added: Vec<&String> = new.finalizers.iter().flatten().filter(|name| !known.contains(name)).collect();
        if !added.is_empty() {
            let message = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            );
            errors.forbidden("metadata.finalizers", message);
        }
    }
    errors
}

pub(crate) fn invalid(operation: &Operation, name: &str, errors: FieldErrors) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&operation.resource.group_kind(), name, errors))
}
