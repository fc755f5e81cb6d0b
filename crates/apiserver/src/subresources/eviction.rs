//! `pods/eviction`: a delete that asks the disruption budgets first.

use api::meta::Meta as _;
use api::selector::Selector;
use api::{GroupResource, Status};
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use registry::Action;

use crate::body::Body;
use crate::delete_options::{DeleteOptions, IGNORE_READ_ERROR};
use crate::state::Operation;
use crate::verbs::respond::respond_value;
use crate::verbs::write::{admit_body, body_value};
use crate::verbs::{Target, check_preconditions, delete_object, modify};

const TARGET: &str = "DisruptionTarget";
const VIOLATED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// How often an eviction is decided again because its pod changed meanwhile (`EvictionsRetry`, v1.36).
const ATTEMPTS: u32 = 20;
/// Pods that a budget counts as going before its controller has seen them go (`MaxDisruptedPodSize`, v1.36).
const MAX_DISRUPTED: usize = 2000;

/// What lets a pod go.
enum Grounds {
    /// It has ended, or is going already.
    Over,
    /// It has not begun; one that begins meanwhile is a budget's affair.
    Pending,
    /// A budget has a disruption for it, or there is no budget.
    Allowed,
    /// It is not ready, which this budget does not protect; one that becomes ready meanwhile is.
    Unready(String),
}

pub(crate) async fn evict(operation: &Operation) -> Result<Response<Body>, Status> {
    let eviction = body_value(operation)?.value;
    let mut options = DeleteOptions { dry_run: operation.dry_run()?, ..Default::default() };
    options.read(&eviction["deleteOptions"])?;
    check_options(&operation.info.name, &options)?;
    let eviction: Eviction = api::codec::from_value(&eviction)
        .map_err(|error| Status::bad_request(format!("Eviction cannot be handled: {error}")))?;
    if eviction.metadata.name() != operation.info.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let eviction = admit_body(operation, eviction, options.dry_run).await?;
    // Plug-ins may have changed how the pod goes.
    options.read(&api::codec::to_value(&eviction.delete_options).map_err(Status::internal)?)?;
    check_options(&operation.info.name, &options)?;
    let (namespace, name) = (&operation.info.namespace, &operation.info.name);
    // The pod that a disruption was spent on. Nobody pays twice for one that could not be deleted at once.
    let mut paid_for: Option<String> = None;
    for _ in 0..ATTEMPTS {
        operation.state.caches.fresh().await?;
        let pod = operation.state.objects().get::<Pod>(namespace, name)?.ok_or_else(|| operation.not_found(name))?;
        check_preconditions(operation, name, &*pod, &options)?;
        let grounds = match paid_for.is_some() && paid_for == pod.metadata.uid {
            true => Grounds::Allowed,
            false => grounds(operation, &pod, options.dry_run).await?,
        };
        if matches!(grounds, Grounds::Allowed) {
            paid_for.clone_from(&pod.metadata.uid);
        }
        // The pod that this was decided about, and no later one of its name.
        let mut pinned = DeleteOptions { uid: pod.metadata.uid.clone(), ..options.clone() };
        if matches!(grounds, Grounds::Pending | Grounds::Unready(_)) && pinned.resource_version.is_none() {
            pinned.resource_version = pod.metadata.resource_version.clone();
        }
        match mark_and_delete(operation, pinned).await {
            Err(status) if status.code == 409 && options.resource_version.is_none() => match grounds {
                Grounds::Unready(budget) => return Err(still_processed(&budget)),
                Grounds::Over | Grounds::Pending | Grounds::Allowed => {}
            },
            Err(status) => return Err(status),
            Ok(()) => {
                let status =
                    serde_json::to_value(Status { code: 201, ..Status::success() }).map_err(Status::internal)?;
                return respond_value(operation, StatusCode::CREATED, &status);
            }
        }
    }
    Err(Status::modified(&operation.group_resource(), name))
}

fn check_options(name: &str, options: &DeleteOptions) -> Result<(), Status> {
    if options.ignores_read_error {
        let mut errors = api::field::FieldErrors::default();
        errors.invalid(
            format!("deleteOptions.{IGNORE_READ_ERROR}"),
            true,
            "can not be set for pod eviction, try after removing the option",
        );
        return Err(Status::invalid(&api::GroupKind::new("policy", "Eviction"), name, errors));
    }
    options.validate()
}

async fn grounds(operation: &Operation, pod: &Pod, dry_run: bool) -> Result<Grounds, Status> {
    if api::pod::is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() {
        Ok(Grounds::Over)
    } else if api::pod::phase(pod) == "Pending" {
        Ok(Grounds::Pending)
    } else {
        spend_budget(operation, pod, dry_run).await
    }
}

async fn mark_and_delete(operation: &Operation, mut options: DeleteOptions) -> Result<(), Status> {
    if !options.dry_run {
        let version = mark(operation, &options).await?;
        // The mark was ours.
        if options.resource_version.is_some() {
            options.resource_version = version;
        }
    }
    delete_object(operation, &operation.info.namespace, &operation.info.name, &options).await.map(drop)
}

/// Says on the pod why it goes: jobs may not count it as a failure then. Returns the version that the pod has now.
async fn mark(operation: &Operation, options: &DeleteOptions) -> Result<Option<String>, Status> {
    let (namespace, name) = (&operation.info.namespace, &operation.info.name);
    let status_operation = operation.on("", "pods", namespace, name, "status")?;
    let now = operation.now;
    let written = modify(&status_operation, Target::Part(Action::Eviction), |_, old| {
        check_preconditions(operation, name, old, options)?;
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
    .await?;
    let pod: Pod = api::read::from_slice(&written.stored).map_err(Status::internal)?;
    Ok(pod.metadata.resource_version)
}

fn still_processed(budget: &str) -> Status {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    Status::too_many_requests(VIOLATED, 10).with_cause("DisruptionBudget", why, "")
}

/// Takes one disruption from the budget that covers the pod, or refuses.
async fn spend_budget(operation: &Operation, pod: &Pod, dry_run: bool) -> Result<Grounds, Status> {
    let namespace = &operation.info.namespace;
    let budgets = operation.state.objects().list::<PodDisruptionBudget>(Some(namespace))?;
    let mut covering = budgets.iter().filter(|budget| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| {
            Selector::from_label_selector(Some(selector))
                .is_ok_and(|selector| selector.matches(pod.metadata.labels.as_ref()))
        })
    });
    let Some(budget) = covering.next() else { return Ok(Grounds::Allowed) };
    if covering.next().is_some() {
        return Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        ));
    }
    let name = budget.metadata.name().to_owned();
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
        return Ok(Grounds::Unready(name));
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
            return Err(still_processed(&name));
        }
        let refused =
            |why: &str| Err(Status::forbidden(&GroupResource::new("policy", "poddisruptionbudget"), &name, why));
        if status.disruptions_allowed.is_some_and(|allowed| allowed < 0) {
            return refused("pdb disruptions allowed is negative");
        }
        if status.disrupted_pods.as_ref().is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
            return refused("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
        }
        let allowed = status.disruptions_allowed.unwrap_or(0);
        if allowed <= 0 {
            let why = refusal(&name, status);
            return Err(Status::too_many_requests(VIOLATED, 0).with_cause("DisruptionBudget", why, ""));
        }
        status.disruptions_allowed = Some(allowed - 1);
        status.disrupted_pods.get_or_insert_default().insert(pod_name.clone(), Time(now));
        new.metadata.resource_version = None;
        Ok(new)
    };
    if dry_run {
        spend(budget)?;
        return Ok(Grounds::Allowed);
    }
    modify(&budget_operation, Target::Status, |_, old| {
        let old = old.downcast_ref().ok_or_else(|| Status::internal("not a disruption budget"))?;
        Ok(Box::new(spend(old)?))
    })
    .await?;
    Ok(Grounds::Allowed)
}

/// Why a budget that has no disruption left lets nobody go.
fn refusal(name: &str, status: &PodDisruptionBudgetStatus) -> String {
    let (needed, healthy) = (status.desired_healthy.unwrap_or(0), status.current_healthy.unwrap_or(0));
    let said = status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionAllowed");
    let said = said.filter(|condition| condition.status == "False" && !condition.message.is_empty());
    let refused = format!("The disruption budget {name} does not allow evicting pods currently");
    match said {
        // Then its numbers say nothing.
        Some(said) if said.reason == "SyncFailed" => format!("{refused} because it failed sync: {}", said.message),
        _ if healthy <= needed => {
            format!("The disruption budget {name} needs {needed} healthy pods and has {healthy} currently")
        }
        Some(said) => format!("{refused} ({}): {}", said.reason, said.message),
        None => refused,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_says_why_it_lets_nobody_go() {
        let refused = "The disruption budget b does not allow evicting pods currently";
        for (healthy, reason, message, expected) in [
            (1, "", "", "The disruption budget b needs 2 healthy pods and has 1 currently".to_owned()),
            (1, "SyncFailed", "no scale", format!("{refused} because it failed sync: no scale")),
            (3, "Odd", "why", format!("{refused} (Odd): why")),
            (3, "Odd", "", refused.to_owned()),
        ] {
            let condition = json!({"type": "DisruptionAllowed", "status": "False", "reason": reason,
                "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"});
            let status = json!({"currentHealthy": healthy, "desiredHealthy": 2, "disruptionsAllowed": 0,
                "expectedPods": 3, "conditions": [condition]});
            assert_eq!(refusal("b", &serde_json::from_value(status).unwrap()), expected);
        }
    }
}
