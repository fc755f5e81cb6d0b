//! `cox proxy`: upstream's flags and configuration file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use api::cidr::Cidr;
use client::Client;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{Config, Conntrack, DetectLocal, Mode};

const HEALTHZ_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;
/// Upstream's defaults.
const QPS: f64 = 5.0;
const BURST: u32 = 10;
const OOM_SCORE: i32 = -999;

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
    /// What tells pods' traffic from other: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
    #[arg(long)]
    detect_local_mode: Option<String>,
    /// The bridge of BridgeInterface
    #[arg(long)]
    pod_bridge_interface: Option<String>,
    /// The beginning of names of InterfaceNamePrefix
    #[arg(long)]
    pod_interface_name_prefix: Option<String>,
    /// The ranges of node addresses that answer node ports; primary for those of the Node object
    #[arg(long, value_delimiter = ',')]
    nodeport_addresses: Option<Vec<String>>,
    /// Masquerade all traffic to cluster IPs
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    masquerade_all: bool,
    #[arg(long)]
    iptables_masquerade_bit: Option<u8>,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    iptables_localhost_nodeports: Option<bool>,
    /// Where /healthz answers; empty for nowhere
    #[arg(long)]
    healthz_bind_address: Option<String>,
    /// Where /metrics answers; empty for nowhere
    #[arg(long)]
    metrics_bind_address: Option<String>,
    /// Everything is programmed afresh this often
    #[arg(long, value_parser = api::duration::parse)]
    iptables_sync_period: Option<Duration>,
    /// Changes are gathered for this long
    #[arg(long, value_parser = api::duration::parse)]
    iptables_min_sync_period: Option<Duration>,
    /// Tracked connections per processor; 0 to leave the limit as it is
    #[arg(long)]
    conntrack_max_per_core: Option<u32>,
    /// Tracked connections at least
    #[arg(long)]
    conntrack_min: Option<u32>,
    /// How long an idle TCP connection is tracked; 0 to leave it as it is
    #[arg(long, value_parser = api::duration::parse)]
    conntrack_tcp_timeout_established: Option<Duration>,
    /// How long a half-closed TCP connection is tracked
    #[arg(long, value_parser = api::duration::parse)]
    conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// Track TCP packets outside of their window too
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    conntrack_tcp_be_liberal: bool,
    /// How long a UDP flow without answers is tracked
    #[arg(long, value_parser = api::duration::parse)]
    conntrack_udp_timeout: Option<Duration>,
    /// How long a UDP flow with answers is tracked
    #[arg(long, value_parser = api::duration::parse)]
    conntrack_udp_timeout_stream: Option<Duration>,
    /// How willingly the kernel ends this process when memory is short
    #[arg(long, allow_hyphen_values = true)]
    oom_score_adj: Option<i32>,
    /// Requests per second to the API server
    #[arg(long)]
    kube_api_qps: Option<f64>,
    /// Requests at once to the API server
    #[arg(long)]
    kube_api_burst: Option<u32>,
    /// Remove the rules of an earlier proxy and exit
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    cleanup: bool,
    #[command(flatten)]
    others: api::flags::Others<crate::answers::Unused>,
}

/// The part of KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) that this proxy reads; `answers` has the rest.
#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct File {
    api_version: String,
    kind: String,
    client_connection: ClientConnection,
    hostname_override: String,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: String,
    mode: String,
    detect_local_mode: String,
    detect_local: DetectLocalFile,
    node_port_addresses: Vec<String>,
    conntrack: ConntrackFile,
    oom_score_adj: Option<i32>,
    healthz_bind_address: String,
    metrics_bind_address: String,
    iptables: Backend,
    nftables: Backend,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, deny_unknown_fields)]
struct ClientConnection {
    kubeconfig: String,
    qps: Option<f64>,
    burst: Option<u32>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct DetectLocalFile {
    bridge_interface: String,
    interface_name_prefix: String,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ConntrackFile {
    max_per_core: Option<u32>,
    min: Option<u32>,
    tcp_established_timeout: Option<String>,
    tcp_close_wait_timeout: Option<String>,
    tcp_be_liberal: bool,
    udp_timeout: Option<String>,
    udp_stream_timeout: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Backend {
    masquerade_all: bool,
    masquerade_bit: Option<u8>,
    localhost_node_ports: Option<bool>,
    sync_period: Option<String>,
    min_sync_period: Option<String>,
}

/// `cox proxy`.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    if args.cleanup {
        return Ok(crate::cleanup().await?);
    }
    let config = args.into_config()?;
    let stop = CancellationToken::new();
    client::signals::run(stop.clone(), crate::run(config, stop)).await
}

impl Config {
    /// What a `KubeProxyConfiguration` says, for this client and node whatever it says about them.
    pub fn configured(client: client::Client, node_name: &str, configuration: &str) -> anyhow::Result<Config> {
        let flags = Args { hostname_override: Some(node_name.to_owned()), ..Args::default() };
        flags.merge(parse_file(configuration)?, client)
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
        let kubeconfig = self.kubeconfig.clone().or(from_file);
        let client = Client::from_flags(kubeconfig.as_deref(), self.master.clone())?.traced_remotely("kube-proxy");
        let (qps, burst) = self.rate(&file.client_connection);
        let client = client.with_rate_limit(qps, burst);
        let score = self.oom_score_adj.or(file.oom_score_adj).unwrap_or(OOM_SCORE);
        if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
            tracing::warn!(score, %error, "cannot set oom_score_adj");
        }
        self.merge(file, client)
    }

    /// Requests per second and at once. kubeadm's files have zeros where they say nothing.
    fn rate(&self, connection: &ClientConnection) -> (f64, u32) {
        let qps = self.kube_api_qps.or(connection.qps).filter(|qps| *qps != 0.0);
        let burst = self.kube_api_burst.or(connection.burst).filter(|burst| *burst != 0);
        (qps.unwrap_or(QPS), burst.unwrap_or(BURST))
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
            if cidr.parse::<Cidr>().is_err() {
                bail!("invalid CIDR {cidr:?}");
            }
        }
        config.mode = match self.proxy_mode.unwrap_or(file.mode).as_str() {
            "" | "nftables" => Mode::Nftables,
            "iptables" => Mode::Iptables,
            other => bail!("unsupported proxy mode {other:?}: use nftables or iptables"),
        };
        let bridge = self.pod_bridge_interface.unwrap_or(file.detect_local.bridge_interface);
        let prefix = self.pod_interface_name_prefix.unwrap_or(file.detect_local.interface_name_prefix);
        config.detect_local = match self.detect_local_mode.unwrap_or(file.detect_local_mode).as_str() {
            "" | "ClusterCIDR" => DetectLocal::ClusterCidr,
            "NodeCIDR" => DetectLocal::NodeCidr,
            "BridgeInterface" if is_interface(&bridge) => DetectLocal::BridgeInterface(bridge),
            "InterfaceNamePrefix" if is_interface(&prefix) => DetectLocal::InterfaceNamePrefix(prefix),
            mode @ ("BridgeInterface" | "InterfaceNamePrefix") => bail!("{mode} needs the name of an interface"),
            other => bail!("unsupported mode to detect local traffic: {other:?}"),
        };
        let standard = Conntrack::standard();
        config.conntrack = Conntrack {
            max_per_core: self.conntrack_max_per_core.or(file.conntrack.max_per_core).or(standard.max_per_core),
            min: self.conntrack_min.or(file.conntrack.min).unwrap_or(standard.min),
            tcp_established_timeout: either(
                self.conntrack_tcp_timeout_established,
                file.conntrack.tcp_established_timeout,
            )?
            .or(standard.tcp_established_timeout),
            tcp_close_wait_timeout: either(
                self.conntrack_tcp_timeout_close_wait,
                file.conntrack.tcp_close_wait_timeout,
            )?
            .or(standard.tcp_close_wait_timeout),
            tcp_be_liberal: self.conntrack_tcp_be_liberal || file.conntrack.tcp_be_liberal,
            udp_timeout: either(self.conntrack_udp_timeout, file.conntrack.udp_timeout)?,
            udp_stream_timeout: either(self.conntrack_udp_timeout_stream, file.conntrack.udp_stream_timeout)?,
        };
        let (own, other) = match config.mode {
            Mode::Nftables => (&file.nftables, &file.iptables),
            Mode::Iptables => (&file.iptables, &file.nftables),
        };
        let resync = either(self.iptables_sync_period, own.sync_period.clone())?;
        config.resync_period = resync.filter(|period| !period.is_zero()).unwrap_or(config.resync_period);
        let gather = either(self.iptables_min_sync_period, own.min_sync_period.clone())?;
        config.min_sync_period = gather.unwrap_or(config.min_sync_period);
        config.node_port_addresses = self.nodeport_addresses.unwrap_or(file.node_port_addresses);
        // Files for upstream's usual mode, which is not ours, say it of iptables.
        config.masquerade_all = self.masquerade_all || own.masquerade_all || other.masquerade_all;
        let bit = self.iptables_masquerade_bit.or(own.masquerade_bit).or(other.masquerade_bit);
        config.masquerade_bit = bit.unwrap_or(config.masquerade_bit);
        if config.masquerade_bit > 31 {
            bail!(
                "iptables-masquerade-bit: Invalid value: {}: must be within the range [0, 31]",
                config.masquerade_bit
            );
        }
        let localhost = self.iptables_localhost_nodeports.or(file.iptables.localhost_node_ports);
        config.localhost_node_ports = localhost.unwrap_or(config.localhost_node_ports);
        // Empty is "none" on the command line, and not said in a file.
        let healthz = self.healthz_bind_address.or(non_empty(file.healthz_bind_address));
        config.healthz_bind_address = bind_address(healthz, (Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT).into())?;
        let metrics = self.metrics_bind_address.or(non_empty(file.metrics_bind_address));
        config.metrics_bind_address = bind_address(metrics, (Ipv4Addr::LOCALHOST, METRICS_PORT).into())?;
        Ok(config)
    }
}

pub(crate) fn parse_file(text: &str) -> anyhow::Result<File> {
    let mut value: serde_json::Value = yaml_serde::from_str(text)?;
    if value.is_null() {
        return Ok(File::default());
    }
    api::flags::settle(&mut value, crate::answers::FIELDS).map_err(anyhow::Error::msg)?;
    let file: File = serde_json::from_value(value)?;
    if !matches!(file.kind.as_str(), "" | "KubeProxyConfiguration")
        || !matches!(file.api_version.as_str(), "" | "kubeproxy.config.k8s.io/v1alpha1")
    {
        bail!("no kind {:?} is registered for version {:?}", file.kind, file.api_version);
    }
    Ok(file)
}

/// The flag's, or else the file's.
fn either(flag: Option<Duration>, file: Option<String>) -> anyhow::Result<Option<Duration>> {
    let file = file.filter(|text| !text.is_empty()).map(|text| api::duration::parse(&text)).transpose();
    Ok(flag.or(file.map_err(anyhow::Error::msg)?))
}

/// It becomes part of a rule.
fn is_interface(name: &str) -> bool {
    (1..16).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> client::Client {
        let handler: client::Handler = std::sync::Arc::new(|_| Box::pin(async { unreachable!("nobody asks") }));
        client::Client::in_process(handler, api::UserInfo::default())
    }

    fn merged(flags: &[&str], file: &str) -> anyhow::Result<Config> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::try_parse_from([&["proxy", "--hostname-override=A"], flags].concat())?;
        line.args.merge(parse_file(file)?, client())
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "kind: KubeProxyConfiguration\nmode: iptables\nclusterCIDR: 10.1.0.0/16\ndetectLocalMode: BridgeInterface\n\
            detectLocal: {bridgeInterface: br0}\nnodePortAddresses: [primary]\niptables: {syncPeriod: 1m0s, minSyncPeriod: 1s}\n\
            conntrack: {maxPerCore: 7, tcpEstablishedTimeout: 2h0m0s, udpTimeout: 0s}\nmetricsBindAddress: 127.0.0.2\n";
        let config = merged(&[], file).unwrap();
        assert_eq!((config.node_name.as_str(), config.mode), ("a", Mode::Iptables));
        assert_eq!(config.detect_local, DetectLocal::BridgeInterface("br0".into()));
        assert_eq!(config.node_port_addresses, ["primary"]);
        let seconds = Duration::from_secs;
        assert_eq!((config.resync_period, config.min_sync_period), (seconds(60), seconds(1)));
        assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (Some(7), 128 * 1024));
        assert_eq!(config.conntrack.tcp_established_timeout, Some(seconds(7200)));
        assert_eq!(config.conntrack.tcp_close_wait_timeout, Some(seconds(3600)));
        assert_eq!(config.metrics_bind_address, Some(([127, 0, 0, 2], METRICS_PORT).into()));
        let flags =
            ["--proxy-mode=nftables", "--detect-local-mode=NodeCIDR", "--conntrack-max-per-core=9", "--cluster-cidr="];
        let config = merged(&flags, file).unwrap();
        assert_eq!((config.mode, config.detect_local), (Mode::Nftables, DetectLocal::NodeCidr));
        assert_eq!((config.conntrack.max_per_core, config.cluster_cidrs.len()), (Some(9), 0));
        // The file's periods are the other mode's.
        assert_eq!(config.min_sync_period, Duration::ZERO);
    }

    #[test]
    fn a_rate_of_zero_is_the_default() {
        for (file, expected) in [
            ("", (QPS, BURST)),
            ("clientConnection: {burst: 0, qps: 0}", (QPS, BURST)),
            ("clientConnection: {burst: 200, qps: 100}", (100.0, 200)),
        ] {
            let file = parse_file(file).unwrap();
            assert_eq!(Args::default().rate(&file.client_connection), expected);
        }
        let args = Args { kube_api_qps: Some(7.5), ..Args::default() };
        assert_eq!(args.rate(&ClientConnection { qps: Some(100.0), ..Default::default() }), (7.5, BURST));
    }

    #[test]
    fn the_mode_in_use_says_which_bit_marks() {
        let both = "iptables: {masqueradeBit: 3}\nnftables: {masqueradeBit: 4}\n";
        for (mode, file, bit) in [
            ("iptables", both, 3),
            ("nftables", both, 4),
            ("nftables", "iptables: {masqueradeBit: 3}\n", 3),
            ("iptables", "", 14),
        ] {
            let config = merged(&[&format!("--proxy-mode={mode}")], file).unwrap();
            assert_eq!(config.masquerade_bit, bit, "{mode} {file:?}");
        }
    }

    #[test]
    fn an_empty_address_is_the_default_in_a_file_and_none_as_a_flag() {
        let healthz = Some(([0, 0, 0, 0], HEALTHZ_PORT).into());
        let metrics = Some(([127, 0, 0, 1], METRICS_PORT).into());
        // As kubeadm writes it.
        let file = "kind: KubeProxyConfiguration\nhealthzBindAddress: \"\"\nmetricsBindAddress: \"\"\n";
        for file in ["", file] {
            let config = merged(&[], file).unwrap();
            assert_eq!((config.healthz_bind_address, config.metrics_bind_address), (healthz, metrics), "{file}");
            let config = merged(&["--healthz-bind-address=", "--metrics-bind-address="], file).unwrap();
            assert_eq!((config.healthz_bind_address, config.metrics_bind_address), (None, None), "{file}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (flags, file) in [
            (&["--proxy-mode=ipvs"][..], ""),
            (&["--cluster-cidr=10.0.0.0"], ""),
            (&["--detect-local-mode=BridgeInterface"], ""),
            (&["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=a b"], ""),
            (&["--detect-local-mode=Guess"], ""),
            (&["--iptables-sync-period=soon"], ""),
            (&["--iptables-masquerade-bit=32"], ""),
            (&[], "kind: Pod"),
            (&[], "conntrack: {udpTimeout: soon}"),
        ] {
            assert!(merged(flags, file).is_err(), "{flags:?} {file}");
        }
    }
}
