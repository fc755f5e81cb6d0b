//! Puts the scheduler together and runs it, alone or as one of several that stand by.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api::cached::Pod;
use client::metrics::Metrics as Registry;
use client::review::Reviews;
use client::serving::{Port, Routes, Serving};
use client::{Client, Clock, Election, EventRecorder, InformerFactory, LeaderElector};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::config::{self, Configuration};
use crate::cycle::Decider;
use crate::extender::Extender;
use crate::handlers;
use crate::metrics::Metrics;
use crate::permits::Waiting;
use crate::plugins::{Context, volume_binding};
use crate::pod::Catalogue;
use crate::queue::Queue;
use crate::resource_metrics;
use crate::scheduler::{Core, Scheduler};

#[derive(Clone)]
pub struct Config {
    pub client: Client,
    pub configuration: Configuration,
    /// None decides at once: there is no other instance.
    pub election: Option<Election>,
    /// Where health and metrics are served, if anywhere.
    pub serving: Option<Serving>,
    /// Asked about callers of that port, if it is not the API server that the scheduler works for.
    pub reviewer: Option<Client>,
    /// How long a pod waits at most for something to happen that could help it.
    pub max_wait: Duration,
    pub clock: Clock,
}

impl Config {
    /// The default profile, no election, nothing served.
    pub fn new(client: Client) -> Config {
        let max_wait = Duration::from_secs(300);
        let configuration = Configuration::default();
        Config {
            client,
            configuration,
            election: None,
            serving: None,
            reviewer: None,
            max_wait,
            clock: Clock::default(),
        }
    }
}

/// Schedules until `stop`.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_until(config, stop))
}

/// Plug-ins are timed in one attempt of so many.
const TIMED: u32 = 32;

async fn run_until(config: Config, stop: CancellationToken) -> Result<()> {
    let Config { client, configuration, election, serving, reviewer, max_wait, clock } = config;
    let metrics = Metrics::new(Registry::new().with_process(api::version::GIT).with_features(api::features::all()));
    let client = client.with_metrics(&metrics.registry);
    let informers = InformerFactory::new(client.clone());
    let (volume_changes, changes) = watch::channel(0);
    let scheduler = assemble(client.clone(), metrics, &configuration, max_wait, clock, &informers, changes)?;
    let scheduler = Arc::new(scheduler);
    let synced = handlers::follow(&scheduler, &informers, volume_changes);
    let is_ready = Arc::new(AtomicBool::new(false));
    let weak = Arc::downgrade(&scheduler);
    scheduler.metrics.registry.on_render(move || {
        if let Some(scheduler) = weak.upgrade() {
            scheduler.note_sizes();
        }
    });
    let routes = Routes {
        component: "kube-scheduler",
        reviews: Reviews::new(reviewer.unwrap_or_else(|| client.clone())),
        metrics: scheduler.metrics.registry.clone(),
        pages: vec![("metrics/resources", {
            let (pods, catalogue) = (scheduler.pods.clone(), scheduler.catalogue.clone());
            Box::new(move || resource_metrics::page(&pods.list(), &catalogue))
        })],
        checks: vec!["ping", "informer-sync"],
        unhealthy: {
            let is_ready = is_ready.clone();
            Box::new(move || match is_ready.load(Ordering::Relaxed) {
                true => Vec::new(),
                false => vec![("informer-sync", "not everything is seen yet".to_owned())],
            })
        },
    };
    let port = Port::open(serving.as_ref()).await.context("health and metrics")?;
    // Whatever ends first ends the rest: informers, server and loop stop together.
    let stop = stop.child_token();
    let _stop_all = stop.clone().drop_guard();
    informers.start(stop.clone());
    let deciding = async {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = futures_util::future::join_all(synced) => is_ready.store(true, Ordering::Relaxed),
        }
        let Some(election) = election else {
            scheduler.run(stop.clone()).await;
            return Ok(());
        };
        let elector = LeaderElector::new(client, election);
        if !elector.run(stop.clone(), |leading| scheduler.run(leading)).await {
            bail!("leaderelection lost");
        }
        Ok(())
    };
    // Ends with the rest: giving the lead back takes longer than closing a port.
    let serving = async {
        if let Some(port) = port {
            port.run(routes, stop.clone()).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = deciding => ended,
        () = serving => Ok(()),
    }
}

fn assemble(
    client: Client,
    metrics: Metrics,
    configuration: &Configuration,
    max_wait: Duration,
    clock: Clock,
    informers: &InformerFactory,
    changes: watch::Receiver<u64>,
) -> Result<Scheduler> {
    let catalogue = Arc::new(Catalogue::default());
    let volumes = volume_binding::Api {
        client: client.clone(),
        claims: informers.informer::<PersistentVolumeClaim>(),
        volumes: informers.informer::<PersistentVolume>(),
        nodes: informers.informer::<Node>(),
        pods: informers.informer::<Pod>(),
        changes,
        metrics: metrics.clone(),
    };
    let context = Context {
        catalogue: catalogue.clone(),
        client: Some(client.clone()),
        volumes: Some(volumes),
        ignored_resources: configuration.extenders.iter().flat_map(Extender::ignored_resources).collect(),
    };
    let profiles = Arc::new(config::build(configuration, &context)?);
    let recorders = profiles.names().map(|name| (name.clone(), EventRecorder::new(client.clone(), name, "")));
    let seconds = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let extenders = configuration.extenders.iter().cloned().map(Extender::new);
    Ok(Scheduler {
        core: Mutex::new(Core {
            cluster: Cluster::with_catalogue(catalogue.clone()),
            decider: Decider::new(configuration.percentage_of_nodes_to_score.unwrap_or(0), StdRng::from_os_rng())
                .sampling(TIMED),
        }),
        queue: Queue::new(
            profiles.clone(),
            seconds(configuration.pod_initial_backoff_seconds),
            seconds(configuration.pod_max_backoff_seconds),
            max_wait,
            metrics.clone(),
        ),
        pods: informers.informer::<Pod>(),
        extenders: extenders.collect::<Result<_, _>>().context("extenders")?,
        recorders: recorders.collect(),
        permits: Waiting::default(),
        metrics,
        clock,
        client,
        catalogue,
        profiles,
    })
}

impl Scheduler {
    /// What is counted only when somebody asks.
    fn note_sizes(&self) {
        self.metrics.set_pending(self.queue.counts());
        let rejected = self.queue.rejected_by().into_iter();
        let rejected = rejected.map(|((plugin, profile), count)| ([plugin.to_owned(), profile], count));
        self.metrics.set_all("scheduler_unschedulable_pods", ["plugin", "profile"], rejected);
        let (events, trying) = self.queue.in_flight();
        let events = events.into_iter().chain([("PodPopped", trying)]);
        let events = events.map(|(event, count)| ([event.to_owned()], count));
        self.metrics.set_all("scheduler_inflight_events", ["event"], events);
        self.profiles.all().for_each(|profile| self.metrics.add_evaluations(profile));
        let (nodes, pods, assumed) = {
            let core = self.core.lock();
            (core.cluster.len(), core.cluster.pods(), core.cluster.assumed())
        };
        for (kind, count) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed)] {
            self.metrics.set("scheduler_cache_size", &[("type", kind)], count as f64);
        }
    }
}
