//! Cluster DNS: the names of services and pods, answered straight from informer indexes.
//!
//! Flow: a packet ([`server`]) -> [`responder`]: what does the [`plan`] say of the name? -> [`zone`], which looks into the
//! [`index`], or [`hosts`] or [`template`] -> answer, kept ([`answers`]) until anything changes; otherwise [`forward`] asks the node's
//! resolvers and remembers what they say for a while. The plan is made from flags, or from a Corefile ([`corefile`]) that is
//! followed ([`configuration`]).
//! Invariants: an answer of the zone never waits; names of the cluster's domain are never sent to anybody else unless a
//! Corefile says so; a Corefile that cannot be used changes nothing.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod args;
mod configuration;
mod corefile;
mod datagrams;
mod forward;
mod hosts;
mod index;
mod metrics;
mod offline;
mod plan;
mod responder;
mod rewrite;
mod server;
mod settings;
mod template;
mod zone;

pub use args::{Args, main, resolvers, search_domains};
pub use offline::{Objects, Offline};
pub use plan::InvalidDomain;
pub use server::run;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Notify;

/// What the server of one cluster needs to know.
#[derive(Clone)]
pub struct Config {
    pub client: client::Client,
    /// UDP and TCP on each. A `kube-dns` Service without a selector leads here through an EndpointSlice with these addresses.
    pub listen: Vec<SocketAddr>,
    /// `cluster.local`.
    pub domain: String,
    /// Further addresses that lead here, such as the Service's.
    pub own: Vec<SocketAddr>,
    /// Where other names are asked for, in this order. Empty: other names are refused.
    pub upstreams: Vec<SocketAddr>,
    /// Domains with resolvers of their own.
    pub stub_domains: Vec<(String, Vec<SocketAddr>)>,
    /// Ranges of pods and services: addresses in them have no names elsewhere, so nobody else is asked.
    pub ranges: Vec<String>,
    /// What pods have in their search paths after the cluster's domain: that of the node.
    pub search: Vec<String>,
    /// Seconds clients may keep an answer.
    pub ttl: u32,
    /// Where `/ready` and `/health` answer.
    pub health_bind_address: Option<SocketAddr>,
    /// Where `/metrics` answers.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Namespace and name of a ConfigMap whose `Corefile` says how names are answered, in the place of flags, as long as it is there.
    pub corefile: Option<(String, String)>,
    /// Told once the server answers.
    pub serving: Arc<Notify>,
}

impl Config {
    pub fn new(client: client::Client, listen: Vec<SocketAddr>) -> Self {
        Self {
            client,
            listen,
            domain: "cluster.local".into(),
            own: Vec::new(),
            upstreams: Vec::new(),
            stub_domains: Vec::new(),
            ranges: Vec::new(),
            search: Vec::new(),
            ttl: 30,
            health_bind_address: None,
            metrics_bind_address: None,
            corefile: None,
            serving: Arc::default(),
        }
    }
}
