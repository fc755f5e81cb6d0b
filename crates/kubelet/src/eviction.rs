//! Eviction: ends pods before the node runs out of memory or disk.
//!
//! Flow: every ten seconds, signals -> `short` (pure) -> node conditions; when something runs short, images nobody
//! uses go first (disk), then one pod at a time, chosen by `rank` (pure). The node keeps showing pressure
//! for a while after it ended, so that pods do not come back at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::kubelet::Kubelet;
use crate::node::machine::{disk, meminfo_bytes};
use crate::node::status::Pressure;
use crate::state::{self, label};
use crate::status::Ended;
use crate::worker::Workers;
use crate::{gc, resources};

const INTERVAL: Duration = Duration::from_secs(10);
/// Upstream's `evictionPressureTransitionPeriod`.
const LINGER: Duration = Duration::from_secs(300);

pub(crate) struct Eviction {
    pub(crate) kubelet: Arc<Kubelet>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) pressure: Arc<Mutex<Pressure>>,
    pub(crate) changed: Arc<Notify>,
}

/// What is left of what can run short, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Signals {
    memory_available: u64,
    disk_total: u64,
    disk_available: u64,
}

fn short(signals: &Signals, settings: &Settings) -> Pressure {
    Pressure {
        memory: signals.memory_available < settings.eviction_memory_available,
        disk: signals.disk_available < signals.disk_total / 100 * settings.eviction_nodefs_available,
        pids: false,
    }
}

/// The best pod to end: one that uses more than it asked for, of the lowest priority, by how much more.
fn rank<'a>(pods: &'a [Arc<Pod>], usage: &HashMap<String, u64>) -> Option<&'a Arc<Pod>> {
    pods.iter()
        .filter(|pod| {
            let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            let is_over = pod
                .status
                .as_ref()
                .is_some_and(|status| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")));
            priority < 2_000_000_000 && !is_over && pod.metadata.deletion_timestamp.is_none()
        })
        .max_by_key(|pod| {
            let used = usage.get(state::uid(pod)).copied().unwrap_or(0) as i64;
            let asked = resources::pod_request(pod, "memory").value();
            let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            (used > asked, std::cmp::Reverse(priority), used - asked)
        })
}

impl Eviction {
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        let mut last_short: [Option<Instant>; 2] = [None, None];
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = short(&self.signals(), &self.kubelet.settings);
            for (since, is_short) in last_short.iter_mut().zip([now.memory, now.disk]) {
                if is_short {
                    *since = Some(Instant::now());
                }
            }
            let lingers = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() < LINGER);
            let shown = Pressure { memory: lingers(last_short[0]), disk: lingers(last_short[1]), pids: false };
            let before = std::mem::replace(&mut *self.pressure.lock(), shown);
            if before != shown {
                self.changed.notify_one();
            }
            if now.disk {
                gc::collect_images(&self.kubelet, &mut HashMap::new(), true).await;
                if !short(&self.signals(), &self.kubelet.settings).disk {
                    continue;
                }
            }
            if now.memory || now.disk {
                self.evict(if now.memory { "memory" } else { "ephemeral-storage" }).await;
            }
        }
    }

    fn signals(&self) -> Signals {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let (disk_total, disk_available) = disk(&self.kubelet.settings.root_dir).unwrap_or((0, u64::MAX));
        Signals { memory_available: meminfo_bytes(&meminfo, "MemAvailable"), disk_total, disk_available }
    }

    async fn evict(&self, resource: &str) {
        let mut usage: HashMap<String, u64> = HashMap::new();
        for stat in self.kubelet.runtime.container_stats().await.unwrap_or_default() {
            let uid = stat.attributes.as_ref().and_then(|a| a.labels.get(label::POD_UID).cloned()).unwrap_or_default();
            let used = stat.memory.and_then(|memory| memory.working_set_bytes).map_or(0, |bytes| bytes.value);
            *usage.entry(uid).or_default() += used;
        }
        let pods = self.workers.pods();
        let Some(pod) = rank(&pods, &usage) else { return };
        let message = format!("The node was low on resource: {resource}. ");
        tracing::warn!(pod = state::full_name(pod), resource, "evicting a pod");
        self.kubelet.recorder.warning(&client::reference(pod.as_ref()), "Evicted", message.clone());
        let ended = Ended { reason: "Evicted".into(), message, disruption: Some("TerminationByKubelet") };
        self.workers.end(state::uid(pod), ended, Some(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn thresholds() {
        let settings = Settings::new("n");
        let mib = 1 << 20;
        for (memory, available, expected) in
            [(200 * mib, 500, (false, false)), (99 * mib, 500, (true, false)), (200 * mib, 99, (false, true))]
        {
            let got =
                short(&Signals { memory_available: memory, disk_total: 1000, disk_available: available }, &settings);
            assert_eq!((got.memory, got.disk), expected);
        }
    }

    #[test]
    fn greedy_pods_of_low_priority_go_first() {
        let pod = |uid: &str, priority, request: &str| {
            Arc::new(Pod {
                metadata: ObjectMeta { uid: Some(uid.into()), ..Default::default() },
                spec: Some(PodSpec {
                    priority: Some(priority),
                    containers: vec![container_with("a", &format!("memory={request}"), "")],
                    ..Default::default()
                }),
                ..Default::default()
            })
        };
        let pods = [
            pod("modest", 0, "100"),
            pod("greedy", 0, "10"),
            pod("greedy-but-dear", 5, "10"),
            pod("critical", 2_000_000_000, "0"),
        ];
        let usage = HashMap::from([
            ("modest".into(), 50),
            ("greedy".into(), 40),
            ("greedy-but-dear".into(), 400),
            ("critical".into(), 9999),
        ]);
        assert_eq!(state::uid(rank(&pods, &usage).unwrap()), "greedy");
        assert!(rank(&pods[3..], &usage).is_none());
    }
}
