//! IP addresses and ranges of them.

use std::net::IpAddr;

use api::cidr::{Cidr, is_link_local};

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::extension::Extension;
use crate::value::Value;

pub(super) const TABLE: &[Row] = &[
    ("ip", "(string) net.IP; .(net.CIDR) net.IP", |_, values| match values {
        [Value::String(text)] => Ok(Value::extension(Extension::Ip(parse_ip(text).map_err(Error::new)?))),
        [value] => Ok(Value::extension(Extension::Ip(cidr(value)?.addr))),
        _ => no_such_overload(),
    }),
    ("isIP", "(string) bool", |_, values| match values {
        [Value::String(text)] => Ok(Value::Bool(parse_ip(text).is_ok())),
        _ => no_such_overload(),
    }),
    ("ip.isCanonical", "(string) bool", |_, values| match values {
        [Value::String(text)] => {
            let address = parse_ip(text).map_err(Error::new)?;
            Ok(Value::Bool(address.to_string() == **text))
        }
        _ => no_such_overload(),
    }),
    ("family", ".(net.IP) int", |_, values| match ip(values)? {
        IpAddr::V4(_) => Ok(Value::Int(4)),
        IpAddr::V6(_) => Ok(Value::Int(6)),
    }),
    ("isUnspecified", ".(net.IP) bool", |_, values| Ok(Value::Bool(ip(values)?.is_unspecified()))),
    ("isLoopback", ".(net.IP) bool", |_, values| Ok(Value::Bool(ip(values)?.is_loopback()))),
    ("isLinkLocalMulticast", ".(net.IP) bool", |_, values| {
        Ok(Value::Bool(match ip(values)? {
            IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
            IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
        }))
    }),
    ("isLinkLocalUnicast", ".(net.IP) bool", |_, values| Ok(Value::Bool(is_link_local(ip(values)?)))),
    ("isGlobalUnicast", ".(net.IP) bool", |_, values| {
        let address = ip(values)?;
        let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
        Ok(Value::Bool(!is_broadcast && !is_special && !is_link_local(address)))
    }),
    ("cidr", "(string) net.CIDR", |_, values| match values {
        [Value::String(text)] => Ok(Value::extension(Extension::Cidr(parse_cidr(text).map_err(Error::new)?))),
        _ => no_such_overload(),
    }),
    ("isCIDR", "(string) bool", |_, values| match values {
        [Value::String(text)] => Ok(Value::Bool(parse_cidr(text).is_ok())),
        _ => no_such_overload(),
    }),
    ("containsIP", ".(net.CIDR, string) bool; .(net.CIDR, net.IP) bool", |_, values| {
        let [range, address] = values else { return no_such_overload() };
        let address = match address {
            Value::String(text) => parse_ip(text).map_err(Error::new)?,
            other => ip(std::slice::from_ref(other))?,
        };
        Ok(Value::Bool(cidr(range)?.contains(address)))
    }),
    ("containsCIDR", ".(net.CIDR, string) bool; .(net.CIDR, net.CIDR) bool", |_, values| {
        let [range, other] = values else { return no_such_overload() };
        let range = cidr(range)?;
        let other = match other {
            Value::String(text) => parse_cidr(text).map_err(Error::new)?,
            other => cidr(other)?,
        };
        Ok(Value::Bool(other.prefix >= range.prefix && range.contains(other.addr)))
    }),
    ("prefixLength", ".(net.CIDR) int", |_, values| match values {
        [range] => Ok(Value::Int(i64::from(cidr(range)?.prefix))),
        _ => no_such_overload(),
    }),
    ("masked", ".(net.CIDR) net.CIDR", |_, values| match values {
        [range] => Ok(Value::extension(Extension::Cidr(cidr(range)?.network()))),
        _ => no_such_overload(),
    }),
];

fn ip(values: &[Value]) -> Result<IpAddr, Error> {
    match values {
        [Value::Extension(extension)] => match &**extension {
            Extension::Ip(address) => Ok(*address),
            _ => Err(Error::no_such_overload()),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn cidr(value: &Value) -> Result<Cidr, Error> {
    match value {
        Value::Extension(extension) => match &**extension {
            Extension::Cidr(range) => Ok(*range),
            _ => Err(Error::no_such_overload()),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn parse_ip(text: &str) -> Result<IpAddr, String> {
    if text.contains('%') {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    let address: IpAddr = text.parse().map_err(|_| {
        format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        )
    })?;
    refuse_mapped(address, text)
}

fn parse_cidr(text: &str) -> Result<Cidr, String> {
    let refused = |why: &str| {
        format!("network address parse error during conversion from string: netip.ParsePrefix({text:?}): {why}")
    };
    let (address, bits) = text.split_once('/').ok_or_else(|| refused("no '/'"))?;
    let address: IpAddr = address.parse().map_err(|_| refused("unable to parse IP"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let is_plain = bits.bytes().all(|byte| byte.is_ascii_digit()) && (bits == "0" || !bits.starts_with('0'));
    let bits = bits.parse().ok().filter(|bits| is_plain && *bits <= most);
    let bits = bits.ok_or_else(|| refused("bad bits after slash"))?;
    Ok(Cidr { addr: refuse_mapped(address, text)?, prefix: bits })
}

fn refuse_mapped(address: IpAddr, text: &str) -> Result<IpAddr, String> {
    match address {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        other => Ok(other),
    }
}
