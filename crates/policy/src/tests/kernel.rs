//! Packets through a real kernel: a host between those who send and those who receive, whose tables come from plans.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use api::cidr::Cidr;
use netlink::{LinkKind, Neighbour, Route, Scope, Socket};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::sockopt::IpTransparent;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, bind, setsockopt, socket,
};
use tokio_util::sync::CancellationToken;

use super::random::NODES;
use super::*;

const PORTS: [u16; 5] = [79, 80, 81, 85, 91];
const SOURCE_PORT: u16 = 40_000;
/// Who is no pod, behind the last bytes of the pods' addresses: the node that sends and the one that receives.
const SENDING: u8 = 14;
const RECEIVING: u8 = 15;
/// Says that all before it has come.
const LAST: u32 = u32::MAX;
const DEADLINE: Duration = Duration::from_secs(60);

/// A network namespace, kept by the file.
struct Namespace(File);

impl Namespace {
    fn new() -> Self {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        Self(std::thread::spawn(inside).join().unwrap())
    }

    /// Runs `work` on a thread inside.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = || {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            };
            scope.spawn(inside).join().unwrap()
        })
    }
}

/// A packet: who sends it, to whom, to which port, whether over IPv6, and of which protocol.
type Packet = (u8, u8, u16, bool, Protocol);

/// Those whose connections the kernel tells apart.
fn protocols() -> Vec<Protocol> {
    let has_sctp = Path::new("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed").exists();
    [Protocol::Udp, Protocol::Tcp].into_iter().chain(has_sctp.then_some(Protocol::Sctp)).collect()
}

/// A number, in as much of a header as rules look at. Checksums are left out: nobody on the way needs one.
fn bytes(number: u32, port: u16, protocol: Protocol) -> Vec<u8> {
    let ports = [SOURCE_PORT.to_be_bytes(), port.to_be_bytes()].concat();
    let number = number.to_ne_bytes();
    match protocol {
        Protocol::Udp => number.to_vec(),
        // A SYN with this sequence number.
        Protocol::Tcp => [&ports[..], &number, &[0; 4], &[0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]].concat(),
        // An INIT with this tag.
        Protocol::Sctp => {
            [&ports[..], &[0; 8], &[1, 0, 0, 20], &number, &[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]].concat()
        }
    }
}

/// What is no datagram is sent and received with its header.
fn open(is_v6: bool, protocol: Protocol) -> OwnedFd {
    let family = if is_v6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let (kind, of) = match protocol {
        Protocol::Udp => (SockType::Datagram, None),
        Protocol::Tcp => (SockType::Raw, Some(SockProtocol::Tcp)),
        Protocol::Sctp => (SockType::Raw, Some(SockProtocol::Sctp)),
    };
    socket(family, kind, SockFlag::SOCK_CLOEXEC, of).unwrap()
}

/// The address of a pod, or of a node.
fn address_of(last: u8, is_v6: bool) -> IpAddr {
    match (last, is_v6) {
        (SENDING, _) => ip(NODES[1].1[usize::from(is_v6)]),
        (RECEIVING, _) => ip(NODES[2].1[usize::from(is_v6)]),
        (_, false) => Ipv4Addr::new(10, 42, 0, last).into(),
        (_, true) => Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Brings a link up, with addresses; returns its index.
fn up(name: &str, addresses: [&str; 2]) -> u32 {
    let socket = Socket::open().unwrap();
    let link = socket.link(name).unwrap().unwrap();
    // Nobody else can have an address here.
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
    std::fs::write("/proc/sys/net/ipv6/conf/all/accept_dad", "0").unwrap();
    socket.set_up(link.index).unwrap();
    for address in addresses {
        socket.add_own_address(link.index, cidr(address)).unwrap();
    }
    for (setting, value) in [("rp_filter", "0"), ("accept_local", "1")] {
        for scope in ["all", name] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/{setting}"), value).unwrap();
        }
    }
    link.index
}

/// Sends from an address that nobody has given to this namespace.
fn sender(address: IpAddr, protocol: Protocol) -> UdpSocket {
    let fd = open(address.is_ipv6(), protocol);
    match address {
        IpAddr::V4(address) => {
            setsockopt(&fd, IpTransparent, &true).unwrap();
            let [a, b, c, d] = address.octets();
            bind(fd.as_raw_fd(), &SockaddrIn::new(a, b, c, d, 0)).unwrap();
        }
        IpAddr::V6(address) => {
            std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
            bind(fd.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(address, 0, 0, 0))).unwrap();
        }
    }
    fd.into()
}

/// Gets datagrams at a port, or all packets of another protocol in a family.
struct Receiver {
    socket: UdpSocket,
    protocol: Protocol,
    is_v6: bool,
    port: u16,
}

impl Receiver {
    fn new(protocol: Protocol, is_v6: bool, port: u16) -> Self {
        let socket = match protocol {
            // Of either family.
            Protocol::Udp => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap(),
            _ => open(is_v6, protocol).into(),
        };
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { socket, protocol, is_v6, port }
    }

    /// The number of the next packet.
    fn next(&self) -> u32 {
        let mut buffer = [0; 128];
        let length = self.socket.recv(&mut buffer).unwrap();
        let of_protocol = match self.protocol {
            Protocol::Udp => 0,
            Protocol::Tcp => 4,
            Protocol::Sctp => 16,
        };
        // A raw socket of IPv4 shows the header of the packet, too.
        let is_shown = self.protocol != Protocol::Udp && !self.is_v6;
        let at = of_protocol + if is_shown { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
        u32::from_ne_bytes(buffer[at..length][..4].try_into().unwrap())
    }
}

struct Lab {
    /// By the last byte of the address, and whether it is one of IPv6.
    senders: BTreeMap<(u8, bool, Protocol), UdpSocket>,
    receivers: Vec<Receiver>,
    _namespaces: [Namespace; 2],
}

impl Lab {
    /// In the host's namespace, which is this thread's.
    fn build(protocols: &[Protocol]) -> Self {
        let (sending, receiving) = (Namespace::new(), Namespace::new());
        let host = Socket::open().unwrap();
        let ends = [
            ("va", &sending, ["10.99.0.1/24", "fd99::1/64"]),
            ("vb", &receiving, ["10.99.1.1/24", "fd99:0:0:1::1/64"]),
        ];
        for (name, namespace, addresses) in ends {
            let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.0.as_fd()), peer_mtu: None };
            host.add_link(name, kind, None, None).unwrap();
            up(name, addresses);
        }
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap();
        }
        let link = |name: &str| Socket::open().unwrap().link(name).unwrap().unwrap();
        for range in ["10.42.0.0/24", "fd42::/64"].map(cidr) {
            let mut pods = Route::to(range).dev(link("vb").index);
            if !range.is_v6() {
                pods.scope = Scope::LINK;
            }
            host.add_route(&pods).unwrap();
        }
        let via = |gateways: [&str; 2]| {
            for gateway in gateways.map(|text| text.parse::<IpAddr>().unwrap()) {
                let route = Route::to(Cidr::default_route(gateway.is_ipv6())).via(gateway);
                Socket::open().unwrap().add_route(&route).unwrap();
            }
        };
        // Known from the beginning: packets that wait for an answer to a question would be overtaken.
        let know = |index: u32, addr: IpAddr, mac: [u8; 6]| {
            Socket::open().unwrap().set_neighbour(&Neighbour { index, addr, mac }).unwrap();
        };
        let gateway = link("va").mac;
        let ways: Vec<(bool, Protocol)> =
            protocols.iter().flat_map(|protocol| [(false, *protocol), (true, *protocol)]).collect();
        let senders = sending.run(|| {
            let index = up("eth0", ["10.99.0.2/24", "fd99::2/64"]);
            via(["10.99.0.1", "fd99::1"]);
            know(index, "fd99::1".parse().unwrap(), gateway);
            let mut senders = BTreeMap::new();
            for (is_v6, protocol) in &ways {
                for last in 2..=SENDING {
                    senders.insert((last, *is_v6, *protocol), sender(address_of(last, *is_v6), *protocol));
                }
            }
            senders
        });
        let (receivers, mac) = receiving.run(|| {
            let index = up("eth0", ["10.99.1.2/24", "fd99:0:0:1::2/64"]);
            via(["10.99.1.1", "fd99:0:0:1::1"]);
            let socket = Socket::open().unwrap();
            for (last, is_v6) in (2..14).flat_map(|last| [(last, false), (last, true)]) {
                socket.add_own_address(index, Cidr::host(address_of(last, is_v6))).unwrap();
            }
            let mut receivers: Vec<Receiver> =
                PORTS.iter().map(|port| Receiver::new(Protocol::Udp, false, *port)).collect();
            let raw = ways.iter().filter(|(_, protocol)| *protocol != Protocol::Udp);
            receivers.extend(raw.map(|(is_v6, protocol)| Receiver::new(*protocol, *is_v6, 0)));
            (receivers, link("eth0").mac)
        });
        for last in 2..14 {
            know(link("vb").index, address_of(last, true), mac);
        }
        know(link("vb").index, address_of(RECEIVING, true), mac);
        Self { senders, receivers, _namespaces: [sending, receiving] }
    }

    /// Sends packets and returns the numbers of those that arrive.
    fn send(&self, packets: &[Packet]) -> BTreeSet<u32> {
        // A raw socket has no ports.
        let port_of_socket = |port: u16, protocol: Protocol| if protocol == Protocol::Udp { port } else { 0 };
        for (number, (from, to, port, is_v6, protocol)) in packets.iter().enumerate() {
            let target = SocketAddr::new(address_of(*to, *is_v6), port_of_socket(*port, *protocol));
            let sent = bytes(number as u32, *port, *protocol);
            self.senders[&(*from, *is_v6, *protocol)].send_to(&sent, target).unwrap();
        }
        let mut arrived = BTreeSet::new();
        for receiver in &self.receivers {
            let Receiver { protocol, is_v6, port, .. } = receiver;
            // From one node to another: no policy is about that.
            let target = SocketAddr::new(address_of(RECEIVING, *is_v6), port_of_socket(*port, *protocol));
            let sender = &self.senders[&(SENDING, *is_v6, *protocol)];
            sender.send_to(&bytes(LAST, *port, *protocol), target).unwrap();
            loop {
                match receiver.next() {
                    LAST => break,
                    number => drop(arrived.insert(number)),
                }
            }
        }
        arrived
    }
}

#[test]
fn the_kernel_decides_as_policies_say() {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let protocols = protocols();
        let lab = Lab::build(&protocols);
        let mut random = Random(7);
        let mut counts = [0, 0];
        let mut planner = Planner::new(NODE, "cox0");
        let (mut in_rules, mut most) = (Inlined::new(), 0);
        let rounds = std::env::var("COX_POLICY_ROUNDS").ok().and_then(|text| text.parse::<u32>().ok());
        for round in 0..rounds.unwrap_or(25) {
            let world = random_world(&mut random);
            tell(&mut planner, &world);
            planner.settle();
            // Now and then everything anew, with small sets written into rules: those are made when a change needs them.
            let transactions = match round % 3 {
                0 => {
                    in_rules = inlined(planner.plan(), 0);
                    most = most.max(in_rules.len());
                    vec![afresh(planner.plan(), &in_rules)]
                }
                _ => change(planner.touched(), planner.plan(), &mut in_rules),
            };
            transactions.iter().for_each(|text| netlink::nft::apply(text).unwrap());
            planner.is_programmed();
            let last = |pod: &Pod| match (pod.has_network, pod.node.as_str()) {
                (true, _) => Some(pod.name[1..].parse::<u8>().unwrap() + 2),
                (false, "b") => Some(SENDING),
                (false, "c") => Some(RECEIVING),
                // The kernel's own: what it sends is not forwarded.
                (false, _) => None,
            };
            let pods: BTreeMap<u8, &Arc<Pod>> = world.pods.values().filter_map(|pod| Some((last(pod)?, pod))).collect();
            let mut packets = Vec::new();
            while packets.len() < 150 {
                // Some are from a node or to one.
                let (from, to) = (random.below(13) as u8 + 2, random.below(13) as u8 + 2);
                let to = if to == SENDING { RECEIVING } else { to };
                if from != to {
                    packets.push((from, to, random.one(&PORTS), random.below(2) == 0, random.one(&protocols)));
                }
            }
            let expected = |(from, to, port, is_v6, protocol): Packet| {
                let end = |last: u8| End { address: address_of(last, is_v6), pod: Some(pods[&last]) };
                let said = |direction, subject: u8, peer: u8| {
                    pods[&subject].node != NODE
                        || decide(&world, direction, pods[&subject], end(peer), protocol, port).is_allowed()
                };
                said(Direction::Egress, from, to) && said(Direction::Ingress, to, from)
            };
            let mut arrived = lab.send(&packets);
            // One that is lost on a busy machine is sent again.
            for _ in 0..20 {
                let missing: Vec<usize> = (0..packets.len())
                    .filter(|number| expected(packets[*number]) && !arrived.contains(&(*number as u32)))
                    .collect();
                if missing.is_empty() {
                    break;
                }
                let again: Vec<Packet> = missing.iter().map(|number| packets[*number]).collect();
                arrived.extend(lab.send(&again).into_iter().map(|at| missing[at as usize] as u32));
            }
            for (number, packet) in packets.iter().enumerate() {
                let found = arrived.contains(&(number as u32));
                assert_eq!(found, expected(*packet), "round {round}: {packet:?}\n{world:#?}");
                counts[usize::from(found)] += 1;
            }
        }
        assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
        assert!(most > 0, "no set was written into a rule");
    };
    std::thread::spawn(inside).join().unwrap();
}

/// However a pod is isolated, it is at every moment: nothing passes while it goes from one chain to another, or the table is replaced.
#[test]
fn security_a_change_of_policy_lets_nothing_through() {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let lab = Lab::build(&[Protocol::Udp]);
        let closed = |name: &str| policy("default", name, json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        let pods = vec![pod("default", "p0", NODE, json!({}), &["10.42.0.2"], json!([]))];
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(pods, vec![closed("always")]));
        planner.settle();

        let target = SocketAddr::new(address_of(2, false), PORTS[0]);
        let flood = &lab.senders[&(3, false, Protocol::Udp)];
        let receiver = &lab.receivers[0];
        // Without a policy it is reached.
        let packet = bytes(7, PORTS[0], Protocol::Udp);
        flood.send_to(&packet, target).unwrap();
        assert_eq!(receiver.next(), 7);
        netlink::nft::apply(&afresh(planner.plan(), &Inlined::new())).unwrap();
        planner.is_programmed();

        let is_over = CancellationToken::new();
        let sent = std::thread::scope(|scope| {
            // Also when this thread panics.
            let _end = is_over.clone().drop_guard();
            let flooding = scope.spawn(|| {
                let mut sent = 0;
                while !is_over.is_cancelled() {
                    // A full queue is nobody's mistake here.
                    sent += u32::from(flood.send_to(&packet, target).is_ok());
                }
                sent
            });
            for round in 0..600 {
                let other = (round % 2 == 0).then(|| Arc::new(closed("sometimes")));
                planner.set_policy("default/sometimes", other);
                planner.settle();
                let transactions = match round % 5 {
                    // As after a restart.
                    0 => anew(planner.plan(), &Inlined::new(), true),
                    _ => change(planner.touched(), planner.plan(), &mut Inlined::new()),
                };
                assert!(!transactions.is_empty());
                transactions.iter().for_each(|text| netlink::nft::apply(text).unwrap());
                planner.is_programmed();
            }
            is_over.cancel();
            flooding.join().unwrap()
        });
        assert!(sent > 1000, "{sent} sent");
        receiver.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut buffer = [0; 16];
        let passed = std::iter::from_fn(|| receiver.socket.recv(&mut buffer).ok()).count();
        assert_eq!(passed, 0, "of {sent}");
    };
    std::thread::spawn(inside).join().unwrap();
}

/// What is allowed before and after a change is allowed all the time.
#[test]
fn a_change_of_policy_loses_nothing() {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let lab = Lab::build(&[Protocol::Udp]);
        let open = |last: u16| {
            let ports = json!([{"protocol": "UDP", "port": 70, "endPort": last}]);
            policy("default", "open", json!({"podSelector": {}, "ingress": [{"ports": ports}]}))
        };
        let pods = vec![pod("default", "p0", NODE, json!({}), &["10.42.0.2"], json!([]))];
        let mut planner = Planner::new(NODE, "cox0");
        tell(&mut planner, &world(pods, vec![open(100)]));
        planner.settle();
        netlink::nft::apply(&afresh(planner.plan(), &Inlined::new())).unwrap();
        planner.is_programmed();

        let target = SocketAddr::new(address_of(2, false), PORTS[0]);
        let (sender, receiver) = (&lab.senders[&(3, false, Protocol::Udp)], &lab.receivers[0]);
        let is_over = CancellationToken::new();
        let arrived = std::thread::scope(|scope| {
            // Also when this thread panics.
            let _end = is_over.clone().drop_guard();
            let sending = scope.spawn(|| {
                let mut arrived = 0;
                while !is_over.is_cancelled() {
                    sender.send_to(&bytes(arrived, PORTS[0], Protocol::Udp), target).unwrap();
                    assert_eq!(receiver.next(), arrived);
                    arrived += 1;
                }
                arrived
            });
            for round in 0..300 {
                planner.set_policy("default/open", Some(Arc::new(open(100 + round % 2))));
                planner.settle();
                let transactions = match round % 5 {
                    // As after a restart.
                    0 => anew(planner.plan(), &Inlined::new(), true),
                    _ => change(planner.touched(), planner.plan(), &mut Inlined::new()),
                };
                transactions.iter().for_each(|text| netlink::nft::apply(text).unwrap());
                planner.is_programmed();
            }
            is_over.cancel();
            sending.join().unwrap()
        });
        assert!(arrived > 1000, "{arrived} arrived");
    };
    std::thread::spawn(inside).join().unwrap();
}
