//! The scheduler: gives every pod that has none a node.
//!
//! Flow: informers -> `queue` -> one pod at a time through `cycle` (filters and scores of the plug-ins in `framework`
//! on an immutable `snapshot`) -> the cache assumes the pod there -> a Binding is POSTed in the background.
//! Invariant: a decision counts every pod that is bound or assumed, so a node is never over-committed by us.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod cycle;
mod framework;
mod node;
mod plugins;
mod pod;
mod preemption;
mod queue;
mod run;

pub use run::{Args, Config, main, run};
