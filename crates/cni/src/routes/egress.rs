//! What leaves the cluster takes the node's address.

use std::fmt::Write;

use crate::nft;
use api::cidr::Cidr;

const TABLE: &str = "inet cox-egress";

/// Masquerades packets from `sources` that go anywhere but `inside`. One rule a family, however many pods there are.
pub fn masquerade(sources: &[Cidr], inside: &[Cidr]) -> Result<(), nft::Error> {
    nft::apply(&rules(sources, inside))
}

fn rules(sources: &[Cidr], inside: &[Cidr]) -> String {
    let mut text = format!(
        // Never without its hook: a connection that began under a pod's address would go on with it.
        "add table {TABLE}\n\
         add chain {TABLE} postrouting {{ type nat hook postrouting priority 100 ; }}\n\
         flush chain {TABLE} postrouting\n"
    );
    for (family, is_v6, multicast) in [("ip", false, "224.0.0.0/4"), ("ip6", true, "ff00::/8")] {
        let of_family = |ranges: &[Cidr]| -> Vec<String> {
            ranges.iter().filter(|range| range.is_v6() == is_v6).map(|range| range.network().to_string()).collect()
        };
        let sources = of_family(sources);
        let mut kept = of_family(inside);
        kept.push(multicast.to_owned());
        if !sources.is_empty() {
            // Infallible: writing to a String.
            let _ = writeln!(
                text,
                "add rule {TABLE} postrouting {family} saddr {{ {} }} {family} daddr != {{ {} }} masquerade fully-random",
                sources.join(", "),
                kept.join(", ")
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rule_a_family() {
        let ranges = |texts: &[&str]| -> Vec<Cidr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let text = rules(&ranges(&["10.42.1.0/24", "fd42:0:0:1::/64"]), &ranges(&["10.42.0.0/16", "fd42::/56"]));
        let added: Vec<&str> = text.lines().filter(|line| line.starts_with("add rule")).collect();
        assert_eq!(
            added,
            [
                "add rule inet cox-egress postrouting ip saddr { 10.42.1.0/24 } ip daddr != { 10.42.0.0/16, 224.0.0.0/4 } masquerade fully-random",
                "add rule inet cox-egress postrouting ip6 saddr { fd42:0:0:1::/64 } ip6 daddr != { fd42::/56, ff00::/8 } masquerade fully-random",
            ]
        );
        assert!(!rules(&ranges(&["10.42.1.0/24"]), &[]).contains("ip6 saddr"));
    }
}
