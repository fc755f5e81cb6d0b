//! `scale`: the replica count of a workload as an `autoscaling/v1` Scale.

use api::field::FieldErrors;
use api::selector::Selector;
use api::{GroupKind, Status};
use bytes::Bytes;
use http::{Response, StatusCode};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use super::accept::respond_value;
use super::patch::Patch;
use super::update::{Target, modify};
use super::write::body_value;
use crate::body::Body;
use crate::registry::{AnyObject, Object, Resource};
use crate::state::Operation;

pub(crate) async fn get(operation: &Operation) -> Result<Response<Body>, Status> {
    let entry = super::get::read(operation).await?;
    respond_value(operation, StatusCode::OK, &scale(&entry.json())?)
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
        let wanted = make(&scale(&current.json())?)?;
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let mut errors = FieldErrors::default();
            errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
            return Err(Status::invalid(&GroupKind::new("autoscaling", "Scale"), &operation.info.name, errors));
        }
        let mut object: Value = serde_json::from_slice(&current.json()).map_err(Status::internal)?;
        object["spec"]["replicas"] = replicas.into();
        object["metadata"]["resourceVersion"] = wanted["metadata"]["resourceVersion"].clone();
        if let Some(uid) = wanted["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            object["metadata"]["uid"] = uid.into();
        }
        resource.strategy.decode_value(object).map_err(Status::internal)
    })
    .await?;
    respond_value(operation, StatusCode::OK, &scale(&written.stored)?)
}

/// The scale of a workload, for admission.
pub(crate) fn of(object: &dyn Object) -> Result<Scale, Status> {
    let value = scale_of(&object.to_value().map_err(Status::internal)?)?;
    serde_json::from_value(value).map_err(Status::internal)
}

/// Writes the replicas of a scale that admission may have changed into the workload.
pub(crate) fn take_over(resource: &Resource, workload: &mut AnyObject, scale: &dyn Object) -> Result<(), Status> {
    let wanted = scale.downcast_ref::<Scale>().and_then(|scale| scale.spec.as_ref()?.replicas).unwrap_or(0);
    let mut value = workload.to_value().map_err(Status::internal)?;
    if value["spec"]["replicas"].as_i64().unwrap_or(0) != i64::from(wanted) {
        value["spec"]["replicas"] = wanted.into();
        *workload = resource.strategy.decode_value(value).map_err(Status::internal)?;
    }
    Ok(())
}

fn scale(stored: &Bytes) -> Result<Value, Status> {
    scale_of(&serde_json::from_slice(stored).map_err(Status::internal)?)
}

fn scale_of(object: &Value) -> Result<Value, Status> {
    let meta = &object["metadata"];
    let selector = &object["spec"]["selector"];
    let is_label_selector = selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some();
    let selector = if is_label_selector {
        let selector: LabelSelector = serde_json::from_value(selector.clone()).map_err(Status::internal)?;
        Selector::from_label_selector(Some(&selector)).map(|selector| selector.to_string()).unwrap_or_default()
    } else {
        let labels = serde_json::from_value(selector.clone()).unwrap_or_default();
        Selector::from_map(&labels).to_string()
    };
    let mut status = json!({"replicas": object["status"]["replicas"].as_i64().unwrap_or(0)});
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
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": status,
    }))
}
