//! Keeps the traffic of pods between nodes encrypted: this node's keys, the devices, their peers and the routes into them.
//!
//! Flow: the number of the present generation of keys (`wireguard_keys`) -> a private key for it, in a file -> its public half in an
//! annotation of this Node -> the annotations of all Nodes -> `wireguard::plan` -> `wireguard::Mesh`. Keys of the generation
//! before go when every node that is there has been reached by the new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::cidr::Cidr;
use api::sort::{CompactCollect as _, CompactSort as _};
use client::metrics::{Kind, Metrics};
use client::{EventRecorder, Informer, InformerFactory, ListParams, Patch};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wireguard::{Announcement, Mesh, Outcome, PrivateKey, PublicKey, Unreachable};

use super::parts::Clients;
use super::routes::peer;
use crate::node_network;
use crate::options::Options;
use crate::pki::{private_dir, write_private};
use crate::settings::Settings;
use crate::turns::Turns;
use crate::wireguard_keys::{self, Generation};

/// Between looks at handshakes and at devices that may have vanished; shorter while keys are exchanged.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const EXCHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Keys that nobody needs are kept for so long: others may notice a little later.
const RETIRE_AFTER: Duration = Duration::from_secs(60);
/// Where the node's address is on no link that is known.
const USUAL_MTU: u32 = 1500;

const ENDING: &str = ".key";

#[derive(Clone)]
pub(super) struct Config {
    pub(super) clients: Clients,
    /// The name of this node.
    pub(super) node: String,
    pub(super) keys_dir: PathBuf,
    pub(super) devices: wireguard::Settings,
    pub(super) metrics: Metrics,
}

/// Where a node has its private keys.
pub(super) fn keys_dir(options: &Options) -> PathBuf {
    options.data_dir.join("wireguard")
}

/// If the cluster encrypts, closes every way that is not encrypted and returns the settings of the devices, which have no addresses yet.
/// An error says why this machine cannot be a node of such a cluster.
pub(super) fn prepare(settings: &Settings) -> Result<Option<wireguard::Settings>> {
    let Some(encryption) = settings.cluster.encryption else {
        wireguard::unguard().context("opening what encryption had closed")?;
        wireguard::remove_links()?;
        return Ok(None);
    };
    let pods = node_network::ranges(&settings.cluster.cluster_cidr)?;
    wireguard::guard(&pods, node_network::BRIDGE).context("closing what is not encrypted")?;
    cni::routes::remove_plain().context("closing routes that are not encrypted")?;
    // Only now: also where nothing can be encrypted, pods from before send nothing in plain text.
    let kind = wireguard::support().context("traffic between nodes cannot be encrypted on this machine (--encrypt)")?;
    let underlay = node_network::underlay_mtu(settings)?.unwrap_or(USUAL_MTU);
    let mtu = wireguard::mtu(underlay, [settings.address].into_iter().chain(settings.second_address));
    Ok(Some(wireguard::Settings { kind, port: encryption.port, mtu, addresses: Vec::new() }))
}

/// Of the devices: the first of each of the node's ranges, as the other end of a tunnel has it.
pub(super) fn addresses(ranges: &[Cidr]) -> Vec<Cidr> {
    ranges.iter().map(|range| Cidr::host(range.network().addr)).collect()
}

/// Runs until `stop`. Links, routes and rules stay behind: the kernel's devices go on, and what needs this process is closed meanwhile.
pub(super) async fn run(config: Config, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(config.clients.proxy.clone());
    let nodes: Informer<Node> = informers.informer();
    let generations: Informer<ConfigMap> = informers
        .namespaced(wireguard_keys::NAMESPACE, ListParams::fields(format!("metadata.name={}", wireguard_keys::NAME)));
    let (changed, changes) = watch::channel(());
    let generation_changed = changed.clone();
    nodes.subscribe(move |_| changed.send_replace(()));
    generations.subscribe(move |_| generation_changed.send_replace(()));
    informers.start(stop.child_token());
    let mut own = Own {
        keys: load(&config.keys_dir)?,
        dir: config.keys_dir.clone(),
        unneeded_since: None,
        mesh: Some(Mesh::new(config.devices.clone())),
    };
    // Nodes first: a generation that is not there yet holds up no node that has keys.
    tokio::select! {
        () = nodes.synced() => {}
        () = stop.cancelled() => return Ok(()),
    }
    let events = EventRecorder::new(config.clients.proxy.clone(), "cox-wireguard", &config.node);
    let mut reported = BTreeSet::new();
    let mut turns = Turns::new(changes, stop);
    loop {
        turns.begin();
        let present = generations.list().first().map(|map| Generation::read(map)).transpose();
        let all = nodes.list();
        let turn = async {
            // Neither a number that cannot be followed nor a server that does not answer is a reason to leave devices and routes as they
            // are.
            let followed = match present {
                Ok(Some(present)) => own.follow(present.number),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            let announced = announce(&config, &all, own.public()).await;
            let outcome = own.bring_in_line(&config, &all).await?;
            followed.and(announced).map(|()| outcome)
        };
        let failed = match turn.await {
            Ok(outcome) => {
                report(&config.metrics, &outcome);
                record_events(&events, &config.node, &all, &outcome, &mut reported);
                own.retire(&outcome, Instant::now())?;
                false
            }
            Err(error) => {
                tracing::warn!("encryption between nodes: {error:#}");
                true
            }
        };
        let interval = if own.keys.len() > 1 { EXCHANGE_INTERVAL } else { LOOK_INTERVAL };
        if !turns.next_within(interval, failed).await? {
            return Ok(());
        }
    }
}

/// What this node has.
struct Own {
    keys: BTreeMap<u64, PrivateKey>,
    dir: PathBuf,
    /// Since when nobody has needed the older key.
    unneeded_since: Option<Instant>,
    /// None while a thread has it.
    mesh: Option<Mesh>,
}

impl Own {
    /// Makes a key for the present generation, if there is none. It is in its file before anybody hears of it.
    fn follow(&mut self, present: u64) -> Result<()> {
        if self.keys.keys().next_back().is_some_and(|newest| *newest >= present) {
            return Ok(());
        }
        let key = PrivateKey::generate().context("the system has no random bytes")?;
        private_dir(&self.dir)?;
        write_private(&file(&self.dir, present), key.to_text().as_bytes())?;
        self.keys.insert(present, key);
        self.unneeded_since = None;
        let superfluous = superfluous(self.keys.keys().copied(), present);
        // Out of use first: others read no announcement of more keys than there are devices, also if a file cannot be removed.
        self.keys.retain(|generation, _| !superfluous.contains(generation));
        for old in superfluous {
            self.forget(old)?;
        }
        tracing::info!(generation = present, "a new WireGuard key");
        Ok(())
    }

    fn forget(&mut self, generation: u64) -> Result<()> {
        let path = file(&self.dir, generation);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
        self.keys.remove(&generation);
        Ok(())
    }

    fn public(&self) -> BTreeMap<u64, PublicKey> {
        self.keys.iter().map(|(generation, key)| (*generation, key.public())).compact_collect()
    }

    async fn bring_in_line(&mut self, config: &Config, nodes: &[Arc<Node>]) -> Result<Outcome> {
        let mut mesh = self.mesh.take().unwrap_or_else(|| Mesh::new(config.devices.clone()));
        let plan = wireguard::plan(&config.node, &self.public(), &others(nodes));
        let keys = self.keys.clone();
        let work = move || {
            let outcome = mesh.apply(&keys, &plan);
            (mesh, outcome)
        };
        let (mesh, outcome) = tokio::task::spawn_blocking(work).await?;
        self.mesh = Some(mesh);
        Ok(outcome?)
    }

    /// Forgets the older key once nobody has needed it for a while.
    fn retire(&mut self, outcome: &Outcome, now: Instant) -> Result<()> {
        if self.keys.len() < 2 || outcome.needs_older {
            self.unneeded_since = None;
            return Ok(());
        }
        let since = *self.unneeded_since.get_or_insert(now);
        if now.duration_since(since) < RETIRE_AFTER {
            return Ok(());
        }
        self.unneeded_since = None;
        match self.keys.keys().next().copied() {
            Some(old) => {
                tracing::info!(generation = old, "an old WireGuard key is gone");
                self.forget(old)
            }
            None => Ok(()),
        }
    }
}

/// Says the public keys in this Node, unless it says so already.
async fn announce(config: &Config, nodes: &[Arc<Node>], keys: BTreeMap<u64, PublicKey>) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let text = Announcement { port: config.devices.port, keys }.to_text();
    let own = nodes.iter().find(|node| node.metadata.name.as_ref() == Some(&config.node));
    if own.and_then(|node| announced(node)) == Some(&text) {
        return Ok(());
    }
    let patch = json!({"metadata": {"annotations": {wireguard::ANNOTATION: text}}});
    let said = config.clients.kubelet.all::<Node>().patch(&config.node, &Patch::merge(patch)).await;
    said.context("publishing the key of this node").map(drop)
}

/// Generations that make room for a new one: all but the last before it, and that too if it has the same device.
fn superfluous(all: impl Iterator<Item = u64>, new: u64) -> Vec<u64> {
    let mut older: Vec<u64> = all.filter(|generation| *generation < new).collect();
    older.compact_sort();
    if older.last().is_some_and(|last| wireguard::place(*last) != wireguard::place(new)) {
        older.pop();
    }
    older
}

fn file(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{generation}{ENDING}"))
}

/// The keys of an earlier start. One that cannot be read is not taken for one that is not there.
fn load(dir: &Path) -> Result<BTreeMap<u64, PrivateKey>> {
    let mut keys = BTreeMap::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(keys),
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
    };
    for entry in entries {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(generation) = name.strip_suffix(ENDING).and_then(|number| number.parse::<u64>().ok()) else {
            continue;
        };
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let key = text.parse::<PrivateKey>().map_err(|error| anyhow!("{}: {error}", path.display()))?;
        keys.insert(generation, key);
    }
    // Whoever ended while keys were made or forgotten left more than there are devices.
    if let Some(newest) = keys.keys().next_back().copied() {
        for old in superfluous(keys.keys().copied(), newest) {
            keys.remove(&old);
        }
    }
    Ok(keys)
}

fn announced(node: &Node) -> Option<&String> {
    node.metadata.annotations.as_ref()?.get(wireguard::ANNOTATION)
}

/// Nodes as the plan knows them, those first that are there longer.
fn others(nodes: &[Arc<Node>]) -> Vec<wireguard::Node> {
    let mut nodes: Vec<&Arc<Node>> = nodes.iter().collect();
    let age = |node: &Node| (node.metadata.creation_timestamp.as_ref().map(|time| time.0), node.metadata.name.clone());
    nodes.compact_sort_by_cached_key(|node| age(node));
    let known = |node: &&Arc<Node>| {
        let peer = peer(node)?;
        let announcement = announced(node).and_then(|text| match text.parse::<Announcement>() {
            Ok(announcement) => Some(announcement),
            Err(error) => {
                tracing::warn!(node = %peer.name, %error, "what a node says of its keys");
                None
            }
        });
        Some(wireguard::Node { name: peer.name, address: peer.address, pod_cidrs: peer.pod_cidrs, announcement })
    };
    nodes.iter().filter_map(known).collect()
}

/// Says why pods of a node cannot be reached, once for each reason.
fn record_events(
    events: &EventRecorder,
    me: &str,
    nodes: &[Arc<Node>],
    outcome: &Outcome,
    reported: &mut BTreeSet<(String, Unreachable)>,
) {
    let closed: BTreeSet<(String, Unreachable)> =
        outcome.ways.iter().filter_map(|way| Some((way.node.clone(), way.generation.err()?))).compact_collect();
    for (name, why) in closed.difference(reported) {
        tracing::warn!(node = %name, %why, "pods of a node are unreachable");
        if let Some(node) = nodes.iter().find(|node| node.metadata.name.as_ref() == Some(name)) {
            let message = format!("pods of this node cannot be reached from node {me}: {why}");
            events.warning(&client::reference(&**node), "EncryptionKeyMissing", message);
        }
    }
    *reported = closed;
}

fn report(metrics: &Metrics, outcome: &Outcome) {
    let rows = |kind, name, help, value: fn(&wireguard::PeerState) -> Option<f64>| {
        metrics.set_rows(kind, name, help, |rows| {
            for peer in &outcome.peers {
                if let Some(value) = value(&peer.state) {
                    rows.add(&[("node", peer.node.as_str()), ("link", peer.link)], value);
                }
            }
        });
    };
    let age = |state: &wireguard::PeerState| state.handshake_age.map(|age| age.as_secs_f64());
    rows(Kind::Gauge, "cox_wireguard_handshake_age_seconds", "Time since the last handshake with a node", age);
    let received = |state: &wireguard::PeerState| Some(state.received as f64);
    rows(Kind::Counter, "cox_wireguard_received_bytes_total", "Bytes received from a node", received);
    let sent = |state: &wireguard::PeerState| Some(state.sent as f64);
    rows(Kind::Counter, "cox_wireguard_sent_bytes_total", "Bytes sent to a node", sent);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn own(dir: &Path) -> Own {
        Own { keys: load(dir).unwrap(), dir: dir.to_owned(), unneeded_since: None, mesh: None }
    }

    fn generations(own: &Own) -> Vec<u64> {
        own.keys.keys().copied().collect()
    }

    #[test]
    fn security_keys_are_for_their_owner_and_outlast_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("wireguard");
        let mut first = own(&dir);
        first.follow(1).unwrap();
        first.follow(1).unwrap();
        let mode = fs::metadata(dir.join("1.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
        assert_eq!(own(&dir).public(), first.public());
        // A number that is less than before is no reason to go back.
        first.follow(2).unwrap();
        first.follow(1).unwrap();
        assert_eq!(generations(&first), [1, 2]);
        // The third has the device of the first.
        first.follow(3).unwrap();
        assert_eq!((generations(&first), generations(&own(&dir))), (vec![2, 3], vec![2, 3]));
        // A node that was away for long begins anew.
        first.follow(9).unwrap();
        assert_eq!(generations(&first), [9]);
        fs::write(dir.join("10.key"), "damaged").unwrap();
        assert!(load(&dir).unwrap_err().to_string().contains("10.key"));
    }

    #[test]
    fn the_old_key_goes_when_nobody_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut own = own(dir.path());
        own.follow(1).unwrap();
        own.follow(2).unwrap();
        let outcome = |needs_older| Outcome { needs_older, ..Outcome::default() };
        let begin = Instant::now();
        for (seconds, needs_older, left) in [
            (0, true, 2),
            (100, false, 2),
            (130, true, 2),
            (140, false, 2),
            (190, false, 2),
            (200, false, 1),
            (300, false, 1),
        ] {
            own.retire(&outcome(needs_older), begin + Duration::from_secs(seconds)).unwrap();
            assert_eq!(own.keys.len(), left, "after {seconds} seconds");
        }
        assert_eq!(generations(&own), [2]);
        assert!(!dir.path().join("1.key").exists());
    }

    #[test]
    fn nodes_are_known_by_what_they_say() {
        let node = |name: &str, since: &str, annotation: &str| -> Arc<Node> {
            Arc::new(
                serde_json::from_value(json!({
                    "metadata": {"name": name, "creationTimestamp": since, "annotations": {wireguard::ANNOTATION: annotation}},
                    "spec": {"podCIDRs": ["10.42.1.0/24", "fd42:0:0:1::/64"]},
                    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]},
                }))
                .unwrap(),
            )
        };
        let key = PrivateKey::generate().unwrap().public();
        let said = Announcement { port: 7, keys: [(1, key)].into() };
        let nodes = [node("a", "2026-01-02T00:00:00Z", "nonsense"), node("b", "2026-01-01T00:00:00Z", &said.to_text())];
        let known = others(&nodes);
        let names: Vec<&str> = known.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["b", "a"], "the older one first");
        assert_eq!(known[0].announcement.as_ref(), Some(&said));
        assert_eq!((known[0].pod_cidrs.len(), known[1].announcement.is_some()), (2, false));
    }
}
