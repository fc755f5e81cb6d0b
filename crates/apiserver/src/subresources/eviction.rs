//! `pods/eviction`: a delete that asks the disruption budgets first.

use api::Status;
use api::selector::Selector;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::body::Body;
use crate::delete_options::DeleteOptions;
use crate::state::Operation;
use crate::verbs::delete_object;
use crate::verbs::respond::respond_value;
use crate::verbs::write::{admit_body, body_value};
use crate::verbs::{Target, modify};

const TARGET: &str = "DisruptionTarget";

pub(crate) async fn evict(operation: &Operation) -> Result<Response<Body>, Status> {
    let eviction = body_value(operation)?.value;
    let mut options = DeleteOptions { dry_run: operation.dry_run()?, ..Default::default() };
    options.read(&eviction["deleteOptions"]);
    let eviction: Eviction = serde_json::from_value(eviction)
        .map_err(|error| Status::bad_request(format!("Eviction cannot be handled: {error}")))?;
    admit_body(operation, eviction, options.dry_run).await?;
    let (namespace, name) = (&operation.info.namespace, &operation.info.name);
    operation.state.caches.fresh().await?;
    let pod = operation.state.objects().get::<Pod>(namespace, name)?.ok_or_else(|| operation.not_found(name))?;
    if !needs_no_budget(&pod) {
        spend_budget(operation, &pod, options.dry_run).await?;
    }
    if !options.dry_run {
        mark(operation).await?;
    }
    delete_object(operation, namespace, name, &options).await?;
    let status = serde_json::to_value(Status { code: 201, ..Status::success() }).map_err(Status::internal)?;
    respond_value(operation, StatusCode::CREATED, &status)
}

/// Says on the pod why it goes: jobs may not count it as a failure then.
async fn mark(operation: &Operation) -> Result<(), Status> {
    let (namespace, name) = (&operation.info.namespace, &operation.info.name);
    let status_operation = operation.on("", "pods", namespace, name, "status")?;
    let now = operation.now;
    modify(&status_operation, Target::Status, |_, old| {
        let mut pod: Pod = old.downcast_ref::<Pod>().cloned().ok_or_else(|| Status::internal("not a pod"))?;
        pod.metadata.resource_version = None;
        let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
        let is_new = !conditions.iter().any(|condition| condition.type_ == TARGET && condition.status == "True");
        if is_new {
            conditions.retain(|condition| condition.type_ != TARGET);
            conditions.push(PodCondition {
                type_: TARGET.to_owned(),
                status: "True".to_owned(),
                reason: Some("EvictionByEvictionAPI".to_owned()),
                message: Some("Eviction API: evicting".to_owned()),
                last_transition_time: Some(Time(now)),
                ..PodCondition::default()
            });
        }
        Ok(Box::new(pod))
    })
    .await
    .map(drop)
}

/// Pods that are not running anything yet or any more, or are already going.
fn needs_no_budget(pod: &Pod) -> bool {
    api::pod::is_terminal(pod) || api::pod::phase(pod) == "Pending" || pod.metadata.deletion_timestamp.is_some()
}

/// Takes one disruption from the budget that covers the pod, or refuses.
async fn spend_budget(operation: &Operation, pod: &Pod, dry_run: bool) -> Result<(), Status> {
    let namespace = &operation.info.namespace;
    let budgets = operation.state.objects().list::<PodDisruptionBudget>(Some(namespace))?;
    let mut covering = budgets.iter().filter(|budget| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| {
            Selector::from_label_selector(Some(selector))
                .is_ok_and(|selector| selector.matches(pod.metadata.labels.as_ref()))
        })
    });
    let Some(budget) = covering.next() else { return Ok(()) };
    if covering.next().is_some() {
        return Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let name = budget.metadata.name.clone().unwrap_or_default();
    let policy = budget.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let healthy = budget
        .status
        .as_ref()
        .map_or((0, 0), |status| (status.current_healthy.unwrap_or(0), status.desired_healthy.unwrap_or(0)));
    let allowed_unready = match policy {
        Some("AlwaysAllow") => true,
        _ => healthy.1 > 0 && healthy.0 >= healthy.1,
    };
    if !api::pod::is_ready(pod) && allowed_unready {
        return Ok(());
    }
    let mut budget_operation = operation.on("policy", "poddisruptionbudgets", namespace, &name, "status")?;
    // As a patch: decided again from whatever is there when another eviction was faster.
    budget_operation.info.verb = registry::Verb::Patch;
    let pod_name = operation.info.name.clone();
    let now = operation.now;
    let spend = |old: &PodDisruptionBudget| -> Result<PodDisruptionBudget, Status> {
        let mut new = old.clone();
        let generation = new.metadata.generation;
        let status = new.status.get_or_insert_default();
        if status.observed_generation < generation {
            return Err(Status::too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                10,
            )
            .with_cause(
                "DisruptionBudget",
                format!("The disruption budget {name} is still being processed by the server."),
                "",
            ));
        }
        let allowed = status.disruptions_allowed.unwrap_or(0);
        if allowed <= 0 {
            let why = format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                healthy.1, healthy.0
            );
            return Err(Status::too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                0,
            )
            .with_cause("DisruptionBudget", why, ""));
        }
        status.disruptions_allowed = Some(allowed - 1);
        status.disrupted_pods.get_or_insert_default().insert(pod_name.clone(), Time(now));
        new.metadata.resource_version = None;
        Ok(new)
    };
    if dry_run {
        return spend(budget).map(drop);
    }
    modify(&budget_operation, Target::Status, |_, old| {
        let old = old.downcast_ref().ok_or_else(|| Status::internal("not a disruption budget"))?;
        Ok(Box::new(spend(old)?))
    })
    .await
    .map(drop)
}
