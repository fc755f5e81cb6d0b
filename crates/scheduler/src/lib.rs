//! The scheduler: gives every pod that has none a node.
//!
//! Flow: informers -> `handlers` -> `cluster` and `queue` -> one pod at a time through `cycle` (the plug-ins of its
//! `framework` profile filter and score nodes) -> the cluster assumes the pod there -> `binding` in the background, or
//! `failure`. Invariant: a decision counts every pod that is bound or assumed, so a node is never over-committed by us.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod args;
mod binding;
mod cluster;
mod config;
mod cycle;
mod extender;
mod failure;
mod framework;
mod handlers;
mod metrics;
mod offline;
mod permits;
mod plugins;
mod pod;
mod queue;
mod resource_metrics;
mod run;
mod scheduler;

#[cfg(test)]
mod equivalence;

pub use args::{Args, main};
pub use config::{Configuration, ConfigurationError};
pub use offline::{Offline, Outcome};
pub use run::{Config, run};
