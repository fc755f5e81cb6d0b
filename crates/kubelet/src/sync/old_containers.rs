//! What earlier passes left behind.

use std::collections::HashMap;

use crate::kubelet::Kubelet;
use crate::state::{Phase, PodState};

impl Kubelet {
    /// Keeps one ended container per name for its logs and last state, and no empty old sandbox.
    pub(super) async fn remove_old_containers(&self, state: &PodState) {
        let mut kept: HashMap<&str, u32> = HashMap::new();
        let mut removed = Vec::new();
        for container in &state.containers {
            let count = kept.entry(container.name.as_str()).or_default();
            *count += 1;
            if *count > 2 && container.phase != Phase::Running {
                removed.push(container.id.as_str());
                if let Err(error) = self.runtime.remove_container(&container.id).await {
                    tracing::warn!(container = container.id, %error, "old container not removed");
                    continue;
                }
                if let Err(error) = tokio::fs::remove_file(&container.log_path).await {
                    tracing::debug!(path = container.log_path, %error, "old log not removed");
                }
            }
        }
        for sandbox in state.sandboxes.iter().skip(1).filter(|sandbox| !sandbox.ready) {
            let in_use =
                state.containers.iter().any(|c| c.sandbox_id == sandbox.id && !removed.contains(&c.id.as_str()));
            if !in_use && let Err(error) = self.runtime.remove_sandbox(&sandbox.id).await {
                tracing::warn!(sandbox = sandbox.id, %error, "old sandbox not removed");
            }
        }
    }
}
