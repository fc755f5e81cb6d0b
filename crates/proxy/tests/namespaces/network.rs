//! The laboratory: namespaces for the host, its pods and a neighbour, joined by a bridge and a cable.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::Duration;

use cni::netlink::{LinkKind, Route, Socket};
use cni::{Cidr, routes};
use nix::sched::{CloneFlags, setns, unshare};
use tokio_util::sync::CancellationToken;

use crate::api::FakeApi;

const PATIENCE: Duration = Duration::from_secs(2);
const PODS: std::ops::RangeInclusive<u8> = 2..=5;

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
    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let file = self.0.try_clone().unwrap();
        let inside = move || {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        std::thread::spawn(inside).join().unwrap()
    }
}

pub(crate) struct Lab {
    pods: Vec<Namespace>,
    outside: Namespace,
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
    /// Runs a test in a host namespace of its own.
    pub(crate) fn run(test: impl FnOnce(&Lab) + Send + 'static) {
        let host = Namespace::new();
        let file = host.0.try_clone().unwrap();
        let inside = std::thread::spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            test(&Lab::build());
        });
        if let Err(panic) = inside.join() {
            std::panic::resume_unwind(panic);
        }
    }

    fn build() -> Self {
        let host = Socket::open().unwrap();
        let up = |socket: &Socket, name: &str, address: Option<&str>| {
            let link = socket.link(name).unwrap().unwrap();
            if let Some(address) = address {
                socket.add_address(link.index, cidr(address)).unwrap();
            }
            socket.set_up(link.index).unwrap();
            link.index
        };
        up(&host, "lo", None);
        host.add_link("br0", LinkKind::Bridge { vlan_filtering: false }, None, None).unwrap();
        let bridge = up(&host, "br0", Some("10.42.0.1/24"));
        let cable = |namespace: &Namespace, name: &str, address: &'static str, gateway: &'static str| {
            let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(namespace.0.as_fd()), peer_mtu: None };
            host.add_link(name, kind, None, None).unwrap();
            namespace.run(move || {
                let socket = Socket::open().unwrap();
                for (link, address) in [("lo", None), ("eth0", Some(address))] {
                    let link = socket.link(link).unwrap().unwrap();
                    address.iter().for_each(|a| socket.add_address(link.index, cidr(a)).unwrap());
                    socket.set_up(link.index).unwrap();
                }
                socket.add_route(&Route::to(cidr("0.0.0.0/0")).via(gateway.parse().unwrap())).unwrap();
            });
        };
        let pods: Vec<Namespace> = PODS
            .map(|number| {
                let pod = Namespace::new();
                let name = format!("pod{number}");
                let address: &'static str = format!("10.42.0.{number}/24").leak();
                cable(&pod, &name, address, "10.42.0.1");
                let port = up(&host, &name, None);
                host.set_master(port, bridge).unwrap();
                host.set_hairpin(port, true).unwrap();
                serve(&pod, number);
                pod
            })
            .collect();
        let outside = Namespace::new();
        cable(&outside, "up0", "192.0.2.2/24", "192.0.2.1");
        up(&host, "up0", Some("192.0.2.1/24"));
        routes::seal(&[cidr("10.42.0.0/16")], &[cidr("10.43.0.0/16")], Some("192.0.2.1".parse().unwrap())).unwrap();
        Self { pods, outside }
    }

    /// By the last byte of its address.
    pub(crate) fn pod(&self, number: u8) -> &Namespace {
        &self.pods[usize::from(number - PODS.start())]
    }

    pub(crate) fn outside(&self) -> &Namespace {
        &self.outside
    }

    /// The proxy of node `a`, in this thread's namespace.
    pub(crate) fn proxy(&self, api: &FakeApi) -> RunningProxy {
        let mut config = proxy::Config::new(api.client(), "a");
        config.cluster_cidrs = vec!["10.42.0.0/16".into()];
        config.service_cidrs = vec!["10.43.0.0/16".into()];
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        // A runtime of one thread: whatever it starts inherits this namespace.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(proxy::run(config, stopped)).unwrap();
        });
        RunningProxy { stop, thread: Some(thread) }
    }

    pub(crate) fn rules(&self) -> String {
        let output = std::process::Command::new("nft").args(["list", "table", "ip", "cox-proxy"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Every pod answers `p<number> <the client's address>` on TCP 80 and `p<number>` on UDP 53.
fn serve(pod: &Namespace, number: u8) {
    pod.run(move || {
        let listener = TcpListener::bind("0.0.0.0:80").unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let text = format!("p{number} {}", stream.peer_addr().unwrap().ip());
                let _ = stream.write_all(text.as_bytes());
            }
        });
        let socket = UdpSocket::bind("0.0.0.0:53").unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("p{number}").as_bytes(), client);
            }
        });
    });
}

/// One connection and what came over it; from the host without a namespace.
pub(crate) fn ask_tcp(from: Option<&Namespace>, target: &'static str) -> Result<String, String> {
    let ask = move || {
        let address: SocketAddr = target.parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Ok(text)
    };
    match from {
        Some(namespace) => namespace.run(ask),
        None => ask(),
    }
}

/// A client that asks again and again from one socket.
pub(crate) fn ask_udp(from: &Namespace, target: &'static str) -> impl FnMut() -> Result<String, String> {
    let socket = from.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.connect(target).unwrap();
        socket
    });
    move || {
        let mut buffer = [0; 64];
        socket.send(b"?").map_err(|error| error.to_string())?;
        let length = socket.recv(&mut buffer).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
