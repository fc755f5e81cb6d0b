//! WireGuard in a thread of this process, for kernels without it.
//!
//! Protocol, sessions and timers are gotatun's; packets come and go through a TUN device. One thread has all of a device: its
//! sockets are of the namespace in which it was made, and nothing else of the process waits for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;

use gotatun::device::DeviceBuilder;
use gotatun::packet::{Ip, Packet, PacketBufPool};
use gotatun::tun::{IpRecv, IpSend, MtuWatcher};
use ipnetwork::IpNetwork;
use netlink::Socket;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::{DeviceError, KEEPALIVE, PeerState, Wanted, complete, find, tun};
use crate::{Peer, PrivateKey, PublicKey};

/// Buffers of packets have 4096 bytes, headers included: larger packets are broken up before.
const MAX_MTU: u32 = 4000;
/// Read in one turn; others get a turn after so many.
const BATCH: usize = 64;
/// Requests to the thread; whoever makes one waits for its answer.
const REQUESTS: usize = 4;

type Answer<T> = oneshot::Sender<T>;
type State = BTreeMap<PublicKey, PeerState>;

enum Request {
    SetPeers(Vec<Peer>, Answer<()>),
    State(Answer<State>),
}

pub struct Device {
    pub(super) index: u32,
    name: &'static str,
    /// None once the thread is to end.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    pub(super) fn open(socket: &Socket, wanted: &Wanted<'_>) -> Result<Self, DeviceError> {
        let Wanted { name, port, .. } = *wanted;
        let failed = |what| move |source| DeviceError::Kernel { link: name, what, source };
        let wanted = Wanted { mtu: wanted.mtu.min(MAX_MTU), ..*wanted };
        let file = tun::attach(name).map_err(failed("making a TUN device"))?;
        let link = find(socket, name)?.ok_or(DeviceError::Vanished(name))?;
        complete(socket, &link, &wanted)?;
        let (requests, received) = mpsc::channel(REQUESTS);
        let (started, has_started) = std_mpsc::sync_channel(1);
        let (key, mtu) = (wanted.key.clone(), wanted.mtu);
        let serve = move || serve(name, file, &key, port, mtu, received, &started);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve);
        let thread = thread.map_err(failed("starting a thread"))?;
        let device = Self { index: link.index, name, requests: Some(requests), thread: Some(thread) };
        has_started.recv().map_err(|_| DeviceError::Ended(name))??;
        Ok(device)
    }

    pub(super) fn set_peers(&self, peers: &[Peer]) -> Result<(), DeviceError> {
        self.ask(|answer| Request::SetPeers(peers.to_vec(), answer))
    }

    pub(super) fn state(&self) -> Result<State, DeviceError> {
        self.ask(Request::State)
    }

    fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, DeviceError> {
        let ended = || DeviceError::Ended(self.name);
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.blocking_send(request(answer)).map_err(|_| ended())?;
        answered.blocking_recv().map_err(|_| ended())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(link = self.name, "the thread of a WireGuard device panicked");
        }
    }
}

/// The life of the thread.
fn serve(
    name: &'static str,
    file: File,
    key: &PrivateKey,
    port: u16,
    mtu: u32,
    requests: mpsc::Receiver<Request>,
    started: &std_mpsc::SyncSender<Result<(), DeviceError>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(name, file, key, port, mtu, requests, started)),
        Err(source) => Err(DeviceError::Kernel { link: name, what: "starting a runtime", source }),
    };
    if let Err(error) = outcome {
        // Whoever opened the device may have its answer already.
        let _ = started.send(Err(error));
    }
}

async fn run(
    name: &'static str,
    file: File,
    key: &PrivateKey,
    port: u16,
    mtu: u32,
    mut requests: mpsc::Receiver<Request>,
    started: &std_mpsc::SyncSender<Result<(), DeviceError>>,
) -> Result<(), DeviceError> {
    let file = tun::register(file).map_err(|source| DeviceError::Kernel { link: name, what: "reading", source })?;
    let tun = Tun { file: Arc::new(file), mtu: u16::try_from(mtu).unwrap_or(u16::MAX) };
    let failed = |source| DeviceError::Start { link: name, port, source };
    let builder = DeviceBuilder::new().with_default_udp().with_ip(tun);
    let mut device = builder.with_private_key(key.secret()).with_listen_port(port).build().await.map_err(failed)?;
    // This opens the port, which a device without peers would not.
    device.clear_peers().await.map_err(failed)?;
    let _ = started.send(Ok(()));
    let mut peers: BTreeMap<PublicKey, Peer> = BTreeMap::new();
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            () = device.wait() => {
                tracing::warn!(link = name, "the WireGuard device has ended");
                None
            }
        };
        match request {
            Some(Request::SetPeers(wanted, answer)) => {
                let gone: Vec<PublicKey> =
                    peers.keys().filter(|key| !wanted.iter().any(|peer| peer.key == **key)).copied().collect();
                for key in gone {
                    device.remove_peer(&key.of_peer()).await.map_err(failed)?;
                    peers.remove(&key);
                }
                for peer in wanted {
                    if peers.get(&peer.key) != Some(&peer) {
                        let setting = setting(&peer);
                        device.add_peer(setting.clone()).await.map_err(failed)?;
                        // Keepalives that are switched on later begin at once, and with them a handshake.
                        let mut setting = setting;
                        setting.keepalive = Some(KEEPALIVE);
                        device.update_peer(setting).await.map_err(failed)?;
                        peers.insert(peer.key, peer);
                    }
                }
                let _ = answer.send(());
            }
            Some(Request::State(answer)) => {
                let state = device.peers().await.into_iter().map(|known| {
                    let state = PeerState {
                        handshake_age: known.stats.last_handshake,
                        received: known.stats.rx_bytes as u64,
                        sent: known.stats.tx_bytes as u64,
                    };
                    (PublicKey(known.peer.public_key.to_bytes()), state)
                });
                let _ = answer.send(state.collect());
            }
            None => break,
        }
    }
    device.stop().await;
    Ok(())
}

fn setting(peer: &Peer) -> gotatun::device::Peer {
    let ranges = peer.allowed.iter().filter_map(|range| IpNetwork::new(range.addr, range.prefix).ok());
    gotatun::device::Peer::new(peer.key.of_peer()).with_endpoint(peer.endpoint).with_allowed_ips(ranges)
}

#[derive(Clone)]
struct Tun {
    file: Arc<AsyncFd<File>>,
    mtu: u16,
}

impl IpSend for Tun {
    async fn send(&mut self, packet: Packet<Ip>) -> io::Result<()> {
        let packet = packet.into_bytes();
        loop {
            let mut ready = self.file.writable().await?;
            match ready.try_io(|file| file.get_ref().write(&packet)) {
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EBADFD) => return Err(error),
                // What the kernel does not take, because the link is down or the packet is none, is lost as any packet may be.
                Ok(_) => return Ok(()),
                Err(_would_block) => {}
            }
        }
    }
}

impl IpRecv for Tun {
    async fn recv<'a>(
        &'a mut self,
        pool: &mut PacketBufPool,
    ) -> io::Result<impl Iterator<Item = Packet<Ip>> + Send + 'a> {
        loop {
            let mut ready = self.file.readable().await?;
            let mut packets = Vec::new();
            while packets.len() < BATCH {
                let mut packet = pool.get();
                match ready.try_io(|file| file.get_ref().read(&mut packet)) {
                    Ok(Ok(length)) => {
                        packet.truncate(length);
                        packets.extend(packet.try_into_ip().ok());
                    }
                    // It is there again when these are gone.
                    Ok(Err(_)) if !packets.is_empty() => break,
                    // A link that was switched off or removed: gotatun goes on reading after errors that it takes for passing ones.
                    Ok(Err(error)) => return Err(io::Error::new(io::ErrorKind::BrokenPipe, error)),
                    Err(_would_block) => break,
                }
            }
            if !packets.is_empty() {
                return Ok(packets.into_iter());
            }
        }
    }

    fn mtu(&self) -> MtuWatcher {
        MtuWatcher::new(self.mtu)
    }
}
