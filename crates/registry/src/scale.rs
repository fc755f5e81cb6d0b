//! The replica count of a workload as an `autoscaling/v1` Scale: where it is in an object of a row, and back.

use api::Status;
use api::selector::Selector;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use crate::scale_paths::at;
use crate::{AnyObject, Object, Resource};

/// The scale of a workload, for admission.
pub fn of(resource: &Resource, object: &dyn Object) -> Result<Scale, Status> {
    let value = scale_of(resource, &object.to_value().map_err(Status::internal)?)?;
    api::codec::from_value(&value).map_err(Status::internal)
}

/// Writes the replicas of a scale that admission may have changed into the workload.
pub fn take_over(resource: &Resource, workload: &mut AnyObject, scale: &dyn Object) -> Result<(), Status> {
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

/// Sets the replicas that an object asks for.
pub fn set_replicas(resource: &Resource, object: &mut Value, replicas: i64) {
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

/// The Scale of an object, as JSON.
pub fn scale_of(resource: &Resource, object: &Value) -> Result<Value, Status> {
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
        let selector: LabelSelector = api::codec::from_value(selector).map_err(Status::internal)?;
        return Ok(Selector::from_label_selector(Some(&selector)).map(|text| text.to_string()).unwrap_or_default());
    }
    let labels = serde_json::from_value(selector.clone()).unwrap_or_default();
    Ok(Selector::from_map(&labels).to_string())
}
