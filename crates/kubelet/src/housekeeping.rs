//! Housekeeping: what is left of pods that nobody knows goes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use client::Informer;
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Notify;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::{Backoff, HOUSEKEEPING_INTERVAL, IDLE_HOUSEKEEPING_INTERVAL};
use crate::cgroups::Cgroups;
use crate::cpu_manager::CpuManager;
use crate::kubelet::Kubelet;
use crate::state::{self, annotation};
use crate::worker::Workers;
use crate::{node, runtime, static_pods};

/// Looks for what is left of pods that nobody knows.
pub(crate) struct Housekeeping {
    pub(crate) kubelet: Arc<Kubelet>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) pods: Informer<Pod>,
    /// Every source was read.
    pub(crate) all_read: CancellationToken,
    /// A pod is gone from the API.
    pub(crate) some_left: Arc<Notify>,
}

impl Housekeeping {
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        // A pod may be in a source that was not read yet.
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.all_read.cancelled() => {}
        }
        let (mut removals, mut told) = (Removals::new(), BTreeSet::new());
        loop {
            let interval = self.look(&mut removals).await;
            self.tell_unread(&mut told);
            let next = tokio::time::sleep(interval);
            tokio::pin!(next);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = &mut next => break,
                    Some(ended) = removals.tasks.join_next_with_id() => if removals.ended(ended) { continue },
                    // What a pod leaves behind goes with its worker, a moment later.
                    () = self.some_left.notified() => {}
                }
                let soon = Instant::now() + HOUSEKEEPING_INTERVAL;
                if soon < next.deadline() {
                    next.as_mut().reset(soon);
                }
            }
        }
    }

    /// Tells once of each record of a volume that cannot be read: whoever has the volume waits until somebody mends that.
    fn tell_unread(&self, told: &mut BTreeSet<String>) {
        let unread = self.kubelet.volumes.unread();
        let reference = node::reference(&self.kubelet.settings.node_name);
        for error in unread.difference(told) {
            tracing::error!(error, "it is not known which volume is there");
            self.kubelet.recorder.warning(&reference, "UnreadableVolumeRecord", error.as_str());
        }
        *told = unread;
    }

    /// Ends pods that run here but are in no source, and begins to remove what dead ones left behind. Says when to look
    /// again.
    async fn look(&self, removals: &mut Removals) -> Duration {
        let Housekeeping { kubelet, workers, pods, .. } = self;
        let sandboxes = match kubelet.runtime.sandboxes(None).await {
            Ok(sandboxes) => sandboxes,
            Err(error) => {
                tracing::warn!(%error, "sandboxes not listed");
                return HOUSEKEEPING_INTERVAL;
            }
        };
        let wanted: std::collections::HashSet<String> = pods
            .list()
            .iter()
            .filter(|pod| !static_pods::is_mirror(pod))
            .map(|pod| state::uid(pod).to_string())
            .collect();
        let running = runtime::known_pods(&sandboxes);
        let mut next = IDLE_HOUSEKEEPING_INTERVAL;
        for (uid, (namespace, name)) in &running {
            if wanted.contains(uid) || workers.has(uid) {
                continue;
            }
            next = HOUSEKEEPING_INTERVAL;
            // All that is left of its spec is what its containers carry.
            let containers = match kubelet.runtime.containers(Some(uid)).await {
                Ok(containers) => containers,
                Err(error) => {
                    tracing::warn!(uid, %error, "containers of a pod in no source not listed, it stays until they are");
                    continue;
                }
            };
            let grace = containers.iter().find_map(|container| container.annotations.get(annotation::POD_GRACE_PERIOD));
            let spec = PodSpec {
                termination_grace_period_seconds: grace.and_then(|seconds| seconds.parse().ok()),
                ..Default::default()
            };
            tracing::info!(pod = format!("{namespace}/{name}"), uid, "ending a pod that is in no source");
            workers.end_orphan(Pod {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(namespace.clone()),
                    uid: Some(uid.clone()),
                    ..Default::default()
                },
                spec: Some(spec),
                ..Default::default()
            });
        }
        let mut left = Vec::from_iter(kubelet.volumes.pods_on_disk());
        left.extend(kubelet.cgroups.iter().flat_map(Cgroups::pods));
        left.extend(kubelet.cpu_manager.iter().flat_map(CpuManager::pods));
        left.compact_sort();
        left.dedup();
        left.retain(|uid| !wanted.contains(uid) && !workers.has(uid) && !running.contains_key(uid));
        next = left.iter().map(|uid| removals.next_look(uid)).fold(next, Duration::min);
        for uid in left {
            let (kubelet, owner) = (kubelet.clone(), uid.clone());
            removals.begin(uid, async move {
                let released = kubelet.release(&owner).await;
                if let Err(error) = &released {
                    tracing::warn!(uid = owner, %error, "leftovers of a pod not removed, will retry");
                }
                released.is_ok()
            });
        }
        let (devices, disks) = (kubelet.clone(), kubelet.clone());
        removals.begin("local devices", async move { devices.volumes.local_devices.release_unused().await });
        removals.begin("iSCSI disks", async move { disks.volumes.iscsi.release_unused().await });
        next.min(kubelet.volumes.csi.unstage_unused().await)
    }
}

/// What is being removed, side by side: a storage driver that does not answer holds up its own leftovers only. What fails is
/// tried again later and later.
struct Removals {
    tasks: JoinSet<bool>,
    under_way: HashMap<Id, String>,
    backoff: Backoff,
}

impl Removals {
    fn new() -> Self {
        Removals { tasks: JoinSet::new(), under_way: HashMap::new(), backoff: Backoff::of_removals() }
    }

    /// When to look again at what is left: the end of what is under way is heard of.
    fn next_look(&self, what: &str) -> Duration {
        match self.under_way.values().any(|other| other == what) {
            true => IDLE_HOUSEKEEPING_INTERVAL,
            false => self.backoff.next_look(what),
        }
    }

    /// Begins a removal, which says whether it is done, unless it is under way or it is too early to try again.
    fn begin(&mut self, what: impl Into<String>, removal: impl Future<Output = bool> + Send + 'static) {
        let what = what.into();
        let is_waiting = self.backoff.remaining_since_update(&what).is_some();
        if !is_waiting && !self.under_way.values().any(|other| *other == what) {
            let id = self.tasks.spawn(FutureExt::boxed(removal)).id();
            self.under_way.insert(id, what);
        }
    }

    /// Whether it is done.
    fn ended(&mut self, ended: Result<(Id, bool), JoinError>) -> bool {
        let (id, is_done) = ended.unwrap_or_else(|error| {
            tracing::error!(%error, "removing leftovers ended badly");
            (error.id(), false)
        });
        match self.under_way.remove(&id) {
            Some(what) if is_done => self.backoff.forget(&what),
            Some(what) => self.backoff.next(&what),
            None => {}
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_later_and_holds_up_nothing_else() {
        let mut removals = Removals::new();
        let tries = [const { AtomicUsize::new(0) }; 3].map(Arc::new);
        let begun = |at: usize| tries[at].load(Ordering::SeqCst);
        // For two minutes, every two seconds: one hangs, one fails, one is done.
        for _ in 0..60 {
            for (at, what) in ["hangs", "fails", "works"].into_iter().enumerate() {
                let tries = tries[at].clone();
                removals.begin(what, async move {
                    tries.fetch_add(1, Ordering::SeqCst);
                    match what {
                        "hangs" => std::future::pending().await,
                        _ => what == "works",
                    }
                });
            }
            tokio::task::yield_now().await;
            while let Some(ended) = removals.tasks.try_join_next_with_id() {
                removals.ended(ended);
            }
            tokio::time::advance(HOUSEKEEPING_INTERVAL).await;
        }
        assert_eq!((begun(0), begun(2)), (1, 60));
        assert!((5..=7).contains(&begun(1)), "after 2, 4, 8, 16, 32 seconds: {}", begun(1));
        assert_eq!(removals.next_look("hangs"), IDLE_HOUSEKEEPING_INTERVAL);
        assert_eq!(removals.next_look("works"), HOUSEKEEPING_INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_not_looked_at_before_it_is_due() {
        let mut removals = Removals::new();
        let mut looks = Vec::new();
        for _ in 0..6 {
            looks.push(removals.next_look("a").as_secs());
            removals.begin("a", async { false });
            let ended = removals.tasks.join_next_with_id().await.unwrap();
            assert!(!removals.ended(ended));
            let left = removals.backoff.remaining_since_update("a").unwrap();
            looks.push(removals.next_look("a").as_secs());
            tokio::time::advance(left).await;
        }
        assert_eq!(looks, [2, 2, 2, 4, 2, 8, 2, 16, 2, 30, 2, 30]);
    }
}
