//! Who is a peer of which device, and which device the pods of a node are behind. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::cidr::Cidr;
use api::sort::{CompactCollect as _, CompactSort as _};

use crate::{Announcement, PublicKey, place};

/// A session is good for so long after its handshake (`REJECT_AFTER_TIME` of the protocol).
const SESSION_LIFETIME: Duration = Duration::from_secs(180);

/// Another node, as far as encryption cares.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub address: IpAddr,
    pub pod_cidrs: Vec<Cidr>,
    /// What it says of its keys, if it says something that is understood.
    pub announcement: Option<Announcement>,
}

/// A peer of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub key: PublicKey,
    pub endpoint: SocketAddr,
    pub allowed: Vec<Cidr>,
}

/// Why no way leads to the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unreachable {
    NoKey,
    /// It has keys, of generations that this node has none of.
    OtherGeneration,
    /// It says the key of another node, or this node's own.
    OthersKey,
    /// This node has no device that encrypts.
    NoDevice,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKey => "it has not published a WireGuard key",
            Self::OtherGeneration => "it has no WireGuard key of the present generation yet",
            Self::OthersKey => "it publishes a WireGuard key that another node has already",
            Self::NoDevice => "this node has no WireGuard device",
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What the devices are to have, by place.
    pub peers: [Vec<Peer>; 2],
    nodes: Vec<Planned>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Planned {
    name: String,
    ranges: Vec<Cidr>,
    /// Generations that both nodes have, the newest first; or why there are none.
    candidates: Result<Vec<(u64, PublicKey)>, Unreachable>,
}

/// The way to the pods of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    pub node: String,
    pub ranges: Vec<Cidr>,
    /// The generation whose device leads there.
    pub generation: Result<u64, Unreachable>,
    /// Whether a session is established.
    pub is_live: bool,
}

/// `own` are this node's keys by generation. Of two nodes that publish the same key the first in `nodes` has it: give those that are
/// there longer first, so that nobody takes another's place.
pub fn plan(me: &str, own: &BTreeMap<u64, PublicKey>, nodes: &[Node]) -> Plan {
    let mut plan = Plan::default();
    let mut taken: BTreeSet<PublicKey> = own.values().copied().compact_collect();
    for node in nodes.iter().filter(|node| node.name != me && !node.pod_cidrs.is_empty()) {
        let ranges: Vec<Cidr> = node.pod_cidrs.iter().map(Cidr::network).collect();
        let candidates = candidates(node, &ranges, own, &mut taken, &mut plan.peers);
        plan.nodes.push(Planned { name: node.name.clone(), ranges, candidates });
    }
    plan.nodes.compact_sort_by(|one, other| one.name.cmp(&other.name));
    for peers in &mut plan.peers {
        peers.compact_sort_by_key(|peer| peer.key);
    }
    plan
}

/// The generations by which a node is reached; its keys become peers of their devices.
fn candidates(
    node: &Node,
    ranges: &[Cidr],
    own: &BTreeMap<u64, PublicKey>,
    taken: &mut BTreeSet<PublicKey>,
    peers: &mut [Vec<Peer>; 2],
) -> Result<Vec<(u64, PublicKey)>, Unreachable> {
    let announcement = node.announcement.as_ref().filter(|said| !said.keys.is_empty()).ok_or(Unreachable::NoKey)?;
    let mut candidates = Vec::new();
    let mut is_others = false;
    for (generation, key) in announcement.keys.iter().rev() {
        if !taken.insert(*key) {
            is_others = true;
            continue;
        }
        let Some(endpoint) = announcement.endpoint(node.address, *generation) else { continue };
        if own.contains_key(generation) {
            peers[place(*generation)].push(Peer { key: *key, endpoint, allowed: ranges.to_vec() });
            candidates.push((*generation, *key));
        }
    }
    match (candidates.is_empty(), is_others) {
        (false, _) => Ok(candidates),
        (true, true) => Err(Unreachable::OthersKey),
        (true, false) => Err(Unreachable::OtherGeneration),
    }
}

impl Plan {
    /// The way to each node: by the newest generation in which both have spoken to each other, else the newest that both have. `ages` are
    /// the ages of the last handshakes of each device, none for a device that is not there.
    pub fn ways(&self, ages: &[Option<BTreeMap<PublicKey, Duration>>; 2]) -> Vec<Way> {
        let is_live = |generation: u64, key: &PublicKey| {
            let ages = ages[place(generation)].as_ref();
            ages.and_then(|ages| ages.get(key)).is_some_and(|age| *age < SESSION_LIFETIME)
        };
        let way = |node: &Planned| {
            let generation = node.candidates.as_ref().map_err(|why| *why).and_then(|all| {
                let there: Vec<_> = all.iter().filter(|(generation, _)| ages[place(*generation)].is_some()).collect();
                let live = there.iter().find(|(generation, key)| is_live(*generation, key));
                live.or(there.first()).map(|(generation, key)| (*generation, *key)).ok_or(Unreachable::NoDevice)
            });
            Way {
                node: node.name.clone(),
                ranges: node.ranges.clone(),
                is_live: generation.is_ok_and(|(generation, key)| is_live(generation, &key)),
                generation: generation.map(|(generation, _)| generation),
            }
        };
        self.nodes.iter().map(way).collect()
    }

    /// The node that has this key.
    pub fn node_of(&self, key: &PublicKey) -> Option<&str> {
        let has = |node: &&Planned| node.candidates.iter().flatten().any(|(_, known)| known == key);
        self.nodes.iter().find(has).map(|node| node.name.as_str())
    }
}

/// Whether some node is still reached by an older generation than `newest`.
pub(crate) fn needs_older(ways: &[Way], newest: u64) -> bool {
    ways.iter().any(|way| way.is_live && way.generation.is_ok_and(|generation| generation < newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    fn node(name: &str, address: &str, ranges: &[&str], keys: &[(u64, u8)]) -> Node {
        let keys: BTreeMap<u64, PublicKey> = keys.iter().map(|(generation, byte)| (*generation, key(*byte))).collect();
        Node {
            name: name.into(),
            address: address.parse().unwrap(),
            pod_cidrs: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            announcement: (!keys.is_empty()).then_some(Announcement { port: 51820, keys }),
        }
    }

    fn ages(list: &[(u8, u64)]) -> Option<BTreeMap<PublicKey, Duration>> {
        Some(list.iter().map(|(byte, seconds)| (key(*byte), Duration::from_secs(*seconds))).collect())
    }

    #[test]
    fn nodes_become_peers_of_the_devices_that_both_have() {
        let own = BTreeMap::from([(4, key(100)), (5, key(101))]);
        let nodes = [
            node("me", "192.0.2.1", &["10.42.0.0/24"], &[(4, 100), (5, 101)]),
            node("both", "192.0.2.2", &["10.42.1.0/24", "fd42:0:0:1::/64"], &[(4, 1), (5, 2)]),
            node("late", "2001:db8::3", &["10.42.2.0/24"], &[(4, 3)]),
            node("old", "192.0.2.4", &["10.42.3.0/24"], &[(2, 4), (3, 5)]),
            node("plain", "192.0.2.5", &["10.42.4.0/24"], &[]),
            node("new", "192.0.2.6", &[], &[(5, 6)]),
        ];
        let plan = plan("me", &own, &nodes);
        let peers = |place: usize| -> Vec<String> {
            plan.peers[place].iter().map(|peer| format!("{} {}", peer.endpoint, peer.allowed.len())).collect()
        };
        assert_eq!(peers(0), ["192.0.2.2:51820 2", "[2001:db8::3]:51820 1"]);
        assert_eq!(peers(1), ["192.0.2.2:51821 2"]);
        let ways = plan.ways(&[ages(&[]), ages(&[])]);
        let found: Vec<_> = ways.iter().map(|way| (way.node.as_str(), way.generation)).collect();
        assert_eq!(
            found,
            [
                ("both", Ok(5)),
                ("late", Ok(4)),
                ("old", Err(Unreachable::OtherGeneration)),
                ("plain", Err(Unreachable::NoKey)),
            ]
        );
        assert_eq!(plan.node_of(&key(2)), Some("both"));
        assert_eq!(plan.node_of(&key(4)), None);
    }

    #[test]
    fn a_pair_goes_over_once_it_has_spoken_by_the_new_key() {
        let own = BTreeMap::from([(4, key(100)), (5, key(101))]);
        let nodes = [node("n", "192.0.2.2", &["10.42.1.0/24"], &[(4, 1), (5, 2)])];
        let plan = plan("me", &own, &nodes);
        for (even, odd, expected, is_live, is_old_needed) in [
            (ages(&[(1, 9)]), ages(&[]), Ok(4), true, true),
            (ages(&[(1, 9)]), ages(&[(2, 1)]), Ok(5), true, false),
            (ages(&[(1, 9)]), ages(&[(2, 500)]), Ok(4), true, true),
            // Nobody has spoken for long: the newest will do.
            (ages(&[(1, 500)]), ages(&[(2, 500)]), Ok(5), false, false),
            (ages(&[]), None, Ok(4), false, false),
            (None, None, Err(Unreachable::NoDevice), false, false),
        ] {
            let ways = plan.ways(&[even, odd]);
            assert_eq!((ways[0].generation, ways[0].is_live), (expected, is_live));
            assert_eq!(needs_older(&ways, 5), is_old_needed);
        }
    }

    #[test]
    fn security_nobody_takes_the_place_of_another_by_its_key() {
        let own = BTreeMap::from([(1, key(100))]);
        let nodes = [
            node("first", "192.0.2.2", &["10.42.1.0/24"], &[(1, 1)]),
            node("thief", "192.0.2.66", &["10.42.66.0/24"], &[(1, 1)]),
            node("mirror", "192.0.2.67", &["10.42.67.0/24"], &[(1, 100)]),
        ];
        let plan = plan("me", &own, &nodes);
        let [peer] = &plan.peers[1][..] else { panic!("{:?}", plan.peers) };
        assert_eq!((peer.endpoint.to_string(), peer.allowed.len()), ("192.0.2.2:51821".into(), 1));
        let ways = plan.ways(&[None, ages(&[])]);
        let found: Vec<_> = ways.iter().map(|way| (way.node.as_str(), way.generation)).collect();
        assert_eq!(
            found,
            [("first", Ok(1)), ("mirror", Err(Unreachable::OthersKey)), ("thief", Err(Unreachable::OthersKey))]
        );
    }
}
