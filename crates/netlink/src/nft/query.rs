//! What is in the kernel.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::Error;
use super::batch::SUBSYSTEM;
use super::declaration::{Layout, SET_DATA_TYPE, SET_FLAGS, SET_KEY_TYPE, TABLE_NAME, Type, Value, set_names};
use super::elements::{
    COMMENT, DATA_VALUE, DATA_VERDICT, ELEMENT_DATA, ELEMENT_EXPIRES, ELEMENT_KEY, ELEMENT_USERDATA, LIST_ELEMENTS,
    LIST_SET, LIST_TABLE, VERDICT_CHAIN,
};
use super::syntax::{Family, TableName};
use crate::Socket;
use crate::link::mac_text;
use crate::message::{Request, attributes, read_ip, read_string};

const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
const GET_SET: u16 = SUBSYSTEM << 8 | 10;
const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | 13;
/// Family, version, resource.
const HEADER: usize = 4;

/// A table of one of the families that we use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    family: Family,
    pub name: String,
}

/// An element as text: what stands before the colon, after it, when it goes by itself, and the comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub key: String,
    pub target: Option<Target>,
    pub expires: Option<Duration>,
    pub comment: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Value(String),
    /// The chain that a verdict leads to.
    Chain(String),
    Other,
}

/// All tables of IPv4, IPv6, both, and bridges.
pub fn tables() -> io::Result<Vec<Table>> {
    let answers = Socket::open_netfilter()?.dump(|| Request::new(GET_TABLE, 0).body(&[0; HEADER]))?;
    let parse = |answer: &Vec<u8>| {
        let family = Family::from_number(*answer.first()?)?;
        let (_, name) = attributes(answer.get(HEADER..)?).find(|(kind, _)| *kind == TABLE_NAME)?;
        Some(Table { family, name: read_string(name) })
    };
    Ok(answers.iter().filter_map(parse).collect())
}

/// Deletes tables with all that is in them, in one transaction.
pub fn delete_tables(tables: &[Table]) -> Result<(), Error> {
    let mut batch = super::Batch::default();
    for table in tables {
        let name = TableName { family: table.family, name: &table.name };
        super::declaration::delete_table(name, &mut batch);
    }
    batch.commit().map_err(|refusal| Error::Kernel(refusal.source))
}

/// What a set is made of; none when there is no such set, or it is none of ours.
pub(super) fn layout(table: TableName<'_>, set: &str) -> io::Result<Option<Layout>> {
    let request = Request::new(GET_SET, 0).body(&[table.family.number(), 0, 0, 0]);
    let answer = match Socket::open_netfilter()?.get(set_names(request, table, set)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        answer => answer?,
    };
    let (mut flags, mut key, mut data) = (0, 0, 0);
    for (kind, value) in attributes(answer.get(HEADER..).unwrap_or_default()) {
        let number = || <[u8; 4]>::try_from(value).map(u32::from_be_bytes).unwrap_or_default();
        match kind {
            SET_FLAGS => flags = number(),
            SET_KEY_TYPE => key = number(),
            SET_DATA_TYPE => data = number(),
            _ => {}
        }
    }
    Ok(Layout::from_numbers(flags, key, data))
}

/// The elements of a set or map of a table, which is written as in a statement: `inet cox-policy`. `NotFound` when it does not
/// exist.
pub fn elements(table: &str, set: &str) -> io::Result<Vec<Element>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("{table:?} is no family and name of a table"));
    let (family, name) = table.split_once(' ').ok_or_else(invalid)?;
    let table = TableName { family: Family::parse(family).ok_or_else(invalid)?, name };
    let layout = layout(table, set)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let answers = Socket::open_netfilter()?.dump(|| {
        Request::new(GET_ELEMENTS, 0)
            .body(&[table.family.number(), 0, 0, 0])
            .attr_str(LIST_TABLE, table.name)
            .attr_str(LIST_SET, set)
    })?;
    let lists = answers.iter().flat_map(|answer| attributes(answer.get(HEADER..).unwrap_or_default()));
    let found = lists.filter(|(kind, _)| *kind == LIST_ELEMENTS).flat_map(|(_, list)| attributes(list));
    Ok(found.filter_map(|(_, element)| parse(&layout, element)).collect())
}

fn parse(layout: &Layout, element: &[u8]) -> Option<Element> {
    let inner = |wanted: u16, bytes| attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let key = text(&layout.key, inner(DATA_VALUE, inner(ELEMENT_KEY, element)?)?)?;
    let target = match (&layout.value, inner(ELEMENT_DATA, element)) {
        (Value::Data(types), Some(data)) => Some(Target::Value(text(types, inner(DATA_VALUE, data)?)?)),
        (Value::Verdict, Some(data)) => {
            let chain = inner(DATA_VERDICT, data).and_then(|verdict| inner(VERDICT_CHAIN, verdict));
            Some(chain.map_or(Target::Other, |chain| Target::Chain(read_string(chain))))
        }
        _ => None,
    };
    let left = inner(ELEMENT_EXPIRES, element).and_then(|left| <[u8; 8]>::try_from(left).ok());
    let expires = left.map(|left| Duration::from_millis(u64::from_be_bytes(left)));
    let comment = inner(ELEMENT_USERDATA, element).and_then(comment);
    Some(Element { key, target, expires, comment })
}

/// `10.0.0.1 . tcp . 80`.
fn text(types: &[Type], bytes: &[u8]) -> Option<String> {
    let mut left = bytes;
    let mut parts = Vec::new();
    for kind in types {
        let value = left.get(..kind.length())?;
        left = left.get(kind.length().next_multiple_of(4)..).unwrap_or_default();
        parts.push(match kind {
            Type::Ipv4 | Type::Ipv6 => read_ip(value).map(|addr: IpAddr| addr.to_string())?,
            Type::Protocol => match value {
                [6] => "tcp".to_owned(),
                [17] => "udp".to_owned(),
                [132] => "sctp".to_owned(),
                [other] => other.to_string(),
                _ => return None,
            },
            Type::Icmpv6 => value.first()?.to_string(),
            Type::Port => u16::from_be_bytes(value.try_into().ok()?).to_string(),
            Type::Integer => u32::from_ne_bytes(value.try_into().ok()?).to_string(),
            Type::Mac => mac_text(value.try_into().ok()?),
            Type::Ifname => read_string(value),
        });
    }
    Some(parts.join(" . "))
}

/// Entries of kind, length and bytes; the comment ends with a zero.
fn comment(userdata: &[u8]) -> Option<String> {
    let mut left = userdata;
    while let [kind, length, rest @ ..] = left {
        let value = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            return Some(read_string(value));
        }
        left = rest.get(usize::from(*length)..)?;
    }
    None
}
