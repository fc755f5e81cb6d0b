//! Brings the further nodes in line with their records: one keeper per node, level-triggered.
//!
//! Keepers read the record again whenever the cluster's process is nudged (SIGUSR1), a node's process ends, or
//! an attempt has failed. A node's process that survived the cluster's is taken over, not started again.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use client::{Client, DeleteParams, Patch};
use cni::netns::Netns;
use futures_util::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::process::{Process, do_chore};
use super::record::{self, Network, Record, Wanted};
use super::run::{Chore, settings_file};
use super::{keys, namespace};
use crate::leftovers;
use crate::options::Options;
use crate::pki::{Pki, private_dir, write_private};
use crate::settings::{ClusterSettings, Settings};
use crate::shape::Shape;

const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// A process that lived this long was not in trouble from the start.
const STABLE_AFTER: Duration = Duration::from_secs(30);

pub(crate) struct Supervisor {
    pub cluster: Options,
    pub shape: Shape,
    pub network: Network,
    pub pki: Pki,
    /// Marks nodes that were stopped and deletes those that were removed.
    pub admin: Client,
    /// The node in this process.
    pub first_node: Vec<IpAddr>,
    /// That node's DNS server, which reaches the machine's resolvers.
    pub dns: SocketAddr,
}

impl Supervisor {
    /// Keeps the nodes until `stop`, which ends their processes too; their containers go on.
    pub(crate) async fn run(self, mut nudges: Signal, stop: CancellationToken) -> Result<()> {
        let supervisor = Arc::new(self);
        let (changed, changes) = watch::channel(());
        let mut keepers = JoinSet::new();
        let mut kept = HashSet::new();
        loop {
            for record in record::all(&supervisor.cluster)? {
                if kept.insert(record.name.clone()) {
                    keepers.spawn(FutureExt::boxed(supervisor.clone().keep(record, changes.clone(), stop.clone())));
                }
            }
            changed.send_replace(());
            tokio::select! {
                _ = nudges.recv() => {}
                Some(ended) = keepers.join_next() => drop(kept.remove(&ended?)),
                () = stop.cancelled() => break,
            }
        }
        while let Some(ended) = keepers.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Returns the node's name when the node is gone, or at the end of the cluster's process.
    async fn keep(
        self: Arc<Self>,
        record: Record,
        mut changes: watch::Receiver<()>,
        stop: CancellationToken,
    ) -> String {
        let mut failures = 0;
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let pause = match self.bring_in_line(&record, &mut changes, &stop).await {
                Ok(Wanted::Removed) => return record.name,
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(node = record.name, error = format!("{error:#}"), "trouble with a node");
                    failures = if began.elapsed() > STABLE_AFTER { 0 } else { failures + 1 };
                    Some(client::backoff::exponential(RETRY.0, RETRY.1, failures))
                }
            };
            let retry = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return record.name,
                _ = changes.changed() => {}
                () = retry => {}
            }
        }
    }

    /// Does what the record asks for; stays for as long as a node that is to run does run.
    async fn bring_in_line(
        &self,
        record: &Record,
        changes: &mut watch::Receiver<()>,
        stop: &CancellationToken,
    ) -> Result<Wanted> {
        let cluster = &self.cluster;
        let Some(record) = record.reload(cluster)? else { return Ok(Wanted::Removed) };
        match record.wanted {
            Wanted::Running => {
                self.prepare(&record)?;
                let mut process = match Process::running(&record.options(cluster))? {
                    Some(process) => process,
                    None => Process::start(cluster, &record)?,
                };
                loop {
                    tokio::select! {
                        how = process.ended() => return Err(anyhow!("its process ended: {how}")),
                        () = stop.cancelled() => {
                            process.stop().await?;
                            return Ok(Wanted::Running);
                        }
                        _ = changes.changed() => {
                            if record.reload(cluster)?.is_none_or(|record| record.wanted != Wanted::Running) {
                                process.stop().await?;
                                return Box::pin(self.bring_in_line(&record, changes, stop)).await;
                            }
                        }
                    }
                }
            }
            Wanted::Stopped => {
                if Netns::is_kept_at(record.netns(cluster)) {
                    switch_off(cluster, &record, Chore::StopPods).await?;
                }
                self.mark_stopped(&record.name).await?;
            }
            Wanted::Removed => {
                remove(cluster, &record).await?;
                let deleted = self.admin.all::<Node>().delete(&record.name, &DeleteParams::default()).await;
                if let Err(error) = deleted
                    && !error.is_not_found()
                {
                    return Err(error).context("deleting the node's object");
                }
            }
        }
        Ok(record.wanted)
    }

    /// What a node's process finds when it starts.
    fn prepare(&self, record: &Record) -> Result<()> {
        let options = record.options(&self.cluster);
        private_dir(&options.data_dir)?;
        private_dir(&options.run_dir)?;
        namespace::ensure(&self.cluster, &self.network, record, &self.first_node)?;
        let server = self.network.server_url(self.shape.secure_port)?;
        keys::prepare(&self.cluster, &self.network, &self.pki, record, &server)?;
        let settings = Settings {
            name: record.name.clone(),
            address: record.address,
            second_address: self.network.second_of(record.address),
            kubelet_port: self.shape.kubelet_port,
            cluster: ClusterSettings::new(&self.shape)?,
            registries: self.shape.registries.clone(),
            images_dir: self.cluster.images_dir(),
            also_behind: Vec::new(),
            asks_for_certificate: false,
            resolvers: Some(vec![self.dns]),
            labels: Vec::new(),
            taints: Vec::new(),
        };
        write_private(&settings_file(&options), &serde_json::to_vec_pretty(&settings)?)
    }

    /// Tells the cluster at once what it would otherwise conclude from silence.
    async fn mark_stopped(&self, name: &str) -> Result<()> {
        let now = api::time::rfc3339(Timestamp::now());
        let patch = Patch::strategic(json!({"status": {"conditions": [{
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStopped",
            "message": "The node was stopped with 'cox node stop'.",
            "lastTransitionTime": now,
        }]}}));
        match self.admin.all::<Node>().patch_status(name, &patch).await {
            // A node that never came as far as registering itself.
            Err(error) if !error.is_not_found() => Err(error).context("marking the node as stopped"),
            _ => Ok(()),
        }
    }
}

/// Removes everything of a node that is on this machine.
pub(crate) async fn remove(cluster: &Options, record: &Record) -> Result<()> {
    let options = record.options(cluster);
    private_dir(&options.run_dir)?;
    // Pods leave the namespace they are in; after a restart of the machine that is an empty one.
    if !Netns::is_kept_at(record.netns(cluster)) {
        Netns::create(record.netns(cluster))?;
    }
    switch_off(cluster, record, Chore::RemovePods).await?;
    leftovers::remove_cgroups(&options.cgroup())?;
    for dir in [&options.run_dir, &options.data_dir] {
        leftovers::unmount_below(dir)?;
        leftovers::remove_dir(dir)?;
    }
    Ok(())
}

/// Ends the node's process, its pods and its network.
async fn switch_off(cluster: &Options, record: &Record, chore: Chore) -> Result<()> {
    if let Some(process) = Process::running(&record.options(cluster))? {
        process.stop().await?;
    }
    do_chore(cluster, record, chore).await?;
    namespace::remove(cluster, record)
}
