//! A Deployment's status: counts of its ReplicaSets, and whether it is available, progressing or stuck.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::replica_sets::{actual, available, name, size, surge_and_unavailable};

pub(super) fn has_deadline(spec: &DeploymentSpec) -> bool {
    spec.progress_deadline_seconds.is_some_and(|seconds| seconds != i32::MAX)
}

pub(super) fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Sets a condition; one with the same status and reason stays as it is, so that it is not written for ever.
pub(super) fn set(
    status: &mut DeploymentStatus,
    kind: &str,
    value: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let old = condition(status, kind);
    if old.is_some_and(|old| old.status == value && old.reason.as_deref() == Some(reason)) {
        return;
    }
    let since = old.filter(|old| old.status == value).and_then(|old| old.last_transition_time.clone());
    let new = DeploymentCondition {
        type_: kind.into(),
        status: value.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: since.or(Some(Time(now))),
    };
    remove(status, kind);
    status.conditions.get_or_insert_default().push(new);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
}

/// A paused Deployment must not be called stuck later for the time it was paused.
pub(super) fn pause_or_resume(status: &mut DeploymentStatus, spec: &DeploymentSpec, now: Timestamp) {
    let reason = condition(status, "Progressing").and_then(|condition| condition.reason.as_deref());
    if !has_deadline(spec) || reason == Some("ProgressDeadlineExceeded") {
        return;
    }
    let (paused, noted) = (spec.paused == Some(true), reason == Some("DeploymentPaused"));
    if paused && !noted {
        set(status, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused".into(), now);
    } else if !paused && noted {
        set(status, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed".into(), now);
    }
}

/// Counts and availability. `base` carries the conditions so far.
pub(super) fn counted(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    base: DeploymentStatus,
    all: &[ReplicaSet],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |count: &dyn Fn(&ReplicaSet) -> i32| all.iter().map(count).fold(0, i32::saturating_add);
    let ready = |set: &ReplicaSet| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    let terminating: Vec<i32> = all.iter().filter_map(|set| set.status.as_ref()?.terminating_replicas).collect();
    let available_now = sum(&available);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: nonzero(sum(&actual)),
        updated_replicas: nonzero(new.map_or(0, actual)),
        ready_replicas: nonzero(sum(&ready)),
        available_replicas: nonzero(available_now),
        unavailable_replicas: nonzero((sum(&size) - available_now).max(0)),
        terminating_replicas: (!terminating.is_empty()).then(|| terminating.iter().sum()),
        collision_count: base.collision_count,
        conditions: base.conditions,
    };
    let (_, unavailable) = surge_and_unavailable(spec);
    if available_now >= spec.replicas.unwrap_or(1) - unavailable {
        set(
            &mut status,
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".into(),
            now,
        );
    } else {
        let message = "Deployment does not have minimum availability.".into();
        set(&mut status, "Available", "False", "MinimumReplicasUnavailable", message, now);
    }
    status
}

/// Zero is left out on the wire; a status that says it would never equal the one that comes back.
fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// `counted`, and how the rollout goes.
pub(super) fn rollout(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    base: DeploymentStatus,
    all: &[ReplicaSet],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let before = base.clone();
    let mut status = counted(deployment, spec, base, all, new, now);
    if !has_deadline(spec) {
        remove(&mut status, "Progressing");
    }
    let current = condition(&before, "Progressing").cloned();
    let reason = current.as_ref().and_then(|current| current.reason.as_deref());
    let done_before = status.replicas == status.updated_replicas && reason == Some("NewReplicaSetAvailable");
    if has_deadline(spec) && !done_before {
        let what = match new {
            Some(new) => format!("ReplicaSet \"{}\"", name(&new.metadata)),
            None => format!("Deployment \"{}\"", name(&deployment.metadata)),
        };
        if is_complete(deployment, spec, &status) {
            set(
                &mut status,
                "Progressing",
                "True",
                "NewReplicaSetAvailable",
                format!("{what} has successfully progressed."),
                now,
            );
        } else if has_progressed(&before, &status) {
            // Each step forward renews the time of the condition, from which the deadline counts.
            let since =
                current.filter(|current| current.status == "True").and_then(|current| current.last_transition_time);
            remove(&mut status, "Progressing");
            set(&mut status, "Progressing", "True", "ReplicaSetUpdated", format!("{what} is progressing."), now);
            if let (Some(since), Some(condition)) =
                (since, status.conditions.iter_mut().flatten().find(|condition| condition.type_ == "Progressing"))
            {
                condition.last_transition_time = Some(since);
            }
        } else if has_timed_out(spec, &status, now) {
            set(
                &mut status,
                "Progressing",
                "False",
                "ProgressDeadlineExceeded",
                format!("{what} has timed out progressing."),
                now,
            );
        }
    }
    match replica_failure(all, new) {
        Some(failure) => set(
            &mut status,
            "ReplicaFailure",
            &failure.status,
            failure.reason.as_deref().unwrap_or_default(),
            failure.message.clone().unwrap_or_default(),
            now,
        ),
        None => remove(&mut status, "ReplicaFailure"),
    }
    status
}

/// Failures of the new ReplicaSet count more than those of old ones.
fn replica_failure<'a>(
    all: &'a [ReplicaSet],
    new: Option<&'a ReplicaSet>,
) -> Option<&'a k8s_openapi::api::apps::v1::ReplicaSetCondition> {
    new.into_iter().chain(all).find_map(|set| {
        set.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == "ReplicaFailure")
    })
}

pub(super) fn is_complete(deployment: &Deployment, spec: &DeploymentSpec, status: &DeploymentStatus) -> bool {
    let wanted = spec.replicas.or(Some(1));
    status.updated_replicas.or(Some(0)) == wanted
        && status.replicas.or(Some(0)) == wanted
        && status.available_replicas.or(Some(0)) == wanted
        && status.observed_generation >= deployment.metadata.generation
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let count = |value: Option<i32>| value.unwrap_or_default();
    let old_ones = |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(after.updated_replicas) > count(before.updated_replicas)
        || old_ones(after) < old_ones(before)
        || count(after.ready_replicas) > count(before.ready_replicas)
        || count(after.available_replicas) > count(before.available_replicas)
}

fn has_timed_out(spec: &DeploymentSpec, status: &DeploymentStatus, now: Timestamp) -> bool {
    let Some(condition) = condition(status, "Progressing") else { return false };
    match condition.reason.as_deref() {
        Some("NewReplicaSetAvailable") => false,
        Some("ProgressDeadlineExceeded") => true,
        _ => deadline(spec, condition).is_some_and(|deadline| deadline < now),
    }
}

fn deadline(spec: &DeploymentSpec, condition: &DeploymentCondition) -> Option<Timestamp> {
    let seconds = spec.progress_deadline_seconds?;
    let from = condition.last_update_time.as_ref()?.0;
    from.checked_add(Duration::from_secs(seconds.max(0).unsigned_abs().into())).ok()
}

/// When a rollout that does not move must be looked at again.
pub(super) fn recheck_in(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let condition = condition(status, "Progressing").filter(|_| has_deadline(spec) && spec.paused != Some(true))?;
    if is_complete(deployment, spec, status) || condition.reason.as_deref() == Some("ProgressDeadlineExceeded") {
        return None;
    }
    let left = Duration::try_from(deadline(spec, condition)?.duration_since(now)).unwrap_or_default();
    Some(left + Duration::from_secs(1))
}
