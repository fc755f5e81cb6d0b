//! Network policies: which packets a node lets through to its pods and from them.
//!
//! Flow: informers on Pods, Namespaces, NetworkPolicies and, if the cluster has that kind, ClusterNetworkPolicies and Nodes ->
//! [`world`] (what policies can know) -> [`plan`] (pure: chains and sets for the pods of this node, kept change by change) ->
//! [`program`] (the difference to what is in the kernel) -> transactions in the table `cox-policy`. [`decision`] says the same of a single connection, slowly: tests hold the kernel against it.
//!
//! Invariants: what a packet costs depends neither on the number of policies nor on that of pods; a pod has its rules before
//! it has its first packet ([`registration`]); rules stay when we stop, and are exchanged as a whole when we come back; what the
//! kernel refuses leaves those whom it concerns closed.
//! Not here: traffic between a node and its own pods, which is always allowed, and pods in the host's network, which are the
//! host.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cluster_policy;
mod conditions;
pub mod decision;
mod objects;
mod plan;
mod program;
mod ranges;
mod registration;
mod runner;
#[cfg(test)]
mod tests;
pub mod world;

pub use runner::run;

use std::path::PathBuf;

/// What the policies of one node need to know.
#[derive(Clone)]
pub struct Config {
    pub client: client::Client,
    pub node_name: String,
    /// The bridge that this node's pods are on.
    pub bridge: String,
    /// Where the plug-in `policy` announces pods.
    pub socket: PathBuf,
}
