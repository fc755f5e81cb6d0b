//! Ranges of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: u128,
    bits: u8,
    v6: bool,
}

impl std::str::FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("invalid CIDR address: {text}");
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits: u8 = bits.parse().map_err(|_| bad())?;
        let (value, v6, width) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), false, 32),
            IpAddr::V6(address) => (u128::from(address), true, 128),
        };
        if bits > width {
            return Err(bad());
        }
        let host = width - bits;
        let base = if host >= 128 { 0 } else { value >> host << host };
        Ok(Self { base, bits, v6 })
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.at(0), self.bits)
    }
}

impl Cidr {
    pub fn at(&self, offset: u128) -> IpAddr {
        let value = self.base + offset;
        if self.v6 { IpAddr::V6(Ipv6Addr::from(value)) } else { IpAddr::V4(Ipv4Addr::from(value as u32)) }
    }

    /// How many addresses a service can have: the first and, for IPv4, the last are not used.
    pub(crate) fn size(&self) -> u128 {
        let host = u32::from(if self.v6 { 128 - self.bits } else { 32 - self.bits });
        // Larger ranges are cut, as upstream does, so that picking stays cheap.
        let all = 1u128 << host.min(20);
        all.saturating_sub(if self.v6 || host > 20 { 1 } else { 2 }).max(1)
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let value = match address {
            IpAddr::V4(address) if !self.v6 => u128::from(u32::from(address)),
            IpAddr::V6(address) if self.v6 => u128::from(address),
            _ => return false,
        };
        let host = if self.v6 { 128 - self.bits } else { 32 - self.bits };
        host >= 128 || value >> host == self.base >> host
    }

    pub(crate) fn family(&self) -> &'static str {
        if self.v6 { "IPv6" } else { "IPv4" }
    }
}

impl Cidr {
    pub(crate) fn is_v6(&self) -> bool {
        self.v6
    }

    /// Addresses that may be given out, in the order to try them: from a random place in the upper part of the range,
    /// then the lower part, which is left to those who choose their own.
    pub(crate) fn candidates(self) -> impl Iterator<Item = IpAddr> {
        let size = self.size();
        let reserved = if size < 16 { 0 } else { (size / 16).clamp(16, 256) };
        [(reserved, size - reserved), (0, reserved)].into_iter().flat_map(move |(from, count)| {
            let start = if count == 0 { 0 } else { rand::random_range(0..count) };
            (0..count).map(move |step| self.at(1 + from + (start + step) % count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_all_addresses_but_the_ends() {
        for (range, count) in [("10.43.0.0/28", 14), ("10.43.0.0/24", 254), ("fd00::/124", 15)] {
            let range: Cidr = range.parse().unwrap();
            let mut all: Vec<IpAddr> = range.candidates().collect();
            assert!(all.iter().all(|address| range.contains(*address)), "{range}");
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{range}");
        }
        // Choosers' part comes last.
        let range: Cidr = "10.43.0.0/24".parse().unwrap();
        assert!(range.candidates().take(200).all(|address| address > range.at(16)));
    }
}
