//! Old UDP flows: the kernel keeps sending a client's packets where the first one went, so flows to an endpoint that is
//! gone must be forgotten.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

use crate::services::{Frontend, Target};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 20; // netlink header and nfgenmsg

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const NESTED: u16 = 0x8000;
const IPPROTO_UDP: u8 = 17;

/// Forgets UDP flows to the given addresses that lead to anything but their present endpoints. Blocking.
pub(crate) fn forget(frontends: &BTreeMap<Frontend, Vec<Target>>) -> io::Result<usize> {
    let mut forgotten = 0;
    for v6 in [false, true] {
        let has = frontends.keys().any(|f| f.addr.is_none_or(|addr| addr.is_ipv6() == v6));
        if !has {
            continue;
        }
        let family = if v6 { libc_family::INET6 } else { libc_family::INET };
        for flow in flows(family)?.into_iter().filter(|flow| is_stale(flow, frontends)) {
            match delete(family, &flow.original) {
                Ok(()) => forgotten += 1,
                // It may have expired meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(forgotten)
}

mod libc_family {
    pub(super) const INET: u8 = 2;
    pub(super) const INET6: u8 = 10;
}

struct Flow {
    /// The attribute as the kernel gave it, to name the flow with.
    original: Vec<u8>,
    destination: Target,
    /// Who answers.
    endpoint: Target,
}

fn is_stale(flow: &Flow, frontends: &BTreeMap<Frontend, Vec<Target>>) -> bool {
    let to = |addr| frontends.get(&Frontend { addr, port: flow.destination.port });
    if let Some(targets) = to(Some(flow.destination.addr)) {
        return !targets.contains(&flow.endpoint);
    }
    // A node port is one on any address; a flow that was never translated to us may be anyone's, unless it is unanswered
    // here, and then forgetting it costs nothing.
    to(None).is_some_and(|targets| !targets.contains(&flow.endpoint))
}

fn flows(family: u8) -> io::Result<Vec<Flow>> {
    let answers = exchange(GET, DUMP, family, &[])?;
    Ok(answers.iter().filter_map(|answer| parse(answer)).collect())
}

fn delete(family: u8, original: &[u8]) -> io::Result<()> {
    let mut attribute = Vec::with_capacity(original.len() + 4);
    attribute.extend_from_slice(&((original.len() + 4) as u16).to_ne_bytes());
    attribute.extend_from_slice(&(TUPLE_ORIG | NESTED).to_ne_bytes());
    attribute.extend_from_slice(original);
    exchange(DELETE, ACK, family, &attribute).map(drop)
}

fn exchange(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkNetFilter)?;
    let mut request = vec![0; HEADER];
    request.extend_from_slice(attributes);
    let length = request.len() as u32;
    request[0..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
    request[16] = family;
    sendto(fd.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answers = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => continue,
            length => length?,
        };
        let mut rest = &buffer[..length];
        while rest.len() >= 16 {
            let size = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            if size < 16 || size > rest.len() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed netlink message"));
            }
            let message = &rest[..size];
            rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
            match u16::from_ne_bytes([message[4], message[5]]) {
                NLMSG_ERROR => {
                    let errno = message.get(16..20).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                    return if errno == 0 { Ok(answers) } else { Err(io::Error::from_raw_os_error(-errno)) };
                }
                NLMSG_DONE => return Ok(answers),
                _ => answers.push(message.get(HEADER..).unwrap_or_default().to_vec()),
            }
        }
    }
}

fn parse(answer: &[u8]) -> Option<Flow> {
    let mut original = None;
    let mut reply = None;
    for (kind, value) in attributes(answer) {
        match kind {
            TUPLE_ORIG => original = Some(value),
            TUPLE_REPLY => reply = Some(value),
            _ => {}
        }
    }
    let original = original?;
    let (_, destination) = tuple(original)?;
    let (endpoint, _) = tuple(reply?)?;
    Some(Flow { original: original.to_vec(), destination, endpoint })
}

/// Source and destination of a UDP tuple.
fn tuple(bytes: &[u8]) -> Option<(Target, Target)> {
    let nested = |wanted: u16| attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let (mut source, mut destination) = (None, None);
    for (kind, value) in attributes(nested(1)?) {
        let addr: Option<IpAddr> = match value.len() {
            4 => <[u8; 4]>::try_from(value).ok().map(|b| Ipv4Addr::from(b).into()),
            16 => <[u8; 16]>::try_from(value).ok().map(|b| Ipv6Addr::from(b).into()),
            _ => None,
        };
        match kind {
            1 | 3 => source = addr,
            2 | 4 => destination = addr,
            _ => {}
        }
    }
    let (mut protocol, mut from, mut to) = (0, 0, 0);
    for (kind, value) in attributes(nested(2)?) {
        let port = || value.try_into().ok().map(u16::from_be_bytes);
        match kind {
            1 => protocol = *value.first()?,
            2 => from = port()?,
            3 => to = port()?,
            _ => {}
        }
    }
    (protocol == IPPROTO_UDP).then_some((Target { addr: source?, port: from }, Target { addr: destination?, port: to }))
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(rest.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
