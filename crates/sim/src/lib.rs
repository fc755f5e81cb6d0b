//! Hollow nodes: thousands of simulated kubelets in one process, for tests, benches and scale experiments.
//!
//! Flow: `nodes` registers them and renews their leases; one watch of all bound pods -> a work queue -> `plan` (pure: what
//! a kubelet would report next) -> one status patch or the final delete. To the control plane they are ordinary nodes.
//! Invariant: everything is read from the API, so a restarted simulation goes on where the old one stopped.
//! Not here: containers, logs, exec. There is no kubelet port to call.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod args;
mod config;
mod nodes;
mod plan;
mod pods;

pub use args::{Args, main, run};
pub use config::Config;
