//! Eviction: ends pods before the node runs out of memory, disk or processes, and pods that use more local storage
//! than they may.
//!
//! Flow: every ten seconds, observations -> `thresholds` (pure) -> node conditions; when something runs short, images
//! nobody uses and dead containers go first (disk), then one pod at a time, chosen by `rank` (pure). The node keeps
//! showing pressure for a while after it ended, so that pods do not come back at once. What pods have on disks takes as long
//! to find out as they have files, so memory and processes are watched beside it.

mod rank;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gc;
use crate::kubelet::Kubelet;
use crate::node::machine::{max_processes, running_processes};
use crate::node::memory;
use crate::state;
use crate::status::Ended;
use crate::thresholds::{self, Observations, Observed, Pressure, Signal, Threshold};
use crate::usage::{self, PodUsage};
use crate::volumes::blocking;
use crate::worker::Workers;

pub(crate) use rank::is_critical;

const MONITOR_INTERVAL: Duration = Duration::from_secs(10);
/// What a pod gets that is evicted at once.
const IMMEDIATE_GRACE: i64 = 1;

pub(crate) struct Eviction {
    kubelet: Arc<Kubelet>,
    workers: Arc<Workers>,
    changed: Arc<Notify>,
    thresholds: Vec<Threshold>,
}

/// What one of two loops looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    MemoryAndProcesses,
    Disks,
}

/// What one look leaves for the next.
#[derive(Default)]
struct Memory {
    /// Since when each threshold is met, by its place in the list.
    since: HashMap<usize, Instant>,
    /// When each kind of pressure was last seen: memory, disk, pids.
    last: [Option<Instant>; 3],
}

impl Eviction {
    pub(crate) fn new(kubelet: Arc<Kubelet>, workers: Arc<Workers>, changed: Arc<Notify>) -> anyhow::Result<Self> {
        let thresholds = thresholds::of(&kubelet.settings)?;
        Ok(Eviction { kubelet, workers, changed, thresholds })
    }

    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::join!(self.watch(Watched::MemoryAndProcesses, &stop), self.watch(Watched::Disks, &stop));
    }

    async fn watch(&self, watched: Watched, stop: &CancellationToken) {
        let mut ticks = tokio::time::interval(MONITOR_INTERVAL);
        let mut memory = Memory::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            self.look(watched, &mut memory).await;
        }
    }

    async fn look(&self, watched: Watched, memory: &mut Memory) {
        let seen = self.observe(watched).await;
        let now = Instant::now();
        let mut due: Vec<&Threshold> = Vec::new();
        for (index, threshold) in self.thresholds.iter().enumerate() {
            match threshold.is_met(&seen, memory.since.contains_key(&index)) {
                Some(true) => {}
                Some(false) => {
                    memory.since.remove(&index);
                    continue;
                }
                // Not seen this time: what was known of it stays, and nothing is done about it.
                None => continue,
            }
            let since = *memory.since.entry(index).or_insert(now);
            let shown = threshold.signal.pressure();
            for (last, is_short) in memory.last.iter_mut().zip([shown.memory, shown.disk, shown.pids]) {
                *last = if is_short { Some(now) } else { *last };
            }
            if threshold.grace.is_none_or(|grace| since.elapsed() >= grace) {
                due.push(threshold);
            }
        }
        self.show(watched, memory);
        if watched == Watched::Disks && self.evict_over_limit().await {
            return;
        }
        // Memory before all else: the order of signals is the order of urgency.
        due.compact_sort_by_key(|threshold| threshold.signal);
        let Some(threshold) = due.first() else { return };
        if threshold.signal.is_disk() {
            gc::collect_all(&self.kubelet).await;
            if threshold.is_met(&self.observe(watched).await, false) != Some(true) {
                return;
            }
        }
        self.evict_for(watched, threshold, &seen).await;
    }

    /// Lets the node's conditions follow.
    fn show(&self, watched: Watched, memory: &Memory) {
        let lingering = self.kubelet.settings.eviction_pressure_transition_period;
        let [memory, disk, pids] = memory.last.map(|last| last.is_some_and(|last| last.elapsed() < lingering));
        let mut shown = self.kubelet.pressure.lock();
        let before = *shown;
        *shown = match watched {
            Watched::MemoryAndProcesses => Pressure { memory, pids, ..before },
            Watched::Disks => Pressure { disk, ..before },
        };
        if *shown != before {
            self.changed.notify_one();
        }
    }

    async fn observe(&self, watched: Watched) -> Observations {
        let mut seen = Observations::new();
        if watched == Watched::MemoryAndProcesses {
            let cgroups = self.kubelet.cgroups.clone();
            let memory = blocking(move || Ok(memory::read(cgroups.as_ref()))).await.ok().flatten();
            seen.extend(memory.map(|memory| {
                let observed = Observed { available: memory.available, capacity: memory.capacity };
                (Signal::MemoryAvailable, observed)
            }));
            seen.extend(processes());
            return seen;
        }
        seen.extend(disk(&self.kubelet.settings.root_dir, Signal::NodefsAvailable, Signal::NodefsInodesFree));
        match self.kubelet.runtime.image_fs().await {
            Ok(info) => {
                if let Some(place) = info.image_filesystems.first().and_then(|fs| fs.fs_id.as_ref()) {
                    let place = Path::new(&place.mountpoint);
                    seen.extend(disk(place, Signal::ImagefsAvailable, Signal::ImagefsInodesFree));
                }
            }
            Err(error) => tracing::warn!(%error, "image file system not looked at"),
        }
        seen
    }

    /// What all containers use; none when the runtime does not say, and nobody is evicted by guesses.
    async fn stats(&self) -> Option<Vec<v1::ContainerStats>> {
        match self.kubelet.runtime.container_stats().await {
            Ok(stats) => Some(stats),
            Err(error) => {
                tracing::warn!(%error, "use of containers not known, no pod is evicted");
                None
            }
        }
    }

    async fn usage_of(&self, watched: Watched, pod: &Pod, stats: &[v1::ContainerStats]) -> Option<PodUsage> {
        if watched == Watched::MemoryAndProcesses {
            return Some(PodUsage { containers: usage::of_containers(pod, stats), ..PodUsage::default() });
        }
        let usage = usage::of_pod(&self.kubelet, pod, stats).await;
        usage.inspect_err(|error| tracing::warn!(pod = state::full_name(pod), %error, "use of a pod not known")).ok()
    }

    fn active_pods(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.workers.active_pods();
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// Ends pods that have passed their own limits on local storage; whether there was one.
    async fn evict_over_limit(&self) -> bool {
        let pods: Vec<Arc<Pod>> = self.active_pods().into_iter().filter(|pod| rank::has_limit(pod)).collect();
        if pods.is_empty() {
            return false;
        }
        let Some(stats) = self.stats().await else { return false };
        let mut any = false;
        for pod in pods {
            let Some(usage) = self.usage_of(Watched::Disks, &pod, &stats).await else { continue };
            if let Some(message) = rank::passed_limit(&pod, &usage).filter(|_| !is_critical(&pod)) {
                self.kubelet.runtime.metrics.evicted("ephemeralpodfs.limit");
                self.end(&pod, message, None, IMMEDIATE_GRACE);
                any = true;
            }
        }
        any
    }

    /// Ends the pod that fits best.
    async fn evict_for(&self, watched: Watched, threshold: &Threshold, seen: &Observations) {
        let Some(stats) = self.stats().await else { return };
        let mut pods: Vec<(Arc<Pod>, PodUsage)> = Vec::new();
        for pod in self.active_pods() {
            if let Some(usage) = self.usage_of(watched, &pod, &stats).await {
                pods.push((pod, usage));
            }
        }
        let signal = threshold.signal;
        let ranked = rank::rank(pods, signal);
        let Some((pod, usage)) = ranked.first() else { return };
        let observed = seen.get(&signal).copied().unwrap_or_default();
        let message = rank::message(pod, usage, signal, threshold.quantity(observed.capacity), observed);
        let grace = match threshold.grace {
            None => IMMEDIATE_GRACE,
            Some(_) => self.kubelet.settings.eviction_max_pod_grace_period,
        };
        self.kubelet.runtime.metrics.evicted(signal.name());
        self.end(pod, message.clone(), Some(message), grace);
    }

    fn end(&self, pod: &Pod, message: String, disruption: Option<String>, grace: i64) {
        tracing::warn!(pod = state::full_name(pod), message, "evicting a pod");
        self.kubelet.recorder.warning(&client::reference(pod), "Evicted", message.clone());
        self.workers.end(state::uid(pod), Ended { reason: "Evicted".into(), message, disruption }, Some(grace));
    }
}

/// Processes the kernel has left to give.
fn processes() -> Option<(Signal, Observed)> {
    let capacity = max_processes()?;
    let running = running_processes()?;
    Some((Signal::PidAvailable, Observed { available: capacity.saturating_sub(running), capacity }))
}

fn disk(path: &Path, space: Signal, inodes: Signal) -> Vec<(Signal, Observed)> {
    let stat = match nix::sys::statvfs::statvfs(path) {
        Ok(stat) => stat,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "file system not looked at");
            return Vec::new();
        }
    };
    let block = stat.fragment_size();
    let mut seen =
        vec![(space, Observed { available: stat.blocks_available() * block, capacity: stat.blocks() * block })];
    // Some file systems have no fixed number of inodes and say zero.
    if stat.files() > 0 {
        seen.push((inodes, Observed { available: stat.files_available(), capacity: stat.files() }));
    }
    seen
}
