//! A host with an outside neighbour and the empty namespaces of two pods; and two hosts for routes between them.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use api::cidr::Cidr;
use cni::routes::{self, Backend, Peer, VxlanConfig};
use netlink::{LinkKind, Route, RouteKind, Socket};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::Value;
use testkit::netns::Namespace;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// Debian's plug-ins.
pub(crate) fn standard() -> &'static Path {
    Path::new("/usr/lib/cni")
}

/// A directory of links to our plug-ins.
pub(crate) fn ours() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let dir = tempfile::tempdir().unwrap();
        for plugin in cni::PLUGINS {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cni-plugins"), dir.path().join(plugin.name)).unwrap();
        }
        dir
    };
    DIR.get_or_init(make).path()
}

/// Frames as they are sent and received by `eth0` of a namespace, whatever is in them.
pub(crate) struct Wire(OwnedFd);

impl Wire {
    fn open() -> Self {
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll).unwrap();
        setsockopt(&fd, ReceiveTimeout, &TimeVal::seconds(COMMAND_TIMEOUT.as_secs() as i64)).unwrap();
        let index = Socket::open().unwrap().link("eth0").unwrap().unwrap().index;
        // SAFETY: zeros are a valid address of this kind.
        #[expect(unsafe_code, reason = "there is no safe address of a packet socket")]
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the pointer and the length are those of `address`.
        #[expect(unsafe_code, reason = "there is no safe address of a packet socket")]
        let bound = unsafe {
            let length = std::mem::size_of_val(&address) as libc::socklen_t;
            libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length)
        };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Self(fd)
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        assert_eq!(send(self.0.as_raw_fd(), frame, MsgFlags::empty()).unwrap(), frame.len());
    }

    pub(crate) fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let length = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
        buffer[..length].to_vec()
    }
}

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Brings a link up, with an address; returns its index.
fn up(socket: &Socket, name: &str, address: Option<&str>) -> u32 {
    let link = socket.link(name).unwrap().unwrap();
    if let Some(address) = address {
        socket.add_own_address(link.index, cidr(address)).unwrap();
    }
    socket.set_up(link.index).unwrap();
    link.index
}

/// A cable from this namespace (`name`, `here`) to `eth0` of another (`there`, with a default route back).
fn cable(to: &Namespace, name: &str, here: &str, there: &str) {
    let host = Socket::open().unwrap();
    let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(to.as_fd()), peer_mtu: None };
    host.add_link(name, kind, None, None).unwrap();
    up(&host, name, Some(here));
    to.run(|| {
        let socket = Socket::open().unwrap();
        up(&socket, "lo", None);
        up(&socket, "eth0", Some(there));
        let gateway = cidr(here).addr;
        socket.add_route(&Route::to(Cidr::default_route(gateway.is_ipv6())).via(gateway)).unwrap();
    });
}

pub(crate) struct Lab {
    pod: Namespace,
    neighbour: Namespace,
    outside: Namespace,
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Lab {
    /// Runs a test in a host namespace of its own.
    pub(crate) fn run<T: Send>(test: impl FnOnce(&Lab) -> T + Send) -> T {
        Namespace::new().run(|| test(&Lab::build()))
    }

    fn build() -> Self {
        up(&Socket::open().unwrap(), "lo", None);
        let (pod, neighbour, outside) = (Namespace::new(), Namespace::new(), Namespace::new());
        cable(&outside, "up0", "192.0.2.1/24", "192.0.2.2/24");
        let add = |link: &str, address: &str| {
            let socket = Socket::open().unwrap();
            socket.add_own_address(socket.link(link).unwrap().unwrap().index, cidr(address)).unwrap();
        };
        add("up0", "2001:db8:2::1/64");
        outside.run(|| {
            add("eth0", "2001:db8:2::2/64");
            let route = Route::to(Cidr::default_route(true)).via("2001:db8:2::1".parse().unwrap());
            Socket::open().unwrap().add_route(&route).unwrap();
        });
        // One thread: the plug-ins it starts inherit this namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { pod, neighbour, outside, dir: tempfile::tempdir().unwrap(), runtime }
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn leases(&self) -> PathBuf {
        self.dir.path().join("leases")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// A file for plug-ins that read resolvers from one.
    pub(crate) fn resolv_conf(&self) -> PathBuf {
        let path = self.dir.path().join("resolv.conf");
        std::fs::write(&path, "nameserver 192.0.2.53\nsearch a.test b.test\noptions ndots:2\n").unwrap();
        path
    }

    pub(crate) fn pod_loopback_is_up(&self) -> bool {
        self.pod.run(|| Socket::open().unwrap().link("lo").unwrap().unwrap().is_up())
    }

    pub(crate) fn pod_path(&self) -> String {
        self.pod.path()
    }

    /// Where a second pod of the host is.
    pub(crate) fn neighbour_path(&self) -> String {
        self.neighbour.path()
    }

    /// The pod's end and its neighbour's.
    pub(crate) fn wires(&self) -> (Wire, Wire) {
        (self.pod.run(Wire::open), self.neighbour.run(Wire::open))
    }

    pub(crate) fn pod_wire(&self) -> Wire {
        self.pod.run(Wire::open)
    }

    pub(crate) fn pod_addresses(&self) -> Vec<String> {
        self.pod.run(|| addresses(&["lo"]))
    }

    pub(crate) fn pod_mac(&self) -> String {
        self.pod.run(|| Socket::open().unwrap().link("eth0").unwrap().unwrap().mac_text())
    }

    /// The hardware addresses that the host sends to for these.
    pub(crate) fn known_by_host<const N: usize>(&self, addresses: [&str; N]) -> [Option<String>; N] {
        addresses.map(|address| {
            let shown = Command::new("ip").args(["neigh", "show", address, "dev", "cnio0"]).output().unwrap();
            let text = String::from_utf8(shown.stdout).unwrap();
            text.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).map(str::to_owned)
        })
    }

    pub(crate) fn host_addresses(&self) -> Vec<String> {
        addresses(&["lo", "up0"])
    }

    pub(crate) fn pod_routes(&self) -> Vec<String> {
        self.pod.run(|| {
            let socket = Socket::open().unwrap();
            let lo = socket.link("lo").unwrap().unwrap().index;
            let is_link_local = |r: &Route| {
                let text = r.dst.addr.to_string();
                text.starts_with("fe80") || text.starts_with("ff")
            };
            let routes = socket.routes().unwrap();
            let mut texts: Vec<String> = routes
                .iter()
                .filter(|r| r.table == 254 && r.oif != Some(lo) && r.kind == RouteKind::Unicast && !is_link_local(r))
                .map(|r| format!("{} via {:?} src {:?} scope {}", r.dst, r.gateway, r.source, r.scope.0))
                .collect();
            texts.sort();
            texts
        })
    }

    pub(crate) fn lease_files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.leases().join("net")) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<std::net::IpAddr>().is_ok()))
            .map(|entry| {
                let content = std::fs::read_to_string(entry.path()).unwrap();
                format!("{}: {content:?}", entry.file_name().to_str().unwrap())
            })
            .collect();
        names.sort();
        names
    }

    /// The address that a server outside sees when the pod connects, if it can. The neighbour knows the way back to pods, so
    /// an unmasqueraded packet gets its answer too.
    pub(crate) fn source_seen_outside(&self) -> Option<String> {
        let listener = self.outside.run(|| TcpListener::bind("192.0.2.2:0").unwrap());
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stream = self.pod.run(|| TcpStream::connect_timeout(&address, COMMAND_TIMEOUT));
        stream.ok()?;
        Some(listener.accept().unwrap().1.ip().to_string())
    }

    /// TCP on port 80 and UDP on port 53; doing so again changes nothing.
    pub(crate) fn serve_in_pod(&self) {
        let sockets = || (TcpListener::bind("[::]:80"), UdpSocket::bind("[::]:53"));
        let (Ok(listener), Ok(socket)) = self.pod.run(sockets) else { return };
        serve(listener);
        std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(b"here", client);
            }
        });
    }

    /// A client that sends from one port to the target.
    pub(crate) fn udp_client_outside(&self, target: &str) -> UdpSocket {
        let target: SocketAddr = target.parse().unwrap();
        let any = if target.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = self.outside.run(|| UdpSocket::bind(any).unwrap());
        socket.connect(target).unwrap();
        socket
    }

    pub(crate) fn connects_from_host(&self, target: &str) -> bool {
        connects(target)
    }

    pub(crate) fn connects_from_outside(&self, target: &str) -> bool {
        self.outside.run(|| connects(target))
    }

    pub(crate) fn connects_from_pod(&self, target: &str) -> bool {
        self.pod.run(|| connects(target))
    }
}

fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that leaves has seen enough.
            let _ = stream.unwrap().write_all(page().as_bytes());
        }
    });
}

/// A link that has just come up has its addresses a moment later.
fn listen(address: &str) -> TcpListener {
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{address}: {error}"),
        }
    }
}

fn connects(target: &str) -> bool {
    let target: SocketAddr = target.parse().unwrap();
    let Ok(mut stream) = TcpStream::connect_timeout(&target, COMMAND_TIMEOUT) else { return false };
    stream.set_read_timeout(Some(COMMAND_TIMEOUT)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).is_ok_and(|_| text == page())
}

/// Many packets of the largest size that the way allows.
fn page() -> String {
    "here".repeat(20_000)
}

/// Asks more than once: a packet may get lost.
pub(crate) fn is_answered(client: &UdpSocket) -> bool {
    client.set_read_timeout(Some(COMMAND_TIMEOUT / 4)).unwrap();
    let mut answer = [0; 16];
    (0..20).any(|_| {
        client.send(b"?").and_then(|_| client.recv(&mut answer)).is_ok_and(|length| &answer[..length] == b"here")
    })
}

/// What a plug-in says when it is called with these variables and no others.
pub(crate) fn call(plugin: &Path, command: &str, env: &[(&str, &str)], stdin: &str) -> Value {
    let mut process = Command::new(plugin);
    process.env_clear().env("CNI_COMMAND", command).env("CNI_PATH", "/nowhere").envs(env.iter().copied());
    let mut child = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // It may answer without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
}

/// Addresses by kind of link, without link-local ones.
fn addresses(except: &[&str]) -> Vec<String> {
    let socket = Socket::open().unwrap();
    let links = socket.links().unwrap();
    let mut texts: Vec<String> = socket
        .addresses()
        .unwrap()
        .iter()
        .filter(|address| address.scope != 253)
        .filter_map(|address| {
            let link = links.iter().find(|link| link.index == address.index)?;
            let up = if link.is_up() { "up" } else { "down" };
            // Ports of a bridge always are.
            let promisc = if link.promiscuity > 0 && link.master.is_none() { " promisc" } else { "" };
            let allmulti = if link.allmulti { " allmulti" } else { "" };
            (!except.contains(&link.name.as_str()))
                .then(|| format!("{} {} mtu {} {up}{promisc}{allmulti}", link.kind, address.cidr, link.mtu))
        })
        .collect();
    texts.sort();
    texts
}

/// Addresses of two hosts, of the router between them, and of their pods.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    forwarding: &'static str,
    hosts: [&'static str; 2],
    /// The second host's behind the router.
    routed: &'static str,
    router: [&'static str; 2],
    /// Of all pods, and of services.
    ranges: [&'static str; 2],
    pods: [&'static str; 2],
    gateways: [&'static str; 2],
    pod_addresses: [&'static str; 2],
    nobody: &'static str,
    tunnel_mtu: u32,
}

pub(crate) const FAMILIES: [Addresses; 2] = [
    Addresses {
        forwarding: "ipv4/ip_forward",
        hosts: ["192.0.2.2/24", "192.0.2.3/24"],
        routed: "198.51.100.2/24",
        router: ["192.0.2.1/24", "198.51.100.1/24"],
        ranges: ["10.42.0.0/16", "10.43.0.0/16"],
        pods: ["10.42.0.0/24", "10.42.1.0/24"],
        gateways: ["10.42.0.1/24", "10.42.1.1/24"],
        pod_addresses: ["10.42.0.2/24", "10.42.1.2/24"],
        nobody: "10.42.9.9",
        tunnel_mtu: 1450,
    },
    Addresses {
        forwarding: "ipv6/conf/all/forwarding",
        hosts: ["2001:db8:2::2/64", "2001:db8:2::3/64"],
        routed: "2001:db8:100::2/64",
        router: ["2001:db8:2::1/64", "2001:db8:100::1/64"],
        ranges: ["fd42::/56", "fd43::/112"],
        pods: ["fd42::/64", "fd42:0:0:1::/64"],
        gateways: ["fd42::1/64", "fd42:0:0:1::1/64"],
        pod_addresses: ["fd42::2/64", "fd42:0:0:1::2/64"],
        nobody: "fd42:0:0:9::9",
        tunnel_mtu: 1430,
    },
];

/// Two hosts with a pod each, on one network or with a router between them.
pub(crate) fn two_hosts(family: &Addresses, routed: bool, backend: Backend) {
    let (router, a, b) = (Namespace::new(), Namespace::new(), Namespace::new());
    let [address_a, neighbour] = family.hosts;
    let address_b = if routed { family.routed } else { neighbour };
    let forward = || std::fs::write(format!("/proc/sys/net/{}", family.forwarding), "1").unwrap();
    router.run(|| {
        let socket = Socket::open().unwrap();
        forward();
        if routed {
            cable(&a, "to-a", family.router[0], address_a);
            cable(&b, "to-b", family.router[1], address_b);
            return;
        }
        // A switch, which knows nothing of addresses.
        socket.add_link("switch", LinkKind::Bridge { vlan_filtering: false }, None, None).unwrap();
        let switch = up(&socket, "switch", None);
        for (namespace, name, address) in [(&a, "to-a", address_a), (&b, "to-b", address_b)] {
            let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.as_fd()), peer_mtu: None };
            socket.add_link(name, kind, None, None).unwrap();
            let port = up(&socket, name, None);
            socket.set_master(port, switch).unwrap();
            namespace.run(|| up(&Socket::open().unwrap(), "eth0", Some(address)));
        }
    });
    let peer = |name: &str, address: &str, range: &str| Peer {
        name: name.into(),
        address: cidr(address).addr,
        pod_cidrs: vec![cidr(range)],
    };
    let peers = [peer("a", address_a, family.pods[0]), peer("b", address_b, family.pods[1])];
    let pods = [Namespace::new(), Namespace::new()];
    let program = |host: &Namespace, me: &Peer, peers: &[Peer]| {
        host.run(|| {
            let socket = Socket::open().unwrap();
            let is_neighbour = |addr| socket.route_to(addr).is_ok_and(|route| route.gateway.is_none());
            let plan = routes::plan(&me.name, peers, backend, is_neighbour);
            assert_eq!(plan.tunnelled.len(), if routed { peers.len() - 1 } else { 0 });
            // Twice: nothing changes the second time.
            for _ in 0..2 {
                routes::program(me, &plan, &VxlanConfig::default()).unwrap();
            }
        });
    };
    for (i, host) in [&a, &b].into_iter().enumerate() {
        host.run(|| {
            forward();
            let [pod_range, service_range] = family.ranges.map(cidr);
            routes::seal(&[pod_range], &[service_range], Some(peers[i].address)).unwrap();
            cable(&pods[i], "pod", family.gateways[i], family.pod_addresses[i]);
        });
        program(host, &peers[i], &peers);
    }
    let far = SocketAddr::new(cidr(family.pod_addresses[1]).addr, 80).to_string();
    serve(pods[1].run(|| listen(&far)));
    assert!(pods[0].run(|| connects(&far)), "{far} {backend:?} routed={routed}");
    // Nobody has it: unreachable here, not asked of the router.
    let nobody = SocketAddr::new(family.nobody.parse().unwrap(), 80);
    let error = pods[0].run(|| TcpStream::connect_timeout(&nobody, COMMAND_TIMEOUT)).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::EHOSTUNREACH | libc::ENETUNREACH)), "{error}");
    // What does not fit a packet of the hosts' network is not sent into the tunnel.
    let tunnel = a.run(|| Socket::open().unwrap().link(&VxlanConfig::default().link).unwrap());
    assert_eq!(tunnel.map(|link| link.mtu), routed.then_some(family.tunnel_mtu));
    // The other node leaves, and comes back.
    program(&a, &peers[0], &peers[..1]);
    assert!(!pods[0].run(|| connects(&far)), "{far} {backend:?} routed={routed}: gone");
    program(&a, &peers[0], &peers);
    assert!(pods[0].run(|| connects(&far)), "{far} {backend:?} routed={routed}: back");
}

/// A host gives a range of services an end whose source is an address of its own.
fn seal_services_from(source: &str) -> std::io::Result<()> {
    routes::seal(&[], &[cidr("fd43::/112")], Some(cidr(source).addr))
}

/// The host's cable to a switch that is off: duplicate address detection begins when it is switched on.
pub(crate) fn addresses_that_are_not_settled() {
    const OWN: &str = "2001:db8:2::1/64";
    const GIVEN: &str = "2001:db8:2::2/64";
    const TAKEN: &str = "2001:db8:2::3/64";
    let (host, switch) = (Namespace::new(), Namespace::new());
    let index = host.run(|| {
        let socket = Socket::open().unwrap();
        let kind = LinkKind::Veth { peer: "port", peer_netns: Some(switch.as_fd()), peer_mtu: None };
        socket.add_link("eth0", kind, None, None).unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/eth0/router_solicitation_delay", "0").unwrap();
        up(&socket, "lo", None);
        up(&socket, "eth0", None)
    });
    let is_tentative = |address: &str| {
        let held = Socket::open().unwrap().addresses_of(index).unwrap();
        held.into_iter().find(|held| held.cidr == cidr(address)).unwrap().is_tentative
    };
    host.run(|| {
        let socket = Socket::open().unwrap();
        socket.add_own_address(index, cidr(OWN)).unwrap();
        assert!(!is_tentative(OWN), "nobody is asked about an address of our own");
        seal_services_from(OWN).unwrap();
        socket.add_address(index, cidr(GIVEN)).unwrap();
        assert!(is_tentative(GIVEN));
    });
    std::thread::scope(|scope| {
        let sealing = scope.spawn(|| host.run(|| seal_services_from(GIVEN)));
        switch.run(|| up(&Socket::open().unwrap(), "port", None));
        sealing.join().unwrap().unwrap();
    });
    host.run(|| {
        let routes = Socket::open().unwrap().routes().unwrap();
        let sealed = routes.iter().find(|route| route.dst == cidr("fd43::/112")).unwrap();
        assert_eq!(sealed.source, Some(cidr(GIVEN).addr));
    });
    // Somebody else has it already.
    switch.run(|| {
        let socket = Socket::open().unwrap();
        socket.add_own_address(socket.link("port").unwrap().unwrap().index, cidr(TAKEN)).unwrap();
    });
    let error = host.run(|| {
        Socket::open().unwrap().add_address(index, cidr(TAKEN)).unwrap();
        seal_services_from(TAKEN).unwrap_err()
    });
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
}
