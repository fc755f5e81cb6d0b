//! What is in sets and maps.

use std::net::IpAddr;

use super::Unclear;
use super::batch::Batch;
use super::declaration::{Known, Layout, Type, Value, milliseconds, user_text};
use super::syntax::{TableName, Words};
use crate::link::parse_mac;
use crate::message::{NLM_F_CREATE, Request};
use api::cidr::{self, Cidr};

const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;

pub(super) const LIST_TABLE: u16 = 1;
pub(super) const LIST_SET: u16 = 2;
pub(super) const LIST_ELEMENTS: u16 = 3;
const LIST_SET_ID: u16 = 4;
const ELEMENT: u16 = 1;
pub(super) const ELEMENT_KEY: u16 = 1;
pub(super) const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
pub(super) const ELEMENT_EXPIRES: u16 = 5;
pub(super) const ELEMENT_USERDATA: u16 = 6;
const ELEMENT_KEY_END: u16 = 10;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;
const INTERVAL_END: u32 = 1;
pub(super) const COMMENT: u8 = 0;

/// Attributes of a message must stay below 64 KiB.
const MESSAGE_LIMIT: usize = 48 * 1024;

/// Where a packet goes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    Drop,
    Accept,
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

impl<'a> Verdict<'a> {
    /// None if the next word is no verdict; it is not taken then.
    pub(super) fn take(words: &mut Words<'a>) -> Option<Self> {
        let mut ahead = *words;
        let verdict = match ahead.next()? {
            "drop" => Self::Drop,
            "accept" => Self::Accept,
            "return" => Self::Return,
            "jump" => Self::Jump(ahead.next()?),
            "goto" => Self::Goto(ahead.next()?),
            _ => return None,
        };
        *words = ahead;
        Some(verdict)
    }

    pub(super) fn write(&self, data: Request) -> Request {
        let (code, chain): (i32, Option<&str>) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5, None),
        };
        data.nest(DATA_VERDICT, |verdict| {
            let verdict = verdict.attr(VERDICT_CODE, &code.to_be_bytes());
            match chain {
                Some(chain) => verdict.attr_str(VERDICT_CHAIN, chain),
                None => verdict,
            }
        })
    }
}

/// An element with the bytes that the kernel compares.
#[derive(Clone, Debug)]
struct Encoded<'a> {
    low: Vec<u8>,
    /// The same as `low` where it is one key.
    high: Vec<u8>,
    data: Data<'a>,
    /// In how many milliseconds it goes by itself, where that is less than the set says.
    expires: Option<u64>,
    comment: Option<&'a str>,
}

#[derive(Clone, Debug)]
enum Data<'a> {
    None,
    Value(Vec<u8>),
    Verdict(Verdict<'a>),
}

/// Adds or deletes elements of a set or map that has a name.
pub(super) fn change(
    is_new: bool,
    table: TableName<'_>,
    set: &str,
    rest: &mut Words<'_>,
    known: &mut Known,
    batch: &mut Batch,
) -> Result<(), Unclear> {
    let layout = known.layout(table, set)?;
    let elements = parse(&layout, rest).ok_or(Unclear)?;
    push(is_new, table, set, None, &layout, elements, batch);
    Ok(())
}

/// The elements of a set without a name, which `id` stands for: a rule's own. Returns how many keys there are.
pub(super) struct Anonymous<'a> {
    layout: Layout,
    elements: Vec<Encoded<'a>>,
}

impl<'a> Anonymous<'a> {
    pub(super) fn parse(layout: Layout, rest: &mut Words<'a>) -> Option<Self> {
        let mut elements = parse(&layout, rest)?;
        // Ranges of one part may not touch each other.
        if layout.is_interval && layout.key.len() == 1 {
            elements = merged(elements);
        }
        Some(Self { layout, elements })
    }

    /// The only key, if there is one only.
    pub(super) fn single(&self) -> Option<(&[u8], &[u8])> {
        match self.elements.as_slice() {
            [one] => Some((&one.low, &one.high)),
            _ => None,
        }
    }

    pub(super) fn push(self, table: TableName<'_>, batch: &mut Batch) -> (&'static str, u32) {
        let count = match self.layout.is_interval {
            true => self.elements.len() * 2 + 1,
            false => self.elements.len(),
        };
        let (name, id) = super::declaration::add_anonymous(table, &self.layout, count, batch);
        push(true, table, name, Some(id), &self.layout, self.elements, batch);
        (name, id)
    }
}

/// `{ 10.0.0.1 . tcp . 80 comment "web" : goto x, … }`, or `{ 10.0.0.1 expires 60s, … }`.
fn parse<'a>(layout: &Layout, rest: &mut Words<'a>) -> Option<Vec<Encoded<'a>>> {
    let mut elements = Vec::new();
    rest.take("{").then_some(())?;
    loop {
        let (low, high) = key(&layout.key, rest)?;
        (layout.is_interval || low == high).then_some(())?;
        let expires = if rest.take("expires") { Some(milliseconds(rest.next()?)?) } else { None };
        let comment = if rest.take("comment") { Some(rest.next()?) } else { None };
        let data = match (&layout.value, rest.take(":")) {
            (_, false) => Data::None,
            (Value::Verdict, true) => Data::Verdict(Verdict::take(rest)?),
            (Value::Data(types), true) => {
                let (value, same) = key(types, rest)?;
                (value == same).then_some(Data::Value(value))?
            }
            (Value::None, true) => return None,
        };
        elements.push(Encoded { low, high, data, expires, comment });
        if rest.take("}") {
            return Some(elements);
        }
        rest.take(",").then_some(())?;
    }
}

/// The first and last key that parts joined by dots stand for.
fn key(types: &[Type], rest: &mut Words<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for (i, kind) in types.iter().enumerate() {
        if i > 0 {
            rest.take(".").then_some(())?;
        }
        let (first, last) = range(*kind, rest.next()?)?;
        low.extend(first);
        high.extend(last);
        if types.len() > 1 {
            low.resize(low.len().next_multiple_of(4), 0);
            high.resize(high.len().next_multiple_of(4), 0);
        }
    }
    Some((low, high))
}

/// `10.0.0.0/8`, `80-90`, `tcp`: the first and the last.
pub(super) fn range(kind: Type, word: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    // A dash is a part of a name.
    if kind == Type::Ifname {
        let one = value(kind, word)?;
        return Some((one.clone(), one));
    }
    if let (Type::Ipv4 | Type::Ipv6, Some(_)) = (kind, word.find('/')) {
        let range: Cidr = word.parse().ok()?;
        return Some((address(kind, range.network().addr)?, address(kind, range.last())?));
    }
    match word.split_once('-') {
        Some((first, last)) => {
            let (first, last) = (value(kind, first)?, value(kind, last)?);
            (first <= last).then_some((first, last))
        }
        None => {
            let one = value(kind, word)?;
            Some((one.clone(), one))
        }
    }
}

fn value(kind: Type, word: &str) -> Option<Vec<u8>> {
    match kind {
        Type::Ipv4 | Type::Ipv6 => address(kind, word.parse().ok()?),
        Type::Protocol => Some(vec![protocol(word)?]),
        Type::Icmpv6 => Some(vec![word.parse().ok()?]),
        Type::Port => Some(word.parse::<u16>().ok()?.to_be_bytes().to_vec()),
        Type::Integer => Some(word.parse::<u32>().ok()?.to_ne_bytes().to_vec()),
        Type::Mac => parse_mac(word).map(|mac| mac.to_vec()),
        Type::Ifname => {
            let mut bytes = word.as_bytes().to_vec();
            // The last byte is a zero.
            (bytes.len() < kind.length()).then(|| bytes.resize(kind.length(), 0))?;
            Some(bytes)
        }
    }
}

fn address(kind: Type, addr: IpAddr) -> Option<Vec<u8>> {
    match (kind, addr) {
        (Type::Ipv4, IpAddr::V4(addr)) => Some(addr.octets().to_vec()),
        (Type::Ipv6, IpAddr::V6(addr)) => Some(addr.octets().to_vec()),
        _ => None,
    }
}

pub(super) fn protocol(word: &str) -> Option<u8> {
    match word {
        "icmp" => Some(1),
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmpv6" => Some(58),
        "sctp" => Some(132),
        number => number.parse().ok(),
    }
}

/// Ranges in order, with those that touch or overlap made one.
fn merged(mut elements: Vec<Encoded<'_>>) -> Vec<Encoded<'_>> {
    elements.sort_by(|one, other| one.low.cmp(&other.low));
    let mut all: Vec<Encoded<'_>> = Vec::new();
    for element in elements {
        match all.last_mut() {
            Some(last) if next_key(&last.high).is_none_or(|next| element.low <= next) => {
                if element.high > last.high {
                    last.high = element.high;
                }
            }
            _ => all.push(element),
        }
    }
    all
}

/// The key after this one, in network order; none after the last.
fn next_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        let (sum, is_full) = byte.overflowing_add(1);
        *byte = sum;
        if !is_full {
            return Some(next);
        }
    }
    None
}

fn push(
    is_new: bool,
    table: TableName<'_>,
    set: &str,
    id: Option<u32>,
    layout: &Layout,
    elements: Vec<Encoded<'_>>,
    batch: &mut Batch,
) {
    let is_line = layout.is_interval && layout.key.len() == 1;
    let writes: Vec<Vec<u8>> = elements
        .iter()
        .flat_map(|element| {
            let start = attributes(|request| {
                let request = request.nest(ELEMENT_KEY, |key| key.attr(DATA_VALUE, &element.low));
                let request = match layout.is_interval && !is_line {
                    true => request.nest(ELEMENT_KEY_END, |key| key.attr(DATA_VALUE, &element.high)),
                    false => request,
                };
                let request = match (&element.data, is_new) {
                    (Data::Value(value), true) => request.nest(ELEMENT_DATA, |data| data.attr(DATA_VALUE, value)),
                    (Data::Verdict(verdict), true) => request.nest(ELEMENT_DATA, |data| verdict.write(data)),
                    _ => request,
                };
                let request = match element.expires {
                    Some(left) if is_new => request.attr(ELEMENT_EXPIRES, &left.to_be_bytes()),
                    _ => request,
                };
                match element.comment {
                    Some(comment) if is_new => request.attr(ELEMENT_USERDATA, &user_text(COMMENT, comment)),
                    _ => request,
                }
            });
            let end = next_key(&element.high).filter(|_| is_line).map(|next| {
                attributes(|request| {
                    request
                        .nest(ELEMENT_KEY, |key| key.attr(DATA_VALUE, &next))
                        .attr(ELEMENT_FLAGS, &INTERVAL_END.to_be_bytes())
                })
            });
            [Some(start), end].into_iter().flatten()
        })
        .collect();
    let (kind, flags) = if is_new { (NEW_ELEMENTS, NLM_F_CREATE) } else { (DELETE_ELEMENTS, 0) };
    let mut left = writes.as_slice();
    while !left.is_empty() {
        let mut size = 0;
        let fits = |write: &&Vec<u8>| {
            size += write.len() + 4;
            size <= MESSAGE_LIMIT
        };
        let count = left.iter().take_while(fits).count().max(1);
        let (now, later) = left.split_at(count);
        batch.push(kind, flags, table.family.number(), |request| {
            let request = request.attr_str(LIST_TABLE, table.name).attr_str(LIST_SET, set);
            let request = match id {
                Some(id) => request.attr(LIST_SET_ID, &id.to_be_bytes()),
                None => request,
            };
            request.nest(LIST_ELEMENTS, |list| {
                now.iter().fold(list, |list, write| list.nest(ELEMENT, |element| element.body(write)))
            })
        });
        left = later;
    }
}

/// Attributes without a message around them.
pub(super) fn attributes(fill: impl FnOnce(Request) -> Request) -> Vec<u8> {
    fill(Request { bytes: Vec::new() }).bytes
}

/// An address range of a family as an operand: its first key, and the mask if it has one.
pub(super) fn masked(kind: Type, word: &str) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let Some((_, _)) = word.split_once('/') else { return Some((value(kind, word)?, None)) };
    let range: Cidr = word.parse().ok()?;
    let full = if range.is_v6() { 128 } else { 32 };
    let first = address(kind, range.network().addr)?;
    if range.prefix == full {
        return Some((first, None));
    }
    let ones = match range.is_v6() {
        true => IpAddr::from([0xff; 16]),
        false => IpAddr::from([0xff; 4]),
    };
    Some((first, Some(address(kind, cidr::Cidr::new(ones, range.prefix).network().addr)?)))
}
