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
    addresses(id, &result)
}

/// What a pod is reached at. A result may have addresses of the node's ends of links besides, unless it says of no link that it is
/// the pod's. Without any address a pod would start, and nobody would ever reach it.
fn addresses(id: &str, result: &cni::AddResult) -> Result<Vec<String>> {
    let own: Vec<String> = result.pod_addresses().map(|address| address.addr.to_string()).collect();
    let all = || result.ips.iter().map(|ip| ip.address.addr.to_string()).collect();
    let addresses: Vec<String> = if own.is_empty() { all() } else { own };
    match addresses.is_empty() {
        true => Err(Error::Network { id: id.into(), message: "the plug-ins gave it no address".into() }),
        false => Ok(addresses),
    }
}

/// Undoes [`add`], by what it noted or else by what is configured now; fine to repeat, and fine without the namespace.
pub(crate) async fn remove(config: &Config, id: &str, pod: &v1::PodSandboxConfig, pid: i32) -> Result<()> {
    let failed = |error: cni::Error| Error::Network { id: id.into(), message: error.to_string() };
    let noted =
        cni::Network::of_attachment(config.cni_cache_dir.as_deref(), config.cni_bin_dirs.clone(), id, INTERFACE).await;
    let network = match (noted, load(config).await) {
        (Ok(Some(network)), _) | (_, Ok(network)) => network,
        // Nothing was noted, and there is nothing by which a network could have been joined.
        (Ok(None), Err(error @ cni::Error::NoConfig(_))) => {
            tracing::debug!(sandbox = id, %error, "no network to leave");
            return Ok(());
        }
        // Not knowing how is not the same as having nothing to undo: addresses and rules would stay, and be another pod's.
        (Err(error), _) | (Ok(None), Err(error)) => return Err(failed(error)),
    };
    let path = format!("/proc/{pid}/ns/net");
    let namespace = if pid > 0 && std::path::Path::new(&path).exists() { path } else { String::new() };
    for error in network.del(id, &namespace, INTERFACE, &arguments(id, pod)).await.map_err(failed)? {
        let network = network.name();
        tracing::warn!(sandbox = id, network, %error, "what this plug-in made elsewhere, such as addresses, stays until it is back");
    }
    Ok(())
}

/// Undoes the rest of what [`remove`] had to leave behind, as far as the plug-ins are back.
pub(crate) async fn release_left(config: &Config) {
    if let Err(error) = cni::Network::release_left(config.cni_cache_dir.as_deref(), &config.cni_bin_dirs).await {
        tracing::warn!(%error, "what pods left behind in their networks is not released");
    }
}

/// None when a network is configured, else why not.
pub(crate) async fn problem(config: &Config) -> Option<String> {
    load(config).await.err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_addresses_of_its_own_links() {
        let of = |interfaces: &str, ips: &str| {
            let text = format!(r#"{{"cniVersion": "1.0.0", "interfaces": [{interfaces}], "ips": [{ips}]}}"#);
            let result = cni::AddResult::parse(&serde_json::from_str(&text).unwrap()).unwrap();
            addresses("c1", &result).map_err(|error| error.to_string())
        };
        let (host, pod) = (r#"{"name": "br0"}"#, r#"{"name": "eth0", "sandbox": "/proc/7/ns/net"}"#);
        let (first, second) =
            (r#"{"address": "10.0.0.1/24", "interface": 0}"#, r#"{"address": "10.0.0.2/24", "interface": 1}"#);
        let both = format!("{first}, {second}");
        for (interfaces, ips, expected) in [
            (format!("{host}, {pod}"), both.as_str(), &["10.0.0.2"][..]),
            (format!("{host}, {host}"), &both, &["10.0.0.1", "10.0.0.2"]),
            (String::new(), r#"{"address": "10.0.0.3/24"}"#, &["10.0.0.3"]),
        ] {
            assert_eq!(of(&interfaces, ips).unwrap(), expected, "{interfaces}");
        }
        let refused = of(&format!("{host}, {pod}"), "").unwrap_err();
        assert!(refused.ends_with("the plug-ins gave it no address"), "{refused}");
    }

    #[tokio::test]
    async fn security_a_network_that_cannot_be_read_is_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut config = Config::new(at("root"), at("state"), at("socket"));
        config.cni_conf_dir = at("net.d");
        config.cni_bin_dirs = Vec::new();
        config.cni_cache_dir = Some(at("cache"));
        let pod = v1::PodSandboxConfig::default();
        let leave = async || remove(&config, "c1", &pod, 0).await.map_err(|error| error.to_string());
        assert_eq!(leave().await, Ok(()), "never configured");
        std::fs::create_dir_all(at("net.d")).unwrap();
        std::fs::write(at("net.d/10-a.conflist"), "{").unwrap();
        assert!(leave().await.unwrap_err().contains("10-a.conflist"), "a configuration that cannot be read");
        // What ADD noted counts, whatever is configured now. Its plug-in is asked for, and is not there: the pod goes, the note stays.
        std::fs::remove_file(at("net.d/10-a.conflist")).unwrap();
        std::fs::create_dir_all(at("cache/results")).unwrap();
        // {"name":"n","type":"gone"}
        let noted = r#"{"containerId": "c1", "ifName": "eth0", "config": "eyJuYW1lIjoibiIsInR5cGUiOiJnb25lIn0="}"#;
        std::fs::write(at("cache/results/n-c1-eth0"), noted).unwrap();
        assert_eq!(leave().await, Ok(()), "a plug-in that is gone");
        release_left(&config).await;
        assert!(at("cache/results/n-c1-eth0.left").exists());
        std::fs::write(at("cache/results/n-c1-eth0"), "{").unwrap();
        assert!(leave().await.unwrap_err().contains("n-c1-eth0"), "a note that cannot be read");
    }
}
