//! What the tables hold whatever the services are: the chains of ours, and the jumps to them from the kernel's own.

use std::fmt::Write;

use crate::settings::Settings;

/// One address family; the two differ in these words only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) command: &'static str,
    pub(super) is_v6: bool,
    pub(super) loopback: &'static str,
}

pub(super) const FAMILIES: [Family; 2] = [
    Family { command: "iptables", is_v6: false, loopback: "127.0.0.0/8" },
    Family { command: "ip6tables", is_v6: true, loopback: "::1/128" },
];

pub(super) const TABLES: [&str; 2] = ["nat", "filter"];

/// A chain that all services write into, or that they all lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shared {
    pub(super) table: &'static str,
    pub(super) name: &'static str,
}

const fn shared(table: &'static str, name: &'static str) -> Shared {
    Shared { table, name }
}

pub(super) const SERVICES: Shared = shared("nat", "KUBE-SERVICES");
pub(super) const NODE_PORTS: Shared = shared("nat", "KUBE-NODEPORTS");
pub(super) const UNSERVED: Shared = shared("filter", "KUBE-SERVICES");
pub(super) const UNSERVED_OUTSIDE: Shared = shared("filter", "KUBE-EXTERNAL-SERVICES");
pub(super) const LIMITS: Shared = shared("filter", "KUBE-PROXY-FIREWALL");
const POSTROUTING: Shared = shared("nat", "KUBE-POSTROUTING");
const MARK: Shared = shared("nat", "KUBE-MARK-MASQ");
const FORWARD: Shared = shared("filter", "KUBE-FORWARD");
const LOCALNET: Shared = shared("filter", "KUBE-PROXY-LOCALNET");

/// Every shared chain; the first five are written by services.
pub(super) const SHARED: [Shared; 9] =
    [SERVICES, NODE_PORTS, UNSERVED, UNSERVED_OUTSIDE, LIMITS, POSTROUTING, MARK, FORWARD, LOCALNET];

/// Chains of one service begin like this.
const OF_SERVICES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-"];

const NEW: &str = "-m conntrack --ctstate NEW ";
/// From which of the kernel's chains, under which condition, to which of ours.
const JUMPS: [(&str, &str, Shared); 14] = [
    ("PREROUTING", "", SERVICES),
    ("OUTPUT", "", SERVICES),
    ("POSTROUTING", "", POSTROUTING),
    ("INPUT", NEW, LIMITS),
    ("OUTPUT", NEW, LIMITS),
    ("FORWARD", NEW, LIMITS),
    ("INPUT", NEW, UNSERVED_OUTSIDE),
    ("FORWARD", NEW, UNSERVED_OUTSIDE),
    ("INPUT", NEW, UNSERVED),
    ("FORWARD", NEW, UNSERVED),
    ("OUTPUT", NEW, UNSERVED),
    ("FORWARD", "", FORWARD),
    ("INPUT", "", LOCALNET),
    ("OUTPUT", "", LOCALNET),
];

/// The rules that end a shared chain, after those of the services.
pub(super) fn tail(settings: &Settings, family: Family, chain: Shared) -> Vec<String> {
    let mask = format!("{:#x}", settings.mask());
    match chain {
        SERVICES => node_port_jumps(settings, family),
        MARK => vec![format!("-j MARK --or-mark {mask}")],
        POSTROUTING => vec![
            format!("-m mark ! --mark {mask}/{mask} -j RETURN"),
            format!("-j MARK --xor-mark {mask}"),
            "-j MASQUERADE --random-fully".into(),
        ],
        FORWARD => vec![
            format!("-m mark --mark {mask}/{mask} -j ACCEPT"),
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".into(),
        ],
        // `route_localnet` is on: keep the neighbours away from what listens on 127.0.0.1 only.
        LOCALNET if !family.is_v6 && settings.localhost_node_ports => {
            vec!["! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP".to_owned()]
        }
        // Addresses of the range that no service has.
        UNSERVED => settings
            .of_family(&settings.service_cidrs, family.is_v6)
            .flat_map(|range| {
                [format!("-d {range} -p tcp -j REJECT --reject-with tcp-reset"), format!("-d {range} -j REJECT")]
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn node_port_jumps(settings: &Settings, family: Family) -> Vec<String> {
    let jump = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
    let ranges: Vec<&str> = settings.of_family(&settings.node_port_addresses, family.is_v6).collect();
    if !ranges.is_empty() {
        return ranges.iter().map(|range| format!("-d {range} {jump}")).collect();
    }
    // Over ::1 the answer could not come back, and without the setting neither over 127.0.0.1.
    match family.is_v6 || !settings.localhost_node_ports {
        true => vec![format!("! -d {} {jump}", family.loopback)],
        false => vec![jump.to_owned()],
    }
}

/// Lines that add the jumps which `saved` lacks. Ours come first: a later rule may accept or drop what is for us.
pub(super) fn missing_jumps(table: &str, saved: &str) -> String {
    let mut text = String::new();
    for (from, condition, to) in JUMPS.iter().rev().filter(|(_, _, to)| to.table == table) {
        if jump_lines(saved, from, to.name).next().is_none() {
            // Infallible: writing to a String.
            let _ = writeln!(text, "-I {from} {condition}-j {}", to.name);
        }
    }
    text
}

/// Lines of `saved` by which one chain jumps to another.
fn jump_lines<'a>(saved: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = &'a str> {
    let (rule, target) = (format!("-A {from} "), format!("-j {to}"));
    saved.lines().filter(move |line| line.starts_with(&rule) && line.ends_with(&target))
}

/// Chains in `saved` that some service of ours has, or had.
pub(super) fn service_chains(saved: &str) -> impl Iterator<Item = &str> {
    let names = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    names.filter(|name| OF_SERVICES.iter().any(|prefix| name.starts_with(prefix)))
}

/// A restore that takes everything of ours out of a table.
pub(super) fn removal(table: &str, saved: &str) -> String {
    let has = |name: &str| saved.lines().any(|line| line.starts_with(&format!(":{name} ")));
    let ours = SHARED.iter().filter(|chain| chain.table == table).map(|chain| chain.name).filter(|name| has(name));
    let chains: Vec<&str> = ours.chain(service_chains(saved)).collect();
    if chains.is_empty() {
        return String::new();
    }
    let mut text = format!("*{table}\n");
    for (from, _, to) in JUMPS.iter().filter(|(_, _, to)| to.table == table) {
        for line in jump_lines(saved, from, to.name) {
            text.push_str(&line.replacen("-A", "-D", 1));
            text.push('\n');
        }
    }
    // Declaring a chain empties it, so that none refers to another when they go.
    chains.iter().for_each(|name| text.push_str(&format!(":{name} - [0:0]\n")));
    chains.iter().for_each(|name| text.push_str(&format!("-X {name}\n")));
    text.push_str("COMMIT\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:FOREIGN - [0:0]\n\
        -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -m comment --comment \"portals\" -j KUBE-SERVICES\n-A PREROUTING -j FOREIGN\nCOMMIT\n";

    #[test]
    fn only_missing_jumps_are_added() {
        assert_eq!(missing_jumps("nat", SAVED), "-I POSTROUTING -j KUBE-POSTROUTING\n");
        assert_eq!(missing_jumps("nat", "").lines().count(), 3);
    }

    #[test]
    fn removal_leaves_foreign_rules_alone() {
        assert_eq!(
            removal("nat", SAVED),
            "*nat\n-D PREROUTING -j KUBE-SERVICES\n-D OUTPUT -m comment --comment \"portals\" -j KUBE-SERVICES\n\
             :KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n-X KUBE-SERVICES\n-X KUBE-SVC-A\nCOMMIT\n"
        );
        assert_eq!(removal("nat", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), "");
    }
}
