//! `macspoofchk` and `ipspoofchk`: a pod sends under its own IP addresses only and, on a bridge, under its own hardware address.
//!
//! Without this any pod with `NET_RAW`, which containers have by default, can answer for its neighbours (ARP, neighbour
//! discovery), have their frames sent to its port, and pass network policies as somebody else. One table for all pods, which sees
//! frames as they come in from a port: a map from port to what is checked there, and sets of a port with what it may use. A frame
//! costs a few look-ups however many pods there are. Each entry carries the attachment it belongs to as a comment.
//!
//! Pods with a link of their own (`ptp`) have a table of the same form that sees packets: nobody else hears their frames.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use netlink::{Link, mac_text};

use super::call::Call;
use super::side::Side;
use crate::nft;

/// Where the node receives what pods send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrance {
    /// Ports of bridges, which take in frames.
    Bridge,
    /// Links of the node's own, which take in packets.
    Link,
}

impl Entrance {
    fn table(self) -> &'static str {
        match self {
            Self::Bridge => "bridge cox-spoofing",
            Self::Link => "inet cox-spoofing",
        }
    }

    fn sets(self) -> &'static [&'static str] {
        match self {
            Self::Bridge => &["ports", "macs", "sources4", "sources6"],
            Self::Link => &["ports", "sources4", "sources6"],
        }
    }

    fn base(self) -> String {
        match self {
            Self::Bridge => bridge_rules(self.table()),
            Self::Link => link_rules(self.table()),
        }
    }

    /// Whether a table that cannot be read is none, because the kernel has none of its kind.
    fn is_unknown(self) -> bool {
        self == Self::Bridge && !netlink::nft::has_bridges()
    }
}

/// What a port is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    HardwareAddress,
    AllAddresses,
    /// IP addresses, on a link of the node's own.
    Packets,
}

impl Guard {
    fn chain(self) -> &'static str {
        match self {
            Self::HardwareAddress => "hardware",
            Self::AllAddresses => "addresses",
            Self::Packets => "packets",
        }
    }

    fn entrance(self) -> Entrance {
        match self {
            Self::HardwareAddress | Self::AllAddresses => Entrance::Bridge,
            Self::Packets => Entrance::Link,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("reading what ports may send: {0}")]
    Read(#[from] io::Error),
    #[error("this kernel has no packet rules for bridges (CONFIG_NF_TABLES_BRIDGE)")]
    Unsupported,
    #[error(transparent)]
    Rules(nft::Error),
}

impl From<nft::Error> for Error {
    fn from(error: nft::Error) -> Self {
        match &error {
            nft::Error::Refused { source, .. } | nft::Error::Kernel(source)
                if source.raw_os_error() == Some(libc::EOPNOTSUPP) =>
            {
                Self::Unsupported
            }
            _ => Self::Rules(error),
        }
    }
}

/// Holds what comes in at `port` to the pod's hardware address and, as asked, to `addresses`.
pub(super) fn add(
    node: &dyn Side,
    call: &Call,
    guard: Guard,
    port: &str,
    mac: [u8; 6],
    addresses: &[IpAddr],
) -> Result<(), Error> {
    let base = guard.entrance().base();
    Ok(node.apply_rules(&(base + &elements(&owner(call), guard, port, mac, addresses)))?)
}

/// Removes what `add` made for this attachment, whichever port it had.
pub(super) fn remove(entrance: Entrance, call: &Call) -> Result<(), Error> {
    let owner = owner(call);
    remove_entries(entrance, |entry| entry.owner == owner)
}

/// Removes what is left of ports that are gone.
pub(super) fn collect(entrance: Entrance, node: &dyn Side) -> Result<(), Error> {
    let mut unread = Ok(());
    remove_entries(entrance, |entry| match node.link(entry.port()) {
        Ok(link) => link.is_none(),
        Err(error) => {
            unread = Err(Error::Read(error));
            false
        }
    })
    .and(unread)
}

/// What of `add` is not there.
pub(super) fn missing(
    call: &Call,
    guard: Guard,
    port: &str,
    mac: [u8; 6],
    addresses: &[IpAddr],
) -> Result<Option<String>, Error> {
    let present = entries(guard.entrance())?;
    let is_there = |wanted: &Entry| present.iter().any(|entry| entry == wanted);
    let wanted = wanted(&owner(call), guard, port, mac, addresses);
    Ok(wanted.into_iter().find(|entry| !is_there(entry)).map(|entry| format!("{} in {}", entry.key, entry.set)))
}

/// The pod has another hardware address from now on: its port is held to that one, if it is held to any.
pub(super) fn change_mac(call: &Call, node: &dyn Side, mac: [u8; 6]) -> Result<(), Error> {
    let owner = owner(call);
    for entrance in [Entrance::Bridge, Entrance::Link] {
        let mut own = present(entrance)?;
        own.retain(|entry| entry.owner == owner);
        let Some(port) = own.first().map(|entry| entry.port().to_owned()) else { continue };
        let entry = |set: &'static str, key: &str| Entry { set, key: format!("{port} . {key}"), owner: owner.clone() };
        let old: Vec<Entry> = own.iter().filter(|entry| entry.set == "macs").cloned().collect();
        let mut new = Vec::new();
        if !old.is_empty() {
            new.push(entry("macs", &mac_text(mac)));
        }
        if own.iter().any(|entry| entry.set == "sources6") {
            new.push(entry("sources6", &link_local(mac).to_string()));
        }
        let transaction = delete(entrance, &old) + &add_entries(entrance, &new, None);
        node.apply_rules(&transaction)?;
    }
    Ok(())
}

/// All addresses that the pod's link may send under: those that were given, and those that the kernel gives by itself.
pub(super) fn sources(pod: &dyn Side, link: &Link, given: impl Iterator<Item = IpAddr>) -> io::Result<Vec<IpAddr>> {
    let mut all: Vec<IpAddr> = given.collect();
    let of_link = pod.addresses_of(link.index)?.into_iter().map(|address| address.cidr.addr);
    for address in of_link.chain([link_local(link.mac)]) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    Ok(all)
}

/// The address that a link makes of its hardware address (RFC 4291, modified EUI-64).
fn link_local(mac: [u8; 6]) -> IpAddr {
    let [a, b, c, d, e, f] = mac.map(u16::from);
    Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f).into()
}

/// An element of one of the table's sets, or of its map.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    set: &'static str,
    key: String,
    owner: String,
}

impl Entry {
    fn port(&self) -> &str {
        self.key.split(" . ").next().unwrap_or_default()
    }
}

fn wanted(owner: &str, guard: Guard, port: &str, mac: [u8; 6], addresses: &[IpAddr]) -> Vec<Entry> {
    let entry = |set: &'static str, key: String| Entry { set, key, owner: owner.to_owned() };
    let mut all = Vec::new();
    if guard.entrance() == Entrance::Bridge {
        all.push(entry("macs", format!("{port} . {}", mac_text(mac))));
    }
    all.push(entry("ports", port.to_owned()));
    if guard != Guard::HardwareAddress {
        let set = |address: &IpAddr| if address.is_ipv6() { "sources6" } else { "sources4" };
        all.extend(addresses.iter().map(|address| entry(set(address), format!("{port} . {address}"))));
    }
    all
}

fn elements(owner: &str, guard: Guard, port: &str, mac: [u8; 6], addresses: &[IpAddr]) -> String {
    add_entries(guard.entrance(), &wanted(owner, guard, port, mac, addresses), Some(guard))
}

fn add_entries(entrance: Entrance, entries: &[Entry], guard: Option<Guard>) -> String {
    let table = entrance.table();
    let line = |entry: &Entry| {
        let verdict = match guard {
            Some(guard) if entry.set == "ports" => format!(" : goto {}", guard.chain()),
            _ => String::new(),
        };
        format!("add element {table} {} {{ {} comment \"{}\"{verdict} }}\n", entry.set, quoted(&entry.key), entry.owner)
    };
    entries.iter().map(line).collect()
}

fn delete(entrance: Entrance, entries: &[Entry]) -> String {
    let table = entrance.table();
    entries.iter().map(|entry| format!("delete element {table} {} {{ {} }}\n", entry.set, quoted(&entry.key))).collect()
}

/// A key with the name of its port in quotes: links may be called like words of the language.
fn quoted(key: &str) -> String {
    match key.split_once(" . ") {
        Some((port, rest)) => format!("\"{port}\" . {rest}"),
        None => format!("\"{key}\""),
    }
}

fn remove_entries(entrance: Entrance, mut which: impl FnMut(&Entry) -> bool) -> Result<(), Error> {
    let mut ours = present(entrance)?;
    ours.retain(|entry| which(entry));
    if ours.is_empty() {
        return Ok(());
    }
    Ok(nft::apply(&delete(entrance, &ours))?)
}

/// The entries of a table, which has none where no port was ever guarded.
fn present(entrance: Entrance) -> io::Result<Vec<Entry>> {
    match entries(entrance) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(_) if entrance.is_unknown() => Ok(Vec::new()),
        entries => entries,
    }
}

/// All entries of a table. `NotFound` without it.
fn entries(entrance: Entrance) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for set in entrance.sets() {
        for element in netlink::nft::elements(entrance.table(), set)? {
            found.push(Entry { set, key: element.key, owner: element.comment.unwrap_or_default() });
        }
    }
    Ok(found)
}

fn owner(call: &Call) -> String {
    nft::short_hash(&[&call.network, &call.container_id, &call.ifname])
}

/// The table of bridges; stated again by every ADD, so that it exists whoever comes first.
///
/// What is not allowed by name is dropped: router advertisements and redirects, advertisements of others' addresses, and frames that
/// are neither IP nor ARP, such as IP beneath a second VLAN tag. Without an address a pod may do what it needs to get one: ask a DHCP
/// server, say which groups it listens to, look for duplicates of its own addresses.
fn bridge_rules(table: &str) -> String {
    format!(
        "add table {table}\n\
         add map {table} ports {{ type ifname : verdict ; }}\n\
         add set {table} macs {{ type ifname . ether_addr ; }}\n\
         add set {table} sources4 {{ type ifname . ipv4_addr ; }}\n\
         add set {table} sources6 {{ type ifname . ipv6_addr ; }}\n\
         add chain {table} neighbours\n\
         flush chain {table} neighbours\n\
         add rule {table} neighbours meta protocol ip6 icmpv6 type 135 iifname . ip6 saddr @sources6 accept\n\
         add rule {table} neighbours meta protocol ip6 ip6 saddr :: icmpv6 type 135 iifname . icmpv6 taddr @sources6 accept\n\
         add rule {table} neighbours meta protocol ip6 iifname . ip6 saddr @sources6 iifname . icmpv6 taddr @sources6 accept\n\
         add rule {table} neighbours drop\n\
         add chain {table} from-ip6\n\
         flush chain {table} from-ip6\n\
         add rule {table} from-ip6 meta protocol ip6 icmpv6 type {{ 134, 137 }} drop\n\
         add rule {table} from-ip6 meta protocol ip6 icmpv6 type {{ 135, 136 }} goto neighbours\n\
         add rule {table} from-ip6 meta protocol ip6 iifname . ip6 saddr @sources6 accept\n\
         add rule {table} from-ip6 meta protocol ip6 ip6 saddr :: icmpv6 type {{ 131, 132, 133, 143 }} accept\n\
         add rule {table} from-ip6 drop\n\
         add chain {table} from-ip4\n\
         flush chain {table} from-ip4\n\
         add rule {table} from-ip4 meta protocol ip iifname . ip saddr @sources4 accept\n\
         add rule {table} from-ip4 meta protocol ip ip saddr 0.0.0.0 udp dport 67 accept\n\
         add rule {table} from-ip4 drop\n\
         add chain {table} from-arp\n\
         flush chain {table} from-arp\n\
         add rule {table} from-arp meta protocol arp iifname . arp saddr ether != @macs drop\n\
         add rule {table} from-arp meta protocol arp iifname . arp saddr ip @sources4 accept\n\
         add rule {table} from-arp meta protocol arp arp saddr ip 0.0.0.0 accept\n\
         add rule {table} from-arp drop\n\
         add chain {table} hardware\n\
         flush chain {table} hardware\n\
         add rule {table} hardware iifname . ether saddr != @macs drop\n\
         add chain {table} addresses\n\
         flush chain {table} addresses\n\
         add rule {table} addresses iifname . ether saddr != @macs drop\n\
         add rule {table} addresses meta protocol ip goto from-ip4\n\
         add rule {table} addresses meta protocol ip6 goto from-ip6\n\
         add rule {table} addresses meta protocol arp goto from-arp\n\
         add rule {table} addresses drop\n\
         add chain {table} prerouting {{ type filter hook prerouting priority -300 ; }}\n\
         flush chain {table} prerouting\n\
         add rule {table} prerouting iifname vmap @ports\n"
    )
}

/// The table of links, as above. What a frame says of hardware addresses counts for nothing there: packets to a pod follow the
/// route to its link.
fn link_rules(table: &str) -> String {
    format!(
        "add table {table}\n\
         add map {table} ports {{ type ifname : verdict ; }}\n\
         add set {table} sources4 {{ type ifname . ipv4_addr ; }}\n\
         add set {table} sources6 {{ type ifname . ipv6_addr ; }}\n\
         add chain {table} packets\n\
         flush chain {table} packets\n\
         add rule {table} packets icmpv6 type {{ 134, 137 }} drop\n\
         add rule {table} packets iifname . ip saddr @sources4 accept\n\
         add rule {table} packets iifname . ip6 saddr @sources6 accept\n\
         add rule {table} packets ip saddr 0.0.0.0 udp dport 67 accept\n\
         add rule {table} packets ip6 saddr :: icmpv6 type {{ 131, 132, 133, 135, 143 }} accept\n\
         add rule {table} packets drop\n\
         add chain {table} prerouting {{ type filter hook prerouting priority -300 ; }}\n\
         flush chain {table} prerouting\n\
         add rule {table} prerouting iifname vmap @ports\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_use_what_its_pod_was_given() {
        let mac = [2, 0x42, 0, 0, 0, 9];
        assert_eq!(link_local(mac).to_string(), "fe80::42:ff:fe00:9");
        let addresses: [IpAddr; 2] = ["10.42.0.2".parse().unwrap(), "fd42::2".parse().unwrap()];
        let lines = elements("o", Guard::AllAddresses, "veth1", mac, &addresses);
        let expected = "add element bridge cox-spoofing macs { \"veth1\" . 02:42:00:00:00:09 comment \"o\" }\n\
             add element bridge cox-spoofing ports { \"veth1\" comment \"o\" : goto addresses }\n\
             add element bridge cox-spoofing sources4 { \"veth1\" . 10.42.0.2 comment \"o\" }\n\
             add element bridge cox-spoofing sources6 { \"veth1\" . fd42::2 comment \"o\" }\n";
        assert_eq!(lines, expected);
        let lines = elements("o", Guard::HardwareAddress, "veth1", mac, &addresses);
        assert!(lines.ends_with("goto hardware }\n") && !lines.contains("sources"), "{lines}");
        let lines = elements("o", Guard::Packets, "veth1", mac, &addresses[..1]);
        let expected = "add element inet cox-spoofing ports { \"veth1\" comment \"o\" : goto packets }\n\
             add element inet cox-spoofing sources4 { \"veth1\" . 10.42.0.2 comment \"o\" }\n";
        assert_eq!(lines, expected);
    }
}
