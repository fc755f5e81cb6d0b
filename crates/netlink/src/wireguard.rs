//! WireGuard devices of the kernel: their key, their port, their peers (`linux/wireguard.h`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use api::cidr::Cidr;

use crate::Socket;
use crate::generic::{GENERIC_HEADER, request};
use crate::message::{Request, attributes, family, read_ip, read_string, read_u16, read_u32};

const NAME: &str = "wireguard";
const VERSION: u8 = 1;
const WG_CMD_GET_DEVICE: u8 = 0;
const WG_CMD_SET_DEVICE: u8 = 1;

const WGDEVICE_A_IFINDEX: u16 = 1;
const WGDEVICE_A_IFNAME: u16 = 2;
const WGDEVICE_A_PRIVATE_KEY: u16 = 3;
const WGDEVICE_A_PUBLIC_KEY: u16 = 4;
const WGDEVICE_A_FLAGS: u16 = 5;
const WGDEVICE_A_LISTEN_PORT: u16 = 6;
const WGDEVICE_A_PEERS: u16 = 8;
const WGDEVICE_F_REPLACE_PEERS: u32 = 1;

const WGPEER_A_PUBLIC_KEY: u16 = 1;
const WGPEER_A_FLAGS: u16 = 3;
const WGPEER_A_ENDPOINT: u16 = 4;
const WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL: u16 = 5;
const WGPEER_A_LAST_HANDSHAKE_TIME: u16 = 6;
const WGPEER_A_RX_BYTES: u16 = 7;
const WGPEER_A_TX_BYTES: u16 = 8;
const WGPEER_A_ALLOWEDIPS: u16 = 9;
const WGPEER_F_REMOVE_ME: u32 = 1;
const WGPEER_F_REPLACE_ALLOWEDIPS: u32 = 2;

const WGALLOWEDIP_A_FAMILY: u16 = 1;
const WGALLOWEDIP_A_IPADDR: u16 = 2;
const WGALLOWEDIP_A_CIDR_MASK: u16 = 3;

/// The items of a list carry no kind.
const ITEM: u16 = 0;
/// So many peers, each with the ranges of a node, fit into a message with room to spare.
const PEERS_PER_MESSAGE: usize = 64;

/// Of either kind, private and public.
pub type Key = [u8; 32];

/// What a peer is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSetting {
    pub key: Key,
    pub endpoint: SocketAddr,
    /// In seconds; 0 for never.
    pub keepalive: u16,
    /// In the place of those that it has; none leaves them as they are.
    pub allowed: Option<Vec<Cidr>>,
}

/// A peer as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub key: Key,
    pub endpoint: Option<SocketAddr>,
    pub keepalive: u16,
    pub allowed: Vec<Cidr>,
    /// Since 1970; none before the first.
    pub last_handshake: Option<Duration>,
    pub received: u64,
    pub sent: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    /// None for a device that has no key yet.
    pub public_key: Option<Key>,
    pub listen_port: u16,
    pub peers: Vec<Peer>,
}

/// The kernel's WireGuard, in the namespace that it was opened in.
#[derive(Debug)]
pub struct WireGuard {
    socket: Socket,
    family: u16,
}

impl WireGuard {
    /// `Ok(None)` when this kernel has none.
    pub fn open() -> io::Result<Option<Self>> {
        let socket = Socket::open_generic()?;
        let family = socket.family(NAME)?;
        Ok(family.map(|family| Self { socket, family }))
    }

    pub fn device(&self, index: u32) -> io::Result<Device> {
        let make = || request(self.family, WG_CMD_GET_DEVICE, VERSION).attr_u32(WGDEVICE_A_IFINDEX, index);
        let mut device = Device::default();
        for answer in self.socket.dump(make)? {
            let malformed =
                || io::Error::new(io::ErrorKind::InvalidData, "malformed description of a WireGuard device");
            parse(&answer, &mut device).ok_or_else(malformed)?;
        }
        Ok(device)
    }

    /// Gives a device its key and port; peers that it had go.
    pub fn configure(&self, index: u32, private_key: &Key, listen_port: u16) -> io::Result<()> {
        self.socket.change(configuration(self.family, index, private_key, listen_port))
    }

    /// Adds peers, or makes them what they are to be; sessions with those that are there go on.
    pub fn set_peers(&self, index: u32, peers: &[PeerSetting]) -> io::Result<()> {
        for some in peers.chunks(PEERS_PER_MESSAGE) {
            self.socket.change(peers_message(self.family, index, some.iter().map(Entry::Set)))?;
        }
        Ok(())
    }

    /// Quiet about those that are gone.
    pub fn remove_peers(&self, index: u32, keys: &[Key]) -> io::Result<()> {
        for some in keys.chunks(PEERS_PER_MESSAGE) {
            self.socket.change(peers_message(self.family, index, some.iter().map(Entry::Remove)))?;
        }
        Ok(())
    }
}

fn configuration(family: u16, index: u32, private_key: &Key, listen_port: u16) -> Request {
    request(family, WG_CMD_SET_DEVICE, VERSION)
        .attr_u32(WGDEVICE_A_IFINDEX, index)
        .attr_u32(WGDEVICE_A_FLAGS, WGDEVICE_F_REPLACE_PEERS)
        .attr(WGDEVICE_A_PRIVATE_KEY, private_key)
        .attr(WGDEVICE_A_LISTEN_PORT, &listen_port.to_ne_bytes())
}

enum Entry<'a> {
    Set(&'a PeerSetting),
    Remove(&'a Key),
}

fn peers_message<'a>(number: u16, index: u32, entries: impl Iterator<Item = Entry<'a>>) -> Request {
    let message = request(number, WG_CMD_SET_DEVICE, VERSION).attr_u32(WGDEVICE_A_IFINDEX, index);
    message.nest(WGDEVICE_A_PEERS, |list| {
        entries.fold(list, |list, entry| {
            list.nest(ITEM, |peer| match entry {
                Entry::Remove(key) => peer.attr(WGPEER_A_PUBLIC_KEY, key).attr_u32(WGPEER_A_FLAGS, WGPEER_F_REMOVE_ME),
                Entry::Set(setting) => {
                    let flags = if setting.allowed.is_some() { WGPEER_F_REPLACE_ALLOWEDIPS } else { 0 };
                    let peer = peer
                        .attr(WGPEER_A_PUBLIC_KEY, &setting.key)
                        .attr_u32(WGPEER_A_FLAGS, flags)
                        .attr(WGPEER_A_ENDPOINT, &socket_address(setting.endpoint))
                        .attr(WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, &setting.keepalive.to_ne_bytes());
                    match &setting.allowed {
                        Some(ranges) => peer.nest(WGPEER_A_ALLOWEDIPS, |list| ranges.iter().fold(list, allowed)),
                        None => peer,
                    }
                }
            })
        })
    })
}

fn allowed(list: Request, range: &Cidr) -> Request {
    list.nest(ITEM, |item| {
        item.attr(WGALLOWEDIP_A_FAMILY, &u16::from(family(range.addr)).to_ne_bytes())
            .attr_ip(WGALLOWEDIP_A_IPADDR, range.network().addr)
            .attr(WGALLOWEDIP_A_CIDR_MASK, &[range.prefix])
    })
}

/// `struct sockaddr_in` or `sockaddr_in6`.
fn socket_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = u16::from(family(address.ip())).to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(address) => {
            bytes.extend(address.octets());
            bytes.extend([0; 8]);
        }
        IpAddr::V6(address) => {
            bytes.extend([0; 4]);
            bytes.extend(address.octets());
            bytes.extend([0; 4]);
        }
    }
    bytes
}

fn read_socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let address = match i32::from(read_u16(bytes, 0)?) {
        libc::AF_INET => read_ip(bytes.get(4..8)?)?,
        libc::AF_INET6 => read_ip(bytes.get(8..24)?)?,
        _ => return None,
    };
    Some((address, port).into())
}

/// Adds what an answer says: a device with many peers takes several, and so may one of its peers.
pub(crate) fn parse(answer: &[u8], device: &mut Device) -> Option<()> {
    for (kind, value) in attributes(answer.get(GENERIC_HEADER..)?) {
        match kind {
            WGDEVICE_A_IFNAME => device.name = read_string(value),
            WGDEVICE_A_PUBLIC_KEY => device.public_key = Some(value.try_into().ok()?),
            WGDEVICE_A_LISTEN_PORT => device.listen_port = read_u16(value, 0)?,
            WGDEVICE_A_PEERS => {
                for (_, value) in attributes(value) {
                    let peer = parse_peer(value)?;
                    match device.peers.last_mut().filter(|last| last.key == peer.key) {
                        Some(last) => last.allowed.extend(peer.allowed),
                        None => device.peers.push(peer),
                    }
                }
            }
            _ => {}
        }
    }
    Some(())
}

fn parse_peer(bytes: &[u8]) -> Option<Peer> {
    let mut peer = Peer::default();
    for (kind, value) in attributes(bytes) {
        match kind {
            WGPEER_A_PUBLIC_KEY => peer.key = value.try_into().ok()?,
            WGPEER_A_ENDPOINT => peer.endpoint = read_socket_address(value),
            WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL => peer.keepalive = read_u16(value, 0)?,
            // Seconds and nanoseconds, each of 64 bits; zero before the first handshake.
            WGPEER_A_LAST_HANDSHAKE_TIME => {
                let (seconds, nanoseconds) = (read_u64(value, 0)?, read_u32(value, 8)?);
                peer.last_handshake = (seconds > 0).then(|| Duration::new(seconds, nanoseconds.min(999_999_999)));
            }
            WGPEER_A_RX_BYTES => peer.received = read_u64(value, 0)?,
            WGPEER_A_TX_BYTES => peer.sent = read_u64(value, 0)?,
            WGPEER_A_ALLOWEDIPS => {
                for (_, value) in attributes(value) {
                    peer.allowed.push(parse_allowed(value)?);
                }
            }
            _ => {}
        }
    }
    Some(peer)
}

fn parse_allowed(bytes: &[u8]) -> Option<Cidr> {
    let (mut address, mut prefix) = (None, None);
    for (kind, value) in attributes(bytes) {
        match kind {
            WGALLOWEDIP_A_IPADDR => address = read_ip(value),
            WGALLOWEDIP_A_CIDR_MASK => prefix = value.first().copied(),
            _ => {}
        }
    }
    Some(Cidr::new(address?, prefix?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    /// Attributes written down by hand from the header: length, kind, value, padding.
    fn raw(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_le_bytes().to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    const NESTED: u16 = 0x8000;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_device_is_given_its_key_and_port() {
        let bytes = configuration(0x1f, 7, &[0xaa; 32], 51820).finish(9);
        let mut expected = vec![76, 0, 0, 0, 0x1f, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        expected.extend([1, 1, 0, 0]);
        expected.extend([8, 0, 1, 0, 7, 0, 0, 0]);
        expected.extend([8, 0, 5, 0, 1, 0, 0, 0]);
        expected.extend([36, 0, 3, 0]);
        expected.extend([0xaa; 32]);
        // 51820 is 0xca6c.
        expected.extend([6, 0, 6, 0, 0x6c, 0xca, 0, 0]);
        expected[0] = expected.len() as u8;
        assert_eq!(bytes, expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn peers_are_set_and_removed() {
        let four = PeerSetting {
            key: [1; 32],
            endpoint: "192.0.2.7:51820".parse().unwrap(),
            keepalive: 25,
            allowed: Some(vec![cidr("10.42.1.9/24"), cidr("fd42:0:0:1::/64")]),
        };
        let six = PeerSetting { key: [2; 32], endpoint: "[2001:db8::7]:51821".parse().unwrap(), ..four.clone() };
        let ranges = [
            raw(NESTED, &[raw(1, &[2, 0]), raw(2, &[10, 42, 1, 0]), raw(3, &[24])].concat()),
            raw(
                NESTED,
                &[raw(1, &[10, 0]), raw(2, &[0xfd, 0x42, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), raw(3, &[64])]
                    .concat(),
            ),
        ]
        .concat();
        let endpoint_four = [2, 0, 0xca, 0x6c, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut endpoint_six = vec![10, 0, 0xca, 0x6d, 0, 0, 0, 0, 0x20, 0x01, 0x0d, 0xb8];
        endpoint_six.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]);
        let peer = |key: u8, endpoint: &[u8]| {
            let parts = [
                raw(1, &[key; 32]),
                raw(3, &[2, 0, 0, 0]),
                raw(4, endpoint),
                raw(5, &[25, 0]),
                raw(NESTED | 9, &ranges),
            ];
            raw(NESTED, &parts.concat())
        };
        let removed = raw(NESTED, &[raw(1, &[3; 32]), raw(3, &[1, 0, 0, 0])].concat());
        let expected = [
            vec![1, 1, 0, 0],
            raw(1, &[7, 0, 0, 0]),
            raw(NESTED | 8, &[peer(1, &endpoint_four), peer(2, &endpoint_six), removed].concat()),
        ]
        .concat();
        let entries = [Entry::Set(&four), Entry::Set(&six), Entry::Remove(&[3; 32])];
        let bytes = peers_message(0x1f, 7, entries.into_iter()).finish(1);
        assert_eq!(&bytes[16..], expected);
        // Ranges that stay are not told, nor replaced.
        let moved = PeerSetting { allowed: None, ..four };
        let parts = [raw(1, &[1; 32]), raw(3, &[0; 4]), raw(4, &endpoint_four), raw(5, &[25, 0])];
        let expected =
            [vec![1, 1, 0, 0], raw(1, &[7, 0, 0, 0]), raw(NESTED | 8, &raw(NESTED, &parts.concat()))].concat();
        let bytes = peers_message(0x1f, 7, [Entry::Set(&moved)].into_iter()).finish(1);
        assert_eq!(&bytes[16..], expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_device_is_read_from_several_answers() {
        let range =
            |address: &[u8], prefix: u8| raw(NESTED, &[raw(1, &[2, 0]), raw(2, address), raw(3, &[prefix])].concat());
        let mut handshake = 1_700_000_000u64.to_le_bytes().to_vec();
        handshake.extend(5u64.to_le_bytes());
        let first_peer = [
            raw(1, &[1; 32]),
            raw(2, &[0; 32]),
            raw(4, &[2, 0, 0xca, 0x6c, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0]),
            raw(5, &[25, 0]),
            raw(6, &handshake),
            raw(7, &1000u64.to_le_bytes()),
            raw(8, &2000u64.to_le_bytes()),
            raw(NESTED | 9, &range(&[10, 42, 1, 0], 24)),
        ]
        .concat();
        let one = [
            vec![0, 1, 0, 0],
            raw(6, &[0x6c, 0xca]),
            raw(2, b"cox-wg0\0"),
            raw(4, &[9; 32]),
            raw(NESTED | 8, &raw(NESTED, &first_peer)),
        ]
        .concat();
        // The rest of its ranges, then one who was never heard of.
        let rest = [raw(1, &[1; 32]), raw(NESTED | 9, &range(&[10, 42, 2, 0], 24))].concat();
        let silent = [raw(1, &[2; 32]), raw(6, &[0; 16])].concat();
        let two = [vec![0, 1, 0, 0], raw(NESTED | 8, &[raw(NESTED, &rest), raw(NESTED, &silent)].concat())].concat();
        let mut device = Device::default();
        for answer in [one, two] {
            parse(&answer, &mut device).unwrap();
        }
        assert_eq!((device.name.as_str(), device.public_key, device.listen_port), ("cox-wg0", Some([9; 32]), 51820));
        let [first, second] = &device.peers[..] else { panic!("{:?}", device.peers) };
        assert_eq!(first.endpoint, Some("192.0.2.7:51820".parse().unwrap()));
        assert_eq!(first.allowed, [cidr("10.42.1.0/24"), cidr("10.42.2.0/24")]);
        assert_eq!(first.last_handshake, Some(Duration::new(1_700_000_000, 5)));
        assert_eq!((first.keepalive, first.received, first.sent), (25, 1000, 2000));
        assert_eq!(*second, Peer { key: [2; 32], ..Peer::default() });
    }
}
