//! Links: found by name, made, changed, deleted.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::Socket;
use crate::message::{NLM_F_CREATE, NLM_F_EXCL, Request, attributes, read_string, read_u32};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PROMISCUITY: u16 = 30;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_ALLMULTI: u16 = 61;

const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_MULTI_BOOLOPT: u16 = 46;
const BR_BOOLOPT_NO_LL_LEARN: u32 = 1 << 0;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
const BRIDGE_VLAN_INFO_PVID: u16 = 2;
const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 4;

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;

const IFF_UP: u32 = 0x1;
const IFF_PROMISC: u32 = 0x100;
const IFF_ALLMULTI: u32 = 0x200;
const OPER_UP: u8 = 6;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mac: [u8; 6],
    pub mtu: u32,
    pub flags: u32,
    pub master: Option<u32>,
    /// The other end of a veth pair, in whichever namespace that is.
    pub peer: Option<u32>,
    pub kind: String,
    pub is_operational: bool,
    pub promiscuity: u32,
    pub allmulti: bool,
    pub tx_queue: u32,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    pub fn mac_text(&self) -> String {
        mac_text(self.mac)
    }
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub enum LinkKind<'a> {
    Bridge {
        vlan_filtering: bool,
    },
    /// The peer is born in its own namespace: no moment in which it could be seen in the wrong one.
    Veth {
        peer: &'a str,
        peer_netns: Option<BorrowedFd<'a>>,
        peer_mtu: Option<u32>,
    },
    Vxlan {
        vni: u32,
        port: u16,
        local: IpAddr,
    },
    Ifb,
    /// Carries nothing; it is there to hold an address.
    Dummy,
    /// Without key and peers, which [`crate::wireguard::WireGuard`] gives it.
    WireGuard,
}

impl Socket {
    /// `Ok(None)` when there is no such link.
    pub fn link(&self, name: &str) -> io::Result<Option<Link>> {
        // Longer names can only be alternative names.
        let attr = if name.len() < libc::IFNAMSIZ { IFLA_IFNAME } else { IFLA_ALT_IFNAME };
        self.one_link(ifinfo(RTM_GETLINK, 0, 0).attr_str(attr, name))
    }

    pub fn link_by_index(&self, index: u32) -> io::Result<Option<Link>> {
        self.one_link(ifinfo(RTM_GETLINK, 0, index))
    }

    fn one_link(&self, request: Request) -> io::Result<Option<Link>> {
        match self.get(request) {
            Ok(answer) => Ok(parse(&answer)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn links(&self) -> io::Result<Vec<Link>> {
        let answers = self.dump(|| ifinfo(RTM_GETLINK, 0, 0))?;
        Ok(answers.iter().filter_map(|answer| parse(answer)).collect())
    }

    /// `AlreadyExists` when the name is taken.
    pub fn add_link(&self, name: &str, kind: LinkKind<'_>, mtu: Option<u32>, mac: Option<[u8; 6]>) -> io::Result<()> {
        let mut request = ifinfo(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, 0).attr_str(IFLA_IFNAME, name);
        if let Some(mtu) = mtu.filter(|mtu| *mtu > 0) {
            request = request.attr_u32(IFLA_MTU, mtu);
        }
        if let Some(mac) = mac {
            request = request.attr(IFLA_ADDRESS, &mac);
        }
        let request = request.nest(IFLA_LINKINFO, |info| match kind {
            LinkKind::Bridge { vlan_filtering } => {
                let info = info.attr(IFLA_INFO_KIND, b"bridge");
                match vlan_filtering {
                    true => info.nest(IFLA_INFO_DATA, |data| data.attr(IFLA_BR_VLAN_FILTERING, &[1])),
                    false => info,
                }
            }
            LinkKind::Veth { peer, peer_netns, peer_mtu } => {
                info.attr(IFLA_INFO_KIND, b"veth").nest(IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |mut data| {
                        data = data.body(&[0; 16]).attr_str(IFLA_IFNAME, peer);
                        if let Some(mtu) = peer_mtu.filter(|mtu| *mtu > 0) {
                            data = data.attr_u32(IFLA_MTU, mtu);
                        }
                        match peer_netns {
                            Some(netns) => data.attr_u32(IFLA_NET_NS_FD, netns.as_raw_fd() as u32),
                            None => data,
                        }
                    })
                })
            }
            LinkKind::Vxlan { vni, port, local } => {
                info.attr(IFLA_INFO_KIND, b"vxlan").nest(IFLA_INFO_DATA, |data| {
                    data.attr_u32(IFLA_VXLAN_ID, vni)
                        .attr_ip(if local.is_ipv6() { IFLA_VXLAN_LOCAL6 } else { IFLA_VXLAN_LOCAL }, local)
                        // Every peer is known from the API: nothing to learn, nothing to flood.
                        .attr(IFLA_VXLAN_LEARNING, &[0])
                        .attr(IFLA_VXLAN_PORT, &port.to_be_bytes())
                })
            }
            LinkKind::Ifb => info.attr(IFLA_INFO_KIND, b"ifb"),
            LinkKind::Dummy => info.attr(IFLA_INFO_KIND, b"dummy"),
            LinkKind::WireGuard => info.attr(IFLA_INFO_KIND, b"wireguard"),
        });
        self.change(request)
    }

    /// The link of this name that carries nothing and is there to hold addresses; made if it is not there.
    pub fn ensure_holder(&self, name: &str) -> io::Result<Link> {
        if self.link(name)?.is_none() {
            match self.add_link(name, LinkKind::Dummy, None, None) {
                // A kernel without such links has bridges, which pods need anyway: one without ports is as good.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    self.add_link(name, LinkKind::Bridge { vlan_filtering: false }, None, None)?;
                }
                result => result?,
            }
        }
        self.link(name)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Quiet when it is already gone.
    pub fn del_link(&self, index: u32) -> io::Result<()> {
        match self.change(ifinfo(RTM_DELLINK, 0, index)) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            result => result,
        }
    }

    pub fn set_up(&self, index: u32) -> io::Result<()> {
        self.set_flags(index, IFF_UP, IFF_UP)
    }

    pub fn set_down(&self, index: u32) -> io::Result<()> {
        self.set_flags(index, 0, IFF_UP)
    }

    pub fn set_promisc(&self, index: u32, on: bool) -> io::Result<()> {
        self.set_flags(index, if on { IFF_PROMISC } else { 0 }, IFF_PROMISC)
    }

    pub fn set_allmulti(&self, index: u32, on: bool) -> io::Result<()> {
        self.set_flags(index, if on { IFF_ALLMULTI } else { 0 }, IFF_ALLMULTI)
    }

    fn set_flags(&self, index: u32, flags: u32, change: u32) -> io::Result<()> {
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        body[12..16].copy_from_slice(&change.to_ne_bytes());
        self.change(Request::new(RTM_NEWLINK, 0).body(&body))
    }

    pub fn set_master(&self, index: u32, master: u32) -> io::Result<()> {
        self.change(ifinfo(RTM_SETLINK, 0, index).attr_u32(IFLA_MASTER, master))
    }

    pub fn set_mac(&self, index: u32, mac: [u8; 6]) -> io::Result<()> {
        self.change(ifinfo(RTM_SETLINK, 0, index).attr(IFLA_ADDRESS, &mac))
    }

    pub fn set_mtu(&self, index: u32, mtu: u32) -> io::Result<()> {
        self.change(ifinfo(RTM_SETLINK, 0, index).attr_u32(IFLA_MTU, mtu))
    }

    pub fn set_tx_queue(&self, index: u32, length: u32) -> io::Result<()> {
        self.change(ifinfo(RTM_SETLINK, 0, index).attr_u32(IFLA_TXQLEN, length))
    }

    /// Lets a bridge port send a frame back where it came from: a pod reaching itself through its service.
    pub fn set_hairpin(&self, port: u32, on: bool) -> io::Result<()> {
        self.set_port(port, IFLA_BRPORT_MODE, on)
    }

    pub fn set_isolated(&self, port: u32, on: bool) -> io::Result<()> {
        self.set_port(port, IFLA_BRPORT_ISOLATED, on)
    }

    /// Has a bridge learn nothing from frames to the addresses of bridges themselves (01:80:c2:00:00:0x), which it takes in before
    /// any packet rule sees them. Kernels before 5.0 do not know this, and learn.
    pub fn set_no_link_local_learning(&self, bridge: u32) -> io::Result<()> {
        // `struct br_boolopt_multi`: values, and which of them are meant.
        let options = [BR_BOOLOPT_NO_LL_LEARN.to_ne_bytes(), BR_BOOLOPT_NO_LL_LEARN.to_ne_bytes()].concat();
        self.change(ifinfo(RTM_NEWLINK, 0, bridge).nest(IFLA_LINKINFO, |info| {
            let info = info.attr(IFLA_INFO_KIND, b"bridge");
            info.nest(IFLA_INFO_DATA, |data| data.attr(IFLA_BR_MULTI_BOOLOPT, &options))
        }))
    }

    fn set_port(&self, port: u32, attr: u16, on: bool) -> io::Result<()> {
        let request = bridge_info(RTM_SETLINK, port);
        self.change(request.nest(IFLA_PROTINFO, |info| info.attr(attr, &[u8::from(on)])))
    }

    /// Adds a VLAN to a bridge port; `native` makes it the port's untagged one.
    pub fn add_port_vlan(&self, port: u32, vlan: u16, native: bool) -> io::Result<()> {
        let flags = if native { BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED } else { 0 };
        self.change(port_vlan(RTM_SETLINK, port, vlan, flags))
    }

    pub fn del_port_vlan(&self, port: u32, vlan: u16) -> io::Result<()> {
        self.change(port_vlan(RTM_DELLINK, port, vlan, 0))
    }
}

fn ifinfo(kind: u16, flags: u16, index: u32) -> Request {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let request = Request::new(kind, flags).body(&body);
    // Leave statistics out of answers: they are most of the bytes.
    if kind == RTM_GETLINK { request.attr_u32(IFLA_EXT_MASK, 1 << 3) } else { request }
}

fn bridge_info(kind: u16, index: u32) -> Request {
    let mut body = [0; 16];
    body[0] = libc::AF_BRIDGE as u8;
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    Request::new(kind, 0).body(&body)
}

fn port_vlan(kind: u16, index: u32, vlan: u16, flags: u16) -> Request {
    let mut info = [0; 4];
    info[0..2].copy_from_slice(&flags.to_ne_bytes());
    info[2..4].copy_from_slice(&vlan.to_ne_bytes());
    bridge_info(kind, index).nest(IFLA_AF_SPEC, |spec| spec.attr(IFLA_BRIDGE_VLAN_INFO, &info))
}

pub(crate) fn parse(answer: &[u8]) -> Option<Link> {
    let mut link = Link { index: read_u32(answer, 4)?, flags: read_u32(answer, 8)?, ..Link::default() };
    for (kind, value) in attributes(answer.get(16..)?) {
        match kind {
            IFLA_IFNAME => link.name = read_string(value),
            IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            IFLA_MTU => link.mtu = read_u32(value, 0)?,
            IFLA_LINK => link.peer = read_u32(value, 0),
            IFLA_MASTER => link.master = read_u32(value, 0),
            IFLA_TXQLEN => link.tx_queue = read_u32(value, 0)?,
            IFLA_OPERSTATE => link.is_operational = value.first() == Some(&OPER_UP),
            IFLA_PROMISCUITY => link.promiscuity = read_u32(value, 0)?,
            IFLA_ALLMULTI => link.allmulti = read_u32(value, 0)? > 0,
            IFLA_LINKINFO => {
                let info = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                link.kind = info.map(|(_, value)| read_string(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    link.allmulti |= link.flags & IFF_ALLMULTI != 0;
    Some(link)
}

/// What the kernel takes for a name: 1 to 15 bytes, no slash, colon or blank, not a directory entry.
pub fn is_valid_ifname(name: &str) -> bool {
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && !matches!(name, "." | "..")
        && !name.bytes().any(|b| b == b'/' || b == b':' || b.is_ascii_whitespace() || b == 0)
}

/// `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    let parts: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let parts: Vec<u8> = text.split([':', '-']).map(|part| u8::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names() {
        for (name, valid) in
            [("eth0", true), ("", false), ("..", false), ("a/b", false), ("a b", false), ("sixteen-letters!", false)]
        {
            assert_eq!(is_valid_ifname(name), valid, "{name:?}");
        }
    }

    #[test]
    fn macs() {
        assert_eq!(parse_mac("00:11:22:aa:bb:ff"), Some([0, 0x11, 0x22, 0xaa, 0xbb, 0xff]));
        for text in ["", "00:11:22:33:44", "zz:11:22:33:44:55", "00:11:22:33:44:55:66"] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
