//! Tables, chains and sets: what there is, before anything is in it.

use std::collections::HashMap;

use super::Unclear;
use super::batch::Batch;
use super::query;
use super::syntax::{Family, TableName, Words};
use crate::message::{NLM_F_CREATE, Request};

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;

pub(super) const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const TABLE_USERDATA: u16 = 6;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
pub(super) const SET_TABLE: u16 = 1;
pub(super) const SET_NAME: u16 = 2;
pub(super) const SET_FLAGS: u16 = 3;
pub(super) const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LENGTH: u16 = 5;
pub(super) const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LENGTH: u16 = 7;
const SET_DESCRIPTION: u16 = 9;
const SET_ID: u16 = 10;
const SET_TIMEOUT: u16 = 11;
const SET_USERDATA: u16 = 13;
const DESCRIPTION_SIZE: u16 = 1;
const DESCRIPTION_CONCAT: u16 = 2;
const LIST_ELEMENT: u16 = 1;
const FIELD_LENGTH: u16 = 1;

const ANONYMOUS: u32 = 0x01;
const CONSTANT: u32 = 0x02;
const INTERVAL: u32 = 0x04;
const MAP: u32 = 0x08;
const TIMEOUT: u32 = 0x10;
const EVALUATED: u32 = 0x20;
const CONCATENATION: u32 = 0x80;

const VERDICT: u32 = 0xffff_ff00;

/// What one part of a key or value is. The numbers are those by which `nft` names them in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// A number of this machine's byte order.
    Integer,
    Ipv4,
    Ipv6,
    Icmpv6,
    Protocol,
    Port,
    Mac,
    /// The name of a link, filled up with zeros.
    Ifname,
}

impl Type {
    const ALL: [(Self, u32, usize, &'static str); 8] = [
        (Self::Integer, 4, 4, "integer"),
        (Self::Ipv4, 7, 4, "ipv4_addr"),
        (Self::Ipv6, 8, 16, "ipv6_addr"),
        (Self::Mac, 9, 6, "ether_addr"),
        (Self::Protocol, 12, 1, "inet_proto"),
        (Self::Port, 13, 2, "inet_service"),
        (Self::Icmpv6, 29, 1, "icmpv6_type"),
        (Self::Ifname, 41, 16, "ifname"),
    ];

    fn number(self) -> u32 {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or(0, |(_, number, ..)| *number)
    }

    pub(super) fn length(self) -> usize {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or(0, |(_, _, length, _)| *length)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(.., known)| *known == name).map(|(kind, ..)| *kind)
    }
}

/// What the elements of a set or map are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) key: Vec<Type>,
    pub(super) value: Value,
    pub(super) is_interval: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Verdict,
    Data(Vec<Type>),
}

impl Layout {
    /// As the kernel describes a set.
    pub(super) fn from_numbers(flags: u32, key: u32, data: u32) -> Option<Self> {
        let value = match (flags & MAP != 0, data) {
            (false, _) => Value::None,
            (true, VERDICT) => Value::Verdict,
            (true, data) => Value::Data(types(data)?),
        };
        Some(Self { key: types(key)?, value, is_interval: flags & INTERVAL != 0 })
    }
}

/// Six bits a part, the last one lowest.
fn number_of(types: &[Type]) -> u32 {
    types.iter().fold(0, |sum, part| sum << 6 | part.number())
}

fn types(number: u32) -> Option<Vec<Type>> {
    let mut parts = Vec::new();
    let mut left = number;
    while left != 0 {
        parts.push(Type::ALL.iter().find(|(_, known, ..)| *known == left & 0x3f)?.0);
        left >>= 6;
    }
    parts.reverse();
    (!parts.is_empty()).then_some(parts)
}

/// Alone a part has its own length; among others each begins at a boundary of four bytes.
fn length_of(types: &[Type]) -> usize {
    match types {
        [one] => one.length(),
        parts => parts.iter().map(|part| part.length().next_multiple_of(4)).sum(),
    }
}

/// Layouts of sets: those that this transaction declares, and those that the kernel was asked about.
#[derive(Debug, Default)]
pub(super) struct Known {
    layouts: HashMap<(u8, String, String), Layout>,
}

impl Known {
    pub(super) fn layout(&mut self, table: TableName<'_>, set: &str) -> Result<Layout, Unclear> {
        let key = (table.family.number(), table.name.to_owned(), set.to_owned());
        if let Some(layout) = self.layouts.get(&key) {
            return Ok(layout.clone());
        }
        let layout = query::layout(table, set).ok().flatten().ok_or(Unclear)?;
        self.layouts.insert(key, layout.clone());
        Ok(layout)
    }

    fn declare(&mut self, table: TableName<'_>, set: &str, layout: Layout) {
        self.layouts.insert((table.family.number(), table.name.to_owned(), set.to_owned()), layout);
    }

    /// A table that goes takes its sets along.
    pub(super) fn forget(&mut self, table: TableName<'_>) {
        self.layouts.retain(|(family, name, _), _| (*family, name.as_str()) != (table.family.number(), table.name));
    }
}

pub(super) fn add_table(table: TableName<'_>, rest: &mut Words<'_>, batch: &mut Batch) -> Result<(), Unclear> {
    let mut comment = None;
    if rest.take("{") {
        if !rest.take("comment") {
            return Err(Unclear);
        }
        comment = Some(rest.next().ok_or(Unclear)?);
        if !(rest.take(";") && rest.take("}")) {
            return Err(Unclear);
        }
    }
    batch.push(NEW_TABLE, NLM_F_CREATE, table.family.number(), |request| {
        let request = request.attr_str(TABLE_NAME, table.name).attr(TABLE_FLAGS, &0u32.to_be_bytes());
        match comment {
            Some(comment) => request.attr(TABLE_USERDATA, &user_text(0, comment)),
            None => request,
        }
    });
    Ok(())
}

pub(super) fn delete_table(table: TableName<'_>, batch: &mut Batch) {
    batch.push(DELETE_TABLE, 0, table.family.number(), |request| request.attr_str(TABLE_NAME, table.name));
}

/// `{ type nat hook prerouting priority -100 ; }`, or nothing for a chain that others lead to.
pub(super) fn add_chain(
    table: TableName<'_>,
    name: &str,
    rest: &mut Words<'_>,
    batch: &mut Batch,
) -> Result<(), Unclear> {
    let hook = if rest.take("{") { Some(hook(rest).ok_or(Unclear)?) } else { None };
    batch.push(NEW_CHAIN, NLM_F_CREATE, table.family.number(), |request| {
        let request = request.attr_str(CHAIN_TABLE, table.name).attr_str(CHAIN_NAME, name);
        match hook {
            Some((kind, number, priority)) => request
                .nest(CHAIN_HOOK, |hook| {
                    hook.attr(HOOK_NUMBER, &number.to_be_bytes()).attr(HOOK_PRIORITY, &priority.to_be_bytes())
                })
                .attr_str(CHAIN_TYPE, kind),
            None => request,
        }
    });
    Ok(())
}

fn hook<'a>(rest: &mut Words<'a>) -> Option<(&'a str, u32, i32)> {
    let kind = rest.take("type").then(|| rest.next())??;
    let number = match rest.take("hook").then(|| rest.next())?? {
        "prerouting" => 0,
        "input" => 1,
        "forward" => 2,
        "output" => 3,
        "postrouting" => 4,
        _ => return None,
    };
    let priority = rest.take("priority").then(|| rest.next())??.parse().ok()?;
    (rest.take(";") && rest.take("}")).then_some((kind, number, priority))
}

pub(super) fn delete_chain(table: TableName<'_>, name: &str, batch: &mut Batch) {
    batch.push(DELETE_CHAIN, 0, table.family.number(), |request| {
        request.attr_str(CHAIN_TABLE, table.name).attr_str(CHAIN_NAME, name)
    });
}

pub(super) fn flush_chain(table: TableName<'_>, name: &str, batch: &mut Batch) {
    batch.push(DELETE_RULE, 0, table.family.number(), |request| {
        request.attr_str(RULE_TABLE, table.name).attr_str(RULE_CHAIN, name)
    });
}

pub(super) fn delete_set(table: TableName<'_>, name: &str, batch: &mut Batch) {
    batch.push(DELETE_SET, 0, table.family.number(), |request| {
        request.attr_str(SET_TABLE, table.name).attr_str(SET_NAME, name)
    });
}

/// A set or map as it is declared.
struct Declaration {
    layout: Layout,
    flags: u32,
    size: Option<u32>,
    timeout: Option<u64>,
    userdata: Vec<u8>,
}

pub(super) fn add_set(
    table: TableName<'_>,
    name: &str,
    rest: &mut Words<'_>,
    known: &mut Known,
    batch: &mut Batch,
) -> Result<(), Unclear> {
    let declaration = Declaration::parse(rest).ok_or(Unclear)?;
    let id = batch.next_set();
    declaration.push(table, name, id, batch);
    known.declare(table, name, declaration.layout);
    Ok(())
}

/// A set that belongs to one rule; returns the number it has in the batch. The name is the kernel's to complete.
pub(super) fn add_anonymous(
    table: TableName<'_>,
    layout: &Layout,
    count: usize,
    batch: &mut Batch,
) -> (&'static str, u32) {
    let id = batch.next_set();
    let name = if layout.value == Value::None { "__set%d" } else { "__map%d" };
    let declaration = Declaration {
        layout: layout.clone(),
        flags: ANONYMOUS | CONSTANT,
        size: u32::try_from(count).ok(),
        timeout: None,
        userdata: Vec::new(),
    };
    declaration.push(table, name, id, batch);
    (name, id)
}

impl Declaration {
    /// `{ type ipv4_addr . inet_proto : verdict ; flags interval ; size 7 ; timeout 5s ; }`.
    fn parse(rest: &mut Words<'_>) -> Option<Self> {
        rest.take("{").then_some(())?;
        let mut userdata = Vec::new();
        let (key, value) = match rest.next()? {
            "type" => {
                let key = type_names(rest)?;
                let value = match rest.take(":") {
                    true if rest.take("verdict") => Value::Verdict,
                    true => Value::Data(type_names(rest)?),
                    false => Value::None,
                };
                // Without this, `nft` shows the bytes of a name backwards where the name is the whole key.
                if key == [Type::Ifname] {
                    const HOST_ORDER: u32 = 1;
                    userdata = [user_number(0, HOST_ORDER), user_number(1, 0), user_number(6, 0)].concat();
                }
                (key, value)
            }
            "typeof" => {
                let key = expressions(rest)?;
                let data = rest.take(":").then(|| expressions(rest))??;
                userdata = type_notes(&key, &data);
                let kinds = |parts: &[Expression]| parts.iter().map(|part| part.kind).collect::<Vec<Type>>();
                (kinds(&key), Value::Data(kinds(&data)))
            }
            _ => return None,
        };
        rest.take(";").then_some(())?;
        let mut layout = Layout { key, value, is_interval: false };
        let (mut flags, mut size, mut timeout) = (0, None, None);
        while !rest.take("}") {
            match rest.next()? {
                "flags" => {
                    for flag in rest.next()?.split(',') {
                        match flag {
                            "interval" => layout.is_interval = true,
                            "dynamic" => flags |= EVALUATED,
                            "timeout" => flags |= TIMEOUT,
                            _ => return None,
                        }
                    }
                }
                "size" => size = Some(rest.next()?.parse().ok()?),
                "timeout" => timeout = Some(milliseconds(rest.next()?)?),
                _ => return None,
            }
            rest.take(";").then_some(())?;
        }
        Some(Self { layout, flags, size, timeout, userdata })
    }

    fn push(&self, table: TableName<'_>, name: &str, id: u32, batch: &mut Batch) {
        let Layout { key, value, is_interval } = &self.layout;
        let is_ranges_of_several = *is_interval && key.len() > 1;
        let mut flags = self.flags;
        if *is_interval {
            flags |= INTERVAL;
        }
        if is_ranges_of_several {
            flags |= CONCATENATION;
        }
        if *value != Value::None {
            flags |= MAP;
        }
        batch.push(NEW_SET, NLM_F_CREATE, table.family.number(), |request| {
            let mut request = request
                .attr_str(SET_TABLE, table.name)
                .attr_str(SET_NAME, name)
                .attr(SET_FLAGS, &flags.to_be_bytes())
                .attr(SET_KEY_TYPE, &number_of(key).to_be_bytes())
                .attr(SET_KEY_LENGTH, &(length_of(key) as u32).to_be_bytes());
            request = match value {
                Value::None => request,
                Value::Verdict => request.attr(SET_DATA_TYPE, &VERDICT.to_be_bytes()),
                Value::Data(data) => request
                    .attr(SET_DATA_TYPE, &number_of(data).to_be_bytes())
                    .attr(SET_DATA_LENGTH, &(length_of(data) as u32).to_be_bytes()),
            };
            if self.size.is_some() || is_ranges_of_several {
                request = request.nest(SET_DESCRIPTION, |mut description| {
                    if let Some(size) = self.size {
                        description = description.attr(DESCRIPTION_SIZE, &size.to_be_bytes());
                    }
                    match is_ranges_of_several {
                        true => description.nest(DESCRIPTION_CONCAT, |list| {
                            key.iter().fold(list, |list, part| {
                                let length = part.length() as u32;
                                list.nest(LIST_ELEMENT, |field| field.attr(FIELD_LENGTH, &length.to_be_bytes()))
                            })
                        }),
                        false => description,
                    }
                });
            }
            request = request.attr(SET_ID, &id.to_be_bytes());
            if let Some(timeout) = self.timeout {
                request = request.attr(SET_TIMEOUT, &timeout.to_be_bytes());
            }
            if self.userdata.is_empty() { request } else { request.attr(SET_USERDATA, &self.userdata) }
        });
    }
}

/// `10s` in milliseconds.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    text.strip_suffix('s')?.parse::<u64>().ok()?.checked_mul(1000)
}

fn type_names(rest: &mut Words<'_>) -> Option<Vec<Type>> {
    let mut parts = vec![Type::named(rest.next()?)?];
    while rest.take(".") {
        parts.push(Type::named(rest.next()?)?);
    }
    Some(parts)
}

/// A part of a `typeof`: its type, and what `nft` wants to read of it in order to show it again.
struct Expression {
    kind: Type,
    note: Vec<u8>,
}

/// `ip daddr . tcp dport . numgen random mod 65536`.
fn expressions(rest: &mut Words<'_>) -> Option<Vec<Expression>> {
    const PAYLOAD: u32 = 7;
    const NUMBER: u32 = 0x17;
    let mut parts = Vec::new();
    loop {
        let field = |kind: Type, protocol: u32, field: u32| {
            let data = [user_number(0, protocol), user_number(1, field)].concat();
            Expression { kind, note: [user_number(0, PAYLOAD), user_data(1, &data)].concat() }
        };
        let part = match (rest.next()?, rest.next()?) {
            ("ip", "daddr") => field(Type::Ipv4, 12, 12),
            ("ip6", "daddr") => field(Type::Ipv6, 13, 9),
            ("tcp", "dport") => field(Type::Port, 8, 2),
            ("udp", "dport") => field(Type::Port, 6, 2),
            ("sctp", "dport") => field(Type::Port, 10, 2),
            ("numgen", "random") => {
                let modulus = rest.take("mod").then(|| rest.next())??.parse().ok()?;
                let data = [user_number(0, 1), user_number(1, modulus), user_number(2, 0)].concat();
                let note = [user_number(0, NUMBER), user_data(1, &data)].concat();
                Expression { kind: Type::Integer, note }
            }
            _ => return None,
        };
        parts.push(part);
        if !rest.take(".") {
            return Some(parts);
        }
    }
}

/// What `nft` keeps beside a set whose types it knows by expressions.
fn type_notes(key: &[Expression], data: &[Expression]) -> Vec<u8> {
    const CONCATENATION: u32 = 13;
    let of = |parts: &[Expression]| match parts {
        [one] => one.note.clone(),
        parts => {
            let numbered = parts.iter().enumerate().map(|(i, part)| user_data(i as u8, &part.note));
            let all: Vec<u8> = numbered.flatten().collect();
            [user_number(0, CONCATENATION), user_data(1, &all)].concat()
        }
    };
    [user_number(0, 0), user_number(1, 0), user_data(3, &of(key)), user_data(4, &of(data)), user_number(6, 0)].concat()
}

/// An entry of what the kernel keeps for `nft` and does not read: kind, length, bytes.
fn user_data(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind, bytes.len() as u8], bytes].concat()
}

fn user_number(kind: u8, number: u32) -> Vec<u8> {
    user_data(kind, &number.to_ne_bytes())
}

pub(super) fn user_text(kind: u8, text: &str) -> Vec<u8> {
    user_data(kind, &[text.as_bytes(), &[0]].concat())
}

/// The families whose packets a table sees.
pub(super) fn sees_both(table: TableName<'_>) -> bool {
    table.family == Family::Inet
}

/// Where a message says which set it means.
pub(super) fn set_names(request: Request, table: TableName<'_>, name: &str) -> Request {
    request.attr_str(SET_TABLE, table.name).attr_str(SET_NAME, name)
}
