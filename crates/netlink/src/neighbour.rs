//! Neighbour entries and the forwarding table of VXLAN links.

use std::io;
use std::net::IpAddr;

use crate::Socket;
use crate::message::{NLM_F_CREATE, NLM_F_REPLACE, Request, attributes, family, read_ip, read_u16, read_u32};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 0x02;
const NTF_PROXY: u8 = 0x08;

/// Who answers for an address on a link; in a forwarding table, which host a MAC address lives behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    pub index: u32,
    pub addr: IpAddr,
    pub mac: [u8; 6],
}

impl Socket {
    /// `addr` is at `mac`, for ever: no ARP or neighbour discovery.
    pub fn set_neighbour(&self, neighbour: &Neighbour) -> io::Result<()> {
        self.change(encode(RTM_NEWNEIGH, neighbour, family(neighbour.addr), 0))
    }

    pub fn del_neighbour(&self, neighbour: &Neighbour) -> io::Result<()> {
        quiet(self.change(encode(RTM_DELNEIGH, neighbour, family(neighbour.addr), 0)))
    }

    /// Frames for `mac` on the VXLAN link travel to the host `addr`.
    pub fn set_forwarding(&self, entry: &Neighbour) -> io::Result<()> {
        self.change(encode(RTM_NEWNEIGH, entry, libc::AF_BRIDGE as u8, NTF_SELF))
    }

    pub fn del_forwarding(&self, entry: &Neighbour) -> io::Result<()> {
        quiet(self.change(encode(RTM_DELNEIGH, entry, libc::AF_BRIDGE as u8, NTF_SELF)))
    }

    /// Permanent neighbours on one link.
    pub fn neighbours(&self, index: u32) -> io::Result<Vec<Neighbour>> {
        self.table(index, 0)
    }

    pub fn forwarding(&self, index: u32) -> io::Result<Vec<Neighbour>> {
        self.table(index, libc::AF_BRIDGE as u8)
    }

    /// Has the kernel answer who looks on this link for an address of IPv6 that another link has. It does so on links that forward
    /// and have the setting `proxy_ndp`.
    pub fn add_proxy(&self, index: u32, addr: IpAddr) -> io::Result<()> {
        self.change(encode_proxy(RTM_NEWNEIGH, index, addr))
    }

    pub fn del_proxy(&self, index: u32, addr: IpAddr) -> io::Result<()> {
        quiet(self.change(encode_proxy(RTM_DELNEIGH, index, addr)))
    }

    /// The addresses of IPv6 that are answered for so, each with its link.
    pub fn proxies(&self) -> io::Result<Vec<(u32, IpAddr)>> {
        let mut body = [0; 12];
        (body[0], body[10]) = (libc::AF_INET6 as u8, NTF_PROXY);
        let answers = self.dump(|| Request::new(RTM_GETNEIGH, 0).body(&body))?;
        Ok(answers.iter().filter_map(|answer| parse_proxy(answer)).collect())
    }

    fn table(&self, index: u32, family: u8) -> io::Result<Vec<Neighbour>> {
        let mut body = [0; 12];
        body[0] = family;
        let answers = self.dump(|| Request::new(RTM_GETNEIGH, 0).body(&body))?;
        Ok(answers.iter().filter_map(|answer| parse(answer)).filter(|n| n.index == index).collect())
    }
}

fn quiet(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}

fn encode_proxy(kind: u16, index: u32, addr: IpAddr) -> Request {
    let mut body = [0; 12];
    (body[0], body[10]) = (family(addr), NTF_PROXY);
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    let flags = if kind == RTM_NEWNEIGH { NLM_F_CREATE | NLM_F_REPLACE } else { 0 };
    Request::new(kind, flags).body(&body).attr_ip(NDA_DST, addr)
}

pub(crate) fn parse_proxy(answer: &[u8]) -> Option<(u32, IpAddr)> {
    if *answer.get(10)? & NTF_PROXY == 0 {
        return None;
    }
    let addr =
        attributes(answer.get(12..)?).find(|(kind, _)| *kind == NDA_DST).and_then(|(_, value)| read_ip(value))?;
    Some((read_u32(answer, 4)?, addr))
}

fn encode(kind: u16, neighbour: &Neighbour, family: u8, flags: u8) -> Request {
    let mut body = [0; 12];
    body[0] = family;
    body[4..8].copy_from_slice(&neighbour.index.to_ne_bytes());
    body[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    body[10] = flags;
    Request::new(kind, if kind == RTM_NEWNEIGH { NLM_F_CREATE | NLM_F_REPLACE } else { 0 })
        .body(&body)
        .attr_ip(NDA_DST, neighbour.addr)
        .attr(NDA_LLADDR, &neighbour.mac)
}

pub(crate) fn parse(answer: &[u8]) -> Option<Neighbour> {
    let index = read_u32(answer, 4)?;
    if read_u16(answer, 8)? & NUD_PERMANENT == 0 {
        return None;
    }
    let (mut addr, mut mac) = (None, None);
    for (kind, value) in attributes(answer.get(12..)?) {
        match kind {
            NDA_DST => addr = read_ip(value),
            NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(Neighbour { index, addr: addr?, mac: mac? })
}
