//! Ending pods: hooks, signals and grace periods, then cleaning up what they leave.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::time::Instant;

use crate::kubelet::Kubelet;
use crate::runtime::CallError;
use crate::state::{self, ContainerState, Phase, PodState};
use crate::status::Ended;
use crate::volumes::blocking;
use crate::worker::Memory;
use crate::{hooks, probes};

/// Even a pod deleted with no grace gets to see its signal.
const MIN_GRACE: Duration = Duration::from_secs(1);
/// What is left for a container whose preStop hook used up all its time.
const AFTER_HOOK: Duration = Duration::from_secs(2);
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl Kubelet {
    /// The time a pod's containers get to end by themselves.
    pub(crate) fn grace_period(&self, pod: &Pod, shorter: Option<i64>) -> Duration {
        let of_pod = pod
            .metadata
            .deletion_grace_period_seconds
            .filter(|_| pod.metadata.deletion_timestamp.is_some())
            .or_else(|| pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds))
            .unwrap_or(DEFAULT_GRACE_SECONDS);
        let seconds = shorter.map_or(of_pod, |seconds| seconds.min(of_pod));
        Duration::from_secs(seconds.max(0) as u64).max(MIN_GRACE)
    }

    /// Runs preStop, sends the signal, waits, and kills at the end of the grace period.
    #[expect(clippy::too_many_arguments, reason = "callers know different parts of one container")]
    pub(crate) async fn kill_container(
        &self,
        pod: &Pod,
        container: Option<&Container>,
        id: &str,
        name: &str,
        grace: Duration,
        message: &str,
        pod_ips: &[String],
    ) -> Result<(), CallError> {
        let reference = probes::container_reference(pod, name);
        self.recorder.normal(&reference, "Killing", message.to_string());
        let started = Instant::now();
        let hook = container.and_then(|c| c.lifecycle.as_ref()).and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let (Some(hook), Some(container)) = (hook, container) {
            match tokio::time::timeout(grace, hooks::run(hook, pod, container, id, pod_ips, &self.runtime)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::info!(pod = state::full_name(pod), container = name, %error, "preStop hook failed");
                    self.recorder.warning(&reference, "FailedPreStopHook", "PreStopHook failed");
                }
                Err(_) => tracing::info!(
                    pod = state::full_name(pod),
                    container = name,
                    "preStop hook not completed in grace period"
                ),
            }
        }
        let left = grace.saturating_sub(started.elapsed()).max(if hook.is_some() { AFTER_HOOK } else { MIN_GRACE });
        self.runtime.stop_container(id, left).await
    }

    /// Ends all containers, main ones first and side by side, then sidecars in reverse order, then the sandbox.
    pub(crate) async fn kill_all(
        &self,
        pod: &Pod,
        state: &PodState,
        grace: Duration,
        verb: &str,
    ) -> Result<(), CallError> {
        let specs = state::all_containers(pod);
        let pod_ips = self.pod_ips(pod, state);
        let started = Instant::now();
        let is_alive = |c: &&ContainerState| c.phase != Phase::Exited;
        let sidecars: Vec<&str> = pod
            .spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten())
            .filter(|c| state::is_sidecar(c))
            .map(|c| c.name.as_str())
            .collect();
        let kill = |container: &ContainerState, grace: Duration| {
            let spec = specs.iter().find(|spec| spec.name == container.name).cloned();
            let (id, name) = (container.id.clone(), container.name.clone());
            let message = format!("{verb} {name}");
            let pod_ips = &pod_ips;
            async move { self.kill_container(pod, spec.as_ref(), &id, &name, grace, &message, pod_ips).await }
        };
        let main = state.containers.iter().filter(is_alive).filter(|c| !sidecars.contains(&c.name.as_str()));
        let results = futures_util::future::join_all(main.map(|container| kill(container, grace))).await;
        let mut first_error = results.into_iter().find_map(Result::err);
        for name in sidecars.iter().rev() {
            for container in state.containers.iter().filter(is_alive).filter(|c| c.name == *name) {
                let left = grace.saturating_sub(started.elapsed()).max(AFTER_HOOK);
                if let Err(error) = kill(container, left).await {
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        for sandbox in &state.sandboxes {
            self.runtime.stop_sandbox(&sandbox.id).await?;
        }
        Ok(())
    }

    /// Ends a pod and tells how it ended. Returns only when nothing of it runs.
    pub(crate) async fn terminate(
        &self,
        pod: &Pod,
        memory: &Memory,
        ended: Option<&Ended>,
        grace: Duration,
    ) -> Result<(), CallError> {
        let uid = state::uid(pod);
        let state = self.runtime.pod_state(uid).await?;
        self.prober.reconcile(pod, &state, true);
        self.tell(pod, &state, memory, false, ended);
        if state.is_any_running() || state.containers.iter().any(|c| c.phase == Phase::Created) {
            self.kill_all(pod, &state, grace, "Stopping container").await?;
        }
        self.prober.forget(uid);
        let state = self.runtime.pod_state(uid).await?;
        self.tell(pod, &state, memory, true, ended);
        Ok(())
    }

    /// Takes down volumes and the cgroup of a pod that has ended; its containers stay for their logs.
    pub(crate) async fn release(&self, uid: &str) -> Result<(), String> {
        self.volumes.tear_down(uid).await?;
        if let Some(cgroups) = self.cgroups.clone() {
            let owned = uid.to_string();
            blocking(move || cgroups.remove_pod(&owned)).await?;
        }
        self.images.forget(uid);
        self.restarts.forget_prefix(&format!("{uid}_"));
        Ok(())
    }

    /// Removes the last traces of a pod that is gone from the API.
    pub(crate) async fn remove(&self, pod: &Pod) -> Result<(), CallError> {
        for sandbox in self.runtime.sandboxes(Some(state::uid(pod))).await? {
            self.runtime.stop_sandbox(&sandbox.id).await?;
            self.runtime.remove_sandbox(&sandbox.id).await?;
        }
        let logs = self.log_dir(pod);
        match tokio::fs::remove_dir_all(&logs).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(path = %logs.display(), %error, "pod logs not removed");
            }
            _ => {}
        }
        Ok(())
    }
}
