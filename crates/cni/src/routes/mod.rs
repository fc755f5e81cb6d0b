//! Routes of a node: to the pods of other nodes, and nowhere for addresses of the cluster that nobody has.
//!
//! Flow: Node objects -> [`Peer`]s -> [`plan`] (which peer is reached how) -> [`program`], which changes only what differs
//! and only what carries our routing protocol number. [`masquerade`] is for what leaves the cluster.

mod egress;
mod hosts;
mod ranges;

pub use egress::masquerade;
pub use hosts::{Backend, Peer, Plan, VxlanConfig, plan, pod_mtu, program};
pub use ranges::{seal, unseal};
