//! The whole manager against the real API server in one process, with RBAC on: each controller has only its own rights.
//! The scheduler is ours, and the nodes are hollow.

#![allow(clippy::unwrap_used, reason = "tests")]

mod attach_detach;
mod autoscalers;
mod cron_jobs;
mod daemon_sets;
mod deployments;
mod disruption;
mod election;
mod endpoints;
mod garbage;
mod harness;
mod identities;
mod initializers;
mod jobs;
mod late_caches;
mod namespaces;
mod quotas;
mod scale;
mod scheduling;
mod snapshots;
mod stateful_sets;
mod storage_migrations;
mod tokens;
mod transport;
mod volumes;
mod workloads;
