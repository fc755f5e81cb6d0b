//! Elements of our maps, told to the kernel directly: most changes are nothing else, and starting `nft` would cost more than
//! they do.
//!
//! One netlink batch is one transaction, as with `nft -f`. What a map holds is in its [`layout`]; whatever has none is left to
//! `nft`.

use std::net::IpAddr;

use netlink::{Batch, Request};

/// Larger changes go through `nft`, which splits them as the kernel likes it.
const LIMIT: usize = 256;

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
    let mut batch = Batch::new();
    for change in changes {
        let (keys, values) = layout(change.map)?;
        let key = concatenation(keys, &change.key)?;
        let data = match (values, change.value.as_deref()) {
            (_, None) | (Value::None, Some(_)) => None,
            (Value::Target, Some(value)) => Some(Data::Target(concatenation(&[Part::Address, Part::Port], value)?)),
            (Value::Verdict, Some(value)) => Some(verdict(value)?),
        };
        let fill = |request: Request| {
            let listed = request.attr_str(LIST_TABLE, "cox-proxy").attr_str(LIST_SET, change.map);
            listed.nest(LIST_ELEMENTS, |list| {
                list.nest(ELEMENT, |element| {
                    let element = element.nest(ELEMENT_KEY, |value| value.attr(DATA_VALUE, &key));
                    match &data {
                        Some(data) => element.nest(ELEMENT_DATA, |value| data.write(value)),
                        None => element,
                    }
                })
            })
        };
        match change.value {
            Some(_) => batch.add_element(change.is_v6, fill),
            None => batch.delete_element(change.is_v6, fill),
        }
    }
    Some(batch)
}

/// What a key leads to.
enum Data<'a> {
    Target(Vec<u8>),
    Drop,
    Goto(&'a str),
}

impl Data<'_> {
    fn write(&self, value: Request) -> Request {
        let verdict = |code: u32| move |verdict: Request| verdict.attr(VERDICT_CODE, &code.to_be_bytes());
        match self {
            Data::Target(bytes) => value.attr(DATA_VALUE, bytes),
            Data::Drop => value.nest(DATA_VERDICT, verdict(DROP)),
            Data::Goto(chain) => value.nest(DATA_VERDICT, |r| verdict(GOTO)(r).attr_str(VERDICT_CHAIN, chain)),
        }
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

fn verdict(text: &str) -> Option<Data<'_>> {
    match text.split_once(' ') {
        None if text == "drop" => Some(Data::Drop),
        Some(("goto", chain)) => Some(Data::Goto(chain)),
        _ => None,
    }
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
