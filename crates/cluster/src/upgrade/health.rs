//! Watching over what another program has brought up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use client::Client;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::skew::{self, Minor};
use crate::connection::connect;
use crate::etcd::Etcd;
use crate::join::{self, Membership};
use crate::lock::Lock;
use crate::members;
use crate::options::Options;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// An API server that is just starting may fail to answer so often in a row, and a node renews its lease every ten seconds.
const MISSED_LOOKS: u32 = 30;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const LEASES: &str = "kube-node-lease";

/// What is watched over.
pub(super) struct Patient<'a> {
    pub(super) options: &'a Options,
    /// On a machine that has joined.
    pub(super) member: Option<&'a Membership>,
    pub(super) node: &'a str,
    /// The etcd with a member on this machine.
    pub(super) etcd: Option<&'a Etcd>,
}

impl Patient<'_> {
    /// When the node last said that it lives; none if nobody can be asked.
    pub(super) async fn last_sign(&self) -> Option<MicroTime> {
        let node = self.node;
        self.asked(|client| async move { renewed(&client, node).await }).await.ok().flatten()
    }

    /// Watches for some time: the process stays, the API answers, the node is Ready and has said so since `before`, and etcd is
    /// whole.
    pub(super) async fn keeps_well(&self, before: Option<&MicroTime>, time: Duration) -> Result<()> {
        let pid = || -> Result<_> { Ok(Lock::holder(&self.options.lock_file())?.map(|holder| holder.pid)) };
        let first = pid()?.context("its process ended")?;
        let (deadline, mut missed) = (Instant::now() + time, 0);
        loop {
            if pid()? != Some(first) {
                bail!("its process ended");
            }
            match self.look(before).await {
                Ok(()) if Instant::now() >= deadline => return Ok(()),
                Ok(()) => missed = 0,
                Err(error) if missed >= MISSED_LOOKS => return Err(error.context("the cluster does not fare well")),
                Err(_) => missed += 1,
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look(&self, before: Option<&MicroTime>) -> Result<()> {
        let name = self.node;
        let looked = self.asked(|client| async move {
            let node = client.all::<Node>().get(name).await.context("asking for the node")?;
            if !api::node::is_ready(&node) {
                bail!("node {name} is not Ready");
            }
            // Ready is what it was until the cluster misses the node.
            if before.is_some() && renewed(&client, name).await?.as_ref() == before {
                bail!("node {name} gives no sign of life");
            }
            Ok(())
        });
        looked.await?;
        match self.etcd {
            Some(etcd) => members::require_healthy(etcd).await,
            None => Ok(()),
        }
    }

    /// Asks this machine's own server, or whichever one answers where there is none.
    async fn asked<T, A: Future<Output = Result<T>>>(&self, ask: impl Fn(Client) -> A) -> Result<T> {
        let clients = match self.member {
            None => vec![connect(&self.options.admin_kubeconfig())?],
            Some(member) => join::clients(self.options, member)?,
        };
        let mut failed = anyhow!("no server is known");
        for client in clients {
            match tokio::time::timeout(REQUEST_TIMEOUT, ask(client)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => failed = error,
                Err(_) => failed = anyhow!("the API does not answer"),
            }
        }
        Err(failed)
    }

    /// The version of the oldest server that answers a machine that has joined.
    pub(super) async fn oldest_server(&self) -> Result<Minor> {
        let member = self.member.context("this machine has not joined a cluster")?;
        let (mut oldest, mut failed) = (None::<Minor>, anyhow!("no server is known"));
        for client in join::clients(self.options, member)? {
            match tokio::time::timeout(REQUEST_TIMEOUT, api_version(&client)).await {
                Ok(Ok(found)) => oldest = Some(oldest.map_or(found, |oldest| oldest.min(found))),
                Ok(Err(error)) => failed = error,
                Err(_) => failed = anyhow!("the API does not answer"),
            }
        }
        oldest.ok_or(failed)
    }
}

async fn api_version(client: &Client) -> Result<Minor> {
    let said: serde_json::Value = client.get_json("/version").await.context("asking for the version")?;
    let version = said["gitVersion"].as_str().unwrap_or_default();
    skew::minor_of(version).with_context(|| format!("the API is of version {version:?}"))
}

async fn renewed(client: &Client, node: &str) -> Result<Option<MicroTime>> {
    let lease = client.namespaced::<Lease>(LEASES).get_opt(node).await.context("asking for the node's lease")?;
    Ok(lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time))
}
