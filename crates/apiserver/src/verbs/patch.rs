//! `patch`: JSON patch, merge patch and strategic merge patch, applied to the current object under a guard.

use api::Status;
use api::patch::PatchError;
use http::{Response, header};
use serde_json::Value;

use super::accept::served_value;
use super::update::{Target, Written, modify};
use super::write::{FieldValidation, decode_checked, report};
use crate::body::Body;
use crate::registry::Resource;
use crate::state::Operation;

const ACCEPTED: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

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
        let make: fn(Value) -> Patch = match media.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Patch::Json,
            "application/merge-patch+json" => Patch::Merge,
            "application/strategic-merge-patch+json" => Patch::Strategic,
            _ => return Err(Status::unsupported_media_type(ACCEPTED)),
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
            Patch::Strategic(patch) => api::patch::strategic::apply(value, patch, &resource.strategy.schema()),
        };
        outcome.map_err(refused)
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

async fn patch_object(operation: &Operation) -> Result<Written, Status> {
    let (patch, duplicates) = Patch::of(operation)?;
    let validation = FieldValidation::of(operation)?;
    let resource = &operation.resource;
    modify(operation, Target::of(operation), |current, _| {
        let mut value = served_value(resource, &current.json)?;
        let version = value["metadata"]["resourceVersion"].clone();
        patch.apply(resource, &mut value)?;
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        // Only a version that the patch itself names is a condition.
        if let Some(metadata) = metadata {
            if metadata.get("resourceVersion") == Some(&version) {
                metadata.remove("resourceVersion");
            }
        }
        let name = value["metadata"]["name"].as_str().unwrap_or_default();
        if name != operation.info.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                operation.info.name
            )));
        }
        let mut problems: Vec<String> =
            duplicates.iter().map(|path| format!("duplicate field {}", api::field::quote(path))).collect();
        let object = decode_checked(resource, value, &mut problems)?;
        report(operation, validation, problems)?;
        Ok(object)
    })
    .await
}
