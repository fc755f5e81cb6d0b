//! Job: run pods until enough of them succeeded.
//!
//! Flow: Job and Pod events -> Job key -> claim pods -> `plan` -> create, delete -> status -> finalizers. Pods carry a finalizer
//! so that none can vanish uncounted; a pod whose Job is gone or finished is relieved of it (key `pod/<namespace>/<name>`).

mod failure_policy;
mod indexes;
mod metrics;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use api::cached::{Packed, Pod};
use api::meta::Meta as _;
use api::selector::Selector;
use client::{Client, Clock, Event, EventRecorder, Expectations, Informer, Patch};
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod as NewPod};
use serde_json::json;
use tokio::time::Instant;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::owners::{
    adopters, candidates, claim, controller_key, controller_reference, former_controller, index_orphans,
};
use crate::{Error, pods, slow_start};
use metrics::Metrics;
pub(crate) use plan::is_finished;
use plan::{Action, COMPLETION_INDEX, FINALIZER, INDEX_FAILURES, has_finalizer, is_packed_finished, plan};

const MANAGED_BY: &str = "kubernetes.io/job-controller";
const POD: &str = "pod/";

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    jobs: Informer<Packed<Job>>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    metrics: Metrics,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let expectations = context.expectations();
    let pods = context.informer::<Pod>();
    index_orphans(&pods);
    let metrics = Metrics::new(&context.config.metrics);
    let jobs = {
        let (expectations, pods, metrics) = (expectations.clone(), pods.shared(), metrics.clone());
        context.on::<Packed<Job>, _>(move |event| {
            let job = event.object();
            let key = pods::key(&**job);
            let mut keys = vec![key.clone()];
            if matches!(event, Event::Deleted(_)) {
                expectations.forget(&key);
            }
            if let Event::Added(job) = event {
                let manager: Option<String> = job.part(&["spec", "managedBy"]);
                if let Some(manager) = managed_elsewhere(manager.as_deref()) {
                    metrics.left_to(manager);
                }
            }
            if matches!(event, Event::Deleted(_)) || is_packed_finished(job) {
                let held = pods.by_owner(job.metadata.uid());
                keys.extend(
                    held.into_iter().filter(|pod| has_finalizer(pod)).map(|pod| format!("{POD}{}", pods::key(&*pod))),
                );
            }
            keys
        })
    };
    let pods = {
        let (jobs, expectations, queue) = (jobs.clone(), expectations.clone(), context.queue.clone());
        let metrics = metrics.clone();
        pods.wakes(move |event| {
            let pod = event.object();
            metrics.tracked(event);
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
                && key.as_ref().and_then(|key| jobs.get(key)).is_none_or(|job| is_packed_finished(&job))
            {
                queue.add(format!("{POD}{}", pods::key(&**pod)));
            }
            former_controller(event, &jobs).into_iter().for_each(|key| queue.add(key));
            match key {
                Some(key) => queue.add(key),
                None if gone => {}
                None => adopters(&pod.metadata, &jobs, packed_selector).into_iter().for_each(|key| queue.add(key)),
            }
        })
    };
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        jobs,
        pods,
        expectations,
        metrics,
    })
}

fn packed_selector(job: &Packed<Job>) -> Result<Selector, Error> {
    pods::selector(job.part(&["spec", "selector"]).as_ref())
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
        let is_counted = match job {
            Some(job) => !is_packed_finished(&job),
            None => self.has_job_now(&pod).await?,
        };
        if !is_counted {
            self.release(&pod).await?;
        }
        Ok(Requeue::Never)
    }

    /// Whether the Job of a pod is there after all. A pod that was let go is never counted, and the cache of Jobs may be behind
    /// that of pods, so the server is asked. The event of the Job brings the pod back.
    async fn has_job_now(&self, pod: &Pod) -> Result<bool, Error> {
        let Some(owner) = pod.metadata.controller().filter(|owner| owner.kind == "Job") else { return Ok(false) };
        let api = self.client.namespaced::<Job>(pod.metadata.namespace());
        let job = api.get_opt(&owner.name).await?.filter(|job| job.metadata.uid.as_ref() == Some(&owner.uid));
        Ok(job.is_some_and(|job| !is_finished(&job)))
    }

    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let patch = Patch::strategic(
            json!({ "metadata": { "uid": pod.metadata.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER] } }),
        );
        let api = self.client.namespaced::<Pod>(pod.metadata.namespace());
        if_unchanged(api.patch(pod.metadata.name(), &patch).await).map(drop)
    }

    async fn measured_sync(&self, key: &str) -> Outcome {
        let Some(job) = self.jobs.get(key) else {
            self.expectations.forget(key);
            return Ok(Requeue::Never);
        };
        let job = job.unpack();
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        if managed_elsewhere(manager).is_some() || is_finished(&job) {
            return Ok(Requeue::Never);
        }
        let began = Instant::now();
        let mut action = Action::default();
        let outcome = self.sync(key, &job, &mut action).await;
        self.metrics.synced(&job, action, outcome.is_ok(), began.elapsed());
        outcome
    }

    async fn sync(&self, key: &str, job: &Job, action: &mut Action) -> Outcome {
        let settled = self.expectations.satisfied(key);
        let mine = match job.spec.as_ref().and_then(|spec| spec.selector.as_ref()) {
            Some(labels) => {
                let selector = pods::selector(Some(labels))?;
                claim(&self.client, job, &selector, candidates(&self.pods, &job.metadata), |_| true).await?
            }
            // A Job that names no selector (it is filled in when it is created) claims nothing but what it owns.
            None => self.pods.by_owner(job.metadata.uid()),
        };
        let mut plan = plan(job, &mine, settled, self.clock.now());
        *action = plan.action;
        let about = client::reference(job);
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
            let deleted: Vec<_> =
                doomed.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(pod, _)| pod).collect();
            note_deleted(&mut plan.status, &deleted);
            failure = results.into_iter().find_map(Result::err);
        }
        if !plan.create.is_empty() {
            let wanted = plan.create.len();
            self.expectations.expect_creations(key, wanted);
            let (created, failed) = slow_start::batches(wanted, |number| {
                let pod = new_pod(job, plan.create[number]);
                let about = &about;
                async move { pods::create(&self.client, &self.recorder, about, &pod).await }
            })
            .await;
            self.expectations.creations_observed(key, wanted - created);
            self.metrics.created(job, &plan.status, created, wanted - created);
            adjust(&mut plan.status.active, created, 0);
            failure = failed.filter(|error| !error.is_namespace_terminating());
        }
        if job.status.as_ref() != Some(&plan.status) {
            let changed = Job { status: Some(plan.status.clone()), ..Job::clone(job) };
            self.client.all::<Job>().update_status(&changed).await?;
            self.metrics.progressed(job, &changed);
        }
        self.metrics.judged(&plan.judged);
        for (warning, reason, message) in &plan.events {
            match warning {
                true => self.recorder.warning(&about, reason, message.clone()),
                false => self.recorder.normal(&about, reason, message.clone()),
            }
        }
        // Only what is noted in the status that is now stored may be let go.
        for released in join_all(plan.release.iter().map(|pod| self.release(pod))).await {
            released?;
        }
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(plan.recheck.map(|delay| delay.max(Duration::from_millis(100))).into()),
        }
    }
}

/// Who looks after the Job, if it is somebody else.
fn managed_elsewhere(manager: Option<&str>) -> Option<&str> {
    manager.filter(|manager| *manager != MANAGED_BY)
}

/// What is left of the active pods of a status once these of them are deleted.
fn note_deleted(status: &mut JobStatus, deleted: &[&Arc<Pod>]) {
    adjust(&mut status.active, 0, deleted.len());
    adjust(&mut status.terminating, deleted.len(), 0);
    let ready = deleted.iter().filter(|pod| pods::is_ready(pod)).count();
    // No ready pod is written as 0, unlike the others.
    adjust(&mut status.ready, 0, ready);
    status.ready.get_or_insert(0);
}

fn adjust(number: &mut Option<i32>, more: usize, fewer: usize) {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    *number = Some(number.unwrap_or_default() + count(more) - count(fewer)).filter(|number| *number != 0);
}

fn new_pod(job: &Job, (index, failures): (Option<i32>, u32)) -> NewPod {
    let (namespace, name) = (job.metadata.namespace(), job.metadata.name());
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
