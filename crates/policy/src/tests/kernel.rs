//! Packets through a real kernel: a host between those who send and those who receive, whose tables come from plans.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use api::cidr::Cidr;
use netlink::{LinkKind, Route, Scope, Socket};
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

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Brings a link up, with an address; returns its index.
fn up(name: &str, address: &str) -> u32 {
    let socket = Socket::open().unwrap();
    let link = socket.link(name).unwrap().unwrap();
    socket.add_address(link.index, cidr(address)).unwrap();
    socket.set_up(link.index).unwrap();
    for (setting, value) in [("rp_filter", "0"), ("accept_local", "1")] {
        for scope in ["all", name] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/{setting}"), value).unwrap();
        }
    }
    link.index
}

/// Sends from an address that nobody has given to this namespace.
fn sender(address: IpAddr) -> UdpSocket {
    let IpAddr::V4(address) = address else { panic!("IPv4 only") };
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&fd, IpTransparent, &true).unwrap();
    let [a, b, c, d] = address.octets();
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::new(a, b, c, d, 0)).unwrap();
    fd.into()
}

struct Lab {
    /// By the last byte of the address.
    senders: BTreeMap<u8, UdpSocket>,
    other: UdpSocket,
    receivers: Vec<UdpSocket>,
    _namespaces: [Namespace; 2],
}

impl Lab {
    /// In the host's namespace, which is this thread's.
    fn build() -> Self {
        let (sending, receiving) = (Namespace::new(), Namespace::new());
        let host = Socket::open().unwrap();
        for (name, namespace, address) in [("va", &sending, "10.99.0.1/24"), ("vb", &receiving, "10.99.1.1/24")] {
            let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.0.as_fd()), peer_mtu: None };
            host.add_link(name, kind, None, None).unwrap();
            up(name, address);
        }
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let mut pods = Route::to(cidr("10.42.0.0/24")).dev(host.link("vb").unwrap().unwrap().index);
        pods.scope = Scope::LINK;
        host.add_route(&pods).unwrap();
        let default = |gateway: &str| {
            Socket::open().unwrap().add_route(&Route::to(cidr("0.0.0.0/0")).via(gateway.parse().unwrap())).unwrap();
        };
        let (senders, other) = sending.run(|| {
            up("eth0", "10.99.0.2/24");
            default("10.99.0.1");
            let senders = (2..14).map(|last| (last, sender(Ipv4Addr::new(10, 42, 0, last).into()))).collect();
            (senders, UdpSocket::bind("10.99.0.2:0").unwrap())
        });
        let receivers = receiving.run(|| {
            let index = up("eth0", "10.99.1.2/24");
            default("10.99.1.1");
            let socket = Socket::open().unwrap();
            for last in 2..14 {
                socket.add_address(index, Cidr::host(Ipv4Addr::new(10, 42, 0, last).into())).unwrap();
            }
            PORTS.map(|port| {
                let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
                socket.set_read_timeout(Some(DEADLINE)).unwrap();
                socket
            })
        });
        Self { senders, other, receivers: receivers.into(), _namespaces: [sending, receiving] }
    }

    /// Sends packets and returns the numbers of those that arrive.
    fn send(&self, packets: &[(u8, u8, u16)]) -> BTreeSet<u32> {
        for (number, (from, to, port)) in packets.iter().enumerate() {
            let target = SocketAddr::from((Ipv4Addr::new(10, 42, 0, *to), *port));
            self.senders[from].send_to(&(number as u32).to_ne_bytes(), target).unwrap();
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
                    packets.push((from, to, random.one(&PORTS)));
                }
            }
            let expected = |(from, to, port): (u8, u8, u16)| {
                let end = |last: u8| End { address: Ipv4Addr::new(10, 42, 0, last).into(), pod: Some(pods[&last]) };
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
                let again: Vec<(u8, u8, u16)> = missing.iter().map(|number| packets[*number]).collect();
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
