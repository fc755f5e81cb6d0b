//! Ranges of addresses and ports without overlaps: the kernel's sets take no others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::cidr::Cidr;

use crate::world::Protocol;

/// First and last address of one family, as numbers.
pub(crate) type Range = (u128, u128);

pub(crate) fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(addr) => addr.to_bits().into(),
        IpAddr::V6(addr) => addr.to_bits(),
    }
}

/// `10.0.0.0-10.0.0.9`, or the address alone.
pub(crate) fn text((first, last): Range, v6: bool) -> String {
    let address = |bits: u128| -> IpAddr {
        match v6 {
            true => Ipv6Addr::from_bits(bits).into(),
            false => Ipv4Addr::from_bits(bits as u32).into(),
        }
    };
    match first == last {
        true => address(first).to_string(),
        false => format!("{}-{}", address(first), address(last)),
    }
}

/// What is left of a block without its exceptions.
pub(crate) fn without(block: Cidr, except: &[Cidr]) -> Vec<Range> {
    let span = |range: &Cidr| (number(range.network().addr), number(range.last()));
    let holes = merged(except.iter().filter(|hole| hole.is_v6() == block.is_v6()).map(span).collect());
    let (mut first, last) = span(&block);
    let mut left = Vec::new();
    for (hole_first, hole_last) in holes {
        if hole_last < first || hole_first > last {
            continue;
        }
        if hole_first > first {
            left.push((first, hole_first - 1));
        }
        match hole_last.checked_add(1) {
            Some(next) if next <= last => first = next,
            _ => return left,
        }
    }
    left.push((first, last));
    left
}

/// In order, with those that touch or overlap made one.
pub(crate) fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut all: Vec<Range> = Vec::new();
    for (first, last) in ranges {
        match all.last_mut() {
            Some(before) if before.1.checked_add(1).is_none_or(|next| first <= next) => before.1 = before.1.max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

/// Addresses, a protocol and ports of it that belong together.
pub(crate) type Block = (Range, Protocol, Ports);

/// First and last port.
type Ports = (u16, u16);

/// So many blocks are looked at for each that comes of them: where addresses touch, many become few.
const LOOKS: usize = 16;

/// The same blocks, cut so that none overlaps another; nothing if those were more than `most`: blocks that lie across each other
/// become as many as the square of their number.
pub(crate) fn disjoint(blocks: &[Block], most: usize) -> Option<Vec<Block>> {
    let mut by_protocol: BTreeMap<Protocol, Vec<(Range, Ports)>> = BTreeMap::new();
    for (addresses, protocol, ports) in blocks {
        by_protocol.entry(*protocol).or_default().push((*addresses, *ports));
    }
    let mut all = Vec::new();
    let (mut made, mut looked_at) = (0, 0);
    for (protocol, mut blocks) in by_protocol {
        // Ports where a block begins, or has just ended: between two of them nothing changes.
        let mut cuts: Vec<u32> =
            blocks.iter().flat_map(|(_, (first, last))| [u32::from(*first), u32::from(*last) + 1]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut strips: Vec<(u32, u32, Vec<Range>)> = Vec::new();
        blocks.sort_unstable_by_key(|(_, ports)| ports.0);
        let mut later = blocks.into_iter().peekable();
        let mut here: Vec<(Range, Ports)> = Vec::new();
        for pair in cuts.windows(2) {
            let (first, last) = (pair[0], pair[1] - 1);
            // None of them ends or begins within the strip.
            here.retain(|(_, ports)| last <= u32::from(ports.1));
            while let Some(block) = later.next_if(|(_, ports)| u32::from(ports.0) <= first) {
                here.push(block);
            }
            looked_at += here.len();
            if looked_at > most.saturating_mul(LOOKS) {
                return None;
            }
            let addresses = merged(here.iter().map(|(addresses, _)| *addresses).collect());
            match strips.last_mut() {
                Some(before) if before.1 + 1 == first && before.2 == addresses => before.1 = last,
                _ if addresses.is_empty() => {}
                _ => {
                    made += addresses.len();
                    if made > most {
                        return None;
                    }
                    strips.push((first, last, addresses));
                }
            }
        }
        for (first, last, addresses) in strips {
            let ports = (first as u16, last as u16);
            all.extend(addresses.into_iter().map(|addresses| (addresses, protocol, ports)));
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_leave_holes() {
        let cidr = |text: &str| -> Cidr { text.parse().unwrap() };
        for (block, except, expected) in [
            ("10.0.0.0/30", vec![], vec!["10.0.0.0-10.0.0.3"]),
            ("10.0.0.0/30", vec!["10.0.0.1/32"], vec!["10.0.0.0", "10.0.0.2-10.0.0.3"]),
            ("10.0.0.0/30", vec!["10.0.0.0/31", "10.0.0.1/32"], vec!["10.0.0.2-10.0.0.3"]),
            ("10.0.0.0/30", vec!["10.0.0.0/8"], vec![]),
            ("10.0.0.0/30", vec!["192.0.2.0/24", "fd00::/8"], vec!["10.0.0.0-10.0.0.3"]),
            ("255.255.255.254/31", vec!["255.255.255.255/32"], vec!["255.255.255.254"]),
            ("::/0", vec!["8000::/1"], vec!["::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]),
            ("::/0", vec!["::/0"], vec![]),
        ] {
            let except: Vec<Cidr> = except.into_iter().map(cidr).collect();
            let block = cidr(block);
            let left: Vec<String> = without(block, &except).into_iter().map(|r| text(r, block.is_v6())).collect();
            assert_eq!(left, expected, "{block} without {except:?}");
        }
    }

    /// As many ports as there can be without two that touch.
    #[test]
    fn security_many_ports_are_cut_in_one_walk() {
        let ports = || (0..=u16::MAX).step_by(2);
        let blocks: Vec<Block> =
            (0..8).flat_map(|at| ports().map(move |port| ((2 * at, 2 * at), Protocol::Tcp, (port, port)))).collect();
        let mut cut = disjoint(&blocks, blocks.len()).unwrap();
        cut.sort_unstable();
        assert!(cut == blocks, "{}", cut.len());
    }

    #[test]
    fn overlaps_are_cut() {
        use Protocol::{Tcp, Udp};
        let cut = |blocks: &[Block]| disjoint(blocks, 4).unwrap();
        assert_eq!(cut(&[((0, 9), Tcp, (80, 90)), ((10, 20), Tcp, (80, 90))]), [((0, 20), Tcp, (80, 90))]);
        assert_eq!(
            cut(&[((0, 9), Tcp, (80, 90)), ((5, 20), Tcp, (85, 85)), ((0, 9), Udp, (80, 80))]),
            [((0, 9), Tcp, (80, 84)), ((0, 20), Tcp, (85, 85)), ((0, 9), Tcp, (86, 90)), ((0, 9), Udp, (80, 80)),]
        );
        assert_eq!(cut(&[((0, 9), Tcp, (0, 65535)), ((3, 4), Tcp, (1, 2))]), [((0, 9), Tcp, (0, 65535))]);
        assert_eq!(
            cut(&[((0, 1), Tcp, (1, 1)), ((0, 1), Tcp, (3, 3))]),
            [((0, 1), Tcp, (1, 1)), ((0, 1), Tcp, (3, 3))]
        );
        assert_eq!(disjoint(&[((0, 9), Tcp, (80, 90)), ((20, 29), Tcp, (85, 85))], 3), None);
    }
}
