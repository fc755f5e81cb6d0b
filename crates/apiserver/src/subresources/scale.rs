//! `scale`: the replica count of a workload as an `autoscaling/v1` Scale.

use api::field::FieldErrors;
use api::{GroupKind, Status};
use bytes::Bytes;
use http::{Response, StatusCode};
use k8s_openapi::api::autoscaling::v1::ScaleSpec;
use registry::Resource;
use registry::scale::{scale_of, set_replicas};
use serde_json::Value;

use crate::body::Body;
use crate::state::Operation;
use crate::verbs::patch::{Patch, refused};
use crate::verbs::respond::respond_value;
use crate::verbs::write::body_value;
use crate::verbs::{Target, modify};
use crate::versions::served_value;

pub(crate) async fn get(operation: &Operation) -> Result<Response<Body>, Status> {
    let entry = crate::verbs::get::read(operation).await?;
    respond_value(operation, StatusCode::OK, &scale(&operation.resource, &entry.json())?)
}

pub(crate) async fn update(operation: &Operation) -> Result<Response<Body>, Status> {
    let wanted = body_value(operation)?.value;
    let kind = wanted["kind"].as_str().unwrap_or_default();
    if !wanted.is_object() || !matches!(kind, "" | "Scale") {
        return Err(Status::bad_request(format!(
            "{kind} in version \"v1\" cannot be handled as a Scale: converting ({kind}) to (Scale): unknown conversion"
        )));
    }
    let (name, given) = (&operation.info.name, wanted["metadata"]["name"].as_str().unwrap_or_default());
    if !given.is_empty() && given != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    write(operation, |_| Ok(wanted.clone())).await
}

pub(crate) async fn patch(operation: &Operation) -> Result<Response<Body>, Status> {
    let (patch, _) = Patch::of(operation)?;
    write(operation, |current| {
        let mut value = current.clone();
        match &patch {
            // A Scale has no lists, so a strategic merge is a merge.
            Patch::Strategic(patch) | Patch::Merge(patch) => api::patch::merge::apply(&mut value, patch),
            Patch::Json(patch) => api::patch::json::apply(&mut value, patch),
        }
        .map_err(refused)?;
        if value["metadata"]["resourceVersion"] == current["metadata"]["resourceVersion"] {
            value["metadata"]["resourceVersion"] = Value::Null;
        }
        Ok(value)
    })
    .await
}

/// Writes `spec.replicas` of the scale that `make` returns into the workload.
async fn write(
    operation: &Operation,
    mut make: impl FnMut(&Value) -> Result<Value, Status> + Send,
) -> Result<Response<Body>, Status> {
    let resource = &operation.resource;
    let written = modify(operation, Target::Main, |current, _| {
        let wanted = make(&scale(resource, &current.entry.json())?)?;
        let replicas = replicas(&wanted)?;
        if replicas < 0 {
            let mut errors = FieldErrors::default();
            errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
            return Err(Status::invalid(&GroupKind::new("autoscaling", "Scale"), &operation.info.name, errors));
        }
        let mut object = crate::verbs::managed_fields::live_value(resource, current.entry)?;
        set_replicas(resource, &mut object, replicas);
        object["metadata"]["resourceVersion"] = wanted["metadata"]["resourceVersion"].clone();
        if let Some(uid) = wanted["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            object["metadata"]["uid"] = uid.into();
        }
        resource.strategy.decode_value(object).map_err(Status::internal)
    })
    .await?;
    respond_value(operation, StatusCode::OK, &scale(resource, &written.stored)?)
}

/// How many a Scale asks for. A number that cannot be read is not taken for none.
fn replicas(wanted: &Value) -> Result<i64, Status> {
    let spec: Option<ScaleSpec> = api::codec::from_value(&wanted["spec"]).map_err(|error| {
        Status::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: {error}"))
    })?;
    Ok(spec.and_then(|spec| spec.replicas).unwrap_or(0).into())
}

fn scale(resource: &Resource, stored: &Bytes) -> Result<Value, Status> {
    scale_of(resource, &served_value(resource, stored)?)
}
