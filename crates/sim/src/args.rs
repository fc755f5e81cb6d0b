//! `cox sim`: flags, and running the simulation.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tokio_util::sync::CancellationToken;

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

/// What to simulate. Start from [`Config::new`] and set what differs.
#[derive(Clone)]
pub struct Config {
    /// May register nodes, renew leases, and write the status of pods.
    pub client: Client,
    pub nodes: usize,
    /// Names are this and a number from 0.
    pub name_prefix: String,
    pub capacity: BTreeMap<String, Quantity>,
    /// On every node, besides host name, architecture and operating system.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Node `i` is in `zone-<i mod zones>`; 0 means no zones.
    pub zones: usize,
    /// From bound to running.
    pub startup: Duration,
    /// How long the containers of pods that end run, unless the pod says otherwise (see `plan`).
    pub run_for: Duration,
    pub lease_duration: Duration,
    /// Where addresses of pods begin; they are taken from the 2^22 addresses after it.
    pub first_pod_address: Ipv4Addr,
    /// The address of node 0.
    pub first_node_address: Ipv4Addr,
}

impl Config {
    /// `nodes` large nodes whose pods start at once.
    pub fn new(client: Client, nodes: usize) -> Self {
        let capacity = [("cpu", "32"), ("memory", "256Gi"), ("pods", "110"), ("ephemeral-storage", "1Ti")];
        Self {
            client,
            nodes,
            name_prefix: "hollow-".into(),
            capacity: capacity.map(|(name, amount)| (name.to_owned(), Quantity(amount.into()))).into(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            zones: 0,
            startup: Duration::ZERO,
            run_for: Duration::ZERO,
            lease_duration: Duration::from_secs(40),
            first_pod_address: Ipv4Addr::new(10, 64, 0, 0),
            first_node_address: Ipv4Addr::new(172, 16, 0, 1),
        }
    }

    /// Changes one kind of capacity.
    pub fn with_capacity(mut self, resource: &str, amount: &str) -> Self {
        self.capacity.insert(resource.into(), Quantity(amount.into()));
        self
    }
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
