//! Cluster IPs and node ports: who has which.
//!
//! Both are claimed in the store before the service is written, so that two services never share one, not even where
//! several servers write to the same etcd: an address by creating its `IPAddress` object, ports by a compare-and-swap on
//! one set of them all. A claim is given back when the write fails, unless the store's answer was lost and the service may be
//! there; what that or a crash leaves behind, `repair` finds.

mod addresses;
mod node_ports;
mod plan;
pub(crate) mod range;
pub(crate) mod repair;

use std::net::IpAddr;
use std::sync::Arc;

use api::field::FieldErrors;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use api::{GroupKind, Status};
use k8s_openapi::api::core::v1::Service;

use crate::cluster::Cluster;

/// Addresses and ports that a service holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl Taken {
    pub(crate) fn of(service: &Service) -> Self {
        let Some(spec) = &service.spec else { return Self::default() };
        let mut addresses: Vec<IpAddr> =
            spec.cluster_ips.iter().flatten().filter_map(|text| text.parse().ok()).collect();
        if addresses.is_empty() {
            addresses.extend(spec.cluster_ip.iter().filter_map(|text| text.parse::<IpAddr>().ok()));
        }
        let mut ports: Vec<u16> = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| u16::try_from(port.node_port?).ok())
            .filter(|port| *port > 0)
            .collect();
        ports.extend(spec.health_check_node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0));
        ports.compact_sort();
        ports.dedup();
        Self { addresses, ports }
    }

    pub(crate) fn without(mut self, other: &Taken) -> Self {
        self.addresses.retain(|address| !other.addresses.contains(address));
        self.ports.retain(|port| !other.ports.contains(port));
        self
    }
}

/// Gives a service what it needs and does not have, or refuses. Returns what was newly claimed.
pub(crate) async fn allocate(
    cluster: &Arc<Cluster>,
    service: &mut Service,
    old: Option<&Service>,
    dry_run: bool,
) -> Result<Taken, Status> {
    let held = old.map(Taken::of).unwrap_or_default();
    if let Some(old) = old {
        plan::keep_allocated(service, old);
    }
    let mut taken = Taken::default();
    let mut errors = FieldErrors::default();
    addresses::fill(cluster, service, &held, dry_run, &mut taken, &mut errors).await?;
    if errors.is_empty() {
        node_ports::fill(cluster, service, &held, dry_run, &mut taken, &mut errors).await?;
    }
    if dry_run {
        taken = Taken::default();
    }
    if errors.is_empty() {
        return Ok(taken);
    }
    release(cluster, service, &taken).await;
    let name = service.metadata.name();
    Err(Status::invalid(&GroupKind::new("", "Service"), name, errors))
}

/// Gives back what `service` had. A failure leaves a claim behind, which repair finds.
pub(crate) async fn release(cluster: &Arc<Cluster>, service: &Service, taken: &Taken) {
    for address in &taken.addresses {
        if let Err(error) = addresses::release(cluster, service, *address).await {
            tracing::warn!(%address, %error, "an address was not given back; repair will");
        }
    }
    if taken.ports.is_empty() {
        return;
    }
    if let Err(error) = node_ports::release(cluster, &taken.ports).await {
        tracing::warn!(ports = ?taken.ports, %error, "node ports were not given back; repair will");
    }
}
