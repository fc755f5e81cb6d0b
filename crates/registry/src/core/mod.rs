//! Strategies of the core group.

pub mod config_map;
pub mod endpoints;
pub mod event;
pub mod limit_range;
pub mod namespace;
pub mod node;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod pod;
mod pod_parts;
pub mod pod_spec;
pub mod pod_template;
pub mod pod_update;
pub mod pod_validation;
pub mod replication_controller;
pub mod resource_quota;
pub mod secret;
pub mod service;
pub mod service_account;
pub mod volume_sources;
pub(crate) mod volume_warnings;
