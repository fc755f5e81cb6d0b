//! Routes of a node: to the pods of other nodes, and nowhere for addresses of the cluster that nobody has.
//!
//! Flow: Node objects -> [`Peer`]s -> [`plan`] (which peer is reached how) -> [`program`], which changes only what differs
//! and only what carries our routing protocol number. Where traffic between nodes is encrypted, [`program_devices`] leads it into
//! the devices that do so instead. [`masquerade`] is for what leaves the cluster.

mod devices;
mod egress;
mod hosts;
mod ranges;

pub use devices::{program_devices, remove_plain};
pub use egress::masquerade;
pub use hosts::{Backend, Peer, Plan, VxlanConfig, is_in_place, plan, pod_mtu, program};
pub use ranges::{seal, unseal};
