//! The keys of a further node: its own certificates and kubeconfigs, and of the cluster's only the authority's certificate.

use std::path::{Path, PathBuf};

use anyhow::Result;
use client::Client;
use client::kubeconfig::{AuthInfo, Cluster, Kubeconfig, Overrides};

use super::parts::Clients;
use super::record::{Network, Record};
use crate::options::Options;
use crate::pki::{Pki, write_private};

/// Signs the node's certificates anew and writes the kubeconfigs its parts use. These name files, so that a node that runs
/// shows what was signed last.
pub(crate) fn prepare(cluster: &Options, network: &Network, pki: &Pki, record: &Record, server: &str) -> Result<()> {
    let options = record.options(cluster);
    let keys = pki.sign_node(&options.pki_dir(), &record.name, &network.addresses(record))?;
    let text = |path: PathBuf| Some(path.display().to_string());
    for part in ["kubelet", "proxy"] {
        let leaf = format!("{part}-client");
        let cluster = Cluster {
            server: Some(server.to_owned()),
            certificate_authority: text(keys.certificate("ca")),
            ..Cluster::default()
        };
        let user = AuthInfo {
            client_certificate: text(keys.certificate(&leaf)),
            client_key: text(keys.key(&leaf)),
            ..AuthInfo::default()
        };
        let config = Kubeconfig::single("default", cluster, user, None);
        write_private(&kubeconfig(&options.data_dir, part), config.to_yaml()?.as_bytes())?;
    }
    Ok(())
}

/// Connects a node's parts, each as itself.
pub(super) fn clients(data_dir: &Path) -> Result<Clients> {
    let connect = |part: &str| -> Result<Client> {
        let config = Kubeconfig::read(&kubeconfig(data_dir, part))?;
        let actor = if part == "proxy" { "kube-proxy" } else { part };
        Ok(Client::from_kubeconfig(&config, &Overrides::default())?.traced_remotely(actor))
    };
    Ok(Clients { kubelet: connect("kubelet")?, proxy: connect("proxy")? })
}

fn kubeconfig(data_dir: &Path, part: &str) -> PathBuf {
    data_dir.join(format!("{part}.kubeconfig"))
}
