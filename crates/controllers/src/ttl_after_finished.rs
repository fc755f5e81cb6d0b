//! TTL after finished: Jobs go away by themselves some time after their end.

use std::sync::Arc;
use std::time::Duration;

use api::cached::Packed;
use client::metrics::{Histogram, exponential};
use client::{Client, Clock, DeleteParams, Event, Informer};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::job::is_finished;
use crate::pods;

static DELAY_BOUNDS: [f64; 14] = exponential(0.1, 2.0);

struct Controller {
    client: Client,
    clock: Clock,
    jobs: Informer<Packed<Job>>,
    /// From the end of a Job's time to its deletion.
    delay: Histogram,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let clock = context.config.clock.clone();
    let jobs = context.on::<Packed<Job>, _>(move |event| match event {
        Event::Added(job) | Event::Modified { new: job, .. } => {
            time_left(&job.unpack(), clock.now()).map(|_| pods::key(&**job))
        }
        Event::Deleted(_) => None,
    });
    let delay = context.config.metrics.histogram(
        "ttl_after_finished_controller_job_deletion_duration_seconds",
        "The time it took to delete the job since it became eligible for deletion",
        &DELAY_BOUNDS,
        &[],
    );
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), jobs, delay })
}

/// How long a finished Job with a time to live still has.
fn time_left(job: &Job, now: Timestamp) -> Option<Duration> {
    Some(Duration::try_from(end_of_life(job)?.duration_since(now)).unwrap_or_default())
}

/// When the time of a finished Job is over.
fn end_of_life(job: &Job) -> Option<Timestamp> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if !is_finished(job) || job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let last = conditions
        .iter()
        .find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True")?;
    let ended = last.last_transition_time.as_ref()?.0;
    ended.checked_add(Duration::from_secs(seconds.max(0).unsigned_abs().into())).ok()
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(job) = self.jobs.get(key) else { return Ok(Requeue::Never) };
            match time_left(&job.unpack(), self.clock.now()) {
                None => return Ok(Requeue::Never),
                Some(left) if !left.is_zero() => return Ok(Requeue::After(left + Duration::from_millis(100))),
                Some(_) => {}
            }
            // The cache may be behind an extended time to live: ask before deleting.
            let (namespace, name) = client::split_key(key);
            let api = self.client.namespaced::<Job>(namespace);
            let Some(fresh) = api.get_opt(name).await? else { return Ok(Requeue::Never) };
            if time_left(&fresh, self.clock.now()) != Some(Duration::ZERO) {
                return Ok(Requeue::After(Duration::from_secs(1)));
            }
            let params = DeleteParams { uid: fresh.metadata.uid.clone(), ..DeleteParams::foreground() };
            let deleted = if_unchanged(api.delete(name, &params).await)?;
            if let Some(over) = end_of_life(&fresh).filter(|_| deleted.is_some()) {
                self.delay.observe(self.clock.now().duration_since(over).as_secs_f64());
            }
            Ok(Requeue::Never)
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::{JobCondition, JobSpec, JobStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::pods::tests::at;

    #[test]
    fn only_finished_jobs_with_a_ttl_run_out() {
        let job = |ttl: Option<i32>, kind: &str| Job {
            spec: Some(JobSpec { ttl_seconds_after_finished: ttl, ..JobSpec::default() }),
            status: Some(JobStatus {
                conditions: Some(vec![JobCondition {
                    type_: kind.into(),
                    status: "True".into(),
                    last_transition_time: Some(Time(at(0))),
                    ..JobCondition::default()
                }]),
                ..JobStatus::default()
            }),
            ..Job::default()
        };
        for (ttl, kind, now, expected) in [
            (Some(10), "Complete", 4, Some(6)),
            (Some(10), "Failed", 11, Some(0)),
            (Some(0), "Complete", 0, Some(0)),
            (Some(10), "Suspended", 99, None),
            (None, "Complete", 99, None),
        ] {
            assert_eq!(
                time_left(&job(ttl, kind), at(now)).map(|left| left.as_secs()),
                expected,
                "{ttl:?} {kind} {now}"
            );
        }
    }
}
