//! Strategies of the discovery group.

pub mod endpoint_slice;
