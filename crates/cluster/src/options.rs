//! Where a cluster lives and what it is called: shared by every command of this crate.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use cni::Cidr;
use cni::routes::Backend;

/// Everything that distinguishes one cluster of this machine from another.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Directory of everything that lasts: keys, objects, images, logs
    #[arg(long, default_value = "/var/lib/cox", env = "COX_DATA_DIR")]
    pub data_dir: PathBuf,
    /// Directory of sockets and other things that end with the machine's uptime
    #[arg(long, default_value = "/run/cox", env = "COX_RUN_DIR")]
    pub run_dir: PathBuf,
    /// Name of the cluster, its user and its context in the kubeconfig
    #[arg(long, default_value = "cox", env = "COX_NAME")]
    pub name: String,
}

/// What `cox up` can be told about the cluster to make.
#[derive(Debug, Clone, clap::Args)]
pub struct Shape {
    /// Name of this machine's node (default: its host name)
    #[arg(long)]
    pub node_name: Option<String>,
    /// Address of this machine's node (default: that of the interface with the default route)
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// Port of the API server
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// Port of the kubelet
    #[arg(long, default_value_t = 10250)]
    pub kubelet_port: u16,
    /// Addresses of pods; a second range, after a comma, for dual stack
    #[arg(long, default_value = "10.42.0.0/16")]
    pub cluster_cidr: String,
    /// Addresses of services; the first is the API server's, the tenth the cluster DNS's. A second range for dual stack
    #[arg(long, default_value = "10.43.0.0/16")]
    pub service_cidr: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Nodes to have at least; those beyond the first are in network namespaces of this machine
    #[arg(long, default_value_t = 1)]
    pub nodes: u32,
    /// Addresses of the nodes in network namespaces; the first is this machine's among them
    #[arg(long, default_value = "10.44.0.0/24")]
    pub node_cidr: Cidr,
    /// How pods reach pods of other nodes: host-gw, vxlan, or auto, which tunnels only where nodes share no network
    #[arg(long, default_value = "auto")]
    pub routes: Backend,
    /// File that names mirrors and credentials of image registries
    #[arg(long, default_value = "/etc/cox/registries.yaml")]
    pub registries: PathBuf,
}

impl Options {
    pub fn pki_dir(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    pub fn log_file(&self) -> PathBuf {
        self.data_dir.join("logs/cox.log")
    }

    /// Held, with the pid inside, by the process that runs the cluster.
    pub fn lock_file(&self) -> PathBuf {
        self.data_dir.join("lock")
    }

    /// The administrator's credentials; also merged into the user's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.data_dir.join("admin.kubeconfig")
    }

    /// The cgroup below which all pods are.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.name)
    }

    pub fn cri_socket(&self) -> PathBuf {
        self.run_dir.join("cri.sock")
    }

    pub fn cni_conf_dir(&self) -> PathBuf {
        self.data_dir.join("cni/net.d")
    }

    pub fn cni_bin_dir(&self) -> PathBuf {
        self.data_dir.join("cni/bin")
    }
}

impl Shape {
    pub fn node_name(&self) -> Result<String> {
        if let Some(name) = &self.node_name {
            return Ok(name.clone());
        }
        let host = nix::unistd::gethostname().context("reading the host name")?;
        match host.into_string() {
            Ok(host) if !host.is_empty() => Ok(host.to_lowercase()),
            _ => bail!("this machine has no usable host name: give one with --node-name"),
        }
    }

    pub fn node_ip(&self) -> Result<IpAddr> {
        match self.node_ip {
            Some(address) => Ok(address),
            None => {
                default_address().context("this machine has no default route: give the node's address with --node-ip")
            }
        }
    }

    /// The address that stands `offset` places into the service range: 1 is the API server's, 10 the DNS's.
    pub fn service_address(&self, offset: u32) -> Result<Ipv4Addr> {
        let first = self.service_cidr.split(',').next().unwrap_or_default();
        let (base, _) = cidr(first)?;
        Ok(Ipv4Addr::from(u32::from(base) + offset))
    }
}

/// Splits an IPv4 range into its first address and its prefix length.
fn cidr(text: &str) -> Result<(Ipv4Addr, u8)> {
    let parse = || {
        let (base, length) = text.split_once('/')?;
        let length: u8 = length.parse().ok().filter(|length| *length <= 32)?;
        let base: u32 = base.parse::<Ipv4Addr>().ok()?.into();
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Some((Ipv4Addr::from(base & mask), length))
    };
    parse().with_context(|| format!("{text:?} is not an IPv4 range such as 10.42.0.0/16"))
}

/// The address this machine would send from; connecting a datagram socket asks the routing table and sends nothing.
fn default_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 255), 9))?;
    let address = socket.local_addr()?.ip();
    if address.is_loopback() || address.is_unspecified() {
        bail!("no address but loopback");
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_their_base() {
        for (text, expected) in [
            ("10.42.0.0/16", Some(("10.42.0.0", 16))),
            ("10.42.3.7/24", Some(("10.42.3.0", 24))),
            ("0.0.0.0/0", Some(("0.0.0.0", 0))),
            ("10.42.0.0", None),
            ("10.42.0.0/33", None),
            ("x/8", None),
        ] {
            let found = cidr(text).ok().map(|(base, length)| (base.to_string(), length));
            assert_eq!(found, expected.map(|(base, length)| (base.to_string(), length)), "{text}");
        }
    }
}
