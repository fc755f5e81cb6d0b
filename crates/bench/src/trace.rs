//! What the trace costs: the same writes on two API servers in this process, one with it and one without, in turns.
//!
//! CPU time of the whole process is compared, not waiting: a write waits for the disk far longer than it works.

use std::time::{Duration, Instant};

use ::trace::{Context, Id, Recorder, Stage, Work, lap};
use anyhow::Result;
use client::Client;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use serde_json::json;

use crate::Args;
use crate::control_plane::{ControlPlane, Transport};
use crate::report::{self, Better};

pub(crate) async fn run(args: Args) -> Result<()> {
    if args.wants("span") {
        span(if args.quick { 10_000 } else { 1_000_000 }).await;
    }
    if args.wants("write") {
        write(&args).await?;
    }
    Ok(())
}

/// A span with a lap, begun and ended.
async fn span(count: u32) {
    let recorder = Recorder::new(Recorder::DEFAULT_BYTES);
    let context = Context::new(recorder.clone(), vec![Id::fresh()]);
    let began = Instant::now();
    for _ in 0..count {
        let mut work =
            Work::caused(&context, Stage::Reconcile, "deployment-controller", "default/web-5d9c7b6f4d-x2v8q");
        work.run(async { lap(Stage::Decode) }).await;
        work.end();
    }
    let each = began.elapsed().as_secs_f64() * 1e9 / f64::from(count);
    report::line_alone("span", format!("count={count} kept={}B", recorder.size()), "ns", each);
}

/// Pods created one after the other: the path with the most filters, plug-ins and checks.
async fn write(args: &Args) -> Result<()> {
    let (rounds, count) = if args.quick { (1, 100) } else { (8, 1500) };
    let (one, other) = (tempfile::tempdir_in(&args.dir)?, tempfile::tempdir_in(&args.dir)?);
    let with = ControlPlane::start(one.path(), Transport::Call).await?;
    let without = ControlPlane::start_traced(other.path(), Transport::Call, 0).await?;
    for client in [&with.client, &without.client] {
        // What a controller would make: pods need it.
        let account = serde_json::from_value(json!({ "metadata": { "name": "default" } }))?;
        client.namespaced::<ServiceAccount>("default").create(&account).await?;
    }
    let (mut traced, mut plain) = (Duration::ZERO, Duration::ZERO);
    for round in 0..rounds {
        // In turns, and not always the same one first: the machine changes its speed.
        let mut turn = async |is_traced: bool| -> Result<()> {
            let (client, sum) = if is_traced { (&with.client, &mut traced) } else { (&without.client, &mut plain) };
            *sum += create(client, round, count).await?;
            Ok(())
        };
        turn(round % 2 == 0).await?;
        turn(round % 2 == 1).await?;
    }
    with.stop().await?;
    without.stop().await?;
    let each = |sum: Duration| sum.as_secs_f64() * 1e6 / f64::from(rounds * count);
    let parameters = format!("pods={} peer=without-trace", rounds * count);
    report::line("write", parameters, "µs", each(traced), each(plain), Better::Less);
    Ok(())
}

/// CPU time of `count` creations.
async fn create(client: &Client, round: u32, count: u32) -> Result<Duration> {
    let pods = client.namespaced::<Pod>("default");
    let before = report::cpu_seconds()?;
    for number in 0..count {
        let pod = json!({
            "metadata": { "name": format!("p-{round}-{number}"), "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx", "ports": [{ "containerPort": 80 }] }], "automountServiceAccountToken": false },
        });
        pods.create(&serde_json::from_value(pod)?).await?;
    }
    Ok(Duration::from_secs_f64(report::cpu_seconds()? - before))
}
