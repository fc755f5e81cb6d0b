//! CronJobs (conformance area 21): concurrency policies, suspension and time zones.
//!
//! Nobody waits for a minute to pass: a CronJob is made while suspended, told that its last run was a while ago, and let go
//! with a schedule that was due since.

use client::{DeleteParams, ListParams, Patch};
use jiff::{Timestamp, ToSpan};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Event, Pod};
use serde_json::{Value, json};

use crate::harness::{Cluster, patiently, template};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The schedule of every hour's minute that was `ago` minutes ago in a zone so many minutes east, and the name of the Job of
/// the last time.
fn minute(cron_job: &str, ago: i64, east: i64) -> (Value, String) {
    let minutes = Timestamp::now().as_second() / 60 - ago;
    let schedule = format!("{} * * * *", (minutes + east).rem_euclid(60));
    (json!({ "spec": { "schedule": schedule, "suspend": false } }), format!("{cron_job}-{minutes}"))
}

async fn make(cluster: &Cluster, name: &str, spec: Value) {
    let pod = json!({ "metadata": { "annotations": { "hollow.cox.dev/run-seconds": "3600" } }, "spec": template(name, "busybox", "Never")["spec"] });
    let mut object = json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": { "spec": { "template": pod } } },
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    cluster.apply::<CronJob>(object).await;
    let last = (Timestamp::now() - 50.minutes()).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let api = cluster.client.namespaced::<CronJob>("default");
    api.patch_status(name, &Patch::merge(json!({ "status": { "lastScheduleTime": last } }))).await.unwrap();
}

/// Lets a CronJob go, or gives it another time.
async fn schedule(cluster: &Cluster, name: &str, patch: Value) {
    cluster.client.namespaced::<CronJob>("default").patch(name, &Patch::merge(patch)).await.unwrap();
}

/// Waits until a CronJob says that exactly these of its Jobs are active.
async fn until_active(cluster: &Cluster, name: &str, mut wanted: Vec<String>) {
    wanted.sort();
    let active = |cron_job: &CronJob| {
        let references = cron_job.status.iter().flat_map(|status| status.active.iter().flatten());
        let mut names: Vec<String> = references.filter_map(|reference| reference.name.clone()).collect();
        names.sort();
        names == wanted
    };
    cluster.until::<CronJob>("default", name, &format!("has {wanted:?} active"), active).await;
}

async fn until_event(cluster: &Cluster, name: &str, reason: &str) {
    let said = patiently(async || {
        let events = cluster.list::<Event>("default").await;
        let mut found = events.iter();
        found
            .any(|event| event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason))
            .then_some(())
    });
    said.await.unwrap_or_else(|| panic!("{name} never said {reason}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_overlap_wait_or_replace_each_other_as_the_policy_says() {
    let cluster = Cluster::start(1).await;
    for policy in ["Allow", "Forbid", "Replace"] {
        make(&cluster, &policy.to_lowercase(), json!({ "concurrencyPolicy": policy })).await;
    }
    // A time that has passed is made up for, once; none of it while suspended.
    assert_eq!(cluster.list::<Job>("default").await.len(), 0);
    let mut firsts = Vec::new();
    for name in ["allow", "forbid", "replace"] {
        let (patch, job) = minute(name, 30, 0);
        schedule(&cluster, name, patch).await;
        until_active(&cluster, name, vec![job.clone()]).await;
        firsts.push(job);
    }
    let mut seconds = Vec::new();
    for name in ["allow", "forbid", "replace"] {
        let (patch, job) = minute(name, 10, 0);
        schedule(&cluster, name, patch).await;
        seconds.push(job);
    }
    until_active(&cluster, "allow", vec![firsts[0].clone(), seconds[0].clone()]).await;

    until_event(&cluster, "forbid", "JobAlreadyActive").await;
    until_active(&cluster, "forbid", vec![firsts[1].clone()]).await;
    // It was only put off: as soon as the first has ended, the second has its turn.
    let jobs = cluster.client.namespaced::<Job>("default");
    jobs.delete(&firsts[1], &DeleteParams::background()).await.unwrap();
    until_active(&cluster, "forbid", vec![seconds[1].clone()]).await;

    until_active(&cluster, "replace", vec![seconds[2].clone()]).await;
    cluster.until_gone::<Job>("default", &firsts[2]).await;
    let crons = cluster.client.namespaced::<CronJob>("default");
    crons.delete_collection(&ListParams::default(), &DeleteParams::background()).await.unwrap();
    cluster.until_none::<Job>("default").await;
    cluster.until_none::<Pod>("default").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_those_of_the_zone_and_not_too_late() {
    let cluster = Cluster::start(0).await;
    // Half an hour off from everybody else.
    make(&cluster, "kolkata", json!({ "timeZone": "Asia/Kolkata" })).await;
    make(&cluster, "late", json!({ "startingDeadlineSeconds": 900 })).await;
    let (patch, job) = minute("kolkata", 20, 330);
    schedule(&cluster, "kolkata", patch).await;
    until_active(&cluster, "kolkata", vec![job.clone()]).await;
    let made = cluster.client.namespaced::<Job>("default").get(&job).await.unwrap();
    let at = made.metadata.annotations.unwrap()[SCHEDULED_AT].clone();
    assert!(at.ends_with(":00+05:30"), "{at}");
    let cron_job = cluster.client.namespaced::<CronJob>("default").get("kolkata").await.unwrap();
    let last = cron_job.status.unwrap().last_schedule_time.unwrap();
    assert_eq!(format!("kolkata-{}", last.0.as_second() / 60), job);

    // Half an hour ago is more than the quarter that it may be late; five minutes are not.
    let (patch, _) = minute("late", 30, 0);
    schedule(&cluster, "late", patch).await;
    let (patch, soon) = minute("late", 5, 0);
    schedule(&cluster, "late", patch).await;
    let made = patiently(async || {
        let jobs = cluster.list::<Job>("default").await;
        let names: Vec<String> = jobs.into_iter().filter_map(|job| job.metadata.name).collect();
        names.contains(&soon).then_some(names)
    });
    let names = made.await.expect("the time that is not too late");
    assert_eq!(names.iter().filter(|name| name.starts_with("late-")).count(), 1, "{names:?}");

    // A day that no month has.
    schedule(&cluster, "late", json!({ "spec": { "schedule": "59 23 31 2 *" } })).await;
    until_event(&cluster, "late", "InvalidSchedule").await;
    cluster.stop().await;
}
