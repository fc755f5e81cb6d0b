//! Rules: matches from left to right, each with what it takes for granted, then what happens.

use super::Unclear;
use super::batch::Batch;
use super::declaration::{Known, Layout, Type, Value, milliseconds, sees_both};
use super::elements::{Anonymous, DATA_VALUE, Verdict, attributes, masked, protocol};
use super::syntax::{Family, TableName, Words};
use crate::message::{NLM_F_CREATE, Request};

const NEW_RULE: u16 = 6;
const NLM_F_APPEND: u16 = 0x800;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;

const META_PROTOCOL: u32 = 1;
const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const META_PKTTYPE: u32 = 19;
const LINK: u32 = 0;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const EQUAL: u32 = 0;
const DIFFERENT: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const FULLY_RANDOM: u32 = 0x10;
const NAME_LENGTH: usize = 16;
/// What a frame carries, as its header says.
const ETHER_IP: u16 = 0x0800;
const ETHER_ARP: u16 = 0x0806;
const ETHER_IP6: u16 = 0x86dd;

pub(super) fn add(
    table: TableName<'_>,
    chain: &str,
    words: &mut Words<'_>,
    known: &mut Known,
    batch: &mut Batch,
) -> Result<(), Unclear> {
    let mut rule = Rule { table, family: None, ether: None, protocol: None, expressions: Vec::new() };
    while !words.is_empty() {
        rule.statement(words, known, batch).ok_or(Unclear)?;
    }
    batch.push(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, table.family.number(), |request| {
        request.attr_str(RULE_TABLE, table.name).attr_str(RULE_CHAIN, chain).nest(RULE_EXPRESSIONS, |list| {
            rule.expressions.iter().fold(list, |list, (name, data)| {
                list.nest(LIST_ELEMENT, |expression| {
                    expression.attr_str(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, |inner| inner.body(data))
                })
            })
        })
    });
    Ok(())
}

/// Something of a packet that can be loaded into a register.
#[derive(Clone, Copy, Debug)]
enum Field {
    Address {
        family: Family,
        offset: u32,
    },
    /// Of the protocol that the packet must have, or of any.
    Port {
        protocol: Option<u8>,
        offset: u32,
    },
    Icmpv6Type,
    /// Whom a message about neighbours is about.
    Icmpv6Target,
    /// Who sent the frame.
    EtherSource,
    /// What the frame carries.
    EtherProtocol,
    /// Who says to have sent an ARP message.
    ArpMac,
    ArpAddress,
    Protocol,
    Nfproto,
    Mark,
    /// Whom the frame beneath the packet is for.
    PacketType,
    Iifname,
    Oifname,
    CtState,
    CtStatus,
    CtDirection,
    AddressType {
        of_source: bool,
    },
    Random {
        modulus: u32,
        offset: u32,
    },
}

impl Field {
    /// None, and nothing taken, where the words name none.
    fn take(words: &mut Words<'_>) -> Option<Self> {
        let mut ahead = *words;
        let port = |protocol: Option<&str>, name: &str| {
            let offset = match name {
                "sport" => 0,
                "dport" => 2,
                _ => return None,
            };
            Some(Self::Port { protocol: protocol.and_then(self::protocol), offset })
        };
        let field = match ahead.next()? {
            "ip" => match ahead.next()? {
                "saddr" => Self::Address { family: Family::Ip, offset: 12 },
                "daddr" => Self::Address { family: Family::Ip, offset: 16 },
                _ => return None,
            },
            "ip6" => match ahead.next()? {
                "saddr" => Self::Address { family: Family::Ip6, offset: 8 },
                "daddr" => Self::Address { family: Family::Ip6, offset: 24 },
                _ => return None,
            },
            "th" => port(None, ahead.next()?)?,
            name @ ("tcp" | "udp" | "sctp") => port(Some(name), ahead.next()?)?,
            "icmpv6" => match ahead.next()? {
                "type" => Self::Icmpv6Type,
                "taddr" => Self::Icmpv6Target,
                _ => return None,
            },
            "ether" => ahead.take("saddr").then_some(Self::EtherSource)?,
            "arp" => match (ahead.take("saddr"), ahead.next()?) {
                (true, "ether") => Self::ArpMac,
                (true, "ip") => Self::ArpAddress,
                _ => return None,
            },
            "meta" => match ahead.next()? {
                "protocol" => Self::EtherProtocol,
                "l4proto" => Self::Protocol,
                "nfproto" => Self::Nfproto,
                "mark" => Self::Mark,
                "pkttype" => Self::PacketType,
                _ => return None,
            },
            "iifname" => Self::Iifname,
            "oifname" => Self::Oifname,
            "ct" => match ahead.next()? {
                "state" => Self::CtState,
                "status" => Self::CtStatus,
                "direction" => Self::CtDirection,
                _ => return None,
            },
            "fib" => {
                let of_source = match ahead.next()? {
                    "saddr" => true,
                    "daddr" => false,
                    _ => return None,
                };
                ahead.take("type").then_some(Self::AddressType { of_source })?
            }
            "numgen" => {
                (ahead.take("random") && ahead.take("mod")).then_some(())?;
                let modulus = ahead.next()?.parse().ok()?;
                let offset = if ahead.take("offset") { ahead.next()?.parse().ok()? } else { 0 };
                Self::Random { modulus, offset }
            }
            _ => return None,
        };
        *words = ahead;
        Some(field)
    }

    /// What it is in a set; none where it is in none of ours.
    fn kind(self) -> Option<Type> {
        match self {
            Self::Address { family: Family::Ip6, .. } => Some(Type::Ipv6),
            Self::Address { .. } => Some(Type::Ipv4),
            Self::Port { .. } => Some(Type::Port),
            Self::Icmpv6Type => Some(Type::Icmpv6),
            Self::Icmpv6Target => Some(Type::Ipv6),
            Self::EtherSource | Self::ArpMac => Some(Type::Mac),
            Self::ArpAddress => Some(Type::Ipv4),
            Self::Iifname | Self::Oifname => Some(Type::Ifname),
            Self::Protocol => Some(Type::Protocol),
            Self::Random { .. } => Some(Type::Integer),
            _ => None,
        }
    }
}

struct Rule<'a> {
    table: TableName<'a>,
    /// What the rule has made sure of so far.
    family: Option<Family>,
    ether: Option<u16>,
    protocol: Option<u8>,
    expressions: Vec<(&'static str, Vec<u8>)>,
}

impl Rule<'_> {
    /// One match or action.
    fn statement(&mut self, words: &mut Words<'_>, known: &mut Known, batch: &mut Batch) -> Option<()> {
        if let Some(verdict) = Verdict::take(words) {
            self.push("immediate", |data| {
                data.attr(1, &VERDICT_REGISTER.to_be_bytes()).nest(2, |data| verdict.write(data))
            });
            return Some(());
        }
        let mut ahead = *words;
        match ahead.next()? {
            "masquerade" => {
                *words = ahead;
                let flags = if words.take("fully-random") { FULLY_RANDOM } else { 0 };
                self.push("masq", |data| if flags == 0 { data } else { data.attr(1, &flags.to_be_bytes()) });
                Some(())
            }
            "reject" => {
                *words = ahead;
                self.reject(words)
            }
            "dnat" => {
                *words = ahead;
                self.dnat(words, known)
            }
            "update" => {
                *words = ahead;
                self.update(words)
            }
            "meta" if ahead.take("mark") && ahead.take("set") => {
                *words = ahead;
                self.set_mark(words)
            }
            _ => self.matching(words, known, batch),
        }
    }

    fn push(&mut self, name: &'static str, fill: impl FnOnce(Request) -> Request) {
        self.expressions.push((name, attributes(fill)));
    }

    /// A field, or several joined by dots, and what it is compared with.
    fn matching(&mut self, words: &mut Words<'_>, known: &mut Known, batch: &mut Batch) -> Option<()> {
        let fields = fields(words)?;
        if words.take("vmap") {
            self.load_all(&fields)?;
            return match words.peek()? {
                "{" => {
                    let key: Option<Vec<Type>> = fields.iter().map(|field| field.kind()).collect();
                    let layout = Layout { key: key?, value: Value::Verdict, is_interval: false };
                    let (name, id) = Anonymous::parse(layout, words)?.push(self.table, batch);
                    self.lookup(name, Some(id), Some(VERDICT_REGISTER), false);
                    Some(())
                }
                _ => {
                    let name = words.next()?.strip_prefix('@')?;
                    self.lookup(name, None, Some(VERDICT_REGISTER), false);
                    Some(())
                }
            };
        }
        let is_not = words.take("!=");
        match words.peek()? {
            "{" => {
                let key: Option<Vec<Type>> = fields.iter().map(|field| field.kind()).collect();
                let key = key?;
                let is_interval = matches!(key.as_slice(), [Type::Ipv4 | Type::Ipv6]);
                let mut look = *words;
                let set = Anonymous::parse(Layout { key, value: Value::None, is_interval }, &mut look)?;
                // One range needs no set.
                if let ([field], Some(_)) = (fields.as_slice(), set.single()) {
                    words.take("{");
                    self.compare(*field, is_not, words)?;
                    return words.take("}").then_some(());
                }
                *words = look;
                self.load_all(&fields)?;
                let (name, id) = set.push(self.table, batch);
                self.lookup(name, Some(id), None, is_not);
                Some(())
            }
            word if word.starts_with('@') => {
                let name = words.next()?.strip_prefix('@')?;
                known.layout(self.table, name).ok()?;
                self.load_all(&fields)?;
                self.lookup(name, None, None, is_not);
                Some(())
            }
            _ => match fields.as_slice() {
                [field] => self.compare(*field, is_not, words),
                _ => None,
            },
        }
    }

    /// A field with a value, given by the next words.
    fn compare(&mut self, field: Field, is_not: bool, words: &mut Words<'_>) -> Option<()> {
        let operation = if is_not { DIFFERENT } else { EQUAL };
        match field {
            Field::CtState | Field::CtStatus => {
                let masked = words.take("&");
                let flags = flags(field, words.next()?)?;
                self.load(field, 1);
                self.bitwise(flags, 0);
                let (operation, against) = match masked {
                    true => (EQUAL, words.take("==").then(|| words.next())??.parse::<u32>().ok()?),
                    false => (if is_not { EQUAL } else { DIFFERENT }, 0),
                };
                self.check(operation, &against.to_ne_bytes());
            }
            Field::Mark => {
                let mask = words.take("&").then(|| number(words.next()?))??;
                let value = words.take("==").then(|| number(words.next()?))??;
                self.load(field, 1);
                self.bitwise(mask, 0);
                self.check(EQUAL, &value.to_ne_bytes());
            }
            Field::CtDirection => {
                let direction = match words.next()? {
                    "original" => 0,
                    "reply" => 1,
                    _ => return None,
                };
                self.load(field, 1);
                self.check(operation, &[direction]);
            }
            Field::AddressType { .. } => {
                let kind: u32 = (words.next()? == "local").then_some(2)?;
                self.load(field, 1);
                self.check(operation, &kind.to_ne_bytes());
            }
            Field::Iifname | Field::Oifname => {
                let name = words.next()?;
                let mut bytes = name.strip_suffix('*').unwrap_or(name).as_bytes().to_vec();
                (bytes.len() < NAME_LENGTH).then_some(())?;
                if !name.ends_with('*') {
                    bytes.resize(NAME_LENGTH, 0);
                }
                self.load(field, 1);
                self.check(operation, &bytes);
            }
            Field::PacketType => {
                let kind = match words.next()? {
                    "broadcast" => 1,
                    "multicast" => 2,
                    _ => return None,
                };
                self.load(field, 1);
                self.check(operation, &[kind]);
            }
            Field::EtherProtocol => {
                let protocol = match words.next()? {
                    "ip" => ETHER_IP,
                    "ip6" => ETHER_IP6,
                    "arp" => ETHER_ARP,
                    _ => return None,
                };
                (!is_not).then(|| self.require_ether(protocol))?;
            }
            Field::Nfproto => {
                let family = match words.next()? {
                    "ipv4" => Family::Ip,
                    "ipv6" => Family::Ip6,
                    _ => return None,
                };
                match is_not {
                    true => {
                        self.load(field, 1);
                        self.check(DIFFERENT, &[family.number()]);
                    }
                    false => self.require_family(family),
                }
            }
            Field::Protocol => {
                let protocol = protocol(words.next()?)?;
                match is_not {
                    true => {
                        self.load(field, 1);
                        self.check(DIFFERENT, &[protocol]);
                    }
                    false => self.require_protocol(protocol),
                }
            }
            Field::Address { .. }
            | Field::Port { .. }
            | Field::Icmpv6Type
            | Field::Icmpv6Target
            | Field::EtherSource
            | Field::ArpMac
            | Field::ArpAddress
            | Field::Random { .. } => {
                let (value, mask) = masked(field.kind()?, words.next()?)?;
                self.require(field);
                self.load(field, 1);
                if let Some(mask) = mask {
                    self.bitwise_bytes(&mask, &vec![0; mask.len()]);
                }
                self.check(operation, &value);
            }
        }
        Some(())
    }

    fn reject(&mut self, words: &mut Words<'_>) -> Option<()> {
        // Kinds: unreachable of one family, reset, unreachable of either.
        let (kind, code): (u32, u8) = match words.take("with") {
            true => (words.take("tcp") && words.take("reset")).then_some((1, 0))?,
            false => match self.table.family {
                Family::Ip => (0, 3),
                Family::Ip6 => (0, 4),
                Family::Inet => (2, 1),
                Family::Bridge => return None,
            },
        };
        self.push("reject", |data| data.attr(1, &kind.to_be_bytes()).attr(2, &[code]));
        Some(())
    }

    /// `dnat to 10.0.0.1:80`, or to what a map holds under some fields: an address and a port.
    fn dnat(&mut self, words: &mut Words<'_>, known: &mut Known) -> Option<()> {
        let named = match words.peek()? {
            "ip" => Some(Family::Ip),
            "ip6" => Some(Family::Ip6),
            _ => None,
        };
        if named.is_some() {
            words.next();
        }
        words.take("to").then_some(())?;
        let family = match (named, self.table.family) {
            (Some(family), _) => family,
            (None, Family::Inet | Family::Bridge) => return None,
            (None, family) => family,
        };
        let width = if family == Family::Ip6 { 16 } else { 4 };
        if let Some(fields) = fields(words) {
            words.take("map").then_some(())?;
            let name = words.next()?.strip_prefix('@')?;
            known.layout(self.table, name).ok()?;
            self.load_all(&fields)?;
            self.lookup(name, None, Some(1), false);
        } else {
            let target: std::net::SocketAddr = words.next()?.parse().ok()?;
            let address = match target.ip() {
                std::net::IpAddr::V4(addr) => addr.octets().to_vec(),
                std::net::IpAddr::V6(addr) => addr.octets().to_vec(),
            };
            (address.len() == width).then_some(())?;
            self.immediate(1, &address);
            self.immediate(register(width), &target.port().to_be_bytes());
        }
        self.push("nat", |data| {
            data.attr(1, &1u32.to_be_bytes())
                .attr(2, &u32::from(family.number()).to_be_bytes())
                .attr(3, &1u32.to_be_bytes())
                .attr(5, &register(width).to_be_bytes())
        });
        Some(())
    }

    /// `update @clients { ip saddr timeout 10s }`.
    fn update(&mut self, words: &mut Words<'_>) -> Option<()> {
        let set = words.next()?.strip_prefix('@')?;
        words.take("{").then_some(())?;
        self.load_all(&fields(words)?)?;
        let timeout = words.take("timeout").then(|| milliseconds(words.next()?))??;
        self.push("dynset", |data| {
            data.attr_str(1, set)
                .attr(3, &1u32.to_be_bytes())
                .attr(4, &1u32.to_be_bytes())
                .attr(6, &timeout.to_be_bytes())
        });
        words.take("}").then_some(())
    }

    /// `meta mark set meta mark | 0x4000`, or `^`.
    fn set_mark(&mut self, words: &mut Words<'_>) -> Option<()> {
        (words.take("meta") && words.take("mark")).then_some(())?;
        let operator = words.next()?;
        let bits = number(words.next()?)?;
        self.load(Field::Mark, 1);
        match operator {
            "|" => self.bitwise(!bits, bits),
            "^" => self.bitwise(u32::MAX, bits),
            _ => return None,
        }
        self.push("meta", |data| data.attr(2, &META_MARK.to_be_bytes()).attr(3, &1u32.to_be_bytes()));
        Some(())
    }

    /// What must be true of a packet for the field to be there.
    fn require(&mut self, field: Field) {
        match field {
            Field::Address { family, .. } => self.require_family(family),
            Field::Port { protocol: Some(protocol), .. } => self.require_protocol(protocol),
            Field::Icmpv6Type | Field::Icmpv6Target => {
                self.require_family(Family::Ip6);
                self.require_protocol(58);
            }
            Field::ArpMac | Field::ArpAddress => self.require_ether(ETHER_ARP),
            _ => {}
        }
    }

    fn require_family(&mut self, family: Family) {
        if self.table.family == Family::Bridge {
            return self.require_ether(if family == Family::Ip6 { ETHER_IP6 } else { ETHER_IP });
        }
        if sees_both(self.table) && self.family != Some(family) {
            self.load(Field::Nfproto, 1);
            self.check(EQUAL, &[family.number()]);
            self.family = Some(family);
        }
    }

    /// By what the kernel found below the outer tag, not by what stands in the header of the frame.
    fn require_ether(&mut self, protocol: u16) {
        if self.ether != Some(protocol) {
            self.load(Field::EtherProtocol, 1);
            self.check(EQUAL, &protocol.to_be_bytes());
            self.ether = Some(protocol);
        }
    }

    fn require_protocol(&mut self, protocol: u8) {
        if self.protocol != Some(protocol) {
            self.load(Field::Protocol, 1);
            self.check(EQUAL, &[protocol]);
            self.protocol = Some(protocol);
        }
    }

    /// Loads fields side by side, each at a boundary of four bytes.
    fn load_all(&mut self, fields: &[Field]) -> Option<()> {
        fields.iter().for_each(|field| self.require(*field));
        let mut offset = 0;
        for field in fields {
            self.load(*field, register(offset));
            offset += field.kind()?.length().next_multiple_of(4);
        }
        Some(())
    }

    fn load(&mut self, field: Field, register: u32) {
        let to = register.to_be_bytes();
        let payload = |base: u32, offset: u32, length: u32| {
            attributes(|data| {
                data.attr(1, &to)
                    .attr(2, &base.to_be_bytes())
                    .attr(3, &offset.to_be_bytes())
                    .attr(4, &length.to_be_bytes())
            })
        };
        let keyed = |key: u32| attributes(|data| data.attr(1, &to).attr(2, &key.to_be_bytes()));
        let expression = match field {
            Field::Address { family, offset } => {
                ("payload", payload(NETWORK, offset, if family == Family::Ip6 { 16 } else { 4 }))
            }
            Field::Port { offset, .. } => ("payload", payload(TRANSPORT, offset, 2)),
            Field::Icmpv6Type => ("payload", payload(TRANSPORT, 0, 1)),
            Field::Icmpv6Target => ("payload", payload(TRANSPORT, 8, 16)),
            Field::EtherSource => ("payload", payload(LINK, 6, 6)),
            Field::ArpMac => ("payload", payload(NETWORK, 8, 6)),
            Field::ArpAddress => ("payload", payload(NETWORK, 14, 4)),
            Field::EtherProtocol => ("meta", keyed(META_PROTOCOL)),
            Field::Protocol => ("meta", keyed(META_L4PROTO)),
            Field::Nfproto => ("meta", keyed(META_NFPROTO)),
            Field::Mark => ("meta", keyed(META_MARK)),
            Field::PacketType => ("meta", keyed(META_PKTTYPE)),
            Field::Iifname => ("meta", keyed(META_IIFNAME)),
            Field::Oifname => ("meta", keyed(META_OIFNAME)),
            Field::CtState => ("ct", keyed(0)),
            Field::CtDirection => ("ct", keyed(1)),
            Field::CtStatus => ("ct", keyed(2)),
            Field::AddressType { of_source } => {
                let flags: u32 = if of_source { 1 } else { 2 };
                let data =
                    attributes(|data| data.attr(1, &to).attr(2, &3u32.to_be_bytes()).attr(3, &flags.to_be_bytes()));
                ("fib", data)
            }
            Field::Random { modulus, offset } => {
                let data = attributes(|data| {
                    data.attr(1, &to)
                        .attr(2, &modulus.to_be_bytes())
                        .attr(3, &1u32.to_be_bytes())
                        .attr(4, &offset.to_be_bytes())
                });
                ("numgen", data)
            }
        };
        self.expressions.push(expression);
    }

    fn check(&mut self, operation: u32, value: &[u8]) {
        self.push("cmp", |data| {
            data.attr(1, &1u32.to_be_bytes())
                .attr(2, &operation.to_be_bytes())
                .nest(3, |data| data.attr(DATA_VALUE, value))
        });
    }

    fn bitwise(&mut self, mask: u32, flip: u32) {
        self.bitwise_bytes(&mask.to_ne_bytes(), &flip.to_ne_bytes());
    }

    fn bitwise_bytes(&mut self, mask: &[u8], flip: &[u8]) {
        self.push("bitwise", |data| {
            data.attr(1, &1u32.to_be_bytes())
                .attr(2, &1u32.to_be_bytes())
                .attr(3, &(mask.len() as u32).to_be_bytes())
                .nest(4, |data| data.attr(DATA_VALUE, mask))
                .nest(5, |data| data.attr(DATA_VALUE, flip))
        });
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.push("immediate", |data| {
            data.attr(1, &register.to_be_bytes()).nest(2, |data| data.attr(DATA_VALUE, value))
        });
    }

    /// Finds the registers from the first on in a set; `into` is where a map's value goes.
    fn lookup(&mut self, set: &str, id: Option<u32>, into: Option<u32>, is_not: bool) {
        self.push("lookup", |data| {
            let mut data = data.attr_str(1, set).attr(2, &1u32.to_be_bytes());
            if let Some(register) = into {
                data = data.attr(3, &register.to_be_bytes());
            }
            if let Some(id) = id {
                data = data.attr(4, &id.to_be_bytes());
            }
            if is_not { data.attr(5, &1u32.to_be_bytes()) } else { data }
        });
    }
}

/// The register that begins so many bytes after the first one; those of four bytes are numbered after those of sixteen.
fn register(offset: usize) -> u32 {
    match offset % 16 {
        0 => 1 + (offset / 16) as u32,
        _ => 8 + (offset / 4) as u32,
    }
}

fn fields(words: &mut Words<'_>) -> Option<Vec<Field>> {
    let mut all = vec![Field::take(words)?];
    while words.take(".") {
        all.push(Field::take(words)?);
    }
    Some(all)
}

fn flags(field: Field, text: &str) -> Option<u32> {
    let one = |name: &str| -> Option<u32> {
        match (field, name) {
            (Field::CtState, "invalid") => Some(1),
            (Field::CtState, "established") => Some(2),
            (Field::CtState, "related") => Some(4),
            (Field::CtState, "new") => Some(8),
            (Field::CtStatus, "dnat") => Some(0x20),
            _ => None,
        }
    };
    text.split(',').try_fold(0, |sum, name| Some(sum | one(name)?))
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
