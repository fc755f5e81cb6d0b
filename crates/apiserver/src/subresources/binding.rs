//! `pods/binding`: the scheduler's decision. Sets the node once and for all.

use api::Status;
use api::meta::Meta as _;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Binding, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use registry::Action;

use crate::body::Body;
use crate::state::Operation;
use crate::verbs::respond::respond_value;
use crate::verbs::write::{admit_body, body_value};
use crate::verbs::{Target, modify};

pub(crate) async fn bind(operation: &Operation) -> Result<Response<Body>, Status> {
    let binding: Binding = api::codec::from_value(&body_value(operation)?.value)
        .map_err(|error| Status::bad_request(format!("Binding cannot be handled: {error}")))?;
    let kind = binding.target.kind.as_deref().unwrap_or_default();
    let node = binding.target.name.clone().unwrap_or_default();
    if !matches!(kind, "" | "Node") || node.is_empty() {
        let mut errors = api::field::FieldErrors::default();
        if node.is_empty() {
            errors.required("target.name", "");
        } else {
            errors.not_supported("target.kind", kind, &["Node", "<empty>"]);
        }
        return Err(Status::invalid(&api::GroupKind::new("", "Binding"), &operation.info.name, errors));
    }
    // The old `bindings` resource names the pod in the body.
    let operation = &match operation.info.resource.as_str() {
        "bindings" => operation.on("", "pods", &operation.info.namespace, binding.metadata.name(), "binding")?,
        _ => operation.on("", "pods", &operation.info.namespace, &operation.info.name, "binding")?,
    };
    let binding = admit_body(operation, binding, operation.dry_run()?).await?;
    modify(operation, Target::Part(Action::Binding), |_, old| {
        let mut pod = old.downcast_ref::<Pod>().cloned().ok_or_else(|| Status::internal("not a pod"))?;
        let name = operation.info.name.as_str();
        let conflict = |message: String| Err(Status::conflict(&operation.group_resource(), name, message));
        let spec = pod.spec.get_or_insert_default();
        if pod.metadata.deletion_timestamp.is_some() {
            return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        if let Some(assigned) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
            return conflict(format!("pod {name} is already assigned to node {assigned:?}"));
        }
        if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
            return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        spec.node_name = Some(node.clone());
        pod.metadata.resource_version = None;
        if let Some(uid) = &binding.metadata.uid {
            pod.metadata.uid = Some(uid.clone());
        }
        if let Some(annotations) = &binding.metadata.annotations {
            pod.metadata.annotations.get_or_insert_default().extend(annotations.clone());
        }
        if let Some(labels) = &binding.metadata.labels {
            pod.metadata.labels.get_or_insert_default().extend(labels.clone());
        }
        set_scheduled(&mut pod, Time(operation.now));
        Ok(Box::new(pod))
    })
    .await?;
    let status = serde_json::to_value(Status { code: 201, ..Status::success() }).map_err(Status::internal)?;
    respond_value(operation, StatusCode::CREATED, &status)
}

fn set_scheduled(pod: &mut Pod, now: Time) {
    let observed = pod.metadata.generation;
    let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "PodScheduled");
    conditions.push(PodCondition {
        type_: "PodScheduled".to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(now),
        observed_generation: observed,
        ..Default::default()
    });
}
