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
mod data_plane;
pub mod gateway_api;
pub mod hostname;
pub mod install;
mod metrics;
pub mod plan;
mod runner;
pub mod table;
pub mod world;

pub use args::{Args, main};
pub use data_plane::Limits;
pub use plan::{CLASS, GATEWAY_CONTROLLER, INGRESS_CONTROLLER};
pub use runner::run;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

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

impl Config {
    pub fn new(client: client::Client, node_name: impl Into<String>, listen: Vec<IpAddr>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            listen,
            publish: Vec::new(),
            http_port: 80,
            https_port: 443,
            reserved_ports: BTreeSet::new(),
            limits: Limits::default(),
            access_log: None,
            metrics_bind_address: None,
        }
    }
}
