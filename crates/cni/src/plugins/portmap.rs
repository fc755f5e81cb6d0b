//! `portmap`: ports of the host lead to ports of the pod (the `portMappings` capability), from outside, from the host, from
//! `localhost`, and from the pod itself.
//!
//! One table for all pods: maps from (address, protocol, port) to the pod, so that a packet costs two look-ups however many
//! ports there are. Each entry carries the attachment it belongs to as a comment, and the namespace of its pod; DEL removes exactly
//! those.
//!
//! A port has one pod: the one that has it keeps it for as long as its namespace is there. The scheduler and the kubelet see to it that
//! no two pods of a node ask for the same port; who comes past them is refused here.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use serde::Deserialize;

use super::call::Call;
use super::{Handlers, nothing};
use crate::config::PortMapping;
use crate::error::{CniError, code};
use crate::netns::set_sysctl;
use crate::nft;
use crate::result::AddResult;
use api::cidr::Cidr;
use netlink::Socket;
use netlink::nft::Target;

pub(super) const HANDLERS: Handlers =
    Handlers { load: |call| Config::load(call).map(drop), add, check, del, gc: nothing, status: nothing };

const TABLE: &str = "inet cox-portmap";
/// Held while ports are looked at and changed: the kernel has no call that changes an entry only if its owner is still the same.
const LOCK: &str = "/run/cni/portmap.lock";
/// As long as a comment may be for `nft`.
const COMMENT_LIMIT: usize = 128;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    snat: Option<bool>,
    #[serde(rename = "masqAll")]
    masquerade_all: bool,
    conditions_v4: Vec<String>,
    conditions_v6: Vec<String>,
    runtime_config: RuntimeConfig,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<PortMapping>,
}

impl Config {
    fn load(call: &Call) -> Result<Self, CniError> {
        let mut config: Self = call.config()?;
        // Conditions are fragments of an iptables rule; passing them on unread would change their meaning.
        if !config.conditions_v4.is_empty() || !config.conditions_v6.is_empty() {
            return Err(CniError::new(code::UNSUPPORTED_FIELD, "conditionsV4 and conditionsV6 are not supported", ""));
        }
        config.runtime_config.port_mappings.retain(|mapping| mapping.host_port != 0);
        for mapping in &mut config.runtime_config.port_mappings {
            mapping.protocol = mapping.protocol.to_ascii_lowercase();
            if mapping.container_port == 0 || !matches!(mapping.protocol.as_str(), "tcp" | "udp" | "sctp") {
                return Err(CniError::invalid_config(format!(
                    "invalid port mapping {}:{}/{}",
                    mapping.host_port, mapping.container_port, mapping.protocol
                )));
            }
            if !mapping.host_ip.is_empty() && mapping.host_ip.parse::<IpAddr>().is_err() {
                return Err(CniError::invalid_config(format!("invalid host IP {:?}", mapping.host_ip)));
            }
        }
        Ok(config)
    }
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let config = Config::load(call)?;
    let previous = call.require_previous()?.clone();
    if config.runtime_config.port_mappings.is_empty() {
        return Ok(previous);
    }
    let pods = pod_addresses(&previous);
    let owner = owner(call);
    let elements = plan(&config, &pods, &owner);
    let _lock = lock().map_err(CniError::failed("lock port mappings"))?;
    let present = match entries() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        entries => entries.map_err(CniError::failed("read port mappings"))?,
    };
    let in_the_way: Vec<Element> =
        present.into_iter().filter(|old| elements.iter().any(|new| new.is_in_the_way_of(old))).collect();
    if let Some(taken) = in_the_way.iter().find(|old| !is_left_over(old, &owner, &pods)) {
        return Err(CniError::new(
            code::TRY_AGAIN_LATER,
            format!("host port {} is in use by another pod", taken.port().unwrap_or_default()),
            "",
        ));
    }
    let comment = comment(&owner, &call.netns);
    nft::apply(&(base() + &delete_elements(&in_the_way) + &add_elements(&elements, &comment)))
        .map_err(CniError::failed("set up port mappings"))?;
    forget_flows(&config, &pods);
    // From 127.0.0.1 the packet leaves towards the pod with a loopback source until it is masqueraded.
    if config.snat.unwrap_or(true) && pods.iter().any(|pod| !pod.is_v6()) {
        for pod in pods.iter().filter(|pod| !pod.is_v6()) {
            route_localnet(*pod).map_err(CniError::failed("enable localhost port mapping"))?;
        }
    }
    Ok(previous)
}

fn del(call: &Call) -> Result<(), CniError> {
    let owner = owner(call);
    let ours = || match entries() {
        // No table: no port was ever mapped here.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(CniError::failed("read port mappings")(error)),
        Ok(entries) => Ok(entries.into_iter().filter(|element| element.owner == owner).collect::<Vec<Element>>()),
    };
    if ours()?.is_empty() {
        return Ok(());
    }
    let _lock = lock().map_err(CniError::failed("lock port mappings"))?;
    nft::apply(&delete_elements(&ours()?)).map_err(CniError::failed("remove port mappings"))
}

fn check(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    let previous = call.require_previous()?;
    let present = entries().map_err(CniError::failed("read port mappings"))?;
    for element in plan(&config, &pod_addresses(previous), &owner(call)) {
        if !present.iter().any(|e| e.map == element.map && e.key == element.key && e.owner == element.owner) {
            return Err(CniError::internal(format!("missing port mapping {} in {}", element.key, element.map)));
        }
    }
    Ok(())
}

fn pod_addresses(previous: &AddResult) -> Vec<Cidr> {
    let all: Vec<Cidr> = previous.pod_addresses().collect();
    // One address per family, the first, as the standard plug-in maps.
    let first = |v6: bool| all.iter().find(|address| address.is_v6() == v6).copied();
    [first(false), first(true)].into_iter().flatten().collect()
}

/// An entry of one of the table's maps or sets.
#[derive(Clone, Debug, PartialEq)]
struct Element {
    map: &'static str,
    key: String,
    value: Option<String>,
    owner: String,
    /// Where its pod is, and what is there.
    netns: Option<(String, u64)>,
}

impl Element {
    /// `8080/tcp`, where this leads a port to a pod.
    fn port(&self) -> Option<String> {
        let key = match self.map {
            "address4" | "address6" => self.key.split_once(" . ")?.1,
            "any4" | "any6" => &self.key,
            _ => return None,
        };
        let (protocol, port) = key.split_once(" . ")?;
        Some(format!("{port}/{protocol}"))
    }

    /// Whether both cannot be there. Ports of one address and of all addresses exclude each other, as they do for the scheduler.
    fn is_in_the_way_of(&self, other: &Self) -> bool {
        let family = |map: &str| map.ends_with('6');
        let is_specific = |element: &Self| element.map.starts_with("address");
        match (self.port(), other.port()) {
            (Some(one), Some(another)) => {
                one == another
                    && family(self.map) == family(other.map)
                    && (is_specific(self) != is_specific(other) || self.key == other.key)
            }
            _ => self.map == other.map && self.key == other.key,
        }
    }
}

/// Whether nobody has this any more: it is of an earlier try, or its address was given to this pod, or its pod is gone.
fn is_left_over(old: &Element, owner: &str, pods: &[Cidr]) -> bool {
    let leads_here = || {
        let target = old.value.as_deref().and_then(|value| value.split(" . ").next());
        target
            .and_then(|address| address.parse::<IpAddr>().ok())
            .is_some_and(|to| pods.iter().any(|pod| pod.addr == to))
    };
    let is_gone = |(path, inode): &(String, u64)| match fs::metadata(path) {
        Ok(found) => found.ino() != *inode,
        // Not being able to look is no answer.
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
    };
    old.owner == owner || old.port().is_none() || leads_here() || old.netns.as_ref().is_some_and(is_gone)
}

fn lock() -> io::Result<Flock<fs::File>> {
    let path = Path::new(LOCK);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))
}

/// The attachment, and the namespace by which others find out whether it is still there.
fn comment(owner: &str, netns: &str) -> String {
    let whole = fs::metadata(netns).ok().map(|found| format!("{owner} {} {netns}", found.ino()));
    let is_writable = |text: &String| text.len() < COMMENT_LIMIT && !text.contains(['"', '\n']);
    whole.filter(is_writable).unwrap_or_else(|| owner.to_owned())
}

/// What [`comment`] wrote.
fn read_comment(comment: &str) -> (String, Option<(String, u64)>) {
    let mut parts = comment.splitn(3, ' ');
    let owner = parts.next().unwrap_or_default().to_owned();
    let inode = parts.next().and_then(|inode| inode.parse().ok());
    (owner, parts.next().zip(inode).map(|(path, inode)| (path.to_owned(), inode)))
}

fn plan(config: &Config, pods: &[Cidr], owner: &str) -> Vec<Element> {
    let mut elements = Vec::new();
    let mut push = |map: &'static str, key: String, value: Option<String>| {
        elements.push(Element { map, key, value, owner: owner.to_owned(), netns: None });
    };
    for pod in pods {
        let v6 = pod.is_v6();
        for mapping in &config.runtime_config.port_mappings {
            let host_ip: Option<IpAddr> = mapping.host_ip.parse().ok();
            let port = format!("{} . {}", mapping.protocol, mapping.host_port);
            let target = Some(format!("{} . {}", pod.addr, mapping.container_port));
            match host_ip {
                Some(ip) if ip.is_ipv6() != v6 => {}
                Some(ip) if !ip.is_unspecified() => {
                    push(if v6 { "address6" } else { "address4" }, format!("{ip} . {port}"), target);
                }
                _ => push(if v6 { "any6" } else { "any4" }, port, target),
            }
        }
        if config.snat.unwrap_or(true) {
            match (v6, config.masquerade_all) {
                (true, false) => push("masquerade6", format!("{} . {}", pod.addr, pod.addr), None),
                (false, false) => {
                    push("masquerade4", format!("{} . {}", pod.addr, pod.addr), None);
                    push("masquerade4", format!("127.0.0.1 . {}", pod.addr), None);
                }
                (true, true) => push("all6", pod.addr.to_string(), None),
                (false, true) => push("all4", pod.addr.to_string(), None),
            }
        }
    }
    elements
}

/// The table itself; stated again by every ADD, so that it exists whoever comes first.
///
/// Its hooks come after -100, where iptables has the rules of services: host ports do not take their traffic. The chains
/// that are removed here had them at -100; the kernel does not move a hook.
fn base() -> String {
    format!(
        "add table {TABLE}\n\
         add map {TABLE} address4 {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service ; }}\n\
         add map {TABLE} address6 {{ type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service ; }}\n\
         add map {TABLE} any4 {{ type inet_proto . inet_service : ipv4_addr . inet_service ; }}\n\
         add map {TABLE} any6 {{ type inet_proto . inet_service : ipv6_addr . inet_service ; }}\n\
         add set {TABLE} masquerade4 {{ type ipv4_addr . ipv4_addr ; }}\n\
         add set {TABLE} masquerade6 {{ type ipv6_addr . ipv6_addr ; }}\n\
         add set {TABLE} all4 {{ type ipv4_addr ; }}\n\
         add set {TABLE} all6 {{ type ipv6_addr ; }}\n\
         add chain {TABLE} hostports\n\
         flush chain {TABLE} hostports\n\
         add rule {TABLE} hostports dnat ip to ip daddr . meta l4proto . th dport map @address4\n\
         add rule {TABLE} hostports dnat ip6 to ip6 daddr . meta l4proto . th dport map @address6\n\
         add rule {TABLE} hostports meta nfproto ipv4 dnat ip to meta l4proto . th dport map @any4\n\
         add rule {TABLE} hostports meta nfproto ipv6 dnat ip6 to meta l4proto . th dport map @any6\n\
         add chain {TABLE} prerouting-late {{ type nat hook prerouting priority -99 ; }}\n\
         flush chain {TABLE} prerouting-late\n\
         add rule {TABLE} prerouting-late fib daddr type local jump hostports\n\
         add chain {TABLE} output-late {{ type nat hook output priority -99 ; }}\n\
         flush chain {TABLE} output-late\n\
         add rule {TABLE} output-late fib daddr type local jump hostports\n\
         add chain {TABLE} prerouting\n\
         flush chain {TABLE} prerouting\n\
         delete chain {TABLE} prerouting\n\
         add chain {TABLE} output\n\
         flush chain {TABLE} output\n\
         delete chain {TABLE} output\n\
         add chain {TABLE} postrouting {{ type nat hook postrouting priority 100 ; }}\n\
         flush chain {TABLE} postrouting\n\
         add rule {TABLE} postrouting ip saddr . ip daddr @masquerade4 masquerade\n\
         add rule {TABLE} postrouting ip6 saddr . ip6 daddr @masquerade6 masquerade\n\
         add rule {TABLE} postrouting ct status dnat ip daddr @all4 masquerade\n\
         add rule {TABLE} postrouting ct status dnat ip6 daddr @all6 masquerade\n"
    )
}

fn add_elements(elements: &[Element], comment: &str) -> String {
    let line = |element: &Element| {
        let value = element.value.as_ref().map(|value| format!(" : {value}")).unwrap_or_default();
        format!("add element {TABLE} {} {{ {} comment \"{comment}\"{value} }}\n", element.map, element.key)
    };
    elements.iter().map(line).collect()
}

fn delete_elements(elements: &[Element]) -> String {
    elements.iter().map(|element| format!("delete element {TABLE} {} {{ {} }}\n", element.map, element.key)).collect()
}

/// All entries of the table, with their owners. `NotFound` without the table.
fn entries() -> io::Result<Vec<Element>> {
    const MAPS: &[&str] = &["address4", "address6", "any4", "any6", "masquerade4", "masquerade6", "all4", "all6"];
    let mut found = Vec::new();
    for map in MAPS {
        for element in netlink::nft::elements(TABLE, map)? {
            let (owner, netns) = read_comment(&element.comment.unwrap_or_default());
            let value = match element.target {
                Some(Target::Value(value)) => Some(value),
                _ => None,
            };
            found.push(Element { map, key: element.key, value, owner, netns });
        }
    }
    Ok(found)
}

fn owner(call: &Call) -> String {
    nft::short_hash(&[&call.network, &call.container_id, &call.ifname])
}

/// Clients that sent to a UDP port before, to a pod that had it or to nobody, are led to this pod from now on. Only flows that
/// begin are translated, so others would be stuck for as long as they keep sending. No reason to fail: new clients are served.
fn forget_flows(config: &Config, pods: &[Cidr]) {
    let ports: Vec<&PortMapping> =
        config.runtime_config.port_mappings.iter().filter(|mapping| mapping.protocol == "udp").collect();
    let Some(socket) = (!ports.is_empty()).then(Socket::open_netfilter).and_then(Result::ok) else { return };
    // Flows to the same port of others, such as a DNS server, are none of its business.
    let Ok(own) = Socket::open().and_then(|socket| socket.own()) else { return };
    let is_ours = |to: SocketAddr| own.has(to.ip()) && ports.iter().any(|mapping| is_mapped(mapping, to));
    for pod in pods {
        for flow in socket.udp_flows(pod.is_v6()).unwrap_or_default() {
            if flow.endpoint.ip() != pod.addr && is_ours(flow.destination) {
                let _ = socket.forget(&flow);
            }
        }
    }
}

fn is_mapped(mapping: &PortMapping, destination: SocketAddr) -> bool {
    let is_there = |ip: IpAddr| ip.is_unspecified() || ip == destination.ip();
    mapping.host_port == destination.port() && mapping.host_ip.parse().map_or(true, is_there)
}

/// On the link that leads to the pod.
fn route_localnet(pod: Cidr) -> std::io::Result<()> {
    let host = Socket::open()?;
    let index = host.route_to(pod.addr)?.oif.unwrap_or_default();
    match host.link_by_index(index)? {
        Some(link) if link.name != "lo" => set_sysctl(&format!("net/ipv4/conf/{}/route_localnet", link.name), "1"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_by_family_and_host_address() {
        let mapping = |host_ip: &str, protocol: &str| PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: protocol.into(),
            host_ip: host_ip.into(),
        };
        let config = Config {
            runtime_config: RuntimeConfig {
                port_mappings: vec![mapping("", "tcp"), mapping("127.0.0.1", "udp"), mapping("0.0.0.0", "sctp")],
            },
            ..Config::default()
        };
        let pods = ["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()];
        let lines: Vec<String> = plan(&config, &pods, "o").iter().map(|e| format!("{} {}", e.map, e.key)).collect();
        assert_eq!(
            lines,
            [
                "any4 tcp . 8080",
                "address4 127.0.0.1 . udp . 8080",
                "any4 sctp . 8080",
                "masquerade4 10.0.0.2 . 10.0.0.2",
                "masquerade4 127.0.0.1 . 10.0.0.2",
                "any6 tcp . 8080",
                "masquerade6 fd00::2 . fd00::2",
            ]
        );
    }

    #[test]
    fn a_port_is_taken_over_from_nobody_who_is_there() {
        let element = |map: &'static str, key: &str, value: &str, netns: Option<(&str, u64)>| Element {
            map,
            key: key.into(),
            value: Some(value.into()),
            owner: "old".into(),
            netns: netns.map(|(path, inode)| (path.to_owned(), inode)),
        };
        let ours = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let there = Some(("/proc/self/ns/net", ours));
        let pods = ["10.0.0.2/24".parse().unwrap()];
        for (old, is_free) in [
            (element("any4", "tcp . 80", "10.0.0.9 . 80", there), false),
            // Nobody knows whose it is.
            (element("any4", "tcp . 80", "10.0.0.9 . 80", None), false),
            (element("any4", "tcp . 80", "10.0.0.9 . 80", Some(("/proc/self/ns/net", ours + 1))), true),
            (element("any4", "tcp . 80", "10.0.0.9 . 80", Some(("/proc/0/ns/net", ours))), true),
            // Its address is ours now.
            (element("any4", "tcp . 80", "10.0.0.2 . 80", there), true),
        ] {
            assert_eq!(is_left_over(&old, "new", &pods), is_free, "{old:?}");
            assert!(is_left_over(&old, "old", &pods), "{old:?}");
        }
        for (one, another, excluded) in [
            (("any4", "tcp . 80"), ("any4", "tcp . 80"), true),
            (("any4", "tcp . 80"), ("any4", "udp . 80"), false),
            (("any4", "tcp . 80"), ("any6", "tcp . 80"), false),
            (("any4", "tcp . 80"), ("address4", "192.0.2.1 . tcp . 80"), true),
            (("address4", "192.0.2.1 . tcp . 80"), ("any4", "tcp . 80"), true),
            (("address4", "192.0.2.1 . tcp . 80"), ("address4", "192.0.2.2 . tcp . 80"), false),
            (("address4", "192.0.2.1 . tcp . 80"), ("masquerade4", "10.0.0.9 . 10.0.0.9"), false),
        ] {
            let (one, another) = (element(one.0, one.1, "", None), element(another.0, another.1, "", None));
            assert_eq!(one.is_in_the_way_of(&another), excluded, "{one:?} {another:?}");
        }
        let path = "/proc/self/ns/net";
        assert_eq!(read_comment(&comment("abc", path)), ("abc".into(), Some((path.into(), ours))));
        assert_eq!(read_comment(&comment("abc", "/nowhere")), ("abc".into(), None));
        assert_eq!(read_comment("abc"), ("abc".into(), None));
    }
}
