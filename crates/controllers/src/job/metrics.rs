//! What the Job controller counts, under upstream's names.

use std::time::Duration;

use api::cached::Pod;
use client::Event;
use client::metrics::{Metrics as Registry, exponential};
use k8s_openapi::api::batch::v1::{Job, JobStatus};

use super::plan::{Action, has_finalizer, is_finished};
use super::{indexes, pods};

static SYNC_BOUNDS: [f64; 15] = exponential(0.004, 2.0);

#[derive(Clone)]
pub(super) struct Metrics(Registry);

/// How many succeeded and how many failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Ended {
    succeeded: usize,
    failed: usize,
}

impl Ended {
    fn by_result(self) -> [(&'static str, usize); 2] {
        [("succeeded", self.succeeded), ("failed", self.failed)]
    }
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Metrics {
        Metrics(registry.clone())
    }

    fn count(&self, name: &'static str, help: &'static str, labels: &[(&str, &str)], count: usize) {
        if count > 0 {
            self.0.counter(name, help, labels).add(count);
        }
    }

    pub(super) fn synced(&self, job: &Job, action: Action, is_ok: bool, time: Duration) {
        let result = if is_ok { "success" } else { "error" };
        let labels = [("completion_mode", completion_mode(job)), ("result", result), ("action", action.name())];
        self.count("job_controller_job_syncs_total", "Job syncs", &labels, 1);
        self.0
            .histogram("job_controller_job_sync_duration_seconds", "How long a sync takes", &SYNC_BOUNDS, &labels)
            .observe_duration(time);
    }

    /// A new Job names somebody else as its controller.
    pub(super) fn left_to(&self, manager: &str) {
        let (name, labels) = ("job_controller_jobs_by_external_controller_total", [("controller_name", manager)]);
        self.count(name, "Jobs that another controller looks after", &labels, 1);
    }

    /// Pods were made, or could not be: by why they were needed.
    pub(super) fn created(&self, job: &Job, status: &JobStatus, created: usize, failed: usize) {
        let policy = job.spec.as_ref().and_then(|spec| spec.pod_replacement_policy.as_deref());
        let has_failed = status.failed.unwrap_or(0) > 0;
        let reason = match policy {
            Some("Failed") if has_failed => "recreate_failed",
            _ if has_failed || status.terminating.unwrap_or(0) > 0 => "recreate_terminating_or_failed",
            _ => "new",
        };
        for (result, count) in (Ended { succeeded: created, failed }).by_result() {
            let labels = [("reason", reason), ("status", result)];
            self.count("job_controller_job_pods_creation_total", "Pods made for Jobs", &labels, count);
        }
    }

    /// The failure policy decided about pods, by these actions.
    pub(super) fn judged(&self, actions: &[String]) {
        let name = "job_controller_pod_failures_handled_by_failure_policy_total";
        for action in actions {
            self.count(name, "Failed pods that a rule of the failure policy matched", &[("action", action)], 1);
        }
    }

    /// Pods that have ended and are held until their Job has counted them, as they come and as they go.
    pub(super) fn tracked(&self, event: &Event<Pod>) {
        let is_held = |pod: &Pod| has_finalizer(pod) && pods::is_finished(pod);
        let (before, after) = match event {
            Event::Added(pod) => (false, is_held(pod)),
            Event::Modified { old, new } => (is_held(old), is_held(new)),
            Event::Deleted(pod) => (is_held(pod), false),
        };
        if before != after {
            let labels = [("event", if after { "add" } else { "delete" })];
            let name = "job_controller_terminated_pods_tracking_finalizer_total";
            self.count(name, "Ended pods that a Job is yet to count", &labels, 1);
        }
    }

    /// A new status was stored: pods and indexes are counted by it, and perhaps the Job has ended.
    pub(super) fn progressed(&self, before: &Job, after: &Job) {
        let mode = completion_mode(after);
        let is_per_index = after.spec.as_ref().is_some_and(|spec| spec.backoff_limit_per_index.is_some());
        let limit = if is_per_index { "perIndex" } else { "global" };
        let (pods, indexes) = ended(before, after);
        for (result, count) in pods.by_result() {
            let labels = [("completion_mode", mode), ("result", result)];
            self.count("job_controller_job_pods_finished_total", "Pods counted by their Job", &labels, count);
        }
        for (result, count) in indexes.by_result() {
            let labels = [("status", result), ("backoffLimit", limit)];
            self.count("job_controller_job_finished_indexes_total", "Finished indexes of Jobs", &labels, count);
        }
        if is_finished(before) {
            return;
        }
        let ends = after.status.iter().flat_map(|status| status.conditions.iter().flatten());
        for end in ends.filter(|end| end.status == "True") {
            let result = match end.type_.as_str() {
                "Complete" => "succeeded",
                "Failed" => "failed",
                _ => continue,
            };
            let reason = end.reason.as_deref().unwrap_or_default();
            let labels = [("completion_mode", mode), ("result", result), ("reason", reason)];
            self.count("job_controller_jobs_finished_total", "Finished Jobs", &labels, 1);
        }
    }
}

fn completion_mode(job: &Job) -> &'static str {
    match job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) {
        Some("Indexed") => "Indexed",
        _ => "NonIndexed",
    }
}

/// Pods and indexes that the status after counts and the one before did not. With indexes it is these that say how many
/// pods succeeded: completions may have been lowered since.
fn ended(before: &Job, after: &Job) -> (Ended, Ended) {
    let (old, new) = (before.status.clone().unwrap_or_default(), after.status.clone().unwrap_or_default());
    let more = |old: usize, new: usize| new.saturating_sub(old);
    let number = |number: Option<i32>| usize::try_from(number.unwrap_or(0)).unwrap_or(0);
    let mut pods = Ended {
        succeeded: more(number(old.succeeded), number(new.succeeded)),
        failed: more(number(old.failed), number(new.failed)),
    };
    let mut of_indexes = Ended::default();
    if completion_mode(after) == "Indexed" {
        let completions = after.spec.as_ref().and_then(|spec| spec.completions).unwrap_or_default();
        let count = |text: Option<&String>| indexes::parse(text.map_or("", String::as_str), completions).len();
        of_indexes = Ended {
            succeeded: more(count(old.completed_indexes.as_ref()), count(new.completed_indexes.as_ref())),
            failed: more(count(old.failed_indexes.as_ref()), count(new.failed_indexes.as_ref())),
        };
        pods.succeeded = of_indexes.succeeded;
    }
    (pods, of_indexes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value, status: Value) -> Job {
        serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
    }

    fn shows(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.0.render();
        for line in lines {
            assert!(text.contains(&format!("job_controller_{line}\n")), "{line} not in\n{text}");
        }
    }

    #[test]
    fn pods_and_indexes_are_counted_once() {
        let ended_as = |succeeded, failed| Ended { succeeded, failed };
        let plain = json!({"template": {}});
        let indexed = json!({"completionMode": "Indexed", "completions": 5, "template": {}});
        for (spec, old, new, pods, indexes) in [
            (&plain, json!({}), json!({"succeeded": 2, "failed": 1}), ended_as(2, 1), ended_as(0, 0)),
            (&plain, json!({"failed": 1}), json!({"failed": 1, "active": 3}), ended_as(0, 0), ended_as(0, 0)),
            (
                &indexed,
                json!({"completedIndexes": "0", "succeeded": 1}),
                json!({"completedIndexes": "0-2", "failedIndexes": "4", "succeeded": 3, "failed": 2}),
                ended_as(2, 2),
                ended_as(2, 1),
            ),
            // Completions were lowered: what is beyond them counts no more, and takes nothing away.
            (
                &indexed,
                json!({"completedIndexes": "0-7", "succeeded": 8}),
                json!({"completedIndexes": "0-4", "succeeded": 5}),
                ended_as(0, 0),
                ended_as(0, 0),
            ),
        ] {
            let seen = ended(&job(spec.clone(), old.clone()), &job(spec.clone(), new.clone()));
            assert_eq!(seen, (pods, indexes), "{old} -> {new}");
        }
    }

    #[test]
    fn everything_has_its_series() {
        let metrics = Metrics::new(&Registry::new());
        let spec = json!({"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1, "template": {}});
        let before = job(spec.clone(), json!({}));
        let end = json!([{"type": "Failed", "status": "True", "reason": "FailedIndexes"}]);
        let after = job(spec, json!({"completedIndexes": "0", "failedIndexes": "1,2", "failed": 4, "conditions": end}));
        metrics.progressed(&before, &after);
        metrics.progressed(&after, &after);
        metrics.synced(&before, Action::PodsCreated, true, Duration::from_millis(5));
        metrics.judged(&["Ignore".into(), "FailIndex".into(), "Ignore".into()]);
        metrics.created(&before, &JobStatus { failed: Some(1), ..JobStatus::default() }, 3, 1);
        metrics.left_to("example.com/other");
        let held: Pod = api::codec::from_value(&json!({
            "metadata": {"finalizers": [super::super::plan::FINALIZER]}, "status": {"phase": "Failed"}
        }))
        .unwrap();
        metrics.tracked(&Event::Added(Arc::new(held.clone())));
        metrics.tracked(&Event::Modified { old: Arc::new(held.clone()), new: Arc::new(held.clone()) });
        metrics.tracked(&Event::Modified { old: Arc::new(held), new: Arc::default() });
        shows(
            &metrics,
            &[
                "job_pods_finished_total{completion_mode=\"Indexed\",result=\"failed\"} 4",
                "job_pods_finished_total{completion_mode=\"Indexed\",result=\"succeeded\"} 1",
                "job_finished_indexes_total{backoffLimit=\"perIndex\",status=\"failed\"} 2",
                "job_finished_indexes_total{backoffLimit=\"perIndex\",status=\"succeeded\"} 1",
                "jobs_finished_total{completion_mode=\"Indexed\",reason=\"FailedIndexes\",result=\"failed\"} 1",
                "job_syncs_total{action=\"pods_created\",completion_mode=\"Indexed\",result=\"success\"} 1",
                "job_sync_duration_seconds_count{action=\"pods_created\",completion_mode=\"Indexed\",result=\"success\"} 1",
                "pod_failures_handled_by_failure_policy_total{action=\"Ignore\"} 2",
                "pod_failures_handled_by_failure_policy_total{action=\"FailIndex\"} 1",
                "job_pods_creation_total{reason=\"recreate_terminating_or_failed\",status=\"succeeded\"} 3",
                "job_pods_creation_total{reason=\"recreate_terminating_or_failed\",status=\"failed\"} 1",
                "jobs_by_external_controller_total{controller_name=\"example.com/other\"} 1",
                "terminated_pods_tracking_finalizer_total{event=\"add\"} 1",
                "terminated_pods_tracking_finalizer_total{event=\"delete\"} 1",
            ],
        );
    }
}
