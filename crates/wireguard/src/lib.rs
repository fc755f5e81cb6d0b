//! Pod traffic between nodes, encrypted with WireGuard.
//!
//! Flow: a node makes a private key for each generation of keys and says the public half in an annotation of its Node
//! ([`Announcement`]) -> [`plan()`] (pure) says who is a peer of which device, and [`Plan::ways`] which device the pods of a node
//! are behind -> [`Mesh`] brings devices, peers and routes in line, in the kernel or, where that has no WireGuard, in a thread
//! of this process behind a TUN device. [`guard()`] drops what would pass by.
//!
//! Keys are exchanged without a gap because there are two devices, for generations with even and with odd numbers: the new one is
//! made beside the old one, each pair of nodes goes over to it once a handshake was made there, and the old one goes when
//! nobody needs it any more. A device never changes its key, and a range has one device at any time.
//! Invariant: a node without a key that is known has no route, and what has no route is unreachable.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod announcement;
mod device;
mod guard;
mod key;
mod mesh;
mod plan;

pub use announcement::{ANNOTATION, Announcement, BadAnnouncement};
pub use device::{Device, DeviceError, Kind, PeerState, present, support};
pub use guard::{guard, unguard};
pub use key::{BadKey, PrivateKey, PublicKey};
pub use mesh::{Mesh, MeshError, Outcome, PeerReport, Settings, remove_links};
pub use plan::{Node, Peer, Plan, Unreachable, Way, plan};

use std::net::IpAddr;

/// The devices: one for generations with even numbers, one for those with odd numbers.
pub const LINKS: [&str; 2] = ["cox-wg0", "cox-wg1"];

/// WireGuard's usual port; the second device has the next one.
pub const DEFAULT_PORT: u16 = 51820;

/// What is added to a packet: IP 20 or 40, UDP 8, WireGuard 32.
const OVERHEAD_V4: u32 = 60;
const OVERHEAD_V6: u32 = 80;

/// Which of the two devices the keys of a generation belong to.
pub fn place(generation: u64) -> usize {
    usize::from(generation % 2 == 1)
}

/// The largest packet that fits into one of the hosts' network, for a node with these addresses.
pub fn mtu(underlay: u32, addresses: impl IntoIterator<Item = IpAddr>) -> u32 {
    let is_v6 = addresses.into_iter().any(|address| address.is_ipv6());
    underlay.saturating_sub(if is_v6 { OVERHEAD_V6 } else { OVERHEAD_V4 })
}
