//! What is simulated.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use client::Client;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What to simulate. Start from [`Config::new`] and set what differs.
#[derive(Clone)]
pub struct Config {
    /// May register nodes, renew leases, and write the status of pods.
    pub client: Client,
    pub nodes: usize,
    /// Names are this and a number from 0.
    pub name_prefix: String,
    pub capacity: BTreeMap<String, Quantity>,
    /// On every node, besides host name, architecture and operating system.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Node `i` is in `zone-<i mod zones>`; 0 means no zones.
    pub zones: usize,
    /// From bound to running.
    pub startup: Duration,
    /// How long the containers of pods that end run, unless the pod says otherwise (see `plan`).
    pub run_for: Duration,
    pub lease_duration: Duration,
    /// Where addresses of pods begin; they are taken from the 2^22 addresses after it.
    pub first_pod_address: Ipv4Addr,
    /// The address of node 0.
    pub first_node_address: Ipv4Addr,
}

impl Config {
    /// `nodes` large nodes whose pods start at once.
    pub fn new(client: Client, nodes: usize) -> Self {
        let capacity = [("cpu", "32"), ("memory", "256Gi"), ("pods", "110"), ("ephemeral-storage", "1Ti")];
        Self {
            client,
            nodes,
            name_prefix: "hollow-".into(),
            capacity: capacity.map(|(name, amount)| (name.to_owned(), Quantity(amount.into()))).into(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            zones: 0,
            startup: Duration::ZERO,
            run_for: Duration::ZERO,
            lease_duration: Duration::from_secs(40),
            first_pod_address: Ipv4Addr::new(10, 64, 0, 0),
            first_node_address: Ipv4Addr::new(172, 16, 0, 1),
        }
    }

    /// Changes one kind of capacity.
    pub fn with_capacity(mut self, resource: &str, amount: &str) -> Self {
        self.capacity.insert(resource.into(), Quantity(amount.into()));
        self
    }
}
