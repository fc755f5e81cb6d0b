//! What would pass by the devices is dropped: pods' addresses are sent and received on links of this node only.
//!
//! Routes alone lead everything into the devices already. This is for routes that somebody else makes, and for packets that
//! come from outside under a pod's address.

use std::fmt::Write;

use api::cidr::Cidr;
use netlink::nft;

const TABLE: &str = "inet cox-encrypt";

/// `pods` are the ranges of the whole cluster, `bridge` is what this node's pods hang on. Doing so again changes nothing; there is no
/// moment without the rules.
pub fn guard(pods: &[Cidr], bridge: &str) -> Result<(), nft::Error> {
    nft::apply(&rules(pods, bridge))
}

/// Takes the rules back.
pub fn unguard() -> Result<(), nft::Error> {
    nft::apply(&format!("add table {TABLE}\ndelete table {TABLE}\n"))
}

fn rules(pods: &[Cidr], bridge: &str) -> String {
    // Rules are exchanged in their chains: the hook of a new chain would come after that of the old one had gone, or before.
    let mut text = format!("add table {TABLE}\n");
    // Incoming packets are judged before anything else is made of them, outgoing ones when their link is known.
    for (chain, hook, link, address) in [
        ("incoming", "prerouting priority -300", "iifname", "saddr"),
        ("forwarded", "forward priority -10", "oifname", "daddr"),
        ("own", "output priority -10", "oifname", "daddr"),
    ] {
        // Infallible: writing to a String.
        let _ =
            writeln!(text, "add chain {TABLE} {chain} {{ type filter hook {hook} ; }}\nflush chain {TABLE} {chain}");
        for inside in ["lo", bridge, "cox-wg*"] {
            let _ = writeln!(text, "add rule {TABLE} {chain} {link} \"{inside}\" return");
        }
        for (family, is_v6) in [("ip", false), ("ip6", true)] {
            let ranges: Vec<String> =
                pods.iter().filter(|range| range.is_v6() == is_v6).map(|range| range.network().to_string()).collect();
            if !ranges.is_empty() {
                let _ = writeln!(text, "add rule {TABLE} {chain} {family} {address} {{ {} }} drop", ranges.join(", "));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_pods_addresses_stay_on_links_of_the_node() {
        let text = rules(&["10.42.0.0/16".parse().unwrap(), "fd42::/48".parse().unwrap()], "cox0");
        let drops: Vec<&str> = text.lines().filter(|line| line.ends_with("drop")).collect();
        assert_eq!(
            drops,
            [
                "add rule inet cox-encrypt incoming ip saddr { 10.42.0.0/16 } drop",
                "add rule inet cox-encrypt incoming ip6 saddr { fd42::/48 } drop",
                "add rule inet cox-encrypt forwarded ip daddr { 10.42.0.0/16 } drop",
                "add rule inet cox-encrypt forwarded ip6 daddr { fd42::/48 } drop",
                "add rule inet cox-encrypt own ip daddr { 10.42.0.0/16 } drop",
                "add rule inet cox-encrypt own ip6 daddr { fd42::/48 } drop",
            ]
        );
        assert_eq!(text.lines().filter(|line| line.ends_with("return")).count(), 9);
    }
}
