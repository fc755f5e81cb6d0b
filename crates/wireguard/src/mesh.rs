//! The devices of this node with their peers, and the routes into them.

use std::collections::BTreeMap;
use std::time::Duration;

use api::cidr::Cidr;
use api::sort::CompactCollect as _;
use netlink::Socket;

use crate::device::{Device, DeviceError, Kind, PeerState, remove};
use crate::plan::needs_older;
use crate::{LINKS, Plan, PrivateKey, PublicKey, Way, place};

#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("routes into the devices")]
    Routes(#[source] std::io::Error),
}

/// What stays the same while a node runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub kind: Kind,
    /// Of the first device.
    pub port: u16,
    pub mtu: u32,
    /// Of the devices: what this node itself sends to pods elsewhere comes from here, and answers find back.
    pub addresses: Vec<Cidr>,
}

/// How it is now.
#[derive(Debug, Default)]
pub struct Outcome {
    pub ways: Vec<Way>,
    pub peers: Vec<PeerReport>,
    /// Whether some node is still reached by keys before the newest.
    pub needs_older: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    pub node: String,
    pub link: &'static str,
    pub state: PeerState,
}

/// The devices that are open, each with the generation of its key.
pub struct Mesh {
    settings: Settings,
    open: [Option<(u64, Device)>; 2],
}

impl Mesh {
    pub fn new(settings: Settings) -> Self {
        Self { settings, open: [None, None] }
    }

    /// Brings everything in line. What fails is left out, with its routes, and told of at the end. Blocking, in the network
    /// namespace of the calling thread.
    pub fn apply(&mut self, keys: &BTreeMap<u64, PrivateKey>, plan: &Plan) -> Result<Outcome, MeshError> {
        let mut failure = None;
        let mut states: [Option<BTreeMap<PublicKey, PeerState>>; 2] = [None, None];
        let mut unused = Vec::new();
        for (at, state) in states.iter_mut().enumerate() {
            match keys.iter().find(|(generation, _)| place(**generation) == at) {
                Some((generation, key)) => match self.bring_up(*generation, key, plan) {
                    Ok(found) => *state = Some(found),
                    Err(error) => {
                        self.open[at] = None;
                        failure.get_or_insert(MeshError::Device(error));
                    }
                },
                None => {
                    self.open[at] = None;
                    unused.push(LINKS[at]);
                }
            }
        }
        let ages = states.each_ref().map(|state| state.as_ref().map(ages));
        let ways = plan.ways(&ages);
        let mut routes: Vec<(Cidr, u32)> = Vec::new();
        for way in &ways {
            let device = way.generation.ok().and_then(|generation| self.open[place(generation)].as_ref());
            routes.extend(
                device.iter().flat_map(|(_, device)| way.ranges.iter().map(move |range| (*range, device.index()))),
            );
        }
        cni::routes::program_devices(&routes).map_err(MeshError::Routes)?;
        // Only now: a link takes its routes along.
        remove_all(&unused)?;
        if let Some(error) = failure {
            return Err(error);
        }
        let newest = keys.keys().next_back().copied().unwrap_or_default();
        let reports = states.iter().zip(LINKS).flat_map(|(state, link)| {
            let peers = state.iter().flatten();
            peers.filter_map(move |(key, state)| {
                plan.node_of(key).map(|node| PeerReport { node: node.to_owned(), link, state: *state })
            })
        });
        Ok(Outcome { peers: reports.collect(), needs_older: needs_older(&ways, newest), ways })
    }

    fn bring_up(
        &mut self,
        generation: u64,
        key: &PrivateKey,
        plan: &Plan,
    ) -> Result<BTreeMap<PublicKey, PeerState>, DeviceError> {
        let at = place(generation);
        let is_good = match &self.open[at] {
            Some((known, device)) => *known == generation && device.is_there(at)?,
            None => true,
        };
        if !is_good {
            // It goes before another one takes its link and its port.
            self.open[at] = None;
        }
        let device = match &mut self.open[at] {
            Some((_, device)) => device,
            none => {
                let Settings { kind, port, mtu, addresses } = &self.settings;
                let port = port.saturating_add(at as u16);
                let device = Device::open(*kind, at, key, port, *mtu, addresses)?;
                &mut none.insert((generation, device)).1
            }
        };
        device.set_peers(&plan.peers[at])?;
        device.state()
    }
}

fn ages(state: &BTreeMap<PublicKey, PeerState>) -> BTreeMap<PublicKey, Duration> {
    state.iter().filter_map(|(key, state)| Some((*key, state.handshake_age?))).compact_collect()
}

/// Removes the devices' links and, with them, the routes into them.
pub fn remove_links() -> Result<(), MeshError> {
    remove_all(&LINKS)
}

fn remove_all(links: &[&'static str]) -> Result<(), MeshError> {
    if links.is_empty() {
        return Ok(());
    }
    let socket = Socket::open().map_err(MeshError::Routes)?;
    for link in links.iter().copied() {
        remove(&socket, link)?;
    }
    Ok(())
}
