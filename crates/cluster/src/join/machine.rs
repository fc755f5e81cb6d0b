//! The process of a machine that has joined a cluster: a node and nothing else.

use std::path::Path;

use anyhow::{Context, Result, bail};
use client::Client;
use client::kubeconfig::Kubeconfig;

use super::membership::{Membership, bootstrap_kubeconfig, node_kubeconfig};
use crate::components::{Components, interrupted};
use crate::lock::Lock;
use crate::nodes::{Clients, Node, start_dns, until_ready};
use crate::options::Options;
use crate::pki::{Pki, private_dir};
use crate::progress::Progress;

/// Why a round of the node's parts ended.
enum End {
    Told,
    /// A new client certificate is there, which only new connections show.
    Renewed,
}

/// Runs the node until SIGTERM or SIGINT. Progress goes to standard output.
pub(super) async fn run(options: &Options) -> Result<()> {
    private_dir(&options.run_dir)?;
    let _lock = match Lock::take(&options.lock_file())? {
        Ok(lock) => lock,
        Err(holder) => bail!("process {} runs this node already", holder.pid),
    };
    let member = Membership::load(options)?.context("this machine has not joined a cluster")?;
    let mut progress = Progress::default();
    tokio::select! {
        result = credentials(options, &member) => result?,
        result = interrupted() => return result,
    }
    progress.done("credentials", &format!("system:node:{}", member.settings.name));
    while let End::Renewed = round(options, &member, &mut progress).await? {
        tracing::info!("going on with a renewed client certificate");
    }
    Ok(())
}

/// Makes sure of a client certificate. The token has served its purpose then.
async fn credentials(options: &Options, member: &Membership) -> Result<()> {
    let (own, first) = (node_kubeconfig(options), bootstrap_kubeconfig(options));
    if first.exists() {
        kubelet::bootstrap(&own, &first, &options.pki_dir(), &member.settings.name)
            .await
            .context("getting a client certificate")?;
        std::fs::remove_file(&first).with_context(|| first.display().to_string())?;
    }
    Ok(())
}

async fn round(options: &Options, member: &Membership, progress: &mut Progress) -> Result<End> {
    let name = &member.settings.name;
    let client = connect(&node_kubeconfig(options))?;
    let mut components = Components::new();
    let cert_dir = options.pki_dir();
    let ended = tokio::select! {
        ended = async {
            start(options, member, &client, progress, &mut components).await?;
            components.until_stopped().await
        } => ended.map(|()| End::Told),
        result = interrupted() => result.map(|()| End::Told),
        () = kubelet::renewed(&client, &cert_dir, name) => Ok(End::Renewed),
    };
    let finished = components.finish().await;
    let end = ended?;
    finished.map(|()| end)
}

async fn start(
    options: &Options,
    member: &Membership,
    client: &Client,
    progress: &mut Progress,
    components: &mut Components,
) -> Result<()> {
    let settings = &member.settings;
    // A node may see what its proxy needs: one identity, one certificate to renew.
    let clients = Clients { kubelet: client.clone(), proxy: client.clone() };
    let pki = &Pki::open(&options.pki_dir());
    let node = Node { options, settings, pki, clients: clients.clone(), pulls: None };
    let gateway = node.start(components).await?;
    start_dns(settings, clients, gateway, components)?;
    progress.done("network", &format!("pods behind {gateway}"));
    components.until(until_ready(client, &settings.name)).await?;
    progress.ready();
    Ok(())
}

fn connect(kubeconfig: &Path) -> Result<Client> {
    let config = Kubeconfig::read(kubeconfig).with_context(|| kubeconfig.display().to_string())?;
    kubelet::client_of(&config)
}
