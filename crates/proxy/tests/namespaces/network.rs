//! The laboratory: namespaces for the host, its pods and a neighbour, joined by a bridge and a cable.
//!
//! Tests are written in addresses of IPv4 and run in labs of both families. In one of IPv6 each address stands for another: on its
//! way to the API and to the network, and back again in what is answered.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use api::cidr::Cidr;
use cni::routes;
use netlink::{LinkKind, Route, Socket};
use nix::sched::{CloneFlags, setns};
use proxy::Mode;
use serde_json::Value;
use testkit::netns::Namespace;
use tokio_util::sync::CancellationToken;

use crate::api::FakeApi;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// Where the proxy tells how it is.
pub(crate) const HEALTHZ: &str = "127.0.0.1:10256";
pub(crate) const METRICS: &str = "127.0.0.1:10249";
/// Of pods and of services, in both families.
const RANGES: [[&str; 2]; 2] = [["10.42.0.0/16", "fd42::/56"], ["10.43.0.0/16", "fd43::/112"]];
const MODES: [Mode; 2] = [Mode::Nftables, Mode::Iptables];
const PODS: std::ops::RangeInclusive<u8> = 2..=5;

/// What is written in tests, and what it stands for in a lab of IPv6. The more exact ones come first.
const TRANSLATIONS: [(&str, &str); 10] = [
    ("10.42.0.0/24", "fd42::/64"),
    ("192.0.2.0/24", "2001:db8:2::/64"),
    ("203.0.113.0/24", "2001:db8:113::/64"),
    ("10.43.9.9", "fd43::999"),
    ("10.42.0.", "fd42::"),
    ("10.43.0.", "fd43::"),
    ("192.0.2.", "2001:db8:2::"),
    ("203.0.113.", "2001:db8:113::"),
    ("198.51.100.", "2001:db8:100::"),
    ("IPv4", "IPv6"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

thread_local! {
    /// Of the lab that this thread works in.
    static FAMILY: Cell<Family> = const { Cell::new(Family::V4) };
}

fn translated(text: &str) -> String {
    match FAMILY.get() {
        Family::V4 => text.to_owned(),
        Family::V6 => TRANSLATIONS.iter().fold(text.to_owned(), |text, (four, six)| text.replace(four, six)),
    }
}

/// What was answered, as tests are written.
fn translated_back(text: &str) -> String {
    match FAMILY.get() {
        Family::V4 => text.to_owned(),
        Family::V6 => TRANSLATIONS.iter().fold(text.to_owned(), |text, (four, six)| text.replace(six, four)),
    }
}

fn meant(target: &str) -> SocketAddr {
    let written: SocketAddr = target.parse().unwrap();
    SocketAddr::new(translated(&written.ip().to_string()).parse().unwrap(), written.port())
}

/// The API of a lab.
#[derive(Clone, Default)]
pub(crate) struct Api(FakeApi);

impl Api {
    pub(crate) fn put(&self, plural: &str, object: Value) {
        self.0.put(plural, serde_json::from_str(&translated(&object.to_string())).unwrap());
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) {
        self.0.delete(plural, name);
    }
}

pub(crate) struct Lab {
    pods: Vec<Namespace>,
    outside: Namespace,
    mode: Mode,
    family: Family,
}

/// Stops the proxy when dropped.
pub(crate) struct RunningProxy {
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

impl Lab {
    /// Runs a test in host namespaces of its own, once for each mode and family.
    pub(crate) fn run(test: impl Fn(&Lab) + Send + Copy + 'static) {
        Self::run_in(&[Family::V4, Family::V6], test);
    }

    /// Runs a test that is about both families, or neither, once for each mode.
    pub(crate) fn run_as_written(test: impl Fn(&Lab) + Send + Copy + 'static) {
        Self::run_in(&[Family::V4], test);
    }

    fn run_in(families: &[Family], test: impl Fn(&Lab) + Send + Copy + 'static) {
        let inside = |mode, family| {
            let host = Namespace::new();
            std::thread::spawn(move || {
                setns(&host, CloneFlags::CLONE_NEWNET).unwrap();
                FAMILY.set(family);
                test(&Lab::build(mode, family));
            })
        };
        // All at once: mostly they wait.
        let all: Vec<_> = families.iter().flat_map(|family| MODES.map(|mode| inside(mode, *family))).collect();
        for running in all {
            if let Err(panic) = running.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }

    fn build(mode: Mode, family: Family) -> Self {
        let host = Socket::open().unwrap();
        let up = |socket: &Socket, name: &str, address: Option<&str>| {
            let link = socket.link(name).unwrap().unwrap();
            if let Some(address) = address {
                socket.add_own_address(link.index, cidr(address)).unwrap();
            }
            socket.set_up(link.index).unwrap();
            link.index
        };
        up(&host, "lo", None);
        host.add_link("br0", LinkKind::Bridge { vlan_filtering: false }, None, None).unwrap();
        let bridge = up(&host, "br0", Some("10.42.0.1/24"));
        host.add_own_address(bridge, cidr("fd42::1/64")).unwrap();
        let cable = |namespace: &Namespace, name: &str, addresses: &'static [String], gateways: &'static [&str]| {
            let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.as_fd()), peer_mtu: None };
            host.add_link(name, kind, None, None).unwrap();
            namespace.run(move || {
                let socket = Socket::open().unwrap();
                for (link, addresses) in [("lo", &[][..]), ("eth0", addresses)] {
                    let link = socket.link(link).unwrap().unwrap();
                    socket.set_up(link.index).unwrap();
                    addresses.iter().for_each(|a| socket.add_own_address(link.index, cidr(a)).unwrap());
                }
                for gateway in gateways {
                    let gateway: std::net::IpAddr = gateway.parse().unwrap();
                    socket.add_route(&Route::to(Cidr::default_route(gateway.is_ipv6())).via(gateway)).unwrap();
                }
            });
        };
        let pods: Vec<Namespace> = PODS
            .map(|number| {
                let pod = Namespace::new();
                let name = format!("pod{number}");
                let addresses = vec![format!("10.42.0.{number}/24"), format!("fd42::{number}/64")].leak();
                cable(&pod, &name, addresses, &["10.42.0.1", "fd42::1"]);
                let port = up(&host, &name, None);
                host.set_master(port, bridge).unwrap();
                host.set_hairpin(port, true).unwrap();
                serve(&pod, number);
                pod
            })
            .collect();
        let outside = Namespace::new();
        let addresses = vec!["192.0.2.2/24".to_owned(), "2001:db8:2::2/64".to_owned()].leak();
        cable(&outside, "up0", addresses, &["192.0.2.1", "2001:db8:2::1"]);
        let uplink = up(&host, "up0", Some("192.0.2.1/24"));
        host.add_own_address(uplink, cidr("2001:db8:2::1/64")).unwrap();
        let (pod_ranges, service_ranges) = (RANGES[0].map(cidr), RANGES[1].map(cidr));
        routes::seal(&pod_ranges, &service_ranges, Some("192.0.2.1".parse().unwrap())).unwrap();
        Self { pods, outside, mode, family }
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.family == Family::V6
    }

    /// By the last byte of its address.
    pub(crate) fn pod(&self, number: u8) -> &Namespace {
        &self.pods[usize::from(number - PODS.start())]
    }

    pub(crate) fn outside(&self) -> &Namespace {
        &self.outside
    }

    /// The proxy of node `a`, in this thread's namespace.
    pub(crate) fn proxy(&self, api: &Api) -> RunningProxy {
        self.proxy_with(api, |_| {})
    }

    /// The same with something changed.
    pub(crate) fn proxy_with(&self, api: &Api, change: impl FnOnce(&mut proxy::Config)) -> RunningProxy {
        let mut config = proxy::Config::new(api.0.client(), "a");
        config.cluster_cidrs = RANGES[0].map(str::to_owned).into();
        config.service_cidrs = RANGES[1].map(str::to_owned).into();
        config.mode = self.mode;
        config.healthz_bind_address = Some(HEALTHZ.parse().unwrap());
        config.metrics_bind_address = Some(METRICS.parse().unwrap());
        change(&mut config);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // A runtime of one thread: whatever it starts inherits this namespace.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(proxy::run(config, stopped)).unwrap();
        });
        RunningProxy { stop, thread: Some(thread) }
    }

    /// The mode's rules of the lab's family, as its own tool lists them.
    pub(crate) fn rules(&self) -> String {
        let (tool, args): (_, &[&str]) = match (self.mode, self.family) {
            (Mode::Nftables, _) => ("nft", &["list", "ruleset"]),
            (Mode::Iptables, Family::V4) => ("iptables-save", &[]),
            (Mode::Iptables, Family::V6) => ("ip6tables-save", &[]),
        };
        let output = std::process::Command::new(tool).args(args).output().unwrap();
        translated_back(&String::from_utf8(output.stdout).unwrap())
    }
}

/// Every pod answers `p<number> <the client's address>` on TCP 80 and `p<number>` on UDP 53.
fn serve(pod: &Namespace, number: u8) {
    pod.run(move || {
        let listener = TcpListener::bind("[::]:80").unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let text = format!("p{number} {}", stream.peer_addr().unwrap().ip().to_canonical());
                let _ = stream.write_all(text.as_bytes());
            }
        });
        let socket = UdpSocket::bind("[::]:53").unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("p{number}").as_bytes(), client);
            }
        });
    });
}

/// One connection and what came over it; from the host without a namespace.
pub(crate) fn ask_tcp(from: Option<&Namespace>, target: &str) -> Result<String, String> {
    ask_tcp_within(from, target, COMMAND_TIMEOUT)
}

pub(crate) fn ask_tcp_within(from: Option<&Namespace>, target: &str, timeout: Duration) -> Result<String, String> {
    let address = meant(target);
    let ask = move || {
        let mut stream = TcpStream::connect_timeout(&address, timeout).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(timeout)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    };
    let answer = match from {
        Some(namespace) => namespace.run(ask),
        None => ask(),
    };
    answer.map(|text| translated_back(&text))
}

/// An HTTP GET from the host: status line, headers and body.
pub(crate) fn get(address: &str, path: &str) -> Result<String, String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    get().map_err(|error| error.to_string())
}

/// A client that asks again and again from one socket.
pub(crate) fn ask_udp(from: &Namespace, target: &str) -> impl FnMut() -> Result<String, String> + use<> {
    let address = meant(target);
    let any = if address.is_ipv6() { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = from.run(move || {
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect(address).unwrap();
        socket
    });
    move || {
        let mut buffer = [0; 64];
        socket.send(b"?").map_err(|error| error.to_string())?;
        let length = socket.recv(&mut buffer).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
