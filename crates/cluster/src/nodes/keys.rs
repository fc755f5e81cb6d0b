//! The keys of a further node: its own certificates and kubeconfigs, and of the cluster's only the authority's certificate.

use std::path::{Path, PathBuf};

use anyhow::Result;
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};

use super::parts::Clients;
use super::record::Record;
use crate::kubeconfig::Access;
use crate::options::Options;
use crate::pki::Pki;

/// Signs the node's certificates anew and writes the kubeconfigs its parts use.
pub(super) fn prepare(cluster: &Options, pki: &Pki, record: &Record, server: &str) -> Result<()> {
    let options = record.options(cluster);
    let keys = pki.sign_node(&options.pki_dir(), &record.name, &[record.address])?;
    for part in ["kubelet", "proxy"] {
        let access = Access::new(&cluster.name, server, &keys, &format!("{part}-client"))?;
        access.merge_into(&kubeconfig(&options.data_dir, part))?;
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
