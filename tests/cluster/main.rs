//! End to end, on the real binary: one file per capability that a user would name.

#![allow(clippy::unwrap_used)]

mod authority;
mod autoscaling;
mod browser;
mod certificates;
mod client;
mod closed_pipe;
mod dual_stack;
mod etcd_members;
mod etcd_servers;
mod first_minute;
mod forms;
mod hard_way;
mod harness;
mod import;
mod ingress;
mod inside_pods;
mod join;
mod kubectl;
mod leftovers;
mod manifests;
mod network_policy;
mod nodes;
mod offline;
mod policies_under_kills;
mod prometheus;
mod reboot;
mod resume;
mod rounds;
mod secrets_at_rest;
mod server_group;
mod servers;
mod services;
mod trace;
mod ui;
mod upgrade;
mod upgrade_servers;
mod walk;
