//! Job: run pods until enough of them succeeded.
//!
//! Flow: Job and Pod events -> Job key -> claim pods -> `plan` -> create, delete -> status -> finalizers. Pods carry a finalizer
//! so that none can vanish uncounted; a pod whose Job is gone or finished is relieved of it (key `pod/<namespace>/<name>`).

mod failure_policy;
mod indexes;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use api::selector::Selector;
use client::metrics::Metrics;
use client::{Client, Event, EventRecorder, Expectations, Informer, Patch};
use futures_util::future::{BoxFuture, join_all};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use serde_json::json;
use tokio::time::Instant;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::owners::{candidates, claim, controller_key, controller_of, controller_reference, index_orphans};
use crate::{Error, pods, slow_start};
pub(crate) use plan::is_finished;
use plan::{COMPLETION_INDEX, FINALIZER, INDEX_FAILURES, has_finalizer, plan};

const MANAGED_BY: &str = "kubernetes.io/job-controller";
const POD: &str = "pod/";
const SYNC_BOUNDS: &[f64] =
    &[0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768, 65.536];

struct Controller {
    client: Client,
    recorder: EventRecorder,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    metrics: Metrics,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let expectations = Arc::new(Expectations::new());
    let pods = context.informer::<Pod>();
    index_orphans(&pods);
    let jobs = {
        let (expectations, pods, metrics) = (expectations.clone(), pods.clone(), context.config.metrics.clone());
        context.on::<Job, _>(move |event| {
            let job = event.object();
            let key = pods::key(&**job);
            let mut keys = vec![key.clone()];
            if matches!(event, Event::Deleted(_)) {
                expectations.forget(&key);
            }
            if let Event::Added(job) = event
                && let Some(manager) = managed_elsewhere(job)
            {
                let (name, labels) =
                    ("job_controller_jobs_by_external_controller_total", [("controller_name", manager)]);
                metrics.counter(name, "Jobs that another controller looks after", &labels).inc();
            }
            if matches!(event, Event::Deleted(_)) || is_finished(job) {
                let held = pods.by_owner(job.metadata.uid.as_deref().unwrap_or_default());
                keys.extend(
                    held.into_iter().filter(|pod| has_finalizer(pod)).map(|pod| format!("{POD}{}", pods::key(&*pod))),
                );
            }
            keys
        })
    };
    {
        let (jobs, expectations, queue) = (jobs.clone(), expectations.clone(), context.queue.clone());
        let metrics = context.config.metrics.clone();
        pods.subscribe(move |event| {
            let pod = event.object();
            count_tracked(&metrics, event);
            let key = controller_key(&pod.metadata, &jobs);
            match (&key, event) {
                (Some(key), Event::Added(pod)) if !pods::is_terminating(pod) => expectations.creation_observed(key),
                (Some(key), Event::Deleted(pod)) => expectations.deletion_observed(key, &pods::key(&**pod)),
                (Some(key), _) if pods::is_terminating(pod) => expectations.deletion_observed(key, &pods::key(&**pod)),
                _ => {}
            }
            let gone = matches!(event, Event::Deleted(_));
            if !gone
                && has_finalizer(pod)
                && key.as_ref().and_then(|key| jobs.get(key)).is_none_or(|job| is_finished(&job))
            {
                queue.add(format!("{POD}{}", pods::key(&**pod)));
            }
            if let Event::Modified { old, .. } = event
                && controller_of(&old.metadata) != controller_of(&pod.metadata)
            {
                controller_key(&old.metadata, &jobs).into_iter().for_each(|key| queue.add(key));
            }
            match key {
                Some(key) => queue.add(key),
                None if !gone && controller_of(&pod.metadata).is_none() => {
                    for job in jobs.by_namespace(pod.metadata.namespace.as_deref().unwrap_or_default()) {
                        if selector(&job).is_ok_and(|selector| selector.matches(pod.metadata.labels.as_ref())) {
                            queue.add(pods::key(&*job));
                        }
                    }
                }
                None => {}
            }
        });
    }
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        jobs,
        pods,
        expectations,
        metrics: context.config.metrics.clone(),
    })
}

/// A Job that names no selector (it is filled in when it is created) claims nothing but what it owns.
fn selector(job: &Job) -> Result<Selector, Error> {
    Selector::from_label_selector(job.spec.as_ref().and_then(|spec| spec.selector.as_ref()))
        .map_err(|error| Error::object(error.to_string()))
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match key.strip_prefix(POD).filter(|rest| rest.contains('/')) {
                Some(pod) => self.relieve(pod).await,
                None => self.measured_sync(key).await,
            }
        })
    }
}

impl Controller {
    /// Removes the finalizer from a pod that no Job will count any more.
    async fn relieve(&self, key: &str) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|pod| has_finalizer(pod)) else { return Ok(Requeue::Never) };
        let job = controller_key(&pod.metadata, &self.jobs).and_then(|key| self.jobs.get(&key));
        if job.is_none_or(|job| is_finished(&job)) {
            self.release(&pod).await?;
        }
        Ok(Requeue::Never)
    }

    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let patch = Patch::strategic(
            json!({ "metadata": { "uid": pod.metadata.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER] } }),
        );
        let api = self.client.namespaced::<Pod>(pod.metadata.namespace.as_deref().unwrap_or_default());
        if_unchanged(api.patch(pod.metadata.name.as_deref().unwrap_or_default(), &patch).await).map(drop)
    }

    async fn measured_sync(&self, key: &str) -> Outcome {
        let began = Instant::now();
        let mode = self.jobs.get(key).map_or("NonIndexed", |job| completion_mode(&job));
        let outcome = self.sync(key).await;
        let result = if outcome.is_ok() { "success" } else { "error" };
        let labels = [("completion_mode", mode), ("result", result), ("action", "reconciling")];
        self.metrics.counter("job_controller_job_syncs_total", "Job syncs", &labels).inc();
        self.metrics
            .histogram("job_controller_job_sync_duration_seconds", "How long a sync takes", SYNC_BOUNDS, &labels)
            .observe_duration(began.elapsed());
        outcome
    }

    /// Counts a Job that has just ended.
    fn count_finished(&self, before: &Job, after: &Job) {
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
            let labels = [("completion_mode", completion_mode(after)), ("result", result), ("reason", reason)];
            self.metrics.counter("job_controller_jobs_finished_total", "Finished Jobs", &labels).inc();
        }
    }

    /// Counts pods made, and pods that could not be, by why they were needed.
    fn count_created(&self, job: &Job, status: &JobStatus, created: usize, failed: usize) {
        let policy = job.spec.as_ref().and_then(|spec| spec.pod_replacement_policy.as_deref());
        let has_failed = status.failed.unwrap_or(0) > 0;
        let reason = match policy {
            Some("Failed") if has_failed => "recreate_failed",
            _ if has_failed || status.terminating.unwrap_or(0) > 0 => "recreate_terminating_or_failed",
            _ => "new",
        };
        for (result, count) in [("succeeded", created), ("failed", failed)] {
            if count > 0 {
                let labels = [("reason", reason), ("status", result)];
                self.metrics
                    .counter("job_controller_job_pods_creation_total", "Pods made for Jobs", &labels)
                    .add(count);
            }
        }
    }

    async fn sync(&self, key: &str) -> Outcome {
        let Some(job) = self.jobs.get(key) else {
            self.expectations.forget(key);
            return Ok(Requeue::Never);
        };
        if managed_elsewhere(&job).is_some() || is_finished(&job) {
            return Ok(Requeue::Never);
        }
        let settled = self.expectations.satisfied(key);
        let mine = match job.spec.as_ref().and_then(|spec| spec.selector.as_ref()) {
            Some(_) => {
                claim(&self.client, &*job, &selector(&job)?, candidates(&self.pods, &job.metadata), |_| true).await?
            }
            None => self.pods.by_owner(job.metadata.uid.as_deref().unwrap_or_default()),
        };
        let mut plan = plan(&job, &mine, settled, Timestamp::now());
        let about = client::reference(&*job);
        let mut failure = None;

        let doomed = std::mem::take(&mut plan.delete);
        if !doomed.is_empty() {
            self.expectations.expect_deletions(key, doomed.iter().map(|pod| pods::key(&**pod)));
            let results = join_all(doomed.iter().map(|pod| async {
                let deleted = pods::delete(&self.client, &self.recorder, &about, pod).await;
                if deleted.is_err() || self.pods.get(&pods::key(&**pod)).is_none() {
                    self.expectations.deletion_observed(key, &pods::key(&**pod));
                }
                deleted
            }))
            .await;
            let deleted = results.iter().filter(|result| result.is_ok()).count();
            failure = results.into_iter().find_map(Result::err);
            adjust(&mut plan.status.active, 0, deleted);
            adjust(&mut plan.status.terminating, deleted, 0);
        }
        if !plan.create.is_empty() {
            let wanted = plan.create.len();
            self.expectations.expect_creations(key, wanted);
            let (created, failed) = slow_start::batches(wanted, |number| {
                let pod = new_pod(&job, plan.create[number]);
                let about = &about;
                async move { pods::create(&self.client, &self.recorder, about, &pod).await }
            })
            .await;
            self.expectations.creations_observed(key, wanted - created);
            self.count_created(&job, &plan.status, created, wanted - created);
            adjust(&mut plan.status.active, created, 0);
            failure = failed.filter(|error| !error.is_namespace_terminating());
        }
        if job.status.as_ref() != Some(&plan.status) {
            let changed = Job { status: Some(plan.status.clone()), ..Job::clone(&job) };
            self.client.all::<Job>().update_status(&changed).await?;
            self.count_finished(&job, &changed);
        }
        for (warning, reason, message) in &plan.events {
            match warning {
                true => self.recorder.warning(&about, reason, message.clone()),
                false => self.recorder.normal(&about, reason, message.clone()),
            }
        }
        // Only what is noted in the status that is now stored may be let go.
        for (released, pod) in
            join_all(plan.release.iter().map(|pod| self.release(pod))).await.into_iter().zip(&plan.release)
        {
            released?;
            let result = if pods::phase(pod) == "Succeeded" { "succeeded" } else { "failed" };
            let labels = [("completion_mode", completion_mode(&job)), ("result", result)];
            self.metrics.counter("job_controller_job_pods_finished_total", "Pods counted by their Job", &labels).inc();
        }
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(plan.recheck.map(|delay| delay.max(Duration::from_millis(100))).into()),
        }
    }
}

/// Who looks after the Job, if it is somebody else.
fn managed_elsewhere(job: &Job) -> Option<&str> {
    job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref()).filter(|manager| *manager != MANAGED_BY)
}

/// Counts pods that have ended and are held until their Job has counted them, as they come and as they go.
fn count_tracked(metrics: &Metrics, event: &Event<Pod>) {
    let is_held = |pod: &Pod| has_finalizer(pod) && pods::is_finished(pod);
    let (before, after) = match event {
        Event::Added(pod) => (false, is_held(pod)),
        Event::Modified { old, new } => (is_held(old), is_held(new)),
        Event::Deleted(pod) => (is_held(pod), false),
    };
    if before != after {
        let labels = [("event", if after { "add" } else { "delete" })];
        let name = "job_controller_terminated_pods_tracking_finalizer_total";
        metrics.counter(name, "Ended pods that a Job is yet to count", &labels).inc();
    }
}

fn completion_mode(job: &Job) -> &'static str {
    match job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) {
        Some("Indexed") => "Indexed",
        _ => "NonIndexed",
    }
}

fn adjust(number: &mut Option<i32>, more: usize, fewer: usize) {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    *number = Some(number.unwrap_or_default() + count(more) - count(fewer)).filter(|number| *number != 0);
}

fn new_pod(job: &Job, (index, failures): (Option<i32>, u32)) -> Pod {
    let (namespace, name) =
        (job.metadata.namespace.as_deref().unwrap_or_default(), job.metadata.name.as_deref().unwrap_or_default());
    let template = job.spec.clone().unwrap_or_default().template;
    let prefix = index.map_or_else(|| name.to_owned(), |index| format!("{name}-{index}"));
    let mut pod = pods::from_template(&template, namespace, &prefix, controller_reference(job));
    pod.metadata.finalizers.get_or_insert_default().push(FINALIZER.into());
    let Some(index) = index else { return pod };
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(COMPLETION_INDEX.into(), index.to_string());
    if job.spec.as_ref().is_some_and(|spec| spec.backoff_limit_per_index.is_some()) {
        annotations.insert(INDEX_FAILURES.into(), failures.to_string());
    }
    pod.metadata.labels.get_or_insert_default().insert(COMPLETION_INDEX.into(), index.to_string());
    let Some(spec) = &mut pod.spec else { return pod };
    if spec.hostname.is_none() {
        spec.hostname = Some(prefix.chars().take(63).collect());
    }
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: format!("metadata.labels['{COMPLETION_INDEX}']"),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|known| known.name == variable.name) {
            env.push(variable.clone());
        }
    }
    pod
}
