//! Running the table: leader election, the controllers with their identities, and the manager's own port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use client::metrics::Metrics;
use client::review::Reviews;
use client::serving::{Port, Routes};
use client::{Client, EventRecorder, InformerFactory, LeaderElector};
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::controller;
use crate::controller::Context;
use crate::table::{CONTROLLERS, Descriptor, is_enabled};

/// What the manager calls itself: user agent, metrics, lease.
pub(crate) const NAME: &str = "kube-controller-manager";

/// Runs the selected controllers until `stop` fires or the lead is lost.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(mut config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let metrics = config.metrics.clone();
    config.client = config.client.with_user_agent(NAME)?.with_metrics(&metrics);
    let health = Arc::new(Health::default());
    let stopped = stop.child_token();
    let port = match &config.serving {
        Some(serving) => Some(Port::bind(serving).await?),
        None => None,
    };
    let serving = serve(port, config.client.clone(), metrics, health.clone(), stopped.clone());
    let working = async {
        let ran = lead(config, &health, stop).await;
        stopped.cancel();
        ran
    };
    tokio::join!(serving, working).1
}

/// What the manager's health depends on.
#[derive(Default)]
struct Health {
    /// The lead was lost; the process is about to end.
    lost: AtomicBool,
}

async fn serve(port: Option<Port>, client: Client, metrics: Metrics, health: Arc<Health>, stop: CancellationToken) {
    let Some(port) = port else { return };
    let unhealthy = move || match health.lost.load(Ordering::Relaxed) {
        true => vec![("leaderElection", "the lease was lost".to_owned())],
        false => Vec::new(),
    };
    let reviews = Reviews::new(client);
    let routes =
        Routes { reviews, metrics, pages: Vec::new(), checks: vec!["leaderElection"], unhealthy: Box::new(unhealthy) };
    port.run(routes, stop).await;
}

async fn lead(config: Config, health: &Health, stop: CancellationToken) -> anyhow::Result<()> {
    let Some(election) = config.election.clone() else {
        run_controllers(config, stop).await;
        return Ok(());
    };
    let leading = config.metrics.gauge(
        "leader_election_master_status",
        "Whether this instance leads",
        &[("name", &election.name)],
    );
    let elector = LeaderElector::new(config.client.clone(), election);
    let led = leading.clone();
    let kept = elector
        .run(stop, |lead| async move {
            led.set(1.0);
            run_controllers(config, lead).await;
        })
        .await;
    leading.set(0.0);
    health.lost.store(!kept, Ordering::Relaxed);
    anyhow::ensure!(kept, "leader election lost");
    Ok(())
}

async fn run_controllers(config: Config, stop: CancellationToken) {
    let config = Arc::new(config);
    let informers = InformerFactory::new(config.client.clone());
    let mut running = JoinSet::new();
    for descriptor in CONTROLLERS.iter().filter(|descriptor| is_enabled(descriptor.name, &config.controllers)) {
        let own = identity(&config, descriptor);
        let recorder = EventRecorder::new(own.clone(), descriptor.name, "");
        let context = Context::new(descriptor.name, own, recorder, informers.clone(), config.clone());
        let labels = [("manager", NAME), ("name", descriptor.name)];
        let alive = config.metrics.gauge("running_managed_controllers", "Whether the controller runs", &labels);
        let stop = stop.clone();
        running.spawn(async move {
            alive.set(1.0);
            controller::run(descriptor, context, stop).await;
            alive.set(0.0);
        });
    }
    informers.start(stop.clone());
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended badly");
        }
    }
    informers.ended().await;
}

/// Who a controller is to the API: its own service account where that is free or asked for, else the manager.
fn identity(config: &Config, descriptor: &Descriptor) -> Client {
    let is_in_process = config.client.server().is_none();
    if descriptor.account.is_empty() || !(is_in_process || config.use_service_account_credentials) {
        return config.client.clone();
    }
    config.client.as_service_account("kube-system", descriptor.account)
}
