//! Elements of our maps, told to the kernel directly: most changes are nothing else, and starting `nft` would cost more than
//! they do.
//!
//! One netlink batch is one transaction, as with `nft -f`. What a map holds is in its [`layout`]; whatever has none is left to
//! `nft`.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

/// Larger changes go through `nft`, which splits them as the kernel likes it.
const LIMIT: usize = 256;

const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_ELEMENT: u16 = NFTABLES << 8 | 12;
const DELETE_ELEMENT: u16 = NFTABLES << 8 | 14;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NESTED: u16 = 0x8000;

const INET: u8 = 2;
const INET6: u8 = 10;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const DROP: u32 = 0;
const GOTO: u32 = -4i32 as u32;

/// An element that comes (`value` is empty in a set) or goes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) is_v6: bool,
    pub(super) map: &'static str,
    pub(super) key: String,
    pub(super) value: Option<String>,
}

/// The message for a list of changes, in order; none when something in it is better left to `nft`.
pub(super) fn encode(changes: &[Change]) -> Option<Batch> {
    if changes.is_empty() || changes.len() > LIMIT {
        return None;
    }
    let mut batch = Batch { bytes: Vec::new(), messages: 0 };
    batch.message(BATCH_BEGIN, 0, 0, &[]);
    for change in changes {
        let (kind, flags) = match change.value {
            Some(_) => (NEW_ELEMENT, ACK | CREATE),
            None => (DELETE_ELEMENT, ACK),
        };
        let (keys, values) = layout(change.map)?;
        let mut element = nested(ELEMENT_KEY, &attribute(DATA_VALUE, &concatenation(keys, &change.key)?));
        match (values, change.value.as_deref()) {
            (_, None) | (Value::None, Some(_)) => {}
            (Value::Target, Some(value)) => {
                let target = concatenation(&[Part::Address, Part::Port], value)?;
                element.extend(nested(ELEMENT_DATA, &attribute(DATA_VALUE, &target)));
            }
            (Value::Verdict, Some(value)) => {
                element.extend(nested(ELEMENT_DATA, &nested(DATA_VERDICT, &verdict(value)?)));
            }
        }
        let mut body = attribute(LIST_TABLE, b"cox-proxy\0");
        body.extend(attribute(LIST_SET, format!("{}\0", change.map).as_bytes()));
        body.extend(nested(LIST_ELEMENTS, &nested(ELEMENT, &element)));
        batch.message(kind, flags, if change.is_v6 { INET6 } else { INET }, &body);
        batch.messages += 1;
    }
    batch.message(BATCH_END, 0, 0, &[]);
    Some(batch)
}

/// A transaction, ready to send.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// As many are answered.
    messages: usize,
}

impl Batch {
    fn message(&mut self, kind: u16, flags: u16, family: u8, body: &[u8]) {
        let is_mark = kind == BATCH_BEGIN || kind == BATCH_END;
        self.bytes.extend(((20 + body.len()) as u32).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend([0; 8]);
        self.bytes.extend([family, 0]);
        self.bytes.extend(if is_mark { NFTABLES.to_be_bytes() } else { [0, 0] });
        self.bytes.extend(body);
    }

    /// Blocking, for as long as the kernel takes to commit.
    pub(super) fn send(&self) -> io::Result<()> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
        sendto(fd.as_raw_fd(), &self.bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut buffer = vec![0; 64 * 1024];
        let mut answered = 0;
        while answered < self.messages {
            let length = match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(nix::errno::Errno::EINTR) => continue,
                length => length?,
            };
            let mut rest = &buffer[..length];
            while let Some(size) = rest.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes) {
                let message = rest.get(..size as usize).filter(|message| message.len() >= 20);
                let Some(message) = message else { return Err(io::ErrorKind::InvalidData.into()) };
                rest = rest.get((size as usize).next_multiple_of(4)..).unwrap_or_default();
                if u16::from_ne_bytes([message[4], message[5]]) == NLMSG_ERROR {
                    answered += 1;
                    match i32::from_ne_bytes([message[16], message[17], message[18], message[19]]) {
                        0 => {}
                        errno => return Err(io::Error::from_raw_os_error(-errno)),
                    }
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Part {
    Address,
    Protocol,
    Port,
    /// What `numgen` gives: a number of this machine's byte order.
    Number,
}

#[derive(Clone, Copy)]
enum Value {
    None,
    Verdict,
    Target,
}

/// What the key and the value of a map are made of, as `base` declares it.
fn layout(map: &str) -> Option<(&'static [Part], Value)> {
    Some(match map {
        "services" | "unserved" => (&[Part::Address, Part::Protocol, Part::Port], Value::Verdict),
        "node-ports" | "unserved-ports" => (&[Part::Protocol, Part::Port], Value::Verdict),
        "hairpin" => (&[Part::Address, Part::Address], Value::None),
        _ if map.starts_with("endpoints-") => (&[Part::Address, Part::Port, Part::Number], Value::Target),
        _ if map.starts_with("node-endpoints-") => (&[Part::Port, Part::Number], Value::Target),
        _ => return None,
    })
}

/// `10.43.0.9 . 80` as the kernel holds it: parts in network order, each on a boundary of four bytes.
fn concatenation(parts: &[Part], text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut words = text.split(" . ");
    for part in parts {
        let word = words.next()?;
        match part {
            Part::Address => match word.parse().ok()? {
                IpAddr::V4(addr) => bytes.extend(addr.octets()),
                IpAddr::V6(addr) => bytes.extend(addr.octets()),
            },
            Part::Protocol => bytes.extend([protocol(word)?, 0, 0, 0]),
            Part::Port => {
                bytes.extend(word.parse::<u16>().ok()?.to_be_bytes());
                bytes.extend([0, 0]);
            }
            Part::Number => bytes.extend(word.parse::<u32>().ok()?.to_ne_bytes()),
        }
    }
    words.next().is_none().then_some(bytes)
}

fn protocol(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(6),
        "udp" => Some(17),
        "sctp" => Some(132),
        _ => None,
    }
}

fn verdict(text: &str) -> Option<Vec<u8>> {
    match text.split_once(' ') {
        None if text == "drop" => Some(attribute(VERDICT_CODE, &DROP.to_be_bytes())),
        Some(("goto", chain)) => {
            let mut bytes = attribute(VERDICT_CODE, &GOTO.to_be_bytes());
            bytes.extend(attribute(VERDICT_CHAIN, format!("{chain}\0").as_bytes()));
            Some(bytes)
        }
        _ => None,
    }
}

fn nested(kind: u16, content: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, content)
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 8);
    bytes.extend(((content.len() + 4) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_laid_out_as_the_kernel_wants_them() {
        let bytes = |map: &str, key: &str| concatenation(layout(map)?.0, key);
        assert_eq!(bytes("services", "10.43.0.9 . tcp . 80"), Some(vec![10, 43, 0, 9, 6, 0, 0, 0, 0, 80, 0, 0]));
        assert_eq!(bytes("node-ports", "udp . 30053"), Some(vec![17, 0, 0, 0, 0x75, 0x65, 0, 0]));
        assert_eq!(bytes("endpoints-tcp", "fd43::9 . 80 . 1").map(|key| key.len()), Some(24));
        assert_eq!(bytes("allowed", "192.0.2.9 . tcp . 80 . 203.0.113.0/24"), None);
        for broken in ["10.43.0.9 . tcp", "10.43.0.9 . tcp . 80 . 1", "x . tcp . 80", "10.43.0.9 . icmp . 80"] {
            assert_eq!(bytes("services", broken), None, "{broken}");
        }
    }

    #[test]
    fn what_nft_does_better_is_left_to_it() {
        let change = |map, key: &str| Change { is_v6: false, map, key: key.into(), value: None };
        assert!(encode(&[]).is_none());
        assert!(encode(&[change("hairpin", "10.42.0.2 . 10.42.0.2")]).is_some());
        assert!(encode(&[change("hairpin", "10.42.0.2 . 10.42.0.2"), change("allowed", "x")]).is_none());
        assert!(encode(&vec![change("hairpin", "10.42.0.2 . 10.42.0.2"); LIMIT + 1]).is_none());
    }
}
