//! Packets through a real kernel: a host between those who send and those who receive, whose tables come from plans.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use api::cidr::Cidr;
use netlink::{LinkKind, Neighbour, Route, Scope, Socket};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::sockopt::IpTransparent;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket};

use super::*;

const PORTS: [u16; 5] = [79, 80, 81, 85, 91];
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

/// A packet: who sends it, to whom, to which port, and whether over IPv6.
type Packet = (u8, u8, u16, bool);

/// The address of a pod.
fn pod_address(last: u8, is_v6: bool) -> IpAddr {
    match is_v6 {
        false => Ipv4Addr::new(10, 42, 0, last).into(),
        true => Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, last.into()).into(),
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
        socket.add_address(link.index, cidr(address)).unwrap();
    }
    for (setting, value) in [("rp_filter", "0"), ("accept_local", "1")] {
        for scope in ["all", name] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/{setting}"), value).unwrap();
        }
    }
    link.index
}

/// Sends from an address that nobody has given to this namespace.
fn sender(address: IpAddr) -> UdpSocket {
    let IpAddr::V4(address) = address else {
        std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
        return UdpSocket::bind((address, 0)).unwrap();
    };
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, IpTransparent, &true).unwrap();
    let [a, b, c, d] = address.octets();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::new(a, b, c, d, 0)).unwrap();
    fd.into()
}

struct Lab {
    /// By the last byte of the address, and whether it is one of IPv6.
    senders: BTreeMap<(u8, bool), UdpSocket>,
    other: UdpSocket,
    receivers: Vec<UdpSocket>,
    _namespaces: [Namespace; 2],
}

impl Lab {
    /// In the host's namespace, which is this thread's.
    fn build() -> Self {
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
        let (senders, other) = sending.run(|| {
            let index = up("eth0", ["10.99.0.2/24", "fd99::2/64"]);
            via(["10.99.0.1", "fd99::1"]);
            know(index, "fd99::1".parse().unwrap(), gateway);
            let one = |last: u8| [false, true].map(|is_v6| ((last, is_v6), sender(pod_address(last, is_v6))));
            ((2..14).flat_map(one).collect(), UdpSocket::bind("10.99.0.2:0").unwrap())
        });
        let (receivers, mac) = receiving.run(|| {
            let index = up("eth0", ["10.99.1.2/24", "fd99:0:0:1::2/64"]);
            via(["10.99.1.1", "fd99:0:0:1::1"]);
            let socket = Socket::open().unwrap();
            for (last, is_v6) in (2..14).flat_map(|last| [(last, false), (last, true)]) {
                socket.add_address(index, Cidr::host(pod_address(last, is_v6))).unwrap();
            }
            let receivers = PORTS.map(|port| {
                let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
                socket.set_read_timeout(Some(DEADLINE)).unwrap();
                socket
            });
            (receivers, link("eth0").mac)
        });
        for last in 2..14 {
            know(link("vb").index, pod_address(last, true), mac);
        }
        Self { senders, other, receivers: receivers.into(), _namespaces: [sending, receiving] }
    }

    /// Sends packets and returns the numbers of those that arrive.
    fn send(&self, packets: &[Packet]) -> BTreeSet<u32> {
        for (number, (from, to, port, is_v6)) in packets.iter().enumerate() {
            let target = SocketAddr::new(pod_address(*to, *is_v6), *port);
            self.senders[&(*from, *is_v6)].send_to(&(number as u32).to_ne_bytes(), target).unwrap();
        }
        let mut arrived = BTreeSet::new();
        for (port, receiver) in PORTS.iter().zip(&self.receivers) {
            self.other.send_to(&LAST.to_ne_bytes(), ("10.99.1.2", *port)).unwrap();
            let mut buffer = [0; 4];
            loop {
                receiver.recv(&mut buffer).unwrap();
                match u32::from_ne_bytes(buffer) {
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
        let lab = Lab::build();
        let mut random = Random(7);
        let mut counts = [0, 0];
        let mut planner = Planner::new(NODE, "cox0");
        for round in 0..25 {
            let world = random_world(&mut random);
            tell(&mut planner, &world);
            planner.settle();
            netlink::nft::apply(&change(planner.touched(), planner.plan())).unwrap();
            planner.is_programmed();
            let pods: BTreeMap<u8, &Arc<Pod>> =
                world.pods.values().map(|pod| (pod.name[1..].parse::<u8>().unwrap() + 2, pod)).collect();
            let mut packets = Vec::new();
            while packets.len() < 150 {
                let (from, to) = (random.below(12) as u8 + 2, random.below(12) as u8 + 2);
                if from != to {
                    packets.push((from, to, random.one(&PORTS), random.below(2) == 0));
                }
            }
            let expected = |(from, to, port, is_v6): Packet| {
                let end = |last: u8| End { address: pod_address(last, is_v6), pod: Some(pods[&last]) };
                let said = |direction, subject: u8, peer: u8| {
                    pods[&subject].node != NODE
                        || decide(&world, direction, pods[&subject], end(peer), Protocol::Udp, port).is_allowed()
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
    };
    std::thread::spawn(inside).join().unwrap();
}
