//! `cox proxy`: upstream's flags and configuration file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use client::kubeconfig::{Kubeconfig, Overrides};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{Config, Mode};

const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;

#[derive(clap::Args, Debug, Default)]
pub struct Args {
    /// A KubeProxyConfiguration file; flags given beside it win
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The address of the API server, over the one in the kubeconfig
    #[arg(long)]
    master: Option<String>,
    /// The name of this node, if it is not the host name
    #[arg(long)]
    hostname_override: Option<String>,
    /// The ranges of pods, separated by commas
    #[arg(long)]
    cluster_cidr: Option<String>,
    /// The ranges of services, separated by commas: unused addresses in them are refused on the node
    #[arg(long)]
    service_cluster_ip_range: Option<String>,
    /// nftables or iptables
    #[arg(long)]
    proxy_mode: Option<String>,
    /// The ranges of node addresses that answer node ports
    #[arg(long, value_delimiter = ',')]
    nodeport_addresses: Option<Vec<String>>,
    /// Masquerade all traffic to cluster IPs
    #[arg(long)]
    masquerade_all: bool,
    #[arg(long)]
    iptables_masquerade_bit: Option<u8>,
    #[arg(long)]
    iptables_localhost_nodeports: Option<bool>,
    /// Where /healthz answers; empty for nowhere
    #[arg(long)]
    healthz_bind_address: Option<String>,
    /// Where /metrics answers; empty for nowhere
    #[arg(long)]
    metrics_bind_address: Option<String>,
    /// Remove the rules of an earlier proxy and exit
    #[arg(long)]
    cleanup: bool,
}

/// The part of KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) that this proxy reads.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default)]
struct File {
    kind: String,
    client_connection: ClientConnection,
    hostname_override: String,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: String,
    mode: String,
    node_port_addresses: Vec<String>,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    iptables: Backend,
    nftables: Backend,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct ClientConnection {
    kubeconfig: String,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default)]
struct Backend {
    masquerade_all: bool,
    masquerade_bit: Option<u8>,
    localhost_node_ports: Option<bool>,
}

/// `cox proxy`.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    if args.cleanup {
        return crate::cleanup().await.map_err(anyhow::Error::msg);
    }
    let config = args.into_config()?;
    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let running = crate::run(config, stop);
    tokio::pin!(running);
    loop {
        tokio::select! {
            result = &mut running => return result,
            _ = terminate.recv() => on_signal.cancel(),
            _ = tokio::signal::ctrl_c() => on_signal.cancel(),
        }
    }
}

impl Args {
    fn into_config(self) -> anyhow::Result<Config> {
        let file = match &self.config {
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
                parse_file(&text).with_context(|| format!("failed to load {}", path.display()))?
            }
            None => File::default(),
        };
        let from_file = Some(&file.client_connection.kubeconfig).filter(|path| !path.is_empty()).map(PathBuf::from);
        let kubeconfig = Kubeconfig::load(self.kubeconfig.clone().or(from_file).as_deref())?;
        let overrides = Overrides { server: self.master.clone(), ..Overrides::default() };
        let client = client::Client::from_kubeconfig(&kubeconfig, &overrides)?.traced_remotely("kube-proxy");
        self.merge(file, client)
    }

    fn merge(self, file: File, client: client::Client) -> anyhow::Result<Config> {
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        let name = self.hostname_override.or(non_empty(file.hostname_override));
        let name = match name {
            Some(name) => name,
            None => std::fs::read_to_string("/proc/sys/kernel/hostname").context("failed to read the host name")?,
        };
        let list = |text: String| -> Vec<String> {
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
        };
        let mut config = Config::new(client, name.trim().to_lowercase());
        config.cluster_cidrs = list(self.cluster_cidr.unwrap_or(file.cluster_cidr));
        config.service_cidrs = list(self.service_cluster_ip_range.unwrap_or_default());
        for cidr in config.cluster_cidrs.iter().chain(&config.service_cidrs) {
            let addr = cidr.split_once('/').and_then(|(addr, _)| addr.parse::<IpAddr>().ok());
            if addr.is_none() {
                bail!("invalid CIDR {cidr:?}");
            }
        }
        config.mode = match self.proxy_mode.unwrap_or(file.mode).as_str() {
            "" | "nftables" => Mode::Nftables,
            "iptables" => Mode::Iptables,
            other => bail!("unsupported proxy mode {other:?}: use nftables or iptables"),
        };
        config.node_port_addresses = self.nodeport_addresses.unwrap_or(file.node_port_addresses);
        config.node_port_addresses.retain(|range| range != "primary");
        config.masquerade_all = self.masquerade_all || file.iptables.masquerade_all || file.nftables.masquerade_all;
        let bit = self.iptables_masquerade_bit.or(file.nftables.masquerade_bit).or(file.iptables.masquerade_bit);
        config.masquerade_bit = bit.unwrap_or(config.masquerade_bit);
        if config.masquerade_bit > 31 {
            bail!(
                "iptables-masquerade-bit: Invalid value: {}: must be within the range [0, 31]",
                config.masquerade_bit
            );
        }
        let localhost = self.iptables_localhost_nodeports.or(file.iptables.localhost_node_ports);
        config.localhost_node_ports = localhost.unwrap_or(config.localhost_node_ports);
        let healthz = self.healthz_bind_address.or(file.healthz_bind_address);
        config.healthz_bind_address = bind_address(healthz, (Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT).into())?;
        let metrics = self.metrics_bind_address.or(file.metrics_bind_address);
        config.metrics_bind_address = bind_address(metrics, (Ipv4Addr::LOCALHOST, METRICS_PORT).into())?;
        Ok(config)
    }
}

fn parse_file(text: &str) -> anyhow::Result<File> {
    let file: File = yaml_serde::from_str(text)?;
    if !matches!(file.kind.as_str(), "" | "KubeProxyConfiguration") {
        bail!("no kind {:?} is registered", file.kind);
    }
    Ok(file)
}

/// An address with or without a port; empty for none.
fn bind_address(text: Option<String>, default: SocketAddr) -> anyhow::Result<Option<SocketAddr>> {
    let Some(text) = text else { return Ok(Some(default)) };
    match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        _ if text.is_empty() => Ok(None),
        (Ok(address), _) => Ok(Some(address)),
        (_, Ok(addr)) => Ok(Some((addr, default.port()).into())),
        _ => bail!("invalid address {text:?}"),
    }
}
