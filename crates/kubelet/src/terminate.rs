//! Ending pods: hooks, signals and grace periods, then cleaning up what they leave.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::ReleaseError;
use crate::kubelet::Kubelet;
use crate::pass::Memory;
use crate::runtime::CallError;
use crate::state::{self, ContainerState, Phase, PodState};
use crate::status::Ended;
use crate::volumes::blocking;
use crate::{hooks, probes, status};

/// Even a container whose time is up gets to see its signal.
const MIN_GRACE: Duration = Duration::from_secs(2);
const DEFAULT_GRACE_SECONDS: i64 = 30;
/// Longer than any container lives; no sum of times overflows with it.
const MAX_GRACE_SECONDS: i64 = 10 * 365 * 24 * 3600;

/// A grace period as long as an API object says, within what can be counted with.
pub(crate) fn grace(seconds: i64) -> Duration {
    Duration::from_secs(seconds.clamp(0, MAX_GRACE_SECONDS).unsigned_abs())
}

/// One container to be ended.
pub(crate) struct Victim<'a> {
    pub(crate) spec: Option<&'a Container>,
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) grace: Duration,
    /// What the event says.
    pub(crate) message: &'a str,
    /// Others that must have ended before this one gets its signal, within its grace period.
    pub(crate) after: Vec<CancellationToken>,
}

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
        grace(seconds)
    }

    /// Runs preStop, waits for its turn, sends the signal, waits, and kills at the end of the grace period.
    pub(crate) async fn kill_container(
        &self,
        pod: &Pod,
        victim: Victim<'_>,
        pod_ips: &[String],
    ) -> Result<(), CallError> {
        let Victim { spec, id, name, grace, message, after } = victim;
        let reference = probes::container_reference(pod, name);
        self.recorder.normal(&reference, "Killing", message.to_string());
        let deadline = Instant::now() + grace;
        let hook = spec.and_then(|c| c.lifecycle.as_ref()).and_then(|lifecycle| lifecycle.pre_stop.as_ref());
        if let (Some(hook), Some(container), false) = (hook, spec, grace.is_zero()) {
            match tokio::time::timeout(grace, hooks::run(hook, pod, container, id, pod_ips, &self.runtime)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::info!(pod = state::full_name(pod), container = name, %error, "preStop hook failed");
                    let (reason, message) = hooks::FAILED_PRE_STOP;
                    self.recorder.warning(&reference, reason, message);
                }
                Err(_) => tracing::info!(
                    pod = state::full_name(pod),
                    container = name,
                    "preStop hook not completed in grace period"
                ),
            }
        }
        let turn = futures_util::future::join_all(after.iter().map(CancellationToken::cancelled));
        if tokio::time::timeout_at(deadline, turn).await.is_err() {
            tracing::debug!(pod = state::full_name(pod), container = name, "others took all of the grace period");
        }
        self.runtime.stop_container(id, deadline.saturating_duration_since(Instant::now()).max(MIN_GRACE)).await
    }

    /// Ends all containers side by side, then the sandbox. Sidecars run their hooks with the others, but get their
    /// signal after the main containers and the sidecars that started later.
    pub(crate) async fn kill_all(&self, pod: &Pod, state: &PodState, grace: Duration) -> Result<(), CallError> {
        let specs = state::all_containers(pod);
        let pod_ips = self.pod_ips(pod, state);
        let alive: Vec<&ContainerState> = state.containers.iter().filter(|c| c.phase != Phase::Exited).collect();
        let ended: Vec<CancellationToken> = alive.iter().map(|_| CancellationToken::new()).collect();
        let ranks: Vec<usize> = alive.iter().map(|container| end_rank(pod, &container.name)).collect();
        let kills = alive.iter().enumerate().map(|(index, container)| {
            let after =
                ranks.iter().zip(&ended).filter(|(rank, _)| **rank < ranks[index]).map(|(_, token)| token.clone());
            let (specs, pod_ips, done, after) = (&specs, &pod_ips, ended[index].clone(), after.collect());
            async move {
                let victim = Victim {
                    spec: specs.iter().find(|spec| spec.name == container.name),
                    id: &container.id,
                    name: &container.name,
                    grace,
                    message: &format!("Stopping container {}", container.name),
                    after,
                };
                let result = self.kill_container(pod, victim, pod_ips).await;
                done.cancel();
                result
            }
        });
        for result in futures_util::future::join_all(kills).await {
            result?;
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
        self.report_status(pod, &state, memory, false, ended);
        if state.is_any_running() || state.containers.iter().any(|c| c.phase == Phase::Created) {
            self.kill_all(pod, &state, grace).await?;
        }
        self.prober.forget(uid);
        let state = self.runtime.pod_state(uid).await?;
        self.report_status(pod, &state, memory, true, ended);
        Ok(())
    }

    /// Tells how a pod fares while it ends. What cannot be found out now is told at the end.
    pub(crate) async fn report_ending(&self, pod: &Pod, memory: &Memory, ended: Option<&Ended>) {
        match self.runtime.pod_state(state::uid(pod)).await {
            // An end is told by whoever waits for it.
            Ok(state) if state.is_any_running() => drop(self.report_status(pod, &state, memory, false, ended)),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(pod = state::full_name(pod), %error, "state of an ending pod not read");
            }
        }
    }

    /// Tells that nothing more will come of a pod: whatever became of its containers, its phase is a last one.
    pub(crate) fn report_over(&self, pod: &Pod, memory: &Memory) {
        let uid = state::uid(pod);
        let Some(status) = self.status.latest(uid).or_else(|| pod.status.clone()) else { return };
        let over = status::over(pod, status.clone());
        if over != status {
            self.status.set(uid, memory.api_pod(pod), over);
        }
    }

    /// Takes down volumes and the cgroup of a pod that has ended; its containers stay for their logs.
    pub(crate) async fn release(&self, uid: &str) -> Result<(), ReleaseError> {
        self.volumes.tear_down(uid).await?;
        let owned = uid.to_string();
        self.change_cgroup(move |cgroups| cgroups.remove_pod(&owned)).await.map_err(ReleaseError::Cgroup)?;
        self.uncount(uid);
        if let Some(cpus) = &self.cpu_manager {
            cpus.release(uid);
        }
        self.images.forget(uid);
        self.restarts.forget_prefix(&format!("{uid}_"));
        self.update_burstable().await;
        Ok(())
    }

    /// Removes the last traces of a pod that is gone from the API.
    pub(crate) async fn remove(&self, pod: &Pod) -> Result<(), CallError> {
        self.runtime.metrics.forget(state::namespace(pod), state::name(pod));
        for sandbox in self.runtime.sandboxes(Some(state::uid(pod))).await? {
            self.runtime.stop_sandbox(&sandbox.id).await?;
            self.runtime.remove_sandbox(&sandbox.id).await?;
        }
        let logs = self.log_dir(pod);
        let removed = logs.clone();
        if let Err(error) = blocking(move || files::remove_tree(&removed)).await {
            tracing::warn!(path = %logs.display(), %error, "pod logs not removed");
        }
        Ok(())
    }
}

/// The order in which containers get their signal: main ones first, then sidecars from the last to the first.
fn end_rank(pod: &Pod, name: &str) -> usize {
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let later = init.iter().rev().filter(|container| state::is_sidecar(container)).position(|c| c.name == name);
    later.map_or(0, |position| position + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PodSpec;

    #[tokio::test]
    async fn security_grace_periods_of_any_length_can_be_counted_with() {
        for (seconds, expected) in
            [(i64::MIN, 0), (-1, 0), (0, 0), (30, 30), (i64::MAX, MAX_GRACE_SECONDS), (i64::MAX - 1, MAX_GRACE_SECONDS)]
        {
            let period = grace(seconds);
            assert_eq!(period.as_secs() as i64, expected);
            assert!(Instant::now().checked_add(period + MIN_GRACE * 100).is_some());
        }
    }

    #[test]
    fn sidecars_end_in_reverse() {
        let container = |name: &str, policy: Option<&str>| Container {
            name: name.into(),
            restart_policy: policy.map(Into::into),
            ..Default::default()
        };
        let init =
            vec![container("first", Some("Always")), container("once", None), container("second", Some("Always"))];
        let spec =
            PodSpec { init_containers: Some(init), containers: vec![container("main", None)], ..Default::default() };
        let pod = Pod { spec: Some(spec), ..Default::default() };
        for (name, expected) in [("main", 0), ("once", 0), ("second", 1), ("first", 2)] {
            assert_eq!(end_rank(&pod, name), expected, "{name}");
        }
    }
}
