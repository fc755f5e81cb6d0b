//! Two hosts with a switch between them, on which somebody listens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::cidr::Cidr;
use netlink::{LinkKind, Socket};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket};
use nix::sys::time::TimeVal;
use wireguard::{Announcement, Kind, Mesh, MeshError, Outcome, PrivateKey, Settings};

/// For what happens at once or never.
const SHORT: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(30);
/// What nobody on the wire may read.
pub(crate) const SECRET: &str = "not for the wire";
pub(crate) const PORT: u16 = 51820;

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Waits for what comes sooner or later.
pub(crate) fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A network namespace, kept by the file.
pub(crate) struct Namespace(File);

impl Namespace {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            sender.send(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        });
        Self(receiver.recv().unwrap())
    }

    /// Runs `work` on a thread inside.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = || {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Brings a link up with addresses.
pub(crate) fn up(socket: &Socket, name: &str, addresses: &[Cidr]) -> u32 {
    let link = socket.link(name).unwrap().unwrap();
    for address in addresses {
        socket.add_own_address(link.index, *address).unwrap();
    }
    socket.set_up(link.index).unwrap();
    link.index
}

/// What of a cluster differs from test to test.
pub(crate) struct Families {
    pub(crate) addresses: [&'static str; 2],
    pub(crate) ranges: [&'static [&'static str]; 2],
    pub(crate) cluster: &'static [&'static str],
}

pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) name: &'static str,
    pub(crate) address: IpAddr,
    pub(crate) ranges: Vec<Cidr>,
    pub(crate) keys: BTreeMap<u64, PrivateKey>,
    kind: Kind,
    mesh: Option<Mesh>,
}

impl Host {
    /// As other hosts know it.
    pub(crate) fn node(&self) -> wireguard::Node {
        let keys = self.keys.iter().map(|(generation, key)| (*generation, key.public())).collect();
        wireguard::Node {
            name: self.name.to_owned(),
            address: self.address,
            pod_cidrs: self.ranges.clone(),
            announcement: (!self.keys.is_empty()).then_some(Announcement { port: PORT, keys }),
        }
    }

    pub(crate) fn add_key(&mut self, generation: u64) {
        self.keys.insert(generation, PrivateKey::generate().unwrap());
    }

    /// Where its pods answer: the gateway of each range, which stands for them.
    pub(crate) fn pods(&self) -> Vec<IpAddr> {
        self.ranges.iter().map(|range| api::cidr::next(range.network().addr).unwrap()).collect()
    }

    pub(crate) fn apply(&mut self, nodes: &[wireguard::Node]) -> Result<Outcome, MeshError> {
        let settings = Settings {
            kind: self.kind,
            port: PORT,
            mtu: wireguard::mtu(1500, [self.address]),
            addresses: self.ranges.iter().map(|range| Cidr::host(range.network().addr)).collect(),
        };
        let public = self.keys.iter().map(|(generation, key)| (*generation, key.public())).collect();
        let plan = wireguard::plan(self.name, &public, nodes);
        let mesh = self.mesh.get_or_insert_with(|| Mesh::new(settings));
        let keys = &self.keys;
        self.namespace.run(|| mesh.apply(keys, &plan))
    }

    /// Its process ends.
    pub(crate) fn end(&mut self) {
        self.mesh = None;
    }

    pub(crate) fn link(&self, name: &str) -> Option<netlink::Link> {
        self.namespace.run(|| Socket::open().unwrap().link(name).unwrap())
    }

    /// Many packets of the largest size that the way allows.
    pub(crate) fn fetches(&self, from: IpAddr) -> Result<(), std::io::Error> {
        self.namespace.run(|| {
            let mut stream = TcpStream::connect_timeout(&(from, 80).into(), DEADLINE / 2)?;
            stream.set_read_timeout(Some(DEADLINE / 2))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            assert_eq!(text, page());
            Ok(())
        })
    }

    /// The error of a connection that is refused on this host.
    pub(crate) fn is_closed(&self, to: IpAddr) -> bool {
        let error = self.namespace.run(|| TcpStream::connect_timeout(&(to, 80).into(), SHORT)).unwrap_err();
        matches!(error.raw_os_error(), Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::EPERM))
    }

    pub(crate) fn connects(&self, to: IpAddr) -> bool {
        self.namespace.run(|| TcpStream::connect_timeout(&(to, 80).into(), SHORT)).is_ok()
    }

    /// Sends the secret, whether it gets anywhere or not.
    pub(crate) fn whisper(&self, to: IpAddr) {
        self.namespace.run(|| {
            let any: SocketAddr = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().unwrap();
            let _ = UdpSocket::bind(any).unwrap().send_to(SECRET.as_bytes(), (to, 9));
        });
    }

    /// A page for whoever connects, and an echo for datagrams.
    pub(crate) fn serve(&self) {
        for pod in self.pods() {
            // The kernel takes a moment to be sure of an address of IPv6.
            let bind = || self.namespace.run(|| TcpListener::bind((pod, 80)).ok());
            let listener = wait("an address for pods", bind);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    // A client that leaves has seen enough.
                    let _ = stream.unwrap().write_all(page().as_bytes());
                }
            });
            let echo = self.namespace.run(|| UdpSocket::bind((pod, 7)).unwrap());
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((length, client)) = echo.recv_from(&mut buffer) {
                    let _ = echo.send_to(&buffer[..length], client);
                }
            });
        }
    }

    /// Asks for echoes, one after the other, until the end.
    pub(crate) fn ping(&self, pod: IpAddr) -> Pings {
        let any: SocketAddr = if pod.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().unwrap();
        let socket = self.namespace.run(|| UdpSocket::bind(any).unwrap());
        socket.connect((pod, 7)).unwrap();
        socket.set_read_timeout(Some(DEADLINE / 3)).unwrap();
        let (is_over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (ends, answered) = (is_over.clone(), answers.clone());
        let thread = std::thread::spawn(move || {
            let mut lost = 0;
            let mut buffer = [0; 64];
            while !ends.load(Ordering::Relaxed) {
                let number = format!("{SECRET} {}", answered.load(Ordering::Relaxed) + lost);
                let sent = socket.send(number.as_bytes());
                match sent.and_then(|_| socket.recv(&mut buffer)) {
                    Ok(length) if buffer[..length] == *number.as_bytes() => {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => lost += 1,
                }
            }
            lost
        });
        Pings { is_over, answers, thread }
    }
}

pub(crate) struct Pings {
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicU32>,
    thread: JoinHandle<u32>,
}

impl Pings {
    /// Waits until what is under way has arrived: one that was sent after now is answered.
    pub(crate) fn go_on(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        wait("further answers", || (self.answers.load(Ordering::Relaxed) > before + 1).then_some(()));
    }

    /// How many were lost.
    pub(crate) fn end(self) -> u32 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn page() -> String {
    format!("{SECRET} ").repeat(5_000)
}

pub(crate) struct Lab {
    pub(crate) a: Host,
    pub(crate) b: Host,
    switch: Namespace,
}

impl Lab {
    pub(crate) fn new(kind: Kind, families: &Families) -> Self {
        let switch = Namespace::new();
        let host = |at: usize| {
            let namespace = Namespace::new();
            namespace.run(|| {
                for scope in ["default", "all"] {
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0").unwrap();
                }
            });
            Host {
                namespace,
                name: ["a", "b"][at],
                address: cidr(families.addresses[at]).addr,
                ranges: families.ranges[at].iter().map(|range| cidr(range)).collect(),
                keys: BTreeMap::new(),
                kind,
                mesh: None,
            }
        };
        let lab = Self { a: host(0), b: host(1), switch };
        let cables = [&lab.a, &lab.b].map(|host| (host.name, &host.namespace));
        lab.switch.run(|| {
            let socket = Socket::open().unwrap();
            socket.add_link("switch", LinkKind::Bridge { vlan_filtering: false }, None, None).unwrap();
            let switch = up(&socket, "switch", &[]);
            for (name, namespace) in cables {
                let cable = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.0.as_fd()), peer_mtu: None };
                socket.add_link(name, cable, None, None).unwrap();
                let port = up(&socket, name, &[]);
                socket.set_master(port, switch).unwrap();
            }
        });
        let cluster: Vec<Cidr> = families.cluster.iter().map(|range| cidr(range)).collect();
        for (host, address) in [(&lab.a, families.addresses[0]), (&lab.b, families.addresses[1])] {
            let pods = host.pods().into_iter().zip(&host.ranges);
            let pods: Vec<Cidr> = pods.map(|(pod, range)| Cidr::new(pod, range.prefix)).collect();
            let own = host.address;
            host.namespace.run(|| {
                let socket = Socket::open().unwrap();
                up(&socket, "lo", &[]);
                up(&socket, "eth0", &[cidr(address)]);
                socket.add_link("cox0", LinkKind::Bridge { vlan_filtering: false }, None, None).unwrap();
                up(&socket, "cox0", &pods);
                cni::routes::seal(&cluster, &[], Some(own)).unwrap();
            });
            host.serve();
        }
        lab
    }

    pub(crate) fn nodes(&self) -> [wireguard::Node; 2] {
        [self.a.node(), self.b.node()]
    }

    /// Brings both hosts in line until each reaches the other by keys of this generation.
    pub(crate) fn meet(&mut self, generation: u64) {
        wait("a session of both hosts", || {
            let nodes = self.nodes();
            let met = |outcome: Result<Outcome, MeshError>| {
                outcome
                    .is_ok_and(|outcome| outcome.ways.iter().all(|way| way.is_live && way.generation == Ok(generation)))
            };
            let (a, b) = (self.a.apply(&nodes), self.b.apply(&nodes));
            (met(a) && met(b)).then_some(())
        });
    }

    /// Listens on the wire from now on.
    pub(crate) fn listen(&self) -> Listener {
        let socket = self
            .switch
            .run(|| socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap());
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(0, 100_000)).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || heard(&socket, &ends));
        Listener { is_over, thread }
    }
}

/// Reads frames until the end: whether one had the secret in it, and how many went to a port of WireGuard.
fn heard(socket: &OwnedFd, is_over: &AtomicBool) -> (bool, usize) {
    let (mut is_betrayed, mut encrypted) = (false, 0);
    let mut frame = vec![0; 65536];
    let ports = [PORT, PORT + 1].map(u16::to_be_bytes);
    loop {
        match recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            Ok(length) => {
                let frame = &frame[..length];
                is_betrayed |= frame.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
                // The target port of UDP, behind headers of Ethernet and of either family.
                let is_to =
                    |at: usize| frame.get(at..at + 2).is_some_and(|port| ports.iter().any(|known| known == port));
                encrypted += usize::from(is_to(14 + 20 + 2) || is_to(14 + 40 + 2));
            }
            // Nothing for a while: all that was sent before the end has been heard.
            Err(_) if is_over.load(Ordering::Relaxed) => return (is_betrayed, encrypted),
            Err(_) => {}
        }
    }
}

pub(crate) struct Listener {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<(bool, usize)>,
}

impl Listener {
    pub(crate) fn end(self) -> (bool, usize) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
