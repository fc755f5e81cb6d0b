//! The service proxy: a Service's addresses lead to its endpoints.
//!
//! Flow: informers on Services and EndpointSlices -> [`services`] (what each port leads to, from this node) ->
//! a [`backend`], [`nftables`] or [`iptables`] -> the difference to what is programmed -> one transaction.
//! Invariants: a change costs in proportion to the change; with nftables a packet costs the same however many services there
//! are; nothing outside the table `cox-proxy`, or with iptables the chains `KUBE-…`, is touched.
//! Not here: endpoints themselves (the EndpointSlice controller), and cluster IPs (the API server).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod args;
mod backend;
mod conntrack;
pub mod endpoints;
mod error;
mod health;
mod iptables;
mod metrics;
mod nftables;
mod own_health;
mod runner;
mod services;
mod settings;
mod sysctl;
mod tool;

pub use args::{Args, main};
pub use error::Error;
pub use runner::run;
pub use sysctl::Conntrack;

use std::net::SocketAddr;
use std::time::Duration;

/// How packets are steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Nftables,
    /// Slower with every service, for hosts whose other tools expect it.
    Iptables,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }

    /// The metric that counts failures.
    fn failures(self) -> &'static str {
        match self {
            Self::Nftables => "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            Self::Iptables => "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        }
    }
}

/// How a pod's traffic is told from that of others (`--detect-local-mode`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DetectLocal {
    /// By the ranges of all pods.
    #[default]
    ClusterCidr,
    /// By the ranges of the pods of this node.
    NodeCidr,
    /// By the bridge that it comes from.
    BridgeInterface(String),
    /// By how the name of the interface that it comes from begins.
    InterfaceNamePrefix(String),
}

/// What the proxy of one node needs to know.
#[derive(Clone)]
pub struct Config {
    pub client: client::Client,
    pub node_name: String,
    pub mode: Mode,
    /// The pods' ranges (`--cluster-cidr`): traffic to a cluster IP from elsewhere is masqueraded.
    pub cluster_cidrs: Vec<String>,
    /// The services' ranges: addresses in them that no service has are refused here and never leave the node.
    pub service_cidrs: Vec<String>,
    pub detect_local: DetectLocal,
    /// Node ports answer on addresses in these ranges only; empty for all addresses of the node, `primary` for those that
    /// its Node object names.
    pub node_port_addresses: Vec<String>,
    /// Node ports answer on 127.0.0.1 too.
    pub localhost_node_ports: bool,
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading (0 to 31).
    pub masquerade_bit: u8,
    /// `/healthz` and `/livez` of the proxy itself.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `/metrics`, `/metrics/slis`, `/healthz` and `/proxyMode`.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Figures of other parts of the node's network, which `/metrics` shows as well.
    pub more_metrics: Option<client::metrics::Metrics>,
    /// Everything is programmed afresh this often, in case somebody else changed it.
    pub resync_period: Duration,
    /// Changes are gathered for this long before they are programmed.
    pub min_sync_period: Duration,
    /// What the kernel is told about tracking connections.
    pub conntrack: Conntrack,
}

impl Config {
    pub fn new(client: client::Client, node_name: impl Into<String>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            mode: Mode::default(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            detect_local: DetectLocal::default(),
            node_port_addresses: Vec::new(),
            localhost_node_ports: true,
            masquerade_all: false,
            masquerade_bit: 14,
            healthz_bind_address: None,
            metrics_bind_address: None,
            more_metrics: None,
            resync_period: Duration::from_secs(3600),
            min_sync_period: Duration::ZERO,
            // How many connections a host tracks is for the host to say, unless we are told.
            conntrack: Conntrack { max_per_core: None, ..Conntrack::standard() },
        }
    }
}

/// Removes everything a proxy of ours has programmed on this host.
pub async fn cleanup() -> Result<(), Error> {
    let removed = nftables::remove().await;
    iptables::remove().await.and(removed)
}
