//! Strategies of the core group.

pub mod config_map;
pub mod namespace;
