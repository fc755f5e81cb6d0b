//! The gateway of the cluster: what Ingresses and Gateways lead to, on the first node's address.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::cidr::Cidr;
use client::{Client, Election, LeaderElector};
use tokio_util::sync::CancellationToken;

use crate::shape::Shape;
use crate::{dns_service, progress};

/// Who the gateway is.
pub(crate) const USER: &str = "system:cox-gateway";
/// Where its metrics are, on the pods' gateway.
const METRICS_PORT: u16 = 9154;
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) fn config(shape: &Shape, client: Client, pods_gateway: IpAddr) -> Result<gateway::Config> {
    let mut config = shape.components.gateway(client)?;
    (config.node_name, config.listen) = (shape.node_name.clone(), shape.node_ips.clone());
    (config.http_port, config.https_port) = shape.gateway_ports;
    config.address_pool = shape.gateway_pool.clone();
    config.reserved_ports = [shape.secure_port, shape.kubelet_port, METRICS_PORT, dns_service::METRICS_PORT].into();
    config.metrics_bind_address = Some(SocketAddr::new(pods_gateway, METRICS_PORT));
    // It must not keep the cluster from starting.
    if let Err(error) = config.check_access_log() {
        progress::note(&format!("{error:#}: requests are not logged"));
        tracing::warn!("{error:#}: requests are not logged");
        config.access_log = None;
    }
    Ok(config)
}

/// Makes definitions, classes and the role, then serves. A cluster is of use without it, so it waits for a better time by itself.
/// Of several servers one serves, since an Ingress has one address to tell.
pub(crate) async fn run(
    admin: Client,
    config: gateway::Config,
    election: Option<Election>,
    stop: CancellationToken,
) -> Result<()> {
    remove_leftovers(config.address_pool.clone()).await?;
    let prepare = async || {
        gateway::install::grant(&admin, USER).await?;
        gateway::install::grant_ports(&admin).await?;
        gateway::install::install(&admin).await
    };
    while let Err(error) = prepare().await {
        tracing::warn!("the gateway is not prepared: {error:#}");
        tokio::select! {
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
    let Some(election) = election else { return gateway::run(config, stop).await };
    let mut ended = Ok(());
    let serve = |leading| async { ended = gateway::run(config, leading).await };
    let kept = LeaderElector::new(admin, election).run(stop, serve).await;
    ensure!(kept, "another server serves Ingresses now");
    ended
}

/// Takes away what a gateway that was killed has left on this machine, whatever pool it had: the addresses may be another server's now.
pub(crate) async fn remove_leftovers(pool: Vec<Cidr>) -> Result<()> {
    let removing = tokio::task::spawn_blocking(move || gateway::own_addresses::remove(&pool));
    removing.await?.context("addresses of Gateways")
}
