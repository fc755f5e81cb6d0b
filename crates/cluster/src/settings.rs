//! What nodes are told.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;
use cni::routes::Backend;
use serde::{Deserialize, Serialize};

use crate::component_configs::NodeConfigs;
use crate::shape::{self, Encryption, Shape};

/// What a node must know about itself and its cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub name: String,
    pub address: IpAddr,
    /// Of the other family, in a cluster with two.
    pub second_address: Option<IpAddr>,
    pub kubelet_port: u16,
    pub cluster: ClusterSettings,
    pub registries: PathBuf,
    /// Archives that are imported when the runtime starts.
    pub images_dir: PathBuf,
    /// Further ranges whose traffic leaves through this node and takes its address.
    pub also_behind: Vec<String>,
    /// Whether the kubelet asks the cluster for the certificate it serves with, or finds one among its keys.
    pub asks_for_certificate: bool,
    /// Who is asked for names of elsewhere, if not the resolvers of this machine.
    #[serde(default)]
    pub resolvers: Option<Vec<SocketAddr>>,
    /// Of the node when it registers.
    #[serde(default)]
    pub labels: Vec<String>,
    #[serde(default)]
    pub taints: Vec<String>,
}

impl Settings {
    /// Where a port that others reach listens.
    pub(crate) fn everywhere(&self) -> IpAddr {
        shape::everywhere([self.address].into_iter().chain(self.second_address))
    }
}

/// What all nodes of a cluster must know about it; a machine that joins is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClusterSettings {
    /// Ranges, separated by commas.
    pub cluster_cidr: String,
    pub service_cidr: String,
    pub cluster_domain: String,
    pub dns: IpAddr,
    pub routes: Backend,
    /// How traffic of pods between nodes is encrypted, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    #[serde(default)]
    pub components: NodeConfigs,
}

impl ClusterSettings {
    pub(crate) fn new(shape: &Shape) -> Result<ClusterSettings> {
        Ok(ClusterSettings {
            cluster_cidr: shape.cluster_cidr.clone(),
            service_cidr: shape.service_cidr.clone(),
            cluster_domain: shape.cluster_domain.clone(),
            dns: shape.service_address(10)?,
            routes: shape.routes,
            encryption: shape.encryption,
            components: shape.components.nodes.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::shape::{Flags, Machine};

    #[test]
    fn security_a_machine_that_joins_is_told_that_the_cluster_encrypts() {
        let machine =
            Machine { node_name: Some("n".into()), node_ip: vec![Ipv4Addr::LOCALHOST.into()], ..Machine::default() };
        let told = |encrypt: Option<bool>| {
            let flags = Flags { machine: machine.clone(), encrypt, encrypt_port: Some(4000), ..Flags::default() };
            let text = serde_json::to_string(&ClusterSettings::new(&flags.shape().unwrap()).unwrap()).unwrap();
            serde_json::from_str::<ClusterSettings>(&text).unwrap().encryption
        };
        assert_eq!(told(Some(true)), Some(Encryption { port: 4000 }));
        assert_eq!((told(None), told(Some(false))), (None, None));
    }
}
