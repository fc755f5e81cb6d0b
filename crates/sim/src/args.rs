//! `cox sim`: flags, and running the simulation.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::{nodes, pods};

/// Flags of `cox sim`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Kubeconfig of the cluster that gets the nodes
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// How many nodes to simulate
    #[arg(long, default_value_t = 100)]
    pub nodes: usize,
    /// Prefix of the names of the nodes
    #[arg(long, default_value = "hollow-")]
    pub name_prefix: String,
    /// CPUs of each node
    #[arg(long, default_value = "32")]
    pub cpu: String,
    /// Memory of each node
    #[arg(long, default_value = "256Gi")]
    pub memory: String,
    /// Number of pods that each node can run
    #[arg(long, default_value = "110")]
    pub pods: String,
    /// Further labels of each node, as key=value
    #[arg(long, value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Zones over which the nodes are spread; 0 gives them no zone
    #[arg(long, default_value_t = 0)]
    pub zones: usize,
    /// Seconds from binding until a pod runs
    #[arg(long, default_value_t = 0.0)]
    pub startup_seconds: f64,
    /// Seconds that containers run in pods that end
    #[arg(long, default_value_t = 0.0)]
    pub run_seconds: f64,
    /// Seconds a lease lasts; it is renewed four times as often
    #[arg(long, default_value_t = 40)]
    pub lease_duration_seconds: u32,
}

impl Args {
    fn config(self) -> anyhow::Result<Config> {
        let kubeconfig = Kubeconfig::load(self.kubeconfig.as_deref()).context("the simulation's kubeconfig")?;
        let client = Client::from_kubeconfig(&kubeconfig, &Overrides::default())?;
        let mut config = Config::new(client.with_user_agent("cox-sim")?, self.nodes)
            .with_capacity("cpu", &self.cpu)
            .with_capacity("memory", &self.memory)
            .with_capacity("pods", &self.pods);
        config.name_prefix = self.name_prefix;
        for label in &self.labels {
            let (key, value) = label.split_once('=').with_context(|| format!("label {label:?} is not key=value"))?;
            config.labels.insert(key.into(), value.into());
        }
        config.zones = self.zones;
        config.startup = Duration::try_from_secs_f64(self.startup_seconds).context("--startup-seconds")?;
        config.run_for = Duration::try_from_secs_f64(self.run_seconds).context("--run-seconds")?;
        config.lease_duration = Duration::from_secs(self.lease_duration_seconds.max(1).into());
        Ok(config)
    }
}

pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let config = args.config()?;
    let stop = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        ran = run(config, stop.clone()) => ran,
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

/// Registers the nodes and simulates them until `stop`. The nodes stay in the API, and become NotReady as real ones would.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let registered = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        registered = nodes::register(&config) => registered?,
    };
    tracing::info!(nodes = registered.len(), "hollow nodes registered");
    tokio::join!(nodes::renew(&config, registered, stop.clone()), pods::run(&config, stop));
    Ok(())
}
