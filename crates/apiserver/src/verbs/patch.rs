//! `patch`: JSON patch, merge patch, strategic merge patch and server-side apply, on the current object under a guard.

use api::Status;
use api::field::FieldErrors;
use api::patch::PatchError;
use api::patch::apply::ApplyError;
use http::{Response, header};
use registry::{AnyObject, KindVersions, Resource};
use serde_json::Value;

use super::update::{Target, Written, modify};
use super::write::{FieldValidation, check_kind, duplicate_fields, report};
use crate::accept::{STRATEGIC, patch_types};
use crate::body::Body;
use crate::state::Operation;
use crate::versions::decode_checked;
use crate::versions::served_value;

/// A decoded patch.
pub(crate) enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub(crate) fn of(operation: &Operation) -> Result<(Self, Vec<String>), Status> {
        let media =
            operation.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let accepted = patch_types(&operation.resource);
        let make: fn(Value) -> Patch = match media.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Patch::Json,
            "application/merge-patch+json" => Patch::Merge,
            STRATEGIC if accepted.contains(&STRATEGIC) => Patch::Strategic,
            _ => return Err(Status::unsupported_media_type(accepted)),
        };
        // kubectl may send YAML under a JSON type; upstream converts, and so does the decoder.
        let decoded = api::codec::from_json(&operation.body)
            .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
        Ok((make(decoded.value), decoded.duplicates))
    }

    pub(crate) fn apply(&self, resource: &Resource, value: &mut Value) -> Result<(), Status> {
        let outcome = match self {
            Patch::Json(patch) => api::patch::json::apply(value, patch),
            Patch::Merge(patch) => api::patch::merge::apply(value, patch),
            Patch::Strategic(patch) => api::patch::strategic::apply(value, patch, &resource.schema()),
        };
        outcome.map_err(refused)
    }

    /// A strategic patch that puts a value where its type has no place: upstream converts such an object and does not
    /// decode it, and says so.
    fn explain(&self, error: Status) -> Status {
        let Patch::Strategic(patch) = self else { return error };
        let Some(problem) = in_converters_words(&error.message) else { return error };
        let mut errors = FieldErrors::default();
        errors.invalid("patch", in_gos_words(patch), problem);
        Status::invalid(&api::GroupKind::new("", ""), "", errors)
    }

    /// The short way of the usual patch: on the stored text without managed fields, with a result just as its schema says.
    fn apply_plainly(&self, resource: &Resource, text: &[u8]) -> Option<AnyObject> {
        if resource.conversion.is_some() || resource.initializers || resource.is_custom {
            return None;
        }
        let (Patch::Json(patch) | Patch::Merge(patch) | Patch::Strategic(patch)) = self;
        if patch.pointer("/metadata/managedFields").is_some() {
            return None;
        }
        let patched = match self {
            Patch::Json(_) => None,
            Patch::Merge(patch) => api::patch::text::apply_merge(text, patch),
            Patch::Strategic(patch) => api::patch::text::apply_strategic(text, patch, &resource.strategy.schema()),
        };
        resource.strategy.decode_fitting(&patched?)
    }
}

/// What Go's decoder says of a value of the wrong type, as Go's converter says it.
fn in_converters_words(message: &str) -> Option<String> {
    let (_, problem) = message.split_once("cannot unmarshal ")?;
    let (given, place) = problem.split_once(" into Go ")?;
    let wanted = place.rsplit(" of type ").next()?;
    let given = match given.split(' ').next()? {
        "object" => "map",
        "array" => "slice",
        "number" if given.contains('.') => "float64",
        "number" => "int64",
        other => other,
    };
    Some(match wanted {
        wanted if wanted.starts_with("map[") => format!("cannot restore map from {given}"),
        wanted if wanted.starts_with("[]") => format!("cannot restore slice from {given}"),
        wanted if wanted.contains('.') => format!("cannot restore struct from: {given}"),
        wanted => format!("unrecognized type: {wanted}"),
    })
}

/// A value as Go's `%+v` shows it.
fn in_gos_words(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(in_gos_words).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("{key}:{}", in_gos_words(value)));
            format!("map[{}]", members.collect::<Vec<_>>().join(" "))
        }
        other => other.to_string(),
    }
}

pub(crate) fn refused(error: PatchError) -> Status {
    match error {
        PatchError::Malformed(message) => Status::bad_request(message),
        PatchError::Unprocessable(message) => {
            Status::from_code(422, "").with_cause("UnexpectedServerResponse", message, "")
        }
        PatchError::TooManyOperations { .. } => Status::request_too_large(error),
    }
}

pub(crate) async fn patch(operation: &Operation) -> Result<Response<Body>, Status> {
    let written = patch_object(operation).await?;
    written.respond(operation)
}

/// A configuration that does not fit its schema, in the words of upstream's merge library.
fn untyped(operation: &Operation, error: impl std::fmt::Display) -> Status {
    let (info, resource) = (&operation.info, &operation.resource);
    let mut status = Status::from_code(500, "");
    status.reason = "".into();
    status.message = format!(
        "failed to create typed patch object ({}/{}; {}, Kind={}): {error}",
        info.namespace,
        info.name,
        resource.api_version(),
        resource.kind
    );
    status
}

/// Keys that stand twice in the YAML of an apply, in the words of upstream's YAML library.
fn report_repeated_keys(operation: &Operation, validation: FieldValidation, paths: &[String]) -> Result<(), Status> {
    if paths.is_empty() || validation == FieldValidation::Ignore {
        return Ok(());
    }
    let lines: Vec<String> = paths
        .iter()
        .map(|path| {
            let line = api::codec::line_of_repeated_key(&operation.body, path).unwrap_or(1);
            let key = path.rsplit(['.', ']']).next().unwrap_or(path);
            format!("line {line}: key {} already set in map", api::field::quote(key))
        })
        .collect();
    let message = format!("error converting YAML to JSON: yaml: unmarshal errors:\n  {}", lines.join("\n  "));
    if validation == FieldValidation::Strict {
        return Err(Status::bad_request(format!("error strict decoding YAML: {message}")));
    }
    operation.warn(message);
    Ok(())
}

/// Server-side apply: creates the object if it is not there.
async fn apply(operation: &Operation) -> Result<Written, Status> {
    let resource = &operation.resource;
    let query = &operation.info.query;
    let mut errors = FieldErrors::default();
    if query.get("fieldManager").is_none_or(str::is_empty) {
        errors.required("fieldManager", "is required for apply patch");
        return Err(operation.refused_options(errors));
    }
    let validation = FieldValidation::of(operation)?;
    let decoded = api::codec::from_yaml(&operation.body)
        .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
    let mut config = decoded.value;
    check_kind(resource, &mut config)?;
    let unknown = match resource.own_schema {
        // What is converted is made right after that.
        Some(schema) => api::schema::check(&mut config.clone(), &schema()),
        None => resource.strategy.check(&mut config),
    };
    let unknown = unknown.map_err(|error| untyped(operation, error))?;
    if !unknown.is_empty() {
        // A field that nothing declares cannot be owned: refused whatever the request's field validation.
        let lines: Vec<String> = unknown.iter().map(|path| format!(".{path}: field not declared in schema")).collect();
        let several = format!("errors:\n  {}", lines.join("\n  "));
        return Err(untyped(operation, if lines.len() == 1 { lines.concat() } else { several }));
    }
    report_repeated_keys(operation, validation, &decoded.duplicates)?;
    let name = config["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        let name = &operation.info.name;
        let problem = format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(Status::bad_request(problem));
    }
    if name != operation.info.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            operation.info.name
        )));
    }
    if resource.is_namespaced() {
        config["metadata"]["namespace"] = operation.info.namespace.as_str().into();
    }
    let (manager, api_version) = (super::managed_fields::manager(operation)?, resource.api_version());
    let versions = KindVersions::new(&operation.state.registry, resource);
    let writer = super::managed_fields::writer(operation, &manager, &api_version, &versions);
    let target = Target::of(operation);
    let ignored = super::managed_fields::ignored(operation);
    let force = query.flag("force");
    let schema = resource.schema();
    let build = |live: Option<&Value>| -> Result<AnyObject, Status> {
        let applied = api::patch::apply::apply(live, &config, &schema, &writer, force, ignored);
        let mut value = applied.map_err(|error| match error {
            ApplyError::Untyped(problem) => untyped(operation, problem),
            other => Status::from(other),
        })?;
        let version = live.map(|live| live["metadata"]["resourceVersion"].clone());
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut)
            && metadata.get("resourceVersion") == version.as_ref()
        {
            metadata.remove("resourceVersion");
        }
        decode_checked(resource, value, &mut Vec::new())
    };
    if super::candidate::exists(operation).await? {
        let modified = modify(operation, target, |current, _| {
            build(Some(&super::managed_fields::live_value(resource, current.entry)?))
        });
        match modified.await {
            Err(status) if status.is_not_found() => {
                // Deleted by another server, which the cache did not show yet; or something else was not found.
                if !super::candidate::is_gone(operation).await? {
                    return Err(status);
                }
            }
            modified => return modified,
        }
    }
    if target != Target::Main {
        return Err(operation.not_found(&operation.info.name));
    }
    if config["metadata"].get("uid").is_some_and(|uid| !uid.is_null()) {
        let message = "the object has been deleted and recreated: its uid is not the one applied";
        return Err(Status::conflict(&operation.group_resource(), &operation.info.name, message));
    }
    let stored = super::create::create_instead(operation, build(None)?).await?;
    Ok(Written { stored, created: true })
}

async fn patch_object(operation: &Operation) -> Result<Written, Status> {
    if super::managed_fields::is_apply(operation) {
        return apply(operation).await;
    }
    let (patch, duplicates) = Patch::of(operation)?;
    let validation = FieldValidation::of(operation)?;
    let resource = &operation.resource;
    modify(operation, Target::of(operation), |current, _| {
        let plain = patch.apply_plainly(resource, &current.text);
        if let Some(object) = plain.filter(|object| object.meta().name.as_ref() == Some(&operation.info.name)) {
            report(operation, validation, duplicate_fields(&duplicates))?;
            return Ok(object);
        }
        let mut value = served_value(resource, &current.entry.json())?;
        let version = value["metadata"]["resourceVersion"].clone();
        patch.apply(resource, &mut value)?;
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        // Only a version that the patch itself names is a condition.
        if let Some(metadata) = metadata
            && metadata.get("resourceVersion") == Some(&version)
        {
            metadata.remove("resourceVersion");
        }
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        if name != operation.info.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                operation.info.name
            )));
        }
        let mut problems = Vec::new();
        let object = decode_checked(resource, value, &mut problems).map_err(|error| patch.explain(error))?;
        problems.extend(duplicate_fields(&duplicates));
        report(operation, validation, problems)?;
        Ok(object)
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_that_does_not_fit_is_refused_in_gos_words() {
        let patch = Patch::Strategic(json!({"metadata": {"labels": "invalid"}, "spec": {"a": [1, null]}}));
        for (said, expected) in [
            ("Go struct field ObjectMeta.metadata.labels of type map[string]string", "cannot restore map from string"),
            ("Go struct field PodSpec.spec.containers of type []v1.Container", "cannot restore slice from string"),
            ("Go struct field Pod.spec of type v1.PodSpec", "cannot restore struct from: string"),
            ("Go struct field PodSpec.spec.priority of type int32", "unrecognized type: int32"),
        ] {
            let error = Status::bad_request(format!("Pod … a Pod: json: cannot unmarshal string into {said}"));
            let explained = patch.explain(error);
            assert_eq!((explained.code, &*explained.reason), (422, "Invalid"));
            let value = "map[metadata:map[labels:invalid] spec:map[a:[1 <nil>]]]";
            let expected = format!("patch: Invalid value: \"{value}\": {expected}");
            assert!(explained.message.ends_with(&expected), "{}", explained.message);
        }
        let other = Status::bad_request("another mistake");
        assert_eq!(patch.explain(other.clone()).message, other.message);
        let error = Status::bad_request("json: cannot unmarshal string into Go value of type int32");
        assert_eq!(Patch::Merge(json!({})).explain(error.clone()).message, error.message);
    }
}
