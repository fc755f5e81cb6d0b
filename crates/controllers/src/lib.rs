//! The controllers of kube-controller-manager: current state -> desired state, for ever.
//!
//! Flow: shared informers -> each controller's event mapping -> its work queue -> `reconcile` -> the API. Every controller
//! has the same shape (`controller`), is one line in one table (`table`), acts as its own service account, and keeps
//! what it decides (`plan`, pure) apart from what it does.
//! Invariant: reconcile reads the present state only, so running it twice, late or after a restart changes nothing.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod args;
mod config;
mod controller;
mod error;
mod manager;
mod table;

mod cidr_set;
mod history;
mod int_or_percent;
mod owners;
mod pods;
mod slow_start;

mod bootstrap_tokens;
mod certificates;
mod cluster_role_aggregation;
mod cron_job;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoints;
mod garbage;
mod horizontal_pod_autoscaler;
mod job;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod pod_gc;
mod replica_set;
mod resource_quota;
mod root_ca;
mod service_account;
mod service_cidr;
mod service_lb;
mod stateful_set;
mod storage_version_migration;
mod taint_eviction;
mod ttl_after_finished;
mod volume;

pub use args::{Args, main};
pub use bootstrap_tokens::jws;
pub use cidr_set::Range;
pub use config::{Autoscaling, Config, LoadBalancing, LocalPath};
pub use controller::Descriptor;
pub use error::Error;
pub use manager::run;
pub use service_lb::LOAD_BALANCER_CLASS;
pub use table::{CONTROLLERS, SelectionError, check_selection};
pub use volume::LOCAL_PATH;
