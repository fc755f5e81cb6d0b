//! Announcements: neighbours are told where an address is before they ask.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ICMPV6: u8 = 58;

/// Tells the neighbours on a link of the calling thread's namespace that an address is here now (gratuitous ARP, or an unsolicited
/// neighbour advertisement): those who know it at another machine would go on sending there. Links without Ethernet have nobody to tell.
pub fn announce(index: u32, addr: IpAddr) -> io::Result<()> {
    for interface in getifaddrs()? {
        let Some(link) = interface.address.as_ref().and_then(|address| address.as_link_addr()) else { continue };
        if link.ifindex() != index as usize || link.hatype() != libc::ARPHRD_ETHER {
            continue;
        }
        let Some(mac) = link.addr() else { continue };
        let frame = match addr {
            IpAddr::V4(addr) => gratuitous_arp(mac, addr),
            IpAddr::V6(addr) => advertisement(mac, addr),
        };
        let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
        sendto(fd.as_raw_fd(), &frame, link, MsgFlags::empty())?;
    }
    Ok(())
}

/// A request for an address by whoever has it (RFC 5227, section 3).
fn gratuitous_arp(mac: [u8; 6], addr: Ipv4Addr) -> Vec<u8> {
    let (addr, nobody) = (addr.octets(), [0; 6]);
    // Ethernet and IPv4, the lengths of their addresses, a request.
    let kind = [0, 1, 8, 0, 6, 4, 0, 1];
    let parts: [&[u8]; 8] = [&[0xff; 6], &mac, &[8, 6], &kind, &mac, &addr, &nobody, &addr];
    parts.concat()
}

/// What nobody has asked for (RFC 4861, section 7.2.6).
fn advertisement(mac: [u8; 6], addr: Ipv6Addr) -> Vec<u8> {
    let (from, to) = (addr.octets(), ALL_NODES.octets());
    let message = |checksum: [u8; 2]| {
        // The flag says that this is worth more than what is known; the option, of 8 bytes, says the address of the link.
        let parts: [&[u8]; 6] = [&[136, 0], &checksum, &[0x20, 0, 0, 0], &from, &[2, 1], &mac];
        parts.concat()
    };
    let unsummed = message([0; 2]);
    let length = (unsummed.len() as u16).to_be_bytes();
    let summed: [&[u8]; 6] = [&from, &to, &[0, 0], &length, &[0, 0, 0, ICMPV6], &unsummed];
    let message = message(checksum(&summed.concat()));
    let ethernet: [&[u8]; 3] = [&[0x33, 0x33, 0, 0, 0, 1], &mac, &[0x86, 0xdd]];
    // Routers pass nothing on that has to have the highest hop limit.
    let packet: [&[u8]; 6] = [&[0x60, 0, 0, 0], &length, &[ICMPV6, 255], &from, &to, &message];
    [ethernet.concat(), packet.concat()].concat()
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use nix::sys::socket::sockopt::ReceiveTimeout;
    use nix::sys::socket::{SockProtocol, recv, setsockopt};
    use nix::sys::time::{TimeVal, TimeValLike};
    use testkit::netns::Namespace;

    use super::*;
    use crate::{LinkKind, Socket};

    const MAC: [u8; 6] = [0xfa, 0x56, 0x7b, 0x25, 0xef, 0xd2];

    /// Frames that made Linux put this hardware address where it had another.
    #[test]
    fn frames_are_those_that_neighbours_believe() {
        let arp = "fffffffffffffa567b25efd208060001080006040001fa567b25efd2c000024d000000000000c000024d";
        assert_eq!(api::hex::encode(gratuitous_arp(MAC, Ipv4Addr::new(192, 0, 2, 77))), arp);
        let expected = "333300000001fa567b25efd286dd6000000000203aff20010db8000000000000000000000077\
                        ff020000000000000000000000000001880094f02000000020010db8000000000000000000000077\
                        0201fa567b25efd2";
        assert_eq!(api::hex::encode(advertisement(MAC, "2001:db8::77".parse().unwrap())), expected);
    }

    #[test]
    fn neighbours_on_the_link_are_told() {
        let (here, there) = (Namespace::new(), Namespace::new());
        let up = |name: &str| {
            let socket = Socket::open().unwrap();
            let link = socket.link(name).unwrap().unwrap();
            socket.set_up(link.index).unwrap();
            link.index
        };
        let index = here.run(|| {
            let kind = LinkKind::Veth { peer: "eth0", peer_netns: Some(there.as_fd()), peer_mtu: None };
            Socket::open().unwrap().add_link("near", kind, None, Some(MAC)).unwrap();
            up("near")
        });
        let listening = there.run(|| {
            up("eth0");
            let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll);
            let fd = fd.unwrap();
            setsockopt(&fd, ReceiveTimeout, &TimeVal::milliseconds(100)).unwrap();
            fd
        });
        let six: Ipv6Addr = "2001:db8::77".parse().unwrap();
        let four = Ipv4Addr::new(192, 0, 2, 77);
        for (addr, expected) in
            [(IpAddr::V4(four), gratuitous_arp(MAC, four)), (IpAddr::V6(six), advertisement(MAC, six))]
        {
            let (deadline, mut buffer) = (Instant::now() + Duration::from_secs(60), [0; 2048]);
            // A link that was just set up loses frames, and the kernel sends some of its own.
            loop {
                here.run(|| announce(index, addr).unwrap());
                let received = recv(listening.as_raw_fd(), &mut buffer, MsgFlags::empty());
                if received.is_ok_and(|length| buffer[..length] == expected) {
                    break;
                }
                assert!(Instant::now() < deadline, "{addr}: not announced");
            }
        }
        // Nobody is there to be told.
        here.run(|| announce(up("lo"), four.into()).unwrap());
    }
}
