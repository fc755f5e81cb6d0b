//! What a Job does next, decided from itself and its pods alone.
//!
//! Counting survives crashes: a finished pod is first noted in `status.uncountedTerminatedPods`, then its finalizer
//! is removed, and only when that is seen is it counted and the note dropped. Each pass takes every pod one step further.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::cached::{Packed, Pod};
use api::meta::Meta as _;
use api::sort::{CompactCollect as _, CompactSort as _};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::failure_policy::{self, Verdict, judge};
use super::indexes::{self, Indexes};
use crate::pods;

pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub(super) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// At most so many pods in one pass.
const BURST: usize = 500;
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// One entry per pod to create, with its completion index and how often that index failed.
    pub(super) create: Vec<(Option<i32>, u32)>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods whose finalizer may go once `status` is written.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    pub(super) recheck: Option<Duration>,
    /// Warning or not, reason, message.
    pub(super) events: Vec<(bool, String, String)>,
    pub(super) action: Action,
    /// The actions of failure policy rules that decided about pods noted now.
    pub(super) judged: Vec<String>,
}

/// What a pass is about, as upstream's metrics call it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The cache does not show all that was asked for, or the Job is to end.
    #[default]
    Reconciling,
    /// As many pods are active as should be.
    Tracking,
    /// Too few are, though new ones may have to wait.
    PodsCreated,
    PodsDeleted,
}

impl Action {
    pub(super) fn name(self) -> &'static str {
        match self {
            Action::Reconciling => "reconciling",
            Action::Tracking => "tracking",
            Action::PodsCreated => "pods_created",
            Action::PodsDeleted => "pods_deleted",
        }
    }
}

pub(crate) fn is_finished(job: &Job) -> bool {
    has_ended(job.status.as_ref())
}

/// The same without unpacking the Job.
pub(super) fn is_packed_finished(job: &Packed<Job>) -> bool {
    has_ended(job.part(&["status"]).as_ref())
}

fn has_ended(status: Option<&JobStatus>) -> bool {
    has_condition(status, "Complete") || has_condition(status, "Failed")
}

fn has_condition(status: Option<&JobStatus>, kind: &str) -> bool {
    status.and_then(|status| find(status, kind)).is_some_and(|condition| condition.status == "True")
}

fn find<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

pub(super) fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// Deleted for good before it ran: only finalizers keep the object, and nobody will report a phase any more.
fn never_ran(pod: &Pod) -> bool {
    pods::is_deleted_at_once(pod) && matches!(pods::phase(pod), "" | "Pending")
}

fn index_of(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(COMPLETION_INDEX)?.parse().ok()
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid()
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// `pods` are all of the Job's; `settled` says that the cache shows all that was asked for.
pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], settled: bool, now: Timestamp) -> Plan {
    Pass::new(job, pods, now).run(settled)
}

struct Pass<'a> {
    job: &'a Job,
    spec: &'a JobSpec,
    pods: &'a [Arc<Pod>],
    active: Vec<Arc<Pod>>,
    terminating: usize,
    status: JobStatus,
    noted_succeeded: BTreeSet<String>,
    noted_failed: BTreeSet<String>,
    succeeded: i32,
    failed: i32,
    done: Indexes,
    lost: Indexes,
    now: Timestamp,
    plan: Plan,
}

impl<'a> Pass<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], now: Timestamp) -> Self {
        static EMPTY: std::sync::LazyLock<JobSpec> = std::sync::LazyLock::new(JobSpec::default);
        let status = job.status.clone().unwrap_or_default();
        let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        Self {
            job,
            spec: job.spec.as_ref().unwrap_or(&EMPTY),
            pods,
            active: pods.iter().filter(|pod| pods::is_active(pod)).cloned().collect(),
            terminating: pods
                .iter()
                .filter(|pod| pods::is_terminating(pod) && !pods::is_finished(pod) && !never_ran(pod))
                .count(),
            noted_succeeded: noted.succeeded.into_iter().flatten().collect(),
            noted_failed: noted.failed.into_iter().flatten().collect(),
            succeeded: 0,
            failed: 0,
            done: Indexes::new(),
            lost: Indexes::new(),
            status,
            now,
            plan: Plan::default(),
        }
    }

    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn completions(&self) -> i32 {
        self.spec.completions.unwrap_or_default()
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Replace pods only once they have failed, not while they terminate.
    fn waits_for_failure(&self) -> bool {
        match self.spec.pod_replacement_policy.as_deref() {
            Some(policy) => policy == "Failed",
            None => self.spec.pod_failure_policy.is_some(),
        }
    }

    fn has_failed(&self, pod: &Pod) -> bool {
        pods::phase(pod) == "Failed"
            || never_ran(pod)
            || (pods::is_terminating(pod) && pods::phase(pod) != "Succeeded" && !self.waits_for_failure())
    }

    fn run(mut self, settled: bool) -> Plan {
        if self.status.start_time.is_none() && !self.is_suspended() {
            self.status.start_time = Some(Time(self.now));
        }
        self.count_released();
        self.note_finished();
        let target = self.verdict();
        if let Some(target) = target {
            self.stop(target, settled);
        } else {
            self.work(settled);
        }
        self.finish()
    }

    /// Notes whose pod has lost its finalizer become counts.
    fn count_released(&mut self) {
        let held: BTreeSet<&str> =
            self.pods.iter().filter(|pod| has_finalizer(pod)).map(|pod| uid(pod)).compact_collect();
        let counted = |noted: &mut BTreeSet<String>, number: &mut Option<i32>| {
            let before = noted.len();
            noted.retain(|uid| held.contains(uid.as_str()));
            let released = count(before - noted.len());
            if released > 0 {
                *number = Some(number.unwrap_or_default() + released);
            }
        };
        counted(&mut self.noted_failed, &mut self.status.failed);
        counted(&mut self.noted_succeeded, &mut self.status.succeeded);
    }

    /// Finished pods that hold a finalizer are noted (or, with indexes, recorded) and may then be released.
    fn note_finished(&mut self) {
        if self.is_indexed() {
            self.done =
                indexes::parse(self.status.completed_indexes.as_deref().unwrap_or_default(), self.completions());
        }
        for pod in self.pods.iter().filter(|pod| has_finalizer(pod)) {
            let failed = self.has_failed(pod);
            if pods::phase(pod) == "Succeeded" && !self.noted_failed.contains(uid(pod)) {
                if self.is_indexed() {
                    self.done.extend(index_of(pod).filter(|index| *index < self.completions()));
                } else {
                    self.noted_succeeded.insert(uid(pod).to_owned());
                }
            } else if failed {
                if !self.noted_failed.contains(uid(pod)) {
                    let action = failure_policy::action(self.spec.pod_failure_policy.as_ref(), pod);
                    self.plan.judged.extend(action.map(str::to_owned));
                }
                if judge(self.spec.pod_failure_policy.as_ref(), pod) != Verdict::Ignore {
                    self.noted_failed.insert(uid(pod).to_owned());
                }
            } else if pods::phase(pod) != "Succeeded" {
                continue;
            }
            self.plan.release.push(pod.clone());
        }
        self.succeeded = if self.is_indexed() {
            count(self.done.len())
        } else {
            self.status.succeeded.unwrap_or_default() + count(self.noted_succeeded.len())
        };
        self.failed = self.status.failed.unwrap_or_default() + count(self.noted_failed.len());
        if self.is_indexed() && self.spec.backoff_limit_per_index.is_some() {
            self.lost = self.lost_indexes();
        }
    }

    /// Indexes that failed too often or by decision of the failure policy.
    fn lost_indexes(&self) -> Indexes {
        let limit = self.spec.backoff_limit_per_index.unwrap_or_default();
        let mut lost = indexes::parse(self.status.failed_indexes.as_deref().unwrap_or_default(), self.completions());
        for pod in self.pods.iter().filter(|pod| self.has_failed(pod)) {
            let Some(index) = index_of(pod).filter(|index| !self.done.contains(index)) else { continue };
            let verdict = judge(self.spec.pod_failure_policy.as_ref(), pod);
            let before = i32::try_from(index_failures(pod)).unwrap_or(i32::MAX);
            if verdict == Verdict::FailIndex || (verdict != Verdict::Ignore && before >= limit) {
                lost.insert(index);
            }
        }
        lost
    }

    /// Whether, and how, the Job is to end: type, reason and message of the interim condition.
    fn verdict(&mut self) -> Option<JobCondition> {
        for kind in ["SuccessCriteriaMet", "FailureTarget"] {
            if let Some(standing) = find(&self.status, kind).filter(|condition| condition.status == "True") {
                return Some(standing.clone());
            }
        }
        let failure = |reason: &str, message: &str| Some(("FailureTarget", reason.to_owned(), message.to_owned()));
        let by_policy = self.pods.iter().filter(|pod| self.has_failed(pod)).find_map(|pod| {
            match judge(self.spec.pod_failure_policy.as_ref(), pod) {
                Verdict::FailJob(message) => Some(message),
                _ => None,
            }
        });
        let limit = self.spec.backoff_limit.unwrap_or(6);
        let found = if let Some(message) = by_policy {
            failure("PodFailurePolicy", &message)
        } else if self.failed > limit || self.restarts_exceed(limit) {
            failure("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        } else if self.deadline_left() == Some(Duration::ZERO) {
            failure("DeadlineExceeded", "Job was active longer than specified deadline")
        } else if self.spec.max_failed_indexes.is_some_and(|limit| count(self.lost.len()) > limit) {
            failure("MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
        } else if !self.lost.is_empty() && count(self.lost.len() + self.done.len()) >= self.completions() {
            failure("FailedIndexes", "Job has failed indexes")
        } else if let Some(message) = self.success_policy() {
            Some(("SuccessCriteriaMet", "SuccessPolicy".to_owned(), message))
        } else if self.is_complete() {
            Some((
                "SuccessCriteriaMet",
                "CompletionsReached".to_owned(),
                "Reached expected number of succeeded pods".to_owned(),
            ))
        } else {
            None
        };
        self.plan.recheck = self.deadline_left();
        found.map(|(kind, reason, message)| self.condition(kind, "True", &reason, &message))
    }

    fn condition(&self, kind: &str, status: &str, reason: &str, message: &str) -> JobCondition {
        JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        }
    }

    fn is_complete(&self) -> bool {
        let enough = match self.spec.completions {
            None => self.succeeded > 0,
            Some(completions) => self.succeeded >= completions,
        };
        enough && self.active.is_empty()
    }

    /// With `restartPolicy: OnFailure` it is the containers' restarts that count.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let policy = self.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let statuses = self
            .pods
            .iter()
            .filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"))
            .filter_map(|pod| pod.status.as_ref());
        let restarts: i32 = statuses
            .flat_map(|status| {
                status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
            })
            .map(|container| container.restart_count())
            .fold(0, i32::saturating_add);
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn deadline_left(&self) -> Option<Duration> {
        let seconds = self.spec.active_deadline_seconds.filter(|_| !self.is_suspended())?;
        let start = self.status.start_time.as_ref()?.0;
        let elapsed = Duration::try_from(self.now.duration_since(start)).unwrap_or_default();
        Some(Duration::from_secs(seconds.max(0).unsigned_abs()).saturating_sub(elapsed))
    }

    fn success_policy(&self) -> Option<String> {
        let rules = &self.spec.success_policy.as_ref().filter(|_| self.is_indexed())?.rules;
        rules.iter().enumerate().find_map(|(number, rule)| {
            let wanted = rule.succeeded_indexes.as_deref();
            let wanted = wanted.map(|text| indexes::named(text, self.completions(), &self.done));
            let met = match (wanted, rule.succeeded_count) {
                (Some((_, done)), Some(needed)) => count(done) >= needed,
                (Some((all, done)), None) => i64::try_from(done) == Ok(all),
                (None, Some(needed)) => count(self.done.len()) >= needed,
                (None, None) => false,
            };
            met.then(|| format!("Matched rules at index {number}"))
        })
    }

    /// The Job is to end: no more pods, and the final condition once every pod is counted and gone.
    fn stop(&mut self, target: JobCondition, settled: bool) {
        self.set_true(target.clone());
        self.plan.delete = self.active.clone();
        let counted = self.noted_failed.is_empty()
            && self.noted_succeeded.is_empty()
            && !self.pods.iter().any(|pod| has_finalizer(pod));
        if !settled || !self.active.is_empty() || self.terminating > 0 || !counted {
            return;
        }
        let (reason, message) = (target.reason.clone().unwrap_or_default(), target.message.clone().unwrap_or_default());
        let kind = if target.type_ == "SuccessCriteriaMet" { "Complete" } else { "Failed" };
        let last = self.condition(kind, "True", &reason, &message);
        self.set_true(last);
        if kind == "Complete" {
            self.status.completion_time = Some(Time(self.now));
            self.plan.events.push((false, "Completed".into(), "Job completed".into()));
        } else {
            self.plan.events.push((true, reason, message));
        }
        self.plan.recheck = None;
    }

    /// In place of one that somebody made false.
    fn set_true(&mut self, condition: JobCondition) {
        let conditions = self.status.conditions.get_or_insert_default();
        let stands = |one: &JobCondition| one.type_ == condition.type_ && one.status == "True";
        if !conditions.iter().any(stands) {
            conditions.retain(|one| one.type_ != condition.type_);
            conditions.push(condition);
        }
    }

    /// The Job goes on: as many active pods as there is work for.
    fn work(&mut self, settled: bool) {
        if !settled || self.job.metadata.deletion_timestamp.is_some() {
            return;
        }
        self.suspend_or_resume();
        if self.is_suspended() {
            self.plan.action = Action::PodsDeleted;
            self.plan.delete = self.active.clone();
            return;
        }
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let mut wanted = match self.spec.completions {
            None if self.succeeded > 0 => count(self.active.len()),
            None => parallelism,
            Some(completions) => (completions - self.succeeded - count(self.lost.len())).min(parallelism),
        };
        wanted = wanted.max(0);
        let mut surplus: Vec<Arc<Pod>> = self.misplaced();
        let mut useful: Vec<Arc<Pod>> =
            self.active.iter().filter(|pod| !surplus.iter().any(|bad| uid(bad) == uid(pod))).cloned().collect();
        let too_many = useful.len().saturating_sub(usize::try_from(wanted).unwrap_or_default());
        if too_many > 0 {
            let victims = pods::surplus(useful.clone(), &useful, too_many, self.now);
            useful.retain(|pod| !victims.iter().any(|victim| uid(victim) == uid(pod)));
            surplus.extend(victims);
        }
        surplus.truncate(BURST);
        if !surplus.is_empty() {
            self.plan.action = Action::PodsDeleted;
            self.plan.delete = surplus;
            return;
        }
        let held = useful.len() + if self.waits_for_failure() { self.terminating } else { 0 };
        let missing = usize::try_from(wanted).unwrap_or_default().saturating_sub(held).min(BURST);
        self.plan.action = if missing > 0 { Action::PodsCreated } else { Action::Tracking };
        if missing > 0 {
            self.create(missing, &useful);
        }
    }

    /// Active pods of an index that is done, lost, out of range or taken twice.
    fn misplaced(&self) -> Vec<Arc<Pod>> {
        if !self.is_indexed() {
            return Vec::new();
        }
        let mut taken = BTreeSet::new();
        let mut sorted = self.active.clone();
        sorted.compact_sort_by(|left, right| {
            left.metadata
                .creation_timestamp
                .cmp(&right.metadata.creation_timestamp)
                .then(left.metadata.name.cmp(&right.metadata.name))
        });
        let mut bad = |pod: &Arc<Pod>| match index_of(pod) {
            Some(index) => {
                index >= self.completions()
                    || self.done.contains(&index)
                    || self.lost.contains(&index)
                    || !taken.insert(index)
            }
            None => true,
        };
        sorted.into_iter().filter(|pod| bad(pod)).collect()
    }

    fn create(&mut self, missing: usize, useful: &[Arc<Pod>]) {
        if !self.is_indexed() {
            let wait =
                backoff_left(self.pods.iter().filter(|pod| self.has_failed(pod)), last_success(self.pods), self.now);
            if wait.is_zero() {
                self.plan.create = vec![(None, 0); missing];
            } else {
                self.recheck_in(wait);
            }
            return;
        }
        let mut taken: BTreeSet<i32> = useful.iter().filter_map(|pod| index_of(pod)).compact_collect();
        if self.waits_for_failure() {
            taken.extend(
                self.pods
                    .iter()
                    .filter(|pod| pods::is_terminating(pod) && !pods::is_finished(pod) && !never_ran(pod))
                    .filter_map(|pod| index_of(pod)),
            );
        }
        let per_index = self.spec.backoff_limit_per_index.is_some();
        let mut failures: HashMap<i32, Vec<&Arc<Pod>>> = HashMap::new();
        let all = self.pods;
        for pod in all.iter().filter(|pod| self.has_failed(pod)) {
            failures.entry(index_of(pod).unwrap_or(-1)).or_default().push(pod);
        }
        let whole =
            backoff_left(self.pods.iter().filter(|pod| self.has_failed(pod)), last_success(self.pods), self.now);
        if !per_index && !whole.is_zero() {
            return self.recheck_in(whole);
        }
        for index in 0..self.completions() {
            if taken.contains(&index) || self.done.contains(&index) || self.lost.contains(&index) {
                continue;
            }
            if self.plan.create.len() == missing {
                break;
            }
            let failed = failures.get(&index).map(Vec::as_slice).unwrap_or_default();
            let wait = if per_index { backoff_left(failed.iter().copied(), None, self.now) } else { Duration::ZERO };
            if !wait.is_zero() {
                self.recheck_in(wait);
                continue;
            }
            let counted =
                failed.iter().filter(|pod| judge(self.spec.pod_failure_policy.as_ref(), pod) != Verdict::Ignore);
            let before = counted.map(|pod| index_failures(pod) + 1).max().unwrap_or(0);
            self.plan.create.push((Some(index), before));
        }
    }

    fn recheck_in(&mut self, wait: Duration) {
        self.plan.recheck = Some(self.plan.recheck.map_or(wait, |other| other.min(wait)));
    }

    fn suspend_or_resume(&mut self) {
        let standing = find(&self.status, "Suspended").map(|condition| condition.status == "True");
        let (status, reason, message) = match (self.is_suspended(), standing) {
            (true, Some(true)) | (false, None | Some(false)) => return,
            (true, _) => ("True", "JobSuspended", "Job suspended"),
            (false, Some(true)) => ("False", "JobResumed", "Job resumed"),
        };
        let condition = self.condition("Suspended", status, reason, message);
        let conditions = self.status.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != "Suspended");
        conditions.push(condition);
        if self.is_suspended() {
            self.plan.events.push((false, "Suspended".into(), message.into()));
        } else {
            // The active deadline counts from the resumption.
            self.status.start_time = Some(Time(self.now));
            self.plan.events.push((false, "Resumed".into(), message.into()));
        }
    }

    fn finish(mut self) -> Plan {
        let nonzero = |number: i32| (number != 0).then_some(number);
        self.status.active = nonzero(count(self.active.len()));
        self.status.ready = Some(count(self.active.iter().filter(|pod| pods::is_ready(pod)).count()));
        self.status.terminating = Some(count(self.terminating));
        if self.is_indexed() {
            self.status.succeeded = nonzero(count(self.done.len()));
            self.status.completed_indexes = Some(indexes::format(&self.done)).filter(|text| !text.is_empty());
            self.status.failed_indexes = self.spec.backoff_limit_per_index.map(|_| indexes::format(&self.lost));
        }
        let list = |noted: BTreeSet<String>| (!noted.is_empty()).then(|| noted.into_iter().collect::<Vec<_>>());
        self.status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { failed: list(self.noted_failed), succeeded: list(self.noted_succeeded) });
        self.plan.status = self.status;
        self.plan
    }
}

fn index_failures(pod: &Pod) -> u32 {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(INDEX_FAILURES))
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// When the last of a pod's containers ended.
fn finish_time(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let ended = statuses
        .filter_map(|container| container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref())
        .map(|time| time.0)
        .max();
    ended.or_else(|| pod.metadata.deletion_timestamp.as_ref().map(|time| time.0)).or_else(|| {
        pods::condition(pod, "Ready").and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0)
    })
}

fn last_success(pods: &[Arc<Pod>]) -> Option<Timestamp> {
    pods.iter().filter(|pod| pods::phase(pod) == "Succeeded").filter_map(|pod| finish_time(pod)).max()
}

/// Failures in a row double the wait for the next pod; a success in between starts over.
fn backoff_left<'a>(
    failed: impl Iterator<Item = &'a Arc<Pod>>,
    success: Option<Timestamp>,
    now: Timestamp,
) -> Duration {
    let times: Vec<Timestamp> = failed
        .filter_map(|pod| finish_time(pod))
        .filter(|time| success.is_none_or(|success| *time > success))
        .collect();
    let Some(last) = times.iter().max() else { return Duration::ZERO };
    let delay = client::backoff::exponential(BACKOFF.0, BACKOFF.1, u32::try_from(times.len() - 1).unwrap_or(u32::MAX));
    delay.saturating_sub(Duration::try_from(now.duration_since(*last)).unwrap_or_default())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
