//! What is known on a machine that has joined a cluster while nothing of it runs.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use client::kubeconfig::Kubeconfig;
use client::{Client, DeleteParams};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};

use crate::balancer;
use crate::options::Options;
use crate::pki::{Pki, write_private};
use crate::settings::Settings;

/// A cluster that does not answer is left without a word to it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// The cluster's API server.
    pub(crate) server: String,
    pub(crate) settings: Settings,
}

impl Membership {
    /// None on a machine that has not joined a cluster.
    pub(crate) fn load(options: &Options) -> Result<Option<Membership>> {
        let path = file(options);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| path.display().to_string())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    pub(crate) fn save(&self, options: &Options) -> Result<()> {
        write_private(&file(options), &serde_json::to_vec_pretty(self)?)
    }

    /// Fails if the cluster no longer knows this machine: its certificate has ended, and only a token gets it another one.
    pub(crate) fn check_certificate(&self, options: &Options, now: Timestamp) -> Result<(), CertificateEnded> {
        match kubelet::client_certificate_end(&options.pki_dir()) {
            Some(end) if end <= now => {
                Err(CertificateEnded { node: self.settings.name.clone(), server: self.server.clone(), end })
            }
            _ => Ok(()),
        }
    }
}

/// What the machine was let in with is of no use any more.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificate of node {node} ended at {end}, and {server} lets nobody in with it: run 'cox token create \
     --print-join-command' on a server, then 'cox down' and the command that it printed here"
)]
pub(crate) struct CertificateEnded {
    node: String,
    server: String,
    end: Timestamp,
}

/// Takes the node out of the cluster, if its credentials allow it; says what else is to be done.
pub(crate) async fn leave(options: &Options, member: &Membership) -> String {
    let name = &member.settings.name;
    let gone = async {
        kubelet::client_of(&read_kubeconfig(options)?)?.all::<Node>().delete(name, &DeleteParams::default()).await?;
        anyhow::Ok(())
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, gone).await {
        Ok(Ok(())) => format!("node {name} is gone from {} and from this machine", member.server),
        // Nodes may not delete themselves, unless somebody has allowed it.
        _ => format!(
            "node {name} is gone from this machine. {} still lists it: there, run 'cox kubectl delete node {name}'",
            member.server
        ),
    }
}

fn file(options: &Options) -> PathBuf {
    options.data_dir.join("membership.json")
}

/// The credentials with which the machine introduces itself; gone once it has others.
pub(crate) fn bootstrap_kubeconfig(options: &Options) -> PathBuf {
    options.data_dir.join("bootstrap.kubeconfig")
}

/// The credentials of the machine's node.
pub(crate) fn node_kubeconfig(options: &Options) -> PathBuf {
    options.data_dir.join("kubelet.kubeconfig")
}

/// The credentials of the machine's node. Whom it trusts is in a file that is read for every connection, and follows the
/// cluster's authority.
pub(crate) fn read_kubeconfig(options: &Options) -> Result<Kubeconfig> {
    let path = node_kubeconfig(options);
    let mut config = Kubeconfig::read(&path).with_context(|| path.display().to_string())?;
    for named in &mut config.clusters {
        let authority = Pki::open(&options.pki_dir()).certificate("ca");
        named.cluster.certificate_authority_data = None;
        named.cluster.certificate_authority = Some(authority.display().to_string());
    }
    Ok(config)
}

/// The machine's node as a client, once for every server that it knows of.
pub(crate) fn clients(options: &Options, member: &Membership) -> Result<Vec<Client>> {
    let config = read_kubeconfig(options)?;
    let servers = balancer::known(&servers_file(options), &member.server)?;
    servers.iter().map(|server| kubelet::client_of(&balancer::by_way_of(config.clone(), server))).collect()
}

/// The API servers that the machine knows of.
pub(crate) fn servers_file(options: &Options) -> PathBuf {
    options.data_dir.join("servers.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_certificate_has_ended_learns_how_to_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        let settings = serde_json::json!({
            "name": "machine-2", "address": "192.0.2.2", "second_address": null, "kubelet_port": 10250,
            "cluster": {"cluster_cidr": "10.42.0.0/16", "service_cidr": "10.43.0.0/16",
                "cluster_domain": "cluster.local", "dns": "10.43.0.10", "routes": "auto"},
            "registries": "/r", "images_dir": "/i", "also_behind": [], "asks_for_certificate": true,
        });
        let member = serde_json::json!({"server": "https://192.0.2.1:6443", "settings": settings});
        let member: Membership = serde_json::from_value(member).unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        member.check_certificate(&options, at("2026-01-03T00:00:00Z")).unwrap();

        let mut params = rcgen::CertificateParams::new(vec!["n".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 2);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
        fs::create_dir(options.pki_dir()).unwrap();
        fs::write(options.pki_dir().join("kubelet-client-current.pem"), pem).unwrap();
        member.check_certificate(&options, at("2026-01-01T23:59:59Z")).unwrap();
        let ended = member.check_certificate(&options, at("2026-01-02T00:00:00Z")).unwrap_err().to_string();
        assert!(ended.starts_with("the certificate of node machine-2 ended at 2026-01-02T00:00:00Z"), "{ended}");
        assert!(ended.contains("'cox token create --print-join-command'"), "{ended}");
    }
}
