//! A pod that sends under addresses which are not its own, frame by frame, to its neighbour on the bridge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use cni::{AddResult, AttachmentArgs};
use netlink::{mac_text, parse_mac};
use serde_json::{Value, json};

use super::lab::{Lab, ours};
use super::{bridge, host_local, list, network, v4_and_v6};

const IP: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IP6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Another pod's would lead all later frames for that pod astray where nobody checks it.
const NOBODY: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
/// Bridges take frames to this address in themselves, before any rule (LLDP's).
const BRIDGES: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 0x0e];
/// The last bytes of a frame tell which one it is.
const MARK: usize = 4;

/// What a pod is given.
struct Identity {
    mac: [u8; 6],
    v4: Ipv4Addr,
    v6: Ipv6Addr,
    link_local: Ipv6Addr,
    /// The name of its port on the bridge.
    port: String,
}

impl Identity {
    fn of(result: &AddResult) -> Self {
        let (mut v4, mut v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        for ip in &result.ips {
            match ip.address.addr {
                IpAddr::V4(address) => v4 = address,
                IpAddr::V6(address) => v6 = address,
            }
        }
        let mac = parse_mac(&result.interfaces[2].mac).unwrap();
        let [a, b, c, d, e, f] = mac;
        let tail = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let link_local = Ipv6Addr::from_bits(0xfe80_u128 << 112 | u128::from(u64::from_be_bytes(tail)));
        Self { mac, v4, v6, link_local, port: result.interfaces[1].name.clone() }
    }
}

/// Its header has a valid checksum, because bridges may look at it. What it carries has none.
fn ipv4(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let length = (20 + 8 + MARK) as u16;
    let head = [&[0x45, 0][..], &length.to_be_bytes(), &[0, 0, 0, 0, 64, UDP, 0, 0]].concat();
    let mut head = [&head[..], &from.octets(), &to.octets()].concat();
    let sum: u32 = head.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    head[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = [&68u16.to_be_bytes()[..], &port.to_be_bytes(), &((8 + MARK) as u16).to_be_bytes(), &[0, 0]].concat();
    [head, udp].concat()
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let length = ((payload.len() + MARK) as u16).to_be_bytes();
    [&[0x60, 0, 0, 0][..], &length, &[next, 255], &from.octets(), &to.octets(), payload].concat()
}

fn udp6(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let udp = [&9u16.to_be_bytes()[..], &9u16.to_be_bytes(), &((8 + MARK) as u16).to_be_bytes(), &[0, 0]].concat();
    ipv6(from, to, UDP, &udp)
}

/// A message of neighbour discovery about `target`.
fn nd(kind: u8, target: Ipv6Addr) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat()
}

fn arp(mac: [u8; 6], from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let reply = [0, 1, 8, 0, 6, 4, 0, 2];
    [&reply[..], &mac, &from.octets(), &[0xff; 6], &to.octets()].concat()
}

fn frame(from: [u8; 6], to: [u8; 6], protocol: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &protocol.to_be_bytes(), payload].concat()
}

/// As the payload of a frame of protocol [`VLAN`]: of no VLAN, which receivers read as if there were no tag.
fn tagged(protocol: u16, payload: &[u8]) -> Vec<u8> {
    [&[0, 0][..], &protocol.to_be_bytes(), payload].concat()
}

/// What `me` sends to `other`, and whether that is its right.
fn frames(me: &Identity, other: &Identity) -> Vec<(&'static str, Vec<u8>, bool)> {
    let send = |protocol: u16, payload: &[u8]| frame(me.mac, other.mac, protocol, payload);
    let nobody = Ipv6Addr::UNSPECIFIED;
    let foreign = ipv4(other.v4, me.v4, 9);
    let icmp6 = |from: Ipv6Addr, message: &[u8]| send(IP6, &ipv6(from, other.v6, ICMP6, message));
    // Six bytes of padding, then what it hides.
    let behind_options = [&[ICMP6, 0, 1, 4, 0, 0, 0, 0][..], &nd(ADVERTISEMENT, other.v6)].concat();
    vec![
        ("its address", send(IP, &ipv4(me.v4, other.v4, 9)), true),
        ("its IPv6 address", send(IP6, &udp6(me.v6, other.v6)), true),
        ("its link-local address", send(IP6, &udp6(me.link_local, other.link_local)), true),
        ("its address, with a tag", send(VLAN, &tagged(IP, &ipv4(me.v4, other.v4, 9))), true),
        ("a question for a DHCP server", send(IP, &ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, 67)), true),
        ("its ARP reply", send(ARP, &arp(me.mac, me.v4, other.v4)), true),
        ("an ARP probe", send(ARP, &arp(me.mac, Ipv4Addr::UNSPECIFIED, me.v4)), true),
        ("its advertisement", icmp6(me.v6, &nd(ADVERTISEMENT, me.v6)), true),
        ("a solicitation", icmp6(me.link_local, &nd(SOLICITATION, other.v6)), true),
        ("a search for duplicates of its address", icmp6(nobody, &nd(SOLICITATION, me.v6)), true),
        ("another's address", send(IP, &foreign), false),
        ("no address at all", send(IP, &ipv4(Ipv4Addr::UNSPECIFIED, other.v4, 9)), false),
        ("another's IPv6 address", send(IP6, &udp6(other.v6, me.v6)), false),
        ("another's link-local address", send(IP6, &udp6(other.link_local, me.v6)), false),
        ("another hardware address", frame(NOBODY, other.mac, IP, &ipv4(me.v4, other.v4, 9)), false),
        ("another's address, with a tag", send(VLAN, &tagged(IP, &foreign)), false),
        ("another's address, with two tags", send(VLAN, &tagged(VLAN, &tagged(IP, &foreign))), false),
        ("another's ARP reply", send(ARP, &arp(me.mac, other.v4, me.v4)), false),
        ("an ARP reply that leads to another", send(ARP, &arp(other.mac, me.v4, other.v4)), false),
        ("another's advertisement", icmp6(me.v6, &nd(ADVERTISEMENT, other.v6)), false),
        ("another's advertisement behind options", send(IP6, &ipv6(me.v6, other.v6, 0, &behind_options)), false),
        ("a search that makes another's address a duplicate", icmp6(nobody, &nd(SOLICITATION, other.v6)), false),
        ("a router's advertisement", icmp6(me.link_local, &nd(134, me.v6)), false),
        ("a redirection", icmp6(me.link_local, &nd(137, other.v6)), false),
        ("another protocol", send(0x88b5, &[0; 40]), false),
    ]
}

/// Attaches two pods; returns which of the frames of one reach the other.
fn arriving(lab: &Lab, more: Value) -> Vec<(&'static str, bool)> {
    let both = json!({"ranges": [[{"subnet": "10.42.0.0/24"}], [{"subnet": "fd42::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let is_guarded = more["macspoofchk"] != json!(false);
    let network = network(lab, ours(), &list(&[bridge(more, host_local(both))]));
    let args = AttachmentArgs::default();
    let pods = [("c1", lab.pod_path()), ("c2", lab.neighbour_path())];
    let added = pods.iter().map(|(id, path)| lab.block_on(network.add(id, path, "eth0", &args)).unwrap());
    let [me, other]: [Identity; 2] =
        added.map(|result| Identity::of(&result)).collect::<Vec<_>>().try_into().ok().unwrap();
    let (wire, neighbour) = lab.wires();
    let frames = frames(&me, &other);
    for (number, (_, frame, _)) in frames.iter().enumerate() {
        wire.send(&[&frame[..], format!("m{number:03}").as_bytes()].concat());
    }
    if is_guarded {
        // Where nobody checks, the bridge learns from this that the other is at our port, and the last frame never arrives.
        wire.send(&frame(other.mac, BRIDGES, 0x88cc, &[0; 46]));
    }
    // Frames stay in order: after this one nothing of the others can come.
    wire.send(&[frame(me.mac, other.mac, IP, &ipv4(me.v4, other.v4, 9)), b"last".to_vec()].concat());
    let mut seen = vec![false; frames.len()];
    loop {
        let frame = neighbour.receive();
        let Some(mark) = frame.len().checked_sub(MARK).and_then(|at| std::str::from_utf8(&frame[at..]).ok()) else {
            continue;
        };
        match mark.strip_prefix('m').and_then(|number| number.parse::<usize>().ok()) {
            _ if mark == "last" => break,
            Some(number) => seen[number] = true,
            None => {}
        }
    }
    for (id, path) in &pods {
        lab.block_on(network.check(id, path, "eth0", &args)).unwrap();
    }
    let guarded = netlink::nft::elements("bridge cox-spoofing", "ports");
    if guarded.is_ok_and(|ports| !ports.is_empty()) {
        let missing = format!("delete element bridge cox-spoofing macs {{ \"{}\" . {} }}\n", me.port, mac_text(me.mac));
        netlink::nft::apply(&missing).unwrap();
        let error = lab.block_on(network.check("c1", &pods[0].1, "eth0", &args)).unwrap_err().to_string();
        assert!(error.contains("the port of eth0 is not held to"), "{error}");
    }
    for (id, path) in &pods {
        lab.block_on(network.del(id, path, "eth0", &args)).unwrap();
    }
    for set in ["ports", "macs", "sources4", "sources6"] {
        match netlink::nft::elements("bridge cox-spoofing", set) {
            Ok(left) => assert_eq!(left, [], "{set}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{set}"),
        }
    }
    frames.iter().map(|(name, ..)| *name).zip(seen).collect()
}

#[test]
fn security_a_pod_sends_under_its_own_addresses_only() {
    let gateway = |more: Value| super::with(json!({"isGateway": true, "hairpinMode": true}), more);
    Lab::run(|lab| {
        let arrived = arriving(lab, gateway(json!({})));
        let me = Identity {
            mac: [0; 6],
            v4: Ipv4Addr::LOCALHOST,
            v6: Ipv6Addr::LOCALHOST,
            link_local: Ipv6Addr::LOCALHOST,
            port: String::new(),
        };
        let expected: Vec<(&str, bool)> = frames(&me, &me).into_iter().map(|(name, _, right)| (name, right)).collect();
        assert_eq!(arrived, expected);
    });
    // Who turns it off has what there was before.
    Lab::run(|lab| {
        let arrived = arriving(lab, gateway(json!({"macspoofchk": false})));
        let stopped: Vec<&str> = arrived.iter().filter(|(_, seen)| !seen).map(|(name, _)| *name).collect();
        assert_eq!(stopped, Vec::<&str>::new());
    });
}

/// With its checksum, which receivers want of UDP in IPv6; the last four bytes are the mark.
fn marked_udp6(from: Ipv6Addr, to: Ipv6Addr, mark: &str) -> Vec<u8> {
    let mut packet = [udp6(from, to), mark.as_bytes().to_vec()].concat();
    let payload = &packet[40..];
    let length = (payload.len() as u32).to_be_bytes();
    let summed = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, UDP], payload].concat();
    let sum: u32 = summed.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    packet[46..48].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Attaches a pod with a link of its own; returns which of its packets the node gets.
fn arriving_at_the_node(lab: &Lab, more: Value) -> Vec<(&'static str, bool)> {
    let network = network(lab, ours(), &list(&[super::with(json!({"type": "ptp", "ipam": v4_and_v6()}), more)]));
    let (args, path) = (AttachmentArgs::default(), lab.pod_path());
    let result = lab.block_on(network.add("c1", &path, "eth0", &args)).unwrap();
    let (node, me) = (parse_mac(&result.interfaces[0].mac).unwrap(), parse_mac(&result.interfaces[1].mac).unwrap());
    let (mut own, mut own6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    let (mut to, mut to6) = (own, own6);
    for ip in &result.ips {
        match (ip.address.addr, ip.gateway) {
            (IpAddr::V4(address), Some(IpAddr::V4(gateway))) => (own, to) = (address, gateway),
            (IpAddr::V6(address), Some(IpAddr::V6(gateway))) => (own6, to6) = (address, gateway),
            other => panic!("{other:?}"),
        }
    }
    let socket = std::net::UdpSocket::bind("[::]:9").unwrap();
    let wire = lab.pod_wire();
    let send4 = |from: Ipv4Addr, mark: &str| {
        wire.send(&[frame(me, node, IP, &ipv4(from, to, 9)), mark.as_bytes().to_vec()].concat());
    };
    let send6 = |from: Ipv6Addr, mark: &str| wire.send(&frame(me, node, IP6, &marked_udp6(from, to6, mark)));
    // A link that has just come up has its addresses a moment later.
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let is_up = (0..40).any(|_| {
        send6(own6, "here");
        socket.recv(&mut [0; MARK]).is_ok()
    });
    assert!(is_up, "nothing arrives");
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    send4(own, "m000");
    send6(own6, "m001");
    send4("10.42.0.77".parse().unwrap(), "m002");
    send6("fd42::77".parse().unwrap(), "m003");
    send6("2001:db8:2::2".parse().unwrap(), "m004");
    // Packets stay in order: after this one nothing of the others can come.
    send6(own6, "last");
    let names = ["its address", "its IPv6 address", "another's", "another's in IPv6", "one of outside in IPv6"];
    let mut seen = [false; 5];
    loop {
        let mut mark = [0; MARK];
        socket.recv(&mut mark).unwrap();
        let mark = String::from_utf8_lossy(&mark).into_owned();
        match mark.strip_prefix('m').and_then(|number| number.parse::<usize>().ok()) {
            Some(number) => seen[number] = true,
            None if mark == "here" => {}
            None => break assert_eq!(mark, "last"),
        }
    }
    lab.block_on(network.check("c1", &path, "eth0", &args)).unwrap();
    lab.block_on(network.del("c1", &path, "eth0", &args)).unwrap();
    for set in ["ports", "sources4", "sources6"] {
        match netlink::nft::elements("inet cox-spoofing", set) {
            Ok(left) => assert_eq!(left, [], "{set}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{set}"),
        }
    }
    names.into_iter().zip(seen).collect()
}

#[test]
fn security_a_pod_with_a_link_of_its_own_sends_under_its_own_addresses_only() {
    let seen = |arrived: &[(&'static str, bool)]| -> Vec<&'static str> {
        arrived.iter().filter(|(_, seen)| *seen).map(|(name, _)| *name).collect()
    };
    let arrived = Lab::run(|lab| arriving_at_the_node(lab, json!({})));
    assert_eq!(seen(&arrived), ["its address", "its IPv6 address"]);
    // Who turns it off has what there was before. The kernel may check sources of IPv4 by itself.
    let arrived = Lab::run(|lab| arriving_at_the_node(lab, json!({"ipspoofchk": false})));
    let open = seen(&arrived);
    assert!(open.contains(&"another's in IPv6") && open.contains(&"one of outside in IPv6"), "{arrived:?}");
}
