//! Jobs (conformance area 21).

use client::{ListParams, Patch};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::harness::{Cluster, template};

/// What hollow pods read: how long they run, and how they end.
const RUN_SECONDS: &str = "hollow.cox.dev/run-seconds";
const EXIT_CODE: &str = "hollow.cox.dev/exit-code";

/// A job; `annotations` go to its pods.
fn job(name: &str, annotations: Value, spec: Value) -> Value {
    let mut template = template(name, "busybox", "Never");
    template["metadata"]["annotations"] = annotations;
    let mut object = json!({ "metadata": { "name": name, "namespace": "default" }, "spec": { "template": template } });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

fn conditions(job: &Job) -> Vec<(String, String)> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let holding = conditions.into_iter().filter(|condition| condition.status == "True");
    holding.map(|condition| (condition.type_, condition.reason.unwrap_or_default())).collect()
}

async fn until_ended(cluster: &Cluster, name: &str) -> Job {
    let job = cluster
        .until::<Job>("default", name, "ended", |job| {
            conditions(job).iter().any(|(kind, _)| kind == "Complete" || kind == "Failed")
        })
        .await;
    let status = job.status.as_ref().unwrap();
    assert_eq!((status.active.unwrap_or_default(), status.ready, status.terminating), (0, Some(0), Some(0)), "{name}");
    job
}

fn told(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(kind, reason)| ((*kind).to_owned(), (*reason).to_owned())).collect()
}

async fn pods(cluster: &Cluster, job: &str) -> Vec<Pod> {
    let selected = ListParams::labels(format!("batch.kubernetes.io/job-name={job}"));
    cluster.client.namespaced::<Pod>("default").list(&selected).await.unwrap().items
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_end_for_the_reasons_that_upstream_gives() {
    let cluster = Cluster::start(2).await;
    let failing = json!({ EXIT_CODE: "3" });
    let lasting = json!({ RUN_SECONDS: "3600" });
    for (name, annotations, spec, expected) in [
        (
            "done",
            json!({}),
            json!({ "completions": 3, "parallelism": 2 }),
            [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")],
        ),
        (
            "broken",
            failing.clone(),
            json!({ "backoffLimit": 0 }),
            [("FailureTarget", "BackoffLimitExceeded"), ("Failed", "BackoffLimitExceeded")],
        ),
        (
            "late",
            lasting.clone(),
            json!({ "activeDeadlineSeconds": 1 }),
            [("FailureTarget", "DeadlineExceeded"), ("Failed", "DeadlineExceeded")],
        ),
        (
            "policy",
            failing.clone(),
            json!({ "backoffLimit": 6, "podFailurePolicy": { "rules": [{ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [3] } }] } }),
            [("FailureTarget", "PodFailurePolicy"), ("Failed", "PodFailurePolicy")],
        ),
        (
            "indexes",
            failing.clone(),
            json!({ "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimitPerIndex": 0 }),
            [("FailureTarget", "FailedIndexes"), ("Failed", "FailedIndexes")],
        ),
        (
            "too-many",
            failing,
            json!({ "completionMode": "Indexed", "completions": 4, "parallelism": 1, "backoffLimitPerIndex": 0, "maxFailedIndexes": 1 }),
            [("FailureTarget", "MaxFailedIndexesExceeded"), ("Failed", "MaxFailedIndexesExceeded")],
        ),
    ] {
        cluster.apply::<Job>(job(name, annotations, spec)).await;
        let ended = until_ended(&cluster, name).await;
        assert_eq!(conditions(&ended), told(&expected), "{name}");
    }
    let failed = cluster.client.namespaced::<Job>("default").get("indexes").await.unwrap().status.unwrap();
    assert_eq!(failed.failed_indexes.as_deref(), Some("0,1"));
    // No pod keeps what the job counted it by.
    let all = cluster.list::<Pod>("default").await;
    assert!(all.iter().all(|pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexed_jobs_number_their_pods_and_a_success_policy_ends_the_rest() {
    let cluster = Cluster::start(2).await;
    let indexed = json!({ "completionMode": "Indexed", "completions": 3, "parallelism": 3 });
    cluster.apply::<Job>(job("numbered", json!({}), indexed)).await;
    let done = until_ended(&cluster, "numbered").await;
    assert_eq!(done.status.unwrap().completed_indexes.as_deref(), Some("0-2"));
    let mut indexes = Vec::new();
    for pod in pods(&cluster, "numbered").await {
        let index = pod.metadata.annotations.as_ref().unwrap()["batch.kubernetes.io/job-completion-index"].clone();
        assert_eq!(pod.metadata.labels.as_ref().unwrap()["batch.kubernetes.io/job-completion-index"], index);
        let spec = pod.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some(&*format!("numbered-{index}")));
        assert!(spec.containers[0].env.iter().flatten().any(|env| env.name == "JOB_COMPLETION_INDEX"));
        indexes.push(index);
    }
    indexes.sort();
    assert_eq!(indexes, ["0", "1", "2"]);

    // One of the indexes is enough: what still runs is ended.
    let policy = json!({ "rules": [{ "succeededIndexes": "0", "succeededCount": 1 }] });
    let spec = json!({ "completionMode": "Indexed", "completions": 3, "parallelism": 3, "successPolicy": policy });
    cluster.apply::<Job>(job("enough", json!({ RUN_SECONDS: "3600" }), spec)).await;
    let first = crate::harness::patiently(async || {
        let running = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        let index =
            |pod: &Pod| pod.metadata.labels.as_ref().unwrap()["batch.kubernetes.io/job-completion-index"] == "0";
        pods(&cluster, "enough").await.into_iter().find(|pod| index(pod) && running(pod))
    });
    let first = first.await.expect("the first index runs").metadata.name.unwrap();
    let succeeded = Patch::strategic(json!({ "status": { "phase": "Succeeded" } }));
    cluster.client.namespaced::<Pod>("default").patch_status(&first, &succeeded).await.unwrap();
    let ended = until_ended(&cluster, "enough").await;
    assert_eq!(conditions(&ended), told(&[("SuccessCriteriaMet", "SuccessPolicy"), ("Complete", "SuccessPolicy")]));
    assert_eq!(ended.status.unwrap().succeeded, Some(1));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_can_be_suspended_and_let_go_of_pods_that_no_longer_match() {
    let cluster = Cluster::start(2).await;
    let spec = json!({ "suspend": true, "parallelism": 2, "completions": 2 });
    cluster.apply::<Job>(job("paused", json!({ RUN_SECONDS: "3600" }), spec)).await;
    let api = cluster.client.namespaced::<Job>("default");
    let suspended = |job: &Job| conditions(job).iter().any(|(kind, _)| kind == "Suspended");
    cluster.until::<Job>("default", "paused", "suspended", suspended).await;
    assert!(pods(&cluster, "paused").await.is_empty());
    let suspend = |yes: bool| Patch::merge(json!({ "spec": { "suspend": yes } }));
    api.patch("paused", &suspend(false)).await.unwrap();
    let active = |count: i32| {
        move |job: &Job| job.status.as_ref().is_some_and(|status| status.active.unwrap_or_default() == count)
    };
    cluster.until::<Job>("default", "paused", "running", active(2)).await;

    // A pod that stops matching is let go, and another one takes its place.
    let strayed = pods(&cluster, "paused").await.remove(0).metadata.name.unwrap();
    let labels = json!({ "metadata": { "labels": { "controller-uid": null, "job-name": null, "batch.kubernetes.io/controller-uid": null, "batch.kubernetes.io/job-name": null } } });
    let pod_api = cluster.client.namespaced::<Pod>("default");
    pod_api.patch(&strayed, &Patch::merge(labels)).await.unwrap();
    cluster
        .until::<Pod>("default", &strayed, "released", |pod| {
            pod.metadata.owner_references.as_ref().is_none_or(Vec::is_empty)
        })
        .await;
    let replaced = crate::harness::patiently(async || (pods(&cluster, "paused").await.len() == 2).then_some(()));
    replaced.await.expect("a pod in its place");

    api.patch("paused", &suspend(true)).await.unwrap();
    cluster.until::<Job>("default", "paused", "suspended again", |job| suspended(job) && active(0)(job)).await;
    let emptied = crate::harness::patiently(async || pods(&cluster, "paused").await.is_empty().then_some(()));
    emptied.await.expect("no pods while suspended");
    cluster.stop().await;
}
