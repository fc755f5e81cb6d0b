//! The cluster's addresses of one family, in pieces of which every node gets one.
//!
//! Pieces are handed out in turn: one that was given back rests until all after it had their turn, so that nobody still sends
//! to the node that had it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::cidr::Cidr;
use client::metrics::{Counter, Gauge, Histogram, Metrics, exponential};

use crate::Error;

/// Pieces that were looked at in vain before the one that was free.
static TRIES: [f64; 5] = exponential(1.0, 5.0);

/// The cluster's range for one address family, divided into ranges of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    base: u128,
    prefix: u8,
    node_prefix: u8,
    ipv6: bool,
}

impl Range {
    /// `10.42.0.0/16` in pieces of `/24`, or an IPv6 range in pieces of `/64`, unless `node_prefix` says otherwise.
    pub fn parse(text: &str, node_prefix: Option<u8>) -> Result<Self, Error> {
        let (value, prefix, ipv6) =
            parse(text.trim()).ok_or_else(|| Error::object(format!("invalid cluster CIDR {text:?}")))?;
        let node_prefix = node_prefix.unwrap_or(if ipv6 { 64 } else { 24 });
        if prefix > node_prefix || node_prefix > width(ipv6) || node_prefix - prefix > 16 {
            return Err(Error::object(format!("cluster CIDR {text} cannot be divided into /{node_prefix}")));
        }
        Ok(Self { base: value, prefix, node_prefix, ipv6 })
    }

    /// All of it.
    pub(crate) fn cidr(&self) -> Cidr {
        Cidr::new(address(self.base, self.ipv6), self.prefix)
    }

    fn pieces(&self) -> usize {
        1 << (self.node_prefix - self.prefix)
    }

    fn piece(&self, number: usize) -> String {
        let offset = (number as u128).checked_shl(u32::from(width(self.ipv6) - self.node_prefix)).unwrap_or(0);
        text(self.base + offset, self.node_prefix, self.ipv6)
    }

    /// The first and the last piece that have addresses in common with `cidr`.
    fn touched(&self, cidr: &str) -> Option<(usize, usize)> {
        let (value, prefix, ipv6) = parse(cidr).filter(|(.., ipv6)| *ipv6 == self.ipv6)?;
        let last = |base: u128, prefix: u8| base + ((1u128 << (width(ipv6) - prefix).min(127)) - 1);
        let (first, last) = (value.max(self.base), last(value, prefix).min(last(self.base, self.prefix)));
        let number = |address: u128| {
            let offset = (address - self.base).checked_shr(u32::from(width(ipv6) - self.node_prefix));
            usize::try_from(offset.unwrap_or(0)).unwrap_or(usize::MAX)
        };
        (first <= last).then(|| (number(first), number(last)))
    }
}

fn width(ipv6: bool) -> u8 {
    if ipv6 { 128 } else { 32 }
}

/// The first address, the prefix, and whether it is IPv6.
fn parse(text: &str) -> Option<(u128, u8, bool)> {
    let range = text.parse::<Cidr>().ok()?.network();
    let value = match range.addr {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    Some((value, range.prefix, range.is_v6()))
}

/// Refuses what is not a list of ranges.
pub(crate) fn parse_list(text: &str) -> Result<Vec<String>, Error> {
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    let range = |text: &str| match parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(Error::object(format!("invalid CIDR {text:?}"))),
    };
    texts.map(range).collect()
}

fn text(value: u128, prefix: u8, ipv6: bool) -> String {
    Cidr::new(address(value, ipv6), prefix).to_string()
}

fn address(value: u128, ipv6: bool) -> IpAddr {
    match ipv6 {
        true => IpAddr::V6(Ipv6Addr::from(value)),
        false => IpAddr::V4(Ipv4Addr::from(u32::try_from(value).unwrap_or(u32::MAX))),
    }
}

/// Which pieces of a range are in use.
pub(crate) struct CidrSet {
    range: Range,
    used: Vec<bool>,
    /// Pieces, first to last, that are nobody's to take or give back.
    reserved: Vec<(usize, usize)>,
    count: usize,
    /// Where to look first for the next one.
    next: usize,
    metrics: SetMetrics,
}

struct SetMetrics {
    allocations: Counter,
    releases: Counter,
    usage: Gauge,
    tries: Histogram,
}

impl CidrSet {
    pub(crate) fn new(range: Range, metrics: &Metrics) -> CidrSet {
        let label = text(range.base, range.prefix, range.ipv6);
        let labels = [("clusterCIDR", label.as_str())];
        // The spelling is upstream's.
        let most = "node_ipam_controller_cirdset_max_cidrs";
        metrics.gauge(most, "Node ranges that the cluster's range has", &labels).set(range.pieces() as f64);
        let counters = SetMetrics {
            allocations: metrics.counter(
                "node_ipam_controller_cidrset_cidrs_allocations_total",
                "Node ranges taken into use",
                &labels,
            ),
            releases: metrics.counter(
                "node_ipam_controller_cidrset_cidrs_releases_total",
                "Node ranges given back",
                &labels,
            ),
            usage: metrics.gauge("node_ipam_controller_cidrset_usage_cidrs", "Share of node ranges in use", &labels),
            tries: metrics.histogram(
                "node_ipam_controller_cidrset_allocation_tries_per_request",
                "Node ranges found in use before one was free",
                &TRIES,
                &labels,
            ),
        };
        CidrSet { used: vec![false; range.pieces()], reserved: Vec::new(), count: 0, next: 0, metrics: counters, range }
    }

    /// Takes the next free piece into use.
    pub(crate) fn allocate(&mut self) -> Option<String> {
        let pieces = self.used.len();
        let tries = (0..pieces).find(|step| !self.used[(self.next + step) % pieces])?;
        let number = (self.next + tries) % pieces;
        self.next = (number + 1) % pieces;
        self.metrics.tries.observe(tries as f64);
        self.mark(number, number, true);
        Some(self.range.piece(number))
    }

    /// Somebody has this: its pieces are in use, if they were not already. Addresses of elsewhere are nothing to us.
    pub(crate) fn occupy(&mut self, cidr: &str) {
        if let Some((first, last)) = self.range.touched(cidr) {
            self.mark(first, last, true);
        }
    }

    /// No node gets a piece that has addresses in common with this, ever.
    pub(crate) fn reserve(&mut self, cidr: &str) {
        if let Some((first, last)) = self.range.touched(cidr) {
            self.mark(first, last, true);
            self.reserved.push((first, last));
        }
    }

    pub(crate) fn release(&mut self, cidr: &str) {
        let Some((first, last)) = self.range.touched(cidr) else { return };
        for number in first..=last {
            if !self.reserved.iter().any(|(first, last)| (*first..=*last).contains(&number)) {
                self.mark(number, number, false);
            }
        }
    }

    fn mark(&mut self, first: usize, last: usize, is_used: bool) {
        let changed = self.used[first..=last].iter().filter(|used| **used != is_used).count();
        self.used[first..=last].fill(is_used);
        match is_used {
            true => self.metrics.allocations.add(changed),
            false => self.metrics.releases.add(changed),
        }
        self.count = if is_used { self.count + changed } else { self.count - changed };
        self.metrics.usage.set(self.count as f64 / self.used.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_handed_out_in_turn_without_overlap() {
        let mut set = CidrSet::new(Range::parse("10.42.0.0/22", None).unwrap(), &Metrics::new());
        set.occupy("10.42.1.0/24");
        for expected in ["10.42.0.0/24", "10.42.2.0/24"] {
            assert_eq!(set.allocate().as_deref(), Some(expected));
        }
        set.release("10.42.0.0/24");
        assert_eq!(set.allocate().as_deref(), Some("10.42.3.0/24"), "what was given back rests");
        assert_eq!(set.allocate().as_deref(), Some("10.42.0.0/24"));
        assert_eq!(set.allocate(), None);
    }

    #[test]
    fn reserved_pieces_are_never_handed_out() {
        let mut set = CidrSet::new(Range::parse("10.42.0.0/22", None).unwrap(), &Metrics::new());
        set.reserve("10.42.0.128/25");
        set.reserve("10.42.2.0/23");
        set.reserve("10.96.0.0/12");
        // A node that had such a range before may keep it, and leaves nothing behind.
        set.occupy("10.42.2.0/24");
        set.release("10.42.2.0/24");
        assert_eq!(set.allocate().as_deref(), Some("10.42.1.0/24"));
        assert_eq!(set.allocate(), None);
        set.release("10.42.0.0/22");
        assert_eq!(set.allocate().as_deref(), Some("10.42.1.0/24"));
        assert_eq!(set.allocate(), None);
    }

    #[test]
    fn ranges_are_parsed_and_divided() {
        assert_eq!(Range::parse("fd00:42::/56", None).unwrap().piece(2), "fd00:42:0:2::/64");
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/16", "10.0.0.0/28"] {
            assert!(Range::parse(bad, None).is_err(), "{bad}");
        }
        let range = Range::parse("10.42.0.0/16", None).unwrap();
        for (cidr, expected) in [
            ("10.42.3.0/24", Some((3, 3))),
            ("10.42.3.128/25", Some((3, 3))),
            ("10.42.4.0/22", Some((4, 7))),
            ("10.0.0.0/8", Some((0, 255))),
            ("0.0.0.0/0", Some((0, 255))),
            ("10.43.0.0/24", None),
            ("fd00::/64", None),
            ("nonsense", None),
        ] {
            assert_eq!(range.touched(cidr), expected, "{cidr}");
        }
    }

    #[test]
    fn use_is_counted() {
        let metrics = Metrics::new();
        let mut set = CidrSet::new(Range::parse("10.42.0.0/22", None).unwrap(), &metrics);
        set.occupy("10.42.0.0/24");
        set.occupy("10.42.0.0/24");
        set.allocate();
        set.allocate();
        set.release("10.42.1.0/24");
        set.release("10.42.1.0/24");
        let text = metrics.render();
        for (name, value) in [
            ("cirdset_max_cidrs", "4"),
            ("cidrset_cidrs_allocations_total", "3"),
            ("cidrset_cidrs_releases_total", "1"),
            ("cidrset_usage_cidrs", "0.5"),
            ("cidrset_allocation_tries_per_request_count", "2"),
            ("cidrset_allocation_tries_per_request_sum", "1"),
        ] {
            let line = format!("node_ipam_controller_{name}{{clusterCIDR=\"10.42.0.0/22\"}} {value}\n");
            assert!(text.contains(&line), "{line} not in\n{text}");
        }
    }
}
