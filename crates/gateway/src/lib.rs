//! Ingress and Gateway API: how the world outside reaches services by host and path.
//!
//! Flow: informers ([`run`]) -> [`world`] (what is known) -> [`plan`] (pure: routing table, statuses, events) -> the table is swapped as a
//! whole, ports are opened and closed, statuses written. The data plane serves whatever table there is.
//!
//! Invariants: a change of routes or certificates ends no connection; nothing is gathered that only passes through; a request is
//! sent again only if nothing of it was sent; what a client says about its address is not believed; references into another
//! namespace need its consent.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
pub mod gateway_api;
pub mod install;
pub mod own_addresses;
pub mod plan;
mod runner;
pub mod world;

pub use args::{Args, main};
pub use data_plane::{Limits, hostname, table};
pub use plan::{CLASS, GATEWAY_CONTROLLER, INGRESS_CONTROLLER};
pub use runner::run;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use api::cidr::Cidr;

/// Ranges without an address by which others reach one machine.
const NO_MACHINES: [Cidr; 9] = [
    // This network, loopback, link-local, multicast, broadcast.
    Cidr { addr: IpAddr::V4(Ipv4Addr::new(0, 0, 0, 0)), prefix: 8 },
    Cidr { addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 },
    Cidr { addr: IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), prefix: 16 },
    Cidr { addr: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), prefix: 4 },
    Cidr { addr: IpAddr::V4(Ipv4Addr::BROADCAST), prefix: 32 },
    // Unspecified and loopback, IPv4-mapped, link-local, multicast.
    Cidr { addr: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix: 127 },
    Cidr { addr: IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0)), prefix: 96 },
    Cidr { addr: IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), prefix: 10 },
    Cidr { addr: IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), prefix: 8 },
];

/// What the gateway of one node needs to know.
#[derive(Clone)]
pub struct Config {
    pub client: client::Client,
    /// The node it runs on: its zone decides between endpoints.
    pub node_name: String,
    /// Where it listens.
    pub listen: Vec<IpAddr>,
    /// What statuses say, if not where it listens.
    pub publish: Vec<IpAddr>,
    /// Addresses of which each Gateway gets some for itself, put on a link of this machine. Without any, all share `listen`.
    pub address_pool: Vec<Cidr>,
    /// The ports of Ingresses. Gateways name theirs.
    pub http_port: u16,
    pub https_port: u16,
    /// Ports that no Gateway gets, free or not.
    pub reserved_ports: BTreeSet<u16>,
    pub limits: Limits,
    /// A file to which a line per request is appended; `-` is standard output.
    pub access_log: Option<PathBuf>,
    /// Where `/metrics` and `/healthz` answer.
    pub metrics_bind_address: Option<SocketAddr>,
}

/// Why a gateway cannot be as it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum BadPool {
    #[error("{0}: not a range of addresses that a machine can have, as it overlaps {1}")]
    NoMachines(Cidr, Cidr),
    #[error("{0} and {1} overlap")]
    Overlap(Cidr, Cidr),
    #[error("with a pool of addresses for Gateways, --listen names single addresses, not {0}")]
    ListensEverywhere(IpAddr),
}

impl Config {
    /// Refuses a pool that cannot be given out: with addresses that no machine can have or that others use. `taken` are ranges
    /// of theirs.
    pub fn check_pool(pool: &[Cidr], taken: &[Cidr]) -> Result<(), BadPool> {
        for (at, range) in pool.iter().enumerate() {
            // Of two ranges that overlap, one is within the other.
            let overlaps = |other: &&Cidr| other.contains(range.network().addr) || range.contains(other.network().addr);
            if let Some(special) = NO_MACHINES.iter().find(overlaps) {
                return Err(BadPool::NoMachines(*range, *special));
            }
            if let Some(other) = pool[..at].iter().chain(taken).find(overlaps) {
                return Err(BadPool::Overlap(*range, *other));
            }
        }
        Ok(())
    }

    /// Fails if the access log cannot be written, for whoever can do without it: [`run`] fails then, too.
    pub fn check_access_log(&self) -> anyhow::Result<()> {
        self.access_log.as_deref().map_or(Ok(()), data_plane::check_access_log)
    }

    /// A port of all addresses leaves none of it for a single one.
    fn check(&self) -> Result<(), BadPool> {
        Self::check_pool(&self.address_pool, &[])?;
        let everywhere = self.listen.iter().find(|address| address.is_unspecified());
        match everywhere.filter(|_| !self.address_pool.is_empty()) {
            Some(address) => Err(BadPool::ListensEverywhere(*address)),
            None => Ok(()),
        }
    }

    pub fn new(client: client::Client, node_name: impl Into<String>, listen: Vec<IpAddr>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            listen,
            publish: Vec::new(),
            address_pool: Vec::new(),
            http_port: 80,
            https_port: 443,
            reserved_ports: BTreeSet::new(),
            limits: Limits::default(),
            access_log: None,
            metrics_bind_address: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_pool_is_of_addresses_that_nobody_else_has() {
        let handler: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        let client = client::Client::in_process(handler, api::UserInfo::default());
        for (listen, pool, expected) in [
            ("192.0.2.1", &["192.0.2.0/24", "2001:db8::/64"][..], ""),
            ("0.0.0.0", &[], ""),
            ("0.0.0.0", &["198.51.100.0/24"], "--listen names single addresses"),
            ("192.0.2.1", &["198.51.100.0/24", "198.51.100.7/32"], "overlap"),
            ("192.0.2.1", &["ff02::/16"], "not a range of addresses"),
            ("192.0.2.1", &["0.0.0.0/0"], "not a range of addresses"),
            ("192.0.2.1", &["169.254.7.0/24"], "as it overlaps 169.254.0.0/16"),
            ("192.0.2.1", &["::ffff:192.0.2.0/120"], "as it overlaps ::ffff:0.0.0.0/96"),
            // A machine can have the first and the last address of these.
            ("192.0.2.1", &["168.0.0.0/7"], "as it overlaps 169.254.0.0/16"),
            ("192.0.2.1", &["fe00::/8"], "as it overlaps fe80::/10"),
            ("192.0.2.1", &["168.0.0.0/8", "169.255.0.0/16", "fd00::/8"], ""),
        ] {
            let mut config = Config::new(client.clone(), "node-1", vec![listen.parse().unwrap()]);
            config.address_pool = pool.iter().map(|range: &&str| range.parse().unwrap()).collect();
            let said = config.check().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{pool:?}: {said}");
        }
    }
}
