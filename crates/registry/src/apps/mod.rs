//! Strategies of the apps group: workloads that keep pods running.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod rules;
pub mod stateful_set;
