//! One and three API servers over an etcd of three members: writes, and watches of what is written. The peer is an upstream
//! kube-apiserver that is named, over the same etcd; both take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::{Client, Informer, ListParams};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Args;
use crate::machines::{self, COUNT, OURS, PEER, Place, Process};
use crate::report::{self, Better, Times};

const WRITERS: usize = 48;
/// Followers of everything that is written, spread over the servers.
const WATCHES: usize = 12;
const WATCH_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn run(args: Args) -> Result<()> {
    let Some(dir) = &args.inside else { return machines::inside(&args.dir, machines::Disk::Memory) };
    let place = Place::of(dir);
    let cox = machines::cox(args.cox.as_deref())?;
    let etcd = args.etcd_binary.clone().unwrap_or_else(|| "etcd".into());
    let mut processes = Vec::new();
    for number in 0..COUNT {
        processes.push(Process::etcd(&place, number, &etcd)?);
        processes.push(Process::server(&place, number, &cox)?);
        if let Some(peer) = &args.kube_apiserver {
            processes.push(Process::peer(&place, number, peer)?);
        }
    }
    for process in &mut processes {
        process.start()?;
    }
    if args.kube_apiserver.is_none() {
        eprintln!("--kube-apiserver compares with an upstream kube-apiserver over the same etcd");
    }
    let ports = [Some(OURS), args.kube_apiserver.as_ref().map(|_| PEER)];
    let mut sides = Vec::new();
    for port in ports.into_iter().flatten() {
        let clients = (0..COUNT).map(|number| machines::client(&place, number, port)).collect::<Result<Vec<_>>>()?;
        for client in &clients {
            machines::until_served(client, || processes.iter_mut().try_for_each(Process::look_after)).await?;
        }
        sides.push(clients);
    }
    let (rounds, turn) = if args.quick { (1, Duration::from_secs(1)) } else { (3, Duration::from_secs(4)) };
    for servers in [1, COUNT] {
        let mut outcomes: Vec<Outcome> = sides.iter().map(|_| Outcome::default()).collect();
        for round in 0..rounds {
            for (side, outcome) in sides.iter().zip(&mut outcomes) {
                write_and_watch(&side[..servers], &format!("ha-{servers}-{round}"), turn, outcome).await?;
            }
        }
        let parameters = format!("servers={servers} writers={WRITERS} watches={WATCHES}");
        let values = |of: &dyn Fn(&mut Outcome) -> f64, outcomes: &mut Vec<Outcome>| -> (f64, Option<f64>) {
            let all: Vec<f64> = outcomes.iter_mut().map(of).collect();
            (all.first().copied().unwrap_or_default(), all.get(1).copied())
        };
        let (ours, peer) =
            values(&|outcome| outcome.times.count() as f64 / outcome.writing.as_secs_f64(), &mut outcomes);
        report::line("write", &parameters, "/s", ours, peer, Better::More);
        for percent in [50, 99] {
            let (ours, peer) = values(&|outcome| outcome.times.percentile(percent), &mut outcomes);
            report::line(&format!("write-p{percent}"), &parameters, "ms", ours, peer, Better::Less);
        }
        let (ours, peer) = values(&|outcome| outcome.delivered as f64 / outcome.watching.as_secs_f64(), &mut outcomes);
        report::line("watch", &parameters, "/s", ours, peer, Better::More);
    }
    Ok(())
}

/// What one side did in its turns.
#[derive(Default)]
struct Outcome {
    times: Times,
    writing: Duration,
    /// Until everybody had seen everything.
    watching: Duration,
    delivered: usize,
}

/// Writers create objects for a time; everyone who watches must see all of them.
async fn write_and_watch(servers: &[Client], namespace: &str, time: Duration, outcome: &mut Outcome) -> Result<()> {
    let first = servers.first().context("no server")?;
    let metadata = ObjectMeta { name: Some(namespace.to_owned()), ..ObjectMeta::default() };
    first.all::<Namespace>().create(&Namespace { metadata, ..Namespace::default() }).await?;
    let (stop, seen) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let _stop_at_end = stop.clone().drop_guard();
    let mut watching = JoinSet::new();
    for number in 0..WATCHES {
        let client = &servers[number % servers.len()];
        let informer: Informer<ConfigMap> = Informer::new(client.namespaced(namespace), ListParams::default());
        let (seen, stop) = (seen.clone(), stop.clone());
        informer.subscribe(move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        watching.spawn(async move { informer.run(stop).await });
    }
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let (client, namespace) = (servers[number % servers.len()].clone(), namespace.to_owned());
        writers.spawn(async move {
            let (maps, mut times, mut count) = (client.namespaced::<ConfigMap>(&namespace), Times::default(), 0);
            while began.elapsed() < time {
                let metadata = ObjectMeta { name: Some(format!("w-{number}-{count}")), ..ObjectMeta::default() };
                let data = Some([("key".to_owned(), "x".repeat(256))].into());
                let before = Instant::now();
                maps.create(&ConfigMap { metadata, data, ..ConfigMap::default() }).await?;
                times.add(before.elapsed());
                count += 1;
            }
            anyhow::Ok(times)
        });
    }
    let mut written = 0;
    while let Some(times) = writers.join_next().await {
        let times = times??;
        written += times.count();
        outcome.times.join(times);
    }
    outcome.writing += began.elapsed();
    while seen.load(Ordering::Relaxed) < written * WATCHES {
        ensure!(began.elapsed() < time + WATCH_TIMEOUT, "watches have not shown everything");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    outcome.watching += began.elapsed();
    outcome.delivered += written * WATCHES;
    Ok(())
}
