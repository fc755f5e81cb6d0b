//! A WireGuard device of the kernel.

use std::collections::BTreeMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use api::cidr::Cidr;
use api::sort::{CompactCollect as _, CompactSort as _};
use netlink::wireguard::{self, PeerSetting, WireGuard};
use netlink::{LinkKind, Socket};

use super::{DeviceError, KEEPALIVE, PeerState, Wanted, complete, find};
use crate::{Peer, PublicKey};

pub struct Device {
    pub(super) index: u32,
    name: &'static str,
    wireguard: WireGuard,
}

impl Device {
    pub(super) fn open(socket: &Socket, wanted: &Wanted<'_>) -> Result<Self, DeviceError> {
        let Wanted { name, key, port, mtu, .. } = *wanted;
        let failed = |what| move |source| DeviceError::Kernel { link: name, what, source };
        let wireguard = WireGuard::open().map_err(failed("asking for WireGuard"))?;
        let wireguard = wireguard.ok_or_else(|| failed("asking for WireGuard")(io::ErrorKind::Unsupported.into()))?;
        if find(socket, name)?.is_none() {
            socket.add_link(name, LinkKind::WireGuard, Some(mtu), None).map_err(failed("making the link"))?;
        }
        let link = find(socket, name)?.ok_or(DeviceError::Vanished(name))?;
        let there = wireguard.device(link.index).map_err(failed("reading the device"))?;
        // One that is as it should be goes on with its sessions.
        if there.public_key != Some(key.public().0) || there.listen_port != port {
            wireguard.configure(link.index, &key.to_bytes(), port).map_err(failed("setting key and port"))?;
        }
        complete(socket, &link, wanted)?;
        Ok(Self { index: link.index, name, wireguard })
    }

    pub(super) fn set_peers(&self, peers: &[Peer]) -> Result<(), DeviceError> {
        let there = self.device("reading the peers")?.peers;
        let (set, gone) = changes(&there, peers);
        // In this order a range goes from one peer to another, rather than to nobody in between.
        self.wireguard.set_peers(self.index, &set).map_err(|source| self.failed("setting peers", source))?;
        self.wireguard.remove_peers(self.index, &gone).map_err(|source| self.failed("removing peers", source))
    }

    pub(super) fn state(&self) -> Result<BTreeMap<PublicKey, PeerState>, DeviceError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let state = |peer: wireguard::Peer| PeerState {
            handshake_age: peer.last_handshake.map(|last| now.saturating_sub(last)),
            received: peer.received,
            sent: peer.sent,
        };
        let peers = self.device("reading the peers")?.peers;
        Ok(peers.into_iter().map(|peer| (PublicKey(peer.key), state(peer))).compact_collect())
    }

    fn device(&self, what: &'static str) -> Result<wireguard::Device, DeviceError> {
        self.wireguard.device(self.index).map_err(|source| self.failed(what, source))
    }

    fn failed(&self, what: &'static str, source: io::Error) -> DeviceError {
        DeviceError::Kernel { link: self.name, what, source }
    }
}

/// What is to be set and who is to go. A peer that has its ranges keeps them: it has none for a moment while they are replaced, and
/// one with several addresses may be heard from another at every look.
fn changes(there: &[wireguard::Peer], wanted: &[Peer]) -> (Vec<PeerSetting>, Vec<wireguard::Key>) {
    let known: BTreeMap<wireguard::Key, &wireguard::Peer> = there.iter().map(|peer| (peer.key, peer)).compact_collect();
    let has_ranges =
        |peer: &Peer| known.get(&peer.key.0).is_some_and(|found| sorted(&found.allowed) == sorted(&peer.allowed));
    let is_so = |peer: &&Peer| {
        let found = known.get(&peer.key.0);
        let is_there = found.is_some_and(|found| found.keepalive == KEEPALIVE && found.endpoint == Some(peer.endpoint));
        is_there && has_ranges(peer)
    };
    let setting = |peer: &Peer| PeerSetting {
        key: peer.key.0,
        endpoint: peer.endpoint,
        keepalive: KEEPALIVE,
        allowed: (!has_ranges(peer)).then(|| peer.allowed.clone()),
    };
    let set = wanted.iter().filter(|peer| !is_so(peer)).map(setting).collect();
    let gone = known.keys().filter(|key| !wanted.iter().any(|peer| peer.key.0 == **key)).copied().collect();
    (set, gone)
}

fn sorted(ranges: &[Cidr]) -> Vec<Cidr> {
    let mut ranges = ranges.to_vec();
    ranges.compact_sort();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_told_to_the_kernel() {
        let peer = |byte: u8, endpoint: &str, range: &str| Peer {
            key: PublicKey([byte; 32]),
            endpoint: endpoint.parse().unwrap(),
            allowed: vec![range.parse().unwrap()],
        };
        let there = |peer: &Peer| wireguard::Peer {
            key: peer.key.0,
            endpoint: Some(peer.endpoint),
            keepalive: KEEPALIVE,
            allowed: peer.allowed.clone(),
            ..wireguard::Peer::default()
        };
        let same = peer(1, "192.0.2.1:51820", "10.42.1.0/24");
        let moved = peer(2, "192.0.2.9:51820", "10.42.2.0/24");
        let new = peer(3, "[2001:db8::3]:51820", "10.42.3.0/24");
        let gone = peer(4, "192.0.2.4:51820", "10.42.4.0/24");
        let before = [there(&same), there(&peer(2, "192.0.2.2:51820", "10.42.2.0/24")), there(&gone)];
        let (set, removed) = changes(&before, &[same.clone(), moved.clone(), new.clone()]);
        let shown: Vec<_> = set.iter().map(|peer| (peer.key[0], peer.allowed.is_some())).collect();
        assert_eq!(shown, [(2, false), (3, true)]);
        assert_eq!(removed, [[4; 32]]);
        assert_eq!(changes(&[there(&same)], &[same]), (Vec::new(), Vec::new()));
    }
}
