//! A sandbox's network: CNI ADD and DEL around its network namespace.

use cri::v1;

use crate::Config;
use crate::error::{Error, Result};

const INTERFACE: &str = "eth0";

async fn load(config: &Config) -> std::result::Result<cni::Network, cni::Error> {
    let network = cni::Network::load(&config.cni_conf_dir, config.cni_bin_dirs.clone()).await?;
    Ok(match &config.cni_cache_dir {
        Some(directory) => network.cache_dir(directory),
        None => network,
    })
}

fn arguments(id: &str, config: &v1::PodSandboxConfig) -> cni::AttachmentArgs {
    let metadata = config.metadata.clone().unwrap_or_default();
    let mappings: Vec<cni::PortMapping> = config
        .port_mappings
        .iter()
        .filter(|m| m.host_port > 0)
        .map(|m| cni::PortMapping {
            host_port: m.host_port as u16,
            container_port: m.container_port as u16,
            protocol: match m.protocol() {
                v1::Protocol::Tcp => "tcp",
                v1::Protocol::Udp => "udp",
                v1::Protocol::Sctp => "sctp",
            }
            .into(),
            host_ip: m.host_ip.clone(),
        })
        .collect();
    cni::AttachmentArgs::for_pod(&metadata.namespace, &metadata.name, &metadata.uid, id).port_mappings(&mappings)
}

/// Connects the namespace of `pid`; returns the pod's addresses.
pub(crate) async fn add(config: &Config, id: &str, pod: &v1::PodSandboxConfig, pid: i32) -> Result<Vec<String>> {
    let failed = |error: cni::Error| Error::Network { id: id.into(), message: error.to_string() };
    let network = load(config).await.map_err(failed)?;
    let arguments = arguments(id, pod);
    let result = network.add(id, &format!("/proc/{pid}/ns/net"), INTERFACE, &arguments).await.map_err(failed)?;
    Ok(result.ips.iter().map(|ip| ip.address.addr.to_string()).collect())
}

/// Undoes [`add`]; fine to repeat, and fine without the namespace.
pub(crate) async fn remove(config: &Config, id: &str, pod: &v1::PodSandboxConfig, pid: i32) -> Result<()> {
    let failed = |error: cni::Error| Error::Network { id: id.into(), message: error.to_string() };
    let network = match load(config).await {
        Ok(network) => network,
        // Without a configuration there is nothing that could be undone.
        Err(error) => {
            tracing::debug!(sandbox = id, %error, "no network to leave");
            return Ok(());
        }
    };
    let path = format!("/proc/{pid}/ns/net");
    let namespace = if pid > 0 && std::path::Path::new(&path).exists() { path } else { String::new() };
    network.del(id, &namespace, INTERFACE, &arguments(id, pod)).await.map_err(failed)
}

/// None when a network is configured, else why not.
pub(crate) async fn problem(config: &Config) -> Option<String> {
    load(config).await.err().map(|error| error.to_string())
}
