//! The nodes of a cluster: the one in the cluster's own process, and further ones beside it on the same machine.
//!
//! A further node is a process of its own (`cox node run`) in a network namespace of its own, joined to the others by a
//! bridge. It has its own directories, cgroup, keys and pod range, and reaches the API server as any machine would.
//! Flow: `cox node add|start|stop|rm` ([`cli`]) writes a `record` and nudges the cluster's process -> `supervisor` brings
//! `namespace`, `keys` and `process` in line with the records -> `run` starts the `parts` that every node has: runtime,
//! kubelet, proxy, `routes` (or `encrypted` ones).

pub mod cli;
mod encrypted;
mod keys;
mod namespace;
mod parts;
mod process;
mod reasons;
mod record;
mod routes;
mod run;
mod service_ranges;
mod supervisor;

pub(crate) use cli::{grow, until_ready};
pub(crate) use keys::prepare as prepare_keys;
pub(crate) use namespace::{ensure_bridge, remove_bridge};
pub(crate) use parts::{Clients, Node, PROXY_HEALTH_PORT, start_dns};
pub(crate) use record::{Network, Record, Wanted, all, find};
pub(crate) use run::{Chore, clear_pods};
pub(crate) use supervisor::{Supervisor, remove};
