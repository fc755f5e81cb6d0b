//! What a cluster is like: given by flags at the first `cox up`, remembered for every later one.
//!
//! Flow: flags of this command line -> [`Flags::over`] what is remembered -> [`Flags::shape`], where the rest is as usual.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::cidr::Cidr;
use apiserver::RemoteWrite;
use cni::routes::Backend;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::backups::{BackupFlags, Schedule};
use crate::cidr_list::{list, ranges};
use crate::component_configs::ComponentConfigs;
use crate::etcd::Etcd;
use crate::ha::Ha;
use crate::node_address;
use crate::options::Options;
use crate::path_value::{named, path_or_empty};
use crate::pki::{LEAF_LIFETIME, write_private};
use crate::remote_write::RemoteWriteFlags;

/// Less would be spent on renewing them.
const MIN_VALIDITY: Duration = Duration::from_secs(10);

/// Of the keys that traffic between nodes is encrypted with. An exchange takes a minute or two.
const ROTATION: Duration = Duration::from_secs(7 * 24 * 3600);
const MIN_ROTATION: Duration = Duration::from_secs(600);

/// The settings of a cluster that `cox up` takes. They need not be repeated: `cox up` remembers them.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Flags {
    #[command(flatten)]
    #[serde(flatten)]
    pub machine: Machine,
    #[command(flatten)]
    #[serde(flatten)]
    pub etcd: Etcd,
    #[command(flatten)]
    #[serde(flatten)]
    pub ha: Ha,
    #[command(flatten)]
    #[serde(flatten)]
    pub backups: BackupFlags,
    /// From a cluster file: there are no flags for it.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub components: Option<ComponentConfigs>,
    /// Port of the API server (default: 6443)
    #[arg(long)]
    pub secure_port: Option<u16>,
    /// Addresses of pods; a second range, after a comma, for dual stack (default: 10.42.0.0/16, or
    /// fd42::/48 where the node has an address of IPv6 only)
    #[arg(long)]
    pub cluster_cidr: Option<String>,
    /// Addresses of services; the first is the API server's, the tenth the cluster DNS's. A second range for dual stack
    /// (default: 10.43.0.0/16 or fd43::/112)
    #[arg(long)]
    pub service_cidr: Option<String>,
    /// DNS domain of the cluster (default: cluster.local)
    #[arg(long)]
    pub cluster_domain: Option<String>,
    /// Minimum number of nodes; those beyond the first run in network namespaces of this machine
    #[arg(long)]
    #[serde(skip)]
    pub nodes: Option<u32>,
    /// Addresses of the nodes in network namespaces; the first address is this machine's. A second range for dual stack
    /// (default: 10.44.0.0/24 or fd44::/64)
    #[arg(long)]
    pub node_cidr: Option<String>,
    /// How pods reach pods of other nodes: host-gw, vxlan, or auto, which tunnels only between nodes that share no network
    /// (default: auto)
    #[arg(long)]
    pub routes: Option<Backend>,
    /// Whether pod traffic between nodes is encrypted with WireGuard (default: false)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// UDP port for --encrypt on every node; the next higher port is used as well (default: 51820)
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt_port: Option<u16>,
    /// How often nodes rotate the keys of --encrypt, 0s for never (default: 168h); 'cox node rotate-keys' does it at once
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt_rotation: Option<String>,
    /// Whether Ingresses and Gateways are served on this machine's address (default: true)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub gateway: Option<bool>,
    /// Ports of Ingresses, without and with TLS (default: 80 and 443); they are open while there are Ingresses
    #[arg(long)]
    pub gateway_http_port: Option<u16>,
    #[arg(long)]
    pub gateway_https_port: Option<u16>,
    /// Ranges of addresses of which each Gateway gets one of each family for itself (default: none; Gateways share this
    /// machine's address)
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway_address_pool: Vec<Cidr>,
    /// How long certificates are good for; they are renewed while the cluster runs (default: 8760h)
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_validity: Option<String>,
    /// Whether services of type LoadBalancer without a class of their own get the addresses of the nodes (default: true)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub load_balancer: Option<bool>,
    /// File with the tracing configuration of the API server (TracingConfiguration): traces of all components of this machine
    /// go to its collector; an empty value ends it
    #[arg(long, value_name = "FILE", value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing_config_file: Option<PathBuf>,
    /// Additional names and addresses of the API server, for its certificate
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tls_san: Vec<String>,
    /// Issuers of service-account tokens; the first is used for new tokens, all are accepted (default: the cluster's own name)
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub service_account_issuer: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub remote_write: RemoteWriteFlags,
}

/// The settings of this machine's node, whether it is the first of a cluster or joins one.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Machine {
    /// Name of this machine's node (default: its host name)
    #[arg(long)]
    pub node_name: Option<String>,
    /// Address of this machine's node, one of each family for dual stack (default: that of the interface with the default
    /// route; without one, an address that only this machine has)
    #[arg(long, value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Port of the kubelet (default: 10250)
    #[arg(long)]
    pub kubelet_port: Option<u16>,
    /// File with mirrors and credentials of image registries (default: /etc/cox/registries.yaml)
    #[arg(long, value_parser = path_or_empty())]
    pub registries: Option<PathBuf>,
    /// Labels that the node gets when it registers (key=value)
    #[arg(long, value_delimiter = ',', value_name = "LABEL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_label: Vec<String>,
    /// Taints that the node gets when it registers (key=value:effect), such as
    /// node-role.kubernetes.io/control-plane:NoSchedule
    #[arg(long, value_delimiter = ',', value_name = "TAINT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_taint: Vec<String>,
}

/// WireGuard between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Encryption {
    /// UDP, and the next one: there are two devices.
    pub port: u16,
}

impl Encryption {
    pub(crate) fn ports(self) -> [u16; 2] {
        [self.port, self.port.saturating_add(1)]
    }
}

/// A cluster with nothing left open.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub node_name: String,
    /// The first is how others reach this machine.
    pub node_ips: Vec<IpAddr>,
    /// The address that no link of this machine has yet: there is no default route to go by.
    pub own_address: Option<IpAddr>,
    pub secure_port: u16,
    pub kubelet_port: u16,
    /// Ranges, separated by commas.
    pub cluster_cidr: String,
    pub service_cidr: String,
    pub cluster_domain: String,
    pub nodes: u32,
    pub node_cidr: Cidr,
    /// Of the other family, in a cluster with two.
    pub second_node_cidr: Option<Cidr>,
    pub routes: Backend,
    /// Of traffic between nodes, and how often its keys are exchanged.
    pub encryption: Option<Encryption>,
    pub encryption_rotation: Option<Duration>,
    pub registries: PathBuf,
    pub labels: Vec<String>,
    pub taints: Vec<String>,
    /// Whether there is a gateway, and its ports without and with TLS.
    pub has_gateway: bool,
    pub gateway_ports: (u16, u16),
    /// Addresses that single Gateways get.
    pub gateway_pool: Vec<Cidr>,
    /// Where the objects are, if not in a store of this machine's.
    pub etcd: Etcd,
    /// Whether that is the cluster's own, with a member on this machine.
    pub ha: Ha,
    /// Of certificates that are signed here.
    pub certificate_validity: Duration,
    /// Whether services get the addresses of the nodes.
    pub has_load_balancer: bool,
    /// When copies of the store are made, if they are.
    pub backups: Option<Schedule>,
    pub components: ComponentConfigs,
    /// Further names and addresses of the API server.
    pub names: Vec<String>,
    /// Of service-account tokens.
    pub issuers: Vec<String>,
    /// Where traces and figures go, if anywhere else.
    pub tracing_config_file: Option<PathBuf>,
    pub history_remote_write: Option<RemoteWrite>,
}

impl Flags {
    /// What the cluster was told before; nothing for a new one.
    pub(crate) fn remembered(options: &Options) -> Result<Flags> {
        let path = file(options);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Flags::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    pub(crate) fn remember(&self, options: &Options) -> Result<()> {
        write_private(&file(options), &serde_json::to_vec_pretty(self)?)
    }

    /// These flags where they say something, else the remembered ones. What objects were made with cannot change.
    pub(crate) fn over(self, remembered: Flags) -> Result<Flags> {
        let (new, old) = (&self, &remembered);
        for (flag, new, old) in [
            ("node-name", &new.machine.node_name, &old.machine.node_name),
            ("cluster-cidr", &new.cluster_cidr, &old.cluster_cidr),
            ("service-cidr", &new.service_cidr, &old.service_cidr),
            ("cluster-domain", &new.cluster_domain, &old.cluster_domain),
            ("etcd-prefix", &new.etcd.etcd_prefix, &old.etcd.etcd_prefix),
        ] {
            if let (Some(new), Some(old)) = (new, old)
                && new != old
            {
                bail!(
                    "this cluster has --{flag}={old}, which cannot become {new}: 'cox delete' makes room for another"
                );
            }
        }
        // One that has a name has been started before.
        if old.machine.node_name.is_some() {
            if (new.etcd.is_used() || new.ha.ha) && !old.etcd.is_used() {
                bail!("this cluster has a store of its own: 'cox store move' carries its objects into etcd");
            }
            if new.ha.ha && !old.ha.ha {
                bail!(
                    "the objects of this cluster are in an etcd that others look after: 'cox store move' carries them elsewhere"
                );
            }
            if old.ha.ha && new.etcd.is_used() {
                bail!("the etcd of this cluster is its own: 'cox server' shows and changes its members");
            }
        }
        Ok(Flags {
            machine: self.machine.over(remembered.machine),
            etcd: self.etcd.over(remembered.etcd),
            ha: self.ha.over(remembered.ha),
            backups: self.backups.over(remembered.backups),
            components: self.components.or(remembered.components),
            secure_port: self.secure_port.or(remembered.secure_port),
            cluster_cidr: self.cluster_cidr.or(remembered.cluster_cidr),
            service_cidr: self.service_cidr.or(remembered.service_cidr),
            cluster_domain: self.cluster_domain.or(remembered.cluster_domain),
            nodes: self.nodes,
            node_cidr: self.node_cidr.or(remembered.node_cidr),
            routes: self.routes.or(remembered.routes),
            encrypt: self.encrypt.or(remembered.encrypt),
            encrypt_port: self.encrypt_port.or(remembered.encrypt_port),
            encrypt_rotation: self.encrypt_rotation.or(remembered.encrypt_rotation),
            gateway: self.gateway.or(remembered.gateway),
            gateway_http_port: self.gateway_http_port.or(remembered.gateway_http_port),
            gateway_https_port: self.gateway_https_port.or(remembered.gateway_https_port),
            gateway_address_pool: match (self.gateway_address_pool.is_empty(), self.gateway) {
                // Whoever wants no gateway any more wants no addresses for it.
                (true, Some(false)) => Vec::new(),
                (true, _) => remembered.gateway_address_pool,
                (false, _) => self.gateway_address_pool,
            },
            certificate_validity: self.certificate_validity.or(remembered.certificate_validity),
            load_balancer: self.load_balancer.or(remembered.load_balancer),
            tracing_config_file: self.tracing_config_file.or(remembered.tracing_config_file),
            tls_san: if self.tls_san.is_empty() { remembered.tls_san } else { self.tls_san },
            service_account_issuer: match self.service_account_issuer.is_empty() {
                true => remembered.service_account_issuer,
                false => self.service_account_issuer,
            },
            remote_write: self.remote_write.over(remembered.remote_write),
        })
    }

    /// Writes down what would otherwise follow the machine or this program: it must be the same at the next start.
    pub(crate) fn settled(mut self) -> Result<Flags> {
        self.make_paths_whole()?;
        self.drop_empty_paths();
        let shape = self.shape()?;
        self.machine.node_name = Some(shape.node_name);
        self.cluster_cidr = Some(shape.cluster_cidr);
        self.service_cidr = Some(shape.service_cidr);
        self.cluster_domain = Some(shape.cluster_domain);
        if self.etcd.is_used() {
            self.etcd.etcd_prefix.get_or_insert_with(|| "/registry".to_owned());
        }
        Ok(self)
    }

    fn validity(&self) -> Result<Duration> {
        let Some(text) = &self.certificate_validity else { return Ok(LEAF_LIFETIME) };
        let wrong = |why: &str| anyhow!("--certificate-validity={text}: {why}");
        let validity = text.parse::<SignedDuration>().map_err(|error| wrong(&error.to_string()))?;
        match Duration::try_from(validity) {
            Ok(validity) if validity >= MIN_VALIDITY => Ok(validity),
            _ => Err(wrong(&format!("certificates are good for {MIN_VALIDITY:?} at least"))),
        }
    }

    /// How traffic between nodes is encrypted, if it is.
    pub(crate) fn encryption(&self) -> Result<Option<Encryption>> {
        let port = self.encrypt_port.unwrap_or(wireguard::DEFAULT_PORT);
        if port == 0 || port == u16::MAX {
            bail!("--encrypt-port={port}: this port and the next one are used");
        }
        Ok(self.encrypt.unwrap_or(false).then_some(Encryption { port }))
    }

    /// How often its keys are exchanged, if by time at all.
    fn encryption_rotation(&self) -> Result<Option<Duration>> {
        let Some(text) = &self.encrypt_rotation else { return Ok(Some(ROTATION)) };
        let wrong = |why: &str| anyhow!("--encrypt-rotation={text}: {why}");
        let period = text.parse::<SignedDuration>().map_err(|error| wrong(&error.to_string()))?;
        match Duration::try_from(period) {
            Ok(Duration::ZERO) => Ok(None),
            Ok(period) if period >= MIN_ROTATION => Ok(Some(period)),
            _ => Err(wrong(&format!("keys are exchanged every {MIN_ROTATION:?} at most, or never with 0s"))),
        }
    }

    /// Whether the cluster's first family is IPv6: as its ranges say, else the node's address, else this machine's default
    /// routes.
    fn is_v6_first(&self) -> Result<bool> {
        if let Some(ranges) = self.cluster_cidr.as_ref().or(self.service_cidr.as_ref()) {
            return Ok(families(ranges).first() == Some(&true));
        }
        if let Some(address) = self.machine.node_ip.first() {
            return Ok(address.is_ipv6());
        }
        let has_route =
            |v6| anyhow::Ok(node_address::of_default_route(v6).context("reading the routing table")?.is_some());
        Ok(!has_route(false)? && has_route(true)?)
    }

    /// Addresses of further nodes: a range, and one of the other family in a cluster with two.
    fn node_cidrs(&self, is_v6: bool, others: [&str; 2]) -> Result<(Cidr, Option<Cidr>)> {
        let has_two = families(others[0]).len() > 1;
        let usual = |is_v6: bool| match is_v6 {
            true => Cidr::new(Ipv6Addr::new(0xfd44, 0, 0, 0, 0, 0, 0, 0).into(), 64),
            false => Cidr::new(Ipv4Addr::new(10, 44, 0, 0).into(), 24),
        };
        let text = self.node_cidr.as_deref().unwrap_or_default();
        let given = ranges(text).context("--node-cidr")?;
        match *given {
            [] | [_] => {
                let first = given.first().copied().unwrap_or_else(|| usual(is_v6));
                // Nobody chose the second: it must not take what somebody chose.
                let is_taken = |range: &Cidr| {
                    let others = others.iter().flat_map(|text| ranges(text).ok()).flatten();
                    others.chain([first]).any(|other| other.contains(range.addr) || range.contains(other.addr))
                };
                let second = Some(usual(!first.is_v6())).filter(|second| has_two && !is_taken(second));
                Ok((first, second))
            }
            [first, second] if has_two && first.is_v6() != second.is_v6() => Ok((first, Some(second))),
            [_, _] if has_two => bail!("--node-cidr={text}: both ranges are of the same family"),
            [_, _] => bail!("--node-cidr={text}: the cluster has one family (--cluster-cidr={})", others[0]),
            _ => bail!("--node-cidr={text}: one range, or two for dual stack"),
        }
    }

    /// Addresses of Gateways are not those of pods, services or nodes.
    fn check_gateway_pool(&self, taken: &[Cidr]) -> Result<()> {
        let pool = &self.gateway_address_pool;
        if !pool.is_empty() && self.gateway == Some(false) {
            bail!("--gateway-address-pool: there is no gateway with --gateway=false");
        }
        gateway::Config::check_pool(pool, taken).context("--gateway-address-pool")
    }

    pub(crate) fn shape(&self) -> Result<Shape> {
        self.etcd.check()?;
        self.ha.check()?;
        self.machine.check()?;
        let components = self.components.clone().unwrap_or_default();
        components.check()?;
        let text = |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.to_owned());
        let is_v6 = self.is_v6_first()?;
        let cluster_cidr = text(&self.cluster_cidr, if is_v6 { "fd42::/48" } else { "10.42.0.0/16" });
        let service_cidr = text(&self.service_cidr, if is_v6 { "fd43::/112" } else { "10.43.0.0/16" });
        let (node_cidr, second_node_cidr) = self.node_cidrs(is_v6, [&cluster_cidr, &service_cidr])?;
        let mut node_ips = self.machine.addresses(&families(&cluster_cidr))?;
        let mut own_address = None;
        // Ranges that are none are told of where they are used.
        let taken: Vec<Cidr> = [&cluster_cidr, &service_cidr]
            .into_iter()
            .flat_map(|text| ranges(text).ok())
            .flatten()
            .chain([node_cidr])
            .chain(second_node_cidr)
            .collect();
        self.check_gateway_pool(&taken)?;
        if node_ips.is_empty() {
            own_address = node_address::own(is_v6, &taken).context("reading the routing table")?;
            node_ips.extend(own_address);
        }
        let cluster_domain = text(&self.cluster_domain, "cluster.local");
        let issuers = match self.service_account_issuer.is_empty() {
            true => vec![format!("https://kubernetes.default.svc.{cluster_domain}")],
            false => self.service_account_issuer.clone(),
        };
        Ok(Shape {
            node_name: self.machine.name()?,
            node_ips,
            own_address,
            secure_port: self.secure_port.unwrap_or(6443),
            kubelet_port: self.machine.kubelet_port(),
            cluster_cidr,
            service_cidr,
            cluster_domain,
            nodes: self.nodes.unwrap_or(1),
            node_cidr,
            second_node_cidr,
            routes: self.routes.unwrap_or_default(),
            encryption: self.encryption()?,
            encryption_rotation: self.encryption_rotation()?,
            registries: self.machine.registries(),
            labels: self.machine.node_label.clone(),
            taints: self.machine.node_taint.clone(),
            has_gateway: self.gateway.unwrap_or(true),
            gateway_ports: (self.gateway_http_port.unwrap_or(80), self.gateway_https_port.unwrap_or(443)),
            gateway_pool: self.gateway_address_pool.clone(),
            etcd: self.etcd.clone(),
            ha: self.ha.clone(),
            certificate_validity: self.validity()?,
            has_load_balancer: self.load_balancer.unwrap_or(true),
            backups: self.backups.schedule(&self.etcd)?,
            components,
            names: self.tls_san.clone(),
            issuers,
            tracing_config_file: self.tracing_config_file.clone(),
            history_remote_write: self.remote_write.target(),
        })
    }
}

impl Machine {
    /// Labels and taints that no node can have are refused before anything is started.
    pub(crate) fn check(&self) -> Result<()> {
        kubelet::Settings::new("n").register(&self.node_label, &self.node_taint)?;
        let keys = self.node_label.iter().filter_map(|label| label.split('=').next());
        match apiserver::labels_not_for_nodes(keys).first() {
            Some(key) => {
                bail!("--node-label={key}: a node may not give itself this label; 'kubectl label node' does it")
            }
            None => Ok(()),
        }
    }

    pub(crate) fn over(self, remembered: Machine) -> Machine {
        Machine {
            node_name: self.node_name.or(remembered.node_name),
            node_ip: if self.node_ip.is_empty() { remembered.node_ip } else { self.node_ip },
            kubelet_port: self.kubelet_port.or(remembered.kubelet_port),
            registries: self.registries.or(remembered.registries),
            node_label: if self.node_label.is_empty() { remembered.node_label } else { self.node_label },
            node_taint: if self.node_taint.is_empty() { remembered.node_taint } else { self.node_taint },
        }
    }

    pub(crate) fn name(&self) -> Result<String> {
        if let Some(name) = &self.node_name {
            return Ok(name.clone());
        }
        let host = nix::unistd::gethostname().context("reading the host name")?;
        match host.into_string() {
            Ok(host) if !host.is_empty() => Ok(host.to_lowercase()),
            _ => bail!("this machine has no usable host name: give one with --node-name"),
        }
    }

    /// The given addresses, or those of the default routes of the cluster's families (whether each is IPv6). None without a
    /// default route of the first.
    pub(crate) fn addresses(&self, families: &[bool]) -> Result<Vec<IpAddr>> {
        if !self.node_ip.is_empty() {
            return Ok(self.node_ip.clone());
        }
        let mut addresses = Vec::new();
        for (place, is_v6) in families.iter().enumerate() {
            match node_address::of_default_route(*is_v6).context("reading the routing table")? {
                Some(address) => addresses.push(address),
                None if place == 0 => return Ok(Vec::new()),
                None => {}
            }
        }
        Ok(addresses)
    }

    /// As [`Machine::addresses`], for a machine that must be reached by others: without a default route, the address by which
    /// it reaches `server`.
    pub(crate) fn reachable_addresses(&self, server: Option<IpAddr>, families: &[bool]) -> Result<Vec<IpAddr>> {
        let mut addresses = self.addresses(families)?;
        if addresses.is_empty() {
            let by_server = server.map(node_address::towards).transpose().ok().flatten().flatten();
            addresses.extend(by_server);
        }
        if addresses.is_empty() {
            bail!("this machine has no default route: give the node's address with --node-ip");
        }
        Ok(addresses)
    }

    pub(crate) fn kubelet_port(&self) -> u16 {
        self.kubelet_port.unwrap_or(10250)
    }

    pub(crate) fn registries(&self) -> PathBuf {
        named(&self.registries).unwrap_or(Path::new("/etc/cox/registries.yaml")).to_owned()
    }
}

impl Shape {
    /// The address by which others reach this machine.
    pub(crate) fn node_ip(&self) -> Result<IpAddr> {
        self.node_ips.first().copied().context("this machine has no address")
    }

    /// The address that stands `offset` places into the service range: 1 is the API server's, 10 the DNS's.
    pub(crate) fn service_address(&self, offset: u32) -> Result<IpAddr> {
        let first = list(&self.service_cidr).into_iter().next().unwrap_or_default();
        let range: Cidr = first.parse().with_context(|| format!("{first:?} is not a range such as 10.43.0.0/16"))?;
        let address = match range.network().addr {
            IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits().wrapping_add(offset)).into(),
            IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits().wrapping_add(offset.into())).into(),
        };
        if !range.contains(address) {
            bail!("the range {range} is too small for services");
        }
        Ok(address)
    }
}

/// Whether each of some ranges is IPv6; IPv4 where there is none.
pub(crate) fn families(ranges: &str) -> Vec<bool> {
    let families: Vec<bool> = list(ranges).iter().map(|range| range.contains(':')).collect();
    if families.is_empty() { vec![false] } else { families }
}

/// All addresses of this machine, of both families if one of its own is IPv6.
pub(crate) fn everywhere(own: impl IntoIterator<Item = IpAddr>) -> IpAddr {
    match own.into_iter().any(|address| address.is_ipv6()) {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

fn file(options: &Options) -> PathBuf {
    options.data_dir.join("flags.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_remembered_and_some_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        assert_eq!(Flags::remembered(&options).unwrap(), Flags::default());
        let machine =
            Machine { node_name: Some("n".into()), node_ip: vec!["192.0.2.7".parse().unwrap()], ..Machine::default() };
        let first = Flags { machine, secure_port: Some(7443), nodes: Some(3), ..Flags::default() };
        first.settled().unwrap().remember(&options).unwrap();

        let again = Flags::default().over(Flags::remembered(&options).unwrap()).unwrap();
        let shape = again.shape().unwrap();
        // Nodes have records of their own: one that was removed does not come back.
        assert_eq!((shape.node_name.as_str(), shape.secure_port, shape.nodes), ("n", 7443, 1));
        assert_eq!(shape.node_ip().unwrap().to_string(), "192.0.2.7");
        let other = |flags: Flags| flags.over(Flags::remembered(&options).unwrap());
        assert!(shape.has_gateway && shape.has_load_balancer);
        let off = Flags { load_balancer: Some(false), ..Flags::default() };
        assert!(!other(off).unwrap().shape().unwrap().has_load_balancer);
        assert!(!other(Flags { gateway: Some(false), ..Flags::default() }).unwrap().shape().unwrap().has_gateway);
        let moved = other(Flags { secure_port: Some(8443), ..Flags::default() }).unwrap();
        assert_eq!(moved.secure_port, Some(8443));
        for fixed in [
            Flags { service_cidr: Some("10.96.0.0/12".into()), ..Flags::default() },
            Flags { cluster_domain: Some("example.org".into()), ..Flags::default() },
            Flags { machine: Machine { node_name: Some("m".into()), ..Machine::default() }, ..Flags::default() },
        ] {
            assert!(other(fixed).unwrap_err().to_string().contains("cannot become"));
        }
        assert!(other(Flags { service_cidr: Some("10.43.0.0/16".into()), ..Flags::default() }).is_ok());
        let etcd = Etcd { etcd_servers: vec!["http://127.0.0.1:2379".into()], ..Etcd::default() };
        let with_etcd = Flags { etcd, ..Flags::default() };
        let with_members = Flags { ha: Ha { ha: true, ..Ha::default() }, ..Flags::default() };
        for flags in [with_etcd.clone(), with_members.clone()] {
            let moved = other(flags).unwrap_err().to_string();
            assert!(moved.contains("has a store of its own"), "{moved}");
        }

        for (text, expected) in
            [("1h", Some(3600)), ("8760h0m0s", Some(31_536_000)), ("5s", None), ("-1h", None), ("x", None)]
        {
            let flags = other(Flags { certificate_validity: Some(text.into()), ..Flags::default() }).unwrap();
            let found = flags.shape().map(|shape| shape.certificate_validity.as_secs());
            assert_eq!(found.ok(), expected, "{text}");
        }

        for (port, rotation, expected) in [
            (None, None, Some((51820, Some(604_800)))),
            (Some(7), Some("24h"), Some((7, Some(86_400)))),
            (None, Some("0s"), Some((51820, None))),
            (None, Some("1m"), None),
            (None, Some("soon"), None),
            (Some(65535), None, None),
        ] {
            let encrypt = Some(true);
            let flags = Flags {
                encrypt,
                encrypt_port: port,
                encrypt_rotation: rotation.map(str::to_owned),
                ..Flags::default()
            };
            let found = other(flags).unwrap().shape().ok();
            let found = found.map(|shape| {
                (shape.encryption.unwrap().port, shape.encryption_rotation.map(|period| period.as_secs()))
            });
            assert_eq!(found, expected, "{port:?} {rotation:?}");
        }
        assert_eq!(shape.encryption, None);

        for (gateway, pool, why) in [
            (None, &["198.51.100.0/28", "2001:db8::/64"][..], ""),
            (None, &["10.42.7.0/24"][..], "overlap"),
            (None, &["198.51.100.0/28", "198.51.100.8/29"][..], "overlap"),
            (None, &["127.0.0.0/8"][..], "not a range of addresses that a machine can have"),
            (Some(false), &["198.51.100.0/28"][..], "there is no gateway"),
        ] {
            let gateway_address_pool: Vec<Cidr> = pool.iter().map(|range| range.parse().unwrap()).collect();
            let flags = Flags { gateway, gateway_address_pool: gateway_address_pool.clone(), ..Flags::default() };
            match other(flags).unwrap().shape() {
                Ok(shape) => assert_eq!((shape.gateway_pool, why), (gateway_address_pool, "")),
                Err(error) => assert!(!why.is_empty() && format!("{error:#}").contains(why), "{error:#}"),
            }
        }
        let pooled = Flags { gateway_address_pool: vec!["198.51.100.0/28".parse().unwrap()], ..Flags::default() };
        for (gateway, expected) in [(None, 1), (Some(true), 1), (Some(false), 0)] {
            let again = Flags { gateway, ..Flags::default() }.over(pooled.clone()).unwrap();
            assert_eq!(again.gateway_address_pool.len(), expected, "{gateway:?}");
        }

        let labelled = |label: &str, taint: &str| {
            let machine =
                Machine { node_label: vec![label.into()], node_taint: vec![taint.into()], ..Machine::default() };
            other(Flags { machine, ..Flags::default() }).unwrap().shape().map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(labelled("disk=fast", "node-role.kubernetes.io/control-plane:NoSchedule"), Ok(()));
        for (label, taint, why) in [
            ("disk", "a:NoSchedule", "is not key=value"),
            ("disk=fast", "a:Never", "invalid taint effect: Never"),
            ("node-role.kubernetes.io/control-plane=", "a:NoSchedule", "a node may not give itself this label"),
        ] {
            assert!(labelled(label, taint).unwrap_err().contains(why), "{label} {taint}");
        }

        // Members of an etcd come and go, and where the cluster is in it stays.
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        with_etcd.settled().unwrap().remember(&options).unwrap();
        let remembered = || Flags::remembered(&options).unwrap();
        let again = Flags::default().over(remembered()).unwrap().shape().unwrap().etcd;
        assert_eq!(
            (again.etcd_servers, again.etcd_prefix.as_deref()),
            (vec!["http://127.0.0.1:2379".into()], Some("/registry"))
        );
        let others = Etcd { etcd_servers: vec!["http://127.0.0.2:2379".into()], ..Etcd::default() };
        let others = Flags { etcd: others, ..Flags::default() }.over(remembered()).unwrap();
        assert_eq!(others.etcd.etcd_servers, ["http://127.0.0.2:2379"]);
        let taken_over = with_members.over(remembered()).unwrap_err().to_string();
        assert!(taken_over.contains("that others look after"), "{taken_over}");
        let elsewhere = Etcd { etcd_prefix: Some("/two".into()), ..Etcd::default() };
        let elsewhere = Flags { etcd: elsewhere, ..Flags::default() }.over(remembered()).unwrap_err().to_string();
        assert!(elsewhere.contains("--etcd-prefix=/registry, which cannot become /two"), "{elsewhere}");
    }

    #[test]
    fn families_are_those_of_the_ranges() {
        for (ranges, expected) in [
            ("10.42.0.0/16", &[false][..]),
            ("fd42::/48", &[true]),
            ("10.42.0.0/16,fd42::/48", &[false, true]),
            ("fd42::/48, 10.42.0.0/16", &[true, false]),
            ("", &[false]),
        ] {
            assert_eq!(families(ranges), expected, "{ranges}");
        }
        let all = |addresses: &[&str]| everywhere(addresses.iter().map(|text| text.parse().unwrap())).to_string();
        assert_eq!(all(&["192.0.2.1"]), "0.0.0.0");
        assert_eq!(all(&["192.0.2.1", "2001:db8::1"]), "::");
    }

    #[test]
    fn what_is_not_said_follows_the_family_that_is() {
        let of = |cluster: Option<&str>, service: Option<&str>, node: &str| {
            let machine =
                Machine { node_name: Some("n".into()), node_ip: vec![node.parse().unwrap()], ..Machine::default() };
            let [cluster_cidr, service_cidr] = [cluster, service].map(|text| text.map(str::to_owned));
            let shape = Flags { machine, cluster_cidr, service_cidr, ..Flags::default() }.shape().unwrap();
            [shape.cluster_cidr, shape.service_cidr, shape.node_cidr.to_string()]
        };
        let (four, six) = (["10.42.0.0/16", "10.43.0.0/16", "10.44.0.0/24"], ["fd42::/48", "fd43::/112", "fd44::/64"]);
        assert_eq!(of(None, None, "192.0.2.1"), four);
        assert_eq!(of(None, None, "2001:db8::1"), six);
        assert_eq!(of(Some("fd00::/48"), None, "192.0.2.1"), ["fd00::/48", six[1], six[2]]);
        assert_eq!(of(None, Some("10.96.0.0/12"), "2001:db8::1"), [four[0], "10.96.0.0/12", four[2]]);
    }

    #[test]
    fn further_nodes_have_an_address_of_each_family() {
        let of = |cluster: &str, node: Option<&str>| {
            let node_ip = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap());
            let machine = Machine { node_name: Some("n".into()), node_ip: node_ip.into(), ..Machine::default() };
            let service_cidr = cluster.contains(',').then(|| "10.43.0.0/16,fd43::/112".to_owned());
            let (cluster_cidr, node_cidr) = (Some(cluster.to_owned()), node.map(str::to_owned));
            let shape = Flags { machine, cluster_cidr, service_cidr, node_cidr, ..Flags::default() }.shape();
            let text =
                |shape: Shape| (shape.node_cidr.to_string(), shape.second_node_cidr.map(|range| range.to_string()));
            shape.map(text).map_err(|error| format!("{error:#}"))
        };
        let two = "10.42.0.0/16,fd42::/48";
        let is = |first: &str, second: Option<&str>| Ok((first.to_owned(), second.map(str::to_owned)));
        assert_eq!(of("10.42.0.0/16", None), is("10.44.0.0/24", None));
        assert_eq!(of(two, None), is("10.44.0.0/24", Some("fd44::/64")));
        assert_eq!(of(two, Some("10.99.0.0/24")), is("10.99.0.0/24", Some("fd44::/64")));
        assert_eq!(of(two, Some("10.99.0.0/24, fd99::/64")), is("10.99.0.0/24", Some("fd99::/64")));
        assert_eq!(of("10.42.0.0/16,fd44::/48", None), is("10.44.0.0/24", None), "the second is taken");
        for (cluster, node, why) in [
            (two, "10.99.0.0/24,10.98.0.0/24", "same family"),
            ("10.42.0.0/16", "10.99.0.0/24,fd99::/64", "one family"),
            (two, "10.99.0.0/24,fd99::/64,fd98::/64", "one range, or two"),
            (two, "10.99.0.0/240", "10.99.0.0/240"),
        ] {
            let error = of(cluster, Some(node)).unwrap_err();
            assert!(error.contains(why) && error.contains("--node-cidr"), "{error}");
        }
    }

    #[test]
    fn addresses_of_the_service_range() {
        for (ranges, expected) in [
            ("10.43.0.0/16", Some("10.43.0.10")),
            ("10.43.7.9/24,fd43::/112", Some("10.43.7.10")),
            ("fd43::/112", Some("fd43::a")),
            ("10.43.0.0/30", None),
            ("10.43.0.0", None),
            ("", None),
        ] {
            let machine = Machine {
                node_name: Some("n".into()),
                node_ip: vec![Ipv4Addr::LOCALHOST.into()],
                ..Machine::default()
            };
            let flags = Flags { machine, service_cidr: Some(ranges.into()), ..Flags::default() };
            let found = flags.shape().unwrap().service_address(10).ok().map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{ranges}");
        }
    }
}
