//! Tables for the Job's decisions.

use k8s_openapi::api::batch::v1::{SuccessPolicy, SuccessPolicyRule};
use k8s_openapi::api::core::v1::ContainerStatus;

use super::*;
use crate::pods::tests::{Builder, at};

fn job(spec: JobSpec) -> Job {
    Job { spec: Some(JobSpec { backoff_limit: spec.backoff_limit.or(Some(6)), ..spec }), ..Job::default() }
}

fn pod(name: &str, phase: &str, index: Option<i32>) -> Arc<Pod> {
    let mut builder = Builder::new(name).phase(phase);
    if let Some(index) = index {
        builder = builder.annotated(COMPLETION_INDEX, &index.to_string());
    }
    builder.0.metadata.finalizers = Some(vec![FINALIZER.into()]);
    builder.build()
}

fn released(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = Pod::clone(pod);
    pod.metadata.finalizers = None;
    Arc::new(pod)
}

fn reasons(status: &JobStatus) -> Vec<String> {
    status
        .conditions
        .iter()
        .flatten()
        .map(|condition| format!("{}/{}", condition.type_, condition.reason.clone().unwrap()))
        .collect()
}

#[test]
fn as_many_pods_as_there_is_work() {
    // completions, parallelism, succeeded so far, running -> created, deleted
    for (completions, parallelism, succeeded, running, created, deleted) in [
        (Some(5), 2, 0, 0, 2, 0),
        (Some(5), 2, 4, 0, 1, 0),
        (Some(5), 10, 0, 0, 5, 0),
        (Some(5), 2, 0, 3, 0, 1),
        (Some(5), 0, 0, 2, 0, 2),
        (None, 3, 0, 0, 3, 0),
        (None, 3, 1, 2, 0, 0),
        (Some(1), 1, 0, 1, 0, 0),
    ] {
        let mut job = job(JobSpec { completions, parallelism: Some(parallelism), ..JobSpec::default() });
        job.status = Some(JobStatus { succeeded: Some(succeeded), ..JobStatus::default() });
        let pods: Vec<_> = (0..running).map(|number| pod(&format!("p{number}"), "Running", None)).collect();
        let plan = plan(&job, &pods, true, at(0));
        assert_eq!(
            (plan.create.len(), plan.delete.len()),
            (created, deleted),
            "{completions:?} x{parallelism}, {succeeded} done, {running} running"
        );
    }
}

#[test]
fn a_pod_is_noted_then_released_then_counted() {
    let mut job = job(JobSpec { completions: Some(1), parallelism: Some(1), ..JobSpec::default() });
    let done = pod("p", "Succeeded", None);
    let first = plan(&job, std::slice::from_ref(&done), true, at(0));
    assert_eq!(first.status.uncounted_terminated_pods.as_ref().unwrap().succeeded, Some(vec!["uid-p".to_owned()]));
    assert_eq!((first.release.len(), first.status.succeeded), (1, None));
    assert_eq!(reasons(&first.status), ["SuccessCriteriaMet/CompletionsReached"]);
    job.status = Some(first.status);
    let again = plan(&job, std::slice::from_ref(&done), true, at(1));
    assert_eq!(job.status, Some(again.status), "a pass on a stale cache changes nothing");
    let second = plan(&job, &[released(&done)], true, at(2));
    assert_eq!(second.status.succeeded, Some(1));
    assert_eq!(reasons(&second.status), ["SuccessCriteriaMet/CompletionsReached", "Complete/CompletionsReached"]);
    assert!(second.status.completion_time.is_some());
    job.status = Some(second.status);
    assert!(is_finished(&job));
}

#[test]
fn too_many_failures_end_the_job() {
    for (limit, failed, running, ends) in [(0, 1, 0, true), (2, 2, 1, false), (2, 3, 1, true)] {
        let job = job(JobSpec {
            completions: Some(5),
            parallelism: Some(5),
            backoff_limit: Some(limit),
            ..JobSpec::default()
        });
        let mut pods: Vec<_> = (0..failed).map(|number| pod(&format!("f{number}"), "Failed", None)).collect();
        pods.extend((0..running).map(|number| pod(&format!("r{number}"), "Running", None)));
        let plan = plan(&job, &pods, true, at(0));
        assert_eq!(reasons(&plan.status), if ends { vec!["FailureTarget/BackoffLimitExceeded"] } else { vec![] });
        assert_eq!(plan.delete.len(), if ends { running } else { 0 });
    }
}

#[test]
fn indexes_are_filled_in_order_and_never_twice() {
    let job = job(JobSpec {
        completions: Some(4),
        parallelism: Some(3),
        completion_mode: Some("Indexed".into()),
        ..JobSpec::default()
    });
    let pods = [pod("a", "Succeeded", Some(1)), pod("b", "Running", Some(0)), pod("c", "Running", Some(0))];
    let first = plan(&job, &pods, true, at(0));
    assert_eq!(first.delete.len(), 1, "the second pod of index 0");
    assert_eq!(first.status.completed_indexes.as_deref(), Some("1"));
    let second = plan(&job, &pods[..2], true, at(0));
    assert_eq!(second.create, [(Some(2), 0), (Some(3), 0)]);
}

#[test]
fn an_index_may_fail_on_its_own() {
    let job = job(JobSpec {
        completions: Some(2),
        parallelism: Some(2),
        completion_mode: Some("Indexed".into()),
        backoff_limit: Some(i32::MAX),
        backoff_limit_per_index: Some(0),
        ..JobSpec::default()
    });
    let pods = [pod("a", "Failed", Some(0)), pod("b", "Succeeded", Some(1))];
    let plan = plan(&job, &pods, true, at(0));
    assert_eq!(
        (plan.status.failed_indexes.as_deref(), plan.status.completed_indexes.as_deref()),
        (Some("0"), Some("1"))
    );
    assert_eq!(reasons(&plan.status), ["FailureTarget/FailedIndexes"]);
}

#[test]
fn a_success_policy_ends_early() {
    let rule = SuccessPolicyRule { succeeded_indexes: Some("0,2".into()), succeeded_count: Some(1) };
    let job = job(JobSpec {
        completions: Some(3),
        parallelism: Some(3),
        completion_mode: Some("Indexed".into()),
        success_policy: Some(SuccessPolicy { rules: vec![rule] }),
        ..JobSpec::default()
    });
    let plan = plan(&job, &[pod("a", "Succeeded", Some(2)), pod("b", "Running", Some(0))], true, at(0));
    assert_eq!(reasons(&plan.status), ["SuccessCriteriaMet/SuccessPolicy"]);
    assert_eq!(plan.delete.len(), 1);
}

#[test]
fn suspending_stops_pods_and_resuming_restarts_the_clock() {
    let mut suspended = job(JobSpec {
        completions: Some(1),
        parallelism: Some(1),
        suspend: Some(true),
        active_deadline_seconds: Some(10),
        ..JobSpec::default()
    });
    let first = plan(&suspended, &[pod("a", "Running", None)], true, at(0));
    assert_eq!((first.delete.len(), reasons(&first.status)), (1, vec!["Suspended/JobSuspended".to_owned()]));
    suspended.status = Some(first.status);
    suspended.spec.as_mut().unwrap().suspend = Some(false);
    let second = plan(&suspended, &[], true, at(100));
    assert_eq!(reasons(&second.status), ["Suspended/JobResumed"]);
    assert_eq!(second.status.start_time.as_ref().map(|time| time.0), Some(at(100)));
    assert_eq!(second.create.len(), 1);
}

#[test]
fn the_deadline_ends_the_job_and_is_waited_for() {
    let mut job = job(JobSpec {
        completions: Some(1),
        parallelism: Some(1),
        active_deadline_seconds: Some(10),
        ..JobSpec::default()
    });
    job.status = Some(JobStatus { start_time: Some(Time(at(0))), ..JobStatus::default() });
    let running = [pod("a", "Running", None)];
    assert_eq!(plan(&job, &running, true, at(4)).recheck, Some(Duration::from_secs(6)));
    let late = plan(&job, &running, true, at(10));
    assert_eq!((reasons(&late.status), late.delete.len()), (vec!["FailureTarget/DeadlineExceeded".to_owned()], 1));
}

#[test]
fn a_pass_says_what_it_is_about() {
    for (suspend, running, settled, expected) in [
        (false, 0, true, Action::PodsCreated),
        (false, 2, true, Action::Tracking),
        (false, 3, true, Action::PodsDeleted),
        (true, 2, true, Action::PodsDeleted),
        (false, 0, false, Action::Reconciling),
    ] {
        let spec = JobSpec { completions: Some(5), parallelism: Some(2), suspend: Some(suspend), ..JobSpec::default() };
        let pods: Vec<_> = (0..running).map(|number| pod(&format!("p{number}"), "Running", None)).collect();
        let action = plan(&job(spec), &pods, settled, at(0)).action;
        assert_eq!(action, expected, "suspended: {suspend}, {running} running, settled: {settled}");
    }
}

#[test]
fn a_failure_is_judged_until_it_is_noted() {
    let rule = serde_json::json!({"action": "Count", "onExitCodes": {"operator": "NotIn", "values": [0]}});
    let policy = serde_json::from_value(serde_json::json!({"rules": [rule]})).unwrap();
    let mut job = job(JobSpec { pod_failure_policy: Some(policy), ..JobSpec::default() });
    let mut failed = Pod::clone(&pod("p", "Failed", None));
    let ended: ContainerStatus =
        serde_json::from_value(serde_json::json!({"name": "c", "state": {"terminated": {"exitCode": 3}}})).unwrap();
    failed.status.get_or_insert_default().container_statuses = Some(vec![ended.into()]);
    let pods = [Arc::new(failed)];
    let first = plan(&job, &pods, true, at(0));
    assert_eq!(first.judged, ["Count"]);
    job.status = Some(first.status);
    assert!(plan(&job, &pods, true, at(1)).judged.is_empty(), "not again while it waits to be released");
}

/// Its node deleted it for good without having reported an end: the Job must not wait for one.
#[test]
fn deleted_pods_are_not_ready() {
    let [ready, other] = ["a", "b"].map(|name| Builder::new(name).phase("Running"));
    let [ready, other] = [ready.ready(at(0)).build(), other.build()];
    let status = |[active, ready, terminating]: [Option<i32>; 3]| JobStatus {
        active,
        ready,
        terminating,
        ..JobStatus::default()
    };
    let mut of_two = status([Some(2), Some(1), Some(0)]);
    super::super::note_deleted(&mut of_two, &[&other]);
    assert_eq!(of_two, status([Some(1), Some(1), Some(1)]));
    super::super::note_deleted(&mut of_two, &[&ready]);
    assert_eq!(of_two, status([None, Some(0), Some(2)]));
}

/// The API server takes no end without it.
#[test]
fn a_condition_that_somebody_made_false_becomes_true() {
    let mut job = job(JobSpec { completions: Some(1), parallelism: Some(1), ..JobSpec::default() });
    let is_false = |kind: &str| JobCondition { type_: kind.into(), status: "False".into(), ..JobCondition::default() };
    job.status = Some(JobStatus {
        conditions: Some(["SuccessCriteriaMet", "Complete"].map(is_false).into()),
        succeeded: Some(1),
        ..JobStatus::default()
    });
    let ended = plan(&job, &[], true, at(0)).status.conditions.unwrap();
    let ended: Vec<_> = ended.iter().map(|condition| (&*condition.type_, &*condition.status)).collect();
    assert_eq!(ended, [("SuccessCriteriaMet", "True"), ("Complete", "True")]);
}

#[test]
fn a_pod_that_was_noted_as_failed_is_released_if_it_ends_well() {
    let mut job = job(JobSpec { completions: Some(1), parallelism: Some(1), ..JobSpec::default() });
    let failed = Some(vec!["uid-p".to_owned()]);
    let uncounted = UncountedTerminatedPods { failed, ..UncountedTerminatedPods::default() };
    job.status = Some(JobStatus { uncounted_terminated_pods: Some(uncounted), ..JobStatus::default() });
    let plan = plan(&job, &[pod("p", "Succeeded", None)], true, at(0));
    assert_eq!(
        (plan.release.len(), plan.status.uncounted_terminated_pods),
        (1, job.status.unwrap().uncounted_terminated_pods)
    );
}

#[test]
fn a_pod_that_was_deleted_before_it_ran_has_failed() {
    use k8s_openapi::api::batch::v1::{PodFailurePolicy, PodFailurePolicyRule};

    let rule = PodFailurePolicyRule { action: "FailJob".into(), ..PodFailurePolicyRule::default() };
    let mut job = job(JobSpec {
        completions: Some(2),
        parallelism: Some(2),
        pod_failure_policy: Some(PodFailurePolicy { rules: vec![rule] }),
        ..JobSpec::default()
    });
    let target = JobCondition { type_: "FailureTarget".into(), status: "True".into(), ..JobCondition::default() };
    job.status = Some(JobStatus {
        conditions: Some(vec![JobCondition { reason: Some("PodFailurePolicy".into()), ..target }]),
        terminating: Some(1),
        failed: Some(1),
        ..JobStatus::default()
    });
    let deleted = |phase: &str, grace: i64| {
        let mut pod = Pod::clone(&pod("p", phase, None));
        pod.metadata.deletion_timestamp = Some(Time(at(0)));
        pod.metadata.deletion_grace_period_seconds = Some(grace);
        Arc::new(pod)
    };
    for (phase, grace, expected) in [("Pending", 0, true), ("Pending", 30, false), ("Running", 0, false)] {
        let first = plan(&job, &[deleted(phase, grace)], true, at(1));
        let terminating = Some(i32::from(!expected));
        assert_eq!(
            (first.release.len(), first.status.terminating),
            (usize::from(expected), terminating),
            "{phase} {grace}"
        );
        assert_eq!(reasons(&first.status), ["FailureTarget/PodFailurePolicy"]);
    }
    let first = plan(&job, &[deleted("Pending", 0)], true, at(1));
    job.status = Some(first.status);
    let second = plan(&job, &[], true, at(2));
    assert_eq!(second.status.failed, Some(2));
    assert_eq!(reasons(&second.status), ["FailureTarget/PodFailurePolicy", "Failed/PodFailurePolicy"]);
}
