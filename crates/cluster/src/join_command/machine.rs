//! The process of a machine that has joined a cluster: a node and nothing else.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Clock};
use tokio_util::sync::CancellationToken;

use crate::authority;
use crate::balancer::Balancer;
use crate::components::{Components, explained, interrupted};
use crate::join::enrolment::cluster_settings;
use crate::join::membership::{Membership, bootstrap_kubeconfig, node_kubeconfig, read_kubeconfig, servers_file};
use crate::lock::Lock;
use crate::nodes::{Clients, Node, start_dns, until_ready};
use crate::options::Options;
use crate::pki::{Pki, private_dir};
use crate::progress::Progress;
use crate::{upgrade, usual_place};

/// For the cluster to say how it is now.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(5);
/// Between looks at a client certificate that could not be renewed.
const RENEWAL_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Runs the node until SIGTERM or SIGINT. Progress goes to standard output.
pub(super) async fn run(options: &Options) -> Result<()> {
    private_dir(&options.run_dir)?;
    match Lock::take(&options.lock_file())? {
        Ok(lock) => lock.keep(),
        Err(holder) => bail!("process {} runs this node already", holder.pid),
    }
    let mut member = Membership::load(options)?.context("this machine has not joined a cluster")?;
    let mut progress = Progress::default();
    tokio::select! {
        result = credentials(options, &member) => result?,
        result = interrupted() => return result,
    }
    // It would wait for ever for a cluster that does not know it.
    member.check_certificate(options, Clock::default().now())?;
    progress.done("credentials", &format!("system:node:{}", member.settings.name));
    let balancer = Balancer::start(servers_file(options), &member.server).await?;
    let client = connect(options, &balancer)?;
    follow_encryption(options, &client, &mut member).await?;
    let mut components = Components::new();
    let follower = client.clone();
    components.supervise("servers", move |stop| balancer.clone().follow(follower.clone(), stop));
    let (own, dirs, who) = (client.clone(), options.clone(), member.clone());
    let (asker, asker_name, keys) = (client.clone(), member.settings.name.clone(), options.pki_dir());
    components
        .supervise("authority", move |stop| authority::follow(asker.clone(), keys.clone(), asker_name.clone(), stop));
    let machine = upgrade::Machine::node(options, &member, &client);
    components.supervise("upgrade", move |stop| machine.clone().follow(stop));
    components.supervise("client-certificate", move |stop| renew(own.clone(), dirs.clone(), who.clone(), stop));
    let ended = tokio::select! {
        ended = async {
            start(options, &member, &client, &mut progress, &mut components).await?;
            components.until_stopped().await
        } => ended,
        result = interrupted() => result,
    };
    let finished = components.finish().await;
    explained(ended).and(finished)
}

/// Whether the cluster encrypts is for the cluster to say, also after this machine has joined. A cluster that does not answer has said
/// nothing new.
async fn follow_encryption(options: &Options, client: &Client, member: &mut Membership) -> Result<()> {
    let asked = tokio::time::timeout(SETTINGS_TIMEOUT, cluster_settings(client)).await;
    match asked.context("the cluster does not answer").flatten() {
        Ok(settings) if settings.encryption != member.settings.cluster.encryption => {
            member.settings.cluster.encryption = settings.encryption;
            member.save(options)
        }
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!("the cluster's settings are taken to be those of before: {error:#}");
            Ok(())
        }
    }
}

/// Renews the client certificate before it ends, until `stop`. Connections that are made from then on show it, also those
/// that take the place of one whose certificate the servers no longer accept.
async fn renew(client: Client, options: Options, member: Membership, stop: CancellationToken) -> Result<()> {
    let (clock, dir) = (Clock::default(), options.pki_dir());
    loop {
        tokio::select! {
            () = kubelet::renewed(&client, &dir, &member.settings.name, &clock) => {}
            () = stop.cancelled() => return Ok(()),
        }
        match member.check_certificate(&options, clock.now()) {
            Ok(()) => tracing::info!("going on with a renewed client certificate"),
            Err(ended) => tracing::error!("{ended}"),
        }
        // One that has ended is there again at once. The clock may be what is wrong.
        tokio::select! {
            () = tokio::time::sleep(RENEWAL_RETRY_INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Makes sure of a client certificate. The token has served its purpose then.
async fn credentials(options: &Options, member: &Membership) -> Result<()> {
    let (own, first) = (node_kubeconfig(options), bootstrap_kubeconfig(options));
    if first.exists() {
        kubelet::bootstrap(&own, &first, &options.pki_dir(), &member.settings.name, &Clock::default())
            .await
            .context("getting a client certificate")?;
        std::fs::remove_file(&first).with_context(|| first.display().to_string())?;
    }
    Ok(())
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
    usual_place::ensure(options);
    let summaries = Default::default();
    let node = Node { options, settings, pki, clients: clients.clone(), pulls: None, summaries };
    let gateway = node.start(components).await?;
    start_dns(settings, clients, gateway, components)?;
    progress.done("network", &format!("pods behind {gateway}"));
    components.until(until_ready(client, &settings.name)).await?;
    progress.ready();
    Ok(())
}

fn connect(options: &Options, balancer: &Balancer) -> Result<Client> {
    kubelet::client_of(&balancer.redirect(read_kubeconfig(options)?))
}
