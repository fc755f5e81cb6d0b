//! Ranges of addresses that services get theirs from.

use std::net::IpAddr;

use api::cidr::Cidr;

/// The address so many places after the first.
pub(crate) fn at(range: &Cidr, offset: u128) -> IpAddr {
    match range.network().addr {
        IpAddr::V4(first) => IpAddr::V4(((u128::from(first.to_bits()) + offset) as u32).into()),
        IpAddr::V6(first) => IpAddr::V6((first.to_bits() + offset).into()),
    }
}

/// How many addresses a service can have: the first and, for IPv4, the last are not used.
fn size(range: &Cidr) -> u128 {
    let host = u32::from(if range.is_v6() { 128 - range.prefix } else { 32 - range.prefix });
    // Larger ranges are cut, as upstream does, so that picking stays cheap.
    let all = 1u128 << host.min(20);
    all.saturating_sub(if range.is_v6() || host > 20 { 1 } else { 2 }).max(1)
}

pub(super) fn family(range: &Cidr) -> &'static str {
    if range.is_v6() { "IPv6" } else { "IPv4" }
}

/// Addresses that may be given out, in the order to try them: from a random place in the upper part of the range,
/// then the lower part, which is left to those who choose their own.
pub(super) fn candidates(range: Cidr) -> impl Iterator<Item = IpAddr> {
    let size = size(&range);
    let reserved = if size < 16 { 0 } else { (size / 16).clamp(16, 256) };
    [(reserved, size - reserved), (0, reserved)].into_iter().flat_map(move |(from, count)| {
        let start = if count == 0 { 0 } else { rand::random_range(0..count) };
        (0..count).map(move |step| at(&range, 1 + from + (start + step) % count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_all_addresses_but_the_ends() {
        for (range, count) in [("10.43.0.0/28", 14), ("10.43.0.0/24", 254), ("fd00::/124", 15)] {
            let range: Cidr = range.parse().unwrap();
            let mut all: Vec<IpAddr> = candidates(range).collect();
            assert!(all.iter().all(|address| range.contains(*address)), "{range}");
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "{range}");
        }
        // Choosers' part comes last.
        let range: Cidr = "10.43.0.0/24".parse().unwrap();
        assert!(candidates(range).take(200).all(|address| address > at(&range, 16)));
    }
}
