//! `cox controller-manager`: its flags, and what they configure.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use client::kubeconfig::{Kubeconfig, Overrides};
use client::serving::Serving;
use client::{Client, Clock, Durations, Election};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::cidr_set::{Range, parse_list};
use crate::config::{Autoscaling, Config, LoadBalancing, LocalPath, own_metrics};
use crate::manager::{NAME, run};

/// The flags of kube-controller-manager that change something here.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Kubeconfig to reach the API server; without it the in-cluster service account is used
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Controllers to run: '*' for all, 'foo' to add, '-foo' to leave out
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Act only while holding the lease of this name
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub leader_elect: bool,
    #[arg(long, default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    #[arg(long, default_value = NAME)]
    pub leader_elect_resource_name: String,
    #[arg(long, default_value = "15s", value_parser = api::duration::parse)]
    pub leader_elect_lease_duration: Duration,
    #[arg(long, default_value = "10s", value_parser = api::duration::parse)]
    pub leader_elect_renew_deadline: Duration,
    #[arg(long, default_value = "2s", value_parser = api::duration::parse)]
    pub leader_elect_retry_period: Duration,
    /// Pod address ranges of the cluster
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Give each node a pod range
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allocate_node_cidrs: bool,
    #[arg(long)]
    pub node_cidr_mask_size: Option<u8>,
    /// Certificate authority put into every namespace for pods to trust
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// Key that signs service account tokens
    #[arg(long)]
    pub service_account_private_key_file: Option<PathBuf>,
    /// Certificate that signs certificate requests
    #[arg(long)]
    pub cluster_signing_cert_file: Option<PathBuf>,
    #[arg(long)]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// How long signed certificates are good for, unless less is asked for
    #[arg(long, default_value = "8760h", value_parser = api::duration::parse)]
    pub cluster_signing_duration: Duration,
    /// Finished pods kept before the oldest are deleted; 0 keeps all
    #[arg(long, default_value_t = 12500)]
    pub terminated_pod_gc_threshold: usize,
    /// Each controller acts as its own service account
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub use_service_account_credentials: bool,
    /// How long a token made by an earlier version must be unused to be removed
    #[arg(long, default_value = "8760h", value_parser = api::duration::parse)]
    pub legacy_service_account_token_clean_up_period: Duration,
    /// Address of the port for health and metrics
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port for health and metrics; 0 for none
    #[arg(long, default_value_t = 10257)]
    pub secure_port: u16,
    /// Certificate of that port; without it a self-signed one is made
    #[arg(long)]
    pub tls_cert_file: Option<PathBuf>,
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// Enable profiling via web interface host:port/debug/pprof/
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub profiling: bool,
    /// How long a node may be silent before it counts as unhealthy
    #[arg(long, default_value = "50s", value_parser = api::duration::parse)]
    pub node_monitor_grace_period: Duration,
    /// How often autoscalers look at their metrics
    #[arg(long, default_value = "15s", value_parser = api::duration::parse)]
    pub horizontal_pod_autoscaler_sync_period: Duration,
    /// How long the highest recommendation of an autoscaler keeps its target from getting smaller
    #[arg(long, default_value = "5m", value_parser = api::duration::parse)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How far a metric may be from its target before an autoscaler acts, as a share of the target
    #[arg(long, default_value_t = 0.1)]
    pub horizontal_pod_autoscaler_tolerance: f64,
    /// How long after a pod's start its CPU may be that of its start
    #[arg(long, default_value = "5m", value_parser = api::duration::parse)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// How long after its start a pod that turns unready counts as not ready yet
    #[arg(long, default_value = "30s", value_parser = api::duration::parse)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// Requests per second to the API server, 0 for no limit: it has its own
    #[arg(long, default_value_t = 0.0)]
    pub kube_api_qps: f64,
    /// Requests at once after a quiet time, if there is a limit
    #[arg(long, default_value_t = 30)]
    pub kube_api_burst: u32,
    /// Name of the cluster; nothing here depends on it
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Service range of the cluster; kept out of the ranges of nodes
    #[arg(long)]
    pub service_cluster_ip_range: Option<String>,
    /// Leave volumes attached to nodes that are not ready, however long their pods have been gone
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_force_detach_on_timeout: bool,
    /// Serve volume snapshots: make their custom resource definitions unless there are others
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub volume_snapshots: bool,
    /// Accepted: callers are reviewed with the rights of --kubeconfig
    #[arg(long)]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Accepted: callers are reviewed with the rights of --kubeconfig
    #[arg(long)]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's
    #[arg(long)]
    pub master: Option<String>,
    /// As --node-cidr-mask-size, for the IPv4 range
    #[arg(long)]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// As --node-cidr-mask-size, for the IPv6 range
    #[arg(long)]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    #[command(flatten)]
    pub others: api::flags::Others<crate::answers::Unused>,
}

pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let config = args.config().await?;
    let stop = CancellationToken::new();
    client::signals::run(stop.clone(), run(config, stop)).await
}

impl Args {
    /// Of the pieces that nodes get of a range.
    fn mask_size(&self, range: &str) -> Option<u8> {
        let of_family = if range.contains(':') { self.node_cidr_mask_size_ipv6 } else { self.node_cidr_mask_size_ipv4 };
        of_family.or(self.node_cidr_mask_size)
    }

    async fn config(self) -> anyhow::Result<Config> {
        let kubeconfig = match &self.kubeconfig {
            Some(path) => Kubeconfig::load(Some(path))?,
            None => Kubeconfig::in_cluster()?,
        };
        let client =
            Client::from_kubeconfig(&kubeconfig, &Overrides { server: self.master.clone(), ..Overrides::default() })?
                .with_rate_limit(self.kube_api_qps, self.kube_api_burst)
                .traced_remotely(crate::manager::NAME);
        self.config_with(client).await
    }

    /// What the flags say, for this client whatever they say about it.
    pub async fn config_with(self, client: Client) -> anyhow::Result<Config> {
        let read = async |path: &Option<PathBuf>| match path {
            Some(path) => {
                tokio::fs::read_to_string(path).await.map(Some).with_context(|| format!("reading {}", path.display()))
            }
            None => Ok(None),
        };
        let election = self.leader_elect.then(|| Election {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone(),
            identity: identity(),
            durations: Durations {
                lease: self.leader_elect_lease_duration,
                renew_deadline: self.leader_elect_renew_deadline,
                retry_period: self.leader_elect_retry_period,
            },
        });
        let cidrs = self.cluster_cidr.iter().filter(|_| self.allocate_node_cidrs);
        Ok(Config {
            cluster_cidrs: cidrs.map(|text| Range::parse(text, self.mask_size(text))).collect::<Result<_, _>>()?,
            service_cidrs: parse_list(self.service_cluster_ip_range.as_deref().unwrap_or_default())?,
            root_ca: read(&self.root_ca_file).await?,
            signer: read(&self.cluster_signing_cert_file).await?.zip(read(&self.cluster_signing_key_file).await?),
            signing_duration: self.cluster_signing_duration,
            election,
            controllers: self.controllers,
            terminated_pod_gc_threshold: self.terminated_pod_gc_threshold,
            use_service_account_credentials: self.use_service_account_credentials,
            service_account_key: read(&self.service_account_private_key_file).await?,
            legacy_token_clean_up_period: self.legacy_service_account_token_clean_up_period,
            node_monitor_grace_period: self.node_monitor_grace_period,
            autoscaling: Autoscaling {
                sync_period: self.horizontal_pod_autoscaler_sync_period,
                downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
                tolerance: self.horizontal_pod_autoscaler_tolerance,
                cpu_initialization_period: self.horizontal_pod_autoscaler_cpu_initialization_period,
                initial_readiness_delay: self.horizontal_pod_autoscaler_initial_readiness_delay,
            },
            disable_force_detach_on_timeout: self.disable_force_detach_on_timeout,
            volume_snapshots: self.volume_snapshots,
            local_path: LocalPath::default(),
            load_balancing: LoadBalancing::default(),
            serving: (self.secure_port != 0).then(|| Serving {
                bind: (self.bind_address, self.secure_port).into(),
                tls: self.tls_cert_file.clone().zip(self.tls_private_key_file.clone()),
                profiling: self.profiling,
                is_optional: false,
            }),
            metrics: own_metrics(),
            clock: Clock::default(),
            client,
        })
    }
}

/// Unique per instance, telling the host for people.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{:016x}", host.trim(), rand::random::<u64>())
}
