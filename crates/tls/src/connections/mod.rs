//! The connections of a port: how many there may be, how long they may say nothing, and which makes room.
//!
//! Flow: a listener -> [`Connections::accept`] (a place, or the door) -> the server's TLS handshake within
//! [`Place::handshake`] -> [`Place::serve`], HTTP/1 or HTTP/2 until the client leaves, is idle or has to make room.
//!
//! A port has places in all and per address that clients come from. When they are taken, those make room that have
//! never sent a request, the oldest first, else the one that has been idle for longest; only when all are at work is
//! the newcomer turned away. So a flood of silent connections, even from the address of an honest client, costs that client
//! nothing but a moment. Watches, upgraded streams and those that pass through are work for as long as they last: nothing here ends them.

mod accepted;
mod serve;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::accepted::{Accepted, Detached};
pub use self::serve::{Answered, Stream, Work};
use crate::descriptors;

/// For the next piece of an answer that its client does not take.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// After a failure to accept, which the kernel ends (a descriptor is free again) without telling.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// A peer that is gone without a word is noticed after some minutes.
const KEEP_ALIVE: (u32, u32, u32) = (60, 15, 8);

/// How many connections a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub total: usize,
    pub per_address: usize,
}

impl Limits {
    /// One in `part` of the descriptors this process may have, but not more than `most`; half of them per address.
    pub fn share(part: usize, most: usize) -> Self {
        let total = (descriptors::limit() / part).clamp(16, most);
        Self { total, per_address: total / 2 }
    }
}

/// The places of one port.
pub struct Connections {
    limits: Limits,
    /// Bytes of HTTP/1 that one holds in each direction, if not as many as hyper would.
    buffer: Option<usize>,
    began: Instant,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    next: u64,
    taken: HashMap<u64, Arc<Use>>,
    /// How many of them each address has.
    by_address: HashMap<IpAddr, usize>,
}

/// What is known of one connection.
struct Use {
    address: IpAddr,
    /// Requests that are being answered, and one for good when the connection was upgraded.
    busy: AtomicUsize,
    /// Of these, how many have a piece ready that the client does not take, and when that last changed.
    offered: AtomicUsize,
    moved: AtomicU64,
    /// Whether a request was ever answered.
    served: AtomicBool,
    /// When it was last at work, in milliseconds since the port began.
    since: AtomicU64,
    /// It has to make room.
    evicted: Notify,
}

impl Use {
    /// Whether the server has something to do for it: a request to answer, or a client that takes what it is given.
    fn is_at_work(&self, now: u64) -> bool {
        let (busy, offered) = (self.busy.load(Ordering::Relaxed), self.offered.load(Ordering::Relaxed));
        busy > offered || (busy > 0 && now < self.stalled_at())
    }

    /// When a client has had long enough to take the next piece of its answer, in milliseconds since the port began.
    fn stalled_at(&self) -> u64 {
        self.moved.load(Ordering::Relaxed).saturating_add(STALL_TIMEOUT.as_millis() as u64)
    }
}

impl Connections {
    /// Raises the limit of descriptors as far as this process may: the limits of ports are meant to be the narrower ones.
    pub fn new(limits: impl FnOnce() -> Limits) -> Arc<Self> {
        Self::made(limits, None)
    }

    /// As [`Connections::new`], for a port whose clients are many and whose requests are small. `buffer` is what a connection of HTTP/1
    /// holds in each direction: the headers of a request, pieces of a body, and pieces of an answer that wait for the client.
    pub fn with_buffer(limits: impl FnOnce() -> Limits, buffer: usize) -> Arc<Self> {
        Self::made(limits, Some(buffer))
    }

    fn made(limits: impl FnOnce() -> Limits, buffer: Option<usize>) -> Arc<Self> {
        descriptors::raise();
        Arc::new(Self { limits: limits(), buffer, began: Instant::now(), places: Mutex::default() })
    }

    /// The next connection that has a place. Boxed: what an `async fn` does is compiled again by every crate that waits for it.
    pub fn accept<'a>(
        self: &'a Arc<Self>,
        listener: &'a TcpListener,
    ) -> Pin<Box<dyn Future<Output = (Accepted, SocketAddr)> + Send + 'a>> {
        Box::pin(self.next(listener))
    }

    async fn next(self: &Arc<Self>, listener: &TcpListener) -> (Accepted, SocketAddr) {
        loop {
            let (stream, from) = accept(listener, || self.make_room(None)).await;
            // The lowest free number is given out: one so high says that nearly all are taken, by whomever.
            if descriptors::is_reserved(stream.as_raw_fd()) {
                tracing::warn!(%from, "connection turned away: no descriptors left but those in reserve");
                drop(stream);
                self.make_room(None);
                continue;
            }
            match self.enter(from.ip()) {
                Some(place) => {
                    let _ = stream.set_nodelay(true);
                    keep_alive(&stream);
                    return (Accepted::new(stream, place), from);
                }
                None => tracing::debug!(%from, "connection turned away: all places are at work"),
            }
        }
    }

    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = household(address);
        let mut places = self.places.lock();
        let of_address = places.by_address.get(&address).copied().unwrap_or(0);
        let full = if of_address >= self.limits.per_address {
            Some(Some(address))
        } else if places.taken.len() >= self.limits.total {
            Some(None)
        } else {
            None
        };
        if let Some(whose) = full
            && places.make_room(whose, self.now()) == 0
        {
            return None;
        }
        let id = places.next;
        places.next += 1;
        let this = Arc::new(Use {
            address,
            busy: AtomicUsize::new(0),
            offered: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            served: AtomicBool::new(false),
            since: AtomicU64::new(self.now()),
            evicted: Notify::new(),
        });
        places.taken.insert(id, this.clone());
        *places.by_address.entry(address).or_default() += 1;
        Some(Place { connections: self.clone(), id, this })
    }

    fn make_room(&self, address: Option<IpAddr>) {
        self.places.lock().make_room(address, self.now());
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The next connection. A failure is logged and tried again after a moment: it says nothing about the listener.
pub async fn accept(listener: &TcpListener, failed: impl Fn()) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            // At a port of both families, one of version 4 comes in the clothes of version 6.
            Ok((stream, from)) => return (stream, SocketAddr::new(from.ip().to_canonical(), from.port())),
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                failed();
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

impl Places {
    /// Has idle connections end, of one address or of all, and says how many. Of those that never sent a request an eighth
    /// goes at a time, so that a flood does not have us look through all of them for each.
    fn make_room(&mut self, address: Option<IpAddr>, now: u64) -> usize {
        let mut strangers: Vec<(u64, u64)> = Vec::new();
        let mut longest: Option<(u64, u64)> = None;
        for (id, one) in &self.taken {
            if address.is_some_and(|address| address != one.address) || one.is_at_work(now) {
                continue;
            }
            let since = one.since.load(Ordering::Relaxed);
            match one.served.load(Ordering::Relaxed) {
                true => longest = Some(longest.map_or((since, *id), |other| other.min((since, *id)))),
                false => strangers.push((since, *id)),
            }
        }
        let leaving: Vec<u64> = match (strangers.is_empty(), longest) {
            (false, _) => {
                let part = strangers.len().div_ceil(8);
                strangers.select_nth_unstable(part - 1);
                strangers[..part].iter().map(|(_, id)| *id).collect()
            }
            (true, Some((_, id))) => vec![id],
            (true, None) => Vec::new(),
        };
        for id in &leaving {
            self.remove(*id).inspect(|one| one.evicted.notify_one());
        }
        leaving.len()
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Use>> {
        let one = self.taken.remove(&id)?;
        if let Some(count) = self.by_address.get_mut(&one.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&one.address);
            }
        }
        Some(one)
    }
}

/// Whose an address is: whoever has one of version 6 has all of its network.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) if address.is_loopback() => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
    }
}

fn keep_alive(stream: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};
    let (idle, interval, count) = KEEP_ALIVE;
    // Without it such a peer is noticed later.
    let _ = setsockopt(stream, sockopt::KeepAlive, &true)
        .and_then(|()| setsockopt(stream, sockopt::TcpKeepIdle, &idle))
        .and_then(|()| setsockopt(stream, sockopt::TcpKeepInterval, &interval))
        .and_then(|()| setsockopt(stream, sockopt::TcpKeepCount, &count));
}

/// The place of one connection; whoever holds its stream holds it.
pub struct Place {
    connections: Arc<Connections>,
    id: u64,
    this: Arc<Use>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.places.lock().remove(self.id);
    }
}
