//! The data plane of the gateway: sockets, requests and connections to endpoints, by a routing table ([`table`]).
//!
//! It is a crate of its own because every request runs through it: it is compiled for speed, and what makes the table is not.
//! What is public and waits is boxed: an `async fn` would be compiled by whoever waits for it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod hostname;
mod metrics;
mod plane;
pub mod table;

pub use metrics::RouteMetrics;
pub use plane::{DataPlane, Limits, Ports, Workers, check_access_log};
