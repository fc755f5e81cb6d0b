//! `scale`: the replica count of a workload as an `autoscaling/v1` Scale.

use api::field::FieldErrors;
use api::selector::Selector;
use api::{GroupKind, Status};
use bytes::Bytes;
use http::{Response, StatusCode};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use registry::custom::at;
use registry::{AnyObject, Object, Resource};
use serde_json::{Value, json};

use super::patch::Patch;
use super::respond::respond_value;
use super::update::{Target, modify};
use super::write::body_value;
use crate::body::Body;
use crate::state::Operation;
use crate::versions::served_value;

pub(crate) async fn get(operation: &Operation) -> Result<Response<Body>, Status> {
    let entry = super::get::read(operation).await?;
    respond_value(operation, StatusCode::OK, &scale(&operation.resource, &entry.json())?)
}

pub(crate) async fn update(operation: &Operation) -> Result<Response<Body>, Status> {
    let wanted = body_value(operation)?.value;
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
        .map_err(super::patch::refused)?;
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
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let mut errors = FieldErrors::default();
            errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
            return Err(Status::invalid(&GroupKind::new("autoscaling", "Scale"), &operation.info.name, errors));
        }
        let mut object = super::managed_fields::live_value(resource, current.entry)?;
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

/// The scale of a workload, for admission.
pub(crate) fn of(resource: &Resource, object: &dyn Object) -> Result<Scale, Status> {
    let value = scale_of(resource, &object.to_value().map_err(Status::internal)?)?;
    serde_json::from_value(value).map_err(Status::internal)
}

/// Writes the replicas of a scale that admission may have changed into the workload.
pub(crate) fn take_over(resource: &Resource, workload: &mut AnyObject, scale: &dyn Object) -> Result<(), Status> {
    let wanted = scale.downcast_ref::<Scale>().and_then(|scale| scale.spec.as_ref()?.replicas).unwrap_or(0);
    let mut value = workload.to_value().map_err(Status::internal)?;
    if replicas(resource, &value) != i64::from(wanted) {
        set_replicas(resource, &mut value, i64::from(wanted));
        *workload = resource.strategy.decode_value(value).map_err(Status::internal)?;
    }
    Ok(())
}

/// The replicas that an object asks for.
fn replicas(resource: &Resource, object: &Value) -> i64 {
    match &resource.scale {
        Some(paths) => object.as_object().map_or(0, |object| paths.replicas(object)),
        None => object["spec"]["replicas"].as_i64().unwrap_or(0),
    }
}

fn set_replicas(resource: &Resource, object: &mut Value, replicas: i64) {
    let place = match &resource.scale {
        Some(paths) => paths.spec.iter().try_fold(object, |value, key| {
            if value.is_null() {
                *value = json!({});
            }
            value.as_object_mut().map(|fields| fields.entry(key).or_insert(Value::Null))
        }),
        None => Some(&mut object["spec"]["replicas"]),
    };
    if let Some(place) = place {
        *place = replicas.into();
    }
}

fn scale(resource: &Resource, stored: &Bytes) -> Result<Value, Status> {
    scale_of(resource, &served_value(resource, stored)?)
}

fn scale_of(resource: &Resource, object: &Value) -> Result<Value, Status> {
    let meta = &object["metadata"];
    let (current, selector) = match (&resource.scale, object.as_object()) {
        (Some(paths), Some(object)) => {
            let selector = paths.selector.as_ref().and_then(|path| at(object, path)?.as_str());
            (at(object, &paths.status).and_then(Value::as_i64), selector.unwrap_or_default().to_owned())
        }
        _ => (object["status"]["replicas"].as_i64(), selector(&object["spec"]["selector"])?),
    };
    let mut status = json!({"replicas": current.unwrap_or(0)});
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    Ok(json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "creationTimestamp": meta["creationTimestamp"],
        },
        "spec": {"replicas": replicas(resource, object)},
        "status": status,
    }))
}

/// A selector of a workload as text.
fn selector(selector: &Value) -> Result<String, Status> {
    if selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some() {
        let selector: LabelSelector = serde_json::from_value(selector.clone()).map_err(Status::internal)?;
        return Ok(Selector::from_label_selector(Some(&selector)).map(|text| text.to_string()).unwrap_or_default());
    }
    let labels = serde_json::from_value(selector.clone()).unwrap_or_default();
    Ok(Selector::from_map(&labels).to_string())
}
