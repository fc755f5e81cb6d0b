//! A device that encrypts: the kernel's where it has WireGuard, else a thread of this process behind a TUN device.
//!
//! The kernel's goes on while this process is away. Of the other the link stays, with its routes, so that meanwhile what would
//! have been encrypted is dropped.

mod kernel;
mod tun;
mod user_space;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use api::cidr::Cidr;
use netlink::wireguard::WireGuard;
use netlink::{Link, Socket};

use crate::{LINKS, Peer, PrivateKey, PublicKey};

/// Keeps sessions alive and tells early of those that are dead.
const KEEPALIVE: u16 = 25;

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("this kernel has no WireGuard (CONFIG_WIREGUARD), and {path} cannot be opened in its place")]
    NotSupported { path: &'static str, source: io::Error },
    #[error("the link {name} is there and is a {kind}: remove it or rename it")]
    NameTaken { name: &'static str, kind: String },
    #[error("the link {0} vanished as it was made")]
    Vanished(&'static str),
    #[error("{what} of {link}")]
    Kernel { link: &'static str, what: &'static str, source: io::Error },
    #[error("UDP port {port} of {link}")]
    Start { link: &'static str, port: u16, source: gotatun::device::Error },
    #[error("the thread of {0} has ended")]
    Ended(&'static str),
}

/// Who encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Kernel,
    UserSpace,
}

impl Kind {
    /// Of links of this kind, as the kernel calls it.
    fn of_link(self) -> &'static str {
        match self {
            Self::Kernel => "wireguard",
            Self::UserSpace => "tun",
        }
    }
}

/// How a peer fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// None before the first handshake.
    pub handshake_age: Option<Duration>,
    pub received: u64,
    pub sent: u64,
}

/// Who encrypts on this machine, or why nobody can. Blocking, in the network namespace of the calling thread.
pub fn support() -> Result<Kind, DeviceError> {
    let failed = |source| DeviceError::Kernel { link: LINKS[0], what: "asking the kernel for WireGuard", source };
    if WireGuard::open().map_err(failed)?.is_some() {
        return Ok(Kind::Kernel);
    }
    tun::open().map_err(|source| DeviceError::NotSupported { path: tun::PATH, source })?;
    Ok(Kind::UserSpace)
}

/// Who encrypts here at present, by the links that are there.
pub fn present() -> Result<Option<Kind>, DeviceError> {
    let socket = Socket::open().map_err(|source| DeviceError::Kernel { link: LINKS[0], what: "netlink", source })?;
    for name in LINKS {
        let link = find(&socket, name)?;
        let of_link = |kind: &Kind| link.as_ref().is_some_and(|link| link.kind == kind.of_link());
        if let Some(kind) = [Kind::Kernel, Kind::UserSpace].into_iter().find(of_link) {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}

/// What a device is to be.
struct Wanted<'a> {
    name: &'static str,
    key: &'a PrivateKey,
    port: u16,
    mtu: u32,
    addresses: &'a [Cidr],
}

pub enum Device {
    Kernel(kernel::Device),
    UserSpace(user_space::Device),
}

impl Device {
    /// Makes the device of a place, or takes on the one that is there. Blocking, as are all calls here.
    pub fn open(
        kind: Kind,
        place: usize,
        key: &PrivateKey,
        port: u16,
        mtu: u32,
        addresses: &[Cidr],
    ) -> Result<Self, DeviceError> {
        let name = LINKS[place];
        let socket = Socket::open().map_err(|source| DeviceError::Kernel { link: name, what: "netlink", source })?;
        if let Some(link) = find(&socket, name)? {
            let known = [Kind::Kernel, Kind::UserSpace].iter().any(|kind| kind.of_link() == link.kind);
            match known {
                // Of an earlier kernel, which had no WireGuard.
                true if link.kind != kind.of_link() => remove(&socket, name)?,
                true => {}
                false => return Err(DeviceError::NameTaken { name, kind: link.kind }),
            }
        }
        let wanted = Wanted { name, key, port, mtu, addresses };
        Ok(match kind {
            Kind::Kernel => Self::Kernel(kernel::Device::open(&socket, &wanted)?),
            Kind::UserSpace => Self::UserSpace(user_space::Device::open(&socket, &wanted)?),
        })
    }

    /// Of the link.
    pub fn index(&self) -> u32 {
        match self {
            Self::Kernel(device) => device.index,
            Self::UserSpace(device) => device.index,
        }
    }

    /// Whether its link is still there and switched on: nobody tells a process that its TUN device is gone.
    pub fn is_there(&self, place: usize) -> Result<bool, DeviceError> {
        let name = LINKS[place];
        let socket = Socket::open().map_err(|source| DeviceError::Kernel { link: name, what: "netlink", source })?;
        Ok(find(&socket, name)?.is_some_and(|link| link.index == self.index() && link.is_up()))
    }

    /// Makes these its peers. Sessions of those that stay go on.
    pub fn set_peers(&mut self, peers: &[Peer]) -> Result<(), DeviceError> {
        match self {
            Self::Kernel(device) => device.set_peers(peers),
            Self::UserSpace(device) => device.set_peers(peers),
        }
    }

    pub fn state(&self) -> Result<BTreeMap<PublicKey, PeerState>, DeviceError> {
        match self {
            Self::Kernel(device) => device.state(),
            Self::UserSpace(device) => device.state(),
        }
    }
}

fn find(socket: &Socket, name: &'static str) -> Result<Option<Link>, DeviceError> {
    socket.link(name).map_err(|source| DeviceError::Kernel { link: name, what: "looking for the link", source })
}

/// Removes a link of a device; quiet when it is not there. A link of another kind stays.
pub(crate) fn remove(socket: &Socket, name: &'static str) -> Result<(), DeviceError> {
    let ours = |link: &Link| [Kind::Kernel, Kind::UserSpace].iter().any(|kind| kind.of_link() == link.kind);
    match find(socket, name)?.filter(ours) {
        Some(link) => socket.del_link(link.index).map_err(|source| DeviceError::Kernel {
            link: name,
            what: "removing the link",
            source,
        }),
        None => Ok(()),
    }
}

/// Gives a link its size and addresses and switches it on; what is so already stays as it is.
fn complete(socket: &Socket, link: &Link, wanted: &Wanted<'_>) -> Result<(), DeviceError> {
    let Wanted { name, mtu, addresses, .. } = *wanted;
    let failed = |what| move |source| DeviceError::Kernel { link: name, what, source };
    if link.mtu != mtu {
        socket.set_mtu(link.index, mtu).map_err(failed("setting the MTU"))?;
    }
    // Answers may come by the other device while keys are exchanged. A kernel that forbids to say so is loose already, or has no
    // second way.
    if let Err(error) = cni::netns::set_sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "2") {
        tracing::debug!(%error, "reverse path filter");
    }
    let held = socket.addresses_of(link.index).map_err(failed("reading the addresses"))?;
    for address in addresses.iter().filter(|address| !held.iter().any(|held| held.cidr == **address)) {
        socket.add_own_address(link.index, *address).map_err(failed("adding an address"))?;
    }
    // Of a range that this node had before: it may be another's by now. Those that the kernel made itself are of a narrower scope.
    for old in held.iter().filter(|held| held.scope == 0 && !addresses.contains(&held.cidr)) {
        socket.del_address(link.index, old.cidr).map_err(failed("removing an address"))?;
    }
    socket.set_up(link.index).map_err(failed("switching on"))
}
