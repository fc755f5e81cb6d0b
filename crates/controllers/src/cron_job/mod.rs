//! CronJob: a Job at each time of a schedule.
//!
//! Flow: CronJob and Job events, and the time of the next run -> CronJob key -> history, active list -> `due` -> create. The name of
//! a Job follows from its scheduled time, so a run is never created twice.

mod schedule;

use std::sync::Arc;
use std::time::Duration;

use api::cached::Packed;
use api::cron::{BadSchedule, Schedule};
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::metrics::Histogram;
use client::{Client, Clock, DeleteParams, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::owners::{controller_key, controller_reference, former_controller};
use crate::{Error, pods};
use schedule::due;

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    cron_jobs: Informer<CronJob>,
    jobs: Informer<Packed<Job>>,
    /// From a scheduled time to the creation of its Job.
    skew: Histogram,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let cron_jobs = context.on_self::<CronJob>();
    let owners = cron_jobs.clone();
    let jobs = context.on::<Packed<Job>, _>(move |event| {
        let owner = controller_key(&event.object().metadata, &owners);
        owner.into_iter().chain(former_controller(event, &owners)).collect::<Vec<_>>()
    });
    let skew = context.config.metrics.histogram(
        "cronjob_controller_job_creation_skew_duration_seconds",
        "From the scheduled time to the creation of the Job",
        &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0],
        &[],
    );
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        cron_jobs,
        jobs,
        skew,
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

fn condition<'a>(job: &'a Job, kind: &str) -> Option<&'a k8s_openapi::api::batch::v1::JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")
}

/// Whether a Job was made here. One that somebody starts from the same template (`kubectl create job --from`) neither holds up
/// the schedule nor is it replaced.
fn is_scheduled(job: &Job) -> bool {
    job.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(SCHEDULED_AT))
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(cron_job) = self.cron_jobs.get(key) else { return Ok(Requeue::Never) };
        let uid = cron_job.metadata.uid();
        let mine = self.jobs.by_owner(uid).into_iter().filter(|job| job.metadata.is_controlled_by(uid));
        let jobs: Vec<Arc<Job>> = mine.map(|job| Arc::new(job.unpack())).collect();
        self.clean_history(&cron_job, &jobs).await?;
        let before = cron_job.status.clone().unwrap_or_default();
        let mut status = self.refreshed(&cron_job, before.clone(), &jobs).await?;
        let result = self.run_due(&cron_job, &mut status, &jobs).await;
        if status.active.as_ref().is_some_and(Vec::is_empty) {
            status.active = None;
        }
        if status != before {
            let changed = CronJob { status: Some(status), ..CronJob::clone(&cron_job) };
            self.client.all::<CronJob>().update_status(&changed).await?;
        }
        result
    }

    /// Keeps the newest finished Jobs of each kind.
    async fn clean_history(&self, cron_job: &CronJob, jobs: &[Arc<Job>]) -> Result<(), Error> {
        let spec = &cron_job.spec;
        for (kind, limit) in
            [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)]
        {
            let Some(limit) = limit else { continue };
            let finished = jobs.iter().filter(|job| condition(job, kind).is_some()).cloned().collect();
            for job in beyond_history(finished, usize::try_from(limit).unwrap_or_default()) {
                self.delete(cron_job, &job).await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, cron_job: &CronJob, job: &Job) -> Result<(), Error> {
        let name = job.metadata.name();
        let api = self.client.namespaced::<Job>(job.metadata.namespace());
        let params = DeleteParams { uid: job.metadata.uid.clone(), ..DeleteParams::background() };
        match api.delete(name, &params).await {
            Ok(()) => {
                self.recorder.normal(&client::reference(cron_job), "SuccessfulDelete", format!("Deleted job {name}"))
            }
            // Gone, and perhaps another has its name.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                self.recorder.warning(&client::reference(cron_job), "FailedDelete", format!("Deleted job: {error}"));
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Deletes a Job that runs and that the cache does not show yet.
    async fn delete_unseen(&self, cron_job: &CronJob, reference: &ObjectReference) -> Result<(), Error> {
        let api = self.client.namespaced::<Job>(cron_job.metadata.namespace());
        let job = api.get_opt(reference.name.as_deref().unwrap_or_default()).await?;
        match job.filter(|job| job.metadata.uid == reference.uid) {
            Some(job) => self.delete(cron_job, &job).await,
            None => Ok(()),
        }
    }

    /// The active list without what has finished or is gone.
    async fn refreshed(
        &self,
        cron_job: &CronJob,
        mut status: CronJobStatus,
        jobs: &[Arc<Job>],
    ) -> Result<CronJobStatus, Error> {
        let about = client::reference(cron_job);
        let mut active = Vec::new();
        for reference in status.active.take().into_iter().flatten() {
            match jobs.iter().find(|job| job.metadata.uid == reference.uid) {
                Some(job) if crate::job::is_finished(job) => {
                    let name = job.metadata.name();
                    let kind = if condition(job, "Complete").is_some() { "Complete" } else { "Failed" };
                    self.recorder.normal(
                        &about,
                        "SawCompletedJob",
                        format!("Saw completed job: {name}, condition: {kind}"),
                    );
                }
                Some(_) => active.push(reference),
                None => {
                    // The cache may be behind the creation: ask.
                    let name = reference.name.clone().unwrap_or_default();
                    let api = self.client.namespaced::<Job>(cron_job.metadata.namespace());
                    match api.get_opt(&name).await? {
                        Some(job) if job.metadata.uid == reference.uid => active.push(reference),
                        _ => self.recorder.normal(&about, "MissingJob", format!("Active job went missing: {name}")),
                    }
                }
            }
        }
        for job in jobs.iter().filter(|job| !crate::job::is_finished(job)) {
            if active.iter().any(|reference| reference.uid == job.metadata.uid) {
                continue;
            }
            if is_scheduled(job) {
                active.push(client::reference(&**job));
            } else {
                let name = job.metadata.name();
                let message = format!("Saw a job that the controller did not create or forgot: {name}");
                self.recorder.warning(&about, "UnexpectedJob", message);
            }
        }
        let succeeded = jobs
            .iter()
            .filter(|job| condition(job, "Complete").is_some())
            .filter_map(|job| job.status.as_ref()?.completion_time.clone());
        status.last_successful_time = succeeded.chain(status.last_successful_time.take()).max();
        status.active = Some(active);
        Ok(status)
    }

    async fn run_due(&self, cron_job: &CronJob, status: &mut CronJobStatus, jobs: &[Arc<Job>]) -> Outcome {
        let about = client::reference(cron_job);
        let spec = &cron_job.spec;
        if cron_job.metadata.deletion_timestamp.is_some() || spec.suspend == Some(true) {
            return Ok(Requeue::Never);
        }
        let zone = match &spec.time_zone {
            None => TimeZone::system(),
            Some(name) => match TimeZone::get(name) {
                Ok(zone) => zone,
                Err(_) => {
                    self.recorder.warning(
                        &about,
                        "UnknownTimeZone",
                        format!("invalid timeZone: \"{name}\": unknown time zone {name}"),
                    );
                    return Ok(Requeue::Never);
                }
            },
        };
        let in_zone = |schedule: Schedule| match schedule.zone.clone().filter(|_| spec.time_zone.is_none()) {
            Some(name) => TimeZone::get(&name).map(|zone| (schedule, zone)).map_err(|_| BadSchedule::Zone(name)),
            None => Ok((schedule, zone)),
        };
        let (schedule, zone) = match Schedule::parse(&spec.schedule).and_then(in_zone) {
            Ok(both) => both,
            Err(error) => {
                self.recorder.warning(
                    &about,
                    "UnparseableSchedule",
                    format!("unparseable schedule: {:?} : {error}", spec.schedule),
                );
                return Ok(Requeue::Never);
            }
        };
        let now = self.clock.now();
        let deadline = spec.starting_deadline_seconds.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()));
        let earliest = earliest(cron_job, status, deadline, now);
        let due = due(&schedule, &zone, earliest, now);
        if due.missed.is_none() && due.next.is_none() {
            // A day that no month has. Upstream's words, whose search gives up at one and the same time.
            let why = "time difference between two schedules is less than 1 second";
            self.recorder.warning(&about, "InvalidSchedule", format!("invalid schedule: {} : {why}", spec.schedule));
            return Ok(Requeue::Never);
        }
        let later = due
            .next
            .map(|next| Duration::try_from(next.duration_since(now)).unwrap_or_default() + Duration::from_millis(100));
        let later = Ok(Requeue::from(later));
        if due.too_many {
            self.recorder.warning(
                &about,
                "TooManyMissedTimes",
                "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew",
            );
        }
        let Some(scheduled) = due.missed else { return later };
        let late = Duration::try_from(now.duration_since(scheduled)).unwrap_or_default();
        if deadline.is_some_and(|deadline| late > deadline) {
            self.recorder.warning(
                &about,
                "MissSchedule",
                format!("Missed scheduled time to start a job: {}", scheduled.strftime("%a, %d %b %Y %H:%M:%S %z")),
            );
            return later;
        }
        let name = format!("{}-{}", cron_job.metadata.name(), scheduled.as_second() / 60);
        let started = status.last_schedule_time.as_ref().is_some_and(|last| last.0 == scheduled);
        if started || status.active.iter().flatten().any(|reference| reference.name.as_ref() == Some(&name)) {
            return later;
        }
        let running = status.active.as_ref().is_some_and(|active| !active.is_empty());
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if running => {
                self.recorder.normal(
                    &about,
                    "JobAlreadyActive",
                    "Not starting job because prior execution is running and concurrency policy is Forbid",
                );
                return later;
            }
            Some("Replace") if running => {
                for reference in status.active.clone().into_iter().flatten() {
                    match jobs.iter().find(|job| job.metadata.uid == reference.uid) {
                        Some(job) => self.delete(cron_job, job).await?,
                        None => self.delete_unseen(cron_job, &reference).await?,
                    }
                    // One that could not be deleted is still active, and the next try begins with it.
                    status.active.iter_mut().for_each(|active| active.retain(|other| other.uid != reference.uid));
                }
            }
            _ => {}
        }
        let job = new_job(cron_job, &name, scheduled, &zone);
        let api = self.client.namespaced::<Job>(cron_job.metadata.namespace());
        match api.create(&job).await {
            Ok(created) => {
                self.recorder.normal(&about, "SuccessfulCreate", format!("Created job {name}"));
                self.skew.observe(self.clock.now().duration_since(scheduled).as_secs_f64());
                status.active.get_or_insert_default().push(client::reference(&created));
                status.last_schedule_time = Some(Time(scheduled));
                later
            }
            Err(error) if error.is_already_exists() => {
                let existing = api.get(&name).await?;
                if existing.metadata.is_controlled_by(cron_job.metadata.uid()) {
                    status.last_schedule_time = Some(Time(scheduled));
                    return later;
                }
                self.recorder.warning(&about, "FailedCreate", format!("Error creating job: {error}"));
                Err(error.into())
            }
            Err(error) if error.is_namespace_terminating() => Ok(Requeue::Never),
            Err(error) => {
                self.recorder.warning(&about, "FailedCreate", format!("Error creating job: {error}"));
                Err(error.into())
            }
        }
    }
}

/// From where missed times count: the last run, else the creation, but no further back than the deadline.
fn earliest(cron_job: &CronJob, status: &CronJobStatus, deadline: Option<Duration>, now: Timestamp) -> Timestamp {
    let created = cron_job.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let from = status.last_schedule_time.as_ref().map_or(created, |time| time.0);
    match deadline {
        Some(deadline) => now.checked_sub(deadline).map_or(from, |limit| from.max(limit)),
        None => from,
    }
}

fn beyond_history(mut finished: Vec<Arc<Job>>, limit: usize) -> Vec<Arc<Job>> {
    let surplus = finished.len().saturating_sub(limit);
    finished.compact_sort_by_cached_key(|job| {
        (job.status.as_ref().and_then(|status| status.start_time.clone()), pods::key(&**job))
    });
    finished.truncate(surplus);
    finished
}

fn new_job(cron_job: &CronJob, name: &str, scheduled: Timestamp, zone: &TimeZone) -> Job {
    let template = cron_job.spec.job_template.clone();
    let metadata = template.metadata.unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    let local = scheduled.to_zoned(zone.clone());
    let format = if local.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    annotations.insert(SCHEDULED_AT.into(), local.strftime(format).to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: cron_job.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron_job)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use client::metrics::Metrics;
    use client::{Body, InformerFactory};
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::{BodyExt, Full};
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deadline_may_be_longer_than_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let cron_job = CronJob {
            metadata: ObjectMeta { creation_timestamp: Some(Time(at(100))), ..ObjectMeta::default() },
            ..CronJob::default()
        };
        for (deadline, expected) in [(None, 100), (Some(i64::MAX.unsigned_abs()), 100), (Some(30), 170)] {
            let found = earliest(&cron_job, &CronJobStatus::default(), deadline.map(Duration::from_secs), at(200));
            assert_eq!(found, at(expected), "{deadline:?}");
        }
    }

    #[tokio::test]
    async fn a_job_that_somebody_starts_by_hand_is_no_run_of_the_schedule() {
        let handler: client::Handler = Arc::new(|_: Request<bytes::Bytes>| {
            let body: Body = Full::new("{}".into()).map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { Response::new(body) })
        });
        let controller = controller(Client::in_process(handler, api::UserInfo::default()));
        let job = |name: &str, annotations: serde_json::Value| -> Arc<Job> {
            let metadata = json!({ "name": name, "namespace": "default", "uid": name, "annotations": annotations });
            Arc::new(api::codec::from_value(&json!({ "metadata": metadata })).unwrap())
        };
        let jobs = [
            job("nightly-1", json!({ SCHEDULED_AT: "2026-01-01T00:00:00Z" })),
            job("by-hand", json!({ "cronjob.kubernetes.io/instantiate": "manual" })),
        ];
        let cron_job: CronJob = serde_json::from_value(json!({
            "metadata": { "name": "nightly", "namespace": "default" },
            "spec": { "schedule": "0 0 * * *", "jobTemplate": {} },
        }))
        .unwrap();
        let status = controller.refreshed(&cron_job, CronJobStatus::default(), &jobs).await.unwrap();
        let active: Vec<_> = status.active.into_iter().flatten().filter_map(|reference| reference.name).collect();
        assert_eq!(active, ["nightly-1"]);
    }

    fn controller(client: Client) -> Controller {
        let informers = InformerFactory::new(client.clone());
        Controller {
            recorder: EventRecorder::new(client.clone(), "cronjob-controller", ""),
            clock: Clock::default(),
            cron_jobs: informers.informer(),
            jobs: informers.informer(),
            skew: Metrics::new().histogram("skew", "", &[1.0], &[]),
            client,
        }
    }

    /// What runs is replaced although no watch has shown it yet. Another Job of its name is not what is meant.
    #[tokio::test]
    async fn a_job_that_the_cache_does_not_show_is_replaced_as_well() {
        let deleted: Arc<Mutex<usize>> = Arc::default();
        let count = deleted.clone();
        let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            let is_job = request.uri().path().ends_with("/namespaces/default/jobs/nightly-1");
            if is_job && request.method() == Method::DELETE {
                *count.lock() += 1;
            }
            let job = json!({ "metadata": { "name": "nightly-1", "namespace": "default", "uid": "u" } });
            let body: Body = Full::new(job.to_string().into()).map_err(|never| match never {}).boxed_unsync();
            let code = if is_job { StatusCode::OK } else { StatusCode::NOT_FOUND };
            let response = Response::builder().status(code).body(body).unwrap();
            Box::pin(async move { response })
        });
        let controller = controller(Client::in_process(handler, api::UserInfo::default()));
        let cron_job: CronJob = serde_json::from_value(json!({
            "metadata": { "name": "nightly", "namespace": "default" },
            "spec": { "schedule": "0 0 * * *", "jobTemplate": {} },
        }))
        .unwrap();
        for (uid, expected) in [("another", 0), ("u", 1)] {
            let name = Some("nightly-1".to_owned());
            let reference = ObjectReference { name, uid: Some(uid.into()), ..ObjectReference::default() };
            controller.delete_unseen(&cron_job, &reference).await.unwrap();
            assert_eq!(*deleted.lock(), expected, "{uid}");
        }
    }
}
