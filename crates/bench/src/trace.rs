//! What the trace costs: the same writes on two API servers in this process, one with it and one without, in turns.
//!
//! CPU time of the whole process is compared, not waiting: a write waits for the disk far longer than it works. Turns are
//! short, and the middle one counts: whatever else the machine does falls on both sides, and not on all turns.

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
    let context = Context::new(recorder.clone(), Id::fresh());
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
    let (rounds, count) = if args.quick { (1, 100) } else { (60, 200) };
    let (one, other) = (tempfile::tempdir_in(&args.dir)?, tempfile::tempdir_in(&args.dir)?);
    let with = ControlPlane::start(one.path(), Transport::Call).await?;
    let without = ControlPlane::start_with(other.path(), Transport::Call, |config| config.trace_bytes = 0).await?;
    for client in [&with.client, &without.client] {
        // What a controller would make: pods need it.
        let account = serde_json::from_value(json!({ "metadata": { "name": "default" } }))?;
        client.namespaced::<ServiceAccount>("default").create(&account).await?;
    }
    let (mut traced, mut plain) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // In turns, and not always the same one first: the machine changes its speed.
        let mut turn = async |is_traced: bool| -> Result<()> {
            let (client, turns) = if is_traced { (&with.client, &mut traced) } else { (&without.client, &mut plain) };
            turns.push(create(client, round, count).await?);
            Ok(())
        };
        turn(round % 2 == 0).await?;
        turn(round % 2 == 1).await?;
    }
    with.stop().await?;
    without.stop().await?;
    let each = |mut turns: Vec<Duration>| {
        turns.sort();
        turns[turns.len() / 2].as_secs_f64() * 1e6 / f64::from(count)
    };
    let (traced, plain) = (each(traced), each(plain));
    let parameters = format!("pods={} peer=without-trace", rounds * count);
    report::line("write", &parameters, "µs", traced, plain, Better::Less);
    report::line_alone("write cost", &parameters, "%", (traced - plain) / plain * 100.0);
    Ok(())
}

/// CPU time of `count` creations.
async fn create(client: &Client, round: u32, count: u32) -> Result<Duration> {
    let pods = client.namespaced::<Pod>("default");
    let before = cpu_time()?;
    for number in 0..count {
        let pod = json!({
            "metadata": { "name": format!("p-{round}-{number}"), "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx", "ports": [{ "containerPort": 80 }] }], "automountServiceAccountToken": false },
        });
        pods.create(&serde_json::from_value(pod)?).await?;
    }
    Ok(cpu_time()? - before)
}

/// CPU time of this process, to the nanosecond.
fn cpu_time() -> Result<Duration> {
    Ok(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?.into())
}
