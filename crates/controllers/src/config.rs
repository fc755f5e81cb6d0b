//! What the manager is told, by flags or by `cox up`, and each controller may read.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use client::metrics::Metrics;
use client::serving::Serving;
use client::{Client, Clock, Election};

use crate::cidr_set::{Range, parse_list};

/// How long signed certificates are good for, if nobody says otherwise.
const SIGNING_DURATION: Duration = Duration::from_secs(8760 * 3600);

/// What the controllers need; `cox up` fills it in-process.
#[derive(Clone)]
pub struct Config {
    /// Reaches the API server. In-process, each controller becomes its own service account on it.
    pub client: Client,
    /// As `--controllers`.
    pub controllers: Vec<String>,
    /// Pod ranges of the cluster, one per address family; empty leaves nodes without.
    pub cluster_cidrs: Vec<Range>,
    /// Ranges of services: no node gets a piece of the cluster's ranges that overlaps them.
    pub service_cidrs: Vec<String>,
    /// PEM of the authority that signed the API server's certificate.
    pub root_ca: Option<String>,
    /// `None` runs at once: there is no other instance.
    pub election: Option<Election>,
    /// PEM certificate and key that sign certificate requests.
    pub signer: Option<(String, String)>,
    /// How long what it signs is good for, unless less is asked for.
    pub signing_duration: Duration,
    pub terminated_pod_gc_threshold: usize,
    /// Over HTTPS, each controller asks for a token of its own service account. In-process it always acts as that.
    pub use_service_account_credentials: bool,
    /// PEM of the key that signs tokens kept in Secrets.
    pub service_account_key: Option<String>,
    pub legacy_token_clean_up_period: Duration,
    /// How long a node may be silent before it counts as unhealthy.
    pub node_monitor_grace_period: Duration,
    pub autoscaling: Autoscaling,
    /// As `--disable-force-detach-on-timeout`.
    pub disable_force_detach_on_timeout: bool,
    /// As `--volume-snapshots`.
    pub volume_snapshots: bool,
    /// Where volumes of the built-in provisioner are.
    pub local_path: LocalPath,
    /// What load balancers must leave to others, if they are given out here.
    pub load_balancing: LoadBalancing,
    /// The port for health and metrics.
    pub serving: Option<Serving>,
    pub metrics: Metrics,
    pub clock: Clock,
}

impl Config {
    /// Everything on, no election, nothing that needs files.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            controllers: vec!["*".into()],
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            root_ca: None,
            election: None,
            signer: None,
            signing_duration: SIGNING_DURATION,
            terminated_pod_gc_threshold: 12500,
            use_service_account_credentials: false,
            service_account_key: None,
            legacy_token_clean_up_period: Duration::from_secs(8760 * 3600),
            node_monitor_grace_period: Duration::from_secs(50),
            autoscaling: Autoscaling::default(),
            disable_force_detach_on_timeout: false,
            volume_snapshots: false,
            local_path: LocalPath::default(),
            load_balancing: LoadBalancing::default(),
            serving: None,
            metrics: own_metrics(),
            clock: Clock::default(),
        }
    }

    /// Parses `10.42.0.0/16,fd00:42::/56` into ranges that nodes get pieces of.
    pub fn with_cluster_cidr(mut self, text: &str) -> anyhow::Result<Self> {
        let texts = text.split(',').filter(|text| !text.is_empty());
        self.cluster_cidrs = texts.map(|text| Range::parse(text, None)).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Parses `10.43.0.0/16,fd00:43::/112`, which is kept out of the ranges of nodes.
    pub fn with_service_cidr(mut self, text: &str) -> anyhow::Result<Self> {
        self.service_cidrs = parse_list(text)?;
        Ok(self)
    }
}

/// Before anything is counted.
pub(crate) fn own_metrics() -> Metrics {
    Metrics::new().with_process(api::version::GIT).with_features(api::features::all())
}

/// As the flags of the controller manager say.
#[derive(Debug, Clone)]
pub struct Autoscaling {
    /// How often metrics are looked at.
    pub sync_period: Duration,
    /// For how long a higher recommendation holds a target that its own rules do not say.
    pub downscale_stabilization: Duration,
    /// How far the ratio of a metric to its target may be from 1.
    pub tolerance: f64,
    pub cpu_initialization_period: Duration,
    pub initial_readiness_delay: Duration,
}

impl Default for Autoscaling {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(5 * 60),
            tolerance: 0.1,
            cpu_initialization_period: Duration::from_secs(5 * 60),
            initial_readiness_delay: Duration::from_secs(30),
        }
    }
}

/// What load balancers must leave to others.
#[derive(Debug, Clone)]
pub struct LoadBalancing {
    /// Ports of the nodes' addresses at which the nodes themselves answer.
    pub reserved_ports: BTreeSet<u16>,
    /// Ports of Ingresses, without and with TLS, if the cluster's gateway serves them at an address of a node.
    pub gateway_ports: Option<(u16, u16)>,
    /// The controller that GatewayClasses of that gateway name: their Gateways have ports at the same address.
    pub gateway_controller: &'static str,
}

impl Default for LoadBalancing {
    /// The ports of an API server and a kubelet.
    fn default() -> Self {
        Self { reserved_ports: [6443, 10250].into(), gateway_ports: None, gateway_controller: "" }
    }
}

/// Where this binary kept folders of volumes before it had a driver.
#[derive(Debug, Clone)]
pub struct LocalPath {
    /// On the node that a volume is on.
    pub root: PathBuf,
    /// Whether the manager removes the folders of deleted volumes: only if it shares the nodes' file system.
    pub removes: bool,
}

impl Default for LocalPath {
    fn default() -> Self {
        Self { root: "/var/lib/cox/local-path".into(), removes: false }
    }
}
