//! An address with its prefix length, `10.42.0.5/24`, and the arithmetic on ranges of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Keeps the host bits: `10.42.0.5/24` is a host in a network, [`Cidr::network`] is the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    pub addr: IpAddr,
    pub prefix: u8,
}

impl Cidr {
    pub fn new(addr: IpAddr, prefix: u8) -> Self {
        Self { addr, prefix: prefix.min(width(addr)) }
    }

    /// The address alone: `/32` or `/128`.
    pub fn host(addr: IpAddr) -> Self {
        Self { addr, prefix: width(addr) }
    }

    pub fn default_route(v6: bool) -> Self {
        match v6 {
            true => Self { addr: Ipv6Addr::UNSPECIFIED.into(), prefix: 0 },
            false => Self { addr: Ipv4Addr::UNSPECIFIED.into(), prefix: 0 },
        }
    }

    pub fn is_v6(&self) -> bool {
        self.addr.is_ipv6()
    }

    pub fn network(&self) -> Self {
        Self { addr: from_bits(to_bits(self.addr) & self.mask(), self.is_v6()), prefix: self.prefix }
    }

    /// The last address of the network, the broadcast address in IPv4.
    pub fn last(&self) -> IpAddr {
        let host_bits = !self.mask() & all_ones(self.is_v6());
        from_bits(to_bits(self.network().addr) | host_bits, self.is_v6())
    }

    pub fn contains(&self, addr: IpAddr) -> bool {
        addr.is_ipv6() == self.is_v6() && to_bits(addr) & self.mask() == to_bits(self.addr) & self.mask()
    }

    fn mask(&self) -> u128 {
        let bits = u32::from(width(self.addr));
        let prefix = u32::from(self.prefix);
        if prefix == 0 {
            return 0;
        }
        (all_ones(self.is_v6()) >> (bits - prefix)) << (bits - prefix)
    }
}

/// Whether an address is one of a single machine that others can reach (Go's `IsGlobalUnicast`); private ones are.
pub fn is_global_unicast(addr: IpAddr) -> bool {
    let addr = addr.to_canonical();
    let is_broadcast = matches!(addr, IpAddr::V4(addr) if addr.is_broadcast());
    let is_special = addr.is_loopback() || addr.is_multicast() || addr.is_unspecified();
    !(is_broadcast || is_special || is_link_local(addr))
}

/// Whether this is an address of one link only.
pub fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    }
}

/// The address after this one; `None` at the end of the family.
pub fn next(addr: IpAddr) -> Option<IpAddr> {
    let bits = to_bits(addr);
    (bits < all_ones(addr.is_ipv6())).then(|| from_bits(bits + 1, addr.is_ipv6()))
}

/// The address before this one; `None` at the start of the family.
pub fn previous(addr: IpAddr) -> Option<IpAddr> {
    to_bits(addr).checked_sub(1).map(|bits| from_bits(bits, addr.is_ipv6()))
}

fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv6() { 128 } else { 32 }
}

fn all_ones(v6: bool) -> u128 {
    if v6 { u128::MAX } else { u128::from(u32::MAX) }
}

fn to_bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

fn from_bits(bits: u128, v6: bool) -> IpAddr {
    match v6 {
        true => Ipv6Addr::from_bits(bits).into(),
        false => Ipv4Addr::from_bits(bits as u32).into(),
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("invalid CIDR address: {0}")]
pub struct InvalidCidr(pub String);

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = || InvalidCidr(text.to_owned());
        let (addr, prefix) = text.split_once('/').ok_or_else(invalid)?;
        let addr: IpAddr = addr.parse().map_err(|_| invalid())?;
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = if is_number { prefix.parse().map_err(|_| invalid())? } else { return Err(invalid()) };
        (prefix <= width(addr)).then_some(Self { addr, prefix }).ok_or_else(invalid)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_last_and_contains() {
        for (text, network, last, inside, outside) in [
            ("10.42.0.5/24", "10.42.0.0/24", "10.42.0.255", "10.42.0.77", "10.42.1.0"),
            ("10.42.0.5/32", "10.42.0.5/32", "10.42.0.5", "10.42.0.5", "10.42.0.6"),
            ("0.0.0.0/0", "0.0.0.0/0", "255.255.255.255", "8.8.8.8", "::1"),
            ("fd00::5/64", "fd00::/64", "fd00::ffff:ffff:ffff:ffff", "fd00::1", "fd00:1::1"),
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert_eq!(cidr.network().to_string(), network);
            assert_eq!(cidr.last().to_string(), last);
            assert!(cidr.contains(inside.parse().unwrap()), "{text} contains {inside}");
            assert!(!cidr.contains(outside.parse().unwrap()), "{text} does not contain {outside}");
        }
    }

    #[test]
    fn rejects_what_is_not_a_cidr() {
        for text in ["", "10.0.0.1", "10.0.0.1/33", "fd00::/129", "x/8", "10.0.0.0/-1", "10.0.0.0/+8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
