//! `cox scheduler`: upstream's flags, and what they mean.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::serving::Serving;
use client::{Client, Durations, Election};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::config::{Configuration, GoDuration};
use crate::run::{Config, run};

/// Assign pods to nodes
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Configuration file (KubeSchedulerConfiguration, kubescheduler.config.k8s.io/v1)
    #[arg(long)]
    config: Option<PathBuf>,
    /// Legacy policy file: predicates, priorities and extenders, mapped onto plug-ins
    #[arg(long, conflicts_with = "config")]
    policy_config_file: Option<PathBuf>,
    /// Kubeconfig of the API server and of the scheduler's identity
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the kubeconfig's
    #[arg(long)]
    master: Option<String>,
    /// Without a configuration file: pods with another schedulerName are left for other schedulers
    #[arg(long, default_value = "default-scheduler")]
    scheduler_name: String,
    /// Address to serve health and metrics on
    #[arg(long, default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Port to serve health and metrics on with HTTPS; 0 for none
    #[arg(long, default_value_t = 10259)]
    secure_port: u16,
    /// Certificate to serve with; without one it signs its own
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Enable profiling via web interface host:port/debug/pprof/
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    profiling: Option<bool>,
    /// Wait to be elected before deciding anything, so that several can stand by
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: Option<bool>,
    #[arg(long)]
    leader_elect_lease_duration: Option<GoDuration>,
    #[arg(long)]
    leader_elect_renew_deadline: Option<GoDuration>,
    #[arg(long)]
    leader_elect_retry_period: Option<GoDuration>,
    /// The kind of lock; leases are the only one there is
    #[arg(long, default_value = "leases", value_parser = ["leases"])]
    leader_elect_resource_lock: String,
    #[arg(long)]
    leader_elect_resource_name: Option<String>,
    #[arg(long)]
    leader_elect_resource_namespace: Option<String>,
    /// How long a pod may be unschedulable before it is tried again although nothing happened that could help
    #[arg(long, default_value = "5m")]
    pod_max_in_unschedulable_pods_duration: GoDuration,
    /// Kubeconfig of the API server that is asked who reads metrics; without one it is the scheduler's
    #[arg(long)]
    authentication_kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the API server that is asked who may read metrics; it must be the same as for authentication
    #[arg(long)]
    authorization_kubeconfig: Option<PathBuf>,
    /// Requests per second; without it there is no limit but the server's
    #[arg(long)]
    kube_api_qps: Option<f64>,
    /// Requests at once after a quiet time
    #[arg(long, default_value_t = 100)]
    kube_api_burst: u32,
    #[command(flatten)]
    others: api::flags::Others<crate::answers::Unused>,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    let config = args.config()?;
    let stop = CancellationToken::new();
    client::signals::run(stop.clone(), run(config, stop)).await
}

impl Args {
    fn config(self) -> Result<Config> {
        let configuration = match (&self.config, &self.policy_config_file) {
            (Some(path), _) => Configuration::read(path)?,
            (None, Some(path)) => Configuration::read_policy(path)?,
            (None, None) => Configuration::named(&self.scheduler_name),
        };
        let named = &configuration.client_connection.kubeconfig;
        let path = self.kubeconfig.clone().or_else(|| (!named.is_empty()).then(|| named.into()));
        let client = Client::from_flags(path.as_deref(), self.master.clone()).context("the scheduler's kubeconfig")?;
        let connection = &configuration.client_connection;
        let client = match (self.kube_api_qps, connection.qps > 0.0) {
            (Some(qps), _) => client.with_rate_limit(qps, self.kube_api_burst),
            (None, true) => client.with_rate_limit(connection.qps, connection.burst()),
            (None, false) => client,
        };
        let client = client.traced_remotely(crate::scheduler::ACTOR);
        let election = self.election(&configuration)?;
        let reviewer = self.reviewer()?;
        let serving = (self.secure_port != 0).then(|| Serving {
            bind: SocketAddr::new(self.bind_address, self.secure_port),
            tls: self.tls_cert_file.clone().zip(self.tls_private_key_file.clone()),
            profiling: self.profiling.unwrap_or(configuration.enable_profiling),
            is_optional: false,
        });
        let max_wait = self.pod_max_in_unschedulable_pods_duration.0;
        Ok(Config { configuration, election, serving, reviewer, max_wait, ..Config::new(client) })
    }

    /// Who is asked about callers, if it is not the API server that the scheduler works for.
    fn reviewer(&self) -> Result<Option<Client>> {
        let paths = [&self.authentication_kubeconfig, &self.authorization_kubeconfig];
        let Some(path) = paths.into_iter().flatten().next() else { return Ok(None) };
        if paths.into_iter().flatten().any(|other| other != path) {
            bail!("authentication and authorization by different API servers is not supported");
        }
        Ok(Some(Client::from_flags(Some(path), None).with_context(|| format!("{}", path.display()))?))
    }

    /// Flags win over the file; both may leave it out.
    fn election(&self, configuration: &Configuration) -> Result<Option<Election>> {
        let file = &configuration.leader_election;
        if !self.leader_elect.or(file.leader_elect).unwrap_or(true) {
            return Ok(None);
        }
        let or = |flag: Option<GoDuration>, file: GoDuration| -> Duration { flag.unwrap_or(file).0 };
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host's name")?;
        Ok(Some(Election {
            namespace: self.leader_elect_resource_namespace.clone().unwrap_or_else(|| file.resource_namespace.clone()),
            name: self.leader_elect_resource_name.clone().unwrap_or_else(|| file.resource_name.clone()),
            identity: format!("{}_{}", hostname.trim(), uuid::Uuid::new_v4()),
            durations: Durations {
                lease: or(self.leader_elect_lease_duration, file.lease_duration),
                renew_deadline: or(self.leader_elect_renew_deadline, file.renew_deadline),
                retry_period: or(self.leader_elect_retry_period, file.retry_period),
            },
        }))
    }
}
