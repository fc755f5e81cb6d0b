//! What the table holds whatever the services are: maps, hooks, and the order of decisions.

use std::fmt::Write;

use crate::settings::{Pods, Settings};

/// The name of the table of each family.
pub(super) const TABLE: &str = "cox-proxy";

/// One address family; the two tables differ in these words only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) is_v6: bool,
    addr_type: &'static str,
}

pub(super) const FAMILIES: [Family; 2] = [
    Family { name: "ip", is_v6: false, addr_type: "ipv4_addr" },
    Family { name: "ip6", is_v6: true, addr_type: "ipv6_addr" },
];

/// The rule that asks for masquerading.
pub(super) fn mark(settings: &Settings) -> String {
    format!("meta mark set meta mark | {:#x}", settings.mask())
}

/// Matches packets of pods, or with `!= ` those of others; None while nobody knows who is one.
pub(super) fn from_pods(settings: &Settings, not: &str, family: Family) -> Option<String> {
    match &settings.pods {
        Pods::Ranges(ranges) => Some(format!("{} saddr {not}{}", family.name, set_of(settings, ranges, family)?)),
        Pods::Interface(name) => Some(format!("iifname {not}\"{name}\"")),
        Pods::Interfaces(prefix) => Some(format!("iifname {not}\"{prefix}*\"")),
    }
}

/// `{ a, b }` of one family, or nothing.
pub(super) fn set_of(settings: &Settings, cidrs: &[String], family: Family) -> Option<String> {
    let ours: Vec<&str> = settings.of_family(cidrs, family.is_v6).collect();
    (!ours.is_empty()).then(|| format!("{{ {} }}", ours.join(", ")))
}

/// A fresh, empty table in place of whatever is there.
pub(super) fn table(settings: &Settings, family: Family) -> String {
    let Family { name: ip, addr_type, is_v6 } = family;
    let (mask, table) = (settings.mask(), format!("{ip} {TABLE}"));
    let key = format!("{ip} daddr . meta l4proto . th dport");
    let mut text = format!(
        "add table {table}\n\
         delete table {table}\n\
         add table {table} {{ comment \"services of the cluster\" ; }}\n\
         add map {table} services {{ type {addr_type} . inet_proto . inet_service : verdict ; }}\n\
         add map {table} node-ports {{ type inet_proto . inet_service : verdict ; }}\n\
         add map {table} unserved {{ type {addr_type} . inet_proto . inet_service : verdict ; }}\n\
         add map {table} unserved-ports {{ type inet_proto . inet_service : verdict ; }}\n\
         add set {table} hairpin {{ type {addr_type} . {addr_type} ; }}\n"
    );
    // One map per protocol: nft can only translate to a port of a protocol it knows.
    for protocol in ["tcp", "udp", "sctp"] {
        let (number, target) =
            (format!("{protocol} dport . numgen random mod 65536"), format!("{ip} daddr . {protocol} dport"));
        // Infallible: writing to a String.
        let _ = writeln!(text, "add map {table} endpoints-{protocol} {{ typeof {ip} daddr . {number} : {target} ; }}");
        let _ = writeln!(text, "add map {table} node-endpoints-{protocol} {{ typeof {number} : {target} ; }}");
    }
    let mut chain = |name: &str, hook: &str, rules: &[String]| {
        let hook = if hook.is_empty() { String::new() } else { format!(" {{ {hook} ; }}") };
        // Infallible: writing to a String.
        let _ = writeln!(text, "add chain {table} {name}{hook}");
        for rule in rules {
            let _ = writeln!(text, "add rule {table} {name} {rule}");
        }
    };
    let mut to_node_port = match set_of(settings, &settings.node_port_addresses, family) {
        Some(addresses) => format!("{ip} daddr {addresses} fib daddr type local"),
        None => "fib daddr type local".to_owned(),
    };
    // Over ::1 the answer could not come back, and without the setting neither over 127.0.0.1.
    if is_v6 {
        to_node_port.push_str(" ip6 daddr != ::1");
    } else if !settings.localhost_node_ports {
        to_node_port.push_str(" ip daddr != 127.0.0.0/8");
    }
    // A reset reaches local clients too, while they still hold their socket; for the rest the kernel sends ICMP.
    chain("refuse", "", &["meta l4proto tcp reject with tcp reset".to_owned(), "reject".to_owned()]);
    chain(
        "dispatch",
        "",
        &[format!("{key} vmap @services"), format!("{to_node_port} meta l4proto . th dport vmap @node-ports")],
    );
    // Before the host ports of pods, which the plug-in `portmap` has at -99: they do not take the traffic of services.
    //
    // Twice: the kernel keeps to the chains it began with, but looks into maps as they are now. Where a transaction comes in
    // between, a chain and a map do not fit, and the packet finds no endpoint. It looks again in the next hook, which begins
    // with the new chains. Packets that found one never get there.
    for hook in ["prerouting", "output"] {
        chain(hook, &format!("type nat hook {hook} priority -102"), &["jump dispatch".into()]);
        chain(&format!("{hook}-again"), &format!("type nat hook {hook} priority -101"), &["jump dispatch".into()]);
    }
    chain(
        "postrouting",
        "type nat hook postrouting priority 100",
        &[
            // A pod that reaches itself must not see its own address as the source.
            format!("ct status dnat {ip} saddr . {ip} daddr @hairpin masquerade fully-random"),
            format!("meta mark & {mask:#x} == {mask:#x} meta mark set meta mark ^ {mask:#x} masquerade fully-random"),
        ],
    );
    // What still has a service's address here was not translated: nobody serves it.
    let mut unserved = vec![format!("ct state new {key} vmap @unserved")];
    if let Some(ranges) = set_of(settings, &settings.service_cidrs, family) {
        unserved.push(format!("{ip} daddr {ranges} goto refuse"));
    }
    chain("check-forward", "type filter hook forward priority 0", &unserved);
    chain("check-output", "type filter hook output priority 0", &unserved);
    let input = [
        format!("ct state new {key} vmap @unserved"),
        "ct state new fib daddr type local meta l4proto . th dport vmap @unserved-ports".to_owned(),
    ];
    chain("check-input", "type filter hook input priority 0", &input);
    if !is_v6 {
        text.push_str(&localhost(settings.localhost_node_ports));
    }
    text
}

/// With `route_localnet` on, neighbours are kept away from what listens on 127.0.0.1 only. In a table that stays when all else is built
/// afresh: the hooks of tables come and go one after the other, and a packet between them would get through.
fn localhost(is_on: bool) -> String {
    let table = "ip cox-proxy-localhost";
    match is_on {
        true => format!(
            "add table {table}\n\
             add chain {table} input {{ type filter hook input priority 0 ; }}\n\
             flush chain {table} input\n\
             add rule {table} input ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 ct state new ct status & dnat == 0 drop\n"
        ),
        false => format!("add table {table}\ndelete table {table}\n"),
    }
}

/// Takes all tables away.
pub(super) fn nothing() -> String {
    let tables = FAMILIES.map(|family| format!("add table {0} cox-proxy\ndelete table {0} cox-proxy\n", family.name));
    tables.concat() + &localhost(false)
}
