//! rtnetlink, synchronous and small: the handful of requests the plug-ins and routes make.
//!
//! A plug-in lives for a few milliseconds and talks to two namespaces, one request at a time; a socket per namespace and
//! blocking calls are the whole need.

mod address;
mod flow;
mod link;
mod message;
mod neighbour;
mod qdisc;
mod route;
mod socket;

pub use address::Address;
pub use flow::Flow;
pub use link::{Link, LinkKind, is_valid_ifname, parse_mac};
pub use neighbour::Neighbour;
pub use qdisc::TokenBucket;
pub use route::{Route, RouteKind, Scope};
pub use socket::Socket;
