//! The processors of running containers, kept as the CPU manager wants them.

use std::collections::HashMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cpu_manager::CpuSet;
use crate::kubelet::Kubelet;
use crate::state;

/// Keeps running containers on the processors they may use now.
pub(crate) async fn run(kubelet: Arc<Kubelet>, stop: CancellationToken) {
    let Some(manager) = &kubelet.cpu_manager else { return };
    let mut ticks = tokio::time::interval(kubelet.settings.cpu_manager_reconcile_period);
    let mut applied: HashMap<String, CpuSet> = HashMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let containers = match kubelet.runtime.containers(None).await {
            Ok(containers) => containers,
            Err(error) => {
                tracing::warn!(%error, "containers not listed, their processors stay as they are");
                continue;
            }
        };
        applied.retain(|id, _| containers.iter().any(|container| &container.id == id));
        for container in containers {
            let label = |name: &str| container.labels.get(name).map(String::as_str).unwrap_or_default();
            let (uid, name) = (label(state::label::POD_UID), label(state::label::CONTAINER_NAME));
            let is_running = container.state == cri::v1::ContainerState::ContainerRunning as i32;
            let cpus = manager.cpus(uid, name);
            if !is_running || uid.is_empty() || applied.get(&container.id) == Some(&cpus) {
                continue;
            }
            match kubelet.runtime.set_cpus(&container.id, cpus.to_string()).await {
                Ok(()) => drop(applied.insert(container.id, cpus)),
                Err(error) => tracing::warn!(container = container.id, %error, "processors not set, will retry"),
            }
        }
    }
}
