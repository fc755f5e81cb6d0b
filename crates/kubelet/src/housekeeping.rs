//! Housekeeping: what is left of pods that nobody knows goes.

use std::sync::Arc;
use std::time::Duration;

use client::Informer;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::cgroups::Cgroups;
use crate::cpu_manager::CpuManager;
use crate::kubelet::Kubelet;
use crate::state::{self, annotation};
use crate::worker::Workers;
use crate::{runtime, static_pods};

/// How often leftovers of pods nobody knows are looked for, after a first look at start: while there are some or a pod has just
/// gone, and when there were none.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);
const IDLE_HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(30);

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
        loop {
            let is_clean = clean_orphans(&self.kubelet, &self.workers, &self.pods).await;
            let interval = if is_clean { IDLE_HOUSEKEEPING_INTERVAL } else { HOUSEKEEPING_INTERVAL };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(interval) => continue,
                () = self.some_left.notified() => {}
            }
            // What a pod leaves behind goes with its worker, a moment later.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(HOUSEKEEPING_INTERVAL) => {}
            }
        }
    }
}

/// Ends pods that run here but are in no source, and removes what dead ones left behind. Says whether nothing was found.
async fn clean_orphans(kubelet: &Arc<Kubelet>, workers: &Arc<Workers>, pods: &Informer<Pod>) -> bool {
    let sandboxes = match kubelet.runtime.sandboxes(None).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!(%error, "sandboxes not listed");
            return false;
        }
    };
    let wanted: std::collections::HashSet<String> =
        pods.list().iter().filter(|pod| !static_pods::is_mirror(pod)).map(|pod| state::uid(pod).to_string()).collect();
    let running = runtime::known_pods(&sandboxes);
    let mut is_clean = true;
    for (uid, (namespace, name)) in &running {
        if wanted.contains(uid) || workers.has(uid) {
            continue;
        }
        is_clean = false;
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
    left.sort();
    left.dedup();
    left.retain(|uid| !wanted.contains(uid) && !workers.has(uid) && !running.contains_key(uid));
    is_clean &= left.is_empty();
    // Side by side: a storage driver that does not answer holds up its own pods only.
    let releases = left.iter().map(|uid| async move {
        if let Err(error) = kubelet.release(uid).await {
            tracing::warn!(uid, %error, "leftovers of a pod not removed");
        }
    });
    futures_util::future::join_all(releases).await;
    let is_free = kubelet.volumes.local_devices.release_unused().await & kubelet.volumes.iscsi.release_unused().await;
    is_clean & is_free & kubelet.volumes.csi.unstage_unused().await
}
