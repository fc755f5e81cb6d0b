//! Pods of two hosts that speak to each other on a real kernel, with somebody who listens on the wire between them; and a host that
//! is served by another WireGuard (Debian's `wireguard-go`).
#![allow(clippy::unwrap_used)]

mod lab;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use netlink::{Route, Socket};
use wireguard::{Kind, LINKS, PrivateKey, Unreachable};

use lab::{Families, Lab, PORT, Pings, cidr, up, wait};

const FOUR: Families = Families {
    addresses: ["192.0.2.1/24", "192.0.2.2/24"],
    ranges: [&["10.42.0.0/24"], &["10.42.1.0/24"]],
    cluster: &["10.42.0.0/16"],
};
const SIX: Families = Families {
    addresses: ["2001:db8::1/64", "2001:db8::2/64"],
    ranges: [&["fd42::/64"], &["fd42:0:0:1::/64"]],
    cluster: &["fd42::/48"],
};
const BOTH: Families = Families {
    addresses: ["192.0.2.1/24", "192.0.2.2/24"],
    ranges: [&["10.42.0.0/24", "fd42::/64"], &["10.42.1.0/24", "fd42:0:0:1::/64"]],
    cluster: &["10.42.0.0/16", "fd42::/48"],
};

/// In the kernel where it has WireGuard, and always in user space.
fn kinds() -> Vec<Kind> {
    match wireguard::support().unwrap() {
        Kind::Kernel => vec![Kind::Kernel, Kind::UserSpace],
        Kind::UserSpace => vec![Kind::UserSpace],
    }
}

fn everywhere(test: impl Fn(Kind, &Families)) {
    for kind in kinds() {
        for families in [&FOUR, &SIX, &BOTH] {
            test(kind, families);
        }
    }
}

#[test]
fn security_who_listens_on_the_wire_learns_nothing() {
    everywhere(|kind, families| {
        let mut lab = Lab::new(kind, families);
        // Somebody who hears nothing at all would prove nothing.
        wait("what is sent in plain text is heard", || {
            let listener = lab.listen();
            lab.a.whisper(lab.b.address);
            listener.end().0.then_some(())
        });

        let listener = lab.listen();
        lab.a.add_key(1);
        // The other one has no key yet.
        let outcome = lab.a.apply(&lab.nodes()).unwrap();
        assert_eq!(outcome.ways[0].generation, Err(Unreachable::NoKey));
        for pod in lab.b.pods() {
            assert!(lab.a.is_closed(pod), "{pod} without a key");
            lab.a.whisper(pod);
        }
        lab.b.add_key(1);
        lab.meet(1);
        for pod in lab.b.pods() {
            lab.a.fetches(pod).unwrap();
        }
        for pod in lab.a.pods() {
            lab.b.fetches(pod).unwrap();
        }
        let (is_betrayed, encrypted) = listener.end();
        assert!(!is_betrayed && encrypted > 10, "{encrypted} packets were encrypted");
    });
}

#[test]
fn security_nothing_is_sent_when_the_device_is_gone_or_somebody_makes_another_route() {
    for kind in kinds() {
        let mut lab = Lab::new(kind, &BOTH);
        for host in [&mut lab.a, &mut lab.b] {
            host.add_key(1);
        }
        lab.meet(1);
        let listener = lab.listen();
        let pods = lab.b.pods();
        let link = lab.a.link(LINKS[1]).unwrap();
        lab.a.namespace.run(|| Socket::open().unwrap().del_link(link.index).unwrap());
        for pod in &pods {
            assert!(lab.a.is_closed(*pod), "{pod} without a device");
            lab.a.whisper(*pod);
        }
        // It comes back by itself.
        lab.meet(1);
        lab.a.fetches(pods[0]).unwrap();

        let (cluster, gateway) = (BOTH.cluster.iter().map(|range| cidr(range)).collect::<Vec<_>>(), lab.b.address);
        lab.a.namespace.run(|| {
            wireguard::guard(&cluster, "cox0").unwrap();
            let route = Route::to(api::cidr::Cidr::host(pods[0])).via(gateway);
            Socket::open().unwrap().add_route(&route).unwrap();
        });
        assert!(!lab.a.connects(pods[0]), "past the device");
        lab.a.whisper(pods[0]);
        assert!(!listener.end().0);
        lab.a.namespace.run(|| wireguard::unguard().unwrap());
    }
}

#[test]
fn keys_are_exchanged_without_losing_a_packet() {
    everywhere(|kind, families| {
        let mut lab = Lab::new(kind, families);
        for host in [&mut lab.a, &mut lab.b] {
            host.add_key(1);
        }
        lab.meet(1);
        let pings: Vec<_> = lab.b.pods().into_iter().map(|pod| lab.a.ping(pod)).collect();
        // One after the other, as nodes are.
        lab.a.add_key(2);
        let nodes = lab.nodes();
        for host in [&mut lab.a, &mut lab.b] {
            let outcome = host.apply(&nodes).unwrap();
            assert_eq!(outcome.ways[0].generation, Ok(1));
        }
        pings.iter().for_each(Pings::go_on);
        lab.b.add_key(2);
        lab.meet(2);
        // Nodes wait for longer before they forget a key.
        pings.iter().for_each(Pings::go_on);
        for host in [&mut lab.a, &mut lab.b] {
            host.keys.remove(&1);
        }
        lab.meet(2);
        assert_eq!(lab.a.link(LINKS[1]), None, "the old device is gone");
        for pings in pings {
            pings.go_on();
            assert_eq!(pings.end(), 0, "packets were lost");
        }
    });
}

#[test]
fn a_restart_takes_on_the_device_that_is_there() {
    for kind in kinds() {
        let mut lab = Lab::new(kind, &FOUR);
        for host in [&mut lab.a, &mut lab.b] {
            host.add_key(1);
        }
        lab.meet(1);
        let (pod, before) = (lab.b.pods()[0], lab.a.link(LINKS[1]).unwrap());
        let listener = lab.listen();
        lab.a.end();
        lab.a.whisper(pod);
        if kind == Kind::Kernel {
            lab.a.fetches(pod).unwrap();
        }
        lab.meet(1);
        assert_eq!(lab.a.link(LINKS[1]).unwrap().index, before.index);
        lab.a.fetches(pod).unwrap();
        assert!(!listener.end().0);
    }
}

/// Somebody else's WireGuard on the other host.
struct Peer {
    process: Child,
    socket: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn hex(base64: &str) -> String {
    STANDARD.decode(base64).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn another_implementation_understands_us() {
    let mut lab = Lab::new(Kind::UserSpace, &FOUR);
    let link = format!("wgpeer{}", std::process::id());
    let socket = format!("/var/run/wireguard/{link}.sock");
    let process = lab.b.namespace.run(|| {
        let mut command = Command::new("wireguard-go");
        command.args(["-f", &link]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("Debian's wireguard-go: scripts/deps installs it")
    });
    let peer = Peer { process, socket };
    let mut control = wait("the peer's socket", || UnixStream::connect(&peer.socket).ok());
    lab.a.add_key(1);
    let theirs = PrivateKey::generate().unwrap();
    let ours = lab.a.keys[&1].public().to_string();
    let request = format!(
        "set=1\nprivate_key={}\nlisten_port={}\npublic_key={}\nendpoint=192.0.2.1:{}\nallowed_ip=10.42.0.0/24\n\n",
        hex(&theirs.to_text()),
        PORT + 1,
        hex(&ours),
        PORT + 1,
    );
    control.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 64];
    let length = control.read(&mut answer).unwrap();
    assert!(answer[..length].starts_with(b"errno=0"), "{}", String::from_utf8_lossy(&answer[..length]));
    lab.b.namespace.run(|| {
        let socket = Socket::open().unwrap();
        let index = up(&socket, &link, &[cidr("10.42.1.0/32")]);
        socket.add_route(&Route::to(cidr("10.42.0.0/24")).dev(index)).unwrap();
    });
    lab.b.keys.insert(1, theirs);
    let listener = lab.listen();
    wait("a session with the peer", || {
        let outcome = lab.a.apply(&lab.nodes()).unwrap();
        outcome.ways[0].is_live.then_some(())
    });
    lab.a.fetches(lab.b.pods()[0]).unwrap();
    lab.b.fetches(lab.a.pods()[0]).unwrap();
    let (is_betrayed, encrypted) = listener.end();
    assert!(!is_betrayed && encrypted > 10, "{encrypted} packets were encrypted");
}
