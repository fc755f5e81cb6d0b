//! The whole manager against the real API server in one process, with RBAC on: each controller has only its own rights.
//! The scheduler is ours, and the nodes are hollow.

#![allow(clippy::unwrap_used, reason = "tests")]

mod election;
mod garbage;
mod harness;
mod identities;
mod initializers;
mod scale;
mod tokens;
mod transport;
mod workloads;
