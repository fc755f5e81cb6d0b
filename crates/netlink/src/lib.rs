//! Netlink, synchronous and small: the handful of requests that plug-ins, routes and packet rules make.
//!
//! A plug-in lives for a few milliseconds and talks to two namespaces, one request at a time; a socket per namespace and
//! blocking calls are the whole need.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod announce;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod generic;
mod link;
mod message;
mod neighbour;
pub mod nft;
mod qdisc;
mod route;
mod socket;
pub mod wireguard;

pub use address::{Address, Own, settle};
pub use announce::announce;
pub use flow::Flow;
pub use link::{Link, LinkKind, is_valid_ifname, mac_text, parse_mac};
pub use neighbour::Neighbour;
pub use qdisc::TokenBucket;
pub use route::{Route, RouteKind, Scope};
pub use socket::Socket;
