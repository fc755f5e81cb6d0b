//! Running the table: leader election, the controllers with their identities, and the manager's own port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use client::metrics::Metrics;
use client::review::Reviews;
use client::serving::{Port, Routes};
use client::{Client, EventRecorder, InformerFactory, LeaderElector, outlive_panics};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::controller::{self, Context, Descriptor};
use crate::table::{CONTROLLERS, check_selection, event_source, is_enabled};

/// What the manager calls itself: user agent, metrics, lease.
pub(crate) const NAME: &str = "kube-controller-manager";

/// Runs the selected controllers until `stop` fires or the lead is lost.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(mut config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    check_selection(&config.controllers)?;
    let metrics = config.metrics.clone();
    config.client = config.client.with_user_agent(NAME)?.with_metrics(&metrics);
    let health = Arc::new(Health::default());
    let stopped = stop.child_token();
    let port = Port::open(config.serving.as_ref()).await?;
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
    let routes = Routes {
        component: "kube-controller-manager",
        reviews,
        metrics,
        pages: Vec::new(),
        checks: vec!["leaderElection"],
        unhealthy: Box::new(unhealthy),
    };
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
        running.spawn(FutureExt::boxed(keep_running(descriptor, config.clone(), informers.clone(), stop.clone())));
    }
    informers.start(stop.clone());
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended badly");
        }
    }
    informers.ended().await;
}

/// Runs one controller until `stop`, whatever befalls it: after a panic it is built anew, and looks at everything again.
async fn keep_running(
    descriptor: &'static Descriptor,
    config: Arc<Config>,
    informers: InformerFactory,
    stop: CancellationToken,
) {
    let own = identity(&config, descriptor);
    let labels = [("manager", NAME), ("name", descriptor.name)];
    let alive = config.metrics.gauge("running_managed_controllers", "Whether the controller runs", &labels);
    alive.set(1.0);
    let run = || {
        let recorder = EventRecorder::new(own.clone(), event_source(descriptor.name), "");
        let context = Context::new(descriptor.name, own.clone(), recorder, informers.clone(), config.clone());
        controller::run(descriptor, context, stop.clone())
    };
    outlive_panics(descriptor.name, "", &stop, run).await;
    alive.set(0.0);
}

/// Who a controller is to the API: its own service account where that is free or asked for, else the manager.
fn identity(config: &Config, descriptor: &Descriptor) -> Client {
    let is_in_process = config.client.server().is_none();
    if descriptor.account.is_empty() || !(is_in_process || config.use_service_account_credentials) {
        return config.client.clone();
    }
    config.client.as_service_account("kube-system", descriptor.account)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use client::metrics::panics;

    use super::*;
    use crate::controller::{Outcome, Reconcile, Requeue};

    const FRAGILE: &str = "fragile-controller";
    static BUILT: AtomicUsize = AtomicUsize::new(0);
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static RECONCILED: AtomicUsize = AtomicUsize::new(0);

    /// Panics once while it is built, once beside its queue, and once over its key.
    struct Fragile;

    impl Reconcile for Fragile {
        fn reconcile<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Outcome> {
            let times = RECONCILED.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                assert!(times > 0, "on purpose");
                Ok(Requeue::Never)
            })
        }

        fn background(&self, stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
            let times = BEGUN.fetch_add(1, Ordering::SeqCst);
            Some(Box::pin(async move {
                assert!(times > 0, "on purpose");
                stop.cancelled().await;
            }))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn security_a_controller_that_panics_comes_back() {
        fn build(context: &Context) -> Arc<dyn Reconcile> {
            context.queue.add("key".into());
            assert!(BUILT.fetch_add(1, Ordering::SeqCst) > 0, "on purpose");
            Arc::new(Fragile)
        }
        static DESCRIPTOR: Descriptor = Descriptor { name: FRAGILE, account: "", workers: 2, build };
        let handler: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        let client = Client::in_process(handler, api::UserInfo::default());
        let (config, informers) = (Arc::new(Config::new(client.clone())), InformerFactory::new(client));
        let stop = CancellationToken::new();
        let running = tokio::spawn(keep_running(&DESCRIPTOR, config, informers, stop.clone()));
        let come_back = async {
            while [&BUILT, &BEGUN, &RECONCILED].iter().any(|times| times.load(Ordering::SeqCst) < 2) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), come_back).await.expect("all three come back");
        assert!(panics::counts().contains(&(FRAGILE, 3)));
        stop.cancel();
        running.await.unwrap();
    }
}
