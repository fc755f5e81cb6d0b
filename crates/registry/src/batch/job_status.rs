//! What a Job's status may say: whoever manages a Job, the clients that wait for it see the same transitions.
//!
//! A rule is checked where what it is about has changed (`getStatusValidationOptions` and `ValidateJobStatusUpdate`, v1.36): a status
//! that was wrong before can still be written for another reason.

use api::field::{FieldErrors, IMMUTABLE, Path};
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};

use super::job_policies::{count_indexes, indexes, refuse};
use crate::unset::{items, or_empty};

const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const FAILURE_TARGET: &str = "FailureTarget";
const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
const SUSPENDED: &str = "Suspended";

/// A status with what it says of the whole Job.
struct Said<'a> {
    status: &'a JobStatus,
    complete: bool,
    failed: bool,
    failure_target: bool,
    success_criteria_met: bool,
}

impl<'a> Said<'a> {
    fn by(status: &'a JobStatus) -> Self {
        let is = |kind: &str| has(status, kind, "True");
        Self {
            status,
            complete: is(COMPLETE),
            failed: is(FAILED),
            failure_target: is(FAILURE_TARGET),
            success_criteria_met: is(SUCCESS_CRITERIA_MET),
        }
    }

    fn finished(&self) -> bool {
        self.complete || self.failed
    }
}

fn has(status: &JobStatus, kind: &str, value: &str) -> bool {
    items(&status.conditions).iter().any(|condition| condition.type_ == kind && condition.status == value)
}

pub(super) fn validate_update(new: &Job, old: &Job) -> FieldErrors {
    let (no_spec, no_status) = (JobSpec::default(), JobStatus::default());
    let spec = new.spec.as_ref().unwrap_or(&no_spec);
    let [new, old] = [new, old].map(|job| Said::by(job.status.as_ref().unwrap_or(&no_status)));
    let mut errors = FieldErrors::default();
    let path = Path::new("status");
    counters(&mut errors, &path, &new, &old);
    conditions(&mut errors, &path.child("conditions"), spec, &new, &old);
    times(&mut errors, &path, spec, &new, &old);
    completed_and_failed(&mut errors, &path, spec, new.status, old.status);
    let is_scaled = or_empty(&spec.completion_mode) == "Indexed" && spec.completions == spec.parallelism;
    for (name, before, now) in [
        ("failed", old.status.failed, new.status.failed),
        ("succeeded", old.status.succeeded.filter(|_| !is_scaled), new.status.succeeded),
    ] {
        if now.unwrap_or(0) < before.unwrap_or(0) {
            errors.invalid(path.child(name), now.unwrap_or(0), format!("cannot decrease the {name} counter"));
        }
    }
    errors
}

/// How many pods there are of each kind, and which are not counted yet.
fn counters(errors: &mut FieldErrors, path: &Path<'_>, new: &Said<'_>, old: &Said<'_>) {
    let (status, before) = (new.status, old.status);
    for (name, count) in [
        ("active", status.active),
        ("succeeded", status.succeeded),
        ("failed", status.failed),
        ("ready", status.ready),
        ("terminating", status.terminating),
    ] {
        if let Some(count) = count.filter(|count| *count < 0) {
            errors.invalid(path.child(name), count, "must be greater than or equal to 0");
        }
    }
    let uncounted = path.child("uncountedTerminatedPods");
    let mut seen = std::collections::BTreeSet::new();
    let listed = status.uncounted_terminated_pods.as_ref();
    for (name, pods) in
        [("succeeded", listed.map(|of| items(&of.succeeded))), ("failed", listed.map(|of| items(&of.failed)))]
    {
        for (at, uid) in pods.unwrap_or_default().iter().enumerate() {
            let place = uncounted.child(name);
            if uid.is_empty() {
                errors.invalid(place.index(at), uid, "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(place.index(at), uid);
            }
        }
    }
    let ends = new.finished() != old.finished();
    let [active, active_before] = [status, before].map(|status| status.active.unwrap_or(0));
    if new.finished() {
        if active > 0 && (ends || active != active_before) {
            errors.invalid(path.child("active"), active, "active>0 is invalid for finished job");
        }
        if !seen.is_empty() && (ends || status.uncounted_terminated_pods != before.uncounted_terminated_pods) {
            errors.invalid(uncounted, listed, "must be empty for finished job");
        }
        if let Some(terminating) = status.terminating.filter(|terminating| *terminating > 0)
            && (ends || status.terminating != before.terminating)
        {
            errors.invalid(path.child("terminating"), terminating, "terminating>0 is invalid for finished job");
        }
    }
    if let Some(ready) = status.ready.filter(|ready| *ready > active)
        && (status.ready != before.ready || active != active_before)
    {
        errors.invalid(path.child("ready"), ready, "cannot set more ready pods than active");
    }
}

/// Which conditions can be true together, and which stay true.
fn conditions(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec, new: &Said<'_>, old: &Said<'_>) {
    let completes = new.complete != old.complete;
    let fails = new.failed != old.failed;
    let lost = new.status.failed_indexes != old.status.failed_indexes;
    for (is_wrong, problem) in [
        (new.complete && new.failed && (completes || fails), "cannot set Complete=True and Failed=true conditions"),
        (
            new.complete && new.failure_target && (completes || new.failure_target != old.failure_target),
            "cannot set Complete=True and FailureTarget=true conditions",
        ),
        (
            new.failed && !new.failure_target && (fails || lost),
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            new.complete
                && !new.success_criteria_met
                && (completes || new.success_criteria_met != old.success_criteria_met),
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
        (new.success_criteria_met && new.failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (
            new.success_criteria_met && new.failure_target,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
        (
            spec.success_policy.is_some() && new.complete && !new.success_criteria_met,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        ),
        (old.failed && !new.failed, "cannot disable the terminal Failed=True condition"),
        (old.complete && !new.complete, "cannot disable the terminal Complete=True condition"),
        (old.failure_target && !new.failure_target, "cannot disable the terminal FailureTarget=True condition"),
        (old.success_criteria_met && !new.success_criteria_met, "cannot disable the SuccessCriteriaMet=True condition"),
        (
            old.complete && !old.success_criteria_met && new.success_criteria_met,
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        ),
    ] {
        if is_wrong {
            refuse(errors, path, problem);
        }
    }
}

/// When the Job began and ended.
fn times(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec, new: &Said<'_>, old: &Said<'_>) {
    let (status, before) = (new.status, old.status);
    let (start, completion) = (path.child("startTime"), path.child("completionTime"));
    let starts = status.start_time != before.start_time;
    let is_suspended = spec.suspend == Some(true);
    if status.completion_time != before.completion_time || new.complete != old.complete {
        if status.completion_time.is_some() && !new.complete {
            let detail = "cannot set completionTime when there is no Complete=True condition";
            errors.invalid(completion, &status.completion_time, detail);
        } else if status.completion_time.is_none() && new.complete {
            errors.required(completion, "completionTime is required for Complete jobs");
        }
    }
    if let (Some(began), Some(ended)) = (&status.start_time, &status.completion_time)
        && ended < began
        && (starts || status.completion_time != before.completion_time)
    {
        errors.invalid(completion, ended, "must be equal to or after `startTime`");
    }
    if new.finished()
        && status.start_time.is_none()
        && (starts || new.finished() != old.finished())
        && !(is_suspended && spec.completions == Some(0))
    {
        errors.required(start, "startTime is required for finished job");
    }
    if let (Some(now), Some(was)) = (&status.completion_time, &before.completion_time)
        && now != was
    {
        errors.invalid(completion, now, IMMUTABLE);
    }
    let resumes = has(before, SUSPENDED, "True") && has(status, SUSPENDED, "False");
    if starts && before.start_time.is_some() && !resumes && !is_suspended {
        errors.invalid(start, &status.start_time, "field is immutable for unsuspended job once set");
    }
}

/// Which indexes are done, and which are lost.
fn completed_and_failed(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec, new: &JobStatus, old: &JobStatus) {
    let (completed, failed) = (or_empty(&new.completed_indexes), new.failed_indexes.as_deref());
    let done_changed = completed != or_empty(&old.completed_indexes);
    let lost_changed = new.failed_indexes != old.failed_indexes;
    let (done, lost) = (path.child("completedIndexes"), path.child("failedIndexes"));
    if let Some(completions) = spec.completions {
        if let (true, Err(problem)) = (done_changed, count_indexes(completed, completions)) {
            errors.invalid(done, completed, format!("error parsing completedIndexes: {problem}"));
        }
        if let (true, true, Some(failed)) = (lost_changed, spec.backoff_limit_per_index.is_some(), failed)
            && let Err(problem) = count_indexes(failed, completions)
        {
            errors.invalid(lost, failed, format!("error parsing failedIndexes: {problem}"));
        }
    }
    if done_changed && !completed.is_empty() && or_empty(&spec.completion_mode) != "Indexed" {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.invalid(done, completed, detail);
    }
    let Some(failed) = failed else { return };
    if lost_changed && spec.backoff_limit_per_index.is_none() {
        errors.invalid(lost, failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    if let Some(completions) = spec.completions
        && (done_changed || lost_changed)
        && let Some(index) = first_in_both(completed, failed, completions)
    {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.invalid(lost, failed, detail);
    }
}

/// The first index that both texts name; what cannot be read names none.
fn first_in_both(completed: &str, failed: &str, completions: i32) -> Option<i32> {
    let readable = |text| indexes(text, completions).filter_map(Result::ok).collect::<Vec<_>>();
    let (completed, failed) = (readable(completed), readable(failed));
    let (mut completed, mut failed) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some((done, done_end)), Some((lost, lost_end))) = (completed.peek(), failed.peek()) {
        if done <= lost_end && lost <= done_end {
            return Some(*done.max(lost));
        }
        if done <= lost {
            completed.next()
        } else {
            failed.next()
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(spec: Value, new: Value, old: Value) -> Vec<String> {
        let job = |status: Value| -> Job {
            let mut spec = spec.clone();
            spec["template"] = json!({"spec": {"containers": [{"name": "c"}]}});
            serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
        };
        validate_update(&job(new), &job(old)).iter().map(ToString::to_string).collect()
    }

    fn is(kinds: &[&str]) -> Value {
        kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect()
    }

    const BEGAN: &str = "2026-01-02T03:04:05Z";
    const ENDED: &str = "2026-01-02T03:05:05Z";

    #[test]
    fn a_job_ends_as_clients_expect() {
        let all = ["SuccessCriteriaMet", "Complete"];
        let complete = json!({"conditions": is(&all), "startTime": BEGAN, "completionTime": ENDED, "succeeded": 1, "terminating": 0});
        let failed = json!({"conditions": is(&["FailureTarget", "Failed"]), "startTime": BEGAN, "failed": 1});
        let with = |status: &Value, changes: Value| {
            let mut status = status.clone();
            status.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            status
        };
        for (new, expected) in [
            (complete.clone(), None),
            (failed.clone(), None),
            (
                with(&complete, json!({"active": 1})),
                Some("active: Invalid value: 1: active>0 is invalid for finished job"),
            ),
            (
                with(&complete, json!({"terminating": 1})),
                Some("terminating: Invalid value: 1: terminating>0 is invalid for finished job"),
            ),
            (
                with(&complete, json!({"startTime": null})),
                Some("startTime: Required value: startTime is required for finished job"),
            ),
            (
                with(&complete, json!({"completionTime": null})),
                Some("completionTime: Required value: completionTime is required for Complete jobs"),
            ),
            (
                with(&complete, json!({"completionTime": "2026-01-02T03:04:04Z"})),
                Some("completionTime: Invalid value: \"2026-01-02T03:04:04Z\": must be equal to or after `startTime`"),
            ),
            (
                with(&complete, json!({"conditions": is(&["Complete"])})),
                Some(
                    "conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
                ),
            ),
            (
                with(&failed, json!({"conditions": is(&["Failed"])})),
                Some(
                    "conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
                ),
            ),
            (
                with(&failed, json!({"completionTime": ENDED})),
                Some(
                    "completionTime: Invalid value: \"2026-01-02T03:05:05Z\": cannot set completionTime when there is no Complete=True condition",
                ),
            ),
            (
                with(&failed, json!({"uncountedTerminatedPods": {"failed": ["a"]}})),
                Some("uncountedTerminatedPods: Invalid value: {\"failed\":[\"a\"]}: must be empty for finished job"),
            ),
        ] {
            let found = refused(json!({}), new.clone(), json!({"startTime": new["startTime"]}));
            assert_eq!(found, expected.map(|text| format!("status.{text}")).into_iter().collect::<Vec<_>>(), "{new}");
        }
        assert_eq!(
            refused(json!({}), json!({"startTime": BEGAN}), failed),
            [
                "status.conditions: Invalid value: cannot disable the terminal Failed=True condition",
                "status.conditions: Invalid value: cannot disable the terminal FailureTarget=True condition",
                "status.failed: Invalid value: 0: cannot decrease the failed counter",
            ]
        );
    }

    #[test]
    fn counters_and_times_only_go_one_way() {
        for (spec, new, old, expected) in [
            (
                json!({}),
                json!({"active": -1}),
                json!({}),
                Some("active: Invalid value: -1: must be greater than or equal to 0"),
            ),
            (
                json!({}),
                json!({"active": 1, "ready": 2}),
                json!({}),
                Some("ready: Invalid value: 2: cannot set more ready pods than active"),
            ),
            // It was so before, and is not what changes.
            (json!({}), json!({"active": 1, "ready": 2, "failed": 1}), json!({"active": 1, "ready": 2}), None),
            (
                json!({}),
                json!({"succeeded": 1}),
                json!({"succeeded": 2}),
                Some("succeeded: Invalid value: 1: cannot decrease the succeeded counter"),
            ),
            (
                json!({"completionMode": "Indexed", "completions": 1, "parallelism": 1}),
                json!({"succeeded": 1}),
                json!({"succeeded": 2}),
                None,
            ),
            (
                json!({}),
                json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["a"]}}),
                json!({}),
                Some("uncountedTerminatedPods.failed[0]: Duplicate value: \"a\""),
            ),
            (
                json!({}),
                json!({"startTime": ENDED}),
                json!({"startTime": BEGAN}),
                Some(
                    "startTime: Invalid value: \"2026-01-02T03:05:05Z\": field is immutable for unsuspended job once set",
                ),
            ),
            (json!({"suspend": true}), json!({}), json!({"startTime": BEGAN}), None),
            (
                json!({}),
                json!({"startTime": ENDED, "conditions": [{"type": "Suspended", "status": "False"}]}),
                json!({"startTime": BEGAN, "conditions": is(&["Suspended"])}),
                None,
            ),
        ] {
            let found = refused(spec, new.clone(), old);
            assert_eq!(found, expected.map(|text| format!("status.{text}")).into_iter().collect::<Vec<_>>(), "{new}");
        }
    }

    #[test]
    fn indexes_are_those_of_the_job() {
        let indexed = json!({"completionMode": "Indexed", "completions": 5, "backoffLimitPerIndex": 1});
        for (spec, new, expected) in [
            (&indexed, json!({"completedIndexes": "0,2-3", "failedIndexes": "1,4"}), None),
            (
                &indexed,
                json!({"completedIndexes": "5"}),
                Some("completedIndexes: Invalid value: \"5\": error parsing completedIndexes: too large index: \"5\""),
            ),
            (
                &indexed,
                json!({"completedIndexes": "0,2-3", "failedIndexes": "1,3-4"}),
                Some("failedIndexes: Invalid value: \"1,3-4\": failedIndexes and completedIndexes overlap at index: 3"),
            ),
            (
                &json!({"completions": 5}),
                json!({"completedIndexes": "0"}),
                Some(
                    "completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion mode",
                ),
            ),
            (
                &json!({"completionMode": "Indexed", "completions": 5}),
                json!({"failedIndexes": "0"}),
                Some(
                    "failedIndexes: Invalid value: \"0\": cannot set non-null failedIndexes when backoffLimitPerIndex is null",
                ),
            ),
        ] {
            let found = refused(spec.clone(), new.clone(), json!({}));
            assert_eq!(found, expected.map(|text| format!("status.{text}")).into_iter().collect::<Vec<_>>(), "{new}");
        }
    }
}
