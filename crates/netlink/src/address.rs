//! Addresses on links.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::Socket;
use crate::message::{NLM_F_CREATE, NLM_F_EXCL, Request, attributes, family, read_ip, read_u32};
use api::cidr::Cidr;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u8 = 0x02;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Duplicate address detection takes about two seconds; upstream's plug-ins give up after five.
const DAD_TIMEOUT: Duration = Duration::from_secs(5);
const DAD_POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    pub index: u32,
    pub cidr: Cidr,
    pub scope: u8,
    /// IPv6 duplicate address detection has not finished.
    pub is_tentative: bool,
    pub dad_failed: bool,
}

impl Socket {
    /// The address; in IPv4 with its broadcast address, as `ip addr add … brd +` does. `AlreadyExists` when it is there.
    pub fn add_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        self.add(index, cidr, 0)
    }

    /// The same for an address that nobody else can have: an IPv6 address is usable at once, because the network is not asked
    /// first whether it is free.
    pub fn add_own_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        self.add(index, cidr, if cidr.is_v6() { IFA_F_NODAD } else { 0 })
    }

    fn add(&self, index: u32, cidr: Cidr, flags: u8) -> io::Result<()> {
        let request = body(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, index, cidr, flags)
            .attr_ip(IFA_LOCAL, cidr.addr)
            .attr_ip(IFA_ADDRESS, cidr.addr);
        let request = match cidr.addr {
            IpAddr::V4(_) if cidr.prefix < 31 => request.attr_ip(IFA_BROADCAST, cidr.last()),
            _ => request,
        };
        self.change(request)
    }

    pub fn del_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        self.change(body(RTM_DELADDR, 0, index, cidr, 0).attr_ip(IFA_LOCAL, cidr.addr).attr_ip(IFA_ADDRESS, cidr.addr))
    }

    /// Of all links; both families.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        let answers = self.dump(|| Request::new(RTM_GETADDR, 0).body(&[0; 8]))?;
        Ok(answers.iter().filter_map(|answer| parse(answer)).collect())
    }

    /// The destinations of packets that this host keeps for itself.
    pub fn own(&self) -> io::Result<Own> {
        Ok(Own(self.addresses()?.into_iter().map(|address| address.cidr.addr).collect()))
    }

    pub fn addresses_of(&self, index: u32) -> io::Result<Vec<Address>> {
        Ok(self.addresses()?.into_iter().filter(|address| address.index == index).collect())
    }
}

/// The addresses of a host, with all of its loopback.
pub struct Own(BTreeSet<IpAddr>);

impl Own {
    pub fn has(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.0.contains(&address)
    }
}

/// Waits until duplicate address detection has ended for all addresses that `read` returns. Until then the kernel neither sends
/// from an address nor takes it as the source of a route.
pub fn settle(mut read: impl FnMut() -> io::Result<Vec<Address>>) -> io::Result<()> {
    let deadline = Instant::now() + DAD_TIMEOUT;
    loop {
        let addresses = read()?;
        if let Some(failed) = addresses.iter().find(|address| address.dad_failed) {
            let message = format!("{} is in use by another host", failed.cidr);
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        let Some(tentative) = addresses.iter().find(|address| address.is_tentative) else { return Ok(()) };
        if Instant::now() > deadline {
            let message = format!("duplicate address detection of {} does not end", tentative.cidr);
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        // The kernel has no blocking wait for this; notifications would cost a second socket for a rare case.
        std::thread::sleep(DAD_POLL_INTERVAL);
    }
}

fn body(kind: u16, flags: u16, index: u32, cidr: Cidr, address_flags: u8) -> Request {
    let mut body = [family(cidr.addr), cidr.prefix, address_flags, 0, 0, 0, 0, 0];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    Request::new(kind, flags).body(&body)
}

pub(crate) fn parse(answer: &[u8]) -> Option<Address> {
    let (prefix, scope, index) = (*answer.get(1)?, *answer.get(3)?, read_u32(answer, 4)?);
    let (mut address, mut local, mut flags) = (None, None, u32::from(*answer.get(2)?));
    for (kind, value) in attributes(answer.get(8..)?) {
        match kind {
            IFA_ADDRESS => address = read_ip(value),
            IFA_LOCAL => local = read_ip(value),
            IFA_FLAGS => flags = read_u32(value, 0)?,
            _ => {}
        }
    }
    Some(Address {
        index,
        cidr: Cidr::new(local.or(address)?, prefix),
        scope,
        is_tentative: flags & IFA_F_TENTATIVE != 0,
        dad_failed: flags & IFA_F_DADFAILED != 0,
    })
}
