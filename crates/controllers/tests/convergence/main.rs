//! Controllers against an API in memory: whatever the order of events, failures and restarts, the desired state is reached,
//! bounds hold on the way, and nothing is made twice. Time is virtual.

#![allow(clippy::unwrap_used, reason = "tests")]

mod fake;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::{DeleteParams, Patch};
use fake::Fake;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const PODS: &str = "/api/v1/pods";
const SETS: &str = "/apis/apps/v1/replicasets";
const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";

/// A controller manager that can be killed and started again.
struct Manager {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Manager {
    fn start(fake: &Arc<Fake>) -> Self {
        let stop = CancellationToken::new();
        let mut config = controllers::Config::new(fake.client());
        config.controllers =
            ["deployment", "replicaset", "garbagecollector", "job", "statefulset"].map(str::to_owned).into();
        Self { task: tokio::spawn(controllers::run(config, stop.clone())), stop }
    }

    /// As a crash would: in the middle of whatever it does.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.stop.cancel();
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

/// One step of one pod's life: scheduled, running, or removed after its deletion.
fn kubelet(fake: &Fake, random: &mut StdRng) {
    let pods = fake.all(PODS);
    if pods.is_empty() {
        return;
    }
    let pod = &pods[random.random_range(0..pods.len())];
    fake.change(PODS, name(pod), |pod| {
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            let held = pod["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
            pod["status"]["phase"] = json!("Failed");
            return held;
        }
        if pod["spec"]["nodeName"].is_null() {
            pod["spec"]["nodeName"] = json!("node");
        } else if pod["status"].is_null() || pod["status"]["phase"] == "Pending" {
            pod["status"] = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        }
        true
    });
}

fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } },
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 10,
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "v1" }] } },
        },
    }))
    .unwrap()
}

/// Lets the controllers work for a moment of virtual time.
async fn settle(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

async fn until(what: &str, seed: u64, fake: &Fake, random: &mut StdRng, mut done: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if done() {
            return;
        }
        kubelet(fake, random);
        settle(50).await;
    }
    panic!(
        "seed {seed}: never {what}; sets {:?} pods {:?}",
        sizes(fake),
        fake.all(PODS).iter().map(|pod| (name(pod).to_owned(), is_ready(pod))).collect::<Vec<_>>()
    );
}

fn sizes(fake: &Fake) -> Vec<(String, i64)> {
    fake.all(SETS).iter().map(|set| (name(set).to_owned(), set["spec"]["replicas"].as_i64().unwrap_or(0))).collect()
}

fn is_converged(fake: &Fake, replicas: usize, image: &str) -> bool {
    let pods = fake.all(PODS);
    let deployment = &fake.all(DEPLOYMENTS)[0];
    let count = |field: &str| usize::try_from(deployment["status"][field].as_i64().unwrap_or(0)).unwrap();
    pods.len() == replicas
        && pods.iter().all(|pod| is_ready(pod) && pod["spec"]["containers"][0]["image"] == image)
        && count("updatedReplicas") == replicas
        && count("availableReplicas") == replicas
        && count("replicas") == replicas
}

/// Rolls through several templates with crashes and refused writes, and looks at the bounds all the time.
#[tokio::test(start_paused = true)]
async fn rollouts_keep_their_bounds_whatever_happens() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let fake = Fake::new(seed);
        let client = fake.client();
        let (replicas, surge, unavailable) = [(10, 3, 2), (5, 1, 0), (4, 0, 1), (7, 7, 7)][random.random_range(0..4)];
        client.all::<Deployment>().create(&deployment(replicas, json!(surge), json!(unavailable))).await.unwrap();
        let mut manager = Manager::start(&fake);
        let wanted = usize::try_from(replicas).unwrap();
        until("up", seed, &fake, &mut random, || is_converged(&fake, wanted, "v1")).await;

        fake.set_faults(random.random_range(4..12));
        let mut image = "v1".to_owned();
        for step in 0..300 {
            if random.random_range(0..60) == 0 {
                image = format!("v{}", random.random_range(1..5));
                let template = image.clone();
                fake.change(DEPLOYMENTS, "web", |deployment| {
                    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!(template);
                    deployment["metadata"]["generation"] =
                        json!(deployment["metadata"]["generation"].as_i64().unwrap() + 1);
                    true
                });
            }
            if random.random_range(0..80) == 0 {
                manager.kill().await;
                manager = Manager::start(&fake);
            }
            kubelet(&fake, &mut random);
            settle(random.random_range(0..30)).await;
            let asked: i64 = sizes(&fake).iter().map(|(_, size)| size).sum();
            assert!(
                asked <= i64::from(replicas + surge),
                "seed {seed} step {step}: {asked} asked for: {:?}",
                sizes(&fake)
            );
            let ready = fake.all(PODS).iter().filter(|pod| is_ready(pod)).count();
            assert!(
                ready >= usize::try_from(replicas - unavailable).unwrap(),
                "seed {seed} step {step}: only {ready} ready: {:?}",
                sizes(&fake)
            );
        }
        fake.set_faults(0);
        until("rolled", seed, &fake, &mut random, || is_converged(&fake, wanted, &image)).await;
        let templates: BTreeSet<String> = fake
            .all(SETS)
            .iter()
            .map(|set| set["spec"]["template"]["spec"]["containers"][0]["image"].to_string())
            .collect();
        assert_eq!(templates.len(), fake.all(SETS).len(), "seed {seed}: one ReplicaSet per template");
        // Quiet means quiet.
        let before = fake.all(PODS);
        settle(60_000).await;
        assert_eq!(before, fake.all(PODS), "seed {seed}");
        manager.kill().await;
    }
}

/// Scaling, deleting pods at random, crashes and refused writes: in the end exactly what is wanted.
#[tokio::test(start_paused = true)]
async fn chaos_converges_without_duplicates() {
    for seed in 100..112 {
        let mut random = StdRng::seed_from_u64(seed);
        let fake = Fake::new(seed);
        let client = fake.client();
        client.all::<Deployment>().create(&deployment(3, json!("25%"), json!("25%"))).await.unwrap();
        let mut manager = Manager::start(&fake);
        fake.set_faults(5);
        let mut replicas = 3;
        for _ in 0..200 {
            match random.random_range(0..40) {
                0 => {
                    replicas = random.random_range(0..12);
                    fake.change(DEPLOYMENTS, "web", |deployment| {
                        deployment["spec"]["replicas"] = json!(replicas);
                        deployment["metadata"]["generation"] =
                            json!(deployment["metadata"]["generation"].as_i64().unwrap() + 1);
                        true
                    });
                }
                1 => {
                    if let Some(pod) = fake.all(PODS).first() {
                        fake.change(PODS, name(pod), |_| false);
                    }
                }
                2 => {
                    manager.kill().await;
                    manager = Manager::start(&fake);
                }
                _ => kubelet(&fake, &mut random),
            }
            settle(random.random_range(0..30)).await;
        }
        fake.set_faults(0);
        until("converged", seed, &fake, &mut random, || is_converged(&fake, replicas, "v1")).await;
        manager.kill().await;
    }
}

/// Owners take their dependents with them, wait for them, or let them live.
#[tokio::test(start_paused = true)]
async fn each_propagation_does_what_it_says() {
    for (params, pods_left) in
        [(DeleteParams::background(), 0), (DeleteParams::foreground(), 0), (DeleteParams::orphan(), 2)]
    {
        let fake = Fake::new(7);
        let mut random = StdRng::seed_from_u64(7);
        let client = fake.client();
        client.all::<Deployment>().create(&deployment(2, json!(1), json!(0))).await.unwrap();
        let manager = Manager::start(&fake);
        until("up", 7, &fake, &mut random, || is_converged(&fake, 2, "v1")).await;
        client.namespaced::<Deployment>("default").delete("web", &params).await.unwrap();
        let orphans = pods_left > 0;
        until("deleted", 7, &fake, &mut random, || {
            fake.all(DEPLOYMENTS).is_empty()
                && fake.all(SETS).len() == usize::from(orphans)
                && fake.all(PODS).len() == pods_left
        })
        .await;
        if orphans {
            assert!(fake.all(SETS)[0]["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty));
            // The ReplicaSet still works, and a Deployment of the same shape adopts it.
            client.all::<Deployment>().create(&deployment(2, json!(1), json!(0))).await.unwrap();
            until("adopted", 7, &fake, &mut random, || {
                !fake.all(SETS)[0]["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty)
            })
            .await;
            assert_eq!(fake.all(SETS).len(), 1);
        }
        manager.kill().await;
    }
}

/// A pod whose labels change is let go and replaced; one that matches again is one too many.
#[tokio::test(start_paused = true)]
async fn pods_are_released_and_adopted() {
    let fake = Fake::new(3);
    let mut random = StdRng::seed_from_u64(3);
    let client = fake.client();
    client.all::<Deployment>().create(&deployment(2, json!(1), json!(0))).await.unwrap();
    let manager = Manager::start(&fake);
    until("up", 3, &fake, &mut random, || is_converged(&fake, 2, "v1")).await;
    let strayed = name(&fake.all(PODS)[0]).to_owned();
    let labels = fake.all(PODS)[0]["metadata"]["labels"].clone();
    let api = client.namespaced::<Pod>("default");
    api.patch(&strayed, &Patch::merge(json!({ "metadata": { "labels": { "app": "other" } } }))).await.unwrap();
    until("replaced", 3, &fake, &mut random, || fake.all(PODS).len() == 3).await;
    until("released", 3, &fake, &mut random, || {
        let pod = fake.all(PODS).into_iter().find(|pod| name(pod) == strayed).unwrap();
        pod["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    api.patch(&strayed, &Patch::merge(json!({ "metadata": { "labels": labels } }))).await.unwrap();
    until("adopted and one deleted", 3, &fake, &mut random, || fake.all(PODS).len() == 2).await;
    let sets = client.namespaced::<ReplicaSet>("default").list(&client::ListParams::default()).await.unwrap();
    assert_eq!(sets.items.len(), 1);
    manager.kill().await;
}

/// Pods that come and go while nobody watches have no events. They are waited for, and then made again.
#[tokio::test(start_paused = true)]
async fn pods_that_no_watch_has_shown_are_made_again() {
    let fake = Fake::new(9);
    let mut random = StdRng::seed_from_u64(9);
    fake.set_fleeting(Some(PODS));
    fake.client().all::<Deployment>().create(&deployment(2, json!(1), json!(0))).await.unwrap();
    let manager = Manager::start(&fake);
    settle(10_000).await;
    assert_eq!(sizes(&fake).iter().map(|(_, size)| size).sum::<i64>(), 2, "the ReplicaSet was told");
    fake.set_fleeting(None);
    settle(60_000).await;
    assert!(fake.all(PODS).is_empty(), "made twice while the first may still show up");
    settle(300_000).await;
    until("made again", 9, &fake, &mut random, || is_converged(&fake, 2, "v1")).await;
    manager.kill().await;
}

/// An ordered set gives up at most one pod at a time, however often its template changes and its manager dies.
#[tokio::test(start_paused = true)]
async fn ordered_sets_change_one_pod_at_a_time() {
    for seed in 300..308 {
        let mut random = StdRng::seed_from_u64(seed);
        let fake = Fake::new(seed);
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "default" },
            "spec": {
                "replicas": 4, "serviceName": "db",
                "selector": { "matchLabels": { "app": "db" } },
                "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } },
                "template": { "metadata": { "labels": { "app": "db" } }, "spec": { "containers": [{ "name": "c", "image": "v1" }] } },
            },
        }))
        .unwrap();
        fake.client().all::<StatefulSet>().create(&set).await.unwrap();
        let mut manager = Manager::start(&fake);
        let mut image = "v1".to_owned();
        let settled = |image: &str| {
            let pods = fake.all(PODS);
            pods.len() == 4 && pods.iter().all(|pod| is_ready(pod) && pod["spec"]["containers"][0]["image"] == image)
        };
        until("up", seed, &fake, &mut random, || {
            // While it starts, an ordinal comes only after all below it.
            let mut ordinals: Vec<_> = fake.all(PODS).iter().map(|pod| (name(pod).to_owned(), is_ready(pod))).collect();
            ordinals.sort();
            let unready = ordinals.iter().position(|(_, ready)| !ready);
            assert!(unready.is_none_or(|at| at == ordinals.len() - 1), "seed {seed}: {ordinals:?}");
            settled("v1")
        })
        .await;
        fake.set_faults(random.random_range(4..12));
        for step in 0..300 {
            if random.random_range(0..60) == 0 {
                image = format!("v{}", random.random_range(1..4));
                let template = image.clone();
                fake.change("/apis/apps/v1/statefulsets", "db", |set| {
                    set["spec"]["template"]["spec"]["containers"][0]["image"] = json!(template);
                    set["metadata"]["generation"] = json!(set["metadata"]["generation"].as_i64().unwrap() + 1);
                    true
                });
            }
            if random.random_range(0..80) == 0 {
                manager.kill().await;
                manager = Manager::start(&fake);
            }
            kubelet(&fake, &mut random);
            settle(random.random_range(0..30)).await;
            let ready = fake.all(PODS).iter().filter(|pod| is_ready(pod)).count();
            assert!(ready >= 3, "seed {seed} step {step}: only {ready} ready");
        }
        fake.set_faults(0);
        until("rolled", seed, &fake, &mut random, || settled(&image)).await;
        manager.kill().await;
    }
}

/// A Job counts every pod exactly once, whatever fails in between.
#[tokio::test(start_paused = true)]
async fn jobs_count_each_pod_once() {
    for seed in 200..208 {
        let mut random = StdRng::seed_from_u64(seed);
        let fake = Fake::new(seed);
        let client = fake.client();
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "sum", "namespace": "default" },
            "spec": {
                "completions": 6, "parallelism": 3, "backoffLimit": 100,
                "selector": { "matchLabels": { "job-name": "sum" } },
                "template": { "metadata": { "labels": { "job-name": "sum" } }, "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "v1" }] } },
            },
        }))
        .unwrap();
        client.all::<Job>().create(&job).await.unwrap();
        let mut manager = Manager::start(&fake);
        fake.set_faults(6);
        let status = |fake: &Fake| fake.all("/apis/batch/v1/jobs")[0]["status"].clone();
        let is_done = |fake: &Fake| {
            status(fake)["conditions"].as_array().into_iter().flatten().any(|condition| condition["type"] == "Complete")
        };
        for step in 0.. {
            if is_done(&fake) {
                break;
            }
            assert!(step < 20_000, "seed {seed}: {}", status(&fake));
            if step == 1000 {
                fake.set_faults(0);
            }
            if random.random_range(0..50) == 0 {
                manager.kill().await;
                manager = Manager::start(&fake);
            }
            kubelet(&fake, &mut random);
            if let Some(pod) = fake.all(PODS).iter().find(|pod| is_ready(pod))
                && random.random_range(0..4) == 0
            {
                fake.change(PODS, name(pod), |pod| {
                    pod["status"] = json!({ "phase": "Succeeded" });
                    true
                });
            }
            settle(20).await;
        }
        assert_eq!(status(&fake)["succeeded"], 6, "seed {seed}");
        let finished = fake.all(PODS).iter().filter(|pod| pod["status"]["phase"] == "Succeeded").count();
        assert_eq!(finished, 6, "seed {seed}: no pod too many ran to its end");
        manager.kill().await;
    }
}

/// Decisions take the time from the clock that the manager was given, here that of the runtime, in which an hour is nothing.
#[tokio::test(start_paused = true)]
async fn finished_jobs_go_when_their_time_is_over() {
    const JOBS: &str = "/apis/batch/v1/jobs";
    let fake = Fake::new(7);
    let start: jiff::Timestamp = "2040-01-01T00:00:00Z".parse().unwrap();
    let job: Job = serde_json::from_value(json!({
        "metadata": { "name": "done", "namespace": "default" },
        "spec": { "ttlSecondsAfterFinished": 3600, "template": {} },
        "status": { "conditions": [{ "type": "Complete", "status": "True", "lastTransitionTime": start.to_string() }] },
    }))
    .unwrap();
    fake.client().all::<Job>().create(&job).await.unwrap();
    let stop = CancellationToken::new();
    let mut config = controllers::Config::new(fake.client());
    config.controllers = vec!["ttl-after-finished-controller".into()];
    config.clock = client::Clock::of_runtime(start);
    let manager = tokio::spawn(controllers::run(config, stop.clone()));
    let is_there = || fake.all(JOBS).iter().any(|job| job["metadata"]["deletionTimestamp"].is_null());
    settle(3_590_000).await;
    assert!(is_there(), "its time is not over");
    for _ in 0..600 {
        settle(1000).await;
        if !is_there() {
            break;
        }
    }
    assert!(!is_there(), "an hour has passed");
    stop.cancel();
    manager.await.unwrap().unwrap();
}

/// A node that says itself that it is not ready still looks after its pods, and says how they are. Of one that is silent nobody
/// knows.
#[tokio::test(start_paused = true)]
async fn pods_are_not_ready_where_nothing_is_heard_of_their_node() {
    const NODES: &str = "/api/v1/nodes";
    let fake = Fake::new(11);
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": "node" },
        "status": { "conditions": [{ "type": "Ready", "status": "False" }] },
    }))
    .unwrap();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "pod", "namespace": "default" },
        "spec": { "nodeName": "node", "containers": [{ "name": "c" }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .unwrap();
    fake.client().all::<Node>().create(&node).await.unwrap();
    fake.client().all::<Pod>().create(&pod).await.unwrap();
    let stop = CancellationToken::new();
    let mut config = controllers::Config::new(fake.client());
    config.controllers = vec!["node-lifecycle-controller".into()];
    let grace = config.node_monitor_grace_period;
    let manager = tokio::spawn(controllers::run(config, stop.clone()));
    let ready = |collection: &str| fake.all(collection)[0]["status"]["conditions"][0]["status"].clone();
    tokio::time::sleep(grace / 2).await;
    assert!(!fake.all(NODES)[0]["spec"]["taints"].is_null(), "the node was looked at");
    assert_eq!((ready(NODES), ready(PODS)), (json!("False"), json!("True")));
    tokio::time::sleep(grace).await;
    assert_eq!((ready(NODES), ready(PODS)), (json!("Unknown"), json!("False")));
    stop.cancel();
    manager.await.unwrap().unwrap();
}
