//! `macspoofchk` and `ipspoofchk`: a pod on a bridge sends under its own hardware address and its own IP addresses only.
//!
//! Without this any pod with `NET_RAW`, which containers have by default, can answer for its neighbours (ARP, neighbour
//! discovery), have their frames sent to its port, and pass network policies as somebody else. One table for all pods, which sees
//! frames as they come in from a port: a map from port to what is checked there, and sets of a port with what it may use. A frame
//! costs a few look-ups however many pods there are. Each entry carries the attachment it belongs to as a comment.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use netlink::{Link, mac_text};

use super::call::Call;
use super::side::Side;
use crate::nft;

const TABLE: &str = "bridge cox-spoofing";
const SETS: &[&str] = &["ports", "macs", "sources4", "sources6"];

/// What a port is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    HardwareAddress,
    AllAddresses,
}

impl Guard {
    fn chain(self) -> &'static str {
        match self {
            Self::HardwareAddress => "hardware",
            Self::AllAddresses => "addresses",
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
    Ok(node.apply_rules(&(base() + &elements(&owner(call), guard, port, mac, addresses)))?)
}

/// Removes what `add` made for this attachment, whichever port it had.
pub(super) fn remove(call: &Call) -> Result<(), Error> {
    let owner = owner(call);
    remove_entries(|entry| entry.owner == owner)
}

/// Removes what is left of ports that are gone.
pub(super) fn collect(node: &dyn Side) -> Result<(), Error> {
    let mut unread = Ok(());
    remove_entries(|entry| match node.link(entry.port()) {
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
    let present = entries()?;
    let is_there = |wanted: &Entry| present.iter().any(|entry| entry == wanted);
    let wanted = wanted(&owner(call), guard, port, mac, addresses);
    Ok(wanted.into_iter().find(|entry| !is_there(entry)).map(|entry| format!("{} in {}", entry.key, entry.set)))
}

/// The pod has another hardware address from now on: its port is held to that one, if it is held to any.
pub(super) fn change_mac(call: &Call, node: &dyn Side, mac: [u8; 6]) -> Result<(), Error> {
    let owner = owner(call);
    let all = match entries() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) if !netlink::nft::has_bridges() => return Ok(()),
        all => all?,
    };
    let Some(old) = all.iter().find(|entry| entry.set == "macs" && entry.owner == owner) else { return Ok(()) };
    let mut new = vec![Entry { set: "macs", key: format!("{} . {}", old.port(), mac_text(mac)), owner: owner.clone() }];
    let link_local = format!("{} . {}", old.port(), link_local(mac));
    if all.iter().any(|entry| entry.set == "sources6" && entry.owner == owner) {
        new.push(Entry { set: "sources6", key: link_local, owner });
    }
    let transaction = delete(std::slice::from_ref(old)) + &add_entries(&new, None);
    Ok(node.apply_rules(&transaction)?)
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
    let mut all = vec![entry("macs", format!("{port} . {}", mac_text(mac))), entry("ports", port.to_owned())];
    if guard == Guard::AllAddresses {
        let set = |address: &IpAddr| if address.is_ipv6() { "sources6" } else { "sources4" };
        all.extend(addresses.iter().map(|address| entry(set(address), format!("{port} . {address}"))));
    }
    all
}

fn elements(owner: &str, guard: Guard, port: &str, mac: [u8; 6], addresses: &[IpAddr]) -> String {
    add_entries(&wanted(owner, guard, port, mac, addresses), Some(guard))
}

fn add_entries(entries: &[Entry], guard: Option<Guard>) -> String {
    let line = |entry: &Entry| {
        let verdict = match guard {
            Some(guard) if entry.set == "ports" => format!(" : goto {}", guard.chain()),
            _ => String::new(),
        };
        format!("add element {TABLE} {} {{ {} comment \"{}\"{verdict} }}\n", entry.set, quoted(&entry.key), entry.owner)
    };
    entries.iter().map(line).collect()
}

fn delete(entries: &[Entry]) -> String {
    entries.iter().map(|entry| format!("delete element {TABLE} {} {{ {} }}\n", entry.set, quoted(&entry.key))).collect()
}

/// A key with the name of its port in quotes: links may be called like words of the language.
fn quoted(key: &str) -> String {
    match key.split_once(" . ") {
        Some((port, rest)) => format!("\"{port}\" . {rest}"),
        None => format!("\"{key}\""),
    }
}

fn remove_entries(mut which: impl FnMut(&Entry) -> bool) -> Result<(), Error> {
    let mut ours = match entries() {
        // No table: no port was ever guarded here.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) if !netlink::nft::has_bridges() => return Ok(()),
        entries => entries?,
    };
    ours.retain(|entry| which(entry));
    if ours.is_empty() {
        return Ok(());
    }
    Ok(nft::apply(&delete(&ours))?)
}

/// All entries of the table. `NotFound` without it.
fn entries() -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for set in SETS {
        for element in netlink::nft::elements(TABLE, set)? {
            found.push(Entry { set, key: element.key, owner: element.comment.unwrap_or_default() });
        }
    }
    Ok(found)
}

fn owner(call: &Call) -> String {
    nft::short_hash(&[&call.network, &call.container_id, &call.ifname])
}

/// The table itself; stated again by every ADD, so that it exists whoever comes first.
///
/// What is not allowed by name is dropped: router advertisements and redirects, advertisements of others' addresses, and frames that
/// are neither IP nor ARP, such as IP beneath a second VLAN tag. Without an address a pod may do what it needs to get one: ask a DHCP
/// server, say which groups it listens to, look for duplicates of its own addresses.
fn base() -> String {
    format!(
        "add table {TABLE}\n\
         add map {TABLE} ports {{ type ifname : verdict ; }}\n\
         add set {TABLE} macs {{ type ifname . ether_addr ; }}\n\
         add set {TABLE} sources4 {{ type ifname . ipv4_addr ; }}\n\
         add set {TABLE} sources6 {{ type ifname . ipv6_addr ; }}\n\
         add chain {TABLE} neighbours\n\
         flush chain {TABLE} neighbours\n\
         add rule {TABLE} neighbours meta protocol ip6 icmpv6 type 135 iifname . ip6 saddr @sources6 accept\n\
         add rule {TABLE} neighbours meta protocol ip6 ip6 saddr :: icmpv6 type 135 iifname . icmpv6 taddr @sources6 accept\n\
         add rule {TABLE} neighbours meta protocol ip6 iifname . ip6 saddr @sources6 iifname . icmpv6 taddr @sources6 accept\n\
         add rule {TABLE} neighbours drop\n\
         add chain {TABLE} from-ip6\n\
         flush chain {TABLE} from-ip6\n\
         add rule {TABLE} from-ip6 meta protocol ip6 icmpv6 type {{ 134, 137 }} drop\n\
         add rule {TABLE} from-ip6 meta protocol ip6 icmpv6 type {{ 135, 136 }} goto neighbours\n\
         add rule {TABLE} from-ip6 meta protocol ip6 iifname . ip6 saddr @sources6 accept\n\
         add rule {TABLE} from-ip6 meta protocol ip6 ip6 saddr :: icmpv6 type {{ 131, 132, 133, 143 }} accept\n\
         add rule {TABLE} from-ip6 drop\n\
         add chain {TABLE} from-ip4\n\
         flush chain {TABLE} from-ip4\n\
         add rule {TABLE} from-ip4 meta protocol ip iifname . ip saddr @sources4 accept\n\
         add rule {TABLE} from-ip4 meta protocol ip ip saddr 0.0.0.0 udp dport 67 accept\n\
         add rule {TABLE} from-ip4 drop\n\
         add chain {TABLE} from-arp\n\
         flush chain {TABLE} from-arp\n\
         add rule {TABLE} from-arp meta protocol arp iifname . arp saddr ether != @macs drop\n\
         add rule {TABLE} from-arp meta protocol arp iifname . arp saddr ip @sources4 accept\n\
         add rule {TABLE} from-arp meta protocol arp arp saddr ip 0.0.0.0 accept\n\
         add rule {TABLE} from-arp drop\n\
         add chain {TABLE} hardware\n\
         flush chain {TABLE} hardware\n\
         add rule {TABLE} hardware iifname . ether saddr != @macs drop\n\
         add chain {TABLE} addresses\n\
         flush chain {TABLE} addresses\n\
         add rule {TABLE} addresses iifname . ether saddr != @macs drop\n\
         add rule {TABLE} addresses meta protocol ip goto from-ip4\n\
         add rule {TABLE} addresses meta protocol ip6 goto from-ip6\n\
         add rule {TABLE} addresses meta protocol arp goto from-arp\n\
         add rule {TABLE} addresses drop\n\
         add chain {TABLE} prerouting {{ type filter hook prerouting priority -300 ; }}\n\
         flush chain {TABLE} prerouting\n\
         add rule {TABLE} prerouting iifname vmap @ports\n"
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
    }
}
