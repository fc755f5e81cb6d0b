//! Strategies of the core group.

pub mod config_map;
pub mod namespace;
pub mod pod;
pub mod pod_spec;
mod pod_validation;
pub mod service;
